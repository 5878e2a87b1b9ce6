package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

// Reported failures of comparable systems, each with the right behaviour. The names of the tests carry their ids. The
// model is strict: a request that a provider would refuse fails the test.

// bench is the world of one case.
type bench struct {
	*World
	model *agenttest.Model
	mu    sync.Mutex
	seen  map[string][]string // arguments that handlers were given, by tool
}

// newBench makes a world with tools whose calls are counted, and a model that says steps.
func newBench(t *testing.T, o Options, tools []agent.Tool, steps ...agenttest.Step) *bench {
	t.Helper()
	b := &bench{model: agenttest.NewModel(t, steps...), seen: map[string][]string{}}
	o.Model = b.model
	for _, tool := range tools {
		o.Tools = append(o.Tools, &counted{tool, b})
	}
	b.World = New(t, o)
	return b
}

// counted counts the effects of a tool and keeps what it was given.
type counted struct {
	agent.Tool
	b *bench
}

func (c *counted) Run(ctx context.Context, call *agent.Call, args json.RawMessage) (json.RawMessage, error) {
	out, err := c.Tool.Run(ctx, call, args)
	if s, ok := errors.AsType[*agent.Suspension](err); !ok || s == nil {
		c.b.Effects.Add(call.IdempotencyKey())
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	c.b.seen[call.ToolName()] = append(c.b.seen[call.ToolName()], string(args))
	return out, err
}

func (b *bench) given(tool string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.seen[tool])
}

// inCase runs a case in fake time.
func inCase(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

const moment = time.Minute

// echo is a tool that answers with its arguments.
func echo(id, schema string, o agent.ToolOptions) agent.Tool {
	o.InputSchema, o.OutputSchema = json.RawMessage(schema), json.RawMessage(`{}`)
	return agent.NewTool(id, "The tool "+id, func(_ context.Context, _ *agent.Call, in json.RawMessage) (any, error) {
		return in, nil
	}, &o)
}

const anything = `{"type":"object","additionalProperties":true}`

// pauser is a tool that suspends itself until it is resumed, and answers with the resume data.
func pauser(id string, o agent.ToolOptions) agent.Tool {
	o.InputSchema, o.OutputSchema = json.RawMessage(anything), json.RawMessage(`{}`)
	return agent.NewTool(id, "The tool "+id, func(_ context.Context, call *agent.Call, _ json.RawMessage) (any, error) {
		if !call.Resumed() {
			return nil, call.Suspend(map[string]string{"tool": id})
		}
		return agent.ResumeData[json.RawMessage](call)
	}, &o)
}

func asks(calls ...agenttest.ToolCall) agenttest.Step { return agenttest.Step{Calls: calls} }

func callTo(tool, args string) agenttest.ToolCall { return agenttest.ToolCall{Name: tool, Args: args} }

func (b *bench) call(run string, step, index int) events.CallID {
	return events.CallID{Run: run, Step: step, Index: index}
}

// send sends a decision that names the pending ask, and is its event's id.
func (b *bench) send(who string, d events.Decision, call events.CallID, more func(*events.DecisionRequested)) string {
	b.T.Helper()
	ask := b.AwaitAsk(call, moment)
	req := events.DecisionRequested{Decision: d, ToolCallID: call.String(), Fingerprint: ask.Fingerprint}
	if more != nil {
		more(&req)
	}
	return b.Posted(b.Conn().Namespace().InDecide(who, call), call.Run, who, req).Event.ID
}

func withData(raw string) func(*events.DecisionRequested) {
	return func(d *events.DecisionRequested) { d.ResumeData = json.RawMessage(raw) }
}

func because(reason string) func(*events.DecisionRequested) {
	return func(d *events.DecisionRequested) { d.Reason = reason }
}

// result waits for the result of a call.
func (b *bench) result(call events.CallID) events.CallFinished {
	b.T.Helper()
	d, err := events.Data[events.CallFinished](b.Await(b.Conn().Namespace().Call(call, events.KindResult), 10*moment))
	b.must(err)
	return d
}

// refusal waits for the refusal of a decision.
func (b *bench) refusal(call events.CallID, id string) events.DecisionRefused {
	b.T.Helper()
	d, err := events.Data[events.DecisionRefused](b.Await(b.Conn().Namespace().Beside(call, events.KindRefused, id), moment))
	b.must(err)
	return d
}

// last is the last fact of a call.
func (b *bench) last(call events.CallID) events.Kind {
	b.T.Helper()
	e, err := b.Conn().Last(b.T.Context(), b.Conn().Namespace().Call(call, events.KindAsk).Chain())
	b.must(err)
	return e.Place.Kind
}

// completed waits for the end of a run and checks the log.
func (b *bench) completed(run string) {
	b.T.Helper()
	if end := b.AwaitEnd(run, 10*moment); end.Outcome != events.RunCompleted {
		b.T.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
	}
	b.pause(2 * time.Second)
	b.Check(true)
}

// told are the results of the last request to the model, one line each.
func (b *bench) told() []string {
	b.T.Helper()
	requests := b.model.Requests()
	messages := requests[len(requests)-1].Messages
	var lines []string
	for _, p := range messages[len(messages)-1].Parts {
		if p.Type == events.PartToolResult {
			lines = append(lines, fmt.Sprintf("%s %s %s", p.ToolName, p.Output.Type, p.Output.Value))
		}
	}
	return lines
}

// open are the calls that the suspended run's entry lists.
func (b *bench) open() []string {
	b.T.Helper()
	keys, err := b.Conn().ListSuspended(b.T.Context(), "", "", "")
	b.must(err)
	var ids []string
	for _, key := range keys {
		snap, _, err := b.Conn().Snapshot(b.T.Context(), key)
		if errors.Is(err, jetstream.ErrNotFound) {
			continue
		}
		b.must(err)
		for _, a := range snap.Asks {
			ids = append(ids, a.ToolCallID+" "+a.ToolName+" "+string(a.Args))
		}
	}
	return ids
}

// chunks are the chunks of a run that has ended, each once.
func (b *bench) chunks(run string) []events.Chunk {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(b.T.Context(), moment)
	defer cancel()
	var all []events.Chunk
	seen := map[string]bool{}
	for c, err := range b.Conn().Follow(ctx, run, 0, nil) {
		if err != nil {
			b.T.Fatal(err)
		}
		if !seen[c.ID] {
			all = append(all, c)
		}
		seen[c.ID] = true
		if c.Type == events.ChunkFinish || c.Type == events.ChunkAbort {
			return all
		}
	}
	b.T.Fatalf("the chunks of %s have no end", run)
	return nil
}

// chunk is the payload of a run's chunk of a type about a call.
func chunk[T any](b *bench, run string, t events.ChunkType, call events.CallID) T {
	b.T.Helper()
	var p T
	for _, c := range b.chunks(run) {
		if c.Type == t && strings.Contains(string(c.Payload), call.String()+`"`) {
			b.must(json.Unmarshal(c.Payload, &p))
			return p
		}
	}
	b.T.Fatalf("no chunk %s about %s", t, call)
	return p
}

func equal(tb testing.TB, what string, got, want any) {
	tb.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		tb.Errorf("%s:\n%v\nwant\n%v", what, got, want)
	}
}

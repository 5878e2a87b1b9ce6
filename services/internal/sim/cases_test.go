package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
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

// TestCase_GATE_3 holds what a rule is true for, and what it cannot be evaluated for.
func TestCase_GATE_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		rules := map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{
			{Name: "deletes", Tools: []string{"fs"}, When: "args.op == 'delete'", Action: events.RuleAsk, Reason: "deletes are looked at"},
		}}}
		b := newBench(t, Options{Rules: rules}, []agent.Tool{echo("fs", anything, agent.ToolOptions{})},
			asks(callTo("fs", `{"op":"read"}`), callTo("fs", `{"op":"delete"}`), callTo("fs", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		deletes, fails := b.AwaitAsk(b.call(run, 1, 2), moment), b.AwaitAsk(b.call(run, 1, 3), moment)
		equal(t, "the read", b.result(b.call(run, 1, 1)).Outcome, events.OutcomeOK)
		if deletes.Reason.Rule != "deletes" || deletes.Reason.Error != "" {
			t.Errorf("the delete is held because of %+v", deletes.Reason)
		}
		if fails.Reason.Rule != "deletes" || !strings.Contains(fails.Reason.Error, "op") {
			t.Errorf("the failed evaluation is held because of %+v", fails.Reason)
		}
		for i := 2; i <= 3; i++ {
			b.send("alice", events.Decline, b.call(run, 1, i), nil)
		}
		b.completed(run)
		equal(t, "executions", b.given("fs"), []string{`{"op":"read"}`})
	})
}

// TestCase_GATE_6 lets no option of a run lower what a tool demands, and holds what only the run demands.
func TestCase_GATE_6(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool *events.Approval
		run  bool
	}{
		"run false, tool demands":    {agent.Always(), false},
		"run true, tool says no":     {agent.Never(), true},
		"run true, tool says naught": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: test.tool})},
					asks(callTo("pay", `{}`)), agenttest.Say("done"))
				b.StartAll()
				b.RequestAs("bob", events.RunRequested{
					AgentID: "support", RunID: "r1", RequireToolApproval: &events.Approval{Always: test.run},
					Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
				})
				b.AwaitAsk(b.call("r1", 1, 1), moment)
				equal(t, "executions before the decision", len(b.given("pay")), 0)
				b.send("alice", events.Decline, b.call("r1", 1, 1), nil)
				b.completed("r1")
				equal(t, "executions", len(b.given("pay")), 0)
			})
		})
	}
}

// TestCase_GATE_8 shows no result and no request of the model while a call waits, and one real result after approval.
func TestCase_GATE_8(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.AwaitAsk(call, moment)
		time.Sleep(30 * time.Second) // fake
		equal(t, "requests while the call waits", len(b.model.Requests()), 1)
		equal(t, "the chain while the call waits", b.last(call), events.KindAsk)
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		equal(t, "requests", len(b.model.Requests()), 2)
		equal(t, "results", b.told(), []string{`pay json {"n":1}`})
		equal(t, "executions", b.Effects.Of(call.String()), 1)
	})
}

// TestCase_DECL_1 has a decision handled by another process, which was never told what the run demands.
func TestCase_DECL_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{})}, asks(callTo("pay", `{}`)), agenttest.Say("done"))
		copies := b.StartAll()
		b.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: "r1", RequireToolApproval: agent.Always(),
			Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
		})
		call := b.call("r1", 1, 1)
		b.AwaitAsk(call, moment)
		for _, c := range copies {
			c.Kill()
		}
		b.StartAll()
		b.send("alice", events.Decline, call, nil)
		b.completed("r1")
		equal(t, "executions", len(b.given("pay")), 0)
		equal(t, "results", b.told(), []string{`pay text "Tool call was not approved by the user"`})
	})
}

// TestCase_DECL_2 declines a call, loses every acknowledgement for a while, so that everything is delivered again, and
// restarts the executor.
func TestCase_DECL_2(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var losing atomic.Bool
		b := newBench(t, Options{Drop: losing.Load}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`)), agenttest.Say("done"))
		losing.Store(true)
		copies := b.StartAll()
		run := b.Request("go")
		b.send("alice", events.Decline, b.call(run, 1, 1), nil)
		b.send("alice", events.Approve, b.call(run, 1, 2), nil)
		b.AwaitEnd(run, moment)
		copies[2].Kill()
		b.Start(toolexecutor.Name)
		time.Sleep(2 * time.Minute) // fake: everything comes again, more than once
		losing.Store(false)
		time.Sleep(2 * time.Minute) // fake
		b.completed(run)
		equal(t, "executions", b.given("pay"), []string{`{"n":2}`})
	})
}

// TestCase_DECL_3 approves one of two held calls and declines the other, beside one that runs at once.
func TestCase_DECL_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("read", anything, agent.ToolOptions{}), echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("read", `{}`), callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.send("alice", events.Decline, b.call(run, 1, 3), because("too much"))
		b.send("alice", events.Approve, b.call(run, 1, 2), nil)
		b.completed(run)
		equal(t, "results", b.told(), []string{`read json {}`, `pay json {"n":1}`, `pay text "too much"`})
		for i, want := range []int{1, 1, 0} {
			equal(t, "executions", b.Effects.Of(b.call(run, 1, i+1).String()), want)
		}
	})
}

// TestCase_DECL_4 declines with a reason in another language, and without one: the outcome is data, in record and chunk.
func TestCase_DECL_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`), callTo("pay", `{"n":3}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		for i, reason := range []string{"falscher Auftrag", "", "  "} {
			call := b.call(run, 1, i+1)
			b.send("alice", events.Decline, call, because(reason))
			d := b.result(call)
			if d.Outcome != events.OutcomeDeclined || d.Principal != "alice" || d.Reason != strings.TrimSpace(reason) || d.Started {
				t.Errorf("declined because of %q: %+v", reason, d)
			}
		}
		b.completed(run)
		denied := chunk[events.ToolResultPayload](b, run, events.ChunkToolOutputDenied, b.call(run, 1, 1))
		if denied.Outcome != events.OutcomeDeclined || denied.Approval.Approved || denied.Approval.Reason != "falscher Auftrag" {
			t.Errorf("chunk = %+v", denied)
		}
	})
}

// TestCase_DECL_6 cancels a slow tool that people had approved: once the whole run, once the one call.
func TestCase_DECL_6(t *testing.T) {
	slow := func() agent.Tool {
		return agent.NewTool("slow", "Take long", func(ctx context.Context, _ *agent.Call, _ Order) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, &agent.ToolOptions{RequireApproval: agent.Always(), OutputSchema: json.RawMessage(`{}`)})
	}
	t.Run("run", func(t *testing.T) {
		inCase(t, func(t *testing.T) {
			b := newBench(t, Options{}, []agent.Tool{slow()}, asks(callTo("slow", `{"orderId":"42"}`)))
			b.StartAll()
			run := b.Request("go")
			call := b.call(run, 1, 1)
			b.send("alice", events.Approve, call, nil)
			b.Await(b.Conn().Namespace().Call(call, events.KindClaim), moment)
			b.Cancel("bob", run)
			b.AwaitEnd(run, moment)
			if d := b.result(call); d.Outcome != events.OutcomeCancelled || !d.Started {
				t.Errorf("result = %+v, want cancelled, started", d)
			}
			p := chunk[events.ToolResultPayload](b, run, events.ChunkToolError, call)
			if p.Outcome != events.OutcomeCancelled || !p.Started {
				t.Errorf("chunk = %+v, want cancelled, started", p)
			}
		})
	})
	t.Run("call", func(t *testing.T) {
		inCase(t, func(t *testing.T) {
			b := newBench(t, Options{}, []agent.Tool{slow()}, asks(callTo("slow", `{"orderId":"42"}`)), agenttest.Say("sorry"))
			b.StartAll()
			run := b.Request("go")
			call := b.call(run, 1, 1)
			b.send("alice", events.Approve, call, nil)
			b.Await(b.Conn().Namespace().Call(call, events.KindClaim), moment)
			b.publish(b.Conn().Namespace().InCancel("bob", run), run, "bob", events.CancelRequested{RunID: run, ToolCallID: call.String()})
			b.completed(run)
			equal(t, "results", b.told(), []string{`slow error-text "Tool call was cancelled after it had started; its effects may have happened"`})
		})
	})
}

// TestCase_TGT_1 lets an approval of a call that was declined long ago meet the next one.
func TestCase_TGT_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`)), asks(callTo("pay", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		c1, c2 := b.call(run, 1, 1), b.call(run, 2, 1)
		b.send("alice", events.Decline, c1, nil)
		b.AwaitAsk(c2, moment)
		d := b.refusal(c1, b.send("carol", events.Approve, c1, nil))
		if d.Code != events.CodeAlreadyDecided || d.Answer == nil || d.Answer.Decision != events.Decline || d.Answer.Principal != "alice" {
			t.Errorf("the late approval is told %+v", d.Error)
		}
		equal(t, "the pending call", b.last(c2), events.KindAsk)
		equal(t, "executions", len(b.given("pay")), 0)
		b.send("alice", events.Decline, c2, nil)
		b.completed(run)
	})
}

// TestCase_TGT_3 resumes two suspended calls of one tool, the second first.
func TestCase_TGT_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{pauser("find", agent.ToolOptions{})},
			asks(callTo("find", `{"n":1}`), callTo("find", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.send("alice", events.ResumeD, b.call(run, 1, 2), withData(`"two"`))
		b.result(b.call(run, 1, 2))
		time.Sleep(moment) // fake
		equal(t, "requests before the first is resumed", len(b.model.Requests()), 1)
		b.send("alice", events.ResumeD, b.call(run, 1, 1), withData(`"one"`))
		b.completed(run)
		equal(t, "results", b.told(), []string{`find json "one"`, `find json "two"`})
		equal(t, "requests", len(b.model.Requests()), 2)
	})
}

// TestCase_TGT_4 lists four held calls of one turn, each decided alone.
func TestCase_TGT_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`), callTo("pay", `{"n":3}`), callTo("pay", `{"n":4}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		var want []string
		for i := 1; i <= 4; i++ {
			b.AwaitAsk(b.call(run, 1, i), moment)
			want = append(want, fmt.Sprintf(`%s pay {"n":%d}`, b.call(run, 1, i), i))
		}
		for _, i := range []int{3, 1, 4, 2} {
			equal(t, "the list", b.open(), want)
			equal(t, "requests", len(b.model.Requests()), 1)
			call := b.call(run, 1, i)
			b.send("alice", events.Approve, call, nil)
			b.result(call)
			time.Sleep(time.Second) // fake: the entry follows
			want = slices.DeleteFunc(want, func(s string) bool { return strings.HasPrefix(s, call.String()+" ") })
		}
		b.completed(run)
		equal(t, "the list", len(b.open()), 0)
	})
}

// TestCase_TGT_5 sends the data of one suspended call to another: it is refused before it counts.
func TestCase_TGT_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := pauser("a", agent.ToolOptions{ResumeSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)})
		c := pauser("b", agent.ToolOptions{ResumeSchema: json.RawMessage(`{"type":"object","properties":{"age":{"type":"integer"}},"required":["age"]}`)})
		b := newBench(t, Options{}, []agent.Tool{a, c}, asks(callTo("a", `{}`), callTo("b", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		d := b.refusal(b.call(run, 1, 2), b.send("alice", events.ResumeD, b.call(run, 1, 2), withData(`{"city":"Rome"}`)))
		if d.Code != events.CodeInvalidData || len(d.Issues) == 0 || d.Issues[0].Field != "age" {
			t.Errorf("the wrong data are refused with %+v", d.Error)
		}
		equal(t, "the call", b.last(b.call(run, 1, 2)), events.KindAsk)
		b.send("alice", events.ResumeD, b.call(run, 1, 2), withData(`{"age":7}`))
		b.send("alice", events.ResumeD, b.call(run, 1, 1), withData(`{"city":"Rome"}`))
		b.completed(run)
		equal(t, "results", b.told(), []string{`a json {"city":"Rome"}`, `b json {"age":7}`})
	})
}

// TestCase_TGT_8 resumes with every value that a schema allows: the handler sees it, and sees that it is resumed.
func TestCase_TGT_8(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		schema  string
		good    []string
		refused []string
	}{
		{`{"type":"boolean"}`, []string{`false`}, []string{`null`, `0`}},
		{`{"type":"number"}`, []string{`0`}, []string{`null`, `""`}},
		{`{"type":"string"}`, []string{`""`}, []string{`null`, `{}`}},
		{`{"type":["string","null"]}`, []string{`null`}, []string{`1`}},
		{`{"type":"object"}`, []string{`{}`}, []string{`null`, `[]`}},
		{``, []string{`null`}, nil},
	} {
		t.Run(test.schema, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				b := newBench(t, Options{}, []agent.Tool{pauser("find", agent.ToolOptions{ResumeSchema: json.RawMessage(test.schema)})},
					asks(callTo("find", `{}`)), agenttest.Say("done"))
				b.StartAll()
				run := b.Request("go")
				call := b.call(run, 1, 1)
				for _, bad := range test.refused {
					if d := b.refusal(call, b.send("alice", events.ResumeD, call, withData(bad))); d.Code != events.CodeInvalidData {
						t.Errorf("%s is refused with %+v", bad, d.Error)
					}
				}
				b.send("alice", events.ResumeD, call, withData(test.good[0]))
				b.completed(run)
				equal(t, "results", b.told(), []string{"find json " + test.good[0]})
			})
		})
	}
}

// TestCase_DUP_1 fires 20 equal approvals at two gates: one counts, 19 are told which.
func TestCase_DUP_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{}`)), agenttest.Say("done"))
		b.StartAll()
		b.Start(approval.Name)
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.AwaitAsk(call, moment)
		var (
			wg  sync.WaitGroup
			mu  sync.Mutex
			ids []string
		)
		for range 20 {
			wg.Go(func() {
				id := b.send("alice", events.Approve, call, nil)
				mu.Lock()
				defer mu.Unlock()
				ids = append(ids, id)
			})
		}
		wg.Wait()
		b.completed(run)
		answer, err := events.Data[events.CallAnswered](b.Await(b.Conn().Namespace().Call(call, events.KindAnswer), moment))
		b.must(err)
		for _, id := range ids {
			if id == answer.EventID {
				continue
			}
			if d := b.refusal(call, id); d.Code != events.CodeAlreadyDecided || d.Answer == nil || d.Answer.Decision != events.Approve {
				t.Errorf("an approval that came second is told %+v", d.Error)
			}
		}
		equal(t, "executions", b.Effects.Of(call.String()), 1)
		equal(t, "requests", len(b.model.Requests()), 2)
	})
}

// TestCase_DUP_3 approves and declines the same call at once, a hundred times: one counts, the other is told who was
// first.
func TestCase_DUP_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w := New(t, Options{})
		w.StartAll()
		w.Start(approval.Name)
		b := &bench{World: w}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				run := b.Request("Refund order 42")
				call := refundOf(run)
				sent := map[events.Decision]string{}
				for _, d := range []events.Decision{events.Approve, events.Decline} {
					sent[d] = b.send(string(d)+"r", d, call, nil)
				}
				answer, err := events.Data[events.CallAnswered](b.Await(b.Conn().Namespace().Call(call, events.KindAnswer), moment))
				b.must(err)
				loser := map[events.Decision]events.Decision{events.Approve: events.Decline, events.Decline: events.Approve}[answer.Decision]
				d := b.refusal(call, sent[loser])
				if d.Code != events.CodeAlreadyDecided || d.Answer == nil || d.Answer.Decision != answer.Decision || d.Answer.Principal != answer.Principal {
					t.Errorf("the loser is told %+v", d.Error)
				}
				b.AwaitEnd(run, moment)
				want := map[events.Decision]int{events.Approve: 1}[answer.Decision]
				equal(t, "executions after "+string(answer.Decision), b.Effects.Of(call.String()), want)
			})
		}
		wg.Wait()
		b.pause(2 * time.Second)
		if r := b.Check(true); r["answer"] != 100 {
			t.Errorf("the log holds %d answers, want 100", r["answer"])
		}
	})
}

// TestCase_DUP_4 restarts everything between the result of a call with effects and the approval of its sibling.
func TestCase_DUP_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("mail", anything, agent.ToolOptions{}), echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("mail", `{}`), callTo("pay", `{}`)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 2), moment)
		b.result(b.call(run, 1, 1))
		for _, c := range copies {
			c.Kill()
		}
		b.Restart()
		b.StartAll()
		b.send("alice", events.Approve, b.call(run, 1, 2), nil)
		b.completed(run)
		for i := 1; i <= 2; i++ {
			equal(t, "executions", b.Effects.Of(b.call(run, 1, i).String()), 1)
		}
		equal(t, "results", b.told(), []string{`mail json {}`, `pay json {}`})
	})
}

// TestCase_BIND_1 shows people the arguments with their defaults, and runs nothing else than what they saw.
func TestCase_BIND_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		schema := `{"type":"object","properties":{"to":{"type":"string"},"currency":{"type":"string","default":"EUR"}},"required":["to"]}`
		b := newBench(t, Options{}, []agent.Tool{echo("pay", schema, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"to":"ACME"}`), callTo("pay", `{"to":"ACME"}`)), agenttest.Say("done"))
		gate := b.StartAll()[1]
		run := b.Request("go")
		want := `{"currency":"EUR","to":"ACME"}`
		equal(t, "the ask", string(b.AwaitAsk(b.call(run, 1, 1), moment).Args), want)
		b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		b.result(b.call(run, 1, 1))
		gate.Kill()
		b.changed(b.call(run, 1, 2))
		if d := b.result(b.call(run, 1, 2)); d.Outcome != events.OutcomeBlocked || d.Reason != "fingerprint_mismatch" || d.Started {
			t.Errorf("changed after the approval: %+v", d)
		}
		b.Start(approval.Name)
		b.AwaitEnd(run, moment)
		equal(t, "executions", b.given("pay"), []string{want})
	})
}

// changed answers a held call as a gate would, and releases it with other bytes than those that were asked about.
func (b *bench) changed(call events.CallID) {
	b.T.Helper()
	fact := b.Await(b.Conn().Namespace().Call(call, events.KindAsk), moment)
	ask, err := events.Data[events.CallHeld](fact)
	b.must(err)
	o := &events.Origin{Namespace: b.Conn().Namespace(), Service: approval.Name, Key: &b.Key}
	add := func(p events.Place, data any, after events.Event) events.Event {
		e, err := o.Fact(p, data, after)
		b.must(err)
		a, err := b.Conn().Append(b.T.Context(), events.After(after), e)
		b.must(err)
		return a.Last
	}
	answer := add(b.Conn().Namespace().Call(call, events.KindAnswer), events.CallAnswered{
		ToolCallID: ask.ToolCallID, RunID: ask.RunID,
		Decision: events.Approve, Fingerprint: ask.Fingerprint, Principal: "alice", At: time.Now(),
	}, fact)
	add(b.Conn().Namespace().Go(call, events.DefaultPool, ask.ToolID), events.CallReleased{
		Namespace: b.Conn().Namespace(), RunID: ask.RunID,
		ToolCallID: ask.ToolCallID, Pool: events.DefaultPool, ToolID: ask.ToolID, ToolVersion: ask.ToolVersion,
		InputSchemaDigest: ask.InputSchemaDigest, Effect: ask.Effect, Args: `{"currency":"USD","to":"ACME"}`, Fingerprint: ask.Fingerprint,
		Follows: answer.Seq, AllowedBy: events.AllowedBy{Answer: answer.Seq}, ToolName: ask.ToolName, AgentID: ask.AgentID,
		StartBy: time.Now().Add(moment),
	}, answer)
}

// TestCase_BIND_3 keeps the digits of large numbers, from the model to the handler and back.
func TestCase_BIND_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		args := `{"big":9007199254740993,"id":1234567890123456789}`
		tool := agent.NewTool("pay", "Pay", func(_ context.Context, call *agent.Call, in json.RawMessage) (any, error) {
			if !call.Resumed() {
				return nil, call.Suspend(in)
			}
			return in, nil
		}, &agent.ToolOptions{RequireApproval: agent.Always(), InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`)})
		b := newBench(t, Options{}, []agent.Tool{tool}, asks(callTo("pay", args)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		equal(t, "the ask", string(b.AwaitAsk(call, moment).Args), args)
		equal(t, "the list", b.open(), []string{call.String() + " pay " + args})
		b.send("alice", events.Approve, call, nil)
		for b.AwaitAsk(call, moment).Round == 0 {
			b.pause(time.Second)
		}
		for _, c := range copies {
			c.Kill()
		}
		b.Restart()
		b.StartAll()
		b.send("alice", events.ResumeD, call, withData(`1234567890123456789`))
		b.completed(run)
		equal(t, "what the handler got", b.given("pay"), []string{args, args})
		equal(t, "results", b.told(), []string{"pay json " + args})
		equal(t, "the history", b.said(call), args)
		shown := chunk[events.ToolCallPayload](b, run, events.ChunkToolCall, call)
		equal(t, "the chunk", string(shown.Args), args)
	})
}

// said is the text of a call's arguments in the last request to the model.
func (b *bench) said(call events.CallID) string {
	b.T.Helper()
	requests := b.model.Requests()
	for _, m := range requests[len(requests)-1].Messages {
		for _, p := range m.Parts {
			if p.Type == events.PartToolCall && p.ToolCallID == call.String() {
				return p.Args
			}
		}
	}
	b.T.Fatalf("the model is not shown call %s", call)
	return ""
}

// TestCase_BIND_5 uses the canonical identity of a tool whose key no provider takes, everywhere but at the model.
func TestCase_BIND_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		key := "my-server/db.query"
		tool := echo("db.query", anything, agent.ToolOptions{RequireApproval: agent.Always()})
		b := newBench(t, Options{Agent: events.AgentDef{ID: "support", Model: "scripted/x", Tools: map[string]string{key: "db.query"}}},
			[]agent.Tool{tool}, asks(callTo("my-server_db_query", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		if ask := b.AwaitAsk(call, moment); ask.ToolID != "db.query" || ask.ToolName != key {
			t.Errorf("the ask names tool %q, key %q", ask.ToolID, ask.ToolName)
		}
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		rel, err := events.Data[events.CallReleased](b.Await(b.Conn().Namespace().Go(call, events.DefaultPool, "db.query"), moment))
		b.must(err)
		equal(t, "the release", rel.ToolID+" "+rel.ToolName, "db.query "+key)
		equal(t, "executions", b.given(key), []string{`{}`})
		equal(t, "results", b.told(), []string{"my-server_db_query json {}"})
	})
}

// TestCase_PAIR_1 kills the executor while a tool runs. The call gets its one result, of its true outcome, before the
// model is asked again.
func TestCase_PAIR_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		running := make(chan struct{}, 1)
		tool := agent.NewTool("pay", "Pay", func(ctx context.Context, _ *agent.Call, _ Order) (any, error) {
			running <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}, &agent.ToolOptions{OutputSchema: json.RawMessage(`{}`)})
		b := newBench(t, Options{}, []agent.Tool{tool}, asks(callTo("pay", `{"orderId":"42"}`)), agenttest.Say("sorry"))
		executor := b.StartAll()[2]
		run := b.Request("go")
		call := b.call(run, 1, 1)
		<-running
		executor.Kill()
		b.Start(toolexecutor.Name)
		if ask := b.AwaitAsk(call, 10*moment); ask.Kind != events.AskInDoubt {
			t.Fatalf("the call is held as %s", ask.Kind)
		}
		b.send("alice", events.Decline, call, because("it did not happen"))
		b.completed(run)
		equal(t, "results", b.told(), []string{`pay text "it did not happen"`})
		if d := b.result(call); d.Outcome != events.OutcomeDeclined || !d.Started {
			t.Errorf("result = %+v, want declined, started", d)
		}
	})
}

// TestCase_PAIR_4 completes six calls in reverse order, two of them after people decided: the model gets one group, in
// call order.
func TestCase_PAIR_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		tool := agent.NewTool("wait", "Wait", func(_ context.Context, _ *agent.Call, in struct {
			N int `json:"n"`
		},
		) (any, error) {
			time.Sleep(time.Duration(6-in.N) * time.Second) // fake
			return in.N, nil
		}, &agent.ToolOptions{RequireApproval: agent.When("args.n == 2 || args.n == 5"), OutputSchema: json.RawMessage(`{}`)})
		var calls []agenttest.ToolCall
		for n := range 6 {
			calls = append(calls, callTo("wait", fmt.Sprintf(`{"n":%d}`, n)))
		}
		b := newBench(t, Options{}, []agent.Tool{tool}, asks(calls...), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 3), moment)
		b.pause(10 * time.Second)
		b.send("alice", events.Decline, b.call(run, 1, 6), because("no"))
		b.send("alice", events.Approve, b.call(run, 1, 3), nil)
		b.completed(run)
		equal(t, "results", b.told(), []string{"wait json 0", "wait json 1", "wait json 2", "wait json 3", "wait json 4", `wait text "no"`})
	})
}

// TestCase_PAIR_5 stores the result of a call when it is there, not when its held sibling is decided.
func TestCase_PAIR_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("read", anything, agent.ToolOptions{}), echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{}`), callTo("read", `{}`)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 1), moment)
		if d := b.Await(b.Conn().Namespace().Call(b.call(run, 1, 2), events.KindResult), moment); time.Since(d.Stored) > moment {
			t.Errorf("the result was stored at %s", d.Stored)
		}
		time.Sleep(moment) // fake
		copies[1].Kill()
		b.Start(approval.Name)
		b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		b.completed(run)
		equal(t, "results", b.told(), []string{"pay json {}", "read json {}"})
	})
}

// TestCase_PAIR_8 has results delivered again and again, and approves twice: the transcript holds one result of the call.
func TestCase_PAIR_8(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var losing atomic.Bool
		b := newBench(t, Options{Drop: losing.Load}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 2), moment)
		losing.Store(true)
		first := b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		b.result(b.call(run, 1, 1))
		again := b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		equal(t, "the second approval", b.refusal(b.call(run, 1, 1), again).Code, events.CodeAlreadyDecided)
		time.Sleep(2 * time.Minute) // fake: the result and the approvals come again
		losing.Store(false)
		b.send("alice", events.Decline, b.call(run, 1, 2), nil)
		b.completed(run)
		equal(t, "requests", len(b.model.Requests()), 2)
		equal(t, "executions", b.given("pay"), []string{`{"n":1}`})
		if _, err := b.Conn().Fact(t.Context(), b.Conn().Namespace().Beside(b.call(run, 1, 1), events.KindRefused, first)); !errors.Is(err, jetstream.ErrNotFound) {
			t.Errorf("the approval that counted is refused too: %v", err)
		}
	})
}

// TestCase_PAIR_9 shows the model, after a suspension and a restart, the very bytes that were frozen.
func TestCase_PAIR_9(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{pauser("find", agent.ToolOptions{})}, asks(callTo("find", `{ "z": 1, "a": "<b>" }`)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		frozen := string(b.AwaitAsk(call, moment).Args)
		for _, c := range copies {
			c.Kill()
		}
		b.Restart()
		b.StartAll()
		b.send("alice", events.ResumeD, call, withData(`true`))
		b.completed(run)
		equal(t, "the frozen arguments", frozen, `{"a":"<b>","z":1}`)
		equal(t, "the history", b.said(call), frozen)
		equal(t, "what the handler got", b.given("find"), []string{frozen, frozen})
	})
}

// TestCase_LIFE_1 lets asks expire that nobody decides: the run goes on, or ends, as the tool says.
func TestCase_LIFE_1(t *testing.T) {
	for onExpiry, want := range map[string]events.RunOutcome{"decline": events.RunCompleted, "fail": events.RunFailed} {
		t.Run(onExpiry, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				tool := echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always(), Expires: 2 * time.Second, OnExpiry: onExpiry})
				steps := []agenttest.Step{asks(callTo("pay", `{}`))}
				if want == events.RunCompleted {
					steps = append(steps, agenttest.Say("too late"))
				}
				b := newBench(t, Options{}, []agent.Tool{tool}, steps...)
				b.StartAll()
				run := b.Request("go")
				call := b.call(run, 1, 1)
				b.AwaitAsk(call, moment)
				end := b.AwaitEnd(run, moment)
				equal(t, "the end", end.Outcome, want)
				if want == events.RunFailed && end.Error.Code != events.CodeAskExpired {
					t.Errorf("the run failed with %+v", end.Error)
				}
				equal(t, "the call", b.result(call).Outcome, events.OutcomeExpired)
				b.pause(2 * time.Second)
				equal(t, "the list", len(b.open()), 0)
				equal(t, "executions", len(b.given("pay")), 0)
				equal(t, "answers", b.Check(true)["answer"], 1)
			})
		})
	}
}

// TestCase_LIFE_4 holds, decides and ends a thousand runs: nothing of them is left in the bucket, and a restart starts
// nothing.
func TestCase_LIFE_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w := New(t, Options{})
		copies := w.StartAll()
		const runs, atOnce = 1000, 50
		slots := make(chan struct{}, atOnce)
		var wg sync.WaitGroup
		for range runs {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				run := w.Request("Refund order 42")
				ask := w.AwaitAsk(refundOf(run), 10*moment)
				w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: ask.ToolCallID, Fingerprint: ask.Fingerprint})
				w.AwaitEnd(run, 10*moment)
			})
		}
		wg.Wait()
		w.pause(5 * time.Second)
		b := &bench{World: w}
		equal(t, "the list", len(b.open()), 0)
		before := w.Check(true)
		for _, c := range copies {
			c.Kill()
		}
		w.Restart()
		w.StartAll()
		w.pause(2 * time.Minute)
		equal(t, "the log after a restart", w.Check(true), before)
	})
}

// TestCase_LIFE_6 cancels a run between the release of one call and that of the next, and while a tool that ignores its
// context runs: the second never starts, and what the first brings later is evidence.
func TestCase_LIFE_6(t *testing.T) {
	inCase(t, func(t *testing.T) {
		leave, running := make(chan struct{}), make(chan struct{}, 2)
		tool := agent.NewTool("job", "Do", func(context.Context, *agent.Call, Order) (any, error) {
			running <- struct{}{}
			<-leave
			return "done", nil
		}, &agent.ToolOptions{OutputSchema: json.RawMessage(`{}`)})
		var once sync.Once
		var b *bench
		o := Options{Point: func(name string, c *Copy) {
			if name == "go.after" && c.Service == approval.Name {
				once.Do(func() { time.Sleep(10 * time.Second) }) // fake: between the first release and the second
			}
		}}
		b = newBench(t, o, []agent.Tool{tool}, asks(callTo("job", `{"orderId":"1"}`), callTo("job", `{"orderId":"2"}`)))
		b.StartAll()
		b.Start(approval.Name)
		run := b.Request("go")
		<-running
		b.Cancel("bob", run)
		if end := b.AwaitEnd(run, moment); end.Outcome != events.RunCancelled {
			t.Errorf("run ended as %s", end.Outcome)
		}
		b.pause(20 * time.Second)
		close(leave)
		b.pause(time.Second)
		if d := b.result(b.call(run, 1, 2)); d.Outcome != events.OutcomeCancelled || d.Started {
			t.Errorf("the second call: %+v, want cancelled, not started", d)
		}
		if d := b.result(b.call(run, 1, 1)); d.Outcome != events.OutcomeCancelled || !d.Started {
			t.Errorf("the first call: %+v, want cancelled, started", d)
		}
		equal(t, "late outcomes", b.Check(true)["late"], 1)
		equal(t, "requests", len(b.model.Requests()), 1)
	})
}

// TestCase_ARGS_1 gives a tool nothing, in every way that models have for it.
func TestCase_ARGS_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		needs := `{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`
		var calls []agenttest.ToolCall
		for _, tool := range []string{"free", "needs"} {
			for _, args := range []string{"", "null", "   ", "{}"} {
				calls = append(calls, callTo(tool, args))
			}
		}
		b := newBench(t, Options{}, []agent.Tool{echo("free", anything, agent.ToolOptions{}), echo("needs", needs, agent.ToolOptions{})},
			asks(calls...), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.completed(run)
		equal(t, "executions", b.given("free"), []string{"{}", "{}", "{}", "{}"})
		equal(t, "executions of the other", len(b.given("needs")), 0)
		for i := 5; i <= 8; i++ {
			equal(t, "the outcome", b.result(b.call(run, 1, i)).Outcome, events.OutcomeInvalid)
		}
	})
}

// TestCase_ARGS_2 cuts a turn inside the arguments of a call, in the ways that providers have for it.
func TestCase_ARGS_2(t *testing.T) {
	t.Parallel()
	needs := `{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`
	for name, test := range map[string]struct {
		step agenttest.Step
		says string
	}{
		"length": {agenttest.Step{FinishReason: agent.FinishLength, Calls: []agenttest.ToolCall{{Name: "pay", Args: `{"id":`, Cut: true}}}, "cut off"},
		"valid so far": {agenttest.Step{
			FinishReason: agent.FinishLength,
			Calls:        []agenttest.ToolCall{{Name: "pay", Args: `{"id":"1"}`, Cut: true}},
		}, "cut off"},
		"tool calls, unterminated": {asks(callTo("pay", `{"id":"`)), "position"},
		"required is missing":      {agenttest.Step{FinishReason: agent.FinishLength, Calls: []agenttest.ToolCall{callTo("pay", `{}`)}}, "id: is required"},
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				b := newBench(t, Options{}, []agent.Tool{echo("pay", needs, agent.ToolOptions{RequireApproval: agent.Always()})}, test.step, agenttest.Say("done"))
				b.StartAll()
				run := b.Request("go")
				b.completed(run)
				d := b.result(b.call(run, 1, 1))
				if d.Outcome != events.OutcomeInvalid || d.Started || !strings.Contains(string(d.Result), test.says) {
					t.Errorf("result = %s %s, want one that says %q", d.Outcome, d.Result, test.says)
				}
				equal(t, "asks", b.Check(true)["ask"], 0)
			})
		})
	}
}

// TestCase_ARGS_3 writes arguments that are no JSON object, beside a good call: each gets one error, and the history
// holds JSON.
func TestCase_ARGS_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		bad := []string{
			`{"a":1}{"b":2}`, `{"a":1,}`, `{'a':1}`, `[1]`, `{"a":NaN}`, `{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
			"{\"a\":\"\xff\"}", `{"a":1,"a":2}`,
		}
		var calls []agenttest.ToolCall
		for _, args := range append(bad, `{"good":1}`) {
			calls = append(calls, callTo("read", args))
		}
		b := newBench(t, Options{}, []agent.Tool{echo("read", anything, agent.ToolOptions{})}, asks(calls...), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.completed(run)
		for i, args := range bad {
			d := b.result(b.call(run, 1, i+1))
			if d.Outcome != events.OutcomeInvalid || !strings.Contains(string(d.Result), "position") && !strings.Contains(string(d.Result), "must be an object") {
				t.Errorf("%.40q: %s %s, want invalid, with the position", args, d.Outcome, d.Result)
			}
		}
		equal(t, "executions", b.given("read"), []string{`{"good":1}`})
	})
}

// TestCase_ARGS_5 writes null where a field is optional, where it is nullable and where it has a default: ask and
// handler see the same.
func TestCase_ARGS_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		schema := `{"type":"object","properties":{"plain":{"type":"string"},"nullable":{"type":["string","null"]},"limit":{"type":"integer","default":10}}}`
		want := map[string]string{
			`{"plain":null}`: `{"limit":10}`, `{}`: `{"limit":10}`, `{"plain":"null"}`: `{"limit":10,"plain":"null"}`,
			`{"nullable":null}`: `{"limit":10,"nullable":null}`, `{"limit":null}`: `{"limit":10}`,
		}
		var calls []agenttest.ToolCall
		args := slices.Sorted(func(yield func(string) bool) {
			for a := range want {
				if !yield(a) {
					return
				}
			}
		})
		for _, a := range args {
			calls = append(calls, callTo("find", a))
		}
		b := newBench(t, Options{}, []agent.Tool{echo("find", schema, agent.ToolOptions{RequireApproval: agent.Always()})}, asks(calls...), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		for i, a := range args {
			equal(t, "the ask about "+a, string(b.AwaitAsk(b.call(run, 1, i+1), moment).Args), want[a])
			b.send("alice", events.Approve, b.call(run, 1, i+1), nil)
			b.result(b.call(run, 1, i+1))
			given := b.given("find")
			equal(t, "what the handler got for "+a, given[len(given)-1], want[a])
		}
		b.completed(run)
	})
}

var _ = planner.Name

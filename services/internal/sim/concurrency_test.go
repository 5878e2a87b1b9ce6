package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
)

// busy counts how many calls execute at once.
type busy struct {
	mu        sync.Mutex
	now, most int
	order     []string
}

// tool takes two seconds.
func (b *busy) tool(id string, o agent.ToolOptions) agent.Tool {
	o.InputSchema, o.OutputSchema = json.RawMessage(anything), json.RawMessage(`{}`)
	return agent.NewTool(id, "The tool "+id, func(_ context.Context, call *agent.Call, in json.RawMessage) (any, error) {
		b.mu.Lock()
		b.now++
		b.most = max(b.most, b.now)
		b.order = append(b.order, call.ToolCallID()[len(call.ToolCallID())-1:])
		b.mu.Unlock()
		<-time.After(2 * time.Second)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.now--
		return in, nil
	}, &o)
}

func (b *busy) peak() (most int, order []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most, slices.Clone(b.order)
}

func (b *bench) bounded(n events.Concurrency) string {
	b.RequestAs("bob", events.RunRequested{
		AgentID: b.opts.Agent.ID, RunID: "r1", ToolCallConcurrency: n,
		Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
	})
	return "r1"
}

// TestB3_8_SoManyCallsAtOnce executes as many calls of a run at once as it asks for, though two gates release them and one of
// them is killed; all of them run, each once. Without a bound they all run side by side.
func TestB3_8_SoManyCallsAtOnce(t *testing.T) {
	t.Parallel()
	for n, want := range []int{5, 1, 2} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				var busy busy
				calls := make([]agenttest.ToolCall, 5)
				for i := range calls {
					calls[i] = callTo("work", fmt.Sprintf(`{"n":%d}`, i))
				}
				b := newBench(t, Options{}, []agent.Tool{busy.tool("work", agent.ToolOptions{})}, asks(calls...), agenttest.Say("done"))
				gate := b.StartAll()[1]
				b.Start(approval.Name)
				run := b.bounded(events.Concurrency(n))
				b.result(b.call(run, 1, 1))
				gate.Kill()
				b.completed(run)
				most, order := busy.peak()
				equal(t, "calls at once", most, want)
				slices.Sort(order)
				equal(t, "calls", order, []string{"1", "2", "3", "4", "5"})
			})
		})
	}
}

// TestB3_8_HeldCallsDoNotCount: a call that waits for people is in nobody's way. Once approved it waits for its turn behind the
// calls that have not begun, its ask is gone at once, and a second decision is told who was first.
func TestB3_8_HeldCallsDoNotCount(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var busy busy
		b := newBench(t, Options{}, []agent.Tool{
			busy.tool("pay", agent.ToolOptions{RequireApproval: agent.Always()}), busy.tool("work", agent.ToolOptions{}),
		}, asks(callTo("pay", `{}`), callTo("work", `{"n":1}`), callTo("work", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		b.Start(approval.Name)
		run := b.bounded(1)
		held := b.call(run, 1, 1)
		b.send("alice", events.Approve, held, nil)
		b.Await(b.Conn().Namespace().Call(held, events.KindAnswer), moment)
		b.pause(500 * time.Millisecond)
		equal(t, "the call that was approved", b.last(held), events.KindAnswer)
		equal(t, "open asks", len(b.open()), 0)
		late := b.Posted(b.Conn().Namespace().InDecide("carol", held), run, "carol", events.DecisionRequested{
			Decision: events.Decline, ToolCallID: held.String(),
		}).Event.ID
		equal(t, "the second decision", b.refusal(held, late).Code, events.CodeAlreadyDecided)
		b.completed(run)
		most, order := busy.peak()
		equal(t, "calls at once", most, 1)
		equal(t, "the order of calls", order, []string{"2", "3", "1"})
	})
}

// TestB3_8_CancelBeforeTheTurn ends calls that have not come to their turn: one by itself, the others with their run.
func TestB3_8_CancelBeforeTheTurn(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var busy busy
		b := newBench(t, Options{}, []agent.Tool{busy.tool("work", agent.ToolOptions{})},
			asks(callTo("work", `{"n":1}`), callTo("work", `{"n":2}`), callTo("work", `{"n":3}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.bounded(1)
		b.Await(b.Conn().Namespace().Call(b.call(run, 1, 1), events.KindClaim), moment)
		cancel := events.CancelRequested{RunID: run, ToolCallID: b.call(run, 1, 2).String()}
		b.Posted(b.Conn().Namespace().InCancel("bob", run), run, "bob", cancel)
		if d := b.result(b.call(run, 1, 2)); d.Outcome != events.OutcomeCancelled || d.Started {
			t.Errorf("the call ended as %+v", d)
		}
		b.Await(b.Conn().Namespace().Call(b.call(run, 1, 3), events.KindClaim), moment)
		b.must(b.TryCancel("bob", run))
		equal(t, "the end", b.AwaitEnd(run, moment).Outcome, events.RunCancelled)
		b.pause(5 * time.Second)
		b.Check(true)
		_, order := busy.peak()
		equal(t, "the order of calls", order, []string{"1", "3"})
	})
}

// TestB3_8_FormsOfTheBound: a number, or a limit whose strategy changes nothing. eagerToolExecution is accepted and ignored.
func TestB3_8_FormsOfTheBound(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]events.Concurrency{
		`{"toolCallConcurrency":3}`:                                     3,
		`{"toolCallConcurrency":{"limit":2,"strategy":"called"}}`:       2,
		`{"toolCallConcurrency":{}}`:                                    0,
		`{"toolCallConcurrency":null}`:                                  0,
		`{"eagerToolExecution":true}`:                                   0,
		`{"toolCallConcurrency":{"limit":1},"eagerToolExecution":true}`: 1,
	} {
		var r events.RunRequested
		if err := json.Unmarshal([]byte(raw), &r); err != nil || r.ToolCallConcurrency != want {
			t.Errorf("%s is %d, %v; want %d", raw, r.ToolCallConcurrency, err, want)
		}
	}
	for _, raw := range []string{`{"toolCallConcurrency":"2"}`, `{"toolCallConcurrency":1.5}`, `{"toolCallConcurrency":[1]}`} {
		if json.Unmarshal([]byte(raw), &events.RunRequested{}) == nil {
			t.Errorf("%s is taken", raw)
		}
	}
}

// TestB3_8_BackgroundCallsCount: a call of the background is one of the run's like any other. What a later step calls waits for
// it; one that was approved meanwhile comes after calls that a step has asked for before.
func TestB3_8_BackgroundCallsCount(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var busy busy
		b := newBench(t, Options{}, []agent.Tool{
			busy.tool("back", agent.ToolOptions{Background: inBackground}), busy.tool("work", agent.ToolOptions{}),
			busy.tool("pay", agent.ToolOptions{Background: inBackground, RequireApproval: agent.Always()}),
		}, asks(callTo("back", `{}`), callTo("pay", `{}`)), asks(callTo("work", `{"n":3}`), callTo("work", `{"n":4}`), callTo("work", `{"n":5}`)),
			agenttest.Say("said"), agenttest.Say("done"), agenttest.Say("done"))
		b.StartAll()
		b.Start(approval.Name)
		run := b.bounded(1)
		b.send("alice", events.Approve, b.call(run, 1, 2), nil)
		b.completed(run)
		b.result(b.call(run, 1, 2))
		b.pause(5 * time.Second)
		b.Check(true)
		most, order := busy.peak()
		equal(t, "calls at once", most, 1)
		slices.Sort(order)
		equal(t, "calls", order, []string{"1", "1", "2", "2", "3"})
	})
}

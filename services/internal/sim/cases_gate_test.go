package sim

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

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

package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
)

// calls asks for one call of a tool in a thread of bob's.
func (w *World) calls(run, thread, tool string) events.CallID {
	w.T.Helper()
	w.RequestAs("bob", events.RunRequested{ToolID: tool, Args: RawJSON(`{"orderId":"42"}`), RunID: run, ThreadID: thread, ResourceID: "bob"})
	return events.CallID{Run: run, Step: 1, Index: 1}
}

// TestB1_17_RulesSeeACallWithoutAnAgent: rules that name agents say nothing of it, =tool and patterns that match everything
// do, and an expression sees who asks.
func TestB1_17_RulesSeeACallWithoutAnAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rule := func(set string, r events.Rule) events.RuleSet {
			return events.RuleSet{Name: set, Rules: []events.Rule{r}}
		}
		w := New(t, Options{
			Model: agenttest.NewModel(t),
			Rules: map[string]events.RuleSet{
				"a": rule("a", events.Rule{Name: "of-support", Tools: []string{"*"}, Agents: []string{"support"}, Action: events.RuleBlock}),
				"b": rule("b", events.Rule{Name: "direct", Tools: []string{"lookup_order"}, Agents: []string{events.TokenTool}, Action: events.RuleAsk}),
				"c": rule("c", events.Rule{
					Name: "bob", Tools: []string{"issue_refund"}, Agents: []string{"*"}, Action: events.RuleBlock,
					When: `agent.id == "=tool" && run.requester == "bob" && tool.name == "issue_refund"`,
				}),
			},
		})
		w.StartAll()
		ask := w.AwaitAsk(w.calls("r1", "", "lookup_order"), patience)
		if ask.AgentID != events.TokenTool || ask.Reason.Rule != "direct" || ask.ToolName != "lookup_order" || ask.Path[0].AgentID != events.TokenTool {
			t.Errorf("ask = %+v", ask)
		}
		if end := w.endOf("r2", w.calls("r2", "", "issue_refund")); end.Outcome != events.OutcomeBlocked || end.BlockedBy == nil || end.BlockedBy.Rule != "bob" {
			t.Errorf("result = %+v", end)
		}
		w.Cancel("bob", "r1")
		if end := w.AwaitEnd("r1", patience); end.Outcome != events.RunCancelled || end.AgentID != events.TokenTool {
			t.Errorf("end = %+v", end)
		}
		w.pause(time.Minute)
		w.Check(true)
	})
}

// endOf waits for the end of a run and is the result of its call.
func (w *World) endOf(run string, call events.CallID) events.CallFinished {
	w.T.Helper()
	w.AwaitEnd(run, patience)
	d, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(call, events.KindResult), patience))
	w.must(err)
	return d
}

// TestB1_17_GrantsOfDirectCalls: an approval may stand for later direct calls of the thread, and for those alone; one may be
// given before there is any.
func TestB1_17_GrantsOfDirectCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := New(t, Options{})
		w.StartAll()
		first := w.calls("r1", "t1", "issue_refund")
		ask := w.AwaitAsk(first, patience)
		w.Decide("alice", events.DecisionRequested{
			Decision: events.Approve, ToolCallID: first.String(), Fingerprint: ask.Fingerprint,
			Grant: &events.GrantTerms{Scope: events.ScopeThread, Uses: 5, For: events.Duration(time.Hour)},
		})
		if end := w.endOf("r1", first); end.Outcome != events.OutcomeOK {
			t.Errorf("result = %+v", end)
		}
		if end := w.endOf("r2", w.calls("r2", "t1", "issue_refund")); end.Outcome != events.OutcomeOK {
			t.Errorf("result = %+v", end)
		}
		ofAgent := w.inThread("r3", "t1") // a call of an agent is another matter
		w.AwaitAsk(ofAgent, patience)
		w.Decide("alice", events.DecisionRequested{Decision: events.Decline, ToolCallID: ofAgent.String()})
		w.must(w.TryGrant("alice", "g2", events.GrantRequested{
			ID: "g2", AgentID: events.TokenTool, ToolID: "issue_refund", ThreadID: "t2", ResourceID: "bob",
			Terms: events.GrantTerms{Scope: events.ScopeThread, Uses: 1, For: events.Duration(time.Hour)},
		}))
		w.pause(time.Second)
		if end := w.endOf("r4", w.calls("r4", "t2", "issue_refund")); end.Outcome != events.OutcomeOK {
			t.Errorf("result = %+v", end)
		}
		w.AwaitEnd("r3", patience)
		w.pause(time.Minute)
		if r := w.Check(true); r["go:grant"] != 2 || r["start:tool"] != 3 {
			t.Errorf("%d releases by grants, want two; %d runs of tools, want three", r["go:grant"], r["start:tool"])
		}
	})
}

// TestB1_17_CarriedAndRestarted: a held direct call is carried like any, with what it is a run of, and goes on by that when
// everything was restarted.
func TestB1_17_CarriedAndRestarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const retention = time.Hour
		w := New(t, Options{
			Model: agenttest.NewModel(t),
			Plan:  func(c *planner.Config) { c.Retention = retention },
			Gate:  func(c *approval.Config) { c.Retention = retention },
			Tools: []agent.Tool{Lookup()},
			Rules: map[string]events.RuleSet{"all": {Name: "all", Rules: []events.Rule{{Name: "all", Action: events.RuleAsk}}}},
		})
		all := w.StartAll()
		ns := w.Conn().Namespace()
		call := w.calls("r1", "t1", "lookup_order")
		w.AwaitAsk(call, patience)
		carry, err := events.Data[events.RunCarried](w.Await(ns.Carry("r1", 1), retention))
		w.must(err)
		if o := carry.State.Options; o.ToolID != "lookup_order" || string(o.Args) != `{"orderId":"42"}` || !carry.State.OneTool() {
			t.Errorf("carried options = %+v", o)
		}
		for _, c := range all {
			c.Kill()
		}
		w.StartAll()
		last, err := w.Conn().Last(t.Context(), ns.Call(call, events.KindAsk).Chain())
		w.must(err)
		ask, err := events.Data[events.CallHeld](last)
		w.must(err)
		w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String(), Fingerprint: ask.Fingerprint})
		if end := w.endOf("r1", call); end.Outcome != events.OutcomeOK || end.ToolName != "lookup_order" {
			t.Errorf("result = %+v", end)
		}
		w.pause(time.Minute)
		w.Check(true)
	})
}

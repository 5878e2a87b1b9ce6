package approval_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

func TestMain(m *testing.M) { jetstreamtest.Main(m) }

const soon = time.Minute

// shortRetention is that of tests in real time: a third of it must do for a sweep, on a busy machine and under the race
// detector.
const shortRetention = 20 * time.Second

// handler makes handlers of a new gate.
func handler(f func(*approval.Service, context.Context, jetstream.Delivery) error) func(*sim.World, *jetstream.Conn) sim.Handle {
	return func(w *sim.World, conn *jetstream.Conn) sim.Handle {
		s := newGate(w, conn)
		return func(ctx context.Context, d jetstream.Delivery) error { return f(s, ctx, d) }
	}
}

func newGate(w *sim.World, conn *jetstream.Conn) *approval.Service {
	s, err := approval.New(conn, w.GateConfig())
	if err != nil {
		w.T.Fatal(err)
	}
	return s
}

// refundOf is the held call of the support story.
func refundOf(run string) events.CallID { return events.CallID{Run: run, Step: 1, Index: 1} }

func decision(d events.Decision, call events.CallID) events.DecisionRequested {
	return events.DecisionRequested{Decision: d, ToolCallID: call.String()}
}

func approve(w *sim.World, run string) { approveRound(w, run, 0) }

func approveRound(w *sim.World, run string, round int) {
	d := decision(events.Approve, refundOf(run))
	d.Fingerprint = askOf(w, refundOf(run), round).Fingerprint
	w.Decide("alice", d)
}

// askOf waits for the ask of a round.
func askOf(w *sim.World, call events.CallID, round int) events.CallHeld {
	w.T.Helper()
	for range 600 {
		if ask := w.AwaitAsk(call, soon); ask.Round == round {
			return ask
		}
		time.Sleep(100 * time.Millisecond) // fake
	}
	w.T.Fatalf("call %s is not asked about in round %d", call, round)
	return events.CallHeld{}
}

// suspends is a tool that suspends itself until it is resumed.
func suspends() sim.Options {
	return sim.Options{Tools: []agent.Tool{agent.NewTool("pay", "Pay an order back",
		func(_ context.Context, call *agent.Call, in sim.Order) (map[string]any, error) {
			if !call.Resumed() {
				return nil, call.Suspend(map[string]string{"order": in.OrderID})
			}
			return map[string]any{"paid": in.OrderID}, nil
		}, &agent.ToolOptions{Effect: agent.Idempotent})}}
}

// clients is a client tool that a rule holds first, with a program for its answers.
func clients() sim.Options {
	return sim.Options{
		Tools: []agent.Tool{agent.NewClientTool[sim.Order, map[string]any]("pay", "Pay an order back",
			&agent.ToolOptions{ToModelOutput: agent.MapOutputJQ(`{type: "text", value: "paid"}`)})},
		Rules: map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{{Name: "held", Action: events.RuleAsk}}}},
	}
}

func answerClient(w *sim.World, run string, round int) {
	d := decision(events.Respond, refundOf(run))
	d.Fingerprint, d.Result = askOf(w, refundOf(run), round).Fingerprint, json.RawMessage(`{}`)
	w.Decide("bob", d)
}

func resume(w *sim.World, run string) {
	ask := w.AwaitAsk(refundOf(run), soon)
	d := decision(events.ResumeD, refundOf(run))
	d.Fingerprint, d.ResumeData = ask.Fingerprint, json.RawMessage(`true`)
	w.Decide("alice", d)
}

// TestHabits holds each handler of the gate to its habits: twice, late, beside.
func TestHabits(t *testing.T) {
	t.Parallel()
	held := func(w *sim.World) string {
		run := w.Request("Refund order 42")
		w.AwaitAsk(refundOf(run), soon)
		return run
	}
	all := []string{planner.Name, approval.Name, toolexecutor.Name}
	short := func() sim.Options {
		return sim.Options{Gate: func(c *approval.Config) { c.Expires = 30 * time.Second }}
	}
	for name, h := range map[string]sim.Habit{
		"step": {
			Before: []string{planner.Name}, Handler: handler(approval.HandleFact), Finish: approve,
			Bring: func(w *sim.World) jetstream.Delivery {
				return w.Delivered(w.Conn().Namespace().Step(w.Request("Refund order 42"), 1))
			},
		},
		"suspend": {
			Options: suspends, Before: all, Handler: handler(approval.HandleFact), Finish: resume,
			Bring: func(w *sim.World) jetstream.Delivery {
				return w.Delivered(w.Conn().Namespace().Call(refundOf(w.Request("Refund order 42")), events.KindSuspend))
			},
		},
		"approve": {
			Before: all, Handler: handler(approval.HandleRequest),
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				call := refundOf(run)
				return w.Posted(w.Conn().Namespace().InDecide("alice", call), run, "alice", decision(events.Approve, call))
			},
		},
		"decline": {
			Before: all, Handler: handler(approval.HandleRequest),
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				call := refundOf(run)
				return w.Posted(w.Conn().Namespace().InDecide("alice", call), run, "alice", decision(events.Decline, call))
			},
		},
		"approve without a name": {
			Before: all, Handler: handler(approval.HandleRequest),
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				return w.Posted(w.Conn().Namespace().InDecideRun("alice", run), run, "alice", events.DecisionRequested{Decision: events.Approve})
			},
		},
		"edit": {
			Before: all, Handler: handler(approval.HandleRequest), Finish: func(w *sim.World, run string) { approveRound(w, run, 1) },
			Bring: func(w *sim.World) jetstream.Delivery {
				run := w.Request("Refund order 42")
				call := refundOf(run)
				d := decision(events.Edit, call)
				d.Args, d.Fingerprint = json.RawMessage(`{"orderId":"43"}`), w.AwaitAsk(call, soon).Fingerprint
				return w.Posted(w.Conn().Namespace().InDecide("alice", call), run, "alice", d)
			},
		},
		"approve of a client's call": {
			Options: clients, Before: all, Handler: handler(approval.HandleRequest), Finish: func(w *sim.World, run string) { answerClient(w, run, 1) },
			Bring: func(w *sim.World) jetstream.Delivery {
				run := w.Request("Refund order 42")
				call := refundOf(run)
				d := decision(events.Approve, call)
				d.Fingerprint = w.AwaitAsk(call, soon).Fingerprint
				return w.Posted(w.Conn().Namespace().InDecide("alice", call), run, "alice", d)
			},
		},
		"answer of a client": {
			Options: clients, Before: all, Handler: handler(approval.HandleRequest),
			Bring: func(w *sim.World) jetstream.Delivery {
				run := w.Request("Refund order 42")
				call := refundOf(run)
				approveRound(w, run, 0)
				d := decision(events.Respond, call)
				d.Fingerprint, d.Result = askOf(w, call, 1).Fingerprint, json.RawMessage(`{}`)
				return w.Posted(w.Conn().Namespace().InDecide("bob", call), run, "bob", d)
			},
		},
		"cancel": {
			Before: all, Handler: handler(approval.HandleRequest), Want: events.RunCancelled,
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				return w.Posted(w.Conn().Namespace().InCancel("bob", run), run, "bob", events.CancelRequested{RunID: run})
			},
		},
		"cancel of a call": {
			Before: all, Handler: handler(approval.HandleRequest),
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				return w.Posted(w.Conn().Namespace().InCancel("bob", run), run, "bob",
					events.CancelRequested{RunID: run, ToolCallID: refundOf(run).String()})
			},
		},
		"timer": {
			Options: short, Before: all, Handler: handler(approval.HandleTimer),
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				time.Sleep(31 * time.Second) // fake
				return jetstream.Delivery{Event: timerOf(w, refundOf(run)), Attempt: 1}
			},
		},
		"approve with a grant": {
			Before: all, Handler: handler(approval.HandleRequest),
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				d := decision(events.Approve, refundOf(run))
				d.Grant = terms(events.ScopeRun, 3)
				return w.Posted(w.Conn().Namespace().InDecide("alice", refundOf(run)), run, "alice", d)
			},
		},
		"step with a grant": {
			Before: []string{planner.Name}, Handler: handler(approval.HandleFact),
			Bring: func(w *sim.World) jetstream.Delivery {
				request := handler(approval.HandleRequest)(w, w.Dial("giver", nil))
				run := w.Request("Refund order 42")
				g := grantRequest("g1", events.ScopeRun, run, 3)
				g.ToolID = "issue_refund"
				must(w, request(w.T.Context(), post(w, "alice", "g1", g)))
				return w.Delivered(w.Conn().Namespace().Step(run, 1))
			},
		},
		"grant asked for": {
			Before: all, Handler: handler(approval.HandleRequest), Finish: approve,
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				g := grantRequest("g1", events.ScopeRun, run, 3)
				g.ToolID = "issue_refund"
				return w.Posted(w.Conn().Namespace().InGrant("alice", "g1"), run, "alice", g)
			},
		},
		"grant revoked": {
			Before: all, Handler: handler(approval.HandleRequest), Finish: approve,
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				g := grantRequest("g1", events.ScopeRun, run, 3)
				g.ToolID = "issue_refund"
				give(w, g)
				return w.Posted(w.Conn().Namespace().InGrant("carol", "g1"), run, "carol", events.GrantRevoked{ID: "g1"})
			},
		},
		"end": {
			Before: all, Handler: handler(approval.HandleFact),
			Bring: func(w *sim.World) jetstream.Delivery {
				run := held(w)
				approve(w, run)
				return w.Delivered(w.Conn().Namespace().End(run))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h.Exercise(t)
		})
	}
}

// timerOf is the timer of the first ask of a call, as it fires.
func timerOf(w *sim.World, call events.CallID) events.Event {
	w.T.Helper()
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: approval.Name}
	e, err := o.Request(w.Conn().Namespace().TimerFire(events.TimerID(call, 0)), call.Run,
		events.TimerFired{RunID: call.Run, ToolCallID: call.String(), Purpose: events.TimerExpire}, events.Event{})
	if err != nil {
		w.T.Fatal(err)
	}
	e.Stored = time.Now()
	return e
}

// TestMalformedRequests sends what is no decision and no cancel: each is refused on its own, its sender is told, and the
// call stays held. (B8.20)
func TestMalformedRequests(t *testing.T) {
	in(t, scripted(sim.Options{Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})}}, "pay"), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		w.AwaitAsk(call, soon)
		told := make(chan events.Event, 8)
		stop, err := w.Conn().Notes(w.T.Context(), "alice", func(e events.Event) { told <- e })
		must(w, err)
		w.T.Cleanup(stop)
		bodies := []string{
			"", "not JSON", `{}`, `{"specversion":"1.0","id":"d1","type":"dev.weirkeeper.decision.requested.v1","source":"x","subject":"r","data":{"approved":"yes"}}`,
			`{"specversion":"1.0","id":"d2","type":"dev.weirkeeper.decision.requested.v1","source":"x","subject":"r","data":true}`,
			`{"specversion":"1.0","id":"d3","type":"dev.weirkeeper.run.requested.v1","source":"x","subject":"r","data":{}}`,
		}
		header := map[string][]string{"content-type": {"application/cloudevents+json"}}
		for _, subject := range []string{w.Conn().Namespace().InDecide("alice", call), w.Conn().Namespace().InCancel("alice", run)} {
			for _, body := range bodies {
				jetstreamtest.Slip(w.T.(*testing.T), w.Server, subject, header, body)
				select {
				case e := <-told:
					if !strings.Contains(string(e.Data), `"invalid_request"`) {
						w.T.Errorf("%s is told %s", body, e.Data)
					}
				case <-time.After(soon):
					w.T.Errorf("the sender of %q is not told", body)
				}
			}
		}
		if r := w.Check(false); r["refused"] != len(bodies) {
			w.T.Errorf("the log holds %d refusals, want %d", r["refused"], len(bodies))
		}
		answer(w, run, events.Approve, 0)
		w.AwaitEnd(run, soon)
	})
}

package approval_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
)

// tampered makes a world with a held call, lets f change its log past the services, and demands that the call's tool
// never runs, whatever people say afterwards.
func tampered(t *testing.T, f func(w *sim.World, run string)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ran atomic.Bool
		pay := tool("pay", func(context.Context, *agent.Call) (any, error) { ran.Store(true); return 1, nil },
			agent.ToolOptions{RequireApproval: agent.Always(), Effect: agent.Effectful})
		w := sim.New(t, scripted(sim.Options{Tools: []agent.Tool{pay}, Gate: func(c *approval.Config) { c.DeepSweep = soon }}, "pay")(t))
		w.StartAll()
		run := w.Request("go")
		w.AwaitAsk(refundOf(run), soon)
		f(w, run)
		w.Decide("alice", decision(events.Approve, refundOf(run)))
		time.Sleep(5 * soon) // fake
		if ran.Load() {
			t.Error("the tool ran")
		}
		if asks := listed(w); len(asks) != 0 {
			t.Errorf("the entry still lists %+v", asks)
		}
	})
}

func slip(w *sim.World, p events.Place) {
	jetstreamtest.Slip(w.T.(*testing.T), w.Server, p.Ingest(), nil, "not an event")
}

// forge stores a well-formed fact that no gate has signed.
func forge(w *sim.World, p events.Place, data any) {
	w.T.Helper()
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: approval.Name}
	e, err := o.Fact(p, data, events.Event{})
	must(w, err)
	header, payload, err := events.EncodeMsg(e)
	must(w, err)
	jetstreamtest.Slip(w.T.(*testing.T), w.Server, p.Ingest(), header, string(payload))
}

// TestForeignInHeldCall puts messages that are no events behind the ask of a held call: it ends as blocked.
func TestForeignInHeldCall(t *testing.T) {
	for _, kind := range []events.Kind{events.KindAsk, events.KindAnswer, events.KindClaim, events.KindSuspend} {
		t.Run(string(kind), func(t *testing.T) {
			tampered(t, func(w *sim.World, run string) {
				slip(w, place(w, run, 1, kind))
				w.Decide("alice", decision(events.Approve, refundOf(run)))
				if d := result(w, run, 1); d.Outcome != events.OutcomeBlocked || d.Reason != "tampering" || d.Foreign == 0 {
					w.T.Errorf("result = %+v, want blocked, tampering", d)
				}
				w.AwaitEnd(run, soon)
			})
		})
	}
}

// TestForgedFacts puts facts into a call's chain that are well formed and not signed by a gate: an answer, an ask.
func TestForgedFacts(t *testing.T) {
	for name, f := range map[string]func(w *sim.World, run string, ask events.CallHeld){
		"answer": func(w *sim.World, run string, ask events.CallHeld) {
			forge(w, place(w, run, 1, events.KindAnswer), events.CallAnswered{
				ToolCallID: ask.ToolCallID, RunID: run, Decision: events.Approve,
				Fingerprint: ask.Fingerprint, Principal: "mallory", At: time.Now(),
			})
		},
		"ask": func(w *sim.World, run string, ask events.CallHeld) {
			ask.Approvers, ask.ToolID = []string{"user:mallory"}, "pay"
			forge(w, place(w, run, 1, events.KindAsk), ask)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tampered(t, func(w *sim.World, run string) {
				f(w, run, w.AwaitAsk(refundOf(run), soon))
				if d := result(w, run, 1); d.Outcome != events.OutcomeBlocked || d.Reason != "tampering" {
					w.T.Errorf("result = %+v, want blocked, tampering", d)
				}
				w.AwaitEnd(run, soon)
			})
		})
	}
}

// TestForeignInMainChain puts messages that are no events behind the step of a run with a held call. The run ends as
// failed, its call is closed before that, and nothing runs. A carry is driven by nobody, so there a cancel meets it.
func TestForeignInMainChain(t *testing.T) {
	for name, p := range map[string]func(events.Namespace, string) events.Place{
		"step":  func(ns events.Namespace, run string) events.Place { return ns.Step(run, 2) },
		"end":   events.Namespace.End,
		"carry": func(ns events.Namespace, run string) events.Place { return ns.Carry(run, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			tampered(t, func(w *sim.World, run string) {
				slip(w, p(w.Conn().Namespace(), run))
				w.Cancel("bob", run)
				if d := result(w, run, 1); d.Outcome != events.OutcomeCancelled || d.Cancel == nil || d.Cancel.Code != events.CodeTampering {
					w.T.Errorf("result = %+v, want cancelled because of tampering", d)
				}
				time.Sleep(soon) // fake
				end := w.AwaitEnd(run, soon)
				if end.Outcome != events.RunFailed || end.Error.Code != events.CodeTampering {
					w.T.Errorf("run ended as %s (%v), want failed, tampering", end.Outcome, end.Error)
				}
			})
		})
	}
}

// TestForeignResult puts a message that is no event where the result of a held call belongs: the chain is closed, and
// the run ends.
func TestForeignResult(t *testing.T) {
	tampered(t, func(w *sim.World, run string) {
		slip(w, place(w, run, 1, events.KindResult))
		if end := w.AwaitEnd(run, 10*soon); end.Outcome != events.RunFailed || end.Error.Code != events.CodeTampering {
			w.T.Errorf("run ended as %s (%v), want failed, tampering", end.Outcome, end.Error)
		}
	})
}

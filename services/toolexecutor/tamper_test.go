package toolexecutor_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// slip puts a message that no service of Weir wrote into the chain of a run's first call.
func slip(w *sim.World, p events.Place) {
	jetstreamtest.Slip(w.T.(*testing.T), w.Server, p.Ingest(), nil, "not an event")
}

// TestForeignRelease puts something that is no event where a release belongs: nothing runs, and the call is blocked,
// though no gate is there to see it.
func TestForeignRelease(t *testing.T) {
	in(t, job(events.Effectful, done), func(w *sim.World) {
		slip(w, w.Conn().Namespace().Go(first("r1"), events.DefaultPool, "job"))
		w.Start(toolexecutor.Name)
		if d := result(w, "r1"); d.Outcome != events.OutcomeBlocked || d.Foreign == 0 {
			w.T.Errorf("result = %+v, want blocked, naming the foreign message", d)
		}
	})
}

// TestForeignAfterRelease puts a foreign message between a release and its claim: the call is blocked, nothing runs, and
// the run goes on with that.
func TestForeignAfterRelease(t *testing.T) {
	for _, kind := range []events.Kind{events.KindAsk, events.KindClaim, events.KindSuspend} {
		t.Run(string(kind), func(t *testing.T) {
			var ran atomic.Bool
			in(t, job(events.Effectful, func(context.Context, *agent.Call) (any, error) { ran.Store(true); return 1, nil }), func(w *sim.World) {
				w.Start(planner.Name)
				gate := w.Start(approval.Name)
				run := w.Request("Do it")
				released(w, run)
				gate.Kill()
				slip(w, w.Conn().Namespace().Call(first(run), kind))
				w.Start(toolexecutor.Name)
				if d := result(w, run); d.Outcome != events.OutcomeBlocked || d.Reason != "tampering" {
					w.T.Errorf("result = %+v, want blocked, tampering", d)
				}
				if end := w.AwaitEnd(run, soon); end.Outcome != events.RunCompleted {
					w.T.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
				}
				if ran.Load() {
					w.T.Error("the tool ran")
				}
			})
		})
	}
}

// TestForeignAfterClaim puts a foreign message behind the claim of a call that is running: what the tool brings is
// evidence, and the call is blocked.
func TestForeignAfterClaim(t *testing.T) {
	inBlocked(t, events.Effectful, nil, func(w *sim.World, b *blocker) {
		w.StartAll()
		run := w.Request("Do it")
		<-b.entered
		slip(w, w.Conn().Namespace().Call(first(run), events.KindAnswer))
		b.leave <- struct{}{}
		if d := result(w, run); d.Outcome != events.OutcomeBlocked || d.Reason != "tampering" {
			w.T.Errorf("result = %+v, want blocked, tampering", d)
		}
		w.AwaitEnd(run, soon)
		late, err := w.Conn().Subjects(w.T.Context(), w.Conn().Namespace().EveryBeside(events.KindLate))
		if err != nil || len(late) != 1 {
			w.T.Errorf("late outcomes: %q, %v, want one", late, err)
		}
	})
}

// TestForeignInUnhostedCall shows that an executor that does not host a tool blocks its call too, when the call's record
// was tampered with: giving the release back would have no end.
func TestForeignInUnhostedCall(t *testing.T) {
	in(t, job(events.Effectful, done), func(w *sim.World) {
		forged(w, func(w *sim.World, d *events.CallReleased) *events.Key {
			d.ToolVersion = "2"
			d.Fingerprint = fingerprint(*d)
			return &w.Key
		})
		slip(w, w.Conn().Namespace().Call(first("r1"), events.KindClaim))
		w.Start(toolexecutor.Name)
		time.Sleep(soon) // fake
		if d := result(w, "r1"); d.Outcome != events.OutcomeBlocked {
			w.T.Errorf("result = %+v, want blocked", d)
		}
	})
}

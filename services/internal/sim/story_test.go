package sim

import (
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

func TestMain(m *testing.M) { jetstreamtest.Main(m) }

func TestHeldCallRunsAfterApproval(t *testing.T) {
	t.Parallel()
	w := New(t, Options{})
	w.StartAll()
	run := w.Request("Please refund order 42")
	call := events.CallID{Run: run, Step: 1, Index: 1}
	ask := w.AwaitAsk(call, 10*time.Second)
	if n := w.Effects.Of(call.String()); n != 0 {
		t.Fatalf("the refund ran %d times before approval", n)
	}
	w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String(), Fingerprint: ask.Fingerprint})
	end := w.AwaitEnd(run, 10*time.Second)
	if end.Outcome != events.RunCompleted {
		t.Errorf("run ended as %s (%v), want completed", end.Outcome, end.Error)
	}
	if n := w.Effects.Of(call.String()); n != 1 {
		t.Errorf("the refund ran %d times, want once", n)
	}
	w.Check(true)
}

package approval_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
)

// TestB8_24_LostAskIsInNobodysWay sweeps the entry of a run that lists a call before the others of which the log holds
// nothing: the others are looked after all the same, so one whose deadline has passed expires without its timer.
func TestB8_24_LostAskIsInNobodysWay(t *testing.T) {
	in(t, heldPay, func(w *sim.World) {
		copies := w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		time.Sleep(time.Second) // fake
		copies[1].Kill()
		key := events.SuspendedKey("support", "", "", run, run)
		snap, _, err := w.Conn().Snapshot(w.T.Context(), key)
		must(w, err)
		lost := snap.Asks[0]
		lost.ToolCallID = events.CallID{Run: run, Step: 1, Index: 2}.String()
		snap.Asks = slices.Insert(snap.Asks, 0, lost)
		must(w, approval.SweepEntry(newGate(w, w.Dial("sweeper", nil)), w.T.Context(), snap, ask.ExpiresAt.Add(time.Second)))
		if r := result(w, run, 1); r.Outcome != events.OutcomeExpired {
			w.T.Errorf("the call ended as %s", r.Outcome)
		}
		w.AwaitEnd(run, soon)
	})
}

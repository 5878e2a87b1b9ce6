package sim

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
)

var deadlines = flag.Int("weir.deadlines", 1000, "how many asks come to their deadline at once")

// TestB8_24_DeadlinesAtOnce lets thousands of asks come to their deadline in the same second, after the server was started
// again while their timers were pending. No ask expires early and none more than a second late, by the server's time
// stamps. Every tenth timer was lost: those are made up for by the sweeper, within two minutes.
func TestB8_24_DeadlinesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const wait = 2*time.Minute + 77*time.Millisecond
		w := New(t, Options{
			Tools: []agent.Tool{Refund(&Effects{})},
			Gate: func(c *approval.Config) {
				c.Expires, c.Sweep, c.SweepAge, c.DeepSweep = wait, 30*time.Second, time.Minute, time.Hour
			},
		})
		crowd := w.crowd(*deadlines)
		gate := w.Start(approval.Name)
		for i, run := range crowd {
			if ask := w.AwaitAsk(refundOf(run), patience); i == 0 {
				time.Sleep(time.Until(ask.AskedAt.Add(time.Second))) // fake
			}
		}
		time.Sleep(time.Second) // fake: the last of them has its timer too
		gate.Kill()
		w.Restart()
		w.Start(approval.Name)
		for i := 0; i < len(crowd); i += 10 {
			w.must(w.Conn().CancelTimer(t.Context(), events.TimerID(refundOf(crowd[i]), 0)))
		}
		time.Sleep(wait) // fake
		var late, lost []time.Duration
		for i, run := range crowd {
			call := refundOf(run)
			answer := w.Await(w.Conn().Namespace().Call(call, events.KindAnswer), patience)
			ask := w.AwaitAsk(call, patience)
			d, err := events.Data[events.CallAnswered](answer)
			w.must(err)
			if d.Decision != events.Expired || d.At.Before(ask.ExpiresAt) {
				t.Errorf("%s: answered %s at %s, the deadline is %s", call, d.Decision, d.At, ask.ExpiresAt)
			}
			by := answer.Stored.Sub(ask.ExpiresAt)
			if i%10 == 0 {
				lost = append(lost, by)
			} else {
				late = append(late, by)
			}
		}
		t.Logf("%d deadlines: %v to %v late, the middle %v; %d with lost timers: %v to %v late", len(crowd), slices.Min(late),
			slices.Max(late), middle(late), len(lost), slices.Min(lost), slices.Max(lost))
		if slices.Min(late) < 0 || slices.Max(late) > time.Second {
			t.Errorf("asks expired %v to %v after their deadlines", slices.Min(late), slices.Max(late))
		}
		if slices.Min(lost) < 0 || slices.Max(lost) > 2*time.Minute {
			t.Errorf("asks with lost timers expired %v to %v after their deadlines", slices.Min(lost), slices.Max(lost))
		}
	})
}

func middle(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// crowd stores runs up to their first model turn, which calls the refund: as a planner has stored one of them, and with no
// planner that goes on.
func (w *World) crowd(n int) []string {
	w.T.Helper()
	first := w.Start(planner.Name)
	sample := w.Request("Please refund order 42")
	ns := w.Conn().Namespace()
	start, err := events.Data[events.RunStarted](w.Await(ns.Start(sample), patience))
	w.must(err)
	step, err := events.Data[events.StepFinished](w.Await(ns.Step(sample, 1), patience))
	w.must(err)
	first.Kill()
	o := &events.Origin{Namespace: ns, Service: planner.Name}
	runs := make([]string, n)
	for i := range runs {
		run := fmt.Sprintf("crowd-%05d", i)
		runs[i], start.RunID, start.RootRunID, start.Path[0].RunID, step.RunID = run, run, run, run, run
		for k := range step.Calls {
			step.Calls[k].ToolCallID = events.CallID{Run: run, Step: 1, Index: k + 1}.String()
		}
		begun, err := o.Fact(ns.Start(run), start, events.Event{})
		w.must(err)
		a, err := w.Conn().Append(w.T.Context(), events.First(begun.Place), begun)
		w.must(err)
		turn, err := o.Fact(ns.Step(run, 1), step, a.Last)
		w.must(err)
		_, err = w.Conn().Append(w.T.Context(), events.After(a.Last), turn)
		w.must(err)
	}
	return runs
}

// TestB10_9_ThousandRunsLeaveNothing suspends and finishes a thousand runs. No key of them is left, and services that start
// again start nothing. (KV-8)
func TestB10_9_ThousandRunsLeaveNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := New(t, Options{Tools: []agent.Tool{Refund(&Effects{})}})
		copies := w.StartAll()
		runs := w.crowd(1000)
		for _, run := range runs {
			w.AwaitAsk(refundOf(run), patience)
			w.Decide("alice", events.DecisionRequested{Decision: events.Decline, ToolCallID: refundOf(run).String()})
		}
		for _, run := range runs {
			w.AwaitEnd(run, patience)
		}
		time.Sleep(time.Second) // fake: the gate cleans up behind the ends
		for _, c := range copies {
			w.must(c.Stop())
		}
		time.Sleep(2 * time.Minute) // fake: what is left of removed keys goes
		keys, err := w.Conn().ListSuspended(t.Context(), "", "", "")
		w.must(err)
		if len(keys) != 1 { // of the sample that the crowd was made of
			t.Errorf("%d keys are left", len(keys))
		}
		before := w.Check(false)
		w.StartAll()
		time.Sleep(2 * time.Minute) // fake
		if after := w.Check(false); !maps.Equal(before, after) {
			t.Errorf("services that start again have done something: %v, was %v", after, before)
		}
	})
}

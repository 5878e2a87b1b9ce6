package approval_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

func after(d time.Duration, to ...string) events.Escalate {
	return events.Escalate{After: events.Duration(d), To: to}
}

// asksOf are the asks of a call as they stand in the log.
func asksOf(w *sim.World, call events.CallID) (facts []events.Event, asks []events.CallHeld) {
	w.T.Helper()
	subject := w.Conn().Namespace().Call(call, events.KindAsk).Subject()
	for seq := uint64(0); ; {
		e, err := w.Conn().NextFact(w.T.Context(), seq, subject)
		if errors.Is(err, jetstream.ErrNotFound) {
			return facts, asks
		}
		must(w, err)
		ask, err := events.Data[events.CallHeld](e)
		must(w, err)
		facts, asks, seq = append(facts, e), append(asks, ask), e.Seq
	}
}

// near reports whether a fact was stored at a time, or within a second after it.
func near(e events.Event, at time.Time) bool {
	return !e.Stored.Before(at) && e.Stored.Sub(at) <= time.Second
}

// TestB8_26_Escalation sends a call to more people step by step: each time the ask is stored again, with a new id, for the
// same round and fingerprint. Its entry follows, its chunk is published again, and whoever is new may decide.
func TestB8_26_Escalation(t *testing.T) {
	leads := after(2*time.Minute, "user:boss")
	leads.OnExpiry = events.OnExpiryFail
	rule := events.Rule{
		Approvers: []string{"user:clerk"}, Expires: events.Duration(5 * time.Minute),
		Escalate: []events.Escalate{after(time.Minute, "user:lead"), leads},
	}
	in(t, ruled(sim.Options{}, rule), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		first := w.AwaitAsk(call, soon)
		early := sendAs(w, "lead", approvalOf(first))
		if r := refusal(w, call, early.Event.ID); r.Code != events.CodeForbidden {
			w.T.Errorf("before the stage the lead is refused with %+v", r.Error)
		}
		time.Sleep(2*time.Minute + 2*time.Second) // fake
		facts, asks := asksOf(w, call)
		if len(asks) != 3 {
			w.T.Fatalf("the log holds %d asks, want 3", len(asks))
		}
		for i, want := range []struct {
			approvers, to []string
			left          int
			onExpiry      string
		}{
			{[]string{"user:clerk"}, nil, 2, events.OnExpiryDecline},
			{[]string{"user:clerk", "user:lead"}, []string{"user:lead"}, 1, events.OnExpiryDecline},
			{[]string{"user:clerk", "user:lead", "user:boss"}, []string{"user:lead", "user:boss"}, 0, events.OnExpiryFail},
		} {
			a := asks[i]
			if !slices.Equal(a.Approvers, want.approvers) || !slices.Equal(a.EscalatedTo, want.to) || len(a.Escalate) != want.left ||
				a.OnExpiry != want.onExpiry {
				w.T.Errorf("ask %d: approvers %q, escalated to %q, %d stages left, then %s", i, a.Approvers, a.EscalatedTo, len(a.Escalate), a.OnExpiry)
			}
			if a.Round != 0 || a.Fingerprint != first.Fingerprint || !a.ExpiresAt.Equal(first.ExpiresAt) || facts[i].Carried {
				w.T.Errorf("ask %d: round %d, %s, expires %s, carried %v", i, a.Round, a.Fingerprint, a.ExpiresAt, facts[i].Carried)
			}
			if i > 0 && (facts[i].ID == facts[0].ID || a.Since == nil || !a.Since.Equal(facts[0].Stored)) {
				w.T.Errorf("ask %d: event %s, since %v", i, facts[i].ID, a.Since)
			}
			if i > 0 && !near(facts[i], first.Escalate[i-1].At) {
				w.T.Errorf("stage %d of %s began at %s", i, first.Escalate[i-1].At, facts[i].Stored)
			}
		}
		if open := listed(w); len(open) != 1 || !slices.Equal(open[0].EscalatedTo, []string{"user:lead", "user:boss"}) || len(open[0].Approvers) != 3 {
			w.T.Errorf("the entry lists %+v", open)
		}
		sendAs(w, "boss", approvalOf(first))
		if a := answerOf(w, call); a.Principal != "boss" {
			w.T.Errorf("the answer: %+v", a)
		}
		w.AwaitEnd(run, soon)
		if ids := chunks(w, run, events.ChunkToolCallApproval); !slices.Equal(ids, []string{facts[0].ID, facts[1].ID, facts[2].ID}) {
			w.T.Errorf("chunks of asks: %v", ids)
		}
		time.Sleep(6 * time.Minute) // fake: timers that are left find nothing to do
		w.Check(true)
		if left := listed(w); len(left) != 0 {
			w.T.Errorf("the entry still lists %+v", left)
		}
	})
}

// chunks are the ids of the chunks of a type that an ended run has left, in order.
func chunks(w *sim.World, run string, t events.ChunkType) (ids []string) {
	w.T.Helper()
	c := client.New(w.Conn(), client.Config{Principal: "bob"})
	for ch, err := range c.Run(run).Follow(w.T.Context(), 0, nil) {
		must(w, err)
		if ch.Type == t {
			ids = append(ids, ch.ID)
		}
	}
	return ids
}

// TestB8_25_EscalateOnExpiry lets deadlines pass: while stages are left each begins the next one, with as much time again;
// the last ends the call.
func TestB8_25_EscalateOnExpiry(t *testing.T) {
	rule := events.Rule{
		Approvers: []string{"user:clerk"}, Expires: events.Duration(time.Minute), OnExpiry: events.OnExpiryEscalate,
		Escalate: []events.Escalate{after(10*time.Hour, "user:lead"), after(20*time.Hour, "user:boss")},
	}
	in(t, ruled(sim.Options{}, rule), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		first := w.AwaitAsk(call, soon)
		time.Sleep(3*time.Minute + 2*time.Second) // fake
		facts, asks := asksOf(w, call)
		if len(asks) != 3 {
			w.T.Fatalf("the log holds %d asks, want 3", len(asks))
		}
		for i, a := range asks {
			want := first.ExpiresAt.Add(time.Duration(i) * time.Minute)
			if !a.ExpiresAt.Equal(want) || !facts[i].ExpiryTime.Equal(want) || len(a.EscalatedTo) != i {
				w.T.Errorf("ask %d expires %s, want %s; escalated to %q", i, a.ExpiresAt, want, a.EscalatedTo)
			}
			if i > 0 && !near(facts[i], asks[i-1].ExpiresAt) {
				w.T.Errorf("ask %d was stored at %s, the deadline before was %s", i, facts[i].Stored, asks[i-1].ExpiresAt)
			}
		}
		if d := result(w, run, 1); d.Outcome != events.OutcomeExpired {
			w.T.Errorf("result = %+v", d)
		}
		if a := w.Await(place(w, run, 1, events.KindAnswer), soon); !near(a, asks[2].ExpiresAt) {
			w.T.Errorf("answered at %s, the deadline was %s", a.Stored, asks[2].ExpiresAt)
		}
		if end := w.AwaitEnd(run, soon); end.Outcome != events.RunCompleted {
			w.T.Errorf("run ended as %s", end.Outcome)
		}
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

// TestB8_25_B8_26_DecisionsMeetTheTime sends decisions at moments when no gate has looked at the clock yet: of somebody
// whose stage has just begun, and after a deadline that escalates. They count.
func TestB8_25_B8_26_DecisionsMeetTheTime(t *testing.T) {
	rule := events.Rule{
		Approvers: []string{"user:clerk"}, Expires: events.Duration(time.Minute), OnExpiry: events.OnExpiryEscalate,
		Escalate: []events.Escalate{after(30*time.Second, "user:lead"), after(10*time.Hour, "user:boss")},
	}
	for who, at := range map[string]time.Duration{"lead": 31 * time.Second, "clerk": 61 * time.Second, "boss": 61 * time.Second} {
		t.Run(who, func(t *testing.T) {
			in(t, ruled(sim.Options{}, rule), func(w *sim.World) {
				gate := w.StartAll()[1]
				run := w.Request("go")
				call := refundOf(run)
				ask := w.AwaitAsk(call, soon)
				time.Sleep(time.Second) // fake
				gate.Kill()
				time.Sleep(time.Until(ask.AskedAt.Add(at))) // fake
				d := decided(w, who, approvalOf(ask))
				handle := handler(approval.HandleRequest)(w, w.Dial("gate", nil))
				for ; ; d.Attempt++ {
					err := handle(w.T.Context(), d)
					if !jetstream.IsLater(err) || d.Attempt > 5 {
						must(w, err)
						break
					}
				}
				if a := answerOf(w, call); a.Principal != who || a.Decision != events.Approve {
					w.T.Errorf("the answer: %+v", a)
				}
				w.AwaitEnd(run, soon)
				time.Sleep(2 * time.Second) // fake
				w.Start(approval.Name)
				time.Sleep(2 * time.Second) // fake
				w.Check(true)
			})
		})
	}
}

// TestB8_24_Reminders reminds people of an open ask, and stops when it is answered. While no gate lives none is sent, and
// those that were missed are one.
func TestB8_24_Reminders(t *testing.T) {
	rule := events.Rule{Remind: events.Duration(time.Minute), Expires: events.Duration(time.Hour)}
	in(t, ruled(sim.Options{}, rule), func(w *sim.World) {
		gate := w.StartAll()[1]
		run := w.Request("go")
		call := refundOf(run)
		first := w.AwaitAsk(call, soon)
		time.Sleep(2*time.Minute + 2*time.Second) // fake
		gate.Kill()
		time.Sleep(3 * time.Minute) // fake
		w.Start(approval.Name)
		time.Sleep(time.Minute) // fake
		facts, asks := asksOf(w, call)
		var numbers []int
		for i, a := range asks {
			numbers = append(numbers, a.Reminders)
			if a.Round != 0 || a.Fingerprint != first.Fingerprint || !a.ExpiresAt.Equal(first.ExpiresAt) {
				w.T.Errorf("ask %d: %+v", i, a)
			}
		}
		if !slices.Equal(numbers, []int{0, 1, 2, 5, 6}) {
			w.T.Errorf("reminders %v, want 0, 1, 2, after the gate was away 5, then 6", numbers)
		}
		if open := listed(w); len(open) != 1 || open[0].Reminders != 6 {
			w.T.Errorf("the entry lists %+v", open)
		}
		sendAs(w, "alice", approvalOf(first)) // sent on what was seen first
		w.AwaitEnd(run, soon)
		time.Sleep(5 * time.Minute) // fake
		if again, _ := asksOf(w, call); len(again) != len(facts) {
			w.T.Errorf("%d reminders came after the answer", len(again)-len(facts))
		}
		w.Check(true)
	})
}

// TestB8_24_RemindersEnd reminds often: a hundred times and not more, and never at the deadline or after it.
func TestB8_24_RemindersEnd(t *testing.T) {
	for name, test := range map[string]struct {
		remind, expires time.Duration
		want            int
	}{
		"a hundred": {2 * time.Second, 10 * time.Minute, 100},
		"deadline":  {time.Minute, 3 * time.Minute, 2},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, ruled(sim.Options{}, events.Rule{Remind: events.Duration(test.remind), Expires: events.Duration(test.expires)}), func(w *sim.World) {
				w.StartAll()
				run := w.Request("go")
				call := refundOf(run)
				w.AwaitAsk(call, soon)
				w.AwaitEnd(run, test.expires+soon)
				_, asks := asksOf(w, call)
				if last := asks[len(asks)-1]; len(asks) != test.want+1 || last.Reminders != test.want {
					w.T.Errorf("%d asks, the last says reminder %d, want %d", len(asks), last.Reminders, test.want)
				}
				if d := result(w, run, 1); d.Outcome != events.OutcomeExpired {
					w.T.Errorf("result = %+v", d)
				}
				time.Sleep(2 * time.Second) // fake
				w.Check(true)
			})
		})
	}
}

// TestB8_24_LostTimers purges the timers of asks: the sweeper makes up for a stage, a reminder and the deadline within a
// minute.
func TestB8_24_LostTimers(t *testing.T) {
	rule := events.Rule{
		Approvers: []string{"user:clerk"}, Remind: events.Duration(2 * time.Minute), Expires: events.Duration(5 * time.Minute),
		Escalate: []events.Escalate{after(time.Minute, "user:lead")},
	}
	in(t, ruled(sim.Options{}, rule), func(w *sim.World) {
		gate := w.StartAll()[1]
		run := w.Request("go")
		call := refundOf(run)
		first := w.AwaitAsk(call, soon)
		time.Sleep(time.Second) // fake
		for range 4 {           // timers that are set again are lost too
			cancelTimers(w, call)
			time.Sleep(time.Minute) // fake
		}
		cancelTimers(w, call)
		gate.Kill()
		time.Sleep(time.Minute + time.Second) // fake
		w.Start(approval.Name)
		answered := w.Await(place(w, run, 1, events.KindAnswer), 2*soon)
		if late := answered.Stored.Sub(first.ExpiresAt); late < 0 || late > 2*soon {
			w.T.Errorf("expired %v after the deadline", late)
		}
		facts, asks := asksOf(w, call)
		if len(asks) < 3 || len(asks[1].EscalatedTo) != 1 || asks[len(asks)-1].Reminders != 2 && asks[len(asks)-1].Reminders != 1 {
			w.T.Errorf("the asks: %+v", asks)
		}
		if late := facts[1].Stored.Sub(first.Escalate[0].At); late < 0 || late > time.Minute {
			w.T.Errorf("escalated %v late", late)
		}
		w.AwaitEnd(run, soon)
	})
}

func cancelTimers(w *sim.World, call events.CallID) {
	w.T.Helper()
	for _, purpose := range []string{events.TimerExpire, events.TimerEscalate, events.TimerRemind} {
		id, err := jetstream.TimerID(events.TimerSet{ToolCallID: call.String(), Purpose: purpose})
		must(w, err)
		must(w, w.Conn().CancelTimer(w.T.Context(), id))
	}
}

// TestB8_15_B8_26_DecisionOlderThanTheRepeatedAsk lets a decision meet an ask that is repeated before the answer is stored:
// it is older than the ask that it meets then, and counts.
func TestB8_15_B8_26_DecisionOlderThanTheRepeatedAsk(t *testing.T) {
	rule := events.Rule{Remind: events.Duration(time.Minute), Expires: events.Duration(time.Hour)}
	for _, need := range []int{1, 2} {
		in2(t, func(t *testing.T) {
			rule := rule
			rule.Quorum = need
			w := sim.New(t, ruled(sim.Options{}, rule)(t))
			w.StartAll()
			run := w.Request("go")
			call := refundOf(run)
			ask := w.AwaitAsk(call, soon)
			if need > 1 {
				sendAs(w, "alice", approvalOf(ask))
				voteOf(w, call, "alice")
			}
			time.Sleep(time.Until(ask.AskedAt.Add(58 * time.Second))) // fake
			slow := map[int]events.Kind{1: events.KindAnswer, 2: events.KindVote}[need]
			stalled := w.Dial("slow", func(e events.Event) error {
				if e.Place.Kind == slow {
					time.Sleep(10 * time.Second) // fake
				}
				return nil
			})
			handle := handler(approval.HandleRequest)(w, stalled)
			d := decided(w, "bob", approvalOf(ask))
			if err := handle(t.Context(), d); !jetstream.IsLater(err) {
				t.Fatalf("the handler says %v, want later", err)
			}
			d.Attempt++
			must(w, handle(t.Context(), d))
			facts, asks := asksOf(w, call)
			a := answerOf(w, call)
			if a.Principal != "bob" || len(asks) != 2 || !a.At.Before(facts[1].Stored) {
				t.Errorf("the answer: %+v, %d asks", a, len(asks))
			}
			if need > 1 && (voters(asks[1].Quorum.Votes) != "alice" || voters(a.Votes) != "alice bob") {
				t.Errorf("the repeated ask has votes of %q inside, the answer of %q", voters(asks[1].Quorum.Votes), voters(a.Votes))
			}
			w.AwaitEnd(run, soon)
			time.Sleep(2 * time.Second) // fake
			w.Check(true)
		})
	}
}

// in2 runs a part of a test in fake time.
func in2(t *testing.T, f func(*testing.T)) {
	t.Helper()
	t.Run("", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
}

// TestB8_15_OlderThanTheRound refuses a decision that was sent before the first ask of its round, whatever repeats it.
func TestB8_15_OlderThanTheRound(t *testing.T) {
	rule := events.Rule{Remind: events.Duration(time.Minute), Expires: events.Duration(time.Hour)}
	in(t, ruled(sim.Options{}, rule), func(w *sim.World) {
		w.StartAll()
		before := time.Now()
		time.Sleep(time.Second) // fake
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		time.Sleep(time.Minute + time.Second) // fake
		d := decided(w, "bob", approvalOf(ask))
		d.Event.Stored = before
		must(w, handler(approval.HandleRequest)(w, w.Dial("gate", nil))(w.T.Context(), d))
		if r := refusal(w, call, d.Event.ID); r.Code != events.CodeChanged {
			w.T.Errorf("refused with %+v", r.Error)
		}
		if _, asks := asksOf(w, call); len(asks) != 2 {
			w.T.Errorf("%d asks, want 2", len(asks))
		}
	})
}

// TestB8_24_CarriedAndRepeated keeps an ask open for long, with a vote: it is carried and repeated by turns, and each form of
// it says since when it is open and has the vote inside. (The bench's log keeps everything; only the gate thinks it does not.)
func TestB8_24_CarriedAndRepeated(t *testing.T) {
	rule := events.Rule{Quorum: 2, Remind: events.Duration(7 * time.Minute), Expires: events.Duration(time.Hour)}
	o := sim.Options{Gate: func(c *approval.Config) { c.Retention = 6 * time.Minute }}
	in(t, ruled(o, rule), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		time.Sleep(3 * time.Minute) // fake: carried without votes
		sendAs(w, "alice", approvalOf(ask))
		time.Sleep(23 * time.Minute) // fake
		facts, asks := asksOf(w, call)
		kinds := map[bool]int{}
		for i, f := range facts {
			kinds[f.Carried]++
			if same := string(f.Payload) == string(facts[0].Payload); i == 1 && (!f.Carried || !same) {
				w.T.Errorf("the first copy: carried %v, unchanged %v", f.Carried, same)
			}
		}
		if kinds[true] < 4 || kinds[false] != 4 || voters(asks[len(asks)-1].Quorum.Votes) != "alice" {
			w.T.Errorf("%d carried copies, %d asks, the last with votes of %q", kinds[true], kinds[false], voters(asks[len(asks)-1].Quorum.Votes))
		}
		sendAs(w, "bob", approvalOf(ask))
		if a := answerOf(w, call); voters(a.Votes) != "alice bob" {
			w.T.Errorf("the answer: %+v", a)
		}
		w.AwaitEnd(run, soon)
		time.Sleep(2 * time.Second) // fake
		if r := w.Check(true); r["carry:votes"] == 0 || r["ask:reminded"] != 3 {
			w.T.Errorf("the log holds %v", r)
		}
	})
}

// TestRepeatHabits holds the handler of timers to its habits where it repeats an ask.
func TestRepeatHabits(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]events.Rule{
		"escalate": {Approvers: []string{"user:clerk"}, Escalate: []events.Escalate{after(30*time.Second, "user:bob")}, Expires: events.Duration(soon)},
		"deadline": {Approvers: []string{"user:clerk"}, OnExpiry: "escalate", Escalate: []events.Escalate{after(time.Hour, "user:bob")}, Expires: events.Duration(30 * time.Second)},
		"remind":   {Remind: events.Duration(30 * time.Second), Quorum: 2, Expires: events.Duration(soon)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sim.Habit{
				Options: func() sim.Options { return ruled(lateGate(), rule)(t) },
				Before:  []string{planner.Name, approval.Name, toolexecutor.Name}, Handler: handler(approval.HandleTimer),
				Bring: func(w *sim.World) jetstream.Delivery {
					call := refundOf(w.Request("go"))
					w.AwaitAsk(call, soon)
					time.Sleep(31 * time.Second) // fake
					return jetstream.Delivery{Event: timerOf(w, call), Attempt: 1}
				},
			}.Exercise(t)
		})
	}
}

// lateGate holds every gate of the world back for a while before it repeats an ask, so that others do it.
func lateGate() sim.Options {
	asks := map[*sim.Copy]int{}
	var mu sync.Mutex
	return sim.Options{Point: func(name string, c *sim.Copy) {
		if name != "ask.before" {
			return
		}
		mu.Lock()
		asks[c]++
		repeats := asks[c] > 1
		mu.Unlock()
		if repeats {
			time.Sleep(5 * time.Second) // fake
		}
	}}
}

// TestB10_9_EntryFollowsRepeatedAsks takes runs with votes, stages and reminders to their ends: no entry is left, and what
// was set for them does nothing more.
func TestB10_9_EntryFollowsRepeatedAsks(t *testing.T) {
	rule := events.Rule{
		Quorum: 2, Remind: events.Duration(20 * time.Second), Expires: events.Duration(5 * time.Minute),
		Approvers: []string{"user:alice"}, Escalate: []events.Escalate{after(30*time.Second, "user:bob")},
	}
	in(t, ruled(sim.Options{}, rule), func(w *sim.World) {
		w.StartAll()
		w.Start(approval.Name)
		var runs []string
		for range 20 {
			runs = append(runs, w.Request("go"))
		}
		for i, run := range runs {
			ask := w.AwaitAsk(refundOf(run), soon)
			sendAs(w, "alice", approvalOf(ask))
			if i%3 == 1 {
				w.Cancel("bob", run)
			}
		}
		time.Sleep(45 * time.Second) // fake
		for i, run := range runs {
			if i%3 == 0 {
				sendAs(w, "bob", approvalOf(w.AwaitAsk(refundOf(run), soon)))
			}
		}
		time.Sleep(6 * time.Minute) // fake
		for _, run := range runs {
			w.AwaitEnd(run, soon)
		}
		w.Check(true)
		if open := listed(w); len(open) != 0 {
			w.T.Errorf("entries are left: %+v", open)
		}
		keys, err := w.Conn().ListSuspended(w.T.Context(), "", "", "")
		must(w, err)
		if len(keys) != 0 {
			w.T.Errorf("%d keys are left", len(keys))
		}
	})
}

package approval

import (
	"slices"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
)

// TestB8_25_B8_26_WhatIsDue asks the pure part what an ask is at a time: which stages have begun, until when it waits and
// what comes then; and which timers are set for what comes next.
func TestB8_25_B8_26_WhatIsDue(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) time.Time { return began.Add(d) }
	hour := time.Hour
	stage := func(after time.Duration, who, onExpiry string) events.Stage {
		return events.Stage{At: at(after), To: []string{who}, OnExpiry: onExpiry}
	}
	decline := events.CallHeld{
		ToolCallID: "R=1-1", AskedAt: began, ExpiresAt: at(4 * hour), OnExpiry: events.OnExpiryDecline, Approvers: []string{"user:a"},
		Escalate: []events.Stage{stage(1*hour, "user:b", ""), stage(2*hour, "user:c", events.OnExpiryFail)},
	}
	early := decline
	early.OnExpiry, early.Wait, early.ExpiresAt = events.OnExpiryEscalate, events.Duration(3*hour), at(3*hour)
	early.Escalate = []events.Stage{stage(1*hour, "user:b", ""), stage(90*hour, "user:c", ""), stage(91*hour, "user:d", events.OnExpiryFail)}
	anybody := decline
	anybody.Approvers = nil
	for name, test := range map[string]struct {
		ask       events.CallHeld
		now       time.Duration
		approvers []string
		to        []string
		expires   time.Duration
		onExpiry  string
		timers    []time.Duration // deadline, stage
	}{
		"nothing yet":        {decline, hour - 1, []string{"user:a"}, nil, 4 * hour, "decline", []time.Duration{4 * hour, hour}},
		"first stage":        {decline, hour, []string{"user:a", "user:b"}, []string{"user:b"}, 4 * hour, "decline", []time.Duration{4 * hour, 2 * hour}},
		"both at once":       {decline, 3 * hour, []string{"user:a", "user:b", "user:c"}, []string{"user:b", "user:c"}, 4 * hour, "fail", []time.Duration{4 * hour}},
		"everybody may":      {anybody, hour, nil, []string{"user:b"}, 4 * hour, "decline", []time.Duration{4 * hour, 2 * hour}},
		"after the deadline": {decline, 5 * hour, []string{"user:a", "user:b", "user:c"}, []string{"user:b", "user:c"}, 4 * hour, "fail", []time.Duration{4 * hour}},
		"stage before the deadline": {
			early, 2 * hour,
			[]string{"user:a", "user:b"},
			[]string{"user:b"},
			3 * hour, "escalate",
			[]time.Duration{3 * hour},
		},
		"the deadline escalates": {
			early, 3 * hour,
			[]string{"user:a", "user:b", "user:c"},
			[]string{"user:b", "user:c"},
			6 * hour, "escalate",
			[]time.Duration{6 * hour},
		},
		"and again": {
			early, 6 * hour,
			[]string{"user:a", "user:b", "user:c", "user:d"},
			[]string{"user:b", "user:c", "user:d"},
			9 * hour, "fail",
			[]time.Duration{9 * hour},
		},
		"nobody was there for long": {
			early, 50 * hour,
			[]string{"user:a", "user:b", "user:c", "user:d"},
			[]string{"user:b", "user:c", "user:d"},
			53 * hour, "fail",
			[]time.Duration{53 * hour},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := slices.Clone(test.ask.Escalate)
			got, changed := due(test.ask, at(test.now))
			if changed != (len(test.to) > 0) {
				t.Errorf("changed: %v", changed)
			}
			if !slices.Equal(got.Approvers, test.approvers) || !slices.Equal(got.EscalatedTo, test.to) || got.OnExpiry != test.onExpiry {
				t.Errorf("approvers %q, escalated to %q, then %s", got.Approvers, got.EscalatedTo, got.OnExpiry)
			}
			if !got.ExpiresAt.Equal(at(test.expires)) {
				t.Errorf("expires +%v, want +%v", got.ExpiresAt.Sub(began), test.expires)
			}
			var set []time.Duration
			for _, timer := range timers(got) {
				set = append(set, timer.At.Sub(began))
			}
			if !slices.Equal(set, test.timers) {
				t.Errorf("timers %v, want %v", set, test.timers)
			}
			if _, again := due(got, at(test.now)); again {
				t.Error("what is due is due again")
			}
			if !slices.EqualFunc(before, test.ask.Escalate, func(a, b events.Stage) bool { return a.At.Equal(b.At) }) {
				t.Error("the ask before was changed")
			}
		})
	}
}

// TestB8_24_ReminderNumbers counts reminders by the clock.
func TestB8_24_ReminderNumbers(t *testing.T) {
	t.Parallel()
	ask := events.CallHeld{ToolCallID: "R=1-1", AskedAt: began, ExpiresAt: began.Add(10 * time.Hour), Remind: events.Duration(time.Minute)}
	for now, want := range map[time.Duration]int{
		time.Minute - 1: 0, time.Minute: 1, 90 * time.Second: 1, 5 * time.Minute: 5, 100 * time.Minute: 100,
		5 * time.Hour: 100, 10 * time.Hour: 0, 11 * time.Hour: 0,
	} {
		got, changed := due(ask, began.Add(now))
		if got.Reminders != want || changed != (want > 0) {
			t.Errorf("after %v: reminder %d, changed: %v, want %d", now, got.Reminders, changed, want)
		}
	}
	ask.Reminders = maxReminders
	if all := timers(ask); len(all) != 1 {
		t.Errorf("after the last reminder %d timers are set", len(all))
	}
	ask.Reminders, ask.ExpiresAt = 3, began.Add(4*time.Minute)
	if all := timers(ask); len(all) != 1 {
		t.Errorf("a reminder is set for the deadline: %+v", all)
	}
}

// TestB10_9_EntryKeepsTheNewest joins what an entry lists with asks that a late writer brings.
func TestB10_9_EntryKeepsTheNewest(t *testing.T) {
	t.Parallel()
	vote := func(who string) events.VoteBrief {
		return events.VoteBrief{Principal: who, Decision: events.Approve, At: began}
	}
	late := &events.OutcomeDelayed{}
	first := events.OpenAsk{AskedAt: began, ExpiresAt: began.Add(time.Hour), Quorum: &events.Quorum{Need: 2}}
	again := first
	again.Reminders, again.EscalatedTo, again.Late = 2, []string{"user:b"}, late
	again.Quorum = &events.Quorum{Need: 2, Votes: []events.VoteBrief{vote("alice")}}
	voted := first
	voted.Quorum = &events.Quorum{Need: 2, Votes: []events.VoteBrief{vote("bob")}}
	for _, order := range [][2]events.OpenAsk{{again, voted}, {voted, again}} {
		got := newer(order[0], order[1])
		if got.Reminders != 2 || len(got.EscalatedTo) != 1 || got.Late != late || !got.Quorum.Has("alice") || !got.Quorum.Has("bob") {
			t.Errorf("joined: %+v", got)
		}
	}
	other := first
	other.AskedAt = began.Add(time.Second)
	if got := newer(again, other); !got.AskedAt.Equal(other.AskedAt) || got.Reminders != 0 || !got.Quorum.Has("alice") {
		t.Errorf("an ask that another gate has stored: %+v", got)
	}
}

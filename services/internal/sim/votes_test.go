package sim

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/client"
)

// holding is a rule set of one rule, which holds a tool.
func holding(tool string, r events.Rule) map[string]events.RuleSet {
	r.Name, r.Tools, r.Action = "severe", []string{tool}, events.RuleAsk
	return map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{r}}}
}

// severe are the rules of every other seed: the refund needs two of those who may decide, which are more and more, and they
// are reminded.
func severe(seed int64) map[string]events.RuleSet {
	if seed%2 == 0 {
		return nil
	}
	return holding("b_refund", events.Rule{
		Approvers: []string{"user:alice", "user:bob"}, Quorum: 2, Remind: events.Duration(25 * time.Second),
		Expires: events.Duration(time.Minute), OnExpiry: events.OnExpiryEscalate, Escalate: []events.Escalate{
			{After: events.Duration(15 * time.Second), To: []string{"user:carol"}},
			{After: events.Duration(time.Hour), To: []string{"user:dora"}, OnExpiry: events.OnExpiryDecline},
		},
	})
}

// decider is one of those who take part; not all of them may decide everything.
func (c *chaos) decider(ask events.CallHeld) string {
	if ask.Quorum == nil {
		return "alice"
	}
	return []string{"alice", "bob", "carol", "dora"}[c.pick(4)]
}

// fourEyes is the support story with a refund that needs two of three.
func fourEyes() Options {
	return Options{Rules: holding("issue_refund", events.Rule{
		Quorum: 2, Approvers: []string{"user:alice", "user:bob", "user:carol"},
	})}
}

// voted approves a call by two people, of whom one says so twice. In doubt, it is declined by one.
func (w *World) voted() string {
	run := w.Request("Please refund order 42")
	call := refundOf(run)
	ask := w.AwaitAsk(call, patience)
	for _, who := range []string{"alice", "alice", "carol"} {
		w.Decide(who, events.DecisionRequested{
			Decision: events.Approve, ToolCallID: call.String(), Fingerprint: ask.Fingerprint, Reason: "seen",
		})
		w.Await(w.Conn().Namespace().Beside(call, events.KindVote, who), patience)
	}
	w.endOrDoubt(run, call)
	answer, err := events.Data[events.CallAnswered](w.Await(w.Conn().Namespace().Call(call, events.KindAnswer), patience))
	w.must(err)
	if answer.Round == 0 && len(answer.Votes) != 2 {
		w.T.Errorf("the answer has the votes %+v", answer.Votes)
	}
	return run
}

// insistent is the support story with a refund that people are reminded of, and that is escalated at its deadline.
func insistent() Options {
	return Options{Rules: holding("issue_refund", events.Rule{
		Approvers: []string{"user:alice"}, Remind: events.Duration(2 * time.Minute), Expires: events.Duration(5 * time.Minute),
		OnExpiry: events.OnExpiryEscalate, Escalate: []events.Escalate{
			{After: events.Duration(3 * time.Minute), To: []string{"user:bob"}},
			{After: events.Duration(time.Hour), To: []string{"user:carol"}, OnExpiry: events.OnExpiryDecline},
		},
	})}
}

// escalated waits until a call was escalated twice, the second time by its deadline, and lets the last one decide who may.
func (w *World) escalated() string {
	run := w.Request("Please refund order 42")
	call := refundOf(run)
	ask := w.AwaitAsk(call, patience)
	for end := time.Now().Add(2 * patience); len(ask.Escalate) > 0 && time.Now().Before(end); w.pause(time.Second) {
		ask = w.AwaitAsk(call, patience)
	}
	if len(ask.EscalatedTo) != 2 || ask.Reminders == 0 {
		w.T.Errorf("escalated to %q, %d reminders", ask.EscalatedTo, ask.Reminders)
	}
	w.Decide("carol", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String(), Fingerprint: ask.Fingerprint})
	w.endOrDoubt(run, call)
	return run
}

// TestB8_23_B8_16_RacesOfVoters is TestRaces where a call needs three: the answer has three votes or more, each of them
// was taken, and whoever else decided is told.
func TestB8_23_B8_16_RacesOfVoters(t *testing.T) {
	t.Parallel()
	tally := &tally{}
	const share = 5
	n := max(*rounds/share, 1)
	t.Run("one node", func(t *testing.T) {
		for from := 0; from < n; from += racers {
			t.Run(fmt.Sprint(from+1), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					o := Options{Rules: holding("issue_refund", events.Rule{Quorum: 3})}
					newMeet(t, from, tally, o).race(min(racers, n-from))
				})
			})
		}
	})
	t.Logf("winners: %v", tally.wins)
}

// hearVote notes that a decision was taken as one of several.
func (m *meet) hearVote(e events.Event) {
	v, err := events.Data[events.VoteCast](e)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken == nil {
		m.taken = map[string]bool{}
	}
	m.taken[v.EventID] = true
}

// voted reports whether a decision was taken as a vote: then it is part of the answer and was not refused, or its sender
// was told so before another decision won.
func (r *meeting) voted(m move, won events.Event, counted *events.CallAnswered) bool {
	fact, err := r.w.Conn().Fact(r.w.T.Context(), r.w.Conn().Namespace().Beside(r.call, events.KindVote, m.who))
	if errors.Is(err, jetstream.ErrNotFound) {
		return false
	}
	r.w.must(err)
	if (&events.Quorum{Votes: counted.Votes}).Has(m.who) {
		if told := r.told(m.id); len(told) > 0 {
			r.w.T.Errorf("%s: the vote of %s counted, and was refused: %v", r.call, m.who, told)
		}
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return fact.Seq < won.Seq && r.taken[m.id]
}

// TestB8_23_RestrictedVoters lets two people approve a call from an account of their own, where they may read nothing: the
// first is told that the call needs one more. Services work with their rights and no more, also where they repeat asks.
func TestB8_23_RestrictedVoters(t *testing.T) {
	t.Parallel()
	o, alice := accounts(t, 10*time.Second)
	carol, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	o.People["carol"] = events.PrincipalDef{ID: "carol", Auth: events.AuthKey, Key: carol.Public}
	o.Rules = holding("issue_refund", events.Rule{
		Quorum: 2, Approvers: []string{"user:alice", "user:carol"}, Remind: events.Duration(2 * time.Second),
		Escalate: []events.Escalate{{After: events.Duration(3 * time.Second), To: []string{"user:dora"}}},
	})
	w := New(t, o)
	copies := w.StartAll()
	bob := w.person(client.Config{Principal: "bob"})
	runs := map[string]events.CallHeld{}
	for _, story := range []string{"approve", "expire"} {
		run, err := bob.Start(t.Context(), client.Request{Agent: "support", Prompt: "refund order 42"})
		w.must(err)
		runs[story] = w.AwaitAsk(refundOf(run.ID), 30*time.Second)
	}
	for _, person := range []struct {
		who  string
		key  events.Key
		want string
	}{{"alice", alice, client.StatePending}, {"carol", carol, client.StateReleased}} {
		c := w.person(client.Config{Principal: person.who, Key: &person.key})
		ask := runs["approve"]
		got, err := c.Approve(t.Context(), ask.ToolCallID, &client.DecisionOptions{Fingerprint: ask.Fingerprint})
		if err != nil || got.State != person.want {
			t.Errorf("%s: outcome = %+v, %v", person.who, got, err)
		}
	}
	for _, ask := range runs {
		if end := w.AwaitEnd(ask.RunID, time.Minute); end.Outcome != events.RunCompleted {
			t.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
		}
	}
	if r := w.Check(false); r["ask:escalated"] == 0 || r["ask:reminded"] == 0 || r["answer:votes"] != 1 {
		t.Errorf("the log holds %v", r)
	}
	for _, c := range copies {
		for _, v := range c.Conn.Violations() {
			t.Errorf("%s may not %s %s", c.Service, v.Operation, v.Subject)
		}
	}
}

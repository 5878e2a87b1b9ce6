package approval_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// ruled is a world in which a rule holds the tool pay, which is called once a run.
func ruled(o sim.Options, r events.Rule) func(*testing.T) sim.Options {
	r.Name, r.Tools, r.Action = "money", []string{"pay"}, events.RuleAsk
	o.Rules = map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{r}}}
	if o.Tools == nil {
		o.Tools = []agent.Tool{tool("pay", done, agent.ToolOptions{})}
	}
	return func(*testing.T) sim.Options { return o }
}

// approvalOf is an approval that names what it approves, as a vote must.
func approvalOf(ask events.CallHeld) events.DecisionRequested {
	return events.DecisionRequested{
		Decision: events.Approve, ToolCallID: ask.ToolCallID, Fingerprint: ask.Fingerprint, Reason: "seen",
	}
}

// sendAs sends a decision and is its delivery.
func sendAs(w *sim.World, who string, d events.DecisionRequested) jetstream.Delivery {
	w.T.Helper()
	call, err := events.ParseCallID(d.ToolCallID)
	must(w, err)
	return w.Posted(w.Conn().Namespace().InDecide(who, call), call.Run, who, d)
}

func voteOf(w *sim.World, call events.CallID, who string) events.VoteCast {
	w.T.Helper()
	v, err := events.Data[events.VoteCast](w.Await(w.Conn().Namespace().Beside(call, events.KindVote, who), soon))
	must(w, err)
	return v
}

func answerOf(w *sim.World, call events.CallID) events.CallAnswered {
	w.T.Helper()
	a, err := events.Data[events.CallAnswered](w.Await(w.Conn().Namespace().Call(call, events.KindAnswer), soon))
	must(w, err)
	return a
}

// headOf is the last fact of a call's chain.
func headOf(w *sim.World, call events.CallID) events.Event {
	w.T.Helper()
	e, err := w.Conn().Last(w.T.Context(), w.Conn().Namespace().Call(call, events.KindAsk).Chain())
	must(w, err)
	return e
}

func voters(votes []events.VoteBrief) string {
	var names []string
	for _, v := range votes {
		names = append(names, v.Principal)
	}
	return strings.Join(names, " ")
}

// notesOf collects what a principal is told.
func notesOf(w *sim.World, who string) func() []events.Event {
	w.T.Helper()
	var mu sync.Mutex
	var all []events.Event
	stop, err := w.Conn().Notes(w.T.Context(), who, func(e events.Event) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, e)
	})
	must(w, err)
	w.T.Cleanup(stop)
	return func() []events.Event {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// TestB8_23_QuorumOfTwo approves a call that needs two: the first approval is a vote, which the list shows and its sender
// is told of; the same person's next one counts once; the second person's lets the call run, once.
func TestB8_23_QuorumOfTwo(t *testing.T) {
	in(t, ruled(sim.Options{}, events.Rule{Quorum: 2}), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		if ask.Quorum == nil || ask.Quorum.Need != 2 || !ask.NoGrant {
			w.T.Fatalf("the ask: %+v", ask)
		}
		heard := notesOf(w, "alice")
		first := sendAs(w, "alice", approvalOf(ask))
		if v := voteOf(w, call, "alice"); v.EventID != first.Event.ID || v.Reason != "seen" || v.AuthType != events.AuthSubject {
			w.T.Errorf("the vote: %+v", v)
		}
		again := sendAs(w, "alice", approvalOf(ask))
		time.Sleep(time.Second) // fake
		if last := headOf(w, call); last.Place.Kind != events.KindAsk {
			w.T.Fatalf("after two approvals of one person the call stands at %s", last.Place.Kind)
		}
		if asks := listed(w); len(asks) != 1 || asks[0].Quorum.Need != 2 || voters(asks[0].Quorum.Votes) != "alice" {
			w.T.Errorf("the entry lists %+v", asks)
		}
		var told []string
		for _, e := range heard() {
			v, err := events.Data[events.VoteCast](e)
			must(w, err)
			if e.Type != events.TypeOf[events.VoteCast]() || v.Quorum.Need != 2 || voters(v.Quorum.Votes) != "alice" {
				w.T.Errorf("alice is told %s %s", e.Type, e.Data)
			}
			told = append(told, v.EventID)
		}
		if !slices.Equal(told, []string{first.Event.ID, again.Event.ID}) {
			w.T.Errorf("alice is told of %v", told)
		}
		second := sendAs(w, "bob", approvalOf(ask))
		if a := answerOf(w, call); a.Principal != "bob" || a.EventID != second.Event.ID || voters(a.Votes) != "alice bob" || a.Decision != events.Approve {
			w.T.Errorf("the answer: %+v", a)
		}
		w.AwaitEnd(run, soon)
		time.Sleep(2 * time.Second) // fake
		if r := w.Check(true); r["vote"] != 2 || r["answer"] != 1 || r["claim"] != 1 || r["refused"] != 0 {
			w.T.Errorf("the log holds %v", r)
		}
		if asks := listed(w); len(asks) != 0 {
			w.T.Errorf("the entry still lists %+v", asks)
		}
	})
}

// TestB8_23_OnePersonIsEnoughToStop takes calls that need two approvals to an end by one person.
func TestB8_23_OnePersonIsEnoughToStop(t *testing.T) {
	for name, d := range map[string]events.DecisionRequested{
		"decline": {Decision: events.Decline},
		"respond": {Decision: events.Respond, Result: json.RawMessage(`"by hand"`)},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, ruled(sim.Options{}, events.Rule{Quorum: 2}), func(w *sim.World) {
				w.StartAll()
				run := w.Request("go")
				call := refundOf(run)
				ask := w.AwaitAsk(call, soon)
				sendAs(w, "alice", approvalOf(ask))
				voteOf(w, call, "alice")
				d.ToolCallID = call.String()
				sendAs(w, "carol", d)
				if a := answerOf(w, call); a.Decision != d.Decision || a.Principal != "carol" || len(a.Votes) != 0 {
					w.T.Errorf("the answer: %+v", a)
				}
				late := sendAs(w, "bob", approvalOf(ask))
				if r := refusal(w, call, late.Event.ID); r.Code != events.CodeAlreadyDecided || r.Answer.Principal != "carol" {
					w.T.Errorf("a vote that comes too late is refused with %+v", r.Error)
				}
				w.AwaitEnd(run, soon)
				time.Sleep(2 * time.Second) // fake
				if r := w.Check(true); r["go"] != 0 || r["vote"] != 1 {
					w.T.Errorf("the log holds %v", r)
				}
			})
		})
	}
}

// TestB8_23_B8_10_EditBeginsANewRound edits a call that needs two approvals and has one: what people have said of the old
// arguments counts for nothing in the new round.
func TestB8_23_B8_10_EditBeginsANewRound(t *testing.T) {
	in(t, ruled(sim.Options{}, events.Rule{Quorum: 2}), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		sendAs(w, "alice", approvalOf(ask))
		voteOf(w, call, "alice")
		sendAs(w, "carol", events.DecisionRequested{
			Decision: events.Edit, ToolCallID: call.String(), Fingerprint: ask.Fingerprint, Args: json.RawMessage(`{"orderId":"43"}`),
		})
		next := askOf(w, call, 1)
		if next.Quorum == nil || len(next.Quorum.Votes) != 0 {
			w.T.Fatalf("the next round: %+v", next.Quorum)
		}
		old := sendAs(w, "bob", approvalOf(ask))
		if r := refusal(w, call, old.Event.ID); r.Code != events.CodeChanged || r.Ask == nil {
			w.T.Errorf("a vote for the old round is refused with %+v", r.Error)
		}
		sendAs(w, "bob", approvalOf(next))
		time.Sleep(time.Second) // fake
		if last := headOf(w, call); last.Place.Kind != events.KindAsk {
			w.T.Fatalf("after one approval of this round the call stands at %s", last.Place.Kind)
		}
		sendAs(w, "alice", approvalOf(next)) // follows her vote of the round before
		if a := answerOf(w, call); a.Round == 1 && voters(a.Votes) != "bob alice" {
			w.T.Errorf("the answer: %+v", a)
		}
		w.AwaitEnd(run, soon)
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

// TestB8_23_B8_13_VotesThatDoNotCount sends votes of those who may not decide, without a fingerprint and with a grant.
func TestB8_23_B8_13_VotesThatDoNotCount(t *testing.T) {
	rule := events.Rule{Quorum: 2, Approvers: []string{"user:alice", "user:carol"}, NotRequester: true}
	in(t, ruled(sim.Options{}, rule), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		bare, granting := approvalOf(ask), approvalOf(ask)
		bare.Fingerprint, granting.Grant = "", &events.GrantTerms{Scope: "run", For: events.Duration(time.Hour)}
		for _, test := range []struct {
			who  string
			d    events.DecisionRequested
			want events.Code
		}{
			{"bob", approvalOf(ask), events.CodeForbidden},
			{"mallory", approvalOf(ask), events.CodeForbidden},
			{"alice", bare, events.CodeChanged},
			{"alice", granting, events.CodeInvalidRequest},
		} {
			sent := sendAs(w, test.who, test.d)
			r := refusal(w, call, sent.Event.ID)
			if r.Code != test.want || test.want == events.CodeForbidden && r.Rule != "money" {
				w.T.Errorf("%s is refused with %+v, want %s", test.who, r.Error, test.want)
			}
		}
		for _, who := range []string{"alice", "carol"} {
			sendAs(w, who, approvalOf(ask))
		}
		w.AwaitEnd(run, soon)
		time.Sleep(2 * time.Second) // fake
		if r := w.Check(true); r["vote"] != 2 || r["refused"] != 4 {
			w.T.Errorf("the log holds %v", r)
		}
	})
}

// TestB8_23_B8_16_B8_17_VotersAtOnce lets the last two of three voters meet, through two gates, and a third who declines:
// there is one answer. Who is part of it is not refused; everybody else is told, or had a vote that was taken before.
func TestB8_23_B8_16_B8_17_VotersAtOnce(t *testing.T) {
	t.Parallel()
	for _, declines := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := sim.Options{Point: func(name string, _ *sim.Copy) {
				if name == "answer.before" || name == "vote.before" {
					time.Sleep(100 * time.Millisecond) // fake: everybody has read before anybody appends
				}
			}}
			w := sim.New(t, ruled(o, events.Rule{Quorum: 3})(t))
			w.StartAll()
			w.Start(approval.Name)
			for range 20 {
				votersAtOnce(w, declines)
			}
			time.Sleep(2 * time.Second) // fake
			w.Check(true)
		})
	}
}

func votersAtOnce(w *sim.World, declines bool) {
	w.T.Helper()
	run := w.Request("go")
	call := refundOf(run)
	ask := w.AwaitAsk(call, soon)
	sendAs(w, "alice", approvalOf(ask))
	voteOf(w, call, "alice")
	sent := map[string]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, who := range []string{"bob", "carol", "dora"} {
		d := approvalOf(ask)
		if who == "dora" && declines {
			d.Decision = events.Decline
		}
		wg.Go(func() {
			id := sendAs(w, who, d).Event.ID
			mu.Lock()
			defer mu.Unlock()
			sent[who] = id
		})
	}
	wg.Wait()
	a := answerOf(w, call)
	w.AwaitEnd(run, soon)
	time.Sleep(time.Second) // fake
	ns := w.Conn().Namespace()
	answered := w.Await(ns.Call(call, events.KindAnswer), soon)
	for who, id := range sent {
		part := a.EventID == id || (&events.Quorum{Votes: a.Votes}).Has(who)
		vote, err := w.Conn().Fact(w.T.Context(), ns.Beside(call, events.KindVote, who))
		taken := err == nil && vote.Seq < answered.Seq && len(a.Votes) == 0
		_, err = w.Conn().Fact(w.T.Context(), ns.Beside(call, events.KindRefused, id))
		if refused := err == nil; refused && part || !refused && !part && !taken {
			w.T.Errorf("answer %s by %s with %q: %s is refused: %v", a.Decision, a.Principal, voters(a.Votes), who, refused)
		}
	}
}

// TestB8_23_CompletedByWhoeverFindsIt stops the gate after it has stored the last vote that was needed. The bus never
// delivers the decision again; the sweeper finds the votes and answers in the name of the last voter.
func TestB8_23_CompletedByWhoeverFindsIt(t *testing.T) {
	in(t, ruled(sim.Options{}, events.Rule{Quorum: 2}), func(w *sim.World) {
		copies := w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		sendAs(w, "alice", approvalOf(ask))
		voteOf(w, call, "alice")
		time.Sleep(time.Second) // fake
		copies[1].Kill()
		d := lastVote(w, "bob", ask)
		w.Start(approval.Name)
		if a := answerOf(w, call); a.Principal != "bob" || a.EventID != d.Event.ID || voters(a.Votes) != "alice bob" || a.AuthType != events.AuthSubject {
			w.T.Errorf("the answer: %+v", a)
		}
		w.AwaitEnd(run, soon)
		must(w, handler(approval.HandleRequest)(w, w.Dial("again", nil))(w.T.Context(), d))
		time.Sleep(2 * time.Second) // fake
		if r := w.Check(true); r["refused"] != 0 {
			w.T.Errorf("a decision that counted is refused when it comes again: %v", r)
		}
	})
}

// decided is a decision as it would be delivered; the inbox does not hold it.
func decided(w *sim.World, who string, d events.DecisionRequested) jetstream.Delivery {
	w.T.Helper()
	call, err := events.ParseCallID(d.ToolCallID)
	must(w, err)
	subject := w.Conn().Namespace().InDecide(who, call)
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}
	e, err := o.RequestBy(subject, call.Run, who, d)
	must(w, err)
	e.Seq, e.Stored = 4711, time.Now()
	return jetstream.Delivery{Event: e, Subject: subject, Attempt: 1}
}

// TestB8_23_InTimeThoughNobodyWasThere stores the last vote that is needed before the deadline, and no gate lives after
// that. The first that comes back, when the deadline is long over, counts votes before it looks at the clock.
func TestB8_23_InTimeThoughNobodyWasThere(t *testing.T) {
	in(t, ruled(sim.Options{}, events.Rule{Quorum: 2, Expires: events.Duration(soon)}), func(w *sim.World) {
		copies := w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		sendAs(w, "alice", approvalOf(ask))
		voteOf(w, call, "alice")
		time.Sleep(time.Second) // fake
		copies[1].Kill()
		lastVote(w, "bob", ask)
		time.Sleep(10 * soon) // fake
		w.Start(approval.Name)
		if a := answerOf(w, call); a.Decision != events.Approve || voters(a.Votes) != "alice bob" {
			w.T.Errorf("the answer: %+v", a)
		}
		w.AwaitEnd(run, soon)
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

// lastVote stores a vote by a gate that is stopped before it answers; the bus does not deliver the decision again.
func lastVote(w *sim.World, who string, ask events.CallHeld) jetstream.Delivery {
	w.T.Helper()
	stopped := errors.New("stopped")
	conn := w.Dial("stopped", func(e events.Event) error {
		if e.Place.Kind == events.KindAnswer {
			return stopped
		}
		return nil
	})
	d := decided(w, who, approvalOf(ask))
	if err := handler(approval.HandleRequest)(w, conn)(w.T.Context(), d); !errors.Is(err, stopped) {
		w.T.Fatalf("the handler says %v", err)
	}
	return d
}

// TestB8_23_B8_22_WhoMayNoLonger takes a voter out of the group that may decide, before there are votes enough: the vote
// does not count any more.
func TestB8_23_B8_22_WhoMayNoLonger(t *testing.T) {
	people := map[string]events.PrincipalDef{}
	for _, who := range []string{"alice", "bob", "carol"} {
		people[who] = events.PrincipalDef{ID: who, Auth: events.AuthSubject, Groups: []string{"finance"}}
	}
	in(t, ruled(sim.Options{People: people}, events.Rule{Quorum: 2, Approvers: []string{"group:finance"}}), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		sendAs(w, "alice", approvalOf(ask))
		voteOf(w, call, "alice")
		left, err := events.Marshal(events.PrincipalDef{ID: "alice", Auth: events.AuthSubject})
		must(w, err)
		must(w, w.Conn().PutNamed(w.T.Context(), events.RegistryPrincipal, "alice", left))
		time.Sleep(2 * time.Second) // fake
		sendAs(w, "bob", approvalOf(ask))
		voteOf(w, call, "bob")
		time.Sleep(time.Second) // fake
		completes(w, ask, "carol", "bob carol")
	})
}

// completes demands that an ask has one vote too few, lets who approve it, and demands whose votes count.
func completes(w *sim.World, ask events.CallHeld, who, want string) {
	w.T.Helper()
	call, err := events.ParseCallID(ask.ToolCallID)
	must(w, err)
	if last := headOf(w, call); last.Place.Kind != events.KindAsk {
		w.T.Fatalf("with one vote that counts the call stands at %s", last.Place.Kind)
	}
	sendAs(w, who, approvalOf(ask))
	if a := answerOf(w, call); voters(a.Votes) != want {
		w.T.Errorf("the answer: %+v", a)
	}
	w.AwaitEnd(ask.RunID, soon)
}

// TestB8_23_B8_12_RetryByQuorum lets a call in doubt run again on the word of two.
func TestB8_23_B8_12_RetryByQuorum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{make(chan struct{}, 4), make(chan struct{})}
		o := sim.Options{Tools: []agent.Tool{tool("pay", s.run, agent.ToolOptions{})}}
		w := sim.New(t, ruled(o, events.Rule{Quorum: 2})(t))
		executor := w.StartAll()[2]
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		for _, who := range []string{"alice", "bob"} {
			sendAs(w, who, approvalOf(ask))
		}
		<-s.entered
		executor.Kill()
		w.Start(toolexecutor.Name)
		doubt := askOf(w, call, 1)
		if doubt.Kind != events.AskInDoubt || doubt.Quorum == nil || doubt.Reason.Rule != "money" {
			t.Fatalf("the ask in doubt: %+v", doubt)
		}
		d := approvalOf(doubt)
		d.Decision = events.Retry
		sendAs(w, "alice", d)
		time.Sleep(time.Second) // fake
		if last := headOf(w, call); last.Place.Kind != events.KindAsk {
			t.Fatalf("after one retry the call stands at %s", last.Place.Kind)
		}
		close(s.leave)
		sendAs(w, "bob", d)
		w.AwaitEnd(run, soon)
		if a := answerOf(w, call); a.Decision != events.Retry || a.Round != 1 || voters(a.Votes) != "alice bob" {
			t.Errorf("the answer: %+v", a)
		}
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

// TestB8_23_B8_24_VotesOutliveTheLog waits with half of the votes until they have aged out: the ask that is carried has
// them inside, signed, and the second vote completes it. In real time, because servers judge the age of messages by a
// clock that no bubble has.
func TestB8_23_B8_24_VotesOutliveTheLog(t *testing.T) {
	t.Parallel()
	const retention = shortRetention
	w := sim.New(t, ruled(sim.Options{
		Settings: jetstream.Settings{Retention: retention},
		Gate: func(c *approval.Config) {
			c.Retention, c.Sweep, c.SweepAge = retention, 100*time.Millisecond, 100*time.Millisecond
		},
		Plan: func(c *planner.Config) {
			c.Retention, c.Sweep = retention, 100*time.Millisecond
		},
	}, events.Rule{Quorum: 2})(t))
	w.StartAll()
	run := w.Request("go")
	call := refundOf(run)
	ask := w.AwaitAsk(call, soon)
	sendAs(w, "alice", approvalOf(ask))
	voteOf(w, call, "alice")
	awaitGone(w, w.Conn().Namespace().Beside(call, events.KindVote, "alice"))
	carried := headOf(w, call)
	again, err := events.Data[events.CallHeld](carried)
	must(w, err)
	if !carried.Carried || w.GateKeys().VerifyFact(carried) != nil || voters(again.Quorum.Votes) != "alice" ||
		again.Fingerprint != ask.Fingerprint || again.Round != 0 || !again.ExpiresAt.Equal(ask.ExpiresAt) {
		t.Errorf("the carried ask: %+v", again)
	}
	sendAs(w, "alice", approvalOf(ask)) // has voted: no second fact
	time.Sleep(100 * time.Millisecond)  // fake: nothing depends on it
	sendAs(w, "bob", approvalOf(ask))
	if a := answerOf(w, call); voters(a.Votes) != "alice bob" || a.Principal != "bob" {
		t.Errorf("the answer: %+v", a)
	}
	if end := w.AwaitEnd(run, soon); end.Outcome != events.RunCompleted {
		t.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
	}
}

// TestB8_23_OnePersonOneVote votes twice in one person's name, written as an id and as the token that subjects hold.
func TestB8_23_OnePersonOneVote(t *testing.T) {
	in(t, ruled(sim.Options{}, events.Rule{Quorum: 2}), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		const id = "carol@example.com"
		for _, name := range []string{id, events.Token(id)} {
			o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}
			subject := w.Conn().Namespace().InDecide(id, call)
			e, err := o.RequestBy(subject, run, name, approvalOf(ask))
			must(w, err)
			_, err = w.Conn().Publish(w.T.Context(), subject, e)
			must(w, err)
		}
		time.Sleep(2 * time.Second) // fake
		if last := headOf(w, call); last.Place.Kind != events.KindAsk {
			w.T.Errorf("after two votes of one person the call stands at %s", last.Place.Kind)
		}
		if r := w.Check(false); r["vote"] != 1 {
			w.T.Errorf("the log holds %d votes", r["vote"])
		}
	})
}

// TestAttack20_ForgedVotesAndTimers puts votes into the log that no gate has signed, or that it has signed for another
// call, and lets timers fire long before their time: handlers and sweeper run over them, and nothing is released.
func TestAttack20_ForgedVotesAndTimers(t *testing.T) {
	o := sim.Options{Gate: func(c *approval.Config) { c.DeepSweep = soon }}
	rule := events.Rule{Quorum: 3, Remind: events.Duration(time.Hour), Expires: events.Duration(24 * time.Hour)}
	in(t, ruled(o, rule), func(w *sim.World) {
		w.StartAll()
		other := w.Request("go")
		sendAs(w, "dave", approvalOf(w.AwaitAsk(refundOf(other), soon)))
		voteOf(w, refundOf(other), "dave")
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		ns := w.Conn().Namespace()
		forge(w, ns.Beside(call, events.KindVote, "mallory"), events.VoteCast{
			ToolCallID: call.String(), RunID: run, Decision: events.Approve, Fingerprint: ask.Fingerprint,
			Principal: "mallory", At: time.Now(), EventID: "e1", InboxSeq: 1,
		})
		slip(w, ns.Beside(call, events.KindVote, "oscar"))
		slip(w, ns.Beside(call, events.KindVote, "alice")) // in her place, before she votes
		copied := w.Await(ns.Beside(refundOf(other), events.KindVote, "dave"), soon)
		header, payload, err := events.EncodeMsg(copied)
		must(w, err)
		jetstreamtest.Slip(w.T.(*testing.T), w.Server, ns.Beside(call, events.KindVote, "dave").Ingest(), header, string(payload))
		sendAs(w, "alice", approvalOf(ask))
		fire(w, call)
		time.Sleep(5 * soon) // fake: sweepers look at everything
		fire(w, call)
		time.Sleep(5 * soon) // fake
		last := headOf(w, call)
		now, err := events.Data[events.CallHeld](last)
		must(w, err)
		if last.Place.Kind != events.KindAsk || now.Reminders != 0 {
			w.T.Errorf("the call stands at %s, %d reminders", last.Place.Kind, now.Reminders)
		}
		for _, a := range listed(w) {
			if a.ToolCallID == call.String() && voters(a.Quorum.Votes) != "alice" {
				w.T.Errorf("the entry shows votes of %q", voters(a.Quorum.Votes))
			}
		}
		for _, who := range []string{"bob", "carol"} {
			sendAs(w, who, approvalOf(ask))
		}
		if a := answerOf(w, call); voters(a.Votes) != "alice bob carol" {
			w.T.Errorf("the answer: %+v", a)
		}
		w.AwaitEnd(run, soon)
	})
}

// fire lets every timer of a call fire now, as somebody could who may publish there.
func fire(w *sim.World, call events.CallID) {
	w.T.Helper()
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: approval.Name}
	for _, purpose := range []string{events.TimerExpire, events.TimerEscalate, events.TimerRemind} {
		t := events.TimerFired{RunID: call.Run, ToolCallID: call.String(), Purpose: purpose, At: time.Now()}
		id, err := jetstream.TimerID(events.TimerSet(t))
		must(w, err)
		e, err := o.Request(w.Conn().Namespace().TimerFire(id), call.Run, t, events.Event{})
		must(w, err)
		header, payload, err := events.EncodeMsg(e)
		must(w, err)
		jetstreamtest.Slip(w.T.(*testing.T), w.Server, w.Conn().Namespace().TimerFire(id), header, string(payload))
	}
}

// TestVoteHabits holds the handler of a vote to its habits: the last one that is needed, and one of several.
func TestVoteHabits(t *testing.T) {
	t.Parallel()
	for name, need := range map[string]int{"last": 2, "one of three": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sim.Habit{
				Options: func() sim.Options { return ruled(sim.Options{}, events.Rule{Quorum: need})(t) },
				Before:  []string{planner.Name, approval.Name, toolexecutor.Name}, Handler: handler(approval.HandleRequest),
				Bring: func(w *sim.World) jetstream.Delivery {
					call := refundOf(w.Request("go"))
					ask := w.AwaitAsk(call, soon)
					sendAs(w, "alice", approvalOf(ask))
					voteOf(w, call, "alice")
					return sendAs(w, "bob", approvalOf(ask))
				},
				Finish: func(w *sim.World, run string) {
					if need > 2 {
						sendAs(w, "carol", approvalOf(w.AwaitAsk(refundOf(run), soon)))
					}
				},
			}.Exercise(t)
		})
	}
}

// TestB8_23_LargeVotes completes a quorum by a vote that just fits into a message, so that it does not fit into the answer
// beside the other votes. The answer leaves out what that vote says, whoever finds the votes; the vote's own fact has it.
func TestB8_23_LargeVotes(t *testing.T) {
	for name, stopped := range map[string]bool{"by its own decision": false, "by the sweeper": true} {
		t.Run(name, func(t *testing.T) {
			zed := key(t)
			people := map[string]events.PrincipalDef{"zed": {ID: "zed", Auth: events.AuthKey, Key: zed.Public}}
			in(t, ruled(sim.Options{People: people}, events.Rule{Quorum: 9}), func(w *sim.World) {
				copies := w.StartAll()
				run := w.Request("go")
				call := refundOf(run)
				ask := w.AwaitAsk(call, soon)
				var names []string
				for i := range 8 {
					who := strings.Repeat(string(rune('a'+i)), 500)
					names = append(names, who)
					sendAs(w, who, approvalOf(ask))
					voteOf(w, call, who)
				}
				time.Sleep(time.Second) // fake
				if stopped {
					copies[1].Kill()
				}
				d := largeVote(w, zed, ask)
				if stopped {
					failing := w.Dial("stopped", func(e events.Event) error {
						if e.Place.Kind == events.KindAnswer {
							return errStopped
						}
						return nil
					})
					if err := handler(approval.HandleRequest)(w, failing)(w.T.Context(), d); !errors.Is(err, errStopped) {
						w.T.Fatalf("the handler says %v", err)
					}
					w.Start(approval.Name)
				}
				a := answerOf(w, call)
				if a.Principal != "zed" || a.EventID != d.Event.ID || voters(a.Votes) != strings.Join(append(names, "zed"), " ") {
					w.T.Errorf("the answer of %.20s has %d votes", a.Principal, len(a.Votes))
				}
				if a.Signed != nil || a.Reason != "" {
					w.T.Errorf("the answer repeats what zed said: %d bytes", len(a.Signed.Payload))
				}
				if v := voteOf(w, call, "zed"); v.Signed == nil || v.Signed.Payload != string(d.Event.Payload) || v.Reason != "seen" {
					w.T.Error("the vote of zed does not hold what zed said")
				}
				w.AwaitEnd(run, soon)
				time.Sleep(2 * time.Second) // fake
				w.Check(true)
			})
		})
	}
}

var errStopped = errors.New("stopped")

// largeVote sends a signed approval that is nearly as large as a message can be, and is its delivery.
func largeVote(w *sim.World, key events.Key, ask events.CallHeld) jetstream.Delivery {
	w.T.Helper()
	const others = 3000 // of the vote beside what is signed, by far
	return largeDecision(w, key, approvalOf(ask), int(w.Conn().MaxMessage())-others)
}

// largeDecision sends a decision of zed, with the reason seen, that is signed and about so large, and is its delivery.
func largeDecision(w *sim.World, key events.Key, d events.DecisionRequested, size int) jetstream.Delivery {
	w.T.Helper()
	call, err := events.ParseCallID(d.ToolCallID)
	must(w, err)
	subject := w.Conn().Namespace().InDecide("zed", call)
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}
	e, err := o.RequestBy(subject, call.Run, "zed", d)
	must(w, err)
	pad := strings.Repeat("x", size-len(e.Payload))
	padded := strings.Replace(string(e.Payload), `"reason":"seen"`, `"reason":"seen","padding":"`+pad+`"`, 1)
	if len(padded) < len(pad) {
		w.T.Fatalf("not padded: %s", padded)
	}
	e.Payload = []byte(padded)
	e.Signature = events.Sign(key, events.DomainDecision, subject, e.Payload)
	e.Seq, err = w.Conn().Publish(w.T.Context(), subject, e)
	must(w, err)
	e.Stored = time.Now()
	return jetstream.Delivery{Event: e, Subject: subject, Attempt: 1}
}

package approval_test

import (
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/sim"
)

// replay puts a fact into the log that a gate has signed for the same subject, as it stood there in an earlier run of the same
// id, which has aged out since.
func replay(w *sim.World, p events.Place, cause events.Event, data any) {
	w.T.Helper()
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "approval", Key: &w.Key}
	e, err := o.Fact(p, data, cause)
	must(w, err)
	header, payload, err := events.EncodeMsg(e)
	must(w, err)
	jetstreamtest.Slip(w.T.(*testing.T), w.Server, p.Ingest(), header, string(payload))
}

// TestAttack20_AnswerToAnotherAsk puts approvals behind the ask of a held call that a gate has signed, and which answer
// another ask: of other arguments, of the same arguments asked about earlier, of an earlier round. None of them lets the
// call run.
func TestAttack20_AnswerToAnotherAsk(t *testing.T) {
	for name, change := range map[string]func(*events.CallAnswered, *events.Event){
		"other arguments": func(a *events.CallAnswered, cause *events.Event) {
			a.Fingerprint, cause.ID = events.Digest([]byte("other")), "0197c3a4-0000-7000-8000-000000000001"
		},
		"the same arguments": func(_ *events.CallAnswered, cause *events.Event) { cause.ID = "0197c3a4-0000-7000-8000-000000000001" },
		"another round":      func(a *events.CallAnswered, _ *events.Event) { a.Round = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			tampered(t, func(w *sim.World, run string) {
				call := refundOf(run)
				ask := w.AwaitAsk(call, soon)
				a := events.CallAnswered{
					ToolCallID: ask.ToolCallID, RunID: run, Decision: events.Approve, Fingerprint: ask.Fingerprint,
					Principal: "alice", AuthType: events.AuthSubject, At: time.Now(), EventID: "e1", InboxSeq: 1,
				}
				cause := w.Await(w.Conn().Namespace().Call(call, events.KindAsk), soon)
				change(&a, &cause)
				replay(w, w.Conn().Namespace().Call(call, events.KindAnswer), cause, a)
				w.Decide("alice", decision(events.Decline, call))
				if d := result(w, run, 1); d.Outcome != events.OutcomeBlocked || d.Reason != "tampering" {
					w.T.Errorf("result = %+v, want blocked, tampering", d)
				}
				w.AwaitEnd(run, soon)
			})
		})
	}
}

// TestAttack20_VoteOfAnEarlierRun puts the vote of a principal into the log that a gate has signed a day ago, for a run of the
// same id: it is none about the call that is held now.
func TestAttack20_VoteOfAnEarlierRun(t *testing.T) {
	in(t, ruled(sim.Options{}, events.Rule{Quorum: 2}), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		replay(w, w.Conn().Namespace().Beside(call, events.KindVote, "mallory"), events.Event{ID: "d1"}, events.VoteCast{
			ToolCallID: call.String(), RunID: run, Decision: events.Approve, Fingerprint: ask.Fingerprint, Principal: "mallory",
			AuthType: events.AuthSubject, At: time.Now().Add(-25 * time.Hour), EventID: "d1", InboxSeq: 1,
		})
		sendAs(w, "alice", approvalOf(ask))
		voteOf(w, call, "alice")
		time.Sleep(2 * time.Second) // fake
		completes(w, ask, "bob", "alice bob")
	})
}

// sendEvent sends a decision as an event that f has changed, and is its delivery.
func sendEvent(w *sim.World, who string, d events.DecisionRequested, f func(*events.Event)) jetstream.Delivery {
	w.T.Helper()
	call, err := events.ParseCallID(d.ToolCallID)
	must(w, err)
	subject := w.Conn().Namespace().InDecide(who, call)
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}
	e, err := o.RequestBy(subject, call.Run, who, d)
	must(w, err)
	f(&e)
	e.Payload, err = events.Encode(e)
	must(w, err)
	e.Seq, err = w.Conn().Publish(w.T.Context(), subject, e)
	must(w, err)
	e.Stored = time.Now()
	return jetstream.Delivery{Event: e, Subject: subject, Attempt: 1}
}

func heldPay(t *testing.T) sim.Options {
	t.Helper()
	return scripted(sim.Options{Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})}}, "pay")(t)
}

// TestB8_13_B8_29_BorrowedEventID sends a decision under the id of the one that counted, which everybody can read in the
// answer: it is another's, so it is refused and recorded.
func TestB8_13_B8_29_BorrowedEventID(t *testing.T) {
	in(t, heldPay, func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		first := sendAs(w, "alice", approvalOf(ask))
		w.AwaitEnd(run, soon)
		sent := sendEvent(w, "mallory", decision(events.Decline, call), func(e *events.Event) { e.ID = first.Event.ID })
		if r := refusal(w, call, sent.Event.ID); r.Code != events.CodeAlreadyDecided || r.Principal != "mallory" {
			w.T.Errorf("refused: %+v", r)
		}
	})
}

// TestB8_13_DecisionPastItsOwnTime sends an approval that says itself until when it may count, after that time: it does not.
func TestB8_13_DecisionPastItsOwnTime(t *testing.T) {
	in(t, heldPay, func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		sent := sendEvent(w, "alice", approvalOf(ask), func(e *events.Event) { e.ExpiryTime = time.Now().Add(-time.Second) })
		if r := refusal(w, call, sent.Event.ID); r.Code != events.CodeExpired {
			w.T.Errorf("refused: %+v", r)
		}
		if last := headOf(w, call); last.Place.Kind != events.KindAsk {
			w.T.Errorf("the call stands at %s", last.Place.Kind)
		}
		sendEvent(w, "alice", approvalOf(ask), func(e *events.Event) { e.ExpiryTime = time.Now().Add(time.Minute) })
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// TestB8_13_DecisionThatClaimsToBeCarried sends a decision with the header of a fact that was stored again: it is a decision
// like any other, and is not passed over in silence.
func TestB8_13_DecisionThatClaimsToBeCarried(t *testing.T) {
	in(t, heldPay, func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		ask := w.AwaitAsk(refundOf(run), soon)
		sendEvent(w, "alice", approvalOf(ask), func(e *events.Event) { e.Carried = true })
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// follow appends what an answer leads to: a release, a result, or for an edit whatever the gate finds of the new
// arguments. Everybody who finds an answer without its consequence does this, because the one who stored the answer
// may have been stopped. An answer counts only with a gate's own signature.
func (s *Service) follow(ctx context.Context, r *run, answer events.Event) error {
	if err := s.genuine(answer); err != nil {
		return s.tampered(ctx, r, answer, err)
	}
	a, err := events.Data[events.CallAnswered](answer)
	if err != nil {
		return jetstream.Final(err)
	}
	call := answer.Place.CallID()
	fact, err := s.conn.Fact(ctx, s.ns.Call(call, events.KindAsk))
	if err != nil {
		return fmt.Errorf("read ask of %s: %w", call, err)
	}
	if err := s.genuine(fact); err != nil {
		return s.tampered(ctx, r, fact, err)
	}
	ask, err := events.Data[events.CallHeld](fact)
	if err != nil {
		return jetstream.Final(err)
	}
	if ask.Round != a.Round && answer.Seq < fact.Seq { // the chain has gone on: whoever did that has done this
		return s.takeOut(ctx, r, ask.ToolCallID, a.Round)
	}
	if !answers(answer, a, fact, ask) {
		return s.answersAnother(ctx, r, answer, fact)
	}
	var queue putOff
	if err := s.consequence(ctx, r, answered{call: call, ask: ask, fact: answer, data: a}); err != nil && !queue.takes(err) {
		return err
	}
	if err := s.takeOut(ctx, r, ask.ToolCallID, a.Round); err != nil {
		return err
	}
	return queue.later
}

// answers reports whether an answer is one to this very ask. Its signature alone does not say so: subjects repeat when the
// id of a run is used again after the first has aged out, and whoever has kept an answer could put it there.
func answers(answer events.Event, a events.CallAnswered, fact events.Event, ask events.CallHeld) bool {
	return answer.CausationID == fact.ID && a.Round == ask.Round && events.SameDigest(a.Fingerprint, ask.Fingerprint)
}

var errAnswersAnother = errors.New("the answer is to another ask")

// answersAnother ends a call whose answer is to another ask, unless it is the leader that does not show the right one yet.
func (s *Service) answersAnother(ctx context.Context, r *run, answer, ask events.Event) error {
	head, err := s.conn.Last(ctx, answer.Place.Chain())
	if err != nil && !errors.Is(err, jetstream.ErrTampered) {
		return fmt.Errorf("read head of %s: %w", answer.Place.CallID(), err)
	}
	again, err := s.conn.Fact(ctx, ask.Place)
	if err != nil {
		return fmt.Errorf("read ask of %s: %w", answer.Place.CallID(), err)
	}
	if head.Seq < answer.Seq || again.Seq != ask.Seq {
		return fmt.Errorf("the leader does not show the ask of %s yet", answer.Place.CallID())
	}
	return s.tampered(ctx, r, answer, errAnswersAnother)
}

// endDue is the end that an answer brings to its run: an ask that expires may fail it. The call's result names it, so
// that the planner takes no turn when that result settles the step, and whoever finds the result ends the run.
func endDue(ask events.CallHeld, a events.CallAnswered) *events.CancelCause {
	if a.Decision != events.Expired || ask.OnExpiry != events.OnExpiryFail {
		return nil
	}
	return &events.CancelCause{
		RunID: ask.RunID, End: events.RunFailed, Code: events.CodeAskExpired,
		Reason: "nobody decided call " + ask.ToolCallID,
	}
}

// answered is an answer with the ask that it follows.
type answered struct {
	call events.CallID
	ask  events.CallHeld
	fact events.Event
	data events.CallAnswered
}

func (s *Service) consequence(ctx context.Context, r *run, a answered) error {
	if err := s.reveal(ctx, &a); err != nil {
		return s.withoutSecrets(ctx, r, a, err)
	}
	var v ruling
	switch {
	case a.data.Decision == events.Edit:
		return s.judgeEdit(ctx, r, a)
	case a.data.Decision.Releases() && r.client(a.ask.ToolName):
		return s.askClient(ctx, r, a)
	case a.data.Decision.Releases() && r.search.Answers(a.ask.ToolName):
		found, err := s.findFor(ctx, r, a)
		if err != nil {
			return err
		}
		v.finished = found
	case a.data.Decision.Releases():
		if err := s.turn(ctx, r, queued{call: a.call, seq: a.fact.Seq, answered: true}); err != nil {
			return err
		}
		if err := s.keepGrant(ctx, a); err != nil {
			return fmt.Errorf("keep grant of %s: %w", a.call, err)
		}
		rel, err := s.releaseOf(ctx, r, a)
		if err != nil {
			return err
		}
		v.released = rel
	default:
		started, err := s.started(ctx, a.call, a.ask.Attempt)
		if err != nil {
			return err
		}
		v.finished = resultOf(a, started)
		s.mapAnswer(ctx, r, a, v.finished)
	}
	last, _, err := s.addRuling(ctx, a.call, a.fact, v)
	if err != nil {
		return ignoreGone(err)
	}
	return s.help(ctx, r, last)
}

func ignoreGone(err error) error {
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// releaseOf permits to run exactly the bytes that were asked about, in the round of the ask.
func (s *Service) releaseOf(ctx context.Context, r *run, a answered) (*events.CallReleased, error) {
	t, err := s.toolOf(ctx, r, a.ask)
	if err != nil {
		return nil, err
	}
	q := question{
		ns: s.ns, call: a.call, round: a.ask.Round, run: r, follows: a.fact.Seq, attempt: a.ask.Attempt,
		planned: events.CallPlanned{ToolName: a.ask.ToolName, Background: a.ask.Background}, now: time.Now().UTC(),
	}
	rel := q.release(frozen{tool: t, args: a.ask.Args, fingerprint: a.ask.Fingerprint}, events.AllowedBy{
		Answer: a.fact.Seq, Rules: a.data.Rules, Rule: a.ask.Reason.Rule, Set: a.ask.Reason.Set, SetDigest: a.ask.Reason.Digest,
	})
	switch a.ask.Kind {
	case events.AskSuspended:
		rel.Resume, rel.SuspendPayload = a.data.Resume, a.ask.SuspendPayload
	case events.AskInDoubt: // the same start again: one that people had resumed is resumed again
		before, err := s.lastRelease(ctx, r, a.call)
		if err != nil && !errors.Is(err, errNeverReleased) {
			return nil, err
		}
		rel.Resume, rel.SuspendPayload = before.Resume, before.SuspendPayload
	default:
	}
	return &rel, nil
}

// resultOf is the end of a call that people did not let run.
func resultOf(a answered, started bool) *events.CallFinished {
	d := &events.CallFinished{
		ToolCallID: a.ask.ToolCallID, RunID: a.ask.RunID, ToolName: a.ask.ToolName,
		Round: a.ask.Round, Started: started, Attempt: a.ask.Attempt, Principal: a.data.Principal,
		Args: a.ask.Args, Reason: strings.TrimSpace(a.data.Reason), Cancel: endDue(a.ask, a.data),
	}
	switch a.data.Decision {
	case events.Respond:
		d.Outcome, d.Result, d.ModelOutput = events.OutcomeResponded, a.data.Result, a.data.ModelOutput
	case events.Expired:
		d.Outcome = events.OutcomeExpired
	default:
		d.Outcome = events.OutcomeDeclined
	}
	return d
}

// started reports whether a worker has ever claimed the call: then its effects may have happened. Attempts are those
// that a fact of the chain tells of, since the claim itself may have aged out.
func (s *Service) started(ctx context.Context, call events.CallID, attempts int) (bool, error) {
	if attempts > 0 {
		return true, nil
	}
	_, err := s.conn.Fact(ctx, s.ns.Call(call, events.KindClaim))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, jetstream.ErrNotFound):
		return false, nil
	}
	return false, fmt.Errorf("read claim of %s: %w", call, err)
}

// judgeEdit takes edited arguments through the gate again, in the next round: rules hold for them as for any other.
func (s *Service) judgeEdit(ctx context.Context, r *run, a answered) error {
	rules, err := s.rulesNow(ctx)
	if err != nil {
		return err
	}
	q := s.question(r, rules, a.call, events.CallPlanned{ToolCallID: a.ask.ToolCallID, ToolName: a.ask.ToolName, Background: a.ask.Background})
	q.round, q.edited, q.follows, q.attempt = a.ask.Round+1, a.data.Args, a.fact.Seq, a.ask.Attempt
	if q.loaded, err = s.loadedBefore(ctx, r, a.call.Step); err != nil {
		return err
	}
	v := s.rule(ctx, q)
	if v.held != nil {
		v.held.LastWords = a.ask.LastWords
		return s.hold(ctx, r, []holding{{ask: *v.held, prev: a.fact}})
	}
	if v.released != nil {
		if err := s.turn(ctx, r, queued{call: a.call, seq: a.fact.Seq, answered: true}); err != nil {
			return err
		}
	}
	last, _, err := s.addRuling(ctx, a.call, a.fact, v)
	if err != nil {
		return ignoreGone(err)
	}
	return s.help(ctx, r, last)
}

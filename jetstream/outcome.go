package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
)

// Sent is a decision that somebody has sent, with what its outcome is found by in the log.
type Sent struct {
	Call      events.CallID
	EventID   string
	Principal string // or its token
	// Decision and Fingerprint are what was sent, as far as that is known. A vote has both: by them an earlier vote of the
	// same principal is found, which stands for a later one.
	Decision    events.Decision
	Fingerprint string
	// Unhandled says that no gate may have looked at the decision yet, so that an earlier vote says nothing about it.
	Unhandled bool
	// Genuine tells whether an answer or vote is a gate's. Nil believes the log.
	Genuine func(events.Event) bool

	vote *events.VoteCast // that the decision has become
}

// Became is what the log says became of a decision: the outcome, or the refusal. Both are nil while it says nothing, and
// the state is empty while a gate has not judged the arguments of an edit.
func (c *Conn) Became(ctx context.Context, s Sent) (*events.DecisionOutcome, *events.Error, error) {
	places := []events.Place{c.ns.Call(s.Call, events.KindAnswer), c.ns.Beside(s.Call, events.KindRefused, s.EventID)}
	if s.Fingerprint != "" && (s.Decision == events.Approve || s.Decision == events.Retry) {
		places = append(places, c.ns.Beside(s.Call, events.KindVote, s.Principal))
	}
	facts, err := c.Facts(ctx, places...)
	if err != nil && !errors.Is(err, ErrTampered) {
		return nil, nil, fmt.Errorf("look after a decision of %s: %w", s.Call, err)
	}
	vote := s.voted(facts[2:])
	if a, ok := s.answered(facts[0]); ok && a.Decision != events.Edit {
		return a.Outcome(), nil, nil
	}
	if events.RoundOf(facts[0]) > 0 || isEdit(facts[0]) { // an earlier answer may be the one, and what followed it says how it went
		out, err := c.trace(ctx, s)
		if out != nil || err != nil {
			return out, nil, err
		}
	}
	if why := s.refused(facts[1]); why != nil || vote == nil {
		return nil, why, nil
	}
	out, err := c.pending(ctx, s, *vote)
	return out, nil, err
}

// voted reads the last vote of the principal: the decision itself, or one before that stands for it.
func (s *Sent) voted(facts []events.Event) *events.VoteCast {
	if len(facts) == 0 {
		return nil
	}
	v := readVote(facts[0], s.Genuine)
	if v == nil || v.EventID != s.EventID && (s.Unhandled || v.Decision != s.Decision || !events.SameDigest(v.Fingerprint, s.Fingerprint)) {
		return nil
	}
	if v.EventID == s.EventID {
		s.vote = v
	}
	return v
}

// trace finds the answer that a decision has become among all answers of its call.
func (c *Conn) trace(ctx context.Context, s Sent) (*events.DecisionOutcome, error) {
	chain := c.ns.Call(s.Call, events.KindAnswer).Chain()
	var out *events.DecisionOutcome
	for seq := uint64(0); ; {
		fact, err := c.NextFact(ctx, seq, chain)
		switch {
		case errors.Is(err, ErrNotFound):
			return out, nil
		case errors.Is(err, ErrTampered):
		case err != nil:
			return nil, fmt.Errorf("look after a decision of %s: %w", s.Call, err)
		case out != nil:
			afterEdit(fact, out)
			return out, nil
		default:
			if a, ok := s.answered(fact); ok {
				if out = a.Outcome(); out.State != "" {
					return out, nil
				}
			}
		}
		seq = fact.Seq
	}
}

// answered reads an answer that the decision has become, or of which it is one of the votes.
func (s Sent) answered(fact events.Event) (events.CallAnswered, bool) {
	if fact.ID == "" {
		return events.CallAnswered{}, false
	}
	a, err := events.Data[events.CallAnswered](fact)
	ours := a.EventID == s.EventID && events.SamePrincipal(a.Principal, s.Principal) ||
		s.vote != nil && a.Round == s.vote.Round && slices.Contains(a.Votes, s.vote.Brief())
	return a, err == nil && ours && (s.Genuine == nil || s.Genuine(fact))
}

// refused reads a refusal of the decision.
func (s Sent) refused(fact events.Event) *events.Error {
	if fact.ID == "" {
		return nil
	}
	d, err := events.Data[events.DecisionRefused](fact)
	if err != nil || d.EventID != s.EventID || !events.SamePrincipal(d.Principal, s.Principal) {
		return nil //nolint:nilerr // what cannot be read refuses nothing
	}
	return &d.Error
}

func isEdit(fact events.Event) bool {
	a, err := events.Data[events.CallAnswered](fact)
	return err == nil && a.Decision == events.Edit
}

// afterEdit says what a gate made of edited arguments: it may ask again, release or refuse them.
func afterEdit(fact events.Event, out *events.DecisionOutcome) {
	out.Round, out.State = max(out.Round, events.RoundOf(fact)), events.StateAfter(fact.Place.Kind)
}

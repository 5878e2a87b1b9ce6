package jetstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirkeeper/weir/events"
)

// Votes reads the votes about a call from the leader: the last one of each principal. Subjects prove nothing, so what
// genuine does not take is not there, and neither is what does not fit its place. Nil believes the log.
func (c *Conn) Votes(ctx context.Context, call events.CallID, genuine func(events.Event) bool) ([]events.VoteCast, error) {
	subjects, err := c.Subjects(ctx, c.ns.VotesOf(call))
	if err != nil {
		return nil, fmt.Errorf("list votes about %s: %w", call, err)
	}
	var votes []events.VoteCast
	for _, subject := range subjects {
		p, err := events.ParsePlace(subject)
		if err != nil {
			continue
		}
		v, err := c.vote(ctx, p, genuine)
		if err != nil {
			return nil, err
		}
		if v != nil {
			votes = append(votes, *v)
		}
	}
	return votes, nil
}

// vote is the vote at a place; none when it has aged out or is no vote of a gate's.
func (c *Conn) vote(ctx context.Context, p events.Place, genuine func(events.Event) bool) (*events.VoteCast, error) {
	fact, err := c.Fact(ctx, p)
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrTampered):
		return nil, nil //nolint:nilnil // not there
	case err != nil:
		return nil, err
	}
	return readVote(fact, genuine), nil
}

func readVote(fact events.Event, genuine func(events.Event) bool) *events.VoteCast {
	if fact.ID == "" || genuine != nil && !genuine(fact) {
		return nil
	}
	v, err := events.Data[events.VoteCast](fact)
	if err != nil || fact.Place.Namespace.Beside(fact.Place.CallID(), events.KindVote, v.Principal) != fact.Place {
		return nil
	}
	return &v
}

// pending is the outcome of a vote while its ask is open and needs more of them; nothing when it is being answered.
func (c *Conn) pending(ctx context.Context, s Sent, v events.VoteCast) (*events.DecisionOutcome, error) {
	head, err := c.Last(ctx, c.ns.Call(s.Call, events.KindAsk).Chain())
	if err != nil || head.Place.Kind != events.KindAsk || s.Genuine != nil && !s.Genuine(head) {
		return nil, ignoreNoFact(err)
	}
	ask, err := events.Data[events.CallHeld](head)
	if err != nil || !v.For(ask) {
		return nil, nil //nolint:nilerr,nilnil // not about this ask
	}
	votes, err := c.Votes(ctx, s.Call, s.Genuine)
	if err != nil {
		return nil, err
	}
	q := ask.Tally(votes)
	if len(q.Votes) >= q.Need {
		return nil, nil //nolint:nilnil // its answer is on the way
	}
	return &events.DecisionOutcome{
		Accepted: true, ToolCallID: ask.ToolCallID, Round: ask.Round, State: events.DecisionPending, Quorum: q,
	}, nil
}

// ignoreNoFact passes over that a chain is empty, or ends with what no service has written.
func ignoreNoFact(err error) error {
	if errors.Is(err, ErrTampered) || errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

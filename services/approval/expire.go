package approval

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// onTimer looks after an ask because something of it may be due: its deadline, in the race with people, its next stage, a
// reminder. A timer proves nothing: what counts is what the stored ask says, compared with the server's time.
func (s *Service) onTimer(ctx context.Context, d jetstream.Delivery) error {
	t, err := events.Data[events.TimerFired](d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	call, err := events.ParseCallID(t.ToolCallID)
	if err != nil {
		return jetstream.Final(err)
	}
	head, err := s.last(ctx, call)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read head of %s: %w", call, err)
	}
	switch head.Place.Kind {
	case events.KindAsk, events.KindAnswer, events.KindResult:
	default:
		return nil
	}
	r, err := s.run(ctx, call.Run)
	if err != nil {
		return ignoreMissing(err)
	}
	if head.Place.Kind != events.KindAsk {
		return s.help(ctx, r, head)
	}
	w, err := s.lookAfter(ctx, r, head, d.Event.Stored)
	switch {
	case err != nil || w == nil:
		return err
	case w.ask.Since != nil: // whoever repeated it may have been stopped
		return s.announceAgain(ctx, r, head, w.ask)
	}
	return s.setTimers(ctx, w.ask, d.Event.Stored) // this one came early
}

// expiredAt is the answer to an ask whose deadline has passed at the server's time now.
func expiredAt(ask events.CallHeld, now time.Time) events.CallAnswered {
	return events.CallAnswered{
		ToolCallID: ask.ToolCallID, RunID: ask.RunID, Round: ask.Round, Decision: events.Expired,
		Fingerprint: ask.Fingerprint, AuthType: events.AuthTimer, At: now.UTC(), Reason: "expired", Rules: ask.Rules,
	}
}

// conclude appends the answer that the gate itself finds due, and what follows from it.
func (s *Service) conclude(ctx context.Context, r *run, fact events.Event, data events.CallAnswered) error {
	last, ours, err := s.addAnswer(ctx, fact.Place.CallID(), fact, data)
	switch {
	case err != nil:
		return ignoreGone(err)
	case ours || last.Place.Kind == events.KindAnswer:
		return s.follow(ctx, r, last)
	case last.Place.Kind == events.KindAsk:
		return jetstream.Later(0)
	}
	return nil
}

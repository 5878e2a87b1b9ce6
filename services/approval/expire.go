package approval

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// onTimer tries the answer that a deadline is due, in the race with people. A timer proves nothing: what counts is the
// deadline that the stored ask names, compared with the server's time.
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
	case events.KindAsk:
		return s.expire(ctx, head, d.Event.Stored)
	case events.KindAnswer, events.KindResult:
		r, err := s.run(ctx, call.Run)
		if err != nil {
			return ignoreMissing(err)
		}
		return s.help(ctx, r, head)
	default:
		return nil
	}
}

// expire answers an ask whose deadline has passed at the server's time now. An earlier timer is set again.
func (s *Service) expire(ctx context.Context, fact events.Event, now time.Time) error {
	call := fact.Place.CallID()
	r, err := s.run(ctx, call.Run)
	if err != nil {
		return ignoreMissing(err)
	}
	if err := s.genuine(fact); err != nil {
		return s.tampered(ctx, r, fact, err)
	}
	ask, err := events.Data[events.CallHeld](fact)
	if err != nil {
		return jetstream.Final(err)
	}
	if now.Before(ask.ExpiresAt) {
		return s.setTimer(ctx, ask)
	}
	data := events.CallAnswered{
		ToolCallID: ask.ToolCallID, RunID: ask.RunID, Round: ask.Round, Decision: events.Expired,
		Fingerprint: ask.Fingerprint, AuthType: events.AuthTimer, At: now.UTC(), Reason: "expired", Rules: ask.Rules,
	}
	last, ours, err := s.add(ctx, s.ns.Call(call, events.KindAnswer), fact, data)
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

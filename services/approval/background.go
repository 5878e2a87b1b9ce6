package approval

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// A background call may outlast its run: one that runs when the run completes goes on, and may suspend itself or fall in doubt
// after that. It is asked about as before. But nothing carries the facts of a run that is over, so whatever is asked about it
// is over before they age out.

// lastChance is how long an ask about a call of an ended run waits at least.
const lastChance = time.Minute

// answerBy is until when calls of a run that is over must be decided: below half of the retention after its end. The time is
// zero while the run goes on.
func (s *Service) answerBy(ctx context.Context, run string) (time.Time, error) {
	end, err := s.conn.Fact(ctx, s.ns.End(run))
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("read end of %s: %w", run, err)
	}
	return end.Stored.Add(s.cfg.Retention * 9 / 20), nil
}

// boundAfterEnd gives an ask about a background call of an ended run a deadline that its facts outlast.
func (s *Service) boundAfterEnd(ctx context.Context, ask *events.CallHeld) error {
	if ask.Background == nil {
		return nil
	}
	by, err := s.answerBy(ctx, ask.RunID)
	if err != nil || by.IsZero() || !ask.ExpiresAt.After(by) {
		return err
	}
	if soon := ask.AskedAt.Add(lastChance); by.Before(soon) {
		by = soon
	}
	ask.ExpiresAt = by.UTC()
	return nil
}

// outlived ends a held background call whose run was over for so long that its facts would age out: it was asked about before
// the end was known. It reports whether it did.
func (s *Service) outlived(ctx context.Context, w *openAsk, now time.Time) (bool, error) {
	if w.ask.Background == nil {
		return false, nil
	}
	by, err := s.answerBy(ctx, w.ask.RunID)
	if err != nil || by.IsZero() || now.Before(by) || now.Before(w.fact.Stored.Add(lastChance)) {
		return false, err
	}
	cause := events.CancelCause{ToolCallID: w.ask.ToolCallID, By: Name, Reason: "the run is over, and nobody decided in time"}
	if err := s.closeCall(ctx, w.fact.Place.CallID(), events.CallPlanned{ToolName: w.ask.ToolName}, events.Event{}, cause); err != nil {
		return false, err
	}
	return true, s.takeOut(ctx, w.run, w.ask.ToolCallID, everyRound)
}

package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// onEnd cleans up behind a run, whoever ended it: the snapshot, the timers of its asks, and its last chunk.
func (s *Service) onEnd(ctx context.Context, d jetstream.Delivery) error {
	if err := s.showEnd(ctx, d.Event); err != nil {
		return err
	}
	id := d.Event.Place.Run
	if err := s.settleParent(ctx, d.Event); err != nil {
		return err
	}
	r, err := s.run(ctx, id)
	if err != nil {
		return ignoreMissing(err) // ended before it began, or long ago
	}
	if err := s.closeRest(ctx, r); err != nil {
		return err
	}
	s.runs.Remove(id)
	s.states.Remove(id)
	return nil
}

// closeRest removes what an ended run has left: timers of asks that its entry names, then the entry.
func (s *Service) closeRest(ctx context.Context, r *run) error {
	snap, _, err := s.conn.Snapshot(ctx, r.key())
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read snapshot of %s: %w", r.start.RunID, err)
	}
	open, err := s.outlasting(ctx, snap.Asks)
	if err != nil {
		return err
	}
	for _, a := range snap.Asks {
		if slices.ContainsFunc(open, same(a)) {
			continue
		}
		if err := s.cancelTimers(ctx, a); err != nil {
			return err
		}
	}
	return s.dropEntry(ctx, r)
}

// showEnd publishes the last chunks of a run; readers drop what they have seen.
func (s *Service) showEnd(ctx context.Context, end events.Event) error {
	d, err := events.Data[events.RunEnded](end)
	if err != nil {
		return jetstream.Final(err)
	}
	for _, c := range events.EndChunks(d, end.ID) {
		s.chunk(ctx, c)
	}
	return nil
}

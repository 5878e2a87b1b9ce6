package approval

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// The entry of a run in the bucket suspended: its state and its open asks. The log does not fence it, so whoever writes
// it reads the log again afterwards, and the sweeper compares the two.

// current is the state of a run with its current step, from memory when that is still the head.
func (s *Service) current(ctx context.Context, id string) (*events.State, error) {
	if st, ok := s.states.Get(id); ok {
		head, err := s.conn.Last(ctx, s.ns.MainOf(id))
		if err != nil {
			return nil, err
		}
		if head.Seq == st.MainSeq {
			st = st.Clone()
			return st, s.conn.FoldResults(ctx, st)
		}
	}
	st, _, err := s.conn.RunState(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read state of %s: %w", id, err)
	}
	s.states.Put(id, st, st.Size())
	return st.Clone(), nil
}

// enter writes the asks that are about to be stored into the run's entry, with the state that a planner goes on from.
func (s *Service) enter(ctx context.Context, r *run, asks []events.CallHeld) error {
	st, err := s.current(ctx, r.start.RunID)
	if err != nil {
		return err
	}
	return s.changeEntry(ctx, r, func(old *events.Snapshot) *events.Snapshot {
		snap := &events.Snapshot{State: *st, SuspendedAt: time.Now().UTC(), Writer: events.NewID(time.Now())}
		if old != nil && old.Step > st.Step {
			return old // a late writer takes nothing back
		}
		if old != nil && old.Step == st.Step {
			snap.Asks, snap.SuspendedAt = old.Asks, old.SuspendedAt
		}
		for _, a := range asks {
			snap.Asks = append(without(snap.Asks, a.ToolCallID), a.Open())
		}
		slices.SortFunc(snap.Asks, func(a, b events.OpenAsk) int { return byCall(a.ToolCallID, b.ToolCallID) })
		return snap
	})
}

func byCall(a, b string) int {
	x, _ := events.ParseCallID(a)
	y, _ := events.ParseCallID(b)
	return (x.Step-y.Step)*events.MaxCalls*16 + x.Index - y.Index
}

func without(asks []events.OpenAsk, toolCallID string) []events.OpenAsk {
	return slices.DeleteFunc(slices.Clone(asks), func(a events.OpenAsk) bool { return a.ToolCallID == toolCallID })
}

// everyRound takes the asks of all rounds of a call out.
const everyRound = math.MaxInt

// takeOut removes the asks of a call up to a round that was answered or has ended.
func (s *Service) takeOut(ctx context.Context, r *run, toolCallID string, round int) error {
	return s.changeEntry(ctx, r, func(old *events.Snapshot) *events.Snapshot {
		if old == nil {
			return nil
		}
		left := slices.DeleteFunc(slices.Clone(old.Asks), func(a events.OpenAsk) bool {
			return a.ToolCallID == toolCallID && a.Round <= round
		})
		if len(left) == len(old.Asks) {
			return old
		}
		snap := *old
		snap.Asks, snap.Writer = left, events.NewID(time.Now())
		return &snap
	})
}

// changeEntry replaces the run's entry by what change makes of it, again when somebody else wrote in between. Change
// gets nil when there is no entry; when it returns what it got, nothing is written.
func (s *Service) changeEntry(ctx context.Context, r *run, change func(*events.Snapshot) *events.Snapshot) error {
	for {
		old, rev, err := s.conn.Snapshot(ctx, r.key())
		if errors.Is(err, jetstream.ErrNotFound) {
			old, rev, err = nil, 0, nil
		}
		if err != nil {
			return fmt.Errorf("read snapshot of %s: %w", r.start.RunID, err)
		}
		snap := change(old)
		if snap == old {
			return nil
		}
		_, err = s.conn.PutSnapshot(ctx, snap, rev)
		if errors.Is(err, jetstream.ErrConflict) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write snapshot of %s: %w", r.start.RunID, err)
		}
		return nil
	}
}

// dropEntry removes the run's entry; it is done when there is none.
func (s *Service) dropEntry(ctx context.Context, r *run) error {
	for {
		_, rev, err := s.conn.Snapshot(ctx, r.key())
		if errors.Is(err, jetstream.ErrNotFound) {
			return nil
		}
		if err == nil {
			err = s.conn.DeleteSnapshot(ctx, r.key(), rev)
		}
		if errors.Is(err, jetstream.ErrConflict) {
			continue
		}
		if err != nil {
			return fmt.Errorf("remove snapshot of %s: %w", r.start.RunID, err)
		}
		return nil
	}
}

// checkEntry reads the log after an entry was written: an entry of a run that has ended in between goes, and asks that
// lost their place are taken out.
func (s *Service) checkEntry(ctx context.Context, r *run, overtaken bool) error {
	head, err := s.conn.Last(ctx, s.ns.MainOf(r.start.RunID))
	if err != nil {
		return ignoreMissing(err)
	}
	if head.Place.Kind == events.KindEnd {
		return s.dropEntry(ctx, r)
	}
	if !overtaken {
		return nil
	}
	return s.mendEntry(ctx, r)
}

// mendEntry takes every ask out that is no longer the last fact of its call, and drops an entry of an earlier step.
func (s *Service) mendEntry(ctx context.Context, r *run) error {
	snap, _, err := s.conn.Snapshot(ctx, r.key())
	if err != nil {
		return ignoreMissing(err)
	}
	head, err := s.conn.Last(ctx, s.ns.MainOf(r.start.RunID))
	if err != nil && !errors.Is(err, jetstream.ErrNotFound) {
		return err
	}
	if err != nil || head.Place.Kind == events.KindEnd || head.Place.Kind == events.KindStep && head.Place.N > snap.Step {
		return s.dropEntry(ctx, r)
	}
	for _, a := range snap.Asks {
		call, err := events.ParseCallID(a.ToolCallID)
		if err != nil {
			return jetstream.Final(err)
		}
		last, err := s.last(ctx, call)
		if err != nil && !errors.Is(err, jetstream.ErrNotFound) {
			return err
		}
		if err != nil || last.Place.Kind != events.KindAsk {
			if err := s.takeOut(ctx, r, a.ToolCallID, a.Round); err != nil {
				return err
			}
		}
	}
	return nil
}

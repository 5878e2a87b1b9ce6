package approval

import (
	"cmp"
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

// enter writes the asks that are about to be stored into the entries of their run and of every run above it, from the top:
// whoever looks at one of these finds them.
func (s *Service) enter(ctx context.Context, r *run, asks []events.CallHeld) error {
	return s.eachListing(ctx, r, func(of *run) error { return s.enterIn(ctx, of, asks) })
}

// eachListing calls f for every run whose entry lists the asks of a run: those above it, from the top, and itself.
func (s *Service) eachListing(ctx context.Context, r *run, f func(of *run) error) error {
	for _, of := range r.start.Path {
		listing, err := r, error(nil)
		if of.RunID != r.start.RunID {
			listing, err = s.run(ctx, of.RunID)
		}
		switch {
		case errors.Is(err, errNoRun): // aged out
			continue
		case err != nil:
			return err
		}
		if err := f(listing); err != nil {
			return err
		}
	}
	return nil
}

// enterIn writes asks into one entry, with the state that a planner goes on from.
func (s *Service) enterIn(ctx context.Context, r *run, asks []events.CallHeld) error {
	st, err := s.current(ctx, r.start.RunID)
	if err != nil {
		return err
	}
	return s.changeEntry(ctx, r, func(old *events.Snapshot) *events.Snapshot {
		asks, snap := asks, &events.Snapshot{State: *st, SuspendedAt: time.Now().UTC()}
		switch {
		case old == nil:
		case old.Step > st.Step: // a late writer takes nothing back; a call in the background may be held at any step
			asks = slices.DeleteFunc(slices.Clone(asks), func(a events.CallHeld) bool { return a.Background == nil })
			if lists(old, &old.State, asks) {
				return old
			}
			again := *old
			snap = &again
		case old.Step < st.Step:
			snap.Asks = slices.DeleteFunc(slices.Clone(old.Asks), func(a events.OpenAsk) bool { return !a.Background })
		case lists(old, st, asks):
			return old
		default:
			snap.Asks, snap.SuspendedAt = old.Asks, old.SuspendedAt
		}
		for _, a := range asks {
			open := a.Open()
			if i := slices.IndexFunc(snap.Asks, same(open)); i >= 0 {
				open = newer(snap.Asks[i], open)
			}
			snap.Asks = append(without(snap.Asks, a.ToolCallID), open)
		}
		slices.SortFunc(snap.Asks, func(a, b events.OpenAsk) int { return events.CompareCalls(a.ToolCallID, b.ToolCallID) })
		return snap
	})
}

// same finds an ask in a list: the same round of the same call.
func same(a events.OpenAsk) func(events.OpenAsk) bool {
	return func(b events.OpenAsk) bool { return a.ToolCallID == b.ToolCallID && a.Round == b.Round }
}

// newer joins what an entry says of a round with what an ask of it says. An ask that was repeated is never taken back by
// a writer who is late, and its votes and a late outcome stay.
func newer(listed, a events.OpenAsk) events.OpenAsk {
	if listed.AskedAt.Equal(a.AskedAt) && (len(listed.EscalatedTo) > len(a.EscalatedTo) ||
		listed.Reminders > a.Reminders || listed.ExpiresAt.After(a.ExpiresAt)) {
		listed, a = a, listed
	}
	a.Late = cmp.Or(a.Late, listed.Late)
	if listed.Quorum != nil {
		a.Quorum = a.Quorum.With(listed.Quorum.Votes...)
	}
	return a
}

// lists reports whether an entry already says all there is to say, so that nothing is written again.
func lists(old *events.Snapshot, st *events.State, asks []events.CallHeld) bool {
	return old.MainSeq == st.MainSeq && len(old.Open()) == len(st.Open()) &&
		!slices.ContainsFunc(asks, func(a events.CallHeld) bool {
			i := slices.IndexFunc(old.Asks, same(a.Open()))
			return i < 0 || !says(old.Asks[i], newer(old.Asks[i], a.Open()))
		})
}

// says reports whether two forms of an ask of one round are the same to people.
func says(a, b events.OpenAsk) bool {
	return a.AskedAt.Equal(b.AskedAt) && a.ExpiresAt.Equal(b.ExpiresAt) && a.Reminders == b.Reminders &&
		len(a.EscalatedTo) == len(b.EscalatedTo) && votesOf(a) == votesOf(b)
}

func votesOf(a events.OpenAsk) int {
	if a.Quorum == nil {
		return 0
	}
	return len(a.Quorum.Votes)
}

// showVotes writes the votes about an open ask into the run's entry. One that is not listed there any more, or not yet,
// stays as it is.
func (s *Service) showVotes(ctx context.Context, r *run, ask events.CallHeld, b ballot) error {
	if len(b.votes) == 0 {
		return nil
	}
	show := func(old *events.Snapshot) *events.Snapshot {
		if old == nil {
			return nil
		}
		i := slices.IndexFunc(old.Asks, same(ask.Open()))
		if i < 0 {
			return old
		}
		with := old.Asks[i]
		if with.Quorum = with.Quorum.With(b.briefs()...); votesOf(with) == votesOf(old.Asks[i]) {
			return old
		}
		snap := *old
		snap.Asks = slices.Clone(old.Asks)
		snap.Asks[i] = with
		return &snap
	}
	return s.eachListing(ctx, r, func(of *run) error { return s.changeEntry(ctx, of, show) })
}

func without(asks []events.OpenAsk, toolCallID string) []events.OpenAsk {
	return slices.DeleteFunc(slices.Clone(asks), func(a events.OpenAsk) bool { return a.ToolCallID == toolCallID })
}

// everyRound takes the asks of all rounds of a call out.
const everyRound = math.MaxInt

// takeOut removes the asks of a call up to a round that was answered or has ended, from the entries of its run and of those
// above. The last ask of a run that is over takes the entry with it.
func (s *Service) takeOut(ctx context.Context, r *run, toolCallID string, round int) error {
	return s.eachListing(ctx, r, func(of *run) error { return s.takeOutOf(ctx, of, toolCallID, round) })
}

func (s *Service) takeOutOf(ctx context.Context, r *run, toolCallID string, round int) error {
	emptied := false
	err := s.changeEntry(ctx, r, func(old *events.Snapshot) *events.Snapshot {
		if old == nil {
			return nil
		}
		left := slices.DeleteFunc(slices.Clone(old.Asks), func(a events.OpenAsk) bool {
			return a.ToolCallID == toolCallID && a.Round <= round
		})
		if len(left) == len(old.Asks) {
			return old
		}
		emptied = len(left) == 0 && old.Asks[0].Background
		snap := *old
		snap.Asks = left
		return &snap
	})
	if err != nil || !emptied {
		return err
	}
	return s.checkEntryOf(ctx, r, false)
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
	return s.dropBefore(ctx, r, math.MaxInt)
}

// dropBefore removes the run's entry when it is of an earlier step than the one that begins. What a later handler, or
// another copy of this one, has written stays, and so do asks about background calls that are still open.
func (s *Service) dropBefore(ctx context.Context, r *run, step int) error {
	for {
		snap, rev, err := s.conn.Snapshot(ctx, r.key())
		if errors.Is(err, jetstream.ErrNotFound) || err == nil && snap.Step >= step {
			return nil
		}
		if err == nil {
			var left []events.OpenAsk
			left, err = s.outlasting(ctx, snap.Asks)
			switch {
			case err != nil:
			case len(left) == 0:
				err = s.conn.DeleteSnapshot(ctx, r.key(), rev)
			case len(left) == len(snap.Asks):
				return nil
			default:
				snap.Asks = left
				_, err = s.conn.PutSnapshot(ctx, snap, rev)
			}
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

// outlasting are those of the asks that go on when their step does not: about background calls that have no result.
func (s *Service) outlasting(ctx context.Context, asks []events.OpenAsk) ([]events.OpenAsk, error) {
	var open []events.OpenAsk
	for _, a := range asks {
		if !a.Background {
			continue
		}
		call, err := events.ParseCallID(a.ToolCallID)
		if err != nil {
			return nil, jetstream.Final(err)
		}
		last, err := s.last(ctx, call)
		switch {
		case err != nil && !errors.Is(err, jetstream.ErrNotFound):
			return nil, err
		case err == nil && last.Place.Kind == events.KindResult:
			continue
		}
		open = append(open, a) // one that is not stored yet is about to be
	}
	return open, nil
}

// checkEntry reads the log after the entries of a run were written: that of a run which has ended in between goes, and asks
// that lost their place are taken out.
func (s *Service) checkEntry(ctx context.Context, r *run, overtaken bool) error {
	return s.eachListing(ctx, r, func(of *run) error { return s.checkEntryOf(ctx, of, overtaken) })
}

func (s *Service) checkEntryOf(ctx context.Context, r *run, overtaken bool) error {
	head, err := s.conn.Last(ctx, s.ns.MainOf(r.start.RunID))
	if err != nil {
		return ignoreMissing(err)
	}
	switch {
	case overtaken:
		return s.mendEntry(ctx, r)
	case head.Place.Kind == events.KindEnd:
		return s.dropEntry(ctx, r)
	}
	return nil
}

// mendEntry makes the entry say what the log says, and drops one of an earlier step.
func (s *Service) mendEntry(ctx context.Context, r *run) error {
	snap, err := s.conn.Listed(ctx, r.key())
	if err != nil {
		return ignoreMissing(err)
	}
	head, err := s.conn.Last(ctx, s.ns.MainOf(r.start.RunID))
	if err != nil && !errors.Is(err, jetstream.ErrNotFound) {
		return err
	}
	switch {
	case err != nil || head.Place.Kind == events.KindEnd:
		err = s.dropEntry(ctx, r)
	case head.Place.Kind == events.KindStep && head.Place.N > snap.Step:
		err = s.dropBefore(ctx, r, head.Place.N)
	}
	if err != nil {
		return err
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
		if err != nil {
			continue // its first fact is about to be stored
		}
		if err := s.mendAsk(ctx, r, a, last); err != nil {
			return err
		}
	}
	return nil
}

// mendAsk compares an ask of the entry with the last fact of its call. One whose round is over goes; a stored one is
// listed as it was stored. One that is not stored yet stays: the entry comes first.
func (s *Service) mendAsk(ctx context.Context, r *run, a events.OpenAsk, last events.Event) error {
	if last.Place.Kind == events.KindAsk {
		if err := s.genuine(last); err != nil {
			of, missing := s.run(ctx, last.Place.Run)
			if missing != nil {
				return missing
			}
			return s.tampered(ctx, of, last, err)
		}
		stored, err := events.Data[events.CallHeld](last)
		if err != nil {
			return jetstream.Final(err)
		}
		return s.enterIn(ctx, r, []events.CallHeld{stored})
	}
	if last.Place.Kind != events.KindResult && events.RoundOf(last) < a.Round {
		return nil
	}
	return s.takeOutOf(ctx, r, a.ToolCallID, a.Round)
}

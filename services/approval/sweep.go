package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/service"
)

// The sweeper finds what a handler has left undone and calls that handler again. It needs no index of its own: what is
// outstanding stands in the backlog of a durable consumer, and what waits for people stands in the bucket suspended.
// Every rule repeats a handler, so it is safe at any time, twice, and beside itself.

// scanShare is the share of time that scans of the bucket may take.
const scanShare = 20

// sweep sweeps until ctx ends.
func (s *Service) sweep(ctx context.Context) error {
	var nextDeep, nextScan time.Time
	for {
		if err := service.Sleep(ctx, s.cfg.Sweep); err != nil {
			return nil //nolint:nilerr // the clean stop
		}
		now := time.Now()
		s.try(ctx, "backlog", s.sweepBacklog)
		s.try(ctx, "pools", s.sweepPools)
		s.try(ctx, "delegated", s.sweepDelegated)
		if now.After(nextScan) {
			s.try(ctx, "suspended", s.sweepSuspended)
			s.try(ctx, "grants", s.sweepGrants)
			nextScan = time.Now().Add(max(s.cfg.SweepAge, scanShare*time.Since(now)))
		}
		if now.After(nextDeep) {
			s.try(ctx, "asks", s.sweepAsks)
			nextDeep = time.Now().Add(s.cfg.DeepSweep)
		}
	}
}

// try runs one rule; what fails is logged and tried again with the next sweep.
func (s *Service) try(ctx context.Context, what string, f func(context.Context) error) {
	if err := f(ctx); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "sweep failed", "rule", what, "error", err)
	}
}

// sweepBacklog handles again what the gate's own consumer of the log has not acknowledged: steps whose calls have no
// first fact, suspensions without an ask, ends with anything left.
func (s *Service) sweepBacklog(ctx context.Context) error {
	b, err := s.conn.Backlog(ctx, events.StreamRuns, Name)
	if err != nil || b.Outstanding == 0 {
		return err
	}
	filters := []string{s.ns.EveryMain(events.KindStep), s.ns.EveryMain(events.KindEnd), s.ns.EveryCall(events.KindSuspend)}
	return s.each(ctx, b, filters, func(fact events.Event) error {
		return s.onFact(ctx, jetstream.Delivery{Event: fact, Subject: fact.Place.Subject(), Attempt: 2})
	})
}

// each calls f for every fact behind a consumer's floor that is older than the sweeper's age.
func (s *Service) each(ctx context.Context, b jetstream.Backlog, filters []string, f func(events.Event) error) error {
	for fact, err := range s.conn.Overdue(ctx, b, s.cfg.SweepAge, filters...) {
		if err != nil {
			return err
		}
		if fact.Carried {
			continue
		}
		if err := f(fact); err != nil && !jetstream.IsLater(err) && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sweep failed", "runId", fact.Place.Run, "kind", string(fact.Place.Kind), "error", err)
		}
	}
	return nil
}

// sweepPools ends released calls that nobody has claimed by their deadline, and holds claimed ones whose worker is
// gone when no executor of the pool is left to do so.
func (s *Service) sweepPools(ctx context.Context) error {
	for _, pool := range s.cfg.Pools {
		b, err := s.conn.Backlog(ctx, events.StreamRuns, events.PoolConsumer(pool))
		if err != nil {
			return err
		}
		if b.Outstanding == 0 {
			continue
		}
		err = s.each(ctx, b, []string{s.ns.EveryGo(pool)}, func(fact events.Event) error {
			return s.sweepGo(ctx, fact, b.Now)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sweepGo looks after one release.
func (s *Service) sweepGo(ctx context.Context, release events.Event, now time.Time) error {
	last, err := s.last(ctx, release.Place.CallID())
	if err != nil {
		return ignoreMissing(err)
	}
	r, err := s.run(ctx, release.Place.Run)
	if err != nil {
		return ignoreMissing(err)
	}
	d, err := events.Data[events.CallReleased](release)
	if err != nil {
		return s.tampered(ctx, r, release, err)
	}
	d.StartBy = d.Deadline(release) // by the server's clock from here on
	switch {
	case last.Place.Kind == events.KindGo && last.Seq == release.Seq && now.After(d.StartBy):
		return s.unavailable(ctx, last, d, false)
	case last.Place.Kind == events.KindClaim:
		return s.sweepClaim(ctx, r, last, d, now)
	}
	return nil
}

// sweepClaim looks after a claim without a successor whose lease is over and whose worker shows no life any more.
func (s *Service) sweepClaim(ctx context.Context, r *run, claim events.Event, d events.CallReleased, now time.Time) error {
	c, err := events.Data[events.CallClaimed](claim)
	if err != nil {
		return s.tampered(ctx, r, claim, err)
	}
	if now.Before(c.LeaseUntil) || c.Round != d.Round { // of a later release, which is looked after itself
		return nil
	}
	alive, err := s.conn.IsLive(ctx, executorService, c.Worker)
	if err != nil || alive {
		return err
	}
	left, err := s.hosted(ctx, d)
	switch {
	case err != nil:
		return err
	case left: // an executor does it
		return nil
	case !d.Effect.Repeatable():
		return s.askInDoubt(ctx, r, claim)
	case now.After(d.StartBy):
		return s.unavailable(ctx, claim, d, true)
	}
	return nil
}

// hosted reports whether an executor lives that can run a released call: it says that it hosts this version of the tool,
// or does not say what it hosts.
func (s *Service) hosted(ctx context.Context, d events.CallReleased) (bool, error) {
	live, err := s.conn.ListLive(ctx, executorService)
	return slices.ContainsFunc(live, func(l events.Live) bool {
		return l.Pool == d.Pool && (len(l.Tools) == 0 || slices.Contains(l.Tools, d.ToolID+"@"+d.ToolVersion))
	}), err
}

// executorService is the name under which executors show that they live.
const executorService = "tool-executor"

// unavailable ends a call that nobody runs.
func (s *Service) unavailable(ctx context.Context, last events.Event, d events.CallReleased, started bool) error {
	data := events.CallFinished{
		ToolCallID: d.ToolCallID, RunID: d.RunID, ToolName: d.ToolName, Round: d.Round,
		Outcome: events.OutcomeUnavailable, Started: started, Attempt: d.Attempt, GrantID: d.AllowedBy.Grant,
		Error: &events.ToolError{
			Name:    events.ErrorUnavailable,
			Message: fmt.Sprintf("no worker of pool %s took tool %s in time", d.Pool, d.ToolID),
		},
	}
	_, _, err := s.add(ctx, s.ns.Call(last.Place.CallID(), events.KindResult), last, data)
	return ignoreGone(err)
}

// sweepSuspended compares the entries of suspended runs with the log: entries of ended runs and asks that are answered
// go, asks past their deadline expire though their timer was lost, and asks that would age out are carried.
func (s *Service) sweepSuspended(ctx context.Context) error {
	now, err := s.conn.Now(ctx)
	if err != nil {
		return err
	}
	keys, err := s.conn.ListSuspended(ctx, "", "", "")
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		snap, err := s.conn.Listed(ctx, key)
		switch {
		case errors.Is(err, jetstream.ErrNotFound):
			continue // decided since the list was read
		case err == nil && snap.V > events.SnapshotVersion:
			s.log.ErrorContext(ctx, "the entry of a suspended run is left to a later release of Weir", "runId", snap.RunID, "version", snap.V)
			continue
		case err != nil:
			return err
		}
		if err := s.sweepEntry(ctx, snap, now); err != nil && !jetstream.IsLater(err) && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sweep failed", "runId", snap.RunID, "error", err)
		}
	}
	return nil
}

func (s *Service) sweepEntry(ctx context.Context, snap *events.Snapshot, now time.Time) error {
	if now.Sub(snap.SuspendedAt) < s.cfg.SweepAge {
		return nil
	}
	r, err := s.run(ctx, snap.RunID)
	if errors.Is(err, errNoRun) {
		return s.dropEntry(ctx, &run{start: &snap.State})
	}
	if err != nil {
		return err
	}
	if err := s.mendEntry(ctx, r); err != nil {
		return err
	}
	failed := []error{s.carryDelegated(ctx, &snap.State, now)}
	for _, a := range snap.Asks { // one that fails is in no other's way
		call, err := events.ParseCallID(a.ToolCallID)
		if err == nil && call.Run != snap.RunID {
			continue // the entry of its own run has it
		}
		if err == nil {
			var last events.Event
			if last, err = s.last(ctx, call); err == nil {
				err = s.sweepAsk(ctx, r, last, now)
			}
		}
		failed = append(failed, ignoreMissing(err))
	}
	return errors.Join(failed...)
}

// sweepAsk looks after the last fact of a call that was asked about.
func (s *Service) sweepAsk(ctx context.Context, r *run, last events.Event, now time.Time) error {
	if last.Place.Kind == events.KindAnswer || last.Place.Kind == events.KindSuspend {
		return s.help(ctx, r, last)
	}
	if last.Place.Kind != events.KindAsk {
		return nil
	}
	w, err := s.lookAfter(ctx, r, last, now)
	switch {
	case jetstream.IsLater(err): // somebody else is at it
		return nil
	case err != nil || w == nil:
		return err
	}
	if over, err := s.outlived(ctx, w, now); over || err != nil {
		return err
	}
	if now.Sub(last.Stored) > s.cfg.Retention/3 {
		return s.carryAsk(ctx, w, now)
	}
	return nil
}

// carryAsk stores an open ask again before it ages out, and does not announce it: payload and signature unchanged, or
// signed again with the votes of its round inside, which age out too. What then does not fit into a message leaves out what
// it shows beside the arguments. An ask that cannot be kept at all ends as expired while it is still there: one that has aged
// out could never be answered.
func (s *Service) carryAsk(ctx context.Context, w *openAsk, now time.Time) error {
	var err error
	for _, copyOf := range []func(*openAsk) (events.Event, error){s.withVotes, s.withVotesOnly, unchanged} {
		again, failed := copyOf(w)
		if failed != nil {
			return jetstream.Final(failed)
		}
		if _, err = s.conn.Append(ctx, events.After(w.fact), again); !errors.Is(err, jetstream.ErrTooLarge) {
			return err
		}
	}
	if now.Sub(w.fact.Stored) <= s.cfg.Retention*2/3 {
		return err
	}
	s.log.ErrorContext(ctx, "an ask cannot be kept longer: it ends as expired",
		"runId", w.ask.RunID, "toolCallId", w.ask.ToolCallID, "error", err)
	return s.conclude(ctx, w.run, w.fact, expiredAt(w.ask, now))
}

// withVotes is a copy of an open ask with the votes inside that it does not have yet; without any it is unchanged.
func (s *Service) withVotes(w *openAsk) (events.Event, error) {
	inside := w.ask.Quorum.With(w.votes.briefs()...)
	if inside == nil || len(inside.Votes) == len(w.ask.Quorum.Votes) {
		return unchanged(w)
	}
	ask := w.ask
	ask.Quorum = inside
	return s.origin.Carry(w.fact, ask)
}

// withVotesOnly is withVotes without what the ask shows beside the arguments.
func (s *Service) withVotesOnly(w *openAsk) (events.Event, error) {
	ask := w.ask
	ask.Quorum = ask.Quorum.With(w.votes.briefs()...)
	ask.Preview, ask.LastWords = nil, nil
	return s.origin.Carry(w.fact, ask)
}

func unchanged(w *openAsk) (events.Event, error) {
	again := w.fact
	again.Carried = true
	return again, nil
}

// carry stores the last use of a grant again before it ages out: payload and signature unchanged.
func (s *Service) carry(ctx context.Context, fact events.Event) error {
	again := fact
	again.Carried = true
	_, err := s.conn.Append(ctx, events.After(fact), again)
	return err
}

// sweepGrants carries the last use of every grant in force, so that no use is ever counted from the beginning again. Those
// that are over need none: the bucket forgets them by itself.
func (s *Service) sweepGrants(ctx context.Context) error {
	grants, err := s.conn.Grants(ctx, events.GrantFilter{})
	if err != nil || len(grants) == 0 {
		return err
	}
	now, err := s.conn.Now(ctx)
	if err != nil {
		return err
	}
	for _, g := range grants {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !g.InForce(now) {
			continue
		}
		if err := s.carryUse(ctx, g.ID, now); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sweep failed", "grantId", g.ID, "error", err)
		}
	}
	return nil
}

func (s *Service) carryUse(ctx context.Context, grant string, now time.Time) error {
	last, err := s.conn.Last(ctx, s.ns.UsesOf(grant))
	if err != nil {
		return ignoreMissing(err)
	}
	if now.Sub(last.Stored) <= s.cfg.Retention/3 {
		return nil
	}
	return s.carry(ctx, last)
}

// sweepAsks looks at every ask that the log still holds, so that entries and timers are made up when the bucket or the
// timers were lost.
func (s *Service) sweepAsks(ctx context.Context) error {
	now, err := s.conn.Now(ctx)
	if err != nil {
		return err
	}
	subjects, err := s.conn.Subjects(ctx, s.ns.EveryCall(events.KindAsk))
	if err != nil {
		return err
	}
	for _, subject := range subjects {
		p, err := events.ParsePlace(subject)
		if err != nil || ctx.Err() != nil {
			continue
		}
		if err := s.sweepHeld(ctx, p, now); err != nil && !jetstream.IsLater(err) && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sweep failed", "runId", p.Run, "error", err)
		}
	}
	return nil
}

func (s *Service) sweepHeld(ctx context.Context, p events.Place, now time.Time) error {
	last, err := s.conn.Last(ctx, p.Chain())
	if err != nil {
		return ignoreMissing(err)
	}
	if last.Place.Kind == events.KindResult || now.Sub(last.Stored) < s.cfg.SweepAge {
		return nil
	}
	r, err := s.run(ctx, p.Run)
	if err != nil {
		return ignoreMissing(err)
	}
	if last.Place.Kind != events.KindAsk {
		return s.sweepAsk(ctx, r, last, now)
	}
	ask, err := events.Data[events.CallHeld](last)
	if err != nil || s.genuine(last) != nil {
		return s.tampered(ctx, r, last, errors.Join(err, s.genuine(last)))
	}
	if err := s.enter(ctx, r, []events.CallHeld{ask}); err != nil {
		return err
	}
	if err := s.setTimers(ctx, ask, time.Time{}); err != nil {
		return err
	}
	return s.checkEntry(ctx, r, true)
}

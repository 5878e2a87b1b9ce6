package planner

import (
	"context"
	"errors"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/service"
)

// The sweeper repeats handlers for what is outstanding: it is safe at any time, twice, and beside itself. What is
// outstanding stands in the backlog of the planner's consumer; what waits for people, in the bucket suspended.

// sweptAttempt marks turns that the sweeper drives, so that their chunks are told from those of deliveries.
const sweptAttempt = 1000

func (s *Service) sweep(ctx context.Context) error {
	var nextDeep, nextCarry time.Time
	for {
		if err := service.Sleep(ctx, s.cfg.Sweep); err != nil {
			return nil //nolint:nilerr // the clean stop
		}
		s.try(ctx, "backlog", s.sweepBacklog)
		if now := time.Now(); now.After(nextDeep) {
			s.try(ctx, "runs", s.sweepRuns)
			s.try(ctx, "threads", s.sweepThreads)
			nextDeep = time.Now().Add(s.cfg.DeepSweep)
		}
		if now := time.Now(); now.After(nextCarry) {
			s.try(ctx, "carry", s.sweepSuspended)
			nextCarry = time.Now().Add(s.cfg.Retention / 12)
		}
	}
}

func (s *Service) try(ctx context.Context, what string, f func(context.Context) error) {
	if err := f(ctx); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "sweep failed", "rule", what, "error", err)
	}
}

// sweepBacklog handles again what the planner's consumer of the log has not acknowledged.
func (s *Service) sweepBacklog(ctx context.Context) error {
	b, err := s.conn.Backlog(ctx, events.StreamRuns, Name)
	if err != nil || b.Outstanding == 0 {
		return err
	}
	filters := []string{s.ns.EveryMain(events.KindStart), s.ns.EveryCall(events.KindResult), s.ns.EveryGo(events.TokenAgentPool)}
	for fact, err := range s.conn.Overdue(ctx, b, s.cfg.SweepAge, filters...) {
		if err != nil {
			return err
		}
		if s.busy(fact.Place.Run) {
			continue
		}
		d := jetstream.Delivery{Event: fact, Subject: fact.Place.Subject(), Attempt: sweptAttempt}
		if err := s.onFact(ctx, d); err != nil && !jetstream.IsLater(err) && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sweep failed", "runId", fact.Place.Run, "error", err)
		}
	}
	return nil
}

// busy reports whether this process is taking a turn of the run: a long turn is not a lost one.
func (s *Service) busy(run string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turns[run] != nil
}

// sweepRuns looks at every run of the log that has a start and no end, and goes on with one that stands still.
func (s *Service) sweepRuns(ctx context.Context) error {
	now, err := s.conn.Now(ctx)
	if err != nil {
		return err
	}
	starts, err := s.conn.Subjects(ctx, s.ns.EveryMain(events.KindStart))
	if err != nil {
		return err
	}
	ends, err := s.conn.Subjects(ctx, s.ns.EveryMain(events.KindEnd))
	if err != nil {
		return err
	}
	ended := make(map[string]bool, len(ends))
	for _, subject := range ends {
		if p, err := events.ParsePlace(subject); err == nil {
			ended[p.Run] = true
		}
	}
	for _, subject := range starts {
		p, err := events.ParsePlace(subject)
		if err != nil || ended[p.Run] || s.busy(p.Run) || ctx.Err() != nil {
			continue
		}
		if err := s.sweepRun(ctx, p.Run, now); err != nil && !jetstream.IsLater(err) && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sweep failed", "runId", p.Run, "error", err)
		}
	}
	return nil
}

// sweepRun goes on with a run whose last fact obliges the planner: a start or carry without a turn, a settled step.
func (s *Service) sweepRun(ctx context.Context, run string, now time.Time) error {
	st, head, err := s.conn.RunState(ctx, run)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	st, _ = waitedOut(st, head)
	if st.Ended != "" || !st.Settled() || now.Sub(head.Stored) < s.cfg.SweepAge || now.Sub(st.SettledAt) < s.cfg.SweepAge {
		return nil
	}
	if due := st.CancelDue(); due != nil && due.End == events.RunFailed && len(st.OpenTasks()) > 0 { // who was about to end it was stopped
		return s.askForEnd(ctx, run, events.Errorf(due.Code, "%s", due.Reason), head)
	}
	return s.advance(ctx, st, head, sweptAttempt)
}

// sweepSuspended carries the state of runs that wait for people, long before their first facts age out.
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
		run, err := events.RunOfKey(key)
		if err != nil || ctx.Err() != nil {
			continue
		}
		if err := s.carry(ctx, run, now); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "carry failed", "runId", run, "error", err)
		}
	}
	return nil
}

// carry stores the state of an open run again once a third of the retention has passed since the oldest fact that it
// rests on was stored.
func (s *Service) carry(ctx context.Context, run string, now time.Time) error {
	head, err := s.conn.Last(ctx, s.ns.MainOf(run))
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if head.Place.Kind == events.KindEnd {
		return nil
	}
	since, carries, err := s.restsOn(ctx, head)
	if err != nil || now.Sub(since) < s.cfg.Retention/3 {
		return err
	}
	st, at, err := s.conn.RunState(ctx, run)
	if err != nil || at.Seq != head.Seq {
		return err
	}
	data, err := s.conn.ShrinkCarry(ctx, events.RunCarried{RunID: run, Step: st.Step, MainSeq: st.MainSeq, State: *st})
	if err != nil {
		return err
	}
	_, _, err = s.add(ctx, s.ns.Carry(run, max(carries, st.Carries)+1), head, data)
	return err
}

// restsOn is when the oldest fact was stored that the state of a run rests on, its last carry, else its start, and how often
// it was carried. How young its last step is does not matter: a state that begins with a fact that has aged out cannot be
// told any more.
func (s *Service) restsOn(ctx context.Context, head events.Event) (since time.Time, carries int, err error) {
	carry, err := s.conn.Last(ctx, s.ns.CarriesOf(head.Place.Run))
	if err == nil {
		return carry.Stored, carry.Place.N, nil
	}
	if !errors.Is(err, jetstream.ErrNotFound) {
		return since, 0, err
	}
	start, err := s.conn.Fact(ctx, s.ns.Start(head.Place.Run))
	if errors.Is(err, jetstream.ErrNotFound) {
		return head.Stored, 0, nil
	}
	return start.Stored, 0, err
}

package approval

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// A run may bound how many of its calls execute at once: how many have been released and have neither a result nor been
// suspended. No guard spans two chains, so gates that release calls of a run side by side, or are stopped in the middle, keep
// the bound by an order that each of them finds in the log by itself. The place of a call in it is the sequence of the fact
// that lets it be released: of its answer, or, while it has no fact of its own, of its step, and there its index. A call gives
// way to those that execute, and to those that wait before it in this order.
//
// Of any calls that execute at the same time, take the one that comes last in the order: when its gate looked, after that
// place was stored, each of the others either executed or waited before it, so they were counted. And the first of those that
// wait gives way only to calls that execute, so there is always one that goes on. A call that waits for people, for its client
// or for its doubt to be settled counts for nothing.
//
// What has to wait is delivered again: the step, or the decision. Nothing that counts is kept in a process.

// concurrency is how many calls of the run execute at once; 0 is any number.
func (r *run) concurrency() int { return r.start.Options.Concurrency(r.agent) }

// queued is the place of a call that waits to be released.
type queued struct {
	call     events.CallID
	seq      uint64 // of its answer, or of its step
	answered bool
}

// turn is nil when a call may be released now, and puts its delivery off when it is not its turn.
func (s *Service) turn(ctx context.Context, r *run, q queued) error {
	bound := r.concurrency()
	if bound == 0 {
		return nil
	}
	st, err := s.current(ctx, q.call.Run)
	if err != nil {
		return err
	}
	if st.Step < q.call.Step {
		return fmt.Errorf("the leader does not show step %d of %s yet", q.call.Step, q.call.Run)
	}
	before, last := 0, st.SettledAt
	for _, token := range st.Open() {
		other, err := events.CallOf(q.call.Run, token)
		if err != nil {
			return jetstream.Final(err)
		}
		if other == q.call {
			continue
		}
		head, err := s.last(ctx, other)
		if err != nil && !errors.Is(err, jetstream.ErrNotFound) {
			return err
		}
		first, err := s.comesBefore(ctx, other, head, q)
		if err != nil {
			return err
		}
		if first {
			before++
		}
		if head.Stored.After(last) {
			last = head.Stored
		}
	}
	if before < bound {
		return nil
	}
	return jetstream.Later(lookIn(time.Since(last)))
}

// comesBefore reports whether a call, by the last fact of its chain, executes or waits before another one.
func (s *Service) comesBefore(ctx context.Context, other events.CallID, head events.Event, q queued) (bool, error) {
	switch head.Place.Kind {
	case events.KindGo, events.KindClaim:
		return true, nil
	case events.KindAnswer:
		return head.Seq < q.seq, nil
	case "":
		switch {
		case !q.answered:
			return other.Step < q.call.Step || other.Step == q.call.Step && other.Index < q.call.Index, nil
		case other.Step <= q.call.Step:
			return true, nil
		}
		step, err := s.conn.Fact(ctx, s.ns.Step(other.Run, other.Step)) // one that came while the call waited in the background
		if err != nil {
			return false, fmt.Errorf("read step %d of %s: %w", other.Step, other.Run, err)
		}
		return step.Seq < q.seq, nil
	default:
		return false, nil
	}
}

// lookIn is when to look again: soon after something has happened, more seldom the longer nothing has.
func lookIn(quiet time.Duration) time.Duration {
	return min(max(quiet/4, 50*time.Millisecond), 2*time.Second)
}

// putOff keeps that something has to wait, while the rest is gone on with.
type putOff struct{ later error }

// takes reports whether an error says only that.
func (p *putOff) takes(err error) bool {
	if !jetstream.IsLater(err) {
		return false
	}
	p.later = err
	return true
}

// unopened are the calls of a step that have no fact yet. Those that have are helped on, and are not judged again: the step of
// a run with a bound is delivered many times.
func (s *Service) unopened(ctx context.Context, r *run, questions []question) (left []question, err error) {
	var queue putOff
	for _, q := range questions {
		last, err := s.last(ctx, q.call)
		if errors.Is(err, jetstream.ErrNotFound) {
			left = append(left, q)
			continue
		}
		if err != nil {
			return nil, err
		}
		if _, done := s.helped.Get(last.ID); done && last.Place.Kind == events.KindAsk {
			continue
		}
		if err := s.help(ctx, r, last); err != nil && !queue.takes(err) {
			return nil, err
		}
		s.helped.Put(last.ID, struct{}{}, 1)
	}
	return left, queue.later
}

// neverCame ends a call that has not come to its turn for so long that its step would age out.
func (q question) neverCame() ruling {
	return ruling{finished: q.result(events.OutcomeUnavailable, func(d *events.CallFinished) {
		d.Error = &events.ToolError{
			Name: events.ErrorUnavailable, Message: "the call did not come to its turn in time: too many calls of the run went on before it",
		}
	})}
}

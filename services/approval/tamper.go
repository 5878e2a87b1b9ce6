package approval

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// kindForeign stands for the kind of a stored message that is no fact of Weir's.
const kindForeign events.Kind = "foreign"

// last is the last fact of a call's chain. A message there that no service of Weir wrote is tampering: the call gets
// its blocked result first, which is then what stands last.
func (s *Service) last(ctx context.Context, call events.CallID) (events.Event, error) {
	chain := s.ns.Call(call, events.KindResult).Chain()
	e, err := s.conn.Last(ctx, chain)
	if !errors.Is(err, jetstream.ErrTampered) || e.Place.Kind == events.KindResult {
		if errors.Is(err, jetstream.ErrTampered) {
			err = nil // the chain is closed, and its planner ends the run
		}
		return e, err
	}
	if err := s.closeForeign(ctx, call, e, err); err != nil {
		return events.Event{}, err
	}
	return s.conn.Last(ctx, chain)
}

// tampered ends a call whose chain holds a fact that no gate wrote: nothing of it runs, and people are alarmed.
func (s *Service) tampered(ctx context.Context, r *run, fact events.Event, why error) error {
	call := fact.Place.CallID()
	if err := s.closeForeign(ctx, call, fact, why); err != nil {
		return err
	}
	return s.takeOut(ctx, r, call.String(), everyRound)
}

// closeForeign appends a call's blocked result after a message that is not what its place calls for.
func (s *Service) closeForeign(ctx context.Context, call events.CallID, fact events.Event, why error) error {
	s.log.ErrorContext(ctx, "tampering: a fact that no service of Weir wrote", "runId", call.Run, "toolCallId", call.String(),
		"kind", string(fact.Place.Kind), "seq", fact.Seq, "error", why)
	if fact.Place.Kind == "" || fact.Place.CallID() != call {
		fact.Place = s.ns.Call(call, kindForeign)
	}
	d := events.CallFinished{
		ToolCallID: call.String(), RunID: call.Run, Outcome: events.OutcomeBlocked,
		Reason: string(events.CodeTampering), Foreign: fact.Seq,
		Error: &events.ToolError{Name: string(events.CodeTampering), Message: "the call's record was tampered with"},
	}
	_, _, err := s.add(ctx, s.ns.Call(call, events.KindResult), fact, d)
	return ignoreGone(err)
}

// everyCall are the calls of a run whose head is no fact, with the names of their tools: those that have facts, and those
// that its steps ask for.
func (s *Service) everyCall(ctx context.Context, id string) (map[string]events.CallPlanned, error) {
	calls := map[string]events.CallPlanned{}
	for _, filter := range []string{s.ns.CallsOf(id), s.ns.MainOf(id)} {
		subjects, err := s.conn.Subjects(ctx, filter)
		if err != nil {
			return nil, err
		}
		for _, subject := range subjects {
			p, err := events.ParsePlace(subject)
			if err != nil {
				continue
			}
			if err := s.addCalls(ctx, calls, p); err != nil {
				return nil, err
			}
		}
	}
	return calls, nil
}

func (s *Service) addCalls(ctx context.Context, calls map[string]events.CallPlanned, p events.Place) error {
	if !p.IsMain() {
		if _, known := calls[p.Call]; !known {
			calls[p.Call] = events.CallPlanned{} // its step, which names the tool, may not be readable
		}
		return nil
	}
	fact, err := s.conn.Fact(ctx, p)
	if errors.Is(err, jetstream.ErrTampered) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s of %s: %w", p.Kind, p.Run, err)
	}
	more, err := callsAt(fact)
	maps.Copy(calls, more)
	return err
}

// onForeign handles a message of the log that is no event of its place: the call or run that it was slipped into ends.
func (s *Service) onForeign(ctx context.Context, d jetstream.Delivery, _ []byte, cause error) error {
	p, err := events.ParsePlace(d.Subject)
	if err != nil {
		return jetstream.Final(cause)
	}
	if !p.IsMain() {
		if p.Kind == events.KindSuspend {
			if _, err := s.last(ctx, p.CallID()); err != nil && !errors.Is(err, jetstream.ErrNotFound) {
				return fmt.Errorf("close call %s: %w", p.CallID(), err)
			}
		}
		return jetstream.Final(cause)
	}
	s.log.ErrorContext(ctx, "tampering: a fact that no service of Weir wrote", "runId", p.Run, "kind", string(p.Kind),
		"seq", d.Event.Seq, "error", cause)
	err = s.endRun(ctx, p.Run, events.CancelCause{
		RunID: p.Run, End: events.RunFailed, Code: events.CodeTampering,
		By: Name, Reason: "the run's record was tampered with",
	})
	if err != nil {
		return err
	}
	return jetstream.Final(cause)
}

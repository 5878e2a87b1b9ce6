package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// onUnnamed takes a decision that names no call: it means the one that waited when the server stored it. Only facts with
// a time stamp decide which that is, so a decision that is delivered again, late or beside itself means the same call.
func (s *Service) onUnnamed(ctx context.Context, d jetstream.Delivery, in events.Inbox) error {
	if !events.IsRunID(in.Run) {
		return s.noteOnly(ctx, d, in, events.Errorf(events.CodeInvalidRequest, "%q is not the id of a run", in.Run))
	}
	place := s.ns.BesideRun(in.Run, idOf(d))
	before, err := s.conn.Fact(ctx, place)
	switch {
	case err == nil: // it met no call, and meets none now
		s.note(ctx, s.ns.Note(in.Principal, in.Run, events.TokenRun), before)
		return nil
	case !errors.Is(err, jetstream.ErrNotFound):
		return err
	}
	req, refusal := readDecision(d, "")
	if refusal != nil {
		return s.refuseAt(ctx, d, in, place, refusal)
	}
	who, refusal, err := s.prove(ctx, d, in, req)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return s.refuseAt(ctx, d, in, place, refusal)
	}
	call, used, refusal, err := s.meant(ctx, in.Run, in, d)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return s.refuseAt(ctx, d, in, place, refusal)
	case used:
		return s.goOn(ctx, call)
	}
	return s.meet(ctx, d, in, meeting{call: call, req: req, who: who})
}

// meetBelow takes a decision that names a call which was delegated: it means the one call that waited in the run that it was
// delegated to, or below that. When people were asked about the delegation itself, a decision that names no arguments is about
// that question, and comes too late.
func (s *Service) meetBelow(ctx context.Context, d jetstream.Delivery, in events.Inbox, m meeting, release events.Event) error {
	named := m.call
	counted, err := s.counted(ctx, named)
	switch {
	case err != nil:
		return err
	case counted != nil && (took(counted, d) || m.req.Fingerprint == ""):
		return s.tooLate(ctx, d, in, release)
	}
	call, used, refusal, err := s.meant(ctx, named.String(), in, d)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return s.refuse(ctx, d, in, named, refusal)
	case used:
		return s.goOn(ctx, call)
	}
	m.call = call
	return s.meet(ctx, d, in, m)
}

// goOn is for a decision that counted and is delivered again: what its answer leads to may be missing.
func (s *Service) goOn(ctx context.Context, call events.CallID) error {
	last, err := s.last(ctx, call)
	if err != nil || last.Place.Kind != events.KindAnswer {
		return err
	}
	r, err := s.run(ctx, call.Run)
	if err != nil {
		return err
	}
	return s.follow(ctx, r, last)
}

// meant is the call that a decision means which names none, or the one that this very event has decided already. An ask
// that was stored after the decision is never meant.
func (s *Service) meant(ctx context.Context, run string, in events.Inbox, d jetstream.Delivery) (call events.CallID, used bool, refusal *events.Error, err error) {
	asked, err := s.askedCalls(ctx, run)
	if err != nil {
		return call, false, nil, err
	}
	var waiting []events.CallID
	for _, call := range asked {
		held, used, err := s.stood(ctx, call, in, d)
		switch {
		case err != nil || used:
			return call, used, nil, err
		case held:
			waiting = append(waiting, call)
		}
	}
	switch len(waiting) {
	case 1:
		return waiting[0], false, nil, nil
	case 0:
		refusal, err = s.noneWaits(ctx, run, d)
		return call, false, refusal, err
	}
	e := events.Errorf(events.CodeAmbiguous, "%d calls of run %s wait for a decision: name one", len(waiting), run)
	for _, call := range waiting {
		e.Asks = append(e.Asks, call.String())
	}
	return call, false, e, nil
}

// noneWaits says why a decision met no call. A run that shows no ask yet is looked at once more.
func (s *Service) noneWaits(ctx context.Context, run string, d jetstream.Delivery) (*events.Error, error) {
	_, err := s.conn.Fact(ctx, s.ns.End(run))
	switch {
	case err == nil:
		return events.Errorf(events.CodeRunEnded, "run %s is over", run), nil
	case !errors.Is(err, jetstream.ErrNotFound):
		return nil, err
	case d.Attempt <= 1:
		return nil, jetstream.Later(lookAgain)
	}
	_, err = s.conn.Last(ctx, s.ns.MainOf(run))
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return events.NotFound("run", "run %s is not known", run), nil
	case err != nil && !errors.Is(err, jetstream.ErrTampered):
		return nil, err
	}
	return events.NotFound("call", "no call of run %s waits for a decision", run), nil
}

// askedCalls are the calls of a run, and of the runs below it, that people have ever been asked about.
func (s *Service) askedCalls(ctx context.Context, run string) ([]events.CallID, error) {
	var asked []events.CallID
	for runs := []string{run}; len(runs) > 0; runs = runs[1:] {
		subjects, err := s.conn.Subjects(ctx, s.ns.CallsOf(runs[0]))
		if err != nil {
			return nil, fmt.Errorf("list calls of %s: %w", runs[0], err)
		}
		for _, subject := range subjects {
			p, err := events.ParsePlace(subject)
			switch {
			case err != nil: // nothing that a service of Weir has stored
			case p.Kind == events.KindAsk:
				asked = append(asked, p.CallID())
			case p.Kind == events.KindGo && p.Pool == events.TokenAgentPool:
				runs = append(runs, p.CallID().String()) // delegated: the child's id is the call's
			}
		}
	}
	slices.SortFunc(asked, func(a, b events.CallID) int { return events.CompareCalls(a.String(), b.String()) })
	return asked, nil
}

// stood reports whether a call was held when a decision was stored, and whether that decision is part of an answer of it.
// It reads the chain to its end: what came later tells of the decision, not of that moment.
func (s *Service) stood(ctx context.Context, call events.CallID, in events.Inbox, d jetstream.Delivery) (held, used bool, err error) {
	chain := s.ns.Call(call, events.KindAsk).Chain()
	for seq := uint64(0); ; {
		fact, err := s.conn.NextFact(ctx, seq, chain)
		switch {
		case errors.Is(err, jetstream.ErrNotFound):
			return held, false, nil
		case errors.Is(err, jetstream.ErrTampered):
		case err != nil:
			return false, false, fmt.Errorf("read call %s: %w", call, err)
		case s.became(fact, in, d):
			return held, true, nil
		}
		seq = fact.Seq
		if !since(fact).After(d.Event.Stored) {
			held = err == nil && fact.Place.Kind == events.KindAsk
		}
	}
}

// became reports whether a decision is part of the answer that a fact is, by a gate's word.
func (s *Service) became(fact events.Event, in events.Inbox, d jetstream.Delivery) bool {
	if fact.Place.Kind != events.KindAnswer || d.Event.ID == "" {
		return false
	}
	a, err := events.Data[events.CallAnswered](fact)
	if err != nil || a.EventID == d.Event.ID && !events.SamePrincipal(in.Principal, a.Principal) {
		return false
	}
	return took(&a, d) && s.genuine(fact) == nil
}

// since is when a fact was stored, and of an ask since when people could know it.
func since(fact events.Event) time.Time {
	if fact.Place.Kind == events.KindAsk {
		if ask, err := events.Data[events.CallHeld](fact); err == nil {
			return ask.KnownSince(fact)
		}
	}
	return fact.Stored
}

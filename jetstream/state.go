package jetstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirkeeper/weir/events"
)

// RunState is what the log says about a run: the fold of its facts, and the last fact of its main chain, which is
// the one to follow. Everything comes from the leader. The state begins with main.start, or, when that has aged out,
// with the last carry; ErrNotFound means that the run is unknown or has aged out.
func (c *Conn) RunState(ctx context.Context, run string) (*events.State, events.Event, error) {
	head, err := c.Last(ctx, c.ns.MainOf(run))
	if err != nil {
		return nil, head, fmt.Errorf("state of run %s: %w", run, err)
	}
	main, err := c.mainFacts(ctx, head)
	if err != nil {
		return nil, head, fmt.Errorf("state of run %s: %w", run, err)
	}
	st, err := c.fold(ctx, main)
	if err != nil {
		return nil, head, fmt.Errorf("state of run %s: %w", run, err)
	}
	return st, head, nil
}

// mainFacts are the facts of a main chain up to its head, beginning with the start or the last carry.
func (c *Conn) mainFacts(ctx context.Context, head events.Event) ([]events.Event, error) {
	switch p := head.Place; p.Kind {
	case events.KindStart, events.KindCarry:
		return []events.Event{head}, nil
	case events.KindStep:
		places := []events.Place{c.ns.Start(p.Run)}
		for n := 1; n < p.N; n++ {
			places = append(places, c.ns.Step(p.Run, n))
		}
		facts, err := c.Facts(ctx, places...)
		if err != nil {
			return nil, err
		}
		if facts[0].ID != "" { // whatever aged out is older, so nothing after it has
			return append(facts, head), nil
		}
	default: // the end: how many steps and carries came before, only the log knows
	}
	return c.walk(ctx, head)
}

// walk reads a main chain one by one from its oldest fact. It is for chains whose subjects cannot be foretold: those
// that have ended, and those whose start has aged out.
func (c *Conn) walk(ctx context.Context, head events.Event) ([]events.Event, error) {
	var facts []events.Event
	for from := uint64(1); ; {
		e, err := c.fact(ctx, msgGet{NextBy: head.Place.Chain(), Seq: from})
		if err != nil {
			return nil, err
		}
		if e.Place.Kind == events.KindCarry {
			facts = nil // it holds everything before it
		}
		facts = append(facts, e)
		if e.Seq >= head.Seq {
			return facts, nil
		}
		from = e.Seq + 1
	}
}

// fold applies facts of a main chain and the results of the calls that they ask for.
func (c *Conn) fold(ctx context.Context, main []events.Event) (*events.State, error) {
	st, err := c.beginning(ctx, main[0])
	if errors.Is(err, events.ErrOutOfOrder) { // neither start nor carry: what came before has aged out
		return nil, fmt.Errorf("%w: the log begins with %s", ErrNotFound, main[0].Place.Kind)
	}
	if err != nil {
		return nil, err
	}
	results, err := c.results(ctx, st, main)
	if err != nil {
		return nil, err
	}
	for i, e := range main {
		if i > 0 {
			if err := st.Apply(e); err != nil {
				return nil, err
			}
		}
		for _, result := range results[i] {
			if err := st.Apply(result); err != nil {
				return nil, err
			}
		}
	}
	return st, nil
}

// beginning is the state that a run's oldest fact holds.
func (c *Conn) beginning(ctx context.Context, first events.Event) (*events.State, error) {
	if first.Place.Kind == events.KindCarry {
		return c.carriedState(ctx, first)
	}
	return events.NewState(first)
}

// FoldResults adds to a state the results of its current step that it lacks, as the leader shows them.
func (c *Conn) FoldResults(ctx context.Context, st *events.State) error {
	var places []events.Place
	for _, token := range st.Open() {
		call, err := events.CallOf(st.RunID, token)
		if err != nil {
			return err
		}
		places = append(places, c.ns.Call(call, events.KindResult))
	}
	facts, err := c.Facts(ctx, places...)
	if err != nil {
		return fmt.Errorf("read results of %s: %w", st.RunID, err)
	}
	for _, e := range facts {
		if e.ID == "" {
			continue
		}
		if err := st.Apply(e); err != nil {
			return err
		}
	}
	return nil
}

// results reads, for each fact of the main chain, the results of its calls that are there; for the first, of those
// that are still open in the state it begins with.
func (c *Conn) results(ctx context.Context, st *events.State, main []events.Event) ([][]events.Event, error) {
	var places []events.Place
	var of []int // index in main of each place
	for i, e := range main {
		calls, err := callsOf(e)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			calls = st.Open()
		}
		for _, token := range calls {
			call, err := events.CallOf(e.Place.Run, token)
			if err != nil {
				return nil, err
			}
			places, of = append(places, c.ns.Call(call, events.KindResult)), append(of, i)
		}
	}
	facts, err := c.Facts(ctx, places...)
	if err != nil {
		return nil, err
	}
	results := make([][]events.Event, len(main))
	for i, e := range facts {
		if e.ID != "" {
			results[of[i]] = append(results[of[i]], e)
		}
	}
	return results, nil
}

// callsOf are the tokens of the calls that a step asks for.
func callsOf(e events.Event) ([]string, error) {
	if e.Place.Kind != events.KindStep {
		return nil, nil
	}
	step, err := events.Data[events.StepFinished](e)
	if err != nil {
		return nil, err
	}
	calls := make([]string, len(step.Calls))
	for i := range calls {
		calls[i] = events.CallID{Run: e.Place.Run, Step: e.Place.N, Index: i + 1}.Token()
	}
	return calls, nil
}

// HeldCalls are the calls that people are asked about, of a run and of the runs that its calls are delegated to, when the run
// waits for nothing else; none when something of it goes on. Everything comes from the leader.
func (c *Conn) HeldCalls(ctx context.Context, st *events.State) ([]string, error) {
	waits := st.Awaited()
	if len(waits) == 0 && st.Waiting {
		waits = st.Open()
	}
	var held []string
	for _, token := range waits {
		call, err := events.CallOf(st.RunID, token)
		if err != nil {
			return nil, err
		}
		last, err := c.Last(ctx, c.ns.Call(call, events.KindAsk).Chain())
		switch {
		case errors.Is(err, ErrNotFound) || errors.Is(err, ErrTampered):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("read head of %s: %w", call, err)
		case last.Place.Kind == events.KindResult:
			continue
		case last.Place.Kind == events.KindAsk:
			held = append(held, call.String())
			continue
		case !last.Place.Delegated():
			return nil, nil
		}
		below, err := c.heldBelow(ctx, call)
		if err != nil || len(below) == 0 {
			return nil, err
		}
		held = append(held, below...)
	}
	return held, nil
}

// heldBelow is HeldCalls of the run that a call is delegated to.
func (c *Conn) heldBelow(ctx context.Context, call events.CallID) ([]string, error) {
	st, _, err := c.RunState(ctx, call.String())
	switch {
	case errors.Is(err, ErrNotFound) || errors.Is(err, ErrTampered):
		return nil, nil
	case err != nil:
		return nil, err
	case st.Ended != "":
		return nil, nil
	}
	return c.HeldCalls(ctx, st)
}

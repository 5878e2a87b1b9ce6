package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// state is what the facts of a run amount to at head, with every result of the current step that the leader shows. It
// comes from memory when that was folded up to head, else from the suspended snapshot, else from the log.
func (s *Service) state(ctx context.Context, head events.Event) (*events.State, error) {
	run := head.Place.Run
	if st, ok := s.states.Get(run); ok && st.MainSeq == head.Seq {
		return s.withResults(ctx, st.Clone())
	}
	st, at, err := s.conn.RunState(ctx, run)
	if err != nil {
		return nil, fmt.Errorf("read state of %s: %w", run, err)
	}
	if at.Seq < head.Seq {
		return nil, fmt.Errorf("the leader does not show the head of %s yet", run)
	}
	s.remember(st)
	return st.Clone(), nil
}

// withResults folds in the results that a remembered state lacks.
func (s *Service) withResults(ctx context.Context, st *events.State) (*events.State, error) {
	var places []events.Place
	for _, c := range st.Open() {
		call, err := events.CallOf(st.RunID, c)
		if err != nil {
			return nil, err
		}
		places = append(places, s.ns.Call(call, events.KindResult))
	}
	facts, err := s.conn.Facts(ctx, places...)
	if err != nil {
		return nil, fmt.Errorf("read results of %s: %w", st.RunID, err)
	}
	for _, f := range facts {
		if f.ID == "" {
			continue
		}
		if err := st.Apply(f); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// remember keeps a state at about the bytes that it keeps alive.
func (s *Service) remember(st *events.State) { s.states.Put(st.RunID, st, st.Size()) }

// definition is an agent with its tools, as a run is pinned to them.
type definition struct {
	agent events.AgentDef
	tools map[string]events.Manifest // by key
}

// definition reads what a run is pinned to.
func (s *Service) definition(ctx context.Context, st *events.State) (*definition, error) {
	pins := st.Definitions
	id := pinsKey(pins)
	if d, ok := s.agents.Get(id); ok {
		return d, nil
	}
	d := &definition{tools: map[string]events.Manifest{}}
	if err := s.read(ctx, pins.Agent, &d.agent); err != nil {
		return nil, fmt.Errorf("agent %s: %w", st.AgentID, err)
	}
	for key, digest := range pins.Tools {
		var m events.Manifest
		if err := s.read(ctx, digest, &m); err != nil {
			return nil, fmt.Errorf("tool %s: %w", key, err)
		}
		d.tools[key] = m
	}
	s.agents.Put(id, d, 1)
	return d, nil
}

func pinsKey(d events.Definitions) string {
	var b strings.Builder
	b.WriteString(d.Agent)
	for _, key := range slices.Sorted(maps.Keys(d.Tools)) {
		b.WriteString("\x00" + key + "\x00" + d.Tools[key])
	}
	return b.String()
}

func (s *Service) read(ctx context.Context, digest string, into any) error {
	raw, err := s.conn.Def(ctx, digest)
	if err != nil {
		return fmt.Errorf("definition %s: %w", digest, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("definition %s: %w: %w", digest, jetstream.ErrNotFound, err)
	}
	return nil
}

// finishStep tells readers that a settled step is over: the chunk of every result once more, since its writer may have
// been stopped before it published it, then step-finish. Readers drop what they have seen.
func (s *Service) finishStep(ctx context.Context, st *events.State) {
	if len(st.Calls) == 0 {
		return
	}
	for _, c := range st.Calls {
		s.chunk(ctx, events.ResultChunk(*c.Finished, c.Args(), c.FinishedID))
	}
	messageID := st.Messages[len(st.Messages)-1].ID
	s.chunk(ctx, events.StepFinishChunk(st, messageID, reasonToolCalls, st.Final == "" && st.CancelDue() == nil))
}

// tellSuspended publishes suspended when every unfinished call is held: a result has just settled the last that was not.
func (s *Service) tellSuspended(ctx context.Context, st *events.State) error {
	var held []string
	for _, c := range st.Open() {
		call, err := events.CallOf(st.RunID, c)
		if err != nil {
			return jetstream.Final(err)
		}
		last, err := s.conn.Last(ctx, s.ns.Call(call, events.KindAsk).Chain())
		if errors.Is(err, jetstream.ErrNotFound) || err == nil && last.Place.Kind != events.KindAsk {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read head of %s: %w", call, err)
		}
		held = append(held, call.String())
	}
	s.chunk(ctx, events.SuspendedChunk(st.RunID, held))
	return nil
}

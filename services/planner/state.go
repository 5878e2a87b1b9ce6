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
	"github.com/weirkeeper/weir/services/internal/toolsearch"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// memory is what a planner remembers of an open run: its state, and the main fact that it was folded up to. It may be
// old. What is built on it is appended under the guard of that head, so an old memory costs a turn and changes nothing.
type memory struct {
	state *events.State
	head  events.Event
}

// recall is the head of the run of a delivery, from memory, when the run was at this step. Only a first delivery is worth
// a turn that may have been taken elsewhere. A run goes on without the results of its background calls, so of these an old
// memory would tell that somebody else goes on.
func (s *Service) recall(d jetstream.Delivery, step int) (events.Event, bool) {
	m, ok := s.states.Get(d.Event.Place.Run)
	return m.head, ok && d.Attempt == 1 && m.state.Step == step && m.state.Task(d.Event.Place.Call) == nil
}

// remember keeps a state at about the bytes that it keeps alive. A handler that is slower than the run takes nothing back.
func (s *Service) remember(st *events.State, head events.Event) {
	if m, ok := s.states.Get(st.RunID); ok && m.head.Seq > head.Seq {
		return
	}
	s.states.Put(st.RunID, memory{st, head}, st.Size()+len(head.Payload))
}

// state is what the facts of a run amount to at head, with every result of the current step that the leader shows. It
// comes from memory when that was folded up to head, else from the log. A result that drives the turn is folded in as
// it was delivered; that others are missing is concluded only when the leader shows this one too, since it may be
// behind the server that delivered it.
func (s *Service) state(ctx context.Context, head, result events.Event) (*events.State, error) {
	run := head.Place.Run
	var st *events.State
	m, known := s.states.Get(run)
	switch {
	case known && m.head.Seq == head.Seq:
		st = m.state.Clone()
	case head.Place.Kind == events.KindStart:
		return events.NewState(head)
	default:
		folded, at, err := s.conn.RunState(ctx, run)
		if err != nil {
			return nil, fmt.Errorf("read state of %s: %w", run, err)
		}
		if at.Seq < head.Seq {
			return nil, fmt.Errorf("the leader does not show the head of %s yet", run)
		}
		s.remember(folded, at)
		st = folded.Clone()
	}
	if result.ID == "" {
		return st, s.conn.FoldResults(ctx, st)
	}
	ahead := st.Clone()
	if err := ahead.Apply(result); err != nil {
		return nil, err
	}
	if ahead.Settled() && len(ahead.OpenTasks()) == 0 {
		return ahead, nil
	}
	if err := s.conn.FoldResults(ctx, st); err != nil {
		return nil, err
	}
	if !has(st, result) {
		return nil, fmt.Errorf("the leader does not show the result of %s yet", result.Place.CallID())
	}
	s.remember(st.Clone(), head)
	return st, nil
}

// has reports whether a result is folded in, under its own sequence or that of a result that stands in its place.
func has(st *events.State, result events.Event) bool {
	for _, c := range slices.Concat(st.Calls, st.Tasks) {
		if c.C == result.Place.Call {
			return c.FinishedSeq >= result.Seq
		}
	}
	return true // a result of no call of the step is nobody's turn
}

// definition is an agent with its tools, as a run is pinned to them. That of a run of one tool has no agent.
type definition struct {
	agent events.AgentDef
	tools map[string]events.Manifest // by key

	views     map[string]*transform.View   // by key, of tools that hide something
	observers map[string]*events.Observers // by key, of tools that have any

	background map[string]*events.Background // by key, of tools that may run in the background

	replaced []string // keys of the agent's tools that client tools of the request stand in the place of
}

// view shows what may be shown of calls to a tool, by the key under which the agent holds it. Of a definition that nobody
// can read that is nothing.
func (d *definition) view(key string) *transform.View {
	if d == nil {
		return transform.Nothing
	}
	return d.views[key]
}

// definition reads what a run is pinned to.
func (s *Service) definition(ctx context.Context, st *events.State) (*definition, error) {
	pins := st.Definitions
	id, err := pinsKey(st)
	if err != nil {
		return nil, err
	}
	if d, ok := s.agents.Get(id); ok {
		return d, nil
	}
	d := &definition{
		tools: map[string]events.Manifest{}, views: map[string]*transform.View{}, observers: map[string]*events.Observers{},
		background: map[string]*events.Background{},
	}
	if pins.Agent != "" {
		if err := s.read(ctx, pins.Agent, &d.agent); err != nil {
			return nil, fmt.Errorf("agent %s: %w", st.AgentID, err)
		}
	}
	for key, digest := range pins.Tools {
		var m events.Manifest
		if err := s.read(ctx, digest, &m); err != nil {
			return nil, fmt.Errorf("tool %s: %w", key, err)
		}
		d.tools[key] = m
	}
	for key, digest := range pins.Agents {
		var sub events.AgentDef
		if err := s.read(ctx, digest, &sub); err != nil {
			return nil, fmt.Errorf("agent %s: %w", key, err)
		}
		d.tools[events.AgentPrefix+key] = events.AgentTool(key, sub, digest)
	}
	d.addClientTools(st.Options.ClientTools)
	if d.agent.ToolSearch != nil {
		maps.Copy(d.tools, toolsearch.Finders())
	}
	for key, m := range d.tools {
		if v := transform.New(m, events.SecretsOf(m), st.Options.TransformPolicy(d.agent), s.conn.TransformAtHost); v != nil {
			d.views[key] = v
		}
		if o, err := events.ParseObservers(m.Hooks); err == nil && o != nil {
			d.observers[key] = o
		}
		if b := events.BackgroundOf(d.agent, key, m); b != nil && !m.Delegates() {
			d.background[key] = b
		}
	}
	s.agents.Put(id, d, 1)
	return d, nil
}

// pinsKey is the same for runs of the same definitions of which the same may be shown.
func pinsKey(st *events.State) (string, error) {
	d := st.Definitions
	var b strings.Builder
	b.WriteString(d.Agent)
	for _, key := range slices.Sorted(maps.Keys(d.Tools)) {
		b.WriteString("\x00" + key + "\x00" + d.Tools[key])
	}
	b.WriteString("\x00")
	for _, key := range slices.Sorted(maps.Keys(d.Agents)) {
		b.WriteString("\x00" + key + "\x00" + d.Agents[key])
	}
	for _, more := range []struct {
		given bool
		value any
	}{{st.Options.Transform != nil, st.Options.Transform}, {len(st.Options.ClientTools) > 0, st.Options.ClientTools}} {
		b.WriteString("\x00\x00")
		if !more.given {
			continue
		}
		raw, err := events.Marshal(more.value)
		if err != nil {
			return "", err
		}
		b.WriteString(events.Digest(raw))
	}
	return b.String(), nil
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

// showResult publishes the chunk of a result that does not settle its step.
func (s *Service) showResult(ctx context.Context, st *events.State, result events.Event) {
	def, err := s.definition(ctx, st)
	if err != nil {
		def = nil
	}
	for _, c := range st.Calls {
		if c.FinishedID == result.ID && !c.Deferred() {
			s.showCall(ctx, def, c)
		}
	}
}

func (s *Service) showCall(ctx context.Context, def *definition, c events.CallState) {
	f, args, notes := def.view(c.Planned.ToolName).Finished(ctx, *c.Finished, c.Args())
	chunk := events.ResultChunk(f, args, c.FinishedID)
	chunk.Metadata = notes.Metadata()
	s.chunk(ctx, chunk)
}

// finishStep tells readers that a settled step is over: the chunk of every result, those that were shown when they came
// once more, since whoever got them may have been stopped before that, then step-finish. Readers drop what they have
// seen.
func (s *Service) finishStep(ctx context.Context, st *events.State, def *definition) {
	if len(st.Calls) == 0 {
		return
	}
	for _, c := range st.Calls {
		if c.Deferred() {
			s.showStarted(ctx, st, def, c)
			continue
		}
		s.showCall(ctx, def, c)
	}
	messageID := st.Messages[len(st.Messages)-1].ID
	continued := st.Final == "" && st.CancelDue() == nil && !st.OneTool()
	shown := func(c events.CallState) json.RawMessage {
		return def.view(c.Planned.ToolName).Args(ctx, events.TargetDisplay, events.PhaseInput, aboutCall(st, c), c.Args()).Value
	}
	s.chunk(ctx, events.StepFinishChunk(st, messageID, reasonToolCalls, continued, shown))
}

// aboutCall names a call to its view.
func aboutCall(st *events.State, c events.CallState) transform.Call {
	return transform.Call{RunID: st.RunID, ToolCallID: c.Planned.ToolCallID, ToolName: c.Planned.ToolName}
}

// tellSuspended publishes suspended when every unfinished call that the step waits for is held: a result has just settled the
// last that was not. The runs above may wait for nothing else either.
func (s *Service) tellSuspended(ctx context.Context, st *events.State) error {
	for _, of := range slices.Backward(st.Path) {
		if of.RunID != st.RunID {
			var err error
			if st, _, err = s.conn.RunState(ctx, of.RunID); errors.Is(err, jetstream.ErrNotFound) {
				return nil
			} else if err != nil {
				return fmt.Errorf("read state of %s: %w", of.RunID, err)
			}
		}
		held, err := s.conn.HeldCalls(ctx, st)
		if err != nil || len(held) == 0 {
			return err
		}
		s.chunk(ctx, events.SuspendedChunk(of.RunID, held))
	}
	return nil
}

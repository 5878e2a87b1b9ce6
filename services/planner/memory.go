package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Memory. A run that keeps a thread writes into it what it was asked before its first turn, each settled step before the turn
// that follows, and how it ended after its end. Each entry has a subject of its own and is stored once, so whoever handles a
// fact again writes what is missing. What a run recalls is frozen in its start.

// recallOf is what a run is to know of its thread; nil when it keeps none.
func (s *Service) recallOf(ctx context.Context, req events.RunRequested, pins events.Definitions) (*events.Recalled, error) {
	if req.ThreadID == "" || pins.Agent == "" {
		return nil, nil //nolint:nilnil // it has no thread
	}
	var def events.AgentDef
	if err := s.read(ctx, pins.Agent, &def); err != nil {
		return nil, fmt.Errorf("agent %s: %w", req.AgentID, err)
	}
	m := req.MemoryOf(def)
	if m == nil {
		return nil, nil //nolint:nilnil // its thread is but a name
	}
	messages, tokens := m.Bounds()
	if messages == 0 {
		return &events.Recalled{}, nil
	}
	entries, err := s.conn.ThreadTail(ctx, req.ResourceID, req.ThreadID, func(tail []jetstream.ThreadEntry) bool {
		_, whole := recall(own(tail, req), messages, tokens)
		return whole
	})
	if err != nil {
		return nil, err
	}
	erased, err := s.conn.ErasedTo(ctx, req.ResourceID, req.ThreadID) // its entries may still be there
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e jetstream.ThreadEntry) bool { return e.InboxSeq < erased })
	said, _ := recall(own(entries, req), messages, tokens)
	return s.conn.ShrinkRecalled(ctx, &events.Recalled{Messages: said})
}

// own are the entries of a thread that a run may recall: those of other runs, of its own resource.
func own(entries []jetstream.ThreadEntry, req events.RunRequested) []jetstream.ThreadEntry {
	return slices.DeleteFunc(slices.Clone(entries), func(e jetstream.ThreadEntry) bool {
		return e.RunID == req.RunID || e.ThreadID != req.ThreadID || e.ResourceID != req.ResourceID || e.Erased
	})
}

// saidBy is what a run has written into a thread.
type saidBy struct {
	first   bool // what it was asked is among the entries
	broken  bool // a model could not be shown it
	asked   int  // messages
	did     bool
	bytes   int
	results []events.Part // of background calls
}

// recall chooses of the entries of a thread what a model is shown: whole turns, the newest first, of so many messages and
// tokens at most, in the order in which they were stored. It reports whether older entries would change nothing.
func recall(entries []jetstream.ThreadEntry, messages, tokens int) ([]events.Message, bool) {
	runs, order := map[string]*saidBy{}, []string{}
	for _, e := range entries {
		r := runs[e.RunID]
		if r == nil {
			r = &saidBy{}
			runs[e.RunID] = r
			order = append(order, e.RunID)
		}
		r.add(e)
	}
	left, budget, full := messages, tokens*bytesPerToken, false
	chosen := map[string]bool{}
	for _, run := range slices.Backward(order) {
		r := runs[run]
		if !r.first || r.broken {
			continue
		}
		if n := r.messages(); n > left || r.bytes > budget {
			full = true
			break
		}
		chosen[run], left, budget = true, left-r.messages(), budget-r.bytes
	}
	var said []events.Message
	for _, e := range entries {
		if chosen[e.RunID] && e.Call == "" {
			for _, m := range e.Messages {
				said = append(said, joinedIn(m, runs[e.RunID].results))
			}
		}
	}
	return said, full || left == 0
}

// bytesPerToken estimates tokens by size.
const bytesPerToken = 4

func (r *saidBy) messages() int {
	if r.did {
		return r.asked + 1
	}
	return r.asked
}

func (r *saidBy) add(e jetstream.ThreadEntry) {
	switch {
	case e.Call != "":
		for _, m := range e.Messages {
			r.results = append(r.results, m.Parts...)
		}
	case e.Index == 0 && !e.Closing:
		r.first, r.asked = true, len(e.Messages)
	default:
		r.did = r.did || len(e.Messages) > 0
	}
	if e.Call == "" && checkPairing(e.Messages) != nil {
		r.broken = true
	}
	r.bytes += sizeOf(e.Messages)
}

func sizeOf(messages []events.Message) int {
	size := 0
	for _, m := range messages {
		for _, p := range m.Parts {
			size += len(p.Text) + len(p.Args) + len(p.Data) + min(p.Size, events.MaxModelOutput)
			if p.Output != nil {
				size += min(len(p.Output.Value), events.MaxModelOutput)
			}
		}
	}
	return size
}

// joinedIn is a message with results of background calls in the places of what stood there for them.
func joinedIn(m events.Message, results []events.Part) events.Message {
	if m.Role != events.RoleTool || len(results) == 0 {
		return m
	}
	m.Parts = slices.Clone(m.Parts)
	for i, p := range m.Parts {
		for _, r := range results {
			if p.ToolCallID == r.ToolCallID {
				m.Parts[i] = r
			}
		}
	}
	return m
}

// entry is an entry of a run's thread, still without messages.
func entryOf(st *events.State) events.MessageStored {
	return events.MessageStored{
		ThreadID: st.ThreadID, ResourceID: st.ResourceID, RunID: st.RunID, AgentID: st.AgentID,
		InboxSeq: st.Thread.InboxSeq, Index: st.Step, Messages: []events.Message{},
	}
}

// keepTurn writes into the thread what came before the turn that is due: what the run was asked, or its last step. The state
// must be settled.
func (s *Service) keepTurn(ctx context.Context, st *events.State, def *definition) error {
	if st.Thread == nil {
		return nil
	}
	d := entryOf(st)
	switch {
	case st.Turns() == 0:
		d.Index = 0
		d.Messages = asked(st, d)
	case len(st.Calls) > 0:
		var err error
		if d.Messages, err = s.storedStep(ctx, st, def); err != nil {
			return err
		}
		d.Messages = withIDs(d, d.Messages)
	case st.Waiting:
		d.Messages = withIDs(d, st.Messages[len(st.Messages)-1:])
	default:
		return nil
	}
	return s.conn.KeepEntry(ctx, s.origin, d, events.Event{})
}

// asked is what the run was asked, as it stands in its thread. What its sender says to the model as the system is none of
// the conversation.
func asked(st *events.State, d events.MessageStored) []events.Message {
	said := slices.DeleteFunc(slices.Clone(st.Messages[st.Thread.Recalled:]), func(m events.Message) bool {
		return m.Role == events.RoleSystem
	})
	return withIDs(d, said)
}

// withIDs gives messages of an entry that have no id one that is the same whoever writes them.
func withIDs(d events.MessageStored, said []events.Message) []events.Message {
	said = slices.Clone(said)
	for i := range said {
		if said[i].ID == "" {
			said[i].ID = fmt.Sprintf("%s-m%d-%d", d.RunID, d.Index, i)
		}
	}
	return said
}

// storedStep is the settled step of a run as it stands in its thread: of its calls it shows what the transcript of each tool
// may show.
func (s *Service) storedStep(ctx context.Context, st *events.State, def *definition) ([]events.Message, error) {
	said := st.Transcript()
	step := slices.Clone(said[len(said)-2:]) // the message with the calls, and their results
	for i := range step {
		step[i].Parts = slices.Clone(step[i].Parts)
	}
	for _, c := range st.Calls {
		args, result, err := s.storedCall(ctx, st, def, c)
		if err != nil {
			return nil, err
		}
		for i := range step {
			for k, p := range step[i].Parts {
				switch {
				case p.ToolCallID != c.Planned.ToolCallID:
				case p.Type == events.PartToolCall && args != nil:
					step[i].Parts[k].Args = string(args)
				case p.Type == events.PartToolResult && result != nil:
					step[i].Parts[k] = *result
				}
			}
		}
	}
	return step, nil
}

// storedCall is a call as it stands in its thread: its arguments, nil when they are shown as the model wrote them, and its
// result, nil when there is none yet.
func (s *Service) storedCall(ctx context.Context, st *events.State, def *definition, c events.CallState) (json.RawMessage, *events.Part, error) {
	view := def.view(c.Planned.ToolName)
	if c.Finished == nil {
		if view == nil {
			return nil, nil, nil
		}
		return view.Args(ctx, events.TargetTranscript, events.PhaseInput, aboutCall(st, c), c.Args()).Value, nil, nil
	}
	f := *c.Finished
	var args json.RawMessage
	if view != nil {
		if err := s.conn.WholeResult(ctx, &f); err != nil {
			return nil, nil, fmt.Errorf("read the result of %s: %w", c.Planned.ToolCallID, err)
		}
		f.RunID, f.ToolCallID, f.ToolName = st.RunID, c.Planned.ToolCallID, c.Planned.ToolName
		f, args = view.Stored(ctx, f, c.Args())
	}
	c.Finished = &f
	part := events.ResultPart(c)
	part.State = f.Outcome.StateIn()
	return args, &part, nil
}

// keepTask writes the result of a background call into the thread of its run: it stands there for what said that the call was
// started.
func (s *Service) keepTask(ctx context.Context, st *events.State, def *definition, c events.CallState) error {
	if st.Thread == nil {
		return nil
	}
	_, part, err := s.storedCall(ctx, st, def, c)
	if err != nil {
		return err
	}
	d := entryOf(st)
	call, err := events.CallOf(st.RunID, c.C)
	if err != nil {
		return jetstream.Final(err)
	}
	d.Call, d.Index = c.C, call.Step
	d.Messages = []events.Message{{ID: c.Planned.ToolCallID, Role: events.RoleTool, Parts: []events.Part{*part}}}
	return s.conn.KeepEntry(ctx, s.origin, d, events.Event{})
}

// closeThread writes how a run ended into its thread, and before that what of it is not there yet: whoever ended the run may
// have done so instead of the turn that would have written it. Runs that keep no thread are left alone.
func (s *Service) closeThread(ctx context.Context, end events.Event) error {
	d, err := events.Data[events.RunEnded](end)
	if err != nil {
		return jetstream.Final(err)
	}
	if d.ThreadID == "" {
		return nil
	}
	st, head, err := s.conn.RunState(ctx, end.Place.Run)
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return nil // the run has aged out
	case err != nil:
		return err
	case head.Seq < end.Seq:
		return fmt.Errorf("the leader does not show the end of %s yet", end.Place.Run)
	}
	return s.keepEnd(ctx, st, d, end)
}

// keepEnd is closeThread for who knows the run: the state is that of before its end, or of after it.
func (s *Service) keepEnd(ctx context.Context, st *events.State, d events.RunEnded, end events.Event) error {
	if st.Thread == nil {
		return nil
	}
	def, err := s.definition(ctx, st)
	if errors.Is(err, jetstream.ErrNotFound) {
		def = nil // nobody knows what may be shown: nothing is
	} else if err != nil {
		return err
	}
	if len(st.Awaited()) == 0 && (!st.Waiting || d.Message == nil) {
		if err := s.keepTurn(ctx, st, def); err != nil {
			return err
		}
	}
	last := entryOf(st)
	last.Closing, last.Outcome = true, d.Outcome
	if d.Message != nil {
		m := *d.Message
		m.ID, m.Role = d.MessageID, events.RoleAssistant
		last.Messages = withIDs(last, []events.Message{m})
	}
	return s.conn.KeepEntry(ctx, s.origin, last, end)
}

// lostTo closes the thread of a run when what came in the way of its turn is its end.
func (s *Service) lostTo(ctx context.Context, st *events.State, last events.Event) error {
	if st.Thread == nil || last.Place.Kind != events.KindEnd {
		return nil
	}
	return s.closeThread(ctx, last)
}

// closeEnded closes the thread of a run that ended while its model was speaking.
func (s *Service) closeEnded(ctx context.Context, st *events.State) error {
	if st.Thread == nil {
		return nil
	}
	end, err := s.conn.Fact(ctx, s.ns.End(st.RunID))
	if err != nil {
		return ignoreMissing(err)
	}
	return s.closeThread(ctx, end)
}

// sweepThreads writes how runs ended into the threads that lack it.
func (s *Service) sweepThreads(ctx context.Context) error {
	open, err := s.conn.OpenInThreads(ctx)
	if err != nil {
		return err
	}
	for _, p := range open {
		head, err := s.conn.Last(ctx, s.ns.MainOf(p.Run))
		if err == nil && head.Place.Kind == events.KindEnd {
			err = s.closeThread(ctx, head)
		}
		if err != nil && !errors.Is(err, jetstream.ErrNotFound) && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sweep failed", "runId", p.Run, "error", err)
		}
	}
	return nil
}

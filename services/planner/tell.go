package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/telemetry"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// teller reads one attempt of a turn from the model and tells readers as it goes.
type teller struct {
	s     *Service
	ctx   context.Context //nolint:containedctx // lives for one call of listen
	st    *events.State
	p     prompt
	turn  turn
	free  chan struct{} // holds a token when nobody is telling; pieces are told by a timer too, and telling may wait
	index int
	held  *held
	parts map[string]int             // index in message parts, by the stream's id
	calls map[string]int             // index in calls, by the stream's id
	own   map[string]json.RawMessage // arguments of calls that the provider executes, by the stream's id
	args  []*strings.Builder
	ended []bool
	value *valueTeller // of a run that is asked for a value, which its text is
	open  string       // id of the text or reasoning that is being told
	kind  string
}

func (s *Service) newTeller(ctx context.Context, st *events.State, p prompt, attempt int) *teller {
	t := &teller{s: s, ctx: ctx, st: st, p: p, parts: map[string]int{}, calls: map[string]int{}, own: map[string]json.RawMessage{}, free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	t.turn = turn{attempt: attempt, messageID: events.NewID(time.Now()), message: events.Message{Role: events.RoleAssistant, Parts: []events.Part{}}}
	t.turn.message.ID = t.turn.messageID
	if len(p.request.OutputSchema) > 0 {
		t.value = &valueTeller{}
	}
	return t
}

// tell publishes one chunk of this attempt, after the pieces that were held together before it.
func (t *teller) tell(c events.Chunk) {
	<-t.free
	defer func() { t.free <- struct{}{} }()
	t.flushLocked()
	t.publish(c)
}

func (t *teller) publish(c events.Chunk) {
	t.index++
	c.Step, c.Attempt, c.Index = t.st.Step+1, t.turn.attempt, t.index
	t.s.chunk(t.ctx, c)
}

// Pieces that arrive together are told as one chunk: none waits longer than maxHeld or grows beyond maxPiece bytes.
const (
	maxHeld  = 5 * time.Millisecond
	maxPiece = 4 << 10
)

// held are pieces of one text or of one call's arguments that are not told yet.
type held struct {
	of    string              // what they are pieces of
	first func() events.Chunk // makes what comes before them, when that is not told yet either
	text  strings.Builder
	chunk func(text string) (c events.Chunk, shown bool)
	timer *time.Timer
}

// piece holds a piece back for a moment, with those that come right after it.
func (t *teller) piece(of, text string, chunk func(string) (events.Chunk, bool)) {
	<-t.free
	defer func() { t.free <- struct{}{} }()
	if t.held == nil || t.held.of != of {
		t.holdLocked(&held{of: of, chunk: chunk})
	}
	t.held.text.WriteString(text)
	if t.held.text.Len() >= maxPiece {
		t.flushLocked()
	}
}

// holdInput holds back that the arguments of a call begin, with the first of their pieces.
func (t *teller) holdInput(i int) {
	<-t.free
	defer func() { t.free <- struct{}{} }()
	run, id, name := t.st.RunID, t.callID(i), t.turn.calls[i].ToolName
	first := func() events.Chunk { return events.ToolInputStartChunk(run, id, name) }
	t.holdLocked(&held{of: id, first: first, chunk: t.inputDelta(i)})
}

func (t *teller) holdLocked(h *held) {
	t.flushLocked()
	h.timer = time.AfterFunc(maxHeld, t.flush)
	t.held = h
}

// tellCall tells a call whose arguments are complete. Arguments that came all at once are told with the call alone:
// nobody could have watched them come.
func (t *teller) tellCall(i int) {
	<-t.free
	defer func() { t.free <- struct{}{} }()
	id := t.callID(i)
	if h := t.held; h != nil && h.of == id && h.first != nil {
		h.timer.Stop()
		t.held = nil
	} else {
		t.flushLocked()
		t.publish(events.ToolInputEndChunk(t.st.RunID, id))
	}
	t.publish(t.callChunk(i, t.args[i].String()))
}

// callChunk shows a call with its arguments as they may be shown.
func (t *teller) callChunk(i int, args string) events.Chunk {
	about := t.about(i)
	args, _ = events.TakeBackground(args, t.p.def.tools[about.ToolName].InputSchema)
	shown, made := t.view(i).Text(t.ctx, about, args)
	c := events.ToolCallChunk(about.RunID, events.ToolCallPayload{
		ToolCallID: about.ToolCallID, ToolName: about.ToolName, Title: t.p.def.tools[about.ToolName].Title, Args: shown.Value,
	})
	if made {
		c.Metadata = transform.Notes{events.PhaseInput: shown}.Metadata()
	}
	return c
}

// view shows what may be shown of a call.
func (t *teller) view(i int) *transform.View { return t.p.def.view(t.turn.calls[i].ToolName) }

// about names a call to its view.
func (t *teller) about(i int) transform.Call {
	return transform.Call{RunID: t.st.RunID, ToolCallID: t.callID(i), ToolName: t.turn.calls[i].ToolName}
}

func (t *teller) flush() {
	<-t.free
	defer func() { t.free <- struct{}{} }()
	t.flushLocked()
}

func (t *teller) flushLocked() {
	h := t.held
	if h == nil {
		return
	}
	h.timer.Stop()
	t.held = nil
	if h.first != nil {
		t.publish(h.first())
	}
	if h.text.Len() > 0 {
		if c, shown := h.chunk(h.text.String()); shown {
			t.publish(c)
		}
	}
}

// listen reads the model's stream to its end. A stream that breaks off is an error, and nothing of it counts.
func (t *teller) listen(ctx context.Context, model agent.Model) (turn, error) {
	ctx, span := telemetry.Begin(ctx, telemetry.SpanChat+" "+t.p.request.Model, map[string]any{
		telemetry.Operation: telemetry.SpanChat, telemetry.Model: t.p.request.Model, telemetry.Agent: t.st.AgentID,
		telemetry.Conversation: t.st.ThreadID, telemetry.Attempt: t.turn.attempt, telemetry.Run: t.st.RunID,
	})
	got, err := t.read(ctx, model)
	got.told = t.index
	code := ""
	if err != nil {
		code = string(events.CodeModelFailed)
	}
	span.Set(map[string]any{
		telemetry.InputTokens: got.usage.InputTokens, telemetry.OutputTokens: got.usage.OutputTokens, telemetry.Finish: []string{got.reason},
	})
	span.End(code)
	return got, err
}

// read is listen within its span.
func (t *teller) read(ctx context.Context, model agent.Model) (turn, error) {
	began := time.Now()
	defer t.flush()
	t.begin()
	finished := false
	for part, err := range model.Stream(ctx, t.p.request) {
		if err != nil {
			return turn{attempt: t.turn.attempt, messageID: t.turn.messageID}, err
		}
		if part.Type == agent.PartFinish {
			finished = true
			t.turn.reason, t.turn.usage = string(part.FinishReason), part.Usage
			continue
		}
		t.hear(part)
	}
	if !finished {
		return turn{attempt: t.turn.attempt, messageID: t.turn.messageID}, &agent.ModelError{Retryable: true, Err: errors.New("the stream ended before the turn did")}
	}
	t.close()
	for i := range t.turn.calls {
		t.turn.calls[i].Args = asText(t.args[i].String())
		t.turn.calls[i].Truncated = !t.ended[i]
	}
	t.planBackground()
	t.turn.active = time.Since(began)
	t.turn.empty = len(t.turn.calls) == 0 && strings.TrimSpace(t.turn.message.Text()) == ""
	return t.turn, nil
}

// asText keeps what a model wrote as arguments as a text that can be stored. What is not UTF-8 could be stored only as
// something else, which might then run: a note behind it makes it something that is no JSON, and says why.
func asText(args string) string {
	if utf8.ValidString(args) {
		return args
	}
	return strings.ToValidUTF8(args, "\uFFFD") + " (not UTF-8)"
}

func (t *teller) begin() {
	if t.turn.attempt > 1 {
		t.tell(events.StepRetryChunk(t.st.RunID, t.turn.messageID, t.turn.attempt))
	}
	if t.st.Step == 0 {
		t.tell(events.StartChunk(t.st.RunID, t.st.AgentID, t.turn.messageID))
		for _, key := range t.p.def.replaced {
			text := fmt.Sprintf("the run's own client tool %q is used in place of the agent's tool of this name", key)
			t.s.log.WarnContext(t.ctx, "a client tool replaces a tool of the agent", "runId", t.st.RunID, "tool", key)
			t.tell(events.WarningChunk(t.st.RunID, warningReplaced, text))
		}
	}
	t.tell(events.StepStartChunk(t.st.RunID, t.turn.messageID, time.Now()))
}

func (t *teller) hear(p agent.ModelPart) {
	run := t.st.RunID
	switch p.Type {
	case agent.PartTextDelta, agent.PartReasoningDelta:
		t.hearText(p)
	case agent.PartToolInputStart:
		t.close()
		t.startCall(p)
	case agent.PartToolInputDelta:
		if i, ok := t.calls[p.ID]; ok {
			args := t.args[i]
			args.WriteString(p.Text)
			t.observe(i, events.OnInputDelta, p.Text)
			if t.view(i).ShowsDeltas() {
				t.piece(t.callID(i), p.Text, t.inputDelta(i))
			}
		}
	case agent.PartToolInputEnd:
		if i, ok := t.calls[p.ID]; ok && !t.ended[i] {
			t.ended[i] = true
			t.tellCall(i)
		}
	case agent.PartProviderCall, agent.PartProviderResult, agent.PartSource:
		t.close()
		t.tell(t.providers(p))
	case agent.PartWarning:
		t.tell(events.WarningChunk(run, "model", p.Text))
	case agent.PartFinish:
	}
}

// providers shows what the provider's own tools do. It is none of the calls of the step.
func (t *teller) providers(p agent.ModelPart) events.Chunk {
	run, id := t.st.RunID, t.turn.messageID+"-"+p.ID
	value := json.RawMessage(p.Text)
	if events.CheckJSON(value) != nil {
		value = json.RawMessage("null")
	}
	switch p.Type {
	case agent.PartSource:
		return events.NewChunk(run, events.ChunkSource, events.SourcePayload{ID: id, SourceType: "url", URL: p.URL, Title: p.Text})
	case agent.PartProviderCall:
		t.own[p.ID] = value
		return events.ToolCallChunk(run, events.ToolCallPayload{ToolCallID: id, ToolName: p.ToolName, Args: value, ProviderExecuted: true})
	default:
		return events.NewChunk(run, events.ChunkToolResult, events.ToolResultPayload{
			ToolCallID: id, ToolName: p.ToolName, Args: t.own[p.ID], Result: value, Outcome: events.OutcomeOK, Started: true, ProviderExecuted: true,
		})
	}
}

func (t *teller) startCall(p agent.ModelPart) {
	if _, ok := t.calls[p.ID]; ok {
		return
	}
	i := len(t.turn.calls)
	t.calls[p.ID] = i
	t.turn.calls = append(t.turn.calls, events.CallPlanned{ToolName: t.p.key(p.ToolName), ProviderCallID: p.ProviderCallID})
	t.args, t.ended = append(t.args, new(strings.Builder)), append(t.ended, false)
	t.observe(i, events.OnInputStart, "")
	t.holdInput(i)
}

// observe tells a tool's observers of a call whose arguments are coming. Of a turn that is tried again they are told again:
// the attempt says of which.
func (t *teller) observe(i int, event events.Observation, delta string) {
	key := t.turn.calls[i].ToolName
	if t.p.def == nil || !t.p.def.observers[key].Want(event) || event == events.OnInputDelta && delta == "" {
		return
	}
	m := t.p.def.tools[key]
	err := t.s.conn.Observe(t.ctx, events.CallObserved{
		Namespace: t.s.ns, Event: event, RunID: t.st.RunID, ToolCallID: t.callID(i), ToolName: key, ToolID: m.ID,
		ToolVersion: m.Version, AgentID: t.st.AgentID, Attempt: t.turn.attempt, InputTextDelta: delta,
	})
	if err != nil {
		t.s.log.WarnContext(t.ctx, "observers not told", "runId", t.st.RunID, "toolCallId", t.callID(i), "event", string(event),
			"error", err)
	}
}

// inputDelta makes chunks of pieces of a call's arguments.
func (t *teller) inputDelta(i int) func(text string) (events.Chunk, bool) {
	view, about := t.view(i), t.about(i)
	return func(text string) (events.Chunk, bool) {
		text, notes, shown := view.Delta(t.ctx, about, text)
		c := events.ToolInputDeltaChunk(about.RunID, about.ToolCallID, about.ToolName, text)
		c.Metadata = notes.Metadata()
		return c, shown
	}
}

func (t *teller) callID(i int) string {
	return events.CallID{Run: t.st.RunID, Step: t.st.Step + 1, Index: i + 1}.String()
}

// hearText tells a piece of text or reasoning; pieces of one id belong together.
func (t *teller) hearText(p agent.ModelPart) {
	kind := events.PartText
	if p.Type == agent.PartReasoningDelta {
		kind = events.PartReasoning
	}
	id := kind + p.ID
	if t.open != id {
		t.close()
		t.open, t.kind = id, kind
		t.parts[id] = len(t.turn.message.Parts)
		t.turn.message.Parts = append(t.turn.message.Parts, events.Part{Type: kind})
		t.tell(events.TextStartChunk(t.st.RunID, kind, t.textID()))
	}
	part := &t.turn.message.Parts[t.parts[id]]
	part.Text += p.Text
	part.Signature += p.Signature
	if p.Text != "" {
		run, id := t.st.RunID, t.textID()
		t.piece(id, p.Text, func(text string) (events.Chunk, bool) { return events.TextDeltaChunk(run, kind, id, text), true })
		if kind == events.PartText && t.value != nil {
			if c, ok := t.value.hear(run, p.Text); ok {
				t.tell(c)
			}
		}
	}
}

func (t *teller) textID() string { return fmt.Sprintf("%s-%d", t.turn.messageID, t.parts[t.open]) }

// close ends the text or reasoning that is being told.
func (t *teller) close() {
	if t.open == "" {
		return
	}
	t.tell(events.TextEndChunk(t.st.RunID, t.kind, t.textID()))
	t.open = ""
}

package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// done is the last frame of a stream of Mastra's routes.
const done = "data: [DONE]\n\n"

// frame is a chunk on HTTP: Mastra's envelope, with the cursor and the time.
type frame struct {
	Type     events.ChunkType `json:"type"`
	RunID    string           `json:"runId"`
	From     string           `json:"from"`
	Payload  json.RawMessage  `json:"payload,omitempty"`
	Metadata json.RawMessage  `json:"metadata,omitempty"`

	// Of object and object-result, which have no payload.
	Object json.RawMessage `json:"object,omitempty"`

	// Of chunks whose type an author of tools has chosen: they have no payload.
	Data      json.RawMessage `json:"data,omitempty"`
	ID        string          `json:"id,omitempty"`
	Transient bool            `json:"transient,omitempty"`

	Cursor uint64     `json:"cursor,omitempty"`
	Time   *time.Time `json:"time,omitempty"`
	Repeat bool       `json:"repeat,omitempty"` // it was shown before
}

func frameOf(ch events.Chunk) frame {
	f := frame{Type: ch.Type, RunID: ch.RunID, From: ch.From, Payload: ch.Payload, Metadata: ch.Metadata, Cursor: ch.Cursor}
	if !ch.Time.IsZero() {
		at := ch.Time.UTC()
		f.Time = &at
	}
	if ch.Type == events.ChunkObject || ch.Type == events.ChunkObjectResult {
		f.Payload, f.Object = nil, ch.Payload
	}
	if strings.HasPrefix(string(ch.Type), events.DataPrefix) {
		var p events.DataPayload
		if json.Unmarshal(ch.Payload, &p) == nil {
			f.Payload, f.Data, f.ID, f.Transient = nil, p.Data, p.ID, p.Transient
		}
	}
	return f
}

// part is the part of a run that a response shows: from a cursor until the run ends, or until nothing in it can move without
// a decision.
type part struct {
	run   *client.Run
	agent string
	after uint64
	// decided is the ask whose decision the response continues; its call is shown once more where that is asked for.
	decided *events.CallHeld
	// answered are the calls of client tools whose results the request has brought: for the client a turn begins.
	answered map[string]bool
	// pending says that a vote was taken and the call waits for others: there is nothing to follow.
	pending bool
}

// teller writes a part of a run as Mastra's client reads it.
type teller struct {
	r   *request
	out *sse
	part

	before    map[string]bool         // what readers had seen before the part begins: calls with a result, ids of asks
	asks      map[string]events.Chunk // shown here, and without a result
	clients   map[string]bool         // calls that wait for the client
	calls     []events.ToolCallPayload
	messageID string
	suspended []string // calls that a suspension names, while it is the last chunk
	began     bool     // a turn has begun here
	opened    bool     // its start was shown, where the request has brought results
	atAsk     bool     // the last frame is an ask
	ended     bool     // the run has
}

// tell streams a part of a run. An error before the first frame is one of the whole response.
func (r *request) tell(p part) error {
	t := &teller{
		r: r, part: p, before: map[string]bool{}, asks: map[string]events.Chunk{}, clients: map[string]bool{},
		out: r.sse(http.Header{runHeader: {p.run.ID}, cursorHeader: {strconv.FormatUint(p.after, 10)}}),
	}
	err := t.look()
	switch {
	case err != nil:
	case p.pending:
		err = t.open()
	default:
		err = pump(r, t.out, func(ctx context.Context) iter.Seq2[events.Chunk, error] {
			return p.run.Follow(ctx, p.after, &client.FollowOptions{UntilSuspended: true})
		}, t.take)
	}
	return t.end(err)
}

// look remembers what was shown before the part: the chunk of a result or of an ask may be published again, and is then no
// news.
func (t *teller) look() error {
	if t.after == 0 {
		return nil
	}
	for ch, err := range t.run.Stored(t.r.Context(), 0) {
		switch {
		case errors.Is(err, client.ErrGap):
			continue
		case err != nil:
			return err
		case ch.Cursor > t.after:
			return nil
		}
		switch ch.Type {
		case events.ChunkToolResult, events.ChunkToolError, events.ChunkToolOutputDenied:
			t.before[callOf(ch)] = true
		case events.ChunkToolCallApproval, events.ChunkToolCallSuspended:
			t.before[ch.ID] = true
		default:
		}
	}
	return nil
}

// callOf is the call that a chunk is about.
func callOf(ch events.Chunk) string {
	var p struct {
		ToolCallID string `json:"toolCallId"`
	}
	_ = json.Unmarshal(ch.Payload, &p) // one that names none is about none
	return p.ToolCallID
}

// take shows the next chunk.
func (t *teller) take(ch events.Chunk, err error) error {
	if errors.Is(err, client.ErrGap) {
		return nil
	}
	if err != nil {
		return err
	}
	if ch.Innermost().Type == events.ChunkChildStart {
		return nil // said by what the run below says
	}
	t.suspended = nil
	if inner := ch.Innermost(); ch.Nested != nil && isResult(inner) {
		delete(t.asks, callOf(inner))
	}
	switch ch.Type {
	case events.ChunkSuspended:
		var p events.SuspendedPayload
		if json.Unmarshal(ch.Payload, &p) == nil {
			t.suspended = p.Asks
		}
		return nil
	case events.ChunkToolCallApproval, events.ChunkToolCallSuspended:
		return t.ask(ch)
	case events.ChunkToolResult, events.ChunkToolError, events.ChunkToolOutputDenied:
		return t.result(ch)
	case events.ChunkStepStart:
		t.step(ch)
	case events.ChunkToolCall:
		var p events.ToolCallPayload
		if json.Unmarshal(ch.Payload, &p) == nil && !p.ProviderExecuted {
			t.calls = append(t.calls, p)
		}
	case events.ChunkStepFinish:
		if t.answered != nil && !t.began { // for the client that turn is over
			return nil
		}
	case events.ChunkFinish, events.ChunkAbort:
		t.ended = len(client.Resumes(ch)) == 0
		if !t.ended {
			return nil
		}
	default:
	}
	return t.show(frameOf(ch))
}

func (t *teller) step(ch events.Chunk) {
	var p events.StepStartPayload
	if json.Unmarshal(ch.Payload, &p) == nil {
		t.messageID = p.MessageID
	}
	t.began, t.calls = true, nil
}

// ask shows a question to people. What the client itself answers is none: it has seen the call.
func (t *teller) ask(ch events.Chunk) error {
	if t.before[ch.ID] {
		return nil
	}
	var p events.AskPayload
	if err := json.Unmarshal(ch.Payload, &p); err != nil {
		return nil //nolint:nilerr // what nobody can read is not shown
	}
	if p.Ask.Kind == events.AskClient {
		t.clients[p.Ask.ToolCallID] = true
		return nil
	}
	t.asks[p.Ask.ToolCallID] = ch
	if err := t.show(t.askFrame(ch)); err != nil {
		return err
	}
	t.atAsk = true
	return nil
}

// askFrame is a question as Mastra's client reads it: about the call of the run that it follows, which may be delegated to
// whoever asks. The ask inside names the call that is decided.
func (t *teller) askFrame(ch events.Chunk) frame {
	f := frameOf(ch)
	f.RunID = t.run.ID
	var p events.AskPayload
	if json.Unmarshal(ch.Payload, &p) != nil {
		return f
	}
	p.ToolCallID = events.CallWithin(t.run.ID, p.ToolCallID)
	if raw, err := events.Marshal(p); err == nil {
		f.Payload = raw
	}
	return f
}

// isResult reports whether a chunk is the outcome of a call.
func isResult(ch events.Chunk) bool {
	switch ch.Type {
	case events.ChunkToolResult, events.ChunkToolError, events.ChunkToolOutputDenied:
		return true
	default:
		return false
	}
}

func (t *teller) result(ch events.Chunk) error {
	call := callOf(ch)
	delete(t.asks, call)
	if t.before[call] || t.answered[call] {
		return nil
	}
	if t.decided != nil && t.decided.ToolCallID == call && t.r.URL.Query().Get("repeat") == "1" {
		again := frameOf(events.ToolCallChunk(ch.RunID, events.ToolCallPayload{
			ToolCallID: call, ToolName: t.decided.ToolName, Args: t.decided.Shown().Args,
		}))
		again.Repeat = true
		if err := t.show(again); err != nil {
			return err
		}
	}
	return t.show(frameOf(ch))
}

// show writes a frame. A part that continues a turn of the client's begins with a start, as any other.
func (t *teller) show(f frame) error {
	t.atAsk = false
	if t.answered != nil && !t.opened {
		t.opened = true
		if err := t.out.data(frameOf(events.StartChunk(t.run.ID, t.agent, t.run.ID))); err != nil {
			return err
		}
	}
	return t.out.data(f)
}

// open is what waits, where nothing is followed.
func (t *teller) open() error {
	page, err := t.r.who.Suspended(t.r.Context(), client.Filter{Agent: t.agent, Run: t.run.ID})
	if err != nil {
		return err
	}
	for _, run := range page.Runs {
		for _, call := range run.ToolCalls {
			t.suspended = append(t.suspended, call.ToolCallID)
		}
	}
	return nil
}

// end says why the response is over.
func (t *teller) end(err error) error {
	if errors.Is(err, errGone) {
		t.abort()
		return nil
	}
	if err == nil && len(t.suspended) > 0 {
		err = t.wait()
	}
	if err != nil && !t.out.began {
		return err
	}
	if err != nil && !errors.Is(err, errGone) {
		_, body, _ := statusOf(err)
		t.r.g.log.WarnContext(t.r.Context(), "a stream broke off", "runId", t.run.ID, "error", err)
		_ = t.out.data(frameOf(errorChunk(t.run.ID, body))) // the reader may have gone: nobody to tell
	}
	_ = t.out.raw(done) // as above
	return nil
}

// errorChunk says on a stream what went wrong with it.
func errorChunk(run string, body any) events.Chunk {
	brief := events.RunErrorBrief{Name: "Error", Message: "internal error", Code: events.CodeInternal}
	if e, ok := body.(*events.Error); ok {
		brief.Message, brief.Code = e.Message, e.Code
	}
	return events.NewChunk(run, events.ChunkError, events.ErrorPayload{Error: brief})
}

// abort cancels the run of a reader who has gone, where it had asked for that. Else the run goes on.
func (t *teller) abort() {
	wanted := strings.EqualFold(t.r.Header.Get(abortHeader), "true") || t.r.URL.Query().Get("abortOnClose") == "true"
	if !wanted || t.ended || t.r.Context().Err() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.r.Context()), t.r.g.cfg.Decide)
	defer cancel()
	if _, err := t.r.who.Cancel(ctx, t.run.ID, "its reader has gone"); err != nil && events.CodeOf(err) != events.CodeRunEnded {
		t.r.g.log.WarnContext(ctx, "a run was not cancelled", "runId", t.run.ID, "error", err)
	}
}

// wait ends a response whose run waits: with the asks, unless they are the last that was shown. Where the client alone is
// waited for, the turn ends.
func (t *teller) wait() error {
	people := 0
	var again []events.Chunk
	for _, id := range t.suspended {
		if t.clients[id] {
			continue
		}
		ch, ok := t.asks[id]
		if !ok {
			ask, err := t.r.who.Ask(t.r.Context(), id)
			if err != nil {
				t.r.g.log.DebugContext(t.r.Context(), "an ask is not shown again", "toolCallId", id, "error", err)
				continue // it was decided, or nobody can say
			}
			if ask.Kind == events.AskClient {
				t.clients[id] = true
				continue
			}
			ch = events.AskChunk(*ask, "")
		}
		people++
		again = append(again, ch)
	}
	if people == 0 && len(t.clients) > 0 {
		return t.finish()
	}
	if t.atAsk {
		return nil
	}
	for _, ch := range again {
		f := t.askFrame(ch)
		f.Repeat = true
		if err := t.show(f); err != nil {
			return err
		}
	}
	return nil
}

// finish ends the turn of a client that must execute its tools.
func (t *teller) finish() error {
	p := events.FinishPayload{
		MessageID: t.messageID, StepResult: events.StepResult{Reason: finishToolCalls},
		Output: events.FinishOutput{ToolCalls: []events.ToolCallPayload{}},
	}
	for _, call := range t.calls {
		if t.clients[call.ToolCallID] {
			p.Output.ToolCalls = append(p.Output.ToolCalls, call)
		}
	}
	for _, kind := range []events.ChunkType{events.ChunkStepFinish, events.ChunkFinish} {
		if err := t.show(frameOf(events.NewChunk(t.run.ID, kind, p))); err != nil {
			return err
		}
	}
	return nil
}

// finishToolCalls is the reason of a turn that ends because its calls must be made.
const finishToolCalls = "tool-calls"

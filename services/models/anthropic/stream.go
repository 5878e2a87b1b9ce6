package anthropic

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// event is an event of a stream, or a whole answer that was not streamed.
type event struct {
	Type    string                  `json:"type"`
	Index   int                     `json:"index"`
	Message *struct{ Usage *usage } `json:"message"`
	Block   json.RawMessage         `json:"content_block"`
	Delta   delta                   `json:"delta"`
	Usage   *usage                  `json:"usage"`

	Content    []json.RawMessage `json:"content"` // of a whole answer
	StopReason adapter.Text      `json:"stop_reason"`
}

type delta struct {
	Type        string       `json:"type"`
	Text        string       `json:"text"`
	Thinking    string       `json:"thinking"`
	Signature   string       `json:"signature"`
	PartialJSON string       `json:"partial_json"`
	StopReason  adapter.Text `json:"stop_reason"`
}

// usage are tokens. Events tell totals; what one does not tell stays.
type usage struct {
	Input        *int `json:"input_tokens"`
	CacheWritten *int `json:"cache_creation_input_tokens"`
	CacheRead    *int `json:"cache_read_input_tokens"`
	Output       *int `json:"output_tokens"`
}

func (u *usage) add(more *usage) {
	if more == nil {
		return
	}
	u.Input, u.CacheWritten = cmp.Or(more.Input, u.Input), cmp.Or(more.CacheWritten, u.CacheWritten)
	u.CacheRead, u.Output = cmp.Or(more.CacheRead, u.CacheRead), cmp.Or(more.Output, u.Output)
}

// events counts what came from the cache and went into it as input: it was read.
func (u *usage) events() events.Usage {
	var out events.Usage
	for _, n := range []*int{u.Input, u.CacheWritten, u.CacheRead} {
		if n != nil {
			out.InputTokens += *n
		}
	}
	if u.CacheRead != nil {
		out.CachedInputTokens = *u.CacheRead
	}
	if u.Output != nil {
		out.OutputTokens = *u.Output
	}
	return adapter.Counted(out)
}

// piece is a block of an answer while its deltas arrive.
type piece struct {
	index int
	part  string // its id among the parts of this turn
	raw   json.RawMessage
	block block
	text  strings.Builder // its text, its thinking or its input
	sign  strings.Builder
	ended bool // the stream said that it is whole
}

// maxPauses is how often a turn may be paused. Each time Anthropic's own tools have run many times.
const maxPauses = 8

// turn reads one answer, and those that go on with it.
type turn struct {
	sent   *writer
	key    string
	pieces []*piece
	first  int // of this answer's pieces
	usage  usage
	before events.Usage // of the answers before this one
	reason string       // empty until Anthropic gave one
	size   int
	pauses int
	done   bool
}

// State: once there is a reason the answer is whole.
func (t *turn) State() (whole, done bool) { return t.reason != "", t.done }

// Take reads one event. Of one that is new only its type is read, whatever else it holds.
func (t *turn) Take(f adapter.Frame, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(f.Data, &head); err != nil && f.Name != "error" {
		return nil, adapter.Unexpected(err)
	}
	kind := cmp.Or(head.Type, f.Name)
	switch kind {
	case "error":
		return nil, adapter.ReadError(f.Data)
	case "message_stop":
		t.done = true
		return parts, nil
	case "message", "message_start", "message_delta", "content_block_start", "content_block_delta", "content_block_stop":
	default: // a ping, or what is new
		return parts, nil
	}
	var e event
	if err := json.Unmarshal(f.Data, &e); err != nil {
		return nil, adapter.Unexpected(err)
	}
	switch kind {
	case "message":
		return t.whole(&e, parts)
	case "message_start":
		if e.Message != nil {
			t.usage.add(e.Message.Usage)
		}
	case "message_delta":
		t.usage.add(e.Usage)
		t.reason = cmp.Or(string(e.Delta.StopReason), t.reason)
	case "content_block_start":
		return t.start(e.Index, e.Block, parts)
	case "content_block_delta":
		return t.delta(e, parts)
	case "content_block_stop":
		if p := t.find(e.Index); p != nil {
			parts = t.stop(p, parts)
		}
	}
	return parts, nil
}

// whole reads an answer that was not streamed.
func (t *turn) whole(e *event, parts []agent.ModelPart) (out []agent.ModelPart, err error) {
	t.usage.add(e.Usage)
	for i, raw := range e.Content {
		if parts, err = t.start(i, raw, parts); err != nil {
			return nil, err
		}
		parts = t.stop(t.pieces[len(t.pieces)-1], parts)
	}
	t.reason, t.done = string(e.StopReason), true
	return parts, nil
}

// find is the piece of an index, which is open, or nil.
func (t *turn) find(index int) *piece {
	for _, p := range t.pieces[t.first:] {
		if p.index == index && !p.ended {
			return p
		}
	}
	return nil
}

// start begins a piece. Ids are made of its place.
func (t *turn) start(index int, raw json.RawMessage, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	p := &piece{index: index, raw: raw}
	if err := json.Unmarshal(raw, &p.block); err != nil {
		return nil, adapter.Unexpected(err)
	}
	kind := "reasoning" // thinking, and what Anthropic's own tools do
	switch p.block.Type {
	case blockText:
		kind = "text"
	case blockToolUse:
		kind = "call"
	}
	p.part = fmt.Sprintf("%s-%d", kind, len(t.pieces))
	t.pieces = append(t.pieces, p)
	if kind == "call" {
		parts = append(parts, agent.ModelPart{
			Type: agent.PartToolInputStart, ID: p.part, ToolName: p.block.Name, ProviderCallID: p.block.ID,
		})
	}
	text := p.block.Text
	if p.block.Thinking != nil {
		text = *p.block.Thinking
	}
	return t.say(p, text, parts)
}

func (t *turn) delta(e event, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	p := t.find(e.Index)
	if p == nil {
		return nil, adapter.Unexpected(fmt.Errorf("block %d has not begun", e.Index))
	}
	switch e.Delta.Type {
	case "text_delta", "thinking_delta", "input_json_delta":
		return t.say(p, e.Delta.Text+e.Delta.Thinking+e.Delta.PartialJSON, parts)
	case "signature_delta":
		p.sign.WriteString(e.Delta.Signature)
	default: // citations, or what is new
	}
	return parts, nil
}

// say adds to a piece and tells it.
func (t *turn) say(p *piece, text string, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	if text == "" {
		return parts, nil
	}
	if t.size += len(text); t.size > adapter.MaxTurn {
		return nil, adapter.TooLarge()
	}
	p.text.WriteString(text)
	switch p.block.Type {
	case blockText:
		parts = append(parts, agent.ModelPart{Type: agent.PartTextDelta, ID: p.part, Text: text})
	case blockThinking:
		parts = append(parts, agent.ModelPart{Type: agent.PartReasoningDelta, ID: p.part, Text: text})
	case blockToolUse:
		parts = append(parts, agent.ModelPart{Type: agent.PartToolInputDelta, ID: p.part, Text: text})
	default: // told when it is whole
	}
	return parts, nil
}

// stop ends a piece: now its proof is there, and what only Anthropic reads again. That a call is whole is told at the
// end of the turn: Anthropic also stops the block of a call that the limit has cut.
func (t *turn) stop(p *piece, parts []agent.ModelPart) []agent.ModelPart {
	p.ended = true
	proof := ""
	switch p.block.Type {
	case blockText:
	case blockToolUse:
		if input := string(p.block.Input); p.text.Len() == 0 && input != "" && input != "null" && input != "{}" {
			p.text.WriteString(input) // not streamed
			parts = append(parts, agent.ModelPart{Type: agent.PartToolInputDelta, ID: p.part, Text: input})
		}
	case blockThinking:
		if p.sign.Len() == 0 {
			p.sign.WriteString(p.block.Signature)
		}
		if p.sign.Len() > 0 {
			proof = signedThinking + p.sign.String()
		}
	case blockRedacted:
		proof = signedRedacted + p.block.Data
	default:
		own := p.own()
		proof = signedBlock + string(own)
		parts = t.tellOwn(p, own, parts)
	}
	if proof != "" {
		parts = append(parts, agent.ModelPart{Type: agent.PartReasoningDelta, ID: p.part, Signature: proof})
	}
	return parts
}

// tellOwn tells what a tool of Anthropic's is called with, or has brought: without what only Anthropic can read.
func (t *turn) tellOwn(p *piece, raw json.RawMessage, parts []agent.ModelPart) []agent.ModelPart {
	var own struct {
		Name    string          `json:"name"`
		Input   json.RawMessage `json:"input"`
		ToolUse string          `json:"tool_use_id"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &own) != nil {
		return parts
	}
	if p.block.Type == "server_tool_use" {
		return append(parts, agent.ModelPart{Type: agent.PartProviderCall, ID: "own-" + p.part, ToolName: own.Name, Text: string(own.Input)})
	}
	if !strings.HasSuffix(p.block.Type, "_tool_result") {
		return parts
	}
	id, name := "own-"+p.part, strings.TrimSuffix(p.block.Type, "_tool_result")
	for _, call := range t.pieces {
		if call.block.Type == "server_tool_use" && call.block.ID == own.ToolUse {
			id, name = "own-"+call.part, call.block.Name
		}
	}
	content, found := results(own.Content)
	parts = append(parts, agent.ModelPart{Type: agent.PartProviderResult, ID: id, ToolName: name, Text: string(content)})
	for i, one := range found {
		parts = append(parts, agent.ModelPart{Type: agent.PartSource, ID: fmt.Sprintf("%s-%d", id, i), URL: one.URL, Text: one.Title})
	}
	return parts
}

// result is something that was found on the web.
type result struct {
	URL     string `json:"url"`
	Title   string `json:"title,omitempty"`
	PageAge string `json:"pageAge,omitempty"`
}

// results are those of a search; of what is no list of them only its error is told.
func results(raw json.RawMessage) (json.RawMessage, []result) {
	var list []struct {
		URL     string       `json:"url"`
		Title   adapter.Text `json:"title"`
		PageAge adapter.Text `json:"page_age"`
	}
	var other struct {
		ErrorCode string `json:"error_code"`
	}
	if json.Unmarshal(raw, &list) != nil {
		_ = json.Unmarshal(raw, &other) // what it holds else only Anthropic reads
		told, _ := events.Marshal(map[string]string{"errorCode": other.ErrorCode})
		return told, nil
	}
	found := []result{}
	for _, one := range list {
		if one.URL != "" {
			found = append(found, result{one.URL, string(one.Title), string(one.PageAge)})
		}
	}
	told, _ := events.Marshal(found) // texts always encode
	return told, found
}

// own is a block of one of Anthropic's own tools, whole.
func (p *piece) own() json.RawMessage {
	o, err := adapter.ParseObject(p.raw)
	if err != nil {
		return p.raw
	}
	if input := p.text.String(); json.Valid([]byte(input)) {
		o.Set("input", json.RawMessage(input))
	}
	raw, err := o.MarshalJSON()
	if err != nil {
		return p.raw
	}
	return raw
}

// Finish ends the calls that are whole and the turn; or goes on with a turn that is paused.
func (t *turn) Finish() ([]agent.ModelPart, *adapter.Request, error) {
	if said := t.said(); t.reason == "pause_turn" && t.pauses < maxPauses && len(said) > 0 {
		t.pauses++
		next, err := t.sent.goOn(said, t.nextKey())
		t.before, t.usage = t.total(), usage{}
		t.first, t.reason, t.done = len(t.pieces), "", false
		return nil, next, err
	}
	reason := finishReason(t.reason)
	var parts []agent.ModelPart
	for i, p := range t.pieces {
		last := i == len(t.pieces)-1
		if p.block.Type == blockToolUse && p.ended && adapter.Whole(p.text.String(), last, reason) {
			parts = append(parts, agent.ModelPart{Type: agent.PartToolInputEnd, ID: p.part})
		}
	}
	return append(parts, agent.ModelPart{Type: agent.PartFinish, FinishReason: reason, Usage: t.total()}), nil, nil
}

// nextKey tells the requests of one turn apart, the same way in every attempt.
func (t *turn) nextKey() string {
	if t.key == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d", t.key, t.pauses)
}

func (t *turn) total() events.Usage { return t.before.Add(t.usage.events()) }

// said are the blocks of the turn so far, as they are sent back.
func (t *turn) said() []any {
	var out []any
	for _, p := range t.pieces {
		switch p.block.Type {
		case blockText:
			if !blank(p.text.String()) {
				out = append(out, block{Type: blockText, Text: p.text.String()})
			}
		case blockThinking:
			if b := reasoning(p.text.String(), signedThinking+p.sign.String()); b != nil {
				out = append(out, b)
			}
		case blockToolUse:
			return nil // a call is answered before the turn goes on
		default:
			out = append(out, p.own())
		}
	}
	return out
}

// finishReason is Anthropic's reason in Weir's words.
func finishReason(s string) agent.FinishReason {
	switch s {
	case "":
		return agent.FinishUnknown
	case "end_turn", "stop_sequence":
		return agent.FinishStop
	case "max_tokens", "model_context_window_exceeded":
		return agent.FinishLength
	case "tool_use":
		return agent.FinishToolCalls
	case "refusal":
		return agent.FinishContentFilter
	default:
		return agent.FinishOther
	}
}

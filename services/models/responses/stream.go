package responses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// event is one event of a stream. Type says which fields are set.
type event struct {
	Type     string          `json:"type"`
	Index    int             `json:"output_index"`
	Part     int             `json:"content_index"`
	Summary  int             `json:"summary_index"`
	Delta    adapter.Text    `json:"delta"`
	Item     json.RawMessage `json:"item"`
	Place    int             `json:"annotation_index"`
	Citation *struct {
		Type  string       `json:"type"`
		URL   string       `json:"url"`
		Title adapter.Text `json:"title"`
	} `json:"annotation"`
	Response *response `json:"response"`
}

// response is an answer, or what is known of it so far. A server that ignores the wish for a stream answers one alone.
type response struct {
	Object     string            `json:"object"`
	Status     string            `json:"status"`
	Output     []json.RawMessage `json:"output"`
	Usage      *usage            `json:"usage"`
	Error      json.RawMessage   `json:"error"`
	Incomplete *struct {
		Reason adapter.Text `json:"reason"`
	} `json:"incomplete_details"`
}

type usage struct {
	Input        int `json:"input_tokens"` // what came from the cache included
	Output       int `json:"output_tokens"`
	Total        int `json:"total_tokens"`
	InputDetails *struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputDetails *struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
}

func (u *usage) events() events.Usage {
	if u == nil {
		return events.Usage{}
	}
	out := events.Usage{InputTokens: u.Input, OutputTokens: u.Output, TotalTokens: u.Total}
	if u.InputDetails != nil {
		out.CachedInputTokens = u.InputDetails.Cached
	}
	if u.OutputDetails != nil {
		out.ReasoningTokens = u.OutputDetails.Reasoning
	}
	return adapter.Counted(out)
}

// saidItem is an item of an answer.
type saidItem struct {
	Type      string  `json:"type"`
	ID        string  `json:"id"`
	CallID    string  `json:"call_id"`
	Name      string  `json:"name"`
	Arguments string  `json:"arguments"`
	Status    string  `json:"status"`
	Content   []piece `json:"content"`
	Summary   []piece `json:"summary"`
	Encrypted string  `json:"encrypted_content"`

	Action json.RawMessage `json:"action"` // of OpenAI's own tools
}

// said is what was heard of an item of an answer.
type said struct {
	kind    string
	text    int // bytes of text that were told
	summary int // the paragraph of a reasoning that is being told
	args    strings.Builder
	started bool // of a call: it was announced
	ended   bool // the stream said that the item is whole
	cut     bool // and this that it is not
}

// turn reads one answer.
type turn struct {
	items   map[int]*said
	last    int // the place of the latest item
	usage   *usage
	status  string // completed or incomplete; empty until the answer is over
	why     string // it is incomplete
	refused bool
	size    int
}

// State: the answer is over with the event that says so, which has the usage too.
func (t *turn) State() (whole, done bool) { return t.status != "", t.status != "" }

// Take reads one event, or a whole answer.
func (t *turn) Take(f adapter.Frame, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	data := bytes.TrimSpace(f.Data)
	if string(data) == "[DONE]" {
		return parts, nil
	}
	if t.size += len(data); t.size > 2*adapter.MaxTurn { // each piece comes again with its item
		return nil, adapter.TooLarge()
	}
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, adapter.Unexpected(err)
	}
	switch e.Type {
	case "":
		return t.takeWhole(data, parts)
	case "error":
		return nil, adapter.ReadError(data)
	case "response.output_item.added":
		return t.begin(e, parts)
	case "response.output_item.done":
		return t.end(e, parts)
	case "response.output_text.delta":
		return t.text(e.Index, agent.PartTextDelta, strconv.Itoa(e.Part), string(e.Delta), parts), nil
	case "response.refusal.delta":
		t.refused = true
		return t.text(e.Index, agent.PartTextDelta, strconv.Itoa(e.Part), string(e.Delta), parts), nil
	case "response.reasoning_summary_text.delta":
		return t.thought(e, parts), nil
	case "response.output_text.annotation.added":
		return t.cite(e, parts), nil
	case "response.function_call_arguments.delta":
		return t.arguments(e.Index, string(e.Delta), parts), nil
	case "response.completed", "response.incomplete", "response.failed":
		return parts, t.over(e.Response)
	default: // what began, what is repeated whole, what OpenAI's own tools are at
		return parts, nil
	}
}

// over reads how an answer ended.
func (t *turn) over(r *response) error {
	if r == nil {
		return &adapter.ProviderError{Message: "the answer ended without a word of how"}
	}
	if len(r.Error) > 0 && string(r.Error) != "null" {
		return adapter.ErrorValue(r.Error)
	}
	t.usage = r.Usage
	switch t.status = r.Status; r.Status {
	case "completed":
	case "incomplete":
		if r.Incomplete != nil {
			t.why = string(r.Incomplete.Reason)
		}
	default:
		return &adapter.ProviderError{Message: adapter.Text("the answer has the status " + strconv.Quote(r.Status))}
	}
	return nil
}

// takeWhole reads an answer that was not streamed.
func (t *turn) takeWhole(data []byte, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	var r response
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, adapter.Unexpected(err)
	}
	if r.Object != "response" && len(r.Error) > 0 {
		return nil, adapter.ReadError(data)
	}
	for i, raw := range r.Output {
		var err error
		if parts, err = t.end(event{Index: i, Item: raw}, parts); err != nil {
			return nil, err
		}
	}
	return parts, t.over(&r)
}

// at is what was heard of the item at a place.
func (t *turn) at(index int) *said {
	if t.items == nil {
		t.items = map[int]*said{}
	}
	if t.items[index] == nil {
		t.items[index] = &said{}
		t.last = max(t.last, index)
	}
	return t.items[index]
}

// begin reads that an item has begun. Only a call says something by that.
func (t *turn) begin(e event, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	var it saidItem
	if err := json.Unmarshal(e.Item, &it); err != nil {
		return nil, adapter.Unexpected(err)
	}
	s := t.at(e.Index)
	s.kind = it.Type
	if it.Type != itemCall {
		return parts, nil
	}
	return t.announce(e.Index, it, parts), nil
}

// announce tells a call, once.
func (t *turn) announce(index int, it saidItem, parts []agent.ModelPart) []agent.ModelPart {
	s := t.at(index)
	s.kind = itemCall
	if s.started || it.Name == "" {
		return parts
	}
	s.started = true
	parts = append(parts, agent.ModelPart{Type: agent.PartToolInputStart, ID: callPart(index), ToolName: it.Name, ProviderCallID: it.CallID})
	if s.args.Len() > 0 {
		parts = append(parts, agent.ModelPart{Type: agent.PartToolInputDelta, ID: callPart(index), Text: s.args.String()})
	}
	return parts
}

func callPart(index int) string { return "call-" + strconv.Itoa(index) }

// arguments takes a piece of a call's arguments.
func (t *turn) arguments(index int, piece string, parts []agent.ModelPart) []agent.ModelPart {
	s := t.at(index)
	s.kind = itemCall
	s.args.WriteString(piece)
	if !s.started || piece == "" {
		return parts
	}
	return append(parts, agent.ModelPart{Type: agent.PartToolInputDelta, ID: callPart(index), Text: piece})
}

// text takes a piece of a text of an item.
func (t *turn) text(index int, kind agent.ModelPartType, sub, piece string, parts []agent.ModelPart) []agent.ModelPart {
	if piece == "" {
		return parts
	}
	t.at(index).text += len(piece)
	name := strings.TrimSuffix(string(kind), "-delta")
	return append(parts, agent.ModelPart{Type: kind, ID: name + "-" + strconv.Itoa(index) + "-" + sub, Text: piece})
}

// thought takes a piece of what a model lets know of its reasoning. An item is one reasoning, whose parts are paragraphs.
func (t *turn) thought(e event, parts []agent.ModelPart) []agent.ModelPart {
	if s := t.at(e.Index); s.text > 0 && s.summary != e.Summary {
		parts = t.text(e.Index, agent.PartReasoningDelta, "0", "\n\n", parts)
	}
	t.at(e.Index).summary = e.Summary
	return t.text(e.Index, agent.PartReasoningDelta, "0", string(e.Delta), parts)
}

// end reads an item that is whole. What was not told in pieces is told now.
func (t *turn) end(e event, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	var it saidItem
	if err := json.Unmarshal(e.Item, &it); err != nil {
		return nil, adapter.Unexpected(err)
	}
	s := t.at(e.Index)
	s.ended, s.cut = true, it.Status == "incomplete"
	switch it.Type {
	case itemMessage:
		for i, p := range it.Content {
			if s.text == 0 {
				t.refused = t.refused || p.Type == "refusal"
				parts = t.text(e.Index, agent.PartTextDelta, strconv.Itoa(i), p.said(), parts)
			}
		}
	case itemReasoning:
		return t.reasoned(e.Index, it, parts), nil
	case itemCall:
		parts = t.announce(e.Index, it, parts)
		if s.args.Len() == 0 {
			parts = t.arguments(e.Index, it.Arguments, parts)
		}
	case "": // nothing
	default: // what OpenAI's own tools did, which only OpenAI reads again, at this place
		parts = append(parts, agent.ModelPart{
			Type: agent.PartReasoningDelta, ID: "item-" + strconv.Itoa(e.Index), Signature: signedItem + string(e.Item),
		})
		parts = own(e.Index, it, parts)
	}
	return parts, nil
}

// own tells a call of a tool that OpenAI runs itself, and that it is over.
func own(index int, it saidItem, parts []agent.ModelPart) []agent.ModelPart {
	name, call := strings.CutSuffix(it.Type, "_call")
	if !call {
		return parts
	}
	id, args := "own-"+strconv.Itoa(index), "{}"
	if len(it.Action) > 0 {
		args = string(it.Action)
	}
	return append(parts, agent.ModelPart{Type: agent.PartProviderCall, ID: id, ToolName: name, Text: args},
		agent.ModelPart{Type: agent.PartProviderResult, ID: id, ToolName: name, Text: `{"status":` + strconv.Quote(it.Status) + `}`})
}

// cite tells where something that the model says is from.
func (t *turn) cite(e event, parts []agent.ModelPart) []agent.ModelPart {
	c := e.Citation
	if c == nil || c.URL == "" {
		return parts
	}
	id := fmt.Sprintf("source-%d-%d-%d", e.Index, e.Part, e.Place)
	return append(parts, agent.ModelPart{Type: agent.PartSource, ID: id, URL: c.URL, Text: string(c.Title)})
}

// reasoned ends a reasoning with its proof.
func (t *turn) reasoned(index int, it saidItem, parts []agent.ModelPart) []agent.ModelPart {
	if t.at(index).text == 0 {
		for i, p := range it.Summary {
			parts = t.thought(event{Index: index, Summary: i, Delta: adapter.Text(p.Text)}, parts)
		}
	}
	if it.Encrypted == "" {
		return parts
	}
	proof, err := events.Marshal(map[string]string{"id": it.ID, "encrypted_content": it.Encrypted})
	if err != nil {
		return parts // texts always encode
	}
	return append(parts, agent.ModelPart{
		Type: agent.PartReasoningDelta, ID: "reasoning-" + strconv.Itoa(index) + "-0", Signature: signedReasoning + string(proof),
	})
}

// said is the text of a piece of an answer: what was answered, or why it was not.
func (p piece) said() string {
	if p.Type == "refusal" {
		return p.Refusal
	}
	return p.Text
}

// Finish ends the calls that are whole and the turn.
func (t *turn) Finish() ([]agent.ModelPart, *adapter.Request, error) {
	calls := false
	for _, s := range t.items {
		calls = calls || s.kind == itemCall
	}
	reason := t.reason(calls)
	var parts []agent.ModelPart
	for _, i := range slices.Sorted(maps.Keys(t.items)) {
		s := t.items[i]
		if s.kind != itemCall || !s.started || !s.ended || s.cut {
			continue
		}
		if adapter.Whole(s.args.String(), i == t.last, reason) {
			parts = append(parts, agent.ModelPart{Type: agent.PartToolInputEnd, ID: callPart(i)})
		}
	}
	return append(parts, agent.ModelPart{Type: agent.PartFinish, FinishReason: reason, Usage: t.usage.events()}), nil, nil
}

// reason is why the turn ended, in Weir's words. The protocol has none for calls.
func (t *turn) reason(calls bool) agent.FinishReason {
	switch {
	case t.status == "incomplete" && t.why == "content_filter", t.refused:
		return agent.FinishContentFilter
	case t.status == "incomplete": // whatever cut it: what was being written is not whole
		return agent.FinishLength
	case calls:
		return agent.FinishToolCalls
	default:
		return agent.FinishStop
	}
}

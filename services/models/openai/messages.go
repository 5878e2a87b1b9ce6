package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// wireMessage is a message of a request. Content is a text, a list of parts, or absent.
type wireMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content,omitempty"`
	ToolCalls  []wireCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type wireCall struct {
	ID       string           `json:"id"`
	Type     string           `json:"type"`
	Function wireCallFunction `json:"function"`
}

type wireCallFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// transcript writes the messages of a request. It holds the pairing of calls and results: after a message with calls
// come exactly their results, in call order, before anything else.
type transcript struct {
	p    *prepared
	ids  callIDs
	out  []wireMessage
	open []openCall // calls whose results must come next
}

// openCall is a call without its result: the id it had in the transcript, and the one that is sent.
type openCall struct{ id, sent string }

// messages writes the instructions and the conversation. A conversation in which a call has no result, or a result no
// call, is an error: providers refuse it, and a guess could tell the model something untrue.
func (p *prepared) messages(req agent.ModelRequest) ([]wireMessage, error) {
	t := &transcript{p: p}
	if req.Instructions != "" {
		t.out = append(t.out, wireMessage{Role: "system", Content: req.Instructions})
	}
	for i := 0; i < len(req.Messages); i++ {
		m := req.Messages[i]
		if m.Role != events.RoleTool {
			if err := t.add(m); err != nil {
				return nil, err
			}
			continue
		}
		var results []events.Part
		for ; i < len(req.Messages) && req.Messages[i].Role == events.RoleTool; i++ {
			results = append(results, req.Messages[i].Parts...)
		}
		i--
		if err := t.addResults(results); err != nil {
			return nil, err
		}
	}
	return t.out, t.settled()
}

func (t *transcript) settled() error {
	if len(t.open) > 0 {
		return events.Errorf(events.CodeTranscriptBroken, "call %s has no result", t.open[0].id)
	}
	return nil
}

func (t *transcript) add(m events.Message) error {
	if err := t.settled(); err != nil {
		return err
	}
	switch m.Role {
	case events.RoleSystem:
		t.out = append(t.out, wireMessage{Role: "system", Content: m.Text()})
	case events.RoleAssistant:
		t.addAssistant(m)
	case events.RoleUser:
		content, err := t.userContent(m)
		if err != nil {
			return err
		}
		t.out = append(t.out, wireMessage{Role: "user", Content: content})
	default:
		return events.Errorf(events.CodeTranscriptBroken, "a message of role %q", m.Role)
	}
	return nil
}

// addAssistant writes a turn: its text and its calls. Reasoning has no place in this protocol, and a turn of nothing
// else is left out.
func (t *transcript) addAssistant(m events.Message) {
	w := wireMessage{Role: "assistant"}
	if text := m.Text(); text != "" {
		w.Content = text
	}
	for _, part := range m.Parts {
		if part.Type != events.PartToolCall {
			continue
		}
		id := t.ids.next(part.ToolCallID)
		t.open = append(t.open, openCall{part.ToolCallID, id})
		w.ToolCalls = append(w.ToolCalls, wireCall{ID: id, Type: "function", Function: wireCallFunction{
			Name: agent.SafeName(part.ToolName), Arguments: argumentsText(part.Args),
		}})
	}
	if w.Content != nil || w.ToolCalls != nil {
		t.out = append(t.out, w)
	}
}

// argumentsText is what history says of a call's arguments. It is always an object, because servers parse it: nothing
// is {}, and what the model wrote malformed is quoted in one. Well-formed arguments keep their bytes.
func argumentsText(args string) string {
	trimmed := strings.TrimSpace(args)
	switch {
	case trimmed == "" || trimmed == "null":
		return "{}"
	case trimmed[0] == '{' && json.Valid([]byte(trimmed)):
		return args
	default:
		raw, _ := events.Marshal(map[string]string{"malformed": args}) // a text always encodes
		return string(raw)
	}
}

// addResults writes one group of results. They are paired with the open calls by id when the ids are those of the
// calls and differ, else by position.
func (t *transcript) addResults(parts []events.Part) error {
	results := make([]events.Part, 0, len(parts))
	for _, p := range parts {
		if p.Type == events.PartToolResult {
			results = append(results, p)
		}
	}
	if len(results) > len(t.open) {
		return events.Errorf(events.CodeTranscriptBroken, "%d results for %d calls", len(results), len(t.open))
	}
	if len(results) < len(t.open) {
		return events.Errorf(events.CodeTranscriptBroken, "%d calls with %d results", len(t.open), len(results))
	}
	order, err := pair(t.open, results)
	if err != nil {
		return err
	}
	for i, r := range order {
		t.out = append(t.out, wireMessage{Role: "tool", ToolCallID: t.open[i].sent, Content: t.resultText(r)})
	}
	t.open = nil
	return nil
}

// pair puts results into call order.
func pair(open []openCall, results []events.Part) ([]events.Part, error) {
	byID := make(map[string]events.Part, len(results))
	for _, r := range results {
		byID[r.ToolCallID] = r
	}
	distinct := map[string]bool{}
	for _, c := range open {
		distinct[c.id] = true
	}
	if len(distinct) < len(open) {
		return results, nil // ids of foreign history that say nothing: position is all there is
	}
	out := make([]events.Part, len(open))
	for i, c := range open {
		r, ok := byID[c.id]
		if !ok {
			return nil, events.Errorf(events.CodeTranscriptBroken, "call %s has no result", c.id)
		}
		out[i] = r
	}
	return out, nil
}

// resultText is what the model is told of a call. This protocol takes text only and has no mark for errors; media
// become a placeholder, never base64 text.
func (t *transcript) resultText(p events.Part) string {
	if p.Output == nil {
		return ""
	}
	value := bytes.TrimSpace(p.Output.Value)
	var text string
	if bytes.HasPrefix(value, []byte{'"'}) && json.Unmarshal(value, &text) == nil {
		return text
	}
	if p.Output.Type != events.OutputContent {
		return string(value)
	}
	var parts []struct {
		Type      string `json:"type"`
		Text      string `json:"text"`
		MediaType string `json:"mediaType"`
		URL       string `json:"url"`
	}
	if json.Unmarshal(value, &parts) != nil {
		return string(value)
	}
	var lines []string
	for _, part := range parts {
		if part.Type == "text" {
			lines = append(lines, part.Text)
			continue
		}
		what := cmp.Or(part.MediaType, part.Type)
		if part.URL != "" && !strings.HasPrefix(part.URL, "data:") {
			what += " at " + part.URL
		}
		lines = append(lines, "["+what+" not shown]")
		t.p.warn("the result of %s has a part that this model cannot take: %s", p.ToolName, cmp.Or(part.MediaType, part.Type))
	}
	return strings.Join(lines, "\n")
}

// userContent is a text when there is nothing else, and a list of parts otherwise.
func (t *transcript) userContent(m events.Message) (any, error) {
	var parts []any
	media := false
	for _, p := range m.Parts {
		switch p.Type {
		case events.PartText:
			parts = append(parts, map[string]string{"type": "text", "text": p.Text})
		case events.PartFile:
			part, err := filePart(p)
			if err != nil {
				return nil, err
			}
			parts, media = append(parts, part), true
		default: // reasoning and calls are not a user's
		}
	}
	if !media {
		return m.Text(), nil
	}
	return parts, nil
}

// filePart writes an image, a recording or a document.
func filePart(p events.Part) (any, error) {
	if p.URL == "" && p.Data == "" {
		return nil, events.Errorf(events.CodeInvalidData, "file %q has neither data nor a URL", p.Filename)
	}
	url := cmp.Or(p.URL, "data:"+p.MediaType+";base64,"+p.Data)
	kind, sub, _ := strings.Cut(p.MediaType, "/")
	switch {
	case kind == "image":
		return map[string]any{"type": "image_url", "image_url": map[string]string{"url": url}}, nil
	case kind == "audio" && p.Data != "":
		format := strings.NewReplacer("mpeg", "mp3", "x-wav", "wav", "wave", "wav").Replace(sub)
		return map[string]any{"type": "input_audio", "input_audio": map[string]string{"data": p.Data, "format": format}}, nil
	default:
		file := map[string]string{"filename": cmp.Or(p.Filename, "file"), "file_data": url}
		return map[string]any{"type": "file", "file": file}, nil
	}
}

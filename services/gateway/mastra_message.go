package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// messageBody is a message as front ends write it: its content is a text, a list of parts, or an object that holds them, and
// some have the parts beside it.
type messageBody struct {
	ID      string          `json:"id"`
	Role    events.Role     `json:"role"`
	Content json.RawMessage `json:"content"`
	Parts   []partBody      `json:"parts"`
}

// partBody is a part of one, in the names of all of them.
type partBody struct {
	Type      string `json:"type"`
	Text      string `json:"text"`
	Reasoning string `json:"reasoning"`

	ToolCallID string          `json:"toolCallId"`
	ToolName   string          `json:"toolName"`
	State      string          `json:"state"`
	Input      json.RawMessage `json:"input"`
	Args       json.RawMessage `json:"args"`
	Output     json.RawMessage `json:"output"`
	Result     json.RawMessage `json:"result"`
	ErrorText  string          `json:"errorText"`
	IsError    bool            `json:"isError"`
	Options    struct {
		Mastra struct {
			ModelOutput *events.ModelOutput `json:"modelOutput"`
		} `json:"mastra"`
	} `json:"providerOptions"`
	Invocation *partBody `json:"toolInvocation"`

	Image     json.RawMessage `json:"image"`
	Data      json.RawMessage `json:"data"`
	URL       string          `json:"url"`
	MediaType string          `json:"mediaType"`
	MimeType  string          `json:"mimeType"`
	Filename  string          `json:"filename"`
}

// read decodes a message; a text alone is one of the user's.
func (m *messageBody) read(at string, raw json.RawMessage) error {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		*m = messageBody{Role: events.RoleUser, Content: raw}
		return nil
	}
	if err := json.Unmarshal(raw, m); err != nil {
		return badBody(at, "Invalid input")
	}
	switch m.Role {
	case events.RoleSystem, events.RoleUser, events.RoleAssistant, events.RoleTool:
		return nil
	}
	return badBody(at+".role", "want system, user, assistant or tool")
}

// list is the parts of a message.
func (m *messageBody) list(at string) ([]partBody, error) {
	content := bytes.TrimSpace(m.Content)
	if len(content) == 0 || string(content) == "null" {
		return m.Parts, nil
	}
	switch content[0] {
	case '"':
		var text string
		if err := json.Unmarshal(content, &text); err != nil {
			return nil, badBody(at+".content", "Invalid input")
		}
		if len(m.Parts) > 0 || text == "" {
			return m.Parts, nil
		}
		return []partBody{{Type: events.PartText, Text: text}}, nil
	case '[':
		var parts []partBody
		if err := json.Unmarshal(content, &parts); err != nil {
			return nil, badBody(at+".content", "Invalid input")
		}
		return parts, nil
	case '{':
		var stored struct {
			Parts []partBody `json:"parts"`
		}
		if err := json.Unmarshal(content, &stored); err != nil {
			return nil, badBody(at+".content", "Invalid input")
		}
		return stored.Parts, nil
	}
	return nil, badBody(at+".content", "Invalid input")
}

// convert makes a message, or none when it says nothing, and one more for the results of tools that its parts hold.
func (m *messageBody) convert(at string) (messages []events.Message, results []toolResult, err error) {
	parts, err := m.list(at)
	if err != nil {
		return nil, nil, err
	}
	said := events.Message{ID: m.ID, Role: m.Role}
	brought := events.Message{Role: events.RoleTool}
	for i, p := range parts {
		if p.Type == "tool-invocation" && p.Invocation != nil {
			p.Invocation.Type = p.Type
			p = *p.Invocation
		}
		at := fmt.Sprintf("%s.parts[%d]", at, i)
		call, result, other, err := p.convert(at)
		if err != nil {
			return nil, nil, err
		}
		if call != nil {
			said.Parts = append(said.Parts, *call)
		}
		if other != nil {
			said.Parts = append(said.Parts, *other)
		}
		if result == nil {
			continue
		}
		into := &brought
		if m.Role == events.RoleTool {
			into = &said
		}
		into.Parts = append(into.Parts, *result)
		results = append(results, p.result())
	}
	for _, made := range []events.Message{said, brought} {
		if len(made.Parts) > 0 {
			messages = append(messages, made)
		}
	}
	return messages, results, nil
}

// convert makes what a part says: a call and its result, or something else, or nothing.
func (p *partBody) convert(at string) (call, result, other *events.Part, err error) {
	switch {
	case p.Type == events.PartText:
		return nil, nil, &events.Part{Type: events.PartText, Text: p.Text}, nil
	case p.Type == events.PartReasoning:
		return nil, nil, &events.Part{Type: events.PartReasoning, Text: cmp.Or(p.Text, p.Reasoning)}, nil
	case p.Type == "image" || p.Type == events.PartFile:
		other, err := p.file(at)
		return nil, nil, other, err
	case p.Type == events.PartToolCall:
		call, err := p.call(at)
		return call, nil, nil, err
	case p.Type == events.PartToolResult:
		result, err := p.outcome(at)
		return nil, result, nil, err
	case p.Type == "tool-invocation" || strings.HasPrefix(p.Type, "tool-"):
		p.ToolName = cmp.Or(p.ToolName, strings.TrimPrefix(p.Type, "tool-"))
		if call, err = p.call(at); err != nil {
			return nil, nil, nil, err
		}
		switch p.State {
		case "result", "output-available", "output-error", "output-denied":
			result, err = p.outcome(at)
		}
		return call, result, nil, err
	case p.Type == "step-start", strings.HasPrefix(p.Type, "source"), strings.HasPrefix(p.Type, events.DataPrefix):
		return nil, nil, nil, nil // for people to look at
	}
	return nil, nil, nil, badBody(at+".type", fmt.Sprintf("%.40q is not known", p.Type))
}

func (p *partBody) call(at string) (*events.Part, error) {
	if p.ToolCallID == "" || p.ToolName == "" {
		return nil, badBody(at, "a call needs toolCallId and toolName")
	}
	args := first(p.Input, p.Args, json.RawMessage(`{}`))
	return &events.Part{Type: events.PartToolCall, ToolCallID: p.ToolCallID, ToolName: p.ToolName, Args: string(args)}, nil
}

func (p *partBody) outcome(at string) (*events.Part, error) {
	if p.ToolCallID == "" {
		return nil, badBody(at, "a result needs toolCallId")
	}
	r := p.result()
	out := r.ModelOutput
	if out == nil {
		out = &events.ModelOutput{Type: events.OutputJSON, Value: r.Result}
	}
	return &events.Part{Type: events.PartToolResult, ToolCallID: p.ToolCallID, ToolName: p.ToolName, Output: out, IsError: r.IsError}, nil
}

// result is what a part says that a tool has brought.
func (p *partBody) result() toolResult {
	r := toolResult{ToolCallID: p.ToolCallID, IsError: p.IsError || p.ErrorText != "", ModelOutput: p.Options.Mastra.ModelOutput}
	r.Result = first(p.Result, p.Output)
	if p.ErrorText != "" {
		r.Result, _ = events.Marshal(p.ErrorText) // a text always encodes
	}
	var said events.ModelOutput
	if p.Type == events.PartToolResult && len(p.Result) == 0 && json.Unmarshal(p.Output, &said) == nil {
		switch said.Type {
		case events.OutputText, events.OutputJSON, events.OutputErrorText, events.OutputContent:
			r.Result, r.IsError = said.Value, r.IsError || said.Type == events.OutputErrorText
		case "error-json":
			r.Result, r.IsError = said.Value, true
		}
	}
	r.Result = first(r.Result, json.RawMessage("null"))
	return r
}

// file is a picture or another file: by its address, or with its data.
func (p *partBody) file(at string) (*events.Part, error) {
	f := &events.Part{Type: events.PartFile, MediaType: cmp.Or(p.MediaType, p.MimeType), URL: p.URL, Filename: p.Filename}
	var text string
	if raw := first(p.Data, p.Image); f.URL == "" && (json.Unmarshal(raw, &text) != nil || text == "") {
		return nil, badBody(at, "a file needs an url, or data as base64")
	}
	switch {
	case text == "":
	case strings.HasPrefix(text, "https:"), strings.HasPrefix(text, "http:"):
		f.URL = text
	case strings.HasPrefix(text, "data:"):
		f.URL = text
	default:
		f.Data = text
	}
	if media, data, ok := strings.Cut(strings.TrimPrefix(f.URL, "data:"), ";base64,"); ok && strings.HasPrefix(f.URL, "data:") {
		f.MediaType, f.Data, f.URL = cmp.Or(f.MediaType, media), data, ""
	}
	if f.MediaType == "" && p.Type == "image" {
		f.MediaType = "image/*"
	}
	return f, nil
}

// first is the first value that is there.
func first(values ...json.RawMessage) json.RawMessage {
	for _, v := range values {
		if len(v) > 0 {
			return v
		}
	}
	return nil
}

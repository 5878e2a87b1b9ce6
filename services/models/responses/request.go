package responses

import (
	"encoding/json"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
	"github.com/weirkeeper/weir/services/models/openai"
)

// writer writes a request.
type writer struct {
	r        *adapter.Request
	provider string
}

// Members of a request.
const (
	fieldText    = "text"
	fieldInclude = "include"
	optionSearch = "web_search"
)

// settingNames are model settings and their names in this protocol.
var settingNames = map[string]string{
	"maxOutputTokens": "max_output_tokens",
	"maxTokens":       "max_output_tokens",
	"temperature":     "temperature",
	"topP":            "top_p",
}

// reserved are members of a request that options may not set: Weir answers for what they hold.
var reserved = []string{
	"model", "input", "instructions", "tools", "tool_choice", "stream", "store", "background", "previous_response_id", "conversation",
}

// write encodes a request. Its errors are final: the same request can never be sent.
func (w *writer) write(req agent.ModelRequest) error {
	w.r.Path, w.r.Key = []string{"responses"}, req.IdempotencyKey
	options, err := adapter.OptionsBut(w.r, req.ProviderOptions, w.provider, reserved)
	if err != nil {
		return err
	}
	entries, err := adapter.Transcript(req.Messages)
	if err != nil {
		return err
	}
	input, err := w.input(entries)
	if err != nil {
		return err
	}
	tools, choice, err := w.tools(req, &options)
	if err != nil {
		return err
	}
	settings, err := adapter.Settings(w.r, req.Settings, settingNames)
	if err != nil {
		return err
	}
	told, err := w.format(req, &options)
	if err != nil {
		return err
	}
	var body adapter.Object
	fields := []struct {
		name  string
		value any
		said  bool
	}{
		{"model", req.Model, true},
		{"instructions", told, told != ""},
		{"input", input, true},
		{"tools", tools, len(tools) > 0},
		{"tool_choice", choice, choice != nil},
		{"stream", true, true},
		{"store", false, true},
		{fieldInclude, []string{"reasoning.encrypted_content"}, reasons(req.Model) && !options.Has(fieldInclude)},
	}
	for _, f := range fields {
		if !f.said {
			continue
		}
		if err := body.SetJSON(f.name, f.value); err != nil {
			return err
		}
	}
	for _, m := range append(settings, options...) {
		body.Set(m.Name, m.Value)
	}
	w.r.Body, err = body.MarshalJSON()
	return err
}

// reasons tells the models that reason: others refuse to be asked for what they thought.
func reasons(model string) bool {
	for _, prefix := range []string{"o1", "o3", "o4", "gpt-5", "codex-", "computer-use"} {
		if strings.HasPrefix(model, prefix) {
			return !strings.HasPrefix(model, "gpt-5-chat")
		}
	}
	return false
}

// format asks for an answer that fits a schema, where it can be said strictly, and says what the model is told first. Options
// win.
func (w *writer) format(req agent.ModelRequest, options *adapter.Object) (told string, err error) {
	if len(req.OutputSchema) == 0 {
		return req.Instructions, nil
	}
	raw, _ := options.Get(fieldText)
	text, err := adapter.Optional(raw)
	if err != nil {
		return "", events.Errorf(events.CodeInvalidRequest, "provider options: %s: text: %v", w.provider, err)
	}
	if text.Has("format") {
		return req.Instructions, nil
	}
	schema, ok := openai.StrictDialect.Answer(req.OutputSchema)
	if !ok {
		return adapter.Told(req), nil
	}
	err = text.SetJSON("format", map[string]any{"type": "json_schema", "name": "answer", "schema": schema, "strict": true})
	if err != nil {
		return "", err
	}
	return req.Instructions, options.SetJSON(fieldText, text)
}

// function is a tool as a request offers it.
type function struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"` // without a word the protocol takes true
}

// tools are what a request offers, and how it may be chosen. It takes the options that are about them.
func (w *writer) tools(req agent.ModelRequest, options *adapter.Object) (tools []any, choice any, err error) {
	search, _ := options.Get(optionSearch)
	options.Remove(optionSearch)
	functions, names, err := adapter.Offer(w.r, req, func(t agent.ModelTool) (function, error) { return w.function(t), nil })
	if err != nil {
		return nil, nil, err
	}
	kind, name, err := adapter.ChoiceOf(req.ToolChoice, names)
	if err != nil || kind == adapter.ChoiceNone {
		return nil, nil, err
	}
	for _, f := range functions {
		tools = append(tools, f)
	}
	if req.WebSearch {
		tool, err := adapter.Optional(search)
		if err != nil {
			return nil, nil, events.Errorf(events.CodeInvalidRequest, "provider options: %s: webSearch: %v", w.provider, err)
		}
		tool.Set("type", json.RawMessage(`"web_search"`))
		tools = append(tools, tool)
	}
	switch {
	case len(tools) == 0:
		return nil, nil, nil
	case kind == adapter.ChoiceTool:
		return tools, map[string]string{"type": "function", "name": name}, nil
	default:
		return tools, kind, nil
	}
}

// function projects one tool. Strict is asked for where the schema can be said in it.
func (w *writer) function(t agent.ModelTool) function {
	schema, strict := openai.StrictDialect.Tool(w.r, t)
	return function{Type: "function", Name: t.Name, Description: t.Description, Parameters: schema, Strict: strict}
}

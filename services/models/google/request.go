package google

import (
	"encoding/json"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// writer writes a request.
type writer struct {
	r        *adapter.Request
	provider string
	old      bool // a model before Gemini 3

	system []part
	said   []content
}

// write encodes a request. Its errors are final: the same request can never be sent.
func (w *writer) write(req agent.ModelRequest) error {
	w.r.Path, w.r.Query, w.r.Key = path(req.Model), "alt=sse", req.IdempotencyKey
	generation, options, err := w.settings(req)
	if err != nil {
		return err
	}
	search, _ := options.Get(optionSearch)
	options.Remove(optionSearch)
	tools, choice, err := w.tools(req, search)
	if err != nil {
		return err
	}
	told, err := w.output(req, &generation, len(tools) > 0)
	if err != nil {
		return err
	}
	if told != "" {
		w.system = append(w.system, part{Text: &told})
	}
	entries, err := adapter.Transcript(req.Messages)
	if err == nil {
		err = w.contents(entries)
	}
	if err != nil {
		return err
	}
	var body adapter.Object
	fields := []struct {
		name  string
		value any
		said  bool
	}{
		{"systemInstruction", content{Parts: anys(w.system)}, len(w.system) > 0},
		{"contents", w.said, true},
		{"tools", tools, len(tools) > 0},
		{"toolConfig", choice, choice != nil},
		{"generationConfig", generation, len(generation) > 0},
	}
	for _, f := range fields {
		if !f.said {
			continue
		}
		if err := body.SetJSON(f.name, f.value); err != nil {
			return err
		}
	}
	for _, o := range options {
		body.Set(o.Name, o.Value)
	}
	w.r.Body, err = body.MarshalJSON()
	return err
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}

// settingNames are model settings and their names in this protocol.
var settingNames = map[string]string{
	"temperature": "temperature", "topP": "topP", "topK": "topK", "maxOutputTokens": "maxOutputTokens", "maxTokens": "maxOutputTokens",
	"stopSequences": "stopSequences", "seed": "seed", "presencePenalty": "presencePenalty", "frequencyPenalty": "frequencyPenalty",
}

const optionSearch = "googleSearch"

// Options that are members of the request; others are of its generationConfig. Reserved ones may not be set: Weir
// answers for what they hold.
var (
	ofRequest = map[string]string{
		"safety_settings": "safetySettings", "cached_content": "cachedContent", "labels": "labels", "service_tier": "serviceTier",
		"google_search": optionSearch,
	}
	reserved = []string{"contents", "system_instruction", "tools", "tool_config", "model", "candidate_count"}
)

// settings are the members of generationConfig, and those of the request that options give. Options win.
func (w *writer) settings(req agent.ModelRequest) (generation, request adapter.Object, err error) {
	if generation, err = adapter.Settings(w.r, req.Settings, settingNames); err != nil {
		return nil, nil, err
	}
	options, err := adapter.Options(req.ProviderOptions, w.provider)
	if err != nil {
		return nil, nil, err
	}
	for _, o := range options {
		name := adapter.Snake(o.Name)
		of, ok := ofRequest[name]
		switch {
		case slices.Contains(reserved, name):
			w.r.Warn("provider option %q is not for options to set", o.Name)
		case ok:
			request.Set(of, o.Value)
		case name == "generation_config":
			more, err := adapter.Optional(o.Value)
			if err != nil {
				return nil, nil, events.Errorf(events.CodeInvalidRequest, "provider options: %s: %s: %v", w.provider, o.Name, err)
			}
			for _, m := range more {
				generation.Set(m.Name, m.Value)
			}
		default:
			generation.Set(o.Name, o.Value)
		}
	}
	return generation, request, nil
}

// output asks for an answer that fits a schema, and says what the model is told first. Options win. Models before Gemini 3
// answer so or call tools, not both.
func (w *writer) output(req agent.ModelRequest, generation *adapter.Object, tools bool) (told string, err error) {
	if len(req.OutputSchema) == 0 || generation.Has("responseMimeType") || generation.Has("responseJsonSchema") {
		return req.Instructions, nil
	}
	if tools && w.old {
		return adapter.Told(req), nil
	}
	schema, err := project(req.OutputSchema)
	if err != nil {
		return "", err
	}
	generation.Set("responseMimeType", json.RawMessage(`"application/json"`))
	generation.Set("responseJsonSchema", schema)
	return req.Instructions, nil
}

// function is a tool as a request offers it.
type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parametersJsonSchema"`
}

// toolConfig says how tools may be chosen.
type toolConfig struct {
	Functions *callingConfig `json:"functionCallingConfig,omitempty"`
	// ServerSide lets Google's own tools stand beside functions, and what they did be told.
	ServerSide bool `json:"includeServerSideToolInvocations,omitempty"`
}

type callingConfig struct {
	Mode    string   `json:"mode"`
	Allowed []string `json:"allowedFunctionNames,omitempty"`
}

// Modes of calling functions. Validated is automatic, and the arguments keep to the schema.
const (
	modeAuto      = "AUTO"
	modeAny       = "ANY"
	modeValidated = "VALIDATED"
)

// tools are what a request offers, and how it may be chosen.
func (w *writer) tools(req agent.ModelRequest, search json.RawMessage) (tools []map[string]any, choice *toolConfig, err error) {
	strict := false
	functions, names, err := adapter.Offer(w.r, req, func(t agent.ModelTool) (function, error) {
		schema, err := project(t.InputSchema)
		strict = strict || err == nil && t.Strict
		return function{t.Name, t.Description, schema}, err
	})
	if err != nil {
		return nil, nil, err
	}
	kind, name, err := adapter.ChoiceOf(req.ToolChoice, names)
	if err != nil || kind == adapter.ChoiceNone {
		return nil, nil, err
	}
	searches := req.WebSearch
	if searches && len(functions) > 0 && w.old {
		w.r.Warn("the model %s cannot search the web and call functions in one turn: it does not search", req.Model)
		searches = false
	}
	if searches {
		if len(search) == 0 {
			search = json.RawMessage(`{}`)
		}
		tools = append(tools, map[string]any{optionSearch: search})
	}
	if len(functions) == 0 {
		return tools, nil, nil
	}
	tools = append(tools, map[string]any{"functionDeclarations": functions})
	calling := &callingConfig{Mode: modeAuto}
	switch {
	case kind == adapter.ChoiceTool:
		calling.Mode, calling.Allowed = modeAny, []string{name}
	case kind == adapter.ChoiceRequired:
		calling.Mode = modeAny
	case strict || searches: // beside Google's own tools there is no other automatic mode
		calling.Mode = modeValidated
	}
	return tools, &toolConfig{Functions: calling, ServerSide: searches}, nil
}

package anthropic

import (
	"encoding/json"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// Anthropic's own search of the web, a tool that runs within a turn.
const (
	webSearchType = "web_search_20250305"
	webSearchName = "web_search"
)

// tools are what a request offers, and how it may be chosen. It takes the options that are about them.
func (w *writer) tools(req agent.ModelRequest, options *adapter.Object) (tools []adapter.Object, choice map[string]any, err error) {
	search, _ := options.Get(optionSearch)
	single, _ := options.Get(optionSingle)
	options.Remove(optionSearch, optionSingle)
	tools, names, err := adapter.Offer(w.r, req, w.tool)
	if err != nil {
		return nil, nil, err
	}
	kind, name, err := adapter.ChoiceOf(req.ToolChoice, names)
	if err != nil || kind == adapter.ChoiceNone {
		return nil, nil, err
	}
	if req.WebSearch {
		if names[webSearchName] != "" {
			return nil, nil, events.Errorf(events.CodeToolNameCollision, "tool %q has the name of the provider's own search of the web", names[webSearchName])
		}
		tool, err := webSearch(search)
		if err != nil {
			return nil, nil, events.Errorf(events.CodeInvalidRequest, "provider options: %s: webSearch: %v", w.provider, err)
		}
		tools = append(tools, tool)
	}
	if len(tools) == 0 {
		return nil, nil, nil
	}
	choice = map[string]any{"type": map[string]string{adapter.ChoiceRequired: "any"}[kind]}
	if kind != adapter.ChoiceRequired {
		choice["type"] = kind
	}
	if name != "" {
		choice["name"] = name
	}
	if string(single) == "true" {
		choice[optionSingle] = true
	}
	return tools, choice, nil
}

func webSearch(options json.RawMessage) (adapter.Object, error) {
	tool := adapter.Object{}
	more, err := adapter.Optional(options)
	if err != nil {
		return nil, err
	}
	_ = tool.SetJSON("type", webSearchType) // texts always encode
	_ = tool.SetJSON("name", webSearchName)
	for _, m := range more {
		tool.Set(m.Name, m.Value)
	}
	return tool, nil
}

// tool projects one tool. Strict is asked for where the schema can be said in it.
func (w *writer) tool(t agent.ModelTool) (adapter.Object, error) {
	var out adapter.Object
	_ = out.SetJSON("name", t.Name)
	if t.Description != "" {
		_ = out.SetJSON("description", t.Description)
	}
	schema, strict := strictDialect.Tool(w.r, t)
	out.Set("input_schema", schema)
	if strict {
		_ = out.SetJSON("strict", true)
	}
	examples, err := inputs(t.InputExamples)
	if err != nil {
		return nil, err
	}
	if len(examples) > 0 {
		if err := out.SetJSON("input_examples", examples); err != nil {
			return nil, err
		}
	}
	return out, w.toolOptions(&out, t)
}

func (w *writer) toolOptions(out *adapter.Object, t agent.ModelTool) error {
	options, err := adapter.Options(t.ProviderOptions, w.provider)
	if err != nil {
		return err
	}
	for _, o := range options {
		name := adapter.Snake(o.Name)
		switch {
		case name == "cache_control":
			if mark := w.cache(t.ProviderOptions); mark != nil {
				out.Set(name, mark)
			}
		case slices.Contains([]string{"name", "type", "description", "input_schema"}, name):
			w.r.Warn("provider option %q of tool %q is not for options to set", o.Name, t.Name)
		default:
			out.Set(name, o.Value)
		}
	}
	return nil
}

// inputs are the arguments that examples show.
func inputs(raw json.RawMessage) ([]json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var examples []struct {
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(raw, &examples); err != nil {
		return nil, err
	}
	var out []json.RawMessage
	for _, e := range examples {
		if len(e.Input) > 0 {
			out = append(out, e.Input)
		}
	}
	return out, nil
}

// strictDialect is what Anthropic's strict tools can say.
var strictDialect = adapter.Strict{
	Keywords: []string{
		"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "oneOf", "$ref",
		"$defs", "definitions", "description", "title", "format", "default",
	},
	Dropped: []string{
		"examples", "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
		"multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "$comment", "deprecated",
		"readOnly", "writeOnly", "contentEncoding", "contentMediaType",
	},
	Formats: []string{"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"},
}

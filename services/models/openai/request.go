package openai

import (
	"encoding/json"
	"maps"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// prepare encodes a request. Its errors are final: the same request can never be sent.
func (c *Client) prepare(r *adapter.Request, req agent.ModelRequest) error {
	r.Path, r.Key = []string{"chat", "completions"}, req.IdempotencyKey
	format := c.format(req)
	told := req.Instructions
	if format == nil {
		told = adapter.Told(req)
	}
	messages, err := messagesOf(r, req, told)
	if err != nil {
		return err
	}
	body := adapter.Object{}
	fields := []struct {
		name  string
		value any
	}{{"model", req.Model}, {"messages", messages}, {"stream", true}}
	for _, f := range fields {
		if err := body.SetJSON(f.name, f.value); err != nil {
			return err
		}
	}
	if !c.dialect.NoStreamOptions {
		body.Set("stream_options", json.RawMessage(`{"include_usage":true}`))
	}
	if format != nil {
		if err := body.SetJSON("response_format", format); err != nil {
			return err
		}
	}
	if err := c.addTools(&body, r, req); err != nil {
		return err
	}
	if req.WebSearch && req.ToolChoice != adapter.ChoiceNone { // options for this provider may say more
		body.Set("web_search_options", json.RawMessage(`{}`))
	}
	if err := c.addSettings(&body, r, req); err != nil {
		return err
	}
	r.Body, err = body.MarshalJSON()
	return err
}

// format asks for an answer that fits a schema, where the server and the schema allow it; else nil.
func (c *Client) format(req agent.ModelRequest) map[string]any {
	if len(req.OutputSchema) == 0 || !c.dialect.Strict {
		return nil
	}
	schema, ok := StrictDialect.Answer(req.OutputSchema)
	if !ok {
		return nil
	}
	return map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "answer", "schema": schema, "strict": true}}
}

// settingNames are model settings and their names in this protocol.
var settingNames = map[string]string{
	"temperature":      "temperature",
	"topP":             "top_p",
	"topK":             "top_k",
	"presencePenalty":  "presence_penalty",
	"frequencyPenalty": "frequency_penalty",
	"stopSequences":    "stop",
	"seed":             "seed",
}

// reserved are fields of a request that options may not set: Weir answers for what they hold.
var reserved = []string{
	"model", "messages", "tools", "tool_choice", "functions", "function_call", "stream", "stream_options", "n",
}

// addSettings adds the model settings and the options for this provider, which win.
func (c *Client) addSettings(body *adapter.Object, r *adapter.Request, req agent.ModelRequest) error {
	names := maps.Clone(settingNames)
	names["maxOutputTokens"], names["maxTokens"] = c.dialect.MaxTokens, c.dialect.MaxTokens
	if c.dialect.NoTopK {
		delete(names, "topK")
	}
	settings, err := adapter.Settings(r, req.Settings, names)
	if err != nil {
		return err
	}
	options, err := adapter.OptionsBut(r, req.ProviderOptions, c.client.Provider(), reserved)
	if err != nil {
		return err
	}
	for _, m := range append(settings, options...) {
		body.Set(m.Name, m.Value)
	}
	return nil
}

// function is a tool as a request offers it. Strict is asked for where the server knows it and the schema can be said
// in it.
func (c *Client) function(r *adapter.Request, t agent.ModelTool) wireTool {
	t.Strict = t.Strict && c.dialect.Strict
	schema, strict := StrictDialect.Tool(r, t)
	return wireTool{Type: "function", Function: wireFunction{Name: t.Name, Description: t.Description, Parameters: schema, Strict: strict}}
}

// wireTool is a tool as a request offers it.
type wireTool struct {
	Type     string       `json:"type"`
	Function wireFunction `json:"function"`
}

type wireFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict,omitempty"`
}

// addTools offers the tools and says how they may be chosen.
func (c *Client) addTools(body *adapter.Object, r *adapter.Request, req agent.ModelRequest) error {
	tools, names, err := adapter.Offer(r, req, func(t agent.ModelTool) (wireTool, error) { return c.function(r, t), nil })
	if err != nil {
		return err
	}
	kind, name, err := adapter.ChoiceOf(req.ToolChoice, names)
	if err != nil || len(tools) == 0 {
		return err
	}
	if err := body.SetJSON("tools", tools); err != nil {
		return err
	}
	if kind != adapter.ChoiceTool {
		return body.SetJSON("tool_choice", kind)
	}
	return body.SetJSON("tool_choice", map[string]any{"type": "function", "function": map[string]string{"name": name}})
}

// StrictDialect is what OpenAI's strict function calling can say.
var StrictDialect = adapter.Strict{
	RequireAll: true,
	Keywords: []string{
		"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "oneOf", "$ref",
		"$defs", "definitions", "description", "title", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
		"exclusiveMaximum", "multipleOf", "minItems", "maxItems",
	},
	Dropped: []string{
		"default", "examples", "minLength", "maxLength", "uniqueItems", "minProperties", "maxProperties", "$comment",
		"deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
	},
	Formats: []string{"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"},
}

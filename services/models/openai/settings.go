package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// settingNames are model settings and their names in this protocol. What is not here is not for the server (headers,
// a client's own retries) or unknown, and gives a warning.
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

// addSettings adds the model settings and the options for this provider, which win. Null says nothing.
func (c *Client) addSettings(body *object, p *prepared, req agent.ModelRequest) error {
	settings, err := optional(req.Settings)
	if err != nil {
		return events.Errorf(events.CodeInvalidRequest, "model settings: %v", err)
	}
	for _, s := range settings {
		name := settingNames[s.name]
		switch {
		case s.name == "maxOutputTokens" || s.name == "maxTokens":
			name = c.dialect.MaxTokens
		case name == "top_k" && c.dialect.NoTopK:
			name = ""
		}
		if name == "" {
			p.warn("model setting %q is not known to this provider", s.name)
			continue
		}
		body.set(name, s.value)
	}
	return c.addOptions(body, p, req.ProviderOptions)
}

// addOptions adds the options under this provider's name; {"reasoningEffort": "low"} and {"reasoning_effort": "low"}
// say the same.
func (c *Client) addOptions(body *object, p *prepared, raw json.RawMessage) error {
	all, err := optional(raw)
	if err != nil {
		return events.Errorf(events.CodeInvalidRequest, "provider options: %v", err)
	}
	mine, _ := all.get(c.provider)
	options, err := optional(mine)
	if err != nil {
		return events.Errorf(events.CodeInvalidRequest, "provider options: %s: %v", c.provider, err)
	}
	for _, o := range options {
		name := snake(o.name)
		if slices.Contains(reserved, name) {
			p.warn("provider option %q is not for options to set", o.name)
			continue
		}
		body.set(name, o.value)
	}
	return nil
}

// optional reads an object that may be absent; members that are null are left out.
func optional(raw json.RawMessage) (object, error) {
	if t := bytes.TrimSpace(raw); len(t) == 0 || string(t) == "null" {
		return nil, nil
	}
	o, err := parseObject(raw)
	o = slices.DeleteFunc(o, func(m member) bool { return string(m.value) == "null" })
	return o, err
}

// snake is a name as this protocol writes names.
func snake(name string) string {
	var out strings.Builder
	for _, r := range name {
		if 'A' <= r && r <= 'Z' {
			out.WriteByte('_')
			r += 'a' - 'A'
		}
		out.WriteRune(r)
	}
	return out.String()
}

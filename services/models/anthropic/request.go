package anthropic

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// writer writes a request, and the one that goes on with its turn.
type writer struct {
	r        *adapter.Request
	provider string
	cached   int // marks for the cache so far

	system []block
	said   []message
	body   adapter.Object
}

// maxCached is how many marks for the cache a request may have.
const maxCached = 4

// write encodes a request. Its errors are final: the same request can never be sent.
func (w *writer) write(req agent.ModelRequest) error {
	w.r.Path, w.r.Key = []string{"messages"}, req.IdempotencyKey
	options, err := w.options(req)
	if err != nil {
		return err
	}
	tools, choice, err := w.tools(req, &options)
	if err != nil {
		return err
	}
	if told := adapter.Told(req); !blank(told) {
		w.system = append(w.system, block{Type: blockText, Text: told})
	}
	entries, err := adapter.Transcript(req.Messages)
	if err == nil {
		err = w.messages(entries)
	}
	if err != nil {
		return err
	}
	settings, err := adapter.Settings(w.r, req.Settings, settingNames)
	if err != nil {
		return err
	}
	w.thinking(&options, &settings, choice)
	w.limit(req.Model, options, &settings)
	fields := []struct {
		name  string
		value any
		said  bool
	}{
		{"model", req.Model, true},
		{"system", w.system, len(w.system) > 0},
		{fieldMessages, w.said, true},
		{"tools", tools, len(tools) > 0},
		{"tool_choice", choice, choice != nil},
		{"stream", true, true},
	}
	for _, f := range fields {
		if !f.said {
			continue
		}
		if err := w.body.SetJSON(f.name, f.value); err != nil {
			return err
		}
	}
	for _, m := range append(settings, options...) {
		w.body.Set(m.Name, m.Value)
	}
	w.r.Body, err = w.body.MarshalJSON()
	return err
}

const fieldMessages = "messages"

// goOn is the request that goes on with a paused turn, after what was said of it.
func (w *writer) goOn(said []any, key string) (*adapter.Request, error) {
	if err := w.body.SetJSON(fieldMessages, append(slices.Clip(w.said), message{Role: roleAssistant, Content: said})); err != nil {
		return nil, err
	}
	body, err := w.body.MarshalJSON()
	return &adapter.Request{Path: w.r.Path, Header: w.r.Header, Key: key, Body: body}, err
}

// settingNames are model settings and their names in this protocol.
var settingNames = map[string]string{
	"maxOutputTokens": fieldMaxTokens,
	"maxTokens":       fieldMaxTokens,
	"temperature":     "temperature",
	"topP":            "top_p",
	"topK":            "top_k",
	"stopSequences":   "stop_sequences",
}

const (
	fieldMaxTokens = "max_tokens"
	fieldThinking  = "thinking"
	optionSearch   = "web_search"
	optionSingle   = "disable_parallel_tool_use"
	optionBeta     = "anthropic_beta"
)

// reserved are fields of a request that options may not set: Weir answers for what they hold.
var reserved = []string{"model", fieldMessages, "system", "tools", "tool_choice", "stream", fieldMaxTokens}

// options reads the options for this provider, spelled as the protocol does.
func (w *writer) options(req agent.ModelRequest) (adapter.Object, error) {
	given, err := adapter.Options(req.ProviderOptions, w.provider)
	if err != nil {
		return nil, err
	}
	var out adapter.Object
	for _, o := range given {
		name := adapter.Snake(o.Name)
		switch {
		case slices.Contains(reserved, name):
			w.r.Warn("provider option %q is not for options to set", o.Name)
			continue
		case name == optionBeta:
			var names []string
			if json.Unmarshal(o.Value, &names) != nil {
				return nil, events.Errorf(events.CodeInvalidRequest, "provider options: %s: %s is not a list of names", w.provider, o.Name)
			}
			w.r.Header = http.Header{"Anthropic-Beta": {strings.Join(names, ",")}}
			continue
		case name == "cache_control":
			w.cached++
		case name == fieldThinking || name == "metadata" || name == optionSearch:
			if o.Value, err = snakeMembers(o.Value); err != nil {
				return nil, events.Errorf(events.CodeInvalidRequest, "provider options: %s: %s: %v", w.provider, o.Name, err)
			}
		}
		out.Set(name, o.Value)
	}
	return out, nil
}

// snakeMembers spells the names of an object's members as the protocol does.
func snakeMembers(raw json.RawMessage) (json.RawMessage, error) {
	o, err := adapter.ParseObject(raw)
	if err != nil {
		return nil, err
	}
	for i := range o {
		o[i].Name = adapter.Snake(o[i].Name)
	}
	return o.MarshalJSON()
}

// cache is the mark for the cache that options of a part or a tool ask for.
func (w *writer) cache(raw json.RawMessage) json.RawMessage {
	options, err := adapter.Options(raw, w.provider)
	if err != nil {
		return nil
	}
	for _, o := range options {
		if adapter.Snake(o.Name) != "cache_control" {
			continue
		}
		if w.cached++; w.cached > maxCached {
			w.r.Warn("only %d marks for the cache can be made in a request: one is left out", maxCached)
			return nil
		}
		return o.Value
	}
	return nil
}

// thinking leaves out what thinking does not go with: it is refused with a forced call, in the middle of calls that
// were made without it, and beside some settings.
func (w *writer) thinking(options, settings *adapter.Object, choice map[string]any) {
	if budget(*options) == 0 {
		return
	}
	why := ""
	switch {
	case choice["type"] == "any" || choice["type"] == "tool":
		why = "the tool choice forces a call"
	case w.amongCalls():
		why = "the calls before were made without it"
	}
	if why != "" {
		w.r.Warn("the model does not think in this turn: %s", why)
		options.Remove(fieldThinking)
		return
	}
	for _, name := range []string{"temperature", "top_k"} {
		if settings.Has(name) {
			w.r.Warn("model setting %q does not go with thinking", name)
			settings.Remove(name)
		}
	}
}

// budget is how many tokens the model is to think, or zero.
func budget(options adapter.Object) int {
	raw, _ := options.Get(fieldThinking)
	var thinking struct {
		Type   string `json:"type"`
		Budget int    `json:"budget_tokens"`
	}
	if json.Unmarshal(raw, &thinking) != nil || thinking.Type != "enabled" {
		return 0
	}
	return thinking.Budget
}

// amongCalls tells whether the last thing is the results of calls of a turn that has no thinking before them.
func (w *writer) amongCalls() bool {
	n := len(w.said)
	if n < 2 || w.said[n-2].Role != roleAssistant {
		return false
	}
	first, last := w.said[n-2].Content[0], w.said[n-1].Content
	if b, ok := last[0].(block); !ok || b.Type != "tool_result" {
		return false
	}
	b, ok := first.(block)
	return !ok || b.Type != blockThinking && b.Type != blockRedacted
}

// limit sets the limit of a turn's tokens, which the protocol demands: what the model can write, if nobody says less.
// What it thinks comes on top of what it is asked to write.
func (w *writer) limit(model string, options adapter.Object, settings *adapter.Object) {
	limit := mostTokens(model)
	raw, asked := settings.Get(fieldMaxTokens)
	if asked {
		if json.Unmarshal(raw, &limit) != nil {
			return // the provider says what is wrong with it
		}
	}
	if thinks := budget(options); asked || thinks >= limit {
		limit += thinks
	}
	_ = settings.SetJSON(fieldMaxTokens, limit) // a number always encodes
}

// mostTokens is a limit that the models of a name take.
func mostTokens(model string) int {
	switch {
	case strings.HasPrefix(model, "claude-3-5"):
		return 8192
	case strings.HasPrefix(model, "claude-3-opus"), strings.HasPrefix(model, "claude-3-sonnet"), strings.HasPrefix(model, "claude-3-haiku"),
		strings.HasPrefix(model, "claude-2"):
		return 4096
	default:
		return 32000
	}
}

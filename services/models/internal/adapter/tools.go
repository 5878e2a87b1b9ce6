package adapter

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Offer projects the tools of a request; names tells which they are as the model sees them. A tool that cannot be
// projected is left out alone, with a warning. With the choice "none" nothing is offered, so that nothing can be called.
func Offer[T any](r *Request, req agent.ModelRequest, project func(t agent.ModelTool) (T, error)) (tools []T, names map[string]string, err error) {
	names = map[string]string{}
	if req.ToolChoice == ChoiceNone {
		return nil, names, nil
	}
	for _, t := range req.Tools {
		seen := t
		seen.Name = agent.SafeName(t.Name)
		one, err := projected(seen, project)
		if err != nil {
			r.Warn("tool %q is left out: %v", t.Name, err)
			continue
		}
		if other, taken := names[seen.Name]; taken {
			return nil, nil, events.Errorf(events.CodeToolNameCollision, "tools %q and %q have the same name for models", other, t.Name)
		}
		names[seen.Name] = t.Name
		tools = append(tools, one)
	}
	return tools, names, nil
}

func projected[T any](t agent.ModelTool, project func(t agent.ModelTool) (T, error)) (one T, err error) {
	if t.Name == "" {
		return one, errors.New("it has no name")
	}
	if t.InputSchema, err = Parameters(t.InputSchema); err != nil {
		return one, err
	}
	return project(t)
}

// Kinds of a tool choice.
const (
	ChoiceNone     = "none"
	ChoiceAuto     = "auto"
	ChoiceRequired = "required"
	ChoiceTool     = "tool"
)

// ChoiceOf reads a tool choice: its kind, and the name of the tool as the model sees it. One that cannot be kept is an
// error, never a wider choice.
func ChoiceOf(choice string, names map[string]string) (kind, name string, err error) {
	name, one := strings.CutPrefix(choice, ChoiceTool+":")
	switch {
	case choice == ChoiceNone:
		return ChoiceNone, "", nil
	case choice == "" || choice == ChoiceAuto:
		return ChoiceAuto, "", nil
	case choice == ChoiceRequired && len(names) > 0:
		return ChoiceRequired, "", nil
	case one && names[agent.SafeName(name)] != "":
		return ChoiceTool, agent.SafeName(name), nil
	default:
		return "", "", events.Errorf(events.CodeInvalidRequest, "tool choice %q: no such tool is offered", choice)
	}
}

// Settings are the members of the model settings under the names that a protocol has for them, in their order. What has
// no name there is not for the provider (headers, a client's own retries) or unknown, and gives a warning. Null says
// nothing.
func Settings(r *Request, raw json.RawMessage, names map[string]string) (Object, error) {
	settings, err := Optional(raw)
	if err != nil {
		return nil, events.Errorf(events.CodeInvalidRequest, "model settings: %v", err)
	}
	out := Object{}
	for _, s := range settings {
		name := names[s.Name]
		if name == "" {
			r.Warn("model setting %q is not known to this provider", s.Name)
			continue
		}
		out.Set(name, s.Value)
	}
	return out, nil
}

// Options are the options for a provider, in their order. Null says nothing.
func Options(raw json.RawMessage, provider string) (Object, error) {
	all, err := Optional(raw)
	if err != nil {
		return nil, events.Errorf(events.CodeInvalidRequest, "provider options: %v", err)
	}
	mine, _ := all.Get(provider)
	options, err := Optional(mine)
	if err != nil {
		return nil, events.Errorf(events.CodeInvalidRequest, "provider options: %s: %v", provider, err)
	}
	return options, nil
}

// OptionsBut are the options for a provider, spelled as protocols with underscores do. Those that Weir answers for are left out,
// with a warning.
func OptionsBut(r *Request, raw json.RawMessage, provider string, reserved []string) (Object, error) {
	given, err := Options(raw, provider)
	if err != nil {
		return nil, err
	}
	var out Object
	for _, o := range given {
		name := Snake(o.Name)
		if slices.Contains(reserved, name) {
			r.Warn("provider option %q is not for options to set", o.Name)
			continue
		}
		out.Set(name, o.Value)
	}
	return out, nil
}

// Snake is a name as protocols write names that have underscores: {"reasoningEffort": "low"} and {"reasoning_effort":
// "low"} say the same.
func Snake(name string) string {
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

// Counted is a usage as it may be stored, with its total: whatever a provider says, nothing is less than none.
func Counted(u events.Usage) events.Usage {
	for _, n := range []*int{&u.InputTokens, &u.OutputTokens, &u.TotalTokens, &u.CachedInputTokens, &u.ReasoningTokens} {
		*n = max(*n, 0)
	}
	if u.TotalTokens == 0 {
		u.TotalTokens = u.InputTokens + u.OutputTokens
	}
	return u
}

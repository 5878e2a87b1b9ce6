package events

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// What a call does when a hook service gives no answer that can be used.
const (
	FailClosed = "closed" // it ends with an error: the tool does not run
	FailOpen   = "open"   // it goes on, and a warning says so
)

// Bounds of hooks.
const (
	HookTimeout    = 2 * time.Second  // that a hook service has when nobody says so
	MaxHookTimeout = 10 * time.Second // that it may be given
	MaxHooks       = 8                // of a run: they are asked one after the other
	MaxHookAnswer  = 256 << 10        // bytes
)

// Hook is asked before each call of a run, once the arguments are valid: a hook service, or, with When, a rule that blocks. It
// may block a call, and a service may rewrite its arguments; it can release none.
type Hook struct {
	Service  string   `json:"service,omitempty"`  // asked on svc.hook.<service>; empty: by the hook's name
	FailMode string   `json:"failMode,omitempty"` // of a service: closed (default) or open
	Timeout  Duration `json:"timeout,omitempty"`  // of a service; default 2s, at most 10s
	When     string   `json:"when,omitempty"`     // CEL: calls for which it holds are blocked; no service is asked
	Reason   string   `json:"reason,omitempty"`   // that is told with such a block
	Inherit  bool     `json:"inherit,omitempty"`  // it is asked before the calls of sub-agents too
}

// Hooks are those of an agent or a run, by name.
type Hooks map[string]Hook

// Over are the hooks of a run over those of its agent: by name, one replaces the other.
func (h Hooks) Over(agent Hooks) Hooks {
	if len(h) == 0 {
		return agent
	}
	all := maps.Clone(agent)
	if all == nil {
		all = Hooks{}
	}
	maps.Copy(all, h)
	return all
}

// Names are those of the hooks, in the order in which they are asked.
func (h Hooks) Names() []string { return slices.Sorted(maps.Keys(h)) }

// Rules are those of the hooks that are rules.
func (h Hooks) Rules() []Rule {
	var rules []Rule
	for _, name := range h.Names() {
		if hook := h[name]; hook.When != "" {
			rules = append(rules, Rule{Name: name, When: hook.When, Action: RuleBlock, Reason: hook.Reason})
		}
	}
	return rules
}

// HookSet is the set that facts name for a rule that is a hook.
const HookSet = "hooks"

// Check lists what is wrong with hooks, apart from expressions that do not compile.
func (h Hooks) Check() []Issue {
	var list []Issue
	add := func(name, field, format string, args ...any) {
		list = append(list, Issue{Field: "hooks." + name + field, Message: fmt.Sprintf(format, args...)})
	}
	if len(h) > MaxHooks {
		list = append(list, Issue{Field: "hooks", Message: fmt.Sprintf("are %d; at most %d are allowed", len(h), MaxHooks)})
	}
	for _, name := range h.Names() {
		hook := h[name]
		if !literal(name) {
			add(name, "", "want a name of 1 to 64 letters, digits, _ or -")
		}
		if hook.Service != "" && !literal(hook.Service) {
			add(name, ".service", "want 1 to 64 letters, digits, _ or -, not %q", hook.Service)
		}
		if !slices.Contains([]string{"", FailClosed, FailOpen}, hook.FailMode) {
			add(name, ".failMode", "want closed or open, not %q", hook.FailMode)
		}
		if hook.Timeout < 0 || hook.Timeout > Duration(MaxHookTimeout) {
			add(name, ".timeout", "want at most %s", MaxHookTimeout)
		}
		if hook.When != "" && (hook.Service != "" || hook.FailMode != "" || hook.Timeout != 0) {
			add(name, ".when", "asks no service: leave out service, failMode and timeout")
		}
		if hook.When == "" && hook.Reason != "" {
			add(name, ".reason", "is told with when; a service says its own")
		}
	}
	return list
}

// HookRequest asks a hook service about a call (request on svc.hook.<service>; stored nowhere). Its answer is a [HookAnswer].
type HookRequest struct {
	Namespace  Namespace       `json:"namespace"`
	Hook       string          `json:"hook"` // the name under which the agent or run has it
	RunID      string          `json:"runId"`
	ToolCallID string          `json:"toolCallId"`
	Round      int             `json:"round"`
	ToolName   string          `json:"toolName"`
	ToolID     string          `json:"toolId"`
	Input      json.RawMessage `json:"input"`             // valid arguments
	Context    json.RawMessage `json:"context,omitempty"` // of the run's request
	Metadata   HookMetadata    `json:"metadata"`
	Edited     bool            `json:"edited,omitempty"` // a person has written the arguments
	Within     Duration        `json:"within"`           // how long the gate waits
}

// HookMetadata says which agent makes a call.
type HookMetadata struct {
	AgentID   string `json:"agentId"`
	AgentName string `json:"agentName,omitempty"`
}

// HookAnswer is what a hook service says about a call.
type HookAnswer struct {
	Proceed bool
	Output  json.RawMessage // of a call that does not proceed: its result; nil: none
	Input   json.RawMessage // of a call that proceeds: its arguments from now on; nil: as they were
}

// errHookAnswer says that what a hook service gave is no answer. Its text quotes nothing.
var errHookAnswer = errors.New(`want {"proceed": true}, with input, or {"proceed": false}, with output`)

// ParseHookAnswer reads an answer strictly. One that says no is a no, whatever else is wrong with it; any other that is not
// understood to the last word is an error.
func ParseHookAnswer(raw []byte) (HookAnswer, error) {
	if len(raw) > MaxHookAnswer {
		return HookAnswer{}, fmt.Errorf("the answer has %d bytes; at most %d are allowed", len(raw), MaxHookAnswer)
	}
	if err := CheckJSON(raw); err != nil { // refuses a key that is there twice
		return HookAnswer{}, errHookAnswer
	}
	var fields map[string]json.RawMessage // keys as they are spelled: a struct would take any case
	if err := json.Unmarshal(raw, &fields); err != nil {
		return HookAnswer{}, errHookAnswer
	}
	value := func(key string) json.RawMessage {
		v := bytes.TrimSpace(fields[key])
		delete(fields, key)
		if string(v) == "null" {
			return nil
		}
		return v
	}
	proceed, output, input := string(value("proceed")), value("output"), value("input")
	switch {
	case proceed == "false":
		return HookAnswer{Output: output}, nil
	case proceed != "true" || output != nil || len(fields) > 0:
		return HookAnswer{}, errHookAnswer
	}
	return HookAnswer{Proceed: true, Input: input}, nil
}

// Patience is how long a hook service has.
func (h Hook) Patience() time.Duration {
	return min(cmp.Or(max(time.Duration(h.Timeout), 0), HookTimeout), MaxHookTimeout)
}

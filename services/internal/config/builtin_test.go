package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
)

const withBuiltins = `
agents:
  a: {model: scripted/support, tools: {ask: ask_user, fetch: web_fetch, mine: t}}
  b: {model: scripted/support, tools: [ask_user, task_check]}
tools:
  t: {description: x, exec: {command: [a]}}
  web_fetch: {description: ours, exec: {command: [a]}}
`

// TestB15_21BuiltinsInAFile: a file has the built-in tools that its agents name and that it does not define, and no others.
func TestB15_21BuiltinsInAFile(t *testing.T) {
	t.Parallel()
	f := mustParse(t, withBuiltins+`rules: {r: [{name: asks, tools: ["builtin:ask_*"], action: ask}]}`)
	if !slices.Equal(f.Builtins, []string{"ask_user", "task_check"}) || len(f.Warnings) != 0 {
		t.Errorf("builtins %v, warnings %v", f.Builtins, f.Warnings)
	}
	if d := f.Definitions().Tools; d["ask_user"].Source.Kind != "builtin" || d["web_fetch"].Description != "ours" || len(d) != 4 {
		t.Errorf("definitions %v", d)
	}
	for text, want := range map[string]string{
		`agents: {a: {model: scripted/support, tools: [ask_usr]}}`:                             `"ask_usr" is not in this file; a worker must host it; did you mean "ask_user"?`,
		`{pools: [x], agents: {a: {model: scripted/support, tools: [ask_user]}}}`:              `name it in pools`,
		`rules: {r: [{name: asks, tools: [ask_user], action: ask}]}`:                           `"ask_user" matches no tool in this file`,
		withBuiltins + `rules: {r: [{name: asks, tools: ["go:ask_user"], action: ask}]}`:       `"go:ask_user" matches no tool`,
		withBuiltins + `rules: {r: [{name: asks, tools: ["builtin:web_fetch"], action: ask}]}`: `"builtin:web_fetch" matches no tool`,
	} {
		f := mustParse(t, text)
		if len(f.Warnings) != 1 || !strings.Contains(f.Warnings[0].Message, want) {
			t.Errorf("%s: warnings %v, want %q", text, f.Warnings, want)
		}
	}
}

// TestB15_21ApplyBuiltins: an agent that names a built-in tool can be applied before any executor runs; what hosts have
// registered, whatever their kind, stays as it is.
func TestB15_21ApplyBuiltins(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	f := mustParse(t, `agents: {a: {model: scripted/support, tools: {ask: ask_user}}}`)
	if got, want := changes(apply(t, r, f)), "created tool ask_user\ncreated agent a"; got != want {
		t.Errorf("applied %s, want %s", got, want)
	}
	var m events.Manifest
	if err := json.Unmarshal(r.named[events.RegistryTool]["ask_user"], &m); err != nil || m.Source.Kind != "builtin" || m.Pool != "default" {
		t.Errorf("registered %+v (%v)", m, err)
	}
	if got, want := changes(apply(t, r, f)), "unchanged tool ask_user\nunchanged agent a"; got != want {
		t.Errorf("applied again %s, want %s", got, want)
	}
	own := []byte(`{"id":"ask_user","version":"1","source":{"kind":"go"},"pool":"mine"}`)
	r.named[events.RegistryTool]["ask_user"] = own
	if got, want := changes(apply(t, r, f)), "unchanged tool ask_user\nunchanged agent a"; got != want {
		t.Errorf("over a worker's tool %s, want %s", got, want)
	}
	if string(r.named[events.RegistryTool]["ask_user"]) != string(own) {
		t.Error("what a worker has registered was replaced")
	}
}

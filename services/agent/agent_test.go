package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
)

func valid() *Agent {
	return &Agent{ID: "a", Model: "scripted/x", Tools: Tools{"echo": NewTool("echo", "Says it again", echo, nil)}}
}

func TestB13_19Def(t *testing.T) {
	t.Parallel()
	a := valid()
	a.Name, a.Description, a.Instructions = "A", "does", "be kind"
	a.ToolChoice, a.ActiveTools, a.RequireToolApproval = "tool:echo", []string{}, Always()
	a.AutoResumeSuspendedTools = true
	a.ModelSettings, a.ProviderOptions = json.RawMessage(`{"temperature":0}`), json.RawMessage(`{"openai":{}}`)
	a.Limits = events.Limits{Tokens: 9}
	got, err := a.Def()
	if err != nil {
		t.Fatal(err)
	}
	want := events.AgentDef{
		ID: "a", Name: "A", Description: "does", Instructions: "be kind", Model: "scripted/x",
		Tools: map[string]string{"echo": "echo"}, ToolChoice: "tool:echo",
		ActiveTools: &[]string{}, RequireToolApproval: &events.Approval{Always: true}, Limits: &events.Limits{Tokens: 9},
		ModelSettings: a.ModelSettings, ProviderOptions: a.ProviderOptions,
		AutoResumeSuspendedTools: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if def, err := valid().Def(); err != nil || def.ActiveTools != nil || def.Limits != nil {
		t.Errorf("%+v, %v", def, err)
	}
}

func TestAgentIssues(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Agent){
		"id: is required":                    func(a *Agent) { a.ID = "" },
		"model: want provider/model":         func(a *Agent) { a.Model = "gpt" },
		"modelSettings: want a JSON object":  func(a *Agent) { a.ModelSettings = json.RawMessage(`[]`) },
		"providerOptions: want a JSON":       func(a *Agent) { a.ProviderOptions = json.RawMessage(`{`) },
		"tools.none: has no tool":            func(a *Agent) { a.Tools["none"] = nil },
		"tools.bad: tool bad: description":   func(a *Agent) { a.Tools["bad"] = NewTool("bad", "", echo, nil) },
		"tools.echo: is a key of toolIds":    func(a *Agent) { a.ToolIDs = map[string]string{"echo": "x"} },
		"another tool of this agent has":     func(a *Agent) { a.Tools["b"] = NewTool("echo", "another", echo, nil) },
		"id: is reserved":                    func(a *Agent) { a.ID = "=tool" },
		"agents.s: has no agent":             func(a *Agent) { a.Agents = map[string]*Agent{"s": nil} },
		"toolIds.x: id is required":          func(a *Agent) { a.ToolIDs = map[string]string{"x": ""} },
		"workflows.x: workflows are not":     func(a *Agent) { a.Workflows = map[string]string{"x": "nightly"} },
		"activeTools: no tool has the key":   func(a *Agent) { a.ActiveTools = []string{"Echo"} },
		"toolChoice: no tool has the key":    func(a *Agent) { a.ToolChoice = "tool:x" },
		"toolChoice: want auto":              func(a *Agent) { a.ToolChoice = "sometimes" },
		"limits.steps: must not be negative": func(a *Agent) { a.Limits.Steps = -1 },
		"tools: the tools \"a.b\" and \"a b": func(a *Agent) { a.ID, a.ToolIDs = "", map[string]string{"a.b": "x", "a b": "y"} },
	} {
		a := valid()
		change(a)
		_, err := a.Def()
		if events.CodeOf(err) != events.CodeInvalidDefinition || !strings.Contains(strings.ReplaceAll(err.Error(), `"a b" and "a.b"`, `"a.b" and "a b"`), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestB1_6AgentKeysCollide(t *testing.T) {
	t.Parallel()
	a := valid()
	a.ToolIDs = map[string]string{"agent-x.y": "tool"}
	a.Agents = map[string]*Agent{"x y": valid()}
	_, err := a.Def()
	if events.CodeOf(err) != events.CodeToolNameCollision || !strings.Contains(err.Error(), `"agent-x y" and "agent-x.y"`) {
		t.Errorf("got %v", err)
	}
}

// Two keys of one tool are two ways to call it, and no conflict.
func TestB1_15OneToolUnderTwoKeys(t *testing.T) {
	t.Parallel()
	a := valid()
	a.Tools["again"] = a.Tools["echo"]
	if def, err := a.Def(); err != nil || len(def.Tools) != 2 {
		t.Errorf("%+v, %v", def, err)
	}
}

// The gate and the planner let the sub-agent win and warn; a definition may say so.
func TestB1_7EqualKeysAreNoError(t *testing.T) {
	t.Parallel()
	a := valid()
	a.ToolIDs = map[string]string{"agent-x": "tool"}
	a.Agents = map[string]*Agent{"x": valid()}
	if _, err := a.Def(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"agent-x", "echo"}, a.Keys()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

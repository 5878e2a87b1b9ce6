package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// maxFallbacks bounds how many other models an agent may name.
const maxFallbacks = 8

// WorkflowPrefix stands before the keys under which a model sees workflows.
const WorkflowPrefix = "workflow-"

// Agent is a model with instructions and things that it can do. It is data: nothing runs in the program that defines
// it, and a definition in weir.yaml says the same.
type Agent struct {
	ID           string
	Name         string // for people; default none
	Description  string // by which the model of a supervisor chooses it
	Instructions string // a template over the request context: {{.tenant}}
	Model        string // "<provider>/<model>"
	// Fallbacks are models that are asked when Model fails, in order, each after the tries of the one before. A request that
	// names a model has none. Default: none.
	Fallbacks []string

	Tools     Tools             // tools written in Go, by key
	ToolIDs   map[string]string // tools that are registered elsewhere: key → id
	Agents    map[string]*Agent // sub-agents, by key; the model sees "agent-<key>"
	AgentIDs  map[string]string // sub-agents that are applied elsewhere: key → id
	Workflows map[string]string // not supported by this release: an agent that names one is refused

	ToolChoice  string   // auto (default), none, required or tool:<key>
	ActiveTools []string // keys that the model may use; nil: all, empty: none

	RequireToolApproval *events.Approval // of every call, beside what each tool asks for; default: nothing
	Limits              events.Limits    // zero fields have defaults

	ModelSettings   json.RawMessage // an object, such as {"temperature": 0}
	ProviderOptions json.RawMessage // an object by provider

	// Hooks are asked before each call, by name: hook services, and rules that block. A run may replace them by name, so what
	// no run may lift belongs into the operators' rules.
	Hooks events.Hooks

	// AutoResumeSuspendedTools lets the next message of a thread answer what a suspended tool of an earlier run of this agent
	// waits for: when it does, that run goes on, and no other begins. Default: suspended tools wait to be resumed.
	AutoResumeSuspendedTools bool

	// ToolCallConcurrency is how many calls of a run execute at once. Calls that wait for people do not count. Default: any
	// number.
	ToolCallConcurrency int

	// Memory lets its runs recall what was said in their thread, and keep there what they say. Default: a thread is but a name.
	Memory *events.Memory

	// ToolSearch lets the model find tools and load them, in place of being given them all. Default: it is given all.
	ToolSearch *ToolSearch

	// Transform says what may be shown of the calls of its runs, whatever their tools say. Default: what the tools say.
	Transform *events.TransformPolicy

	// Delegation says how it delegates to its sub-agents. Default: see [events.Delegation].
	Delegation *events.Delegation

	// StopWhen ends its runs beside their limits: looked at when a run would go on with another turn. Default: nothing.
	StopWhen []events.StopCondition
	// PrepareStep changes single turns: their model, tool choice, active tools, instructions. Default: nothing.
	PrepareStep []events.StepChange

	// StructuredOutput asks its runs for a JSON value that fits a schema. Default: they end with a text.
	StructuredOutput *events.StructuredOutput

	// BackgroundTasks says which of its calls may run in the background, beside what its tools say themselves. Default: what
	// the tools say.
	BackgroundTasks *events.BackgroundTasks
}

// ToolSearch is for agents with more tools than a model should read at once. The model is given two tools, search_tools and
// load_tool; what it has loaded it may call from its next turn on, for as long as the run lasts. A loaded tool keeps its
// approval rules, hooks, transforms and schemas.
type ToolSearch struct {
	Tools   Tools             // tools written in Go, by key
	ToolIDs map[string]string // tools that are registered elsewhere: key → id

	TopK          int     // how many tools a search finds; default 5
	MinScore      float64 // of what a search finds; default 0
	AutoLoad      bool    // what a search finds is loaded
	InjectCatalog bool    // the model is told names and descriptions of all of them at once
	// Filter is a CEL expression over tool, agent, run and context. Tools for which it is not true, or fails, are not there for
	// the model: it cannot find, load or call them. Default: all are.
	Filter string
	Scope  string // of what is loaded: run (default). Thread is not supported by this release
}

func (t *ToolSearch) def() *events.ToolSearch {
	if t == nil {
		return nil
	}
	return &events.ToolSearch{
		Tools: idsOf(t.Tools, t.ToolIDs), TopK: t.TopK, MinScore: t.MinScore, AutoLoad: t.AutoLoad,
		InjectCatalog: t.InjectCatalog, Filter: t.Filter, Scope: t.Scope,
	}
}

// Def is the agent as data, as the registry holds it. An agent that is defined wrongly gives an error with the code
// invalid_definition, or tool_name_collision when two keys look the same to models, and all its issues.
func (a *Agent) Def() (events.AgentDef, error) {
	d := events.AgentDef{
		ID: a.ID, Name: a.Name, Description: a.Description, Instructions: a.Instructions, Model: a.Model,
		Fallbacks: slices.Clone(a.Fallbacks),
		Tools:     a.toolIDs(), Agents: a.agentIDs(), Workflows: maps.Clone(a.Workflows), ToolChoice: a.ToolChoice,
		RequireToolApproval: a.RequireToolApproval, ModelSettings: a.ModelSettings,
		ProviderOptions: a.ProviderOptions, AutoResumeSuspendedTools: a.AutoResumeSuspendedTools, Hooks: a.Hooks,
		Transform: a.Transform, BackgroundTasks: a.BackgroundTasks, ToolSearch: a.ToolSearch.def(),
		ToolCallConcurrency: events.Concurrency(a.ToolCallConcurrency), Memory: a.Memory, Delegation: a.Delegation,
		StructuredOutput: a.StructuredOutput, StopWhen: a.StopWhen, PrepareStep: a.PrepareStep,
	}
	if a.ActiveTools != nil {
		active := slices.Clone(a.ActiveTools)
		d.ActiveTools = &active
	}
	if a.Limits != (events.Limits{}) {
		limits := a.Limits
		d.Limits = &limits
	}
	issues := slices.Concat(a.textIssues(), a.toolIssues(), a.choiceIssues(), limitIssues(a.Limits), a.Hooks.Check(), a.backgroundIssues(),
		d.ToolSearch.Check(d.Tools), d.ToolCallConcurrency.Check(), d.Memory.Check(), d.Delegation.Check(),
		d.StructuredOutput.Check(), events.CheckStops(a.StopWhen, a.Keys()), events.CheckSteps(a.PrepareStep, a.Keys()))
	if _, err := SafeNames(a.Keys()); err != nil {
		if len(issues) == 0 {
			return d, err
		}
		issues = append(issues, events.Issue{Field: "tools", Message: err.Error()})
	}
	return d, invalidDefinition("agent "+a.ID, issues)
}

// Keys are the keys of everything that the agent can do, as its model sees them before they are made safe, in order.
func (a *Agent) Keys() []string {
	var keys []string
	keys = slices.AppendSeq(keys, maps.Keys(a.toolIDs()))
	keys = append(keys, a.ToolSearch.def().Keys()...)
	for key := range a.agentIDs() {
		keys = append(keys, events.AgentPrefix+key)
	}
	for key := range a.Workflows {
		keys = append(keys, WorkflowPrefix+key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (a *Agent) toolIDs() map[string]string { return idsOf(a.Tools, a.ToolIDs) }

func idsOf(tools Tools, registered map[string]string) map[string]string {
	ids := maps.Clone(registered)
	if ids == nil {
		ids = make(map[string]string, len(tools))
	}
	for key, t := range tools {
		if t != nil {
			ids[key] = t.Manifest().ID
		}
	}
	return ids
}

func (a *Agent) agentIDs() map[string]string {
	if len(a.Agents)+len(a.AgentIDs) == 0 {
		return nil
	}
	ids := make(map[string]string, len(a.Agents)+len(a.AgentIDs))
	maps.Copy(ids, a.AgentIDs)
	for key, sub := range a.Agents {
		if sub != nil {
			ids[key] = sub.ID
		}
	}
	return ids
}

func (a *Agent) textIssues() []events.Issue {
	var list []events.Issue
	if text := idIssue(a.ID); text != "" {
		list = append(list, events.Issue{Field: "id", Message: text})
	}
	if a.ID == events.TokenTool {
		list = append(list, events.Issue{Field: "id", Message: "is reserved for calls of single tools, without an agent"})
	}
	for i, id := range append([]string{a.Model}, a.Fallbacks...) {
		if provider, model, ok := strings.Cut(id, "/"); !ok || provider == "" || model == "" {
			field := "model"
			if i > 0 {
				field = fmt.Sprintf("fallbacks[%d]", i-1)
			}
			list = append(list, events.Issue{Field: field, Message: fmt.Sprintf("want provider/model, not %q", id)})
		}
	}
	if len(a.Fallbacks) > maxFallbacks {
		list = append(list, events.Issue{Field: "fallbacks", Message: fmt.Sprintf("at most %d are asked", maxFallbacks)})
	}
	if err := events.CheckInstructions(a.Instructions); err != nil {
		list = append(list, events.Issue{Field: "instructions", Message: "as a template: " + err.Error()})
	}
	for field, raw := range map[string]json.RawMessage{
		"modelSettings": a.ModelSettings, "providerOptions": a.ProviderOptions,
	} {
		if !absent(raw) && (events.CheckJSON(raw) != nil || strings.TrimSpace(string(raw))[0] != '{') {
			list = append(list, events.Issue{Field: field, Message: "want a JSON object"})
		}
	}
	return list
}

func (a *Agent) toolIssues() []events.Issue {
	var list []events.Issue
	add := func(field, format string, args ...any) {
		list = append(list, events.Issue{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	byID := map[string]events.Manifest{}
	list = append(list, toolsIssues("tools.", a.Tools, a.ToolIDs, byID)...)
	found := map[string]string{}
	if a.ToolSearch != nil {
		list = append(list, toolsIssues("toolSearch.tools.", a.ToolSearch.Tools, a.ToolSearch.ToolIDs, byID)...)
		found = a.ToolSearch.ToolIDs
	}
	for key, sub := range a.Agents {
		if sub == nil || sub.ID == "" {
			add("agents."+key, "has no agent with an id")
		}
	}
	for field, ids := range map[string]map[string]string{
		"toolIds": a.ToolIDs, "agentIds": a.AgentIDs, "toolSearch.toolIds": found,
	} {
		for key, id := range ids {
			if text := idIssue(id); text != "" {
				add(field+"."+key, "id %s", text)
			}
		}
	}
	for key := range a.Workflows { // no planner follows them: an agent must not seem to have what its model never sees
		add("workflows."+key, "workflows are not supported by this release")
	}
	return list
}

// toolsIssues says what is wrong with tools written in Go, of which byID has those before by their ids.
func toolsIssues(field string, tools Tools, registered map[string]string, byID map[string]events.Manifest) []events.Issue {
	var list []events.Issue
	add := func(key, format string, args ...any) {
		list = append(list, events.Issue{Field: field + key, Message: fmt.Sprintf(format, args...)})
	}
	for key, t := range tools {
		if t == nil {
			add(key, "has no tool")
			continue
		}
		if err := Check(t); err != nil {
			add(key, "%s", err)
		}
		if _, twice := registered[key]; twice {
			add(key, "is a key of toolIds too")
		}
		m := t.Manifest()
		if other, ok := byID[m.ID]; ok && !sameManifest(m, other) {
			add(key, "another tool of this agent has the id %q", m.ID)
		}
		byID[m.ID] = m
	}
	return list
}

func sameManifest(a, b events.Manifest) bool {
	x, errX := events.Marshal(a)
	y, errY := events.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

func (a *Agent) choiceIssues() []events.Issue {
	var list []events.Issue
	keys := a.Keys()
	for _, key := range a.ActiveTools {
		if !slices.Contains(keys, key) {
			list = append(list, events.Issue{Field: "activeTools", Message: fmt.Sprintf("no tool has the key %q", key)})
		}
	}
	switch key, named := strings.CutPrefix(a.ToolChoice, "tool:"); {
	case named && a.ToolSearch.def().Finds(key, nil):
		list = append(list, events.Issue{Field: "toolChoice", Message: fmt.Sprintf("the model must load the tool %q before it can call it", key)})
	case named && !slices.Contains(keys, key):
		list = append(list, events.Issue{Field: "toolChoice", Message: fmt.Sprintf("no tool has the key %q", key)})
	case !named && !slices.Contains([]string{"", "auto", "none", "required"}, a.ToolChoice):
		message := fmt.Sprintf("want auto, none, required or tool:<key>, not %q", a.ToolChoice)
		list = append(list, events.Issue{Field: "toolChoice", Message: message})
	}
	return list
}

// backgroundIssues lists what is wrong with its background tasks.
func (a *Agent) backgroundIssues() []events.Issue {
	list := a.BackgroundTasks.Check()
	if a.BackgroundTasks == nil {
		return list
	}
	keys := a.Keys()
	for key := range a.BackgroundTasks.Tools.By {
		if !slices.Contains(keys, key) {
			list = append(list, events.Issue{Field: "backgroundTasks.tools", Message: fmt.Sprintf("no tool has the key %q", key)})
		}
	}
	return list
}

func limitIssues(l events.Limits) []events.Issue {
	var list []events.Issue
	if l.Cost < 0 {
		list = append(list, events.Issue{Field: "limits.cost", Message: "must not be negative"})
	}
	for field, n := range map[string]int{
		"steps": l.Steps, "tokens": l.Tokens, "failures": l.Failures, "repeats": l.Repeats, "time": int(l.Time),
	} {
		if n < 0 {
			list = append(list, events.Issue{Field: "limits." + field, Message: "must not be negative"})
		}
	}
	return list
}

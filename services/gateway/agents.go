package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// agentView is an agent as Mastra's client reads it.
type agentView struct {
	ID               string              `json:"id"`
	Name             string              `json:"name"`
	Description      string              `json:"description"`
	Instructions     string              `json:"instructions"`
	Tools            map[string]toolView `json:"tools"`
	Agents           map[string]nameView `json:"agents"`
	Workflows        map[string]nameView `json:"workflows"`
	InputProcessors  []nameView          `json:"inputProcessors"`
	OutputProcessors []nameView          `json:"outputProcessors"`
	Provider         string              `json:"provider"`
	ModelID          string              `json:"modelId"`
	ModelVersion     string              `json:"modelVersion"`
	SupportsMemory   bool                `json:"supportsMemory"`
	DefaultOptions   struct{}            `json:"defaultOptions"`
	Source           string              `json:"source"` // stored: the definition is data
}

// nameView names a definition.
type nameView struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// toolView is a tool as Mastra's client reads it: schemas are texts, of {"json": schema}.
type toolView struct {
	ID              string `json:"id"`
	Description     string `json:"description"`
	InputSchema     string `json:"inputSchema,omitempty"`
	OutputSchema    string `json:"outputSchema,omitempty"`
	SuspendSchema   string `json:"suspendSchema,omitempty"`
	ResumeSchema    string `json:"resumeSchema,omitempty"`
	RequireApproval bool   `json:"requireApproval"` // the tool, its agent or a rule may hold a call
}

// agentsQuery is what a list of agents may be asked for.
type agentsQuery struct {
	Partial string `json:"partial,omitempty"` // true: without schemas
}

// known is what the registry says, read once for an answer.
type known struct {
	agents  []events.AgentDef
	tools   map[string]client.ToolInfo
	list    []client.ToolInfo
	rules   []events.RuleSet
	partial bool
}

// registry reads what answers about agents and tools are made of.
func (r *request) registry() (*known, error) {
	k := &known{tools: map[string]client.ToolInfo{}, partial: r.URL.Query().Get("partial") == "true"}
	var err error
	if k.agents, err = r.who.Agents(r.Context()); err != nil {
		return nil, err
	}
	if k.rules, err = r.who.Rules(r.Context()); err != nil {
		return nil, err
	}
	if k.list, err = r.who.Tools(r.Context()); err != nil {
		return nil, err
	}
	for _, t := range k.list {
		k.tools[t.ID] = t
	}
	return k, nil
}

func listAgents(r *request) (any, error) {
	k, err := r.registry()
	if err != nil {
		return nil, err
	}
	views := map[string]agentView{}
	for _, a := range k.agents {
		views[a.ID] = k.agent(a)
	}
	return views, nil
}

func getAgent(r *request) (any, error) {
	def, err := r.agent()
	if err != nil {
		return nil, err
	}
	k, err := r.registry()
	if err != nil {
		return nil, err
	}
	return k.agent(*def), nil
}

// agent is the agent that the path names.
func (r *request) agent() (*events.AgentDef, error) {
	return r.agentOf(r.Context(), r.PathValue("agentId"))
}

func (r *request) agentOf(ctx context.Context, id string) (*events.AgentDef, error) {
	return r.who.Agent(ctx, id)
}

func (k *known) agent(a events.AgentDef) agentView {
	provider, model, ok := strings.Cut(a.Model, "/")
	if !ok {
		provider, model = "", a.Model
	}
	v := agentView{
		ID: a.ID, Name: cmp.Or(a.Name, a.ID), Description: a.Description, Instructions: a.Instructions,
		Tools: map[string]toolView{}, Agents: map[string]nameView{}, Workflows: map[string]nameView{},
		InputProcessors: []nameView{}, OutputProcessors: []nameView{},
		Provider: provider, ModelID: model, ModelVersion: "v2", Source: "stored",
	}
	for key, id := range a.AllTools() {
		view := toolView{ID: id}
		if t, ok := k.tools[id]; ok {
			view = k.tool(t.Manifest, a.ID)
		}
		view.RequireApproval = view.RequireApproval || mayHold(a.RequireToolApproval)
		v.Tools[key] = view
	}
	for key, id := range a.Agents {
		v.Agents[key] = nameView{id, k.nameOf(id)}
	}
	for key, id := range a.Workflows {
		v.Workflows[key] = nameView{id, k.nameOf(id)}
	}
	return v
}

func (k *known) nameOf(id string) string {
	for _, a := range k.agents {
		if a.ID == id {
			return cmp.Or(a.Name, id)
		}
	}
	return id
}

// tool is a tool as an agent has it, or, without one, as it is called alone.
func (k *known) tool(m events.Manifest, agent string) toolView {
	v := toolView{ID: m.ID, Description: m.Description, RequireApproval: mayHold(m.RequireApproval) || k.ruleHolds(m, agent)}
	if !k.partial {
		v.InputSchema, v.OutputSchema = schemaText(m.InputSchema), schemaText(m.OutputSchema)
		v.SuspendSchema, v.ResumeSchema = schemaText(m.SuspendSchema), schemaText(m.ResumeSchema)
	}
	return v
}

// mayHold reports whether a requirement holds any call.
func mayHold(a *events.Approval) bool { return a != nil && (a.Always || a.When != "") }

// ruleHolds reports whether a rule of the operators may hold calls of a tool. Which of them it does depends on the call, so
// what cannot be told is taken for held.
func (k *known) ruleHolds(m events.Manifest, agent string) bool {
	tool := rule.Tool{ID: m.ID, Kind: m.Source.Kind, Server: m.Source.Server, Name: m.Source.Name}
	for _, set := range k.rules {
		for _, one := range set.Rules {
			if one.Action == events.RuleAsk && meansTool(one.Tools, tool) && meansAgent(one.Agents, agent) {
				return true
			}
		}
	}
	return false
}

func meansTool(patterns []string, tool rule.Tool) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := tool.Matches(p)
		return ok || err != nil
	})
}

func meansAgent(patterns []string, agent string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return rule.Matches(p, agent) })
}

// schemaText is a schema in the form that Mastra's client reads: the text of {"json": schema}.
func schemaText(schema json.RawMessage) string {
	if len(schema) == 0 || string(schema) == "null" {
		return ""
	}
	return `{"json":` + string(schema) + `}`
}

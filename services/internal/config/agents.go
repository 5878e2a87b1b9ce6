package config

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models"
)

var agentKeys = []string{
	"name", "description", "instructions", "model", "fallbacks", "tools", "requireToolApproval", "limits", "toolChoice", "activeTools",
	"modelSettings", "providerOptions", "autoResumeSuspendedTools", "transform", "hooks", "backgroundTasks", "toolSearch",
	"toolCallConcurrency", "eagerToolExecution", "memory", "agents", "delegation", "structuredOutput", "stopWhen", "prepareStep",
}

// readAgents reads the section agents.
func (o object) readAgents(f *File, known map[string]models.ModelConfig) {
	for _, p := range o.r.entries(o.fields["agents"], "agents") {
		a := o.r.object(p.value, join("agents", p.name), agentKeys...)
		def := agent.Agent{
			ID: p.name, Name: a.text("name"), Description: a.text("description"), Instructions: a.text("instructions"),
			Model: a.text("model"), ToolIDs: a.tools(), RequireToolApproval: a.approval("requireToolApproval"),
			Fallbacks: a.texts("fallbacks"), Limits: a.limits(), ToolChoice: a.text("toolChoice"), ActiveTools: a.texts("activeTools"),
			ModelSettings: a.jsonObject("modelSettings"), ProviderOptions: a.jsonObject("providerOptions"),
			AutoResumeSuspendedTools: a.on("autoResumeSuspendedTools"), Transform: f.transform, Hooks: a.hooks(),
			BackgroundTasks: a.backgroundTasks(), AgentIDs: a.named("agents", "agent"), Delegation: a.delegation(),
		}
		def.StructuredOutput, def.StopWhen, def.PrepareStep = a.structuredOutput(known), a.stopWhen(), a.prepareStep(known)
		if a.has("transform") {
			def.Transform = a.policy(f)
		}
		search, found := a.toolSearch()
		def.ToolSearch, def.ToolCallConcurrency, def.Memory = search, a.concurrency(), a.memory()
		a.on("eagerToolExecution") // accepted, and changes nothing
		a.require("model")
		a.checkNames(def)
		a.checkModel("model", def.Model, known)
		for _, id := range def.Fallbacks {
			a.checkModel("fallbacks", id, known)
		}
		var err error
		if def.ModelSettings, err = settings(f, def.Model, def.ModelSettings); err != nil {
			a.fail("modelSettings", "%v", err)
		}
		data, err := def.Def()
		a.issues(definitionIssues(err))
		if len(data.Tools) == 0 {
			data.Tools = nil // as it is read back
		}
		f.Agents = append(f.Agents, data)
		a.referAll(f, "tools", events.RegistryTool, data.Tools)
		a.referAll(f, "agents", events.RegistryAgent, data.Agents)
		if data.ToolSearch != nil {
			found.referAll(f, "tools", events.RegistryTool, data.ToolSearch.Tools)
		}
	}
}

// concurrency reads how many calls execute at once: a number, or a mapping with a limit, whose strategy changes nothing.
func (o object) concurrency() int {
	if !o.has("toolCallConcurrency") || real(o.fields["toolCallConcurrency"]).Kind != yaml.MappingNode {
		return o.count("toolCallConcurrency")
	}
	c := o.r.object(o.fields["toolCallConcurrency"], o.sub("toolCallConcurrency"), "limit", "strategy")
	c.require("limit")
	c.choice("strategy", "available", "called")
	return c.count("limit")
}

// referAll notes which tools or agents must be registered.
func (o object) referAll(f *File, field, kind string, ids map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(ids)) {
		f.refer(o.r, o.entry(field, key), reference{kind: kind, path: join(o.sub(field), key), name: ids[key]})
	}
}

// toolSearch reads the tools that an agent's model finds by itself, and where they are written. How its fields go together,
// [events.ToolSearch.Check] says.
func (o object) toolSearch() (*agent.ToolSearch, object) {
	if !o.has("toolSearch") {
		return nil, o
	}
	t := o.r.object(o.fields["toolSearch"], o.sub("toolSearch"),
		"tools", "topK", "minScore", "autoLoad", "injectCatalog", "filter", "scope")
	if t.node.Kind != yaml.MappingNode {
		return nil, o
	}
	t.require("tools")
	def := &agent.ToolSearch{
		ToolIDs: t.tools(), TopK: t.countTo("topK", events.MaxTopK), MinScore: t.score("minScore"), AutoLoad: t.on("autoLoad"),
		InjectCatalog: t.on("injectCatalog"), Filter: t.code("filter"), Scope: t.text("scope"),
	}
	if def.Filter != "" {
		t.compile("filter", def.Filter)
	}
	return def, t
}

// delegation reads how an agent delegates.
func (o object) delegation() *events.Delegation {
	if !o.has("delegation") {
		return nil
	}
	d := o.r.object(o.fields["delegation"], o.sub("delegation"), "context", "includeSubAgentToolResultsInModelContext", "maxDepth")
	out := &events.Delegation{ShowToolResults: d.on("includeSubAgentToolResultsInModelContext"), MaxDepth: d.countTo("maxDepth", events.MaxDepth)}
	if d.has("context") {
		c := d.r.object(d.fields["context"], d.sub("context"), "lastN", "roles", "includeSystem")
		out.Context = &events.DelegationContext{Roles: c.texts("roles"), IncludeSystem: c.on("includeSystem")}
		if c.has("lastN") {
			n := c.between("lastN", 0, maxCount)
			out.Context.LastN = &n
		}
	}
	return out
}

// tools reads a list of tool ids, or a mapping of keys, which the model sees, to tool ids.
func (o object) tools() map[string]string { return o.named("tools", "tool") }

// named reads a list of ids, or a mapping of keys, which the model sees, to ids.
func (o object) named(field, what string) map[string]string {
	if !o.has(field) {
		return nil
	}
	all := map[string]string{}
	if real(o.fields[field]).Kind == yaml.SequenceNode {
		for i, id := range o.texts(field) {
			if _, twice := all[id]; twice {
				o.r.fail(o.find(field+"."+itoa(i)), o.sub(field)+"["+itoa(i)+"]", "the %s %q is listed twice", what, id)
			}
			all[id] = id
		}
		return all
	}
	if n := real(o.fields[field]); n.Kind != yaml.MappingNode {
		o.fail(field, "want a list of ids of %s, or a mapping of keys to ids, got %s", field, kindOf(n))
		return nil
	}
	list := o.r.pairs(o.fields[field], o.sub(field))
	for _, p := range list {
		path := join(o.sub(field), p.name)
		id := o.r.plain(p.value, path)
		if id == "" && !o.r.problems.about(path) {
			o.r.fail(p.value, path, "want the id of %s %s", article(what), what)
		}
		if p.name == "" {
			o.r.fail(p.key, path, "%s %s needs a key that is not empty", article(what), what)
			continue
		}
		all[p.name] = id
	}
	return all
}

func article(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an"
	}
	return "a"
}

// entry is where something is named, in a list or a mapping.
func (o object) entry(field, key string) *yaml.Node {
	list := real(o.fields[field])
	if i := slices.IndexFunc(list.Content, func(n *yaml.Node) bool { return real(n).Value == key }); list.Kind == yaml.SequenceNode && i >= 0 {
		return list.Content[i]
	}
	return o.find(field + "." + key)
}

func (o object) limits() events.Limits {
	if !o.has("limits") {
		return events.Limits{}
	}
	l := o.r.object(o.fields["limits"], o.sub("limits"), "steps", "tokens", "failures", "repeats", "time", "cost")
	return events.Limits{
		Steps: l.count("steps"), Tokens: l.count("tokens"), Failures: l.count("failures"), Repeats: l.count("repeats"),
		Time: events.Duration(l.duration("time")), Cost: l.score("cost"),
	}
}

// checkNames refuses tools that models could not tell apart.
func (o object) checkNames(def agent.Agent) {
	_, err := agent.SafeNames(def.Keys())
	var e *events.Error
	if !errors.As(err, &e) {
		return
	}
	for _, issue := range e.Issues {
		where := "tools"
		if def.ToolSearch != nil && def.ToolSearch.ToolIDs[issue.Field] != "" {
			where = "toolSearch.tools"
		}
		p := o.r.problem(o.find(where+"."+issue.Field), join(o.sub(where), issue.Field), "%s", issue.Message)
		p.code = e.Code
		o.r.problems = append(o.r.problems, p)
	}
}

// definitionIssues leaves out what checkNames says better, and names fields as the file does.
func definitionIssues(err error) error {
	var e *events.Error
	if !errors.As(err, &e) || e.Code == events.CodeToolNameCollision {
		return nil
	}
	issues := slices.DeleteFunc(slices.Clone(e.Issues), func(i events.Issue) bool { return i.Field == "tools" })
	for i := range issues {
		if key, ok := strings.CutPrefix(issues[i].Field, "toolIds."); ok {
			issues[i].Field = "tools." + key
		}
		if key, ok := strings.CutPrefix(issues[i].Field, "agentIds."); ok {
			issues[i].Field = "agents." + key
		}
		if key, ok := strings.CutPrefix(issues[i].Field, "toolSearch.toolIds."); ok {
			issues[i].Field = "toolSearch.tools." + key
		}
	}
	if len(issues) == 0 {
		return nil
	}
	return &events.Error{Code: e.Code, Message: e.Message, Issues: issues}
}

// structuredOutput reads the value that runs of an agent are asked for.
func (o object) structuredOutput(known map[string]models.ModelConfig) *events.StructuredOutput {
	const field = "structuredOutput"
	if !o.has(field) {
		return nil
	}
	s := o.r.object(o.fields[field], o.sub(field), "schema", "errorStrategy", "fallbackValue", "model", "instructions")
	if s.node.Kind != yaml.MappingNode {
		return nil
	}
	s.require("schema")
	out := &events.StructuredOutput{
		Schema: s.jsonObject("schema"), ErrorStrategy: events.ErrorStrategy(s.text("errorStrategy")), FallbackValue: s.json("fallbackValue"),
		Model: s.text("model"), Instructions: s.text("instructions"),
	}
	if out.Model != "" {
		s.checkModel("model", out.Model, known)
	}
	if len(out.Schema) == 0 {
		return nil // said elsewhere
	}
	return out
}

// checkModel refuses a model that no planner could open.
func (o object) checkModel(field, id string, known map[string]models.ModelConfig) {
	provider, name, ok := strings.Cut(id, "/")
	if !ok || provider == "" || name == "" || o.r.problems.about(o.sub(field)) || o.r.problems.about("models") {
		return // said elsewhere
	}
	all := maps.Clone(known)
	names := slices.Sorted(maps.Keys(known))
	for row := range models.Providers {
		if _, there := all[row]; !there {
			all[row] = models.ModelConfig{APIKey: "unset"}
		}
		names = append(names, row)
	}
	if _, exact := all[id]; !exact {
		if _, row := all[provider]; !row {
			o.fail(field, "no model has the id %q and no provider the name %q%s", id, provider, suggest(provider, names))
			return
		}
	}
	if err := open(id, all); err != nil {
		o.fail(field, "%v", err)
	}
}

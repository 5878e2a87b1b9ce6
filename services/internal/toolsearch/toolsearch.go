// Package toolsearch is what the model of a run may find and load of its agent's tools: the two tools by which it does, their
// answers, and which tools it may call at a step. Planner and gate ask the same functions, so what a model is offered is what
// the gate lets it call.
//
// Everything follows from the definitions that a run is pinned to, its request and the keys that its facts say were loaded.
// The filter is evaluated whenever it counts, at a search, at a load, at a call and when a turn is asked for; a tool for which
// it is not true, or fails, is not there for the model.
package toolsearch

import (
	"context"
	"maps"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// Catalog is what the model of a run can find. A nil Catalog is that of an agent without tool search: it hides nothing. It
// may be used by several goroutines at once.
type Catalog struct {
	conf   events.ToolSearch
	tools  map[string]events.Manifest // by key: those that can be found
	active *[]string                  // keys that the model may use at all; nil: all
	filter *rule.Program              // nil: none
	broken bool                       // the filter cannot be used: every tool is hidden
	about  judge.Call                 // what the filter sees beside the tool
	given  any                        // the request context, decoded
}

// New is the catalogue of a run, of the tools that it is pinned to by key. It is nil when the agent has no tool search. A
// tool of the client of the run that has the key of one that could be found is the client's.
func New(st *events.State, def events.AgentDef, tools map[string]events.Manifest) *Catalog {
	if def.ToolSearch == nil {
		return nil
	}
	c := &Catalog{
		conf: *def.ToolSearch, tools: map[string]events.Manifest{}, active: Active(st, def),
		about: judge.Call{
			AgentID: st.AgentID,
			Run:     judge.Run{ID: st.RunID, Thread: st.ThreadID, Resource: st.ResourceID, Requester: st.Requester},
		},
	}
	for key := range c.conf.Tools {
		_, clients := st.Options.ClientTools[key]
		if m, pinned := tools[key]; pinned && !clients && !events.IsToolFinder(key) {
			c.tools[key] = m
		}
	}
	if c.conf.Filter != "" {
		var err error
		c.filter, err = rule.Compile(c.conf.Filter)
		in, unreadable := judge.Call{Context: st.RequestContext}.Input()
		c.given, c.broken = in.Context, err != nil || unreadable != nil
	}
	return c
}

// Active are the keys that a model may use at all: as the request says, else the agent; nil is all.
func Active(st *events.State, def events.AgentDef) *[]string {
	if st.Options.ActiveTools != nil {
		return st.Options.ActiveTools
	}
	return def.ActiveTools
}

// Offers reports whether the model may call a tool of its run under this key, having loaded these. What can be found must
// be loaded, and not be hidden. The tools by which others are found are there as long as there is one to be found.
func (c *Catalog) Offers(ctx context.Context, key string, active *[]string, loaded []string) bool {
	named := active == nil || slices.Contains(*active, key)
	switch {
	case c == nil:
		return named
	case events.IsToolFinder(key):
		return named || slices.ContainsFunc(slices.Collect(maps.Keys(c.tools)), c.usable)
	}
	if _, searchable := c.tools[key]; searchable {
		return slices.Contains(loaded, key) && c.shows(ctx, key)
	}
	return named
}

// usable reports whether the run may use a tool at all.
func (c *Catalog) usable(key string) bool { return c.active == nil || slices.Contains(*c.active, key) }

// shows reports whether a tool that can be found is there for the model: the run may use it, and the filter is true for it.
func (c *Catalog) shows(ctx context.Context, key string) bool {
	m, there := c.tools[key]
	switch {
	case !there || !c.usable(key) || c.broken:
		return false
	case c.filter == nil:
		return true
	}
	about := c.about
	about.Tool, about.ToolName = m, key
	in, err := about.Input()
	if err != nil {
		return false
	}
	in.Context = c.given
	shown, err := c.filter.Eval(ctx, in)
	return err == nil && shown
}

// visible are the keys of all tools that are there for the model, in order.
func (c *Catalog) visible(ctx context.Context) []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(c.tools)) {
		if c.shows(ctx, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Answers reports whether a call of a tool of the run is one that the gate answers.
func (c *Catalog) Answers(key string) bool { return c != nil && events.IsToolFinder(key) }

// Finders are the tools by which a model finds and loads others, by key.
func Finders() map[string]events.Manifest { return finders }

var finders = map[string]events.Manifest{
	events.ToolSearchTools: finder(events.ToolSearchTools, "Search tools",
		"Search for available tools by keywords. Use it to find tools that can help with the task, then load the ones you need "+
			"with "+events.ToolLoadTool+".",
		`{"type":"object","properties":{"query":{"type":"string",`+
			`"description":"Keywords, such as \"weather\", \"github issue\" or \"database query\"."}},"required":["query"]}`),
	events.ToolLoadTool: finder(events.ToolLoadTool, "Load tool",
		"Load tools by their exact names, as "+events.ToolSearchTools+" gives them. A loaded tool can be called from your next "+
			"turn on.",
		`{"type":"object","properties":{"toolName":{"type":"string","description":"The name of a tool."},`+
			`"toolNames":{"type":"array","maxItems":50,"items":{"type":"string"},"description":"The names of several tools."}}}`),
}

func finder(id, title, description, schema string) events.Manifest {
	m := events.Manifest{
		ID: id, Version: "1", Title: title, Description: description, InputSchema: []byte(schema), Effect: events.ReadOnly,
		Pool: events.DefaultPool, Source: events.Source{Kind: "builtin", Name: id},
	}
	if canonical, err := events.Canonical(m.InputSchema); err == nil {
		m.InputSchemaDigest = events.Digest(canonical)
	}
	return m
}

// Instructions are what the model is told of tool search beside its own instructions; nothing without.
func (c *Catalog) Instructions(ctx context.Context) string {
	if c == nil {
		return ""
	}
	text := "You do not have all tools yet. To find tools, call " + events.ToolSearchTools + " with keywords; to use one, call " +
		events.ToolLoadTool + " with its name first."
	if c.conf.AutoLoad {
		text = "You do not have all tools yet. To find tools, call " + events.ToolSearchTools +
			" with keywords: what it finds can be called from your next turn on."
	}
	if !c.conf.InjectCatalog {
		return text
	}
	text += "\n\nTools that can be loaded:"
	for _, key := range c.visible(ctx) {
		text += "\n- " + agent.SafeName(key) + ": " + brief(c.tools[key].Description)
	}
	return text
}

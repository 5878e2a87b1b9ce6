package events

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Keys of the tools by which a model finds others. An agent with tool search has no tools of its own under them.
const (
	ToolSearchTools = "search_tools"
	ToolLoadTool    = "load_tool"
)

// Bounds of tool search: how many tools an agent may have to be found, and how many one search finds.
const (
	MaxSearchable = 512
	MaxTopK       = 50
	DefaultTopK   = 5
)

// ToolSearch gives the model of an agent two tools, search_tools and load_tool, in place of many: what it has loaded it may
// call from its next turn on. Loaded or not, a tool keeps its approval rules, hooks, transforms and schemas.
type ToolSearch struct {
	Tools         map[string]string `json:"tools"`                   // key that the model sees → tool id
	TopK          int               `json:"topK,omitempty"`          // how many tools a search finds; default 5
	MinScore      float64           `json:"minScore,omitempty"`      // of what a search finds; default 0
	AutoLoad      bool              `json:"autoLoad,omitempty"`      // what a search finds is loaded
	InjectCatalog bool              `json:"injectCatalog,omitempty"` // the model is told names and descriptions at once
	Filter        string            `json:"filter,omitempty"`        // CEL over tool, agent, run and context; what it is not true for is hidden
	Scope         string            `json:"scope,omitempty"`         // run (default); thread is not supported by this release
}

// Check says what is wrong, by field. Whether the filter compiles is not its to say.
func (t *ToolSearch) Check(own map[string]string) []Issue {
	if t == nil {
		return nil
	}
	var list []Issue
	add := func(field, format string, args ...any) {
		list = append(list, Issue{Field: strings.TrimSuffix("toolSearch."+field, "."), Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case len(t.Tools) == 0:
		add("tools", "name the tools that the model can find")
	case len(t.Tools) > MaxSearchable:
		add("tools", "there are %d tools; at most %d can be found", len(t.Tools), MaxSearchable)
	}
	for _, key := range slices.Sorted(maps.Keys(t.Tools)) {
		switch _, twice := own[key]; {
		case twice:
			add("tools."+key, "is a tool that the model always has: leave it out in one of the two places")
		case IsToolFinder(key):
			add("tools."+key, "is the name of a tool by which the model finds others")
		}
	}
	for _, key := range []string{ToolSearchTools, ToolLoadTool} {
		if _, taken := own[key]; taken {
			list = append(list, Issue{Field: "tools." + key, Message: "tool search brings a tool of this name: use another key"})
		}
	}
	if t.TopK < 0 || t.TopK > MaxTopK {
		add("topK", "want a whole number from 1 to %d, not %d", MaxTopK, t.TopK)
	}
	if t.MinScore < 0 || math.IsNaN(t.MinScore) || math.IsInf(t.MinScore, 0) {
		add("minScore", "want a number that is not negative")
	}
	switch t.Scope {
	case "", ScopeRun:
	case ScopeThread:
		add("scope", "thread is not supported by this release: what was loaded holds for its run. Leave scope out")
	default:
		add("scope", "want run, not %q", t.Scope)
	}
	return list
}

// Keys are the keys of the tools that a model can find and of those by which it does; none without tool search.
func (t *ToolSearch) Keys() []string {
	if t == nil {
		return nil
	}
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(t.Tools)), ToolSearchTools, ToolLoadTool)))
}

// Finds reports whether a key is of a tool that the model can find. One that the client of the run brings is the client's.
func (t *ToolSearch) Finds(key string, client map[string]ClientTool) bool {
	if t == nil {
		return false
	}
	_, there := t.Tools[key]
	_, clients := client[key]
	return there && !clients
}

// IsToolFinder reports whether a key is of a tool by which a model finds others.
func IsToolFinder(key string) bool { return key == ToolSearchTools || key == ToolLoadTool }

// AllTools are the tools of an agent by key: those that its model always has, and those that it can find.
func (d AgentDef) AllTools() map[string]string {
	if d.ToolSearch == nil {
		return d.Tools
	}
	all := maps.Clone(d.ToolSearch.Tools)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, d.Tools)
	return all
}

// LoadedTool is a tool that a model has loaded, and the step in which it did.
type LoadedTool struct {
	Key  string `json:"key"`
	Step int    `json:"step"`
}

// LoadedBefore are the keys of the tools that were loaded by calls of earlier steps than this one, which may be the next.
// What a step loads, its own calls cannot use. However far a state was folded beyond the step, the answer is the same.
func (s *State) LoadedBefore(step int) []string {
	loaded := s.Loaded
	if s.Step < step {
		loaded = s.withLoads()
	}
	var keys []string
	for _, t := range loaded {
		if t.Step < step {
			keys = append(keys, t.Key)
		}
	}
	return keys
}

// withLoads is what is loaded once the results of the current step count.
func (s *State) withLoads() []LoadedTool {
	loaded := slices.Clone(s.Loaded)
	for _, c := range s.Calls {
		if c.Finished == nil || c.Finished.Outcome != OutcomeOK || !IsToolFinder(c.Planned.ToolName) {
			continue
		}
		for _, key := range c.Finished.Loads {
			if !slices.ContainsFunc(loaded, func(t LoadedTool) bool { return t.Key == key }) {
				loaded = append(loaded, LoadedTool{Key: key, Step: s.Step})
			}
		}
	}
	return loaded
}

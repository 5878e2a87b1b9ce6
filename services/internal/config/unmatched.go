package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// known is what names may stand for.
type known struct {
	where   string // for people
	tools   []rule.Tool
	hosted  []rule.Tool // that workers are expected to have: patterns may match them, entries of agents must tell
	agents  []string
	people  []string
	unheard []string          // MCP servers whose tools nobody has listed: patterns may match them
	inFile  bool              // nothing else is known: entries of agents may be tools of those servers
	aliases map[string]string // key of an agent → what it stands for there
	hint    func(tool string) string
}

// inFile is what a file itself defines.
func (f *File) inFile() known {
	k := f.defined()
	k.where, k.inFile = "in this file", true
	for _, s := range f.MCPServers {
		k.unheard = append(k.unheard, s.ID)
	}
	for _, a := range f.Agents {
		for _, id := range a.Tools {
			if !slices.Contains(f.Builtins, id) {
				k.hosted = append(k.hosted, rule.Tool{ID: id, Kind: "go"})
			}
		}
	}
	return k
}

func (f *File) defined() known {
	k := known{aliases: map[string]string{}, hint: f.needsPool}
	for _, m := range f.builtins() {
		k.tools = append(k.tools, judge.Identity(m))
	}
	for _, t := range f.Tools {
		k.tools = append(k.tools, judge.Identity(t.Manifest))
	}
	for _, a := range f.Agents {
		k.add(a)
	}
	for _, p := range f.Principals {
		k.people = append(k.people, p.ID)
	}
	return k
}

func (k *known) add(a events.AgentDef) {
	k.agents = append(k.agents, a.ID)
	for _, key := range slices.Sorted(maps.Keys(a.Tools)) {
		if id := a.Tools[key]; id != key && k.aliases[key] == "" {
			k.aliases[key] = fmt.Sprintf("%q is the key of tool %q at agent %s", key, id, a.ID)
		}
	}
}

// registered adds what a registry has.
func (f *File) registered(there map[string]map[string][]byte) known {
	k := f.defined()
	k.where = "in this file or the registry"
	listed, unheard := f.listedTools(there[events.RegistryMCP])
	k.tools, k.unheard = append(k.tools, listed...), unheard
	for _, body := range there[events.RegistryTool] {
		var m events.Manifest
		if json.Unmarshal(body, &m) == nil {
			k.tools = append(k.tools, judge.Identity(m))
		}
	}
	for _, body := range there[events.RegistryAgent] {
		var a events.AgentDef
		if json.Unmarshal(body, &a) == nil {
			k.add(a)
		}
	}
	for _, body := range there[events.RegistryPrincipal] {
		var p events.PrincipalDef
		if json.Unmarshal(body, &p) == nil {
			k.people = append(k.people, p.ID)
		}
	}
	return k
}

// has tells whether a reference stands for something.
func (k known) has(r reference) bool {
	switch r.kind {
	case events.RegistryTool:
		if (r.pattern || k.inFile) && slices.ContainsFunc(k.unheard, func(id string) bool { return mayBeOf(id, r.name) }) {
			return true
		}
		if !r.pattern {
			return slices.ContainsFunc(k.tools, func(t rule.Tool) bool { return t.ID == r.name })
		}
		return slices.ContainsFunc(slices.Concat(k.tools, k.hosted), func(t rule.Tool) bool {
			ok, err := t.Matches(r.name)
			return ok && err == nil
		})
	case events.RegistryAgent:
		return judge.IsAgent(r.name, k.agents)
	default:
		return slices.Contains(k.people, r.name)
	}
}

// unmatched are the references of a file that stand for nothing: those that something must have, and those that it would
// be odd without.
func (f *File) unmatched(k known) (missing, odd Problems) {
	for _, r := range f.references {
		if k.has(r) {
			continue
		}
		p := r.place
		p.Message = k.tell(r)
		if r.kind == events.RegistryPrincipal {
			odd = append(odd, p)
		} else {
			missing = append(missing, p)
		}
	}
	return missing, odd
}

// tell says what is wrong with a reference, and what may have been meant.
func (k known) tell(r reference) string {
	var ids []string
	switch r.kind {
	case events.RegistryPrincipal:
		return fmt.Sprintf("there is no principal %q %s, so nobody can decide as this user%s", r.name, k.where, suggest(r.name, k.people))
	case events.RegistryAgent:
		return fmt.Sprintf("%q matches no agent %s%s", r.name, k.where, suggest(r.name, k.agents))
	}
	for _, t := range slices.Concat(k.tools, k.hosted) {
		ids = append(ids, t.ID)
	}
	if !r.pattern {
		ids = append(ids[:len(k.tools)], builtinIDs()...) // the others are this one and its neighbours
		return fmt.Sprintf("the tool %q is not %s; a worker must host it%s%s", r.name, k.where, k.hint(r.name), suggest(r.name, ids))
	}
	if alias := k.aliases[r.name]; alias != "" {
		return fmt.Sprintf("%q matches no tool %s: rules name ids, and %s", r.name, k.where, alias)
	}
	return fmt.Sprintf("%q matches no tool %s%s", r.name, k.where, suggest(r.name, ids))
}

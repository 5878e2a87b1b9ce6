package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// readRegistry reads what later checks compare.
func (d *doctor) readRegistry(ctx context.Context) (err error) {
	if d.reg.agents, err = readNamed(ctx, d, events.RegistryAgent, func(a events.AgentDef) string { return a.ID }); err != nil {
		return err
	}
	if d.reg.tools, err = readNamed(ctx, d, events.RegistryTool, func(m events.Manifest) string { return m.ID }); err != nil {
		return err
	}
	if d.reg.people, err = readNamed(ctx, d, events.RegistryPrincipal, func(p events.PrincipalDef) string { return p.ID }); err != nil {
		return err
	}
	if err := d.readRules(ctx); err != nil {
		return err
	}
	d.reg.live = map[string][]events.Live{}
	for _, name := range allServices {
		if d.reg.live[name], err = d.conn.ListLive(ctx, name); err != nil {
			return err
		}
	}
	d.tell(levelOK, "", "%d agents, %d tools, %d rule sets, %d principals", len(d.reg.agents), len(d.reg.tools),
		len(d.reg.rules), len(d.reg.people))
	return nil
}

// readRules reads the rule sets as a gate does: one that it cannot read stops everything.
func (d *doctor) readRules(ctx context.Context) error {
	raw, err := d.conn.ListNamed(ctx, events.RegistryRule)
	if err != nil {
		return err
	}
	rules, err := judge.Read(raw)
	if err != nil {
		d.tell(levelError, "weir apply -f weir.yaml", "%v; no gate lets anything pass", err)
		return nil
	}
	for _, set := range rules.Sets() {
		d.reg.rules = append(d.reg.rules, set.RuleSet)
	}
	return nil
}

// readNamed reads the definitions of a kind by id. One that cannot be read is a finding.
func readNamed[T any](ctx context.Context, d *doctor, kind string, id func(T) string) (map[string]T, error) {
	raw, err := d.conn.ListNamed(ctx, kind)
	if err != nil {
		return nil, err
	}
	all := make(map[string]T, len(raw))
	for token, body := range raw {
		var v T
		if err := json.Unmarshal(body, &v); err != nil {
			d.tell(levelError, "weir apply -f weir.yaml", "%s %s cannot be read: %v", kind, token, err)
			continue
		}
		all[id(v)] = v
	}
	return all, nil
}

func (d *doctor) services(context.Context) error {
	for _, name := range []string{planner.Name, approval.Name, toolexecutor.Name} {
		live := d.reg.live[name]
		if len(live) == 0 {
			d.tell(levelError, "start one: weir serve "+name, "no %s is running", name)
			continue
		}
		var pools []string
		for _, l := range live {
			pools = append(pools, l.Pool)
		}
		slices.Sort(pools)
		text := fmt.Sprintf("%d × %s", len(live), name)
		if where := strings.Join(slices.Compact(pools), ", "); strings.TrimSpace(where) != "" {
			text += ", pools " + where
		}
		d.tell(levelOK, "", "%s", text)
	}
	return nil
}

// agents looks for tools that an agent has and nobody hosts.
func (d *doctor) agents(context.Context) error {
	hosted := map[string]bool{}
	for _, l := range d.reg.live[toolexecutor.Name] {
		for _, t := range l.Tools {
			hosted[t] = true
		}
	}
	before := len(d.found)
	for _, id := range slices.Sorted(maps.Keys(d.reg.agents)) {
		tools := d.reg.agents[id].AllTools()
		for _, key := range slices.Sorted(maps.Keys(tools)) {
			m, registered := d.reg.tools[tools[key]]
			switch {
			case !registered:
				d.tell(levelError, "start the executor that has it, or put it into weir.yaml and apply that",
					"agent %s: tool %s is not registered", id, tools[key])
			case m.Client(): // whoever asks for a run executes it
			case !hosted[m.ID+"@"+m.Version]:
				d.tell(levelError, fmt.Sprintf("start its executor: weir serve tool-executor --pool %s", m.Pool),
					"agent %s: nobody hosts tool %s@%s (pool %s), so its calls end as unavailable", id, m.ID, m.Version, m.Pool)
			}
		}
	}
	if len(d.found) == before {
		d.tell(levelOK, "", "every tool of every agent is hosted")
	}
	return nil
}

// rules looks for rules that can never match.
func (d *doctor) rules(context.Context) error {
	before := len(d.found)
	told := map[string]bool{}
	tools := slices.Collect(maps.Values(d.reg.tools))
	agents := slices.Collect(maps.Keys(d.reg.agents))
	for _, u := range judge.Unmatched(d.reg.rules, tools, agents) {
		d.tell(levelError, "correct the pattern in weir.yaml, then: weir apply -f weir.yaml; or remove the set: weir rules rm "+u.Set,
			"%s", u)
		told[u.String()] = true
	}
	for _, gate := range d.reg.live[approval.Name] { // what it judges by may be younger or older
		for _, p := range gate.Problems {
			if !told[p] {
				d.tell(levelWarn, "look again in a minute; if it stays: weir apply -f weir.yaml", "gate %s: %s", gate.ID, p)
			}
			told[p] = true
		}
	}
	if len(d.found) == before {
		d.tell(levelOK, "", "every rule matches something")
	}
	return nil
}

func (d *doctor) principals(context.Context) error {
	before := len(d.found)
	for _, id := range slices.Sorted(maps.Keys(d.reg.people)) {
		p := d.reg.people[id]
		switch p.Auth {
		case events.AuthSubject:
			d.tell(levelWarn, "give it a key: weir keys new FILE, and auth: key in weir.yaml",
				"principal %s is believed without a proof, by weir dev alone", id)
		case events.AuthKey:
			if _, err := jetstream.ParsePublic(p.Key); err != nil {
				d.tell(levelError, "correct its key in weir.yaml", "principal %s: %v", id, err)
			}
		}
	}
	if len(d.found) == before {
		d.tell(levelOK, "", "%d principals, each with a proof", len(d.reg.people))
	}
	return nil
}

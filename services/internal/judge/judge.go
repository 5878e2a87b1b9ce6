// Package judge is the gate's judgement of a call as a function: what the tool, the run and the operators' rule sets say
// about it, and how people may decide what they hold. The gate calls it for every call; tests of rules, and comparisons
// of rules with what has happened, call the same code, so what they tell is what the gate will do.
//
//	rules, err := judge.Read(stored)                       // rule sets by name, as the registry holds them
//	j := rules.Judge(ctx, evaluator, judge.Call{…})        // allow, ask or block, and why
//	rules.Restrict(&ask, j, judge.Deadline{Default: week}) // who may decide it, how, and until when
//
// It is pure: the same rules and the same call give the same answer in every process. What cannot be evaluated holds.
package judge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// Rules is one reading of the operators' rule sets. It is immutable and safe for concurrent use.
type Rules struct {
	sets   []rule.Set
	full   [][]events.Rule // by set and place, as sets
	digest string
}

// ErrUnreadable says that a stored rule set is broken, or says what this version does not understand.
var ErrUnreadable = errors.New("cannot be read")

// Read reads stored sets by the names under which they are stored. They are judged in the order of these, so that every
// gate finds the same reason. A set that cannot be read, or that says what this version does not understand, is an
// error: who ignored a word of a rule would let pass what it forbids.
func Read(stored map[string][]byte) (*Rules, error) {
	r := &Rules{}
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		set, err := readSet(stored[name])
		if err != nil {
			return nil, fmt.Errorf("rule set %s %w: %w", name, ErrUnreadable, err)
		}
		all = append(append(all, stored[name]...), 0)
		r.add(set, events.Digest(stored[name]))
	}
	r.digest = events.Digest(all)
	return r, nil
}

func readSet(raw []byte) (set events.RuleSet, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&set); err != nil {
		return set, err
	}
	if dec.More() || set.Name == "" {
		return set, errors.New("not a rule set")
	}
	return set, nil
}

func (r *Rules) add(set events.RuleSet, digest string) {
	out := rule.Set{Name: set.Name, Digest: digest}
	for _, one := range set.Rules {
		out.Rules = append(out.Rules, rule.Rule{
			Name: one.Name, Tools: one.Tools, Agents: one.Agents, When: one.When,
			Action: rule.Action(one.Action), Reason: one.Reason,
		})
	}
	r.sets, r.full = append(r.sets, out), append(r.full, set.Rules)
}

// MaxAge is how long a gate judges by rules that it has read before it reads them again. A call that is judged later than
// this after a change is judged by the changed rules; usually it is at once, because changes are heard.
const MaxAge = 500 * time.Millisecond

// Digest is that of all sets together: facts name by it the rules that judged them.
func (r *Rules) Digest() string { return r.digest }

// Set is a rule set in force.
type Set struct {
	events.RuleSet

	Digest string
}

// Sets are the rule sets in the order in which they are judged.
func (r *Rules) Sets() []Set {
	list := make([]Set, len(r.sets))
	for i, s := range r.sets {
		list[i] = Set{events.RuleSet{Name: s.Name, Rules: r.full[i]}, s.Digest}
	}
	return list
}

// Call is all that a judgement rests on.
type Call struct {
	Tool     events.Manifest // as the run is pinned to it
	ToolName string          // the key under which the agent holds it
	Args     json.RawMessage // frozen
	Context  json.RawMessage // of the request; an object or nothing
	AgentID  string
	Run      Run
	// RequireToolApproval is what the run asks for: the request's word, else the agent's.
	RequireToolApproval *events.Approval
	// Inherited is what the runs above ask for: each of it holds, whatever the others say.
	Inherited []events.Approval
	// Hooks are the rules among the run's hooks. They can only forbid.
	Hooks []events.Rule
}

// Finder reports whether a call finds or loads tools: it runs nothing, and the gate answers it.
func (c Call) Finder() bool {
	return c.Tool.Source.Kind == "builtin" && events.IsToolFinder(c.Tool.ID) && c.Tool.ID == c.ToolName
}

// Run is what expressions see of a run.
type Run struct{ ID, Thread, Resource, Requester string }

// Judge joins what the tool, the run and the operators' rule sets say. What cannot be evaluated holds.
func (r *Rules) Judge(ctx context.Context, e *rule.Evaluator, c Call) rule.Judgement {
	tool, run := requirement(c.Tool.RequireApproval), requirement(c.RequireToolApproval)
	if c.Tool.Source.Kind == "client" || c.Finder() { // it waits for its client anyway; or nothing is run
		run, c.Inherited = rule.Requirement{}, nil
	}
	if tool.When == "" && run.When == "" && len(r.sets)+len(c.Hooks)+len(c.Inherited) == 0 {
		return e.Require(ctx, tool, run, rule.Input{})
	}
	in, err := c.Input()
	if err != nil {
		m := rule.Match{Set: -1, Rule: -1, Action: rule.Ask, Reason: rule.Reason{
			Rule: "arguments", Text: "the arguments cannot be given to rules", Error: err.Error(),
		}}
		return rule.Judgement{Action: m.Action, Reason: m.Reason, Matches: []rule.Match{m}}
	}
	all := []rule.Judgement{e.Judge(ctx, r.sets, in), byHooks(ctx, e, c.Hooks, in), e.Require(ctx, tool, run, in)}
	for _, above := range c.Inherited {
		all = append(all, e.Require(ctx, rule.Requirement{}, requirement(&above), in))
	}
	return rule.Strictest(all...)
}

// byHooks is what the rules among a run's hooks say. They are not the operators': their matches name no set of those.
func byHooks(ctx context.Context, e *rule.Evaluator, hooks []events.Rule, in rule.Input) rule.Judgement {
	if len(hooks) == 0 {
		return rule.Judgement{Action: rule.Allow}
	}
	set := rule.Set{Name: events.HookSet}
	for _, h := range hooks {
		set.Rules = append(set.Rules, rule.Rule{Name: h.Name, When: h.When, Action: rule.Block, Reason: h.Reason})
	}
	j := e.Judge(ctx, []rule.Set{set}, in)
	for i := range j.Matches {
		j.Matches[i].Set, j.Matches[i].Rule = -1, -1
	}
	return j
}

// Holds evaluates the condition of a grant over frozen arguments, which is all that it may look at.
func Holds(ctx context.Context, e *rule.Evaluator, when string, frozen json.RawMessage) (bool, error) {
	args, err := rule.Decode(frozen)
	if err != nil {
		return false, err
	}
	return e.Holds(ctx, when, args)
}

func requirement(a *events.Approval) rule.Requirement {
	switch {
	case a == nil:
		return rule.Requirement{}
	case a.When != "":
		return rule.Requirement{When: a.When}
	}
	return rule.Requirement{Fixed: &a.Always}
}

// Input is what expressions see of a call.
func (c Call) Input() (rule.Input, error) {
	args, err := rule.Decode(c.Args)
	if err != nil {
		return rule.Input{}, err
	}
	given, err := rule.Decode(c.Context)
	if err != nil {
		return rule.Input{}, err
	}
	t := c.Tool
	tool := map[string]any{
		"id": t.ID, "name": c.ToolName, "version": t.Version, "effect": string(t.Effect),
		"source": map[string]any{"kind": t.Source.Kind, "server": t.Source.Server, "name": t.Source.Name},
	}
	if a := annotations(t.MCP); a != nil {
		tool["annotations"] = a
	}
	return rule.Input{
		Tool: tool, Args: args, Context: given,
		Agent: map[string]any{"id": c.AgentID},
		Run: map[string]any{
			"id": c.Run.ID, "thread": c.Run.Thread, "resource": c.Run.Resource, "requester": c.Run.Requester,
		},
	}, nil
}

// annotations are what a tool claims about itself in its manifest, mcp.annotations. What is there and cannot be read is
// given as it is, and so fails every expression that reads it.
func annotations(mcp json.RawMessage) any {
	if len(mcp) == 0 || string(mcp) == "null" {
		return nil
	}
	v, err := rule.Decode(mcp)
	if err != nil {
		return "unreadable"
	}
	all, ok := v.(map[string]any)
	if !ok {
		return "unreadable"
	}
	return all["annotations"]
}

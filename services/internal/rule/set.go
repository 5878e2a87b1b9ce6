package rule

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Action is what a rule does with a call that it matches.
type Action string

// The actions, from the mildest to the strictest. Over several sets the strictest counts.
const (
	Allow Action = "allow"
	Ask   Action = "ask"
	Block Action = "block"
)

// rank orders actions by strictness. What is not an action ranks as an ask, so it never lets a call pass.
func (a Action) rank() int {
	switch a {
	case Allow:
		return 0
	case Block:
		return 2
	default:
		return 1
	}
}

// Set is a rule set of the operator: in it the first rule that matches counts, so an allow above an ask is
// an exception.
type Set struct {
	// Name and Digest are those of the stored set; records of what it judged name both.
	Name, Digest string
	// Rules in the order of the file.
	Rules []Rule
}

// Rule is what this package needs of one rule. Whatever else a rule says (approvers, quorum, expiry, grants)
// is for the caller, who finds it by Match.Set and Match.Rule.
type Rule struct {
	// Name is unique in the set; reasons name it.
	Name string
	// Tools are patterns over the identity of the tool (see Tool.Matches), Agents over the id of the agent (see
	// Matches). An empty list means all.
	Tools, Agents []string
	// When is the expression; empty means always.
	When string
	// Action is taken when tool, agent and expression match.
	Action Action
	// Reason is the text for people; empty means the rule's name stands for itself.
	Reason string
}

// Reason names the rule that decided, in the shape in which an ask shows it.
type Reason struct {
	// Rule, Set and Digest name the rule. What a tool or a run says by itself has no set: then Rule is
	// the name of the field and Digest is empty.
	Rule, Set, Digest string
	// Text is for people.
	Text string
	// Error is why the expression could not be evaluated; empty when it could.
	Error string
}

// Match is what one rule said about a call.
type Match struct {
	// Set and Rule are positions: sets[Set].Rules[Rule]. Both are -1 for what a tool or a run says by itself.
	Set, Rule int
	// Action is the rule's, or Ask if its expression failed.
	Action Action
	// Reason names the rule.
	Reason Reason
}

// Judgement is what rules say about a call. The zero value is no judgement: its action is none of the three,
// so comparing with Allow holds the call.
type Judgement struct {
	// Action is the strictest of the matches; Allow when nothing matched.
	Action Action
	// Reason is that of the first match with this action; empty when nothing matched.
	Reason Reason
	// Matches are the rules that had something to say, in order. A caller that asks looks at all asks among
	// them: each may bring approvers, a quorum, or forbid grants.
	Matches []Match
}

func (j *Judgement) add(matches ...Match) {
	for _, m := range matches {
		if m.Action.rank() > j.Action.rank() || len(j.Matches) == 0 && m.Action == j.Action {
			j.Action, j.Reason = m.Action, m.Reason
		}
		j.Matches = append(j.Matches, m)
	}
}

// Strictest joins judgements of one call: the strictest action counts, with the first reason for it, and all
// matches are kept. So an allow never lifts an ask of another.
func Strictest(all ...Judgement) Judgement {
	out := Judgement{Action: Allow}
	for _, j := range all {
		if len(j.Matches) == 0 && j.Action != Allow { // the zero value: nobody judged
			out.add(Match{Set: -1, Rule: -1, Action: Ask, Reason: Reason{Error: "not judged"}})
		}
		out.add(j.Matches...)
	}
	return out
}

// Evaluator judges calls. It is safe for concurrent use.
type Evaluator struct {
	cache *Cache
}

// NewEvaluator makes an evaluator that takes its programs from the cache.
func NewEvaluator(cache *Cache) *Evaluator { return &Evaluator{cache: cache} }

// Judge evaluates the operator's rule sets for one call.
//
// In a set the first rule that matches counts; over the sets block beats ask beats allow. A rule that cannot
// be evaluated means ask, and the rules below it still count if they are stricter: who can make a rule fail
// must not escape a block by it.
//
// Annotations make a judgement stricter, never looser: a set whose rules read them is judged with and without
// them, and the stricter judgement stands. An annotation that the tool did not send is missing, like any key:
// rules say has(tool.annotations.destructiveHint) && ….
func (e *Evaluator) Judge(ctx context.Context, sets []Set, in Input) Judgement {
	out := Judgement{Action: Allow}
	v := newVars(in)
	for i := range sets {
		p := e.pass(ctx, sets, i, v)
		if p.annotations && v.hasAnnotations() {
			if plain := e.pass(ctx, sets, i, v.withoutAnnotations()); plain.action().rank() > p.action().rank() {
				p = plain
				p.blameAnnotations()
			}
		}
		out.add(p.matches...)
	}
	return out
}

// Holds evaluates a condition over the arguments of a call, which is all that it may look at.
func (e *Evaluator) Holds(ctx context.Context, when string, args any) (bool, error) {
	program, err := e.cache.Get(when)
	if err != nil {
		return false, err
	}
	if !program.ReadsOnlyArgs() {
		return false, &Error{Message: "the condition looks at more than args"}
	}
	return program.Eval(ctx, Input{Args: args})
}

// pass is one evaluation of one set.
type pass struct {
	matches     []Match
	annotations bool // a rule that was evaluated reads them
}

func (p *pass) action() Action {
	strictest := Allow
	for _, m := range p.matches {
		if m.Action.rank() > strictest.rank() {
			strictest = m.Action
		}
	}
	return strictest
}

func (p *pass) blameAnnotations() {
	for i := range p.matches {
		if m := &p.matches[i]; m.Reason.Error != "" {
			m.Reason.Error = withoutAnnotations + m.Reason.Error
		}
	}
}

// withoutAnnotations stands before an error that only shows when the annotations are left out.
const withoutAnnotations = "annotations cannot loosen a rule, and without them: "

// pass goes down the rules of sets[i] to the first that matches.
func (e *Evaluator) pass(ctx context.Context, sets []Set, i int, v *vars) pass {
	var p pass
	set := &sets[i]
	for k := range set.Rules {
		r := &set.Rules[k]
		matched, err := e.matches(ctx, r, v, &p)
		if err == nil && !matched {
			continue
		}
		m := Match{Set: i, Rule: k, Action: r.Action, Reason: Reason{Rule: r.Name, Set: set.Name, Digest: set.Digest, Text: r.Reason}}
		if err != nil {
			m.Action, m.Reason.Error = Ask, err.Error()
		}
		p.matches = append(p.matches, m)
		if err == nil {
			break
		}
	}
	return p
}

// matches tells whether a rule matches: tool, agent, then expression.
func (e *Evaluator) matches(ctx context.Context, r *Rule, v *vars, p *pass) (bool, error) {
	for _, match := range []func() (bool, error){
		func() (bool, error) { return matchesTool(r.Tools, v.in.Tool) },
		func() (bool, error) { return matchesAgent(r.Agents, v.in.Agent) },
	} {
		if ok, err := match(); !ok || err != nil {
			return false, err
		}
	}
	if r.When != "" {
		program, err := e.cache.Get(r.When)
		if err != nil {
			return false, err
		}
		p.annotations = p.annotations || program.ReadsAnnotations()
		ok, err := program.eval(ctx, v)
		if !ok || err != nil {
			return false, err
		}
	}
	return true, checkAction(r.Action)
}

func checkAction(a Action) error {
	switch a {
	case Allow, Ask, Block:
		return nil
	}
	return &Error{Message: fmt.Sprintf("unknown action %q", a)}
}

// Check finds what is wrong with a set before it is stored: all faults, each with the name of its rule.
func (s Set) Check() error {
	var faults []error
	if s.Name == "" {
		faults = append(faults, errors.New("the rule set has no name"))
	}
	names := make(map[string]bool, len(s.Rules))
	for i, r := range s.Rules {
		if r.Name == "" {
			faults = append(faults, fmt.Errorf("rule %d has no name", i+1))
		} else if names[r.Name] {
			faults = append(faults, fmt.Errorf("rule %q: the name is taken", r.Name))
		}
		names[r.Name] = true
		for _, err := range r.faults() {
			faults = append(faults, fmt.Errorf("rule %q: %w", r.Name, err))
		}
	}
	return errors.Join(faults...)
}

func (r Rule) faults() []error {
	var faults []error
	if err := checkAction(r.Action); err != nil {
		faults = append(faults, err)
	}
	for _, pattern := range slices.Concat(r.Tools, r.Agents) {
		if pattern == "" {
			faults = append(faults, errors.New("an empty pattern matches nothing"))
		}
	}
	for _, pattern := range r.Tools {
		if err := CheckToolPattern(pattern); err != nil {
			faults = append(faults, err)
		}
	}
	if r.When == "" {
		return faults
	}
	program, err := Compile(r.When)
	switch {
	case err != nil:
		faults = append(faults, fmt.Errorf("when: %w", err))
	case program.ReadsAnnotations() && r.Action == Allow:
		faults = append(faults, errors.New("when: annotations cannot loosen a rule, so an allow may not read them"))
	}
	return faults
}

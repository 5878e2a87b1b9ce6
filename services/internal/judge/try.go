package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// Case is a call as somebody thinks it up, to see what the rules make of it.
type Case struct {
	Name     string
	Tool     string        // its id
	ToolName string        // the key under which the agent holds it; default: as the agent's definition says, else the id
	Source   events.Source // default: as the tool's definition says
	Args     json.RawMessage
	AgentID  string
	Run      Run
	Context  json.RawMessage
	// What the definitions say otherwise; nil: as they do.
	Annotations         json.RawMessage
	RequireApproval     *events.Approval
	RequireToolApproval *events.Approval

	Want Want
}

// Want is what a case expects. What is nil or empty may be anything.
type Want struct {
	Action       rule.Action
	Rule         string // <set>/<rule>, requireApproval, requireToolApproval or none
	Approvers    []string
	NotRequester *bool
	Signed       *bool
	Quorum       int
	Decisions    []events.Decision
	Grants       *bool
	Expires      events.Duration
	OnExpiry     string
}

// Definitions are the tools and agents that cases name, by id.
type Definitions struct {
	Tools  map[string]events.Manifest
	Agents map[string]events.AgentDef
}

// Tried is what the rules make of a case.
type Tried struct {
	Got Terms
	// Known tells whether there is a definition of the tool. Without one, its schema and what it asks for by itself were
	// not looked at.
	Known bool
	// Invalid is why the gate would end the call before it asks any rule: its arguments do not fit.
	Invalid error
	// Differs are the terms that are not as the case wants them: was is what it wants.
	Differs []Difference
}

// OK tells whether the case is as it wants to be.
func (t Tried) OK() bool { return t.Invalid == nil && len(t.Differs) == 0 }

// Try takes a case the way that the gate takes a call: its arguments are repaired, validated and frozen, then judged. An
// ask waits for byDefault when neither rule nor tool says how long.
func (r *Rules) Try(ctx context.Context, e *rule.Evaluator, c Case, known Definitions, byDefault time.Duration) Tried {
	t := Tried{}
	call := c.call(known, &t)
	if t.Invalid != nil {
		return t
	}
	t.Got = r.Terms(ctx, e, call, byDefault)
	t.Differs = c.Want.differs(t.Got)
	return t
}

// call is the call that a case thinks up.
func (c Case) call(known Definitions, t *Tried) Call {
	tool, ok := known.Tools[c.Tool]
	t.Known = ok
	if !ok {
		tool = events.Manifest{ID: c.Tool}
	}
	if c.Source.Kind != "" {
		tool.Source = c.Source
	}
	if c.RequireApproval != nil {
		tool.RequireApproval = c.RequireApproval
	}
	if c.Annotations != nil {
		tool.MCP, _ = events.Marshal(map[string]json.RawMessage{"annotations": c.Annotations}) // raw JSON encodes
	}
	agent := known.Agents[c.AgentID]
	out := Call{
		Tool: tool, ToolName: cmp.Or(c.ToolName, keyOf(agent, c.Tool), c.Tool), Context: c.Context, AgentID: c.AgentID, Run: c.Run,
		RequireToolApproval: agent.RequireToolApproval,
	}
	if c.RequireToolApproval != nil {
		out.RequireToolApproval = c.RequireToolApproval
	}
	if out.Args, t.Invalid = Freeze(tool, c.Args); t.Invalid == nil {
		t.Invalid = fits(tool, c.Context)
	}
	return out
}

// keyOf is the key under which an agent holds a tool: the first one, when there are several.
func keyOf(a events.AgentDef, id string) string {
	for _, key := range slices.Sorted(maps.Keys(a.Tools)) {
		if a.Tools[key] == id {
			return key
		}
	}
	return ""
}

// Freeze repairs and validates arguments, and gives the bytes that the gate would freeze.
func Freeze(tool events.Manifest, args json.RawMessage) (json.RawMessage, error) {
	if len(args) == 0 {
		args = json.RawMessage(`{}`)
	}
	if len(tool.InputSchema) == 0 {
		return events.Canonical(args)
	}
	schema, err := events.CompileSchema(tool.InputSchema)
	if err != nil {
		return nil, fmt.Errorf("the input schema of the tool: %w", err)
	}
	return events.Normalize(schema, args)
}

// fits checks the request context as the gate does.
func fits(tool events.Manifest, given json.RawMessage) error {
	if len(tool.RequestContextSchema) == 0 || string(tool.RequestContextSchema) == "null" {
		return nil
	}
	schema, err := events.CompileSchema(tool.RequestContextSchema)
	if err != nil {
		return fmt.Errorf("the request context schema of the tool: %w", err)
	}
	if len(given) == 0 {
		given = json.RawMessage(`{}`)
	}
	if err := schema.ValidateRaw(given); err != nil {
		return fmt.Errorf("the request context: %w", err)
	}
	return nil
}

// differs holds what a case wants against what it got.
func (w Want) differs(got Terms) (list []Difference) {
	want := got
	want.Action = w.Action
	if w.Rule != "" && w.Rule != got.Rule {
		list = append(list, Difference{"rule", w.Rule, got.Rule})
	}
	if w.Action != got.Action {
		return append([]Difference{{"action", string(w.Action), string(got.Action)}}, list...)
	}
	if w.Approvers != nil {
		want.Approvers = w.Approvers
	}
	if w.Decisions != nil {
		want.Decisions = w.Decisions
		if !slices.Contains(w.Decisions, events.Decline) { // which is always taken
			want.Decisions = append(slices.Clone(w.Decisions), events.Decline)
		}
	}
	for field, v := range map[*bool]*bool{&want.NotRequester: w.NotRequester, &want.Signed: w.Signed, &want.Grants: w.Grants} {
		if v != nil {
			*field = *v
		}
	}
	want.Quorum = cmp.Or(w.Quorum, got.Quorum)
	want.Expires = cmp.Or(w.Expires, got.Expires)
	want.OnExpiry = cmp.Or(w.OnExpiry, got.OnExpiry)
	return append(list, want.Differences(got)...)
}

// Package transform makes what may be shown of a tool's calls of what they are: by the policy of the run, by the forms of
// the tool, and without the fields that its schemas mark as secret. It fails closed: what a covered target has no form for,
// and what a form fails at, is shown as unavailable, and never as it is.
package transform

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/jq"
	"github.com/weirkeeper/weir/services/internal/lru"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// Patience is how long a host of a tool may take for one value.
const Patience = 2 * time.Second

// Host asks a host of a tool how a value may be shown. It is nil where the tool is hosted itself or there is no bus.
type Host func(ctx context.Context, tool events.Manifest, req events.TransformRequest) (events.TransformAnswer, error)

// Call names the call of which something is shown.
type Call struct {
	RunID, ToolCallID, ToolName string
	Input                       json.RawMessage // its arguments, where they are known
}

// View shows the calls of one tool of one run. A nil View shows everything. It may be used by several goroutines at once.
type View struct {
	tool    events.Manifest
	secrets *events.Secrets
	forms   map[events.Target][]forms // of covered targets: the policy's, then the tool's own
	host    Host
	asked   *lru.Cache[string, events.Shown] // what hosts said
}

// forms are those of one source for one target. Forms that cannot be used fail.
type forms map[events.Phase]form

type form struct {
	program *jq.Program
	isGo    bool
}

// maxAsked bounds how many answers of hosts a view remembers.
const maxAsked = 64

// New makes the view of a tool under a policy, which may be nil; nil when there is nothing to hide. Secrets are those of the
// manifest ([events.SecretsOf]), which its caller has: to compile them takes longer than all the rest.
func New(m events.Manifest, secrets *events.Secrets, policy *events.TransformPolicy, host Host) *View {
	if secrets == nil && policy == nil && len(m.Transform) == 0 {
		return nil
	}
	v := &View{
		tool: m, secrets: secrets, host: host, forms: map[events.Target][]forms{},
		asked: lru.New[string, events.Shown](maxAsked),
	}
	own, err := events.ParseTransform(m.Transform)
	for _, target := range events.Targets() {
		if policy.Covers(target) {
			v.forms[target] = append(v.forms[target], compile(ruleFor(policy, m)))
		}
		switch {
		case err != nil: // nobody knows what it hides
			v.forms[target] = append(v.forms[target], forms{})
		case own.Of(target) != nil:
			v.forms[target] = append(v.forms[target], compile(own.Of(target)))
		}
	}
	if v.secrets == nil && len(v.forms) == 0 {
		return nil
	}
	return v
}

// Nothing is the view of a tool of which nobody knows what it hides.
var Nothing = &View{
	secrets: events.AllSecret, forms: map[events.Target][]forms{events.TargetDisplay: {forms{}}, events.TargetTranscript: {forms{}}},
	asked: lru.New[string, events.Shown](1),
}

// ruleFor is the first rule of a policy for a tool.
func ruleFor(p *events.TransformPolicy, m events.Manifest) *events.Forms {
	t := rule.Tool{ID: m.ID, Kind: m.Source.Kind, Server: m.Source.Server, Name: m.Source.Name}
	for i, r := range p.Rules {
		if len(r.Tools) == 0 {
			return &p.Rules[i].Forms
		}
		for _, pattern := range r.Tools {
			if ok, err := t.Matches(pattern); ok && err == nil {
				return &p.Rules[i].Forms
			}
		}
	}
	return nil
}

// For is what of a policy concerns one tool; nil when there is no policy.
func For(p *events.TransformPolicy, m events.Manifest) *events.TransformPolicy {
	if p == nil {
		return nil
	}
	one := &events.TransformPolicy{Rules: []events.TransformRule{}, Targets: p.Targets}
	if f := ruleFor(p, m); f != nil {
		one.Rules = append(one.Rules, events.TransformRule{Forms: *f})
	}
	return one
}

func compile(f *events.Forms) forms {
	all := forms{}
	for _, p := range events.Phases() {
		one := f.Of(p)
		if one == nil {
			continue
		}
		c := form{isGo: one.Go}
		if !one.Go {
			c.program, _ = jq.Compile(one.JQ, "call") // one that is none fails
		}
		all[p] = c
	}
	return all
}

// Check says what is wrong with the forms of a tool.
func Check(f *events.Forms) error {
	for _, p := range events.Phases() {
		if one := f.Of(p); one != nil && !one.Go {
			if _, err := jq.Compile(one.JQ, "call"); err != nil {
				return &Error{Phase: p, Err: err}
			}
		}
	}
	return nil
}

// Error is a form that cannot be used.
type Error struct {
	Phase events.Phase
	Err   error
}

// Error names the phase.
func (e *Error) Error() string { return string(e.Phase) + ": " + e.Err.Error() }

// Unwrap is what is wrong.
func (e *Error) Unwrap() error { return e.Err }

// Covers reports whether a target is covered, so that nothing is shown of a phase without a form.
func (v *View) Covers(t events.Target) bool { return v != nil && len(v.forms[t]) > 0 }

// Secrets are what the schemas of the tool mark.
func (v *View) Secrets() *events.Secrets {
	if v == nil {
		return nil
	}
	return v.secrets
}

// HidesInput reports whether no piece of the text of arguments may be shown as it is.
func (v *View) HidesInput() bool {
	return v != nil && (v.secrets.HidesInput() || v.Covers(events.TargetDisplay))
}

// Show is a value of a phase as a target may see it. The value has no secrets any more.
func (v *View) Show(ctx context.Context, t events.Target, p events.Phase, c Call, value json.RawMessage) events.Shown {
	if !v.Covers(t) {
		return events.Shown{Value: value}
	}
	for _, source := range v.forms[t] {
		f, ok := source[p]
		if !ok {
			continue
		}
		made, err := v.made(ctx, f, about{t, p, c}, value)
		switch {
		case errors.Is(err, jq.ErrNothing):
			continue
		case err != nil:
			return events.Shown{Value: events.Unavailable(p), Failed: true}
		}
		return events.Shown{Value: made}
	}
	return events.Shown{Value: events.Unavailable(p), Suppress: p == events.PhaseInputDelta}
}

// about says what is shown to whom.
type about struct {
	target events.Target
	phase  events.Phase
	call   Call
}

// made is what a form makes of a value.
func (v *View) made(ctx context.Context, f form, a about, value json.RawMessage) (json.RawMessage, error) {
	if f.isGo {
		return v.ask(ctx, a, value)
	}
	if f.program == nil {
		return nil, errors.New("the program cannot be compiled")
	}
	call, err := events.Marshal(struct {
		Target     events.Target   `json:"target"`
		Phase      events.Phase    `json:"phase"`
		ToolName   string          `json:"toolName"`
		ToolCallID string          `json:"toolCallId"`
		Input      json.RawMessage `json:"input,omitempty"`
	}{a.target, a.phase, a.call.ToolName, a.call.ToolCallID, a.call.Input})
	if err != nil {
		return nil, err
	}
	return f.program.Run(ctx, value, call)
}

// ask asks a host of the tool, once for each value.
func (v *View) ask(ctx context.Context, a about, value json.RawMessage) (json.RawMessage, error) {
	if v.host == nil {
		return nil, errors.New("no host can be asked")
	}
	c := a.call
	key := string(a.target) + "\x00" + string(a.phase) + "\x00" + c.ToolCallID + "\x00" + string(value)
	if known, ok := v.asked.Get(key); ok {
		return known.Value, nil
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	answer, err := v.host(ctx, v.tool, events.TransformRequest{
		RunID: c.RunID, ToolCallID: c.ToolCallID, ToolName: c.ToolName, ToolID: v.tool.ID, ToolVersion: v.tool.Version,
		InputSchemaDigest: v.tool.InputSchemaDigest, Target: a.target, Phase: a.phase, Value: value, Input: c.Input,
		Within: events.Duration(Patience),
	})
	switch {
	case err != nil:
		return nil, err
	case answer.Failed:
		return nil, errors.New("the function failed")
	case len(answer.Value) == 0 || string(answer.Value) == "null":
		return nil, jq.ErrNothing
	case events.CheckJSON(answer.Value) != nil:
		return nil, errors.New("the answer is not JSON")
	}
	v.asked.Put(key, events.Shown{Value: answer.Value}, 1)
	return answer.Value, nil
}

package planner

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
	"github.com/weirkeeper/weir/services/internal/toolsearch"
)

// Progress is a run as conditions and changes of its steps see it.
type Progress struct {
	RunID      string          `json:"id"`
	AgentID    string          `json:"-"`
	ThreadID   string          `json:"thread"`
	ResourceID string          `json:"resource"`
	Requester  string          `json:"requester"`
	Step       int             `json:"step"`   // turns so far
	Tokens     int             `json:"tokens"` // so far
	Steps      []ProgressStep  `json:"steps"`  // the turns, in order
	Context    json.RawMessage `json:"-"`      // the request context, an object or nothing
}

// ProgressStep is a turn that is over.
type ProgressStep struct {
	Text  string         `json:"text"`
	Calls []ProgressCall `json:"calls"`
}

// ProgressCall is a call of a turn that is over.
type ProgressCall struct {
	Tool   string          `json:"tool"` // its key
	Args   json.RawMessage `json:"args"`
	Failed bool            `json:"failed"` // the model was told an error
}

// StopFunc says whether a run that would go on ends. It may be called for the same run more than once, by any planner.
type StopFunc func(ctx context.Context, p Progress) (bool, error)

// StepFunc says what changes for the next turn of a run. It may be called for the same turn more than once, by any planner.
type StepFunc func(ctx context.Context, p Progress) (events.StepChange, error)

// limitStop is the name of the limit that a stop condition is.
const limitStop = "stopWhen"

// progressOf is how far a run is.
func progressOf(st *events.State) Progress {
	p := Progress{
		RunID: st.RunID, AgentID: st.AgentID, ThreadID: st.ThreadID, ResourceID: st.ResourceID, Requester: st.Requester,
		Step: st.Turns(), Tokens: st.Counted().Usage.TotalTokens, Steps: []ProgressStep{}, Context: st.RequestContext,
	}
	failed := map[string]bool{}
	messages := st.Transcript()
	for _, m := range slices.Backward(messages) {
		if len(p.Steps) == p.Step {
			break
		}
		step := ProgressStep{Text: m.Text(), Calls: []ProgressCall{}}
		for _, part := range m.Parts {
			switch part.Type {
			case events.PartToolResult:
				failed[part.ToolCallID] = part.IsError
			case events.PartToolCall:
				step.Calls = append(step.Calls, ProgressCall{part.ToolName, json.RawMessage(object(part.Args)), failed[part.ToolCallID]})
			default:
			}
		}
		if m.Role == events.RoleAssistant {
			p.Steps = append(p.Steps, step)
		}
	}
	slices.Reverse(p.Steps)
	return p
}

// input is the progress as expressions see it: run, agent and context.
func (p Progress) input() (in rule.Input, err error) {
	raw, err := events.Marshal(p)
	if err != nil {
		return in, err
	}
	if in.Run, err = rule.Decode(raw); err != nil {
		return in, err
	}
	in.Agent = map[string]any{"id": p.AgentID}
	in.Context, err = rule.Decode(p.Context)
	return in, err
}

// stops reports whether a condition ends the run. One that cannot be looked at ends it too, as failed.
func (s *Service) stops(ctx context.Context, st *events.State, def *definition) (bool, *events.Error) {
	if len(def.agent.StopWhen) == 0 || st.Turns() == 0 {
		return false, nil
	}
	p := progressOf(st)
	for i, c := range def.agent.StopWhen {
		yes, err := s.stopsBy(ctx, c, p)
		if err != nil {
			return false, events.Errorf(events.CodeInvalidDefinition, "stopWhen[%d] of agent %s: %v", i, st.AgentID, err)
		}
		if yes {
			return true, nil
		}
	}
	return false, nil
}

func (s *Service) stopsBy(ctx context.Context, c events.StopCondition, p Progress) (bool, error) {
	switch {
	case c.StepCount > 0:
		return p.Step >= c.StepCount, nil
	case c.MaxTokens > 0:
		return p.Tokens >= c.MaxTokens, nil
	case c.HasToolCall != "":
		last := p.Steps[len(p.Steps)-1]
		return slices.ContainsFunc(last.Calls, func(call ProgressCall) bool { return call.Tool == c.HasToolCall }), nil
	case c.Func != "":
		f := s.cfg.StopWhen[c.Func]
		if f == nil {
			return false, fmt.Errorf("this planner has no function %q", c.Func)
		}
		return f(ctx, p)
	default:
		return s.holds(ctx, c.When, p)
	}
}

// holds reports whether an expression is true of a run.
func (s *Service) holds(ctx context.Context, expr string, p Progress) (bool, error) {
	program, err := s.exprs.Get(expr)
	if err != nil {
		return false, err
	}
	in, err := p.input()
	if err != nil {
		return false, err
	}
	return program.Eval(ctx, in)
}

// prepared is what changes for the next turn.
func (s *Service) prepared(ctx context.Context, st *events.State, def *definition) (events.StepChange, *events.Error) {
	var all events.StepChange
	if len(def.agent.PrepareStep) == 0 {
		return all, nil
	}
	p := progressOf(st)
	for i, c := range def.agent.PrepareStep {
		change, err := s.preparedBy(ctx, c, p, def)
		if err != nil {
			return all, events.Errorf(events.CodeInvalidDefinition, "prepareStep[%d] of agent %s: %v", i, st.AgentID, err)
		}
		if change.Instructions != nil && c.Func == "" {
			told, err := events.RenderInstructions(*change.Instructions, st.RequestContext)
			if err != nil {
				return all, events.Errorf(events.CodeInvalidDefinition, "prepareStep[%d] of agent %s: instructions: %v", i, st.AgentID, err)
			}
			change.Instructions = &told
		}
		all = all.Over(change)
	}
	return all, nil
}

func (s *Service) preparedBy(ctx context.Context, c events.StepChange, p Progress, def *definition) (events.StepChange, error) {
	switch {
	case c.Func != "":
		f := s.cfg.PrepareStep[c.Func]
		if f == nil {
			return c, fmt.Errorf("this planner has no function %q", c.Func)
		}
		change, err := f(ctx, p)
		if err != nil {
			return c, err
		}
		for _, text := range change.Check(def.keys()) {
			return c, fmt.Errorf("the function %q: %s", c.Func, text)
		}
		return change, nil
	case c.When == "":
		return c, nil
	}
	yes, err := s.holds(ctx, c.When, p)
	if err != nil || !yes {
		return events.StepChange{}, err
	}
	return c, nil
}

// keys are those of the run's tools.
func (d *definition) keys() []string {
	keys := make([]string, 0, len(d.tools))
	for key := range d.tools {
		keys = append(keys, key)
	}
	return keys
}

// changed is the state of a run as its next turn sees it. No change gives it tools that the run does not have.
func changed(st *events.State, def *definition, change events.StepChange) *events.State {
	now := *st
	now.Options.Model = cmp.Or(change.Model, st.Options.Model)
	now.Options.ToolChoice = cmp.Or(change.ToolChoice, st.Options.ToolChoice)
	if change.Instructions != nil {
		now.Options.Instructions = change.Instructions
	}
	if change.ActiveTools != nil {
		active := slices.Clone(*change.ActiveTools)
		if all := toolsearch.Active(st, def.agent); all != nil {
			active = slices.DeleteFunc(active, func(key string) bool { return !slices.Contains(*all, key) })
		}
		now.Options.ActiveTools = &active
	}
	return &now
}

// withhold marks the calls of tools that the turn was not given, though the run has them.
func withhold(calls []events.CallPlanned, now, run *events.State, def *definition) {
	given, all := toolsearch.Active(now, def.agent), toolsearch.Active(run, def.agent)
	if given == all {
		return
	}
	for i := range calls {
		calls[i].Withheld = !slices.Contains(*given, calls[i].ToolName)
	}
}

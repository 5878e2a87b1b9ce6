package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/planner"
)

// stepper is an agent with the tools find and submit, and more.
func stepper(more func(*events.AgentDef)) Options {
	def := events.AgentDef{ID: "support", Model: "scripted/x", Tools: map[string]string{"find": "find", "submit": "submit"}}
	more(&def)
	return Options{Agent: def}
}

func stepTools() []agent.Tool {
	return []agent.Tool{echo("find", anything, agent.ToolOptions{}), echo("submit", anything, agent.ToolOptions{})}
}

// finds is a turn that calls the tool find.
func finds() agenttest.Step { return asks(callTo("find", `{"n":1}`)) }

// TestB13_3_StopConditions are looked at when a run would go on, and any true one ends it: its calls are over by then. One that
// cannot be looked at fails the run.
func TestB13_3_StopConditions(t *testing.T) {
	functions := map[string]planner.StopFunc{
		"second": func(_ context.Context, p planner.Progress) (bool, error) { return len(p.Steps) == 2, nil },
		"broken": func(context.Context, planner.Progress) (bool, error) { return false, errors.New("no budget service") },
	}
	for name, test := range map[string]struct {
		stop events.StopCondition
		want string
	}{
		"count":              {events.StopCondition{StepCount: 2}, "2 completed tool-calls stopWhen"},
		"call":               {events.StopCondition{HasToolCall: "submit"}, "3 completed tool-calls stopWhen"},
		"tokens":             {events.StopCondition{MaxTokens: 16}, "2 completed tool-calls stopWhen"},
		"expression":         {events.StopCondition{When: `run.steps.exists(s, s.calls.exists(c, c.tool == "submit" && c.args.n == 7))`}, "3 completed tool-calls stopWhen"},
		"function":           {events.StopCondition{Func: "second"}, "2 completed tool-calls stopWhen"},
		"never":              {events.StopCondition{StepCount: 9}, "4 completed stop "},
		"broken expression":  {events.StopCondition{When: `context.missing`}, "1 failed error  invalid_definition"},
		"broken function":    {events.StopCondition{Func: "broken"}, "1 failed error  invalid_definition"},
		"function not there": {events.StopCondition{Func: "nobody"}, "1 failed error  invalid_definition"},
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				o := stepper(func(d *events.AgentDef) { d.StopWhen = []events.StopCondition{{StepCount: 100}, test.stop} })
				o.Plan = func(c *planner.Config) { c.StopWhen = functions }
				b := newBench(t, o, stepTools(), finds(), finds(), asks(callTo("submit", `{"n":7}`)), agenttest.Say("done"))
				b.StartAll()
				run := b.Request("go")
				end := b.AwaitEnd(run, moment)
				got := strings.Join([]string{string(rune('0' + len(b.model.Requests()))), string(end.Outcome), end.FinishReason, end.Limit}, " ")
				if end.Error != nil {
					got += " " + string(end.Error.Code)
				}
				equal(t, "end", got, test.want)
				b.Check(true)
			})
		})
	}
}

// TestB13_6_B13_4_PreparedSteps: what changes, changes for one turn only. A tool that the turn was not given is unknown when it is
// called all the same; no change gives a turn what the run does not have.
func TestB13_6_B13_4_PreparedSteps(t *testing.T) {
	inCase(t, func(t *testing.T) {
		o := stepper(func(d *events.AgentDef) {
			d.Instructions = "Be kind."
			d.PrepareStep = []events.StepChange{
				{When: `run.step == 0`, ActiveTools: &[]string{"find"}, Instructions: new("Look first."), ToolChoice: "required", Model: "scripted/first"},
				{Func: "last"},
			}
		})
		last := func(_ context.Context, p planner.Progress) (events.StepChange, error) {
			if p.Step < 2 {
				return events.StepChange{}, nil
			}
			return events.StepChange{ToolChoice: "none", Model: "scripted/last"}, nil
		}
		o.Plan = func(c *planner.Config) { c.PrepareStep = map[string]planner.StepFunc{"last": last} }
		b := newBench(t, o, stepTools(), asks(callTo("find", `{}`), callTo("submit", `{"n":1}`)), asks(callTo("submit", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.completed(run)
		var got []string
		for _, r := range b.model.Requests() {
			var names []string
			for _, tool := range r.Tools {
				names = append(names, tool.Name)
			}
			got = append(got, strings.Join([]string{r.Model, r.Instructions, r.ToolChoice, strings.Join(names, "+")}, "|"))
		}
		equal(t, "turns", got, []string{
			"scripted/first|Look first.|required|find", "scripted/x|Be kind.|auto|find+submit", "scripted/last|Be kind.|none|",
		})
		equal(t, "the tool that was not given", string(b.result(b.call(run, 1, 2)).Outcome), string(events.OutcomeUnknown))
		equal(t, "runs", b.given("submit"), []string{`{"n":2}`})
	})
}

// TestB13_6_WhatCannotBePrepared fails the run before a model is asked.
func TestB13_6_WhatCannotBePrepared(t *testing.T) {
	for name, change := range map[string]events.StepChange{
		"expression": {When: `context.missing == 1`}, "nobody": {Func: "nobody"}, "wrong": {Func: "wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				o := stepper(func(d *events.AgentDef) { d.PrepareStep = []events.StepChange{change} })
				wrong := func(context.Context, planner.Progress) (events.StepChange, error) {
					return events.StepChange{ActiveTools: &[]string{"delete_everything"}}, nil
				}
				o.Plan = func(c *planner.Config) { c.PrepareStep = map[string]planner.StepFunc{"wrong": wrong} }
				b := newBench(t, o, stepTools())
				b.StartAll()
				end := b.AwaitEnd(b.Request("go"), moment)
				if end.Error == nil || end.Error.Code != events.CodeInvalidDefinition || !strings.Contains(end.Error.Message, "prepareStep[0]") {
					t.Errorf("the run ended as %+v", end)
				}
				equal(t, "turns", len(b.model.Requests()), 0)
			})
		})
	}
}

// TestB13_10_InstructionsFromTheContext: the agent's instructions are a template over the request context; a request's own are
// not, and a context without what they need refuses the start.
func TestB13_10_InstructionsFromTheContext(t *testing.T) {
	inCase(t, func(t *testing.T) {
		o := stepper(func(d *events.AgentDef) {
			d.Instructions = `You help {{.tenant}}.{{if .vip}} At once.{{end}}`
		})
		b := newBench(t, o, stepTools(), agenttest.Say("done"), agenttest.Say("done"), agenttest.Say("done"))
		ear := b.ears("weir.default.note.bob.>")
		b.StartAll()
		request := func(context string, instructions *string) string {
			run := events.NewID(time.Now())
			b.RequestAs("bob", events.RunRequested{
				AgentID: "support", RunID: run, RequestContext: RawJSON(context), Instructions: instructions,
				Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			})
			return run
		}
		b.completed(request(`{"tenant":"acme & sons","vip":true}`, nil))
		b.completed(request(`{"tenant":"acme","vip":false}`, nil))
		b.completed(request(`{}`, new("Literally {{.tenant}}.")))
		request(`{"vip":true}`, nil)
		b.pause(2 * time.Second)
		var told []string
		for _, r := range b.model.Requests() {
			told = append(told, r.Instructions)
		}
		equal(t, "told", told, []string{"You help acme & sons. At once.", "You help acme.", "Literally {{.tenant}}."})
		if heard := ear.all(); len(heard) != 1 || !strings.Contains(heard[0], "invalid_request") || !strings.Contains(heard[0], "tenant") {
			t.Errorf("the refusal says %v", heard)
		}
	})
}

// TestB13_2_Cost: what the turns cost, those of sub-agents and of a model that makes the value included, ends the run once it is
// what the run may cost; its calls are over by then. Without a price nothing is counted, and nothing is bounded.
func TestB13_2_Cost(t *testing.T) {
	for name, test := range map[string]struct {
		price *events.Price
		want  string
	}{
		"priced":    {&events.Price{Input: 3, Output: 15}, "2 completed other cost 210"}, // 10 in, 5 out: 105 each
		"dear":      {&events.Price{Input: 300, Output: 15}, "1 completed other cost 3075"},
		"cheap":     {&events.Price{Input: 0.01, Output: 0.01}, "4 completed stop  4"},
		"not known": {nil, "4 completed stop  0"},
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				o := stepper(func(d *events.AgentDef) { d.Limits = &events.Limits{Cost: 0.0002} })
				o.Price = test.price
				b := newBench(t, o, stepTools(), finds(), asks(callTo("submit", `{"n":1}`)), asks(callTo("find", `{"n":2}`)), agenttest.Say("done"))
				b.StartAll()
				run := b.Request("go")
				end := b.AwaitEnd(run, moment)
				equal(t, "end", fmt.Sprintf("%d %s %s %s %d", len(b.model.Requests()), end.Outcome, end.FinishReason, end.Limit, end.Usage.CostMicros),
					test.want)
				b.Check(true)
			})
		})
	}
}

package sim

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

// place is what the client tool of these tests finds, in a browser say.
type place struct {
	City string `json:"city"`
}

// locate is a client tool of an agent.
func locate(o *agent.ToolOptions) agent.Tool {
	return agent.NewClientTool[struct {
		Precision int `json:"precision" jsonschema:"minimum=1"`
	}, place]("locate", "Where the user is", o)
}

// withResult answers a call with a result.
func withResult(raw string) func(*events.DecisionRequested) {
	return func(d *events.DecisionRequested) { d.Result = json.RawMessage(raw) }
}

// bring asks for a run with client tools, as bob.
func (b *bench) bring(tools map[string]events.ClientTool, more func(*events.RunRequested)) string {
	b.T.Helper()
	r := events.RunRequested{
		AgentID: b.opts.Agent.ID, RunID: events.NewID(time.Now()), ClientTools: tools,
		Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
	}
	if more != nil {
		more(&r)
	}
	b.RequestAs("bob", r)
	return r.RunID
}

func paint() events.ClientTool {
	return events.ClientTool{
		Description:  "Paints the page",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{"color":{"type":"string"}},"required":["color"]}`),
		OutputSchema: json.RawMessage(`{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}`),
	}
}

// TestB20_1_B20_3_B20_4_B8_1_B8_6_TheClientAnswersItsTool: a call of a client tool of the agent is checked, held for who asked for
// the run, and answered by that one alone, with a result that fits; its sibling runs meanwhile.
func TestB20_1_B20_3_B20_4_B8_1_B8_6_TheClientAnswersItsTool(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newPreviews(t, Options{}, []agent.Tool{locate(nil), echo("look", anything, agent.ToolOptions{})},
			asks(callTo("locate", `{"precision":2}`), callTo("look", `{"n":1}`), callTo("locate", `{"precision":0}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		ask := b.AwaitAsk(call, moment)
		equal(t, "kind", ask.Kind, events.AskClient)
		equal(t, "round", ask.Round, 0)
		equal(t, "takes", len(ask.Allowed), 2)
		equal(t, "the sibling", b.result(b.call(run, 1, 2)).Outcome, events.OutcomeOK)
		equal(t, "wrong arguments", b.result(b.call(run, 1, 3)).Outcome, events.OutcomeInvalid)

		for _, wrong := range []struct {
			who  string
			d    events.Decision
			more func(*events.DecisionRequested)
			code events.Code
		}{
			{"alice", events.Respond, withResult(`{"city":"Bern"}`), events.CodeForbidden},
			{"alice", events.Decline, nil, events.CodeForbidden},
			{"bob", events.Approve, nil, events.CodeWrongKind},
			{"bob", events.Respond, nil, events.CodeInvalidData},
			{"bob", events.Respond, withResult(`{"city":7}`), events.CodeInvalidData},
			{"bob", events.Respond, func(d *events.DecisionRequested) {
				d.Result, d.ModelOutput = json.RawMessage(`{"city":"Bern"}`), &events.ModelOutput{Type: events.OutputText, Value: json.RawMessage(`7`)}
			}, events.CodeInvalidData},
		} {
			equal(t, "the refusal", b.refusal(call, b.send(wrong.who, wrong.d, call, wrong.more)).Code, wrong.code)
			equal(t, "the call", b.last(call), events.KindAsk)
		}
		b.send("bob", events.Respond, call, withResult(`{"city":"Bern"}`))
		got := b.result(call)
		equal(t, "outcome", got.Outcome, events.OutcomeResponded)
		equal(t, "started", got.Started, false)
		b.completed(run)
		equal(t, "told", b.told()[0], `locate json {"city":"Bern"}`)
		shown := chunk[events.ToolCallPayload](b, run, events.ChunkToolCall, call)
		equal(t, "the call's chunk", string(shown.Args), `{"precision":2}`)
		asked := chunk[events.AskPayload](b, run, events.ChunkToolCallSuspended, call)
		equal(t, "the ask's chunk", asked.Ask.Kind, events.AskClient)
	})
}

// TestB4_7_B20_4_TheClientSaysWhatTheModelIsTold: what the client sends counts; else the program of the agent's tool makes it of
// the answer, and one that fails leaves the answer as it is. A decline is never mapped.
func TestB4_7_B20_4_TheClientSaysWhatTheModelIsTold(t *testing.T) {
	inCase(t, func(t *testing.T) {
		program := agent.MapOutputJQ(`if .city == "Nowhere" then error("x") else {type: "text", value: ("in " + .city)} end`)
		c := callTo("locate", `{"precision":2}`)
		b := newPreviews(t, Options{}, []agent.Tool{locate(&agent.ToolOptions{ToModelOutput: program})}, asks(c, c, c, c), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.send("bob", events.Respond, b.call(run, 1, 1), withResult(`{"city":"Bern"}`))
		b.send("bob", events.Respond, b.call(run, 1, 2), func(d *events.DecisionRequested) {
			d.Result, d.ModelOutput = json.RawMessage(`{"city":"Basel"}`), agent.TextOutput("by the Rhine")
		})
		b.send("bob", events.Respond, b.call(run, 1, 3), withResult(`{"city":"Nowhere"}`))
		b.send("bob", events.Decline, b.call(run, 1, 4), because("no permission"))
		b.completed(run)
		for i, want := range []string{
			`locate text "in Bern"`, `locate text "by the Rhine"`, `locate json {"city":"Nowhere"}`, `locate text "no permission"`,
		} {
			equal(t, "told", b.told()[i], want)
		}
		equal(t, "the record", string(b.result(b.call(run, 1, 2)).Result), `{"city":"Basel"}`)
		warned := chunk[events.WarningPayload](b, run, events.ChunkWarning, b.call(run, 1, 3))
		equal(t, "warning", warned.Code, "model_output_failed")
	})
}

// TestB20_1_B20_3_ToolsOfARequest: tools that the request brings are called and held like those of the agent; one in the place of
// a tool of the agent is told of. They survive a restart of everything.
func TestB20_1_B20_3_ToolsOfARequest(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("look", anything, agent.ToolOptions{})},
			asks(callTo("paint", `{"color":"red"}`), callTo("look", `{}`), callTo("paint", `{}`)), asks(callTo("paint", `{"color":"blue"}`)),
			agenttest.Say("done"))
		copies := b.StartAll()
		look := paint()
		look.InputSchema = nil
		run := b.bring(map[string]events.ClientTool{"paint": paint(), "look": look}, nil)
		call := b.call(run, 1, 1)
		ask := b.AwaitAsk(call, moment)
		equal(t, "id", ask.ToolID, "client:paint")
		equal(t, "kind of the replaced tool", b.AwaitAsk(b.call(run, 1, 2), moment).Kind, events.AskClient)
		equal(t, "wrong arguments", b.result(b.call(run, 1, 3)).Outcome, events.OutcomeInvalid)
		for _, c := range copies {
			c.Kill()
		}
		b.StartAll()
		b.send("bob", events.Respond, call, withResult(`{"ok":true}`))
		b.send("bob", events.Respond, b.call(run, 1, 2), withResult(`{"ok":false}`))
		b.send("bob", events.Respond, b.call(run, 2, 1), withResult(`{"ok":true}`))
		b.completed(run)
		equal(t, "the tool of the agent ran", len(b.given("look")), 0)
		first := b.model.Requests()[0]
		var names []string
		for _, tool := range first.Tools {
			names = append(names, tool.Name+": "+tool.Description)
		}
		equal(t, "the model's tools", strings.Join(names, ", "), "look: Paints the page, paint: Paints the page")
		var warned []string
		for _, c := range b.chunks(run) {
			if c.Type == events.ChunkWarning {
				warned = append(warned, string(c.Payload))
			}
		}
		if len(warned) != 1 || !strings.Contains(warned[0], `"tool_replaced"`) || !strings.Contains(warned[0], `look`) {
			t.Errorf("warnings %q, want one about look", warned)
		}
	})
}

// TestB7_12_B20_4_RulesHoldClientToolsToo: requireToolApproval does not hold a client tool. A rule does, or blocks it; what people
// approve is then held for the client, in the next round, with the bytes that they saw, and a grant is not to be had for it.
func TestB7_12_B20_4_RulesHoldClientToolsToo(t *testing.T) {
	inCase(t, func(t *testing.T) {
		rules := map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{
			{Name: "blocked", When: `tool.source.kind == "client" && "color" in args && args.color == "black"`, Action: events.RuleBlock},
			{Name: "held", When: `"color" in args && args.color == "red"`, Action: events.RuleAsk, NotRequester: true},
		}}}
		b := newBench(t, Options{Rules: rules}, []agent.Tool{echo("look", anything, agent.ToolOptions{})},
			asks(callTo("paint", `{"color":"blue"}`), callTo("paint", `{"color":"red"}`), callTo("paint", `{"color":"black"}`),
				callTo("paint", `{"color":"red"}`), callTo("paint", `{"color":"red"}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.bring(map[string]events.ClientTool{"paint": paint()}, func(r *events.RunRequested) { r.RequireToolApproval = &events.Approval{Always: true} })
		equal(t, "the kind at once", b.AwaitAsk(b.call(run, 1, 1), moment).Kind, events.AskClient)
		equal(t, "blocked", b.result(b.call(run, 1, 3)).Outcome, events.OutcomeBlocked)
		held := b.call(run, 1, 2)
		equal(t, "the kind first", b.AwaitAsk(held, moment).Kind, events.AskApproval)
		equal(t, "the requester", b.refusal(held, b.send("bob", events.Approve, held, nil)).Code, events.CodeForbidden)
		granting := func(d *events.DecisionRequested) {
			d.Grant = &events.GrantTerms{Scope: events.ScopeRun, For: events.Duration(time.Hour)}
		}
		equal(t, "a grant", b.refusal(held, b.send("alice", events.Approve, held, granting)).Code, events.CodeInvalidRequest)
		b.send("alice", events.Approve, held, nil)
		ask := b.awaitRound(held, 1)
		equal(t, "the kind then", ask.Kind, events.AskClient)
		equal(t, "the bytes", string(ask.Args), `{"color":"red"}`)

		edited := b.call(run, 1, 4)
		b.send("alice", events.Edit, edited, func(d *events.DecisionRequested) { d.Args = json.RawMessage(`{"color":"green"}`) })
		equal(t, "the edited call", string(b.awaitRound(edited, 1).Args), `{"color":"green"}`)
		b.send("alice", events.Decline, b.call(run, 1, 5), nil)
		for _, call := range []events.CallID{b.call(run, 1, 1), held, edited} {
			b.send("bob", events.Respond, call, withResult(`{"ok":true}`))
		}
		b.completed(run)
		equal(t, "outcome", b.result(held).Outcome, events.OutcomeResponded)
		equal(t, "by", b.result(held).Principal, "bob")
	})
}

// TestB20_5_AnUnansweredClientCallExpires: as any ask, by the time of the tool.
func TestB20_5_AnUnansweredClientCallExpires(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("look", anything, agent.ToolOptions{})}, asks(callTo("paint", `{"color":"blue"}`)), agenttest.Say("done"))
		b.StartAll()
		tool := paint()
		tool.Expires = events.Duration(20 * time.Second)
		run := b.bring(map[string]events.ClientTool{"paint": tool}, nil)
		equal(t, "outcome", b.result(b.call(run, 1, 1)).Outcome, events.OutcomeExpired)
		b.completed(run)
	})
}

// TestB20_4_WhatTheModelIsToldOfSecretsIsNotShown: an answer is read by more people than the log is.
func TestB20_4_WhatTheModelIsToldOfSecretsIsNotShown(t *testing.T) {
	inCase(t, func(t *testing.T) {
		tool := paint()
		tool.OutputSchema = json.RawMessage(`{"type":"object","properties":{"key":{"type":"string","writeOnly":true}},"required":["key"]}`)
		b := newBench(t, Options{}, []agent.Tool{echo("look", anything, agent.ToolOptions{})}, asks(callTo("paint", `{"color":"blue"}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.bring(map[string]events.ClientTool{"paint": tool}, nil)
		call := b.call(run, 1, 1)
		b.send("bob", events.Respond, call, func(d *events.DecisionRequested) {
			d.Result, d.ModelOutput = json.RawMessage(`{"key":"`+canary+`"}`), agent.TextOutput("the key is "+canary)
		})
		b.completed(run)
		answer := b.Await(b.Conn().Namespace().Call(call, events.KindAnswer), moment)
		if strings.Contains(string(answer.Payload), canary) {
			t.Errorf("the answer shows what is secret: %s", answer.Payload)
		}
		equal(t, "told", b.told()[0], `paint text "the key is `+canary+`"`)
	})
}

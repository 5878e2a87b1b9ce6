package sim

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

const personSchema = `{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name"]}`

// asked is a request of bob's for a value.
func asked(b *bench, s events.StructuredOutput) string {
	run := events.NewID(time.Now())
	b.RequestAs("bob", events.RunRequested{
		AgentID: "support", RunID: run, StructuredOutput: &s, Messages: events.Prompt{events.TextMessage(events.RoleUser, "who?")},
	})
	return run
}

func person() events.StructuredOutput {
	return events.StructuredOutput{Schema: json.RawMessage(personSchema)}
}

// TestB13_11_B14_12_B14_22_AValueThatFits: the value so far is shown while the model writes it, the one that counts before the
// step ends; calls are held and run as in any run, also when every service is another by then. A null at an optional field, which
// some providers demand, is no value.
func TestB13_11_B14_12_B14_22_AValueThatFits(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("find", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("find", `{"n":1}`)), agenttest.Say("```json\n{\"name\": \"Ada Lovelace\", \"age\": null}\n```"))
		copies := b.StartAll()
		run := asked(b, person())
		call := b.call(run, 1, 1)
		b.AwaitAsk(call, moment)
		for _, c := range copies {
			b.must(c.Stop())
		}
		b.StartAll()
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		end := b.AwaitEnd(run, moment)
		equal(t, "value", string(end.Object), `{"name":"Ada Lovelace"}`)
		equal(t, "fallback", end.UsedFallback, false)
		var shown, types []string
		for _, c := range b.chunks(run) {
			types = append(types, string(c.Type))
			if c.Type == events.ChunkObject || c.Type == events.ChunkObjectResult {
				shown = append(shown, string(c.Type)+" "+string(c.Payload))
			}
		}
		equal(t, "shown", shown, []string{`object {"name": "Ada Lo"}`, `object {"name": "Ada Lovelace", "age": null}`, `object-result {"name":"Ada Lovelace"}`})
		if all := strings.Join(types, " "); !strings.HasSuffix(all, "text-end object-result step-finish finish") {
			t.Errorf("chunks are %s", all)
		}
		for i, r := range b.model.Requests() {
			if string(r.OutputSchema) != personSchema {
				t.Errorf("turn %d is asked for %s", i+1, r.OutputSchema)
			}
		}
	})
}

// TestB13_11_ErrorStrategies: a value that does not fit fails the run, or leaves it without, or with the fallback value; readers
// are warned. The agent's word counts where the request has none.
func TestB13_11_ErrorStrategies(t *testing.T) {
	for strategy, want := range map[events.ErrorStrategy]string{
		"":                   "failed structured_output_invalid  false",
		events.ErrorStrict:   "failed structured_output_invalid  false",
		events.ErrorWarn:     "completed   false warned",
		events.ErrorFallback: `completed  {"name":"nobody"} true warned`,
	} {
		t.Run("strategy "+string(strategy), func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				s := person()
				s.ErrorStrategy = strategy
				if strategy == events.ErrorFallback {
					s.FallbackValue = json.RawMessage(`{"name":"nobody"}`)
				}
				b := newBench(t, Options{Agent: events.AgentDef{ID: "support", Model: "scripted/x", StructuredOutput: &s}}, nil,
					agenttest.Say(`{"name":7}`))
				b.StartAll()
				run := b.Request("who?")
				end := b.AwaitEnd(run, moment)
				code := ""
				if end.Error != nil {
					code = string(end.Error.Code)
				}
				got := strings.Join([]string{string(end.Outcome), code, string(end.Object), map[bool]string{true: "true", false: "false"}[end.UsedFallback]}, " ")
				for _, c := range b.chunks(run) {
					if c.Type == events.ChunkWarning {
						got += " warned"
					}
				}
				equal(t, "end", got, want)
				equal(t, "usage", end.Usage.TotalTokens, 15)
				b.Check(true)
			})
		})
	}
}

// TestB13_11_AModelOfItsOwn makes the value of what the agent's model has said, which is not asked for it. What it takes counts;
// a failing one is asked again, and then the strategy decides.
func TestB13_11_AModelOfItsOwn(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, nil, agenttest.Say("It was Ada."), agenttest.Step{Err: &agent.ModelError{Retryable: true, Status: 529}},
			agenttest.Say(`{"name":"Ada"}`))
		b.StartAll()
		s := person()
		s.Model = "scripted/small"
		run := asked(b, s)
		b.completed(run)
		end := b.AwaitEnd(run, moment)
		equal(t, "value", string(end.Object), `{"name":"Ada"}`)
		equal(t, "text", end.Message.Text(), "It was Ada.")
		equal(t, "usage", end.Usage.TotalTokens, 30)
		requests := b.model.Requests()
		equal(t, "requests", len(requests), 3)
		equal(t, "the agent's model is asked for", string(requests[0].OutputSchema), "")
		last := requests[2]
		equal(t, "the other", last.Model+" "+string(last.OutputSchema)+" "+last.Messages[0].Text(), "scripted/small "+personSchema+" It was Ada.")
		equal(t, "its tools", len(last.Tools), 0)
	})
}

// TestB13_11_AValueOutlastsHeldTasks: a run that has said its last words, and waits for a background call, keeps its value.
func TestB13_11_AValueOutlastsHeldTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{calls("pay", order42), says(`{"name":"Ada"}`)}}
		s := person()
		w := New(t, Options{
			Agent: events.AgentDef{
				ID: "support", Model: "scripted/x", Tools: map[string]string{"pay": "pay"}, StructuredOutput: &s, Limits: &events.Limits{Steps: 2},
			}, Model: m,
			Tools: []agent.Tool{lasting("pay", time.Second, agent.ToolOptions{RequireApproval: agent.Always(), Background: inBackground})},
		})
		w.StartAll()
		run := w.Request("go")
		ask := w.AwaitAsk(events.CallID{Run: run, Step: 1, Index: 1}, time.Minute)
		awaitChunk(w, run, events.ChunkSuspended)
		decideBy(w, ask, events.Decline, "")
		end := w.AwaitEnd(run, time.Minute)
		if end.Outcome != events.RunCompleted || string(end.Object) != `{"name":"Ada"}` {
			t.Errorf("the run ended as %+v", end)
		}
		w.Check(true)
	})
}

// TestB13_11_OptionsThatCannotBeHonoured refuse the start, with what is wrong.
func TestB13_11_OptionsThatCannotBeHonoured(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, nil)
		ear := b.ears("weir.default.note.bob.>")
		b.StartAll()
		unsaid := person()
		unsaid.ErrorStrategy = events.ErrorFallback
		want := []string{"structuredOutput.schema", "structuredOutput.fallbackValue"}
		for i, r := range []events.RunRequested{
			{StructuredOutput: &events.StructuredOutput{Schema: json.RawMessage(`{"$ref":"https://example.com/x"}`)}}, {StructuredOutput: &unsaid},
		} {
			r.AgentID, r.RunID = "support", "r"+string(rune('0'+i))
			r.Messages = events.Prompt{events.TextMessage(events.RoleUser, "go")}
			b.RequestAs("bob", r)
		}
		b.pause(2 * time.Second)
		heard := ear.all()
		equal(t, "refusals", len(heard), len(want))
		all := strings.Join(heard, "\n")
		for _, text := range want {
			if !strings.Contains(all, text) {
				t.Errorf("no refusal says %q:\n%s", text, all)
			}
		}
	})
}

// TestB13_8_SettingsOfARun win over the agent's by name, those of providers by provider and name, and last.
func TestB13_8_SettingsOfARun(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{Agent: events.AgentDef{
			ID: "support", Model: "scripted/x", Tools: map[string]string{"find": "find"}, ModelSettings: json.RawMessage(`{"temperature":1,"topP":0.5}`),
			ProviderOptions: json.RawMessage(`{"openai":{"a":1,"b":2},"google":{"c":3}}`),
		}}, []agent.Tool{echo("find", anything, agent.ToolOptions{})}, asks(callTo("find", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := events.NewID(time.Now())
		b.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: run, Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			ModelSettings: json.RawMessage(`{"temperature":0}`), ProviderOptions: json.RawMessage(`{"openai":{"b":7},"xai":{"d":4}}`),
		})
		b.completed(run)
		for _, r := range b.model.Requests() {
			equal(t, "settings", string(r.Settings), `{"temperature":0,"topP":0.5}`)
			equal(t, "provider options", string(r.ProviderOptions), `{"google":{"c":3},"openai":{"a":1,"b":7},"xai":{"d":4}}`)
		}
	})
}

package sim

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

// finder is an agent whose model finds these tools; more changes it.
func finder(more func(*events.AgentDef), tools ...string) Options {
	def := events.AgentDef{
		ID: "support", Model: "scripted/x", Limits: &events.Limits{Steps: 12}, ToolSearch: &events.ToolSearch{Tools: map[string]string{}},
	}
	for _, id := range tools {
		def.ToolSearch.Tools[id] = id
	}
	if more != nil {
		more(&def)
	}
	return Options{Agent: def}
}

func search(query string) agenttest.ToolCall {
	return callTo("search_tools", `{"query":"`+query+`"}`)
}

func load(name string) agenttest.ToolCall {
	return callTo("load_tool", `{"toolName":"`+name+`"}`)
}

// offered are the names of the tools in each request to the model.
func (b *bench) offered() []string {
	var all []string
	for _, r := range b.model.Requests() {
		var names []string
		for _, t := range r.Tools {
			names = append(names, t.Name)
		}
		all = append(all, strings.Join(names, " "))
	}
	return all
}

// TestCase_GATE_1_B17_1_B17_2 is the given case GATE-1: a tool that needs approval is only to be found. The model finds and
// loads it, and calls it; it is asked about, and runs once it is approved.
func TestCase_GATE_1_B17_1_B17_2(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, finder(nil, "pay", "lookup"), []agent.Tool{
			echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()}), echo("lookup", anything, agent.ToolOptions{}),
		}, asks(search("pay something")), asks(load("pay")), asks(callTo("pay", `{"n":1}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 3, 1)
		ask := b.AwaitAsk(call, moment)
		equal(t, "the ask", string(ask.Kind)+" "+ask.ToolID, "approval pay")
		equal(t, "executions before the decision", len(b.given("pay")), 0)
		equal(t, "the search", string(b.result(b.call(run, 1, 1)).Result),
			`{"results":[{"name":"pay","description":"The tool pay","score":2.08}],`+
				`"message":"Found 1 tool(s). Call load_tool with the exact name to be able to use one."}`)
		equal(t, "the load", string(b.result(b.call(run, 2, 1)).Result),
			`{"success":true,"message":"Loaded: pay. Call it from your next turn on.","toolName":"pay"}`)
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		if shown := chunk[events.AskPayload](b, run, events.ChunkToolCallApproval, call); shown.ToolName != "pay" {
			t.Errorf("people are shown %+v", shown)
		}
		equal(t, "executions", b.given("pay"), []string{`{"n":1}`})
		equal(t, "what the model is offered", strings.Join(b.offered(), "\n"),
			"load_tool search_tools\nload_tool search_tools\nload_tool pay search_tools\nload_tool pay search_tools")
		if text := b.model.Requests()[0].Instructions; !strings.Contains(text, "search_tools") || strings.Contains(text, "pay") {
			t.Errorf("the model is told %q", text)
		}
	})
}

// TestB17_3_B17_4_LoadedFromTheNextStepOn: in the step that loads it a tool is not found, nor one that was never loaded. What
// is loaded is the same after a suspension and for services that were started since.
func TestB17_3_B17_4_LoadedFromTheNextStepOn(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, finder(func(d *events.AgentDef) { d.Tools = map[string]string{"hold": "hold"} }, "pay", "secret"), []agent.Tool{
			echo("pay", anything, agent.ToolOptions{}), echo("secret", anything, agent.ToolOptions{}),
			echo("hold", anything, agent.ToolOptions{RequireApproval: agent.Always()}),
		},
			asks(load("pay"), callTo("pay", `{"n":1}`)), asks(callTo("hold", `{}`), callTo("secret", `{}`)),
			asks(callTo("pay", `{"n":2}`)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 2, 1), moment)
		for _, call := range []events.CallID{b.call(run, 1, 2), b.call(run, 2, 2)} {
			d := b.result(call)
			if d.Outcome != events.OutcomeUnknown || d.Error == nil || d.Error.Name != events.ErrorToolNotFound || d.Started {
				t.Errorf("%s ended as %+v", call, d)
			}
		}
		equal(t, "what is told of tools that are not loaded", b.result(b.call(run, 2, 2)).Error.Message,
			`Tool "secret" is not available. Available tools: hold, load_tool, pay, search_tools`)
		for _, c := range copies {
			c.Kill()
		}
		b.StartAll()
		b.send("alice", events.Approve, b.call(run, 2, 1), nil)
		b.completed(run)
		equal(t, "executions of the loaded tool", b.given("pay"), []string{`{"n":2}`})
		equal(t, "executions of the other", len(b.given("secret")), 0)
		equal(t, "the last offer", b.offered()[3], "hold load_tool pay search_tools")
	})
}

// TestB17_5_LoadedToolsKeepTheirRules, schemas and hooks; what the filter hides is not found, loaded or called, though the
// model knows its name. What a run wants approved of all its calls does not hold searches, an operator's rule does.
func TestB17_5_LoadedToolsKeepTheirRules(t *testing.T) {
	inCase(t, func(t *testing.T) {
		o := finder(func(d *events.AgentDef) {
			d.ToolSearch.AutoLoad, d.ToolSearch.Filter = true, `tool.id != "admin" || context.staff`
			d.RequireToolApproval = agent.Always()
			d.Hooks = events.Hooks{"limit": {When: "tool.id == 'pay' && args.n > 10", Reason: "too much"}}
		}, "pay", "drop", "admin")
		o.Rules = map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{
			{Name: "never", Tools: []string{"drop"}, Action: events.RuleBlock, Reason: "nobody drops"},
			{Name: "loads", Tools: []string{"load_tool"}, Action: events.RuleAsk, Reason: "loads are looked at"},
		}}}
		b := newBench(t, o, []agent.Tool{
			echo("pay", `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`, agent.ToolOptions{}),
			echo("drop", anything, agent.ToolOptions{}), echo("admin", anything, agent.ToolOptions{}),
		},
			asks(search("pay admin"), load("drop")),
			asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":11}`), callTo("pay", `{}`), callTo("drop", `{}`), callTo("admin", `{}`)),
			agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		equal(t, "the reason of the ask", b.AwaitAsk(b.call(run, 1, 2), moment).Reason.Rule, "loads")
		b.send("alice", events.Approve, b.call(run, 1, 2), nil)
		b.AwaitAsk(b.call(run, 2, 1), moment)
		if found := string(b.result(b.call(run, 1, 1)).Result); strings.Contains(found, "admin") || !strings.Contains(found, "pay") {
			t.Errorf("the search found %s", found)
		}
		equal(t, "who let it be loaded", b.result(b.call(run, 1, 2)).Principal, "alice")
		b.send("alice", events.Approve, b.call(run, 2, 1), nil)
		b.completed(run)
		var outcomes []string
		for i := 1; i <= 5; i++ {
			outcomes = append(outcomes, string(b.result(b.call(run, 2, i)).Outcome))
		}
		equal(t, "outcomes", strings.Join(outcomes, " "), "ok blocked invalid blocked unknown")
		equal(t, "executions", b.given("pay"), []string{`{"n":1}`})
		equal(t, "executions of what is blocked or hidden", len(b.given("drop"))+len(b.given("admin")), 0)
	})
}

// TestB17_5_AFilterByContext shows a tool to the runs whose request context the filter is true for.
func TestB17_5_AFilterByContext(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, finder(func(d *events.AgentDef) { d.ToolSearch.Filter = `context.staff` }, "admin"),
			[]agent.Tool{echo("admin", anything, agent.ToolOptions{})},
			asks(load("admin")), asks(callTo("admin", `{}`)), agenttest.Say("done"))
		b.StartAll()
		b.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: "r1", RequestContext: json.RawMessage(`{"staff":true}`),
			Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
		})
		b.completed("r1")
		equal(t, "executions", len(b.given("admin")), 1)
	})
}

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
)

// team are the models of several agents, by the name under which each asks.
type team map[string]*agenttest.Model

func (m team) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	model := m[strings.TrimPrefix(req.Model, "scripted/")]
	if model == nil {
		return func(yield func(agent.ModelPart, error) bool) {
			yield(agent.ModelPart{}, fmt.Errorf("no model %q", req.Model))
		}
	}
	return model.Stream(ctx, req)
}

// crew makes agents that ask each for the model of its own id, and delegate to each other.
func crew(t *testing.T, tools []agent.Tool, scripts map[string][]agenttest.Step, agents ...events.AgentDef) (Options, team) {
	t.Helper()
	models := team{}
	for id, steps := range scripts {
		models[id] = agenttest.NewModel(t, steps...)
	}
	for i := range agents {
		agents[i].Model = "scripted/" + agents[i].ID
	}
	return Options{Tools: tools, Model: models, Agent: agents[0], Agents: agents[1:]}, models
}

// prompted is a call that delegates.
func prompted(key, prompt string) agenttest.ToolCall {
	raw, _ := json.Marshal(prompt) // a string always encodes
	return callTo(events.AgentPrefix+key, `{"prompt":`+string(raw)+`}`)
}

// TestB12_Story delegates to a sub-agent whose tool is held: the ask is listed at the root with the leaf's tool, arguments
// and path, and is decided by the leaf's id; the supervisor's model reads the answer of its sub-agent. (B12.1, B12.3, B12.4,
// B12.7, B12.10, B12.12)
func TestB12_1_B12_3_B12_4_B12_7_B12_12_Story(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, models := crew(t, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})}, map[string][]agenttest.Step{
			"boss":  {asks(prompted("clerk", "Pay order 42")), agenttest.Say("All done.")},
			"clerk": {asks(callTo("pay", `{"n":42}`)), agenttest.Say("Paid.")},
		}, events.AgentDef{ID: "boss", Instructions: "top secret", Agents: map[string]string{"clerk": "clerk"}},
			events.AgentDef{ID: "clerk", Description: "Pays orders", Instructions: "Pay.", Tools: map[string]string{"pay": "pay"}})
		w := New(t, o)
		w.StartAll()
		run := w.Request("Please pay")
		delegated := events.CallID{Run: run, Step: 1, Index: 1}
		leaf := events.CallID{Run: delegated.String(), Step: 1, Index: 1}
		ask := w.AwaitAsk(leaf, moment)
		equal(t, "tool", ask.ToolName, "pay")
		equal(t, "root", ask.RootRunID, run)
		equal(t, "path", fmt.Sprint(ask.Path), fmt.Sprint([]events.PathEntry{{AgentID: "boss", RunID: run}, {AgentID: "clerk", RunID: leaf.Run}}))
		synctest.Wait()
		for _, key := range []string{events.SuspendedKey("boss", "", "", run, run), events.SuspendedKey("clerk", "", "", run, leaf.Run)} {
			snap, _, err := w.Conn().Snapshot(t.Context(), key)
			if err != nil || len(snap.Asks) != 1 || snap.Asks[0].ToolCallID != leaf.String() {
				t.Errorf("entry %s: %+v, %v", key, snap, err)
			}
		}
		w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: leaf.String()})
		end := w.AwaitEnd(run, moment)
		equal(t, "end", end.Message.Text(), "All done.")
		child := w.AwaitEnd(leaf.Run, moment)
		equal(t, "child's usage in the parent's", end.Usage.TotalTokens, 30+child.Usage.TotalTokens)
		equal(t, "asked of the clerk", len(models["clerk"].Requests()), 2)
		equal(t, "the clerk's instructions", models["clerk"].Requests()[0].Instructions, "Pay.")
		equal(t, "offered", models["boss"].Requests()[0].Tools[0].Description, "Pays orders")
		last := models["boss"].Requests()[1].Messages
		equal(t, "told", string(last[len(last)-1].Parts[0].Output.Value), `"Paid."`)
		settled(w)
	})
}

// tree is three levels: the boss delegates to two leads at once, each lead to a clerk, and each clerk pays twice in one turn.
func tree(t *testing.T, pay agent.Tool) (Options, team) {
	t.Helper()
	agents := []events.AgentDef{
		{ID: "boss", Agents: map[string]string{"east": "east", "west": "west"}},
		{ID: "east", Agents: map[string]string{"clerk": "eastclerk"}},
		{ID: "west", Agents: map[string]string{"clerk": "westclerk"}},
		{ID: "eastclerk", Tools: map[string]string{"pay": "pay"}},
		{ID: "westclerk", Tools: map[string]string{"pay": "pay"}},
	}
	scripts := map[string][]agenttest.Step{"boss": {asks(prompted("east", "pay"), prompted("west", "pay")), agenttest.Say("all")}}
	for _, side := range []string{"east", "west"} {
		scripts[side] = []agenttest.Step{asks(prompted("clerk", "pay")), agenttest.Say(side)}
		scripts[side+"clerk"] = []agenttest.Step{asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`)), agenttest.Say("paid")}
	}
	return crew(t, []agent.Tool{pay}, scripts, agents...)
}

// leaves are the held calls of a tree, in the order in which they are listed.
func leaves(run string) []events.CallID {
	var all []events.CallID
	for lead := range 2 {
		clerk := events.CallID{Run: events.CallID{Run: run, Step: 1, Index: lead + 1}.String(), Step: 1, Index: 1}.String()
		for i := range 2 {
			all = append(all, events.CallID{Run: clerk, Step: 1, Index: i + 1})
		}
	}
	return all
}

// settled lets the services clean up behind what has ended, and applies the log's invariants.
func settled(w *World) {
	w.T.Helper()
	time.Sleep(moment) // fake
	w.Check(true)
}

// unlisted demands that no run is listed as suspended.
func unlisted(w *World) {
	w.T.Helper()
	keys, err := w.Conn().ListSuspended(w.T.Context(), "", "", "")
	w.must(err)
	for _, key := range keys { // a deleted one may still be among them
		if _, err := w.Conn().Listed(w.T.Context(), key); !errors.Is(err, jetstream.ErrNotFound) {
			w.T.Errorf("still listed: %s (%v)", key, err)
		}
	}
}

// TestB12_10_ThreeLevels decides the leaves of two delegations at once in reverse order, from what the root lists, and kills
// every process once in between: every tool runs once, and no model is asked twice.
func TestB12_10_ThreeLevels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *World
		o, models := tree(t, agent.NewTool("pay", "Pays", func(_ context.Context, call *agent.Call, _ any) (any, error) {
			w.Effects.Add(call.ToolCallID())
			return "paid", nil
		}, &agent.ToolOptions{RequireApproval: agent.Always()}))
		w = New(t, o)
		copies := w.StartAll()
		run := w.Request("pay all")
		held := leaves(run)
		for _, call := range held {
			w.AwaitAsk(call, moment)
		}
		synctest.Wait()
		snap, _, err := w.Conn().Snapshot(t.Context(), events.SuspendedKey("boss", "", "", run, run))
		if err != nil || len(snap.Asks) != len(held) {
			t.Fatalf("the root lists %+v, %v", snap, err)
		}
		for i, ask := range slices.Backward(snap.Asks) {
			equal(t, "listed", ask.ToolCallID, held[i].String())
			equal(t, "depth", len(ask.Path), 3)
			if i < len(copies) {
				copies[i].Kill()
				w.Start(copies[i].Service)
			}
			w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: ask.ToolCallID, Fingerprint: ask.Fingerprint})
			w.Await(w.Conn().Namespace().Call(held[i], events.KindResult), moment)
		}
		equal(t, "end", w.AwaitEnd(run, moment).Message.Text(), "all")
		for id, m := range models {
			equal(t, "turns of "+id, len(m.Requests()), 2)
		}
		for _, call := range held {
			equal(t, "effects of "+call.String(), w.Effects.Of(call.String()), 1)
		}
		settled(w)
		unlisted(w)
	})
}

// TestB12_14_CancelCascade cancels a root while leaves are held: every run below ends first, and every call has its result.
func TestB12_14_CancelCascade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _ := tree(t, echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()}))
		w := New(t, o)
		w.StartAll()
		run := w.Request("pay all")
		held := leaves(run)
		for _, call := range held {
			w.AwaitAsk(call, moment)
		}
		w.Cancel("bob", run)
		end := w.Await(w.Conn().Namespace().End(run), moment)
		for _, call := range held {
			lead, _ := events.ParentCall(call.Run)
			last := w.Await(w.Conn().Namespace().Call(call, events.KindResult), 0)
			for _, below := range []events.Event{
				w.Await(w.Conn().Namespace().End(call.Run), 0), w.Await(w.Conn().Namespace().End(lead.Run), 0), last,
			} {
				if below.Seq > end.Seq {
					t.Errorf("%s is stored after the root's end", below.Place.Subject())
				}
			}
			d, err := events.Data[events.CallFinished](last)
			if err != nil || d.Outcome != events.OutcomeCancelled || d.Cancel == nil || d.Cancel.RunID != run {
				t.Errorf("result of %s: %+v, %v", call, d, err)
			}
		}
		settled(w)
		unlisted(w)
	})
}

// TestB12_14_TombstoneBeforeTheStart cancels a run whose delegation no planner has begun: the child's end is its first fact,
// and it never starts.
func TestB12_14_TombstoneBeforeTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, models := crew(t, nil, map[string][]agenttest.Step{
			"boss": {asks(prompted("clerk", "go"))}, "clerk": {agenttest.Say("never")},
		}, events.AgentDef{ID: "boss", Agents: map[string]string{"clerk": "clerk"}}, events.AgentDef{ID: "clerk"})
		w := New(t, o)
		plan := w.Start(planner.Name)
		run := w.Request("go")
		call := events.CallID{Run: run, Step: 1, Index: 1}
		w.Await(w.Conn().Namespace().Step(run, 1), moment)
		plan.Kill()
		w.Start(approval.Name)
		w.Await(events.CallReleased{Namespace: w.Conn().Namespace(), Pool: events.TokenAgentPool, ToolID: "agent-clerk"}.At(call), moment)
		w.Cancel("bob", run)
		w.Await(w.Conn().Namespace().End(run), moment)
		first := w.Await(w.Conn().Namespace().End(call.String()), 0)
		w.Start(planner.Name)
		time.Sleep(moment) // fake
		if _, err := w.Conn().Fact(t.Context(), w.Conn().Namespace().Start(call.String())); !errors.Is(err, jetstream.ErrNotFound) {
			t.Errorf("the child has started after its end at %d: %v", first.Seq, err)
		}
		equal(t, "asked of the clerk", len(models["clerk"].Requests()), 0)
		settled(w)
	})
}

// TestB12_13_FailedChild fails a child: the supervisor's model is told that, and nothing of the cause.
func TestB12_13_FailedChild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, models := crew(t, nil, map[string][]agenttest.Step{
			"boss":  {asks(prompted("clerk", "go")), agenttest.Say("a pity")},
			"clerk": {{Err: errors.New("secret-host refused the key")}},
		}, events.AgentDef{ID: "boss", Agents: map[string]string{"clerk": "clerk"}}, events.AgentDef{ID: "clerk"})
		w := New(t, o)
		w.StartAll()
		run := w.Request("go")
		equal(t, "end", w.AwaitEnd(run, moment).Message.Text(), "a pity")
		d, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(events.CallID{Run: run, Step: 1, Index: 1}, events.KindResult), 0))
		if err != nil || d.Outcome != events.OutcomeError || !strings.Contains(d.Reason, "secret-host") {
			t.Errorf("result: %+v, %v", d, err)
		}
		last := models["boss"].Requests()[1].Messages
		equal(t, "told", string(last[len(last)-1].Parts[0].Output.Value), `"[Agent:boss] - Failed agent tool execution for clerk"`)
		settled(w)
	})
}

// TestB12_16_Depth lets an agent delegate to itself without end: the run that would be too deep is an error to the one above.
func TestB12_16_Depth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		steps := make([]agenttest.Step, 0, 8)
		for range 3 {
			steps = append(steps, asks(prompted("self", "deeper")))
		}
		for range 3 {
			steps = append(steps, agenttest.Say("up"))
		}
		o, models := crew(t, nil, map[string][]agenttest.Step{"deep": steps}, events.AgentDef{
			ID: "deep", Agents: map[string]string{"self": "deep"}, Delegation: &events.Delegation{MaxDepth: 3},
		})
		w := New(t, o)
		w.StartAll()
		run := w.Request("go")
		equal(t, "end", w.AwaitEnd(run, moment).Message.Text(), "up")
		said := models["deep"].Requests()[3].Messages
		if text := string(said[len(said)-1].Parts[0].Output.Value); !strings.Contains(text, "3 runs are in one path") {
			t.Errorf("told %s", text)
		}
		settled(w)
	})
}

// TestB12_5_B12_6_WhatAChildSees delegates in the middle of a conversation: the child sees what users and the model said, its
// prompt, its own instructions with those that were added, and the request context; nothing of calls, and nothing that its
// supervisor was told first.
func TestB12_2_B12_5_B12_6_WhatAChildSees(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		of   *events.Delegation
		want []string
	}{
		"by default": {nil, []string{"user:hello", "assistant:let me see", "user:do it"}},
		"the last":   {&events.Delegation{Context: &events.DelegationContext{LastN: new(1)}}, []string{"assistant:let me see", "user:do it"}},
		"none":       {&events.Delegation{Context: &events.DelegationContext{LastN: new(0)}}, []string{"user:do it"}},
		"of users":   {&events.Delegation{Context: &events.DelegationContext{Roles: []string{"user"}}}, []string{"user:hello", "user:do it"}},
		"everything": {
			&events.Delegation{Context: &events.DelegationContext{IncludeSystem: true}},
			[]string{"system:top secret", "user:hello", "assistant:let me see", "user:do it"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				call := callTo("agent-clerk", `{"prompt":"do it","instructions":"Be quick.","maxSteps":3}`)
				o, models := crew(t, []agent.Tool{echo("look", anything, agent.ToolOptions{})}, map[string][]agenttest.Step{
					"boss":  {{Text: "let me see", Calls: []agenttest.ToolCall{callTo("look", `{}`)}}, asks(call), agenttest.Say("ok")},
					"clerk": {agenttest.Say("done")},
				}, events.AgentDef{
					ID: "boss", Instructions: "top secret", Agents: map[string]string{"clerk": "clerk"}, Tools: map[string]string{"look": "look"},
					Delegation: c.of,
				}, events.AgentDef{ID: "clerk", Instructions: "Pay."})
				w := New(t, o)
				w.StartAll()
				run := "r1"
				w.RequestAs("bob", events.RunRequested{
					AgentID: "boss", RunID: run, ThreadID: "t1", ResourceID: "u1", RequestContext: json.RawMessage(`{"tenant":"acme"}`),
					Messages: events.Prompt{events.TextMessage(events.RoleUser, "hello")},
				})
				w.AwaitEnd(run, moment)
				child := events.CallID{Run: run, Step: 2, Index: 1}.String()
				start, err := events.Data[events.RunStarted](w.Await(w.Conn().Namespace().Start(child), 0))
				if err != nil {
					t.Fatal(err)
				}
				req := models["clerk"].Requests()[0]
				equal(t, "instructions", req.Instructions, "Pay.\n\nBe quick.")
				var said []string
				for _, m := range req.Messages {
					said = append(said, string(m.Role)+":"+m.Text())
				}
				equal(t, "messages", fmt.Sprint(said), fmt.Sprint(c.want))
				equal(t, "context", string(start.Request.RequestContext), `{"tenant":"acme"}`)
				equal(t, "thread", start.Request.ThreadID, "t1-"+child)
				equal(t, "resource", start.Request.ResourceID, "u1-clerk")
				equal(t, "steps", start.Request.Limits.Steps, 3)
				equal(t, "requester", start.Requester, "bob")
				settled(w)
			})
		})
	}
}

// TestB12_9_TheOneBelow names the delegation in place of the leaf: with one call held below it means that one, with two it
// is ambiguous and lists them.
func TestB12_8_B12_9_TheOneBelow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pay := echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})
		o, _ := crew(t, []agent.Tool{pay}, map[string][]agenttest.Step{
			"boss":  {asks(prompted("clerk", "pay")), agenttest.Say("all")},
			"clerk": {asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`)), asks(callTo("pay", `{"n":3}`)), agenttest.Say("paid")},
		}, events.AgentDef{ID: "boss", Agents: map[string]string{"clerk": "clerk"}}, events.AgentDef{ID: "clerk", Tools: map[string]string{"pay": "pay"}})
		w := New(t, o)
		w.StartAll()
		run := w.Request("pay")
		named := events.CallID{Run: run, Step: 1, Index: 1}
		first, second := events.CallID{Run: named.String(), Step: 1, Index: 1}, events.CallID{Run: named.String(), Step: 1, Index: 2}
		w.AwaitAsk(first, moment)
		w.AwaitAsk(second, moment)
		id := w.Posted(w.Conn().Namespace().InDecide("alice", named), named.Run, "alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: named.String()}).Event.ID
		refused, err := events.Data[events.DecisionRefused](w.Await(w.Conn().Namespace().Beside(named, events.KindRefused, id), moment))
		if err != nil || refused.Code != events.CodeAmbiguous || fmt.Sprint(refused.Asks) != fmt.Sprint([]string{first.String(), second.String()}) {
			t.Errorf("refused: %+v, %v", refused, err)
		}
		w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: first.String()})
		w.Await(w.Conn().Namespace().Call(first, events.KindResult), moment)
		w.Decide("alice", events.DecisionRequested{Decision: events.Decline, ToolCallID: named.String()})
		d, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(second, events.KindResult), moment))
		if err != nil || d.Outcome != events.OutcomeDeclined {
			t.Errorf("the second call: %+v, %v", d, err)
		}
		third := events.CallID{Run: named.String(), Step: 2, Index: 1}
		w.AwaitAsk(third, moment)
		unnamed(w, run) // by the root alone
		equal(t, "end", w.AwaitEnd(run, moment).Message.Text(), "all")
		settled(w)
	})
}

// unnamed approves the one call that waits in a run or below it.
func unnamed(w *World, run string) {
	w.T.Helper()
	ns := w.Conn().Namespace()
	w.must(w.tryPublish(ns.InDecideRun("alice", run), run, "alice", events.DecisionRequested{Decision: events.Approve}))
}

// TestB12_9_NeverTheWrongQuestion asks about the delegation itself first. A second approval of that question, which names no
// arguments, never releases what is held below by then.
func TestB12_9_B12_12_NeverTheWrongQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pay := echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})
		o, _ := crew(t, []agent.Tool{pay}, map[string][]agenttest.Step{
			"boss":  {asks(prompted("clerk", "pay")), agenttest.Say("all")},
			"clerk": {asks(callTo("pay", `{"n":1}`)), agenttest.Say("paid")},
		}, events.AgentDef{ID: "boss", Agents: map[string]string{"clerk": "clerk"}, RequireToolApproval: agent.Always()},
			events.AgentDef{ID: "clerk", Tools: map[string]string{"pay": "pay"}})
		w := New(t, o)
		w.StartAll()
		run := w.Request("pay")
		delegated := events.CallID{Run: run, Step: 1, Index: 1}
		leaf := events.CallID{Run: delegated.String(), Step: 1, Index: 1}
		equal(t, "asked about", w.AwaitAsk(delegated, moment).ToolName, "agent-clerk")
		w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: delegated.String()})
		ask := w.AwaitAsk(leaf, moment)
		id := w.Posted(w.Conn().Namespace().InDecide("bob", delegated), delegated.Run, "bob", events.DecisionRequested{Decision: events.Approve, ToolCallID: delegated.String()}).Event.ID
		refused, err := events.Data[events.DecisionRefused](w.Await(w.Conn().Namespace().Beside(delegated, events.KindRefused, id), moment))
		if err != nil || refused.Code != events.CodeAlreadyDecided {
			t.Errorf("refused: %+v, %v", refused, err)
		}
		if last, err := w.Conn().Last(t.Context(), w.Conn().Namespace().Call(leaf, events.KindAsk).Chain()); err != nil || last.Place.Kind != events.KindAsk {
			t.Errorf("the leaf stands at %s, %v", last.Place.Kind, err)
		}
		w.Decide("bob", events.DecisionRequested{Decision: events.Approve, ToolCallID: delegated.String(), Fingerprint: ask.Fingerprint})
		equal(t, "end", w.AwaitEnd(run, moment).Message.Text(), "all")
		settled(w)
	})
}

// TestB7_14_B6_15_Inherited hands an approval and a hook down two levels when they say so, and neither when they do not. What a
// child asks for itself always holds.
func TestB7_14_B6_15_Inherited(t *testing.T) {
	t.Parallel()
	for _, inherit := range []bool{true, false} {
		t.Run(fmt.Sprint(inherit), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, _ := crew(t, []agent.Tool{echo("pay", anything, agent.ToolOptions{}), echo("burn", anything, agent.ToolOptions{})},
					map[string][]agenttest.Step{
						"boss":  {asks(prompted("lead", "pay")), agenttest.Say("all")},
						"lead":  {asks(prompted("clerk", "pay")), agenttest.Say("sub")},
						"clerk": {asks(callTo("pay", `{}`), callTo("burn", `{}`)), agenttest.Say("paid")},
					}, events.AgentDef{
						ID: "boss", Agents: map[string]string{"lead": "lead"},
						RequireToolApproval: &events.Approval{When: `tool.id == "pay"`, Inherit: inherit},
						Hooks:               events.Hooks{"fire": {When: `tool.id == "burn"`, Inherit: inherit}},
					}, events.AgentDef{ID: "lead", Agents: map[string]string{"clerk": "clerk"}},
					events.AgentDef{ID: "clerk", Tools: map[string]string{"pay": "pay", "burn": "burn"}, Hooks: events.Hooks{"fire": {When: "false"}}})
				w := New(t, o)
				w.StartAll()
				run := w.Request("pay")
				clerk := run + "=1-1=1-1"
				if inherit {
					ask := w.AwaitAsk(events.CallID{Run: clerk, Step: 1, Index: 1}, moment)
					equal(t, "asked about", ask.ToolName, "pay")
					w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: ask.ToolCallID})
				}
				w.AwaitEnd(run, moment)
				d, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(events.CallID{Run: clerk, Step: 1, Index: 2}, events.KindResult), 0))
				if err != nil || (d.Outcome == events.OutcomeBlocked) != inherit {
					t.Errorf("burn: %+v, %v", d, err)
				}
				settled(w)
			})
		})
	}
}

// TestB11_5_B12_10_MessageResumesALeaf answers, by the next message of the root's thread, what a tool of a sub-agent waits for: the
// leaf goes on where it was, its sub-agent after it, and then the root.
func TestB11_5_B12_10_MessageResumesALeaf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		city := agent.NewTool("city", "Asks for a city", func(_ context.Context, call *agent.Call, _ any) (any, error) {
			if !call.Resumed() {
				return nil, call.Suspend("which city?")
			}
			return "resumed", nil
		}, &agent.ToolOptions{ResumeSchema: json.RawMessage(`{"type":"string"}`)})
		o, models := crew(t, []agent.Tool{city}, map[string][]agenttest.Step{
			"boss": {
				asks(prompted("clerk", "find a city")),
				agenttest.Say(`{"answers":[{"toolCallId":"r1=1-1=1-1","resumeData":"Oslo"}]}`), agenttest.Say("all"),
			},
			"clerk": {asks(callTo("city", `{}`)), agenttest.Say("found")},
		}, events.AgentDef{ID: "boss", Agents: map[string]string{"clerk": "clerk"}, AutoResumeSuspendedTools: true},
			events.AgentDef{ID: "clerk", Tools: map[string]string{"city": "city"}})
		w := New(t, o)
		w.StartAll()
		say := func(run, text string) {
			w.RequestAs("bob", events.RunRequested{
				AgentID: "boss", RunID: run, ThreadID: "t1", ResourceID: "bob", Messages: events.Prompt{events.TextMessage(events.RoleUser, text)},
			})
		}
		say("r1", "find me a city")
		w.AwaitAsk(events.CallID{Run: "r1=1-1", Step: 1, Index: 1}, moment)
		time.Sleep(time.Second) // fake: the message is younger than the question
		say("r2", "Oslo")
		equal(t, "the root's end", w.AwaitEnd("r1", moment).Message.Text(), "all")
		equal(t, "what goes on in place of the message's run", fmt.Sprint(w.AwaitEnd("r2", moment).Resumes), "[r1]")
		equal(t, "turns of the clerk", len(models["clerk"].Requests()), 2)
		settled(w)
	})
}

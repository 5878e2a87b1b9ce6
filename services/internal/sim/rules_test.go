package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
)

// ruleSet is a set with one rule.
func ruleSet(r events.Rule) events.RuleSet {
	return events.RuleSet{Name: "default", Rules: []events.Rule{r}}
}

// released waits for the release of a call to a tool of the default pool.
func (b *bench) released(call events.CallID, tool string) events.CallReleased {
	b.T.Helper()
	d, err := events.Data[events.CallReleased](b.Await(b.Conn().Namespace().Go(call, events.DefaultPool, tool), moment))
	b.must(err)
	return d
}

// rest is a tool that takes its time.
func rest(d time.Duration) agent.Tool {
	return agent.NewTool("rest", "Take some time", func(context.Context, *agent.Call, struct{}) (any, error) {
		time.Sleep(d) // fake
		return "rested", nil
	}, &agent.ToolOptions{OutputSchema: json.RawMessage(`{}`), Effect: agent.ReadOnly})
}

func (b *bench) answered(call events.CallID) events.CallAnswered {
	b.T.Helper()
	d, err := events.Data[events.CallAnswered](b.Await(b.Conn().Namespace().Call(call, events.KindAnswer), moment))
	b.must(err)
	return d
}

// TestB7_8_WhatCannotBeEvaluatedIsHeld: each fault of a rule, of a tool's and of a run's own expression holds the call, and
// the ask names the rule and the fault. None of them shows a value.
func TestB7_8_WhatCannotBeEvaluatedIsHeld(t *testing.T) {
	inCase(t, func(t *testing.T) {
		loops := "[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, [1,2,3,4,5,6,7,8].all(d, " +
			"[1,2,3,4,5,6,7,8].all(e, a + b + c + d + e > 0)))))"
		faults := []struct{ tool, when, fault string }{
			{"missing", "args.amount > 500", "no such key: amount"},
			{"error", "int(args.text) > 3", "type conversion error"},
			{"cost", loops, "the cost limit is exceeded"},
			{"kind", "args.text", "the expression gave string, not bool"},
			{"context", "context.tenant.name == 'acme'", "no such key: tenant"},
		}
		var rules []events.Rule
		var tools []agent.Tool
		var calls []agenttest.ToolCall
		for _, f := range faults {
			rules = append(rules, events.Rule{Name: "on-" + f.tool, Tools: []string{f.tool}, When: f.when, Action: events.RuleBlock})
			tools = append(tools, echo(f.tool, anything, agent.ToolOptions{}))
			calls = append(calls, callTo(f.tool, `{"text":"hunter2"}`))
		}
		tools = append(tools, echo("own", anything, agent.ToolOptions{RequireApproval: agent.When("args.amount > 500")}))
		tools = append(tools, echo("plain", anything, agent.ToolOptions{}))
		calls = append(calls, callTo("own", `{"text":"hunter2"}`), callTo("plain", `{"text":"hunter2"}`))
		b := newBench(t, Options{Rules: map[string]events.RuleSet{"default": {Name: "default", Rules: rules}}},
			tools, asks(calls...), agenttest.Say("done"))
		b.StartAll()
		b.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: "r1", RequireToolApproval: agent.When("args.other == 1"),
			Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
		})
		held := func(i int, rule, fault string) {
			ask := b.AwaitAsk(b.call("r1", 1, i), moment)
			if ask.Reason.Rule != rule || !strings.Contains(ask.Reason.Error, fault) || strings.Contains(ask.Reason.Error, "hunter2") {
				t.Errorf("call %d is held because of %+v, want %s: %s", i, ask.Reason, rule, fault)
			}
			b.send("alice", events.Decline, b.call("r1", 1, i), nil)
		}
		for i, f := range faults {
			held(i+1, "on-"+f.tool, f.fault)
		}
		held(len(faults)+1, "requireApproval", "no such key: amount")
		held(len(faults)+2, "requireToolApproval", "no such key: other")
		b.completed("r1")
		equal(t, "effects", len(b.Effects.All()), 0)
	})
}

// TestB7_11_RulesApplyToRunningRuns: a set that is applied while a run lasts judges its next calls, and each fact names the
// rules that judged it: ask, answer and release, by the set's own digest too, under which the registry keeps it.
func TestB7_11_RulesApplyToRunningRuns(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{}), rest(5 * time.Second)},
			asks(callTo("pay", `{"n":1}`), callTo("rest", `{}`)), asks(callTo("pay", `{"n":2}`)), asks(callTo("pay", `{"n":3}`)),
			agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		none := b.released(b.call(run, 1, 1), "pay").AllowedBy
		if none.Rules == "" || none.Set != "" || none.Answer != 0 {
			t.Errorf("without rules it is released by %+v", none)
		}
		asking := ruleSet(events.Rule{Name: "payments", Tools: []string{"go:pay"}, Action: events.RuleAsk})
		b.put(events.RegistryRule, "default", asking)
		raw, err := events.Marshal(asking)
		b.must(err)
		ask := b.AwaitAsk(b.call(run, 2, 1), moment)
		if ask.Reason.Rule != "payments" || ask.Reason.Set != "default" || ask.Reason.Digest != events.Digest(raw) || ask.Rules == none.Rules || ask.Rules == "" {
			t.Errorf("it is held by %+v, rules %s", ask.Reason, ask.Rules)
		}
		if kept, err := b.Conn().Def(t.Context(), ask.Reason.Digest); err != nil || !bytes.Equal(kept, raw) {
			t.Errorf("the registry has %s under the digest, %v", kept, err)
		}
		// Gone before people decide: the ask stays, and what follows names the rules that held it.
		b.must(b.Conn().DeleteNamed(t.Context(), events.RegistryRule, "default"))
		time.Sleep(10 * time.Second) // fake
		equal(t, "the chain when its rule is gone", b.last(b.call(run, 2, 1)), events.KindAsk)
		b.send("alice", events.Approve, b.call(run, 2, 1), nil)
		if a := b.answered(b.call(run, 2, 1)); a.Rules != ask.Rules {
			t.Errorf("the answer names rules %s, the ask %s", a.Rules, ask.Rules)
		}
		by := b.released(b.call(run, 2, 1), "pay").AllowedBy
		if by.Rules != ask.Rules || by.Rule != "payments" || by.Set != "default" || by.SetDigest != ask.Reason.Digest || by.Answer == 0 {
			t.Errorf("after the answer it is released by %+v", by)
		}
		last := b.released(b.call(run, 3, 1), "pay").AllowedBy
		if last.Rules != none.Rules || last.Answer != 0 {
			t.Errorf("without the rule it is released by %+v", last)
		}
		b.completed(run)
	})
}

// TestB7_11_AChangeNeverLiftsAnAsk: who may decide stays as the ask says, whatever the rules have become.
func TestB7_11_AChangeNeverLiftsAnAsk(t *testing.T) {
	inCase(t, func(t *testing.T) {
		strict := ruleSet(events.Rule{
			Name: "payments", Action: events.RuleAsk, Approvers: []string{"user:carol"}, NotRequester: true,
			Decisions: []events.Decision{events.Approve},
		})
		b := newBench(t, Options{Rules: map[string]events.RuleSet{"default": strict}},
			[]agent.Tool{echo("pay", anything, agent.ToolOptions{})}, asks(callTo("pay", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.AwaitAsk(call, moment)
		b.put(events.RegistryRule, "default", ruleSet(events.Rule{Name: "all", Action: events.RuleAllow}))
		time.Sleep(time.Minute) // fake
		for _, who := range []string{"alice", "bob"} {
			if r := b.refusal(call, b.send(who, events.Approve, call, nil)); r.Code != events.CodeForbidden {
				t.Errorf("%s is told %+v", who, r.Error)
			}
		}
		edit := func(d *events.DecisionRequested) { d.Args = json.RawMessage(`{"n":1}`) }
		if r := b.refusal(call, b.send("carol", events.Edit, call, edit)); r.Code != events.CodeWrongKind {
			t.Errorf("an edit is told %+v", r.Error)
		}
		b.send("carol", events.Approve, call, nil)
		b.completed(run)
		equal(t, "executions", b.Effects.Of(call.String()), 1)
	})
}

// TestB7_11_AnEditIsJudgedByTheRulesOfItsTime: new arguments are a new round, and rules that have come since count.
func TestB7_11_AnEditIsJudgedByTheRulesOfItsTime(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.AwaitAsk(call, moment)
		b.put(events.RegistryRule, "default", ruleSet(events.Rule{Name: "limit", When: "args.n > 10", Action: events.RuleBlock}))
		time.Sleep(time.Second) // fake
		b.send("alice", events.Edit, call, func(d *events.DecisionRequested) { d.Args = json.RawMessage(`{"n":11}`) })
		if d := b.result(call); d.Outcome != events.OutcomeBlocked || !strings.Contains(d.Reason, "default/limit") {
			t.Errorf("result = %+v", d)
		}
		b.completed(run)
		equal(t, "executions", len(b.given("pay")), 0)
	})
}

// TestB7_11_NothingPassesWithoutReadableRules: while a set is broken, or says what the gate does not understand, no call
// gets any fact. Once it can be read, everything goes on. The gate tells why it stands still.
func TestB7_11_NothingPassesWithoutReadableRules(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"broken":          `{"name":"default","rules":[`,
		"empty":           ``,
		"an unknown word": `{"name":"default","rules":[{"name":"r","action":"ask","unless":"args.ok"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{})}, asks(callTo("pay", `{}`)), agenttest.Say("done"))
				b.must(b.Conn().PutNamed(t.Context(), events.RegistryRule, "default", []byte(body)))
				gate, err := approval.New(b.Conn(), b.GateConfig())
				b.must(err)
				if err := gate.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "rule set default cannot be read") {
					t.Errorf("ready: %v", err)
				}
				b.StartAll()
				run := b.Request("go")
				call := b.call(run, 1, 1)
				b.Await(b.Conn().Namespace().Step(run, 1), moment)
				time.Sleep(15 * time.Second) // fake
				if e, err := b.Conn().Last(t.Context(), b.Conn().Namespace().Call(call, events.KindAsk).Chain()); err == nil {
					t.Errorf("the call has a %s", e.Place.Kind)
				}
				if p := b.problems(); len(p) != 1 || !strings.Contains(p[0], "nothing passes: rule set default cannot be read") {
					t.Errorf("the gate says %q", p)
				}
				b.put(events.RegistryRule, "default", ruleSet(events.Rule{Name: "all", Action: events.RuleAllow}))
				b.must(gate.Ready(t.Context()))
				b.completed(run)
				equal(t, "executions", b.Effects.Of(call.String()), 1)
				time.Sleep(10 * time.Second) // fake: the gate says again that it lives
				equal(t, "problems when all is well", b.problems(), []string(nil))
			})
		})
	}
}

// problems are what the living gates say about themselves.
func (b *bench) problems() (all []string) {
	b.T.Helper()
	live, err := b.Conn().ListLive(b.T.Context(), approval.Name)
	b.must(err)
	for _, l := range live {
		all = append(all, l.Problems...)
	}
	return all
}

// lines is a log that many write.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// TestCase_GATE_5 has rules for tools and agents that nobody has: a wrong prefix, an old name, the key of an agent in place
// of the tool's id. The gate tells of each at its start, once in its log and always in its live entry, until the rules are
// corrected; other rules hold what they must.
func TestCase_GATE_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		told := &lines{}
		wrong := events.RuleSet{Name: "default", Rules: []events.Rule{
			{Name: "prefix", Tools: []string{"tools.pay", "http:pay"}, Action: events.RuleAsk},
			{Name: "old", Tools: []string{"payment", "pay"}, Agents: []string{"clerk"}, Action: events.RuleAsk},
			{Name: "good", Tools: []string{"pay", "go:p*"}, Agents: []string{"*"}, Action: events.RuleAsk},
		}}
		b := newBench(t, Options{Rules: map[string]events.RuleSet{"default": wrong}, Log: slog.New(slog.NewTextHandler(told, nil))},
			[]agent.Tool{echo("pay", anything, agent.ToolOptions{})}, asks(callTo("pay", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		if ask := b.AwaitAsk(b.call(run, 1, 1), moment); ask.Reason.Rule != "good" {
			t.Errorf("held by %+v", ask.Reason)
		}
		want := []string{
			`rule prefix of set default: no tool matches "tools.pay"`, `rule prefix of set default: no tool matches "http:pay"`,
			`rule old of set default: no tool matches "payment"`, `rule old of set default: no agent matches "clerk"`,
		}
		time.Sleep(5 * time.Minute) // fake
		equal(t, "problems", b.problems(), want)
		equal(t, "lines of the log", told.count("a rule is without effect"), len(want))
		b.put(events.RegistryRule, "default", ruleSet(events.Rule{Name: "good", Tools: []string{"pay"}, Action: events.RuleAsk}))
		time.Sleep(time.Minute) // fake
		equal(t, "problems when the rules are corrected", len(b.problems()), 0)
		equal(t, "lines of the log then", told.count("every rule has its effect again"), 1)
		b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		b.completed(run)
	})
}

// TestB7_10_AToolThatRegistersLaterMatches: a rule waits for its worker, and judges its calls from then on.
func TestB7_10_AToolThatRegistersLaterMatches(t *testing.T) {
	inCase(t, func(t *testing.T) {
		rules := map[string]events.RuleSet{"default": ruleSet(events.Rule{Name: "later", Tools: []string{"wire"}, Action: events.RuleAsk})}
		b := newBench(t, Options{Rules: rules}, []agent.Tool{echo("pay", anything, agent.ToolOptions{})})
		b.Start(approval.Name)
		time.Sleep(10 * time.Second) // fake
		equal(t, "problems", b.problems(), []string{`rule later of set default: no tool matches "wire"`})
		m := echo("wire", anything, agent.ToolOptions{}).Manifest()
		b.put(events.RegistryTool, m.ID, m)
		time.Sleep(time.Minute) // fake
		equal(t, "problems when the tool is there", len(b.problems()), 0)
	})
}

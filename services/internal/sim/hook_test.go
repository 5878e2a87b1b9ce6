package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
)

// service answers as a hook service; an empty answer is none.
func (b *bench) service(name string, answer func(events.HookRequest) string) {
	b.T.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(b.Server.InProcess()))
	b.must(err)
	b.T.Cleanup(nc.Close)
	_, err = nc.QueueSubscribe(b.Conn().Namespace().HookService(name), name, func(m *nats.Msg) {
		var req events.HookRequest
		if err := json.Unmarshal(m.Data, &req); err != nil {
			b.T.Error(err)
		}
		if text := answer(req); text != "" {
			_ = m.Respond([]byte(text))
		}
	})
	b.must(err)
	ctx, cancel := context.WithTimeout(b.T.Context(), moment)
	defer cancel()
	b.must(nc.FlushWithContext(ctx))
}

// hooked is a bench whose agent has hooks.
func hooked(t *testing.T, o Options, hooks events.Hooks, tools []agent.Tool, steps ...agenttest.Step) *bench {
	t.Helper()
	o.Agent = events.AgentDef{ID: "support", Name: "Support", Model: "scripted/support", Tools: map[string]string{}, Hooks: hooks}
	for _, tool := range tools {
		o.Agent.Tools[tool.Manifest().ID] = tool.Manifest().ID
	}
	return newBench(t, o, tools, steps...)
}

// warned reports whether the run's readers were told that a call went on without a hook.
func (b *bench) warned(run string, call events.CallID) bool {
	for _, c := range b.chunks(run) {
		if c.Type == events.ChunkWarning && strings.Contains(string(c.Payload), "hook_failed") && strings.Contains(string(c.Payload), call.String()+`"`) {
			return true
		}
	}
	return false
}

const numbered = `{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}`

// TestB6_5_B6_7_B6_8_HooksRewriteBeforePeopleSee every call of every source: what a hook makes of valid arguments is validated again,
// without reserved keys, and is what rules see, people approve and the tool gets. A yes authorises nothing (B6.8).
func TestB6_5_B6_7_B6_8_HooksRewriteBeforePeopleSee(t *testing.T) {
	inCase(t, func(t *testing.T) {
		asked := make(chan events.HookRequest, 9)
		b := hooked(t, Options{}, events.Hooks{"redact": {}, "then": {Service: "second"}}, []agent.Tool{
			echo("job", anything, agent.ToolOptions{RequireApproval: agent.When(`args.n > 5.0`)}),
		}, asks(callTo("job", `{"n":1,"resumeData":{}}`)), agenttest.Say("done"))
		b.service("redact", func(r events.HookRequest) string {
			asked <- r
			return `{"proceed":true,"input":{"suspendedToolCallId":"x","n":9.0}}`
		})
		b.service("second", func(r events.HookRequest) string { asked <- r; return `{"proceed":true}` })
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		equal(t, "asked about", string(b.AwaitAsk(call, moment).Args), `{"n":9.0}`)
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		equal(t, "given", b.given("job"), []string{`{"n":9.0}`})
		want := events.HookRequest{
			Namespace: events.DefaultNamespace, Hook: "redact", RunID: run, ToolCallID: call.String(), ToolName: "job", ToolID: "job",
			Input: json.RawMessage(`{"n":1}`), Metadata: events.HookMetadata{AgentID: "support", AgentName: "Support"},
			Within: events.Duration(2 * time.Second),
		}
		equal(t, "first", <-asked, want)
		want.Hook, want.Input = "then", json.RawMessage(`{"n":9.0}`)
		equal(t, "second", <-asked, want)
		equal(t, "asked more", len(asked), 0)
	})
}

// TestB6_5_HooksSeeCallsWithoutAnAgent, and those of other tools than an agent's own: a run of one tool passes the same gate.
func TestB6_5_HooksSeeCallsWithoutAnAgent(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := hooked(t, Options{}, nil, []agent.Tool{echo("job", anything, agent.ToolOptions{})})
		b.service("guard", func(r events.HookRequest) string {
			return fmt.Sprintf(`{"proceed":false,"output":{"agent":%q,"context":%s}}`, r.Metadata.AgentID, r.Context)
		})
		b.StartAll()
		b.RequestAs("bob", events.RunRequested{
			ToolID: "job", RunID: "r1", Hooks: events.Hooks{"guard": {}}, RequestContext: json.RawMessage(`{"tenant":"acme"}`),
		})
		f := b.result(b.call("r1", 1, 1))
		equal(t, "result", string(f.Outcome)+string(f.Result), `blocked{"agent":"=tool","context":{"tenant":"acme"}}`)
		equal(t, "given", len(b.given("job")), 0)
	})
}

// TestB6_6_B6_8_AHookThatBlocks ends the call with its output, as a service or as a rule; the audit names it.
func TestB6_6_B6_8_AHookThatBlocks(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := hooked(t, Options{}, events.Hooks{"guard": {}, "limit": {When: `args.n > 3.0`, Reason: "too much"}},
			[]agent.Tool{echo("job", numbered, agent.ToolOptions{})},
			asks(callTo("job", `{"n":1}`), callTo("job", `{"n":2}`), callTo("job", `{"n":4}`), callTo("job", `{}`)), agenttest.Say("done"))
		b.service("guard", func(r events.HookRequest) string {
			return map[string]string{`{"n":1}`: `{"proceed":false,"output":"not one"}`, `{"n":2}`: `{"proceed":false}`}[string(r.Input)] +
				map[string]string{`{"n":4}`: `{"proceed":true}`}[string(r.Input)]
		})
		b.StartAll()
		run := b.Request("go")
		b.completed(run)
		for i, want := range []string{
			`blocked "not one" hook guard hooks/guard `, `blocked  hook guard hooks/guard blocked by hook guard`,
			`blocked  rule hooks/limit hooks/limit too much`,
		} {
			f := b.result(b.call(run, 1, i+1))
			said := ""
			if f.Error != nil {
				said = f.Error.Message
			}
			equal(t, "result", fmt.Sprintf("%s %s %s %s/%s %s", f.Outcome, f.Result, f.Reason, f.BlockedBy.Set, f.BlockedBy.Rule, said), want)
			equal(t, "started", f.Started, false)
		}
		equal(t, "invalid arguments", b.result(b.call(run, 1, 4)).Outcome, events.OutcomeInvalid) // no hook was asked
		equal(t, "given", len(b.given("job")), 0)
	})
}

// TestB6_10_AHookThatFails ends the call, or lets it go on with a warning: when nobody listens, when it comes late, and when what
// it answers is not understood to the last word.
func TestB6_10_AHookThatFails(t *testing.T) {
	inCase(t, func(t *testing.T) {
		answers := []string{
			"", `yes`, `{"proceed":"true"}`, `{"proceed":false,"proceed":true}`, `{"Proceed":true}`, `{"proceed":true,"then":1}`, `[]`, `null`, `{}`,
			`{"proceed":true,"output":1}`, `{"proceed":true,"input":7}`, `{"proceed":true,"input":{"n":"x"}}`, `{"proceed":null}`,
			`{"proceed":true,"input":{"n":1},"input":{"n":2}}`, `{"proceed":true,"input":{"n":1,"pad":"` + strings.Repeat("x", events.MaxHookAnswer) + `"}}`,
		}
		var calls []agenttest.ToolCall
		for i := range answers {
			calls = append(calls, callTo("job", fmt.Sprintf(`{"n":%d}`, i)))
		}
		hook := func(mode string) *bench {
			b := hooked(t, Options{}, events.Hooks{"odd": {FailMode: mode}}, []agent.Tool{echo("job", numbered, agent.ToolOptions{})},
				asks(calls...), agenttest.Say("done"))
			b.service("odd", func(r events.HookRequest) string {
				var in struct{ N int }
				_ = json.Unmarshal(r.Input, &in)
				return answers[in.N]
			})
			b.StartAll()
			return b
		}
		closed, open := hook(""), hook(events.FailOpen)
		for _, b := range []*bench{closed, open} {
			run := b.Request("go")
			b.completed(run)
			for i := range answers {
				call := b.call(run, 1, i+1)
				f := b.result(call)
				if b == open {
					equal(t, answers[i], fmt.Sprint(f.Outcome, string(f.Result), b.warned(run, call)), fmt.Sprintf(`ok{"n":%d}true`, i))
					continue
				}
				equal(t, answers[i], fmt.Sprint(f.Outcome, f.Error.Name, f.Started), "errorhook_failedfalse")
				equal(t, "chunk", chunk[map[string]any](b, run, events.ChunkToolError, call)["toolCallId"], call.String())
			}
		}
		equal(t, "given", len(closed.given("job")), 0)
	})
}

// TestB6_10_ALateHookIsNotWaitedFor longer than its deadline, which calls of one step wait for together; nor is one that nobody
// serves. A no counts whatever is wrong with the rest of it.
func TestB6_10_ALateHookIsNotWaitedFor(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := hooked(t, Options{}, events.Hooks{"slow": {Timeout: events.Duration(5 * time.Second)}}, []agent.Tool{echo("job", anything, agent.ToolOptions{})},
			asks(callTo("job", `{"n":1}`), callTo("job", `{"n":2}`), callTo("job", `{"no":1}`)), agenttest.Say("done"))
		b.service("slow", func(r events.HookRequest) string {
			if strings.Contains(string(r.Input), "no") {
				return `{"proceed":false,"why":7,"input":{}}`
			}
			return ""
		})
		b.StartAll()
		run := b.Request("go")
		step := b.Await(b.Conn().Namespace().Step(run, 1), moment)
		b.completed(run)
		for i := 1; i <= 2; i++ {
			f := b.Await(b.Conn().Namespace().Call(b.call(run, 1, i), events.KindResult), moment)
			if took := f.Stored.Sub(step.Stored); took < 5*time.Second || took > 6*time.Second {
				t.Errorf("call %d ended after %v", i, took)
			}
			equal(t, "error", b.result(b.call(run, 1, i)).Error.Name, events.ErrorHookFailed)
		}
		equal(t, "no", b.result(b.call(run, 1, 3)).Outcome, events.OutcomeBlocked)
	})
}

// TestB6_7_AnEditPassesTheHooks again. One that a hook rewrites is asked about again, also where no rule asks.
func TestB6_7_AnEditPassesTheHooks(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := hooked(t, Options{}, events.Hooks{"fix": {}}, []agent.Tool{
			echo("job", anything, agent.ToolOptions{RequireApproval: agent.When(`args.n > 5.0`)}),
		}, asks(callTo("job", `{"n":9}`), callTo("job", `{"n":8}`)), agenttest.Say("done"))
		b.service("fix", func(r events.HookRequest) string {
			switch {
			case r.Edited && strings.Contains(string(r.Input), "1"):
				return `{"proceed":true,"input":{"n":2}}`
			case r.Edited:
				return `{"proceed":false,"output":"no"}`
			}
			return `{"proceed":true}`
		})
		b.StartAll()
		run := b.Request("go")
		edit := func(args string) func(*events.DecisionRequested) {
			return func(d *events.DecisionRequested) { d.Args = json.RawMessage(args) }
		}
		first, second := b.call(run, 1, 1), b.call(run, 1, 2)
		b.send("alice", events.Edit, first, edit(`{"n":1}`))
		b.send("alice", events.Edit, second, edit(`{"n":3}`))
		ask := b.awaitRound(first, 1)
		equal(t, "asked again", fmt.Sprint(string(ask.Args), ask.NoGrant, ask.Reason.Set, ask.Reason.Rule), `{"n":2}truehooksfix`)
		b.send("alice", events.Approve, first, nil)
		b.completed(run)
		equal(t, "given", b.given("job"), []string{`{"n":2}`})
		equal(t, "blocked", string(b.result(second).Outcome)+string(b.result(second).Result), `blocked"no"`)
	})
}

// TestB6_13_B6_14_HooksOfARun replace the agent's by name, the others stay, on every process and after a restart, and for a
// decision that is made there.
func TestB6_13_B6_14_HooksOfARun(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := hooked(t, Options{}, events.Hooks{"a": {}, "b": {}}, []agent.Tool{
			echo("job", anything, agent.ToolOptions{RequireApproval: agent.Always()}),
		}, asks(callTo("job", `{}`)), agenttest.Say("done"))
		d := &diary{}
		for _, name := range []string{"a", "b", "other"} {
			b.service(name, func(r events.HookRequest) string {
				d.write(fmt.Sprintf("%s as %s in round %d", name, r.Hook, r.Round))
				return `{"proceed":true}`
			})
		}
		copies := b.StartAll()
		b.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: "r1", Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			Hooks: events.Hooks{"b": {Service: "other"}, "c": {When: `has(args.bad)`}},
		})
		call := b.call("r1", 1, 1)
		b.AwaitAsk(call, moment)
		for _, c := range copies {
			b.must(c.Stop())
		}
		b.StartAll()
		b.send("alice", events.Edit, call, func(d *events.DecisionRequested) { d.Args = json.RawMessage(`{"good":1}`) })
		b.awaitRound(call, 1)
		b.send("alice", events.Edit, call, func(d *events.DecisionRequested) { d.Args = json.RawMessage(`{"bad":1}`) })
		b.completed("r1")
		equal(t, "asked", d.all(), []string{
			"a as a in round 0", "other as b in round 0", "a as a in round 1", "other as b in round 1", "a as a in round 2", "other as b in round 2",
		})
		equal(t, "blocked", b.result(call).Reason, "rule hooks/c")
	})
}

// TestHooksThatNoGateCouldHonourRefuseTheStart, with what is wrong.
func TestHooksThatNoGateCouldHonourRefuseTheStart(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := hooked(t, Options{}, nil, []agent.Tool{echo("job", anything, agent.ToolOptions{})})
		ear := b.ears("weir.default.note.bob.>")
		b.StartAll()
		for i, hooks := range []events.Hooks{
			{"slow": {Timeout: events.Duration(time.Minute)}}, {"rule": {When: "args."}}, {"both": {When: "true", Service: "x"}},
		} {
			b.RequestAs("bob", events.RunRequested{
				AgentID: "support", RunID: fmt.Sprintf("r%d", i), Hooks: hooks, Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			})
		}
		b.pause(5 * time.Second)
		heard := strings.Join(ear.all(), "\n")
		for _, want := range []string{"hooks.slow.timeout", "hooks.rule.when", "hooks.both.when"} {
			if !strings.Contains(heard, want) {
				t.Errorf("no note says %s: %s", want, heard)
			}
		}
	})
}

// TestB6_14_AGateThatTakesOverAsksTheHooksAgain when the first was stopped before it had stored anything: only what is stored counts.
func TestB6_14_AGateThatTakesOverAsksTheHooksAgain(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var once atomic.Bool
		var times atomic.Int32
		b := hooked(t, Options{Point: func(name string, c *Copy) {
			if name == "go.before" && once.CompareAndSwap(false, true) {
				c.Kill()
			}
		}}, events.Hooks{"moody": {}}, []agent.Tool{echo("job", anything, agent.ToolOptions{})}, asks(callTo("job", `{}`)), agenttest.Say("done"))
		b.service("moody", func(events.HookRequest) string {
			return fmt.Sprintf(`{"proceed":true,"input":{"n":%d}}`, times.Add(1))
		})
		b.StartAll()
		run := b.Request("go")
		b.pause(time.Second)
		b.Start(approval.Name)
		b.completed(run)
		equal(t, "given", b.given("job"), []string{`{"n":2}`})
	})
}

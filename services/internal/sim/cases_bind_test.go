package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// TestCase_BIND_1 shows people the arguments with their defaults, and runs nothing else than what they saw.
func TestCase_BIND_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		schema := `{"type":"object","properties":{"to":{"type":"string"},"currency":{"type":"string","default":"EUR"}},"required":["to"]}`
		b := newBench(t, Options{}, []agent.Tool{echo("pay", schema, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"to":"ACME"}`), callTo("pay", `{"to":"ACME"}`)), agenttest.Say("done"))
		gate := b.StartAll()[1]
		run := b.Request("go")
		want := `{"currency":"EUR","to":"ACME"}`
		equal(t, "the ask", string(b.AwaitAsk(b.call(run, 1, 1), moment).Args), want)
		b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		b.result(b.call(run, 1, 1))
		gate.Kill()
		b.changed(b.call(run, 1, 2))
		if d := b.result(b.call(run, 1, 2)); d.Outcome != events.OutcomeBlocked || d.Reason != "fingerprint_mismatch" || d.Started {
			t.Errorf("changed after the approval: %+v", d)
		}
		b.Start(approval.Name)
		b.AwaitEnd(run, moment)
		equal(t, "executions", b.given("pay"), []string{want})
	})
}

// changed answers a held call as a gate would, and releases it with other bytes than those that were asked about.
func (b *bench) changed(call events.CallID) {
	b.T.Helper()
	fact := b.Await(b.Conn().Namespace().Call(call, events.KindAsk), moment)
	ask, err := events.Data[events.CallHeld](fact)
	b.must(err)
	o := &events.Origin{Namespace: b.Conn().Namespace(), Service: approval.Name, Key: &b.Key}
	add := func(p events.Place, data any, after events.Event) events.Event {
		e, err := o.Fact(p, data, after)
		b.must(err)
		a, err := b.Conn().Append(b.T.Context(), events.After(after), e)
		b.must(err)
		return a.Last
	}
	answer := add(b.Conn().Namespace().Call(call, events.KindAnswer), events.CallAnswered{
		ToolCallID: ask.ToolCallID, RunID: ask.RunID,
		Decision: events.Approve, Fingerprint: ask.Fingerprint, Principal: "alice", At: time.Now(),
	}, fact)
	add(b.Conn().Namespace().Go(call, events.DefaultPool, ask.ToolID), events.CallReleased{
		Namespace: b.Conn().Namespace(), RunID: ask.RunID,
		ToolCallID: ask.ToolCallID, Pool: events.DefaultPool, ToolID: ask.ToolID, ToolVersion: ask.ToolVersion,
		InputSchemaDigest: ask.InputSchemaDigest, Effect: ask.Effect, Args: `{"currency":"USD","to":"ACME"}`, Fingerprint: ask.Fingerprint,
		Follows: answer.Seq, AllowedBy: events.AllowedBy{Answer: answer.Seq}, ToolName: ask.ToolName, AgentID: ask.AgentID,
		StartBy: time.Now().Add(moment),
	}, answer)
}

// TestCase_BIND_3 keeps the digits of large numbers, from the model to the handler and back.
func TestCase_BIND_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		args := `{"big":9007199254740993,"id":1234567890123456789}`
		tool := agent.NewTool("pay", "Pay", func(_ context.Context, call *agent.Call, in json.RawMessage) (any, error) {
			if !call.Resumed() {
				return nil, call.Suspend(in)
			}
			return in, nil
		}, &agent.ToolOptions{RequireApproval: agent.Always(), InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`)})
		b := newBench(t, Options{}, []agent.Tool{tool}, asks(callTo("pay", args)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		equal(t, "the ask", string(b.AwaitAsk(call, moment).Args), args)
		equal(t, "the list", b.open(), []string{call.String() + " pay " + args})
		b.send("alice", events.Approve, call, nil)
		for b.AwaitAsk(call, moment).Round == 0 {
			b.pause(time.Second)
		}
		for _, c := range copies {
			c.Kill()
		}
		b.Restart()
		b.StartAll()
		b.send("alice", events.ResumeD, call, withData(`1234567890123456789`))
		b.completed(run)
		equal(t, "what the handler got", b.given("pay"), []string{args, args})
		equal(t, "results", b.told(), []string{"pay json " + args})
		equal(t, "the history", b.said(call), args)
		shown := chunk[events.ToolCallPayload](b, run, events.ChunkToolCall, call)
		equal(t, "the chunk", string(shown.Args), args)
	})
}

// said is the text of a call's arguments in the last request to the model.
func (b *bench) said(call events.CallID) string {
	b.T.Helper()
	requests := b.model.Requests()
	for _, m := range requests[len(requests)-1].Messages {
		for _, p := range m.Parts {
			if p.Type == events.PartToolCall && p.ToolCallID == call.String() {
				return p.Args
			}
		}
	}
	b.T.Fatalf("the model is not shown call %s", call)
	return ""
}

// TestCase_BIND_5 uses the canonical identity of a tool whose key no provider takes, everywhere but at the model.
func TestCase_BIND_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		key := "my-server/db.query"
		tool := echo("db.query", anything, agent.ToolOptions{RequireApproval: agent.Always()})
		b := newBench(t, Options{Agent: events.AgentDef{ID: "support", Model: "scripted/x", Tools: map[string]string{key: "db.query"}}},
			[]agent.Tool{tool}, asks(callTo("my-server_db_query", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		if ask := b.AwaitAsk(call, moment); ask.ToolID != "db.query" || ask.ToolName != key {
			t.Errorf("the ask names tool %q, key %q", ask.ToolID, ask.ToolName)
		}
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		rel, err := events.Data[events.CallReleased](b.Await(b.Conn().Namespace().Go(call, events.DefaultPool, "db.query"), moment))
		b.must(err)
		equal(t, "the release", rel.ToolID+" "+rel.ToolName, "db.query "+key)
		equal(t, "executions", b.given(key), []string{`{}`})
		equal(t, "results", b.told(), []string{"my-server_db_query json {}"})
	})
}

// TestCase_PAIR_1 kills the executor while a tool runs. The call gets its one result, of its true outcome, before the
// model is asked again.
func TestCase_PAIR_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		running := make(chan struct{}, 1)
		tool := agent.NewTool("pay", "Pay", func(ctx context.Context, _ *agent.Call, _ Order) (any, error) {
			running <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}, &agent.ToolOptions{OutputSchema: json.RawMessage(`{}`)})
		b := newBench(t, Options{}, []agent.Tool{tool}, asks(callTo("pay", `{"orderId":"42"}`)), agenttest.Say("sorry"))
		executor := b.StartAll()[2]
		run := b.Request("go")
		call := b.call(run, 1, 1)
		<-running
		executor.Kill()
		b.Start(toolexecutor.Name)
		if ask := b.AwaitAsk(call, 10*moment); ask.Kind != events.AskInDoubt {
			t.Fatalf("the call is held as %s", ask.Kind)
		}
		b.send("alice", events.Decline, call, because("it did not happen"))
		b.completed(run)
		equal(t, "results", b.told(), []string{`pay text "it did not happen"`})
		if d := b.result(call); d.Outcome != events.OutcomeDeclined || !d.Started {
			t.Errorf("result = %+v, want declined, started", d)
		}
	})
}

// TestCase_PAIR_4 completes six calls in reverse order, two of them after people decided: the model gets one group, in
// call order.
func TestCase_PAIR_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		tool := agent.NewTool("wait", "Wait", func(_ context.Context, _ *agent.Call, in struct {
			N int `json:"n"`
		},
		) (any, error) {
			time.Sleep(time.Duration(6-in.N) * time.Second) // fake
			return in.N, nil
		}, &agent.ToolOptions{RequireApproval: agent.When("args.n == 2 || args.n == 5"), OutputSchema: json.RawMessage(`{}`)})
		var calls []agenttest.ToolCall
		for n := range 6 {
			calls = append(calls, callTo("wait", fmt.Sprintf(`{"n":%d}`, n)))
		}
		b := newBench(t, Options{}, []agent.Tool{tool}, asks(calls...), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 3), moment)
		b.pause(10 * time.Second)
		b.send("alice", events.Decline, b.call(run, 1, 6), because("no"))
		b.send("alice", events.Approve, b.call(run, 1, 3), nil)
		b.completed(run)
		equal(t, "results", b.told(), []string{"wait json 0", "wait json 1", "wait json 2", "wait json 3", "wait json 4", `wait text "no"`})
	})
}

// TestCase_PAIR_5 stores the result of a call when it is there, not when its held sibling is decided.
func TestCase_PAIR_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("read", anything, agent.ToolOptions{}), echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{}`), callTo("read", `{}`)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 1), moment)
		if d := b.Await(b.Conn().Namespace().Call(b.call(run, 1, 2), events.KindResult), moment); time.Since(d.Stored) > moment {
			t.Errorf("the result was stored at %s", d.Stored)
		}
		time.Sleep(moment) // fake
		copies[1].Kill()
		b.Start(approval.Name)
		b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		b.completed(run)
		equal(t, "results", b.told(), []string{"pay json {}", "read json {}"})
	})
}

// TestCase_PAIR_8 has results delivered again and again, and approves twice: the transcript holds one result of the call.
func TestCase_PAIR_8(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var losing atomic.Bool
		b := newBench(t, Options{Drop: losing.Load}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 2), moment)
		losing.Store(true)
		first := b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		b.result(b.call(run, 1, 1))
		again := b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		equal(t, "the second approval", b.refusal(b.call(run, 1, 1), again).Code, events.CodeAlreadyDecided)
		time.Sleep(2 * time.Minute) // fake: the result and the approvals come again
		losing.Store(false)
		b.send("alice", events.Decline, b.call(run, 1, 2), nil)
		b.completed(run)
		equal(t, "requests", len(b.model.Requests()), 2)
		equal(t, "executions", b.given("pay"), []string{`{"n":1}`})
		if _, err := b.Conn().Fact(t.Context(), b.Conn().Namespace().Beside(b.call(run, 1, 1), events.KindRefused, first)); !errors.Is(err, jetstream.ErrNotFound) {
			t.Errorf("the approval that counted is refused too: %v", err)
		}
	})
}

// TestCase_PAIR_9 shows the model, after a suspension and a restart, the very bytes that were frozen.
func TestCase_PAIR_9(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{pauser("find", agent.ToolOptions{})}, asks(callTo("find", `{ "z": 1, "a": "<b>" }`)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		frozen := string(b.AwaitAsk(call, moment).Args)
		for _, c := range copies {
			c.Kill()
		}
		b.Restart()
		b.StartAll()
		b.send("alice", events.ResumeD, call, withData(`true`))
		b.completed(run)
		equal(t, "the frozen arguments", frozen, `{"a":"<b>","z":1}`)
		equal(t, "the history", b.said(call), frozen)
		equal(t, "what the handler got", b.given("find"), []string{frozen, frozen})
	})
}

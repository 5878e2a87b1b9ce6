package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// Reported failures of systems on JetStream: redelivery, publishing, flow, and what is kept in buckets. RDLV-4 is what
// the habits of every handler show (TestHabits of each service).

// slow is a tool with effects that takes its time.
func slow(id string, d time.Duration) agent.Tool {
	return agent.NewTool(id, "The tool "+id, func(context.Context, *agent.Call, json.RawMessage) (any, error) {
		time.Sleep(d) // fake
		return "done", nil
	}, &agent.ToolOptions{InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`), Timeout: 10 * time.Minute})
}

func oneAtATime(c *toolexecutor.Config) { c.Concurrency = 1 }

// settled waits until no consumer has anything under way, and reports what is left of it in the end.
func (b *bench) settled(within time.Duration) map[string]int {
	b.T.Helper()
	left := map[string]int{}
	for end := time.Now().Add(within); ; b.pause(time.Second) {
		clear(left)
		for _, at := range []struct{ stream, consumer string }{
			{events.StreamInbox, jetstream.ConsumerApproval},
			{events.StreamInbox, jetstream.ConsumerPlanner},
			{events.StreamRuns, jetstream.ConsumerApproval},
			{events.StreamRuns, jetstream.ConsumerPlanner},
			{events.StreamRuns, events.PoolConsumer("default")},
		} {
			backlog, err := b.Conn().Backlog(b.T.Context(), at.stream, at.consumer)
			b.must(err)
			if backlog.Outstanding > 0 {
				left[at.stream+" "+at.consumer] = backlog.Outstanding
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// TestCase_RDLV_1 runs twelve calls one after the other, which together take eight times the deadline of a delivery, and one
// that alone takes longer than it.
func TestCase_RDLV_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var calls []agenttest.ToolCall
		for i := range 12 {
			calls = append(calls, callTo("job", fmt.Sprintf(`{"n":%d}`, i)))
		}
		b := newBench(t, Options{Exec: oneAtATime}, []agent.Tool{slow("job", 20*time.Second), slow("long", 2*time.Minute)},
			asks(calls...), asks(callTo("long", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		end := b.AwaitEnd(run, 20*moment)
		equal(t, "the end", end.Outcome, events.RunCompleted)
		equal(t, "executions", []int{len(b.given("job")), len(b.given("long"))}, []int{12, 1})
		equal(t, "claims", b.Check(true)["claim"], 13)
	})
}

// TestCase_RDLV_5 sends a decision again, and a start, when all is settled: both are acknowledged and change nothing.
func TestCase_RDLV_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		equal(t, "under way", b.settled(moment), map[string]int{})
		b.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()})
		b.RequestAs("bob", events.RunRequested{AgentID: b.opts.Agent.ID, RunID: run, Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")}})
		equal(t, "under way after duplicates", b.settled(moment), map[string]int{})
		equal(t, "executions", b.Effects.Of(call.String()), 1)
		b.Check(true)
	})
}

// TestCase_PUB_1 releases a call again within a moment, on the subject of its first release: it is delivered.
func TestCase_PUB_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{pauser("find", agent.ToolOptions{})}, asks(callTo("find", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.send("alice", events.ResumeD, b.call(run, 1, 1), withData(`{"a":1}`))
		b.completed(run)
		equal(t, "deliveries", len(b.given("find")), 2)
		equal(t, "releases", b.Check(true)["go"], 2)
	})
}

// TestCase_PUB_4 stops the server right after it has stored a start, and what follows from it. Who asked cannot know, and
// sends the start again under its run id: it is the same run.
func TestCase_PUB_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{})}, asks(callTo("pay", `{}`)), agenttest.Say("done"))
		request := events.RunRequested{AgentID: b.opts.Agent.ID, RunID: "again", Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")}}
		b.RequestAs("bob", request)
		copies := b.StartAll()
		b.Await(b.Conn().Namespace().Start("again"), moment)
		for _, c := range copies {
			c.Kill()
		}
		b.Restart()
		b.StartAll()
		b.RequestAs("bob", request)
		b.completed("again")
		report := b.Check(true)
		equal(t, "starts", report["start"], 1)
		equal(t, "executions", b.Effects.Of(b.call("again", 1, 1).String()), 1)
	})
}

// TestCase_FLOW_1 holds more calls than an executor runs and a gate handles at once: none occupies a place in a queue, and
// new calls run at once.
func TestCase_FLOW_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var calls []agenttest.ToolCall
		for range 40 {
			calls = append(calls, callTo("pay", `{}`))
		}
		b := newBench(t, Options{Exec: oneAtATime},
			[]agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()}), echo("read", anything, agent.ToolOptions{})},
			asks(calls...), asks(callTo("read", `{}`)), agenttest.Say("done"))
		b.StartAll()
		holds := b.Request("pay")
		for i := range calls {
			b.AwaitAsk(b.call(holds, 1, i+1), moment)
		}
		equal(t, "under way while 40 calls are held", b.settled(moment), map[string]int{})
		b.completed(b.Request("read"))
	})
}

// TestCase_KV_3 restarts the server under a client that follows a held run, and decides right after: the decision takes
// effect, and the client sees it.
func TestCase_KV_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{}`)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.AwaitAsk(call, moment)
		for _, c := range copies {
			c.Kill()
		}
		b.Restart()
		b.StartAll()
		b.send("alice", events.Approve, call, nil)
		before := time.Now()
		b.result(call)
		if took := time.Since(before); took > 5*time.Second {
			t.Errorf("the decision took effect after %v of fake time", took)
		}
		b.completed(run)
	})
}

// TestCase_SIZE_1 takes thirty calls with results of 50 KB before the first approval: each message is stored once, and the
// run that is suspended in the end goes on.
func TestCase_SIZE_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		read := agent.NewTool("read", "Read", func(_ context.Context, call *agent.Call, _ json.RawMessage) (any, error) {
			return fmt.Sprintf("%s %050000d", call.ToolCallID(), 0), nil
		}, &agent.ToolOptions{InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`), Effect: agent.ReadOnly})
		var steps []agenttest.Step
		for i := range 30 {
			steps = append(steps, asks(callTo("read", fmt.Sprintf(`{"page":%d}`, i))))
		}
		steps = append(steps, asks(callTo("pay", `{}`)), agenttest.Say("done"))
		def := events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{"read": "read", "pay": "pay"}, Limits: &events.Limits{Steps: 40}}
		b := newBench(t, Options{Agent: def}, []agent.Tool{read, echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})}, steps...)
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 31, 1)
		b.AwaitAsk(call, 10*moment)
		keys, err := b.Conn().ListSuspended(t.Context(), "", "", "")
		b.must(err)
		if len(keys) != 1 {
			t.Fatalf("%d runs are suspended, want 1", len(keys))
		}
		snapshot, _, err := b.Conn().Snapshot(t.Context(), keys[0])
		b.must(err)
		if content := 30 * 50_000; snapshot.Size < content || snapshot.Size > content+content/10 {
			t.Errorf("the snapshot of 30 results of 50 KB has %d bytes", snapshot.Size)
		}
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
	})
}

// TestCase_NAME_9 compares the tools that a model is given with and without automatic resumes: they are the same.
func TestCase_NAME_9(t *testing.T) {
	inCase(t, func(t *testing.T) {
		given := func(auto bool) []agent.ModelTool {
			tools, keys := []agent.Tool{pauser("find", agent.ToolOptions{ResumeSchema: json.RawMessage(`{"type":"object"}`)})}, map[string]string{"find": "find"}
			for i := range 10 {
				id := fmt.Sprintf("tool%d", i)
				tools, keys[id] = append(tools, echo(id, anything, agent.ToolOptions{})), id
			}
			def := events.AgentDef{ID: "support", Model: "scripted/sim", Tools: keys, AutoResumeSuspendedTools: auto}
			b := newBench(t, Options{Agent: def}, tools, asks(callTo("find", `{}`)), agenttest.Say("done"))
			b.StartAll()
			run := b.Request("go")
			b.send("alice", events.ResumeD, b.call(run, 1, 1), withData(`{}`))
			b.completed(run)
			return b.model.Requests()[1].Tools
		}
		if diff := cmp.Diff(given(false), given(true)); diff != "" {
			t.Errorf("the tools with automatic resumes (-without +with):\n%s", diff)
		}
	})
}

// TestCase_CE_3 lets a program that knows CloudEvents and NATS alone decide, in structured and in binary mode: both count,
// and what is stored of them is the same.
func TestCase_CE_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{}`), callTo("pay", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		nc, err := nats.Connect("", nats.InProcessServer(b.Server.InProcess()), nats.NoReconnect())
		b.must(err)
		t.Cleanup(nc.Close)
		attributes := func(id string) map[string]string {
			return map[string]string{
				"specversion": "1.0", "id": id, "source": "/chat", "type": "dev.weirkeeper.decision.requested.v1", "subject": run, "authid": "alice",
			}
		}
		var answers []events.CallAnswered
		for i, message := range []func(data string) *nats.Msg{
			func(data string) *nats.Msg {
				body := map[string]any{"datacontenttype": "application/json", "data": json.RawMessage(data)}
				for name, value := range attributes("structured") {
					body[name] = value
				}
				payload, err := json.Marshal(body)
				b.must(err)
				return &nats.Msg{Header: nats.Header{"content-type": {"application/cloudevents+json"}}, Data: payload}
			},
			func(data string) *nats.Msg {
				header := nats.Header{"content-type": {"application/json"}}
				for name, value := range attributes("binary") {
					header["ce-"+name] = []string{value}
				}
				return &nats.Msg{Header: header, Data: []byte(data)}
			},
		} {
			call := b.call(run, 1, i+1)
			ask := b.AwaitAsk(call, moment)
			msg := message(fmt.Sprintf(`{"decision":"approve","toolCallId":%q,"fingerprint":%q,"reason":"looked at"}`, call, ask.Fingerprint))
			msg.Subject = b.Conn().Namespace().InDecide("alice", call)
			b.must(nc.PublishMsg(msg))
			answer, err := events.Data[events.CallAnswered](b.Await(b.Conn().Namespace().Call(call, events.KindAnswer), moment))
			b.must(err)
			answer.Fingerprint, answer.EventID, answer.InboxSeq, answer.ToolCallID, answer.At = "", "", 0, "", time.Time{}
			answers = append(answers, answer)
		}
		equal(t, "the answer in binary mode", answers[1], answers[0])
		b.completed(run)
	})
}

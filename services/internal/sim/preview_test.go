package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// previewed is a tool that always asks and shows a preview first.
func previewed(id string, p *agent.Preview) agent.Tool {
	return agent.NewTool(id, "The tool "+id, func(_ context.Context, _ *agent.Call, in json.RawMessage) (any, error) {
		return in, nil
	}, &agent.ToolOptions{
		InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`), RequireApproval: agent.Always(), Preview: p,
	})
}

// newPreviews is a bench whose tools are not wrapped: what wraps a tool has no function for previews.
func newPreviews(t *testing.T, o Options, tools []agent.Tool, steps ...agenttest.Step) *bench {
	t.Helper()
	o.Tools = tools
	return newBench(t, o, nil, steps...)
}

// startHosted starts every service and waits until the hosts answer.
func (b *bench) startHosted() []*Copy {
	copies := b.StartAll()
	b.pause(time.Second)
	return copies
}

// TestB8_32PreviewIsShown shows what a call would do in the ask, its chunk and the list, by a template and by a function.
func TestB8_32PreviewIsShown(t *testing.T) {
	inCase(t, func(t *testing.T) {
		asked := func(_ context.Context, call *agent.Call, in json.RawMessage) (any, error) {
			return map[string]any{"args": in, "call": call.ToolCallID()}, nil
		}
		b := newPreviews(t, Options{}, []agent.Tool{
			previewed("refund", agent.PreviewTemplate("refund {{.amount}} EUR for {{.orderId}}")), previewed("ask", agent.PreviewFunc(asked)),
			previewed("none", nil),
		}, asks(callTo("refund", `{"amount":612.50,"orderId":"o-1"}`), callTo("ask", `{"n":9007199254740993}`), callTo("none", `{}`)),
			agenttest.Say("done"))
		b.startHosted()
		run := b.Request("go")
		for i, want := range []string{
			`{"text":"refund 612.50 EUR for o-1"}`, `{"json":{"args":{"n":9007199254740993},"call":"` + b.call(run, 1, 2).String() + `"}}`, ``,
		} {
			call := b.call(run, 1, i+1)
			equal(t, "preview of the ask", string(b.AwaitAsk(call, moment).Preview), want)
			equal(t, "preview in the list", string(b.listed(call).Preview), want)
		}
		for i := 1; i <= 3; i++ {
			b.send("alice", events.Approve, b.call(run, 1, i), nil)
		}
		b.completed(run)
		shown := chunk[events.AskPayload](b, run, events.ChunkToolCallApproval, b.call(run, 1, 1))
		equal(t, "preview of the chunk", string(shown.Ask.Preview), `{"text":"refund 612.50 EUR for o-1"}`)
	})
}

// listed is an open ask as the run's entry lists it.
func (b *bench) listed(call events.CallID) events.OpenAsk {
	b.T.Helper()
	keys, err := b.Conn().ListSuspended(b.T.Context(), "", "", "")
	b.must(err)
	for _, key := range keys {
		snap, _, err := b.Conn().Snapshot(b.T.Context(), key)
		b.must(err)
		for _, a := range snap.Asks {
			if a.ToolCallID == call.String() {
				return a
			}
		}
	}
	b.T.Fatalf("%s is not listed", call)
	return events.OpenAsk{}
}

// TestB8_32PreviewNeverHoldsAnAskUp lets ten previews of one step hang: their asks come together after 2 s, without them,
// and can be decided. It changes neither fingerprint nor verdict.
func TestB8_32PreviewNeverHoldsAnAskUp(t *testing.T) {
	inCase(t, func(t *testing.T) {
		hangs := func(ctx context.Context, _ *agent.Call, _ json.RawMessage) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		var calls []agenttest.ToolCall
		for i := range 10 {
			calls = append(calls, callTo("slow", fmt.Sprintf(`{"n":%d}`, i)))
		}
		b := newPreviews(t, Options{}, []agent.Tool{previewed("slow", agent.PreviewFunc(hangs))}, asks(calls...), agenttest.Say("done"))
		b.startHosted()
		run := b.Request("go")
		step := b.Await(b.Conn().Namespace().Step(run, 1), moment)
		for i := range 10 {
			call := b.call(run, 1, i+1)
			ask := b.AwaitAsk(call, moment)
			equal(t, "preview", string(ask.Preview), `{"failed":true}`)
			if late := ask.AskedAt.Sub(step.Time); late > time.Second {
				t.Errorf("the ask was made %v after the step", late)
			}
			if f := b.Await(b.Conn().Namespace().Call(call, events.KindAsk), moment); f.Stored.Sub(step.Stored) > 2500*time.Millisecond {
				t.Errorf("the ask was stored %v after the step", f.Stored.Sub(step.Stored))
			}
			want := events.Frozen{
				Namespace: events.DefaultNamespace, RunID: run, ToolCallID: call.String(), ToolID: ask.ToolID, ToolVersion: ask.ToolVersion,
				InputSchemaDigest: ask.InputSchemaDigest, Args: ask.Args,
			}.Fingerprint()
			equal(t, "fingerprint", ask.Fingerprint, want)
			b.send("alice", events.Approve, call, nil)
		}
		b.completed(run)
	})
}

// TestB8_32PreviewFails asks without a preview when its function fails, panics, gives what is no JSON, or has no host.
func TestB8_32PreviewFails(t *testing.T) {
	inCase(t, func(t *testing.T) {
		f := func(out any, err error) *agent.Preview {
			return agent.PreviewFunc(func(context.Context, *agent.Call, json.RawMessage) (any, error) {
				if out == "panic" {
					panic("no")
				}
				return out, err
			})
		}
		tools := []agent.Tool{
			previewed("error", f(nil, errors.New("no"))), previewed("panics", f("panic", nil)), previewed("broken", f(func() {}, nil)),
			previewed("holes", agent.PreviewTemplate("{{.none}}")), previewed("long", f(strings.Repeat("x", 50_000), nil)),
		}
		var calls []agenttest.ToolCall
		for _, tool := range tools {
			calls = append(calls, callTo(tool.Manifest().ID, `{}`))
		}
		b := newPreviews(t, Options{}, tools, asks(calls...), asks(callTo("error", `{}`)), agenttest.Say("done"))
		copies := b.startHosted()
		run := b.Request("go")
		for i := range tools[:4] {
			equal(t, tools[i].Manifest().ID, string(b.AwaitAsk(b.call(run, 1, i+1), moment).Preview), `{"failed":true}`)
		}
		var long events.Preview
		b.must(json.Unmarshal(b.AwaitAsk(b.call(run, 1, 5), moment).Preview, &long))
		if len(long.Text) != events.MaxPreview || !long.Truncated {
			t.Errorf("a long preview: %d bytes, truncated: %v", len(long.Text), long.Truncated)
		}
		for i := range tools {
			b.send("alice", events.Decline, b.call(run, 1, i+1), nil)
			if i == 3 {
				b.must(copies[2].Stop()) // the host
			}
		}
		equal(t, "without a host", string(b.AwaitAsk(b.call(run, 2, 1), moment).Preview), `{"failed":true}`)
		b.send("alice", events.Decline, b.call(run, 2, 1), nil)
		b.completed(run)
	})
}

// TestB8_32ResentAskKeepsItsPreview asks again about a call that suspended itself, one that fell in doubt and one that
// was edited: only new arguments are previewed again.
func TestB8_32ResentAskKeepsItsPreview(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var made atomic.Int32
		p := agent.PreviewFunc(func(_ context.Context, _ *agent.Call, in json.RawMessage) (any, error) {
			return fmt.Sprintf("%d: %s", made.Add(1), in), nil
		})
		suspends := agent.NewTool("pay", "Pay", func(_ context.Context, call *agent.Call, _ json.RawMessage) (any, error) {
			if !call.Resumed() {
				return nil, call.Suspend("which account?")
			}
			return "paid", nil
		}, &agent.ToolOptions{
			InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`), RequireApproval: agent.Always(), Preview: p,
		})
		step := asks(callTo("pay", `{"a":1}`))
		step.Text = "I pay it now."
		b := newPreviews(t, Options{}, []agent.Tool{suspends}, step, agenttest.Say("done"))
		b.startHosted()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		want := func(round int, preview string) {
			t.Helper()
			ask := b.awaitRound(call, round)
			equal(t, "preview", string(ask.Preview), `{"text":"`+preview+`"}`)
			if ask.LastWords == nil || ask.LastWords.Text != "I pay it now." {
				t.Errorf("round %d: the agent's last words are %+v", round, ask.LastWords)
			}
		}
		want(0, `1: {\"a\":1}`)
		b.send("alice", events.Edit, call, func(d *events.DecisionRequested) { d.Args = json.RawMessage(`{"a":2}`) })
		want(1, `2: {\"a\":2}`)
		b.send("alice", events.Approve, call, nil)
		want(2, `2: {\"a\":2}`)
		b.send("alice", events.ResumeD, call, withData(`"savings"`))
		b.completed(run)
		equal(t, "previews made", made.Load(), int32(2))
	})
}

// awaitRound waits for the ask of a round.
func (b *bench) awaitRound(call events.CallID, round int) events.CallHeld {
	b.T.Helper()
	for range 600 {
		if ask := b.AwaitAsk(call, moment); ask.Round == round {
			return ask
		}
		b.pause(100 * time.Millisecond)
	}
	b.T.Fatalf("%s is not asked about in round %d", call, round)
	return events.CallHeld{}
}

// TestLastWordsOfTheAgent shows what the agent said before a call, in asks and nowhere else, of a call in doubt that
// was never approved too.
func TestLastWordsOfTheAgent(t *testing.T) {
	inCase(t, func(t *testing.T) {
		started := make(chan struct{}, 1)
		job := agent.NewTool("job", "Do it", func(ctx context.Context, _ *agent.Call, _ json.RawMessage) (any, error) {
			started <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}, &agent.ToolOptions{InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`)})
		step := asks(callTo("job", `{}`))
		step.Text = "Now I do it."
		b := newPreviews(t, Options{}, []agent.Tool{job}, step, agenttest.Say("done"))
		b.Start(planner.Name)
		b.Start(approval.Name)
		worker := b.Start(toolexecutor.Name)
		run := b.Request("go")
		<-started
		worker.Kill()
		b.Start(toolexecutor.Name)
		call := b.call(run, 1, 1)
		ask := b.AwaitAsk(call, 10*moment)
		if ask.Kind != events.AskInDoubt || ask.LastWords == nil || ask.LastWords.Text != "Now I do it." {
			t.Errorf("ask of kind %s, last words %+v", ask.Kind, ask.LastWords)
		}
		b.send("alice", events.Respond, call, func(d *events.DecisionRequested) { d.Result = json.RawMessage(`"it was done"`) })
		b.completed(run)
	})
}

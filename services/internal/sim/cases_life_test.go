package sim

import (
	"context"
	"encoding/json"
	"flag"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
)

// TestCase_LIFE_1 lets asks expire that nobody decides: the run goes on, or ends, as the tool says. (KV-4)
func TestCase_LIFE_1(t *testing.T) {
	for onExpiry, want := range map[string]events.RunOutcome{"decline": events.RunCompleted, "fail": events.RunFailed} {
		t.Run(onExpiry, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				tool := echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always(), Expires: 2 * time.Second, OnExpiry: onExpiry})
				steps := []agenttest.Step{asks(callTo("pay", `{}`))}
				if want == events.RunCompleted {
					steps = append(steps, agenttest.Say("too late"))
				}
				b := newBench(t, Options{}, []agent.Tool{tool}, steps...)
				b.StartAll()
				run := b.Request("go")
				call := b.call(run, 1, 1)
				b.AwaitAsk(call, moment)
				end := b.AwaitEnd(run, moment)
				equal(t, "the end", end.Outcome, want)
				if want == events.RunFailed && end.Error.Code != events.CodeAskExpired {
					t.Errorf("the run failed with %+v", end.Error)
				}
				equal(t, "the call", b.result(call).Outcome, events.OutcomeExpired)
				b.pause(2 * time.Second)
				equal(t, "the list", len(b.open()), 0)
				equal(t, "executions", len(b.given("pay")), 0)
				equal(t, "answers", b.Check(true)["answer"], 1)
			})
		})
	}
}

var heldRuns = flag.Int("weir.held", 250, "how many runs TestCase_LIFE_4 holds, decides and ends; the case has a thousand")

// TestCase_LIFE_4 holds, decides and ends many runs: nothing of them is left in the bucket, and a restart starts nothing.
func TestCase_LIFE_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w := New(t, Options{})
		copies := w.StartAll()
		const atOnce = 50
		slots := make(chan struct{}, atOnce)
		var wg sync.WaitGroup
		for range *heldRuns {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				run := w.Request("Refund order 42")
				ask := w.AwaitAsk(refundOf(run), 10*moment)
				w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: ask.ToolCallID, Fingerprint: ask.Fingerprint})
				w.AwaitEnd(run, 10*moment)
			})
		}
		wg.Wait()
		w.pause(5 * time.Second)
		b := &bench{World: w}
		equal(t, "the list", len(b.open()), 0)
		before := w.Check(true)
		for _, c := range copies {
			c.Kill()
		}
		w.Restart()
		w.StartAll()
		w.pause(2 * time.Minute)
		equal(t, "the log after a restart", w.Check(true), before)
	})
}

// TestCase_LIFE_6 cancels a run between the release of one call and that of the next, and while a tool that ignores its
// context runs: the second never starts, and what the first brings later is evidence.
func TestCase_LIFE_6(t *testing.T) {
	inCase(t, func(t *testing.T) {
		leave, running := make(chan struct{}), make(chan struct{}, 2)
		tool := agent.NewTool("job", "Do", func(context.Context, *agent.Call, Order) (any, error) {
			running <- struct{}{}
			<-leave
			return "done", nil
		}, &agent.ToolOptions{OutputSchema: json.RawMessage(`{}`)})
		var once sync.Once
		var b *bench
		o := Options{Point: func(name string, c *Copy) {
			if name == "go.after" && c.Service == approval.Name {
				once.Do(func() { time.Sleep(10 * time.Second) }) // fake: between the first release and the second
			}
		}}
		b = newBench(t, o, []agent.Tool{tool}, asks(callTo("job", `{"orderId":"1"}`), callTo("job", `{"orderId":"2"}`)))
		b.StartAll()
		b.Start(approval.Name)
		run := b.Request("go")
		<-running
		b.Cancel("bob", run)
		if end := b.AwaitEnd(run, moment); end.Outcome != events.RunCancelled {
			t.Errorf("run ended as %s", end.Outcome)
		}
		b.pause(20 * time.Second)
		close(leave)
		b.pause(time.Second)
		if d := b.result(b.call(run, 1, 2)); d.Outcome != events.OutcomeCancelled || d.Started {
			t.Errorf("the second call: %+v, want cancelled, not started", d)
		}
		if d := b.result(b.call(run, 1, 1)); d.Outcome != events.OutcomeCancelled || !d.Started {
			t.Errorf("the first call: %+v, want cancelled, started", d)
		}
		equal(t, "late outcomes", b.Check(true)["late"], 1)
		equal(t, "requests", len(b.model.Requests()), 1)
	})
}

// TestCase_ARGS_1 gives a tool nothing, in every way that models have for it.
func TestCase_ARGS_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		needs := `{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`
		var calls []agenttest.ToolCall
		for _, tool := range []string{"free", "needs"} {
			for _, args := range []string{"", "null", "   ", "{}"} {
				calls = append(calls, callTo(tool, args))
			}
		}
		b := newBench(t, Options{}, []agent.Tool{echo("free", anything, agent.ToolOptions{}), echo("needs", needs, agent.ToolOptions{})},
			asks(calls...), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.completed(run)
		equal(t, "executions", b.given("free"), []string{"{}", "{}", "{}", "{}"})
		equal(t, "executions of the other", len(b.given("needs")), 0)
		for i := 5; i <= 8; i++ {
			equal(t, "the outcome", b.result(b.call(run, 1, i)).Outcome, events.OutcomeInvalid)
		}
	})
}

// TestCase_ARGS_2 cuts a turn inside the arguments of a call, in the ways that providers have for it.
func TestCase_ARGS_2(t *testing.T) {
	t.Parallel()
	needs := `{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`
	for name, test := range map[string]struct {
		step agenttest.Step
		says string
	}{
		"length": {agenttest.Step{FinishReason: agent.FinishLength, Calls: []agenttest.ToolCall{{Name: "pay", Args: `{"id":`, Cut: true}}}, "cut off"},
		"valid so far": {agenttest.Step{
			FinishReason: agent.FinishLength,
			Calls:        []agenttest.ToolCall{{Name: "pay", Args: `{"id":"1"}`, Cut: true}},
		}, "cut off"},
		"tool calls, unterminated": {asks(callTo("pay", `{"id":"`)), "position"},
		"required is missing":      {agenttest.Step{FinishReason: agent.FinishLength, Calls: []agenttest.ToolCall{callTo("pay", `{}`)}}, "id: is required"},
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				b := newBench(t, Options{}, []agent.Tool{echo("pay", needs, agent.ToolOptions{RequireApproval: agent.Always()})}, test.step, agenttest.Say("done"))
				b.StartAll()
				run := b.Request("go")
				b.completed(run)
				d := b.result(b.call(run, 1, 1))
				if d.Outcome != events.OutcomeInvalid || d.Started || !strings.Contains(string(d.Result), test.says) {
					t.Errorf("result = %s %s, want one that says %q", d.Outcome, d.Result, test.says)
				}
				equal(t, "asks", b.Check(true)["ask"], 0)
			})
		})
	}
}

// TestCase_ARGS_3 writes arguments that are no JSON object, beside a good call: each gets one error, and the history
// holds JSON.
func TestCase_ARGS_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		bad := []string{
			`{"a":1}{"b":2}`, `{"a":1,}`, `{'a':1}`, `[1]`, `{"a":NaN}`, `{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
			"{\"a\":\"\xff\"}", `{"a":1,"a":2}`,
		}
		var calls []agenttest.ToolCall
		for _, args := range append(bad, `{"good":1}`) {
			calls = append(calls, callTo("read", args))
		}
		b := newBench(t, Options{}, []agent.Tool{echo("read", anything, agent.ToolOptions{})}, asks(calls...), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.completed(run)
		for i, args := range bad {
			d := b.result(b.call(run, 1, i+1))
			if d.Outcome != events.OutcomeInvalid || !strings.Contains(string(d.Result), "position") && !strings.Contains(string(d.Result), "must be an object") {
				t.Errorf("%.40q: %s %s, want invalid, with the position", args, d.Outcome, d.Result)
			}
		}
		equal(t, "executions", b.given("read"), []string{`{"good":1}`})
	})
}

// TestCase_ARGS_5 writes null where a field is optional, where it is nullable and where it has a default: ask and
// handler see the same.
func TestCase_ARGS_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		schema := `{"type":"object","properties":{"plain":{"type":"string"},"nullable":{"type":["string","null"]},"limit":{"type":"integer","default":10}}}`
		want := map[string]string{
			`{"plain":null}`: `{"limit":10}`, `{}`: `{"limit":10}`, `{"plain":"null"}`: `{"limit":10,"plain":"null"}`,
			`{"nullable":null}`: `{"limit":10,"nullable":null}`, `{"limit":null}`: `{"limit":10}`,
		}
		var calls []agenttest.ToolCall
		args := slices.Sorted(func(yield func(string) bool) {
			for a := range want {
				if !yield(a) {
					return
				}
			}
		})
		for _, a := range args {
			calls = append(calls, callTo("find", a))
		}
		b := newBench(t, Options{}, []agent.Tool{echo("find", schema, agent.ToolOptions{RequireApproval: agent.Always()})}, asks(calls...), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		for i, a := range args {
			equal(t, "the ask about "+a, string(b.AwaitAsk(b.call(run, 1, i+1), moment).Args), want[a])
			b.send("alice", events.Approve, b.call(run, 1, i+1), nil)
			b.result(b.call(run, 1, i+1))
			given := b.given("find")
			equal(t, "what the handler got for "+a, given[len(given)-1], want[a])
		}
		b.completed(run)
	})
}

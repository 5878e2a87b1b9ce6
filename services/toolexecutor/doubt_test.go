package toolexecutor_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// held waits until the first call of a run is held in a round.
func held(w *sim.World, run string, round int) events.CallHeld {
	w.T.Helper()
	for range 600 {
		if ask := w.AwaitAsk(first(run), 10*soon); ask.Round == round {
			return ask
		}
		time.Sleep(100 * time.Millisecond) // fake
	}
	w.T.Fatalf("no ask of round %d", round)
	return events.CallHeld{}
}

func decide(w *sim.World, ask events.CallHeld, d events.Decision, more func(*events.DecisionRequested)) {
	w.T.Helper()
	req := events.DecisionRequested{Decision: d, ToolCallID: ask.ToolCallID, Fingerprint: ask.Fingerprint}
	if more != nil {
		more(&req)
	}
	w.Decide("alice", req)
}

// TestB9_6_B9_7_B9_9SuspendTwice lets a call suspend itself twice, each time with a schema of its own for the answer. The handler runs
// from its start each time, with the data and payload of the last round and the same key. (B9.6, B9.7, B9.9)
func TestB9_6_B9_7_B9_9SuspendTwice(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	f := func(_ context.Context, call *agent.Call) (any, error) {
		var data json.RawMessage
		if call.Resumed() {
			data, _ = agent.ResumeData[json.RawMessage](call)
		}
		mu.Lock()
		seen = append(seen, call.IdempotencyKey()+" "+string(data)+" "+string(call.SuspendPayload()))
		round := len(seen)
		mu.Unlock()
		if round < 3 {
			return nil, call.SuspendWith(map[string]int{"question": round}, &agent.SuspendOptions{
				ResumeSchema: json.RawMessage([]string{`{"type":"string"}`, `{"type":"integer"}`}[round-1]),
			})
		}
		return "done", nil
	}
	in(t, job(events.Effectful, f), func(w *sim.World) {
		w.StartAll()
		run := w.Request("Do it")
		for round, data := range []string{`"Rome"`, `7`} {
			ask := held(w, run, round+1)
			if ask.Kind != events.AskSuspended {
				w.T.Fatalf("the call is held as %s", ask.Kind)
			}
			decide(w, ask, events.ResumeD, func(d *events.DecisionRequested) { d.ResumeData = json.RawMessage(`true`) }) // no schema takes it
			time.Sleep(time.Second)                                                                                      // fake
			if kind := last(w, run).Place.Kind; kind != events.KindAsk {
				w.T.Errorf("after bad data the chain ends in %s, want ask", kind)
			}
			decide(w, ask, events.ResumeD, func(d *events.DecisionRequested) { d.ResumeData = json.RawMessage(data) })
		}
		w.AwaitEnd(run, soon)
		key := first(run).String()
		want := []string{key + "  ", key + ` "Rome" {"question":1}`, key + ` 7 {"question":2}`}
		for i := range want {
			if len(seen) != len(want) || seen[i] != want[i] {
				w.T.Fatalf("the handler saw %q, want %q", seen, want)
			}
		}
		w.Check(true)
	})
}

// TestB3_4_B8_12Doubt loses the worker of a call with effects. People say what is to be done: again, what happened, or nothing.
// (B3.4, B8.12)
func TestB3_4_B8_12Doubt(t *testing.T) {
	for d, want := range map[events.Decision]struct {
		outcome events.Outcome
		starts  int
	}{
		events.Retry:   {events.OutcomeOK, 2},
		events.Respond: {events.OutcomeResponded, 1},
		events.Decline: {events.OutcomeDeclined, 1},
	} {
		t.Run(string(d), func(t *testing.T) {
			inBlocked(t, events.Effectful, nil, func(w *sim.World, b *blocker) {
				executor := w.StartAll()[2]
				run := w.Request("Do it")
				<-b.entered
				executor.Kill()
				w.Start(toolexecutor.Name)
				ask := held(w, run, 1)
				if ask.Kind != events.AskInDoubt || ask.Claim == nil || ask.Claim.Attempt != 1 {
					w.T.Fatalf("the ask in doubt: %+v", ask)
				}
				decide(w, ask, d, func(r *events.DecisionRequested) { r.Result = json.RawMessage(`"by hand"`) })
				starts := 1
				if d == events.Retry {
					<-b.entered
					starts++
					b.leave <- struct{}{}
				}
				if r := result(w, run); r.Outcome != want.outcome || !r.Started || starts != want.starts {
					w.T.Errorf("result = %+v after %d starts, want %s after %d", r, starts, want.outcome, want.starts)
				}
				w.AwaitEnd(run, soon)
				w.Check(true)
			})
		})
	}
}

// TestB3_20Poison kills every worker that starts a call which may be repeated. After as many attempts as the tool allows it
// ends with an error. (B3.20)
func TestB3_20Poison(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		entered := make(chan struct{}, 4)
		tool := agent.NewTool("job", "Do a job", func(ctx context.Context, _ *agent.Call, _ sim.Order) (any, error) {
			entered <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}, &agent.ToolOptions{Effect: agent.Idempotent, MaxAttempts: 2, OutputSchema: json.RawMessage(`{}`)})
		w := sim.New(t, sim.Options{Tools: []agent.Tool{tool}})
		w.Start(planner.Name)
		w.Start(approval.Name)
		run := w.Request("Do it")
		for range 2 {
			executor := w.Start(toolexecutor.Name)
			<-entered
			executor.Kill()
		}
		w.Start(toolexecutor.Name)
		if d := result(w, run); d.Outcome != events.OutcomeError || errorName(d) != "delivery_exhausted" || !d.Started {
			t.Errorf("result = %+v, want delivery_exhausted", d)
		}
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// TestB3_19NobodyHostsTheVersion starts a run with one version of a tool, of which no host is left, only one of the next. The
// release is given back until its deadline, and then the call is unavailable. (B3.19)
func TestB3_19NobodyHostsTheVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		versioned := func(version string) agent.Tool {
			return agent.NewTool("job", "Do a job", func(context.Context, *agent.Call, sim.Order) (any, error) { return version, nil },
				&agent.ToolOptions{Version: version, StartTimeout: time.Minute, OutputSchema: json.RawMessage(`{}`)})
		}
		w := sim.New(t, sim.Options{Tools: []agent.Tool{versioned("1")}})
		w.Start(planner.Name)
		w.Start(approval.Name)
		run := w.Request("Do it")
		released(w, run)
		cfg := w.ExecutorConfig()
		cfg.Tools = []agent.Tool{versioned("2")}
		next, err := toolexecutor.New(w.Dial("next", nil), cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		var running sync.WaitGroup
		running.Go(func() { _ = next.Run(ctx) })
		defer running.Wait()
		defer cancel()
		time.Sleep(50 * time.Second) // fake
		if kind := last(w, run).Place.Kind; kind != events.KindGo {
			t.Errorf("before the deadline the chain ends in %s, want go", kind)
		}
		if d := result(w, run); d.Outcome != events.OutcomeUnavailable || d.Started {
			t.Errorf("result = %+v, want unavailable, not started", d)
		}
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// TestB1_18Conflict registers two definitions of one version of a tool: the second host is refused. (B1.18, AVAIL-5)
func TestB1_18Conflict(t *testing.T) {
	in(t, job(events.Effectful, done), func(w *sim.World) {
		cfg := w.ExecutorConfig()
		cfg.Tools = job(events.ReadOnly, done).Tools
		s, err := toolexecutor.New(w.Dial("other", nil), cfg)
		if err != nil {
			w.T.Fatal(err)
		}
		if err := s.Run(w.T.Context()); events.CodeOf(err) != events.CodeToolConflict {
			w.T.Errorf("the second host: %v, want tool_conflict", err)
		}
	})
}

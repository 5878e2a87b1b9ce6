package approval_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// in runs a test in fake time, in a world of its own.
func in(t *testing.T, o func(*testing.T) sim.Options, f func(w *sim.World)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(sim.New(t, o(t))) })
}

// tool is a tool that does what f says.
func tool(id string, f func(ctx context.Context, call *agent.Call) (any, error), o agent.ToolOptions) agent.Tool {
	o.OutputSchema = json.RawMessage(`{}`)
	return agent.NewTool(id, "The tool "+id, func(ctx context.Context, call *agent.Call, _ sim.Order) (any, error) {
		return f(ctx, call)
	}, &o)
}

func done(context.Context, *agent.Call) (any, error) { return "done", nil }

// pauses suspends itself until it is resumed.
func pauses(_ context.Context, call *agent.Call) (any, error) {
	if !call.Resumed() {
		return nil, call.Suspend("which?")
	}
	return "done", nil
}

// scripted is a world whose model makes these calls, all in one turn, and then says that it is done.
func scripted(o sim.Options, calls ...string) func(*testing.T) sim.Options {
	return func(t *testing.T) sim.Options {
		var step agenttest.Step
		for _, name := range calls {
			step.Calls = append(step.Calls, agenttest.ToolCall{Name: name, Args: `{"orderId":"42"}`})
		}
		o.Model = agenttest.NewModel(t, step, agenttest.Say("done"))
		return o
	}
}

func place(w *sim.World, run string, index int, kind events.Kind) events.Place {
	return w.Conn().Namespace().Call(events.CallID{Run: run, Step: 1, Index: index}, kind)
}

func result(w *sim.World, run string, index int) events.CallFinished {
	w.T.Helper()
	d, err := events.Data[events.CallFinished](w.Await(place(w, run, index, events.KindResult), 10*soon))
	must(w, err)
	return d
}

func must(w *sim.World, err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// listed are the asks of the only entry of the bucket.
func listed(w *sim.World) []events.OpenAsk {
	w.T.Helper()
	keys, err := w.Conn().ListSuspended(w.T.Context(), "", "", "")
	must(w, err)
	var all []events.OpenAsk
	for _, key := range keys {
		snap, _, err := w.Conn().Snapshot(w.T.Context(), key)
		if errors.Is(err, jetstream.ErrNotFound) {
			continue
		}
		must(w, err)
		all = append(all, snap.Asks...)
	}
	return all
}

func answer(w *sim.World, run string, d events.Decision, round int) {
	w.T.Helper()
	req := decision(d, refundOf(run))
	req.Fingerprint, req.ResumeData = askOf(w, refundOf(run), round).Fingerprint, json.RawMessage(`true`)
	w.Decide("alice", req)
}

// TestLateStepLeavesTheEntry hands a step to a gate once more, after a rule was lifted: the call stays held, and listed.
func TestLateStepLeavesTheEntry(t *testing.T) {
	rules := map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{{Name: "all", Tools: []string{"pay"}, Action: events.RuleAsk}}}}
	options := func(t *testing.T) sim.Options {
		return sim.Options{
			Rules: rules, Tools: []agent.Tool{tool("read", done, agent.ToolOptions{}), tool("pay", done, agent.ToolOptions{})},
			Model: agenttest.NewModel(t, agenttest.Ask("read", `{"orderId":"42"}`), agenttest.Ask("pay", `{"orderId":"42"}`), agenttest.Say("done")),
		}
	}
	in(t, options, func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := events.CallID{Run: run, Step: 2, Index: 1}
		ask := w.AwaitAsk(call, soon)
		d := w.Delivered(w.Conn().Namespace().Step(run, 2))
		lifted, err := events.Marshal(events.RuleSet{Name: "default", Rules: []events.Rule{}})
		must(w, err)
		must(w, w.Conn().PutNamed(w.T.Context(), events.RegistryRule, "default", lifted))
		must(w, handler(approval.HandleFact)(w, w.Dial("late", nil))(w.T.Context(), d))
		w.Check(true)
		if asks := listed(w); len(asks) != 1 || !asks[0].ExpiresAt.Equal(ask.ExpiresAt) {
			w.T.Errorf("the entry lists %+v, want the ask as it is stored", asks)
		}
	})
}

// TestEntryShowsTheStoredAsk hands a step to a second gate later, which would have asked with another deadline: the entry
// keeps that of the ask that stands.
func TestEntryShowsTheStoredAsk(t *testing.T) {
	in(t, scripted(sim.Options{Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})}}, "pay"), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		ask := w.AwaitAsk(refundOf(run), soon)
		time.Sleep(soon) // fake
		d := w.Delivered(w.Conn().Namespace().Step(run, 1))
		d.Attempt = 2
		must(w, handler(approval.HandleFact)(w, w.Dial("late", nil))(w.T.Context(), d))
		if asks := listed(w); len(asks) != 1 || !asks[0].ExpiresAt.Equal(ask.ExpiresAt) {
			w.T.Errorf("the entry lists %+v, want deadline %s", asks, ask.ExpiresAt)
		}
	})
}

// TestB10_9StaleAnswerLeavesTheNextAsk stops a gate right after it stored an answer. Another one goes on; the tool runs and
// suspends itself. When the first wakes up, the new ask stays listed.
func TestB10_9StaleAnswerLeavesTheNextAsk(t *testing.T) {
	var once sync.Once
	o := sim.Options{
		Tools: []agent.Tool{tool("pay", pauses, agent.ToolOptions{RequireApproval: agent.Always()})},
		Point: func(name string, _ *sim.Copy) {
			if name == "answer.after" {
				once.Do(func() { time.Sleep(3 * time.Minute) }) // fake
			}
		},
	}
	in(t, scripted(o, "pay"), func(w *sim.World) {
		w.StartAll()
		w.Start(approval.Name)
		run := w.Request("go")
		time.Sleep(time.Second) // fake
		answer(w, run, events.Approve, 0)
		askOf(w, refundOf(run), 1)
		time.Sleep(4 * time.Minute) // fake
		w.Check(true)
		answer(w, run, events.ResumeD, 1)
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// stuck is a tool with effects that blocks until it is let go.
type stuck struct{ entered, leave chan struct{} }

func (s *stuck) run(context.Context, *agent.Call) (any, error) {
	s.entered <- struct{}{}
	<-s.leave
	return "done", nil
}

// doubted makes a world in which a call has fallen in doubt while its worker, which was cut off, is still at work.
func doubted(t *testing.T, o sim.Options, f func(w *sim.World, run string)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{make(chan struct{}, 4), make(chan struct{})}
		defer close(s.leave)
		o.Tools = []agent.Tool{tool("pay", s.run, agent.ToolOptions{})}
		w := sim.New(t, scripted(o, "pay")(t))
		w.Start(planner.Name)
		w.Start(approval.Name)
		run := w.Request("go")
		cutOff := w.Start(toolexecutor.Name)
		<-s.entered
		cutOff.Kill()
		w.Start(toolexecutor.Name)
		if ask := askOf(w, refundOf(run), 1); ask.Kind != events.AskInDoubt {
			t.Fatalf("the call is held as %s", ask.Kind)
		}
		f(w, run)
	})
}

// TestLateOutcomeStaysOnTheAsk shows an outcome that came too late on the ask of the call in doubt, also after the
// sweeper has gone through all asks. (I6)
func TestLateOutcomeStaysOnTheAsk(t *testing.T) {
	doubted(t, sim.Options{Gate: func(c *approval.Config) { c.DeepSweep = soon }}, func(w *sim.World, run string) {
		late(w, run)
		time.Sleep(time.Second) // fake
		for _, when := range []string{"at once", "after a sweep"} {
			asks := listed(w)
			if len(asks) != 1 || asks[0].Late == nil || string(asks[0].Late.Result) != `"paid"` {
				w.T.Fatalf("%s the entry lists %+v, want the late outcome", when, asks)
			}
			time.Sleep(3 * soon) // fake
		}
		answer(w, run, events.Decline, 1)
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// late records an outcome of the first worker.
func late(w *sim.World, run string) jetstream.Delivery {
	w.T.Helper()
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: toolexecutor.Name}
	call := refundOf(run)
	p := w.Conn().Namespace().Beside(call, events.KindLate, "e1")
	e, err := o.Fact(p, events.OutcomeDelayed{
		ToolCallID: call.String(), RunID: run, Attempt: 1, Worker: "w1", Started: true,
		Outcome: events.OutcomeOK, Result: json.RawMessage(`"paid"`),
	}, events.Event{})
	must(w, err)
	must(w, w.Conn().Record(w.T.Context(), e))
	return w.Delivered(p)
}

// TestLateOutcomeBeforeTheAsk hears of a late outcome while the ask on which it belongs is on its way.
func TestLateOutcomeBeforeTheAsk(t *testing.T) {
	in(t, scripted(sim.Options{Tools: []agent.Tool{tool("pay", pauses, agent.ToolOptions{})}}, "pay"), func(w *sim.World) {
		w.Start(planner.Name)
		gate := w.Start(approval.Name)
		run := w.Request("go")
		w.Delivered(w.Conn().Namespace().Go(refundOf(run), events.DefaultPool, "pay"))
		gate.Kill()
		w.Start(toolexecutor.Name)
		suspended := w.Delivered(place(w, run, 1, events.KindSuspend))
		d := late(w, run)
		handle := handler(approval.HandleFact)(w, w.Dial("gate", nil))
		if err := handle(w.T.Context(), d); !jetstream.IsLater(err) {
			w.T.Errorf("before the ask: %v, want later", err)
		}
		must(w, handle(w.T.Context(), suspended))
		must(w, handle(w.T.Context(), d))
		if asks := listed(w); len(asks) != 1 || asks[0].Late == nil {
			w.T.Errorf("the entry lists %+v, want the late outcome", asks)
		}
	})
}

// TestDoubtWithoutHost loses the only host of a tool while its call runs; an executor of the pool is left that hosts
// something else. The call falls in doubt all the same. (B3.4)
func TestDoubtWithoutHost(t *testing.T) {
	for effect, want := range map[events.Effect]events.Kind{events.Effectful: events.KindAsk, events.ReadOnly: events.KindResult} {
		t.Run(string(effect), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &stuck{make(chan struct{}, 4), make(chan struct{})}
				defer close(s.leave)
				w := sim.New(t, scripted(sim.Options{Tools: []agent.Tool{tool("pay", s.run, agent.ToolOptions{Effect: effect})}}, "pay")(t))
				w.Start(planner.Name)
				w.Start(approval.Name)
				executor := w.Start(toolexecutor.Name)
				run := w.Request("go")
				<-s.entered
				executor.Kill()
				other(w)
				switch e := w.Await(place(w, run, 1, want), 10*soon); want {
				case events.KindAsk:
					if ask, err := events.Data[events.CallHeld](e); err != nil || ask.Kind != events.AskInDoubt {
						t.Errorf("the call is held as %s, %v", ask.Kind, err)
					}
				default:
					if d := result(w, run, 1); d.Outcome != events.OutcomeUnavailable || !d.Started {
						t.Errorf("result = %+v, want unavailable, started", d)
					}
				}
			})
		})
	}
}

// other runs an executor of the pool that hosts another tool.
func other(w *sim.World) {
	w.T.Helper()
	cfg := w.ExecutorConfig()
	cfg.Tools = []agent.Tool{tool("another", done, agent.ToolOptions{})}
	s, err := toolexecutor.New(w.Dial("other", nil), cfg)
	must(w, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.T.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	w.T.Cleanup(func() { cancel(); running.Wait() })
}

// TestRetryKeepsResumeData loses the worker of a call that people had resumed. When they say that it should be tried
// again, the handler is resumed with their data, and does not begin from the start. (B8.12)
func TestRetryKeepsResumeData(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		running := make(chan struct{}, 4)
		attempts := 0
		pay := tool("pay", func(ctx context.Context, call *agent.Call) (any, error) {
			if !call.Resumed() {
				return nil, call.Suspend("which?")
			}
			if attempts++; attempts == 1 {
				running <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}
			data, err := agent.ResumeData[bool](call)
			return map[string]any{"data": data, "payload": call.SuspendPayload()}, err
		}, agent.ToolOptions{})
		w := sim.New(t, scripted(sim.Options{Tools: []agent.Tool{pay}}, "pay")(t))
		executor := w.StartAll()[2]
		run := w.Request("go")
		answer(w, run, events.ResumeD, 1)
		<-running
		executor.Kill()
		w.Start(toolexecutor.Name)
		answer(w, run, events.Retry, 2)
		if d := result(w, run, 1); d.Outcome != events.OutcomeOK || string(d.Result) != `{"data":true,"payload":"which?"}` {
			t.Errorf("result = %s %s, %+v", d.Outcome, d.Result, d.Error)
		}
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// TestDoubtIsForApprovers asks those about a call in doubt who may approve it: to try it again is to approve it again.
func TestDoubtIsForApprovers(t *testing.T) {
	o := sim.Options{Rules: map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{
		{Name: "allowed", When: "run.requester == 'nobody'", Action: events.RuleAllow},
		{Name: "money", Tools: []string{"pay"}, When: "context.live", Action: events.RuleAsk, Approvers: []string{"user:carol"}, NotRequester: true},
	}}}}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{make(chan struct{}, 4), make(chan struct{})}
		defer close(s.leave)
		o.Tools = []agent.Tool{tool("pay", s.run, agent.ToolOptions{})}
		w := sim.New(t, scripted(o, "pay")(t))
		executor := w.StartAll()[2]
		w.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: "r1", RequestContext: json.RawMessage(`{"live":true}`),
			Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
		})
		call := refundOf("r1")
		d := decision(events.Approve, call)
		w.AwaitAsk(call, soon)
		w.Decide("carol", d)
		<-s.entered
		executor.Kill()
		w.Start(toolexecutor.Name)
		ask := askOf(w, call, 1)
		if ask.Kind != events.AskInDoubt || !slices.Equal(ask.Approvers, []string{"user:carol"}) || !ask.NotRequester {
			t.Fatalf("the ask in doubt: %+v", ask)
		}
		d = decision(events.Retry, call)
		d.Fingerprint = ask.Fingerprint
		sent := w.Posted(w.Conn().Namespace().InDecide("bob", call), call.Run, "bob", d)
		if r := refusal(w, call, sent.Event.ID); r.Code != events.CodeForbidden {
			t.Errorf("the requester's retry is refused with %+v", r.Error)
		}
	})
}

func refusal(w *sim.World, call events.CallID, id string) events.DecisionRefused {
	w.T.Helper()
	d, err := events.Data[events.DecisionRefused](w.Await(w.Conn().Namespace().Beside(call, events.KindRefused, id), soon))
	must(w, err)
	return d
}

// TestB9_11_B10_10DeclineAfterTheClaimAgedOut declines a call that suspended itself so long ago that the log has forgotten its start:
// it has started all the same. In real time, because servers judge the age of messages by a clock that no bubble has.
// (B8.24, B9.11)
func TestB9_11_B10_10DeclineAfterTheClaimAgedOut(t *testing.T) {
	t.Parallel()
	const retention = shortRetention
	w := sim.New(t, scripted(sim.Options{
		Tools: []agent.Tool{tool("pay", pauses, agent.ToolOptions{})}, Settings: jetstream.Settings{Retention: retention},
		Gate: func(c *approval.Config) {
			c.Retention, c.Sweep, c.SweepAge = retention, 100*time.Millisecond, 100*time.Millisecond
		},
		Plan: func(c *planner.Config) {
			c.Retention, c.Sweep = retention, 100*time.Millisecond
		},
	}, "pay")(t))
	w.StartAll()
	run := w.Request("go")
	ask := w.AwaitAsk(refundOf(run), soon)
	awaitGone(w, place(w, run, 1, events.KindClaim))
	awaitGone(w, w.Conn().Namespace().Step(run, 1))
	d := decision(events.Decline, refundOf(run))
	d.Fingerprint = ask.Fingerprint
	w.Decide("alice", d)
	if d := result(w, run, 1); d.Outcome != events.OutcomeDeclined || !d.Started {
		t.Errorf("result = %+v, want declined, started", d)
	}
	if end := w.AwaitEnd(run, soon); end.Outcome != events.RunCompleted {
		t.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
	}
}

// awaitGone waits until a fact has aged out.
func awaitGone(w *sim.World, p events.Place) {
	w.T.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for range 5 * 60 {
		if _, err := w.Conn().Fact(w.T.Context(), p); errors.Is(err, jetstream.ErrNotFound) {
			return
		}
		<-tick.C
	}
	w.T.Fatalf("%s does not age out", p.Subject())
}

// TestCountedDecisionComesAgain delivers an approval again, after the call that it released has suspended itself: its
// sender is not told that it did not count.
func TestCountedDecisionComesAgain(t *testing.T) {
	in(t, scripted(sim.Options{Tools: []agent.Tool{tool("pay", pauses, agent.ToolOptions{RequireApproval: agent.Always()})}}, "pay"), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		w.AwaitAsk(call, soon)
		d := w.Posted(w.Conn().Namespace().InDecide("alice", call), run, "alice", decision(events.Approve, call))
		askOf(w, call, 1)
		d.Attempt = 2
		must(w, handler(approval.HandleRequest)(w, w.Dial("again", nil))(w.T.Context(), d))
		if r := w.Check(true); r["refused"] != 0 {
			w.T.Error("the approval that counted was refused")
		}
		answer(w, run, events.ResumeD, 1)
		w.AwaitEnd(run, soon)
	})
}

// TestLargeDecision sends an answer that fits into a request and not into the log beside its own signature: it is
// refused, and the call stays held.
func TestLargeDecision(t *testing.T) {
	in(t, scripted(sim.Options{Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})}}, "pay"), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		w.AwaitAsk(call, soon)
		d := decision(events.Respond, call)
		d.Result = json.RawMessage(`"` + strings.Repeat("x", 1<<20-1200) + `"`)
		sent := w.Posted(w.Conn().Namespace().InDecide("alice", call), run, "alice", d)
		if r := refusal(w, call, sent.Event.ID); r.Code != events.CodeTooLarge {
			w.T.Errorf("refused with %+v", r.Error)
		}
		answer(w, run, events.Approve, 0)
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// TestLargeRelease approves a call whose release does not fit into a message, because the run's context goes with it:
// the call ends with an error, and the run goes on.
func TestLargeRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		args := `{"orderId":"` + strings.Repeat(`\"`, 200<<10) + `"}`
		w := sim.New(t, sim.Options{
			Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})},
			Model: agenttest.NewModel(t, agenttest.Ask("pay", args), agenttest.Say("done")),
		})
		w.StartAll()
		w.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: "r1", Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			RequestContext: json.RawMessage(`{"big":"` + strings.Repeat("x", 500<<10) + `"}`),
		})
		w.AwaitAsk(refundOf("r1"), soon)
		w.Decide("alice", decision(events.Approve, refundOf("r1")))
		if d := result(w, "r1", 1); d.Outcome != events.OutcomeError || d.Error.Name != "too_large" || d.Started {
			t.Errorf("result = %+v, want too_large", d)
		}
		w.AwaitEnd("r1", soon)
	})
}

// TestB8_25ExpiryThatFailsTheRun stops the gate between the result of a call whose expiry fails the run and the run's end,
// while a sibling is held: another gate ends the run. (B8.25)
func TestB8_25ExpiryThatFailsTheRun(t *testing.T) {
	o := sim.Options{Tools: []agent.Tool{
		tool("fails", done, agent.ToolOptions{RequireApproval: agent.Always(), Expires: 5 * time.Second, OnExpiry: "fail"}),
		tool("held", done, agent.ToolOptions{RequireApproval: agent.Always()}),
	}}
	var once sync.Once
	o.Point = func(name string, c *sim.Copy) {
		if name == "result.after" && c.Service == approval.Name {
			once.Do(c.Kill)
		}
	}
	in(t, scripted(o, "fails", "held"), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		w.AwaitAsk(refundOf(run), soon)
		time.Sleep(10 * time.Second) // fake
		w.Start(approval.Name)
		if end := w.AwaitEnd(run, 5*soon); end.Outcome != events.RunFailed || end.Error.Code != events.CodeAskExpired {
			w.T.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
		}
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

package approval_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
)

// paying is a world whose model pays so often in each of its turns, and then says that it is done.
func paying(turns ...int) func(*testing.T) sim.Options {
	return func(t *testing.T) sim.Options {
		var steps []agenttest.Step
		for _, n := range turns {
			var step agenttest.Step
			for i := range n {
				step.Calls = append(step.Calls, agenttest.ToolCall{Name: "pay", Args: fmt.Sprintf(`{"orderId":"%d"}`, i)})
			}
			steps = append(steps, step)
		}
		return sim.Options{
			Model: agenttest.NewModel(t, append(steps, agenttest.Say("done"))...),
			Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})},
		}
	}
}

// unnamed sends a decision of alice that names no call.
func unnamed(w *sim.World, run string, d events.Decision) jetstream.Delivery {
	w.T.Helper()
	return w.Posted(w.Conn().Namespace().InDecideRun("alice", run), run, "alice", events.DecisionRequested{Decision: d})
}

// refusedAt waits for the refusal of a decision that met no call.
func refusedAt(w *sim.World, run string, d jetstream.Delivery) events.DecisionRefused {
	w.T.Helper()
	said, err := events.Data[events.DecisionRefused](w.Await(w.Conn().Namespace().BesideRun(run, d.Event.ID), soon))
	must(w, err)
	if said.ToolCallID != "" || said.RunID != run || said.Principal != "alice" || said.EventID != d.Event.ID {
		w.T.Errorf("the refusal is about %+v", said)
	}
	return said
}

// takes is a tool that runs for some time.
func takes(d time.Duration) func(context.Context, *agent.Call) (any, error) {
	return func(ctx context.Context, call *agent.Call) (any, error) {
		time.Sleep(d) // fake
		return done(ctx, call)
	}
}

func answered(w *sim.World, call events.CallID) events.CallAnswered {
	w.T.Helper()
	a, err := events.Data[events.CallAnswered](w.Await(w.Conn().Namespace().Call(call, events.KindAnswer), soon))
	must(w, err)
	return a
}

func isHeld(w *sim.World, call events.CallID) {
	w.T.Helper()
	last, err := w.Conn().Last(w.T.Context(), w.Conn().Namespace().Call(call, events.KindAsk).Chain())
	must(w, err)
	if last.Place.Kind != events.KindAsk {
		w.T.Errorf("call %s stands at %s, want held", call, last.Place.Kind)
	}
}

// TestB8_19_OneWaits decides the one call of a run that waits without naming it.
func TestB8_19_OneWaits(t *testing.T) {
	in(t, paying(1, 1), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		for i, d := range []events.Decision{events.Approve, events.Decline} {
			call := events.CallID{Run: run, Step: i + 1, Index: 1}
			w.AwaitAsk(call, soon)
			sent := unnamed(w, run, d)
			if a := answered(w, call); a.Decision != d || a.EventID != sent.Event.ID || a.ToolCallID != call.String() {
				t.Errorf("call %s is answered by %+v", call, a)
			}
		}
		w.AwaitEnd(run, soon)
		if d := refusedAt(w, run, unnamed(w, run, events.Approve)); d.Code != events.CodeRunEnded {
			t.Errorf("after the end: %s", d.Error.Error())
		}
		w.Check(true)
	})
}

// TestB8_19_SeveralWait sends a decision that names no call while two wait: nothing is decided, and its sender is told
// which.
func TestB8_19_SeveralWait(t *testing.T) {
	in(t, paying(2), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		first, second := refundOf(run), events.CallID{Run: run, Step: 1, Index: 2}
		w.AwaitAsk(first, soon)
		w.AwaitAsk(second, soon)
		sent := unnamed(w, run, events.Approve)
		d := refusedAt(w, run, sent)
		if d.Code != events.CodeAmbiguous || fmt.Sprint(d.Asks) != fmt.Sprint([]string{first.String(), second.String()}) {
			t.Errorf("refused as %+v", d.Error)
		}
		isHeld(w, first)
		isHeld(w, second)
		// Once refused it stays so, though only one call waits when it is delivered again.
		w.Decide("bob", decision(events.Decline, first))
		result(w, run, 1)
		gate := newGate(w, w.Dial("again", nil))
		for sent.Attempt = 1; sent.Attempt <= 2; sent.Attempt++ {
			must(w, approval.HandleRequest(gate, w.T.Context(), sent))
		}
		isHeld(w, second)
		unnamed(w, run, events.Approve)
		if a := answered(w, second); a.Decision != events.Approve {
			t.Errorf("the call that is left is answered by %+v", a)
		}
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// TestB8_19_NoneWaits sends decisions to runs in which nothing waits, and to none.
func TestB8_19_NoneWaits(t *testing.T) {
	free := func(t *testing.T) sim.Options {
		o := paying(1)(t)
		o.Tools = []agent.Tool{tool("pay", takes(10*time.Second), agent.ToolOptions{})}
		return o
	}
	in(t, free, func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		w.Await(w.Conn().Namespace().Call(refundOf(run), events.KindClaim), soon)
		for id, what := range map[string]string{run: "call", "nobody": "run"} {
			if d := refusedAt(w, id, unnamed(w, id, events.Approve)); d.Code != events.CodeNotFound || d.What != what {
				t.Errorf("%s: refused as %+v", id, d.Error)
			}
		}
		named := w.Posted(w.Conn().Namespace().InDecideRun("alice", run), run, "alice", decision(events.Approve, refundOf(run)))
		if d := refusedAt(w, run, named); d.Code != events.CodeInvalidRequest {
			t.Errorf("a call in the data and none in the subject: %+v", d.Error)
		}
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// TestB8_19_B8_18_NeverTheNext delivers a decision that names no call once more, by the bus and by its sender, when a
// later call of the run waits: it has had its effect, and has no other.
func TestB8_19_B8_18_NeverTheNext(t *testing.T) {
	in(t, paying(1, 1), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		w.AwaitAsk(refundOf(run), soon)
		early := unnamed(w, run, events.Approve)
		answered(w, refundOf(run))
		next := events.CallID{Run: run, Step: 2, Index: 1}
		w.AwaitAsk(next, soon)
		time.Sleep(time.Second) // fake
		gate := newGate(w, w.Dial("again", nil))
		again := early
		again.Attempt = 2
		must(w, approval.HandleRequest(gate, w.T.Context(), again))
		// The same event in the inbox a second time, stored after the ask of the next call.
		twice := early
		var err error
		twice.Event.Seq, err = w.Conn().Publish(w.T.Context(), early.Subject, early.Event)
		must(w, err)
		twice.Event.Stored = time.Now()
		must(w, approval.HandleRequest(gate, w.T.Context(), twice))
		time.Sleep(5 * time.Second) // fake
		isHeld(w, next)
		// Another one that was stored before the ask, and comes late.
		late := early
		late.Event.ID, late.Event.Stored = events.NewID(time.Now()), w.Await(place(w, run, 1, events.KindAsk), soon).Stored
		late.Attempt = 2
		must(w, approval.HandleRequest(gate, w.T.Context(), late))
		if d := refusal(w, refundOf(run), late.Event.ID); d.Code != events.CodeAlreadyDecided || d.Answer.Principal != "alice" {
			t.Errorf("an equal decision of that moment is refused as %+v", d.Error)
		}
		before := late
		before.Event.ID, before.Event.Stored = events.NewID(time.Now()), early.Event.Stored.Add(-time.Hour)
		must(w, approval.HandleRequest(gate, w.T.Context(), before))
		if d := refusedAt(w, run, before); d.Code != events.CodeNotFound {
			t.Errorf("a decision of before the first ask is refused as %+v", d.Error)
		}
		isHeld(w, next)
		if r := w.Check(false); r["answer"] != 1 {
			t.Errorf("the log holds %d answers, want 1", r["answer"])
		}
		unnamed(w, run, events.Approve)
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// TestB8_19_Killed kills the gate right after it has stored the answer to a decision that names no call. Another one
// goes on, and the decision is delivered again when the next call waits.
func TestB8_19_Killed(t *testing.T) {
	var killed bool
	options := func(t *testing.T) sim.Options {
		o := paying(1, 1)(t)
		o.Point = func(name string, c *sim.Copy) {
			if name == "answer.after" && !killed {
				killed = true
				c.Kill()
			}
		}
		o.Gate = func(c *approval.Config) { c.Sweep, c.SweepAge = time.Second, time.Second }
		return o
	}
	in(t, options, func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		w.AwaitAsk(refundOf(run), soon)
		unnamed(w, run, events.Approve)
		answered(w, refundOf(run))
		w.Start(approval.Name)
		next := events.CallID{Run: run, Step: 2, Index: 1}
		w.AwaitAsk(next, 10*soon)
		time.Sleep(5 * time.Minute) // fake: every deadline of a delivery passes
		isHeld(w, next)
		if r := w.Check(false); !killed || r["answer"] != 1 || r["refused"] != 0 {
			t.Errorf("killed %v, the log holds %v", killed, r)
		}
		unnamed(w, run, events.Decline)
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

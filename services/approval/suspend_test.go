package approval_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
)

// published reads what a run has published so far.
func published(w *sim.World, run string) (all []events.Chunk) {
	w.T.Helper()
	last, err := w.Conn().LastChunk(w.T.Context(), run)
	must(w, err)
	for ch, err := range w.Conn().Follow(w.T.Context(), run, 0, nil) {
		must(w, err)
		if all = append(all, ch); ch.Cursor >= last {
			break
		}
	}
	return all
}

// TestB9_2_B9_8SuspensionOfAnApprovedCall approves a call whose tool then suspends itself: that is asked about in the next
// round, with the tool's question, and when it is resumed nobody is asked for an approval again.
func TestB9_2_B9_8SuspensionOfAnApprovedCall(t *testing.T) {
	pay := tool("pay", pauses, agent.ToolOptions{
		RequireApproval: agent.Always(), ResumeSchema: json.RawMessage(`{"type":"boolean"}`),
	})
	in(t, scripted(sim.Options{Tools: []agent.Tool{pay}}, "pay"), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		answer(w, run, events.Approve, 0)
		ask := askOf(w, refundOf(run), 1)
		if ask.Kind != events.AskSuspended || string(ask.SuspendPayload) != `"which?"` || string(ask.ResumeSchema) != `{"type":"boolean"}` {
			w.T.Errorf("the ask is %s with %s, schema %s", ask.Kind, ask.SuspendPayload, ask.ResumeSchema)
		}
		time.Sleep(time.Second) // fake
		i := slices.IndexFunc(published(w, run), func(c events.Chunk) bool { return c.Type == events.ChunkToolCallSuspended })
		if i < 0 {
			w.T.Fatal("no chunk tells of the suspension")
		}
		var p events.AskPayload
		must(w, json.Unmarshal(published(w, run)[i].Payload, &p))
		if p.ToolCallID != refundOf(run).String() || string(p.SuspendPayload) != `"which?"` || p.ResumeSchema != `{"type":"boolean"}` ||
			string(p.Args) != `{"orderId":"42"}` || p.Ask.Round != 1 || p.Ask.Fingerprint != ask.Fingerprint {
			w.T.Errorf("the chunk says %+v", p)
		}
		answer(w, run, events.ResumeD, 1)
		if end := w.AwaitEnd(run, soon); end.Outcome != events.RunCompleted {
			w.T.Errorf("the run ended as %s", end.Outcome)
		}
		if r := w.Check(true); r["ask"] != 2 || r["answer"] != 2 {
			w.T.Errorf("the log holds %d asks and %d answers, want 2 and 2", r["ask"], r["answer"])
		}
	})
}

// TestB9_12AnyOrder resumes three calls of one turn, of one tool and of another, in another order than they were made, each
// with its own data. The model goes on once, after the last.
func TestB9_12AnyOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asks := func(_ context.Context, call *agent.Call) (any, error) {
			if !call.Resumed() {
				return nil, call.Suspend("which?")
			}
			return agent.ResumeData[string](call)
		}
		model := agenttest.NewModel(t, agenttest.Step{Calls: []agenttest.ToolCall{
			{Name: "city", Args: `{"orderId":"1"}`}, {Name: "city", Args: `{"orderId":"2"}`}, {Name: "street", Args: `{"orderId":"3"}`},
		}}, agenttest.Say("done"))
		w := sim.New(t, sim.Options{Model: model, Tools: []agent.Tool{tool("city", asks, agent.ToolOptions{}), tool("street", asks, agent.ToolOptions{})}})
		w.StartAll()
		run := w.Request("go")
		data := map[int]string{3: `"Via Roma"`, 1: `"Rome"`, 2: `"Turin"`}
		for n, index := range []int{3, 1, 2} {
			call := events.CallID{Run: run, Step: 1, Index: index}
			d := decision(events.ResumeD, call)
			d.Fingerprint, d.ResumeData = askOf(w, call, 1).Fingerprint, json.RawMessage(data[index])
			w.Decide("alice", d)
			if got := string(result(w, run, index).Result); got != data[index] {
				t.Errorf("call %d was resumed with %s, want %s", index, got, data[index])
			}
			time.Sleep(time.Second) // fake
			if made := len(model.Requests()); n < 2 && made != 1 {
				t.Errorf("the model was asked %d times while calls were held", made)
			}
		}
		w.AwaitEnd(run, soon)
		if made := len(model.Requests()); made != 2 {
			t.Errorf("the model was asked %d times, want twice", made)
		}
	})
}

// TestB8_3CommitThenAnnounce looks whenever an ask is about to be stored, and whenever one is announced: the entry lists it
// before it is stored, and it is stored before anybody is told.
func TestB8_3CommitThenAnnounce(t *testing.T) {
	var w *sim.World
	var looked atomic.Int32
	o := sim.Options{Point: func(name string, c *sim.Copy) {
		if name != "ask.before" || c.Service != approval.Name {
			return
		}
		if looked.Add(1); len(listed(w)) == 0 {
			w.T.Error("an ask is stored that no entry lists")
		}
	}, Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})}}
	in(t, scripted(o, "pay", "pay"), func(made *sim.World) {
		w = made
		heard := make(chan events.Event, 64)
		run := events.NewID(time.Now())
		stop, err := w.Conn().Hear(w.T.Context(), w.Conn().Namespace().Live(run), func(e events.Event) { heard <- e })
		must(w, err)
		w.T.Cleanup(stop)
		w.StartAll()
		w.RequestAs("bob", events.RunRequested{AgentID: "support", RunID: run, Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")}})
		for told := 0; told < 2; {
			e := <-heard
			ch, err := events.Data[events.Chunk](e)
			must(w, err)
			if ch.Type != events.ChunkToolCallApproval {
				continue
			}
			told++
			var p events.AskPayload
			must(w, json.Unmarshal(ch.Payload, &p))
			call, err := events.ParseCallID(p.ToolCallID)
			must(w, err)
			if fact, err := w.Conn().Fact(w.T.Context(), w.Conn().Namespace().Call(call, events.KindAsk)); err != nil || fact.ID != e.ID {
				w.T.Errorf("%s was announced as %s; stored is %s, %v", call, e.ID, fact.ID, err)
			}
		}
		if looked.Load() != 2 {
			w.T.Errorf("looked %d times, want twice", looked.Load())
		}
		for i := range 2 {
			d := decision(events.Decline, events.CallID{Run: run, Step: 1, Index: i + 1})
			w.Decide("alice", d)
		}
		w.AwaitEnd(run, soon)
	})
}

// TestB10_8OptionsOutliveASuspension stops everything while a run is suspended and starts it again: what the model is asked
// after that has the run's own instructions, tools and choice, and the tool its request context.
func TestB10_8OptionsOutliveASuspension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		contexts := map[string]bool{}
		var mu sync.Mutex
		pay := tool("pay", func(_ context.Context, call *agent.Call) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			contexts[string(call.RequestContext())] = true
			return "done", nil
		}, agent.ToolOptions{RequireApproval: agent.Always()})
		model := agenttest.NewModel(t, agenttest.Ask("pay", `{"orderId":"1"}`), agenttest.Ask("pay", `{"orderId":"2"}`), agenttest.Say("done"))
		w := sim.New(t, sim.Options{Model: model, Tools: []agent.Tool{pay, tool("hidden", done, agent.ToolOptions{})}})
		copies := w.StartAll()
		const given = `{"tenant":"acme","limit":1.50,"tags":["a",null]}`
		w.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: "r1", Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			Instructions: new("Be brief."), ActiveTools: &[]string{"pay"}, RequestContext: json.RawMessage(given),
			Limits: &events.Limits{Steps: 9},
		})
		for step := range 2 {
			call := events.CallID{Run: "r1", Step: step + 1, Index: 1}
			ask := w.AwaitAsk(call, soon)
			for _, c := range copies {
				c.Kill()
			}
			copies = w.StartAll()
			d := decision(events.Approve, call)
			d.Fingerprint = ask.Fingerprint
			w.Decide("alice", d)
			w.Await(w.Conn().Namespace().Call(call, events.KindResult), 5*soon)
		}
		if end := w.AwaitEnd("r1", 5*soon); end.Outcome != events.RunCompleted {
			t.Fatalf("the run ended as %s: %v", end.Outcome, end.Error)
		}
		var names [][]string
		for _, req := range model.Requests() {
			var tools []string
			for _, spec := range req.Tools {
				tools = append(tools, spec.Name)
			}
			names = append(names, append(tools, req.Instructions))
		}
		want := []string{"pay", "Be brief."}
		if diff := cmp.Diff([][]string{want, want, want}, names); diff != "" {
			t.Error(diff)
		}
		if len(contexts) != 1 || !contexts[given] {
			t.Errorf("the tool was given the contexts %v", contexts)
		}
	})
}

// TestB10_7LargeRunsAreSuspended suspends a run whose conversation is far over the size of a message, stops everything, and
// resumes it: the model sees every byte of it again.
func TestB10_7LargeRunsAreSuspended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, lookups = 250 << 10, 4
		steps := append(reads(lookups), agenttest.Ask("pay", `{"orderId":"42"}`), agenttest.Say("done"))
		model := agenttest.NewModel(t, steps...)
		w := sim.New(t, sim.Options{Model: model, Tools: []agent.Tool{
			tool("read", func(context.Context, *agent.Call) (any, error) { return strings.Repeat("x", size), nil }, agent.ToolOptions{Effect: agent.ReadOnly}),
			tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()}),
		}})
		copies := w.StartAll()
		run := w.Request("go")
		call := events.CallID{Run: run, Step: lookups + 1, Index: 1}
		ask := w.AwaitAsk(call, 5*soon)
		for _, c := range copies {
			c.Kill()
		}
		keys, err := w.Conn().ListSuspended(t.Context(), "", "", "")
		must(w, err)
		snap, _, err := w.Conn().Snapshot(t.Context(), keys[0])
		must(w, err)
		if snap.Size < size*lookups*readsAtOnce || len(snap.Asks) != 1 {
			t.Errorf("the entry has %d bytes and %d asks", snap.Size, len(snap.Asks))
		}
		w.StartAll()
		d := decision(events.Approve, call)
		d.Fingerprint = ask.Fingerprint
		w.Decide("alice", d)
		if end := w.AwaitEnd(run, 5*soon); end.Outcome != events.RunCompleted {
			t.Fatalf("the run ended as %s: %v", end.Outcome, end.Error)
		}
		seesLarge(t, model, lookups*readsAtOnce, size)
	})
}

// readsAtOnce is how many calls each of the steps makes that read much. What they bring is just small enough for facts.
const readsAtOnce = 3

func reads(steps int) (all []agenttest.Step) {
	for i := range steps {
		var step agenttest.Step
		for k := range readsAtOnce {
			step.Calls = append(step.Calls, agenttest.ToolCall{Name: "read", Args: fmt.Sprintf(`{"orderId":"%d-%d"}`, i, k)})
		}
		all = append(all, step)
	}
	return all
}

// TestB10_13ResumeThatCannotGoOn resumes a run whose model is not there any more: the run ends with a named error, and is
// not left as running.
func TestB10_13ResumeThatCannotGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := scripted(sim.Options{Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})}}, "pay")(t)
		var gone atomic.Bool
		o.Plan = func(c *planner.Config) {
			if gone.Load() {
				c.Models = noModels{}
			}
		}
		w := sim.New(t, o)
		copies := w.StartAll()
		run := w.Request("go")
		w.AwaitAsk(refundOf(run), soon)
		gone.Store(true)
		copies[0].Kill()
		w.Start(planner.Name)
		answer(w, run, events.Approve, 0)
		end := w.AwaitEnd(run, 30*soon)
		if end.Outcome != events.RunFailed || end.Error == nil || end.Error.Code != events.CodeModelFailed {
			t.Errorf("the run ended as %s: %v", end.Outcome, end.Error)
		}
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

// noModels is a process in which the key of every model is missing.
type noModels struct{}

func (noModels) Model(id string) (agent.Model, string, error) {
	return nil, "", errors.New("no key for " + id)
}

// TestB10_5EntriesAreTheAsks compares the bucket with the log: every held call is listed with what its ask says.
func TestB10_5EntriesAreTheAsks(t *testing.T) {
	in(t, scripted(sim.Options{Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})}}, "pay", "pay"), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		for i := range 2 {
			w.AwaitAsk(events.CallID{Run: run, Step: 1, Index: i + 1}, soon)
		}
		asks := listed(w)
		if len(asks) != 2 {
			w.T.Fatalf("%d asks are listed, want 2", len(asks))
		}
		for _, open := range asks {
			call, err := events.ParseCallID(open.ToolCallID)
			must(w, err)
			if diff := cmp.Diff(w.AwaitAsk(call, soon).Open(), open); diff != "" {
				w.T.Error(diff)
			}
		}
		for i := range 2 {
			w.Decide("alice", decision(events.Decline, events.CallID{Run: run, Step: 1, Index: i + 1}))
		}
		w.AwaitEnd(run, soon)
		time.Sleep(time.Second) // fake
		if asks := listed(w); len(asks) != 0 {
			w.T.Errorf("%d asks of an ended run are listed", len(asks))
		}
	})
}

// TestB10_7_B10_10LargeRunOutlivesTheRetention suspends a run that has said more than a message holds, and lets its facts
// age out before somebody decides: its state is carried whole, and it goes on as if it had waited a minute.
func TestB10_7_B10_10LargeRunOutlivesTheRetention(t *testing.T) {
	t.Parallel()
	const size, lookups, retention = 250 << 10, 2, shortRetention
	model := agenttest.NewModel(t, append(reads(lookups), agenttest.Ask("pay", `{"orderId":"42"}`), agenttest.Say("done"))...)
	w := sim.New(t, sim.Options{
		Model: model, Settings: jetstream.Settings{Retention: retention},
		Gate: func(c *approval.Config) {
			c.Retention, c.Sweep, c.SweepAge = retention, 200*time.Millisecond, 200*time.Millisecond
		},
		Plan: func(c *planner.Config) {
			c.Retention, c.Sweep = retention, 200*time.Millisecond
		},
		Tools: []agent.Tool{
			tool("read", func(context.Context, *agent.Call) (any, error) { return strings.Repeat("x", size), nil }, agent.ToolOptions{Effect: agent.ReadOnly}),
			tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()}),
		},
	})
	copies := w.StartAll()
	run := w.Request("go")
	call := events.CallID{Run: run, Step: lookups + 1, Index: 1}
	w.AwaitAsk(call, soon)
	awaitGone(w, w.Conn().Namespace().Step(run, lookups+1))
	carry, err := w.Conn().Last(t.Context(), w.Conn().Namespace().MainOf(run))
	must(w, err)
	if carry.Place.Kind != events.KindCarry || carry.DataRef == "" || len(carry.Payload) > 64<<10 {
		t.Fatalf("the run's last fact is a %s of %d bytes", carry.Place.Kind, len(carry.Payload))
	}
	// A delivery that a dying copy takes along comes again after 30 s, and this log forgets in 20.
	copies[0].Kill()
	_ = copies[0].Stop()
	w.Start(planner.Name)
	w.Decide("alice", decision(events.Approve, call))
	if end := w.AwaitEnd(run, soon); end.Outcome != events.RunCompleted {
		t.Fatalf("the run ended as %s: %v", end.Outcome, end.Error)
	}
	seesLarge(t, model, lookups*readsAtOnce, size)
}

// seesLarge demands that the last request to a model holds so many results of a size or more.
func seesLarge(t *testing.T, model *agenttest.Model, want, size int) {
	t.Helper()
	seen := 0
	all := model.Requests()
	for _, m := range all[len(all)-1].Messages {
		for _, p := range m.Parts {
			if p.Output != nil && len(p.Output.Value) >= size {
				seen++
			}
		}
	}
	if seen != want {
		t.Errorf("the model sees %d of %d large results", seen, want)
	}
}

// TestB10_10CarriedByItsOldestFact decides a run's calls again and again before its last fact is old: it is carried by the
// age of its first one all the same, and once, not at every look.
func TestB10_10CarriedByItsOldestFact(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const retention, calls = time.Hour, 5
		var steps []agenttest.Step
		for i := range calls {
			steps = append(steps, agenttest.Ask("pay", fmt.Sprintf(`{"orderId":"%d"}`, i)))
		}
		w := sim.New(t, sim.Options{
			Model: agenttest.NewModel(t, append(steps, agenttest.Say("done"))...),
			Plan:  func(c *planner.Config) { c.Retention = retention },
			Gate:  func(c *approval.Config) { c.Retention = retention },
			Agent: events.AgentDef{
				ID: "support", Model: "scripted/sim", Tools: map[string]string{"pay": "pay"}, Limits: &events.Limits{Steps: 2 * calls},
			},
			Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})},
		})
		w.StartAll()
		run := w.Request("go")
		for i := range calls {
			call := events.CallID{Run: run, Step: i + 1, Index: 1}
			w.AwaitAsk(call, soon)
			time.Sleep(retention / 5) // fake
			w.Decide("alice", decision(events.Approve, call))
		}
		w.AwaitEnd(run, soon)
		start := w.Await(w.Conn().Namespace().Start(run), soon)
		carry := w.Await(w.Conn().Namespace().Carry(run, 1), soon)
		if age := carry.Stored.Sub(start.Stored); age > retention/2 {
			t.Errorf("the run was carried after %v", age)
		}
		if _, err := w.Conn().Fact(t.Context(), w.Conn().Namespace().Carry(run, 3)); !errors.Is(err, jetstream.ErrNotFound) {
			t.Errorf("the run was carried too often: %v", err)
		}
		w.Check(true)
	})
}

package planner_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

const soon = time.Minute

func handler(f func(*planner.Service, context.Context, jetstream.Delivery) error) func(*sim.World, *jetstream.Conn) sim.Handle {
	return func(w *sim.World, conn *jetstream.Conn) sim.Handle {
		s, err := planner.New(conn, w.PlannerConfig())
		must(w, err)
		return func(ctx context.Context, d jetstream.Delivery) error { return f(s, ctx, d) }
	}
}

func must(w *sim.World, err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// reads is a world whose run looks something up and ends, without people.
func reads() sim.Options { return sim.Options{Tools: []agent.Tool{sim.Lookup()}} }

func start(w *sim.World, r events.RunRequested) jetstream.Delivery {
	w.T.Helper()
	return w.Posted(w.Conn().Namespace().InStart("bob", r.AgentID), r.RunID, "bob", r)
}

func request() events.RunRequested {
	return events.RunRequested{AgentID: "support", RunID: "r1", Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")}}
}

// TestHabits holds each handler of the planner to its habits: twice, late, beside. (RDLV-4)
func TestHabits(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]sim.Habit{
		"request": {
			Options: reads, Handler: handler(planner.HandleRequest),
			Bring: func(w *sim.World) jetstream.Delivery { return start(w, request()) },
		},
		"start": {
			Options: reads, Before: []string{planner.Name}, Handler: handler(planner.HandleFact),
			Bring: func(w *sim.World) jetstream.Delivery {
				return w.Delivered(w.Conn().Namespace().Start(w.Request("go")))
			},
		},
		"result": {
			Options: reads, Before: []string{planner.Name, approval.Name, toolexecutor.Name}, Handler: handler(planner.HandleFact),
			Bring: func(w *sim.World) jetstream.Delivery {
				call := events.CallID{Run: w.Request("go"), Step: 1, Index: 1}
				return w.Delivered(w.Conn().Namespace().Call(call, events.KindResult))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h.Exercise(t)
		})
	}
}

// notes are the refusals that bob is told.
type notes struct {
	mu   sync.Mutex
	told []events.RunRefused
}

func listen(w *sim.World) *notes {
	w.T.Helper()
	n := &notes{}
	stop, err := w.Conn().Notes(w.T.Context(), "bob", func(e events.Event) {
		d, err := events.Data[events.RunRefused](e)
		if err == nil {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.told = append(n.told, d)
		}
	})
	must(w, err)
	w.T.Cleanup(stop)
	return n
}

func (n *notes) all() []events.RunRefused {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told
}

// TestRefusedStarts shows starts that do not count: nothing is stored, and the sender is told why. (B8.34, B13.4, B13.5)
func TestRefusedStarts(t *testing.T) {
	t.Parallel()
	list := func(keys ...string) *[]string { return &keys }
	for name, test := range map[string]struct {
		change func(*events.RunRequested)
		code   events.Code
		says   string
	}{
		"unknown agent":  {func(r *events.RunRequested) { r.AgentID = "nobody" }, events.CodeNotFound, "nobody"},
		"run id":         {func(r *events.RunRequested) { r.RunID = "a.b" }, events.CodeInvalidRequest, "runId"},
		"no messages":    {func(r *events.RunRequested) { r.Messages = nil }, events.CodeInvalidRequest, "messages"},
		"role":           {func(r *events.RunRequested) { r.Messages[0].Role = "boss" }, events.CodeInvalidRequest, "role"},
		"no parts":       {func(r *events.RunRequested) { r.Messages[0].Parts = []events.Part{} }, events.CodeInvalidRequest, "parts"},
		"active tools":   {func(r *events.RunRequested) { r.ActiveTools = list("rm") }, events.CodeInvalidRequest, "rm"},
		"tool choice":    {func(r *events.RunRequested) { r.ToolChoice = "sometimes" }, events.CodeInvalidRequest, "sometimes"},
		"chosen tool":    {func(r *events.RunRequested) { r.ToolChoice = "tool:rm" }, events.CodeInvalidRequest, "rm"},
		"agent and tool": {func(r *events.RunRequested) { r.ToolID = "lookup_order" }, events.CodeInvalidRequest, "not both"},
		"reserved agent": {func(r *events.RunRequested) { r.AgentID = "=tool" }, events.CodeInvalidRequest, "toolId is missing"},
		"large":          {func(r *events.RunRequested) { r.Instructions = large(1<<20 - 700) }, events.CodeTooLarge, "too large"},
		"run exists":     {func(r *events.RunRequested) { r.RunID, r.ResourceID = "taken", "other" }, events.CodeRunExists, "taken"},
		"request object": {func(r *events.RunRequested) { r.RequestContext = json.RawMessage(`[1]`) }, events.CodeInvalidRequest, "requestContext"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := sim.New(t, reads())
				n := listen(w)
				w.StartAll()
				first := request()
				first.RunID = "taken"
				start(w, first)
				w.AwaitEnd("taken", soon)
				r := request()
				test.change(&r)
				post(w, r)
				time.Sleep(2 * time.Second) // fake
				told := n.all()
				if len(told) != 1 || told[0].Code != test.code || !strings.Contains(told[0].Message, test.says) {
					t.Fatalf("told %+v, want %s about %q", told, test.code, test.says)
				}
				if _, err := w.Conn().Fact(t.Context(), w.Conn().Namespace().Start("r1")); !errors.Is(err, jetstream.ErrNotFound) {
					t.Errorf("a run was started: %v", err)
				}
			})
		})
	}
}

// post publishes a start that no client would send: what its schema refuses is sent all the same.
func post(w *sim.World, r events.RunRequested) {
	w.T.Helper()
	postTo(w, w.Conn().Namespace().InStart("bob", r.AgentID), r)
}

func postTo(w *sim.World, subject string, r events.RunRequested) {
	w.T.Helper()
	good := request()
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}
	e, err := o.RequestBy(subject, "r1", "bob", good)
	must(w, err)
	e.Data, err = events.Marshal(r)
	must(w, err)
	e.Payload, err = events.Encode(e)
	must(w, err)
	_, err = w.Conn().Publish(w.T.Context(), subject, e)
	must(w, err)
}

func large(n int) *string {
	s := strings.Repeat("x", n)
	return &s
}

// TestMemoryIsTheLog holds what a planner remembers of a run against the fold of the run's facts: what it knows from its
// own appends must be what everybody else reads.
func TestMemoryIsTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := sim.New(t, reads())
		s, err := planner.New(w.Conn(), w.PlannerConfig())
		must(w, err)
		ns := w.Conn().Namespace()
		same := func(at events.Place) jetstream.Delivery {
			t.Helper()
			d := w.Delivered(at)
			got, head := planner.Remembered(s, "r1")
			want, last, err := w.Conn().RunState(t.Context(), "r1")
			must(w, err)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || head != last.Seq {
				t.Errorf("after %s: follows %d, want %d; state (-log +memory):\n%s", at.Kind, head, last.Seq, diff)
			}
			return d
		}
		must(w, planner.HandleRequest(s, t.Context(), start(w, request())))
		must(w, planner.HandleFact(s, t.Context(), same(ns.Start("r1"))))
		same(ns.Step("r1", 1))
	})
}

// TestOldMemoryChangesNothing lets a run go on without its planner's knowing: what that one then appends is refused, and
// the run is what the log says.
func TestOldMemoryChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := sim.New(t, reads())
		s, err := planner.New(w.Conn(), w.PlannerConfig())
		must(w, err)
		other, err := planner.New(w.Conn(), w.PlannerConfig())
		must(w, err)
		must(w, planner.HandleRequest(s, t.Context(), start(w, request())))
		d := w.Delivered(w.Conn().Namespace().Start("r1"))
		must(w, planner.HandleFact(other, t.Context(), d)) // reads the log
		must(w, planner.HandleFact(s, t.Context(), d))     // believes that the run has just begun
		st, head, err := w.Conn().RunState(t.Context(), "r1")
		must(w, err)
		if st.Step != 1 || head.Place.N != 1 {
			t.Errorf("run is at step %d under %s %d, want the one step of who was first", st.Step, head.Place.Kind, head.Place.N)
		}
		w.StartAll()
		w.AwaitEnd("r1", soon)
		w.Check(true)
	})
}

// TestOldMemoryHearsOfATask brings the result of a background call to a planner that has not heard that the run has gone on without
// it and waits for it: it goes on.
func TestB16_OldMemoryHearsOfATask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := sim.Options{Tools: []agent.Tool{sim.Refund(&sim.Effects{})}}
		o.Agent = events.AgentDef{
			ID: "support", Model: "scripted/sim", Tools: map[string]string{"issue_refund": "issue_refund"},
			BackgroundTasks: &events.BackgroundTasks{Tools: events.BackgroundTools{All: true}},
		}
		w := sim.New(t, o)
		s, err := planner.New(w.Conn(), w.PlannerConfig())
		must(w, err)
		ns, call := w.Conn().Namespace(), events.CallID{Run: "r1", Step: 1, Index: 1}
		must(w, planner.HandleRequest(s, t.Context(), start(w, request())))
		begun := w.Delivered(ns.Start("r1"))
		w.Start(approval.Name)
		w.Start(toolexecutor.Name)
		if err := planner.HandleFact(s, t.Context(), begun); err != nil && !jetstream.IsLater(err) {
			t.Fatal(err)
		}
		first := w.Delivered(ns.Step("r1", 1))
		w.Await(ns.Step("r1", 2), soon)
		w.AwaitAsk(call, soon)
		w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()})
		w.Await(ns.Call(call, events.KindResult), soon)
		old, err := events.NewState(begun.Event)
		must(w, err)
		must(w, old.Apply(first.Event))
		planner.Remember(s, old, first.Event)
		must(w, planner.HandleFact(s, t.Context(), w.Delivered(ns.Call(call, events.KindResult))))
		if end := w.AwaitEnd("r1", 0); end.Outcome != events.RunCompleted {
			t.Errorf("the run ended as %s", end.Outcome)
		}
	})
}

// TestB10_11SameStartTwice sends one request in two messages, as a client does that has heard no answer: one run, no refusal.
func TestB10_11SameStartTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := sim.New(t, reads())
		n := listen(w)
		w.StartAll()
		start(w, request())
		start(w, request())
		w.AwaitEnd("r1", soon)
		time.Sleep(2 * time.Second) // fake
		if told := n.all(); len(told) != 0 {
			t.Errorf("told %+v", told)
		}
		w.Check(true)
	})
}

// TestModels shows what becomes of what models do: who fails in a way that may pass is asked again, who says nothing once
// more; a turn that breaks off does not count. (B13.17, B22.4, B22.6, SIZE-3)
func TestModels(t *testing.T) {
	t.Parallel()
	busy := agenttest.Step{Text: "I was about to", Err: &agent.ModelError{Retryable: true, Status: 429, Err: errors.New("slow down")}}
	refused := agenttest.Step{Err: &agent.ModelError{Status: 400, Err: errors.New("bad request")}}
	silent := agenttest.Step{Parts: []agent.ModelPart{{Type: agent.PartFinish, FinishReason: agent.FinishStop}}}
	broken := agenttest.Step{Parts: []agent.ModelPart{{Type: agent.PartToolInputStart, ID: "0", ToolName: "lookup_order"}}}
	for name, test := range map[string]struct {
		steps []agenttest.Step
		tries int
		code  events.Code // of a failed end
		turns int
	}{
		"busy twice":       {[]agenttest.Step{busy, busy, agenttest.Say("done")}, 0, "", 3},
		"busy for ever":    {[]agenttest.Step{busy, busy, busy, busy}, 0, events.CodeModelFailed, 4},
		"refused":          {[]agenttest.Step{refused}, 0, events.CodeModelFailed, 1},
		"silent once":      {[]agenttest.Step{silent, agenttest.Say("done")}, 0, "", 2},
		"silent twice":     {[]agenttest.Step{silent, silent}, 0, events.CodeEmptyResponse, 2},
		"silent, one try":  {[]agenttest.Step{silent}, 1, events.CodeEmptyResponse, 1},
		"broken off":       {[]agenttest.Step{broken, agenttest.Say("done")}, 0, "", 2},
		"too many calls":   {[]agenttest.Step{many(events.MaxCalls + 1)}, 0, events.CodeModelFailed, 1},
		"long answer":      {[]agenttest.Step{agenttest.Say(*large(1<<20 + 1))}, 0, events.CodeTooLarge, 1},
		"large arguments":  {[]agenttest.Step{agenttest.Ask("lookup_order", `{"orderId":"`+*large(1 << 20)+`"}`)}, 0, events.CodeTooLarge, 1},
		"unknown part":     {[]agenttest.Step{{Parts: []agent.ModelPart{{Type: "news"}, {Type: agent.PartTextDelta, Text: "hi"}, {Type: agent.PartFinish}}}}, 0, "", 1},
		"delta of no call": {[]agenttest.Step{{Parts: []agent.ModelPart{{Type: agent.PartToolInputDelta, ID: "7", Text: "{"}, {Type: agent.PartTextDelta, Text: "hi"}, {Type: agent.PartFinish}}}}, 0, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, model := reads(), agenttest.NewModel(t, test.steps...)
				o.Model, o.Plan = model, func(c *planner.Config) { c.Tries = test.tries }
				w := sim.New(t, o)
				w.StartAll()
				run := w.Request("go")
				end := w.AwaitEnd(run, 10*soon)
				switch {
				case test.code == "" && end.Outcome != events.RunCompleted:
					t.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
				case test.code != "" && (end.Error == nil || end.Error.Code != test.code):
					t.Errorf("run ended as %s (%v), want %s", end.Outcome, end.Error, test.code)
				}
				if got := len(model.Requests()); got != test.turns {
					t.Errorf("the model was asked %d times, want %d", got, test.turns)
				}
				time.Sleep(2 * time.Second) // fake
				w.Check(true)
			})
		})
	}
}

func many(n int) agenttest.Step {
	var step agenttest.Step
	for range n {
		step.Calls = append(step.Calls, agenttest.ToolCall{Name: "lookup_order", Args: `{"orderId":"42"}`})
	}
	return step
}

// speaker is a model that speaks until it is let go, or its request ends.
type speaker struct {
	speaking chan struct{}
	leave    chan struct{}
	cut      chan error
}

func (m *speaker) Stream(ctx context.Context, _ agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return func(yield func(agent.ModelPart, error) bool) {
		if !yield(agent.ModelPart{Type: agent.PartTextDelta, Text: "well"}, nil) {
			return
		}
		m.speaking <- struct{}{}
		select {
		case <-ctx.Done():
			m.cut <- ctx.Err()
			yield(agent.ModelPart{}, ctx.Err())
		case <-m.leave:
			yield(agent.ModelPart{Type: agent.PartFinish, FinishReason: agent.FinishStop}, nil)
		}
	}
}

// inTurn runs a test while a model speaks.
func inTurn(t *testing.T, f func(w *sim.World, m *speaker, plan *sim.Copy)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &speaker{make(chan struct{}, 4), make(chan struct{}), make(chan error, 4)}
		o := reads()
		o.Model = m
		w := sim.New(t, o)
		plan := w.StartAll()[0]
		f(w, m, plan)
	})
}

// TestB21_7CancelDuringTurn cancels a run while its model speaks: the stream is closed, and nothing of the turn counts. (B21.7)
func TestB21_7CancelDuringTurn(t *testing.T) {
	inTurn(t, func(w *sim.World, m *speaker, _ *sim.Copy) {
		run := w.Request("go")
		<-m.speaking
		w.Cancel("bob", run)
		if err := <-m.cut; err == nil {
			w.T.Error("the stream of the model was not closed")
		}
		if end := w.AwaitEnd(run, soon); end.Outcome != events.RunCancelled || end.Message != nil {
			w.T.Errorf("run ended as %s, with message %v", end.Outcome, end.Message)
		}
		w.Check(true)
	})
}

// TestPlannerDiesDuringTurn kills the planner while the model speaks. Another one asks again, and readers are told to drop
// what they saw. (B13.17)
func TestPlannerDiesDuringTurn(t *testing.T) {
	inTurn(t, func(w *sim.World, m *speaker, plan *sim.Copy) {
		run := w.Request("go")
		<-m.speaking
		plan.Kill()
		w.Start(planner.Name)
		<-m.speaking
		close(m.leave)
		end := w.AwaitEnd(run, 5*soon)
		if end.Outcome != events.RunCompleted || end.Attempt < 2 {
			w.T.Errorf("run ended as %s by attempt %d", end.Outcome, end.Attempt)
		}
		ctx, cancel := context.WithTimeout(w.T.Context(), soon)
		defer cancel()
		retried := false
		for c, err := range w.Conn().Follow(ctx, run, 0, nil) {
			must(w, err)
			retried = retried || c.Type == events.ChunkStepRetry
			if c.Type == events.ChunkFinish {
				break
			}
		}
		if !retried {
			w.T.Error("readers were not told to drop the turn that was cut")
		}
		w.Check(true)
	})
}

// TestForeignResultEndsTheRun puts a message that is no event where a result belongs. No gate sees that; the planner asks
// for the end of the run.
func TestForeignResultEndsTheRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := sim.New(t, sim.Options{Tools: []agent.Tool{sim.Refund(&sim.Effects{})}})
		w.StartAll()
		run := w.Request("go")
		call := events.CallID{Run: run, Step: 1, Index: 1}
		w.AwaitAsk(call, soon)
		jetstreamtest.Slip(t, w.Server, w.Conn().Namespace().Call(call, events.KindResult).Ingest(), nil, "{")
		if end := w.AwaitEnd(run, 10*soon); end.Outcome != events.RunFailed || end.Error.Code != events.CodeTampering {
			t.Errorf("run ended as %s (%v), want failed, tampering", end.Outcome, end.Error)
		}
	})
}

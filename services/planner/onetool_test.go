package planner_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// silence is a model that nobody may ask.
type silence struct{ t testing.TB }

func (m silence) Stream(context.Context, agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	m.t.Error("a run of one tool has asked a model")
	return func(yield func(agent.ModelPart, error) bool) { yield(agent.ModelPart{}, errors.New("nobody asks me")) }
}

// oneTool is a world whose model says nothing.
func oneTool(tb testing.TB) sim.Options {
	tb.Helper()
	o := reads()
	o.Model = silence{tb}
	return o
}

// toolRequest asks for one call of the lookup.
func toolRequest() events.RunRequested {
	return events.RunRequested{ToolID: "lookup_order", Args: json.RawMessage(`{"orderId":"42"}`), RunID: "r1"}
}

// startTool posts a start of a single tool, as a delivery.
func startTool(w *sim.World, r events.RunRequested) jetstream.Delivery {
	w.T.Helper()
	return w.Posted(w.Conn().Namespace().InStart("bob", events.TokenTool), r.RunID, "bob", r)
}

// TestB1_17_HabitsOfOneTool holds the handlers of a run of one tool to their habits: twice, late, beside.
func TestB1_17_HabitsOfOneTool(t *testing.T) {
	t.Parallel()
	opts := func() sim.Options { return oneTool(t) }
	for name, h := range map[string]sim.Habit{
		"request": {
			Options: opts, Handler: handler(planner.HandleRequest),
			Bring: func(w *sim.World) jetstream.Delivery { return startTool(w, toolRequest()) },
		},
		"start": {
			Options: opts, Before: []string{planner.Name}, Handler: handler(planner.HandleFact),
			Bring: func(w *sim.World) jetstream.Delivery {
				startTool(w, toolRequest())
				return w.Delivered(w.Conn().Namespace().Start("r1"))
			},
		},
		"result": {
			Options: opts, Before: []string{planner.Name, approval.Name, toolexecutor.Name}, Handler: handler(planner.HandleFact),
			Bring: func(w *sim.World) jetstream.Delivery {
				startTool(w, toolRequest())
				return w.Delivered(w.Conn().Namespace().Call(events.CallID{Run: "r1", Step: 1, Index: 1}, events.KindResult))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h.Exercise(t)
		})
	}
}

// TestB1_17_SameFactsAsAnyRun follows a run of one tool through its facts: the reserved agent, no definition of one, the
// tool pinned by its digest, the arguments as the request has them, a step that no model has made, and an end.
func TestB1_17_SameFactsAsAnyRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := sim.New(t, oneTool(t))
		w.StartAll()
		ns := w.Conn().Namespace()
		r := toolRequest()
		r.ThreadID, r.Limits = "t", &events.Limits{Steps: 1, Tokens: 1}
		startTool(w, r)
		end := w.AwaitEnd("r1", soon)
		if end.Outcome != events.RunCompleted || end.FinishReason != "stop" || end.AgentID != events.TokenTool || end.ThreadID != "t" {
			t.Errorf("end = %+v", end)
		}
		started, err := events.Data[events.RunStarted](w.Await(ns.Start("r1"), soon))
		must(w, err)
		if started.AgentID != events.TokenTool || started.Definitions.Agent != "" || started.Requester != "bob" ||
			len(started.Definitions.Tools) != 1 || started.Path[0].AgentID != events.TokenTool {
			t.Errorf("start = %+v", started)
		}
		raw, err := w.Conn().Def(t.Context(), started.Definitions.Tools["lookup_order"])
		if err != nil || !strings.Contains(string(raw), `"lookup_order"`) {
			t.Errorf("pinned to %s, %v", raw, err)
		}
		step, err := events.Data[events.StepFinished](w.Await(ns.Step("r1", 1), soon))
		must(w, err)
		if step.Model != "" || len(step.Calls) != 1 || step.Calls[0].ToolName != "lookup_order" || step.Calls[0].Args != `{"orderId":"42"}` {
			t.Errorf("step = %+v", step)
		}
		result, err := events.Data[events.CallFinished](w.Await(ns.Call(events.CallID{Run: "r1", Step: 1, Index: 1}, events.KindResult), soon))
		must(w, err)
		if result.Outcome != events.OutcomeOK || string(result.Result) != `{"amount":612.5,"orderId":"42"}` {
			t.Errorf("result = %+v", result)
		}
		w.Check(true)
	})
}

// TestB1_17_RefusedStartsOfOneTool shows starts of single tools that do not count.
func TestB1_17_RefusedStartsOfOneTool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := oneTool(t)
		o.People = map[string]events.PrincipalDef{"eve": {ID: "eve", Scopes: []string{"decide"}}}
		w := sim.New(t, o)
		n := listen(w)
		w.StartAll()
		text := "x"
		for _, test := range []struct {
			change func(*events.RunRequested)
			code   events.Code
			says   string
		}{
			{func(r *events.RunRequested) { r.ToolID = "rm" }, events.CodeNotFound, `"rm"`},
			{func(r *events.RunRequested) { r.ToolID = "" }, events.CodeInvalidRequest, "toolId is missing"},
			{func(r *events.RunRequested) { r.AgentID = "support" }, events.CodeInvalidRequest, "not both"},
			{func(r *events.RunRequested) { r.Messages = request().Messages }, events.CodeInvalidRequest, "messages"},
			{func(r *events.RunRequested) { r.Instructions = &text }, events.CodeInvalidRequest, "instructions"},
			{func(r *events.RunRequested) { r.Model = text }, events.CodeInvalidRequest, "model"},
			{func(r *events.RunRequested) { r.ToolChoice = "auto" }, events.CodeInvalidRequest, "toolChoice"},
			{func(r *events.RunRequested) { r.ActiveTools = &[]string{} }, events.CodeInvalidRequest, "activeTools"},
			{func(r *events.RunRequested) { r.AutoResumeSuspendedTools = new(bool) }, events.CodeInvalidRequest, "autoResume"},
			{func(r *events.RunRequested) { r.RunID = "a.b" }, events.CodeInvalidRequest, "runId"},
			{func(r *events.RunRequested) { r.RequestContext = json.RawMessage(`[1]`) }, events.CodeInvalidRequest, "requestContext"},
		} {
			r := toolRequest()
			test.change(&r)
			before := len(n.all())
			postTo(w, w.Conn().Namespace().InStart("bob", events.TokenTool), r)
			time.Sleep(2 * time.Second) // fake
			told := n.all()[before:]
			if len(told) != 1 || told[0].Code != test.code || !strings.Contains(told[0].Message, test.says) {
				t.Errorf("told %+v, want %s about %q", told, test.code, test.says)
			}
		}
		// A tool at an agent's subject, and an agent that calls itself by the reserved name.
		before := len(n.all())
		postTo(w, w.Conn().Namespace().InStart("bob", "support"), toolRequest())
		named := request()
		named.AgentID = events.TokenTool
		postTo(w, "weir.default.in.start.bob."+events.Token(events.TokenTool), named)
		w.RequestAs("eve", toolRequest()) // who may decide, and not start
		time.Sleep(2 * time.Second)       // fake
		if told := n.all()[before:]; len(told) != 2 || !strings.Contains(told[0].Message, "subject names") || !strings.Contains(told[1].Message, "reserved") {
			t.Errorf("told %+v", told)
		}
		starts, err := w.Conn().Subjects(t.Context(), w.Conn().Namespace().EveryMain(events.KindStart))
		if err != nil || len(starts) > 0 {
			t.Errorf("started: %v, %v", starts, err)
		}
	})
}

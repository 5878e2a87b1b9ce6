package planner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
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

type cityOf struct {
	City string `json:"city"`
}

// asking is a tool that asks which city until it is resumed, and counts what it was resumed with.
type asking struct {
	mu   sync.Mutex
	with []string
}

func (a *asking) tool() agent.Tool {
	return agent.NewTool("weather", "Tell the weather",
		func(_ context.Context, call *agent.Call, _ sim.Order) (map[string]string, error) {
			if !call.Resumed() {
				return nil, call.Suspend(map[string]string{"question": "Which city?"})
			}
			in, err := agent.ResumeData[cityOf](call)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.with = append(a.with, in.City)
			return map[string]string{"weather": "rain in " + in.City}, err
		}, &agent.ToolOptions{ResumeSchema: json.RawMessage(
			`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}`)})
}

func (a *asking) resumedWith() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.with)
}

// talking is a world whose agent resumes suspended tools automatically. Its model calls the tool in the first turn, and then
// says these steps, whatever it is asked.
func talking(t *testing.T, steps ...agenttest.Step) (sim.Options, *agenttest.Model, *asking) {
	t.Helper()
	a := &asking{}
	m := agenttest.NewModel(t, append([]agenttest.Step{agenttest.Ask("weather", `{"orderId":"42"}`)}, steps...)...)
	return sim.Options{
		Tools: []agent.Tool{a.tool()}, Model: m,
		Agent: events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{"weather": "weather"}, AutoResumeSuspendedTools: true},
	}, m, a
}

func inThread(run, prompt string) events.RunRequested {
	return events.RunRequested{
		AgentID: "support", RunID: run, ThreadID: "t1", ResourceID: "u1",
		Messages: events.Prompt{events.TextMessage(events.RoleUser, prompt)},
	}
}

func callOf(run string) events.CallID { return events.CallID{Run: run, Step: 1, Index: 1} }

// says is what a model says that found these data for calls of runs.
func says(pairs ...string) agenttest.Step {
	var list []string
	for i := 0; i+1 < len(pairs); i += 2 {
		list = append(list, fmt.Sprintf(`{"toolCallId":%q,"resumeData":%s}`, callOf(pairs[i]), pairs[i+1]))
	}
	return agenttest.Say(`{"answers":[` + strings.Join(list, ",") + `]}`)
}

// suspend starts run r1 and waits until its tool asks.
func suspend(w *sim.World, run string) events.CallHeld {
	w.T.Helper()
	w.RequestAs("bob", inThread(run, "How is the weather?"))
	ask := w.AwaitAsk(callOf(run), soon)
	time.Sleep(time.Microsecond) // fake: what follows is later
	return ask
}

func step1(w *sim.World, run string) *events.AutoResume {
	w.T.Helper()
	d, err := events.Data[events.StepFinished](w.Await(w.Conn().Namespace().Step(run, 1), soon))
	must(w, err)
	return d.AutoResume
}

func textOf(end events.RunEnded) string {
	if end.Message == nil {
		return ""
	}
	return end.Message.Text()
}

// The next message of the thread answers the question: the first run goes on under its own id, and the second names it.
func TestB11_4_B11_5MessageResumesTheSuspendedRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, model, tool := talking(t, says("r1", `{"city":"Rome"}`), agenttest.Say("It rains in Rome."))
		w := sim.New(t, o)
		w.StartAll()
		suspend(w, "r1")
		w.RequestAs("bob", inThread("r2", "In Rome"))
		first, second := w.AwaitEnd("r1", soon), w.AwaitEnd("r2", soon)
		if first.Outcome != events.RunCompleted || textOf(first) != "It rains in Rome." {
			t.Errorf("the first run ended as %s: %q", first.Outcome, textOf(first))
		}
		if second.FinishReason != "resumed" || !slices.Equal(second.Resumes, []string{"r1"}) || second.Message != nil || second.Usage.TotalTokens != 15 {
			t.Errorf("the second run ended as %+v", second)
		}
		a, err := events.Data[events.CallAnswered](w.Await(w.Conn().Namespace().Call(callOf("r1"), events.KindAnswer), soon))
		must(w, err)
		if a.Principal != "bob" || a.AuthType != events.AuthAuto || a.Decision != events.ResumeD {
			t.Errorf("answer %+v", a)
		}
		if got := tool.resumedWith(); !slices.Equal(got, []string{"Rome"}) {
			t.Errorf("the tool was resumed with %q", got)
		}
		reqs := model.Requests()
		if len(reqs) != 3 || len(reqs[1].Tools) != 0 || !strings.Contains(reqs[1].Messages[0].Text(), `"message":"In Rome"`) {
			t.Errorf("the model was asked %d times: %+v", len(reqs), reqs[1])
		}
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

// A message that is no answer starts an ordinary run, and the call waits on. What the question took is counted; nothing
// that a model writes instead of an answer does anything.
func TestB11_6MessageThatAnswersNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		says   agenttest.Step
		reason string
	}{
		"nothing":          {says(), "answers none"},
		"prose":            {agenttest.Say("It is about Rome."), "cannot be read"},
		"prose around":     {agenttest.Say(`Here: {"answers":[{"toolCallId":"r1=1-1","resumeData":{"city":"Rome"}}]}`), "cannot be read"},
		"another form":     {agenttest.Say(`[{"toolCallId":"r1=1-1","resumeData":{"city":"Rome"}}]`), "cannot be read"},
		"equal keys":       {agenttest.Say(`{"answers":[],"answers":[{"toolCallId":"r1=1-1","resumeData":{"city":"Rome"}}]}`), "cannot be read"},
		"an approval":      {agenttest.Say(`{"answers":[{"toolCallId":"r1=1-1","approved":true}]}`), "cannot be read"},
		"no data":          {agenttest.Say(`{"answers":[{"toolCallId":"r1=1-1"}]}`), "does not fit"},
		"data of no use":   {says("r1", `{"town":"Rome"}`), "does not fit"},
		"an unknown call":  {says("r7", `{"city":"Rome"}`), "does not fit"},
		"the same twice":   {says("r1", `{"city":"Rome"}`, "r1", `{"city":"Oslo"}`), "does not fit"},
		"a call of a tool": {agenttest.Ask("weather", `{"orderId":"43"}`), "cannot be read"},
		"a refusal":        {agenttest.Step{Err: &agent.ModelError{Status: 400, Err: errors.New("no")}}, "could not be asked"},
		"too much":         {agenttest.Say(*large(300 << 10)), "too much"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, model, tool := talking(t, test.says, agenttest.Say("Hello."))
				w := sim.New(t, o)
				w.StartAll()
				ask := suspend(w, "r1")
				r := inThread("r2", "In Rome")
				r.Limits = &events.Limits{Steps: 1}
				w.RequestAs("bob", r)
				end := w.AwaitEnd("r2", soon)
				if end.FinishReason != "stop" || textOf(end) != "Hello." || end.Resumes != nil || end.Step != 2 {
					t.Errorf("the run ended as %+v", end)
				}
				if found := step1(w, "r2"); len(found.Answers) != 0 || !strings.Contains(found.Reason, test.reason) ||
					!slices.Equal(found.Asked, []string{ask.ToolCallID}) {
					t.Errorf("found %+v", found)
				}
				if want := 15 * (len(model.Requests()) - 1); test.says.Err == nil && name != "too much" && end.Usage.TotalTokens != want {
					t.Errorf("%d tokens, want %d", end.Usage.TotalTokens, want)
				}
				last, err := w.Conn().Last(t.Context(), w.Conn().Namespace().Call(callOf("r1"), events.KindAsk).Chain())
				must(w, err)
				if last.Place.Kind != events.KindAsk || len(tool.resumedWith()) != 0 {
					t.Errorf("the call is at %s", last.Place.Kind)
				}
				time.Sleep(2 * time.Second) // fake
				w.Check(true)
			})
		})
	}
}

// A model that fails for a moment is asked again, and an answer in a fenced block is one.
func TestB11_4ModelIsAskedUntilItAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy := agenttest.Step{Text: "{", Err: &agent.ModelError{Retryable: true, Status: 429, Err: errors.New("slow down")}}
		cut := agenttest.Step{Parts: []agent.ModelPart{{Type: agent.PartTextDelta, Text: "{"}}}
		fenced := agenttest.Say("```json\n" + says("r1", `{"city":"Rome"}`).Text + "\n```\n")
		o, _, tool := talking(t, busy, cut, fenced, agenttest.Say("Rain."))
		w := sim.New(t, o)
		w.StartAll()
		suspend(w, "r1")
		w.RequestAs("bob", inThread("r2", "In Rome"))
		if end := w.AwaitEnd("r2", soon); !slices.Equal(end.Resumes, []string{"r1"}) {
			t.Errorf("the run ended as %+v", end)
		}
		w.AwaitEnd("r1", soon)
		if got := tool.resumedWith(); !slices.Equal(got, []string{"Rome"}) {
			t.Errorf("the tool was resumed with %q", got)
		}
	})
}

// Where a condition is not met the model is not asked at all: an ordinary run starts.
func TestB11_1_B11_2OrdinaryRunWithoutTheConditions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first, second func(*events.RunRequested)
		off           bool // the agent does not say that it resumes
	}{
		"another thread":              {second: func(r *events.RunRequested) { r.ThreadID = "t2" }},
		"another resource":            {second: func(r *events.RunRequested) { r.ResourceID = "u2" }},
		"no resource":                 {second: func(r *events.RunRequested) { r.ResourceID = "" }},
		"no thread":                   {second: func(r *events.RunRequested) { r.ThreadID = "" }},
		"no thread in either":         {first: func(r *events.RunRequested) { r.ThreadID = "" }, second: func(r *events.RunRequested) { r.ThreadID = "" }},
		"the message forbids":         {second: func(r *events.RunRequested) { r.AutoResumeSuspendedTools = new(false) }},
		"the question forbids":        {first: func(r *events.RunRequested) { r.AutoResumeSuspendedTools = new(false) }},
		"nobody allows it":            {off: true},
		"only the message allows it":  {off: true, second: func(r *events.RunRequested) { r.AutoResumeSuspendedTools = new(true) }},
		"only the question allows it": {off: true, first: func(r *events.RunRequested) { r.AutoResumeSuspendedTools = new(true) }},
		"nothing is said": {second: func(r *events.RunRequested) {
			r.Messages = events.Prompt{{Role: events.RoleUser, Parts: []events.Part{{Type: events.PartFile, URL: "https://example.com/rome.png", MediaType: "image/png"}}}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, model, _ := talking(t, agenttest.Say("Hello."))
				o.Agent.AutoResumeSuspendedTools = !test.off
				w := sim.New(t, o)
				w.StartAll()
				first, second := inThread("r1", "How is the weather?"), inThread("r2", "In Rome")
				for change, r := range map[*func(*events.RunRequested)]*events.RunRequested{&test.first: &first, &test.second: &second} {
					if *change != nil {
						(*change)(r)
					}
				}
				w.RequestAs("bob", first)
				w.AwaitAsk(callOf("r1"), soon)
				time.Sleep(time.Microsecond) // fake: what follows is later
				w.RequestAs("bob", second)
				if end := w.AwaitEnd("r2", soon); textOf(end) != "Hello." || end.Step != 1 {
					t.Errorf("the run ended as %+v", end)
				}
				if n := len(model.Requests()); n != 2 {
					t.Errorf("the model was asked %d times", n)
				}
			})
		})
	}
}

// Both may say so in their requests alone.
func TestB11_1RequestsAllowIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _, _ := talking(t, says("r1", `{"city":"Rome"}`), agenttest.Say("Rain."))
		o.Agent.AutoResumeSuspendedTools = false
		w := sim.New(t, o)
		w.StartAll()
		for _, run := range []string{"r1", "r2"} {
			r := inThread(run, "In Rome")
			r.AutoResumeSuspendedTools, r.ResourceID = new(true), ""
			w.RequestAs("bob", r)
			if run == "r1" {
				w.AwaitAsk(callOf(run), soon)
				time.Sleep(time.Microsecond) // fake: what follows is later
			}
		}
		if end := w.AwaitEnd("r2", soon); !slices.Equal(end.Resumes, []string{"r1"}) {
			t.Errorf("the run ended as %+v", end)
		}
	})
}

// Calls that wait for approval are never shown to the model for an answer, nor tools that do not say what they wait for.
func TestB11_2_B11_3OnlySuspendedCallsWithASchemaTakePart(t *testing.T) {
	t.Parallel()
	for name, tool := range map[string]agent.Tool{
		"approval": agent.NewTool("weather", "Tell the weather", func(context.Context, *agent.Call, sim.Order) (string, error) { return "rain", nil },
			&agent.ToolOptions{RequireApproval: agent.Always(), ResumeSchema: json.RawMessage(`{}`)}),
		"no schema": agent.NewTool("weather", "Tell the weather", func(_ context.Context, call *agent.Call, _ sim.Order) (string, error) {
			return "", call.Suspend("which?")
		}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, model, _ := talking(t, agenttest.Say("Hello."))
				o.Tools = []agent.Tool{tool}
				w := sim.New(t, o)
				w.StartAll()
				suspend(w, "r1")
				w.RequestAs("bob", inThread("r2", "yes"))
				if end := w.AwaitEnd("r2", soon); textOf(end) != "Hello." || len(model.Requests()) != 2 {
					t.Errorf("the run ended as %+v after %d requests", end, len(model.Requests()))
				}
			})
		})
	}
}

// What the model is offered in its own turns is byte by byte what it is without auto-resume.
func TestB11_7ToolsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	offered := map[bool][]agent.ModelRequest{}
	for _, on := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			steps := []agenttest.Step{agenttest.Say("Hello."), agenttest.Say("Rain.")}
			if on {
				steps = append([]agenttest.Step{says()}, steps...)
			}
			o, model, _ := talking(t, steps...)
			o.Agent.AutoResumeSuspendedTools = on
			w := sim.New(t, o)
			w.StartAll()
			ask := suspend(w, "r1")
			w.RequestAs("bob", inThread("r2", "Hello"))
			w.AwaitEnd("r2", soon)
			w.Decide("alice", events.DecisionRequested{
				Decision: events.ResumeD, ToolCallID: ask.ToolCallID, Round: &ask.Round, ResumeData: json.RawMessage(`{"city":"Rome"}`),
			})
			w.AwaitEnd("r1", soon)
			for _, req := range model.Requests() {
				if len(req.Tools) > 0 {
					offered[on] = append(offered[on], req)
				}
			}
		})
	}
	if len(offered[true]) != 3 || len(offered[false]) != 3 {
		t.Fatalf("%d and %d turns", len(offered[true]), len(offered[false]))
	}
	for i, without := range offered[false] {
		with := offered[true][i]
		if diff := cmp.Diff(without.Tools, with.Tools); diff != "" {
			t.Errorf("turn %d: %s", i, diff)
		}
		if without.ToolChoice != with.ToolChoice || without.Instructions != with.Instructions {
			t.Errorf("turn %d differs: %+v, %+v", i, without, with)
		}
	}
}

// answering is what a model says that found these data for calls.
func answering(pairs ...string) agenttest.Step {
	var list []string
	for i := 0; i+1 < len(pairs); i += 2 {
		list = append(list, fmt.Sprintf(`{"toolCallId":%q,"resumeData":%s}`, pairs[i], pairs[i+1]))
	}
	return agenttest.Say(`{"answers":[` + strings.Join(list, ",") + `]}`)
}

// Two runs of a thread ask the same: a message that may be for either answers none, one that names calls answers those.
func TestB11_8SeveralRunsAskTheSame(t *testing.T) {
	t.Parallel()
	const one, two, rome = "r0=1-1", "r1=2-1", `{"city":"Rome"}`
	for name, test := range map[string]struct {
		message string
		says    agenttest.Step
		resumes []string
	}{
		"the same for both":      {"In Rome", answering(one, rome, two, rome), nil},
		"one of two alike":       {"In Rome", answering(two, rome), nil},
		"the other of two alike": {"In Rome", answering(one, rome), nil},
		"different data":         {"In Rome and in Oslo", answering(one, rome, two, `{"city":"Oslo"}`), nil},
		"one that is named":      {"Rome for " + two, answering(two, rome), []string{"r1"}},
		"both that are named":    {"Rome for r1=2-1 and r0=1-1", answering(two, rome, one, rome), []string{"r0", "r1"}},
		"one named of two":       {"Rome for " + one, answering(one, rome, two, rome), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				steps := []agenttest.Step{answering(), agenttest.Ask("weather", `{"orderId":"42"}`), test.says}
				for range max(len(test.resumes), 1) {
					steps = append(steps, agenttest.Say("Done."))
				}
				o, _, tool := talking(t, steps...)
				w := sim.New(t, o)
				w.StartAll()
				suspend(w, "r0")
				time.Sleep(time.Second) // fake
				w.RequestAs("bob", inThread("r1", "How is the weather?"))
				w.AwaitAsk(events.CallID{Run: "r1", Step: 2, Index: 1}, soon)
				time.Sleep(time.Microsecond) // fake: what follows is later
				w.RequestAs("bob", inThread("r2", test.message))
				end := w.AwaitEnd("r2", soon)
				if !slices.Equal(end.Resumes, test.resumes) {
					t.Errorf("the run ended as %+v: %+v", end, step1(w, "r2"))
				}
				for _, run := range test.resumes {
					w.AwaitEnd(run, soon)
				}
				if got := tool.resumedWith(); len(got) != len(test.resumes) {
					t.Errorf("the tool was resumed with %q", got)
				}
				if found := step1(w, "r2"); test.resumes == nil && !strings.Contains(found.Reason, "not clear") {
					t.Errorf("found %+v", found)
				}
				time.Sleep(2 * time.Second) // fake
				w.Check(true)
			})
		})
	}
}

// Several calls of one turn are told apart by what they were called with, and a message may answer all of them.
func TestB11_8OneMessageAnswersSeveralCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _, tool := talking(t)
		o.Model = agenttest.NewModel(t,
			agenttest.Step{Calls: []agenttest.ToolCall{{Name: "weather", Args: `{"orderId":"1"}`}, {Name: "weather", Args: `{"orderId":"2"}`}}},
			answering("r1=1-2", `{"city":"Oslo"}`, "r1=1-1", `{"city":"Rome"}`), agenttest.Say("Rain."))
		w := sim.New(t, o)
		w.StartAll()
		suspend(w, "r1")
		w.AwaitAsk(events.CallID{Run: "r1", Step: 1, Index: 2}, soon)
		time.Sleep(time.Microsecond) // fake: what follows is later
		w.RequestAs("bob", inThread("r2", "Rome for 1, Oslo for 2"))
		if end := w.AwaitEnd("r2", soon); !slices.Equal(end.Resumes, []string{"r1"}) {
			t.Errorf("the run ended as %+v", end)
		}
		if end := w.AwaitEnd("r1", soon); textOf(end) != "Rain." {
			t.Errorf("the first run ended as %+v", end)
		}
		got := tool.resumedWith()
		slices.Sort(got)
		if !slices.Equal(got, []string{"Oslo", "Rome"}) {
			t.Errorf("the tool was resumed with %q", got)
		}
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

// thinking is a model that does something before it says a step.
type thinking struct {
	*agenttest.Model
	before func(agent.ModelRequest)
}

func (m thinking) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	m.before(req)
	return m.Model.Stream(ctx, req)
}

// While the model looks for an answer somebody resumes the call by hand: that counts, and the message starts an ordinary
// run. The message of the race's loser is not lost.
func TestB11_8WhoeverIsFirstWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, model, tool := talking(t, agenttest.Say("Rain."), says("r1", `{"city":"Rome"}`), agenttest.Say("Done."))
		var w *sim.World
		var once sync.Once
		o.Model = thinking{model, func(req agent.ModelRequest) {
			if len(req.Tools) > 0 {
				return
			}
			once.Do(func() {
				ask := w.AwaitAsk(callOf("r1"), soon)
				time.Sleep(time.Microsecond) // fake: what follows is later
				w.Decide("alice", events.DecisionRequested{
					Decision: events.ResumeD, ToolCallID: ask.ToolCallID, Round: &ask.Round, ResumeData: json.RawMessage(`{"city":"Oslo"}`),
				})
				w.AwaitEnd("r1", soon)
			})
		}}
		w = sim.New(t, o)
		w.StartAll()
		suspend(w, "r1")
		w.RequestAs("bob", inThread("r2", "In Rome"))
		end := w.AwaitEnd("r2", soon)
		if end.FinishReason != "stop" || end.Resumes != nil || textOf(end) != "Done." {
			t.Errorf("the run ended as %+v", end)
		}
		if got := tool.resumedWith(); !slices.Equal(got, []string{"Oslo"}) {
			t.Errorf("the tool was resumed with %q", got)
		}
		if r := w.Check(true); r["refused"] != 1 || r["answer:resume"] != 1 {
			t.Errorf("the log holds %v", r)
		}
	})
}

// Two messages answer the same question at once: one of them does, the other starts an ordinary run.
func TestB11_8TwoMessagesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := sim.New(t, supported())
		w.StartAll()
		suspend(w, "r1")
		w.RequestAs("bob", inThread("r2", `resume:{"city":"Rome"}`))
		w.RequestAs("bob", inThread("r3", `resume:{"city":"Oslo"}`))
		w.AwaitEnd("r1", soon)
		resumed := 0
		for _, run := range []string{"r2", "r3"} {
			if goesOnAs(w, run) == events.KindEnd {
				resumed++
			}
		}
		if resumed != 1 {
			t.Errorf("%d messages count as the answer", resumed)
		}
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

// goesOnAs tells what follows the question that a run began with: its end, or its first turn.
func goesOnAs(w *sim.World, run string) events.Kind {
	w.T.Helper()
	for range 600 {
		last, err := w.Conn().Last(w.T.Context(), w.Conn().Namespace().MainOf(run))
		if err == nil && (last.Place.Kind == events.KindEnd || last.Place.N == 2) {
			return last.Place.Kind
		}
		if d, err := events.Data[events.StepFinished](last); err == nil && last.Place.N == 1 && d.AutoResume == nil {
			return last.Place.Kind // nothing was open any more when it began
		}
		time.Sleep(100 * time.Millisecond) // fake
	}
	w.T.Fatalf("run %s does not go on", run)
	return ""
}

// supported is a world like that of talking whose model is asked by any number of runs.
func supported() sim.Options {
	a := &asking{}
	return sim.Options{
		Tools: []agent.Tool{a.tool()},
		Agent: events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{"weather": "weather"}, AutoResumeSuspendedTools: true},
	}
}

// TestB11_5HandlerHabits holds the handler of a start whose message is an answer to its habits: twice, late, beside.
func TestB11_5HandlerHabits(t *testing.T) {
	t.Parallel()
	sim.Habit{
		Options: supported, Handler: handler(planner.HandleFact),
		Bring: func(w *sim.World) jetstream.Delivery {
			plan := w.StartAll()[0]
			suspend(w, "r1")
			must(w, plan.Stop())
			s, err := planner.New(w.Conn(), w.PlannerConfig())
			must(w, err)
			must(w, planner.HandleRequest(s, w.T.Context(), start(w, inThread("r2", `resume:{"city":"Rome"}`))))
			return w.Delivered(w.Conn().Namespace().Start("r2"))
		},
		Finish: func(w *sim.World, _ string) { w.AwaitEnd("r1", soon) },
	}.Exercise(t)
}

// TestB11_5KillPoints kills the planner at every boundary on the way from the message to the end of both runs. Another goes
// on: the tool is resumed once, both runs end, and the message is not lost.
func TestB11_5KillPoints(t *testing.T) {
	t.Parallel()
	points := 0
	synctest.Test(t, func(t *testing.T) { points = killAt(t, 0) })
	if points < 8 {
		t.Fatalf("only %d boundaries", points)
	}
	for n := range points {
		t.Run(fmt.Sprint(n+1), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { killAt(t, n+1) })
		})
	}
}

// killAt kills the planner at its n-th boundary after the message was sent, 0 for never, and returns how many there were.
func killAt(t *testing.T, n int) int {
	t.Helper()
	var mu sync.Mutex
	passed, armed := 0, false
	var w *sim.World
	var again sync.WaitGroup
	hit := func(c *sim.Copy) bool {
		mu.Lock()
		defer mu.Unlock()
		if c.Service != planner.Name || !armed {
			return false
		}
		if passed++; passed != n {
			return false
		}
		again.Go(func() {
			time.Sleep(time.Second) // fake
			w.Start(planner.Name)
		})
		return true
	}
	arm := func(yes bool) {
		mu.Lock()
		defer mu.Unlock()
		armed = yes
	}
	o := supported()
	o.Point = func(_ string, c *sim.Copy) {
		if hit(c) {
			c.Kill()
		}
	}
	w = sim.New(t, o)
	w.StartAll()
	suspend(w, "r1")
	arm(true)
	w.RequestAs("bob", inThread("r2", `resume:{"city":"Rome"}`))
	first, second := w.AwaitEnd("r1", 10*soon), w.AwaitEnd("r2", 10*soon)
	arm(false)
	again.Wait()
	if first.Outcome != events.RunCompleted || !slices.Equal(second.Resumes, []string{"r1"}) {
		t.Errorf("killed at %d: ended as %s and %+v", n, first.Outcome, second)
	}
	time.Sleep(2 * time.Second) // fake
	if r := w.Check(true); r["answer:resume"] != 1 {
		t.Errorf("killed at %d: the log holds %v", n, r)
	}
	mu.Lock()
	defer mu.Unlock()
	return passed
}

// Without a gate the run waits for two minutes and then goes on as an ordinary one; the gate that comes back then refuses
// the decision, because the message has been dealt with.
func TestB11_6GateIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _, tool := talking(t, says("r1", `{"city":"Rome"}`), agenttest.Say("Hello."))
		w := sim.New(t, o)
		gate := w.StartAll()[1]
		suspend(w, "r1")
		must(w, gate.Stop())
		began := time.Now()
		w.RequestAs("bob", inThread("r2", "In Rome"))
		end := w.AwaitEnd("r2", 10*soon)
		if textOf(end) != "Hello." || end.Resumes != nil || time.Since(began) < 2*time.Minute {
			t.Errorf("after %v the run ended as %+v", time.Since(began), end)
		}
		w.Start(approval.Name)
		id := events.AutoResumeID("r2", callOf("r1").String(), 1)
		refused, err := events.Data[events.DecisionRefused](w.Await(w.Conn().Namespace().Beside(callOf("r1"), events.KindRefused, id), soon))
		must(w, err)
		if refused.Code != events.CodeChanged || len(tool.resumedWith()) != 0 {
			t.Errorf("refused as %+v", refused)
		}
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}

// A run is cancelled while its model looks for an answer, or while it waits for the gate: nothing is left open.
func TestB11_5CancelledMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, model, tool := talking(t, says("r1", `{"city":"Rome"}`))
		var w *sim.World
		o.Model = thinking{model, func(req agent.ModelRequest) {
			if len(req.Tools) == 0 {
				w.Cancel("bob", "r2")
				w.AwaitEnd("r2", soon)
			}
		}}
		w = sim.New(t, o)
		w.StartAll()
		suspend(w, "r1")
		w.RequestAs("bob", inThread("r2", "In Rome"))
		if end := w.AwaitEnd("r2", soon); end.Outcome != events.RunCancelled {
			t.Errorf("the run ended as %+v", end)
		}
		time.Sleep(time.Minute) // fake
		if len(tool.resumedWith()) != 0 {
			t.Error("the tool was resumed by a message that was cancelled")
		}
		w.Check(true)
	})
}

// What is secret in the arguments or in what a tool asked is not shown to the model that looks for an answer.
func TestB11_4SecretsAreMasked(t *testing.T) {
	t.Parallel()
	type withCard struct {
		OrderID string `json:"orderId"`
		Card    string `json:"card"`
	}
	synctest.Test(t, func(t *testing.T) {
		o, _, _ := talking(t)
		o.Tools = []agent.Tool{agent.NewTool("weather", "Tell the weather", func(_ context.Context, call *agent.Call, _ withCard) (string, error) {
			return "", call.Suspend(map[string]string{"pin": "4711"})
		}, &agent.ToolOptions{
			InputSchema:   json.RawMessage(`{"type":"object","properties":{"orderId":{"type":"string"},"card":{"type":"string","writeOnly":true}}}`),
			SuspendSchema: json.RawMessage(`{"type":"object","properties":{"pin":{"type":"string","x-weir-secret":true}}}`),
			ResumeSchema:  json.RawMessage(`{"type":"boolean"}`),
		})}
		model := agenttest.NewModel(t, agenttest.Ask("weather", `{"orderId":"42","card":"4242-4242"}`), says(), agenttest.Say("Hello."))
		o.Model = model
		w := sim.New(t, o)
		w.StartAll()
		suspend(w, "r1")
		w.RequestAs("bob", inThread("r2", "Hello"))
		w.AwaitEnd("r2", soon)
		question := model.Requests()[1].Messages[0].Text()
		if strings.Contains(question, "4242") || strings.Contains(question, "4711") || !strings.Contains(question, `"orderId":"42"`) {
			t.Errorf("the model is asked %s", question)
		}
	})
}

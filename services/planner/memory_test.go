package planner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
)

// minding is a world whose agent keeps threads, with tools of which one hides what its results say.
func minding(t *testing.T, steps ...agenttest.Step) (sim.Options, *agenttest.Model) {
	t.Helper()
	hides := agent.NewTool("card", "Read a card",
		func(_ context.Context, _ *agent.Call, _ sim.Order) (map[string]string, error) {
			return map[string]string{"number": "4929-1"}, nil
		}, &agent.ToolOptions{Effect: agent.ReadOnly, Transform: &agent.Transform{Transcript: &agent.Forms{
			Input: agent.FormJQ(`{orderId: "hidden"}`), Output: agent.FormJQ(`{number: "****"}`),
		}}})
	m := agenttest.NewModel(t, steps...)
	return sim.Options{
		Tools: []agent.Tool{sim.Lookup(), hides}, Model: m,
		Agent: events.AgentDef{
			ID: "support", Model: "scripted/sim", Tools: map[string]string{"lookup_order": "lookup_order", "card": "card"},
			Memory: &events.Memory{},
		},
	}, m
}

// shown are messages in short: who says what, and of calls what they are and how they ended.
func shown(messages []events.Message) []string {
	var all []string
	for _, m := range messages {
		for _, p := range m.Parts {
			switch p.Type {
			case events.PartToolCall:
				all = append(all, fmt.Sprintf("%s calls %s %s", m.Role, p.ToolName, p.Args))
			case events.PartToolResult:
				all = append(all, fmt.Sprintf("%s %s %s", m.Role, p.ToolName, p.Output.Value))
			default:
				all = append(all, fmt.Sprintf("%s: %s", m.Role, p.Text))
			}
		}
	}
	return all
}

func entries(w *sim.World, resource, thread string) []jetstream.ThreadEntry {
	w.T.Helper()
	list, err := w.Conn().ThreadEntries(w.T.Context(), resource, thread)
	must(w, err)
	return list
}

// The model of the second run of a thread sees what the first was asked, its calls with what the transcripts of their tools
// show of arguments and results, and its answer. That of another resource's thread of the same name sees nothing.
func TestB13_12_B5_3SecondRunRecallsTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, model := minding(t,
			agenttest.Step{Calls: []agenttest.ToolCall{
				{Name: "lookup_order", Args: `{"orderId":"42"}`}, {Name: "card", Args: `{"orderId":"42"}`},
			}},
			agenttest.Say("It is paid."), agenttest.Say("As I said."), agenttest.Say("Who are you?"))
		w := sim.New(t, o)
		w.StartAll()
		for i, prompt := range []string{"Is 42 paid?", "And now?", "Hello"} {
			r := inThread(fmt.Sprintf("r%d", i+1), prompt)
			if i == 2 {
				r.ResourceID = "u2"
			}
			w.RequestAs("bob", r)
			w.AwaitEnd(r.RunID, soon)
			synctest.Wait()
		}
		reqs := model.Requests()
		raw := []string{"tool lookup_order " + `{"amount":612.5,"orderId":"42"}`, `tool card {"number":"4929-1"}`}
		if got := shown(reqs[1].Messages); !slices.Equal(got[len(got)-2:], raw) {
			t.Errorf("the first run's own turn sees %q", got)
		}
		want := []string{
			"user: Is 42 paid?", `assistant calls lookup_order {"orderId":"42"}`, `assistant calls card {"orderId":"hidden"}`,
			raw[0], `tool card {"number":"****"}`, "assistant: It is paid.", "user: And now?",
		}
		if diff := cmp.Diff(want, shown(reqs[2].Messages)); diff != "" {
			t.Errorf("the second run's model sees another conversation:\n%s", diff)
		}
		if got := shown(reqs[3].Messages); !slices.Equal(got, []string{"user: Hello"}) {
			t.Errorf("the model of another's thread sees %q", got)
		}
		if list := entries(w, "u1", "t1"); len(list) != 5 || !list[2].Closing || list[2].Outcome != events.RunCompleted || list[1].Messages[1].Parts[0].State != events.StateResult {
			t.Errorf("entries %+v", list)
		}
		w.Check(true)
	})
}

// An agent without memory takes a thread for a name, unless the request asks for more; a request may ask for less. Numbers of
// no use are refused.
func TestB13_12MemoryIsAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, model := minding(t, agenttest.Say("1"), agenttest.Say("2"), agenttest.Say("3"), agenttest.Say("4"))
		o.Agent.Memory = nil
		w := sim.New(t, o)
		w.StartAll()
		told := listen(w)
		none, few, many := 0, 2, events.MaxLastMessages+1
		for i, m := range []*events.Memory{nil, {}, {LastMessages: &none}, {LastMessages: &few}, {LastMessages: &many}} {
			r := inThread(fmt.Sprintf("r%d", i+1), fmt.Sprintf("ask %d", i+1))
			r.Memory = m
			w.RequestAs("bob", r)
			if i < 4 {
				w.AwaitEnd(r.RunID, soon)
			}
			synctest.Wait()
		}
		var got [][]string
		for _, r := range model.Requests() {
			got = append(got, shown(r.Messages))
		}
		want := [][]string{{"user: ask 1"}, {"user: ask 2"}, {"user: ask 3"}, {"user: ask 3", "assistant: 3", "user: ask 4"}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if list := told.all(); len(list) != 1 || list[0].Code != events.CodeInvalidRequest || !strings.Contains(list[0].Message, "memory.lastMessages") {
			t.Errorf("told %+v", list)
		}
		w.Check(true)
	})
}

// What is recalled are whole turns, within messages and tokens, in the order in which they were said.
func TestB13_12RecallTakesWholeTurns(t *testing.T) {
	t.Parallel()
	said := func(role events.Role, text string) []events.Message {
		return []events.Message{events.TextMessage(role, text)}
	}
	entry := func(run string, index int, closing bool, m []events.Message) jetstream.ThreadEntry {
		return jetstream.ThreadEntry{MessageStored: events.MessageStored{RunID: run, Index: index, Closing: closing, Messages: m}}
	}
	call := events.Part{Type: events.PartToolCall, ToolCallID: "b=1-1", ToolName: "x", Args: "{}"}
	result := func(text string) events.Part {
		return events.Part{Type: events.PartToolResult, ToolCallID: "b=1-1", ToolName: "x", Output: &events.ModelOutput{Type: "json", Value: json.RawMessage(text)}}
	}
	step := []events.Message{{Role: events.RoleAssistant, Parts: []events.Part{call}}, {Role: events.RoleTool, Parts: []events.Part{result(`"started"`)}}}
	task := entry("b", 1, false, []events.Message{{Role: events.RoleTool, Parts: []events.Part{result(`"done"`)}}})
	task.Call = "1-1"
	all := []jetstream.ThreadEntry{
		entry("a", 0, false, said("user", "one")), entry("a", 1, true, said("assistant", "1")),
		entry("b", 0, false, said("user", "two")), entry("c", 0, false, said("user", "three")),
		entry("b", 1, false, step), entry("c", 1, true, said("assistant", "3")), task,
		entry("x", 0, false, []events.Message{{Role: events.RoleAssistant, Parts: []events.Part{call}}}),
	}
	b := []string{"user: two", "user: three", "assistant calls x {}", `tool x "done"`, "assistant: 3"}
	for name, test := range map[string]struct {
		entries          []jetstream.ThreadEntry
		messages, tokens int
		want             []string
		full             bool
	}{
		"all":             {all, 10, 1000, append([]string{"user: one", "assistant: 1"}, b...), false},
		"two turns":       {all, 5, 1000, b, true},
		"exactly two":     {all, 4, 1000, b, true},
		"one turn":        {all, 3, 1000, []string{"user: three", "assistant: 3"}, true},
		"half a turn":     {all, 1, 1000, nil, true},
		"tokens":          {all, 10, 3, []string{"user: three", "assistant: 3"}, true},
		"no tokens":       {all, 10, 0, nil, true},
		"cut at the head": {all[1:], 10, 1000, b, false},
	} {
		said, full := planner.Recall(test.entries, test.messages, test.tokens)
		if diff := cmp.Diff(test.want, shown(said)); diff != "" || full != test.full {
			t.Errorf("%s: full %v\n%s", name, full, diff)
		}
	}
}

// A run that waits for people has what it was asked in its thread and no open call; a run beside it sees that, and each writes
// whole steps.
func TestB13_12_B13_14ParallelRunSeesNoOpenStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, model, _ := talking(t, agenttest.Say("Hello."), agenttest.Say("It rains."))
		o.Agent.AutoResumeSuspendedTools, o.Agent.Memory = false, &events.Memory{}
		w := sim.New(t, o)
		w.StartAll()
		ask := suspend(w, "r1")
		w.RequestAs("bob", inThread("r2", "Hello"))
		w.AwaitEnd("r2", soon)
		if got := shown(model.Requests()[1].Messages); !slices.Equal(got, []string{"user: How is the weather?", "user: Hello"}) {
			t.Errorf("the model of the run beside sees %q", got)
		}
		w.Decide("alice", events.DecisionRequested{
			Decision: events.ResumeD, ToolCallID: ask.ToolCallID, Fingerprint: ask.Fingerprint, ResumeData: json.RawMessage(`{"city":"Rome"}`),
		})
		w.AwaitEnd("r1", soon)
		synctest.Wait()
		var order []string
		for _, e := range entries(w, "u1", "t1") {
			order = append(order, fmt.Sprintf("%s-%d-%v", e.RunID, e.Index, e.Closing))
		}
		want := []string{"r1-0-false", "r2-0-false", "r2-0-true", "r1-1-false", "r1-1-true"}
		if diff := cmp.Diff(want, order); diff != "" {
			t.Error(diff)
		}
		w.Check(true)
	})
}

// A run that the gate ends while it waits has a closing entry, and its cancelled calls are whole.
func TestB13_12CancelledRunIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _, _ := talking(t)
		o.Agent.AutoResumeSuspendedTools, o.Agent.Memory = false, &events.Memory{}
		w := sim.New(t, o)
		w.StartAll()
		suspend(w, "r1")
		w.Cancel("bob", "r1")
		w.AwaitEnd("r1", soon)
		time.Sleep(time.Minute) // fake
		list := entries(w, "u1", "t1")
		if len(list) != 3 || list[1].Messages[1].Parts[0].State != events.StateError || list[2].Outcome != events.RunCancelled {
			t.Errorf("entries %+v", list)
		}
		w.Check(true)
	})
}

// What is recalled is frozen in the start of the run, as a blob when it is large, and the same after a restart.
func TestB13_12LargeHistoryIsFrozen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("long ", 20<<10)
		o, model := minding(t, agenttest.Say(long), agenttest.Ask("lookup_order", `{"orderId":"42"}`), agenttest.Say("Done."))
		w := sim.New(t, o)
		copies := w.StartAll()
		w.RequestAs("bob", inThread("r1", "Tell me"))
		w.AwaitEnd("r1", soon)
		synctest.Wait()
		w.RequestAs("bob", inThread("r2", "And?"))
		w.Await(w.Conn().Namespace().Start("r2"), soon)
		must(w, copies[0].Stop())
		w.Start(planner.Name)
		w.AwaitEnd("r2", soon)
		d, err := events.Data[events.RunStarted](w.Await(w.Conn().Namespace().Start("r2"), soon))
		must(w, err)
		if d.Recalled == nil || d.Recalled.DataRef == "" || len(d.Recalled.Messages) > 0 {
			t.Errorf("recalled %+v", d.Recalled)
		}
		for _, r := range model.Requests()[1:] {
			if got := shown(r.Messages); len(got) < 3 || got[0] != "user: Tell me" || got[1] != "assistant: "+long || got[2] != "user: And?" {
				t.Errorf("the model sees %d messages", len(got))
			}
		}
		synctest.Wait()
		w.Check(true)
	})
}

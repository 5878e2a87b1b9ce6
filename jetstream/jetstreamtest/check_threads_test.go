package jetstreamtest_test

import (
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// Each way in which a thread may disagree with the log is found.
func TestVerifyThreads(t *testing.T) {
	t.Parallel()
	ns, origin := events.DefaultNamespace, &events.Origin{Namespace: events.DefaultNamespace, Service: "planner"}
	fact := func(p events.Place, data any) events.Event {
		e, err := origin.Fact(p, data, events.Event{})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	facts := []events.Event{
		fact(ns.Start("r"), events.RunStarted{
			RunID: "r", RootRunID: "r", AgentID: "a", Requester: "bob", Path: []events.PathEntry{{AgentID: "a", RunID: "r"}}, InboxSeq: 3,
			Request:     events.RunRequested{AgentID: "a", ThreadID: "t", ResourceID: "u", Messages: events.Prompt{events.TextMessage("user", "x")}},
			Definitions: events.Definitions{Tools: map[string]string{}}, Recalled: &events.Recalled{},
		}),
		fact(ns.Step("r", 1), events.StepFinished{
			RunID: "r", Step: 1, Attempt: 1, MessageID: "m", FinishReason: "tool-calls", Message: events.Message{Role: "assistant"},
			Calls: []events.CallPlanned{{ToolCallID: "r=1-1", ToolName: "x", Args: "{}"}},
		}),
		fact(ns.End("r"), events.RunEnded{RunID: "r", Outcome: events.RunCompleted, FinishReason: "stop"}),
	}
	entry := func(index int, change ...func(*events.MessageStored)) jetstream.ThreadEntry {
		d := events.MessageStored{ThreadID: "t", ResourceID: "u", RunID: "r", InboxSeq: 3, Index: index}
		for _, c := range change {
			c(&d)
		}
		return jetstream.ThreadEntry{MessageStored: d}
	}
	closing := func(d *events.MessageStored) { d.Closing = true }
	open := func(d *events.MessageStored) {
		d.Messages = []events.Message{{Role: "assistant", Parts: []events.Part{{Type: events.PartToolCall, ToolCallID: "r=1-1"}}}}
	}
	whole := []jetstream.ThreadEntry{entry(0), entry(1), entry(1, closing)}
	for name, test := range map[string]struct {
		facts   []events.Event
		entries []jetstream.ThreadEntry
		want    string
	}{
		"whole":           {facts, whole, ""},
		"twice":           {facts, append(whole[:3:3], entry(1)), "twice"},
		"no start entry":  {facts, whole[1:], "lacks what it was asked (true)"},
		"no closing":      {facts, whole[:2], "how it ended (true)"},
		"no step":         {facts, []jetstream.ThreadEntry{whole[0], whole[2]}, "lacks step 1"},
		"a step too many": {facts, append(whole[:3:3], entry(2)), "holds step 2"},
		"another thread":  {facts, append(whole[:3:3], entry(1, func(d *events.MessageStored) { d.ThreadID = "v" })), "has an entry in thread"},
		"an open call":    {facts, []jetstream.ThreadEntry{whole[0], entry(1, open), whole[2]}, "without its result"},
		"ended too early": {facts[:2], whole, "which it has not"},
		"run is gone":     {nil, whole, ""},
	} {
		got := strings.Join(jetstreamtest.VerifyThreads(test.facts, test.entries, true), "; ")
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

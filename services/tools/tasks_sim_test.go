package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/toolexecutor"
	"github.com/weirkeeper/weir/services/tools"
)

// working is a world whose agent has the task tools and calls them as the steps say.
func working(t *testing.T, steps ...agenttest.Step) sim.Options {
	t.Helper()
	o := sim.Options{
		Model: agenttest.NewModel(t, steps...), Tools: slices.Collect(maps.Values(tools.Tasks())),
		Agent: events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{}},
	}
	for id := range tools.Tasks() {
		o.Agent.Tools[id] = id
	}
	return o
}

// calls is a step that calls tools at once; each is "tool arguments".
func calls(texts ...string) agenttest.Step {
	var step agenttest.Step
	for _, text := range texts {
		name, args, _ := strings.Cut(text, " ")
		step.Calls = append(step.Calls, agenttest.ToolCall{Name: name, Args: args})
	}
	return step
}

// kept is the list of a conversation.
func kept(w *sim.World, resource, thread string) string {
	w.T.Helper()
	value, _, err := w.Conn().Kept(w.T.Context(), events.TasksKey(resource, thread, ""))
	if err != nil {
		w.T.Fatal(err)
	}
	var doc struct{ Tasks []tools.Task }
	if value != nil && json.Unmarshal(value, &doc) != nil {
		w.T.Fatalf("kept %s", value)
	}
	return brief(doc.Tasks)
}

// TestB15_8_B15_13ListOfAConversation: runs of one conversation share a list, others do not see it, and a run without one has
// none.
func TestB15_8_B15_13ListOfAConversation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := sim.New(t, working(t,
			calls("task_write "+write("a|in_progress|A")), agenttest.Say("written"),
			calls(`task_complete {"id":"a"}`), agenttest.Say("completed"),
			calls(`task_check {}`), agenttest.Say("nothing there"),
			calls("task_write "+write("a|pending|A")), agenttest.Say("no conversation")))
		w.StartAll()
		request := func(run, resource, thread string) taskAnswer {
			t.Helper()
			w.RequestAs("bob", events.RunRequested{
				AgentID: "support", RunID: run, ResourceID: resource, ThreadID: thread,
				Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			})
			w.AwaitEnd(run, soon)
			var a taskAnswer
			if err := json.Unmarshal(resultOf(w, run).Result, &a); err != nil {
				t.Fatal(err)
			}
			return a
		}
		request("r1", "u1", "t1")
		if a := request("r2", "u1", "t1"); brief(a.Tasks) != "a + A" || kept(w, "u1", "t1") != "a + A" {
			t.Errorf("the next run of the conversation: %+v", a)
		}
		if a := request("r3", "u2", "t2"); a.IsError || len(a.Tasks) != 0 {
			t.Errorf("another conversation: %+v", a)
		}
		if a := request("r4", "", ""); !a.IsError || len(a.Tasks) != 0 {
			t.Errorf("no conversation: %+v", a)
		}
		w.Check(true)
	})
}

// TestB15_14CallsAtOnce: calls of one step change the list at once, on two executors, and each change is there.
func TestB15_14CallsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var list, at []string
		for i := range 12 {
			list = append(list, fmt.Sprintf("t%d|pending|T%d", i, i))
			at = append(at, fmt.Sprintf(`task_complete {"id":"t%d"}`, i))
		}
		w := sim.New(t, working(t, calls("task_write "+write(list...)), calls(at...), agenttest.Say("done")))
		w.StartAll()
		w.Start(toolexecutor.Name)
		inThread(w, "r1", "go")
		w.AwaitEnd("r1", soon)
		if got := kept(w, "u1", "t1"); strings.Count(got, " + ") != len(list) {
			t.Errorf("the list is %s", got)
		}
		w.Check(true)
	})
}

// TestB15_14KilledAfterTheWrite kills the executor when a list is stored and before the result is: another one takes the call
// over, while others have changed the list, and what they have done stays.
func TestB15_14KilledAfterTheWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var kills atomic.Int64
		o := working(t, calls("task_write "+write("a|pending|A", "b|pending|B")), agenttest.Say("done"))
		o.Point = func(name string, c *sim.Copy) {
			if name == jetstream.AfterStore+":weir_default_tasks" && kills.Add(1) == 1 {
				c.Kill()
			}
		}
		w := sim.New(t, o)
		w.StartAll()
		inThread(w, "r1", "go")
		for kept(w, "u1", "t1") == "" {
			time.Sleep(time.Second) // fake
		}
		key := events.TasksKey("u1", "t1", "")
		value, rev, err := w.Conn().Kept(t.Context(), key)
		if err == nil {
			_, err = w.Conn().Keep(t.Context(), key, json.RawMessage(strings.Replace(string(value), `"pending"`, `"completed"`, 1)), rev)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.Start(toolexecutor.Name)
		w.AwaitEnd("r1", 5*time.Minute)
		if got := kept(w, "u1", "t1"); got != "a + A, b - B" {
			t.Errorf("the list is %s", got)
		}
		if r := resultOf(w, "r1"); r.Attempt != 2 || !strings.Contains(string(r.Result), "[1/2 completed]") {
			t.Errorf("result %+v: %s", r, r.Result)
		}
		w.Check(true)
	})
}

// counter is a tool of somebody else that keeps a number for the conversation.
var counter = agent.NewTool("counter", "Count", func(ctx context.Context, call *agent.Call, _ struct{}) (int, error) {
	store, err := call.Store()
	if err != nil {
		return 0, err
	}
	value, rev, err := store.Get(ctx)
	n := 0
	if err == nil && value != nil {
		err = json.Unmarshal(value, &n)
	}
	if err == nil {
		_, err = store.Set(ctx, fmt.Appendf(nil, "%d", n+1), rev)
	}
	return n + 1, err
}, nil)

// TestStoreOfOtherTools: a tool that is not built in has a value of its own, which the task list does not touch.
func TestStoreOfOtherTools(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := working(t, calls("counter {}", "task_write "+write("a|pending|A")), calls("counter {}"), agenttest.Say("done"))
		o.Tools = append(o.Tools, counter)
		o.Agent.Tools["counter"] = "counter"
		w := sim.New(t, o)
		w.StartAll()
		inThread(w, "r1", "go")
		w.AwaitEnd("r1", soon)
		value, _, err := w.Conn().Kept(t.Context(), events.TasksKey("u1", "t1", "counter"))
		if string(value) != "2" || err != nil || kept(w, "u1", "t1") != "a - A" {
			t.Errorf("the counter is %s (%v), the list %s", value, err, kept(w, "u1", "t1"))
		}
		w.Check(true)
	})
}

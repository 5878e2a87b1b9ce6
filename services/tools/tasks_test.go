package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/tools"
)

// memory is a store without a server.
type memory struct {
	mu    sync.Mutex
	value json.RawMessage
	rev   uint64
	fail  error
	after func() error // what happens once, when a value has been stored, and what its writer is told
}

func (m *memory) Get(context.Context) (json.RawMessage, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.value, m.rev, m.fail
}

func (m *memory) Set(_ context.Context, value json.RawMessage, rev uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rev != m.rev {
		return 0, fmt.Errorf("%w: revision %d", agent.ErrConflict, m.rev)
	}
	m.value, m.rev = value, rev+1
	if after := m.after; after != nil {
		m.after = nil
		return 0, after()
	}
	return m.rev, m.fail
}

// tracker makes calls of the task tools in one conversation.
type tracker struct {
	*memory

	t *testing.T
	n int
}

type taskAnswer struct {
	Content         string
	Tasks           []tools.Task
	IsError         bool
	Summary         tools.TaskSummary
	IncompleteTasks []tools.Task
}

func (k *tracker) do(tool agent.Tool, args string) taskAnswer {
	k.t.Helper()
	k.n++
	return k.again(k.n, tool, args)
}

// again is the n-th call, made once more.
func (k *tracker) again(n int, tool agent.Tool, args string) taskAnswer {
	k.t.Helper()
	r := agenttest.Run(k.t, tool, args, &agenttest.RunOptions{Call: agent.CallInfo{
		AgentID: "helper", ThreadID: "t1", ResourceID: "u1", ToolCallID: fmt.Sprintf("r1=%d-1", n), Store: k.memory,
	}})
	if !strings.HasPrefix(string(r.Result), `{"content":`) || !strings.Contains(string(r.Result), `"tasks":[`) {
		k.t.Errorf("result %s", r.Result)
	}
	return agenttest.Output[taskAnswer](k.t, r)
}

// brief is a list in one line.
func brief(tasks []tools.Task) string {
	var parts []string
	for _, t := range tasks {
		parts = append(parts, t.ID+" "+map[string]string{"pending": "-", "in_progress": ">", "completed": "+"}[t.Status]+" "+t.Content)
	}
	return strings.Join(parts, ", ")
}

// write are arguments of task_write: each task is "id|status|content".
func write(tasks ...string) string {
	var in struct {
		Tasks []map[string]string `json:"tasks"`
	}
	in.Tasks = []map[string]string{}
	for _, text := range tasks {
		f := strings.Split(text, "|")
		task := map[string]string{"content": f[2], "status": f[1], "activeForm": "doing " + f[2]}
		if f[0] != "" {
			task["id"] = f[0]
		}
		in.Tasks = append(in.Tasks, task)
	}
	raw, _ := json.Marshal(in)
	return string(raw)
}

// taskArgs are arguments of each tool.
var taskArgs = map[string]string{
	"task_write": write("a|pending|A"), "task_check": `{}`, "task_complete": `{"id":"a"}`, "task_update": `{"id":"a","content":"A"}`,
}

func newTracker(t *testing.T) *tracker {
	t.Helper()
	return &tracker{memory: &memory{}, t: t}
}

func (k *tracker) list(want string) {
	k.t.Helper()
	if got := brief(k.do(tools.TaskCheck, `{}`).Tasks); got != want {
		k.t.Errorf("list %s, want %s", got, want)
	}
}

// TestB15_8TaskTools: a list is written, read and changed, and every answer has it.
func TestB15_8TaskTools(t *testing.T) {
	t.Parallel()
	k := newTracker(t)
	k.list("")
	a := k.do(tools.TaskWrite, write("|in_progress|Read the logs", "|pending|Fix it"))
	want := "Tasks updated: [0/2 completed]\nCurrently: doing Read the logs (task_read_the_logs)\nTask IDs:\n" +
		"- task_read_the_logs: Read the logs (in_progress)\n- task_fix_it: Fix it (pending)"
	if a.Content != want || a.IsError || brief(a.Tasks) != "task_read_the_logs > Read the logs, task_fix_it - Fix it" {
		t.Errorf("answer %+v", a)
	}
	if diff := cmp.Diff(tools.Task{ID: "task_fix_it", Content: "Fix it", Status: "pending", ActiveForm: "doing Fix it"}, a.Tasks[1]); diff != "" {
		t.Error(diff)
	}
	a = k.do(tools.TaskWrite, write())
	if a.Content != "Tasks updated: [0/0 completed]" || a.IsError || len(a.Tasks) != 0 {
		t.Errorf("answer %+v", a)
	}
	for _, args := range []string{
		`{}`, `{"tasks":[{"content":"x","status":"pending"}]}`, `{"tasks":[{"content":"","status":"pending","activeForm":"x"}]}`,
		`{"tasks":[{"content":"x","status":"done","activeForm":"x"}]}`, `{"tasks":[{"id":"","content":"x","status":"pending","activeForm":"x"}]}`,
	} {
		if r := agenttest.Run(t, tools.TaskWrite, args, nil); r.Outcome != events.OutcomeInvalid {
			t.Errorf("%s: %s, want invalid", args, r.Outcome)
		}
	}
}

// TestB15_9IDs: who gives no id gets the one that the same task had, or one that says what it is, and none is there twice.
func TestB15_9IDs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 20)
	for _, test := range []struct {
		name, want string
		lists      []string
	}{
		{"made of the words", "task_caf_au_lait_2 - Café au lait 2!", []string{write("|pending|Café au lait 2!")}},
		{"no words", "task_item - …, task_item_2 - ???", []string{write("|pending|…", "|pending|???")}},
		{"long", "task_word_word_word_word_word_word_word_word_word_wor - " + long, []string{write("|pending|" + long)}},
		{"equal", "task_a - a, task_a_2 - a, task_a_3 - A", []string{write("|pending|a", "|pending|a", "|pending|A")}},
		{"kept", "x - a, task_b - b", []string{write("x|pending|a"), write("|pending|a", "|pending|b")}},
		{"kept by one only", "task_a - a, task_a_2 - a", []string{write("x|pending|a"), write("|pending|a", "|pending|a")}},
		{"two had it", "task_a - a", []string{write("x|pending|a", "y|pending|a"), write("|pending|a")}},
		{"given to another", "task_a - a, x - b", []string{write("x|pending|a"), write("|pending|a", "x|pending|b")}},
		{"given twice", "x - a, task_b - b", []string{write("x|pending|a", "x|pending|b")}},
		{"made, and given later", "task_a_2 - a, task_a - b", []string{write("|pending|a", "task_a|pending|b")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k := newTracker(t)
			var a taskAnswer
			for _, args := range test.lists {
				a = k.do(tools.TaskWrite, args)
			}
			if got := brief(a.Tasks); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestB15_10OneInProgress: a list with two tasks in progress is not stored.
func TestB15_10OneInProgress(t *testing.T) {
	t.Parallel()
	k := newTracker(t)
	k.do(tools.TaskWrite, write("a|in_progress|A"))
	a := k.do(tools.TaskWrite, write("a|in_progress|A", "b|in_progress|B"))
	if a.Content != "Only one task can be in_progress at a time." || !a.IsError || brief(a.Tasks) != "a > A" {
		t.Errorf("answer %+v", a)
	}
	k.list("a > A")
}

// TestB15_11OneTask: single tasks are changed by their ids.
func TestB15_11OneTask(t *testing.T) {
	t.Parallel()
	k := newTracker(t)
	a := k.do(tools.TaskComplete, `{"id":"a"}`)
	if a.Content != "Task not found: a\n\nNo tasks are currently tracked." || !a.IsError || len(a.Tasks) != 0 {
		t.Errorf("answer %+v", a)
	}
	k.do(tools.TaskWrite, write("a|in_progress|A", "b|pending|B"))
	for _, test := range []struct {
		tool agent.Tool
		args string
		want string
	}{
		{tools.TaskUpdate, `{"id":"b","content":"B2"}`, "a > A, b - B2"},
		{tools.TaskUpdate, `{"id":"b","activeForm":"Being"}`, "a > A, b - B2"},
		{tools.TaskUpdate, `{"id":"b","status":"in_progress"}`, "a - A, b > B2"},
		{tools.TaskUpdate, `{"id":"a","status":"pending","content":"A2"}`, "a - A2, b > B2"},
		{tools.TaskComplete, `{"id":"a"}`, "a + A2, b > B2"},
		{tools.TaskUpdate, `{"id":"b","status":"completed"}`, "a + A2, b + B2"},
	} {
		if a := k.do(test.tool, test.args); a.IsError || brief(a.Tasks) != test.want {
			t.Errorf("%s: %+v, want %s", test.args, a, test.want)
		}
	}
	for _, tool := range []agent.Tool{tools.TaskUpdate, tools.TaskComplete} {
		a := k.do(tool, `{"id":"c","status":"pending"}`)
		if a.Content != "Task not found: c\n\nAvailable task IDs:\n- a: A2 (completed)\n- b: B2 (completed)" || !a.IsError || len(a.Tasks) != 2 {
			t.Errorf("answer %+v", a)
		}
	}
	for _, args := range []string{`{"id":"a"}`, `{"content":"x"}`, `{"id":"a","status":"done"}`, `{"id":"a","content":""}`} {
		if r := agenttest.Run(t, tools.TaskUpdate, args, nil); r.Outcome != events.OutcomeInvalid {
			t.Errorf("%s: %s, want invalid", args, r.Outcome)
		}
	}
}

// TestB15_12TaskCheck: what is left to do, the task in progress first.
func TestB15_12TaskCheck(t *testing.T) {
	t.Parallel()
	k := newTracker(t)
	a := k.do(tools.TaskCheck, `{}`)
	if a.IsError || a.Summary != (tools.TaskSummary{}) || a.IncompleteTasks == nil || !strings.Contains(a.Content, "No tasks found") {
		t.Errorf("an empty list: %+v", a)
	}
	k.do(tools.TaskWrite, write("a|completed|A", "b|pending|B", "c|in_progress|C"))
	a = k.do(tools.TaskCheck, `{}`)
	want := tools.TaskSummary{Total: 3, Completed: 1, InProgress: 1, Pending: 1, Incomplete: 2, HasTasks: true}
	if a.Summary != want || brief(a.IncompleteTasks) != "c > C, b - B" || len(a.Tasks) != 3 ||
		!strings.Contains(a.Content, "[1/3 completed]") || !strings.Contains(a.Content, "All tasks completed: NO") {
		t.Errorf("answer %+v", a)
	}
	k.do(tools.TaskWrite, write("a|completed|A"))
	a = k.do(tools.TaskCheck, `{}`)
	if !a.Summary.AllCompleted || a.Summary.Incomplete != 0 || !strings.Contains(a.Content, "All tasks completed: YES") {
		t.Errorf("answer %+v", a)
	}
}

// TestB15_13NoConversation: without a thread and a resource nothing is stored, and the tools say so.
func TestB15_13NoConversation(t *testing.T) {
	t.Parallel()
	kept := &memory{}
	for _, info := range []agent.CallInfo{
		{}, {ThreadID: "t1", Store: kept}, {ResourceID: "u1", Store: kept}, {ThreadID: "t1", ResourceID: "u1"},
	} {
		for id, tool := range tools.Tasks() {
			a := agenttest.Output[taskAnswer](t, agenttest.Run(t, tool, taskArgs[id], &agenttest.RunOptions{Call: info}))
			if !a.IsError || !strings.Contains(a.Content, "no thread and resource") || a.Tasks == nil || a.Summary.AllCompleted {
				t.Errorf("%s: %+v", id, a)
			}
		}
	}
	if kept.rev != 0 {
		t.Error("something was stored")
	}
}

// TestB15_14ExecutedAgain executes calls again, as when a worker dies after its write: what others have written since stays.
func TestB15_14ExecutedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newTracker(t)
		k.again(1, tools.TaskWrite, write("a|in_progress|A", "b|pending|B"))
		k.again(2, tools.TaskUpdate, `{"id":"b","status":"in_progress"}`)
		k.again(3, tools.TaskComplete, `{"id":"b"}`)
		for range 2 {
			a := k.again(1, tools.TaskWrite, write("a|in_progress|A", "b|pending|B"))
			if a.IsError || brief(a.Tasks) != "a - A, b + B" || !strings.HasPrefix(a.Content, "Tasks updated: [1/2 completed]") {
				t.Errorf("written again: %+v", a)
			}
			k.again(2, tools.TaskUpdate, `{"id":"b","status":"in_progress"}`)
			k.again(3, tools.TaskComplete, `{"id":"b"}`)
		}
		time.Sleep(25 * time.Hour) // fake
		if a := k.again(1, tools.TaskWrite, write("c|pending|C")); brief(a.Tasks) != "c - C" {
			t.Errorf("another run of the same id: %+v", a)
		}
	})
}

// TestB15_14OwnConflict: a write whose reply is lost, and that another one follows, is not done twice.
func TestB15_14OwnConflict(t *testing.T) {
	t.Parallel()
	k := newTracker(t)
	k.do(tools.TaskWrite, write("a|pending|A", "b|pending|B"))
	k.after = func() error { // another writer completes a, and ours hears of a conflict only
		k.value = json.RawMessage(strings.Replace(string(k.value), `"pending"`, `"completed"`, 1))
		k.rev++
		return agent.ErrConflict
	}
	a := k.do(tools.TaskWrite, write("a|pending|A", "b|in_progress|B"))
	if brief(a.Tasks) != "a + A, b > B" {
		t.Errorf("answer %+v", a)
	}
}

// TestUnavailableTasks: a store that fails, and a list that nobody can read or that is too large, are told in words.
func TestUnavailableTasks(t *testing.T) {
	t.Parallel()
	k := newTracker(t)
	k.fail = errors.New("secret.host:4222 is down")
	for id, tool := range tools.Tasks() {
		a := k.do(tool, taskArgs[id])
		if !a.IsError || !strings.HasPrefix(a.Content, "Failed to ") || strings.Contains(a.Content, "secret") {
			t.Errorf("%s: %+v", id, a)
		}
	}
	k = newTracker(t)
	a := k.do(tools.TaskWrite, write(slices.Repeat([]string{"|pending|" + strings.Repeat("x", 10_000)}, 20)...))
	if !a.IsError || !strings.Contains(a.Content, "too large") || k.rev != 0 {
		t.Errorf("a large list: %s", a.Content)
	}
	for _, value := range []string{`{"v":2,"tasks":[]}`, `[]`, `"x"`} {
		k.value = json.RawMessage(value)
		if a := k.do(tools.TaskWrite, write("a|pending|A")); !a.IsError || string(k.value) != value {
			t.Errorf("over %s: %+v", value, a)
		}
	}
}

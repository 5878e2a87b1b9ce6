package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Task is an entry of a task list.
type Task struct {
	ID         string `json:"id"`
	Content    string `json:"content"`    // what to do
	Status     string `json:"status"`     // TaskPending, TaskInProgress or TaskCompleted
	ActiveForm string `json:"activeForm"` // the same, while it is being done
}

// Statuses of a [Task].
const (
	TaskPending    = "pending"
	TaskInProgress = "in_progress"
	TaskCompleted  = "completed"
)

// Tasks are the four tools with which an agent keeps a task list: task_write, task_update, task_complete and task_check.
// The map is the caller's.
//
// A list belongs to a conversation, so to a thread and the resource that owns it, and outlives runs and what models are
// shown of the conversation. Calls that change it at once lose nothing, and one that is executed again, because its
// worker died, changes nothing a second time.
func Tasks() agent.Tools {
	return agent.Tools{
		"task_write": TaskWrite, "task_update": TaskUpdate, "task_complete": TaskComplete, "task_check": TaskCheck,
	}
}

// Schemas of the fields of a task.
const (
	taskIDSchema = `"id":{"type":"string","minLength":1,` +
		`"description":"Identifies the task, such as task_read_logs. Never change it."}`
	taskFields = `"content":{"type":"string","minLength":1,"description":"What to do, in the imperative: Read the logs."},` +
		`"status":{"type":"string","enum":["pending","in_progress","completed"]},` +
		`"activeForm":{"type":"string","minLength":1,"description":"The same while it is being done: Reading the logs."}`
)

// TaskWrite replaces the task list.
var TaskWrite = define("task_write",
	"Write the task list of this conversation. It replaces the whole list, so give all tasks, the finished ones too. Use it to plan "+
		"work of three or more steps, and to plan it anew; use task_update and task_complete for single tasks. Keep the ids that you "+
		"get back; a task without one is given one. Mark a task in_progress before you begin it, only one at a time, and "+
		"completed as soon as it is done.",
	taskWrite, agent.ToolOptions{
		Title: "Write the task list", Effect: agent.Idempotent,
		InputSchema: schema(`{"type":"object","properties":{"tasks":{"type":"array","description":"The whole list, in order.",` +
			`"items":{"type":"object","properties":{` + taskIDSchema + `,` + taskFields + `},` +
			`"required":["content","status","activeForm"]}}},"required":["tasks"]}`),
	})

// TaskUpdate changes one task.
var TaskUpdate = define("task_update",
	"Change one task of the task list, by its id. Give only what changes. A task that becomes in_progress takes the place of the one "+
		"that was, which becomes pending. To mark a task as done there is task_complete.",
	taskUpdate, agent.ToolOptions{
		Title: "Update a task", Effect: agent.Idempotent,
		InputSchema: schema(`{"type":"object","properties":{` + taskIDSchema + `,` + taskFields + `},"required":["id"]}`),
	})

// TaskComplete marks one task as completed.
var TaskComplete = define("task_complete", "Mark one task of the task list as completed, by its id, as soon as it is done.",
	taskComplete, agent.ToolOptions{
		Title: "Complete a task", Effect: agent.Idempotent,
		InputSchema: schema(`{"type":"object","properties":{` + taskIDSchema + `},"required":["id"]}`),
	})

// TaskCheck tells what is left to do.
var TaskCheck = define("task_check",
	"See the task list, and whether everything on it is done. Use it before you end work that has a task list. "+
		"summary.allCompleted is true only when there are tasks and all of them are completed.",
	taskCheck, agent.ToolOptions{
		Title: "Check the task list", Effect: agent.ReadOnly, InputSchema: schema(`{"type":"object","properties":{}}`),
	})

// taskResult is what the tools tell the model: always with the list as it is now.
type taskResult struct {
	Content string `json:"content"`
	Tasks   []Task `json:"tasks"`
	IsError bool   `json:"isError"`
}

type writeInput struct {
	Tasks []Task `json:"tasks"`
}

type updateInput struct {
	ID         string  `json:"id"`
	Content    *string `json:"content"`
	Status     *string `json:"status"`
	ActiveForm *string `json:"activeForm"`
}

type completeInput struct {
	ID string `json:"id"`
}

const oneInProgress = "Only one task can be in_progress at a time."

func taskWrite(ctx context.Context, call *agent.Call, in writeInput) (taskResult, error) {
	return change(ctx, call, "update tasks", func(old []Task) ([]Task, string) {
		tasks := withIDs(in.Tasks, old)
		if len(inStatus(tasks, TaskInProgress)) > 1 {
			return nil, oneInProgress
		}
		return tasks, ""
	})
}

func taskUpdate(ctx context.Context, call *agent.Call, in updateInput) (taskResult, error) {
	if in.Content == nil && in.Status == nil && in.ActiveForm == nil {
		return taskResult{}, agent.Invalid("", "give at least one of content, status and activeForm")
	}
	return change(ctx, call, "update task", one(in.ID, func(tasks []Task, i int) {
		set := func(field *string, to *string) {
			if to != nil {
				*field = *to
			}
		}
		set(&tasks[i].Content, in.Content)
		set(&tasks[i].ActiveForm, in.ActiveForm)
		set(&tasks[i].Status, in.Status)
		for j := range tasks {
			if j != i && tasks[i].Status == TaskInProgress && tasks[j].Status == TaskInProgress {
				tasks[j].Status = TaskPending
			}
		}
	}))
}

func taskComplete(ctx context.Context, call *agent.Call, in completeInput) (taskResult, error) {
	return change(ctx, call, "complete task", one(in.ID, func(tasks []Task, i int) { tasks[i].Status = TaskCompleted }))
}

// one is the change of a single task.
func one(id string, set func(tasks []Task, i int)) func([]Task) ([]Task, string) {
	return func(tasks []Task) ([]Task, string) {
		i := slices.IndexFunc(tasks, func(t Task) bool { return t.ID == id })
		switch {
		case i >= 0:
			tasks = slices.Clone(tasks)
			set(tasks, i)
			return tasks, ""
		case len(tasks) == 0:
			return nil, "Task not found: " + id + "\n\nNo tasks are currently tracked."
		}
		return nil, "Task not found: " + id + "\n\nAvailable task IDs:" + lines(tasks)
	}
}

// noThread is told where there is no conversation that a list could belong to.
const noThread = "Task tools need a conversation: this run has no thread and resource, so no task was recorded."

// change applies a change to the list of a call's conversation, and tells the list that comes of it. A change that is
// refused stores nothing.
//
// Each call changes the list once: its key is stored with its change, so a worker that takes the call over, or one that
// is told of a conflict with its own write, finds it there and leaves the list to what others have made of it since.
func change(ctx context.Context, call *agent.Call, what string, f func([]Task) ([]Task, string)) (taskResult, error) {
	store, err := keeper(call)
	if err != nil {
		return refused(noThread, nil), nil //nolint:nilerr // told in words
	}
	for {
		doc, rev, err := read(ctx, store)
		if err != nil {
			return failed(ctx, call, what, err)
		}
		if doc.changedBy(call) { // whoever did that may not have come to show it
			snapshot(doc.Tasks).tell(ctx, call, rev)
			return updated(doc.Tasks), nil
		}
		tasks, refusal := f(doc.Tasks)
		if refusal != "" {
			return refused(refusal, doc.Tasks), nil
		}
		raw, show, err := doc.after(tasks, call)
		if err == nil {
			rev, err = store.Set(ctx, raw, rev)
		}
		switch {
		case err == nil:
			if show != nil {
				show.tell(ctx, call, rev)
			}
			return updated(tasks), nil
		case !errors.Is(err, agent.ErrConflict):
			return failed(ctx, call, what, err)
		}
	}
}

// keeper is the store of a call's list.
func keeper(call *agent.Call) (agent.Store, error) {
	if call.ThreadID() == "" || call.ResourceID() == "" {
		return nil, agent.ErrNoStore
	}
	return call.Store()
}

func refused(why string, tasks []Task) taskResult {
	return taskResult{Content: why, Tasks: orEmpty(tasks), IsError: true}
}

// failed says that the list cannot be had. The end of the call itself is its outcome; anything else is told in words, and
// why stays in the log.
func failed(ctx context.Context, call *agent.Call, what string, err error) (taskResult, error) {
	if ctx.Err() != nil {
		return taskResult{}, context.Cause(ctx)
	}
	call.Log().WarnContext(ctx, "the task list cannot be had", "error", err)
	text := "Failed to " + what + ": the task list is not available."
	if errors.Is(err, errLarge) {
		text = "Failed to " + what + ": the task list is too large. Leave out finished tasks, or say less about each."
	}
	return refused(text, nil), nil
}

// updated tells the list after a change.
func updated(tasks []Task) taskResult {
	text := fmt.Sprintf("Tasks updated: [%d/%d completed]", len(inStatus(tasks, TaskCompleted)), len(tasks))
	if now := inStatus(tasks, TaskInProgress); len(now) > 0 {
		text += fmt.Sprintf("\nCurrently: %s (%s)", now[0].ActiveForm, now[0].ID)
	}
	if len(tasks) > 0 {
		text += "\nTask IDs:" + lines(tasks)
	}
	return taskResult{Content: text, Tasks: orEmpty(tasks)}
}

func lines(tasks []Task) string {
	var b strings.Builder
	for _, t := range tasks {
		fmt.Fprintf(&b, "\n- %s: %s (%s)", t.ID, t.Content, t.Status)
	}
	return b.String()
}

func inStatus(tasks []Task, status string) []Task {
	return slices.DeleteFunc(slices.Clone(tasks), func(t Task) bool { return t.Status != status })
}

func orEmpty(tasks []Task) []Task {
	if tasks == nil {
		return []Task{}
	}
	return tasks
}

// taskDoc is what is stored.
type taskDoc struct {
	V     int        `json:"v"`
	Tasks []Task     `json:"tasks"`
	Calls []taskCall `json:"calls"` // the last that changed it
	Base  taskBase   `json:"base,omitzero"`
}

// taskCall is a call that has changed the list.
type taskCall struct {
	Key string    `json:"key"`
	At  time.Time `json:"at"`
}

const (
	taskDocVersion = 1
	taskDocBytes   = 192 << 10 // that are stored at most

	// So many calls are remembered, and for so long: a call is not executed again later than that, and by then its run,
	// and with it the key, may be another one.
	taskDocCalls = 64
	taskCallAge  = 24 * time.Hour
)

var errLarge = errors.New("the task list is too large")

// read reads the list. One that a later release has written is not touched: it may hold what this one would lose.
func read(ctx context.Context, store agent.Store) (doc taskDoc, rev uint64, err error) {
	raw, rev, err := store.Get(ctx)
	if err != nil || raw == nil {
		return doc, rev, err
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return doc, rev, fmt.Errorf("read the task list: %w", err)
	}
	if doc.V > taskDocVersion {
		return doc, rev, fmt.Errorf("the task list has the form %d of a later release", doc.V)
	}
	return doc, rev, nil
}

// changedBy reports whether a call has changed the list already.
func (d taskDoc) changedBy(call *agent.Call) bool {
	return slices.ContainsFunc(d.Calls, func(c taskCall) bool { return c.Key == call.IdempotencyKey() && c.young() })
}

func (c taskCall) young() bool { return time.Since(c.At) < taskCallAge }

// after is the document after a change, and how the change is shown; nil when there is nothing to be shown.
func (d taskDoc) after(tasks []Task, call *agent.Call) (json.RawMessage, *signal, error) {
	calls := slices.DeleteFunc(slices.Clone(d.Calls), func(c taskCall) bool { return !c.young() })
	calls = append(calls, taskCall{call.IdempotencyKey(), time.Now().UTC()})
	whole, base := d.Base.next(call.RunID())
	show, changed := delta(d.Tasks, tasks)
	switch {
	case whole:
		show, changed = snapshot(tasks), true
	case !changed:
		base = d.Base
	}
	raw, err := events.Marshal(taskDoc{taskDocVersion, orEmpty(tasks), calls[max(0, len(calls)-taskDocCalls):], base})
	if err == nil && len(raw) > taskDocBytes {
		err = errLarge
	}
	if !changed {
		return raw, nil, err
	}
	return raw, &show, err
}

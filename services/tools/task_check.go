package tools

import (
	"context"
	"fmt"
	"strings"

	"github.com/weirkeeper/weir/services/agent"
)

// TaskSummary counts the tasks of a list.
type TaskSummary struct {
	Total        int  `json:"total"`
	Completed    int  `json:"completed"`
	InProgress   int  `json:"inProgress"`
	Pending      int  `json:"pending"`
	Incomplete   int  `json:"incomplete"`
	HasTasks     bool `json:"hasTasks"`
	AllCompleted bool `json:"allCompleted"` // there are tasks, and all are completed
}

// checkResult is what task_check tells the model.
type checkResult struct {
	taskResult
	Summary         TaskSummary `json:"summary"`
	IncompleteTasks []Task      `json:"incompleteTasks"` // the one in progress first
}

func taskCheck(ctx context.Context, call *agent.Call, _ struct{}) (checkResult, error) {
	store, err := keeper(call)
	if err != nil {
		return checked(refused(noThread, nil)), nil //nolint:nilerr // told in words
	}
	doc, rev, err := read(ctx, store)
	if err != nil {
		r, err := failed(ctx, call, "check tasks", err)
		return checked(r), err
	}
	if doc.Base.Run != call.RunID() { // whoever follows this run has not seen the list
		snapshot(doc.Tasks).tell(ctx, call, rev)
	}
	r := checked(taskResult{Tasks: orEmpty(doc.Tasks)})
	r.Content = r.text()
	return r, nil
}

// checked adds the counts to a list.
func checked(r taskResult) checkResult {
	now, next := inStatus(r.Tasks, TaskInProgress), inStatus(r.Tasks, TaskPending)
	left := len(now) + len(next)
	return checkResult{
		taskResult: r, IncompleteTasks: orEmpty(append(now, next...)),
		Summary: TaskSummary{
			Total: len(r.Tasks), Completed: len(r.Tasks) - left, InProgress: len(now), Pending: len(next), Incomplete: left,
			HasTasks: len(r.Tasks) > 0, AllCompleted: len(r.Tasks) > 0 && left == 0,
		},
	}
}

func (r checkResult) text() string {
	s := r.Summary
	if !s.HasTasks {
		return "No tasks found. Use task_write to make a task list for work of several steps."
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Task Status: [%d/%d completed]\n- Completed: %d\n- In Progress: %d\n- Pending: %d\n\n",
		s.Completed, s.Total, s.Completed, s.InProgress, s.Pending)
	if s.AllCompleted {
		return b.String() + "All tasks completed: YES"
	}
	b.WriteString("All tasks completed: NO\n\nIncomplete tasks:" + lines(r.IncompleteTasks))
	b.WriteString("\n\nContinue working on these tasks before ending.")
	return b.String()
}

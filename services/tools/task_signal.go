package tools

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/services/agent"
)

// The state signal of a task list tells whoever follows a run how the list stands: the whole list first, then what has changed,
// and the whole list again after maxDeltas changes, or in another run, whose followers have not seen it. Signals are shown and
// not kept; the list itself is what counts. They are numbered by the list's revision, so whoever gets two in another order than
// they happened can tell, and whoever has missed one waits for the next whole list.

const (
	signalChunk = "data-signal"
	maxDeltas   = 10

	snapshotTag = "current-task-list"
	deltaTag    = "task-list-update"
)

// taskBase is where the whole list was shown last, and how many changes since.
type taskBase struct {
	Run    string `json:"run"`
	Deltas int    `json:"deltas,omitempty"`
}

// signal is what a chunk of type data-signal holds.
type signal struct {
	ID         string         `json:"id"`
	Type       string         `json:"type"` // state
	TagName    string         `json:"tagName"`
	Contents   string         `json:"contents"` // the tag, whole
	Attributes map[string]int `json:"attributes"`
	Metadata   signalMode     `json:"metadata"`
}

type signalMode struct {
	Mode    string `json:"mode"`    // snapshot or delta
	Version uint64 `json:"version"` // the list's revision
}

// next is how a change is to be shown, and where the base is then. The zero base is that of a list that was never shown.
func (b taskBase) next(run string) (whole bool, then taskBase) {
	if b.Run != run || b.Deltas >= maxDeltas {
		return true, taskBase{Run: run}
	}
	return false, taskBase{Run: run, Deltas: b.Deltas + 1}
}

// snapshot shows the whole list.
func snapshot(tasks []Task) signal {
	var b strings.Builder
	for _, t := range tasks {
		b.WriteString("\n" + taskLine(t))
	}
	return tagged(snapshotTag, "count", len(tasks), b.String())
}

// delta shows what has changed; false when nothing has.
func delta(before, after []Task) (signal, bool) {
	find := func(tasks []Task, id string) int {
		return slices.IndexFunc(tasks, func(t Task) bool { return t.ID == id })
	}
	var changes []string
	for _, t := range after {
		switch i := find(before, t.ID); {
		case i < 0:
			changes = append(changes, "\nadded "+taskLine(t))
		case before[i] != t:
			changes = append(changes, "\nchanged "+taskLine(t))
		}
	}
	for _, t := range before {
		if find(after, t.ID) < 0 {
			changes = append(changes, "\nremoved "+escaped.Replace(t.ID))
		}
	}
	if len(changes) == 0 && !slices.Equal(before, after) {
		changes = []string{"\nreordered"}
		for _, t := range after {
			changes[0] += " " + escaped.Replace(t.ID)
		}
	}
	return tagged(deltaTag, "changes", len(changes), strings.Join(changes, "")), len(changes) > 0
}

// taskLine is a task in one line. What a model wrote into it ends no line and no tag.
func taskLine(t Task) string {
	text := fmt.Sprintf("[%s] %s: %s", t.Status, t.ID, t.Content)
	if t.Status == TaskInProgress {
		text += " (" + t.ActiveForm + ")"
	}
	return escaped.Replace(text)
}

var escaped = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\r", " ", "\n", " ")

func tagged(tag, attribute string, n int, inside string) signal {
	mode := "delta"
	if tag == snapshotTag {
		mode = "snapshot"
	}
	if inside != "" {
		inside += "\n"
	}
	return signal{
		Type: "state", TagName: tag, Attributes: map[string]int{attribute: n}, Metadata: signalMode{Mode: mode},
		Contents: fmt.Sprintf("<%s %s=\"%d\">%s</%s>", tag, attribute, n, inside, tag),
	}
}

// tell shows a signal of the list at a revision. It hurts nobody when that fails.
func (s signal) tell(ctx context.Context, call *agent.Call, rev uint64) {
	s.Metadata.Version = rev
	s.ID = fmt.Sprintf("tasks-%d", rev)
	if err := call.Custom(ctx, signalChunk, s, &agent.CustomOptions{ID: s.ID, Transient: true}); err != nil {
		call.Log().WarnContext(ctx, "the signal of the task list was not shown", "error", err)
	}
}

package tools_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/tools"
)

// signals are what a call of a run shows of the list: the tag, the version, and that it is not kept.
func (k *tracker) signals(run string, n int, tool agent.Tool, args string) []string {
	k.t.Helper()
	r := agenttest.Run(k.t, tool, args, &agenttest.RunOptions{Call: agent.CallInfo{
		AgentID: "helper", RunID: run, ThreadID: "t1", ResourceID: "u1", ToolCallID: fmt.Sprintf("%s=%d-1", run, n), Store: k.memory,
	}})
	var all []string
	for _, c := range r.Custom {
		var s struct {
			ID, Type, TagName, Contents string
			Metadata                    struct{ Version int }
		}
		if err := json.Unmarshal(c.Data, &s); err != nil {
			k.t.Fatal(err)
		}
		if c.Type != "data-signal" || !c.Transient || c.ID != s.ID || s.Type != "state" || !strings.HasPrefix(s.Contents, "<"+s.TagName+" ") {
			k.t.Errorf("the chunk %+v holds %+v", c, s)
		}
		all = append(all, fmt.Sprintf("%d %s", s.Metadata.Version, s.Contents))
	}
	return all
}

// TestB15_15_SignalsOfTheTaskList: the whole list, then what changes, and the whole list again after ten changes, in another
// run and for a call that is executed again. What changes nothing is not shown.
func TestB15_15_SignalsOfTheTaskList(t *testing.T) {
	t.Parallel()
	k := newTracker(t)
	expect := func(what string, got []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	expect("a new list", k.signals("r1", 1, tools.TaskWrite, write("a|in_progress|A <b> & c", "b|pending|B")),
		"1 <current-task-list count=\"2\">\n[in_progress] a: A &lt;b&gt; &amp; c (doing A &lt;b&gt; &amp; c)\n[pending] b: B\n</current-task-list>")
	expect("a change", k.signals("r1", 2, tools.TaskComplete, `{"id":"a"}`),
		"2 <task-list-update changes=\"1\">\nchanged [completed] a: A &lt;b&gt; &amp; c\n</task-list-update>")
	expect("the same again", k.signals("r1", 3, tools.TaskComplete, `{"id":"a"}`))
	expect("several changes", k.signals("r1", 4, tools.TaskWrite, write("c|pending|C", "b|completed|B")),
		"4 <task-list-update changes=\"3\">\nadded [pending] c: C\nchanged [completed] b: B\nremoved a\n</task-list-update>")
	expect("another order", k.signals("r1", 5, tools.TaskWrite, write("b|completed|B", "c|pending|C")),
		"5 <task-list-update changes=\"1\">\nreordered b c\n</task-list-update>")
	expect("a look", k.signals("r1", 6, tools.TaskCheck, `{}`))
	expect("executed again", k.signals("r1", 5, tools.TaskWrite, write("b|completed|B", "c|pending|C")),
		"5 <current-task-list count=\"2\">\n[completed] b: B\n[pending] c: C\n</current-task-list>")
	for i := range 7 { // ten with those above
		got := k.signals("r1", 10+i, tools.TaskUpdate, fmt.Sprintf(`{"id":"b","content":"B%d"}`, i))
		if len(got) != 1 || !strings.Contains(got[0], "<task-list-update") {
			t.Fatalf("change %d is shown as %q", i, got)
		}
	}
	expect("after ten changes", k.signals("r1", 20, tools.TaskComplete, `{"id":"c"}`),
		"13 <current-task-list count=\"2\">\n[completed] b: B6\n[completed] c: C\n</current-task-list>")
	expect("another run looks", k.signals("r2", 1, tools.TaskCheck, `{}`),
		"13 <current-task-list count=\"2\">\n[completed] b: B6\n[completed] c: C\n</current-task-list>")
	expect("another run", k.signals("r2", 2, tools.TaskWrite, write()), "14 <current-task-list count=\"0\"></current-task-list>")
	expect("refused", k.signals("r2", 3, tools.TaskComplete, `{"id":"x"}`))
}

package events

import (
	"encoding/json"
	"fmt"
	"testing"
)

// loads folds runs of steps of which each loads a tool, and one that only says so.
func loads(t *testing.T, upTo int) *State {
	t.Helper()
	o := &Origin{Namespace: DefaultNamespace, Service: "test"}
	st := StateOf(RunStarted{RunID: "r"}, Event{Seq: 1})
	for n := 1; n <= upTo; n++ {
		step := StepFinished{RunID: "r", Step: n, MessageID: "m", Message: Message{Role: RoleAssistant, Parts: []Part{}}}
		for i, name := range []string{ToolLoadTool, "other"} {
			call := CallID{Run: "r", Step: n, Index: i + 1}
			step.Calls = append(step.Calls, CallPlanned{ToolCallID: call.String(), ToolName: name, Args: "{}"})
		}
		if err := st.ApplyStep(step, Event{Seq: uint64(10 * n)}); err != nil {
			t.Fatal(err)
		}
		for i := range step.Calls {
			call := CallID{Run: "r", Step: n, Index: i + 1}
			d := CallFinished{ToolCallID: call.String(), RunID: "r", Outcome: OutcomeOK, Loads: []string{fmt.Sprintf("%s%d", step.Calls[i].ToolName, n), "both"}}
			e, err := o.Fact(DefaultNamespace.Call(call, KindResult), d, Event{})
			if err != nil {
				t.Fatal(err)
			}
			e.Seq = uint64(10*n + i + 1)
			if err := st.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	return st
}

// TestB17_4_LoadedFollowsFromTheLog: what counts as loaded before a step is the same however far the log was folded, and in
// a state that was stored; only results of the tools that load say so, and what a step loads is none of its own.
func TestB17_4_LoadedFollowsFromTheLog(t *testing.T) {
	t.Parallel()
	want := []string{"[]", "[]", "[load_tool1 both]", "[load_tool1 both load_tool2]", "[load_tool1 both load_tool2 load_tool3]"}
	for upTo := 1; upTo <= 3; upTo++ {
		st := loads(t, upTo)
		raw, err := Marshal(st)
		if err != nil {
			t.Fatal(err)
		}
		var stored State
		if err := json.Unmarshal(raw, &stored); err != nil {
			t.Fatal(err)
		}
		for step := 1; step <= upTo+1; step++ {
			for what, s := range map[string]*State{"folded": st, "stored": &stored, "cloned": st.Clone()} {
				if got := fmt.Sprint(s.LoadedBefore(step)); got != want[step] {
					t.Errorf("%s up to step %d: loaded before step %d are %s, want %s", what, upTo, step, got, want[step])
				}
			}
		}
	}
}

package tools_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/tools"
)

var update = flag.Bool("update", false, "write the digests of the manifests anew")

const soon = time.Minute

// inAgent is a call that an agent made.
func inAgent(resume string) *agenttest.RunOptions {
	o := &agenttest.RunOptions{Call: agent.CallInfo{AgentID: "helper"}}
	if resume != "" {
		o.Resume = json.RawMessage(resume)
	}
	return o
}

// outcome is a result, or what a call was suspended with, as one text.
func outcome(r agenttest.Result) string {
	if r.Suspension != nil {
		return "suspended with " + string(r.Suspension.Payload)
	}
	if r.Outcome != events.OutcomeOK {
		return fmt.Sprintf("%s %s %+v", r.Outcome, r.Result, r.Error)
	}
	return string(r.Result)
}

// TestManifests: every built-in tool is defined rightly, is of the kind builtin, and says the same as long as its version is
// the same: executors of two releases may work side by side, and a release names id and version.
func TestManifests(t *testing.T) {
	t.Parallel()
	var lines []string
	all := tools.Builtins()
	for _, id := range slices.Sorted(maps.Keys(all)) {
		m := all[id].Manifest()
		if err := agent.Check(all[id]); err != nil || m.ID != id || m.Source.Kind != tools.SourceBuiltin || m.Title == "" {
			t.Errorf("%s: %v, manifest %+v", id, err, m)
		}
		raw, err := events.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s@%s %s", id, m.Version, events.Digest(raw)))
	}
	got := strings.Join(lines, "\n") + "\n"
	const golden = "testdata/manifests.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("a manifest has changed: give the tool another version, then go test ./services/tools -update\n%s", diff)
	}
}

// scripted is a world in which an agent with one built-in tool calls it once.
func scripted(t *testing.T, tool agent.Tool, args string, more ...agenttest.Step) (sim.Options, *agenttest.Model) {
	t.Helper()
	id := tool.Manifest().ID
	model := agenttest.NewModel(t, append([]agenttest.Step{agenttest.Ask("key", args)}, more...)...)
	return sim.Options{
		Tools: []agent.Tool{tool}, Model: model,
		Agent: events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{"key": id}, AutoResumeSuspendedTools: true},
	}, model
}

func callOf(run string) events.CallID { return events.CallID{Run: run, Step: 1, Index: 1} }

// inThread starts a run in the conversation t1 of u1.
func inThread(w *sim.World, run, prompt string) {
	w.T.Helper()
	w.RequestAs("bob", events.RunRequested{
		AgentID: "support", RunID: run, ThreadID: "t1", ResourceID: "u1",
		Messages: events.Prompt{events.TextMessage(events.RoleUser, prompt)},
	})
}

// resume sends what resumes a call, in the name of alice.
func resume(w *sim.World, ask events.CallHeld, data string) {
	w.T.Helper()
	w.Decide("alice", events.DecisionRequested{
		Decision: events.ResumeD, ToolCallID: ask.ToolCallID, Round: &ask.Round, Fingerprint: ask.Fingerprint,
		ResumeData: json.RawMessage(data),
	})
}

func resultOf(w *sim.World, run string) events.CallFinished {
	w.T.Helper()
	d, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(callOf(run), events.KindResult), soon))
	if err != nil {
		w.T.Fatal(err)
	}
	return d
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
	"github.com/weirkeeper/weir/services/internal/sim"
)

// TestB7_11_DiffJudgesRecordedCallsAgain: every judgement that the log tells of, in the record and without one, is judged
// again: by the same rules nothing is otherwise, and by others each call is told with what it would be. An answer, what
// follows from it, and what is stored again are no judgements.
func TestB7_11_DiffJudgesRecordedCallsAgain(t *testing.T) {
	t.Parallel()
	for _, audit := range []bool{true, false} {
		t.Run(fmt.Sprintf("record %v", audit), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { diffRecorded(t, audit) })
		})
	}
}

func diffRecorded(t *testing.T, audit bool) {
	t.Helper()
	before := events.RuleSet{Name: "default", Rules: []events.Rule{
		{Name: "wires", Tools: []string{"wire"}, When: "args.n > 100", Action: events.RuleBlock},
		{Name: "large", Tools: []string{"pay"}, When: "args.n > 10", Action: events.RuleAsk, Approvers: []string{"user:alice"}},
		{Name: "small", Tools: []string{"pay"}, Action: events.RuleAllow},
		{Name: "gifts", Tools: []string{"gift"}, Action: events.RuleAsk},
	}}
	calls := []agenttest.ToolCall{
		{Name: "pay", Args: `{"n":1}`},    // 1: let pass
		{Name: "pay", Args: `{"n":11}`},   // 2: asked about, and approved
		{Name: "wire", Args: `{"n":101}`}, // 3: blocked
		{Name: "pay", Args: `{"n":12}`},   // 4: asked about, and edited to what passes
		{Name: "pay", Args: `{"n":13}`},   // 5: asked about, and edited to what is asked about again
		{Name: "gift", Args: `{"n":1}`},   // 6: asked about, and approved with a grant
		{Name: "pay", Args: `not JSON`},   // 7: no rule was asked
	}
	model := agenttest.NewModel(t, agenttest.Step{Calls: calls}, agenttest.Ask("gift", `{"n":2}`), agenttest.Say("done"))
	w := sim.New(t, sim.Options{
		Rules: map[string]events.RuleSet{"default": before}, Settings: jetstream.Settings{Audit: audit}, Model: model,
		Tools: []agent.Tool{diffTool("pay"), diffTool("wire"), diffTool("gift")},
	})
	w.StartAll()
	began := time.Now()
	run := w.Request("go")
	decide := func(index, round int, d events.DecisionRequested) {
		call := events.CallID{Run: run, Step: 1, Index: index}
		ask := w.AwaitAsk(call, time.Minute)
		for ; ask.Round < round; ask = w.AwaitAsk(call, time.Minute) {
			time.Sleep(time.Second) // fake
		}
		d.ToolCallID, d.Fingerprint = call.String(), ask.Fingerprint
		w.Decide("alice", d)
	}
	decide(2, 0, events.DecisionRequested{Decision: events.Approve})
	decide(4, 0, events.DecisionRequested{Decision: events.Edit, Args: json.RawMessage(`{"n":2}`)})
	decide(5, 0, events.DecisionRequested{Decision: events.Edit, Args: json.RawMessage(`{"n":14}`)})
	decide(5, 1, events.DecisionRequested{Decision: events.Approve})
	decide(6, 0, events.DecisionRequested{Decision: events.Approve, Grant: &events.GrantTerms{Scope: events.ScopeRun, Uses: 5}})
	w.AwaitEnd(run, time.Minute)

	seen := func(sets ...events.RuleSet) map[string]string {
		t.Helper()
		return replayed(t, w, began.Add(-time.Hour), sets...)
	}
	same := seen(before)
	if diff := cmp.Diff([]string{"1-1 0", "1-2 0", "1-3 0", "1-4 0", "1-4 1", "1-5 0", "1-5 1", "1-6 0", "2-1 0"}, slices.Sorted(maps.Keys(same))); diff != "" {
		t.Errorf("judged again: %s", diff)
	}
	for call, what := range same {
		if what != "" {
			t.Errorf("by the same rules %s is otherwise: %s", call, what)
		}
	}
	no := false
	other := seen(events.RuleSet{Name: "default", Rules: []events.Rule{
		{Name: "wires", Tools: []string{"wire"}, Action: events.RuleAsk},
		{Name: "twelve", Tools: []string{"pay"}, When: "args.n in [2, 12] && run.requester == 'bob'", Action: events.RuleBlock},
		{Name: "large", Tools: []string{"pay"}, When: "args.n > 13", Action: events.RuleAsk, Approvers: []string{"user:bob"}, Quorum: 2},
		{Name: "small", Tools: []string{"pay"}, Action: events.RuleAllow},
		{Name: "gifts", Tools: []string{"gift"}, Action: events.RuleAsk, Grants: &no},
	}})
	want := map[string]string{
		"1-1 0": "",
		"1-2 0": "action ask → allow: default/large, default/small",
		"1-3 0": "action block → ask: default/wires, default/wires",
		"1-4 0": "action ask → block: default/large, default/twelve",
		"1-4 1": "action allow → block: default/small, default/twelve",
		"1-5 0": "action ask → allow: default/large, default/small",
		"1-5 1": "approvers user:alice → user:bob, quorum 1 → 2, grants true → false: default/large, default/large",
		"1-6 0": "grants true → false: default/gifts, default/gifts",
		"2-1 0": "grants true → false: default/gifts, default/gifts",
	}
	if diff := cmp.Diff(want, other); diff != "" {
		t.Errorf("by other rules: %s", diff)
	}
	if later := replayed(t, w, time.Now().Add(time.Hour), before); len(later) > 0 {
		t.Errorf("after all calls there are %v", later)
	}
}

// replayed judges a world's calls again by some rule sets: by call and round, what would be otherwise.
func replayed(t *testing.T, w *sim.World, since time.Time, sets ...events.RuleSet) map[string]string {
	t.Helper()
	stored := map[string][]byte{}
	for _, s := range sets {
		raw, err := events.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		stored[s.Name] = raw
	}
	rules, err := judge.Read(stored)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplay(w.Conn(), rules, since)
	found := map[string]string{}
	for e, err := range r.log(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		j, err := r.take(t.Context(), e)
		if err != nil {
			t.Fatalf("%s: %v", e.Place.Subject(), err)
		}
		if j == nil {
			continue
		}
		var words []string
		for _, d := range j.Differs {
			words = append(words, d.String())
		}
		if len(words) > 0 {
			words = []string{strings.Join(words, ", ") + ": " + j.Was.Rule + ", " + j.WouldBe.Rule}
		}
		if j.ArgsSize == 0 || j.ArgsDigest == "" || j.Was.Action == rule.Action("") {
			t.Errorf("%+v", j)
		}
		_, call, _ := strings.Cut(j.ToolCallID, "=")
		key := fmt.Sprintf("%s %d", call, j.Round)
		if _, twice := found[key]; twice {
			t.Errorf("%s is judged twice", key)
		}
		found[key] = strings.Join(words, "")
	}
	return found
}

func diffTool(id string) agent.Tool {
	return agent.NewTool(id, "The tool "+id, func(context.Context, *agent.Call, struct {
		N int `json:"n"`
	},
	) (string, error) {
		return "done", nil
	}, nil)
}

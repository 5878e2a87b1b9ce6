package events

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestB16_5_WhatModelsSay: a model chooses how a call runs within what is configured, and what it says is no argument.
func TestB16_5_WhatModelsSay(t *testing.T) {
	t.Parallel()
	tool := &Background{Enabled: true, TimeoutMs: 5000, MaxRetries: 2, RetryableErrors: []string{"busy"}, WaitTimeoutMs: 100}
	plain := CallBackground{Disposition: Deferred, TimeoutMs: 5000, MaxRetries: 2, RetryableErrors: []string{"busy"}}
	with := func(change func(*CallBackground)) *CallBackground {
		c := plain
		change(&c)
		return &c
	}
	for said, want := range map[string]*CallBackground{
		``:                             &plain,
		`"soon"`:                       &plain,
		`{"enabled":true}`:             &plain,
		`{"enabled":false}`:            nil,
		`{"disposition":"foreground"}`: nil,
		`{"disposition":"never"}`:      &plain,
		`{"disposition":"awaited"}`:    with(func(c *CallBackground) { c.Disposition, c.WaitTimeoutMs = Awaited, 100 }),
		`{"timeoutMs":10}`:             with(func(c *CallBackground) { c.TimeoutMs = 10 }),
		`{"timeoutMs":9000}`:           &plain,
		`{"timeoutMs":-1}`:             &plain,
		`{"maxRetries":0}`:             with(func(c *CallBackground) { c.MaxRetries = 0 }),
		`{"maxRetries":50}`:            &plain,
	} {
		if d := cmp.Diff(want, tool.Plan(json.RawMessage(said))); d != "" {
			t.Errorf("%s: %s", said, d)
		}
	}
	if c := (&Background{Enabled: true, DefaultDisposition: Foreground}); c.Plan(nil) != nil || c.Plan(json.RawMessage(`{"enabled":true}`)) == nil {
		t.Error("a tool of the foreground runs there unless the model says otherwise")
	}
	var none *Background
	if none.Plan(json.RawMessage(`{"enabled":true}`)) != nil || (&Background{}).Plan(json.RawMessage(`{"disposition":"deferred"}`)) != nil {
		t.Error("a model makes no tool eligible")
	}
	greedy := &CallBackground{Disposition: Deferred, TimeoutMs: 1 << 30, MaxRetries: 99, RetryableErrors: []string{"timeout"}}
	if d := cmp.Diff(&plain, greedy.Within(tool)); d != "" {
		t.Errorf("a release goes beyond what is configured: %s", d)
	}
	if greedy.Within(nil) != nil || none.Plan(nil).Within(tool) != nil {
		t.Error("a release makes a tool eligible")
	}
}

// TestB16_5_TakenOutOfArguments: what a model says of the background is taken out of what it wrote, and nothing else changes.
func TestB16_5_TakenOutOfArguments(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"n":{}}}`)
	for args, want := range map[string][2]string{
		`{"n":1.50,"_background":{"enabled":true}}`: {`{"n":1.50}`, `{"enabled":true}`},
		`{"_background":null}`:                      {`{}`, `null`},
		`{"n": "_background"}`:                      {`{"n": "_background"}`, ``},
		`{"n":1,"_background":{`:                    {`{"n":1,"_background":{`, ``},
		`["_background"]`:                           {`["_background"]`, ``},
		``:                                          {``, ``},
	} {
		rest, said := TakeBackground(args, schema)
		if rest != want[0] || string(said) != want[1] {
			t.Errorf("%s became %s and %s", args, rest, said)
		}
	}
	own := json.RawMessage(`{"properties":{"_background":{"type":"string"}}}`)
	if rest, said := TakeBackground(`{"_background":"blue"}`, own); rest != `{"_background":"blue"}` || said != nil {
		t.Errorf("a tool's own argument became %s and %s", rest, said)
	}
	if got := string(WithBackgroundArg(own)); got != string(own) {
		t.Errorf("a tool's own argument became %s", got)
	}
	if got := string(WithBackgroundArg(schema)); !strings.Contains(got, `"_background"`) || !strings.Contains(got, `"n":{}`) {
		t.Errorf("a model sees %s", got)
	}
}

// TestB16_1_BackgroundOfAgents: what an agent says of a tool goes before what the tool says, and "all" and single tools are read
// back as they were written.
func TestB16_1_BackgroundOfAgents(t *testing.T) {
	t.Parallel()
	eligible := Manifest{Background: json.RawMessage(`{"enabled":true,"timeoutMs":5}`)}
	for name, c := range map[string]struct {
		tasks string
		tool  Manifest
		want  string
	}{
		"the tool's word":           {`null`, eligible, `{"enabled":true,"timeoutMs":5}`},
		"nobody's":                  {`null`, Manifest{}, `null`},
		"the agent's":               {`{"tools":{"k":true}}`, Manifest{}, `{"enabled":true}`},
		"another tool's":            {`{"tools":{"j":true}}`, Manifest{}, `null`},
		"all":                       {`{"tools":"all","waitTimeoutMs":7}`, Manifest{}, `{"enabled":true,"waitTimeoutMs":7}`},
		"the agent forbids it":      {`{"tools":{"k":false}}`, eligible, `null`},
		"none at all":               {`{"disabled":true,"tools":"all"}`, eligible, `null`},
		"the agent says more":       {`{"tools":{"k":{"defaultDisposition":"foreground"}}}`, eligible, `{"enabled":true,"defaultDisposition":"foreground","timeoutMs":5}`},
		"a call that a client does": {`{"tools":"all"}`, Manifest{Source: Source{Kind: SourceClient}}, `null`},
	} {
		var def AgentDef
		if err := json.Unmarshal([]byte(`{"backgroundTasks":`+c.tasks+`}`), &def); err != nil {
			t.Fatal(err)
		}
		got, err := Marshal(BackgroundOf(def, "k", c.tool))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		again, err := Marshal(def.BackgroundTasks)
		if err != nil || string(again) != strings.ReplaceAll(c.tasks, `{"defaultDisposition":"foreground"}`, `{"enabled":true,"defaultDisposition":"foreground"}`) {
			t.Errorf("%s: %s is written back as %s", name, c.tasks, again)
		}
	}
	for _, bad := range []string{`"some"`, `7`, `null`, `{"k":1}`, `{"k":{"often":true}}`} {
		var tools BackgroundTools
		if err := json.Unmarshal([]byte(bad), &tools); err == nil && bad != `null` {
			t.Errorf("%s is taken", bad)
		}
	}
}

// TestB16_2_B16_3_FoldOfTasks: the facts alone say what a turn knew, in whatever order results come in: a step names the background
// calls whose results it has not seen, and the others take the places of what stood for them. A carry, and a state that was
// split, say the same.
func TestB16_2_B16_3_FoldOfTasks(t *testing.T) {
	t.Parallel()
	s := newStory(t, "r1")
	deferred := &CallBackground{Disposition: Deferred}
	step := func(n int, open []OpenTask, calls ...*CallBackground) Event {
		d := StepFinished{
			RunID: "r1", Step: n, Attempt: 1, MessageID: fmt.Sprintf("m%d", n), Message: Message{Role: RoleAssistant, Parts: []Part{}},
			Calls: []CallPlanned{}, FinishReason: "tool-calls", Background: open,
		}
		for i, b := range calls {
			d.Calls = append(d.Calls, CallPlanned{
				ToolCallID: CallID{Run: "r1", Step: n, Index: i + 1}.String(), ToolName: "t", Args: fmt.Sprintf(`{"n":%d}`, n*10+i), Background: b,
			})
		}
		return s.add(ns.Step("r1", n), d)
	}
	result := func(c string) Event {
		call, err := CallOf("r1", c)
		if err != nil {
			t.Fatal(err)
		}
		return s.add(ns.Call(call, KindResult), CallFinished{
			ToolCallID: call.String(), RunID: "r1", ToolName: "t", Outcome: OutcomeOK, Started: true, Result: json.RawMessage(`"` + c + `"`),
		})
	}
	told := func(st *State) string {
		var parts []string
		for _, m := range st.Transcript() {
			for _, p := range m.Parts {
				if p.Type == PartToolResult {
					parts = append(parts, p.ToolCallID[3:]+"="+string(p.Output.Value))
				}
			}
		}
		return strings.Join(parts, " ")
	}
	started := func(c string) string { return `"Background task started. Task ID: r1=` + c + `"` }
	same := func(want string) *State {
		t.Helper()
		st := fold(t, s.log)
		if got := told(st); got != want {
			t.Errorf("after %d facts the model is told\n%s, want\n%s", len(s.log), got, want)
		}
		rest, grown := st.Split()
		rest.Join(grown)
		if d := cmp.Diff(st, &rest); d != "" {
			t.Errorf("split and joined: %s", d)
		}
		raw, err := Marshal(st)
		var back State
		if err != nil || json.Unmarshal(raw, &back) != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(told(st), told(&back)); d != "" || back.Undriven() != st.Undriven() || len(back.OpenTasks()) != len(st.OpenTasks()) {
			t.Errorf("written and read: %s", d)
		}
		return st
	}
	step(1, nil, deferred, nil, deferred)
	if st := fold(t, s.log); st.Settled() || len(st.Awaited()) != 1 || len(st.OpenTasks()) != 2 {
		t.Errorf("a step waits for %v", st.Awaited())
	}
	result("1-3")
	last := result("1-2")
	if st := same(`1-1=` + started("1-1") + ` 1-2="1-2" 1-3="1-3"`); !st.Settled() || st.LastResult() != last.Seq || st.Undriven() {
		t.Errorf("the result of %d goes on, not that of %d", st.LastResult(), last.Seq)
	}
	result("1-1") // the turn that is under way does not know it
	two := step(2, []OpenTask{{C: "1-1", ToolName: "t"}}, deferred)
	st := same(`1-1="1-1" 1-2="1-2" 1-3="1-3" 2-1=` + started("2-1"))
	if !st.Undriven() || st.Joining() == 0 || st.Joining() >= two.Seq || len(st.OpenTasks()) != 1 {
		t.Errorf("undriven %t, joining %d, open %v", st.Undriven(), st.Joining(), st.OpenTasks())
	}
	step(3, []OpenTask{{C: "2-1", ToolName: "t"}})
	if st = same(`1-1="1-1" 1-2="1-2" 1-3="1-3" 2-1=` + started("2-1")); !st.Waiting || st.Joining() != 0 {
		t.Errorf("waiting %t, joining %d", st.Waiting, st.Joining())
	}
	result("2-1")
	st = same(`1-1="1-1" 1-2="1-2" 1-3="1-3" 2-1="2-1"`)
	all := st.Transcript()
	if text := all[len(all)-1]; text.Role != RoleUser || !strings.Contains(text.Text(), "r1=2-1") || len(st.Messages) == len(all) {
		t.Errorf("a model that has spoken is asked %+v", text)
	}
	step(4, nil)
	if st = same(`1-1="1-1" 1-2="1-2" 1-3="1-3" 2-1="2-1"`); len(st.Tasks) != 0 || len(st.Open()) != 0 {
		t.Errorf("left: %+v", st.Tasks)
	}
	other := newStory(t, "r1")
	start := other.log[0]
	one := s.log[1]
	if err := fold(t, []Event{start, one}).Apply(two); err == nil {
		t.Error("a step leaves out a call of the foreground")
	}
	unnamed := two
	d, _ := Data[StepFinished](two)
	d.Background = nil
	unnamed.Data, _ = Marshal(d)
	if err := fold(t, append([]Event{start, one}, s.log[3])).Apply(unnamed); err == nil {
		t.Error("a step leaves a background call out that has no result")
	}
}

// Package tooltest holds what every kind of tool must do, whatever its code is: a Go function, a program, a server.
//
//	func TestExecTools(t *testing.T) {
//		tooltest.Exercise(t, func(t *testing.T, m events.Manifest, b tooltest.Behaviour) agent.Tool { … })
//	}
package tooltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Behaviour is what the code of a tool under test does.
type Behaviour string

// The behaviours that a kind of tool is made with.
const (
	Echo    Behaviour = "echo"    // answers {"args": the arguments}, byte for byte
	Key     Behaviour = "key"     // answers {"key": the idempotency key that it was given}
	Text    Behaviour = "text"    // answers the text "plain & <simple>" in the way that its kind has for text
	Nothing Behaviour = "nothing" // succeeds without an answer
	Fail    Behaviour = "fail"    // fails, saying FailText
	Hang    Behaviour = "hang"    // never answers
	Huge    Behaviour = "huge"    // answers a text of more than 1 MiB; nil when the kind has no bound
	Broken  Behaviour = "broken"  // answers {"args": 7}, which breaks the output schema
)

// FailText is what a tool says that fails.
const FailText = "the warehouse is on fire"

// Make makes a tool of the kind under test, with the manifest's schemas, that behaves in one way. Only for [Huge] may it
// return nil.
type Make func(t *testing.T, m events.Manifest, b Behaviour) agent.Tool

// Exercise runs the suite.
func Exercise(t *testing.T, kind Make) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Make){
		"Manifest": manifest, "Exact": exact, "Invalid": invalid, "Key": key, "Text": text, "Nothing": nothing,
		"Fail": fail, "Huge": huge, "Broken": broken, "Deadline": deadline, "Cancel": cancel, "SideBySide": sideBySide,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

var (
	inputSchema  = json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":true}`)
	outputSchema = json.RawMessage(`{"type":"object","properties":{"args":{"type":"object","additionalProperties":true}},"required":["args"]}`)
)

func build(t *testing.T, kind Make, b Behaviour) agent.Tool {
	t.Helper()
	m := events.Manifest{ID: "tool_" + string(b), Description: "does " + string(b), InputSchema: inputSchema, Effect: events.Idempotent}
	if b == Echo || b == Broken {
		m.OutputSchema = outputSchema
	}
	return kind(t, m, b)
}

func call(id string) *agent.Call {
	return agent.NewCall(agent.CallInfo{RunID: "run-1", ToolCallID: id, ToolName: "tool", AgentID: "support", Attempt: 1})
}

const anArgs = `{"n":1}`

func execute(ctx context.Context, tool agent.Tool, args string) agent.Attempt {
	return agent.Execute(ctx, tool, call("run-1=1-1"), json.RawMessage(args))
}

func manifest(t *testing.T, kind Make) {
	t.Helper()
	tool := build(t, kind, Echo)
	if err := agent.Check(tool); err != nil {
		t.Errorf("check: %v", err)
	}
	m := tool.Manifest()
	if m.ID != "tool_echo" || m.Source.Kind == "" || m.InputSchemaDigest == "" || m.Version == "" || m.Pool == "" {
		t.Errorf("the manifest is not complete: %+v", m)
	}
}

// exact: what the handler gets and what it answers keep every byte.
func exact(t *testing.T, kind Make) {
	t.Helper()
	tool := build(t, kind, Echo)
	for _, args := range []string{
		anArgs,
		`{"n":9007199254740993}`,
		`{"big":123456789012345678901234567890.5,"n":1}`,
		`{"n":1,"text":"<a href=\"x\">&amp; ä 日本 🦫 \u202e\u0000</a>"}`,
		`{"n":1,"shell":"$(touch /tmp/x); rm -rf / | ${HOME} \n'\""}`,
		`{"nested":{"a":[null,true,[],{}]},"n":1}`,
	} {
		got := execute(t.Context(), tool, args)
		if want := `{"args":` + args + `}`; got.Outcome != events.OutcomeOK || string(got.Result) != want {
			t.Errorf("result = %s %s %+v, want %s", got.Outcome, got.Result, got.Error, want)
		}
	}
}

func invalid(t *testing.T, kind Make) {
	t.Helper()
	got := execute(t.Context(), build(t, kind, Hang), `{"n":"one"}`)
	if got.Outcome != events.OutcomeInvalid || got.Started {
		t.Errorf("attempt = %+v, want invalid and not started", got)
	}
}

func key(t *testing.T, kind Make) {
	t.Helper()
	tool := build(t, kind, Key)
	for range 2 {
		got := execute(t.Context(), tool, anArgs)
		if want := `{"key":"run-1=1-1"}`; string(got.Result) != want {
			t.Errorf("result = %s %+v, want %s", got.Result, got.Error, want)
		}
	}
}

func text(t *testing.T, kind Make) {
	t.Helper()
	got := execute(t.Context(), build(t, kind, Text), anArgs)
	if want := `"plain & <simple>"`; string(got.Result) != want {
		t.Errorf("result = %s %+v, want %s", got.Result, got.Error, want)
	}
}

func nothing(t *testing.T, kind Make) {
	t.Helper()
	got := execute(t.Context(), build(t, kind, Nothing), anArgs)
	if got.Outcome != events.OutcomeOK || string(got.Result) != "null" {
		t.Errorf("attempt = %s %s %+v, want null", got.Outcome, got.Result, got.Error)
	}
}

func fail(t *testing.T, kind Make) {
	t.Helper()
	got := execute(t.Context(), build(t, kind, Fail), anArgs)
	if got.Outcome != events.OutcomeError || !got.Started || got.Error == nil {
		t.Fatalf("attempt = %+v, want an error after the start", got)
	}
	if got.Error.Name == "" || !strings.Contains(got.Error.Message, FailText) {
		t.Errorf("error = %+v, want a name and the text", got.Error)
	}
}

func huge(t *testing.T, kind Make) {
	t.Helper()
	tool := build(t, kind, Huge)
	if tool == nil {
		return // Go functions answer what they like
	}
	got := execute(t.Context(), tool, anArgs)
	if got.Outcome != events.OutcomeError || len(got.Error.Message) > 2000 {
		t.Errorf("attempt = %s, %d bytes; want a short error", got.Outcome, len(got.Result))
	}
}

func broken(t *testing.T, kind Make) {
	t.Helper()
	got := execute(t.Context(), build(t, kind, Broken), anArgs)
	if got.Outcome != events.OutcomeInvalid || !got.Started || strings.Contains(string(got.Result), "7") {
		t.Errorf("attempt = %+v, want invalid after the start, without the output", got)
	}
}

func deadline(t *testing.T, kind Make) {
	t.Helper()
	tool := build(t, kind, Hang)
	ctx, done := context.WithDeadline(t.Context(), time.Now())
	defer done()
	got := execute(ctx, tool, anArgs)
	if got.Outcome != events.OutcomeError || got.Error == nil || got.Error.Name != events.ErrorTimeout {
		t.Errorf("attempt = %+v, want a time-out", got)
	}
}

// cancel ends a call that is under way.
func cancel(t *testing.T, kind Make) {
	t.Helper()
	tool := build(t, kind, Hang)
	ctx, stop := context.WithCancelCause(t.Context())
	var got agent.Attempt
	var group sync.WaitGroup
	group.Go(func() { got = execute(ctx, tool, anArgs) })
	stop(errors.New("the run was cancelled"))
	group.Wait()
	if got.Outcome != events.OutcomeError || got.Error == nil || got.Error.Name != events.ErrorCancelled {
		t.Errorf("attempt = %+v, want cancelled", got)
	}
}

func sideBySide(t *testing.T, kind Make) {
	t.Helper()
	tool := build(t, kind, Echo)
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			args := fmt.Sprintf(`{"n":%d}`, i)
			got := agent.Execute(t.Context(), tool, call(fmt.Sprintf("run-1=1-%d", i+1)), json.RawMessage(args))
			if want := `{"args":` + args + `}`; string(got.Result) != want {
				t.Errorf("result = %s %+v, want %s", got.Result, got.Error, want)
			}
		})
	}
	group.Wait()
}

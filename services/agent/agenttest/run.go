package agenttest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// RunOptions say more about the call that [Run] makes. Zero fields have the default that their comment names.
type RunOptions struct {
	// Call is what the handler knows of its call. Default: run r1, tool call r1=1-1, attempt 1, the tool's id as name.
	Call agent.CallInfo
	// Resume resumes the call with this JSON; null is data too. Default: not resumed.
	Resume json.RawMessage
	// AsGiven hands the arguments to the tool as they are. Default: they are normalized first, as the gate does.
	AsGiven bool
}

// Result is what a call came to, and what was seen of it.
type Result struct {
	agent.Attempt
	Args    json.RawMessage     // what the handler got, or would have got
	Written []json.RawMessage   // by Call.Write, in order
	Custom  []agent.CustomChunk // by Call.Custom, in order
}

// Run runs one call of a tool. Arguments are JSON (a string or json.RawMessage), or a value that encodes to it. A tool
// that is defined wrongly fails the test; an outcome that is not ok does not.
func Run(tb testing.TB, tool agent.Tool, args any, o *RunOptions) Result {
	tb.Helper()
	tool, err := agent.Checked(tool)
	if err != nil {
		tb.Fatal(err)
	}
	if o == nil {
		o = &RunOptions{}
	}
	m := tool.Manifest()
	info := o.info(m.ID)
	r := Result{Args: rawArgs(tb, args)}
	if !o.AsGiven {
		if r.Args, err = normalize(m, r.Args); err != nil {
			r.Outcome, r.Result = events.OutcomeInvalid, events.InvalidInput(info.ToolName, err, string(rawArgs(tb, args)))
			return r
		}
	}
	var mu sync.Mutex // handlers may write from several goroutines
	info.Write = func(_ context.Context, output json.RawMessage) error {
		mu.Lock()
		defer mu.Unlock()
		r.Written = append(r.Written, output)
		return nil
	}
	info.Custom = func(_ context.Context, chunk agent.CustomChunk) error {
		mu.Lock()
		defer mu.Unlock()
		r.Custom = append(r.Custom, chunk)
		return nil
	}
	r.Attempt = agent.Execute(tb.Context(), tool, agent.NewCall(info), r.Args)
	return r
}

// Output decodes the result of a call that ended well; any other outcome fails the test.
func Output[T any](tb testing.TB, r Result) T {
	tb.Helper()
	var v T
	if r.Outcome != events.OutcomeOK {
		tb.Fatalf("the call ended as %q: %s", r.Outcome, r.reason())
	}
	if err := json.Unmarshal(r.Result, &v); err != nil {
		tb.Fatalf("result %s: %v", r.Result, err)
	}
	return v
}

// Suspended decodes the payload of a call that suspended itself; any other outcome fails the test.
func Suspended[T any](tb testing.TB, r Result) T {
	tb.Helper()
	var v T
	if r.Suspension == nil {
		tb.Fatalf("the call did not suspend itself, it ended as %q: %s", r.Outcome, r.reason())
	}
	if err := json.Unmarshal(r.Suspension.Payload, &v); err != nil {
		tb.Fatalf("payload %s: %v", r.Suspension.Payload, err)
	}
	return v
}

func (r Result) reason() string {
	switch {
	case r.Error != nil:
		return r.Error.Name + ": " + r.Error.Message
	case r.Suspension != nil:
		return r.Suspension.Error()
	}
	return string(r.Result)
}

func (o *RunOptions) info(toolName string) agent.CallInfo {
	info := o.Call
	if info.RunID == "" {
		info.RunID = "r1"
	}
	if info.ToolCallID == "" {
		info.ToolCallID = info.RunID + "=1-1"
	}
	if info.ToolName == "" {
		info.ToolName = toolName
	}
	if info.Attempt == 0 {
		info.Attempt = 1
	}
	if o.Resume != nil {
		info.Resume = &events.Resume{Data: o.Resume}
	}
	return info
}

func rawArgs(tb testing.TB, args any) json.RawMessage {
	tb.Helper()
	switch args := args.(type) {
	case nil:
		return nil
	case string:
		return json.RawMessage(args)
	case json.RawMessage:
		return args
	}
	raw, err := events.Marshal(args)
	if err != nil {
		tb.Fatalf("arguments: %v", err)
	}
	return raw
}

func normalize(m events.Manifest, args json.RawMessage) (json.RawMessage, error) {
	schema, err := events.CompileSchema(m.InputSchema)
	if err != nil {
		return nil, fmt.Errorf("input schema: %w", err)
	}
	return events.Normalize(schema, args)
}

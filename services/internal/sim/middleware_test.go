package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// withMiddleware is a bench whose executors have middleware.
func withMiddleware(t *testing.T, m []toolexecutor.Middleware, tools []agent.Tool, steps ...agenttest.Step) *bench {
	t.Helper()
	return newBench(t, Options{Exec: func(c *toolexecutor.Config) { c.Middleware = m }}, tools, steps...)
}

// TestB6_9_MiddlewareCannotChangeWhatWasApproved: who tries, in place or with other arguments, ends the call as blocked; the model
// may call again, and then people are asked again.
func TestB6_9_MiddlewareCannotChangeWhatWasApproved(t *testing.T) {
	inCase(t, func(t *testing.T) {
		first := toolexecutor.Middleware{Name: "changes", Before: func(_ context.Context, c *toolexecutor.HookCall) (*toolexecutor.Block, error) {
			switch string(c.Args) {
			case `{"n":1}`:
				c.Args[5] = '9' // in place
			case `{"n":2}`:
				c.Args = json.RawMessage(`{"n":9}`)
			case `{"n":3}`:
				c.Args = nil
			case `{"n":4}`:
				c.Args = json.RawMessage(`{"n": 4}`) // not the approved bytes either
			}
			c.ToolName, c.RunID = "other", "other"
			return nil, nil //nolint:nilnil // goes on
		}}
		b := withMiddleware(t, []toolexecutor.Middleware{first}, []agent.Tool{echo("job", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("job", `{"n":1}`), callTo("job", `{"n":2}`), callTo("job", `{"n":3}`), callTo("job", `{"n":4}`)),
			asks(callTo("job", `{"n":5}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		for i := 1; i <= 4; i++ {
			b.send("alice", events.Approve, b.call(run, 1, i), nil)
		}
		b.send("alice", events.Approve, b.call(run, 2, 1), nil)
		b.completed(run)
		for i := 1; i <= 4; i++ {
			f := b.result(b.call(run, 1, i))
			equal(t, "result", fmt.Sprint(f.Outcome, f.Reason, f.Started, f.BlockedBy.Rule), "blockedfingerprint_mismatchfalsechanges")
		}
		equal(t, "given", b.given("job"), []string{`{"n":5}`})
		b.Check(true)
	})
}

// TestB6_6_B6_8_MiddlewareBlocks a released call with an output or without, and one that it could not be asked about; its handler
// does not run, and nothing is called after it.
func TestB6_6_B6_8_MiddlewareBlocks(t *testing.T) {
	inCase(t, func(t *testing.T) {
		m := toolexecutor.Middleware{
			Name: "guard",
			Before: func(ctx context.Context, c *toolexecutor.HookCall) (*toolexecutor.Block, error) {
				switch c.ToolCallID[len(c.ToolCallID)-1] {
				case '1':
					return &toolexecutor.Block{Output: map[string]int{"limit": 3}}, nil
				case '2':
					return &toolexecutor.Block{}, nil
				case '3':
					return nil, errors.New(canary)
				case '4':
					panic(canary)
				}
				<-ctx.Done()    // too long
				return nil, nil //nolint:nilnil // goes on
			},
			After: func(_ context.Context, c toolexecutor.HookCall, _ json.RawMessage, _ *events.ToolError) error {
				t.Errorf("%s was seen after", c.ToolCallID)
				return nil
			},
		}
		calls := make([]agenttest.ToolCall, 5)
		for i := range calls {
			calls[i] = callTo("job", fmt.Sprintf(`{"n":%d}`, i))
		}
		b := withMiddleware(t, []toolexecutor.Middleware{m}, []agent.Tool{echo("job", anything, agent.ToolOptions{})}, asks(calls...), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.completed(run)
		for i, want := range []string{
			`blocked {"limit":3} middleware guard `, `blocked  middleware guard blocked`, `error  middleware guard hook_failed`,
			`error  middleware guard hook_failed`, `error  middleware guard hook_failed`,
		} {
			f := b.result(b.call(run, 1, i+1))
			name := ""
			if f.Error != nil {
				name = f.Error.Name
			}
			equal(t, "result", fmt.Sprintf("%s %s %s %s", f.Outcome, f.Result, f.Reason, name), want)
			equal(t, "started", f.Started, false)
		}
		equal(t, "given", len(b.given("job")), 0)
		b.Check(true)
	})
}

// TestB6_11_B6_12_AfterSeesTheEndAndChangesNothing: the output or the error of a handler that ran, which stands, also when what
// comes after it fails, panics, changes what it was given or takes too long; then a warning says so.
func TestB6_11_B6_12_AfterSeesTheEndAndChangesNothing(t *testing.T) {
	inCase(t, func(t *testing.T) {
		d := &diary{}
		bad := func(ctx context.Context, c toolexecutor.HookCall, output json.RawMessage, failed *events.ToolError) error {
			if failed != nil {
				failed.Message = "another"
			}
			if len(output) > 0 {
				output[0] = 'x'
			}
			switch c.ToolName {
			case "works":
				return errors.New(canary)
			case "fails":
				panic(canary)
			}
			time.Sleep(15 * time.Second) // fake
			return nil
		}
		noted := func(_ context.Context, c toolexecutor.HookCall, output json.RawMessage, failed *events.ToolError) error {
			if failed != nil {
				output = json.RawMessage(failed.Name + ": " + failed.Message)
			}
			d.write(fmt.Sprintf("%s %s %s", c.ToolName, c.Args, output))
			return nil
		}
		fails := agent.NewTool("fails", "Fails", func(context.Context, *agent.Call, struct{}) (any, error) {
			return nil, agent.Errorf("full", "no room")
		}, nil)
		b := withMiddleware(t, []toolexecutor.Middleware{{Name: "bad", After: bad}, {Name: "notes", After: noted}},
			[]agent.Tool{echo("works", anything, agent.ToolOptions{}), fails, pauser("pauses", agent.ToolOptions{})},
			asks(callTo("works", `{"n":1}`)), asks(callTo("fails", `{}`)), asks(callTo("pauses", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 3, 1), moment)
		before := d.all() // the result of a call is stored before its middleware hears of it: the next step may be faster
		slices.Sort(before)
		equal(t, "before it goes on", before, []string{`fails {} full: no room`, `works {"n":1} {"n":1}`})
		b.send("alice", events.ResumeD, b.call(run, 3, 1), withData(`7`))
		b.completed(run)
		b.pause(20 * time.Second)
		equal(t, "diary", d.all()[2], `pauses {} 7`)
		equal(t, "output", string(b.result(b.call(run, 1, 1)).Result), `{"n":1}`)
		equal(t, "error", b.result(b.call(run, 2, 1)).Error.Message, "no room")
		equal(t, "output of the slow", string(b.result(b.call(run, 3, 1)).Result), `7`)
		for step := 1; step <= 2; step++ {
			warned := false
			for _, c := range b.chunks(run) {
				var p events.WarningPayload
				warned = warned || c.Type == events.ChunkWarning && json.Unmarshal(c.Payload, &p) == nil && p.Code == "after_hook_failed" &&
					p.ToolCallID == b.call(run, step, 1).String()
			}
			equal(t, fmt.Sprintf("warning about step %d", step), warned, true)
		}
	})
}

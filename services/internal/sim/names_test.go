package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// TestB10_12AnyIDWorksEverywhere runs an agent and a tool with ids of 256 bytes, of characters that mean something to the
// bus, for threads and resources with others of the kind: everything reaches its own, lists show the originals, and
// wildcards reach nobody else's. (KV-1)
func TestB10_12AnyIDWorksEverywhere(t *testing.T) {
	inCase(t, func(t *testing.T) {
		odd := func(beginning string) string {
			id := beginning + " * > . \" / ü \u202e 漢="
			return id + strings.Repeat("x", 256-len(id))
		}
		tool, agentID := odd("tool"), odd("agent")
		pay := agent.NewTool(tool, "Pay", func(_ context.Context, _ *agent.Call, in json.RawMessage) (any, error) { return in, nil },
			&agent.ToolOptions{
				InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`), RequireApproval: agent.Always(),
				Preview: agent.PreviewFunc(func(context.Context, *agent.Call, json.RawMessage) (any, error) { return "pays", nil }),
			})
		places := [][2]string{{odd("thread"), odd("resource")}, {"*", ">"}, {"a.b", "*"}, {"user@example", "a:b"}, {"a b", "a..b"}, {"é", "e\u0301"}}
		b := newPreviews(t, Options{Agent: events.AgentDef{ID: agentID, Model: "scripted/sim", Tools: map[string]string{"pay": tool}}},
			[]agent.Tool{pay}, slices.Concat(slices.Repeat([]agenttest.Step{asks(callTo("pay", `{}`))}, len(places)), slices.Repeat([]agenttest.Step{agenttest.Say("done")}, len(places)))...)
		b.startHosted()
		for i, p := range places {
			run := fmt.Sprint("r", i)
			b.RequestAs("bob", events.RunRequested{
				AgentID: agentID, RunID: run, ThreadID: p[0], ResourceID: p[1], Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			})
			ask := b.AwaitAsk(b.call(run, 1, 1), moment)
			if ask.ToolID != tool || ask.AgentID != agentID || ask.ThreadID != p[0] || ask.ResourceID != p[1] || string(ask.Preview) != `{"text":"pays"}` {
				t.Errorf("the ask is of tool %q, agent %q, thread %q, resource %q; preview %s", ask.ToolID, ask.AgentID, ask.ThreadID, ask.ResourceID, ask.Preview)
			}
		}
		c := client.New(b.Conn(), client.Config{Principal: "bob"})
		t.Cleanup(c.Close)
		for i, p := range places {
			page, err := c.Suspended(t.Context(), client.Filter{Agent: agentID, Thread: p[0], Resource: p[1]})
			b.must(err)
			if page.Total != 1 || page.Runs[0].RunID != fmt.Sprint("r", i) || page.Runs[0].ThreadID != p[0] || page.Runs[0].AgentID != agentID {
				t.Errorf("thread %q lists %+v", p[0], page)
			}
		}
		for _, wild := range []client.Filter{{Agent: "*"}, {Agent: agentID, Thread: "a.*"}, {Resource: "**"}, {Thread: "a"}} {
			if page, err := c.Suspended(t.Context(), wild); err != nil || page.Total != 0 {
				t.Errorf("%+v lists %+v, %v", wild, page, err)
			}
		}
		for i := range places {
			run := fmt.Sprint("r", i)
			b.send("alice", events.Decline, b.call(run, 1, 1), nil)
			b.completed(run)
		}
	})
}

// TestB10_8ChangedToolIsNotRun registers a tool anew, with another schema, while a call of it is held. The run is pinned to
// the definition that people have looked at: its host runs it; when only hosts of the new one are left, nothing runs, and
// the call ends as unavailable at its deadline. (RES-5)
func TestB10_8ChangedToolIsNotRun(t *testing.T) {
	t.Parallel()
	for name, hosted := range map[string]bool{"its host is there": true, "its host is gone": false} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				pay := func(version, schema string) agent.Tool {
					return echo("pay", schema, agent.ToolOptions{
						Version: version, RequireApproval: agent.Always(), StartTimeout: time.Minute,
					})
				}
				b := newBench(t, Options{Gate: func(c *approval.Config) { c.Sweep, c.SweepAge = 10*time.Second, 10*time.Second }},
					[]agent.Tool{pay("1", anything)}, asks(callTo("pay", `{"amount":1}`)), agenttest.Say("done"))
				copies := b.StartAll()
				run := b.Request("go")
				call := b.call(run, 1, 1)
				before := b.AwaitAsk(call, moment)
				if !hosted {
					b.must(copies[2].Stop())
				}
				b.opts.Tools = []agent.Tool{&counted{pay("2", `{"type":"object","required":["currency"],"properties":{"currency":{"type":"string"}}}`), b}}
				b.Start(toolexecutor.Name)
				b.pause(5 * time.Second)
				equal(t, "the ask", b.AwaitAsk(call, moment).Fingerprint, before.Fingerprint)
				b.send("alice", events.Approve, call, nil)
				result := b.result(call)
				if hosted {
					equal(t, "outcome", result.Outcome, events.OutcomeOK)
					equal(t, "executions", b.given("pay"), []string{`{"amount":1}`})
				} else {
					equal(t, "outcome", result.Outcome, events.OutcomeUnavailable)
					equal(t, "executions", len(b.given("pay")), 0)
				}
				b.completed(run)
			})
		})
	}
}

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// TestB1_2_B1_3_B1_4_B1_13_WhatModelsAndPeopleSeeOfATool: the model sees the agent's key, description, input schema, provider
// options and examples, and nothing else; people see the key and the title; rules, releases and the host have the id.
func TestB1_2_B1_3_B1_4_B1_13_WhatModelsAndPeopleSeeOfATool(t *testing.T) {
	inCase(t, func(t *testing.T) {
		const schema = `{"type":"object","properties":{"orderId":{"type":"string"}}}`
		tool := echo("issue_refund", schema, agent.ToolOptions{
			Title: "Issue refund", Version: "7", Effect: agent.Idempotent, RequireApproval: agent.Always(), Strict: true,
			ProviderOptions: json.RawMessage(`{"openai":{"parallel":false}}`), InputExamples: []any{map[string]string{"orderId": "o-1"}},
			MCP: json.RawMessage(`{"annotations":{"title":"x"}}`), RequestContextSchema: json.RawMessage(`{"type":"object"}`),
		})
		b := newBench(t, Options{Agent: events.AgentDef{
			ID: "support", Model: "scripted/x", Tools: map[string]string{"refundTool": "issue_refund"},
		}}, []agent.Tool{tool}, asks(callTo("refundTool", `{"orderId":"o-2"}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		ask := b.AwaitAsk(call, moment)
		equal(t, "the ask", strings.Join([]string{ask.ToolName, ask.ToolID, ask.ToolVersion, ask.Title}, " "), "refundTool issue_refund 7 Issue refund")
		equal(t, "the list", b.listed(call).ToolName+" "+b.listed(call).Title, "refundTool Issue refund")
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		equal(t, "what the model sees", fmt.Sprintf("%+v", b.model.Requests()[0].Tools), fmt.Sprintf("%+v", []agent.ModelTool{{
			Name: "refundTool", Description: "The tool issue_refund", InputSchema: tool.Manifest().InputSchema, Strict: true,
			ProviderOptions: json.RawMessage(`{"openai":{"parallel":false}}`), InputExamples: json.RawMessage(`[{"input":{"orderId":"o-1"}}]`),
		}}))
		shown := chunk[events.ToolCallPayload](b, run, events.ChunkToolCall, call)
		equal(t, "the chunk of the call", shown.ToolName+" "+shown.Title, "refundTool Issue refund")
		equal(t, "the chunk of the result", chunk[events.ToolResultPayload](b, run, events.ChunkToolResult, call).ToolName, "refundTool")
		equal(t, "the release", b.released(call, "issue_refund").ToolID, "issue_refund")
		equal(t, "the fingerprint", ask.Fingerprint, events.Frozen{
			Namespace: b.Conn().Namespace(), RunID: run, ToolCallID: call.String(), ToolID: "issue_refund", ToolVersion: "7",
			InputSchemaDigest: tool.Manifest().InputSchemaDigest, Args: []byte(`{"orderId":"o-2"}`),
		}.Fingerprint())
	})
}

// TestB1_14_ARunKeepsItsDefinitions over a suspension, a restart and a new version of everything that it is pinned to.
func TestB1_14_ARunKeepsItsDefinitions(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{Agent: events.AgentDef{
			ID: "support", Model: "scripted/x", Instructions: "old", Tools: map[string]string{"refund": "refund"},
		}}, []agent.Tool{echo("refund", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("refund", `{}`)), agenttest.Say("done"), agenttest.Say("new run"))
		copies := b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.AwaitAsk(call, moment)
		for _, c := range copies {
			b.must(c.Stop())
		}
		b.put(events.RegistryAgent, "support", events.AgentDef{ID: "support", Model: "scripted/x", Instructions: "new"})
		changed := echo("refund", `{"type":"object","required":["x"]}`, agent.ToolOptions{Version: "2"}).Manifest()
		b.put(events.RegistryTool, "refund", changed)
		b.Start(planner.Name)
		b.Start(approval.Name)
		b.send("alice", events.Approve, call, nil)
		if rel := b.released(call, "refund"); rel.ToolVersion != "1" {
			t.Errorf("version %s is released", rel.ToolVersion)
		}
		b.Start(toolexecutor.Name)
		b.completed(run)
		equal(t, "instructions", b.model.Requests()[1].Instructions, "old")
		equal(t, "tools", len(b.model.Requests()[1].Tools), 1)
		later := b.Request("go")
		b.completed(later)
		equal(t, "instructions of a later run", b.model.Requests()[2].Instructions, "new")
	})
}

// TestB3_3_TheKeyOfACallNeverChanges: not with its attempts, and not with its rounds; both are counted.
func TestB3_3_TheKeyOfACallNeverChanges(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var seen []string
		began := make(chan struct{}, 8)
		tool := agent.NewTool("pay", "Pays", func(ctx context.Context, call *agent.Call, _ struct{}) (any, error) {
			seen = append(seen, fmt.Sprintf("%s %d %d", call.IdempotencyKey(), call.Attempt(), call.Round()))
			switch call.Attempt() {
			case 1:
				began <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			case 2:
				return nil, call.Suspend(nil)
			}
			return "paid", nil
		}, &agent.ToolOptions{Effect: agent.Idempotent, OutputSchema: json.RawMessage(`{}`)})
		b := newPreviews(t, Options{}, []agent.Tool{tool}, asks(callTo("pay", `{}`)), agenttest.Say("done"))
		executor := b.StartAll()[2]
		run := b.Request("go")
		<-began
		executor.Kill()
		b.Start(toolexecutor.Name)
		call := b.call(run, 1, 1)
		b.send("alice", events.ResumeD, call, withData(`{}`))
		b.completed(run)
		key := call.String()
		equal(t, "calls of the tool", seen, []string{key + " 1 0", key + " 2 0", key + " 3 1"})
	})
}

// TestB3_5_ACrashBetweenEffectAndResult: a call that may be repeated runs again under its key, one that reads simply runs again.
func TestB3_5_ACrashBetweenEffectAndResult(t *testing.T) {
	for _, effect := range []events.Effect{agent.Idempotent, agent.ReadOnly} {
		t.Run(string(effect), func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				var effects Effects
				began := make(chan struct{}, 8)
				tool := agent.NewTool("pay", "Pays", func(ctx context.Context, call *agent.Call, _ struct{}) (any, error) {
					effects.Add(call.IdempotencyKey())
					began <- struct{}{}
					if call.Attempt() == 1 {
						<-ctx.Done()
					}
					return "paid", ctx.Err()
				}, &agent.ToolOptions{Effect: effect, OutputSchema: json.RawMessage(`{}`)})
				b := newPreviews(t, Options{}, []agent.Tool{tool}, asks(callTo("pay", `{}`)), agenttest.Say("done"))
				executor := b.StartAll()[2]
				run := b.Request("go")
				<-began
				executor.Kill()
				b.Start(toolexecutor.Name)
				b.completed(run)
				call := b.call(run, 1, 1)
				if d := b.result(call); d.Outcome != events.OutcomeOK || d.Attempt != 2 {
					t.Errorf("result %+v", d)
				}
				equal(t, "effects by key", effects.All(), map[string]int{call.String(): 2})
				b.Check(true)
			})
		})
	}
}

// TestB3_10_WhatAHandlerMayRead: the conversation that the model saw, and the request context as it was given; what a handler
// changes of it, no other call sees.
func TestB3_10_WhatAHandlerMayRead(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var seen []string
		tool := agent.NewTool("look", "Looks", func(ctx context.Context, call *agent.Call, _ struct{}) (any, error) {
			given := call.RequestContext()
			messages, err := call.Messages(ctx)
			said := make([]string, len(messages))
			for i, m := range messages {
				said[i] = string(m.Role) + ":" + m.Text()
			}
			seen = append(seen, string(given)+" "+strings.Join(said, " "))
			copy(given, `{"tenant":`)
			clear(given[len(given)-6:])
			return nil, err
		}, &agent.ToolOptions{Effect: agent.ReadOnly, OutputSchema: json.RawMessage(`{}`)})
		b := newPreviews(t, Options{}, []agent.Tool{tool}, agenttest.Step{Text: "Let me look.", Calls: []agenttest.ToolCall{callTo("look", `{}`)}},
			asks(callTo("look", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := events.NewID(time.Now())
		b.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: run, Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			RequestContext: json.RawMessage(`{"tenant":"acme","n":9007199254740993,"f":1.0}`),
		})
		b.completed(run)
		given := `{"tenant":"acme","n":9007199254740993,"f":1.0}`
		equal(t, "what the handler read", seen, []string{given + " user:go", given + " user:go assistant:Let me look. tool:"})
	})
}

// TestB3_21_PoolsShareNothing: calls go to the executors of the pool that hosts the tool, and to no other; one of the pool that
// does not host it gives it back at once to one that does.
func TestB3_21_PoolsShareNothing(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{Settings: jetstream.Settings{Pools: []string{"default", "billing"}}},
			[]agent.Tool{echo("look", anything, agent.ToolOptions{})}, asks(callTo("look", `{}`), callTo("pay", `{}`), callTo("bill", `{}`)), agenttest.Say("done"))
		b.Start(planner.Name)
		b.Start(approval.Name)
		b.Start(toolexecutor.Name)
		pay, bill := echo("pay", anything, agent.ToolOptions{}), echo("bill", anything, agent.ToolOptions{})
		b.host("billing", "pay-1", pay)
		b.host("billing", "bill-1", bill)
		b.put(events.RegistryAgent, "support", events.AgentDef{
			ID: "support", Model: "scripted/x", Tools: map[string]string{"look": "look", "pay": "pay", "bill": "bill"},
		})
		run := b.Request("go")
		b.completed(run)
		for i, worker := range []string{"", "pay-1", "bill-1"} {
			call := b.call(run, 1, i+1)
			d := b.result(call)
			if d.Outcome != events.OutcomeOK || worker != "" && d.Worker != worker {
				t.Errorf("call %d ended as %s (%v) at %s, want %s", i+1, d.Outcome, d.Error, d.Worker, worker)
			}
		}
		pool := func(i int, tool, pool string) {
			e := b.Await(b.Conn().Namespace().Go(b.call(run, 1, i), pool, tool), moment)
			if rel, err := events.Data[events.CallReleased](e); err != nil || rel.Pool != pool {
				t.Errorf("the release of %s is for pool %s: %v", tool, rel.Pool, err)
			}
		}
		pool(1, "look", "default")
		pool(2, "pay", "billing")
		pool(3, "bill", "billing")
	})
}

// host runs an executor of a pool with some tools.
func (b *bench) host(pool, id string, tools ...agent.Tool) {
	b.T.Helper()
	cfg := b.ExecutorConfig()
	cfg.Pool, cfg.ID, cfg.Tools = pool, id, tools
	s, err := toolexecutor.New(b.Dial(id, nil), cfg)
	b.must(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.T.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	b.T.Cleanup(func() { cancel(); <-done })
	b.pause(time.Second)
}

// TestB3_13_WhatAHandlerWrites: output as chunks about its call, and chunks of the author's own type as they are.
func TestB3_13_WhatAHandlerWrites(t *testing.T) {
	inCase(t, func(t *testing.T) {
		tool := agent.NewTool("look", "Looks", func(ctx context.Context, call *agent.Call, _ struct{}) (any, error) {
			for _, wrong := range []string{"progress", "data-" + strings.Repeat("x", 60)} {
				if call.Custom(ctx, wrong, 1, nil) == nil {
					t.Errorf("type %s was taken", wrong)
				}
			}
			if err := call.Write(ctx, map[string]int{"done": 40}); err != nil {
				return nil, err
			}
			return nil, call.Custom(ctx, "data-progress", map[string]int{"done": 80}, &agent.CustomOptions{ID: "p", Transient: true})
		}, &agent.ToolOptions{Effect: agent.ReadOnly, OutputSchema: json.RawMessage(`{}`)})
		b := newPreviews(t, Options{}, []agent.Tool{tool}, asks(callTo("look", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.completed(run)
		var got []string
		for _, c := range b.chunks(run) {
			if c.From == "USER" {
				got = append(got, string(c.Type)+" "+string(c.Payload))
			}
		}
		equal(t, "chunks", strings.Join(got, "\n"), `tool-output {"output":{"done":40},"toolCallId":"`+b.call(run, 1, 1).String()+`","toolName":"look"}`+
			"\n"+`data-progress {"data":{"done":80},"id":"p","transient":true}`)
	})
}

// TestB3_17_LargeResults go to the blobs, and chunks and facts refer to them; handler, model and whoever asked for the call get
// the whole, the model up to a bound.
func TestB3_17_LargeResults(t *testing.T) {
	inCase(t, func(t *testing.T) {
		large := strings.Repeat("0123456789abcdef", 20<<10) // 320 KiB
		huge := strings.Repeat(large, 10)
		var read string
		tool := agent.NewTool("look", "Looks", func(ctx context.Context, call *agent.Call, in struct {
			Of string `json:"of"`
		},
		) (string, error) {
			switch in.Of {
			case "large":
				return large, nil
			case "huge":
				return huge, nil
			}
			messages, err := call.Messages(ctx)
			for _, m := range messages {
				for _, p := range m.Parts {
					if p.Type == events.PartToolResult {
						read += string(p.Output.Value)
					}
				}
			}
			return "", err
		}, &agent.ToolOptions{Effect: agent.ReadOnly})
		b := newPreviews(t, Options{}, []agent.Tool{tool}, asks(callTo("look", `{"of":"large"}`), callTo("look", `{"of":"huge"}`)),
			asks(callTo("look", `{"of":""}`)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		b.Await(b.Conn().Namespace().Step(run, 2), moment)
		for _, c := range copies { // nothing depends on what they remember
			b.must(c.Stop())
		}
		b.StartAll()
		b.completed(run)
		for i, whole := range []string{`"` + large + `"`, `"` + huge + `"`} {
			d := b.result(b.call(run, 1, i+1))
			shown := chunk[events.ToolResultPayload](b, run, events.ChunkToolResult, b.call(run, 1, i+1))
			if d.Result != nil || d.DataRef != events.Digest([]byte(whole)) || d.Size != len(whole) || shown.DataRef != d.DataRef ||
				shown.Size != d.Size || shown.Result != nil {
				t.Errorf("result %d: %.200s, chunk %.200s", i+1, fmt.Sprintf("%+v", d), fmt.Sprintf("%+v", shown))
			}
			b.must(b.Conn().WholeResult(t.Context(), &d))
			if string(d.Result) != whole {
				t.Errorf("result %d is not what the tool gave", i+1)
			}
		}
		if read != `"`+large+`""`+huge+`"` {
			t.Errorf("the handler read %d bytes", len(read))
		}
		var told []int
		requests := b.model.Requests()
		for _, m := range requests[len(requests)-1].Messages {
			for _, p := range m.Parts {
				if p.Type == events.PartToolResult {
					told = append(told, len(p.Output.Value))
					if len(p.Output.Value) < len(huge) && len(p.Output.Value) > len(large)+2 {
						t.Errorf("the model is told %d bytes", len(p.Output.Value))
					}
				}
			}
		}
		if len(told) != 3 || told[0] != len(large)+2 || told[1] > events.MaxModelOutput || told[1] < events.MaxModelOutput/2 {
			t.Errorf("the model is told %v bytes", told)
		}
	})
}

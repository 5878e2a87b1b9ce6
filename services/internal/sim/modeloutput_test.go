package sim

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

// order is what the tools of these tests find.
type order struct {
	ID    string      `json:"id"`
	Total json.Number `json:"total"`
}

// mapping is a tool that finds an order and says in its own way what a model is told of it.
func mapping(id string, m *agent.OutputMap) agent.Tool {
	return agent.NewTool(id, "The tool "+id, func(context.Context, *agent.Call, struct{}) (order, error) {
		return order{ID: "o-1", Total: "612.50"}, nil
	}, &agent.ToolOptions{
		Effect: agent.ReadOnly, ToModelOutput: m,
		OutputSchema: json.RawMessage(`{"type":"object","properties":{"id":{"type":"string"},"total":{"type":"number"}}}`),
	})
}

func mapTo(o *events.ModelOutput) *agent.OutputMap {
	return agent.MapOutput(func(context.Context, *agent.Call, order) (*events.ModelOutput, error) { return o, nil })
}

// mapped runs a call of each tool, in one step, and gives what the model was told of it beside the bench.
func mapped(t *testing.T, tools ...agent.Tool) (b *bench, run string, told []events.ModelOutput) {
	t.Helper()
	calls := make([]agenttest.ToolCall, len(tools))
	for i, tool := range tools {
		calls[i] = callTo(tool.Manifest().ID, `{}`)
	}
	b = newPreviews(t, Options{}, tools, asks(calls...), agenttest.Say("done"))
	b.StartAll()
	run = b.Request("go")
	b.completed(run)
	requests := b.model.Requests()
	messages := requests[len(requests)-1].Messages
	for _, part := range messages[len(messages)-1].Parts {
		told = append(told, *part.Output)
	}
	return b, run, told
}

const rawOrder = `{"id":"o-1","total":612.50}`

// TestB4_1_B4_2_B4_6_TheModelIsToldWhatTheMapSays: by function and by jq, for the model alone. Chunk and record keep the result, and
// hold beside it what the model was told.
func TestB4_1_B4_2_B4_6_TheModelIsToldWhatTheMapSays(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b, run, told := mapped(t,
			mapping("go", agent.MapOutput(func(_ context.Context, call *agent.Call, o order) (*events.ModelOutput, error) {
				return agent.TextOutput(call.ToolName() + ": " + o.ID + " costs " + o.Total.String()), nil
			})),
			mapping("jq", agent.MapOutputJQ(`{type: "json", value: {order: .id, total}}`)),
			mapping("nil", mapTo(nil)), mapping("null", agent.MapOutputJQ("null")), mapping("none", nil),
		)
		for i, want := range []struct{ kind, value, beside string }{
			{events.OutputText, `"go: o-1 costs 612.50"`, `{"type":"text","value":"go: o-1 costs 612.50"}`},
			{events.OutputJSON, `{"order":"o-1","total":612.50}`, `{"type":"json","value":{"order":"o-1","total":612.50}}`},
			{events.OutputJSON, rawOrder, ""},
			{events.OutputJSON, rawOrder, ""},
			{events.OutputJSON, rawOrder, ""},
		} {
			call := b.call(run, 1, i+1)
			equal(t, "type", told[i].Type, want.kind)
			equal(t, "value", string(told[i].Value), want.value)
			shown := chunk[events.ToolResultPayload](b, run, events.ChunkToolResult, call)
			equal(t, "result of the chunk", string(shown.Result), rawOrder)
			equal(t, "result of the record", string(b.result(call).Result), rawOrder)
			beside := ""
			if want.beside != "" {
				beside = `{"mastra":{"modelOutput":` + want.beside + `}}`
			}
			equal(t, "beside the result of the chunk", string(shown.ProviderMetadata), beside)
		}
	})
}

// TestB4_3_FormsOfModelOutput: texts, JSON and parts of content as they are; any other shape is refused where the tool runs.
func TestB4_3_FormsOfModelOutput(t *testing.T) {
	inCase(t, func(t *testing.T) {
		content := agent.ContentOutput(
			events.ContentPart{Type: events.ContentText, Text: "A receipt:"},
			events.ContentPart{Type: events.ContentImageData, Data: "AAAA", MediaType: "image/png"},
			events.ContentPart{Type: events.ContentFileURL, URL: "https://example.org/r.pdf"},
		)
		bad := []*events.ModelOutput{
			{Type: "html", Value: json.RawMessage(`"<b>"`)},
			{Type: events.OutputText, Value: json.RawMessage(`7`)},
			{Type: events.OutputText, Value: json.RawMessage(`null`)},
			{Type: events.OutputErrorText, Value: json.RawMessage(`"no"`)},
			{Type: events.OutputJSON},
			{Type: events.OutputContent, Value: json.RawMessage(`[]`)},
			agent.ContentOutput(events.ContentPart{Type: events.ContentImageData, Data: "AAAA"}), agent.JSONOutput(func() {}),
			agent.TextOutput(strings.Repeat("x", events.MaxModelOutput)),
		}
		tools := []agent.Tool{mapping("content", mapTo(content))}
		for i, o := range bad {
			tools = append(tools, mapping("bad"+string(rune('0'+i)), mapTo(o)))
		}
		_, _, told := mapped(t, tools...)
		equal(t, "content", told[0].Type+string(told[0].Value), content.Type+string(content.Value))
		for i := range bad {
			equal(t, "a map of another shape", told[i+1].Type+string(told[i+1].Value), events.OutputJSON+rawOrder)
		}
	})
}

// TestB4_5_AFailingMapHurtsNothing: the model is told the result itself, and a warning says so.
func TestB4_5_AFailingMapHurtsNothing(t *testing.T) {
	inCase(t, func(t *testing.T) {
		broken := func(f func(ctx context.Context) error) *agent.OutputMap {
			return agent.MapOutput(func(ctx context.Context, _ *agent.Call, o order) (*events.ModelOutput, error) {
				return agent.TextOutput(o.ID), f(ctx)
			})
		}
		b, run, told := mapped(t,
			mapping("error", broken(func(context.Context) error { return errors.New("secret-4242") })),
			mapping("panic", broken(func(context.Context) error { panic("secret-4242") })),
			mapping("slow", broken(func(ctx context.Context) error { <-ctx.Done(); return nil })),
			mapping("deaf", broken(func(context.Context) error { time.Sleep(time.Minute); return nil })), // fake
			mapping("jq", agent.MapOutputJQ(`error("secret-4242")`)), mapping("shape", agent.MapOutputJQ(`[1]`)),
		)
		warned := map[string]bool{}
		for _, c := range b.chunks(run) {
			var p events.WarningPayload
			if c.Type == events.ChunkWarning && json.Unmarshal(c.Payload, &p) == nil && p.Code == "model_output_failed" {
				warned[p.ToolCallID] = true
			}
			if strings.Contains(string(c.Payload), "secret-4242") {
				t.Errorf("a chunk shows the error of a map: %s", c.Payload)
			}
		}
		for i, o := range told {
			equal(t, "told", o.Type+string(o.Value), events.OutputJSON+rawOrder)
			equal(t, "outcome", b.result(b.call(run, 1, i+1)).Outcome, events.OutcomeOK)
			if !warned[b.call(run, 1, i+1).String()] {
				t.Errorf("no warning about call %d", i+1)
			}
		}
		b.pause(time.Minute)
	})
}

// TestB4_1_OnlyResultsAreMapped: nothing that is no result of the tool is given to its map.
func TestB4_1_OnlyResultsAreMapped(t *testing.T) {
	inCase(t, func(t *testing.T) {
		never := agent.MapOutput(func(context.Context, *agent.Call, json.RawMessage) (*events.ModelOutput, error) {
			t.Error("the map was asked")
			return nil, nil //nolint:nilnil // never
		})
		tool := func(id string, required bool, f func() (any, error)) agent.Tool {
			o := &agent.ToolOptions{Effect: agent.ReadOnly, ToModelOutput: never, OutputSchema: json.RawMessage(`{"type":["object","null"]}`)}
			if required {
				o.RequireApproval = agent.Always()
			}
			return agent.NewTool(id, "The tool "+id, func(context.Context, *agent.Call, struct{}) (any, error) { return f() }, o)
		}
		b := newPreviews(t, Options{}, []agent.Tool{
			tool("null", false, func() (any, error) { return nil, nil }), //nolint:nilnil // null
			tool("error", false, func() (any, error) { return nil, errors.New("no") }),
			tool("invalid", false, func() (any, error) { return 7, nil }),
			tool("declined", true, func() (any, error) { return order{}, nil }),
			tool("responded", true, func() (any, error) { return order{}, nil }),
		}, asks(callTo("null", `{}`), callTo("error", `{}`), callTo("invalid", `{}`), callTo("declined", `{}`), callTo("responded", `{}`)),
			agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.send("alice", events.Decline, b.call(run, 1, 4), nil)
		b.send("alice", events.Respond, b.call(run, 1, 5), func(d *events.DecisionRequested) { d.Result = json.RawMessage(`{"id":"x"}`) })
		b.completed(run)
		equal(t, "null", string(b.result(b.call(run, 1, 1)).Result), "null")
	})
}

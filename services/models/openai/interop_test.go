//go:build interop

package openai_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/modeltest"
	"github.com/weirkeeper/weir/services/models/openai"
)

func asked(prompt string) agent.ModelRequest {
	return agent.ModelRequest{
		Model: "gpt-5", Instructions: "Be brief.", Messages: []events.Message{events.TextMessage(events.RoleUser, prompt)},
		Tools: []agent.ModelTool{
			{Name: "get_weather", Description: "The weather", InputSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}}}`)},
			{Name: "now"},
		},
	}
}

// TestAimock drives the adapter against a mock that others wrote from recordings of the real provider.
func TestAimock(t *testing.T) {
	t.Parallel()
	mock := modeltest.StartMock(t, "testdata/aimock.json")
	c, err := openai.New(openai.Config{BaseURL: mock.URL + "/v1", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req agent.ModelRequest) modeltest.Turn { return modeltest.Collect(t, c.Stream(t.Context(), req)) }

	t.Run("text", func(t *testing.T) {
		deltas := 0
		for p, err := range c.Stream(t.Context(), asked("Hello")) {
			if err != nil {
				t.Fatal(err)
			}
			if p.Type == agent.PartTextDelta {
				deltas++
			}
		}
		got := ask(asked("Hello"))
		if got.Err != nil || got.Text != "Hello there! How can I help you with your weather questions today?" || got.Reason != agent.FinishStop {
			t.Errorf("got %+v", got)
		}
		if got.Reasoning != "A greeting. Answer in kind." || got.Usage.InputTokens == 0 || got.Usage.OutputTokens == 0 || deltas < 10 {
			t.Errorf("got %+v in %d deltas", got, deltas)
		}
	})
	t.Run("parallel calls", func(t *testing.T) { testAimockCalls(t, mock, ask) })
	t.Run("a connection that is lost", func(t *testing.T) {
		got := ask(asked("Cut"))
		if e := modelError(t, got); !e.Retryable || len(got.Calls) != 1 || got.Calls[0].Ended {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("refusals", func(t *testing.T) {
		if e := modelError(t, ask(asked("Busy"))); !e.Retryable || e.Status != 429 || e.After != 7*time.Second {
			t.Errorf("busy: %+v", e)
		}
		if e := modelError(t, ask(asked("Nobody expects this"))); e.Retryable || e.Status < 400 {
			t.Errorf("no fixture: %+v", e)
		}
	})
	t.Run("the limit", func(t *testing.T) {
		if got := ask(asked("Long")); got.Err != nil || got.Reason != agent.FinishLength {
			t.Errorf("got %+v", got)
		}
	})
}

func testAimockCalls(t *testing.T, mock modeltest.Mock, ask func(agent.ModelRequest) modeltest.Turn) {
	t.Helper()
	req := asked("Compare the weather.")
	got := ask(req)
	if got.Err != nil || got.Text != "Let me look at both." || got.Reason != agent.FinishToolCalls || len(got.Calls) != 3 {
		t.Fatalf("got %+v", got)
	}
	want := []string{`{"city":"Rome","station":9007199254740993}`, `{"city":"Oslo, <Norway> & \"fjords\""}`, `{}`}
	said := events.Message{Role: events.RoleAssistant, Parts: []events.Part{{Type: events.PartText, Text: got.Text}}}
	results := events.Message{Role: events.RoleTool}
	for i, call := range got.Calls {
		if call.Args != want[i] || !call.Ended || call.ProviderID == "" {
			t.Errorf("call %d = %+v, want arguments %s", i, call, want[i])
		}
		id := events.CallID{Run: "r7Kq2", Step: 1, Index: i + 1}.String()
		said.Parts = append(said.Parts, events.Part{
			Type: events.PartToolCall, ToolCallID: id, ToolName: call.Name, Args: call.Args, ProviderCallID: call.ProviderID,
		})
		results.Parts = append(results.Parts, events.Part{
			Type: events.PartToolResult, ToolCallID: id, ToolName: call.Name,
			Output: &events.ModelOutput{Type: events.OutputJSON, Value: json.RawMessage(`{"t":20}`)},
		})
	}
	req.Messages = append(req.Messages, said, results)
	if got := ask(req); got.Err != nil || got.Text != "Rome is warmer." || got.Usage != (events.Usage{InputTokens: 77, OutputTokens: 5, TotalTokens: 82}) {
		t.Errorf("got %+v", got)
	}
	last := mock.LastMessages(t)
	if err := modeltest.Pairing(last); err != nil || len(last) != 5 {
		t.Errorf("the request has %d messages, pairing: %v", len(last), err)
	}
}

//go:build interop

package responses_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/modeltest"
	"github.com/weirkeeper/weir/services/models/responses"
)

func askedFor(prompt string) agent.ModelRequest {
	return agent.ModelRequest{
		Model: "gpt-5-mini", Instructions: "Be brief.", Messages: []events.Message{events.TextMessage(events.RoleUser, prompt)},
		Tools: []agent.ModelTool{
			{Name: "get_weather", Description: "The weather", InputSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}}}`)},
			{Name: "now"},
		},
		ProviderOptions: json.RawMessage(`{"openai":{"reasoning":{"effort":"low","summary":"auto"}}}`),
	}
}

// TestResponsesAimock drives the adapter against a mock that others wrote from recordings of the real provider.
func TestResponsesAimock(t *testing.T) {
	t.Parallel()
	mock := modeltest.StartMock(t, "testdata/aimock.json")
	c, err := responses.New(responses.Config{BaseURL: mock.URL + "/v1", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req agent.ModelRequest) modeltest.Turn { return modeltest.Collect(t, c.Stream(t.Context(), req)) }
	failure := func(got modeltest.Turn) *agent.ModelError {
		e, ok := errors.AsType[*agent.ModelError](got.Err)
		if !ok {
			t.Fatalf("got %+v", got)
		}
		return e
	}

	got := ask(askedFor("Hello"))
	if got.Err != nil || got.Text != "Hello there! How can I help you?" || got.Reason != agent.FinishStop {
		t.Errorf("text: got %+v", got)
	}
	if got.Reasoning != "A greeting. Answer in kind." || got.Usage.InputTokens != 12 || got.Usage.OutputTokens != 8 {
		t.Errorf("text: got %+v", got)
	}
	t.Run("parallel calls", func(t *testing.T) { mock.Calls(t, c, askedFor("Compare the weather.")) })
	if got := ask(askedFor("Cut")); !failure(got).Retryable || got.Text == "" {
		t.Errorf("a connection that is lost: got %+v", got)
	}
	if e := failure(ask(askedFor("Busy"))); !e.Retryable || e.Status != 429 || e.After != 7*time.Second {
		t.Errorf("busy: %+v", e)
	}
	if e := failure(ask(askedFor("Overload"))); !e.Retryable || e.Status != 503 {
		t.Errorf("overload: %+v", e)
	}
	if got := ask(askedFor("Long")); got.Err != nil || got.Reason != agent.FinishLength {
		t.Errorf("the limit: got %+v", got)
	}
}

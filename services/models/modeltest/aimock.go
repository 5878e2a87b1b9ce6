//go:build interop

package modeltest

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// clients is the folder that holds the programs of others.
const clients = "../../cmd/weir/interop"

// Mock is a running aimock, a mock of many providers that others wrote from recordings of the real ones.
type Mock struct{ URL string }

// StartMock starts it with the fixtures of a file.
func StartMock(t *testing.T, file string) Mock {
	t.Helper()
	if _, err := os.Stat(filepath.Join(clients, "node_modules")); err != nil {
		t.Fatal("the foreign clients are not installed: run make interop")
	}
	fixtures, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "aimock.mjs", fixtures) //nolint:gosec // a file of the test
	cmd.Dir, cmd.Stderr = clients, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // it ends by itself
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("aimock did not start: %v", err)
	}
	return Mock{strings.TrimSpace(line)}
}

// LastMessages are the messages of the last request that the mock has got. It keeps the requests of all providers in one
// form, that of Chat Completions.
func (m Mock) LastMessages(t *testing.T) []Message {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m.URL+"/__aimock/journal", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var entries []struct {
		Body struct {
			Messages []struct {
				Role       events.Role `json:"role"`
				Content    any         `json:"content"`
				ToolCallID string      `json:"tool_call_id"`
				ToolCalls  []struct {
					ID       string
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			} `json:"messages"`
		} `json:"body"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&entries); err != nil || len(entries) == 0 {
		t.Fatalf("%d requests, %v", len(entries), err)
	}
	var out []Message
	for _, said := range entries[len(entries)-1].Body.Messages {
		if said.Role == events.RoleSystem {
			continue
		}
		text, _ := said.Content.(string)
		one := Message{Role: said.Role, Text: text, Result: said.ToolCallID}
		for _, c := range said.ToolCalls {
			one.Calls = append(one.Calls, AskedCall{c.ID, c.Function.Name, c.Function.Arguments})
		}
		if n := len(out) - 1; n >= 0 && one.Role == events.RoleAssistant && out[n].Role == one.Role { // a protocol without turns
			out[n].Text, out[n].Calls = out[n].Text+one.Text, append(out[n].Calls, one.Calls...)
			continue
		}
		out = append(out, one)
	}
	return out
}

// Calls asks a model for a turn of three calls and gives it their results: what was sent is paired, with the arguments as they came.
func (m Mock) Calls(t *testing.T, model agent.Model, req agent.ModelRequest) {
	t.Helper()
	turn := Said(t, model.Stream(t.Context(), req))
	results := events.Message{Role: events.RoleTool}
	for _, p := range turn.Parts {
		if p.Type == events.PartToolCall {
			results.Parts = append(results.Parts, events.Part{
				Type: events.PartToolResult, ToolCallID: p.ToolCallID, ToolName: p.ToolName,
				Output: &events.ModelOutput{Type: events.OutputJSON, Value: json.RawMessage(`{"t":20}`)},
			})
		}
	}
	if len(results.Parts) != 3 || turn.Text() != "Let me look at both." {
		t.Fatalf("said %+v", turn)
	}
	req.Messages = append(req.Messages, turn, results)
	got := Collect(t, model.Stream(t.Context(), req))
	if got.Err != nil || got.Text != "Rome is warmer." || len(got.Warnings) > 0 {
		t.Errorf("got %+v", got)
	}
	if got.Usage != (events.Usage{InputTokens: 77, OutputTokens: 5, TotalTokens: 82}) {
		t.Errorf("usage %+v", got.Usage)
	}
	last := m.LastMessages(t)
	if err := Pairing(last); err != nil || len(last) != 5 {
		t.Fatalf("the request has %d messages, pairing: %v", len(last), err)
	}
	for i, want := range []string{`{"city":"Rome"}`, `{"city":"Oslo, <Norway> & \"fjords\""}`, `{}`} {
		if got := last[1].Calls[i].Args; got != want {
			t.Errorf("arguments %d = %s, want %s", i, got, want)
		}
	}
}

// Mocked is how an adapter is driven against the mock.
type Mocked struct {
	Model, Options string // that it asks for, and the options for its provider
	Overload       int    // status of a provider that is overloaded
	CutCall        bool   // the connection that is lost is lost in a call; else in a text
}

func (m Mocked) request(prompt string) agent.ModelRequest {
	return agent.ModelRequest{
		Model: m.Model, Instructions: "Be brief.", Messages: []events.Message{events.TextMessage(events.RoleUser, prompt)},
		Tools: []agent.ModelTool{
			{Name: "get_weather", Description: "The weather", InputSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}}}`)},
			{Name: "now"},
		},
		ProviderOptions: json.RawMessage(m.Options),
	}
}

// Failed is the error of a model that is asked for something by its prompt, and what it said before.
func (m Mocked) Failed(t *testing.T, model agent.Model, prompt string) (*agent.ModelError, Turn) {
	t.Helper()
	got := Collect(t, model.Stream(t.Context(), m.request(prompt)))
	e, ok := errors.AsType[*agent.ModelError](got.Err)
	if !ok {
		t.Fatalf("got %+v", got)
	}
	return e, got
}

// Drive asks a model of the mock for a text, calls, what breaks off, refusals and what the limit cuts. It returns the turn of the
// text.
func (m Mock) Drive(t *testing.T, model agent.Model, by Mocked) Turn {
	t.Helper()
	ask := func(prompt string) Turn { return Collect(t, model.Stream(t.Context(), by.request(prompt))) }
	text := ask("Hello")
	if text.Err != nil || text.Text != "Hello there! How can I help you?" || text.Reason != agent.FinishStop {
		t.Errorf("text: got %+v", text)
	}
	if text.Reasoning != "A greeting. Answer in kind." || text.Usage.InputTokens != 12 || text.Usage.OutputTokens != 8 {
		t.Errorf("text: got %+v", text)
	}
	t.Run("parallel calls", func(t *testing.T) { m.Calls(t, model, by.request("Compare the weather.")) })
	e, cut := by.Failed(t, model, "Cut")
	if !e.Retryable || by.CutCall && (len(cut.Calls) != 1 || cut.Calls[0].Ended) || !by.CutCall && cut.Text == "" {
		t.Errorf("a connection that is lost: got %+v", cut)
	}
	if e, _ := by.Failed(t, model, "Busy"); !e.Retryable || e.Status != 429 || e.After != 7*time.Second {
		t.Errorf("busy: %+v", e)
	}
	if e, _ := by.Failed(t, model, "Overload"); !e.Retryable || e.Status != by.Overload {
		t.Errorf("overload: %+v", e)
	}
	if got := ask("Long"); got.Err != nil || got.Reason != agent.FinishLength {
		t.Errorf("the limit: got %+v", got)
	}
	return text
}

package anthropic_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/anthropic"
	"github.com/weirkeeper/weir/services/models/modeltest"
)

const testKey = "sk-ant-api03-abcDEF0123456789"

func TestConformance(t *testing.T) {
	t.Parallel()
	modeltest.Exercise(t, modeltest.Provider{Serve: serve, Secret: testKey, ResultMedia: true})
}

// serve is a server that speaks the Messages API.
func serve(t *testing.T, asked *modeltest.Log, replies ...modeltest.Reply) agent.Model {
	t.Helper()
	server := modeltest.Server{Check: check, Read: readRequest, ContentType: "text/event-stream; charset=utf-8", Answer: answer, Refuse: refuse}
	return newClient(t, server.Handler(t, asked, replies...), anthropic.Config{APIKey: testKey})
}

func check(t *testing.T, r *http.Request) {
	t.Helper()
	if r.Header.Get("X-Api-Key") != testKey || r.Header.Get("Anthropic-Version") != "2023-06-01" || r.URL.Path != "/v1/messages" {
		t.Errorf("%s with %v", r.URL, r.Header)
	}
}

// newClient is a client of a server in this process.
func newClient(t *testing.T, handler http.HandlerFunc, cfg anthropic.Config) *anthropic.Client {
	t.Helper()
	cfg.HTTP = &http.Client{Transport: modeltest.Transport(handler)}
	if cfg.BaseURL == "" {
		cfg.BaseURL = "https://models.example.com/v1"
	}
	c, err := anthropic.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refuse(w http.ResponseWriter, r modeltest.Reply) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", strconv.Itoa(int(r.RetryAfter.Seconds())))
	w.WriteHeader(r.Status)
	body, _ := json.Marshal(map[string]any{"type": "error", "error": map[string]any{"type": "some_error", "message": r.Message}})
	_, _ = w.Write(body)
}

// answer streams a reply.
func answer(w io.Writer, req *http.Request, r modeltest.Reply) {
	send := func(kind string, e map[string]any) {
		e["type"] = kind
		data, _ := json.Marshal(e)
		_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, data)
	}
	send("message_start", map[string]any{"message": map[string]any{
		"id": "msg_1", "type": "message", "role": "assistant", "content": []any{}, "stop_reason": nil,
		"usage": map[string]any{"input_tokens": r.Usage.InputTokens, "output_tokens": 1},
	}})
	index := 0
	write := func(start map[string]any, kind, field string, pieces []string, stop bool) {
		send("content_block_start", map[string]any{"index": index, "content_block": start})
		for _, p := range pieces {
			send("content_block_delta", map[string]any{"index": index, "delta": map[string]any{"type": kind, field: p}})
		}
		if stop {
			if start["type"] == "thinking" {
				send("content_block_delta", map[string]any{"index": index, "delta": map[string]any{"type": "signature_delta", "signature": "sig"}})
			}
			send("content_block_stop", map[string]any{"index": index})
		}
		index++
	}
	if len(r.Reasoning) > 0 {
		write(map[string]any{"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking", r.Reasoning, true)
	}
	if len(r.Text) > 0 {
		write(map[string]any{"type": "text", "text": ""}, "text_delta", "text", r.Text, true)
	}
	for i, c := range r.Calls {
		whole := i < len(r.Calls)-1 || r.End == modeltest.EndWhole || r.End == modeltest.EndLimit
		write(map[string]any{"type": "tool_use", "id": c.ID, "name": c.Name, "input": map[string]any{}}, "input_json_delta", "partial_json", c.Args, whole)
	}
	switch r.End {
	case modeltest.EndLost:
		panic(http.ErrAbortHandler)
	case modeltest.EndSilent:
		<-req.Context().Done()
		return
	default:
	}
	send("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": reasonOf(r), "stop_sequence": nil}, "usage": map[string]any{"output_tokens": r.Usage.OutputTokens},
	})
	send("message_stop", map[string]any{})
}

func reasonOf(r modeltest.Reply) string {
	switch {
	case r.Finish == agent.FinishLength:
		return "max_tokens"
	case len(r.Calls) > 0:
		return "tool_use"
	default:
		return "end_turn"
	}
}

// sentBlock is a block of a request.
type sentBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   any             `json:"content"`
	IsError   bool            `json:"is_error"`
}

type sentMessage struct {
	Role    events.Role `json:"role"`
	Content []sentBlock `json:"content"`
}

// readRequest reads a request as the provider does, and fails the test for what the provider would refuse.
func readRequest(t *testing.T, raw []byte) modeltest.Request {
	t.Helper()
	var in struct {
		Stream    bool          `json:"stream"`
		MaxTokens int           `json:"max_tokens"`
		System    []sentBlock   `json:"system"`
		Messages  []sentMessage `json:"messages"`
		Tools     []struct {
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"input_schema"`
		} `json:"tools"`
		Choice struct{ Type, Name string } `json:"tool_choice"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		t.Errorf("the request is not JSON: %v\n%s", err, raw)
	}
	if !in.Stream || in.MaxTokens <= 0 {
		t.Errorf("the request asks for no stream, or has no limit: %s", raw)
	}
	out := modeltest.Request{Body: string(raw), Choice: in.Choice.Type}
	switch in.Choice.Type {
	case "any":
		out.Choice = "required"
	case "tool":
		out.Choice = "tool:" + in.Choice.Name
	}
	for _, b := range in.System {
		out.System += b.Text
	}
	for i, m := range in.Messages {
		if len(m.Content) == 0 || i > 0 && in.Messages[i-1].Role == m.Role {
			t.Errorf("message %d is empty, or of the role of the one before: %s", i, raw)
		}
		out.Messages = append(out.Messages, readMessage(t, m)...)
	}
	for _, tool := range in.Tools {
		out.Tools = append(out.Tools, modeltest.Tool{Name: tool.Name, Schema: tool.Schema})
	}
	return out
}

// readMessage is a message in no provider's form: results come first and are messages of their own.
func readMessage(t *testing.T, m sentMessage) []modeltest.Message {
	t.Helper()
	var out []modeltest.Message
	said := modeltest.Message{Role: m.Role}
	for i, b := range m.Content {
		switch b.Type {
		case "text":
			if strings.TrimSpace(b.Text) == "" {
				t.Error("a text is blank")
			}
			said.Text += b.Text
		case "tool_use":
			said.Calls = append(said.Calls, modeltest.AskedCall{ID: b.ID, Name: b.Name, Args: string(b.Input)})
		case "tool_result":
			if i > len(out) {
				t.Error("a result comes after something else")
			}
			text, isText := b.Content.(string)
			if list, _ := b.Content.([]any); !isText {
				for _, one := range list {
					part, _ := one.(map[string]any)["text"].(string)
					text += part
				}
			}
			out = append(out, modeltest.Message{Role: events.RoleTool, Text: text, Result: b.ToolUseID})
		case "thinking":
			if b.Signature == "" {
				t.Error("thinking without a signature")
			}
		}
	}
	if said.Text != "" || len(said.Calls) > 0 {
		out = append(out, said)
	}
	return out
}

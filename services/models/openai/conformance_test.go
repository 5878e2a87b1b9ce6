package openai_test

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
	"github.com/weirkeeper/weir/services/models/modeltest"
	"github.com/weirkeeper/weir/services/models/openai"
)

const testKey = "sk-proj-abcDEF0123456789"

func TestConformance(t *testing.T) {
	t.Parallel()
	modeltest.Exercise(t, modeltest.Provider{Serve: serve, Secret: testKey})
}

// serve is a server that speaks Chat Completions as OpenAI does.
func serve(t *testing.T, asked *modeltest.Log, replies ...modeltest.Reply) agent.Model {
	t.Helper()
	server := modeltest.Server{Check: check, Read: readRequest, ContentType: "text/event-stream; charset=utf-8", Answer: answer, Refuse: refuse}
	return newClient(t, server.Handler(t, asked, replies...), openai.Config{APIKey: testKey})
}

func check(t *testing.T, r *http.Request) {
	t.Helper()
	if got := r.Header.Get("Authorization"); got != "Bearer "+testKey {
		t.Errorf("authorization = %q", got)
	}
}

// newClient is a client of a server in this process.
func newClient(t *testing.T, handler http.HandlerFunc, cfg openai.Config) *openai.Client {
	t.Helper()
	cfg.HTTP = &http.Client{Transport: modeltest.Transport(handler)}
	if cfg.BaseURL == "" {
		cfg.BaseURL = "https://models.example.com/v1"
	}
	c, err := openai.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refuse(w http.ResponseWriter, r modeltest.Reply) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", strconv.Itoa(int(r.RetryAfter.Seconds())))
	w.WriteHeader(r.Status)
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": r.Message, "param": nil}})
	_, _ = w.Write(body)
}

// answer streams a reply.
func answer(w io.Writer, req *http.Request, r modeltest.Reply) {
	send := func(delta map[string]any, reason any) {
		frame, _ := json.Marshal(map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "test-1", "choices": []any{
			map[string]any{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": nil},
		}})
		_, _ = fmt.Fprintf(w, "data: %s\n\n", frame)
	}
	send(map[string]any{"role": "assistant", "content": nil}, nil)
	for _, s := range r.Reasoning {
		send(map[string]any{"reasoning_content": s}, nil)
	}
	for _, s := range r.Text {
		send(map[string]any{"content": s}, nil)
	}
	for i, c := range r.Calls {
		call := func(m map[string]any) {
			m["index"] = i
			send(map[string]any{"tool_calls": []any{m}}, nil)
		}
		call(map[string]any{"id": c.ID, "type": "function", "function": map[string]any{"name": c.Name, "arguments": ""}})
		for _, s := range c.Args {
			call(map[string]any{"function": map[string]any{"arguments": s}})
		}
	}
	switch r.End {
	case modeltest.EndLost:
		panic(http.ErrAbortHandler)
	case modeltest.EndSilent:
		<-req.Context().Done()
		return
	default:
	}
	send(map[string]any{}, reasonOf(r))
	_, _ = fmt.Fprintf(w, `data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`+"\n\ndata: [DONE]\n\n",
		r.Usage.InputTokens, r.Usage.OutputTokens, r.Usage.TotalTokens)
}

func reasonOf(r modeltest.Reply) string {
	switch {
	case r.Finish != "":
		return strings.ReplaceAll(string(r.Finish), "-", "_")
	case len(r.Calls) > 0:
		return "tool_calls"
	default:
		return "stop"
	}
}

// readRequest reads a request as the provider does, and fails the test for what the provider would refuse.
func readRequest(t *testing.T, raw []byte) modeltest.Request {
	t.Helper()
	var in struct {
		Stream        bool            `json:"stream"`
		StreamOptions map[string]bool `json:"stream_options"`
		Messages      []struct {
			Role       events.Role `json:"role"`
			Content    any         `json:"content"`
			ToolCallID string      `json:"tool_call_id"`
			ToolCalls  []struct {
				ID, Type string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		} `json:"messages"`
		Tools []struct {
			Type     string
			Function struct {
				Name       string
				Parameters json.RawMessage
			}
		} `json:"tools"`
		ToolChoice any `json:"tool_choice"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		t.Errorf("the request is not JSON: %v\n%s", err, raw)
	}
	if !in.Stream || !in.StreamOptions["include_usage"] {
		t.Errorf("the request asks for no stream with usage: %s", raw)
	}
	out := modeltest.Request{Body: string(raw), Choice: choiceOf(in.ToolChoice)}
	for _, m := range in.Messages {
		text, _ := m.Content.(string)
		if m.Role == events.RoleSystem {
			out.System += text
			continue
		}
		msg := modeltest.Message{Role: m.Role, Text: text, Result: m.ToolCallID}
		for _, c := range m.ToolCalls {
			msg.Calls = append(msg.Calls, modeltest.AskedCall{ID: c.ID, Name: c.Function.Name, Args: c.Function.Arguments})
		}
		out.Messages = append(out.Messages, msg)
	}
	for _, tool := range in.Tools {
		out.Tools = append(out.Tools, modeltest.Tool{Name: tool.Function.Name, Schema: tool.Function.Parameters})
	}
	return out
}

func choiceOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case map[string]any:
		function, _ := v["function"].(map[string]any)
		name, _ := function["name"].(string)
		return "tool:" + name
	default:
		return ""
	}
}

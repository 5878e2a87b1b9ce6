package models_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models"
	"github.com/weirkeeper/weir/services/models/modeltest"
)

const key = "sk-test-0123456789"

func registry(t *testing.T, cfg map[string]models.ModelConfig) *models.Registry {
	t.Helper()
	r, err := models.New(models.Config{Models: cfg})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestB22_9ModelFindsProviders(t *testing.T) {
	t.Parallel()
	r := registry(t, map[string]models.ModelConfig{
		"openai":         {APIKey: key},
		"anthropic":      {APIKey: key},
		"google":         {APIKey: key},
		"claude":         {Provider: "anthropic", BaseURL: "https://proxy.example.com/anthropic/v1"},
		"openai/special": {APIKey: key, Model: "gpt-5-2025-08-07", BaseURL: "https://eu.example.com/v1"},
		"local":          {Provider: "openai-compatible", BaseURL: "http://127.0.0.1:1/v1"},
		"story/tale":     {Provider: "scripted", Playbook: json.RawMessage(`{"rules":[{"say":"Once upon a time."}]}`)},
	})
	for id, want := range map[string]struct{ name, model string }{
		"openai/gpt-5":        {"gpt-5", "openai client of api.openai.com"},
		"openai/special":      {"gpt-5-2025-08-07", "openai client of eu.example.com"},
		"local/qwen/qwen3:8b": {"qwen/qwen3:8b", "openai client of 127.0.0.1:1"},
		"ollama/llama3.2":     {"llama3.2", "openai client of 127.0.0.1:11434"},
		"vllm/Qwen/Qwen3-8B":  {"Qwen/Qwen3-8B", "openai client of 127.0.0.1:8000"},
		"llama.cpp/any":       {"any", "openai client of 127.0.0.1:8080"},
		"anthropic/claude-4":  {"claude-4", "anthropic client of api.anthropic.com"},
		"google/gemini-3":     {"gemini-3", "google client of generativelanguage.googleapis.com"},
		"claude/opus":         {"opus", "anthropic client of proxy.example.com"},
		"scripted/support":    {"support", ""},
		"scripted/bench":      {"bench", ""},
		"story/tale":          {"tale", ""},
	} {
		m, name, err := r.Model(id)
		if err != nil || name != want.name || want.model != "" && fmt.Sprint(m) != want.model {
			t.Errorf("Model(%s) = %v, %q, %v, want %+v", id, m, name, err, want)
		}
		if again, _, _ := r.Model(id); again != m {
			t.Errorf("Model(%s) makes another model each time", id)
		}
	}
}

func TestModelRefuses(t *testing.T) {
	t.Parallel()
	r := registry(t, map[string]models.ModelConfig{
		"openai-compatible": {APIKey: key}, "bad": {Provider: "vllm", BaseURL: "127.0.0.1", APIKey: key},
		"scripted/broken": {Playbook: json.RawMessage(`{"rules":[{}]}`)},
	})
	for id, want := range map[string]string{
		"gpt-5": "<provider>/<model>", "": "<provider>/<model>", "openai/": "<provider>/<model>", "/gpt": "<provider>/<model>",
		"openai/gpt-5": "needs an API key", "xai/grok-4": "needs an API key", "anthropic/claude-4": "needs an API key", "google/gemini-3": "needs an API key", "acme/one": `no provider "acme"`,
		"openai-compatible/x": "needs a base URL", "bad/x": "base URL must be", "scripted/unknown": "bench, support",
		"scripted/broken": "rule 1",
	} {
		_, _, err := r.Model(id)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), key) {
			t.Errorf("Model(%q) = %v, want %q in it", id, err, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for id, cfg := range map[string]models.ModelConfig{
		"": {}, "/x": {Provider: "openai"}, "openai/": {}, "acme": {}, "acme/x": {Provider: "nobody", APIKey: key},
	} {
		if _, err := models.New(models.Config{Models: map[string]models.ModelConfig{id: cfg}}); err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("New with %q: %v", id, err)
		}
	}
}

func TestB22_11ConfigPrintsNoSecret(t *testing.T) {
	t.Parallel()
	cfg := models.ModelConfig{Provider: "openai", Model: "gpt-5", APIKey: key, Headers: map[string]string{"X": "header-" + key}}
	var printed bytes.Buffer
	slog.New(slog.NewTextHandler(&printed, nil)).Info("start", "model", cfg, "all", models.Config{Models: map[string]models.ModelConfig{"openai": cfg}})
	raw, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%v %+v %#v %s %s", cfg, cfg, cfg, raw, printed.String())
	if strings.Contains(text, key) || !strings.Contains(text, "openai/gpt-5") {
		t.Errorf("printed: %s", text)
	}
}

// rowTest is how a row's protocol is told apart: what it sends, and how it is answered.
type rowTest struct {
	path, key string
	sends     string // of the limit
	option    string // as it is sent; empty: reasoning_effort
	answer    string
}

func rowTestOf(name string) rowTest {
	switch name {
	case "anthropic":
		return rowTest{
			path: "/messages", key: "X-Api-Key", sends: `"max_tokens":9`,
			answer: `data: {"type":"content_block_start","content_block":{"type":"text","text":"Hi."}}` + "\n\n" +
				`data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}` + "\n\n" + `data: {"type":"message_stop"}` + "\n\n",
		}
	case "google":
		return rowTest{
			path: "/some/model:streamGenerateContent", key: "X-Goog-Api-Key", sends: `"maxOutputTokens":9`, option: `"reasoningEffort":"low"`,
			answer: `data: {"candidates":[{"content":{"parts":[{"text":"Hi."}]},"finishReason":"STOP"}]}` + "\n\n",
		}
	case "openai":
		return rowTest{
			path: "/responses", key: "Authorization", sends: `"max_output_tokens":9`,
			answer: `data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"Hi."}` + "\n\n" +
				`data: {"type":"response.completed","response":{"status":"completed"}}` + "\n\n",
		}
	case "openai-chat", "xai":
		return rowTest{path: "/chat/completions", key: "Authorization", sends: `"max_completion_tokens":9`, answer: chatAnswer}
	default:
		return rowTest{path: "/chat/completions", key: "Authorization", sends: `"max_tokens":9`, answer: chatAnswer}
	}
}

const chatAnswer = `data: {"choices":[{"delta":{"content":"Hi."},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"

// TestRowsWork asks each provider of the table that has an address of its own, at another address.
func TestRowsWork(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(models.Providers)) {
		if name == "scripted" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row := rowTestOf(name)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || r.URL.Path != row.path || !strings.HasSuffix(r.Header.Get(row.key), key) {
					t.Errorf("%s with %v, %v", r.URL, r.Header, err)
				}
				for _, want := range []string{"some/model", row.sends, cmp.Or(row.option, `"reasoning_effort":"low"`)} {
					if text := r.URL.Path + string(body); !strings.Contains(text, want) {
						t.Errorf("%s is not in %s", want, text)
					}
				}
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, row.answer)
			}))
			defer server.Close()
			m, model, err := registry(t, map[string]models.ModelConfig{name: {BaseURL: server.URL, APIKey: key}}).Model(name + "/some/model")
			if err != nil {
				t.Fatal(err)
			}
			turn := modeltest.Collect(t, m.Stream(t.Context(), agent.ModelRequest{
				Model: model, Messages: []events.Message{events.TextMessage(events.RoleUser, "Hello")},
				Settings:        json.RawMessage(`{"maxOutputTokens":9}`),
				ProviderOptions: json.RawMessage(`{"` + name + `":{"reasoningEffort":"low"}}`),
			}))
			if turn.Err != nil || turn.Text != "Hi." {
				t.Errorf("got %+v", turn)
			}
		})
	}
}

func Example() {
	r, err := models.New(models.Config{Models: map[string]models.ModelConfig{
		"tales": {Provider: "scripted", Playbook: json.RawMessage(`{"rules":[{"say":"Once upon a time."}]}`)},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	model, name, err := r.Model("tales/short")
	if err != nil {
		fmt.Println(err)
		return
	}
	request := agent.ModelRequest{Model: name, Messages: []events.Message{events.TextMessage(events.RoleUser, "A story, please.")}}
	for part, err := range model.Stream(context.Background(), request) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(part.Text)
	}
	// Output: Once upon a time.
}

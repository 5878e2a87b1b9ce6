package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/modeltest"
	"github.com/weirkeeper/weir/services/models/openai"
)

var update = flag.Bool("update", false, "write the expected parts of the stories again")

// TestB22_5RecordedStreams plays what servers of this protocol stream.
func TestB22_5RecordedStreams(t *testing.T) {
	t.Parallel()
	modeltest.Recordings(t, *update, func(t *testing.T, provider http.HandlerFunc) agent.Model {
		t.Helper()
		return newClient(t, provider, openai.Config{APIKey: testKey})
	})
}

// hello is the smallest request.
func hello() agent.ModelRequest {
	return agent.ModelRequest{Model: "test-1", Messages: []events.Message{events.TextMessage(events.RoleUser, "Hello")}}
}

// says answers with a body.
func says(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

const done = `data: {"choices":[{"index":0,"delta":{"content":"Hi."},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"

// body is what a request holds.
func body(t *testing.T, req agent.ModelRequest, cfg openai.Config) (map[string]any, []string) {
	t.Helper()
	var got map[string]any
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		says("text/event-stream", done)(w, r)
	}, cfg)
	turn := modeltest.Collect(t, c.Stream(t.Context(), req))
	if turn.Err != nil {
		t.Fatal(turn.Err)
	}
	return got, turn.Warnings
}

func modelError(t *testing.T, turn modeltest.Turn) *agent.ModelError {
	t.Helper()
	e, ok := errors.AsType[*agent.ModelError](turn.Err)
	if !ok {
		t.Fatalf("the turn ended in %v, want a ModelError", turn.Err)
	}
	return e
}

// TestOverSockets is the twin of the in-process tests: a real server, a real connection, headers as they are sent.
func TestOverSockets(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/base/v1/chat/completions" || r.URL.RawQuery != "api-version=7" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		for name, want := range map[string]string{
			"Authorization": "Bearer " + testKey, "X-Team": "tools", "Content-Type": "application/json",
			"Accept": "text/event-stream", "Idempotency-Key": "r1-1",
		} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		says("text/event-stream", done)(w, r)
	}))
	defer server.Close()
	c, err := openai.New(openai.Config{
		BaseURL: server.URL + "/base/v1/?api-version=7", APIKey: testKey, Headers: map[string]string{"X-Team": "tools"},
	})
	if err != nil {
		t.Fatal(err)
	}
	req := hello()
	req.IdempotencyKey = "r1-1"
	for range 2 {
		got := modeltest.Collect(t, c.Stream(t.Context(), req))
		if got.Err != nil || got.Text != "Hi." {
			t.Errorf("got %+v", got)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	c, err := openai.New(openai.Config{BaseURL: strings.Replace(server.URL, "http://", "http://me:secret-word@", 1) + "?key=secret-word", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	e := modelError(t, modeltest.Collect(t, c.Stream(t.Context(), hello())))
	if !e.Retryable || e.Status != 0 {
		t.Errorf("got %+v", e)
	}
	if strings.Contains(e.Error(), "secret-word") || strings.Contains(fmt.Sprintf("%v %+v %#v %s", c, c, c, e), testKey) {
		t.Errorf("a secret shows: %v %#v", e, c)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "models.example.com", "ftp://models.example.com", "http://", "http://%zz", "https://me:pw@:%"} {
		if _, err := openai.New(openai.Config{BaseURL: url}); err == nil || url != "" && strings.Contains(err.Error(), "pw") {
			t.Errorf("New(%q) = %v, want an error that does not quote it", url, err)
		}
	}
}

// TestCase_STRM4 is a server that keeps the connection and says nothing more: silence has a limit, comments do not
// count as silence, and the time that a reader takes does not either.
func TestCase_STRM4(t *testing.T) {
	t.Parallel()
	t.Run("comments", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for range 20 {
					_, _ = io.WriteString(w, ": still here\n\n")
					time.Sleep(50 * time.Second) // fake
				}
				_, _ = io.WriteString(w, done)
			}, openai.Config{})
			if got := modeltest.Collect(t, c.Stream(t.Context(), hello())); got.Err != nil || got.Text != "Hi." {
				t.Errorf("got %+v", got)
			}
		})
	})
	t.Run("slow reader", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":"Oh. "}}]}`+"\n\n")
				_, _ = io.WriteString(w, done)
			}, openai.Config{})
			for _, err := range c.Stream(t.Context(), hello()) {
				if err != nil {
					t.Error(err)
				}
				time.Sleep(time.Hour) // fake
			}
		})
	})
	t.Run("own limit", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			c := newClient(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, openai.Config{Idle: 5 * time.Second})
			e := modelError(t, modeltest.Collect(t, c.Stream(t.Context(), hello())))
			if !e.Retryable || time.Since(start) != 5*time.Second {
				t.Errorf("got %v after %v", e, time.Since(start))
			}
		})
	})
}

// TestStopEndsRequest shows that a server learns when nobody reads any more.
func TestStopEndsRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := false
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":"Oh. "}}]}`+"\n\n")
			<-r.Context().Done()
			ended = true
		}, openai.Config{})
		for _, err := range c.Stream(t.Context(), hello()) {
			if err != nil {
				t.Error(err)
			}
			break
		}
		synctest.Wait()
		if !ended {
			t.Error("the request goes on")
		}
	})
}

func TestCancelIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, openai.Config{})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("the run's time is over"))
		defer cancel()
		got := modeltest.Collect(t, c.Stream(ctx, hello()))
		if _, ok := errors.AsType[*agent.ModelError](got.Err); ok || got.Err == nil || got.Err.Error() != "the run's time is over" {
			t.Errorf("got %v", got.Err)
		}
	})
}

// TestB22_6Refusals is what statuses alone do not tell.
func TestB22_6Refusals(t *testing.T) {
	t.Parallel()
	date := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	for name, test := range map[string]struct {
		status    int
		header    [2]string
		body      string
		retryable bool
		after     time.Duration
		text      string
	}{
		"quota":        {429, [2]string{}, `{"error":{"message":"You exceeded your current quota.","type":"insufficient_quota","code":"insufficient_quota"}}`, false, 0, "exceeded your current quota"},
		"told not to":  {500, [2]string{"x-should-retry", "false"}, `{"error":{"message":"no"}}`, false, 0, "no"},
		"milliseconds": {429, [2]string{"retry-after-ms", "1500"}, `{"error":"slow down"}`, true, 1500 * time.Millisecond, "slow down"},
		"seconds":      {503, [2]string{"Retry-After", "2.5"}, `{"detail":"loading"}`, true, 2500 * time.Millisecond, "loading"},
		"a date":       {503, [2]string{"Retry-After", date}, ``, true, time.Hour, "gave no reason"},
		"nonsense":     {503, [2]string{"Retry-After", "soon"}, `plain text`, true, 0, "plain text"},
		"a web page":   {502, [2]string{"Content-Type", "text/html"}, `<html><h1>Bad gateway</h1></html>`, true, 0, "gave no reason"},
		"a list":       {400, [2]string{}, `[{"error":{"code":400,"message":"API key not valid","status":"INVALID_ARGUMENT"}}]`, false, 0, "API key not valid"},
		"a redirect":   {307, [2]string{"Location", "https://elsewhere.example.com/"}, ``, false, 0, "check the base URL"},
		"no content":   {204, [2]string{}, ``, false, 0, "check the base URL"},
		"many lines":   {400, [2]string{}, `{"error":{"message":"a\n\u001b[31mb` + strings.Repeat("c", 1000) + `"}}`, false, 0, "a [31mbc"},
	} {
		c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
			if test.header[0] != "" {
				w.Header().Set(test.header[0], test.header[1])
			}
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.body)
		}, openai.Config{})
		e := modelError(t, modeltest.Collect(t, c.Stream(t.Context(), hello())))
		if e.Retryable != test.retryable || e.Status != test.status || e.After.Round(10*time.Second) != test.after.Round(10*time.Second) {
			t.Errorf("%s: got %+v", name, e)
		}
		if text := e.Error(); !strings.Contains(text, test.text) || len(text) > 400 || strings.ContainsAny(text, "\n\x1b") {
			t.Errorf("%s: error %q, want %q in it", name, text, test.text)
		}
	}
}

func TestB22_11KeysAreCutOut(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"error":{"message":"Incorrect API key provided: sk-proj-ab*********6789. See your account."}}`,
		`{"error":{"message":"bad header X-Secret: other-secret-value"}}`,
		`{"error":{"message":"got Bearer ` + testKey + `"}}`,
		`{"error":{"message":"xai-AbCdEf123456 is not a key"}}`,
	} {
		c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, body)
		}, openai.Config{APIKey: testKey, Headers: map[string]string{"X-Secret": "other-secret-value"}})
		text := modelError(t, modeltest.Collect(t, c.Stream(t.Context(), hello()))).Error()
		if !strings.Contains(text, "[secret]") || strings.Contains(text, "6789") || strings.Contains(text, "other-secret") || strings.Contains(text, "AbCdEf") {
			t.Errorf("%s gives %q", body, text)
		}
	}
}

// TestBrokenBytes are streams that no recording in a text file can hold.
func TestBrokenBytes(t *testing.T) {
	t.Parallel()
	delta := func(s string) string { return `data: {"choices":[{"delta":{"content":"` + s + `"}}]}` + "\n\n" }
	for name, test := range map[string]struct {
		kind, body string
		retryable  bool
		text       string
	}{
		"not UTF-8":     {"text/event-stream", delta("caf\xe9") + done, true, "UTF-8"},
		"endless line":  {"text/event-stream", "data: " + strings.Repeat("x", 9<<20), false, "too large"},
		"endless event": {"text/event-stream", strings.Repeat("data: "+strings.Repeat("x", 1<<20)+"\n", 9), false, "too large"},
		"endless turn":  {"text/event-stream", strings.Repeat(delta(strings.Repeat("x", 1<<20)), 17), false, "too large"},
		"endless json":  {"application/json", strings.Repeat(" ", 9<<20), false, "too large"},
		"nothing":       {"text/event-stream", "", true, "ended before"},
		"blank lines":   {"text/event-stream", "\n\n\r\n:\n\n", true, "ended before"},
		"a web page":    {"text/html; charset=utf-8", "<html>Sign in</html>", false, "web page"},
		"cut json":      {"application/json", `{"choices":[{"message":{"content":"Hi`, true, "not as expected"},
	} {
		c := newClient(t, says(test.kind, test.body), openai.Config{})
		e := modelError(t, modeltest.Collect(t, c.Stream(t.Context(), hello())))
		if e.Retryable != test.retryable || !strings.Contains(e.Error(), test.text) {
			t.Errorf("%s: got retryable=%v %v", name, e.Retryable, e)
		}
	}
}

func TestHugeLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789", 200_000)
	c := newClient(t, says("text/event-stream", `data: {"choices":[{"delta":{"content":"`+long+`"}}]}`+"\n\n"+done), openai.Config{})
	if got := modeltest.Collect(t, c.Stream(t.Context(), hello())); got.Err != nil || got.Text != long+"Hi." {
		t.Errorf("got %d bytes, %v", len(got.Text), got.Err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Settings = json.RawMessage(`{"temperature":0.2,"topP":0.9,"topK":40,"maxOutputTokens":500,"seed":9007199254740993,
		"stopSequences":["END"],"presencePenalty":null,"maxRetries":3,"headers":{"x":"y"}}`)
	req.ProviderOptions = json.RawMessage(`{"openai":{"reasoningEffort":"low","parallel_tool_calls":false,"model":"other","stream":false},
		"anthropic":{"thinking":{}}}`)
	got, warnings := body(t, req, openai.Config{Dialect: openai.Dialect{MaxTokens: "max_completion_tokens", NoTopK: true}})
	want := map[string]any{
		"model": "test-1", "stream": true, "stream_options": map[string]any{"include_usage": true},
		"messages":    []any{map[string]any{"role": "user", "content": "Hello"}},
		"temperature": 0.2, "top_p": 0.9, "max_completion_tokens": 500.0, "seed": 9007199254740993.0, "stop": []any{"END"},
		"reasoning_effort": "low", "parallel_tool_calls": false,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if text := strings.Join(warnings, "\n"); len(warnings) != 5 || !strings.Contains(text, "topK") || !strings.Contains(text, "headers") ||
		!strings.Contains(text, `"model"`) {
		t.Errorf("warnings:\n%s", text)
	}

	got, _ = body(t, req, openai.Config{Provider: "vllm", Dialect: openai.Dialect{NoStreamOptions: true}})
	if got["max_tokens"] != 500.0 || got["top_k"] != 40.0 || got["reasoning_effort"] != nil || got["stream_options"] != nil {
		t.Errorf("another dialect sends %v", got)
	}
	for _, bad := range []string{`[1]`, `{`, `"low"`} {
		req := hello()
		req.Settings = json.RawMessage(bad)
		c := newClient(t, says("text/event-stream", done), openai.Config{})
		e := modelError(t, modeltest.Collect(t, c.Stream(t.Context(), req)))
		if e.Retryable || events.CodeOf(e) != events.CodeInvalidRequest {
			t.Errorf("settings %s give %v", bad, e)
		}
	}
}

// TestB15_16SearchOptions: a server is told to search the web by an option, which options for this provider may fill in; it is
// no tool, and with the choice "none" it is not told.
func TestB15_16SearchOptions(t *testing.T) {
	t.Parallel()
	req := hello()
	if got, _ := body(t, req, openai.Config{}); got["web_search_options"] != nil {
		t.Errorf("unasked: %v", got)
	}
	req.WebSearch = true
	got, _ := body(t, req, openai.Config{})
	if diff := cmp.Diff(map[string]any{}, got["web_search_options"]); diff != "" || got["tools"] != nil {
		t.Errorf("request %v", got)
	}
	req.ProviderOptions = json.RawMessage(`{"openai":{"webSearchOptions":{"search_context_size":"low"}}}`)
	got, _ = body(t, req, openai.Config{})
	if diff := cmp.Diff(map[string]any{"search_context_size": "low"}, got["web_search_options"]); diff != "" {
		t.Error(diff)
	}
	req.ProviderOptions, req.ToolChoice = nil, "none"
	if got, _ := body(t, req, openai.Config{}); got["web_search_options"] != nil {
		t.Errorf("with the choice none: %v", got)
	}
}

func TestB22_8StrictTools(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Tools = []agent.ModelTool{
		{Name: "one", Strict: true, InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`)},
		{Name: "open", Strict: true, InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"object"}}}`)},
		{Name: "list", InputSchema: json.RawMessage(`{"type":"array"}`)},
		{Name: ""},
	}
	got, warnings := body(t, req, openai.Config{Dialect: openai.Dialect{Strict: true}})
	tools, _ := json.Marshal(got["tools"])
	want := `[{"function":{"name":"one","parameters":{"additionalProperties":false,"properties":{"a":{"type":["string","null"]}},` +
		`"required":["a"],"type":"object"},"strict":true},"type":"function"},` +
		`{"function":{"name":"open","parameters":{"properties":{"a":{"type":"object"}},"type":"object"}},"type":"function"}]`
	if string(tools) != want {
		t.Errorf("tools = %s\nwant    %s", tools, want)
	}
	if len(warnings) != 3 || !strings.Contains(warnings[0], `"open" is not strict`) || !strings.Contains(warnings[1], `"list" is left out`) {
		t.Errorf("warnings = %q", warnings)
	}
	got, _ = body(t, req, openai.Config{})
	if raw, _ := json.Marshal(got["tools"]); strings.Contains(string(raw), "strict") {
		t.Errorf("a server that does not know strict gets %s", raw)
	}
}

// TestB4_4Media: pictures reach the model as parts, never as texts of base64. (SIZE-5)
func TestB4_4Media(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Messages = []events.Message{
		{Role: events.RoleUser, Parts: []events.Part{
			{Type: events.PartText, Text: "What is this?"},
			{Type: events.PartFile, MediaType: "image/png", Data: "iVBORw0KGgo="},
			{Type: events.PartFile, MediaType: "image/jpeg", URL: "https://example.com/a.jpg"},
			{Type: events.PartFile, MediaType: "audio/mpeg", Data: "SUQz"},
			{Type: events.PartFile, MediaType: "application/pdf", Data: "JVBERi0=", Filename: "a.pdf"},
		}},
		{Role: events.RoleAssistant, Parts: []events.Part{{Type: events.PartToolCall, ToolCallID: "r=1-1", ToolName: "shot", Args: "{}"}}},
		{Role: events.RoleTool, Parts: []events.Part{{
			Type: events.PartToolResult, ToolCallID: "r=1-1", ToolName: "shot",
			Output: &events.ModelOutput{Type: events.OutputContent, Value: json.RawMessage(
				`[{"type":"text","text":"The page:"},{"type":"image-data","data":"iVBORw0KGgo=","mediaType":"image/png"},` +
					`{"type":"image-url","url":"https://example.com/b.png"}]`)},
		}}},
	}
	got, warnings := body(t, req, openai.Config{})
	messages, _ := got["messages"].([]any)
	raw, _ := json.Marshal(messages[0].(map[string]any)["content"])
	want := `[{"text":"What is this?","type":"text"},{"image_url":{"url":"data:image/png;base64,iVBORw0KGgo="},"type":"image_url"},` +
		`{"image_url":{"url":"https://example.com/a.jpg"},"type":"image_url"},{"input_audio":{"data":"SUQz","format":"mp3"},"type":"input_audio"},` +
		`{"file":{"file_data":"data:application/pdf;base64,JVBERi0=","filename":"a.pdf"},"type":"file"}]`
	if string(raw) != want {
		t.Errorf("content = %s\nwant      %s", raw, want)
	}
	result := messages[2].(map[string]any)["content"]
	if result != "The page:\n[image/png not shown]\n[image-url at https://example.com/b.png not shown]" || len(warnings) != 2 {
		t.Errorf("result = %q, warnings = %q", result, warnings)
	}

	req.Messages = []events.Message{{Role: events.RoleUser, Parts: []events.Part{{Type: events.PartFile, DataRef: "sha256:00"}}}}
	c := newClient(t, says("text/event-stream", done), openai.Config{})
	if e := modelError(t, modeltest.Collect(t, c.Stream(t.Context(), req))); e.Retryable {
		t.Errorf("a file without data gives %v", e)
	}
}

// FuzzStream feeds any bytes as a stream: parts keep the rules, and a turn ends once.
func FuzzStream(f *testing.F) {
	f.Add([]byte(done))
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}}]}\n\n"))
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}}]},\"finish_reason\":1}]}\n\ndata: [DONE]"))
	f.Add([]byte("event: error\r\ndata: {}\r\n\r\n"))
	f.Add([]byte("data: {\"error\":[]}\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := newClient(t, says("text/event-stream", string(stream)), openai.Config{})
		modeltest.Collect(t, c.Stream(t.Context(), hello()))
	})
}

package anthropic_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/anthropic"
	"github.com/weirkeeper/weir/services/models/modeltest"
)

var update = flag.Bool("update", false, "write the expected parts of the stories again")

// TestB22_5RecordedStreams plays what servers of this protocol stream.
func TestB22_5RecordedStreams(t *testing.T) {
	t.Parallel()
	modeltest.Recordings(t, *update, func(t *testing.T, provider http.HandlerFunc) agent.Model {
		t.Helper()
		return newClient(t, provider, anthropic.Config{APIKey: testKey})
	})
}

// hello is the smallest request.
func hello() agent.ModelRequest {
	return agent.ModelRequest{Model: "claude-test", Messages: []events.Message{events.TextMessage(events.RoleUser, "Hello")}}
}

const done = `data: {"type":"message_start","message":{"usage":{"input_tokens":1}}}` + "\n\n" +
	`data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Hi."}}` + "\n\n" +
	`data: {"type":"content_block_stop","index":0}` + "\n\n" +
	`data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}` + "\n\n" +
	`data: {"type":"message_stop"}` + "\n\n"

// sent is what a request holds, and its header.
func sent(t *testing.T, req agent.ModelRequest) (body map[string]any, header http.Header, warnings []string) {
	t.Helper()
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, done)
	}, anthropic.Config{})
	turn := modeltest.Collect(t, c.Stream(t.Context(), req))
	if turn.Err != nil {
		t.Fatal(turn.Err)
	}
	return body, header, turn.Warnings
}

// refusedBefore is the error of a request that is not sent.
func refusedBefore(t *testing.T, req agent.ModelRequest) *agent.ModelError {
	t.Helper()
	c := newClient(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") }, anthropic.Config{})
	e, ok := errors.AsType[*agent.ModelError](modeltest.Collect(t, c.Stream(t.Context(), req)).Err)
	if !ok || e.Retryable {
		t.Errorf("got %v", e)
	}
	return e
}

// TestOverSockets is the twin of the in-process tests: a real server, a real connection.
func TestOverSockets(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/v1/messages" || r.Header.Get("X-Api-Key") != testKey || r.Header.Get("Authorization") != "" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, done)
	}))
	defer server.Close()
	c, err := anthropic.New(anthropic.Config{BaseURL: server.URL + "/v1/", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	if got := modeltest.Collect(t, c.Stream(t.Context(), hello())); got.Err != nil || got.Text != "Hi." {
		t.Errorf("got %+v", got)
	}
	if strings.Contains(fmt.Sprintf("%v %+v %#v", c, c, c), testKey) {
		t.Error("the key shows")
	}
	if _, err := anthropic.New(anthropic.Config{BaseURL: "models.example.com"}); err == nil {
		t.Error("an address without a scheme is taken")
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Instructions = "Be brief."
	req.Settings = json.RawMessage(`{"temperature":0.2,"topP":0.9,"topK":40,"maxOutputTokens":500,"stopSequences":["END"],"seed":7,"presencePenalty":null}`)
	req.ProviderOptions = json.RawMessage(`{"anthropic":{"metadata":{"userId":"u1"},"outputConfig":{"format":{"type":"json_schema","schema":{"type":"object"}}},
		"max_tokens":9,"stream":false,"anthropicBeta":["one-2026","two-2026"]},"openai":{"user":"x"}}`)
	body, header, warnings := sent(t, req)
	var got any = body
	modeltest.SameJSON(t, "request", `{"model":"claude-test","stream":true,"system":[{"type":"text","text":"Be brief."}],
		"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}],
		"temperature":0.2,"top_p":0.9,"top_k":40,"max_tokens":500,"stop_sequences":["END"],
		"metadata":{"user_id":"u1"},"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}}`, got)
	if header.Get("Anthropic-Beta") != "one-2026,two-2026" {
		t.Errorf("header %v", header)
	}
	if text := strings.Join(warnings, "\n"); len(warnings) != 3 || !strings.Contains(text, "seed") || !strings.Contains(text, "max_tokens") {
		t.Errorf("warnings:\n%s", text)
	}
	for model, want := range map[string]float64{"claude-3-haiku-20240307": 4096, "claude-3-5-haiku-latest": 8192, "claude-sonnet-4-5": 32000, "x": 32000} {
		req := hello()
		req.Model = model
		if body, _, _ := sent(t, req); body["max_tokens"] != want {
			t.Errorf("%s: the limit is %v, want %v", model, body["max_tokens"], want)
		}
	}
	for _, bad := range []string{`{"anthropic":[]}`, `{"anthropic":{"thinking":7}}`, `{"anthropic":{"anthropicBeta":"x"}}`, `[`} {
		req := hello()
		req.ProviderOptions = json.RawMessage(bad)
		if e := refusedBefore(t, req); events.CodeOf(e) != events.CodeInvalidRequest {
			t.Errorf("options %s give %v", bad, e)
		}
	}
}

// TestCacheHints: marks for the cache are made where options ask for them, and no more than the API takes.
func TestCacheHints(t *testing.T) {
	t.Parallel()
	mark := json.RawMessage(`{"anthropic":{"cacheControl":{"type":"ephemeral","ttl":"1h"}}}`)
	text := func(s string) events.Part {
		return events.Part{Type: events.PartText, Text: s, ProviderOptions: mark}
	}
	req := hello()
	req.Tools = []agent.ModelTool{{Name: "now", ProviderOptions: mark}}
	req.Messages = []events.Message{
		{Role: events.RoleSystem, Parts: []events.Part{text("Rules.")}},
		{Role: events.RoleUser, Parts: []events.Part{text("one"), text("two"), text("three")}},
	}
	body, _, warnings := sent(t, req)
	modeltest.SameJSON(t, "tools", `[{"name":"now","input_schema":{"type":"object","properties":{}},"cache_control":{"type":"ephemeral","ttl":"1h"}}]`, body["tools"])
	modeltest.SameJSON(t, "system", `[{"type":"text","text":"Rules.","cache_control":{"type":"ephemeral","ttl":"1h"}}]`, body["system"])
	modeltest.SameJSON(t, "messages", `[{"role":"user","content":[{"type":"text","text":"one","cache_control":{"type":"ephemeral","ttl":"1h"}},
		{"type":"text","text":"two","cache_control":{"type":"ephemeral","ttl":"1h"}},{"type":"text","text":"three"}]}]`, body["messages"])
	if len(warnings) != 1 || !strings.Contains(warnings[0], "only 4 marks") {
		t.Errorf("warnings %q", warnings)
	}
	req = hello()
	req.ProviderOptions = mark
	body, _, _ = sent(t, req)
	modeltest.SameJSON(t, "the whole request", `{"type":"ephemeral","ttl":"1h"}`, body["cache_control"])
}

// TestB22_7ResultsAsTheyAre: errors carry the flag, pictures and documents are shown, and what cannot be is named.
func TestB22_7ResultsAsTheyAre(t *testing.T) {
	t.Parallel()
	result := func(i int, kind, value string) events.Part {
		return events.Part{Type: events.PartToolResult, ToolCallID: fmt.Sprint(i), Output: &events.ModelOutput{Type: kind, Value: json.RawMessage(value)}}
	}
	results := []events.Part{
		result(0, events.OutputErrorText, `"no such page"`),
		result(1, events.OutputErrorText, `""`),
		result(2, events.OutputContent, `[{"type":"text","text":"The page:"},{"type":"image-data","data":"iVBO","mediaType":"image/png"},
			{"type":"image-url","url":"https://example.com/b.png"},{"type":"file-url","url":"https://example.com/c.pdf"},
			{"type":"file-data","data":"SUQz","mediaType":"audio/mpeg"}]`),
		result(3, events.OutputJSON, `{"n":1.50}`),
		result(4, events.OutputText, `" "`),
	}
	calls := make([]events.Part, len(results))
	for i := range calls {
		calls[i] = events.Part{Type: events.PartToolCall, ToolCallID: fmt.Sprint(i), ToolName: "shot", Args: "{}"}
	}
	req := hello()
	req.Messages = append(req.Messages, events.Message{Role: events.RoleAssistant, Parts: calls}, events.Message{Role: events.RoleTool, Parts: results})
	body, _, warnings := sent(t, req)
	messages, _ := body["messages"].([]any)
	blocks, _ := messages[2].(map[string]any)["content"].([]any)
	for _, b := range blocks {
		delete(b.(map[string]any), "tool_use_id")
	}
	modeltest.SameJSON(t, "results", `[{"type":"tool_result","content":"no such page","is_error":true},{"type":"tool_result","content":"error","is_error":true},
		{"type":"tool_result","content":[{"type":"text","text":"The page:"},
			{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO"}},
			{"type":"image","source":{"type":"url","url":"https://example.com/b.png"}},
			{"type":"document","source":{"type":"url","url":"https://example.com/c.pdf"}},
			{"type":"text","text":"[audio/mpeg not shown]"}]},
		{"type":"tool_result","content":"{\"n\":1.50}"},{"type":"tool_result"}]`, any(blocks))
	if len(warnings) != 1 {
		t.Errorf("warnings %q", warnings)
	}
}

// TestB4_4Media: what people attach reaches the model as pictures and documents.
func TestB4_4Media(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Messages = []events.Message{{Role: events.RoleUser, Parts: []events.Part{
		{Type: events.PartText, Text: "What is this?"},
		{Type: events.PartFile, MediaType: "image/jpg", Data: "/9j/"},
		{Type: events.PartFile, MediaType: "image/jpeg", URL: "https://example.com/a.jpg"},
		{Type: events.PartFile, MediaType: "application/pdf", Data: "JVBERi0=", Filename: "a.pdf"},
		{Type: events.PartFile, MediaType: "text/csv", Data: "YSxi", Filename: "a.csv"},
		{Type: events.PartFile, URL: "data:image/gif;base64,R0lG"},
		{Type: events.PartFile, MediaType: "audio/mpeg", Data: "SUQz"},
	}}}
	body, _, warnings := sent(t, req)
	messages, _ := body["messages"].([]any)
	modeltest.SameJSON(t, "content", `[{"type":"text","text":"What is this?"},
		{"type":"image","source":{"type":"base64","media_type":"image/jpeg","data":"/9j/"}},
		{"type":"image","source":{"type":"url","url":"https://example.com/a.jpg"}},
		{"type":"document","title":"a.pdf","source":{"type":"base64","media_type":"application/pdf","data":"JVBERi0="}},
		{"type":"document","title":"a.csv","source":{"type":"text","media_type":"text/plain","data":"a,b"}},
		{"type":"image","source":{"type":"base64","media_type":"image/gif","data":"R0lG"}},
		{"type":"text","text":"[audio/mpeg not shown]"}]`, messages[0].(map[string]any)["content"])
	if len(warnings) != 1 {
		t.Errorf("warnings %q", warnings)
	}
	req.Messages = []events.Message{{Role: events.RoleUser, Parts: []events.Part{{Type: events.PartFile, DataRef: "sha256:00"}}}}
	if e := refusedBefore(t, req); events.CodeOf(e) != events.CodeInvalidData {
		t.Errorf("a file without data gives %v", e)
	}
}

func TestB1_12_B1_13_ToolsAsTheAPIHasThem(t *testing.T) {
	t.Parallel()
	req := hello()
	req.ProviderOptions = json.RawMessage(`{"anthropic":{"disableParallelToolUse":true}}`)
	req.Tools = []agent.ModelTool{
		{
			Name: "one", Description: "One", Strict: true, InputExamples: json.RawMessage(`[{"input":{"a":"x"}}]`),
			InputSchema:     json.RawMessage(`{"type":"object","properties":{"a":{"type":"string","minLength":1},"b":{"type":"integer"}},"required":["a"]}`),
			ProviderOptions: json.RawMessage(`{"anthropic":{"deferLoading":true,"inputSchema":{}},"openai":{"x":1}}`),
		},
		{Name: "open", Strict: true, InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"object"}}}`)},
		{Name: "list", InputSchema: json.RawMessage(`{"type":"array"}`)},
	}
	body, _, warnings := sent(t, req)
	modeltest.SameJSON(t, "tools", `[{"name":"one","description":"One","strict":true,"input_examples":[{"a":"x"}],"defer_loading":true,
		"input_schema":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a"],"additionalProperties":false}},
		{"name":"open","input_schema":{"type":"object","properties":{"a":{"type":"object"}}}}]`, body["tools"])
	modeltest.SameJSON(t, "choice", `{"type":"auto","disable_parallel_tool_use":true}`, body["tool_choice"])
	if len(warnings) != 3 {
		t.Errorf("warnings %q", warnings)
	}
}

// TestB15_16WebSearch: the search is a tool of Anthropic's; with the choice "none" it is not offered.
func TestB15_16WebSearch(t *testing.T) {
	t.Parallel()
	req := hello()
	req.WebSearch = true
	body, _, _ := sent(t, req)
	modeltest.SameJSON(t, "tools", `[{"type":"web_search_20250305","name":"web_search"}]`, body["tools"])
	req.ProviderOptions = json.RawMessage(`{"anthropic":{"webSearch":{"maxUses":3,"userLocation":{"type":"approximate","city":"Rome"}}}}`)
	body, _, _ = sent(t, req)
	modeltest.SameJSON(t, "tools", `[{"type":"web_search_20250305","name":"web_search","max_uses":3,"user_location":{"type":"approximate","city":"Rome"}}]`, body["tools"])
	if body["web_search"] != nil {
		t.Errorf("request %v", body)
	}
	req.ToolChoice = "none"
	if body, _, _ = sent(t, req); body["tools"] != nil || body["tool_choice"] != nil {
		t.Errorf("with the choice none: %v", body)
	}
	req.ToolChoice, req.Tools = "", []agent.ModelTool{{Name: "web_search"}}
	if e := refusedBefore(t, req); events.CodeOf(e) != events.CodeToolNameCollision {
		t.Errorf("got %v", e)
	}
}

// recording is a stream of testdata, one answer for each request.
func recording(t *testing.T, name string, requests *[]json.RawMessage) http.HandlerFunc {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(string(raw), ".sse --\n")[1:]
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*requests = append(*requests, body)
		answer, _, _ := strings.Cut(answers[min(len(*requests), len(answers))-1], "-- ")
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, answer)
	}
}

// TestReasoningIsSentBack: thinking, redacted thinking and calls go back as they came. Reasoning of other providers, and
// what was not signed, does not.
func TestReasoningIsSentBack(t *testing.T) {
	t.Parallel()
	var requests []json.RawMessage
	c := newClient(t, recording(t, "redacted-thinking", &requests), anthropic.Config{})
	req := hello()
	turn := modeltest.Said(t, c.Stream(t.Context(), req))
	turn.Parts = append([]events.Part{
		{Type: events.PartReasoning, Text: "Not signed."}, {Type: events.PartReasoning, Text: "Foreign.", Signature: "google:thought:x"},
	}, turn.Parts...)
	req.Messages = append(req.Messages, turn, events.Message{Role: events.RoleTool, Parts: []events.Part{
		{Type: events.PartToolResult, ToolCallID: "call-2", Output: &events.ModelOutput{Type: events.OutputJSON, Value: json.RawMessage(`7`)}},
	}})
	req.ProviderOptions = json.RawMessage(`{"anthropic":{"thinking":{"type":"enabled","budgetTokens":1024}}}`)
	body, _, warnings := sent(t, req)
	messages, _ := body["messages"].([]any)
	content, _ := messages[1].(map[string]any)["content"].([]any)
	modeltest.SameJSON(t, "the turn", `[{"type":"thinking","thinking":"First.","signature":"sig-one"},
		{"type":"redacted_thinking","data":"EmwKAhgBEgy3va3pzix/LafPsn4a"}]`, any(content[:2]))
	if len(content) != 3 || len(warnings) != 0 {
		t.Errorf("content %v, warnings %q", content, warnings)
	}
	modeltest.SameJSON(t, "thinking", `{"type":"enabled","budget_tokens":1024}`, body["thinking"])
}

// TestThinkingGivesWay: where the API would refuse a request for its thinking, the model does not think, and people are
// told.
func TestThinkingGivesWay(t *testing.T) {
	t.Parallel()
	thinking := json.RawMessage(`{"anthropic":{"thinking":{"type":"enabled","budgetTokens":40000}}}`)
	call := events.Message{Role: events.RoleAssistant, Parts: []events.Part{{Type: events.PartToolCall, ToolCallID: "1", ToolName: "now"}}}
	result := events.Message{Role: events.RoleTool, Parts: []events.Part{{Type: events.PartToolResult, ToolCallID: "1"}}}
	among := hello()
	among.Messages = append(among.Messages, call, result)
	forced := hello()
	forced.Tools, forced.ToolChoice = []agent.ModelTool{{Name: "now"}}, "required"
	for name, req := range map[string]agent.ModelRequest{"among calls": among, "a forced call": forced} {
		req.ProviderOptions = thinking
		if body, _, warnings := sent(t, req); body["thinking"] != nil || len(warnings) != 1 {
			t.Errorf("%s: %v, %q", name, body["thinking"], warnings)
		}
	}
	req := hello()
	req.ProviderOptions, req.Settings = thinking, json.RawMessage(`{"temperature":1,"topK":3}`)
	body, _, warnings := sent(t, req)
	if body["temperature"] != nil || body["top_k"] != nil || body["max_tokens"] != 72000.0 || len(warnings) != 2 {
		t.Errorf("%v, %q", body, warnings)
	}
	req.Settings = json.RawMessage(`{"maxOutputTokens":100}`)
	if body, _, _ = sent(t, req); body["max_tokens"] != 40100.0 {
		t.Errorf("the limit is %v", body["max_tokens"])
	}
}

// TestPausedTurn: a turn that Anthropic pauses is gone on with, and what its own tools did is sent back, then and later.
func TestPausedTurn(t *testing.T) {
	t.Parallel()
	var requests []json.RawMessage
	c := newClient(t, recording(t, "web-search-paused", &requests), anthropic.Config{})
	req := hello()
	req.WebSearch, req.Instructions = true, "Be brief."
	turn := modeltest.Said(t, c.Stream(t.Context(), req))
	if len(requests) != 2 || turn.Text() != "I will search.It is warm." {
		t.Fatalf("%d requests, said %+v", len(requests), turn)
	}
	own := `{"type":"text","text":"I will search."},
		{"type":"server_tool_use","id":"srvtoolu_01","name":"web_search","input":{"query":"weather Rome"}},
		{"type":"web_search_tool_result","tool_use_id":"srvtoolu_01","content":[{"type":"web_search_result","url":"https://example.com/",
			"title":"Weather","encrypted_content":"EqgfCioIARgBIiQ3","page_age":null}]}`
	var first, second map[string]any
	if err := errors.Join(json.Unmarshal(requests[0], &first), json.Unmarshal(requests[1], &second)); err != nil {
		t.Fatal(err)
	}
	asked := first["messages"].([]any)
	modeltest.SameJSON(t, "the second request", `[{"role":"assistant","content":[`+own+`]}]`, any(second["messages"].([]any)[len(asked):]))
	delete(first, "messages")
	delete(second, "messages")
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the second request differs:\n%s", diff)
	}
	req.Messages = append(req.Messages, turn, events.TextMessage(events.RoleUser, "Thanks."))
	body, _, _ := sent(t, req)
	modeltest.SameJSON(t, "the next turn", `[`+own+`,{"type":"text","text":"It is warm."}]`, body["messages"].([]any)[1].(map[string]any)["content"])
}

// TestPausesEnd: a server that always pauses ends no run in an endless loop.
func TestPausesEnd(t *testing.T) {
	t.Parallel()
	n := 0
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		n++
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, strings.ReplaceAll(done, "end_turn", "pause_turn"))
	}, anthropic.Config{})
	got := modeltest.Collect(t, c.Stream(t.Context(), hello()))
	if got.Err != nil || got.Reason != agent.FinishOther || n != 9 || got.Usage.OutputTokens != 9 {
		t.Errorf("%d requests, %+v", n, got)
	}
}

// FuzzStream feeds any bytes as a stream: parts keep the rules, and a turn ends once.
func FuzzStream(f *testing.F) {
	f.Add([]byte(done))
	f.Add([]byte("event: content_block_start\ndata: {\"index\":0,\"content_block\":{\"type\":\"tool_use\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n"))
	f.Add([]byte("event: error\r\ndata: {}\r\n\r\n"))
	f.Add([]byte("data: {\"type\":\"content_block_start\",\"content_block\":null}\n\ndata: {\"type\":\"content_block_stop\"}\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write(stream)
		}, anthropic.Config{})
		modeltest.Collect(t, c.Stream(t.Context(), hello()))
	})
}

package responses_test

import (
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/modeltest"
	"github.com/weirkeeper/weir/services/models/responses"
)

var update = flag.Bool("update", false, "write the parts of recorded streams again")

// TestB22_5RecordedStreams plays what servers of this protocol stream.
func TestB22_5RecordedStreams(t *testing.T) {
	t.Parallel()
	modeltest.Recordings(t, *update, func(t *testing.T, provider http.HandlerFunc) agent.Model {
		t.Helper()
		return newClient(t, provider)
	})
}

func hello() agent.ModelRequest {
	return agent.ModelRequest{Model: "test-1", Messages: []events.Message{events.TextMessage(events.RoleUser, "Hello")}}
}

// sent is a request as the provider gets it, and what people are warned of.
func sent(t *testing.T, req agent.ModelRequest) (body map[string]any, warnings []string) {
	t.Helper()
	asked := &modeltest.Log{}
	got := modeltest.Collect(t, serve(t, asked, modeltest.Reply{Text: []string{"Done."}}).Stream(t.Context(), req))
	if got.Err != nil || len(asked.All()) != 1 {
		t.Fatalf("the request was not sent: %v", got.Err)
	}
	if err := json.Unmarshal([]byte(asked.All()[0].Body), &body); err != nil {
		t.Fatal(err)
	}
	return body, got.Warnings
}

func TestSettings(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Model, req.Instructions = "gpt-5", "Be brief."
	req.Messages = append([]events.Message{events.TextMessage(events.RoleSystem, "And kind.")}, req.Messages...)
	req.Settings = json.RawMessage(`{"temperature":0.2,"topP":0.9,"topK":40,"maxOutputTokens":500,"maxRetries":2}`)
	req.ProviderOptions = json.RawMessage(`{"openai":{"reasoning":{"effort":"low","summary":"auto"},"serviceTier":"flex","store":true,
		"previousResponseId":"resp_1"},"google":{"x":1}}`)
	body, warnings := sent(t, req)
	modeltest.SameJSON(t, "request", `{"model":"gpt-5","instructions":"Be brief.","stream":true,"store":false,"include":["reasoning.encrypted_content"],
		"input":[{"type":"message","role":"system","content":[{"type":"input_text","text":"And kind."}]},
			{"type":"message","role":"user","content":[{"type":"input_text","text":"Hello"}]}],
		"temperature":0.2,"top_p":0.9,"max_output_tokens":500,"reasoning":{"effort":"low","summary":"auto"},"service_tier":"flex"}`, any(body))
	if len(warnings) != 4 { // topK, maxRetries, store, previousResponseId
		t.Errorf("warnings %q", warnings)
	}
	for model, want := range map[string]bool{"o3-mini": true, "gpt-5.1": true, "gpt-5-chat-latest": false, "gpt-4.1": false} {
		req := hello()
		req.Model = model
		if body, _ := sent(t, req); (body["include"] != nil) != want {
			t.Errorf("%s is asked for %v", model, body["include"])
		}
	}
	for _, bad := range []string{`{"openai":[]}`, `[`} {
		req := hello()
		req.ProviderOptions = json.RawMessage(bad)
		got := modeltest.Collect(t, serve(t, &modeltest.Log{}).Stream(t.Context(), req))
		if e, ok := errors.AsType[*agent.ModelError](got.Err); !ok || e.Retryable || events.CodeOf(e.Err) != events.CodeInvalidRequest {
			t.Errorf("options %s give %v", bad, got.Err)
		}
	}
}

// TestB1_12_Strict: a schema that can be said strictly is, with what is optional as what may be null; without a word the
// protocol would take any for strict.
func TestB1_12_Strict(t *testing.T) {
	t.Parallel()
	req := hello()
	schema := json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a"]}`)
	req.Tools = []agent.ModelTool{
		{Name: "loose", InputSchema: schema},
		{Name: "strict", InputSchema: schema, Strict: true},
		{Name: "beyond", InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"not":{}}}}`), Strict: true},
	}
	body, warnings := sent(t, req)
	var strict []bool
	for _, tool := range body["tools"].([]any) {
		strict = append(strict, tool.(map[string]any)["strict"].(bool))
	}
	if !reflect.DeepEqual(strict, []bool{false, true, false}) || len(warnings) != 1 {
		t.Errorf("strict are %v, warnings %q", strict, warnings)
	}
}

func TestB15_16WebSearch(t *testing.T) {
	t.Parallel()
	req := hello()
	req.WebSearch = true
	req.ProviderOptions = json.RawMessage(`{"openai":{"webSearch":{"search_context_size":"low"}}}`)
	body, _ := sent(t, req)
	modeltest.SameJSON(t, "tools", `[{"type":"web_search","search_context_size":"low"}]`, body["tools"])
	req.ToolChoice = "none"
	if body, _ := sent(t, req); body["tools"] != nil {
		t.Errorf("tools are %v", body["tools"])
	}
}

// TestReasoningIsSentBack: what OpenAI has encrypted, and what its own tools did, where it was; nothing of others.
func TestReasoningIsSentBack(t *testing.T) {
	t.Parallel()
	reply := modeltest.Reply{Reasoning: []string{"They ", "greet."}, Text: []string{"Hello."}}
	got := modeltest.Collect(t, serve(t, &modeltest.Log{}, reply).Stream(t.Context(), hello()))
	if got.Signature == "" {
		t.Fatalf("got %+v", got)
	}
	own := `{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"x"}}`
	req := hello()
	req.Messages = append(req.Messages, events.Message{Role: events.RoleAssistant, Parts: []events.Part{
		{Type: events.PartReasoning, Text: got.Reasoning, Signature: got.Signature},
		{Type: events.PartReasoning, Text: "another's", Signature: "anthropic:thinking:x"},
		{Type: events.PartReasoning, Text: "nobody's"},
		{Type: events.PartReasoning, Signature: "openai:item:" + own},
		{Type: events.PartText, Text: "Hello."},
	}}, events.TextMessage(events.RoleUser, "And?"))
	body, _ := modelBody(t, req)
	modeltest.SameJSON(t, "input", `[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hello"}]},
		{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"They greet."}],"encrypted_content":"gAAA"},`+own+`,
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hello."}]},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"And?"}]}]`, body["input"])
}

// modelBody is sent for requests with items that the double does not know.
func modelBody(t *testing.T, req agent.ModelRequest) (body map[string]any, got modeltest.Turn) {
	t.Helper()
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		answer(w, r, modeltest.Reply{Text: []string{"Done."}})
	})
	got = modeltest.Collect(t, c.Stream(t.Context(), req))
	return body, got
}

func TestB4_4Media(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Messages = []events.Message{{Role: events.RoleUser, Parts: []events.Part{
		{Type: events.PartText, Text: "See"},
		{Type: events.PartFile, MediaType: "image/png", Data: "aGk="},
		{Type: events.PartFile, MediaType: "image/jpeg", URL: "https://example.com/a.jpg"},
		{Type: events.PartFile, MediaType: "application/pdf", Data: "aGk=", Filename: "a.pdf"},
		{Type: events.PartFile, MediaType: "application/pdf", URL: "https://example.com/a.pdf"},
	}}}
	body, _ := sent(t, req)
	modeltest.SameJSON(t, "input", `[{"type":"message","role":"user","content":[{"type":"input_text","text":"See"},
		{"type":"input_image","image_url":"data:image/png;base64,aGk="},{"type":"input_image","image_url":"https://example.com/a.jpg"},
		{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,aGk="},
		{"type":"input_file","file_url":"https://example.com/a.pdf"}]}]`, body["input"])
}

// TestKeepsSecrets: a client that is printed shows its server and no key.
func TestKeepsSecrets(t *testing.T) {
	t.Parallel()
	c, err := responses.New(responses.Config{BaseURL: "https://models.example.com/v1", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	if text := c.String() + c.GoString(); strings.Contains(text, testKey) || !strings.Contains(text, "models.example.com") {
		t.Errorf("printed: %s", text)
	}
}

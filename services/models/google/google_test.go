package google_test

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
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/google"
	"github.com/weirkeeper/weir/services/models/modeltest"
)

var update = flag.Bool("update", false, "write the expected parts of the stories again")

// TestB22_5RecordedStreams plays what servers of this protocol stream.
func TestB22_5RecordedStreams(t *testing.T) {
	t.Parallel()
	modeltest.Recordings(t, *update, func(t *testing.T, provider http.HandlerFunc) agent.Model {
		t.Helper()
		return newClient(t, provider, google.Config{APIKey: testKey})
	})
}

// hello is the smallest request.
func hello() agent.ModelRequest {
	return agent.ModelRequest{Model: "gemini-3-pro", Messages: []events.Message{events.TextMessage(events.RoleUser, "Hello")}}
}

const done = `data: {"candidates":[{"content":{"parts":[{"text":"Hi."}]},"finishReason":"STOP"}]}` + "\n\n"

// sent is what a request holds.
func sent(t *testing.T, req agent.ModelRequest) (body map[string]any, warnings []string) {
	t.Helper()
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, done)
	}, google.Config{})
	turn := modeltest.Collect(t, c.Stream(t.Context(), req))
	if turn.Err != nil {
		t.Fatal(turn.Err)
	}
	return body, turn.Warnings
}

// refusedBefore is the error of a request that is not sent.
func refusedBefore(t *testing.T, req agent.ModelRequest) *agent.ModelError {
	t.Helper()
	c := newClient(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") }, google.Config{})
	e, ok := errors.AsType[*agent.ModelError](modeltest.Collect(t, c.Stream(t.Context(), req)).Err)
	if !ok || e.Retryable {
		t.Errorf("got %v", e)
	}
	return e
}

// partsOf are the parts of a content.
func partsOf(body map[string]any, at int) any {
	return body["contents"].([]any)[at].(map[string]any)["parts"]
}

// TestOverSockets is the twin of the in-process tests: a real server, a real connection, and names of models as they come.
func TestOverSockets(t *testing.T) {
	t.Parallel()
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked = r.URL.EscapedPath(); r.Method != http.MethodPost || r.URL.RawQuery != "x=1&alt=sse" || r.Header.Get("X-Goog-Api-Key") != testKey {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, done)
	}))
	defer server.Close()
	c, err := google.New(google.Config{BaseURL: server.URL + "/v1beta/?x=1", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{
		"gemini-3-pro": "/v1beta/models/gemini-3-pro:streamGenerateContent", "tunedModels/mine": "/v1beta/tunedModels/mine:streamGenerateContent",
		"a?b": "/v1beta/models/a%3Fb:streamGenerateContent",
	} {
		req := hello()
		req.Model = model
		if got := modeltest.Collect(t, c.Stream(t.Context(), req)); got.Err != nil || got.Text != "Hi." || asked != want {
			t.Errorf("%s is asked at %s, want %s: %+v", model, asked, want, got)
		}
	}
	if strings.Contains(fmt.Sprintf("%v %+v %#v", c, c, c), testKey) {
		t.Error("the key shows")
	}
	if _, err := google.New(google.Config{BaseURL: "models.example.com"}); err == nil {
		t.Error("an address without a scheme is taken")
	}
}

// TestRetryDelay: how long to wait stands in the error.
func TestRetryDelay(t *testing.T) {
	t.Parallel()
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"code":429,"message":"Quota exceeded","status":"RESOURCE_EXHAUSTED",
			"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}`)
	}, google.Config{})
	e, ok := errors.AsType[*agent.ModelError](modeltest.Collect(t, c.Stream(t.Context(), hello())).Err)
	if !ok || !e.Retryable || e.After != 34500*time.Millisecond {
		t.Errorf("got %+v", e)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Instructions = "Be brief."
	req.Messages = append([]events.Message{events.TextMessage(events.RoleSystem, "And kind.")}, req.Messages...)
	req.Settings = json.RawMessage(`{"temperature":0.2,"topP":0.9,"topK":40,"maxOutputTokens":500,"stopSequences":["END"],"seed":7,"maxRetries":2}`)
	req.ProviderOptions = json.RawMessage(`{"google":{"thinkingConfig":{"includeThoughts":true},"safetySettings":[{"category":"X","threshold":"OFF"}],
		"cached_content":"cachedContents/1","generationConfig":{"responseMimeType":"application/json"},"contents":[],"toolConfig":{}},"openai":{"x":1}}`)
	body, warnings := sent(t, req)
	var got any = body
	modeltest.SameJSON(t, "request", `{"systemInstruction":{"parts":[{"text":"Be brief."},{"text":"And kind."}]},
		"contents":[{"role":"user","parts":[{"text":"Hello"}]}],
		"generationConfig":{"temperature":0.2,"topP":0.9,"topK":40,"maxOutputTokens":500,"stopSequences":["END"],"seed":7,
			"thinkingConfig":{"includeThoughts":true},"responseMimeType":"application/json"},
		"safetySettings":[{"category":"X","threshold":"OFF"}],"cachedContent":"cachedContents/1"}`, got)
	if len(warnings) != 3 {
		t.Errorf("warnings %q", warnings)
	}
	for _, bad := range []string{`{"google":[]}`, `{"google":{"generationConfig":7}}`, `[`} {
		req := hello()
		req.ProviderOptions = json.RawMessage(bad)
		if e := refusedBefore(t, req); events.CodeOf(e) != events.CodeInvalidRequest {
			t.Errorf("options %s give %v", bad, e)
		}
	}
}

// TestB22_8Schemas: what Gemini does not take of a schema is left out, and nothing else is said instead.
func TestB22_8Schemas(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, schema, want string }{
		{"nothing", ``, `{"type":"object","properties":{}}`},
		{
			"keywords that only narrow", `{"type":"object","properties":{"a":{"type":"string","pattern":"^x","minLength":1,"default":"x","format":"date"}},"required":["a"],"additionalProperties":false,"minProperties":1}`,
			`{"type":"object","properties":{"a":{"type":"string","format":"date"}},"required":["a"],"additionalProperties":false}`,
		},
		{
			"constants and lists", `{"type":"object","properties":{"a":{"const":"x"},"b":{"enum":["x",null]},"c":{"enum":[true]},"d":{"enum":[1,2]},"e":{"type":"string","enum":["x",{}]}}}`,
			`{"type":"object","properties":{"a":{"enum":["x"],"type":"string"},"b":{"enum":["x"],"type":"string"},"c":{},"d":{"enum":[1,2]},"e":{"type":"string"}}}`,
		},
		{
			"references", `{"type":"object","properties":{"a":{"$ref":"#/definitions/d","description":"x"}},"definitions":{"d":{"type":"object","properties":{"next":{"$ref":"#/definitions/d"}},"not":{}}}}`,
			`{"type":"object","properties":{"a":{"$ref":"#/$defs/d"}},"$defs":{"d":{"type":"object","properties":{"next":{"$ref":"#/$defs/d"}}}}}`,
		},
		{
			"nested", `{"type":"object","properties":{"a":{"type":"array","items":{"type":"string","maxLength":3},"uniqueItems":true},"b":{"anyOf":[{"type":"string","minLength":1},true]},"c":{"type":"object","additionalProperties":{"type":"string","pattern":"x"}},"d":true}}`,
			`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}},"b":{"anyOf":[{"type":"string"},{}]},"c":{"type":"object","additionalProperties":{"type":"string"}},"d":{}}}`,
		},
	} {
		req := hello()
		req.Tools = []agent.ModelTool{{Name: "f", Description: "F", InputSchema: json.RawMessage(test.schema)}}
		body, _ := sent(t, req)
		modeltest.SameJSON(t, test.name, `[{"functionDeclarations":[{"name":"f","description":"F","parametersJsonSchema":`+test.want+`}]}]`, body["tools"])
	}
	deep := `{"type":"object","properties":{"a":` + strings.Repeat(`{"type":"array","items":`, 40) + `{}` + strings.Repeat("}", 40) + `}}`
	for _, bad := range []string{deep, `{"type":"array"}`, `{"type":"object","properties":{"a":7}}`, `{"type":"object","properties":{"a":{"anyOf":{}}}}`} {
		req := hello()
		req.Tools = []agent.ModelTool{{Name: "f", InputSchema: json.RawMessage(bad)}}
		if body, warnings := sent(t, req); body["tools"] != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "left out") {
			t.Errorf("%.60s is offered: %v, %q", bad, body["tools"], warnings)
		}
	}
}

// TestB1_12StrictIsValidated: a strict tool asks for arguments that keep to the schema.
func TestB1_12StrictIsValidated(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Tools = []agent.ModelTool{{Name: "f"}, {Name: "g", Strict: true}}
	body, _ := sent(t, req)
	modeltest.SameJSON(t, "config", `{"functionCallingConfig":{"mode":"VALIDATED"}}`, body["toolConfig"])
	req.ToolChoice = "tool:f"
	body, _ = sent(t, req)
	modeltest.SameJSON(t, "config", `{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["f"]}}`, body["toolConfig"])
}

// TestB15_16WebSearch: the search is a tool of Google's, alone or beside functions where the model can do both.
func TestB15_16WebSearch(t *testing.T) {
	t.Parallel()
	req := hello()
	req.WebSearch = true
	body, _ := sent(t, req)
	modeltest.SameJSON(t, "tools", `[{"googleSearch":{}}]`, body["tools"])
	if body["toolConfig"] != nil {
		t.Errorf("config %v", body["toolConfig"])
	}
	req.ProviderOptions = json.RawMessage(`{"google":{"googleSearch":{"excludeDomains":["example.com"]}}}`)
	req.Tools = []agent.ModelTool{{Name: "now"}}
	body, _ = sent(t, req)
	modeltest.SameJSON(t, "tools", `[{"googleSearch":{"excludeDomains":["example.com"]}},
		{"functionDeclarations":[{"name":"now","parametersJsonSchema":{"type":"object","properties":{}}}]}]`, body["tools"])
	modeltest.SameJSON(t, "config", `{"functionCallingConfig":{"mode":"VALIDATED"},"includeServerSideToolInvocations":true}`, body["toolConfig"])
	req.Model = "gemini-2.5-flash"
	body, warnings := sent(t, req)
	modeltest.SameJSON(t, "tools", `[{"functionDeclarations":[{"name":"now","parametersJsonSchema":{"type":"object","properties":{}}}]}]`, body["tools"])
	if len(warnings) != 1 || !strings.Contains(warnings[0], "does not search") {
		t.Errorf("warnings %q", warnings)
	}
	req.ToolChoice = "none"
	if body, _ = sent(t, req); body["tools"] != nil || body["toolConfig"] != nil {
		t.Errorf("with the choice none: %v", body)
	}
}

// TestB22_7ResultsAsTheyAre: errors are told as errors, JSON stays JSON, pictures are shown, and what cannot be is named.
func TestB22_7ResultsAsTheyAre(t *testing.T) {
	t.Parallel()
	result := func(i int, kind, value string) events.Part {
		return events.Part{Type: events.PartToolResult, ToolCallID: fmt.Sprint(i), Output: &events.ModelOutput{Type: kind, Value: json.RawMessage(value)}}
	}
	results := []events.Part{
		result(0, events.OutputErrorText, `"no such page"`),
		result(1, events.OutputJSON, `{"n":[1]}`),
		result(2, events.OutputContent, `[{"type":"text","text":"The page:"},{"type":"image-data","data":"iVBO","mediaType":"image/png"},
			{"type":"image-url","url":"https://example.com/b.png"}]`),
	}
	calls := make([]events.Part, len(results))
	for i := range calls {
		calls[i] = events.Part{Type: events.PartToolCall, ToolCallID: fmt.Sprint(i), ToolName: "shot", Args: "{}"}
	}
	req := hello()
	req.Messages = append(req.Messages, events.Message{Role: events.RoleAssistant, Parts: calls}, events.Message{Role: events.RoleTool, Parts: results})
	for model, want := range map[string]string{
		"gemini-3-pro": `[{"functionResponse":{"name":"shot","response":{"error":"no such page"}}},
			{"functionResponse":{"name":"shot","response":{"output":{"n":[1]}}}},
			{"functionResponse":{"name":"shot","response":{"output":"The page:\n[image-url at https://example.com/b.png not shown]"},
				"parts":[{"inlineData":{"mimeType":"image/png","data":"iVBO"}}]}}]`,
		"gemini-2.5-pro": `[{"functionResponse":{"name":"shot","response":{"error":"no such page"}}},
			{"functionResponse":{"name":"shot","response":{"output":{"n":[1]}}}},
			{"functionResponse":{"name":"shot","response":{"output":"The page:\n[image-url at https://example.com/b.png not shown]"}}},
			{"inlineData":{"mimeType":"image/png","data":"iVBO"}}]`,
	} {
		req.Model = model
		body, warnings := sent(t, req)
		parts := partsOf(body, 2)
		for _, p := range parts.([]any) {
			if r, ok := p.(map[string]any)["functionResponse"].(map[string]any); ok {
				delete(r, "id")
			}
		}
		modeltest.SameJSON(t, model, want, parts)
		if len(warnings) != 1 {
			t.Errorf("warnings %q", warnings)
		}
	}
}

// TestB4_4Media: what people attach reaches the model.
func TestB4_4Media(t *testing.T) {
	t.Parallel()
	req := hello()
	req.Messages = []events.Message{{Role: events.RoleUser, Parts: []events.Part{
		{Type: events.PartText, Text: "What is this?"},
		{Type: events.PartFile, MediaType: "image/png", Data: "iVBO"},
		{Type: events.PartFile, MediaType: "video/mp4", URL: "https://example.com/a.mp4"},
		{Type: events.PartFile, URL: "data:audio/mpeg;base64,SUQz"},
		{Type: events.PartFile, Data: "SUQz"},
	}}}
	body, warnings := sent(t, req)
	modeltest.SameJSON(t, "parts", `[{"text":"What is this?"},{"inlineData":{"mimeType":"image/png","data":"iVBO"}},
		{"fileData":{"mimeType":"video/mp4","fileUri":"https://example.com/a.mp4"}},
		{"inlineData":{"mimeType":"audio/mpeg","data":"SUQz"}},{"text":"[file not shown]"}]`, partsOf(body, 0))
	if len(warnings) != 1 {
		t.Errorf("warnings %q", warnings)
	}
	req.Messages = []events.Message{{Role: events.RoleUser, Parts: []events.Part{{Type: events.PartFile, DataRef: "sha256:00"}}}}
	if e := refusedBefore(t, req); events.CodeOf(e) != events.CodeInvalidData {
		t.Errorf("a file without data gives %v", e)
	}
}

// played is a recording's turn as the planner keeps it.
func played(t *testing.T, name string) events.Message {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, stream, _ := strings.Cut(string(raw), ".sse --\n")
	stream, _, _ = strings.Cut(stream, "-- parts --")
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
	}, google.Config{})
	return modeltest.Said(t, c.Stream(t.Context(), hello()))
}

// answered is a conversation with a turn whose calls have results.
func answered(turn events.Message) agent.ModelRequest {
	req := hello()
	results := events.Message{Role: events.RoleTool}
	for _, p := range turn.Parts {
		if p.Type == events.PartToolCall {
			results.Parts = append(results.Parts, events.Part{Type: events.PartToolResult, ToolCallID: p.ToolCallID})
		}
	}
	req.Messages = append(req.Messages, turn)
	if len(results.Parts) > 0 {
		req.Messages = append(req.Messages, results)
	}
	return req
}

// withoutIDs takes the ids of calls away.
func withoutIDs(parts any) any {
	for _, p := range parts.([]any) {
		if c, ok := p.(map[string]any)["functionCall"].(map[string]any); ok {
			delete(c, "id")
		}
	}
	return parts
}

// TestSignaturesAreSentBack: each signature goes back to the part that it came with, and what Google's own tools did as
// it was. Reasoning of other providers, and what was not signed, does not go back.
func TestSignaturesAreSentBack(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"parallel-calls": `[{"text":"Let me look."},
			{"functionCall":{"name":"get_weather","args":{"city":"Rome","n":9007199254740993}},"thoughtSignature":"EtsCsig1"},
			{"functionCall":{"name":"get_weather","args":{"city":"<Oslo>"}}},{"functionCall":{"name":"now","args":{}}}]`,
		"thinking-then-text": `[{"text":"Hello, wörld <&>."},{"text":"","thoughtSignature":"EpwFCpkFAXLI2nwm"}]`,
		"signed-thoughts": `[{"text":"One.","thought":true,"thoughtSignature":"sig1"},{"text":"Two.","thought":true,"thoughtSignature":"sig2"},
			{"text":"Hi."},{"text":"","thoughtSignature":"sig3"},{"text":" Ho."},{"text":"","thoughtSignature":"sig4"}]`,
		"google-search": `[{"toolCall":{"toolType":"GOOGLE_SEARCH","id":"s1","args":{"queries":["weather Rome"]}},"thoughtSignature":"EsigA"},
			{"toolResponse":{"toolType":"GOOGLE_SEARCH","id":"s1","response":{"x":1}}},{"text":"It is warm."}]`,
	} {
		turn := played(t, name)
		turn.Parts = append([]events.Part{{Type: events.PartReasoning, Text: "Foreign.", Signature: "anthropic:thinking:x"}}, turn.Parts...)
		body, _ := sent(t, answered(turn))
		modeltest.SameJSON(t, name, want, withoutIDs(partsOf(body, 1)))
	}
}

// TestCallsOfOthers: Gemini 3 refuses a call that is not signed, but for the mark that Google gives for calls of others.
func TestCallsOfOthers(t *testing.T) {
	t.Parallel()
	call := func(id string) events.Part {
		return events.Part{Type: events.PartToolCall, ToolCallID: id, ToolName: "now", Args: "{}"}
	}
	turn := events.Message{Role: events.RoleAssistant, Parts: []events.Part{
		{Type: events.PartReasoning, Signature: "google:call-x:y"}, {Type: events.PartReasoning, Signature: "google:call-1"}, call("1"), call("2"),
	}}
	for model, want := range map[string]string{
		"gemini-3-flash": `[{"functionCall":{"name":"now","args":{}},"thoughtSignature":"skip_thought_signature_validator"},{"functionCall":{"name":"now","args":{}}}]`,
		"gemini-2.5-pro": `[{"functionCall":{"name":"now","args":{}}},{"functionCall":{"name":"now","args":{}}}]`,
		"gemma-3-27b-it": `[{"functionCall":{"name":"now","args":{}}},{"functionCall":{"name":"now","args":{}}}]`,
	} {
		req := answered(turn)
		req.Model = model
		body, _ := sent(t, req)
		modeltest.SameJSON(t, model, want, withoutIDs(partsOf(body, 1)))
	}
}

// FuzzStream feeds any bytes as a stream: parts keep the rules, and a turn ends once.
func FuzzStream(f *testing.F) {
	f.Add([]byte(done))
	f.Add([]byte("data: {\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{}},null,{\"inlineData\":{}}]}}]}\n\n"))
	f.Add([]byte("data: [{\"error\":{}}]\n\ndata: {\"promptFeedback\":{\"blockReason\":1}}"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write(stream)
		}, google.Config{})
		modeltest.Collect(t, c.Stream(t.Context(), hello()))
	})
}

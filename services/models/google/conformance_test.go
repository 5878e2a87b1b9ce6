package google_test

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
	"github.com/weirkeeper/weir/services/models/google"
	"github.com/weirkeeper/weir/services/models/modeltest"
)

const testKey = "AIzaSyabcDEF0123456789-_x"

func TestConformance(t *testing.T) {
	t.Parallel()
	modeltest.Exercise(t, modeltest.Provider{Serve: serve, Secret: testKey, ResultMedia: true})
}

// serve is a server that speaks the Gemini API.
func serve(t *testing.T, asked *modeltest.Log, replies ...modeltest.Reply) agent.Model {
	t.Helper()
	server := modeltest.Server{Check: check, Read: readRequest, ContentType: "text/event-stream", Answer: answer, Refuse: refuse}
	return newClient(t, server.Handler(t, asked, replies...), google.Config{APIKey: testKey})
}

func check(t *testing.T, r *http.Request) {
	t.Helper()
	if r.Header.Get("X-Goog-Api-Key") != testKey || r.URL.Path != "/v1beta/models/test-1:streamGenerateContent" || r.URL.RawQuery != "alt=sse" {
		t.Errorf("%s with %v", r.URL, r.Header)
	}
}

// newClient is a client of a server in this process.
func newClient(t *testing.T, handler http.HandlerFunc, cfg google.Config) *google.Client {
	t.Helper()
	cfg.HTTP = &http.Client{Transport: modeltest.Transport(handler)}
	if cfg.BaseURL == "" {
		cfg.BaseURL = "https://models.example.com/v1beta"
	}
	c, err := google.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refuse(w http.ResponseWriter, r modeltest.Reply) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.Header().Set("Retry-After", strconv.Itoa(int(r.RetryAfter.Seconds())))
	w.WriteHeader(r.Status)
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"code": r.Status, "message": r.Message, "status": "SOME_STATUS"}})
	_, _ = w.Write(body)
}

// answer streams a reply. Google sends a call whole: one that is not complete is not sent when the connection is lost,
// and comes without its arguments when the limit cut it.
func answer(w io.Writer, req *http.Request, r modeltest.Reply) {
	send := func(reason string, parts ...any) {
		candidate := map[string]any{"content": map[string]any{"role": "model", "parts": parts}, "index": 0}
		if reason != "" {
			candidate["finishReason"] = reason
		}
		data, _ := events.Marshal(map[string]any{"candidates": []any{candidate}, "usageMetadata": map[string]int{
			"promptTokenCount": r.Usage.InputTokens, "candidatesTokenCount": r.Usage.OutputTokens, "totalTokenCount": r.Usage.TotalTokens,
		}})
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	}
	for _, s := range r.Reasoning {
		send("", map[string]any{"text": s, "thought": true})
	}
	for _, s := range r.Text {
		send("", map[string]any{"text": s})
	}
	for _, c := range r.Calls {
		call := map[string]any{"name": c.Name}
		if c.ID != "" {
			call["id"] = c.ID
		}
		switch args := strings.Join(c.Args, ""); {
		case json.Valid([]byte(args)):
			call["args"] = json.RawMessage(args)
		case args != "" && r.End != modeltest.EndLimit:
			continue
		}
		send("", map[string]any{"functionCall": call})
	}
	switch r.End {
	case modeltest.EndLost:
		panic(http.ErrAbortHandler)
	case modeltest.EndSilent:
		<-req.Context().Done()
		return
	default:
	}
	reason := "STOP"
	if r.Finish == agent.FinishLength {
		reason = "MAX_TOKENS"
	}
	send(reason, map[string]any{"text": ""})
}

// sentPart is a part of a request.
type sentPart struct {
	Text    string `json:"text"`
	Thought bool   `json:"thought"`
	Call    *struct {
		ID, Name string
		Args     json.RawMessage
	} `json:"functionCall"`
	Response *struct {
		ID, Name string
		Response map[string]json.RawMessage
	} `json:"functionResponse"`
}

type sentContent struct {
	Role  string     `json:"role"`
	Parts []sentPart `json:"parts"`
}

// readRequest reads a request as the provider does, and fails the test for what the provider would refuse.
func readRequest(t *testing.T, raw []byte) modeltest.Request {
	t.Helper()
	var in struct {
		System   sentContent   `json:"systemInstruction"`
		Contents []sentContent `json:"contents"`
		Tools    []struct {
			Functions []struct {
				Name   string          `json:"name"`
				Schema json.RawMessage `json:"parametersJsonSchema"`
			} `json:"functionDeclarations"`
		} `json:"tools"`
		Config struct {
			Calling struct {
				Mode    string   `json:"mode"`
				Allowed []string `json:"allowedFunctionNames"`
			} `json:"functionCallingConfig"`
		} `json:"toolConfig"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		t.Errorf("the request is not JSON: %v\n%s", err, raw)
	}
	out := modeltest.Request{Body: string(raw)}
	switch calling := in.Config.Calling; {
	case calling.Mode == "AUTO":
		out.Choice = "auto"
	case calling.Mode == "ANY" && len(calling.Allowed) == 1:
		out.Choice = "tool:" + calling.Allowed[0]
	case calling.Mode == "ANY":
		out.Choice = "required"
	}
	for _, p := range in.System.Parts {
		out.System += p.Text
	}
	calls := 0
	for _, c := range in.Contents {
		if len(c.Parts) == 0 {
			t.Errorf("a content is empty: %s", raw)
		}
		said, results := readContent(t, c)
		if results > 0 && results != calls {
			t.Errorf("%d results for %d calls", results, calls)
		}
		calls = 0
		for _, m := range said {
			calls += len(m.Calls)
		}
		out.Messages = append(out.Messages, said...)
	}
	for _, tool := range in.Tools {
		for _, f := range tool.Functions {
			out.Tools = append(out.Tools, modeltest.Tool{Name: f.Name, Schema: f.Schema})
		}
	}
	return out
}

// readContent is a content in no provider's form: results are messages of their own.
func readContent(t *testing.T, c sentContent) (out []modeltest.Message, results int) {
	t.Helper()
	said := modeltest.Message{Role: map[string]events.Role{"user": events.RoleUser, "model": events.RoleAssistant}[c.Role]}
	for _, p := range c.Parts {
		switch {
		case p.Call != nil:
			said.Calls = append(said.Calls, modeltest.AskedCall{ID: p.Call.ID, Name: p.Call.Name, Args: string(p.Call.Args)})
		case p.Response != nil:
			results++
			raw, ok := p.Response.Response["output"]
			if !ok {
				raw = p.Response.Response["error"]
			}
			text := string(raw)
			if strings.HasPrefix(text, `"`) {
				_ = json.Unmarshal(raw, &text)
			}
			out = append(out, modeltest.Message{Role: events.RoleTool, Text: text, Result: p.Response.ID})
		case !p.Thought:
			said.Text += p.Text
		}
	}
	if said.Text != "" || len(said.Calls) > 0 {
		out = append(out, said)
	}
	return out, results
}

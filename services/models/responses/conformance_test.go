package responses_test

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
	"github.com/weirkeeper/weir/services/models/responses"
)

const testKey = "sk-proj-abcDEF0123456789-_x"

func TestConformance(t *testing.T) {
	t.Parallel()
	modeltest.Exercise(t, modeltest.Provider{Serve: serve, Secret: testKey, ResultMedia: true})
}

// serve is a server that speaks the Responses API.
func serve(t *testing.T, asked *modeltest.Log, replies ...modeltest.Reply) agent.Model {
	t.Helper()
	server := modeltest.Server{Check: check, Read: readRequest, ContentType: "text/event-stream; charset=utf-8", Answer: answer, Refuse: refuse}
	return newClient(t, server.Handler(t, asked, replies...))
}

func check(t *testing.T, r *http.Request) {
	t.Helper()
	if r.Header.Get("Authorization") != "Bearer "+testKey || r.URL.Path != "/v1/responses" {
		t.Errorf("%s with %v", r.URL, r.Header)
	}
}

// newClient is a client of a server in this process.
func newClient(t *testing.T, handler http.HandlerFunc) *responses.Client {
	t.Helper()
	c, err := responses.New(responses.Config{
		BaseURL: "https://models.example.com/v1", APIKey: testKey, HTTP: &http.Client{Transport: modeltest.Transport(handler)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refuse(w http.ResponseWriter, r modeltest.Reply) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", strconv.Itoa(int(r.RetryAfter.Seconds())))
	w.WriteHeader(r.Status)
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": r.Message, "type": "some_error", "param": nil, "code": nil}})
	_, _ = w.Write(body)
}

// stream writes events as the provider numbers and names them.
type stream struct {
	w io.Writer
	n int
}

func (s *stream) send(kind string, more map[string]any) {
	more["type"], more["sequence_number"] = kind, s.n
	s.n++
	data, _ := events.Marshal(more)
	_, _ = fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", kind, data)
}

// item sends an item in pieces: that it begins, its deltas, and that it is whole.
func (s *stream) item(index int, begun, whole map[string]any, delta string, pieces []string) {
	s.send("response.output_item.added", map[string]any{"output_index": index, "item": begun})
	for _, p := range pieces {
		s.send(delta, map[string]any{"output_index": index, "item_id": begun["id"], "content_index": 0, "summary_index": 0, "delta": p})
	}
	if whole != nil {
		s.send("response.output_item.done", map[string]any{"output_index": index, "item": whole})
	}
}

// answer streams a reply.
func answer(w io.Writer, req *http.Request, r modeltest.Reply) {
	s := &stream{w: w}
	s.send("response.created", map[string]any{"response": map[string]any{"object": "response", "status": "in_progress", "error": nil}})
	index := 0
	if len(r.Reasoning) > 0 {
		summary := []any{map[string]any{"type": "summary_text", "text": strings.Join(r.Reasoning, "")}}
		s.item(index, map[string]any{"type": "reasoning", "id": "rs_1", "summary": []any{}},
			map[string]any{"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAA"},
			"response.reasoning_summary_text.delta", r.Reasoning)
		index++
	}
	if len(r.Text) > 0 {
		content := []any{map[string]any{"type": "output_text", "text": strings.Join(r.Text, ""), "annotations": []any{}}}
		s.item(index, map[string]any{"type": "message", "id": "msg_1", "role": "assistant", "content": []any{}},
			map[string]any{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content},
			"response.output_text.delta", r.Text)
		index++
	}
	for i, c := range r.Calls {
		call := func(args, status string) map[string]any {
			return map[string]any{"type": "function_call", "id": fmt.Sprintf("fc_%d", i), "call_id": c.ID, "name": c.Name, "arguments": args, "status": status}
		}
		status, whole := "completed", true
		if last := i == len(r.Calls)-1; last && r.End == modeltest.EndLimit {
			status = "incomplete"
		} else if last && r.End != modeltest.EndWhole {
			whole = false
		}
		var done map[string]any
		if whole {
			done = call(strings.Join(c.Args, ""), status)
		}
		s.item(index, call("", "in_progress"), done, "response.function_call_arguments.delta", c.Args)
		index++
	}
	switch r.End {
	case modeltest.EndLost:
		panic(http.ErrAbortHandler)
	case modeltest.EndSilent:
		<-req.Context().Done()
		return
	default:
	}
	kind, status := "response.completed", "completed"
	over := map[string]any{"object": "response", "error": nil, "incomplete_details": nil, "usage": map[string]any{
		"input_tokens": r.Usage.InputTokens, "output_tokens": r.Usage.OutputTokens, "total_tokens": r.Usage.TotalTokens,
		"input_tokens_details": map[string]int{"cached_tokens": r.Usage.CachedInputTokens},
	}}
	if r.Finish == agent.FinishLength || r.End == modeltest.EndLimit {
		kind, status = "response.incomplete", "incomplete"
		over["incomplete_details"] = map[string]string{"reason": "max_output_tokens"}
	}
	over["status"] = status
	s.send(kind, map[string]any{"response": over})
}

type sentPiece struct {
	Type, Text string
	ImageURL   string `json:"image_url"`
}

type sentItem struct {
	Type      string
	Role      events.Role
	Content   []sentPiece
	CallID    string `json:"call_id"`
	Name      string
	Arguments string
	Output    json.RawMessage
	Encrypted string `json:"encrypted_content"`
}

// readRequest reads a request as the provider does, and fails the test for what the provider would refuse.
func readRequest(t *testing.T, raw []byte) modeltest.Request {
	t.Helper()
	var in struct {
		Instructions string
		Input        []sentItem
		Store        *bool
		Tools        []struct {
			Type, Name string
			Parameters json.RawMessage
		}
		Choice json.RawMessage `json:"tool_choice"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		t.Errorf("the request is not JSON: %v\n%s", err, raw)
	}
	if in.Store == nil || *in.Store {
		t.Errorf("the provider would store the answer: %s", raw)
	}
	out := modeltest.Request{Body: string(raw), System: in.Instructions, Choice: choiceOf(in.Choice)}
	said := modeltest.Message{Role: events.RoleAssistant}
	flush := func() {
		if said.Text != "" || len(said.Calls) > 0 {
			out.Messages = append(out.Messages, said)
		}
		said = modeltest.Message{Role: events.RoleAssistant}
	}
	for _, it := range in.Input {
		text := ""
		for _, p := range it.Content {
			text += p.Text
		}
		switch {
		case it.Type == "function_call":
			said.Calls = append(said.Calls, modeltest.AskedCall{ID: it.CallID, Name: it.Name, Args: it.Arguments})
		case it.Type == "message" && it.Role == events.RoleAssistant:
			if len(said.Calls) > 0 {
				flush()
			}
			said.Text += text
		case it.Type == "function_call_output":
			flush()
			out.Messages = append(out.Messages, modeltest.Message{Role: events.RoleTool, Text: outputText(t, it.Output), Result: it.CallID})
		case it.Type == "message":
			flush()
			out.Messages = append(out.Messages, modeltest.Message{Role: it.Role, Text: text})
		case it.Type == "reasoning" && it.Encrypted != "":
		default:
			t.Errorf("an item that the provider does not know: %+v", it)
		}
	}
	flush()
	for _, tool := range in.Tools {
		if tool.Type == "function" {
			out.Tools = append(out.Tools, modeltest.Tool{Name: tool.Name, Schema: tool.Parameters})
		}
	}
	return out
}

func outputText(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var pieces []sentPiece
	if err := json.Unmarshal(raw, &pieces); err != nil {
		t.Errorf("a result is neither a text nor pieces: %s", raw)
	}
	for _, p := range pieces {
		text += p.Text
	}
	return text
}

func choiceOf(raw json.RawMessage) string {
	var word string
	if len(raw) == 0 || json.Unmarshal(raw, &word) == nil {
		return word
	}
	var one struct{ Name string }
	_ = json.Unmarshal(raw, &one)
	return "tool:" + one.Name
}

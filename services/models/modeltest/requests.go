//nolint:thelper // subtests, not helpers: a failure is reported where it is
package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// sent asks once and returns what the provider got.
func sent(t *testing.T, p Provider, req agent.ModelRequest) Request {
	t.Helper()
	asked := &Log{}
	got := Collect(t, p.Serve(t, asked, Reply{Text: []string{"Done."}}).Stream(t.Context(), req))
	if got.Err != nil {
		t.Fatalf("the request was not sent: %v", got.Err)
	}
	all := asked.All()
	if len(all) != 1 {
		t.Fatalf("%d requests were sent, want one", len(all))
	}
	return all[0]
}

// history is a conversation of two steps with parallel calls, under Weir's ids. Results are of each kind, errors and
// declines among them. The provider gave all calls the same id. (NAME-3)
func history(run string) []events.Message {
	id := func(step, i int) string { return events.CallID{Run: run, Step: step, Index: i}.String() }
	call := func(id, tool, args string) events.Part {
		return events.Part{Type: events.PartToolCall, ToolCallID: id, ToolName: tool, Args: args, ProviderCallID: "same"}
	}
	result := func(id, tool, kind, value string) events.Part {
		return events.Part{
			Type: events.PartToolResult, ToolCallID: id, ToolName: tool, ProviderCallID: "same",
			Output: &events.ModelOutput{Type: kind, Value: json.RawMessage(value)}, IsError: kind == events.OutputErrorText,
		}
	}
	return []events.Message{
		events.TextMessage(events.RoleUser, "Compare the weather."),
		{Role: events.RoleAssistant, Parts: []events.Part{
			{Type: events.PartReasoning, Text: "Three cities."},
			{Type: events.PartText, Text: "Looking."},
			call(id(1, 1), "get_weather", `{"city":"Rome","n":9007199254740993}`),
			call(id(1, 2), "get_weather", `{"city":"<Oslo>"}`),
			call(id(1, 3), "now", ``),
		}},
		{Role: events.RoleTool, Parts: []events.Part{
			result(id(1, 1), "get_weather", events.OutputJSON, `{"t":31.50}`),
			result(id(1, 2), "get_weather", events.OutputErrorText, `"no such city"`),
			result(id(1, 3), "now", events.OutputText, `"Tool call was not approved by the user"`),
		}},
		{Role: events.RoleAssistant, Parts: []events.Part{call(id(2, 1), "get_weather", `{"city":"Bergen"}`)}},
		{Role: events.RoleTool, Parts: []events.Part{result(id(2, 1), "get_weather", events.OutputJSON, `null`)}},
		events.TextMessage(events.RoleUser, "And now?"),
	}
}

// historyResults are the results of history as a model reads them, in call order.
var historyResults = []string{`{"t":31.50}`, "no such city", "Tool call was not approved by the user", "null"}

func requestOf(messages []events.Message) agent.ModelRequest {
	req := simple()
	req.Messages = messages
	return req
}

// Pairing checks a request as a strict provider does: after a message with calls come exactly their results, in call
// order, in one group. It returns the first breach, or nil.
func Pairing(messages []Message) error {
	var open []string
	for i, m := range messages {
		switch {
		case m.Role == events.RoleTool && len(open) == 0:
			return fmt.Errorf("message %d is a result of %q, which is no open call", i, m.Result)
		case m.Role == events.RoleTool && m.Result != open[0]:
			return fmt.Errorf("message %d is the result of %q, want that of %q", i, m.Result, open[0])
		case m.Role == events.RoleTool:
			open = open[1:]
			continue
		case len(open) > 0:
			return fmt.Errorf("message %d comes before the result of %q", i, open[0])
		}
		for _, c := range m.Calls {
			if slices.Contains(open, c.ID) {
				return fmt.Errorf("message %d has two calls %q", i, c.ID)
			}
			open = append(open, c.ID)
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("call %q has no result", open[0])
	}
	return nil
}

func testPairing(t *testing.T, p Provider) {
	messages := history("r7Kq2")
	inOrder := sent(t, p, requestOf(messages))
	if err := Pairing(inOrder.Messages); err != nil {
		t.Error(err)
	}
	if inOrder.System != "Be brief." {
		t.Errorf("instructions = %q", inOrder.System)
	}
	slices.Reverse(messages[2].Parts)
	reversed := sent(t, p, requestOf(messages))
	if diff := cmp.Diff(inOrder.Messages, reversed.Messages); diff != "" {
		t.Errorf("results in another order change the request:\n%s", diff)
	}
	var results []string
	for _, m := range inOrder.Messages {
		if m.Role == events.RoleTool {
			results = append(results, m.Text)
		}
		if m.Role == events.RoleUser && strings.Contains(m.Text, "not approved") {
			t.Error("a result is told as a user message")
		}
	}
	if diff := cmp.Diff(historyResults, results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

func testBroken(t *testing.T, p Provider) {
	whole := history("r1")
	drop := func(at ...int) []events.Message {
		var out []events.Message
		for i, m := range whole {
			if !slices.Contains(at, i) {
				out = append(out, m)
			}
		}
		return out
	}
	fewer := slices.Clone(whole)
	fewer[2].Parts = fewer[2].Parts[:2]
	more := slices.Clone(whole)
	more[4] = events.Message{Role: events.RoleTool, Parts: append(slices.Clone(whole[4].Parts), whole[4].Parts[0])}
	other := slices.Clone(whole)
	other[4] = events.Message{Role: events.RoleTool, Parts: []events.Part{whole[2].Parts[0]}}
	for name, messages := range map[string][]events.Message{
		"no results": drop(2), "no calls": drop(1), "an open call at the end": whole[:4],
		"too few results": fewer, "too many": more, "those of other calls": other,
	} {
		asked := &Log{}
		got := Collect(t, p.Serve(t, asked, Reply{Text: []string{"Done."}}).Stream(t.Context(), requestOf(messages)))
		var coded *events.Error
		if e := modelError(t, got); e.Retryable || !errors.As(e, &coded) || coded.Code != events.CodeTranscriptBroken {
			t.Errorf("%s: got %v, want %s", name, e, events.CodeTranscriptBroken)
		}
		if len(asked.All()) > 0 {
			t.Errorf("%s: a request was sent", name)
		}
	}
}

// testResultMedia: a picture in a result reaches the model as a picture, or a short text stands for it; base64 is never
// a text.
func testResultMedia(t *testing.T, p Provider) {
	const picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
	messages := history("r1")
	messages[4].Parts[0].Output = &events.ModelOutput{Type: events.OutputContent, Value: json.RawMessage(
		`[{"type":"text","text":"The map:"},{"type":"image-data","data":"` + picture + `","mediaType":"image/png"},` +
			`{"type":"image-url","url":"data:image/png;base64,` + picture + `"},{"type":"file-id","fileId":"f-1"}]`)}
	asked := &Log{}
	got := Collect(t, p.Serve(t, asked, Reply{Text: []string{"Done."}}).Stream(t.Context(), requestOf(messages)))
	if got.Err != nil || len(asked.All()) != 1 {
		t.Fatalf("the request was not sent: %v", got.Err)
	}
	request := asked.All()[0]
	if err := Pairing(request.Messages); err != nil {
		t.Error(err)
	}
	for _, m := range request.Messages {
		if strings.Contains(m.Text, picture) {
			t.Errorf("a picture is told as the text %.200q", m.Text)
		}
	}
	seen, warnings := strings.Count(request.Body, picture), 3
	if p.ResultMedia {
		seen, warnings = seen-2, 1
	}
	if seen != 0 || len(got.Warnings) != warnings {
		t.Errorf("%d pictures too many or too few; warnings %q, want %d", seen, got.Warnings, warnings)
	}
	if !strings.Contains(request.Body, "The map:") || !strings.Contains(request.Body, "[file-id not shown]") {
		t.Errorf("the request does not say all: %s", request.Body)
	}
}

// testDeclined: a call that people declined is answered as any other, and the conversation goes on.
func testDeclined(t *testing.T, p Provider) {
	messages := history("r1")[:3]
	for i := range messages[2].Parts {
		messages[2].Parts[i].Output = &events.ModelOutput{Type: events.OutputText, Value: json.RawMessage(`"Tool call was not approved by the user"`)}
		messages[2].Parts[i].IsError = false
	}
	messages = append(messages, events.TextMessage(events.RoleUser, "Then guess."))
	asked := &Log{}
	got := Collect(t, p.Serve(t, asked, Reply{Text: []string{"Warm."}}).Stream(t.Context(), requestOf(messages)))
	if got.Err != nil || got.Text != "Warm." {
		t.Fatalf("got %+v", got)
	}
	sent := asked.All()[0].Messages
	if err := Pairing(sent); err != nil {
		t.Error(err)
	}
	for _, m := range sent {
		if declined := strings.Contains(m.Text, "not approved"); declined != (m.Role == events.RoleTool) {
			t.Errorf("message of role %s says %q", m.Role, m.Text)
		}
	}
}

func testHistory(t *testing.T, p Provider) {
	messages := history("r1")
	calls := messages[1].Parts[2:]
	for args, want := range map[string]string{
		`{"city":"Rome","n":9007199254740993}`: `{"city":"Rome","n":9007199254740993}`,
		``:                                     `{}`,
		`null`:                                 `{}`,
		"  \n":                                 `{}`,
		`{"city":"Ber`:                         ``,
		`{"a":1}{"b":2}`:                       ``,
		`{'a':1}`:                              ``,
		`{"a":1,}`:                             ``,
		`[1]`:                                  ``,
		`{"a":NaN}`:                            ``,
	} {
		calls[0].Args = args
		got := sent(t, p, requestOf(messages)).Messages[1].Calls[0].Args
		var object map[string]json.RawMessage
		if err := json.Unmarshal([]byte(got), &object); err != nil || want != "" && got != want {
			t.Errorf("arguments %q are sent as %q, want %q or some object", args, got, want)
		}
	}
}

var legalID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,40}$`)

func testIDs(t *testing.T, p Provider) {
	long := strings.Repeat("x", 64) + "=12-345=6-7=8-9"
	seen := map[string]string{}
	for _, run := range []string{"r", "r-1", "r_1", "r=1-1", long} {
		var first []string
		for range 2 {
			var ids []string
			for _, m := range sent(t, p, requestOf(history(run))).Messages {
				for _, c := range m.Calls {
					ids = append(ids, c.ID)
				}
			}
			if first == nil {
				first = ids
			}
			if diff := cmp.Diff(first, ids); diff != "" {
				t.Errorf("run %s: ids change between requests:\n%s", run, diff)
			}
		}
		for i, id := range first {
			if !legalID.MatchString(id) {
				t.Errorf("run %s: id %q is not legal", run, id)
			}
			if other, ok := seen[id]; ok {
				t.Errorf("calls of runs %s and %s have one id %q", run, other, id)
			}
			seen[id] = fmt.Sprintf("%s (%d)", run, i)
		}
	}
	testForeignIDs(t, p)
}

// testForeignIDs sends history that other programs wrote, whose ids may be anything.
func testForeignIDs(t *testing.T, p Provider) {
	for _, id := range []string{"", "same", "a:b|c/d", strings.Repeat("i", 450)} {
		messages := history("r1")
		for i := range messages {
			for j := range messages[i].Parts {
				messages[i].Parts[j].ToolCallID = id
			}
		}
		got := sent(t, p, requestOf(messages))
		if err := Pairing(got.Messages); err != nil {
			t.Errorf("ids %.20q: %v", id, err)
		}
		var results []string
		for _, m := range got.Messages {
			for _, c := range m.Calls {
				if !legalID.MatchString(c.ID) {
					t.Errorf("ids %.20q: %q is not legal", id, c.ID)
				}
			}
			if m.Role == events.RoleTool {
				results = append(results, m.Text)
			}
		}
		if diff := cmp.Diff(historyResults, results); diff != "" {
			t.Errorf("ids %.20q: results are not paired by position (-want +got):\n%s", id, diff)
		}
	}
}

var legalName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$`)

func testTools(t *testing.T, p Provider) {
	long := strings.Repeat("n", 70)
	req := simple()
	req.Tools = []agent.ModelTool{
		{Name: "a.b"},
		{Name: "日本"},
		{Name: "1st", InputSchema: json.RawMessage(`null`)},
		{Name: long + "1", InputSchema: json.RawMessage(`{}`)},
		{Name: long + "2", InputSchema: json.RawMessage(`{"type":"object"}`)},
		weather(),
	}
	req.Messages = history("r1")
	req.Messages[1].Parts[2].ToolName = "a.b"
	got := sent(t, p, req)
	if len(got.Tools) != len(req.Tools) {
		t.Fatalf("%d tools are offered, want %d", len(got.Tools), len(req.Tools))
	}
	names := map[string]bool{}
	for i, tool := range got.Tools {
		if !legalName.MatchString(tool.Name) || names[tool.Name] {
			t.Errorf("tool %q is offered as %q", req.Tools[i].Name, tool.Name)
		}
		names[tool.Name] = true
		var schema struct {
			Type       string          `json:"type"`
			Properties json.RawMessage `json:"properties"`
		}
		if err := json.Unmarshal(tool.Schema, &schema); err != nil || !strings.EqualFold(schema.Type, "object") {
			t.Errorf("tool %q is offered with %s", req.Tools[i].Name, tool.Schema)
		}
	}
	if name := got.Messages[1].Calls[0].Name; name != got.Tools[0].Name {
		t.Errorf("history has %q and the tools %q", name, got.Tools[0].Name)
	}
}

func testCollision(t *testing.T, p Provider) {
	req := simple()
	req.Tools = []agent.ModelTool{{Name: "a.b"}, {Name: "a/b"}}
	got := Collect(t, p.Serve(t, &Log{}, Reply{Text: []string{"Done."}}).Stream(t.Context(), req))
	var coded *events.Error
	if e := modelError(t, got); e.Retryable || !errors.As(e, &coded) || coded.Code != events.CodeToolNameCollision {
		t.Errorf("got %v, want %s", e, events.CodeToolNameCollision)
	}
}

func testChoice(t *testing.T, p Provider) {
	for choice, want := range map[string]string{
		"": "auto", "auto": "auto", "required": "required", "tool:get_weather": "tool:get_weather", "none": "",
	} {
		req := simple()
		req.ToolChoice = choice
		got := sent(t, p, req)
		if got.Choice != want || (len(got.Tools) == 0) != (choice == "none") {
			t.Errorf("choice %q is sent as %q with %d tools", choice, got.Choice, len(got.Tools))
		}
	}
	for _, choice := range []string{"tool:gone", "tool:", "sometimes"} {
		req := simple()
		req.ToolChoice = choice
		got := Collect(t, p.Serve(t, &Log{}, Reply{Text: []string{"Done."}}).Stream(t.Context(), req))
		if e := modelError(t, got); e.Retryable {
			t.Errorf("choice %q gives %v", choice, e)
		}
	}
}

func testSame(t *testing.T, p Provider) {
	req := requestOf(history("r1"))
	req.Settings = json.RawMessage(`{"temperature":0.2,"maxOutputTokens":500,"seed":7,"stopSequences":["END"]}`)
	first := sent(t, p, req)
	for range 5 {
		if diff := cmp.Diff(first.Body, sent(t, p, req).Body); diff != "" {
			t.Fatalf("the same request has other bytes:\n%s", diff)
		}
	}
	if !strings.Contains(first.Body, "0.2") || !strings.Contains(first.Body, "500") {
		t.Errorf("settings are not in %s", first.Body)
	}
}

// testOutputSchema asks for an answer that fits a schema, with tools and without: it must reach the provider, whole or as the
// provider takes it, and never when it is not asked for.
func testOutputSchema(t *testing.T, p Provider) {
	const field, schema = "unlikely_field", `{"type":"object","properties":{"unlikely_field":{"type":"integer"}},"required":["unlikely_field"]}`
	req := simple()
	if body := sent(t, p, req).Body; strings.Contains(body, field) {
		t.Errorf("a schema is sent that nobody asked for: %s", body)
	}
	for _, list := range []string{`{"type":"array","items":` + schema + `}`, schema} { // not every provider takes a list
		for _, tools := range [][]agent.ModelTool{nil, {{Name: "now", InputSchema: json.RawMessage(`{"type":"object"}`)}}} {
			req.Tools, req.OutputSchema = tools, json.RawMessage(list)
			got := sent(t, p, req)
			if !strings.Contains(got.Body, field) {
				t.Errorf("the schema is not sent: %s", got.Body)
			}
			if !strings.HasPrefix(got.System, "Be brief.") {
				t.Errorf("instructions = %q", got.System)
			}
		}
	}
}

// SameJSON compares a value with JSON.
func SameJSON(t *testing.T, what, want string, got any) {
	t.Helper()
	var w any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

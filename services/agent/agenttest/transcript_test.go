package agenttest_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

func user(text string) events.Message { return events.TextMessage(events.RoleUser, text) }

func asks(calls ...events.Part) events.Message {
	return events.Message{Role: events.RoleAssistant, Parts: calls}
}

func call(id, name, args string) events.Part {
	return events.Part{Type: events.PartToolCall, ToolCallID: id, ToolName: name, Args: args}
}

func answers(results ...events.Part) events.Message {
	return events.Message{Role: events.RoleTool, Parts: results}
}

func answer(id, name, kind, value string) events.Part {
	return events.Part{
		Type: events.PartToolResult, ToolCallID: id, ToolName: name,
		Output: &events.ModelOutput{Type: kind, Value: json.RawMessage(value)},
	}
}

func ok(id, name string) events.Part { return answer(id, name, events.OutputJSON, `{}`) }

func TestCheckTranscriptAcceptsWhatIsWellFormed(t *testing.T) {
	t.Parallel()
	err := agenttest.CheckTranscript([]events.Message{
		events.TextMessage(events.RoleSystem, "s"), user("a"), user("b"),
		{Role: events.RoleAssistant, Parts: []events.Part{
			{Type: events.PartReasoning, Signature: "proof"},
			{Type: events.PartText, Text: "t"},
			call("r=1-1", "look_up", `{}`), call("r=1-2", "look_up", ` {"a":1}`),
		}},
		answers(answer("r=1-1", "look_up", events.OutputErrorText, `"no"`), answer("r=1-2", "look_up", events.OutputContent, `[{}]`)),
		asks(call("r=2-1", "x", `{}`)), answers(answer("r=2-1", "x", events.OutputText, `""`)),
		events.TextMessage(events.RoleAssistant, "done"),
	})
	if err != nil {
		t.Error(err)
	}
}

// PAIR-1, PAIR-4, PAIR-8, NAME-2, NAME-7, ARGS-3: what providers refuse.
func TestCheckTranscriptRefuses(t *testing.T) {
	t.Parallel()
	two := asks(call("1", "x", `{}`), call("2", "y", `{}`))
	for name, c := range map[string]struct {
		messages []events.Message
		want     string
	}{
		"no answer at the end":       {[]events.Message{two}, "2 calls have no answer"},
		"a user message first":       {[]events.Message{two, user("hi"), answers(ok("1", "x"), ok("2", "y"))}, "before the answer"},
		"one answer missing":         {[]events.Message{two, answers(ok("1", "x"))}, "call 2 has no answer"},
		"another order":              {[]events.Message{two, answers(ok("2", "y"), ok("1", "x"))}, "want 1 of x"},
		"two groups":                 {[]events.Message{two, answers(ok("1", "x")), answers(ok("2", "y"))}, "call 2 has no answer"},
		"answered twice":             {[]events.Message{two, answers(ok("1", "x"), ok("2", "y"), ok("2", "y"))}, "not open"},
		"answered later again":       {[]events.Message{two, answers(ok("1", "x"), ok("2", "y")), answers(ok("1", "x"))}, "not open"},
		"an answer to nothing":       {[]events.Message{user("a"), answers(ok("1", "x"))}, "not open"},
		"an empty group":             {[]events.Message{two, answers()}, "no parts"},
		"another tool's answer":      {[]events.Message{asks(call("1", "x", `{}`)), answers(ok("1", "y"))}, "want 1 of x"},
		"equal ids":                  {[]events.Message{asks(call("1", "x", `{}`), call("1", "x", `{}`))}, "used twice"},
		"equal ids of two steps":     {[]events.Message{asks(call("1", "x", `{}`)), answers(ok("1", "x")), asks(call("1", "x", `{}`))}, "used twice"},
		"an empty id":                {[]events.Message{asks(call("", "x", `{}`))}, "no id"},
		"a dotted name":              {[]events.Message{asks(call("1", "a.b", `{}`))}, "name"},
		"an empty name":              {[]events.Message{asks(call("1", "", `{}`))}, "name"},
		"a long name":                {[]events.Message{asks(call("1", strings.Repeat("x", 65), `{}`))}, "name"},
		"cut arguments":              {[]events.Message{asks(call("1", "x", `{"a":`))}, "not JSON"},
		"no arguments":               {[]events.Message{asks(call("1", "x", ``))}, "not JSON"},
		"arguments that are a list":  {[]events.Message{asks(call("1", "x", `[]`))}, "no object"},
		"an answer without output":   {[]events.Message{asks(call("1", "x", `{}`)), answers(events.Part{Type: events.PartToolResult, ToolCallID: "1", ToolName: "x"})}, "no output"},
		"an answer that is not JSON": {[]events.Message{asks(call("1", "x", `{}`)), answers(answer("1", "x", events.OutputJSON, ``))}, "output"},
		"a text that is no text":     {[]events.Message{asks(call("1", "x", `{}`)), answers(answer("1", "x", events.OutputText, `1`))}, "output of type"},
		"content without parts":      {[]events.Message{asks(call("1", "x", `{}`)), answers(answer("1", "x", events.OutputContent, `[]`))}, "no parts"},
		"an unknown output":          {[]events.Message{asks(call("1", "x", `{}`)), answers(answer("1", "x", "html", `""`))}, "unknown type"},
		"an empty message":           {[]events.Message{{Role: events.RoleUser}}, "no parts"},
		"an empty text":              {[]events.Message{user("")}, "is empty"},
		"an empty reasoning":         {[]events.Message{asks(events.Part{Type: events.PartReasoning})}, "is empty"},
		"an empty file":              {[]events.Message{{Role: events.RoleUser, Parts: []events.Part{{Type: events.PartFile, MediaType: "a/b"}}}}, "is empty"},
		"a file of no type":          {[]events.Message{{Role: events.RoleUser, Parts: []events.Part{{Type: events.PartFile, Data: "AA=="}}}}, "media type"},
		"a call by the user":         {[]events.Message{{Role: events.RoleUser, Parts: []events.Part{call("1", "x", `{}`)}}}, "does not belong"},
		"an answer by the assistant": {[]events.Message{asks(ok("1", "x"))}, "does not belong"},
		"a text by the tool":         {[]events.Message{asks(call("1", "x", `{}`)), answers(events.Part{Type: events.PartText, Text: "x"})}, "does not belong"},
		"an unknown role":            {[]events.Message{events.TextMessage("robot", "x")}, "does not belong"},
	} {
		if err := agenttest.CheckTranscript(c.messages); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestCheckRequestRefuses(t *testing.T) {
	t.Parallel()
	good := agent.ModelTool{Name: "x", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`)}
	tool := func(name, schema string) []agent.ModelTool {
		return []agent.ModelTool{{Name: name, InputSchema: json.RawMessage(schema)}}
	}
	hi := []events.Message{user("hi")}
	for want, req := range map[string]agent.ModelRequest{
		"no messages":            {},
		"the assistant's":        {Messages: append(hi, events.TextMessage(events.RoleAssistant, "x"))},
		"is empty":               {Messages: []events.Message{user("")}},
		"providers take":         {Messages: hi, Tools: tool("a.b", `{"type":"object"}`)},
		"schema":                 {Messages: hi, Tools: tool("a", `{"type":"thing"}`)},
		"not of an object":       {Messages: hi, Tools: tool("a", `{"type":"string"}`)},
		`two tools`:              {Messages: hi, Tools: []agent.ModelTool{good, good}},
		"names no tool":          {Messages: hi, Tools: []agent.ModelTool{good}, ToolChoice: "tool:y"},
		"required and there is":  {Messages: hi, ToolChoice: "required"},
		`unknown choice "maybe"`: {Messages: hi, ToolChoice: "maybe"},
	} {
		if err := agenttest.CheckRequest(req); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for _, choice := range []string{"", "auto", "none", "required", "tool:x"} {
		if err := agenttest.CheckRequest(agent.ModelRequest{Messages: hi, Tools: []agent.ModelTool{good}, ToolChoice: choice}); err != nil {
			t.Errorf("choice %q: %v", choice, err)
		}
	}
}

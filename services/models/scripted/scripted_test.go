package scripted_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/modeltest"
	"github.com/weirkeeper/weir/services/models/scripted"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	modeltest.Exercise(t, modeltest.Provider{NoRequests: true, Serve: serve})
}

// serve writes a reply as a playbook.
func serve(t *testing.T, _ *modeltest.Log, replies ...modeltest.Reply) agent.Model {
	t.Helper()
	r := replies[0]
	rule := scripted.Rule{Say: strings.Join(r.Text, ""), Think: strings.Join(r.Reasoning, ""), Finish: r.Finish}
	for _, c := range r.Calls {
		args, _ := json.Marshal(strings.Join(c.Args, ""))
		rule.Calls = append(rule.Calls, scripted.Call{Tool: c.Name, Args: args, ID: &c.ID})
	}
	switch {
	case r.Status != 0:
		rule.Fail = &scripted.Fail{Status: r.Status, Message: r.Message, RetryAfter: events.Duration(r.RetryAfter)}
	case r.End == modeltest.EndLost && len(r.Calls) > 0:
		rule.Fail = &scripted.Fail{After: 2}
	case r.End == modeltest.EndLost:
		rule.Fail = &scripted.Fail{After: len(r.Text)}
	}
	return model(t, scripted.Playbook{Rules: []scripted.Rule{rule}})
}

func model(t *testing.T, p scripted.Playbook) *scripted.Model {
	t.Helper()
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := scripted.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	m, err := scripted.New(parsed)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func parse(t *testing.T, text string) *scripted.Model {
	t.Helper()
	p, err := scripted.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	m, err := scripted.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// chat is a conversation with a model: each turn's calls are answered by answers, by tool.
type chat struct {
	model   agent.Model
	tools   []string
	answers map[string]events.Part
	said    []events.Message
	steps   int
}

// tell says something and returns what the model says and does until it asks for nothing more.
func (c *chat) tell(t *testing.T, prompt string) string {
	t.Helper()
	c.said = append(c.said, events.TextMessage(events.RoleUser, prompt))
	var log []string
	for range 5 {
		req := agent.ModelRequest{Messages: c.said}
		for _, name := range c.tools {
			req.Tools = append(req.Tools, agent.ModelTool{Name: name})
		}
		turn := modeltest.Collect(t, c.model.Stream(t.Context(), req))
		if turn.Err != nil {
			t.Fatal(turn.Err)
		}
		if turn.Text != "" {
			log = append(log, turn.Text)
		}
		if len(turn.Calls) == 0 {
			break
		}
		log = append(log, c.answer(turn)...)
	}
	return strings.Join(log, "\n")
}

func (c *chat) answer(turn modeltest.Turn) []string {
	c.steps++
	asked := events.Message{Role: events.RoleAssistant}
	results := events.Message{Role: events.RoleTool}
	var log []string
	for i, call := range turn.Calls {
		id := events.CallID{Run: "r1", Step: c.steps, Index: i + 1}.String()
		asked.Parts = append(asked.Parts, events.Part{Type: events.PartToolCall, ToolCallID: id, ToolName: call.Name, Args: call.Args})
		result := c.answers[call.Name]
		result.Type, result.ToolCallID, result.ToolName = events.PartToolResult, id, call.Name
		results.Parts = append(results.Parts, result)
		log = append(log, "> "+call.Name+call.Args)
	}
	c.said = append(c.said, asked, results)
	return log
}

func worked(raw string) events.Part {
	return events.Part{Output: &events.ModelOutput{Type: events.OutputJSON, Value: json.RawMessage(raw)}}
}

func told(kind, text string) events.Part {
	raw, _ := json.Marshal(text)
	return events.Part{Output: &events.ModelOutput{Type: kind, Value: raw}, IsError: kind == events.OutputErrorText}
}

func builtin(t *testing.T, name string) agent.Model {
	t.Helper()
	m, err := scripted.Builtin(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var supportTools = []string{"issue_refund", "lookup_order"}

func TestSupport(t *testing.T) {
	t.Parallel()
	found := worked(`{"orderId":"1042","total":612.50}`)
	for name, test := range map[string]struct {
		prompt         string
		tools          []string
		lookup, refund events.Part
		want           string
	}{
		"refunded": {
			"Please refund order 1042", supportTools, found, worked(`{"refundId":"rf-1","amount":612.50}`),
			"Let me look up order 1042.\n> lookup_order{\"orderId\":\"1042\"}\nI found it. Now the refund.\n" +
				"> issue_refund{\"orderId\":\"1042\",\"amount\":612.50}\nOrder 1042 was refunded: 612.50.",
		},
		"without amounts": {
			"I want my money back for ord-7", supportTools, worked(`{"ok":true}`), worked(`{"ok":true}`),
			"Let me look up order ord-7.\n> lookup_order{\"orderId\":\"ord-7\"}\nI found it. Now the refund.\n" +
				"> issue_refund{\"orderId\":\"ord-7\"}\nOrder ord-7 was refunded.",
		},
		"declined": {
			"Order #42 arrived broken, refund it", supportTools, found, told(events.OutputText, "Customer already got a voucher"),
			"Let me look up order 42.\n> lookup_order{\"orderId\":\"42\"}\nI found it. Now the refund.\n" +
				"> issue_refund{\"orderId\":\"42\",\"amount\":612.50}\nOrder 42 was not refunded. The reason I was given: Customer already got a voucher",
		},
		"failed": {
			"refund 20 EUR of order no. 42", supportTools, found, told(events.OutputErrorText, "bank is closed"),
			"Let me look up order 42.\n> lookup_order{\"orderId\":\"42\"}\nI found it. Now the refund.\n" +
				"> issue_refund{\"orderId\":\"42\",\"amount\":612.50}\nOrder 42 was not refunded, something went wrong: bank is closed",
		},
		"unknown order": {
			"refund order 9", supportTools, told(events.OutputErrorText, "no order 9"),
			events.Part{},
			"Let me look up order 9.\n> lookup_order{\"orderId\":\"9\"}\nI could not look up order 9, so nothing was refunded: no order 9",
		},
		"lookup declined": {
			"refund order 9", supportTools, told(events.OutputText, "not today"),
			events.Part{},
			"Let me look up order 9.\n> lookup_order{\"orderId\":\"9\"}\nThis is what I found: not today",
		},
		"a question": {
			"Where is my order 1042?", supportTools, found,
			events.Part{},
			"Let me look up order 1042.\n> lookup_order{\"orderId\":\"1042\"}\nThis is what I found: {\"orderId\":\"1042\",\"total\":612.50}",
		},
		"which order": {
			"I need a refund", supportTools, found,
			events.Part{},
			"Which order is it? Tell me its number, for example: Refund order 1042",
		},
	} {
		c := &chat{model: builtin(t, "support"), tools: test.tools, answers: map[string]events.Part{"lookup_order": test.lookup, "issue_refund": test.refund}}
		if diff := cmp.Diff(test.want, c.tell(t, test.prompt)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSupportTalksOn(t *testing.T) {
	t.Parallel()
	c := &chat{model: builtin(t, "support"), tools: supportTools, answers: map[string]events.Part{
		"lookup_order": worked(`{"orderId":"7","total":5}`), "issue_refund": worked(`{"ok":true}`),
	}}
	if got := c.tell(t, "A refund, please"); !strings.HasPrefix(got, "Which order") {
		t.Errorf("got %q", got)
	}
	if got := c.tell(t, "7."); !strings.HasSuffix(got, "Order 7 was refunded.") {
		t.Errorf("got %q", got)
	}
	if got := c.tell(t, "And order 8 too, refund it"); strings.Count(got, ">") != 2 || !strings.HasSuffix(got, "Order 8 was refunded.") {
		t.Errorf("results of an earlier turn count: %q", got)
	}
}

func TestSupportSaysWhatItIs(t *testing.T) {
	t.Parallel()
	for _, prompt := range []string{"What is the capital of France?", "", "Write a poem about order", "Refund order 7"} {
		c := &chat{model: builtin(t, "support"), tools: []string{"find_user"}}
		got := c.tell(t, prompt)
		if !strings.Contains(got, "not an AI") || !strings.Contains(got, "find_user") || !strings.Contains(got, "OPENAI_API_KEY") {
			t.Errorf("%q is answered %q", prompt, got)
		}
	}
}

func TestBench(t *testing.T) {
	t.Parallel()
	m := builtin(t, "bench")
	ids := map[string]bool{}
	for range 100 {
		turn := modeltest.Collect(t, m.Stream(t.Context(), agent.ModelRequest{
			Messages: []events.Message{events.TextMessage(events.RoleUser, "Please refund order 42")},
			Tools:    []agent.ModelTool{{Name: "lookup_order"}},
		}))
		if len(turn.Calls) != 1 || turn.Calls[0].Name != "lookup_order" || turn.Calls[0].Args != `{"orderId":"42"}` {
			t.Fatalf("got %+v", turn)
		}
		ids[turn.Calls[0].ProviderID] = true
	}
	if len(ids) != 100 {
		t.Errorf("%d different ids of 100", len(ids))
	}
	c := &chat{model: m, tools: []string{"lookup_order"}, answers: map[string]events.Part{"lookup_order": worked(`{"ok":true,"amount":10}`)}}
	if got, want := c.tell(t, "Please refund order 42"), "> lookup_order{\"orderId\":\"42\"}\nOrder 42 was refunded."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBuiltinUnknown(t *testing.T) {
	t.Parallel()
	if _, err := scripted.Builtin("gpt"); err == nil || !strings.Contains(err.Error(), "bench, support") {
		t.Errorf("got %v", err)
	}
}

func TestDeltasAreSmallAndPaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := parse(t, `{"delay":"10ms","rules":[
			{"when":{"user":"slow"},"delay":"1s","say":"one two three"},
			{"calls":[{"tool":"note","args":{"text":"ääääääääääää and more"}}]}]}`)
		for prompt, want := range map[string]struct {
			parts int
			took  time.Duration
		}{"slow": {4, 4 * time.Second}, "fast": {7, 70 * time.Millisecond}} {
			start, n := time.Now(), 0
			for p, err := range m.Stream(t.Context(), agent.ModelRequest{Messages: []events.Message{events.TextMessage(events.RoleUser, prompt)}}) {
				if n++; err != nil || len(p.Text) > 13 || !json.Valid([]byte(fmt.Sprintf("%q", p.Text))) || strings.ContainsRune(p.Text, '\uFFFD') {
					t.Errorf("part %+v, %v", p, err)
				}
			}
			if n != want.parts || time.Since(start) != want.took {
				t.Errorf("%s: %d parts in %v, want %v", prompt, n, time.Since(start), want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		turn := modeltest.Collect(t, m.Stream(ctx, agent.ModelRequest{Messages: []events.Message{events.TextMessage(events.RoleUser, "slow")}}))
		if !errors.Is(turn.Err, context.DeadlineExceeded) || turn.Text != "one " {
			t.Errorf("got %+v", turn)
		}
	})
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	m := parse(t, `{"rules":[
		{"when":{"user":["^pay (?P<who>\\w+) (?P<sum>[\\d.]+)$","^(?P<who>\\w+) gets (?P<sum>[\\d.]+)$"],"before":["*"]},
		 "think":"Paying {{.who}}.",
		 "calls":[{"tool":"find","args":{"name":"{{.who}}","tags":["a","{{.who}}"],"n":9007199254740993,"deep":{"x":null}}},
		          {"tool":"pay","args":"{\"to\":{{json .who}},\"sum\":{{.sum}}}"},
		          {"tool":"now"},{"tool":"static","args":{ "z": 1.10, "a": "<b>" }}]},
		{"when":{"result":{"find":"\"id\":\"(?P<id>[^\"]+)\""}},"say":"{{.id}}: {{text .results.find}} / {{.results.find.n}} / {{text .results.pay}} / {{.user}}"},
		{"when":{"failed":["pay"]},"say":"failed: {{.results.pay}}"}]}`)
	c := &chat{model: m, answers: map[string]events.Part{
		"find": worked(`{"id":"u-1","n":9007199254740993}`), "pay": worked(`[1]`), "now": worked(`null`), "static": worked(`"x"`),
	}}
	want := `> find{"deep":{"x":null},"n":9007199254740993,"name":"Ann","tags":["a","Ann"]}` + "\n" +
		`> pay{"to":"Ann","sum":1.50}` + "\n> now\n" + `> static{"z":1.10,"a":"<b>"}` + "\n" +
		`u-1: {"id":"u-1","n":9007199254740993} / 9007199254740993 / [1] / Ann gets 1.50`
	if diff := cmp.Diff(want, c.tell(t, "Ann gets 1.50")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	c.answers["find"], c.answers["pay"] = worked(`{}`), told(events.OutputErrorText, "broke")
	if got := c.tell(t, "pay Bob 2"); !strings.HasSuffix(got, "failed: broke") {
		t.Errorf("got %q", got)
	}
	if got := c.tell(t, "hello"); !strings.Contains(got, "scripted model, not an AI") {
		t.Errorf("an unscripted prompt is answered %q", got)
	}
}

func TestTemplateThatFails(t *testing.T) {
	t.Parallel()
	m := parse(t, `{"rules":[{"when":{"user":"a"},"say":"{{.gone}}"},{"calls":[{"tool":"x","args":{"a":"{{.gone}}"}}]}]}`)
	for _, prompt := range []string{"a", "b"} {
		turn := modeltest.Collect(t, m.Stream(t.Context(), agent.ModelRequest{Messages: []events.Message{events.TextMessage(events.RoleUser, prompt)}}))
		e, ok := errors.AsType[*agent.ModelError](turn.Err)
		if !ok || e.Retryable || !strings.Contains(e.Error(), "rule") {
			t.Errorf("got %v", turn.Err)
		}
	}
}

func TestCase_PROV5Failures(t *testing.T) {
	t.Parallel()
	m := parse(t, `{"rules":[
		{"when":{"user":"early"},"say":"Now it works.","fail":{"status":429,"retryAfter":"3s","times":2}},
		{"when":{"user":"middle"},"say":"one two three","fail":{"status":529,"after":2,"message":"overloaded"}},
		{"when":{"user":"late"},"say":"one","fail":{"after":99}},
		{"when":{"user":"final"},"fail":{"status":400}},
		{"when":{"user":"cut"},"calls":[{"tool":"a","args":{"x":"yyyyyyyyyyyyyyyyyyyy"}}],"finish":"length"},
		{"when":{"user":"liar"},"calls":[{"tool":"a"}],"finish":"stop"},
		{"when":{"user":"empty"},"finish":"tool-calls"}]}`)
	ask := func(prompt string) modeltest.Turn {
		return modeltest.Collect(t, m.Stream(t.Context(), agent.ModelRequest{Messages: []events.Message{events.TextMessage(events.RoleUser, prompt)}}))
	}
	failure := func(prompt string) *agent.ModelError {
		turn := ask(prompt)
		e, ok := errors.AsType[*agent.ModelError](turn.Err)
		if !ok {
			t.Fatalf("%s: the turn ended in %v, want a ModelError", prompt, turn.Err)
		}
		return e
	}
	for range 2 {
		if e := failure("early"); !e.Retryable || e.Status != 429 || e.After != 3*time.Second {
			t.Errorf("early: %+v", e)
		}
	}
	if turn := ask("early"); turn.Err != nil || turn.Text != "Now it works." {
		t.Errorf("third try: %+v", turn)
	}
	if turn := ask("middle"); turn.Text != "one two " || !strings.Contains(turn.Err.Error(), "overloaded") {
		t.Errorf("middle: %+v", turn)
	}
	if e := failure("late"); !e.Retryable || e.Status != 0 {
		t.Errorf("late: %+v", e)
	}
	if e := failure("final"); e.Retryable {
		t.Errorf("final: %+v", e)
	}
	if turn := ask("cut"); turn.Reason != agent.FinishLength || turn.Calls[0].Ended || !strings.HasPrefix(turn.Calls[0].Args, `{"x":"yyy`) {
		t.Errorf("cut: %+v", turn)
	}
	if turn := ask("liar"); turn.Reason != agent.FinishStop || !turn.Calls[0].Ended {
		t.Errorf("liar: %+v", turn)
	}
	if turn := ask("empty"); turn.Err != nil || turn.Text != "" || turn.Reason != agent.FinishToolCalls {
		t.Errorf("empty: %+v", turn)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"rules":[{"sya":"x"}]}`:                                "sya",
		`{"rules":[{"say":"x"}]} {}`:                             "follows",
		`{"rules":[{"say":"x"},{}]}`:                             "rule 2",
		`{"rules":[{"say":"{{.x"}]}`:                             "rule 1: say",
		`{"rules":[{"think":"{{nope}}"}]}`:                       "rule 1: think",
		`{"rules":[{"when":{"user":"("},"say":"x"}]}`:            "when.user",
		`{"rules":[{"when":{"result":{"t":"["}},"say":"x"}]}`:    "when.result.t",
		`{"rules":[{"calls":[{"args":{}}]}]}`:                    "names no tool",
		`{"rules":[{"calls":[{"tool":"t","args":{"a":"{{"}}]}]}`: "t: a",
		`{"rules":[{"calls":[{"tool":"t","args":"{{end}}"}]}]}`:  "calls: t",
		`{"rules":[{"say":"x","delay":"soon"}]}`:                 "soon",
		`[]`:                                                     "playbook",
	} {
		if _, err := scripted.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%s) = %v, want %q in it", text, err, want)
		}
	}
}

package agenttest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

// failures is a test that only notes what fails it.
type failures struct {
	testing.TB
	texts []string
}

func (f *failures) Helper() {}

func (f *failures) Errorf(format string, args ...any) {
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}

func read(ctx context.Context, m agent.Model, req agent.ModelRequest) ([]agent.ModelPart, error) {
	var parts []agent.ModelPart
	for part, err := range m.Stream(ctx, req) {
		if err != nil {
			return parts, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

func greet() agent.ModelRequest {
	return agent.ModelRequest{Messages: []events.Message{user("hi")}}
}

func TestModelSaysItsSteps(t *testing.T) {
	t.Parallel()
	m := agenttest.NewModel(t,
		agenttest.Step{Reasoning: "hm", Text: "ok", Calls: []agenttest.ToolCall{{Name: "x", Args: `{"é":1}`}, {Name: "y", Args: `{"a`, Cut: true}}},
		agenttest.Say("a"),
	)
	m.Then(agenttest.Ask("x", map[string]int{"n": 1}))
	got, err := read(t.Context(), m, greet())
	if err != nil {
		t.Fatal(err)
	}
	want := []agent.ModelPart{
		{Type: "reasoning-delta", Text: "h"},
		{Type: "reasoning-delta", Text: "m"},
		{Type: "text-delta", Text: "o"},
		{Type: "text-delta", Text: "k"},
		{Type: "tool-input-start", ID: "0", ToolName: "x"},
		{Type: "tool-input-delta", ID: "0", Text: `{"é`},
		{Type: "tool-input-delta", ID: "0", Text: `":1}`},
		{Type: "tool-input-end", ID: "0"},
		{Type: "tool-input-start", ID: "1", ToolName: "y"},
		{Type: "tool-input-delta", ID: "1", Text: `{`},
		{Type: "tool-input-delta", ID: "1", Text: `"a`},
		{Type: "finish", FinishReason: "tool-calls", Usage: events.Usage{InputTokens: 10, OutputTokens: 5, TotalTokens: 15}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := read(t.Context(), m, greet()); err != nil || len(got) != 2 || got[1].FinishReason != agent.FinishStop {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := read(t.Context(), m, greet()); err != nil || got[1].Text+got[2].Text != `{"n":1}` {
		t.Errorf("got %v, %v", got, err)
	}
	if m.Left() != 0 || len(m.Requests()) != 3 {
		t.Errorf("%d steps left, %d requests", m.Left(), len(m.Requests()))
	}
}

func TestModelFails(t *testing.T) {
	t.Parallel()
	overload := &agent.ModelError{Retryable: true, Status: 529, Err: errors.New("overloaded")}
	m := agenttest.NewModel(t, agenttest.Step{Text: "half", Err: overload}, agenttest.Say("whole"))
	got, err := read(t.Context(), m, greet())
	if !errors.Is(err, overload) || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := read(ctx, m, greet()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestModelRefusesIllegalRequests(t *testing.T) {
	t.Parallel()
	var f failures
	m := agenttest.NewModel(&f, agenttest.Step{Text: "x", Check: func(agent.ModelRequest) error { return errors.New("not this") }})
	broken := agent.ModelRequest{Messages: []events.Message{user("a"), asks(call("1", "x", `{}`))}}
	for _, req := range []agent.ModelRequest{broken, greet(), greet()} {
		_, err := read(t.Context(), m, req)
		refused, ok := errors.AsType[*agent.ModelError](err)
		if !ok || refused.Retryable || refused.Status != 400 {
			t.Errorf("got %v", err)
		}
	}
	if len(f.texts) != 3 || !strings.Contains(f.texts[0], "no answer") || !strings.Contains(f.texts[1], "not this") ||
		!strings.Contains(f.texts[2], "nothing is left") {
		t.Errorf("got %q", f.texts)
	}
	if len(m.Requests()) != 3 {
		t.Errorf("%d requests are kept", len(m.Requests()))
	}
}

func TestModelKeepsRequestsAsTheyWere(t *testing.T) {
	t.Parallel()
	m := agenttest.NewModel(t, agenttest.Say("a"))
	req := greet()
	if _, err := read(t.Context(), m, req); err != nil {
		t.Fatal(err)
	}
	req.Messages[0].Parts[0].Text = "changed"
	if got := m.Requests()[0].Messages[0].Text(); got != "hi" {
		t.Errorf("got %q", got)
	}
}

func TestModelStopsWithItsReader(t *testing.T) {
	t.Parallel()
	m := agenttest.NewModel(t, agenttest.Say("a long text"))
	for _, err := range m.Stream(t.Context(), greet()) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if m.Left() != 0 {
		t.Error("the step counts as said")
	}
}

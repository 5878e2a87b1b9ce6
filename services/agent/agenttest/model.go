package agenttest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Step is one turn of a scripted model.
type Step struct {
	Text      string     // said first
	Reasoning string     // thought before that
	Calls     []ToolCall // asked for last

	FinishReason agent.FinishReason // default: tool-calls with calls, else stop
	Usage        events.Usage       // default: 10 tokens in, 5 out

	// Err ends the stream after what the step says, before its finish.
	Err error
	// Parts, when given, are the whole turn, as they stand.
	Parts []agent.ModelPart
	// Check looks at the request before the step answers it; an error fails the test.
	Check func(agent.ModelRequest) error
}

// ToolCall is a call that a scripted model asks for.
type ToolCall struct {
	Name           string
	Args           string // the text of the arguments, sent in two pieces; not checked
	ProviderCallID string // may be empty, or equal to that of another call
	Cut            bool   // the turn ends inside the arguments
}

// Model is a scripted model: it answers each request with the next step. A request that a strict provider would
// refuse, or one too many, fails the test and is answered with an error that is not worth a retry. It may be used by
// several goroutines.
type Model struct {
	tb testing.TB

	mu       sync.Mutex
	steps    []Step
	requests []agent.ModelRequest
}

var _ agent.Model = (*Model)(nil)

// NewModel makes a model that says steps.
func NewModel(tb testing.TB, steps ...Step) *Model {
	tb.Helper()
	return &Model{tb: tb, steps: steps}
}

// Say is a step of one text.
func Say(text string) Step { return Step{Text: text} }

// Ask is a step that calls one tool. Arguments are JSON text, or a value that encodes to it.
func Ask(name string, args any) Step {
	text, ok := args.(string)
	if !ok {
		raw, err := events.Marshal(args)
		if err != nil {
			return Step{Err: fmt.Errorf("arguments of %s: %w", name, err)}
		}
		text = string(raw)
	}
	return Step{Calls: []ToolCall{{Name: name, Args: text}}}
}

// Then adds steps to those that are left.
func (m *Model) Then(steps ...Step) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps = append(m.steps, steps...)
}

// Requests are all requests so far, refused ones included, in order.
func (m *Model) Requests() []agent.ModelRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// Left is how many steps have not been said.
func (m *Model) Left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.steps)
}

// Stream answers with the next step.
func (m *Model) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return func(yield func(agent.ModelPart, error) bool) {
		step, err := m.next(req)
		if err != nil {
			m.tb.Errorf("model request refused: %v", err)
			yield(agent.ModelPart{}, &agent.ModelError{Status: http.StatusBadRequest, Err: err})
			return
		}
		for _, part := range step.parts() {
			if err := ctx.Err(); err != nil {
				yield(agent.ModelPart{}, err)
				return
			}
			if !yield(part, nil) {
				return
			}
		}
		if step.Err != nil {
			yield(agent.ModelPart{}, step.Err)
		}
	}
}

func (m *Model) next(req agent.ModelRequest) (Step, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests = append(m.requests, clone(req))
	if err := CheckRequest(req); err != nil {
		return Step{}, err
	}
	if len(m.steps) == 0 {
		return Step{}, errors.New("nothing is left to say")
	}
	step := m.steps[0]
	m.steps = m.steps[1:]
	if step.Check != nil {
		if err := step.Check(req); err != nil {
			return Step{}, err
		}
	}
	return step, nil
}

// clone keeps a request as it was, whatever its sender does with it later.
func clone(req agent.ModelRequest) agent.ModelRequest {
	req.Messages = slices.Clone(req.Messages)
	for i := range req.Messages {
		req.Messages[i].Parts = slices.Clone(req.Messages[i].Parts)
	}
	req.Tools = slices.Clone(req.Tools)
	for i := range req.Tools {
		req.Tools[i].InputSchema = slices.Clone(req.Tools[i].InputSchema)
	}
	req.Settings = slices.Clone(req.Settings)
	return req
}

func (s Step) parts() []agent.ModelPart {
	if s.Parts != nil {
		return s.Parts
	}
	var parts []agent.ModelPart
	for _, said := range []struct {
		kind agent.ModelPartType
		text string
	}{{agent.PartReasoningDelta, s.Reasoning}, {agent.PartTextDelta, s.Text}} {
		for _, piece := range halves(said.text) {
			parts = append(parts, agent.ModelPart{Type: said.kind, Text: piece})
		}
	}
	for i, call := range s.Calls {
		parts = append(parts, call.parts(strconv.Itoa(i))...)
	}
	if s.Err != nil {
		return parts
	}
	return append(parts, s.finish())
}

func (s Step) finish() agent.ModelPart {
	end := agent.ModelPart{Type: agent.PartFinish, FinishReason: s.FinishReason, Usage: s.Usage}
	if end.FinishReason == "" {
		end.FinishReason = agent.FinishStop
		if len(s.Calls) > 0 {
			end.FinishReason = agent.FinishToolCalls
		}
	}
	if end.Usage == (events.Usage{}) {
		end.Usage = events.Usage{InputTokens: 10, OutputTokens: 5, TotalTokens: 15}
	}
	return end
}

func (c ToolCall) parts(id string) []agent.ModelPart {
	parts := []agent.ModelPart{{
		Type: agent.PartToolInputStart, ID: id, ToolName: c.Name, ProviderCallID: c.ProviderCallID,
	}}
	for _, piece := range halves(c.Args) {
		parts = append(parts, agent.ModelPart{Type: agent.PartToolInputDelta, ID: id, Text: piece})
	}
	if c.Cut {
		return parts
	}
	return append(parts, agent.ModelPart{Type: agent.PartToolInputEnd, ID: id})
}

// halves cuts a text in two, so that readers have something to put together. What is not UTF-8 stays as it is.
func halves(text string) []string {
	r := []rune(text)
	switch {
	case len(r) == 0:
		return nil
	case len(r) == 1 || !utf8.ValidString(text):
		return []string{text}
	}
	return []string{string(r[:len(r)/2]), string(r[len(r)/2:])}
}

package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// MaxInstructions bounds the bytes of instructions that are a template, and of what it makes.
const MaxInstructions = 256 << 10

// Told is what the model of a run is told first: the request's word as it stands, else that of the agent, which is a template
// over the request context.
func (s *State) Told(agent AgentDef) (string, error) {
	if s.Options.Instructions != nil {
		return *s.Options.Instructions, nil
	}
	return RenderInstructions(agent.Instructions, s.RequestContext)
}

// CheckInstructions says what is wrong with instructions of an agent, before there is a context.
func CheckInstructions(text string) error {
	if !strings.Contains(text, "{{") {
		return nil
	}
	_, err := parseTemplate(text, MaxInstructions)
	return err
}

// RenderInstructions puts values of the request context into a text, in the syntax of package text/template: {{.tenant}}. A
// value that the context lacks is an error. A text without {{ stays as it is.
func RenderInstructions(text string, context json.RawMessage) (string, error) {
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	t, err := parseTemplate(text, MaxInstructions)
	if err != nil {
		return "", err
	}
	if len(context) == 0 {
		context = json.RawMessage("{}")
	}
	if err := CheckJSON(context); err != nil {
		return "", fmt.Errorf("the request context: %w", err)
	}
	out, full, err := t.render(decodeAny(context), MaxInstructions)
	if full {
		err = errors.New("the instructions are too long")
	}
	return out, err
}

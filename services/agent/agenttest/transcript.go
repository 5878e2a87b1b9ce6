package agenttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

var legalName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// CheckTranscript reports what a strict provider would refuse in the messages of a request: a call that is not
// answered exactly once, in call order, in the one message right after it; an answer without a call; an id that is
// used twice; a name outside [A-Za-z0-9_-]{1,64}; arguments that are no JSON object; messages, parts and texts that
// are empty or do not belong to their role.
func CheckTranscript(messages []events.Message) error {
	c := transcript{calls: map[string]bool{}}
	for i, m := range messages {
		if err := c.message(m); err != nil {
			return fmt.Errorf("message %d (%s): %w", i, m.Role, err)
		}
	}
	if len(c.open) > 0 {
		return fmt.Errorf("%d calls have no answer, the first is %s", len(c.open), c.open[0].ToolCallID)
	}
	return nil
}

// transcript is what has been read of one.
type transcript struct {
	calls map[string]bool // every call so far
	open  []events.Part   // the calls that the next message must answer
}

func (c *transcript) message(m events.Message) error {
	if len(m.Parts) == 0 {
		return errors.New("has no parts")
	}
	if m.Role == events.RoleTool {
		return c.answers(m)
	}
	if len(c.open) > 0 {
		return fmt.Errorf("stands before the answer to call %s", c.open[0].ToolCallID)
	}
	for i, p := range m.Parts {
		if err := c.part(m.Role, p); err != nil {
			return fmt.Errorf("part %d (%s): %w", i, p.Type, err)
		}
	}
	return nil
}

// partsOf says which parts a message of a role may have. Answers have a rule of their own.
var partsOf = map[events.Role][]string{
	events.RoleSystem:    {events.PartText},
	events.RoleUser:      {events.PartText, events.PartFile},
	events.RoleAssistant: {events.PartText, events.PartReasoning, events.PartFile, events.PartToolCall},
}

func (c *transcript) part(role events.Role, p events.Part) error {
	if !slices.Contains(partsOf[role], p.Type) {
		return errors.New("does not belong there")
	}
	switch p.Type {
	case events.PartText:
		if p.Text == "" {
			return errors.New("is empty")
		}
	case events.PartReasoning:
		if p.Text == "" && p.Signature == "" {
			return errors.New("is empty")
		}
	case events.PartFile:
		if p.Data == "" && p.URL == "" && p.DataRef == "" {
			return errors.New("is empty")
		}
		if p.MediaType == "" && p.URL == "" {
			return errors.New("has no media type")
		}
	case events.PartToolCall:
		return c.call(p)
	}
	return nil
}

func (c *transcript) call(p events.Part) error {
	switch {
	case p.ToolCallID == "":
		return errors.New("has no id")
	case c.calls[p.ToolCallID]:
		return fmt.Errorf("the id %s is used twice", p.ToolCallID)
	case !legalName.MatchString(p.ToolName):
		return fmt.Errorf("the name %q is not one that providers take", p.ToolName)
	case events.CheckJSON([]byte(p.Args)) != nil:
		return fmt.Errorf("the arguments are not JSON: %w", events.CheckJSON([]byte(p.Args)))
	case !strings.HasPrefix(strings.TrimSpace(p.Args), "{"):
		return errors.New("the arguments are no object")
	}
	c.calls[p.ToolCallID] = true
	c.open = append(c.open, p)
	return nil
}

// answers checks the one message that answers the calls before it.
func (c *transcript) answers(m events.Message) error {
	for i, p := range m.Parts {
		if p.Type != events.PartToolResult {
			return fmt.Errorf("part %d (%s): does not belong there", i, p.Type)
		}
		if i >= len(c.open) {
			return fmt.Errorf("part %d: call %q is not open", i, p.ToolCallID)
		}
		if call := c.open[i]; p.ToolCallID != call.ToolCallID || p.ToolName != call.ToolName {
			return fmt.Errorf("part %d: answers %s of %s, want %s of %s", i, p.ToolCallID, p.ToolName, call.ToolCallID,
				call.ToolName)
		}
		if err := checkOutput(p.Output); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
	}
	if len(m.Parts) < len(c.open) {
		return fmt.Errorf("call %s has no answer", c.open[len(m.Parts)].ToolCallID)
	}
	c.open = nil
	return nil
}

func checkOutput(o *events.ModelOutput) error {
	if o == nil {
		return errors.New("has no output")
	}
	if err := events.CheckJSON(o.Value); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	var err error
	switch o.Type {
	case events.OutputJSON:
	case events.OutputText, events.OutputErrorText:
		var text string
		err = json.Unmarshal(o.Value, &text)
	case events.OutputContent:
		var parts []json.RawMessage
		if err = json.Unmarshal(o.Value, &parts); err == nil && len(parts) == 0 {
			err = errors.New("no parts")
		}
	default:
		err = errors.New("unknown type")
	}
	if err != nil {
		return fmt.Errorf("output of type %q: %w", o.Type, err)
	}
	return nil
}

// CheckRequest reports what a strict provider would refuse in a request: its transcript, a transcript that is empty or
// ends with the assistant, tools with equal or illegal names, schemas that do not compile or are not of objects, and
// a choice that names no tool.
func CheckRequest(req agent.ModelRequest) error {
	if err := CheckTranscript(req.Messages); err != nil {
		return err
	}
	if len(req.Messages) == 0 {
		return errors.New("there are no messages")
	}
	if last := req.Messages[len(req.Messages)-1]; last.Role == events.RoleAssistant {
		return errors.New("the last message is the assistant's")
	}
	names := map[string]bool{}
	for _, tool := range req.Tools {
		if err := checkTool(tool); err != nil {
			return fmt.Errorf("tool %q: %w", tool.Name, err)
		}
		if names[tool.Name] {
			return fmt.Errorf("two tools have the name %q", tool.Name)
		}
		names[tool.Name] = true
	}
	return checkChoice(req.ToolChoice, names)
}

func checkTool(t agent.ModelTool) error {
	if !legalName.MatchString(t.Name) {
		return errors.New("the name is not one that providers take")
	}
	if _, err := events.CompileSchema(t.InputSchema); err != nil {
		return err
	}
	var schema struct {
		Type any `json:"type"`
	}
	if err := json.Unmarshal(t.InputSchema, &schema); err != nil || schema.Type != "object" {
		return errors.New("the schema is not of an object")
	}
	return nil
}

func checkChoice(choice string, names map[string]bool) error {
	if name, named := strings.CutPrefix(choice, "tool:"); named {
		if !names[name] {
			return fmt.Errorf("the choice %q names no tool", choice)
		}
		return nil
	}
	switch choice {
	case "", "auto", "none":
		return nil
	case "required":
		if len(names) == 0 {
			return errors.New("a tool is required and there is none")
		}
		return nil
	}
	return fmt.Errorf("unknown choice %q", choice)
}

package openai

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// wireTool is a tool as a request offers it.
type wireTool struct {
	Type     string       `json:"type"`
	Function wireFunction `json:"function"`
}

type wireFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict,omitempty"`
}

// addTools offers the tools and says how they may be chosen. A tool whose schema cannot be projected is left out alone,
// with a warning. With the choice "none" nothing is offered, so that nothing can be called.
func (c *Client) addTools(body *object, p *prepared, req agent.ModelRequest) error {
	if req.ToolChoice == choiceNone {
		return nil
	}
	var tools []wireTool
	offered := map[string]string{}
	for _, t := range req.Tools {
		f, err := c.function(p, t)
		if err != nil {
			p.warn("tool %q is left out: %v", t.Name, err)
			continue
		}
		if other, taken := offered[f.Name]; taken {
			return events.Errorf(events.CodeToolNameCollision, "tools %q and %q have the same name for models", other, t.Name)
		}
		offered[f.Name] = t.Name
		tools = append(tools, wireTool{Type: "function", Function: f})
	}
	choice, err := toolChoice(req.ToolChoice, offered)
	if err != nil || len(tools) == 0 {
		return err
	}
	if err := setJSON(body, "tools", tools); err != nil {
		return err
	}
	return setJSON(body, "tool_choice", choice)
}

// Forms of a tool choice.
const (
	choiceNone = "none"
	choiceTool = "tool:" // and a name
)

// toolChoice is a choice in this protocol's form. One that cannot be kept is an error, never a wider choice.
func toolChoice(choice string, offered map[string]string) (any, error) {
	name, one := strings.CutPrefix(choice, choiceTool)
	switch {
	case choice == "" || choice == "auto":
		return "auto", nil
	case choice == "required" && len(offered) > 0:
		return "required", nil
	case one && offered[agent.SafeName(name)] != "":
		function := map[string]string{"name": agent.SafeName(name)}
		return map[string]any{"type": "function", "function": function}, nil
	default:
		return nil, events.Errorf(events.CodeInvalidRequest, "tool choice %q: no such tool is offered", choice)
	}
}

// function projects one tool. Strict is asked for where the server knows it and the schema can be said in it.
func (c *Client) function(p *prepared, t agent.ModelTool) (wireFunction, error) {
	f := wireFunction{Name: agent.SafeName(t.Name), Description: t.Description}
	if f.Name == "" {
		return f, errors.New("it has no name")
	}
	var err error
	if f.Parameters, err = parameters(t.InputSchema); err != nil || !t.Strict || !c.dialect.Strict {
		return f, err
	}
	strict, err := strictParameters(f.Parameters)
	if err != nil {
		p.warn("tool %q is not strict: %v", t.Name, err)
		return f, nil
	}
	f.Parameters, f.Strict = strict, true
	return f, nil
}

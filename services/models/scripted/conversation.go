package scripted

import (
	"bytes"
	"encoding/json"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// conversation is what rules look at.
type conversation struct {
	user    string   // the last user message
	results []result // since then, in order
	tools   []string // that are offered
}

// result is what the model is told of a call.
type result struct {
	tool   string
	text   string
	value  any // the result as JSON, or its text
	failed bool
}

func read(req agent.ModelRequest) *conversation {
	c := &conversation{}
	for _, t := range req.Tools {
		c.tools = append(c.tools, t.Name)
	}
	for _, m := range req.Messages {
		switch m.Role {
		case events.RoleUser:
			c.user, c.results = m.Text(), nil
		case events.RoleTool:
			for _, p := range m.Parts {
				if p.Type == events.PartToolResult {
					c.results = append(c.results, resultOf(p))
				}
			}
		default:
		}
	}
	return c
}

// latest is the newest result of a tool since the user spoke, or nil.
func (c *conversation) latest(tool string) *result {
	for i := len(c.results) - 1; i >= 0; i-- {
		if c.results[i].tool == tool {
			return &c.results[i]
		}
	}
	return nil
}

func resultOf(p events.Part) result {
	r := result{tool: p.ToolName, failed: p.IsError}
	if p.Output == nil {
		return r
	}
	r.text = string(p.Output.Value)
	dec := json.NewDecoder(bytes.NewReader(p.Output.Value))
	dec.UseNumber() // digits stay as the tool wrote them
	if dec.Decode(&r.value) != nil {
		r.value = r.text
	}
	if text, ok := r.value.(string); ok {
		r.text = text
	}
	return r
}

// values are what templates may use: the groups of the patterns by their names, "user", "tools" and "results".
func (c *conversation) values(groups map[string]string) map[string]any {
	v := map[string]any{"user": c.user, "tools": c.tools}
	results := map[string]any{}
	for _, r := range c.results {
		results[r.tool] = r.value
	}
	v["results"] = results
	for name, text := range groups {
		v[name] = text
	}
	return v
}

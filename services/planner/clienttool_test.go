package planner

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
)

// TestB20_4_ClientToolsThatCannotBe: tools of a request that no call could be made to, or that models could not tell apart, are
// refused with what is wrong with which.
func TestB20_4_ClientToolsThatCannotBe(t *testing.T) {
	t.Parallel()
	good := events.ClientTool{Description: "Paints", InputSchema: json.RawMessage(`{"type":"object"}`)}
	bad := func(change func(*events.ClientTool)) map[string]events.ClientTool {
		c := good
		change(&c)
		return map[string]events.ClientTool{"paint": c}
	}
	many := map[string]events.ClientTool{}
	for i := range events.MaxClientTools + 1 {
		many[strings.Repeat("x", i+1)] = good
	}
	agent := events.AgentDef{ID: "support", Tools: map[string]string{"look": "look"}}
	for name, test := range map[string]struct {
		tools map[string]events.ClientTool
		says  string
	}{
		"none":               {nil, ""},
		"good":               {map[string]events.ClientTool{"paint": good}, ""},
		"in place of one":    {map[string]events.ClientTool{"look": good}, ""},
		"no description":     {bad(func(c *events.ClientTool) { c.Description = " " }), "paint.description"},
		"arguments, a text":  {bad(func(c *events.ClientTool) { c.InputSchema = json.RawMessage(`{"type":"string"}`) }), "paint.inputSchema"},
		"reserved argument":  {bad(func(c *events.ClientTool) { c.InputSchema = json.RawMessage(`{"properties":{"resumeData":{}}}`) }), "reserved"},
		"no schema":          {bad(func(c *events.ClientTool) { c.OutputSchema = json.RawMessage(`{"type":"strange"}`) }), "paint.outputSchema"},
		"no end":             {bad(func(c *events.ClientTool) { c.OnExpiry = "approve" }), "paint.onExpiry"},
		"no time":            {bad(func(c *events.ClientTool) { c.Expires = -1 }), "paint.expires"},
		"no key":             {map[string]events.ClientTool{"": good}, "empty"},
		"one name":           {map[string]events.ClientTool{"a b": good, "a_b": good}, "same name"},
		"the name of theirs": {map[string]events.ClientTool{"look": good, "loo k": good, "loo_k": good}, "same name"},
		"too large":          {bad(func(c *events.ClientTool) { c.Description = strings.Repeat("x", events.MaxClientToolBytes) }), "bytes"},
		"too many":           {many, "64"},
	} {
		refusal := checkClientTools(events.RunRequested{ClientTools: test.tools}, agent)
		switch {
		case test.says == "" && refusal != nil:
			t.Errorf("%s: refused: %s", name, refusal.Message)
		case test.says == "":
		case refusal == nil:
			t.Errorf("%s: not refused", name)
		case refusal.Code != events.CodeInvalidRequest || !strings.HasPrefix(refusal.Message, "clientTools: ") || !strings.Contains(refusal.Message, test.says):
			t.Errorf("%s: %s %q, want one about %q", name, refusal.Code, refusal.Message, test.says)
		}
	}
}

// TestB13_7_AClientToolOfTheAgentStaysItself: one of the request that has its key keeps its id, its mapping and its rules.
func TestB13_7_AClientToolOfTheAgentStaysItself(t *testing.T) {
	t.Parallel()
	own := events.Manifest{
		ID: "shop-paint", Version: "3", Description: "Paints the shop", Pool: "default", Effect: events.Effectful,
		ToModelOutput: json.RawMessage(`{"jq":"null"}`), Source: events.Source{Kind: events.SourceClient},
	}
	hosted := own
	hosted.Source.Kind = "go"
	d := definition{tools: map[string]events.Manifest{"paint": own, "look": hosted}}
	c := events.ClientTool{Description: "Paints the page", OutputSchema: json.RawMessage(`{"type":"object"}`)}
	d.addClientTools(map[string]events.ClientTool{"paint": c, "look": c, "new": c})
	got := d.tools["paint"]
	if got.ID != own.ID || got.Version != "3" || string(got.ToModelOutput) != string(own.ToModelOutput) ||
		got.Description != "Paints the page" || string(got.OutputSchema) != `{"type":"object"}` {
		t.Errorf("the client tool of the agent became %+v", got)
	}
	if got := d.tools["look"]; got.ID != "client:look" || !got.Client() || len(got.ToModelOutput) > 0 {
		t.Errorf("in the place of a hosted tool stands %+v", got)
	}
	if got := d.tools["new"]; got.ID != "client:new" || got.InputSchemaDigest == "" {
		t.Errorf("a tool of the request is %+v", got)
	}
	if strings.Join(d.replaced, " ") != "look" {
		t.Errorf("replaced: %v, want look", d.replaced)
	}
}

package planner

import (
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// anyModel answers for every id.
type anyModel struct{}

func (anyModel) Model(id string) (agent.Model, string, error) { return nil, id, nil }

// TestB17_1_WhatARequestMaySay: tools that can be found, and those by which they are, may be among the active ones; none that has
// to be loaded can be demanded, and no tool of the client stands in the place of one that finds.
func TestB17_1_WhatARequestMaySay(t *testing.T) {
	t.Parallel()
	def := events.AgentDef{
		ID: "support", Model: "scripted/x", Tools: map[string]string{"look": "look"},
		ToolSearch: &events.ToolSearch{Tools: map[string]string{"pay": "pay"}},
	}
	pins := events.Definitions{Tools: map[string]string{"look": "1", "pay": "2"}}
	s := &Service{cfg: Config{Models: anyModel{}}}
	mine := func(key string) map[string]events.ClientTool {
		return map[string]events.ClientTool{key: {Description: "Mine"}}
	}
	for name, test := range map[string]struct {
		req  events.RunRequested
		says string
	}{
		"active":               {events.RunRequested{ActiveTools: &[]string{"look", "pay", "search_tools", "load_tool"}}, ""},
		"active and unknown":   {events.RunRequested{ActiveTools: &[]string{"nothing"}}, "activeTools"},
		"demands a search":     {events.RunRequested{ToolChoice: "tool:search_tools"}, ""},
		"demands a tool":       {events.RunRequested{ToolChoice: "tool:look"}, ""},
		"demands what is not":  {events.RunRequested{ToolChoice: "tool:pay"}, "must load"},
		"demands its own":      {events.RunRequested{ToolChoice: "tool:pay", ClientTools: mine("pay")}, ""},
		"brings one that can":  {events.RunRequested{ClientTools: mine("pay")}, ""},
		"brings a tool finder": {events.RunRequested{ClientTools: mine("load_tool")}, "finds others"},
		"brings its name":      {events.RunRequested{ClientTools: mine("load tool")}, "same name"},
	} {
		refusal := s.checkOptions(test.req, def, pins)
		switch {
		case test.says == "" && refusal != nil:
			t.Errorf("%s: refused: %s", name, refusal.Message)
		case test.says != "" && (refusal == nil || !strings.Contains(refusal.Message, test.says)):
			t.Errorf("%s: %v, want a refusal about %q", name, refusal, test.says)
		}
	}
}

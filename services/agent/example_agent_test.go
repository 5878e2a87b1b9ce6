package agent_test

import (
	"context"
	"fmt"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

type refundInput struct {
	OrderID string  `json:"orderId"`
	Amount  float64 `json:"amount"`
}

func refund(context.Context, *agent.Call, refundInput) (struct{}, error) { return struct{}{}, nil }

// Calls wait for people always, or when an expression over their arguments holds. It is data, so it holds in every
// process, also after a restart.
func ExampleToolOptions_requireApproval() {
	for _, approval := range []*events.Approval{agent.Always(), agent.Never(), agent.When("args.amount > 100.0")} {
		tool := agent.NewTool("issue_refund", "Refund an order", refund, &agent.ToolOptions{RequireApproval: approval})
		raw, _ := events.Marshal(tool.Manifest().RequireApproval)
		fmt.Println(string(raw))
	}
	// Output:
	// true
	// false
	// {"cel":"args.amount > 100.0"}
}

// An agent is data: its definition names tools by id, and keys are what its model sees.
func ExampleAgent() {
	people := &agent.Agent{ID: "people", Model: "openai/gpt-5", Description: "Knows who works where"}
	support := &agent.Agent{
		ID: "support", Model: "openai/gpt-5", Instructions: "Help customers.",
		Tools: agent.Tools{
			"refund": agent.NewTool("issue_refund", "Refund an order", refund,
				&agent.ToolOptions{RequireApproval: agent.Always()}),
		},
		ToolIDs: map[string]string{"search": "web_search"}, // registered elsewhere
		Agents:  map[string]*agent.Agent{"people": people},
		Limits:  events.Limits{Steps: 8},
	}
	def, err := support.Def()
	raw, _ := events.Marshal(def)
	fmt.Println(string(raw), err)
	fmt.Println(support.Keys())

	support.Model = "gpt-5"
	support.ToolChoice = "tool:nothing"
	_, err = support.Def()
	fmt.Println(err)
	// Output:
	// {"id":"support","instructions":"Help customers.","model":"openai/gpt-5","tools":{"refund":"issue_refund","search":"web_search"},"agents":{"people":"people"},"limits":{"steps":8}} <nil>
	// [agent-people refund search]
	// agent support: model: want provider/model, not "gpt-5"; toolChoice: no tool has the key "nothing" (invalid_definition)
}

// Keys become names that every provider takes; keys that would share a name are refused.
func ExampleSafeNames() {
	names, err := agent.SafeNames([]string{"weatherTool", "crm.find user", "3d"})
	fmt.Println(names, err)
	_, err = agent.SafeNames([]string{"a.b", "a/b"})
	fmt.Println(err)
	// Output:
	// map[3d:_3d crm.find user:crm_find_user weatherTool:weatherTool] <nil>
	// the tools "a.b" and "a/b" have the same name for models, "a_b" (tool_name_collision)
}

package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/tools"
)

// An agent has the built-in tools that it is given, under any key.
func Example() {
	painter := &agent.Agent{
		ID: "painter", Model: "openai/gpt-5", Instructions: "Ask before you paint.",
		Tools: agent.Tools{"ask": tools.AskUser, "plan": tools.SubmitPlan},
	}
	def, err := painter.Def()
	fmt.Println(def.Tools, err)
	// Output:
	// map[ask:ask_user plan:submit_plan] <nil>
}

// A question suspends the call. Its own resume schema lets only its options be the answer.
func ExampleAskUser() {
	info := agent.CallInfo{RunID: "r7Kq2", ToolCallID: "r7Kq2=1-1", ToolName: "ask", AgentID: "painter", Attempt: 1}
	args := json.RawMessage(`{"question":"Which colour?","options":[{"label":"red"},{"label":"blue"}]}`)
	got := agent.Execute(context.Background(), tools.AskUser, agent.NewCall(info), args)
	fmt.Println(string(got.Suspension.Payload))
	fmt.Println(string(got.Suspension.ResumeSchema))

	info.Attempt, info.Round, info.Resume = 2, 1, &events.Resume{Data: json.RawMessage(`"blue"`)}
	got = agent.Execute(context.Background(), tools.AskUser, agent.NewCall(info), args)
	fmt.Println(string(got.Result))
	// Output:
	// {"question":"Which colour?","options":[{"label":"red"},{"label":"blue"}],"selectionMode":"single_select"}
	// {"anyOf":[{"type":"string","enum":["red","blue"]},{"type":"array","items":{"type":"string","enum":["red","blue"]},"minItems":1,"maxItems":1}]}
	// {"content":"User answered: blue","isError":false}
}

// The task tools are four, and join what an agent has beside them.
func ExampleTasks() {
	all := tools.Tasks()
	all["ask"] = tools.AskUser
	fmt.Println(slices.Sorted(maps.Keys(all)))
	// Output:
	// [ask task_check task_complete task_update task_write]
}

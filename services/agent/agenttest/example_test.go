package agenttest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

var shout = agent.NewTool("shout", "Says it louder",
	func(_ context.Context, _ *agent.Call, in text) (string, error) { return in.Text + "!", nil }, nil)

type text struct {
	Text string `json:"text"`
}

// A tool's test needs no broker and no model.
func ExampleRun() {
	t := new(testing.T) // that of the test
	got := agenttest.Run(t, shout, `{"text":"hi"}`, nil)
	fmt.Println(got.Outcome, agenttest.Output[string](t, got))
	// Output:
	// ok hi!
}

// A scripted model says its steps, and fails the test when it is asked what a provider would refuse.
func ExampleModel() {
	t := new(testing.T) // that of the test
	m := agenttest.NewModel(t, agenttest.Ask("shout", `{"text":"hi"}`), agenttest.Say("Done."))
	req := agent.ModelRequest{Messages: []events.Message{events.TextMessage(events.RoleUser, "Say hi")}}
	for part, err := range m.Stream(context.Background(), req) {
		fmt.Println(part.Type, part.ToolName, part.Text, err)
	}
	fmt.Println(m.Left(), "step left")
	// Output:
	// tool-input-start shout  <nil>
	// tool-input-delta  {"text <nil>
	// tool-input-delta  ":"hi"} <nil>
	// tool-input-end   <nil>
	// finish   <nil>
	// 1 step left
}

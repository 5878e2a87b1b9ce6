package agent_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

type transferInput struct {
	Amount int `json:"amount"`
}

type question struct {
	Reason string `json:"reason"`
}

type confirmation struct {
	Code string `json:"code"`
}

// transfer asks people for a code when the amount is high.
var transfer = agent.NewTool("transfer", "Transfer money",
	func(_ context.Context, call *agent.Call, in transferInput) (string, error) {
		if in.Amount > 500 && !call.Resumed() {
			return "", call.Suspend(question{Reason: "over the limit"})
		}
		if !call.Resumed() {
			return fmt.Sprintf("transferred %d", in.Amount), nil
		}
		answer, err := agent.ResumeData[confirmation](call)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("transferred %d with code %s, key %s", in.Amount, answer.Code, call.IdempotencyKey()), nil
	},
	&agent.ToolOptions{
		SuspendSchema: agent.SchemaOf[question](),
		ResumeSchema:  agent.SchemaOf[confirmation](),
	})

// A handler stops until people give it data: Suspend is an error, so no code runs after it.
func ExampleCall_Suspend() {
	call := agent.NewCall(agent.CallInfo{ToolCallID: "r7Kq2=1-1", ToolName: "transfer", Attempt: 1})
	got := agent.Execute(context.Background(), transfer, call, json.RawMessage(`{"amount":900}`))
	fmt.Println(string(got.Suspension.Payload))
	fmt.Println(string(transfer.Manifest().ResumeSchema))
	// Output:
	// {"reason":"over the limit"}
	// {"properties":{"code":{"type":"string"}},"type":"object","required":["code"]}
}

// One suspension may ask for other data than the tool's others.
func ExampleCall_SuspendWith() {
	pick := agent.NewTool("pick", "Let people pick",
		func(_ context.Context, call *agent.Call, _ struct{}) (string, error) {
			return "", call.SuspendWith("which?", &agent.SuspendOptions{
				ResumeSchema: json.RawMessage(`{"enum":["left","right"]}`),
				ResumeLabel:  "Pick",
			})
		}, nil)

	got := agent.Execute(context.Background(), pick, agent.NewCall(agent.CallInfo{}), json.RawMessage(`{}`))
	fmt.Println(got.Suspension.ResumeLabel, string(got.Suspension.Payload), string(got.Suspension.ResumeSchema))
	// Output:
	// Pick "which?" {"enum":["left","right"]}
}

// When people have answered, the handler runs again from its start, with their data and the same key.
func ExampleResumeData() {
	call := agent.NewCall(agent.CallInfo{
		ToolCallID: "r7Kq2=1-1", ToolName: "transfer", Attempt: 2, Round: 1,
		Resume: &events.Resume{Data: json.RawMessage(`{"code":"7319"}`)},
	})
	got := agent.Execute(context.Background(), transfer, call, json.RawMessage(`{"amount":900}`))
	fmt.Println(string(got.Result))
	// Output:
	// "transferred 900 with code 7319, key r7Kq2=1-1"
}

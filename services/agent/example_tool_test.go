package agent_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/weirkeeper/weir/services/agent"
)

// A tool is a function with a name, and schemas that come from its types.
func ExampleNewTool() {
	type Input struct {
		OrderID string `json:"orderId" jsonschema:"description=the order's number"`
		Lines   int    `json:"lines,omitempty" jsonschema:"minimum=1,default=10"`
	}
	type Output struct {
		Total json.Number `json:"total"`
	}
	lookup := agent.NewTool("lookup_order", "Look up an order",
		func(_ context.Context, _ *agent.Call, in Input) (Output, error) {
			return Output{Total: "612.50"}, nil
		},
		&agent.ToolOptions{Effect: agent.ReadOnly})

	m := lookup.Manifest()
	fmt.Println(m.ID, m.Version, m.Effect, m.Pool)
	fmt.Println(string(m.InputSchema))

	call := agent.NewCall(agent.CallInfo{RunID: "r7Kq2", ToolCallID: "r7Kq2=1-1", ToolName: "lookup"})
	got := agent.Execute(context.Background(), lookup, call, json.RawMessage(`{"orderId":"ord-1042"}`))
	fmt.Println(got.Outcome, string(got.Result))

	got = agent.Execute(context.Background(), lookup, call, json.RawMessage(`{"orderId":1042}`))
	fmt.Println(got.Outcome)
	// Output:
	// lookup_order 1 read_only default
	// {"properties":{"orderId":{"type":"string","description":"the order's number"},"lines":{"type":"integer","minimum":1,"default":10}},"type":"object","required":["orderId"]}
	// ok {"total":612.50}
	// invalid
}

// A check that JSON Schema cannot express ends the call as its schema would.
func ExampleInvalid() {
	type Input struct {
		From int `json:"from"`
		To   int `json:"to"`
	}
	span := agent.NewTool("span", "Length of a span",
		func(_ context.Context, _ *agent.Call, in Input) (int, error) {
			if in.To < in.From {
				return 0, agent.Invalid("to", "want at least from")
			}
			return in.To - in.From, nil
		}, nil)

	call := agent.NewCall(agent.CallInfo{ToolName: "span"})
	got := agent.Execute(context.Background(), span, call, json.RawMessage(`{"from":3,"to":1}`))
	var object struct{ Message string }
	_ = json.Unmarshal(got.Result, &object)
	fmt.Println(got.Outcome)
	fmt.Println(object.Message)
	// Output:
	// invalid
	// Tool input validation failed for span. Please fix the following and try again:
	// - to: want at least from
	// Provided arguments: {"from":3,"to":1}
}

// An error with a name of its own can be told from others by programs; the model sees its message.
func ExampleErrorf() {
	charge := agent.NewTool("charge", "Charge a card",
		func(context.Context, *agent.Call, struct{}) (any, error) {
			return nil, agent.Errorf("card_declined", "the card was declined")
		}, nil)

	got := agent.Execute(context.Background(), charge, agent.NewCall(agent.CallInfo{}), json.RawMessage(`{}`))
	fmt.Println(got.Outcome, got.Error.Name+":", got.Error.Message)
	// Output:
	// error card_declined: the card was declined
}

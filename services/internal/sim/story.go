package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Order is what the tools of the support story take.
type Order struct {
	OrderID string `json:"orderId"`
}

// Lookup reads an order. It needs no approval and may be repeated.
func Lookup() agent.Tool {
	return agent.NewTool("lookup_order", "Look an order up",
		func(_ context.Context, _ *agent.Call, in Order) (map[string]any, error) {
			return map[string]any{"orderId": in.OrderID, "amount": 612.5}, nil
		}, &agent.ToolOptions{Effect: agent.ReadOnly})
}

// Refund pays an order back, which is counted outside of the log. It always needs approval.
func Refund(effects *Effects) agent.Tool {
	return agent.NewTool("issue_refund", "Refund an order",
		func(_ context.Context, call *agent.Call, in Order) (map[string]any, error) {
			effects.Add(call.IdempotencyKey())
			return map[string]any{"refundId": "rf-" + in.OrderID}, nil
		}, &agent.ToolOptions{RequireApproval: agent.Always()})
}

// Support is a model that looks an order up and refunds it in one turn, and then tells how it went. Asked whether a message
// answers what suspended calls wait for, it finds the data of each behind "resume:" in the message, if there are any.
type Support struct{}

// Stream answers a turn.
func (Support) Stream(_ context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return func(yield func(agent.ModelPart, error) bool) {
		for _, p := range supportTurn(req) {
			if !yield(p, nil) {
				return
			}
		}
	}
}

func supportTurn(req agent.ModelRequest) []agent.ModelPart {
	usage := events.Usage{InputTokens: 10, OutputTokens: 5, TotalTokens: 15}
	last := req.Messages[len(req.Messages)-1]
	if text, asked := answersFor(last.Text()); asked && len(req.Tools) == 0 {
		return []agent.ModelPart{
			{Type: agent.PartTextDelta, ID: "t", Text: text},
			{Type: agent.PartFinish, FinishReason: agent.FinishStop, Usage: usage},
		}
	}
	if said := lastResults(req.Messages); said != nil {
		last = *said
		var told []string
		for _, p := range last.Parts {
			told = append(told, fmt.Sprintf("%s: %s", p.ToolName, p.Output.Value))
		}
		return []agent.ModelPart{
			{Type: agent.PartTextDelta, ID: "t", Text: "Done. "},
			{Type: agent.PartTextDelta, ID: "t", Text: strings.Join(told, "; ")},
			{Type: agent.PartFinish, FinishReason: agent.FinishStop, Usage: usage},
		}
	}
	var parts []agent.ModelPart
	for i, tool := range req.Tools {
		id := fmt.Sprint(i)
		parts = append(parts,
			agent.ModelPart{Type: agent.PartToolInputStart, ID: id, ToolName: tool.Name, ProviderCallID: "call_" + id},
			agent.ModelPart{Type: agent.PartToolInputDelta, ID: id, Text: `{"` + argument(tool.Name) + `":`},
			agent.ModelPart{Type: agent.PartToolInputDelta, ID: id, Text: `"42"}`},
			agent.ModelPart{Type: agent.PartToolInputEnd, ID: id})
	}
	return append(parts, agent.ModelPart{Type: agent.PartFinish, FinishReason: agent.FinishToolCalls, Usage: usage})
}

// argument is what a tool of the story takes: an order, or a prompt when it is another agent.
func argument(tool string) string {
	if strings.HasPrefix(tool, events.AgentPrefix) {
		return "prompt"
	}
	return "orderId"
}

// lastResults are the last results of calls that a model was told; nil when it has made none.
func lastResults(messages []events.Message) *events.Message {
	for i := len(messages) - 1; i >= 0; i-- {
		if messages[i].Role == events.RoleTool {
			return &messages[i]
		}
	}
	return nil
}

// answersFor is what Support finds in a message; false when it is asked something else.
func answersFor(question string) (string, bool) {
	var about struct {
		Calls []struct {
			ToolCallID string `json:"toolCallId"`
		} `json:"calls"`
		Message string `json:"message"`
	}
	if json.Unmarshal([]byte(question), &about) != nil || len(about.Calls) == 0 {
		return "", false
	}
	_, data, found := strings.Cut(about.Message, "resume:")
	answers := []string{}
	for _, c := range about.Calls {
		if found {
			answers = append(answers, fmt.Sprintf(`{"toolCallId":%q,"resumeData":%s}`, c.ToolCallID, data))
		}
	}
	return `{"answers":[` + strings.Join(answers, ",") + `]}`, true
}

// suspending is the story of a tool that suspends itself once, and pays once it is resumed.
func suspending() Options {
	effects := &Effects{}
	pay := agent.NewTool("pay", "Pay an order back",
		func(_ context.Context, call *agent.Call, in Order) (map[string]any, error) {
			if !call.Resumed() {
				return nil, call.Suspend(map[string]string{"reason": "over the limit"})
			}
			effects.Add(call.IdempotencyKey())
			return map[string]any{"paid": in.OrderID}, nil
		}, &agent.ToolOptions{Effect: agent.Idempotent})
	return Options{Tools: []agent.Tool{pay}}
}

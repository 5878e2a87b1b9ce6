package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
)

// The built-in example: an agent of a shop's support that looks orders up and refunds them. It is what weir dev serves
// without a weir.yaml.
const (
	exampleAgent        = "support"
	exampleLookup       = "lookup_order"
	exampleRefund       = "issue_refund"
	exampleInstructions = "You are the support agent of a shop. Look an order up before you speak about it. " +
		"When a customer asks for a refund, look the order up and issue the refund for its full amount; a person of the " +
		"shop approves it. Then tell the customer in one or two sentences what happened."
)

// order is an order of the shop.
type order struct {
	OrderID  string  `json:"orderId"`
	Customer string  `json:"customer"`
	Item     string  `json:"item"`
	Amount   float64 `json:"amount" jsonschema:"description=What the customer paid"`
	Status   string  `json:"status"`
}

type (
	orderQuery struct {
		OrderID string `json:"orderId" jsonschema:"description=Number of the order"`
	}
	refundOrder struct {
		OrderID string  `json:"orderId" jsonschema:"description=Number of the order"`
		Amount  float64 `json:"amount" jsonschema:"description=How much is paid back,exclusiveMinimum=0"`
	}
	refunded struct {
		RefundID string  `json:"refundId"`
		OrderID  string  `json:"orderId"`
		Amount   float64 `json:"amount"`
	}
)

// shop is the world outside: it knows orders, and counts what is done to it.
type shop struct {
	mu      sync.Mutex
	lookups int
	refunds []refunded
}

// order looks an order up. The shop has every order that it is asked for.
func (s *shop) order(id string) order {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookups++
	return order{OrderID: id, Customer: "Bob Miller", Item: "espresso machine", Amount: 129.5, Status: "delivered"}
}

// refund pays an order back. It has no memory of the call that asked for it: asked twice, it pays twice.
func (s *shop) refund(r refundOrder) refunded {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := refunded{RefundID: fmt.Sprintf("refund-%d", len(s.refunds)+1), OrderID: r.OrderID, Amount: r.Amount}
	s.refunds = append(s.refunds, done)
	return done
}

// counts are how often the shop was asked for an order, and the refunds that it paid.
func (s *shop) counts() (lookups, refunds int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookups, len(s.refunds)
}

// exampleTools are the tools of the example, on a shop in this process.
func exampleTools(s *shop) []agent.Tool {
	return []agent.Tool{
		agent.NewTool(exampleLookup, "Look up an order by its number",
			func(_ context.Context, _ *agent.Call, in orderQuery) (order, error) { return s.order(in.OrderID), nil },
			&agent.ToolOptions{Title: "Look up an order", Effect: agent.ReadOnly}),
		agent.NewTool(exampleRefund, "Pay a customer back for an order",
			func(_ context.Context, _ *agent.Call, in refundOrder) (refunded, error) { return s.refund(in), nil },
			&agent.ToolOptions{Title: "Issue a refund", Effect: agent.Effectful, RequireApproval: agent.Always()}),
	}
}

// applyExample writes the example's agent to the registry. Its tools are registered by their host.
func applyExample(ctx context.Context, conn *jetstream.Conn, model string) error {
	a := agent.Agent{
		ID: exampleAgent, Name: "Support", Description: "Answers customers of a shop",
		Instructions: exampleInstructions, Model: model,
		ToolIDs: map[string]string{exampleLookup: exampleLookup, exampleRefund: exampleRefund},
	}
	def, err := a.Def()
	if err != nil {
		return err
	}
	return putAgent(ctx, conn, def)
}

// putAgent stores an agent by its content, then under its name.
func putAgent(ctx context.Context, conn *jetstream.Conn, def events.AgentDef) error {
	raw, err := events.Marshal(def)
	if err != nil {
		return err
	}
	if _, err := conn.PutDef(ctx, raw); err != nil {
		return err
	}
	return conn.PutNamed(ctx, events.RegistryAgent, def.ID, raw)
}

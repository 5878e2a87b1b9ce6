package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/client"
)

// refunds is a client tool in the place of the agent's.
func refunds(run func(context.Context, json.RawMessage) (any, error)) map[string]client.ClientTool {
	return map[string]client.ClientTool{"issue_refund": {
		ClientTool: events.ClientTool{Description: "Refund an order", InputSchema: json.RawMessage(
			`{"type":"object","properties":{"orderId":{"type":"string"},"amount":{"type":"number"}},"required":["orderId"]}`)},
		Run:           run,
		ToModelOutput: func(json.RawMessage) *events.ModelOutput { return agent.TextOutput("refunded") },
	}}
}

// TestB20_1_B4_7_WaitAnswersClientTools: the calls of a step are executed here, once each, by who may read the log and by who may not;
// the output is that of the whole run, and a run that is waited for again executes nothing again.
func TestB20_1_B4_7_WaitAnswersClientTools(t *testing.T) {
	t.Parallel()
	conn := start(t)
	keys := serve(t, conn)
	for name, cfg := range map[string]client.Config{
		"log": {Principal: "bob", GateKeys: keys}, "live": {Principal: "bob", GateKeys: keys, LiveOnly: true},
	} {
		c := clientWith(t, conn, cfg)
		var got []string
		run, err := c.Start(t.Context(), client.Request{Agent: "clerk", Prompt: "pay two", ClientTools: refunds(func(_ context.Context, args json.RawMessage) (any, error) {
			got = append(got, string(args))
			if len(got) == 2 {
				return nil, errors.New("out of money")
			}
			return map[string]string{"refundId": "rf-1"}, nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			out, err := run.Wait(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if out.FinishReason != "stop" || len(out.ToolResults) != 2 {
				t.Errorf("%s: %s after %d results", name, out.FinishReason, len(out.ToolResults))
			}
		}
		if len(got) != 2 {
			t.Errorf("%s: executed %q, want each call once", name, got)
		}
	}
}

// TestB20_3_ClientCallsAreListedForTheirRequester: and for others by kind or run alone.
func TestB20_3_ClientCallsAreListedForTheirRequester(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	bob, alice := newClient(t, conn, "bob"), newClient(t, conn, "alice")
	out, err := bob.Generate(t.Context(), client.Request{Agent: "clerk", Prompt: "pay", ClientTools: refunds(nil)})
	if err != nil || out.FinishReason != client.FinishSuspended || len(out.Asks) != 1 || out.Asks[0].Ask.Kind != events.AskClient {
		t.Fatalf("output = %+v, %v: want a run that waits for its client", out, err)
	}
	for _, test := range []struct {
		who    *client.Client
		filter client.Filter
		want   int
	}{
		{bob, client.Filter{}, 1},
		{alice, client.Filter{}, 0},
		{alice, client.Filter{Kind: events.AskClient}, 1},
		{alice, client.Filter{Run: out.RunID}, 1},
	} {
		asks, total, err := test.who.Asks(t.Context(), test.filter)
		if err != nil || len(asks) != test.want || total != test.want {
			t.Errorf("%d asks of %d, %v, want %d", len(asks), total, err, test.want)
		}
		page, err := test.who.Suspended(t.Context(), test.filter)
		if err != nil || page.Total != test.want {
			t.Errorf("%+v, %v, want %d suspended runs", page, err, test.want)
		}
	}
	if _, err := alice.Respond(t.Context(), out.Asks[0].ToolCallID, json.RawMessage(`1`), nil); err == nil {
		t.Error("somebody else answered for the client")
	} else {
		wantCode(t, err, events.CodeForbidden)
	}
	if _, err := bob.Respond(t.Context(), out.Asks[0].ToolCallID, json.RawMessage(`1`), nil); err != nil {
		t.Error(err)
	}
	if out, err = bob.Run(out.RunID).Wait(t.Context()); err != nil || out.FinishReason != "stop" {
		t.Errorf("output = %+v, %v", out, err)
	}
}

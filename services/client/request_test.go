package client_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// TestB8_5_B8_19_B8_34_DecideByRequest decides as somebody who may read nothing, and as one who wants it so: every outcome
// is exact, that of an edit too, and the call may be left out.
func TestB8_5_B8_19_B8_34_DecideByRequest(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]client.Config{
		"reads nothing": {Principal: "alice", LiveOnly: true}, "asks": {Principal: "alice", ByRequest: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := start(t)
			serve(t, conn)
			bob, alice := newClient(t, conn, "bob"), clientWith(t, conn, cfg)
			two := held(t, bob, "pay two")
			_, err := alice.Ask(t.Context(), two.RunID)
			for events.CodeOf(err) == events.CodeUnavailable { // the gate's endpoints are not there yet
				_, err = alice.Ask(t.Context(), two.RunID)
			}
			ids := []string{two.Asks[0].ToolCallID, two.Asks[1].ToolCallID}
			for what, err := range map[string]error{
				"decision": second(alice.Approve(t.Context(), two.RunID, nil)), "ask": second(alice.Ask(t.Context(), two.RunID)),
			} {
				if e := refusal(t, err, events.CodeAmbiguous); !slices.Equal(e.Asks, ids) {
					t.Errorf("%s: asks = %v, want %v", what, e.Asks, ids)
				}
			}
			ask, err := alice.Ask(t.Context(), ids[0])
			if err != nil || ask.ToolCallID != ids[0] {
				t.Fatalf("ask = %+v, %v", ask, err)
			}
			out, err := alice.Edit(t.Context(), ids[0], json.RawMessage(`{"orderId":"1","amount":5}`), &client.DecisionOptions{Fingerprint: ask.Fingerprint})
			if err != nil || out.State != client.StateHeld || out.Round != 1 || out.Answer.Decision != events.Edit {
				t.Fatalf("edit: %+v, %v", out, err)
			}
			if ask, err = alice.Ask(t.Context(), ids[0]); err != nil || ask.Round != 1 || string(ask.Args) != `{"amount":5,"orderId":"1"}` {
				t.Fatalf("the ask of the edit = %+v, %v", ask, err)
			}
			_, err = alice.Resume(t.Context(), ids[0], json.RawMessage(`1`), &client.DecisionOptions{Round: &ask.Round})
			wantCode(t, err, events.CodeWrongKind)
			if out, err = alice.Decline(t.Context(), ids[0], "no", &client.DecisionOptions{Round: &ask.Round}); err != nil || out.State != client.StateFinished {
				t.Fatalf("decline: %+v, %v", out, err)
			}
			_, err = alice.Ask(t.Context(), ids[0])
			if e := refusal(t, err, events.CodeAlreadyDecided); !e.Same || e.Answer.Decision != events.Decline {
				t.Errorf("the ask of a decided call: %+v", e)
			}
			if out, err = alice.Approve(t.Context(), two.RunID, nil); err != nil || out.State != client.StateReleased || out.ToolCallID != ids[1] {
				t.Fatalf("the one that is left: %+v, %v", out, err)
			}
			if end, err := bob.Run(two.RunID).Wait(t.Context()); err != nil || end.FinishReason != "stop" {
				t.Fatalf("output = %+v, %v", end, err)
			}
			_, err = alice.Approve(t.Context(), two.RunID, nil)
			wantCode(t, err, events.CodeRunEnded)
			_, err = alice.Approve(t.Context(), "nobody", nil)
			wantCode(t, err, events.CodeNotFound)
			_, err = alice.Ask(t.Context(), "no id")
			wantCode(t, err, map[bool]events.Code{true: events.CodeInvalidRequest, false: events.CodeNotFound}[cfg.LiveOnly])
		})
	}
}

package client_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// TestSuspendedBeforeItsAsk reads a run whose planner said that it is suspended before the gate had shown the ask, as after a
// quick sibling: the reader waits for the ask, and knows what the run waits for. (B14.24)
func TestSuspendedBeforeItsAsk(t *testing.T) {
	t.Parallel()
	conn := start(t)
	gate := &events.Origin{Namespace: ns, Service: "approval"}
	call := events.CallID{Run: "r1", Step: 1, Index: 1}
	ask := events.CallHeld{
		ToolCallID: call.String(), RunID: "r1", RootRunID: "r1", Path: []events.PathEntry{{AgentID: "clerk", RunID: "r1"}},
		AgentID: "clerk", Kind: events.AskApproval, ToolName: "pay", ToolID: "pay", ToolVersion: "1", Effect: events.Effectful,
		Args: json.RawMessage(`{}`), Fingerprint: "sha256:1", Allowed: events.AskApproval.Allowed(),
		AskedAt: time.Now().UTC(), ExpiresAt: time.Now().Add(time.Hour).UTC(),
	}
	p := ns.Call(call, events.KindAsk)
	fact, err := gate.Fact(p, ask, events.Event{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Append(t.Context(), events.First(p), fact); err != nil {
		t.Fatal(err)
	}
	for _, ch := range []events.Chunk{
		events.StartChunk("r1", "clerk", "m1"), events.SuspendedChunk("r1", []string{call.String()}),
		events.AskChunk(ask, fact.ID), events.SuspendedChunk("r1", []string{call.String()}),
	} {
		if err := conn.PublishChunk(t.Context(), gate, ch); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.FlushChunks(t.Context(), "r1"); err != nil {
		t.Fatal(err)
	}
	out, err := newClient(t, conn, "bob").Run("r1").Wait(t.Context())
	if err != nil || out.FinishReason != client.FinishSuspended || len(out.Asks) != 1 || out.Asks[0].ToolCallID != call.String() {
		t.Errorf("output = %+v, %v: want the ask", out, err)
	}
}

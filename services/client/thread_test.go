package client_test

import (
	"slices"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// inThread starts a run of the clerk in a thread and waits until it is suspended.
func inThread(t *testing.T, c *client.Client, thread, prompt string) *client.Output {
	t.Helper()
	out, err := c.Generate(t.Context(), client.Request{Agent: "clerk", Prompt: prompt, ThreadID: thread, ResourceID: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if out.FinishReason != client.FinishSuspended {
		t.Fatalf("finish reason = %s", out.FinishReason)
	}
	return out
}

func TestB8_31DecisionsByThread(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	bob, alice := newClient(t, conn, "bob"), newClient(t, conn, "alice")
	thread := client.Thread{ResourceID: "shop", ThreadID: "t1"}
	_, err := alice.DecideIn(t.Context(), thread, client.Decision{Decision: events.Approve})
	wantCode(t, err, events.CodeNotFound)
	first := inThread(t, bob, "t1", "pay")
	inThread(t, bob, "t2", "pay")
	got, err := alice.DecideIn(t.Context(), thread, client.Decision{Decision: events.Approve})
	if err != nil || got.ToolCallID != first.Asks[0].ToolCallID || got.State != client.StateReleased {
		t.Fatalf("outcome = %+v, %v", got, err)
	}
	if out, err := alice.Run(first.RunID).Wait(t.Context()); err != nil || out.FinishReason != "stop" {
		t.Fatalf("output = %+v, %v", out, err)
	}
	two := inThread(t, bob, "t1", "pay two")
	_, err = alice.DecideIn(t.Context(), thread, client.Decision{Decision: events.Approve})
	e := refusal(t, err, events.CodeAmbiguous)
	want := []string{two.Asks[0].ToolCallID, two.Asks[1].ToolCallID}
	if !slices.Equal(e.Asks, want) {
		t.Errorf("asks = %v, want %v", e.Asks, want)
	}
	got, err = alice.DecideIn(t.Context(), thread, client.Decision{Decision: events.Decline, ToolCallID: e.Asks[1]})
	if err != nil || got.ToolCallID != e.Asks[1] {
		t.Errorf("outcome = %+v, %v", got, err)
	}
}

func TestB21_2RunsOfAThreadAreCancelled(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	one, two, other := inThread(t, c, "t1", "pay"), inThread(t, c, "t1", "city"), inThread(t, c, "t2", "pay")
	thread := client.Thread{ResourceID: "shop", ThreadID: "t1"}
	// By somebody else, who knows the thread alone.
	ended, err := newClient(t, conn, "carol").CancelIn(t.Context(), thread, "closed")
	slices.Sort(ended)
	want := []string{one.RunID, two.RunID}
	slices.Sort(want)
	if err != nil || !slices.Equal(ended, want) {
		t.Errorf("cancelled %v, %v; want %v", ended, err, want)
	}
	if ended, err = c.CancelIn(t.Context(), thread, "again"); err != nil || len(ended) != 0 {
		t.Errorf("cancelled %v, %v; want none", ended, err)
	}
	if _, err := c.Approve(t.Context(), other.RunID, nil); err != nil {
		t.Errorf("another thread's run: %v", err)
	}
	_, err = c.Approve(t.Context(), one.RunID, nil)
	wantCode(t, err, events.CodeRunEnded)
}

// What a decision brings is given from its first chunk on, and nothing of before: the result, and the end.
func TestB19_3_B19_5DecisionsAnswerTheContinuation(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	out := held(t, c, "pay two")
	first, second := out.Asks[0].ToolCallID, out.Asks[1].ToolCallID
	got := continuation(t, c, client.Decision{Decision: events.Approve, ToolCallID: first})
	if !slices.Contains(got, events.ChunkToolResult) || slices.Contains(got, events.ChunkToolCallApproval) {
		t.Errorf("chunks of the first decision: %v", got)
	}
	if got[len(got)-1] != events.ChunkSuspended {
		t.Errorf("chunks of the first decision: %v; want them to end while the other call is held", got)
	}
	_, chunks, err := c.Continue(t.Context(), client.Decision{Decision: events.Decline, ToolCallID: first})
	if wantCode(t, err, events.CodeAlreadyDecided); chunks != nil {
		t.Error("a decision that lost has chunks")
	}
	got = continuation(t, c, client.Decision{Decision: events.Decline, ToolCallID: second, Reason: "no"})
	if !slices.Contains(got, events.ChunkToolOutputDenied) || got[len(got)-1] != events.ChunkFinish {
		t.Errorf("chunks of the second decision: %v", got)
	}
}

func continuation(t *testing.T, c *client.Client, d client.Decision) (types []events.ChunkType) {
	t.Helper()
	_, chunks, err := c.Continue(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	for ch, err := range chunks {
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, ch.Type)
	}
	if len(types) == 0 {
		t.Fatal("the decision has no chunks")
	}
	return types
}

// The output after a decision has what was said and done before it.
func TestB19_4OutputCoversTheWholeRun(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	out := held(t, c, "pay two")
	for _, ask := range out.Asks {
		if _, err := c.Approve(t.Context(), ask.ToolCallID, nil); err != nil {
			t.Fatal(err)
		}
	}
	out, err := newClient(t, conn, "alice").Run(out.RunID).Wait(t.Context())
	if err != nil || out.Text != "Two refunds.Done." || len(out.Steps) != 2 || len(out.ToolResults) != 2 {
		t.Errorf("output = %+v, %v", out, err)
	}
}

func TestB19_8IdempotencyKeyMeetsTheSameRun(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	req := client.Request{Agent: "clerk", Prompt: "pay", IdempotencyKey: "order 42"}
	first, err := c.Generate(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Generate(t.Context(), req)
	if err != nil || again.RunID != first.RunID || len(again.Asks) != 1 {
		t.Errorf("the same key and request: run %s, %v; want %s", again.RunID, err, first.RunID)
	}
	another := req
	another.Prompt = "city"
	_, err = c.Generate(t.Context(), another)
	wantCode(t, err, events.CodeRunExists)
	out, err := newClient(t, conn, "alice").Generate(t.Context(), req)
	if err != nil || out.RunID == first.RunID {
		t.Errorf("another principal's key: run %s, %v", out.RunID, err)
	}
	req.RunID = "mine"
	_, err = c.Start(t.Context(), req)
	wantCode(t, err, events.CodeInvalidRequest)
}

package jetstream_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	large := strings.Repeat("x", 600_000)
	bury := func(run string, seq uint64, payload string) {
		t.Helper()
		err := c.Bury(t.Context(), tester, events.DeliveryAbandoned{
			Service: "planner", Consumer: "planner",
			Subject: ns.InCancel("bob", "r9"), Seq: seq, RunID: run, Attempts: 20, Reason: "broken", Payload: payload,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	bury("r1", 1, "one")
	bury("r1", 1, "one") // its acknowledgement was lost
	bury("", 2, large)
	bury("r2", 3, "three")
	dead := letters(t, c)
	var got []uint64
	for _, d := range dead {
		got = append(got, d.Seq)
	}
	if diff := cmp.Diff([]uint64{1, 2, 3}, got); diff != "" {
		t.Fatalf("dead letters (-want +got):\n%s", diff)
	}
	if body, err := c.Payload(t.Context(), dead[1]); err != nil || string(body) != large {
		t.Errorf("large payload: %d bytes, %v", len(body), err)
	}
	page, err := c.ListDead(t.Context(), dead[0].Letter, 1)
	if err != nil || len(page) != 1 {
		t.Errorf("one letter after the first: %d, %v", len(page), err)
	}
	if _, err := c.Redrive(t.Context(), dead[2]); err != nil {
		t.Error(err)
	}
	dead[2].Subject = ns.Start("r1").Subject()
	if _, err := c.Redrive(t.Context(), dead[2]); err == nil {
		t.Error("a fact was sent again")
	}
}

func payloadOf(t *testing.T, c *jetstream.Conn, letter jetstream.DeadLetter) string {
	t.Helper()
	body, err := c.Payload(t.Context(), letter)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestRedrive: a request that was given up counts again, with its signature.
func TestRedrive(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	signer := &events.Origin{Namespace: ns, Service: "client", Key: &key}
	call := events.CallID{Run: "r1", Step: 1, Index: 1}
	subject := ns.InDecide("alice", call)
	e, err := signer.Request(subject, "r1", events.DecisionRequested{ToolCallID: call.String(), Decision: events.Approve}, events.Event{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(t.Context(), subject, e); err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool
	broken.Store(true)
	var handled atomic.Pointer[events.Event]
	stop := loop(t, c, jetstream.Handler{Handle: func(_ context.Context, d jetstream.Delivery) error {
		if broken.Load() {
			return jetstream.Final(errors.New("broken"))
		}
		handled.Store(&d.Event)
		return nil
	}})
	until(t, "dead letter", func() bool { return len(letters(t, c)) == 1 })
	broken.Store(false)
	if _, err := c.Redrive(t.Context(), letters(t, c)[0]); err != nil {
		t.Fatal(err)
	}
	until(t, "handled", func() bool { return handled.Load() != nil })
	stop()
	if got := handled.Load(); got.ID != e.ID || got.Signature != e.Signature || got.Signature.Sig == "" {
		t.Errorf("redriven request %s has signature %+v", got.ID, got.Signature)
	}
}

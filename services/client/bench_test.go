package client_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/client"
)

// suspend stores entries of runs that wait, so many of each of some threads.
func suspend(b *testing.B, conn *jetstream.Conn, threads, each int) {
	b.Helper()
	for i := range threads * each {
		run := fmt.Sprintf("run-%d", i)
		_, err := conn.PutSnapshot(b.Context(), &events.Snapshot{
			State: events.State{
				V: events.SnapshotVersion, RunID: run, RootRunID: run, AgentID: "support", ResourceID: "bob", ThreadID: fmt.Sprintf("thread-%d", i%threads),
				Messages: []events.Message{events.TextMessage(events.RoleUser, "Refund the order, please.")},
			},
			Asks: []events.OpenAsk{{ToolCallID: run + "=1-1", RunID: run, Kind: events.AskApproval, ToolName: "refund", Args: json.RawMessage(`{"amount":612.50}`)}},
		}, 0)
		if err != nil {
			b.Fatal(err)
		}
	}
}

// The list of one thread costs what the thread has, however many other runs wait.
func BenchmarkSuspendedOfAThread(b *testing.B) {
	for _, threads := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("%d-others", 10*(threads-1)), func(b *testing.B) {
			conn := start(b)
			suspend(b, conn, threads, 10)
			c := client.New(conn, client.Config{Principal: "alice"})
			for b.Loop() {
				page, err := c.Suspended(b.Context(), client.Filter{Agent: "support", Resource: "bob", Thread: "thread-0"})
				if err != nil || page.Total != 10 {
					b.Fatalf("%+v, %v", page, err)
				}
			}
		})
	}
}

// A call is looked up by its id without any list: the id names the run, and the chain's head is the ask.
func BenchmarkAskByToolCallID(b *testing.B) {
	conn := start(b)
	suspend(b, conn, 100, 10)
	key, err := jetstream.NewKey()
	if err != nil {
		b.Fatal(err)
	}
	o := &events.Origin{Namespace: conn.Namespace(), Service: "approval", Key: &key}
	call := events.CallID{Run: "run-1", Step: 1, Index: 1}
	place := conn.Namespace().Call(call, events.KindAsk)
	ask, err := o.Fact(place, events.CallHeld{
		ToolCallID: call.String(), RunID: call.Run, RootRunID: call.Run, AgentID: "support", Kind: events.AskApproval, ToolName: "refund",
		ToolID: "refund", ToolVersion: "1", ToolDigest: "sha256:1", InputSchemaDigest: "sha256:1", Args: json.RawMessage(`{}`),
		Fingerprint: "sha256:1", Allowed: events.AskApproval.Allowed(),
	}, events.Event{})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := conn.Append(b.Context(), events.First(place), ask); err != nil {
		b.Fatal(err)
	}
	c := client.New(conn, client.Config{Principal: "alice"})
	for b.Loop() {
		if got, err := c.Ask(b.Context(), call.String()); err != nil || got.ToolName != "refund" {
			b.Fatal(err)
		}
	}
}

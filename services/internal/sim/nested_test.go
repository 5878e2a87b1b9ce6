package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/client"
)

// shownLine is what a reader sees of a chunk: its runs from the top, and its type.
func shownLine(ch events.Chunk) string {
	runs := []string{ch.RunID}
	for ; ch.Nested != nil; ch = *ch.Nested {
		runs = append(runs, ch.Nested.RunID)
	}
	return fmt.Sprint(strings.Join(runs, " "), " ", ch.Type)
}

// told follows a run after a cursor, as long as the options say.
func told(ctx context.Context, t *testing.T, run *client.Run, after uint64, o client.FollowOptions) []events.Chunk {
	t.Helper()
	var all []events.Chunk
	for ch, err := range run.Follow(ctx, after, &o) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ch)
	}
	return all
}

// TestB12_7_B12_11_WholeTree follows a root three levels deep, over a suspension: what every run says is shown once, wrapped
// once for each level, in the order of the stream; questions are the root's own; and a reader who goes on after any chunk gets
// exactly the rest.
func TestB12_7_B12_11_WholeTree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _ := tree(t, echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()}))
		w := New(t, o)
		w.StartAll()
		c := client.New(w.Conn(), client.Config{Principal: "alice"})
		t.Cleanup(c.Close)
		id := w.Request("pay all")
		run := c.Run(id)
		begun := told(t.Context(), t, run, 0, client.FollowOptions{UntilSuspended: true})
		if last := begun[len(begun)-1]; shownLine(last) != id+" suspended" {
			t.Errorf("ends with %s", shownLine(last))
		}
		for _, call := range leaves(id) {
			w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()})
		}
		all := slices.Concat(begun, told(t.Context(), t, run, begun[len(begun)-1].Cursor, client.FollowOptions{}))
		synctest.Wait()
		equal(t, "asks", count(all, func(ch events.Chunk) bool { return ch.Type == events.ChunkToolCallApproval }), 4)
		seen := map[string]int{}
		for i, ch := range all {
			if i > 0 && ch.Cursor <= all[i-1].Cursor {
				t.Errorf("chunk %d, %s, has cursor %d after %d", i, shownLine(ch), ch.Cursor, all[i-1].Cursor)
			}
			nesting(t, ch)
			inner := ch.Innermost()
			seen[inner.RunID+" "+string(inner.Type)]++
		}
		for _, call := range leaves(id) {
			for below := call.Run; ; {
				equal(t, "starts of "+below, seen[below+" start"], 1)
				equal(t, "ends of "+below, seen[below+" finish"], 1)
				up, nested := events.ParentCall(below)
				if !nested {
					break
				}
				below = up.Run
			}
			equal(t, "results", seen[call.Run+" tool-result"], 2)
		}
		for i := 0; i < len(all)-1; i += 5 { // after the last one nothing comes
			rest := told(t.Context(), t, run, all[i].Cursor, client.FollowOptions{})
			equal(t, fmt.Sprint("after chunk ", i), listing(rest), listing(all[i+1:]))
		}
		flat := told(t.Context(), t, run, 0, client.FollowOptions{Flat: true})
		equal(t, "flat", listing(flat), listing(slices.DeleteFunc(slices.Clone(all), func(ch events.Chunk) bool { return ch.Nested != nil })))
		settled(w)
	})
}

func count(all []events.Chunk, which func(events.Chunk) bool) (n int) {
	for _, ch := range all {
		if which(ch) {
			n++
		}
	}
	return n
}

func listing(all []events.Chunk) string {
	var b strings.Builder
	for _, ch := range all {
		fmt.Fprintln(&b, ch.Cursor, shownLine(ch))
	}
	return b.String()
}

// nesting demands that a chunk of a run below is wrapped as readers of the run above see what a tool says.
func nesting(t *testing.T, ch events.Chunk) {
	t.Helper()
	for ; ch.Nested != nil; ch = *ch.Nested {
		var p struct {
			Output     events.Chunk `json:"output"`
			ToolCallID string       `json:"toolCallId"`
			ToolName   string       `json:"toolName"`
		}
		if err := json.Unmarshal(ch.Payload, &p); err != nil {
			t.Fatal(err)
		}
		equal(t, "type", ch.Type, events.ChunkToolOutput)
		equal(t, "from", ch.From, "USER")
		equal(t, "call", p.ToolCallID, ch.Nested.RunID)
		equal(t, "inner run", p.Output.RunID, ch.Nested.RunID)
		call, err := events.ParseCallID(p.ToolCallID)
		if err != nil || call.Run != ch.RunID {
			t.Errorf("a chunk of run %s is about call %s", ch.RunID, p.ToolCallID)
		}
		key := "clerk"
		if call.Run == events.RootOf(call.Run) {
			key = []string{"east", "west"}[call.Index-1]
		}
		equal(t, "tool", p.ToolName, "agent-"+key)
		if ch.Nested.Type == events.ChunkSuspended || ch.Nested.Type == events.ChunkToolCallApproval {
			t.Errorf("%s is shown below", ch.Nested.Type)
		}
	}
}

// TestB12_7_InBetween follows a run between the root and those that ask: it is shown their questions as its own, and waits.
func TestB12_7_InBetween(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _ := tree(t, echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()}))
		w := New(t, o)
		w.StartAll()
		c := client.New(w.Conn(), client.Config{Principal: "alice"})
		t.Cleanup(c.Close)
		root := w.Request("pay all")
		held := leaves(root)
		for _, call := range held {
			w.AwaitAsk(call, moment)
		}
		east := events.CallID{Run: root, Step: 1, Index: 1}.String()
		out, err := c.Run(east).Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "reason", out.FinishReason, client.FinishSuspended)
		var asked []string
		for _, a := range out.Asks {
			asked = append(asked, a.ToolCallID)
		}
		equal(t, "asks", fmt.Sprint(asked), fmt.Sprint([]string{held[0].String(), held[1].String()}))
	})
}

package jetstream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func suspended(run, thread string) *events.Snapshot {
	return &events.Snapshot{
		State: events.State{
			V: events.SnapshotVersion, RunID: run, RootRunID: run, AgentID: "support", ResourceID: "bob", ThreadID: thread,
			Path: []events.PathEntry{{AgentID: "support", RunID: run}}, Step: 1, MainSeq: 7,
			Messages: []events.Message{events.TextMessage(events.RoleUser, "refund <42> & more")},
			Calls:    []events.CallState{{C: "1-1", State: events.CallPending}},
			Options:  events.Options{Args: json.RawMessage(`{"n":9007199254740993}`)},
		},
		Asks: []events.OpenAsk{{ToolCallID: run + "=1-1", RunID: run, ToolName: "refund", Args: json.RawMessage(`{"amount":612.50}`)}},
	}
}

func keyOf(s *events.Snapshot) string {
	return events.SuspendedKey(s.AgentID, s.ResourceID, s.ThreadID, s.RootRunID, s.RunID)
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	s := suspended("r1", "t1")
	rev, err := c.PutSnapshot(t.Context(), s, 0)
	if err != nil {
		t.Fatal(err)
	}
	got, gotRev, err := c.Snapshot(t.Context(), keyOf(s))
	if err != nil || gotRev != rev {
		t.Fatalf("read: revision %d of %d, %v", gotRev, rev, err)
	}
	if got.Writer == "" || got.Size < 200 {
		t.Errorf("writer %q and size %d are not filled in", got.Writer, got.Size)
	}
	got.Writer, got.Size = "", 0
	if diff := cmp.Diff(s, got); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}

	if _, err := c.PutSnapshot(t.Context(), s, 0); !errors.Is(err, jetstream.ErrConflict) {
		t.Errorf("created twice: %v", err)
	}
	next, err := c.PutSnapshot(t.Context(), s, rev)
	if err != nil || next <= rev {
		t.Fatalf("update: revision %d, %v", next, err)
	}
	if _, err := c.PutSnapshot(t.Context(), s, rev); !errors.Is(err, jetstream.ErrConflict) {
		t.Errorf("stale update: %v", err)
	}
	if err := c.DeleteSnapshot(t.Context(), keyOf(s), rev); !errors.Is(err, jetstream.ErrConflict) {
		t.Errorf("stale deletion: %v", err)
	}
	for range 2 { // again is no error
		if err := c.DeleteSnapshot(t.Context(), keyOf(s), next); err != nil {
			t.Errorf("deletion: %v", err)
		}
	}
	if _, _, err := c.Snapshot(t.Context(), keyOf(s)); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("read after the deletion: %v", err)
	}
	if _, err := c.PutSnapshot(t.Context(), s, next); !errors.Is(err, jetstream.ErrConflict) {
		t.Errorf("update after the deletion: %v", err)
	}
	if _, err := c.PutSnapshot(t.Context(), s, 0); err != nil {
		t.Errorf("created again: %v", err)
	}
}

func TestSnapshotRace(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	var rev uint64
	for round := range 20 {
		var won atomic.Uint64
		var winners atomic.Int32
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				switch got, err := c.PutSnapshot(t.Context(), suspended("r1", "t1"), rev); {
				case err == nil:
					winners.Add(1)
					won.Store(got)
				case !errors.Is(err, jetstream.ErrConflict):
					t.Error(err)
				}
			})
		}
		writers.Wait()
		if winners.Load() != 1 {
			t.Fatalf("round %d has %d winners", round, winners.Load())
		}
		rev = won.Load()
	}
}

// TestSnapshotLostReply: a writer whose reply was lost finds that it has won.
func TestSnapshotLostReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		var lost atomic.Int32
		unlucky := connect(t, srv, jetstream.Options{Hooks: jetstream.Hooks{LoseReply: func(subject string) bool {
			return strings.HasPrefix(subject, "$KV.") && lost.Add(1) <= 2
		}}})
		rev, err := unlucky.PutSnapshot(t.Context(), suspended("r1", "t1"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Snapshot(t.Context(), keyOf(suspended("r1", "t1"))); err != nil || got != rev {
			t.Errorf("revision %d, want %d (%v)", got, rev, err)
		}
		if lost.Load() < 2 {
			t.Errorf("only %d replies were lost", lost.Load())
		}
		if err := unlucky.DeleteSnapshot(t.Context(), keyOf(suspended("r1", "t1")), rev); err != nil {
			t.Error(err)
		}
	})
}

func TestSnapshotOfALongRun(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	s := suspended("r1", "t1")
	for i := range 50 {
		s.Messages = append(s.Messages, events.TextMessage(events.RoleAssistant, strings.Repeat(fmt.Sprint(i%10), 50_000)))
	}
	if _, err := c.PutSnapshot(t.Context(), s, 0); err != nil {
		t.Fatal(err)
	}
	got, _, err := c.Snapshot(t.Context(), keyOf(s))
	if err != nil {
		t.Fatal(err)
	}
	if got.Size < 2_500_000 {
		t.Errorf("size %d", got.Size)
	}
	got.Writer, got.Size = "", 0
	if diff := cmp.Diff(s, got); diff != "" {
		t.Errorf("snapshot (-want +got):\n%.2000s", diff)
	}
}

// TestB10_5Listed: what lists show of an entry costs one read, however much the run has said.
func TestB10_5Listed(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	if _, err := c.Listed(t.Context(), keyOf(suspended("none", "t1"))); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("no entry: %v", err)
	}
	for name, size := range map[string]int{"small": 1, "large": 3_000_000} {
		s := suspended(name, "t1")
		s.Messages = append(s.Messages, events.TextMessage(events.RoleAssistant, strings.Repeat("x", size)))
		if _, err := c.PutSnapshot(t.Context(), s, 0); err != nil {
			t.Fatal(err)
		}
		sent := c.Sent()
		got, err := c.Listed(t.Context(), keyOf(s))
		if err != nil {
			t.Fatal(err)
		}
		if n := c.Sent() - sent; n != 1 {
			t.Errorf("%s: %d requests", name, n)
		}
		if diff := cmp.Diff(s.Asks, got.Asks); diff != "" || got.RunID != name || got.Messages != nil || got.Size < size {
			t.Errorf("%s: size %d, %s", name, got.Size, diff)
		}
	}
}

// TestB10_7LaterRelease: an entry of a later release is refused by who would go on from it, and listed all the same, as
// far as it can be read.
func TestB10_7LaterRelease(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	s := suspended("r1", "t1")
	value := fmt.Sprintf(`{"v":%d,"runId":"r1","agentId":"support","rootRunId":"r1","messages":{"other":"form"},"step":"three",`+
		`"asks":[{"toolCallId":"r1=1-1","toolName":"pay","round":{"n":1}},{"toolCallId":"r1=1-2","toolName":"pay","args":{"n":1.50}}]}`,
		events.SnapshotVersion+1)
	if _, err := raw(t, srv).Publish(t.Context(), "$KV."+ns.Store(events.BucketSuspended)+"."+keyOf(s), []byte(value)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Snapshot(t.Context(), keyOf(s)); !errors.Is(err, events.ErrNewer) || !strings.Contains(err.Error(), "later release") {
		t.Errorf("read: %v", err)
	}
	got, err := c.Listed(t.Context(), keyOf(s))
	if err != nil || got.RunID != "r1" || got.V != events.SnapshotVersion+1 || len(got.Asks) != 1 || string(got.Asks[0].Args) != `{"n":1.50}` {
		t.Errorf("listed: %+v, %v", got, err)
	}
}

func TestListSuspended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		var keys []string
		for i := range 6 {
			s := suspended(fmt.Sprintf("r%d", i), fmt.Sprintf("t%d", i%2))
			if i == 5 {
				s.AgentID, s.ThreadID = "other agent!", ""
			}
			keys = append(keys, keyOf(s))
			if _, err := c.PutSnapshot(t.Context(), s, 0); err != nil {
				t.Fatal(err)
			}
		}
		for _, tc := range []struct {
			agent, resource, thread string
			want                    []string
		}{
			{"support", "bob", "t0", []string{keys[0], keys[2], keys[4]}},
			{"support", "", "t1", []string{keys[1], keys[3]}},
			{"other agent!", "", "", []string{keys[5]}},
			{"nobody", "", "", nil},
		} {
			got, err := c.ListSuspended(t.Context(), tc.agent, tc.resource, tc.thread)
			if err != nil {
				t.Fatal(err)
			}
			same(t, fmt.Sprint(tc.agent, tc.thread), tc.want, got)
		}
		if err := c.DeleteSnapshot(t.Context(), keys[0], 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute) // fake
		got, err := c.ListSuspended(t.Context(), "support", "bob", "t0")
		if err != nil {
			t.Fatal(err)
		}
		same(t, "after a deletion", []string{keys[2], keys[4]}, got)
		if n := bucketInfo(t, raw(t, srv), "KV_"+ns.Store(events.BucketSuspended)).State.Msgs; n != 5 {
			t.Errorf("%d messages for 5 snapshots", n)
		}
	})
}

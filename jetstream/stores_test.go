package jetstream_test

import (
	"bytes"
	"context"
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
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// bucketInfo is what the server says about a store.
func bucketInfo(t *testing.T, js natsjs.JetStream, name string) *natsjs.StreamInfo {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo()
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	body := []byte(`{"id":"support"}`)
	digest, err := c.PutDef(t.Context(), body)
	if err != nil || digest != events.Digest(body) {
		t.Fatalf("put: %s, %v", digest, err)
	}
	if again, err := c.PutDef(t.Context(), body); err != nil || again != digest {
		t.Errorf("put again: %s, %v", again, err)
	}
	js := raw(t, srv)
	if n := bucketInfo(t, js, "KV_"+ns.Store(events.BucketRegistry)).State.LastSeq; n != 1 {
		t.Errorf("%d messages for one definition", n)
	}
	for range 2 { // stored, then cached
		if got, err := c.Def(t.Context(), digest); err != nil || !bytes.Equal(got, body) {
			t.Errorf("read: %s, %v", got, err)
		}
	}
	if _, err := c.Def(t.Context(), events.Digest([]byte("other"))); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("unknown digest: %v", err)
	}
	forged := events.Digest([]byte("what the reader means"))
	if _, err := js.Publish(t.Context(), "$KV."+ns.Store(events.BucketRegistry)+"."+events.DefKey(forged), body); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Def(t.Context(), forged); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("forged definition was read: %s, %v", got, err)
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	other := service(t, srv)
	read := func(id string) string {
		body, err := c.Named(t.Context(), events.RegistryAgent, id)
		if errors.Is(err, jetstream.ErrNotFound) {
			return "none"
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	put := func(by *jetstream.Conn, id, body string) {
		t.Helper()
		if err := by.PutNamed(t.Context(), events.RegistryAgent, id, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if got := read("a"); got != "none" {
		t.Errorf("before: %s", got)
	}
	put(c, "a", "1")
	if got := read("a"); got != "1" {
		t.Errorf("after an own write: %s", got)
	}
	put(other, "a", "2")
	until(t, "the other's write", func() bool { return read("a") == "2" })
	put(other, "weird id / \u00e4", "3")
	put(other, "b", "4")
	all, err := c.ListNamed(t.Context(), events.RegistryAgent)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{"a": []byte("2"), "b": []byte("4"), events.Token("weird id / \u00e4"): []byte("3")}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if err := other.DeleteNamed(t.Context(), events.RegistryAgent, "b"); err != nil {
		t.Fatal(err)
	}
	until(t, "the deletion", func() bool { return read("b") == "none" })
	if all, err = c.ListNamed(t.Context(), events.RegistryAgent); err != nil || len(all) != 2 {
		t.Errorf("list after the deletion: %d, %v", len(all), err)
	}
}

// TestNamedIsCached: within a second a name costs no read, and after it the leader is asked even when nothing was heard.
func TestNamedIsCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		if err := c.PutNamed(t.Context(), events.RegistryTool, "a", []byte("1")); err != nil {
			t.Fatal(err)
		}
		read := func() (messages uint64) {
			t.Helper()
			before := c.Sent()
			if got, err := c.Named(t.Context(), events.RegistryTool, "a"); err != nil || string(got) != "1" {
				t.Errorf("read: %s, %v", got, err)
			}
			return c.Sent() - before
		}
		read()
		synctest.Wait()
		if n := read(); n != 0 {
			t.Errorf("%d messages for a name that is known", n)
		}
		time.Sleep(1100 * time.Millisecond) // fake
		if n := read(); n != 1 {
			t.Errorf("%d messages for a name that is old", n)
		}
	})
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		live := func(id string) bool {
			t.Helper()
			ok, err := c.IsLive(t.Context(), "tool-executor", id)
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.KeepAlive(ctx, events.Live{Service: "tool-executor", ID: "w1", Pool: "default"}) }()
		time.Sleep(time.Hour) // fake
		if !live("w1") || live("w2") {
			t.Errorf("w1 lives: %v, w2 lives: %v; want true, false", live("w1"), live("w2"))
		}
		all, err := c.ListLive(t.Context(), "tool-executor")
		if err != nil || len(all) != 1 || all[0].Pool != "default" {
			t.Errorf("living: %+v, %v", all, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if live("w1") {
			t.Error("lives after its end")
		}

		if err := c.PutLive(t.Context(), events.Live{Service: "tool-executor", ID: "w3"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // fake
		if !live("w3") {
			t.Error("gone 10 s after it said that it lives")
		}
		time.Sleep(10 * time.Second) // fake
		if live("w3") {
			t.Error("lives 20 s after it said so for the last time")
		}
		time.Sleep(2 * time.Minute) // fake
		if n := bucketInfo(t, raw(t, srv), "KV_"+ns.Store(events.BucketRegistry)).State.Msgs; n != 0 {
			t.Errorf("%d messages are left of the dead", n)
		}
	})
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	js := raw(t, srv)
	for _, size := range []int{0, 1, 256 << 10, 256<<10 + 1, 1 << 20, 3<<20 + 17} {
		body := bytes.Repeat([]byte("0123456789abcdef\x00\xff!"), size/19+1)[:size]
		before := bucketInfo(t, js, "OBJ_"+ns.Store(events.BucketBlobs)).State.Msgs
		var writers sync.WaitGroup
		for range 3 { // together and again
			writers.Go(func() {
				if digest, err := c.PutBlob(t.Context(), body); err != nil || digest != events.Digest(body) {
					t.Errorf("put %d bytes: %s, %v", size, digest, err)
				}
			})
		}
		writers.Wait()
		got, err := c.Blob(t.Context(), events.Digest(body))
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("read %d bytes: %d, %v", size, len(got), err)
		}
		parts := uint64(max((size+256<<10-1)/(256<<10), 1))
		if n := bucketInfo(t, js, "OBJ_"+ns.Store(events.BucketBlobs)).State.Msgs - before; n != parts {
			t.Errorf("%d bytes take %d parts, want %d", size, n, parts)
		}
	}
	for digest, want := range map[string]error{
		events.Digest([]byte("unknown")):    jetstream.ErrNotFound,
		"sha256:*":                          events.ErrBadID,
		"md5:0123":                          events.ErrBadID,
		"sha256:" + strings.Repeat("A", 64): events.ErrBadID,
	} {
		if _, err := c.Blob(t.Context(), digest); !errors.Is(err, want) {
			t.Errorf("blob %s: %v, want %v", digest, err, want)
		}
	}
	// What somebody else stored under a digest is not taken for it.
	victim := events.Digest([]byte("victim"))
	subject := "$O." + ns.Store(events.BucketBlobs) + ".C." + strings.TrimPrefix(victim, "sha256:") + ".0"
	if _, err := js.Publish(t.Context(), subject, []byte("forged")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Blob(t.Context(), victim); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("forged blob: %v", err)
	}
}

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

func TestNotes(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	var r record
	stop, err := c.Notes(t.Context(), "bob", func(e events.Event) { r.add("%s %s", e.Type, e.Subject) })
	if err != nil {
		t.Fatal(err)
	}
	note := func(principal, run string) {
		t.Helper()
		subject := ns.Note(principal, run, "")
		e, err := tester.Request(subject, run, events.RunRefused{
			RunID: run, EventID: events.NewID(time.Now()),
			Error: *events.Errorf(events.CodeRunExists, "the run exists"),
		}, events.Event{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Note(t.Context(), subject, e); err != nil {
			t.Fatal(err)
		}
	}
	note("bob", "r1")
	note("alice", "r2")
	note("bob", "r3")
	until(t, "both notes", func() bool { return len(r.all()) == 2 })
	stop()
	stop()
	note("bob", "r4")
	typ := events.TypeOf[events.RunRefused]()
	same(t, "bob's notes", []string{typ + " r1", typ + " r3"}, r.all())
}

// TestHear: a subscriber of stored facts hears each that was stored, with its sequence, and none that was refused.
func TestHear(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	heard := make(chan events.Event, 10)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.Hear(ctx, ns.EveryMain(events.KindStart), func(e events.Event) { heard <- e }); err != nil {
		t.Fatal(err)
	}
	want := stored(t, c, events.First(ns.Start("r1")), fact(t, ns.Start("r1")))
	if got, err := c.Append(t.Context(), events.First(ns.Start("r1")), fact(t, ns.Start("r1"))); err != nil || got.Outcome != jetstream.Lost {
		t.Fatalf("%v, %v", got.Outcome, err)
	}
	stored(t, c, events.First(ns.Start("r2")), fact(t, ns.Start("r2")))
	for _, run := range []string{"r1", "r2"} {
		if e := <-heard; e.Subject != run || e.Place != ns.Start(run) || e.Seq == 0 || e.Stored.IsZero() ||
			run == "r1" && (e.ID != want.ID || e.Seq != want.Seq) {
			t.Errorf("heard of run %s: %+v", run, e)
		}
	}
	before := c.Subscriptions()
	cancel()
	until(t, "the subscription to end", func() bool { return c.Subscriptions() < before })
}

// timers consumes what fires.
func timers(t *testing.T, c *jetstream.Conn, r *record) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Consume(events.StreamTimers, jetstream.ConsumerApproval, jetstream.Handler{
			Handle: func(_ context.Context, d jetstream.Delivery) error {
				timer, err := events.Data[events.TimerFired](d.Event)
				if err != nil {
					return err
				}
				r.add("%s %s %d", timer.ToolCallID, timer.Purpose, timer.Round)
				return nil
			},
		})(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func setTimer(t *testing.T, c *jetstream.Conn, run string, after time.Duration, purpose string) string {
	t.Helper()
	timer := events.TimerSet{RunID: run, ToolCallID: run + "=1-1", Round: 1, Purpose: purpose, At: time.Now().Add(after)}
	if err := c.SetTimer(t.Context(), tester, timer); err != nil {
		t.Fatal(err)
	}
	id, err := jetstream.TimerID(timer)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestTimers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		var r record
		stop := timers(t, c, &r)
		began := time.Now()
		setTimer(t, c, "r1", 6*time.Hour, events.TimerExpire)
		setTimer(t, c, "r1", 2*time.Hour, events.TimerRemind)
		setTimer(t, c, "r2=1-1", 4*time.Hour, events.TimerExpire)
		setTimer(t, c, "r2=1-1", 3*time.Hour, events.TimerExpire) // replaced: earlier
		cancelled := setTimer(t, c, "r3", 5*time.Hour, events.TimerExpire)
		setTimer(t, c, "r4", -time.Hour, events.TimerExpire) // overdue
		time.Sleep(time.Minute)                              // fake
		for range 2 {
			if err := c.CancelTimer(t.Context(), cancelled); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.CancelTimer(t.Context(), "never"); err != nil {
			t.Error(err)
		}
		time.Sleep(6 * time.Hour) // fake
		if err := c.CancelTimer(t.Context(), cancelled); err != nil {
			t.Error(err)
		}
		stop()
		same(t, "fired", []string{"r4=1-1 expire 1", "r1=1-1 remind 1", "r2=1-1=1-1 expire 1", "r1=1-1 expire 1"}, r.all())
		for i, want := range []time.Duration{0, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour} {
			if i >= len(r.times()) {
				break
			}
			if late := r.times()[i].Sub(began) - want; late < 0 || late > 2*time.Second {
				t.Errorf("timer %d came %v late", i, late)
			}
		}
		time.Sleep(2 * time.Hour) // fake
		if n := bucketInfo(t, raw(t, srv), ns.Store(events.StreamTimers)).State.Msgs; n != 0 {
			t.Errorf("%d messages are left of timers that are over", n)
		}
	})
}

// TestTimersInRealTime is the twin of the test in fake time, so that it cannot be fooled by how time is faked.
func TestTimersInRealTime(t *testing.T) {
	t.Parallel()
	p, c := openPhoenix(t)
	began := time.Now()
	setTimer(t, c, "r1", 1500*time.Millisecond, events.TimerExpire)
	setTimer(t, c, "r2", 10*time.Minute, events.TimerExpire)
	p.restart(t)
	var r record
	timers(t, c, &r)
	until(t, "the timer", func() bool { return len(r.all()) == 1 })
	if after := r.times()[0].Sub(began); after < 1500*time.Millisecond {
		t.Errorf("the timer came %v early", 1500*time.Millisecond-after)
	}
	same(t, "fired", []string{"r1=1-1 expire 1"}, r.all())
}

// TestTimerWaitsForTheGate: one that fires after a day while no gate runs is delivered when there is one.
func TestTimerWaitsForTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		began := time.Now()
		setTimer(t, c, "r1", 24*time.Hour, events.TimerExpire)
		time.Sleep(24*time.Hour + 20*time.Minute) // fake
		fired := make(chan events.Event, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- c.Consume(events.StreamTimers, jetstream.ConsumerApproval, jetstream.Handler{
				Handle: func(_ context.Context, d jetstream.Delivery) error {
					fired <- d.Event
					return nil
				},
			})(ctx)
		}()
		if late := (<-fired).Stored.Sub(began) - 24*time.Hour; late < 0 || late > time.Second {
			t.Errorf("fired %v late", late)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

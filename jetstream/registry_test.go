package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

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

package jetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

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

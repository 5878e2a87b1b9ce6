package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// held appends an ask, as the first fact of a call of the run.
func held(t *testing.T, c *jetstream.Conn, run string) events.Event {
	t.Helper()
	p := ns.Call(call(run), events.KindAsk)
	return stored(t, c, events.First(p), fact(t, p))
}

func answer(t *testing.T, run string) events.Event {
	t.Helper()
	return fact(t, ns.Call(call(run), events.KindAnswer))
}

// lost appends a fact that must lose to winner.
func lost(t *testing.T, c *jetstream.Conn, g events.Guard, e, winner events.Event) {
	t.Helper()
	got, err := c.Append(t.Context(), g, e)
	if err != nil {
		t.Fatal(err)
	}
	if got.Outcome != jetstream.Lost || got.Last.ID != winner.ID || got.Last.Seq != winner.Seq {
		t.Errorf("append %s: %s, last fact %s at %d; want lost to %s at %d", e.Place.Subject(), got.Outcome,
			got.Last.ID, got.Last.Seq, winner.ID, winner.Seq)
	}
	if got.Last.Stored.IsZero() || got.Last.Place != winner.Place {
		t.Errorf("the winner comes as %+v", got.Last)
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	ask := held(t, c, "r")
	first := stored(t, c, events.After(ask), answer(t, "r"))
	lost(t, c, events.After(ask), answer(t, "r"), first)
	again, err := c.Append(t.Context(), events.After(ask), first)
	if err != nil || again.Outcome != jetstream.Stored || again.Last.Seq != first.Seq || again.Last.Stored.IsZero() {
		t.Errorf("the same answer again: %v, %v", again, err)
	}
	if got, err := c.Last(t.Context(), ask.Place.Chain()); err != nil || got.Seq != first.Seq {
		t.Errorf("last fact of the chain: %d, %v; want %d", got.Seq, err, first.Seq)
	}
}

// A fact that others have followed is still ours.
func TestAppendStoredAndFollowed(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	ask := held(t, c, "r")
	ours := stored(t, c, events.After(ask), answer(t, "r"))
	stored(t, c, events.After(ours), fact(t, ns.Go(call("r"), "default", "refund")))
	got, err := c.Append(t.Context(), events.After(ask), ours)
	if err != nil || got.Outcome != jetstream.Stored || got.Last.Seq != ours.Seq {
		t.Errorf("append again: %s at %d, %v; want stored at %d", got.Outcome, got.Last.Seq, err, ours.Seq)
	}
}

// everyPlace has one place of each kind of fact.
func everyPlace(run string) []events.Place {
	c := call(run)
	places := []events.Place{
		ns.Start(run), ns.Step(run, 1), ns.Carry(run, 1), ns.End(run), ns.Go(c, "default", "refund"),
		ns.Go(c, events.TokenAgentPool, "support"),
		ns.Beside(c, events.KindVote, "alice"), ns.Beside(c, events.KindRefused, "e1"), ns.Beside(c, events.KindLate, "e1"),
	}
	for _, kind := range []events.Kind{
		events.KindAsk, events.KindAnswer, events.KindClaim, events.KindSuspend,
		events.KindResult,
	} {
		places = append(places, ns.Call(c, kind))
	}
	return places
}

// TestEveryGuardRefuses holds each kind of fact against each kind of wrong guard: a mistyped filter would let it pass.
func TestEveryGuardRefuses(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	for _, p := range everyPlace("r") {
		t.Run(string(p.Kind), func(t *testing.T) {
			p.Run = "r" + strings.ReplaceAll(p.Pool, "=", "_") + string(p.Kind)
			first := stored(t, c, events.First(p), fact(t, p))
			lost(t, c, events.First(p), fact(t, p), first)
			second := stored(t, c, events.After(first), fact(t, p))
			lost(t, c, events.First(p), fact(t, p), second)
			lost(t, c, events.After(first), fact(t, p), second)
			if last, err := c.Last(t.Context(), p.Chain()); err != nil || last.Seq != second.Seq {
				t.Errorf("last fact is at %d, %v; want %d", last.Seq, err, second.Seq)
			}
		})
	}
}

// Two facts of one chain exclude each other whatever their kinds, and facts of different chains never do.
func TestChainsOfKinds(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	inCall := []events.Place{
		ns.Call(call("r"), events.KindResult), ns.Call(call("r"), events.KindAsk),
		ns.Go(call("r"), "default", "refund"),
	}
	first := stored(t, c, events.First(inCall[0]), fact(t, inCall[0]))
	for _, p := range inCall[1:] {
		lost(t, c, events.First(p), fact(t, p), first)
	}
	for _, p := range []events.Place{
		ns.Start("r"), ns.Call(events.CallID{Run: "r", Step: 1, Index: 2}, events.KindAsk),
		ns.Call(events.CallID{Run: "r", Step: 11, Index: 1}, events.KindAsk), ns.Call(call("r=1-1"), events.KindAsk),
		ns.Beside(call("r"), events.KindVote, "alice"), ns.Beside(call("r"), events.KindVote, "bob"),
	} {
		stored(t, c, events.First(p), fact(t, p))
	}
}

func TestAppendRefusesMistakes(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	e := answer(t, "r")
	other := fact(t, events.Namespace("other").Start("r"))
	for name, tc := range map[string]struct {
		guard events.Guard
		e     events.Event
	}{
		"guard of another chain":      {events.First(ns.Start("r")), e},
		"guard of another call":       {events.First(ns.Call(call("r2"), events.KindAnswer)), e},
		"guard that cannot be met":    {events.Never(e.Place), e},
		"zero guard":                  {events.Guard{}, e},
		"fact of another namespace":   {events.First(other.Place), other},
		"guard of nothing, no place":  {events.Guard{}, events.Event{}},
		"event that is no CloudEvent": {events.First(e.Place), events.Event{Place: e.Place}},
	} {
		if got, err := c.Append(t.Context(), tc.guard, tc.e); err == nil {
			t.Errorf("%s: %s", name, got.Outcome)
		}
	}
	if _, err := c.Last(t.Context(), ns.RunAll()); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("something was stored: %v", err)
	}
}

func TestAppendTooLarge(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, jetstream.Settings{})
	const limit = 1 << 20
	p := ns.Start("r")
	size := func(pad int) events.Event {
		e := factWith(t, p, strings.Repeat("x", pad))
		e.Time = e.Time.Truncate(time.Second) // its fraction has no fixed length
		payload, err := events.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		e.Payload = payload
		return e
	}
	// The largest event that is accepted, found from outside, and one byte more.
	overhead := len(size(0).Payload) + headerSize(events.First(p))
	if _, err := c.Append(t.Context(), events.First(p), size(limit-overhead+1)); !errors.Is(err, jetstream.ErrTooLarge) {
		t.Errorf("one byte above the limit: %v, want ErrTooLarge", err)
	}
	stored(t, c, events.First(p), size(limit-overhead))
	if _, err := c.Publish(t.Context(), ns.InStart("bob", "support"), size(limit)); !errors.Is(err, jetstream.ErrTooLarge) {
		t.Errorf("request above the limit: %v, want ErrTooLarge", err)
	}
	if err := c.Health(); err != nil {
		t.Errorf("the connection suffered: %v", err)
	}
}

// TestB8_24_AskLeavesRoomForItsCopy appends asks up to the largest that is accepted: that one can be stored again as a carried
// copy, which has a header more.
func TestB8_24_AskLeavesRoomForItsCopy(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, jetstream.Settings{})
	p := ns.Call(call("r"), events.KindAsk)
	var last events.Event
	for pad := 1<<20 - 300; ; pad-- {
		a, err := c.Append(t.Context(), events.First(p), factWith(t, p, strings.Repeat("x", pad)))
		if err == nil {
			last = a.Last
			break
		}
		if !errors.Is(err, jetstream.ErrTooLarge) {
			t.Fatal(err)
		}
	}
	copied := last
	copied.Carried = true
	a, err := c.Append(t.Context(), events.After(last), copied)
	if err != nil || a.Outcome != jetstream.Stored {
		t.Errorf("the carried copy of the largest ask: %v, %v", a.Outcome, err)
	}
}

// headerSize is what the headers of a fact add to its size, as the client encodes them.
func headerSize(g events.Guard) int {
	h := nats.Header{
		"content-type":                                {"application/cloudevents+json"},
		"Nats-Expected-Last-Subject-Sequence":         {"0"},
		"Nats-Expected-Last-Subject-Sequence-Subject": {g.Filter()},
	}
	n := len("NATS/1.0\r\n") + len("\r\n")
	for k, v := range h {
		n += len(k) + len(": ") + len(v[0]) + len("\r\n")
	}
	return n
}

// A reply that is lost decides nothing: the chain says whether the fact is there.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	var lose atomic.Int32
	c := start(t, jetstream.Options{Hooks: jetstream.Hooks{LoseReply: acks(func() bool { return lose.Add(-1) >= 0 })}})
	ask := held(t, c, "r")
	for _, n := range []int32{1, 3} {
		lose.Store(n)
		next := answer(t, "r")
		ask = stored(t, c, events.After(ask), next)
		if ask.Stored.IsZero() {
			t.Error("a fact that was read back has no time stamp")
		}
	}
	lose.Store(1)
	winner := stored(t, c, events.After(ask), answer(t, "r"))
	lose.Store(2)
	lost(t, c, events.After(ask), answer(t, "r"), winner)
	count(t, c, 4)
	if err := c.Health(); !errors.Is(err, jetstream.ErrTimeout) {
		t.Errorf("health after writes that timed out: %v", err)
	}
}

// count checks how many facts are in the log.
func count(t *testing.T, c *jetstream.Conn, want int) {
	t.Helper()
	last, err := c.Last(t.Context(), ns.RunAll())
	if err != nil || last.Seq != uint64(want) {
		t.Errorf("the log holds %d facts, %v; want %d", last.Seq, err, want)
	}
}

// The ack is lost, and before the writer looks, another fact has followed its own.
func TestLostReplyAndFollowed(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	other := connect(t, srv, jetstream.Options{})
	ensure(t, other, jetstream.Settings{})
	ask := held(t, other, "r")
	ours := answer(t, "r")
	release := fact(t, ns.Go(call("r"), "default", "refund"))
	c := connect(t, srv, jetstream.Options{Hooks: jetstream.Hooks{LoseReply: acks(func() bool {
		last, err := other.Last(t.Context(), ask.Place.Chain())
		if err != nil || last.ID != ours.ID {
			t.Errorf("last fact is %s, %v; want ours", last.ID, err)
		}
		stored(t, other, events.After(last), release)
		return true
	})}})
	stored(t, c, events.After(ask), ours)
	count(t, c, 3)
}

// carried is a copy of a fact, as it is stored again before the fact ages out.
func carried(e events.Event) events.Event {
	e.Carried, e.Seq, e.Stored = true, 0, time.Time{}
	return e
}

func TestAppendFollowsCarriedCopies(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	ask := held(t, c, "r")
	copy1 := stored(t, c, events.After(ask), carried(ask))
	copy2 := stored(t, c, events.After(copy1), carried(ask))
	if copy2.Seq <= copy1.Seq || !copy2.Carried {
		t.Fatalf("second copy at %d after %d", copy2.Seq, copy1.Seq)
	}
	first := stored(t, c, events.After(ask), answer(t, "r"))
	lost(t, c, events.After(ask), answer(t, "r"), first)
	lost(t, c, events.After(copy1), answer(t, "r"), first)
	late := stored(t, c, events.After(ask), carried(ask)) // it has been carried: nothing is left to do
	if late.Seq != copy1.Seq {
		t.Errorf("a late copy at %d, want that at %d", late.Seq, copy1.Seq)
	}
	if last, err := c.Last(t.Context(), ask.Place.Chain()); err != nil || last.Seq != first.Seq || last.Carried {
		t.Errorf("last fact at %d, %v; want the answer at %d", last.Seq, err, first.Seq)
	}
}

// Two who carry the same fact at once are content with one copy.
func TestCarriedTwice(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	ask := held(t, c, "r")
	one := stored(t, c, events.After(ask), carried(ask))
	two := stored(t, c, events.After(ask), carried(ask))
	if one.Seq != two.Seq {
		t.Errorf("copies at %d and %d, want one", one.Seq, two.Seq)
	}
}

// A carried fact that is not a copy of the one named is another fact.
func TestCarriedOther(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	ask := held(t, c, "r")
	other := stored(t, c, events.After(ask), carried(fact(t, ask.Place)))
	lost(t, c, events.After(ask), answer(t, "r"), other)
	lost(t, c, events.First(ask.Place), answer(t, "r"), other)
}

// aging is a log from which facts can be deleted, as their age deletes them. Real ages would make the test a matter of
// the clock.
func aging(t *testing.T) (c *jetstream.Conn, forget func(events.Event)) {
	t.Helper()
	srv := jetstreamtest.StartServer(t)
	c = connect(t, srv, jetstream.Options{})
	js := rawJS(t, srv)
	plan := jetstream.Topology(ns, jetstream.Settings{})
	blobs, _ := plan.Store(events.BucketBlobs)
	if _, err := js.CreateStream(t.Context(), blobs.Config); err != nil {
		t.Fatal(err)
	}
	runs, _ := plan.Store(events.StreamRuns)
	runs.Config.DenyDelete, runs.Config.DenyPurge = false, false
	stream, err := js.CreateStream(t.Context(), runs.Config)
	if err != nil {
		t.Fatal(err)
	}
	return c, func(e events.Event) {
		t.Helper()
		if err := stream.DeleteMsg(t.Context(), e.Seq); err != nil {
			t.Fatal(err)
		}
	}
}

// After the retention a chain is empty: what follows a fact of it is gone, and never stored.
func TestGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it takes seconds to be sure
		c, forget := aging(t)
		ask := held(t, c, "r")
		forget(ask)
		got, err := c.Append(t.Context(), events.After(ask), answer(t, "r"))
		if err != nil || got.Outcome != jetstream.Gone || got.Last.ID != "" {
			t.Errorf("append after the retention: %s, %v; want gone", got.Outcome, err)
		}
		if _, err := c.Last(t.Context(), ask.Place.Chain()); !errors.Is(err, jetstream.ErrNotFound) {
			t.Errorf("the chain is not empty: %v", err)
		}
	})
}

// A copy whose original has aged out cannot be compared with it, so it is for the caller to judge.
func TestCarriedCopyOfGone(t *testing.T) {
	t.Parallel()
	c, forget := aging(t)
	ask := held(t, c, "r")
	kept := stored(t, c, events.After(ask), carried(ask))
	forget(ask)
	lost(t, c, events.After(ask), answer(t, "r"), kept)
	first := stored(t, c, events.After(kept), answer(t, "r"))
	forget(kept)
	lost(t, c, events.After(ask), answer(t, "r"), first)
}

func TestRecord(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	p := ns.Beside(call("r"), events.KindRefused, "e1")
	for range 2 {
		if err := c.Record(t.Context(), fact(t, p)); err != nil {
			t.Error(err)
		}
	}
	count(t, c, 1)
	if err := c.Record(t.Context(), answer(t, "r")); err == nil {
		t.Error("a fact of a chain was recorded without a guard")
	}
	count(t, c, 1)
}

func TestPublish(t *testing.T) {
	t.Parallel()
	var lose atomic.Int32
	c := start(t, jetstream.Options{Hooks: jetstream.Hooks{LoseReply: acks(func() bool { return lose.Add(-1) >= 0 })}})
	subject := ns.InStart("bob", "support")
	e := answer(t, "r")
	for want := range uint64(3) {
		if seq, err := c.Publish(t.Context(), subject, e); err != nil || seq != want+1 {
			t.Errorf("published at %d, %v; want %d: nothing may take a repeated event for a duplicate", seq, err, want+1)
		}
	}
	lose.Store(1)
	if seq, err := c.Publish(t.Context(), subject, e); err != nil || seq != 5 {
		t.Errorf("published at %d, %v; want 5, after a lost ack", seq, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Publish(ctx, "no.stream", e); !errors.Is(err, jetstream.ErrUnavailable) {
		t.Errorf("published where no stream listens: %v, want ErrUnavailable", err)
	}
}

// TestStreamFull: a stream that is full refuses what is new and loses nothing; who publishes is told. (FLOW-2)
func TestStreamFull(t *testing.T) {
	t.Parallel()
	c := connect(t, jetstreamtest.StartServer(t), jetstream.Options{})
	ensure(t, c, jetstream.Settings{MaxBytes: map[string]int64{events.StreamRuns: 4096}})
	last := held(t, c, "r")
	for range 20 {
		got, err := c.Append(t.Context(), events.After(last), answer(t, "r"))
		if errors.Is(err, jetstream.ErrFull) {
			if now, err := c.Last(t.Context(), last.Place.Chain()); err != nil || now.Seq != last.Seq {
				t.Errorf("the last fact is at %d, %v; want %d", now.Seq, err, last.Seq)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		last = got.Last
	}
	t.Error("a stream of 4 KiB took 20 facts")
}

// TestInboxFull: a request that has no room is an error for who sent it, and no request before it is lost. (FLOW-2)
func TestInboxFull(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, jetstream.Settings{MaxBytes: map[string]int64{events.StreamInbox: 4096}})
	for i := range 20 {
		subject := ns.InCancel("bob", fmt.Sprint("r", i))
		e, err := tester.Request(subject, "r", events.CancelRequested{RunID: "r"}, events.Event{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.Publish(t.Context(), subject, e); errors.Is(err, jetstream.ErrFull) {
			// A consumer is told of what is stored a little later; the stream knows at once.
			if n := bucketInfo(t, rawJS(t, srv), ns.Store(events.StreamInbox)).State.Msgs; n != uint64(i) || i == 0 {
				t.Errorf("%d of %d requests are there", n, i)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("an inbox of 4 KiB took 20 requests")
}

// What is no fact of Weir's occupies its chain. Whoever loses to it is told so and can follow it.
func TestTampered(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, jetstream.Settings{})
	nc := rawConn(t, srv)
	for name, payload := range map[string]string{
		"garbage":   "{",
		"wrongrun":  string(answer(t, "another").Payload),
		"wrongtype": string(fact(t, ns.Start("wrongtype")).Payload),
	} {
		p := ns.Call(call(name), events.KindGo)
		p.Pool, p.Tool = "default", "refund"
		msg := nats.NewMsg(p.Ingest())
		msg.Header.Set("content-type", "application/cloudevents+json")
		msg.Data = []byte(payload)
		if _, err := nc.RequestMsgWithContext(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
		got, err := c.Append(t.Context(), events.First(p), fact(t, p))
		if !errors.Is(err, jetstream.ErrTampered) || got.Outcome != jetstream.Lost {
			t.Fatalf("%s: append: %s, %v; want lost to tampering", name, got.Outcome, err)
		}
		if got.Last.Place != p || got.Last.Seq == 0 || got.Last.ID != "" || string(got.Last.Payload) != payload {
			t.Errorf("%s: the foreign fact comes as %+v", name, got.Last)
		}
		if _, err := c.Fact(t.Context(), p); !errors.Is(err, jetstream.ErrTampered) {
			t.Errorf("%s: read: %v", name, err)
		}
		end := ns.Call(call(name), events.KindResult)
		stored(t, c, events.After(got.Last), fact(t, end))
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	killed := errors.New("killed")
	var before, after error
	var outcomes []jetstream.Outcome
	c := start(t, jetstream.Options{Hooks: jetstream.Hooks{
		BeforeAppend: func(events.Event) error { return before },
		AfterAppend: func(_ events.Event, o jetstream.Outcome) error {
			outcomes = append(outcomes, o)
			return after
		},
	}})
	p := ns.Start("r")
	before = killed
	if _, err := c.Append(t.Context(), events.First(p), fact(t, p)); !errors.Is(err, killed) || len(outcomes) > 0 {
		t.Errorf("killed before: %v, %v", err, outcomes)
	}
	before, after = nil, killed
	e := fact(t, p)
	if _, err := c.Append(t.Context(), events.First(p), e); !errors.Is(err, killed) {
		t.Errorf("killed after: %v", err)
	}
	after = nil
	stored(t, c, events.First(p), e)
	lost(t, c, events.First(p), fact(t, p), e2(t, c, p))
	if len(outcomes) != 3 || outcomes[2] != jetstream.Lost {
		t.Errorf("outcomes %v", outcomes)
	}
}

func e2(t *testing.T, c *jetstream.Conn, p events.Place) events.Event {
	t.Helper()
	e, err := c.Fact(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A caller that gives up learns that nothing is known.
func TestAppendUndecided(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{
		Retry: 50 * time.Millisecond,
		Hooks: jetstream.Hooks{LoseReply: acks(func() bool { return true })},
	})
	e := fact(t, ns.Start("r"))
	got := stored(t, c, events.First(e.Place), e) // by read-back alone
	if got.Seq != 1 {
		t.Errorf("stored at %d", got.Seq)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Append(ctx, events.First(e.Place), e); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Without a server nothing is concluded, least of all that a fact is absent.
func TestAppendWithoutServer(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartListening(t)
	c := dial(t, jetstream.Options{Retry: 300 * time.Millisecond}, srv.ClientURL())[0]
	ensure(t, c, jetstream.Settings{})
	ask := held(t, c, "r")
	srv.Shutdown()
	e := answer(t, "r")
	got, err := c.Append(t.Context(), events.After(ask), e)
	if got.Outcome != 0 || !errors.Is(err, jetstream.ErrTimeout) && !errors.Is(err, jetstream.ErrUnavailable) {
		t.Errorf("append without a server: %s, %v", got.Outcome, err)
	}
	if _, err := c.Last(t.Context(), ask.Place.Chain()); err == nil || errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("read without a server: %v", err)
	}
	jetstreamtest.Restart(t, srv)
	patient := dial(t, jetstream.Options{}, srv.ClientURL())[0]
	stored(t, patient, events.After(ask), e) // now, or by the connection that was not heard
	count(t, patient, 2)
}

package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func delta(run string, i int) events.Chunk {
	ch := events.NewChunk(run, events.ChunkTextDelta, map[string]string{"id": "m1", "text": fmt.Sprint(i)})
	ch.Index = i
	return ch
}

// publishChunks sends deltas with the indexes from to to-1, and waits until they are stored.
func publishChunks(t *testing.T, c *jetstream.Conn, run string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := c.PublishChunk(t.Context(), tester, delta(run, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.FlushChunks(t.Context(), run); err != nil {
		t.Fatal(err)
	}
}

// take reads n chunks, with "gap" in the place of ErrGap, and returns what was read and the last cursor.
func take(t *testing.T, c *jetstream.Conn, run string, after uint64, n int) (got []string, cursor uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cursor = after
	for ch, err := range c.Follow(ctx, run, after, nil) {
		switch {
		case errors.Is(err, jetstream.ErrGap):
			got = append(got, "gap")
		case err != nil:
			t.Fatal(err)
		case ch.Cursor <= cursor || ch.RunID != run || ch.ID == "" || ch.Time.IsZero():
			t.Fatalf("after %d came %+v", cursor, ch)
		default:
			cursor = ch.Cursor
			got = append(got, fmt.Sprint(ch.Index))
		}
		if len(got) == n {
			return got, cursor
		}
	}
	t.Fatalf("only %d of %d chunks came", len(got), n)
	return nil, 0
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func same(t *testing.T, what string, want, got []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestFollowStoredThenLive(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	publishChunks(t, c, "r1", 0, 50)
	publishChunks(t, c, "r2", 0, 10) // between
	got, cursor := take(t, c, "r1", 0, 20)
	same(t, "from the beginning", numbers(0, 20), got)
	got, _ = take(t, c, "r1", cursor, 30)
	same(t, "from the cursor", numbers(20, 50), got)

	caughtUp := make(chan struct{})
	var publishing sync.WaitGroup
	defer publishing.Wait()
	publishing.Go(func() {
		<-caughtUp
		publishChunks(t, c, "r1", 50, 100)
	})
	n := 0
	for ch, err := range c.Follow(t.Context(), "r1", 0, nil) {
		if err != nil || ch.Index != n {
			t.Fatalf("chunk %d is %d (%v)", n, ch.Index, err)
		}
		if n++; n == 50 {
			close(caughtUp)
		}
		if n == 100 {
			break
		}
	}
	if c.Feeds() != 0 {
		t.Errorf("%d feeds are left", c.Feeds())
	}
}

// TestFollowMissesNothing: live messages get lost, the last one too, and every reader gets every chunk once.
func TestFollowMissesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		c.LoseLive(func(seq uint64) bool { return seq%7 == 0 || seq%50 > 45 || seq == 400 })
		var readers sync.WaitGroup
		for i := range 10 {
			readers.Go(func() {
				after := uint64(i) // some begin later
				got, _ := take(t, c, "r1", after, 400-i)
				same(t, fmt.Sprintf("reader %d", i), numbers(i, 400), got)
			})
		}
		for i := range 40 {
			publishChunks(t, c, "r1", i*10, i*10+10)
			time.Sleep(time.Duration(i%3) * 400 * time.Millisecond) // fake
		}
		readers.Wait()
	})
}

// TestFollowSlowly: a reader that stands still while much more comes than a feed remembers gets everything. (FLOW-6)
func TestFollowSlowly(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	publishChunks(t, c, "r1", 0, 1)
	n := 0
	for ch, err := range c.Follow(t.Context(), "r1", 0, nil) {
		if err != nil || ch.Index != n {
			t.Fatalf("chunk %d is %d (%v)", n, ch.Index, err)
		}
		switch n {
		case 0:
			publishChunks(t, c, "r1", 1, 2000)
		case 1500: // while it fills
			publishChunks(t, c, "r1", 2000, 3000)
		}
		if n++; n == 3000 {
			break
		}
	}
}

func TestFollowTogether(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	publishChunks(t, c, "r1", 0, 1)
	before := c.Subscriptions()
	var readers sync.WaitGroup
	ready := make(chan struct{}, 50)
	for range 50 {
		readers.Go(func() {
			n := 0
			for ch, err := range c.Follow(t.Context(), "r1", 0, nil) {
				if err != nil || ch.Index != n {
					t.Errorf("chunk %d is %d (%v)", n, ch.Index, err)
					return
				}
				if n++; n == 1 {
					ready <- struct{}{}
				}
				if n == 500 {
					return
				}
			}
		})
	}
	for range 50 {
		<-ready
	}
	until(t, "50 readers share a subscription", func() bool { return c.Subscriptions() == before+1 })
	publishChunks(t, c, "r1", 1, 500)
	readers.Wait()
	if c.Feeds() != 0 || c.Subscriptions() != before {
		t.Errorf("%d feeds and %d subscriptions are left", c.Feeds(), c.Subscriptions()-before)
	}
}

func TestFollowDropsRepeats(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	fact := delta("r1", 1)
	fact.Type, fact.ID = events.ChunkToolResult, events.NewID(time.Now())
	last := delta("r1", 2)
	for _, ch := range []events.Chunk{delta("r1", 0), fact, fact, delta("r1", 0), fact, last} {
		if err := c.PublishChunk(t.Context(), tester, ch); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := take(t, c, "r1", 0, 4)
	same(t, "chunks", []string{"0", "1", "0", "2"}, got)
}

// TestFollowTellsOfGaps: what is gone from the stream is told as a gap. (FLOW-6)
func TestFollowTellsOfGaps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		ensure(t, c, jetstream.Settings{ChunkRetention: time.Hour})
		publishChunks(t, c, "r1", 0, 10)
		_, cursor := take(t, c, "r1", 0, 5)
		_, last := take(t, c, "r1", 0, 10)
		time.Sleep(90 * time.Minute) // fake
		publishChunks(t, c, "r1", 10, 12)
		start := events.NewChunk("r2", events.ChunkStart, struct{}{})
		if err := c.PublishChunk(t.Context(), tester, start); err != nil {
			t.Fatal(err)
		}
		publishChunks(t, c, "r2", 1, 2)

		got, _ := take(t, c, "r1", cursor, 3)
		same(t, "in the middle of what aged out", []string{"gap", "10", "11"}, got)
		got, _ = take(t, c, "r1", 0, 3)
		same(t, "from the beginning", []string{"gap", "10", "11"}, got)
		got, _ = take(t, c, "r1", last, 2)
		same(t, "after the last that aged out", numbers(10, 12), got)
		got, _ = take(t, c, "r2", 0, 2)
		same(t, "a run that is there whole", numbers(0, 2), got)
	})
}

func TestFollowPassesOverWhatIsNoChunk(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	js := raw(t, srv)
	publishChunks(t, c, "r1", 0, 2)
	for _, noise := range []*nats.Msg{
		{Data: []byte("noise")},
		{Header: nats.Header{"Status": {"404"}}},
		{Header: nats.Header{"Nats-Sequence": {"1"}, "Nats-Last-Sequence": {"900"}, "Status": {"404"}}},
	} {
		noise.Subject = ns.Chunk("r1")
		if _, err := js.PublishMsg(t.Context(), noise); err != nil {
			t.Fatal(err)
		}
	}
	publishChunks(t, c, "r1", 2, 4)
	got, _ := take(t, c, "r1", 0, 4)
	same(t, "chunks", numbers(0, 4), got)

	// The same live, and a forged one that was never stored.
	n := 0
	for ch, err := range c.Follow(t.Context(), "r1", 0, nil) {
		if err != nil || ch.Index != n {
			t.Fatalf("chunk %d is %d (%v)", n, ch.Index, err)
		}
		switch n {
		case 3:
			forged := &nats.Msg{Subject: ns.Live("r1"), Data: []byte("{}")}
			if err := js.Conn().PublishMsg(forged); err != nil {
				t.Fatal(err)
			}
			if _, err := js.Publish(t.Context(), ns.Chunk("r1"), []byte("noise")); err != nil {
				t.Fatal(err)
			}
			publishChunks(t, c, "r1", 4, 6)
		case 5:
			return
		}
		n++
	}
}

func TestFollowOutlivesTheServer(t *testing.T) {
	t.Parallel()
	p, c := openPhoenix(t)
	const total = 200
	done := make(chan []string, 3)
	for range 3 {
		go func() {
			got, _ := take(t, c, "r1", 0, total)
			done <- got
		}()
	}
	for i := range total / 20 {
		if i == 3 || i == 7 {
			p.restart(t)
			until(t, "connected again", func() bool { return c.Health() == nil })
		}
		publishChunks(t, c, "r1", i*20, i*20+20)
	}
	for range 3 {
		same(t, "chunks", numbers(0, total), <-done)
	}
}

// Without a server, what does not fit is refused after one short wait.
func TestPublishChunkDoesNotHoldARunUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, c := openPhoenix(t)
		publishChunks(t, c, "r1", 0, 1)
		p.now.Load().Shutdown()
		synctest.Wait()
		began := time.Now()
		refused := publishRefused(t, c, 1000)
		if took := time.Since(began); took > time.Second || refused < 700 {
			t.Errorf("1,000 chunks without a server took %v, %d were refused", took, refused)
		}
	})
}

// Chunks go on when the server is back. A reconnect that succeeds belongs in real time: see package jetstreamtest.
func TestPublishChunkGoesOn(t *testing.T) {
	t.Parallel()
	p, c := openPhoenix(t)
	publishChunks(t, c, "r1", 0, 1)
	p.now.Load().Shutdown()
	refused := publishRefused(t, c, 1000)
	p.restart(t)
	until(t, "connected again", func() bool { return c.Health() == nil })
	_ = c.FlushChunks(t.Context(), "r1")
	publishChunks(t, c, "r1", 5000, 5010)
	if lost := c.LostChunks(); lost < uint64(refused) || lost > 1000 {
		t.Errorf("%d chunks counted as lost, %d were refused", lost, refused)
	}
}

// publishRefused publishes n chunks to a server that is away and counts those that were refused.
func publishRefused(t *testing.T, c *jetstream.Conn, n int) int {
	t.Helper()
	refused := 0
	for i := range n {
		switch err := c.PublishChunk(t.Context(), tester, delta("r1", i+1)); {
		case errors.Is(err, jetstream.ErrUnavailable):
			refused++
		case err != nil:
			t.Fatal(err)
		}
	}
	return refused
}

func TestFlushChunksTellsWhatWasLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		if err := raw(t, srv).DeleteStream(t.Context(), ns.Store(events.StreamChunks)); err != nil {
			t.Fatal(err)
		}
		if err := c.FlushChunks(t.Context(), "r1"); err != nil {
			t.Errorf("nothing to flush: %v", err)
		}
		for i := range 3 {
			if err := c.PublishChunk(t.Context(), tester, delta("r1", i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.FlushChunks(t.Context(), "r1"); !errors.Is(err, jetstream.ErrUnavailable) {
			t.Errorf("flush without a stream: %v", err)
		}
		if lost := c.LostChunks(); lost != 3 {
			t.Errorf("%d lost, want 3", lost)
		}
	})
}

func TestPublishChunkKeepsOrder(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	var runs sync.WaitGroup
	for i := range 20 {
		runs.Go(func() { publishChunks(t, c, fmt.Sprintf("r%d", i), 0, 600) })
	}
	runs.Wait()
	for i := range 20 {
		got, _ := take(t, c, fmt.Sprintf("r%d", i), 0, 600)
		if !slices.Equal(got, numbers(0, 600)) {
			t.Errorf("run %d is out of order", i)
		}
	}
}

// TestPublishChunkAllocations counts without a server, whose allocations would be counted too.
func TestPublishChunkAllocations(t *testing.T) {
	srv, c := open(t)
	publishChunks(t, c, "r1", 0, 1)
	srv.Shutdown()
	ch := delta("r1", 1)
	n := testing.AllocsPerRun(200, func() {
		if err := c.PublishChunk(t.Context(), tester, ch); err != nil {
			t.Fatal(err)
		}
	})
	if n > 18 {
		t.Errorf("%v allocations for a chunk, want at most 18", n)
	}
	t.Logf("%v allocations", n)
}

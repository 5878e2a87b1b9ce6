package jetstream_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// TestStoresOnThreeReplicas: the loop, the feeds and the buckets over an election. Requests are handled, a reader has
// every chunk that was stored, and each revision of a snapshot has one writer.
func TestStoresOnThreeReplicas(t *testing.T) {
	t.Parallel()
	servers, conns := cluster(t, jetstream.Options{Name: "approval"})
	nc, err := nats.Connect(servers[0].ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)

	var handled record
	for _, c := range conns[:2] {
		loop(t, c, jetstream.Handler{Concurrency: 2, Batch: 4, Handle: func(_ context.Context, d jetstream.Delivery) error {
			handled.add("%s", d.Event.Subject)
			return nil
		}})
	}
	read := make(chan []events.Chunk, 1)
	go func() { read <- readUntilEnd(t, conns[1], "r1") }()

	const n = 60
	for i := range n {
		if i == n/3 {
			restartLeader(t, servers, leaderOf(t, nc))
		}
		ask(t, conns[2], fmt.Sprintf("r%d", i))
		_ = conns[2].PublishChunk(t.Context(), tester, delta("r1", i)) // without a leader it may be lost
		raceForSnapshot(t, conns, fmt.Sprintf("r%d", i))
	}
	until(t, "all handled", func() bool {
		got := handled.all()
		slices.Sort(got)
		return len(slices.Compact(got)) == n
	})
	endChunks(t, conns[2], "r1")
	seen := <-read
	if !slices.IsSortedFunc(seen, func(a, b events.Chunk) int { return int(a.Cursor) - int(b.Cursor) }) {
		t.Error("chunks came out of order")
	}
	again := readUntilEnd(t, conns[0], "r1")
	if len(seen) != len(again) || uint64(len(seen))+conns[2].LostChunks() < n {
		t.Errorf("the reader had %d chunks, %d are stored, %d were lost of %d", len(seen), len(again), conns[2].LostChunks(), n)
	}
}

func restartLeader(t *testing.T, servers []*embedded.Server, leader string) {
	t.Helper()
	for _, srv := range servers {
		if srv.Name() == leader {
			jetstreamtest.Restart(t, srv)
		}
	}
}

// endChunks publishes the last chunk of a run until it is stored.
func endChunks(t *testing.T, c *jetstream.Conn, run string) {
	t.Helper()
	end := events.NewChunk(run, events.ChunkFinish, struct{}{})
	end.ID = events.NewID(time.Now())
	until(t, "the last chunk is stored", func() bool {
		return c.PublishChunk(t.Context(), tester, end) == nil && c.FlushChunks(t.Context(), run) == nil
	})
}

func readUntilEnd(t *testing.T, c *jetstream.Conn, run string) []events.Chunk {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	var all []events.Chunk
	for ch, err := range c.Follow(ctx, run, 0, nil) {
		if err != nil {
			t.Errorf("follow: %v", err)
			return all
		}
		if ch.Type == events.ChunkFinish {
			return all
		}
		all = append(all, ch)
	}
	t.Error("the end of the run did not come")
	return all
}

func raceForSnapshot(t *testing.T, conns []*jetstream.Conn, run string) {
	t.Helper()
	var winners atomic.Int32
	var writers sync.WaitGroup
	for _, c := range conns {
		writers.Go(func() {
			if _, err := c.PutSnapshot(t.Context(), suspended(run, "t1"), 0); err == nil {
				winners.Add(1)
			}
		})
	}
	writers.Wait()
	if winners.Load() != 1 {
		t.Errorf("the snapshot of run %s has %d writers", run, winners.Load())
	}
}

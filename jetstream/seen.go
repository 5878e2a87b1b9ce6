package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
)

// A consumer delivers what its own server has stored, and on several replicas that may be before the stream's leader has. So
// a read from the leader may say that a chain is empty whose facts this process has in its hands, and who took that for "aged
// out" would acknowledge a delivery and leave a run standing. Nothing is taken for absent here before the leader shows
// the log as far as this connection has seen it.

// watermark is the last message of the log that the deliveries of a connection have shown.
type watermark struct {
	mu     sync.Mutex
	seq    uint64
	stored time.Time
}

func (w *watermark) raise(seq uint64, stored time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if seq > w.seq {
		w.seq, w.stored = seq, stored
	}
}

func (w *watermark) get() (uint64, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seq, w.stored
}

// sure is fact, whose ErrNotFound may be relied on.
func (c *Conn) sure(ctx context.Context, which msgGet) (events.Event, error) {
	e, err := c.fact(ctx, which)
	if !errors.Is(err, ErrNotFound) {
		return e, err
	}
	seq, stored := c.parts.seen.get()
	if seq == 0 {
		return e, err
	}
	if err := c.awaitLeader(ctx, seq, stored); err != nil {
		return events.Event{}, err
	}
	return c.fact(ctx, which)
}

// awaitLeader waits until the leader of the log shows it as far as a message that was delivered. A log that is younger than
// the message is another one.
func (c *Conn) awaitLeader(ctx context.Context, seq uint64, stored time.Time) error {
	return c.persist(ctx, func(ctx context.Context) error {
		var info struct {
			Created time.Time `json:"created"`
			State   struct {
				Last uint64 `json:"last_seq"`
			} `json:"state"`
		}
		if err := c.call(ctx, "STREAM.INFO."+c.ns.Store(events.StreamRuns), nil, &info); err != nil {
			return fmt.Errorf("read how far the log is: %w", err)
		}
		if info.State.Last < seq && !info.Created.After(stored) {
			return fmt.Errorf("%w: the leader shows the log up to %d, and %d was delivered already", ErrUnavailable, info.State.Last, seq)
		}
		return nil
	})
}

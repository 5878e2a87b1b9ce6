package client

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/weirkeeper/weir/events"
)

// maxTape bounds what is kept of a run that nobody follows fast enough.
const maxTape = 8192

// tape keeps what is heard of a run's chunks for a user who may not read them from their stream. It hears until the run
// ends.
type tape struct {
	mu      sync.Mutex
	chunks  []events.Chunk
	seen    map[string]bool
	lost    uint64        // cursor of the last chunk that was dropped for want of room
	changed chan struct{} // closed at the next change
	over    bool          // the run has ended
	stop    func()
}

// record begins to hear the run, once.
func (r *Run) record(ctx context.Context) error {
	if r.tape.Load() != nil {
		return nil
	}
	t := &tape{seen: map[string]bool{}, changed: make(chan struct{})}
	if !r.tape.CompareAndSwap(nil, t) {
		return nil
	}
	// What is heard outlives the call that began it.
	stop, err := r.client.conn.Hear(context.WithoutCancel(ctx), r.client.ns.Live(r.ID), t.hear)
	if err != nil {
		r.tape.Store(nil)
		return busError(err)
	}
	r.client.mu.Lock()
	r.client.stops = append(r.client.stops, stop)
	r.client.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stop = stop; t.over {
		stop()
	}
	return nil
}

// hear takes a chunk. One that was published again is dropped.
func (t *tape) hear(e events.Event) {
	var ch events.Chunk
	if e.Seq == 0 || json.Unmarshal(e.Data, &ch) != nil {
		return // not republished by the server
	}
	ch.ID, ch.Cursor, ch.Time = e.ID, e.Seq, e.Stored
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen[ch.ID] {
		return
	}
	t.seen[ch.ID] = true
	t.chunks = append(t.chunks, ch)
	if len(t.chunks) > maxTape {
		t.lost = t.chunks[0].Cursor
		delete(t.seen, t.chunks[0].ID)
		t.chunks = t.chunks[1:]
	}
	if t.over = isEnd(ch); t.over && t.stop != nil {
		t.stop()
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// play gives what is on the tape after a cursor, and what comes, until ctx ends.
func (t *tape) play(ctx context.Context, after uint64, yield func(events.Chunk, error) bool) {
	for {
		next, lost, changed := t.after(after)
		if lost > after {
			after = lost
			if !yield(events.Chunk{Cursor: lost}, ErrGap) {
				return
			}
		}
		for _, ch := range next {
			after = ch.Cursor
			if !yield(ch, nil) {
				return
			}
		}
		if len(next) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (t *tape) after(cursor uint64) (next []events.Chunk, lost uint64, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.chunks); i > 0; i-- {
		if t.chunks[i-1].Cursor <= cursor {
			return append(next, t.chunks[i:]...), t.lost, t.changed
		}
	}
	return append(next, t.chunks...), t.lost, t.changed
}

package jetstream

import (
	"context"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

const (
	// feedSize, feedBytes and feedAge bound what a run's feed remembers for readers that are a little behind. Those
	// further behind read from the stream.
	feedSize  = 4096
	feedBytes = 1 << 20
	feedAge   = 2 * time.Second
	// feedPoll is how often a feed that hears nothing asks whether it should have: the last live message may have been
	// lost, and has no successor that shows it.
	feedPoll = time.Second
	// feedBatch is how many chunks a reader takes from the feed at once.
	feedBatch = 64
)

// feeds are the runs that this process follows, one subscription each. The zero value works.
type feeds struct {
	mu   sync.Mutex
	by   map[string]*feed
	lose func(seq uint64) bool // for tests: the live message does not arrive
}

func (fs *feeds) join(c *Conn, run string) (*feed, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.by[run]; f != nil {
		f.readers++
		return f, nil
	}
	f := &feed{conn: c, run: run, stored: c.ns.Chunk(run), readers: 1, changed: make(chan struct{})}
	lose := fs.lose
	sub, err := c.nc.Subscribe(c.ns.Live(run), func(msg *nats.Msg) { f.hear(msg, lose) })
	if err != nil {
		return nil, mapError(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.polling.Go(func() { f.poll(ctx) })
	f.stop = func() {
		_ = sub.Unsubscribe() // of a closed connection: nothing is left
		cancel()
		f.polling.Wait()
	}
	if fs.by == nil {
		fs.by = map[string]*feed{}
	}
	fs.by[run] = f
	return f, nil
}

func (fs *feeds) leave(f *feed) {
	fs.mu.Lock()
	last := f.readers == 1
	if f.readers--; last {
		delete(fs.by, f.run)
	}
	fs.mu.Unlock()
	if last {
		f.stop()
	}
}

// feed is what is heard of a run's chunks: the latest of them, which all readers share, and how far the stream is known
// to go. It may have holes; the previous sequence that comes with each chunk shows them.
type feed struct {
	conn    *Conn
	run     string
	stored  string // subject of the stored chunks
	readers int    // guarded by feeds
	stop    func()
	polling sync.WaitGroup

	mu      sync.Mutex
	latest  recent
	known   uint64        // the highest sequence that was heard of
	heard   bool          // something since the last poll
	changed chan struct{} // closed at the next change
}

// hear takes a live message.
func (f *feed) hear(msg *nats.Msg, lose func(uint64) bool) {
	m, err := parseDirect(msg)
	if err != nil || m.subject != f.stored || lose != nil && lose(m.seq) {
		return // not republished by the server
	}
	prev, err := strconv.ParseUint(lastValue(msg.Header, "Nats-Last-Sequence"), 10, 64)
	if err != nil {
		return
	}
	ch, err := decodeChunk(m)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard = true
	f.advance(m.seq)
	if err != nil {
		return // readers find it in the stream and pass it over
	}
	ch.Prev = prev
	f.latest.push(ch)
	f.latest.forget(m.at.Add(-feedAge))
}

// advance makes known that the stream goes as far as seq. The lock is held.
func (f *feed) advance(seq uint64) {
	f.known = max(f.known, seq)
	close(f.changed)
	f.changed = make(chan struct{})
}

// poll asks for the last sequence while nothing is heard.
func (f *feed) poll(ctx context.Context) {
	tick := time.NewTicker(feedPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.mu.Lock()
		heard := f.heard
		f.heard = false
		f.mu.Unlock()
		if heard {
			continue
		}
		last, err := f.conn.directGet(ctx, f.conn.ns.Store(events.StreamChunks), msgGet{LastBy: f.stored})
		f.mu.Lock()
		if err == nil && last.seq > f.known {
			f.advance(last.seq)
		}
		f.mu.Unlock()
	}
}

// after appends to batch what follows on cursor without a hole.
func (f *feed) after(cursor uint64, batch []events.Chunk) []events.Chunk {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := f.latest.beyond(cursor); i < f.latest.n && len(batch) < feedBatch; i++ {
		ch := f.latest.at(i)
		if ch.Prev > cursor {
			break
		}
		batch = append(batch, *ch)
		cursor = ch.Cursor
	}
	return batch
}

// continues reports whether the feed has what follows on cursor.
func (f *feed) continues(cursor uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.latest.follows(cursor)
}

// isPast reports whether there is something beyond cursor that the feed cannot give.
func (f *feed) isPast(cursor uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known > cursor && !f.latest.follows(cursor)
}

// change is closed when something is heard next.
func (f *feed) change() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// recent is a ring of the latest chunks in the order of their cursors. It grows with what comes in two seconds.
type recent struct {
	ring  []events.Chunk // a power of two long
	first int
	n     int
	bytes int
}

func (r *recent) at(i int) *events.Chunk { return &r.ring[(r.first+i)&(len(r.ring)-1)] }

func (r *recent) push(ch events.Chunk) {
	if r.n == len(r.ring) {
		grown := make([]events.Chunk, max(2*r.n, 16))
		for i := range r.n {
			grown[i] = *r.at(i)
		}
		r.ring, r.first = grown, 0
	}
	r.n++
	*r.at(r.n - 1) = ch
	r.bytes += len(ch.Payload)
}

// forget drops what readers have had time for, and what is too much.
func (r *recent) forget(before time.Time) {
	for r.n > 1 {
		oldest := r.at(0)
		if r.n <= feedSize && r.bytes <= feedBytes && !oldest.Time.Before(before) {
			return
		}
		r.bytes -= len(oldest.Payload)
		*oldest = events.Chunk{}
		r.first, r.n = (r.first+1)&(len(r.ring)-1), r.n-1
	}
}

// beyond is the place of the first chunk after cursor.
func (r *recent) beyond(cursor uint64) int {
	return sort.Search(r.n, func(i int) bool { return r.at(i).Cursor > cursor })
}

// follows reports whether there is a chunk after cursor and nothing between the two.
func (r *recent) follows(cursor uint64) bool {
	i := r.beyond(cursor)
	return i < r.n && r.at(i).Prev <= cursor
}

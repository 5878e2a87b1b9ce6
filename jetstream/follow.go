package jetstream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

const (
	// feedSize and feedBytes bound what a run's feed remembers for readers that are a little behind. Those further
	// behind read from the stream.
	feedSize  = 512
	feedBytes = 256 << 10
	// feedPoll is how often a feed that hears nothing asks whether it should have: the last live message may have been
	// lost, and has no successor that shows it.
	feedPoll = time.Second
	// feedBatch is how many chunks a reader takes from the feed at once.
	feedBatch = 64
	// maxSeen bounds the ids that a reader remembers.
	maxSeen = 8192
)

// ErrGap is what a reader gets in the place of chunks that are no longer stored. It comes once, and reading goes on.
var ErrGap = errors.New("older chunks are no longer stored")

// FollowOptions change how a run is followed; nil is the default.
type FollowOptions struct {
	// Poll is how often an idle reader looks for what it may have missed. Zero: 1 s.
	Poll time.Duration
}

// Follow reads the chunks of a run after a cursor, each once and in order: the stored ones, then what comes, until ctx
// ends or the caller stops. It does not end with the run. The cursor of the last chunk is where a later Follow goes on, in
// this process or another. A chunk that was published again is left out.
//
// Reading follows the caller's pace: what a slow one misses is read again from the stream, for as long as it is stored.
// [ErrGap] tells of chunks that are not; any other error ends the reading. Readers of one run in one process share a
// subscription.
func (c *Conn) Follow(ctx context.Context, run string, after uint64, o *FollowOptions) iter.Seq2[events.Chunk, error] {
	poll := feedPoll
	if o != nil && o.Poll > 0 {
		poll = o.Poll
	}
	return func(yield func(events.Chunk, error) bool) {
		f, err := c.parts.feeds.join(c, run)
		if err != nil {
			yield(events.Chunk{}, fmt.Errorf("follow run %s: %w", run, err))
			return
		}
		defer c.parts.feeds.leave(f)
		r := &reader{conn: c, feed: f, cursor: after, poll: poll, yield: yield}
		if err := r.run(ctx); err != nil && ctx.Err() == nil {
			yield(events.Chunk{}, fmt.Errorf("follow run %s: %w", run, err))
		}
	}
}

// errStop says that the caller wants no more.
var errStop = errors.New("reader stopped")

// reader is one caller's way through the chunks of a run.
type reader struct {
	conn   *Conn
	feed   *feed
	cursor uint64
	poll   time.Duration
	yield  func(events.Chunk, error) bool
	batch  []events.Chunk
	seen   map[string]bool
	over   bool // the caller stopped
}

func (r *reader) run(ctx context.Context) error {
	for behind := true; ; { // what is stored comes first
		changed := r.feed.change() // taken before looking, so that nothing is missed in between
		var err error
		if behind {
			err = r.fill(ctx)
		}
		if err == nil {
			err = r.take(ctx)
		}
		if r.over || ctx.Err() != nil {
			return nil
		}
		if err != nil && !isOutage(err) {
			return err
		}
		behind = err != nil
		if err := r.wait(ctx, changed); err != nil {
			return err
		}
		behind = behind || r.feed.isPast(r.cursor)
	}
}

// wait returns when the feed has changed, or after the poll interval.
func (r *reader) wait(ctx context.Context, changed <-chan struct{}) error {
	timer := time.NewTimer(r.poll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
	case <-timer.C:
	case <-r.conn.closed:
		return fmt.Errorf("%w: connection closed", ErrUnavailable)
	}
	return nil
}

// take emits what the feed has, as long as it follows on what was emitted before.
func (r *reader) take(ctx context.Context) error {
	for ctx.Err() == nil {
		if r.batch = r.feed.after(r.cursor, r.batch[:0]); len(r.batch) == 0 {
			return nil
		}
		for _, ch := range r.batch {
			if err := r.emit(ch); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// fill emits what is stored after the cursor, until the feed can take over or nothing more is there.
func (r *reader) fill(ctx context.Context) error {
	var oldest uint64
	for {
		m, err := r.next(ctx)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err == nil && oldest == 0 {
			oldest, err = r.conn.oldestChunk(ctx)
		}
		if err != nil {
			return err
		}
		ch, err := decodeChunk(m)
		if r.missed(oldest, ch) && !r.yield(events.Chunk{RunID: r.feed.run, Cursor: oldest - 1}, ErrGap) {
			r.over = true
			return errStop
		}
		if err != nil { // nobody can read it: pass it over
			r.cursor = m.seq
			continue
		}
		if err := r.emit(ch); err != nil {
			return err
		}
		if r.feed.continues(r.cursor) {
			return nil
		}
	}
}

func (r *reader) next(ctx context.Context) (directMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	stream := r.conn.ns.Store(events.StreamChunks)
	return r.conn.directGet(ctx, stream, msgGet{Seq: r.cursor + 1, NextBy: r.feed.stored})
}

// missed reports whether chunks between the cursor and the next one may have aged out: the stream begins after the
// cursor. A reader that begins at the beginning has missed nothing when it sees the run's start.
func (r *reader) missed(oldest uint64, next events.Chunk) bool {
	return oldest > r.cursor+1 && (r.cursor > 0 || next.Type != events.ChunkStart)
}

// emit hands a chunk to the caller, unless it came before.
func (r *reader) emit(ch events.Chunk) error {
	r.cursor = ch.Cursor
	if r.repeated(ch) {
		return nil
	}
	if !r.yield(ch, nil) {
		r.over = true
		return errStop
	}
	return nil
}

// repeated remembers the ids of chunks that show facts: those may be published again, deltas never are.
func (r *reader) repeated(ch events.Chunk) bool {
	switch ch.Type {
	case events.ChunkTextDelta, events.ChunkReasoningDelta, events.ChunkToolInputDelta, events.ChunkToolOutput:
		return false
	}
	if ch.ID == "" {
		return false
	}
	if r.seen[ch.ID] {
		return true
	}
	if r.seen == nil || len(r.seen) >= maxSeen {
		r.seen = map[string]bool{}
	}
	r.seen[ch.ID] = true
	return false
}

// oldestChunk is the first sequence that the chunks stream still holds.
func (c *Conn) oldestChunk(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	var info struct {
		State struct {
			First uint64 `json:"first_seq"`
		} `json:"state"`
	}
	err := c.call(ctx, "STREAM.INFO."+c.ns.Store(events.StreamChunks), nil, &info)
	return max(info.State.First, 1), err
}

func decodeChunk(m directMsg) (events.Chunk, error) {
	ch, err := events.DecodeChunk(m.header, m.data)
	ch.Cursor, ch.Time = m.seq, m.at
	return ch, err
}

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
	latest  []events.Chunk
	bytes   int
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
	prev, err := strconv.ParseUint(msg.Header.Get("Nats-Last-Sequence"), 10, 64)
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
	f.latest, f.bytes = append(f.latest, ch), f.bytes+len(ch.Payload)
	for len(f.latest) > feedSize || f.bytes > feedBytes && len(f.latest) > 1 {
		f.bytes -= len(f.latest[0].Payload)
		f.latest[0] = events.Chunk{}
		f.latest = f.latest[1:]
	}
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
		try, cancel := context.WithTimeout(ctx, readTime)
		last, err := f.conn.directGet(try, f.conn.ns.Store(events.StreamChunks), msgGet{LastBy: f.stored})
		cancel()
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
	for i := f.follower(cursor); i < len(f.latest) && len(batch) < feedBatch && f.latest[i].Prev <= cursor; i++ {
		batch = append(batch, f.latest[i])
		cursor = f.latest[i].Cursor
	}
	return batch
}

// follower is the place of the first chunk beyond cursor. The lock is held.
func (f *feed) follower(cursor uint64) int {
	low, high := 0, len(f.latest)
	for low < high {
		if mid := (low + high) / 2; f.latest[mid].Cursor <= cursor {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// continues reports whether the feed has what follows on cursor.
func (f *feed) continues(cursor uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.follows(cursor)
}

// follows reports the same. The lock is held.
func (f *feed) follows(cursor uint64) bool {
	i := f.follower(cursor)
	return i < len(f.latest) && f.latest[i].Prev <= cursor
}

// isPast reports whether there is something beyond cursor that the feed cannot give.
func (f *feed) isPast(cursor uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known > cursor && !f.follows(cursor)
}

// change is closed when something is heard next.
func (f *feed) change() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

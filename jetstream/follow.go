package jetstream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/weirkeeper/weir/events"
)

const (
	// maxSeen bounds the ids that a reader remembers.
	maxSeen = 8192
	// maxFill is how many stored chunks a reader takes at once.
	maxFill = 256
)

// ErrGap is what a reader gets in the place of chunks that are no longer stored. It comes once, and reading goes on.
var ErrGap = errors.New("older chunks are no longer stored")

// FollowOptions change how a run is followed; nil is the default.
type FollowOptions struct {
	// Poll is how often an idle reader looks for what it may have missed. Zero: 1 s.
	Poll time.Duration
	// Passed is called with the cursor of each chunk when the reader has gone past it: it was given, or left out because it
	// came before or cannot be read.
	Passed func(cursor uint64)
}

// Follow reads the chunks of a run after a cursor, each once and in order: the stored ones, then what comes, until ctx
// ends or the caller stops. It does not end with the run. The cursor of the last chunk is where a later Follow goes on, in
// this process or another. A chunk that was published again is left out.
//
// Reading follows the caller's pace: what a slow one misses is read again from the stream, for as long as it is stored.
// [ErrGap] tells of chunks that are not; any other error ends the reading. Readers of one run in one process share a
// subscription.
func (c *Conn) Follow(ctx context.Context, run string, after uint64, o *FollowOptions) iter.Seq2[events.Chunk, error] {
	poll, passed := feedPoll, func(uint64) {}
	if o != nil && o.Poll > 0 {
		poll = o.Poll
	}
	if o != nil && o.Passed != nil {
		passed = o.Passed
	}
	return func(yield func(events.Chunk, error) bool) {
		f, err := c.parts.feeds.join(c, run) //nolint:contextcheck // a feed outlives the reader that begins it
		if err != nil {
			yield(events.Chunk{}, fmt.Errorf("follow run %s: %w", run, err))
			return
		}
		defer c.parts.feeds.leave(f)
		r := &reader{conn: c, feed: f, cursor: after, poll: poll, yield: yield, passed: passed}
		if err := r.run(ctx); err != nil && ctx.Err() == nil {
			yield(events.Chunk{}, fmt.Errorf("follow run %s: %w", run, err))
		}
	}
}

// StoredChunks reads the chunks of a run after a cursor that are stored now, each once and in order, and then ends. It is
// [Conn.Follow] for who wants to know what there is, and not what comes.
func (c *Conn) StoredChunks(ctx context.Context, run string, after uint64) iter.Seq2[events.Chunk, error] {
	return func(yield func(events.Chunk, error) bool) {
		r := &reader{conn: c, feed: &feed{run: run, stored: c.ns.Chunk(run)}, cursor: after, yield: yield, passed: func(uint64) {}}
		if err := r.fill(ctx); err != nil && !r.over {
			yield(events.Chunk{}, fmt.Errorf("chunks of run %s: %w", run, err))
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
	passed func(cursor uint64)
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
		switch {
		case r.over:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !isOutage(err):
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

// fill emits what is stored after the cursor, until the feed can take over or nothing more is there. It begins with one
// chunk, because most holes are that small, and reads more at once the further behind it is.
func (r *reader) fill(ctx context.Context) error {
	var oldest uint64
	for atOnce := 1; ; atOnce = min(4*atOnce, maxFill) {
		batch, err := r.next(ctx, atOnce)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err == nil && oldest == 0 {
			oldest, err = r.conn.oldestChunk(ctx)
		}
		if err != nil {
			return err
		}
		for _, m := range batch {
			if err := r.show(m, oldest); err != nil {
				return err
			}
		}
		if r.feed.continues(r.cursor) {
			return nil
		}
	}
}

// next reads what is stored after the cursor.
func (r *reader) next(ctx context.Context, atOnce int) ([]directMsg, error) {
	stream, which := r.conn.ns.Store(events.StreamChunks), msgGet{Seq: r.cursor + 1, NextBy: r.feed.stored}
	if atOnce > 1 {
		return r.conn.directBatch(ctx, stream, which, atOnce)
	}
	m, err := r.conn.directGet(ctx, stream, which)
	return []directMsg{m}, err
}

// show emits a stored chunk. One that nobody can read is passed over.
func (r *reader) show(m directMsg, oldest uint64) error {
	if m.seq <= r.cursor {
		return fmt.Errorf("%w: the stream answered with an older chunk", ErrUnavailable)
	}
	ch, err := decodeChunk(m)
	if r.missed(oldest, ch) && !r.yield(events.Chunk{RunID: r.feed.run, Cursor: oldest - 1}, ErrGap) {
		r.over = true
		return errStop
	}
	if err != nil {
		r.cursor = m.seq
		r.passed(m.seq)
		return nil //nolint:nilerr // see above
	}
	return r.emit(ch)
}

// missed reports whether chunks between the cursor and the next one may have aged out: the stream begins after the
// cursor. A reader that begins at the beginning has missed nothing when it sees the run's start.
func (r *reader) missed(oldest uint64, next events.Chunk) bool {
	return oldest > r.cursor+1 && (r.cursor > 0 || next.Type != events.ChunkStart)
}

// emit hands a chunk to the caller, unless it came before.
func (r *reader) emit(ch events.Chunk) error {
	r.cursor = ch.Cursor
	if !r.repeated(ch) && !r.yield(ch, nil) {
		r.over = true
		return errStop
	}
	r.passed(ch.Cursor)
	return nil
}

// repeated remembers the ids of chunks that show facts: those may be published again, deltas never are.
func (r *reader) repeated(ch events.Chunk) bool {
	switch ch.Type {
	case events.ChunkTextDelta, events.ChunkReasoningDelta, events.ChunkToolInputDelta, events.ChunkToolOutput:
		return false
	default: // shows a fact
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

// LastChunk is the cursor of the last stored chunk of a run, 0 when there is none. A replica may be behind, so what comes
// after it may hold chunks that were stored before the call; none that comes after the call is missed.
func (c *Conn) LastChunk(ctx context.Context, run string) (uint64, error) {
	m, err := c.directGet(ctx, c.ns.Store(events.StreamChunks), msgGet{LastBy: c.ns.Chunk(run)})
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("last chunk of run %s: %w", run, err)
	}
	return m.seq, nil
}

// oldestChunk is the first sequence that the chunks stream still holds.
func (c *Conn) oldestChunk(ctx context.Context) (uint64, error) {
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

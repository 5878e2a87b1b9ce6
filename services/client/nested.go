package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// A call that is delegated is a run of its own, and what it says has a subject of its own. All of these lie in one stream, so
// that whoever follows a run is given what the runs below it say where it was said, each chunk wrapped once for each level. A
// run tells of those below it before they begin, so they are found on the way; a reader who goes on by a cursor finds those
// that began before in what is stored.

const (
	// ahead is how many chunks of one run may be read before it is their turn.
	ahead = 64
	// lookAgain is how long a chunk waits for one that is before it in the stream and does not arrive, until it is looked again.
	lookAgain = time.Second
	// maxShown bounds the ids of chunks that are remembered as shown before the cursor.
	maxShown = 8192
)

// branch is one of the runs that are followed together.
type branch struct {
	run   string
	tool  string  // what delegates to it, agent-<key>; empty for the run at the top
	above *branch // nil for the run at the top

	items  chan item
	passed atomic.Uint64 // cursor up to which everything was put into items, or left out
	stop   context.CancelFunc

	head   *item  // the next one, when it has arrived
	clear  uint64 // cursor up to which there is nothing more than head
	counts attempts
}

func newBranch(above *branch, run, tool string) *branch {
	return &branch{run: run, tool: tool, above: above, items: make(chan item, ahead), counts: attempts{}}
}

// merge reads a run and those below it as one.
type merge struct {
	run     *Run
	opts    FollowOptions
	yield   func(events.Chunk, error) bool
	reading sync.WaitGroup
	wake    chan struct{} // something has arrived, or was left out

	open    []*branch
	known   map[string]bool // runs that are followed, or were
	shown   map[string]bool // ids of what was said up to the cursor it began at
	reached atomic.Uint64   // the highest cursor that has arrived
	cursor  uint64          // of what was given last
	gap     uint64          // up to which chunks are known to be no longer stored
}

// merged gives the chunks of the run and of those below it.
func (r *Run) merged(ctx context.Context, after uint64, o FollowOptions) iter.Seq2[events.Chunk, error] {
	return func(yield func(events.Chunk, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		m := &merge{
			run: r, opts: o, yield: yield, wake: make(chan struct{}, 1), cursor: after,
			known: map[string]bool{}, shown: map[string]bool{},
		}
		defer m.reading.Wait()
		defer cancel()
		err := m.begin(ctx, newBranch(nil, r.ID, ""), after)
		if err == nil {
			err = m.follow(ctx)
		}
		if err != nil && ctx.Err() == nil {
			yield(events.Chunk{}, err)
		}
	}
}

// begin follows a run after a cursor, and those that began below it before.
func (m *merge) begin(ctx context.Context, b *branch, after uint64) error {
	m.known[b.run] = true
	if after == 0 {
		m.read(ctx, b, 0)
		return nil
	}
	before, err := m.past(ctx, b, after)
	if err != nil || before.ended && b.above != nil {
		return err
	}
	m.read(ctx, b, after)
	for _, child := range before.below {
		if before.results[child.run] { // then it has hardly more to say
			last, err := m.run.client.conn.LastChunk(ctx, child.run)
			if err != nil {
				return err
			}
			if last <= after {
				continue
			}
		}
		if err := m.begin(ctx, child, after); err != nil {
			return err
		}
	}
	return nil
}

// past is what a run has said up to a cursor.
type past struct {
	below   []*branch
	results map[string]bool // calls that have theirs
	ended   bool
}

// past looks what a run has said up to a cursor.
func (m *merge) past(ctx context.Context, b *branch, upTo uint64) (past, error) {
	p := past{results: map[string]bool{}}
	for ch, err := range m.run.client.conn.StoredChunks(ctx, b.run, 0) {
		switch {
		case errors.Is(err, ErrGap):
			continue
		case err != nil:
			return p, err
		}
		if ch.Cursor > upTo {
			break
		}
		p.ended = p.ended || isEnd(ch)
		switch ch.Type {
		case events.ChunkChildStart:
			if child := childOf(b, ch); child != nil && !m.known[child.run] {
				m.known[child.run] = true
				p.below = append(p.below, child)
			}
		case events.ChunkToolResult, events.ChunkToolError, events.ChunkToolOutputDenied:
			withPayload(ch, func(r events.ToolResultPayload) { p.results[r.ToolCallID] = true })
		default:
		}
		b.counts.withdrawn(ch)
		m.remember(ch)
	}
	return p, nil
}

// remember keeps the id of a chunk that shows a fact: it may be published again.
func (m *merge) remember(ch events.Chunk) {
	switch ch.Type {
	case events.ChunkTextDelta, events.ChunkReasoningDelta, events.ChunkToolInputDelta, events.ChunkToolOutput:
		return
	default:
	}
	if ch.ID != "" && len(m.shown) < maxShown {
		m.shown[ch.ID] = true
	}
}

// childOf is the run below that a chunk tells of; nil when it is none. Who may write chunks of a run cannot lead its readers to
// any other.
func childOf(b *branch, ch events.Chunk) *branch {
	var p events.ChildStartPayload
	if json.Unmarshal(ch.Payload, &p) != nil {
		return nil
	}
	call, err := events.ParseCallID(p.RunID)
	if err != nil || call.Run != b.run || p.ToolCallID != p.RunID {
		return nil
	}
	return newBranch(b, p.RunID, cmp.Or(p.ToolName, events.AgentPrefix+p.AgentID))
}

// read begins to read a run.
func (m *merge) read(ctx context.Context, b *branch, after uint64) {
	ctx, b.stop = context.WithCancel(ctx)
	b.passed.Store(after)
	b.clear = after
	m.open = append(m.open, b)
	passed := func(cursor uint64) {
		b.passed.Store(cursor)
		m.rouse()
	}
	m.reading.Go(func() {
		for ch, err := range m.run.client.conn.Follow(ctx, b.run, after, &jetstream.FollowOptions{Passed: passed}) {
			select {
			case b.items <- item{ch, err}:
			case <-ctx.Done():
				return
			}
			for was := m.reached.Load(); ch.Cursor > was && !m.reached.CompareAndSwap(was, ch.Cursor); was = m.reached.Load() {
			}
			m.rouse()
		}
	})
}

func (m *merge) rouse() {
	select {
	case m.wake <- struct{}{}:
	default: // it looks anyway
	}
}

// follow gives what arrives until the reader has enough.
func (m *merge) follow(ctx context.Context) error {
	for {
		b := m.first(ctx)
		sure := b == nil // nothing to be sure of
		if b != nil {
			var err error
			if sure, err = m.isNext(ctx, b); err != nil {
				return err
			}
			if sure {
				if more, err := m.give(b); !more || err != nil {
					return err
				}
				continue
			}
		}
		if err := m.wait(ctx, !sure); err != nil {
			return err
		}
	}
}

// wait returns when something has arrived.
func (m *merge) wait(ctx context.Context, again bool) error {
	var late <-chan time.Time
	if again {
		timer := time.NewTimer(lookAgain)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-m.wake:
	case <-late:
	}
	return nil
}

// first takes what has arrived, and is the run whose next chunk comes first; nil when there is none. A run that such a chunk
// tells of is followed at once, so that what it has said by then is not left behind.
func (m *merge) first(ctx context.Context) *branch {
	var first *branch
	for i := 0; i < len(m.open); i++ { // which may grow
		b := m.open[i]
		if b.head == nil {
			select {
			case it := <-b.items:
				b.head, b.clear = &it, max(b.clear, it.chunk.Cursor)
				m.descend(ctx, b, it.chunk)
			default:
				continue
			}
		}
		if b.head.err != nil && !errors.Is(b.head.err, ErrGap) {
			return b // the end of it all
		}
		if first == nil || b.head.chunk.Cursor < first.head.chunk.Cursor {
			first = b
		}
	}
	return first
}

// descend follows the run that a chunk tells of.
func (m *merge) descend(ctx context.Context, b *branch, ch events.Chunk) {
	if ch.Type != events.ChunkChildStart {
		return
	}
	if child := childOf(b, ch); child != nil && !m.known[child.run] {
		m.known[child.run] = true
		m.read(ctx, child, 0)
	}
}

// isNext reports whether nothing that is stored comes between what was given and the next chunk of a run. Of a run that has
// none to show the stream says whether there is one on its way; if not, all that it will say comes after what has arrived from
// the others by then. A replica that is behind may say so too early: then what comes late has the cursor of what it is late for.
func (m *merge) isNext(ctx context.Context, next *branch) (bool, error) {
	if next.head.err != nil && !errors.Is(next.head.err, ErrGap) {
		return true, nil
	}
	for _, b := range m.open {
		if b.head != nil || b.clear >= next.head.chunk.Cursor {
			continue
		}
		arrived, passed := max(m.reached.Load(), next.head.chunk.Cursor), b.passed.Load()
		last, err := m.run.client.conn.LastChunk(ctx, b.run)
		switch {
		case errors.Is(err, jetstream.ErrTimeout), errors.Is(err, jetstream.ErrUnavailable):
			return false, nil // its reader says so when that does not change
		case err != nil:
			return false, err
		case last > passed:
			return false, nil
		case len(b.items) > 0:
			m.rouse() // it has arrived meanwhile
			return false, nil
		}
		b.clear = max(b.clear, arrived)
	}
	return true, nil
}

// give gives the next chunk of a run to the reader.
func (m *merge) give(b *branch) (more bool, err error) {
	it := *b.head
	b.head = nil
	switch {
	case errors.Is(it.err, ErrGap):
		if it.chunk.Cursor <= m.gap {
			return true, nil // of this stream it is known
		}
		m.gap = it.chunk.Cursor
		return m.yield(events.Chunk{RunID: m.run.ID, Cursor: m.gap}, it.err), nil
	case it.err != nil:
		return false, it.err
	}
	ch := it.chunk
	if m.shown[ch.ID] {
		return true, nil
	}
	if b.above != nil {
		if isEnd(ch) {
			defer m.close(b)
		}
		if ch = m.nested(b, ch); ch.Type == "" {
			return true, nil
		}
	}
	ch.Cursor = max(ch.Cursor, m.cursor)
	m.cursor = ch.Cursor
	return m.yield(ch, nil), nil
}

// nested is a chunk of a run below as readers of the run see it; none when it is not shown. A question stands on the subject of
// the run that asks and on that of the run at the top: whoever follows one in between is shown it as its own.
func (m *merge) nested(b *branch, ch events.Chunk) events.Chunk {
	if b.counts.withdrawn(ch) && !m.opts.Withdrawn {
		return events.Chunk{}
	}
	switch ch.Type {
	case events.ChunkSuspended:
		return events.Chunk{}
	case events.ChunkToolCallApproval, events.ChunkToolCallSuspended:
		if !m.run.isBelow() {
			return events.Chunk{}
		}
		ch.RunID = m.run.ID
		return ch
	default:
	}
	for ; b.above != nil; b = b.above {
		ch = events.NestedChunk(b.above.run, b.run, b.tool, ch)
	}
	return ch
}

// close follows a run that has ended no longer, nor those below it.
func (m *merge) close(b *branch) {
	m.open = slices.DeleteFunc(m.open, func(o *branch) bool {
		for up := o; up != nil; up = up.above {
			if up == b {
				o.stop()
				return true
			}
		}
		return false
	})
}

// isBelow reports whether the run is one that a call was delegated to.
func (r *Run) isBelow() bool {
	_, ok := events.ParentCall(r.ID)
	return ok
}

// LastBelow is the cursor of the last stored chunk of the run and of those below it, 0 when there is none.
func (r *Run) LastBelow(ctx context.Context) (uint64, error) {
	m := &merge{run: r, known: map[string]bool{}, shown: map[string]bool{}}
	last, err := m.last(ctx, newBranch(nil, r.ID, ""))
	return last, busError(err)
}

func (m *merge) last(ctx context.Context, b *branch) (uint64, error) {
	last, err := m.run.client.conn.LastChunk(ctx, b.run)
	if err != nil || last == 0 {
		return 0, err
	}
	all, err := m.past(ctx, b, math.MaxUint64)
	if err != nil {
		return 0, err
	}
	for _, child := range all.below {
		of, err := m.last(ctx, child)
		if err != nil {
			return 0, err
		}
		last = max(last, of)
	}
	return last, nil
}

package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// threadBatch is how many entries of a thread are read at once, and windowGrowth by how much more of the stream is looked
// through each time when these were not enough.
const (
	threadBatch  = 256
	windowGrowth = 16
)

// ThreadEntry is an entry of a thread as it is stored. Its messages are whole.
type ThreadEntry struct {
	events.MessageStored
	Seq    uint64
	Stored time.Time
}

// KeepEntry stores an entry of a thread, once: that it is there already, by whomever, is success. Messages that are large go to
// a blob first.
func (c *Conn) KeepEntry(ctx context.Context, o *events.Origin, d events.MessageStored, cause events.Event) error {
	raw, err := events.Marshal(d)
	if err == nil && len(raw) > events.MaxInline {
		d.DataRef, _, err = c.putMessages(ctx, d.Messages)
		d.Messages = []events.Message{}
	}
	if err != nil {
		return fmt.Errorf("keep entry of thread: %w", err)
	}
	err = c.putEntry(ctx, o, d, cause, 0)
	if err != nil && !errors.Is(err, ErrConflict) {
		return fmt.Errorf("keep entry of thread: %w", err)
	}
	erased, err := c.ErasedTo(ctx, d.ResourceID, d.ThreadID) // after it is stored: see erase.go
	if err == nil && erased > d.InboxSeq {
		err = c.eraseEntry(ctx, o, c.ns.ThreadEntry(d), erased, cause)
	}
	return err
}

// putEntry stores an entry where the last one has this sequence; ErrConflict says that it has another.
func (c *Conn) putEntry(ctx context.Context, o *events.Origin, d events.MessageStored, cause events.Event, prev uint64) error {
	subject := c.ns.ThreadEntry(d)
	e, err := o.Request(subject, d.RunID, d, cause)
	if err != nil {
		return err
	}
	msg, err := c.eventMsg(subject, e)
	if err != nil {
		return err
	}
	msg.Header.Set(headerExpected, fmt.Sprint(prev))
	_, err = c.storeMsg(ctx, msg)
	return err
}

// ShrinkRecalled makes what a run recalls fit into its start: when it is large it goes to a blob.
func (c *Conn) ShrinkRecalled(ctx context.Context, r *events.Recalled) (*events.Recalled, error) {
	const inline = events.MaxInline / 4 // the request, and a state that holds both, need room too
	raw, err := events.Marshal(r)
	if err != nil || len(raw) <= inline {
		return r, err
	}
	var small events.Recalled
	small.DataRef, small.Size, err = c.putMessages(ctx, r.Messages)
	return &small, err
}

// ThreadTail reads the newest entries of a thread, oldest first: as many as are enough, or all. It knows all that were stored
// before it was called.
func (c *Conn) ThreadTail(ctx context.Context, resource, thread string, enough func([]ThreadEntry) bool) ([]ThreadEntry, error) {
	filter := c.ns.ThreadOf(resource, thread)
	last, err := c.get(ctx, c.ns.Store(events.StreamThreads), msgGet{LastBy: filter})
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read thread: %w", err)
	}
	var tail []ThreadEntry
	end := last.Seq
	for window := uint64(threadBatch); ; window *= windowGrowth {
		from := uint64(1)
		if last.Seq > window {
			from = last.Seq - window + 1
		}
		older, err := c.threadRange(ctx, filter, from, end)
		if err != nil {
			return nil, fmt.Errorf("read thread: %w", err)
		}
		tail = slices.Concat(older, tail)
		if from == 1 || enough(tail) {
			return tail, nil
		}
		end = from - 1
	}
}

// ThreadEntries reads a whole thread, oldest entry first. What was stored a moment ago may not show yet.
func (c *Conn) ThreadEntries(ctx context.Context, resource, thread string) ([]ThreadEntry, error) {
	return c.entriesOf(ctx, c.ns.ThreadOf(resource, thread))
}

func (c *Conn) entriesOf(ctx context.Context, filter string) ([]ThreadEntry, error) {
	last, err := c.directGet(ctx, c.ns.Store(events.StreamThreads), msgGet{LastBy: filter})
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err == nil {
		var all []ThreadEntry
		if all, err = c.threadRange(ctx, filter, 1, last.seq); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read thread: %w", err)
}

// threadRange reads the entries of a filter from a sequence to another, both included. A replica that is behind the last is
// [ErrUnavailable].
func (c *Conn) threadRange(ctx context.Context, filter string, from, to uint64) ([]ThreadEntry, error) {
	var all []ThreadEntry
	for from <= to {
		batch, err := c.directBatch(ctx, c.ns.Store(events.StreamThreads), msgGet{NextBy: filter, Seq: from}, threadBatch)
		if errors.Is(err, ErrNotFound) || err == nil && len(batch) == 0 {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		for _, m := range batch {
			if from = m.seq + 1; m.seq > to {
				break
			}
			e, ok, err := c.readEntry(ctx, m.subject, m.header, m.data)
			if err != nil {
				return nil, err
			}
			if e.Seq, e.Stored = m.seq, m.at; ok {
				all = append(all, e)
			}
		}
	}
	return all, nil
}

// readEntry reads a stored entry, whole; false is what is none.
func (c *Conn) readEntry(ctx context.Context, subject string, header nats.Header, data []byte) (ThreadEntry, bool, error) {
	d, ok := decodeEntry(c.ns, subject, header, data)
	if ok && d.DataRef != "" {
		var err error
		if d.Messages, err = c.referredMessages(ctx, d.DataRef); err != nil {
			return ThreadEntry{}, false, err
		}
		d.DataRef = ""
	}
	return ThreadEntry{MessageStored: d}, ok, nil
}

// decodeEntry is a stored entry; false is what no service of Weir wrote: it is no part of the conversation.
func decodeEntry(ns events.Namespace, subject string, header nats.Header, data []byte) (events.MessageStored, bool) {
	if _, ok := ns.ParseThreadPlace(subject); !ok {
		return events.MessageStored{}, false
	}
	e, err := events.DecodeMsg(header, data)
	if err != nil || e.Type != events.TypeOf[events.MessageStored]() {
		return events.MessageStored{}, false
	}
	d, err := events.Data[events.MessageStored](e)
	return d, err == nil && ns.ThreadEntry(d) == subject
}

// OpenInThreads are the runs that have an entry in a thread, and none that says how they ended.
func (c *Conn) OpenInThreads(ctx context.Context) ([]events.ThreadPlace, error) {
	store := c.ns.Store(events.StreamThreads)
	closed, err := c.subjectsOf(ctx, store, c.ns.ThreadClosed())
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	begun, err := c.subjectsOf(ctx, store, c.ns.ThreadBegun())
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	over := make(map[events.ThreadPlace]bool, len(closed))
	for _, subject := range closed {
		if p, ok := c.ns.ParseThreadPlace(subject); ok {
			p.Key = ""
			over[p] = true
		}
	}
	var open []events.ThreadPlace
	for _, subject := range begun {
		if p, ok := c.ns.ParseThreadPlace(subject); ok {
			if p.Key = ""; !over[p] {
				open = append(open, p)
			}
		}
	}
	return open, nil
}

// AllThreadEntries reads the entries of all threads, in the order in which they were stored.
func (c *Conn) AllThreadEntries(ctx context.Context) ([]ThreadEntry, error) {
	return c.entriesOf(ctx, c.ns.Threads())
}

// StoredThread is a thread by the tokens of its names.
type StoredThread struct {
	resource, thread string
	Runs             int
}

// Threads are the threads of a resource, or all of them when it is empty.
func (c *Conn) Threads(ctx context.Context, resource string) ([]StoredThread, error) {
	begun, err := c.subjectsOf(ctx, c.ns.Store(events.StreamThreads), c.ns.ThreadBegunBy(resource))
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	var all []StoredThread
	for _, subject := range begun { // sorted, so those of a thread are together
		p, ok := c.ns.ParseThreadPlace(subject)
		if n := len(all); ok && n > 0 && all[n-1].resource == p.Resource && all[n-1].thread == p.Thread {
			all[n-1].Runs++
		} else if ok {
			all = append(all, StoredThread{p.Resource, p.Thread, 1})
		}
	}
	return all, nil
}

// ThreadEnds are the first and the last entry of a thread; nil when there is none any more.
func (c *Conn) ThreadEnds(ctx context.Context, t StoredThread) (first, last *ThreadEntry, err error) {
	store, filter := c.ns.Store(events.StreamThreads), c.ns.ThreadOfTokens(t.resource, t.thread)
	newest, err := c.directGet(ctx, store, msgGet{LastBy: filter})
	for from := uint64(1); err == nil && from <= newest.seq; {
		var batch []directMsg
		if batch, err = c.directBatch(ctx, store, msgGet{NextBy: filter, Seq: from}, threadBatch); len(batch) == 0 {
			break
		}
		for _, m := range batch { // those that were deleted come first
			from = m.seq + 1
			if e, ok := decodeEntry(c.ns, m.subject, m.header, m.data); ok && !e.Erased {
				first = &ThreadEntry{MessageStored: e, Seq: m.seq, Stored: m.at}
				break
			}
		}
		if e, ok := decodeEntry(c.ns, newest.subject, newest.header, newest.data); first != nil && ok && !e.Erased {
			return first, &ThreadEntry{MessageStored: e, Seq: newest.seq, Stored: newest.at}, nil
		} else if first != nil {
			return first, first, nil // a run that was deleted has written last
		}
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, nil, fmt.Errorf("read thread: %w", err)
	}
	return nil, nil, nil
}

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
	return nil
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
	if _, ok := c.ns.ParseThreadPlace(subject); !ok {
		return ThreadEntry{}, false, nil
	}
	e, err := events.DecodeMsg(header, data)
	if err != nil || e.Type != events.TypeOf[events.MessageStored]() {
		return ThreadEntry{}, false, nil //nolint:nilerr // no service of Weir wrote it: it is no part of the conversation
	}
	d, err := events.Data[events.MessageStored](e)
	if err != nil || c.ns.ThreadEntry(d) != subject {
		return ThreadEntry{}, false, nil //nolint:nilerr // the same
	}
	if d.DataRef != "" {
		if d.Messages, err = c.referredMessages(ctx, d.DataRef); err != nil {
			return ThreadEntry{}, false, err
		}
		d.DataRef = ""
	}
	return ThreadEntry{MessageStored: d}, true, nil
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

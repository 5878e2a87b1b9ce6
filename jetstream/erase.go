package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// Deletion of threads. First the stream says that the thread is gone and up to which request; then each entry is replaced by one
// that says that it was erased, and the stream keeps the last message of a subject only. Whoever stores an entry looks afterwards
// whether the thread is gone, and erases it himself: so one of the two sees the other, in whichever order they come. No right to
// purge is needed, and since the subject stays taken, nothing comes in its place.

// maxErasures bounds the tries to replace one entry that others replace too.
const maxErasures = 8

// threadMsg reads the last message of a subject of the stream threads from its leader.
func (c *Conn) threadMsg(ctx context.Context, subject string) (storedMsg, events.Event, error) {
	m, err := c.get(ctx, c.ns.Store(events.StreamThreads), msgGet{LastBy: subject})
	if err != nil {
		return m, events.Event{}, err
	}
	header, err := m.header()
	if err != nil {
		return m, events.Event{}, fmt.Errorf("%w: %s: %w", ErrTampered, subject, err)
	}
	e, err := events.DecodeMsg(header, m.Data)
	if err != nil {
		return m, events.Event{}, fmt.Errorf("%w: %s: %w", ErrTampered, subject, err)
	}
	return m, e, nil
}

// ErasedTo is up to which request, by its sequence in the inbox, a thread was deleted; 0 when it was not.
func (c *Conn) ErasedTo(ctx context.Context, resource, thread string) (uint64, error) {
	var to uint64
	for _, all := range []bool{false, true} {
		d, _, err := c.gone(ctx, c.ns.ThreadGone(resource, thread, all))
		if err != nil {
			return 0, err
		}
		to = max(to, d.InboxSeq)
	}
	return to, nil
}

// gone reads what a subject says of a deletion; the zero value when it says nothing.
func (c *Conn) gone(ctx context.Context, subject string) (events.ThreadErased, uint64, error) {
	m, e, err := c.threadMsg(ctx, subject)
	if errors.Is(err, ErrNotFound) {
		return events.ThreadErased{}, 0, nil
	}
	if err != nil {
		return events.ThreadErased{}, 0, fmt.Errorf("read whether a thread is gone: %w", err)
	}
	d, err := events.Data[events.ThreadErased](e)
	if err != nil {
		return d, 0, fmt.Errorf("%w: %s: %w", ErrTampered, subject, err)
	}
	return d, m.Seq, nil
}

// SayErased stores that a thread, or all of a resource, is deleted. What says so of a later request stays.
func (c *Conn) SayErased(ctx context.Context, o *events.Origin, d events.ThreadErased, cause events.Event) error {
	subject := c.ns.ThreadGone(d.ResourceID, d.ThreadID, d.All)
	for range maxErasures {
		was, seq, err := c.gone(ctx, subject)
		switch {
		case err != nil:
			return err
		case was.InboxSeq > d.InboxSeq, was.InboxSeq == d.InboxSeq && (was.Done || !d.Done):
			return nil
		}
		e, err := o.Request(subject, "", d, cause)
		if err != nil {
			return err
		}
		msg, err := c.eventMsg(subject, e)
		if err != nil {
			return err
		}
		msg.Header.Set(headerExpected, strconv.FormatUint(seq, 10))
		if _, err = c.storeMsg(ctx, msg); err == nil || !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: others delete the same thread", ErrConflict)
}

// Deletion looks up what became of the deletion of a thread, or of all of a resource.
func (c *Conn) Deletion(ctx context.Context, d events.DeletionRequested) (events.ThreadErased, error) {
	m, err := c.directGet(ctx, c.ns.Store(events.StreamThreads), msgGet{LastBy: c.ns.ThreadGone(d.ResourceID, d.ThreadID, d.All)})
	if errors.Is(err, ErrNotFound) {
		return events.ThreadErased{}, nil
	}
	if err != nil {
		return events.ThreadErased{}, fmt.Errorf("read whether a thread is gone: %w", err)
	}
	e, err := events.DecodeMsg(m.header, m.data)
	if err != nil {
		return events.ThreadErased{}, fmt.Errorf("%w: %w", ErrTampered, err)
	}
	return events.Data[events.ThreadErased](e)
}

// EraseThreads replaces every entry of the threads that are to be deleted, as far as its run was asked for before the deletion.
func (c *Conn) EraseThreads(ctx context.Context, o *events.Origin, d events.DeletionRequested, inboxSeq uint64, cause events.Event) error {
	subjects, err := c.subjectsOf(ctx, c.ns.Store(events.StreamThreads), c.ns.ThreadsIn(d))
	if err != nil {
		return fmt.Errorf("erase thread: %w", err)
	}
	for _, subject := range subjects {
		if _, ok := c.ns.ParseThreadPlace(subject); !ok {
			continue
		}
		if err := c.eraseEntry(ctx, o, subject, inboxSeq, cause); err != nil {
			return fmt.Errorf("erase thread: %w", err)
		}
	}
	return nil
}

// eraseEntry replaces an entry of a run that was asked for before a deletion. One that is no entry, whoever wrote it, goes too.
func (c *Conn) eraseEntry(ctx context.Context, o *events.Origin, subject string, inboxSeq uint64, cause events.Event) error {
	for range maxErasures {
		m, _, err := c.threadMsg(ctx, subject)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil && !errors.Is(err, ErrTampered) {
			return err
		}
		var header nats.Header
		if header, err = m.header(); err != nil {
			header = nats.Header{}
		}
		d, ok := decodeEntry(c.ns, subject, header, m.Data)
		if !ok || d.Erased || d.InboxSeq >= inboxSeq {
			return nil
		}
		d = events.MessageStored{
			ThreadID: d.ThreadID, ResourceID: d.ResourceID, RunID: d.RunID, InboxSeq: d.InboxSeq, Index: d.Index, Call: d.Call,
			Closing: d.Closing, Messages: []events.Message{}, Erased: true,
		}
		if err := c.putEntry(ctx, o, d, cause, m.Seq); err == nil || !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: others replace %s", ErrConflict, subject)
}

// EraseKept deletes what tools keep for the threads that are to be deleted.
func (c *Conn) EraseKept(ctx context.Context, d events.DeletionRequested) error {
	b := c.bucket(events.BucketTasks)
	var keys []string
	for _, filter := range d.TasksFilters() {
		found, err := b.keys(ctx, filter)
		if err != nil {
			return fmt.Errorf("erase what tools keep: %w", err)
		}
		keys = append(keys, found...)
	}
	for _, key := range keys {
		if err := b.remove(ctx, key, 0); err != nil {
			return fmt.Errorf("erase what tools keep: %w", err)
		}
	}
	return nil
}

// KeptFor is how long a store keeps what was stored; 0 without end.
func (c *Conn) KeptFor(ctx context.Context, store string) (time.Duration, error) {
	name := c.ns.Store(store)
	if store == events.BucketBlobs {
		name = c.blobStream()
	}
	var info struct {
		Config struct {
			MaxAge time.Duration `json:"max_age"`
		} `json:"config"`
	}
	if err := c.call(ctx, "STREAM.INFO."+name, nil, &info); err != nil {
		return 0, fmt.Errorf("look at %s: %w", store, err)
	}
	return info.Config.MaxAge, nil
}

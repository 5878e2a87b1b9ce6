package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// headerWriter names one try to store a value, so that its writer knows it again when the reply was lost.
const headerWriter = "weir-writer"

// Kept reads what tools keep for a conversation, from the leader, with its revision: nil and 0 when there is nothing. The
// key is one of [events.TasksKey].
func (c *Conn) Kept(ctx context.Context, key string) (json.RawMessage, uint64, error) {
	e, err := c.bucket(events.BucketTasks).get(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("read what is kept as %s: %w", key, err)
	}
	return e.value, e.rev, nil
}

// Keep replaces what tools keep for a conversation, if it still has the revision prev, 0 when there must be nothing, and
// returns the new one. [ErrConflict] says that somebody else was faster: every read after that shows what he wrote. After
// a lost reply it may also mean that ours was stored and has been replaced since, so whoever adds to a value marks in it
// what he has added.
func (c *Conn) Keep(ctx context.Context, key string, value json.RawMessage, prev uint64) (uint64, error) {
	if len(value) > events.MaxInline {
		return 0, fmt.Errorf("keep %s: %w: %d bytes, at most %d are kept", key, ErrTooLarge, len(value), events.MaxInline)
	}
	writer := events.NewID(time.Now())
	msg := &nats.Msg{Data: value, Header: nats.Header{headerWriter: []string{writer}}}
	ours := func(e entry) bool { return firstValue(e.header, headerWriter) == writer }
	rev, err := c.bucket(events.BucketTasks).replace(ctx, key, msg, prev, ours)
	if err != nil {
		return 0, fmt.Errorf("keep %s: %w", key, err)
	}
	return rev, nil
}

package jetstream

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// Note tells the sender of a request something that is kept elsewhere or counts for nothing: it is not stored, and
// heard only by who listens now. Subjects are made by [events.Namespace.Note].
func (c *Conn) Note(_ context.Context, subject string, e events.Event) error {
	header, payload, err := events.EncodeMsg(e)
	if err == nil {
		err = mapError(c.nc.PublishMsg(&nats.Msg{Subject: subject, Header: header, Data: payload}))
	}
	if err != nil {
		return fmt.Errorf("note on %s: %w", subject, err)
	}
	return nil
}

// Notes calls f with what a principal is told from now on, until stop is called or ctx ends.
func (c *Conn) Notes(ctx context.Context, principal string, f func(events.Event)) (stop func(), err error) {
	return c.Hear(ctx, c.ns.Notes(principal), f)
}

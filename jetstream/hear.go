package jetstream

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// parts is what the stores keep in memory for one connection. Nothing in it decides anything; the zero value works.
type parts struct {
	trouble trouble   // of consumers
	acks    chunkAcks // of chunks that are being published
	feeds   feeds     // of runs that are being followed
	defs    defCache
	named   namedCache
	seen    watermark // of the log
}

// Hear calls f with every event that is published on a subject (wildcards are allowed) from now on, one after the other,
// until stop is called or ctx ends. What is heard is a hint: some may be missed, a publisher may invent others, and
// only what stored facts are republished on carries their sequence. What is not an event is passed over.
func (c *Conn) Hear(ctx context.Context, subject string, f func(events.Event)) (stop func(), err error) {
	return c.listen(ctx, subject, func(msg *nats.Msg) {
		if e, err := events.DecodeMsg(msg.Header, msg.Data); err == nil {
			place(&e, msg)
			f(e)
		}
	})
}

// place fills in what the server says about a republished fact.
func place(e *events.Event, msg *nats.Msg) {
	if p, err := events.ParsePlace(msg.Subject); err == nil {
		e.Place = p
	}
	if m, err := parseDirect(msg); err == nil {
		e.Seq, e.Stored = m.seq, m.at
	}
}

// listen subscribes until stop is called or ctx ends, and returns when the server knows of the subscription, so that
// what is published after that is heard.
func (c *Conn) listen(ctx context.Context, subject string, f nats.MsgHandler) (stop func(), err error) {
	return c.listenIn(ctx, subject, "", f)
}

// listenIn is listen as one of a group, of which one gets each message; without a group everybody does.
func (c *Conn) listenIn(ctx context.Context, subject, group string, f nats.MsgHandler) (stop func(), err error) {
	var sub *nats.Subscription
	err = c.subscribed(ctx, subject, func() (err error) {
		sub, err = c.nc.QueueSubscribe(subject, group, f)
		return err
	})
	if err != nil {
		if sub != nil {
			_ = sub.Unsubscribe() // err says more
		}
		return nil, err
	}
	unsubscribe := sync.OnceFunc(func() { _ = sub.Unsubscribe() }) // of a closed connection: nothing is left
	cut := context.AfterFunc(ctx, unsubscribe)
	return func() {
		cut()
		unsubscribe()
	}, nil
}

// subscribed makes a subscription on a subject and returns when the server knows of it, or why it does not take it.
func (c *Conn) subscribed(ctx context.Context, subject string, subscription func() error) error {
	try, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	try, done := c.under(try, subject)
	err := subscription()
	if err == nil {
		err = c.nc.FlushWithContext(try)
	}
	if v, ok := parseViolation(c.nc.LastError()); ok && v.Operation == subscribe && v.Subject == subject {
		err = fmt.Errorf("%w: subscribe to %s is not allowed to user %s", ErrPermission, subject, c.user)
	}
	if err = done(err); err != nil {
		return fmt.Errorf("listen on %s: %w", subject, err)
	}
	return nil
}

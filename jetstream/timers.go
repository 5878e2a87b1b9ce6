package jetstream

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// firedTTL is how long a timer that fired waits for the gate. One that is not taken by then is found by the sweeper,
// which looks at the asks themselves.
const firedTTL = time.Hour

// cancelTTL is how long what replaces a cancelled timer stays: the shortest that the server takes.
const cancelTTL = time.Second

// TimerID names a timer: the deadline of a round of a call, or one of its other purposes. It is stable, so setting the
// timer of an ask again replaces it.
func TimerID(t events.TimerSet) (string, error) {
	call, err := events.ParseCallID(t.ToolCallID)
	if err != nil {
		return "", err
	}
	id := events.TimerID(call, t.Round)
	if t.Purpose != events.TimerExpire {
		id += "_" + t.Purpose
	}
	return id, nil
}

// SetTimer schedules a message for the gate, or replaces the one that is set for the same purpose of the same round. It
// comes at t.At, never before, and at once when that has passed. What is delivered is the scheduled body as it is, so
// the body is the event timer.fired.
func (c *Conn) SetTimer(ctx context.Context, origin *events.Origin, t events.TimerSet) error {
	id, err := TimerID(t)
	if err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	e, err := origin.Request(c.ns.TimerFire(id), t.RunID, events.TimerFired(t), events.Event{})
	if err != nil {
		return fmt.Errorf("set timer %s: %w", id, err)
	}
	header, payload, err := events.EncodeMsg(e)
	if err != nil {
		return fmt.Errorf("set timer %s: %w", id, err)
	}
	msg := &nats.Msg{Subject: c.ns.TimerSet(id), Header: header, Data: payload}
	// The raw header: the client's own option cuts to whole seconds and so fires early.
	msg.Header.Set("Nats-Schedule", "@at "+t.At.UTC().Format(time.RFC3339Nano))
	msg.Header.Set("Nats-Schedule-Target", c.ns.TimerFire(id))
	msg.Header.Set("Nats-Schedule-TTL", firedTTL.String())
	if _, err := c.storeMsg(ctx, msg); err != nil {
		return fmt.Errorf("set timer %s: %w", id, err)
	}
	return nil
}

// CancelTimer takes a timer back by its id. One that fired, or never was, is no error: the call's chain decides, not
// the timer. A message that is no schedule ends the schedule of its subject.
func (c *Conn) CancelTimer(ctx context.Context, id string) error {
	msg := nats.NewMsg(c.ns.TimerSet(id))
	msg.Header.Set("Nats-Rollup", "sub")
	msg.Header.Set(headerTTL, cancelTTL.String())
	if _, err := c.storeMsg(ctx, msg); err != nil {
		return fmt.Errorf("cancel timer %s: %w", id, err)
	}
	return nil
}

package jetstream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// What sweepers read. The log is also the queue, so what a service has left undone stands behind the floor of its own
// durable consumer, and needs no other index.

// Backlog is what the deliveries of a consumer have not settled yet.
type Backlog struct {
	Floor       uint64    // every message up to this stream sequence that the consumer takes is settled
	Outstanding int       // messages that are not: under way, waiting for redelivery, or not delivered yet
	Now         time.Time // the server's clock
}

// Backlog reads what a durable consumer has not settled.
func (c *Conn) Backlog(ctx context.Context, stream, consumer string) (Backlog, error) {
	var info struct {
		AckFloor struct {
			Stream uint64 `json:"stream_seq"`
		} `json:"ack_floor"`
		AckPending int       `json:"num_ack_pending"`
		Pending    int       `json:"num_pending"`
		Now        time.Time `json:"ts"`
	}
	verb := "CONSUMER.INFO." + c.ns.Store(stream) + "." + consumer
	if err := c.call(ctx, verb, nil, &info); err != nil {
		return Backlog{}, fmt.Errorf("read backlog of %s on %s: %w", consumer, stream, err)
	}
	return Backlog{Floor: info.AckFloor.Stream, Outstanding: info.AckPending + info.Pending, Now: info.Now}, nil
}

// NextFact is the first fact of the log after a sequence whose subject fits the filter; [ErrNotFound] when there is
// none. It is read from the leader.
func (c *Conn) NextFact(ctx context.Context, after uint64, filter string) (events.Event, error) {
	return c.fact(ctx, msgGet{Seq: after + 1, NextBy: filter})
}

// Overdue are the facts behind the floor of a backlog that fit one of the filters and had been stored for age when it
// was read; those of a filter come oldest first. An error ends them.
func (c *Conn) Overdue(ctx context.Context, b Backlog, age time.Duration, filters ...string) iter.Seq2[events.Event, error] {
	return func(yield func(events.Event, error) bool) {
		for _, filter := range filters {
			for seq := b.Floor; ; {
				fact, err := c.NextFact(ctx, seq, filter)
				if errors.Is(err, ErrNotFound) || err == nil && b.Now.Sub(fact.Stored) < age {
					break
				}
				if err != nil {
					yield(fact, fmt.Errorf("read backlog after %d: %w", seq, err))
					return
				}
				if seq = fact.Seq; !yield(fact, nil) {
					return
				}
			}
		}
	}
}

// Subjects are the subjects of the log that fit a filter.
func (c *Conn) Subjects(ctx context.Context, filter string) ([]string, error) {
	return c.subjectsOf(ctx, c.ns.Store(events.StreamRuns), filter)
}

// Now is the server's clock, by which deadlines are judged.
func (c *Conn) Now(ctx context.Context) (time.Time, error) {
	var info struct {
		Now time.Time `json:"ts"`
	}
	if err := c.call(ctx, "STREAM.INFO."+c.ns.Store(events.StreamRuns), nil, &info); err != nil {
		return time.Time{}, fmt.Errorf("read the server's clock: %w", err)
	}
	return info.Now, nil
}

// HearFacts calls f with the place of every stored fact that fits a filter, without its content: what is heard is a
// hint, and whoever acts on it reads the fact.
func (c *Conn) HearFacts(ctx context.Context, filter string, f func(events.Place)) (stop func(), err error) {
	return c.listen(ctx, filter, func(msg *nats.Msg) {
		if p, err := events.ParsePlace(msg.Subject); err == nil {
			f(p)
		}
	})
}

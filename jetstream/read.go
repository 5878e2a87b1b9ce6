package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
)

const (
	// readTime is how long one read may take before it is tried again: with no leader, nobody answers.
	readTime = 2 * time.Second
	// concurrentReads bounds the reads of one state.
	concurrentReads = 16
)

// msgGet asks a stream's leader for one message. By payload, because only that form is answered by the leader.
type msgGet struct {
	Seq    uint64 `json:"seq,omitempty"`
	LastBy string `json:"last_by_subj,omitempty"`
	NextBy string `json:"next_by_subj,omitempty"` // the first one from Seq on

	// From is the earliest time, in place of Seq. Direct gets alone know it.
	From *time.Time `json:"start_time,omitempty"`
}

// storedMsg is a message as its stream holds it.
type storedMsg struct {
	Subject string    `json:"subject"`
	Seq     uint64    `json:"seq"`
	Header  []byte    `json:"hdrs"`
	Data    []byte    `json:"data"`
	Time    time.Time `json:"time"`
}

// header decodes the message's headers, without regard to whether it has any.
func (m storedMsg) header() (nats.Header, error) {
	if len(m.Header) == 0 {
		return nats.Header{}, nil
	}
	return nats.DecodeHeadersMsg(m.Header)
}

// getOnce reads one message from the leader of a stream (its full name), or ErrNotFound.
func (c *Conn) getOnce(ctx context.Context, stream string, which msgGet) (storedMsg, error) {
	reply, err := c.ask(ctx, readTime, "STREAM.MSG.GET."+stream, which)
	if err != nil {
		return storedMsg{}, err
	}
	var answer struct { // decoded in one go: it is on the path of every decision
		Error   *natsjs.APIError `json:"error"`
		Message *storedMsg       `json:"message"`
	}
	switch err := json.Unmarshal(reply, &answer); {
	case err != nil:
		return storedMsg{}, fmt.Errorf("%w: answer of the server: %w", ErrUnavailable, err)
	case answer.Error != nil:
		return storedMsg{}, mapAPIError(answer.Error)
	case answer.Message == nil:
		return storedMsg{}, fmt.Errorf("%w: answer without a message", ErrUnavailable)
	}
	return *answer.Message, nil
}

// get is getOnce, tried again while the stream has no leader.
func (c *Conn) get(ctx context.Context, stream string, which msgGet) (storedMsg, error) {
	var m storedMsg
	err := c.persist(ctx, func(ctx context.Context) (err error) {
		m, err = c.getOnce(ctx, stream, which)
		return err
	})
	return m, err
}

// persist tries again, for as long as an append is tried again, what failed for want of an answer.
func (c *Conn) persist(ctx context.Context, try func(context.Context) error) error {
	return c.persistFor(ctx, c.opts.Retry, try)
}

func (c *Conn) persistFor(ctx context.Context, limit time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	again := outage
	var last error
	for {
		err := try(ctx)
		switch {
		case err == nil || !isOutage(err):
			return err
		case last != nil && ctx.Err() != nil: // cut short: the one before says more
			return last
		case again.wait(ctx) != nil:
			return err
		}
		last = err
	}
}

// isOutage says that nothing was decided, and that it may be in a moment. A stream that is not there and a connection
// that was closed stay so.
func isOutage(err error) bool {
	return (errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnavailable)) && !isMissing(err) &&
		!errors.Is(err, nats.ErrConnectionClosed)
}

// Last reads the last fact of a chain ([events.Place.Chain]) from the leader, or ErrNotFound; that is not said by a leader
// that is behind what this connection was delivered. A stored message that is not the event its place calls for comes with
// ErrTampered, and the event holds what is certain of it: its place, sequence, time stamp and payload.
func (c *Conn) Last(ctx context.Context, filter string) (events.Event, error) {
	return c.sure(ctx, msgGet{LastBy: filter})
}

// Fact reads the last fact stored at exactly this place from the leader, or ErrNotFound; both errors as in [Conn.Last].
func (c *Conn) Fact(ctx context.Context, p events.Place) (events.Event, error) {
	return c.sure(ctx, msgGet{LastBy: p.Subject()})
}

func (c *Conn) fact(ctx context.Context, which msgGet) (events.Event, error) {
	m, err := c.get(ctx, c.ns.Store(events.StreamRuns), which)
	if err != nil {
		return events.Event{}, fmt.Errorf("read %s: %w", which.LastBy+which.NextBy, err)
	}
	return decodeFact(m)
}

// Facts reads the last facts at these places concurrently. One that the leader does not show has the zero event in its place:
// it may be behind, and who concludes that a fact is absent looks whether it shows the fact that was delivered.
func (c *Conn) Facts(ctx context.Context, places ...events.Place) ([]events.Event, error) {
	facts, failed := make([]events.Event, len(places)), make([]error, len(places))
	slots := make(chan struct{}, concurrentReads)
	var wg sync.WaitGroup
	for i, p := range places {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			facts[i], failed[i] = c.fact(ctx, msgGet{LastBy: p.Subject()})
			if errors.Is(failed[i], ErrNotFound) {
				failed[i] = nil
			}
		})
	}
	wg.Wait()
	return facts, errors.Join(failed...)
}

// decodeFact reads a stored message of the log as the event that its place calls for.
func decodeFact(m storedMsg) (events.Event, error) {
	certain := events.Event{Seq: m.Seq, Stored: m.Time, Payload: m.Data}
	place, err := events.ParsePlace(m.Subject)
	if err != nil {
		return certain, fmt.Errorf("%w: sequence %d: %w", ErrTampered, m.Seq, err)
	}
	certain.Place = place
	header, err := m.header()
	if err != nil {
		return certain, fmt.Errorf("%w: %s, sequence %d: %w", ErrTampered, m.Subject, m.Seq, err)
	}
	e, err := events.DecodeMsg(header, m.Data)
	if err == nil {
		err = checkFits(e, place)
	}
	if err != nil {
		return certain, fmt.Errorf("%w: %s, sequence %d: %w", ErrTampered, m.Subject, m.Seq, err)
	}
	e.Place, e.Seq, e.Stored = place, m.Seq, m.Time
	return e, nil
}

// checkFits holds an event against the place where it was found.
func checkFits(e events.Event, p events.Place) error {
	want := events.FactType(p.Kind)
	if p.Kind == events.KindProbe {
		want = probeType
	}
	if e.Type != want {
		return fmt.Errorf("event of type %s where %s belongs", e.Type, want)
	}
	if e.Subject != p.Run {
		return fmt.Errorf("event of run %s in the chain of run %s", e.Subject, p.Run)
	}
	return nil
}

package jetstream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

const (
	defaultMaxAttempts = 20
	defaultDrain       = 25 * time.Second
	// sureFailures is how often a message must have failed in this very process before deliveries made elsewhere count:
	// a message that was put off many times is not given up at its first failure.
	sureFailures = 3

	// maxReason bounds what a dead letter says about its cause.
	maxReason = 4 << 10

	minBackoff = 100 * time.Millisecond
	maxBackoff = 30 * time.Second
	// faultBackoff lies between tries while a store or the connection is at fault, which is not the message's failure.
	faultBackoff = 2 * time.Second
)

// Delivery is one delivery of a stored event to a handler. The same event may be delivered again, late, or beside this
// one.
type Delivery struct {
	Event    events.Event // as it is stored: with Seq and Stored, and Place when it is a fact
	Subject  string
	Attempt  int // how often the consumer has delivered it, to anybody, from 1
	Consumer string
	Headers  map[string][]string
}

// Handler is what becomes of the messages of one durable. Only Handle is needed.
type Handler struct {
	// Handle does what the event asks for and returns when all facts that it owed are stored, by itself or by another:
	// then the message is acknowledged. An error means "again, after a while", [Later] "again, nothing failed",
	// [Final] "give it to people". A panic is an error. The context ends when the service has to stop.
	Handle func(ctx context.Context, d Delivery) error
	// Abandon stores the failed fact of a delivery that is being given up, before the dead letter. An error keeps the
	// delivery. Nil: there is no such fact.
	Abandon func(ctx context.Context, d Delivery, cause error) error
	// Malformed is told of a message that is no event of the stream: cut, of an unknown type or version, against its
	// schema, on a subject where it does not belong. d.Event is what could be read: at the least its sequence and time
	// stamp. Nil as its error acknowledges the message, [Final] makes a dead letter. A nil function makes dead letters of
	// all of them.
	Malformed func(ctx context.Context, d Delivery, payload []byte, cause error) error
	// MaxAttempts is after how many failures a message is given up. Zero: 20.
	MaxAttempts int
	// Concurrency is how many messages are handled at once. Zero: 1.
	Concurrency int
	// Batch is how many messages more are fetched ahead, for handlers that are cheap. Zero: only what starts at once.
	Batch int
	// Drain is how long handlers may finish once the context of the loop has ended. Zero: 25 s.
	Drain time.Duration
}

func (h Handler) withDefaults() Handler {
	if h.MaxAttempts <= 0 {
		h.MaxAttempts = defaultMaxAttempts
	}
	if h.Drain <= 0 {
		h.Drain = defaultDrain
	}
	h.Concurrency = max(h.Concurrency, 1)
	h.Batch = max(h.Batch, 0)
	return h
}

// againError is [Later].
type againError struct{ after time.Duration }

func (e againError) Error() string { return "not now: again in " + e.after.String() }

// finalError is [Final].
type finalError struct{ cause error }

func (e finalError) Error() string { return e.cause.Error() }
func (e finalError) Unwrap() error { return e.cause }

// Final makes err the last word on a message: it is given to people at once and never delivered again.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return finalError{err}
}

// Later puts a message off: it is delivered again after d, and nothing has failed.
func Later(d time.Duration) error { return againError{max(d, 0)} }

// IsLater reports whether a handler has put its message off.
func IsLater(err error) bool {
	_, ok := errors.AsType[againError](err)
	return ok
}

// Consume hands the messages of a durable to h, until the context of the function that it returns ends; then it stops
// pulling, gives back what has not started, lets handlers finish within h.Drain and returns nil. Order is not promised.
//
// The loop outlives restarts of the server and a durable that is deleted: it waits until it is back, and
// [Conn.Health] tells of it. A message is kept from redelivery from its fetch to its acknowledgement, and acknowledged
// only after Handle has returned nil or a dead letter is stored. Carried copies are acknowledged unseen.
func (c *Conn) Consume(stream, consumer string, h Handler) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		return newLoop(c, stream, consumer, h.withDefaults()).run(ctx)
	}
}

// handle is the life of one message between its fetch and its end.
func (l *loop) handle(ctx context.Context, m *held) {
	if l.store == events.StreamRuns {
		l.conn.parts.seen.raise(m.seq, m.stored)
	}
	d, err := l.decode(m)
	switch {
	case err != nil:
		l.settleMalformed(ctx, m, d, err)
	case d.Event.Carried && l.store == events.StreamRuns: // elsewhere the header is a sender's word, and means nothing
		l.ack(m)
	default:
		l.settle(ctx, m, d, l.guarded(ctx, func(ctx context.Context) error { return l.traced(ctx, d) }))
	}
}

// traced handles a delivery in a span of its own. The facts that it leads to carry the trace on.
func (l *loop) traced(ctx context.Context, d Delivery) (err error) {
	if l.conn.opts.Trace == nil {
		return l.h.Handle(ctx, d)
	}
	err = errors.New("the handler panicked") // unless it returns
	ctx, traceparent, end := l.conn.opts.Trace.Deliver(ctx, l.consumer, d.Event.Type, d.Event.Subject, d.Event.TraceParent)
	defer func() {
		if IsLater(err) { // nothing has failed
			end(nil)
			return
		}
		end(err)
	}()
	d.Event.TraceParent = traceparent
	err = l.h.Handle(ctx, d)
	return err
}

// decode reads a message as an event of this loop's stream. The delivery is of use even with an error.
func (l *loop) decode(m *held) (Delivery, error) {
	d := Delivery{
		Event:   events.Event{Seq: m.seq, Stored: m.stored},
		Subject: m.msg.Subject, Attempt: m.attempt, Consumer: l.consumer, Headers: m.msg.Header,
	}
	if l.store == events.StreamInbox {
		if err := events.Foreign(m.msg.Header); err != nil {
			return d, err
		}
	}
	e, err := events.DecodeMsg(m.msg.Header, m.msg.Data)
	if err != nil {
		return d, err
	}
	e.Seq, e.Stored = m.seq, m.stored
	d.Event = e // so that its sender can be told, though it may be nothing that belongs here
	row, ok := events.RowOf(e.Type)
	if !ok {
		return d, fmt.Errorf("event type %q is not known to this release", e.Type)
	}
	if row.Stream != l.store || !onPattern(row.Subject, m.msg.Subject) {
		return d, fmt.Errorf("event %s does not belong on subject %s", e.Type, m.msg.Subject)
	}
	if l.store == events.StreamRuns {
		if e.Place, err = events.ParsePlace(m.msg.Subject); err == nil {
			err = checkFits(e, e.Place)
		}
		if err != nil {
			return d, err
		}
	}
	if err := events.ValidateData(e); err != nil {
		return d, err
	}
	d.Event = e
	return d, nil
}

// onPattern compares a subject with a pattern of the catalogue, which begins after the namespace: its fixed tokens must
// stand where they belong, and <names> take any one token.
func onPattern(pattern, subject string) bool {
	for range 2 { // the product and the namespace
		_, subject, _ = strings.Cut(subject, ".")
	}
	for more := true; more; {
		var want, got string
		var more2 bool
		want, pattern, more = strings.Cut(pattern, ".")
		got, subject, more2 = strings.Cut(subject, ".")
		if more != more2 || got == "" || want[0] != '<' && want != got {
			return false
		}
	}
	return true
}

// guarded turns a panic of a handler into an error, with its stack in the log.
func (l *loop) guarded(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("handler panicked: %v", p)
			l.conn.log.ErrorContext(ctx, "handler panicked", "consumer", l.name(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	return f(ctx)
}

// settle ends a message according to what its handler said.
func (l *loop) settle(ctx context.Context, m *held, d Delivery, err error) {
	again, isAgain := errors.AsType[againError](err)
	_, isFinal := errors.AsType[finalError](err)
	switch {
	case err == nil:
		l.ack(m)
	case isFinal:
		l.giveUp(ctx, m, d, err)
	case isAgain:
		l.nak(m, again.after)
	case ctx.Err() != nil: // stopped in the middle: another process goes on at once
		l.nak(m, 0)
	case isFault(err):
		l.conn.log.WarnContext(ctx, "handler waits for a store", "consumer", l.name(), "subject", d.Subject, "error", err)
		l.nak(m, jitter(faultBackoff))
	default:
		l.fail(ctx, m, d, err)
	}
}

// isFault reports an error that says nothing about the message: retrying it costs nothing, and giving it up would
// empty a queue because a disk is full.
func isFault(err error) bool {
	return isOutage(err) || errors.Is(err, ErrFull) || errors.Is(err, ErrPermission)
}

func (l *loop) fail(ctx context.Context, m *held, d Delivery, err error) {
	failures := l.count(m.seq)
	l.conn.log.WarnContext(ctx, "handler failed", "consumer", l.name(), "subject", d.Subject, "attempt", d.Attempt, "error", err)
	if failures >= l.h.MaxAttempts || d.Attempt >= l.h.MaxAttempts && failures >= min(sureFailures, l.h.MaxAttempts) {
		l.giveUp(ctx, m, d, err)
		return
	}
	l.nak(m, backoff(failures))
}

// giveUp stores the failed fact, then the dead letter, then acknowledges. Whatever fails in between is done again at
// the next delivery; the message is not lost before people have it.
func (l *loop) giveUp(ctx context.Context, m *held, d Delivery, cause error) {
	if l.h.Abandon != nil {
		err := l.guarded(ctx, func(ctx context.Context) error { return l.h.Abandon(ctx, d, cause) })
		if err != nil {
			l.conn.log.ErrorContext(ctx, "delivery could not be abandoned", "consumer", l.name(), "subject", d.Subject, "error", err)
			l.nak(m, backoff(d.Attempt))
			return
		}
	}
	l.bury(ctx, m, d, cause)
}

func (l *loop) settleMalformed(ctx context.Context, m *held, d Delivery, cause error) {
	if l.h.Malformed == nil {
		l.bury(ctx, m, d, cause)
		return
	}
	err := l.guarded(ctx, func(ctx context.Context) error { return l.h.Malformed(ctx, d, m.msg.Data, cause) })
	if _, isFinal := errors.AsType[finalError](err); isFinal {
		l.bury(ctx, m, d, cause)
		return
	}
	l.settle(ctx, m, d, err)
}

// bury keeps the message as a dead letter and acknowledges it.
func (l *loop) bury(ctx context.Context, m *held, d Delivery, cause error) {
	letter := events.DeliveryAbandoned{
		Service: l.origin.Service, Consumer: l.consumer, Subject: d.Subject, Seq: m.seq, RunID: l.runOf(d),
		Attempts: d.Attempt, Reason: cut(cause.Error(), maxReason),
	}
	if utf8.Valid(m.msg.Data) {
		letter.Payload = string(m.msg.Data)
	} else {
		letter.Payload, letter.Base64 = base64.StdEncoding.EncodeToString(m.msg.Data), true
	}
	if err := l.conn.buryMsg(ctx, l.origin, letter, m.msg.Header); err != nil {
		l.conn.log.ErrorContext(ctx, "dead letter could not be stored", "consumer", l.name(), "subject", d.Subject, "error", err)
		l.nak(m, backoff(d.Attempt))
		return
	}
	l.conn.log.ErrorContext(ctx, "delivery given up", "consumer", l.name(), "subject", d.Subject, "attempts", d.Attempt, "error", cause)
	l.ack(m)
}

// cut bounds a text.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// runOf finds the run of a delivery by its subject, because the event may not be readable.
func (l *loop) runOf(d Delivery) string {
	run := ""
	if p, err := events.ParsePlace(d.Subject); err == nil {
		run = p.Run
	} else if in, err := l.conn.ns.ParseInbox(d.Subject); err == nil {
		run = in.Run
	}
	if _, err := events.CallOf(run, "1-1"); err != nil { // no id of a run, whatever it is
		return ""
	}
	return run
}

// Acknowledgements. None of them is waited for: a lost one only means that the message is delivered again.

var (
	ackBody  = []byte("+ACK")
	workBody = []byte("+WPI")
)

func (l *loop) ack(m *held) {
	l.forget(m.seq)
	l.answer(m, ackBody)
}

func (l *loop) nak(m *held, after time.Duration) {
	if after <= 0 {
		l.answer(m, []byte("-NAK"))
		return
	}
	l.answer(m, append(strconv.AppendInt([]byte(`-NAK {"delay":`), int64(after), 10), '}'))
}

func (l *loop) answer(m *held, body []byte) {
	if l.conn.opts.Hooks.at(BeforeSettle, m.msg.Subject) != nil {
		return
	}
	if err := l.conn.nc.Publish(m.msg.Reply, body); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		l.conn.log.Warn("acknowledgement not sent", "consumer", l.name(), "error", err)
	}
}

// backoff grows with the number of failures, up to half a minute.
func backoff(failures int) time.Duration {
	return jitter(min(minBackoff<<min(max(failures-1, 0), 16), maxBackoff))
}

// jitter spreads d over half of it to one and a half.
func jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d)+1)) //nolint:gosec // no secret
}

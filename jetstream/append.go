package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
)

const (
	// tryTime is how long one publish waits for its ack. After that its outcome is unknown and is read back.
	tryTime = 2 * time.Second
	// goneTime is how long a chain must be empty, and refuse an append, before it counts as aged out: a leader that
	// was just elected may be behind for a moment.
	goneTime = 5 * time.Second
)

// Outcome is what became of an append.
type Outcome uint8

// Outcomes of an append.
const (
	// Stored: the fact is in the log, by this call or by an earlier one with the same event.
	Stored Outcome = iota + 1
	// Lost: another fact followed the one that the guard names.
	Lost
	// Gone: the fact that the guard names is no longer there, and nothing follows it: the chain has aged out.
	Gone
)

// String names the outcome for logs.
func (o Outcome) String() string {
	switch o {
	case Stored:
		return "stored"
	case Lost:
		return "lost"
	case Gone:
		return "gone"
	}
	return "unknown"
}

// Appended is a settled append.
type Appended struct {
	Outcome Outcome
	// Last is our fact with its sequence when the outcome is Stored, also when others have followed it since; the
	// chain's last fact when it is Lost; zero when it is Gone. The server's time stamp is on what was read back; an
	// ack has none, so a fact that was just stored may come without.
	Last events.Event
}

// Append stores a fact under a guard: the chain's last fact must be the one that the guard names. It settles within
// itself what a reply alone leaves open: a refusal is read back until it shows who was faster, a time-out until it
// shows whether the fact is there, and an append that is in the way is waited for. When the fact named has been
// carried (stored again before it ages out), the copy is followed instead. A main.carry is a fact of its own: who
// loses to it knows the state and follows it.
//
// An error means that nothing is known, when Options.Retry or the context has run out, or that the fact is refused
// for another reason: ErrTooLarge, ErrFull, ErrPermission. The same event may be appended again then: it is stored
// once. ErrTampered comes with Lost when what won is no fact of Weir's; see [Conn.Last].
func (c *Conn) Append(ctx context.Context, g events.Guard, e events.Event) (Appended, error) {
	a, err := c.appending(g, e)
	if err != nil {
		return Appended{}, fmt.Errorf("append %s: %w", e.Place.Subject(), err)
	}
	if before := c.opts.Hooks.BeforeAppend; before != nil {
		if err := before(e); err != nil {
			return Appended{}, err
		}
	}
	done, err := a.run(ctx)
	if err != nil {
		return done, fmt.Errorf("append %s: %w", e.Place.Subject(), err)
	}
	if after := c.opts.Hooks.AfterAppend; after != nil {
		if err := after(done.Last, done.Outcome); err != nil {
			return Appended{}, err
		}
	}
	return done, nil
}

// appending is one append on its way to an outcome.
type appending struct {
	c      *Conn
	e      events.Event
	filter string
	after  uint64 // sequence of the fact that ours follows; 0: the chain must be empty
	msg    *nats.Msg

	contention, outage spacing
	emptySince         time.Time // since when refusals met a chain that shows nothing
}

func (c *Conn) appending(g events.Guard, e events.Event) (*appending, error) {
	switch {
	case g.Filter() != e.Place.Chain():
		return nil, fmt.Errorf("guard watches %q, but the fact belongs to %q", g.Filter(), e.Place.Chain())
	case e.Place.Namespace != c.ns:
		return nil, fmt.Errorf("fact of namespace %s on a connection of %s", e.Place.Namespace, c.ns)
	case g.Seq() == events.Never(e.Place).Seq():
		return nil, errors.New("a guard that cannot be met is for probes")
	}
	msg, err := c.eventMsg(e.Place.Ingest(), e)
	if err != nil {
		return nil, err
	}
	a := &appending{c: c, e: e, filter: g.Filter(), msg: msg, contention: contention, outage: outage}
	a.follow(g.Seq())
	return a, c.checkRoom(msg, roomToCarry(e))
}

// carryRoom is what the carried copy of a fact has beside it: its header, and the digits of a later sequence in its guard.
const carryRoom = len(events.HeaderCarried) + len(": true\r\n") + 20

// roomToCarry is the room that a fact must leave in its message: what waits is stored again before it ages out, unchanged,
// and must fit then too.
func roomToCarry(e events.Event) int64 {
	switch {
	case e.Carried:
		return 0
	case e.Place.Kind == events.KindAsk, e.Place.Kind == events.KindUse, e.Place.Kind == events.KindGo && e.Place.Pool == events.TokenAgentPool:
		return int64(carryRoom)
	}
	return 0
}

// follow makes seq the fact that ours must follow.
func (a *appending) follow(seq uint64) {
	a.after = seq
	guard(a.msg, a.filter, seq)
}

// guard sets the headers by which the server refuses a message unless the last sequence over the filter is seq. The
// filter consists of stored names: the server finds nothing under ingest names, and so a guard over them that
// expects nothing would always pass.
func guard(msg *nats.Msg, filter string, seq uint64) {
	msg.Header[natsjs.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(seq, 10)}
	msg.Header[natsjs.ExpectedLastSubjSeqSubjHeader] = []string{filter}
}

// run publishes until the outcome is known. Publishing again is always safe: every try carries the guard, so at most
// one of them is stored.
func (a *appending) run(ctx context.Context) (Appended, error) {
	seq, err := a.c.publishMsg(ctx, a.msg)
	if err == nil {
		return a.stored(seq), nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.c.opts.Retry)
	defer cancel()
	for isOpen(err) {
		if !errors.Is(err, errBusy) {
			done, err := a.readBack(ctx, errors.Is(err, ErrConflict))
			if err != nil || done.Outcome != 0 {
				return done, err
			}
		}
		if ctxErr := a.spacing(err).wait(ctx); ctxErr != nil {
			return Appended{}, undecided(ctxErr, err)
		}
		if seq, err = a.c.publishMsg(ctx, a.msg); err == nil {
			return a.stored(seq), nil
		}
	}
	return Appended{}, err
}

// spacing is how long to wait after an error: less when others who append have caused it.
func (a *appending) spacing(err error) *spacing {
	if isOutage(err) || !a.emptySince.IsZero() {
		return &a.outage
	}
	return &a.contention
}

// isOpen says that an error of a publish decides nothing.
func isOpen(err error) bool {
	return errors.Is(err, errBusy) || errors.Is(err, ErrConflict) || isOutage(err)
}

func undecided(ctxErr, last error) error {
	if errors.Is(ctxErr, context.DeadlineExceeded) {
		return fmt.Errorf("%w, undecided: %w", ErrTimeout, last)
	}
	return fmt.Errorf("%w, undecided: %w", ctxErr, last)
}

func (a *appending) stored(seq uint64) Appended {
	e := a.e
	e.Seq = seq
	return Appended{Outcome: Stored, Last: e}
}

// readBack looks at what followed the fact named, after a refusal or without knowing anything. No outcome and no
// error means: publish again. An absent or older fact is a stale read, as right after an election; the fact named
// being the last means that ours did not arrive, or that what was in its way failed.
func (a *appending) readBack(ctx context.Context, refused bool) (Appended, error) {
	last, err := a.c.factOnce(ctx, msgGet{LastBy: a.filter})
	if errors.Is(err, ErrNotFound) && a.after > 0 {
		return a.empty(refused), nil
	}
	a.emptySince = time.Time{}
	switch tampered := errors.Is(err, ErrTampered); {
	case err != nil && !tampered:
		return Appended{}, a.unlessOpen(err)
	case last.Seq <= a.after:
		return Appended{}, nil
	case !tampered && sameEvent(last, a.e):
		return Appended{Stored, last}, nil
	}
	return a.compare(ctx, last, err)
}

// compare tells, when the chain has moved on to last, whether it did so by our fact.
func (a *appending) compare(ctx context.Context, last events.Event, lastErr error) (Appended, error) {
	next, err := a.c.factOnce(ctx, msgGet{NextBy: a.filter, Seq: a.after + 1})
	switch tampered := errors.Is(err, ErrTampered); {
	case err != nil && !tampered:
		return Appended{}, a.unlessOpen(err)
	case !tampered && sameEvent(next, a.e):
		return Appended{Stored, next}, nil
	case next.Carried && a.after > 0:
		copied, err := a.isCopy(ctx, next)
		if err != nil || copied {
			return Appended{}, a.unlessOpen(err)
		}
	}
	return Appended{Lost, last}, lastErr
}

// isCopy tells whether the fact that follows the one named is a carried copy of it, and if so makes it the one to
// follow. When the original is no longer there to compare with, it is not followed: the caller, who knows what it
// meant to follow, hears of the copy as the chain's last fact.
func (a *appending) isCopy(ctx context.Context, next events.Event) (bool, error) {
	named, err := a.c.factOnce(ctx, msgGet{Seq: a.after})
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrTampered):
		return false, nil
	case err != nil:
		return false, err
	case !sameEvent(named, next) || named.Place != next.Place:
		return false, nil
	}
	a.follow(next.Seq)
	return true, nil
}

// empty counts how long refusals have met a chain that shows nothing.
func (a *appending) empty(refused bool) Appended {
	switch {
	case !refused: // a time-out proves nothing
	case a.emptySince.IsZero():
		a.emptySince = time.Now()
	case time.Since(a.emptySince) >= goneTime:
		return Appended{Outcome: Gone}
	}
	return Appended{}
}

// unlessOpen drops the errors of a read that is worth another round.
func (*appending) unlessOpen(err error) error {
	if err == nil || errors.Is(err, ErrNotFound) || isOutage(err) {
		return nil
	}
	return err
}

// sameEvent tells a writer's own fact from another's. A carried copy is the same event.
func sameEvent(a, b events.Event) bool { return a.ID == b.ID && a.Source == b.Source }

func (c *Conn) factOnce(ctx context.Context, which msgGet) (events.Event, error) {
	m, err := c.getOnce(ctx, c.ns.Store(events.StreamRuns), which)
	if err != nil {
		return events.Event{}, err
	}
	return decodeFact(m)
}

// Record stores evidence that stands beside the chains (a vote, a refusal, a late outcome) once on its own subject.
// That it is already there, by whomever, is success.
func (c *Conn) Record(ctx context.Context, e events.Event) error {
	if e.Place.Chain() != e.Place.Subject() {
		return fmt.Errorf("record %s: a fact of a chain needs Append", e.Place.Subject())
	}
	_, err := c.Append(ctx, events.First(e.Place), e)
	return err
}

// Publish stores an event that no guard protects, such as a request in the inbox, and returns its sequence. It is
// tried again until it is acked, so it may be stored twice: receivers know it by its id.
func (c *Conn) Publish(ctx context.Context, subject string, e events.Event) (uint64, error) {
	msg, err := c.eventMsg(subject, e)
	if err == nil {
		err = c.checkSize(msg)
	}
	var seq uint64
	if err == nil {
		err = c.persist(ctx, func(ctx context.Context) (err error) {
			seq, err = c.publishMsg(ctx, msg)
			return err
		})
	}
	if err != nil {
		return 0, fmt.Errorf("publish %s: %w", subject, err)
	}
	return seq, nil
}

// eventMsg is an event as a message on a subject. No message has a Nats-Msg-Id: dedup says "duplicate" where a guard
// would say who won.
func (c *Conn) eventMsg(subject string, e events.Event) (*nats.Msg, error) {
	header, payload, err := events.EncodeMsg(e)
	if err != nil {
		return nil, err
	}
	return &nats.Msg{Subject: subject, Header: header, Data: payload}, nil
}

// MaxMessage is how many bytes a message may have, headers included; zero when there is no limit.
func (c *Conn) MaxMessage() int64 { return c.nc.MaxPayload() }

// checkSize refuses what the server would refuse, where the connection cannot suffer from it.
func (c *Conn) checkSize(msg *nats.Msg) error { return c.checkRoom(msg, 0) }

// checkRoom is checkSize for a message that must leave some room.
func (c *Conn) checkRoom(msg *nats.Msg, room int64) error {
	size, limit := int64(len(msg.Data)), c.nc.MaxPayload()-room
	for name, values := range msg.Header {
		for _, v := range values {
			size += int64(len(name) + len(v) + 4)
		}
	}
	const frame = 12 // "NATS/1.0" and the line ends of it and of the last header
	if size += frame; limit+room > 0 && size > limit {
		return fmt.Errorf("%w: %d bytes with headers, the server takes %d", ErrTooLarge, size, limit)
	}
	return nil
}

// publishMsg publishes once and waits for the ack.
func (c *Conn) publishMsg(ctx context.Context, msg *nats.Msg) (uint64, error) {
	reply, err := c.request(ctx, min(tryTime, c.opts.Retry), msg)
	if err != nil {
		if errors.Is(err, ErrTimeout) && ctx.Err() == nil {
			c.timedOut.Store(time.Now().UnixNano())
		}
		return 0, err
	}
	return decodeAck(reply.Data)
}

func decodeAck(data []byte) (uint64, error) {
	var ack struct {
		Error     *natsjs.APIError `json:"error"`
		Seq       uint64           `json:"seq"`
		Duplicate bool             `json:"duplicate"`
	}
	switch err := json.Unmarshal(data, &ack); {
	case err != nil:
		return 0, fmt.Errorf("%w: ack of the server: %w", ErrUnavailable, err)
	case ack.Error != nil:
		return 0, mapAPIError(ack.Error)
	case ack.Duplicate, ack.Seq == 0:
		return 0, fmt.Errorf("ack of the server: sequence %d, duplicate %v", ack.Seq, ack.Duplicate)
	}
	return ack.Seq, nil
}

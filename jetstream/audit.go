package jetstream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
)

const (
	// auditBatch is how many facts of the record are read at once.
	auditBatch = 256
	// auditPoll is how often a reader looks whether the record has caught up.
	auditPoll = 10 * time.Millisecond
	// idSlack is how far the clock of whoever made a run id may be off.
	idSlack = 24 * time.Hour
	// headerSource is where the server says which fact of which stream a copy is. It takes away what a writer has put
	// there, and puts its own behind what is left.
	headerSource = "Nats-Stream-Source"
)

// AuditQuery chooses facts of the record; the zero value chooses all of them.
type AuditQuery struct {
	From  uint64    // sequence in the record to begin at; 0 is the oldest
	Since time.Time // or the time of the record, when From is 0
	Run   string    // only of this run and those below it, with the uses of grants for their calls
}

// AuditState says what the record holds.
type AuditState struct {
	First, Last uint64    // sequences; First is beyond Last when nothing is there
	LastTime    time.Time // when the latest was stored
}

// AuditState asks the leader how far the record goes. [ErrNotFound] says that the namespace keeps none: the stream is made
// when it is asked for.
func (c *Conn) AuditState(ctx context.Context) (AuditState, error) {
	var info struct {
		State struct {
			First    uint64    `json:"first_seq"`
			Last     uint64    `json:"last_seq"`
			LastTime time.Time `json:"last_ts"`
		} `json:"state"`
	}
	err := c.persist(ctx, func(ctx context.Context) error {
		return c.call(ctx, "STREAM.INFO."+c.ns.Store(events.StreamAudit), nil, &info)
	})
	if isMissing(err) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return AuditState{}, fmt.Errorf("look at the record: %w", err)
	}
	return AuditState{First: max(info.State.First, 1), Last: info.State.Last, LastTime: info.State.LastTime}, nil
}

// AwaitAudit waits until the record has what the log has at this moment, or for so long: the server copies facts a moment
// after they were stored. A record that stays behind, and a user who may not look at the log, are no error.
func (c *Conn) AwaitAudit(ctx context.Context, limit time.Duration) error {
	if _, err := c.AuditState(ctx); err != nil {
		return err
	}
	var runs struct {
		State struct {
			Last uint64 `json:"last_seq"`
		} `json:"state"`
	}
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := c.call(wait, "STREAM.INFO."+c.ns.Store(events.StreamRuns), nil, &runs); err != nil {
		return ctx.Err()
	}
	for runs.State.Last > 0 {
		m, err := c.directGet(wait, c.ns.Store(events.StreamAudit), msgGet{LastBy: c.ns.Audit()})
		if err == nil {
			if r, err := auditRecord(m); err == nil && r.LogSeq >= runs.State.Last {
				return nil
			}
		}
		select {
		case <-wait.Done():
			return ctx.Err()
		case <-time.After(auditPoll):
		}
	}
	return nil
}

// Audit reads the record in order, up to what was stored when it began: each fact with its place in the log, and without
// the hashes, which belong to an export. It needs the rights to look at the stream and to read from any of its replicas.
// [ErrGap] comes in the place of facts from q.From on that have aged out, with the sequence at which reading goes on; any
// other error ends it, among them a copy whose origin the server does not name ([ErrTampered]).
func (c *Conn) Audit(ctx context.Context, q AuditQuery) iter.Seq2[events.Record, error] {
	return func(yield func(events.Record, error) bool) {
		r := auditReader{conn: c, query: q, yield: yield}
		if err := r.read(ctx); err != nil && !r.over {
			yield(events.Record{}, fmt.Errorf("read the record: %w", err))
		}
	}
}

type auditReader struct {
	conn  *Conn
	query AuditQuery
	yield func(events.Record, error) bool
	due   uint64 // sequence that comes next; 0 when any may
	over  bool   // the caller wants no more
	found bool   // something of the run
}

func (r *auditReader) read(ctx context.Context) error {
	state, err := r.conn.AuditState(ctx)
	if err != nil {
		return err
	}
	switch begun := begunBy(r.query.Run); {
	case r.query.From > 0:
		r.due = r.query.From
		return r.scan(ctx, state, r.from(r.query.From))
	case !r.query.Since.IsZero():
		return r.scan(ctx, state, r.since(r.query.Since))
	case !begun.IsZero():
		// The id tells when the run began, unless a clock was wrong: then the run's first fact is not found there.
		err := r.scan(ctx, state, r.since(begun.Add(-idSlack)))
		if r.found || err != nil && !errors.Is(err, errNotFirst) {
			return err
		}
		r.due = 0
		fallthrough
	default:
		return r.scan(ctx, state, r.from(state.First))
	}
}

// begunBy is about when a run began whose id Weir has made; zero for others.
func begunBy(run string) time.Time {
	root, _, _ := strings.Cut(run, "=")
	made, _ := events.TimeOfID(root)
	return made
}

// errNotFirst says that a run does not begin where its id says.
var errNotFirst = errors.New("the run began earlier")

func (r *auditReader) from(seq uint64) msgGet { return msgGet{Seq: seq, NextBy: r.conn.ns.Audit()} }

func (r *auditReader) since(t time.Time) msgGet {
	t = t.UTC()
	return msgGet{From: &t, NextBy: r.conn.ns.Audit()}
}

// scan shows what is asked for from a place on, up to the last of state.
func (r *auditReader) scan(ctx context.Context, state AuditState, next msgGet) error {
	guessed := next.From != nil && r.query.Since.IsZero()
	for next.Seq <= state.Last && state.First <= state.Last {
		batch, err := r.batch(ctx, next)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, m := range batch {
			if m.seq > state.Last || r.gap(m.seq) {
				return nil
			}
			if err := r.show(m, guessed && !r.found); err != nil || r.over {
				return err
			}
			next = r.from(m.seq + 1)
		}
	}
	return nil
}

// gap tells the caller of facts that are gone. It reports whether the caller wants no more.
func (r *auditReader) gap(seq uint64) (over bool) {
	if r.due != 0 && seq != r.due {
		r.over = !r.yield(events.Record{Seq: seq}, ErrGap)
	}
	r.due = seq + 1
	return r.over
}

// batch reads what follows. A replica that is behind has nothing yet where the leader has something, so nothing is
// concluded from that before the leader says so too.
func (r *auditReader) batch(ctx context.Context, next msgGet) (batch []directMsg, err error) {
	c := r.conn
	err = c.persist(ctx, func(ctx context.Context) error {
		batch, err = c.directBatch(ctx, c.ns.Store(events.StreamAudit), next, auditBatch)
		if len(batch) > 0 {
			return nil // what is missing comes next
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		now, err := c.AuditState(ctx)
		switch {
		case err != nil:
			return err
		case now.First > now.Last || next.From != nil && next.From.After(now.LastTime):
			return ErrNotFound // all aged out, or nothing is that young
		}
		return fmt.Errorf("%w: a replica of the record is behind", ErrUnavailable)
	})
	return batch, err
}

// show hands a fact to the caller if it is asked for. First says that it must be the first of its run.
func (r *auditReader) show(m directMsg, first bool) error {
	record, err := auditRecord(m)
	if err != nil {
		return err
	}
	if r.query.Run != "" && !r.conn.ns.FactOf(r.query.Run, record.Subject) {
		return nil
	}
	if start := r.conn.ns.Start(r.query.Run); first && record.Subject != start.Subject() {
		return errNotFirst
	}
	r.found = true
	r.over = !r.yield(record, nil)
	return nil
}

// auditRecord reads a copy of a fact. Folding its subject has not lost it: the server says in a header of its own which
// fact it is a copy of.
func auditRecord(m directMsg) (events.Record, error) {
	source := strings.Split(lastValue(m.header, headerSource), " ") // stream, sequence, filters, transforms, subject
	if len(source) < 5 {
		return events.Record{}, fmt.Errorf("%w: nobody says of which fact number %d of the record is a copy", ErrTampered, m.seq)
	}
	seq, err := strconv.ParseUint(source[1], 10, 64)
	if err != nil {
		return events.Record{}, fmt.Errorf("%w: number %d of the record is a copy of number %q", ErrTampered, m.seq, source[1])
	}
	return events.Record{
		Seq: m.seq, LogSeq: seq, Time: m.at, Subject: source[4], Event: m.data,
		Key: headerOf(m, events.HeaderKey), Sig: headerOf(m, events.HeaderSig),
		Carried: headerOf(m, events.HeaderCarried) != "",
	}, nil
}

// headerOf is a header without regard to case. Of one that stands several times, which no service writes, all values are
// kept, and no signature verifies.
func headerOf(m directMsg, name string) string {
	var all []string
	for other, values := range m.header {
		if strings.EqualFold(other, name) {
			all = append(all, values...)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

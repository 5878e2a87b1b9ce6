package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Headers of messages that are stored.
const (
	headerExpected  = "Nats-Expected-Last-Subject-Sequence"
	headerTTL       = "Nats-TTL"
	headerOperation = "KV-Operation"
	operationDelete = "DEL"
)

// markerTTL is how long the marker of a deleted key stays. Until then a writer that still believes in the key is
// refused by its revision; after that, too, because a key that is not there has revision 0.
const markerTTL = time.Minute

// directBytes bounds the messages of a batch together.
const directBytes = 1 << 20

// maxSwaps bounds the tries of a creation that meets a marker which ages out at that moment.
const maxSwaps = 4

// showTime is how long a key may take to show what a conflict told of.
const showTime = 5 * time.Second

// storeMsg publishes a message to a stream and waits until it is stored. It is tried again with the same bytes for as
// long as an append is, so after an error it is unknown whether the message is there, and after a conflict the other
// one may be this message itself.
func (c *Conn) storeMsg(ctx context.Context, msg *nats.Msg) (seq uint64, err error) {
	if err := c.checkSize(msg); err != nil {
		return 0, err
	}
	if err := c.opts.Hooks.at(BeforeStore, msg.Subject); err != nil {
		return 0, err
	}
	err = c.persist(ctx, func(ctx context.Context) error {
		for again := contention; ; {
			if seq, err = c.publishMsg(ctx, msg); !errors.Is(err, errBusy) || again.wait(ctx) != nil {
				return err
			}
		}
	})
	if err == nil {
		err = c.opts.Hooks.at(AfterStore, msg.Subject)
	}
	return seq, err
}

// directMsg is a message that a replica of a stream has sent.
type directMsg struct {
	subject string
	seq     uint64
	header  nats.Header
	data    []byte
	at      time.Time
}

// directGet reads a message from any replica of a stream: what was acknowledged before may not be seen yet. It is for
// what never changes and for readers who come again.
func (c *Conn) directGet(ctx context.Context, stream string, which msgGet) (directMsg, error) {
	body, err := json.Marshal(which)
	if err != nil {
		return directMsg{}, fmt.Errorf("encode request: %w", err)
	}
	msg := nats.NewMsg(c.api + "DIRECT.GET." + stream)
	msg.Data = body
	reply, err := c.request(ctx, readTime, msg)
	if err != nil {
		return directMsg{}, err
	}
	return parseDirect(reply)
}

// directBatch reads the messages of a subject from a sequence on, so many at most; fewer say that there are no more, or
// that they are large. It is cheaper than one by one for who is far behind.
func (c *Conn) directBatch(ctx context.Context, stream string, which msgGet, limit int) ([]directMsg, error) {
	body, err := json.Marshal(struct {
		msgGet
		Batch    int `json:"batch"`
		MaxBytes int `json:"max_bytes"`
	}{which, limit, directBytes})
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	inbox := c.nc.NewInbox()
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, mapError(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // of a closed connection: nothing is left
	subject := c.api + "DIRECT.GET." + stream
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	ctx, done := c.under(ctx, subject)
	all, err := collect(ctx, sub, c.nc.PublishRequest(subject, inbox, body))
	return all, done(err)
}

// collect takes the messages of a batch, until its end or until one is missing.
func collect(ctx context.Context, sub *nats.Subscription, err error) ([]directMsg, error) {
	var all []directMsg
	for last := uint64(0); err == nil; {
		var msg *nats.Msg
		if msg, err = sub.NextMsgWithContext(ctx); err != nil {
			break
		}
		if msg.Header.Get("Status") == "204" && lastValue(msg.Header, "Nats-Sequence") == "" {
			return all, nil
		}
		var m directMsg
		if m, err = parseDirect(msg); err != nil {
			break
		}
		if lastValue(msg.Header, "Nats-Last-Sequence") != strconv.FormatUint(last, 10) {
			return all, nil // the reader goes on from there
		}
		all, last = append(all, m), m.seq
	}
	return all, err
}

// parseDirect reads what the server has added to a message that it sends from a stream. The writer of the message may
// have put headers of the same names before them, so the last one of a name counts, and a status counts only without a
// sequence.
func parseDirect(msg *nats.Msg) (directMsg, error) {
	number := lastValue(msg.Header, "Nats-Sequence")
	if status := msg.Header.Get("Status"); number == "" && status != "" {
		if status == "404" {
			return directMsg{}, ErrNotFound
		}
		return directMsg{}, fmt.Errorf("%w: direct get: %s %s", ErrUnavailable, status, msg.Header.Get("Description"))
	}
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return directMsg{}, fmt.Errorf("%w: direct get: no sequence in the answer", ErrUnavailable)
	}
	at, err := time.Parse(time.RFC3339Nano, lastValue(msg.Header, "Nats-Time-Stamp"))
	if err != nil {
		return directMsg{}, fmt.Errorf("%w: direct get: no time stamp in the answer", ErrUnavailable)
	}
	return directMsg{subject: lastValue(msg.Header, "Nats-Subject"), seq: seq, header: msg.Header, data: msg.Data, at: at.UTC()}, nil
}

func lastValue(h nats.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

// subjectsOf lists the subjects of a stream that match a filter, as the leader knows them, sorted. It needs no
// consumer and no message is read.
func (c *Conn) subjectsOf(ctx context.Context, stream, filter string) ([]string, error) {
	var all []string
	for {
		request := map[string]any{"subjects_filter": filter, "offset": len(all)}
		var answer struct {
			Total int `json:"total"`
			State struct {
				Subjects map[string]uint64 `json:"subjects"`
			} `json:"state"`
		}
		if err := c.call(ctx, "STREAM.INFO."+stream, request, &answer); err != nil {
			return nil, err
		}
		for subject := range answer.State.Subjects {
			all = append(all, subject)
		}
		if len(answer.State.Subjects) == 0 || len(all) >= answer.Total {
			slices.Sort(all)
			return slices.Compact(all), nil
		}
	}
}

// A bucket is a stream in the layout of a key-value bucket: the last message of a subject is the value of a key. It is
// always read from the leader.
type bucket struct {
	conn   *Conn
	stream string
	prefix string // of the subjects
}

func (c *Conn) bucket(name string) bucket {
	store := c.ns.Store(name)
	return bucket{conn: c, stream: "KV_" + store, prefix: "$KV." + store + "."}
}

// entry is the value of a key. The revision is the sequence of its message.
type entry struct {
	value  []byte
	header nats.Header
	rev    uint64
	gone   bool // a marker that the key was deleted
	at     time.Time
}

// get reads a key; [ErrNotFound] when it is not there, with the marker's revision when it was deleted.
func (b bucket) get(ctx context.Context, key string) (entry, error) {
	m, err := b.conn.get(ctx, b.stream, msgGet{LastBy: b.prefix + key})
	if err != nil {
		return entry{}, err
	}
	header, err := m.header()
	if err != nil {
		return entry{}, fmt.Errorf("headers of key %s: %w", key, err)
	}
	e := entry{value: m.Data, header: header, rev: m.Seq, gone: header.Get(headerOperation) != "", at: m.Time}
	if e.gone {
		return e, fmt.Errorf("%w: deleted", ErrNotFound)
	}
	return e, nil
}

// put stores a value whatever stood there before; with a ttl above zero the server takes it away again.
func (b bucket) put(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	msg := nats.NewMsg(b.prefix + key)
	msg.Data = value
	if ttl > 0 {
		msg.Header.Set(headerTTL, ttl.String())
	}
	return b.conn.storeMsg(ctx, msg)
}

// swap stores a value only if the key's revision is prev, 0 for a key that is not there.
func (b bucket) swap(ctx context.Context, key string, value []byte, prev uint64) (uint64, error) {
	msg := nats.NewMsg(b.prefix + key)
	msg.Data = value
	return b.swapMsg(ctx, msg, prev)
}

// swapMsg is swap for a value with headers.
func (b bucket) swapMsg(ctx context.Context, msg *nats.Msg, prev uint64) (uint64, error) {
	msg.Header.Set(headerExpected, strconv.FormatUint(prev, 10))
	return b.conn.storeMsg(ctx, msg)
}

// replace stores a message under a key whose revision is prev, 0 for one that is not there. A conflict may be with ourselves
// after a lost reply, which ours tells by what stands there, or with the marker of a deletion, which a creation may
// follow. After [ErrConflict] every read shows what was in the way.
func (b bucket) replace(ctx context.Context, key string, msg *nats.Msg, prev uint64, ours func(entry) bool) (uint64, error) {
	msg.Subject = b.prefix + key
	if msg.Header == nil {
		msg.Header = nats.Header{}
	}
	guard := prev
	for range maxSwaps {
		rev, err := b.swapMsg(ctx, msg, guard)
		if !errors.Is(err, ErrConflict) {
			return rev, err
		}
		now, err := b.changed(ctx, key, guard)
		switch {
		case err == nil && ours(now):
			return now.rev, nil
		case err == nil || prev != 0:
			return 0, fmt.Errorf("%w: the entry has another revision than %d", ErrConflict, prev)
		case !errors.Is(err, ErrNotFound):
			return 0, err
		}
		guard = now.rev // of the marker, or 0
	}
	return 0, ErrConflict
}

// remove puts the marker of a deletion in the place of a value, if the revision is prev; 0 removes any value.
func (b bucket) remove(ctx context.Context, key string, prev uint64) error {
	msg := nats.NewMsg(b.prefix + key)
	msg.Header.Set(headerOperation, operationDelete)
	msg.Header.Set(headerTTL, markerTTL.String())
	if prev > 0 {
		msg.Header.Set(headerExpected, strconv.FormatUint(prev, 10))
	}
	_, err := b.conn.storeMsg(ctx, msg)
	return err
}

// keys lists the keys that match a filter, deleted ones among them until their markers are gone.
func (b bucket) keys(ctx context.Context, filter string) ([]string, error) {
	subjects, err := b.conn.subjectsOf(ctx, b.stream, b.prefix+filter)
	if err != nil {
		return nil, err
	}
	for i, s := range subjects {
		subjects[i] = strings.TrimPrefix(s, b.prefix)
	}
	return subjects, nil
}

// changed reads a key after a conflict until it has another revision than prev: the leader that refused knows better
// than a replica that has just become the leader.
func (b bucket) changed(ctx context.Context, key string, prev uint64) (entry, error) {
	ctx, cancel := context.WithTimeout(ctx, showTime)
	defer cancel()
	for again := contention; ; {
		e, err := b.get(ctx, key)
		switch {
		case errors.Is(err, ErrNotFound) && (e.rev != prev || prev == 0), err == nil && e.rev != prev:
			return e, err
		case err != nil && !errors.Is(err, ErrNotFound):
			return e, err
		}
		if again.wait(ctx) != nil {
			return e, fmt.Errorf("%w: the key does not show what changed it", ErrTimeout)
		}
	}
}

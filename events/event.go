package events

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// An Event is one CloudEvent of Weir: the attributes of the specification, Weir's extensions, the data, and, when it
// came from the log, its place there.
type Event struct {
	ID      string // UUIDv7 of the writer; with Source unique, so a writer knows its own fact again
	Type    string
	Source  string
	Subject string // run id
	Time    time.Time

	PartitionKey  string // run id
	CorrelationID string // root run id
	CausationID   string // id of the event that led to this one
	TraceParent   string // W3C trace context
	ExpiryTime    time.Time
	AuthID        string // who decided, and
	AuthType      string // how it was verified
	DataRef       string // digest of a blob
	Extensions    map[string]any

	Data json.RawMessage

	// Payload is the structured JSON form exactly as it is published, stored and signed. It is built once and never
	// encoded again. Chunks, which travel in binary mode, have none.
	Payload []byte
	// Signature covers domain, stored subject and Payload; zero when the event is not signed.
	Signature Signature
	// Carried marks a copy that was stored again before the original ages out.
	Carried bool

	// Place is where a fact stands, or will stand once it is appended.
	Place Place
	// Seq is the sequence of a stored event and Stored the server's time stamp; zero before.
	Seq    uint64
	Stored time.Time
}

// Signature is an Ed25519 signature with the public key that made it, as headers carry them.
type Signature struct {
	Key string `json:"key"` // public key in nkey text form
	Sig string `json:"sig"` // base64url without padding
}

// Names of the headers that go with an event.
const (
	HeaderKey     = "weir-key"
	HeaderSig     = "weir-sig"
	HeaderCarried = "weir-carried"
)

// A Key signs events.
type Key struct {
	Public  string // nkey text form, "U…"
	Private ed25519.PrivateKey
}

// NewID makes a UUIDv7: 48 bits of milliseconds, then random bits (RFC 9562, section 5.7).
func NewID(now time.Time) string {
	var u [16]byte
	_, _ = rand.Read(u[6:])                                         // never fails
	binary.BigEndian.PutUint32(u[0:4], uint32(now.UnixMilli()>>16)) //nolint:gosec // the upper 32 of 48 bits
	binary.BigEndian.PutUint16(u[4:6], uint16(now.UnixMilli()))     //nolint:gosec // the lower 16 of 48 bits
	return uuid(u, 7)
}

// TimeOfID is when an id was made that is a UUIDv7, by the clock of whoever made it. Ids from outside have none.
func TimeOfID(id string) (made time.Time, ok bool) {
	const length = 36
	if len(id) != length || id[14] != '7' {
		return made, false
	}
	ms, err := strconv.ParseUint(id[:8]+id[9:13], 16, 48)
	if err != nil {
		return made, false
	}
	return time.UnixMilli(int64(ms)), true
}

// uuid is the text of a UUID of this version.
func uuid(u [16]byte, version byte) string {
	u[6] = u[6]&0x0f | version<<4
	u[8] = u[8]&0x3f | 0x80
	var s [36]byte
	hex.Encode(s[0:8], u[0:4])
	hex.Encode(s[9:13], u[4:6])
	hex.Encode(s[14:18], u[6:8])
	hex.Encode(s[19:23], u[8:10])
	hex.Encode(s[24:36], u[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// An Origin makes the events of one service process.
type Origin struct {
	Namespace Namespace
	Service   string           // "planner", "approval", "tool-executor", "gateway", "client"
	Key       *Key             // signs asks, answers, releases and votes; nil elsewhere
	Now       func() time.Time // nil means time.Now
}

func (o *Origin) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

// Fact makes the event of a fact at its place, caused by another event (the zero Event for none), checks its data
// against the schema of its type, encodes and, where the type demands it, signs it.
func (o *Origin) Fact(p Place, data any, cause Event) (Event, error) {
	row, ok := rowOf(data)
	if !ok {
		return Event{}, fmt.Errorf("%T is not the data of an event", data)
	}
	e := o.blank(row, p.Run, cause)
	e.Place = p
	return o.seal(e, row, data, p.Subject())
}

// Carry makes the copy of a stored fact that is to be stored again before it ages out, with more in its data: the same
// event, signed again.
func (o *Origin) Carry(fact Event, data any) (Event, error) {
	row, ok := rowOf(data)
	if !ok || row.Type != fact.Type {
		return Event{}, fmt.Errorf("%T is not the data of %s", data, fact.Type)
	}
	again := fact
	again.Seq, again.Stored, again.Carried, again.Signature = 0, time.Time{}, true, Signature{}
	return o.seal(again, row, data, fact.Place.Subject())
}

// Request makes an event that is published to subject, for the inbox, notes and timers.
func (o *Origin) Request(subject, run string, data any, cause Event) (Event, error) {
	row, ok := rowOf(data)
	if !ok {
		return Event{}, fmt.Errorf("%T is not the data of an event", data)
	}
	return o.seal(o.blank(row, run, cause), row, data, subject)
}

func (o *Origin) blank(row *Row, run string, cause Event) Event {
	now := o.now().UTC()
	e := Event{
		ID: NewID(now), Type: row.Type, Source: "/weir/" + string(o.Namespace) + "/" + o.Service,
		Subject: run, Time: now, PartitionKey: run, CorrelationID: rootOf(run),
		CausationID: cause.ID, TraceParent: cause.TraceParent,
	}
	return e
}

// rootOf is the run at the top: what stands before the first "=" of a run id.
func rootOf(run string) string {
	for i := range len(run) {
		if run[i] == '=' {
			return run[:i]
		}
	}
	return run
}

func (o *Origin) seal(e Event, row *Row, data any, subject string) (Event, error) {
	raw, err := Marshal(data)
	if err != nil {
		return Event{}, fmt.Errorf("encode data of %s: %w", row.Type, err)
	}
	e.Data = raw
	if x, ok := data.(interface{ expiry() time.Time }); ok {
		e.ExpiryTime = x.expiry()
	}
	if x, ok := data.(interface{ ref() string }); ok {
		e.DataRef = x.ref()
	}
	if x, ok := data.(interface{ auth() (id, kind string) }); ok {
		e.AuthID, e.AuthType = x.auth()
	}
	if err := validateData(row, raw); err != nil {
		return Event{}, err
	}
	if e.Payload, err = Encode(e); err != nil {
		return Event{}, err
	}
	if row.Domain != "" && o.Key != nil {
		e.Signature = Sign(*o.Key, row.Domain, subject, e.Payload)
	}
	return e, nil
}

// Marshal encodes a value as JSON without escaping <, > and &, so that what people read is what was written.
func Marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// Data reads the data of an event as T, numbers in untyped places as [json.Number].
func Data[T any](e Event) (T, error) {
	var v T
	dec := json.NewDecoder(bytes.NewReader(e.Data))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return v, fmt.Errorf("data of %s %s: %w", e.Type, e.ID, err)
	}
	return v, nil
}

// RequestBy is [Origin.Request] for a request whose sender names itself (authid), as decisions must.
func (o *Origin) RequestBy(subject, run, principal string, data any) (Event, error) {
	row, ok := rowOf(data)
	if !ok {
		return Event{}, fmt.Errorf("%T is not the data of an event", data)
	}
	e := o.blank(row, run, Event{})
	e.AuthID = principal
	return o.seal(e, row, data, subject)
}

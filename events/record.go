package events

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// RecordDomain begins what the hash of a record covers.
const RecordDomain = "weir.audit.v1"

// NoRecord is what the first record of a chain names as the hash before it.
var NoRecord = strings.Repeat("0", 2*sha256.Size)

// Record is a fact of the record (stream audit) as an export holds it, one JSON object a line:
//
//	{"seq", "logSeq", "time", "subject", "carried", "key", "sig", "event", "prev", "hash"}
//
// Each names the hash of the one before, so nothing can be taken out, put in or changed without the hashes after it being
// made anew. Hash is the lower-case hex form of SHA-256 over these parts, each preceded by its length in bytes in decimal
// digits and a colon, so that no two lists of parts give the same bytes:
//
//	weir.audit.v1, prev, seq, logSeq, time, subject, carried ("true" or ""), key, sig, event
//
// with the values as they stand in the line: numbers in decimal digits, the time as text, the event as its bytes. The last
// hash is all that has to be kept elsewhere: whoever has it can prove everything before it.
type Record struct {
	Seq     uint64    // in the stream audit
	LogSeq  uint64    // that the fact had in the log: what answers and releases refer to
	Time    time.Time // the server's stamp in the stream audit
	Subject string    // stored subject of the fact in the log, which its signature covers
	Carried bool      // the fact, stored again before it aged out
	Key     string    // of the signature, when there is one
	Sig     string
	Event   []byte // exactly as stored, which is what was signed
	Prev    string // hash of the record before, NoRecord for none
	Hash    string
}

// recordLine is a record as JSON. A body that is not text stands as base64.
type recordLine struct {
	Seq     uint64    `json:"seq"`
	LogSeq  uint64    `json:"logSeq"`
	Time    time.Time `json:"time"`
	Subject string    `json:"subject"`
	Carried bool      `json:"carried,omitempty"`
	Key     string    `json:"key,omitempty"`
	Sig     string    `json:"sig,omitempty"`
	Event   *string   `json:"event,omitempty"`
	Base64  []byte    `json:"eventBase64,omitempty"`
	Prev    string    `json:"prev"`
	Hash    string    `json:"hash"`
}

// Seal makes the record the one that follows prev, the hash of the record before it.
func (r *Record) Seal(prev string) {
	r.Prev = prev
	r.Hash = r.hashAfter(prev)
}

// Sealed reports whether the record is what its hash was made of.
func (r Record) Sealed() bool { return SameDigest(r.Hash, r.hashAfter(r.Prev)) }

func (r Record) hashAfter(prev string) string {
	carried := ""
	if r.Carried {
		carried = "true"
	}
	h := sha256.New()
	for _, part := range [...]string{
		RecordDomain, prev, strconv.FormatUint(r.Seq, 10), strconv.FormatUint(r.LogSeq, 10), formatTime(r.Time), r.Subject,
		carried, r.Key, r.Sig, string(r.Event),
	} {
		_, _ = h.Write(strconv.AppendInt(nil, int64(len(part)), 10)) // never fails
		_, _ = h.Write([]byte{':'})
		_, _ = h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// MarshalJSON writes the record as a line of an export, without the line's end.
func (r Record) MarshalJSON() ([]byte, error) {
	line := recordLine{
		Seq: r.Seq, LogSeq: r.LogSeq, Time: r.Time.UTC(), Subject: r.Subject, Carried: r.Carried, Key: r.Key, Sig: r.Sig,
		Prev: r.Prev, Hash: r.Hash,
	}
	if text := string(r.Event); utf8.ValidString(text) {
		line.Event = &text
	} else {
		line.Base64 = r.Event
	}
	return Marshal(line)
}

// ErrBadRecord says that a line is not a record as an export writes one.
var ErrBadRecord = errors.New("not a record of an export")

// ParseRecord reads a line of an export. The line must be byte for byte what an export writes for this record, so that
// nothing stands in it that the hash does not cover.
func ParseRecord(line []byte) (Record, error) {
	var l recordLine
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	r := Record{
		Seq: l.Seq, LogSeq: l.LogSeq, Time: l.Time, Subject: l.Subject, Carried: l.Carried, Key: l.Key, Sig: l.Sig,
		Event: l.Base64, Prev: l.Prev, Hash: l.Hash,
	}
	if l.Event != nil {
		r.Event = []byte(*l.Event)
	}
	again, err := Marshal(r)
	if err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	if !bytes.Equal(again, line) {
		return Record{}, fmt.Errorf("%w: it is not written as an export writes it", ErrBadRecord)
	}
	return r, nil
}

// Decode reads the fact of the record, with its place, its sequence in the log and its signature. What is not the event
// that its place calls for is an error: a fact that no service of Weir wrote.
func (r Record) Decode() (Event, error) {
	place, err := ParsePlace(r.Subject)
	if err != nil {
		return Event{}, err
	}
	e, err := Decode(r.Event)
	if err != nil {
		return Event{}, err
	}
	e.Place, e.Seq, e.Stored = place, r.LogSeq, r.Time
	e.Signature, e.Carried = Signature{Key: r.Key, Sig: r.Sig}, r.Carried
	if e.Subject != place.Run {
		return Event{}, badEvent("event of run %s in the chain of run %s", e.Subject, place.Run)
	}
	return e, nil
}

// CloudEvent is the fact as a CloudEvent on one line, for systems that read those: its own attributes and data, with the
// place in the record as the extensions auditseq, audittime and logsubject. Unlike [Record.Event] it is not what was
// signed.
func (r Record) CloudEvent() ([]byte, error) {
	e, err := Decode(r.Event)
	if err != nil {
		return nil, err
	}
	for name, v := range map[string]string{
		"auditseq": strconv.FormatUint(r.Seq, 10), "audittime": formatTime(r.Time), "logsubject": r.Subject,
	} {
		e.setExtension(name, v)
	}
	var b bytes.Buffer
	raw, err := Encode(e)
	if err == nil {
		err = json.Compact(&b, raw) // who wrote the event may have written it on several lines
	}
	if err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

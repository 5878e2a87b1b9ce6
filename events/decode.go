package events

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	cetypes "github.com/cloudevents/sdk-go/v2/types"
)

// Decode reads the structured JSON form of an event. The event keeps payload, and its data is a part of it: neither
// may be changed afterwards. The whole text is read strictly (see [CheckJSON]), so that nobody can understand the
// same bytes differently; whether the data fits its schema is the question of [ValidateData].
func Decode(payload []byte) (Event, error) {
	d := decoder{scanner: scanner{b: payload, depth: maxEventDepth}}
	defer d.borrow()()
	d.e.Payload = payload
	err := d.only(func() error {
		if d.peek() != '{' {
			return d.unexpected("an object")
		}
		return d.object(d.member)
	})
	if err != nil {
		return Event{}, badEvent("%w", err)
	}
	if d.version != specVersion {
		return Event{}, badEvent("specversion %q, want %q", d.version, specVersion)
	}
	if err := d.e.check(); err != nil {
		return Event{}, err
	}
	return d.e, nil
}

type decoder struct {
	scanner
	e       Event
	version string
	hasData bool
}

// member takes one attribute, extension or the data of the envelope.
func (d *decoder) member(key text) error {
	start := d.i
	switch string(key.raw) {
	case "data":
		return d.data(start)
	case "data_base64":
		return d.base64()
	}
	if d.peek() != '"' {
		return d.plain(key, start)
	}
	t, err := d.str()
	if err != nil {
		return err
	}
	return d.set(nameOf(key), d.intern(t))
}

// nameOf avoids a copy of the names that every event has.
func nameOf(key text) string {
	if i := slices.Index(ownNames[:], string(key.raw)); i >= 0 {
		return ownNames[i]
	}
	return key.String()
}

// intern avoids copies of texts that are known or repeat within an event: its type, and the run.
func (d *decoder) intern(t text) string {
	if row, ok := rowsByType[string(t.raw)]; ok {
		return row.Type
	}
	if string(t.raw) == d.e.Subject {
		return d.e.Subject
	}
	return t.String()
}

func (d *decoder) data(start int) error {
	if d.hasData {
		return d.fail(start, "data and data_base64 together")
	}
	d.hasData = true
	if err := d.value(); err != nil {
		return err
	}
	d.e.Data = d.b[start:d.i]
	return nil
}

// base64 takes JSON that a foreign writer has packed as bytes.
func (d *decoder) base64() error {
	start := d.i
	if d.hasData {
		return d.fail(start, "data and data_base64 together")
	}
	if d.peek() != '"' {
		return d.unexpected("a string")
	}
	t, err := d.str()
	if err != nil {
		return err
	}
	raw, err := base64.StdEncoding.DecodeString(t.String())
	if err != nil {
		return d.fail(start, "malformed base64")
	}
	if err := checkJSON(raw, maxEventDepth); err != nil {
		return err
	}
	d.e.Data, d.hasData = raw, true
	return nil
}

// plain takes an extension that is a boolean or an integer. Null counts as absent.
func (d *decoder) plain(key text, start int) error {
	if c := d.peek(); c == '{' || c == '[' {
		return d.fail(start, "attribute %q is not a text, boolean or integer", key.String())
	}
	if err := d.scalar(); err != nil {
		return err
	}
	name, raw := key.String(), string(d.b[start:d.i])
	if raw == "null" {
		return nil
	}
	if err := checkName(name); err != nil {
		return d.fail(start, "attribute %q: not a text, or %s", name, err)
	}
	if raw == "true" || raw == "false" {
		d.e.setExtension(name, raw == "true")
		return nil
	}
	n, err := strconv.ParseInt(raw, 10, 32)
	if err != nil {
		return d.fail(start, "attribute %q: %s is not a 32-bit integer", name, raw)
	}
	d.e.setExtension(name, int32(n))
	return nil
}

func (d *decoder) set(name, v string) error {
	if name == "specversion" {
		d.version = v
		return nil
	}
	return d.e.setAttribute(name, v)
}

// setAttribute takes one attribute or extension in text form.
func (e *Event) setAttribute(name, v string) error {
	var err error
	switch name {
	case "id":
		e.ID = v
	case "type":
		e.Type = v
	case "source":
		e.Source = v
	case "subject":
		e.Subject = v
		if strings.TrimSpace(v) == "" {
			err = errors.New("must not be empty")
		}
	case "time":
		e.Time, err = parseTime(v)
	case "datacontenttype":
		err = checkMedia(v)
	case "dataschema": // Weir's types name their schemas
	case extPartitionKey:
		e.PartitionKey = v
	case extCorrelationID:
		e.CorrelationID = v
	case extCausationID:
		e.CausationID = v
	case extTraceParent:
		e.TraceParent = v
	case extExpiryTime:
		e.ExpiryTime, err = parseTime(v)
	case extAuthID:
		e.AuthID = v
	case extAuthType:
		e.AuthType = v
	case extDataRef:
		e.DataRef = v
	default:
		if err = checkName(name); err == nil {
			e.setExtension(name, v)
		}
	}
	if err != nil {
		return badEvent("attribute %q: %w", name, err)
	}
	return nil
}

func (e *Event) setExtension(name string, v any) {
	if e.Extensions == nil {
		e.Extensions = map[string]any{}
	}
	e.Extensions[name] = v
}

// ExtensionInt is an integer extension, which structured events hold as a number and headers as text.
func (e Event) ExtensionInt(name string) (int32, bool) {
	v, ok := e.Extensions[name]
	if !ok {
		return 0, false
	}
	n, err := cetypes.ToInteger(v)
	return n, err == nil
}

func parseTime(s string) (time.Time, error) {
	var t time.Time
	if err := t.UnmarshalText([]byte(s)); err != nil { // stricter than time.Parse
		return time.Time{}, errors.New("not a time of RFC 3339")
	}
	return t.UTC(), nil
}

// checkMedia accepts JSON as the media type of the data.
func checkMedia(v string) error {
	base, _, _ := strings.Cut(v, ";")
	base = strings.ToLower(strings.TrimSpace(base))
	if base == mediaJSON || strings.HasPrefix(base, "application/") && strings.HasSuffix(base, "+json") {
		return nil
	}
	return errors.New("data must be JSON")
}

// DecodeMsg reads an event from a NATS message. Its content type says in which mode it travels: application/cloudevents
// means structured, anything else binary. A message that shows both modes, or neither, and a batch are refused. The
// headers of the server (Nats-…) are ignored; see [Foreign] for messages from outside. Place, Seq and Stored are the
// reader's to fill.
func DecodeMsg(header map[string][]string, payload []byte) (Event, error) {
	h, err := readHeader(header)
	if err != nil {
		return Event{}, badEvent("%w", err)
	}
	var e Event
	switch {
	case h.structured && len(h.attributes) > 0:
		return Event{}, badEvent("structured content type together with ce- headers")
	case h.structured:
		e, err = Decode(payload)
	default:
		e, err = decodeBinary(h.attributes, payload)
	}
	if err != nil {
		return Event{}, err
	}
	e.Signature, e.Carried = h.signature, h.carried
	return e, nil
}

func decodeBinary(attributes []attribute, payload []byte) (Event, error) {
	var e Event
	version := ""
	for _, a := range attributes {
		if a.name == "specversion" {
			version = a.value
			continue
		}
		if err := e.setAttribute(a.name, a.value); err != nil {
			return Event{}, err
		}
	}
	if version != specVersion {
		return Event{}, badEvent("neither structured nor binary: no ce-specversion %s", specVersion)
	}
	if err := e.check(); err != nil {
		return Event{}, err
	}
	if len(payload) > 0 {
		if err := checkJSON(payload, maxEventDepth); err != nil {
			return Event{}, badEvent("data of %s: %w", e.Type, err)
		}
		e.Data = json.RawMessage(payload)
	}
	return e, nil
}

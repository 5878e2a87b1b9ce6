package events

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	ce "github.com/cloudevents/sdk-go/v2/event"
	cetypes "github.com/cloudevents/sdk-go/v2/types"
)

const (
	specVersion    = "1.0"
	mediaJSON      = "application/json"
	mediaEventJSON = "application/cloudevents+json"
	maxNameLength  = 20
)

// Names of the extensions that Weir's events have.
const (
	extPartitionKey  = "partitionkey"
	extCorrelationID = "correlationid"
	extCausationID   = "causationid"
	extTraceParent   = "traceparent"
	extExpiryTime    = "expirytime"
	extAuthID        = "authid"
	extAuthType      = "authtype"
	extDataRef       = "dataref"
)

// ownNames are the members of an envelope that are not for other extensions to use.
var ownNames = [...]string{
	"specversion", "id", "source", "type", "subject", "time", "datacontenttype", extPartitionKey, extCorrelationID,
	extCausationID, extTraceParent, extExpiryTime, extAuthID, extAuthType, extDataRef, "dataschema", "data",
}

// ErrBadEvent says that something is not a CloudEvent as Weir takes it.
var ErrBadEvent = errors.New("not a valid event")

func badEvent(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrBadEvent, fmt.Errorf(format, args...))
}

// Encode is the structured JSON form of an event, checked against the rules of CloudEvents 1.0. The data stands in it
// byte for byte, and last. The envelope is written by hand: it is on the path of every fact.
func Encode(e Event) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	if len(e.Data) > 0 {
		if err := checkJSON(e.Data, maxEventDepth); err != nil {
			return nil, badEvent("data of %s: %w", e.Type, err)
		}
	}
	b := make([]byte, 0, 768+len(e.Data))
	b = append(b, `{"specversion":"1.0"`...)
	for name, v := range e.attributes {
		b = append(appendName(b, name), ':')
		b = appendQuoted(b, v)
	}
	b = append(b, `,"datacontenttype":"application/json"`...)
	for _, name := range sortedNames(e.Extensions) {
		b = append(appendName(b, name), ':')
		b = appendExtension(b, e.Extensions[name])
	}
	if len(e.Data) > 0 {
		b = append(b, `,"data":`...)
		b = append(b, e.Data...)
	}
	return append(b, '}'), nil
}

func appendName(b []byte, name string) []byte { return appendQuoted(append(b, ','), name) }

// attributes yields every attribute and extension of Weir's own that the event has, as text, in a fixed order.
func (e *Event) attributes(yield func(name, value string) bool) {
	var stamp [2]string
	if !e.Time.IsZero() {
		stamp[0] = formatTime(e.Time)
	}
	if !e.ExpiryTime.IsZero() {
		stamp[1] = formatTime(e.ExpiryTime)
	}
	for _, a := range [...]struct{ name, value string }{
		{"id", e.ID},
		{"source", e.Source},
		{"type", e.Type},
		{"subject", e.Subject},
		{"time", stamp[0]},
		{extPartitionKey, e.PartitionKey},
		{extCorrelationID, e.CorrelationID},
		{extCausationID, e.CausationID},
		{extTraceParent, e.TraceParent},
		{extExpiryTime, stamp[1]},
		{extAuthID, e.AuthID},
		{extAuthType, e.AuthType},
		{extDataRef, e.DataRef},
	} {
		if a.value != "" && !yield(a.name, a.value) {
			return
		}
	}
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func sortedNames(m map[string]any) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

func appendExtension(b []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		return strconv.AppendBool(b, v)
	case int32:
		return strconv.AppendInt(b, int64(v), 10)
	case string:
		return appendQuoted(b, v)
	}
	return append(b, "null"...) // excluded by check
}

// check holds the event against CloudEvents 1.0, by the rules of the official SDK for the context and by ours for
// what it leaves open: texts are valid UTF-8 without control characters, names of extensions are [a-z0-9]{1,20}.
func (e *Event) check() error {
	source, err := url.Parse(e.Source)
	if err != nil {
		return badEvent("source %q is no URI reference", e.Source)
	}
	c := ce.EventContextV1{ID: e.ID, Type: e.Type, Source: cetypes.URIRef{URL: *source}}
	if e.Subject != "" {
		c.Subject = &e.Subject
	}
	if errs := c.Validate(); len(errs) > 0 {
		return badEvent("%s %s: %w", e.Type, e.ID, errs)
	}
	for _, v := range [...]string{
		e.ID, e.Source, e.Type, e.Subject, e.PartitionKey, e.CorrelationID, e.CausationID,
		e.TraceParent, e.AuthID, e.AuthType, e.DataRef,
	} {
		if !cleanText(v) {
			return badEvent("attribute %q: %w", v, errText)
		}
	}
	for name, v := range e.Extensions {
		if err := checkExtension(name, v); err != nil {
			return badEvent("extension %q: %w", name, err)
		}
	}
	for _, t := range [...]time.Time{e.Time, e.ExpiryTime} {
		if y := t.UTC().Year(); y < 0 || y > 9999 {
			return badEvent("year %d cannot be written", y)
		}
	}
	return nil
}

var errText = errors.New("not valid text: UTF-8 without control characters is needed")

func checkExtension(name string, v any) error {
	if err := checkName(name); err != nil {
		return err
	}
	switch v := v.(type) {
	case bool, int32:
		return nil
	case string:
		if !cleanText(v) {
			return errText
		}
		return nil
	}
	return fmt.Errorf("a value of type %T is not a boolean, a 32-bit integer or a text", v)
}

// checkName accepts the name of an extension that is not one of the attributes of an event of Weir.
func checkName(name string) error {
	if !validName(name) {
		return fmt.Errorf("a name has 1 to %d of a-z and 0-9", maxNameLength)
	}
	if slices.Contains(ownNames[:], name) {
		return errors.New("the name is taken")
	}
	return nil
}

func validName(name string) bool {
	if name == "" || len(name) > maxNameLength {
		return false
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// cleanText reports whether s may be the value of an attribute.
func cleanText(s string) bool {
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if c < ' ' || c == 0x7f {
				return false
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r < 0xa0 {
			return false
		}
		i += n
	}
	return true
}

// EncodeMsg is an event as a NATS message: headers in lower case, and the payload. Chunks travel in binary mode, all
// else in structured mode, with its signature and, for a copy that was carried, the mark of it. A payload that was
// built before is used as it is, because it is what was signed.
func EncodeMsg(e Event) (header map[string][]string, payload []byte, err error) {
	if row, ok := RowOf(e.Type); ok && row.Mode == Binary {
		return encodeBinary(&e)
	}
	payload = e.Payload
	if payload == nil {
		if payload, err = Encode(e); err != nil {
			return nil, nil, err
		}
	}
	header = map[string][]string{headerContentType: {mediaEventJSON}}
	if e.Signature != (Signature{}) {
		header[HeaderKey] = []string{e.Signature.Key}
		header[HeaderSig] = []string{e.Signature.Sig}
	}
	if e.Carried {
		header[HeaderCarried] = []string{"true"}
	}
	return header, payload, nil
}

func encodeBinary(e *Event) (header map[string][]string, payload []byte, err error) {
	if err := e.check(); err != nil {
		return nil, nil, err
	}
	if err := checkJSON(e.Data, maxEventDepth); err != nil {
		return nil, nil, badEvent("data of %s: %w", e.Type, err)
	}
	header = make(map[string][]string, 16)
	set := func(name, v string) { header[headerPrefix+name] = []string{percentEncode(v)} }
	set("specversion", specVersion)
	for name, v := range e.attributes {
		set(name, v)
	}
	set("datacontenttype", mediaJSON)
	for name, v := range e.Extensions {
		text, err := cetypes.Format(v)
		if err != nil {
			return nil, nil, badEvent("extension %q: %w", name, err)
		}
		set(name, text)
	}
	return header, e.Data, nil
}

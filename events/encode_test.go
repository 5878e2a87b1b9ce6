package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
)

func fullEvent() Event {
	return Event{
		ID: "0197c3a4-0000-7000-8000-000000000001", Type: TypeOf[CallClaimed](),
		Source: "/weir/default/tool-executor", Subject: "r7Kq2",
		Time:         time.Date(2026, 3, 2, 9, 14, 7, 123456789, time.UTC),
		PartitionKey: "r7Kq2", CorrelationID: "r7Kq2", CausationID: "0197c3a4-0000-7000-8000-000000000000",
		TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		ExpiryTime:  time.Date(2026, 3, 9, 9, 14, 7, 0, time.UTC), AuthID: "alice", AuthType: AuthKey,
		DataRef:    "sha256:9be177",
		Extensions: map[string]any{"sequence": int32(42), "flag": true, "note": "Grüße <&> \"q\" \\ 100%"},
		Data:       json.RawMessage(`{"a":9007199254740993,"b":1.0,"c":"<&>","d":[]}`),
	}
}

// unsealed leaves what the bytes of an event say.
func unsealed(e Event) Event {
	e.Payload = nil
	return e
}

func TestEncodeDecode(t *testing.T) {
	t.Parallel()
	want := fullEvent()
	b, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Payload, b) {
		t.Error("payload is not kept as it came")
	}
	if d := cmp.Diff(want, unsealed(got)); d != "" {
		t.Error(d)
	}
	if !bytes.Contains(b, want.Data) {
		t.Errorf("data has changed: %s", b)
	}
}

// What Weir writes by hand is what the official SDK reads.
func TestEncodeReadBySDK(t *testing.T) {
	t.Parallel()
	e := fullEvent()
	b, err := Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	sameAsSDK(t, e, b)
}

func sameAsSDK(t *testing.T, e Event, b []byte) {
	t.Helper()
	var c ce.Event
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatalf("the SDK does not read %s: %v", b, err)
	}
	if err := c.Validate(); err != nil {
		t.Fatalf("the SDK refuses %s: %v", b, err)
	}
	ext := map[string]any{}
	maps.Copy(ext, e.Extensions)
	for name, v := range e.attributes {
		switch name {
		case "id", "type", "source", "subject", "time":
		default:
			ext[name] = v
		}
	}
	type view struct {
		ID, Type, Source, Subject, Media string
		Time                             time.Time
		Ext                              map[string]any
		Data                             string
	}
	source, err := url.Parse(e.Source)
	if err != nil {
		t.Fatal(err)
	}
	want := view{e.ID, e.Type, source.String(), e.Subject, mediaJSON, e.Time.UTC(), ext, string(e.Data)}
	got := view{
		c.ID(), c.Type(), c.Source(), c.Subject(), c.DataContentType(), c.Time().UTC(), map[string]any{}, string(c.Data()),
	}
	maps.Copy(got.Ext, c.Extensions())
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the SDK reads another event:\n%s\n%s", d, b)
	}
}

func TestEncodeMsgModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Structured, Binary} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			want := fullEvent()
			want.Signature, want.Carried = Signature{"UAB2", "m3Zk"}, true
			if mode == Binary {
				want.Type = TypeOf[Chunk]()
				want.Signature, want.Carried = Signature{}, false
			}
			header, payload, err := EncodeMsg(want)
			if err != nil {
				t.Fatal(err)
			}
			for name := range header {
				if name != strings.ToLower(name) {
					t.Errorf("header %s is not in lower case", name)
				}
			}
			header["Nats-Expected-Last-Subject-Sequence"] = []string{"7", "8"}
			got, err := DecodeMsg(header, payload)
			if err != nil {
				t.Fatal(err)
			}
			if mode == Binary { // headers have no types
				want.Extensions = map[string]any{"sequence": "42", "flag": "true", "note": want.Extensions["note"]}
			}
			if n, ok := got.ExtensionInt("sequence"); !ok || n != 42 {
				t.Errorf("integer extension: %d, %t", n, ok)
			}
			if d := cmp.Diff(want, unsealed(got)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDecodeMsgHeaderNames(t *testing.T) {
	t.Parallel()
	b, err := Encode(fullEvent())
	if err != nil {
		t.Fatal(err)
	}
	binary := map[string][]string{
		"Ce-SpecVersion": {"1.0"}, "CE-ID": {"1"}, "ce-Type": {"t"}, "Ce-Source": {"/s"},
		"Content-Type": {"application/json"},
	}
	if _, err := DecodeMsg(binary, []byte(`{}`)); err != nil {
		t.Errorf("names in any case: %v", err)
	}
	refused := map[string]map[string][]string{
		"neither":          {"content-type": {"application/json"}},
		"no headers":       nil,
		"batch":            {"content-type": {"application/cloudevents-batch+json"}},
		"xml":              {"content-type": {"application/cloudevents+xml"}},
		"latin1":           {"content-type": {"application/cloudevents+json; charset=latin1"}},
		"both":             {"content-type": {mediaEventJSON}, "ce-specversion": {"1.0"}},
		"two spellings":    {"content-type": {mediaEventJSON}, "Content-Type": {mediaEventJSON}},
		"two values":       {"content-type": {mediaEventJSON, mediaEventJSON}},
		"malformed escape": {"ce-specversion": {"1.0"}, "ce-id": {"%4"}, "ce-type": {"t"}, "ce-source": {"/s"}},
		"escaped control":  {"ce-specversion": {"1.0"}, "ce-id": {"%00"}, "ce-type": {"t"}, "ce-source": {"/s"}},
		"bad UTF-8":        {"ce-specversion": {"1.0"}, "ce-id": {"%FF"}, "ce-type": {"t"}, "ce-source": {"/s"}},
		"bad name":         {"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-type": {"t"}, "ce-source": {"/s"}, "ce-a_b": {"x"}},
		"no id":            {"ce-specversion": {"1.0"}, "ce-type": {"t"}, "ce-source": {"/s"}},
		"old version":      {"ce-specversion": {"0.3"}, "ce-id": {"1"}, "ce-type": {"t"}, "ce-source": {"/s"}},
	}
	for name, header := range refused {
		if e, err := DecodeMsg(header, b); !errors.Is(err, ErrBadEvent) {
			t.Errorf("%s: got %+v, %v", name, e, err)
		}
	}
	for _, ct := range []string{"Application/CloudEvents+JSON", "application/cloudevents+json; charset=UTF-8"} {
		if _, err := DecodeMsg(map[string][]string{"CONTENT-TYPE": {ct}}, b); err != nil {
			t.Errorf("%s: %v", ct, err)
		}
	}
}

func TestForeign(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Nats-Stream", "nats-subject", "NATS-SEQUENCE"} {
		if err := Foreign(map[string][]string{name: {"x"}}); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Foreign(map[string][]string{"Nats-Expected-Stream": {"x"}, "ce-id": {"1"}}); err != nil {
		t.Error(err)
	}
}

// TestDecodeRefuses: what the specification forbids is refused with its reason. (CE-1)
func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	const head = `{"specversion":"1.0","id":"1","type":"t","source":"/s"`
	for name, payload := range map[string]string{
		"empty":            ``,
		"no object":        `[]`,
		"trailing":         head + `} {}`,
		"no id":            `{"specversion":"1.0","type":"t","source":"/s"}`,
		"blank id":         `{"specversion":"1.0","id":" ","type":"t","source":"/s"}`,
		"version":          `{"specversion":"1.1","id":"1","type":"t","source":"/s"}`,
		"twice":            head + `,"id":"2"}`,
		"twice by escape":  head + `,"\u0069d":"2"}`,
		"twice in data":    head + `,"data":{"a":1,"\u0061":2}}`,
		"number as id":     `{"specversion":"1.0","id":1,"type":"t","source":"/s"}`,
		"float":            head + `,"x":1.5}`,
		"large integer":    head + `,"x":2147483648}`,
		"object":           head + `,"x":{}}`,
		"upper-case name":  head + `,"partitionKey":"x"}`,
		"long name":        head + `,"a23456789012345678901":"x"}`,
		"known as integer": head + `,"authid":1}`,
		"time":             head + `,"time":"yesterday"}`,
		"empty subject":    head + `,"subject":""}`,
		"media":            head + `,"datacontenttype":"text/plain","data":"x"}`,
		"two data":         head + `,"data":1,"data_base64":"MQ=="}`,
		"escaped data":     head + `,"d\u0061ta":"x"}`,
		"control":          head + `,"x":"a\u0000"}`,
		"deep":             head + `,"data":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`,
		"bad UTF-8":        head + ",\"data\":\"\xff\"}",
		"lone surrogate":   head + `,"data":"\ud800"}`,
		"huge exponent":    head + `,"data":1e999999999}`,
	} {
		if e, err := Decode([]byte(payload)); !errors.Is(err, ErrBadEvent) {
			t.Errorf("%s: got %+v, %v", name, e, err)
		}
	}
	e, err := Decode([]byte(head + `,"data_base64":"eyJhIjoxfQ==","x":null,"dataschema":"https://a/b"}`))
	if err != nil || string(e.Data) != `{"a":1}` || len(e.Extensions) != 0 {
		t.Errorf("foreign forms: %+v, %v", e, err)
	}
}

// TestEncodeRefuses: nothing leaves that the specification forbids, such as names of extensions beyond [a-z0-9]{1,20}. (CE-1)
func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Event){
		"id":        func(e *Event) { e.ID = "" },
		"type":      func(e *Event) { e.Type = "" },
		"source":    func(e *Event) { e.Source = "" },
		"control":   func(e *Event) { e.AuthID = "a\nb" },
		"UTF-8":     func(e *Event) { e.AuthID = "a\xff" },
		"name":      func(e *Event) { e.Extensions = map[string]any{"aB": "x"} },
		"taken":     func(e *Event) { e.Extensions = map[string]any{"authid": "x"} },
		"value":     func(e *Event) { e.Extensions = map[string]any{"x": 1.5} },
		"data":      func(e *Event) { e.Data = json.RawMessage(`{"a":1,"a":2}`) },
		"data ends": func(e *Event) { e.Data = json.RawMessage(`{"a":1}}`) },
		"year":      func(e *Event) { e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		e := fullEvent()
		change(&e)
		if b, err := Encode(e); !errors.Is(err, ErrBadEvent) {
			t.Errorf("%s: got %s, %v", name, b, err)
		}
	}
}

func TestAllocsOfEnvelope(t *testing.T) {
	e := fullEvent()
	e.Extensions = nil
	e.Data = json.RawMessage(`{"text":"` + strings.Repeat("x", 1000) + `"}`)
	b, err := Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	enc := testing.AllocsPerRun(100, func() { _, _ = Encode(e) })
	dec := testing.AllocsPerRun(100, func() { _, _ = Decode(b) })
	t.Logf("Encode %.0f, Decode %.0f", enc, dec)
	if enc > 12 {
		t.Errorf("Encode: %.0f allocations, budget 12", enc)
	}
	if dec > 25 {
		t.Errorf("Decode: %.0f allocations, budget 25", dec)
	}
}

// Whatever is encoded is read back the same, by Weir and by the official SDK.
func FuzzEncode(f *testing.F) {
	f.Add("1", "t", "/s", "run", "alice", "note", "x y", `{"a":1}`, int64(1772442847133000000), int32(7))
	f.Add("é", "a.b", "urn:x", "", "", "a1", "<&>\"\\", `[1.0,"\u00e9"]`, int64(0), int32(-1))
	f.Add("\u2028", "t", "http://a/b?c#d", "r=1-1", "%", "x", "", `null`, int64(-1), int32(0))
	f.Fuzz(func(t *testing.T, id, typ, source, subject, auth, name, value, data string, nanos int64, n int32) {
		e := Event{
			ID: id, Type: typ, Source: source, Subject: subject, AuthID: auth, PartitionKey: subject,
			Time: time.Unix(0, nanos).UTC(), Data: json.RawMessage(data),
			Extensions: map[string]any{name: value, "count": n, "yes": n > 0},
		}
		b, err := Encode(e)
		if err != nil {
			return
		}
		got, err := Decode(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if e.Data = bytes.TrimSpace(e.Data); len(e.Data) == 0 {
			e.Data = nil
		}
		if d := cmp.Diff(e, unsealed(got)); d != "" {
			t.Errorf("%s: %s", b, d)
		}
		sameAsSDK(t, e, b)
		e.Type = TypeOf[Chunk]()
		header, body, err := EncodeMsg(e)
		if err != nil {
			return // binary mode cannot do without data
		}
		got, err = DecodeMsg(header, body)
		if err != nil || got.ID != id || got.AuthID != auth || got.Extensions[name] != value {
			t.Errorf("%v: %+v, %v", header, got, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	b, err := Encode(fullEvent())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"specversion":"1.0","id":"1","type":"t","source":"/s","data_base64":"e30="}`))
	f.Add([]byte(`{"data":{},"time":"2026-03-02T09:14:07+01:00","specversion":"1.0","id":"1","type":"t","source":"s","x":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := Decode(raw)
		if err != nil {
			return
		}
		again, err := Encode(e)
		if err != nil {
			t.Fatalf("%s is read and cannot be written: %v", raw, err)
		}
		got, err := Decode(again)
		if d := cmp.Diff(unsealed(e), unsealed(got)); err != nil || d != "" {
			t.Errorf("%s: %v %s", raw, err, d)
		}
	})
}

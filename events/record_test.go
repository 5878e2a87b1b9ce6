package events_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
)

func someRecord() events.Record {
	return events.Record{
		Seq: 7, LogSeq: 5, Time: time.Date(2026, 3, 1, 12, 0, 0, 120, time.UTC),
		Subject: "weir.default.run.r.main.start", Key: "UKEY", Sig: "c2ln",
		Event: []byte(`{"specversion":"1.0","id":"e","source":"/weir/default/planner","type":"dev.weirkeeper.run.started.v1",` +
			`"subject":"r","data":{"n":9007199254740993,"text":"<ä>` + "\u2028" + `"}}`),
	}
}

// TestRecordHash makes the hash a second time, as its documentation says.
func TestRecordHash(t *testing.T) {
	t.Parallel()
	r := someRecord()
	r.Seal(events.NoRecord)
	var b strings.Builder
	for _, part := range []string{
		"weir.audit.v1", strings.Repeat("0", 64), "7", "5", "2026-03-01T12:00:00.00000012Z", "weir.default.run.r.main.start", "",
		"UKEY", "c2ln", string(r.Event),
	} {
		fmt.Fprintf(&b, "%d:%s", len(part), part)
	}
	if want := fmt.Sprintf("%x", sha256.Sum256([]byte(b.String()))); r.Hash != want || r.Prev != events.NoRecord || !r.Sealed() {
		t.Errorf("hash %s, want %s", r.Hash, want)
	}
}

// TestRecordHashCovers changes each field of a record, and moves bytes from one to the next.
func TestRecordHashCovers(t *testing.T) {
	t.Parallel()
	base := someRecord()
	base.Seal(events.NoRecord)
	for name, change := range map[string]func(*events.Record){
		"seq":     func(r *events.Record) { r.Seq++ },
		"logSeq":  func(r *events.Record) { r.LogSeq++ },
		"time":    func(r *events.Record) { r.Time = r.Time.Add(1) },
		"subject": func(r *events.Record) { r.Subject = "weir.default.run.s.main.start" },
		"carried": func(r *events.Record) { r.Carried = true },
		"key":     func(r *events.Record) { r.Key = "" },
		"sig":     func(r *events.Record) { r.Sig += "A" },
		"event":   func(r *events.Record) { r.Event = append(r.Event, ' ') },
		"prev":    func(r *events.Record) { r.Prev = "1" + r.Prev[1:] },
		"hash":    func(r *events.Record) { r.Hash = r.Hash[:63] },
		"border":  func(r *events.Record) { r.Key, r.Sig = "UKEYc", "2ln" },
	} {
		r := base
		r.Event = append([]byte(nil), base.Event...)
		change(&r)
		if r.Sealed() {
			t.Errorf("%s is not covered", name)
		}
	}
}

// TestFactTypes: a kind of fact has one type, which is stored in the log.
func TestFactTypes(t *testing.T) {
	t.Parallel()
	kinds := []events.Kind{
		events.KindStart, events.KindStep, events.KindCarry, events.KindEnd, events.KindAsk, events.KindAnswer, events.KindGo, events.KindClaim,
		events.KindSuspend, events.KindResult, events.KindVote, events.KindRefused, events.KindLate, events.KindUse,
	}
	seen := map[string]bool{}
	for _, kind := range kinds {
		row, ok := events.RowOf(events.FactType(kind))
		if !ok || row.Stream != events.StreamRuns || seen[row.Type] {
			t.Errorf("%s: %+v", kind, row)
		}
		seen[row.Type] = true
	}
	for _, row := range events.Catalog {
		if row.Stream == events.StreamRuns && !seen[row.Type] {
			t.Errorf("%s is the type of no kind", row.Type)
		}
	}
	if events.FactType(events.KindProbe) != "" {
		t.Error("a self-test has a type")
	}
}

func TestRecordLine(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]events.Record{
		"text":      someRecord(),
		"not text":  {Seq: 1, LogSeq: 1, Time: time.Unix(0, 1), Subject: "s", Event: []byte("\xff\x00")},
		"empty":     {Seq: 1, LogSeq: 1, Time: time.Unix(1, 0), Subject: "s", Event: []byte{}},
		"a newline": {Seq: 1, LogSeq: 1, Time: time.Unix(1, 0), Subject: "s", Carried: true, Event: []byte("{\n\"a\" : 1\r\n}")},
	} {
		r.Seal(events.NoRecord)
		line, err := events.Marshal(r)
		if err != nil || strings.ContainsAny(string(line), "\n\r") {
			t.Fatalf("%s: %s, %v", name, line, err)
		}
		got, err := events.ParseRecord(line)
		if err != nil || !got.Sealed() {
			t.Errorf("%s: %v", name, err)
		}
		r.Time = r.Time.UTC()
		if diff := cmp.Diff(r, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for at := range line { // nothing in a line is free to change
			for _, c := range []byte{line[at] ^ 1, line[at] ^ 0x20, ' '} {
				if c == line[at] {
					continue
				}
				changed := append([]byte(nil), line...)
				changed[at] = c
				if got, err := events.ParseRecord(changed); err == nil && got.Sealed() {
					t.Fatalf("%s: byte %d may be %q: %s", name, at, c, changed)
				}
			}
		}
	}
	line, _ := events.Marshal(someRecord())
	for _, bad := range []string{
		"", "{}", "null", "[]", string(line) + " ", " " + string(line), string(line[:len(line)-1]) + `,"more":1}`,
		strings.Replace(string(line), `"seq":7`, `"seq":7.0`, 1), strings.Replace(string(line), `"seq":7`, `"SEQ":7`, 1),
		strings.Replace(string(line), `"seq":7`, `"seq":6,"seq":7`, 1), strings.Replace(string(line), `ä`, `\u00e4`, 1),
	} {
		if _, err := events.ParseRecord([]byte(bad)); !errors.Is(err, events.ErrBadRecord) {
			t.Errorf("%s is taken: %v", bad, err)
		}
	}
}

// TestRecordAsCloudEvent keeps the attributes and the exact data, and adds where the fact stands.
func TestRecordAsCloudEvent(t *testing.T) {
	t.Parallel()
	r := someRecord()
	raw, err := r.CloudEvent()
	if err != nil {
		t.Fatal(err)
	}
	e, err := events.Decode(raw)
	if err != nil || e.ID != "e" || e.Subject != "r" {
		t.Errorf("%s, %v", raw, err)
	}
	want := map[string]any{
		"auditseq": "7", "audittime": "2026-03-01T12:00:00.00000012Z", "logsubject": "weir.default.run.r.main.start",
	}
	if diff := cmp.Diff(want, e.Extensions); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(string(raw), `"data":{"n":9007199254740993,"text":"<ä>`) || !json.Valid(raw) {
		t.Errorf("data has changed: %s", raw)
	}
	r.Event = []byte("no event")
	if raw, err := r.CloudEvent(); err == nil {
		t.Errorf("taken for an event: %s", raw)
	}
}

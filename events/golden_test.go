package events

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files and the table of README.md anew")

const (
	goldenDir  = "testdata"
	headersExt = ".headers"
)

func goldenFile(row Row) string { return filepath.Join(goldenDir, row.Schema()) }

// Every type of event has a golden: the event as it is on the wire. What it says fits the Go type and the schema, and
// encoding it again gives the same bytes.
func TestGoldens(t *testing.T) {
	t.Parallel()
	updateGoldens(t)
	for _, row := range Catalog {
		t.Run(row.Schema(), func(t *testing.T) {
			t.Parallel()
			e := readGolden(t, row)
			if e.Type != row.Type {
				t.Errorf("type %s, want %s", e.Type, row.Type)
			}
			sameData(t, row, e.Data)
			if err := ValidateData(e); err != nil {
				t.Error(err)
			}
			bySchema(t, row, e.Data)
			inItsPlace(t, row, e)
		})
	}
}

// readGolden reads a golden in its mode, and requires that it is encoded to the same again.
func readGolden(t *testing.T, row Row) Event {
	t.Helper()
	payload := compactFile(t, goldenFile(row))
	if row.Mode == Structured {
		e, err := Decode(payload)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(payload), string(again)); d != "" {
			t.Errorf("encoded anew it differs:\n%s", d)
		}
		sameAsSDK(t, e, payload)
		return e
	}
	header := readHeaders(t, strings.TrimSuffix(goldenFile(row), ".json")+headersExt)
	e, err := DecodeMsg(header, payload)
	if err != nil {
		t.Fatal(err)
	}
	again, body, err := EncodeMsg(e)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(header, again); d != "" {
		t.Errorf("headers encoded anew differ:\n%s", d)
	}
	if d := cmp.Diff(string(payload), string(body)); d != "" {
		t.Errorf("body encoded anew differs:\n%s", d)
	}
	return e
}

func compactFile(tb testing.TB, name string) []byte {
	tb.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return b.Bytes()
}

func readHeaders(t *testing.T, name string) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	header := map[string][]string{}
	for line := range strings.Lines(string(raw)) {
		k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok {
			t.Fatalf("%s: %q is no header", name, line)
		}
		header[k] = append(header[k], v)
	}
	return header
}

// sameData requires that the Go type holds everything the data say, and writes the same bytes.
func sameData(t *testing.T, row Row, data json.RawMessage) {
	t.Helper()
	v := row.New()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		t.Fatal(err)
	}
	again, err := Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(data), string(again)); d != "" {
		t.Errorf("the Go type writes other data:\n%s", d)
	}
}

// bySchema requires that the validator and the shape agree that the data are valid, and that without any required
// field they are not.
func bySchema(t *testing.T, row Row, data json.RawMessage) {
	t.Helper()
	s, err := schemaNamed(row.Schema())
	if err != nil {
		t.Fatal(err)
	}
	if !s.quick.accepts(data) {
		t.Error("the shape is not certain about the golden")
	}
	if err := s.Validate(decodeAny(data)); err != nil {
		t.Error(err)
	}
	whole := decodeAny(data).(map[string]any)
	for _, name := range requiredOf(s) {
		less := map[string]any{}
		for k, v := range whole {
			if k != name {
				less[k] = v
			}
		}
		raw, err := Marshal(less)
		if err != nil {
			t.Fatal(err)
		}
		if s.quick.accepts(raw) || s.Validate(less) == nil {
			t.Errorf("valid without %s", name)
		}
	}
}

func requiredOf(s *Schema) []string {
	n := s.root
	for n.Ref != nil {
		n = n.Ref
	}
	return n.Required
}

// inItsPlace requires that the subject built from the ids of the event fits the pattern of its row and, for facts and
// requests, is understood again.
func inItsPlace(t *testing.T, row Row, e Event) {
	t.Helper()
	build, ok := goldenSubjects[row.Schema()]
	if !ok {
		t.Fatal("no subject is known for the golden")
	}
	subject := build(t, e)
	if !fits(subject, row.Subject) {
		t.Errorf("subject %s does not fit %s", subject, row.Subject)
	}
	switch {
	case row.Stream == StreamRuns:
		p, err := ParsePlace(subject)
		if err != nil {
			t.Fatal(err)
		}
		if p.Subject() != subject {
			t.Errorf("read and built again: %s, was %s", p.Subject(), subject)
		}
		if got := chainKind(p); got != row.Chain {
			t.Errorf("chain %q, the catalogue says %q", got, row.Chain)
		}
	case strings.HasPrefix(row.Subject, "in.start") || strings.HasPrefix(row.Subject, "in.decide") ||
		strings.HasPrefix(row.Subject, "in.cancel") || strings.HasPrefix(row.Subject, "in.grant"):
		in, err := DefaultNamespace.ParseInbox(subject)
		if err != nil || in.Principal == "" {
			t.Errorf("%+v, %v", in, err)
		}
	}
}

func chainKind(p Place) string {
	switch {
	case p.IsMain():
		return chainMain
	case p.Kind == KindUse:
		return chainGrant
	case p.Chain() == p.Subject():
		return ""
	}
	return chainCall
}

// fits compares a subject below weir.<ns> with a pattern whose <names> stand for one token.
func fits(subject, pattern string) bool {
	have := strings.Split(strings.TrimPrefix(subject, DefaultNamespace.root()), ".")
	want := strings.Split(pattern, ".")
	if len(have) != len(want) {
		return false
	}
	for i, w := range want {
		if name := strings.HasPrefix(w, "<"); name && have[i] == "" || !name && have[i] != w {
			return false
		}
	}
	return true
}

// Every file of testdata belongs to something.
func TestGoldensBelongToRows(t *testing.T) {
	t.Parallel()
	updateGoldens(t)
	known := map[string]bool{"snapshots": true, "fuzz": true}
	for _, row := range Catalog {
		known[row.Schema()] = true
		if row.Mode == Binary {
			known[strings.TrimSuffix(row.Schema(), ".json")+headersExt] = true
		}
	}
	files, err := os.ReadDir(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !known[f.Name()] {
			t.Errorf("%s belongs to no type of event", f.Name())
		}
	}
}

// Today's code goes on from the snapshots of every release.
func TestSnapshotsOfReleases(t *testing.T) {
	t.Parallel()
	updateGoldens(t)
	files, err := filepath.Glob(filepath.Join(goldenDir, "snapshots", "v*.json"))
	if err != nil || len(files) != SnapshotVersion {
		t.Fatalf("snapshots of %d versions, want %d: %v", len(files), SnapshotVersion, err)
	}
	s, err := schemaNamed("snapshot.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		raw := compactFile(t, file)
		if err := s.ValidateRaw(raw); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		var snap Snapshot
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&snap); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		again, err := Marshal(snap)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(raw), string(again)); snap.V == SnapshotVersion && d != "" {
			t.Errorf("%s: written anew it differs:\n%s", file, d)
		}
		if len(snap.Asks) == 0 || len(snap.Open()) == 0 || snap.Settled() {
			t.Errorf("%s: nothing is open", file)
		}
	}
}

var updated sync.Once

// updateGoldens writes the goldens when the flag says so, before any test reads one.
func updateGoldens(t *testing.T) {
	t.Helper()
	if *update {
		updated.Do(func() { writeGoldens(t) })
	}
}

func writeGoldens(t *testing.T) {
	t.Helper()
	for _, row := range Catalog {
		e := sampleEvent(t, row)
		name := goldenFile(row)
		if row.Mode == Binary {
			header, body, err := EncodeMsg(e)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for k, v := range header {
				lines = append(lines, fmt.Sprintf("%s: %s\n", k, v[0]))
			}
			slices.Sort(lines)
			write(t, strings.TrimSuffix(name, ".json")+headersExt, []byte(strings.Join(lines, "")))
			writeIndented(t, name, body)
			continue
		}
		payload, err := Encode(e)
		if err != nil {
			t.Fatalf("%s: %v", row.Type, err)
		}
		writeIndented(t, name, payload)
	}
	raw, err := Marshal(sampleSnapshot())
	if err != nil {
		t.Fatal(err)
	}
	writeIndented(t, filepath.Join(goldenDir, "snapshots", fmt.Sprintf("v%d.json", SnapshotVersion)), raw)
}

func writeIndented(t *testing.T, name string, raw []byte) {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	write(t, name, append(b.Bytes(), '\n'))
}

func write(t *testing.T, name string, raw []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, raw, 0o644); err != nil {
		t.Fatal(err)
	}
}

// sampleEvent is the event that the golden of a type shows.
func sampleEvent(t *testing.T, row Row) Event {
	t.Helper()
	data, ok := samples[row.Schema()]
	if !ok {
		t.Fatalf("no sample for %s", row.Type)
	}
	raw, err := Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	service := "approval"
	switch row.Schema() {
	case "run.requested.v1.json", "decision.requested.v1.json", "cancel.requested.v1.json", "grant.requested.v1.json",
		"grant.revoked.v1.json":
		service = "client"
	case "run.started.v1.json", "step.finished.v1.json", "run.carried.v1.json", "run.ended.v1.json",
		"chunk.published.v1.json", "message.stored.v1.json":
		service = "planner"
	case "call.claimed.v1.json", "call.suspended.v1.json", "call.finished.v1.json", "outcome.delayed.v1.json":
		service = "tool-executor"
	}
	e := Event{
		ID: "0197c3a4-5b10-7000-8000-0000000000" + fmt.Sprintf("%02x", slices.IndexFunc(Catalog,
			func(r Row) bool { return r.Type == row.Type })), Type: row.Type, Source: "/weir/default/" + service,
		Subject: "r7Kq2", Time: sampleTime.Add(133 * time.Millisecond), PartitionKey: "r7Kq2", CorrelationID: "r7Kq2",
		CausationID: "0197c3a4-5b0f-7000-8000-000000000000",
		TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Data: raw,
	}
	if x, ok := data.(interface{ expiry() time.Time }); ok {
		e.ExpiryTime = x.expiry()
	}
	if x, ok := data.(interface{ auth() (id, kind string) }); ok {
		e.AuthID, e.AuthType = x.auth()
	}
	if row.Schema() == "decision.requested.v1.json" {
		e.AuthID, e.AuthType = "alice", AuthKey
	}
	return e
}

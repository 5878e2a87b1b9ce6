//go:build interop

package events

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clients is the folder that holds the programs of others.
const clients = "../services/cmd/weir/interop"

// wireMsg is a message as programs in other languages see it.
type wireMsg struct {
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

// reading is what the npm package makes of a message: the event, and the event as the package writes it.
type reading struct {
	Event              map[string]any
	Structured, Binary wireMsg
	Error              string
}

// readByNode lets the npm package cloudevents read messages.
func readByNode(t *testing.T, messages []wireMsg) []reading {
	t.Helper()
	if _, err := os.Stat(filepath.Join(clients, "node_modules")); err != nil {
		t.Fatal("the foreign clients are not installed: run make interop")
	}
	var in bytes.Buffer
	for _, m := range messages {
		if err := json.NewEncoder(&in).Encode(m); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "node", "events.mjs")
	cmd.Dir, cmd.Stdin, cmd.Stderr = clients, &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []reading
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r reading
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if len(all) != len(messages) {
		t.Fatalf("%d answers to %d messages", len(all), len(messages))
	}
	return all
}

// msgIn is an event as a message in a mode.
func msgIn(t *testing.T, e Event, mode Mode) wireMsg {
	t.Helper()
	if mode == Structured {
		payload, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		return wireMsg{map[string]string{headerContentType: mediaEventJSON}, string(payload)}
	}
	header, payload, err := encodeBinary(&e)
	if err != nil {
		t.Fatal(err)
	}
	m := wireMsg{map[string]string{headerContentType: mediaJSON}, string(payload)} // by HTTP's name for it
	for name, v := range header {
		m.Headers[name] = v[0]
	}
	return m
}

// foreignView is an event as a program in JavaScript sees it: its times have milliseconds, its numbers are doubles.
func foreignView(t *testing.T, e Event) map[string]any {
	t.Helper()
	view := map[string]any{"specversion": specVersion, "datacontenttype": mediaJSON}
	for name, v := range e.attributes {
		view[name] = v
	}
	maps.Copy(view, e.Extensions)
	view["time"] = e.Time.UTC().Truncate(time.Millisecond).Format("2006-01-02T15:04:05.000Z")
	var data any
	if err := json.Unmarshal(e.Data, &data); err != nil {
		t.Fatal(err)
	}
	view["data"] = data
	return view
}

// eventsForOthers are all goldens, and an event with everything that an event can have.
func eventsForOthers(t *testing.T) []Event {
	t.Helper()
	var all []Event
	for _, row := range Catalog {
		all = append(all, readGolden(t, row), sampleEvent(t, row))
	}
	full := fullEvent()
	full.Extensions = map[string]any{"note": "plain"} // in binary mode a foreign reader sees texts, and decodes none
	return append(all, full)
}

// TestNodeReadsEvents lets the npm package cloudevents read every type of event in both modes, and reads what the
// package writes of them.
func TestNodeReadsEvents(t *testing.T) {
	t.Parallel()
	all := eventsForOthers(t)
	for _, mode := range []Mode{Structured, Binary} {
		messages := make([]wireMsg, len(all))
		for i, e := range all {
			messages[i] = msgIn(t, e, mode)
		}
		for i, r := range readByNode(t, messages) {
			e := all[i]
			if r.Error != "" {
				t.Errorf("%s is refused in mode %v: %s\n%s", e.Type, mode, r.Error, messages[i].Body)
				continue
			}
			if d := cmp.Diff(foreignView(t, e), r.Event); d != "" {
				t.Errorf("%s is read as another event in mode %v:\n%s", e.Type, mode, d)
			}
			for name, m := range map[string]wireMsg{"structured": r.Structured, "binary": r.Binary} {
				readsFromNode(t, name, e, m)
			}
		}
	}
}

// readsFromNode requires that an event which the package has written is read as the one that it had read.
func readsFromNode(t *testing.T, mode string, want Event, m wireMsg) {
	t.Helper()
	header := map[string][]string{}
	for name, v := range m.Headers {
		header[name] = []string{v}
	}
	got, err := DecodeMsg(header, []byte(m.Body))
	if err != nil {
		t.Errorf("%s in mode %s is not read from the package: %v\n%v\n%s", want.Type, mode, err, m.Headers, m.Body)
		return
	}
	if d := cmp.Diff(foreignView(t, want), foreignView(t, got)); d != "" {
		t.Errorf("%s in mode %s is another event when it comes back:\n%s", want.Type, mode, d)
	}
}

// TestNodeRefuses shows that the package looks at what it is given.
func TestNodeRefuses(t *testing.T) {
	t.Parallel()
	e := fullEvent()
	structured, binary := msgIn(t, e, Structured), msgIn(t, e, Binary)
	structured.Body = strings.Replace(structured.Body, `"source":"/weir/default/tool-executor",`, "", 1)
	delete(binary.Headers, headerPrefix+"type")
	for _, r := range readByNode(t, []wireMsg{structured, binary}) {
		if r.Error == "" {
			t.Errorf("taken: %v", r.Event)
		}
	}
}

package events

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	tableBegin = "<!-- catalogue: written by `go test ./events -update` -->\n"
	tableEnd   = "<!-- end of the catalogue -->\n"
)

func catalogTable() string {
	var b strings.Builder
	b.WriteString("| type | subject | chain | signed | by | for | means |\n|---|---|---|---|---|---|---|\n")
	for _, row := range Catalog {
		name := strings.TrimSuffix(strings.TrimPrefix(row.Type, TypePrefix), ".v1")
		fmt.Fprintf(&b, "| [%s](../schemas/%s) | `%s` | %s | %s | %s | %s | %s |\n", name, row.Schema(), row.Subject, row.Chain,
			row.Domain, row.By, row.For, row.Means)
	}
	return b.String()
}

// The table of README.md is the catalogue.
func TestReadmeTable(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(raw), tableBegin)
	table, tail, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		t.Fatal("README.md has lost the marks of its table")
	}
	if *update {
		write(t, "README.md", []byte(head+tableBegin+catalogTable()+tableEnd+tail))
		return
	}
	if d := cmp.Diff(catalogTable(), table); d != "" {
		t.Errorf("run go test ./events -update:\n%s", d)
	}
}

// The subjects and headers that the worker protocol shows are those that Weir uses.
func TestReadmeProtocol(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(raw)
	call := CallID{Run: "r7Kq2", Step: 1, Index: 2}
	release := ns.Go(call, "billing", "issue_refund")
	for _, want := range []string{
		"receive  " + release.Subject() + "\n",
		DomainGo + " ‖ " + release.Subject() + " ‖ ",
		"publish  " + ns.Call(call, KindClaim).Ingest() + "\n",
		"publish  " + ns.Call(call, KindResult).Ingest() + "\n",
		"Nats-Expected-Last-Subject-Sequence-Subject: " + release.Chain() + "\n",
		ns.Store(StreamRuns), PoolConsumer("billing"), HeaderKey, HeaderSig, mediaEventJSON,
		TypeOf[CallClaimed](), "../schemas/manifest.json", "../schemas/call.suspended.v1.json", "../schemas/outcome.delayed.v1.json",
		RegistryKey(RegistryTool, "")[:len("tool.")], LiveKey("tool-executor", "x")[:len("live.tool-executor.")],
	} {
		if !strings.Contains(doc, want) {
			t.Errorf("README.md does not show %q", want)
		}
	}
	examples := strings.Split(doc, `"data":`)[1:]
	for i, row := range []string{TypeOf[CallClaimed](), TypeOf[CallFinished]()} {
		var data json.RawMessage
		if err := json.NewDecoder(strings.NewReader(examples[i])).Decode(&data); err != nil {
			t.Fatal(err)
		}
		if err := ValidateData(Event{Type: row, Data: data}); err != nil {
			t.Errorf("%s: %v", data, err)
		}
	}
}

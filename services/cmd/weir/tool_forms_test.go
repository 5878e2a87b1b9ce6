package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
)

// TestFormsOfATool shows by what previews, what models are told, and what is shown are made; what has no form is hidden where
// something is covered, and what cannot be read is told.
func TestFormsOfATool(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		m    events.Manifest
		want []string
	}{
		"none": {},
		"all": {
			events.Manifest{
				Preview: json.RawMessage(`{"template":"refund {{.amount}}"}`), ToModelOutput: json.RawMessage(`{"jq":".id"}`),
				Transform: json.RawMessage(`{"display":{"input":{"jq":"{id}"},"output":{"go":true}},"transcript":{}}`),
			},
			[]string{
				"preview = refund {{.amount}}", "model is told = jq .id", "display = input-available: jq {id}",
				"display = output-available: a function of its hosts", "display = hidden: input-delta, error, approval, suspend, resume",
				"transcript = hidden: input-available, input-delta, output-available, error, approval, suspend, resume",
			},
		},
		"functions": {
			events.Manifest{Preview: json.RawMessage(`{"go":true}`), ToModelOutput: json.RawMessage(`{"go":true}`)},
			[]string{"preview = a function of its hosts", "model is told = a function of its hosts"},
		},
		"broken": {
			events.Manifest{Preview: json.RawMessage(`7`), ToModelOutput: json.RawMessage(`7`), Transform: json.RawMessage(`7`)},
			[]string{
				"preview = cannot be read: there is none", "model is told = the result: its map cannot be read",
				"display = cannot be read: nothing is shown", "transcript = cannot be read: nothing is shown",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, f := range formsOf(test.m) {
				got = append(got, strings.Join(f[:], " = "))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

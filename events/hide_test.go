package events

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const vaultManifest = `{"inputSchema":{"type":"object","properties":{"user":{},"key":{"type":"string","writeOnly":true},
	"cards":{"type":"array","items":{"type":"object","properties":{"no":{"type":"integer","x-weir-secret":true}}}},
	"pin":{"x-weir-secret":true}}},"outputSchema":{"properties":{"token":{"writeOnly":true}}},"resumeSchema":{"properties":{"code":{"writeOnly":true}}}}`

func vaultSecrets(t *testing.T) *Secrets {
	t.Helper()
	var m Manifest
	if err := json.Unmarshal([]byte(vaultManifest), &m); err != nil {
		t.Fatal(err)
	}
	return SecretsOf(m)
}

var vaultArgs = json.RawMessage(`{"user":"ann","key":"k-1\n\"x\"","cards":[{"no":4242424242},{"no":7}],"pin":"12"}`)

// What a tool does not mark is shown as it is, byte for byte.
func TestSecretsOfNothing(t *testing.T) {
	t.Parallel()
	none := SecretsOf(Manifest{InputSchema: json.RawMessage(`{"properties":{"writeOnly":{"type":"boolean"}}}`)})
	if none != nil {
		t.Fatalf("%+v", none)
	}
	f := CallFinished{Outcome: OutcomeOK, Result: vaultArgs, Error: &ToolError{Name: "n", Message: "k-1"}, Reason: "r"}
	got, args := none.Finished(f, vaultArgs)
	if d := cmp.Diff(f, got); d != "" || string(args) != string(vaultArgs) || none.HidesInput() || none.ArgsText("{bad") != "{bad" ||
		none.Of(vaultArgs) != nil || none.OfResume(&Resume{}) != nil {
		t.Error(d)
	}
}

// Secret values are found in texts and in values of every form, escaped too; what is short is left.
func TestSecretsInTexts(t *testing.T) {
	t.Parallel()
	s := vaultSecrets(t)
	hidden := s.Of(vaultArgs)
	if d := cmp.Diff(Hidden{"4242424242", "k-1\n\"x\""}, hidden); d != "" {
		t.Error(d)
	}
	for in, want := range map[string]string{
		`"with k-1\n\"x\", card 4242424242"`:  `"with [REDACTED], card [REDACTED]"`,
		`{"k-1\n\"x\"":[4242424242,12,true]}`: `{"[REDACTED]":["[REDACTED]",12,true]}`,
		`{"b":"plain", "a":1.50}`:             `{"b":"plain", "a":1.50}`,
		`not json`:                            payloadUnavailable,
		``:                                    ``,
	} {
		if got := string(hidden.JSON(json.RawMessage(in))); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	e := hidden.Error(&ToolError{Name: "4242424242", Message: "no k-1\n\"x\"", Details: json.RawMessage(`[4242424242]`)})
	if d := cmp.Diff(&ToolError{Name: "[REDACTED]", Message: "no [REDACTED]", Details: json.RawMessage(`["[REDACTED]"]`)}, e); d != "" {
		t.Error(d)
	}
	if p := s.OfResume(&Resume{Data: json.RawMessage(`{"code":"c0de","x":"open"}`)}).Text("c0de open"); p != "[REDACTED] open" {
		t.Error(p)
	}
}

// An outcome is shown without the secrets of its result and its arguments, whatever the outcome.
func TestSecretsOfOutcomes(t *testing.T) {
	t.Parallel()
	s := vaultSecrets(t)
	for _, f := range []CallFinished{
		{Outcome: OutcomeOK, Result: json.RawMessage(`{"token":"t0ken","said":"t0ken for 4242424242"}`), ModelOutput: &ModelOutput{Value: json.RawMessage(`"t0ken"`)}},
		{Outcome: OutcomeResponded, Result: json.RawMessage(`{"token":{"is":"t0ken"}}`), Args: vaultArgs},
		{Outcome: OutcomeError, Error: &ToolError{Message: "4242424242"}, Reason: "4242424242"},
		{Outcome: OutcomeInvalid, Result: json.RawMessage(`{"message":"4242424242"}`)},
		{Outcome: OutcomeBlocked, Result: json.RawMessage(`"4242424242"`)},
	} {
		shown, args := s.Finished(f, vaultArgs)
		raw, err := Marshal(ResultChunk(shown, args, "e1"))
		if err != nil || strings.Contains(string(raw), "t0ken") || strings.Contains(string(raw), "4242424242") || strings.Contains(string(raw), "k-1") {
			t.Errorf("%s: %s, %v", f.Outcome, raw, err)
		}
	}
	late := s.Delayed(OutcomeDelayed{Outcome: OutcomeOK, Result: json.RawMessage(`{"token":"t0ken"}`), Error: &ToolError{Message: "4242424242"}}, vaultArgs)
	if strings.Contains(string(late.Result)+late.Error.Message, "t0ken") || strings.Contains(late.Error.Message, "4242") {
		t.Errorf("%+v", late)
	}
	shown, args := AllSecret.Finished(CallFinished{Outcome: OutcomeOK, Result: vaultArgs}, vaultArgs)
	raw, err := Marshal(ResultChunk(shown, args, "e1"))
	if err != nil || strings.Contains(string(raw), "ann") {
		t.Errorf("nothing is known of the tool: %s", raw)
	}
}

// Arguments that a model wrote wrongly are quoted only where they can be masked.
func TestSecretsInWrongArguments(t *testing.T) {
	t.Parallel()
	s := vaultSecrets(t)
	for in, want := range map[string]string{
		`{"user":"ann","key":{"a":"b"}}`: `{"key":{"secret":{"length":9,"digest":"` + Digest([]byte(`{"a":"b"}`)) + `"}},"user":"ann"}`,
		`{"key":"se`:                     "", `{"key":"a","key":"b"}`: "", `["se"]`: "",
	} {
		if got := s.ArgsText(in); got != want {
			t.Errorf("%s is quoted as %s, want %s", in, got, want)
		}
	}
	broken := SecretsOf(Manifest{InputSchema: json.RawMessage(`{"properties":7}`)})
	if got := string(broken.Args(vaultArgs)); strings.Contains(got, "ann") {
		t.Errorf("a schema that nobody can use shows %s", got)
	}
}

// An edit keeps the secrets that it leaves masked, and no others.
func TestUnmask(t *testing.T) {
	t.Parallel()
	s := vaultSecrets(t).input
	shown := Mask(s, vaultArgs)
	back := Unmask(s, shown, vaultArgs)
	if a, err := Canonical(back); err != nil || string(a) != string(mustCanonical(t, vaultArgs)) {
		t.Errorf("%s became %s, %v", shown, back, err)
	}
	other := json.RawMessage(strings.Replace(string(shown), `"ann"`, `"bob"`, 1))
	if got := string(Unmask(s, other, vaultArgs)); !strings.Contains(got, `"bob"`) || !strings.Contains(got, "4242424242") {
		t.Errorf("%s", got)
	}
	for _, edited := range []string{
		`{"key":{"secret":{"length":3,"digest":"sha256:00"}}}`, // nobody has shown that
		`{"user":{"secret":{"length":3,"digest":"sha256:00"}}}`, `{"key":"new"}`, `{bad`,
	} {
		if got := string(Unmask(s, json.RawMessage(edited), vaultArgs)); got != edited {
			t.Errorf("%s became %s", edited, got)
		}
	}
}

func mustCanonical(t *testing.T, raw json.RawMessage) []byte {
	t.Helper()
	c, err := Canonical(raw)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

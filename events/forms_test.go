package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPromptForms(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Prompt{
		`"hi"`: {TextMessage(RoleUser, "hi")},
		`""`:   {TextMessage(RoleUser, "")},
		`[{"role":"system","parts":[{"type":"text","text":"a"}]}]`: {TextMessage(RoleSystem, "a")},
		`[]`: {},
	} {
		var got Prompt
		if err := json.Unmarshal([]byte(in), &got); err != nil {
			t.Errorf("%s: %v", in, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", in, d)
		}
		again, err := Marshal(got)
		if err != nil || again[0] != '[' {
			t.Errorf("%s is written as %s, %v", in, again, err)
		}
	}
	for _, bad := range []string{`1`, `{}`, `[1]`, `true`} {
		var got Prompt
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s became %+v", bad, got)
		}
	}
}

// No form is taken for "never needs approval" by mistake.
func TestApprovalForms(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Approval{
		`true`:                        {Always: true},
		`false`:                       {},
		`{"cel":"args.amount > 1.0"}`: {When: "args.amount > 1.0"},
		` { "cel" : "a < b && c" } `:  {When: "a < b && c"},
	} {
		var got Approval
		if err := json.Unmarshal([]byte(in), &got); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
		again, err := Marshal(got)
		if err != nil || !strings.Contains(strings.ReplaceAll(in, " ", ""), strings.ReplaceAll(string(again), " ", "")) {
			t.Errorf("%s is written as %s, %v", in, again, err)
		}
	}
	for _, bad := range []string{
		`"true"`, `"false"`, `0`, `1`, `{}`, `{"cel":""}`, `{"cel":1}`, `{"cel":"a","x":1}`, `[]`,
		`{"CEL":"a","cel":""}`, `null`, ` null `,
	} {
		var got Approval
		if err := got.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("%s became %+v", bad, got)
		}
	}
	var said struct {
		A *Approval `json:"a"`
	}
	if err := json.Unmarshal([]byte(`{"a":null}`), &said); err != nil || said.A != nil {
		t.Errorf("null says nothing: %+v, %v", said.A, err)
	}
}

func TestDurationForms(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{
		`"5m"`: 5 * time.Minute, `"168h"`: 168 * time.Hour, `"1.5s"`: 1500 * time.Millisecond,
		`"0"`: 0,
	} {
		var got Duration
		if err := json.Unmarshal([]byte(in), &got); err != nil || time.Duration(got) != want {
			t.Errorf("%s: %v, %v", in, time.Duration(got), err)
		}
		again, err := json.Marshal(got)
		var back Duration
		if err != nil || json.Unmarshal(again, &back) != nil || back != got {
			t.Errorf("%s is written as %s", in, again)
		}
	}
	for _, bad := range []string{`"5"`, `"5 m"`, `5`, `"PT5M"`, `""`} {
		var got Duration
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s became %v", bad, time.Duration(got))
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("decide: %w", Errorf(CodeChanged, "round %d is over", 1))
	if CodeOf(err) != CodeChanged || CodeOf(errors.New("x")) != CodeInternal || err.Error() != "decide: round 1 is over (changed)" {
		t.Errorf("%s: %v", CodeOf(err), err)
	}
	raw, _ := Marshal(&Error{Code: CodeWrongKind, Message: "no", Allowed: []Decision{Retry}})
	if want := `{"code":"wrong_kind","error":"no","allowed":["retry"]}`; string(raw) != want {
		t.Errorf("got %s, want %s", raw, want)
	}
}

// Kinds of asks and the decisions they take, as the table of decisions says; expired is nobody's to take.
func TestB8_AllowedDecisions(t *testing.T) {
	t.Parallel()
	for kind, want := range map[AskKind][]Decision{
		AskApproval:  {Approve, Decline, Edit, Respond},
		AskSuspended: {ResumeD, Decline, Respond},
		AskInDoubt:   {Retry, Respond, Decline},
		AskClient:    {Respond, Decline},
		AskEvent:     {Respond},
		AskWait:      nil,
		"other":      nil,
	} {
		if got := kind.Allowed(); !slices.Equal(got, want) || slices.Contains(got, Expired) {
			t.Errorf("%s takes %v, want %v", kind, got, want)
		}
	}
	for _, d := range []Decision{Decline, Edit, Respond, Expired, ""} {
		if d.Releases() {
			t.Errorf("%s releases a call", d)
		}
	}
	if Effect("").Repeatable() || Effectful.Repeatable() || Effect("other").Repeatable() || !ReadOnly.Repeatable() {
		t.Error("only read-only and idempotent calls may be started again")
	}
}

func TestNewID(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	last := ""
	for i := range 1000 {
		at := sampleTime.Add(time.Duration(i) * time.Millisecond)
		id := NewID(at)
		if len(id) != 36 || id[14] != '7' || !strings.ContainsRune("89ab", rune(id[19])) || seen[id] || id <= last ||
			!ValidRunID(id) {
			t.Fatalf("%s after %s", id, last)
		}
		if made, ok := TimeOfID(id); !ok || !made.Equal(at.Truncate(time.Millisecond)) {
			t.Fatalf("%s was made at %v, not at %v", id, made, at)
		}
		seen[id], last = true, id
	}
}

func TestTimeOfIDFromOutside(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		"", "order-1042", "3f0c9a61-7d2e-4b7a-9c55-1a2b3c4d5e6f", "wwwwwwww-wwww-7www-wwww-wwwwwwwwwwww", NewID(sampleTime) + "=1-2",
	} {
		if made, ok := TimeOfID(id); ok || !made.IsZero() {
			t.Errorf("%q was made at %v", id, made)
		}
	}
}

func TestRoundAndStateAfterAFact(t *testing.T) {
	t.Parallel()
	for kind, want := range map[Kind]string{
		KindAsk: DecisionHeld, KindResult: DecisionFinished, KindGo: DecisionReleased, KindClaim: DecisionReleased,
	} {
		if got := StateAfter(kind); got != want {
			t.Errorf("state after %s is %s, want %s", kind, got, want)
		}
	}
	for data, want := range map[string]int{`{"round":2}`: 2, `{}`: 0, `{"round":"two"}`: 0, `null`: 0, ``: 0} {
		if got := RoundOf(Event{Data: json.RawMessage(data)}); got != want {
			t.Errorf("round of %s is %d, want %d", data, got, want)
		}
	}
}

func TestSameRequest(t *testing.T) {
	t.Parallel()
	a := RunRequested{RunID: "r", AgentID: "support", Messages: Prompt{TextMessage(RoleUser, "hi")}}
	var b RunRequested
	if err := json.Unmarshal([]byte(`{"messages":"hi","agentId":"support","runId":"r"}`), &b); err != nil {
		t.Fatal(err)
	}
	if !a.Same(b) {
		t.Error("a text and a list of one message differ")
	}
	if b.ThreadID = "t"; a.Same(b) {
		t.Error("requests for two threads are the same")
	}
	if b = a; b.Same(RunRequested{Args: json.RawMessage("{")}) {
		t.Error("what cannot be written is the same as something")
	}
}

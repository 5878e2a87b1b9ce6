package events

import (
	"encoding/json"
	"testing"
)

// TestScopes tells what a principal may do at all: without scopes what everybody may, with scopes what they name, and nothing
// by scopes that are empty or that nobody knows.
func TestScopes(t *testing.T) {
	t.Parallel()
	for def, want := range map[string]string{
		`{"id":"x"}`:                             "start read decide stop",
		`{"id":"x","scopes":null}`:               "start read decide stop",
		`{"id":"x","scopes":[]}`:                 "",
		`{"id":"x","scopes":["root"]}`:           "",
		`{"id":"x","scopes":["read"]}`:           "read",
		`{"id":"x","scopes":["read","audit"]}`:   "read audit",
		`{"id":"x","scopes":["decide"]}`:         "decide stop",
		`{"id":"x","scopes":["start"]}`:          "start stop",
		`{"id":"x","scopes":["admin","decide"]}`: "decide admin stop",
	} {
		var p PrincipalDef
		if err := json.Unmarshal([]byte(def), &p); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, scope := range PrincipalScopes() {
			if p.May(scope) != (p.Lacks(scope) == nil) {
				t.Errorf("%s: %s is both allowed and lacking", def, scope)
			}
			if p.May(scope) {
				got += " " + scope
			}
		}
		if p.Lacks(ScopesToStop()...) == nil {
			got += " stop"
		}
		if want != "" {
			want = " " + want
		}
		if got != want {
			t.Errorf("%s may%s, want%s", def, got, want)
		}
	}
	refusal := PrincipalDef{ID: "ann", Scopes: []string{MayRead}}.Lacks(MayDecide, MayAdmin)
	if want := "ann needs the scope decide or admin, and has read"; refusal == nil || refusal.Code != CodeForbidden || refusal.Message != want {
		t.Errorf("refused with %+v, want %q", refusal, want)
	}
}

package events

import (
	"strings"
	"testing"
	"time"
)

func TestGrantTermsComplete(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   GrantTerms
		want GrantTerms
		bad  string // field
	}{
		{GrantTerms{Scope: ScopeRun}, GrantTerms{Scope: ScopeRun, For: Duration(time.Hour), Uses: 10}, ""},
		{
			GrantTerms{Scope: ScopeThread, For: Duration(720 * time.Hour), Uses: 1000, When: "true"},
			GrantTerms{Scope: ScopeThread, For: Duration(720 * time.Hour), Uses: 1000, When: "true"},
			"",
		},
		{GrantTerms{}, GrantTerms{}, "scope"},
		{GrantTerms{Scope: "namespace"}, GrantTerms{}, "scope"},
		{GrantTerms{Scope: ScopeRun, For: Duration(720*time.Hour + 1)}, GrantTerms{}, "for"},
		{GrantTerms{Scope: ScopeRun, For: -1}, GrantTerms{}, "for"},
		{GrantTerms{Scope: ScopeRun, Uses: -1}, GrantTerms{}, "uses"},
		{GrantTerms{Scope: ScopeRun, Uses: 1001}, GrantTerms{}, "uses"},
	} {
		got, err := c.in.Complete()
		switch {
		case c.bad == "" && (err != nil || got != c.want):
			t.Errorf("%+v: %+v, %v", c.in, got, err)
		case c.bad != "" && (err == nil || err.Code != CodeInvalidRequest || len(err.Issues) != 1 || err.Issues[0].Field != c.bad):
			t.Errorf("%+v: %+v, want %s refused", c.in, err, c.bad)
		}
	}
}

// TestB8_28_GrantCovers changes one thing after the other of a call that a grant is for.
func TestB8_28_GrantCovers(t *testing.T) {
	t.Parallel()
	call := CallHeld{AgentID: "support", ToolID: "pay", RunID: "r1", ThreadID: "t1", ResourceID: "bob"}
	run := Grant{AgentID: "support", ToolID: "pay", RunID: "r1", Terms: GrantTerms{Scope: ScopeRun}}
	thread := Grant{AgentID: "support", ToolID: "pay", ThreadID: "t1", ResourceID: "bob", Terms: GrantTerms{Scope: ScopeThread}}
	for name, c := range map[string]struct {
		change      func(*CallHeld)
		run, thread bool
	}{
		"the call":         {func(*CallHeld) {}, true, true},
		"another agent":    {func(a *CallHeld) { a.AgentID = "sales" }, false, false},
		"another tool":     {func(a *CallHeld) { a.ToolID = "pay2" }, false, false},
		"another run":      {func(a *CallHeld) { a.RunID = "r2" }, false, true},
		"a child":          {func(a *CallHeld) { a.RunID = "r1=1-1" }, false, true},
		"another thread":   {func(a *CallHeld) { a.ThreadID = "t2" }, true, false},
		"no thread":        {func(a *CallHeld) { a.ThreadID = "" }, true, false},
		"another resource": {func(a *CallHeld) { a.ResourceID = "carol" }, true, false},
		"no resource":      {func(a *CallHeld) { a.ResourceID = "" }, true, false},
	} {
		a := call
		c.change(&a)
		if run.Covers(a) != c.run || thread.Covers(a) != c.thread {
			t.Errorf("%s: of a run %v, of a thread %v", name, run.Covers(a), thread.Covers(a))
		}
	}
	none := CallHeld{AgentID: "support", ToolID: "pay"}
	for _, scope := range []string{"", ScopeRun, ScopeThread, "agent"} {
		if (Grant{AgentID: "support", ToolID: "pay", Terms: GrantTerms{Scope: scope}}).Covers(none) {
			t.Errorf("a grant of scope %q that names nothing covers what names nothing", scope)
		}
	}
}

func TestGrantInForce(t *testing.T) {
	t.Parallel()
	g := Grant{ExpiresAt: sampleTime}
	if !g.InForce(sampleTime.Add(-1)) || g.InForce(sampleTime) {
		t.Error("a grant is over at its end")
	}
	if g.Revoked = &(Revocation{}); g.InForce(sampleTime.Add(-time.Hour)) {
		t.Error("a revoked grant is in force")
	}
}

// TestGrantKeys finds every grant by what it is about, and none by what another is about, whatever the ids hold.
func TestGrantKeys(t *testing.T) {
	t.Parallel()
	ids := []string{"a", "b.c", "*", ">", "", strings.Repeat("x", 70), "=0"}
	seen := map[string]string{}
	for _, scope := range []string{ScopeRun, ScopeThread} {
		for _, of := range ids {
			for _, id := range ids[:4] {
				g := Grant{ID: id, ToolID: "pay.all", Terms: GrantTerms{Scope: scope}}
				if g.RunID = of; scope == ScopeThread {
					g.RunID, g.ThreadID = "", of
				}
				key := g.Key()
				if n := strings.Count(key, "."); n != 3 || strings.ContainsAny(key, "*> ") {
					t.Errorf("key %q", key)
				}
				if other, twice := seen[key]; twice {
					t.Errorf("key %q is that of %s and of %s/%s/%s", key, other, scope, of, id)
				}
				seen[key] = scope + "/" + of + "/" + id
				if f := (GrantFilter{Scope: scope, Of: of, Tool: "pay.all", ID: id}); of != "" && f.Keys() != key {
					t.Errorf("filter %q, key %q", f.Keys(), key)
				}
			}
		}
	}
	if f := (GrantFilter{}).Keys(); f != "*.*.*.*" {
		t.Errorf("filter of all: %q", f)
	}
	child := Grant{ID: "g", RunID: "r=1-2", ToolID: "t", Terms: GrantTerms{Scope: ScopeRun}}
	if child.Key() != "run.r=1-2.t.g" {
		t.Errorf("key of a child run's: %q", child.Key())
	}
}

package client_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// payIn takes a run in a thread of bob's to its end, or until its call waits.
func payIn(t *testing.T, c *client.Client, run, thread string) *client.Output {
	t.Helper()
	out, err := c.Generate(t.Context(), client.Request{
		Agent: "clerk", Prompt: "pay", RunID: run, ThreadID: thread, ResourceID: "bob",
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestB8_27_B8_28GrantsAreGivenListedAndTakenBack gives a grant with an approval and one without, sees how far they are used,
// and takes them back.
func TestB8_27_B8_28GrantsAreGivenListedAndTakenBack(t *testing.T) {
	t.Parallel()
	conn := start(t)
	keys := serve(t, conn)
	alice := clientWith(t, conn, client.Config{Principal: "alice", GateKeys: keys})
	bob := newClient(t, conn, "bob")

	if first := payIn(t, bob, "r1", "t1"); len(first.Asks) != 1 {
		t.Fatalf("the first run: %+v", first)
	}
	out, err := alice.Decide(t.Context(), client.Decision{
		Decision: events.Approve, ToolCallID: "r1=1-1", Reason: "known customer",
		Grant: &events.GrantTerms{Scope: events.ScopeThread, Uses: 2, For: events.Duration(30 * time.Minute), When: "args.amount < 100.0"},
	})
	if err != nil || out.GrantID == "" {
		t.Fatalf("outcome = %+v, %v", out, err)
	}
	if second := payIn(t, bob, "r2", "t1"); second.Text != "Done." {
		t.Fatalf("the second run: %+v", second)
	}
	g, err := bob.GrantInfo(t.Context(), out.GrantID)
	if err != nil || g.State != client.GrantActive || g.Used == nil || *g.Used != 1 || g.LastUsed == nil ||
		g.ToolCallID != "r1=1-1" || g.Terms.Uses != 2 || g.GrantedBy != "alice" || g.ThreadID != "t1" {
		t.Fatalf("grant = %+v, %v", g, err)
	}

	given, err := alice.Grant(t.Context(), client.GrantRequest{
		Agent: "clerk", Tool: "issue_refund", Run: "r3", Terms: events.GrantTerms{Scope: events.ScopeRun}, Reason: "sale day",
	})
	if err != nil || given.State != client.GrantActive || given.RunID != "r3" || given.Terms.Uses != events.DefaultGrantUses ||
		given.GrantedBy != "alice" || given.GrantedAt.IsZero() {
		t.Fatalf("given: %+v, %v", given, err)
	}
	again, err := alice.Grant(t.Context(), client.GrantRequest{
		ID: given.ID, Agent: "clerk", Tool: "issue_refund", Run: "r3", Terms: events.GrantTerms{Scope: events.ScopeRun},
	})
	if err != nil || again.ID != given.ID {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	ids := func(f client.GrantFilter) (list []string) {
		t.Helper()
		all, err := alice.Grants(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range all {
			list = append(list, g.ID)
		}
		return list
	}
	if got := ids(client.GrantFilter{}); !slices.Equal(got, []string{given.ID, out.GrantID}) {
		t.Errorf("grants = %v, the latest first", got)
	}
	for name, f := range map[string]client.GrantFilter{
		"thread": {Thread: "t1"}, "resource": {Resource: "bob", Agent: "clerk"}, "tool": {Tool: "issue_refund", Thread: "t1", By: "alice"},
	} {
		if got := ids(f); !slices.Equal(got, []string{out.GrantID}) {
			t.Errorf("%s: grants = %v", name, got)
		}
	}
	if got := ids(client.GrantFilter{Tool: "lookup_order"}); len(got) != 0 {
		t.Errorf("grants of another tool: %v", got)
	}

	for range 2 { // again is no error
		revoked, err := bob.Revoke(t.Context(), given.ID, "the sale is over")
		if err != nil || revoked.State != client.GrantRevoked || revoked.Revoked.By != "bob" || revoked.Revoked.Reason != "the sale is over" {
			t.Fatalf("revoked: %+v, %v", revoked, err)
		}
	}
	if got := ids(client.GrantFilter{Run: "r3"}); len(got) != 0 {
		t.Errorf("a revoked grant is listed: %v", got)
	}
	if got := ids(client.GrantFilter{Run: "r3", All: true}); !slices.Equal(got, []string{given.ID}) {
		t.Errorf("all grants of the run: %v", got)
	}
	if third := payIn(t, bob, "r3", "t2"); len(third.Asks) != 1 {
		t.Errorf("the run whose grant was revoked: %+v", third)
	}
}

// TestB8_28RefusedGrants tells who asks why a grant cannot be.
func TestB8_28RefusedGrants(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "alice")
	good := client.GrantRequest{ID: "g1", Agent: "clerk", Tool: "issue_refund", Thread: "t1", Terms: events.GrantTerms{Scope: events.ScopeThread}}
	if _, err := c.Grant(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*client.GrantRequest)
		code   events.Code
	}{
		"taken id":  {func(r *client.GrantRequest) { r.Thread = "t2" }, events.CodeAlreadyDecided},
		"no agent":  {func(r *client.GrantRequest) { r.ID, r.Agent = "g2", "nobody" }, events.CodeNotFound},
		"no thread": {func(r *client.GrantRequest) { r.ID, r.Thread = "g2", "" }, events.CodeInvalidRequest},
		"no scope":  {func(r *client.GrantRequest) { r.ID, r.Terms.Scope = "g2", "" }, events.CodeInvalidRequest},
		"bad when":  {func(r *client.GrantRequest) { r.ID, r.Terms.When = "g2", "args." }, events.CodeInvalidRequest},
	} {
		r := good
		test.change(&r)
		if _, err := c.Grant(t.Context(), r); events.CodeOf(err) != test.code {
			t.Errorf("%s: %v, want %s", name, err, test.code)
		}
	}
	_, err := c.Revoke(t.Context(), "g9", "")
	wantCode(t, err, events.CodeNotFound)
	_, err = c.GrantInfo(t.Context(), "g9")
	wantCode(t, err, events.CodeNotFound)
	_, err = c.Revoke(t.Context(), "", "")
	wantCode(t, err, events.CodeInvalidRequest)
}

// TestB8_28GrantWithoutTheRightToRead gives and revokes a grant as somebody who may read no stream: he hears refusals, and
// nothing else.
func TestB8_28GrantWithoutTheRightToRead(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := clientWith(t, conn, client.Config{Principal: "alice", LiveOnly: true})
	r := client.GrantRequest{ID: "g1", Agent: "clerk", Tool: "issue_refund", Thread: "t1", Terms: events.GrantTerms{Scope: events.ScopeThread}}
	g, err := c.Grant(t.Context(), r)
	if err != nil || g.State != client.GrantSent {
		t.Fatalf("grant = %+v, %v", g, err)
	}
	r.Thread = "t2"
	_, err = c.Grant(t.Context(), r)
	wantCode(t, err, events.CodeAlreadyDecided)
	if g, err = c.Revoke(t.Context(), "g1", ""); err != nil || g.State != client.GrantSent {
		t.Fatalf("revoked = %+v, %v", g, err)
	}
	if g, err := newClient(t, conn, "bob").GrantInfo(t.Context(), "g1"); err != nil || g.State != client.GrantRevoked {
		t.Errorf("grant = %+v, %v", g, err)
	}
	_, err = c.Grants(t.Context(), client.GrantFilter{})
	wantCode(t, err, events.CodeForbidden)
}

package client_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// TestB8_30_InboxFilters lists the asks of two suspended runs by what a person may look for.
func TestB8_30_InboxFilters(t *testing.T) {
	t.Parallel()
	conn := start(t)
	now := time.Now().UTC().Truncate(time.Second)
	ask := func(id, tool string, asked, expires time.Duration, more events.OpenAsk) events.OpenAsk {
		call, err := events.ParseCallID(id)
		if err != nil {
			t.Fatal(err)
		}
		more.ToolCallID, more.RunID, more.ToolName, more.AgentID = id, call.Run, tool, "clerk"
		more.AskedAt, more.ExpiresAt, more.Kind = now.Add(-asked), now.Add(expires), events.AskApproval
		more.Allowed = more.Kind.Allowed()
		return more
	}
	finance := []string{"group:finance"}
	for run, asks := range map[string][]events.OpenAsk{
		"r1": {
			ask("r1=1-1", "refund", time.Hour, 9*time.Hour, events.OpenAsk{}),
			ask("r1=1-2", "delete", 3*time.Hour, time.Hour, events.OpenAsk{Approvers: finance}),
		},
		"r2": {
			ask("r2=1-1", "deploy", 2*time.Hour, 5*time.Hour, events.OpenAsk{NotRequester: true}),
			ask("r2=1-2", "refund", time.Minute, time.Minute, events.OpenAsk{Approvers: []string{"user:bob"}}),
		},
	} {
		snap := &events.Snapshot{
			State: events.State{
				V: events.SnapshotVersion, RunID: run, RootRunID: run, AgentID: "clerk", Requester: map[string]string{"r1": "bob", "r2": "alice"}[run],
			},
			SuspendedAt: now, Asks: asks,
		}
		if _, err := conn.PutSnapshot(t.Context(), snap, 0); err != nil {
			t.Fatal(err)
		}
	}
	def, err := events.Marshal(events.PrincipalDef{ID: "alice", Auth: events.AuthKey, Groups: []string{"finance"}})
	if err == nil {
		err = conn.PutNamed(t.Context(), events.RegistryPrincipal, "alice", def)
	}
	if err != nil {
		t.Fatal(err)
	}
	me := func(name string) *events.Approver {
		t.Helper()
		me, err := newClient(t, conn, name).Me(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return me
	}
	for name, row := range map[string]struct {
		f    client.Filter
		want []string
	}{
		"the oldest first":    {client.Filter{}, []string{"r1=1-2", "r2=1-1", "r1=1-1", "r2=1-2"}},
		"the youngest first":  {client.Filter{Reverse: true}, []string{"r2=1-2", "r1=1-1", "r2=1-1", "r1=1-2"}},
		"by expiry":           {client.Filter{Sort: client.ByExpiry}, []string{"r2=1-2", "r1=1-2", "r2=1-1", "r1=1-1"}},
		"by tool":             {client.Filter{Sort: client.ByTool}, []string{"r1=1-2", "r2=1-1", "r1=1-1", "r2=1-2"}},
		"by agent":            {client.Filter{Sort: client.ByAgent, PerPage: 1, Page: 3}, []string{"r2=1-2"}},
		"soon to expire":      {client.Filter{ExpireBefore: now.Add(2 * time.Hour)}, []string{"r1=1-2", "r2=1-2"}},
		"asked long ago":      {client.Filter{AskedBefore: now.Add(-90 * time.Minute)}, []string{"r1=1-2", "r2=1-1"}},
		"alice may":           {client.Filter{Approver: me("alice")}, []string{"r1=1-2", "r1=1-1"}},
		"bob may":             {client.Filter{Approver: me("bob")}, []string{"r2=1-1", "r1=1-1", "r2=1-2"}},
		"carol may, a refund": {client.Filter{Approver: me("carol"), Tool: "refund"}, []string{"r1=1-1"}},
	} {
		asks, _, err := newClient(t, conn, "alice").Asks(t.Context(), row.f)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range asks {
			got = append(got, a.ToolCallID)
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	_, _, err = newClient(t, conn, "alice").Asks(t.Context(), client.Filter{Sort: "size"})
	wantCode(t, err, events.CodeInvalidRequest)

	heard := events.CallHeld{RunID: "r1=1-1", RootRunID: "r1", ToolName: "refund", Kind: events.AskApproval, Allowed: []events.Decision{events.Approve}}
	for name, row := range map[string]struct {
		f    client.Filter
		want bool
	}{
		"all":             {client.Filter{}, true},
		"of the root":     {client.Filter{Run: "r1", Tool: "refund"}, true},
		"of another run":  {client.Filter{Run: "r2"}, false},
		"of another tool": {client.Filter{Tool: "delete"}, false},
		"mine":            {client.Filter{Approver: me("bob")}, true},
	} {
		if got := row.f.Takes(heard); got != row.want {
			t.Errorf("heard, %s: %v", name, got)
		}
	}
}

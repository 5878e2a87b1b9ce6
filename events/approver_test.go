package events_test

import (
	"testing"

	"github.com/weirkeeper/weir/events"
)

func TestB8_30_WhoMayDecide(t *testing.T) {
	t.Parallel()
	alice := events.Approver{ID: "alice", Groups: []string{"finance"}}
	odd := events.Approver{ID: "alice@example.com"}
	barred := events.Approver{ID: "alice", Groups: []string{"finance"}, Barred: true}
	for name, row := range map[string]struct {
		who       events.Approver
		ask       events.OpenAsk
		requester string
		want      bool
	}{
		"anybody":               {alice, events.OpenAsk{}, "bob", true},
		"named":                 {alice, events.OpenAsk{Approvers: []string{"user:bob", "user:alice"}}, "bob", true},
		"in a group":            {alice, events.OpenAsk{Approvers: []string{"group:finance"}}, "bob", true},
		"in another group":      {alice, events.OpenAsk{Approvers: []string{"group:alice", "user:finance", "alice"}}, "bob", false},
		"nobody":                {alice, events.OpenAsk{Approvers: []string{"nobody:rules-disagree"}}, "bob", false},
		"the requester":         {alice, events.OpenAsk{NotRequester: true}, "alice", false},
		"by its token":          {odd, events.OpenAsk{NotRequester: true}, events.Token(odd.ID), false},
		"not the requester":     {alice, events.OpenAsk{NotRequester: true}, "bob", true},
		"the client":            {odd, events.OpenAsk{Kind: events.AskClient}, events.Token(odd.ID), true},
		"not the client":        {alice, events.OpenAsk{Kind: events.AskClient}, "bob", false},
		"without the scope":     {barred, events.OpenAsk{}, "bob", false},
		"a wait":                {alice, events.OpenAsk{Kind: events.AskWait}, "bob", false},
		"has voted":             {alice, events.OpenAsk{Quorum: &events.Quorum{Need: 2, Votes: []events.VoteBrief{{Principal: "alice"}}}}, "bob", false},
		"another one has voted": {alice, events.OpenAsk{Quorum: &events.Quorum{Need: 2, Votes: []events.VoteBrief{{Principal: "bob"}}}}, "bob", true},
	} {
		row.ask.Allowed = []events.Decision{events.Approve}
		if got := row.who.May(row.ask, row.requester); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
		row.ask.Allowed = nil
		if row.who.May(row.ask, row.requester) {
			t.Errorf("%s: may decide what takes no decision", name)
		}
	}
}

package jetstreamtest_test

import (
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// tale is a log of one call that needs two votes, is repeated, carried and answered; a test may spoil a part of it.
type tale struct {
	t        *testing.T
	o        *events.Origin
	call     events.CallID
	facts    []events.Event
	ask      events.CallHeld
	repeated func(*events.CallHeld)
	carried  func(*events.CallHeld)
	vote     func(*events.VoteCast)
	answer   func(*events.CallAnswered)
}

var taleBegan = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

func (s *tale) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *tale) store(e events.Event, err error) events.Event {
	s.t.Helper()
	s.must(err)
	e.Seq = uint64(len(s.facts) + 1)
	e.Stored = taleBegan.Add(time.Duration(e.Seq) * time.Minute)
	s.facts = append(s.facts, e)
	return e
}

func (s *tale) place(kind events.Kind) events.Place {
	return events.DefaultNamespace.Call(s.call, kind)
}

func spoil[T any](f func(*T), v T) T {
	if f != nil {
		f(&v)
	}
	return v
}

func (s *tale) votes(who string) events.VoteBrief {
	v := spoil(s.vote, events.VoteCast{
		ToolCallID: s.call.String(), RunID: s.call.Run, Decision: events.Approve, Fingerprint: s.ask.Fingerprint, Principal: who,
		At: taleBegan.Add(time.Duration(len(s.facts)) * time.Minute), EventID: "e-" + who, InboxSeq: 1,
	})
	s.store(s.o.Fact(events.DefaultNamespace.Beside(s.call, events.KindVote, who), v, events.Event{}))
	return v.Brief()
}

// tell makes the log.
func (s *tale) tell() []events.Event {
	s.t.Helper()
	args := json.RawMessage(`{}`)
	s.ask = events.CallHeld{
		ToolCallID: s.call.String(), RunID: s.call.Run, RootRunID: s.call.Run, AgentID: "support",
		Path: []events.PathEntry{{AgentID: "support", RunID: s.call.Run}}, Kind: events.AskApproval, ToolName: "pay", ToolID: "pay",
		ToolVersion: "1", ToolDigest: "sha256:00", InputSchemaDigest: "sha256:00", Effect: events.Effectful, Args: args,
		Fingerprint: events.Frozen{
			Namespace: events.DefaultNamespace, RunID: s.call.Run, ToolCallID: s.call.String(), ToolID: "pay", ToolVersion: "1",
			InputSchemaDigest: "sha256:00", Args: args,
		}.Fingerprint(),
		Allowed: events.AskApproval.Allowed(), Approvers: []string{"user:alice"}, Quorum: &events.Quorum{Need: 2},
		OnExpiry: events.OnExpiryEscalate, Wait: events.Duration(time.Minute), AskedAt: taleBegan, ExpiresAt: taleBegan.Add(2 * time.Minute),
		Escalate: []events.Stage{{At: taleBegan.Add(time.Hour), To: []string{"user:bob"}}},
	}
	asked := s.store(s.o.Fact(s.place(events.KindAsk), s.ask, events.Event{}))
	alice := s.votes("alice")
	next := s.ask
	next.Escalate, next.EscalatedTo, next.Approvers = nil, []string{"user:bob"}, []string{"user:alice", "user:bob"}
	next.ExpiresAt, next.OnExpiry, next.Since = taleBegan.Add(time.Hour), events.OnExpiryDecline, &asked.Stored
	next.Quorum = next.Quorum.With(alice)
	next = spoil(s.repeated, next)
	again := s.store(s.o.Fact(s.place(events.KindAsk), next, asked))
	bob := s.votes("bob")
	next.Quorum = next.Quorum.With(bob)
	next = spoil(s.carried, next)
	copied, err := s.o.Carry(again, next)
	copied = s.store(copied, err)
	s.store(s.o.Fact(s.place(events.KindAnswer), spoil(s.answer, events.CallAnswered{
		ToolCallID: s.call.String(), RunID: s.call.Run, Decision: events.Approve, Fingerprint: s.ask.Fingerprint, Principal: "bob",
		At: bob.At, EventID: "e-bob", Votes: []events.VoteBrief{alice, bob},
	}), copied))
	return s.facts
}

// TestCheckAsks spoils a log of votes and repeated asks, one thing at a time: the checker finds each.
func TestCheckAsks(t *testing.T) {
	t.Parallel()
	pub, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key := events.Key{Public: "U1", Private: private}
	for name, test := range map[string]struct {
		spoil func(*tale)
		want  string
	}{
		"as it should be":      {func(*tale) {}, ""},
		"another question":     {func(s *tale) { s.repeated = func(a *events.CallHeld) { a.Fingerprint = "sha256:01" } }, "another question"},
		"another round":        {func(s *tale) { s.repeated = func(a *events.CallHeld) { a.Round = 1 } }, "another question"},
		"fewer are needed":     {func(s *tale) { s.repeated = func(a *events.CallHeld) { a.Quorum.Need = 1 } }, "another question"},
		"somebody is left out": {func(s *tale) { s.repeated = func(a *events.CallHeld) { a.Approvers = []string{"user:bob"} } }, "approvers"},
		"everybody is let in":  {func(s *tale) { s.repeated = func(a *events.CallHeld) { a.Approvers = nil } }, "approvers"},
		"no stage begins":      {func(s *tale) { s.repeated = func(a *events.CallHeld) { a.Escalate = s.ask.Escalate } }, "for nothing"},
		"earlier deadline":     {func(s *tale) { s.repeated = func(a *events.CallHeld) { a.ExpiresAt = taleBegan } }, "deadline"},
		"no since":             {func(s *tale) { s.repeated = func(a *events.CallHeld) { a.Since = nil } }, "open since"},
		"a vote is lost":       {func(s *tale) { s.carried = func(a *events.CallHeld) { a.Quorum.Votes = a.Quorum.Votes[1:] } }, "lost the vote"},
		"a vote is made up": {func(s *tale) {
			s.carried = func(a *events.CallHeld) {
				a.Quorum = a.Quorum.With(events.VoteBrief{Principal: "mallory", Decision: events.Approve, At: taleBegan})
			}
		}, "was not cast"},
		"carried for longer": {func(s *tale) { s.carried = func(a *events.CallHeld) { a.ExpiresAt = a.ExpiresAt.Add(1) } }, "not the one that was open"},
		"votes of one":       {func(s *tale) { s.answer = func(a *events.CallAnswered) { a.Votes = a.Votes[1:] } }, "2 are needed"},
		"one votes twice":    {func(s *tale) { s.answer = func(a *events.CallAnswered) { a.Votes[0] = a.Votes[1] } }, "2 are needed"},
		"who has not voted":  {func(s *tale) { s.answer = func(a *events.CallAnswered) { a.Principal = "carol" } }, "has not voted"},
		"votes of a decline": {func(s *tale) { s.answer = func(a *events.CallAnswered) { a.Decision = events.Decline } }, "needs no votes"},
		"for another round":  {func(s *tale) { s.vote = func(v *events.VoteCast) { v.Round = 3 } }, "did not ask"},
		"for other bytes":    {func(s *tale) { s.vote = func(v *events.VoteCast) { v.Fingerprint = "sha256:02" } }, "did not ask"},
		"too late":           {func(s *tale) { s.vote = func(v *events.VoteCast) { v.At = taleBegan.Add(3 * time.Hour) } }, "did not ask"},
		"not signed":         {func(s *tale) { s.o.Key = nil }, "no gate wrote"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &tale{
				t: t, o: &events.Origin{Namespace: events.DefaultNamespace, Service: "approval", Key: &key},
				call: events.CallID{Run: "r1", Step: 1, Index: 1},
			}
			test.spoil(s)
			r, broken := jetstreamtest.Verify(s.tell(), jetstreamtest.CheckOptions{GateKeys: events.Keys{"U1": pub}})
			all := strings.Join(broken, "\n")
			switch {
			case test.want == "" && all != "":
				t.Errorf("the checker finds\n%s", all)
			case !strings.Contains(all, test.want):
				t.Errorf("the checker finds %q, want %q", all, test.want)
			case test.want == "" && (r["answer:votes"] != 1 || r["carry:votes"] != 1 || r["ask:escalated"] != 1 || r["ask:deadline"] != 1):
				t.Errorf("the report: %v", r)
			}
		})
	}
}

package approval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// A vote is evidence beside the chain, and nothing is fenced by it: what counts is the answer, which follows the ask.
// Whoever finds votes enough appends it, so it does not matter who is stopped where.

// vote keeps the decision that met an ask as one of several that it needs, and answers the ask when there are enough.
func (s *Service) vote(ctx context.Context, d jetstream.Delivery, in events.Inbox, m meeting, data events.CallAnswered) error {
	v := voteOf(data)
	err := s.cast(ctx, d, m, v)
	if errors.Is(err, jetstream.ErrTooLarge) {
		return s.refuse(ctx, d, in, m.call, events.Errorf(events.CodeTooLarge, "the decision is too large to be stored: %v", err))
	}
	if err != nil {
		return err
	}
	b, err := s.count(ctx, m.run, m.call, m.ask)
	if err != nil {
		return err
	}
	if b.complete() {
		return s.storeAnswer(ctx, d, in, m, b.answer(m.ask))
	}
	if err := s.showVotes(ctx, m.run, m.ask, b); err != nil {
		return err
	}
	head, err := s.last(ctx, m.call) // a vote is not fenced: the ask may have been answered before it was stored
	switch {
	case err != nil:
		return fmt.Errorf("read head of %s: %w", m.call, err)
	case head.Place.Kind != events.KindAsk:
		return s.tooLate(ctx, d, in, head)
	case events.RoundOf(head) != m.ask.Round:
		return jetstream.Later(0) // the ask of the next round refuses it
	}
	v.Signed, v.Quorum = nil, &events.Quorum{Need: b.need, Votes: b.briefs()}
	return s.noteVote(ctx, d, in, v)
}

// voteOf is what would be the answer as one of several.
func voteOf(a events.CallAnswered) events.VoteCast {
	return events.VoteCast{
		ToolCallID: a.ToolCallID, RunID: a.RunID, Round: a.Round, Decision: a.Decision, Fingerprint: a.Fingerprint,
		Principal: a.Principal, AuthType: a.AuthType, Groups: a.Groups, At: a.At, Reason: a.Reason,
		EventID: a.EventID, InboxSeq: a.InboxSeq, Signed: a.Signed,
	}
}

// cast stores a vote on its principal's own chain, once a round: who has voted has voted. A vote that no gate has written
// stands in the chain, and is no vote.
func (s *Service) cast(ctx context.Context, d jetstream.Delivery, m meeting, v events.VoteCast) error {
	if m.ask.Quorum.Has(v.Principal) {
		return nil // the fact may have aged out; the ask has it
	}
	place := s.ns.Beside(m.call, events.KindVote, v.Principal)
	before, err := s.conn.Fact(ctx, place)
	if err != nil && !errors.Is(err, jetstream.ErrNotFound) && !errors.Is(err, jetstream.ErrTampered) {
		return fmt.Errorf("read vote about %s: %w", m.call, err)
	}
	if err == nil && s.genuine(before) == nil {
		old, err := events.Data[events.VoteCast](before)
		switch {
		case err != nil:
			return jetstream.Final(err)
		case old.For(m.ask):
			return nil
		case old.Round > v.Round:
			return jetstream.Later(0) // the ask that was met is over
		}
	}
	fact, err := s.origin.Fact(place, v, d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	guard := events.First(place)
	if before.Seq > 0 {
		guard = events.After(before)
	}
	a, err := s.conn.Append(ctx, guard, fact)
	switch {
	case a.Outcome == jetstream.Stored:
		s.trust(a.Last)
		return nil
	case err == nil || errors.Is(err, jetstream.ErrTampered):
		return jetstream.Later(0) // another copy of this handler, or what the principal sent a moment ago
	}
	return fmt.Errorf("append vote about %s: %w", m.call, err)
}

// ballot are the votes of a round that count at this moment, in the order in which they were cast: one of each principal,
// and only of those who still may decide.
type ballot struct {
	need  int
	votes []events.VoteCast
}

func (b ballot) complete() bool { return b.need > 1 && len(b.votes) >= b.need }

func (b ballot) briefs() []events.VoteBrief {
	all := make([]events.VoteBrief, len(b.votes))
	for i, v := range b.votes {
		all[i] = v.Brief()
	}
	return all
}

// answer is that of a complete ballot: in the name of who voted last, the other votes inside.
func (b ballot) answer(ask events.CallHeld) events.CallAnswered {
	last := b.votes[len(b.votes)-1]
	return events.CallAnswered{
		ToolCallID: ask.ToolCallID, RunID: ask.RunID, Round: ask.Round, Decision: last.Decision, Fingerprint: ask.Fingerprint,
		Principal: last.Principal, AuthType: last.AuthType, Groups: last.Groups, At: last.At, Reason: last.Reason,
		EventID: last.EventID, InboxSeq: last.InboxSeq, Votes: b.briefs(), Rules: ask.Rules, Signed: last.Signed,
	}
}

// beside is what an answer's message has beside its data, at most: ids, headers, the signature.
const beside = 16 << 10

// addAnswer appends an answer to the ask that it follows. That of a quorum repeats what its last voter said, which may have
// just fitted into the vote: where it does not fit beside the other votes, it is left to the vote's own fact. That is
// judged by what the answer says and a margin, so that whoever appends it finds the same.
func (s *Service) addAnswer(ctx context.Context, call events.CallID, ask events.Event, data events.CallAnswered) (events.Event, bool, error) {
	if len(data.Votes) > 0 {
		body, err := events.Marshal(data)
		if err != nil {
			return events.Event{}, false, jetstream.Final(err)
		}
		if limit := s.conn.MaxMessage(); limit > 0 && int64(len(body))+beside > limit {
			data.Reason, data.Groups, data.Signed = "", nil, nil
		}
	}
	return s.add(ctx, s.ns.Call(call, events.KindAnswer), ask, data)
}

// clocks is how far the clocks of two machines may be apart. A vote that is older than its run by more was cast in an earlier
// run of the same id, which has aged out since.
const clocks = time.Hour

// count reads the votes about an open ask: those that the log holds, and those that the ask has taken inside because they
// age out. Names of subjects prove nothing: a vote counts with a gate's signature only.
func (s *Service) count(ctx context.Context, r *run, call events.CallID, ask events.CallHeld) (ballot, error) {
	if ask.Quorum == nil || ask.Quorum.Need < 2 {
		return ballot{}, nil
	}
	b := ballot{need: ask.Quorum.Need}
	cast, err := s.conn.Votes(ctx, call, func(fact events.Event) bool { return s.genuine(fact) == nil })
	if err != nil {
		return b, err
	}
	for _, v := range cast {
		if v.For(ask) && !v.At.Before(r.start.StartedAt.Add(-clocks)) {
			b.votes = append(b.votes, v)
		}
	}
	for _, brief := range ask.Quorum.Votes {
		if !slices.ContainsFunc(b.votes, func(v events.VoteCast) bool { return events.SamePrincipal(v.Principal, brief.Principal) }) {
			b.votes = append(b.votes, events.VoteCast{Principal: brief.Principal, Decision: brief.Decision, At: brief.At})
		}
	}
	if b.votes, err = s.entitled(ctx, r, ask, b.votes); err != nil {
		return b, err
	}
	slices.SortFunc(b.votes, func(a, b events.VoteCast) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Principal, b.Principal))
	})
	return b, nil
}

// entitled leaves the votes of those who may still decide: a principal may have been taken out since, or out of a group.
func (s *Service) entitled(ctx context.Context, r *run, ask events.CallHeld, votes []events.VoteCast) ([]events.VoteCast, error) {
	var left []events.VoteCast
	for _, v := range votes {
		def, err := s.principal(ctx, v.Principal)
		if err != nil {
			return nil, err
		}
		v.AuthType = cmp.Or(v.AuthType, def.Auth)
		if s.mayStill(r, ask, def, v) {
			left = append(left, v)
		}
	}
	return left, nil
}

// mayStill reports whether a principal may decide as things are now. A vote that only the ask still holds was looked at
// when the ask took it inside: its signature, and what a gateway said of its principal's groups, are no longer there.
func (s *Service) mayStill(r *run, ask events.CallHeld, def events.PrincipalDef, v events.VoteCast) bool {
	who := proof{principal: v.Principal, authType: v.AuthType, groups: def.Groups, signed: v.Signed}
	if def.Auth == events.AuthGateway {
		who.groups = v.Groups
	}
	if inside := v.EventID == ""; inside {
		ask.Signed = false
		if def.Auth == events.AuthGateway {
			ask.Approvers = nil
		}
	}
	known := def.Auth != "" && def.May(events.MayDecide) && (def.Auth != events.AuthSubject || s.cfg.Dev)
	return known && meeting{ask: ask, run: r, who: who}.checkEntitled(events.Event{}) == nil
}

// noteVote tells a voter that the vote was taken, and how the ask stands.
func (s *Service) noteVote(ctx context.Context, d jetstream.Delivery, in events.Inbox, v events.VoteCast) error {
	call, err := events.ParseCallID(v.ToolCallID)
	if err != nil {
		return jetstream.Final(err)
	}
	subject := s.ns.Note(in.Principal, call.Run, call.Token())
	e, err := s.origin.Request(subject, call.Run, v, d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	s.note(ctx, subject, e)
	return nil
}

// sentBy reports whether a decision is of the sender of an answer: everybody can read under which id that was sent.
func sentBy(a events.CallAnswered, d jetstream.Delivery) bool {
	if a.AuthType == events.AuthAuto {
		return d.Event.AuthID == events.TokenAuto
	}
	return events.SamePrincipal(a.Principal, d.Event.AuthID)
}

// took reports whether a decision is part of the answer that counted: it is that answer, or one of its votes.
func took(counted *events.CallAnswered, d jetstream.Delivery) bool {
	return counted != nil && (counted.EventID == d.Event.ID && sentBy(*counted, d) || slices.ContainsFunc(counted.Votes, func(v events.VoteBrief) bool {
		return events.SamePrincipal(v.Principal, d.Event.AuthID) && v.At.Equal(d.Event.Stored)
	}))
}

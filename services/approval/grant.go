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
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// A grant is an approval that stands: it answers asks like the one that it came with before they reach people, as its
// grantor would answer them now. So it releases nothing that he may not approve, and nothing that a rule wants a person
// to look at each time. It saves people a question; whatever goes wrong with it, they are asked.

// checkGrant holds the terms that a decision brings against what a grant can be.
func (m meeting) checkGrant(events.Event) *events.Error {
	if m.req.Grant == nil {
		return nil
	}
	switch {
	case m.req.Decision != events.Approve:
		return badGrant("only approve brings a grant, not "+string(m.req.Decision), "grant", "goes with approve")
	case m.ask.Votes(m.req.Decision):
		return badGrant("a call that needs several approvals takes no grant", "grant", "is not taken")
	case !takesGrants(m.ask):
		return badGrant("a person must look at each call like this one: approve it without a grant", "grant", "is not taken")
	case m.req.Grant.Scope == events.ScopeThread && m.ask.ThreadID == "":
		return badGrant("the run belongs to no thread", "grant.scope", "use run")
	}
	_, refusal := checkTerms(*m.req.Grant, "grant.")
	return refusal
}

// badGrant says what is wrong with a grant, and of which field of the request that is true.
func badGrant(text, field, what string) *events.Error {
	e := events.Errorf(events.CodeInvalidRequest, "%s", text)
	e.Issues = []events.Issue{{Field: field, Message: what}}
	return e
}

// checkTerms completes the terms of a grant, which stand at a place of a request. The condition is compiled, so that what can
// never hold is refused at once.
func checkTerms(t events.GrantTerms, at string) (events.GrantTerms, *events.Error) {
	t, refusal := t.Complete()
	if refusal != nil {
		for i := range refusal.Issues {
			refusal.Issues[i].Field = at + refusal.Issues[i].Field
		}
		return t, refusal
	}
	if t.When == "" {
		return t, nil
	}
	program, err := rule.Compile(t.When)
	switch {
	case err != nil:
		return t, badGrant("the condition of the grant cannot be used", at+"when", err.Error())
	case !program.ReadsOnlyArgs():
		return t, badGrant("the condition of the grant cannot be used", at+"when", "it may look at args only")
	}
	return t, nil
}

// terms are those of the grant that a decision brings, complete; nil when it brings none. They have been checked.
func (m meeting) terms() *events.GrantTerms {
	if m.req.Grant == nil {
		return nil
	}
	t, _ := m.req.Grant.Complete()
	return &t
}

// takesGrants reports whether calls like this one may be released without a person who looks at each.
func takesGrants(a events.CallHeld) bool {
	return a.Kind == events.AskApproval && !a.NoGrant && a.Quorum == nil && a.Takes(events.Approve)
}

// keepGrant stores the grant that an answer brings. Its id is that of the answer, so whoever finds the answer stores the
// same; one that has been revoked since stands there as revoked and stays so, and one that is over is not stored.
func (s *Service) keepGrant(ctx context.Context, a answered) error {
	if a.data.Grant == nil || a.data.Decision != events.Approve {
		return nil
	}
	g := grantOf(a)
	now, err := s.conn.Now(ctx)
	if err != nil || !g.InForce(now) {
		return err
	}
	_, err = s.conn.CreateGrant(ctx, g, s.cfg.Key)
	if errors.Is(err, jetstream.ErrConflict) || errors.Is(err, jetstream.ErrTooLarge) {
		s.log.WarnContext(ctx, "grant not stored", "grantId", g.ID, "toolCallId", g.ToolCallID, "error", err)
		return nil // the call is approved all the same
	}
	return err
}

func grantOf(a answered) events.Grant {
	g := events.Grant{
		V: events.GrantVersion, ID: a.fact.ID, AgentID: a.ask.AgentID, ToolID: a.ask.ToolID, Terms: *a.data.Grant,
		GrantedBy: a.data.Principal, AuthType: a.data.AuthType, Groups: a.data.Groups, GrantedAt: a.data.At,
		ToolCallID: a.ask.ToolCallID, Reason: a.data.Reason, Signed: a.data.Signed,
	}
	settle(&g, a.ask.RunID, a.ask.ThreadID, a.ask.ResourceID)
	return g
}

// settle says where a grant holds and until when, by its terms.
func settle(g *events.Grant, run, thread, resource string) {
	if g.Terms.Scope == events.ScopeRun {
		g.RunID = run
	} else {
		g.ThreadID, g.ResourceID = thread, resource
	}
	g.ExpiresAt = g.GrantedAt.Add(time.Duration(g.Terms.For))
}

// rule takes a call through the gate's pipeline; what would be asked about and a grant answers is released.
func (s *Service) rule(ctx context.Context, q question) ruling {
	v := q.decide(ctx)
	if v.held == nil {
		return v
	}
	if rel := s.byGrant(ctx, q, *v.held); rel != nil {
		return ruling{released: rel, input: v.input}
	}
	return v
}

// byGrant is the release of a call that was about to be asked about, by a grant, of which one use is spent; nil when
// people are asked.
func (s *Service) byGrant(ctx context.Context, q question, ask events.CallHeld) *events.CallReleased {
	if !takesGrants(ask) {
		return nil
	}
	id, err := s.useGrant(ctx, q, ask)
	if err != nil {
		s.log.WarnContext(ctx, "grants not looked at", "toolCallId", ask.ToolCallID, "error", err)
		return nil
	}
	if id == "" {
		return nil
	}
	f := frozen{tool: q.run.tools[ask.ToolName], args: ask.Args, fingerprint: ask.Fingerprint}
	rel := q.release(f, events.AllowedBy{
		Rules: ask.Rules, Rule: ask.Reason.Rule, Set: ask.Reason.Set, SetDigest: ask.Reason.Digest, Answer: q.follows, Grant: id,
	})
	return &rel
}

// useGrant spends one use of a grant on a call, and returns the grant's id; empty when there is none. A call for which a
// use is stored spends no second one: whoever stored it may have been stopped before the release.
func (s *Service) useGrant(ctx context.Context, q question, ask events.CallHeld) (string, error) {
	grants, err := s.grantsFor(ctx, q, ask)
	if err != nil || len(grants) == 0 {
		return "", err
	}
	if open, err := s.stillOpen(ctx, q); err != nil || !open {
		return "", err
	}
	for _, g := range grants {
		if used, err := s.usedFor(ctx, g, q.call); err != nil || used {
			return g.ID, err
		}
	}
	for _, g := range grants {
		if used, err := s.spend(ctx, g, q.call); err != nil || used {
			return g.ID, err
		}
	}
	return "", nil
}

// stillOpen reports whether the fact that is about to be stored would still find its place. Who comes late, when the call
// has gone on, spends nothing.
func (s *Service) stillOpen(ctx context.Context, q question) (bool, error) {
	last, err := s.conn.Last(ctx, s.ns.Call(q.call, events.KindGo).Chain())
	if errors.Is(err, jetstream.ErrNotFound) {
		return q.follows == 0, nil
	}
	return err == nil && last.Seq == q.follows, err
}

// grantsFor are the grants that release a call, the one that ends first before the others.
func (s *Service) grantsFor(ctx context.Context, q question, ask events.CallHeld) ([]events.Grant, error) {
	found, err := s.conn.Grants(ctx, events.GrantFilter{Scope: events.ScopeRun, Of: ask.RunID, Tool: ask.ToolID})
	if err == nil && ask.ThreadID != "" {
		var more []jetstream.StoredGrant
		more, err = s.conn.Grants(ctx, events.GrantFilter{Scope: events.ScopeThread, Of: ask.ThreadID, Tool: ask.ToolID})
		found = append(found, more...)
	}
	if err != nil || len(found) == 0 {
		return nil, err
	}
	now, err := s.conn.Now(ctx)
	if err != nil {
		return nil, err
	}
	var good []events.Grant
	for _, g := range found {
		if !g.InForce(now) || !g.Covers(ask) {
			continue
		}
		if err := g.Genuine(s.keys); err != nil {
			s.log.ErrorContext(ctx, "tampering: a grant that no gate wrote", "grantId", g.ID, "error", err)
			continue
		}
		who, err := s.grantor(ctx, g.Grant)
		if err != nil {
			return nil, err
		}
		if q.releases(ctx, ask, g.Grant, who) {
			good = append(good, g.Grant)
		}
	}
	slices.SortFunc(good, func(a, b events.Grant) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.ID, b.ID))
	})
	return good, nil
}

// grantor is who gave a grant, as he would be verified now: with the groups that he had then, less those that he has lost
// since. Whoever is no principal any more, or is verified in another way, is nobody.
func (s *Service) grantor(ctx context.Context, g events.Grant) (proof, error) {
	def, err := s.principal(ctx, g.GrantedBy)
	if err != nil {
		return proof{}, err
	}
	if g.AuthType == "" || def.Auth != g.AuthType || def.Auth == events.AuthSubject && !s.cfg.Dev || !def.May(events.MayDecide) {
		return proof{}, nil
	}
	who := proof{principal: g.GrantedBy, authType: g.AuthType, groups: g.Groups, signed: g.Signed}
	if def.Auth != events.AuthGateway { // which says with each request what they are
		who.groups = slices.DeleteFunc(slices.Clone(g.Groups), func(group string) bool { return !slices.Contains(def.Groups, group) })
	}
	return who, nil
}

// releases reports whether a grant of who releases a call that would be asked about: the grant is for calls like this
// one, its condition holds for the frozen arguments, and its grantor may approve exactly this ask. It is pure.
func (q question) releases(ctx context.Context, ask events.CallHeld, g events.Grant, who proof) bool {
	if !takesGrants(ask) || !g.Covers(ask) || who.principal == "" {
		return false
	}
	m := meeting{
		call: q.call, req: events.DecisionRequested{Decision: events.Approve, ToolCallID: ask.ToolCallID},
		who: who, ask: ask, run: q.run,
	}
	if m.checkEntitled(events.Event{}) != nil || m.checkKind(events.Event{}) != nil {
		return false
	}
	if g.Terms.When == "" {
		return true
	}
	holds, err := judge.Holds(ctx, q.judge, g.Terms.When, ask.Args)
	return err == nil && holds
}

// errForeignUse says that the chain of a grant holds what no gate wrote, or the uses of another grant of its name.
var errForeignUse = errors.New("the uses of the grant are not its own")

// spend appends the next use of a grant, for a call. It reports whether the call has one; it has none when all are spent.
// Whoever loses the append counts the winner and tries the next number.
func (s *Service) spend(ctx context.Context, g events.Grant, call events.CallID) (bool, error) {
	last, err := s.conn.Last(ctx, s.ns.UsesOf(g.ID))
	if err != nil && !errors.Is(err, jetstream.ErrNotFound) {
		return false, fmt.Errorf("read uses of grant %s: %w", g.ID, err)
	}
	for ours := false; !ours; {
		var d events.GrantUsed // none yet: number 0
		if last.Seq > 0 {
			if d, err = s.useOf(last, g); err != nil {
				return false, err
			}
		}
		if used, err := s.usedFor(ctx, g, call); err != nil || used {
			return used, err
		}
		now, err := s.conn.Now(ctx)
		if err != nil || !g.InForce(now) || d.Number >= g.Terms.Uses {
			return false, err
		}
		d = events.GrantUsed{ID: g.ID, ToolCallID: call.String(), Number: d.Number + 1, At: now.UTC(), Grant: g}
		if last, ours, err = s.add(ctx, s.ns.GrantUse(g.ID, call), last, d); err != nil {
			return false, err
		}
	}
	return true, nil
}

// usedFor reports whether a use of a grant for a call is stored.
func (s *Service) usedFor(ctx context.Context, g events.Grant, call events.CallID) (bool, error) {
	use, err := s.conn.Fact(ctx, s.ns.GrantUse(g.ID, call))
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read use of grant %s for %s: %w", g.ID, call, err)
	}
	_, err = s.useOf(use, g)
	return err == nil, err
}

// useOf reads a use of a grant that a gate has stored.
func (s *Service) useOf(fact events.Event, g events.Grant) (events.GrantUsed, error) {
	if err := s.genuine(fact); err != nil {
		return events.GrantUsed{}, fmt.Errorf("%w: %w", errForeignUse, err)
	}
	d, err := events.Data[events.GrantUsed](fact)
	if err == nil && !d.Grant.Same(g) {
		err = errForeignUse
	}
	return d, err
}

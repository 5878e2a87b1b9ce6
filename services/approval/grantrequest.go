package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// onGrant takes from the inbox that somebody asks for a grant, or takes one back.
func (s *Service) onGrant(ctx context.Context, d jetstream.Delivery, in events.Inbox) error {
	switch d.Event.Type {
	case events.TypeOf[events.GrantRequested]():
		return s.onGrantRequested(ctx, d, in)
	case events.TypeOf[events.GrantRevoked]():
		return s.onGrantRevoked(ctx, d, in)
	case events.TypeOf[events.GrantsDropped]():
		return s.onGrantsDropped(ctx, d, in)
	}
	return s.refuseGrant(ctx, d, in, events.Errorf(events.CodeInvalidRequest, "type is %s; use %s or %s", d.Event.Type,
		events.TypeOf[events.GrantRequested](), events.TypeOf[events.GrantRevoked]()))
}

// onGrantRequested stores a grant that comes without a decision. Whether its grantor may approve what it would release is
// judged at each use, as he would be then; here only who he is.
func (s *Service) onGrantRequested(ctx context.Context, d jetstream.Delivery, in events.Inbox) error {
	req, err := events.Data[events.GrantRequested](d.Event)
	if err == nil && events.Token(req.ID) != in.Grant {
		err = fmt.Errorf("id is %q, the subject names grant %q", req.ID, in.Grant)
	}
	if err != nil {
		return s.refuseGrant(ctx, d, in, events.Errorf(events.CodeInvalidRequest, "%v", err))
	}
	who, refusal, err := s.proveSender(ctx, d, in, req.Groups, events.MayDecide)
	if err != nil {
		return err
	}
	if refusal == nil {
		refusal = checkRequest(&req)
	}
	if refusal == nil {
		refusal, err = s.checkNamed(ctx, req)
	}
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return s.refuseGrant(ctx, d, in, refusal)
	}
	g := events.Grant{
		V: events.GrantVersion, ID: req.ID, AgentID: req.AgentID, ToolID: req.ToolID, Terms: req.Terms,
		GrantedBy: who.principal, AuthType: who.authType, Groups: who.groups, GrantedAt: d.Event.Stored.UTC(),
		Reason: strings.TrimSpace(req.Reason), Signed: who.signed,
	}
	settle(&g, req.RunID, req.ThreadID, req.ResourceID)
	return s.giveGrant(ctx, d, in, g)
}

// checkRequest completes the terms of a request and says what is wrong with it.
func checkRequest(req *events.GrantRequested) *events.Error {
	var refusal *events.Error
	if req.Terms, refusal = checkTerms(req.Terms, "terms."); refusal != nil {
		return refusal
	}
	switch req.Terms.Scope {
	case events.ScopeRun:
		if !events.IsRunID(req.RunID) {
			return badGrant("a grant of scope run names a run", "runId", fmt.Sprintf("%q is not the id of a run", req.RunID))
		}
		if req.ThreadID != "" || req.ResourceID != "" {
			return badGrant("a grant of scope run names no thread and no resource", "threadId", "leave it out")
		}
	default:
		if req.ThreadID == "" {
			return badGrant("a grant of scope thread names a thread", "threadId", "is missing")
		}
		if req.RunID != "" {
			return badGrant("a grant of scope thread names no run", "runId", "leave it out")
		}
	}
	return nil
}

// checkNamed demands that agent and tool exist: a grant of a misspelt one would release nothing, and nobody would know why.
// Calls of single tools have no agent, and their grants name the reserved one.
func (s *Service) checkNamed(ctx context.Context, req events.GrantRequested) (*events.Error, error) {
	for _, named := range []struct{ kind, id string }{
		{events.RegistryAgent, req.AgentID}, {events.RegistryTool, req.ToolID},
	} {
		if named.kind == events.RegistryAgent && named.id == events.TokenTool {
			continue
		}
		_, err := s.conn.Named(ctx, named.kind, named.id)
		if errors.Is(err, jetstream.ErrNotFound) {
			return events.NotFound(named.kind, "%s %q is not known", named.kind, named.id), nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// giveGrant stores a grant under an id that nobody has used. The same request again changes nothing.
func (s *Service) giveGrant(ctx context.Context, d jetstream.Delivery, in events.Inbox, g events.Grant) error {
	there, err := s.conn.Grants(ctx, events.GrantFilter{ID: g.ID})
	if err != nil {
		return err
	}
	for _, other := range there {
		if other.ID == g.ID { // and not only its token
			return s.sameGrant(ctx, d, in, g, other)
		}
	}
	switch _, err = s.conn.Last(ctx, s.ns.UsesOf(g.ID)); {
	case err == nil: // uses of one that is over: they would count for this one
		return s.refuseGrant(ctx, d, in, taken(g.ID))
	case !errors.Is(err, jetstream.ErrNotFound):
		return fmt.Errorf("read uses of grant %s: %w", g.ID, err)
	}
	now, err := s.conn.Now(ctx)
	if err != nil {
		return err
	}
	if !g.InForce(now) {
		return s.refuseGrant(ctx, d, in, events.Errorf(events.CodeExpired, "the grant was over at %s, before a gate saw it",
			g.ExpiresAt.Format(time.RFC3339)))
	}
	other, err := s.conn.CreateGrant(ctx, g, s.cfg.Key)
	switch {
	case errors.Is(err, jetstream.ErrConflict):
		return s.sameGrant(ctx, d, in, g, other)
	case errors.Is(err, jetstream.ErrTooLarge):
		return s.refuseGrant(ctx, d, in, events.Errorf(events.CodeTooLarge, "the request is too large to be kept: %v", err))
	case err != nil:
		return err
	}
	s.log.InfoContext(ctx, "grant given", "grantId", g.ID, "agentId", g.AgentID, "principal", g.GrantedBy)
	return nil
}

// sameGrant handles a request whose id has a grant already: it is that of this very request, delivered or sent again, or
// it is refused.
func (s *Service) sameGrant(ctx context.Context, d jetstream.Delivery, in events.Inbox, g events.Grant, other jetstream.StoredGrant) error {
	g.GrantedAt = other.GrantedAt
	switch {
	case !other.Same(g):
		e := taken(g.ID)
		if other.GrantedBy != "" {
			e.Answer = &events.AnswerBrief{
				Decision: events.Approve, Principal: other.GrantedBy,
				At: other.GrantedAt.Format(time.RFC3339Nano), Reason: other.Reason,
			}
		}
		return s.refuseGrant(ctx, d, in, e)
	case other.Revoked != nil && d.Attempt <= 1:
		return s.refuseGrant(ctx, d, in, events.Errorf(events.CodeAlreadyDecided,
			"grant %s was revoked by %s: ask for one with another id", g.ID, other.Revoked.By))
	}
	return nil
}

func taken(id string) *events.Error {
	return events.Errorf(events.CodeAlreadyDecided, "the id %s is that of another grant: use another", id)
}

// onGrantRevoked takes a grant back. Every principal may that does not only look: to stop is always safe. The revocation
// stays in the grant's place until the grant would have been over, so that nothing brings it back.
func (s *Service) onGrantRevoked(ctx context.Context, d jetstream.Delivery, in events.Inbox) error {
	req, err := events.Data[events.GrantRevoked](d.Event)
	if err == nil && events.Token(req.ID) != in.Grant {
		err = fmt.Errorf("id is %q, the subject names grant %q", req.ID, in.Grant)
	}
	if err != nil {
		return s.refuseGrant(ctx, d, in, events.Errorf(events.CodeInvalidRequest, "%v", err))
	}
	who, refusal, err := s.proveSender(ctx, d, in, nil, events.ScopesToStop()...)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return s.refuseGrant(ctx, d, in, refusal)
	}
	found, err := s.conn.Grants(ctx, events.GrantFilter{ID: req.ID})
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return s.noGrant(ctx, d, in, req.ID)
	}
	r := events.Revocation{By: who.principal, At: d.Event.Stored.UTC(), Reason: strings.TrimSpace(req.Reason)}
	for _, g := range found {
		if err := s.revoke(ctx, g, r); err != nil {
			return err
		}
	}
	return nil
}

// noGrant lets a revocation wait once for its grant, which the gate that stores it may not have stored yet, and then
// refuses it.
func (s *Service) noGrant(ctx context.Context, d jetstream.Delivery, in events.Inbox, id string) error {
	if d.Attempt <= 1 {
		return jetstream.Later(lookAgain)
	}
	return s.refuseGrant(ctx, d, in, events.NotFound("grant", "grant %s is not known: it may be over", id))
}

// revoke puts a revocation in a grant's place, unless there is one.
func (s *Service) revoke(ctx context.Context, g jetstream.StoredGrant, r events.Revocation) error {
	for g.Revoked == nil {
		last, err := s.conn.RevokeGrant(ctx, g, r, s.cfg.Key)
		switch {
		case err == nil:
			s.log.InfoContext(ctx, "grant revoked", "grantId", g.ID, "principal", r.By)
			return nil
		case !errors.Is(err, jetstream.ErrConflict) || last.ID == "": // gone with it: nothing is left to take back
			return ignoreConflict(err)
		}
		g = last
	}
	return nil
}

func ignoreConflict(err error) error {
	if errors.Is(err, jetstream.ErrConflict) {
		return nil
	}
	return err
}

// refuseGrant tells a sender why what was asked of a grant does not count.
func (s *Service) refuseGrant(ctx context.Context, d jetstream.Delivery, in events.Inbox, why *events.Error) error {
	subject := s.ns.NoteOfGrant(in.Principal, in.Grant)
	e, err := s.origin.Request(subject, "", events.GrantRefused{ID: grantIDOf(d, in), EventID: idOf(d), Error: *why}, d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	s.note(ctx, subject, e)
	return nil
}

// grantIDOf is the id that a request names; its token when it names none.
func grantIDOf(d jetstream.Delivery, in events.Inbox) string {
	req, err := events.Data[events.GrantRevoked](d.Event)
	if err != nil || events.Token(req.ID) != in.Grant {
		return in.Grant
	}
	return req.ID
}

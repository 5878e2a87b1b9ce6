package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// proof is who sent a decision and how that was verified.
type proof struct {
	principal string
	authType  string
	groups    []string
	signed    *events.Signed
	def       events.PrincipalDef // what is known of the principal
}

// prove tells who sent a decision.
func (s *Service) prove(ctx context.Context, d jetstream.Delivery, in events.Inbox, req events.DecisionRequested) (proof, *events.Error, error) {
	if d.Event.AuthID == events.TokenAuto && in.Principal == events.TokenAuto {
		who, refusal := proveAuto(req)
		return who, refusal, nil
	}
	return s.proveSender(ctx, d, in, req.Groups, events.MayDecide)
}

// proveSender tells which principal sent a decision, or what is asked of a grant. The subject names the sender; what proves
// it is the principal's own signature, that of a gateway, which also vouches for the groups, or, in weir dev only, the
// permission to publish there. Once that is certain, it needs one of the scopes.
func (s *Service) proveSender(ctx context.Context, d jetstream.Delivery, in events.Inbox, groups []string, scopes ...string) (proof, *events.Error, error) {
	who, refusal, err := s.identify(ctx, d, in, groups)
	if refusal == nil && err == nil {
		refusal = who.def.Lacks(scopes...)
	}
	return who, refusal, err
}

// identify tells which principal sent a request, before anything is said about what it may do.
func (s *Service) identify(ctx context.Context, d jetstream.Delivery, in events.Inbox, groups []string) (proof, *events.Error, error) {
	e := d.Event
	if e.AuthID == "" || events.Token(e.AuthID) != in.Principal && e.AuthID != in.Principal {
		return proof{}, events.Errorf(events.CodeForbidden,
			"authid is %q, the subject names principal %q", e.AuthID, in.Principal), nil
	}
	if e.AuthID == events.TokenAuto || e.AuthID == events.TokenPlanner {
		return proof{}, events.Errorf(events.CodeForbidden, "%s is no principal who may do this", e.AuthID), nil
	}
	def, err := s.principal(ctx, e.AuthID)
	if err != nil {
		return proof{}, nil, err
	}
	who := proof{principal: e.AuthID, authType: def.Auth, groups: def.Groups, signed: signed(d), def: def}
	switch def.Auth {
	case events.AuthKey:
		if err := keyOf(def).Verify(events.DomainDecision, d.Subject, e.Payload, e.Signature); err != nil {
			return proof{}, events.Errorf(events.CodeUnauthenticated, "decisions of %s must be signed with its key", e.AuthID), nil
		}
	case events.AuthGateway:
		if err := s.cfg.Gateways.Verify(events.DomainDecision, d.Subject, e.Payload, e.Signature); err != nil {
			return proof{}, events.Errorf(events.CodeUnauthenticated, "decisions of %s must come through a gateway", e.AuthID), nil
		}
		who.groups = groups
	case events.AuthSubject:
		if !s.cfg.Dev {
			return proof{}, events.Errorf(events.CodeUnauthenticated, "%s has no key; only weir dev accepts that", e.AuthID), nil
		}
	default:
		return proof{}, events.Errorf(events.CodeForbidden, "%s is not a known principal", e.AuthID), nil
	}
	return who, nil, nil
}

// signed is a decision with its signature, whatever that is worth; nil when it has none.
func signed(d jetstream.Delivery) *events.Signed {
	e := d.Event
	if e.Signature.Sig == "" {
		return nil
	}
	return &events.Signed{Payload: string(e.Payload), Subject: d.Subject, Key: e.Signature.Key, Sig: e.Signature.Sig}
}

// principal is how decisions of a principal are verified. One that nobody has defined decides in weir dev only.
func (s *Service) principal(ctx context.Context, id string) (events.PrincipalDef, error) {
	raw, err := s.conn.Named(ctx, events.RegistryPrincipal, id)
	return s.principalDef(id, raw, err)
}

// principalOf is principal by the token that subjects hold.
func (s *Service) principalOf(ctx context.Context, token string) (events.PrincipalDef, error) {
	raw, err := s.conn.NamedOf(ctx, events.RegistryPrincipal, token)
	return s.principalDef(token, raw, err)
}

func (s *Service) principalDef(id string, raw []byte, err error) (events.PrincipalDef, error) {
	if errors.Is(err, jetstream.ErrNotFound) {
		if s.cfg.Dev {
			return events.PrincipalDef{ID: id, Auth: events.AuthSubject}, nil
		}
		return events.PrincipalDef{ID: id}, nil
	}
	if err != nil {
		return events.PrincipalDef{}, fmt.Errorf("read principal: %w", err)
	}
	var def events.PrincipalDef
	if err := json.Unmarshal(raw, &def); err != nil {
		return events.PrincipalDef{}, jetstream.Final(fmt.Errorf("principal %s: %w", id, err))
	}
	return def, nil
}

// keyOf is the key that a principal signs with; none when its text is not a key, so that nothing verifies.
func keyOf(def events.PrincipalDef) events.Keys {
	pub, err := jetstream.ParsePublic(def.Key)
	if err != nil {
		return events.Keys{}
	}
	return events.Keys{def.Key: pub}
}

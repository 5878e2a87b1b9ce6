package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// auditKeys are the keys by which signatures in the record are proven. Of what is not known a signature is held against
// the key that it names itself: then it shows that nothing was changed, and not whose it is.
type auditKeys struct {
	gates      events.Keys            // nil: not known
	gateways   events.Keys            // nil: not known
	principals map[string]events.Keys // nil: not known; by id
}

// keyFlags are the flags of commands that prove signatures, beside --gate-keys.
type keyFlags struct {
	principals []string
	gateways   string
	from       string
}

// keysRegistry is where keys of principals may come from.
const keysRegistry = "registry"

func (a *app) auditKeys(ctx context.Context, f keyFlags) (k auditKeys, err error) {
	if k.gates, err = keysIn("--gate-keys", a.gateKeys); err != nil {
		return k, err
	}
	if k.gateways, err = keysIn("--gateway-keys", f.gateways); err != nil {
		return k, err
	}
	for _, text := range f.principals {
		name, key, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return k, usagef("--principal-key %s: write NAME=U…", text)
		}
		keys, err := keysIn("--principal-key "+name, key)
		if err != nil {
			return k, err
		}
		k.add(name, keys)
	}
	switch f.from {
	case "":
		return k, nil
	case keysRegistry:
		return k, a.registryKeys(ctx, &k)
	}
	return k, usagef("--keys-from %s: use %s", f.from, keysRegistry)
}

func keysIn(flag, text string) (events.Keys, error) {
	if text == "" {
		return nil, nil
	}
	keys, err := publicKeys(strings.Split(text, ",")...)
	if err != nil {
		return nil, usagef("%s: %v", flag, err)
	}
	return keys, nil
}

func (k *auditKeys) add(principal string, keys events.Keys) {
	if k.principals == nil {
		k.principals = map[string]events.Keys{}
	}
	if k.principals[principal] == nil {
		k.principals[principal] = events.Keys{}
	}
	maps.Copy(k.principals[principal], keys)
}

// registryKeys adds the keys that principals have now.
func (a *app) registryKeys(ctx context.Context, k *auditKeys) error {
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	defs, err := conn.ListNamed(ctx, events.RegistryPrincipal)
	if err != nil {
		return err
	}
	for token, raw := range defs {
		var def events.PrincipalDef
		if err := json.Unmarshal(raw, &def); err != nil {
			return fmt.Errorf("principal %s: %w", token, err)
		}
		keys, err := keysIn("key of "+def.ID, def.Key)
		if err != nil {
			return err
		}
		k.add(def.ID, keys)
	}
	return nil
}

// domainOf is the signature that a fact has. Facts of planners and executors have none: they may not decide.
func domainOf(e events.Event) string {
	row, _ := events.RowOf(e.Type) // of a self-test there is none
	return row.Domain
}

// errForeign says that a fact of the log is not what belongs in its place.
var errForeign = errors.New("no service of Weir wrote this")

// fact proves that a fact is an event that belongs in its place, and its signature where it must have one. Self-tests stand
// beside all chains, mean nothing, and give the zero event.
func (k auditKeys) fact(r events.Record) (events.Event, error) {
	if events.IsProbe(r.Subject) {
		return events.Event{}, nil
	}
	e, err := r.Decode()
	if err != nil {
		return e, fmt.Errorf("%w: %w", errForeign, err)
	}
	if e.Type != events.FactType(e.Place.Kind) {
		return e, fmt.Errorf("%w: an event of type %s stands where none belongs", errForeign, e.Type)
	}
	domain := domainOf(e)
	if domain == "" {
		return e, nil
	}
	if err := proven(k.gates, domain, r.Subject, r.Event, e.Signature); err != nil {
		return e, fmt.Errorf("the gate's signature: %w", err)
	}
	return e, nil
}

var errUnknownKey = errors.New("it was made with a key that is not among the known ones")

// proven verifies a signature: by the keys that are known, or when none are, by the one that it names.
func proven(known events.Keys, domain, subject string, payload []byte, s events.Signature) error {
	if known == nil {
		own, err := publicKeys(s.Key)
		if err != nil {
			return errors.New("there is none")
		}
		known = own
	}
	if _, ok := known[s.Key]; !ok && s.Key != "" {
		return fmt.Errorf("%w: %s", errUnknownKey, oneLine(s.Key))
	}
	return known.Verify(domain, subject, payload, s)
}

// start proves who asked for a run, where the request was signed.
func (k auditKeys) start(e events.Event) (signed bool, err error) {
	d, err := events.Data[events.RunStarted](e)
	if err != nil || d.Signed == nil {
		return false, err
	}
	req, err := events.Decode([]byte(d.Signed.Payload))
	if err != nil {
		return true, fmt.Errorf("what %s has signed is no request: %w", d.Requester, err)
	}
	if !events.SamePrincipal(req.AuthID, d.Requester) || req.ID != d.RequestID {
		return true, fmt.Errorf("what %s has signed is another request: %s of %s", d.Requester, oneLine(req.ID), oneLine(req.AuthID))
	}
	sig := events.Signature{Key: d.Signed.Key, Sig: d.Signed.Sig}
	err = proven(k.principals[req.AuthID], events.DomainStart, d.Signed.Subject, []byte(d.Signed.Payload), sig)
	if _, gateway := k.gateways[sig.Key]; err != nil && gateway { // which may have asked in its name
		err = proven(k.gateways, events.DomainStart, d.Signed.Subject, []byte(d.Signed.Payload), sig)
	}
	if err != nil {
		return true, fmt.Errorf("the signature of the request of %s: %w", d.Requester, err)
	}
	return true, nil
}

// decided is a decision as the record holds it: who sent it, and what proves that.
type decided struct {
	principal, authType, eventID string
	toolCallID                   string // empty when it met no single call of the run
	run                          string
	decision                     events.Decision
	grant                        *events.Grant // that was used, when that is the decision
	signed                       *events.Signed
	vote                         auditVote
	quorum                       bool // it is the answer of several votes
}

// auditVote is what tells votes apart.
type auditVote struct {
	call, principal string
	round           int
}

// auditVotes are the proven votes so far, by the numbers of their records. The answer of a quorum need not repeat what
// proves its last vote.
type auditVotes map[auditVote]provenVote

type provenVote struct {
	seq     uint64
	eventID string
}

// decision proves who made the decision in a record, and remembers it when it is a vote.
func (votes auditVotes) decision(k auditKeys, row *provenDecision, d decided, ns events.Namespace) (how string, err error) {
	if d.quorum && d.signed == nil && d.mustBeSigned() {
		vote, ok := votes[d.vote]
		switch {
		case !ok:
			return "by the signature in its vote, which these records do not hold", nil
		case d.eventID != "" && d.eventID != vote.eventID:
			return "", fmt.Errorf("the vote of %s, record %d, is another decision", d.principal, vote.seq)
		}
		return fmt.Sprintf("by the signature in its vote, record %d", vote.seq), nil
	}
	how, err = k.decision(ns, d)
	if err == nil && row.Fact == events.KindVote {
		votes[d.vote] = provenVote{row.Seq, d.eventID}
	}
	return how, err
}

// mustBeSigned reports whether the sender was verified by a signature.
func (d decided) mustBeSigned() bool {
	return d.authType == events.AuthKey || d.authType == events.AuthGateway
}

// decision proves who made a decision, as far as the record can, and says how.
func (k auditKeys) decision(ns events.Namespace, d decided) (how string, err error) {
	if d.principal == "" {
		return "the gate itself, at the deadline", nil
	}
	if d.signed == nil {
		if d.mustBeSigned() {
			return "", fmt.Errorf("the decision of %s is said to be signed (%s), and its signature is not there", d.principal, d.authType)
		}
		return unsigned[d.authType], nil
	}
	if d.signed.DataRef != "" {
		return fmt.Sprintf("signed by %s; what was signed holds a secret and is the blob %s, which the record does not have",
			d.signed.Key, d.signed.DataRef), nil
	}
	if e, err := events.Decode([]byte(d.signed.Payload)); err == nil && events.SamePrincipal(e.AuthID, d.principal) {
		d.principal = e.AuthID // a refusal knows the token only
	}
	if err := d.matches(ns); err != nil {
		return "", err
	}
	known, whose := k.principals[d.principal], "its own key"
	if d.authType == events.AuthGateway {
		known, whose = k.gateways, "a gateway"
	}
	sig := events.Signature{Key: d.signed.Key, Sig: d.signed.Sig}
	if err := proven(known, events.DomainDecision, d.signed.Subject, []byte(d.signed.Payload), sig); err != nil {
		return "", fmt.Errorf("the signature of the decision of %s: %w", d.principal, err)
	}
	if known == nil {
		return "signed by " + d.signed.Key + ", which was not compared with a known key", nil
	}
	return "signed by " + whose + ", " + d.signed.Key, nil
}

// unsigned says what decisions rest on that nobody has signed.
var unsigned = map[string]string{
	events.AuthSubject: "not signed: the right to publish as it (weir dev)",
	events.AuthAuto:    "not signed: the planner's automatic resume",
	events.AuthTimer:   "the gate itself, at the deadline",
	"":                 "not signed",
}

// matches reports whether what was signed is the decision that it stands for: a signature of another one proves nothing.
func (d decided) matches(ns events.Namespace) error {
	e, err := events.Decode([]byte(d.signed.Payload))
	if err != nil {
		return fmt.Errorf("what %s has signed is no decision: %w", d.principal, err)
	}
	parts := [][3]string{{"principal", e.AuthID, d.principal}}
	switch e.Type {
	case events.TypeOf[events.DecisionRequested]():
		more, err := d.asDecision(ns, e)
		if err != nil {
			return err
		}
		parts = append(parts, more...)
	case events.TypeOf[events.GrantRequested]():
		req, err := events.Data[events.GrantRequested](e)
		if err != nil {
			return err
		}
		if d.grant == nil {
			return fmt.Errorf("what %s has signed is a grant, not this decision", d.principal)
		}
		parts = append(parts, [][3]string{
			{"grant", req.ID, d.grant.ID},
			{"tool", req.ToolID, d.grant.ToolID},
			{"agent", req.AgentID, d.grant.AgentID},
			{"scope", req.Terms.Scope, d.grant.Terms.Scope},
			{"subject", d.signed.Subject, ns.InGrant(d.principal, req.ID)},
		}...)
	default:
		return fmt.Errorf("what %s has signed is no decision, but %s", d.principal, oneLine(e.Type))
	}
	for _, part := range parts {
		if part[1] != part[2] {
			return fmt.Errorf("what %s has signed is another decision: %s %s, not %s", d.principal, part[0],
				cmp.Or(oneLine(part[1]), "empty"), cmp.Or(oneLine(part[2]), "empty"))
		}
	}
	return nil
}

// asDecision are the parts of a decision that must be those of the fact. It may leave out which call it means, when its
// subject does.
func (d decided) asDecision(ns events.Namespace, e events.Event) ([][3]string, error) {
	req, err := events.Data[events.DecisionRequested](e)
	if err != nil {
		return nil, fmt.Errorf("what %s has signed is no decision: %w", d.principal, err)
	}
	if d.toolCallID == "" { // it met no single call: one that names one was refused for that
		return [][3]string{
			{"decision", string(req.Decision), string(d.decision)},
			{"subject", d.signed.Subject, ns.InDecideRun(d.principal, d.run)},
			{"id", e.ID, d.eventID},
		}, nil
	}
	call, err := events.ParseCallID(d.toolCallID)
	if err != nil {
		return nil, err
	}
	subject := ns.InDecide(d.principal, call)
	if req.ToolCallID == "" {
		req.ToolCallID, subject = d.toolCallID, ns.InDecideRun(d.principal, call.Run)
	}
	parts := [][3]string{
		{"call", req.ToolCallID, d.toolCallID},
		{"decision", string(req.Decision), string(d.decision)},
		{"subject", d.signed.Subject, subject},
	}
	if d.grant == nil {
		return append(parts, [3]string{"id", e.ID, d.eventID}), nil
	}
	if req.Grant == nil {
		return nil, fmt.Errorf("what %s has signed is an approval without a grant", d.principal)
	}
	return append(parts, [3]string{"scope", req.Grant.Scope, d.grant.Terms.Scope}), nil
}

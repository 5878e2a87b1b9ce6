package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	for name, key := range keys {
		k.principals[principal][name] = key
	}
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

// domains are the signatures that facts have, by their kind. Other facts have none: those who write them may not decide.
var domains = map[events.Kind]string{
	events.KindAsk: events.DomainAsk, events.KindAnswer: events.DomainAnswer, events.KindVote: events.DomainVote,
	events.KindGo: events.DomainGo,
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
	domain := domains[e.Place.Kind]
	if row, ok := events.RowOf(e.Type); ok && row.Domain != domain {
		return e, fmt.Errorf("%w: an event of type %s stands where none belongs", errForeign, e.Type)
	}
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

// decided is a decision as the record holds it: who sent it, and what proves that.
type decided struct {
	principal, authType, eventID, toolCallID string
	decision                                 events.Decision
	signed                                   *events.Signed
}

// decision proves who made a decision, as far as the record can, and says how.
func (k auditKeys) decision(ns events.Namespace, d decided) (how string, err error) {
	if d.principal == "" {
		return "the gate itself, at the deadline", nil
	}
	if d.signed == nil {
		if d.authType == events.AuthKey || d.authType == events.AuthGateway {
			return "", fmt.Errorf("the decision of %s is said to be signed (%s), and its signature is not there", d.principal, d.authType)
		}
		return unsigned[d.authType], nil
	}
	if d.signed.DataRef != "" {
		return "signed by " + d.signed.Key + "; what was signed holds a secret and is the blob " + d.signed.DataRef + ", which the record does not have", nil
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
	req, err := events.Data[events.DecisionRequested](e)
	if err != nil {
		return fmt.Errorf("what %s has signed is no decision: %w", d.principal, err)
	}
	call, err := events.ParseCallID(d.toolCallID)
	if err != nil {
		return err
	}
	for _, part := range [][3]string{
		{"principal", e.AuthID, d.principal},
		{"id", e.ID, d.eventID},
		{"type", e.Type, events.TypeOf[events.DecisionRequested]()},
		{"call", req.ToolCallID, d.toolCallID},
		{"decision", string(req.Decision), string(d.decision)},
		{"subject", d.signed.Subject, ns.InDecide(d.principal, call)},
	} {
		if part[1] != part[2] {
			return fmt.Errorf("what %s has signed is another decision: %s %s, not %s", d.principal, part[0],
				cmp.Or(oneLine(part[1]), "empty"), oneLine(part[2]))
		}
	}
	return nil
}

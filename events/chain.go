package events

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Kind is the kind of a fact: the part of its subject that says what happened.
type Kind string

// Facts of the main chain, of call chains, and beside the chains.
const (
	KindStart Kind = "start"
	KindStep  Kind = "step"
	KindCarry Kind = "carry"
	KindEnd   Kind = "end"

	KindAsk     Kind = "ask"
	KindAnswer  Kind = "answer"
	KindGo      Kind = "go"
	KindClaim   Kind = "claim"
	KindSuspend Kind = "suspend"
	KindResult  Kind = "result"

	KindVote    Kind = "vote"
	KindRefused Kind = "refused"
	KindLate    Kind = "late"
	KindProbe   Kind = "probe"

	KindUse Kind = "use" // of a grant
)

// Place says where a fact stands in the log. It is the parsed form of the fact's stored subject.
type Place struct {
	Namespace Namespace
	Run       string
	Call      string // "<step>-<i>"; empty for facts of the main chain, TokenRun for a refusal that met no call
	Kind      Kind
	N         int    // of step.<n> and carry.<k>, from 1
	Pool      string // of go: token
	Tool      string // of go: token
	Key       string // of vote, refused, late and probe: what tells several from each other, a token; of use: the grant
}

// Places of the main chain.

// Start is the place of a run's first fact.
func (ns Namespace) Start(run string) Place { return Place{Namespace: ns, Run: run, Kind: KindStart} }

// Step is the place of the n-th model turn.
func (ns Namespace) Step(run string, n int) Place {
	return Place{Namespace: ns, Run: run, Kind: KindStep, N: n}
}

// Carry is the place of the k-th carry.
func (ns Namespace) Carry(run string, k int) Place {
	return Place{Namespace: ns, Run: run, Kind: KindCarry, N: k}
}

// End is the place of a run's last fact.
func (ns Namespace) End(run string) Place { return Place{Namespace: ns, Run: run, Kind: KindEnd} }

// Call is the place of a fact of a call, for every kind but go.
func (ns Namespace) Call(call CallID, kind Kind) Place {
	return Place{Namespace: ns, Run: call.Run, Call: call.Token(), Kind: kind}
}

// Go is the place of a call's release to a pool.
func (ns Namespace) Go(call CallID, pool, tool string) Place {
	return Place{
		Namespace: ns, Run: call.Run, Call: call.Token(), Kind: KindGo,
		Pool: nameToken(pool), Tool: Token(tool),
	}
}

// Beside is the place of evidence that is no state: vote (key is the principal, by its id or its token), refused and
// late (the event's id).
func (ns Namespace) Beside(call CallID, kind Kind, key string) Place {
	token := nameToken(key)
	if kind == KindVote {
		token = nameOrToken(key) // a person has one vote, whichever way the name is written
	}
	return Place{Namespace: ns, Run: call.Run, Call: call.Token(), Kind: kind, Key: token}
}

// BesideRun is the place of a refusal of a decision that met no single call of a run.
func (ns Namespace) BesideRun(run, key string) Place {
	return Place{Namespace: ns, Run: run, Call: TokenRun, Kind: KindRefused, Key: nameToken(key)}
}

// Probe is where a service proves at its start that the server enforces guards.
func (ns Namespace) Probe(service, id string) Place {
	return Place{Namespace: ns, Run: TokenProbe, Kind: KindProbe, Call: Token(service), Key: Token(id)}
}

// GrantUse is the place of one use of a standing approval. Its chain is the grant's, not the call's.
func (ns Namespace) GrantUse(grant string, call CallID) Place {
	return Place{Namespace: ns, Run: call.Run, Call: call.Token(), Kind: KindUse, Key: Token(grant)}
}

// CallID is the call that the fact belongs to; it is zero for facts of the main chain.
func (p Place) CallID() CallID {
	step, index, ok := parseCallToken(p.Call)
	if !ok {
		return CallID{}
	}
	return CallID{Run: p.Run, Step: step, Index: index}
}

// IsMain reports whether the fact belongs to its run's main chain.
func (p Place) IsMain() bool {
	return p.Kind == KindStart || p.Kind == KindStep || p.Kind == KindCarry || p.Kind == KindEnd
}

// Subject is the stored name of the fact.
func (p Place) Subject() string {
	var room [subjectRoom]byte
	return string(p.append(p.Namespace.append(room[:0])))
}

// Ingest is the name under which a service publishes the fact; the stream stores it as [Place.Subject].
func (p Place) Ingest() string {
	var room [subjectRoom]byte
	return string(p.append(append(p.Namespace.append(room[:0]), "put."...)))
}

// subjectRoom is what nearly every subject fits in, so that building one allocates only the text.
const subjectRoom = 256

func (ns Namespace) append(b []byte) []byte {
	return append(append(append(b, "weir."...), ns...), '.')
}

func (p Place) append(b []byte) []byte {
	switch p.Kind {
	case KindStart, KindEnd:
		return join(b, "run", runToken(p.Run), "main", string(p.Kind))
	case KindStep, KindCarry:
		return strconv.AppendInt(append(join(b, "run", runToken(p.Run), "main", string(p.Kind)), '.'), int64(p.N), 10)
	case KindGo:
		return join(b, "run", runToken(p.Run), "call", p.Call, "go", p.Pool, p.Tool)
	case KindVote, KindRefused, KindLate:
		return join(b, "run", runToken(p.Run), string(p.Kind), p.Call, p.Key)
	case KindProbe:
		return join(b, "run", TokenProbe, p.Call, p.Key)
	case KindUse:
		return append(append(join(b, "grant", p.Key, "use", runToken(p.Run)), '='), p.Call...)
	default:
		return join(b, "run", runToken(p.Run), "call", p.Call, string(p.Kind))
	}
}

func join(b []byte, tokens ...string) []byte {
	for i, t := range tokens {
		if i > 0 {
			b = append(b, '.')
		}
		b = append(b, t...)
	}
	return b
}

// Chain is the filter that covers the facts of which the server lets exactly one follow another: the run's main
// chain, the call's chain, or the fact's own subject for what stands beside the chains. All facts of a chain use
// this identical string, because servers in a cluster compare filters of appends under way as text.
func (p Place) Chain() string {
	var room [subjectRoom]byte
	b := p.Namespace.append(room[:0])
	switch {
	case p.IsMain():
		b = join(b, "run", runToken(p.Run), "main", ">")
	case p.Kind == KindVote || p.Kind == KindRefused || p.Kind == KindLate || p.Kind == KindProbe:
		b = p.append(b)
	case p.Kind == KindUse:
		b = join(b, "grant", p.Key, ">")
	default:
		b = join(b, "run", runToken(p.Run), "call", p.Call, ">")
	}
	return string(b)
}

// ParsePlace reads the stored subject of a fact.
func ParsePlace(subject string) (Place, error) {
	part := strings.Split(subject, ".")
	if len(part) < 6 || part[0] != "weir" || part[2] != "run" && part[2] != "grant" {
		return Place{}, badPlace(subject)
	}
	p := Place{Namespace: Namespace(part[1]), Run: part[3]}
	if _, err := ParseNamespace(part[1]); err != nil {
		return Place{}, badPlace(subject)
	}
	var ok bool
	switch {
	case part[2] == "grant":
		ok = p.parseUse(part[3:])
	case p.Run == TokenProbe:
		p.Kind, p.Call, p.Key = KindProbe, part[4], part[5]
		ok = len(part) == 6 && isToken(p.Call) && isToken(p.Key)
	case !isRunID(p.Run):
	case part[4] == "main":
		ok = p.parseMain(part[5:])
	case part[4] == "call":
		ok = p.parseCall(part[5:])
	default:
		ok = p.parseBeside(part[4:])
	}
	if !ok {
		return Place{}, badPlace(subject)
	}
	return p, nil
}

func badPlace(subject string) error {
	return fmt.Errorf("%w: subject %q is not a fact's", ErrBadID, subject)
}

func (p *Place) parseMain(part []string) bool {
	p.Kind = Kind(part[0])
	switch p.Kind {
	case KindStart, KindEnd:
		return len(part) == 1
	case KindStep, KindCarry:
		if len(part) != 2 {
			return false
		}
		var ok bool
		p.N, ok = parseCount(part[1])
		return ok
	default:
		return false
	}
}

func (p *Place) parseCall(part []string) bool {
	if len(part) < 2 {
		return false
	}
	p.Call, p.Kind = part[0], Kind(part[1])
	if _, _, ok := parseCallToken(p.Call); !ok {
		return false
	}
	switch p.Kind {
	case KindAsk, KindAnswer, KindClaim, KindSuspend, KindResult:
		return len(part) == 2
	case KindGo:
		if len(part) != 4 {
			return false
		}
		p.Pool, p.Tool = part[2], part[3]
		return isToken(p.Pool) && isToken(p.Tool)
	default:
		return false
	}
}

func (p *Place) parseBeside(part []string) bool {
	if len(part) != 3 {
		return false
	}
	p.Kind, p.Call, p.Key = Kind(part[0]), part[1], part[2]
	if p.Kind != KindVote && p.Kind != KindRefused && p.Kind != KindLate {
		return false
	}
	_, _, ok := parseCallToken(p.Call)
	return (ok || p.Call == TokenRun && p.Kind == KindRefused) && isToken(p.Key)
}

func (p *Place) parseUse(part []string) bool {
	if len(part) != 3 || part[1] != string(KindUse) || !isToken(part[0]) {
		return false
	}
	call, err := ParseCallID(part[2])
	p.Kind, p.Key, p.Run, p.Call = KindUse, part[0], call.Run, call.Token()
	return err == nil
}

// isToken reports whether s is something that [Token] or this package makes.
func isToken(s string) bool { return literal(strings.TrimPrefix(s, "=")) }

// A Guard is the condition of an append: the last sequence over a chain. Only [First], [After] and [Never] make one.
type Guard struct {
	filter string
	seq    uint64
}

// First is the guard of the first fact of a chain: nothing may stand in it. On a redelivery it may be used only
// after the run's head has been read, because a chain that has aged out is empty too.
func First(p Place) Guard { return Guard{filter: p.Chain()} }

// After is the guard of a fact that follows prev: prev must still be the last of its chain.
func After(prev Event) Guard { return Guard{filter: prev.Place.Chain(), seq: prev.Seq} }

// Never is a guard that no append can meet. An append refused under it proves right, route and leader, and stores
// nothing.
func Never(p Place) Guard { return Guard{filter: p.Chain(), seq: math.MaxUint64} }

// Filter is the chain that the guard watches, by stored names.
func (g Guard) Filter() string { return g.filter }

// Seq is the last sequence that the chain must have; 0 means that it must be empty.
func (g Guard) Seq() uint64 { return g.seq }

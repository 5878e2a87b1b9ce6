// Package approval is the gate. For each call that a model asks for it decides whether the call runs, waits for people
// or ends here, and it turns what people decide into the one answer that counts. Nothing runs without its signature;
// it never calls a model and never executes a tool.
//
// Every handler may run twice, late, or beside another copy of itself: what it appends follows the fact that it
// looked at, and whoever is second goes on from what is there.
//
// What it does with a call, in the order in which it happens:
//
//   - Rules (gate.go, rules.go, and services/internal/judge). Tool, run and the operators' rule sets say whether a call is
//     allowed, asked about or blocked. What cannot be evaluated asks, and rules that cannot be read let nothing pass.
//   - Grants (grant.go, grantrequest.go). An approval that stands answers the ask before people see it, when its grantor
//     may approve exactly this call now. Each use is a fact on the grant's own chain, so none is spent twice.
//   - Asks (ask.go, entry.go, preview.go, secret.go). The entry in the bucket suspended is written first, then the ask is
//     stored and announced, so whoever decides at first sight decides something that is there.
//   - Escalation (escalate.go, expire.go). An open ask is stored again, in the same round, when more people may decide it or
//     are reminded. The deadline answers it in the end, by the server's time; timers only wake the gate.
//   - Decisions (decide.go, prove.go, refuse.go, unnamed.go, auto.go). The sender is proven, and must have the scope decide;
//     then the decision is held against the open ask. The first one that passes is the answer. What does not count is kept
//     beside the chain and told to its sender, and changes nothing.
//   - Votes (vote.go). Where an ask needs a quorum, each approval is stored on a chain of its principal, and whoever finds
//     enough of them, of people who still may decide, appends the answer.
//   - Background calls (background.go). They pass all of this as any other. One that outlasts its run is asked about for no longer
//     than the facts of the run last.
//   - What follows (follow.go, doubt.go, cancel.go, end.go). Whoever finds an answer without its consequence appends that.
//     The sweeper (sweep.go) looks for whatever a gate that was stopped has left undone, and calls the same handlers.
//
// The micro service (serve.go, admin.go; see [ServiceName]) is for who may read no stream: a decision that is sent as a
// request goes through the inbox as any other, and its outcome is replied. It also shows open asks, to principals with the
// scope read or decide, and what is behind or was given up, to those with admin.
package approval

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/lru"
	"github.com/weirkeeper/weir/services/internal/rule"
	"github.com/weirkeeper/weir/services/internal/service"
)

// Name is the service's name on the bus.
const Name = "approval"

// Config of a gate. Zero fields have the default that their comment names.
type Config struct {
	// ID of this process among the gates. Default: a new one.
	ID string
	// Key signs asks, answers and releases. Required.
	Key events.Key
	// Keys are the public keys of every gate whose signature counts, during a rotation two. The own one is added.
	Keys events.Keys
	// Gateways are the public keys of gateways that may decide for people they have logged in.
	Gateways events.Keys
	// Dev lets the permission to publish on a subject prove who its sender is. Only weir dev sets it, because replies
	// can be steered to such subjects.
	Dev bool
	// Expires is how long an ask waits when neither rule nor tool says so. Default 168 h.
	Expires time.Duration
	// Preview is how long an ask waits for what the tool's host says that the call would do. Default 2 s.
	Preview time.Duration
	// Retention of the log; what is open is carried before a third of it has passed. Default 24 h.
	Retention time.Duration
	// Sweep is the pause between two sweeps, DeepSweep between two that look at every ask of the log. Default 10 s
	// and 10 min.
	Sweep, DeepSweep time.Duration
	// SweepAge is how old a fact must be before the sweeper looks after it. Default 30 s.
	SweepAge time.Duration
	// Pools whose released calls the sweeper looks after. Default: the pool default.
	Pools []string
	// Concurrency is how many events of a kind are handled at once. Default 64.
	Concurrency int
	// Log takes what has no caller. Default: discarded.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.ID = cmp.Or(c.ID, events.NewID(time.Now()))
	c.Expires = cmp.Or(c.Expires, 168*time.Hour)
	c.Preview = cmp.Or(c.Preview, 2*time.Second)
	c.Retention = cmp.Or(c.Retention, 24*time.Hour)
	c.Sweep = cmp.Or(c.Sweep, 10*time.Second)
	c.DeepSweep = cmp.Or(c.DeepSweep, 10*time.Minute)
	c.SweepAge = cmp.Or(c.SweepAge, 30*time.Second)
	c.Concurrency = cmp.Or(c.Concurrency, 64)
	if len(c.Pools) == 0 {
		c.Pools = []string{events.DefaultPool}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Service is a gate.
type Service struct {
	conn   *jetstream.Conn
	ns     events.Namespace
	cfg    Config
	log    *slog.Logger
	origin *events.Origin
	keys   events.Keys

	runs     *lru.Cache[string, *run]          // by run id: what never changes of it
	states   *lru.Cache[string, *events.State] // by run id: the fold up to a main fact that the value names
	tools    *lru.Cache[string, *tool]         // by digest
	verified *lru.Cache[[32]byte, struct{}]    // signed facts that this process has made or verified, by content
	ready    *lru.Cache[string, *readied]      // by call: frozen calls that wait for their turn
	helped   *lru.Cache[string, struct{}]      // by event id: facts that this process has helped on from
	rules    ruleBook
	exprs    *rule.Cache
	waits    waits
}

// Bounds of what a gate remembers, for runs that go on at once: those that wait are read from the log when they go on.
const (
	maxRuns       = 1024
	maxStateBytes = 6 << 20
	maxTools      = 1024
	maxVerified   = 16384
	maxExprs      = 1024
	maxReadyBytes = 2 << 20
	maxHelped     = 4096
)

// New makes a gate. It needs a key that signs.
func New(conn *jetstream.Conn, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	own, ok := cfg.Key.Private.Public().(ed25519.PublicKey)
	if !ok || cfg.Key.Public == "" {
		return nil, errors.New("a gate needs a key to sign with: Config.Key")
	}
	keys := events.Keys{cfg.Key.Public: own}
	maps.Copy(keys, cfg.Keys)
	s := &Service{
		conn: conn, ns: conn.Namespace(), cfg: cfg, log: cfg.Log,
		origin:   &events.Origin{Namespace: conn.Namespace(), Service: Name, Key: &cfg.Key},
		keys:     keys,
		runs:     lru.New[string, *run](maxRuns),
		states:   lru.New[string, *events.State](maxStateBytes),
		tools:    lru.New[string, *tool](maxTools),
		verified: lru.New[[32]byte, struct{}](maxVerified),
		exprs:    rule.NewCache(maxExprs),
		ready:    lru.New[string, *readied](maxReadyBytes),
		helped:   lru.New[string, struct{}](maxHelped),
	}
	return s, nil
}

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	if err := s.conn.SelfTest(ctx, Name); err != nil {
		return fmt.Errorf("self-test of the guards: %w", err)
	}
	since := time.Now().UTC()
	return service.All(ctx,
		func(ctx context.Context) error {
			return s.conn.KeepTelling(ctx, func(ctx context.Context) events.Live { return s.live(ctx, since) })
		},
		s.hearRules,
		s.conn.Consume(events.StreamRuns, Name, jetstream.Handler{
			Handle: s.onFact, Abandon: s.abandonFact, Malformed: s.onForeign, Concurrency: s.cfg.Concurrency, Batch: 256,
		}),
		s.conn.Consume(events.StreamInbox, Name, jetstream.Handler{
			Handle: s.onRequest, Malformed: s.onMalformed, Concurrency: s.cfg.Concurrency, Batch: 256,
		}),
		s.conn.Consume(events.StreamTimers, Name, jetstream.Handler{
			Handle: s.onTimer, Concurrency: s.cfg.Concurrency, Batch: 256,
		}),
		s.serve, s.sweep)
}

// onFact handles a fact of the log that obliges the gate to something.
func (s *Service) onFact(ctx context.Context, d jetstream.Delivery) error {
	switch d.Event.Place.Kind {
	case events.KindStep:
		return s.onStep(ctx, d)
	case events.KindSuspend:
		return s.onSuspend(ctx, d)
	case events.KindEnd:
		return s.onEnd(ctx, d)
	case events.KindLate:
		return s.onLate(ctx, d)
	default:
		return jetstream.Final(fmt.Errorf("a %s is not for the gate", d.Event.Place.Kind))
	}
}

// onRequest handles a request of the inbox.
func (s *Service) onRequest(ctx context.Context, d jetstream.Delivery) error {
	in, err := s.ns.ParseInbox(d.Subject)
	if err != nil {
		return jetstream.Final(err)
	}
	switch in.Verb {
	case events.VerbCancel:
		return s.onCancel(ctx, d, in)
	case events.VerbGrant:
		return s.onGrant(ctx, d, in)
	default:
		return s.onDecision(ctx, d, in)
	}
}

// errGone says that a chain has aged out: the run is long over, and nothing more is owed to it.
var errGone = errors.New("the chain has aged out")

// add appends a fact after prev (the zero Event when the chain must be empty) and returns the chain's last fact, and
// whether it is ours or that of somebody who was first.
func (s *Service) add(ctx context.Context, p events.Place, prev events.Event, data any) (events.Event, bool, error) {
	e, err := s.origin.Fact(p, data, prev)
	if err != nil {
		return events.Event{}, false, jetstream.Final(err)
	}
	guard := events.First(p)
	if prev.Seq > 0 {
		guard = events.After(prev)
	}
	a, err := s.conn.Append(ctx, guard, e)
	if err != nil {
		return events.Event{}, false, fmt.Errorf("append %s of %s: %w", p.Kind, p.Run, err)
	}
	switch a.Outcome {
	case jetstream.Stored:
		s.trust(a.Last)
		return a.Last, true, nil
	case jetstream.Lost:
		return a.Last, false, nil
	default:
		return events.Event{}, false, errGone
	}
}

// trust remembers a signed fact that needs no second look.
func (s *Service) trust(e events.Event) {
	if e.Signature.Sig != "" {
		s.verified.Put(contentOf(e), struct{}{}, 1)
	}
}

// genuine checks that a stored fact was written by a gate.
func (s *Service) genuine(e events.Event) error {
	content := contentOf(e)
	if _, ok := s.verified.Get(content); ok {
		return nil
	}
	if err := s.keys.VerifyFact(e); err != nil {
		return err
	}
	s.verified.Put(content, struct{}{}, 1)
	return nil
}

// contentOf digests everything that a signature depends on: key, signature, subject and payload.
func contentOf(e events.Event) [32]byte {
	h := sha256.New()
	for _, part := range [...]string{e.Signature.Key, e.Signature.Sig, e.Place.Subject()} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	h.Write(e.Payload)
	return [32]byte(h.Sum(nil))
}

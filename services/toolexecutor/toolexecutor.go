// Package toolexecutor runs released calls. It runs only what a gate has signed, exactly those bytes, and claims every
// call before it starts: a start is a fact, whatever the tool does. It never decides whether a call may run.
//
// A worker that dies leaves its claim in the log. Whoever finds it later claims a call again that may be repeated, and
// hands one with effects to people: nobody knows whether they happened.
//
// Tools need no code of Weir's: they may be programs (NewExec), requests to a server (NewHTTP) or to a NATS service of others
// (NewNATS). What such a request came to is unknown when no answer comes; a call with effects is then in doubt.
//
// Tools of MCP servers are hosted as long as a server lists them exactly as weir apply has accepted them: executors keep
// the lists in the registry (mcp.<id>), apply accepts what is there, and what was applied before anybody listed it is
// accepted when it is listed first. A tool that changes leaves the registry, and calls of it that were released before end
// without being sent. A call is sent once. What a server asks suspends the call; see [MCPServer].
package toolexecutor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/jq"
	"github.com/weirkeeper/weir/services/internal/service"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// Name is the service's name on the bus.
const Name = "tool-executor"

// Config of an executor. Zero fields have the default that their comment names.
type Config struct {
	// ID of this process among the executors; its claims name it. Default: a new one. Never reuse one.
	ID string
	// Pool whose released calls this process takes. Default: the pool default.
	Pool string
	// Tools that this process hosts. Their manifests are registered when it starts; those of client tools too, which it does
	// not host.
	Tools []agent.Tool
	// MCP are servers whose tools this process hosts. One that cannot be reached hinders nothing else.
	MCP []*MCPServer
	// Middleware sees every call that this process runs, in this order.
	Middleware []Middleware
	// GateKeys are the public keys of gates whose releases count. Required, and never read from the bus.
	GateKeys events.Keys
	// Concurrency is how many calls run at once in this process. Default 10.
	Concurrency int
	// Lease is how long a claim is respected once its worker shows no life any more. Default 30 s.
	Lease time.Duration
	// Log takes what has no caller. Default: discarded.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.ID = cmp.Or(c.ID, events.NewID(time.Now()))
	c.Pool = cmp.Or(c.Pool, events.DefaultPool)
	c.Concurrency = cmp.Or(c.Concurrency, 10)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Service is an executor.
type Service struct {
	conn   *jetstream.Conn
	ns     events.Namespace
	cfg    Config
	log    *slog.Logger
	origin *events.Origin
	since  time.Time

	mu      sync.Mutex
	hosts   map[string]host     // by tool id; those of MCP servers come and go
	running map[string]*ongoing // by toolCallId
	clients []events.Manifest   // of client tools, to be registered

	watch watch
}

// host is a tool that this process runs.
type host struct {
	tool     agent.Tool
	manifest events.Manifest
	input    *events.Schema
	secrets  *events.Secrets
	output   *jq.Program     // maps results for models; nil: the tool does, or nothing
	view     *transform.View // of runs without a policy of their own
}

// New makes an executor of some tools.
func New(conn *jetstream.Conn, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	if len(cfg.GateKeys) == 0 {
		return nil, errors.New("an executor needs the public keys of its gates: Config.GateKeys")
	}
	s := &Service{
		conn: conn, ns: conn.Namespace(), cfg: cfg, log: cfg.Log,
		origin: &events.Origin{Namespace: conn.Namespace(), Service: Name},
		since:  time.Now().UTC(), hosts: map[string]host{}, running: map[string]*ongoing{},
		watch: watch{calls: map[string]*watched{}},
	}
	for _, t := range cfg.Tools {
		if m := t.Manifest(); m.Client() {
			if err := agent.Check(t); err != nil {
				return nil, err
			}
			s.clients = append(s.clients, m)
			continue
		}
		h, err := s.hostOf(t)
		if err != nil {
			return nil, err
		}
		if _, twice := s.hosts[h.manifest.ID]; twice {
			return nil, fmt.Errorf("tool %s is given twice", h.manifest.ID)
		}
		s.hosts[h.manifest.ID] = h
	}
	servers := map[string]bool{}
	for _, m := range cfg.MCP {
		if servers[m.ID()] {
			return nil, fmt.Errorf("mcp server %s is given twice", m.ID())
		}
		servers[m.ID()] = true
	}
	return s, nil
}

func (s *Service) hostOf(t agent.Tool) (host, error) {
	m := t.Manifest()
	m.Pool = s.cfg.Pool
	input, err := events.CompileSchema(m.InputSchema)
	if err != nil {
		return host{}, fmt.Errorf("tool %s: input schema: %w", m.ID, err)
	}
	output, err := outputProgram(m)
	if err != nil {
		return host{}, fmt.Errorf("tool %s: toModelOutput: %w", m.ID, err)
	}
	if err := checkForms(m); err != nil {
		return host{}, fmt.Errorf("tool %s: transform: %w", m.ID, err)
	}
	h := host{tool: t, manifest: m, input: input, secrets: events.SecretsOf(m), output: output}
	h.view = transform.New(m, h.secrets, nil, h.transform)
	return h, nil
}

// hosted is the host of a tool here.
func (s *Service) hosted(id string) (host, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.hosts[id]
	return h, ok
}

// hostedNow are all hosts.
func (s *Service) hostedNow() []host {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.hosts))
}

// Run registers the tools and works until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	if err := s.conn.SelfTest(ctx, Name); err != nil {
		return fmt.Errorf("self-test of the guards: %w", err)
	}
	if err := s.registerAll(ctx); err != nil {
		return err
	}
	for _, filter := range []string{s.ns.EveryMain(events.KindEnd), s.ns.EveryCall(events.KindResult)} {
		stop, err := s.conn.HearFacts(ctx, filter, s.heard)
		if err != nil {
			return fmt.Errorf("listen for ends: %w", err)
		}
		defer stop()
	}
	return service.All(ctx, append(slices.Concat(s.answers(), s.observers(), s.mcpLoops()),
		func(ctx context.Context) error {
			return s.conn.KeepTelling(ctx, func(context.Context) events.Live { return s.live() })
		},
		s.conn.Consume(events.StreamRuns, events.PoolConsumer(s.cfg.Pool), jetstream.Handler{
			Handle: s.onRelease, Abandon: s.abandon, Malformed: s.onForeign, Concurrency: s.cfg.Concurrency,
		}))...)
}

func (s *Service) live() events.Live {
	l := events.Live{Service: Name, ID: s.cfg.ID, Pool: s.cfg.Pool, Since: s.since}
	for _, h := range s.hostedNow() {
		l.Tools = append(l.Tools, h.manifest.ID+"@"+h.manifest.Version)
	}
	slices.Sort(l.Tools)
	return l
}

// Register writes the manifests of the tools to the registry: by content, then by name. A tool that another host has
// registered under the same id and version with another content is refused, because a release names id and version.
// MCP servers are listed, as far as they answer in time, and their tools registered that were accepted.
func (s *Service) Register(ctx context.Context) error {
	if err := s.registerAll(ctx); err != nil {
		return err
	}
	s.registerMCP(ctx)
	return nil
}

func (s *Service) registerAll(ctx context.Context) error {
	all := slices.Clone(s.clients)
	for _, h := range s.hostedNow() {
		if h.manifest.Source.Kind != SourceMCP { // their loops do
			all = append(all, h.manifest)
		}
	}
	for _, m := range all {
		raw, err := events.Marshal(m)
		if err != nil {
			return fmt.Errorf("tool %s: %w", m.ID, err)
		}
		if err := s.checkConflict(ctx, m, raw); err != nil {
			return err
		}
		if err := s.register(ctx, m.ID, raw); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) register(ctx context.Context, id string, raw []byte) error {
	if _, err := s.conn.PutDef(ctx, raw); err != nil {
		return fmt.Errorf("register tool %s: %w", id, err)
	}
	if err := s.conn.PutNamed(ctx, events.RegistryTool, id, raw); err != nil {
		return fmt.Errorf("register tool %s: %w", id, err)
	}
	return nil
}

func (s *Service) checkConflict(ctx context.Context, m events.Manifest, raw []byte) error {
	old, err := s.conn.NamedNow(ctx, events.RegistryTool, m.ID)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read tool %s: %w", m.ID, err)
	}
	var there events.Manifest
	if err := json.Unmarshal(old, &there); err != nil {
		return nil //nolint:nilerr // what nobody can read is replaced
	}
	if there.Version == m.Version && events.Digest(old) != events.Digest(raw) {
		return events.Errorf(events.CodeToolConflict,
			"tool %s is registered as version %s with another definition: give this one another version", m.ID, m.Version)
	}
	return nil
}

// heard tells calls that are running here that their run or they themselves have ended. Hearing proves nothing, so the
// fact is read before anything is cancelled.
func (s *Service) heard(p events.Place) {
	running, watched := s.runningOf(p), s.watch.of(p)
	if len(running)+len(watched) == 0 {
		return
	}
	ctx, done := context.WithTimeout(context.Background(), 5*time.Second)
	fact, err := s.conn.Fact(ctx, p)
	done()
	if err != nil {
		return
	}
	if cancels(fact) {
		for _, w := range watched {
			w.cancel(errCancelled)
		}
	}
	for _, call := range running {
		s.mu.Lock()
		there := s.running[call]
		s.mu.Unlock()
		if there != nil {
			there.cancel(errCancelled)
		}
	}
}

func (s *Service) runningOf(p events.Place) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Kind == events.KindResult {
		if id := p.CallID().String(); s.running[id] != nil {
			return []string{id}
		}
		return nil
	}
	var ids []string
	for id, there := range s.running { // a cancel closes calls in the background too, and they hear of that
		if call, err := events.ParseCallID(id); err == nil && call.Run == p.Run && !there.outlast {
			ids = append(ids, id)
		}
	}
	return ids
}

// errCancelled is the cause of a handler's context when its run or call has ended.
var errCancelled = errors.New("the call was cancelled")

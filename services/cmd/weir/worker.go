package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/gateway"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/internal/service"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// readyWithin is how long one look at a service's readiness may take.
const readyWithin = time.Second

// workerConfig is what the services of one process are made of. What a service needs is empty when it is not run.
type workerConfig struct {
	// Dial connects a service. Each has a connection of its own, in one process too.
	Dial func(ctx context.Context, service string) (*jetstream.Conn, error)
	// Key signs for the gate.
	Key *events.Key
	// GateKeys are the public keys whose signatures gates and executors accept.
	GateKeys events.Keys
	// Gateways are the public keys of gateways that decide for whom they have logged in.
	Gateways events.Keys
	// Gateway says where and for whom HTTP is answered.
	Gateway gateway.Config
	// Dev lets the gate take the permission to publish for the proof of who decides.
	Dev bool
	// Models answer the planner.
	Models planner.Models
	// Tools are hosted, each in its pool. Pools are those that exist.
	Tools []agent.Tool
	MCP   []*toolexecutor.MCPServer
	Pools []string
	// Retention of the log. Zero: the default.
	Retention time.Duration
	// Lease of a claim. Zero: the default.
	Lease time.Duration
	Log   *slog.Logger
}

// worker is the services that this process runs.
type worker struct{ parts []part }

// part is one service of a worker.
type part struct {
	name string
	pool string // of an executor
	conn *jetstream.Conn
	run  func(context.Context) error

	register func(context.Context) error // of an executor: makes its tools known
	able     func(context.Context) error // of the gate: nil when it may let anything pass
	problems func() []string             // of the gate: what is wrong, and hinders nothing
	appends  bool                        // the service writes facts, and is ready only when it may
	addr     string                      // of the gateway

	needs jetstream.Settings // what the streams must be like
}

// Services of which runs need some. A worker can run a gateway too, which is a way to them.
var allServices = []string{planner.Name, approval.Name, toolexecutor.Name}

// servable are the services that a worker can run.
var servable = append(slices.Clone(allServices), gateway.Name)

// newWorker connects and makes services; executors one for each pool that has tools here. It runs nothing yet.
func newWorker(ctx context.Context, cfg workerConfig, services ...string) (*worker, error) {
	w := &worker{}
	if err := w.addAll(ctx, cfg, services); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *worker) addAll(ctx context.Context, cfg workerConfig, services []string) error {
	for _, name := range services {
		if name != toolexecutor.Name {
			if err := w.add(ctx, cfg, part{name: name}); err != nil {
				return err
			}
			continue
		}
		for _, pool := range cfg.pools() {
			if err := w.add(ctx, cfg, part{name: name, pool: pool}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *worker) add(ctx context.Context, cfg workerConfig, p part) error {
	conn, err := cfg.Dial(ctx, p.name)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.conn, p.needs, p.appends = conn, cfg.needs(p), p.name != gateway.Name
	w.parts = append(w.parts, p)
	if err := cfg.build(ctx, &p); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	w.parts[len(w.parts)-1] = p
	return nil
}

// needs are the settings that the streams must have for a service. A log that is kept for another time than the service
// knows of is one that forgets what is still open.
func (cfg workerConfig) needs(p part) jetstream.Settings {
	s := jetstream.Settings{Service: p.name, Retention: cmp.Or(cfg.Retention, config.DefaultRetention)}
	if p.pool != "" {
		s.Pools, s.Retention = []string{p.pool}, 0
	}
	return s
}

// build makes a service on its connection.
func (cfg workerConfig) build(ctx context.Context, p *part) error {
	log := cfg.Log.With("service", p.name)
	switch p.name {
	case planner.Name:
		s, err := planner.New(p.conn, planner.Config{Models: cfg.Models, GateKeys: cfg.GateKeys, Retention: cfg.Retention, Log: log})
		if err != nil {
			return err
		}
		p.run = s.Run
	case approval.Name:
		if cfg.Key == nil {
			return errors.New("the gate needs a key to sign with")
		}
		s, err := approval.New(p.conn, approval.Config{
			Key: *cfg.Key, Keys: cfg.GateKeys, Gateways: cfg.Gateways, Dev: cfg.Dev,
			Pools: cfg.Pools, Retention: cfg.Retention, Log: log,
		})
		if err != nil {
			return err
		}
		p.run, p.able, p.problems = s.Run, s.Ready, s.Problems
	case toolexecutor.Name:
		s, err := toolexecutor.New(p.conn, toolexecutor.Config{
			Pool: p.pool, Tools: toolsOf(cfg.Tools, p.pool), MCP: serversOf(cfg.MCP, p.pool),
			GateKeys: cfg.GateKeys, Lease: cfg.Lease, Log: log,
		})
		if err != nil {
			return err
		}
		p.run, p.register = s.Run, s.Register
	case gateway.Name:
		own := cfg.Gateway
		own.Log = log
		s, err := gateway.New(p.conn, own) //nolint:contextcheck // its handlers have the contexts of their requests
		if err != nil {
			return err
		}
		if err := s.Listen(ctx); err != nil {
			return err
		}
		p.run, p.addr = s.Run, s.Addr()
	default:
		return fmt.Errorf("there is no service %q (there are %s)", p.name, strings.Join(servable, ", "))
	}
	return nil
}

// poolsOf are the pools of some tools, sorted.
func poolsOf(tools []agent.Tool) []string {
	var pools []string
	for _, t := range tools {
		pools = append(pools, poolOf(t))
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

// pools are those that have tools here, sorted.
func (cfg workerConfig) pools() []string {
	pools := poolsOf(cfg.Tools)
	for _, m := range cfg.MCP {
		pools = append(pools, m.Pool())
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

func serversOf(servers []*toolexecutor.MCPServer, pool string) []*toolexecutor.MCPServer {
	return slices.DeleteFunc(slices.Clone(servers), func(m *toolexecutor.MCPServer) bool { return m.Pool() != pool })
}

func poolOf(t agent.Tool) string { return cmp.Or(t.Manifest().Pool, events.DefaultPool) }

func toolsOf(tools []agent.Tool, pool string) []agent.Tool {
	return slices.DeleteFunc(slices.Clone(tools), func(t agent.Tool) bool { return poolOf(t) != pool })
}

// Register makes the tools known that are hosted here, before anybody asks for them.
func (w *worker) Register(ctx context.Context) error {
	for _, p := range w.parts {
		if p.register == nil {
			continue
		}
		if err := p.register(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Run runs the services until ctx ends or one of them fails. Each finishes what it has begun, then its connection is
// closed.
func (w *worker) Run(ctx context.Context) error {
	defer w.close()
	var run []func(context.Context) error
	for _, p := range w.parts {
		run = append(run, func(ctx context.Context) error {
			if err := p.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			return nil
		})
	}
	return service.All(ctx, run...)
}

func (w *worker) close() {
	for _, p := range w.parts {
		hangUp(p.conn)
	}
}

// gateway is where HTTP is answered here, empty when nowhere.
func (w *worker) gateway() string {
	for _, p := range w.parts {
		if p.addr != "" {
			return p.addr
		}
	}
	return ""
}

// Verify compares the streams with what the services need, before they run.
func (w *worker) Verify(ctx context.Context) error {
	for _, p := range w.parts {
		if err := p.verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p part) verify(ctx context.Context) error {
	drifts, err := p.conn.Verify(ctx, p.needs)
	if err == nil && len(drifts) > 0 {
		err = driftError(drifts)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// Ready is nil when every service can do its work right now: its connection is healthy, the streams are as they must
// be, and it may append. Otherwise the error names all that is wrong.
func (w *worker) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	errs := make([]error, len(w.parts))
	var looking sync.WaitGroup
	for i, p := range w.parts {
		looking.Go(func() { errs[i] = p.ready(ctx) })
	}
	looking.Wait()
	return errors.Join(errs...)
}

func (p part) ready(ctx context.Context) error {
	if err := p.conn.Health(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if p.appends {
		if err := p.conn.Probe(ctx, p.name); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if p.able != nil {
		if err := p.able(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return p.verify(ctx)
}

// Problems are what is wrong and hinders no service: people should look at it.
func (w *worker) Problems() (list []string) {
	for _, p := range w.parts {
		if p.problems == nil {
			continue
		}
		for _, text := range p.problems() {
			list = append(list, p.name+": "+text)
		}
	}
	return list
}

// driftError is what is wrong with the streams, and how to mend it.
func driftError(drifts []jetstream.Drift) error {
	lines := make([]string, len(drifts))
	for i, d := range drifts {
		d.Got, d.Want = readable(d.Field, d.Got), readable(d.Field, d.Want)
		lines[i] = d.String()
	}
	return fmt.Errorf("the streams are not as they must be: %s (mend it with: weir stream provision, and give "+
		"it the same weir.yaml)",
		strings.Join(lines, "; "))
}

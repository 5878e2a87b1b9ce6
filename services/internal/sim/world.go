// Package sim runs the services against a real server in one process, stops them at any point, and checks what they
// have stored. It is the bench of the tests that span services; no product code imports it.
package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/service"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// Options of a world. Zero fields have the default that their comment names.
type Options struct {
	Model    agent.Model                    // default: Support
	Price    *events.Price                  // of every model; default: not known
	Tools    []agent.Tool                   // default: Lookup and Refund, counted
	Agent    events.AgentDef                // default: support, with both tools
	Settings jetstream.Settings             // of the streams
	Lease    time.Duration                  // default 30 s
	Server   *embedded.Server               // default: a new one
	Point    func(name string, c *Copy)     // called at every boundary of every copy, which it may kill
	Drop     func() bool                    // whether an acknowledgement is lost on its way
	Log      *slog.Logger                   // default: discarded
	Gate     func(*approval.Config)         // changes the gate's config
	Plan     func(*planner.Config)          // changes the planner's config
	Exec     func(*toolexecutor.Config)     // changes the executor's config
	Conn     func(*jetstream.Options)       // changes every connection's options
	Agents   []events.AgentDef              // more agents, for it to delegate to
	Rules    map[string]events.RuleSet      // operators' rules, by name
	People   map[string]events.PrincipalDef // by id
}

// World is a server, the definitions of one agent, and copies of services that come and go.
type World struct {
	T       testing.TB
	Server  *embedded.Server
	Key     events.Key
	Effects Effects // what the tools did to the world outside
	opts    Options
	wg      sync.WaitGroup
	mu      sync.Mutex
	conn    *jetstream.Conn
	copies  []*Copy
}

// Effects counts what tools do outside of the log, by idempotency key.
type Effects struct {
	mu sync.Mutex
	by map[string]int
}

// Add counts one effect.
func (e *Effects) Add(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.by == nil {
		e.by = map[string]int{}
	}
	e.by[key]++
}

// Of is how often the effect of a call happened.
func (e *Effects) Of(key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.by[key]
}

// All is a copy of the counts.
func (e *Effects) All() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[string]int, len(e.by))
	maps.Copy(out, e.by)
	return out
}

// New makes a world and registers its definitions. Services are started by Start.
func New(tb testing.TB, o Options) *World {
	tb.Helper()
	w := &World{T: tb, opts: o}
	w.defaults()
	key, err := jetstream.NewKey()
	if err != nil {
		tb.Fatal(err)
	}
	w.Key = key
	w.Server = o.Server
	if w.Server == nil {
		w.Server = jetstreamtest.StartServer(tb)
	}
	tb.Cleanup(w.wg.Wait)
	w.conn = w.connect("test", nil)
	tb.Cleanup(func() { _ = w.Conn().Close() })
	if err := w.Conn().Ensure(tb.Context(), w.opts.Settings); err != nil {
		tb.Fatal(err)
	}
	w.apply()
	return w
}

// Conn is the test's own connection; a restart replaces it.
func (w *World) Conn() *jetstream.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conn
}

func (w *World) defaults() {
	if w.opts.Tools == nil {
		w.opts.Tools = []agent.Tool{Lookup(), Refund(&w.Effects)}
	}
	if w.opts.Model == nil {
		w.opts.Model = Support{}
	}
	if w.opts.Agent.ID == "" {
		w.opts.Agent = events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{}}
		for _, t := range w.opts.Tools {
			w.opts.Agent.Tools[t.Manifest().ID] = t.Manifest().ID
		}
	}
	if w.opts.Log == nil {
		w.opts.Log = slog.New(slog.DiscardHandler)
	}
}

// apply writes the agent, the tools, rules and principals to the registry.
func (w *World) apply() {
	w.T.Helper()
	ctx := w.T.Context()
	exec, err := toolexecutor.New(w.Conn(), w.execConfig())
	if err == nil {
		err = exec.Register(ctx)
	}
	w.must(err)
	w.put(events.RegistryAgent, w.opts.Agent.ID, w.opts.Agent)
	for _, a := range w.opts.Agents {
		w.put(events.RegistryAgent, a.ID, a)
	}
	for name, set := range w.opts.Rules {
		w.put(events.RegistryRule, name, set)
	}
	for id, p := range w.opts.People {
		w.put(events.RegistryPrincipal, id, p)
	}
}

func (w *World) put(kind, id string, v any) {
	w.T.Helper()
	raw, err := events.Marshal(v)
	w.must(err)
	_, err = w.Conn().PutDef(w.T.Context(), raw)
	w.must(err)
	w.must(w.Conn().PutNamed(w.T.Context(), kind, id, raw))
}

func (w *World) must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// errDropped is an acknowledgement that is lost.
var errDropped = errors.New("lost on its way")

// errKilled is what a killed copy gets from everything that it does.
var errKilled = errors.New("the process was killed")

// Copy is one running copy of a service. Killed, it does nothing more: what it appends, acknowledges or publishes
// after that moment never happens.
type Copy struct {
	Service string
	Conn    *jetstream.Conn
	dead    atomic.Bool
	cancel  context.CancelFunc
	done    chan struct{}
	err     error
}

// Kill stops the copy at once, as SIGKILL does.
func (c *Copy) Kill() {
	c.dead.Store(true)
	c.cancel()
}

// Dead reports whether the copy was killed.
func (c *Copy) Dead() bool { return c.dead.Load() }

// Stop ends the copy in good order and waits for it.
func (c *Copy) Stop() error {
	c.cancel()
	<-c.done
	return c.err
}

// Start starts a copy of a service: planner.Name, approval.Name or toolexecutor.Name.
func (w *World) Start(service string) *Copy {
	w.T.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.T.Context()))
	c := &Copy{Service: service, cancel: cancel, done: make(chan struct{})}
	c.Conn = w.connect(service, c)
	run, err := w.build(c)
	w.must(err)
	w.wg.Go(func() {
		defer close(c.done)
		defer func() { _ = c.Conn.Close() }() //nolint:contextcheck // it bounds itself
		c.err = run(ctx)
	})
	w.mu.Lock()
	w.copies = append(w.copies, c)
	w.mu.Unlock()
	w.T.Cleanup(cancel)
	return c
}

// StartAll starts one copy of each service.
func (w *World) StartAll() []*Copy {
	w.T.Helper()
	return []*Copy{w.Start(planner.Name), w.Start(approval.Name), w.Start(toolexecutor.Name)}
}

func (w *World) build(c *Copy) (func(context.Context) error, error) {
	switch c.Service {
	case planner.Name:
		cfg := planner.Config{Models: models{w.opts.Model, w.opts.Price}, GateKeys: w.GateKeys(), Log: w.opts.Log}
		if w.opts.Plan != nil {
			w.opts.Plan(&cfg)
		}
		s, err := planner.New(c.Conn, cfg)
		if err != nil {
			return nil, err
		}
		return s.Run, nil
	case approval.Name:
		cfg := approval.Config{Key: w.Key, Dev: true, Log: w.opts.Log}
		if w.opts.Gate != nil {
			w.opts.Gate(&cfg)
		}
		s, err := approval.New(c.Conn, cfg)
		if err != nil {
			return nil, err
		}
		return s.Run, nil
	case toolexecutor.Name:
		s, err := toolexecutor.New(c.Conn, w.execConfig())
		if err != nil {
			return nil, err
		}
		return s.Run, nil
	}
	return nil, fmt.Errorf("no service %q", c.Service)
}

func (w *World) execConfig() toolexecutor.Config {
	cfg := toolexecutor.Config{Tools: w.opts.Tools, GateKeys: w.GateKeys(), Lease: w.opts.Lease, Log: w.opts.Log}
	if w.opts.Exec != nil {
		w.opts.Exec(&cfg)
	}
	return cfg
}

// GateKeys are the public keys whose releases count.
func (w *World) GateKeys() events.Keys {
	pub, err := jetstream.ParsePublic(w.Key.Public)
	w.must(err)
	return events.Keys{w.Key.Public: pub}
}

func (w *World) connect(name string, c *Copy) *jetstream.Conn {
	w.T.Helper()
	o := jetstream.Options{InProcess: w.Server.InProcess(), Name: name, Log: w.opts.Log}
	if c != nil {
		o.Hooks = w.hooks(c)
	}
	if w.opts.Conn != nil {
		w.opts.Conn(&o)
	}
	conn, err := jetstream.Connect(w.T.Context(), o)
	w.must(err)
	return conn
}

// models gives every model id the same model.
type models struct {
	m     agent.Model
	price *events.Price
}

func (m models) Price(string) *events.Price { return m.price }

func (m models) Model(id string) (agent.Model, string, error) { return m.m, id, nil }

// hooks let a world see, and a test stop, a copy at every boundary.
func (w *World) hooks(c *Copy) jetstream.Hooks {
	at := func(name string) error {
		if c.Dead() {
			return errKilled
		}
		if w.opts.Point != nil {
			w.opts.Point(name, c)
		}
		if c.Dead() {
			return errKilled
		}
		return nil
	}
	return jetstream.Hooks{
		BeforeAppend: func(e events.Event) error { return at(string(e.Place.Kind) + ".before") },
		AfterAppend: func(e events.Event, o jetstream.Outcome) error {
			return at(string(e.Place.Kind) + ".after")
		},
		At: func(boundary, subject string) error {
			if boundary == jetstream.BeforeSettle && w.opts.Drop != nil && w.opts.Drop() {
				return errDropped
			}
			if name := pointOf(events.DefaultNamespace, boundary, subject); name != "" {
				return at(name)
			}
			if c.Dead() {
				return errKilled
			}
			return nil
		},
	}
}

// pointOf names a boundary by what is written or settled there; it is empty for signs of life, which come by the clock.
func pointOf(ns events.Namespace, boundary, subject string) string {
	if strings.Contains(subject, "."+events.RegistryLive+".") || boundary == jetstream.BeforeChunk {
		return ""
	}
	if p, err := events.ParsePlace(subject); err == nil {
		return boundary + ":" + string(p.Kind)
	}
	if in, err := ns.ParseInbox(subject); err == nil {
		return boundary + ":" + in.Verb
	}
	if r, err := ns.ParseService(subject); err == nil {
		return boundary + ":" + r.Verb
	}
	if _, ok := ns.ParseThreadPlace(subject); ok {
		return boundary + ":thread"
	}
	if strings.HasPrefix(subject, "$KV.") {
		return boundary + ":" + strings.Split(subject, ".")[1]
	}
	return boundary + ":timer"
}

// Request publishes a start of the world's agent and returns the run's id.
func (w *World) Request(prompt string) string {
	w.T.Helper()
	id := events.NewID(time.Now())
	w.RequestAs("bob", events.RunRequested{
		AgentID: w.opts.Agent.ID, RunID: id,
		Messages: events.Prompt{events.TextMessage(events.RoleUser, prompt)},
	})
	return id
}

// RequestAs publishes a start for a principal.
func (w *World) RequestAs(principal string, r events.RunRequested) {
	w.T.Helper()
	w.publish(w.startAt(principal, r), r.RunID, principal, r)
}

// startAt is the subject of a start: at its agent, or at the reserved one of runs of one tool.
func (w *World) startAt(principal string, r events.RunRequested) string {
	if r.ToolID != "" {
		return w.Conn().Namespace().InStart(principal, events.TokenTool)
	}
	return w.Conn().Namespace().InStart(principal, r.AgentID)
}

// Decide publishes a decision of a principal.
func (w *World) Decide(principal string, d events.DecisionRequested) {
	w.T.Helper()
	call, err := events.ParseCallID(d.ToolCallID)
	w.must(err)
	w.publish(w.Conn().Namespace().InDecide(principal, call), call.Run, principal, d)
}

// Cancel publishes a cancel of a run.
func (w *World) Cancel(principal, run string) {
	w.T.Helper()
	w.publish(w.Conn().Namespace().InCancel(principal, run), run, principal, events.CancelRequested{RunID: run, Reason: "test"})
}

func (w *World) publish(subject, run, principal string, data any) {
	w.T.Helper()
	w.must(w.tryPublish(subject, run, principal, data))
}

func (w *World) tryPublish(subject, run, principal string, data any) error {
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}
	e, err := o.RequestBy(subject, run, principal, data)
	if err != nil {
		return err
	}
	_, err = w.Conn().Publish(w.T.Context(), subject, e)
	return err
}

// TryRequest is Request for a server that may be away.
func (w *World) TryRequest(prompt string) (string, error) {
	id := events.NewID(time.Now())
	r := events.RunRequested{AgentID: w.opts.Agent.ID, RunID: id, Messages: events.Prompt{events.TextMessage(events.RoleUser, prompt)}}
	return id, w.tryPublish(w.Conn().Namespace().InStart("bob", r.AgentID), id, "bob", r)
}

// TrySay is TryRequest for the next message of a thread.
func (w *World) TrySay(thread, prompt string, more ...func(*events.RunRequested)) (string, error) {
	id := events.NewID(time.Now())
	r := events.RunRequested{
		AgentID: w.opts.Agent.ID, RunID: id, ThreadID: thread, Messages: events.Prompt{events.TextMessage(events.RoleUser, prompt)},
	}
	for _, change := range more {
		change(&r)
	}
	return id, w.tryPublish(w.Conn().Namespace().InStart("bob", r.AgentID), id, "bob", r)
}

// TryCall asks for a run of one tool, of a server that may be away.
func (w *World) TryCall(thread, tool string, args json.RawMessage) (string, error) {
	id := events.NewID(time.Now())
	r := events.RunRequested{ToolID: tool, Args: args, RunID: id, ThreadID: thread}
	return id, w.tryPublish(w.startAt("bob", r), id, "bob", r)
}

// TryDecide is Decide for a server that may be away.
func (w *World) TryDecide(principal string, d events.DecisionRequested) error {
	call, err := events.ParseCallID(d.ToolCallID)
	if err != nil {
		return err
	}
	return w.tryPublish(w.Conn().Namespace().InDecide(principal, call), call.Run, principal, d)
}

// TryGrant asks for a grant, or takes one back, of a server that may be away.
func (w *World) TryGrant(principal, id string, data any) error {
	return w.tryPublish(w.Conn().Namespace().InGrant(principal, id), "", principal, data)
}

// TryCancel is Cancel for a server that may be away.
func (w *World) TryCancel(principal, run string) error {
	return w.tryPublish(w.Conn().Namespace().InCancel(principal, run), run, principal, events.CancelRequested{RunID: run})
}

// Restart kills every copy, stops the server and starts it again on the same files; start new copies. It waits until the old
// ones are gone: a server that stops offers a message to a client that is going again and again until its files
// are closed, and in fake time, which stands still while anybody is busy, that has no end.
func (w *World) Restart() {
	w.T.Helper()
	w.mu.Lock()
	copies := w.copies
	w.copies = nil
	w.mu.Unlock()
	for _, c := range copies {
		c.Kill()
	}
	for _, c := range copies {
		<-c.done
	}
	_ = w.Conn().Close()
	w.Server = jetstreamtest.Restart(w.T, w.Server)
	conn := w.connect("test", nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = conn
}

// A wait looks again after a pause that grows with it, since fake days are long.
const (
	minPoll = 5 * time.Millisecond
	maxPoll = 10 * time.Minute
)

// Await looks for a fact until it is there or the time is over.
func (w *World) Await(p events.Place, within time.Duration) events.Event {
	w.T.Helper()
	began := time.Now()
	for deadline := began.Add(within); ; {
		e, err := w.Conn().Fact(w.T.Context(), p)
		if err == nil {
			return e
		}
		if !errors.Is(err, jetstream.ErrNotFound) || time.Now().After(deadline) {
			w.T.Fatalf("no %s after %v: %v", p.Subject(), within, err)
		}
		w.pause(min(max(minPoll, time.Since(began)/20), maxPoll))
	}
}

func (w *World) pause(d time.Duration) {
	_ = service.Sleep(w.T.Context(), d) // whoever waits looks again
}

// AwaitEnd waits for the end of a run.
func (w *World) AwaitEnd(run string, within time.Duration) events.RunEnded {
	w.T.Helper()
	d, err := events.Data[events.RunEnded](w.Await(w.Conn().Namespace().End(run), within))
	w.must(err)
	return d
}

// AwaitAsk waits until a call is held.
func (w *World) AwaitAsk(call events.CallID, within time.Duration) events.CallHeld {
	w.T.Helper()
	d, err := events.Data[events.CallHeld](w.Await(w.Conn().Namespace().Call(call, events.KindAsk), within))
	w.must(err)
	return d
}

// RawJSON is a literal as arguments.
func RawJSON(s string) json.RawMessage { return json.RawMessage(s) }

// Check applies the log's invariants to what the world has stored.
func (w *World) Check(settled bool) jetstreamtest.Report {
	w.T.Helper()
	return jetstreamtest.Check(w.T, w.Conn(), jetstreamtest.CheckOptions{GateKeys: w.GateKeys(), Effects: w.Effects.All(), Settled: settled})
}

// Package gateway is Weir over HTTP: the routes of Mastra, so that programs written for its client work as they are, and
// Weir's own, which add what those lack: follow by cursor, an inbox of asks, decisions with fingerprints, cancel.
//
// It holds no state that matters. Every request ends in a request on the bus, made by the client package in the name of
// the principal whom the gateway has authenticated, and every stream is read from the chunks of a run; so any copy of a
// gateway serves any request. It reads chunks and buckets and never the log, and so it can only show what is meant to be
// shown.
//
// Everything that it answers is in one table ([Routes]): method, path, the scope that a caller needs, the handler, and
// the shapes of body and answer. Every error leaves by one function and one table of statuses.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// Name is the service's name on the bus.
const Name = "gateway"

// DefaultListen is where a gateway listens that is told nothing else.
const DefaultListen = "127.0.0.1:4111"

// Config of a gateway. Zero fields have the default that their comment names.
type Config struct {
	// Listen is host:port. Default 127.0.0.1:4111; port 0 is any that is free.
	Listen string
	// Open is the principal of every request, which then needs no login: whoever reaches the gateway is this principal. It is
	// refused where others than this machine may reach it. Default: every request needs an API token.
	Open string
	// Hosts are names under which the gateway is reached, besides those of its address. They matter with Open, where any
	// other name in a request is refused. Default: none.
	Hosts []string
	// Key signs the decisions and starts of whom the gateway has authenticated. Default: they are not signed, which only
	// weir dev accepts of decisions.
	Key *events.Key
	// GateKeys are the public keys of gates whose asks and answers are believed. Default: all are, as in weir dev.
	GateKeys events.Keys
	// Heartbeat is after how much silence a stream says that it lives. Default 15 s.
	Heartbeat time.Duration
	// Decide is how long the outcome of a decision is waited for. Default 5 s.
	Decide time.Duration
	// Execute is how long the output of a tool is waited for that is executed directly. Default 30 s.
	Execute time.Duration
	// Body is how long the body of a request may take to come. Default 30 s.
	Body time.Duration
	// Log takes what has no caller. Default: discarded.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.Decide = cmp.Or(c.Decide, 5*time.Second)
	c.Execute = cmp.Or(c.Execute, 30*time.Second)
	c.Body = cmp.Or(c.Body, 30*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("the gateway's address %q is not host:port: %w", c.Listen, err)
	}
	if c.Open != "" && !isLoopback(host) {
		return fmt.Errorf("%s is reachable for others than this machine, and the gateway asks nobody for a login: whoever reaches "+
			"it would be %s; listen on 127.0.0.1, or demand API tokens", c.Listen, c.Open)
	}
	return nil
}

// isLoopback reports whether a host is this machine, whatever a resolver says.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Gateway answers HTTP requests.
type Gateway struct {
	conn   *client.Conn
	cfg    Config
	log    *slog.Logger
	self   *client.Client // for what is nobody's request: who is who
	mux    *http.ServeMux
	origin *http.CrossOriginProtection

	live     live
	stopping chan struct{} // closed when Run ends: streams end then
	listener net.Listener

	mu      sync.Mutex
	clients map[string]*client.Client // by principal
}

// New makes a gateway. One that would let everybody in is refused.
func New(conn *client.Conn, cfg Config) (*Gateway, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g := &Gateway{
		conn: conn, cfg: cfg, log: cfg.Log, mux: http.NewServeMux(), origin: http.NewCrossOriginProtection(),
		stopping: make(chan struct{}), clients: map[string]*client.Client{},
	}
	g.self = client.New(conn, client.Config{Principal: Name, Service: Name, NoLog: true, Log: cfg.Log})
	for _, r := range Routes() {
		g.mux.HandleFunc(r.Method+" "+r.Path, g.serve(r))
	}
	return g, nil
}

// client acts in the name of a principal. There is one for each, as long as the gateway lives: it hears what its principal
// is told.
func (g *Gateway) client(principal string) *client.Client {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.clients[principal]
	if c == nil {
		c = client.New(g.conn, client.Config{
			Principal: principal, Service: Name, Key: g.cfg.Key, ByGateway: g.cfg.Key != nil, GateKeys: g.cfg.GateKeys,
			NoLog: true, ByRequest: true, Wait: g.cfg.Decide, Log: g.log,
		})
		g.clients[principal] = c
	}
	return c
}

// Close ends what the gateway hears. Streams end too.
func (g *Gateway) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.stopping:
	default:
		close(g.stopping)
	}
	for _, c := range g.clients {
		c.Close()
	}
	clear(g.clients)
	if g.listener != nil {
		_ = g.listener.Close() // closed already: nothing is left
	}
}

// Bounds of a connection. A stream has no end of its own; each of its writes has one.
const (
	headerTime = 5 * time.Second
	idleTime   = 2 * time.Minute
	writeTime  = 30 * time.Second
	maxHeader  = 16 << 10
	stopGrace  = 5 * time.Second // of requests that are under way when the gateway stops
)

// Listen takes the gateway's address, so that a taken one is an error at the start. Run does it when nobody has.
func (g *Gateway) Listen(ctx context.Context) error {
	if g.listener != nil {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", g.cfg.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("the gateway's address %s is taken by another program", g.cfg.Listen)
	}
	if err != nil {
		return fmt.Errorf("the gateway's address %s: %w", g.cfg.Listen, err)
	}
	g.listener = l
	return nil
}

// Addr is where the gateway listens, empty while it does not.
func (g *Gateway) Addr() string {
	if g.listener == nil {
		return ""
	}
	return g.listener.Addr().String()
}

// Run answers requests until ctx ends. Then streams end at once, and their readers go on by their cursors elsewhere; what
// else is under way has a moment. Runs go on in any case.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.Close()
	if err := g.Listen(ctx); err != nil {
		return err
	}
	if err := g.live.hear(ctx, g.self); err != nil {
		return fmt.Errorf("gateway: hear runs: %w", err)
	}
	base := context.WithoutCancel(ctx)
	server := &http.Server{
		Handler: g, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(g.log.Handler(), slog.LevelDebug), // of connections that their clients have broken
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		g.Close()
		bye, cancel := context.WithTimeout(base, stopGrace)
		defer cancel()
		if err := server.Shutdown(bye); err != nil {
			_ = server.Close() // what is still under way is cut off
		}
	})
	err := server.Serve(g.listener)
	if !stop() {
		<-stopped
	}
	if !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}

// hosts are the names in requests that are taken for this gateway's, without a port; nil: all are. Without a login the
// name is what tells a page of this gateway from one of a stranger whose name was made to point here.
func (g *Gateway) hosts() []string {
	if g.cfg.Open == "" {
		return nil
	}
	host, _, _ := net.SplitHostPort(g.cfg.Listen) // it was looked at before
	return append([]string{"localhost", "127.0.0.1", "::1", host}, g.cfg.Hosts...)
}

// knows reports whether a request is meant for this gateway.
func (g *Gateway) knows(hostport string) bool {
	hosts := g.hosts()
	if hosts == nil {
		return true
	}
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	for _, known := range hosts {
		if strings.EqualFold(host, known) {
			return true
		}
	}
	return false
}

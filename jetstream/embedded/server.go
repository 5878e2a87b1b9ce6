// Package embedded runs a NATS server with JetStream on file storage inside this process, for `weir dev` and
// for tests. It is the only importer of nats-server.
//
//	srv, err := embedded.Start(ctx, embedded.Options{Dir: ".weir"})
//	if err != nil {
//		return err
//	}
//	defer srv.Shutdown()
//	nc, err := nats.Connect("", nats.InProcessServer(srv.InProcess()))
//
// A start that returns without an error has read its streams and takes connections. A directory belongs to
// one server at a time: a second start on it fails before it touches a stream.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// readyTimeout bounds the wait for the listeners. Streams have been read by then, however many they are.
const readyTimeout = 10 * time.Second

// Server is a running NATS server. Its methods may be called from any goroutine.
type Server struct {
	opts   Options // as given, with the address that the system chose
	config string  // NATS configuration file, or empty
	lock   *os.File
	nats   *natsserver.Server
}

// Start starts a server and waits until it takes connections. The error names what is in the way: a
// directory that cannot be written or that another server has, an address that is taken.
func Start(ctx context.Context, o Options) (*Server, error) { return start(ctx, "", o) }

// StartConfig starts a server with accounts, users and permissions from a NATS configuration file. What
// Options set wins over the file; JetStream is always on, and the file's logging is ignored.
func StartConfig(ctx context.Context, path string, o Options) (*Server, error) {
	if path == "" {
		return nil, errors.New("embedded: no configuration file named")
	}
	return start(ctx, path, o)
}

func start(ctx context.Context, config string, o Options) (*Server, error) {
	o = o.withDefaults()
	if err := o.validate(config != ""); err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	n, err := natsOptions(config, o)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	lock, err := lockDir(n.StoreDir)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	srv, err := boot(ctx, n, o.Log)
	if err != nil {
		_ = lock.Close() // the start's error says more
		return nil, fmt.Errorf("embedded: %w", err)
	}
	if addr := srv.Addr(); addr != nil {
		o.Listen = addr.String() // a restart keeps the port that the system chose
	}
	return &Server{opts: o, config: config, lock: lock, nats: srv}, nil
}

// boot starts a server on a directory that was taken.
func boot(ctx context.Context, n *natsserver.Options, log *slog.Logger) (*natsserver.Server, error) {
	if err := checkAddresses(ctx, n); err != nil {
		return nil, err
	}
	srv, err := natsserver.NewServer(n)
	if err != nil {
		return nil, fmt.Errorf("configure nats-server: %w", err)
	}
	l := &logger{log: log}
	srv.SetLogger(l, l.detailed(ctx), false)
	srv.Start()
	if err := awaitReady(ctx, srv, l); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, err
	}
	return srv, nil
}

// checkAddresses tries the addresses first, because nats-server opens the streams before it listens.
func checkAddresses(ctx context.Context, n *natsserver.Options) error {
	if !n.DontListen && n.Port > 0 {
		if err := checkAddress(ctx, n.Host, n.Port); err != nil {
			return err
		}
	}
	if n.Cluster.Port > 0 {
		return checkAddress(ctx, n.Cluster.Host, n.Cluster.Port)
	}
	return nil
}

func checkAddress(ctx context.Context, host string, port int) error {
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("address %s is taken by another program (%w): stop it, or choose another port", addr, err)
	}
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return l.Close()
}

// awaitReady returns when connections are taken, or with the reason why they never will be.
func awaitReady(ctx context.Context, srv *natsserver.Server, l *logger) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		if reason := l.fatal.Load(); reason != nil {
			return fmt.Errorf("start nats-server: %s", *reason)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("start nats-server: %w", err)
		}
		// Shorter slices would spin, and never end in fake time.
		if srv.ReadyForConnections(50 * time.Millisecond) {
			return nil
		}
	}
}

// ClientURL is the address that other processes connect to, empty when the server is in process only.
func (s *Server) ClientURL() string {
	if s.opts.Listen == "" {
		return ""
	}
	return s.nats.ClientURL()
}

// Name is the server's name, by which stream information names leaders and replicas.
func (s *Server) Name() string { return s.nats.Name() }

// InProcess connects without a socket: nats.Connect("", nats.InProcessServer(srv.InProcess())). Such a
// connection ends with this server: after a restart, make another from the server that Restart returned. A
// refused login is told as a closed pipe after ten seconds, because server and client both write first and
// nobody reads; over ClientURL it is told at once.
func (s *Server) InProcess() nats.InProcessConnProvider { return s.nats }

// Current tells whether the server knows the cluster's latest assignments of streams. A single server always
// does, a member of a cluster only after an election.
func (s *Server) Current() bool { return s.nats.JetStreamIsCurrent() }

// Peers names the servers that take streams, as the leader of the cluster's assignments sees them. A
// follower and a single server know none.
func (s *Server) Peers() []string {
	if !s.nats.JetStreamIsClustered() {
		return nil // nats-server does not ask itself
	}
	return s.nats.JetStreamClusterPeers()
}

// Restart shuts the server down, unless it already is, and starts another on its directory and its address,
// with the configuration file read anew. Clients that came by ClientURL reconnect by themselves.
func (s *Server) Restart(ctx context.Context) (*Server, error) {
	s.Shutdown()
	return start(ctx, s.config, s.opts)
}

// Shutdown stops the server, waits until all its files are written and closed, and gives the directory back.
// It may be called again.
func (s *Server) Shutdown() {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	_ = s.lock.Close() // a second close has nothing to give back
}

package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/jetstream/embedded"
)

func TestStartInProcess(t *testing.T) {
	t.Parallel()
	srv := start(t, embedded.Options{Dir: filepath.Join(t.TempDir(), "made", "on", "demand")})
	if got := srv.ClientURL(); got != "" {
		t.Errorf("ClientURL = %q, want none in process", got)
	}
	if got := srv.Name(); got != "weir" {
		t.Errorf("Name = %q, want weir", got)
	}
	if !srv.Current() || srv.Peers() != nil {
		t.Errorf("Current, Peers = %v, %v, want true and none for a single server", srv.Current(), srv.Peers())
	}
	nc := connect(t, srv)
	if got := nc.MaxPayload(); got != 1<<20 {
		t.Errorf("max payload = %d, want 1 MiB", got)
	}
	js := stream(t, nc, "facts")
	publish(t, js, "facts", "one")
	info, err := must(t, js, "facts").Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Config.Storage != natsjs.FileStorage || info.State.Msgs != 1 {
		t.Errorf("storage %v with %d messages, want file with 1", info.Config.Storage, info.State.Msgs)
	}
}

func TestStartListens(t *testing.T) {
	t.Parallel()
	srv := start(t, embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Name: "dev"})
	nc, err := nats.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got := nc.ConnectedServerName(); got != "dev" || srv.Name() != "dev" {
		t.Errorf("server name = %q and %q, want dev", got, srv.Name())
	}
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	blocked := t.TempDir()
	write(t, filepath.Join(blocked, "jetstream"), "not a directory")
	member := func(c embedded.ClusterOptions) *embedded.ClusterOptions { return &c }
	tests := []struct {
		name string
		opts embedded.Options
		want []string // what the error must say
	}{
		{"no directory", embedded.Options{}, []string{"set Dir"}},
		{"directory below a file", embedded.Options{Dir: filepath.Join(file, "x")}, []string{file, "cannot be written", "choose another"}},
		{"directory is a file", embedded.Options{Dir: file}, []string{file, "cannot be written"}},
		{"store is a file", embedded.Options{Dir: blocked}, []string{"JetStream", "not a directory"}},
		{"open to the network", embedded.Options{Listen: "0.0.0.0:4222"}, []string{"0.0.0.0:4222", "127.0.0.1"}},
		{"all interfaces", embedded.Options{Listen: ":4222"}, []string{":4222", "no password"}},
		{"named host", embedded.Options{Listen: "example.org:4222"}, []string{"example.org", "no password"}},
		{"no port", embedded.Options{Listen: "127.0.0.1"}, []string{"not host:port"}},
		{"port is a word", embedded.Options{Listen: "127.0.0.1:nats"}, []string{"not a number"}},
		{"port is too large", embedded.Options{Listen: "127.0.0.1:65536"}, []string{"not a number"}},
		{"sync too often", embedded.Options{Sync: embedded.SyncInterval(time.Nanosecond)}, []string{"1ns", "1ms"}},
		{"negative sync", embedded.Options{Sync: embedded.SyncInterval(-time.Second)}, []string{"-1s"}},
		{"negative limit", embedded.Options{MaxStore: -1}, []string{"-1", "negative"}},
		{"cluster without name", embedded.Options{Listen: "127.0.0.1:0", Cluster: member(embedded.ClusterOptions{Port: 1, Routes: []string{"127.0.0.1:1"}})}, []string{"without a name"}},
		{"cluster without port", embedded.Options{Listen: "127.0.0.1:0", Cluster: member(embedded.ClusterOptions{Name: "c", Routes: []string{"127.0.0.1:1"}})}, []string{"port 0"}},
		{"cluster without routes", embedded.Options{Listen: "127.0.0.1:0", Cluster: member(embedded.ClusterOptions{Name: "c", Port: 1})}, []string{"without routes"}},
		{"cluster in process", embedded.Options{Cluster: member(embedded.ClusterOptions{Name: "c", Port: 1, Routes: []string{"127.0.0.1:1"}})}, []string{"must listen"}},
		{"bad route", embedded.Options{Listen: "127.0.0.1:0", Cluster: member(embedded.ClusterOptions{Name: "c", Port: 1, Routes: []string{"n1"}})}, []string{`"n1"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.opts.Dir == "" && tt.name != "no directory" {
				tt.opts.Dir = t.TempDir()
			}
			_ = refused(t, tt.opts, tt.want...)
		})
	}
}

func TestDirectoryHasOneServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, embedded.Options{Dir: dir})
	_ = refused(t, embedded.Options{Dir: dir}, dir, "in use by another server", "choose another")
	first.Shutdown()
	start(t, embedded.Options{Dir: dir})
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir, addr := t.TempDir(), l.Addr().String()
	err = refused(t, embedded.Options{Dir: dir, Listen: addr}, addr, "taken by another program", "choose another port")
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("error %v does not wrap EADDRINUSE", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "jetstream")); !os.IsNotExist(err) {
		t.Errorf("stat of the store = %v, want untouched by a start that failed", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := start(t, embedded.Options{Dir: dir, Listen: addr}).ClientURL(), "nats://"+addr; got != want {
		t.Errorf("ClientURL = %q, want %q", got, want)
	}
}

func TestStartCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if _, err := embedded.Start(ctx, embedded.Options{Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want cancelled", err)
	}
	start(t, embedded.Options{Dir: dir}) // nothing of the first is left
}

func TestMaxStore(t *testing.T) {
	t.Parallel()
	js := jetstream(t, connect(t, start(t, embedded.Options{Dir: t.TempDir(), MaxStore: 1 << 20})))
	_, err := js.CreateStream(t.Context(), natsjs.StreamConfig{Name: "big", Subjects: []string{"big"}, MaxBytes: 2 << 20})
	if api := new(natsjs.APIError); !errors.As(err, &api) || !strings.Contains(api.Description, "insufficient storage") {
		t.Errorf("error = %v, want insufficient storage", err)
	}
}

func TestRestartKeepsWhatWasStored(t *testing.T) {
	t.Parallel()
	first := start(t, embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Name: "dev"})
	back := make(chan struct{}, 1)
	nc, err := nats.Connect(first.ClientURL(), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js := stream(t, nc, "facts")
	publish(t, js, "facts", "one")
	second := restart(t, first)
	if second.ClientURL() != first.ClientURL() || second.Name() != "dev" {
		t.Errorf("now %s at %s, was dev at %s", second.Name(), second.ClientURL(), first.ClientURL())
	}
	select {
	case <-back:
	case <-time.After(10 * time.Second):
		t.Fatal("the connection did not find the server again")
	}
	publish(t, js, "facts", "two")
	second.Shutdown()
	third := restart(t, second) // a server that was shut down comes back too
	if diff := cmp.Diff([]string{"one", "two"}, stored(t, jetstream(t, connect(t, third)), "facts")); diff != "" {
		t.Error(diff)
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	srv := start(t, embedded.Options{Dir: dir})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			srv.Shutdown()
			if conn, err := srv.InProcess().InProcessConn(); err == nil {
				t.Errorf("connected to %v after Shutdown", conn.RemoteAddr())
			}
		})
	}
	wg.Wait()
	start(t, embedded.Options{Dir: dir})
}

func start(t *testing.T, o embedded.Options) *embedded.Server {
	t.Helper()
	srv, err := embedded.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}

func restart(t *testing.T, srv *embedded.Server) *embedded.Server {
	t.Helper()
	next, err := srv.Restart(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.Shutdown)
	return next
}

func refused(t *testing.T, o embedded.Options, words ...string) error {
	t.Helper()
	srv, err := embedded.Start(t.Context(), o)
	if err == nil {
		srv.Shutdown()
		t.Fatalf("started, want an error that says %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
	return err
}

func connect(t *testing.T, srv *embedded.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	opts = append(opts, nats.InProcessServer(srv.InProcess()), nats.NoReconnect())
	nc, err := nats.Connect("", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func jetstream(t *testing.T, nc *nats.Conn) natsjs.JetStream {
	t.Helper()
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// stream makes a stream that stores the subject of its own name.
func stream(t *testing.T, nc *nats.Conn, name string) natsjs.JetStream {
	t.Helper()
	js := jetstream(t, nc)
	if _, err := js.CreateStream(t.Context(), natsjs.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
		t.Fatal(err)
	}
	return js
}

func must(t *testing.T, js natsjs.JetStream, name string) natsjs.Stream {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publish(t *testing.T, js natsjs.JetStream, subject, body string) {
	t.Helper()
	if _, err := js.Publish(t.Context(), subject, []byte(body)); err != nil {
		t.Fatal(err)
	}
}

func stored(t *testing.T, js natsjs.JetStream, name string) []string {
	t.Helper()
	s := must(t, js, name)
	var bodies []string
	for seq := range s.CachedInfo().State.LastSeq {
		msg, err := s.GetMsg(t.Context(), seq+1)
		if err != nil {
			t.Fatal(fmt.Errorf("message %d: %w", seq+1, err))
		}
		bodies = append(bodies, string(msg.Data))
	}
	return bodies
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

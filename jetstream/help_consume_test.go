package jetstream_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

var tester = &events.Origin{Namespace: ns, Service: "test"}

// ask publishes a request for the gate: the smallest event that a durable delivers.
func ask(t *testing.T, c *jetstream.Conn, run string) {
	t.Helper()
	subject := ns.InCancel("bob", run)
	e, err := tester.Request(subject, run, events.CancelRequested{RunID: run}, events.Event{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(t.Context(), subject, e); err != nil {
		t.Fatal(err)
	}
}

// loop runs a handler on the gate's durable of the inbox; the function stops it and waits.
func loop(t *testing.T, c *jetstream.Conn, h jetstream.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Consume(events.StreamInbox, jetstream.ConsumerApproval, h)(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("loop ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// log keeps what a handler was called with.
type record struct {
	mu    sync.Mutex
	lines []string
	at    []time.Time
}

func (r *record) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
	r.at = append(r.at, time.Now())
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

func (r *record) times() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at)
}

// until waits for a condition, in real time and in fake time.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited for nothing: %s", what)
		}
	}
}

// provider is what hands out connections in process: a server, or a [phoenix].
type provider interface {
	InProcess() nats.InProcessConnProvider
}

// phoenix is a server that can be restarted: connections in process find the new one.
type phoenix struct {
	now atomic.Pointer[embedded.Server]
}

func (p *phoenix) InProcess() nats.InProcessConnProvider { return p }

func (p *phoenix) InProcessConn() (net.Conn, error) { return p.now.Load().InProcess().InProcessConn() }

func (p *phoenix) restart(t *testing.T) {
	t.Helper()
	p.now.Store(jetstreamtest.Restart(t, p.now.Load()))
}

// openPhoenix is open with a server that can be restarted.
func openPhoenix(t *testing.T) (*phoenix, *jetstream.Conn) {
	t.Helper()
	p := &phoenix{}
	p.now.Store(jetstreamtest.StartServer(t))
	c := service(t, p)
	ensure(t, c, jetstream.Settings{})
	return p, c
}

// service is a connection as a service has it.
func service(t *testing.T, p provider) *jetstream.Conn {
	t.Helper()
	c, err := jetstream.Connect(t.Context(), jetstream.Options{InProcess: p.InProcess(), Name: "approval", Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// raw is a connection that knows nothing of Weir.
func raw(t *testing.T, p provider) natsjs.JetStream {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(p.InProcess()), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func durable(t *testing.T, js natsjs.JetStream) *natsjs.ConsumerInfo {
	t.Helper()
	con, err := js.Consumer(t.Context(), ns.Store(events.StreamInbox), jetstream.ConsumerApproval)
	if err != nil {
		t.Fatal(err)
	}
	info, err := con.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func letters(t *testing.T, c *jetstream.Conn) []jetstream.DeadLetter {
	t.Helper()
	all, err := c.ListDead(t.Context(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// open gives a server with all streams, and a connection.
func open(t *testing.T) (*embedded.Server, *jetstream.Conn) {
	t.Helper()
	srv := jetstreamtest.StartServer(t)
	c := service(t, srv)
	ensure(t, c, jetstream.Settings{})
	return srv, c
}

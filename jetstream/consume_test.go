package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
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

func TestConsumeHandlesEachOnce(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{0, 64} {
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			t.Parallel()
			srv, c := open(t)
			const n = 300
			for i := range n / 2 {
				ask(t, c, fmt.Sprintf("r%d", i))
			}
			var r record
			stop := loop(t, c, jetstream.Handler{
				Concurrency: 8, Batch: batch,
				Handle: func(_ context.Context, d jetstream.Delivery) error {
					if d.Event.Seq == 0 || d.Event.Stored.IsZero() || d.Attempt != 1 || d.Consumer != jetstream.ConsumerApproval {
						t.Errorf("delivery is incomplete: %+v", d)
					}
					r.add("%s", d.Event.Subject)
					return nil
				},
			})
			for i := n / 2; i < n; i++ {
				ask(t, c, fmt.Sprintf("r%d", i))
			}
			until(t, "all handled", func() bool { return len(r.all()) >= n })
			stop()
			got := r.all()
			slices.Sort(got)
			if len(slices.Compact(got)) != n || len(got) != n {
				t.Errorf("%d handled, %d different, want %d", len(got), len(slices.Compact(got)), n)
			}
			if info := durable(t, raw(t, srv)); info.NumAckPending != 0 || info.NumPending != 0 {
				t.Errorf("%d unacknowledged, %d undelivered after the stop", info.NumAckPending, info.NumPending)
			}
		})
	}
}

func TestConsumeGivesUp(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	tests := map[string]struct {
		handle func() error
		want   []string
	}{
		"error": {
			func() error { return broken },
			[]string{"handle 1", "handle 2", "handle 3", "abandon 3: broken"},
		},
		"panic": {
			func() error { panic("marker") },
			[]string{"handle 1", "handle 2", "handle 3", "abandon 3: handler panicked: marker"},
		},
		"final": {
			func() error { return fmt.Errorf("wrapped: %w", jetstream.Final(broken)) },
			[]string{"handle 1", "abandon 1: wrapped: broken"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv, c := open(t)
				ask(t, c, "r1")
				var r record
				stop := loop(t, c, jetstream.Handler{
					MaxAttempts: 3,
					Handle: func(_ context.Context, d jetstream.Delivery) error {
						r.add("handle %d", d.Attempt)
						return tc.handle()
					},
					Abandon: func(_ context.Context, d jetstream.Delivery, cause error) error {
						if len(letters(t, c)) > 0 {
							t.Error("the dead letter came before the failed fact")
						}
						r.add("abandon %d: %v", d.Attempt, cause)
						return nil
					},
				})
				time.Sleep(10 * time.Minute) // fake
				stop()
				if diff := cmp.Diff(tc.want, r.all()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				dead := letters(t, c)
				if len(dead) != 1 || dead[0].RunID != "r1" || dead[0].Service != "approval" ||
					dead[0].Subject != ns.InCancel("bob", "r1") || !strings.Contains(dead[0].Payload, "cancel.requested") {
					t.Errorf("dead letters: %+v", dead)
				}
				if info := durable(t, raw(t, srv)); info.NumAckPending != 0 {
					t.Errorf("%d unacknowledged", info.NumAckPending)
				}
			})
		})
	}
}

func TestConsumeBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		var r record
		stop := loop(t, c, jetstream.Handler{Handle: func(context.Context, jetstream.Delivery) error {
			r.add("")
			return errors.New("broken")
		}})
		ask(t, c, "r1")
		time.Sleep(time.Hour) // fake
		stop()
		at := r.times()
		if len(at) != 20 {
			t.Fatalf("%d attempts, want 20", len(at))
		}
		for i := range 19 {
			gap, want := at[i+1].Sub(at[i]), min(100*time.Millisecond<<i, 30*time.Second)
			if gap < want/2 || gap > want*3/2+time.Second {
				t.Errorf("attempt %d came after %v, want about %v", i+2, gap, want)
			}
		}
	})
}

// TestConsumeDoesNotCount: what is put off, and what meets a store that does not answer, is never given up.
func TestConsumeDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"later": jetstream.Later(5 * time.Second), "unavailable": fmt.Errorf("append: %w", jetstream.ErrUnavailable),
		"full": jetstream.ErrFull, "undecided": jetstream.ErrTimeout, "forbidden": jetstream.ErrPermission,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, c := open(t)
				var calls atomic.Int32
				stop := loop(t, c, jetstream.Handler{MaxAttempts: 3, Handle: func(context.Context, jetstream.Delivery) error {
					switch calls.Add(1) {
					case 31:
						return errors.New("the first failure")
					case 32:
						return nil
					}
					return err
				}})
				ask(t, c, "r1")
				time.Sleep(5 * time.Minute) // fake
				stop()
				if got := calls.Load(); got != 32 {
					t.Errorf("%d calls, want 32", got)
				}
				if dead := letters(t, c); len(dead) != 0 {
					t.Errorf("given up: %+v", dead)
				}
			})
		})
	}
}

func TestConsumeKeepsAbandoning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		var tries atomic.Int32
		stop := loop(t, c, jetstream.Handler{
			Handle: func(context.Context, jetstream.Delivery) error { return jetstream.Final(errors.New("broken")) },
			Abandon: func(context.Context, jetstream.Delivery, error) error {
				if tries.Add(1) < 4 {
					return errors.New("the failed fact is not stored")
				}
				return nil
			},
		})
		ask(t, c, "r1")
		time.Sleep(time.Minute) // fake
		stop()
		if got, dead := tries.Load(), letters(t, c); got != 4 || len(dead) != 1 {
			t.Errorf("%d tries to abandon and %d dead letters, want 4 and 1", got, len(dead))
		}
	})
}

func TestConsumeMalformed(t *testing.T) {
	t.Parallel()
	good, err := tester.Request(ns.InCancel("bob", "r1"), "r1", events.CancelRequested{RunID: "r1"}, events.Event{})
	if err != nil {
		t.Fatal(err)
	}
	structured := func(payload string) *nats.Msg {
		return &nats.Msg{
			Subject: ns.InCancel("bob", "r1"), Data: []byte(payload),
			Header: nats.Header{"content-type": {"application/cloudevents+json"}},
		}
	}
	tests := map[string]*nats.Msg{
		"no headers":    {Subject: ns.InCancel("bob", "r1"), Data: good.Payload},
		"empty":         structured(""),
		"cut":           structured(string(good.Payload[:len(good.Payload)-3])),
		"not UTF-8":     structured("\xff\xfe"),
		"unknown type":  structured(strings.Replace(string(good.Payload), "cancel.requested", "cancel.dreamt", 1)),
		"newer version": structured(strings.Replace(string(good.Payload), ".v1", ".v2", 1)),
		"copied": {Subject: ns.InCancel("bob", "r1"), Data: good.Payload, Header: nats.Header{
			"content-type": {"application/cloudevents+json"}, "Nats-Sequence": {"7"},
		}},
		"like the server": {Subject: ns.InCancel("bob", "r1"), Header: nats.Header{
			"Status": {"409"}, "Description": {"Consumer Deleted"},
		}},
		"no run":        {Subject: ns.InCancel("bob", strings.Repeat("x", 64)), Data: []byte(strings.Repeat("<", 700_000))},
		"wrong subject": {Subject: ns.InStart("bob", "support"), Data: good.Payload, Header: structured("").Header},
	}
	for name, msg := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, c := open(t)
			consumer := jetstream.ConsumerApproval
			if name == "wrong subject" {
				consumer = jetstream.ConsumerPlanner
			}
			if _, err := raw(t, srv).PublishMsg(t.Context(), msg); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- c.Consume(events.StreamInbox, consumer, jetstream.Handler{
					Handle: func(context.Context, jetstream.Delivery) error {
						t.Error("handled")
						return nil
					},
				})(ctx)
			}()
			until(t, "dead letter", func() bool { return len(letters(t, c)) == 1 })
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			got, err := c.Payload(t.Context(), letters(t, c)[0])
			if err != nil || string(got) != string(msg.Data) {
				t.Errorf("dead letter holds %q (%v), want %q", got, err, msg.Data)
			}
		})
	}
}

func TestConsumeMalformedHook(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	js := raw(t, srv)
	for _, text := range []string{"told", "buried", "again"} {
		if _, err := js.Publish(t.Context(), ns.InCancel("bob", "r1"), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	var r record
	loop(t, c, jetstream.Handler{
		Handle: func(context.Context, jetstream.Delivery) error { return nil },
		Malformed: func(_ context.Context, d jetstream.Delivery, payload []byte, cause error) error {
			r.add("%s", payload)
			switch {
			case cause == nil || d.Subject != ns.InCancel("bob", "r1") || d.Event.Seq == 0:
				t.Errorf("malformed message %d on %q: %v", d.Event.Seq, d.Subject, cause)
			case string(payload) == "buried":
				return jetstream.Final(errors.New("to people"))
			case string(payload) == "again" && d.Attempt == 1:
				return errors.New("not stored")
			}
			return nil
		},
	})
	until(t, "all seen, one twice", func() bool { return len(r.all()) == 4 })
	until(t, "dead letter", func() bool { return len(letters(t, c)) == 1 })
	until(t, "all acknowledged", func() bool { return durable(t, js).NumAckPending == 0 })
	if dead := letters(t, c); len(dead) != 1 || dead[0].Payload != "buried" {
		t.Errorf("dead letters: %+v", dead)
	}
}

func TestConsumePassesCopiesOver(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	e, err := tester.Request(ns.InCancel("bob", "r1"), "r1", events.CancelRequested{RunID: "r1"}, events.Event{})
	if err != nil {
		t.Fatal(err)
	}
	e.Carried = true
	if _, err := c.Publish(t.Context(), ns.InCancel("bob", "r1"), e); err != nil {
		t.Fatal(err)
	}
	ask(t, c, "r2")
	var r record
	loop(t, c, jetstream.Handler{Handle: func(_ context.Context, d jetstream.Delivery) error {
		r.add("%s", d.Event.Subject)
		return nil
	}})
	js := raw(t, srv)
	until(t, "both acknowledged", func() bool { i := durable(t, js); return i.NumPending == 0 && i.NumAckPending == 0 })
	if diff := cmp.Diff([]string{"r2"}, r.all()); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
}

// TestConsumeKeepsWhatItHolds: a slow handler, and what waits behind it, is not delivered a second time.
func TestConsumeKeepsWhatItHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		var r record
		stop := loop(t, c, jetstream.Handler{Batch: 3, Handle: func(_ context.Context, d jetstream.Delivery) error {
			r.add("%s %d", d.Event.Subject, d.Attempt)
			time.Sleep(5 * time.Minute) // fake
			return nil
		}})
		for i := range 3 {
			ask(t, c, fmt.Sprintf("r%d", i))
		}
		time.Sleep(20 * time.Minute) // fake
		stop()
		if diff := cmp.Diff([]string{"r0 1", "r1 1", "r2 1"}, r.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

func TestConsumeFetchesWhatStarts(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	for i := range 10 {
		ask(t, c, fmt.Sprintf("r%d", i))
	}
	release, started := make(chan struct{}), make(chan struct{}, 10)
	stop := loop(t, c, jetstream.Handler{Concurrency: 3, Handle: func(context.Context, jetstream.Delivery) error {
		started <- struct{}{}
		<-release
		return nil
	}})
	for range 3 {
		<-started
	}
	js := raw(t, srv)
	for range 10 {
		if info := durable(t, js); info.NumAckPending != 3 || info.NumPending != 7 {
			t.Fatalf("%d fetched and %d left while 3 run, want 3 and 7", info.NumAckPending, info.NumPending)
		}
	}
	close(release)
	until(t, "all handled", func() bool { return durable(t, js).NumPending == 0 })
	stop()
}

// TestConsumeAfterDeath: what a process held that died comes again when its deadline has passed, to another.
func TestConsumeAfterDeath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		doomed := service(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		hangs, dead := make(chan struct{}), make(chan error, 1)
		go func() {
			dead <- doomed.Consume(events.StreamInbox, jetstream.ConsumerApproval, jetstream.Handler{
				Drain: time.Second,
				Handle: func(ctx context.Context, _ jetstream.Delivery) error {
					close(hangs)
					<-ctx.Done()
					return ctx.Err()
				},
			})(ctx)
		}()
		began := time.Now()
		ask(t, c, "r1")
		<-hangs
		doomed.Kill()
		if err := <-dead; !errors.Is(err, jetstream.ErrUnavailable) {
			t.Errorf("loop without a connection ended with %v", err)
		}
		cancel()

		var r record
		stop := loop(t, c, jetstream.Handler{Handle: func(_ context.Context, d jetstream.Delivery) error {
			r.add("%d", d.Attempt)
			return nil
		}})
		time.Sleep(time.Minute) // fake
		stop()
		if diff := cmp.Diff([]string{"2"}, r.all()); diff != "" {
			t.Fatalf("attempts (-want +got):\n%s", diff)
		}
		if after := r.times()[0].Sub(began); after < 30*time.Second || after > 32*time.Second {
			t.Errorf("delivered again after %v, want 30 s", after)
		}
	})
}

func TestConsumeDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		for i := range 3 {
			ask(t, c, fmt.Sprintf("r%d", i))
		}
		started := make(chan struct{}, 3)
		stop := loop(t, c, jetstream.Handler{Batch: 2, Handle: func(ctx context.Context, _ jetstream.Delivery) error {
			started <- struct{}{}
			time.Sleep(10 * time.Second) // fake
			return ctx.Err()
		}})
		<-started
		stop()
		js := raw(t, srv)
		if info := durable(t, js); info.NumAckPending != 2 || info.AckFloor.Stream != 1 {
			t.Errorf("after the drain %d are held and %d acknowledged, want 2 given back and 1", info.NumAckPending,
				info.AckFloor.Stream)
		}
		var r record
		again := time.Now()
		stop = loop(t, c, jetstream.Handler{Handle: func(_ context.Context, d jetstream.Delivery) error {
			r.add("%s", d.Event.Subject)
			return nil
		}})
		until(t, "the rest at once", func() bool { return len(r.all()) == 2 })
		if took := time.Since(again); took > time.Second {
			t.Errorf("what was given back came after %v", took)
		}
		stop()
	})
}

func TestConsumeDrainIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		ask(t, c, "r1")
		started, cancelled := make(chan struct{}), false
		stop := loop(t, c, jetstream.Handler{Drain: 7 * time.Second, Handle: func(ctx context.Context, _ jetstream.Delivery) error {
			close(started)
			<-ctx.Done()
			cancelled = true
			return ctx.Err()
		}})
		<-started
		began := time.Now()
		stop()
		if took := time.Since(began); !cancelled || took < 7*time.Second || took > 9*time.Second {
			t.Errorf("stopped after %v, handler cancelled: %v; want 7 s, true", took, cancelled)
		}
	})
}

func TestConsumeOutlivesItsDurable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		var r record
		stop := loop(t, c, jetstream.Handler{Concurrency: 2, Handle: func(_ context.Context, d jetstream.Delivery) error {
			r.add("%s", d.Event.Subject)
			return nil
		}})
		ask(t, c, "r1")
		time.Sleep(time.Second) // fake
		if err := c.Health(); err != nil {
			t.Fatalf("unhealthy before: %v", err)
		}
		js := raw(t, srv)
		if err := js.DeleteConsumer(t.Context(), ns.Store(events.StreamInbox), jetstream.ConsumerApproval); err != nil {
			t.Fatal(err)
		}
		ask(t, c, "r2")
		time.Sleep(2 * time.Minute) // fake
		if err := c.Health(); !errors.Is(err, jetstream.ErrNotFound) {
			t.Errorf("health without the durable is %v, want not found", err)
		}
		ensure(t, c, jetstream.Settings{})
		time.Sleep(10 * time.Second) // fake
		if diff := cmp.Diff([]string{"r1", "r2"}, r.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
		if err := c.Health(); err != nil {
			t.Errorf("unhealthy afterwards: %v", err)
		}
		stop()
		if err := c.Health(); err != nil {
			t.Errorf("unhealthy after the stop: %v", err)
		}
	})
}

// TestConsumeUnderFire: the server restarts and the durable is deleted and made again while requests come in; nothing
// is lost, and nothing waits for long.
func TestConsumeUnderFire(t *testing.T) {
	t.Parallel()
	srv, c := openPhoenix(t)
	var r record
	h := jetstream.Handler{Concurrency: 4, Batch: 8, Handle: func(_ context.Context, d jetstream.Delivery) error {
		r.add("%s", d.Event.Subject)
		return nil
	}}
	stop := loop(t, c, h)
	other := service(t, srv)
	stopOther := loop(t, other, h)
	js := raw(t, srv)
	n := 0
	more := func(count int) {
		for range count {
			ask(t, c, fmt.Sprintf("r%d", n))
			n++
		}
	}
	for range 2 {
		more(50)
		srv.restart(t)
		more(50)
		if err := js.DeleteConsumer(t.Context(), ns.Store(events.StreamInbox), jetstream.ConsumerApproval); err != nil {
			t.Fatal(err)
		}
		more(10)
		ensure(t, c, jetstream.Settings{})
	}
	more(10)
	until(t, "all handled", func() bool {
		got := r.all()
		slices.Sort(got)
		return len(slices.Compact(got)) == n
	})
	stop()
	stopOther()
}

// TestConsumeNotAllowed: a loop or a reader without the right to is told so, and does not wait for ever.
func TestConsumeNotAllowed(t *testing.T) {
	t.Parallel()
	srv := startUsers(t)
	c := login(t, srv, "approval", "_INBOX_approval")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := c.Consume(events.StreamInbox, jetstream.ConsumerApproval, jetstream.Handler{})(ctx)
	if !errors.Is(err, jetstream.ErrPermission) || !strings.Contains(err.Error(), "MSG.NEXT") {
		t.Errorf("loop ended with %v", err)
	}
	for _, err := range c.Follow(ctx, "r1", 0, nil) {
		if !errors.Is(err, jetstream.ErrPermission) {
			t.Errorf("reader ended with %v", err)
		}
	}
	if _, err := c.Hear(ctx, ns.RunAll(), func(events.Event) {}); !errors.Is(err, jetstream.ErrPermission) {
		t.Errorf("listening: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("refusals came as time-outs")
	}
}

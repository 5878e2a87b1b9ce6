package jetstreamtest_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

func TestMain(m *testing.M) { jetstreamtest.Main(m) }

func TestStartServer(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	if got := srv.ClientURL(); got != "" {
		t.Errorf("ClientURL = %q, want none", got)
	}
	js := addStream(t, connect(t, srv), 1)
	publish(t, js, "facts.a")
	if got := subjects(t, js); len(got) != 1 {
		t.Errorf("stored %v, want one fact", got)
	}
}

// Bubbles side by side, each with a server, are what the keeper is for. The waits are long and different, so
// that the bubbles' clocks are far apart while their servers share what nats-server keeps for the process.
func TestParallelBubbles(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { redelivers(t, time.Duration(i+1)*30*time.Second) })
		})
	}
}

// The same in real time, short: a new version of the server cannot fool us with fake time.
func TestRedeliveryInRealTime(t *testing.T) {
	t.Parallel()
	redelivers(t, 500*time.Millisecond)
}

// redelivers checks that a message left unacknowledged comes again once wait has passed, and not before.
func redelivers(t *testing.T, wait time.Duration) {
	t.Helper()
	js := addStream(t, connect(t, jetstreamtest.StartServer(t)), 1)
	c, err := js.CreateConsumer(t.Context(), "facts",
		natsjs.ConsumerConfig{Durable: "worker", AckPolicy: natsjs.AckExplicitPolicy, AckWait: wait})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, js, "facts.a")
	if got := delivered(t, c, wait); got != 1 {
		t.Fatalf("delivered = %d, want the first time", got)
	}
	begin := time.Now()
	if got := delivered(t, c, 2*wait+time.Second); got != 2 {
		t.Fatalf("delivered = %d, want the second time", got)
	}
	if waited := time.Since(begin); waited < wait-wait/10 {
		t.Errorf("delivered again after %v, want %v", waited, wait)
	}
}

// A message schedule needs the server's timers, day-long waits and the clean-up of what fired.
func TestDayPassesInBubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nc := connect(t, jetstreamtest.StartServer(t))
		js := natsJS(t, nc)
		_, err := js.CreateStream(t.Context(), natsjs.StreamConfig{
			Name: "timers", Subjects: []string{"timer.>"}, AllowMsgSchedules: true, AllowMsgTTL: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		fired, err := nc.SubscribeSync("timer.fire.x")
		if err != nil {
			t.Fatal(err)
		}
		due := time.Now().Add(24 * time.Hour)
		msg := nats.NewMsg("timer.set.x")
		msg.Header.Set("Nats-Schedule", "@at "+due.UTC().Format(time.RFC3339Nano))
		msg.Header.Set("Nats-Schedule-Target", "timer.fire.x")
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24*time.Hour + time.Second) // fake
		last, err := stream(t, js, "timers").GetLastMsgForSubject(t.Context(), "timer.fire.x")
		if err != nil {
			t.Fatalf("the timer has not fired: %v", err)
		}
		if late := last.Time.Sub(due); late < 0 || late > time.Second {
			t.Errorf("fired %v after its time, want within a second", late)
		}
		if n, _, err := fired.Pending(); err != nil || n != 0 {
			t.Errorf("core subscribers heard %d, %v: what fires is stored, not published", n, err)
		}
	})
}

func TestRestart(t *testing.T) {
	t.Parallel()
	restart := func(t *testing.T) {
		t.Helper()
		srv := jetstreamtest.StartServer(t)
		old := connect(t, srv)
		publish(t, addStream(t, old, 1), "facts.a")
		next := jetstreamtest.Restart(t, srv)
		js := natsJS(t, connect(t, next))
		publish(t, js, "facts.b")
		if diff := cmp.Diff([]string{"facts.a", "facts.b"}, subjects(t, js)); diff != "" {
			t.Error(diff)
		}
		if old.IsConnected() {
			t.Error("a connection in process outlived its server")
		}
	}
	t.Run("real time", func(t *testing.T) { t.Parallel(); restart(t) })
	t.Run("bubble", func(t *testing.T) { t.Parallel(); synctest.Test(t, restart) })
}

func TestRestartListening(t *testing.T) {
	t.Parallel()
	srv, back := jetstreamtest.StartListening(t), make(chan struct{}, 1)
	nc, err := nats.Connect(srv.ClientURL(), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js := addStream(t, nc, 1)
	publish(t, js, "facts.a")
	jetstreamtest.Restart(t, srv)
	select {
	case <-back:
	case <-time.After(time.Minute):
		t.Fatal("the connection did not come back")
	}
	publish(t, js, "facts.b")
	if diff := cmp.Diff([]string{"facts.a", "facts.b"}, subjects(t, js)); diff != "" {
		t.Error(diff)
	}
}

// A restart in the middle of a lease: the message that was held comes back, as after a crash.
func TestRestartRedelivers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := jetstreamtest.StartServer(t)
		js := addStream(t, connect(t, srv), 1)
		cfg := natsjs.ConsumerConfig{Durable: "worker", AckPolicy: natsjs.AckExplicitPolicy, AckWait: 30 * time.Second}
		c, err := js.CreateConsumer(t.Context(), "facts", cfg)
		if err != nil {
			t.Fatal(err)
		}
		publish(t, js, "facts.a")
		delivered(t, c, time.Second)
		srv = jetstreamtest.Restart(t, srv)
		c, err = natsJS(t, connect(t, srv)).Consumer(t.Context(), "facts", "worker")
		if err != nil {
			t.Fatal(err)
		}
		if got := delivered(t, c, time.Minute); got != 2 {
			t.Errorf("delivered = %d, want the second time", got)
		}
	})
}

func connect(t *testing.T, srv *embedded.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(srv.InProcess()), nats.NoReconnect())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func natsJS(t *testing.T, nc *nats.Conn) natsjs.JetStream {
	t.Helper()
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func addStream(t *testing.T, nc *nats.Conn, replicas int) natsjs.JetStream {
	t.Helper()
	js := natsJS(t, nc)
	cfg := natsjs.StreamConfig{Name: "facts", Subjects: []string{"facts.>"}, Replicas: replicas}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return js
}

func stream(t *testing.T, js natsjs.JetStream, name string) natsjs.Stream {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publish(t *testing.T, js natsjs.JetStream, subject string) {
	t.Helper()
	if _, err := js.Publish(t.Context(), subject, nil); err != nil {
		t.Fatal(err)
	}
}

// subjects of everything that the stream facts holds, in order.
func subjects(t *testing.T, js natsjs.JetStream) []string {
	t.Helper()
	s := stream(t, js, "facts")
	var all []string
	for i := range s.CachedInfo().State.LastSeq {
		msg, err := s.GetMsg(t.Context(), i+1)
		if err != nil {
			t.Fatalf("message %d: %v", i+1, err)
		}
		all = append(all, msg.Subject)
	}
	return all
}

// delivered fetches one message, leaves it unacknowledged and tells how often it was delivered.
func delivered(t *testing.T, c natsjs.Consumer, within time.Duration) uint64 {
	t.Helper()
	msg, err := c.Next(natsjs.FetchMaxWait(within))
	if err != nil {
		t.Fatal(err)
	}
	meta, err := msg.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	return meta.NumDelivered
}

package jetstream_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

const ns = events.DefaultNamespace

// start gives a connection to a server of the test's own, with all streams.
func start(t *testing.T, o jetstream.Options) *jetstream.Conn {
	t.Helper()
	c := connect(t, jetstreamtest.StartServer(t), o)
	ensure(t, c, jetstream.Settings{})
	return c
}

func connect(t *testing.T, srv *embedded.Server, o jetstream.Options) *jetstream.Conn {
	t.Helper()
	o.InProcess = srv.InProcess()
	c, err := jetstream.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func ensure(t *testing.T, c *jetstream.Conn, s jetstream.Settings) {
	t.Helper()
	if err := c.Ensure(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// testLog shows what a connection logs when the test fails.
func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// fact makes an event of the type that its place calls for. Appends and reads do not look at the data.
func fact(t *testing.T, p events.Place) events.Event {
	t.Helper()
	return factWith(t, p, map[string]string{"runId": p.Run})
}

var types = map[events.Kind]string{
	events.KindStart: events.TypeOf[events.RunStarted](), events.KindStep: events.TypeOf[events.StepFinished](),
	events.KindCarry: events.TypeOf[events.RunCarried](), events.KindEnd: events.TypeOf[events.RunEnded](),
	events.KindAsk: events.TypeOf[events.CallHeld](), events.KindAnswer: events.TypeOf[events.CallAnswered](),
	events.KindGo: events.TypeOf[events.CallReleased](), events.KindClaim: events.TypeOf[events.CallClaimed](),
	events.KindSuspend: events.TypeOf[events.CallSuspended](), events.KindResult: events.TypeOf[events.CallFinished](),
	events.KindVote: events.TypeOf[events.VoteCast](), events.KindRefused: events.TypeOf[events.DecisionRefused](),
	events.KindLate: events.TypeOf[events.OutcomeDelayed](),
}

func factWith(t *testing.T, p events.Place, data any) events.Event {
	t.Helper()
	raw, err := events.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	e := events.Event{
		ID: events.NewID(now), Type: types[p.Kind], Source: "/weir/default/test", Subject: p.Run, Time: now,
		PartitionKey: p.Run, CorrelationID: p.Run, Data: raw, Place: p,
	}
	if e.Payload, err = events.Encode(e); err != nil {
		t.Fatal(err)
	}
	return e
}

// stored appends a fact that must be stored.
func stored(t *testing.T, c *jetstream.Conn, g events.Guard, e events.Event) events.Event {
	t.Helper()
	got, err := c.Append(t.Context(), g, e)
	if err != nil {
		t.Fatal(err)
	}
	if got.Outcome != jetstream.Stored || got.Last.ID != e.ID || got.Last.Seq == 0 {
		t.Fatalf("append %s: %s, last fact %s %s at %d", e.Place.Subject(), got.Outcome, got.Last.Type, got.Last.ID,
			got.Last.Seq)
	}
	return got.Last
}

// acks loses acknowledgements, and no reads.
func acks(lose func() bool) func(subject string) bool {
	return func(subject string) bool { return !strings.HasPrefix(subject, "$JS.API.") && lose() }
}

func call(run string) events.CallID { return events.CallID{Run: run, Step: 1, Index: 1} }

// rawConn connects past this package.
func rawConn(t *testing.T, srv *embedded.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(srv.InProcess()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func rawJS(t *testing.T, srv *embedded.Server) natsjs.JetStream {
	t.Helper()
	js, err := natsjs.New(rawConn(t, srv))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// appender is [jetstream.Conn.Append], or a variant with a mistake in it.
type appender func(context.Context, events.Guard, events.Event) (jetstream.Appended, error)

// race lets writers follow the last fact of one chain at once, round after round, and reports what broke the
// protocol: each round must have one winner, of whom everybody else hears.
func race(t *testing.T, writers []appender, rounds int, last events.Event) (head events.Event, broken []string) {
	t.Helper()
	for round := range rounds {
		facts := make([]events.Event, len(writers))
		got := make([]jetstream.Appended, len(writers))
		failed := make([]error, len(writers))
		for i := range writers {
			facts[i] = fact(t, rival(last.Place.CallID(), i))
		}
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i, appendTo := range writers {
			wg.Go(func() {
				<-start
				got[i], failed[i] = appendTo(t.Context(), events.After(last), facts[i])
			})
		}
		close(start)
		wg.Wait()
		winner, faults := judge(facts, got, failed)
		for _, fault := range faults {
			broken = append(broken, fmt.Sprintf("round %d: %s", round, fault))
		}
		if winner.Seq == 0 {
			return last, broken
		}
		last = winner
	}
	return last, broken
}

// holds fails the test with what a race has broken.
func holds(t *testing.T, writers []appender, rounds int, last events.Event) events.Event {
	t.Helper()
	head, broken := race(t, writers, rounds, last)
	for _, fault := range broken {
		t.Error(fault)
	}
	return head
}

// rival is a place of the chain: who compete differ in the kind of fact, as an answer and an expiry do not, but a
// result and a suspend do.
func rival(c events.CallID, i int) events.Place {
	kinds := []events.Kind{events.KindAnswer, events.KindResult, events.KindSuspend, events.KindClaim}
	if i%5 == 4 {
		return ns.Go(c, "default", "refund")
	}
	return ns.Call(c, kinds[i%5])
}

func judge(facts []events.Event, got []jetstream.Appended, failed []error) (winner events.Event, faults []string) {
	for i := range got {
		switch {
		case failed[i] != nil:
			faults = append(faults, fmt.Sprintf("writer %d: %v", i, failed[i]))
		case got[i].Outcome != jetstream.Stored:
		case winner.Seq != 0:
			faults = append(faults, fmt.Sprintf("writer %d stored at %d beside %d", i, got[i].Last.Seq, winner.Seq))
		case got[i].Last.ID != facts[i].ID:
			faults = append(faults, fmt.Sprintf("writer %d stored another's fact", i))
		default:
			winner = got[i].Last
		}
	}
	if winner.Seq == 0 {
		return winner, append(faults, "nobody stored")
	}
	for i := range got {
		if failed[i] == nil && got[i].Last.ID != winner.ID {
			faults = append(faults, fmt.Sprintf("writer %d: %s to %q at %d, not to the winner at %d", i, got[i].Outcome,
				got[i].Last.ID, got[i].Last.Seq, winner.Seq))
		}
	}
	return winner, faults
}

// writers are n appenders over a few connections.
func writers(n int, conns ...*jetstream.Conn) []appender {
	all := make([]appender, n)
	for i := range all {
		all[i] = conns[i%len(conns)].Append
	}
	return all
}

func TestRace(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	conns := []*jetstream.Conn{connect(t, srv, jetstream.Options{}), connect(t, srv, jetstream.Options{})}
	ensure(t, conns[0], jetstream.Settings{})
	const rounds = 150
	holds(t, writers(16, conns...), rounds, held(t, conns[0], "r"))
	count(t, conns[0], rounds+1)
}

// The race itself is worth something only if it catches who does it wrong.
func TestRaceCatchesWrongGuard(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, jetstream.Settings{})
	w := wrong{rawConn(t, srv), c}
	if _, broken := race(t, []appender{w.ownSubject, w.ownSubject, w.ownSubject, w.ownSubject}, 1, held(t, c, "r")); len(broken) == 0 {
		t.Error("facts guarded by their own subjects pass the race")
	}
}

// TestRaceLosingReplies loses a third of the replies: those that were stored are found again.
func TestRaceLosingReplies(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	var n counter
	lossy := jetstream.Options{Hooks: jetstream.Hooks{LoseReply: acks(func() bool { return n.next()%3 == 0 })}}
	conns := []*jetstream.Conn{connect(t, srv, lossy), connect(t, srv, lossy)}
	ensure(t, conns[0], jetstream.Settings{})
	const rounds = 60
	holds(t, writers(8, conns...), rounds, held(t, conns[0], "r"))
	count(t, conns[0], rounds+1)
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

// TestRaceOverRestart stops the server again and again while facts are appended: every round is decided all the same.
func TestRaceOverRestart(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartListening(t)
	conns := dial(t, jetstream.Options{}, srv.ClientURL(), srv.ClientURL())
	ensure(t, conns[0], jetstream.Settings{})
	rounds := raceDuring(t, writers(8, conns...), held(t, conns[0], "r"), func(more func()) {
		for range 3 {
			srv = jetstreamtest.Restart(t, srv)
			more()
		}
	})
	count(t, conns[0], rounds+1)
}

// raceDuring races from before something happens until after it. More waits until some rounds have been decided.
func raceDuring(t *testing.T, writers []appender, last events.Event, happens func(more func())) (rounds int) {
	t.Helper()
	const some = 5
	decided, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		happens(func() { <-decided })
		<-decided
	}()
	for {
		last = holds(t, writers, some, last)
		rounds += some
		select {
		case <-done:
			return rounds
		case decided <- struct{}{}:
		default:
		}
	}
}

// dial gives a connection for each of the addresses. All connections know all of them.
func dial(t *testing.T, o jetstream.Options, urls ...string) []*jetstream.Conn {
	t.Helper()
	o.URL = strings.Join(urls, ",")
	var conns []*jetstream.Conn
	for range urls {
		c, err := jetstream.Connect(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		conns = append(conns, c)
	}
	return conns
}

// cluster is three servers with connections to them.
func cluster(t *testing.T, o jetstream.Options) ([]*embedded.Server, []*jetstream.Conn) {
	t.Helper()
	servers := jetstreamtest.StartCluster(t, 3)
	var urls []string
	for _, srv := range servers {
		urls = append(urls, srv.ClientURL())
	}
	conns := dial(t, o, urls...)
	ensure(t, conns[0], jetstream.Settings{Replicas: 3})
	return servers, conns
}

// TestThreeReplicas races on a cluster, where an append can meet another in flight and a loser cannot read the winner
// yet, and where a leader can go away.
func TestThreeReplicas(t *testing.T) {
	t.Parallel()
	var n counter
	servers, conns := cluster(t, jetstream.Options{Hooks: jetstream.Hooks{LoseReply: func(subject string) bool {
		return strings.Contains(subject, "lossy") && n.next()%5 == 0
	}}})
	nc, err := nats.Connect(servers[0].ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)

	t.Run("race", func(t *testing.T) {
		holds(t, writers(16, conns...), 80, held(t, conns[0], "race"))
	})
	t.Run("first", func(t *testing.T) { raceForFirst(t, conns) })
	t.Run("lost replies", func(t *testing.T) {
		holds(t, writers(8, conns...), 20, held(t, conns[0], "lossy"))
	})
	t.Run("busy read as lost is caught", func(t *testing.T) {
		careless := make([]appender, 16)
		for i := range careless {
			careless[i] = wrong{nc, conns[i%len(conns)]}.busyIsLost
		}
		for i := range 20 {
			if _, broken := race(t, careless, 50, held(t, conns[0], "wrong"+strconv.Itoa(i))); len(broken) > 0 {
				t.Log("caught:", broken[0])
				return
			}
		}
		t.Error("an appender that reads 10164 as lost passes the race: the race proves nothing")
	})
	t.Run("leader stops", func(t *testing.T) { raceOverElection(t, servers, conns, nc) })
}

// raceForFirst races for the first fact of many chains, which is where two gates meet on a step.
func raceForFirst(t *testing.T, conns []*jetstream.Conn) {
	t.Helper()
	for round := range 50 {
		c := call("first" + strconv.Itoa(round))
		facts, got, failed := make([]events.Event, 8), make([]jetstream.Appended, 8), make([]error, 8)
		var wg sync.WaitGroup
		for i := range facts {
			facts[i] = fact(t, rival(c, i))
			wg.Go(func() {
				got[i], failed[i] = conns[i%len(conns)].Append(t.Context(), events.First(facts[i].Place), facts[i])
			})
		}
		wg.Wait()
		if _, faults := judge(facts, got, failed); len(faults) > 0 {
			t.Errorf("round %d: %v", round, faults)
		}
	}
}

// wrong appends as earlier attempts did.
type wrong struct {
	nc *nats.Conn
	c  *jetstream.Conn
}

// busyIsLost is the mistake that left one run in twenty hanging: an append in flight is taken for the winner, and
// what can be read at that moment for its fact.
func (w wrong) busyIsLost(ctx context.Context, g events.Guard, e events.Event) (jetstream.Appended, error) {
	return w.appendOnce(ctx, e, g.Filter(), g.Seq())
}

// ownSubject is the mistake of guarding a fact by its own subject instead of its chain.
func (w wrong) ownSubject(ctx context.Context, _ events.Guard, e events.Event) (jetstream.Appended, error) {
	return w.appendOnce(ctx, e, e.Place.Subject(), 0)
}

// appendOnce takes whatever refusal comes for the end of the matter.
func (w wrong) appendOnce(ctx context.Context, e events.Event, filter string, seq uint64) (jetstream.Appended, error) {
	msg := nats.NewMsg(e.Place.Ingest())
	msg.Header.Set("content-type", "application/cloudevents+json")
	msg.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(seq, 10))
	msg.Header.Set("Nats-Expected-Last-Subject-Sequence-Subject", filter)
	msg.Data = e.Payload
	reply, err := w.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return jetstream.Appended{}, err
	}
	var ack struct {
		Seq   uint64
		Error *struct{ Code int }
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		return jetstream.Appended{}, err
	}
	if ack.Error == nil {
		e.Seq = ack.Seq
		return jetstream.Appended{Outcome: jetstream.Stored, Last: e}, nil
	}
	last, err := w.c.Last(ctx, e.Place.Chain())
	if errors.Is(err, jetstream.ErrNotFound) {
		err = nil
	}
	return jetstream.Appended{Outcome: jetstream.Lost, Last: last}, err
}

// raceOverElection stops the leader of the log in the middle. Its successor may be behind for a moment, and until it is
// elected nobody answers.
func raceOverElection(t *testing.T, servers []*embedded.Server, conns []*jetstream.Conn, nc *nats.Conn) {
	t.Helper()
	leader := leaderOf(t, nc)
	raceDuring(t, writers(6, conns...), held(t, conns[0], "election"), func(more func()) {
		more()
		for _, srv := range servers {
			if srv.Name() == leader {
				jetstreamtest.Restart(t, srv)
			}
		}
	})
}

func leaderOf(t *testing.T, nc *nats.Conn) string {
	t.Helper()
	reply, err := nc.RequestWithContext(t.Context(), "$JS.API.STREAM.INFO."+ns.Store(events.StreamRuns), nil)
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Cluster struct{ Leader string } }
	if err := json.Unmarshal(reply.Data, &info); err != nil || info.Cluster.Leader == "" {
		t.Fatalf("leader of the log: %v in %s", err, reply.Data)
	}
	return info.Cluster.Leader
}

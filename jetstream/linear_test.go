package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// A register is what a chain is to its writers: who names its last fact replaces it, who names another is told which one
// is. Histories of many writers and readers are linearizable when some order of the operations, within the time that each
// took, explains all answers.

// op is an operation on one register.
type op struct {
	register  string
	read      bool
	after, id string // an append: what it names, and its own
}

// seen is what came of an operation.
type seen struct {
	stored  bool
	last    string // what stands there now; empty: nothing
	blind   bool   // a loser that is not told what stands there
	unknown bool   // nobody knows whether it was stored
}

// anything is what stands in a register after a write of which its writer knows neither whether it was stored nor as what.
const anything = "?"

// registers is the model. A state is the last id of one register.
var registers = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[string][]porcupine.Operation{}
		for _, o := range history {
			name := o.Input.(op).register
			parts[name] = append(parts[name], o)
		}
		var all [][]porcupine.Operation
		for _, part := range parts {
			all = append(all, part)
		}
		return all
	},
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		now, in, out := state.(string), input.(op), output.(seen)
		switch {
		case now != anything:
		case out.blind, out.unknown:
			return []any{anything}
		case out.stored: // it was what this one followed, or showed
			now = in.after
		default:
			now = out.last
		}
		switch {
		case out.unknown && now == in.after:
			return []any{now, in.id}
		case out.unknown, in.read && out.last == now:
			return []any{now}
		case in.read:
			return nil
		case out.stored && now == in.after:
			return []any{in.id}
		case !out.stored && now != in.after && (out.blind || out.last == now):
			return []any{now}
		case out.blind: // the bucket keeps one value: what was stored and then replaced counts as lost
			return []any{anything}
		}
		return nil
	},
}).ToModel()

// store is a set of registers, or a variant with a mistake in it.
type store interface {
	// write names what it believes to be the last of the register. Whether it was stored, and what is last then.
	write(ctx context.Context, register string, after mark) (stored bool, last mark, err error)
	read(ctx context.Context, register string) (mark, error)
}

// mark is the last thing in a register: a fact, or a revision.
type mark struct {
	id   string
	fact events.Event
	rev  uint64
}

// historian lets clients use the registers and writes down what they see.
type historian struct {
	t  *testing.T
	mu sync.Mutex
	at time.Time
	h  []porcupine.Operation
}

const (
	clients     = 8
	registersOf = 6
)

// use lets clients read and write until each has done n operations.
func (h *historian) use(n int, stores ...store) {
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(client), 1))
			known := map[string]mark{}
			for range n {
				name := fmt.Sprintf("r%d", rng.IntN(registersOf))
				h.one(client, stores[client%len(stores)], name, known, rng.IntN(5) < 2)
			}
		})
	}
	wg.Wait()
}

func (h *historian) one(client int, s store, register string, known map[string]mark, read bool) {
	in := op{register: register, read: read, after: known[register].id}
	called := time.Since(h.at).Nanoseconds()
	var out seen
	var last mark
	var err error
	if read {
		last, err = s.read(h.t.Context(), register)
	} else {
		out.stored, last, err = s.write(h.t.Context(), register, known[register])
	}
	returned := time.Since(h.at).Nanoseconds()
	out.last, out.blind = last.id, !read && last.id == ""
	if out.stored {
		in.id = last.id
	}
	if err != nil {
		if read {
			return // it says nothing
		}
		in.id, out, returned = last.id, seen{unknown: true}, math.MaxInt64
	} else if last.id != "" {
		known[register] = last
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.h = append(h.h, porcupine.Operation{ClientId: client, Input: in, Call: called, Output: out, Return: returned})
}

// legal reports whether the history is linearizable.
func (h *historian) legal() bool {
	h.t.Helper()
	h.t.Logf("%d operations", len(h.h))
	result := porcupine.CheckOperationsTimeout(registers, h.h, time.Minute)
	if result == porcupine.Unknown {
		h.t.Error("the history could not be checked within a minute")
	}
	return result != porcupine.Illegal
}

// chains are the registers of the log.
type chains struct {
	t      *testing.T
	append appender
	last   func(ctx context.Context, chain string) (events.Event, error)
}

func (c chains) write(ctx context.Context, register string, after mark) (bool, mark, error) {
	p := rival(call(register), rand.IntN(5))
	g := events.First(p)
	if after.fact.Seq > 0 {
		g = events.After(after.fact)
	}
	e := fact(c.t, p)
	a, err := c.append(ctx, g, e)
	if err != nil {
		return false, mark{id: e.ID}, err
	}
	if a.Outcome == jetstream.Stored {
		e.Seq = a.Last.Seq
		return true, mark{id: e.ID, fact: e}, nil
	}
	return false, mark{id: a.Last.ID, fact: a.Last}, nil
}

func (c chains) read(ctx context.Context, register string) (mark, error) {
	e, err := c.last(ctx, ns.Call(call(register), events.KindAsk).Chain())
	if errors.Is(err, jetstream.ErrNotFound) {
		return mark{}, nil
	}
	return mark{id: e.ID, fact: e}, err
}

// entries are the registers of the bucket suspended.
type entries struct{ conn *jetstream.Conn }

func (e entries) write(ctx context.Context, register string, after mark) (bool, mark, error) {
	rev, err := e.conn.PutSnapshot(ctx, suspended(register, "t1"), after.rev)
	switch {
	case errors.Is(err, jetstream.ErrConflict):
		return false, mark{}, nil
	case err != nil:
		return false, mark{id: anything}, err
	}
	return true, revision(rev), nil
}

func (e entries) read(ctx context.Context, register string) (mark, error) {
	_, rev, err := e.conn.Snapshot(ctx, suspendedKey(register))
	if errors.Is(err, jetstream.ErrNotFound) {
		return mark{}, nil
	}
	return revision(rev), err
}

func revision(rev uint64) mark { return mark{id: fmt.Sprint(rev), rev: rev} }

func suspendedKey(run string) string {
	s := suspended(run, "t1")
	return events.SuspendedKey(s.AgentID, s.ResourceID, s.ThreadID, s.RootRunID, s.RunID)
}

// TestRegistersAreLinearizable uses chains and the bucket of suspended runs while the server restarts, on one node and on
// three.
func TestRegistersAreLinearizable(t *testing.T) {
	t.Parallel()
	t.Run("one node", func(t *testing.T) {
		t.Parallel()
		srv := jetstreamtest.StartListening(t)
		conns := dial(t, jetstream.Options{}, srv.ClientURL(), srv.ClientURL())
		ensure(t, conns[0], jetstream.Settings{})
		linearizable(t, conns, func() { srv = jetstreamtest.Restart(t, srv) })
	})
	t.Run("three nodes", func(t *testing.T) {
		t.Parallel()
		servers, conns := cluster(t, jetstream.Options{})
		nc, err := nats.Connect(servers[0].ClientURL(), nats.MaxReconnects(-1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		linearizable(t, conns, func() {
			for _, store := range []string{ns.Store(events.StreamRuns), "KV_" + ns.Store(events.BucketSuspended)} {
				_, _ = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+store, nil, 2*time.Second) // as often as it takes one
			}
		})
	})
}

// linearizable uses the registers while a fault comes again and again, and checks the histories.
func linearizable(t *testing.T, conns []*jetstream.Conn, fault func()) {
	t.Helper()
	logs, buckets := &historian{t: t, at: time.Now()}, &historian{t: t, at: time.Now()}
	var stores [2][]store
	for _, c := range conns {
		stores[0] = append(stores[0], chains{t, c.Append, c.Last})
		stores[1] = append(stores[1], entries{c})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		wg.Go(func() { logs.use(400, stores[0]...) })
		wg.Go(func() { buckets.use(300, stores[1]...) })
		wg.Wait()
	}()
	for faults := 0; ; faults++ {
		select {
		case <-done:
			t.Logf("%d faults", faults)
			if !logs.legal() {
				t.Error("the history of the chains is not linearizable")
			}
			if !buckets.legal() {
				t.Error("the history of the bucket is not linearizable")
			}
			return
		case <-time.After(500 * time.Millisecond):
			fault()
		}
	}
}

// TestHistoriesCatchMistakes proves that the check is worth something: each known mistake makes histories that no order
// explains.
func TestHistoriesCatchMistakes(t *testing.T) {
	t.Parallel()
	servers, conns := cluster(t, jetstream.Options{})
	nc, err := nats.Connect(servers[0].ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	allowDirect(t, nc)
	for name, mistake := range map[string]func(i int) store{
		"a guard on one subject": func(i int) store {
			c := conns[i]
			return chains{t, wrong{nc, c}.ownSubject, c.Last}
		},
		"busy read as lost": func(i int) store {
			c := conns[i]
			return chains{t, wrong{nc, c}.busyIsLost, c.Last}
		},
		"reads from any replica": func(i int) store {
			c := conns[i]
			return chains{t, c.Append, direct{nc}.last}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for round := range 30 {
				h := &historian{t: t, at: time.Now()}
				var stores []store
				for i := range conns {
					stores = append(stores, renamed{mistake(i), fmt.Sprintf("%c%d-", name[0], round)})
				}
				h.use(60, stores...)
				if !h.legal() {
					return
				}
			}
			t.Error("the mistake passes: the check proves nothing")
		})
	}
}

// renamed gives the registers of a store names of their own.
type renamed struct {
	store
	prefix string
}

func (r renamed) write(ctx context.Context, register string, after mark) (bool, mark, error) {
	return r.store.write(ctx, r.prefix+register, after)
}

func (r renamed) read(ctx context.Context, register string) (mark, error) {
	return r.store.read(ctx, r.prefix+register)
}

// allowDirect lets every replica of the log answer reads, which is what topology.go forbids.
func allowDirect(t *testing.T, nc *nats.Conn) {
	t.Helper()
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), ns.Store(events.StreamRuns))
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.AllowDirect = true
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// direct reads from whichever replica is asked first.
type direct struct{ nc *nats.Conn }

func (d direct) last(ctx context.Context, chain string) (events.Event, error) {
	request, err := json.Marshal(map[string]string{"last_by_subj": chain})
	if err != nil {
		return events.Event{}, err
	}
	reply, err := d.nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+ns.Store(events.StreamRuns), request)
	if err != nil {
		return events.Event{}, err
	}
	if reply.Header.Get("Status") != "" {
		return events.Event{}, jetstream.ErrNotFound
	}
	place, err := events.ParsePlace(reply.Header.Get("Nats-Subject"))
	if err != nil {
		return events.Event{}, err
	}
	var body struct{ ID string }
	if err := json.Unmarshal(reply.Data, &body); err != nil {
		return events.Event{}, err
	}
	e := events.Event{ID: body.ID, Place: place}
	_, err = fmt.Sscan(reply.Header.Get("Nats-Sequence"), &e.Seq)
	return e, err
}

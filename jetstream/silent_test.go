package jetstream_test

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// mute is a server that takes connections and, from some moment on, what they send, and says nothing any more: so it is
// for requests that a server had when it was killed, whatever the connection that follows.
type mute struct {
	nats.InProcessConnProvider
	silent atomic.Bool
}

func (m *mute) InProcessConn() (net.Conn, error) {
	c, err := m.InProcessConnProvider.InProcessConn()
	return &muted{Conn: c, m: m}, err
}

type muted struct {
	net.Conn
	m *mute
}

func (c *muted) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.m.silent.Load() {
			return n, err
		}
	}
}

// calls are all that waits for a server.
func calls(c *jetstream.Conn, s *events.Snapshot) map[string]func(context.Context) error {
	o := &events.Origin{Namespace: ns, Service: "test"}
	request := func() events.Event {
		e, err := o.RequestBy(ns.InCancel("bob", "r1"), "r1", "bob", events.CancelRequested{RunID: "r1"})
		if err != nil {
			panic(err)
		}
		return e
	}
	place := ns.Start("r1")
	return map[string]func(context.Context) error{
		"Append": func(ctx context.Context) error {
			p := ns.Start("r2")
			e := events.Event{ID: "e2", Type: types[p.Kind], Place: p, Data: []byte(`{"runId":"r2"}`), Source: "test", Time: time.Now()}
			_, err := c.Append(ctx, events.First(p), e)
			return err
		},
		"Record": func(ctx context.Context) error {
			p := ns.BesideRun("r1", "x")
			return c.Record(ctx, events.Event{ID: "e3", Type: types[p.Kind], Place: p, Data: []byte(`{"runId":"r1"}`), Source: "test", Time: time.Now()})
		},
		"Publish": func(ctx context.Context) error {
			_, err := c.Publish(ctx, ns.InCancel("bob", "r1"), request())
			return err
		},
		"AuditState": func(ctx context.Context) error { _, err := c.AuditState(ctx); return err },
		"AwaitAudit": func(ctx context.Context) error { return c.AwaitAudit(ctx, time.Second) },
		"Audit": func(ctx context.Context) error {
			for _, err := range c.Audit(ctx, jetstream.AuditQuery{}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"Backlog":  func(ctx context.Context) error { _, err := c.Backlog(ctx, events.StreamRuns, "planner"); return err },
		"NextFact": func(ctx context.Context) error { _, err := c.NextFact(ctx, 0, ns.RunAll()); return err },
		"Subjects": func(ctx context.Context) error { _, err := c.Subjects(ctx, ns.RunAll()); return err },
		"Now":      func(ctx context.Context) error { _, err := c.Now(ctx); return err },
		"HearFacts": func(ctx context.Context) error {
			_, err := c.HearFacts(ctx, ns.RunAll(), func(events.Place) {})
			return err
		},
		"Hear":  func(ctx context.Context) error { _, err := c.Hear(ctx, ns.RunAll(), func(events.Event) {}); return err },
		"Notes": func(ctx context.Context) error { _, err := c.Notes(ctx, "bob", func(events.Event) {}); return err },
		"HearNamed": func(ctx context.Context) error {
			_, err := c.HearNamed(ctx, events.RegistryRule, func() {})
			return err
		},
		"Became": func(ctx context.Context) error {
			_, _, err := c.Became(ctx, jetstream.Sent{Call: call("r1"), EventID: "d1", Principal: "bob"})
			return err
		},
		"PutBlob": func(ctx context.Context) error { _, err := c.PutBlob(ctx, []byte("another")); return err },
		"Blob":    func(ctx context.Context) error { _, err := c.Blob(ctx, events.Digest([]byte("blob"))); return err },
		"WholeResult": func(ctx context.Context) error {
			return c.WholeResult(ctx, &events.CallFinished{DataRef: events.Digest([]byte("blob"))})
		},
		"Whole": func(ctx context.Context) error {
			part := events.Part{Type: events.PartToolResult, DataRef: events.Digest([]byte("blob"))}
			_, err := c.Whole(ctx, []events.Message{{Parts: []events.Part{part}}})
			return err
		},
		"FlushChunks": func(ctx context.Context) error {
			return errors.Join(c.PublishChunk(ctx, o, events.StartChunk("r1", "support", "m1")), c.FlushChunks(ctx, "r1"))
		},
		"Bury": func(ctx context.Context) error {
			return c.Bury(ctx, o, events.DeliveryAbandoned{Service: "planner", Consumer: "planner", Subject: place.Subject(), Seq: 1, RunID: "r1", Reason: "test"})
		},
		"ListDead": func(ctx context.Context) error { _, err := c.ListDead(ctx, 0, 0); return err },
		"StoredChunks": func(ctx context.Context) error {
			for _, err := range c.StoredChunks(ctx, "r1", 0) {
				return err
			}
			return nil
		},
		"LastChunk": func(ctx context.Context) error { _, err := c.LastChunk(ctx, "r1"); return err },
		"Grants":    func(ctx context.Context) error { _, err := c.Grants(ctx, events.GrantFilter{}); return err },
		"CreateGrant": func(ctx context.Context) error {
			key, err := jetstream.NewKey()
			if err != nil {
				panic(err)
			}
			_, err = c.CreateGrant(ctx, standing("g2", "t1"), key)
			return err
		},
		"AskHook": func(ctx context.Context) error {
			_, err := c.AskHook(ctx, "redact", events.HookRequest{})
			return err
		},
		"TransformAtHost": func(ctx context.Context) error {
			_, err := c.TransformAtHost(ctx, events.Manifest{ID: "pay", Pool: "default"}, events.TransformRequest{})
			return err
		},
		"HearObserved": func(ctx context.Context) error {
			_, err := c.HearObserved(ctx, "pay", "", func(events.CallObserved) {})
			return err
		},
		"AskHost": func(ctx context.Context) error { _, err := c.AskHost(ctx, "test.host", nil); return err },
		"Ask":     func(ctx context.Context) error { return c.Ask(ctx, "test.host", events.Event{}, new(any)) },
		"AskFor":  func(ctx context.Context) error { return c.AskFor(ctx, "test.host", 1, new(any)) },
		"Request": func(ctx context.Context) error { // of a tool, whose time-out ends it
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := c.Request(ctx, jetstream.Request{Subject: "test.host"})
			return err
		},
		"StoreRequest": func(ctx context.Context) error {
			_, err := c.StoreRequest(ctx, ns.InCancel("bob", "r1"), nil, []byte(`{}`))
			return err
		},
		"SelfTest": func(ctx context.Context) error { return c.SelfTest(ctx, "approval") },
		"Probe":    func(ctx context.Context) error { return c.Probe(ctx, "approval") },
		"Last":     func(ctx context.Context) error { _, err := c.Last(ctx, ns.MainOf("r1")); return err },
		"Fact":     func(ctx context.Context) error { _, err := c.Fact(ctx, place); return err },
		"Facts":    func(ctx context.Context) error { _, err := c.Facts(ctx, place); return err },
		"PutDef":   func(ctx context.Context) error { _, err := c.PutDef(ctx, []byte(`{"b":2}`)); return err },
		"Def":      func(ctx context.Context) error { _, err := c.Def(ctx, events.Digest([]byte(`{"a":1}`))); return err },
		"PutNamed": func(ctx context.Context) error { return c.PutNamed(ctx, events.RegistryRule, "new", []byte(`{}`)) },
		"SwapNamed": func(ctx context.Context) error {
			return c.SwapNamed(ctx, events.RegistryRule, "new", func([]byte) ([]byte, error) { return []byte(`{}`), nil })
		},
		"DeleteNamed": func(ctx context.Context) error { return c.DeleteNamed(ctx, events.RegistryRule, "there") },
		"Named":       func(ctx context.Context) error { _, err := c.Named(ctx, events.RegistryRule, "there"); return err },
		"NamedOf": func(ctx context.Context) error {
			_, err := c.NamedOf(ctx, events.RegistryRule, events.Token("there"))
			return err
		},
		"NamedNow":  func(ctx context.Context) error { _, err := c.NamedNow(ctx, events.RegistryRule, "there"); return err },
		"ListNamed": func(ctx context.Context) error { _, err := c.ListNamed(ctx, events.RegistryRule); return err },
		"PutLive":   func(ctx context.Context) error { return c.PutLive(ctx, events.Live{Service: "planner", ID: "p2"}) },
		"IsLive":    func(ctx context.Context) error { _, err := c.IsLive(ctx, "planner", "p1"); return err },
		"ListLive":  func(ctx context.Context) error { _, err := c.ListLive(ctx, "planner"); return err },
		"HeldCalls": func(ctx context.Context) error {
			_, err := c.HeldCalls(ctx, &events.State{RunID: "r1", Calls: []events.CallState{{C: "1-1"}}})
			return err
		},
		"RunState":    func(ctx context.Context) error { _, _, err := c.RunState(ctx, "r1"); return err },
		"FoldResults": func(ctx context.Context) error { st := s.State; return c.FoldResults(ctx, &st) },
		"PutSnapshot": func(ctx context.Context) error {
			other := *s
			other.RunID, other.RootRunID = "r2", "r2"
			_, err := c.PutSnapshot(ctx, &other, 0)
			return err
		},
		"Snapshot":       func(ctx context.Context) error { _, _, err := c.Snapshot(ctx, keyOf(s)); return err },
		"Listed":         func(ctx context.Context) error { _, err := c.Listed(ctx, keyOf(s)); return err },
		"DeleteSnapshot": func(ctx context.Context) error { return c.DeleteSnapshot(ctx, keyOf(s), 1) },
		"ListSuspended":  func(ctx context.Context) error { _, err := c.ListSuspended(ctx, "", "", ""); return err },
		"SetTimer": func(ctx context.Context) error {
			return c.SetTimer(ctx, o, events.TimerSet{RunID: "r1", ToolCallID: call("r1").String(), Purpose: events.TimerExpire, At: time.Now().Add(time.Hour)})
		},
		"CancelTimer": func(ctx context.Context) error { return c.CancelTimer(ctx, "t1") },
		"Ensure":      func(ctx context.Context) error { return c.Ensure(ctx, jetstream.Settings{}) },
		"Verify":      func(ctx context.Context) error { _, err := c.Verify(ctx, jetstream.Settings{}); return err },
		"KeepEntry": func(ctx context.Context) error {
			return c.KeepEntry(ctx, o, events.MessageStored{ResourceID: "u1", ThreadID: "t1", RunID: "r1", Messages: []events.Message{}}, events.Event{})
		},
		"ShrinkRecalled": func(ctx context.Context) error {
			said := []events.Message{events.TextMessage(events.RoleUser, strings.Repeat("x", events.MaxInline))}
			_, err := c.ShrinkRecalled(ctx, &events.Recalled{Messages: said})
			return err
		},
		"ThreadTail": func(ctx context.Context) error {
			_, err := c.ThreadTail(ctx, "u1", "t1", func([]jetstream.ThreadEntry) bool { return true })
			return err
		},
		"ThreadEntries":    func(ctx context.Context) error { _, err := c.ThreadEntries(ctx, "u1", "t1"); return err },
		"AllThreadEntries": func(ctx context.Context) error { _, err := c.AllThreadEntries(ctx); return err },
		"OpenInThreads":    func(ctx context.Context) error { _, err := c.OpenInThreads(ctx); return err },
		"Threads":          func(ctx context.Context) error { _, err := c.Threads(ctx, ""); return err },
		"ThreadEnds":       func(ctx context.Context) error { _, _, err := c.ThreadEnds(ctx, jetstream.StoredThread{}); return err },
		"ErasedTo":         func(ctx context.Context) error { _, err := c.ErasedTo(ctx, "u1", "t1"); return err },
		"SayErased": func(ctx context.Context) error {
			return c.SayErased(ctx, o, events.ThreadErased{ThreadID: "t1", By: "bob", EventID: "e1", InboxSeq: 1}, events.Event{})
		},
		"Deletion": func(ctx context.Context) error {
			_, err := c.Deletion(ctx, events.DeletionRequested{ThreadID: "t1"})
			return err
		},
		"EraseThreads": func(ctx context.Context) error {
			return c.EraseThreads(ctx, o, events.DeletionRequested{ThreadID: "t1"}, 1, events.Event{})
		},
		"EraseKept":     func(ctx context.Context) error { return c.EraseKept(ctx, events.DeletionRequested{ThreadID: "t1"}) },
		"KeptFor":       func(ctx context.Context) error { _, err := c.KeptFor(ctx, events.StreamRuns); return err },
		"ConsumerCount": func(ctx context.Context) error { _, err := c.ConsumerCount(ctx); return err },
		"Kept":          func(ctx context.Context) error { _, _, err := c.Kept(ctx, events.TasksKey("u1", "t1", "")); return err },
		"Keep": func(ctx context.Context) error {
			_, err := c.Keep(ctx, events.TasksKey("u1", "t1", ""), []byte(`{}`), 0)
			return err
		},
		"Votes": func(ctx context.Context) error { _, err := c.Votes(ctx, call("r1"), nil); return err },
	}
}

// endless calls end with their context alone, or wait for nobody, or need what others of the table give them.
var endless = []string{
	"KeepAlive", "KeepTelling", "Follow", "AnswerAsHost", "Note", "Observe", "Overdue", "PublishChunk", "Redrive", "Payload",
	"RevokeGrant", "ShrinkCarry",
}

// TestNothingWaitsForEver lets the server fall silent, and demands of everything that waits for it that it ends by
// itself, though its caller has set no deadline: a handler that waited for ever would keep its message alive, and so its
// run from everybody else. Whatever the number of requests, that is within 90 seconds.
func TestNothingWaitsForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &mute{InProcessConnProvider: jetstreamtest.StartServer(t).InProcess()}
		c, err := jetstream.Connect(t.Context(), jetstream.Options{InProcess: server, Name: "test", Log: testLog(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Kill()
		ensure(t, c, jetstream.Settings{})
		stored(t, c, events.First(ns.Start("r1")), fact(t, ns.Start("r1")))
		s := suspended("r1", "t1")
		if _, err := c.PutSnapshot(t.Context(), s, 0); err != nil {
			t.Fatal(err)
		}
		table := calls(c, s)
		conn := reflect.TypeFor[*jetstream.Conn]()
		for m := range conn.Methods() {
			waits := m.Type.NumIn() > 1 && m.Type.In(1) == reflect.TypeFor[context.Context]()
			if waits && table[m.Name] == nil && !slices.Contains(endless, m.Name) {
				t.Errorf("Conn.%s is not tried", m.Name)
			}
		}
		server.silent.Store(true)
		began := time.Now()
		waiting := map[string]bool{}
		ended := make(chan string)
		for name, call := range table {
			waiting[name] = true
			go func() {
				if err := call(context.Background()); err == nil && name != "AwaitAudit" {
					t.Errorf("%s: no error", name)
				}
				ended <- name
			}()
		}
		limit := time.After(90 * time.Second)
		for len(waiting) > 0 {
			select {
			case name := <-ended:
				delete(waiting, name)
				t.Logf("%s after %v", name, time.Since(began).Round(time.Millisecond))
			case <-limit:
				t.Fatalf("still waiting: %v", waiting)
			}
		}
	})
}

package toolexecutor_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

const soon = time.Minute

func first(run string) events.CallID { return events.CallID{Run: run, Step: 1, Index: 1} }

func newExecutor(w *sim.World, conn *jetstream.Conn) *toolexecutor.Service {
	s, err := toolexecutor.New(conn, w.ExecutorConfig())
	if err != nil {
		w.T.Fatal(err)
	}
	return s
}

func handler(w *sim.World, conn *jetstream.Conn) sim.Handle {
	s := newExecutor(w, conn)
	return func(ctx context.Context, d jetstream.Delivery) error { return toolexecutor.HandleRelease(s, ctx, d) }
}

// in runs a test in fake time, in a world of one tool that its model calls once.
func in(t *testing.T, o sim.Options, f func(w *sim.World)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(sim.New(t, o)) })
}

// job is a tool that does what the test says, and the effects it has counted.
func job(effect events.Effect, f func(ctx context.Context, call *agent.Call) (any, error)) sim.Options {
	return sim.Options{Tools: []agent.Tool{agent.NewTool("job", "Do a job",
		func(ctx context.Context, call *agent.Call, _ sim.Order) (any, error) { return f(ctx, call) },
		&agent.ToolOptions{Effect: effect, OutputSchema: json.RawMessage(`{}`)})}}
}

func done(context.Context, *agent.Call) (any, error) { return "done", nil }

// released is the release of a run's first call.
func released(w *sim.World, run string) jetstream.Delivery {
	return w.Delivered(w.Conn().Namespace().Go(first(run), events.DefaultPool, "job"))
}

func result(w *sim.World, run string) events.CallFinished {
	w.T.Helper()
	d, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(first(run), events.KindResult), 10*time.Minute))
	if err != nil {
		w.T.Fatal(err)
	}
	return d
}

func last(w *sim.World, run string) events.Event {
	w.T.Helper()
	e, err := w.Conn().Last(w.T.Context(), w.Conn().Namespace().Call(first(run), events.KindGo).Chain())
	if err != nil {
		w.T.Fatal(err)
	}
	return e
}

// TestHabits holds the handler of releases to its habits, for each effect a tool can have. (RDLV-4)
func TestHabits(t *testing.T) {
	t.Parallel()
	for _, effect := range []events.Effect{events.ReadOnly, events.Idempotent, events.Effectful} {
		t.Run(string(effect), func(t *testing.T) {
			t.Parallel()
			sim.Habit{
				Options: func() sim.Options { return job(effect, done) },
				Before:  []string{planner.Name, approval.Name}, Handler: handler,
				Bring: func(w *sim.World) jetstream.Delivery { return released(w, w.Request("Do it")) },
			}.Exercise(t)
		})
	}
}

// TestB3_1ForgedRelease shows releases that no gate has made for exactly these bytes: nothing runs, and the call ends as
// blocked. (B3.1)
func TestB3_1ForgedRelease(t *testing.T) {
	t.Parallel()
	other, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, forge := range map[string]func(w *sim.World, d *events.CallReleased) *events.Key{
		"unsigned":     func(*sim.World, *events.CallReleased) *events.Key { return nil },
		"another key":  func(*sim.World, *events.CallReleased) *events.Key { return &other },
		"changed args": func(w *sim.World, d *events.CallReleased) *events.Key { d.Args = `{"orderId":"43"}`; return &w.Key },
		"fingerprint":  func(w *sim.World, d *events.CallReleased) *events.Key { d.Fingerprint = "sha256:00"; return &w.Key },
		"another call": func(w *sim.World, d *events.CallReleased) *events.Key { d.ToolCallID = d.RunID + "=1-2"; return &w.Key },
		"another run":  func(w *sim.World, d *events.CallReleased) *events.Key { d.RunID = "other"; return &w.Key },
		"another pool": func(w *sim.World, d *events.CallReleased) *events.Key { d.Pool = "billing"; return &w.Key },
		"namespace":    func(w *sim.World, d *events.CallReleased) *events.Key { d.Namespace = "other"; return &w.Key },
		"invalid args": func(w *sim.World, d *events.CallReleased) *events.Key {
			d.Args = `{}`
			d.Fingerprint = fingerprint(*d)
			return &w.Key
		},
	} {
		t.Run(name, func(t *testing.T) {
			var ran atomic.Bool
			in(t, job(events.Effectful, func(context.Context, *agent.Call) (any, error) { ran.Store(true); return 1, nil }), func(w *sim.World) {
				forged(w, forge)
				w.Start(toolexecutor.Name)
				d := result(w, "r1")
				if d.Outcome != events.OutcomeBlocked || d.Reason != "fingerprint_mismatch" || d.Started {
					w.T.Errorf("result = %+v, want blocked, fingerprint_mismatch, not started", d)
				}
				if ran.Load() {
					w.T.Error("the tool ran")
				}
			})
		})
	}
}

func fingerprint(d events.CallReleased) string {
	return events.Frozen{
		Namespace: d.Namespace, RunID: d.RunID, ToolCallID: d.ToolCallID, Round: d.Round, ToolID: d.ToolID,
		ToolVersion: d.ToolVersion, InputSchemaDigest: d.InputSchemaDigest, Args: []byte(d.Args),
	}.Fingerprint()
}

// release is what a gate would say about the first call of run r1.
func release(w *sim.World) events.CallReleased {
	m := w.ExecutorConfig().Tools[0].Manifest()
	d := events.CallReleased{
		Namespace: w.Conn().Namespace(), RunID: "r1", ToolCallID: "r1=1-1", Pool: events.DefaultPool,
		ToolID: m.ID, ToolVersion: m.Version, InputSchemaDigest: m.InputSchemaDigest, Effect: m.Effect,
		Args: `{"orderId":"42"}`, ToolName: m.ID, AgentID: "support", StartBy: time.Now().Add(5 * time.Minute),
	}
	d.Fingerprint = fingerprint(d)
	return d
}

// forged stores a release of run r1 that is changed and signed as forge says.
func forged(w *sim.World, forge func(*sim.World, *events.CallReleased) *events.Key) {
	w.T.Helper()
	d := release(w)
	place := w.Conn().Namespace().Go(first("r1"), d.Pool, d.ToolID)
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: approval.Name, Key: forge(w, &d)}
	e, err := o.Fact(place, d, events.Event{})
	if err != nil {
		w.T.Fatal(err)
	}
	if _, err := w.Conn().Append(w.T.Context(), events.First(place), e); err != nil {
		w.T.Fatal(err)
	}
}

// TestOverdueRelease lets an executor come back after the deadline of a release that no gate has ended: what may not
// start any more is not started. (SECURITY 4: not expired)
func TestOverdueRelease(t *testing.T) {
	var ran atomic.Int64
	in(t, job(events.Effectful, func(context.Context, *agent.Call) (any, error) { return ran.Add(1), nil }), func(w *sim.World) {
		plan, gate := w.Start(planner.Name), w.Start(approval.Name)
		run := w.Request("Do it")
		released(w, run)
		gate.Kill()
		_ = plan
		time.Sleep(6 * time.Minute) // fake
		w.Start(toolexecutor.Name)
		time.Sleep(soon) // fake
		w.Start(approval.Name)
		if d := result(w, run); d.Outcome != events.OutcomeUnavailable || d.Started {
			w.T.Errorf("result = %+v, want unavailable, not started", d)
		}
		if ran.Load() != 0 {
			w.T.Error("the tool ran after the deadline of its release")
		}
		w.AwaitEnd(run, soon)
		w.Check(true)
	})
}

// TestClockOfTheGate releases a call by a gate whose clock is ten minutes behind: the deadline counts from when the server
// stored the release.
func TestClockOfTheGate(t *testing.T) {
	in(t, job(events.Effectful, done), func(w *sim.World) {
		behind := func() time.Time { return time.Now().Add(-10 * time.Minute) }
		d := release(w)
		d.StartBy = behind().Add(5 * time.Minute)
		place := w.Conn().Namespace().Go(first("r1"), d.Pool, d.ToolID)
		o := &events.Origin{Namespace: w.Conn().Namespace(), Service: approval.Name, Key: &w.Key, Now: behind}
		e, err := o.Fact(place, d, events.Event{})
		if err == nil {
			_, err = w.Conn().Append(w.T.Context(), events.First(place), e)
		}
		if err != nil {
			w.T.Fatal(err)
		}
		w.Start(toolexecutor.Name)
		if d := result(w, "r1"); d.Outcome != events.OutcomeOK {
			w.T.Errorf("result = %+v, want ok", d)
		}
	})
}

// TestOutcomes shows what becomes of what a handler does: an error, a panic, a time-out, nothing, something that is no
// JSON, output against the schema, bad suspensions. The worker lives on. (B3.14, B3.16, B3.18, B9.3)
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		f       func(ctx context.Context, call *agent.Call) (any, error)
		outcome events.Outcome
		error   string
		result  string
	}{
		"nothing": {func(context.Context, *agent.Call) (any, error) { return nil, nil }, events.OutcomeOK, "", "null"},
		"error": {
			func(context.Context, *agent.Call) (any, error) { return nil, errors.New("the bank is closed") },
			events.OutcomeError, "Error", "",
		},
		"panic": {func(context.Context, *agent.Call) (any, error) { panic("no") }, events.OutcomeError, "panic", ""},
		"timeout": {
			func(ctx context.Context, _ *agent.Call) (any, error) { <-ctx.Done(); return nil, ctx.Err() },
			events.OutcomeError, "timeout", "",
		},
		"no JSON": {func(context.Context, *agent.Call) (any, error) { return make(chan int), nil }, events.OutcomeError, "Error", ""},
		"large": {
			func(context.Context, *agent.Call) (any, error) { return string(make([]byte, 1<<20)), nil }, events.OutcomeOK, "", "",
		},
		"large error": {
			func(context.Context, *agent.Call) (any, error) {
				return nil, agent.Errorf("Loud", "%s", strings.Repeat("x", 2<<20))
			},
			events.OutcomeError, "too_large", "",
		},
		"large suspension": {
			func(_ context.Context, call *agent.Call) (any, error) {
				return nil, call.Suspend(string(make([]byte, 1<<20)))
			},
			events.OutcomeError, "too_large", "",
		},
		"bad resume schema": {func(_ context.Context, call *agent.Call) (any, error) {
			return nil, call.SuspendWith(1, &agent.SuspendOptions{ResumeSchema: json.RawMessage(`{"type":"nonsense"}`)})
		}, events.OutcomeError, "Error", ""},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, job(events.Effectful, test.f), func(w *sim.World) {
				w.StartAll()
				run := w.Request("Do it")
				d := result(w, run)
				if d.Outcome != test.outcome || !d.Started || string(d.Result) != test.result && test.result != "" {
					w.T.Errorf("result = %+v, want %s, started", d, test.outcome)
				}
				if name := errorName(d); name != test.error {
					w.T.Errorf("error = %q, want %q", name, test.error)
				}
				if end := w.AwaitEnd(run, soon); end.Outcome != events.RunCompleted {
					w.T.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
				}
				w.Check(true)
			})
		})
	}
}

func errorName(d events.CallFinished) string {
	if d.Error == nil {
		return ""
	}
	return d.Error.Name
}

// blocker is a tool that tells when it runs, and returns when it is let go or its context ends.
type blocker struct {
	entered chan struct{}
	leave   chan struct{}
	told    chan error // the cause with which its context ended
	deaf    bool       // it does not listen to its context
}

func newBlocker() *blocker {
	return &blocker{entered: make(chan struct{}, 8), leave: make(chan struct{}), told: make(chan error, 8)}
}

func (b *blocker) run(ctx context.Context, _ *agent.Call) (any, error) {
	b.entered <- struct{}{}
	stop := context.AfterFunc(ctx, func() { b.told <- context.Cause(ctx) })
	defer stop()
	if b.deaf {
		<-b.leave
		return "done", nil
	}
	select {
	case <-b.leave:
		return "done", nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// blocked makes a world whose tool blocks. Channels of a test in fake time must be made inside it.
func inBlocked(t *testing.T, effect events.Effect, more func(*sim.Options), f func(w *sim.World, b *blocker)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBlocker()
		o := job(effect, b.run)
		if more != nil {
			more(&o)
		}
		f(sim.New(t, o), b)
	})
}

// TestB21_4_B21_6CancelWhileRunning cancels a run whose tool is running: its context ends at once, and the tool does not get to
// change anything any more. (B21.4, B21.6)
func TestB21_4_B21_6CancelWhileRunning(t *testing.T) {
	inBlocked(t, events.Effectful, nil, func(w *sim.World, b *blocker) {
		w.StartAll()
		run := w.Request("Do it")
		<-b.entered
		w.Cancel("bob", run)
		if cause := <-b.told; cause == nil || errors.Is(cause, context.DeadlineExceeded) {
			w.T.Errorf("the handler was told %v", cause)
		}
		if d := result(w, run); d.Outcome != events.OutcomeCancelled || !d.Started {
			w.T.Errorf("result = %+v, want cancelled, started", d)
		}
		if end := w.AwaitEnd(run, soon); end.Outcome != events.RunCancelled {
			w.T.Errorf("run ended as %s", end.Outcome)
		}
		w.Check(true)
	})
}

// TestB21_4LateOutcome cancels a run whose tool does not listen. What it brings later is kept as evidence, and shown to no
// model. (B21.4, I6, LIFE-6)
func TestB21_4LateOutcome(t *testing.T) {
	inBlocked(t, events.Effectful, nil, func(w *sim.World, b *blocker) {
		b.deaf = true
		w.StartAll()
		run := w.Request("Do it")
		<-b.entered
		w.Cancel("bob", run)
		w.AwaitEnd(run, soon)
		close(b.leave)
		time.Sleep(time.Second) // fake
		r := w.Check(true)
		if r["late"] != 1 {
			w.T.Errorf("the log holds %d late outcomes, want one", r["late"])
		}
		if d := result(w, run); d.Outcome != events.OutcomeCancelled {
			w.T.Errorf("result = %s, want cancelled", d.Outcome)
		}
	})
}

// TestRedeliveryWhileAlive delivers a release again while its worker is at work, and while it stores what came of it, to
// the same process and to another: the call is never in doubt. (RELIABILITY 3)
func TestRedeliveryWhileAlive(t *testing.T) {
	for _, effect := range []events.Effect{events.ReadOnly, events.Effectful} {
		t.Run(string(effect), func(t *testing.T) {
			inBlocked(t, effect, nil, func(w *sim.World, b *blocker) {
				w.Start(planner.Name)
				w.Start(approval.Name)
				run := w.Request("Do it")
				d := released(w, run)
				own, other := workers(w)
				finished := make(chan error, 1)
				go func() { finished <- toolexecutor.HandleRelease(own, w.T.Context(), d) }()
				<-b.entered
				d.Attempt = 2
				again := func(when string) {
					for name, s := range map[string]*toolexecutor.Service{"the same process": own, "another": other} {
						if err := toolexecutor.HandleRelease(s, w.T.Context(), d); !jetstream.IsLater(err) {
							w.T.Errorf("%s, delivered to %s: %v, want later", when, name, err)
						}
					}
				}
				again("running")
				time.Sleep(40 * time.Second) // fake: the lease is over
				again("after the lease")
				b.leave <- struct{}{}
				time.Sleep(slowly / 2) // fake: its outcome is on its way
				again("storing")
				if err := <-finished; err != nil {
					w.T.Error(err)
				}
				if d := result(w, run); d.Outcome != events.OutcomeOK {
					w.T.Errorf("result = %+v, want ok", d)
				}
				w.AwaitEnd(run, soon)
				if r := w.Check(true); r["suspend"]+r["claim:again"]+r["late"] != 0 {
					w.T.Errorf("the log holds %v", r)
				}
			})
		})
	}
}

const slowly = 10 * time.Second

// workers are two executors that live; the first needs long to store a result.
func workers(w *sim.World) (own, other *toolexecutor.Service) {
	w.T.Helper()
	slow := func(e events.Event) error {
		if e.Place.Kind == events.KindResult {
			time.Sleep(slowly) // fake
		}
		return nil
	}
	return live(w, "own", slow), live(w, "other", nil)
}

// live makes an executor that shows that it lives and handles what the test delivers.
func live(w *sim.World, id string, before func(events.Event) error) *toolexecutor.Service {
	w.T.Helper()
	conn := w.Dial(id, before)
	cfg := w.ExecutorConfig()
	cfg.ID = id
	s, err := toolexecutor.New(conn, cfg)
	if err != nil {
		w.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.T.Context()))
	var alive sync.WaitGroup
	alive.Go(func() {
		_ = conn.KeepAlive(ctx, events.Live{Service: toolexecutor.Name, ID: id, Pool: events.DefaultPool})
	})
	w.T.Cleanup(func() { cancel(); alive.Wait() })
	time.Sleep(time.Second) // fake
	return s
}

// TestB3_2SameProcessTwice delivers a release twice to one process before its claim is stored: one starts, the other waits.
func TestB3_2SameProcessTwice(t *testing.T) {
	inBlocked(t, events.Effectful, nil, func(w *sim.World, b *blocker) {
		w.Start(planner.Name)
		w.Start(approval.Name)
		run := w.Request("Do it")
		d := released(w, run)
		s := live(w, "own", func(e events.Event) error {
			if e.Place.Kind == events.KindClaim {
				time.Sleep(slowly) // fake
			}
			return nil
		})
		errs := make(chan error, 2)
		for d.Attempt = 1; d.Attempt <= 2; d.Attempt++ {
			d := d
			go func() { errs <- toolexecutor.HandleRelease(s, w.T.Context(), d) }()
		}
		if err := <-errs; !jetstream.IsLater(err) {
			w.T.Errorf("the second delivery: %v, want later", err)
		}
		<-b.entered
		b.leave <- struct{}{}
		if err := <-errs; err != nil {
			w.T.Error(err)
		}
		w.AwaitEnd(run, soon)
		if r := w.Check(true); r["suspend"] != 0 || r["claim"] != 1 {
			w.T.Errorf("the log holds %v", r)
		}
	})
}

// TestFencedWorker cuts a worker off while its call runs; another one claims the call again. What the first brings is
// late, and it must not settle the delivery: should the other one die too, that delivery is all that is left.
func TestFencedWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		entered, leave := make(chan int, 2), []chan struct{}{nil, make(chan struct{}), make(chan struct{})}
		w := sim.New(t, job(events.Idempotent, func(_ context.Context, call *agent.Call) (any, error) {
			entered <- call.Attempt()
			<-leave[call.Attempt()]
			return call.Attempt(), nil
		}))
		w.Start(planner.Name)
		w.Start(approval.Name)
		run := w.Request("Do it")
		d := released(w, run)
		handle := func(s *toolexecutor.Service, d jetstream.Delivery) <-chan error {
			settled := make(chan error, 1)
			go func() { settled <- toolexecutor.HandleRelease(s, t.Context(), d) }()
			<-entered
			return settled
		}
		fenced := handle(newExecutor(w, w.Dial("cut off", nil)), d) // it shows no life
		time.Sleep(31 * time.Second)                                // fake: its lease is over
		d.Attempt = 2
		second := handle(live(w, "second", nil), d)
		close(leave[1])
		if err := <-fenced; !jetstream.IsLater(err) {
			t.Errorf("the worker that was fenced: %v, want later", err)
		}
		close(leave[2])
		if err := <-second; err != nil {
			t.Error(err)
		}
		if d := result(w, run); string(d.Result) != "2" {
			t.Errorf("result = %s, want that of the second attempt", d.Result)
		}
		w.AwaitEnd(run, soon)
		if r := w.Check(true); r["late"] != 1 || r["claim:again"] != 1 {
			t.Errorf("the log holds %v", r)
		}
	})
}

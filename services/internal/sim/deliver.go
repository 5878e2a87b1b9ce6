package sim

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// Handle is a handler of a service, as its consumer calls it.
type Handle func(ctx context.Context, d jetstream.Delivery) error

// Habit is what every handler is held to: its event may come twice, late, and to two copies at once.
type Habit struct {
	Options func() Options // of each world; nil: the default
	Before  []string       // services that run before the event is there
	// Bring makes the event happen, up to its delivery.
	Bring func(w *World) jetstream.Delivery
	// Handler is the handler of a new copy of the service.
	Handler func(w *World, conn *jetstream.Conn) Handle
	// Finish takes the run to its end once all services run; nil: it ends by itself.
	Finish func(w *World, run string)
	Want   events.RunOutcome // default: completed
}

// apart is how long a copy takes between reading and appending when two work at once, so that both have read before
// either appends.
const apart = 200 * time.Millisecond

// Exercise holds a handler to its habits, each in a world of its own: twice, by two copies beside each other, and again
// after the run has ended. The run must end as it should with every invariant of the log, and what comes late must
// change nothing.
func (h Habit) Exercise(t *testing.T) {
	t.Helper()
	t.Run("twice", func(t *testing.T) { h.in(t, h.twice) })
	t.Run("beside", func(t *testing.T) { h.in(t, h.beside) })
	t.Run("late", func(t *testing.T) { h.in(t, h.late) })
}

func (h Habit) in(t *testing.T, f func(*World)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := Options{}
		if h.Options != nil {
			o = h.Options()
		}
		f(New(t, o))
	})
}

func (h Habit) bring(w *World) jetstream.Delivery {
	for _, service := range h.Before {
		w.Start(service)
	}
	return h.Bring(w)
}

func (h Habit) twice(w *World) {
	d := h.bring(w)
	handle := h.Handler(w, w.Dial("twice", nil))
	for range 2 {
		w.deliver(handle, &d)
	}
	h.end(w, d.Event.Subject)
}

func (h Habit) beside(w *World) {
	d := h.bring(w)
	slow := func(events.Event) error { w.pause(apart); return nil }
	errs := make(chan error, 2)
	for attempt := range 2 {
		d := d
		d.Attempt = attempt + 1
		handle := h.Handler(w, w.Dial("beside", slow))
		go func() { errs <- handle(w.T.Context(), d) }()
	}
	for range 2 {
		if err := <-errs; err != nil && !jetstream.IsLater(err) {
			w.T.Errorf("beside another copy: %v", err)
		}
	}
	h.end(w, d.Event.Subject)
}

func (h Habit) late(w *World) {
	d := h.bring(w)
	h.end(w, d.Event.Subject)
	before := w.chains()
	handle := h.Handler(w, w.Dial("late", nil))
	d.Attempt++
	for range 2 {
		w.deliver(handle, &d)
	}
	w.pause(time.Second)
	if after := w.chains(); !maps.Equal(before, after) {
		w.T.Errorf("an event that came late has changed the log: %v, was %v", after, before)
	}
}

// deliver brings an event to a handler until it is done with it, as a consumer does: a copy of the service that runs in
// the world may have appended between what the handler read and what it appends.
func (w *World) deliver(handle Handle, d *jetstream.Delivery) {
	w.T.Helper()
	for range 10 {
		err := handle(w.T.Context(), *d)
		d.Attempt++
		if err == nil {
			return
		}
		if !jetstream.IsLater(err) {
			w.T.Errorf("delivery %d: %v", d.Attempt-1, err)
			return
		}
		w.pause(time.Second)
	}
	w.T.Errorf("not done after %d deliveries", d.Attempt-1)
}

// end starts what does not run yet and takes the run to its end.
func (h Habit) end(w *World, run string) {
	w.T.Helper()
	for _, service := range []string{planner.Name, approval.Name, toolexecutor.Name} {
		if !slices.Contains(h.Before, service) {
			w.Start(service)
		}
	}
	if h.Finish != nil {
		h.Finish(w, run)
	}
	want := h.Want
	if want == "" {
		want = events.RunCompleted
	}
	if end := w.AwaitEnd(run, 10*time.Minute); end.Outcome != want {
		w.T.Errorf("run ended as %s (%v), want %s", end.Outcome, end.Error, want)
	}
	w.pause(2 * time.Second) // entries and timers follow the end
	w.Check(true)
}

// chains counts what the chains of the log hold, without the evidence beside them.
func (w *World) chains() jetstreamtest.Report {
	w.T.Helper()
	r := w.Check(true)
	for _, beside := range []events.Kind{events.KindRefused, events.KindLate, events.KindVote} {
		delete(r, string(beside))
	}
	return r
}

// Dial makes a connection of a copy that the test drives itself. Before is called before each of its appends.
func (w *World) Dial(name string, before func(events.Event) error) *jetstream.Conn {
	w.T.Helper()
	o := jetstream.Options{InProcess: w.Server.InProcess(), Name: name, Log: w.opts.Log, Hooks: jetstream.Hooks{BeforeAppend: before}}
	conn, err := jetstream.Connect(w.T.Context(), o)
	w.must(err)
	w.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Delivered is the delivery of a fact that is in the log, or will be within a minute.
func (w *World) Delivered(p events.Place) jetstream.Delivery {
	w.T.Helper()
	e := w.Await(p, time.Minute)
	return jetstream.Delivery{Event: e, Subject: e.Place.Subject(), Attempt: 1}
}

// Posted publishes a request of a principal and is its delivery.
func (w *World) Posted(subject, run, principal string, data any) jetstream.Delivery {
	w.T.Helper()
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}
	e, err := o.RequestBy(subject, run, principal, data)
	w.must(err)
	e.Seq, err = w.Conn().Publish(w.T.Context(), subject, e)
	w.must(err)
	e.Stored = time.Now()
	return jetstream.Delivery{Event: e, Subject: subject, Attempt: 1}
}

// GateConfig is the configuration of the world's gates.
func (w *World) GateConfig() approval.Config {
	cfg := approval.Config{Key: w.Key, Dev: true, Log: w.opts.Log}
	if w.opts.Gate != nil {
		w.opts.Gate(&cfg)
	}
	return cfg
}

// PlannerConfig is the configuration of the world's planners.
func (w *World) PlannerConfig() planner.Config {
	cfg := planner.Config{Models: models{w.opts.Model, w.opts.Price}, GateKeys: w.GateKeys(), Log: w.opts.Log}
	if w.opts.Plan != nil {
		w.opts.Plan(&cfg)
	}
	return cfg
}

// ExecutorConfig is the configuration of the world's executors.
func (w *World) ExecutorConfig() toolexecutor.Config { return w.execConfig() }

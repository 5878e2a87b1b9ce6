package jetstream_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// timers consumes what fires.
func timers(t *testing.T, c *jetstream.Conn, r *record) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Consume(events.StreamTimers, jetstream.ConsumerApproval, jetstream.Handler{
			Handle: func(_ context.Context, d jetstream.Delivery) error {
				timer, err := events.Data[events.TimerFired](d.Event)
				if err != nil {
					return err
				}
				r.add("%s %s %d", timer.ToolCallID, timer.Purpose, timer.Round)
				return nil
			},
		})(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func setTimer(t *testing.T, c *jetstream.Conn, run string, after time.Duration, purpose string) string {
	t.Helper()
	timer := events.TimerSet{RunID: run, ToolCallID: run + "=1-1", Round: 1, Purpose: purpose, At: time.Now().Add(after)}
	if err := c.SetTimer(t.Context(), tester, timer); err != nil {
		t.Fatal(err)
	}
	id, err := jetstream.TimerID(timer)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestTimers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		var r record
		stop := timers(t, c, &r)
		began := time.Now()
		setTimer(t, c, "r1", 6*time.Hour, events.TimerExpire)
		setTimer(t, c, "r1", 2*time.Hour, events.TimerRemind)
		setTimer(t, c, "r2=1-1", 4*time.Hour, events.TimerExpire)
		setTimer(t, c, "r2=1-1", 3*time.Hour, events.TimerExpire) // replaced: earlier
		cancelled := setTimer(t, c, "r3", 5*time.Hour, events.TimerExpire)
		setTimer(t, c, "r4", -time.Hour, events.TimerExpire) // overdue
		time.Sleep(time.Minute)                              // fake
		for range 2 {
			if err := c.CancelTimer(t.Context(), cancelled); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.CancelTimer(t.Context(), "never"); err != nil {
			t.Error(err)
		}
		time.Sleep(6 * time.Hour) // fake
		if err := c.CancelTimer(t.Context(), cancelled); err != nil {
			t.Error(err)
		}
		stop()
		same(t, "fired", []string{"r4=1-1 expire 1", "r1=1-1 remind 1", "r2=1-1=1-1 expire 1", "r1=1-1 expire 1"}, r.all())
		for i, want := range []time.Duration{0, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour} {
			if i >= len(r.times()) {
				break
			}
			if late := r.times()[i].Sub(began) - want; late < 0 || late > 2*time.Second {
				t.Errorf("timer %d came %v late", i, late)
			}
		}
		time.Sleep(2 * time.Hour) // fake
		if n := bucketInfo(t, raw(t, srv), ns.Store(events.StreamTimers)).State.Msgs; n != 0 {
			t.Errorf("%d messages are left of timers that are over", n)
		}
	})
}

// TestTimersInRealTime is the twin of the test in fake time, so that it cannot be fooled by how time is faked.
func TestTimersInRealTime(t *testing.T) {
	t.Parallel()
	p, c := openPhoenix(t)
	began := time.Now()
	setTimer(t, c, "r1", 1500*time.Millisecond, events.TimerExpire)
	setTimer(t, c, "r2", 10*time.Minute, events.TimerExpire)
	p.restart(t)
	var r record
	timers(t, c, &r)
	until(t, "the timer", func() bool { return len(r.all()) == 1 })
	if after := r.times()[0].Sub(began); after < 1500*time.Millisecond {
		t.Errorf("the timer came %v early", 1500*time.Millisecond-after)
	}
	same(t, "fired", []string{"r1=1-1 expire 1"}, r.all())
}

// TestTimerWaitsForTheGate: one that fires after a day while no gate runs is delivered when there is one.
func TestTimerWaitsForTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := open(t)
		began := time.Now()
		setTimer(t, c, "r1", 24*time.Hour, events.TimerExpire)
		time.Sleep(24*time.Hour + 20*time.Minute) // fake
		fired := make(chan events.Event, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- c.Consume(events.StreamTimers, jetstream.ConsumerApproval, jetstream.Handler{
				Handle: func(_ context.Context, d jetstream.Delivery) error {
					fired <- d.Event
					return nil
				},
			})(ctx)
		}()
		if late := (<-fired).Stored.Sub(began) - 24*time.Hour; late < 0 || late > time.Second {
			t.Errorf("fired %v late", late)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

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

// TestConsumeKeepsWhatBackoffsWouldTake: a list of backoffs wins over the time in which a delivery must be acknowledged, and
// signs of life follow what is in force. The check of the topology tells of the list. (RDLV-3)
func TestConsumeKeepsWhatBackoffsWouldTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, c := open(t)
		js := raw(t, srv)
		consumer, err := js.Consumer(t.Context(), ns.Store(events.StreamInbox), jetstream.ConsumerApproval)
		if err != nil {
			t.Fatal(err)
		}
		cfg := consumer.CachedInfo().Config
		cfg.AckWait, cfg.BackOff = time.Minute, []time.Duration{time.Second, 2 * time.Second}
		if _, err := js.UpdateConsumer(t.Context(), ns.Store(events.StreamInbox), cfg); err != nil {
			t.Fatal(err)
		}
		drifts, err := c.Verify(t.Context(), jetstream.Settings{})
		if err != nil || len(drifts) == 0 {
			t.Errorf("the check finds %v, %v", drifts, err)
		}
		var r record
		stop := loop(t, c, jetstream.Handler{Handle: func(_ context.Context, d jetstream.Delivery) error {
			r.add("%s %d", d.Event.Subject, d.Attempt)
			time.Sleep(5 * time.Second) // fake
			return nil
		}})
		ask(t, c, "r1")
		time.Sleep(time.Minute) // fake
		stop()
		if diff := cmp.Diff([]string{"r1 1"}, r.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

func TestB3_6ConsumeFetchesWhatStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
			synctest.Wait() // for a moment the server counts what it is about to look at as delivered
			if info := durable(t, js); info.NumAckPending != 3 || info.NumPending != 7 {
				t.Errorf("%d fetched and %d left while 3 run, want 3 and 7", info.NumAckPending, info.NumPending)
			}
		}
		close(release)
		until(t, "all handled", func() bool { return durable(t, js).NumPending == 0 })
		stop()
	})
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
		synctest.Wait() // until all three have come
		stop()
		synctest.Wait() // until the server has taken what was said of them
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

// TestConsumeOutlivesItsDurable: a process whose durable somebody deletes is not healthy, and goes on with the next. (AVAIL-1)
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

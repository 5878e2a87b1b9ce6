package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

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
			until(t, "all acknowledged after the stop", func() bool { // the server takes acknowledgements in its own time
				info := durable(t, raw(t, srv))
				return info.NumAckPending == 0 && info.NumPending == 0
			})
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
					dead[0].Subject != ns.InCancel("bob", "r1") || !strings.Contains(payloadOf(t, c, dead[0]), "cancel.requested") {
					t.Errorf("dead letters: %+v", dead)
				}
				if info := durable(t, raw(t, srv)); info.NumAckPending != 0 {
					t.Errorf("%d unacknowledged", info.NumAckPending)
				}
			})
		})
	}
}

// TestConsumeBacksOff: what fails comes again after growing pauses, for longer than outages last, and in the end is put aside.
// (FLOW-4)
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
	if dead := letters(t, c); len(dead) != 1 || dead[0].Payload != "" || payloadOf(t, c, dead[0]) != "buried" {
		t.Errorf("dead letters: %+v", dead)
	}
}

// TestConsumePassesCopiesOver hands nothing to a handler that the log holds as a carried copy. In the inbox, where the header
// is a sender's word, it means nothing.
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
	for run, carried := range map[string]bool{"r2": true, "r3": false} {
		e, err := tester.Fact(ns.End(run), events.RunEnded{RunID: run, Outcome: events.RunCompleted, FinishReason: "stop"}, events.Event{})
		if err != nil {
			t.Fatal(err)
		}
		e.Carried = carried
		stored(t, c, events.First(e.Place), e)
	}
	var r record
	h := jetstream.Handler{Handle: func(_ context.Context, d jetstream.Delivery) error {
		r.add("%s", d.Event.Subject)
		return nil
	}}
	loop(t, c, h)
	js := raw(t, srv)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Consume(events.StreamRuns, jetstream.ConsumerApproval, h)(ctx) }()
	until(t, "all acknowledged", func() bool {
		b, err := c.Backlog(t.Context(), events.StreamRuns, jetstream.ConsumerApproval)
		i := durable(t, js)
		return err == nil && b.Outstanding == 0 && i.NumPending == 0 && i.NumAckPending == 0
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("loop ended with %v", err)
	}
	got := r.all()
	slices.Sort(got)
	if diff := cmp.Diff([]string{"r1", "r3"}, got); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
}

package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/client"
)

// written are subjects of each stream with a user who may write there.
var written = []struct{ stream, user, subject string }{
	{"weir_default_inbox", "bob", ns + "in.start.bob.support"},
	{"weir_default_inbox", "alice", ns + "in.decide.alice.r.1-1"},
	{"weir_default_inbox", "gateway", ns + "in.cancel.bob.r"},
	{"weir_default_runs", "planner", ns + "put.run.r.main.step.1"},
	{"weir_default_runs", "edgetool", ns + "put.run.r.call.1-1.claim"},
	{"weir_default_chunks", "edgetool", ns + "chunk.r"},
	{"weir_default_threads", "planner", ns + "thread.u.t.r.0"},
	{"weir_default_dead", "planner", ns + "dead.planner.r"},
	{"KV_weir_default_suspended", "approval", "$KV.weir_default_suspended.x"},
	{"KV_weir_default_grants", "approval", "$KV.weir_default_grants.x"},
	{"KV_weir_default_registry", "tool-executor", "$KV.weir_default_registry.tool.issue_refund"},
	{"KV_weir_default_tasks", "tool-executor", "$KV.weir_default_tasks.u.t"},
	{"OBJ_weir_default_blobs", "gateway", "$O.weir_default_blobs.C.d.0"},
}

// orders are headers that order the server to do more than to store a message, the code with which it refuses them, and
// the settings of a stream that would follow them.
var orders = []struct {
	header map[string]string
	code   int
	open   string
}{
	{map[string]string{"Nats-Rollup": "all"}, 10111, `"allow_rollup_hdrs":true`},
	{map[string]string{"Nats-Rollup": "sub"}, 10111, `"allow_rollup_hdrs":true`},
	{map[string]string{"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "TARGET"}, 10188, `"allow_msg_schedules":true,"allow_rollup_hdrs":true`},
	{map[string]string{"Nats-Schedule": "@at 2100-01-01T00:00:00Z", "Nats-Schedule-Target": "TARGET"}, 10188, `"allow_msg_schedules":true,"allow_rollup_hdrs":true`},
	{map[string]string{"Nats-Schedule-Next": "purge", "Nats-Scheduler": "TARGET"}, 10188, `"allow_msg_schedules":true,"allow_rollup_hdrs":true`},
	{map[string]string{"Nats-TTL": "1s"}, 10166, `"allow_msg_ttl":true`},
	{map[string]string{"Nats-TTL": "never"}, 10166, `"allow_msg_ttl":true`},
	{map[string]string{"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"}, 10174, `"allow_atomic":true`},
	{map[string]string{"Nats-Incr": "+1"}, 10168, `"allow_msg_counter":true`},
}

// TestAttack5_6_7_HeadersThatOrder sends headers that wipe, schedule, expire, batch and count, to every stream as a user who
// may write there: the server refuses each and nothing changes, while the same message without them is stored. A stream
// that allows them follows them.
func TestAttack5_6_7_HeadersThatOrder(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		p := w.intruder(provisioner)
		for _, s := range written {
			u := w.intruder(s.user)
			for range 3 { // what a rollup would take along
				_, _ = u.request(s.subject, nil, "{}")
			}
			for _, o := range orders {
				if o.code == 10166 && strings.HasPrefix(s.stream, "KV_") {
					continue // buckets have entries with an end
				}
				before := p.state(s.stream)
				if r, ok := u.request(s.subject, aimed(o.header, ns+"in.decide.carol.r.1-1"), "{}"); !ok || r.code() != o.code {
					t.Errorf("%s with %v on %s: %v, answered %v", u.user, o.header, s.subject, r.Error, ok)
				}
				equal(t, fmt.Sprintf("%s after %v", s.stream, o.header), p.state(s.stream), before)
			}
			before := p.state(s.stream).LastSeq
			if r, ok := u.request(s.subject, nil, "{}"); !ok || r.Seq != before+1 {
				t.Errorf("%s may not write %s: %v", u.user, s.subject, r.Error)
			}
		}
		for i, o := range orders {
			name := fmt.Sprintf("open%d", i)
			p.create(name, o.open)
			body := "{}"
			if o.header["Nats-Incr"] != "" {
				body = ""
			}
			if r, ok := p.request(name+".x", aimed(o.header, name+".y"), body); !ok || r.code() != 0 {
				t.Errorf("a stream that allows %v refuses it: %v", o.header, r.Error)
			}
		}
	})
}

func aimed(header map[string]string, target string) map[string]string {
	out := map[string]string{}
	for name, v := range header {
		out[name] = strings.Replace(v, "TARGET", target, 1)
	}
	return out
}

// TestAttack5_RollupWipesAnOpenBucket shows what the setting is worth: in a bucket as a client makes it one message takes
// 20 keys along, in ours it takes none.
func TestAttack5_RollupWipesAnOpenBucket(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		p := w.intruder(provisioner)
		p.create("open", `"allow_rollup_hdrs":true,"max_msgs_per_subject":1`)
		for stream, subject := range map[string]string{"open": "open.", "KV_weir_default_tasks": "$KV.weir_default_tasks."} {
			for i := range 20 {
				_, _ = p.request(fmt.Sprintf("%sk%d", subject, i), nil, "v")
			}
			_, _ = p.request(subject+"k0", map[string]string{"Nats-Rollup": "all"}, "")
			want := map[bool]uint64{true: 1, false: 20}[stream == "open"]
			if n := p.state(stream).Messages; n != want {
				t.Errorf("%s holds %d messages, want %d", stream, n, want)
			}
		}
	})
}

// TestAttack6_ScheduledDecision lets a stream with schedules speak in alice's name, which the inbox does not do.
func TestAttack6_ScheduledDecision(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		p, bob := w.intruder(provisioner), w.intruder("bob")
		p.create("open", `"allow_msg_schedules":true,"allow_rollup_hdrs":true`)
		soon := time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)
		for subject, target := range map[string]string{"open.set": "open.alice", ns + "in.start.bob.support": ns + "in.decide.alice.r.1-1"} {
			u, want := bob, uint64(0)
			if subject == "open.set" {
				u, want = p, 1
			}
			_, _ = u.request(subject, map[string]string{"Nats-Schedule": "@at " + soon, "Nats-Schedule-Target": target}, "approve")
			w.pause(10 * time.Second)
			if n := p.count(target); n != want {
				t.Errorf("%d messages were made on %s, want %d", n, target, want)
			}
		}
	})
}

// TestAttack8_GuessedMessageID sends a request with an id that a victim is about to use. That suppresses the victim's only
// within the window of 100 ms, and ours have none: no request of a client has the header, and an answer "duplicate" is an
// error to it and no success.
func TestAttack8_GuessedMessageID(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, key := walled(t, nil)
		bob, victim := w.intruder("bob"), w.intruder("gateway")
		guess := map[string]string{"Nats-Msg-Id": "order-42"}
		send := func(u *intruder) reply {
			r, ok := u.request(ns+"in.start.bob.support", guess, "{}")
			if !ok || r.code() != 0 {
				t.Fatalf("%s: %v", u.user, r.Error)
			}
			return r
		}
		if send(bob).Duplicate || !send(victim).Duplicate {
			t.Error("the attack does not work at all")
		}
		w.pause(150 * time.Millisecond)
		if send(victim).Duplicate {
			t.Error("an id is remembered for longer than 100 ms")
		}

		who := w.person(client.Config{Principal: "bob", Wait: time.Second})
		run, err := who.Start(t.Context(), client.Request{Agent: "support", Prompt: "hello"})
		w.must(err)
		_, _ = who.Cancel(t.Context(), run.ID, "not needed")
		decider := w.person(client.Config{Principal: "alice", Key: &key, Wait: time.Second})
		_, _ = decider.Approve(t.Context(), refundOf(run.ID).String(), nil)
		_, _ = decider.Revoke(t.Context(), "g", "")
		p := w.intruder(provisioner)
		for _, subject := range []string{"in.start.bob.support", "in.cancel.bob." + run.ID, "in.decide.alice." + run.ID + ".1-1", "in.grant.alice.g"} {
			header := p.header("weir_default_inbox", ns+subject)
			if header.Get(nats.MsgIdHdr) != "" || len(header) == 0 {
				t.Errorf("%s was sent with %v", subject, header)
			}
		}
	})
}

// TestAttack8_DuplicateIsAnError answers an append as the server does when it has suppressed it. (PUB-2)
func TestAttack8_DuplicateIsAnError(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, func(o *Options) {
			conn := o.Conn
			o.Conn = func(c *jetstream.Options) { conn(c); c.Retry = 5 * time.Second }
		})
		p := w.intruder(provisioner)
		e, err := (&events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}).RequestBy(
			w.Conn().Namespace().InCancel("bob", "r"), "r", "bob", events.CancelRequested{RunID: "r"})
		w.must(err)
		for answer, stored := range map[string]bool{`{"stream":"s","seq":7}`: true, `{"stream":"s","seq":7,"duplicate":true}`: false} {
			sub, err := p.nc.Subscribe("elsewhere", func(m *nats.Msg) { _ = m.Respond([]byte(answer)) })
			w.must(err)
			w.pause(time.Second)
			seq, err := w.Conn().Publish(t.Context(), "elsewhere", e)
			if (err == nil && seq == 7) != stored {
				t.Errorf("answered %s: %d, %v", answer, seq, err)
			}
			_ = sub.Unsubscribe()
			w.pause(time.Second)
		}
	})
}

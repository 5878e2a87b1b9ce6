package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// pullAs takes one message of a durable consumer, with its reply subject, as a user who may.
func (u *intruder) pullAs(durable string) *nats.Msg {
	u.w.T.Helper()
	sub, err := u.nc.SubscribeSync(inbox(u.user) + ".pull")
	u.w.must(err)
	defer func() { _ = sub.Unsubscribe() }()
	u.w.must(u.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+durable, inbox(u.user)+".pull", []byte(`{"batch":1}`)))
	m, err := u.w.next(sub)
	u.w.must(err)
	return m
}

// unacked is how many messages a durable consumer has delivered of which nobody has said what became of them.
func (u *intruder) unacked(durable string) int {
	u.w.T.Helper()
	n, _ := u.backlog(durable)
	return n
}

// outstanding are all messages of a durable consumer of which nobody has said what became of them.
func (u *intruder) outstanding(durable string) int {
	u.w.T.Helper()
	n, more := u.backlog(durable)
	return n + more
}

func (u *intruder) backlog(durable string) (unacked, pending int) {
	u.w.T.Helper()
	var info struct {
		Unacked int `json:"num_ack_pending"`
		Pending int `json:"num_pending"`
	}
	u.api("CONSUMER.INFO."+durable, "", &info)
	return info.Unacked, info.Pending
}

// TestAttack9_AnothersDurable acknowledges, gives back and ends what another service was given, whose ack subject the
// attacker knows exactly, and pulls another's work. The work stays with its service, whose own ack counts.
func TestAttack9_AnothersDurable(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		p := w.intruder(provisioner)
		for _, s := range []string{"in.start.bob.support", "in.cancel.bob.r"} {
			_, _ = p.request(ns+s, nil, "{}")
		}
		for _, s := range []string{"put.run.r.main.start", "put.run.r.main.step.1", "put.run.r.call.1-1.go.default.issue_refund"} {
			_, _ = p.request(ns+s, nil, "{}")
		}
		tried := 0
		for _, d := range durables {
			if d.who == "" || strings.HasPrefix(d.subject, "weir_default_timers") {
				continue
			}
			owner := w.intruder(d.who)
			m := owner.pullAs(d.subject)
			for _, role := range roles {
				if role == d.who {
					continue
				}
				u := w.intruder(role)
				for subject, body := range map[string]string{m.Reply: "+ACK", "$JS.API.CONSUMER.MSG.NEXT." + d.subject: `{"batch":1}`} {
					refused := u.refused(func() { w.must(u.nc.PublishRequest(subject, inbox(role)+".x", []byte(body))) })
					equal(t, role+" is refused", refused, []string{"publish " + subject})
				}
				for _, verdict := range []string{"-NAK", "+TERM"} {
					equal(t, role+" is refused", u.refused(func() { w.must(u.nc.Publish(m.Reply, []byte(verdict))) }), []string{"publish " + m.Reply})
				}
				tried++
			}
			if n := p.unacked(d.subject); n != 1 {
				t.Errorf("%s waits for %d acks after forged ones, want 1", d.subject, n)
			}
			equal(t, d.who+" is refused", owner.refused(func() { w.must(owner.nc.Publish(m.Reply, []byte("+ACK"))) }), []string{})
			w.pause(time.Second)
			if n := p.unacked(d.subject); n != 0 {
				t.Errorf("%s waits for %d acks after its service's own", d.subject, n)
			}
		}
		if tried != 5*(len(roles)-1) {
			t.Errorf("%d attempts", tried)
		}
	})
}

// consumers are requests for consumers that would copy facts to where their maker wants them, or read what it may not; the
// code is what the server answers to whoever has the right to make consumers.
var consumers = []struct {
	name, subject, config string
	code                  int
}{
	{"push to the ingest subject", "weir_default_runs.evil", `{"durable_name":"evil","deliver_subject":"weir.default.put.run.r.call.1-1.answer","ack_policy":"none"}`, 10081},
	{"push to the log from another stream", "weir_default_threads.evil", `{"durable_name":"evil","deliver_subject":"weir.default.put.run.r.call.1-1.answer","ack_policy":"none"}`, 0},
	{"push to a decision", "weir_default_inbox.evil", `{"durable_name":"evil","filter_subject":"weir.default.in.thread.>","deliver_subject":"weir.default.in.decide.alice.r.1-1","ack_policy":"explicit"}`, 10081},
	{"pull of everything", "weir_default_runs.evil2", `{"durable_name":"evil2","ack_policy":"explicit"}`, 0},
	{"another filter in the body", "weir_default_runs.evil3.weir.default.run.r.main.end", `{"name":"evil3","filter_subject":"weir.default.run.>","ack_policy":"explicit"}`, 10131},
	{"more filters in the body", "weir_default_runs.evil4.weir.default.run.r.main.end", `{"name":"evil4","filter_subjects":["weir.default.run.r.main.end","weir.default.run.x.main.end"],"ack_policy":"explicit"}`, 10137},
}

// TestAttack10_Consumers asks for consumers in every way that JetStream has, as every user: nobody may. With the right to
// it the server makes them, but for those whose body says something else than their subject.
func TestAttack10_Consumers(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		p := w.intruder(provisioner)
		for _, role := range roles {
			u := w.intruder(role)
			for _, c := range consumers {
				stream, _, _ := strings.Cut(c.subject, ".")
				body := fmt.Sprintf(`{"stream_name":%q,"config":%s}`, stream, c.config)
				for _, verb := range []string{"CONSUMER.CREATE.", "CONSUMER.DURABLE.CREATE."} {
					for _, prefix := range []string{"$JS.API.", "weir.js."} {
						subject := prefix + verb + c.subject
						refused := u.refused(func() { w.must(u.nc.PublishRequest(subject, inbox(role)+".x", []byte(body))) })
						equal(t, fmt.Sprintf("%s of %s is refused", c.name, role), refused, []string{"publish " + subject})
					}
				}
			}
			for _, name := range []string{"weir_default_runs.planner", "weir_default_runs.approval", "weir_default_inbox.planner"} {
				for _, verb := range []string{"CONSUMER.DELETE.", "CONSUMER.PAUSE.", "CONSUMER.RESET.", "CONSUMER.UNPIN.", "CONSUMER.LEADER.STEPDOWN."} {
					if u.mayPublish("$JS.API." + verb + name) {
						t.Errorf("%s may %s%s", role, verb, name)
					}
				}
			}
		}
		for _, c := range consumers {
			stream, _, _ := strings.Cut(c.subject, ".")
			r, ok := p.request("$JS.API.CONSUMER.CREATE."+c.subject, nil, fmt.Sprintf(`{"stream_name":%q,"config":%s}`, stream, c.config))
			if !ok || r.code() != c.code {
				t.Errorf("%s with the right to it: %v, want %d", c.name, r.Error, c.code)
			}
		}
	})
}

// TestAttack11_Streams deletes, changes and purges streams as every user: nobody may. What everybody may not is refused even
// to who has the rights where the stream itself says so.
func TestAttack11_Streams(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		w.StartAll()
		w.held()
		w.pause(moment)
		p := w.intruder(provisioner)
		streams := []string{
			"weir_default_inbox", "weir_default_runs", "weir_default_chunks", "weir_default_timers", "weir_default_threads", "weir_default_audit",
			"weir_default_dead", "OBJ_weir_default_blobs", "KV_weir_default_suspended", "KV_weir_default_registry", "KV_weir_default_grants", "KV_weir_default_tasks",
		}
		before := map[string]state{}
		for _, s := range streams {
			before[s] = p.state(s)
		}
		verbs := []string{"DELETE", "UPDATE", "PURGE", "MSG.DELETE", "CREATE", "SNAPSHOT", "RESTORE", "PEER.REMOVE", "LEADER.STEPDOWN"}
		for _, role := range roles {
			u := w.intruder(role)
			for _, s := range streams {
				for _, verb := range verbs {
					if u.mayPublish("$JS.API.STREAM." + verb + "." + s) {
						t.Errorf("%s may %s stream %s", role, verb, s)
					}
				}
			}
			for _, subject := range []string{"$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.ACCOUNT.PURGE.SVC", "$JS.API.META.LEADER.STEPDOWN", "$JS.API.INFO"} {
				if u.mayPublish(subject) {
					t.Errorf("%s may %s", role, subject)
				}
			}
		}
		for _, s := range streams {
			if p.state(s).LastSeq < before[s].LastSeq || p.state(s).Messages < before[s].Messages && s != "weir_default_inbox" {
				t.Errorf("%s holds %+v, held %+v", s, p.state(s), before[s])
			}
		}
		// With every right: the record itself cannot be emptied, a stream without that setting can.
		p.create("open", `"max_msgs":10`)
		_, _ = p.request("open.x", nil, "{}")
		for _, s := range []string{"weir_default_inbox", "weir_default_runs", "weir_default_chunks", "weir_default_audit", "weir_default_dead", "open"} {
			last := fmt.Sprintf(`{"seq":%d}`, p.state(s).LastSeq)
			for _, try := range []struct{ verb, body string }{{"MSG.DELETE", last}, {"PURGE", ""}} {
				if r, ok := p.request("$JS.API.STREAM."+try.verb+"."+s, nil, try.body); !ok || (r.code() == 0) != (s == "open") {
					t.Errorf("%s of %s: %v", try.verb, s, r.Error)
				}
			}
		}
	})
}

// copies has the server publish everything that the executors' durable has for them, to the ingest names of places: it is
// pulled with these as the reply. It says what was published there.
func (u *intruder) copies(places ...events.Place) (all []*nats.Msg) {
	w, p := u.w, u.w.intruder(provisioner)
	w.T.Helper()
	for _, place := range places {
		heard, err := p.nc.SubscribeSync(place.Ingest())
		w.must(err)
		_ = p.state("weir_default_runs") // the server knows of the subscription
		// Exactly what is there is asked for: what the server says about a request that it cannot fill would be stored too.
		n := p.outstanding("weir_default_runs.pool-default")
		w.must(u.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.weir_default_runs.pool-default", place.Ingest(), fmt.Appendf(nil, `{"batch":%d}`, n)))
		for range n { // what somebody has had is given out again after a while
			m, err := w.next(heard)
			w.must(err)
			all = append(all, m)
		}
		_ = heard.Unsubscribe()
	}
	w.pause(time.Second)
	return all
}

// TestAttack18_CopiedRelease has the server publish genuine releases again, by pulling them with a subject of the log as
// reply: on its own chain, on another call's, after the answer of a call that is held, and after the result. They carry the
// guards that they were stored with and are refused each time. What was released still runs, once.
func TestAttack18_CopiedRelease(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, key := walled(t, nil)
		copies := []*Copy{w.Start(planner.Name), w.Start(approval.Name)}
		call, held, over := w.held(), w.held(), w.held()
		ns := w.Conn().Namespace()
		release := func(call events.CallID) events.Place { return ns.Go(call, "default", "issue_refund") }
		for _, c := range []events.CallID{call, over} {
			w.approve(key, c)
			w.Await(release(c), moment)
		}
		w.Cancel("bob", over.Run)
		w.AwaitEnd(over.Run, moment)
		w.pause(moment) // what was due is stored
		thief, p := w.intruder("tool-executor"), w.intruder(provisioner)
		chains := func() []string { return slices.Concat(w.chainOf(call), w.chainOf(held), w.chainOf(over)) }
		last, was := p.state("weir_default_runs"), chains()
		found := map[string]bool{}
		for _, m := range thief.copies(release(call), release(held), release(over), ns.Call(held, events.KindAnswer), ns.Call(over, events.KindResult), ns.End(call.Run)) {
			found[m.Subject] = true
			if m.Header.Get("Nats-Expected-Last-Subject-Sequence") == "" {
				t.Errorf("%s carries no guard", m.Subject)
			}
		}
		if !found[release(call).Subject()] || !found[release(over).Subject()] {
			t.Errorf("copied were %v", found)
		}
		equal(t, "the log", p.state("weir_default_runs"), last)
		equal(t, "the calls", chains(), was)
		copies = append(copies, w.Start(toolexecutor.Name))
		w.approve(key, held)
		for c, want := range map[events.CallID]int{call: 1, held: 1, over: 0} {
			w.AwaitEnd(c.Run, 10*moment)
			if n := w.Effects.Of(c.String()); n != want {
				t.Errorf("%s ran %d times, want %d", c, n, want)
			}
		}
		w.Check(false)
		noViolations(t, copies)
	})
}

// TestAttack18_WithoutItsGuard copies a release that was stored without a guard: the server stores it again. This is what
// the guards are for beside the chains.
func TestAttack18_WithoutItsGuard(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		p := w.intruder(provisioner)
		place := w.Conn().Namespace().Go(events.CallID{Run: "r", Step: 1, Index: 1}, "default", "issue_refund")
		_, _ = p.request(place.Ingest(), nil, "{}")
		before := p.state("weir_default_runs").LastSeq
		copied := w.intruder("tool-executor").copies(place)
		if n := p.state("weir_default_runs").LastSeq - before; n == 0 || len(copied) == 0 {
			t.Errorf("%d of %d copies were stored: the attack of the other test is none", n, len(copied))
		}
	})
}

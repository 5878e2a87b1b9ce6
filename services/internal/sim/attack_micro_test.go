package sim

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/client"
)

// TestAttack2_ReplyToTheLog asks the gate, from its own account, to reply on subjects that are stored or heard as facts.
// It does nothing of what is asked and replies to nobody.
func TestAttack2_ReplyToTheLog(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 1)
		a.StartAll()
		run := a.Request("go")
		call := a.call(run, 1, 1)
		a.AwaitAsk(call, moment)
		before := a.chainOf(call)
		ns := a.Conn().Namespace()
		steered := []string{
			ns.Call(call, events.KindAnswer).Ingest(), ns.Go(call, "default", "pay").Ingest(), ns.Call(call, events.KindAsk).Ingest(),
			ns.End(run).Ingest(), ns.Call(call, events.KindAnswer).Subject(), ns.InDecide("bob", call), ns.Note("bob", run, ""),
			"$KV.weir_default_registry.rule.default", "",
		}
		heard := make(chan string, 64)
		for _, subject := range steered {
			if subject != "" {
				_, err := a.nc.Subscribe(subject, func(m *nats.Msg) { heard <- m.Subject })
				a.must(err)
			}
		}
		for _, reply := range steered {
			_, decide := a.event("alice", run, call.Token(), events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()})
			decide.Subject = ns.ServiceSubject(events.VerbDecide, "alice", run, call.Token())
			ask := &nats.Msg{Subject: ns.ServiceSubject(events.VerbAsk, "alice", run, call.Token())}
			for _, m := range []*nats.Msg{decide, ask} {
				m.Reply = reply
				a.must(a.nc.PublishMsg(m))
			}
		}
		a.pause(10 * time.Second)
		if diff := cmp.Diff(before, a.chainOf(call)); diff != "" {
			t.Errorf("the call has changed:\n%s", diff)
		}
		select {
		case subject := <-heard:
			t.Errorf("the gate has replied on %s", subject)
		default:
		}
		if r := a.Check(false); r["refused"] != 0 {
			t.Errorf("the log holds %v", r)
		}
		a.send("alice", events.Approve, call, nil)
		a.completed(run)
	})
}

// TestAttack4_CopiedRequest sends what bears the marks of a stored message, so that the server must have steered it: it is
// refused and not stored, because the inbox would take it for a request of its own.
func TestAttack4_CopiedRequest(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 1)
		a.StartAll()
		run := a.Request("go")
		call := a.call(run, 1, 1)
		a.AwaitAsk(call, moment)
		for _, mark := range []string{"Nats-Stream", "Nats-Subject", "nats-sequence"} {
			_, m := a.event("alice", run, call.Token(), events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()})
			m.Subject = a.Conn().Namespace().ServiceSubject(events.VerbDecide, "alice", run, call.Token())
			m.Header[mark] = []string{"7"}
			out, why := a.asked(m)
			wantCode(t, mark, out, why, events.CodeInvalidRequest)
		}
		// What else comes along is not stored with the event.
		_, m := a.event("alice", run, call.Token(), events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()})
		m.Subject = a.Conn().Namespace().ServiceSubject(events.VerbDecide, "alice", run, call.Token())
		for name, v := range map[string]string{
			"Nats-Rollup": "all", "Nats-Msg-Id": "victim", "Nats-Expected-Last-Sequence": "1", "Nats-TTL": "1s", "weir-carried": "1", "x": "y",
		} {
			m.Header[name] = []string{v}
		}
		out, why := a.asked(m)
		if why != nil || out.State != events.DecisionReleased {
			t.Errorf("told %+v, %v", out, why)
		}
		a.completed(run)
	})
}

// TestAttack2_19_RestrictedUsers decides by request from the account of people: for oneself with the exact outcome, and for
// nobody else. Replies that are named there reach nobody in the account of the services.
func TestAttack2_19_RestrictedUsers(t *testing.T) {
	t.Parallel()
	w, key := inAccounts(t, time.Hour)
	copies := w.StartAll()
	bob := w.person(client.Config{Principal: "bob"})
	run, err := bob.Start(t.Context(), client.Request{Agent: "support", Prompt: "refund order 42"})
	w.must(err)
	call := refundOf(run.ID)
	w.AwaitAsk(call, 30*time.Second)
	before := w.chainOf(call)
	violations := make(chan string, 64)
	alice, err := nats.Connect(w.Server.ClientURL(), nats.UserInfo("alice", "p"), nats.CustomInboxPrefix(inbox("alice")),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { violations <- err.Error() }))
	w.must(err)
	t.Cleanup(alice.Close)
	ns := w.Conn().Namespace()
	decision := func(who, as string, key *events.Key) *nats.Msg {
		r := right{
			t: t, w: w, call: call, who: who, key: key,
			data: events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()},
		}
		m := r.msg()
		m.Subject = ns.ServiceSubject(events.VerbDecide, as, call.Run, call.Token())
		return m
	}
	for _, subject := range []string{
		ns.ServiceSubject(events.VerbDecide, "bob", call.Run, call.Token()), ns.ServiceSubject(events.VerbAsk, "bob", call.Run, ""),
		ns.AdminSubject("bob", "lag"), ns.AdminSubject("alice", "lag"), ns.InDecide("bob", call), ns.InGrant("bob", "g"),
	} {
		m := decision("bob", "bob", &key)
		m.Subject = subject
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if reply, err := alice.RequestMsgWithContext(ctx, m); err == nil {
			t.Errorf("%s is answered with %s", subject, reply.Data)
		}
		cancel()
		select {
		case v := <-violations:
			if !strings.Contains(v, subject) {
				t.Errorf("%s is refused as %s", subject, v)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s is not refused", subject)
		}
	}
	for name, m := range map[string]*nats.Msg{
		"unsigned": decision("alice", "alice", nil), "the event of another": decision("bob", "alice", &key),
	} {
		reply, err := alice.RequestMsg(m, 10*time.Second)
		w.must(err)
		var why events.Error
		w.must(json.Unmarshal(reply.Data, &why))
		if why.Code != events.CodeUnauthenticated && why.Code != events.CodeForbidden {
			t.Errorf("%s: %s", name, reply.Data)
		}
	}
	for _, reply := range []string{
		ns.Call(call, events.KindAnswer).Ingest(), ns.Go(call, "default", "issue_refund").Ingest(), ns.Call(call, events.KindResult).Ingest(), ns.End(run.ID).Ingest(),
	} {
		m := &nats.Msg{Subject: ns.ServiceSubject(events.VerbAsk, "alice", call.Run, call.Token()), Reply: reply}
		w.must(alice.PublishMsg(m))
	}
	w.must(alice.Flush())
	reply, err := alice.Request(ns.ServiceSubject(events.VerbAsk, "alice", call.Run, ""), nil, 10*time.Second)
	w.must(err)
	var ask events.CallHeld
	if w.must(json.Unmarshal(reply.Data, &ask)); ask.ToolCallID != call.String() || ask.Fingerprint == "" {
		t.Errorf("the ask: %s", reply.Data)
	}
	if diff := cmp.Diff(before, w.chainOf(call)); diff != "" {
		t.Errorf("the call has changed:\n%s", diff)
	}
	found, err := alice.Request("$SRV.INFO", nil, 10*time.Second)
	w.must(err)
	var info micro.Info
	w.must(json.Unmarshal(found.Data, &info))
	if info.Name != approval.ServiceName || len(info.Endpoints) < 2 || info.Endpoints[0].QueueGroup != approval.ServiceName {
		t.Errorf("found %s", found.Data)
	}
	reply, err = alice.RequestMsg(decision("alice", "alice", &key), 10*time.Second)
	w.must(err)
	var out events.DecisionOutcome
	if w.must(json.Unmarshal(reply.Data, &out)); !out.Accepted || out.State != events.DecisionReleased || out.Answer.Principal != "alice" {
		t.Errorf("the decision: %s", reply.Data)
	}
	answer, err := events.Data[events.CallAnswered](w.Await(ns.Call(call, events.KindAnswer), 10*time.Second))
	w.must(err)
	if answer.AuthType != events.AuthKey || answer.Signed == nil || answer.Signed.Subject != ns.InDecide("alice", call) {
		t.Errorf("the record: %+v", answer)
	}
	w.AwaitEnd(run.ID, time.Minute)
	w.Check(false)
	for _, c := range copies {
		for _, v := range c.Conn.Violations() {
			t.Errorf("%s may not %s %s", c.Service, v.Operation, v.Subject)
		}
	}
}

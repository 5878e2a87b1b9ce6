package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/client"
)

// steer has the server publish something on a subject to which the user has no right, by naming it as the reply of a
// request that it may make. The body is what it would say there, where it can choose.
type steer func(u *intruder, to string, body *nats.Msg)

// steered are the ways, each with the user who has it.
var steered = map[string]struct {
	user string
	do   steer
}{
	"the ack of a chunk": {"tool-executor", func(u *intruder, to string, _ *nats.Msg) { u.asks(ns+"chunk.mine", to, nil) }},
	"a message of the log": {"tool-executor", func(u *intruder, to string, _ *nats.Msg) {
		u.asks("$JS.API.STREAM.MSG.GET.weir_default_runs", to, []byte(`{"seq":1,"next_by_subj":">"}`))
	}},
	"that no work is there": {"tool-executor", func(u *intruder, to string, _ *nats.Msg) {
		u.asks("$JS.API.CONSUMER.MSG.NEXT.weir_default_runs.pool-default", to, []byte(`{"batch":1,"no_wait":true}`))
	}},
	"a body of its own": {"planner", ownBody},
}

// ownBody stores a message where a planner may, and has it delivered elsewhere, headers and all.
func ownBody(u *intruder, to string, body *nats.Msg) {
	own := ns + "thread.u.t." + events.NewID(time.Now()) + ".0"
	ctx, cancel := context.WithTimeout(u.w.T.Context(), moment)
	defer cancel()
	_, err := u.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: own, Header: body.Header, Data: body.Data})
	u.w.must(err)
	u.asks("$JS.API.DIRECT.GET.weir_default_threads", to, fmt.Appendf(nil, `{"last_by_subj":%q}`, own))
}

func (u *intruder) asks(subject, reply string, body []byte) {
	u.w.T.Helper()
	equal(u.w.T, u.user+" is refused", u.refused(func() { u.w.must(u.nc.PublishRequest(subject, reply, body)) }), []string{})
}

// saying is an event as it would be at a place, signed by nobody who counts.
func saying[T any](w *World, p events.Place, data T) *nats.Msg {
	w.T.Helper()
	e, err := (&events.Origin{Namespace: w.Conn().Namespace(), Service: "approval"}).Fact(p, data, events.Event{})
	w.must(err)
	if row, ok := events.RowOf(e.Type); ok && row.Domain != "" {
		own, err := jetstream.NewKey()
		w.must(err)
		e.Payload, err = events.Encode(e)
		w.must(err)
		e.Signature = events.Sign(own, row.Domain, p.Subject(), e.Payload)
	}
	header, payload, err := events.EncodeMsg(e)
	w.must(err)
	e, err = events.DecodeMsg(header, payload)
	w.must(err)
	_, err = events.Data[T](e) // it is one that who trusts it would take
	w.must(err)
	return &nats.Msg{Header: header, Data: payload}
}

// copyOf is a fact of the log as it was sent, signature and all.
func (w *World) copyOf(p events.Place) *nats.Msg {
	w.T.Helper()
	header, payload, err := events.EncodeMsg(w.Await(p, moment))
	w.must(err)
	return &nats.Msg{Header: header, Data: payload}
}

// approvalBy is an approval that no gate has given.
func approvalBy(call events.CallID, ask events.CallHeld) events.CallAnswered {
	return events.CallAnswered{
		ToolCallID: call.String(), RunID: call.Run, Decision: events.Approve, Round: ask.Round, Fingerprint: ask.Fingerprint,
		Principal: "alice", AuthType: events.AuthKey, At: time.Now(),
	}
}

// TestAttack3_SteeredIntoTheLog has the server itself store messages where only the gate writes, from inside the account of
// the services. Calls and runs that they were slipped into end as tampering, an alarm is raised, and nothing of them runs,
// whatever is decided later. Beside them everything goes on.
func TestAttack3_SteeredIntoTheLog(t *testing.T) {
	for name, way := range steered {
		t.Run(name, func(t *testing.T) { inCase(t, func(t *testing.T) { steeredIntoTheLog(t, way.user, way.do) }) })
	}
}

func steeredIntoTheLog(t *testing.T, user string, do steer) {
	t.Helper()
	var logged bytes.Buffer
	out := &locked{w: &logged}
	w, key := walled(t, func(o *Options) { o.Log = slog.New(slog.NewJSONHandler(out, nil)) })
	copies := w.StartAll()
	ns := w.Conn().Namespace()
	model := w.held() // its genuine release is what is copied
	w.approve(key, model)
	w.AwaitEnd(model.Run, moment)
	var victims []struck
	var foreign []uint64
	u := w.intruder(user)
	for _, kind := range []string{"ask", "answer", "go", "end"} {
		v := struck{kind: kind, call: w.held()}
		ask := w.AwaitAsk(v.call, moment)
		place, body := ns.Call(v.call, events.Kind(kind)), saying(w, ns.Call(v.call, events.KindAnswer), approvalBy(v.call, ask))
		switch kind {
		case "ask":
			ask.Approvers = []string{"user:mallory"}
			body = saying(w, place, ask)
		case "go":
			place = ns.Go(v.call, "default", "issue_refund")
			body = w.copyOf(ns.Go(model, "default", "issue_refund"))
		case "end":
			place = ns.End(v.call.Run)
		}
		last := w.lastOf(place)
		do(u, place.Ingest(), body)
		v.foreign = w.storedAfter(place, last)
		foreign, victims = append(foreign, v.foreign), append(victims, v)
	}
	free := w.held()
	w.pause(moment) // sweepers look at everything
	for _, v := range victims {
		w.approve(key, v.call)
		w.endsAsTampering(v)
	}
	w.approve(key, free)
	w.AwaitEnd(free.Run, moment)
	w.pause(moment)
	for _, v := range victims {
		if n := w.Effects.Of(v.call.String()); n != 0 {
			t.Errorf("%s: the refund ran %d times", v.kind, n)
		}
		if !alarmed(out.text(), v.call.Run) {
			t.Errorf("%s: nobody is alarmed", v.kind)
		}
	}
	if n := w.Effects.Of(free.String()); n != 1 || alarmed(out.text(), free.Run) {
		t.Errorf("a call beside them ran %d times, want once and no alarm", n)
	}
	jetstreamtest.Check(t, w.Conn(), jetstreamtest.CheckOptions{GateKeys: w.GateKeys(), Effects: w.Effects.All(), Settled: true, Foreign: foreign})
	noViolations(t, copies)
}

// struck is a held call, or its run, into whose record something was put.
type struck struct {
	kind    string
	call    events.CallID
	foreign uint64 // sequence of what was put there
}

// endsAsTampering waits for the end of what was struck: the call is blocked, or the run has an end behind the foreign one.
func (w *World) endsAsTampering(v struck) {
	w.T.Helper()
	ns := w.Conn().Namespace()
	if v.kind != "end" {
		d, err := events.Data[events.CallFinished](w.Await(ns.Call(v.call, events.KindResult), moment))
		w.must(err)
		if d.Outcome != events.OutcomeBlocked || d.Foreign != v.foreign || d.Reason != string(events.CodeTampering) && d.Reason != events.ErrorFingerprintMismatch {
			w.T.Errorf("%s: result %+v, want blocked because of %d", v.kind, d, v.foreign)
		}
		return
	}
	e, err := w.Conn().NextFact(w.T.Context(), v.foreign, ns.End(v.call.Run).Subject())
	if err != nil {
		w.T.Fatalf("the run has no end: %v", err)
	}
	d, err := events.Data[events.RunEnded](e)
	if w.must(err); d.Outcome != events.RunFailed || d.Error.Code != events.CodeTampering {
		w.T.Errorf("run ended as %s (%v)", d.Outcome, d.Error)
	}
}

// alarmed reports whether the log of a service tells of tampering with a run, as an error.
func alarmed(logged, run string) bool {
	for line := range strings.Lines(logged) {
		if strings.Contains(line, `"level":"ERROR"`) && strings.Contains(line, `"runId":"`+run) &&
			(strings.Contains(line, "tampering") || strings.Contains(line, "call blocked: nothing runs")) {
			return true
		}
	}
	return false
}

func (l *locked) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.String()
}

// lastOf is the sequence of the last fact at a place, 0 for none.
func (w *World) lastOf(p events.Place) uint64 {
	w.T.Helper()
	e, _ := w.Conn().Fact(w.T.Context(), p)
	return e.Seq
}

// storedAfter is the sequence of the message that was stored at a place after another one.
func (w *World) storedAfter(p events.Place, after uint64) uint64 {
	w.T.Helper()
	for range 100 {
		if e, _ := w.Conn().NextFact(w.T.Context(), after, p.Subject()); e.Seq > 0 {
			return e.Seq
		}
		w.pause(10 * time.Millisecond)
	}
	w.T.Fatalf("nothing was stored on %s: the attack does not work at all", p.Subject())
	return 0
}

// TestAttack2_FromOtherAccounts names subjects of the log and of the inbox as reply, from the accounts of people and of foreign
// tools: nothing is stored there. With a reply of its own each of these requests is answered.
func TestAttack2_FromOtherAccounts(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		ns, call := w.Conn().Namespace(), events.CallID{Run: "r", Step: 1, Index: 1}
		p := w.intruder(provisioner)
		_, _ = p.request(ns.Go(call, "edge", "edge").Ingest(), nil, "{}")
		targets := []string{
			ns.Call(call, events.KindAnswer).Ingest(), ns.Go(call, "default", "issue_refund").Ingest(), ns.Call(call, events.KindAsk).Ingest(),
			ns.End("r").Ingest(), ns.InDecide("alice", call), ns.InDecide("carol", call),
		}
		for _, ask := range []struct{ user, subject, body string }{
			{"alice", ns.InDecide("alice", call), "{}"},
			{"bob", ns.InStart("bob", "support"), "{}"},
			{"edgetool", ns.Chunk("r"), "{}"},
			{"edgetool", "weir.js.STREAM.MSG.GET.weir_default_runs", `{"seq":1,"next_by_subj":">"}`},
			{"edgetool", "weir.js.STREAM.MSG.GET.KV_weir_default_registry", `{"seq":1,"next_by_subj":">"}`},
			{"edgetool", "weir.js.CONSUMER.MSG.NEXT.weir_default_runs.pool-edge", `{"batch":1,"no_wait":true}`},
			{"edgetool", "weir.js.CONSUMER.MSG.NEXT.weir_default_runs.pool-edge", `{"batch":1,"no_wait":true}`}, // there is none any more
		} {
			u := w.intruder(ask.user)
			before, inboxed := p.state("weir_default_runs"), p.state("weir_default_inbox").LastSeq
			for _, to := range targets {
				u.asks(ask.subject, to, []byte(ask.body))
			}
			w.pause(time.Second)
			equal(t, "the log after "+ask.subject, p.state("weir_default_runs"), before)
			if n := p.state("weir_default_inbox").LastSeq - inboxed; n != 0 && (!strings.HasPrefix(ask.subject, "weir.default.in.") || n != uint64(len(targets))) {
				t.Errorf("the inbox took %d messages after %s", n, ask.subject)
			}
			own, err := u.nc.SubscribeSync(inbox(ask.user) + ".own")
			w.must(err)
			u.asks(ask.subject, inbox(ask.user)+".own", []byte(ask.body))
			if _, err := w.next(own); err != nil {
				t.Errorf("%s is not answered on %s", ask.user, ask.subject)
			}
		}
	})
}

// stopped counts the turns and tools that were stopped before they were done.
type stopped struct{ turns, tools atomic.Int32 }

// slow makes models and tools of the support story take their time.
func (p *stopped) slow(o *Options) {
	o.Model = &slowly{p}
	o.Tools = []agent.Tool{Lookup(), agent.NewTool("issue_refund", "Refund an order", func(ctx context.Context, _ *agent.Call, _ Order) (any, error) {
		if !wait(ctx, 30*time.Second) {
			p.tools.Add(1)
			return nil, ctx.Err()
		}
		return "done", nil
	}, &agent.ToolOptions{RequireApproval: agent.Always()})}
}

type slowly struct{ p *stopped }

func (m *slowly) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return func(yield func(agent.ModelPart, error) bool) {
		if !wait(ctx, 20*time.Second) {
			m.p.turns.Add(1)
			yield(agent.ModelPart{}, ctx.Err())
			return
		}
		Support{}.Stream(ctx, req)(yield)
	}
}

// wait reports whether the time has passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// heard steers a message to where the server republishes what it has stored, and makes sure that it is heard there.
func (u *intruder) heard(do steer, subject string, body *nats.Msg) {
	w, p := u.w, u.w.intruder(provisioner)
	w.T.Helper()
	sub, err := p.nc.SubscribeSync(subject)
	w.must(err)
	_ = p.state("weir_default_runs") // the server knows of the subscription
	do(u, subject, body)
	if _, err := w.next(sub); err != nil {
		w.T.Fatalf("nothing is heard on %s: the attack does not work at all", subject)
	}
	w.must(sub.Unsubscribe())
}

// TestAttack17_SteeredPastTheLog has the server publish ends and results where services and people listen, which are stored
// nowhere: no turn and no tool is stopped by them. A cancel, which is stored, stops both.
func TestAttack17_SteeredPastTheLog(t *testing.T) {
	for name, way := range steered {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				var p stopped
				w, key := walled(t, p.slow)
				copies := w.StartAll()
				u := w.intruder(way.user)
				ns := w.Conn().Namespace()
				strike := func(run string) {
					call := refundOf(run)
					w.pause(5 * time.Second)
					u.heard(way.do, ns.End(run).Subject(), saying(w, ns.End(run), events.RunEnded{RunID: run, Outcome: events.RunCancelled, FinishReason: "cancelled"}))
					result := ns.Call(call, events.KindResult)
					u.heard(way.do, result.Subject(), saying(w, result, events.CallFinished{
						ToolCallID: call.String(), RunID: run, ToolName: "issue_refund", Outcome: events.OutcomeCancelled,
						Error: &events.ToolError{Name: "cancelled", Message: "no"},
					}))
					u.heard(way.do, ns.Note("bob", run, ""), &nats.Msg{Data: []byte("{}")})
				}
				run := w.Request("refund order 42")
				strike(run) // while the model thinks
				w.AwaitAsk(refundOf(run), moment)
				w.approve(key, refundOf(run))
				w.Await(ns.Call(refundOf(run), events.KindClaim), moment)
				strike(run) // while the tool runs
				if end := w.AwaitEnd(run, 10*moment); end.Outcome != events.RunCompleted || p.tools.Load()+p.turns.Load() != 0 {
					t.Errorf("run ended as %s, %d tools and %d turns were stopped", end.Outcome, p.tools.Load(), p.turns.Load())
				}
				thinking, working := w.Request("refund order 42"), w.Request("refund order 42")
				w.pause(5 * time.Second)
				w.Cancel("bob", thinking)
				w.AwaitAsk(refundOf(working), moment)
				w.approve(key, refundOf(working))
				w.Await(ns.Call(refundOf(working), events.KindClaim), moment)
				w.Cancel("bob", working)
				w.AwaitEnd(working, moment)
				w.pause(moment)
				if p.tools.Load() != 1 || p.turns.Load() != 1 {
					t.Errorf("a cancel has stopped %d tools and %d turns", p.tools.Load(), p.turns.Load())
				}
				w.Check(true)
				noViolations(t, copies)
			})
		})
	}
}

// TestAttack17_PeopleAreShownNothing steers asks, answers and ends to where people listen: they are shown none that the gate
// has not signed or the log does not hold, and the outcomes of what they do are those of the log.
func TestAttack17_PeopleAreShownNothing(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, key := walled(t, nil)
		copies := w.StartAll()
		ns := w.Conn().Namespace()
		alice := w.person(client.Config{Principal: "alice", Key: &key, GateKeys: w.GateKeys(), Wait: 2 * moment})
		desk := w.connect("operator", nil)
		t.Cleanup(func() { _ = desk.Close() })
		operator := client.New(desk, client.Config{Principal: "operator", Wait: 2 * moment})
		news, naive := watch(w, alice), watch(w, w.person(client.Config{Principal: "alice"}))
		call, doomed := w.held(), w.held()
		shown := w.AwaitAsk(call, moment)
		w.must(copies[1].Stop())
		decided, ended := make(chan string, 1), make(chan string, 1)
		go func() {
			out, err := alice.Approve(t.Context(), call.String(), nil)
			decided <- fmt.Sprintf("%+v %v", out != nil && out.Accepted && out.Answer.Principal == "alice", err)
		}()
		go func() {
			o, err := operator.Cancel(t.Context(), doomed.Run, "not needed")
			ended <- fmt.Sprintf("%s %v", o, err)
		}()
		w.pause(20 * time.Second)
		planned := w.intruder("planner")
		other := events.CallID{Run: call.Run, Step: 7, Index: 1}
		for _, c := range []events.CallID{call, other} {
			ask := shown
			ask.ToolCallID, ask.Reason.Text = c.String(), "approve me"
			declined := approvalBy(c, shown)
			declined.Decision, declined.Principal = events.Decline, "mallory"
			place := ns.Call(c, events.KindAsk)
			planned.heard(ownBody, place.Subject(), saying(w, place, ask))
			place = ns.Call(c, events.KindAnswer)
			planned.heard(ownBody, place.Subject(), saying(w, place, declined))
		}
		end := ns.End(doomed.Run)
		planned.heard(ownBody, end.Subject(), saying(w, end, events.RunEnded{RunID: doomed.Run, Outcome: events.RunCompleted, FinishReason: "stop"}))
		w.pause(10 * time.Second)
		if len(decided)+len(ended) > 0 {
			t.Errorf("without a gate %d are told of a decision, %d of an end", len(decided), len(ended))
		}
		copies[1] = w.Start("approval")
		equal(t, "the decision", <-decided, "true <nil>")
		equal(t, "the end", <-ended, "cancelled <nil>")
		w.AwaitEnd(call.Run, moment)
		w.pause(moment)
		asked, answered := naive()
		if !slices.Contains(asked, other.String()) || !slices.Contains(answered, other.String()+" mallory") {
			t.Errorf("who does not look at signatures is shown %q, %q: the attack does not work at all", asked, answered)
		}
		asked, answered = news()
		equal(t, "asks", asked, []string{call.String(), doomed.String()})
		equal(t, "answers", answered, []string{call.String() + " alice"})
		w.Check(true)
		noViolations(t, copies)
	})
}

// watch lists what a client is shown from now on: the calls of asks, and answers with their principals.
func watch(w *World, c *client.Client) func() (asked, answered []string) {
	w.T.Helper()
	ctx, stop := context.WithCancel(w.T.Context())
	news, err := c.WatchAsks(ctx)
	w.must(err)
	var asked, answered []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range news {
			if n.Ask != nil {
				asked = append(asked, n.Ask.ToolCallID)
			} else {
				answered = append(answered, n.Answer.ToolCallID+" "+n.Answer.Principal)
			}
		}
	}()
	return func() ([]string, []string) {
		stop()
		<-done
		return asked, answered
	}
}

// TestAttack16_DefinitionsOfOthers writes manifests of other tools, rules, agents and principals as each service, and another
// body under the digest of a definition. Only what is a service's own is taken, and nobody reads the other body.
func TestAttack16_DefinitionsOfOthers(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, func(o *Options) { o.Rules = map[string]events.RuleSet{"default": {Name: "default"}} })
		named := map[string]string{
			events.RegistryAgent: "support", events.RegistryRule: "default", events.RegistryPrincipal: "alice", events.RegistryTool: "pay",
			events.RegistryModel: "scripted/sim",
		}
		before := w.intruder(provisioner).state("KV_weir_default_registry")
		for _, service := range []string{"planner", "approval", "tool-executor", "gateway", "operator"} {
			conn := w.connect(service, nil)
			t.Cleanup(func() { _ = conn.Close() })
			for kind, id := range named {
				if err := conn.PutNamed(t.Context(), kind, id, []byte(`{}`)); !errors.Is(err, jetstream.ErrPermission) {
					t.Errorf("%s writes %s %s: %v", service, kind, id, err)
				}
				if err := conn.DeleteNamed(t.Context(), kind, id); !errors.Is(err, jetstream.ErrPermission) {
					t.Errorf("%s deletes %s %s: %v", service, kind, id, err)
				}
			}
		}
		equal(t, "the registry", w.intruder(provisioner).state("KV_weir_default_registry"), before)

		exec := w.connect("tool-executor", nil)
		t.Cleanup(func() { _ = exec.Close() })
		own, err := w.Conn().NamedNow(t.Context(), events.RegistryTool, "issue_refund")
		w.must(err)
		w.must(exec.PutNamed(t.Context(), events.RegistryTool, "issue_refund", own))
		digest, err := exec.PutDef(t.Context(), []byte(`{"good":true}`))
		w.must(err)
		reader := func() ([]byte, error) { return w.dialled().Def(t.Context(), digest) }
		if body, err := reader(); err != nil || string(body) != `{"good":true}` {
			t.Errorf("the definition is %s, %v", body, err)
		}
		if r, ok := w.intruder("tool-executor").request("$KV.weir_default_registry."+events.DefKey(digest), nil, `{"good":false}`); !ok || r.code() != 0 {
			t.Fatalf("the attack does not work at all: %v", r.Error)
		}
		if body, err := reader(); err == nil {
			t.Errorf("the definition is %s", body)
		}
	})
}

// dialled is a new connection of the provisioner, which remembers nothing.
func (w *World) dialled() *jetstream.Conn {
	w.T.Helper()
	conn := w.connect("test", nil)
	w.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

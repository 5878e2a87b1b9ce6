package sim

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
)

// roles are the users that are not trusted with everything.
var roles = []string{"planner", "approval", "tool-executor", "gateway", "operator", "hooksvc", "edgetool", "bob", "alice"}

// may says who may do something with a subject: names of roles, or nobody.
type may struct{ subject, who string }

// facts are the subjects of facts, as they are sent. Stored they are called without "put."
var facts = []may{
	{"put.run.r.main.start", "planner"},
	{"put.run.r.main.step.1", "planner"},
	{"put.run.r.main.carry.1", "planner"},
	{"put.run.r.main.end", "planner approval"},
	{"put.run.r.call.1-1.ask", "approval"},
	{"put.run.r.call.1-1.answer", "approval"},
	{"put.run.r.call.1-1.go.default.issue_refund", "approval"},
	{"put.run.r.call.1-1.go.=agent.support", "approval"},
	{"put.run.r.call.1-1.claim", "tool-executor edgetool"},
	{"put.run.r.call.1-1.suspend", "tool-executor edgetool"},
	{"put.run.r.call.1-1.result", "approval tool-executor edgetool"},
	{"put.run.r.vote.1-1.alice", "approval"},
	{"put.run.r.refused.1-1.e1", "approval"},
	{"put.run.r.late.1-1.e1", "tool-executor edgetool"},
	{"put.run.=probe.planner.p1", "planner"},
	{"put.run.=probe.approval.p1", "approval"},
	{"put.run.=probe.tool-executor.p1", "tool-executor edgetool"},
	{"put.grant.g.use.r=1-1", "approval"},
}

// requests are the subjects of what people and services ask for and tell.
var requests = []may{
	{"in.start.bob.support", "gateway bob"},
	{"in.start.bob.other", "gateway"},
	{"in.start.alice.support", "gateway"},
	{"in.start.operator.support", "gateway operator"},
	{"in.cancel.bob.r", "gateway bob"},
	{"in.cancel.alice.r", "gateway"},
	{"in.cancel.=planner.r", "planner gateway"},
	{"in.decide.alice.r.1-1", "approval gateway alice"},
	{"in.decide.bob.r.1-1", "approval gateway"},
	{"in.decide.operator.r.1-1", "approval gateway operator"},
	{"in.decide.=auto.r.1-1", "planner approval gateway"},
	{"in.thread.bob.u.t", "gateway bob"},
	{"in.thread.alice.u.t", "gateway"},
	{"in.grant.alice.g", "approval gateway alice"},
	{"in.grant.bob.g", "approval gateway"},
	{"svc.decide.alice.r.1-1", "gateway alice"},
	{"svc.decide.bob.r.1-1", "gateway"},
	{"svc.ask.alice.r.1-1", "gateway alice"},
	{"svc.ask.bob.r.1-1", "gateway"},
	{"svc.admin.operator.lag", "gateway operator"},
	{"svc.admin.alice.lag", "gateway"},
	{"svc.hook.redact", "approval"},
	{"svc.tool.default.issue_refund.preview", "planner approval"},
	{"svc.tool.edge.edge.preview", "planner approval"},
	{"chunk.r", "planner approval tool-executor edgetool"},
	{"live.r", ""},
	{"thread.u.t.r.0", "planner"},
	{"timer.set.x", "approval"},
	{"timer.fire.x", ""},
	{"audit.3", ""},
	{"dead.planner.r", "planner"},
	{"dead.approval.r", "approval"},
	{"dead.tool-executor.r", "tool-executor"},
	{"note.alice.r.1-1", "planner approval"},
	{"hook.issue_refund.onInputStart", "planner approval tool-executor"},
	{"hook.other.onInputStart", "planner approval"},
}

// stores are the subjects of buckets and of JetStream itself.
var stores = []may{
	{"$KV.weir_default_suspended.x", "approval"},
	{"$KV.weir_default_grants.x", "approval"},
	{"$KV.weir_default_tasks.u.t", "planner tool-executor"},
	{"$KV.weir_default_registry.agent.support", ""},
	{"$KV.weir_default_registry.rule.default", ""},
	{"$KV.weir_default_registry.principal.alice", ""},
	{"$KV.weir_default_registry.model.m", ""},
	{"$KV.weir_default_registry.token.h", ""},
	{"$KV.weir_default_registry.mcp.m", ""},
	{"$KV.weir_default_registry.tool.issue_refund", "tool-executor"},
	{"$KV.weir_default_registry.tool.edge", "edgetool"},
	{"$KV.weir_default_registry.tool.other", ""},
	{"$KV.weir_default_registry.def.d", "tool-executor edgetool"},
	{"$KV.weir_default_registry.live.planner.p", "planner"},
	{"$KV.weir_default_registry.live.approval.p", "approval"},
	{"$KV.weir_default_registry.live.tool-executor.p", "tool-executor edgetool"},
	{"$KV.weir_default_registry.live.gateway.p", "gateway"},
	{"$O.weir_default_blobs.C.d.0", "planner approval tool-executor gateway"},
	{"$JS.API.STREAM.MSG.GET.weir_default_runs", "planner approval tool-executor operator"},
	{"$JS.API.STREAM.MSG.GET.weir_default_inbox", ""},
	{"$JS.API.STREAM.MSG.GET.weir_default_timers", ""},
	{"$JS.API.STREAM.MSG.GET.KV_weir_default_suspended", "planner approval gateway operator"},
	{"$JS.API.STREAM.MSG.GET.KV_weir_default_grants", "approval gateway operator"},
	{"$JS.API.STREAM.MSG.GET.KV_weir_default_registry", "planner approval tool-executor gateway operator"},
	{"$JS.API.STREAM.MSG.GET.KV_weir_default_tasks", "tool-executor"},
	{"$JS.API.DIRECT.GET.weir_default_chunks", "gateway operator"},
	{"$JS.API.STREAM.MSG.GET.weir_default_threads", "planner"},
	{"$JS.API.STREAM.PURGE.weir_default_threads", ""},
	{"$JS.API.DIRECT.GET.weir_default_threads", "planner gateway operator"},
	{"$JS.API.DIRECT.GET.weir_default_audit", "operator"},
	{"$JS.API.DIRECT.GET.weir_default_dead", "approval operator"},
	{"$JS.API.DIRECT.GET.OBJ_weir_default_blobs", "planner approval tool-executor gateway"},
	{"weir.js.STREAM.MSG.GET.weir_default_runs", "edgetool"},
	{"weir.js.STREAM.MSG.GET.KV_weir_default_registry", "edgetool"},
	{"weir.js.STREAM.MSG.GET.KV_weir_default_suspended", ""},
	{"weir.js.CONSUMER.INFO.weir_default_runs.pool-edge", "edgetool"},
	{"weir.js.CONSUMER.INFO.weir_default_runs.pool-default", ""},
	{"$JS.API.CONSUMER.INFO.weir_default_inbox.planner", "planner approval"},
	{"$SRV.PING", "alice"},
	{"$SRV.STATS", ""},
	{"$SYS.REQ.SERVER.PING", ""},
	{"_INBOX.x", ""},
	{"_INBOX_planner.x", ""},
	{"_INBOX_alice.x", ""},
}

// ears are what may be listened to.
var ears = []may{
	{">", ""},
	{"_INBOX.>", ""},
	{"_INBOX_planner.>", "planner"},
	{"_INBOX_approval.>", "approval"},
	{"_INBOX_tool-executor.>", "tool-executor"},
	{"_INBOX_gateway.>", "gateway"},
	{"_INBOX_operator.>", "operator"},
	{"_INBOX_hooksvc.>", "hooksvc"},
	{"_INBOX_edgetool.>", "edgetool"},
	{"_INBOX_bob.>", "bob"},
	{"_INBOX_alice.>", "alice"},
	{"_INBOX_*.>", ""},
	{ns + ">", ""},
	{ns + "put.>", ""},
	{ns + "put.run.*.call.*.answer", ""},
	{ns + "put.run.*.call.*.go.>", ""},
	{ns + "put.grant.>", ""},
	{ns + "in.>", ""},
	{ns + "in.start.bob.support", ""},
	{ns + "in.decide.alice.*.*", ""},
	{ns + "in.grant.*.*", ""},
	{ns + "run.>", "operator"},
	{ns + "run.*.main.start", "gateway operator"},
	{ns + "run.*.main.end", "planner tool-executor gateway operator edgetool"},
	{ns + "run.*.call.*.result", "tool-executor operator edgetool"},
	{ns + "run.*.call.*.go.>", "operator"},
	{ns + "run.*.call.*.claim", "operator"},
	{ns + "run.*.call.*.ask", "gateway operator alice"},
	{ns + "run.*.call.*.answer", "approval gateway operator alice"},
	{ns + "run.*.vote.*.*", "approval operator"},
	{ns + "run.*.refused.*.*", "approval operator"},
	{ns + "note.*.>", "gateway"},
	{ns + "note.alice.>", "gateway alice"},
	{ns + "note.bob.>", "gateway bob"},
	{ns + "note.operator.>", "gateway operator"},
	{ns + "live.*", "gateway operator bob"},
	{ns + "chunk.*", ""},
	{ns + "thread.>", ""},
	{ns + "timer.>", ""},
	{ns + "dead.>", ""},
	{ns + "svc.>", ""},
	{ns + "svc.decide.*.*.*", "approval"},
	{ns + "svc.ask.*.*.*", "approval"},
	{ns + "svc.admin.*.*", "approval"},
	{ns + "svc.hook.redact", "hooksvc"},
	{ns + "svc.hook.other", ""},
	{ns + "svc.tool.default.issue_refund.*", "tool-executor"},
	{ns + "svc.tool.edge.edge.*", "edgetool"},
	{ns + "hook.*.*", "hooksvc"},
	{ns + "hook.issue_refund.*", "tool-executor hooksvc"},
	{"$KV.weir_default_registry.>", "planner approval gateway"},
	{"$KV.weir_default_suspended.>", ""},
	{"$KV.weir_default_grants.>", ""},
	{"$KV.weir_default_tasks.>", ""},
	{"$O.>", ""},
	{"$SRV.>", "approval"},
	{"$JS.>", ""},
	{"$JS.EVENT.ADVISORY.>", ""},
	{"$SYS.>", ""},
}

// durables are the consumers, each with the one user who works on it.
var durables = []may{
	{"weir_default_inbox.planner", "planner"},
	{"weir_default_inbox.approval", "approval"},
	{"weir_default_runs.planner", "planner"},
	{"weir_default_runs.approval", "approval"},
	{"weir_default_runs.pool-default", "tool-executor"},
	{"weir_default_runs.pool-edge", ""}, // from an account of its own
	{"weir_default_timers.approval", "approval"},
}

// publishing is the matrix of who may publish what.
func publishing() []may {
	all := slices.Clone(stores)
	for _, m := range slices.Concat(facts, requests) {
		all = append(all, may{ns + m.subject, m.who})
	}
	for _, d := range durables {
		all = append(all, may{"$JS.API.CONSUMER.MSG.NEXT." + d.subject, d.who}, may{"$JS.ACK.d.h." + d.subject + ".1.1.1.1.0", d.who})
		ack := d.who
		if strings.HasSuffix(d.subject, "pool-edge") {
			ack = "edgetool"
		}
		all = append(all, may{"$JS.ACK." + d.subject + ".1.1.1.1.0", ack})
	}
	return all
}

// everybody tries an operation on each subject of a matrix as each user, who is refused unless the matrix says otherwise.
func everybody(w *World, matrix []may, try func(u *intruder, subject string) bool) (refused int) {
	w.T.Helper()
	for _, role := range roles {
		u := w.intruder(role)
		for _, m := range matrix {
			want, got := slices.Contains(strings.Fields(m.who), role), try(u, m.subject)
			if got != want {
				w.T.Errorf("%s may use %s: %v, want %v", role, m.subject, got, want)
			}
			if !got {
				refused++
			}
		}
	}
	return refused
}

// TestAttack1_13_Permissions has every user publish on every subject and listen to every subject: each may do its part and
// nothing else. Who asks for something without the right to it waits in vain, and hears of it on the side.
func TestAttack1_13_Permissions(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		if n := everybody(w, publishing(), (*intruder).mayPublish); n < 500 {
			t.Errorf("only %d publishes were refused", n)
		}
		if n := everybody(w, ears, (*intruder).maySubscribe); n < 300 {
			t.Errorf("only %d subscriptions were refused", n)
		}
	})
}

// TestAttack1_RefusedRequest asks for the storing of an end as each user that may not: no answer comes, nothing is stored,
// and the violation is told. Who may gets its answer.
func TestAttack1_RefusedRequest(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		p := w.intruder(provisioner)
		end := w.Conn().Namespace().End("r")
		for _, role := range roles {
			u := w.intruder(role)
			before := p.state("weir_default_runs")
			var answered bool
			refused := u.refused(func() { _, answered = u.request(end.Ingest(), nil, "not an event") })
			may := role == "planner" || role == "approval"
			stored := p.state("weir_default_runs").LastSeq - before.LastSeq
			if answered != may || (len(refused) == 0) != may || (stored == 1) != may {
				t.Errorf("%s: answered %v, %d stored, refused %q", role, answered, stored, refused)
			}
		}
	})
}

// TestAttack12_RawReads reads log, snapshots and inbox as each user who may not: nothing is answered. Who may is answered
// with a message, an executor of another account under the names that it has there.
func TestAttack12_RawReads(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		w.StartAll()
		w.held()
		for _, c := range []struct{ stream, may, mayNot string }{
			{"weir_default_runs", "planner approval tool-executor operator", "gateway bob alice hooksvc edgetool"},
			{"KV_weir_default_suspended", "planner approval gateway operator", "tool-executor bob alice hooksvc edgetool"},
			{"weir_default_inbox", "", "planner approval tool-executor gateway operator bob alice hooksvc edgetool"},
		} {
			subject := "$JS.API.STREAM.MSG.GET." + c.stream
			const first = `{"seq":1,"next_by_subj":">"}`
			for role := range strings.FieldsSeq(c.may) {
				if r, ok := w.intruder(role).request(subject, nil, first); !ok || len(r.Message) == 0 {
					t.Errorf("%s reads nothing of %s: %v", role, c.stream, r.Error)
				}
			}
			for role := range strings.FieldsSeq(c.mayNot) {
				u := w.intruder(role)
				refused := u.refused(func() {
					if r, ok := u.request(subject, nil, first); ok {
						t.Errorf("%s reads %s: %s", role, c.stream, r.Message)
					}
				})
				equal(t, role+" is refused", refused, []string{"publish " + subject})
			}
		}
		tool := w.intruder("edgetool")
		if r, ok := tool.request("weir.js.STREAM.MSG.GET.weir_default_runs", nil, `{"seq":1,"next_by_subj":">"}`); !ok || len(r.Message) == 0 {
			t.Errorf("the executor of another account reads nothing: %v", r.Error)
		}
	})
}

// TestAttack13_OthersReplies listens for what others are told, and hears nothing of it, while they do.
func TestAttack13_OthersReplies(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		w.StartAll()
		bob, alice := w.intruder("bob"), w.intruder("alice")
		subjects := []string{inbox("alice") + ".>", ns + "note.alice.>", ns + "run.*.call.*.ask", ns + "in.>"}
		refused := bob.refused(func() {
			for _, subject := range subjects {
				sub, err := bob.nc.SubscribeSync(subject)
				w.must(err)
				t.Cleanup(func() {
					if n, _, _ := sub.Pending(); n > 0 {
						t.Errorf("bob has heard %d messages of %s", n, subject)
					}
				})
			}
		})
		if len(refused) != len(subjects) {
			t.Errorf("refused: %q", refused)
		}
		notes, err := alice.nc.SubscribeSync(ns + "note.alice.>")
		w.must(err)
		asked, err := alice.nc.SubscribeSync(ns + "run.*.call.*.ask")
		w.must(err)
		equal(t, "refused", alice.refused(func() {}), []string{})
		call := w.held()
		if m, err := w.next(asked); err != nil || m.Subject != w.Conn().Namespace().Call(call, events.KindAsk).Subject() {
			t.Errorf("alice hears no ask: %v", err)
		}
		if r, ok := alice.request(w.Conn().Namespace().InDecide("alice", call), nil, "not an event"); !ok || r.Seq == 0 {
			t.Errorf("alice is not answered: %v", r.Error)
		}
		w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()}) // unsigned
		if _, err := w.next(notes); err != nil {
			t.Errorf("alice is told nothing: %v", err)
		}
	})
}

// TestAttack17_PublishOnTheLog publishes on the names under which facts are stored and told, as every user: nobody may.
func TestAttack17_PublishOnTheLog(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w, _ := walled(t, nil)
		var told []may
		for _, m := range facts {
			told = append(told, may{ns + strings.TrimPrefix(m.subject, "put."), ""})
		}
		if n := everybody(w, told, (*intruder).mayPublish); n != len(told)*len(roles) {
			t.Errorf("%d publishes were refused of %d", n, len(told)*len(roles))
		}
	})
}

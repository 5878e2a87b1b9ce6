package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// allowed is what a user may do beside its inbox.
type allowed struct {
	user                string
	publish, subscribe  []string
	answers, everything bool
}

// pull lets a user work on a durable consumer.
func pull(stream, durable string) []string {
	at := "weir_default_" + stream + "." + durable
	return []string{"$JS.API.CONSUMER.INFO." + at, "$JS.API.CONSUMER.MSG.NEXT." + at, "$JS.ACK." + at + ".>", "$JS.ACK.*.*." + at + ".>"}
}

// leader lets a user read a stream from its leader, and list its subjects.
func leader(stream string) []string {
	return []string{"$JS.API.STREAM.INFO." + stream, "$JS.API.STREAM.MSG.GET." + stream}
}

// direct lets a user read a stream from any replica.
func direct(stream string) []string {
	return []string{"$JS.API.STREAM.INFO.weir_default_" + stream, "$JS.API.DIRECT.GET.weir_default_" + stream}
}

func bucket(name string) []string { return leader("KV_weir_default_" + name) }

func below(prefix string, names ...string) (subjects []string) {
	for _, n := range names {
		subjects = append(subjects, prefix+n)
	}
	return subjects
}

func join(lists ...[]string) (all []string) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

const ns = "weir.default."

// blobs is what whoever stores or reads large values may do.
var blobs = []string{
	"$JS.API.STREAM.INFO.OBJ_weir_default_blobs", "$JS.API.DIRECT.GET.OBJ_weir_default_blobs",
	"$O.weir_default_blobs.C.*.*",
}

// users are the allow lists of the services.
var users = []allowed{
	{user: "provisioner", everything: true},
	{
		user: planner.Name,
		publish: join(pull("inbox", "planner"), pull("runs", "planner"), leader("weir_default_runs"), bucket("suspended"), bucket("registry"), blobs,
			below(ns+"put.run.", "*.main.>", "=probe.planner.*"),
			below(ns, "chunk.*", "thread.>", "dead.planner.*", "in.decide.=auto.*.*", "in.cancel.=planner.*", "note.*.>",
				"hook.*.*", "svc.tool.*.*.*", "in.grant.=planner.*"),
			leader("weir_default_threads"), direct("threads"), []string{"$JS.API.STREAM.INFO.KV_weir_default_tasks"},
			below("$KV.weir_default_", "registry.live.planner.*", "tasks.>")),
		subscribe: []string{"$KV.weir_default_registry.>", ns + "run.*.main.end"},
	},
	{
		user: approval.Name, answers: true,
		publish: join(pull("inbox", "approval"), pull("runs", "approval"), pull("timers", "approval"), leader("weir_default_runs"),
			bucket("suspended"), bucket("grants"), bucket("registry"), blobs,
			below(ns+"put.run.", "*.call.*.ask", "*.call.*.answer", "*.call.*.go.>", "*.call.*.result", "*.main.end", "*.vote.*.*",
				"*.refused.*.*", "=probe.approval.*"),
			below(ns, "put.grant.*.use.*", "timer.set.*", "chunk.*", "dead.approval.*", "note.*.>", "hook.*.*",
				"in.decide.*.*.*", "in.grant.*.*", "svc.hook.*", "svc.tool.*.*.*"),
			below("$JS.API.", "STREAM.INFO.weir_default_dead", "DIRECT.GET.weir_default_dead", "CONSUMER.INFO.*.*"),
			below("$KV.weir_default_", "suspended.>", "grants.>", "registry.live.approval.*")),
		subscribe: join([]string{"$KV.weir_default_registry.>", "$SRV.>"},
			below(ns, "svc.decide.*.*.*", "svc.ask.*.*.*", "svc.admin.*.*", "run.*.call.*.answer", "run.*.vote.*.*", "run.*.refused.*.*")),
	},
	{
		user: toolexecutor.Name, answers: true,
		publish: join(pull("runs", "pool-default"), leader("weir_default_runs"), bucket("registry"), bucket("tasks"), blobs,
			below(ns+"put.run.", "*.call.*.claim", "*.call.*.suspend", "*.call.*.result", "*.late.*.*", "=probe.tool-executor.*"),
			below(ns, "chunk.*", "dead.tool-executor.*", "hook.lookup_order.*", "hook.issue_refund.*"),
			below("$KV.weir_default_", "tasks.>", "registry.def.*", "registry.live.tool-executor.*",
				"registry.tool.lookup_order", "registry.tool.issue_refund")),
		subscribe: below(ns, "run.*.main.end", "run.*.call.*.result", "hook.lookup_order.*", "hook.issue_refund.*",
			"svc.tool.default.lookup_order.*", "svc.tool.default.issue_refund.*"),
	},
	{
		user: "gateway",
		publish: join(bucket("suspended"), bucket("grants"), bucket("registry"), blobs,
			below(ns, "in.start.*.*", "in.cancel.*.*", "in.decide.*.*.*", "in.thread.*.*.*", "in.grant.*.*",
				"svc.decide.*.*.*", "svc.ask.*.*.*", "svc.admin.*.*"),
			below("$JS.API.", "STREAM.INFO.weir_default_chunks", "DIRECT.GET.weir_default_chunks",
				"DIRECT.GET.weir_default_chunks.weir.default.chunk.*", "STREAM.INFO.weir_default_threads",
				"DIRECT.GET.weir_default_threads"),
			below("$KV.weir_default_registry.", "live.gateway.*")),
		subscribe: join([]string{"$KV.weir_default_registry.>"},
			below(ns, "live.*", "run.*.main.start", "run.*.main.end", "run.*.call.*.ask", "run.*.call.*.answer", "note.*.>")),
	},
	{
		user: "operator",
		publish: join(bucket("suspended"), bucket("grants"), bucket("registry"), leader("weir_default_runs"),
			direct("chunks"), direct("audit"), direct("dead"), direct("threads"),
			below(ns, "in.*.operator.>", "svc.decide.operator.*.*", "svc.ask.operator.*.*", "svc.admin.operator.*")),
		subscribe: below(ns, "live.*", "run.>", "note.operator.>"),
	},
	{user: "hooksvc", answers: true, subscribe: below(ns, "svc.hook.redact", "hook.*.*")},
}

// tools are executors in an account of their own, with code that is not ours.
var tools = []allowed{{
	user: "edgetool", answers: true,
	publish: join(
		below("weir.js.", "STREAM.MSG.GET.weir_default_runs", "STREAM.INFO.weir_default_runs", "STREAM.MSG.GET.KV_weir_default_registry",
			"STREAM.INFO.KV_weir_default_registry", "CONSUMER.INFO.weir_default_runs.pool-edge", "CONSUMER.MSG.NEXT.weir_default_runs.pool-edge"),
		toolsServices),
	subscribe: join(toolsStreams, below(ns, "svc.tool.edge.*.*")),
}}

var (
	toolsAPI = below("$JS.API.", "STREAM.MSG.GET.weir_default_runs", "STREAM.INFO.weir_default_runs", "STREAM.MSG.GET.KV_weir_default_registry",
		"STREAM.INFO.KV_weir_default_registry", "CONSUMER.INFO.weir_default_runs.pool-edge")
	toolsNext     = "$JS.API.CONSUMER.MSG.NEXT.weir_default_runs.pool-edge" // has as many replies as it is asked for
	toolsServices = join([]string{"$JS.ACK.weir_default_runs.pool-edge.>"},
		below(ns, "put.run.*.call.*.claim", "put.run.*.call.*.suspend", "put.run.*.call.*.result", "put.run.*.late.*.*",
			"put.run.=probe.tool-executor.*", "chunk.*"),
		below("$KV.weir_default_registry.", "tool.edge", "def.*", "live.tool-executor.*"))
	toolsStreams = below(ns, "run.*.main.end", "run.*.call.*.result")
)

// edge are people, in an account of their own.
var edge = []allowed{
	{
		user: "bob", publish: below(ns, "in.start.bob.support", "in.start.bob.boss", "in.cancel.bob.*", "in.thread.bob.*.*"),
		subscribe: below(ns, "live.*", "note.bob.>"),
	},
	approver("alice"), approver("carol"),
}

// approver is a person who decides.
func approver(who string) allowed {
	return allowed{
		user: who, publish: join(below(ns, "in.decide."+who+".*.*", "in.grant."+who+".*", "svc.decide."+who+".*.*", "svc.ask."+who+".*.*"),
			[]string{"$SRV.PING", "$SRV.INFO"}),
		subscribe: below(ns, "run.*.call.*.ask", "run.*.call.*.answer", "note."+who+".>"),
	}
}

var (
	edgeServices = below(ns, "in.start.*.*", "in.cancel.*.*", "in.decide.*.*.*", "in.thread.*.*.*", "in.grant.*.*",
		"svc.decide.*.*.*", "svc.ask.*.*.*", "svc.admin.*.*")
	edgeStreams = below(ns, "live.*", "run.*.call.*.ask", "run.*.call.*.answer", "note.*.>")
	// discovery has as many replies as there are services.
	discovery = []string{"$SRV.PING", "$SRV.INFO"}
)

func quoted(subjects []string) string {
	if len(subjects) == 0 {
		return "[]"
	}
	return `["` + strings.Join(subjects, `", "`) + `"]`
}

func (a allowed) String() string {
	if a.everything {
		return fmt.Sprintf("{ user: %s, password: p }\n", a.user)
	}
	answers := ""
	if a.answers {
		answers = `, allow_responses: { max: 1, expires: "10s" }`
	}
	return fmt.Sprintf("{ user: %s, password: p, permissions: { subscribe: %s, publish: %s%s } }\n", a.user,
		quoted(append([]string{inbox(a.user) + ".>"}, a.subscribe...)), quoted(a.publish), answers)
}

func inbox(user string) string { return "_INBOX_" + user }

// restricted starts a server on which nobody may do more than his part.
func restricted(t *testing.T) *embedded.Server {
	t.Helper()
	return restrictedOn(t, "127.0.0.1:0")
}

// restrictedOn is restricted at an address; none: within this process alone, for fake time.
func restrictedOn(t *testing.T, listen string) *embedded.Server {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(path, []byte(permissions()), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.StartConfig(t.Context(), path, embedded.Options{Dir: t.TempDir(), Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}

// permissions is the server's configuration: the account of the services, and those of tools and of people.
func permissions() string {
	var b strings.Builder
	list := func(what string, lines ...string) { fmt.Fprintf(&b, "%s: [\n%s\n]\n", what, strings.Join(lines, "\n")) }
	each := func(format string, subjects ...string) (lines []string) {
		for _, s := range subjects {
			lines = append(lines, fmt.Sprintf(format, s))
		}
		return lines
	}
	logins := func(all []allowed) (lines []string) {
		for _, a := range all {
			lines = append(lines, a.String())
		}
		return lines
	}
	const toTools = ", accounts: [TOOLS]"
	b.WriteString("accounts {\n SVC {\n jetstream: enabled\n")
	list("users", logins(users)...)
	list("exports", slices.Concat(
		each("{ service: %q, response_type: singleton }", edgeServices...),
		each("{ service: %q, response_type: stream }", discovery...),
		each("{ stream: %q }", edgeStreams...),
		each("{ service: %q, response_type: singleton"+toTools+" }", slices.Concat(toolsAPI, toolsServices)...),
		each("{ service: %q, response_type: stream"+toTools+" }", toolsNext),
		each("{ stream: %q"+toTools+" }", toolsStreams...),
	)...)
	list("imports", each("{ service: { account: TOOLS, subject: %q } }", ns+"svc.tool.edge.*.*")...)
	b.WriteString("}\n TOOLS {\n")
	list("users", logins(tools)...)
	list("exports", each("{ service: %q, response_type: singleton, accounts: [SVC] }", ns+"svc.tool.edge.*.*")...)
	var prefixed []string
	for _, s := range slices.Concat(toolsAPI, []string{toolsNext}) {
		prefixed = append(prefixed, fmt.Sprintf("{ service: { account: SVC, subject: %q }, to: %q }", s, strings.Replace(s, "$JS.API", "weir.js", 1)))
	}
	list("imports", slices.Concat(
		prefixed,
		each("{ service: { account: SVC, subject: %q } }", toolsServices...),
		each("{ stream: { account: SVC, subject: %q } }", toolsStreams...),
	)...)
	b.WriteString("}\n EDGE {\n")
	list("users", logins(edge)...)
	list("imports", slices.Concat(
		each("{ service: { account: SVC, subject: %q } }", slices.Concat(edgeServices, discovery)...),
		each("{ stream: { account: SVC, subject: %q } }", edgeStreams...),
	)...)
	b.WriteString("}\n}\n")
	return b.String()
}

// TestRestrictedUsers lets every service work with the rights of its user and no more, and people start and decide from
// an account of their own: a run is approved, one declined, one cancelled, and one expires; two delegate, of which one is
// cancelled. Sweepers look at everything meanwhile. Nothing that anybody tries may be refused for want of a right.
func TestRestrictedUsers(t *testing.T) {
	t.Parallel()
	o, alice := accounts(t, 8*time.Second)
	o.Agents = []events.AgentDef{{ID: "boss", Model: "scripted/sim", Agents: map[string]string{"support": "support"}}}
	w := New(t, o)
	copies := w.StartAll()
	bob, decider := w.person(client.Config{Principal: "bob"}), w.person(client.Config{Principal: "alice", Key: &alice})

	runs := map[string]string{}
	for _, story := range []string{"approve", "decline", "cancel", "expire"} {
		run, err := bob.Start(t.Context(), client.Request{Agent: "support", Prompt: "refund order 42"})
		w.must(err)
		runs[story] = run.ID
		w.AwaitAsk(refundOf(run.ID), 30*time.Second)
	}
	for _, story := range []string{"delegate", "cancel below"} {
		run, err := bob.Start(t.Context(), client.Request{Agent: "boss", Prompt: "let somebody refund order 42"})
		w.must(err)
		runs[story] = run.ID
		w.AwaitAsk(refundOf(run.ID+"=1-1"), 30*time.Second)
	}
	_, err := decider.Approve(t.Context(), refundOf(runs["approve"]).String(), nil)
	w.must(err)
	_, err = decider.Decline(t.Context(), refundOf(runs["decline"]).String(), "no", nil)
	w.must(err)
	_, err = decider.Decline(t.Context(), refundOf(runs["approve"]).String(), "too late", nil)
	if e, ok := errors.AsType[*events.Error](err); !ok || e.Code != events.CodeAlreadyDecided {
		t.Errorf("a late decision: %v", err)
	}
	_, err = decider.Approve(t.Context(), refundOf(runs["delegate"]+"=1-1").String(), nil)
	w.must(err)
	if outcome, err := bob.Cancel(t.Context(), runs["cancel below"], "not needed"); err != nil || outcome != events.RunCancelled {
		t.Errorf("cancelled: %s, %v", outcome, err)
	}
	if outcome, err := bob.Cancel(t.Context(), runs["cancel"], "not needed"); err != nil || outcome != events.RunCancelled {
		t.Errorf("cancelled: %s, %v", outcome, err)
	}
	for story, want := range map[string]events.RunOutcome{
		"approve": events.RunCompleted, "decline": events.RunCompleted,
		"cancel": events.RunCancelled, "expire": events.RunCompleted,
		"delegate": events.RunCompleted, "cancel below": events.RunCancelled,
	} {
		if end := w.AwaitEnd(runs[story], time.Minute); end.Outcome != want {
			t.Errorf("%s: run ended as %s (%v)", story, end.Outcome, end.Error)
		}
	}
	w.Check(false)
	for _, c := range copies {
		for _, v := range c.Conn.Violations() {
			t.Errorf("%s may not %s %s", c.Service, v.Operation, v.Subject)
		}
	}
}

// inAccounts is a world on a server of restricted users whose asks expire, and the key of alice, who decides.
func inAccounts(t *testing.T, expires time.Duration) (*World, events.Key) {
	t.Helper()
	o, alice := accounts(t, expires)
	return New(t, o), alice
}

// accounts are the options of such a world.
func accounts(t *testing.T, expires time.Duration) (Options, events.Key) {
	t.Helper()
	return accountsOn(t, restricted(t), expires)
}

func accountsOn(t *testing.T, srv *embedded.Server, expires time.Duration) (Options, events.Key) {
	t.Helper()
	alice, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Server: srv, People: map[string]events.PrincipalDef{"alice": {ID: "alice", Auth: events.AuthKey, Key: alice.Public}},
		Conn: func(o *jetstream.Options) {
			user := o.Name
			if user == "test" {
				user = "provisioner"
			}
			if srv.ClientURL() != "" {
				o.InProcess, o.URL = nil, srv.ClientURL()
			}
			o.User, o.Password, o.InboxPrefix = user, "p", inbox(user)
			if user == "provisioner" {
				o.InboxPrefix = ""
			}
		},
		Gate: func(c *approval.Config) {
			c.Dev, c.Expires = false, expires
			c.Sweep, c.DeepSweep, c.SweepAge = time.Second, 2*time.Second, time.Second
		},
		Plan: func(c *planner.Config) { c.Sweep, c.DeepSweep, c.SweepAge = time.Second, 2*time.Second, time.Second },
	}, alice
}

// TestB11_4MessageWithRestrictedUsers lets bob, who has a key, answer with his next message what a tool asked. His client
// signs what he says, and neither planner nor gate needs more than the rights of its user for it.
func TestB11_4MessageWithRestrictedUsers(t *testing.T) {
	t.Parallel()
	o, bob := accounts(t, time.Minute)
	o.People = map[string]events.PrincipalDef{"bob": {ID: "bob", Auth: events.AuthKey, Key: bob.Public}}
	o.Tools = []agent.Tool{agent.NewTool("lookup_order", "Look an order up", func(_ context.Context, call *agent.Call, in Order) (string, error) {
		if !call.Resumed() {
			return "", call.Suspend("really?")
		}
		return in.OrderID, nil
	}, &agent.ToolOptions{Effect: agent.ReadOnly, ResumeSchema: json.RawMessage(`{"type":"boolean"}`)})}
	o.Agent = talker(o.Tools, 3)
	w := New(t, o)
	copies := w.StartAll()
	c := w.person(client.Config{Principal: "bob", Key: &bob})
	first, err := c.Start(t.Context(), client.Request{Agent: "support", Prompt: "look up order 42", ThreadID: "t1", ResourceID: "u1"})
	w.must(err)
	call := events.CallID{Run: first.ID, Step: 1, Index: 1}
	w.AwaitAsk(call, 30*time.Second)
	second, err := c.Start(t.Context(), client.Request{Agent: "support", Prompt: "resume:true", ThreadID: "t1", ResourceID: "u1"})
	w.must(err)
	if end := w.AwaitEnd(second.ID, time.Minute); len(end.Resumes) != 1 || end.Resumes[0] != first.ID {
		t.Errorf("the message's run ended as %+v", end)
	}
	if end := w.AwaitEnd(first.ID, time.Minute); end.Outcome != events.RunCompleted {
		t.Errorf("the first run ended as %s (%v)", end.Outcome, end.Error)
	}
	a, err := events.Data[events.CallAnswered](w.Await(w.Conn().Namespace().Call(call, events.KindAnswer), time.Minute))
	w.must(err)
	if a.Principal != "bob" || a.AuthType != events.AuthAuto {
		t.Errorf("answer %+v", a)
	}
	for _, copy := range copies {
		for _, v := range copy.Conn.Violations() {
			t.Errorf("%s may not %s %s", copy.Service, v.Operation, v.Subject)
		}
	}
}

// person connects a person, who may hear and say what the account EDGE lets through, and read no stream.
func (w *World) person(c client.Config) *client.Client {
	w.T.Helper()
	o := jetstream.Options{URL: w.Server.ClientURL(), Name: c.Principal, User: c.Principal, Password: "p", InboxPrefix: inbox(c.Principal)}
	if o.URL == "" {
		o.InProcess = w.Server.InProcess()
	}
	conn, err := jetstream.Connect(w.T.Context(), o)
	w.must(err)
	w.T.Cleanup(func() {
		for _, v := range conn.Violations() {
			w.T.Errorf("%s may not %s %s", c.Principal, v.Operation, v.Subject)
		}
		_ = conn.Close()
	})
	c.LiveOnly = true
	p := client.New(conn, c)
	w.T.Cleanup(p.Close)
	return p
}

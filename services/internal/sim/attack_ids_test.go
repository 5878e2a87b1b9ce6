package sim

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// hostile are ids that mean something to a bus, a parser or a terminal.
var hostile = []string{
	"*", ">", "victim.>", "*.*", "a.b", ".", "..", "victim.", " ", "victim ", "a\tb", "a\x00b", "\x00", "a\r\nPUB weir.default.in.cancel.bob.victim 0\r\n\r\nb",
	"\n", "victim=1-1=", "=auto", "=planner", "=0", "=victim", "$JS.API.>", "$KV.weir_default_registry.>", "_INBOX.>", "../victim", "Ünïcödé", "日本語", "\u202Evictim",
	"vict\u0456m", "\ufeffvictim", "e\u0301", "\xff\xfe", strings.Repeat("a", 65), strings.Repeat("a.", 2048), strings.Repeat("é", 2048), strings.Repeat(">", 4096),
}

// longest is how many characters the id of a thread may have.
const longest = 512

// entry is one thing that a program may ask a client, with an id of its choice in it.
type entry func(ctx context.Context, c *client.Client, id string) error

// entries are the entries of services/client that take text which may become a part of a subject, key or name.
var entries = map[string]entry{
	"start: run": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Start(ctx, client.Request{Agent: "support", Prompt: "p", RunID: id}))
	},
	"start: idempotency key": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Start(ctx, client.Request{Agent: "support", Prompt: "p", IdempotencyKey: id}))
	},
	"start: agent": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Start(ctx, client.Request{Agent: id, Prompt: "p"}))
	},
	"start: thread": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Start(ctx, client.Request{Agent: "support", Prompt: "p", ThreadID: id, ResourceID: "other"}))
	},
	"start: resource": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Start(ctx, client.Request{Agent: "support", Prompt: "p", ThreadID: "t2", ResourceID: id}))
	},
	"start: tools and model": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Start(ctx, client.Request{Agent: "support", Prompt: "p", ActiveTools: &[]string{id}, ToolChoice: id, Model: id}))
	},
	"follow": func(ctx context.Context, c *client.Client, id string) error {
		for _, err := range c.Run(id).Follow(ctx, 0, nil) {
			return err
		}
		return nil
	},
	"wait":        func(ctx context.Context, c *client.Client, id string) error { return second(c.Run(id).Wait(ctx)) },
	"cancel: run": func(ctx context.Context, c *client.Client, id string) error { return second(c.Cancel(ctx, id, "r")) },
	"approve: id": func(ctx context.Context, c *client.Client, id string) error { return second(c.Approve(ctx, id, nil)) },
	"approve: run": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Approve(ctx, id+"=1-1", nil))
	},
	"decline: id": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Decline(ctx, id, id, nil))
	},
	"edit: id": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Edit(ctx, id, RawJSON("{}"), nil))
	},
	"respond: id": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Respond(ctx, id, RawJSON("1"), nil))
	},
	"resume: id": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Resume(ctx, id, RawJSON("1"), nil))
	},
	"retry: id": func(ctx context.Context, c *client.Client, id string) error { return second(c.Retry(ctx, id, nil)) },
	"decide: call of a run": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Decide(ctx, client.Decision{Decision: events.Approve, ToolCallID: "victim=1-1", RunID: id + "x"}))
	},
	"decide: kind": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Decide(ctx, client.Decision{Decision: events.Decision(id), ToolCallID: "victim=1-1"}))
	},
	"decide: fingerprint": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Decide(ctx, client.Decision{Decision: events.Approve, ToolCallID: "victim=1-1", Fingerprint: id}))
	},
	"decide: reason": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Decide(ctx, client.Decision{Decision: events.Decline, ToolCallID: "victim=1-1", Fingerprint: "sha256:00", Reason: id, Groups: []string{id}}))
	},
	"cancel: reason": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Cancel(ctx, "nobody", id))
	},
	"grant: reason": func(ctx context.Context, c *client.Client, id string) error {
		g := grantOf("", "lookup_order", "x")
		g.Reason, g.Groups, g.Terms.When = id, []string{id}, id
		return second(c.Grant(ctx, g))
	},
	"decide: thread": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.DecideIn(ctx, client.Thread{ResourceID: "u", ThreadID: id}, client.Decision{Decision: events.Approve}))
	},
	"decide: resource": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.DecideIn(ctx, client.Thread{ResourceID: id, ThreadID: "t"}, client.Decision{Decision: events.Approve}))
	},
	"cancel: thread": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.CancelIn(ctx, client.Thread{ResourceID: "u", ThreadID: id}, id))
	},
	"cancel: resource": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.CancelIn(ctx, client.Thread{ResourceID: id, ThreadID: "t"}, id))
	},
	"grant: id": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Grant(ctx, grantOf(id, "lookup_order", "x")))
	},
	"grant: tool": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Grant(ctx, grantOf("", id, "x")))
	},
	"grant: run": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Grant(ctx, grantOf("", "lookup_order", id)))
	},
	"grant: thread": func(ctx context.Context, c *client.Client, id string) error {
		return second(c.Grant(ctx, client.GrantRequest{Agent: id, Tool: "lookup_order", Thread: id, Resource: id, Terms: events.GrantTerms{Scope: events.ScopeThread}}))
	},
	"revoke: id": func(ctx context.Context, c *client.Client, id string) error { return second(c.Revoke(ctx, id, id)) },
}

// lists are what shows runs, asks and grants by an id: how many it shows.
var lists = map[string]func(ctx context.Context, c *client.Client, id string) (int, error){
	"suspended: agent":    suspendedBy(func(id string) client.Filter { return client.Filter{Agent: id} }),
	"suspended: resource": suspendedBy(func(id string) client.Filter { return client.Filter{Resource: id, Thread: "t"} }),
	"suspended: thread":   suspendedBy(func(id string) client.Filter { return client.Filter{Resource: "u", Thread: id} }),
	"suspended: run":      suspendedBy(func(id string) client.Filter { return client.Filter{Run: id} }),
	"suspended: tool":     suspendedBy(func(id string) client.Filter { return client.Filter{Tool: id} }),
	"runs": func(ctx context.Context, c *client.Client, id string) (int, error) {
		list, _, err := c.Runs(ctx, client.RunsFilter{Agent: id})
		return len(list), err
	},
	"run": func(ctx context.Context, c *client.Client, id string) (int, error) { return one(c.Info(ctx, id)) },
	"ask": func(ctx context.Context, c *client.Client, id string) (int, error) { return one(c.Ask(ctx, id)) },
	"grants": func(ctx context.Context, c *client.Client, id string) (int, error) {
		list, err := c.Grants(ctx, client.GrantFilter{Tool: id})
		return len(list), err
	},
}

func suspendedBy(f func(id string) client.Filter) func(ctx context.Context, c *client.Client, id string) (int, error) {
	return func(ctx context.Context, c *client.Client, id string) (int, error) {
		asks, n, err := c.Asks(ctx, f(id))
		return max(n, len(asks)), err
	}
}

func grantOf(id, tool, run string) client.GrantRequest {
	return client.GrantRequest{ID: id, Agent: "support", Tool: tool, Run: run, Terms: events.GrantTerms{Scope: events.ScopeRun}}
}

func second[T any](_ T, err error) error { return err }

func one[T any](v *T, err error) (int, error) {
	if err != nil || v == nil {
		return 0, err
	}
	return 1, nil
}

// TestAttack14_Ids pushes hostile ids through every entry of the client: each becomes one token or is refused with a reason,
// no connection is lost, and a run whose id, thread and grant they aim at stays as it is. The right ids find it.
func TestAttack14_Ids(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var logged bytes.Buffer
		out := &locked{w: &logged}
		w := New(t, Options{Log: slog.New(slog.NewTextHandler(out, nil)), Lease: 5 * time.Second})
		w.StartAll()
		conn := w.connect("client", nil)
		t.Cleanup(func() { _ = conn.Close() })
		bob := client.New(conn, client.Config{Principal: "bob", Wait: time.Second})
		t.Cleanup(bob.Close)
		run, err := bob.Start(t.Context(), client.Request{Agent: "support", Prompt: "p", RunID: "victim", ThreadID: "t", ResourceID: "u"})
		w.must(err)
		call := refundOf(run.ID)
		w.AwaitAsk(call, moment)
		_, err = bob.Grant(t.Context(), grantOf("g", "lookup_order", "victim"))
		w.must(err)
		w.pause(moment)
		chain := w.chainOf(call)
		subjects := w.listen()
		for _, id := range hostile {
			w.push(bob, id)
		}
		for _, id := range hostile {
			as := client.New(conn, client.Config{Principal: id, Wait: time.Second})
			for _, name := range []string{"start: thread", "cancel: run", "approve: id", "revoke: id"} {
				w.try("principal, "+name, id, func(ctx context.Context) error { return entries[name](ctx, as, "nobody") })
			}
			w.try("lag", id, func(ctx context.Context) error { return second(as.Lag(ctx)) })
			w.try("me", id, func(ctx context.Context) error { return second(as.Me(ctx)) })
			as.Close()
		}
		equal(t, "the victim", w.chainOf(call), chain)
		if n, err := lists["suspended: thread"](t.Context(), bob, "t"); n != 1 || err != nil {
			t.Errorf("%d asks of the victim's thread are listed, %v", n, err)
		}
		if g, err := bob.GrantInfo(t.Context(), "g"); err != nil || g.State != client.GrantActive {
			t.Errorf("the grant is %+v, %v", g, err)
		}
		for _, subject := range subjects() {
			if strings.ContainsAny(subject, "*> \t\r\n\x00") || len(subject) > 1024 || !utf8.ValidString(subject) {
				t.Errorf("published on %.200q", subject)
			} else if _, err := w.Conn().Namespace().ParseInbox(subject); err != nil && strings.HasPrefix(subject, ns+"in.") {
				t.Errorf("published on %.200q: %v", subject, err)
			}
		}
		select {
		case <-conn.Closed():
			t.Error("the connection is closed")
		default:
		}
		for _, word := range []string{"NATS connection", "panic", "tampering"} {
			if text := out.text(); strings.Contains(text, word) {
				_, after, _ := strings.Cut(text, word)
				t.Errorf("logged: %s%.300s", word, after)
			}
		}
		if _, err := bob.Decline(t.Context(), call.String(), "no", nil); err != nil {
			t.Errorf("the right id: %v", err)
		}
		if _, err := bob.Revoke(t.Context(), "g", "over"); err != nil {
			t.Errorf("the right grant: %v", err)
		}
		if end := w.AwaitEnd(run.ID, moment); end.Outcome != events.RunCompleted {
			t.Errorf("the victim ended as %s", end.Outcome)
		}
		for id, n := range w.Effects.All() {
			t.Errorf("%s ran %d times, though nobody has approved", id, n)
		}
		w.Check(false)
	})
}

// push sends an id through every entry, and looks for it in every list: what it finds is what was just made under it.
func (w *World) push(c *client.Client, id string) {
	w.T.Helper()
	for name, list := range lists {
		n, err := list(w.T.Context(), c, id)
		if n != 0 {
			w.T.Errorf("%s shows %d of %.40q before there is one", name, n, id)
		}
		w.explained(name, id, err)
	}
	for name, try := range entries {
		w.try(name, id, func(ctx context.Context) error { return try(ctx, c, id) })
	}
	w.pause(5 * time.Second)
	want := 1
	if !utf8.ValidString(id) || utf8.RuneCountInString(id) > longest {
		want = 0
	}
	page, err := c.Suspended(w.T.Context(), client.Filter{Resource: "other", Thread: id})
	if err != nil || page.Total != want || want == 1 && page.Runs[0].ThreadID != id {
		w.T.Errorf("thread %.40q has %+v (%v), want %d run", id, page, err, want)
	}
}

func (w *World) try(name, id string, f func(ctx context.Context) error) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), 3*time.Second)
	defer cancel()
	w.explained(name, id, f(ctx))
}

// explained demands of an error that it has a code and is no fault of ours.
func (w *World) explained(name, id string, err error) {
	w.T.Helper()
	switch code := events.CodeOf(err); {
	case err == nil, strings.Contains(fmt.Sprint(err), context.DeadlineExceeded.Error()):
	case code == "" || code == events.CodeInternal || code == events.CodeUnavailable:
		w.T.Errorf("%s with %.40q: %s %.300v", name, id, code, err)
	}
}

// listen hears every subject that is published on beneath the namespace.
func (w *World) listen() func() []string {
	w.T.Helper()
	seen := map[string]bool{}
	out := make(chan string, 1<<16)
	_, err := w.raw().Subscribe(ns+">", func(m *nats.Msg) { out <- m.Subject })
	w.must(err)
	return func() (all []string) {
		for {
			select {
			case s := <-out:
				if !seen[s] {
					seen[s] = true
					all = append(all, s)
				}
			default:
				if len(all) < 100 {
					w.T.Errorf("only %d subjects were heard", len(all))
				}
				return all
			}
		}
	}
}

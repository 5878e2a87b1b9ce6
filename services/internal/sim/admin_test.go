package sim

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/client"
)

// TestAdminByScope asks the gate for what people administer: only a principal with the scope is told, in weir dev everybody,
// and each under its own name.
func TestAdminByScope(t *testing.T) {
	inCase(t, func(t *testing.T) {
		key, err := jetstream.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		people := map[string]events.PrincipalDef{
			"root":       {ID: "root", Auth: events.AuthKey, Key: key.Public, Scopes: []string{events.MayAdmin}},
			"root@house": {ID: "root@house", Auth: events.AuthKey, Key: key.Public, Scopes: []string{events.MayAdmin, events.MayRead}},
			"alice":      {ID: "alice", Auth: events.AuthKey, Key: key.Public},
			"viewer":     {ID: "viewer", Auth: events.AuthKey, Key: key.Public, Scopes: []string{events.MayRead}},
		}
		a := payer(t, Options{People: people, Gate: func(c *approval.Config) { c.Dev = false }}, 1)
		a.StartAll()
		run := a.Request("go")
		call := a.call(run, 1, 1)
		a.AwaitAsk(call, moment)
		letter := events.DeliveryAbandoned{
			Service: approval.Name, Consumer: approval.Name, Subject: a.Conn().Namespace().InDecide("alice", call), Seq: 7, RunID: run,
			Attempts: 20, Reason: "poison", Payload: "canary",
		}
		for range 3 {
			letter.Seq++
			a.must(a.Conn().Bury(t.Context(), &events.Origin{Namespace: a.Conn().Namespace(), Service: approval.Name}, letter))
		}
		as := func(who string) *client.Client {
			return client.New(a.Conn(), client.Config{Principal: who, Key: &key, Wait: moment})
		}
		for _, who := range []string{"root", "root@house"} {
			lag, err := as(who).Lag(t.Context())
			if err != nil || lag.At.IsZero() || !slices.ContainsFunc(lag.Consumers, func(c events.ConsumerLag) bool {
				return c.Stream == events.StreamRuns && c.Consumer == "pool-default" && c.Outstanding == 0
			}) {
				t.Errorf("%s: lag %+v, %v", who, lag, err)
			}
			dead, err := as(who).Dead(t.Context(), events.DeadQuery{Limit: 2})
			if err != nil || len(dead.Letters) != 2 || dead.Letters[0].Seq != 8 || dead.Letters[0].Reason != "poison" {
				t.Fatalf("%s: dead %+v, %v", who, dead, err)
			}
			dead, err = as(who).Dead(t.Context(), events.DeadQuery{After: dead.Next})
			if err != nil || len(dead.Letters) != 1 || dead.Letters[0].Seq != 10 {
				t.Errorf("%s: the rest of the dead %+v, %v", who, dead, err)
			}
		}
		for _, who := range []string{"alice", "viewer", "nobody"} {
			if _, err := as(who).Lag(t.Context()); events.CodeOf(err) != events.CodeForbidden {
				t.Errorf("%s: lag: %v", who, err)
			}
		}
		for _, who := range []string{"viewer", "alice"} {
			if ask, why := a.ask(who, run, call.Token()); why != nil || ask.ToolCallID != call.String() {
				t.Errorf("%s looks at the call: %+v, %v", who, ask, why)
			}
		}
		if ask, why := a.ask("root", run, call.Token()); why == nil || why.Code != events.CodeForbidden {
			t.Errorf("who may only administer looks at the call: %+v, %v", ask, why)
		}
		ns := a.Conn().Namespace()
		for what, err := range map[string]error{
			"another verb":     a.Conn().AskFor(t.Context(), ns.AdminSubject("root", "purge"), nil, new(any)),
			"an unknown field": a.Conn().AskFor(t.Context(), ns.AdminSubject("root", events.AdminDead), map[string]int{"skip": 1}, new(any)),
			"a wrong limit":    a.Conn().AskFor(t.Context(), ns.AdminSubject("root", events.AdminDead), events.DeadQuery{Limit: 1001}, new(any)),
			"a wrong type":     a.Conn().AskFor(t.Context(), ns.AdminSubject("root", events.AdminLag), true, new(any)),
		} {
			if e, ok := errors.AsType[*events.Error](err); !ok || e.Code != events.CodeInvalidRequest {
				t.Errorf("%s: %v", what, err)
			}
		}
		// Who may only look, or only administer, decides nothing.
		for _, who := range []string{"viewer", "root"} {
			for _, byRequest := range []bool{false, true} {
				c := client.New(a.Conn(), client.Config{Principal: who, Key: &key, ByRequest: byRequest, Wait: moment})
				if out, err := c.Approve(t.Context(), call.String(), nil); events.CodeOf(err) != events.CodeForbidden {
					t.Errorf("%s decides: %+v, %v", who, out, err)
				}
				c.Close()
			}
		}
		equal(t, "the call", a.last(call), events.KindAsk)
		if out, err := as("alice").Approve(t.Context(), call.String(), nil); err != nil || out.State != events.DecisionReleased {
			t.Errorf("alice decides: %+v, %v", out, err)
		}
		a.AwaitEnd(run, moment)
	})
	t.Run("in weir dev", func(t *testing.T) {
		inCase(t, func(t *testing.T) {
			w := New(t, Options{People: map[string]events.PrincipalDef{
				"viewer": {ID: "viewer", Auth: events.AuthSubject, Scopes: []string{events.MayRead}},
			}})
			w.Start(approval.Name)
			w.pause(time.Second)
			if lag, err := client.New(w.Conn(), client.Config{Principal: "anybody"}).Lag(t.Context()); err != nil || len(lag.Consumers) < 6 {
				t.Errorf("lag %+v, %v", lag, err)
			}
			if _, err := client.New(w.Conn(), client.Config{Principal: "viewer"}).Lag(t.Context()); events.CodeOf(err) != events.CodeForbidden {
				t.Errorf("who may only look is told of lag: %v", err)
			}
		})
	})
}

package approval_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/sim"
)

// scoped are principals of weir dev, each with scopes.
func scoped(scopes map[string][]string) map[string]events.PrincipalDef {
	people := map[string]events.PrincipalDef{}
	for who, has := range scopes {
		people[who] = events.PrincipalDef{ID: who, Auth: events.AuthSubject, Scopes: has}
	}
	return people
}

// rescope writes down other scopes of a principal and waits until everybody knows.
func rescope(w *sim.World, who string, scopes ...string) {
	w.T.Helper()
	def, err := events.Marshal(scoped(map[string][]string{who: scopes})[who])
	must(w, err)
	must(w, w.Conn().PutNamed(w.T.Context(), events.RegistryPrincipal, who, def))
	time.Sleep(2 * time.Second) // fake
}

// TestB8_23_B8_22_VoterLosesScope takes the scope decide from a voter before there are votes enough: the vote does not count
// any more, and nobody without the scope votes.
func TestB8_23_B8_22_VoterLosesScope(t *testing.T) {
	people := scoped(map[string][]string{"alice": {events.MayDecide}, "bob": nil, "carol": {events.MayRead, events.MayDecide}, "viewer": {events.MayRead}})
	in(t, ruled(sim.Options{People: people}, events.Rule{Quorum: 2}), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		sendAs(w, "alice", approvalOf(ask))
		voteOf(w, call, "alice")
		rescope(w, "alice", events.MayRead)
		sendAs(w, "bob", approvalOf(ask))
		voteOf(w, call, "bob")
		d := sendAs(w, "viewer", approvalOf(ask))
		if r := refusedOf(w, call, d.Event.ID); r.Code != events.CodeForbidden {
			w.T.Errorf("the viewer is refused with %+v", r.Error)
		}
		completes(w, ask, "carol", "bob carol")
	})
}

func refusedOf(w *sim.World, call events.CallID, id string) events.DecisionRefused {
	w.T.Helper()
	r, err := events.Data[events.DecisionRefused](w.Await(w.Conn().Namespace().Beside(call, events.KindRefused, id), soon))
	must(w, err)
	return r
}

// TestB8_27_B8_28_ScopesOfGrants lets those grant who may decide, as long as they may, and those revoke who may do more than
// look.
func TestB8_27_B8_28_ScopesOfGrants(t *testing.T) {
	options := granting(func(o *sim.Options) {
		o.People = scoped(map[string][]string{
			"alice": {events.MayDecide}, "viewer": {events.MayRead, events.MayAudit}, "root": {events.MayAdmin},
		})
	})
	in(t, options, func(w *sim.World) {
		w.StartAll()
		viewer, root := notes(w, "viewer"), notes(w, "root")
		request := grantRequest("g1", events.ScopeThread, "t1", 5)
		for what, e := range map[string]events.Error{
			"a grant of who looks":       viewer(post(w, "viewer", "g1", request).Event.ID),
			"a grant of who administers": root(post(w, "root", "g1", request).Event.ID),
		} {
			if e.Code != events.CodeForbidden {
				w.T.Errorf("%s: refused with %+v", what, e)
			}
		}
		give(w, request)
		if e := viewer(post(w, "viewer", "g1", events.GrantRevoked{ID: "g1"}).Event.ID); e.Code != events.CodeForbidden {
			w.T.Errorf("who looks revokes: %+v", e)
		}
		notAsked(w, inThread(w, "r1", "t1"), "g1")
		rescope(w, "alice", events.MayRead)
		w.AwaitAsk(inThread(w, "r2", "t1"), soon)
		rescope(w, "alice", events.MayDecide)
		notAsked(w, inThread(w, "r3", "t1"), "g1")
		post(w, "root", "g1", events.GrantRevoked{ID: "g1"})
		awaitGrant(w, "g1", func(g events.Grant) bool { return g.Revoked != nil && g.Revoked.By == "root" })
		w.AwaitAsk(inThread(w, "r4", "t1"), soon)
	})
}

// TestScopesOfRuns starts runs for those alone who may start, and cancels them for those who may do more than look.
func TestScopesOfRuns(t *testing.T) {
	people := scoped(map[string][]string{
		"bob": nil, "viewer": {events.MayRead}, "decider": {events.MayDecide}, "starter@house": {events.MayStart}, "nothing": {},
	})
	people["nothing"] = events.PrincipalDef{ID: "nothing", Auth: events.AuthSubject, Scopes: []string{"everything"}} // of another release
	in(t, ruled(sim.Options{People: people}, events.Rule{}), func(w *sim.World) {
		w.StartAll()
		start := func(who, run string) {
			w.RequestAs(who, events.RunRequested{
				AgentID: "support", RunID: run, Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			})
		}
		refused := func(who string, told func() []events.Event) {
			w.T.Helper()
			time.Sleep(time.Second) // fake
			all := told()
			if len(all) == 0 {
				w.T.Fatalf("%s is told nothing", who)
			}
			d, err := events.Data[events.RunRefused](all[len(all)-1])
			if err != nil || d.Code != events.CodeForbidden {
				w.T.Errorf("%s is told %+v, %v", who, d, err)
			}
		}
		for _, who := range []string{"viewer", "decider", "nothing"} {
			told := notesOf(w, who)
			start(who, "of-"+who)
			refused(who, told)
			if _, err := w.Conn().Fact(w.T.Context(), w.Conn().Namespace().Start("of-"+who)); !errors.Is(err, jetstream.ErrNotFound) {
				w.T.Errorf("%s has started a run: %v", who, err)
			}
		}
		start("starter@house", "r1")
		call := refundOf("r1")
		w.AwaitAsk(call, soon)
		for _, who := range []string{"viewer", "nothing"} {
			told := notesOf(w, who)
			w.Cancel(who, "r1")
			refused(who, told)
		}
		if last := headOf(w, call); last.Place.Kind != events.KindAsk {
			w.T.Errorf("the call stands at %s", last.Place.Kind)
		}
		w.Cancel("decider", "r1")
		if end := w.AwaitEnd("r1", soon); end.Outcome != events.RunCancelled {
			w.T.Errorf("the end: %+v", end)
		}
		start("bob", "r2")
		w.AwaitAsk(refundOf("r2"), soon)
	})
}

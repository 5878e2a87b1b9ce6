package approval_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// grantable is a world whose only tool needs approval; its model calls it once in every run.
func grantable() sim.Options {
	return sim.Options{Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})}}
}

func granting(f func(*sim.Options)) func(*testing.T) sim.Options {
	return func(*testing.T) sim.Options {
		o := grantable()
		if f != nil {
			f(&o)
		}
		return o
	}
}

// inThread starts a run in a thread of bob's.
func inThread(w *sim.World, run, thread string) events.CallID {
	w.T.Helper()
	w.RequestAs("bob", events.RunRequested{
		AgentID: "support", RunID: run, ThreadID: thread, ResourceID: "bob",
		Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
	})
	return refundOf(run)
}

func terms(scope string, uses int) *events.GrantTerms {
	return &events.GrantTerms{Scope: scope, Uses: uses}
}

// withGrant approves a call as alice, and those like it.
func withGrant(w *sim.World, call events.CallID, t *events.GrantTerms) {
	w.T.Helper()
	w.AwaitAsk(call, soon)
	d := decision(events.Approve, call)
	d.Grant = t
	w.Decide("alice", d)
	w.AwaitEnd(call.Run, soon)
}

// standing is the only grant of the bucket.
func standing(w *sim.World) jetstream.StoredGrant {
	w.T.Helper()
	all, err := w.Conn().Grants(w.T.Context(), events.GrantFilter{})
	must(w, err)
	if len(all) != 1 {
		w.T.Fatalf("the bucket holds %d grants, want one", len(all))
	}
	return all[0]
}

// goOf is the release of the only tool's call.
func goOf(w *sim.World, call events.CallID) events.CallReleased {
	w.T.Helper()
	d, err := events.Data[events.CallReleased](w.Await(w.Conn().Namespace().Go(call, events.DefaultPool, "pay"), soon))
	must(w, err)
	return d
}

// notAsked takes a run to its end without a decision, by a grant.
func notAsked(w *sim.World, call events.CallID, grant string) {
	w.T.Helper()
	if end := w.AwaitEnd(call.Run, soon); end.Outcome != events.RunCompleted {
		w.T.Errorf("run %s ended as %s", call.Run, end.Outcome)
	}
	if by := goOf(w, call).AllowedBy; by.Grant != grant || by.Rules == "" || by.Rule == "" {
		w.T.Errorf("call %s was released by %+v, want grant %s", call, by, grant)
	}
	d, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(call, events.KindResult), soon))
	if err != nil || d.GrantID != grant || d.Outcome != events.OutcomeOK {
		w.T.Errorf("the result of %s: %s by grant %q, %v", call, d.Outcome, d.GrantID, err)
	}
}

// asked demands that a call waits for people, and declines it.
func asked(w *sim.World, call events.CallID) {
	w.T.Helper()
	ask := w.AwaitAsk(call, soon)
	d := decision(events.Decline, call)
	d.Fingerprint = ask.Fingerprint
	w.Decide("alice", d)
	w.AwaitEnd(call.Run, soon)
}

func grantRequest(id, scope, of string, uses int) events.GrantRequested {
	r := events.GrantRequested{ID: id, AgentID: "support", ToolID: "pay", Terms: *terms(scope, uses), Reason: "sale day"}
	if scope == events.ScopeRun {
		r.RunID = of
	} else {
		r.ThreadID, r.ResourceID = of, "bob"
	}
	return r
}

// post sends a request that is about a grant.
func post(w *sim.World, principal, id string, data any) jetstream.Delivery {
	w.T.Helper()
	return w.Posted(w.Conn().Namespace().InGrant(principal, id), "", principal, data)
}

// give asks for a grant as alice and waits until it stands.
func give(w *sim.World, r events.GrantRequested) {
	w.T.Helper()
	post(w, "alice", r.ID, r)
	awaitGrant(w, r.ID, func(events.Grant) bool { return true })
}

func awaitGrant(w *sim.World, id string, f func(events.Grant) bool) events.Grant {
	w.T.Helper()
	for range 600 {
		found, err := w.Conn().Grants(w.T.Context(), events.GrantFilter{ID: id})
		must(w, err)
		if len(found) == 1 && f(found[0].Grant) {
			return found[0].Grant
		}
		time.Sleep(100 * time.Millisecond) // fake
	}
	w.T.Fatalf("grant %s is not as it should be", id)
	return events.Grant{}
}

// notes hears what principals are told of grants.
func notes(w *sim.World, principal string) func(eventID string) events.Error {
	w.T.Helper()
	told := make(chan events.GrantRefused, 64)
	stop, err := w.Conn().Notes(w.T.Context(), principal, func(e events.Event) {
		if d, err := events.Data[events.GrantRefused](e); err == nil && e.Type == events.TypeOf[events.GrantRefused]() {
			told <- d
		}
	})
	must(w, err)
	w.T.Cleanup(stop)
	return func(eventID string) events.Error {
		w.T.Helper()
		for limit := time.After(soon); ; {
			select {
			case d := <-told:
				if d.EventID == eventID {
					return d.Error
				}
			case <-limit:
				w.T.Fatalf("the sender of %s is not told", eventID)
			}
		}
	}
}

// TestB8_27_GrantComesWithAnApproval approves a call for a thread and two uses: the grant's terms are complete and signed
// in the answer, two more calls are released by it, each names it, and the next one is asked about.
func TestB8_27_GrantComesWithAnApproval(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.StartAll()
		first := inThread(w, "r1", "t1")
		w.AwaitAsk(first, soon)
		d := decision(events.Approve, first)
		d.Grant, d.Reason = &events.GrantTerms{Scope: events.ScopeThread, Uses: 2, When: `args.orderId == "42"`}, "known customer"
		w.Decide("alice", d)
		w.AwaitEnd("r1", soon)
		fact := w.Await(w.Conn().Namespace().Call(first, events.KindAnswer), soon)
		must(w, w.GateKeys().VerifyFact(fact))
		answer, err := events.Data[events.CallAnswered](fact)
		must(w, err)
		want := events.GrantTerms{Scope: events.ScopeThread, For: events.Duration(time.Hour), Uses: 2, When: `args.orderId == "42"`}
		if answer.Grant == nil || *answer.Grant != want {
			w.T.Errorf("the answer has the terms %+v, want %+v", answer.Grant, want)
		}
		g := standing(w)
		must(w, g.Genuine(w.GateKeys()))
		if g.ID != fact.ID || g.GrantedBy != "alice" || g.ThreadID != "t1" || g.ResourceID != "bob" || g.RunID != "" ||
			g.ToolCallID != first.String() || g.Reason != "known customer" || !g.ExpiresAt.Equal(answer.At.Add(time.Hour)) {
			w.T.Errorf("grant = %+v", g.Grant)
		}
		notAsked(w, inThread(w, "r2", "t1"), g.ID)
		notAsked(w, inThread(w, "r3", "t1"), g.ID)
		asked(w, inThread(w, "r4", "t1"))
		if by := goOf(w, first).AllowedBy; by.Grant != "" || by.Answer != fact.Seq {
			w.T.Errorf("the call that was approved is released by %+v", by)
		}
		use, err := events.Data[events.GrantUsed](w.Await(w.Conn().Namespace().GrantUse(g.ID, refundOf("r3")), soon))
		must(w, err)
		if use.Number != 2 || !use.Grant.Same(g.Grant) || use.Grant.Reason != "known customer" {
			w.T.Errorf("the record of the second use: %+v", use)
		}
		if r := w.Check(true); r["go:grant"] != 2 || r["use"] != 2 {
			w.T.Errorf("the log holds %d releases by grants and %d uses", r["go:grant"], r["use"])
		}
	})
}

// TestB8_27_RefusedTerms sends approvals whose grants cannot be: each is refused as it is, and the call stays held.
func TestB8_27_RefusedTerms(t *testing.T) {
	never := false
	rules := func(o *sim.Options) {
		o.Tools = append(o.Tools, tool("quorum", done, agent.ToolOptions{}), tool("strict", done, agent.ToolOptions{}), tool("unsure", done, agent.ToolOptions{}))
		o.Rules = map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{
			{Name: "strict", Tools: []string{"strict"}, Action: events.RuleAsk, Grants: &never},
			{Name: "quorum", Tools: []string{"quorum"}, Action: events.RuleAsk, Quorum: 2},
			{Name: "unsure", Tools: []string{"unsure"}, When: "args.nothing > 1", Action: events.RuleBlock},
		}}}
	}
	in(t, granting(rules), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := func(i int) events.CallID { return events.CallID{Run: run, Step: 1, Index: i} } // pay, quorum, strict, unsure
		prints := map[events.CallID]string{}
		for i := 1; i <= 4; i++ {
			prints[call(i)] = w.AwaitAsk(call(i), soon).Fingerprint
		}
		good := events.GrantTerms{Scope: events.ScopeRun}
		with := func(f func(*events.GrantTerms)) *events.GrantTerms { t := good; f(&t); return &t }
		for name, c := range map[string]struct {
			call     events.CallID
			decision events.Decision
			terms    *events.GrantTerms
			field    string
		}{
			"thread of none": {call(1), events.Approve, with(func(t *events.GrantTerms) { t.Scope = events.ScopeThread }), "grant.scope"},
			"too long":       {call(1), events.Approve, with(func(t *events.GrantTerms) { t.For = events.Duration(721 * time.Hour) }), "grant.for"},
			"no time":        {call(1), events.Approve, with(func(t *events.GrantTerms) { t.For = events.Duration(-time.Hour) }), "grant.for"},
			"too many":       {call(1), events.Approve, with(func(t *events.GrantTerms) { t.Uses = 1001 }), "grant.uses"},
			"no expression":  {call(1), events.Approve, with(func(t *events.GrantTerms) { t.When = "args.amount <" }), "grant.when"},
			"not of args":    {call(1), events.Approve, with(func(t *events.GrantTerms) { t.When = `run.id != ""` }), "grant.when"},
			"with a decline": {call(1), events.Decline, &good, "grant"},
			"quorum":         {call(2), events.Approve, &good, "grant"},
			"rule says no":   {call(3), events.Approve, &good, "grant"},
			"rule fails":     {call(4), events.Approve, &good, "grant"},
		} {
			d := decision(c.decision, c.call)
			d.Grant, d.Fingerprint = c.terms, prints[c.call]
			sent := w.Posted(w.Conn().Namespace().InDecide("alice", c.call), run, "alice", d)
			if r := refusal(w, c.call, sent.Event.ID); r.Code != events.CodeInvalidRequest || len(r.Issues) != 1 || r.Issues[0].Field != c.field {
				w.T.Errorf("%s: refused with %+v", name, r.Error)
			}
			if last, err := w.Conn().Last(w.T.Context(), w.Conn().Namespace().Call(c.call, events.KindAsk).Chain()); err != nil || last.Place.Kind != events.KindAsk {
				w.T.Errorf("%s: the call is at %s, %v", name, last.Place.Kind, err)
			}
		}
		if all, err := w.Conn().Grants(w.T.Context(), events.GrantFilter{}); err != nil || len(all) != 0 {
			w.T.Errorf("the bucket holds %d grants, %v", len(all), err)
		}
	})
}

// TestB8_27_GrantOfARun gives a grant for a run whose model calls the tool in each of three turns: the second and the third
// call are released, and a call of another run is not.
func TestB8_27_GrantOfARun(t *testing.T) {
	options := func(t *testing.T) sim.Options {
		o := grantable()
		pay := agenttest.Ask("pay", `{"orderId":"42"}`)
		o.Model = agenttest.NewModel(t, pay, pay, pay, agenttest.Say("done"), pay, agenttest.Say("done"))
		return o
	}
	in(t, options, func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		w.AwaitAsk(refundOf(run), soon)
		d := decision(events.Approve, refundOf(run))
		d.Grant = terms(events.ScopeRun, 5)
		w.Decide("alice", d)
		w.AwaitEnd(run, soon)
		g := standing(w)
		if g.RunID != run || g.ThreadID != "" {
			w.T.Errorf("grant = %+v", g.Grant)
		}
		for step := 2; step <= 3; step++ {
			notAsked(w, events.CallID{Run: run, Step: step, Index: 1}, g.ID)
		}
		asked(w, refundOf(w.Request("go")))
		w.Check(true)
	})
}

// TestB8_28_GrantEnds lets the time of a grant pass: calls are asked about again, and the bucket forgets the grant.
func TestB8_28_GrantEnds(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.StartAll()
		withGrant(w, inThread(w, "r1", "t1"), &events.GrantTerms{Scope: events.ScopeThread, For: events.Duration(2 * time.Minute)})
		g := standing(w)
		notAsked(w, inThread(w, "r2", "t1"), g.ID)
		time.Sleep(time.Until(g.ExpiresAt) + time.Second) // fake
		asked(w, inThread(w, "r3", "t1"))
		time.Sleep(5 * time.Minute) // fake
		if all, err := w.Conn().Grants(w.T.Context(), events.GrantFilter{}); err != nil || len(all) != 0 {
			w.T.Errorf("after its end the bucket still holds %d grants, %v", len(all), err)
		}
		w.Check(true)
	})
}

// TestB8_28_RevokedIsRevoked revokes a grant: the next call is asked about, also after the gate that stored the answer with
// the grant comes late with what follows from it.
func TestB8_28_RevokedIsRevoked(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.Start(planner.Name)
		w.Start(toolexecutor.Name)
		handle := handler(approval.HandleFact)(w, w.Dial("gate", nil))
		call := inThread(w, "r1", "t1")
		must(w, handle(w.T.Context(), w.Delivered(w.Conn().Namespace().Step("r1", 1))))
		d := decision(events.Approve, call)
		d.Grant = terms(events.ScopeThread, 5)
		sent := w.Posted(w.Conn().Namespace().InDecide("alice", call), "r1", "alice", d)
		cut := func(e events.Event) error {
			if e.Place.Kind == events.KindGo {
				return errors.New("killed")
			}
			return nil
		}
		if err := handler(approval.HandleRequest)(w, w.Dial("killed", cut))(w.T.Context(), sent); err == nil {
			w.T.Fatal("the gate was not stopped before the release")
		}
		g := standing(w)
		request := handler(approval.HandleRequest)(w, w.Dial("gate", nil))
		must(w, request(w.T.Context(), post(w, "carol", g.ID, events.GrantRevoked{ID: g.ID, Reason: "enough"})))
		sent.Attempt = 2
		must(w, request(w.T.Context(), sent))
		if d := result(w, "r1", 1); d.Outcome != events.OutcomeOK {
			w.T.Errorf("the approved call ended as %s", d.Outcome)
		}
		now := standing(w)
		if now.Revoked == nil || now.Revoked.By != "carol" || now.Revoked.Reason != "enough" || !now.Same(g.Grant) {
			w.T.Errorf("grant = %+v, revoked %+v", now.Grant, now.Revoked)
		}
		must(w, now.Genuine(w.GateKeys()))
		w.Start(approval.Name)
		asked(w, inThread(w, "r2", "t1"))
		w.Check(true)
	})
}

// TestB8_28_LastUseIsSpentOnce lets two gates find the last use of a grant at once, for two calls: one is released, and
// people are asked about the other.
func TestB8_28_LastUseIsSpentOnce(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.Start(planner.Name)
		gate := w.Start(approval.Name)
		give(w, grantRequest("g1", events.ScopeThread, "t1", 1))
		must(w, gate.Stop())
		slow := func(e events.Event) error {
			if e.Place.Kind == events.KindUse {
				time.Sleep(time.Second) // fake
			}
			return nil
		}
		errs := make(chan error, 2)
		for _, run := range []string{"r1", "r2"} {
			inThread(w, run, "t1")
			d := w.Delivered(w.Conn().Namespace().Step(run, 1))
			handle := handler(approval.HandleFact)(w, w.Dial(run, slow))
			go func() { errs <- handle(w.T.Context(), d) }()
		}
		must(w, errors.Join(<-errs, <-errs))
		kinds := map[events.Kind]int{}
		for _, run := range []string{"r1", "r2"} {
			last, err := w.Conn().Last(w.T.Context(), w.Conn().Namespace().Call(refundOf(run), events.KindAsk).Chain())
			must(w, err)
			kinds[last.Place.Kind]++
		}
		if kinds[events.KindGo] != 1 || kinds[events.KindAsk] != 1 {
			w.T.Errorf("the calls are at %v, want one release and one ask", kinds)
		}
		w.Check(false)
	})
}

// TestB8_28_OneUseForOneCall stops a gate between a use and the release that it is for: whoever goes on spends no second
// one. Two gates that handle the same step spend one, too, and a step that comes again when its call waits spends none.
func TestB8_28_OneUseForOneCall(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.Start(planner.Name)
		gate := w.Start(approval.Name)
		inThread(w, "r0", "t1")
		w.AwaitAsk(refundOf("r0"), soon)
		give(w, grantRequest("g1", events.ScopeThread, "t1", 9))
		must(w, gate.Stop())
		uses := func() int {
			subjects, err := w.Conn().Subjects(w.T.Context(), w.Conn().Namespace().UsesOf("g1"))
			must(w, err)
			return len(subjects)
		}
		plain := handler(approval.HandleFact)(w, w.Dial("plain", nil))
		d := w.Delivered(w.Conn().Namespace().Step("r0", 1))
		d.Attempt = 2
		must(w, plain(w.T.Context(), d))
		if n := uses(); n != 0 {
			w.T.Errorf("a step that came again has spent %d uses on a call that waits", n)
		}
		inThread(w, "r1", "t1")
		d = w.Delivered(w.Conn().Namespace().Step("r1", 1))
		cut := func(e events.Event) error {
			if e.Place.Kind == events.KindGo {
				return errors.New("killed")
			}
			return nil
		}
		if err := handler(approval.HandleFact)(w, w.Dial("killed", cut))(w.T.Context(), d); err == nil {
			w.T.Fatal("the gate was not stopped before the release")
		}
		if n := uses(); n != 1 {
			w.T.Fatalf("%d uses are stored before the release, want 1", n)
		}
		slow := func(events.Event) error { time.Sleep(time.Second); return nil } // fake
		errs := make(chan error, 2)
		for range 2 {
			d.Attempt++
			handle, again := handler(approval.HandleFact)(w, w.Dial("beside", slow)), d
			go func() { errs <- handle(w.T.Context(), again) }()
		}
		must(w, errors.Join(<-errs, <-errs))
		if by := goOf(w, refundOf("r1")).AllowedBy; by.Grant != "g1" || uses() != 1 {
			w.T.Errorf("released by %+v, %d uses", by, uses())
		}
		w.Check(false)
	})
}

// TestB8_28_GrantIsAskedFor gives a grant without a decision, by all rules of the inbox, and takes it back: every principal
// may, by name or by program.
func TestB8_28_GrantIsAskedFor(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.StartAll()
		give(w, grantRequest("sale day", events.ScopeThread, "t1", 0))
		g := standing(w)
		if g.ID != "sale day" || g.Terms.Uses != events.DefaultGrantUses || g.GrantedBy != "alice" || g.AuthType != events.AuthSubject {
			w.T.Errorf("grant = %+v", g.Grant)
		}
		notAsked(w, inThread(w, "r1", "t1"), "sale day")
		post(w, "carol", "sale day", events.GrantRevoked{ID: "sale day"})
		awaitGrant(w, "sale day", func(g events.Grant) bool { return g.Revoked != nil && g.Revoked.By == "carol" })
		asked(w, inThread(w, "r2", "t1"))
		w.Check(true)
	})
}

// TestB8_28_RefusedRequests sends what cannot be a grant, and what is none: each sender is told why, and nothing is
// stored. Malformed ones stop nobody.
func TestB8_28_RefusedRequests(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.StartAll()
		told := notes(w, "alice")
		give(w, grantRequest("g1", events.ScopeThread, "t1", 3))
		change := func(id string, f func(*events.GrantRequested)) events.GrantRequested {
			r := grantRequest(id, events.ScopeThread, "t1", 3)
			f(&r)
			return r
		}
		for name, c := range map[string]struct {
			id   string
			data any
			code events.Code
		}{
			"other terms": {"g1", change("g1", func(r *events.GrantRequested) { r.Terms.Uses = 4 }), events.CodeAlreadyDecided},
			"other tool": {"g1", change("g1", func(r *events.GrantRequested) {
				r.ToolID, r.Terms.Scope = "pay", events.ScopeRun
				r.RunID, r.ThreadID, r.ResourceID = "r", "", ""
			}), events.CodeAlreadyDecided},
			"other id":          {"g2", grantRequest("g3", events.ScopeThread, "t1", 3), events.CodeInvalidRequest},
			"no agent":          {"g2", change("g2", func(r *events.GrantRequested) { r.AgentID = "nobody" }), events.CodeNotFound},
			"no tool":           {"g2", change("g2", func(r *events.GrantRequested) { r.ToolID = "payy" }), events.CodeNotFound},
			"no thread":         {"g2", change("g2", func(r *events.GrantRequested) { r.ThreadID = "" }), events.CodeInvalidRequest},
			"thread and run":    {"g2", change("g2", func(r *events.GrantRequested) { r.RunID = "r1" }), events.CodeInvalidRequest},
			"no run":            {"g2", grantRequest("g2", events.ScopeRun, "", 3), events.CodeInvalidRequest},
			"no run's id":       {"g2", grantRequest("g2", events.ScopeRun, "a.b", 3), events.CodeInvalidRequest},
			"run with resource": {"g2", change("g2", func(r *events.GrantRequested) { r.Terms.Scope, r.RunID, r.ThreadID = events.ScopeRun, "r1", "" }), events.CodeInvalidRequest},
			"no expression":     {"g2", change("g2", func(r *events.GrantRequested) { r.Terms.When = "1 +" }), events.CodeInvalidRequest},
			"too long":          {"g2", change("g2", func(r *events.GrantRequested) { r.Terms.For = events.Duration(1000 * time.Hour) }), events.CodeInvalidRequest},
			"revoke of none":    {"g9", events.GrantRevoked{ID: "g9"}, events.CodeNotFound},
			"another event":     {"g2", decision(events.Approve, refundOf("r1")), events.CodeInvalidRequest},
		} {
			sent := post(w, "alice", c.id, c.data)
			if e := told(sent.Event.ID); e.Code != c.code {
				w.T.Errorf("%s: refused with %+v, want %s", name, e, c.code)
			}
		}
		for i, body := range []string{"", "{}", `{"specversion":"1.0","id":"x2","type":"dev.weirkeeper.grant.requested.v1","source":"x","data":{"id":"g2"}}`} {
			jetstreamtest.Slip(w.T.(*testing.T), w.Server, w.Conn().Namespace().InGrant("alice", "g2"),
				map[string][]string{"content-type": {"application/cloudevents+json"}}, body)
			if i == 2 {
				if e := told("x2"); e.Code != events.CodeInvalidRequest {
					w.T.Errorf("%s is refused with %+v", body, e)
				}
			}
		}
		give(w, grantRequest("g1", events.ScopeThread, "t1", 3)) // the same again is no news
		post(w, "alice", "g1", events.GrantRevoked{ID: "g1"})
		awaitGrant(w, "g1", func(g events.Grant) bool { return g.Revoked != nil })
		sent := post(w, "alice", "g1", grantRequest("g1", events.ScopeThread, "t1", 3))
		if e := told(sent.Event.ID); e.Code != events.CodeAlreadyDecided {
			w.T.Errorf("a revoked grant that is asked for again: %+v", e)
		}
		if g := standing(w); g.Revoked == nil {
			w.T.Error("the grant is back")
		}
		asked(w, inThread(w, "r1", "t1"))
	})
}

// TestB8_28_WhoMayAskAndRevoke proves senders as those of decisions: a name in a body, or a signature of another key,
// proves nothing.
func TestB8_28_WhoMayAskAndRevoke(t *testing.T) {
	alice, mallory := key(t), key(t)
	options := granting(func(o *sim.Options) {
		o.Gate = func(c *approval.Config) { c.Dev = false }
		o.People = map[string]events.PrincipalDef{
			"alice": {ID: "alice", Auth: events.AuthKey, Key: alice.Public, Groups: []string{"finance"}},
			"carol": {ID: "carol", Auth: events.AuthSubject},
		}
	})
	in(t, options, func(w *sim.World) {
		w.StartAll()
		told := map[string]func(string) events.Error{}
		for _, p := range []string{"alice", "carol", "dave"} {
			told[p] = notes(w, p)
		}
		send := func(p, id string, data any, k *events.Key) jetstream.Delivery { return signedPost(w, p, id, data, k) }
		request := grantRequest("g1", events.ScopeThread, "t1", 5)
		for name, c := range map[string]struct {
			principal string
			key       *events.Key
			code      events.Code
		}{
			"not signed":  {"alice", nil, events.CodeUnauthenticated},
			"another key": {"alice", &mallory, events.CodeUnauthenticated},
			"not in dev":  {"carol", nil, events.CodeUnauthenticated},
			"unknown":     {"dave", &mallory, events.CodeForbidden},
		} {
			for _, data := range []any{request, events.GrantRevoked{ID: "g1"}} {
				if e := told[c.principal](send(c.principal, "g1", data, c.key).Event.ID); e.Code != c.code {
					w.T.Errorf("%s, %T: refused with %+v, want %s", name, data, e, c.code)
				}
			}
		}
		send("alice", "g1", request, &alice)
		g := awaitGrant(w, "g1", func(events.Grant) bool { return true })
		if g.AuthType != events.AuthKey || g.Signed == nil || g.Signed.Key != alice.Public || !slices.Equal(g.Groups, []string{"finance"}) {
			w.T.Errorf("grant = %+v", g)
		}
		notAsked(w, inThread(w, "r1", "t1"), "g1")
		must(w, w.Conn().DeleteNamed(w.T.Context(), events.RegistryPrincipal, "alice")) // she has left
		time.Sleep(2 * time.Second)                                                     // fake
		w.AwaitAsk(inThread(w, "r2", "t1"), soon)
	})
}

func key(t *testing.T) events.Key {
	t.Helper()
	k, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// signedPost sends a request about a grant with a signature.
func signedPost(w *sim.World, principal, id string, data any, k *events.Key) jetstream.Delivery {
	w.T.Helper()
	subject := w.Conn().Namespace().InGrant(principal, id)
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}
	e, err := o.RequestBy(subject, "", principal, data)
	must(w, err)
	if k != nil {
		e.Signature = events.Sign(*k, events.DomainDecision, subject, e.Payload)
	}
	e.Seq, err = w.Conn().Publish(w.T.Context(), subject, e)
	must(w, err)
	return jetstream.Delivery{Event: e, Subject: subject, Attempt: 1}
}

// TestB7_15_GrantAnswersNoAskOfTheRules has a grant for a tool that rules hold in every way: it releases what its grantor may
// approve, and nothing that a rule blocks, wants a person for, or leaves to others.
func TestB7_15_GrantAnswersNoAskOfTheRules(t *testing.T) {
	never := false
	for name, c := range map[string]struct {
		rule events.Rule
		want events.Kind
	}{
		"ask":           {events.Rule{Action: events.RuleAsk, Approvers: []string{"user:alice"}}, events.KindGo},
		"group":         {events.Rule{Action: events.RuleAsk, Approvers: []string{"group:finance"}}, events.KindGo},
		"not requester": {events.Rule{Action: events.RuleAsk, NotRequester: true}, events.KindGo},
		"block":         {events.Rule{Action: events.RuleBlock}, events.KindResult},
		"no grants":     {events.Rule{Action: events.RuleAsk, Grants: &never}, events.KindAsk},
		"quorum":        {events.Rule{Action: events.RuleAsk, Quorum: 2}, events.KindAsk},
		"others":        {events.Rule{Action: events.RuleAsk, Approvers: []string{"user:carol"}}, events.KindAsk},
		"other group":   {events.Rule{Action: events.RuleAsk, Approvers: []string{"group:board"}}, events.KindAsk},
		"later":         {events.Rule{Action: events.RuleAsk, Approvers: []string{"user:carol"}, Escalate: []events.Escalate{{After: 1, To: []string{"user:alice"}}}}, events.KindAsk},
		"signed":        {events.Rule{Action: events.RuleAsk, Signed: true}, events.KindAsk},
		"no approval":   {events.Rule{Action: events.RuleAsk, Decisions: []events.Decision{events.Respond}}, events.KindAsk},
		"fails":         {events.Rule{Action: events.RuleBlock, When: "args.missing"}, events.KindAsk},
	} {
		t.Run(name, func(t *testing.T) {
			c.rule.Name = "held"
			in(t, granting(func(o *sim.Options) {
				o.People = map[string]events.PrincipalDef{"alice": {ID: "alice", Auth: events.AuthSubject, Groups: []string{"finance"}}}
				o.Rules = map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{c.rule}}}
			}), func(w *sim.World) {
				w.Start(planner.Name)
				w.Start(approval.Name)
				give(w, grantRequest("g1", events.ScopeThread, "t1", 9))
				call := inThread(w, "r1", "t1")
				p := place(w, "r1", 1, c.want)
				if c.want == events.KindGo {
					p = w.Conn().Namespace().Go(call, events.DefaultPool, "pay")
				}
				w.Await(p, soon)
				w.Check(false)
			})
		})
	}
}

// TestB7_15_RequesterGrantsNothingToHimself gives a grant as the one who asked for the run, where a rule wants another.
func TestB7_15_RequesterGrantsNothingToHimself(t *testing.T) {
	in(t, granting(func(o *sim.Options) {
		o.Rules = map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{{Name: "other", Action: events.RuleAsk, NotRequester: true}}}}
	}), func(w *sim.World) {
		w.StartAll()
		post(w, "bob", "g1", grantRequest("g1", events.ScopeThread, "t1", 9))
		awaitGrant(w, "g1", func(events.Grant) bool { return true })
		asked(w, inThread(w, "r1", "t1"))
		w.Check(true)
	})
}

// TestB8_27_EditIsReleasedByAGrant edits a held call so that a condition holds for it: the edited call needs no second
// decision.
func TestB8_27_EditIsReleasedByAGrant(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.StartAll()
		r := grantRequest("g1", events.ScopeThread, "t1", 9)
		r.Terms.When = `args.orderId == "7"`
		give(w, r)
		call := inThread(w, "r1", "t1")
		d := decision(events.Edit, call)
		d.Args, d.Fingerprint = json.RawMessage(`{"orderId":"7"}`), w.AwaitAsk(call, soon).Fingerprint
		w.Decide("alice", d)
		if d := result(w, "r1", 1); d.GrantID != "g1" || d.Round != 1 || string(d.Args) != `{"orderId":"7"}` {
			w.T.Errorf("result = %+v", d)
		}
		w.AwaitEnd("r1", soon)
		w.Check(true)
	})
}

// TestB8_28_EarliestEndIsUsedFirst has several grants for a call: the one that ends first is used, until it is spent.
func TestB8_28_EarliestEndIsUsedFirst(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.StartAll()
		for id, span := range map[string]time.Duration{"long": 3 * time.Hour, "short": time.Hour, "middle": 2 * time.Hour} {
			r := grantRequest(id, events.ScopeThread, "t1", 1)
			r.Terms.For = events.Duration(span)
			give(w, r)
		}
		for i, id := range []string{"short", "middle", "long"} {
			notAsked(w, inThread(w, fmt.Sprintf("r%d", i), "t1"), id)
		}
		asked(w, inThread(w, "r9", "t1"))
		w.Check(true)
	})
}

// TestB8_28_GrantCrossesNothing has a grant for a tool of an agent in a thread: calls of another thread, another resource,
// another agent and another tool are asked about.
func TestB8_28_GrantCrossesNothing(t *testing.T) {
	options := granting(func(o *sim.Options) {
		o.Tools = append(o.Tools, tool("pay2", done, agent.ToolOptions{RequireApproval: agent.Always()}))
	})
	in(t, options, func(w *sim.World) {
		w.StartAll()
		other, err := events.Marshal(events.AgentDef{ID: "sales", Model: "scripted/sim", Tools: map[string]string{"pay": "pay", "pay2": "pay2"}})
		must(w, err)
		_, err = w.Conn().PutDef(w.T.Context(), other)
		must(w, err)
		must(w, w.Conn().PutNamed(w.T.Context(), events.RegistryAgent, "sales", other))
		give(w, grantRequest("g1", events.ScopeThread, "t1", 9))
		give(w, grantRequest("g2", events.ScopeRun, "r0", 9))
		request := func(run, agentID, thread, resource string) {
			w.RequestAs("bob", events.RunRequested{
				AgentID: agentID, RunID: run, ThreadID: thread, ResourceID: resource,
				Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
			})
		}
		request("r1", "support", "t1", "bob")
		if by := goOf(w, events.CallID{Run: "r1", Step: 1, Index: 1}).AllowedBy; by.Grant != "g1" {
			w.T.Errorf("released by %+v", by)
		}
		w.AwaitAsk(events.CallID{Run: "r1", Step: 1, Index: 2}, soon) // the other tool
		request("thread", "support", "t2", "bob")
		request("none", "support", "", "")
		request("resource", "support", "t1", "carol")
		request("nobody", "support", "t1", "")
		request("agent", "sales", "t1", "bob")
		for _, run := range []string{"thread", "none", "resource", "nobody", "agent"} {
			w.AwaitAsk(events.CallID{Run: run, Step: 1, Index: 1}, soon)
		}
		w.Check(false)
	})
}

// TestForgedGrants puts into the bucket, and into the chain of a grant, what no gate has signed: it releases nothing.
func TestForgedGrants(t *testing.T) {
	in(t, granting(nil), func(w *sim.World) {
		w.StartAll()
		give(w, grantRequest("g1", events.ScopeThread, "t1", 9))
		g := standing(w)
		forged := g.Grant
		forged.ID, forged.ThreadID = "g2", "t2"
		raw, err := events.Marshal(forged)
		must(w, err)
		mine, err := jetstream.NewKey()
		must(w, err)
		subject := "$KV.weir_default_grants." + forged.Key()
		sig := events.Sign(mine, events.DomainGrant, subject, raw)
		for _, header := range []map[string][]string{nil, {events.HeaderKey: {sig.Key}, events.HeaderSig: {sig.Sig}}} {
			jetstreamtest.Slip(w.T.(*testing.T), w.Server, subject, header, string(raw))
			asked(w, inThread(w, events.NewID(time.Now()), "t2"))
		}
		use := events.GrantUsed{ID: "g1", ToolCallID: refundOf("r1").String(), Number: 1, At: time.Now(), Grant: g.Grant}
		forge(w, w.Conn().Namespace().GrantUse("g1", refundOf("r1")), use)
		asked(w, inThread(w, "r1", "t1"))
		asked(w, inThread(w, "r2", "t1"))
	})
}

// TestB8_28_UsesAreCarried uses a grant once in a while, over several times the retention: its uses are counted on. In real
// time, because servers judge the age of messages by a clock that no bubble has.
func TestB8_28_UsesAreCarried(t *testing.T) {
	t.Parallel()
	const retention = shortRetention
	w := sim.New(t, granting(func(o *sim.Options) {
		o.Settings = jetstream.Settings{Retention: retention}
		o.Gate = func(c *approval.Config) {
			c.Retention, c.Sweep, c.SweepAge = retention, 100*time.Millisecond, 100*time.Millisecond
		}
		o.Plan = func(c *planner.Config) { c.Retention = retention }
	})(t))
	w.StartAll()
	withGrant(w, inThread(w, "r0", "t1"), terms(events.ScopeThread, 2))
	g := standing(w)
	notAsked(w, inThread(w, "r1", "t1"), g.ID)
	first := w.Await(w.Conn().Namespace().GrantUse(g.ID, refundOf("r1")), soon)
	awaitGone(w, place(w, "r1", 1, events.KindResult))
	awaitGone(w, w.Conn().Namespace().End("r1"))
	last, err := w.Conn().Last(t.Context(), w.Conn().Namespace().UsesOf(g.ID))
	must(w, err)
	if !last.Carried || last.Seq == first.Seq || last.ID != first.ID {
		t.Errorf("the use is not carried: %+v", last.Place)
	}
	must(w, w.GateKeys().VerifyFact(last))
	notAsked(w, inThread(w, "r2", "t1"), g.ID)
	asked(w, inThread(w, "r3", "t1"))
}

// TestAnswerWithGrantOnce tells of an answer that brings a grant in many ways at once: one grant comes of it.
func TestAnswerWithGrantOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := sim.New(t, granting(nil)(t))
		w.StartAll()
		w.Start(approval.Name)
		call := inThread(w, "r1", "t1")
		w.AwaitAsk(call, soon)
		d := decision(events.Approve, call)
		d.Grant = terms(events.ScopeThread, 2)
		sent := w.Posted(w.Conn().Namespace().InDecide("alice", call), "r1", "alice", d)
		slow := func(events.Event) error { time.Sleep(time.Second); return nil } // fake
		errs := make(chan error, 3)
		for range 3 {
			handle := handler(approval.HandleRequest)(w, w.Dial("beside", slow))
			go func() { errs <- handle(w.T.Context(), sent) }()
		}
		for range 3 {
			if err := <-errs; err != nil && !jetstream.IsLater(err) {
				t.Error(err)
			}
		}
		w.AwaitEnd("r1", soon)
		g := standing(w)
		notAsked(w, inThread(w, "r2", "t1"), g.ID)
		w.Check(true)
	})
}

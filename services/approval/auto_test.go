package approval_test

import (
	"cmp"
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
)

// conversation is a world in which a tool of run r1 has suspended itself, and a message that may answer it starts run r2.
// Its planner has gone: what a planner would store and send is made here, so that it can be wrong.
type conversation struct {
	*sim.World
	ask     events.CallHeld
	started events.RunStarted
	turn    events.StepFinished
	sent    events.DecisionRequested
	id      string // of the decision; default: the one that is due
	on      bool   // run r2 goes on before the gate hears of the decision

	start, step, event events.Event // as they were stored and sent
}

var callOfR1 = events.CallID{Run: "r1", Step: 1, Index: 1}

// waits is a tool that asks for a boolean.
func waits(approval *events.Approval) agent.Tool {
	return tool("pay", pauses, agent.ToolOptions{ResumeSchema: json.RawMessage(`{"type":"boolean"}`), RequireApproval: approval})
}

func talk(o sim.Options) func(*testing.T) sim.Options {
	if o.Tools == nil {
		o.Tools = []agent.Tool{waits(nil)}
	}
	if o.Agent.ID == "" {
		o.Agent = events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{"pay": "pay"}, AutoResumeSuspendedTools: true}
	}
	return scripted(o, "pay")
}

func request(run string) events.RunRequested {
	return events.RunRequested{
		AgentID: "support", RunID: run, ThreadID: "t1", ResourceID: "u1",
		Messages: events.Prompt{events.TextMessage(events.RoleUser, "yes, do it")},
	}
}

// converse takes run r1 to its question. Where the call needs approval first, alice gives it, signed when she has a key.
func converse(w *sim.World, first events.RunRequested, alice *events.Key) *conversation {
	w.T.Helper()
	plan := w.StartAll()[0]
	w.RequestAs("bob", first)
	ask := w.AwaitAsk(callOfR1, soon)
	time.Sleep(time.Microsecond) // fake: what follows is later
	if ask.Kind == events.AskApproval {
		d := decision(events.Approve, callOfR1)
		d.Fingerprint = ask.Fingerprint
		send(w, alice, d)
		ask = askOf(w, callOfR1, 1)
	}
	must(w, plan.Stop())
	return about(w, ask)
}

// send sends a decision of alice's.
func send(w *sim.World, key *events.Key, d events.DecisionRequested) {
	w.T.Helper()
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test", Key: key}
	subject := w.Conn().Namespace().InDecide("alice", callOfR1)
	e, err := o.RequestBy(subject, "r1", "alice", d)
	must(w, err)
	_, err = w.Conn().Publish(w.T.Context(), subject, e)
	must(w, err)
}

// about makes what a planner would store and send of a message that answers an ask.
func about(w *sim.World, ask events.CallHeld) *conversation {
	w.T.Helper()
	c := &conversation{World: w, ask: ask}
	began, err := events.Data[events.RunStarted](w.Await(w.Conn().Namespace().Start("r1"), soon))
	must(w, err)
	c.started = began
	c.started.RunID, c.started.RootRunID, c.started.RequestID, c.started.Request = "r2", "r2", "q2", request("r2")
	c.started.Path = []events.PathEntry{{AgentID: "support", RunID: "r2"}}
	c.sent = events.DecisionRequested{
		Decision: events.ResumeD, ToolCallID: ask.ToolCallID, Round: &ask.Round, Fingerprint: ask.Fingerprint,
		ResumeData: json.RawMessage(`true`), OnBehalfOf: "bob", FromRun: "r2",
	}
	c.turn = events.StepFinished{
		RunID: "r2", Step: 1, Attempt: 1, MessageID: "m1", Message: events.Message{Role: events.RoleAssistant, Parts: []events.Part{}},
		Calls: []events.CallPlanned{}, FinishReason: "stop", Model: "scripted/sim", AutoResume: &events.AutoResume{
			Asked: []string{ask.ToolCallID}, Answers: []events.AutoAnswer{{
				ToolCallID: ask.ToolCallID, Round: ask.Round, Fingerprint: ask.Fingerprint, ResumeData: json.RawMessage(`true`),
			}},
		},
	}
	return c
}

// tell stores what run r2 has come to, sends the decision, and waits for what the gate makes of it.
func (c *conversation) tell() (*events.CallAnswered, *events.DecisionRefused) {
	c.T.Helper()
	if c.start.ID == "" {
		c.begin()
	}
	c.step = c.add(c.Conn().Namespace().Step("r2", 1), c.start, c.turn)
	if c.on {
		c.end()
	}
	o := &events.Origin{Namespace: c.Conn().Namespace(), Service: planner.Name}
	e, err := o.RequestBy(c.subject(), "r1", events.TokenAuto, c.sent)
	must(c.World, err)
	e.ID = cmp.Or(c.id, events.AutoResumeID("r2", c.ask.ToolCallID, c.ask.Round))
	e.Payload, err = events.Encode(e)
	must(c.World, err)
	c.event = e
	c.publish()
	return c.outcome(e.ID)
}

func (c *conversation) subject() string {
	return c.Conn().Namespace().InDecide(events.TokenAuto, callOfR1)
}

func (c *conversation) publish() {
	c.T.Helper()
	_, err := c.Conn().Publish(c.T.Context(), c.subject(), c.event)
	must(c.World, err)
}

// begin stores the start of run r2.
func (c *conversation) begin() {
	c.T.Helper()
	time.Sleep(time.Second) // fake
	c.start = c.add(c.Conn().Namespace().Start("r2"), events.Event{}, c.started)
}

// end stores the end of run r2.
func (c *conversation) end() {
	c.T.Helper()
	c.add(c.Conn().Namespace().End("r2"), c.step, events.RunEnded{RunID: "r2", Outcome: events.RunCompleted, FinishReason: "stop"})
}

func (c *conversation) add(p events.Place, prev events.Event, data any) events.Event {
	c.T.Helper()
	o := &events.Origin{Namespace: p.Namespace, Service: planner.Name}
	e, err := o.Fact(p, data, prev)
	must(c.World, err)
	guard := events.First(p)
	if prev.Seq > 0 {
		guard = events.After(prev)
	}
	a, err := c.Conn().Append(c.T.Context(), guard, e)
	must(c.World, err)
	return a.Last
}

func (c *conversation) outcome(id string) (*events.CallAnswered, *events.DecisionRefused) {
	c.T.Helper()
	ns := c.Conn().Namespace()
	for range 600 {
		facts, err := c.Conn().Facts(c.T.Context(), ns.Call(callOfR1, events.KindAnswer), ns.Beside(callOfR1, events.KindRefused, id))
		must(c.World, err)
		if facts[0].ID != "" {
			if a, err := events.Data[events.CallAnswered](facts[0]); err == nil && a.EventID == id {
				return &a, nil
			}
		}
		if facts[1].ID != "" {
			d, err := events.Data[events.DecisionRefused](facts[1])
			must(c.World, err)
			return nil, &d
		}
		time.Sleep(100 * time.Millisecond) // fake
	}
	c.T.Fatal("nothing became of the decision")
	return nil, nil
}

// The message's sender has decided, and the run goes on under its own id with the data.
func TestB11_4AutoResumeCountsAsItsSenders(t *testing.T) {
	in(t, talk(sim.Options{}), func(w *sim.World) {
		c := converse(w, request("r1"), nil)
		a, refused := c.tell()
		if refused != nil {
			t.Fatalf("refused: %+v", refused)
		}
		if a.Principal != "bob" || a.AuthType != events.AuthAuto || a.Decision != events.ResumeD || string(a.Resume.Data) != "true" || a.Signed != nil {
			t.Errorf("answer %+v", a)
		}
		w.Start(planner.Name)
		if end := w.AwaitEnd("r1", soon); end.Outcome != events.RunCompleted {
			t.Errorf("run ended as %s", end.Outcome)
		}
		w.Check(false)
	})
}

// Whatever the log does not bear out is refused, and the call waits on. (B11.2, B11.3)
func TestB11_2_B11_3AutoResumeOfAnythingElseIsRefused(t *testing.T) {
	t.Parallel()
	seven := 7
	for name, test := range map[string]struct {
		change func(*conversation)
		code   events.Code
	}{
		"another decision":        {func(c *conversation) { c.sent.Decision = events.Decline }, events.CodeForbidden},
		"approve":                 {func(c *conversation) { c.sent.Decision = events.Approve }, events.CodeForbidden},
		"nobody's":                {func(c *conversation) { c.sent.OnBehalfOf = "" }, events.CodeForbidden},
		"no run":                  {func(c *conversation) { c.sent.FromRun = "" }, events.CodeForbidden},
		"an unknown run":          {func(c *conversation) { c.sent.FromRun = "r3" }, events.CodeForbidden},
		"the asking run itself":   {func(c *conversation) { c.sent.FromRun = "r1" }, events.CodeForbidden},
		"somebody else's message": {func(c *conversation) { c.sent.OnBehalfOf = "alice" }, events.CodeForbidden},
		"another agent":           {func(c *conversation) { c.started.AgentID = "sales" }, events.CodeForbidden},
		"another thread":          {func(c *conversation) { c.started.Request.ThreadID = "t2" }, events.CodeForbidden},
		"another resource":        {func(c *conversation) { c.started.Request.ResourceID = "" }, events.CodeForbidden},
		"the message forbids it":  {func(c *conversation) { c.started.Request.AutoResumeSuspendedTools = new(false) }, events.CodeForbidden},
		"not found by the model":  {func(c *conversation) { c.turn.AutoResume.Answers = nil }, events.CodeForbidden},
		"a turn of the agent":     {func(c *conversation) { c.turn.AutoResume = nil }, events.CodeForbidden},
		"other data":              {func(c *conversation) { c.sent.ResumeData = json.RawMessage(`false`) }, events.CodeForbidden},
		"no round":                {func(c *conversation) { c.sent.Round = nil }, events.CodeForbidden},
		"another round":           {func(c *conversation) { c.sent.Round, c.turn.AutoResume.Answers[0].Round = &seven, seven }, events.CodeForbidden},
		"an id of its own":        {func(c *conversation) { c.id = events.NewID(time.Now()) }, events.CodeForbidden},
		"the run went on":         {func(c *conversation) { c.on = true }, events.CodeChanged},
		"bad data": {func(c *conversation) {
			c.sent.ResumeData, c.turn.AutoResume.Answers[0].ResumeData = json.RawMessage(`7`), json.RawMessage(`7`)
		}, events.CodeInvalidData},
		"the fingerprint of something else": {func(c *conversation) {
			c.sent.Fingerprint, c.turn.AutoResume.Answers[0].Fingerprint = "sha256:00", "sha256:00"
		}, events.CodeChanged},
		"another round, as the model found it": {func(c *conversation) {
			c.sent.Round, c.turn.AutoResume.Answers[0].Round = &seven, seven
			c.id = events.AutoResumeID("r2", c.ask.ToolCallID, seven)
		}, events.CodeChanged},
		"the name of somebody who may not be known": {func(c *conversation) {
			c.started.Requester, c.started.RequesterID, c.sent.OnBehalfOf = "=bmexge", "", "=bmexge"
		}, events.CodeForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, talk(sim.Options{}), func(w *sim.World) {
				c := converse(w, request("r1"), nil)
				test.change(c)
				c.refused(test.code)
			})
		})
	}
}

// refused sends the decision and demands that it is refused with a code, and that the call is as it was.
func (c *conversation) refused(code events.Code) {
	c.T.Helper()
	a, refused := c.tell()
	if a != nil {
		c.T.Fatalf("the decision counted: %+v", a)
	}
	if refused.Code != code || refused.Principal != events.TokenAuto {
		c.T.Errorf("refused as %s to %s: %s, want %s", refused.Code, refused.Principal, refused.Message, code)
	}
	if last := c.Await(c.Conn().Namespace().Call(callOfR1, events.KindAsk), soon); last.Place.Kind != events.KindAsk {
		c.T.Errorf("the call is at %s", last.Place.Kind)
	}
	c.Check(false)
}

// A run that did not allow it is not resumed automatically, whatever the message allows; nor is a tool that does not say
// what it waits for, nor a call that waits for approval.
func TestB11_1_B11_2AskMustAllowIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool   agent.Tool
		change func(*events.RunRequested)
		code   events.Code
	}{
		"the asking run forbids it": {waits(nil), func(r *events.RunRequested) { r.AutoResumeSuspendedTools = new(false) }, events.CodeForbidden},
		"no thread":                 {waits(nil), func(r *events.RunRequested) { r.ThreadID, r.ResourceID = "", "" }, events.CodeForbidden},
		"no schema":                 {tool("pay", pauses, agent.ToolOptions{}), func(*events.RunRequested) {}, events.CodeForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, talk(sim.Options{Tools: []agent.Tool{test.tool}}), func(w *sim.World) {
				first := request("r1")
				test.change(&first)
				c := converse(w, first, nil)
				c.started.Request.ThreadID, c.started.Request.ResourceID = first.ThreadID, first.ResourceID
				c.refused(test.code)
			})
		})
	}
}

// Approvals and calls in doubt are never answered by a model, even when a planner says so.
func TestB11_3ApprovalsAndDoubtsAreForPeople(t *testing.T) {
	t.Parallel()
	t.Run("approval", func(t *testing.T) {
		in(t, talk(sim.Options{Tools: []agent.Tool{waits(agent.Always())}}), func(w *sim.World) {
			c := forged(w)
			if c.ask.Kind != events.AskApproval {
				t.Fatalf("asked as %s", c.ask.Kind)
			}
			c.refused(events.CodeForbidden) // an approval has no resume schema of the tool's
		})
	})
	t.Run("in doubt", func(t *testing.T) {
		o := sim.Options{
			Tools: []agent.Tool{tool("pay", func(ctx context.Context, _ *agent.Call) (any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}, agent.ToolOptions{ResumeSchema: json.RawMessage(`{}`)})},
			Point: func(name string, c *sim.Copy) {
				if name == "claim.after" {
					c.Kill()
				}
			},
			Gate: func(c *approval.Config) { c.Sweep, c.SweepAge = time.Second, time.Second },
		}
		in(t, talk(o), func(w *sim.World) {
			c := forged(w)
			if c.ask.Kind != events.AskInDoubt {
				t.Fatalf("asked as %s", c.ask.Kind)
			}
			c.refused(events.CodeForbidden)
		})
	})
}

// forged is a conversation about whatever the first call of run r1 is held for.
func forged(w *sim.World) *conversation {
	w.T.Helper()
	plan := w.StartAll()[0]
	w.RequestAs("bob", request("r1"))
	ask := w.AwaitAsk(callOfR1, 10*soon)
	time.Sleep(time.Microsecond) // fake: what follows is later
	must(w, plan.Stop())
	return about(w, ask)
}

// Who may not decide the call does not get it resumed by a message either.
func TestB11_4SenderMustBeEntitled(t *testing.T) {
	t.Parallel()
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	rule := func(r events.Rule) map[string]events.RuleSet {
		r.Name, r.Action = "held", events.RuleAsk
		return map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{r}}}
	}
	bob := func(d events.PrincipalDef) map[string]events.PrincipalDef {
		d.ID = "bob"
		return map[string]events.PrincipalDef{"bob": d, "alice": {ID: "alice", Auth: events.AuthKey, Key: key.Public}}
	}
	withKey := bob(events.PrincipalDef{Auth: events.AuthKey, Key: key.Public})
	for name, test := range map[string]struct {
		rules  map[string]events.RuleSet
		people map[string]events.PrincipalDef
		signed bool        // bob has signed his message
		code   events.Code // empty: it counts
	}{
		"not an approver":      {rule(events.Rule{Approvers: []string{"user:alice"}}), nil, false, events.CodeForbidden},
		"an approver":          {rule(events.Rule{Approvers: []string{"user:alice", "user:bob"}}), nil, false, ""},
		"of a group":           {rule(events.Rule{Approvers: []string{"user:alice", "group:shop"}}), bob(events.PrincipalDef{Auth: events.AuthSubject, Groups: []string{"shop"}}), false, ""},
		"who asked for it":     {rule(events.Rule{NotRequester: true}), nil, false, events.CodeForbidden},
		"signed ones only":     {rule(events.Rule{Signed: true}), withKey, true, events.CodeUnauthenticated},
		"without his key":      {nil, withKey, false, events.CodeUnauthenticated},
		"with his key":         {nil, withKey, true, ""},
		"without his gateway":  {nil, bob(events.PrincipalDef{Auth: events.AuthGateway}), false, events.CodeUnauthenticated},
		"may not decide":       {nil, bob(events.PrincipalDef{Auth: events.AuthSubject, Scopes: []string{events.MayStart}}), false, events.CodeForbidden},
		"may decide":           {nil, bob(events.PrincipalDef{Auth: events.AuthSubject, Scopes: []string{events.MayStart, events.MayDecide}}), false, ""},
		"in no known way":      {nil, bob(events.PrincipalDef{Auth: "auto_resume"}), false, events.CodeForbidden},
		"a group of another's": {rule(events.Rule{Approvers: []string{"user:alice", "group:shop"}}), bob(events.PrincipalDef{Auth: events.AuthSubject}), false, events.CodeForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, talk(sim.Options{Rules: test.rules, People: test.people}), func(w *sim.World) {
				c := converse(w, request("r1"), &key)
				if test.signed {
					c.signStart(key)
				}
				if test.code != "" {
					c.refused(test.code)
					return
				}
				if _, refused := c.tell(); refused != nil {
					t.Errorf("refused: %+v", refused)
				}
			})
		})
	}
}

// signStart lets bob sign the message, as his client does, and the planner keep what he signed.
func (c *conversation) signStart(key events.Key) {
	c.T.Helper()
	o := &events.Origin{Namespace: c.Conn().Namespace(), Service: "client", Key: &key}
	subject := c.Conn().Namespace().InStart("bob", "support")
	e, err := o.RequestBy(subject, "r2", "bob", c.started.Request)
	must(c.World, err)
	c.started.Signed = &events.Signed{Payload: string(e.Payload), Subject: subject, Key: e.Signature.Key, Sig: e.Signature.Sig}
}

// What a person signed is that message and no other.
func TestB11_4SignedMessageIsTheOneThatCounts(t *testing.T) {
	t.Parallel()
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	people := map[string]events.PrincipalDef{"bob": {ID: "bob", Auth: events.AuthKey, Key: key.Public}}
	for name, change := range map[string]func(*conversation){
		"another text": func(c *conversation) {
			c.signStart(key)
			c.started.Request.Messages = events.Prompt{events.TextMessage(events.RoleUser, "no")}
		},
		"another run": func(c *conversation) {
			c.started.Request.RunID = "r9"
			c.signStart(key)
			c.started.Request.RunID = "r2"
		},
		"another key": func(c *conversation) { c.signStart(other) },
		"another subject": func(c *conversation) {
			c.signStart(key)
			c.started.Signed.Subject = c.Conn().Namespace().InStart("alice", "support")
		},
		"no event": func(c *conversation) {
			c.signStart(key)
			sig := events.Sign(key, events.DomainStart, c.started.Signed.Subject, []byte("{}"))
			c.started.Signed.Payload, c.started.Signed.Sig = "{}", sig.Sig
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, talk(sim.Options{People: people}), func(w *sim.World) {
				c := converse(w, request("r1"), nil)
				change(c)
				c.refused(events.CodeUnauthenticated)
			})
		})
	}
}

// A message that was sent before the question was asked does not answer it.
func TestB11_2MessageMustBeNewerThanTheQuestion(t *testing.T) {
	twice := tool("pay", func(_ context.Context, call *agent.Call) (any, error) {
		if yes, err := agent.ResumeData[bool](call); !call.Resumed() || err == nil && !yes {
			return nil, call.Suspend("really?")
		}
		return "done", nil
	}, agent.ToolOptions{ResumeSchema: json.RawMessage(`{"type":"boolean"}`)})
	in(t, talk(sim.Options{Tools: []agent.Tool{twice}}), func(w *sim.World) {
		c := converse(w, request("r1"), nil)
		c.begin()
		time.Sleep(time.Second) // fake
		d := decision(events.ResumeD, callOfR1)
		d.Round, d.ResumeData = &c.ask.Round, json.RawMessage(`false`)
		send(w, nil, d)
		second := about(w, askOf(w, callOfR1, 2))
		second.start = c.start
		second.refused(events.CodeChanged)
	})
}

// The gate is stopped right before and after the answer, and the decision comes again, also when run r2 has ended: it
// counts once.
func TestB11_5AutoResumeComesTwice(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"answer.before", "answer.after", "go.before", "go.after"} {
		t.Run(at, func(t *testing.T) {
			var gates atomic.Int32
			armed := atomic.Bool{}
			o := sim.Options{Point: func(name string, c *sim.Copy) {
				if name == at && armed.CompareAndSwap(true, false) {
					c.Kill()
					gates.Add(1)
				}
			}}
			in(t, talk(o), func(w *sim.World) {
				c := converse(w, request("r1"), nil)
				armed.Store(true)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for gates.Load() == 0 {
						time.Sleep(time.Second) // fake
					}
					w.Start(approval.Name)
				}()
				a, refused := c.tell()
				if a == nil {
					t.Fatalf("refused: %+v", refused)
				}
				<-done
				c.end()
				c.publish()
				time.Sleep(5 * time.Second) // fake
				w.Start(planner.Name)
				w.AwaitEnd("r1", 10*soon)
				if r := w.Check(true); r["answer:resume"] != 1 || r["refused"] != 0 {
					t.Errorf("the log holds %v", r)
				}
			})
		})
	}
}

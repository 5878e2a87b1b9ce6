package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
)

// asker sends requests as a program that knows nothing but NATS.
type asker struct {
	*bench
	nc *nats.Conn
}

func newAsker(b *bench) *asker { return &asker{b, b.raw()} }

// event is a decision as it is stored in the inbox.
func (a *asker) event(who, run, c string, req events.DecisionRequested) (events.Event, *nats.Msg) {
	a.T.Helper()
	inbox := a.Conn().Namespace().InDecideRun(who, run)
	if call, err := events.CallOf(run, c); err == nil {
		inbox = a.Conn().Namespace().InDecide(who, call)
	}
	e, err := (&events.Origin{Namespace: a.Conn().Namespace(), Service: "test"}).RequestBy(inbox, run, who, req)
	a.must(err)
	header, payload, err := events.EncodeMsg(e)
	a.must(err)
	return e, &nats.Msg{Subject: inbox, Header: header, Data: payload}
}

// asked sends a message as a request and reads what it is told.
func (a *asker) asked(msg *nats.Msg) (*events.DecisionOutcome, *events.Error) {
	a.T.Helper()
	out, why, err := a.tryAsk(msg)
	a.must(err)
	return out, why
}

func (a *asker) tryAsk(msg *nats.Msg) (*events.DecisionOutcome, *events.Error, error) {
	ctx, cancel := context.WithTimeout(a.T.Context(), moment)
	defer cancel()
	reply, err := a.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return nil, nil, err
	}
	if code := reply.Header.Get(micro.ErrorCodeHeader); code != "" {
		why := &events.Error{}
		if err := json.Unmarshal(reply.Data, why); err != nil {
			return nil, nil, err
		}
		if code != fmt.Sprint(why.Code.Status()) || reply.Header.Get(micro.ErrorHeader) == "" {
			return nil, nil, fmt.Errorf("headers %v of %s", reply.Header, reply.Data)
		}
		return nil, why, nil
	}
	out := &events.DecisionOutcome{}
	return out, nil, json.Unmarshal(reply.Data, out)
}

// decide sends a decision by request. An empty c names no call.
func (a *asker) decide(who, run, c string, req events.DecisionRequested) (*events.DecisionOutcome, *events.Error) {
	a.T.Helper()
	_, msg := a.event(who, run, c, req)
	msg.Subject = a.Conn().Namespace().ServiceSubject(events.VerbDecide, who, run, c)
	return a.asked(msg)
}

// by is decide for a call.
func (a *asker) by(who string, call events.CallID, d events.Decision) (*events.DecisionOutcome, *events.Error) {
	a.T.Helper()
	return a.decide(who, call.Run, call.Token(), events.DecisionRequested{Decision: d, ToolCallID: call.String()})
}

// ask asks for the open ask of a call.
func (a *asker) ask(who, run, c string) (*events.CallHeld, *events.Error) {
	a.T.Helper()
	var held events.CallHeld
	err := a.Conn().Ask(a.T.Context(), a.Conn().Namespace().ServiceSubject(events.VerbAsk, who, run, c), events.Event{}, &held)
	if why, ok := errors.AsType[*events.Error](err); ok {
		return nil, why
	}
	a.must(err)
	return &held, nil
}

// payer is a world with a tool that needs approval, called so often in each turn, and a tool that suspends itself.
func payer(t *testing.T, o Options, turns ...int) *asker {
	t.Helper()
	var steps []agenttest.Step
	for _, n := range turns {
		var calls []agenttest.ToolCall
		for i := range n {
			calls = append(calls, callTo("pay", fmt.Sprintf(`{"n":%d}`, i)))
		}
		steps = append(steps, asks(calls...))
	}
	return newAsker(newBench(t, o, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
		append(steps, agenttest.Say("done"))...))
}

// wantCode fails unless a decision was refused with a code.
func wantCode(tb testing.TB, what string, out *events.DecisionOutcome, why *events.Error, code events.Code) {
	tb.Helper()
	if why == nil || why.Code != code {
		tb.Errorf("%s: %+v, %v; want %s", what, out, why, code)
	}
}

// TestB8_5_B8_34_DecideByRequest sends decisions by request. Each is told its outcome, and the record is the same as of
// one that was published: who, when and the event of the decision itself, which the inbox held.
func TestB8_5_B8_34_DecideByRequest(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 4)
		a.StartAll()
		run := a.Request("go")
		for i := 1; i <= 4; i++ {
			a.AwaitAsk(a.call(run, 1, i), moment)
		}
		approve, decline, respond, edit := a.call(run, 1, 1), a.call(run, 1, 2), a.call(run, 1, 3), a.call(run, 1, 4)
		for _, c := range []struct {
			call  events.CallID
			state string
			req   events.DecisionRequested
		}{
			{approve, events.DecisionReleased, events.DecisionRequested{Decision: events.Approve, Reason: "fine"}},
			{decline, events.DecisionFinished, events.DecisionRequested{Decision: events.Decline, Reason: "no"}},
			{respond, events.DecisionFinished, events.DecisionRequested{Decision: events.Respond, Result: RawJSON(`{"paid":true}`)}},
			{edit, events.DecisionHeld, events.DecisionRequested{Decision: events.Edit, Args: RawJSON(`{"n":9}`)}},
		} {
			c.req.ToolCallID, c.req.Fingerprint = c.call.String(), a.AwaitAsk(c.call, moment).Fingerprint
			out, why := a.decide("alice", run, c.call.Token(), c.req)
			if why != nil {
				t.Fatalf("%s: %v", c.req.Decision, why)
			}
			round := map[bool]int{true: 1}[c.req.Decision == events.Edit]
			if !out.Accepted || out.State != c.state || out.ToolCallID != c.call.String() || out.Round != round ||
				out.Answer.Principal != "alice" || out.Answer.Decision != c.req.Decision || out.Answer.Reason != c.req.Reason {
				t.Errorf("%s: told %+v, %+v", c.req.Decision, out, out.Answer)
			}
			fact := a.Await(a.Conn().Namespace().Call(c.call, events.KindAnswer), moment)
			d, err := events.Data[events.CallAnswered](fact)
			a.must(err)
			if d.AuthType != events.AuthSubject || d.InboxSeq == 0 || d.EventID == "" || d.Brief().At != out.Answer.At {
				t.Errorf("%s: the record says %+v", c.req.Decision, d)
			}
		}
		if out, why := a.by("alice", edit, events.Decline); why == nil || why.Code != events.CodeChanged {
			t.Errorf("above round 0 without round and fingerprint: %+v, %v", out, why)
		}
		a.send("alice", events.Decline, edit, nil)
		a.completed(run)
		out, why := a.by("bob", approve, events.Decline)
		wantCode(t, "late", out, why, events.CodeAlreadyDecided)
		if why.Answer == nil || why.Answer.Principal != "alice" || why.Answer.Decision != events.Approve || why.Same {
			t.Errorf("the late one is told %+v", why.Answer)
		}
		equal(t, "executions", len(a.given("pay")), 1)
	})
}

// TestB8_16_FirstAnswerWins fires 50 equal approvals at two gates at once, by both ways: one counts, 49 are told which.
func TestB8_16_FirstAnswerWins(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 1)
		a.StartAll()
		a.Start(approval.Name)
		run := a.Request("go")
		call := a.call(run, 1, 1)
		ask := a.AwaitAsk(call, moment)
		req := events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String(), Fingerprint: ask.Fingerprint}
		var (
			wg       sync.WaitGroup
			mu       sync.Mutex
			plain    []string
			outcomes []*events.DecisionOutcome
			refusals []*events.Error
		)
		for i := range 50 {
			who := fmt.Sprintf("p%d", i)
			wg.Go(func() {
				if i%2 == 0 {
					id := a.Posted(a.Conn().Namespace().InDecide(who, call), run, who, req).Event.ID
					mu.Lock()
					defer mu.Unlock()
					plain = append(plain, id)
					return
				}
				out, why := a.decide(who, run, call.Token(), req)
				mu.Lock()
				defer mu.Unlock()
				if out != nil {
					outcomes = append(outcomes, out)
				} else {
					refusals = append(refusals, why)
				}
			})
		}
		wg.Wait()
		a.completed(run)
		answer, err := events.Data[events.CallAnswered](a.Await(a.Conn().Namespace().Call(call, events.KindAnswer), moment))
		a.must(err)
		for _, id := range plain {
			if id == answer.EventID {
				outcomes = append(outcomes, answer.Outcome())
				continue
			}
			d := a.refusal(call, id)
			refusals = append(refusals, &d.Error)
		}
		if len(outcomes) != 1 || len(refusals) != 49 {
			t.Fatalf("%d counted, %d were refused", len(outcomes), len(refusals))
		}
		for _, why := range refusals {
			if why.Code != events.CodeAlreadyDecided || cmp.Diff(why.Answer, outcomes[0].Answer) != "" || why.Answer.Principal != answer.Principal {
				t.Errorf("refused as %+v, the answer is %+v", why, outcomes[0].Answer)
			}
		}
		equal(t, "executions", a.Effects.Of(call.String()), 1)
		equal(t, "requests to the model", len(a.model.Requests()), 2)
	})
}

// TestB8_17_ApproveAndDecline sends both at once, by request, fifty times.
func TestB8_17_ApproveAndDecline(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w := New(t, Options{})
		w.StartAll()
		w.Start(approval.Name)
		a := newAsker(&bench{World: w})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				run := a.Request("Refund order 42")
				call := refundOf(run)
				a.AwaitAsk(call, moment)
				var both sync.WaitGroup
				var outs [2]*events.DecisionOutcome
				var whys [2]*events.Error
				for i, d := range []events.Decision{events.Approve, events.Decline} {
					both.Go(func() { outs[i], whys[i] = a.by(string(d)+"r", call, d) })
				}
				both.Wait()
				won := map[bool]int{true: 0, false: 1}[outs[0] != nil]
				if outs[won] == nil || whys[1-won] == nil || whys[1-won].Code != events.CodeAlreadyDecided ||
					cmp.Diff(whys[1-won].Answer, outs[won].Answer) != "" {
					t.Errorf("%+v and %+v", outs, whys)
					return
				}
				a.AwaitEnd(run, moment)
				equal(t, "executions", a.Effects.Of(call.String()), 1-won)
			})
		}
		wg.Wait()
		a.pause(2 * time.Second)
		if r := a.Check(true); r["answer"] != 50 {
			t.Errorf("the log holds %d answers, want 50", r["answer"])
		}
	})
}

// TestB8_18_SameDecision sends one and the same decision again and again, by both ways, one after the other and at once:
// it has one outcome.
func TestB8_18_SameDecision(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 2, 1)
		a.StartAll()
		a.Start(approval.Name)
		run := a.Request("go")
		for i, named := range []bool{true, false} {
			call := a.call(run, 1, i+1)
			a.AwaitAsk(call, moment)
			req, c := events.DecisionRequested{Decision: events.Approve}, ""
			if named {
				req.ToolCallID, c = call.String(), call.Token()
			}
			_, msg := a.event("alice", run, c, req)
			plain := *msg
			msg.Subject = a.Conn().Namespace().ServiceSubject(events.VerbDecide, "alice", run, c)
			var wg sync.WaitGroup
			outs := make([]*events.DecisionOutcome, 10)
			for n := range outs {
				wg.Go(func() {
					again := *msg
					outs[n], _ = a.asked(&again)
					_, err := a.nc.RequestMsgWithContext(a.T.Context(), &plain)
					a.must(err)
				})
			}
			wg.Wait()
			a.result(call)
			if !named { // a later call waits
				a.AwaitAsk(a.call(run, 2, 1), moment)
			}
			last, why := a.asked(msg)
			for _, out := range append(outs, last) {
				if out == nil || !out.Accepted || out.ToolCallID != call.String() || cmp.Diff(out, outs[0]) != "" {
					t.Errorf("named %v: told %+v, %v", named, out, why)
				}
			}
		}
		a.pause(5 * time.Second)
		next := a.call(run, 2, 1)
		equal(t, "the next call", a.last(next), events.KindAsk)
		if r := a.Check(false); r["answer"] != 2 || r["refused"] != 0 {
			t.Errorf("the log holds %v", r)
		}
		a.send("alice", events.Decline, next, nil)
		a.completed(run)
	})
}

// TestB8_18_Ended decides calls of runs that have ended, or were cancelled while the call was held.
func TestB8_18_Ended(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 1)
		a.StartAll()
		run := a.Request("go")
		call := a.call(run, 1, 1)
		a.AwaitAsk(call, moment)
		a.Cancel("bob", run)
		a.AwaitEnd(run, moment)
		out, why := a.by("alice", call, events.Approve)
		wantCode(t, "a cancelled run", out, why, events.CodeRunEnded)
		out, why = a.decide("alice", run, "", events.DecisionRequested{Decision: events.Approve})
		wantCode(t, "a cancelled run, no call named", out, why, events.CodeRunEnded)
		if d := a.refusal(call, a.Posted(a.Conn().Namespace().InDecide("alice", call), run, "alice",
			events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()}).Event.ID); d.Code != events.CodeRunEnded {
			t.Errorf("published: %s", d.Error.Error())
		}
		_, why = a.ask("alice", run, call.Token())
		wantCode(t, "the ask of a cancelled run", nil, why, events.CodeRunEnded)
		_, why = a.ask("alice", run, "")
		wantCode(t, "the ask of a cancelled run, no call named", nil, why, events.CodeRunEnded)
		equal(t, "executions", len(a.given("pay")), 0)
		a.Check(true)
	})
}

// TestB8_19_ByRequest leaves the call out.
func TestB8_19_ByRequest(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 2)
		a.StartAll()
		run := a.Request("go")
		one, two := a.call(run, 1, 1), a.call(run, 1, 2)
		a.AwaitAsk(one, moment)
		a.AwaitAsk(two, moment)
		both := fmt.Sprint([]string{one.String(), two.String()})
		out, why := a.decide("alice", run, "", events.DecisionRequested{Decision: events.Approve})
		wantCode(t, "two wait", out, why, events.CodeAmbiguous)
		equal(t, "the calls named", fmt.Sprint(why.Asks), both)
		_, why = a.ask("alice", run, "")
		wantCode(t, "the ask of two", nil, why, events.CodeAmbiguous)
		equal(t, "the calls named", fmt.Sprint(why.Asks), both)
		_, why = a.decide("alice", run, two.Token(), events.DecisionRequested{Decision: events.Decline, ToolCallID: two.String()})
		if why != nil {
			t.Fatal(why)
		}
		held, why := a.ask("alice", run, "")
		if why != nil || held.ToolCallID != one.String() || held.Fingerprint == "" || string(held.Args) != `{"n":0}` {
			t.Fatalf("the ask of one: %+v, %v", held, why)
		}
		out, why = a.decide("alice", run, "", events.DecisionRequested{Decision: events.Approve})
		if why != nil || out.ToolCallID != one.String() || out.State != events.DecisionReleased {
			t.Fatalf("one waits: %+v, %v", out, why)
		}
		a.completed(run)
		for id, what := range map[string]string{"nobody": "run", "nobody=1-1": "run"} {
			out, why = a.decide("alice", id, "", events.DecisionRequested{Decision: events.Approve})
			wantCode(t, id, out, why, events.CodeNotFound)
			equal(t, "what is not found", why.What, what)
		}
		out, why = a.by("alice", a.call("nobody", 1, 1), events.Approve)
		wantCode(t, "an unknown run", out, why, events.CodeNotFound)
		out, why = a.by("alice", a.call(run, 7, 1), events.Approve)
		wantCode(t, "an unknown call", out, why, events.CodeNotFound)
		_, why = a.ask("alice", run, "7-1")
		wantCode(t, "the ask of an unknown call", nil, why, events.CodeNotFound)
		_, why = a.ask("bob", run, two.Token())
		if why == nil || why.Code != events.CodeAlreadyDecided || why.Answer.Decision != events.Decline || why.Answer.Principal != "alice" {
			t.Errorf("the ask of a call that was decided: %+v", why)
		}
	})
}

// TestB8_15_AnotherRound names an earlier call, round or fingerprint: the call that is pending now is untouched.
func TestB8_15_AnotherRound(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newAsker(newBench(t, Options{}, []agent.Tool{pauser("find", agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("find", `{}`)), agenttest.Say("done")))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		old := b.AwaitAsk(call, moment)
		if _, why := b.by("alice", call, events.Approve); why != nil {
			t.Fatal(why)
		}
		b.pause(10 * time.Second)
		ask := b.AwaitAsk(call, moment)
		equal(t, "the round", ask.Round, 1)
		zero := 0
		resume := events.DecisionRequested{Decision: events.ResumeD, ToolCallID: call.String(), ResumeData: RawJSON(`"eu"`)}
		for what, change := range map[string]func(*events.DecisionRequested){
			"the round before": func(d *events.DecisionRequested) { d.Round = &zero },
			"its fingerprint":  func(d *events.DecisionRequested) { d.Fingerprint = old.Fingerprint },
			"neither":          func(*events.DecisionRequested) {},
		} {
			req := resume
			change(&req)
			for _, c := range []string{call.Token(), ""} {
				req := req
				if c == "" {
					req.ToolCallID = ""
				}
				out, why := b.decide("alice", run, c, req)
				wantCode(t, what, out, why, events.CodeChanged)
				if why != nil && (why.Ask == nil || why.Ask.Fingerprint != ask.Fingerprint) {
					t.Errorf("%s: the current ask is told as %+v", what, why.Ask)
				}
			}
		}
		equal(t, "the call", b.last(call), events.KindAsk)
		resume.Round = &ask.Round
		if out, why := b.decide("alice", run, call.Token(), resume); why != nil || out.State != events.DecisionReleased || out.Round != 1 {
			t.Fatalf("%+v, %v", out, why)
		}
		b.completed(run)
	})
}

// TestB9_10_WrongKind approves a suspension and resumes an approval: the calls stay held.
func TestB9_10_WrongKind(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newAsker(newBench(t, Options{}, []agent.Tool{
			pauser("find", agent.ToolOptions{}), echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()}),
		}, asks(callTo("find", `{}`), callTo("pay", `{}`)), agenttest.Say("done")))
		b.StartAll()
		run := b.Request("go")
		find, pay := b.call(run, 1, 1), b.call(run, 1, 2)
		for _, c := range []struct {
			call events.CallID
			d    events.Decision
		}{{find, events.Approve}, {find, events.Retry}, {pay, events.ResumeD}, {pay, events.Retry}} {
			ask := b.AwaitAsk(c.call, moment)
			req := events.DecisionRequested{Decision: c.d, ToolCallID: c.call.String(), Fingerprint: ask.Fingerprint, ResumeData: RawJSON(`{"approved":true}`)}
			out, why := b.decide("alice", run, c.call.Token(), req)
			wantCode(t, string(c.d), out, why, events.CodeWrongKind)
			if why != nil && !slices.Equal(why.Allowed, ask.Allowed) {
				t.Errorf("%s: allowed %v, want %v", c.d, why.Allowed, ask.Allowed)
			}
			if d := b.refusal(c.call, b.Posted(b.Conn().Namespace().InDecide("alice", c.call), run, "alice", req).Event.ID); d.Code != events.CodeWrongKind {
				t.Errorf("published: %s", d.Error.Error())
			}
			equal(t, "the call", b.last(c.call), events.KindAsk)
		}
		b.send("alice", events.ResumeD, find, withData(`"eu"`))
		b.send("alice", events.Approve, pay, nil)
		b.completed(run)
	})
}

// malformed are bodies that are no decision.
func malformed() map[string]string {
	const head = `{"specversion":"1.0","type":"dev.weirkeeper.decision.requested.v1","source":"/my/shop","id":"%s","subject":"r","authid":"alice","data":`
	whole := func(id, data string) string { return strings.Replace(head, "%s", id, 1) + data + "}" }
	return map[string]string{
		"nothing":         ``,
		"no JSON":         `approve`,
		"empty":           `{}`,
		"no event":        `{"decision":"approve"}`,
		"another value":   `{"decision":"yes"}`,
		"true":            `true`,
		"a list":          `[]`,
		"no decision":     whole("m1", `{"toolCallId":"r=1-1"}`),
		"another word":    whole("m2", `{"decision":"yes","toolCallId":"r=1-1"}`),
		"approved":        whole("m3", `{"approved":"yes"}`),
		"data is true":    whole("m4", `true`),
		"wrong types":     whole("m5", `{"decision":"approve","toolCallId":7,"round":"0"}`),
		"a negative":      whole("m6", `{"decision":"approve","toolCallId":"r=1-1","round":-1}`),
		"a million bytes": whole("m7", `{"decision":"approve","toolCallId":"r=1-1","reason":"`+strings.Repeat("x", 1_000_000)+`"}`),
		"no UTF-8":        whole("m8", "{\"decision\":\"approve\",\"toolCallId\":\"r=1-1\",\"reason\":\"\xff\"}"),
		"a key twice":     whole("m9", `{"decision":"decline","decision":"approve","toolCallId":"r=1-1"}`),
		"another case":    whole("m10", `{"decision":"decline","Decision":"approve","toolCallId":"r=1-1"}`),
		"a long id":       whole(strings.Repeat("i", 200), `{"decision":"approve","toolCallId":"r=1-1"}`),
		"two values":      whole("m11", `{"decision":"approve","toolCallId":"r=1-1"}`) + `{}`,
	}
}

// TestB8_20_NoDecision sends what is no decision, by both ways, with the call named and without: each is refused as
// invalid_request, and the call is still pending and asked about once.
func TestB8_20_NoDecision(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 1)
		a.StartAll()
		a.RequestAs("bob", events.RunRequested{AgentID: "support", RunID: "r", Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")}})
		call := a.call("r", 1, 1)
		a.AwaitAsk(call, moment)
		before := a.chainOf(call)
		told := make(chan events.DecisionRefused, 1)
		_, err := a.Conn().Notes(t.Context(), "alice", func(e events.Event) {
			d, err := events.Data[events.DecisionRefused](e)
			a.must(err)
			told <- d
		})
		a.must(err)
		ns := a.Conn().Namespace()
		for name, body := range malformed() {
			for c, subject := range map[string]string{call.Token(): ns.InDecide("alice", call), "": ns.InDecideRun("alice", "r")} {
				body := strings.Replace(body, `"id":"`, `"id":"to`+c, 1)
				if name == "a long id" && c == "" {
					body = strings.Replace(body, `,"toolCallId":"r=1-1"`, ``, 1) // it names a call, which is wrong for itself
				}
				header := nats.Header{"Content-Type": {"application/cloudevents+json"}}
				out, why := a.asked(&nats.Msg{Subject: ns.ServiceSubject(events.VerbDecide, "alice", "r", c), Header: header, Data: []byte(body)})
				wantCode(t, name+", by request", out, why, events.CodeInvalidRequest)
				<-told
				_, err := a.nc.RequestMsgWithContext(t.Context(), &nats.Msg{Subject: subject, Header: header, Data: []byte(body)})
				a.must(err)
				d := <-told
				if why != nil && (d.Code != why.Code || d.Message != why.Message) {
					t.Errorf("%s: published it is refused as %s, by request as %s", name, d.Error.Error(), why.Error())
				}
			}
		}
		if diff := cmp.Diff(before, a.chainOf(call)); diff != "" {
			t.Errorf("the call has changed:\n%s", diff)
		}
		a.send("alice", events.Approve, call, nil)
		a.completed("r")
	})
}

// TestB8_21_AnotherNamespace decides a call from the namespace of another tenant: there is no such run there.
func TestB8_21_AnotherNamespace(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 1)
		a.StartAll()
		run := a.Request("go")
		call := a.call(run, 1, 1)
		a.AwaitAsk(call, moment)
		before := a.chainOf(call)
		other := newAsker(&bench{World: New(t, Options{Server: a.Server, Conn: func(o *jetstream.Options) { o.Namespace = "other" }})})
		other.StartAll()
		other.pause(time.Second)
		out, why := other.by("alice", call, events.Approve)
		wantCode(t, "from another namespace", out, why, events.CodeNotFound)
		_, why = other.ask("alice", run, call.Token())
		wantCode(t, "the ask from another namespace", nil, why, events.CodeNotFound)
		if diff := cmp.Diff(before, a.chainOf(call)); diff != "" {
			t.Errorf("the call has changed:\n%s", diff)
		}
		a.send("alice", events.Approve, call, nil)
		a.completed(run)
	})
}

// TestB8_34_GateKilled kills the gate that was asked right before and right after it has stored a decision, and before
// it replies. Nothing that was stored is lost, and the same request to another gate gives the outcome.
func TestB8_34_GateKilled(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"store.before:decide", "store.after:decide", "answer.after", "reply:decide"} {
		t.Run(point, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				var killed sync.Once
				o := Options{Point: func(name string, c *Copy) {
					if name == point {
						killed.Do(c.Kill)
					}
				}}
				a := payer(t, o, 1)
				a.StartAll()
				run := a.Request("go")
				call := a.call(run, 1, 1)
				a.AwaitAsk(call, moment)
				_, msg := a.event("alice", run, call.Token(), events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()})
				msg.Subject = a.Conn().Namespace().ServiceSubject(events.VerbDecide, "alice", run, call.Token())
				first := *msg
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if reply, err := a.nc.RequestMsgWithContext(ctx, &first); err == nil {
					t.Fatalf("a killed gate replies %s", reply.Data)
				}
				a.Start(approval.Name)
				a.pause(time.Second)
				out, why := a.asked(msg)
				if why != nil || !out.Accepted {
					t.Fatalf("told %+v, %v", out, why)
				}
				if out.State == events.DecisionSent { // its first delivery was with the gate that is gone
					a.Await(a.Conn().Namespace().Call(call, events.KindAnswer), 10*moment)
					out, why = a.asked(msg)
				}
				if why != nil || out.State != events.DecisionReleased {
					t.Errorf("told %+v, %v", out, why)
				}
				a.pause(2 * time.Minute) // what the killed gate had begun is found
				a.completed(run)
				equal(t, "executions", a.Effects.Of(call.String()), 1)
			})
		})
	}
}

// TestB8_34_NobodyJudges asks a gate whose inbox nobody works on: the sender is told that the decision is stored.
func TestB8_34_NobodyJudges(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{}, 1)
		a.StartAll()
		run := a.Request("go")
		call := a.call(run, 1, 1)
		a.AwaitAsk(call, moment)
		_, err := a.nc.RequestWithContext(t.Context(), "$JS.API.CONSUMER.PAUSE.weir_default_inbox.approval",
			[]byte(`{"pause_until":"`+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+`"}`))
		a.must(err)
		out, why := a.by("alice", call, events.Approve)
		if why != nil || out.Accepted || out.State != events.DecisionSent || out.ToolCallID != call.String() {
			t.Errorf("told %+v, %v", out, why)
		}
	})
}

// TestB8_23_VotesByRequest casts the votes of a quorum by request: each voter is told how the ask stands, and the one who
// completes it what it led to.
func TestB8_23_VotesByRequest(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := payer(t, Options{Rules: map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{
			{Name: "two", Tools: []string{"pay"}, Action: events.RuleAsk, Quorum: 2},
		}}}}, 1)
		a.StartAll()
		a.Start(approval.Name)
		run := a.Request("go")
		call := a.call(run, 1, 1)
		fingerprint := a.AwaitAsk(call, moment).Fingerprint
		ballot := func(who string) *nats.Msg {
			_, m := a.event(who, run, call.Token(), events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String(), Fingerprint: fingerprint})
			m.Subject = a.Conn().Namespace().ServiceSubject(events.VerbDecide, who, run, call.Token())
			return m
		}
		first := ballot("alice")
		for i, m := range []*nats.Msg{first, first, ballot("alice")} { // once more, and by another event: it counts once
			out, why := a.asked(m)
			if why != nil || out.State != events.DecisionPending || out.Quorum.Need != 2 || len(out.Quorum.Votes) != 1 || out.Quorum.Votes[0].Principal != "alice" {
				t.Fatalf("vote %d: %+v, %v", i, out, why)
			}
		}
		held, why := a.ask("bob", run, "")
		if why != nil || held.Quorum.Need != 2 || !held.Quorum.Has("alice") {
			t.Errorf("the ask: %+v, %v", held, why)
		}
		out, why := a.asked(ballot("bob"))
		if why != nil || out.State != events.DecisionReleased || out.Answer.Principal != "bob" {
			t.Fatalf("the vote that completes it: %+v, %v", out, why)
		}
		out, why = a.asked(first)
		if why != nil || out.State != events.DecisionReleased {
			t.Errorf("the first vote again: %+v, %v", out, why)
		}
		out, why = a.asked(ballot("carol"))
		wantCode(t, "a vote too late", out, why, events.CodeAlreadyDecided)
		a.completed(run)
	})
}

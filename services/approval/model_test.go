package approval_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
)

var modelRuns = flag.Int("weir.model", 20000, "how many runs of random events the gate is compared with its model in")

// modelWorlds is among how many servers these runs are shared out.
const modelWorlds = 4

// TestB8_1GateFollowsTheModel compares the gate with a small model of one call. Random events come in a random order: decisions
// right and wrong, timers, cancels, what an executor does, all of them once more, beside each other, and handlers that are
// killed between any two of their steps. After each the chain stands where the model stands, and a decision that does not
// count is refused with the model's code.
func TestB8_1GateFollowsTheModel(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"rapid.checks": max(*modelRuns/modelWorlds, 1), "rapid.steps": 5} {
		if err := flag.Set(name, fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range modelWorlds {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			rapid.Check(t, func(rt *rapid.T) { b.play(rt) })
			b.w.Check(false)
		})
	}
}

// bench drives two gates by hand, one of which can be killed at any boundary.
type bench struct {
	w      *sim.World
	gates  [2]*approval.Service
	mortal *approval.Service
	left   atomic.Int64 // boundaries that the mortal gate has left to live; below 0 it lives for ever
	defs   events.Definitions
	runs   int
}

var errModelKill = errors.New("the gate was killed")

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{w: sim.New(t, sim.Options{
		Tools: []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})},
		Rules: map[string]events.RuleSet{"default": {Name: "default", Rules: []events.Rule{
			{Name: "money", Tools: []string{"pay"}, Action: events.RuleAsk, Approvers: []string{"user:alice"}, NotRequester: true},
		}}},
	})}
	for i := range b.gates {
		b.gates[i] = newGate(b.w, b.w.Dial("gate", nil))
	}
	b.left.Store(-1)
	step := func() error {
		if b.left.Load() >= 0 && b.left.Add(-1) < 0 {
			b.left.Store(0)
			return errModelKill
		}
		return nil
	}
	conn, err := jetstream.Connect(t.Context(), jetstream.Options{
		InProcess: b.w.Server.InProcess(), Name: "mortal",
		Hooks: jetstream.Hooks{
			BeforeAppend: func(events.Event) error { return step() },
			AfterAppend:  func(events.Event, jetstream.Outcome) error { return step() },
			At:           func(string, string) error { return step() },
		},
	})
	must(b.w, err)
	t.Cleanup(func() { _ = conn.Close() })
	b.mortal = newGate(b.w, conn)
	agentDef, err := b.w.Conn().Named(t.Context(), events.RegistryAgent, "support")
	must(b.w, err)
	pay, err := b.w.Conn().Named(t.Context(), events.RegistryTool, "pay")
	must(b.w, err)
	b.defs = events.Definitions{Agent: events.Digest(agentDef), Tools: map[string]string{"pay": events.Digest(pay)}}
	return b
}

// Phases of the model's call.
const (
	held     = "held"
	released = "released"
	running  = "running"
	finished = "finished"
)

// game is one run: what has been stored, and the model of it.
type game struct {
	*bench
	t    *rapid.T
	run  string
	call events.CallID
	step jetstream.Delivery

	phase   string
	kind    events.AskKind
	round   int
	outcome events.Outcome
	answers int
	goes    int
	attempt int
	counted string          // the decision that counted last
	decided events.Decision // it, or expired
	ended   bool

	ask     events.CallHeld
	head    events.Event // of the call's chain
	before  string       // the fingerprint of the round before
	suspend *jetstream.Delivery
	sent    []jetstream.Delivery // decisions, to be delivered again
}

func (b *bench) play(t *rapid.T) {
	b.runs++
	g := &game{bench: b, t: t, run: events.NewID(time.Now()), phase: held, kind: events.AskApproval}
	g.call = events.CallID{Run: g.run, Step: 1, Index: 1}
	g.begin()
	t.Repeat(map[string]func(*rapid.T){
		"":            g.check,
		"decide":      g.decide,
		"decide well": g.decideWell,
		"again":       g.again,
		"timer":       g.timer,
		"executor":    g.executor,
		"cancel":      g.cancel,
		"step again":  func(t *rapid.T) { g.deliver(approval.HandleFact, g.step, t) },
		"suspend again": func(t *rapid.T) {
			if g.suspend == nil {
				t.Skip("nothing has suspended itself")
			}
			g.deliver(approval.HandleFact, *g.suspend, t)
		},
		"sweep": g.sweep,
	})
	g.checkCounts(t)
}

func (g *game) ns() events.Namespace { return g.w.Conn().Namespace() }

func (g *game) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// begin stores a run with one step, and lets the gate ask about its call.
func (g *game) begin() {
	o := &events.Origin{Namespace: g.ns(), Service: "planner"}
	start := events.RunStarted{
		RunID: g.run, RootRunID: g.run, Path: []events.PathEntry{{AgentID: "support", RunID: g.run}}, AgentID: "support",
		Requester: "bob", InboxSeq: 1, RequestID: g.run, Definitions: g.defs,
		Request: events.RunRequested{
			AgentID: "support", RunID: g.run, Messages: events.Prompt{events.TextMessage(events.RoleUser, "pay")},
		},
	}
	began := g.append(o, g.ns().Start(g.run), events.Event{}, start)
	planned := events.CallPlanned{ToolCallID: g.call.String(), ToolName: "pay", Args: `{"orderId":"42"}`, ProviderCallID: "c1"}
	step := g.append(o, g.ns().Step(g.run, 1), began, events.StepFinished{
		RunID: g.run, Step: 1, Attempt: 1, MessageID: "m1", Message: events.TextMessage(events.RoleAssistant, "I pay."),
		Calls: []events.CallPlanned{planned}, FinishReason: "tool-calls", Model: "scripted/sim",
	})
	g.step = jetstream.Delivery{Event: step, Subject: step.Place.Subject(), Attempt: 1}
	g.deliver(approval.HandleFact, g.step, g.t)
}

// append stores a fact of another service after prev (the zero event: first of its chain).
func (g *game) append(o *events.Origin, p events.Place, prev events.Event, data any) events.Event {
	g.t.Helper()
	e, err := o.Fact(p, data, prev)
	g.must(err)
	guard := events.First(p)
	if prev.Seq > 0 && prev.Place.Chain() == p.Chain() {
		guard = events.After(prev)
	}
	a, err := g.w.Conn().Append(g.w.T.Context(), guard, e)
	g.must(err)
	if a.Outcome != jetstream.Stored {
		g.t.Fatalf("%s was not stored: %v", p.Subject(), a.Outcome)
	}
	return a.Last
}

// handle is a handler of the gate.
type handle func(*approval.Service, context.Context, jetstream.Delivery) error

// deliver brings an event to the gate in one of the ways in which events come: once, twice, to two gates beside each
// other, or to one that is killed on the way and then to another.
func (g *game) deliver(h handle, d jetstream.Delivery, t *rapid.T) {
	t.Helper()
	ctx := g.w.T.Context()
	switch rapid.SampledFrom([]string{"once", "once", "twice", "beside", "killed"}).Draw(t, "way") {
	case "once":
		g.handled(h(g.gates[0], ctx, d), t)
	case "twice":
		g.handled(h(g.gates[0], ctx, d), t)
		d.Attempt++
		g.handled(h(g.gates[1], ctx, d), t)
	case "beside":
		var wg sync.WaitGroup
		var errs [2]error
		for i, s := range g.gates {
			d := d
			d.Attempt += i
			wg.Go(func() { errs[i] = h(s, ctx, d) })
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil && !jetstream.IsLater(err) {
				t.Fatalf("beside: %v", err)
			}
		}
	case "killed":
		g.left.Store(int64(rapid.IntRange(0, 12).Draw(t, "lives for")))
		err := h(g.mortal, ctx, d)
		g.left.Store(-1)
		if err != nil {
			d.Attempt++
			g.handled(h(g.gates[1], ctx, d), t)
		}
	}
}

// handled demands that a delivery is settled.
func (g *game) handled(err error, t *rapid.T) {
	t.Helper()
	if err != nil {
		t.Fatalf("not handled: %v", err)
	}
}

// check compares the chain of the call with the model.
func (g *game) check(t *rapid.T) {
	last, err := g.w.Conn().Last(g.w.T.Context(), g.ns().Call(g.call, events.KindAsk).Chain())
	g.must(err)
	g.head = last
	want := map[string]events.Kind{held: events.KindAsk, released: events.KindGo, running: events.KindClaim, finished: events.KindResult}[g.phase]
	if last.Place.Kind != want {
		t.Fatalf("the chain ends in %s, the model is %s", last.Place.Kind, g.phase)
	}
	switch g.phase {
	case held:
		g.checkAsk(t)
	case finished:
		d, err := events.Data[events.CallFinished](last)
		g.must(err)
		if d.Outcome != g.outcome || d.Started != (g.attempt > 0) {
			t.Fatalf("the result is %s, started: %v; want %s, %v", d.Outcome, d.Started, g.outcome, g.attempt > 0)
		}
	}
}

func (g *game) checkAsk(t *rapid.T) {
	ask, err := events.Data[events.CallHeld](g.head)
	g.must(err)
	if ask.Kind != g.kind || ask.Round != g.round || ask.Attempt != g.attempt {
		t.Fatalf("the ask is %s of round %d after %d attempts; want %s, %d, %d", ask.Kind, ask.Round, ask.Attempt, g.kind, g.round, g.attempt)
	}
	g.ask = ask
	key := events.SuspendedKey("support", "", "", g.run, g.run)
	snap, _, err := g.w.Conn().Snapshot(g.w.T.Context(), key)
	g.must(err)
	if len(snap.Asks) != 1 || snap.Asks[0].Round != g.round || snap.Asks[0].Fingerprint != ask.Fingerprint {
		t.Fatalf("the entry lists %+v, the ask is of round %d", snap.Asks, g.round)
	}
}

// checkCounts demands that each answer and each release was stored once.
func (g *game) checkCounts(t *rapid.T) {
	counts := map[events.Kind]int{}
	filter := g.ns().CallsOf(g.run)
	for seq := uint64(0); ; {
		e, err := g.w.Conn().NextFact(g.w.T.Context(), seq, filter)
		if errors.Is(err, jetstream.ErrNotFound) {
			break
		}
		g.must(err)
		seq = e.Seq
		counts[e.Place.Kind]++
	}
	if counts[events.KindAnswer] != g.answers || counts[events.KindGo] != g.goes {
		t.Fatalf("%d answers and %d releases are stored, want %d and %d", counts[events.KindAnswer], counts[events.KindGo], g.answers, g.goes)
	}
}

// decide sends any decision.
func (g *game) decide(t *rapid.T) {
	d := events.DecisionRequested{
		ToolCallID: g.call.String(), Reason: "because",
		Decision: rapid.SampledFrom([]events.Decision{
			events.Approve, events.Decline, events.Edit, events.Respond, events.ResumeD, events.Retry,
		}).Draw(t, "decision"),
	}
	who := rapid.SampledFrom([]string{"alice", "alice", "alice", "bob", "eve"}).Draw(t, "who")
	switch rapid.IntRange(0, 3).Draw(t, "round") {
	case 0, 1:
		d.Round = &g.ask.Round
	case 2:
		d.Round = new(g.round + rapid.SampledFrom([]int{-1, 1, 7}).Draw(t, "off by"))
		if *d.Round < 0 {
			d.Round = nil
		}
	}
	switch rapid.IntRange(0, 4).Draw(t, "fingerprint") {
	case 0, 1, 2:
		d.Fingerprint = g.ask.Fingerprint
	case 3:
		d.Fingerprint = g.before
	}
	data := rapid.SampledFrom([]string{`{"orderId":"43"}`, `{"orderId":43}`, ``, `null`}).Draw(t, "data")
	if data != "" {
		d.Args, d.Result, d.ResumeData = json.RawMessage(data), json.RawMessage(data), json.RawMessage(data)
	}
	g.send(t, who, d, rapid.IntRange(0, 9).Draw(t, "late") == 0)
}

// decideWell sends a decision that counts when the call is held.
func (g *game) decideWell(t *rapid.T) {
	d := events.DecisionRequested{
		ToolCallID: g.call.String(), Decision: rapid.SampledFrom(g.ask.Allowed).Draw(t, "decision"), Round: &g.ask.Round,
		Fingerprint: g.ask.Fingerprint, Args: json.RawMessage(`{"orderId":"43"}`), Result: json.RawMessage(`1`),
		ResumeData: json.RawMessage(`true`),
	}
	g.send(t, "alice", d, false)
}

func (g *game) send(t *rapid.T, who string, req events.DecisionRequested, late bool) {
	o := &events.Origin{Namespace: g.ns(), Service: "test"}
	subject := g.ns().InDecide(who, g.call)
	e, err := o.RequestBy(subject, g.run, who, req)
	if err != nil { // the event itself breaks its schema
		t.Skip(err)
	}
	e.Seq, e.Stored = 1, time.Now()
	if late {
		e.Stored = g.ask.ExpiresAt.Add(time.Second)
	}
	d := jetstream.Delivery{Event: e, Subject: subject, Attempt: 1}
	want := g.expect(who, req, late)
	g.deliver(approval.HandleRequest, d, t)
	g.checkRefusal(t, e.ID, want)
	if want == "" {
		g.accept(req, e.ID)
	}
	g.sent = append(g.sent, d)
}

// expect is the code with which the model refuses a decision; empty when it counts.
func (g *game) expect(who string, d events.DecisionRequested, late bool) events.Code {
	fits := func(schema string) bool {
		switch string(d.Args) {
		case `{"orderId":"43"}`:
			return true
		case `1`, `true`:
			return schema == ""
		default:
			return false
		}
	}
	switch {
	case g.phase != held && g.decided != "":
		return events.CodeAlreadyDecided
	case g.phase != held:
		return events.CodeRunEnded // without a decision a held call only ends by a cancel
	case who != "alice":
		return events.CodeForbidden
	case d.Round != nil && *d.Round != g.round, g.round > 0 && d.Round == nil && d.Fingerprint == "":
		return events.CodeChanged
	case !g.ask.Takes(d.Decision):
		return events.CodeWrongKind
	case d.Fingerprint == "" && d.Decision == events.Edit, d.Fingerprint != "" && d.Fingerprint != g.ask.Fingerprint:
		return events.CodeChanged
	case d.Decision == events.Edit && !fits("order"):
		return events.CodeInvalidData
	case d.Decision == events.Respond && len(d.Result) == 0, d.Decision == events.ResumeD && len(d.ResumeData) == 0:
		return events.CodeInvalidData
	case late:
		return events.CodeExpired
	}
	return ""
}

// accept moves the model on.
func (g *game) accept(d events.DecisionRequested, id string) {
	g.answers++
	g.counted, g.decided, g.before = id, d.Decision, g.ask.Fingerprint
	switch d.Decision {
	case events.Decline:
		g.phase, g.outcome = finished, events.OutcomeDeclined
	case events.Respond:
		g.phase, g.outcome = finished, events.OutcomeResponded
	case events.Edit:
		g.kind, g.round = events.AskApproval, g.round+1
	default:
		g.phase = released
		g.goes++
	}
}

func (g *game) checkRefusal(t *rapid.T, id string, want events.Code) {
	t.Helper()
	fact, err := g.w.Conn().Fact(g.w.T.Context(), g.ns().Beside(g.call, events.KindRefused, id))
	if errors.Is(err, jetstream.ErrNotFound) {
		if want != "" {
			t.Fatalf("not refused, want %s", want)
		}
		return
	}
	g.must(err)
	d, err := events.Data[events.DecisionRefused](fact)
	g.must(err)
	if d.Code != want {
		t.Fatalf("refused as %s (%s), want %q", d.Code, d.Message, want)
	}
}

// again delivers a decision that was sent before: whatever has happened since, it changes nothing.
func (g *game) again(t *rapid.T) {
	if len(g.sent) == 0 {
		t.Skip("nothing was sent")
	}
	d := rapid.SampledFrom(g.sent).Draw(t, "which")
	d.Attempt = 2
	g.deliver(approval.HandleRequest, d, t)
	if d.Event.ID == g.counted {
		g.checkRefusal(t, d.Event.ID, "")
	}
}

// timer fires for any round, in time or early.
func (g *game) timer(t *rapid.T) {
	due := rapid.Bool().Draw(t, "due")
	o := &events.Origin{Namespace: g.ns(), Service: approval.Name}
	subject := g.ns().TimerFire(events.TimerID(g.call, g.round))
	e, err := o.Request(subject, g.run, events.TimerFired{
		RunID: g.run, ToolCallID: g.call.String(), Round: rapid.IntRange(0, g.round).Draw(t, "round"), Purpose: events.TimerExpire,
	}, events.Event{})
	g.must(err)
	e.Stored = time.Now()
	if due {
		e.Stored = g.ask.ExpiresAt
	}
	g.deliver(approval.HandleTimer, jetstream.Delivery{Event: e, Subject: subject, Attempt: 1}, t)
	if due && g.phase == held {
		g.answers++
		g.phase, g.outcome, g.decided, g.counted = finished, events.OutcomeExpired, events.Expired, ""
	}
}

// executor takes a released call one step on.
func (g *game) executor(t *rapid.T) {
	o := &events.Origin{Namespace: g.ns(), Service: "tool-executor"}
	switch g.phase {
	case released:
		g.attempt++
		g.append(o, g.ns().Call(g.call, events.KindClaim), g.head, events.CallClaimed{
			ToolCallID: g.call.String(), RunID: g.run, Round: g.round, Attempt: g.attempt, GoSeq: g.head.Seq, Worker: "w1",
			LeaseUntil: time.Now().Add(time.Minute),
		})
		g.phase = running
	case running:
		g.goOn(o, rapid.SampledFrom([]string{"finish", "suspend", "suspend", "doubt"}).Draw(t, "what"), t)
	default:
		t.Skip("nothing runs")
	}
}

func (g *game) goOn(o *events.Origin, what string, t *rapid.T) {
	if what == "finish" {
		g.append(o, g.ns().Call(g.call, events.KindResult), g.head, events.CallFinished{
			ToolCallID: g.call.String(), RunID: g.run, ToolName: "pay", Round: g.round, Outcome: events.OutcomeOK, Started: true,
			Attempt: g.attempt, ClaimSeq: g.head.Seq, Worker: "w1", Result: json.RawMessage(`"done"`),
		})
		g.phase, g.outcome = finished, events.OutcomeOK
		return
	}
	d := events.CallSuspended{
		ToolCallID: g.call.String(), RunID: g.run, Round: g.round, Reason: events.SuspendedByTool,
		SuspendPayload: json.RawMessage(`"which?"`), Attempt: g.attempt, Worker: "w1",
	}
	g.kind = events.AskSuspended
	if what == "doubt" {
		g.kind = events.AskInDoubt
		d.Reason, d.SuspendPayload, d.Since = events.SuspendInDoubt, nil, new(time.Now())
		d.Claim = &events.ClaimBrief{By: "w1", At: time.Now(), Attempt: g.attempt}
	}
	fact := g.append(o, g.ns().Call(g.call, events.KindSuspend), g.head, d)
	g.suspend = &jetstream.Delivery{Event: fact, Subject: fact.Place.Subject(), Attempt: 1}
	g.phase, g.round = held, g.round+1
	g.deliver(approval.HandleFact, *g.suspend, t)
}

// cancel ends the run.
func (g *game) cancel(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
		t.Skip("too early")
	}
	o := &events.Origin{Namespace: g.ns(), Service: "test"}
	subject := g.ns().InCancel("bob", g.run)
	e, err := o.RequestBy(subject, g.run, "bob", events.CancelRequested{RunID: g.run, Reason: "enough"})
	g.must(err)
	e.Seq, e.Stored = 1, time.Now()
	g.deliver(approval.HandleRequest, jetstream.Delivery{Event: e, Subject: subject, Attempt: 1}, t)
	g.ended = true
	if g.phase != finished {
		g.phase, g.outcome = finished, events.OutcomeCancelled
	}
}

// sweep lets the sweeper look at the call and at the entry of its run.
func (g *game) sweep(t *rapid.T) {
	ctx, soon := g.w.T.Context(), time.Now().Add(time.Minute)
	g.handled(approval.SweepHeld(g.gates[1], ctx, g.ns().Call(g.call, events.KindAsk), soon), t)
	if g.phase != held {
		return
	}
	snap, _, err := g.w.Conn().Snapshot(ctx, events.SuspendedKey("support", "", "", g.run, g.run))
	g.must(err)
	if rapid.Bool().Draw(t, "old") {
		soon = soon.Add(12 * time.Hour) // so that the ask is carried
	}
	g.handled(approval.SweepEntry(g.gates[1], ctx, snap, soon), t)
}

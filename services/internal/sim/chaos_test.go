package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

var (
	seeds = flag.Int("weir.seeds", 2000, "how many seeds the simulation runs")
	seed  = flag.Int64("weir.seed", 1, "the first of them; the others follow it one by one")
)

// TestSimulation runs two copies of each service in fake time under random faults: copies killed at any boundary,
// restarts of the server, lost replies, lost acknowledgements and so repeated deliveries, slow writers, contradicting
// deciders and cancels at any moment. A seed chooses the traffic and the faults, not the schedule of goroutines.
func TestSimulation(t *testing.T) {
	t.Parallel()
	var (
		mu    sync.Mutex
		total = jetstreamtest.Report{}
	)
	t.Run("seeds", func(t *testing.T) {
		const batch = 20
		for from := 0; from < *seeds; from += batch {
			t.Run(fmt.Sprint(*seed+int64(from)), func(t *testing.T) {
				t.Parallel()
				for s := from; s < min(from+batch, *seeds); s++ {
					r := jetstreamtest.Report{}
					simulate(t, *seed+int64(s), r)
					mu.Lock()
					total.Add(r)
					mu.Unlock()
				}
			})
		}
	})
	if *seeds >= 100 {
		sometimes(t, total)
	}
}

// sometimes demands that the simulation has been everywhere that it should be: one that avoids a branch proves little.
func sometimes(t *testing.T, r jetstreamtest.Report) {
	t.Helper()
	t.Logf("reached: %v", r)
	for _, branch := range []string{
		"run:completed", "run:cancelled", "answer:approve", "answer:decline", "answer:edit", "answer:respond",
		"answer:resume", "answer:expired", "ask:approval", "ask:suspended", "ask:in_doubt", "suspend:in_doubt",
		"suspend:suspended", "result:ok", "result:declined", "result:expired", "result:cancelled", "result:responded",
		"claim:again", "late", "refused", "vote", "answer:votes", "ask:escalated", "ask:deadline", "ask:reminded",
		"answer:auto_resume", "run:resumed", "go:grant", "use", "start:tool",
		"child:started", "delegated:ok", "delegated:cancelled", "task:seen", "task:unseen", "task:outlasts", "start:bounded",
	} {
		if r[branch] == 0 {
			t.Errorf("no seed reached %s", branch)
		}
	}
}

// simulate runs one seed and adds what its log holds to r.
func simulate(t *testing.T, seed int64, r jetstreamtest.Report) {
	t.Helper()
	failedBefore := t.Failed()
	synctest.Test(t, func(t *testing.T) {
		c := newChaos(t, seed)
		c.run()
		r.Add(c.w.Check(true))
	})
	if t.Failed() && !failedBefore {
		t.Errorf("replay: go test ./services/internal/sim -run TestSimulation -weir.seeds=1 -weir.seed=%d", seed)
	}
}

// chaos is one seed: a world, its faults and its traffic.
type chaos struct {
	t   *testing.T
	w   *World
	mu  sync.Mutex
	rng *rand.Rand

	faults  bool            // under the lock: faults happen
	ignored map[string]bool // under the lock: runs whose asks nobody answers
	respawn sync.WaitGroup
}

// Chances of faults at each boundary, in a thousand.
const (
	killChance = 4
	loseChance = 20
	dropChance = 30 // of an acknowledgement
	slowChance = 15
)

func newChaos(t *testing.T, seed int64) *chaos {
	t.Helper()
	c := &chaos{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 1)), faults: true, ignored: map[string]bool{}}
	c.w = New(t, Options{
		Point: c.point,
		Tools: c.tools(),
		Agent: talker(c.tools(), seed), Agents: []events.AgentDef{helper(c.tools())},
		Rules: severe(seed),
		Gate:  func(g *approval.Config) { g.Expires, g.Sweep = 3*time.Minute, time.Minute },
		Plan:  func(p *planner.Config) { p.Sweep = time.Minute },
		Conn: func(o *jetstream.Options) {
			o.Hooks.LoseReply = func(string) bool { return c.chance(loseChance) }
		},
		Drop: func() bool { return c.chance(dropChance) },
	})
	return c
}

// helper is an agent that another delegates to.
func helper(tools []agent.Tool) events.AgentDef {
	def := events.AgentDef{ID: "helper", Model: "scripted/sim", Tools: map[string]string{}}
	for _, t := range tools[:3] {
		def.Tools[t.Manifest().ID] = t.Manifest().ID
	}
	return def
}

// talker is an agent of these tools whose threads resume them automatically. In some worlds it calls some or all of them in the
// background, in others it has a helper or two.
func talker(tools []agent.Tool, seed int64) events.AgentDef {
	def := events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{}, AutoResumeSuspendedTools: true}
	for _, t := range tools {
		def.Tools[t.Manifest().ID] = t.Manifest().ID
	}
	switch seed % 6 {
	case 3:
		def.Agents = map[string]string{"a": "helper"}
	case 4:
		def.Agents, def.Tools = map[string]string{"a": "helper", "b": "helper"}, map[string]string{"d_mail": "d_mail"}
	}
	on := events.Background{Enabled: true}
	def.BackgroundTasks = map[int64]*events.BackgroundTasks{
		0: {Tools: events.BackgroundTools{All: true}},
		1: {Tools: events.BackgroundTools{By: map[string]events.Background{"d_mail": on}}},
		2: {Tools: events.BackgroundTools{By: map[string]events.Background{"b_refund": on, "c_pay": on}}},
	}[seed%6]
	return def
}

// chance decides by the seed whether a fault happens now.
func (c *chaos) chance(inThousand int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.faults && c.rng.IntN(1000) < inThousand
}

// pick is a number below n, by the seed.
func (c *chaos) pick(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

// tools are a lookup, a refund that needs approval, one that suspends itself, and one that may be repeated; all may take
// their time.
func (c *chaos) tools() []agent.Tool {
	return []agent.Tool{
		c.tool("a_lookup", agent.ReadOnly, false, false), c.tool("b_refund", agent.Effectful, true, false),
		c.tool("c_pay", agent.Effectful, false, true), c.tool("d_mail", agent.Idempotent, false, false),
	}
}

// tool takes its time, may fail or suspend itself once, and has its effect counted.
func (c *chaos) tool(id string, effect events.Effect, approval, suspends bool) agent.Tool {
	return agent.NewTool(id, "A tool that does "+id,
		func(ctx context.Context, call *agent.Call, in Order) (map[string]any, error) {
			if c.pick(10) == 0 {
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(c.pick(100)) * time.Second): // fake
				}
			}
			if suspends && !call.Resumed() {
				return nil, call.Suspend(map[string]string{"order": in.OrderID})
			}
			c.w.Effects.Add(call.IdempotencyKey())
			if c.pick(10) == 0 {
				return nil, errors.New("the bank is closed")
			}
			return map[string]any{"done": id, "order": in.OrderID}, nil
		}, &agent.ToolOptions{
			Effect: effect, RequireApproval: &events.Approval{Always: approval}, ResumeSchema: json.RawMessage(`{"type":"boolean"}`),
		})
}

// point lets faults happen at a boundary of a copy.
func (c *chaos) point(name string, at *Copy) {
	switch {
	case c.chance(killChance):
		at.Kill()
		c.respawn.Go(func() {
			time.Sleep(time.Duration(c.pick(20)) * time.Second) // fake
			c.start(at.Service)
		})
	case strings.HasPrefix(name, jetstream.BeforeSettle): // under the loop's lock: nothing may wait there
	case c.chance(slowChance):
		time.Sleep(time.Duration(c.pick(45)) * time.Second) // fake
	}
}

func (c *chaos) start(service string) {
	if c.t.Context().Err() != nil {
		return
	}
	c.w.Start(service)
}

var services = []string{planner.Name, approval.Name, toolexecutor.Name}

// run is the life of a seed: traffic under faults, then calm, in which everything must come to its end.
func (c *chaos) run() {
	for range 2 {
		for _, s := range services {
			c.start(s)
		}
	}
	var traffic sync.WaitGroup
	for range 1 + c.pick(2) {
		traffic.Go(c.client)
	}
	if c.pick(4) == 0 {
		time.Sleep(time.Duration(c.pick(60)) * time.Second) // fake
		c.restart()
	}
	traffic.Wait()
	c.calm()
}

// restart kills everything at once and stops the server, and starts it all again.
func (c *chaos) restart() {
	c.strike(false) // nobody comes back while the server is away
	c.respawn.Wait()
	c.w.Restart()
	for range 2 {
		for _, s := range services {
			c.start(s)
		}
	}
	c.strike(true)
}

// strike lets faults happen, or not.
func (c *chaos) strike(faults bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = faults
}

// calm ends the faults, makes sure that one copy of each service lives, decides what is in doubt, and waits.
func (c *chaos) calm() {
	c.strike(false)
	c.respawn.Wait()
	for _, s := range services {
		c.start(s)
	}
	for range 120 {
		time.Sleep(30 * time.Second) // fake
		if c.settle() == 0 {
			break
		}
	}
	time.Sleep(2 * time.Minute) // fake: entries and timers follow the ends
}

// settle decides every call that is in doubt or waits for data, and returns how many runs are open.
func (c *chaos) settle() int {
	open := 0
	keys, err := c.w.Conn().Subjects(c.t.Context(), c.w.Conn().Namespace().EveryMain(events.KindStart))
	c.w.must(err)
	for _, subject := range keys {
		p, err := events.ParsePlace(subject)
		c.w.must(err)
		end, err := c.w.Conn().Fact(c.t.Context(), c.w.Conn().Namespace().End(p.Run))
		if err == nil && !c.outlasted(end) {
			continue
		}
		open++
		c.settleRun(p.Run)
	}
	return open
}

// outlasted reports whether a background call of an ended run goes on.
func (c *chaos) outlasted(end events.Event) bool {
	d, err := events.Data[events.RunEnded](end)
	c.w.must(err)
	return slices.ContainsFunc(d.Background, func(t events.OpenTask) bool {
		call, err := events.CallOf(d.RunID, t.C)
		c.w.must(err)
		last, err := c.w.Conn().Last(c.t.Context(), c.w.Conn().Namespace().Call(call, events.KindAsk).Chain())
		return err == nil && last.Place.Kind != events.KindResult
	})
}

func (c *chaos) settleRun(run string) {
	subjects, err := c.w.Conn().Subjects(c.t.Context(), c.w.Conn().Namespace().CallsOf(run))
	c.w.must(err)
	c.mu.Lock()
	ignored := c.ignored[run]
	c.mu.Unlock()
	seen := map[string]bool{}
	for _, subject := range subjects {
		p, err := events.ParsePlace(subject)
		if err != nil || seen[p.Call] {
			continue
		}
		seen[p.Call] = true
		last, err := c.w.Conn().Last(c.t.Context(), p.Chain())
		if err != nil || last.Place.Kind != events.KindAsk {
			continue
		}
		ask, err := events.Data[events.CallHeld](last)
		c.w.must(err)
		if ask.Kind == events.AskApproval && ignored {
			continue // it expires
		}
		c.w.Decide("alice", events.DecisionRequested{
			Decision: events.Decline, ToolCallID: ask.ToolCallID,
			Fingerprint: ask.Fingerprint, Reason: "the end of the test",
		})
	}
}

// client starts a run, and decides or cancels it as the seed says. Some say one more thing in their thread.
func (c *chaos) client() {
	time.Sleep(time.Duration(c.pick(30)) * time.Second) // fake
	thread := events.NewID(time.Now())
	c.oneRun(thread)
	if c.pick(3) == 0 {
		c.oneRun(thread)
	}
}

// begin asks for a run of the agent, or now and then for one of a single tool.
func (c *chaos) begin(thread string) (string, error) {
	if c.pick(6) == 0 {
		tools := c.tools()
		return c.w.TryCall(thread, tools[c.pick(len(tools))].Manifest().ID, RawJSON(`{"orderId":"42"}`))
	}
	return c.w.TrySay(thread, "refund order 42", func(r *events.RunRequested) { r.ToolCallConcurrency = events.Concurrency(c.pick(3)) })
}

func (c *chaos) oneRun(thread string) {
	run, err := c.begin(thread)
	if err != nil {
		return // the server was away: nothing was accepted
	}
	if c.pick(8) == 0 {
		c.mu.Lock()
		c.ignored[run] = true
		c.mu.Unlock()
		return
	}
	cancelAt := -1
	if c.pick(4) == 0 {
		cancelAt = c.pick(5)
	}
	for round := range 5 {
		time.Sleep(time.Duration(1+c.pick(12)) * time.Second) // fake
		if round == cancelAt {
			_ = c.w.TryCancel("bob", c.cancelled(run))
		}
		if c.pick(16) == 0 {
			_, _ = c.w.TrySay(thread, "resume:true") // if it is no answer, it is one more run
		}
		if c.pick(6) == 0 {
			c.grant(thread)
		}
		for _, call := range c.open(run) {
			c.decide(call)
		}
	}
}

// cancelled is the run that a cancel is of: the run, or now and then one that it has delegated to.
func (c *chaos) cancelled(run string) string {
	if calls := c.open(run); len(calls) > 0 && c.pick(3) == 0 {
		return calls[c.pick(len(calls))].Run
	}
	return run
}

// open are the calls of a run, and of those below it, that have no result, as far as the server is there to say so.
func (c *chaos) open(run string) []events.CallID {
	over := map[events.CallID]bool{}
	for runs := []string{run}; len(runs) > 0; runs = runs[1:] {
		subjects, err := c.w.Conn().Subjects(c.t.Context(), c.w.Conn().Namespace().CallsOf(runs[0]))
		if err != nil {
			return nil
		}
		for _, subject := range subjects {
			p, err := events.ParsePlace(subject)
			c.w.must(err)
			if p.Delegated() {
				runs = append(runs, p.CallID().String())
			}
			over[p.CallID()] = over[p.CallID()] || p.Kind == events.KindResult
		}
	}
	var open []events.CallID
	for call, ended := range over {
		if !ended {
			open = append(open, call)
		}
	}
	slices.SortFunc(open, func(a, b events.CallID) int { return cmp.Compare(a.String(), b.String()) })
	return open
}

// grant asks for a grant, under an id that may be taken, or takes one back. The server may be away.
func (c *chaos) grant(thread string) {
	id := fmt.Sprintf("g%d", c.pick(6))
	if c.pick(3) == 0 {
		if found, err := c.w.Conn().Grants(c.t.Context(), events.GrantFilter{}); err == nil && len(found) > 0 {
			id = found[c.pick(len(found))].ID
		}
		_ = c.w.TryGrant("alice", id, events.GrantRevoked{ID: id})
		return
	}
	_ = c.w.TryGrant("alice", id, events.GrantRequested{
		ID: id, AgentID: "support", ToolID: "b_refund", ThreadID: thread, Terms: *c.terms(events.ScopeThread),
	})
}

// terms are those of a grant that ends soon, in time or in uses, and may have a condition.
func (c *chaos) terms(scope string) *events.GrantTerms {
	return &events.GrantTerms{
		Scope: scope, For: events.Duration(time.Duration(1+c.pick(4)) * time.Minute), Uses: 1 + c.pick(3),
		When: []string{"", `args.orderId == "42"`, `args.nothing == 1`}[c.pick(3)],
	}
}

// decide lets up to three deciders contradict each other about a call that is held.
func (c *chaos) decide(call events.CallID) {
	if c.pick(3) == 0 {
		return
	}
	last, err := c.w.Conn().Last(c.t.Context(), c.w.Conn().Namespace().Call(call, events.KindAsk).Chain())
	if err != nil || last.Place.Kind != events.KindAsk {
		return
	}
	ask, err := events.Data[events.CallHeld](last)
	c.w.must(err)
	for range 1 + c.pick(3) {
		d := c.decision(ask)
		_ = c.w.TryDecide(c.decider(ask), d) // the server may be away: the log tells what counted
	}
}

func (c *chaos) decision(ask events.CallHeld) events.DecisionRequested {
	d := events.DecisionRequested{
		ToolCallID: ask.ToolCallID, Fingerprint: ask.Fingerprint,
		Decision: ask.Allowed[c.pick(len(ask.Allowed))], Reason: "by the seed",
	}
	if ask.Quorum != nil && c.pick(2) == 0 { // what needs several approvals is approved more often, and without a grant
		d.Decision = events.Approve
		return d
	}
	switch d.Decision {
	case events.Approve:
		if scope := []string{"", events.ScopeRun, events.ScopeThread}[c.pick(3)]; scope != "" {
			d.Grant = c.terms(scope) // of a run without a thread it is refused
		}
	case events.Edit:
		d.Args = RawJSON(fmt.Sprintf(`{"orderId":"%d"}`, c.pick(3)))
	case events.Respond:
		d.Result = RawJSON(`{"by":"hand"}`)
	case events.ResumeD:
		d.ResumeData = RawJSON(`true`)
	default:
	}
	if c.pick(20) == 0 {
		d.Fingerprint = "sha256:00"
	}
	return d
}

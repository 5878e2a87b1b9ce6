package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/approval"
)

// plot is a story that a world is taken through; it returns the runs that must have ended when it is over.
type plot struct {
	name  string
	opts  func() Options
	drive func(w *World) []string
	want  events.RunOutcome
}

// patience is how long a run may take in fake time when a service is killed on its way: deliveries come again after
// the ack deadline, leases of dead workers last 30 s, and sweepers look once a minute.
const patience = 10 * time.Minute

var plots = []plot{
	{name: "approve", opts: twoTools, want: events.RunCompleted, drive: func(w *World) []string {
		return []string{w.decided(events.Approve)}
	}},
	{name: "decline", opts: twoTools, want: events.RunCompleted, drive: func(w *World) []string {
		return []string{w.decided(events.Decline)}
	}},
	{name: "cancel", opts: twoTools, want: events.RunCancelled, drive: func(w *World) []string {
		run := w.Request("refund order 42, then think again")
		w.AwaitAsk(refundOf(run), patience)
		w.Cancel("bob", run)
		w.AwaitEnd(run, patience)
		return []string{run}
	}},
	{name: "background", opts: allInBackground, want: events.RunCompleted, drive: func(w *World) []string {
		return []string{w.decided(events.Approve)}
	}},
	{name: "thread", opts: remembering, want: events.RunCompleted, drive: func(w *World) []string { return w.remembered() }},
	{name: "deletion", opts: remembering, want: events.RunCancelled, drive: func(w *World) []string { return w.deleted() }},
	{name: "expire", opts: impatient, want: events.RunCompleted, drive: func(w *World) []string {
		run := w.Request("refund order 42, nobody decides")
		w.AwaitEnd(run, time.Hour)
		return []string{run}
	}},
	{name: "grant", opts: twoTools, want: events.RunCompleted, drive: func(w *World) []string { return w.granted() }},
	{name: "quorum", opts: fourEyes, want: events.RunCompleted, drive: func(w *World) []string { return []string{w.voted()} }},
	{name: "repeat", opts: insistent, want: events.RunCompleted, drive: func(w *World) []string { return []string{w.escalated()} }},
	{name: "one tool", opts: twoTools, want: events.RunCompleted, drive: func(w *World) []string {
		run, err := w.TryCall("", "issue_refund", RawJSON(`{"orderId":"42"}`))
		w.must(err)
		call := events.CallID{Run: run, Step: 1, Index: 1}
		ask := w.AwaitAsk(call, patience)
		w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String(), Fingerprint: ask.Fingerprint})
		w.endOrDoubt(run, call)
		return []string{run}
	}},
	{name: "delegate", opts: delegating, want: events.RunCompleted, drive: func(w *World) []string {
		run := w.Request("let somebody refund order 42")
		child := events.CallID{Run: run, Step: 1, Index: 1}.String()
		call := refundOf(child)
		ask := w.AwaitAsk(call, patience)
		w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String(), Fingerprint: ask.Fingerprint})
		w.endOrDoubt(child, call)
		w.AwaitEnd(run, patience)
		return []string{run, child}
	}},
	{name: "cancel below", opts: delegating, want: events.RunCancelled, drive: func(w *World) []string {
		run := w.Request("let somebody refund order 42, then think again")
		child := events.CallID{Run: run, Step: 1, Index: 1}.String()
		w.AwaitAsk(refundOf(child), patience)
		w.Cancel("bob", run)
		w.AwaitEnd(run, patience)
		return []string{run, child}
	}},
	{name: "resume", opts: suspending, want: events.RunCompleted, drive: func(w *World) []string {
		run := w.Request("refund order 42, over the limit")
		call := events.CallID{Run: run, Step: 1, Index: 1}
		ask := w.AwaitAsk(call, patience)
		w.Decide("alice", events.DecisionRequested{
			Decision: events.ResumeD, ToolCallID: call.String(),
			Fingerprint: ask.Fingerprint, ResumeData: RawJSON(`{"ok":true}`),
		})
		w.AwaitEnd(run, patience)
		return []string{run}
	}},
}

func twoTools() Options { return Options{} }

// delegating is an agent whose one tool is another, which has the tools of the story.
func delegating() Options {
	tools := map[string]string{"issue_refund": "issue_refund", "lookup_order": "lookup_order"}
	return Options{
		Agent:  events.AgentDef{ID: "boss", Model: "scripted/sim", Agents: map[string]string{"clerk": "clerk"}},
		Agents: []events.AgentDef{{ID: "clerk", Model: "scripted/sim", Tools: tools}},
	}
}

// allInBackground is an agent whose calls all run in the background: each turn goes on at once, and the run waits for people with
// its last words said.
func allInBackground() Options {
	return Options{Agent: events.AgentDef{
		ID: "support", Model: "scripted/sim", Tools: map[string]string{"issue_refund": "issue_refund", "lookup_order": "lookup_order"},
		BackgroundTasks: &events.BackgroundTasks{Tools: events.BackgroundTools{All: true}}, Limits: &events.Limits{Steps: 20},
	}}
}

// remembering is an agent whose runs keep their threads.
func remembering() Options {
	return Options{Agent: events.AgentDef{
		ID: "support", Model: "scripted/sim", Tools: map[string]string{"issue_refund": "issue_refund", "lookup_order": "lookup_order"},
		Memory: &events.Memory{},
	}}
}

// remembered takes a run of a thread to its end, and then another that recalls it.
func (w *World) remembered() []string {
	runs := []string{"first", "second"}
	first := w.inThread(runs[0], "t1")
	ask := w.AwaitAsk(first, patience)
	w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: first.String(), Fingerprint: ask.Fingerprint})
	w.endOrDoubt(runs[0], first)
	w.inThread(runs[1], "t1") // its model sees the results of the first and has nothing to call
	w.AwaitEnd(runs[1], patience)
	return runs
}

// deleted takes a run of a thread to where it waits, and deletes the thread.
func (w *World) deleted() []string {
	w.AwaitAsk(w.inThread("first", "t1"), patience)
	d := events.DeletionRequested{ResourceID: "bob", ThreadID: "t1"}
	w.publish(w.Conn().Namespace().InThread("bob", d), "", "bob", d)
	w.AwaitEnd("first", patience)
	for deadline := time.Now().Add(patience); ; w.pause(time.Second) {
		if gone, err := w.Conn().Deletion(w.T.Context(), d); err == nil && gone.Done {
			break
		}
		if time.Now().After(deadline) {
			w.T.Fatalf("the thread is not deleted after %v", patience)
		}
	}
	w.pause(2 * time.Minute)
	w.erased("bob")
	return []string{"first"}
}

// impatient asks expire soon: a fake week of signs of life takes minutes of real time.
func impatient() Options {
	return Options{Gate: func(c *approval.Config) { c.Expires = 20 * time.Minute }}
}

// refundOf is the held call of the support story: tools are called in the order of their names.
func refundOf(run string) events.CallID { return events.CallID{Run: run, Step: 1, Index: 1} }

// decided takes the support story to its end. In doubt, the call is declined: people know that it may have happened.
func (w *World) decided(d events.Decision) string {
	run := w.Request("Please refund order 42")
	call := refundOf(run)
	ask := w.AwaitAsk(call, patience)
	w.Decide("alice", events.DecisionRequested{Decision: d, ToolCallID: call.String(), Fingerprint: ask.Fingerprint, Reason: "seen"})
	w.endOrDoubt(run, call)
	return run
}

// granted approves a call for its whole thread. The call of a second run there is released without anybody who looks, and
// that of a third is asked about, because the grant was revoked in between.
func (w *World) granted() []string {
	runs := []string{"first", "second", "third"}
	first := w.inThread(runs[0], "t1")
	ask := w.AwaitAsk(first, patience)
	w.Decide("alice", events.DecisionRequested{
		Decision: events.Approve, ToolCallID: first.String(), Fingerprint: ask.Fingerprint,
		Grant: &events.GrantTerms{Scope: events.ScopeThread, Uses: 2, For: events.Duration(3 * time.Hour)},
	})
	w.endOrDoubt(runs[0], first)
	second := w.inThread(runs[1], "t1")
	w.endOrDoubt(runs[1], second)
	granted, err := w.Conn().Grants(w.T.Context(), events.GrantFilter{})
	w.must(err)
	if len(granted) != 1 {
		w.T.Fatalf("%d grants came of one approval", len(granted))
	}
	w.publish(w.Conn().Namespace().InGrant("carol", granted[0].ID), "", "carol", events.GrantRevoked{ID: granted[0].ID})
	for granted[0].Revoked == nil {
		w.pause(time.Second)
		granted, err = w.Conn().Grants(w.T.Context(), events.GrantFilter{})
		w.must(err)
	}
	third := w.inThread(runs[2], "t1")
	w.AwaitAsk(third, patience)
	w.Decide("alice", events.DecisionRequested{Decision: events.Decline, ToolCallID: third.String()})
	w.AwaitEnd(runs[2], patience)
	if r := w.Check(false); r["go:grant"] != 1 || r["use"] != 1 {
		w.T.Errorf("%d releases by the grant, %d uses of it, want one of each", r["go:grant"], r["use"])
	}
	return runs
}

// inThread starts a run in a thread of bob's and is its held call.
func (w *World) inThread(run, thread string) events.CallID {
	w.RequestAs("bob", events.RunRequested{
		AgentID: w.opts.Agent.ID, RunID: run, ThreadID: thread, ResourceID: "bob",
		Messages: events.Prompt{events.TextMessage(events.RoleUser, "refund order 42")},
	})
	return refundOf(run)
}

// endOrDoubt waits for the end of a run, and settles a call that falls in doubt on the way.
func (w *World) endOrDoubt(run string, call events.CallID) {
	ns := w.Conn().Namespace()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); w.pause(time.Second) {
		if _, err := w.Conn().Fact(w.T.Context(), ns.End(run)); err == nil {
			return
		}
		e, err := w.Conn().Last(w.T.Context(), ns.Call(call, events.KindAsk).Chain())
		if err != nil || e.Place.Kind != events.KindAsk {
			continue
		}
		ask, err := events.Data[events.CallHeld](e)
		w.must(err)
		if ask.Kind == events.AskInDoubt {
			w.Decide("alice", events.DecisionRequested{
				Decision: events.Decline, ToolCallID: call.String(),
				Fingerprint: ask.Fingerprint, Reason: "looked it up",
			})
		}
	}
	w.T.Errorf("run %s has not ended after %v", run, patience)
}

// point is one boundary of one service: the n-th time that it is reached in a story.
type point struct {
	service, name string
	n             int
}

func (p point) String() string { return fmt.Sprintf("%s/%s#%d", p.service, p.name, p.n) }

// passed counts the boundaries that a story passes.
type passed struct {
	mu    sync.Mutex
	count map[string]int
	order []point
}

func (s *passed) hit(service, name string) point {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := service + "/" + name
	s.count[key]++
	p := point{service, name, s.count[key]}
	s.order = append(s.order, p)
	return p
}

// TestFailpointMatrix takes every story through every boundary of planner, gate and executor: the copy that reaches it
// is killed there, another one takes over, and the run must end as it should, with every invariant of the log.
func TestFailpointMatrix(t *testing.T) {
	t.Parallel()
	for _, p := range plots {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			points := baseline(t, p)
			if len(points) == 0 {
				t.Fatal("the story passes no boundary")
			}
			for _, at := range points {
				t.Run(strings.ReplaceAll(at.String(), "/", "."), func(t *testing.T) {
					for range tells {
						reached := false
						synctest.Test(t, func(t *testing.T) { reached = killAt(t, p, at) })
						if reached {
							return
						}
					}
					if at.n == 1 { // how often a boundary is passed depends on who is first
						t.Errorf("%s was not reached in %d tries", at, tells)
					}
				})
			}
		})
	}
}

// tells is how often a story is told until it passes a boundary: two services may take turns in another order.
const tells = 5

// baseline tells a story without faults and returns the boundaries that it passes.
func baseline(t *testing.T, p plot) []point {
	t.Helper()
	seen := &passed{count: map[string]int{}}
	synctest.Test(t, func(t *testing.T) {
		o := p.opts()
		o.Point = func(name string, c *Copy) { seen.hit(c.Service, name) }
		w := New(t, o)
		w.StartAll()
		p.end(w)
	})
	return slices.Clone(seen.order)
}

// killAt tells a story and kills the copy that reaches a boundary. It reports whether one did.
func killAt(t *testing.T, p plot, at point) bool {
	t.Helper()
	seen := &passed{count: map[string]int{}}
	o := p.opts()
	var w *World
	killed := make(chan struct{})
	o.Point = func(name string, c *Copy) {
		if seen.hit(c.Service, name) == at {
			c.Kill()
			close(killed)
		}
	}
	w = New(t, o)
	w.StartAll()
	go func() {
		select {
		case <-killed:
			w.Start(at.service)
		case <-t.Context().Done():
		}
	}()
	p.end(w)
	select {
	case <-killed:
		return true
	default:
		return false
	}
}

// end drives a story to its end and checks what it has left.
func (p plot) end(w *World) {
	w.T.Helper()
	runs := p.drive(w)
	w.pause(2 * time.Minute) // what follows an end: entries, timers
	for _, run := range runs {
		if end := w.AwaitEnd(run, patience); end.Outcome != p.want {
			w.T.Errorf("run ended as %s (%v), want %s", end.Outcome, end.Error, p.want)
		}
	}
	w.Check(true)
}

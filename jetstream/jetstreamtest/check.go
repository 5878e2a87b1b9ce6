package jetstreamtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// CheckOptions say what the checker may rely on.
type CheckOptions struct {
	// GateKeys are the public keys of the gates. Nil: signatures are not looked at.
	GateKeys events.Keys
	// Effects counts, by toolCallId, what tools did outside of the log. Nil: not looked at.
	Effects map[string]int
	// Foreign are the sequences of messages that the test has put into the log past the services. They are no part of it;
	// what services have stored because of them is.
	Foreign []uint64
	// frozen are the arguments of asks that only show them, by their digest.
	frozen map[string][]byte
	// Settled says that faults have stopped and the services had time: every run must have ended or wait for people.
	Settled bool
}

// Report counts what a log holds: kinds of facts, outcomes, decisions. A suite of which a branch was never reached can
// tell by it.
type Report map[string]int

// Add sums another report up.
func (r Report) Add(other Report) {
	for k, v := range other {
		r[k] += v
	}
}

// Check reads the whole log and the bucket of suspended runs and fails the test for every invariant that does not hold.
// Its rules are those of jetstream/model, over real facts.
func Check(tb testing.TB, conn *jetstream.Conn, o CheckOptions) Report {
	tb.Helper()
	facts, err := readLog(tb.Context(), conn, o.Foreign)
	if err != nil {
		tb.Fatalf("read the log: %v", err)
	}
	o.frozen = frozen(tb, conn, facts)
	report, broken := Verify(facts, o)
	if o.Settled {
		broken = append(broken, checkSettled(tb.Context(), conn, facts)...)
	}
	entries, err := conn.AllThreadEntries(tb.Context())
	if err != nil {
		tb.Fatalf("read the threads: %v", err)
	}
	broken = append(broken, VerifyThreads(facts, entries, o.Settled)...)
	if len(entries) > 0 {
		report["thread"] += len(entries)
	}
	for _, b := range broken {
		tb.Error(b)
	}
	return report
}

// frozen reads the arguments that asks refer to.
func frozen(tb testing.TB, conn *jetstream.Conn, facts []events.Event) map[string][]byte {
	tb.Helper()
	blobs := map[string][]byte{}
	for _, f := range facts {
		if f.DataRef == "" || f.Place.Kind != events.KindAsk {
			continue
		}
		body, err := conn.Blob(tb.Context(), f.DataRef)
		if err != nil {
			tb.Errorf("I10: the arguments of %s: %v", f.Place.Subject(), err)
		}
		blobs[f.DataRef] = body
	}
	return blobs
}

func readLog(ctx context.Context, conn *jetstream.Conn, foreign []uint64) ([]events.Event, error) {
	filters := []string{conn.Namespace().RunAll()}
	uses, err := conn.Subjects(ctx, conn.Namespace().GrantAll())
	if err != nil {
		return nil, err
	}
	for _, subject := range uses {
		if p, err := events.ParsePlace(subject); err == nil { // a probe of a grant's chain has no place
			filters = append(filters, p.Chain())
		}
	}
	slices.Sort(filters)
	var facts []events.Event
	for _, filter := range slices.Compact(filters) {
		for seq := uint64(0); ; {
			e, err := conn.NextFact(ctx, seq, filter)
			if errors.Is(err, jetstream.ErrNotFound) {
				break
			}
			if e.Seq > 0 && slices.Contains(foreign, e.Seq) {
				seq = e.Seq
				continue
			}
			if err != nil && e.Place.Kind != events.KindProbe { // a probe is no event of the catalogue
				return nil, err
			}
			seq = e.Seq
			if e.Place.Kind != events.KindProbe {
				facts = append(facts, e)
			}
		}
	}
	slices.SortFunc(facts, func(a, b events.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return facts, nil
}

// Verify applies the invariants to a log, in order of its sequences, and says which do not hold.
func Verify(facts []events.Event, o CheckOptions) (Report, []string) {
	l := newLog(facts, o)
	for _, f := range facts {
		l.report[string(f.Place.Kind)]++
	}
	for _, run := range slices.Sorted(maps.Keys(l.main)) {
		l.checkMain(run)
	}
	for _, call := range slices.Sorted(maps.Keys(l.calls)) {
		l.checkCall(call)
	}
	for _, grant := range slices.Sorted(maps.Keys(l.uses)) {
		l.checkUses(grant)
	}
	l.checkEffects()
	l.checkAutoResumes()
	l.checkConcurrency()
	l.checkDelegations()
	return l.report, l.broken
}

// history is a log, by chains.
type history struct {
	o      CheckOptions
	main   map[string][]events.Event // by run
	calls  map[string][]events.Event // by toolCallId
	votes  map[string][]events.Event // by toolCallId
	uses   map[string][]events.Event // by the token of the grant
	report Report
	broken []string
}

func newLog(facts []events.Event, o CheckOptions) *history {
	l := &history{
		o: o, main: map[string][]events.Event{}, calls: map[string][]events.Event{}, uses: map[string][]events.Event{},
		votes: map[string][]events.Event{}, report: Report{},
	}
	for _, f := range facts {
		switch {
		case f.Place.IsMain():
			l.main[f.Place.Run] = append(l.main[f.Place.Run], f)
		case f.Place.Kind == events.KindUse:
			l.uses[f.Place.Key] = append(l.uses[f.Place.Key], f)
		case f.Place.Kind == events.KindVote:
			id := f.Place.CallID().String()
			l.votes[id] = append(l.votes[id], f)
		case f.Place.Kind == events.KindRefused || f.Place.Kind == events.KindLate ||
			f.Place.Kind == events.KindProbe:
		default:
			id := f.Place.CallID().String()
			l.calls[id] = append(l.calls[id], f)
		}
	}
	return l
}

func (l *history) fail(invariant, format string, args ...any) {
	l.broken = append(l.broken, invariant+": "+fmt.Sprintf(format, args...))
}

func data[T any](l *history, e events.Event) T {
	d, err := events.Data[T](e)
	if err != nil {
		l.fail("I10", "%s does not decode: %v", e.Place.Subject(), err)
	}
	return d
}

// checkMain checks the main chain of a run: order, settled steps, one end that comes last (I4, I7, S1, S8, S9).
func (l *history) checkMain(run string) {
	prev := events.Kind("")
	w := walk{l: l, run: run, tasks: map[string]bool{}}
	for _, f := range l.main[run] {
		if !events.MayFollow(prev, f.Place.Kind) {
			l.fail("I4", "run %s: %s follows %q", run, f.Place.Kind, prev)
		}
		prev = f.Place.Kind
		switch f.Place.Kind {
		case events.KindStart:
			if w.tool = data[events.RunStarted](l, f).Request.ToolID; w.tool != "" {
				l.report["start:tool"]++
			}
		case events.KindStep:
			w.checkStep(f)
		case events.KindEnd:
			w.checkEnd(f)
		default:
		}
	}
}

// walk is a run's main chain up to a fact.
type walk struct {
	l         *history
	run       string
	tool      string // of a run of one tool
	step      int
	planned   []events.CallPlanned
	cancelled bool
	tasks     map[string]bool // open background calls of earlier steps, by toolCallId
}

func (w *walk) checkStep(f events.Event) {
	l, d := w.l, data[events.StepFinished](w.l, f)
	if w.tool != "" && (d.Step != 1 || len(d.Calls) != 1 || d.Calls[0].ToolName != w.tool || d.Model != "") {
		l.fail("I7", "run %s is of the tool %s alone, and step %d is another", w.run, w.tool, d.Step)
	}
	if f.Place.N != w.step+1 || d.Step != f.Place.N {
		l.fail("I7", "run %s: step %d after step %d", w.run, f.Place.N, w.step)
	}
	w.settledBefore(f, d.Background)
	if w.cancelled = w.cancelled || l.anyCancelled(w.run, w.step, w.planned); w.cancelled {
		l.fail("S9", "run %s takes step %d after a cancel closed a call", w.run, f.Place.N)
	}
	w.step, w.planned = f.Place.N, d.Calls
}

func (w *walk) checkEnd(f events.Event) {
	l, d := w.l, data[events.RunEnded](w.l, f)
	l.report["run:"+string(d.Outcome)]++
	w.settledBefore(f, d.Background)
	if d.Outcome != events.RunCompleted && len(d.Background) > 0 {
		l.fail("B16", "run %s ended as %s and leaves background calls open", w.run, d.Outcome)
	}
	if d.Outcome == events.RunCompleted && l.anyCancelled(w.run, w.step, w.planned) {
		l.fail("S9", "run %s completed after a cancel closed a call", w.run)
	}
	l.releasedBefore(w.run, f, d.Background)
	l.nothingAfter(w.run, f, d.Background)
}

// settledBefore demands one result for every call of a step, and every background call of those before, before the fact that
// follows, unless that one says that it has not seen the result of this background call.
func (w *walk) settledBefore(next events.Event, open []events.OpenTask) {
	l, run, tasks := w.l, w.run, w.tasks
	unseen := map[string]bool{}
	for _, t := range open {
		call, err := events.CallOf(run, t.C)
		if err != nil {
			l.fail("I7", "%s: %v", next.Place.Subject(), err)
		}
		unseen[call.String()] = true
	}
	background := maps.Clone(tasks)
	for i, c := range w.planned {
		id := events.CallID{Run: run, Step: w.step, Index: i + 1}.String()
		background[id] = c.Background != nil
	}
	for id, is := range background {
		if unseen[id] && is {
			l.report["task:unseen"]++
			tasks[id] = true
			continue
		}
		delete(tasks, id)
		if is {
			l.report["task:seen"]++
		}
		if r, ok := l.result(id); !ok || r.Seq > next.Seq {
			l.fail("I4", "call %s has no result before %s (seq %d)", id, next.Place.Subject(), next.Seq)
		}
	}
	for id := range unseen {
		if !tasks[id] {
			l.fail("B16", "%s has not seen %s, which is no open background call", next.Place.Subject(), id)
		}
	}
}

// releasedBefore demands of background calls that outlast their run that they were released, or over, when it ended: a call that
// is held for the first time holds its run.
func (l *history) releasedBefore(run string, end events.Event, open []events.OpenTask) {
	for _, t := range open {
		call, err := events.CallOf(run, t.C)
		if err != nil {
			continue
		}
		l.report["task:outlasts"]++
		if !slices.ContainsFunc(l.calls[call.String()], func(f events.Event) bool {
			return f.Seq < end.Seq && (f.Place.Kind == events.KindGo || f.Place.Kind == events.KindResult)
		}) {
			l.fail("B16", "run %s completed before its background call %s was released", run, call)
		}
	}
}

func (l *history) anyCancelled(run string, step int, planned []events.CallPlanned) bool {
	for i, c := range planned {
		id := events.CallID{Run: run, Step: step, Index: i + 1}.String()
		if c.Background != nil { // a turn may be under way when a cancel closes it
			continue
		}
		if r, ok := l.result(id); ok {
			d := data[events.CallFinished](l, r)
			if d.Outcome == events.OutcomeCancelled && d.Cancel != nil && d.Cancel.RunID == run {
				return true
			}
		}
	}
	return false
}

func (l *history) result(id string) (events.Event, bool) {
	for _, f := range l.calls[id] {
		if f.Place.Kind == events.KindResult {
			return f, true
		}
	}
	return events.Event{}, false
}

// nothingAfter demands that no fact of any chain of the run is stored after its end, but for background calls that outlast it.
func (l *history) nothingAfter(run string, end events.Event, open []events.OpenTask) {
	for _, f := range l.main[run] {
		if f.Seq > end.Seq {
			l.fail("S1", "run %s: %s is stored after the end", run, f.Place.Kind)
		}
	}
	for id, chain := range l.calls {
		call, err := events.ParseCallID(id)
		if err != nil || call.Run != run || slices.ContainsFunc(open, func(t events.OpenTask) bool { return t.C == call.Token() }) {
			continue
		}
		if last := chain[len(chain)-1]; last.Seq > end.Seq {
			l.fail("S1", "call %s: %s is stored after the end of its run", id, last.Place.Kind)
		}
	}
}

// checkCall checks the chain of a call (I1, I2, I4, I5, I10; S2 to S7).
func (l *history) checkCall(id string) {
	c := chain{l: l, id: id}
	for _, f := range l.calls[id] {
		if f.Carried {
			if f.Place.Kind != c.prev.Place.Kind {
				l.fail("I4", "call %s: a carried %s follows %s", id, f.Place.Kind, c.prev.Place.Kind)
			}
			if f.Place.Kind == events.KindAsk {
				c.checkCarried(f)
			}
			c.prev = f
			continue
		}
		if !events.MayFollow(c.prev.Place.Kind, f.Place.Kind) {
			l.fail("I4", "call %s: %s (seq %d) follows %q (seq %d)", id, f.Place.Kind, f.Seq, c.prev.Place.Kind, c.prev.Seq)
		}
		c.check(f)
		c.prev = f
	}
	l.checkVotes(id, c.rounds)
}

// chain is a call's chain up to a fact.
type chain struct {
	l        *history
	id       string
	prev     events.Event
	ask      events.CallHeld         // with what repeated it
	since    time.Time               // when the first ask of its round was stored
	rounds   map[int]events.CallHeld // the asks so far
	answer   events.CallAnswered
	release  events.CallReleased
	goSeq    uint64
	claimSeq uint64
	asked    bool
}

func (c *chain) check(f events.Event) {
	switch f.Place.Kind {
	case events.KindAsk:
		c.checkAsk(f)
	case events.KindAnswer:
		c.checkAnswer(f)
	case events.KindGo:
		c.checkGo(f)
	case events.KindClaim:
		c.checkClaim(f)
	case events.KindSuspend:
		d := data[events.CallSuspended](c.l, f)
		c.l.report["suspend:"+d.Reason]++
	case events.KindResult:
		c.checkResult(f)
	default:
	}
}

func (c *chain) verify(f events.Event) {
	if c.l.o.GateKeys == nil {
		return
	}
	if err := c.l.o.GateKeys.VerifyFact(f); err != nil {
		c.l.fail("I1", "call %s: %s (seq %d): %v", c.id, f.Place.Kind, f.Seq, err)
	}
}

func (c *chain) checkAsk(f events.Event) {
	c.verify(f)
	d := data[events.CallHeld](c.l, f)
	if c.prev.Place.Kind == events.KindAsk {
		c.checkRepeated(f, d)
		return
	}
	c.l.report["ask:"+string(d.Kind)]++
	want := 0
	if c.asked || c.goSeq > 0 {
		want = c.lastRound() + 1
	}
	if d.Round != want {
		c.l.fail("I2", "call %s: an ask of round %d, want %d", c.id, d.Round, want)
	}
	if c.prev.Place.Kind == events.KindClaim && (d.Kind != events.AskInDoubt || c.release.Effect.Repeatable()) {
		c.l.fail("S5", "call %s: an ask of kind %s (%s tool) follows a claim", c.id, d.Kind, c.release.Effect)
	}
	c.keep(d)
	c.asked, c.since = true, f.Stored
	if d.DataRef != "" {
		d.Args = c.l.o.frozen[d.DataRef]
	}
	c.fingerprint(d.Fingerprint, events.Frozen{
		Round: d.Round, ToolID: d.ToolID, ToolVersion: d.ToolVersion, InputSchemaDigest: d.InputSchemaDigest, Args: d.Args,
	})
}

func (c *chain) lastRound() int {
	if c.asked {
		return max(c.ask.Round, c.release.Round)
	}
	return c.release.Round
}

// fingerprint compares the fingerprint of a fact with that of what it shows or releases (I10).
func (c *chain) fingerprint(got string, f events.Frozen) {
	call, err := events.ParseCallID(c.id)
	if err != nil {
		c.l.fail("I7", "call %s: %v", c.id, err)
		return
	}
	f.Namespace, f.RunID, f.ToolCallID = c.namespace(), call.Run, c.id
	if got != f.Fingerprint() {
		c.l.fail("I10", "call %s, round %d: fingerprint %s is not that of its bytes", c.id, f.Round, got)
	}
}

func (c *chain) namespace() events.Namespace { return c.l.calls[c.id][0].Place.Namespace }

func (c *chain) checkAnswer(f events.Event) {
	c.verify(f)
	d := data[events.CallAnswered](c.l, f)
	c.l.report["answer:"+string(d.Decision)]++
	if d.Round != c.ask.Round || d.Fingerprint != c.ask.Fingerprint {
		c.l.fail("I2", "call %s: the answer is for round %d, the ask has %d", c.id, d.Round, c.ask.Round)
	}
	switch {
	case d.Decision != events.Expired && !c.ask.Takes(d.Decision):
		c.l.fail("S4", "call %s: %s answers an ask of kind %s", c.id, d.Decision, c.ask.Kind)
	case d.Decision != events.Expired && d.At.After(c.ask.ExpiresAt):
		c.l.fail("I1", "call %s: decided at %s, the ask expired at %s", c.id, d.At, c.ask.ExpiresAt)
	case d.Decision == events.Expired && d.At.Before(c.ask.ExpiresAt):
		c.l.fail("I1", "call %s: expired at %s, before its deadline %s", c.id, d.At, c.ask.ExpiresAt)
	}
	c.checkQuorum(f, d)
	c.answer = d
}

func (c *chain) checkGo(f events.Event) {
	c.verify(f)
	d := data[events.CallReleased](c.l, f)
	follows := uint64(0)
	if c.prev.Place.Kind == events.KindAnswer {
		follows = c.prev.Seq
		switch {
		case c.answer.Decision.Releases():
			if d.Fingerprint != c.ask.Fingerprint || d.Round != c.ask.Round {
				c.l.fail("I1", "call %s: the release is not for the bytes that were asked about", c.id)
			}
		case c.answer.Decision == events.Edit:
			if d.Round != c.ask.Round+1 {
				c.l.fail("I1", "call %s: an edited call is released in round %d, want %d", c.id, d.Round, c.ask.Round+1)
			}
		default:
			c.l.fail("S3", "call %s: released after %s", c.id, c.answer.Decision)
		}
	}
	if d.Follows != follows {
		c.l.fail("I1", "call %s: the release says that it follows %d, the log says %d", c.id, d.Follows, follows)
	}
	c.fingerprint(d.Fingerprint, events.Frozen{
		Round: d.Round, ToolID: d.ToolID, ToolVersion: d.ToolVersion, InputSchemaDigest: d.InputSchemaDigest,
		Args: []byte(d.Args),
	})
	if d.AllowedBy.Grant != "" && !f.Carried {
		c.checkGrant(f, d)
	}
	c.release, c.goSeq, c.claimSeq = d, f.Seq, 0
}

// checkGrant demands of a release by a grant that one use of the grant for this call is stored, and was before it (B8.28).
func (c *chain) checkGrant(f events.Event, d events.CallReleased) {
	c.l.report["go:grant"]++
	if c.prev.Place.Kind != "" && (c.prev.Place.Kind != events.KindAnswer || c.answer.Decision != events.Edit) {
		c.l.fail("B8.28", "call %s: a grant releases what people have been asked about", c.id)
	}
	found := 0
	for _, u := range c.l.uses[events.Token(d.AllowedBy.Grant)] {
		if u.Carried || u.Place.CallID().String() != c.id {
			continue
		}
		found++
		use := data[events.GrantUsed](c.l, u)
		asked := events.CallHeld{AgentID: d.AgentID, ToolID: d.ToolID, RunID: d.RunID, ThreadID: d.ThreadID, ResourceID: d.ResourceID}
		if u.Seq > f.Seq || use.ID != d.AllowedBy.Grant || !use.Grant.Covers(asked) {
			c.l.fail("B8.28", "call %s: released by grant %s, whose use (seq %d) is not for it", c.id, d.AllowedBy.Grant, u.Seq)
		}
	}
	if found != 1 {
		c.l.fail("B8.28", "call %s: released by grant %s, which has %d uses for it", c.id, d.AllowedBy.Grant, found)
	}
}

// checkUses checks the chain of a grant (B8.28): its uses are numbered from 1 without a gap, none is over the terms or after
// the end of the grant, each is for another call, and a copy repeats the one before.
func (l *history) checkUses(grant string) {
	var prev events.GrantUsed
	calls := map[string]bool{}
	for _, f := range l.uses[grant] {
		d := data[events.GrantUsed](l, f)
		if l.o.GateKeys != nil && l.o.GateKeys.VerifyFact(f) != nil {
			l.fail("B8.28", "grant %s: a use (seq %d) that no gate has signed", d.ID, f.Seq)
		}
		switch {
		case f.Carried && d.Number != prev.Number:
			l.fail("B8.28", "grant %s: a carried use %d follows use %d", d.ID, d.Number, prev.Number)
		case f.Carried:
			continue
		case d.Number != prev.Number+1:
			l.fail("B8.28", "grant %s: use %d follows use %d", d.ID, d.Number, prev.Number)
		case d.Number > d.Grant.Terms.Uses || !d.Grant.InForce(d.At):
			l.fail("B8.28", "grant %s: use %d of %d at %s", d.ID, d.Number, d.Grant.Terms.Uses, d.At)
		case prev.Number > 0 && !d.Grant.Same(prev.Grant):
			l.fail("B8.28", "grant %s: use %d is of another grant of this name", d.ID, d.Number)
		case calls[d.ToolCallID] || d.ToolCallID != f.Place.CallID().String():
			l.fail("B8.28", "grant %s: use %d is the second for call %s", d.ID, d.Number, d.ToolCallID)
		}
		calls[d.ToolCallID] = true
		prev = d
	}
}

func (c *chain) checkClaim(f events.Event) {
	d := data[events.CallClaimed](c.l, f)
	if d.GoSeq != c.goSeq {
		c.l.fail("S6", "call %s: a claim of release %d, the last is %d", c.id, d.GoSeq, c.goSeq)
	}
	if c.prev.Place.Kind == events.KindClaim {
		c.l.report["claim:again"]++
		if !c.release.Effect.Repeatable() {
			c.l.fail("S6", "call %s: an effectful call is claimed twice for one release", c.id)
		}
	}
	c.claimSeq = f.Seq
}

func (c *chain) checkResult(f events.Event) {
	d := data[events.CallFinished](c.l, f)
	c.l.report["result:"+string(d.Outcome)]++
	switch d.Outcome {
	case events.OutcomeOK, events.OutcomeError:
		if d.Worker != "" && (c.prev.Place.Kind != events.KindClaim || d.ClaimSeq != c.claimSeq) {
			c.l.fail("S7", "call %s: an outcome of claim %d follows %s %d", c.id, d.ClaimSeq, c.prev.Place.Kind, c.prev.Seq)
		}
	case events.OutcomeDeclined, events.OutcomeExpired, events.OutcomeResponded:
		if c.prev.Place.Kind != events.KindAnswer {
			c.l.fail("S3", "call %s: %s without an answer", c.id, d.Outcome)
		}
	default:
	}
}

// checkEffects compares what tools did outside with the releases of their calls (I5, S10).
func (l *history) checkEffects() {
	for id, n := range l.o.Effects {
		releases, effect := 0, events.Effectful
		for _, f := range l.calls[id] {
			if f.Place.Kind == events.KindGo && !f.Carried {
				releases++
				effect = data[events.CallReleased](l, f).Effect
			}
		}
		if !effect.Repeatable() && n > releases {
			l.fail("I5", "call %s had its effect %d times for %d releases", id, n, releases)
		}
	}
}

// checkSettled checks liveness once faults have stopped (I12): every run has ended or waits for people, and what waits
// is in the bucket of suspended runs, with nothing else.
func checkSettled(ctx context.Context, conn *jetstream.Conn, facts []events.Event) []string {
	l := newLog(facts, CheckOptions{})
	open := map[string]bool{} // toolCallIds of open asks
	for _, run := range slices.Sorted(maps.Keys(l.main)) {
		chain := l.main[run]
		over := chain[len(chain)-1].Place.Kind == events.KindEnd
		held := 0
		for id, calls := range l.calls {
			call, err := events.ParseCallID(id)
			if err != nil || call.Run != run {
				continue
			}
			switch last := calls[len(calls)-1]; last.Place.Kind {
			case events.KindAsk:
				open[id] = true
				held++
				if last.ExpiryTime.IsZero() {
					l.fail("I12", "call %s is held without a deadline", id)
				}
			case events.KindResult:
			case events.KindGo:
				if last.Place.Delegated() && !l.ended(id) {
					held++ // by what is held below, if anything is: that run is looked at itself
					continue
				}
				fallthrough
			default:
				l.fail("I12", "call %s stands still at %s since %s", id, last.Place.Kind, last.Stored.Format(time.RFC3339Nano))
			}
		}
		if held == 0 && !over {
			l.fail("I12", "run %s stands still at %s", run, chain[len(chain)-1].Place.Subject())
		}
	}
	return append(l.broken, checkEntries(ctx, conn, open)...)
}

func checkEntries(ctx context.Context, conn *jetstream.Conn, open map[string]bool) []string {
	keys, err := conn.ListSuspended(ctx, "", "", "")
	if err != nil {
		return []string{"I12: list suspended runs: " + err.Error()}
	}
	var broken []string
	listed := map[[2]string]bool{} // by run and toolCallId
	for _, key := range keys {
		snap, _, err := conn.Snapshot(ctx, key)
		if errors.Is(err, jetstream.ErrNotFound) {
			continue
		}
		if err != nil {
			broken = append(broken, "I12: read "+key+": "+err.Error())
			continue
		}
		for _, a := range snap.Asks {
			listed[[2]string{snap.RunID, a.ToolCallID}] = true
			if !open[a.ToolCallID] {
				broken = append(broken, "I12: the entry of "+snap.RunID+" lists "+a.ToolCallID+", which is not held")
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(open)) {
		for call, below := events.ParentCall(id); below; call, below = events.ParentCall(call.Run) {
			if !listed[[2]string{call.Run, id}] {
				broken = append(broken, "I12: "+id+" is held, and the entry of "+call.Run+" does not list it")
			}
		}
	}
	return broken
}

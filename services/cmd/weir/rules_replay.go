package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/lru"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// Bounds of what a replay remembers. What it has forgotten it reads again, or counts as not comparable.
const (
	replayRuns  = 8192
	replaySteps = 32 << 20 // bytes of arguments as models wrote them
	replayMarks = 1 << 18  // rounds that people were asked about, or that an edit began
)

// replay judges recorded calls again, by other rules. Facts come in the order of the log.
type replay struct {
	conn  *jetstream.Conn
	rules *judge.Rules
	eval  *rule.Evaluator
	since time.Time

	runs  *lru.Cache[string, *replayRun]
	tools *lru.Cache[string, *events.Manifest] // by digest
	steps *lru.Cache[string, []events.CallPlanned]
	marks *lru.Cache[string, bool] // by call and round: true when an edit began it, false when people were asked

	facts int
}

// replayRun is what judging the calls of a run needs of it.
type replayRun struct {
	agentID string
	run     judge.Run
	context json.RawMessage
	require *events.Approval // of the run: the request's word, else the agent's
	tools   map[string]string
}

func newReplay(conn *jetstream.Conn, rules *judge.Rules, since time.Time) *replay {
	return &replay{
		conn: conn, rules: rules, since: since, eval: rule.NewEvaluator(rule.NewCache(maxExpressions)),
		runs:  lru.New[string, *replayRun](replayRuns),
		tools: lru.New[string, *events.Manifest](replayRuns),
		steps: lru.New[string, []events.CallPlanned](replaySteps),
		marks: lru.New[string, bool](replayMarks),
	}
}

// judged is a call of the record that rules have judged, and what the others make of it.
type judged struct {
	ToolCallID string             `json:"toolCallId"`
	Round      int                `json:"round"`
	At         time.Time          `json:"at"`
	ToolID     string             `json:"toolId"`
	ArgsDigest string             `json:"argsDigest"`
	ArgsSize   int                `json:"argsSize"`
	Args       json.RawMessage    `json:"args,omitempty"`
	Was        judge.Terms        `json:"was"`
	WouldBe    judge.Terms        `json:"wouldBe"`
	Grant      string             `json:"grant,omitempty"` // that answered for people
	Differs    []judge.Difference `json:"differs"`
}

// notComparableError says why a call cannot be judged again.
type notComparableError struct{ why string }

func (e notComparableError) Error() string { return e.why }

func notComparable(why string) error { return notComparableError{why} }

// log are the facts that there are: the record's, where one is kept, else those that are still in the log.
func (r *replay) log(ctx context.Context) iter.Seq2[events.Event, error] {
	if _, err := r.conn.AuditState(ctx); errors.Is(err, jetstream.ErrNotFound) {
		return r.fromLog(ctx)
	} else if err != nil {
		return func(yield func(events.Event, error) bool) { yield(events.Event{}, err) }
	}
	return r.fromRecord(ctx)
}

// fromRecord reads the stream audit. What is no fact of a service is passed over: audit verify tells of it.
func (r *replay) fromRecord(ctx context.Context) iter.Seq2[events.Event, error] {
	return func(yield func(events.Event, error) bool) {
		if err := r.conn.AwaitAudit(ctx, auditPatience); err != nil {
			yield(events.Event{}, err)
			return
		}
		for rec, err := range r.conn.Audit(ctx, jetstream.AuditQuery{Since: r.since}) {
			if errors.Is(err, jetstream.ErrGap) {
				continue // aged out
			}
			if err != nil {
				yield(events.Event{}, err)
				return
			}
			if events.IsProbe(rec.Subject) {
				continue
			}
			if e, err := rec.Decode(); err == nil && !yield(e, nil) {
				return
			}
		}
	}
}

func (r *replay) fromLog(ctx context.Context) iter.Seq2[events.Event, error] {
	return func(yield func(events.Event, error) bool) {
		for seq := uint64(0); ; {
			e, err := r.conn.NextFact(ctx, seq, r.conn.Namespace().RunAll())
			switch {
			case errors.Is(err, jetstream.ErrNotFound):
				return
			case errors.Is(err, jetstream.ErrTampered) && e.Seq > seq:
			case err != nil:
				yield(e, err)
				return
			case !yield(e, nil):
				return
			}
			seq = e.Seq
		}
	}
}

// take judges what a fact tells of a call again; nil when rules had no say in it, or it is too old.
func (r *replay) take(ctx context.Context, e events.Event) (*judged, error) {
	r.facts++
	switch e.Place.Kind {
	case events.KindStart, events.KindCarry:
		return nil, r.begin(ctx, e)
	case events.KindStep:
		return nil, r.plan(e)
	case events.KindAsk, events.KindAnswer, events.KindGo, events.KindResult:
		if e.Carried {
			return nil, nil //nolint:nilnil // seen already
		}
	default:
		return nil, nil //nolint:nilnil // nothing that rules judge
	}
	j, args, err := r.recorded(ctx, e)
	if err != nil || j == nil || e.Stored.Before(r.since) {
		return nil, err
	}
	return j, r.again(ctx, e.Place.Run, j, args)
}

// recorded is what a fact tells of a judgement.
func (r *replay) recorded(ctx context.Context, e events.Event) (*judged, recordedArgs, error) {
	switch e.Place.Kind {
	case events.KindAsk:
		return r.asked(e)
	case events.KindAnswer:
		a, err := events.Data[events.CallAnswered](e)
		if err == nil && a.Decision == events.Edit {
			r.marks.Put(markOf(a.ToolCallID, a.Round+1), true, 1)
		}
		return nil, recordedArgs{}, err
	case events.KindGo:
		return r.released(e)
	default:
		return r.blocked(ctx, e)
	}
}

// recordedArgs are the frozen arguments of a call, and the key under which its agent holds the tool.
type recordedArgs struct {
	toolName string
	args     json.RawMessage
}

func markOf(toolCallID string, round int) string { return fmt.Sprintf("%s %d", toolCallID, round) }

func newJudged(e events.Event, toolCallID, tool string, round int, args json.RawMessage) *judged {
	return &judged{
		ToolCallID: toolCallID, Round: round, At: e.Stored.UTC(), ToolID: tool, ArgsDigest: events.Digest(args), ArgsSize: len(args),
	}
}

// asked reads an ask. Only the first of a round is a judgement: later ones remind, escalate or carry it.
func (r *replay) asked(e events.Event) (*judged, recordedArgs, error) {
	a, err := events.Data[events.CallHeld](e)
	if err != nil {
		return nil, recordedArgs{}, err
	}
	mark := markOf(a.ToolCallID, a.Round)
	edited, seen := r.marks.Get(mark)
	r.marks.Put(mark, false, 1)
	if a.Kind != events.AskApproval || seen && !edited {
		return nil, recordedArgs{}, nil
	}
	j := newJudged(e, a.ToolCallID, a.ToolID, a.Round, a.Args)
	j.Was = judge.TermsOf(a)
	if a.ArgsDigest != "" && a.ArgsDigest != j.ArgsDigest {
		return nil, recordedArgs{}, notComparable("the arguments are secret")
	}
	return j, recordedArgs{a.ToolName, a.Args}, nil
}

// released reads a release. One that follows an answer was judged as an ask, unless the answer was an edit.
func (r *replay) released(e events.Event) (*judged, recordedArgs, error) {
	d, err := events.Data[events.CallReleased](e)
	if err != nil {
		return nil, recordedArgs{}, err
	}
	edited, seen := r.marks.Get(markOf(d.ToolCallID, d.Round))
	if seen && !edited || d.AllowedBy.Answer > 0 && !edited {
		return nil, recordedArgs{}, nil
	}
	args := json.RawMessage(d.Args)
	j := newJudged(e, d.ToolCallID, d.ToolID, d.Round, args)
	j.Was = judge.Terms{Action: rule.Allow, Rule: judge.RuleName(d.AllowedBy.Set, d.AllowedBy.Rule)}
	if d.AllowedBy.Grant != "" {
		j.Was.Action, j.Grant = rule.Ask, d.AllowedBy.Grant
	}
	return j, recordedArgs{d.ToolName, args}, nil
}

// blocked reads the result of a call that a rule has blocked. Its arguments are frozen again, as the gate did, from what
// the model wrote.
func (r *replay) blocked(ctx context.Context, e events.Event) (*judged, recordedArgs, error) {
	d, err := events.Data[events.CallFinished](e)
	if err != nil || d.Outcome != events.OutcomeBlocked {
		return nil, recordedArgs{}, err
	}
	name, byRule := strings.CutPrefix(d.Reason, "rule ")
	if !byRule {
		return nil, recordedArgs{}, nil
	}
	args := d.Args
	run, err := r.run(ctx, e.Place.Run)
	if err != nil {
		return nil, recordedArgs{}, err
	}
	tool, err := r.tool(ctx, run, d.ToolName)
	if err != nil {
		return nil, recordedArgs{}, err
	}
	if len(args) == 0 {
		if args, err = r.written(ctx, e.Place.CallID()); err != nil {
			return nil, recordedArgs{}, err
		}
	}
	if args, err = judge.Freeze(*tool, args); err != nil {
		return nil, recordedArgs{}, notComparable("the arguments cannot be frozen again")
	}
	j := newJudged(e, d.ToolCallID, tool.ID, d.Round, args)
	j.Was = judge.Terms{Action: rule.Block, Rule: name}
	return j, recordedArgs{d.ToolName, args}, nil
}

// again judges a recorded call by the rules of the replay.
func (r *replay) again(ctx context.Context, runID string, j *judged, a recordedArgs) error {
	run, err := r.run(ctx, runID)
	if err != nil {
		return err
	}
	tool, err := r.tool(ctx, run, a.toolName)
	if err != nil {
		return err
	}
	j.Args = a.args
	j.WouldBe = r.rules.Terms(ctx, r.eval, judge.Call{
		Tool: *tool, ToolName: a.toolName, Args: a.args, Context: run.context, AgentID: run.agentID, Run: run.run,
		RequireToolApproval: run.require,
	}, defaultExpires)
	j.Differs = j.Was.Differences(j.WouldBe)
	if j.Grant != "" && j.WouldBe.Action == rule.Ask {
		j.Differs = nil // the terms of the ask that the grant answered are not recorded
		if !j.WouldBe.Grants {
			j.Differs = []judge.Difference{{Term: "grants", Was: "true", Is: "false"}}
		}
	}
	return nil
}

// beginningOf is what a run's first fact, or its carry, says about it. What the run has said may be missing.
func beginningOf(e events.Event) (*events.State, error) {
	if e.Place.Kind != events.KindCarry {
		return events.NewState(e)
	}
	d, err := events.Data[events.RunCarried](e)
	if err != nil {
		return nil, err
	}
	return events.CarriedState(d, e)
}

// begin keeps what a run's first fact, or its carry, says about it.
func (r *replay) begin(ctx context.Context, e events.Event) error {
	if _, known := r.runs.Get(e.Place.Run); known {
		return nil
	}
	st, err := beginningOf(e)
	if err != nil {
		return err
	}
	run := &replayRun{
		agentID: st.AgentID, context: st.RequestContext, require: st.Options.RequireToolApproval, tools: st.Definitions.Tools,
		run: judge.Run{ID: st.RunID, Thread: st.ThreadID, Resource: st.ResourceID, Requester: st.Requester},
	}
	if run.require == nil && st.Definitions.Agent != "" {
		agent, err := definition[events.AgentDef](ctx, r.conn, st.Definitions.Agent)
		if err != nil {
			return nil //nolint:nilerr // its calls are told as not comparable
		}
		run.require = agent.RequireToolApproval
	}
	r.runs.Put(e.Place.Run, run, 1)
	return nil
}

// run is what is known of a run; what was forgotten, or lies before the time from which on the record is read, is looked
// up in the log.
func (r *replay) run(ctx context.Context, id string) (*replayRun, error) {
	if run, ok := r.runs.Get(id); ok {
		return run, nil
	}
	e, err := r.conn.Fact(ctx, r.conn.Namespace().Start(id))
	if err == nil {
		err = r.begin(ctx, e)
	}
	if run, ok := r.runs.Get(id); ok {
		return run, nil
	}
	if err != nil && !errors.Is(err, jetstream.ErrNotFound) {
		return nil, err
	}
	return nil, notComparable("how its run began is not recorded any more")
}

// tool is the pinned definition of a tool.
func (r *replay) tool(ctx context.Context, run *replayRun, name string) (*events.Manifest, error) {
	digest := run.tools[name]
	if t, ok := r.tools.Get(digest); ok {
		return t, nil
	}
	t, err := definition[events.Manifest](ctx, r.conn, digest)
	if err != nil {
		return nil, err
	}
	r.tools.Put(digest, t, 1)
	return t, nil
}

// definition reads a definition by its digest.
func definition[T any](ctx context.Context, conn *jetstream.Conn, digest string) (*T, error) {
	raw, err := conn.Def(ctx, digest)
	if err != nil {
		if errors.Is(err, jetstream.ErrNotFound) {
			err = notComparable("a definition of its run is gone")
		}
		return nil, err
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, notComparable("a definition of its run cannot be read")
	}
	return &v, nil
}

// plan keeps the arguments that a model has written, for calls that are blocked.
func (r *replay) plan(e events.Event) error {
	step, err := events.Data[events.StepFinished](e)
	if err != nil {
		return err
	}
	size := 1
	for _, c := range step.Calls {
		size += len(c.Args) + len(c.ToolCallID)
	}
	r.steps.Put(stepOf(e.Place.Run, e.Place.N), step.Calls, size)
	return nil
}

func stepOf(run string, n int) string { return fmt.Sprintf("%s %d", run, n) }

// written are the arguments of a call as the model wrote them.
func (r *replay) written(ctx context.Context, call events.CallID) (json.RawMessage, error) {
	calls, ok := r.steps.Get(stepOf(call.Run, call.Step))
	if !ok {
		e, err := r.conn.Fact(ctx, r.conn.Namespace().Step(call.Run, call.Step))
		if errors.Is(err, jetstream.ErrNotFound) {
			return nil, notComparable("its arguments are not recorded any more")
		}
		if err != nil {
			return nil, err
		}
		step, err := events.Data[events.StepFinished](e)
		if err != nil {
			return nil, err
		}
		calls = step.Calls
	}
	if call.Index < 1 || call.Index > len(calls) {
		return nil, notComparable("its arguments are not recorded")
	}
	return events.ParseArgs(calls[call.Index-1].Args, false)
}

package toolexecutor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/telemetry"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// giveBack is how long a release that this process does not host is left to others.
const giveBack = time.Second

// onRelease claims a released call and runs it.
func (s *Service) onRelease(ctx context.Context, d jetstream.Delivery) error {
	rel, err := events.Data[events.CallReleased](d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	if err := s.cfg.GateKeys.VerifyFact(d.Event); err != nil {
		return s.block(ctx, d.Event, rel, mismatch, err)
	}
	h, hosted := s.hosted(rel.ToolID)
	if !hosted || h.manifest.Version != rel.ToolVersion || h.manifest.InputSchemaDigest != rel.InputSchemaDigest {
		return s.leave(ctx, d.Event, rel)
	}
	if err := s.check(d.Event, h, rel); err != nil {
		return s.block(ctx, d.Event, rel, mismatch, err)
	}
	if d.Attempt > 1 {
		return s.again(ctx, d.Event, h, rel)
	}
	return s.claim(ctx, d.Event, d.Event, h, rel)
}

// leave gives back a release that this process does not take: of a tool or version that it does not host, or past its
// deadline. Another host of the pool takes it; without one the gate ends it at its deadline.
func (s *Service) leave(ctx context.Context, release events.Event, rel events.CallReleased) error {
	last, err := s.conn.Last(ctx, release.Place.Chain())
	switch {
	case errors.Is(err, jetstream.ErrTampered):
		return s.tampered(ctx, release, last, rel, err)
	case errors.Is(err, jetstream.ErrNotFound), err == nil && settled(last, release):
		return nil
	}
	return jetstream.Later(giveBack)
}

// settled reports whether the chain has gone on from a release in a way that carries the call on: anything but the
// release itself and a claim.
func settled(last, release events.Event) bool {
	return last.Seq > release.Seq && last.Place.Kind != events.KindClaim
}

// check compares a release whose signature holds with what this process is about to run. Any difference means that
// nothing runs.
func (s *Service) check(e events.Event, h host, rel events.CallReleased) error {
	if err := rel.Genuine(s.ns, e.Place); err != nil {
		return err
	}
	if rel.Pool != s.cfg.Pool {
		return errors.New("the release is for another pool")
	}
	if err := h.input.ValidateRaw(json.RawMessage(rel.Args)); err != nil {
		return fmt.Errorf("the arguments do not fit the schema: %w", err)
	}
	return nil
}

// again handles a release that was delivered before: somebody, perhaps this process, may have claimed the call.
func (s *Service) again(ctx context.Context, release events.Event, h host, rel events.CallReleased) error {
	last, err := s.conn.Last(ctx, release.Place.Chain())
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return nil // aged out: the run is long over
	case errors.Is(err, jetstream.ErrTampered):
		return s.tampered(ctx, release, last, rel, err)
	case err != nil:
		return fmt.Errorf("read head of %s: %w", rel.ToolCallID, err)
	case last.Seq < release.Seq:
		return fmt.Errorf("the leader does not show the release of %s yet", rel.ToolCallID)
	}
	return s.goOn(ctx, release, last, h, rel)
}

// goOn does what the last fact of a released call's chain asks of an executor.
func (s *Service) goOn(ctx context.Context, release, last events.Event, h host, rel events.CallReleased) error {
	switch {
	case last.Seq == release.Seq:
		return s.claim(ctx, release, release, h, rel)
	case last.Place.Kind == events.KindClaim:
		return s.claimed(ctx, release, last, h, rel)
	}
	return nil // a later fact carries the call on
}

// claimed handles a call that somebody has claimed. While its worker may be alive the delivery stays unacknowledged.
// Once the lease is over and the worker shows no life, a call that may be repeated is claimed again, and one with
// effects is in doubt.
func (s *Service) claimed(ctx context.Context, release, claim events.Event, h host, rel events.CallReleased) error {
	c, err := events.Data[events.CallClaimed](claim)
	if err != nil {
		return jetstream.Final(err)
	}
	if c.GoSeq != release.Seq {
		return nil // the claim of a later release, which has its own delivery
	}
	gone, wait, err := s.gone(ctx, claim, c)
	switch {
	case err != nil:
		return err
	case !gone:
		return jetstream.Later(wait)
	}
	if h.manifest.Effect.Repeatable() {
		if c.Attempt >= h.manifest.MaxAttempts && h.manifest.MaxAttempts > 0 {
			return s.finish(ctx, claim, rel, exhausted(c))
		}
		rel.Attempt = c.Attempt
		return s.claim(ctx, release, claim, h, rel)
	}
	return s.doubt(ctx, claim, c)
}

// gone reports whether a claim's worker is gone, and else how long to wait before the next look.
func (s *Service) gone(ctx context.Context, claim events.Event, c events.CallClaimed) (bool, time.Duration, error) {
	if c.Worker == s.cfg.ID {
		return !s.runs(c.ToolCallID, c.GoSeq), s.cfg.Lease / 2, nil
	}
	if left := time.Until(claim.Stored.Add(s.cfg.Lease)); left > 0 {
		return false, left + time.Second, nil
	}
	alive, err := s.conn.IsLive(ctx, Name, c.Worker)
	if err != nil {
		return false, 0, fmt.Errorf("look for worker %s: %w", c.Worker, err)
	}
	return !alive, s.cfg.Lease / 2, nil
}

// doubt hands a call to people that has been started and of which nobody knows how it went.
func (s *Service) doubt(ctx context.Context, claim events.Event, c events.CallClaimed) error {
	d := doubted(claim, c.Worker, c.Attempt)
	d.ToolCallID, d.RunID, d.Round, d.Worker = c.ToolCallID, c.RunID, c.Round, s.cfg.ID
	e, err := s.origin.Fact(s.ns.Call(claim.Place.CallID(), events.KindSuspend), d, claim)
	if err != nil {
		return jetstream.Final(err)
	}
	if _, err := s.conn.Append(ctx, events.After(claim), e); err != nil {
		return fmt.Errorf("append doubt of %s: %w", c.ToolCallID, err)
	}
	return nil
}

// doubted is what people are told of a call whose claim has no outcome.
func doubted(claim events.Event, worker string, attempt int) events.CallSuspended {
	since := claim.Stored.UTC()
	return events.CallSuspended{
		Reason: events.SuspendInDoubt, Attempt: attempt, Since: &since,
		Claim: &events.ClaimBrief{By: worker, At: since, Attempt: attempt},
	}
}

func exhausted(c events.CallClaimed) outcome {
	return outcome{attempt: c.Attempt, finished: &events.CallFinished{
		Outcome: events.OutcomeError, Started: true,
		Error: &events.ToolError{
			Name:    events.ErrorDeliveryExhausted,
			Message: fmt.Sprintf("the call was started %d times and never ended", c.Attempt),
		},
	}}
}

// claim starts the call: the claim is stored first, and whoever stores it runs the tool. A call that nobody has started
// by the release's deadline is left to the gate, which ends it.
func (s *Service) claim(ctx context.Context, release, prev events.Event, h host, rel events.CallReleased) error {
	if prev.Seq == release.Seq {
		switch late, err := s.overdue(ctx, release, rel); {
		case err != nil:
			return err
		case late:
			return s.leave(ctx, release, rel)
		}
	}
	call := release.Place.CallID()
	c := events.CallClaimed{
		ToolCallID: rel.ToolCallID, RunID: rel.RunID, Round: rel.Round, Attempt: rel.Attempt + 1,
		GoSeq: release.Seq, Worker: s.cfg.ID, LeaseUntil: time.Now().Add(s.cfg.Lease).UTC(),
	}
	e, err := s.origin.Fact(s.ns.Call(call, events.KindClaim), c, prev)
	if err != nil {
		return jetstream.Final(err)
	}
	runCtx, done := s.enter(ctx, rel, release.Seq)
	if done == nil {
		return jetstream.Later(s.cfg.Lease / 2) // another delivery to this process is at it
	}
	defer done()
	a, err := s.conn.Append(ctx, events.After(prev), e)
	switch {
	case errors.Is(err, jetstream.ErrTampered):
		return s.tampered(ctx, release, a.Last, rel, err)
	case err != nil:
		return fmt.Errorf("append claim of %s: %w", call, err)
	case a.Outcome == jetstream.Gone:
		return nil
	case a.Outcome == jetstream.Lost:
		done()
		if a.Last.Seq == release.Seq {
			return jetstream.Later(0)
		}
		return s.goOn(ctx, release, a.Last, h, rel)
	}
	s.tellRunning(ctx, h, rel, a.Last)
	out := s.traced(runCtx, h, rel, c)
	err = s.finish(ctx, a.Last, rel, out)
	s.after(ctx, rel, out)
	return err
}

// outcome is what came of an attempt: a result, a suspension, or doubt about the effects.
type outcome struct {
	attempt   int
	inDoubt   bool
	finished  *events.CallFinished
	suspended *events.CallSuspended
}

// traced is run in a span of its own.
func (s *Service) traced(ctx context.Context, h host, rel events.CallReleased, c events.CallClaimed) outcome {
	ctx, span := telemetry.Begin(ctx, telemetry.SpanTool+" "+rel.ToolID, map[string]any{
		telemetry.Operation: telemetry.SpanTool, telemetry.Tool: rel.ToolName, telemetry.Call: rel.ToolCallID,
		telemetry.Agent: rel.AgentID, telemetry.Conversation: rel.ThreadID, telemetry.Attempt: c.Attempt, telemetry.Run: rel.RunID,
	})
	out := s.run(ctx, h, rel, c)
	code := ""
	switch {
	case out.inDoubt:
		span.Set(map[string]any{telemetry.Outcome: "in_doubt"})
	case out.suspended != nil:
		span.Set(map[string]any{telemetry.Outcome: "suspended"})
	default:
		span.Set(map[string]any{telemetry.Outcome: string(out.finished.Outcome)})
		if out.finished.Error != nil {
			code = string(out.finished.Outcome)
		}
	}
	span.End(code)
	return out
}

// run calls the tool's handler with exactly the released bytes, unless middleware blocks the call.
func (s *Service) run(ctx context.Context, h host, rel events.CallReleased, c events.CallClaimed) outcome {
	h.view = h.viewFor(rel)
	if f := s.before(ctx, rel, c.Attempt); f != nil {
		h.safe(ctx, rel, f)
		return outcome{attempt: c.Attempt, finished: f}
	}
	began := time.Now()
	call := agent.NewCall(s.callInfo(h, rel, c))
	a := s.attempt(ctx, h, rel, call)
	if a.Stack != nil {
		s.log.ErrorContext(ctx, "tool panicked", "runId", rel.RunID, "toolCallId", rel.ToolCallID, "stack", string(a.Stack))
	}
	if a.Suspension != nil {
		return outcome{attempt: c.Attempt, suspended: &events.CallSuspended{
			Reason:         events.SuspendedByTool,
			SuspendPayload: a.Suspension.Payload, ResumeSchema: a.Suspension.ResumeSchema, ResumeLabel: a.Suspension.ResumeLabel,
		}}
	}
	if a.InDoubt {
		s.log.WarnContext(ctx, "nobody knows whether the call had effects", "runId", rel.RunID, "toolCallId", rel.ToolCallID,
			"toolId", rel.ToolID)
		return outcome{attempt: c.Attempt, inDoubt: true}
	}
	f := &events.CallFinished{
		Outcome: a.Outcome, Started: a.Started,
		Result: a.Result, Error: h.secrets.OfResume(rel.Resume).Error(a.Error), // nobody else knows these secrets
		Active: events.Duration(time.Since(began).Round(time.Millisecond)),
	}
	if a.Outcome == events.OutcomeOK {
		f.ModelOutput = s.modelOutput(ctx, h, call, a.Result)
	}
	h.safe(ctx, rel, f)
	return outcome{attempt: c.Attempt, finished: f}
}

// callInfo is what the handler may know of its call.
func (s *Service) callInfo(h host, rel events.CallReleased, c events.CallClaimed) agent.CallInfo {
	show := s.shower(h, rel)
	return agent.CallInfo{
		RunID: rel.RunID, ToolCallID: rel.ToolCallID, ToolName: rel.ToolName, AgentID: rel.AgentID,
		ThreadID: rel.ThreadID, ResourceID: rel.ResourceID, Attempt: c.Attempt, Round: rel.Round,
		Resume: rel.Resume, SuspendPayload: rel.SuspendPayload, RequestContext: rel.RequestContext,
		Messages: func(ctx context.Context) ([]events.Message, error) { return s.messages(ctx, rel.RunID, rel.ToolCallID) },
		Write: func(ctx context.Context, output json.RawMessage) error {
			return show(ctx, output, func(safe json.RawMessage) events.Chunk {
				return events.ToolOutputChunk(rel.RunID, rel.ToolCallID, rel.ToolName, safe)
			})
		},
		Custom: func(ctx context.Context, c agent.CustomChunk) error {
			return show(ctx, c.Data, func(safe json.RawMessage) events.Chunk {
				return events.DataChunk(rel.RunID, events.ChunkType(c.Type), events.DataPayload{Data: safe, ID: c.ID, Transient: c.Transient})
			})
		},
		Store: s.storeFor(h, rel),
		Log:   s.log.With("runId", rel.RunID, "toolCallId", rel.ToolCallID),
		Span: func(ctx context.Context, name string, attributes map[string]any) (context.Context, func(error)) {
			ctx, span := telemetry.Begin(ctx, name, attributes)
			return ctx, func(err error) { span.End(failureOf(err)) }
		},
		Observed: telemetry.Log,
	}
}

// failureOf says how a span of a handler failed, without what its error says.
func failureOf(err error) string {
	if err == nil {
		return ""
	}
	return string(events.CodeToolFailed)
}

// shower publishes what a handler writes, as it may be shown.
func (s *Service) shower(h host, rel events.CallReleased) func(context.Context, json.RawMessage, func(json.RawMessage) events.Chunk) error {
	view, args := h.view, json.RawMessage(rel.Args)
	about := transform.Call{RunID: rel.RunID, ToolCallID: rel.ToolCallID, ToolName: rel.ToolName, Input: h.secrets.Args(args)}
	return func(ctx context.Context, written json.RawMessage, chunk func(json.RawMessage) events.Chunk) error {
		written = h.secrets.OfResume(rel.Resume).JSON(h.secrets.Of(args).JSON(written))
		safe, notes, shown := view.Written(ctx, about, written)
		if !shown {
			return nil
		}
		c := chunk(safe)
		c.Metadata = notes.Metadata()
		return s.conn.PublishChunk(ctx, s.origin, c)
	}
}

// messages reads what the model saw when it made the call: the conversation without the turn that made it.
func (s *Service) messages(ctx context.Context, run, toolCallID string) ([]events.Message, error) {
	st, _, err := s.conn.RunState(ctx, run)
	if err != nil {
		return nil, fmt.Errorf("read messages of %s: %w", run, err)
	}
	call, err := events.ParseCallID(toolCallID)
	if err != nil {
		return nil, err
	}
	seen := st.Messages
	switch n := len(seen); {
	case st.Step < call.Step: // the model is still at the turn that makes the call
		if err := s.conn.FoldResults(ctx, st); err != nil {
			return seen, err
		}
		if st.Settled() {
			seen = st.Transcript()
		}
	case st.Step == call.Step && n > 0:
		seen = seen[:n-1]
	default: // in the background, while the conversation goes on
		made := func(p events.Part) bool { return p.Type == events.PartToolCall && p.ToolCallID == toolCallID }
		if i := slices.IndexFunc(seen, func(m events.Message) bool { return slices.ContainsFunc(m.Parts, made) }); i >= 0 {
			seen = seen[:i]
		}
	}
	return s.conn.Whole(ctx, seen)
}

// finish stores what came of an attempt after its claim. An outcome that has lost its place is kept as evidence, and
// changes nothing. The delivery of a call that another worker has claimed since stays unsettled: an acknowledgement
// counts for every delivery of the release, and that worker may die too.
func (s *Service) finish(ctx context.Context, claim events.Event, rel events.CallReleased, out outcome) error {
	ctx = context.WithoutCancel(ctx) // a process that stops still says what it has done
	call := claim.Place.CallID()
	switch err := s.shrink(ctx, out.finished); {
	case errors.Is(err, jetstream.ErrTooLarge):
		return s.unstorable(ctx, claim, rel, out, err)
	case err != nil:
		return err
	}
	var data any
	kind := events.KindResult
	if out.inDoubt {
		d := doubted(claim, s.cfg.ID, out.attempt)
		out.suspended = &d
	}
	if out.suspended != nil {
		d := out.suspended
		d.ToolCallID, d.RunID, d.Round, d.Attempt, d.Worker = rel.ToolCallID, rel.RunID, rel.Round, out.attempt, s.cfg.ID
		data, kind = *d, events.KindSuspend
	} else {
		d := out.finished
		d.ToolCallID, d.RunID, d.ToolName, d.Round, d.Attempt = rel.ToolCallID, rel.RunID, rel.ToolName, rel.Round, out.attempt
		d.ClaimSeq, d.Worker, d.GrantID = claim.Seq, s.cfg.ID, rel.AllowedBy.Grant
		if rel.Round > 0 { // people may have edited what the model wrote
			d.Args = json.RawMessage(rel.Args)
		}
		data = *d
	}
	e, err := s.origin.Fact(s.ns.Call(call, kind), data, claim)
	if err != nil {
		return s.unstorable(ctx, claim, rel, out, err)
	}
	a, err := s.conn.Append(ctx, events.After(claim), e)
	switch {
	case errors.Is(err, jetstream.ErrTooLarge):
		return s.unstorable(ctx, claim, rel, out, err)
	case errors.Is(err, jetstream.ErrTampered):
		return errors.Join(s.late(ctx, claim, rel, out), s.tampered(ctx, claim, a.Last, rel, err))
	case err != nil:
		return fmt.Errorf("append outcome of %s: %w", call, err)
	case a.Outcome != jetstream.Stored:
		err := s.late(ctx, claim, rel, out)
		if err == nil && a.Last.Place.Kind == events.KindClaim {
			return jetstream.Later(s.cfg.Lease / 2)
		}
		return err
	}
	s.tellOutput(ctx, rel, out.finished)
	return nil
}

// shrink makes a blob of a large result. It is stored before the fact that refers to it.
func (s *Service) shrink(ctx context.Context, f *events.CallFinished) error {
	if f == nil || len(f.Result) <= events.MaxInline {
		return nil
	}
	ref, err := s.conn.PutBlob(ctx, f.Result)
	if err != nil {
		return fmt.Errorf("store the result of %s: %w", f.ToolCallID, err)
	}
	f.DataRef, f.Size, f.Result = ref, len(f.Result), nil
	return nil
}

// unstorable replaces an outcome that cannot be stored by one that says so: the call has run and must not run again.
func (s *Service) unstorable(ctx context.Context, claim events.Event, rel events.CallReleased, out outcome, why error) error {
	switch f := out.finished; {
	case f != nil && f.Error != nil && f.Error.Name == string(events.CodeTooLarge) && len(f.Error.Message) < events.MaxInline:
		return jetstream.Final(why) // it says so already
	case f != nil && f.ModelOutput != nil: // the result is worth more than what a model is told of it
		f.ModelOutput = nil
		return s.finish(ctx, claim, rel, out)
	}
	return s.finish(ctx, claim, rel, outcome{attempt: out.attempt, finished: &events.CallFinished{
		Outcome: events.OutcomeError, Started: true, Error: &events.ToolError{
			Name:    string(events.CodeTooLarge),
			Message: fmt.Sprintf("the tool ran, but its outcome cannot be stored: %v", why),
		},
	}})
}

// late keeps an outcome that came after its chain had gone on.
func (s *Service) late(ctx context.Context, claim events.Event, rel events.CallReleased, out outcome) error {
	d := events.OutcomeDelayed{
		ToolCallID: rel.ToolCallID, RunID: rel.RunID, Round: rel.Round, Attempt: out.attempt,
		ClaimSeq: claim.Seq, Worker: s.cfg.ID, Started: true,
	}
	if f := out.finished; f != nil {
		d.Outcome, d.Result, d.DataRef, d.Error = f.Outcome, f.Result, f.DataRef, f.Error
	}
	id := events.NewID(time.Now())
	e, err := s.origin.Fact(s.ns.Beside(claim.Place.CallID(), events.KindLate, id), d, claim)
	if err != nil {
		return jetstream.Final(err)
	}
	s.log.WarnContext(ctx, "outcome came too late", "runId", rel.RunID, "toolCallId", rel.ToolCallID, "round", rel.Round)
	if err := s.conn.Record(ctx, e); err != nil {
		return fmt.Errorf("record late outcome of %s: %w", rel.ToolCallID, err)
	}
	return nil
}

// abandon ends a call whose release cannot be handled. One that was claimed has perhaps happened: people decide.
func (s *Service) abandon(ctx context.Context, d jetstream.Delivery, cause error) error {
	last, err := s.conn.Last(ctx, d.Event.Place.Chain())
	if errors.Is(err, jetstream.ErrTampered) {
		return s.tampered(ctx, d.Event, last, events.CallReleased{}, cause)
	}
	if err != nil || settled(last, d.Event) {
		return err
	}
	if last.Place.Kind == events.KindClaim {
		c, err := events.Data[events.CallClaimed](last)
		if err != nil {
			return err
		}
		return s.doubt(ctx, last, c)
	}
	rel, err := events.Data[events.CallReleased](d.Event)
	if err != nil {
		return err
	}
	f := events.CallFinished{
		ToolCallID: rel.ToolCallID, RunID: rel.RunID, ToolName: rel.ToolName, Round: rel.Round,
		Outcome: events.OutcomeError, Error: &events.ToolError{Name: events.ErrorDeliveryExhausted, Message: cause.Error()},
	}
	e, err := s.origin.Fact(s.ns.Call(d.Event.Place.CallID(), events.KindResult), f, last)
	if err != nil {
		return err
	}
	_, err = s.conn.Append(ctx, events.After(last), e)
	return err
}

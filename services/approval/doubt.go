package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// onSuspend asks people about a call that has suspended itself or was found in doubt.
func (s *Service) onSuspend(ctx context.Context, d jetstream.Delivery) error {
	last, err := s.conn.Last(ctx, d.Event.Place.Chain())
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil // aged out: the run is long over
	}
	if err != nil {
		return fmt.Errorf("read head of %s: %w", d.Event.Place.CallID(), err)
	}
	if last.Seq < d.Event.Seq {
		return fmt.Errorf("the leader does not show the suspension of %s yet", d.Event.Place.CallID())
	}
	r, err := s.run(ctx, d.Event.Place.Run)
	if err != nil {
		return ignoreMissing(err)
	}
	return s.help(ctx, r, last)
}

// askAgain holds a call again after it has started: in the next round, about the bytes that were released.
func (s *Service) askAgain(ctx context.Context, r *run, suspend events.Event) error {
	d, err := events.Data[events.CallSuspended](suspend)
	if err != nil {
		return s.tampered(ctx, r, suspend, err)
	}
	q, f, err := s.releasedAs(ctx, r, suspend.Place.CallID())
	if err != nil {
		return err
	}
	q.attempt = max(d.Attempt, q.attempt)
	ask := q.ask(f, events.AskSuspended)
	ask.SuspendPayload, ask.ResumeSchema = d.SuspendPayload, d.ResumeSchema
	if len(ask.ResumeSchema) == 0 {
		ask.ResumeSchema = f.tool.ResumeSchema
	}
	ask.Reason = events.AskReason{Text: "the tool waits for data"}
	if d.Reason == events.SuspendInDoubt {
		inDoubt(ask, d.Claim)
	}
	s.keep(ctx, r, ask, q.call)
	q.restrictAgain(ctx, ask, f) // what must be approved by some is resumed by them
	if err := s.boundAfterEnd(ctx, ask); err != nil {
		return err
	}
	return s.hold(ctx, r, []holding{{ask: *ask, prev: suspend}})
}

// askInDoubt holds a claimed call whose worker is gone and of whose pool no executor is left to say so.
func (s *Service) askInDoubt(ctx context.Context, r *run, claim events.Event) error {
	d, err := events.Data[events.CallClaimed](claim)
	if err != nil {
		return s.tampered(ctx, r, claim, err)
	}
	q, f, err := s.releasedAs(ctx, r, claim.Place.CallID())
	if err != nil {
		return err
	}
	q.attempt = max(d.Attempt, q.attempt)
	ask := q.ask(f, events.AskInDoubt)
	inDoubt(ask, &events.ClaimBrief{By: d.Worker, At: claim.Stored.UTC(), Attempt: d.Attempt})
	s.keep(ctx, r, ask, q.call)
	q.restrictAgain(ctx, ask, f)
	if err := s.boundAfterEnd(ctx, ask); err != nil {
		return err
	}
	return s.hold(ctx, r, []holding{{ask: *ask, prev: claim}})
}

// restrictAgain applies the rules to a call that has started. They do not hold it, but say who may decide it, so the ask
// names the first of them: it is what somebody is told who may not.
func (q question) restrictAgain(ctx context.Context, ask *events.CallHeld, f frozen) {
	j := q.judgement(ctx, f)
	if i := slices.IndexFunc(j.Matches, judge.HeldBy); i >= 0 {
		by := j.Matches[i].Reason
		ask.Reason.Rule, ask.Reason.Set, ask.Reason.Digest = by.Rule, by.Set, by.Digest
	}
	q.restrict(ask, j)
}

func inDoubt(ask *events.CallHeld, claim *events.ClaimBrief) {
	ask.Kind, ask.Allowed, ask.ResumeSchema = events.AskInDoubt, events.AskInDoubt.Allowed(), nil
	ask.Reason = events.AskReason{Text: "the worker is gone; nobody knows whether the effects happened"}
	ask.Claim = claim
	payload := map[string]any{"reason": events.SuspendInDoubt}
	if claim != nil {
		payload["since"] = claim.At.Format(time.RFC3339Nano)
	}
	ask.SuspendPayload, _ = json.Marshal(payload) // two strings always encode
}

// releasedAs is the question in the next round about the bytes that a call was last released with.
func (s *Service) releasedAs(ctx context.Context, r *run, call events.CallID) (question, frozen, error) {
	rel, err := s.lastRelease(ctx, r, call)
	if err != nil {
		return question{}, frozen{}, err
	}
	t := r.tools[rel.ToolName]
	if t == nil {
		return question{}, frozen{}, jetstream.Final(fmt.Errorf("tool %s is not part of run %s", rel.ToolName, call.Run))
	}
	rules, err := s.rulesNow(ctx)
	if err != nil {
		return question{}, frozen{}, err
	}
	q := s.question(r, rules, call, events.CallPlanned{ToolCallID: call.String(), ToolName: rel.ToolName, Background: rel.Background})
	q.round, q.attempt = rel.Round+1, rel.Attempt
	args := json.RawMessage(rel.Args)
	fp := events.Frozen{
		Namespace: s.ns, RunID: call.Run, ToolCallID: call.String(), Round: q.round, ToolID: t.ID,
		ToolVersion: t.Version, InputSchemaDigest: t.InputSchemaDigest, Args: args,
	}.Fingerprint()
	return q, frozen{tool: t, args: args, fingerprint: fp}, nil
}

// errNeverReleased says that the log holds no release of a call (any more).
var errNeverReleased = errors.New("the call was never released")

// lastRelease is the go that a call runs under. Its subject names pool and tool, which the run's definitions know.
func (s *Service) lastRelease(ctx context.Context, r *run, call events.CallID) (events.CallReleased, error) {
	var last events.Event
	seen := map[string]bool{}
	for _, t := range r.tools {
		p := events.CallReleased{Namespace: s.ns, Pool: t.Pool, ToolID: t.ID}.At(call)
		if seen[p.Subject()] {
			continue
		}
		seen[p.Subject()] = true
		e, err := s.conn.Fact(ctx, p)
		if errors.Is(err, jetstream.ErrNotFound) {
			continue
		}
		if err != nil {
			return events.CallReleased{}, fmt.Errorf("read release of %s: %w", call, err)
		}
		if e.Seq > last.Seq && s.genuine(e) == nil {
			last = e
		}
	}
	if last.ID == "" {
		return events.CallReleased{}, jetstream.Final(fmt.Errorf("%w: %s", errNeverReleased, call))
	}
	return events.Data[events.CallReleased](last)
}

// onLate shows an outcome that came too late on the call's open ask: people decide with it, code does not.
func (s *Service) onLate(ctx context.Context, d jetstream.Delivery) error {
	late, err := events.Data[events.OutcomeDelayed](d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	last, err := s.last(ctx, d.Event.Place.CallID())
	if err == nil && last.Place.Kind == events.KindSuspend {
		return jetstream.Later(lookAgain) // the ask on which it belongs is on its way
	}
	if err != nil {
		return ignoreMissing(err)
	}
	r, err := s.run(ctx, d.Event.Place.Run)
	if err != nil {
		return ignoreMissing(err)
	}
	late = s.safeLate(ctx, r, d.Event.Place.CallID(), late)
	return s.changeEntry(ctx, r, func(old *events.Snapshot) *events.Snapshot {
		if old == nil {
			return nil
		}
		snap := *old
		snap.Asks = slices.Clone(old.Asks)
		for i, a := range snap.Asks {
			if a.ToolCallID == late.ToolCallID && a.Late == nil {
				snap.Asks[i].Late = &late
				return &snap
			}
		}
		return old
	})
}

// safeLate is a late outcome as lists may show it.
func (s *Service) safeLate(ctx context.Context, r *run, call events.CallID, late events.OutcomeDelayed) events.OutcomeDelayed {
	rel, err := s.lastRelease(ctx, r, call)
	if err != nil || r.tools[rel.ToolName] == nil {
		return transform.Nothing.Delayed(ctx, late, "", nil)
	}
	return r.view(rel.ToolName).Delayed(ctx, late, rel.ToolName, json.RawMessage(rel.Args))
}

// abandonFact writes the fact that a delivery owed when the gate has to give it up, so that the run goes on or ends.
func (s *Service) abandonFact(ctx context.Context, d jetstream.Delivery, cause error) error {
	p := d.Event.Place
	if p.Kind != events.KindStep && p.Kind != events.KindSuspend {
		return nil
	}
	return s.endRun(ctx, p.Run, events.CancelCause{
		RunID: p.Run, End: events.RunFailed, Code: events.CodeDeliveryExhausted,
		By: Name, Reason: fmt.Sprintf("the gate could not handle %s: %v", p.Kind, cause),
	})
}

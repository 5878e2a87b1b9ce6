package approval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// onCancel ends a run, or one call of it, because somebody asked for that.
func (s *Service) onCancel(ctx context.Context, d jetstream.Delivery, in events.Inbox) error {
	req, err := events.Data[events.CancelRequested](d.Event)
	if err != nil || d.Event.Type != events.TypeOf[events.CancelRequested]() || req.RunID != in.Run {
		return s.noteOnly(ctx, d, in, events.Errorf(events.CodeInvalidRequest,
			"a cancel of run %s must be an event of type %s that names it", in.Run, events.TypeOf[events.CancelRequested]()))
	}
	if in.Principal != events.TokenPlanner {
		who, err := s.principalOf(ctx, in.Principal)
		if err != nil {
			return err
		}
		if refusal := who.Lacks(events.ScopesToStop()...); refusal != nil {
			return s.noteOnly(ctx, d, in, refusal)
		}
	}
	cause := events.CancelCause{RunID: in.Run, End: events.RunCancelled, By: in.Principal, Reason: req.Reason}
	if req.End == string(events.RunFailed) {
		if in.Principal != events.TokenPlanner {
			return s.noteOnly(ctx, d, in, events.Errorf(events.CodeForbidden, "only a planner may ask for a failed end"))
		}
		cause.End, cause.Code = events.RunFailed, req.Code
	}
	if req.ToolCallID != "" {
		return s.cancelCall(ctx, d, in, req)
	}
	if refusal, err := s.parentGone(ctx, in.Run); refusal != nil || err != nil {
		if refusal == nil {
			return err
		}
		return s.noteOnly(ctx, d, in, refusal)
	}
	head, err := s.conn.Last(ctx, s.ns.MainOf(in.Run))
	switch {
	case errors.Is(err, jetstream.ErrNotFound) && d.Attempt <= 1:
		return jetstream.Later(lookAgain)
	case err != nil && !errors.Is(err, jetstream.ErrNotFound) && !errors.Is(err, jetstream.ErrTampered):
		return fmt.Errorf("read head of %s: %w", in.Run, err)
	case err == nil && head.Place.Kind == events.KindEnd:
		return s.alreadyEnded(ctx, d, in, head)
	}
	end, ours, err := s.closeRun(ctx, in.Run, cause)
	if err != nil || ours || end.ID == "" || endedFor(end, cause) {
		return err
	}
	return s.alreadyEnded(ctx, d, in, end) // the run came to another end while its calls were closed
}

// endedFor reports whether an end is the one that a cancel was due to bring, whoever stored it: a planner that settles
// the closed calls helps.
func endedFor(end events.Event, cause events.CancelCause) bool {
	d, err := events.Data[events.RunEnded](end)
	return err == nil && d.Cancel != nil && d.Cancel.RunID == cause.RunID && d.Cancel.By == cause.By
}

// alreadyEnded tells the sender of a cancel that the run is over, unless it was this cancel that ended it.
func (s *Service) alreadyEnded(ctx context.Context, d jetstream.Delivery, in events.Inbox, end events.Event) error {
	data, err := events.Data[events.RunEnded](end)
	if err != nil {
		return jetstream.Final(err)
	}
	if d.Attempt > 1 && data.Cancel != nil && data.Cancel.By == in.Principal {
		return nil
	}
	return s.noteOnly(ctx, d, in, events.Errorf(events.CodeRunEnded, "run %s is over: %s", in.Run, data.Outcome))
}

// endRun is closeRun for whoever has nobody to tell how the run ended.
func (s *Service) endRun(ctx context.Context, id string, cause events.CancelCause) error {
	_, _, err := s.closeRun(ctx, id, cause)
	return err
}

// closeRun ends a run that may have open calls: the calls first, then the run. It reads the run's head before it looks
// at the calls, so a step that comes in between refuses the end, and its calls are closed in the next round. It returns
// the run's end, whether it is ours or that of somebody who was first; none when the run has aged out.
func (s *Service) closeRun(ctx context.Context, id string, cause events.CancelCause) (events.Event, bool, error) {
	for {
		head, err := s.conn.Last(ctx, s.ns.MainOf(id))
		switch {
		case errors.Is(err, jetstream.ErrNotFound):
			head = events.Event{}
		case errors.Is(err, jetstream.ErrTampered) && head.Seq > 0:
			cause.End, cause.Code, cause.Reason = events.RunFailed, events.CodeTampering, "the run's record was tampered with"
			head.Place = s.ns.End(id)
		case err != nil:
			return events.Event{}, false, fmt.Errorf("read head of %s: %w", id, err)
		case head.Place.Kind == events.KindEnd:
			return head, false, nil
		}
		if err := s.closeCalls(ctx, head, cause); err != nil {
			return events.Event{}, false, err
		}
		last, ours, err := s.add(ctx, s.ns.End(id), head, s.endOf(ctx, id, cause))
		if err != nil {
			return events.Event{}, false, ignoreGone(err)
		}
		if ours || last.Place.Kind == events.KindEnd {
			return last, ours, nil
		}
	}
}

// closeCalls gives every open call of the step at head, or of the carry there, its cancelled result, which fences each.
func (s *Service) closeCalls(ctx context.Context, head events.Event, cause events.CancelCause) error {
	calls, err := callsAt(head)
	if head.Seq > 0 && head.ID == "" { // no fact: what is open has to be found
		calls, err = s.everyCall(ctx, head.Place.Run)
	}
	if err != nil {
		return err
	}
	for token, planned := range calls {
		call, err := events.CallOf(head.Place.Run, token)
		if err != nil {
			return jetstream.Final(err)
		}
		if err := s.closeCall(ctx, call, planned, head, cause); err != nil {
			return err
		}
	}
	return nil
}

// callsAt are the calls that may be open at a main fact, as far as it says what they are.
func callsAt(head events.Event) (map[string]events.CallPlanned, error) {
	calls := map[string]events.CallPlanned{}
	switch {
	case head.ID == "":
	case head.Place.Kind == events.KindStep:
		d, err := events.Data[events.StepFinished](head)
		if err != nil {
			return nil, jetstream.Final(err)
		}
		for i, c := range d.Calls {
			calls[events.CallID{Step: d.Step, Index: i + 1}.Token()] = c
		}
		addTasks(calls, d.Background)
	case head.Place.Kind == events.KindCarry:
		d, err := events.Data[events.RunCarried](head)
		if err != nil {
			return nil, jetstream.Final(err)
		}
		for _, c := range slices.Concat(d.State.Calls, d.State.Tasks) {
			if c.State != events.CallSettled {
				calls[c.C] = c.Planned
			}
		}
	}
	return calls, nil
}

func addTasks(calls map[string]events.CallPlanned, open []events.OpenTask) {
	for _, t := range open {
		calls[t.C] = events.CallPlanned{ToolName: t.ToolName}
	}
}

// closeCall appends a call's cancelled result. When it loses it reads on: a call that has just ended keeps its result.
func (s *Service) closeCall(ctx context.Context, call events.CallID, planned events.CallPlanned, step events.Event, cause events.CancelCause) error {
	for {
		last, err := s.last(ctx, call)
		switch {
		case errors.Is(err, jetstream.ErrNotFound):
			last = none(step)
		case err != nil:
			return fmt.Errorf("read head of %s: %w", call, err)
		case last.Place.Kind == events.KindResult:
			s.show(ctx, last, planned)
			return nil
		case last.Place.Delegated():
			if err := s.endChild(ctx, call, cause); err != nil {
				return err
			}
			if last, err = s.last(ctx, call); err == nil && last.Place.Kind == events.KindResult {
				s.show(ctx, last, planned)
			}
			if err != nil || last.Place.Kind == events.KindResult {
				return ignoreMissing(err)
			}
		}
		started := false
		if last.Seq > 0 {
			if started, err = s.started(ctx, call, attemptOf(last)); err != nil {
				return err
			}
		}
		d := events.CallFinished{
			ToolCallID: call.String(), RunID: call.Run, ToolName: planned.ToolName,
			Outcome: events.OutcomeCancelled, Started: started, Reason: cause.Reason, Cancel: &cause,
			Error: &events.ToolError{Name: events.ErrorCancelled, Message: "the call was cancelled"},
		}
		stored, ours, err := s.add(ctx, s.ns.Call(call, events.KindResult), last, d)
		if err != nil {
			return ignoreGone(err)
		}
		if ours {
			s.show(ctx, stored, planned)
			return nil
		}
	}
}

// cancelCall cancels one call; its run goes on with that result.
func (s *Service) cancelCall(ctx context.Context, d jetstream.Delivery, in events.Inbox, req events.CancelRequested) error {
	call, err := events.ParseCallID(req.ToolCallID)
	if err != nil || call.Run != in.Run {
		return s.noteOnly(ctx, d, in, events.Errorf(events.CodeInvalidRequest, "%q is no call of run %s", req.ToolCallID, in.Run))
	}
	st, head, err := s.conn.RunState(ctx, in.Run)
	if err != nil {
		if errors.Is(err, jetstream.ErrNotFound) {
			return s.noteOnly(ctx, d, in, events.Errorf(events.CodeNotFound, "run %s is not known", in.Run))
		}
		return err
	}
	for _, c := range slices.Concat(st.Calls, st.Tasks) {
		again := d.Attempt > 1 && c.Finished != nil && c.Finished.Cancel != nil && c.Finished.Cancel.By == in.Principal
		if c.C != call.Token() || c.State == events.CallSettled && !again {
			continue
		}
		cause := events.CancelCause{ToolCallID: req.ToolCallID, By: in.Principal, Reason: req.Reason}
		if err := s.closeCall(ctx, call, c.Planned, head, cause); err != nil {
			return err
		}
		r, err := s.run(ctx, in.Run)
		if err != nil {
			return ignoreMissing(err)
		}
		return s.takeOut(ctx, r, req.ToolCallID, everyRound)
	}
	return s.noteOnly(ctx, d, in, events.Errorf(events.CodeRunEnded, "call %s is over", req.ToolCallID))
}

// endOf is the end that a cancel is due to bring. A run that has not started has nothing else to say.
func (s *Service) endOf(ctx context.Context, id string, cause events.CancelCause) events.RunEnded {
	d := events.RunEnded{RunID: id, Outcome: cmp.Or(cause.End, events.RunCancelled), FinishReason: "cancelled", Cancel: &cause}
	if d.Outcome == events.RunFailed {
		d.FinishReason = "error"
		d.Error = &events.Error{Code: cause.Code, Message: cmp.Or(cause.Reason, "the run failed: "+string(cause.Code)), RunID: id}
	}
	if st, err := s.current(ctx, id); err == nil {
		d.AgentID, d.ThreadID, d.ResourceID, d.Step = st.AgentID, st.ThreadID, st.ResourceID, st.Step
		d.Usage = st.Counted().Usage
	}
	return d
}

// attemptOf is how many attempts to execute a call had been made at a fact of its chain; an answer does not say.
func attemptOf(fact events.Event) int {
	d, err := events.Data[struct {
		Attempt int `json:"attempt"`
	}](fact)
	if err != nil {
		return 0
	}
	return d.Attempt
}

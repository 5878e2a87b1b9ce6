package approval

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Calls that are delegated. The gate releases one to the planners as it releases any call, and gives it its result when the
// run that it was delegated to has ended. Nobody claims it: the start of that run is the claim.

// addAgents makes the tools by which a run delegates to the sub-agents that it is pinned to.
func (s *Service) addAgents(ctx context.Context, r *run) error {
	for key, digest := range r.start.Definitions.Agents {
		raw, err := s.conn.Def(ctx, digest)
		if err != nil {
			return fmt.Errorf("definition of agent %s: %w", key, err)
		}
		var sub events.AgentDef
		if err := json.Unmarshal(raw, &sub); err != nil {
			return fmt.Errorf("definition of agent %s: %w", key, err)
		}
		t, err := s.derived(ctx, events.AgentTool(key, sub, digest))
		if err != nil {
			return fmt.Errorf("tool of agent %s: %w", key, err)
		}
		r.tools[events.AgentPrefix+key] = t
	}
	return nil
}

// inherited is what the runs above ask for.
func (r *run) inherited() []events.Approval {
	if r.start.Inherited == nil {
		return nil
	}
	return r.start.Inherited.RequireToolApproval
}

// inheritedHooks are the hooks of a run with those that the runs above hand down. None of these is replaced by one of the same
// name.
func inheritedHooks(above *events.Inherited, own events.Hooks) events.Hooks {
	if above == nil {
		return own
	}
	all := maps.Clone(own)
	if all == nil {
		all = events.Hooks{}
	}
	for depth, hooks := range above.Hooks {
		for name, h := range hooks {
			if h.When == "" {
				h.Service = cmp.Or(h.Service, name)
			}
			all[fmt.Sprintf("%s@%d", name, depth+1)] = h
		}
	}
	return all
}

// tooDeep reports whether the run has as many above it as may be, itself included.
func (r *run) tooDeep() bool { return len(r.start.Path) >= r.agent.Delegation.Depth() }

func tooDeep(r *run) func(*events.CallFinished) {
	return func(d *events.CallFinished) {
		d.Error = &events.ToolError{
			Name:    "DelegationDepthError",
			Message: fmt.Sprintf("The call was not delegated: %d runs are in one path already, and no more are allowed", len(r.start.Path)),
		}
	}
}

// parentGone refuses the cancel of a run that a call was delegated to, when that call does not wait for it any more.
func (s *Service) parentGone(ctx context.Context, id string) (*events.Error, error) {
	call, delegated := events.ParentCall(id)
	if !delegated {
		return nil, nil //nolint:nilnil // nothing is wrong
	}
	last, err := s.last(ctx, call)
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return events.NotFound("run", "run %s is not known", id), nil
	case err != nil:
		return nil, fmt.Errorf("read head of %s: %w", call, err)
	case last.Place.Delegated():
		return nil, nil //nolint:nilnil // nothing is wrong
	}
	return events.Errorf(events.CodeRunEnded, "run %s is over: the call that it was for is", id), nil
}

// settleParent gives the call that a run was delegated by its result, now that the run has ended.
func (s *Service) settleParent(ctx context.Context, end events.Event) error {
	call, delegated := events.ParentCall(end.Place.Run)
	if !delegated {
		return nil
	}
	ended, err := events.Data[events.RunEnded](end)
	if err != nil {
		return jetstream.Final(err)
	}
	for {
		last, err := s.last(ctx, call)
		switch {
		case errors.Is(err, jetstream.ErrNotFound):
			return nil // aged out
		case err != nil:
			return fmt.Errorf("read head of %s: %w", call, err)
		case last.Place.Kind == events.KindResult:
			return nil
		case !last.Place.Delegated():
			return fmt.Errorf("the leader does not show the release of %s yet", call)
		}
		d, err := s.resultOfChild(ctx, last, ended)
		if err != nil {
			return err
		}
		stored, ours, err := s.addDelegated(ctx, call, last, d)
		if err != nil || ours || stored.Place.Kind == events.KindResult {
			return ignoreGone(err)
		}
	}
}

// addDelegated stores the result of a delegated call, without what the child's tools have brought when that is too much.
func (s *Service) addDelegated(ctx context.Context, call events.CallID, prev events.Event, d events.CallFinished) (events.Event, bool, error) {
	last, ours, err := s.add(ctx, s.ns.Call(call, events.KindResult), prev, d)
	if !errors.Is(err, jetstream.ErrTooLarge) || d.Outcome != events.OutcomeOK {
		return last, ours, err
	}
	var result events.DelegationResult
	if err := json.Unmarshal(d.Result, &result); err != nil {
		return last, false, jetstream.Final(err)
	}
	result.SubAgentToolResults = []events.ChildToolResult{}
	if d.Result, err = events.Marshal(result); err != nil {
		return last, false, jetstream.Final(err)
	}
	d.ModelOutput = events.TextOutput(result.Text)
	return s.addResult(ctx, call, prev, d)
}

// resultOfChild is what becomes of a delegated call when its run has ended.
func (s *Service) resultOfChild(ctx context.Context, release events.Event, ended events.RunEnded) (events.CallFinished, error) {
	rel, err := events.Data[events.CallReleased](release)
	if err != nil {
		return events.CallFinished{}, jetstream.Final(err)
	}
	d := events.CallFinished{
		ToolCallID: rel.ToolCallID, RunID: rel.RunID, ToolName: rel.ToolName, Round: rel.Round, Started: ended.Step > 0,
		Usage: &ended.Usage, GrantID: rel.AllowedBy.Grant,
	}
	child, err := s.current(ctx, ended.RunID)
	switch {
	case errors.Is(err, jetstream.ErrNotFound): // it never began
	case err != nil:
		return d, err
	default:
		d.Active = child.Counted().Active
	}
	if ended.Outcome == events.RunCompleted {
		return d, s.answerOfChild(ctx, &d, rel, child, ended)
	}
	failedChild(&d, rel, child, ended)
	return d, nil
}

// failedChild is the outcome of a delegated call whose run has not completed. What went wrong in it stands in the record; the
// supervisor's model is told no more than that it failed.
func failedChild(d *events.CallFinished, rel events.CallReleased, child *events.State, ended events.RunEnded) {
	cancel := ended.Cancel
	switch {
	case cancel != nil && cancel.RunID != ended.RunID: // of a run above
		d.Outcome, d.Cancel = events.OutcomeCancelled, cancel
	case ended.Outcome == events.RunCancelled:
		d.Outcome, d.Cancel = events.OutcomeCancelled, &events.CancelCause{ToolCallID: rel.ToolCallID}
		if cancel != nil {
			d.Cancel.By, d.Cancel.Reason = cancel.By, cancel.Reason
		}
	case child == nil && ended.Error != nil && ended.Error.Code == events.CodeDeadlineExceeded:
		d.Outcome, d.Error = events.OutcomeUnavailable, &events.ToolError{Name: events.ErrorUnavailable, Message: ended.Error.Message}
		return
	default:
		d.Outcome = events.OutcomeError
		d.Error = &events.ToolError{Name: "AgentError", Message: fmt.Sprintf("[Agent:%s] - Failed agent tool execution for %s",
			rel.AgentID, strings.TrimPrefix(rel.ToolName, events.AgentPrefix))}
		if ended.Error != nil {
			d.Reason = string(ended.Error.Code) + ": " + ended.Error.Message
		}
		return
	}
	d.Error = &events.ToolError{Name: events.ErrorCancelled, Message: "the call was cancelled"}
	d.Reason = d.Cancel.Reason
}

// endChild ends the run that a call was delegated to, whether it has begun or not, and gives the call its result.
func (s *Service) endChild(ctx context.Context, call events.CallID, cause events.CancelCause) error {
	if cause.RunID == "" { // of this call alone
		cause = events.CancelCause{RunID: call.String(), End: events.RunCancelled, By: cause.By, Reason: cause.Reason}
	}
	end, _, err := s.closeRun(ctx, call.String(), cause)
	if err != nil || end.ID == "" {
		return err
	}
	return s.settleParent(ctx, end)
}

// answerOfChild is the result of a delegated call whose run has completed. The supervisor's model is told the text.
func (s *Service) answerOfChild(ctx context.Context, d *events.CallFinished, rel events.CallReleased, child *events.State, ended events.RunEnded) error {
	result := events.DelegationResult{
		FinishReason: ended.FinishReason, SubAgentThreadID: ended.ThreadID, SubAgentResourceID: ended.ResourceID, Usage: ended.Usage,
		SubAgentToolResults: []events.ChildToolResult{},
	}
	if ended.Message != nil {
		result.Text = ended.Message.Text()
	}
	var err error
	if child != nil {
		if result.SubAgentToolResults, err = s.childResults(ctx, child); err != nil {
			return err
		}
	}
	if d.Result, err = events.Marshal(result); err != nil {
		return jetstream.Final(err)
	}
	parent, err := s.run(ctx, rel.RunID)
	if err != nil && !errors.Is(err, errNoRun) {
		return err
	}
	d.Outcome, d.ModelOutput = events.OutcomeOK, events.TextOutput(result.Text)
	if parent != nil && parent.agent.Delegation != nil && parent.agent.Delegation.ShowToolResults {
		d.ModelOutput = nil
	}
	return nil
}

// maxChildResults bounds how many results of a child's tools stand in the result of the call, the latest.
const maxChildResults = 64

// childResults are what the tools of a child have brought, as far as it may be shown.
func (s *Service) childResults(ctx context.Context, child *events.State) ([]events.ChildToolResult, error) {
	r, err := s.run(ctx, child.RunID)
	if err != nil {
		return nil, err
	}
	subjects, err := s.conn.Subjects(ctx, s.ns.CallsOf(child.RunID))
	if err != nil {
		return nil, fmt.Errorf("list calls of %s: %w", child.RunID, err)
	}
	var places []events.Place
	for _, subject := range subjects {
		if p, err := events.ParsePlace(subject); err == nil && p.Kind == events.KindResult {
			places = append(places, p)
		}
	}
	slices.SortFunc(places, func(a, b events.Place) int {
		return events.CompareCalls(a.CallID().String(), b.CallID().String())
	})
	facts, err := s.conn.Facts(ctx, places[max(0, len(places)-maxChildResults):]...)
	if err != nil {
		return nil, fmt.Errorf("read results of %s: %w", child.RunID, err)
	}
	args := argsIn(child)
	results := make([]events.ChildToolResult, 0, len(facts))
	for _, fact := range facts {
		f, err := events.Data[events.CallFinished](fact)
		if err != nil {
			continue
		}
		shown, input, _ := r.view(f.ToolName).Finished(ctx, f, args[f.ToolCallID])
		results = append(results, childResult(shown, input))
	}
	return results, nil
}

func childResult(f events.CallFinished, args json.RawMessage) events.ChildToolResult {
	out := events.ChildToolResult{ToolName: f.ToolName, ToolCallID: f.ToolCallID, Result: f.Result, Args: args}
	if f.Outcome != events.OutcomeOK && f.Outcome != events.OutcomeResponded {
		out.IsError = true
	}
	if out.Result == nil && f.Error != nil {
		out.Result, _ = events.Marshal(f.Error.Message) // a string always encodes
	}
	if out.Result == nil {
		out.Result = json.RawMessage("null")
	}
	if !json.Valid(out.Args) {
		out.Args = json.RawMessage("{}")
	}
	return out
}

// argsIn are the arguments of the calls of a run, by toolCallId, as its conversation has them.
func argsIn(st *events.State) map[string]json.RawMessage {
	args := map[string]json.RawMessage{}
	for _, m := range st.Transcript() {
		for _, p := range m.Parts {
			if p.Type == events.PartToolCall && json.Valid([]byte(p.Args)) {
				args[p.ToolCallID] = json.RawMessage(p.Args)
			}
		}
	}
	return args
}

// sweepDelegated looks after calls that were delegated: one whose run has not begun by the deadline ends, after that run was
// ended in advance.
func (s *Service) sweepDelegated(ctx context.Context) error {
	b, err := s.conn.Backlog(ctx, events.StreamRuns, jetstream.ConsumerPlanner)
	if err != nil || b.Outstanding == 0 {
		return err
	}
	return s.each(ctx, b, []string{s.ns.EveryGo(events.TokenAgentPool)}, func(fact events.Event) error {
		return s.neverBegan(ctx, fact, b.Now)
	})
}

func (s *Service) neverBegan(ctx context.Context, release events.Event, now time.Time) error {
	d, err := events.Data[events.CallReleased](release)
	if err != nil {
		return jetstream.Final(err)
	}
	call := release.Place.CallID()
	last, err := s.last(ctx, call)
	if err != nil || !last.Place.Delegated() || last.Seq != release.Seq || !now.After(d.Deadline(release)) {
		return ignoreMissing(err)
	}
	place := s.ns.End(call.String())
	_, err = s.conn.Last(ctx, place.Chain())
	if !errors.Is(err, jetstream.ErrNotFound) {
		return err
	}
	end := events.RunEnded{
		RunID: call.String(), AgentID: d.SubAgent(), Outcome: events.RunFailed, FinishReason: "error",
		Error: events.Errorf(events.CodeDeadlineExceeded, "no planner took the call in time"),
	}
	_, _, err = s.add(ctx, place, none(release), end)
	return ignoreGone(err)
}

// carryDelegated stores again the releases of delegated calls of a suspended run that would age out before their runs end.
func (s *Service) carryDelegated(ctx context.Context, st *events.State, now time.Time) error {
	for _, token := range st.Open() {
		call, err := events.CallOf(st.RunID, token)
		if err != nil {
			return jetstream.Final(err)
		}
		last, err := s.last(ctx, call)
		if err != nil || !last.Place.Delegated() || now.Sub(last.Stored) <= s.cfg.Retention/3 {
			if err = ignoreMissing(err); err != nil {
				return err
			}
			continue
		}
		if err := s.carry(ctx, last); err != nil {
			return err
		}
	}
	return nil
}

package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// A call that is delegated is a run of its own, whose id is that of the call: its start is the claim. The gate has released
// it, and gives the call its result when that run has ended. Start and tombstone exclude each other, as both are the first
// fact of one chain, so a run that was cancelled before it began never begins.

// onDelegated starts the run that a call is delegated to.
func (s *Service) onDelegated(ctx context.Context, d jetstream.Delivery) error {
	rel, err := events.Data[events.CallReleased](d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	if err := s.genuine(d.Event, rel); err != nil {
		s.log.ErrorContext(ctx, "tampering: a delegation that no gate has released", "toolCallId", rel.ToolCallID, "error", err)
		return s.giveUp(ctx, d.Event, events.Errorf(events.CodeTampering, "the run's record was tampered with"))
	}
	last, err := s.conn.Last(ctx, d.Event.Place.Chain())
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return nil // aged out
	case err != nil:
		return fmt.Errorf("read head of %s: %w", rel.ToolCallID, err)
	case last.Seq < d.Event.Seq:
		return fmt.Errorf("the leader does not show the release of %s yet", rel.ToolCallID)
	case !last.Place.Delegated():
		return nil // over
	}
	parent, _, err := s.conn.RunState(ctx, rel.RunID)
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("read state of %s: %w", rel.RunID, err)
	case parent.Ended != "":
		return nil // what is open is closed by whoever ended it
	}
	return s.startChild(ctx, d.Event, rel, parent)
}

// genuine checks that a gate has released exactly this call.
func (s *Service) genuine(e events.Event, rel events.CallReleased) error {
	if err := s.cfg.GateKeys.VerifyFact(e); err != nil {
		return err
	}
	return rel.Genuine(s.ns, e.Place)
}

// startChild appends the first fact of a child, or finds that it has one.
func (s *Service) startChild(ctx context.Context, release events.Event, rel events.CallReleased, parent *events.State) error {
	var in events.DelegationInput
	if err := json.Unmarshal([]byte(rel.Args), &in); err != nil {
		return jetstream.Final(fmt.Errorf("arguments of %s: %w", rel.ToolCallID, err))
	}
	def, err := s.definition(ctx, parent)
	if err != nil {
		return err
	}
	var sub events.AgentDef
	if err := s.read(ctx, rel.ToolVersion, &sub); err != nil {
		return s.neverStarts(ctx, release, rel, err)
	}
	pins, err := s.pinned(ctx, sub, rel.ToolVersion)
	if err != nil {
		return err
	}
	data := s.childOf(rel, parent, def, sub, in)
	data.Definitions, data.RequestID = pins, release.ID
	s.tellChild(ctx, release, rel, data.AgentID)
	stored, ours, err := s.addFirst(ctx, s.ns.Start(data.RunID), release, data)
	if errors.Is(err, jetstream.ErrTooLarge) { // what was said before is too much; what it is to do may not be
		data.Request.Messages = events.Prompt{events.TextMessage(events.RoleUser, in.Prompt)}
		stored, ours, err = s.addFirst(ctx, s.ns.Start(data.RunID), release, data)
	}
	if ours {
		s.remember(events.StateOf(data, stored), stored)
	}
	if errors.Is(err, jetstream.ErrTooLarge) {
		return s.neverStarts(ctx, release, rel, err)
	}
	return err
}

// tellTime is how long the start of a child waits until readers can know of it.
const tellTime = time.Second

// tellChild tells readers of a run of the one below it, before that begins: then all that the child says comes later in the
// stream, and a reader who goes on by a cursor misses nothing of it. Where chunks are not stored the child begins all the same.
func (s *Service) tellChild(ctx context.Context, release events.Event, rel events.CallReleased, agentID string) {
	s.chunk(ctx, events.ChildStartChunk(rel, agentID, release.ID))
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	if err := s.conn.FlushChunks(ctx, rel.RunID); err != nil {
		s.log.WarnContext(ctx, "chunks not stored", "runId", rel.RunID, "error", err)
	}
}

// addFirst stores the first fact of a child, or returns the last one of its chain when it has any.
func (s *Service) addFirst(ctx context.Context, p events.Place, release events.Event, data any) (events.Event, bool, error) {
	e, err := s.origin.Fact(p, data, release)
	if err != nil {
		return events.Event{}, false, jetstream.Final(err)
	}
	a, err := s.conn.Append(ctx, events.First(p), e)
	if err != nil {
		return events.Event{}, false, fmt.Errorf("append %s of %s: %w", p.Kind, p.Run, err)
	}
	return a.Last, a.Outcome == jetstream.Stored, nil
}

// neverStarts ends a child that cannot begin.
func (s *Service) neverStarts(ctx context.Context, release events.Event, rel events.CallReleased, cause error) error {
	code := events.CodeDefinitionMissing
	switch {
	case errors.Is(cause, jetstream.ErrTooLarge):
		code = events.CodeTooLarge
	case !errors.Is(cause, jetstream.ErrNotFound):
		return cause
	}
	child := &events.State{RunID: rel.ToolCallID, AgentID: rel.SubAgent()}
	_, _, err := s.addFirst(ctx, s.ns.End(rel.ToolCallID), release, *failedEnd(child, events.Errorf(code, "%v", cause)))
	return err
}

// childOf is the start of a child: what it is to do, what it may see of its supervisor, and what is left of the supervisor's
// limits. Of the supervisor's instructions it sees nothing, unless the supervisor's definition says so.
func (s *Service) childOf(rel events.CallReleased, parent *events.State, def *definition, sub events.AgentDef, in events.DelegationInput) events.RunStarted {
	told, err := parent.Told(def.agent)
	if err != nil {
		told = "" // what the supervisor was not told is nothing to be passed on
	}
	said := def.agent.Delegation.Select(parent.Messages, told)
	req := events.RunRequested{
		AgentID: sub.ID, RunID: rel.ToolCallID, RequestContext: parent.RequestContext, Limits: remainder(parent, def, in),
		Messages: append(said, events.TextMessage(events.RoleUser, in.Prompt)),
	}
	req.ThreadID, req.ResourceID = below(parent, rel, in)
	if own, err := events.RenderInstructions(sub.Instructions, parent.RequestContext); err == nil && in.Instructions != "" {
		all := joined(own, in.Instructions) // without its own the child fails, as it does when the model adds nothing
		req.Instructions = &all
	}
	path := append(append([]events.PathEntry{}, parent.Path...), events.PathEntry{AgentID: sub.ID, RunID: rel.ToolCallID})
	return events.RunStarted{
		RunID: rel.ToolCallID, RootRunID: parent.RootRunID, Path: path, AgentID: sub.ID, Requester: parent.Requester,
		Request: req, Inherited: parent.Inherited.Below(parent.Options.ToolApproval(def.agent), parent.Options.Hooks.Over(def.agent.Hooks)),
	}
}

// below are the thread and the resource of a child, both below those of its supervisor. Whose data a child sees is not for a
// model to choose.
func below(parent *events.State, rel events.CallReleased, in events.DelegationInput) (thread, resource string) {
	if parent.ResourceID != "" {
		resource = parent.ResourceID + "-" + strings.TrimPrefix(rel.ToolName, events.AgentPrefix)
	}
	switch {
	case parent.ThreadID == "":
	case in.ThreadID != "":
		thread = parent.ThreadID + "-" + in.ThreadID
	default:
		thread = parent.ThreadID + "-" + rel.ToolCallID
	}
	return thread, resource
}

// remainder are the limits that a child has beside its own: what is left of its supervisor's tokens and time, in equal shares
// for those that the supervisor delegates to at once.
func remainder(parent *events.State, def *definition, in events.DelegationInput) *events.Limits {
	lim, used, share := limitsOf(def.agent.Limits, parent.Options.Limits), parent.Counted(), 0
	for _, c := range parent.Calls {
		if def.tools[c.Planned.ToolName].Delegates() {
			share++
		}
	}
	share = max(share, 1)
	left := &events.Limits{
		Steps:  in.Steps(),
		Tokens: max(1, (lim.Tokens-used.Usage.TotalTokens)/share),
		Time:   max(1, (lim.Time-used.Active)/events.Duration(share)),
	}
	if lim.Cost > 0 {
		left.Cost = max(1e-6, (lim.Cost-used.Usage.Cost())/float64(share))
	}
	return left
}

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// ToolRequest asks for one call of a tool, without an agent. Only Tool is needed.
type ToolRequest struct {
	Tool string          // its id
	Args json.RawMessage // an object; default {}

	RunID          string // as in [Request]: the same request with the same id is the same call
	IdempotencyKey string // as in [Request]
	ThreadID       string // conversation in which grants of a thread count
	ResourceID     string // owner of the thread

	Context             json.RawMessage  // request context, an object
	RequireToolApproval *events.Approval // of the call, whatever the tool says
	Limits              *events.Limits   // only the time counts
	Metadata            json.RawMessage  // kept with the run

	// Wait is how long Execute waits; then it answers as for a call that is held, without asks. Default: until ctx ends.
	Wait time.Duration
}

func (r ToolRequest) data(runID string) (events.RunRequested, error) {
	switch {
	case r.Tool == "":
		return events.RunRequested{}, invalid("a tool is missing")
	case !events.ValidRunID(runID):
		return events.RunRequested{}, invalid("run id %q: use 1 to 64 letters, digits, hyphens and underscores", runID)
	case len(r.Args) > 0 && events.CheckJSON(r.Args) != nil:
		return events.RunRequested{}, invalid("the arguments are no JSON: %v", events.CheckJSON(r.Args))
	}
	return events.RunRequested{
		ToolID: r.Tool, Args: r.Args, RunID: runID, ThreadID: r.ThreadID, ResourceID: r.ResourceID, RequestContext: r.Context,
		RequireToolApproval: r.RequireToolApproval, Limits: r.Limits, Metadata: r.Metadata,
	}, nil
}

// ToolOutput is what a call that was asked for directly has brought.
type ToolOutput struct {
	RunID      string         `json:"runId"`
	ToolCallID string         `json:"toolCallId"`
	Outcome    events.Outcome `json:"outcome"` // ok; responded: a person's answer in place of the tool's; invalid
	Started    bool           `json:"started"` // the tool may have had effects
	// Result is the tool's output as it came. Of an invalid call it is the object that says what is wrong with which field: of
	// the arguments, or, when the tool has started, of its own output.
	Result json.RawMessage `json:"result"`
}

// SuspendedError is the error of a call that has not run, or not to its end: it waits for people, and gives its output later,
// by the id of its run. Its JSON is the answer that callers get in place of an output.
type SuspendedError struct {
	RunID      string
	ToolCallID string
	Tool       string
	Asks       []events.AskPayload // what waits; empty when the call was only not waited for any longer
}

func (s *SuspendedError) Error() string {
	if len(s.Asks) == 0 {
		return s.Tool + " has not finished yet"
	}
	return s.Tool + " waits for a decision"
}

// MarshalJSON has error: true, so that nobody takes it for an output.
func (s *SuspendedError) MarshalJSON() ([]byte, error) {
	asks := s.Asks
	if asks == nil {
		asks = []events.AskPayload{}
	}
	return events.Marshal(struct {
		Error      bool                `json:"error"`
		Code       events.Code         `json:"code"`
		Message    string              `json:"message"`
		RunID      string              `json:"runId"`
		ToolCallID string              `json:"toolCallId"`
		Status     Status              `json:"status"`
		Asks       []events.AskPayload `json:"asks"`
	}{true, events.CodeSuspended, s.Error(), s.RunID, s.ToolCallID, StatusSuspended, asks})
}

// ToolFailedError is the error of a call that ended without an output: its tool failed, or somebody or something kept it from
// running. It is an *events.Error of code tool_failed too.
type ToolFailedError struct {
	RunID      string
	ToolCallID string
	Tool       string
	Outcome    events.Outcome
	Started    bool              // the tool may have had effects
	Cause      *events.ToolError // nil: the outcome says it all
	Reason     string            // of who declined, blocked or cancelled
}

func (f *ToolFailedError) Error() string {
	switch {
	case f.Cause != nil && f.Cause.Message != "":
		return f.Cause.Message
	case f.Reason != "":
		return fmt.Sprintf("the call was %s: %s", f.Outcome, f.Reason)
	}
	return fmt.Sprintf("the call was %s", f.Outcome)
}

// Unwrap gives the error its code.
func (f *ToolFailedError) Unwrap() error {
	return &events.Error{Code: events.CodeToolFailed, Message: f.Error(), RunID: f.RunID}
}

// MarshalJSON is an error as callers get it, with what became of the call.
func (f *ToolFailedError) MarshalJSON() ([]byte, error) {
	return events.Marshal(struct {
		Code       events.Code    `json:"code"`
		Error      string         `json:"error"`
		Outcome    events.Outcome `json:"outcome"`
		Started    bool           `json:"started"`
		Reason     string         `json:"reason,omitempty"`
		RunID      string         `json:"runId"`
		ToolCallID string         `json:"toolCallId"`
	}{events.CodeToolFailed, f.Error(), f.Outcome, f.Started, f.Reason, f.RunID, f.ToolCallID})
}

// Execute calls one tool, without an agent, and waits for its output. The call goes the way of any other: it is validated,
// judged by the rules, and held when they say so. Then, or when the tool suspends itself, the error is a [*SuspendedError];
// the same request with its run id, or [Client.ToolOutput], waits again and gives the output once there is one. A call that
// ended without an output gives a [*ToolFailedError].
//
// A run id counts for as long as the log remembers it, a day by default.
func (c *Client) Execute(ctx context.Context, req ToolRequest) (*ToolOutput, error) {
	run, err := c.StartTool(ctx, req)
	if err != nil {
		return nil, err
	}
	return run.toolOutput(ctx, req.Tool, req.Wait)
}

// StartTool asks for one call of a tool and returns when the request is stored, as [Client.Start] does.
func (c *Client) StartTool(ctx context.Context, req ToolRequest) (*Run, error) {
	id, chosen, err := c.runID(req.RunID, req.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	data, err := req.data(id)
	if err != nil {
		return nil, err
	}
	return c.startRun(ctx, events.TokenTool, data, chosen)
}

// ToolOutput waits for the output of a call that was asked for by [Client.Execute], by whomever, and answers as that. It
// starts nothing. Of the request only RunID counts, Wait, and Tool, when it is given: the run must be of that tool.
func (c *Client) ToolOutput(ctx context.Context, req ToolRequest) (*ToolOutput, error) {
	if err := c.needsLog("the output of a run"); err != nil {
		return nil, err
	}
	st, head, err := c.conn.RunState(ctx, req.RunID)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil, noRun(req.RunID)
	}
	if err != nil {
		return nil, busError(err)
	}
	tool := st.Options.ToolID
	switch {
	case !st.OneTool():
		return nil, invalid("run %s is of the agent %s, and not of one tool", req.RunID, st.AgentID)
	case req.Tool != "" && req.Tool != tool:
		return nil, invalid("run %s is of the tool %s, and not of %s", req.RunID, tool, req.Tool)
	case st.Ended == "":
		waits, err := c.heldCall(ctx, req.RunID, tool)
		if err != nil {
			return nil, err
		}
		if waits != nil {
			return nil, waits
		}
		return c.Run(req.RunID).toolOutput(ctx, tool, req.Wait)
	}
	end, err := events.Data[events.RunEnded](head)
	if err != nil {
		return nil, err
	}
	return c.endedCall(ctx, end, tool)
}

// heldCall is the call of a run when it waits for people now, as the log has it: what was shown of a long wait may not be
// stored any more. Nil when it does not wait.
func (c *Client) heldCall(ctx context.Context, run, tool string) (*SuspendedError, error) {
	call := events.CallID{Run: run, Step: 1, Index: 1}
	last, err := c.conn.Last(ctx, c.ns.Call(call, events.KindAsk).Chain())
	switch {
	case errors.Is(err, jetstream.ErrNotFound), err == nil && last.Place.Kind != events.KindAsk:
		return nil, nil //nolint:nilnil // it does not wait
	case err != nil:
		return nil, busError(err)
	}
	ask, err := events.Data[events.CallHeld](last)
	if err != nil {
		return nil, err
	}
	waits := &SuspendedError{RunID: run, ToolCallID: call.String(), Tool: tool}
	withPayload(events.AskChunk(ask, last.ID), func(p events.AskPayload) { waits.Asks = append(waits.Asks, p) })
	return waits, nil
}

// toolOutput waits for the run of one tool.
func (r *Run) toolOutput(ctx context.Context, tool string, wait time.Duration) (*ToolOutput, error) {
	waiting := ctx
	if wait > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	call := events.CallID{Run: r.ID, Step: 1, Index: 1}
	out, err := r.Wait(waiting)
	switch {
	case err != nil && ctx.Err() == nil && waiting.Err() != nil && !refused(err):
		return nil, &SuspendedError{RunID: r.ID, ToolCallID: call.String(), Tool: tool}
	case err != nil:
		return nil, err
	case out.FinishReason == FinishSuspended:
		return nil, &SuspendedError{RunID: r.ID, ToolCallID: call.String(), Tool: tool, Asks: out.Asks}
	}
	if r.client.reads() { // what is shown may leave out what is secret
		d, err := r.client.resultOf(ctx, call)
		if err != nil {
			return nil, err
		}
		if d != nil {
			return outputOf(*d, tool)
		}
	}
	return shownOutput(out, tool)
}

// refused reports whether an error is an answer, and not only that there was none in time.
func refused(err error) bool {
	e, ok := errors.AsType[*events.Error](err)
	return ok && e.Code != events.CodeUnavailable
}

// endedCall is the output of an ended run of one tool, by the log.
func (c *Client) endedCall(ctx context.Context, end events.RunEnded, tool string) (*ToolOutput, error) {
	if end.Outcome == events.RunFailed && end.Error != nil {
		return nil, end.Error
	}
	d, err := c.resultOf(ctx, events.CallID{Run: end.RunID, Step: 1, Index: 1})
	if err != nil {
		return nil, err
	}
	if d == nil { // it ended before its call was made
		return nil, notMade(end.RunID, tool)
	}
	return outputOf(*d, tool)
}

// notMade is a call that was cancelled before it was one.
func notMade(run, tool string) *ToolFailedError {
	return &ToolFailedError{RunID: run, ToolCallID: events.CallID{Run: run, Step: 1, Index: 1}.String(), Tool: tool, Outcome: events.OutcomeCancelled}
}

// resultOf is the result of a call as the log has it, nil when there is none (any more) or the user may not read it.
func (c *Client) resultOf(ctx context.Context, call events.CallID) (*events.CallFinished, error) {
	fact, err := c.conn.Fact(ctx, c.ns.Call(call, events.KindResult))
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return nil, nil //nolint:nilnil // there is none
	case errors.Is(err, jetstream.ErrPermission):
		return nil, c.tolerate(err)
	case err != nil:
		return nil, busError(err)
	}
	d, err := events.Data[events.CallFinished](fact)
	if err != nil {
		return nil, err
	}
	if err := c.conn.WholeResult(ctx, &d); err != nil {
		return nil, busError(err)
	}
	return &d, nil
}

// outputOf is what a result says to whoever has asked for the call.
func outputOf(d events.CallFinished, tool string) (*ToolOutput, error) {
	switch d.Outcome {
	case events.OutcomeOK, events.OutcomeResponded, events.OutcomeInvalid:
	case events.OutcomeBlocked:
		if len(d.Result) == 0 {
			return nil, failedCall(d, tool)
		}
	default:
		return nil, failedCall(d, tool)
	}
	result := d.Result
	if len(result) == 0 {
		result = json.RawMessage("null")
	}
	return &ToolOutput{RunID: d.RunID, ToolCallID: d.ToolCallID, Outcome: d.Outcome, Started: d.Started, Result: result}, nil
}

func failedCall(d events.CallFinished, tool string) *ToolFailedError {
	return &ToolFailedError{
		RunID: d.RunID, ToolCallID: d.ToolCallID, Tool: tool, Outcome: d.Outcome, Started: d.Started, Cause: d.Error, Reason: d.Reason,
	}
}

// shownOutput is the output as the chunks of the run show it.
func shownOutput(out *Output, tool string) (*ToolOutput, error) {
	if len(out.ToolResults) == 0 {
		if out.FinishReason == FinishCancelled {
			return nil, notMade(out.RunID, tool)
		}
		return nil, &events.Error{
			Code: events.CodeUnknownOutcome, RunID: out.RunID,
			Message: fmt.Sprintf("run %s is over, and what its call brought is not stored any more", out.RunID),
		}
	}
	p := out.ToolResults[0]
	d := events.CallFinished{
		RunID: out.RunID, ToolCallID: p.ToolCallID, Outcome: p.Outcome, Started: p.Started, Result: p.Result, Error: p.Error,
	}
	if p.Approval != nil {
		d.Reason = p.Approval.Reason
	}
	return outputOf(d, tool)
}

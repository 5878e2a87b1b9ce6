package planner

import (
	"cmp"
	"time"

	"github.com/weirkeeper/weir/events"
)

// The agent loop as a pure function of a run's state: no I/O, no clock. The shell around it reads the state, calls the
// model and appends what the loop says.

// Defaults of limits.
const (
	defaultSteps    = 5
	defaultTokens   = 1_000_000
	defaultFailures = 10
	defaultRepeats  = 5
	defaultTime     = time.Hour
)

// Names of limits, as ends and steps carry them.
const (
	limitSteps    = "steps"
	limitTokens   = "tokens"
	limitFailures = "failures"
	limitRepeats  = "repeats"
	limitTime     = "time"
	limitCost     = "cost"
)

// Reasons of an end.
const (
	reasonStop      = "stop"
	reasonToolCalls = "tool-calls"
	reasonOther     = "other"
	reasonError     = "error"
	reasonResumed   = "resumed"
)

// action is what a run does next.
type action struct {
	wait bool             // a call has no result yet: that result goes on
	turn bool             // ask the model
	call bool             // take the planned step of a run of one tool
	end  *events.RunEnded // append the end
}

// next decides what a run does now.
func next(st *events.State, lim events.Limits) action {
	switch {
	case st.Ended != "" || !st.Settled():
		return action{wait: true}
	case st.CancelDue() != nil && len(st.OpenTasks()) > 0:
		return action{wait: true} // the gate closes them, then the run
	case st.CancelDue() != nil:
		return action{end: cancelledEnd(st, *st.CancelDue())}
	case st.Final != "":
		return action{end: limitEnd(st, st.Final)}
	}
	if st.OneTool() {
		return planned(st, lim)
	}
	after := st.Counted()
	switch {
	case st.Waiting && (st.Joining() == 0 || st.Turns() >= lim.Steps || after.Usage.TotalTokens >= lim.Tokens || tooDear(after.Usage, lim)):
		return action{end: spokenEnd(st)}
	case after.Failures >= lim.Failures:
		return action{end: limitEnd(st, limitFailures)}
	case after.Repeats >= lim.Repeats:
		return action{end: limitEnd(st, limitRepeats)}
	case after.Active >= lim.Time:
		return action{end: limitEnd(st, limitTime)}
	case after.Usage.TotalTokens >= lim.Tokens: // by what sub-agents have used
		return action{end: limitEnd(st, limitTokens)}
	case tooDear(after.Usage, lim):
		return action{end: limitEnd(st, limitCost)}
	}
	return action{turn: true}
}

// planned decides for a run of one tool: its call, then its end. Whatever became of the call, the run is complete: its
// outcome stands in the result. Of the limits only that of time can be reached.
func planned(st *events.State, lim events.Limits) action {
	switch {
	case st.Step == 0:
		return action{call: true}
	case st.Counters.After(st.Calls).Active >= lim.Time:
		return action{end: limitEnd(st, limitTime)}
	}
	e := endOf(st, events.RunCompleted)
	e.FinishReason = reasonStop
	return action{end: e}
}

// plannedCalls are the calls of the one step of a run of one tool: the text of the arguments is that of the request.
func plannedCalls(st *events.State) []events.CallPlanned {
	return []events.CallPlanned{{ToolName: st.Options.ToolID, Args: string(st.Options.Args)}}
}

// limitsOf are the limits of a run: each is the agent's, which a request may only tighten, else the request's, else the
// default.
func limitsOf(agent *events.Limits, request *events.Limits) events.Limits {
	var own, asked events.Limits
	if agent != nil {
		own = *agent
	}
	if request != nil {
		asked = *request
	}
	return events.Limits{
		Steps:    limit(own.Steps, asked.Steps, defaultSteps),
		Tokens:   limit(own.Tokens, asked.Tokens, defaultTokens),
		Failures: limit(own.Failures, asked.Failures, defaultFailures),
		Repeats:  limit(own.Repeats, asked.Repeats, defaultRepeats),
		Time:     limit(own.Time, asked.Time, events.Duration(defaultTime)),
		Cost:     limit(own.Cost, asked.Cost, 0),
	}
}

// tooDear reports whether a run has cost what it may.
func tooDear(used events.Usage, lim events.Limits) bool {
	return lim.Cost > 0 && used.Cost() >= lim.Cost
}

func limit[T int | float64 | events.Duration](own, asked, otherwise T) T {
	switch {
	case own > 0 && asked > 0:
		return min(own, asked)
	case own > 0:
		return own
	case asked > 0:
		return asked
	}
	return otherwise
}

// turn is what a model said, as the shell has read it from the stream.
type turn struct {
	delivery  int // of the fact that drives it
	attempt   int
	messageID string
	message   events.Message
	calls     []events.CallPlanned
	usage     events.Usage
	reason    string
	model     string
	active    time.Duration
	empty     bool // neither text nor a call, after a second try
	told      int  // chunks of the attempt so far

	structured events.ObjectOutput
	unfit      *events.Error // the value that was asked for is not there, and the run fails
}

// commit is what a finished turn appends: the next step when it asks for calls, else the end. Calls decide, not the
// finish reason that the model gave.
func commit(st *events.State, t turn, lim events.Limits) (step *events.StepFinished, end *events.RunEnded) {
	if len(t.calls) == 0 {
		return nil, finalEnd(st, t)
	}
	n := st.Step + 1
	step = &events.StepFinished{
		RunID: st.RunID, Step: n, Attempt: t.attempt, MessageID: t.messageID, Message: t.message, Background: st.OpenTasks(),
		Calls: t.calls, Usage: t.usage, FinishReason: reasonToolCalls, Model: t.model, Active: events.Duration(t.active),
	}
	for i := range step.Calls {
		step.Calls[i].ToolCallID = events.CallID{Run: st.RunID, Step: n, Index: i + 1}.String()
	}
	total := st.Counted().Usage.Add(t.usage)
	switch {
	case st.OneTool(): // no model: its plan ends it
	case st.Turns()+1 >= lim.Steps: // the question whether the message is an answer is none of the turns
		step.Final = limitSteps
	case total.TotalTokens >= lim.Tokens:
		step.Final = limitTokens
	case tooDear(total, lim):
		step.Final = limitCost
	}
	return step, nil
}

func finalEnd(st *events.State, t turn) *events.RunEnded {
	e := endOf(st, events.RunCompleted)
	e.FinishReason, e.Attempt, e.MessageID, e.Message = t.reason, t.attempt, t.messageID, &t.message
	e.Step = st.Step + 1
	e.Usage = st.Counted().Usage.Add(t.usage)
	if t.reason == "" || t.reason == reasonToolCalls {
		e.FinishReason = reasonStop
	}
	e.ObjectOutput = t.structured
	switch {
	case t.empty:
		return failedTurn(st, t, events.Errorf(events.CodeEmptyResponse, "the model answered with neither text nor a call"))
	case t.unfit != nil:
		return failedTurn(st, t, t.unfit)
	}
	return e
}

// failedTurn is the end of a run whose turn failed: readers are told that its step is over, and nothing of it counts but what it
// has used.
func failedTurn(st *events.State, t turn, why *events.Error) *events.RunEnded {
	e := failedEnd(st, why)
	e.Usage = e.Usage.Add(t.usage)
	if t.messageID != "" {
		e.Step, e.Attempt, e.MessageID = st.Step+1, t.attempt, t.messageID
	}
	return e
}

func endOf(st *events.State, o events.RunOutcome) *events.RunEnded {
	return &events.RunEnded{
		RunID: st.RunID, AgentID: st.AgentID, ThreadID: st.ThreadID, ResourceID: st.ResourceID,
		Outcome: o, Step: st.Step, Usage: st.Counted().Usage,
	}
}

// resumedEnd is the end of a run whose message was what suspended tools of other runs waited for.
func resumedEnd(st *events.State, runs []string) *events.RunEnded {
	e := endOf(st, events.RunCompleted)
	e.FinishReason, e.Resumes = reasonResumed, runs
	return e
}

// limitEnd is the end of a run that has reached a limit.
func limitEnd(st *events.State, limit string) *events.RunEnded {
	e := endOf(st, events.RunCompleted)
	e.FinishReason, e.Limit = reasonOther, limit
	if limit == limitSteps || limit == limitStop {
		e.FinishReason = reasonToolCalls
	}
	return e
}

// failedEnd is the end of a run that cannot go on.
func failedEnd(st *events.State, why *events.Error) *events.RunEnded {
	e := endOf(st, events.RunFailed)
	why.RunID = st.RunID
	e.FinishReason, e.Error = reasonError, why
	return e
}

// cancelledEnd is the end that a cancel is due to bring: the planner helps to append it and takes no turn.
func cancelledEnd(st *events.State, cause events.CancelCause) *events.RunEnded {
	if cause.End == events.RunFailed {
		e := failedEnd(st, events.Errorf(cause.Code, "%s", cmp.Or(cause.Reason, "the run failed: "+string(cause.Code))))
		e.Cancel = &cause
		return e
	}
	e := endOf(st, events.RunCancelled)
	e.FinishReason, e.Cancel = "cancelled", &cause
	return e
}

package agent

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/weirkeeper/weir/events"
)

// Attempt is what one try to execute a call came to, as an executor stores it.
type Attempt struct {
	Outcome    events.Outcome    // ok, error or invalid; empty when the tool suspended itself
	Started    bool              // the handler ran, so there may be effects
	Result     json.RawMessage   // ok, invalid
	Error      *events.ToolError // error
	Suspension *Suspension       // the tool suspended itself
	InDoubt    bool              // error, and nobody knows whether the effects happened: people must say what becomes of it
	Stack      []byte            // of a panic, for logs only
}

// Execute runs one call of a tool and never panics. Tools that are neither made by [NewTool] nor wrapped by [Checked]
// are wrapped for this call; wrap those once. The deadline and the end of ctx are the handler's: an error that it
// returns because of them is a time-out or a cancelled call. A handler that succeeds all the same has succeeded.
func Execute(ctx context.Context, t Tool, call *Call, args json.RawMessage) Attempt {
	wrapped, err := Checked(t)
	if err != nil {
		return Attempt{Outcome: events.OutcomeError, Error: toolError(ctx, err)}
	}
	result, err := wrapped.Run(ctx, call, args)
	if err == nil {
		return Attempt{Outcome: events.OutcomeOK, Started: true, Result: result}
	}
	if s, ok := errors.AsType[*Suspension](err); ok {
		return Attempt{Started: true, Suspension: s}
	}
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		return Attempt{Outcome: events.OutcomeInvalid, Started: invalid.Started, Result: invalid.Result}
	}
	a := Attempt{Outcome: events.OutcomeError, Started: true, Error: toolError(ctx, err)}
	if p, ok := errors.AsType[*PanicError](err); ok {
		a.Stack = p.Stack
	}
	if _, ok := errors.AsType[*InDoubtError](err); ok {
		a.InDoubt = !wrapped.Manifest().Effect.Repeatable()
	}
	return a
}

// toolError is an error as the model and people are told about it.
func toolError(ctx context.Context, err error) *events.ToolError {
	if _, ok := errors.AsType[*PanicError](err); ok {
		return &events.ToolError{Name: events.ErrorPanic, Message: err.Error()}
	}
	if named, ok := errors.AsType[*Error](err); ok {
		e := &events.ToolError{Name: named.Name, Message: err.Error()}
		if e.Name == "" {
			e.Name = nameError
		}
		if events.CheckJSON(named.Details) == nil {
			e.Details = named.Details
		}
		return e
	}
	if coded, ok := errors.AsType[*events.Error](err); ok {
		return &events.ToolError{Name: string(coded.Code), Message: err.Error()}
	}
	if cause := context.Cause(ctx); cause != nil && endedBy(err, cause) {
		if errors.Is(cause, context.DeadlineExceeded) {
			return &events.ToolError{Name: events.ErrorTimeout, Message: "the tool did not finish in time"}
		}
		return &events.ToolError{Name: events.ErrorCancelled, Message: "the call was cancelled"}
	}
	return &events.ToolError{Name: nameError, Message: err.Error()}
}

func endedBy(err, cause error) bool {
	return errors.Is(err, cause) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

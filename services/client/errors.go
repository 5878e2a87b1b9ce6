package client

import (
	"context"
	"errors"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func invalid(format string, args ...any) *events.Error {
	return events.Errorf(events.CodeInvalidRequest, format, args...)
}

// codes is the one table from what the bus says to what callers are told.
var codes = []struct {
	is   error
	code events.Code
}{
	{jetstream.ErrNotFound, events.CodeNotFound},
	{jetstream.ErrPermission, events.CodeForbidden},
	{jetstream.ErrTooLarge, events.CodeTooLarge},
	{jetstream.ErrFull, events.CodeRateLimited},
	{jetstream.ErrTampered, events.CodeTampering},
	{jetstream.ErrTimeout, events.CodeUnavailable},
	{jetstream.ErrUnavailable, events.CodeUnavailable},
}

// busError gives an error of the bus its code. The end of a context stays what it is.
func busError(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, ErrGap) {
		return err
	}
	if _, ok := errors.AsType[*events.Error](err); ok {
		return err
	}
	for _, row := range codes {
		if errors.Is(err, row.is) {
			return &wrapped{Err: events.Error{Code: row.code, Message: err.Error()}, cause: err}
		}
	}
	return err
}

// sendError is busError for a request: after a time limit nobody can say whether it was stored.
func sendError(err error, run string) error {
	if errors.Is(err, jetstream.ErrTimeout) {
		e := events.Error{
			Code: events.CodeUnknownOutcome, RunID: run,
			Message: "it is not known whether the request was stored: " + err.Error(),
		}
		return &wrapped{Err: e, cause: err}
	}
	return busError(err)
}

// wrapped is an error with a code that keeps its cause.
type wrapped struct {
	Err   events.Error
	cause error
}

func (w *wrapped) Error() string { return w.Err.Error() }

// Unwrap gives both: the error with its code, and the cause.
func (w *wrapped) Unwrap() []error { return []error{&w.Err, w.cause} }

func noRun(run string) *events.Error {
	e := events.NotFound("run", "run %s is not known", run)
	e.RunID = run
	return e
}

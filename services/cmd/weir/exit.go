package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/config"
)

// Exit codes, as scripts know them.
const (
	exitDone      = 0
	exitFailed    = 1
	exitUsage     = 2
	exitSuspended = 3
	exitRefused   = 4
	exitNotFound  = 5
)

// exits is the one table from codes of errors to exit codes. What is not in it failed.
var exits = map[events.Code]int{
	events.CodeInvalidRequest:    exitUsage,
	events.CodeNotFound:          exitNotFound,
	events.CodeUnauthenticated:   exitRefused,
	events.CodeForbidden:         exitRefused,
	events.CodeAlreadyDecided:    exitRefused,
	events.CodeAmbiguous:         exitRefused,
	events.CodeWrongKind:         exitRefused,
	events.CodeChanged:           exitRefused,
	events.CodeExpired:           exitRefused,
	events.CodeRunEnded:          exitRefused,
	events.CodeRunExists:         exitRefused,
	events.CodeToolConflict:      exitRefused,
	events.CodeTooLarge:          exitRefused,
	events.CodeInvalidData:       exitRefused,
	events.CodeInvalidDefinition: exitRefused,
	events.CodeToolNameCollision: exitRefused,
	events.CodeRateLimited:       exitRefused,
}

// exit ends the program with a code. Without an error nothing is printed: everything has been said.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// usagef is an error of who typed the command.
func usagef(format string, args ...any) error { return &exit{exitUsage, fmt.Errorf(format, args...)} }

// exitCode is the exit code of what a command returned.
func (a *app) exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if e, ok := errors.AsType[*exit](err); ok {
		return e.code
	}
	if e, ok := errors.AsType[*events.Error](err); ok {
		if code, ok := exits[e.Code]; ok {
			return code
		}
		return exitFailed
	}
	if !a.started { // cobra's own errors: unknown commands and flags, wrong arguments
		return exitUsage
	}
	return exitFailed
}

// finish prints the error of a command, once, and gives its exit code.
func (a *app) finish(err error) int {
	code := a.exitCode(err)
	if e, ok := errors.AsType[*exit](err); err == nil || ok && e.err == nil {
		return code
	}
	if errors.Is(err, context.Canceled) {
		err = errors.New("stopped")
	}
	if a.json {
		a.printErrorJSON(err, code)
		return code
	}
	_, _ = fmt.Fprintln(a.err, "weir:", plain(err.Error())) // it may quote what others wrote
	_, told := errors.AsType[*config.Error](err)            // with its issues
	if e, ok := errors.AsType[*events.Error](err); ok && !told {
		for _, i := range untold(e) {
			_, _ = fmt.Fprintf(a.err, "  %s: %s\n", oneLine(i.Field), oneLine(i.Message))
		}
		for _, id := range e.Asks {
			_, _ = fmt.Fprintln(a.err, " ", oneLine(id))
		}
	}
	if code == exitUsage && !a.started {
		_, _ = fmt.Fprintln(a.err, `See "weir --help".`)
	}
	return code
}

// printErrorJSON prints an error in the only shape that errors have.
func (a *app) printErrorJSON(err error, code int) {
	e := a.shownError(err)
	if e.Code == events.CodeInternal && code == exitUsage {
		e.Code = events.CodeInvalidRequest
	}
	_ = writeJSON(a.err, e) // nobody is left to tell
}

// shownError is an error in that shape.
func (a *app) shownError(err error) *events.Error {
	if e, ok := errors.AsType[*events.Error](err); ok {
		return e
	}
	return &events.Error{Code: events.CodeInternal, Message: err.Error()}
}

// untold are the issues of an error that its message does not list itself.
func untold(e *events.Error) []events.Issue {
	if strings.Contains(e.Message, "\n") {
		return nil
	}
	return e.Issues
}

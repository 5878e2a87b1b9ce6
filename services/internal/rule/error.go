package rule

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// Error says what is wrong with an expression, or what went wrong in its evaluation. Its text goes into asks,
// records and logs: it holds words of the expression, never values of the input.
type Error struct {
	// Line and Column say where, counted from 1; both are 0 when the fault has no place in the source.
	Line, Column int
	// Message says what, in one line.
	Message string

	cause error
}

// Error gives place and message.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message)
}

// Unwrap gives the context's error, if that ended the evaluation.
func (e *Error) Unwrap() error { return e.cause }

// Messages that stand in several places.
const (
	msgFailed   = "the evaluation failed"
	msgCost     = "the cost limit is exceeded"
	msgSize     = "a value exceeds the size limit"
	msgPattern  = "the pattern of matches must be written as text"
	msgNoKey    = "no such key"
	maxMessage  = 200
	maxKeyShown = 64
)

// compileError gives the first issue; more are usually its consequences.
func compileError(issues *cel.Issues) error {
	first := issues.Errors()[0]
	for _, e := range issues.Errors() {
		if e.Location.Line() > 0 {
			first = e
			break
		}
	}
	e := &Error{Message: clip(first.Message)}
	if line := first.Location.Line(); line > 0 {
		e.Line, e.Column = line, first.Location.Column()+1
	}
	return e
}

func interrupted(cause error) error {
	return &Error{Message: "the evaluation was interrupted: " + cause.Error(), cause: cause}
}

// evalError words an error of CEL. Its own texts may quote values, so only known ones are passed on.
func (p *Program) evalError(ctx context.Context, err error) error {
	if errors.Is(err, interpreter.InterruptError{}) {
		if cause := ctx.Err(); cause != nil {
			return interrupted(cause)
		}
		return interrupted(context.DeadlineExceeded) // our own patience
	}
	if cancelled, ok := errors.AsType[interpreter.EvalCancelledError](err); ok {
		return &Error{Message: cancelledMessage(cancelled)}
	}
	e := &Error{Message: p.safeMessage(err.Error())}
	if celErr, ok := errors.AsType[*types.Err](err); ok && celErr.NodeID() != 0 {
		if place := p.info.GetStartLocation(celErr.NodeID()); place.Line() > 0 {
			e.Line, e.Column = place.Line(), place.Column()+1
		}
	}
	return e
}

func cancelledMessage(err interpreter.EvalCancelledError) string {
	switch err.Cause {
	case interpreter.CostLimitExceeded:
		return msgCost
	case interpreter.MemoryLimitExceeded:
		return msgSize
	default:
		return msgFailed
	}
}

// safeMessages are the texts of CEL, ours included, that quote nothing.
var safeMessages = []string{
	msgNoKey, "no such overload", "division by zero", "modulus by zero", "unsigned integer overflow",
	"integer overflow", "duration overflow", "timestamp overflow", "range error", "type conversion error",
	errTooLarge.Error(),
}

// safeMessage cuts a text of CEL down to what may be shown. A missing key is named when it is a word of the
// expression, as it is unless the expression computes it.
func (p *Program) safeMessage(text string) string {
	if key, ok := strings.CutPrefix(text, msgNoKey+": "); ok && len(key) <= maxKeyShown && strings.Contains(p.expr, key) {
		return text
	}
	for _, known := range safeMessages {
		if strings.HasPrefix(text, known) {
			return known
		}
	}
	if strings.HasPrefix(text, "index ") {
		return "index out of range"
	}
	return msgFailed
}

// typeName names the type of a result that should have been a bool.
func typeName(v ref.Val) string {
	if v == nil {
		return "nothing"
	}
	return v.Type().TypeName()
}

// clip makes one short line of a text.
func clip(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

package events

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
)

// Code is a machine-readable reason of an error: few, stable, the same on the bus, in HTTP and on the command line.
type Code string

// Codes of refusals and failures.
const (
	CodeInvalidRequest    Code = "invalid_request"
	CodeUnauthenticated   Code = "unauthenticated"
	CodeForbidden         Code = "forbidden"
	CodeNotFound          Code = "not_found"
	CodeAlreadyDecided    Code = "already_decided"
	CodeAmbiguous         Code = "ambiguous"
	CodeWrongKind         Code = "wrong_kind"
	CodeChanged           Code = "changed"
	CodeExpired           Code = "expired"
	CodeRunEnded          Code = "run_ended"
	CodeRunExists         Code = "run_exists"
	CodeToolConflict      Code = "tool_conflict"
	CodeUnknownOutcome    Code = "unknown_outcome"
	CodeTooLarge          Code = "too_large"
	CodeInvalidData       Code = "invalid_data"
	CodeInvalidDefinition Code = "invalid_definition"
	CodeToolNameCollision Code = "tool_name_collision"
	CodeRateLimited       Code = "rate_limited"
	CodeInternal          Code = "internal"
	CodeUnavailable       Code = "unavailable"

	// Codes of a call that was asked for directly and has brought no output.

	CodeSuspended  Code = "suspended"
	CodeToolFailed Code = "tool_failed"

	// CodeRunFailed is of a run that was waited for and failed, and that must not be asked for again without a thought.
	CodeRunFailed Code = "run_failed"

	// Codes of runs that ended as failed.

	CodeModelFailed       Code = "model_failed"
	CodeEmptyResponse     Code = "empty_response"
	CodeTranscriptBroken  Code = "transcript_broken"
	CodeWebSearch         Code = "web_search_unsupported_provider"
	CodeStructuredOutput  Code = "structured_output_invalid"
	CodeAskExpired        Code = "ask_expired"
	CodeDeadlineExceeded  Code = "deadline_exceeded"
	CodeDefinitionMissing Code = "definition_missing"
	CodeDeliveryExhausted Code = "delivery_exhausted"
	CodeTampering         Code = "tampering"
)

// statuses is the one table from codes to the numbers that protocols want: those of HTTP, also in the header of a refused
// request to a micro service.
var statuses = map[Code]int{
	CodeInvalidRequest: 400, CodeUnauthenticated: 401, CodeForbidden: 403, CodeNotFound: 404, CodeAlreadyDecided: 409,
	CodeAmbiguous: 409, CodeWrongKind: 409, CodeChanged: 409, CodeExpired: 409, CodeRunEnded: 409, CodeRunExists: 409,
	CodeToolConflict: 409, CodeUnknownOutcome: 409, CodeTooLarge: 413, CodeInvalidData: 422, CodeSuspended: 202, CodeToolFailed: 422, CodeRunFailed: 422, CodeInvalidDefinition: 422,
	CodeToolNameCollision: 422, CodeRateLimited: 429, CodeInternal: 500, CodeModelFailed: 500, CodeUnavailable: 503,
}

// Status is the code as a number of HTTP. A code without a row is a defect, so it is 500.
func (c Code) Status() int { return cmp.Or(statuses[c], 500) }

// Known reports whether the code is one that protocols have a number for: others end runs, and answer no request.
func (c Code) Known() bool { return statuses[c] != 0 }

// Names of errors of a call, in tool-error chunks.
const (
	ErrorToolNotFound        = "ToolNotFoundError"
	ErrorPanic               = "panic"
	ErrorTimeout             = "timeout"
	ErrorUnavailable         = "unavailable"
	ErrorDeliveryExhausted   = "delivery_exhausted"
	ErrorCancelled           = "cancelled"
	ErrorFingerprintMismatch = "fingerprint_mismatch"
	ErrorHookFailed          = "hook_failed"
)

// OwnErrorName reports whether Weir gives an error of this name itself, so that it says nothing of a call's values.
func OwnErrorName(name string) bool {
	switch name {
	case ErrorToolNotFound, ErrorPanic, ErrorTimeout, ErrorUnavailable, ErrorDeliveryExhausted, ErrorCancelled, ErrorFingerprintMismatch,
		ErrorHookFailed:
		return true
	}
	return false
}

// Error is the only shape of an error on the wire.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"error"`

	Answer  *AnswerBrief `json:"answer,omitempty"`  // already_decided: what counted
	Same    bool         `json:"same,omitempty"`    // already_decided: the sender repeats its own
	Ask     *CallHeld    `json:"ask,omitempty"`     // changed: the ask that is pending now
	Asks    []string     `json:"asks,omitempty"`    // ambiguous: the calls that are pending
	Allowed []Decision   `json:"allowed,omitempty"` // wrong_kind: what this ask takes
	Issues  []Issue      `json:"issues,omitempty"`  // what is wrong with which field
	Rule    string       `json:"rule,omitempty"`    // forbidden: the rule that says so
	What    string       `json:"what,omitempty"`    // not_found: agent, tool, run, call or grant
	RunID   string       `json:"runId,omitempty"`
}

// AnswerBrief tells a sender which decision counted.
type AnswerBrief struct {
	Decision  Decision `json:"decision"`
	Principal string   `json:"principal"`
	At        string   `json:"at"`
	Reason    string   `json:"reason,omitempty"`
}

// Issue is one thing that is wrong with one field.
type Issue struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Error is the message with its code.
func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Message, e.Code) }

// Errorf makes an error with a code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// NotFound makes an error that says what is not known, or not there any more: an agent, a tool, a run, a call or a grant.
func NotFound(what, format string, args ...any) *Error {
	e := Errorf(CodeNotFound, format, args...)
	e.What = what
	return e
}

// CodeOf is the code of err, or internal when it has none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// ToolError is why a call failed: the error's name, and the text that the model sees.
type ToolError struct {
	Name    string          `json:"name"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details,omitempty"`
}

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// Errors of [Call] methods.
var (
	// ErrNotResumed says that a call is not being resumed, so there are no resume data.
	ErrNotResumed = errors.New("the call was not resumed")
	// ErrConflict says that another writer changed a value of a [Store] first: read it again.
	ErrConflict = errors.New("the value was changed by another writer")
	// ErrNoStore says that this call has no store: its run belongs to no thread, or to one that no resource owns.
	ErrNoStore = errors.New("the call has no store: its run has no thread and resource")
)

// nameError is the name of errors that have none of their own.
const nameError = "Error"

// Error is an error with a name of its own, by which programs tell it from others, and details for them. The model
// sees the message.
type Error struct {
	Name    string
	Message string
	Details json.RawMessage
}

// Error is the message.
func (e *Error) Error() string { return e.Message }

// Errorf makes an error with a name.
func Errorf(name, format string, args ...any) *Error {
	return &Error{Name: name, Message: fmt.Sprintf(format, args...)}
}

// PanicError is a handler's panic. The stack is for logs: the model and people see the value only.
type PanicError struct {
	Value any
	Stack []byte
}

// Error names the value.
func (e *PanicError) Error() string { return fmt.Sprintf("the tool panicked: %v", e.Value) }

// InvalidError says that a schema, or a check in a handler, refused something. The model gets Result and can try again.
type InvalidError struct {
	// Result is the validation error object that becomes the call's result.
	Result json.RawMessage
	// Started says that the handler ran before.
	Started bool

	message string
	issues  []events.Issue
}

// Error is what the model is told.
func (e *InvalidError) Error() string { return e.message }

// Invalid refuses arguments by a check that JSON Schema cannot express, in a handler: field is the path of the field,
// such as "items.0.price", and message says what is wrong with it. The call ends as invalid, as if its schema had
// refused it, and the model can try again.
func Invalid(field, message string) error {
	e := invalidInput(field, message)
	e.Started = true
	return e
}

func invalidInput(field, message string) *InvalidError {
	data := events.InvalidData{Issues: []events.Issue{{Field: field, Message: message}}}
	return &InvalidError{message: data.Error(), issues: data.Issues}
}

// invalidDefinition is the error of a definition, or nil without issues.
func invalidDefinition(what string, issues []events.Issue) error {
	if len(issues) == 0 {
		return nil
	}
	slices.SortFunc(issues, func(a, b events.Issue) int { return strings.Compare(a.Field, b.Field) })
	texts := make([]string, len(issues))
	for i, issue := range issues {
		texts[i] = issue.Field + ": " + issue.Message
	}
	err := events.Errorf(events.CodeInvalidDefinition, "%s: %s", what, strings.Join(texts, "; "))
	err.Issues = issues
	return err
}

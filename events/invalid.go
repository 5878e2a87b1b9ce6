package events

import (
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

const (
	maxQuoted = 200 // characters of arguments that a validation error quotes

	redactedText = "[REDACTED]"
	redacted     = `"` + redactedText + `"`

	errorInvalidSuspension = "invalid_suspension" // name of the error of a call that suspended itself with bad data
)

// sensitiveKeys are parts of key names, in lower case and without dashes and underscores, whose values are not quoted.
var sensitiveKeys = [...]string{"password", "secret", "token", "apikey", "auth", "credential"}

// invalidObject is what a model gets in place of a result when a schema refused something.
type invalidObject struct {
	Error            bool        `json:"error"`
	Message          string      `json:"message"`
	ValidationErrors *fieldIssue `json:"validationErrors"`
}

// fieldIssue is a tree of issues, shaped as the value is.
type fieldIssue struct {
	Errors []string               `json:"errors"`
	Fields map[string]*fieldIssue `json:"fields"`
}

// InvalidInput is the result of a call whose arguments are refused, by their schema or because they are no arguments.
// toolName is the tool's key. The arguments are quoted, shortened and without values of keys that look sensitive; ""
// quotes nothing, as does a text that is not JSON.
func InvalidInput(toolName string, err error, args string) json.RawMessage {
	return invalidResult("Tool input validation failed for "+toolName+".", err, args)
}

// InvalidContext is the result of a call whose run has a request context that the tool does not take. The context is
// not quoted.
func InvalidContext(toolID string, err error) json.RawMessage {
	return invalidResult("Request context validation failed for "+toolID+".", err, "")
}

// InvalidOutput is the result of a call whose handler ran and gave what its output schema forbids. The output is not
// quoted.
func InvalidOutput(toolID string, err error) json.RawMessage {
	return invalidResult("Tool output validation failed for "+toolID+".", err, "")
}

// InvalidSuspension is the error of a call that suspended itself with data that its suspend schema forbids.
func InvalidSuspension(toolID string, err error) *ToolError {
	prefix := "Tool suspension data validation failed for " + toolID + "."
	return &ToolError{Name: errorInvalidSuspension, Message: invalidMessage(prefix, issuesOf(err), "")}
}

// InvalidResume refuses a decision whose resume data break the resume schema; the call stays held. toolName is the
// tool's key.
func InvalidResume(toolName string, err error) *Error {
	issues := issuesOf(err)
	prefix := "Tool resume data validation failed for " + toolName + "."
	return &Error{Code: CodeInvalidData, Message: invalidMessage(prefix, issues, ""), Issues: issues}
}

// CheckResumeData validates resume data against the schema of the ask that they answer; without one any JSON value is
// accepted. The result is nil, or what the sender is told.
func CheckResumeData(toolName string, schema, data json.RawMessage) *Error {
	err := CheckJSON(data)
	if err == nil && len(schema) > 0 && string(schema) != "null" {
		var compiled *Schema
		if compiled, err = CompileSchema(schema); err == nil {
			err = compiled.ValidateRaw(data)
		}
	}
	if err != nil {
		return InvalidResume(toolName, err)
	}
	return nil
}

// issuesOf are the issues of an error; what has none is one issue of the whole.
func issuesOf(err error) []Issue {
	if invalid, ok := errors.AsType[*InvalidData](err); ok {
		return invalid.Issues
	}
	return []Issue{{Message: err.Error()}}
}

func invalidResult(prefix string, err error, quoted string) json.RawMessage {
	issues := issuesOf(err)
	raw, _ := Marshal(invalidObject{ // strings and maps of strings always encode
		Error:            true,
		Message:          invalidMessage(prefix, issues, quoted),
		ValidationErrors: issueTree(issues),
	})
	return raw
}

func invalidMessage(prefix string, issues []Issue, quoted string) string {
	var b strings.Builder
	b.WriteString(prefix + " Please fix the following and try again:")
	for _, issue := range issues {
		b.WriteString("\n- ")
		if issue.Field != "" {
			b.WriteString(issue.Field + ": ")
		}
		b.WriteString(issue.Message)
	}
	if q := Redacted(quoted); q != "" {
		b.WriteString("\nProvided arguments: " + q)
	}
	return b.String()
}

// Redacted is JSON as a message may quote it: values of keys that look sensitive are hidden, also inside strings that
// hold JSON, and what is longer than 200 characters is cut. What is not JSON is not quoted at all.
func Redacted(text string) string {
	if CheckJSON([]byte(text)) != nil {
		return ""
	}
	q := string(redact([]byte(text)))
	if utf8.RuneCountInString(q) <= maxQuoted {
		return q
	}
	return string([]rune(q)[:maxQuoted]) + "…"
}

// redact writes a checked JSON text again, keys in their order, without the values of sensitive keys.
func redact(raw []byte) []byte {
	r := redactor{scanner: scanner{b: raw, depth: MaxJSONDepth}}
	_ = r.only(r.value) // checked before
	return r.out
}

type redactor struct {
	scanner
	out []byte
}

func (r *redactor) value() error {
	start := r.i
	switch r.peek() {
	case '{':
		return r.members()
	case '[':
		return r.list()
	case '"':
		s, err := r.str()
		r.text(s.String(), r.b[start:r.i])
		return err
	}
	err := r.scalar()
	r.out = append(r.out, r.b[start:r.i]...)
	return err
}

func (r *redactor) members() error {
	r.out = append(r.out, '{')
	first := true
	err := r.object(func(key text) error {
		if !first {
			r.out = append(r.out, ',')
		}
		first = false
		name := key.String()
		r.out = append(appendQuoted(r.out, name), ':')
		if !sensitive(name) {
			return r.value()
		}
		r.out = append(r.out, redacted...)
		return r.scanner.value()
	})
	r.out = append(r.out, '}')
	return err
}

func (r *redactor) list() error {
	r.out = append(r.out, '[')
	first := true
	err := r.array(func() error {
		if !first {
			r.out = append(r.out, ',')
		}
		first = false
		return r.value()
	})
	r.out = append(r.out, ']')
	return err
}

// text writes a string; one that holds an object or array is redacted inside.
func (r *redactor) text(s string, quoted []byte) {
	inner := strings.TrimSpace(s)
	if strings.HasPrefix(inner, "{") || strings.HasPrefix(inner, "[") {
		if CheckJSON([]byte(inner)) == nil {
			r.out = appendQuoted(r.out, redact([]byte(inner)))
			return
		}
	}
	r.out = append(r.out, quoted...)
}

var plainKey = strings.NewReplacer("-", "", "_", "")

func sensitive(key string) bool {
	k := plainKey.Replace(strings.ToLower(key))
	for _, part := range sensitiveKeys {
		if strings.Contains(k, part) {
			return true
		}
	}
	return false
}

// issueTree arranges issues by the places that they name.
func issueTree(issues []Issue) *fieldIssue {
	root := newFieldIssue()
	for _, issue := range issues {
		at := root
		for name := range strings.SplitSeq(issue.Field, ".") {
			if issue.Field == "" {
				break
			}
			if at.Fields[name] == nil {
				at.Fields[name] = newFieldIssue()
			}
			at = at.Fields[name]
		}
		at.Errors = append(at.Errors, issue.Message)
	}
	return root
}

func newFieldIssue() *fieldIssue {
	return &fieldIssue{Errors: []string{}, Fields: map[string]*fieldIssue{}}
}

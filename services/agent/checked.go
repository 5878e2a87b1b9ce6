package agent

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"

	"github.com/weirkeeper/weir/events"
)

// checked runs a tool's code between its schemas.
type checked struct {
	manifest events.Manifest
	run      func(ctx context.Context, call *Call, args json.RawMessage) (json.RawMessage, error)
	show     *Preview
	// mapOutput says what a model is told in place of a result; nil: the result.
	mapOutput func(ctx context.Context, call *Call, result json.RawMessage) (*events.ModelOutput, error)
	secrets   *events.Secrets
	transform *Transform // its functions; nil: none
	observers observers  // by what they are told of
	broken    error      // what is wrong with the definition; such a tool does not run

	input, output, suspend *events.Schema // nil: anything
}

var _ Tool = (*checked)(nil)

// Checked wraps a tool that was not made by [NewTool], so that its arguments, results and suspension payloads are held
// to its schemas and its panics end one call only. It fails as [Check] does.
func Checked(t Tool) (Tool, error) {
	if c, ok := t.(*checked); ok {
		return c, c.broken
	}
	c := newChecked(t.Manifest(), t.Run, nil)
	if m, ok := t.(OutputMapper); ok {
		c.mapOutput = m.MapOutput
	}
	return c, c.broken
}

// Check says what is wrong with the definition of a tool: an error with the code invalid_definition and its issues,
// or nil.
func Check(t Tool) error {
	_, err := Checked(t)
	return err
}

func newChecked(m events.Manifest, run func(context.Context, *Call, json.RawMessage) (json.RawMessage, error),
	issues []events.Issue,
) *checked {
	c := &checked{manifest: m, run: run, secrets: events.SecretsOf(m)}
	issues = append(issues, manifestIssues(m)...)
	compile := func(field string, raw json.RawMessage) *events.Schema {
		if absent(raw) {
			return nil
		}
		s, err := events.CompileSchema(raw)
		if err != nil {
			issues = append(issues, events.Issue{Field: field, Message: err.Error()})
		}
		return s
	}
	c.input = compile("inputSchema", m.InputSchema)
	c.output = compile("outputSchema", m.OutputSchema)
	c.suspend = compile("suspendSchema", m.SuspendSchema)
	_ = compile("resumeSchema", m.ResumeSchema)
	_ = compile("requestContextSchema", m.RequestContextSchema)
	if c.input != nil {
		issues = append(issues, exampleIssues(c.input, m.InputExamples)...)
	}
	c.broken = invalidDefinition("tool "+m.ID, issues)
	return c
}

// Manifest is everything about the tool but its code.
func (c *checked) Manifest() events.Manifest { return c.manifest }

// Run executes one call between the tool's schemas.
func (c *checked) Run(ctx context.Context, call *Call, args json.RawMessage) (json.RawMessage, error) {
	if c.broken != nil {
		return nil, c.broken
	}
	if c.input != nil {
		if err := c.input.ValidateRaw(args); err != nil {
			return nil, c.invalidArgs(call, args, err, false)
		}
	}
	result, err := c.guarded(ctx, call, args)
	if err != nil {
		return nil, c.outcome(call, args, err)
	}
	if c.output == nil {
		if err := events.CheckJSON(result); err != nil {
			return nil, Errorf(nameError, "the result is not JSON: %v", err)
		}
		return result, nil
	}
	if result, err = events.Conform(c.output, result); err != nil {
		return nil, &InvalidError{
			Result: events.InvalidOutput(c.manifest.ID, err), Started: true, message: "the result breaks the output schema",
		}
	}
	return result, nil
}

// guarded turns a panic into an error. Encoding the result may panic too.
func (c *checked) guarded(ctx context.Context, call *Call, args json.RawMessage) (raw json.RawMessage, err error) {
	defer func() {
		if r := recover(); r != nil {
			raw, err = nil, &PanicError{Value: r, Stack: debug.Stack()}
		}
	}()
	return c.run(ctx, call, args)
}

// outcome checks what a handler returned as its error.
func (c *checked) outcome(call *Call, args json.RawMessage, err error) error {
	if s, ok := errors.AsType[*Suspension](err); ok {
		return c.suspension(s)
	}
	if invalid, ok := errors.AsType[*InvalidError](err); ok && invalid.Result == nil {
		return c.invalidArgs(call, args, &events.InvalidData{Issues: invalid.issues}, invalid.Started)
	}
	return err
}

func (c *checked) suspension(s *Suspension) error {
	err := events.CheckJSON(s.Payload)
	if err == nil && c.suspend != nil {
		err = c.suspend.ValidateRaw(s.Payload)
	}
	if err != nil {
		e := events.InvalidSuspension(c.manifest.ID, err)
		return &Error{Name: e.Name, Message: e.Message}
	}
	if !absent(s.ResumeSchema) {
		if _, err := events.CompileSchema(s.ResumeSchema); err != nil {
			return Errorf(nameError, "the suspension has a resume schema that cannot be used: %v", err)
		}
	}
	return s
}

// invalidArgs makes the result of refused arguments. Secret fields are not quoted.
func (c *checked) invalidArgs(call *Call, args json.RawMessage, err error, started bool) error {
	quoted := ""
	if absent(c.manifest.Transform) {
		quoted = string(c.secrets.Args(args))
	}
	return &InvalidError{
		Result: events.InvalidInput(call.ToolName(), err, quoted), Started: started, message: err.Error(),
	}
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/weirkeeper/weir/events"
)

// Defaults of tools.
const (
	DefaultVersion      = "1"
	DefaultTimeout      = 5 * time.Minute
	DefaultStartTimeout = 5 * time.Minute
	DefaultMaxAttempts  = 5
)

// Tool is something that an agent can do. Most are made by [NewTool]; other implementations go through [Checked].
type Tool interface {
	// Manifest is everything about the tool but its code.
	Manifest() events.Manifest
	// Run executes one call. The result is JSON. A *Suspension, also a wrapped one, suspends the call; any other error
	// is its outcome. Run may be called by several goroutines at once.
	Run(ctx context.Context, call *Call, args json.RawMessage) (json.RawMessage, error)
}

// Tools are the tools of an agent, by the keys under which its model knows them.
type Tools map[string]Tool

// ToolOptions say more about a tool. Each zero field has the default that its comment names.
type ToolOptions struct {
	Title           string           // for people; default none
	Version         string           // changes when the tool does something else; default "1"
	Effect          events.Effect    // what running a call twice would do; default Effectful
	RequireApproval *events.Approval // Always, Never or When; default: only if others ask for it
	Pool            string           // executors that share its calls; default "default"

	Timeout      time.Duration // of one run of the handler; default 5m
	StartTimeout time.Duration // from release to start; default 5m
	MaxAttempts  int           // to execute a call; default 5
	Expires      time.Duration // of its asks; default that of the gate, 168h
	OnExpiry     string        // what an ask does that expires: "decline" (default) or "fail"

	InputSchema          json.RawMessage // default: that of the input type
	OutputSchema         json.RawMessage // default: that of the output type
	SuspendSchema        json.RawMessage // of the payloads of Suspend; default: any
	ResumeSchema         json.RawMessage // of resume data; default: any
	RequestContextSchema json.RawMessage // of the run's request context; default: any

	Preview *Preview // what a call would do, for people: PreviewTemplate or PreviewFunc; default none

	ToModelOutput *OutputMap // what a model is told in place of results: MapOutput or MapOutputJQ; default the result
	Transform     *Transform // what may be shown of calls to who watches and who reads; default everything

	Background *events.Background // how its calls run beside the conversation; default: the conversation waits for them

	OnInputStart     Observer // told that a model begins to write the arguments of a call
	OnInputDelta     Observer // told of each piece of their text
	OnInputAvailable Observer // told of arguments that are complete and valid, once for each call
	OnOutput         Observer // told of what the handler has given as result

	Strict          bool            // ask providers for strict arguments, where they can
	ProviderOptions json.RawMessage // an object by provider, passed on where the adapter can
	InputExamples   []any           // examples of arguments for the model; each must fit the input schema
	MCP             json.RawMessage // annotations for MCP clients
}

// Effects of tools: what running one call a second time would do.
const (
	ReadOnly   = events.ReadOnly   // nothing
	Idempotent = events.Idempotent // nothing, given the same idempotency key
	Effectful  = events.Effectful  // the same again: people decide when it is in doubt whether a call has run
)

// NewTool makes a tool of a function. Its schemas come from In and Out unless the options give them: fields without
// omitempty are required, and `jsonschema:"description=…,enum=…,minimum=…,default=…"` tags say more. fn is called
// with arguments that fit the input schema, never with others; keys that In does not have are dropped. What fn
// returns must fit the output schema. A panic in fn is the call's error and ends nothing else.
//
// A tool that is defined wrongly does not run; [Check] and [Agent.Def] say what is wrong with it.
func NewTool[In, Out any](id, description string, fn func(context.Context, *Call, In) (Out, error),
	o *ToolOptions,
) Tool {
	if o == nil {
		o = &ToolOptions{}
	}
	m, issues := o.manifest(id, description)
	if m.InputSchema == nil {
		m.InputSchema, issues = derive(inputSchema, reflect.TypeFor[In](), "inputSchema", issues)
	}
	if m.OutputSchema == nil {
		m.OutputSchema, issues = derive(outputSchema, reflect.TypeFor[Out](), "outputSchema", issues)
	}
	if fn == nil {
		issues = append(issues, events.Issue{Field: "fn", Message: "is required"})
	}
	if o.Preview != nil && o.Preview.form.Go && o.Preview.run == nil {
		issues = append(issues, events.Issue{Field: "preview", Message: "has no function"})
	}
	if o.ToModelOutput != nil && o.ToModelOutput.form.Go && o.ToModelOutput.run == nil {
		issues = append(issues, events.Issue{Field: "toModelOutput", Message: "has no function"})
	}
	m.Source = events.Source{Kind: "go"}
	c := newChecked(Complete(m), func(ctx context.Context, call *Call, args json.RawMessage) (json.RawMessage, error) {
		var in In
		if err := decode(args, &in); err != nil {
			return nil, unreadable(err)
		}
		out, err := fn(ctx, call, in)
		if err != nil {
			return nil, err
		}
		return encode(out)
	}, issues)
	c.show = o.Preview
	if o.ToModelOutput != nil {
		c.mapOutput = o.ToModelOutput.run
	}
	c.transform, c.observers = o.Transform, o.observers()
	return c
}

func derive(schema func(reflect.Type) (json.RawMessage, error), t reflect.Type, field string, issues []events.Issue,
) (json.RawMessage, []events.Issue) {
	raw, err := schema(t)
	if err != nil {
		issues = append(issues, events.Issue{Field: field, Message: err.Error()})
	}
	return raw, issues
}

func encode(out any) (json.RawMessage, error) {
	raw, err := events.Marshal(out)
	if err != nil {
		return nil, Errorf(nameError, "the result cannot be encoded: %v", err)
	}
	return raw, nil
}

// unreadable says that arguments fit the schema but not the Go type. The text names the field and no value.
func unreadable(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return invalidInput(wrong.Field, fmt.Sprintf("does not fit into %s", wrong.Type))
	}
	return invalidInput("", "the arguments have a value that the tool does not take")
}

func (o *ToolOptions) manifest(id, description string) (events.Manifest, []events.Issue) {
	m := events.Manifest{
		ID: id, Version: o.Version, Title: o.Title, Description: description,
		InputSchema: o.InputSchema, OutputSchema: o.OutputSchema, SuspendSchema: o.SuspendSchema,
		ResumeSchema: o.ResumeSchema, RequestContextSchema: o.RequestContextSchema,
		Effect: o.Effect, Pool: o.Pool, Timeout: events.Duration(o.Timeout),
		StartTimeout: events.Duration(o.StartTimeout), MaxAttempts: o.MaxAttempts,
		Expires: events.Duration(o.Expires), OnExpiry: o.OnExpiry, Strict: o.Strict,
		RequireApproval: o.RequireApproval, ProviderOptions: o.ProviderOptions, MCP: o.MCP,
	}
	if o.Preview != nil {
		m.Preview, _ = events.Marshal(o.Preview.form) // a text and a boolean always encode
	}
	if o.ToModelOutput != nil {
		m.ToModelOutput, _ = events.Marshal(o.ToModelOutput.form)
	}
	if o.Background != nil {
		m.Background, _ = events.Marshal(o.Background) // texts and numbers always encode
	}
	var issues []events.Issue
	if o.Transform != nil {
		m.Transform, issues = o.Transform.manifest()
	}
	m.Hooks = o.observers().manifest()
	if len(o.InputExamples) == 0 {
		return m, issues
	}
	type example struct {
		Input any `json:"input"`
	}
	examples := make([]example, len(o.InputExamples))
	for i, input := range o.InputExamples {
		examples[i].Input = input
	}
	var err error
	if m.InputExamples, err = events.Marshal(examples); err != nil {
		issues = append(issues, events.Issue{Field: "inputExamples", Message: err.Error()})
	}
	return m, issues
}

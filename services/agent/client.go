package agent

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"

	"github.com/weirkeeper/weir/events"
)

// NewClientTool describes a tool that whoever asks for a run executes itself: a browser that shows something, a program
// that looks at its own machine. Its calls pass the gate like any other, and are then held for the client, which alone
// answers them. Schemas come from In and Out as in [NewTool]: arguments are checked before the client sees them, and what it
// answers before the model does.
//
// It has no approval of its own; a rule may hold or block its calls. Results are mapped for models by a jq program, unless
// the client says itself what the model is told. Give the tool to an agent, and to an executor, which registers it and runs
// nothing.
func NewClientTool[In, Out any](id, description string, o *ToolOptions) Tool {
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
	m.Source = events.Source{Kind: events.SourceClient}
	return newChecked(Complete(m), func(context.Context, *Call, json.RawMessage) (json.RawMessage, error) {
		return nil, errors.New("a client tool is executed by the client of its run")
	}, issues)
}

// clientIssues lists what a tool cannot have that no process of Weir runs.
func clientIssues(m events.Manifest) []events.Issue {
	if !m.Client() {
		return nil
	}
	var list []events.Issue
	add := func(field, message string) {
		list = append(list, events.Issue{Field: field, Message: message})
	}
	if m.RequireApproval != nil {
		add("requireApproval", "a client tool has no approval of its own; hold its calls by a rule")
	}
	if !absent(m.SuspendSchema) || !absent(m.ResumeSchema) {
		add("suspendSchema", "a client tool does not suspend: its calls wait for their client")
	}
	const noCode = "a client tool has no function that could be asked; use a form that is data"
	if f, err := events.ParseForm(m.ToModelOutput); err == nil && f != nil && f.Go {
		add("toModelOutput", noCode)
	}
	if p, err := events.ParsePreviewForm(m.Preview); err == nil && p != nil && p.Go {
		add("preview", noCode)
	}
	if t, err := events.ParseTransform(m.Transform); err == nil && t != nil && t.HasGo() {
		add("transform", noCode)
	}
	return list
}

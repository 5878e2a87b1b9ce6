package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weirkeeper/weir/events"
)

// OutputMap says what a model is told in place of a tool's results. It is made by [MapOutput] or [MapOutputJQ]. The
// result itself stays what people, chunks and the record have.
type OutputMap struct {
	form events.Form
	run  func(ctx context.Context, call *Call, result json.RawMessage) (*events.ModelOutput, error)
}

// MapOutput maps results by a function, which runs where the tool does, right after it, and should be quick: until it is
// done, the result is not stored. It makes [TextOutput], [JSONOutput] or [ContentOutput]; nil leaves the result as it is.
// It is asked for results that fit the output schema, and not for null, errors or what people answered in place of the
// tool. One that fails, makes something else or takes longer than 2 s leaves the result as it is, and a warning says so.
func MapOutput[Out any](fn func(ctx context.Context, call *Call, out Out) (*events.ModelOutput, error)) *OutputMap {
	m := &OutputMap{form: events.Form{Go: true}}
	if fn == nil {
		return m // refused with the tool's definition
	}
	m.run = func(ctx context.Context, call *Call, result json.RawMessage) (*events.ModelOutput, error) {
		var out Out
		if err := decode(result, &out); err != nil {
			return nil, errors.New("the result does not fit the type that its map takes")
		}
		return fn(ctx, call, out)
	}
	return m
}

// MapOutputJQ maps results by a jq program, such as {type: "text", value: .summary}. It may take 50 ms; null leaves the
// result as it is.
func MapOutputJQ(program string) *OutputMap {
	return &OutputMap{form: events.Form{JQ: program}}
}

// TextOutput tells a model a text.
func TextOutput(text string) *events.ModelOutput {
	value, _ := events.Marshal(text) // a text always encodes
	return &events.ModelOutput{Type: events.OutputText, Value: value}
}

// JSONOutput tells a model a value. One that cannot be encoded fails the map.
func JSONOutput(value any) *events.ModelOutput {
	raw, err := events.Marshal(value)
	if err != nil {
		raw = nil // no JSON, so it is refused
	}
	return &events.ModelOutput{Type: events.OutputJSON, Value: raw}
}

// ContentOutput tells a model texts, images and files. Its provider may not take all of them; what it does not take
// becomes a short text.
func ContentOutput(parts ...events.ContentPart) *events.ModelOutput {
	value, _ := events.Marshal(parts) // texts always encode
	return &events.ModelOutput{Type: events.OutputContent, Value: value}
}

// OutputMapper is a tool, not made by [NewTool], that says itself what a model is told in place of its results. The rules
// of [MapOutput] hold.
type OutputMapper interface {
	MapOutput(ctx context.Context, call *Call, result json.RawMessage) (*events.ModelOutput, error)
}

// MapResult asks a tool what a model is told in place of a result; nil says the result itself. It is what a host of the
// tool does after a call. Jq programs are not the tool's to run.
func MapResult(ctx context.Context, t Tool, call *Call, result json.RawMessage) (*events.ModelOutput, error) {
	c, err := Checked(t)
	if err != nil {
		return nil, err
	}
	run := c.(*checked).mapOutput //nolint:forcetypeassert // Checked gives no other
	if run == nil {
		return nil, nil //nolint:nilnil // the result itself
	}
	o, err := within(ctx, func() (*events.ModelOutput, error) { return run(ctx, call, result) })
	if err != nil || o == nil {
		return nil, err
	}
	if err := events.CheckModelOutput(o); err != nil {
		return nil, fmt.Errorf("what the model is to be told: %w", err)
	}
	return o, nil
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weirkeeper/weir/events"
)

// Preview says what a call would do, for the people who decide about it. It is made by [PreviewTemplate] or
// [PreviewFunc].
type Preview struct {
	form events.PreviewForm
	run  func(ctx context.Context, call *Call, args json.RawMessage) (any, error)
}

// PreviewTemplate makes previews of a text with places for arguments, in the syntax of package text/template:
//
//	refund {{.amount}} EUR for {{.orderId}}
//
// Numbers are shown with the digits that they have, fields that the schema marks as secret not at all. Showing a key
// that the arguments lack makes the preview fail, so that none has holes; if, with and range ask whether one is there.
// There are the functions and, or, not, eq, ne, lt, le, gt, ge, len, index. The text is cut at 4 KiB.
func PreviewTemplate(text string) *Preview {
	return &Preview{form: events.PreviewForm{Template: text}}
}

// PreviewFunc makes previews by a function, which any host of the tool may run, at any time, as often as asked, and
// whether or not the call ever runs: it must change nothing. It gets arguments that fit the input schema, and a call
// without resume data, messages and store. A string is shown as it is, another value as JSON, up to 16 KiB. One that
// takes longer than the gate waits (2 s) is left out, and so is one that fails: people then decide without it.
func PreviewFunc[In any](fn func(ctx context.Context, call *Call, in In) (any, error)) *Preview {
	p := &Preview{form: events.PreviewForm{Go: true}}
	if fn == nil {
		return p // refused with the tool's definition
	}
	p.run = func(ctx context.Context, call *Call, args json.RawMessage) (any, error) {
		var in In
		if err := decode(args, &in); err != nil {
			return nil, unreadable(err)
		}
		return fn(ctx, call, in)
	}
	return p
}

// previewer is a tool that has a function for its previews.
type previewer interface {
	preview(ctx context.Context, call *Call, args json.RawMessage) (events.Preview, error)
}

var _ previewer = (*checked)(nil)

// errNoPreview says that a tool has no function for previews.
var errNoPreview = errors.New("the tool has no function for previews")

// RunPreview runs the function that makes a tool's previews, between the tool's input schema and the bounds of a
// preview. It is what a host of the tool does when a gate asks.
func RunPreview(ctx context.Context, t Tool, call *Call, args json.RawMessage) (events.Preview, error) {
	p, ok := t.(previewer)
	if !ok {
		return events.Preview{}, errNoPreview
	}
	return p.preview(ctx, call, args)
}

func (c *checked) preview(ctx context.Context, call *Call, args json.RawMessage) (events.Preview, error) {
	if c.broken != nil {
		return events.Preview{}, c.broken
	}
	if c.show == nil || c.show.run == nil {
		return events.Preview{}, errNoPreview
	}
	if c.input != nil {
		if err := c.input.ValidateRaw(args); err != nil {
			return events.Preview{}, err
		}
	}
	out, err := c.previewed(ctx, call, args)
	if err != nil {
		return events.Preview{}, err
	}
	hidden := c.secrets.Of(args)
	if text, ok := out.(string); ok {
		return events.TextPreview(hidden.Text(text), events.MaxPreview), nil
	}
	raw, err := events.Marshal(out)
	if err == nil {
		err = events.CheckJSON(raw)
	}
	if err != nil {
		return events.Preview{}, fmt.Errorf("the preview cannot be encoded: %w", err)
	}
	return events.JSONPreview(hidden.JSON(raw)), nil
}

// previewed turns a panic into an error.
func (c *checked) previewed(ctx context.Context, call *Call, args json.RawMessage) (out any, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, &PanicError{Value: r}
		}
	}()
	return c.show.run(ctx, call, args)
}

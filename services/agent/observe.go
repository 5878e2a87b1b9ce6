package agent

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/weirkeeper/weir/events"
)

// Observer is told of a moment in the life of a tool's calls. It changes nothing: what it returns is logged as failed, or
// not at all. One of the tool's hosts runs it, at most once for each moment, perhaps not the one that runs the call, and
// never at all when none is there. Its context ends when the call is cancelled, and after 10 s.
//
// What is observed is not proven: do nothing because of it that only a call that was released may do.
type Observer func(ctx context.Context, o *Observed) error

// Observed is what an observer is told.
type Observed struct {
	Event      events.Observation
	RunID      string
	ToolCallID string
	ToolName   string // the key under which the agent holds the tool
	AgentID    string

	InputTextDelta string          // OnInputDelta: the piece
	Input          json.RawMessage // OnInputAvailable: valid arguments, with hooks' changes
	Output         json.RawMessage // OnOutput: the result

	messages func(ctx context.Context) ([]events.Message, error)
}

// NewObserved is what a host of a tool gives to its observer. Messages reads the conversation; nil: there is none.
func NewObserved(o events.CallObserved, messages func(context.Context) ([]events.Message, error)) *Observed {
	return &Observed{
		Event: o.Event, RunID: o.RunID, ToolCallID: o.ToolCallID, ToolName: o.ToolName, AgentID: o.AgentID,
		InputTextDelta: o.InputTextDelta, Input: o.Input, Output: o.Output, messages: messages,
	}
}

// Messages reads what the model saw when it made the call. There are none for OnOutput.
func (o *Observed) Messages(ctx context.Context) ([]events.Message, error) {
	if o.messages == nil {
		return nil, nil
	}
	return o.messages(ctx)
}

// observers are the functions of a tool.
type observers map[events.Observation]Observer

// manifest is what the functions declare; nil when there are none.
func (o observers) manifest() json.RawMessage {
	d := events.Observers{
		OnInputStart: o[events.OnInputStart] != nil, OnInputDelta: o[events.OnInputDelta] != nil,
		OnInputAvailable: o[events.OnInputAvailable] != nil, OnOutput: o[events.OnOutput] != nil,
	}
	if d == (events.Observers{}) {
		return nil
	}
	raw, _ := events.Marshal(d) // booleans always encode
	return raw
}

func (o *ToolOptions) observers() observers {
	return observers{
		events.OnInputStart: o.OnInputStart, events.OnInputDelta: o.OnInputDelta,
		events.OnInputAvailable: o.OnInputAvailable, events.OnOutput: o.OnOutput,
	}
}

// errNoObserver says that a tool has no function for a moment.
var errNoObserver = errors.New("the tool has no function for this")

// Observe runs the observer of a tool for what it is told. It is what a host of the tool does when it hears of it, and
// does not wait for one that ignores the end of ctx.
func Observe(ctx context.Context, t Tool, o *Observed) error {
	c, ok := t.(*checked)
	if !ok || c.broken != nil || c.observers[o.Event] == nil {
		return errNoObserver
	}
	_, err := within(ctx, func() (struct{}, error) { return struct{}{}, c.observers[o.Event](ctx, o) })
	return err
}

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
)

// ClientTool is a tool that the client of a run executes itself. The model calls it like any other; the call is checked and
// judged, and then waits for the principal that asked for the run, and for nobody else.
type ClientTool struct {
	events.ClientTool

	// Run executes a call; what it returns is encoded as JSON and must fit the output schema. Its error declines the call, and
	// the model reads the text. It may be called again for a call whose answer was lost with this process. Nil: the call waits
	// until it is answered by [Client.Decide].
	Run func(ctx context.Context, args json.RawMessage) (any, error)
	// ToModelOutput says what the model is told in place of a result; nil, also when it returns nil: the result itself, or what
	// the agent's definition of the tool makes of it.
	ToModelOutput func(result json.RawMessage) *events.ModelOutput
}

// definitions are client tools as a request carries them.
func definitions(tools map[string]ClientTool) map[string]events.ClientTool {
	if len(tools) == 0 {
		return nil
	}
	all := make(map[string]events.ClientTool, len(tools))
	for key, t := range tools {
		all[key] = t.ClientTool
	}
	return all
}

// AnswerClientTool executes the call that a chunk asks its client for, and sends the result. It does nothing, and says so,
// when the chunk asks for something else, when no tool of its name has a function, or when the call waits no longer. It is
// for who follows a run with [Run.Follow]; [Run.Wait] does it itself.
//
// An answer that the gate refuses, as one that does not fit the output schema, is an *events.Error: the call still waits.
func (c *Client) AnswerClientTool(ctx context.Context, ch events.Chunk, tools map[string]ClientTool) (answered bool, err error) {
	if ch.Type != events.ChunkToolCallSuspended || len(tools) == 0 {
		return false, nil
	}
	var p events.AskPayload
	if err := json.Unmarshal(ch.Payload, &p); err != nil || p.Ask.Kind != events.AskClient || tools[p.ToolName].Run == nil {
		return false, nil //nolint:nilerr // not for a client
	}
	ask, err := c.Ask(ctx, p.ToolCallID)
	if over(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if ask.Kind != events.AskClient {
		return false, nil
	}
	d, err := c.execute(ctx, *ask, tools[p.ToolName])
	if err != nil {
		return false, err
	}
	if _, err = c.Decide(ctx, d); over(err) {
		return false, nil // another one was quicker
	}
	return err == nil, err
}

// over reports whether an error says that a call waits no longer.
func over(err error) bool {
	e, ok := errors.AsType[*events.Error](err)
	if !ok {
		return false
	}
	switch e.Code {
	case events.CodeAlreadyDecided, events.CodeRunEnded, events.CodeNotFound:
		return true
	default:
		return false
	}
}

// execute runs a call and makes the answer of what came of it.
func (c *Client) execute(ctx context.Context, ask events.CallHeld, t ClientTool) (Decision, error) {
	d := Decision{Decision: events.Respond, ToolCallID: ask.ToolCallID, Round: &ask.Round, Fingerprint: ask.Fingerprint}
	args := ask.Args
	if ask.DataRef != "" { // a field is secret
		var err error
		if args, err = c.conn.Blob(ctx, ask.DataRef); err != nil {
			return d, fmt.Errorf("read the arguments of %s: %w", ask.ToolCallID, busError(err))
		}
	}
	out, err := t.Run(ctx, args)
	if ctx.Err() != nil {
		return d, context.Cause(ctx)
	}
	if err == nil {
		d.Result, err = events.Marshal(out)
	}
	if err != nil {
		d.Decision, d.Result, d.Reason = events.Decline, nil, fmt.Sprintf("the client's tool failed: %v", err)
		return d, nil
	}
	if t.ToModelOutput != nil {
		d.ModelOutput = t.ToModelOutput(d.Result)
	}
	return d, nil
}

// answers are the calls that were answered while a run was waited for.
type answers map[string]bool

// add answers the call that a chunk asks for, if it does.
func (a answers) add(ctx context.Context, r *Run, ch events.Chunk) error {
	answered, err := r.client.AnswerClientTool(ctx, ch, r.tools)
	if answered {
		var p events.AskPayload
		_ = json.Unmarshal(ch.Payload, &p) // it was read before
		a[p.ToolCallID] = true
	}
	return err
}

// goesOn reports whether a chunk tells of a suspension that is over, because a call that it names was answered. Who may not
// read the log cannot tell otherwise.
func (a answers) goesOn(ch events.Chunk) bool {
	var p events.SuspendedPayload
	return len(a) > 0 && ch.Type == events.ChunkSuspended && json.Unmarshal(ch.Payload, &p) == nil &&
		slices.ContainsFunc(p.Asks, func(id string) bool { return a[id] })
}

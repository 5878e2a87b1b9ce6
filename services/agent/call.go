package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// CallInfo is what an executor knows about a call. Tool authors meet it in tests only.
type CallInfo struct {
	RunID      string
	ToolCallID string
	ToolName   string // the key under which the agent holds the tool
	AgentID    string
	ThreadID   string
	ResourceID string
	Attempt    int // from 1, over all rounds
	Round      int

	Resume         *events.Resume  // nil: not resumed
	SuspendPayload json.RawMessage // of the last suspension
	RequestContext json.RawMessage // an object; nil is an empty one

	// Messages reads what the model saw when it made the call. Nil: nothing.
	Messages func(ctx context.Context) ([]events.Message, error)
	// Write publishes progress as a tool-output chunk. Nil: dropped.
	Write func(ctx context.Context, output json.RawMessage) error
	// Custom publishes a chunk of the author's own type. Nil: dropped.
	Custom func(ctx context.Context, chunk CustomChunk) error
	// Store keeps the value of this tool for the conversation. Nil: none.
	Store Store
	// Log gets what the handler logs. Nil: discarded.
	Log *slog.Logger
	// Span begins a span of the call's trace and returns what ends it; Observed adds what is logged to the span of the
	// context. Nil: nothing is traced.
	Span     func(ctx context.Context, name string, attributes map[string]any) (context.Context, func(error))
	Observed func(ctx context.Context, level, message string, data any)
}

// CustomChunk is a chunk of an author's own type. It is kept in the thread unless it is transient.
type CustomChunk struct {
	Type      string          `json:"type"` // starts with "data-"
	ID        string          `json:"id,omitempty"`
	Data      json.RawMessage `json:"data"`
	Transient bool            `json:"transient,omitempty"`
}

// Store keeps one JSON value per conversation and tool, of at most 256 KiB, changed by compare-and-set. It outlives runs, and
// what models are shown of the conversation.
//
// A call may be executed more than once, and a Set that fails may have been stored: so mark in the value what the call,
// by its [Call.IdempotencyKey], has done to it.
type Store interface {
	// Get returns the value and its revision; nil and 0 if there is none yet.
	Get(ctx context.Context) (value json.RawMessage, revision uint64, err error)
	// Set replaces the value if its revision still is the one given, else it fails with [ErrConflict]: read it again.
	Set(ctx context.Context, value json.RawMessage, revision uint64) (uint64, error)
}

// Call is one use of a tool, as its handler sees it.
type Call struct{ info CallInfo }

// NewCall makes the call that an executor gives to a handler.
func NewCall(info CallInfo) *Call { return &Call{info: info} }

// RunID is the run that the call belongs to.
func (c *Call) RunID() string { return c.info.RunID }

// ToolCallID is the call's id, unique everywhere.
func (c *Call) ToolCallID() string { return c.info.ToolCallID }

// ToolName is the key under which the agent holds the tool; it may differ from the tool's id.
func (c *Call) ToolName() string { return c.info.ToolName }

// AgentID is the agent that made the call.
func (c *Call) AgentID() string { return c.info.AgentID }

// ThreadID is the conversation of the run, empty if it has none.
func (c *Call) ThreadID() string { return c.info.ThreadID }

// ResourceID is the owner of the conversation, empty if there is none.
func (c *Call) ResourceID() string { return c.info.ResourceID }

// Attempt counts the tries to execute the call, from 1, over all rounds.
func (c *Call) Attempt() int { return c.info.Attempt }

// Round counts the asks before this release: 0 if it was released at once or by its first ask.
func (c *Call) Round() int { return c.info.Round }

// IdempotencyKey is the same on every attempt and round of the call, and no other call has it. Give it to systems
// that can refuse to do a thing twice.
func (c *Call) IdempotencyKey() string { return c.info.ToolCallID }

// Resumed reports whether people resumed the call with data, whatever the data are; null too.
func (c *Call) Resumed() bool { return c.info.Resume != nil }

// ResumeData reads the data with which people resumed the call, numbers in untyped places as [json.Number]. They fit
// the resume schema. A call that was not resumed gives [ErrNotResumed].
func ResumeData[T any](c *Call) (T, error) {
	var v T
	if !c.Resumed() {
		return v, ErrNotResumed
	}
	if err := decode(c.info.Resume.Data, &v); err != nil {
		return v, fmt.Errorf("resume data: %w", err)
	}
	return v, nil
}

// SuspendPayload is what the call showed when it last suspended itself; nil if it never did.
func (c *Call) SuspendPayload() json.RawMessage { return slices.Clone(c.info.SuspendPayload) }

// RequestContext is the JSON object that the run was started with; {} if there was none. Changing it changes nothing
// for others.
func (c *Call) RequestContext() json.RawMessage {
	if len(c.info.RequestContext) == 0 || string(c.info.RequestContext) == "null" {
		return json.RawMessage("{}")
	}
	return slices.Clone(c.info.RequestContext)
}

// Messages reads what the model saw when it made the call; for a delegated call, what the supervisor's model saw.
func (c *Call) Messages(ctx context.Context) ([]events.Message, error) {
	if c.info.Messages == nil {
		return nil, nil
	}
	return c.info.Messages(ctx)
}

// Write shows progress to whoever follows the run. It may be lost when the process dies, and is shown again when the
// call is tried again; nothing depends on it.
func (c *Call) Write(ctx context.Context, output any) error {
	raw, err := events.Marshal(output)
	if err != nil {
		return fmt.Errorf("write: encode: %w", err)
	}
	if c.info.Write == nil {
		return nil
	}
	return c.info.Write(ctx, raw)
}

// maxChunkType bounds the type of a chunk, in bytes.
const maxChunkType = 64

// CustomOptions say more about a chunk of an author's own type.
type CustomOptions struct {
	ID        string // chunks of one type and id replace each other at the reader
	Transient bool   // not kept in the thread
}

// Custom shows a chunk of the author's own type, which starts with "data-", to whoever follows the run.
func (c *Call) Custom(ctx context.Context, chunkType string, data any, o *CustomOptions) error {
	if !strings.HasPrefix(chunkType, events.DataPrefix) || len(chunkType) > maxChunkType {
		return fmt.Errorf("custom: type %q is not \"data-\" and a name, of %d bytes at most", chunkType, maxChunkType)
	}
	raw, err := events.Marshal(data)
	if err != nil {
		return fmt.Errorf("custom: encode: %w", err)
	}
	if c.info.Custom == nil {
		return nil
	}
	chunk := CustomChunk{Type: chunkType, Data: raw}
	if o != nil {
		chunk.ID, chunk.Transient = o.ID, o.Transient
	}
	return c.info.Custom(ctx, chunk)
}

// Store keeps a value of the tool for the conversation of the call. [ErrNoStore] says that there is none: the run has no
// thread, or the thread no resource that owns it.
func (c *Call) Store() (Store, error) {
	if c.info.Store == nil {
		return nil, ErrNoStore
	}
	return c.info.Store, nil
}

// Log is the worker's logger with the ids of the call. Never log arguments or results.
func (c *Call) Log() *slog.Logger {
	if c.info.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.info.Log.With("runId", c.info.RunID, "toolCallId", c.info.ToolCallID, "agentId", c.info.AgentID,
		"round", c.info.Round)
}

// Span runs f within a span of the call's trace, for what takes its time: a query, a request. Without tracing f runs all the
// same, and its error is returned as it is.
func (c *Call) Span(ctx context.Context, name string, attributes map[string]any, f func(ctx context.Context) error) (err error) {
	if c.info.Span == nil {
		return f(ctx)
	}
	ctx, end := c.info.Span(ctx, name, attributes)
	err = fmt.Errorf("%s panicked", name) // unless it returns
	defer func() { end(err) }()
	err = f(ctx)
	return err
}

// Levels of what is logged to a trace.
const (
	LevelDebug = "debug"
	LevelInfo  = "info"
	LevelWarn  = "warn"
	LevelError = "error"
	LevelFatal = "fatal"
)

// Observe logs a message and data to the call's trace, at the span of ctx. Without tracing it does nothing. It goes to the
// tracing system as it is: never observe what is secret.
func (c *Call) Observe(ctx context.Context, level, message string, data any) {
	if c.info.Observed != nil {
		c.info.Observed(ctx, level, message, data)
	}
}

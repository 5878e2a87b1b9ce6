package events

import (
	"encoding/json"
	"strings"
	"time"
)

// ChunkType is a type of the stream that people and programs watch while a run goes on. The names are Mastra's; the
// last four are Weir's own.
type ChunkType string

// DataPrefix begins the types that authors of tools choose.
const DataPrefix = "data-"

// Types of chunks.
const (
	ChunkStart               ChunkType = "start"
	ChunkStepStart           ChunkType = "step-start"
	ChunkTextStart           ChunkType = "text-start"
	ChunkTextDelta           ChunkType = "text-delta"
	ChunkTextEnd             ChunkType = "text-end"
	ChunkReasoningStart      ChunkType = "reasoning-start"
	ChunkReasoningDelta      ChunkType = "reasoning-delta"
	ChunkReasoningEnd        ChunkType = "reasoning-end"
	ChunkToolInputStart      ChunkType = "tool-call-input-streaming-start"
	ChunkToolInputDelta      ChunkType = "tool-call-delta"
	ChunkToolInputEnd        ChunkType = "tool-call-input-streaming-end"
	ChunkToolCall            ChunkType = "tool-call"
	ChunkToolCallApproval    ChunkType = "tool-call-approval"
	ChunkToolCallSuspended   ChunkType = "tool-call-suspended"
	ChunkToolResult          ChunkType = "tool-result"
	ChunkToolError           ChunkType = "tool-error"
	ChunkToolOutputDenied    ChunkType = "tool-output-denied"
	ChunkToolOutput          ChunkType = "tool-output"
	ChunkStepFinish          ChunkType = "step-finish"
	ChunkFinish              ChunkType = "finish"
	ChunkError               ChunkType = "error"
	ChunkAbort               ChunkType = "abort"
	ChunkStepRetry           ChunkType = "step-retry"
	ChunkWarning             ChunkType = "warning"
	ChunkChildStart          ChunkType = "child-start"
	ChunkSuspended           ChunkType = "suspended"
	ChunkSource              ChunkType = "source"
	ChunkObject              ChunkType = "object"        // the value so far; the payload is it
	ChunkObjectResult        ChunkType = "object-result" // the value that counts; the payload is it
	ChunkBackgroundStarted   ChunkType = "background-task-started"
	ChunkBackgroundRunning   ChunkType = "background-task-running"
	ChunkBackgroundCompleted ChunkType = "background-task-completed"
	ChunkBackgroundFailed    ChunkType = "background-task-failed"
	ChunkBackgroundCancelled ChunkType = "background-task-cancelled"
	ChunkBackgroundSuspended ChunkType = "background-task-suspended"
	chunkFromAgent                     = "AGENT"
	chunkFromUser                      = "USER"
	approvalResumeSchemaText           = `{"type":"object","properties":{"approved":{"type":"boolean"},"reason":{"type":"string"}},"required":["approved"],"additionalProperties":false}`
)

// Chunk is one piece of a run's stream (chunk.published, binary mode). Payloads are display-safe.
type Chunk struct {
	Type     ChunkType       `json:"type"`
	RunID    string          `json:"runId"`
	From     string          `json:"from"`
	Payload  json.RawMessage `json:"payload"`
	Metadata json.RawMessage `json:"metadata,omitempty"`

	// Step, Attempt and Index place a chunk of a model turn: several attempts of a turn may be on the stream, and the
	// committed step names the one that counts.
	Step    int `json:"step,omitempty"`
	Attempt int `json:"attempt,omitempty"`
	Index   int `json:"index,omitempty"`

	// ID is the CloudEvents id: that of the fact it shows, so that a repeated one is dropped, else its own.
	ID string `json:"-"`
	// TraceParent is the W3C trace context of what wrote the chunk.
	TraceParent string `json:"-"`
	// Cursor is the sequence in the chunks stream and Prev that of the run's chunk before it; Time the server's stamp.
	Cursor uint64    `json:"-"`
	Prev   uint64    `json:"-"`
	Time   time.Time `json:"-"`
	// Nested is the chunk of a run below that this one wraps, once for each level; nil where it wraps none.
	Nested *Chunk `json:"-"`
}

// Innermost is the chunk itself, or what it wraps.
func (c Chunk) Innermost() Chunk {
	for c.Nested != nil {
		c = *c.Nested
	}
	return c
}

// NewChunk makes a chunk; the payload must encode, which maps and structs of plain values always do.
func NewChunk(run string, t ChunkType, payload any) Chunk {
	raw, err := Marshal(payload)
	if err != nil {
		raw = json.RawMessage(payloadUnavailable)
	}
	from := chunkFromAgent
	if t == ChunkToolOutput || strings.HasPrefix(string(t), DataPrefix) {
		from = chunkFromUser
	}
	return Chunk{Type: t, RunID: run, From: from, Payload: raw}
}

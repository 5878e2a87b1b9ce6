package events

import (
	"encoding/json"
	"time"
)

// BackgroundPayload tells of a background call (background-task-*). The id of a task is the toolCallId of its call.
type BackgroundPayload struct {
	TaskID         string          `json:"taskId"`
	ToolName       string          `json:"toolName"`
	ToolCallID     string          `json:"toolCallId"`
	RunID          string          `json:"runId"`
	AgentID        string          `json:"agentId,omitempty"`
	Args           json.RawMessage `json:"args,omitempty"`
	StartedAt      *time.Time      `json:"startedAt,omitempty"`
	Result         json.RawMessage `json:"result,omitempty"`
	DataRef        string          `json:"dataref,omitempty"` // a large result, as a blob
	IsError        bool            `json:"isError,omitempty"`
	Error          *ToolError      `json:"error,omitempty"`
	Outcome        Outcome         `json:"outcome,omitempty"`
	CompletedAt    *time.Time      `json:"completedAt,omitempty"`
	SuspendPayload json.RawMessage `json:"suspendPayload,omitempty"`
	SuspendedAt    *time.Time      `json:"suspendedAt,omitempty"`
}

func backgroundChunk(t ChunkType, id string, p BackgroundPayload) Chunk {
	p.TaskID = p.ToolCallID
	c := NewChunk(p.RunID, t, p)
	c.ID = id
	return c
}

// BackgroundStartedChunks tell that a call goes on in the background: that it was started, and, when nothing waits for it, what
// stands in the place of its result. Their ids are derived from that of the call.
func BackgroundStartedChunks(run, agentID string, c CallState, args json.RawMessage) []Chunk {
	id := c.Planned.ToolCallID
	chunks := []Chunk{backgroundChunk(ChunkBackgroundStarted, id+"-background-task-started", BackgroundPayload{
		ToolName: c.Planned.ToolName, ToolCallID: id, RunID: run, AgentID: agentID,
	})}
	if !c.Deferred() {
		return chunks
	}
	text, _ := Marshal(textPlaceholder(id)) // a text always encodes
	about, _ := Marshal(map[string]any{"mastra": map[string]any{"backgroundTask": map[string]any{"taskId": id, "status": "running"}}})
	p := NewChunk(run, ChunkToolResult, ToolResultPayload{
		ToolCallID: id, ToolName: c.Planned.ToolName, Args: args, Result: text, ProviderMetadata: about,
	})
	p.ID = id + "-placeholder"
	return append(chunks, p)
}

// BackgroundEndChunk shows the result of a background call, which may be shown. Its id is derived from that of the fact.
func BackgroundEndChunk(f CallFinished, args json.RawMessage, id string, at time.Time) Chunk {
	p := BackgroundPayload{
		ToolName: f.ToolName, ToolCallID: f.ToolCallID, RunID: f.RunID, Args: args, Outcome: f.Outcome, CompletedAt: &at,
	}
	t := ChunkBackgroundFailed
	switch f.TaskState() {
	case TaskCompleted:
		t = ChunkBackgroundCompleted
		if p.DataRef = f.DataRef; f.DataRef == "" {
			p.Result = orNull(f.Result)
		}
	case TaskCancelled:
		t = ChunkBackgroundCancelled
	default:
		p.IsError = true
		if p.Error = f.Error; p.Error == nil {
			p.Error = &ToolError{Name: string(f.Outcome), Message: errorText(&f)}
		}
	}
	return backgroundChunk(t, id+"-background-task", p)
}

// BackgroundRunningChunk tells that a worker has started a background call, whose arguments may be shown.
func BackgroundRunningChunk(rel CallReleased, args json.RawMessage, id string, at time.Time) Chunk {
	return backgroundChunk(ChunkBackgroundRunning, id+"-background-task", BackgroundPayload{
		ToolName: rel.ToolName, ToolCallID: rel.ToolCallID, RunID: rel.RunID, AgentID: rel.AgentID, Args: args, StartedAt: &at,
	})
}

// BackgroundSuspendedChunk tells that a background call waits for people. The ask has a chunk of its own, by which it is
// decided.
func BackgroundSuspendedChunk(a CallHeld, id string, at time.Time) Chunk {
	a = a.Shown()
	p := BackgroundPayload{
		ToolName: a.ToolName, ToolCallID: a.ToolCallID, RunID: a.RunID, AgentID: a.AgentID, Args: a.Args, SuspendedAt: &at,
	}
	if a.Kind != AskApproval {
		p.SuspendPayload = a.SuspendPayload
	}
	return backgroundChunk(ChunkBackgroundSuspended, id+"-background-task", p)
}

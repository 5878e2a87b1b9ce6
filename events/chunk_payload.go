package events

import (
	"encoding/json"
	"time"
)

// Payloads of chunks, as readers decode them. Every value in them is display-safe.

// StartPayload begins a run (start).
type StartPayload struct {
	ID        string `json:"id"` // the agent's
	MessageID string `json:"messageId"`
	// MayResume are suspended runs of the thread, the oldest question first: the message may turn out to answer them, and
	// then one of them goes on in place of this run.
	MayResume []string `json:"mayResume,omitempty"`
}

// ChildStartPayload tells a reader of a run of a run that one of its calls is delegated to (child-start).
type ChildStartPayload struct {
	ToolCallID string `json:"toolCallId"`
	RunID      string `json:"runId"`
	AgentID    string `json:"agentId"`
	ToolName   string `json:"toolName,omitempty"` // as the model knows it, agent-<key>
}

// StepStartPayload begins a model turn (step-start).
type StepStartPayload struct {
	MessageID string            `json:"messageId"`
	Request   struct{}          `json:"request"`
	Warnings  []json.RawMessage `json:"warnings"`
	StartedAt int64             `json:"startedAt"` // milliseconds since 1970
}

// TextPayload is a piece of text or reasoning, or its begin or end (text-*, reasoning-*).
type TextPayload struct {
	ID   string `json:"id"`
	Text string `json:"text,omitempty"`
}

// ToolCallPayload is a call as the model makes it (tool-call and its input streaming).
type ToolCallPayload struct {
	ToolCallID    string          `json:"toolCallId"`
	ToolName      string          `json:"toolName,omitempty"`
	Title         string          `json:"title,omitempty"`
	ArgsTextDelta string          `json:"argsTextDelta,omitempty"`
	Args          json.RawMessage `json:"args,omitempty"`

	// ProviderExecuted says that the model's provider runs the call within the turn: nobody is asked about it, nobody else runs it.
	ProviderExecuted bool `json:"providerExecuted,omitempty"`
}

// SourcePayload tells where something that the model said is from (source).
type SourcePayload struct {
	ID         string `json:"id"`
	SourceType string `json:"sourceType"` // url
	URL        string `json:"url"`
	Title      string `json:"title,omitempty"`
}

// ToolResultPayload is the outcome of a call (tool-result, tool-error, tool-output-denied).
type ToolResultPayload struct {
	ToolCallID       string          `json:"toolCallId"`
	ToolName         string          `json:"toolName"`
	Args             json.RawMessage `json:"args"`
	Result           json.RawMessage `json:"result,omitempty"`
	DataRef          string          `json:"dataref,omitempty"` // a large result, as a blob
	Size             int             `json:"size,omitempty"`    // of that result, bytes
	IsError          bool            `json:"isError,omitempty"`
	Error            *ToolError      `json:"error,omitempty"`
	Approval         *DeniedApproval `json:"approval,omitempty"`
	Outcome          Outcome         `json:"outcome,omitempty"` // none while a background call goes on
	Started          bool            `json:"started"`
	ProviderMetadata json.RawMessage `json:"providerMetadata,omitempty"`
	ProviderExecuted bool            `json:"providerExecuted,omitempty"` // as that of the call
}

// DeniedApproval says why a call did not run.
type DeniedApproval struct {
	ID       string `json:"id"`
	Approved bool   `json:"approved"`
	Reason   string `json:"reason,omitempty"`
}

// AskPayload is a question to people (tool-call-approval, tool-call-suspended).
type AskPayload struct {
	ToolCallID     string          `json:"toolCallId"`
	ToolName       string          `json:"toolName"`
	Args           json.RawMessage `json:"args"`
	SuspendPayload json.RawMessage `json:"suspendPayload,omitempty"`
	ResumeSchema   string          `json:"resumeSchema,omitempty"` // JSON text
	Ask            AskBrief        `json:"ask"`
}

// AskBrief is what a decision about the ask needs to know.
type AskBrief struct {
	ToolCallID  string          `json:"toolCallId"`
	RunID       string          `json:"runId"`
	RootRunID   string          `json:"rootRunId"`
	Path        []PathEntry     `json:"path"`
	AgentID     string          `json:"agentId"`
	Round       int             `json:"round"`
	Kind        AskKind         `json:"kind"`
	Fingerprint string          `json:"fingerprint"`
	Reason      string          `json:"reason,omitempty"`
	ExpiresAt   time.Time       `json:"expiresAt"`
	Allowed     []Decision      `json:"allowed"`
	Approvers   []string        `json:"approvers,omitempty"`
	Quorum      *Quorum         `json:"quorum,omitempty"`
	Preview     json.RawMessage `json:"preview,omitempty"`
}

// FinishPayload ends a step or a run (step-finish, finish).
type FinishPayload struct {
	MessageID  string         `json:"messageId,omitempty"`
	StepResult StepResult     `json:"stepResult"`
	Output     FinishOutput   `json:"output"`
	Metadata   FinishMetadata `json:"metadata"`
}

// StepResult says why a step or run ended.
type StepResult struct {
	Reason      string `json:"reason"`
	Limit       string `json:"limit,omitempty"`
	IsContinued bool   `json:"isContinued"`
}

// FinishOutput is what a step or run brought.
type FinishOutput struct {
	Text      string            `json:"text"`
	ToolCalls []ToolCallPayload `json:"toolCalls"`
	Usage     Usage             `json:"usage"`
}

// FinishMetadata places a step or run.
type FinishMetadata struct {
	Attempt int `json:"attempt,omitempty"` // the attempt of the last turn that counts
	Step    int `json:"step,omitempty"`
	// Resumes are the runs that go on in place of this one; the reason is "resumed".
	Resumes []string `json:"resumes,omitempty"`
	// Background are the toolCallIds of background calls that go on after the run.
	Background []string `json:"background,omitempty"`
	// UsedFallback says that the value which the run was asked for is the fallback value.
	UsedFallback bool `json:"usedFallbackValue,omitempty"`
}

// ErrorPayload says why a run failed (error).
type ErrorPayload struct {
	Error RunErrorBrief `json:"error"`
}

// RunErrorBrief is a run's error as readers see it.
type RunErrorBrief struct {
	Name    string `json:"name"`
	Message string `json:"message"`
	Code    Code   `json:"code"`
}

// RetryPayload tells readers to drop what they saw of earlier attempts of the turn (step-retry).
type RetryPayload struct {
	MessageID string `json:"messageId"`
	Attempt   int    `json:"attempt"`
}

// WarningPayload says that something was left out or went on without (warning).
type WarningPayload struct {
	Code       string `json:"code"`
	Message    string `json:"message"`
	ToolCallID string `json:"toolCallId,omitempty"`
}

// SuspendedPayload names the calls that a run waits for (suspended).
type SuspendedPayload struct {
	Asks []string `json:"asks"`
}

// ToolOutputPayload is what a tool writes while it runs (tool-output).
type ToolOutputPayload struct {
	Output     json.RawMessage `json:"output"`
	ToolCallID string          `json:"toolCallId"`
	ToolName   string          `json:"toolName"`
}

// StartChunk begins a run.
func StartChunk(run, agentID, messageID string) Chunk {
	return NewChunk(run, ChunkStart, StartPayload{ID: agentID, MessageID: messageID})
}

// ResumingChunk begins a run whose message may be what suspended runs of its thread wait for.
func ResumingChunk(run, agentID, messageID string, mayResume []string) Chunk {
	return NewChunk(run, ChunkStart, StartPayload{ID: agentID, MessageID: messageID, MayResume: mayResume})
}

// StepStartChunk begins a model turn.
func StepStartChunk(run, messageID string, at time.Time) Chunk {
	return NewChunk(run, ChunkStepStart, StepStartPayload{
		MessageID: messageID, Warnings: []json.RawMessage{},
		StartedAt: at.UnixMilli(),
	})
}

// ChildStartChunk tells readers of a run of a run that one of its calls is delegated to. Its id is derived from that of the
// release, so one that is published again is dropped.
func ChildStartChunk(rel CallReleased, agentID, release string) Chunk {
	c := NewChunk(rel.RunID, ChunkChildStart, ChildStartPayload{
		ToolCallID: rel.ToolCallID, RunID: rel.ToolCallID, AgentID: agentID, ToolName: rel.ToolName,
	})
	c.ID = release + "-child-start"
	return c
}

// NestedChunk wraps a chunk of the run that a call of a run is delegated to, as readers of the outer run see it.
func NestedChunk(run, toolCallID, toolName string, inner Chunk) Chunk {
	c := NewChunk(run, ChunkToolOutput, struct {
		Output     Chunk  `json:"output"`
		ToolCallID string `json:"toolCallId"`
		ToolName   string `json:"toolName"`
	}{inner, toolCallID, toolName})
	c.ID, c.TraceParent, c.Cursor, c.Time, c.Nested = inner.ID, inner.TraceParent, inner.Cursor, inner.Time, &inner
	return c
}

// StepRetryChunk withdraws what readers saw of earlier attempts of a turn.
func StepRetryChunk(run, messageID string, attempt int) Chunk {
	return NewChunk(run, ChunkStepRetry, RetryPayload{MessageID: messageID, Attempt: attempt})
}

// TextStartChunk begins a text; for [PartReasoning] a reasoning.
func TextStartChunk(run, kind, id string) Chunk {
	return NewChunk(run, textType(kind, ChunkTextStart, ChunkReasoningStart), TextPayload{ID: id})
}

// TextDeltaChunk is a piece of a text or reasoning.
func TextDeltaChunk(run, kind, id, text string) Chunk {
	return NewChunk(run, textType(kind, ChunkTextDelta, ChunkReasoningDelta), TextPayload{ID: id, Text: text})
}

// TextEndChunk ends a text or reasoning.
func TextEndChunk(run, kind, id string) Chunk {
	return NewChunk(run, textType(kind, ChunkTextEnd, ChunkReasoningEnd), TextPayload{ID: id})
}

func textType(kind string, text, reasoning ChunkType) ChunkType {
	if kind == PartReasoning {
		return reasoning
	}
	return text
}

// ToolInputStartChunk begins the arguments of a call.
func ToolInputStartChunk(run, toolCallID, toolName string) Chunk {
	return NewChunk(run, ChunkToolInputStart, ToolCallPayload{ToolCallID: toolCallID, ToolName: toolName})
}

// ToolInputDeltaChunk is a piece of the text of a call's arguments.
func ToolInputDeltaChunk(run, toolCallID, toolName, text string) Chunk {
	return NewChunk(run, ChunkToolInputDelta, ToolCallPayload{ToolCallID: toolCallID, ToolName: toolName, ArgsTextDelta: text})
}

// ToolInputEndChunk ends the arguments of a call.
func ToolInputEndChunk(run, toolCallID string) Chunk {
	return NewChunk(run, ChunkToolInputEnd, ToolCallPayload{ToolCallID: toolCallID})
}

// ToolCallChunk is a complete call.
func ToolCallChunk(run string, p ToolCallPayload) Chunk { return NewChunk(run, ChunkToolCall, p) }

// ShownArgs are arguments as a model wrote them, as a chunk has them: what is no JSON as a text.
func ShownArgs(args string) json.RawMessage {
	if raw, err := ParseArgs(args, false); err == nil {
		return raw
	}
	raw, err := Marshal(args)
	if err != nil {
		return json.RawMessage(`{}`)
	}
	return raw
}

// ToolOutputChunk is what a tool writes while it runs.
func ToolOutputChunk(run, toolCallID, toolName string, output json.RawMessage) Chunk {
	return NewChunk(run, ChunkToolOutput, ToolOutputPayload{Output: output, ToolCallID: toolCallID, ToolName: toolName})
}

// DataPayload is a chunk of a tool author's own type (data-*).
type DataPayload struct {
	Data      json.RawMessage `json:"data"`
	ID        string          `json:"id,omitempty"`        // chunks of one type and id replace each other at the reader
	Transient bool            `json:"transient,omitempty"` // not kept in the conversation
}

// DataChunk is a chunk of a tool author's own type.
func DataChunk(run string, t ChunkType, p DataPayload) Chunk { return NewChunk(run, t, p) }

// WarningChunk says that something was left out.
func WarningChunk(run, code, message string) Chunk {
	return NewChunk(run, ChunkWarning, WarningPayload{Code: code, Message: message})
}

// CallWarningChunk says that something about a call was left out.
func CallWarningChunk(run, toolCallID, code, message string) Chunk {
	return NewChunk(run, ChunkWarning, WarningPayload{Code: code, Message: message, ToolCallID: toolCallID})
}

// SuspendedChunk says that every unfinished call of the run waits for people.
func SuspendedChunk(run string, asks []string) Chunk {
	return NewChunk(run, ChunkSuspended, SuspendedPayload{Asks: asks})
}

// ResultChunk shows the result of a call. Its id is that of the fact, so a repeated one is dropped by readers. Args are
// shown where the result itself names none.
func ResultChunk(f CallFinished, args json.RawMessage, id string) Chunk {
	if len(f.Args) > 0 {
		args = f.Args
	}
	if len(args) == 0 {
		args = json.RawMessage(`{}`)
	}
	p := ToolResultPayload{ToolCallID: f.ToolCallID, ToolName: f.ToolName, Args: args, Outcome: f.Outcome, Started: f.Started}
	t := ChunkToolError
	switch f.Outcome {
	case OutcomeOK, OutcomeInvalid, OutcomeResponded:
		t, p.IsError = ChunkToolResult, f.Outcome == OutcomeInvalid
		if p.DataRef, p.Size = f.DataRef, f.Size; f.DataRef == "" {
			p.Result = orNull(f.Result)
		}
		p.ProviderMetadata = modelOutputMetadata(f.ModelOutput)
	case OutcomeDeclined, OutcomeExpired:
		t = ChunkToolOutputDenied
		p.Approval = &DeniedApproval{ID: f.ToolCallID, Reason: f.Reason}
		if f.Outcome == OutcomeExpired {
			p.Approval.Reason = firstOf(f.Reason, string(OutcomeExpired))
		}
	case OutcomeBlocked:
		if f.Result != nil {
			t, p.Result = ChunkToolResult, f.Result
		}
	default:
	}
	if t == ChunkToolError {
		p.Error = f.Error
		if p.Error == nil {
			p.Error = &ToolError{Name: string(f.Outcome), Message: errorText(&f)}
		}
	}
	c := NewChunk(f.RunID, t, p)
	c.ID = id
	return c
}

func modelOutputMetadata(o *ModelOutput) json.RawMessage {
	if o == nil {
		return nil
	}
	raw, err := Marshal(map[string]any{"mastra": map[string]any{"modelOutput": o}})
	if err != nil {
		return nil
	}
	return raw
}

// AskChunk shows an ask. Its id is that of the fact.
func AskChunk(a CallHeld, id string) Chunk {
	var metadata json.RawMessage
	if a.Display != nil {
		metadata = a.Display.Metadata
	}
	a = a.Shown()
	p := AskPayload{ToolCallID: a.ToolCallID, ToolName: a.ToolName, Args: a.Args, Ask: AskBrief{
		ToolCallID: a.ToolCallID, RunID: a.RunID, RootRunID: a.RootRunID, Path: a.Path, AgentID: a.AgentID,
		Round: a.Round, Kind: a.Kind, Fingerprint: a.Fingerprint, Reason: a.Reason.Text, ExpiresAt: a.ExpiresAt,
		Allowed: a.Allowed, Approvers: a.Approvers, Quorum: a.Quorum, Preview: a.Preview,
	}}
	t := ChunkToolCallSuspended
	switch {
	case a.Kind == AskApproval:
		t, p.ResumeSchema = ChunkToolCallApproval, approvalResumeSchemaText
	case len(a.ResumeSchema) > 0:
		p.ResumeSchema = string(a.ResumeSchema)
	}
	if a.Kind != AskApproval {
		p.SuspendPayload = a.SuspendPayload
	}
	c := NewChunk(a.RunID, t, p)
	c.ID, c.Metadata = id, metadata
	return c
}

// StepFinishChunk ends a step whose calls all have their results. Its id is derived from the step's message, so one
// that is published again is dropped. Shown are the arguments of a call as people may see them.
func StepFinishChunk(st *State, messageID, reason string, continued bool, shown func(CallState) json.RawMessage) Chunk {
	p := FinishPayload{
		MessageID: messageID, StepResult: StepResult{Reason: reason, IsContinued: continued},
		Output: FinishOutput{ToolCalls: []ToolCallPayload{}, Usage: st.Counters.Usage}, Metadata: FinishMetadata{Step: st.Step},
	}
	for _, c := range st.Calls {
		p.Output.ToolCalls = append(p.Output.ToolCalls, ToolCallPayload{
			ToolCallID: c.Planned.ToolCallID,
			ToolName:   c.Planned.ToolName, Args: shown(c),
		})
	}
	c := NewChunk(st.RunID, ChunkStepFinish, p)
	c.ID = messageID + "-step-finish"
	return c
}

// ObjectChunk shows a value that a run was asked for: so far, or the one that counts.
func ObjectChunk(run string, t ChunkType, value json.RawMessage) Chunk {
	return Chunk{Type: t, RunID: run, From: chunkFromAgent, Payload: value}
}

// EndChunks show the end of a run: step-finish and finish, error before them when it failed, or abort. The last one has
// the id of the fact; the others have ids derived from it.
func EndChunks(e RunEnded, id string) []Chunk {
	if e.Outcome == RunCancelled {
		c := NewChunk(e.RunID, ChunkAbort, struct{}{})
		c.ID = id
		return []Chunk{c}
	}
	p := FinishPayload{
		MessageID: e.MessageID, StepResult: StepResult{Reason: e.FinishReason, Limit: e.Limit},
		Output:   FinishOutput{ToolCalls: []ToolCallPayload{}, Usage: e.Usage},
		Metadata: FinishMetadata{Attempt: e.Attempt, Step: e.Step, Resumes: e.Resumes, UsedFallback: e.UsedFallback},
	}
	for _, t := range e.Background {
		if call, err := CallOf(e.RunID, t.C); err == nil {
			p.Metadata.Background = append(p.Metadata.Background, call.String())
		}
	}
	if e.Message != nil {
		p.Output.Text = e.Message.Text()
	}
	var out []Chunk
	if e.Error != nil {
		c := NewChunk(e.RunID, ChunkError, ErrorPayload{RunErrorBrief{Name: "Error", Message: e.Error.Message, Code: e.Error.Code}})
		c.ID = id + "-error"
		out = append(out, c)
	}
	if len(e.Object) > 0 {
		c := ObjectChunk(e.RunID, ChunkObjectResult, e.Object)
		c.ID = id + "-object"
		out = append(out, c)
	}
	if e.MessageID != "" {
		c := NewChunk(e.RunID, ChunkStepFinish, p)
		c.ID = id + "-step-finish"
		out = append(out, c)
	}
	c := NewChunk(e.RunID, ChunkFinish, p)
	c.ID = id
	return append(out, c)
}

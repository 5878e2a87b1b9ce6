package events

import (
	"encoding/json"
	"errors"
	"time"
)

// Effect says what running a tool a second time would do.
type Effect string

// Effects of tools. The zero value counts as effectful.
const (
	ReadOnly   Effect = "read_only"
	Idempotent Effect = "idempotent"
	Effectful  Effect = "effectful"
)

// Repeatable reports whether a call that was started may be started again without asking people.
func (e Effect) Repeatable() bool { return e == ReadOnly || e == Idempotent }

// CallReleased is the gate's signed permission to run exact bytes (call.released on call.<c>.go.<pool>.<tool>).
type CallReleased struct {
	Namespace         Namespace        `json:"namespace"`
	RunID             string           `json:"runId"`
	ToolCallID        string           `json:"toolCallId"`
	Round             int              `json:"round"`
	Pool              string           `json:"pool"`
	ToolID            string           `json:"toolId"`
	ToolVersion       string           `json:"toolVersion"`
	InputSchemaDigest string           `json:"inputSchemaDigest"`
	Effect            Effect           `json:"effect"`
	Args              string           `json:"args"` // the frozen bytes
	Fingerprint       string           `json:"fingerprint"`
	Follows           uint64           `json:"follows"` // sequence of the fact it follows; 0 for none
	AllowedBy         AllowedBy        `json:"allowedBy"`
	ToolName          string           `json:"toolName"`
	AgentID           string           `json:"agentId"`
	ThreadID          string           `json:"threadId,omitempty"`
	ResourceID        string           `json:"resourceId,omitempty"`
	RequestContext    json.RawMessage  `json:"requestContext,omitempty"`
	Resume            *Resume          `json:"resume,omitempty"`
	SuspendPayload    json.RawMessage  `json:"suspendPayload,omitempty"`
	Transform         *TransformPolicy `json:"transform,omitempty"` // of the run, what of it concerns the tool
	StartBy           time.Time        `json:"startBy"`             // without a claim by then the call ends as unavailable
	Timeout           Duration         `json:"timeout,omitempty"`
	Attempt           int              `json:"attempt,omitempty"` // attempts before this release
	Background        *CallBackground  `json:"background,omitempty"`
}

func (d CallReleased) expiry() time.Time { return d.StartBy }

// Deadline is when the call must have been claimed, by the clock of the server that stored the release: StartBy and the
// event's time are by that of the gate, and how far that one is off does not matter.
func (d CallReleased) Deadline(stored Event) time.Time {
	return stored.Stored.Add(d.StartBy.Sub(stored.Time))
}

// AllowedBy names what released a call: an answer, or the rules that held no objection.
type AllowedBy struct {
	Answer    uint64 `json:"answer,omitempty"`    // sequence of the answer
	Rules     string `json:"rules,omitempty"`     // digest of the rule sets that judged it, all together
	Rule      string `json:"rule,omitempty"`      // that let it pass, or held it until the answer
	Set       string `json:"set,omitempty"`       // of that rule
	SetDigest string `json:"setDigest,omitempty"` // of that set
	Grant     string `json:"grant,omitempty"`
}

// Resume wraps resume data, so that any value, null too, is told from none.
type Resume struct {
	Data json.RawMessage `json:"data"`
}

// CallClaimed says that a worker starts the call (call.claimed on call.<c>.claim).
type CallClaimed struct {
	ToolCallID string    `json:"toolCallId"`
	RunID      string    `json:"runId"`
	Round      int       `json:"round"`
	Attempt    int       `json:"attempt"` // from 1, over all rounds
	GoSeq      uint64    `json:"goSeq"`
	Worker     string    `json:"worker"` // id of its live key
	LeaseUntil time.Time `json:"leaseUntil"`
}

// Reasons of a suspension.
const (
	SuspendedByTool = "suspended"
	SuspendInDoubt  = "in_doubt"
)

// CallSuspended says that a tool suspended itself, or that an executor found the call in doubt (call.suspended).
type CallSuspended struct {
	ToolCallID     string          `json:"toolCallId"`
	RunID          string          `json:"runId"`
	Round          int             `json:"round"`
	Reason         string          `json:"reason"`
	SuspendPayload json.RawMessage `json:"suspendPayload,omitempty"`
	ResumeSchema   json.RawMessage `json:"resumeSchema,omitempty"` // overrides the tool's for this round
	ResumeLabel    string          `json:"resumeLabel,omitempty"`
	Attempt        int             `json:"attempt"`
	Worker         string          `json:"worker,omitempty"`
	Since          *time.Time      `json:"since,omitempty"` // in doubt: when the claim was stored
	Claim          *ClaimBrief     `json:"claim,omitempty"` // in doubt: whose
}

// ClaimBrief tells people who had started a call that is in doubt.
type ClaimBrief struct {
	By      string    `json:"by"`
	At      time.Time `json:"at"`
	Attempt int       `json:"attempt"`
}

// Outcome is how a call ended.
type Outcome string

// Outcomes of calls.
const (
	OutcomeOK          Outcome = "ok"
	OutcomeError       Outcome = "error"
	OutcomeInvalid     Outcome = "invalid"
	OutcomeUnknown     Outcome = "unknown"
	OutcomeUnavailable Outcome = "unavailable"
	OutcomeBlocked     Outcome = "blocked"
	OutcomeDeclined    Outcome = "declined"
	OutcomeExpired     Outcome = "expired"
	OutcomeResponded   Outcome = "responded"
	OutcomeCancelled   Outcome = "cancelled"
)

// CallFinished is the one outcome of a call (call.finished on call.<c>.result).
type CallFinished struct {
	ToolCallID  string          `json:"toolCallId"`
	RunID       string          `json:"runId"`
	ToolName    string          `json:"toolName,omitempty"`
	Round       int             `json:"round"`
	Outcome     Outcome         `json:"outcome"`
	Started     bool            `json:"started"` // the handler may have had effects
	Attempt     int             `json:"attempt,omitempty"`
	ClaimSeq    uint64          `json:"claimSeq,omitempty"`
	Worker      string          `json:"worker,omitempty"`
	Args        json.RawMessage `json:"args,omitempty"`    // the frozen arguments, when people have looked at them or edited them
	Result      json.RawMessage `json:"result,omitempty"`  // ok, invalid, responded, blocked with an output
	DataRef     string          `json:"dataref,omitempty"` // a result over MaxInline, as a blob; result is absent
	Size        int             `json:"size,omitempty"`    // of that result, bytes
	ModelOutput *ModelOutput    `json:"modelOutput,omitempty"`
	Error       *ToolError      `json:"error,omitempty"`
	Active      Duration        `json:"active,omitempty"`    // time that the handler took
	Usage       *Usage          `json:"usage,omitempty"`     // of a run that the call was delegated to
	Reason      string          `json:"reason,omitempty"`    // declined: the person's; blocked: which check
	BlockedBy   *AskReason      `json:"blockedBy,omitempty"` // the rule or hook
	Principal   string          `json:"principal,omitempty"`
	GrantID     string          `json:"grantId,omitempty"`
	Cancel      *CancelCause    `json:"cancel,omitempty"`
	// Loads are the keys of the tools that the model may call from its next turn on: only results of search_tools and
	// load_tool count, which the gate gives.
	Loads []string `json:"loads,omitempty"`
	// Foreign is the sequence of a fact that no service of Weir wrote and that this result therefore follows.
	Foreign uint64 `json:"foreign,omitempty"`
	// Display and Transcript are the outcome as it may be shown where a transform covers that target: the result or the error,
	// or that nothing may be shown of it. Absent, they are made when they are needed.
	Display       json.RawMessage `json:"display,omitempty"`
	DisplayFailed bool            `json:"displayFailed,omitempty"`
	Transcript    json.RawMessage `json:"transcript,omitempty"`
}

func (f CallFinished) ref() string { return f.DataRef }

// MaxInline is up to how many bytes a value stands where it belongs; a larger one is a blob.
const MaxInline = 256 << 10

// OutcomeDelayed keeps the outcome of a worker that came after its chain had gone on: evidence, never state
// (outcome.delayed, beside the chain).
type OutcomeDelayed struct {
	ToolCallID string          `json:"toolCallId"`
	RunID      string          `json:"runId"`
	Round      int             `json:"round"`
	Attempt    int             `json:"attempt"`
	ClaimSeq   uint64          `json:"claimSeq"`
	Worker     string          `json:"worker"`
	Outcome    Outcome         `json:"outcome,omitempty"` // empty: it had suspended itself
	Started    bool            `json:"started"`
	Result     json.RawMessage `json:"result,omitempty"`
	DataRef    string          `json:"dataref,omitempty"` // a result over MaxInline, as a blob
	Error      *ToolError      `json:"error,omitempty"`
}

func (d OutcomeDelayed) ref() string { return d.DataRef }

// Genuine reports whether a release names the namespace and the place where it stands, and its fingerprint is that of what it
// releases. Whether a gate has signed it is another question.
func (d CallReleased) Genuine(ns Namespace, at Place) error {
	call := at.CallID()
	switch {
	case d.Namespace != ns || d.RunID != call.Run || d.ToolCallID != call.String():
		return errors.New("the release names another call than its subject")
	case d.At(call) != at:
		return errors.New("the release names another pool or tool than its subject")
	}
	fp := Frozen{
		Namespace: d.Namespace, RunID: d.RunID, ToolCallID: d.ToolCallID, Round: d.Round, ToolID: d.ToolID,
		ToolVersion: d.ToolVersion, InputSchemaDigest: d.InputSchemaDigest, Args: []byte(d.Args),
	}.Fingerprint()
	if !SameDigest(fp, d.Fingerprint) {
		return errors.New("the fingerprint is not that of the arguments")
	}
	return nil
}

package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// SnapshotVersion is the version of snapshots and carried states that this release writes. It reads every earlier one.
const SnapshotVersion = 1

// ErrNewer says that a state was stored by a later release, which this one must not guess at.
var ErrNewer = errors.New("stored by a later release of Weir")

// Upgrade brings a state that an earlier release has stored to the form of this one, version by version: a release that
// changes the form says here what becomes of the one before. A state of a later release is refused.
func (s *State) Upgrade() error {
	switch {
	case s.V > SnapshotVersion:
		return fmt.Errorf("%w: version %d, this release reads up to %d", ErrNewer, s.V, SnapshotVersion)
	case s.V < 1:
		return fmt.Errorf("%w: a state of version %d", ErrBadEvent, s.V)
	}
	s.V = SnapshotVersion
	return nil
}

// Snapshot is the value of a suspended run in the bucket suspended: what a planner needs to go on, and what people
// are asked.
type Snapshot struct {
	State
	SuspendedAt time.Time `json:"suspendedAt"`
	Asks        []OpenAsk `json:"asks"`
	Writer      string    `json:"writer"` // id of the write, so that a writer knows its own after a lost ack
	Size        int       `json:"size"`
}

// OpenAsk is an ask as lists show it.
type OpenAsk struct {
	ToolCallID     string          `json:"toolCallId"`
	RunID          string          `json:"runId"`
	Path           []PathEntry     `json:"path"`
	AgentID        string          `json:"agentId"`
	Round          int             `json:"round"`
	Kind           AskKind         `json:"kind"`
	ToolName       string          `json:"toolName"`
	Title          string          `json:"title,omitempty"`
	Args           json.RawMessage `json:"args"`
	Transformed    bool            `json:"transformed,omitempty"` // arguments and payload are what a transform shows
	Fingerprint    string          `json:"fingerprint"`
	Allowed        []Decision      `json:"allowed"`
	Reason         AskReason       `json:"reason"`
	Approvers      []string        `json:"approvers,omitempty"`
	NotRequester   bool            `json:"notRequester,omitempty"`
	Signed         bool            `json:"signed,omitempty"`
	NoGrant        bool            `json:"noGrant,omitempty"`
	Quorum         *Quorum         `json:"quorum,omitempty"`
	EscalatedTo    []string        `json:"escalatedTo,omitempty"`
	Reminders      int             `json:"reminders,omitempty"`
	Preview        json.RawMessage `json:"preview,omitempty"`
	SuspendPayload json.RawMessage `json:"suspendPayload,omitempty"`
	ResumeSchema   json.RawMessage `json:"resumeSchema,omitempty"`
	Late           *OutcomeDelayed `json:"late,omitempty"`
	AskedAt        time.Time       `json:"askedAt"`
	ExpiresAt      time.Time       `json:"expiresAt"`
	Background     bool            `json:"background,omitempty"`
	Transcript     *AskDisplay     `json:"transcript,omitempty"` // of arguments and payload, for who reads the conversation
}

// Open is the ask as lists show it.
func (a CallHeld) Open() OpenAsk {
	a = a.Shown()
	return OpenAsk{
		Transformed: a.Transformed,
		ToolCallID:  a.ToolCallID, RunID: a.RunID, Path: a.Path, AgentID: a.AgentID, Round: a.Round, Kind: a.Kind,
		ToolName: a.ToolName, Title: a.Title, Args: a.Args, Fingerprint: a.Fingerprint, Allowed: a.Allowed,
		Reason: a.Reason, Approvers: a.Approvers, NotRequester: a.NotRequester, Signed: a.Signed, NoGrant: a.NoGrant,
		Quorum: a.Quorum, EscalatedTo: a.EscalatedTo, Reminders: a.Reminders, Preview: a.Preview,
		SuspendPayload: a.SuspendPayload, ResumeSchema: a.ResumeSchema,
		AskedAt: a.AskedAt, ExpiresAt: a.ExpiresAt, Background: a.Background != nil,
		Transcript: a.Transcript,
	}
}

// Live is what a process says about itself while it lives (registry, live.<service>.<id>).
type Live struct {
	Service string    `json:"service"`
	ID      string    `json:"id"`
	Pool    string    `json:"pool,omitempty"`
	Tools   []string  `json:"tools,omitempty"` // "<id>@<version>"
	Host    string    `json:"host,omitempty"`
	Since   time.Time `json:"since"`
	Version string    `json:"version,omitempty"`
	// Problems are what the process knows to be wrong, for people: rules that match nothing.
	Problems []string `json:"problems,omitempty"`
}

// DeliveryAbandoned keeps what a service had to give up, for people (delivery.abandoned, stream dead).
type DeliveryAbandoned struct {
	Service  string `json:"service"`
	Consumer string `json:"consumer"`
	Subject  string `json:"subject"`
	Seq      uint64 `json:"seq"`
	RunID    string `json:"runId,omitempty"`
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason"`
	Payload  string `json:"payload"`           // as it came, base64 when it is not text; empty: the blob of the dataref is it
	Base64   bool   `json:"base64,omitempty"`  //
	Command  string `json:"command,omitempty"` // what resolves it
}

package events

import (
	"crypto/sha256"
	"encoding/json"
	"strconv"
	"time"
)

// DecisionRequested is what a principal says about an ask (decision.requested, published to the inbox by anybody who
// may). The principal is the subject's token and the proof that goes with it, never a field.
type DecisionRequested struct {
	Decision    Decision        `json:"decision"`
	ToolCallID  string          `json:"toolCallId"`
	Round       *int            `json:"round,omitempty"`
	Fingerprint string          `json:"fingerprint,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Args        json.RawMessage `json:"args,omitempty"`       // edit
	Result      json.RawMessage `json:"result,omitempty"`     // respond
	ResumeData  json.RawMessage `json:"resumeData,omitempty"` // resume; null is a value
	ModelOutput *ModelOutput    `json:"modelOutput,omitempty"`
	Grant       *GrantTerms     `json:"grant,omitempty"`
	Groups      []string        `json:"groups,omitempty"` // counts only when a gateway signed

	// Of decisions of the planner's automatic resume alone (=auto): the token of the principal whose message holds the data,
	// and the run that the message started. The log must bear out both.
	OnBehalfOf string `json:"onBehalfOf,omitempty"`
	FromRun    string `json:"fromRun,omitempty"`
}

// AutoResumeID is the id of the decision that the message of a run brings to a suspended call. It is made of what it is
// about (a UUIDv8 of its digest), so a decision that is sent again is the same decision.
func AutoResumeID(run, toolCallID string, round int) string {
	sum := sha256.Sum256([]byte("weir.auto_resume.v1\x00" + run + "\x00" + toolCallID + "\x00" + strconv.Itoa(round)))
	u := [16]byte(sum[:16])
	return uuid(u, 8)
}

// DecisionRefused says why a decision did not count: as a fact beside the chain, and as a note to its sender
// (decision.refused).
type DecisionRefused struct {
	ToolCallID string    `json:"toolCallId"`
	RunID      string    `json:"runId"`
	EventID    string    `json:"eventId"`   // of the decision
	Principal  string    `json:"principal"` // token of the subject it came on
	Decision   Decision  `json:"decision,omitempty"`
	At         time.Time `json:"at"`
	InboxSeq   uint64    `json:"inboxSeq,omitempty"`
	Signed     *Signed   `json:"signed,omitempty"` // as it came: that it is signed proves nothing
	Error
}

// How the sender of a decision was verified (authtype).
const (
	AuthKey     = "key"     // its own signature
	AuthSubject = "subject" // the permission to publish on its subject; in weir dev only
	AuthGateway = "gateway" // a gateway's login, signed by the gateway
	AuthAuto    = "auto_resume"
	AuthTimer   = "timer"
)

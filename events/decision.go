package events

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"strconv"
	"time"
)

// DecisionRequested is what a principal says about an ask (decision.requested, published to the inbox by anybody who
// may). The principal is the subject's token and the proof that goes with it, never a field.
type DecisionRequested struct {
	Decision    Decision        `json:"decision"`
	ToolCallID  string          `json:"toolCallId,omitempty"` // absent where the subject names no call: the one that waits
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
	ToolCallID string    `json:"toolCallId,omitempty"` // absent when it met no single call
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

// States that a decision leads to.
const (
	DecisionPending  = "pending"  // a vote of several that are needed
	DecisionHeld     = "held"     // an edit that asks again
	DecisionReleased = "released" // the call runs
	DecisionFinished = "finished" // the call has its result
	DecisionSent     = "sent"     // stored, and no gate has said yet what became of it
)

// StateAfter is the state that a decision has led to when a fact of this kind has come after it in the call's chain.
func StateAfter(k Kind) string {
	switch k {
	case KindAsk:
		return DecisionHeld
	case KindResult:
		return DecisionFinished
	default: // released, and what comes of that
		return DecisionReleased
	}
}

// RoundOf is the round that a fact of a call names; 0 when it names none.
func RoundOf(fact Event) int {
	d, err := Data[struct {
		Round int `json:"round"`
	}](fact)
	if err != nil {
		return 0
	}
	return d.Round
}

// DecisionOutcome is what became of a decision that was not refused: what its sender is told, however it was sent.
type DecisionOutcome struct {
	Accepted   bool         `json:"accepted"`
	ToolCallID string       `json:"toolCallId,omitempty"` // absent while nobody has said which call was meant
	Round      int          `json:"round"`
	State      string       `json:"state,omitempty"` // empty after an edit when the sender may not read the log
	Answer     *AnswerBrief `json:"answer,omitempty"`
	Quorum     *Quorum      `json:"quorum,omitempty"`
	GrantID    string       `json:"grantId,omitempty"` // of the grant that the approval brought, when the sender may know it
}

// MarshalJSON writes accepted as null while nobody knows.
func (o DecisionOutcome) MarshalJSON() ([]byte, error) {
	type plain DecisionOutcome
	if o.State != DecisionSent {
		return Marshal(plain(o))
	}
	return Marshal(struct {
		Accepted *bool `json:"accepted"`
		plain
	}{plain: plain(o)})
}

// Brief is what senders of other decisions are told of an answer.
func (a CallAnswered) Brief() *AnswerBrief {
	return &AnswerBrief{Decision: a.Decision, Principal: a.Principal, At: a.At.Format(time.RFC3339Nano), Reason: a.Reason}
}

// Outcome is what the sender of the decision is told that became this answer. After an edit the state is open until the
// gate has judged the new arguments.
func (a CallAnswered) Outcome() *DecisionOutcome {
	o := &DecisionOutcome{Accepted: true, ToolCallID: a.ToolCallID, Round: a.Round, State: DecisionFinished, Answer: a.Brief()}
	switch {
	case a.Decision == Edit:
		o.State = ""
	case a.Decision.Releases():
		o.State = DecisionReleased
	}
	return o
}

// Decided is what a principal is told who decides a call that has this answer already.
func (a CallAnswered) Decided(principal string) *Error {
	e := Errorf(CodeAlreadyDecided, "call %s was already decided: %s by %s", a.ToolCallID, a.Decision,
		cmp.Or(a.Principal, "its deadline"))
	e.Answer, e.Same = a.Brief(), a.Principal == principal
	return e
}

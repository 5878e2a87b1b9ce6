package events

import (
	"encoding/json"
	"slices"
	"time"
)

// AskKind says what people are asked about a held call.
type AskKind string

// Kinds of asks.
const (
	AskApproval  AskKind = "approval"  // may it run?
	AskSuspended AskKind = "suspended" // its tool waits for data
	AskInDoubt   AskKind = "in_doubt"  // it was started, and nobody knows whether it happened
	AskClient    AskKind = "client"    // the client that asked for the run gives its result
	AskWait      AskKind = "wait"      // it waits for a time; the gate answers
	AskEvent     AskKind = "event"     // it waits for something to happen elsewhere
)

// Decision is what one principal says about an ask, and what counted in the end.
type Decision string

// Decisions. Expired is only ever the gate's own.
const (
	Approve Decision = "approve" // run exactly these bytes
	Decline Decision = "decline" // do not run
	Edit    Decision = "edit"    // judge these arguments in place of the model's
	Respond Decision = "respond" // do not run: this is the result
	ResumeD Decision = "resume"  // give the suspended tool this
	Retry   Decision = "retry"   // run once more what may have happened
	Expired Decision = "expired" // nobody decided in time
)

// What an ask does that expires. None of them lets the call run.
const (
	OnExpiryDecline  = "decline"  // its call ends as expired, and the run goes on
	OnExpiryFail     = "fail"     // its run ends as failed
	OnExpiryEscalate = "escalate" // its next stage begins, with as much time again
)

// Allowed are the decisions that an ask of this kind takes.
func (k AskKind) Allowed() []Decision {
	switch k {
	case AskApproval:
		return []Decision{Approve, Decline, Edit, Respond}
	case AskSuspended:
		return []Decision{ResumeD, Decline, Respond}
	case AskInDoubt:
		return []Decision{Retry, Respond, Decline}
	case AskClient:
		return []Decision{Respond, Decline}
	case AskEvent:
		return []Decision{Respond}
	default: // AskWait: nobody decides it, the gate answers when its timer fires
		return nil
	}
}

// Takes reports whether the ask takes this decision.
func (a CallHeld) Takes(d Decision) bool { return slices.Contains(a.Allowed, d) }

// KnownSince is since when people could know the question of an ask that is stored as fact: what is said before does not
// answer it.
func (a CallHeld) KnownSince(fact Event) time.Time {
	switch {
	case a.Since != nil:
		return *a.Since
	case fact.Carried:
		return a.AskedAt
	}
	return fact.Stored
}

// Releases reports whether a call with this answer may run.
func (d Decision) Releases() bool { return d == Approve || d == ResumeD || d == Retry }

// Votes reports whether this decision about the ask is only one of several that are needed. What stops a call, and what
// brings something of its own (edited arguments, a result, data), one person decides.
func (a CallHeld) Votes(d Decision) bool {
	return a.Quorum != nil && a.Quorum.Need > 1 && (d == Approve || d == Retry)
}

// CallHeld is the question to people about one call (call.held on call.<c>.ask).
type CallHeld struct {
	ToolCallID        string          `json:"toolCallId"`
	RunID             string          `json:"runId"`
	RootRunID         string          `json:"rootRunId"`
	Path              []PathEntry     `json:"path"`
	AgentID           string          `json:"agentId"`
	Round             int             `json:"round"`
	Kind              AskKind         `json:"kind"`
	ToolName          string          `json:"toolName"`
	ToolID            string          `json:"toolId"`
	ToolVersion       string          `json:"toolVersion"`
	ToolDigest        string          `json:"toolDigest"` // of the pinned manifest
	Title             string          `json:"title,omitempty"`
	InputSchemaDigest string          `json:"inputSchemaDigest"`
	Effect            Effect          `json:"effect"`
	Args              json.RawMessage `json:"args"`              // the frozen bytes; with a dataref as they may be shown
	DataRef           string          `json:"dataref,omitempty"` // the frozen bytes as a blob, when a field of them is secret
	Fingerprint       string          `json:"fingerprint"`
	Reason            AskReason       `json:"reason"`
	Rules             string          `json:"rules,omitempty"` // digest of the rule sets that judged it, all together
	Allowed           []Decision      `json:"allowed"`
	SuspendPayload    json.RawMessage `json:"suspendPayload,omitempty"`
	SuspendRef        string          `json:"suspendRef,omitempty"` // of the whole payload, when a part of it is secret
	ResumeSchema      json.RawMessage `json:"resumeSchema,omitempty"`
	Claim             *ClaimBrief     `json:"claim,omitempty"` // in doubt
	Approvers         []string        `json:"approvers,omitempty"`
	NotRequester      bool            `json:"notRequester,omitempty"`
	Signed            bool            `json:"signed,omitempty"` // the rule demands a signed decision
	Quorum            *Quorum         `json:"quorum,omitempty"`
	OnExpiry          string          `json:"onExpiry,omitempty"` // decline (default), fail, escalate
	Wait              Duration        `json:"wait,omitempty"`     // from one deadline to the next, when it escalates
	Escalate          []Stage         `json:"escalate,omitempty"` // that have not begun
	EscalatedTo       []string        `json:"escalatedTo,omitempty"`
	Remind            Duration        `json:"remind,omitempty"` // from one reminder to the next
	Reminders         int             `json:"reminders,omitempty"`
	NoGrant           bool            `json:"noGrant,omitempty"` // a rule wants a person each time
	Preview           json.RawMessage `json:"preview,omitempty"` // what the tool says that the call would do
	LastWords         *LastWords      `json:"lastWords,omitempty"`
	ArgsSize          int             `json:"argsSize,omitempty"`   // bytes of the frozen arguments
	ArgsDigest        string          `json:"argsDigest,omitempty"` // of them
	ThreadID          string          `json:"threadId,omitempty"`
	ResourceID        string          `json:"resourceId,omitempty"`
	Attempt           int             `json:"attempt,omitempty"` // attempts to execute so far
	AskedAt           time.Time       `json:"askedAt"`
	ExpiresAt         time.Time       `json:"expiresAt"`
	// Since is when the server stored the round's first ask, on those that repeat it: a decision counts from then on.
	Since *time.Time `json:"since,omitempty"`
	// Display is what lists and chunks show in place of arguments and payload, where a transform covers them.
	Display *AskDisplay `json:"display,omitempty"`
	// Transcript is what who reads the conversation is shown in place of arguments and payload, where a transform covers it.
	Transcript *AskDisplay `json:"transcript,omitempty"`
	// Background says that the call runs in the background: its run may go on, and end, while it is held after its start.
	Background *CallBackground `json:"background,omitempty"`
	// Transformed says, where an ask is shown and not stored, that its arguments and its payload are what Display says.
	Transformed bool `json:"transformed,omitempty"`
}

// AskDisplay is what may be shown of the values of an ask.
type AskDisplay struct {
	Args           json.RawMessage `json:"args"`
	SuspendPayload json.RawMessage `json:"suspendPayload,omitempty"`
	Metadata       json.RawMessage `json:"metadata,omitempty"` // of its chunk
}

// Shown is the ask with its values as they may be shown.
func (a CallHeld) Shown() CallHeld {
	if a.Display == nil {
		return a
	}
	a.Args, a.Transformed = a.Display.Args, true
	if a.SuspendPayload != nil && a.Display.SuspendPayload != nil {
		a.SuspendPayload = a.Display.SuspendPayload
	}
	a.Display = nil
	return a
}

// Stage is a part of an escalation: from its time on more people may decide, and are told.
type Stage struct {
	At       time.Time `json:"at"`
	To       []string  `json:"to"`                 // user:<id> or group:<id>
	OnExpiry string    `json:"onExpiry,omitempty"` // of the ask from this stage on
}

// LastWords is what the agent said before the call. It is the model's text: nobody has checked it, and no rule reads it.
type LastWords struct {
	Text      string `json:"text"`
	Truncated bool   `json:"truncated,omitempty"`
	Size      int    `json:"size,omitempty"`   // bytes of the whole text, when truncated
	Digest    string `json:"digest,omitempty"` // of the whole text, when truncated
}

func (a CallHeld) expiry() time.Time { return a.ExpiresAt }

func (a CallHeld) ref() string { return a.DataRef }

// AskReason says which rule held the call.
type AskReason struct {
	Rule   string `json:"rule,omitempty"`
	Set    string `json:"set,omitempty"`
	Digest string `json:"digest,omitempty"`
	Text   string `json:"text,omitempty"`
	Error  string `json:"error,omitempty"` // the rule could not be evaluated: therefore held
}

// Quorum says how many approvals are needed, and which there are.
type Quorum struct {
	Need  int         `json:"need"`
	Votes []VoteBrief `json:"votes,omitempty"`
}

// Has reports whether a principal has voted.
func (q *Quorum) Has(principal string) bool {
	return q != nil && slices.ContainsFunc(q.Votes, func(v VoteBrief) bool { return SamePrincipal(v.Principal, principal) })
}

// With is the quorum with these votes too, one of each principal, in the order in which they were cast.
func (q *Quorum) With(votes ...VoteBrief) *Quorum {
	if q == nil {
		return nil
	}
	all := &Quorum{Need: q.Need, Votes: slices.Clone(q.Votes)}
	for _, v := range votes {
		if !all.Has(v.Principal) {
			all.Votes = append(all.Votes, v)
		}
	}
	slices.SortStableFunc(all.Votes, func(a, b VoteBrief) int { return a.At.Compare(b.At) })
	return all
}

// VoteBrief is one vote as lists show it.
type VoteBrief struct {
	Principal string    `json:"principal"`
	Decision  Decision  `json:"decision"`
	At        time.Time `json:"at"`
}

// VoteCast is one of several decisions that a quorum needs: as a fact beside the chain, and as a note to its sender
// while more are needed (vote.cast).
type VoteCast struct {
	ToolCallID  string    `json:"toolCallId"`
	RunID       string    `json:"runId"`
	Round       int       `json:"round"`
	Decision    Decision  `json:"decision"`
	Fingerprint string    `json:"fingerprint"`
	Principal   string    `json:"principal"`
	AuthType    string    `json:"authtype,omitempty"`
	Groups      []string  `json:"groups,omitempty"`
	At          time.Time `json:"at"` // the server's time stamp of the decision
	Reason      string    `json:"reason,omitempty"`
	EventID     string    `json:"eventId"` // of the decision
	InboxSeq    uint64    `json:"inboxSeq"`
	Signed      *Signed   `json:"signed,omitempty"`
	Quorum      *Quorum   `json:"quorum,omitempty"` // in a note: how the ask stands
}

func (v VoteCast) auth() (id, kind string) { return v.Principal, v.AuthType }

// For reports whether the vote is one for what an ask asks.
func (v VoteCast) For(a CallHeld) bool {
	return v.ToolCallID == a.ToolCallID && v.Round == a.Round && a.Votes(v.Decision) && SameDigest(v.Fingerprint, a.Fingerprint)
}

// Tally is the quorum of an ask with the votes for it among these, and those that it has inside.
func (a CallHeld) Tally(votes []VoteCast) *Quorum {
	q := a.Quorum.With()
	for _, v := range votes {
		if v.For(a) {
			q = q.With(v.Brief())
		}
	}
	return q
}

// Brief is the vote as lists show it.
func (v VoteCast) Brief() VoteBrief {
	return VoteBrief{Principal: v.Principal, Decision: v.Decision, At: v.At}
}

// CallAnswered is the decision that counts (call.answered on call.<c>.answer).
type CallAnswered struct {
	ToolCallID  string          `json:"toolCallId"`
	RunID       string          `json:"runId"`
	Round       int             `json:"round"`
	Decision    Decision        `json:"decision"`
	Fingerprint string          `json:"fingerprint"`
	Principal   string          `json:"principal"` // empty when the gate answered for the deadline
	AuthType    string          `json:"authtype,omitempty"`
	At          time.Time       `json:"at"` // the server's time stamp of the decision
	Reason      string          `json:"reason,omitempty"`
	EventID     string          `json:"eventId,omitempty"` // of the decision
	InboxSeq    uint64          `json:"inboxSeq,omitempty"`
	Args        json.RawMessage `json:"args,omitempty"`   // edit: the new arguments
	Result      json.RawMessage `json:"result,omitempty"` // respond
	Resume      *Resume         `json:"resume,omitempty"`
	ModelOutput *ModelOutput    `json:"modelOutput,omitempty"`
	// Votes are those of a quorum. Reason, groups and signed may then stand in the last one's vote.cast alone.
	Votes  []VoteBrief `json:"votes,omitempty"`
	Groups []string    `json:"groups,omitempty"` // of the principal, when it decided
	Grant  *GrantTerms `json:"grant,omitempty"`  // the approval stands for calls like this one
	Rules  string      `json:"rules,omitempty"`
	Signed *Signed     `json:"signed,omitempty"`
	// DataRef is what the decision brought as a blob, when a field of it is secret: args, result or resume data, which
	// stand here as they may be shown.
	DataRef string `json:"dataref,omitempty"`
	// ModelRef is the model output as a blob, when the results of the tool hold secrets.
	ModelRef string `json:"modelRef,omitempty"`
}

func (a CallAnswered) ref() string { return a.DataRef }

func (a CallAnswered) auth() (id, kind string) { return a.Principal, a.AuthType }

package events

import (
	"cmp"
	"fmt"
	"time"
)

// Scopes of standing approvals. There is none wider than a thread.
const (
	ScopeRun    = "run"    // calls of one run
	ScopeThread = "thread" // calls of all runs in one thread of one resource
)

// Bounds of standing approvals, and what counts for those that say nothing. Each has an end in time and in uses.
const (
	DefaultGrantFor  = time.Hour
	MaxGrantFor      = 720 * time.Hour
	DefaultGrantUses = 10
	MaxGrantUses     = 1000
)

// GrantVersion is the version of standing approvals that this release writes. It uses none of a later one.
const GrantVersion = 1

// GrantTerms say how far a standing approval reaches.
type GrantTerms struct {
	Scope string   `json:"scope"`          // run or thread
	For   Duration `json:"for,omitempty"`  // from the decision on; default 1h, 720h at most
	Uses  int      `json:"uses,omitempty"` // calls that it releases; default 10, 1000 at most
	When  string   `json:"when,omitempty"` // CEL over args; empty: whatever the arguments
}

// Complete gives the terms with their defaults, or says what is wrong with them.
func (t GrantTerms) Complete() (GrantTerms, *Error) {
	t.For, t.Uses = cmp.Or(t.For, Duration(DefaultGrantFor)), cmp.Or(t.Uses, DefaultGrantUses)
	switch {
	case t.Scope != ScopeRun && t.Scope != ScopeThread:
		return t, badTerms("scope", "use run or thread, not %q", t.Scope)
	case t.For <= 0 || t.For > Duration(MaxGrantFor):
		return t, badTerms("for", "use a time of up to %v, not %v", MaxGrantFor, time.Duration(t.For))
	case t.Uses < 0 || t.Uses > MaxGrantUses:
		return t, badTerms("uses", "use 1 to %d, not %d", MaxGrantUses, t.Uses)
	}
	return t, nil
}

func badTerms(field, format string, args ...any) *Error {
	return &Error{
		Code: CodeInvalidRequest, Message: "the terms of the grant cannot be used",
		Issues: []Issue{{Field: field, Message: fmt.Sprintf(format, args...)}},
	}
}

// Grant is a standing approval (bucket grants).
type Grant struct {
	V          int         `json:"v"`
	ID         string      `json:"id"`
	AgentID    string      `json:"agentId"`
	ToolID     string      `json:"toolId"`
	RunID      string      `json:"runId,omitempty"`
	ThreadID   string      `json:"threadId,omitempty"`
	ResourceID string      `json:"resourceId,omitempty"`
	Terms      GrantTerms  `json:"terms"`
	GrantedBy  string      `json:"grantedBy"`
	AuthType   string      `json:"authtype,omitempty"` // how GrantedBy was verified
	Groups     []string    `json:"groups,omitempty"`   // of GrantedBy, at GrantedAt
	GrantedAt  time.Time   `json:"grantedAt"`
	ExpiresAt  time.Time   `json:"expiresAt"`
	ToolCallID string      `json:"toolCallId,omitempty"` // whose approval brought it
	Reason     string      `json:"reason,omitempty"`
	Signed     *Signed     `json:"signed,omitempty"`
	Revoked    *Revocation `json:"revoked,omitempty"`
}

// InForce reports whether the grant may be used at a moment, by the clock of the server.
func (g Grant) InForce(now time.Time) bool { return g.Revoked == nil && now.Before(g.ExpiresAt) }

// Covers reports whether the grant is for calls of this agent and tool in this run, or in this thread of this resource.
// The texts must be equal: absent is no thread.
func (g Grant) Covers(c CallHeld) bool {
	if g.AgentID != c.AgentID || g.ToolID != c.ToolID {
		return false
	}
	switch g.Terms.Scope {
	case ScopeRun:
		return g.RunID != "" && g.RunID == c.RunID
	case ScopeThread:
		return g.ThreadID != "" && g.ThreadID == c.ThreadID && g.ResourceID == c.ResourceID
	}
	return false
}

// Same reports whether two readings are of one grant: where it holds, what it allows, who gave it and when. Whether it was
// revoked in between is no part of that.
func (g Grant) Same(h Grant) bool {
	return g.ID == h.ID && g.AgentID == h.AgentID && g.ToolID == h.ToolID && g.RunID == h.RunID && g.ThreadID == h.ThreadID &&
		g.ResourceID == h.ResourceID && g.Terms == h.Terms && g.GrantedBy == h.GrantedBy && g.GrantedAt.Equal(h.GrantedAt)
}

// Revocation says who took a standing approval back. It stays in the grant's place, so that nothing brings it back.
type Revocation struct {
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// GrantRequested asks for a standing approval (grant.requested).
type GrantRequested struct {
	ID         string     `json:"id"`
	AgentID    string     `json:"agentId"`
	ToolID     string     `json:"toolId"`
	RunID      string     `json:"runId,omitempty"`
	ThreadID   string     `json:"threadId,omitempty"`
	ResourceID string     `json:"resourceId,omitempty"`
	Terms      GrantTerms `json:"terms"`
	Reason     string     `json:"reason,omitempty"`
	Groups     []string   `json:"groups,omitempty"` // count only when a gateway signed
}

// GrantRevoked takes a standing approval back (grant.revoked).
type GrantRevoked struct {
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"`
}

// GrantRefused tells the sender of one of the two why it did not count (grant.refused, a note).
type GrantRefused struct {
	ID      string `json:"id"`
	EventID string `json:"eventId"` // of the request
	Error
}

// GrantUsed is one use of a standing approval (grant.used), a fact keyed by the call.
type GrantUsed struct {
	ID         string    `json:"id"`
	ToolCallID string    `json:"toolCallId"`
	Number     int       `json:"number"` // from 1
	At         time.Time `json:"at"`
	Grant      Grant     `json:"grant"` // as it stood
}

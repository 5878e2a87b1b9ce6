package events

import "time"

// GrantTerms say how far a standing approval reaches.
type GrantTerms struct {
	Scope string   `json:"scope"` // run or thread
	For   Duration `json:"for,omitempty"`
	Uses  int      `json:"uses,omitempty"`
	When  string   `json:"when,omitempty"` // CEL over args
}

// Grant is a standing approval (bucket grants).
type Grant struct {
	V         int        `json:"v"`
	ID        string     `json:"id"`
	AgentID   string     `json:"agentId"`
	ToolID    string     `json:"toolId"`
	RunID     string     `json:"runId,omitempty"`
	ThreadID  string     `json:"threadId,omitempty"`
	Terms     GrantTerms `json:"terms"`
	GrantedBy string     `json:"grantedBy"`
	GrantedAt time.Time  `json:"grantedAt"`
	ExpiresAt time.Time  `json:"expiresAt"`
}

// GrantRequested asks for a standing approval (grant.requested).
type GrantRequested struct {
	ID       string     `json:"id"`
	AgentID  string     `json:"agentId"`
	ToolID   string     `json:"toolId"`
	RunID    string     `json:"runId,omitempty"`
	ThreadID string     `json:"threadId,omitempty"`
	Terms    GrantTerms `json:"terms"`
	Reason   string     `json:"reason,omitempty"`
}

// GrantRevoked takes a standing approval back (grant.revoked).
type GrantRevoked struct {
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"`
}

// GrantUsed is one use of a standing approval (grant.used), a fact keyed by the call.
type GrantUsed struct {
	ID         string    `json:"id"`
	ToolCallID string    `json:"toolCallId"`
	Number     int       `json:"number"` // from 1
	At         time.Time `json:"at"`
}

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
	Grant      Grant     `json:"grant"` // as it stood
}

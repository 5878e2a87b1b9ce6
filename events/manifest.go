package events

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Manifest is everything about a tool but its code (registry, tool.<id>, and by content def.<digest>).
type Manifest struct {
	ID                   string          `json:"id"`
	Version              string          `json:"version"`
	Title                string          `json:"title,omitempty"`
	Description          string          `json:"description"`
	InputSchema          json.RawMessage `json:"inputSchema"`
	OutputSchema         json.RawMessage `json:"outputSchema,omitempty"`
	SuspendSchema        json.RawMessage `json:"suspendSchema,omitempty"`
	ResumeSchema         json.RawMessage `json:"resumeSchema,omitempty"`
	RequestContextSchema json.RawMessage `json:"requestContextSchema,omitempty"`
	InputSchemaDigest    string          `json:"inputSchemaDigest"`
	Effect               Effect          `json:"effect"`
	Pool                 string          `json:"pool"`
	Timeout              Duration        `json:"timeout,omitempty"`      // of the handler; default 5m
	StartTimeout         Duration        `json:"startTimeout,omitempty"` // from release to claim; default 5m
	Expires              Duration        `json:"expires,omitempty"`      // of its asks; default 168h
	OnExpiry             string          `json:"onExpiry,omitempty"`     // decline (default) or fail
	MaxAttempts          int             `json:"maxAttempts,omitempty"`  // default 5
	Strict               bool            `json:"strict,omitempty"`
	RequireApproval      *Approval       `json:"requireApproval,omitempty"`
	ProviderOptions      json.RawMessage `json:"providerOptions,omitempty"`
	InputExamples        json.RawMessage `json:"inputExamples,omitempty"`
	ToModelOutput        json.RawMessage `json:"toModelOutput,omitempty"`
	Transform            json.RawMessage `json:"transform,omitempty"`
	Preview              json.RawMessage `json:"preview,omitempty"`
	Hooks                json.RawMessage `json:"hooks,omitempty"`
	Background           json.RawMessage `json:"background,omitempty"`
	MCP                  json.RawMessage `json:"mcp,omitempty"`
	Source               Source          `json:"source"`
}

// Source says where a tool's code is.
type Source struct {
	Kind   string `json:"kind"` // go, http, exec, nats, mcp, builtin, client or agent
	Server string `json:"server,omitempty"`
	Name   string `json:"name,omitempty"`
}

// DefaultPool is the pool of tools that name none.
const DefaultPool = "default"

// Approval says when a call needs approval: always, never, or when a CEL expression over tool, args, agent, run and
// context holds. In JSON it is true, false, or {"cel": "…"} or {"always": true}, with "inherit": true or without. A nil
// *Approval says nothing.
type Approval struct {
	Always bool
	When   string
	// Inherit: what an agent or a run asks for holds for the calls of its sub-agents too, beside what these ask for.
	Inherit bool
}

type approvalForm struct {
	CEL     string `json:"cel,omitempty"`
	Always  bool   `json:"always,omitempty"`
	Inherit bool   `json:"inherit,omitempty"`
}

// MarshalJSON writes the short form.
func (a Approval) MarshalJSON() ([]byte, error) {
	if a.When != "" || a.Inherit {
		return Marshal(approvalForm{a.When, a.Always, a.Inherit})
	}
	return json.Marshal(a.Always)
}

// UnmarshalJSON reads these forms; anything else is an error, so that none is taken for "never".
func (a *Approval) UnmarshalJSON(b []byte) error {
	var always bool
	if err := json.Unmarshal(b, &always); err == nil && string(bytes.TrimSpace(b)) != "null" {
		*a = Approval{Always: always}
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var form approvalForm
	if err := dec.Decode(&form); err != nil || (form.CEL == "") == !form.Always {
		return fmt.Errorf("approval must be true, false, {\"cel\": \"expression\"} or {\"always\": true}, not %.80s", b)
	}
	*a = Approval{Always: form.Always, When: form.CEL, Inherit: form.Inherit}
	return nil
}

// AgentDef is an agent as data (registry, agent.<id>, and by content def.<digest>).
type AgentDef struct {
	ID                  string            `json:"id"`
	Name                string            `json:"name,omitempty"`
	Description         string            `json:"description,omitempty"`
	Instructions        string            `json:"instructions,omitempty"`
	Model               string            `json:"model"`               // "<provider>/<model>"
	Fallbacks           []string          `json:"fallbacks,omitempty"` // models that are asked when it fails, in order
	Tools               map[string]string `json:"tools,omitempty"`     // key that the model sees → tool id
	Agents              map[string]string `json:"agents,omitempty"`
	Workflows           map[string]string `json:"workflows,omitempty"`
	ToolChoice          string            `json:"toolChoice,omitempty"`
	ActiveTools         *[]string         `json:"activeTools,omitempty"`
	RequireToolApproval *Approval         `json:"requireToolApproval,omitempty"`
	Limits              *Limits           `json:"limits,omitempty"`
	ModelSettings       json.RawMessage   `json:"modelSettings,omitempty"`
	ProviderOptions     json.RawMessage   `json:"providerOptions,omitempty"`

	Hooks Hooks `json:"hooks,omitempty"` // asked before each call; those of a run replace them by name

	// AutoResumeSuspendedTools lets messages of a thread answer what suspended tools of its earlier runs wait for.
	AutoResumeSuspendedTools bool `json:"autoResumeSuspendedTools,omitempty"`

	// ToolCallConcurrency is how many calls of a run execute at once; none: any number.
	ToolCallConcurrency Concurrency `json:"toolCallConcurrency,omitempty"`

	// Memory lets its runs recall what was said in their thread, and keep there what they say; nil: threads are but names.
	Memory *Memory `json:"memory,omitempty"`

	// ToolSearch lets its model find tools and load them.
	ToolSearch *ToolSearch `json:"toolSearch,omitempty"`

	// Transform says what may be shown of the calls of its runs.
	Transform *TransformPolicy `json:"transform,omitempty"`

	// BackgroundTasks says which of its calls may run in the background.
	BackgroundTasks *BackgroundTasks `json:"backgroundTasks,omitempty"`

	// Delegation says how it delegates to its sub-agents.
	Delegation *Delegation `json:"delegation,omitempty"`

	// StopWhen ends its runs beside their limits; PrepareStep changes single turns.
	StopWhen    []StopCondition `json:"stopWhen,omitempty"`
	PrepareStep []StepChange    `json:"prepareStep,omitempty"`

	// StructuredOutput asks its runs for a JSON value that fits a schema; nil: for text.
	StructuredOutput *StructuredOutput `json:"structuredOutput,omitempty"`
}

// Models are the ids of all models that runs of the agent may ask, unless a request names another.
func (a AgentDef) Models() []string {
	ids := append([]string{a.Model}, a.Fallbacks...)
	if a.StructuredOutput != nil && a.StructuredOutput.Model != "" {
		ids = append(ids, a.StructuredOutput.Model)
	}
	for _, c := range a.PrepareStep {
		if c.Model != "" {
			ids = append(ids, c.Model)
		}
	}
	return ids
}

// RuleAction is what a rule does with a call that it matches.
type RuleAction string

// Actions of rules.
const (
	RuleAllow RuleAction = "allow"
	RuleAsk   RuleAction = "ask"
	RuleBlock RuleAction = "block"
)

// RuleSet is a set of operators' rules (registry, rule.<name>). The first rule that matches counts.
type RuleSet struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Rule matches calls by tool, agent and expression.
type Rule struct {
	Name         string     `json:"name"`
	Tools        []string   `json:"tools,omitempty"`  // globs over tool ids; empty: all
	Agents       []string   `json:"agents,omitempty"` // globs over agent ids, =tool for calls without one; empty: all
	When         string     `json:"when,omitempty"`   // CEL; empty: always
	Action       RuleAction `json:"action"`
	Reason       string     `json:"reason,omitempty"`
	Approvers    []string   `json:"approvers,omitempty"`
	NotRequester bool       `json:"notRequester,omitempty"`
	Signed       bool       `json:"signed,omitempty"`
	Quorum       int        `json:"quorum,omitempty"`    // approvals of different principals that are needed; 0 is 1
	Decisions    []Decision `json:"decisions,omitempty"` // that people may take beside decline; empty: all that the ask takes
	Grants       *bool      `json:"grants,omitempty"`    // false: a person decides each call; nil is true
	Expires      Duration   `json:"expires,omitempty"`
	OnExpiry     string     `json:"onExpiry,omitempty"` // decline (default), fail or escalate
	Remind       Duration   `json:"remind,omitempty"`   // people are told again, each time after this long
	Escalate     []Escalate `json:"escalate,omitempty"`
}

// Escalate lets more people decide when nobody has for some time.
type Escalate struct {
	After    Duration `json:"after"` // since the call was asked about
	To       []string `json:"to"`
	OnExpiry string   `json:"onExpiry,omitempty"` // of the ask from then on: decline or fail; empty leaves it
}

// PrincipalDef says how decisions of a principal are verified (registry, principal.<id>).
type PrincipalDef struct {
	ID     string   `json:"id"`
	Auth   string   `json:"auth"`          // key, gateway or subject
	Key    string   `json:"key,omitempty"` // public nkey, for auth key
	Groups []string `json:"groups,omitempty"`
	Scopes []string `json:"scopes,omitempty"` // what it may do at all; absent: start, read and decide
}

// Scopes of a principal.
const (
	MayStart  = "start"
	MayRead   = "read"   // what may be shown, no raw values
	MayDecide = "decide" // also by votes, grants and messages that resume a tool
	MayAudit  = "audit"  // raw values too
	MayAdmin  = "admin"  // what people administer: dead letters, lag
)

// PrincipalScopes are all scopes that a principal may have.
func PrincipalScopes() []string { return []string{MayStart, MayRead, MayDecide, MayAudit, MayAdmin} }

// May reports whether a principal has one of the scopes. What its rules say about single calls comes on top. Scopes that are
// there and empty are none.
func (p PrincipalDef) May(scopes ...string) bool {
	has := p.Scopes
	if has == nil {
		has = []string{MayStart, MayRead, MayDecide}
	}
	return slices.ContainsFunc(scopes, func(s string) bool { return slices.Contains(has, s) })
}

// ScopesToStop are those of which one suffices to cancel a run or to revoke a grant. To stop is safe, so whoever may do more
// than look may do that.
func ScopesToStop() []string { return []string{MayStart, MayDecide, MayAdmin} }

// Lacks refuses a principal that has none of the scopes, of which it needs one.
func (p PrincipalDef) Lacks(scopes ...string) *Error {
	if p.May(scopes...) {
		return nil
	}
	return Errorf(CodeForbidden, "%s needs the scope %s, and has %s", p.ID, strings.Join(scopes, " or "),
		cmp.Or(strings.Join(p.Scopes, ", "), "none of them"))
}

// Digest is the content digest of a definition, "sha256:" and lower-case hex.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

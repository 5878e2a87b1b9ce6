package events

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// AgentPrefix stands before the key of a sub-agent in the name of the tool that delegates to it, and before the agent's own
// id in the id of that tool.
const AgentPrefix = "agent-"

// SourceAgent is the kind of tools that delegate to a sub-agent.
const SourceAgent = "agent"

// MaxDepth is how many runs may be in one path, the root included.
const MaxDepth = 8

// Bounds of delegations.
const (
	defaultContext = 10 // messages of the supervisor that a child is shown
	minChildSteps  = 3
)

// Delegation says how an agent delegates to its sub-agents.
type Delegation struct {
	// Context is what a child sees of the supervisor's conversation; nil: the last 10 messages of users and of the model.
	Context *DelegationContext `json:"context,omitempty"`
	// ShowToolResults lets the supervisor's model see what the tools of a child have brought, beside the child's answer.
	ShowToolResults bool `json:"includeSubAgentToolResultsInModelContext,omitempty"`
	// MaxDepth is how many runs may be in one path, the root included. Default 8.
	MaxDepth int `json:"maxDepth,omitempty"`
}

// DelegationContext chooses messages of a supervisor's conversation. Calls and their results are never among them.
type DelegationContext struct {
	LastN         *int     `json:"lastN,omitempty"`         // at most so many, the latest; default 10
	Roles         []string `json:"roles,omitempty"`         // default user and assistant
	IncludeSystem bool     `json:"includeSystem,omitempty"` // the supervisor's instructions too; default no
}

// Check says what of a delegation cannot be honoured.
func (d *Delegation) Check() (issues []Issue) {
	if d == nil {
		return nil
	}
	if d.MaxDepth < 0 || d.MaxDepth > MaxDepth {
		issues = append(issues, Issue{Field: "delegation.maxDepth", Message: fmt.Sprintf("want 1 to %d", MaxDepth)})
	}
	if d.Context == nil {
		return issues
	}
	if n := d.Context.LastN; n != nil && *n < 0 {
		issues = append(issues, Issue{Field: "delegation.context.lastN", Message: "want 0 or more messages"})
	}
	for _, role := range d.Context.Roles {
		if role != string(RoleUser) && role != string(RoleAssistant) {
			issues = append(issues, Issue{Field: "delegation.context.roles", Message: fmt.Sprintf("role %q: use user and assistant", role)})
		}
	}
	return issues
}

// Depth is how many runs may be in one path.
func (d *Delegation) Depth() int {
	if d == nil || d.MaxDepth == 0 {
		return MaxDepth
	}
	return d.MaxDepth
}

// Select are the messages of a supervisor that its child is shown, without calls and what they brought.
func (d *Delegation) Select(said []Message, instructions string) []Message {
	last, roles, system := defaultContext, []string{string(RoleUser), string(RoleAssistant)}, false
	if d != nil && d.Context != nil {
		if d.Context.LastN != nil {
			last = *d.Context.LastN
		}
		if len(d.Context.Roles) > 0 {
			roles = d.Context.Roles
		}
		system = d.Context.IncludeSystem
	}
	var shown []Message
	for _, m := range said {
		if !slices.Contains(roles, string(m.Role)) {
			continue
		}
		parts := slices.DeleteFunc(slices.Clone(m.Parts), func(p Part) bool {
			return p.Type == PartToolCall || p.Type == PartToolResult || p.Type == PartReasoning || p.Type == PartText && p.Text == ""
		})
		if len(parts) > 0 {
			shown = append(shown, Message{Role: m.Role, Parts: parts})
		}
	}
	shown = shown[max(0, len(shown)-last):]
	if system && instructions != "" {
		shown = slices.Insert(shown, 0, TextMessage(RoleSystem, instructions))
	}
	return shown
}

// DelegationInput are the arguments of a call that delegates.
type DelegationInput struct {
	Prompt       string `json:"prompt"`
	ThreadID     string `json:"threadId,omitempty"`     // continues this thread of the child, below the supervisor's
	ResourceID   string `json:"resourceId,omitempty"`   // changes nothing: whose data a child sees is not for a model to choose
	Instructions string `json:"instructions,omitempty"` // added to the child's own
	MaxSteps     int    `json:"maxSteps,omitempty"`     // never more than the child's own limit
}

// Steps are the model turns that the child is given; 0: as its own limits say.
func (d DelegationInput) Steps() int {
	if d.MaxSteps == 0 {
		return 0
	}
	return max(d.MaxSteps, minChildSteps)
}

// delegationInput is the schema of [DelegationInput].
const delegationInput = `{"type":"object","properties":{` +
	`"prompt":{"type":"string","minLength":1,"description":"What the agent is to do, with everything that it needs to know"},` +
	`"threadId":{"type":"string","maxLength":64,"description":"A thread of an earlier answer of this agent, to go on with it"},` +
	`"resourceId":{"type":"string","maxLength":256},` +
	`"instructions":{"type":"string","description":"Added to the agent's own instructions"},` +
	`"maxSteps":{"type":"integer","minimum":3,"description":"How many turns it may take"}},` +
	`"required":["prompt"],"additionalProperties":false}`

// AgentTool is the tool that delegates to a sub-agent that a supervisor holds under a key. Its version is the digest of the
// sub-agent's definition, so what is approved is this very agent.
func AgentTool(key string, sub AgentDef, digest string) Manifest {
	description := sub.Description
	if description == "" {
		description = "Agent: " + key
	}
	return Manifest{
		ID: AgentPrefix + sub.ID, Version: digest, Title: sub.Name, Description: description,
		InputSchema: json.RawMessage(delegationInput), InputSchemaDigest: Digest([]byte(delegationInput)),
		Effect: Idempotent, Pool: TokenAgentPool, Source: Source{Kind: SourceAgent, Name: sub.ID},
	}
}

// Delegates reports whether a tool delegates to a sub-agent.
func (m Manifest) Delegates() bool { return m.Source.Kind == SourceAgent }

// SubAgent is the agent to which a released call is delegated; empty when it is not.
func (d CallReleased) SubAgent() string {
	if d.Pool != TokenAgentPool {
		return ""
	}
	return strings.TrimPrefix(d.ToolID, AgentPrefix)
}

// At is where the release of a call stands.
func (d CallReleased) At(call CallID) Place {
	tool := d.ToolID
	if sub := d.SubAgent(); sub != "" {
		tool = sub
	}
	return d.Namespace.Go(call, d.Pool, tool)
}

// Delegated reports whether a fact is the release of a call to planners.
func (p Place) Delegated() bool { return p.Kind == KindGo && p.Pool == TokenAgentPool }

// ParentCall is the call that a run was delegated by; false for a run that nobody has delegated.
func ParentCall(run string) (CallID, bool) {
	call, err := ParseCallID(run)
	return call, err == nil
}

// CallWithin is the call of a run that is the call of this id, or through which that is below the run. An id that is neither
// stays as it is.
func CallWithin(run, toolCallID string) string {
	for at := toolCallID; ; {
		call, err := ParseCallID(at)
		switch {
		case err != nil:
			return toolCallID
		case call.Run == run:
			return at
		}
		at = call.Run
	}
}

// RootOf is the run at the top of the path of a run.
func RootOf(run string) string {
	root, _, _ := strings.Cut(run, "=")
	return root
}

// DelegationResult is the result of a call that delegates.
type DelegationResult struct {
	Text                string            `json:"text"`
	FinishReason        string            `json:"finishReason,omitempty"`
	SubAgentThreadID    string            `json:"subAgentThreadId"`
	SubAgentResourceID  string            `json:"subAgentResourceId"`
	SubAgentToolResults []ChildToolResult `json:"subAgentToolResults"`
	Usage               Usage             `json:"usage"`
}

// ChildToolResult is what one call of a child has brought, as far as it may be shown.
type ChildToolResult struct {
	ToolName   string          `json:"toolName"`
	ToolCallID string          `json:"toolCallId"`
	Result     json.RawMessage `json:"result"`
	Args       json.RawMessage `json:"args"`
	IsError    bool            `json:"isError"`
}

// TextOutput is a text as models are told it.
func TextOutput(text string) *ModelOutput { return textOutput(OutputText, text) }

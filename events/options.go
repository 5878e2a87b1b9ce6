package events

import "encoding/json"

// Options are the request's choices, frozen at the start and the same after a suspension or restart.
type Options struct {
	ToolID              string          `json:"toolId,omitempty"`
	Args                json.RawMessage `json:"args,omitempty"`
	Instructions        *string         `json:"instructions,omitempty"`
	Model               string          `json:"model,omitempty"`
	ToolChoice          string          `json:"toolChoice,omitempty"`
	ActiveTools         *[]string       `json:"activeTools,omitempty"`
	RequireToolApproval *Approval       `json:"requireToolApproval,omitempty"`
	Limits              *Limits         `json:"limits,omitempty"`
	Metadata            json.RawMessage `json:"metadata,omitempty"`
	Hooks               Hooks           `json:"hooks,omitempty"`

	ClientTools map[string]ClientTool `json:"clientTools,omitempty"`

	AutoResumeSuspendedTools *bool `json:"autoResumeSuspendedTools,omitempty"`

	ToolCallConcurrency Concurrency `json:"toolCallConcurrency,omitempty"`

	Transform *TransformPolicy `json:"transform,omitempty"`
}

// TransformPolicy says what may be shown of the calls of the run: the request's word, else that of the agent; nil when
// neither says anything.
func (o Options) TransformPolicy(agent AgentDef) *TransformPolicy {
	if o.Transform != nil {
		return o.Transform
	}
	return agent.Transform
}

// AutoResumes reports whether messages may answer suspended tools of the run's thread: the request's word, else that of
// the agent.
func (o Options) AutoResumes(agent AgentDef) bool {
	if o.AutoResumeSuspendedTools != nil {
		return *o.AutoResumeSuspendedTools
	}
	return agent.AutoResumeSuspendedTools
}

// ToolApproval is when calls of the run need approval, beside what each tool asks for: the request's word, else that of the
// agent; nil when neither says anything.
func (o Options) ToolApproval(agent AgentDef) *Approval {
	if o.RequireToolApproval != nil {
		return o.RequireToolApproval
	}
	return agent.RequireToolApproval
}

// Told is what the model is told first: the request's word, else that of the agent.
func (o Options) Told(agent AgentDef) string {
	if o.Instructions != nil {
		return *o.Instructions
	}
	return agent.Instructions
}

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
	ModelSettings       json.RawMessage `json:"modelSettings,omitempty"`
	ProviderOptions     json.RawMessage `json:"providerOptions,omitempty"`
	Metadata            json.RawMessage `json:"metadata,omitempty"`
	Hooks               Hooks           `json:"hooks,omitempty"`

	ClientTools map[string]ClientTool `json:"clientTools,omitempty"`

	AutoResumeSuspendedTools *bool `json:"autoResumeSuspendedTools,omitempty"`

	ToolCallConcurrency Concurrency `json:"toolCallConcurrency,omitempty"`

	Transform *TransformPolicy `json:"transform,omitempty"`

	StructuredOutput *StructuredOutput `json:"structuredOutput,omitempty"`
}

// Structured is what value the run ends with: the request's word, else that of the agent; nil when neither asks for one.
func (o Options) Structured(agent AgentDef) *StructuredOutput {
	if o.StructuredOutput != nil {
		return o.StructuredOutput
	}
	return agent.StructuredOutput
}

// Models are the models of the run, in the order in which they are asked: the request's alone, else that of the agent and its
// fallbacks.
func (o Options) Models(agent AgentDef) []string {
	if o.Model != "" {
		return []string{o.Model}
	}
	return append([]string{agent.Model}, agent.Fallbacks...)
}

// Settings are the model settings of the run: the request's over the agent's, by name.
func (o Options) Settings(agent AgentDef) (json.RawMessage, error) {
	return mergeObjects(agent.ModelSettings, o.ModelSettings, 1)
}

// Providers are the provider options of the run: the request's over the agent's, by provider and name.
func (o Options) Providers(agent AgentDef) (json.RawMessage, error) {
	return mergeObjects(agent.ProviderOptions, o.ProviderOptions, 2)
}

// mergeObjects are the members of two objects; of those that are in both the second's, or both merged down to the depth.
func mergeObjects(base, over json.RawMessage, depth int) (json.RawMessage, error) {
	a, b := membersOf(base), membersOf(over)
	switch {
	case len(over) == 0:
		return base, nil
	case depth == 0 || a == nil || b == nil:
		return over, nil
	}
	for name, value := range b {
		merged, err := mergeObjects(a[name], value, depth-1)
		if err != nil {
			return nil, err
		}
		a[name] = merged
	}
	return Marshal(a)
}

// membersOf are the members of an object; nil when it is none.
func membersOf(raw json.RawMessage) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if len(raw) == 0 || json.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
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

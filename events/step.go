package events

// StepFinished is one model turn: its message and the calls it asked for (step.finished on main.step.<n>).
type StepFinished struct {
	RunID        string        `json:"runId"`
	Step         int           `json:"step"`
	Attempt      int           `json:"attempt"`
	MessageID    string        `json:"messageId"`
	Message      Message       `json:"message"` // texts and reasoning; the calls stand apart
	Calls        []CallPlanned `json:"calls"`
	Usage        Usage         `json:"usage"`
	FinishReason string        `json:"finishReason"`
	Model        string        `json:"model"`
	Active       Duration      `json:"active,omitempty"` // time that the model took
	// Final says that the run ends once these calls have their results, and by which limit.
	Final string `json:"final,omitempty"`
}

// CallPlanned is a call as the model asked for it.
type CallPlanned struct {
	ToolCallID     string `json:"toolCallId"`
	ToolName       string `json:"toolName"`
	Args           string `json:"args"` // the model's text as it came
	ProviderCallID string `json:"providerCallId,omitempty"`
	Truncated      bool   `json:"truncated,omitempty"` // the turn was cut inside the arguments: never runs
}

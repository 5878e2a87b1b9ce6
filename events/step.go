package events

import "encoding/json"

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
	// AutoResume marks a turn that is none of the conversation: it has no calls and its message is empty.
	AutoResume *AutoResume `json:"autoResume,omitempty"`
	// Background are background calls of earlier steps whose results this turn has not seen.
	Background []OpenTask `json:"background,omitempty"`

	ObjectOutput // of a turn that waits for background calls only
}

// AutoResume is what a model found when it was asked whether the message of a run answers what suspended tools of the same
// thread wait for. The answers are what it may decide: a gate takes no other in the name of the sender.
type AutoResume struct {
	Asked   []string     `json:"asked"`            // toolCallIds of the calls that it was asked about
	Answers []AutoAnswer `json:"answers"`          // at most one for each of them
	Reason  string       `json:"reason,omitempty"` // why there are none
}

// AutoAnswer is the data that a message holds for one suspended call.
type AutoAnswer struct {
	ToolCallID  string          `json:"toolCallId"`
	Round       int             `json:"round"`
	Fingerprint string          `json:"fingerprint"`
	ResumeData  json.RawMessage `json:"resumeData"`
}

// CallPlanned is a call as the model asked for it.
type CallPlanned struct {
	ToolCallID     string `json:"toolCallId"`
	ToolName       string `json:"toolName"`
	Args           string `json:"args"` // the model's text as it came
	ProviderCallID string `json:"providerCallId,omitempty"`
	Truncated      bool   `json:"truncated,omitempty"` // the turn was cut inside the arguments: never runs

	// Withheld says that this turn was not given the tool, though the run has it: the call is one of an unknown tool.
	Withheld bool `json:"withheld,omitempty"`

	Background *CallBackground `json:"background,omitempty"` // it runs in the background
}

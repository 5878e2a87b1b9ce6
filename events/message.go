package events

import (
	"encoding/json"
	"strings"
)

// Role says who speaks in a message.
type Role string

// Roles of messages.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is one entry of a conversation.
type Message struct {
	ID    string `json:"id,omitempty"`
	Role  Role   `json:"role"`
	Parts []Part `json:"parts"`
}

// Types of parts.
const (
	PartText       = "text"
	PartReasoning  = "reasoning"
	PartToolCall   = "tool-call"
	PartToolResult = "tool-result"
	PartFile       = "file"
	PartRecalled   = "recalled" // in the place of messages that are a blob: what a run recalls of its thread
)

// Part is a piece of a message. Type says which fields are set.
type Part struct {
	Type string `json:"type"`

	Text      string `json:"text,omitempty"`      // text, reasoning
	Signature string `json:"signature,omitempty"` // reasoning: the provider's proof

	ToolCallID     string       `json:"toolCallId,omitempty"` // tool-call, tool-result
	ToolName       string       `json:"toolName,omitempty"`
	Args           string       `json:"args,omitempty"` // tool-call: JSON text
	ProviderCallID string       `json:"providerCallId,omitempty"`
	Output         *ModelOutput `json:"output,omitempty"` // tool-result: what the model is told
	IsError        bool         `json:"isError,omitempty"`

	MediaType string `json:"mediaType,omitempty"` // file
	URL       string `json:"url,omitempty"`
	Data      string `json:"data,omitempty"`    // base64
	DataRef   string `json:"dataref,omitempty"` // a blob: the data of a file, or a result whose output is not here
	Size      int    `json:"size,omitempty"`    // of that result, bytes
	Filename  string `json:"filename,omitempty"`

	State string `json:"state,omitempty"` // tool-result of a thread: how the call ended, see [StateResult]

	ProviderOptions json.RawMessage `json:"providerOptions,omitempty"`
}

// Types of what a model is told of a call's outcome.
const (
	OutputText      = "text"
	OutputJSON      = "json"
	OutputErrorText = "error-text"
	OutputContent   = "content"
)

// ModelOutput is what a model is told of a call's outcome.
type ModelOutput struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value"`
}

// TextMessage is a message of one text.
func TextMessage(role Role, text string) Message {
	return Message{Role: role, Parts: []Part{{Type: PartText, Text: text}}}
}

// Text is the text of the message's parts, joined.
func (m Message) Text() string {
	var b strings.Builder
	for _, p := range m.Parts {
		if p.Type == PartText {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// Prompt is what a start request says: a text or messages.
type Prompt []Message

// UnmarshalJSON accepts a text, which becomes one user message, or a list of messages.
func (p *Prompt) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*p = Prompt{TextMessage(RoleUser, text)}
		return nil
	}
	var list []Message
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*p = list
	return nil
}

package openai

import (
	"bytes"
	"encoding/json"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// chunk is one event of a streamed answer, or a whole answer that was not streamed. Servers that call themselves
// compatible differ in every field, so the types below read more than one form of each.
type chunk struct {
	Choices []choice        `json:"choices"`
	Usage   *usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`

	// Older servers put an error at the top: {"object":"error","message":"…","code":400}.
	Object string `json:"object"`
}

// failure is the error that an event tells instead of a piece of an answer, or nil.
func (c *chunk) failure(f adapter.Frame) *adapter.ProviderError {
	switch {
	case isValue(c.Error):
		return adapter.ErrorValue(c.Error)
	case c.Object == "error", f.Name == "error" && len(c.Choices) == 0:
		return adapter.ReadError(f.Data)
	default:
		for _, choice := range c.Choices {
			if isValue(choice.Error) {
				return adapter.ErrorValue(choice.Error)
			}
			if choice.FinishReason == "error" {
				return &adapter.ProviderError{}
			}
		}
		return nil
	}
}

// isValue tells an error from the empty forms of none that some servers send with every event.
func isValue(raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", `""`, "{}", "false":
		return false
	default:
		return true
	}
}

type choice struct {
	Index        int          `json:"index"`
	Delta        *delta       `json:"delta"`
	Message      *delta       `json:"message"` // of an answer that was not streamed
	FinishReason adapter.Text `json:"finish_reason"`

	Error json.RawMessage `json:"error"`
}

type delta struct {
	Content          adapter.Text `json:"content"`
	Refusal          adapter.Text `json:"refusal"`
	ReasoningContent adapter.Text `json:"reasoning_content"`
	Reasoning        adapter.Text `json:"reasoning"` // the same under its newer name
	ToolCalls        []callDelta  `json:"tool_calls"`
	FunctionCall     *function    `json:"function_call"` // the form before parallel calls
}

// thinking is the reasoning of a delta; servers that send both names send one text twice.
func (d *delta) thinking() string {
	if d.ReasoningContent != "" {
		return string(d.ReasoningContent)
	}
	return string(d.Reasoning)
}

// callDelta is a fragment of one tool call.
type callDelta struct {
	Index    adapter.Text `json:"index"` // a number, sometimes as text, sometimes missing
	ID       adapter.Text `json:"id"`
	Function *function    `json:"function"`
}

type function struct {
	Name      adapter.Text `json:"name"`
	Arguments args         `json:"arguments"`
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`

	PromptDetails *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails *struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (u *usage) events() events.Usage {
	if u == nil {
		return events.Usage{}
	}
	out := events.Usage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens, TotalTokens: u.TotalTokens}
	if u.PromptDetails != nil {
		out.CachedInputTokens = u.PromptDetails.Cached
	}
	if u.CompletionDetails != nil {
		out.ReasoningTokens = u.CompletionDetails.Reasoning
	}
	return adapter.Counted(out)
}

// args is a fragment of a call's arguments: text by the protocol, but some servers send the object itself. Its bytes
// are then kept as they came, numbers included.
type args string

func (a *args) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case '"':
		return json.Unmarshal(b, (*string)(a))
	case 'n':
		return nil
	default:
		var out bytes.Buffer
		if err := json.Compact(&out, b); err != nil {
			return err
		}
		*a = args(out.String())
		return nil
	}
}

package openai

import (
	"bytes"
	"encoding/json"

	"github.com/weirkeeper/weir/events"
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
func (c *chunk) failure(f frame) *apiError {
	var e apiError
	switch {
	case isValue(c.Error):
		e = errorValue(c.Error)
	case c.Object == "error", f.name == "error" && len(c.Choices) == 0:
		e = readError(f.data)
	default:
		for _, choice := range c.Choices {
			if isValue(choice.Error) {
				e = errorValue(choice.Error)
				return &e
			}
			if choice.FinishReason == "error" {
				return &e
			}
		}
		return nil
	}
	return &e
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
	Index        int    `json:"index"`
	Delta        *delta `json:"delta"`
	Message      *delta `json:"message"` // of an answer that was not streamed
	FinishReason text   `json:"finish_reason"`

	Error json.RawMessage `json:"error"`
}

type delta struct {
	Content          text        `json:"content"`
	Refusal          text        `json:"refusal"`
	ReasoningContent text        `json:"reasoning_content"`
	Reasoning        text        `json:"reasoning"` // the same under its newer name
	ToolCalls        []callDelta `json:"tool_calls"`
	FunctionCall     *function   `json:"function_call"` // the form before parallel calls
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
	Index    text      `json:"index"` // a number, sometimes as text, sometimes missing
	ID       text      `json:"id"`
	Function *function `json:"function"`
}

type function struct {
	Name      text `json:"name"`
	Arguments args `json:"arguments"`
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

func (u *usage) events() events.Usage {
	if u == nil {
		return events.Usage{}
	}
	out := events.Usage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens, TotalTokens: u.TotalTokens}
	if out.TotalTokens == 0 {
		out.TotalTokens = out.InputTokens + out.OutputTokens
	}
	return out
}

// text is a string that may also come as null, as a number, or as a list of parts with texts. What has no text in it
// is empty rather than an error: one odd field must not cost a turn.
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case '"':
		return json.Unmarshal(b, (*string)(t))
	case '[':
		var parts []struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(b, &parts) == nil {
			for _, p := range parts {
				*t += text(p.Text)
			}
		}
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		*t = text(b)
	}
	return nil
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

package openai

import (
	"bytes"
	"encoding/json"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// A turn has one text and one reasoning in this protocol.
const (
	textID      = "text-0"
	reasoningID = "reasoning-0"
)

// turn reads one answer.
type turn struct {
	calls   calls
	usage   *usage
	reason  agent.FinishReason // empty until the server gave one
	size    int                // of texts and arguments
	refused bool               // the model's refusal came in its own field
	done    bool               // the server said that nothing follows
}

// State: once there is a reason the answer is whole, and only the usage can be missing.
func (t *turn) State() (whole, done bool) { return t.reason != "", t.done }

// Take reads one frame.
func (t *turn) Take(f adapter.Frame, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	if string(bytes.TrimSpace(f.Data)) == "[DONE]" {
		t.done = true
		return parts, nil
	}
	var c chunk
	if err := json.Unmarshal(f.Data, &c); err != nil {
		if f.Name == "error" {
			return nil, adapter.ReadError(f.Data)
		}
		return nil, adapter.Unexpected(err)
	}
	if e := c.failure(f); e != nil {
		return nil, e
	}
	return t.takeChunk(&c, parts)
}

func (t *turn) takeChunk(c *chunk, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	if c.Usage != nil {
		t.usage = c.Usage // it grows, where more than one comes
	}
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue // nobody asked for a second answer
		}
		d := choice.Delta
		if d == nil {
			d = choice.Message
		}
		if d != nil {
			parts = t.takeDelta(d, parts)
		}
		if choice.FinishReason != "" {
			t.reason = finishReason(string(choice.FinishReason))
		}
	}
	if t.size > adapter.MaxTurn {
		return nil, adapter.TooLarge()
	}
	return parts, nil
}

func (t *turn) takeDelta(d *delta, parts []agent.ModelPart) []agent.ModelPart {
	say := func(kind agent.ModelPartType, id, s string) {
		if s != "" {
			t.size += len(s)
			parts = append(parts, agent.ModelPart{Type: kind, ID: id, Text: s})
		}
	}
	say(agent.PartReasoningDelta, reasoningID, d.thinking())
	say(agent.PartTextDelta, textID, string(d.Content))
	say(agent.PartTextDelta, textID, string(d.Refusal))
	t.refused = t.refused || d.Refusal != ""
	for _, fragment := range d.ToolCalls {
		if fragment.Function != nil {
			t.size += len(fragment.Function.Arguments)
		}
		parts = t.calls.add(fragment, parts)
	}
	if d.FunctionCall != nil {
		t.size += len(d.FunctionCall.Arguments)
		parts = t.calls.add(callDelta{Index: "function_call", Function: d.FunctionCall}, parts)
	}
	return parts
}

// Finish ends the calls that are whole and the turn. A refusal is told by its reason, whatever the server's was.
func (t *turn) Finish() ([]agent.ModelPart, *adapter.Request, error) {
	reason := t.reason
	switch {
	case reason == "":
		reason = agent.FinishUnknown
	case t.refused && reason == agent.FinishStop:
		reason = agent.FinishContentFilter
	}
	parts := t.calls.finish(reason, nil)
	return append(parts, agent.ModelPart{Type: agent.PartFinish, FinishReason: reason, Usage: t.usage.events()}), nil, nil
}

// finishReason is a server's reason in Weir's words.
func finishReason(s string) agent.FinishReason {
	switch s {
	case "stop", "eos", "end_turn":
		return agent.FinishStop
	case "length", "max_tokens", "model_length":
		return agent.FinishLength
	case "tool_calls", "function_call":
		return agent.FinishToolCalls
	case "content_filter":
		return agent.FinishContentFilter
	default:
		return agent.FinishOther
	}
}

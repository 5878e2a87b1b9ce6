package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/weirkeeper/weir/services/agent"
)

// maxTurn bounds the text and arguments of one turn. No model writes that much; a server that loops does.
const maxTurn = 16 << 20

// A turn has one text and one reasoning in this protocol.
const (
	textID      = "text-0"
	reasoningID = "reasoning-0"
)

// turn reads one answer.
type turn struct {
	client  *Client
	calls   calls
	usage   *usage
	reason  agent.FinishReason // empty until the server gave one
	size    int                // of texts and arguments
	refused bool               // the model's refusal came in its own field
	done    bool               // the server said that nothing follows
}

// read takes frames until the answer is over and hands on what each gives. emit returns false when nobody listens any
// more. A stream that ends without a reason and without its end mark was cut, and its error says so; once there is a
// reason the answer is whole, and only the usage can be missing.
func (t *turn) read(in *frames, emit func(agent.ModelPart) bool) error {
	var parts []agent.ModelPart
	for !t.done {
		f, err := in.next()
		if err != nil && t.reason != "" {
			break
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errCut
		}
		if err != nil {
			return err
		}
		if parts, err = t.take(f, parts[:0]); err != nil {
			return err
		}
		for _, p := range parts {
			if !emit(p) {
				return nil
			}
		}
	}
	for _, p := range t.finish() {
		if !emit(p) {
			return nil
		}
	}
	return nil
}

// take reads one frame.
func (t *turn) take(f frame, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	if string(bytes.TrimSpace(f.data)) == "[DONE]" {
		t.done = true
		return parts, nil
	}
	// The decoder would put U+FFFD in place of broken text, and arguments must not change unseen.
	if !utf8.Valid(f.data) {
		return nil, errors.New("the stream is not UTF-8")
	}
	var c chunk
	if err := json.Unmarshal(f.data, &c); err != nil {
		if f.name == "error" {
			return nil, t.client.inStream(readError(f.data))
		}
		return nil, fmt.Errorf("an event of the stream is not as expected: %w", err)
	}
	if e := c.failure(f); e != nil {
		return nil, t.client.inStream(*e)
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
	if t.size > maxTurn {
		return nil, fmt.Errorf("%w: the answer has over %d bytes", errFrame, maxTurn)
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

// finish ends the calls that are whole and the turn. A refusal is told by its reason, whatever the server's was.
func (t *turn) finish() []agent.ModelPart {
	reason := t.reason
	switch {
	case reason == "":
		reason = agent.FinishUnknown
	case t.refused && reason == agent.FinishStop:
		reason = agent.FinishContentFilter
	}
	parts := t.calls.finish(reason, nil)
	return append(parts, agent.ModelPart{Type: agent.PartFinish, FinishReason: reason, Usage: t.usage.events()})
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

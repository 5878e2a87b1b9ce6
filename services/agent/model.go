package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/weirkeeper/weir/events"
)

// Model is a language model.
type Model interface {
	// Stream asks for one turn. The parts of a call come in order (input start, deltas, end); calls may interleave.
	// The last part is the finish. An error ends the stream: a *ModelError says whether asking again may help.
	// A caller that stops reading ends the request.
	Stream(ctx context.Context, req ModelRequest) iter.Seq2[ModelPart, error]
}

// ModelRequest is what a model is asked. Its messages are well formed: each call is answered exactly once, in call
// order, in one message of role tool right after the message that holds the calls.
type ModelRequest struct {
	Model        string // the model's name without its provider
	Instructions string
	Messages     []events.Message
	Tools        []ModelTool
	ToolChoice   string // auto, none, required or tool:<name>; empty is auto
	// OutputSchema is the JSON Schema of the text with which the turn ends, unless it calls tools; none: any text. An adapter
	// asks for it as its provider takes it, else by what it tells the model: whoever reads the text checks it.
	OutputSchema json.RawMessage
	WebSearch    bool // the provider shall search the web itself; only a [WebSearcher] is asked to
	Settings     json.RawMessage
	// ProviderOptions are an object by provider.
	ProviderOptions json.RawMessage
	// IdempotencyKey is the same for every attempt to ask for the same turn.
	IdempotencyKey string
}

// ToolWebSearch is the id of the built-in tool that no executor runs: the provider of the model does, within the turn.
const ToolWebSearch = "web_search"

// WebSearcher is a model whose provider may search the web itself.
type WebSearcher interface {
	Model
	// WebSearch is the provider's own name for it, empty if this provider cannot.
	WebSearch() string
}

// ModelTool is what a model sees of a tool, and nothing else of it. Names are those of [SafeNames].
type ModelTool struct {
	Name            string
	Description     string
	InputSchema     json.RawMessage // in full; an adapter projects it to what its provider takes
	Strict          bool
	ProviderOptions json.RawMessage // an object by provider
	InputExamples   json.RawMessage // [{"input": {…}}]
}

// ModelPartType is a type of the parts that a model streams.
type ModelPartType string

// Types of model parts.
const (
	PartTextDelta      ModelPartType = "text-delta"
	PartReasoningDelta ModelPartType = "reasoning-delta"
	PartToolInputStart ModelPartType = "tool-input-start"
	PartToolInputDelta ModelPartType = "tool-input-delta"
	PartToolInputEnd   ModelPartType = "tool-input-end" // the arguments of the call are complete
	PartFinish         ModelPartType = "finish"
	PartWarning        ModelPartType = "warning"

	// What the provider's own tools do within the turn: people are shown it, and nobody executes it again. It comes whole.
	PartProviderCall   ModelPartType = "provider-call"
	PartProviderResult ModelPartType = "provider-result"
	PartSource         ModelPartType = "source" // where something that the model says is from
)

// ModelPart is one piece of a turn. Type says which fields are set.
type ModelPart struct {
	Type ModelPartType

	// Text of text-delta, reasoning-delta, tool-input-delta (a piece of the arguments' text) and warning; of source the title;
	// of provider-call the arguments and of provider-result the result, as JSON.
	Text string

	// ID tells the calls, texts and reasonings of one turn apart. The adapter makes it from their places, never from
	// ids of the provider, which may be missing or equal.
	ID             string
	ToolName       string // tool-input-start: the name as the model wrote it; provider-call and -result
	ProviderCallID string // tool-input-start: the provider's own id, empty if it gave none

	URL string // source

	Signature string // reasoning-delta: the provider's proof, sent back with the reasoning

	FinishReason FinishReason // finish
	Usage        events.Usage // finish
}

// FinishReason says why a turn ended. Calls decide whether tools run, not the reason.
type FinishReason string

// Reasons of the end of a turn.
const (
	FinishStop          FinishReason = "stop"
	FinishToolCalls     FinishReason = "tool-calls"
	FinishLength        FinishReason = "length"
	FinishContentFilter FinishReason = "content-filter"
	FinishError         FinishReason = "error"
	FinishOther         FinishReason = "other"
	FinishUnknown       FinishReason = "unknown" // the provider gave none
)

// ModelError is a failed request to a model.
type ModelError struct {
	Retryable bool          // asking again may help: overload, a fault of the provider, a lost connection, silence
	After     time.Duration // how long the provider asks to wait; zero if it does not say
	Status    int           // HTTP status; zero if there was no answer
	Err       error
}

// Error names the status and the cause.
func (e *ModelError) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("model: %v", e.Err)
	}
	return fmt.Sprintf("model: %d %s: %v", e.Status, http.StatusText(e.Status), e.Err)
}

// Unwrap gives the cause.
func (e *ModelError) Unwrap() error { return e.Err }

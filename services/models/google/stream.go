package google

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// chunk is one event of a stream.
type chunk struct {
	Candidates []struct {
		Index   int `json:"index"`
		Content *struct {
			Parts []json.RawMessage `json:"parts"`
		} `json:"content"`
		Grounding     *grounding   `json:"groundingMetadata"`
		FinishReason  adapter.Text `json:"finishReason"`
		FinishMessage adapter.Text `json:"finishMessage"`
	} `json:"candidates"`
	Prompt *struct {
		BlockReason  adapter.Text `json:"blockReason"`
		BlockMessage adapter.Text `json:"blockReasonMessage"`
	} `json:"promptFeedback"`
	Usage *usage          `json:"usageMetadata"`
	Error json.RawMessage `json:"error"`
}

// grounding is what Google's search was asked, and what an answer is from.
type grounding struct {
	Queries []string `json:"webSearchQueries"`
	Chunks  []struct {
		Web *struct {
			URI   string       `json:"uri"`
			Title adapter.Text `json:"title"`
		} `json:"web"`
	} `json:"groundingChunks"`
}

type usage struct {
	Prompt     int `json:"promptTokenCount"` // what came from the cache included
	Cached     int `json:"cachedContentTokenCount"`
	ToolPrompt int `json:"toolUsePromptTokenCount"`
	Candidates int `json:"candidatesTokenCount"`
	Thoughts   int `json:"thoughtsTokenCount"`
}

func (u *usage) events() events.Usage {
	if u == nil {
		return events.Usage{}
	}
	return adapter.Counted(events.Usage{
		InputTokens: u.Prompt + u.ToolPrompt, OutputTokens: u.Candidates + u.Thoughts,
		CachedInputTokens: u.Cached, ReasoningTokens: u.Thoughts,
	})
}

// saidPart is a piece of an answer.
type saidPart struct {
	Text      *string `json:"text"`
	Thought   bool    `json:"thought"`
	Signature string  `json:"thoughtSignature"`
	Inline    *blob   `json:"inlineData"`
	Call      *call   `json:"functionCall"`
}

// saidCall is a call of an answer. It comes whole.
type saidCall struct {
	part string // its id among the parts of this turn
	args string
	last bool // nothing came after it
}

// turn reads one answer.
type turn struct {
	pieces int    // texts, reasonings and calls so far
	open   string // the id of the text or reasoning that goes on
	calls  []*saidCall
	usage  *usage
	reason string // empty until Google gave one
	told   map[string]bool
	size   int
}

// State: the answer is whole when there is a reason. The stream has no other end mark.
func (t *turn) State() (whole, done bool) { return t.reason != "", false }

// Take reads one event, or a whole answer, which is a list of them.
func (t *turn) Take(f adapter.Frame, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	data := bytes.TrimSpace(f.Data)
	if !bytes.HasPrefix(data, []byte{'['}) {
		return t.take(data, parts)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, adapter.Unexpected(err)
	}
	for _, one := range list {
		var err error
		if parts, err = t.take(one, parts); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

func (t *turn) take(data []byte, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, adapter.Unexpected(err)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return nil, adapter.ErrorValue(c.Error)
	}
	if c.Usage != nil {
		t.usage = c.Usage // it grows
	}
	if c.Prompt != nil && c.Prompt.BlockReason != "" {
		why := strings.TrimSpace(string(c.Prompt.BlockReason + " " + c.Prompt.BlockMessage))
		return nil, &adapter.ProviderError{Code: adapter.CodeRefused, Message: adapter.Text("the prompt was blocked: " + why)}
	}
	for _, candidate := range c.Candidates {
		if candidate.Index != 0 {
			continue // nobody asked for a second answer
		}
		if candidate.Content != nil {
			for _, raw := range candidate.Content.Parts {
				var err error
				if parts, err = t.say(raw, parts); err != nil {
					return nil, err
				}
			}
		}
		parts = t.tellGrounding(candidate.Grounding, parts)
		if reason := string(candidate.FinishReason); reason != "" {
			t.reason = reason
			if err := failed(reason, string(candidate.FinishMessage)); err != nil {
				return nil, err
			}
		}
	}
	return parts, nil
}

// tellGrounding tells what Google's search did.
func (t *turn) tellGrounding(g *grounding, parts []agent.ModelPart) []agent.ModelPart {
	if g == nil {
		return parts
	}
	for _, query := range g.Queries {
		parts = t.tellSearch(query, parts)
	}
	for _, c := range g.Chunks {
		if c.Web != nil {
			parts = t.tellSource(c.Web.URI, string(c.Web.Title), parts)
		}
	}
	return parts
}

// tellSearch tells a search that Google has made, once.
func (t *turn) tellSearch(query string, parts []agent.ModelPart) []agent.ModelPart {
	args, err := events.Marshal(map[string]string{"query": query})
	if err != nil || !t.once("query "+query) {
		return parts
	}
	id := fmt.Sprintf("own-%d", len(t.told))
	return append(parts, agent.ModelPart{Type: agent.PartProviderCall, ID: id, ToolName: "google_search", Text: string(args)},
		agent.ModelPart{Type: agent.PartProviderResult, ID: id, ToolName: "google_search", Text: `{}`})
}

// tellSource tells where something that the model says is from, once.
func (t *turn) tellSource(uri, title string, parts []agent.ModelPart) []agent.ModelPart {
	if uri == "" || !t.once("source "+uri) {
		return parts
	}
	return append(parts, agent.ModelPart{Type: agent.PartSource, ID: fmt.Sprintf("source-%d", len(t.told)), URL: uri, Text: title})
}

// once reports whether something was not told yet: Google tells again with each event what it told before.
func (t *turn) once(what string) bool {
	if t.told == nil {
		t.told = map[string]bool{}
	}
	seen := t.told[what]
	t.told[what] = true
	return !seen
}

// failed is the error of a reason that means that there is no answer. What a model wrote malformed it may write well
// when it is asked again.
func failed(reason, message string) error {
	switch reason {
	case "MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL":
		return &adapter.ProviderError{Message: adapter.Text(strings.TrimSpace("the model's answer cannot be read: " + reason + " " + message))}
	case "MISSING_THOUGHT_SIGNATURE":
		return &adapter.ProviderError{Code: adapter.CodeRefused, Message: adapter.Text(strings.TrimSpace("the request is not as Google wants it: " + reason + " " + message))}
	default:
		return nil
	}
}

// say reads a part. Pieces of one text come one after the other; each signature begins a new one, for it is of what was
// before it alone.
func (t *turn) say(raw json.RawMessage, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	if t.size += len(raw); t.size > adapter.MaxTurn {
		return nil, adapter.TooLarge()
	}
	var p saidPart
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, adapter.Unexpected(err)
	}
	switch {
	case p.Call != nil:
		return t.sayCall(p, parts)
	case p.Text != nil && p.Thought:
		if *p.Text != "" || p.Signature != "" {
			proof := ""
			if p.Signature != "" {
				proof = signedThought + p.Signature
			}
			parts = append(parts, t.piece(agent.PartReasoningDelta, *p.Text, proof))
		}
	case p.Text != nil:
		if *p.Text != "" {
			parts = append(parts, t.piece(agent.PartTextDelta, *p.Text, ""))
		}
		if p.Signature != "" {
			parts = append(parts, t.own(signedText+p.Signature))
		}
	case p.Inline != nil:
		t.close()
		parts = append(parts, agent.ModelPart{Type: agent.PartWarning, Text: "the model made a file that is not kept: " + p.Inline.MIMEType})
	default:
		parts = t.sayOther(p, raw, parts)
	}
	return parts, nil
}

// sayOther reads a part that has nothing but a signature, or what Google's own tools do, or what is new.
func (t *turn) sayOther(p saidPart, raw json.RawMessage, parts []agent.ModelPart) []agent.ModelPart {
	o, err := adapter.ParseObject(raw)
	switch {
	case err != nil || len(o) == 0: // nothing
		return parts
	case len(o) == 1 && p.Signature != "":
		return append(parts, t.own(signedText+p.Signature))
	default:
		return append(parts, t.own(signedPart+string(raw)))
	}
}

// close ends the text or reasoning that goes on: the next one is another.
func (t *turn) close() { t.open = "" }

func (t *turn) next(kind string) string {
	t.pieces++
	for _, c := range t.calls {
		c.last = false
	}
	return fmt.Sprintf("%s-%d", kind, t.pieces-1)
}

func (t *turn) piece(kind agent.ModelPartType, text, proof string) agent.ModelPart {
	name := strings.TrimSuffix(string(kind), "-delta")
	if !strings.HasPrefix(t.open, name+"-") {
		t.open = t.next(name)
	}
	out := agent.ModelPart{Type: kind, ID: t.open, Text: text, Signature: proof}
	if proof != "" {
		t.close()
	}
	return out
}

// own is what only Google reads again, at this place of the turn.
func (t *turn) own(proof string) agent.ModelPart {
	t.close()
	return agent.ModelPart{Type: agent.PartReasoningDelta, ID: t.next("reasoning"), Signature: proof}
}

// sayCall reads a call. Its signature comes before it, with its number: a call has no place for it in a conversation.
func (t *turn) sayCall(p saidPart, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	t.close()
	if p.Signature != "" {
		parts = append(parts, t.own(fmt.Sprintf("%s%d:%s", signedCall, len(t.calls), p.Signature)))
	}
	c := &saidCall{part: t.next("call"), last: true}
	var args bytes.Buffer
	if raw := p.Call.Args; len(raw) > 0 && string(raw) != "null" {
		if err := json.Compact(&args, raw); err != nil {
			return nil, adapter.Unexpected(err)
		}
	}
	c.args = args.String()
	t.calls = append(t.calls, c)
	parts = append(parts, agent.ModelPart{Type: agent.PartToolInputStart, ID: c.part, ToolName: p.Call.Name, ProviderCallID: p.Call.ID})
	if c.args != "" {
		parts = append(parts, agent.ModelPart{Type: agent.PartToolInputDelta, ID: c.part, Text: c.args})
	}
	return parts, nil
}

// Finish ends the calls that are whole and the turn.
func (t *turn) Finish() ([]agent.ModelPart, *adapter.Request, error) {
	reason := finishReason(t.reason, len(t.calls) > 0)
	var parts []agent.ModelPart
	for _, c := range t.calls {
		if adapter.Whole(c.args, c.last, reason) {
			parts = append(parts, agent.ModelPart{Type: agent.PartToolInputEnd, ID: c.part})
		}
	}
	return append(parts, agent.ModelPart{Type: agent.PartFinish, FinishReason: reason, Usage: t.usage.events()}), nil, nil
}

// finishReason is Google's reason in Weir's words. Google has none for calls.
func finishReason(s string, calls bool) agent.FinishReason {
	switch s {
	case "":
		return agent.FinishUnknown
	case "STOP", "FUNCTION_CALL":
		if calls {
			return agent.FinishToolCalls
		}
		return agent.FinishStop
	case "MAX_TOKENS":
		return agent.FinishLength
	case "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT",
		"IMAGE_RECITATION":
		return agent.FinishContentFilter
	default:
		return agent.FinishOther
	}
}

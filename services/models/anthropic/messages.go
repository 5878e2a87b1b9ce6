package anthropic

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// message is a message of a request.
type message struct {
	Role    string `json:"role"`
	Content []any  `json:"content"` // blocks, or json.RawMessage of those that are sent back
}

// block is a piece of a message. Type says which fields are set.
type block struct {
	Type string `json:"type"`
	Text string `json:"text,omitempty"`

	Thinking  *string `json:"thinking,omitempty"`
	Signature string  `json:"signature,omitempty"`
	Data      string  `json:"data,omitempty"` // of redacted thinking

	ID    string          `json:"id,omitempty"`
	Name  string          `json:"name,omitempty"`
	Input json.RawMessage `json:"input,omitempty"`

	ToolUseID string `json:"tool_use_id,omitempty"`
	Content   any    `json:"content,omitempty"`
	IsError   bool   `json:"is_error,omitempty"`

	Source *source `json:"source,omitempty"`
	Title  string  `json:"title,omitempty"`

	CacheControl json.RawMessage `json:"cache_control,omitempty"`
}

// source is where a picture or a document is.
type source struct {
	Type      string `json:"type"` // base64, url, text
	MediaType string `json:"media_type,omitempty"`
	Data      string `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`
}

// Types of blocks.
const (
	blockText     = "text"
	blockThinking = "thinking"
	blockRedacted = "redacted_thinking"
	blockToolUse  = "tool_use"
)

// What the signature of a part of reasoning holds. It begins with the name of the protocol: no other provider may get it.
const (
	signedThinking = "anthropic:thinking:" // and Anthropic's signature of the text
	signedRedacted = "anthropic:redacted:" // and the encrypted text
	signedBlock    = "anthropic:block:"    // and a block of Anthropic's own tools, whole
)

// Roles of messages.
const (
	roleUser      = "user"
	roleAssistant = "assistant"
)

// messages writes the conversation; what its system messages say goes to the instructions, the only place that the
// protocol has for it. Messages of one role that follow each other are one.
func (w *writer) messages(entries []adapter.Entry) error {
	for _, e := range entries {
		role := roleUser
		var content []any
		var err error
		switch e.Role {
		case events.RoleSystem:
			w.addSystem(e)
		case events.RoleAssistant:
			role, content = roleAssistant, w.assistant(e)
		case events.RoleTool:
			content = w.results(e)
		default:
			content, err = w.user(e)
		}
		if err != nil {
			return err
		}
		w.say(role, content)
	}
	return nil
}

func (w *writer) say(role string, content []any) {
	if len(content) == 0 {
		return
	}
	if last := len(w.said) - 1; last >= 0 && w.said[last].Role == role {
		w.said[last].Content = append(w.said[last].Content, content...)
		return
	}
	w.said = append(w.said, message{Role: role, Content: content})
}

func (w *writer) addSystem(e adapter.Entry) {
	for _, p := range e.Parts {
		if p.Type == events.PartText && !blank(p.Text) {
			w.system = append(w.system, block{Type: blockText, Text: p.Text, CacheControl: w.cache(p.ProviderOptions)})
		}
	}
}

// assistant writes a turn as it came.
func (w *writer) assistant(e adapter.Entry) []any {
	var out []any
	for _, p := range e.Parts {
		switch p.Type {
		case events.PartText:
			if !blank(p.Text) {
				out = append(out, block{Type: blockText, Text: p.Text, CacheControl: w.cache(p.ProviderOptions)})
			}
		case events.PartReasoning:
			if b := reasoning(p.Text, p.Signature); b != nil {
				out = append(out, b)
			}
		case events.PartToolCall:
			out = append(out, block{
				Type: blockToolUse, ID: p.SentID, Name: p.ToolName, Input: json.RawMessage(p.Args), CacheControl: w.cache(p.ProviderOptions),
			})
		default: // files that a model made are no input of it
		}
	}
	return out
}

// reasoning is the block that a part of reasoning was, or nil when it was none of Anthropic's.
func reasoning(text, signature string) any {
	if sig, ok := strings.CutPrefix(signature, signedThinking); ok && sig != "" {
		return block{Type: blockThinking, Thinking: &text, Signature: sig}
	}
	if data, ok := strings.CutPrefix(signature, signedRedacted); ok && data != "" {
		return block{Type: blockRedacted, Data: data}
	}
	if raw, ok := strings.CutPrefix(signature, signedBlock); ok && json.Valid([]byte(raw)) {
		return json.RawMessage(raw)
	}
	return nil
}

// results writes the results of a turn's calls.
func (w *writer) results(e adapter.Entry) []any {
	out := make([]any, 0, len(e.Parts))
	for _, p := range e.Parts {
		b := block{
			Type: "tool_result", ToolUseID: p.SentID, CacheControl: w.cache(p.ProviderOptions),
			IsError: p.IsError || p.Output != nil && p.Output.Type == events.OutputErrorText,
		}
		var content []any
		text := true
		for _, c := range adapter.ResultContent(p.Output) {
			one, taken := media(c)
			switch {
			case c.IsText() && blank(c.Text):
				continue
			case c.IsText():
				one = block{Type: blockText, Text: c.Text}
			case !taken:
				w.r.WarnMedia(p, c)
			default:
				text = false
			}
			content = append(content, one)
		}
		switch {
		case len(content) == 0 && b.IsError: // an error must say something
			b.Content = "error"
		case len(content) == 1 && text:
			b.Content = content[0].(block).Text
		case len(content) > 0:
			b.Content = content
		}
		out = append(out, b)
	}
	return out
}

// user writes what a person said.
func (w *writer) user(e adapter.Entry) ([]any, error) {
	var out []any
	for _, p := range e.Parts {
		switch p.Type {
		case events.PartText:
			if !blank(p.Text) {
				out = append(out, block{Type: blockText, Text: p.Text, CacheControl: w.cache(p.ProviderOptions)})
			}
		case events.PartFile:
			c, err := adapter.FileContent(p.Part)
			if err != nil {
				return nil, err
			}
			b, taken := media(c)
			if !taken {
				w.r.Warn("a file that this model cannot take is not shown to it: %s", c.What())
			}
			b.CacheControl = w.cache(p.ProviderOptions)
			out = append(out, b)
		default: // reasoning and calls are not a user's
		}
	}
	return out, nil
}

var imageTypes = []string{"image/jpeg", "image/png", "image/gif", "image/webp"}

// media writes a picture or a document; or a placeholder for what this protocol does not take.
func media(c adapter.Content) (b block, taken bool) {
	if c.MediaType == "image/jpg" {
		c.MediaType = "image/jpeg"
	}
	from := &source{Type: "base64", MediaType: c.MediaType, Data: c.Data}
	if c.Data == "" {
		from = &source{Type: "url", URL: c.URL}
	}
	switch {
	case c.Data == "" && c.URL == "":
	case c.IsImage() && (c.Data == "" || slices.Contains(imageTypes, c.MediaType)):
		return block{Type: "image", Source: from}, true
	case c.MediaType == "application/pdf", c.MediaType == "" && c.Data == "":
		return block{Type: "document", Source: from, Title: c.Filename}, true
	case strings.HasPrefix(c.MediaType, "text/") && c.Data != "":
		if text, err := base64.StdEncoding.DecodeString(c.Data); err == nil && !blank(string(text)) {
			text := strings.ToValidUTF8(string(text), "\uFFFD")
			return block{Type: "document", Source: &source{Type: "text", MediaType: "text/plain", Data: text}, Title: c.Filename}, true
		}
	}
	return block{Type: blockText, Text: c.Placeholder()}, false
}

// blank tells texts that the protocol refuses.
func blank(s string) bool { return strings.TrimSpace(s) == "" }

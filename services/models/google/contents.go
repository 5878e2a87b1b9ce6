package google

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// content is a message of a request.
type content struct {
	Role  string `json:"role,omitempty"`
	Parts []any  `json:"parts"` // parts, or json.RawMessage of those that are sent back
}

// part is a piece of a message. One of its fields is set, beside the signature.
type part struct {
	Text      *string   `json:"text,omitempty"`
	Thought   bool      `json:"thought,omitempty"`
	Inline    *blob     `json:"inlineData,omitempty"`
	File      *file     `json:"fileData,omitempty"`
	Call      *call     `json:"functionCall,omitempty"`
	Response  *response `json:"functionResponse,omitempty"`
	Signature string    `json:"thoughtSignature,omitempty"`
}

type blob struct {
	MIMEType string `json:"mimeType"`
	Data     string `json:"data"`
	Name     string `json:"displayName,omitempty"`
}

type file struct {
	MIMEType string `json:"mimeType,omitempty"`
	URI      string `json:"fileUri"`
}

type call struct {
	ID   string          `json:"id,omitempty"`
	Name string          `json:"name"`
	Args json.RawMessage `json:"args,omitempty"`
}

type response struct {
	ID       string         `json:"id,omitempty"`
	Name     string         `json:"name"`
	Response map[string]any `json:"response"`
	Parts    []any          `json:"parts,omitempty"`
}

// Roles of messages.
const (
	roleUser  = "user"
	roleModel = "model"
)

// What the signature of a part of reasoning holds. It begins with the name of the protocol: no other provider may get it.
const (
	signedThought = "google:thought:" // and Google's signature of the text
	signedText    = "google:text:"    // and that of the text before it
	signedCall    = "google:call-"    // and the number of the call within the turn, a colon, and its signature
	signedPart    = "google:part:"    // and a part of Google's own tools, whole
)

// unsigned is what Google wants in place of the signature of a call that it did not make.
const unsigned = "skip_thought_signature_validator"

// contents writes the conversation; what its system messages say goes to the instructions, the only place that the
// protocol has for it.
func (w *writer) contents(entries []adapter.Entry) error {
	for _, e := range entries {
		c := content{Role: roleUser}
		var err error
		switch e.Role {
		case events.RoleSystem:
			if text := e.Text(); text != "" {
				w.system = append(w.system, part{Text: &text})
			}
		case events.RoleAssistant:
			c = content{Role: roleModel, Parts: w.model(e)}
		case events.RoleTool:
			c.Parts = w.results(e)
		default:
			c.Parts, err = w.user(e)
		}
		if err != nil {
			return err
		}
		if len(c.Parts) > 0 {
			w.said = append(w.said, c)
		}
	}
	return nil
}

// model writes a turn as it came.
func (w *writer) model(e adapter.Entry) []any {
	var out []any
	signatures := signaturesOf(e)
	calls := 0
	for _, p := range e.Parts {
		switch p.Type {
		case events.PartText:
			if p.Text != "" {
				out = append(out, part{Text: &p.Text})
			}
		case events.PartReasoning:
			if one := reasoning(p.Text, p.Signature); one != nil {
				out = append(out, one)
			}
		case events.PartToolCall:
			signature := signatures[calls]
			if signature == "" && calls == 0 && !w.old {
				signature = unsigned
			}
			calls++
			out = append(out, part{Call: &call{p.SentID, p.ToolName, json.RawMessage(p.Args)}, Signature: signature})
		default: // files that a model made are no input of it
		}
	}
	return out
}

// signaturesOf are the signatures of a turn's calls, by their number.
func signaturesOf(e adapter.Entry) map[int]string {
	out := map[int]string{}
	for _, p := range e.Parts {
		rest, ok := strings.CutPrefix(p.Signature, signedCall)
		if !ok || p.Type != events.PartReasoning {
			continue
		}
		var n int
		if at, signature, ok := strings.Cut(rest, ":"); ok {
			if _, err := fmt.Sscanf(at, "%d", &n); err == nil {
				out[n] = signature
			}
		}
	}
	return out
}

// reasoning is the part that a part of reasoning was, or nil when it was none of Google's or is elsewhere.
func reasoning(text, signature string) any {
	if s, ok := strings.CutPrefix(signature, signedThought); ok {
		return part{Text: &text, Thought: true, Signature: s}
	}
	if s, ok := strings.CutPrefix(signature, signedText); ok {
		empty := ""
		return part{Text: &empty, Signature: s}
	}
	if raw, ok := strings.CutPrefix(signature, signedPart); ok && json.Valid([]byte(raw)) {
		return json.RawMessage(raw)
	}
	return nil
}

// results writes the results of a turn's calls. Pictures belong to the result since Gemini 3, and follow the results
// before.
func (w *writer) results(e adapter.Entry) []any {
	var out, after []any
	for _, p := range e.Parts {
		r := &response{ID: p.SentID, Name: p.ToolName}
		var lines []string
		for _, c := range adapter.ResultContent(p.Output) {
			switch {
			case c.IsText():
				lines = append(lines, c.Text)
			case c.Data == "" || c.MediaType == "":
				lines = append(lines, c.Placeholder())
				w.r.WarnMedia(p, c)
			case w.old:
				after = append(after, part{Inline: &blob{MIMEType: c.MediaType, Data: c.Data}})
			default:
				r.Parts = append(r.Parts, part{Inline: &blob{c.MediaType, c.Data, c.Filename}})
			}
		}
		r.Response = said(p, strings.Join(lines, "\n"))
		out = append(out, part{Response: r})
	}
	return append(out, after...)
}

// said is what a result says: JSON as it is, and anything else as a text; of an error under its own name.
func said(p adapter.Part, text string) map[string]any {
	if p.IsError || p.Output != nil && p.Output.Type == events.OutputErrorText {
		return map[string]any{"error": text}
	}
	if p.Output != nil && p.Output.Type == events.OutputJSON {
		if raw := bytes.TrimSpace(p.Output.Value); json.Valid(raw) {
			return map[string]any{"output": json.RawMessage(raw)}
		}
	}
	return map[string]any{"output": text}
}

// user writes what a person said.
func (w *writer) user(e adapter.Entry) ([]any, error) {
	var out []any
	for _, p := range e.Parts {
		switch p.Type {
		case events.PartText:
			if p.Text != "" {
				out = append(out, part{Text: &p.Text})
			}
		case events.PartFile:
			c, err := adapter.FileContent(p.Part)
			if err != nil {
				return nil, err
			}
			out = append(out, w.media(c))
		default: // reasoning and calls are not a user's
		}
	}
	return out, nil
}

// media writes a picture, a recording, a film or a document.
func (w *writer) media(c adapter.Content) part {
	switch {
	case c.Data != "" && c.MediaType != "":
		return part{Inline: &blob{MIMEType: c.MediaType, Data: c.Data}}
	case c.Data == "" && c.URL != "":
		return part{File: &file{c.MediaType, c.URL}}
	}
	w.r.Warn("a file that this model cannot take is not shown to it: %s", c.What())
	text := c.Placeholder()
	return part{Text: &text}
}

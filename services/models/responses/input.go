package responses

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// item is a piece of a conversation. Type says which fields are set.
type item struct {
	Type    string  `json:"type"`
	Role    string  `json:"role,omitempty"`
	Content []piece `json:"content,omitempty"`

	ID        string   `json:"id,omitempty"`
	Summary   *[]piece `json:"summary,omitempty"`
	Encrypted string   `json:"encrypted_content,omitempty"`

	CallID    string `json:"call_id,omitempty"`
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments,omitempty"`
	Output    any    `json:"output,omitempty"` // a text or pieces
}

// piece is a text, a picture or a document.
type piece struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	ImageURL string `json:"image_url,omitempty"`
	Filename string `json:"filename,omitempty"`
	FileData string `json:"file_data,omitempty"`
	FileURL  string `json:"file_url,omitempty"`
	Refusal  string `json:"refusal,omitempty"`
}

// Types of items and pieces.
const (
	itemMessage   = "message"
	itemReasoning = "reasoning"
	itemCall      = "function_call"
	itemOutput    = "function_call_output"

	pieceInput   = "input_text"
	pieceOutput  = "output_text"
	pieceSummary = "summary_text"
)

// What the signature of a part of reasoning holds. It begins with the name of the protocol: no other provider may get it.
const (
	signedReasoning = "openai:reasoning:" // and {"id", "encrypted_content"}
	signedItem      = "openai:item:"      // and an item of OpenAI's own tools, whole
)

// input writes the conversation.
func (w *writer) input(entries []adapter.Entry) ([]any, error) {
	items := []any{}
	for _, e := range entries {
		switch e.Role {
		case events.RoleSystem:
			if text := e.Text(); text != "" {
				items = append(items, item{Type: itemMessage, Role: "system", Content: []piece{{Type: pieceInput, Text: text}}})
			}
		case events.RoleAssistant:
			items = append(items, assistant(e)...)
		case events.RoleTool:
			for _, p := range e.Parts {
				items = append(items, item{Type: itemOutput, CallID: p.SentID, Output: w.result(p)})
			}
		default:
			content, err := user(e)
			if err != nil {
				return nil, err
			}
			if len(content) > 0 {
				items = append(items, item{Type: itemMessage, Role: "user", Content: content})
			}
		}
	}
	return items, nil
}

// assistant writes a turn as it came.
func assistant(e adapter.Entry) []any {
	var out []any
	for _, p := range e.Parts {
		switch p.Type {
		case events.PartText:
			if p.Text != "" {
				out = append(out, item{Type: itemMessage, Role: "assistant", Content: []piece{{Type: pieceOutput, Text: p.Text}}})
			}
		case events.PartReasoning:
			if thought := reasoning(p.Text, p.Signature); thought != nil {
				out = append(out, thought)
			}
		case events.PartToolCall:
			out = append(out, item{Type: itemCall, CallID: p.SentID, Name: p.ToolName, Arguments: p.Args})
		default: // files that a model made are no input of it
		}
	}
	return out
}

// reasoning is the item that a part of reasoning was, or nil when it was none of OpenAI's.
func reasoning(text, signature string) any {
	if raw, ok := strings.CutPrefix(signature, signedItem); ok && json.Valid([]byte(raw)) {
		return json.RawMessage(raw)
	}
	raw, ok := strings.CutPrefix(signature, signedReasoning)
	var proof struct {
		ID        string `json:"id"`
		Encrypted string `json:"encrypted_content"`
	}
	if !ok || json.Unmarshal([]byte(raw), &proof) != nil || proof.Encrypted == "" {
		return nil // what is not stored is known by its encrypted content alone
	}
	summary := []piece{}
	if text != "" {
		summary = append(summary, piece{Type: pieceSummary, Text: text})
	}
	return item{Type: itemReasoning, ID: proof.ID, Summary: &summary, Encrypted: proof.Encrypted}
}

// user writes what a user says and shows.
func user(e adapter.Entry) ([]piece, error) {
	var out []piece
	for _, p := range e.Parts {
		switch p.Type {
		case events.PartText:
			out = append(out, piece{Type: pieceInput, Text: p.Text})
		case events.PartFile:
			c, err := adapter.FileContent(p.Part)
			if err != nil {
				return nil, err
			}
			out = append(out, media(c))
		default: // reasoning and calls are not a user's
		}
	}
	return out, nil
}

// media writes a picture or a document.
func media(c adapter.Content) piece {
	switch {
	case c.IsImage():
		return piece{Type: "input_image", ImageURL: c.DataURL()}
	case c.Data == "":
		return piece{Type: "input_file", FileURL: c.URL}
	default:
		return piece{Type: "input_file", Filename: cmp.Or(c.Filename, "file"), FileData: c.DataURL()}
	}
}

// result is what a model is told of a call: a text, unless there is something to be seen.
func (w *writer) result(p adapter.Part) any {
	content := adapter.ResultContent(p.Output)
	var out []piece
	var lines []string
	seen := false
	for _, c := range content {
		switch {
		case c.IsText():
			out = append(out, piece{Type: pieceInput, Text: c.Text})
			lines = append(lines, c.Text)
		case c.IsImage() || c.MediaType == "application/pdf":
			out, seen = append(out, media(c)), true
		default:
			out = append(out, piece{Type: pieceInput, Text: c.Placeholder()})
			lines = append(lines, c.Placeholder())
			w.r.WarnMedia(p, c)
		}
	}
	if seen {
		return out
	}
	return strings.Join(lines, "\n")
}

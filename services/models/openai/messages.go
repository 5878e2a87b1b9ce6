package openai

import (
	"cmp"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// wireMessage is a message of a request. Content is a text, a list of parts, or absent.
type wireMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content,omitempty"`
	ToolCalls  []wireCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type wireCall struct {
	ID       string           `json:"id"`
	Type     string           `json:"type"`
	Function wireCallFunction `json:"function"`
}

type wireCallFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// messagesOf writes the instructions and the conversation. This protocol takes text only as a result and has no mark
// for errors.
func messagesOf(r *adapter.Request, req agent.ModelRequest, told string) ([]wireMessage, error) {
	entries, err := adapter.Transcript(req.Messages)
	if err != nil {
		return nil, err
	}
	var out []wireMessage
	if told != "" {
		out = append(out, wireMessage{Role: "system", Content: told})
	}
	for _, e := range entries {
		switch e.Role {
		case events.RoleSystem:
			out = append(out, wireMessage{Role: "system", Content: e.Text()})
		case events.RoleAssistant:
			if w := assistant(e); w.Content != nil || w.ToolCalls != nil {
				out = append(out, w)
			}
		case events.RoleTool:
			for _, p := range e.Parts {
				out = append(out, wireMessage{Role: "tool", ToolCallID: p.SentID, Content: adapter.ResultText(r, p)})
			}
		default:
			content, err := userContent(e)
			if err != nil {
				return nil, err
			}
			out = append(out, wireMessage{Role: "user", Content: content})
		}
	}
	return out, nil
}

// assistant writes a turn: its text and its calls. Reasoning has no place in this protocol, and a turn of nothing else
// is left out.
func assistant(e adapter.Entry) wireMessage {
	w := wireMessage{Role: "assistant"}
	if text := e.Text(); text != "" {
		w.Content = text
	}
	for _, p := range e.Parts {
		if p.Type == events.PartToolCall {
			w.ToolCalls = append(w.ToolCalls, wireCall{
				ID: p.SentID, Type: "function", Function: wireCallFunction{Name: p.ToolName, Arguments: p.Args},
			})
		}
	}
	return w
}

// userContent is a text when there is nothing else, and a list of parts otherwise.
func userContent(e adapter.Entry) (any, error) {
	var parts []any
	media := false
	for _, p := range e.Parts {
		switch p.Type {
		case events.PartText:
			parts = append(parts, map[string]string{"type": "text", "text": p.Text})
		case events.PartFile:
			c, err := adapter.FileContent(p.Part)
			if err != nil {
				return nil, err
			}
			parts, media = append(parts, filePart(c)), true
		default: // reasoning and calls are not a user's
		}
	}
	if !media {
		return e.Text(), nil
	}
	return parts, nil
}

// filePart writes an image, a recording or a document.
func filePart(c adapter.Content) any {
	kind, sub, _ := strings.Cut(c.MediaType, "/")
	switch {
	case kind == "image":
		return map[string]any{"type": "image_url", "image_url": map[string]string{"url": c.DataURL()}}
	case kind == "audio" && c.Data != "":
		format := strings.NewReplacer("mpeg", "mp3", "x-wav", "wav", "wave", "wav").Replace(sub)
		return map[string]any{"type": "input_audio", "input_audio": map[string]string{"data": c.Data, "format": format}}
	default:
		file := map[string]string{"filename": cmp.Or(c.Filename, "file"), "file_data": c.DataURL()}
		return map[string]any{"type": "file", "file": file}
	}
}

package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of what an ask shows of a call beside its arguments.
const (
	MaxLastWords    = 4 << 10  // bytes of what the agent said before the call
	MaxPreviewText  = 4 << 10  // bytes that a template may make
	MaxPreview      = 16 << 10 // bytes of a text or value that a host gives
	maxTemplateText = 8 << 10
)

// VerbPreview is what a host of a tool is asked for its preview under.
const VerbPreview = "preview"

// Preview is what a tool says that a call would do, as an ask shows it. It is for people to judge by: no rule reads it,
// and it is no part of what they approve.
type Preview struct {
	Text      string          `json:"text,omitempty"`
	JSON      json.RawMessage `json:"json,omitempty"`      // a value instead of a text
	Truncated bool            `json:"truncated,omitempty"` // the text, or that of a value, was longer
	Failed    bool            `json:"failed,omitempty"`    // there is none: it failed, came late, or nobody hosts the tool
}

// Encoded is the preview as asks hold it.
func (p Preview) Encoded() json.RawMessage {
	raw, err := Marshal(p)
	if err != nil {
		return json.RawMessage(`{"failed":true}`)
	}
	return raw
}

// TextPreview is a text as a preview, cut where it is too long.
func TextPreview(text string, most int) Preview {
	cut, truncated := cutText(strings.ToValidUTF8(text, "\uFFFD"), most)
	return Preview{Text: cut, Truncated: truncated}
}

// JSONPreview is a value as a preview; one that is too long becomes the beginning of its text.
func JSONPreview(value json.RawMessage) Preview {
	if len(value) > MaxPreview {
		return TextPreview(string(value), MaxPreview)
	}
	return Preview{JSON: value}
}

// Bounded is what a host gave as its preview, within the bounds that it should have kept.
func (p Preview) Bounded() Preview {
	switch {
	case p.Failed || p.JSON != nil && CheckJSON(p.JSON) != nil:
		return Preview{Failed: true}
	case p.JSON != nil:
		return JSONPreview(p.JSON)
	}
	text := TextPreview(p.Text, MaxPreview)
	text.Truncated = text.Truncated || p.Truncated
	return text
}

// cutText cuts a text to so many bytes at most, between two characters.
func cutText(text string, most int) (cut string, truncated bool) {
	if len(text) <= most {
		return text, false
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most], true
}

// Without is the preview without values that must not be shown.
func (p Preview) Without(h Hidden) Preview {
	p.Text, p.JSON = h.Text(p.Text), h.JSON(p.JSON)
	return p
}

// LastWordsOf is what an agent said in the turn that made a call; nil when it said nothing.
func LastWordsOf(text string) *LastWords {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	w := &LastWords{}
	if w.Text, w.Truncated = cutText(text, MaxLastWords); w.Truncated {
		w.Size, w.Digest = len(text), Digest([]byte(text))
	}
	return w
}

// PreviewForm says how the previews of a tool are made: by a template over the arguments, or by a function that its
// hosts have. It is one of the two.
type PreviewForm struct {
	Template string `json:"template,omitempty"`
	Go       bool   `json:"go,omitempty"`
}

// ParsePreviewForm reads the preview of a manifest; nil when it has none. A template is checked too.
func ParsePreviewForm(raw json.RawMessage) (*PreviewForm, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil //nolint:nilnil // none is none
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	var f PreviewForm
	if err := dec.Decode(&f); err != nil || f.Go == (f.Template != "") {
		return nil, errors.New(`want {"template": "…"} or {"go": true}`)
	}
	if f.Go {
		return &f, nil
	}
	if _, err := parseTemplate(f.Template, maxTemplateText); err != nil {
		return nil, err
	}
	return &f, nil
}

// RenderPreview makes a preview of a template over frozen arguments. Secret fields of the schema are not shown. A key
// that the arguments lack, or a template that takes too much work, is an error.
func RenderPreview(template string, schema *Schema, args json.RawMessage) (Preview, error) {
	t, err := parseTemplate(template, maxTemplateText)
	if err != nil {
		return Preview{}, err
	}
	if err := CheckJSON(args); err != nil {
		return Preview{}, fmt.Errorf("the arguments: %w", err)
	}
	data, ok := masked(schema, args, func(any) any { return redactedText })
	if !ok {
		return Preview{}, errors.New("the arguments cannot be shown")
	}
	text, _, err := t.render(data, MaxPreviewText)
	if err != nil {
		return Preview{}, err
	}
	return TextPreview(text, MaxPreviewText), nil
}

// PreviewRequest asks a host of a tool what a call would do (request on svc.tool.<pool>.<tool>.preview; stored nowhere).
// Its answer is a [Preview].
type PreviewRequest struct {
	Namespace         Namespace       `json:"namespace"`
	RunID             string          `json:"runId"`
	ToolCallID        string          `json:"toolCallId"`
	Round             int             `json:"round"`
	ToolName          string          `json:"toolName"`
	ToolID            string          `json:"toolId"`
	ToolVersion       string          `json:"toolVersion"`
	InputSchemaDigest string          `json:"inputSchemaDigest"`
	Args              string          `json:"args"` // the frozen bytes
	AgentID           string          `json:"agentId"`
	ThreadID          string          `json:"threadId,omitempty"`
	ResourceID        string          `json:"resourceId,omitempty"`
	RequestContext    json.RawMessage `json:"requestContext,omitempty"`
	Within            Duration        `json:"within"` // how long the asker waits
}

package adapter

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Entry is a message of a conversation as every provider takes it: calls and results have ids and names that any
// pattern allows, arguments are an object, and the results of a message's calls are one entry right after it, in call
// order.
type Entry struct {
	Role  events.Role
	Parts []Part
}

// Part is a part of an entry. SentID is the id of a call, or of the call whose result it is, as the provider sees it;
// the name is that of the call.
type Part struct {
	events.Part

	SentID string
}

// Text is the text of the entry's parts, joined.
func (e Entry) Text() string {
	var b strings.Builder
	for _, p := range e.Parts {
		if p.Type == events.PartText {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// Transcript gives the entries of a conversation. One in which a call has no result, or a result no call, is an error:
// providers refuse it, and a guess could tell the model something untrue.
func Transcript(messages []events.Message) ([]Entry, error) {
	t := &transcript{}
	for i := 0; i < len(messages); i++ {
		m := messages[i]
		if m.Role != events.RoleTool {
			if err := t.add(m); err != nil {
				return nil, err
			}
			continue
		}
		var results []events.Part
		for ; i < len(messages) && messages[i].Role == events.RoleTool; i++ {
			results = append(results, messages[i].Parts...)
		}
		i--
		if err := t.addResults(results); err != nil {
			return nil, err
		}
	}
	return t.out, t.settled()
}

// transcript holds the pairing of calls and results.
type transcript struct {
	ids  callIDs
	out  []Entry
	open []Part // calls whose results must come next
}

func (t *transcript) settled() error {
	if len(t.open) > 0 {
		return events.Errorf(events.CodeTranscriptBroken, "call %s has no result", t.open[0].ToolCallID)
	}
	return nil
}

func (t *transcript) add(m events.Message) error {
	if err := t.settled(); err != nil {
		return err
	}
	if m.Role != events.RoleSystem && m.Role != events.RoleUser && m.Role != events.RoleAssistant {
		return events.Errorf(events.CodeTranscriptBroken, "a message of role %q", m.Role)
	}
	e := Entry{Role: m.Role}
	for _, part := range m.Parts {
		p := Part{Part: part}
		switch {
		case part.Type == events.PartToolCall && m.Role != events.RoleAssistant, part.Type == events.PartToolResult:
			continue
		case part.Type == events.PartToolCall:
			p.SentID, p.ToolName, p.Args = t.ids.next(part.ToolCallID), agent.SafeName(part.ToolName), argumentsText(part.Args)
			t.open = append(t.open, p)
		}
		e.Parts = append(e.Parts, p)
	}
	t.out = append(t.out, e)
	return nil
}

// argumentsText is what history says of a call's arguments. It is always an object, because servers parse it: nothing
// is {}, and what the model wrote malformed is quoted in one. Well-formed arguments keep their bytes.
func argumentsText(args string) string {
	trimmed := strings.TrimSpace(args)
	switch {
	case trimmed == "" || trimmed == "null":
		return "{}"
	case trimmed[0] == '{' && json.Valid([]byte(trimmed)):
		return args
	default:
		raw, _ := events.Marshal(map[string]string{"malformed": args}) // a text always encodes
		return string(raw)
	}
}

// addResults adds one group of results. They are paired with the open calls by id when the ids are those of the
// calls and differ, else by position.
func (t *transcript) addResults(parts []events.Part) error {
	results := make([]events.Part, 0, len(parts))
	for _, p := range parts {
		if p.Type == events.PartToolResult {
			results = append(results, p)
		}
	}
	if len(results) > len(t.open) {
		return events.Errorf(events.CodeTranscriptBroken, "%d results for %d calls", len(results), len(t.open))
	}
	if len(results) < len(t.open) {
		return events.Errorf(events.CodeTranscriptBroken, "%d calls with %d results", len(t.open), len(results))
	}
	order, err := pair(t.open, results)
	if err != nil {
		return err
	}
	e := Entry{Role: events.RoleTool}
	for i, r := range order {
		r.ToolName = t.open[i].ToolName
		e.Parts = append(e.Parts, Part{Part: r, SentID: t.open[i].SentID})
	}
	t.out, t.open = append(t.out, e), nil
	return nil
}

// pair puts results into call order.
func pair(open []Part, results []events.Part) ([]events.Part, error) {
	byID := make(map[string]events.Part, len(results))
	for _, r := range results {
		byID[r.ToolCallID] = r
	}
	distinct := map[string]bool{}
	for _, c := range open {
		distinct[c.ToolCallID] = true
	}
	if len(distinct) < len(open) {
		return results, nil // ids of foreign history that say nothing: position is all there is
	}
	out := make([]events.Part, len(open))
	for i, c := range open {
		r, ok := byID[c.ToolCallID]
		if !ok {
			return nil, events.Errorf(events.CodeTranscriptBroken, "call %s has no result", c.ToolCallID)
		}
		out[i] = r
	}
	return out, nil
}

// Content is a piece of what a model is told: a text, or a picture, recording or document.
type Content struct {
	Text      string
	MediaType string // empty for a text
	Data      string // base64, or empty
	URL       string // or empty
	Filename  string

	kind string // the type of a part of a result
}

// IsText tells a text from media.
func (c Content) IsText() bool { return c.kind == contentText }

// Placeholder stands for media that a model cannot take; it never holds base64 text.
func (c Content) Placeholder() string {
	what := c.What()
	if c.URL != "" {
		what += " at " + c.URL
	}
	return "[" + what + " not shown]"
}

// IsImage tells pictures from other media.
func (c Content) IsImage() bool {
	return strings.HasPrefix(c.MediaType, "image/") || c.MediaType == "" && strings.HasPrefix(c.kind, "image-")
}

// What names the kind of media.
func (c Content) What() string { return cmp.Or(c.MediaType, c.kind) }

const contentText = "text"

// ResultContent is what a model is told of a call.
func ResultContent(o *events.ModelOutput) []Content {
	if o == nil {
		return nil
	}
	value := bytes.TrimSpace(o.Value)
	whole := []Content{{kind: contentText, Text: string(value)}}
	var text string
	if bytes.HasPrefix(value, []byte{'"'}) && json.Unmarshal(value, &text) == nil {
		return []Content{{kind: contentText, Text: text}}
	}
	if o.Type != events.OutputContent {
		return whole
	}
	var parts []struct {
		Type      string `json:"type"`
		Text      string `json:"text"`
		Data      string `json:"data"`
		MediaType string `json:"mediaType"`
		URL       string `json:"url"`
		Filename  string `json:"filename"`
	}
	if json.Unmarshal(value, &parts) != nil {
		return whole
	}
	out := make([]Content, 0, len(parts))
	for _, p := range parts {
		c := Content{kind: p.Type, Text: p.Text, MediaType: p.MediaType, Data: p.Data, URL: p.URL, Filename: p.Filename}
		if c.kind == contentText {
			c = Content{kind: contentText, Text: p.Text}
		}
		c.openDataURL()
		out = append(out, c)
	}
	return out
}

// ResultText is what a model is told of a call when its provider takes text only. Media become placeholders.
func ResultText(r *Request, p Part) string {
	var lines []string
	for _, c := range ResultContent(p.Output) {
		if c.IsText() {
			lines = append(lines, c.Text)
			continue
		}
		lines = append(lines, c.Placeholder())
		r.WarnMedia(p, c)
	}
	return strings.Join(lines, "\n")
}

// WarnMedia warns of a part of a result that a model cannot take.
func (r *Request) WarnMedia(p Part, c Content) {
	r.Warn("the result of %s has a part that this model cannot take: %s", p.ToolName, c.What())
}

// FileContent is the content of a part of type file.
func FileContent(p events.Part) (Content, error) {
	if p.URL == "" && p.Data == "" {
		return Content{}, events.Errorf(events.CodeInvalidData, "file %q has neither data nor a URL", p.Filename)
	}
	c := Content{kind: p.Type, MediaType: p.MediaType, Data: p.Data, URL: p.URL, Filename: p.Filename}
	c.openDataURL()
	return c, nil
}

// openDataURL takes the data and its type out of a data: URL.
func (c *Content) openDataURL() {
	rest, ok := strings.CutPrefix(c.URL, "data:")
	if !ok {
		return
	}
	c.URL = ""
	about, data, _ := strings.Cut(rest, ",")
	kind, isBase64 := strings.CutSuffix(about, ";base64")
	if isBase64 && c.Data == "" {
		c.Data = data
	}
	kind, _, _ = strings.Cut(kind, ";")
	c.MediaType = cmp.Or(c.MediaType, kind)
}

// DataURL is the data as a data: URL, or the URL.
func (c Content) DataURL() string {
	if c.Data == "" {
		return c.URL
	}
	return "data:" + c.MediaType + ";base64," + c.Data
}

// Whole tells whether the stream said that a call is whole. A reason other than a limit says it of all calls. Under a
// limit the call that was being written, the last thing of the turn, is cut, whatever its text looks like; and one before
// it is whole if its text is. Without any reason the text alone decides.
func Whole(args string, last bool, reason agent.FinishReason) bool {
	text := strings.TrimSpace(args)
	whole := text == "" || json.Valid([]byte(text))
	switch reason {
	case agent.FinishLength, agent.FinishContentFilter:
		return whole && !last
	case agent.FinishUnknown:
		return whole
	default:
		return true
	}
}

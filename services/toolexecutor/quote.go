package toolexecutor

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Bounds of what programs and servers may say.
const (
	maxOutput = 1 << 20 // bytes of a result
	maxSaid   = 8 << 10 // bytes read of what they say about a failure
	maxQuoted = 1000    // characters of it that are told
)

// outside wraps a tool whose code is not Go. Errors of it go through quote: they are told to models and to people.
type outside struct {
	manifest events.Manifest
	redact   *strings.Replacer
}

func newOutside(m events.Manifest, kind string, secrets []string) outside {
	m.Source = events.Source{Kind: kind}
	return outside{manifest: agent.Complete(m), redact: redactor(secrets)}
}

// Manifest is everything about the tool but its definition, which is in the executor's own configuration.
func (o *outside) Manifest() events.Manifest { return o.manifest }

// failure is an error with a name and a text without secrets.
func (o *outside) failure(name string, details any, text ...string) error {
	raw, err := events.Marshal(details)
	if err != nil || details == nil {
		raw = nil
	}
	return &agent.Error{Name: name, Message: o.redact.Replace(strings.Join(text, "")), Details: raw}
}

// quote makes what a program or a server said fit for an error: one line, bounded, without secrets. Secrets are taken
// out before the text is cut, so that no part of one stays at the cut. tail keeps the end, where programs say why.
func (o *outside) quote(said []byte, tail bool) string {
	text := o.redact.Replace(strings.ToValidUTF8(string(said), "�"))
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }), " ")
	if utf8.RuneCountInString(text) <= maxQuoted {
		return text
	}
	runes := []rune(text)
	if tail {
		return "…" + string(runes[len(runes)-maxQuoted:])
	}
	return string(runes[:maxQuoted]) + "…"
}

// redactor replaces secrets as they are, and as they look inside a URL and inside JSON.
func redactor(secrets []string) *strings.Replacer {
	var forms []string
	for _, s := range secrets {
		if s == "" {
			continue
		}
		quoted, _ := events.Marshal(s) // a text always encodes
		forms = append(forms, s, url.QueryEscape(s), url.PathEscape(s), strings.Trim(string(quoted), `"`))
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) }) // a secret may hold another one
	pairs := make([]string, 0, 2*len(forms))
	for _, form := range slices.Compact(forms) {
		pairs = append(pairs, form, "[secret]")
	}
	return strings.NewReplacer(pairs...)
}

// valueOfBody is an answer as JSON, by the media type that it names, or what is wrong with it.
func valueOfBody(kind string, body []byte) (value json.RawMessage, problem string) {
	isJSON := kind == "application/json" || strings.HasSuffix(kind, "+json")
	text := strings.TrimSpace(string(body))
	if isJSON && text != "" {
		if err := events.CheckJSON([]byte(text)); err != nil {
			return nil, "malformed JSON"
		}
		return json.RawMessage(text), ""
	}
	read := textOrJSON
	if kind != "" && text != "" {
		read = func([]byte) (json.RawMessage, bool) { return plainText(string(body)) }
	}
	value, ok := read(body)
	if !ok {
		return nil, "neither JSON nor text in UTF-8"
	}
	return value, ""
}

// textOrJSON is output as JSON: what is JSON stays as it is, other text becomes a JSON string, nothing becomes null.
func textOrJSON(out []byte) (json.RawMessage, bool) {
	text := strings.TrimSpace(string(out))
	if text == "" {
		return json.RawMessage("null"), true
	}
	if events.CheckJSON([]byte(text)) == nil {
		return json.RawMessage(text), true
	}
	return plainText(text)
}

func plainText(text string) (json.RawMessage, bool) {
	if !utf8.ValidString(text) {
		return nil, false
	}
	raw, err := events.Marshal(text)
	return raw, err == nil
}

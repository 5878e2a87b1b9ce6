package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// ErrorStrategy is what becomes of a run whose model gives no value that fits.
type ErrorStrategy string

// Strategies for values that do not fit.
const (
	ErrorStrict   ErrorStrategy = "strict"   // the run fails with structured_output_invalid
	ErrorWarn     ErrorStrategy = "warn"     // the run completes without a value; readers are warned
	ErrorFallback ErrorStrategy = "fallback" // the fallback value stands in its place
)

// StructuredOutput asks a run for a JSON value that fits a schema, beside the text of its last turn. Tools are called as in
// any run: only what ends the run must fit. A run that a limit ends has no value.
type StructuredOutput struct {
	Schema json.RawMessage `json:"schema"` // JSON Schema

	ErrorStrategy ErrorStrategy   `json:"errorStrategy,omitempty"` // default: strict
	FallbackValue json.RawMessage `json:"fallbackValue,omitempty"` // only with fallback, which needs it; it must fit

	// Model, in place of the agent's, makes the value of the text that ends the run: in a request of its own, without tools.
	// Default: the agent's model writes it as its last text.
	Model        string `json:"model,omitempty"`
	Instructions string `json:"instructions,omitempty"` // what this model is told first; default: to take the value out of the text
}

// ObjectOutput is the value that a run was asked for, once there is one.
type ObjectOutput struct {
	Object       json.RawMessage `json:"object,omitempty"`
	UsedFallback bool            `json:"usedFallbackValue,omitempty"` // the model gave none that fits: this is the fallback value
}

// Check lists what is wrong.
func (s *StructuredOutput) Check() []Issue {
	if s == nil {
		return nil
	}
	var list []Issue
	add := func(field, format string, args ...any) {
		list = append(list, Issue{Field: "structuredOutput." + field, Message: fmt.Sprintf(format, args...)})
	}
	schema, err := CompileSchema(s.Schema)
	if err != nil {
		add("schema", "%v", err)
	}
	switch s.ErrorStrategy {
	case "", ErrorStrict, ErrorWarn:
		if len(s.FallbackValue) > 0 {
			add("fallbackValue", "goes with errorStrategy fallback only")
		}
	case ErrorFallback:
		switch {
		case len(s.FallbackValue) == 0:
			add("fallbackValue", "is missing: errorStrategy fallback needs it")
		case err == nil:
			if err := schema.ValidateRaw(s.FallbackValue); err != nil {
				add("fallbackValue", "does not fit the schema: %v", err)
			}
		}
	default:
		add("errorStrategy", "is %q; use strict, warn or fallback", s.ErrorStrategy)
	}
	if s.Instructions != "" && s.Model == "" {
		add("instructions", "are those of model, which is missing")
	}
	return list
}

// Strategy is the error strategy, or the default.
func (s *StructuredOutput) Strategy() ErrorStrategy {
	if s.ErrorStrategy == "" {
		return ErrorStrict
	}
	return s.ErrorStrategy
}

// ErrNoJSON says that a text holds no JSON value.
var ErrNoJSON = errors.New("the text is no JSON")

// Read takes the value out of a text that is nothing but it, or but a fenced block with it, and checks that it fits.
func (s *StructuredOutput) Read(text string) (json.RawMessage, error) {
	raw := json.RawMessage(Unfenced(text))
	if err := CheckJSON(raw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoJSON, err)
	}
	schema, err := CompileSchema(s.Schema)
	if err != nil {
		return nil, err
	}
	if err := schema.ValidateRaw(raw); err != nil {
		v := decodeAny(raw)
		dropNulls([]*jsonschema.Schema{schema.root}, v) // some providers demand a value for every field
		if schema.Validate(v) != nil {
			return nil, err
		}
		return Marshal(v)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoJSON, err)
	}
	return out.Bytes(), nil
}

const fence = "```"

// Unfenced is what stands in a fenced block, when the whole text is one.
func Unfenced(text string) string {
	text = strings.TrimSpace(text)
	inner, ok := strings.CutPrefix(text, fence)
	if !ok {
		return text
	}
	inner, ok = strings.CutSuffix(inner, fence)
	_, inner, more := strings.Cut(inner, "\n") // the rest of the first line names the language
	if !ok || !more {
		return text
	}
	return strings.TrimSpace(inner)
}

// PartialJSON completes the beginning of a JSON text to a value: what is open is closed, and what cannot be told yet is left
// out. It is false when there is no value to tell.
func PartialJSON(text string) (json.RawMessage, bool) {
	text = strings.TrimSpace(text)
	if inner, ok := strings.CutPrefix(text, fence); ok {
		_, text, _ = strings.Cut(inner, "\n")
		text = strings.TrimSpace(strings.TrimSuffix(text, fence))
	}
	var p partial
	for i := 0; i < len(text); i++ {
		p.read(text, i)
	}
	out := []byte(text[:p.safe])
	if p.inString && !p.key && p.escape == 0 {
		out = append([]byte(strings.ToValidUTF8(text, "")), '"')
		p.safeOpen = p.open
	}
	for _, bracket := range slices.Backward(p.safeOpen) {
		out = append(out, bracket)
	}
	return out, len(out) > 0 && json.Valid(out)
}

// partial reads the beginning of a JSON text. Whatever it takes for JSON and is none, json.Valid finds.
type partial struct {
	open     []byte // the brackets that close what is open
	safe     int    // up to here the text is a value, once safeOpen closes it
	safeOpen []byte

	inString, key bool
	escape        int // characters of an escape that are still to come
	colon         bool
}

func (p *partial) read(text string, i int) {
	c := text[i]
	if p.inString {
		p.readString(c, i)
		return
	}
	switch c {
	case '"':
		p.inString, p.key = true, p.inObject() && !p.colon
	case '{':
		p.open, p.colon = append(p.open, '}'), false
		p.mark(i + 1)
	case '[':
		p.open, p.colon = append(p.open, ']'), false
		p.mark(i + 1)
	case '}', ']':
		if n := len(p.open); n > 0 {
			p.open = p.open[:n-1]
		}
		p.colon = false
		p.mark(i + 1)
	case ':':
		p.colon = true
	case ',':
		p.mark(i) // a number or a word has ended
		p.colon = false
	}
}

func (p *partial) readString(c byte, i int) {
	switch {
	case p.escape > 1 || p.escape == 1 && c != 'u':
		p.escape--
	case p.escape == 1:
		p.escape = 4
	case c == '\\':
		p.escape = 1
	case c == '"':
		p.inString = false
		if !p.key {
			p.mark(i + 1)
		}
	}
}

func (p *partial) inObject() bool { return len(p.open) > 0 && p.open[len(p.open)-1] == '}' }

func (p *partial) mark(at int) { p.safe, p.safeOpen = at, bytes.Clone(p.open) }

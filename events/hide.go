package events

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
)

// Secrets hides what the schemas of a tool mark as secret, wherever the values of its calls are shown: fields by their
// schema, and in texts about a call (errors, reasons, progress) the values that its secret fields have. Nil hides
// nothing.
type Secrets struct{ input, output, suspend, resume *Schema }

// minHidden is the length from which on a value is looked for in texts: a shorter one would be found everywhere.
const minHidden = 4

// everything marks every value as secret.
var everything, _ = CompileSchema([]byte(`{"writeOnly":true}`))

// AllSecret hides all values of a call. It stands for the schemas of a tool that nobody can read.
var AllSecret = &Secrets{everything, everything, everything, everything}

// SecretsOf is what a manifest marks; nil when that is nothing. What a schema marks that cannot be used is not known, so
// all of it is hidden.
func SecretsOf(m Manifest) *Secrets {
	s := Secrets{marked(m.InputSchema), marked(m.OutputSchema), marked(m.SuspendSchema), marked(m.ResumeSchema)}
	if s == (Secrets{}) {
		return nil
	}
	return &s
}

// marked compiles a schema that marks something; any other is nil.
func marked(raw json.RawMessage) *Schema {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	s, err := CompileSchema(raw)
	switch {
	case err != nil:
		return everything
	case !s.Secrets():
		return nil
	}
	return s
}

// HidesInput reports whether arguments have secret fields, so that no piece of their text can be shown.
func (s *Secrets) HidesInput() bool { return s != nil && s.input != nil }

// Args are arguments as they may be shown.
func (s *Secrets) Args(args json.RawMessage) json.RawMessage {
	if s == nil || len(args) == 0 {
		return args
	}
	return Mask(s.input, args)
}

// ArgsText are arguments as a model wrote them, as a message may quote them; what is not JSON is not quoted.
func (s *Secrets) ArgsText(args string) string {
	if !s.HidesInput() {
		return args
	}
	if raw, err := ParseArgs(args, false); err == nil {
		return string(Mask(s.input, raw))
	}
	return ""
}

// Of are the values of the secret fields of a call's arguments.
func (s *Secrets) Of(args json.RawMessage) Hidden {
	if s == nil {
		return nil
	}
	return Hidden{}.and(s.input, args)
}

// OfResume are the values of the secret fields of the data that a call is resumed with, if it is.
func (s *Secrets) OfResume(r *Resume) Hidden {
	if s == nil || r == nil {
		return nil
	}
	return Hidden{}.and(s.resume, r.Data)
}

// SuspendPayload is what a call showed when it suspended itself, as it may be shown.
func (s *Secrets) SuspendPayload(payload, args json.RawMessage) json.RawMessage {
	if s == nil || len(payload) == 0 {
		return payload
	}
	return s.Of(args).JSON(Mask(s.suspend, payload))
}

// Result is a result as it may be shown.
func (s *Secrets) Result(result json.RawMessage) json.RawMessage {
	if s == nil || len(result) == 0 {
		return result
	}
	return Mask(s.output, result)
}

// Finished is the outcome of a call and its arguments as they may be shown. Args are those that stand where the outcome
// itself names none.
func (s *Secrets) Finished(f CallFinished, args json.RawMessage) (CallFinished, json.RawMessage) {
	if s == nil {
		return f, args
	}
	if len(f.Args) > 0 {
		args = f.Args
	}
	hidden := s.Of(args)
	if f.Outcome == OutcomeOK || f.Outcome == OutcomeResponded {
		hidden = hidden.and(s.output, f.Result)
		f.Result = s.Result(f.Result)
	}
	f.Result = hidden.JSON(f.Result)
	f.Error = hidden.Error(f.Error)
	f.Reason = hidden.Text(f.Reason)
	if f.ModelOutput != nil {
		f.ModelOutput = &ModelOutput{Type: f.ModelOutput.Type, Value: hidden.JSON(f.ModelOutput.Value)}
	}
	args = s.Args(args)
	if len(f.Args) > 0 {
		f.Args = args
	}
	return f, args
}

// Delayed is an outcome that came too late, as it may be shown.
func (s *Secrets) Delayed(d OutcomeDelayed, args json.RawMessage) OutcomeDelayed {
	f, _ := s.Finished(CallFinished{Outcome: d.Outcome, Result: d.Result, Error: d.Error}, args)
	d.Result, d.Error = f.Result, f.Error
	return d
}

// Hidden are values that texts about a call must not quote.
type Hidden []string

// and adds the values of the secret fields of a value.
func (h Hidden) and(s *Schema, value json.RawMessage) Hidden {
	if !s.Secrets() || CheckJSON(value) != nil {
		return h
	}
	_, _ = masked(s, value, func(v any) any {
		h = h.leaves(v)
		return nil
	})
	slices.SortFunc(h, func(a, b string) int { // a longer one first, so that no part of it is left
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	return slices.Compact(h)
}

func (h Hidden) leaves(v any) Hidden {
	switch v := v.(type) {
	case map[string]any:
		for _, field := range v {
			h = h.leaves(field)
		}
	case []any:
		for _, item := range v {
			h = h.leaves(item)
		}
	case string:
		if len(v) >= minHidden {
			h = append(h, v)
		}
	case json.Number:
		if len(v) >= minHidden {
			h = append(h, v.String())
		}
	}
	return h
}

// Text is a text without these values.
func (h Hidden) Text(text string) string {
	for _, secret := range h {
		text = strings.ReplaceAll(text, secret, redactedText)
	}
	return text
}

// JSON is a value without these values, in whatever text of it they stand. What is no JSON is not shown when there is
// something to hide.
func (h Hidden) JSON(value json.RawMessage) json.RawMessage {
	if len(h) == 0 || len(value) == 0 {
		return value
	}
	if checkJSON(value, maxEventDepth) != nil {
		return json.RawMessage(payloadUnavailable)
	}
	if text := string(value); h.Text(text) == text && !strings.Contains(text, `\`) {
		return value
	}
	raw, err := Marshal(h.within(decodeAny(value)))
	if err != nil {
		return json.RawMessage(payloadUnavailable)
	}
	return raw
}

func (h Hidden) within(v any) any {
	switch v := v.(type) {
	case map[string]any:
		shown := make(map[string]any, len(v))
		for key, field := range v {
			shown[h.Text(key)] = h.within(field)
		}
		return shown
	case []any:
		for i, item := range v {
			v[i] = h.within(item)
		}
	case string:
		return h.Text(v)
	case json.Number:
		if slices.Contains(h, v.String()) {
			return redactedText
		}
	}
	return v
}

// Error is an error without these values.
func (h Hidden) Error(e *ToolError) *ToolError {
	if e == nil || len(h) == 0 {
		return e
	}
	return &ToolError{Name: h.Text(e.Name), Message: h.Text(e.Message), Details: h.JSON(e.Details)}
}

// Unmask puts the secrets of what was shown back into what somebody made of it: a field that still stands as it was
// masked has the value that it has in frozen. Anything else stays.
func Unmask(s *Schema, edited, frozen json.RawMessage) json.RawMessage {
	if !s.Secrets() || CheckJSON(edited) != nil || CheckJSON(frozen) != nil {
		return edited
	}
	var was []any // what is hidden in frozen
	_, ok := masked(s, frozen, func(v any) any {
		was = append(was, v)
		return nil
	})
	left := false
	restored, okToo := masked(s, edited, func(v any) any {
		text, _ := canonicalValue(v)
		for _, old := range was {
			if shown, err := canonicalValue(hidden(old)); err == nil && string(shown) == string(text) {
				left = true
				return old
			}
		}
		return v
	})
	raw, err := Marshal(restored)
	if err != nil || !ok || !okToo || !left {
		return edited
	}
	return raw
}

package events

import (
	"encoding/json"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

const keywordSecret = "x-weir-secret"

// secretMark is what the keyword x-weir-secret leaves on a compiled schema. It allows every value.
type secretMark struct{}

var _ jsonschema.ExtSchema = secretMark{}

// Validate allows everything: the keyword says how a value is shown, not what it may be.
func (secretMark) Validate(jsonschema.ValidationContext, any) error { return nil }

// Compile finds the keyword.
func (secretMark) Compile(_ jsonschema.CompilerContext, m map[string]any) (jsonschema.ExtSchema, error) {
	if on, _ := m[keywordSecret].(bool); on {
		return secretMark{}, nil
	}
	return nil, nil
}

func secretExtension(c *jsonschema.Compiler) { c.RegisterExtension(keywordSecret, nil, secretMark{}) }

// maskedSecret stands for a value that must not be shown: how long its text is, and its digest, so that people can
// tell whether two are the same.
type maskedSecret struct {
	Secret struct {
		Length int    `json:"length"`
		Digest string `json:"digest"`
	} `json:"secret"`
}

// Secrets reports whether the schema marks any field as secret: writeOnly, or x-weir-secret.
func (s *Schema) Secrets() bool {
	if s == nil {
		return false
	}
	for _, n := range s.at {
		if isSecret(n) {
			return true
		}
	}
	return false
}

func isSecret(n *jsonschema.Schema) bool { return n.WriteOnly || n.Extensions[keywordSecret] != nil }

// Mask is value as it may be shown: each field that any branch of the schema marks as secret becomes
// {"secret":{"length","digest"}}. A value without such fields keeps its bytes. A nil schema marks nothing; a value
// that is not JSON is not shown at all.
func Mask(s *Schema, value json.RawMessage) json.RawMessage {
	if !s.Secrets() {
		return value
	}
	if CheckJSON(value) != nil {
		return json.RawMessage(payloadUnavailable)
	}
	shown, ok := masked(s, value, func(v any) any { return hidden(v) })
	raw, err := Marshal(shown)
	if err != nil || !ok {
		return json.RawMessage(payloadUnavailable)
	}
	return raw
}

// masked decodes a checked value, with what hide makes of each of its secret fields. It is not ok when the schema took
// too much work: then some may be left.
func masked(s *Schema, value json.RawMessage, hide func(any) any) (shown any, ok bool) {
	if !s.Secrets() {
		return decodeAny(value), true
	}
	m := masker{left: maxVisits + visitsPerByte*len(value), hide: hide}
	shown = m.mask([]*jsonschema.Schema{s.root}, decodeAny(value))
	return shown, m.left >= 0
}

type masker struct {
	left int
	hide func(any) any
}

// mask goes down into v with every schema that may speak about it.
func (m *masker) mask(at []*jsonschema.Schema, v any) any {
	at = m.spread(nil, at)
	if slices.ContainsFunc(at, isSecret) {
		return m.hide(v)
	}
	switch v := v.(type) {
	case map[string]any:
		for key, field := range v {
			var under []*jsonschema.Schema
			for _, n := range at {
				under = append(under, fieldSchemas(n, key)...)
			}
			v[key] = m.mask(under, field)
		}
	case []any:
		for i, item := range v {
			var under []*jsonschema.Schema
			for _, n := range at {
				under = append(under, itemSchemas(n, i)...)
			}
			v[i] = m.mask(under, item)
		}
	}
	return v
}

// spread adds the branches of every schema, each once.
func (m *masker) spread(list, more []*jsonschema.Schema) []*jsonschema.Schema {
	for _, n := range more {
		known := false
		for _, have := range list {
			known = known || have == n
		}
		if m.left--; m.left < 0 || known {
			continue
		}
		list = m.spread(append(list, n), branches(n))
	}
	return list
}

// fieldSchemas are the schemas that n applies to a field, at most.
func fieldSchemas(n *jsonschema.Schema, key string) []*jsonschema.Schema {
	var list []*jsonschema.Schema
	if p, ok := n.Properties[key]; ok {
		list = append(list, p)
	}
	for pattern, p := range n.PatternProperties {
		if pattern.MatchString(key) {
			list = append(list, p)
		}
	}
	if rest, ok := n.AdditionalProperties.(*jsonschema.Schema); ok && len(list) == 0 {
		list = append(list, rest)
	}
	if n.UnevaluatedProperties != nil {
		list = append(list, n.UnevaluatedProperties)
	}
	return list
}

func hidden(v any) maskedSecret {
	raw, _ := canonicalValue(v) // v was read from JSON
	var h maskedSecret
	h.Secret.Length, h.Secret.Digest = len(raw), Digest(raw)
	if text, ok := v.(string); ok {
		h.Secret.Length = len(text)
	}
	return h
}

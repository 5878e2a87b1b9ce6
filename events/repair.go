package events

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// reservedArgs are keys that only people's decisions carry. A model that writes them resumes nothing.
var reservedArgs = [...]string{"resumeData", "suspendedToolCallId", "suspendedToolRunId"}

// promptAliases are what models call the prompt of an agent when they forget its name.
var promptAliases = [...]string{"query", "message", "input"}

// ReservedArg reports whether a key of arguments is removed before anything sees it, so that no tool may declare it.
func ReservedArg(key string) bool { return slices.Contains(reservedArgs[:], key) }

// ObjectSchema is the input schema of a tool that says little about it: absent, null and {} take an object without
// properties, as does an object schema that lists none and leaves nothing open. Any other schema is returned as it is.
func ObjectSchema(schema json.RawMessage) json.RawMessage {
	empty := json.RawMessage(`{"type":"object","properties":{}}`)
	if s := bytes.TrimSpace(schema); len(s) == 0 || string(s) == "null" {
		return empty
	}
	var keywords map[string]json.RawMessage
	if json.Unmarshal(schema, &keywords) != nil {
		return schema
	}
	if len(keywords) == 0 || len(keywords) == 1 && string(keywords["type"]) == `"object"` {
		return empty
	}
	return schema
}

// Normalize turns arguments into the canonical bytes that rules see, people approve and a handler runs: read strictly,
// defaults filled in, keys that the schema does not list removed, validated. Only when that fails are they repaired
// and tried once more. Nothing at all, and null, are an empty object. Arguments that stay wrong give an error of type
// [*InvalidData] and are never run. The same arguments and schema always give the same bytes.
func Normalize(schema *Schema, args json.RawMessage) (json.RawMessage, error) {
	if text := bytes.TrimSpace(args); len(text) == 0 || string(text) == "null" {
		args = json.RawMessage("{}")
	}
	if err := CheckJSON(args); err != nil {
		return nil, invalidText(err.Error())
	}
	v := readArgs(args)
	invalid := fit(schema, v)
	if invalid != nil {
		v = readArgs(args)
		repair(schema.root, v)
		invalid = fit(schema, v)
	}
	if invalid != nil {
		return nil, invalid
	}
	return canonicalValue(v)
}

// Conform checks a value that a tool gives, such as its result: keys that the schema does not list are removed, under
// the rule that holds for arguments, and the rest must be valid. Nothing is filled in or repaired, and a value from
// which nothing is removed keeps its bytes.
func Conform(schema *Schema, raw json.RawMessage) (json.RawMessage, error) {
	if err := CheckJSON(raw); err != nil {
		return nil, invalidText(err.Error())
	}
	v := decodeAny(raw)
	removed := strip([]*jsonschema.Schema{schema.root}, v)
	if err := schema.Validate(v); err != nil {
		return nil, err
	}
	if !removed {
		return raw, nil
	}
	return Marshal(v)
}

// readArgs decodes checked arguments, without the reserved keys.
func readArgs(args json.RawMessage) any {
	v := decodeAny(args)
	if m, ok := v.(map[string]any); ok {
		for _, key := range reservedArgs {
			delete(m, key)
		}
	}
	return v
}

// decodeAny reads JSON that CheckJSON has accepted, numbers as [json.Number].
func decodeAny(raw []byte) any {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	_ = dec.Decode(&v) // checked before
	return v
}

// fit fills in defaults and removes what the schema does not list, in place, until nothing changes: a default may let
// a value fit another branch of the schema, which has defaults of its own. Then it validates. Only a value that
// the schema can be applied to within its budget is touched.
func fit(schema *Schema, v any) error {
	if left := maxVisits + visitsPerByte*sizeOf(v); !schema.linear && !visit(schema.root, v, &left) {
		return schema.Validate(v)
	}
	at := []*jsonschema.Schema{schema.root}
	var f filler
	for pass, changed := 0, true; changed && pass < maxPasses; pass++ {
		changed = f.fill(at, v)
		changed = strip(at, v) || changed
	}
	if f.count >= maxDefaults {
		return invalidText("the defaults of the schema have no end")
	}
	return schema.Validate(v)
}

// repair corrects what models usually get wrong, in this order, so that the corrections combine: another name for the
// prompt, an array or object written as a string, null for an optional field.
func repair(root *jsonschema.Schema, v any) {
	if m, ok := v.(map[string]any); ok {
		at := reach(root)
		renamePrompt(at, m)
		parseStrings(at, m)
	}
	dropNulls([]*jsonschema.Schema{root}, v)
}

func renamePrompt(at []*jsonschema.Schema, m map[string]any) {
	if _, given := m["prompt"]; given || len(property(at, "prompt")) == 0 {
		return
	}
	for _, alias := range promptAliases {
		v, given := m[alias]
		if given && v != nil && len(property(at, alias)) == 0 {
			delete(m, alias)
			m["prompt"] = v
			return
		}
	}
}

// parseStrings reads strings that hold JSON for fields that take an array or object and no string.
func parseStrings(at []*jsonschema.Schema, m map[string]any) {
	for key, v := range m {
		s, ok := v.(string)
		if !ok || CheckJSON([]byte(s)) != nil {
			continue
		}
		var kind string
		parsed := decodeAny([]byte(s))
		switch parsed.(type) {
		case map[string]any:
			kind = "object"
		case []any:
			kind = "array"
		default:
			continue
		}
		field := property(at, key)
		if slices.Contains(typesOf(reach(field...)), kind) && refusedByAll(field, s) {
			m[key] = parsed
		}
	}
}

// dropNulls removes null where a field is optional, or has a default, and takes no null.
func dropNulls(at []*jsonschema.Schema, v any) {
	switch v := v.(type) {
	case map[string]any:
		all, sure := reach(at...), certain(at, v)
		for key, value := range v {
			field := property(all, key)
			if value != nil {
				dropNulls(field, value)
			} else if len(field) > 0 && refusedByAll(field, nil) && optional(sure, field, key) {
				delete(v, key)
			}
		}
	case []any:
		all := reach(at...)
		for i, item := range v {
			dropNulls(items(all, i), item)
		}
	}
}

func optional(at, field []*jsonschema.Schema, key string) bool {
	hasDefault := func(s *jsonschema.Schema) bool { _, ok := defaultOf(s); return ok }
	requires := func(s *jsonschema.Schema) bool { return slices.Contains(s.Required, key) }
	return slices.ContainsFunc(field, hasDefault) || !slices.ContainsFunc(at, requires)
}

func refusedByAll(schemas []*jsonschema.Schema, v any) bool {
	return !slices.ContainsFunc(schemas, func(s *jsonschema.Schema) bool { return s.Validate(v) == nil })
}

// invalidText is an error about arguments as a whole.
func invalidText(message string) error {
	return &InvalidData{Issues: []Issue{{Message: message}}}
}

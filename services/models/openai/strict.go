package openai

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
)

// Strict function calling takes a smaller dialect: every object is closed and requires all its properties, so that
// what is optional becomes nullable (a null at an optional field is removed again before validation). What cannot be
// said in it is said without strict.

// keywords of the strict dialect, and those that only narrow, which are left to local validation.
var (
	strictKeywords = []string{
		"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "oneOf", "$ref",
		"$defs", "definitions", "description", "title", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
		"exclusiveMaximum", "multipleOf", "minItems", "maxItems",
	}
	droppedKeywords = []string{
		"default", "examples", "minLength", "maxLength", "uniqueItems", "minProperties", "maxProperties", "$comment",
		"deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
	}
	strictFormats = []string{
		"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
	}
)

// strictParameters projects parameters to the strict dialect, or says why that is not possible.
func strictParameters(raw json.RawMessage) (json.RawMessage, error) {
	return strictSchema(raw, 0)
}

func strictSchema(raw json.RawMessage, depth int) (json.RawMessage, error) {
	if depth > maxSchemaDepth {
		return nil, fmt.Errorf("nested over %d levels", maxSchemaDepth)
	}
	o, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	o.remove(droppedKeywords...)
	for _, name := range o.names() {
		if !slices.Contains(strictKeywords, name) {
			return nil, fmt.Errorf("%q cannot be said strictly", name)
		}
	}
	if format, ok := o.get("format"); ok && !isStrictFormat(format) {
		o.remove("format")
	}
	if !o.has("type") && !o.has("$ref") && !o.has("anyOf") && !o.has("oneOf") && !o.has("enum") && !o.has("const") {
		return nil, fmt.Errorf("a value of any type cannot be said strictly")
	}
	if err := closeObject(&o); err != nil {
		return nil, err
	}
	if err := strictChildren(&o, depth); err != nil {
		return nil, err
	}
	return o.MarshalJSON()
}

// closeObject requires all properties and allows no others.
func closeObject(o *object) error {
	if !allows(*o, "object") {
		return nil
	}
	if more, ok := o.get("additionalProperties"); ok && string(more) != "false" {
		return fmt.Errorf("an open object cannot be said strictly")
	}
	raw, ok := o.get("properties")
	if !ok {
		return fmt.Errorf("an object of any properties cannot be said strictly")
	}
	properties, err := parseObject(raw)
	if err != nil {
		return err
	}
	required := stringsOf(*o, "required")
	for i, m := range properties {
		if slices.Contains(required, m.name) {
			continue
		}
		if properties[i].value, err = nullable(m.value); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	if err := setJSON(o, "properties", properties); err != nil {
		return err
	}
	if err := setJSON(o, "required", properties.names()); err != nil {
		return err
	}
	o.set("additionalProperties", json.RawMessage("false"))
	return nil
}

// strictChildren projects the schemas inside a schema. One of several becomes any of several: exactly one is checked
// locally.
func strictChildren(o *object, depth int) error {
	if one, ok := o.get("oneOf"); ok && !o.has("anyOf") {
		o.set("anyOf", one)
	}
	o.remove("oneOf")
	for _, name := range []string{"properties", "$defs", "definitions"} {
		raw, ok := o.get(name)
		if !ok {
			continue
		}
		children, err := parseObject(raw)
		if err != nil {
			return err
		}
		for i, m := range children {
			if children[i].value, err = strictSchema(m.value, depth+1); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
		if err := setJSON(o, name, children); err != nil {
			return err
		}
	}
	if raw, ok := o.get("items"); ok {
		items, err := strictSchema(raw, depth+1)
		if err != nil {
			return fmt.Errorf("items: %w", err)
		}
		o.set("items", items)
	}
	return strictBranches(o, depth)
}

func strictBranches(o *object, depth int) error {
	raw, ok := o.get("anyOf")
	if !ok {
		return nil
	}
	var branches []json.RawMessage
	if err := json.Unmarshal(raw, &branches); err != nil {
		return fmt.Errorf("anyOf is not a list of schemas")
	}
	for i, b := range branches {
		var err error
		if branches[i], err = strictSchema(b, depth+1); err != nil {
			return fmt.Errorf("anyOf: %w", err)
		}
	}
	return setJSON(o, "anyOf", branches)
}

// nullable lets a schema also take null.
func nullable(raw json.RawMessage) (json.RawMessage, error) {
	o, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	types := typesOf(o)
	if slices.Contains(types, "null") {
		return raw, nil
	}
	if len(types) == 0 || o.has("const") || o.has("anyOf") || o.has("oneOf") {
		return events.Marshal(map[string]any{"anyOf": []any{o, map[string]string{"type": "null"}}})
	}
	if err := setJSON(&o, "type", append(types, "null")); err != nil {
		return nil, err
	}
	if raw, ok := o.get("enum"); ok {
		var values []json.RawMessage
		if err := json.Unmarshal(raw, &values); err != nil {
			return nil, fmt.Errorf("enum is not a list")
		}
		if err := setJSON(&o, "enum", append(values, json.RawMessage("null"))); err != nil {
			return nil, err
		}
	}
	return o.MarshalJSON()
}

// typesOf are the types that a schema names, as a list.
func typesOf(o object) []string {
	if list := stringsOf(o, "type"); list != nil {
		return list
	}
	raw, _ := o.get("type")
	var one string
	if json.Unmarshal(raw, &one) != nil || one == "" {
		return nil
	}
	return []string{one}
}

func allows(o object, kind string) bool { return slices.Contains(typesOf(o), kind) }

func isStrictFormat(raw json.RawMessage) bool {
	var format string
	return json.Unmarshal(raw, &format) == nil && slices.Contains(strictFormats, format)
}

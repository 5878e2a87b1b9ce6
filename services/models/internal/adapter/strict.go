package adapter

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Strict is the smaller dialect of schemas that a provider takes for strict function calling: every object is closed,
// and what cannot be said in the dialect is said without strict.
type Strict struct {
	// Keywords may be said.
	Keywords []string
	// Dropped are keywords that only narrow: they are left to local validation.
	Dropped []string
	// Formats of strings that may be said; others are dropped.
	Formats []string
	// RequireAll: every property must be required, so that what is optional becomes nullable (a null at an optional
	// field is removed again before validation).
	RequireAll bool
}

// Schema projects parameters to the dialect, or says why that is not possible.
func (d Strict) Schema(raw json.RawMessage) (json.RawMessage, error) { return d.schema(raw, 0) }

// Tool is the schema of a tool as a request says it, and whether strictly: where that is asked for and can be said. That it
// cannot is a warning.
func (d Strict) Tool(r *Request, t agent.ModelTool) (schema json.RawMessage, strict bool) {
	if !t.Strict {
		return t.InputSchema, false
	}
	schema, err := d.Schema(t.InputSchema)
	if err != nil {
		r.Warn("tool %q is not strict: %v", t.Name, err)
		return t.InputSchema, false
	}
	return schema, true
}

// Answer is the schema of an answer, said strictly; false where it cannot be, or is none of objects, which alone providers take.
func (d Strict) Answer(raw json.RawMessage) (json.RawMessage, bool) {
	schema, err := d.Schema(raw)
	return schema, err == nil && isObject(raw)
}

func (d Strict) schema(raw json.RawMessage, depth int) (json.RawMessage, error) {
	if depth > maxSchemaDepth {
		return nil, fmt.Errorf("nested over %d levels", maxSchemaDepth)
	}
	o, err := ParseObject(raw)
	if err != nil {
		return nil, err
	}
	o.Remove(d.Dropped...)
	for _, name := range o.Names() {
		if !slices.Contains(d.Keywords, name) {
			return nil, fmt.Errorf("%q cannot be said strictly", name)
		}
	}
	if format, ok := o.Get("format"); ok && !d.hasFormat(format) {
		o.Remove("format")
	}
	if !o.Has("type") && !o.Has("$ref") && !o.Has("anyOf") && !o.Has("oneOf") && !o.Has("enum") && !o.Has("const") {
		return nil, fmt.Errorf("a value of any type cannot be said strictly")
	}
	if err := d.close(&o); err != nil {
		return nil, err
	}
	if err := d.children(&o, depth); err != nil {
		return nil, err
	}
	return o.MarshalJSON()
}

// close allows no properties but those that are named, and requires all of them where the dialect does.
func (d Strict) close(o *Object) error {
	if !allows(*o, "object") {
		return nil
	}
	if more, ok := o.Get("additionalProperties"); ok && string(more) != "false" {
		return fmt.Errorf("an open object cannot be said strictly")
	}
	raw, ok := o.Get("properties")
	if !ok {
		return fmt.Errorf("an object of any properties cannot be said strictly")
	}
	properties, err := ParseObject(raw)
	if err != nil {
		return err
	}
	if !d.RequireAll {
		o.Set("additionalProperties", json.RawMessage("false"))
		return nil
	}
	required := stringsOf(*o, "required")
	for i, m := range properties {
		if slices.Contains(required, m.Name) {
			continue
		}
		if properties[i].Value, err = nullable(m.Value); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	if err := o.SetJSON("properties", properties); err != nil {
		return err
	}
	if err := o.SetJSON("required", properties.Names()); err != nil {
		return err
	}
	o.Set("additionalProperties", json.RawMessage("false"))
	return nil
}

// children projects the schemas inside a schema. One of several becomes any of several: exactly one is checked
// locally.
func (d Strict) children(o *Object, depth int) error {
	if one, ok := o.Get("oneOf"); ok && !o.Has("anyOf") {
		o.Set("anyOf", one)
	}
	o.Remove("oneOf")
	for _, name := range []string{"properties", "$defs", "definitions"} {
		raw, ok := o.Get(name)
		if !ok {
			continue
		}
		children, err := ParseObject(raw)
		if err != nil {
			return err
		}
		for i, m := range children {
			if children[i].Value, err = d.schema(m.Value, depth+1); err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
		}
		if err := o.SetJSON(name, children); err != nil {
			return err
		}
	}
	if raw, ok := o.Get("items"); ok {
		items, err := d.schema(raw, depth+1)
		if err != nil {
			return fmt.Errorf("items: %w", err)
		}
		o.Set("items", items)
	}
	return d.branches(o, depth)
}

func (d Strict) branches(o *Object, depth int) error {
	raw, ok := o.Get("anyOf")
	if !ok {
		return nil
	}
	var branches []json.RawMessage
	if err := json.Unmarshal(raw, &branches); err != nil {
		return fmt.Errorf("anyOf is not a list of schemas")
	}
	for i, b := range branches {
		var err error
		if branches[i], err = d.schema(b, depth+1); err != nil {
			return fmt.Errorf("anyOf: %w", err)
		}
	}
	return o.SetJSON("anyOf", branches)
}

// nullable lets a schema also take null.
func nullable(raw json.RawMessage) (json.RawMessage, error) {
	o, err := ParseObject(raw)
	if err != nil {
		return nil, err
	}
	types := typesOf(o)
	if slices.Contains(types, "null") {
		return raw, nil
	}
	if len(types) == 0 || o.Has("const") || o.Has("anyOf") || o.Has("oneOf") {
		return events.Marshal(map[string]any{"anyOf": []any{o, map[string]string{"type": "null"}}})
	}
	if err := o.SetJSON("type", append(types, "null")); err != nil {
		return nil, err
	}
	if raw, ok := o.Get("enum"); ok {
		var values []json.RawMessage
		if err := json.Unmarshal(raw, &values); err != nil {
			return nil, fmt.Errorf("enum is not a list")
		}
		if err := o.SetJSON("enum", append(values, json.RawMessage("null"))); err != nil {
			return nil, err
		}
	}
	return o.MarshalJSON()
}

// typesOf are the types that a schema names, as a list.
func typesOf(o Object) []string {
	if list := stringsOf(o, "type"); list != nil {
		return list
	}
	raw, _ := o.Get("type")
	var one string
	if json.Unmarshal(raw, &one) != nil || one == "" {
		return nil
	}
	return []string{one}
}

func allows(o Object, kind string) bool { return slices.Contains(typesOf(o), kind) }

func (d Strict) hasFormat(raw json.RawMessage) bool {
	var format string
	return json.Unmarshal(raw, &format) == nil && slices.Contains(d.Formats, format)
}

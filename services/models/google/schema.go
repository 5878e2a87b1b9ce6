package google

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// keywords are those that Gemini takes of a JSON Schema. What others demand is left to local validation.
var keywords = []string{
	"$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems",
	"maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required", "propertyOrdering",
}

// maxDepth ends schemas that are nested without an end.
const maxDepth = 32

// project gives the part of a tool's parameters that can be told.
func project(raw json.RawMessage) (json.RawMessage, error) { return projected(raw, 0) }

func projected(raw json.RawMessage, depth int) (json.RawMessage, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("input schema: nested over %d levels", maxDepth)
	}
	switch string(bytes.TrimSpace(raw)) {
	case "true", "false": // of any value; what none may be is checked locally
		return json.RawMessage(`{}`), nil
	}
	o, err := adapter.ParseObject(raw)
	if err != nil {
		return nil, fmt.Errorf("input schema: %w", err)
	}
	if o.Has("definitions") && !o.Has("$defs") {
		defs, _ := o.Get("definitions")
		o.Set("$defs", defs)
	}
	if value, ok := o.Get("const"); ok && !o.Has("enum") {
		_ = o.SetJSON("enum", []json.RawMessage{value}) // a JSON value always encodes
	}
	narrow(&o)
	for _, name := range o.Names() {
		if !slices.Contains(keywords, name) || o.Has("$ref") && !strings.HasPrefix(name, "$") {
			o.Remove(name)
		}
	}
	for i := range o {
		if o[i].Value, err = projectMember(o[i], depth+1); err != nil {
			return nil, err
		}
	}
	return o.MarshalJSON()
}

// narrow keeps an enum only where its values are texts or numbers, for which Gemini has it.
func narrow(o *adapter.Object) {
	raw, ok := o.Get("enum")
	if !ok {
		return
	}
	var values, kept []json.RawMessage
	_ = json.Unmarshal(raw, &values) // what is no list has no values
	for _, v := range values {
		switch v[0] {
		case '"', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			kept = append(kept, v)
		case 'n': // null is said by the type
		default:
			kept = nil
		}
		if len(kept) == 0 && v[0] != 'n' {
			break
		}
	}
	if len(kept) == 0 {
		o.Remove("enum")
		return
	}
	_ = o.SetJSON("enum", kept)
	if !o.Has("type") && !slices.ContainsFunc(kept, func(v json.RawMessage) bool { return v[0] != '"' }) {
		_ = o.SetJSON("type", "string")
	}
}

// projectMember projects the schemas that a keyword holds.
func projectMember(m adapter.Member, depth int) (json.RawMessage, error) {
	switch m.Name {
	case "$ref":
		return bytes.Replace(m.Value, []byte("#/definitions/"), []byte("#/$defs/"), 1), nil
	case "properties", "$defs":
		o, err := adapter.ParseObject(m.Value)
		if err != nil {
			return nil, fmt.Errorf("input schema: %s: %w", m.Name, err)
		}
		for i := range o {
			if o[i].Value, err = projected(o[i].Value, depth); err != nil {
				return nil, err
			}
		}
		return o.MarshalJSON()
	case "anyOf", "oneOf", "prefixItems":
		var list []json.RawMessage
		if err := json.Unmarshal(m.Value, &list); err != nil {
			return nil, fmt.Errorf("input schema: %s is not a list of schemas", m.Name)
		}
		for i := range list {
			var err error
			if list[i], err = projected(list[i], depth); err != nil {
				return nil, err
			}
		}
		return json.Marshal(list)
	case "items":
		return projected(m.Value, depth)
	case "additionalProperties":
		if m.Value[0] == '{' {
			return projected(m.Value, depth)
		}
	}
	return m.Value, nil
}

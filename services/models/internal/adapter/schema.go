package adapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// A tool's schema is projected to what function parameters may be: an object at the top, without choices there. Calls
// are validated against the full schema elsewhere, so a projection may say less, never something else.

// maxSchemaDepth ends schemas that refer to themselves.
const maxSchemaDepth = 32

// noParameters is the schema of a tool without arguments.
var noParameters = json.RawMessage(`{"type":"object","properties":{}}`)

// notAtTop are keywords that parameters may not have at the top. What they demand is left to local validation.
var notAtTop = []string{
	"$schema", "$id", "$anchor", "$comment", "$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
	"enum", "const", "dependentSchemas", "dependentRequired",
}

// Parameters projects a tool's input schema. A schema that fits already keeps its bytes.
func Parameters(raw json.RawMessage) (json.RawMessage, error) {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "true", "{}":
		return noParameters, nil
	}
	root, err := ParseObject(raw)
	if err != nil {
		return nil, fmt.Errorf("input schema: %w", err)
	}
	flat, err := flatten(root, root, 0)
	if err != nil {
		return nil, fmt.Errorf("input schema: %w", err)
	}
	return flat.MarshalJSON()
}

// flatten gives a schema of an object without choices at its top: references are followed, members of all branches
// are offered, and only what every branch requires is required.
func flatten(root, node Object, depth int) (Object, error) {
	if depth > maxSchemaDepth {
		return nil, errors.New("too many references")
	}
	out := slices.Clone(node)
	out.Remove(notAtTop...)
	if err := setObjectType(&out); err != nil {
		return nil, err
	}
	if ref, ok := node.Get("$ref"); ok {
		target, err := resolve(root, ref)
		if err != nil {
			return nil, err
		}
		if err := merge(root, &out, []Object{target}, depth, true); err != nil {
			return nil, err
		}
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		branches, err := branchesOf(node, keyword)
		if err != nil {
			return nil, err
		}
		if err := merge(root, &out, branches, depth, keyword == "allOf"); err != nil {
			return nil, err
		}
	}
	if !out.Has("properties") {
		out.Set("properties", json.RawMessage(`{}`))
	}
	return out, nil
}

// setObjectType makes the type "object", and refuses a schema that allows no object.
func setObjectType(o *Object) error {
	raw, ok := o.Get("type")
	if ok && string(raw) == `"object"` {
		return nil
	}
	var list []string
	if ok && (json.Unmarshal(raw, &list) != nil || !slices.Contains(list, "object")) {
		return fmt.Errorf("arguments are an object, not %s", raw)
	}
	if ok {
		o.Set("type", json.RawMessage(`"object"`))
		return nil
	}
	*o = append(Object{{"type", json.RawMessage(`"object"`)}}, *o...)
	return nil
}

func branchesOf(node Object, keyword string) ([]Object, error) {
	raw, ok := node.Get(keyword)
	if !ok {
		return nil, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%s is not a list of schemas", keyword)
	}
	var out []Object
	for _, b := range list {
		o, err := ParseObject(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", keyword, err)
		}
		out = append(out, o)
	}
	return out, nil
}

// merge adds the properties of all branches. When all of them hold at once each adds what it requires; when one of
// them holds only what all require is required.
func merge(root Object, out *Object, branches []Object, depth int, all bool) error {
	var shared []string
	for i, b := range branches {
		flat, err := flatten(root, b, depth+1)
		if err != nil {
			return err
		}
		if err := mergeProperties(out, flat); err != nil {
			return err
		}
		required := stringsOf(flat, "required")
		switch {
		case all || i == 0:
			shared = append(shared, required...)
		default:
			shared = slices.DeleteFunc(shared, func(s string) bool { return !slices.Contains(required, s) })
		}
	}
	if len(shared) == 0 {
		return nil
	}
	required := stringsOf(*out, "required")
	for _, name := range shared {
		if !slices.Contains(required, name) {
			required = append(required, name)
		}
	}
	return out.SetJSON("required", required)
}

func mergeProperties(out *Object, branch Object) error {
	raw, _ := branch.Get("properties") // flatten has set it
	more, err := ParseObject(raw)
	if err != nil {
		return fmt.Errorf("properties: %w", err)
	}
	mine := Object{}
	if raw, ok := out.Get("properties"); ok {
		if mine, err = ParseObject(raw); err != nil {
			return fmt.Errorf("properties: %w", err)
		}
	}
	for _, m := range more {
		old, ok := mine.Get(m.Name)
		if ok && !bytes.Equal(old, m.Value) {
			if m.Value, err = events.Marshal(map[string]any{"anyOf": []json.RawMessage{old, m.Value}}); err != nil {
				return err
			}
		}
		mine.Set(m.Name, m.Value)
	}
	return out.SetJSON("properties", mine)
}

// resolve follows a reference within the document.
func resolve(root Object, ref json.RawMessage) (Object, error) {
	var path string
	if err := json.Unmarshal(ref, &path); err != nil || !strings.HasPrefix(path, "#/") {
		return nil, fmt.Errorf("reference %s is not into this schema", ref)
	}
	node := root
	for name := range strings.SplitSeq(path[2:], "/") {
		raw, ok := node.Get(strings.NewReplacer("~1", "/", "~0", "~").Replace(name))
		if !ok {
			return nil, fmt.Errorf("reference %s leads nowhere", ref)
		}
		var err error
		if node, err = ParseObject(raw); err != nil {
			return nil, fmt.Errorf("reference %s: %w", ref, err)
		}
	}
	return node, nil
}

func stringsOf(o Object, name string) []string {
	var list []string
	if raw, ok := o.Get(name); ok {
		_ = json.Unmarshal(raw, &list) // what is not a list of names requires nothing here
	}
	return list
}

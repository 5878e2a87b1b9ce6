package agent

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"math/big"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/weirkeeper/weir/events"
)

var (
	rawType           = reflect.TypeFor[json.RawMessage]()
	numberType        = reflect.TypeFor[json.Number]()
	timeType          = reflect.TypeFor[time.Time]()
	bigIntType        = reflect.TypeFor[big.Int]()
	urlType           = reflect.TypeFor[url.URL]()
	marshalerType     = reflect.TypeFor[json.Marshaler]()
	unmarshalerType   = reflect.TypeFor[json.Unmarshaler]()
	textMarshalerType = reflect.TypeFor[encoding.TextMarshaler]()
	schemaType        = reflect.TypeFor[interface{ JSONSchema() *jsonschema.Schema }]()
)

// SchemaOf is the JSON Schema of values that decode into T, for [ToolOptions]. Of a type that JSON cannot hold it is a
// schema that says so and does not compile, which [NewTool] reports.
func SchemaOf[T any]() json.RawMessage {
	raw, err := inputSchema(reflect.TypeFor[T]())
	if err != nil {
		raw, _ = events.Marshal(map[string]string{"type": err.Error()}) // a string always encodes
	}
	return raw
}

// inputSchema is the schema of arguments that decode into t. Fields without omitempty are required; keys that t does
// not have are dropped before the handler, so the schema does not forbid them.
func inputSchema(t reflect.Type) (json.RawMessage, error) {
	if anything(t) {
		return nil, nil
	}
	return reflectSchema(t)
}

// outputSchema is the schema of what t encodes to, or nil when that says nothing: t holds any JSON, or refers to
// itself. Where Go writes null (nil pointers, slices, maps and interfaces), the schema takes it.
func outputSchema(t reflect.Type) (json.RawMessage, error) {
	if anything(t) || recursive(t, nil) {
		return nil, nil
	}
	raw, err := reflectSchema(t)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, err
	}
	return events.Marshal(takeNull(t, doc))
}

// anything reports whether t decodes from and encodes to any JSON.
func anything(t reflect.Type) bool {
	return t == nil || t == rawType || t.Kind() == reflect.Interface
}

func reflectSchema(t reflect.Type) (raw json.RawMessage, err error) {
	defer func() {
		// The reflector panics on what JSON cannot hold, such as a channel.
		if r := recover(); r != nil {
			raw, err = nil, fmt.Errorf("no schema for %s: %v", t, r)
		}
	}()
	again := recursive(t, nil)
	r := jsonschema.Reflector{
		Anonymous:                 true,
		AllowAdditionalProperties: true,
		Mapper:                    mapType,
		DoNotReference:            !again,
		Namer:                     namer(),
	}
	s := r.ReflectFromType(t)
	s.Version = ""
	if again && structLike(t) {
		s.Type = "object" // beside the reference, because models and their providers look for it here
	}
	return events.Marshal(s)
}

// namer names types within one schema. Types of different packages may have one name, and a generic type's name is
// no part of a reference.
func namer() func(reflect.Type) string {
	names := map[reflect.Type]string{}
	return func(t reflect.Type) string {
		if t.Name() == "" {
			return ""
		}
		if names[t] == "" {
			base, _, _ := strings.Cut(t.Name(), "[")
			names[t] = fmt.Sprintf("%s%d", base, len(names)+1)
		}
		return names[t]
	}
}

// mapType gives the schema of types whose JSON is not what their kind suggests.
func mapType(t reflect.Type) *jsonschema.Schema {
	switch {
	case t == timeType || t.Implements(schemaType):
		return nil // the reflector knows
	case t == numberType:
		return &jsonschema.Schema{Type: "number"}
	case t == bigIntType:
		return &jsonschema.Schema{Type: "integer"}
	case t == rawType || t == urlType || customJSON(t):
		return &jsonschema.Schema{}
	case customText(t):
		return &jsonschema.Schema{Type: "string"}
	case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Interface:
		return &jsonschema.Schema{Type: "object", AdditionalProperties: &jsonschema.Schema{}}
	}
	return nil
}

func customJSON(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(marshalerType) || p.Implements(unmarshalerType)
}

func customText(t reflect.Type) bool { return reflect.PointerTo(t).Implements(textMarshalerType) }

// opaque reports whether the JSON of t is not that of its fields and elements.
func opaque(t reflect.Type) bool {
	return t == timeType || t == rawType || t == urlType || customJSON(t) || customText(t) || t.Implements(schemaType)
}

// recursive reports whether t holds itself, so that its schema needs references.
func recursive(t reflect.Type, above []reflect.Type) bool {
	if slices.Contains(above, t) {
		return true
	}
	if opaque(t) {
		return false
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return recursive(t.Elem(), append(slices.Clip(above), t))
	case reflect.Struct:
		for field := range t.Fields() {
			if recursive(field.Type, append(slices.Clip(above), t)) {
				return true
			}
		}
	default:
	}
	return false
}

// takeNull lets the schema of t accept null wherever Go encodes a nil value as null.
func takeNull(t reflect.Type, schema any) any {
	doc, ok := schema.(map[string]any)
	if !ok || opaque(t) && t.Kind() != reflect.Pointer {
		return schema
	}
	switch t.Kind() {
	case reflect.Pointer:
		return orNull(takeNull(t.Elem(), doc))
	case reflect.Slice:
		if items, ok := doc["items"]; ok {
			doc["items"] = takeNull(t.Elem(), items)
		}
		return orNull(doc)
	case reflect.Array:
		doc["items"] = takeNull(t.Elem(), doc["items"])
	case reflect.Map:
		if rest, ok := doc["additionalProperties"]; ok {
			doc["additionalProperties"] = takeNull(t.Elem(), rest)
		}
		return orNull(doc)
	case reflect.Struct:
		takeNullInFields(t, doc)
	default:
	}
	return doc
}

func takeNullInFields(t reflect.Type, doc map[string]any) {
	properties, ok := doc["properties"].(map[string]any)
	if !ok {
		return
	}
	for _, f := range reflect.VisibleFields(t) {
		name, named := fieldName(f)
		if field, ok := properties[name]; ok && named {
			properties[name] = takeNull(f.Type, field)
		}
	}
}

func orNull(schema any) any {
	doc, ok := schema.(map[string]any)
	if !ok {
		return schema
	}
	kind, simple := doc["type"].(string)
	if _, enum := doc["enum"]; simple && !enum {
		doc["type"] = []any{kind, "null"}
		return doc
	}
	return map[string]any{"anyOf": []any{doc, map[string]any{"type": "null"}}}
}

package agent

import (
	"bytes"
	"encoding/json"
	"math/big"
	"reflect"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// decode reads JSON into *v as encoding/json does, with three differences that keep what runs equal to what was
// approved: numbers in untyped places keep their digits; a key fills a field only if it is spelled exactly as the
// field's name (the standard library lets "AMOUNT" overwrite "amount"); and integers may be written as 5.0 or 5e0,
// as JSON Schema allows.
func decode[T any](raw json.RawMessage, v *T) error {
	target := reflect.TypeFor[T]()
	if anything(target) {
		return unmarshal(raw, v)
	}
	var doc any
	if err := unmarshal(raw, &doc); err != nil {
		return err
	}
	if doc, changed := adapt(target, doc); changed {
		exact, err := events.Marshal(doc)
		if err != nil {
			return err
		}
		raw = exact
	}
	return unmarshal(raw, v)
}

func unmarshal(raw json.RawMessage, v any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return dec.Decode(v)
}

// adapt changes a decoded value, at any depth, to one that encoding/json reads into t as described at decode. It
// reports whether anything had to change.
func adapt(t reflect.Type, doc any) (adapted any, changed bool) {
	if opaque(t) {
		return doc, false
	}
	switch v := doc.(type) {
	case map[string]any:
		switch t.Kind() {
		case reflect.Struct:
			return v, adaptFields(t, v)
		case reflect.Map:
			for key, value := range v {
				was := false
				v[key], was = adapt(t.Elem(), value)
				changed = changed || was
			}
			return v, changed
		default:
		}
	case []any:
		if t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
			for i, item := range v {
				was := false
				v[i], was = adapt(t.Elem(), item)
				changed = changed || was
			}
			return v, changed
		}
	case json.Number:
		if integral(t) {
			return integer(v)
		}
	}
	if t.Kind() == reflect.Pointer {
		return adapt(t.Elem(), doc)
	}
	return doc, false
}

// adaptFields adapts the values of fields and removes keys that equal the name of a field but for their case.
func adaptFields(t reflect.Type, m map[string]any) (changed bool) {
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		if name, ok := fieldName(f); ok {
			fields[name] = f.Type
		}
	}
	for key, value := range m {
		if field, exact := fields[key]; exact {
			was := false
			m[key], was = adapt(field, value)
			changed = changed || was
			continue
		}
		for name := range fields {
			if strings.EqualFold(name, key) {
				delete(m, key)
				changed = true
				break
			}
		}
	}
	return changed
}

// fieldName is the key of a field in JSON, if it has one.
func fieldName(f reflect.StructField) (string, bool) {
	tag := f.Tag.Get("json")
	name, _, _ := strings.Cut(tag, ",")
	switch {
	case tag == "-" || !f.IsExported():
		return "", false
	case name != "":
		return name, true
	case f.Anonymous && structLike(f.Type):
		return "", false // its fields stand in its place
	}
	return f.Name, true
}

func structLike(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}

func integral(t reflect.Type) bool {
	return t.Kind() >= reflect.Int && t.Kind() <= reflect.Uintptr
}

// integer writes a whole number without fraction and exponent. Exponents are bounded where arguments are read.
func integer(n json.Number) (json.Number, bool) {
	if !strings.ContainsAny(n.String(), ".eE") {
		return n, false
	}
	r, ok := new(big.Rat).SetString(n.String())
	if !ok || !r.IsInt() {
		return n, false
	}
	return json.Number(r.Num().String()), true
}

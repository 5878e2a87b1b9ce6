package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// Budgets of a schema. They keep what a schema costs in proportion to its size, because the validator itself knows no
// limits: a few lines of references that double each other would keep it busy for hours.
const (
	maxSchemaBytes = 64 << 10
	maxSubschemas  = 1000
	maxReferences  = 256
	maxPattern     = 512
	maxProgram     = 5000   // instructions of a compiled pattern
	maxVisits      = 20_000 // schemas applied to one value, and
	visitsPerByte  = 2      // so many more for each byte of it
)

const schemaURL = "weir:schema"

// Schema is a compiled JSON Schema. It may be used by several goroutines at once.
type Schema struct {
	root   *jsonschema.Schema
	at     map[string]*jsonschema.Schema // by location, for error texts
	linear bool                          // applying it visits each part of a value a bounded number of times
	quick  *shape                        // nil when the schema uses more than a shape can say
}

// CompileSchema compiles a JSON Schema, of draft 2020-12 unless it says otherwise. Formats are asserted. Nothing is
// ever loaded: a schema that refers to anything but itself and the meta-schemas is refused, and so is one over the
// budgets: 64 KiB, 64 levels, 1,000 subschemas, 256 references, patterns of 512 characters. Patterns are RE2.
func CompileSchema(raw []byte) (*Schema, error) { return compileSchema(raw, nil) }

func compileSchema(raw []byte, known map[string][]byte) (s *Schema, err error) {
	if err := checkSchema(raw); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	defer func() {
		if r := recover(); r != nil { // the compiler panics on a few malformed schemas
			s, err = nil, fmt.Errorf("schema: cannot be compiled: %v", r)
		}
	}()
	c := jsonschema.NewCompiler()
	c.Draft = jsonschema.Draft2020
	c.AssertFormat = true
	c.ExtractAnnotations = true
	c.LoadURL = func(url string) (io.ReadCloser, error) {
		if doc, ok := known[url]; ok {
			return io.NopCloser(bytes.NewReader(doc)), nil
		}
		return nil, fmt.Errorf("a reference to %s: a schema must be complete in itself", url)
	}
	secretExtension(c)
	if err := c.AddResource(schemaURL, bytes.NewReader(raw)); err != nil {
		return nil, schemaError(err)
	}
	root, err := c.Compile(schemaURL)
	if err != nil {
		return nil, schemaError(err)
	}
	s = &Schema{root: root, at: map[string]*jsonschema.Schema{}, linear: true}
	if err := s.explore(root); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	s.quick = shapeOf(root)
	return s, nil
}

// schemaError keeps the reason and leaves out the names that only this package knows.
func schemaError(err error) error {
	text := err.Error()
	if invalid, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		leaf := invalid
		for len(leaf.Causes) > 0 {
			leaf = leaf.Causes[0]
		}
		text = fmt.Sprintf("at %q: %s", leaf.InstanceLocation, leaf.Message)
	}
	for _, drop := range []string{"jsonschema: ", "jsonschema ", schemaURL + " compilation failed: ", schemaURL} {
		text = strings.ReplaceAll(text, drop, "")
	}
	return fmt.Errorf("schema: %s", text)
}

// checkSchema holds the text of a schema against the budgets, before anything expensive is done with it.
func checkSchema(raw []byte) error {
	if len(raw) > maxSchemaBytes {
		return fmt.Errorf("%d bytes, at most %d are allowed", len(raw), maxSchemaBytes)
	}
	b := budget{scanner: scanner{b: raw, depth: MaxJSONDepth, keys: make([]text, 0, 16)}}
	if err := b.only(b.value); err != nil {
		return err
	}
	switch {
	case b.references > maxReferences:
		return fmt.Errorf("%d references, at most %d are allowed", b.references, maxReferences)
	case b.objects > maxSubschemas:
		return fmt.Errorf("%d subschemas, at most %d are allowed", b.objects, maxSubschemas)
	}
	return nil
}

// budget counts what a schema's text holds. It counts every object as a subschema: a few are not, none is missed.
type budget struct {
	scanner
	references, objects int
}

func (b *budget) value() error {
	switch b.peek() {
	case '{':
		b.objects++
		return b.object(b.member)
	case '[':
		return b.array(b.value)
	case '"':
		_, err := b.str()
		return err
	}
	return b.scalar()
}

func (b *budget) member(key text) error {
	switch key.String() {
	case "$ref":
		b.references++
	case "$dynamicRef", "$recursiveRef": // what they mean depends on the way to them, so their cost has no bound
		if b.peek() == '"' {
			return b.fail(b.i, "%s is not taken, use $ref", key.String())
		}
	case "pattern":
		if start := b.i; b.peek() == '"' {
			t, err := b.str()
			if err == nil && len(t.raw) > maxPattern {
				return b.fail(start, "pattern of more than %d characters", maxPattern)
			}
			return err
		}
	case "patternProperties":
		return b.patterns()
	}
	return b.value()
}

func (b *budget) patterns() error {
	if b.peek() != '{' {
		return b.value()
	}
	return b.object(func(key text) error {
		if len(key.raw) > maxPattern {
			return b.fail(b.i, "pattern of more than %d characters", maxPattern)
		}
		return b.value()
	})
}

// Validate checks a decoded value, with numbers as [json.Number]. What is wrong with it is an error of type
// [*InvalidData]. A value on which the schema would spend more than its budget is refused too.
func (s *Schema) Validate(v any) (err error) {
	if !s.linear {
		left := maxVisits + visitsPerByte*sizeOf(v)
		if !visit(s.root, v, &left) {
			return invalidText("too much work for the schema: it applies itself to the same parts again and again")
		}
	}
	defer func() {
		if r := recover(); r != nil { // a value that is no JSON, or a number beyond reason
			err = invalidText(fmt.Sprintf("cannot be checked: %v", r))
		}
	}()
	err = s.root.Validate(v)
	if err == nil {
		return nil
	}
	if invalid, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return &InvalidData{Issues: s.issues(invalid, v)}
	}
	return invalidText(fmt.Sprintf("cannot be checked: %v", err))
}

// ValidateRaw checks a JSON text.
func (s *Schema) ValidateRaw(raw json.RawMessage) error {
	if s.quick != nil && s.quick.accepts(raw) {
		return nil
	}
	if err := checkJSON(raw, maxEventDepth); err != nil {
		return invalidText(err.Error())
	}
	return s.Validate(decodeAny(raw))
}

// sizeOf is about the number of bytes that v had as a text.
func sizeOf(v any) int {
	n := 2
	switch v := v.(type) {
	case map[string]any:
		for k, field := range v {
			n += len(k) + 4 + sizeOf(field)
		}
	case []any:
		for _, item := range v {
			n += 1 + sizeOf(item)
		}
	case string:
		n += len(v)
	case json.Number:
		n += len(v)
	}
	return n
}

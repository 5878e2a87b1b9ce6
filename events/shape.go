package events

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// A shape is the part of JSON Schema that can be checked while the text is scanned, without decoding it: types,
// fields, required ones, items, texts out of a list, lengths, times. It only ever says yes. Whatever it cannot tell,
// because of the schema or because of the value, is left to the validator, which also finds the words for what is
// wrong. The schemas of Weir's own events have shapes, so that checking an event costs one pass over its bytes and
// no allocation to speak of; the tests hold shapes against the validator.
type shape struct {
	types    typeSet
	fields   map[string]*field
	required uint64 // bits of the fields that must be there
	closed   bool   // no field but those listed
	rest     *shape // of fields that are not listed; nil allows all
	items    *shape // nil allows all
	enum     []string
	dateTime bool

	minLength, maxLength int
	minItems, maxItems   int
	minimum              int64
	bounded              bool     // minimum is set
	forms                []*shape // of which types decide; nil for a shape of its own
	ready                bool     // while shapes are made
}

type field struct {
	shape *shape
	bit   uint64
}

type typeSet uint8

const (
	typeNull typeSet = 1 << iota
	typeBoolean
	typeInteger
	typeNumber
	typeString
	typeArray
	typeObject
	typeAny = typeNull | typeBoolean | typeInteger | typeNumber | typeString | typeArray | typeObject
)

var typeNames = map[string]typeSet{
	"null": typeNull, "boolean": typeBoolean, "integer": typeInteger,
	"number": typeNumber | typeInteger, "string": typeString, "array": typeArray, "object": typeObject,
}

// shapeOf is the shape of a schema, or nil when the schema says more than a shape can.
func shapeOf(n *jsonschema.Schema) *shape {
	c := shaper{done: map[*jsonschema.Schema]*shape{}}
	s := c.shape(n)
	if c.beyond {
		return nil
	}
	return s
}

type shaper struct {
	done   map[*jsonschema.Schema]*shape
	beyond bool
}

func (c *shaper) shape(n *jsonschema.Schema) *shape {
	if s, ok := c.done[n]; ok {
		return s
	}
	if n.Ref != nil {
		c.beyond = c.beyond || !bare(n, 1)
		return c.shape(n.Ref) // the same one, which may still be on its way: schemas refer to themselves
	}
	s := &shape{types: typeAny, minLength: -1, maxLength: -1, minItems: -1, maxItems: -1}
	c.done[n] = s
	switch {
	case n.Always != nil:
		c.beyond = c.beyond || !*n.Always
	case len(n.AnyOf) > 0:
		c.choose(s, n)
	default:
		c.fill(s, n)
	}
	s.ready = true
	return s
}

// choose takes anyOf when the type of a value decides which form can be meant.
func (c *shaper) choose(s *shape, n *jsonschema.Schema) {
	c.beyond = c.beyond || !bare(n, len(n.AnyOf))
	s.types = 0
	for _, form := range n.AnyOf {
		f := c.shape(form)
		c.beyond = c.beyond || !f.ready || s.types&f.types != 0
		s.types |= f.types
		s.forms = append(s.forms, f)
	}
}

// bare reports whether n has exactly so many branches and no keyword that they would have to be combined with.
func bare(n *jsonschema.Schema, most int) bool {
	return len(branches(n)) == most && len(parts(n)) == 0 && len(n.Types) == 0 && n.Enum == nil && n.Constant == nil &&
		n.Required == nil && n.Format == "" && n.Pattern == nil && n.MinLength < 0 && n.MaxLength < 0 &&
		n.MinItems < 0 && n.MaxItems < 0 && n.MinProperties < 0 && n.MaxProperties < 0 && !n.UniqueItems &&
		n.AdditionalProperties == nil && n.AdditionalItems == nil && n.Minimum == nil && n.Maximum == nil &&
		n.ExclusiveMinimum == nil && n.ExclusiveMaximum == nil && n.MultipleOf == nil && n.DependentRequired == nil &&
		n.Dependencies == nil && n.Always == nil
}

func (c *shaper) fill(s *shape, n *jsonschema.Schema) {
	c.beyond = c.beyond || len(branches(n)) > 0 || n.Constant != nil || n.Pattern != nil || n.UniqueItems ||
		n.MinProperties >= 0 || n.MaxProperties >= 0 || n.PatternProperties != nil || n.PropertyNames != nil ||
		n.Maximum != nil || n.ExclusiveMinimum != nil || n.ExclusiveMaximum != nil || n.MultipleOf != nil ||
		n.DependentRequired != nil || n.Dependencies != nil || n.UnevaluatedProperties != nil ||
		n.UnevaluatedItems != nil || n.Contains != nil || n.Items != nil || n.PrefixItems != nil ||
		n.Format != "" && n.Format != "date-time"
	if len(n.Types) > 0 {
		s.types = 0
		for _, t := range n.Types {
			s.types |= typeNames[t]
		}
	}
	s.minLength, s.maxLength, s.minItems, s.maxItems = n.MinLength, n.MaxLength, n.MinItems, n.MaxItems
	s.dateTime = n.Format == "date-time"
	for _, v := range n.Enum {
		text, ok := v.(string)
		c.beyond = c.beyond || !ok
		s.enum = append(s.enum, text)
	}
	if n.Minimum != nil {
		c.beyond = c.beyond || !n.Minimum.IsInt() || !n.Minimum.Num().IsInt64()
		s.minimum, s.bounded = n.Minimum.Num().Int64(), true
	}
	if n.Items2020 != nil {
		s.items = c.shape(n.Items2020)
	}
	c.object(s, n)
}

func (c *shaper) object(s *shape, n *jsonschema.Schema) {
	switch rest := n.AdditionalProperties.(type) {
	case bool:
		s.closed = !rest
	case *jsonschema.Schema:
		s.rest = c.shape(rest)
	}
	s.fields = make(map[string]*field, len(n.Properties))
	for name, p := range n.Properties {
		s.fields[name] = &field{shape: c.shape(p)}
	}
	for i, name := range n.Required {
		f, listed := s.fields[name]
		if !listed || i >= 64 {
			c.beyond = true
			return
		}
		f.bit = 1 << i
		s.required |= f.bit
	}
}

// accepts reports whether raw is certainly valid.
func (s *shape) accepts(raw []byte) bool {
	m := matcher{scanner: scanner{b: raw, depth: maxEventDepth}}
	defer m.borrow()()
	m.space()
	if !m.match(s) {
		return false
	}
	m.space()
	return m.i == len(m.b)
}

type matcher struct{ scanner }

func (m *matcher) match(s *shape) bool {
	if s == nil {
		return m.value() == nil
	}
	t := typeOfByte(m.peek())
	if s.types&t == 0 {
		return false
	}
	for _, form := range s.forms {
		if form.types&t != 0 {
			return m.match(form)
		}
	}
	switch {
	case s.enum != nil && t != typeString:
		return false
	case t == typeObject:
		return m.object(s)
	case t == typeArray:
		return m.array(s)
	case t == typeString:
		return m.text(s)
	case t == typeInteger:
		return m.number(s)
	}
	return m.scalar() == nil
}

// typeOfByte is the type of the value that begins with c; of a number it says integer, which every number may be.
func typeOfByte(c byte) typeSet {
	switch c {
	case '{':
		return typeObject
	case '[':
		return typeArray
	case '"':
		return typeString
	case 't', 'f':
		return typeBoolean
	case 'n':
		return typeNull
	}
	return typeInteger
}

func (m *matcher) object(s *shape) bool {
	var found uint64
	err := m.scanner.object(func(key text) error {
		var next *shape
		if f, listed := s.fields[string(key.raw)]; listed && !key.escaped {
			found |= f.bit
			next = f.shape
		} else if s.closed || key.escaped || s.lists(string(key.raw)) {
			return errUnsure
		} else {
			next = s.rest
		}
		if !m.match(next) {
			return errUnsure
		}
		return nil
	})
	return err == nil && found&s.required == s.required
}

// lists reports whether a field that is not listed as it is would be in another case. Go's decoder would take the one
// for the other.
func (s *shape) lists(key string) bool {
	for name := range s.fields {
		if strings.EqualFold(name, key) && name != key {
			return true
		}
	}
	return false
}

// misspelt finds a field of v that is listed in another case only, at any depth.
func (s *shape) misspelt(v any) (string, bool) {
	if s == nil {
		return "", false
	}
	for _, form := range s.forms {
		if name, ok := form.misspelt(v); ok {
			return name, true
		}
	}
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			f, listed := s.fields[key]
			if !listed {
				f = &field{shape: s.rest}
				if s.lists(key) {
					return key, true
				}
			}
			if name, ok := f.shape.misspelt(value); ok {
				return joinField(key, name), true
			}
		}
	case []any:
		for _, item := range v {
			if name, ok := s.items.misspelt(item); ok {
				return name, true
			}
		}
	}
	return "", false
}

var errUnsure = &SyntaxError{What: "not certain"}

func (m *matcher) array(s *shape) bool {
	n := 0
	err := m.scanner.array(func() error {
		n++
		if !m.match(s.items) {
			return errUnsure
		}
		return nil
	})
	return err == nil && n >= s.minItems && (s.maxItems < 0 || n <= s.maxItems)
}

func (m *matcher) text(s *shape) bool {
	t, err := m.str()
	if err != nil {
		return false
	}
	if s.enum == nil && !s.dateTime && s.minLength <= 0 && s.maxLength < 0 {
		return true
	}
	if t.escaped {
		return false
	}
	if s.minLength > 0 || s.maxLength >= 0 && len(t.raw) > s.maxLength {
		n := utf8.RuneCount(t.raw)
		if n < s.minLength || s.maxLength >= 0 && n > s.maxLength {
			return false
		}
	}
	if s.enum != nil && !slices.ContainsFunc(s.enum, func(e string) bool { return e == string(t.raw) }) {
		return false
	}
	return !s.dateTime || isDateTime(t.raw)
}

// number accepts integers as they are usually written. A fraction or an exponent is a number, but no certain integer.
func (m *matcher) number(s *shape) bool {
	start := m.i
	if m.scanner.number() != nil {
		return false
	}
	raw := m.b[start:m.i]
	plain := !bytes.ContainsAny(raw, ".eE")
	if !plain && s.types&typeNumber == 0 {
		return false
	}
	if !s.bounded {
		return true
	}
	if !plain || len(raw) > 18 {
		return false
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return err == nil && n >= s.minimum && n < math.MaxInt64
}

var daysOf = [13]byte{0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// isDateTime accepts the times of RFC 3339 in UTC, as Weir writes them: 2026-03-02T09:14:07.133Z.
func isDateTime(b []byte) bool {
	const form = "0000-00-00T00:00:00"
	if len(b) <= len(form) || b[len(b)-1] != 'Z' {
		return false
	}
	for i := range len(form) {
		if digit := '0' <= b[i] && b[i] <= '9'; digit != (form[i] == '0') || !digit && b[i] != form[i] {
			return false
		}
	}
	num := func(i int) byte { return (b[i]-'0')*10 + b[i+1] - '0' }
	month, day := num(5), num(8)
	if month < 1 || month > 12 || day < 1 || num(11) > 23 || num(14) > 59 || num(17) > 59 {
		return false
	}
	last := daysOf[month]
	if leap := num(2)%4 == 0 && num(2) != 0; leap && month == 2 {
		last++
	}
	if day > last {
		return false
	}
	fraction := b[len(form) : len(b)-1]
	if len(fraction) == 0 {
		return true
	}
	if fraction[0] != '.' || len(fraction) < 2 || len(fraction) > 10 {
		return false
	}
	for _, c := range fraction[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

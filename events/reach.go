package events

import (
	"maps"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// This file answers what a schema says about one place of a value: the document, a field, an item. Functions take the
// schemas that stand there (several, when several branches of a composition speak about it) and follow references and
// compositions from them, each schema once, so that no schema makes them run without end.

const (
	maxPasses = 8  // rounds of filling in and stripping; two do for any schema without nested alternatives
	maxHops   = 16 // references from a field to its default
	fewPlaces = 16 // up to here comparing is cheaper than a map

	maxDefaults = 1000 // fields that defaults may set in one value
)

// seen is a list of schemas without repetition.
type seen struct {
	list []*jsonschema.Schema
	many map[*jsonschema.Schema]bool
}

// add appends s and reports whether it is new.
func (l *seen) add(s *jsonschema.Schema) bool {
	if s == nil || l.many[s] || l.many == nil && slices.Contains(l.list, s) {
		return false
	}
	l.list = append(l.list, s)
	if l.many == nil && len(l.list) > fewPlaces {
		l.many = make(map[*jsonschema.Schema]bool)
		for _, old := range l.list {
			l.many[old] = true
		}
	}
	if l.many != nil {
		l.many[s] = true
	}
	return true
}

// reach lists the schemas and everything that they may bring to the same place, every branch included.
func reach(schemas ...*jsonschema.Schema) []*jsonschema.Schema {
	var l seen
	for _, s := range schemas {
		l.reach(s)
	}
	return l.list
}

func (l *seen) reach(s *jsonschema.Schema) {
	if !l.add(s) {
		return
	}
	for _, next := range [...]*jsonschema.Schema{s.Ref, s.DynamicRef, s.RecursiveRef, s.If, s.Then, s.Else} {
		l.reach(next)
	}
	for _, branches := range [...][]*jsonschema.Schema{s.AllOf, s.AnyOf, s.OneOf} {
		for _, next := range branches {
			l.reach(next)
		}
	}
	for _, next := range s.DependentSchemas {
		l.reach(next)
	}
	for _, next := range s.Dependencies {
		if next, ok := next.(*jsonschema.Schema); ok {
			l.reach(next)
		}
	}
}

// certain lists the schemas and what holds with them beyond doubt for v: references, allOf, and of anyOf and oneOf
// the first branch that accepts v as it stands.
func certain(schemas []*jsonschema.Schema, v any) []*jsonschema.Schema {
	var l seen
	for _, s := range schemas {
		l.certain(s, v)
	}
	return l.list
}

func (l *seen) certain(s *jsonschema.Schema, v any) {
	if !l.add(s) {
		return
	}
	l.certain(s.Ref, v)
	for _, next := range s.AllOf {
		l.certain(next, v)
	}
	for _, branches := range [...][]*jsonschema.Schema{s.AnyOf, s.OneOf} {
		accepts := func(b *jsonschema.Schema) bool { return b.Validate(v) == nil }
		if i := slices.IndexFunc(branches, accepts); i >= 0 {
			l.certain(branches[i], v)
		}
	}
}

// property lists what schemas say about the value of a key. Nothing means that they do not know the key.
func property(at []*jsonschema.Schema, key string) []*jsonschema.Schema {
	var l seen
	for _, s := range at {
		listed := false
		if p, ok := s.Properties[key]; ok {
			listed = true
			l.add(p)
		}
		for pattern, p := range s.PatternProperties {
			if pattern.MatchString(key) {
				listed = true
				l.add(p)
			}
		}
		if rest, ok := s.AdditionalProperties.(*jsonschema.Schema); ok && !listed {
			l.add(rest)
		}
	}
	return l.list
}

// items lists what schemas say about the i-th item of an array.
func items(at []*jsonschema.Schema, i int) []*jsonschema.Schema {
	var l seen
	for _, s := range at {
		first := s.PrefixItems
		if tuple, ok := s.Items.([]*jsonschema.Schema); ok {
			first = tuple
		}
		if i < len(first) {
			l.add(first[i])
			continue
		}
		l.add(s.Items2020)
		for _, rest := range [...]any{s.Items, s.AdditionalItems} {
			if rest, ok := rest.(*jsonschema.Schema); ok {
				l.add(rest)
			}
		}
	}
	return l.list
}

// typesOf are the types that schemas name.
func typesOf(at []*jsonschema.Schema) []string {
	var types []string
	for _, s := range at {
		types = append(types, s.Types...)
	}
	return types
}

// closed reports whether keys that the schemas do not list are removed: they list some, and neither let others in
// (additionalProperties true or a schema) nor refuse them themselves (false, written by the author, is an error).
func closed(at []*jsonschema.Schema) bool {
	lists := false
	for _, s := range at {
		if s.AdditionalProperties != nil || s.UnevaluatedProperties != nil {
			return false
		}
		lists = lists || s.Properties != nil || s.PatternProperties != nil
	}
	return lists
}

// strip removes keys that are not listed, at any depth, and reports whether there were any. A key that any branch
// knows stays: what does not belong to the branch that applies is left to validation.
func strip(at []*jsonschema.Schema, v any) (changed bool) {
	if len(at) == 0 {
		return false
	}
	switch v := v.(type) {
	case map[string]any:
		all := reach(at...)
		remove := closed(all)
		for key, value := range v {
			field := property(all, key)
			if len(field) == 0 && remove {
				delete(v, key)
				changed = true
				continue
			}
			changed = strip(field, value) || changed
		}
	case []any:
		all := reach(at...)
		for i, item := range v {
			changed = strip(items(all, i), item) || changed
		}
	}
	return changed
}

// filler sets defaults. Those of a schema that refers to itself could go on for ever, so it stops after maxDefaults.
type filler struct{ count int }

// fill sets absent fields that have a default, at any depth, and reports whether there were any. Only what holds
// beyond doubt fills in; a default of null, which says no more than absence, does not.
func (f *filler) fill(at []*jsonschema.Schema, v any) (changed bool) {
	if len(at) == 0 {
		return false
	}
	switch v := v.(type) {
	case map[string]any:
		sure := certain(at, v)
		for _, s := range sure {
			changed = f.fields(s, v) || changed
		}
		for key, value := range v {
			changed = f.fill(property(sure, key), value) || changed
		}
	case []any:
		sure := certain(at, v)
		for i, item := range v {
			changed = f.fill(items(sure, i), item) || changed
		}
	}
	return changed
}

func (f *filler) fields(s *jsonschema.Schema, v map[string]any) (changed bool) {
	for key, field := range s.Properties {
		if _, given := v[key]; given || f.count >= maxDefaults {
			continue
		}
		if d, ok := defaultOf(field); ok {
			v[key] = clone(d)
			changed = true
			f.count++
		}
	}
	return changed
}

// defaultOf is the default of a field, its own or that of a schema it refers to.
func defaultOf(s *jsonschema.Schema) (any, bool) {
	for hops := 0; s != nil && hops < maxHops; hops++ {
		if s.Default != nil {
			return s.Default, true
		}
		s = s.Ref
	}
	return nil, false
}

// clone copies a decoded JSON value, so that no two of them share a part.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := maps.Clone(v)
		for key, value := range c {
			c[key] = clone(value)
		}
		return c
	case []any:
		c := slices.Clone(v)
		for i, item := range c {
			c[i] = clone(item)
		}
		return c
	}
	return v
}

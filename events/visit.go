package events

import (
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// This file bounds what validation costs. The validator applies every branch of a composition, and each of them
// applies its own to the parts of the value: two branches that lead back to the same schema double the work with
// every level. Most schemas cannot do that, which is found out once, when they are compiled. For the others a walk
// that only counts goes ahead of the validator, and stops early.

// maxInPlace is how many schemas may speak about one place of a value before a schema counts as one that multiplies.
const maxInPlace = 16

// explore lists the schemas that can be reached and finds out whether the work stays linear.
func (s *Schema) explore(n *jsonschema.Schema) error {
	if _, seen := s.at[n.Location]; seen {
		return nil
	}
	s.at[n.Location] = n
	left, descends := maxInPlace, 0
	if !inPlace(n, &left, &descends) || descends > 1 {
		s.linear = false
	}
	if err := checkPatterns(n); err != nil {
		return err
	}
	for _, next := range slices.Concat(branches(n), parts(n)) {
		if err := s.explore(next); err != nil {
			return err
		}
	}
	return nil
}

// checkPatterns refuses patterns that are short but long once their repetitions are written out: matching takes time
// in proportion to that.
func checkPatterns(n *jsonschema.Schema) error {
	patterns := slices.Collect(maps.Keys(n.PatternProperties))
	if n.Pattern != nil {
		patterns = append(patterns, n.Pattern)
	}
	for _, p := range patterns {
		tree, err := syntax.Parse(p.String(), syntax.Perl)
		if err != nil {
			return fmt.Errorf("pattern %q: %w", p, err)
		}
		prog, err := syntax.Compile(tree.Simplify())
		if err != nil {
			return fmt.Errorf("pattern %q: %w", p, err)
		}
		if len(prog.Inst) > maxProgram {
			return fmt.Errorf("pattern %q repeats too much", p)
		}
	}
	return nil
}

// inPlace counts the schemas that are applied to the same value as n, each as often as it is, and how many of those
// applications go down into its parts.
func inPlace(n *jsonschema.Schema, left, descends *int) bool {
	if *left--; *left < 0 {
		return false
	}
	*descends += descent(n)
	for _, next := range branches(n) {
		if !inPlace(next, left, descends) {
			return false
		}
	}
	return true
}

// descent is how often, at most, n applies schemas to one and the same part of its value.
func descent(n *jsonschema.Schema) int {
	d := 0
	if len(n.Properties) > 0 || n.AdditionalProperties != nil || n.UnevaluatedProperties != nil {
		d++ // a property is one, or additional, or not evaluated
	}
	d += len(n.PatternProperties)
	a := 0
	if n.Items != nil || n.Items2020 != nil || len(n.PrefixItems) > 0 || n.UnevaluatedItems != nil {
		a++
	}
	if n.Contains != nil {
		a++
	}
	return max(d, a)
}

// branches are the schemas that n applies to its own value.
func branches(n *jsonschema.Schema) []*jsonschema.Schema {
	var list []*jsonschema.Schema
	for _, next := range [...]*jsonschema.Schema{n.Ref, n.DynamicRef, n.RecursiveRef, n.Not, n.If, n.Then, n.Else} {
		if next != nil {
			list = append(list, next)
		}
	}
	list = slices.Concat(list, n.AllOf, n.AnyOf, n.OneOf)
	for _, next := range n.DependentSchemas {
		list = append(list, next)
	}
	for _, next := range n.Dependencies {
		if next, ok := next.(*jsonschema.Schema); ok {
			list = append(list, next)
		}
	}
	return list
}

// parts are the schemas that n applies to parts of its value.
func parts(n *jsonschema.Schema) []*jsonschema.Schema {
	var list []*jsonschema.Schema
	for _, next := range [...]*jsonschema.Schema{
		n.PropertyNames, n.UnevaluatedProperties, n.Items2020, n.Contains,
		n.UnevaluatedItems,
	} {
		if next != nil {
			list = append(list, next)
		}
	}
	for _, next := range [...]any{n.AdditionalProperties, n.Items, n.AdditionalItems} {
		switch next := next.(type) {
		case *jsonschema.Schema:
			list = append(list, next)
		case []*jsonschema.Schema:
			list = append(list, next...)
		}
	}
	list = append(list, n.PrefixItems...)
	for _, next := range n.Properties {
		list = append(list, next)
	}
	for _, next := range n.PatternProperties {
		list = append(list, next)
	}
	return list
}

// visit goes where the validator will go and reports whether left is enough for that. It goes no less far: where the
// validator may stop early, it does not.
func visit(n *jsonschema.Schema, v any, left *int) bool {
	if *left--; *left < 0 {
		return false
	}
	for _, next := range branches(n) {
		if !visit(next, v, left) {
			return false
		}
	}
	switch v := v.(type) {
	case map[string]any:
		return visitObject(n, v, left)
	case []any:
		return visitArray(n, v, left)
	}
	return true
}

func visitObject(n *jsonschema.Schema, v map[string]any, left *int) bool {
	*left -= len(v) // the validator notes every key
	for key, field := range v {
		if n.PropertyNames != nil && !visit(n.PropertyNames, key, left) {
			return false
		}
		if p, ok := n.Properties[key]; ok && !visit(p, field, left) {
			return false
		}
		for pattern, p := range n.PatternProperties {
			if *left--; *left < 0 || pattern.MatchString(key) && !visit(p, field, left) {
				return false
			}
		}
		rest, _ := n.AdditionalProperties.(*jsonschema.Schema)
		for _, next := range [...]*jsonschema.Schema{rest, n.UnevaluatedProperties} {
			if _, listed := n.Properties[key]; next != nil && !listed && !visit(next, field, left) {
				return false
			}
		}
	}
	return true
}

func visitArray(n *jsonschema.Schema, v []any, left *int) bool {
	*left -= len(v)
	for i, item := range v {
		for _, next := range itemSchemas(n, i) {
			if !visit(next, item, left) {
				return false
			}
		}
	}
	return true
}

// itemSchemas are the schemas that n applies to its i-th item, at most.
func itemSchemas(n *jsonschema.Schema, i int) []*jsonschema.Schema {
	var list []*jsonschema.Schema
	add := func(s *jsonschema.Schema) {
		if s != nil {
			list = append(list, s)
		}
	}
	fixed := n.PrefixItems
	if tuple, ok := n.Items.([]*jsonschema.Schema); ok {
		fixed = tuple
	}
	if i < len(fixed) {
		add(fixed[i])
	} else {
		add(n.Items2020)
		rest, _ := n.AdditionalItems.(*jsonschema.Schema)
		add(rest)
	}
	every, _ := n.Items.(*jsonschema.Schema)
	add(every)
	add(n.Contains)
	add(n.UnevaluatedItems)
	return list
}

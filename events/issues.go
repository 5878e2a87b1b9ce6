package events

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// maxIssues is how many things that are wrong with one value are told at once.
const maxIssues = 20

// InvalidData says what is wrong with a value, by its schema. The texts name fields, types and what the schema wants;
// they never hold a part of the value.
type InvalidData struct { //nolint:errname // the word that codes, texts and other packages use
	Issues []Issue
}

// Error is every issue, on one line.
func (e *InvalidData) Error() string {
	texts := make([]string, len(e.Issues))
	for i, issue := range e.Issues {
		texts[i] = issue.Message
		if issue.Field != "" {
			texts[i] = issue.Field + ": " + issue.Message
		}
	}
	return strings.Join(texts, "; ")
}

// issues turns what the validator found into texts of ours, in a fixed order.
func (s *Schema) issues(found *jsonschema.ValidationError, v any) []Issue {
	list := s.collect(nil, found, v)
	slices.SortFunc(list, func(a, b Issue) int {
		if c := strings.Compare(a.Field, b.Field); c != 0 {
			return c
		}
		return strings.Compare(a.Message, b.Message)
	})
	list = slices.Compact(list)
	if more := len(list) - maxIssues; more > 0 {
		list = append(list[:maxIssues], Issue{Message: fmt.Sprintf("and %d more", more)})
	}
	return list
}

func (s *Schema) collect(list []Issue, found *jsonschema.ValidationError, v any) []Issue {
	keyword := found.AbsoluteKeywordLocation[strings.LastIndexByte(found.AbsoluteKeywordLocation, '/')+1:]
	if keyword == "anyOf" || keyword == "oneOf" {
		if issues := s.choice(found, v); issues != nil {
			return append(list, issues...)
		}
	}
	if len(found.Causes) > 0 && keyword != "contains" {
		for _, cause := range found.Causes {
			list = s.collect(list, cause, v)
		}
		return list
	}
	return append(list, s.leaf(keyword, found, v)...)
}

// choice explains a value that fits none of several forms: by the types that would do when all forms differ in that,
// else by what is wrong with the form that comes nearest.
func (s *Schema) choice(found *jsonschema.ValidationError, v any) []Issue {
	var best []Issue
	wrongType := fmt.Sprintf(", got %s", typeOf(valueAt(v, found.InstanceLocation)))
	field := fieldOf(found.InstanceLocation)
	var types []string
	for _, cause := range found.Causes {
		issues := s.collect(nil, cause, v)
		if len(issues) == 1 && issues[0].Field == field && strings.HasSuffix(issues[0].Message, wrongType) {
			want := strings.TrimSuffix(strings.TrimPrefix(issues[0].Message, "want "), wrongType)
			types = append(types, want)
			continue
		}
		if best == nil || len(issues) < len(best) {
			best = issues
		}
	}
	if best == nil && types != nil {
		return []Issue{{field, "want " + strings.Join(types, " or ") + wrongType}}
	}
	return best
}

// leaf explains one failed keyword.
func (s *Schema) leaf(keyword string, found *jsonschema.ValidationError, v any) []Issue {
	at := s.at[strings.TrimSuffix(found.AbsoluteKeywordLocation, "/"+keyword)]
	field, value := fieldOf(found.InstanceLocation), valueAt(v, found.InstanceLocation)
	if at == nil {
		return []Issue{{field, "is not allowed"}}
	}
	switch keyword {
	case "required":
		return eachField(field, missing(at, value), "is required")
	case "additionalProperties":
		return eachField(field, unknown(at, value), "is not known")
	}
	return []Issue{{field, wants(at, keyword, value)}}
}

func wants(at *jsonschema.Schema, keyword string, value any) string {
	switch keyword {
	case "type":
		return "want " + strings.Join(at.Types, " or ") + ", got " + typeOf(value)
	case "enum":
		return "want one of " + jsonTexts(at.Enum)
	case "const":
		return "want " + jsonTexts(at.Constant)
	case "format":
		return "want the format " + at.Format
	case "pattern":
		return "want a text that matches " + at.Pattern.String()
	case "minimum":
		return "want at least " + at.Minimum.RatString()
	case "exclusiveMinimum":
		return "want more than " + at.ExclusiveMinimum.RatString()
	case "maximum":
		return "want at most " + at.Maximum.RatString()
	case "exclusiveMaximum":
		return "want less than " + at.ExclusiveMaximum.RatString()
	case "multipleOf":
		return "want a multiple of " + at.MultipleOf.RatString()
	}
	return wantsSize(at, keyword)
}

func wantsSize(at *jsonschema.Schema, keyword string) string {
	switch keyword {
	case "minLength":
		return "want at least " + count(at.MinLength, "character")
	case "maxLength":
		return "want at most " + count(at.MaxLength, "character")
	case "minItems":
		return "want at least " + count(at.MinItems, "item")
	case "maxItems":
		return "want at most " + count(at.MaxItems, "item")
	case "minProperties":
		return "want at least " + count(at.MinProperties, "field")
	case "maxProperties":
		return "want at most " + count(at.MaxProperties, "field")
	case "uniqueItems":
		return "want items that differ from each other"
	case "oneOf":
		return "fits more than one of its forms"
	case "anyOf":
		return "fits none of its forms"
	case "not":
		return "has a form that is not allowed"
	}
	return "does not satisfy " + keyword
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// jsonTexts lists values of a schema, as JSON, up to a length.
func jsonTexts(values []any) string {
	const most = 300
	var b strings.Builder
	for i, v := range values {
		text, err := Marshal(v)
		if err != nil {
			continue
		}
		if i > 0 {
			b.WriteString(", ")
		}
		if b.Len()+len(text) > most {
			b.WriteString("…")
			break
		}
		b.Write(text)
	}
	return b.String()
}

func eachField(parent string, names []string, message string) []Issue {
	issues := make([]Issue, len(names))
	for i, name := range names {
		issues[i] = Issue{joinField(parent, name), message}
	}
	return issues
}

func missing(at *jsonschema.Schema, value any) []string {
	m, _ := value.(map[string]any)
	var names []string
	for _, name := range at.Required {
		if _, ok := m[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

func unknown(at *jsonschema.Schema, value any) []string {
	m, _ := value.(map[string]any)
	var names []string
	for name := range m {
		_, listed := at.Properties[name]
		for pattern := range at.PatternProperties {
			listed = listed || pattern.MatchString(name)
		}
		if !listed {
			names = append(names, name)
		}
	}
	return names
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "number"
}

// fieldOf writes a JSON pointer as people read it: a.b.0.c.
func fieldOf(pointer string) string {
	field := ""
	for _, token := range tokens(pointer) {
		field = joinField(field, token)
	}
	return field
}

func joinField(parent, name string) string {
	if parent == "" {
		return name
	}
	return parent + "." + name
}

var pointerEscapes = strings.NewReplacer("~1", "/", "~0", "~")

// tokens splits a JSON pointer as the validator writes it, with percent-encoding.
func tokens(pointer string) []string {
	if pointer == "" {
		return nil
	}
	list := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, token := range list {
		if plain, err := url.PathUnescape(token); err == nil {
			token = plain
		}
		list[i] = pointerEscapes.Replace(token)
	}
	return list
}

func valueAt(v any, pointer string) any {
	for _, token := range tokens(pointer) {
		switch parent := v.(type) {
		case map[string]any:
			v = parent[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i >= len(parent) {
				return nil
			}
			v = parent[i]
		}
	}
	return v
}

package config

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// Each method reads the value of a key, or its zero when the key is absent or the value is wrong, which is a problem.

// text reads a text in which nothing is replaced.
func (o object) text(key string) string {
	if !o.has(key) {
		return ""
	}
	return o.r.plain(o.fields[key], o.sub(key))
}

// plain reads a text. References to the environment are refused: it would be stored as it stands, and whoever wrote
// one expects something else.
func (r *reader) plain(n *yaml.Node, path string) string {
	text, ok := r.scalar(n, path)
	if !ok {
		return ""
	}
	if names := refersTo(text); len(names) > 0 {
		r.fail(n, path, "${%s} is read in secrets only (apiKey, headers, env); for the text itself write $${%s}", names[0], names[0])
		return ""
	}
	return unescape(text)
}

// code reads a text that is a program: nothing in it refers to the environment or needs to be escaped.
func (o object) code(key string) string {
	if !o.has(key) {
		return ""
	}
	text, ok := o.r.scalar(o.fields[key], o.sub(key))
	if ok && strings.TrimSpace(text) == "" {
		o.fail(key, "must not be empty")
	}
	return text
}

// secret reads a text with references to the environment, which stay in it.
func (r *reader) secret(n *yaml.Node, path string) string {
	text, ok := r.scalar(n, path)
	if !ok {
		return ""
	}
	for _, p := range split(text) {
		if p.bad {
			r.fail(n, path, "%s is not a reference; write ${NAME}", p.text)
			return ""
		}
		if p.name != "" {
			r.refer(n, path, p.name, true)
		}
	}
	return text
}

// refer notes the value of a variable.
func (r *reader) refer(n *yaml.Node, path, name string, needed bool) {
	if _, known := r.secrets.places[name]; !known {
		r.secrets.places[name] = r.problem(n, path, "").Place()
	}
	if r.lookup == nil {
		return
	}
	if value, ok := r.lookup(name); ok && value != "" {
		r.secrets.values[name] = value
	} else if needed {
		r.warn(n, path, "the environment variable %s is not set", name)
	}
}

// scalar reads a text. Other scalars are not taken for texts: 1.10 would become 1.1, and no a boolean, somewhere.
func (r *reader) scalar(n *yaml.Node, path string) (string, bool) {
	n = real(n)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" && n.Tag != "!!timestamp" {
		hint := ""
		if n.Kind == yaml.ScalarNode && n.Value != "" {
			hint = fmt.Sprintf("; write it in quotes: %q", n.Value)
		}
		r.fail(n, path, "want a text, got %s%s", kindOf(n), hint)
		return "", false
	}
	return n.Value, true
}

// choice reads one of some words.
func (o object) choice(key string, words ...string) string {
	text := o.text(key)
	if text == "" && !o.has(key) || o.r.problems.about(o.sub(key)) {
		return ""
	}
	if !slices.Contains(words, text) {
		o.fail(key, "want %s, got %q%s", orList(words), text, suggest(text, words))
		return ""
	}
	return text
}

func orList(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// flag reads true or false; nil when there is none.
func (o object) flag(key string) *bool {
	if !o.has(key) {
		return nil
	}
	n := real(o.fields[key])
	v := strings.EqualFold(n.Value, "true")
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || !v && !strings.EqualFold(n.Value, "false") {
		got := kindOf(n)
		if n.Kind == yaml.ScalarNode && n.Value != "" {
			got = strconv.Quote(n.Value)
		}
		o.fail(key, "want true or false, got %s", got)
		return nil
	}
	return &v
}

func (o object) on(key string) bool {
	v := o.flag(key)
	return v != nil && *v
}

// maxCount bounds numbers that count something.
const maxCount = 1_000_000_000

// count reads a whole number from 1.
func (o object) count(key string) int { return o.countTo(key, maxCount) }

// countTo reads a whole number from 1 to most.
func (o object) countTo(key string, most int) int { return o.between(key, 1, most) }

// between reads a whole number from least to most.
func (o object) between(key string, least, most int) int {
	if !o.has(key) {
		return 0
	}
	n := real(o.fields[key])
	v, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || v < least || v > most {
		got := kindOf(n)
		if n.Kind == yaml.ScalarNode && strings.HasPrefix(got, "a number") {
			got = n.Value
		}
		o.fail(key, "want a whole number from %d to %d, got %s", least, most, got)
		return 0
	}
	return v
}

// score reads a number that is not negative.
func (o object) score(key string) float64 {
	if !o.has(key) {
		return 0
	}
	n := real(o.fields[key])
	var v float64
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" || n.Decode(&v) != nil || !(v >= 0 && v <= math.MaxFloat64) {
		o.fail(key, "want a number that is not negative, got %s", kindOf(n))
		return 0
	}
	return v
}

// durationForm is what schemas/config.json says of a duration.
var durationForm = regexp.MustCompile(`^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}(\.[0-9]{1,9})?s)?([0-9]{1,6}ms)?$`)

// duration reads a span such as 90s or 1h30m, more than nothing.
func (o object) duration(key string) time.Duration {
	text := o.text(key)
	if !o.has(key) || o.r.problems.about(o.sub(key)) {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || !durationForm.MatchString(text) {
		o.fail(key, "want a span of time such as 30s, 5m or 1h30m, got %q", text)
		return 0
	}
	return d
}

// items are the items of a list.
func (o object) items(key string) []*yaml.Node {
	if !o.has(key) {
		return nil
	}
	n := real(o.fields[key])
	if n.Kind != yaml.SequenceNode || n.Tag != "!!seq" {
		o.fail(key, "want a list, got %s", kindOf(n))
		return nil
	}
	return n.Content
}

// texts reads a list of texts, of which none is empty. It is not nil when there is a list.
func (o object) texts(key string) []string {
	items := o.items(key)
	if !o.has(key) || o.r.problems.about(o.sub(key)) {
		return nil
	}
	list := []string{}
	for i, n := range items {
		path := fmt.Sprintf("%s[%d]", o.sub(key), i)
		text := o.r.plain(n, path)
		if text == "" {
			if !o.r.problems.about(path) {
				o.r.fail(n, path, "must not be empty")
			}
			continue
		}
		list = append(list, text)
	}
	return list
}

// approval reads true, false or {cel: expression}.
func (o object) approval(key string) *events.Approval {
	if !o.has(key) {
		return nil
	}
	n := real(o.fields[key])
	if n.Kind == yaml.ScalarNode && n.Tag == "!!bool" {
		if v := o.flag(key); v != nil {
			return &events.Approval{Always: *v}
		}
		return nil
	}
	if n.Kind != yaml.MappingNode {
		o.fail(key, "want true, false or {cel: expression}, got %s", kindOf(n))
		return nil
	}
	when := o.r.object(n, o.sub(key), "cel", "always", "inherit")
	a := &events.Approval{Always: when.on("always"), Inherit: when.on("inherit")}
	if a.Always && !when.has("cel") {
		return a
	}
	when.require("cel")
	if a.When = when.code("cel"); strings.TrimSpace(a.When) == "" {
		return nil
	}
	if a.Always {
		when.fail("always", "give cel or always, not both")
	}
	when.compile("cel", a.When)
	return a
}

// compile checks an expression.
func (o object) compile(key, expr string) {
	if _, err := rule.Compile(expr); err != nil {
		o.fail(key, "not an expression of CEL: %v", err)
	}
}

// json reads any value as canonical JSON; nil when it is absent or wrong.
func (o object) json(key string) json.RawMessage {
	if !o.has(key) {
		return nil
	}
	return o.r.toJSON(o.fields[key], o.sub(key))
}

// jsonObject reads a mapping as canonical JSON.
func (o object) jsonObject(key string) json.RawMessage {
	if o.has(key) && real(o.fields[key]).Kind != yaml.MappingNode {
		o.fail(key, "want a mapping, got %s", kindOf(real(o.fields[key])))
		return nil
	}
	return o.json(key)
}

func (r *reader) toJSON(n *yaml.Node, path string) json.RawMessage {
	before := len(r.problems)
	raw := r.appendJSON(nil, n, path, 0)
	if len(r.problems) > before {
		return nil
	}
	canonical, err := events.Canonical(raw)
	if err != nil {
		r.fail(n, path, "cannot be JSON: %v", err)
		return nil
	}
	return canonical
}

// appendJSON writes a value as JSON. Numbers keep their digits where JSON can spell them so.
func (r *reader) appendJSON(b []byte, n *yaml.Node, path string, depth int) []byte {
	n = real(n)
	if depth > events.MaxJSONDepth { // an alias may even stand in what it stands for
		r.fail(n, "", "nested too deeply: at most %d levels are read", events.MaxJSONDepth)
		r.left = 0
	}
	if r.left == 1 {
		r.fail(n, "", "too much: a file may stand for %d values, aliases included", maxNodes)
	}
	if r.left--; r.left <= 0 {
		return b
	}
	switch {
	case n.Kind == yaml.MappingNode && n.Tag == "!!map":
		b = append(b, '{')
		list := r.pairs(n, path)
		for i, p := range list {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendText(b, p.name), ':')
			b = r.appendJSON(b, p.value, join(path, p.name), depth+1)
		}
		return append(b, '}')
	case n.Kind == yaml.SequenceNode && n.Tag == "!!seq":
		b = append(b, '[')
		for i, item := range n.Content {
			if i > 0 {
				b = append(b, ',')
			}
			b = r.appendJSON(b, item, fmt.Sprintf("%s[%d]", path, i), depth+1)
		}
		return append(b, ']')
	case n.Kind != yaml.ScalarNode:
		r.fail(n, path, "%s cannot be JSON", kindOf(n))
		return b
	}
	text, ok := scalarJSON(n)
	if !ok {
		r.fail(n, path, "%s cannot be JSON", n.Value)
	}
	return append(b, text...)
}

func appendText(b []byte, s string) []byte {
	raw, _ := events.Marshal(s) // a text always encodes
	return append(b, raw...)
}

// scalarJSON writes a scalar as JSON.
func scalarJSON(n *yaml.Node) (string, bool) {
	switch n.Tag {
	case "!!str", "!!timestamp":
		return string(appendText(nil, n.Value)), true
	case "!!null":
		return "null", true
	case "!!bool":
		v := strings.ToLower(n.Value)
		return v, v == "true" || v == "false"
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return n.Value, true
		}
		return numberJSON(n)
	}
	return "", false
}

// numberJSON writes a number that YAML spells in another way than JSON: 0x1f, 1_000, +1, .5.
func numberJSON(n *yaml.Node) (string, bool) {
	digits := strings.ReplaceAll(n.Value, "_", "")
	if i, ok := new(big.Int).SetString(digits, 0); ok && n.Tag == "!!int" {
		return i.String(), true
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return "", false
	}
	return strconv.FormatFloat(f, 'g', -1, 64), true
}

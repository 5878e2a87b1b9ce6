package config

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
)

// reader reads one file. It never stops at a problem: people get all of them at once.
type reader struct {
	file     string
	problems Problems
	warnings Problems
	secrets  Secrets
	lookup   Lookup
	left     int // nodes that may still be read: aliases can make few lines many
}

// maxNodes bounds what a file may stand for.
const maxNodes = 100_000

func (r *reader) fail(n *yaml.Node, path, format string, args ...any) {
	r.problems = append(r.problems, r.problem(n, path, format, args...))
}

func (r *reader) warn(n *yaml.Node, path, format string, args ...any) {
	r.warnings = append(r.warnings, r.problem(n, path, format, args...))
}

func (r *reader) problem(n *yaml.Node, path, format string, args ...any) Problem {
	p := Problem{File: r.file, Path: path, Message: fmt.Sprintf(format, args...)}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	return p
}

// document reads the only document of a file; nil when it is empty.
func (r *reader) document(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc, more yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = dec.Decode(&more)
		if err == nil {
			r.fail(&more, "", "a second document; a file holds one")
			err = io.EOF
		}
	}
	if !errors.Is(err, io.EOF) {
		r.malformed(err)
		return nil
	}
	if len(doc.Content) != 1 || isNull(doc.Content[0]) {
		return nil
	}
	return doc.Content[0]
}

var yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

// malformed takes the line out of the text of a fault in the syntax.
func (r *reader) malformed(err error) {
	p := Problem{File: r.file, Message: err.Error()}
	if m := yamlError.FindStringSubmatch(err.Error()); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
		p.Message = "not YAML: " + m[2]
	}
	r.problems = append(r.problems, p)
}

// pair is a key of a mapping with its value.
type pair struct {
	name       string
	key, value *yaml.Node
}

// pairs are the keys of a mapping, in order, each once.
func (r *reader) pairs(n *yaml.Node, path string) (list []pair) {
	n = real(n)
	if n.Kind != yaml.MappingNode || n.Tag != "!!map" {
		r.fail(n, path, "want a mapping, got %s", kindOf(n))
		return nil
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := real(n.Content[i])
		switch {
		case key.Kind != yaml.ScalarNode:
			r.fail(key, path, "want a text as key, got %s", kindOf(key))
		case key.Tag == "!!merge":
			r.fail(key, path, "merge keys (<<) are not read; repeat the keys")
		case lines[key.Value] > 0:
			r.fail(key, path, "the key %q stands in line %d already", key.Value, lines[key.Value])
		default:
			lines[key.Value] = key.Line
			list = append(list, pair{key.Value, key, n.Content[i+1]})
		}
	}
	return list
}

// entries are the entries of a section: definitions by id. A section without any may be left empty.
func (r *reader) entries(n *yaml.Node, path string) []pair {
	if n == nil || isNull(real(n)) {
		return nil
	}
	list := r.pairs(n, path)
	valid := list[:0]
	for _, p := range list {
		if why := idProblem(p.name); why != "" {
			r.fail(p.key, path, "%s", why)
			continue
		}
		valid = append(valid, p)
	}
	return valid
}

func idProblem(id string) string {
	switch {
	case strings.TrimSpace(id) == "":
		return "an id must not be empty"
	case len(id) > events.MaxID:
		return fmt.Sprintf("the id has more than %d bytes", events.MaxID)
	case strings.ContainsFunc(id, unicode.IsControl):
		return "the id has a control character"
	}
	return ""
}

// object is a mapping whose keys are known.
type object struct {
	r      *reader
	path   string
	node   *yaml.Node
	fields map[string]*yaml.Node
}

// object reads a mapping. Keys other than those listed are refused. What is no mapping reads as an empty one.
func (r *reader) object(n *yaml.Node, path string, known ...string) object {
	o := object{r: r, path: path, node: real(n), fields: map[string]*yaml.Node{}}
	for _, p := range r.pairs(n, path) {
		if !slices.Contains(known, p.name) {
			r.fail(p.key, path, "unknown key %q%s", p.name, suggest(p.name, known))
			continue
		}
		o.fields[p.name] = p.value
	}
	return o
}

func (o object) has(key string) bool { return o.fields[key] != nil }

// at is the value of a key, or the mapping when it has none: where a problem with the key is shown.
func (o object) at(key string) *yaml.Node {
	if n := o.fields[key]; n != nil {
		return n
	}
	return o.node
}

func (o object) sub(key string) string { return join(o.path, key) }

func (o object) fail(key, format string, args ...any) {
	o.r.fail(o.at(key), o.sub(key), format, args...)
}

// require says which keys must be there.
func (o object) require(keys ...string) {
	for _, key := range keys {
		if !o.has(key) && o.node.Kind == yaml.MappingNode {
			o.fail(key, "is missing")
		}
	}
}

// issues shows what other packages find wrong with a definition, where it is written. What has been said is not said
// again.
func (o object) issues(err error) {
	if err == nil {
		return
	}
	var e *events.Error
	if !errors.As(err, &e) || len(e.Issues) == 0 {
		o.r.fail(o.node, o.path, "%v", err)
		return
	}
	for _, issue := range e.Issues {
		path := o.sub(issue.Field)
		if o.r.problems.about(path) {
			continue
		}
		p := o.r.problem(o.find(issue.Field), path, "%s", issue.Message)
		p.code = e.Code
		o.r.problems = append(o.r.problems, p)
	}
}

// find is the node of a field such as "inputExamples.0", or the nearest node around it.
func (o object) find(field string) *yaml.Node {
	n := o.node
	for field != "" {
		next, rest := child(n, field)
		if next == nil {
			return n
		}
		n, field = real(next), rest
	}
	return n
}

// child is the member that a field begins with, and the rest of the field. Keys may hold dots.
func child(n *yaml.Node, field string) (*yaml.Node, string) {
	if n.Kind == yaml.SequenceNode {
		index, rest, _ := strings.Cut(field, ".")
		if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], rest
		}
		return nil, ""
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		if rest, ok := strings.CutPrefix(field, key); ok && (rest == "" || rest[0] == '.') {
			return n.Content[i+1], strings.TrimPrefix(rest, ".")
		}
	}
	return nil, ""
}

// real is what an alias stands for.
func real(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// kindOf names what a node is, as people say it.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode && n.Tag == "!!map":
		return "a mapping"
	case n.Kind == yaml.SequenceNode && n.Tag == "!!seq":
		return "a list"
	}
	switch n.Tag {
	case "!!str", "!!timestamp":
		return "a text"
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "a boolean"
	case "!!null":
		return "nothing"
	}
	return "the tag " + n.Tag
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"
	"unicode/utf8"
)

// Templates of previews and of instructions have the syntax of package text/template and are evaluated here: what a template may do is
// little, so that none can take long, use much memory, or show a number in other digits than the arguments have.

// maxTemplateSteps bounds the work of one template.
const maxTemplateSteps = 100_000

// templateFunctions are the functions that templates may call, with the number of their arguments; -1 is one or more.
var templateFunctions = map[string]int{
	"and": -1, "or": -1, "not": 1, "len": 1, "index": -1,
	"eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2,
}

// template is a text with places for arguments.
type template struct{ root *parse.ListNode }

// parseTemplate reads a template and refuses what it may not do.
func parseTemplate(text string, most int) (*template, error) {
	if len(text) > most {
		return nil, fmt.Errorf("the template has %d bytes, at most %d are allowed", len(text), most)
	}
	known := map[string]any{}
	for name := range templateFunctions {
		known[name] = true
	}
	trees, err := parse.Parse("text", text, "", "", known)
	if err != nil {
		return nil, errors.New("line " + strings.TrimPrefix(err.Error(), "template: text:"))
	}
	if len(trees) > 1 {
		return nil, errors.New("a template defines no others")
	}
	tree := trees["text"]
	if tree == nil || tree.Root == nil { // nothing but comments
		return &template{root: &parse.ListNode{NodeType: parse.NodeList}}, nil
	}
	return &template{root: tree.Root}, checkNode(tree.Root)
}

// checkNode refuses what is not evaluated.
func checkNode(n parse.Node) error {
	switch n := n.(type) {
	case *parse.TextNode, *parse.CommentNode, *parse.BreakNode, *parse.ContinueNode:
		return nil
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, each := range n.Nodes {
			if err := checkNode(each); err != nil {
				return err
			}
		}
		return nil
	case *parse.ActionNode:
		return checkPipe(n.Pipe)
	case *parse.IfNode:
		return checkBranch(&n.BranchNode)
	case *parse.WithNode:
		return checkBranch(&n.BranchNode)
	case *parse.RangeNode:
		return checkBranch(&n.BranchNode)
	}
	return fmt.Errorf("%s is not allowed in a template", n)
}

func checkBranch(b *parse.BranchNode) error {
	return errors.Join(checkPipe(b.Pipe), checkNode(b.List), checkNode(b.ElseList))
}

func checkPipe(p *parse.PipeNode) error {
	if len(p.Cmds) != 1 {
		return fmt.Errorf("%s: a preview has no pipelines, write f .x", p)
	}
	args := p.Cmds[0].Args
	if name, ok := args[0].(*parse.IdentifierNode); ok {
		if want := templateFunctions[name.Ident]; want != len(args)-1 && (want >= 0 || len(args) < 2) {
			return fmt.Errorf("%s: wrong number of arguments of %s", p, name.Ident)
		}
		args = args[1:]
	} else if len(args) > 1 {
		return fmt.Errorf("%s: %s is no function", p, args[0])
	}
	for _, arg := range args {
		if err := checkOperand(arg); err != nil {
			return err
		}
	}
	return nil
}

func checkOperand(n parse.Node) error {
	switch n := n.(type) {
	case *parse.PipeNode:
		return checkPipe(n)
	case *parse.ChainNode:
		return checkOperand(n.Node)
	case *parse.FieldNode, *parse.DotNode, *parse.VariableNode, *parse.StringNode, *parse.NumberNode, *parse.BoolNode,
		*parse.NilNode:
		return nil
	}
	return fmt.Errorf("%s is not allowed in a template", n)
}

// render evaluates the template over a decoded value, with numbers as [json.Number]. What goes beyond so many bytes is not
// written, and full says so.
func (t *template) render(data any, most int) (text string, full bool, err error) {
	r := &renderer{left: maxTemplateSteps, most: most, vars: []templateVar{{"$", data}}}
	if err = r.list(t.root, data); errors.Is(err, errFull) {
		return r.out.String(), true, nil
	}
	return r.out.String(), false, err
}

var (
	errFull     = errors.New("the text is long enough")
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)

// renderer is one evaluation.
type renderer struct {
	out  strings.Builder
	left int // steps
	most int // bytes
	vars []templateVar
}

type templateVar struct {
	name  string
	value any
}

// spend pays for work on so many bytes or items.
func (r *renderer) spend(n int) error {
	if r.left -= 1 + n/64; r.left < 0 {
		return errors.New("the template takes too much work")
	}
	return nil
}

func (r *renderer) list(l *parse.ListNode, dot any) error {
	if l == nil {
		return nil
	}
	depth := len(r.vars)
	defer func() { r.vars = r.vars[:depth] }()
	for _, n := range l.Nodes {
		if err := r.node(n, dot); err != nil {
			return err
		}
	}
	return nil
}

func (r *renderer) node(n parse.Node, dot any) error {
	if err := r.spend(0); err != nil {
		return err
	}
	switch n := n.(type) {
	case *parse.TextNode:
		return r.write(string(n.Text))
	case *parse.ActionNode:
		v, err := r.pipe(n.Pipe, dot)
		if err != nil || len(n.Pipe.Decl) > 0 {
			return err
		}
		return r.write(shownValue(v))
	case *parse.IfNode:
		return r.branch(&n.BranchNode, dot, false)
	case *parse.WithNode:
		return r.branch(&n.BranchNode, dot, true)
	case *parse.RangeNode:
		return r.loop(n, dot)
	case *parse.BreakNode:
		return errBreak
	case *parse.ContinueNode:
		return errContinue
	}
	return nil // a comment
}

func (r *renderer) write(text string) error {
	r.out.WriteString(text)
	if r.out.Len() > r.most {
		return errFull
	}
	return nil
}

func (r *renderer) branch(b *parse.BranchNode, dot any, with bool) error {
	depth := len(r.vars)
	defer func() { r.vars = r.vars[:depth] }()
	v, err := present(r.pipe(b.Pipe, dot))
	switch {
	case err != nil:
		return err
	case !truth(v):
		return r.list(b.ElseList, dot)
	case with:
		dot = v
	}
	return r.list(b.List, dot)
}

// loop goes over an array, or over the fields of an object in the order of their names. Nothing else has a length that
// is bounded by the arguments.
func (r *renderer) loop(n *parse.RangeNode, dot any) error {
	depth := len(r.vars)
	defer func() { r.vars = r.vars[:depth] }()
	v, err := present(r.operandsOf(n.Pipe, dot))
	if err != nil {
		return err
	}
	var keys []string
	size := 0
	switch v := v.(type) {
	case []any:
		size = len(v)
	case map[string]any:
		keys = slices.Sorted(maps.Keys(v))
		size = len(keys)
	case nil:
	default:
		return fmt.Errorf("%s: range wants an array or an object", n.Pipe)
	}
	if err := r.spend(size); err != nil {
		return err
	}
	if size == 0 {
		return r.list(n.ElseList, dot)
	}
	for i := range size {
		var key, item any
		if keys != nil {
			key, item = keys[i], v.(map[string]any)[keys[i]]
		} else {
			key, item = json.Number(strconv.Itoa(i)), v.([]any)[i]
		}
		if err := r.spend(0); err != nil {
			return err
		}
		r.vars = r.vars[:depth]
		r.declare(n.Pipe, key, item)
		switch err := r.list(n.List, item); {
		case errors.Is(err, errBreak):
			return nil
		case err != nil && !errors.Is(err, errContinue):
			return err
		}
	}
	return nil
}

// declare sets the variables of a range: the item, or the key and the item.
func (r *renderer) declare(p *parse.PipeNode, key, item any) {
	switch len(p.Decl) {
	case 1:
		r.vars = append(r.vars, templateVar{p.Decl[0].Ident[0], item})
	case 2:
		r.vars = append(r.vars, templateVar{p.Decl[0].Ident[0], key}, templateVar{p.Decl[1].Ident[0], item})
	}
}

// pipe evaluates a pipeline of one command and sets the variable that it declares.
func (r *renderer) pipe(p *parse.PipeNode, dot any) (any, error) {
	v, err := r.operandsOf(p, dot)
	if err != nil {
		return nil, err
	}
	for _, d := range p.Decl {
		if p.IsAssign {
			r.assign(d.Ident[0], v)
		} else {
			r.vars = append(r.vars, templateVar{d.Ident[0], v})
		}
	}
	return v, nil
}

func (r *renderer) assign(name string, v any) {
	for i := len(r.vars) - 1; i >= 0; i-- {
		if r.vars[i].name == name {
			r.vars[i].value = v
			return
		}
	}
}

// operandsOf evaluates the command of a pipeline.
func (r *renderer) operandsOf(p *parse.PipeNode, dot any) (any, error) {
	args := p.Cmds[0].Args
	name, isCall := args[0].(*parse.IdentifierNode)
	if !isCall {
		return r.operand(args[0], dot)
	}
	var values []any
	for _, arg := range args[1:] {
		v, err := r.operand(arg, dot)
		if name.Ident == "and" || name.Ident == "or" || name.Ident == "not" {
			v, err = present(v, err)
		}
		if err != nil {
			return nil, err
		}
		values = append(values, v)
		if name.Ident == "and" && !truth(v) || name.Ident == "or" && truth(v) {
			return v, nil
		}
	}
	v, err := r.call(name.Ident, values)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return v, nil
}

func (r *renderer) operand(n parse.Node, dot any) (any, error) {
	if err := r.spend(0); err != nil {
		return nil, err
	}
	switch n := n.(type) {
	case *parse.PipeNode:
		return r.pipe(n, dot)
	case *parse.ChainNode:
		v, err := r.operand(n.Node, dot)
		if err != nil {
			return nil, err
		}
		return fieldsOf(v, n.Field)
	case *parse.FieldNode:
		return fieldsOf(dot, n.Ident)
	case *parse.VariableNode:
		for _, v := range slices.Backward(r.vars) {
			if v.name == n.Ident[0] {
				return fieldsOf(v.value, n.Ident[1:])
			}
		}
		return nil, fmt.Errorf("there is no variable %s", n.Ident[0])
	case *parse.DotNode:
		return dot, nil
	case *parse.StringNode:
		return n.Text, nil
	case *parse.NumberNode:
		return json.Number(n.Text), nil
	case *parse.BoolNode:
		return n.True, nil
	}
	return nil, nil //nolint:nilnil // nil, the word of templates
}

// errMissing says that the arguments lack a key.
var errMissing = errors.New("is missing in the arguments")

// present takes a missing key for nothing, where a template asks whether it is there.
func present(v any, err error) (any, error) {
	if errors.Is(err, errMissing) {
		return nil, nil //nolint:nilnil // nothing
	}
	return v, err
}

// fieldsOf goes down by names. A name that is not there is an error: what people are shown must not have holes that
// look like values.
func fieldsOf(v any, names []string) (any, error) {
	for _, name := range names {
		object, _ := v.(map[string]any)
		field, ok := object[name]
		if !ok {
			return nil, fmt.Errorf("%s %w", name, errMissing)
		}
		v = field
	}
	return v, nil
}

func (r *renderer) call(name string, values []any) (any, error) {
	switch name {
	case "and", "or":
		return values[len(values)-1], nil
	case "not":
		return !truth(values[0]), nil
	case "len":
		return r.length(values[0])
	case "index":
		v := values[0]
		for _, at := range values[1:] {
			var err error
			if v, err = indexed(v, at); err != nil {
				return nil, err
			}
		}
		return v, nil
	}
	order, err := r.compare(values[0], values[1])
	if err != nil {
		return nil, err
	}
	return map[string]bool{
		"eq": order == 0, "ne": order != 0, "lt": order < 0, "le": order <= 0, "gt": order > 0, "ge": order >= 0,
	}[name], nil
}

func (r *renderer) length(v any) (any, error) {
	n := 0
	switch v := v.(type) {
	case string:
		if err := r.spend(len(v)); err != nil {
			return nil, err
		}
		n = utf8.RuneCountInString(v)
	case []any:
		n = len(v)
	case map[string]any:
		n = len(v)
	case nil:
	default:
		return nil, errors.New("a number or boolean has no length")
	}
	return json.Number(strconv.Itoa(n)), nil
}

func indexed(v, at any) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		if key, ok := at.(string); ok {
			return fieldsOf(v, []string{key})
		}
	case []any:
		if number, ok := at.(json.Number); ok {
			if i, err := strconv.Atoi(number.String()); err == nil && i >= 0 && i < len(v) {
				return v[i], nil
			}
			return nil, fmt.Errorf("there is no item %s", number)
		}
	}
	return nil, errors.New("index wants an object and a name, or an array and a number")
}

// compare orders two numbers by their values, two texts, or two booleans.
func (r *renderer) compare(a, b any) (int, error) {
	switch x := a.(type) {
	case json.Number:
		if y, ok := b.(json.Number); ok {
			return r.compareNumbers(x, y)
		}
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y), r.spend(min(len(x), len(y)))
		}
	case bool:
		if y, ok := b.(bool); ok && x == y {
			return 0, nil
		} else if ok {
			return 1, nil
		}
	case nil:
		if b == nil {
			return 0, nil
		}
	}
	return 0, errors.New("only two numbers, two texts or two booleans can be compared")
}

// compareNumbers compares exactly. What a number costs depends on its exponent, which arguments bound.
func (r *renderer) compareNumbers(a, b json.Number) (int, error) {
	if err := r.spend(len(a) + len(b) + 4096); err != nil {
		return 0, err
	}
	x, okX := new(big.Rat).SetString(a.String())
	y, okY := new(big.Rat).SetString(b.String())
	if !okX || !okY {
		return 0, errors.New("not a number")
	}
	return x.Cmp(y), nil
}

// truth says what if, with, and, or take for true: what is there and not empty or zero.
func truth(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		return v != ""
	case json.Number:
		mantissa, _, _ := strings.Cut(strings.ToLower(v.String()), "e")
		return strings.ContainsAny(mantissa, "123456789")
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

// shownValue is a value as a text shows it: texts and numbers as they are written, the rest as JSON.
func shownValue(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	raw, err := canonicalValue(v)
	if err != nil {
		return ""
	}
	return string(raw)
}

package jq

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"

	"github.com/itchyny/gojq"
)

// A deadline stops a program between two of its steps, not within one, and one step may do anything: write a value out
// that shares its parts and so is larger than memory, compare two of them, repeat a text, search a long one. So programs
// are of a part of the language in which each step is small: a function that is not in this table is refused, and what
// takes a value apart at once is given it through a measure.

// kind says what a function may be given.
type kind int

const (
	free  kind = iota // anything: it looks at the surface, or is made of steps itself
	whole             // a value of a bounded size
	small             // one that it may go through many times
	text              // a short text
)

// function says what a function may be given, and the kinds of its arguments; one without a kind is an expression that
// is free. The last kind stands for the arguments after it too.
type function struct {
	input kind
	args  []kind
}

var functions = map[string]function{
	"empty": {}, "error": {}, "not": {}, "select": {}, "map": {}, "map_values": {}, "recurse": {}, "walk": {}, "type": {},
	"values": {}, "nulls": {}, "booleans": {}, "numbers": {}, "strings": {}, "arrays": {}, "objects": {}, "iterables": {},
	"scalars": {}, "length": {}, "keys": {}, "has": {}, "in": {}, "any": {}, "all": {}, "isempty": {}, "first": {}, "last": {},
	"nth": {}, "limit": {}, "range": {}, "path": {}, "paths": {}, "getpath": {}, "del": {}, "pick": {}, "to_entries": {},
	"from_entries": {}, "with_entries": {}, "reverse": {}, "floor": {}, "ceil": {}, "round": {}, "sqrt": {}, "abs": {},
	"todate": {}, "fromdate": {text, nil},

	"add": {whole, []kind{whole}}, "tostring": {input: whole}, "tojson": {input: whole}, "fromjson": {input: whole},
	"flatten": {input: whole}, "sort": {input: whole}, "sort_by": {whole, []kind{whole}}, "group_by": {whole, []kind{whole}},
	"unique": {input: whole}, "unique_by": {whole, []kind{whole}}, "min": {input: whole}, "max": {input: whole},
	"min_by": {whole, []kind{whole}}, "max_by": {whole, []kind{whole}}, "join": {whole, []kind{text}},
	"split": {whole, []kind{text}}, "explode": {input: whole}, "implode": {input: whole}, "ascii_downcase": {input: whole},
	"ascii_upcase": {input: whole}, "trim": {input: whole}, "ltrim": {input: whole}, "rtrim": {input: whole},
	"startswith": {whole, []kind{whole}}, "endswith": {whole, []kind{whole}}, "ltrimstr": {whole, []kind{whole}},
	"rtrimstr": {whole, []kind{whole}},

	"contains": {small, []kind{small}}, "inside": {small, []kind{small}}, "index": {small, []kind{small}},
	"rindex": {small, []kind{small}}, "indices": {small, []kind{small}},

	"tonumber": {input: text}, "test": {text, []kind{text}}, "match": {text, []kind{text}}, "capture": {text, []kind{text}},
	"scan": {text, []kind{text}}, "splits": {text, []kind{text}}, "sub": {text, []kind{text, free}},
	"gsub": {text, []kind{text, free}},
}

// inPaths are the functions that may stand where a program says what it changes.
var inPaths = map[string]bool{
	"select": true, "recurse": true, "first": true, "values": true, "strings": true, "numbers": true, "objects": true,
	"arrays": true, "booleans": true, "scalars": true, "iterables": true, "empty": true,
}

// maxIndex bounds the places that a program may fill in an array.
const maxIndex = 10_000

// measures are the functions, not to be had by programs, through which values pass.
var measures = map[kind]string{whole: "weir_whole", small: "weir_small", text: "weir_text"}

const numberOnly = "weir_number"

func options() []gojq.CompilerOption {
	limits := map[string]size{
		measures[whole]: {elements: 10_000, bytes: 256 << 10}, measures[small]: {elements: 500, bytes: 16 << 10},
		measures[text]: {elements: 1, bytes: 4 << 10}, numberOnly: {elements: 1, bytes: 1 << 10},
	}
	list := make([]gojq.CompilerOption, 0, len(limits)+1)
	for name, limit := range limits {
		list = append(list, gojq.WithFunction(name, 0, 0, func(v any, _ []any) any {
			left := limit
			if !left.fits(v, 0) {
				return errors.New("a value is too large for what is done with it")
			}
			if name == numberOnly && !isNumber(v) {
				return errors.New("only numbers are multiplied")
			}
			return v
		}))
	}
	return list
}

func isNumber(v any) bool {
	switch v.(type) {
	case int, float64, *big.Int, json.Number:
		return true
	}
	return false
}

// guard holds a program to its part of the language, and puts the measures in.
type guard struct{ changes int } // in how many places that are changed, one within the other, it is

func (g *guard) queries(list ...*gojq.Query) error {
	for _, q := range list {
		if err := g.query(q); err != nil {
			return err
		}
	}
	return nil
}

func (g *guard) query(q *gojq.Query) error {
	switch {
	case q == nil:
		return nil
	case len(q.FuncDefs) > 0:
		return errors.New("functions cannot be defined")
	case len(q.Imports) > 0 || q.Meta != nil:
		return errors.New("modules cannot be used")
	case q.Term != nil:
		return g.term(q.Term)
	}
	if err := g.patterns(q.Patterns); err != nil {
		return err
	}
	switch q.Op {
	case gojq.OpAssign, gojq.OpModify:
		g.changes++
		err := g.query(q.Left)
		g.changes--
		if err != nil {
			return err
		}
		return g.query(q.Right)
	case gojq.OpUpdateAdd, gojq.OpUpdateSub, gojq.OpUpdateMul, gojq.OpUpdateDiv, gojq.OpUpdateMod, gojq.OpUpdateAlt:
		return fmt.Errorf("%s is not supported: write |=", q.Op)
	default:
	}
	if err := g.queries(q.Left, q.Right); err != nil {
		return err
	}
	switch q.Op {
	case gojq.OpAdd, gojq.OpDiv, gojq.OpMod, gojq.OpEq, gojq.OpNe, gojq.OpGt, gojq.OpLt, gojq.OpGe, gojq.OpLe:
		q.Left, q.Right = through(q.Left, measures[whole]), through(q.Right, measures[whole])
	case gojq.OpSub:
		q.Left, q.Right = through(q.Left, measures[small]), through(q.Right, measures[small])
	case gojq.OpMul:
		q.Left, q.Right = through(q.Left, numberOnly), through(q.Right, numberOnly)
	default: // takes its values as they are
	}
	return nil
}

// through gives what a query makes to a measure.
func through(q *gojq.Query, measure string) *gojq.Query {
	return inner(&gojq.Query{Left: q, Op: gojq.OpPipe, Right: call(measure)})
}

// inner puts a query in parentheses.
func inner(q *gojq.Query) *gojq.Query {
	return &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeQuery, Query: q}}
}

func call(name string) *gojq.Query {
	return &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: &gojq.Func{Name: name}}}
}

func (g *guard) term(t *gojq.Term) error {
	if err := g.suffixes(t.SuffixList); err != nil {
		return err
	}
	switch {
	case t.Index != nil:
		return g.index(t.Index)
	case t.Func != nil:
		return g.function(t)
	case t.Object != nil:
		return g.object(t.Object)
	case t.Array != nil:
		return g.query(t.Array.Query)
	case t.Unary != nil:
		return g.term(t.Unary.Term)
	case t.Str != nil:
		return g.text(t.Str)
	case t.Format != "":
		measured(t, whole)
	case t.If != nil:
		return g.branches(t.If)
	case t.Try != nil:
		return g.queries(t.Try.Body, t.Try.Catch)
	case t.Reduce != nil:
		return errors.Join(g.patterns(t.Reduce.Patterns), g.queries(t.Reduce.Query, t.Reduce.Start, t.Reduce.Update))
	case t.Foreach != nil:
		f := t.Foreach
		return errors.Join(g.patterns(f.Patterns), g.queries(f.Query, f.Start, f.Update, f.Extract))
	case t.Label != nil:
		return g.query(t.Label.Body)
	}
	return g.query(t.Query)
}

// measured gives the input of a term to a measure.
func measured(t *gojq.Term, k kind) {
	if k == free {
		return
	}
	inner := *t
	inner.SuffixList = nil
	q := &gojq.Query{Left: call(measures[k]), Op: gojq.OpPipe, Right: &gojq.Query{Term: &inner}}
	*t = gojq.Term{Type: gojq.TermTypeQuery, Query: q, SuffixList: t.SuffixList}
}

func (g *guard) function(t *gojq.Term) error {
	f := t.Func
	if f.Name[0] == '$' && f.Name != "$ENV" && len(f.Args) == 0 {
		return nil // a variable
	}
	known, ok := functions[f.Name]
	if !ok {
		return fmt.Errorf("the function %s is not supported", f.Name)
	}
	if g.changes > 0 && !inPaths[f.Name] {
		return fmt.Errorf("the function %s cannot say what is changed", f.Name)
	}
	changes := g.changes
	g.changes = 0
	if f.Name == "pick" {
		g.changes = 1
	}
	err := g.queries(f.Args...)
	g.changes = changes
	if err != nil {
		return err
	}
	for i, arg := range f.Args {
		if n := len(known.args); n > 0 {
			if k := known.args[min(i, n-1)]; k != free {
				f.Args[i] = through(arg, measures[k])
			}
		}
	}
	measured(t, known.input)
	return nil
}

func (g *guard) suffixes(list []*gojq.Suffix) error {
	for _, s := range list {
		if s.Index != nil {
			if err := g.index(s.Index); err != nil {
				return err
			}
		}
	}
	return nil
}

// index allows any index to read by, and literal ones to change.
func (g *guard) index(i *gojq.Index) error {
	if g.changes > 0 && (!literal(i.Start) || !literal(i.End)) {
		return fmt.Errorf("what is changed is named by a text or by a number below %d", maxIndex)
	}
	if i.Str != nil {
		return g.text(i.Str)
	}
	if err := g.queries(i.Start, i.End); err != nil {
		return err
	}
	if i.Start != nil && !i.IsSlice {
		i.Start = through(i.Start, measures[small])
	}
	return nil
}

func literal(q *gojq.Query) bool {
	if q == nil {
		return true
	}
	t := q.Term
	if t == nil || len(t.SuffixList) > 0 {
		return false
	}
	if t.Type == gojq.TermTypeUnary {
		t = t.Unary.Term
	}
	switch t.Type {
	case gojq.TermTypeString:
		return t.Str != nil
	case gojq.TermTypeNumber:
		n, err := strconv.Atoi(t.Number)
		return err == nil && n < maxIndex
	default:
		return false
	}
}

// text measures what stands in a text.
func (g *guard) text(s *gojq.String) error {
	if err := g.queries(s.Queries...); err != nil {
		return err
	}
	for i, q := range s.Queries {
		if q.Term == nil || q.Term.Type != gojq.TermTypeString || len(q.Term.SuffixList) > 0 { // else a piece of the text itself
			s.Queries[i] = through(q, measures[whole])
		}
	}
	return nil
}

func (g *guard) object(o *gojq.Object) error {
	for _, kv := range o.KeyVals {
		if kv.KeyString != nil {
			if err := g.text(kv.KeyString); err != nil {
				return err
			}
		}
		if err := g.queries(kv.KeyQuery, kv.Val); err != nil {
			return err
		}
	}
	return nil
}

func (g *guard) branches(i *gojq.If) error {
	if err := g.queries(i.Cond, i.Then, i.Else); err != nil {
		return err
	}
	for _, more := range i.Elif {
		if err := g.queries(more.Cond, more.Then); err != nil {
			return err
		}
	}
	return nil
}

func (g *guard) patterns(list []*gojq.Pattern) error {
	for _, p := range list {
		if err := g.patterns(p.Array); err != nil {
			return err
		}
		for _, field := range p.Object {
			if field.KeyString != nil {
				if err := g.text(field.KeyString); err != nil {
					return err
				}
			}
			if err := g.query(field.KeyQuery); err != nil {
				return err
			}
			if field.Val != nil {
				if err := g.patterns([]*gojq.Pattern{field.Val}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

package rule

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// The variables of an expression, and the keys of them that this package reads itself.
const (
	varTool        = "tool"
	varArgs        = "args"
	varAgent       = "agent"
	varRun         = "run"
	varContext     = "context"
	keyID          = "id"
	keySource      = "source"
	keyAnnotations = "annotations"
)

// maxDigits bounds the text of one number; maxDepth the nesting of a value.
const maxDigits, maxDepth = 400, 100

var (
	errNumber  = errors.New("not a JSON number, or outside the range of numbers")
	errInteger = errors.New("an integer outside 64 bits cannot be compared exactly")
	errDepth   = fmt.Errorf("nested deeper than %d", maxDepth)
)

// vars gives an expression its variables. Values stay as they were decoded and are converted where the
// expression touches them, so a rule about one field does not pay for the others. But before the first touch
// a variable is checked whole: no operation on it can meet a value that has no exact form, and CEL, which
// may drop an error (x in list, a || b), cannot drop that one. For one goroutine.
type vars struct {
	in      Input
	checked [5]bool
	// fault is set when the last expression read a variable that has no exact form.
	fault error
}

var _ cel.Activation = (*vars)(nil)

func newVars(in Input) *vars { return &vars{in: in} }

// ResolveName implements cel.Activation.
func (v *vars) ResolveName(name string) (any, bool) {
	switch name {
	case varArgs:
		return v.object(0, name, v.in.Args), true
	case varTool:
		return v.object(1, name, v.in.Tool), true
	case varAgent:
		return v.object(2, name, v.in.Agent), true
	case varRun:
		return v.object(3, name, v.in.Run), true
	case varContext:
		return v.object(4, name, v.in.Context), true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (v *vars) Parent() cel.Activation { return nil }

var empty = map[string]any{}

// hasAnnotations tells whether the tool came with annotations.
func (v *vars) hasAnnotations() bool {
	tool, _ := v.in.Tool.(map[string]any)
	switch a := tool[keyAnnotations].(type) {
	case nil:
		return false
	case map[string]any:
		return len(a) > 0
	default:
		return true
	}
}

// withoutAnnotations gives the same variables with annotations that hold nothing.
func (v *vars) withoutAnnotations() *vars {
	in := v.in
	if tool, ok := in.Tool.(map[string]any); ok || in.Tool == nil {
		bare := maps.Clone(tool)
		if bare == nil {
			bare = make(map[string]any, 1)
		}
		bare[keyAnnotations] = empty
		in.Tool = bare
	}
	return newVars(in)
}

// object gives a variable's map, or an empty one and a fault.
func (v *vars) object(i int, name string, value any) map[string]any {
	if value == nil {
		return empty
	}
	m, ok := value.(map[string]any)
	if !ok {
		v.fault = &Error{Message: fmt.Sprintf("%s is %T, not a JSON object", name, value)}
		return empty
	}
	if !v.checked[i] {
		if err := check(m, 0); err != nil {
			v.fault = &Error{Message: name + ": " + err.Error()}
			return empty
		}
		v.checked[i] = true
	}
	return m
}

// check finds what has no exact form: an integer outside 64 bits, a number outside the range of doubles, a
// value that is not JSON. Anything it accepts, adapter converts without error.
func check(value any, depth int) error {
	if depth > maxDepth {
		return errDepth
	}
	switch v := value.(type) {
	case nil, bool, string, int, int64, []string:
		return nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return errNumber
		}
		return nil
	case json.Number:
		_, err := number(v)
		return err
	case []any:
		for _, e := range v {
			if err := check(e, depth+1); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		for _, e := range v {
			if err := check(e, depth+1); err != nil {
				return err
			}
		}
		return nil
	default:
		return fmt.Errorf("a Go value of type %T is not JSON", value)
	}
}

// adapter converts what check accepted, one level at a time.
type adapter struct{}

// NativeToValue implements types.Adapter.
func (a adapter) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case ref.Val:
		return v
	case nil:
		return types.NullValue
	case json.Number:
		n, err := number(v)
		if err != nil {
			return types.WrapErr(err)
		}
		return n.value()
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	default:
		return types.DefaultTypeAdapter.NativeToValue(value)
	}
}

// numeric is an int or a double; a struct, so that checking a number allocates nothing.
type numeric struct {
	i        int64
	f        float64
	fraction bool
}

func (n numeric) value() ref.Val {
	if n.fraction {
		return types.Double(n.f)
	}
	return types.Int(n.i)
}

// number gives a JSON number its value, however it is spelled: what is whole is an int (5, 5.0 and 0.5e1 are
// the same to every rule), everything else the nearest double. A whole number outside 64 bits is an error: a
// double would stand for its neighbours too, and a rule could be passed with one of them.
func number(n json.Number) (numeric, error) {
	s := string(n)
	if len(s) > maxDigits || strings.Trim(s, "0123456789+-.eE") != "" {
		return numeric{}, errNumber
	}
	if !strings.ContainsAny(s, ".eE") {
		i, err := strconv.ParseInt(s, 10, 64)
		switch {
		case err == nil:
			return numeric{i: i}, nil
		case errors.Is(err, strconv.ErrRange):
			return numeric{}, errInteger
		}
		return numeric{}, errNumber
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f == 0 && !isZero(s) { // too large, or so small that nothing of it is left
		return numeric{}, errNumber
	}
	switch {
	case f != math.Trunc(f):
		return numeric{f: f, fraction: true}, nil
	case math.Abs(f) < 1<<53:
		return numeric{i: int64(f)}, nil
	}
	return wholeOrNot(s, f)
}

// isZero tells 0.00e7 from a number that a double rounds to zero.
func isZero(s string) bool {
	mantissa, _, _ := strings.Cut(strings.ToLower(s), "e")
	return strings.Trim(mantissa, "-0.") == ""
}

// wholeOrNot decides above 2^53, where every double is whole, whether the number itself is.
func wholeOrNot(s string, f float64) (numeric, error) {
	r, ok := new(big.Rat).SetString(s)
	switch {
	case !ok:
		return numeric{}, errNumber
	case !r.IsInt():
		return numeric{f: f, fraction: true}, nil
	case !r.Num().IsInt64():
		return numeric{}, errInteger
	}
	return numeric{i: r.Num().Int64()}, nil
}

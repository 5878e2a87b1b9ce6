package rule

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

var errTooLarge = errors.New("values are too large for this function")

// guards refuse, before it starts, a call that could take much more than its arguments hold. A function that
// is linear in its arguments needs none: its price comes after it.
var guards = map[string]func(args []ref.Val) bool{
	fnReplace: func(args []ref.Val) bool {
		return replaced(text(args[0]), text(args[1]), text(args[2])) <= maxText
	},
	fnJoin:        func(args []ref.Val) bool { return joined(args) <= maxText/unit },
	fnFormat:      func(args []ref.Val) bool { return measure.AggregateSize(args[1]) <= maxText/unit },
	fnIndexOf:     scannable,
	fnLastIndexOf: scannable,
}

// scannable bounds a search that compares every character with every other.
func scannable(args []ref.Val) bool {
	return len(text(args[0]))*len(text(args[1])) <= maxScan
}

// replaced bounds the bytes that a replacement of every occurrence gives.
func replaced(s, old, by string) int {
	n := len(s) + 1
	if old != "" {
		n = strings.Count(s, old)
	}
	return len(s) + n*len(by)
}

// joined bounds the units of text that a join gives: a list may hold one long text many times.
func joined(args []ref.Val) uint64 {
	total := uint64(measure.AggregateSize(args[0]))
	if list, ok := args[0].(traits.Lister); ok && len(args) > 1 {
		n, _ := list.Size().Value().(int64)
		total += uint64(max(n, 0)) * uint64(len(text(args[1]))) / unit
	}
	return total
}

// guard is the planner's hook that puts the guards in front of their functions, and compiled patterns into
// matches.
func guard(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok {
		return i, nil
	}
	if call.Function() == fnMatches {
		return guardMatches(call)
	}
	allowed, ok := guards[call.Function()]
	if !ok {
		return i, nil
	}
	impl, err := implementation(call)
	if err != nil {
		return nil, err
	}
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
		if !allowed(args) {
			return types.WrapErr(errTooLarge)
		}
		return impl(args...)
	}), nil
}

// guardMatches compiles the pattern once and bounds what a match may take. RE2 needs no more than
// instructions times bytes, but that can be much.
func guardMatches(call interpreter.InterpretableCall) (interpreter.InterpretableV2, error) {
	args := call.Args()
	constant, ok := args[len(args)-1].(interpreter.InterpretableConst)
	if !ok {
		return nil, errors.New(msgPattern)
	}
	pattern := text(constant.Value())
	size, err := types.RegexProgramSize(pattern)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	match := func(args ...ref.Val) ref.Val {
		s, ok := args[0].(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(args[0])
		}
		if len(s)*size > maxMatch {
			return types.WrapErr(errTooLarge)
		}
		return types.Bool(re.MatchString(string(s)))
	}
	// No longer a call to later hooks: the library's would compile the pattern itself and lose the guard.
	return struct{ interpreter.InterpretableV2 }{
		interpreter.NewCall(call.ID(), fnMatches, call.OverloadID(), args, match),
	}, nil
}

// implementation finds what the library would run for a call.
func implementation(call interpreter.InterpretableCall) (func(...ref.Val) ref.Val, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	bindings, err := env.Functions()[call.Function()].Bindings()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{call.OverloadID(), call.Function()} {
		for _, o := range bindings {
			if o.Operator == name {
				return invoke(o), nil
			}
		}
	}
	return nil, fmt.Errorf("no implementation of %s", call.Function())
}

func invoke(o *functions.Overload) func(...ref.Val) ref.Val {
	return func(args ...ref.Val) ref.Val {
		switch {
		case len(args) == 1 && o.Unary != nil:
			return o.Unary(args[0])
		case len(args) == 2 && o.Binary != nil:
			return o.Binary(args[0], args[1])
		case o.Function != nil:
			return o.Function(args...)
		}
		return types.NoSuchOverloadErr()
	}
}

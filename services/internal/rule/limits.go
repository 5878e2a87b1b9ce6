package rule

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
)

// The limits. CEL's own cost model prices a call by its static types, and ours are all dynamic: there, one
// step may search or copy everything for the price of one. So every step is priced by the values it met
// (price), what could run away within one step is refused before it starts (guards), and loops, which alone
// can build values that share their parts and so are larger than memory, are measured and have a deadline.
const (
	// maxSource bounds the source, in bytes: rules are read by people.
	maxSource = 4 << 10
	// maxNodes bounds the program after macros are expanded.
	maxNodes = 4 << 10
	// maxContainers bounds how deep lists, maps and loops are nested in the source.
	maxContainers = 12
	// maxCost bounds an evaluation, in steps of about 50 to 100 ns. A usual rule takes 5 to 50.
	maxCost = 50_000
	// unit is how many bytes of text a function handles for the price of one step.
	unit = 64
	// maxSize bounds a value that a loop sees or builds, in units of text plus elements.
	maxSize = 1 << 14
	// maxElements bounds the elements and maxNesting the depth of a value that is measured.
	maxElements, maxNesting = 20_000, 64
	// maxText bounds the text that one call builds, in bytes.
	maxText = 1 << 20
	// maxScan bounds characters times characters that one search compares.
	maxScan = 4 << 20
	// maxRegex bounds the instructions of all patterns, maxMatch instructions times bytes of one match.
	maxRegex, maxMatch = 1000, 16 << 20
	// patience bounds the time of an evaluation with loops, whatever the caller's context allows. It is the
	// last resort: the worst that the other limits let happen on an idle machine is a tenth of a second or two
	// (a map or filter over thousands of elements, because its growing list is measured at each step).
	patience = time.Second
	// interruptEvery is the number of iterations between two looks at the context.
	interruptEvery = 16
)

// environment is the language: built once, then only read. The checker fills its list of known names at the
// first unknown one, while others may be reading it: so one is asked for here, before anybody shares it.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	env, err := newEnvironment()
	if err == nil {
		_, _ = env.Compile("unknown")
	}
	return env, err
})

func newEnvironment() (*cel.Env, error) {
	object := cel.MapType(cel.StringType, cel.DynType)
	return cel.NewEnv(
		cel.Variable(varTool, object),
		cel.Variable(varArgs, object),
		cel.Variable(varAgent, object),
		cel.Variable(varRun, object),
		cel.Variable(varContext, object),
		cel.CustomTypeAdapter(adapter{}),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.EnableErrorOnBadPresenceTest(true), // has(args.to.country) where to is no object: unknown, not false
		// Pinned: what a rule means must not move with the library. From version 5 on it brings prices of its
		// own, which count the characters of a text and not the work.
		ext.Strings(ext.StringsVersion(4), ext.StringsMaxPrecision(100)),
		cel.ExpressionNodeLimit(maxNodes),
		cel.ParserExpressionSizeLimit(maxSource),
		cel.ParserErrorRecoveryLimit(4),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	)
}

// programOptions are the limits of one program. Measuring values costs as much as a simple rule itself, so
// only loops pay for it: without one, values are bounded by input and source.
func programOptions(loops bool) []cel.ProgramOption {
	opts := []cel.ProgramOption{
		cel.EvalOptions(cel.OptOptimize),
		cel.CostTracking(prices{}),
		cel.CostLimit(maxCost),
		cel.CustomDecoratorV2(guard),
	}
	if loops {
		opts = append(opts,
			cel.InterruptCheckFrequency(interruptEvery),
			cel.MemoryTracking(types.MemoryTrackerSizeCalculator(measure)),
			cel.MemoryLimit(maxSize))
	}
	return opts
}

// run evaluates under the deadline that the program's shape asks for. Only loops look at a context, so a
// program without one saves the cost of it.
func (p *Program) run(ctx context.Context, v *vars) (ref.Val, error) {
	if !p.shape.loops {
		out, _, err := p.program.Eval(v)
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, _, err := p.program.ContextEval(ctx, v)
	return out, err
}

// checkSource refuses what should not reach the parser.
func checkSource(expr string) error {
	switch {
	case len(expr) > maxSource:
		return &Error{Message: fmt.Sprintf("the expression has %d bytes, more than %d", len(expr), maxSource)}
	case !utf8.ValidString(expr):
		return &Error{Message: "the expression is not valid UTF-8"}
	case strings.TrimSpace(expr) == "":
		return &Error{Line: 1, Column: 1, Message: "the expression is empty"}
	}
	return nil
}

package rule

import (
	"fmt"
	"strings"

	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
)

// shape is what checking, planning and judging need to know about an expression.
type shape struct {
	loops       bool
	annotations bool
	beyondArgs  bool // it names another variable than args
}

// inspect walks a parsed expression before its types are checked, and refuses what would take long to check
// or to plan: the checker's time grows with the fourth power of the nesting of lists, maps and loops.
func inspect(a *celast.AST) (shape, error) {
	var s shape
	var fault error
	tools, fields := 0, 0 // uses of tool; those that name a field other than the annotations
	patterns := 0
	celast.MatchDescendants(celast.NavigateAST(a), func(e celast.NavigableExpr) bool {
		switch e.Kind() {
		case celast.ComprehensionKind:
			s.loops = true
			fault = first(fault, checkNesting(a, e))
		case celast.ListKind, celast.MapKind:
			fault = first(fault, checkNesting(a, e))
		case celast.IdentKind:
			if isTool(e) {
				tools++
			}
			s.beyondArgs = s.beyondArgs || isBeyondArgs(e)
		case celast.SelectKind:
			if sel := e.AsSelect(); isTool(sel.Operand()) && sel.FieldName() != keyAnnotations {
				fields++
			}
		case celast.CallKind:
			if fault == nil && e.AsCall().FunctionName() == fnMatches {
				fault = checkPattern(a, e.AsCall(), &patterns)
			}
		default:
		}
		return false
	})
	// tool["annotations"], tool == … and the like count as reading the annotations.
	s.annotations = tools != fields
	return s, fault
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func isTool(e celast.Expr) bool { return e.Kind() == celast.IdentKind && variable(e) == varTool }

// isBeyondArgs tells whether a name is that of a variable other than args. In a loop over a name of its own it may be none.
func isBeyondArgs(e celast.Expr) bool {
	switch variable(e) {
	case varTool, varAgent, varRun, varContext:
		return true
	}
	return false
}

// variable is the name of a variable; a leading dot, which keeps a loop from hiding it, is no part of that.
func variable(e celast.Expr) string { return strings.TrimPrefix(e.AsIdent(), ".") }

// at is an error at the start of a part of the expression.
func at(a *celast.AST, e celast.Expr, message string) error {
	place := a.SourceInfo().GetStartLocation(e.ID())
	return &Error{Line: place.Line(), Column: place.Column() + 1, Message: message}
}

// checkNesting counts the lists, maps and loops around one of them.
func checkNesting(a *celast.AST, e celast.NavigableExpr) error {
	n := 1
	for parent, ok := e.Parent(); ok; parent, ok = parent.Parent() {
		switch parent.Kind() {
		case celast.ListKind, celast.MapKind, celast.ComprehensionKind:
			n++
		default:
		}
	}
	if n > maxContainers {
		return at(a, e, fmt.Sprintf("lists, maps and loops are nested deeper than %d", maxContainers))
	}
	return nil
}

// checkPattern refuses patterns that are too large, alone or together, and those that are not written in the
// expression: a model may write arguments, and a pattern from there would be compiled at each evaluation.
func checkPattern(a *celast.AST, call celast.CallExpr, total *int) error {
	if len(call.Args()) == 0 {
		return nil // no such function: the checker says so
	}
	pattern := call.Args()[len(call.Args())-1]
	if pattern.Kind() != celast.LiteralKind {
		return at(a, pattern, msgPattern)
	}
	size, err := types.RegexProgramSize(text(pattern.AsLiteral()))
	if err != nil {
		return at(a, pattern, clip(err.Error()))
	}
	if *total += size; *total > maxRegex {
		return at(a, pattern, fmt.Sprintf("the patterns take %d instructions, more than %d", *total, maxRegex))
	}
	return nil
}

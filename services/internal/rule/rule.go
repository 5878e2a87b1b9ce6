// Package rule compiles and evaluates the CEL expressions that block, hold or let a call pass.
//
// An expression sees five maps and gives a bool:
//
//	tool      the tool: id (the canonical one), source (kind, server, name), annotations, whatever else the caller
//	          puts there
//	args      the frozen arguments of the call
//	agent     the agent that made the call: id, …
//	run       the run the call belongs to
//	context   the request context
//
// The shortest use:
//
//	p, err := rule.Compile(`args.amount > 100 && agent.id == "support"`)
//	held, err := p.Eval(ctx, rule.Input{Args: args, Agent: agent})
//
// What the package promises:
//
//   - It fails closed. A missing key, a fault, a limit, a value that is no bool, a context that has ended and a
//     panic are errors, and an error never comes with true or false to act upon: callers hold the call. As CEL
//     has it, && and || pass over a fault on one side where the other side decides alone.
//   - It is bounded. Expressions come with agents, tools and requests, so they may be hostile; arguments are
//     written by a model. Source, program, steps, sizes of values and time have limits (limits.go).
//   - It is exact. A number means its value however it is spelled, and one that cannot be had exactly is an
//     error (value.go).
//   - It is a function. Nothing in the language reads a clock, a random source or the network, so the same
//     input gives the same answer on every process (with the time zones of its machine).
//   - It tells no secrets. Error texts hold words of the expression, never values of the input.
//
// Rules name tools by their canonical identity, source and name, with * and ? (see Tool.Matches): issue_* is an id,
// http:issue_* one of that source alone, mcp:github/delete_* server and raw name of an MCP tool.
//
// On top stand two pure pieces of the gate: Evaluator.Judge for the operator's rule sets, and Combine (with
// Evaluator.Require) for what a tool and a run say by themselves. The wire shape of rules is not here.
package rule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
)

// Input holds the five values that an expression sees. Each is a JSON object as map[string]any, decoded with
// UseNumber, or nil for an empty one. Numbers made in Go may be int, int64 or finite float64. The maps are
// only read.
type Input struct {
	// Tool describes the tool. Judge needs its "id" where rules name tools.
	Tool any
	// Args are the frozen arguments.
	Args any
	// Agent describes the agent. Judge needs its "id" where rules name agents.
	Agent any
	// Run describes the run.
	Run any
	// Context is the request context.
	Context any
}

// Decode reads JSON for an Input, without rounding its numbers. Nothing is an empty object.
func Decode(raw json.RawMessage) (any, error) {
	if len(raw) == 0 {
		return map[string]any{}, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errors.New("they are not JSON")
	}
	return v, nil
}

// Program is a compiled expression. It is immutable and safe for concurrent use.
type Program struct {
	expr    string
	program cel.Program
	info    *celast.SourceInfo // places of faults
	shape   shape
}

// Compile parses, checks and plans an expression. Whatever can be known to fail is refused here, with its
// place: the error is an *Error.
func Compile(expr string) (p *Program, err error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, &Error{Message: fmt.Sprintf("the expression cannot be compiled: %v", r)}
		}
	}()
	if err := checkSource(expr); err != nil {
		return nil, err
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("rule environment: %w", err)
	}
	parsed, issues := env.Parse(expr)
	if issues.Err() != nil {
		return nil, compileError(issues)
	}
	found, err := inspect(parsed.NativeRep())
	if err != nil {
		return nil, err
	}
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return nil, compileError(issues)
	}
	if t := checked.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, &Error{Line: 1, Column: 1, Message: fmt.Sprintf("the expression gives %s, not bool", t)}
	}
	program, err := env.Program(checked, programOptions(found.loops)...)
	if err != nil {
		return nil, &Error{Message: clip(err.Error()), cause: err}
	}
	return &Program{expr: expr, program: program, info: checked.NativeRep().SourceInfo(), shape: found}, nil
}

// Expr returns the source text.
func (p *Program) Expr() string { return p.expr }

// ReadsAnnotations tells whether the expression may read tool.annotations. They are what a server claims about
// itself: a caller that lets a call pass because an expression is true refuses such an expression.
func (p *Program) ReadsAnnotations() bool { return p.shape.annotations }

// ReadsOnlyArgs tells whether the expression names no other variable than args. Without the others it would fail, or be
// true for want of them.
func (p *Program) ReadsOnlyArgs() bool { return !p.shape.beyondArgs }

// Eval evaluates the expression. It returns false with every error: callers that see an error hold the call.
// The error is an *Error, and errors.Is finds the context's error in it.
func (p *Program) Eval(ctx context.Context, in Input) (bool, error) {
	return p.eval(ctx, newVars(in))
}

// eval is Eval over variables that several programs may share, one after the other.
func (p *Program) eval(ctx context.Context, v *vars) (ok bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			ok, err = false, &Error{Message: msgFailed}
		}
	}()
	if ctx.Err() != nil {
		return false, interrupted(ctx.Err())
	}
	if p.shape.annotations && !v.hasAnnotations() {
		v = v.withoutAnnotations() // none sent, no key, null: all the same to an expression
	}
	v.fault = nil
	out, err := p.run(ctx, v)
	switch {
	case v.fault != nil:
		// Also when the expression found its way around the fault: it saw a value that we could not give.
		return false, v.fault
	case err != nil:
		return false, p.evalError(ctx, err)
	case ctx.Err() != nil:
		return false, interrupted(ctx.Err())
	}
	b, isBool := out.(types.Bool)
	if !isBool {
		return false, &Error{Line: 1, Column: 1, Message: "the expression gave " + typeName(out) + ", not bool"}
	}
	return bool(b), nil
}

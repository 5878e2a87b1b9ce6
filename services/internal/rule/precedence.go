package rule

import "context"

// Requirement is what a tool (requireApproval) or a run (requireToolApproval) says by itself about approval.
// The zero value says nothing. Not both fields may be set.
type Requirement struct {
	// Fixed is a plain true or false.
	Fixed *bool
	// When is an expression, evaluated for each call.
	When string
}

// Want is a requirement as it stands for one call.
type Want uint8

// What a side can want.
const (
	Unset   Want = iota // says nothing
	Never               // a plain false
	Always              // a plain true
	SaysNo              // an expression that is false for this call
	SaysYes             // an expression that is true for this call
	Fails               // an expression that could not be evaluated
)

// Holder tells who holds a call. Anything but Nobody holds it, the zero value too.
type Holder string

// The holders.
const (
	Nobody     Holder = "nobody"
	HeldByTool Holder = "tool"
	HeldByRun  Holder = "run"
)

// Combine tells who holds a call, from what its tool and its run want:
//
//   - A tool's expression decides for that tool, whatever the run wants; if it fails, the tool holds.
//   - A tool's plain true holds, whatever the run wants: no run lowers a tool's own requirement.
//   - A tool's plain false, or nothing, leaves it to the run: there true, a true expression and one that
//     fails hold.
//
// Agent defaults are merged under the request before: what they say counts as the run's.
func Combine(tool, run Want) Holder {
	switch tool {
	case SaysNo:
		return Nobody
	case Unset, Never:
		switch run {
		case Unset, Never, SaysNo:
			return Nobody
		default:
			return HeldByRun
		}
	default:
		return HeldByTool
	}
}

// Require evaluates what the tool and the run of a call want, and combines it. The run's expression is not
// evaluated when it cannot count. The caller leaves run empty where it does not apply (client tools and
// tools that the provider executes).
func (e *Evaluator) Require(ctx context.Context, tool, run Requirement, in Input) Judgement {
	v := newVars(in)
	toolWant, toolErr := e.want(ctx, tool, v)
	runWant, runErr := Unset, error(nil)
	if toolWant == Unset || toolWant == Never {
		runWant, runErr = e.want(ctx, run, v)
	}
	switch Combine(toolWant, runWant) {
	case Nobody:
		return Judgement{Action: Allow}
	case HeldByRun:
		return required("requireToolApproval", "the run requires approval", run, runErr)
	default:
		return required("requireApproval", "the tool requires approval", tool, toolErr)
	}
}

// want evaluates one side. Annotations cannot loosen it: an expression that reads them is evaluated with and
// without them, and one true or failed evaluation is enough.
func (e *Evaluator) want(ctx context.Context, r Requirement, v *vars) (Want, error) {
	switch {
	case r.Fixed != nil && r.When != "":
		return Fails, &Error{Message: "both a plain answer and an expression are given"}
	case r.Fixed != nil && *r.Fixed:
		return Always, nil
	case r.Fixed != nil:
		return Never, nil
	case r.When == "":
		return Unset, nil
	}
	program, err := e.cache.Get(r.When)
	if err != nil {
		return Fails, err
	}
	ok, err := program.eval(ctx, v)
	if err == nil && !ok && program.ReadsAnnotations() && v.hasAnnotations() {
		ok, err = program.eval(ctx, v.withoutAnnotations())
		if err != nil {
			err = &Error{Message: withoutAnnotations + err.Error(), cause: err}
		}
	}
	switch {
	case err != nil:
		return Fails, err
	case ok:
		return SaysYes, nil
	}
	return SaysNo, nil
}

// required words the judgement of a side that holds the call.
func required(field, text string, r Requirement, err error) Judgement {
	if r.When != "" {
		text += " when " + r.When
	}
	m := Match{Set: -1, Rule: -1, Action: Ask, Reason: Reason{Rule: field, Text: text}}
	if err != nil {
		m.Reason.Error = err.Error()
	}
	return Judgement{Action: m.Action, Reason: m.Reason, Matches: []Match{m}}
}

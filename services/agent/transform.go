package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weirkeeper/weir/events"
)

// Transform says how the values of a tool's calls are shown to who watches the run (display), and what the conversation
// keeps of them (transcript). It changes nothing of what the tool is given, what the model is told or what people
// approve. A target that is set is covered: of a phase without a form nothing is shown but that there is none, so that a
// forgotten one gives nothing away. A form that fails or takes longer than 2 s shows nothing either.
type Transform struct {
	Display    *Forms
	Transcript *Forms
}

// Forms are the forms of the phases of a call.
type Forms struct {
	Input      *Form // of the arguments, as the model made them
	InputDelta *Form // of a piece of their text; makes a text; without it no pieces are shown
	Output     *Form // of results, and of what the tool writes while it runs
	Error      *Form // of errors, and of why arguments were refused
	Approval   *Form // of the arguments, for who decides about the call
	Suspend    *Form // of payloads of suspensions
	Resume     *Form // of data that a call is resumed with
}

// Form makes one value of another. It is made by [FormFunc] or [FormJQ].
type Form struct {
	form events.Form
	run  func(ctx context.Context, v Shown) (any, error)
}

// Shown is a value that is about to be shown.
type Shown struct {
	Target     events.Target
	Phase      events.Phase
	ToolName   string
	ToolCallID string
	Input      json.RawMessage // the arguments, where they are known; nil while they come
	Value      json.RawMessage // of the phase; a text for pieces of arguments
}

// FormFunc makes values by a function, which any host of the tool may run, at any time and as often as asked: it must
// change nothing. Fields that a schema marks as secret are masked before. Nil shows nothing.
func FormFunc(fn func(ctx context.Context, v Shown) (any, error)) *Form {
	return &Form{form: events.Form{Go: true}, run: fn}
}

// FormJQ makes values by a jq program over the value, such as {orderId}. $call has target, phase, toolName, toolCallId
// and input. It may take 50 ms, and runs where the value is shown, also when no host of the tool is there.
func FormJQ(program string) *Form {
	return &Form{form: events.Form{JQ: program}}
}

// of is the form of a phase.
func (f *Forms) of(p events.Phase) *Form {
	if f == nil {
		return nil
	}
	return map[events.Phase]*Form{
		events.PhaseInput: f.Input, events.PhaseInputDelta: f.InputDelta, events.PhaseOutput: f.Output, events.PhaseError: f.Error,
		events.PhaseApproval: f.Approval, events.PhaseSuspend: f.Suspend, events.PhaseResume: f.Resume,
	}[p]
}

func (t *Transform) of(target events.Target) *Forms {
	if target == events.TargetTranscript {
		return t.Transcript
	}
	return t.Display
}

// manifest is the transform as data, and what is wrong with it.
func (t *Transform) manifest() (json.RawMessage, []events.Issue) {
	var issues []events.Issue
	forms := func(target events.Target) *events.Forms {
		from := t.of(target)
		if from == nil {
			return nil
		}
		at := func(p events.Phase) *events.Form {
			f := from.of(p)
			if f == nil {
				return nil
			}
			if f.form.Go && f.run == nil {
				issues = append(issues, events.Issue{Field: "transform", Message: fmt.Sprintf("%s: %s has no function", target, p)})
			}
			return &f.form
		}
		return &events.Forms{
			Input: at(events.PhaseInput), InputDelta: at(events.PhaseInputDelta), Output: at(events.PhaseOutput),
			Error: at(events.PhaseError), Approval: at(events.PhaseApproval), Suspend: at(events.PhaseSuspend),
			Resume: at(events.PhaseResume),
		}
	}
	raw, _ := events.Marshal(events.Transform{ // texts and booleans always encode
		Display: forms(events.TargetDisplay), Transcript: forms(events.TargetTranscript),
	})
	return raw, issues
}

// errNoForm says that a tool has no function for a form.
var errNoForm = errors.New("the tool has no function for this")

// RunTransform runs the function of a form of a tool. It is what a host of the tool does when it is asked; nil says that
// the function gives nothing.
func RunTransform(ctx context.Context, t Tool, v Shown) (json.RawMessage, error) {
	c, ok := t.(*checked)
	if !ok || c.broken != nil || c.transform == nil {
		return nil, errNoForm
	}
	f := c.transform.of(v.Target).of(v.Phase)
	if f == nil || f.run == nil {
		return nil, errNoForm
	}
	made, err := within(ctx, func() (any, error) { return f.run(ctx, v) })
	if err != nil || made == nil {
		return nil, err
	}
	raw, err := events.Marshal(made)
	if err == nil {
		err = events.CheckJSON(raw)
	}
	if err != nil {
		return nil, errors.New("what the function makes cannot be encoded")
	}
	return raw, nil
}

// within turns a panic of a function into an error, and does not wait for one that ignores its deadline.
func within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type made struct {
		value T
		err   error
	}
	done := make(chan made, 1)
	go func() {
		var m made
		defer func() {
			if r := recover(); r != nil {
				m = made{err: &PanicError{Value: r}}
			}
			done <- m
		}()
		m.value, m.err = f()
	}()
	select {
	case m := <-done:
		return m.value, m.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

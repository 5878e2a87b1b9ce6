package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// VerbTransform is what a host of a tool is asked for its transforms under.
const VerbTransform = "transform"

// Target is who is shown something of a call.
type Target string

// Targets of transforms.
const (
	TargetDisplay    Target = "display"    // who watches the run: chunks and lists
	TargetTranscript Target = "transcript" // who reads the conversation: threads
)

// Targets are all of them.
func Targets() []Target { return []Target{TargetDisplay, TargetTranscript} }

// Phase is a part of a call's life that may be shown.
type Phase string

// Phases of calls.
const (
	PhaseInput      Phase = "input-available"  // the arguments
	PhaseInputDelta Phase = "input-delta"      // a piece of their text
	PhaseOutput     Phase = "output-available" // the result, and what the tool writes while it runs
	PhaseError      Phase = "error"            // the error, or why the arguments were refused
	PhaseApproval   Phase = "approval"         // the arguments, for who decides about the call
	PhaseSuspend    Phase = "suspend"          // the payload of a suspension
	PhaseResume     Phase = "resume"           // the data that a call is resumed with
)

// Transform says how the values of a tool's calls are shown. A target that is there is covered: of the phases for which it
// says nothing, nothing is shown.
type Transform struct {
	Display    *Forms `json:"display,omitempty"`
	Transcript *Forms `json:"transcript,omitempty"`
}

// Forms are the forms of the phases.
type Forms struct {
	Input      *Form `json:"input,omitempty"`
	InputDelta *Form `json:"inputDelta,omitempty"`
	Output     *Form `json:"output,omitempty"`
	Error      *Form `json:"error,omitempty"`
	Approval   *Form `json:"approval,omitempty"`
	Suspend    *Form `json:"suspend,omitempty"`
	Resume     *Form `json:"resume,omitempty"`
}

// Of is the form of a phase; nil when there is none.
func (f *Forms) Of(p Phase) *Form {
	if f == nil {
		return nil
	}
	switch p {
	case PhaseInput:
		return f.Input
	case PhaseInputDelta:
		return f.InputDelta
	case PhaseOutput:
		return f.Output
	case PhaseError:
		return f.Error
	case PhaseApproval:
		return f.Approval
	case PhaseSuspend:
		return f.Suspend
	case PhaseResume:
		return f.Resume
	}
	return nil
}

// Phases are all of them.
func Phases() []Phase {
	return []Phase{PhaseInput, PhaseInputDelta, PhaseOutput, PhaseError, PhaseApproval, PhaseSuspend, PhaseResume}
}

// Of is what a target is covered with; nil when it is not.
func (t *Transform) Of(target Target) *Forms {
	switch {
	case t == nil:
		return nil
	case target == TargetTranscript:
		return t.Transcript
	default:
		return t.Display
	}
}

// HasGo reports whether a form is a function that the hosts of the tool have.
func (t *Transform) HasGo() bool {
	return slices.ContainsFunc(Targets(), func(target Target) bool {
		return slices.ContainsFunc(Phases(), func(p Phase) bool {
			f := t.Of(target).Of(p)
			return f != nil && f.Go
		})
	})
}

// ParseTransform reads the transform of a manifest; nil when it has none. Programs are not checked.
func ParseTransform(raw json.RawMessage) (*Transform, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil //nolint:nilnil // none is none
	}
	var t Transform
	if err := strictly(raw, &t); err != nil {
		return nil, errors.New(`want {"display": {…}, "transcript": {…}}, each with forms of input, inputDelta, output, error, approval, suspend and resume`)
	}
	if t.Display == nil && t.Transcript == nil {
		return nil, errors.New("covers neither display nor transcript")
	}
	for _, target := range Targets() {
		for _, p := range Phases() {
			if f := t.Of(target).Of(p); f != nil && f.Go == (f.JQ != "") {
				return nil, fmt.Errorf(`%s: %s: want {"jq": "…"} or {"go": true}`, target, p)
			}
		}
	}
	return &t, nil
}

// strictly decodes JSON into a struct and refuses keys that it does not have.
func strictly(raw []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

// TransformPolicy says how the values of the calls of many tools are shown, by jq programs: those of all tools when it has
// no rules for them. It comes before what a tool says itself. Exactly one policy applies to a run: its own, else its
// agent's.
type TransformPolicy struct {
	Rules   []TransformRule `json:"rules"`
	Targets []Target        `json:"targets,omitempty"` // that it covers; empty: both
}

// TransformRule are forms for some tools. The first rule that matches a tool counts.
type TransformRule struct {
	Tools []string `json:"tools,omitempty"` // patterns as in rules; empty: all
	Forms
}

// Covers reports whether a policy covers a target.
func (p *TransformPolicy) Covers(t Target) bool {
	return p != nil && (len(p.Targets) == 0 || slices.Contains(p.Targets, t))
}

// Unavailable is shown in place of a value of which nothing may be shown.
func Unavailable(p Phase) json.RawMessage {
	raw, _ := Marshal(map[string]string{"message": unavailableText(p)}) // texts always encode
	return raw
}

func unavailableText(p Phase) string { return fmt.Sprintf("Tool %s payload unavailable", p) }

// Shown is a value as it may be shown.
type Shown struct {
	Value    json.RawMessage
	Suppress bool // nothing is published at all
	Failed   bool // the form failed; the value is that of Unavailable
}

// TransformRequest asks a host of a tool how a value may be shown (request on svc.tool.<pool>.<tool>.transform; stored
// nowhere). Its answer is a [TransformAnswer].
type TransformRequest struct {
	Namespace         Namespace       `json:"namespace"`
	RunID             string          `json:"runId"`
	ToolCallID        string          `json:"toolCallId"`
	ToolName          string          `json:"toolName"`
	ToolID            string          `json:"toolId"`
	ToolVersion       string          `json:"toolVersion"`
	InputSchemaDigest string          `json:"inputSchemaDigest"`
	Target            Target          `json:"target"`
	Phase             Phase           `json:"phase"`
	Value             json.RawMessage `json:"value"`
	Input             json.RawMessage `json:"input,omitempty"` // the arguments, where they are known
	Within            Duration        `json:"within"`          // how long the asker waits
}

// TransformAnswer is how a host says that a value may be shown: absent or null when the function gave nothing.
type TransformAnswer struct {
	Value  json.RawMessage `json:"value,omitempty"`
	Failed bool            `json:"failed,omitempty"`
}

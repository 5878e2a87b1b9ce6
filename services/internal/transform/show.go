package transform

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/weirkeeper/weir/events"
)

// Notes say how the values of a chunk were made, by phase.
type Notes map[events.Phase]events.Shown

// add keeps what a phase shows, and gives its value.
func (n Notes) add(p events.Phase, s events.Shown) json.RawMessage {
	n[p] = s
	return s.Value
}

// Args are arguments as a target may see them: for the phase input, or for who decides about the call.
func (v *View) Args(ctx context.Context, t events.Target, p events.Phase, c Call, args json.RawMessage) events.Shown {
	if v == nil {
		return events.Shown{Value: args}
	}
	masked := v.secrets.Args(args)
	c.Input = masked
	return v.Show(ctx, t, p, c, masked)
}

// Text are arguments as a model wrote them, as the chunk of the call may show them. What is no JSON is shown of a tool
// that hides nothing alone.
func (v *View) Text(ctx context.Context, c Call, args string) (events.Shown, bool) {
	raw, err := events.ParseArgs(args, false)
	switch {
	case v == nil || err != nil && !v.Covers(events.TargetDisplay):
		return events.Shown{Value: events.ShownArgs(v.Secrets().ArgsText(args))}, false
	case err != nil:
		return events.Shown{Value: events.Unavailable(events.PhaseInput)}, true
	}
	return v.Args(ctx, events.TargetDisplay, events.PhaseInput, c, raw), v.Covers(events.TargetDisplay)
}

// Delta is a piece of the text of arguments as it may be shown, if it may be.
func (v *View) Delta(ctx context.Context, c Call, text string) (string, Notes, bool) {
	switch {
	case v == nil:
		return text, nil, true
	case v.secrets.HidesInput():
		return "", nil, false
	case !v.Covers(events.TargetDisplay):
		return text, nil, true
	}
	raw, err := events.Marshal(text)
	if err != nil {
		return "", nil, false
	}
	s := v.Show(ctx, events.TargetDisplay, events.PhaseInputDelta, c, raw)
	var shown string
	if s.Suppress || s.Failed || json.Unmarshal(s.Value, &shown) != nil {
		return "", nil, false
	}
	return shown, Notes{events.PhaseInputDelta: s}, true
}

// ShowsDeltas reports whether pieces of the text of arguments may be shown at all.
func (v *View) ShowsDeltas() bool {
	return v == nil || !v.secrets.HidesInput() && (!v.Covers(events.TargetDisplay) ||
		slices.ContainsFunc(v.forms[events.TargetDisplay], func(f forms) bool { _, ok := f[events.PhaseInputDelta]; return ok }))
}

// Outcome is how a call ended as a covered target may see it: its result, or its error. The value has no secrets.
func (v *View) Outcome(ctx context.Context, t events.Target, c Call, f events.CallFinished) (events.Phase, events.Shown) {
	p, value := outcome(f)
	return p, v.Show(ctx, t, p, c, value)
}

// outcome is what a call brought, and in which phase it is shown.
func outcome(f events.CallFinished) (events.Phase, json.RawMessage) {
	switch f.Outcome {
	case events.OutcomeOK, events.OutcomeResponded:
		return events.PhaseOutput, orNull(f.Result)
	case events.OutcomeBlocked:
		if f.Result != nil {
			return events.PhaseOutput, f.Result
		}
	case events.OutcomeInvalid:
		return events.PhaseError, orNull(f.Result)
	default:
	}
	raw, err := events.Marshal(f.Error)
	if err != nil {
		return events.PhaseError, json.RawMessage("null")
	}
	return events.PhaseError, raw
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

// Finished is the outcome of a call and its arguments as a chunk may show them. Args are those that stand where the outcome
// itself names none.
func (v *View) Finished(ctx context.Context, f events.CallFinished, args json.RawMessage) (events.CallFinished, json.RawMessage, Notes) {
	if v == nil {
		return f, args, nil
	}
	if len(f.Args) > 0 {
		args = f.Args
	}
	c := Call{RunID: f.RunID, ToolCallID: f.ToolCallID, ToolName: f.ToolName}
	shown := v.Args(ctx, events.TargetDisplay, events.PhaseInput, c, args)
	c.Input = v.secrets.Args(args)
	f, args = v.secrets.Finished(f, args)
	if !v.Covers(events.TargetDisplay) {
		return f, args, nil
	}
	notes := Notes{}
	args = notes.add(events.PhaseInput, shown)
	f.Args = nil
	if f.Outcome == events.OutcomeDeclined || f.Outcome == events.OutcomeExpired {
		return f, args, notes // shows the words of a person alone
	}
	p, o := v.outcomeOf(ctx, c, f)
	notes.add(p, o)
	f.ModelOutput, f.DataRef, f.Size = nil, "", 0 // are of the result
	if f.Result != nil || f.Outcome == events.OutcomeOK || f.Outcome == events.OutcomeResponded {
		f.Result = o.Value
	} else {
		f.Error = errorOf(f, o)
	}
	return f, args, notes
}

// Stored is the outcome of a call and its arguments as the conversation may show them. The outcome is whole, and args are
// those that stand where the outcome itself names none.
func (v *View) Stored(ctx context.Context, f events.CallFinished, args json.RawMessage) (events.CallFinished, json.RawMessage) {
	if v == nil {
		return f, args
	}
	if len(f.Args) > 0 {
		args = f.Args
	}
	c := Call{RunID: f.RunID, ToolCallID: f.ToolCallID, ToolName: f.ToolName}
	shown := v.Args(ctx, events.TargetTranscript, events.PhaseInput, c, args)
	c.Input = v.secrets.Args(args)
	f, _ = v.secrets.Finished(f, args)
	f.Args = nil
	if !v.Covers(events.TargetTranscript) || f.Outcome == events.OutcomeDeclined || f.Outcome == events.OutcomeExpired {
		return f, shown.Value // the words of a person are shown
	}
	o := events.Shown{Value: f.Transcript}
	if f.Transcript == nil {
		_, o = v.Outcome(ctx, events.TargetTranscript, c, f)
	}
	f.ModelOutput = nil // is of the result
	if f.Result != nil || f.Outcome == events.OutcomeOK || f.Outcome == events.OutcomeResponded {
		f.Result = o.Value
	} else {
		f.Error = errorOf(f, o)
	}
	return f, shown.Value
}

// outcomeOf is what the executor has stored of an outcome for display, else it is made now.
func (v *View) outcomeOf(ctx context.Context, c Call, f events.CallFinished) (events.Phase, events.Shown) {
	if f.Display == nil && f.DataRef != "" { // its host has not said what may be shown of it
		return events.PhaseOutput, events.Shown{Value: events.Unavailable(events.PhaseOutput), Failed: true}
	}
	if f.Display == nil {
		return v.Outcome(ctx, events.TargetDisplay, c, f)
	}
	p, _ := outcome(f)
	return p, events.Shown{Value: f.Display, Failed: f.DisplayFailed}
}

// errorOf is an error whose text is the one that may be shown. Names that Weir gives say nothing of the call's values.
func errorOf(f events.CallFinished, s events.Shown) *events.ToolError {
	e := &events.ToolError{Name: "Error"}
	if f.Error != nil && events.OwnErrorName(f.Error.Name) {
		e.Name = f.Error.Name
	}
	var made struct {
		Message *string `json:"message"`
	}
	var text string
	switch {
	case json.Unmarshal(s.Value, &made) == nil && made.Message != nil:
		e.Message = *made.Message
	case json.Unmarshal(s.Value, &text) == nil:
		e.Message = text
	default:
		e.Message = string(s.Value)
	}
	return e
}

// Delayed is an outcome that came too late as lists may show it.
func (v *View) Delayed(ctx context.Context, d events.OutcomeDelayed, toolName string, args json.RawMessage) events.OutcomeDelayed {
	if v == nil {
		return d
	}
	f, _, _ := v.Finished(ctx, events.CallFinished{
		RunID: d.RunID, ToolCallID: d.ToolCallID, ToolName: toolName, Outcome: d.Outcome, Result: d.Result, DataRef: d.DataRef, Error: d.Error,
	}, args)
	if d.Outcome == "" { // it had suspended itself
		f.Error = nil
	}
	if v.Covers(events.TargetDisplay) {
		d.DataRef = ""
	}
	d.Result, d.Error = f.Result, f.Error
	return d
}

// Written is what a tool writes while it runs as the chunk may show it, if it may be shown. It has no secrets any more.
func (v *View) Written(ctx context.Context, c Call, output json.RawMessage) (json.RawMessage, Notes, bool) {
	if !v.Covers(events.TargetDisplay) {
		return output, nil, true
	}
	for _, source := range v.forms[events.TargetDisplay] {
		if _, ok := source[events.PhaseOutput]; ok {
			s := v.Show(ctx, events.TargetDisplay, events.PhaseOutput, c, output)
			return s.Value, Notes{events.PhaseOutput: s}, !s.Failed
		}
	}
	return nil, nil, false
}

// Ask is what an ask shows in place of its arguments and payload; nil when they are shown as they are. The ask has no
// secrets any more.
func (v *View) Ask(ctx context.Context, a events.CallHeld) *events.AskDisplay {
	if !v.Covers(events.TargetDisplay) {
		return nil
	}
	c := Call{RunID: a.RunID, ToolCallID: a.ToolCallID, ToolName: a.ToolName, Input: a.Args}
	p := events.PhaseInput
	if a.Kind == events.AskApproval {
		p = events.PhaseApproval
	}
	notes := Notes{}
	d := &events.AskDisplay{Args: notes.add(p, v.Show(ctx, events.TargetDisplay, p, c, a.Args))}
	if a.Kind == events.AskSuspended {
		d.SuspendPayload = notes.add(events.PhaseSuspend, v.Show(ctx, events.TargetDisplay, events.PhaseSuspend, c, orNull(a.SuspendPayload)))
	}
	d.Metadata = notes.Metadata()
	return d
}

// AskStored is what who reads the conversation is shown of an ask in place of its arguments and payload; nil when they are
// shown as they are. The ask has no secrets any more.
func (v *View) AskStored(ctx context.Context, a events.CallHeld) *events.AskDisplay {
	if !v.Covers(events.TargetTranscript) {
		return nil
	}
	c := Call{RunID: a.RunID, ToolCallID: a.ToolCallID, ToolName: a.ToolName, Input: a.Args}
	d := &events.AskDisplay{Args: v.Show(ctx, events.TargetTranscript, events.PhaseInput, c, a.Args).Value}
	if a.Kind == events.AskSuspended {
		d.SuspendPayload = v.Show(ctx, events.TargetTranscript, events.PhaseSuspend, c, orNull(a.SuspendPayload)).Value
	}
	return d
}

// Metadata says in a chunk how its values were made; nil when nothing was.
func (n Notes) Metadata() json.RawMessage {
	if len(n) == 0 {
		return nil
	}
	byPhase := map[events.Phase]any{}
	for p, s := range n {
		switch {
		case s.Failed:
			byPhase[p] = map[string]bool{"failed": true}
		case s.Suppress:
			byPhase[p] = map[string]bool{"suppress": true}
		default:
			byPhase[p] = map[string]json.RawMessage{"transformed": s.Value}
		}
	}
	raw, err := events.Marshal(map[string]any{"mastra": map[string]any{"toolPayloadTransform": map[string]any{
		string(events.TargetDisplay): byPhase,
	}}})
	if err != nil {
		return nil
	}
	return raw
}

package events

import (
	"encoding/json"
	"strings"
)

// Texts that a model is told. They are derived from outcomes; nothing reads an outcome from them.
const (
	textDeclined  = "Tool call was not approved by the user"
	textExpired   = "Tool call was not approved in time"
	textCancelled = "Tool call was cancelled; it had not started"
	textCut       = "Tool call was cancelled after it had started; its effects may have happened"
)

// ResultPart is what the model is told about a settled call.
func ResultPart(c CallState) Part {
	f := c.Finished
	p := Part{
		Type: PartToolResult, ToolCallID: c.Planned.ToolCallID, ToolName: c.Planned.ToolName,
		ProviderCallID: c.Planned.ProviderCallID,
	}
	switch f.Outcome {
	case OutcomeOK, OutcomeResponded:
		p.Output = f.ModelOutput
		if p.Output == nil && f.DataRef != "" {
			p.DataRef, p.Size = f.DataRef, f.Size
		} else if p.Output == nil {
			p.Output = &ModelOutput{Type: OutputJSON, Value: orNull(f.Result)}
		}
	case OutcomeInvalid:
		p.Output, p.IsError = &ModelOutput{Type: OutputJSON, Value: orNull(f.Result)}, true
	case OutcomeDeclined:
		p.Output = textOutput(OutputText, firstOf(f.Reason, textDeclined))
	case OutcomeExpired:
		p.Output = textOutput(OutputText, firstOf(f.Reason, textExpired))
	case OutcomeCancelled:
		text := textCancelled
		if f.Started {
			text = textCut
		}
		p.Output, p.IsError = textOutput(OutputErrorText, text), true
	case OutcomeBlocked:
		if f.Result != nil {
			p.Output = &ModelOutput{Type: OutputJSON, Value: f.Result}
			break
		}
		p.Output, p.IsError = textOutput(OutputErrorText, errorText(f)), true
	default:
		p.Output, p.IsError = textOutput(OutputErrorText, errorText(f)), true
	}
	return p
}

func errorText(f *CallFinished) string {
	if f.Error != nil && f.Error.Message != "" {
		return f.Error.Message
	}
	return firstOf(f.Reason, "Tool call ended as "+string(f.Outcome))
}

func textOutput(kind, text string) *ModelOutput {
	v, _ := Marshal(text) // a string always encodes
	return &ModelOutput{Type: kind, Value: v}
}

func orNull(v json.RawMessage) json.RawMessage {
	if v == nil {
		return json.RawMessage("null")
	}
	return v
}

func firstOf(a, b string) string {
	if strings.TrimSpace(a) != "" {
		return a
	}
	return b
}

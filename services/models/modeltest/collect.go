package modeltest

import (
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Turn is what a model said in one turn.
type Turn struct {
	Text      string
	Reasoning string
	Signature string
	Calls     []TurnCall
	Warnings  []string
	Own       []agent.ModelPart // what the provider's own tools did, and sources
	Finished  bool
	Reason    agent.FinishReason
	Usage     events.Usage
	Err       error
}

// TurnCall is a call of a turn.
type TurnCall struct {
	ID         string
	Name       string
	ProviderID string
	Args       string
	Ended      bool
}

// Collect reads a turn to its end and fails the test when its parts break the rules: a call starts once, then come its
// deltas, then its end; ids are there and tell calls apart; the finish or an error is last, and there is one of them.
func Collect(t *testing.T, parts iter.Seq2[agent.ModelPart, error]) Turn {
	t.Helper()
	var turn Turn
	for part, err := range parts {
		switch {
		case turn.Finished || turn.Err != nil:
			t.Errorf("%+v, %v came after the end of the turn", part, err)
		case err != nil:
			turn.Err = err
		default:
			if breach := turn.take(part); breach != "" {
				t.Errorf("part %+v: %s", part, breach)
			}
		}
	}
	if !turn.Finished && turn.Err == nil {
		t.Error("the turn has neither a finish nor an error")
	}
	return turn
}

// Said is a turn as the planner keeps it: texts and reasoning in their order, then the calls.
func Said(t *testing.T, parts iter.Seq2[agent.ModelPart, error]) events.Message {
	t.Helper()
	out := events.Message{Role: events.RoleAssistant}
	at := map[string]int{} // by id, in out.Parts or in calls
	var calls []events.Part
	for p, err := range parts {
		if err != nil {
			t.Fatal(err)
		}
		switch p.Type {
		case agent.PartTextDelta, agent.PartReasoningDelta:
			if _, ok := at[p.ID]; !ok {
				at[p.ID] = len(out.Parts)
				out.Parts = append(out.Parts, events.Part{Type: strings.TrimSuffix(string(p.Type), "-delta")})
			}
			part := &out.Parts[at[p.ID]]
			part.Text, part.Signature = part.Text+p.Text, part.Signature+p.Signature
		case agent.PartToolInputStart:
			at[p.ID] = len(calls)
			calls = append(calls, events.Part{
				Type: events.PartToolCall, ToolCallID: p.ID, ToolName: p.ToolName, ProviderCallID: p.ProviderCallID,
			})
		case agent.PartToolInputDelta:
			calls[at[p.ID]].Args += p.Text
		default:
		}
	}
	out.Parts = append(out.Parts, calls...)
	return out
}

// take adds a part and says which rule it breaks.
func (turn *Turn) take(p agent.ModelPart) string {
	switch p.Type {
	case agent.PartTextDelta:
		turn.Text += p.Text
		return need(p.ID != "" && p.Text != "", "a delta needs an id and a text")
	case agent.PartReasoningDelta:
		turn.Reasoning += p.Text
		turn.Signature += p.Signature
		return need(p.ID != "" && p.Text+p.Signature != "", "a delta needs an id, and a text or a signature")
	case agent.PartProviderCall, agent.PartProviderResult:
		turn.Own = append(turn.Own, p)
		return need(p.ID != "" && p.ToolName != "" && json.Valid([]byte(p.Text)), "what a provider's tool does needs an id, a name and JSON")
	case agent.PartSource:
		turn.Own = append(turn.Own, p)
		return need(p.ID != "" && p.URL != "", "a source needs an id and a URL")
	case agent.PartWarning:
		turn.Warnings = append(turn.Warnings, p.Text)
		return need(p.Text != "", "a warning needs a text")
	case agent.PartFinish:
		turn.Finished, turn.Reason, turn.Usage = true, p.FinishReason, p.Usage
		return need(p.FinishReason != "", "a finish needs a reason")
	default:
		return turn.takeCall(p)
	}
}

func (turn *Turn) takeCall(p agent.ModelPart) string {
	at := slices.IndexFunc(turn.Calls, func(c TurnCall) bool { return c.ID == p.ID })
	if p.Type == agent.PartToolInputStart {
		turn.Calls = append(turn.Calls, TurnCall{ID: p.ID, Name: p.ToolName, ProviderID: p.ProviderCallID})
		return need(p.ID != "" && at < 0, "a call needs an id of its own")
	}
	if at < 0 {
		return "the call has not started"
	}
	c := &turn.Calls[at]
	if c.Ended {
		return "the call has ended"
	}
	switch p.Type {
	case agent.PartToolInputDelta:
		c.Args += p.Text
		return need(p.Text != "", "a delta needs a text")
	case agent.PartToolInputEnd:
		c.Ended = true
		return ""
	default:
		return "of no known type"
	}
}

func need(ok bool, rule string) string {
	if ok {
		return ""
	}
	return rule
}

// args are the joined pieces of a call's arguments.
func (c Call) args() string { return strings.Join(c.Args, "") }

package tools

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Question is what ask_user is called with, and what people are shown.
type Question struct {
	Question      string   `json:"question"`
	Options       []Option `json:"options,omitempty"`
	SelectionMode string   `json:"selectionMode,omitempty"`
}

// Option is a choice that people have. Its label is the answer.
type Option struct {
	Label       string `json:"label"`
	Description string `json:"description,omitempty"`
}

// Modes of a question with options.
const (
	SingleSelect = "single_select" // one option; the default
	MultiSelect  = "multi_select"  // any number of them
)

const questionSchema = `{"type":"object","properties":{` +
	`"question":{"type":"string","minLength":1,"description":"What to ask, clear and complete by itself."},` +
	`"options":{"type":"array","description":"The choices. Leave it out to get free text.","items":{"type":"object","properties":{` +
	`"label":{"type":"string","description":"The choice in one to five words; it is the answer."},` +
	`"description":{"type":"string","description":"What choosing it means."}},"required":["label"]}},` +
	`"selectionMode":{"type":"string","enum":["single_select","multi_select"],` +
	`"description":"How many options may be chosen, single_select by default. Only with options."}},` +
	`"required":["question"]}`

// AskUser asks the user a question and waits for the answer, however long that takes: the call is held as suspended, and
// is resumed with a text, or with a list of texts.
//
// With options, the answer must be among their labels, and for single_select it must be one: another is refused as
// invalid_data, and the call stays held. Without options any text will do. The answer is data for the model and gives
// no consent: for that, a tool asks for approval.
var AskUser = define("ask_user",
	"Ask the user a question and wait for the answer. Use it when something is unclear, when an assumption matters, or when the "+
		"user has to choose. Give two to four options for a choice, or none for an open question; selectionMode says whether "+
		"several options may be chosen.",
	askUser, agent.ToolOptions{
		Title: "Ask the user", Effect: agent.ReadOnly,
		InputSchema: schema(questionSchema), SuspendSchema: schema(questionSchema),
		ResumeSchema: schema(`{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]}`),
	})

func askUser(_ context.Context, call *agent.Call, q Question) (answer, error) {
	if len(q.Options) == 0 {
		q.Options = nil
		if q.SelectionMode != "" {
			return answer{Content: "Failed to ask user: selectionMode requires options.", IsError: true}, nil
		}
	} else if q.SelectionMode == "" {
		q.SelectionMode = SingleSelect
	}
	switch {
	case call.Resumed():
		chosen, err := agent.ResumeData[choice](call)
		if err != nil {
			return answer{}, err
		}
		return answer{Content: "User answered: " + strings.Join(chosen, ", ")}, nil
	case outsideAgent(call):
		return answer{Content: q.text()}, nil
	}
	return answer{}, call.SuspendWith(q, &agent.SuspendOptions{ResumeSchema: q.answers()})
}

// choice is an answer: one text, or several.
type choice []string

// UnmarshalJSON reads a text as the one that was chosen.
func (c *choice) UnmarshalJSON(raw []byte) error {
	var one string
	if err := json.Unmarshal(raw, &one); err == nil && string(raw) != "null" {
		*c = choice{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(c))
}

func (q Question) labels() []string {
	var labels []string
	for _, o := range q.Options {
		if !slices.Contains(labels, o.Label) {
			labels = append(labels, o.Label)
		}
	}
	return labels
}

// answers is the schema of what may answer a question with options; nil, that of the tool, for one without.
func (q Question) answers() json.RawMessage {
	if q.Options == nil {
		return nil
	}
	type texts struct {
		Type string   `json:"type"`
		Enum []string `json:"enum"`
	}
	type list struct {
		Type  string `json:"type"`
		Items texts  `json:"items"`
		Min   int    `json:"minItems,omitempty"`
		Max   int    `json:"maxItems,omitempty"`
	}
	one := texts{"string", q.labels()}
	several := list{Type: "array", Items: one}
	if q.SelectionMode == SingleSelect {
		several.Min, several.Max = 1, 1
	}
	raw, err := events.Marshal(map[string]any{"anyOf": []any{one, several}})
	if err != nil {
		return nil // texts always encode
	}
	return raw
}

// text is the question for whom no one answers.
func (q Question) text() string {
	text := "[Question for user]: " + q.Question
	if q.Options != nil {
		text += "\nOptions: " + strings.Join(q.labels(), ", ") + "\nSelection mode: " + q.SelectionMode
	}
	return text
}

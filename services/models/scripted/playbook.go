package scripted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Playbook is what a scripted model says and does: the first rule that fits the conversation gives the turn. In
// weir.yaml it is written as YAML with the same names.
type Playbook struct {
	Rules []Rule `json:"rules"`

	// Delay is the pause before each delta; zero: none.
	Delay events.Duration `json:"delay,omitempty"`
}

// Rule is one turn and when it is taken.
type Rule struct {
	When When `json:"when,omitzero"`

	Think string `json:"think,omitempty"` // reasoning, a template
	Say   string `json:"say,omitempty"`   // text, a template
	Calls []Call `json:"calls,omitempty"`

	// Delay is the pause before each delta of this turn; zero: the playbook's.
	Delay events.Duration `json:"delay,omitempty"`
	// Finish is the reason the turn reports; empty: tool-calls or stop, as there are calls or not. "length" also cuts
	// the last call in the middle of its arguments.
	Finish agent.FinishReason `json:"finish,omitempty"`
	// Fail breaks the turn.
	Fail *Fail `json:"fail,omitempty"`
}

// When says which conversations a rule fits: those that meet all conditions that it has. "This turn" are the messages
// after the last one of the user.
type When struct {
	// User are patterns on the last user message, of which one must match; a single one may be written as a text. The
	// named groups of the first that matches are values for the templates.
	User Patterns `json:"user,omitempty"`
	// Tools are names of tools that must be offered.
	Tools []string `json:"tools,omitempty"`
	// After are names of tools that must have a result in this turn; "*" stands for any.
	After []string `json:"after,omitempty"`
	// Before are names of tools that must not have one yet; "*" stands for any.
	Before []string `json:"before,omitempty"`
	// Result are patterns on the latest result of a tool in this turn, by its name, as the model is told it. Their
	// named groups are values for the templates.
	Result map[string]string `json:"result,omitempty"`
	// Failed are names of tools whose latest result in this turn must be an error.
	Failed []string `json:"failed,omitempty"`
}

// Patterns are regular expressions (RE2). In JSON a text is a list of one.
type Patterns []string

// UnmarshalJSON reads a text or a list of texts.
func (p *Patterns) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*p = Patterns{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(p))
}

// Call is a tool call of a turn. Args is a JSON object, whose texts are templates; or a text, which is a template for
// the JSON text as a whole ({{json .amount}} writes a value as JSON there) and may be as malformed as a model's.
type Call struct {
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args,omitempty"`
	// ID is the provider's id of the call; nil: a fresh one. Real providers send empty and equal ones.
	ID *string `json:"id,omitempty"`
}

// Fail is a failure of the provider.
type Fail struct {
	// Status is the HTTP status that a provider would answer with. 429, 5xx and zero (a lost connection) may be retried.
	Status  int    `json:"status,omitempty"`
	Message string `json:"message,omitempty"`
	// RetryAfter is how long the provider asks to be left alone.
	RetryAfter events.Duration `json:"retryAfter,omitempty"`
	// After is the number of deltas that still come before it.
	After int `json:"after,omitempty"`
	// Times is how often the rule fails in the life of this model before it works; zero: always.
	Times int `json:"times,omitempty"`
}

// Parse reads a playbook from JSON. Unknown keys, bad patterns and bad templates are errors that name their rule.
func Parse(raw []byte) (*Playbook, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	var p Playbook
	if err := dec.Decode(&p); err != nil {
		return nil, fmt.Errorf("read playbook: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("read playbook: something follows it")
	}
	if _, err := compile(&p); err != nil {
		return nil, err
	}
	return &p, nil
}

// patterns compiles a rule's patterns: on the user's message, and on results by tool.
func (w *When) patterns() (user []*regexp.Regexp, results map[string]*regexp.Regexp, err error) {
	for _, p := range w.User {
		re, err := regexp.Compile(p)
		if err != nil {
			return nil, nil, fmt.Errorf("when.user: %w", err)
		}
		user = append(user, re)
	}
	results = make(map[string]*regexp.Regexp, len(w.Result))
	for tool, p := range w.Result {
		if results[tool], err = regexp.Compile(p); err != nil {
			return nil, nil, fmt.Errorf("when.result.%s: %w", tool, err)
		}
	}
	return user, results, nil
}

// fits checks the conditions that need no pattern.
func (w *When) fits(c *conversation) bool {
	has := func(tool string) bool {
		if tool == anyTool {
			return len(c.results) > 0
		}
		return c.latest(tool) != nil
	}
	offered := func(tool string) bool { return slices.Contains(c.tools, tool) }
	failed := func(tool string) bool { r := c.latest(tool); return r != nil && r.failed }
	return all(w.Tools, offered) && all(w.After, has) && !slices.ContainsFunc(w.Before, has) && all(w.Failed, failed)
}

// anyTool stands for any tool in conditions.
const anyTool = "*"

func all(names []string, is func(string) bool) bool {
	return !slices.ContainsFunc(names, func(s string) bool { return !is(s) })
}

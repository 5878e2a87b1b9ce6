package events

import (
	"fmt"
	"slices"
)

// StopCondition ends a run that would go on with another turn. Exactly one field is set.
type StopCondition struct {
	StepCount   int    `json:"stepCount,omitempty"`   // after so many turns
	HasToolCall string `json:"hasToolCall,omitempty"` // after a step that called the tool of this key
	MaxTokens   int    `json:"maxTokens,omitempty"`   // once the run has used so many
	When        string `json:"when,omitempty"`        // CEL over run, agent and context
	Func        string `json:"func,omitempty"`        // a Go function that the planner knows by this name
}

// StepChange changes one turn: what it says stands in place of what the run says, for that turn only. Of several that apply the
// last word counts.
type StepChange struct {
	When string `json:"when,omitempty"` // CEL over run and context; empty, without a function: every turn
	Func string `json:"func,omitempty"` // a Go function that the planner knows by this name says what changes; it has no other fields

	Model        string    `json:"model,omitempty"`        // without fallbacks
	ToolChoice   string    `json:"toolChoice,omitempty"`   // auto, none, required or tool:<key>
	ActiveTools  *[]string `json:"activeTools,omitempty"`  // keys, of those that the run has; other calls of the turn are unknown
	Instructions *string   `json:"instructions,omitempty"` // in place of the agent's
}

// MaxConditions bounds how many conditions, and how many changes, an agent has.
const MaxConditions = 32

// CheckStops lists what is wrong with conditions; keys are those of the agent's tools. Expressions are for whoever compiles them.
func CheckStops(list []StopCondition, keys []string) []Issue {
	var issues []Issue
	add := func(i int, format string, args ...any) {
		issues = append(issues, Issue{Field: fmt.Sprintf("stopWhen[%d]", i), Message: fmt.Sprintf(format, args...)})
	}
	for i, c := range list {
		n := 0
		for _, set := range []bool{c.StepCount != 0, c.HasToolCall != "", c.MaxTokens != 0, c.When != "", c.Func != ""} {
			if set {
				n++
			}
		}
		switch {
		case n != 1:
			add(i, "want exactly one of stepCount, hasToolCall, maxTokens, when and func")
		case c.StepCount < 0 || c.MaxTokens < 0:
			add(i, "must not be negative")
		case c.HasToolCall != "" && !slices.Contains(keys, c.HasToolCall):
			add(i, "no tool has the key %q", c.HasToolCall)
		}
	}
	if len(list) > MaxConditions {
		add(MaxConditions, "at most %d conditions are looked at", MaxConditions)
	}
	return issues
}

// CheckSteps lists what is wrong with changes; keys are those of the agent's tools.
func CheckSteps(list []StepChange, keys []string) []Issue {
	var issues []Issue
	for i, c := range list {
		field := fmt.Sprintf("prepareStep[%d]", i)
		if c.Func != "" && (c.When != "" || c != (StepChange{Func: c.Func})) {
			issues = append(issues, Issue{Field: field, Message: "func says itself when and what: it has no other fields"})
			continue
		}
		for _, text := range c.Check(keys) {
			issues = append(issues, Issue{Field: field, Message: text})
		}
	}
	if len(list) > MaxConditions {
		issues = append(issues, Issue{Field: "prepareStep", Message: fmt.Sprintf("at most %d changes are looked at", MaxConditions)})
	}
	return issues
}

// Check lists what is wrong with what changes; keys are those of the agent's tools.
func (c StepChange) Check(keys []string) []string {
	var texts []string
	if !ValidToolChoice(c.ToolChoice, keys) {
		texts = append(texts, fmt.Sprintf("toolChoice is %q; use auto, none, required or tool:<key of a tool>", c.ToolChoice))
	}
	if c.ActiveTools != nil {
		for _, key := range *c.ActiveTools {
			if !slices.Contains(keys, key) {
				texts = append(texts, fmt.Sprintf("activeTools: no tool has the key %q", key))
			}
		}
	}
	return texts
}

// ValidToolChoice reports whether a choice is a word, or names one of these keys. Nothing is auto.
func ValidToolChoice(choice string, keys []string) bool {
	switch choice {
	case "", "auto", "none", "required":
		return true
	}
	return slices.ContainsFunc(keys, func(key string) bool { return choice == "tool:"+key })
}

// Over is the change with what another says in its place.
func (c StepChange) Over(other StepChange) StepChange {
	if other.Model != "" {
		c.Model = other.Model
	}
	if other.ToolChoice != "" {
		c.ToolChoice = other.ToolChoice
	}
	if other.ActiveTools != nil {
		c.ActiveTools = other.ActiveTools
	}
	if other.Instructions != nil {
		c.Instructions = other.Instructions
	}
	return c
}

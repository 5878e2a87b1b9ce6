package judge

import (
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// Identity is what patterns of rules match a tool by.
func Identity(m events.Manifest) rule.Tool {
	return rule.Tool{ID: m.ID, Kind: m.Source.Kind, Server: m.Source.Server, Name: m.Source.Name}
}

// Pattern is a pattern of a rule that matches nothing: the rule is without effect, and without a word.
type Pattern struct {
	Set, Rule string
	Of        string // tool or agent
	Text      string
}

// String is the sentence in which people are told.
func (p Pattern) String() string {
	return fmt.Sprintf("rule %s of set %s: no %s matches %q", p.Rule, p.Set, p.Of, p.Text)
}

// IsAgent reports whether a pattern of a rule matches one of these agents, or the reserved one of runs of single tools,
// which nobody registers.
func IsAgent(pattern string, agents []string) bool {
	return rule.Matches(pattern, events.TokenTool) ||
		slices.ContainsFunc(agents, func(id string) bool { return rule.Matches(pattern, id) })
}

// Unmatched are the patterns of rules that match none of the registered tools or agents, in the order of the sets.
func Unmatched(sets []events.RuleSet, tools []events.Manifest, agents []string) (list []Pattern) {
	for _, set := range sets {
		for _, r := range set.Rules {
			for _, text := range r.Tools {
				if !slices.ContainsFunc(tools, func(m events.Manifest) bool { return matches(text, m) }) {
					list = append(list, Pattern{set.Name, r.Name, "tool", text})
				}
			}
			for _, text := range r.Agents {
				if !IsAgent(text, agents) {
					list = append(list, Pattern{set.Name, r.Name, "agent", text})
				}
			}
		}
	}
	return list
}

func matches(pattern string, m events.Manifest) bool {
	ok, err := Identity(m).Matches(pattern)
	return ok && err == nil
}

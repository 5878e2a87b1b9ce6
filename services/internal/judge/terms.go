package judge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// NoRule is the rule of a call that nothing had anything to say about.
const NoRule = "none"

// Terms are what a judgement means for a call: whether it runs, and if people are asked, who decides, how and until when.
type Terms struct {
	Action rule.Action `json:"action"`
	// Rule is the one that decided, <set>/<rule>; requireApproval and requireToolApproval are what tool and run say by
	// themselves.
	Rule  string `json:"rule"`
	Error string `json:"error,omitempty"` // why it could not be evaluated

	// Of an ask only.
	Approvers    []string          `json:"approvers,omitempty"`
	NotRequester bool              `json:"notRequester,omitempty"`
	Signed       bool              `json:"signed,omitempty"`
	Quorum       int               `json:"quorum,omitempty"` // 1: one approval is enough
	Decisions    []events.Decision `json:"decisions,omitempty"`
	Grants       bool              `json:"grants,omitempty"` // a standing approval may answer it
	Expires      events.Duration   `json:"expires,omitempty"`
	OnExpiry     string            `json:"onExpiry,omitempty"`
	Remind       events.Duration   `json:"remind,omitempty"`
	Escalate     []events.Escalate `json:"escalate,omitempty"`
}

// RuleName is how people name a rule.
func RuleName(set, name string) string {
	switch {
	case name == "":
		return NoRule
	case set == "":
		return name
	}
	return set + "/" + name
}

// TermsOf are the terms of an ask as it was first stored.
func TermsOf(a events.CallHeld) Terms {
	t := Terms{
		Action: rule.Ask, Rule: RuleName(a.Reason.Set, a.Reason.Rule), Error: a.Reason.Error, Approvers: a.Approvers,
		NotRequester: a.NotRequester, Signed: a.Signed, Quorum: 1, Decisions: a.Allowed, Grants: !a.NoGrant,
		Expires: events.Duration(a.ExpiresAt.Sub(a.AskedAt)), OnExpiry: a.OnExpiry, Remind: a.Remind,
	}
	if a.Quorum != nil {
		t.Quorum = max(a.Quorum.Need, 1)
	}
	for _, s := range a.Escalate {
		t.Escalate = append(t.Escalate, events.Escalate{After: events.Duration(s.At.Sub(a.AskedAt)), To: s.To, OnExpiry: s.OnExpiry})
	}
	return t
}

// Terms judges a call and says what that means for it. An ask for which neither rule nor tool says how long it waits has
// the default.
func (r *Rules) Terms(ctx context.Context, e *rule.Evaluator, c Call, byDefault time.Duration) Terms {
	j := r.Judge(ctx, e, c)
	if j.Action == rule.Allow || j.Action == rule.Block {
		return Terms{Action: j.Action, Rule: RuleName(j.Reason.Set, j.Reason.Rule), Error: j.Reason.Error}
	}
	a := events.CallHeld{
		Kind: events.AskApproval, Allowed: events.AskApproval.Allowed(), OnExpiry: c.Tool.OnExpiry, Reason: Reason(j.Reason),
	}
	r.Restrict(&a, j, Deadline{Tool: time.Duration(c.Tool.Expires), Default: byDefault})
	return TermsOf(a)
}

// Difference is a term that is another one.
type Difference struct {
	Term string `json:"term"`
	Was  string `json:"was"`
	Is   string `json:"is"`
}

// String is the difference for people.
func (d Difference) String() string { return fmt.Sprintf("%s %s → %s", d.Term, d.Was, d.Is) }

// Differences are the terms by which a call would be treated otherwise. Which rule decides is none of them.
func (t Terms) Differences(is Terms) []Difference {
	if t.Action != is.Action {
		return []Difference{{"action", string(t.Action), string(is.Action)}}
	}
	var list []Difference
	for _, term := range terms {
		if a, b := term.text(t), term.text(is); a != b {
			list = append(list, Difference{term.name, a, b})
		}
	}
	return list
}

// terms are those of an ask, as texts.
var terms = []struct {
	name string
	text func(Terms) string
}{
	{"approvers", func(t Terms) string { return cmp.Or(sorted(t.Approvers), "everybody") }},
	{"notRequester", func(t Terms) string { return fmt.Sprint(t.NotRequester) }},
	{"signed", func(t Terms) string { return fmt.Sprint(t.Signed) }},
	{"quorum", func(t Terms) string { return fmt.Sprint(t.Quorum) }},
	{"decisions", func(t Terms) string { return sorted(t.Decisions) }},
	{"grants", func(t Terms) string { return fmt.Sprint(t.Grants) }},
	{"expires", func(t Terms) string { return time.Duration(t.Expires).String() }},
	{"onExpiry", func(t Terms) string { return t.OnExpiry }},
	{"remind", func(t Terms) string { return time.Duration(t.Remind).String() }},
	{"escalate", func(t Terms) string { return stagesText(t.Escalate) }},
}

// sorted joins a list that has no order.
func sorted[T ~string](list []T) string {
	words := make([]string, len(list))
	for i, w := range list {
		words[i] = string(w)
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func stagesText(list []events.Escalate) string {
	if len(list) == 0 {
		return "never"
	}
	words := make([]string, len(list))
	for i, s := range list {
		words[i] = fmt.Sprintf("after %s to %s", time.Duration(s.After), sorted(s.To))
		if s.OnExpiry != "" {
			words[i] += ", then " + s.OnExpiry
		}
	}
	return strings.Join(words, "; ")
}

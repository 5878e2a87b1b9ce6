package judge

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// Deadline is how long an ask waits when no rule that holds it says so.
type Deadline struct {
	Tool    time.Duration // zero: the tool does not say
	Default time.Duration
}

// Restrict says in an ask who may decide it, how, until when and what comes if nobody does, as the rules want that hold
// the call. Where several hold it, all of them must be content: the strictest of each counts.
func (r *Rules) Restrict(a *events.CallHeld, j rule.Judgement, d Deadline) {
	a.Rules = r.digest
	a.NoGrant = unsure(j)
	holding := r.holding(j)
	var expires time.Duration
	for _, h := range holding {
		a.Approvers = both(a.Approvers, h.Approvers)
		a.NotRequester = a.NotRequester || h.NotRequester
		a.Signed = a.Signed || h.Signed
		a.NoGrant = a.NoGrant || h.Grants != nil && !*h.Grants || h.Quorum > 1
		a.Allowed = narrow(a.Allowed, h.Decisions)
		if h.Quorum > 1 && (a.Quorum == nil || h.Quorum > a.Quorum.Need) {
			a.Quorum = &events.Quorum{Need: h.Quorum}
		}
		expires = shortest(expires, time.Duration(h.Expires))
		a.Remind = events.Duration(shortest(time.Duration(a.Remind), time.Duration(h.Remind)))
		if h.OnExpiry != "" {
			a.OnExpiry = h.OnExpiry
		}
	}
	a.ExpiresAt = a.AskedAt.Add(cmp.Or(shortest(d.Tool, expires), d.Default))
	a.Escalate = stages(holding, a.AskedAt)
	if a.OnExpiry == events.OnExpiryEscalate && len(a.Escalate) == 0 {
		a.OnExpiry = events.OnExpiryDecline
	}
	if a.OnExpiry == events.OnExpiryEscalate {
		a.Wait = events.Duration(a.ExpiresAt.Sub(a.AskedAt))
	}
}

// unsure reports whether something that judges the call could not be evaluated. It might have blocked the call: so people
// look at it, each time.
func unsure(j rule.Judgement) bool {
	return j.Reason.Error != "" || slices.ContainsFunc(j.Matches, func(m rule.Match) bool { return m.Reason.Error != "" })
}

// holding are the operators' rules that hold a call.
func (r *Rules) holding(j rule.Judgement) []events.Rule {
	var rules []events.Rule
	for _, m := range j.Matches {
		if m.Action == rule.Ask && m.Set >= 0 {
			rules = append(rules, r.full[m.Set][m.Rule])
		}
	}
	return rules
}

// Reason is the reason of a judgement as an ask shows it.
func Reason(r rule.Reason) events.AskReason {
	return events.AskReason{Rule: r.Rule, Set: r.Set, Digest: r.Digest, Text: r.Text, Error: r.Error}
}

// shortest is the shorter of two spans; 0 is none.
func shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// both is who may decide when two rules name who may: only who is named by each. A rule that names nobody leaves it to
// the other.
func both(a, b []string) []string {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	all := []string{}
	for _, name := range a {
		if slices.Contains(b, name) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return []string{"nobody:rules-disagree"}
	}
	return all
}

// narrow leaves of the decisions that an ask takes those that a rule names; none named are all. Whoever may look at a
// call may always decline it, and approve stands for what lets a call go on: a resume or a retry too.
func narrow(takes, named []events.Decision) []events.Decision {
	if len(named) == 0 {
		return takes
	}
	var left []events.Decision
	for _, d := range takes {
		as := d
		if d.Releases() {
			as = events.Approve
		}
		if d == events.Decline || slices.Contains(named, as) {
			left = append(left, d)
		}
	}
	return left
}

// stages are the escalations of the rules that hold a call, in order of time. A stage lets nobody decide whom another of
// these rules does not name at all.
func stages(holding []events.Rule, asked time.Time) []events.Stage {
	var all []events.Stage
	for i, r := range holding {
		for _, e := range r.Escalate {
			to := slices.Clone(e.To)
			for k, other := range holding {
				if k != i && len(other.Approvers) > 0 {
					to = slices.DeleteFunc(to, func(who string) bool { return !names(other, who) })
				}
			}
			if len(to) > 0 {
				all = append(all, events.Stage{At: asked.Add(time.Duration(e.After)), To: to, OnExpiry: e.OnExpiry})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b events.Stage) int { return a.At.Compare(b.At) })
	return all
}

// names reports whether a rule lets somebody decide, from the beginning or later.
func names(r events.Rule, who string) bool {
	return slices.Contains(r.Approvers, who) ||
		slices.ContainsFunc(r.Escalate, func(e events.Escalate) bool { return slices.Contains(e.To, who) })
}

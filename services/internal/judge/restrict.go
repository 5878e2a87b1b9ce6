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
	var onExpiry string
	need := 0
	for _, h := range holding {
		a.Approvers = both(a.Approvers, h.Approvers)
		a.NotRequester = a.NotRequester || h.NotRequester
		a.Signed = a.Signed || h.Signed
		a.NoGrant = a.NoGrant || h.Grants != nil && !*h.Grants || h.Quorum > 1
		a.Allowed = narrow(a.Allowed, h.Decisions)
		need = max(need, h.Quorum)
		expires = shortest(expires, time.Duration(h.Expires))
		onExpiry = stricter(onExpiry, h.OnExpiry)
		a.Remind = events.Duration(shortest(time.Duration(a.Remind), time.Duration(h.Remind)))
	}
	a.OnExpiry = cmp.Or(onExpiry, a.OnExpiry, events.OnExpiryDecline)
	if need > 1 && (a.Takes(events.Approve) || a.Takes(events.Retry)) { // one person decides what else it takes
		a.Quorum = &events.Quorum{Need: need}
	}
	a.ExpiresAt = a.AskedAt.Add(cmp.Or(shortest(d.Tool, expires), d.Default))
	escalate(a, holding)
}

// escalate plans the stages of an ask. One that comes after the deadline never begins, unless the deadline begins it.
func escalate(a *events.CallHeld, holding []events.Rule) {
	a.Escalate = stages(holding, a.AskedAt)
	if a.OnExpiry == events.OnExpiryEscalate && len(a.Escalate) == 0 {
		a.OnExpiry = events.OnExpiryDecline
	}
	if a.OnExpiry == events.OnExpiryEscalate {
		a.Wait = events.Duration(a.ExpiresAt.Sub(a.AskedAt))
		return
	}
	a.Escalate = slices.DeleteFunc(a.Escalate, func(s events.Stage) bool { return !s.At.Before(a.ExpiresAt) })
}

// severity orders what an ask does that expires.
var severity = []string{"", events.OnExpiryEscalate, events.OnExpiryDecline, events.OnExpiryFail}

// stricter is what the sterner of two rules wants of an ask that expires.
func stricter(a, b string) string {
	if slices.Index(severity, b) > slices.Index(severity, a) {
		return b
	}
	return a
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
		if HeldBy(m) {
			rules = append(rules, r.full[m.Set][m.Rule])
		}
	}
	return rules
}

// HeldBy reports whether a match is one of a rule of the operators that holds the call.
func HeldBy(m rule.Match) bool { return m.Action == rule.Ask && m.Set >= 0 }

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

// stages are the escalations of the rules that hold a call, in order of time. Somebody whom a rule sends the call to may
// decide it as soon as every other of them would let him too, and not at all when one of them never does.
func stages(holding []events.Rule, asked time.Time) []events.Stage {
	var all []events.Stage
	for i, r := range holding {
		for _, e := range r.Escalate {
			others := slices.Concat(holding[:i], holding[i+1:])
			for _, who := range e.To {
				if after, ever := agreed(e, who, others); ever {
					all = addStage(all, asked.Add(after), who, endOf(e, others))
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b events.Stage) int { return a.At.Compare(b.At) })
	return all
}

// agreed is after how long somebody may decide whom a rule escalates to and others must let too.
func agreed(e events.Escalate, who string, others []events.Rule) (after time.Duration, ever bool) {
	after = time.Duration(e.After)
	for _, r := range others {
		theirs, ever := lets(r, who)
		if !ever {
			return 0, false
		}
		after = max(after, theirs)
	}
	return after, true
}

// endOf is what an escalation wants of an ask that expires, unless others want it sterner.
func endOf(e events.Escalate, others []events.Rule) string {
	end := e.OnExpiry
	for _, r := range others {
		if end != "" {
			end = stricter(end, r.OnExpiry)
		}
	}
	return end
}

// lets is after how long a rule lets somebody decide, and whether it ever does.
func lets(r events.Rule, who string) (after time.Duration, ever bool) {
	if len(r.Approvers) == 0 || slices.Contains(r.Approvers, who) {
		return 0, true
	}
	for _, e := range r.Escalate {
		if slices.Contains(e.To, who) && (!ever || time.Duration(e.After) < after) {
			after, ever = time.Duration(e.After), true
		}
	}
	return after, ever
}

// addStage adds somebody to the stage of a time.
func addStage(all []events.Stage, at time.Time, who, onExpiry string) []events.Stage {
	i := slices.IndexFunc(all, func(s events.Stage) bool { return s.At.Equal(at) })
	if i < 0 {
		return append(all, events.Stage{At: at, To: []string{who}, OnExpiry: onExpiry})
	}
	if !slices.Contains(all[i].To, who) {
		all[i].To = append(all[i].To, who)
	}
	all[i].OnExpiry = stricter(all[i].OnExpiry, onExpiry)
	return all
}

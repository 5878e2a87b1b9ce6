package approval

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/story"
)

// TestB7_15_GrantsReleaseWhatTheirGrantorMayApprove judges thousands of random calls by random rule sets, with a random
// grant, and compares what the grant releases with what an oracle says that reads the rules in its own way. A grant
// releases nothing that any matching rule blocks, holds with grants: false or a quorum, or leaves to others than its
// grantor, and nothing that cannot be judged; and what remains it does release.
func TestB7_15_GrantsReleaseWhatTheirGrantorMayApprove(t *testing.T) {
	t.Parallel()
	reached := map[string]int{}
	schema := `{"type": "object", "properties": {"amount": {"type": "number"}}}`
	tools := fmt.Sprintf(`{"pay": {"description": "Pay", "inputSchema": %[1]s}, "pray": {"description": "Pray", "inputSchema": %[1]s}}`, schema)
	n := newNarrator(t, story.Parse([]byte("-- tools.json --\n"+tools+"\n")))
	for seed := range uint64(6000) {
		c := newGrantCase(rand.New(rand.NewPCG(seed, 7)))
		why := c.refuses()
		reached[why]++
		if got := c.releases(n); got != (why == "") && (got || !c.severalApprovers) {
			t.Errorf("seed %d: released %v; the oracle says %q\ncase %s", seed, got, why, n.json(c.said()))
		}
	}
	for _, branch := range []string{
		"", "not held", "blocked", "unsure", "grants: false", "quorum", "not an approver", "the requester", "not signed",
		"approve is not taken", "for others", "condition",
	} {
		if reached[branch] < 20 {
			t.Errorf("branch %q was reached %d times", branch, reached[branch])
		}
	}
}

// grantCase is a call, the rules for it, and a grant.
type grantCase struct {
	tool             string
	amount           float64
	thread, resource string
	sets             []events.RuleSet
	grant            events.Grant
	who              proof
	severalApprovers bool // rules name approvers that must agree, by names
}

// Conditions that the oracle understands.
const (
	whenAlways = ""
	whenFails  = "args.missing > 1"
	whenBob    = "run.requester == 'bob'"
)

func newGrantCase(r *rand.Rand) *grantCase {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	some := func(from ...string) (list []string) {
		for _, s := range from {
			if r.IntN(3) == 0 {
				list = append(list, s)
			}
		}
		return list
	}
	c := &grantCase{
		tool: pick("pay", "pay", "pay", "pray"), amount: float64(r.IntN(100)) + 0.5, thread: pick("t1", "t1", "t2", ""),
		resource: pick("bob", "bob", "carol"),
	}
	for i := range r.IntN(4) {
		set := events.RuleSet{Name: fmt.Sprintf("set%d", i), Rules: []events.Rule{}}
		for k := range r.IntN(4) {
			rule := events.Rule{
				Name: fmt.Sprintf("rule%d", k), Action: events.RuleAction(pick("allow", "ask", "ask", "ask", "ask", "block")),
				When: pick(whenAlways, "args.amount > 50.0", "args.amount < 20.0", whenBob, whenAlways, whenFails),
			}
			if r.IntN(3) == 0 {
				rule.Tools = []string{pick("pay", "p*", "?ray", "other")}
			}
			if rule.Action == events.RuleAsk && r.IntN(2) == 0 {
				rule.Approvers, rule.NotRequester = some("user:alice", "user:bob", "group:finance", "group:board"), r.IntN(4) == 0
				rule.Signed, rule.Quorum = r.IntN(6) == 0, []int{0, 0, 0, 1, 2}[r.IntN(5)]
				rule.Grants = []*bool{nil, nil, nil, new(true), new(false)}[r.IntN(5)]
				if r.IntN(5) == 0 {
					rule.Decisions = []events.Decision{events.Decision(pick("approve", "respond"))}
				}
			}
			set.Rules = append(set.Rules, rule)
		}
		c.sets = append(c.sets, set)
	}
	c.who = proof{principal: pick("alice", "alice", "bob", "carol"), authType: events.AuthKey, groups: some("finance", "board")}
	if r.IntN(2) == 0 {
		c.who.signed = &events.Signed{Key: "U"}
	}
	c.grant = events.Grant{
		V: 1, ID: "g", AgentID: pick("support", "support", "support", "support", "sales"), ToolID: pick("pay", "pay", "pay", "pray"),
		Terms: events.GrantTerms{Scope: pick(events.ScopeRun, events.ScopeThread), For: events.Duration(time.Hour), Uses: 1},
	}
	if c.grant.Terms.Scope == events.ScopeRun {
		c.grant.RunID = pick(storyRun, storyRun, "other")
	} else {
		c.grant.ThreadID, c.grant.ResourceID = pick("t1", "t1", "t2"), "bob"
	}
	c.grant.Terms.When = pick(whenAlways, whenAlways, "args.amount < 70.0", whenFails, "tool.id == 'pay'")
	return c
}

// releases asks the gate.
func (c *grantCase) releases(n *narrator) bool {
	n.t.Helper()
	stored := map[string][]byte{}
	for _, set := range c.sets {
		raw, err := events.Marshal(set)
		n.must(err)
		stored[set.Name] = raw
	}
	var err error
	n.rules, err = judge.Read(stored)
	n.must(err)
	request := map[string]any{"agentId": "support", "messages": "Hi", "requireToolApproval": c.tool == "pray"}
	if c.thread != "" {
		request["threadId"], request["resourceId"] = c.thread, c.resource
	}
	raw, err := events.Marshal(request)
	n.must(err)
	n.start(raw, "bob")
	q := n.question(1, 0, events.CallPlanned{ToolName: c.tool, Args: fmt.Sprintf(`{"amount":%v}`, c.amount)})
	v := q.decide(n.t.Context())
	return v.held != nil && q.releases(n.t.Context(), *v.held, c.grant, c.who)
}

// refuses is the oracle: why the grant does not release the call, empty when it does.
func (c *grantCase) refuses() string {
	holding, why := c.matching()
	switch {
	case why != "":
		return why
	case len(holding) == 0 && c.tool != "pray": // which the run wants to be approved
		return "not held"
	}
	named := 0
	for _, r := range holding {
		switch {
		case r.Grants != nil && !*r.Grants:
			return "grants: false"
		case r.Quorum > 1:
			return "quorum"
		case len(r.Decisions) > 0 && !slices.Contains(r.Decisions, events.Approve):
			return "approve is not taken"
		case r.NotRequester && c.who.principal == "bob":
			return "the requester"
		case r.Signed && c.who.signed == nil:
			return "not signed"
		case len(r.Approvers) > 0 && !c.isAmong(r.Approvers):
			return "not an approver"
		}
		if len(r.Approvers) > 0 {
			named++
		}
	}
	c.severalApprovers = named > 1
	g := c.grant
	inScope := g.RunID == storyRun
	if g.Terms.Scope == events.ScopeThread {
		inScope = g.ThreadID == c.thread && c.resource == "bob"
	}
	switch {
	case !inScope || g.ToolID != c.tool || g.AgentID != "support":
		return "for others"
	case g.Terms.When == "args.amount < 70.0" && c.amount >= 70, g.Terms.When == whenFails, strings.HasPrefix(g.Terms.When, "tool."):
		return "condition"
	}
	return ""
}

// matching are the rules that hold the call, or why no grant releases it, whoever gave it.
func (c *grantCase) matching() (holding []events.Rule, why string) {
	blocked, unsure := false, false
	for _, set := range c.sets {
		for _, r := range set.Rules {
			if len(r.Tools) > 0 && !slices.Contains(map[string][]string{
				"pay": {"pay", "p*"}, "pray": {"p*", "?ray"},
			}[c.tool], r.Tools[0]) {
				continue
			}
			if r.When == whenFails {
				unsure = true
				continue
			}
			if r.When == "args.amount > 50.0" && c.amount <= 50 || r.When == "args.amount < 20.0" && c.amount >= 20 {
				continue
			}
			blocked = blocked || r.Action == events.RuleBlock
			if r.Action == events.RuleAsk {
				holding = append(holding, r)
			}
			break
		}
	}
	switch {
	case blocked:
		return nil, "blocked"
	case unsure:
		return nil, "unsure"
	}
	return holding, ""
}

func (c *grantCase) isAmong(approvers []string) bool {
	return slices.Contains(approvers, "user:"+c.who.principal) ||
		slices.ContainsFunc(c.who.groups, func(g string) bool { return slices.Contains(approvers, "group:"+g) })
}

// said is the case for people.
func (c *grantCase) said() any {
	sets, _ := json.Marshal(c.sets) // they were made here
	return map[string]any{
		"tool": c.tool, "amount": c.amount, "thread": c.thread, "resource": c.resource, "sets": json.RawMessage(sets),
		"grant": c.grant, "by": c.who.principal, "groups": c.who.groups, "signed": c.who.signed != nil,
	}
}

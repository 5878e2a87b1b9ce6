package judge

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

func evaluator() *rule.Evaluator { return rule.NewEvaluator(rule.NewCache(64)) }

const week = 168 * time.Hour

// TestB7_11_TermsSayWhatAJudgementMeans: for each action, and for an ask all that people are told.
func TestB7_11_TermsSayWhatAJudgementMeans(t *testing.T) {
	t.Parallel()
	no := false
	r := rulesOf(t, one("money",
		events.Rule{Name: "small", When: "args.n < 10", Action: events.RuleAllow},
		events.Rule{Name: "huge", When: "args.n > 1000", Action: events.RuleBlock},
		events.Rule{
			Name: "large", Action: events.RuleAsk, Approvers: []string{"group:finance"}, Quorum: 2, NotRequester: true, Signed: true,
			Grants: &no, Expires: events.Duration(8 * time.Hour), OnExpiry: events.OnExpiryEscalate, Remind: events.Duration(time.Hour),
			Decisions: []events.Decision{events.Approve}, Escalate: []events.Escalate{{After: events.Duration(time.Hour), To: []string{"group:leads"}}},
		}))
	call := func(args string) Call { return Call{Tool: events.Manifest{ID: "pay"}, Args: []byte(args)} }
	for args, want := range map[string]Terms{
		`{"n":1}`:    {Action: rule.Allow, Rule: "money/small"},
		`{"n":2000}`: {Action: rule.Block, Rule: "money/huge"},
		`{"n":500}`: {
			Action: rule.Ask, Rule: "money/large", Approvers: []string{"group:finance"}, NotRequester: true, Signed: true, Quorum: 2,
			Decisions: []events.Decision{events.Approve, events.Decline}, Expires: events.Duration(8 * time.Hour), OnExpiry: "escalate",
			Remind: events.Duration(time.Hour), Escalate: []events.Escalate{{After: events.Duration(time.Hour), To: []string{"group:leads"}}},
		},
	} {
		if diff := cmp.Diff(want, r.Terms(t.Context(), evaluator(), call(args), week)); diff != "" {
			t.Errorf("%s: %s", args, diff)
		}
	}
	if got := rulesOf(t).Terms(t.Context(), evaluator(), call(`{}`), week); got.Rule != NoRule || got.Action != rule.Allow {
		t.Errorf("without rules: %+v", got)
	}
	tool := events.Manifest{ID: "pay", RequireApproval: &events.Approval{Always: true}, Expires: events.Duration(time.Minute), OnExpiry: "fail"}
	got := rulesOf(t).Terms(t.Context(), evaluator(), Call{Tool: tool}, week)
	if got.Rule != "requireApproval" || time.Duration(got.Expires) != time.Minute || got.OnExpiry != "fail" || !got.Grants || got.Quorum != 1 {
		t.Errorf("of the tool: %+v", got)
	}
}

func TestDifferencesAreThoseOfTreatment(t *testing.T) {
	t.Parallel()
	ask := Terms{Action: rule.Ask, Rule: "a/r", Approvers: []string{"user:a", "group:b"}, Quorum: 1, Decisions: []events.Decision{"approve", "decline"}, Grants: true}
	same := ask
	same.Rule, same.Error = "b/other", "failed"
	same.Approvers, same.Decisions = []string{"group:b", "user:a"}, []events.Decision{"decline", "approve"}
	if d := ask.Differences(same); len(d) > 0 {
		t.Errorf("another rule, or order, is a difference: %v", d)
	}
	other := Terms{Action: rule.Ask, Quorum: 2, Decisions: []events.Decision{"decline"}, Expires: events.Duration(time.Hour)}
	var names []string
	for _, d := range ask.Differences(other) {
		names = append(names, d.Term)
	}
	if diff := cmp.Diff([]string{"approvers", "quorum", "decisions", "grants", "expires"}, names); diff != "" {
		t.Error(diff)
	}
	if d := ask.Differences(Terms{Action: rule.Block}); len(d) != 1 || d[0].String() != "action ask → block" {
		t.Errorf("another action: %v", d)
	}
}

// TestB7_9_AddingASetNeverLoosens draws rule sets: whatever a set more says, a call is treated as strictly as before, in
// its action and in every term of an ask. So no tier that demands a person falls, and a grant never covers it.
func TestB7_9_AddingASetNeverLoosens(t *testing.T) {
	t.Parallel()
	people := []string{"user:a", "user:b", "group:c"}
	yes, no := true, false
	drawRule := rapid.Custom(func(rt *rapid.T) events.Rule {
		r := events.Rule{
			Name: "r", Action: rapid.SampledFrom([]events.RuleAction{events.RuleAllow, events.RuleAsk, events.RuleBlock}).Draw(rt, "action"),
			When: rapid.SampledFrom([]string{"", "args.n > 5", "args.missing", "false"}).Draw(rt, "when"),
		}
		if r.Action == events.RuleAsk {
			r.Approvers = rapid.SliceOfNDistinct(rapid.SampledFrom(people), 0, 3, rapid.ID[string]).Draw(rt, "approvers")
			r.NotRequester, r.Signed = rapid.Bool().Draw(rt, "notRequester"), rapid.Bool().Draw(rt, "signed")
			r.Quorum = rapid.IntRange(0, 3).Draw(rt, "quorum")
			r.Grants = rapid.SampledFrom([]*bool{nil, &yes, &no}).Draw(rt, "grants")
			r.Expires = events.Duration(rapid.IntRange(0, 3).Draw(rt, "expires")) * events.Duration(time.Hour)
			r.Decisions = rapid.SampledFrom([][]events.Decision{nil, {events.Approve}, {events.Respond, events.Edit}}).Draw(rt, "decisions")
		}
		return r
	})
	drawSet := func(rt *rapid.T, name string) events.RuleSet {
		set := one(name, rapid.SliceOfN(drawRule, 0, 3).Draw(rt, name)...)
		for i := range set.Rules {
			set.Rules[i].Name = fmt.Sprintf("r%d", i)
		}
		return set
	}
	rank := map[rule.Action]int{rule.Allow: 0, rule.Ask: 1, rule.Block: 2}
	e := evaluator()
	rapid.Check(t, func(rt *rapid.T) {
		a, b := drawSet(rt, "a"), drawSet(rt, "b")
		c := Call{Tool: events.Manifest{ID: "t"}, Args: []byte(fmt.Sprintf(`{"n":%d}`, rapid.IntRange(0, 10).Draw(rt, "n")))}
		if rapid.Bool().Draw(rt, "required") {
			c.Tool.RequireApproval = &events.Approval{Always: true}
		}
		before := rulesOf(t, a).Terms(t.Context(), e, c, week)
		after := rulesOf(t, a, b).Terms(t.Context(), e, c, week)
		if rank[after.Action] < rank[before.Action] {
			rt.Fatalf("%s became %s", before.Action, after.Action)
		}
		if before.Action != rule.Ask || after.Action != rule.Ask {
			return
		}
		for what, ok := range map[string]bool{
			"approvers":    len(before.Approvers) == 0 || len(after.Approvers) > 0 && within(after.Approvers, append(before.Approvers, "nobody:rules-disagree")),
			"notRequester": after.NotRequester || !before.NotRequester,
			"signed":       after.Signed || !before.Signed,
			"grants":       !after.Grants || before.Grants,
			"expires":      after.Expires <= before.Expires,
			"decisions":    within(after.Decisions, before.Decisions) && slices.Contains(after.Decisions, events.Decline),
			"quorum":       after.Quorum >= before.Quorum || !slices.Contains(after.Decisions, events.Approve),
		} {
			if !ok {
				rt.Fatalf("%s: %+v became %+v", what, before, after)
			}
		}
	})
}

func within[T comparable](part, all []T) bool {
	return !slices.ContainsFunc(part, func(v T) bool { return !slices.Contains(all, v) })
}

// TestB7_11_TryTakesACaseAsTheGateTakesACall: definitions count unless the case says otherwise, arguments are repaired and
// checked, and what the case does not want may be anything.
func TestB7_11_TryTakesACaseAsTheGateTakesACall(t *testing.T) {
	t.Parallel()
	known := Definitions{
		Tools: map[string]events.Manifest{"pay": {
			ID: "pay", InputSchema: []byte(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`),
			RequireApproval: &events.Approval{When: "args.n > 100"}, Source: events.Source{Kind: "http"},
			MCP:                  []byte(`{"annotations":{"destructiveHint":true}}`),
			RequestContextSchema: []byte(`{"type":"object","properties":{"tenant":{"type":"string"}}}`),
		}},
		Agents: map[string]events.AgentDef{"support": {
			ID: "support", Tools: map[string]string{"refund": "pay"}, RequireToolApproval: &events.Approval{When: "args.n == 7"},
		}},
	}
	rules := rulesOf(t, one("s",
		events.Rule{Name: "keys", When: "tool.name == 'refund' && args.n == 1", Action: events.RuleBlock},
		events.Rule{Name: "claims", When: "has(tool.annotations.destructiveHint) && args.n == 2", Action: events.RuleBlock},
		events.Rule{Name: "web", Tools: []string{"http:*"}, When: "args.n == 3", Action: events.RuleBlock},
		events.Rule{Name: "wire", Tools: []string{"mcp:bank/wire"}, Action: events.RuleBlock},
		events.Rule{Name: "who", When: "args.n == 4 && run.requester == 'bob' && context.tenant == 'acme'", Action: events.RuleBlock}))
	always, never, none := &events.Approval{Always: true}, &events.Approval{}, []string{}
	for _, tc := range []struct {
		name    string
		c       Case
		differs string
		invalid bool
	}{
		{"the agent's key", Case{Tool: "pay", AgentID: "support", Args: []byte(`{"n":1}`), Want: Want{Action: rule.Block, Rule: "s/keys"}}, "", false},
		{"without the agent", Case{Tool: "pay", Args: []byte(`{"n":1}`), Want: Want{Action: rule.Allow, Rule: "none"}}, "", false},
		{"a key of its own", Case{Tool: "pay", ToolName: "refund", Args: []byte(`{"n":1}`), Want: Want{Action: rule.Block}}, "", false},
		{"claims of the definition", Case{Tool: "pay", Args: []byte(`{"n":2}`), Want: Want{Action: rule.Block, Rule: "s/claims"}}, "", false},
		{"other claims", Case{Tool: "pay", Args: []byte(`{"n":2}`), Annotations: []byte(`{}`), Want: Want{Action: rule.Allow}}, "", false},
		{"the source of the definition", Case{Tool: "pay", Args: []byte(`{"n":3}`), Want: Want{Action: rule.Block}}, "", false},
		{"another source", Case{Tool: "pay", Source: events.Source{Kind: "go"}, Args: []byte(`{"n":3}`), Want: Want{Action: rule.Allow}}, "", false},
		{"a tool of a server", Case{Tool: "x", Source: events.Source{Kind: "mcp", Server: "bank", Name: "wire"}, Want: Want{Action: rule.Block}}, "", false},
		{
			"who and for whom", Case{
				Tool: "pay", Args: []byte(`{"n":4}`), Run: Run{Requester: "bob"}, Context: []byte(`{"tenant":"acme"}`), Want: Want{Action: rule.Block},
			}, "", false,
		},
		{"the tool asks", Case{Tool: "pay", Args: []byte(`{"n":101}`), Want: Want{Action: rule.Ask, Rule: "requireApproval", Approvers: none}}, "", false},
		{"the tool would ask", Case{Tool: "pay", Args: []byte(`{"n":101}`), RequireApproval: never, Want: Want{Action: rule.Allow}}, "", false},
		{"the agent's expression is about this call", Case{Tool: "pay", AgentID: "support", Args: []byte(`{"n":7}`), Want: Want{Action: rule.Allow}}, "", false},
		{
			"the agent asks when the tool leaves it to it", Case{
				Tool: "pay", AgentID: "support", Args: []byte(`{"n":7}`), RequireApproval: never, Want: Want{Action: rule.Ask, Rule: "requireToolApproval"},
			}, "", false,
		},
		{"the run asks", Case{Tool: "free", RequireToolApproval: always, Want: Want{Action: rule.Ask, Quorum: 1}}, "", false},
		{"a key that the schema does not list", Case{Tool: "pay", Args: []byte(`{"n":3,"note":"x"}`), Want: Want{Action: rule.Block}}, "", false},
		{"wrong arguments", Case{Tool: "pay", Args: []byte(`{"n":"three"}`), Want: Want{Action: rule.Block}}, "", true},
		{"wrong context", Case{Tool: "pay", Args: []byte(`{"n":3}`), Context: []byte(`{"tenant":7}`), Want: Want{Action: rule.Block}}, "", true},
		{"another action", Case{Tool: "pay", Args: []byte(`{"n":3}`), Want: Want{Action: rule.Ask, Rule: "s/keys"}}, "action rule", false},
		{"another rule", Case{Tool: "pay", Args: []byte(`{"n":3}`), Want: Want{Action: rule.Block, Rule: "s/keys"}}, "rule", false},
		{
			"other terms", Case{Tool: "pay", Args: []byte(`{"n":101}`), Want: Want{
				Action: rule.Ask, Approvers: []string{"user:a"}, Quorum: 2, NotRequester: &always.Always, Signed: &always.Always, Grants: &never.Always,
				Decisions: []events.Decision{events.Approve}, Expires: events.Duration(time.Hour), OnExpiry: "fail",
			}}, "approvers notRequester signed quorum decisions grants expires onExpiry", false,
		},
	} {
		got := rules.Try(t.Context(), evaluator(), tc.c, known, week)
		names := ""
		for i, d := range got.Differs {
			if i > 0 {
				names += " "
			}
			names += d.Term
		}
		if names != tc.differs || (got.Invalid != nil) != tc.invalid || got.OK() != (tc.differs == "" && !tc.invalid) {
			t.Errorf("%s: %+v", tc.name, got)
		}
	}
}

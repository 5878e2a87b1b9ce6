package rule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/services/internal/rule"
)

const (
	exprNo    = `args.amount > 1000`
	exprYes   = `args.amount > 100`
	exprFails = `args.missing > 1`
)

func fixed(b bool) rule.Requirement { return rule.Requirement{Fixed: &b} }

// sides are what a tool or a run can say, with what it comes to for the refund.
var sides = []struct {
	name string
	req  rule.Requirement
	want rule.Want
}{
	{"unset", rule.Requirement{}, rule.Unset},
	{"false", fixed(false), rule.Never},
	{"true", fixed(true), rule.Always},
	{"expression false", rule.Requirement{When: exprNo}, rule.SaysNo},
	{"expression true", rule.Requirement{When: exprYes}, rule.SaysYes},
	{"expression fails", rule.Requirement{When: exprFails}, rule.Fails},
}

// precedence is the whole table: one line for each tool, one column for each run, in the order of sides.
// - nobody holds, T the tool holds, R the run holds.
var precedence = []struct {
	holders, rows string
}{
	{"- - R - R R", "unset: B7.3 (run true), B7.8 (run fails)"},
	{"- - R - R R", "false: B7.3, B7.7 (a static false does not override), B7.8"},
	{"T T T T T T", "true: B7.5"},
	{"- - - - - -", "expression false: B7.4 (decides for that tool), B7.8 (run fails over it)"},
	{"T T T T T T", "expression true: B7.6"},
	{"T T T T T T", "expression fails: B7.8 (asks whatever the run says)"},
}

var holders = map[string]rule.Holder{"-": rule.Nobody, "T": rule.HeldByTool, "R": rule.HeldByRun}

func TestB7_3to8Precedence(t *testing.T) {
	t.Parallel()
	e := evaluator()
	for i, tool := range sides {
		for k, run := range sides {
			name := fmt.Sprintf("tool %s, run %s (%s)", tool.name, run.name, precedence[i].rows)
			want := holders[strings.Fields(precedence[i].holders)[k]]
			if got := rule.Combine(tool.want, run.want); got != want {
				t.Errorf("%s: held by %s, want %s", name, got, want)
			}
			got := e.Require(t.Context(), tool.req, run.req, refund(t))
			checkRequired(t, name, got, want, map[rule.Holder]rule.Want{rule.HeldByTool: tool.want, rule.HeldByRun: run.want})
		}
	}
}

// checkRequired holds the judgement of Require against the holder that the table names.
func checkRequired(t *testing.T, name string, got rule.Judgement, holder rule.Holder, wants map[rule.Holder]rule.Want) {
	t.Helper()
	if holder == rule.Nobody {
		if got.Action != rule.Allow || len(got.Matches) != 0 {
			t.Errorf("%s: %+v, want allow", name, got)
		}
		return
	}
	field := map[rule.Holder]string{rule.HeldByTool: "requireApproval", rule.HeldByRun: "requireToolApproval"}[holder]
	if got.Action != rule.Ask || got.Reason.Rule != field || len(got.Matches) != 1 {
		t.Errorf("%s: %+v, want ask by %s", name, got, field)
	}
	if fails := wants[holder] == rule.Fails; fails != (got.Reason.Error != "") {
		t.Errorf("%s: error %q", name, got.Reason.Error)
	}
}

func TestB7_8EveryFaultIsHeld(t *testing.T) {
	t.Parallel()
	e := evaluator()
	exprs := []string{`args.amount >`, `args`, `1`, strings.Repeat("true && ", 600) + "true"}
	for _, f := range faults {
		exprs = append(exprs, f.expr)
	}
	for _, expr := range exprs {
		faulty := rule.Requirement{When: expr}
		for _, run := range sides {
			got := e.Require(t.Context(), faulty, run.req, refund(t))
			if got.Action != rule.Ask || got.Reason.Rule != "requireApproval" || got.Reason.Error == "" {
				t.Errorf("tool %.40s, run %s: %+v", expr, run.name, got)
			}
		}
		for _, tool := range sides[:2] {
			got := e.Require(t.Context(), tool.req, faulty, refund(t))
			if got.Action != rule.Ask || got.Reason.Rule != "requireToolApproval" || got.Reason.Error == "" {
				t.Errorf("tool %s, run %.40s: %+v", tool.name, expr, got)
			}
		}
		if got := e.Require(t.Context(), rule.Requirement{When: exprNo}, faulty, refund(t)); got.Action != rule.Allow {
			t.Errorf("tool false over run %.40s: %+v", expr, got)
		}
	}
}

func TestB7_5UnknownWantsHold(t *testing.T) {
	t.Parallel()
	const unknown = rule.Want(99)
	for _, s := range sides {
		if got := rule.Combine(unknown, s.want); got != rule.HeldByTool {
			t.Errorf("unknown tool, run %s: %s", s.name, got)
		}
	}
	for _, want := range []rule.Want{rule.Unset, rule.Never} {
		if got := rule.Combine(want, unknown); got != rule.HeldByRun {
			t.Errorf("tool %v, unknown run: %s", want, got)
		}
	}
	yes := true
	both := rule.Requirement{Fixed: &yes, When: exprNo}
	if got := evaluator().Require(t.Context(), both, rule.Requirement{}, refund(t)); got.Action != rule.Ask || got.Reason.Error == "" {
		t.Errorf("both answers given: %+v", got)
	}
}

func TestB7_9AllowNeverLiftsARequirement(t *testing.T) {
	t.Parallel()
	e := evaluator()
	allow := e.Judge(t.Context(), []rule.Set{set("operator", "allow true")}, refund(t))
	for i, tool := range sides {
		for k, run := range sides {
			required := e.Require(t.Context(), tool.req, run.req, refund(t))
			if got := rule.Strictest(allow, required); got.Action != required.Action {
				t.Errorf("tool %s, run %s: %s with the operator's allow, %s without", sides[i].name, sides[k].name, got.Action, required.Action)
			}
		}
	}
}

func TestB7_16AnnotationsNeverLoosenARequirement(t *testing.T) {
	t.Parallel()
	e := evaluator()
	tool := func(annotations string) rule.Input {
		return rule.Input{Tool: object(t, `{"id":"t","annotations":`+annotations+`}`)}
	}
	const guarded = `has(tool.annotations.destructiveHint) && tool.annotations.destructiveHint`
	for _, tc := range []struct {
		when, annotations string
		want              rule.Action
	}{
		{guarded, `{"destructiveHint":true}`, rule.Ask},
		{guarded, `{"destructiveHint":false}`, rule.Allow},
		{guarded, `{}`, rule.Allow},
		{guarded, `null`, rule.Allow},
		{`!has(tool.annotations.readOnlyHint)`, `{"readOnlyHint":true}`, rule.Ask},
		{`!tool.annotations.readOnlyHint`, `{"readOnlyHint":true}`, rule.Ask},
		{`tool.annotations.destructiveHint`, `{"destructiveHint":false}`, rule.Ask},
	} {
		for _, side := range []string{"tool", "run"} {
			r := map[string]rule.Requirement{side: {When: tc.when}}
			if got := e.Require(t.Context(), r["tool"], r["run"], tool(tc.annotations)); got.Action != tc.want {
				t.Errorf("%s: %s with %s: %+v, want %s", side, tc.when, tc.annotations, got, tc.want)
			}
		}
	}
}

// TestCase_GATE6 is a run option over what a tool itself says.
func TestCase_GATE6(t *testing.T) {
	t.Parallel()
	e := evaluator()
	for _, tc := range []struct {
		name      string
		tool, run rule.Requirement
		want      rule.Action
	}{
		{"run false, tool demands", fixed(true), fixed(false), rule.Ask},
		{"run false, tool's expression demands", rule.Requirement{When: exprYes}, fixed(false), rule.Ask},
		{"run true, tool says nothing", rule.Requirement{}, fixed(true), rule.Ask},
		{"run true, tool plain false", fixed(false), fixed(true), rule.Ask},
		{"run true, tool's own expression says no", rule.Requirement{When: exprNo}, fixed(true), rule.Allow},
	} {
		if got := e.Require(t.Context(), tc.tool, tc.run, refund(t)); got.Action != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got.Action, tc.want)
		}
	}
}

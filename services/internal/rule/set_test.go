package rule_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirkeeper/weir/services/internal/rule"
)

func evaluator() *rule.Evaluator { return rule.NewEvaluator(rule.NewCache(256)) }

// set makes a rule set from lines "action when".
func set(name string, lines ...string) rule.Set {
	s := rule.Set{Name: name, Digest: "sha256:" + name}
	for i, line := range lines {
		action, when, _ := strings.Cut(line, " ")
		s.Rules = append(s.Rules, rule.Rule{
			Name: fmt.Sprintf("%s-%d", name, i+1), Action: rule.Action(action), When: when, Reason: "because " + when,
		})
	}
	return s
}

func TestB7_9FirstMatchInASetStrictestOverSets(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		sets   []rule.Set
		action rule.Action
		rule   string
	}{
		{"no sets", nil, rule.Allow, ""},
		{"an empty set", []rule.Set{set("a")}, rule.Allow, ""},
		{"nothing matches", []rule.Set{set("a", "block false", "ask args.amount > 1000")}, rule.Allow, ""},
		{"ask", []rule.Set{set("a", "ask args.amount > 500")}, rule.Ask, "a-1"},
		{"block", []rule.Set{set("a", "block args.amount > 500")}, rule.Block, "a-1"},
		{"no condition", []rule.Set{set("a", "ask")}, rule.Ask, "a-1"},
		{"an allow above an ask is an exception", []rule.Set{set("a", `allow agent.id == "support"`, "ask true")}, rule.Allow, "a-1"},
		{"an ask above an allow", []rule.Set{set("a", "ask true", "allow true")}, rule.Ask, "a-1"},
		{"an ask above a block hides it", []rule.Set{set("a", "ask true", "block true")}, rule.Ask, "a-1"},
		{"the second matches", []rule.Set{set("a", "block false", "ask true")}, rule.Ask, "a-2"},
		{"block beats ask", []rule.Set{set("a", "ask true"), set("b", "block true")}, rule.Block, "b-1"},
		{"block beats allow", []rule.Set{set("a", "block true"), set("b", "allow true")}, rule.Block, "a-1"},
		{"ask beats allow", []rule.Set{set("a", "allow true"), set("b", "ask true")}, rule.Ask, "b-1"},
		{"ask beats allow, the other way", []rule.Set{set("b", "ask true"), set("a", "allow true")}, rule.Ask, "b-1"},
		{"an allow of one set does not lift another's ask", []rule.Set{set("a", "allow true", "ask true"), set("b", "ask true")}, rule.Ask, "b-1"},
		{"the first of two asks is named", []rule.Set{set("a", "ask true"), set("b", "ask true")}, rule.Ask, "a-1"},
		{"allow is named for the record", []rule.Set{set("a", "allow true")}, rule.Allow, "a-1"},
		{"an unknown action asks", []rule.Set{set("a", "permit true")}, rule.Ask, "a-1"},
		{"an action left out asks", []rule.Set{set("a", " true")}, rule.Ask, "a-1"},
		{"an unknown action that does not match", []rule.Set{set("a", "permit false")}, rule.Allow, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := evaluator().Judge(t.Context(), tc.sets, refund(t))
			if got.Action != tc.action || got.Reason.Rule != tc.rule {
				t.Errorf("%s by %q, want %s by %q", got.Action, got.Reason.Rule, tc.action, tc.rule)
			}
		})
	}
}

func TestB7_9JudgementTellsAllMatches(t *testing.T) {
	t.Parallel()
	sets := []rule.Set{set("a", "ask args.missing > 1", "allow true"), set("b", "block false", "ask true"), set("c")}
	want := rule.Judgement{
		Action: rule.Ask,
		Reason: rule.Reason{Rule: "a-1", Set: "a", Digest: "sha256:a", Text: "because args.missing > 1", Error: "1:5: no such key: missing"},
	}
	want.Matches = []rule.Match{
		{Set: 0, Rule: 0, Action: rule.Ask, Reason: want.Reason},
		{Set: 0, Rule: 1, Action: rule.Allow, Reason: rule.Reason{Rule: "a-2", Set: "a", Digest: "sha256:a", Text: "because true"}},
		{Set: 1, Rule: 1, Action: rule.Ask, Reason: rule.Reason{Rule: "b-2", Set: "b", Digest: "sha256:b", Text: "because true"}},
	}
	if diff := cmp.Diff(want, evaluator().Judge(t.Context(), sets, refund(t))); diff != "" {
		t.Error(diff)
	}
}

// TestB7_9FaultInARuleAsks puts each fault into a rule of each action, above and below others.
func TestB7_9FaultInARuleAsks(t *testing.T) {
	t.Parallel()
	e := evaluator()
	exprs := []string{`args.amount >`, `args`, `1`, strings.Repeat("true && ", 600) + "true"} // these do not compile
	for _, f := range faults {
		exprs = append(exprs, f.expr)
	}
	for _, expr := range exprs {
		for _, tc := range []struct {
			sets []rule.Set
			want rule.Action
		}{
			{[]rule.Set{set("a", "allow "+expr)}, rule.Ask},
			{[]rule.Set{set("a", "ask "+expr)}, rule.Ask},
			{[]rule.Set{set("a", "block "+expr)}, rule.Ask},
			{[]rule.Set{set("a", "allow "+expr, "allow true")}, rule.Ask},
			{[]rule.Set{set("a", "block "+expr, "allow true")}, rule.Ask},
			{[]rule.Set{set("a", "allow "+expr), set("b", "allow true")}, rule.Ask},
			{[]rule.Set{set("a", "block false", "ask "+expr)}, rule.Ask},
			// Whoever can make a rule fail must not escape the block below it.
			{[]rule.Set{set("a", "allow "+expr, "block true")}, rule.Block},
			{[]rule.Set{set("a", "ask "+expr), set("b", "block true")}, rule.Block},
			// A rule that is not reached cannot fail.
			{[]rule.Set{set("a", "allow true", "ask "+expr)}, rule.Allow},
		} {
			got := e.Judge(t.Context(), tc.sets, refund(t))
			if got.Action != tc.want {
				t.Errorf("%+v: %s, want %s", tc.sets, got.Action, tc.want)
			}
			if got.Action == rule.Ask && (got.Reason.Error == "" || got.Reason.Rule == "") {
				t.Errorf("%+v: the reason names no rule and error: %+v", tc.sets, got.Reason)
			}
		}
	}
}

func TestB7_9EndedContextAsks(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, line := range []string{"allow true", "ask false", "block false"} {
		if got := evaluator().Judge(ctx, []rule.Set{set("a", line)}, refund(t)); got.Action != rule.Ask {
			t.Errorf("%s: %s, want ask", line, got.Action)
		}
	}
}

func TestB7_9PlacesAreFound(t *testing.T) {
	t.Parallel()
	got := evaluator().Judge(t.Context(), []rule.Set{set("a"), set("b", "block false", "ask true")}, refund(t))
	if len(got.Matches) != 1 || got.Matches[0].Set != 1 || got.Matches[0].Rule != 1 {
		t.Errorf("matches = %+v", got.Matches)
	}
	if zero := (rule.Judgement{}); zero.Action == rule.Allow {
		t.Error("no judgement allows")
	}
}

func TestStrictestJoinsJudgements(t *testing.T) {
	t.Parallel()
	judge := func(lines ...string) rule.Judgement {
		return evaluator().Judge(t.Context(), []rule.Set{set("s", lines...)}, refund(t))
	}
	for _, tc := range []struct {
		all  []rule.Judgement
		want rule.Action
	}{
		{nil, rule.Allow},
		{[]rule.Judgement{judge("allow true"), judge("ask true")}, rule.Ask},
		{[]rule.Judgement{judge("ask true"), judge("allow true")}, rule.Ask},
		{[]rule.Judgement{judge("ask true"), judge("block true")}, rule.Block},
		{[]rule.Judgement{judge(), judge("allow true")}, rule.Allow},
		{[]rule.Judgement{judge("allow true"), {}}, rule.Ask},
	} {
		got := rule.Strictest(tc.all...)
		if got.Action != tc.want {
			t.Errorf("%+v: %s, want %s", tc.all, got.Action, tc.want)
		}
		n := 0
		for _, j := range tc.all {
			n += len(j.Matches)
		}
		if len(got.Matches) < n {
			t.Errorf("%d matches of %d kept", len(got.Matches), n)
		}
	}
}

func TestB7_10PatternsMatchCanonicalIds(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern, id string
		want        bool
	}{
		{"issue_refund", "issue_refund", true},
		{"issue_refund", "issue_refunds", false},
		{"issue_refund", "Issue_refund", false},
		{"issue_*", "issue_refund", true},
		{"*_refund", "issue_refund", true},
		{"*", "", true},
		{"*", "anything/at.all", true},
		{"*refund*", "issue_refund_all", true},
		{"git_*_delete", "git_repo_branch_delete", true},
		{"git_*_delete", "git_delete", false},
		{"?ssue_refund", "issue_refund", true},
		{"?", "", false},
		{"a?c", "aüc", true},
		{"a[b]c", "a[b]c", true},
		{"a[b]c", "abc", false},
		{"a.c", "abc", false},
		{"", "", true},
		{"", "a", false},
		{"a*a*a*a*a*a*a*a*b", strings.Repeat("a", 5000), false},
	} {
		if got := rule.Matches(tc.pattern, tc.id); got != tc.want {
			t.Errorf("Matches(%q, %.20q) = %v, want %v", tc.pattern, tc.id, got, tc.want)
		}
	}
}

func TestB7_10RulesNameToolsAndAgents(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name          string
		tools, agents []string
		tool, agent   any
		want          rule.Action
		fault         string
	}{
		{name: "all", want: rule.Block},
		{name: "tool", tools: []string{"x", "issue_*"}, want: rule.Block},
		{name: "other tool", tools: []string{"x", "lookup_*"}, want: rule.Allow},
		{name: "agent", agents: []string{"support"}, want: rule.Block},
		{name: "other agent", agents: []string{"sales"}, want: rule.Allow},
		{name: "both", tools: []string{"*"}, agents: []string{"supp*"}, want: rule.Block},
		{name: "tool, other agent", tools: []string{"*"}, agents: []string{"sales"}, want: rule.Allow},
		{name: "no tool", tools: []string{"*"}, tool: map[string]any{}, want: rule.Ask, fault: "the tool has no id"},
		{name: "tool without a text", tools: []string{"*"}, tool: map[string]any{"id": 3}, want: rule.Ask, fault: "the tool has no id"},
		{name: "tool that is no object", tools: []string{"*"}, tool: "issue_refund", want: rule.Ask, fault: "the tool has no id"},
		{name: "no agent", agents: []string{"*"}, agent: map[string]any{}, want: rule.Ask, fault: "the agent has no id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			in := refund(t)
			if tc.tool != nil {
				in.Tool = tc.tool
			}
			if tc.agent != nil {
				in.Agent = tc.agent
			}
			s := rule.Set{Name: "s", Rules: []rule.Rule{{Name: "r", Tools: tc.tools, Agents: tc.agents, Action: rule.Block}}}
			got := evaluator().Judge(t.Context(), []rule.Set{s}, in)
			if got.Action != tc.want || !strings.Contains(got.Reason.Error, tc.fault) {
				t.Errorf("%s %q, want %s %q", got.Action, got.Reason.Error, tc.want, tc.fault)
			}
		})
	}
}

func TestB7_16AnnotationsNeverLoosen(t *testing.T) {
	t.Parallel()
	const readOnly, destructive = `{"readOnlyHint":true}`, `{"destructiveHint":true}`
	for _, tc := range []struct {
		name, annotations string
		lines             []string
		want              rule.Action
	}{
		{"stricter", destructive, []string{"ask has(tool.annotations.destructiveHint) && tool.annotations.destructiveHint"}, rule.Ask},
		{"not claimed", `{}`, []string{"ask has(tool.annotations.destructiveHint) && tool.annotations.destructiveHint"}, rule.Allow},
		{"no annotations at all", `null`, []string{"ask has(tool.annotations.destructiveHint) && tool.annotations.destructiveHint"}, rule.Allow},
		{"an allow that rests on a claim", readOnly, []string{"allow has(tool.annotations.readOnlyHint)", "ask true"}, rule.Ask},
		{"the same above a block", readOnly, []string{"allow has(tool.annotations.readOnlyHint)", "block true"}, rule.Block},
		{"an ask that a claim turns off", readOnly, []string{"ask !has(tool.annotations.readOnlyHint)"}, rule.Ask},
		{"a block that a claim turns off", readOnly, []string{"block !has(tool.annotations.readOnlyHint)"}, rule.Block},
		{"without a guard for the missing key", `{"destructiveHint":false}`, []string{"ask tool.annotations.destructiveHint"}, rule.Ask},
		{"by index", readOnly, []string{`ask !has(tool["annotations"].readOnlyHint)`}, rule.Ask},
		{"by a computed key", readOnly, []string{`ask !("readOnlyHint" in tool["annot" + "ations"])`}, rule.Ask},
		{"by the whole tool", readOnly, []string{`ask [tool].exists(t, !has(t.annotations.readOnlyHint))`}, rule.Ask},
		{"by a loop over the tool", readOnly, []string{`ask !tool.exists(k, k == "annotations" && size(tool[k]) > 0)`}, rule.Ask},
		{"by size", readOnly, []string{`ask tool.annotations.size() == 0`}, rule.Ask},
		{"annotations that are no object", `"yes"`, []string{`ask has(tool.annotations.destructiveHint)`}, rule.Ask},
		{"not read", readOnly, []string{`allow tool.id == "t"`, "ask true"}, rule.Allow},
		{"not reached", readOnly, []string{`allow true`, "ask !has(tool.annotations.readOnlyHint)"}, rule.Allow},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			in := rule.Input{Tool: object(t, `{"id":"t","annotations":`+tc.annotations+`}`)}
			got := evaluator().Judge(t.Context(), []rule.Set{set("s", tc.lines...)}, in)
			if got.Action != tc.want {
				t.Errorf("%s (%+v), want %s", got.Action, got.Reason, tc.want)
			}
		})
	}
}

// TestB7_16NoRuleEngineLoosens draws rule sets and annotations: what a server claims, and an allow of
// another set, never make a judgement milder.
func TestB7_16NoRuleEngineLoosens(t *testing.T) {
	t.Parallel()
	rank := map[rule.Action]int{rule.Allow: 0, rule.Ask: 1, rule.Block: 2}
	e := evaluator()
	conditions := []string{
		"", "true", "false", "args.missing", `tool.id == "t"`, "tool.annotations.readOnlyHint", "!tool.annotations.readOnlyHint",
		"has(tool.annotations.destructiveHint)", "!has(tool.annotations.destructiveHint)",
		"has(tool.annotations.readOnlyHint) && tool.annotations.readOnlyHint", "tool.annotations.size() == 1", `"annotations" in tool`,
	}
	rapid.Check(t, func(rt *rapid.T) {
		sets := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) rule.Set {
			return set("s", rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) string {
				return rapid.SampledFrom([]string{"allow", "ask", "block"}).Draw(rt, "action") + " " + rapid.SampledFrom(conditions).Draw(rt, "when")
			}), 0, 4).Draw(rt, "rules")...)
		}), 1, 3).Draw(rt, "sets")
		hints := rapid.MapOf(rapid.SampledFrom([]string{"readOnlyHint", "destructiveHint"}), rapid.Bool()).Draw(rt, "annotations")
		annotations := make(map[string]any, len(hints))
		for k, v := range hints {
			annotations[k] = v
		}
		with := e.Judge(t.Context(), sets, rule.Input{Tool: map[string]any{"id": "t", "annotations": annotations}})
		without := e.Judge(t.Context(), sets, rule.Input{Tool: map[string]any{"id": "t"}})
		if rank[with.Action] < rank[without.Action] {
			rt.Fatalf("%v: %s with annotations %v, %s without", sets, with.Action, annotations, without.Action)
		}
		more := e.Judge(t.Context(), append([]rule.Set{set("first", "allow true")}, sets...), rule.Input{Tool: map[string]any{"id": "t"}})
		if more.Action != without.Action {
			rt.Fatalf("%v: an allow of another set makes %s of %s", sets, more.Action, without.Action)
		}
	})
}

func TestB7_10CheckNamesEveryFault(t *testing.T) {
	t.Parallel()
	good := rule.Set{Name: "default", Rules: []rule.Rule{
		{Name: "small", Action: rule.Allow, When: "args.amount < 10", Tools: []string{"issue_*"}},
		{Name: "rest", Action: rule.Ask},
	}}
	if err := good.Check(); err != nil {
		t.Errorf("a good set: %v", err)
	}
	bad := rule.Set{Rules: []rule.Rule{
		{Action: rule.Ask},
		{Name: "a", Action: "permit"},
		{Name: "a", Action: rule.Ask, When: "args.amount >\n  amount"},
		{Name: "b", Action: rule.Ask, Tools: []string{""}},
		{Name: "c", Action: rule.Allow, When: "has(tool.annotations.readOnlyHint)"},
	}}
	err := bad.Check()
	if err == nil {
		t.Fatal("a bad set passes")
	}
	for _, want := range []string{
		"the rule set has no name", "rule 1 has no name", `rule "a": unknown action "permit"`, `rule "a": the name is taken`,
		`rule "a": when: 2:3: undeclared reference to 'amount'`, `rule "b": an empty pattern matches nothing`,
		`rule "c": when: annotations cannot loosen a rule`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}

// TestCase_GATE3 is a rule that is false for reads, true for deletes, and a call for which it fails.
func TestCase_GATE3(t *testing.T) {
	t.Parallel()
	sets := []rule.Set{set("mcp", `ask args.path.startsWith("/") && tool.id.matches("_(delete|remove)_")`)}
	call := func(id, args string) rule.Judgement {
		return evaluator().Judge(t.Context(), sets, rule.Input{Tool: map[string]any{"id": id}, Args: object(t, args)})
	}
	if got := call("files_read_file", `{"path":"/a"}`); got.Action != rule.Allow {
		t.Errorf("read: %+v", got)
	}
	if got := call("files_delete_file", `{"path":"/a"}`); got.Action != rule.Ask || got.Reason.Rule != "mcp-1" || got.Reason.Error != "" {
		t.Errorf("delete: %+v", got)
	}
	if got := call("files_delete_file", `{"file":"/a"}`); got.Action != rule.Ask || got.Reason.Rule != "mcp-1" || !strings.Contains(got.Reason.Error, "no such key: path") {
		t.Errorf("failed: %+v", got)
	}
}

func TestJudgeReadsArgumentsExactly(t *testing.T) {
	t.Parallel()
	sets := []rule.Set{set("s", "block args.account == 9007199254740993", "ask args.amount > 100")}
	for number, want := range map[string]rule.Action{
		"9007199254740993": rule.Block, "9007199254740993.0": rule.Block, "9007199254740992": rule.Allow,
		"90071992547409930000": rule.Ask, // no exact form
	} {
		in := rule.Input{Args: map[string]any{"account": json.Number(number), "amount": json.Number("1")}}
		if got := evaluator().Judge(t.Context(), sets, in); got.Action != want {
			t.Errorf("%s: %s, want %s", number, got.Action, want)
		}
	}
}

// TestB7_10PatternsNameSourceAndName: what a pattern means does not depend on which tools there are.
func TestB7_10PatternsNameSourceAndName(t *testing.T) {
	t.Parallel()
	tool := func(id, kind string) rule.Tool { return rule.Tool{ID: id, Kind: kind} }
	mcp := func(server, name string) rule.Tool {
		return rule.Tool{ID: server + "_" + name, Kind: "mcp", Server: server, Name: name}
	}
	for _, tc := range []struct {
		pattern string
		tool    rule.Tool
		want    bool
		fault   string
	}{
		{"issue_refund", tool("issue_refund", "go"), true, ""},
		{"issue_refund", tool("issue_refund", ""), true, ""},
		{"issue_refund", mcp("issue", "refund"), true, ""}, // its id
		{"refund", mcp("issue", "refund"), false, ""},      // an alias is none
		{"http:*", tool("pay", "http"), true, ""},
		{"http:*", tool("pay", "exec"), false, ""},
		{"http:p?y", tool("pay", "http"), true, ""},
		{"exec:pay", tool("payment", "exec"), false, ""},
		{"http:pay", tool("http:pay", "exec"), false, ""}, // an id that looks like a source
		{"exec:http:pay", tool("http:pay", "exec"), true, ""},
		{"?ttp:pay", tool("http:pay", "exec"), true, ""},
		{"team:pay", tool("team:pay", "go"), true, ""}, // not a source
		{"HTTP:pay", tool("pay", "http"), false, ""},
		{"mcp:github/delete_*", mcp("github", "delete_repo"), true, ""},
		{"mcp:github/delete_*", mcp("github", "list_repos"), false, ""},
		{"mcp:github/delete_*", mcp("gitlab", "delete_repo"), false, ""},
		{"mcp:github/delete_*", tool("github/delete_repo", "go"), false, ""},
		{"mcp:*/delete_*", mcp("gitlab", "delete_repo"), true, ""},
		{"mcp:github", mcp("github", "anything/at.all"), true, ""},
		{"mcp:github", mcp("github2", "x"), false, ""},
		{"mcp:*", mcp("github", "x"), true, ""},
		{"mcp:*", tool("x", "builtin"), false, ""},
		{"mcp:a/b", mcp("a", "b"), true, ""},
		{"mcp:a/b/c", mcp("a", "b/c"), true, ""},
		{"mcp:a/b/c", mcp("a/b", "c"), false, ""}, // no server takes the place of another one's tool
		{"mcp:*/c", mcp("a", "b/c"), false, ""},
		{"*", tool("x", ""), true, ""},
		{"http:*", tool("x", ""), false, "the tool has no source"},
		{"mcp:*", rule.Tool{ID: "x", Kind: "mcp"}, false, "which server"},
		{"mcp:*", rule.Tool{ID: "x", Kind: "mcp", Server: "s"}, false, "which server"},
		{"*", tool("", "go"), false, "the tool has no id"},
		{"go:*", tool("", "go"), false, "the tool has no id"},
	} {
		got, err := tc.tool.Matches(tc.pattern)
		if got != tc.want || (err != nil) != (tc.fault != "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
			t.Errorf("%q on %+v = %v, %v; want %v, %q", tc.pattern, tc.tool, got, err, tc.want, tc.fault)
		}
		if err := rule.CheckToolPattern(tc.pattern); err != nil {
			t.Errorf("%q: %v", tc.pattern, err)
		}
	}
	for _, pattern := range []string{"http:", "mcp:", "mcp:/x", "mcp:github/"} {
		if rule.CheckToolPattern(pattern) == nil {
			t.Errorf("%q is taken for a pattern", pattern)
		}
	}
}

// TestB7_10SourcesInPrecedence: patterns of both kinds are patterns: the first rule that matches counts, a block of another
// set beats it, and what a tool does not tell of itself holds it, even where the rule allows.
func TestB7_10SourcesInPrecedence(t *testing.T) {
	t.Parallel()
	named := func(name string, a rule.Action, tools ...string) rule.Rule {
		return rule.Rule{Name: name, Action: a, Tools: tools}
	}
	set := func(rules ...rule.Rule) rule.Set { return rule.Set{Name: "s", Rules: rules} }
	for _, tc := range []struct {
		name, tool string
		sets       []rule.Set
		want       rule.Action
		by         string
	}{
		{
			"an exception by source above an ask by id", `{"id":"gh_list","source":{"kind":"mcp","server":"gh","name":"list"}}`,
			[]rule.Set{set(named("reads", rule.Allow, "mcp:gh/list"), named("rest", rule.Ask, "gh_*"))},
			rule.Allow, "reads",
		},
		{
			"the same id of another source", `{"id":"gh_list","source":{"kind":"go"}}`,
			[]rule.Set{set(named("reads", rule.Allow, "mcp:gh/list"), named("rest", rule.Ask, "gh_*"))},
			rule.Ask, "rest",
		},
		{
			"a block by source over an allow by id", `{"id":"pay","source":{"kind":"http"}}`,
			[]rule.Set{set(named("pay", rule.Allow, "pay")), set(named("web", rule.Block, "http:*"))},
			rule.Block, "web",
		},
		{
			"an allow by a source that is not told", `{"id":"pay"}`,
			[]rule.Set{set(named("web", rule.Allow, "http:*"))},
			rule.Ask, "web",
		},
		{
			"one of several patterns is enough", `{"id":"pay"}`,
			[]rule.Set{set(named("web", rule.Allow, "http:*", "pay"))},
			rule.Allow, "web",
		},
	} {
		got := evaluator().Judge(t.Context(), tc.sets, rule.Input{Tool: object(t, tc.tool)})
		if got.Action != tc.want || got.Reason.Rule != tc.by {
			t.Errorf("%s: %s by %+v, want %s by %s", tc.name, got.Action, got.Reason, tc.want, tc.by)
		}
	}
}

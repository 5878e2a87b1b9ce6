package config

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
)

func TestCasesAreRead(t *testing.T) {
	t.Parallel()
	got, err := ParseCases("cases.yaml", []byte(`
cases:
  - name: all of it
    tool: issue_refund
    toolName: refund
    source: mcp:shop/refund
    args: {amount: 612.50, big: 9007199254740993}
    agent: support
    run: {id: r1, requester: bob, thread: t1, resource: u1}
    context: {tenant: acme}
    annotations: {destructiveHint: true}
    requireApproval: false
    requireToolApproval: {cel: args.amount > 1}
    want: {action: ask, rule: money/large, approvers: [group:finance], quorum: 2, notRequester: true, signed: false, expires: 8h,
      onExpiry: escalate, decisions: [approve], grants: false}
  - {name: least, tool: t, want: {action: allow, rule: none}}
  - {name: everybody, tool: t, source: http, want: {action: ask, approvers: []}}
`))
	if err != nil {
		t.Fatal(err)
	}
	yes, no := true, false
	want := []Case{
		{judge.Case{
			Name: "all of it", Tool: "issue_refund", ToolName: "refund", Source: events.Source{Kind: "mcp", Server: "shop", Name: "refund"},
			Args: []byte(`{"amount":612.50,"big":9007199254740993}`), AgentID: "support",
			Run:     judge.Run{ID: "r1", Requester: "bob", Thread: "t1", Resource: "u1"},
			Context: []byte(`{"tenant":"acme"}`), Annotations: []byte(`{"destructiveHint":true}`),
			RequireApproval: &events.Approval{}, RequireToolApproval: &events.Approval{When: "args.amount > 1"},
			Want: judge.Want{
				Action: rule.Ask, Rule: "money/large", Approvers: []string{"group:finance"}, Quorum: 2, NotRequester: &yes, Signed: &no,
				Expires: events.Duration(8 * time.Hour), OnExpiry: "escalate", Decisions: []events.Decision{events.Approve}, Grants: &no,
			},
		}, "cases.yaml:3:5"},
		{judge.Case{Name: "least", Tool: "t", Want: judge.Want{Action: rule.Allow, Rule: "none"}}, "cases.yaml:16:5"},
		{judge.Case{
			Name: "everybody", Tool: "t", Source: events.Source{Kind: "http"}, Want: judge.Want{Action: rule.Ask, Approvers: []string{}},
		}, "cases.yaml:17:5"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestCasesAreRefused: what nobody reads is told with its place; a case that says less than its writer means passes for the
// wrong reason.
func TestCasesAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                            "there is no case",
		`cases: []`:                   "there is no case",
		`case: []`:                    `unknown key "case"; did you mean "cases"?`,
		`cases: {name: x}`:            "want a list",
		`cases: [{}]`:                 "cases[0].want: is missing",
		`cases: [{name: a, tool: t}]`: "cases[0].want: is missing",
		`cases: [{name: "", tool: t, want: {action: ask}}]`:                                                  "cases[0].name: must not be empty",
		`cases: [{name: a, tool: t, want: {}}]`:                                                              "cases[0].want.action: is missing",
		`cases: [{name: a, tool: t, want: {action: hold}}]`:                                                  "want allow, ask or block",
		`cases: [{name: a, tool: t, agnt: x, want: {action: ask}}]`:                                          `unknown key "agnt"; did you mean "agent"?`,
		`cases: [{name: a, tool: t, run: {user: x}, want: {action: ask}}]`:                                   `unknown key "user"`,
		`cases: [{name: a, tool: t, want: {action: ask, quorom: 2}}]`:                                        `unknown key "quorom"; did you mean "quorum"?`,
		`cases: [{name: a, tool: t, want: {action: block, expires: 1h}}]`:                                    "is of a call that people are asked about",
		`cases: [{name: a, tool: t, want: {action: ask, approvers: [alice]}}]`:                               "want user:<id> or group:<name>",
		`cases: [{name: a, tool: t, want: {action: ask, rule: large}}]`:                                      "want <set>/<rule>",
		`cases: [{name: a, tool: t, source: mcp, want: {action: ask}}]`:                                      "mcp:<server>/<tool>",
		`cases: [{name: a, tool: t, source: mcp:s, want: {action: ask}}]`:                                    "mcp:<server>/<tool>",
		`cases: [{name: a, tool: t, args: [1], want: {action: ask}}]`:                                        "cases[0].args: want a mapping",
		`cases: [{name: a, tool: t, requireToolApproval: {cel: "argz.x"}, want: {action: ask}}]`:             "not an expression of CEL",
		`cases: [{name: a, tool: t, want: {action: ask}}, {name: a, tool: t, want: {action: ask}}]`:          "the name \"a\" is that of the case in line 1",
		"cases:\n  - {name: a, tool: t, want: {action: ask}}\n  - {name: b, tool: t, want: {action: aks}}\n": "cases.yaml:3:39: cases[1].want.action: want allow, ask or block, got \"aks\"; did you mean \"ask\"?",
	} {
		_, err := ParseCases("cases.yaml", []byte(text))
		var all *Error
		if !errors.As(err, &all) || !strings.Contains(err.Error(), want) || events.CodeOf(err) != events.CodeInvalidDefinition {
			t.Errorf("%s\n%v\nwant %s", text, err, want)
		}
	}
	if _, err := LoadCases("testdata/missing.yaml"); err == nil {
		t.Error("a file that is not there was read")
	}
}

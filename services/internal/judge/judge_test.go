package judge

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

func rulesOf(t *testing.T, sets ...events.RuleSet) *Rules {
	t.Helper()
	stored := map[string][]byte{}
	for _, s := range sets {
		raw, err := events.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		stored[s.Name] = raw
	}
	r, err := Read(stored)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func one(name string, rules ...events.Rule) events.RuleSet {
	return events.RuleSet{Name: name, Rules: rules}
}

func judged(t *testing.T, r *Rules, c Call) rule.Judgement {
	t.Helper()
	return r.Judge(t.Context(), rule.NewEvaluator(rule.NewCache(16)), c)
}

// TestB7_11_RulesThatCannotBeReadAreAnError: a set that is broken, empty, or says what this version does not understand,
// is not read as if it said less.
func TestB7_11_RulesThatCannotBeReadAreAnError(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"not JSON":          `{`,
		"empty":             ``,
		"null":              `null`,
		"no set":            `{}`,
		"two":               `{"name":"a","rules":[]}{"name":"b","rules":[]}`,
		"an unknown word":   `{"name":"a","rules":[{"name":"r","action":"ask","unless":"args.ok"}]}`,
		"a word of the set": `{"name":"a","rules":[],"mode":"off"}`,
		"a wrong type":      `{"name":"a","rules":[{"name":"r","action":"ask","quorum":"two"}]}`,
	} {
		if r, err := Read(map[string][]byte{"good": []byte(`{"name":"good","rules":[]}`), "bad": []byte(body)}); err == nil {
			t.Errorf("%s: read as %+v", name, r.Sets())
		} else if !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "rule set bad") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestB7_11_DigestsNameWhatJudges: the digest of all changes with any set and its name, that of a set with the set alone.
func TestB7_11_DigestsNameWhatJudges(t *testing.T) {
	t.Parallel()
	ask := events.Rule{Name: "r", Action: events.RuleAsk}
	a, b := rulesOf(t, one("a", ask), one("b")), rulesOf(t, one("a", ask), one("b", ask))
	if a.Digest() == b.Digest() || a.Sets()[0].Digest != b.Sets()[0].Digest || a.Sets()[1].Digest == b.Sets()[1].Digest {
		t.Errorf("%+v and %+v", a.Sets(), b.Sets())
	}
	if again := rulesOf(t, one("b"), one("a", ask)); again.Digest() != a.Digest() {
		t.Error("the digest depends on the order in which sets are read")
	}
}

// TestB7_16_AnnotationsReachRules: rules see what a manifest claims, and it makes a judgement stricter only.
func TestB7_16_AnnotationsReachRules(t *testing.T) {
	t.Parallel()
	destructive := "has(tool.annotations.destructiveHint) && tool.annotations.destructiveHint"
	for _, tc := range []struct {
		name, mcp, when string
		want            rule.Action
	}{
		{"claims it", `{"annotations":{"destructiveHint":true}}`, destructive, rule.Ask},
		{"denies it", `{"annotations":{"destructiveHint":false}}`, destructive, rule.Allow},
		{"says nothing", ``, destructive, rule.Allow},
		{"has other metadata", `{"_meta":{"destructiveHint":true}}`, destructive, rule.Allow},
		{"null", `null`, destructive, rule.Allow},
		{"claims to be harmless", `{"annotations":{"readOnlyHint":true}}`, "!has(tool.annotations.readOnlyHint)", rule.Ask},
		{"cannot be read", `[]`, destructive, rule.Ask},
		{"are no object", `{"annotations":"harmless"}`, destructive, rule.Ask},
		{"cannot be read and are not asked for", `[]`, "tool.id == 'x'", rule.Allow},
	} {
		r := rulesOf(t, one("s", events.Rule{Name: "r", When: tc.when, Action: events.RuleAsk}))
		got := judged(t, r, Call{Tool: events.Manifest{ID: "t", MCP: []byte(tc.mcp)}})
		if got.Action != tc.want {
			t.Errorf("a tool that %s: %s (%+v), want %s", tc.name, got.Action, got.Reason, tc.want)
		}
	}
}

// TestB7_16_AnnotationsInRequirements: what tool and run ask for by themselves is held to the same.
func TestB7_16_AnnotationsInRequirements(t *testing.T) {
	t.Parallel()
	harmless := &events.Approval{When: "!has(tool.annotations.readOnlyHint)"}
	tool := events.Manifest{ID: "t", MCP: []byte(`{"annotations":{"readOnlyHint":true}}`)}
	if got := judged(t, rulesOf(t), Call{Tool: tool, RequireToolApproval: harmless}); got.Action != rule.Ask {
		t.Errorf("the run's requirement is lifted by a claim: %+v", got)
	}
	tool.RequireApproval = harmless
	if got := judged(t, rulesOf(t), Call{Tool: tool}); got.Action != rule.Ask {
		t.Errorf("the tool's requirement is lifted by a claim: %+v", got)
	}
}

// TestB7_12_ClientToolsAreNotHeldByTheRun: rules hold them as any other, what the run asks for does not.
func TestB7_12_ClientToolsAreNotHeldByTheRun(t *testing.T) {
	t.Parallel()
	client := Call{Tool: events.Manifest{ID: "t", Source: events.Source{Kind: "client"}}, RequireToolApproval: &events.Approval{Always: true}}
	if got := judged(t, rulesOf(t), client); got.Action != rule.Allow {
		t.Errorf("the run holds a client tool: %+v", got)
	}
	if got := judged(t, rulesOf(t, one("s", events.Rule{Name: "r", Action: events.RuleAsk})), client); got.Action != rule.Ask {
		t.Errorf("a rule does not hold a client tool: %+v", got)
	}
}

// TestRestrictTakesTheStrictest: where several rules hold a call, all of them must be content.
func TestRestrictTakesTheStrictest(t *testing.T) {
	t.Parallel()
	no := false
	r := rulesOf(t,
		one("a", events.Rule{
			Name: "r", Action: events.RuleAsk, Approvers: []string{"group:finance", "user:alice"}, Quorum: 2,
			Expires: events.Duration(2 * time.Hour), Decisions: []events.Decision{events.Approve},
		}),
		one("b", events.Rule{
			Name: "r", Action: events.RuleAsk, Approvers: []string{"user:alice"}, NotRequester: true, Signed: true, Grants: &no,
			Expires: events.Duration(time.Hour), OnExpiry: events.OnExpiryFail,
		}),
		one("c", events.Rule{Name: "r", Action: events.RuleAllow, Approvers: []string{"user:mallory"}}))
	now := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	a := events.CallHeld{Kind: events.AskApproval, Allowed: events.AskApproval.Allowed(), AskedAt: now}
	r.Restrict(&a, judged(t, r, Call{Tool: events.Manifest{ID: "t"}}), Deadline{Tool: 3 * time.Hour, Default: 168 * time.Hour})
	if strings.Join(a.Approvers, " ") != "user:alice" || a.Quorum == nil || a.Quorum.Need != 2 || !a.NotRequester || !a.Signed || !a.NoGrant {
		t.Errorf("ask = %+v", a)
	}
	if len(a.Allowed) != 2 || !a.Takes(events.Approve) || !a.Takes(events.Decline) {
		t.Errorf("it takes %v", a.Allowed)
	}
	if !a.ExpiresAt.Equal(now.Add(time.Hour)) || a.OnExpiry != events.OnExpiryFail || a.Rules != r.Digest() {
		t.Errorf("it expires at %s, then %s, by rules %s", a.ExpiresAt, a.OnExpiry, a.Rules)
	}
}

// TestB7_13_EverySourceIsGatedAlike: where a tool comes from makes no difference to what holds it, except that a client
// tool waits for its client anyway.
func TestB7_13_EverySourceIsGatedAlike(t *testing.T) {
	t.Parallel()
	always := &events.Approval{Always: true}
	for _, kind := range []string{"go", "http", "exec", "nats", "mcp", "builtin", "client"} {
		tool := events.Manifest{ID: "t", Source: events.Source{Kind: kind, Server: "s", Name: "n"}}
		rules := rulesOf(t, one("s", events.Rule{Name: "r", Tools: []string{"t"}, Action: events.RuleAsk}))
		if got := judged(t, rules, Call{Tool: tool}); got.Action != rule.Ask {
			t.Errorf("%s: a rule: %+v", kind, got)
		}
		if got := judged(t, rulesOf(t), Call{Tool: tool, RequireToolApproval: always}); (got.Action == rule.Ask) != (kind != "client") {
			t.Errorf("%s: the run: %+v", kind, got)
		}
		tool.RequireApproval = always
		if got := judged(t, rulesOf(t), Call{Tool: tool}); got.Action != rule.Ask {
			t.Errorf("%s: the tool: %+v", kind, got)
		}
		blocks := rulesOf(t, one("s", events.Rule{Name: "r", Action: events.RuleBlock}))
		if got := judged(t, blocks, Call{Tool: tool}); got.Action != rule.Block {
			t.Errorf("%s: a block: %+v", kind, got)
		}
	}
}

// TestB7_2_TheRunsExpressionSeesTheCall: the frozen arguments, the request context, tool, agent and run, and nothing else.
func TestB7_2_TheRunsExpressionSeesTheCall(t *testing.T) {
	t.Parallel()
	c := Call{
		Tool: events.Manifest{ID: "pay", Version: "3", Effect: events.Effectful, Source: events.Source{Kind: "go"}}, ToolName: "refund",
		Args: []byte(`{"n":7}`), Context: []byte(`{"tenant":"acme"}`), AgentID: "support",
		Run: Run{ID: "R", Thread: "t1", Resource: "u1", Requester: "bob"},
	}
	for when, want := range map[string]rule.Action{
		"args.n == 7 && context.tenant == 'acme' && tool.id == 'pay' && tool.name == 'refund' && tool.source.kind == 'go' && " +
			"agent.id == 'support' && run.id == 'R' && run.thread == 't1' && run.resource == 'u1' && run.requester == 'bob'": rule.Ask,
		"args.n == 8":          rule.Allow,
		"workspace.id == 'w1'": rule.Ask, // there is none: it cannot be evaluated
	} {
		c.RequireToolApproval = &events.Approval{When: when}
		if got := judged(t, rulesOf(t), c); got.Action != want {
			t.Errorf("%s: %+v, want %s", when, got, want)
		}
	}
}

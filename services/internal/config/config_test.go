package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models"
)

var update = flag.Bool("update", false, "write the golden files of what is refused")

// environment has all that the examples refer to.
func environment(name string) (string, bool) {
	value, ok := map[string]string{
		"OPENAI_API_KEY": "canary-openai", "TEAM_TOKEN": "canary-team", "PAY_TOKEN": "canary-pay", "SHOP_TOKEN": "canary-shop",
		"PATH": "/usr/bin",
	}[name]
	return value, ok
}

func load(t *testing.T, name string) *File {
	t.Helper()
	f, err := Load(filepath.Join("testdata", filepath.FromSlash(name)), environment)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func parse(t *testing.T, text string) (*File, Problems) {
	t.Helper()
	f, err := Parse("weir.yaml", []byte(text), environment)
	if err == nil {
		return f, nil
	}
	var all *Error
	if !errors.As(err, &all) || f != nil {
		t.Fatalf("error of type %T, file %v", err, f)
	}
	return nil, all.Problems
}

func TestEmptyFileHasDefaults(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"examples/empty.yaml", "examples/sections.yaml"} {
		f := load(t, name)
		if f.Namespace != events.DefaultNamespace || !slices.Equal(f.Pools, []string{"default"}) || f.Retention != 0 {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestSupportExample(t *testing.T) {
	t.Parallel()
	f := load(t, "weir.yaml")
	if len(f.Agents) != 1 || f.Agents[0].ID != "support" || f.Agents[0].Model != "scripted/support" {
		t.Fatalf("agents = %+v", f.Agents)
	}
	if diff := cmp.Diff(map[string]string{"lookup_order": "lookup_order", "issue_refund": "issue_refund"}, f.Agents[0].Tools); diff != "" {
		t.Error(diff)
	}
	if len(f.Warnings) > 0 {
		t.Errorf("warnings: %s", f.Warnings)
	}
	lookup, refund := f.Tools[0].Manifest, f.Tools[1].Manifest
	if lookup.Effect != events.ReadOnly || lookup.RequireApproval != nil || lookup.Source.Kind != "exec" {
		t.Errorf("lookup_order = %+v", lookup)
	}
	if refund.RequireApproval == nil || !refund.RequireApproval.Always || time.Duration(refund.Timeout) != 30*time.Second {
		t.Errorf("issue_refund = %+v", refund)
	}
	if diff := cmp.Diff(agent.Complete(refund), refund); diff != "" {
		t.Errorf("the manifest is not complete: %s", diff)
	}
}

func TestFullExample(t *testing.T) {
	t.Parallel()
	f := load(t, "examples/full.yaml")
	if f.Namespace != "acme-1" || f.Retention != 48*time.Hour || f.AuditRetention != 8760*time.Hour || f.ChunkRetention != 90*time.Minute {
		t.Errorf("settings = %s %s %s %s", f.Namespace, f.Retention, f.AuditRetention, f.ChunkRetention)
	}
	billing := f.Agents[0]
	want := events.AgentDef{
		ID: "billing", Name: "Billing", Description: "Handles money", Model: "openai/gpt-5",
		Instructions:        "Write nothing, ${AMOUNT} in letters.",
		Tools:               map[string]string{"refund": "issue_refund", "lookup": "lookup_order", "bücher/suche": "search"},
		RequireToolApproval: &events.Approval{When: "args.amount > 100"},
		Limits:              &events.Limits{Steps: 10, Tokens: 100000, Failures: 3, Repeats: 2, Time: events.Duration(10 * time.Minute), Cost: 0.5},
		ToolChoice:          "tool:refund", ActiveTools: &[]string{"refund"},
		ModelSettings: []byte(`{"max_tokens":4096,"seed":7,"temperature":0.5}`), // the model's defaults below its own
		StopWhen:      []events.StopCondition{{HasToolCall: "refund"}, {When: "run.tokens > 5000 && context.tier == 'free'"}, {Func: "budget"}},
		PrepareStep: []events.StepChange{
			{When: "run.step == 0", ToolChoice: "required", ActiveTools: &[]string{"lookup"}, Instructions: new("Look it up first.")}, {Func: "route"},
		},
		Fallbacks: []string{"openai/gpt-5", "anthropic/claude-sonnet-4-5"},
		StructuredOutput: &events.StructuredOutput{
			Schema:        []byte(`{"properties":{"answer":{"type":"string"}},"required":["answer"],"type":"object"}`),
			ErrorStrategy: events.ErrorFallback, FallbackValue: []byte(`{"answer":""}`), Model: "scripted/support",
			Instructions: "Take the answer out of the text.",
		},
		ProviderOptions: []byte(`{"openai":{"store":false}}`), AutoResumeSuspendedTools: true,
		BackgroundTasks: &events.BackgroundTasks{Concurrency: 3, WaitTimeoutMs: 60000, Tools: events.BackgroundTools{By: map[string]events.Background{
			"refund": {}, "lookup": {Enabled: true},
			"bücher/suche": {Enabled: true, WaitTimeoutMs: 500, MaxRetries: 2, RetryableErrors: []string{"busy"}},
		}}},
	}
	if diff := cmp.Diff(want, billing); diff != "" {
		t.Error(diff)
	}
	search := &events.ToolSearch{
		Tools: map[string]string{"refund": "issue_refund", "lookup": "lookup_order"}, TopK: 3, MinScore: 0.5, AutoLoad: true,
		InjectCatalog: true, Filter: `tool.effect != "effectful" || context.staff`, Scope: events.ScopeRun,
	}
	if diff := cmp.Diff(search, f.Agents[1].ToolSearch); diff != "" {
		t.Error(diff)
	}
	if finder, quiet := f.Agents[1].ToolCallConcurrency, f.Agents[2].ToolCallConcurrency; finder != 2 || quiet != 1 {
		t.Errorf("calls at once: %d and %d", finder, quiet)
	}
	if quiet := f.Agents[2]; string(quiet.ModelSettings) != `{"temperature":0.2}` || quiet.ActiveTools == nil || len(*quiet.ActiveTools) > 0 {
		t.Errorf("quiet = %+v", quiet)
	}
	input := string(f.Tools[0].Manifest.InputSchema)
	for _, part := range []string{`9007199254740993`, `"hex":{"const":31}`, `"default":0.5`, `"const":"2026-03-02"`, `"1":{"type":"integer"}`, `"maximum":1e6`} {
		if !strings.Contains(input, part) {
			t.Errorf("%s is not in %s", part, input)
		}
	}
	if p := string(f.Tools[0].Manifest.Preview); p != `{"template":"refund {{.amount}} EUR for {{.orderId}}"}` {
		t.Errorf("preview = %s", p)
	}
	if string(f.Tools[1].Manifest.InputSchema) != input {
		t.Error("an alias is not what it stands for")
	}
	if diff := cmp.Diff(&HTTP{
		Method: "PUT", URL: "https://pay.internal:8443/refunds?tenant=acme", Timeout: 10 * time.Second,
		Headers: map[string]string{"Authorization": "Bearer ${PAY_TOKEN}", "Accept-Language": "en"},
		Allow:   []string{"pay.internal:8443", "10.1.0.0/16", "[fd00::7]:443", "localhost"},
	}, f.Tools[0].HTTP); diff != "" {
		t.Error(diff)
	}
	if e := f.Tools[1].Exec; e.Dir != filepath.Join("testdata", "examples", "tools") || len(e.Env) != 4 {
		t.Errorf("exec = %+v", e)
	}
	rule := f.Rules[0].Rules[1]
	if rule.Name != "large" || !rule.NotRequester || !rule.Signed || !slices.Equal(rule.Approvers, []string{"user:alice", "group:finance"}) ||
		rule.Quorum != 2 || len(rule.Decisions) != 3 || rule.Grants == nil || *rule.Grants || rule.OnExpiry != "escalate" ||
		time.Duration(rule.Remind) != time.Hour || len(rule.Escalate) != 2 || rule.Escalate[1].OnExpiry != "fail" {
		t.Errorf("rule = %+v", rule)
	}
	if len(f.Principals) != 3 || f.Principals[0].Auth != "key" || f.Principals[2].ID != "bob" {
		t.Errorf("principals = %+v", f.Principals)
	}
}

// TestModelsOpen: what a planner makes of the examples.
func TestModelsOpen(t *testing.T) {
	t.Parallel()
	f := load(t, "examples/full.yaml")
	cfg, err := f.ModelConfig()
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Models["openai"].APIKey; got != "canary-openai" {
		t.Errorf("apiKey = %q", got)
	}
	if got := cfg.Models["openai"].Price; got == nil || *got != (events.Price{Input: 1.25, Output: 10, CachedInput: 0.125}) {
		t.Errorf("price = %+v", got)
	}
	if got := cfg.Models["local"].Headers["X-Team"]; got != "support canary-team" {
		t.Errorf("header = %q", got)
	}
	registry, err := models.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range f.Agents {
		if _, _, err := registry.Model(a.Model); err != nil {
			t.Error(err)
		}
	}
}

// TestModelsWithoutKeys: a key that is not set matters to those who use it.
func TestModelsWithoutKeys(t *testing.T) {
	t.Parallel()
	f, err := Load(filepath.Join("testdata", "weir.yaml"), func(string) (string, bool) { return "", false })
	if err != nil || len(f.Warnings) != 1 {
		t.Fatalf("warnings %v, error %v", f.Warnings, err)
	}
	if cfg, err := f.ModelConfig(); err != nil || len(cfg.Models) != 0 {
		t.Errorf("models = %v, %v", cfg, err)
	}
	text := "models: {openai: {apiKey: '${OPENAI_API_KEY}'}}\nagents: {a: {model: openai/gpt-5}}"
	if f, err = Parse("weir.yaml", []byte(text), nil); err != nil {
		t.Fatal(err)
	}
	_, err = f.ModelConfig()
	if want := "weir.yaml:1:27: the environment variable OPENAI_API_KEY is not set"; err == nil || err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}

func TestSecretsOfTools(t *testing.T) {
	t.Parallel()
	f := load(t, "examples/full.yaml")
	headers, secret, err := f.Secrets.Headers(f.Tools[0].HTTP.Headers)
	if err != nil || headers["Authorization"] != "Bearer canary-pay" || !slices.Equal(secret, []string{"canary-pay"}) {
		t.Errorf("headers = %v %v %v", headers, secret, err)
	}
	env, secret, err := f.Secrets.Environ(*f.Tools[1].Exec)
	if err != nil || !slices.Equal(secret, []string{"canary-shop"}) ||
		!slices.Equal(env, []string{"EMPTY=", "LANG=C", "LITERAL=${X}", "SHOP_TOKEN=canary-shop"}) {
		t.Errorf("environment = %v %v %v", env, secret, err)
	}
	env, secret, err = f.Secrets.Environ(*f.Tools[2].Exec) // HOME is not set there
	if err != nil || len(secret) > 0 || !slices.Equal(env, []string{"PATH=/usr/bin"}) {
		t.Errorf("environment = %v %v %v", env, secret, err)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	f, problems := parse(t, `
agents:
  a: {model: scripted/support, tools: {look: lookup_ordre, other: written_in_go}}
tools:
  lookup_order: {description: x, http: {url: "https://example.com", headers: {K: "${MISSING}"}}}
rules:
  s:
    - {name: r, tools: ["issue_*", "lookup_*", written_in_go], agents: [b], action: ask}
    - {name: q, tools: [other, "exec:lookup_order", "http:lookup_order"], action: ask, approvers: [user:alice, group:x]}
`)
	if problems != nil {
		t.Fatal(problems)
	}
	want := `weir.yaml:3:46: agents.a.tools.look: the tool "lookup_ordre" is not in this file; a worker must host it; did you mean "lookup_order"?
weir.yaml:3:67: agents.a.tools.other: the tool "written_in_go" is not in this file; a worker must host it
weir.yaml:5:82: tools.lookup_order.http.headers.K: the environment variable MISSING is not set
weir.yaml:8:25: rules.s[0].tools[0]: "issue_*" matches no tool in this file
weir.yaml:8:73: rules.s[0].agents[0]: "b" matches no agent in this file; did you mean "a"?
weir.yaml:9:25: rules.s[1].tools[0]: "other" matches no tool in this file: rules name ids, and "other" is the key of tool "written_in_go" at agent a
weir.yaml:9:32: rules.s[1].tools[1]: "exec:lookup_order" matches no tool in this file; did you mean "lookup_order"?
weir.yaml:9:100: rules.s[1].approvers[0]: there is no principal "alice" in this file, so nobody can decide as this user`
	if diff := cmp.Diff(want, f.Warnings.String()); diff != "" {
		t.Error(diff)
	}
	if _, _, err := f.Secrets.Headers(f.Tools[0].HTTP.Headers); err == nil {
		t.Error("a header with a variable that is not set was made")
	}
}

// TestB1_17_RulesForCallsWithoutAnAgent: rules may name the reserved agent of direct calls, and no agent may.
func TestB1_17_RulesForCallsWithoutAnAgent(t *testing.T) {
	t.Parallel()
	f, problems := parse(t, `
tools:
  look: {description: x, http: {url: "https://example.com"}}
rules:
  s: [{name: r, tools: [look], agents: ["=tool"], action: ask}]
`)
	if problems != nil || len(f.Warnings) > 0 {
		t.Error(problems, f.Warnings)
	}
	_, problems = parse(t, `agents: {"=tool": {model: scripted/support}}`)
	if len(problems) != 1 || !strings.Contains(problems[0].Message, "reserved") {
		t.Errorf("problems = %v", problems)
	}
}

// TestProblemsAreCoded: what the command line and HTTP answer.
func TestProblemsAreCoded(t *testing.T) {
	t.Parallel()
	collision := "agents: {a: {model: scripted/support, tools: {a b: x, a_b: y}}}"
	for text, want := range map[string]events.Code{
		collision:                     events.CodeToolNameCollision,
		collision + "\nunknown: true": events.CodeInvalidDefinition,
	} {
		_, problems := parse(t, text)
		var e *events.Error
		if !errors.As(&Error{problems}, &e) || e.Code != want || len(e.Issues) != len(problems) || !strings.HasPrefix(e.Issues[0].Field, "weir.yaml:1:") {
			t.Errorf("%q: %+v, want %s", text, e, want)
		}
	}
}

// TestRefused holds what is refused, and the texts by which people find it, to golden files.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, path := range files(t, "all-at-once.yaml", "refused/*.yaml", "beyond/*.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			_, problems := parse(t, read(t, path))
			if problems == nil {
				t.Fatal("not refused")
			}
			golden := strings.TrimSuffix(path, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(problems.String()+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(read(t, golden), problems.String()+"\n"); diff != "" {
				t.Error(diff)
			}
			if !slices.IsSortedFunc(problems, func(a, b Problem) int { return a.Line - b.Line }) {
				t.Error("not in the order of the file")
			}
		})
	}
}

// TestAliasBomb: a few lines that stand for more than a machine holds.
func TestAliasBomb(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("tools:\n  x:\n    description: x\n    exec: {command: [y]}\n    providerOptions:\n      a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n")
	for i := range 20 {
		alias := strings.TrimSuffix(strings.Repeat("*a"+itoa(i)+", ", 10), ", ")
		text.WriteString("      a" + itoa(i+1) + ": &a" + itoa(i+1) + " [" + alias + "]\n")
	}
	_, problems := parse(t, text.String())
	if len(problems) != 1 || !strings.Contains(problems[0].Message, "too much") {
		t.Errorf("problems = %.300s", problems)
	}
	_, problems = parse(t, "tools:\n  x:\n    description: x\n    exec: {command: [y]}\n    providerOptions: &a {b: *a}\n")
	if len(problems) != 1 {
		t.Errorf("problems = %.300s", problems)
	}
}

// FuzzParse: no text makes the reader panic, and a problem always has a place.
func FuzzParse(f *testing.F) {
	for _, path := range files(f, "weir.yaml", "all-at-once.yaml", "examples/*.yaml", "refused/*.yaml", "beyond/*.yaml") {
		f.Add(read(f, path))
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("weir.yaml", []byte(text), environment)
		var all *Error
		if errors.As(err, &all) == (file != nil) {
			t.Errorf("file %v, error %v", file, err)
		}
	})
}

func files(tb testing.TB, patterns ...string) (list []string) {
	tb.Helper()
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join("testdata", filepath.FromSlash(pattern)))
		if err != nil || len(found) == 0 {
			tb.Fatalf("%s: %v, %d files", pattern, err, len(found))
		}
		list = append(list, found...)
	}
	return list
}

func read(tb testing.TB, path string) string {
	tb.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return string(raw)
}

// TestB13_19_SubAgents reads agents that delegate, in both forms, and what they delegate how.
func TestB13_19_SubAgents(t *testing.T) {
	t.Parallel()
	f := mustParse(t, `
agents:
  boss:
    model: scripted/support
    agents: {clerk: accounts, lead: lead}
    delegation: {context: {lastN: 0, roles: [user], includeSystem: true}, includeSubAgentToolResultsInModelContext: true, maxDepth: 3}
    requireToolApproval: {always: true, inherit: true}
    hooks: {audit: {inherit: true}}
  lead: {model: scripted/support, agents: [accounts]}
  accounts: {model: scripted/support}
`)
	want := events.AgentDef{
		ID: "boss", Model: "scripted/support", Agents: map[string]string{"clerk": "accounts", "lead": "lead"},
		Delegation: &events.Delegation{
			Context: &events.DelegationContext{LastN: new(0), Roles: []string{"user"}, IncludeSystem: true}, ShowToolResults: true, MaxDepth: 3,
		},
		RequireToolApproval: &events.Approval{Always: true, Inherit: true}, Hooks: events.Hooks{"audit": {Inherit: true}},
	}
	byID := map[string]events.AgentDef{}
	for _, a := range f.Agents {
		byID[a.ID] = a
	}
	if diff := cmp.Diff(want, byID["boss"]); diff != "" {
		t.Error(diff)
	}
	if got := byID["lead"].Agents["accounts"]; got != "accounts" {
		t.Errorf("the lead's agent is %q", got)
	}
}

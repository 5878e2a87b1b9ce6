package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
)

// registry is a registry in memory, of which any write may fail.
type registry struct {
	defs   map[string][]byte
	named  map[string]map[string][]byte
	writes []string
	left   int // writes until one fails; negative: none does
}

func newRegistry() *registry {
	return &registry{defs: map[string][]byte{}, named: map[string]map[string][]byte{}, left: -1}
}

var errKilled = errors.New("killed")

func (r *registry) write(what string) error {
	if r.left == 0 {
		return errKilled
	}
	r.left--
	r.writes = append(r.writes, what)
	return nil
}

func (r *registry) PutDef(_ context.Context, body []byte) (string, error) {
	digest := events.Digest(body)
	if err := r.write("def"); err != nil {
		return "", err
	}
	r.defs[digest] = body
	return digest, nil
}

func (r *registry) PutNamed(_ context.Context, kind, id string, body []byte) error {
	if _, ok := r.defs[events.Digest(body)]; !ok {
		return fmt.Errorf("%s %s is named before it is defined", kind, id)
	}
	if err := r.write(kind + " " + id); err != nil {
		return err
	}
	if r.named[kind] == nil {
		r.named[kind] = map[string][]byte{}
	}
	r.named[kind][events.Token(id)] = body
	return nil
}

func (r *registry) ListNamed(_ context.Context, kind string) (map[string][]byte, error) {
	return maps.Clone(r.named[kind]), nil
}

func changes(report Report) string {
	var list []string
	for _, a := range report.Applied {
		list = append(list, fmt.Sprintf("%s %s %s", a.Change, a.Kind, a.ID))
	}
	return strings.Join(list, "\n")
}

func apply(t *testing.T, r *registry, f *File) Report {
	t.Helper()
	report, err := Apply(t.Context(), r, f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func mustParse(t *testing.T, text string) *File {
	t.Helper()
	f, problems := parse(t, text)
	if problems != nil {
		t.Fatal(problems)
	}
	return f
}

func TestApply(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	first := mustParse(t, `
rules: {money: [{name: all, action: ask}], old: []}
agents: {"a b": {model: scripted/support, tools: [t]}}
tools: {t: {description: x, exec: {command: [a]}}}
principals: {alice: {auth: gateway}}
models: {openai: {apiKey: "${OPENAI_API_KEY}"}}
`)
	want := "created rule money\ncreated rule old\ncreated principal alice\ncreated model openai\ncreated tool t\ncreated agent a b"
	if diff := cmp.Diff(want, changes(apply(t, r, first))); diff != "" {
		t.Error(diff)
	}
	if got := changes(apply(t, r, first)); got != strings.ReplaceAll(want, "created", "unchanged") {
		t.Errorf("again: %s", got)
	}
	report := apply(t, r, mustParse(t, `
rules: {money: [{name: all, action: block}]}
agents: {"a b": {model: scripted/support, tools: [t]}, c: {model: scripted/support}}
tools: {t: {description: y, exec: {command: [b]}}}
`))
	want = "changed rule money\nchanged tool t\nunchanged agent a b\ncreated agent c\nkept rule old\nkept principal alice\nkept model openai"
	if diff := cmp.Diff(want, changes(report)); diff != "" {
		t.Error(diff)
	}
	for _, a := range report.Applied {
		body := r.named[a.Kind][events.Token(a.ID)]
		if events.Digest(body) != a.Digest || string(r.defs[a.Digest]) != string(body) {
			t.Errorf("%s %s: the digest is not that of its body", a.Kind, a.ID)
		}
	}
	if len(report.Warnings) != 0 {
		t.Errorf("warnings = %v", report.Warnings)
	}
}

// TestAppliedIsWhatServicesRead: bodies decode to the definitions, and a tool's are the bytes that its executor writes.
func TestAppliedIsWhatServicesRead(t *testing.T) {
	t.Parallel()
	r, f := newRegistry(), load(t, "examples/full.yaml")
	apply(t, r, f)
	for _, want := range f.Tools {
		body := r.named[events.RegistryTool][events.Token(want.Manifest.ID)]
		if raw, _ := events.Marshal(want.Manifest); string(raw) != string(body) {
			t.Errorf("tool %s: %s", want.Manifest.ID, body)
		}
	}
	for _, want := range f.Agents {
		var got events.AgentDef
		if err := json.Unmarshal(r.named[events.RegistryAgent][events.Token(want.ID)], &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	for _, want := range f.Rules {
		var got events.RuleSet
		if err := json.Unmarshal(r.named[events.RegistryRule][events.Token(want.Name)], &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// TestNoSecretIsApplied: canaries in every place that takes one are in no value of the registry, no report, and no
// print of the file.
func TestNoSecretIsApplied(t *testing.T) {
	t.Parallel()
	r, f := newRegistry(), load(t, "examples/full.yaml")
	report := apply(t, r, f)
	text := fmt.Sprintf("%v %+v %#v %s", f, f, f.Secrets, f.Secrets.LogValue())
	for _, v := range []any{report, f, f.Secrets} {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		text += string(raw)
	}
	for _, body := range r.defs {
		text += string(body)
	}
	if strings.Contains(text, "canary") {
		t.Errorf("a secret is in %s", text)
	}
	if body := string(r.named[events.RegistryModel]["openai"]); !strings.Contains(body, "${OPENAI_API_KEY}") {
		t.Errorf("model = %s, want its reference", body)
	}
	for kind, all := range r.named {
		for id, body := range all {
			for _, private := range []string{"pay.internal", "lookup.py", "PAY_TOKEN", "SHOP_TOKEN", "TEAM_TOKEN"} {
				if strings.Contains(string(body), private) {
					t.Errorf("%s %s tells how a tool runs: %s", kind, id, body)
				}
			}
		}
	}
}

// TestApplyKilledAnywhere: whichever write is the last, no name leads nowhere, and applying again completes it.
func TestApplyKilledAnywhere(t *testing.T) {
	t.Parallel()
	f := load(t, "examples/full.yaml")
	whole := newRegistry()
	apply(t, whole, f)
	for n := range len(whole.writes) {
		r := newRegistry()
		r.left = n
		if _, err := Apply(t.Context(), r, f, nil); !errors.Is(err, errKilled) {
			t.Fatalf("write %d: %v", n, err)
		}
		for _, all := range r.named {
			for id, body := range all {
				if _, ok := r.defs[events.Digest(body)]; !ok {
					t.Errorf("write %d: %s leads nowhere", n, id)
				}
			}
		}
		r.left = -1
		apply(t, r, f)
		if diff := cmp.Diff(whole.named, r.named); diff != "" {
			t.Errorf("write %d: %s", n, diff)
		}
	}
	first, last := slices.Index(whole.writes, "rule money"), slices.Index(whole.writes, "agent billing")
	if first > last {
		t.Error("agents are applied before rules")
	}
}

// TestApplyConflict: a program does not take the place of a worker's tool.
func TestApplyConflict(t *testing.T) {
	t.Parallel()
	r, f := newRegistry(), load(t, "weir.yaml")
	worker := f.Tools[1].Manifest
	worker.Source.Kind = "go"
	body, err := events.Marshal(worker)
	if err != nil {
		t.Fatal(err)
	}
	r.named[events.RegistryTool] = map[string][]byte{events.Token(worker.ID): body}
	if _, err := Apply(t.Context(), r, f, nil); events.CodeOf(err) != events.CodeToolConflict {
		t.Errorf("error = %v, want tool_conflict", err)
	}
	if len(r.writes) > 0 {
		t.Errorf("written before the conflict was seen: %v", r.writes)
	}
	f.Tools[1].Manifest.Version = "2"
	apply(t, r, f)
}

// TestB7_10_ApplyRefusesWhatMatchesNothing: a rule or an agent's entry that stands for nothing, in file and registry
// together, is an error with its place, and nothing is written; with the option it is a warning. (Case GATE-5: a wrong
// prefix, an old name, the key of an agent in place of the id.)
func TestB7_10_ApplyRefusesWhatMatchesNothing(t *testing.T) {
	t.Parallel()
	text := `
agents: {billing: {model: scripted/support, tools: {refund: issue_refund, old: isue_refund}}}
rules:
  money:
    - {name: ids, tools: [issue_refund, "issue_*", "go:issue_*", "mcp:github/delete_*", "mcp:github"], agents: [billing, "sup*"], action: ask}
    - {name: prefix, tools: ["tools.issue_refund", "http:issue_*", "mcp:gitlab/*"], action: ask}
    - {name: key, tools: [refund], agents: [billin], action: block}
    - {name: people, tools: [issue_refund], action: ask, approvers: [user:alice, user:mallory, group:anything]}
`
	r := newRegistry()
	r.named = map[string]map[string][]byte{
		events.RegistryTool: {
			"issue_refund": []byte(`{"id":"issue_refund","source":{"kind":"go"}}`),
			"delete_repo":  []byte(`{"id":"github_delete_repo","source":{"kind":"mcp","server":"github","name":"delete_repo"}}`),
		},
		events.RegistryAgent:     {"support": []byte(`{"id":"support"}`)},
		events.RegistryPrincipal: {"alice": []byte(`{"id":"alice"}`)},
	}
	f := mustParse(t, text)
	_, err := Apply(t.Context(), r, f, nil)
	want := `weir.yaml:2:80: agents.billing.tools.old: the tool "isue_refund" is not in this file or the registry; a worker must host it; did you mean "issue_refund"?
weir.yaml:6:30: rules.money[1].tools[0]: "tools.issue_refund" matches no tool in this file or the registry; did you mean "issue_refund"?
weir.yaml:6:52: rules.money[1].tools[1]: "http:issue_*" matches no tool in this file or the registry
weir.yaml:6:68: rules.money[1].tools[2]: "mcp:gitlab/*" matches no tool in this file or the registry
weir.yaml:7:27: rules.money[2].tools[0]: "refund" matches no tool in this file or the registry: rules name ids, and "refund" is the key of tool "issue_refund" at agent billing
weir.yaml:7:45: rules.money[2].agents[0]: "billin" matches no agent in this file or the registry; did you mean "billing"?`
	var refused *Error
	if !errors.As(err, &refused) || events.CodeOf(err) != events.CodeInvalidDefinition {
		t.Fatalf("error = %v, want invalid_definition", err)
	}
	if diff := cmp.Diff(want, refused.Error()); diff != "" {
		t.Error(diff)
	}
	if len(r.writes) > 0 {
		t.Errorf("written all the same: %v", r.writes)
	}
	report, err := Apply(t.Context(), r, f, &ApplyOptions{AllowUnmatched: true})
	if err != nil || len(report.Applied) == 0 {
		t.Fatal(report, err)
	}
	want += `
weir.yaml:8:82: rules.money[3].approvers[1]: there is no principal "mallory" in this file or the registry, so nobody can decide as this user`
	if diff := cmp.Diff(want, strings.Join(report.Warnings, "\n")); diff != "" {
		t.Error(diff)
	}
}

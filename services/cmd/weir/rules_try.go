package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// fromRegistry names the rules in force where a file of rules may be named.
const fromRegistry = "registry"

// defaultExpires is how long an ask waits for which neither rule nor tool says so, unless the gate is told otherwise.
const defaultExpires = 168 * time.Hour

// maxExpressions bounds the compiled expressions that are kept.
const maxExpressions = 1024

func newRulesTestCommand(a *app) *cobra.Command {
	var path, rules string
	cmd := &cobra.Command{
		Use: "test -f CASES", Short: "Check rules against a table of cases", Args: cobra.NoArgs,
		Long: `Check rules against a table of cases: what happens to a call, and who decides it. The rules are those in force, or with
--rules those of a weir.yaml, which needs no server. With a case that is not as it should be the exit code is 1.

The file is YAML:

  cases:
    - name: large refunds need two of finance
      tool: issue_refund            its id
      agent: support
      args: {orderId: "1042", amount: 612.5}
      run: {requester: bob, thread: t-9, resource: u-1}
      context: {tenant: acme}
      want: {action: ask, rule: money/large, approvers: [group:finance], quorum: 2}

Beside these a case may say toolName (the agent's key), source (go, http, …, mcp:<server>/<tool>), annotations, requireApproval
(of the tool) and requireToolApproval (of the run); by default they are as the definitions of tool and agent say. want needs
the action (allow, ask or block); what else it says must be so too: rule (<set>/<rule>, requireApproval, requireToolApproval
or none), approvers ([] is everybody), quorum, notRequester, signed, expires, onExpiry, decisions and grants.

Arguments are repaired, checked and frozen first, as the gate does it: a case whose arguments do not fit fails.

JSON: {"rules", "cases": [{"name", "place", "ok", "got": {"action", "rule", "error", "approvers", …}, "differs": [{"term",
"was", "is"}], "invalid", "known"}], "failed"}; was is what the case wants, known whether there is a definition of the tool,
rules the digest of the rules.`,
		Example: `  weir rules test -f cases.yaml
  weir rules test -f cases.yaml --rules weir.yaml
  weir rules test -f cases.yaml -o json | jq '.cases[] | select(.ok | not)'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.testRules(cmd.Context(), path, rules) },
	}
	cmd.Flags().StringVarP(&path, "file", "f", "", "the file of cases")
	cmd.Flags().StringVar(&rules, "rules", fromRegistry, "a weir.yaml whose rules are tested, or "+fromRegistry+": those in force")
	_ = cmd.MarkFlagRequired("file") // the flag was just made
	return cmd
}

// triedCase is a case with what came of it.
type triedCase struct {
	Name    string             `json:"name"`
	Place   string             `json:"place"`
	OK      bool               `json:"ok"`
	Got     *judge.Terms       `json:"got,omitempty"`
	Differs []judge.Difference `json:"differs,omitempty"`
	Invalid string             `json:"invalid,omitempty"`
	Known   bool               `json:"known"`
}

func (a *app) testRules(ctx context.Context, path, from string) error {
	cases, err := config.LoadCases(path)
	if err != nil {
		return err
	}
	rules, known, err := a.rulesFrom(ctx, from)
	if err != nil {
		return err
	}
	e := rule.NewEvaluator(rule.NewCache(maxExpressions))
	list, failed := make([]triedCase, len(cases)), 0
	strange := map[string]bool{}
	for i, c := range cases {
		t := rules.Try(ctx, e, c.Case, known, defaultExpires)
		list[i] = triedCase{Name: c.Name, Place: c.Place, OK: t.OK(), Differs: t.Differs, Known: t.Known}
		if t.Invalid != nil {
			list[i].Invalid = t.Invalid.Error()
		} else {
			list[i].Got = &t.Got
		}
		if !list[i].OK {
			failed++
		}
		if !t.Known {
			strange[c.Tool] = true
		}
	}
	if err := a.print(struct {
		Rules  string      `json:"rules"`
		Cases  []triedCase `json:"cases"`
		Failed int         `json:"failed"`
	}{rules.Digest(), list, failed}, func(w io.Writer) { a.printTried(w, list, failed) }); err != nil {
		return err
	}
	if len(strange) > 0 {
		a.note("not known here, so what they ask for by themselves and their schemas were not looked at: %s",
			strings.Join(slices.Sorted(maps.Keys(strange)), ", "))
	}
	if failed > 0 {
		return &exit{code: exitFailed}
	}
	return nil
}

// rulesFrom are the rules of a file or those in force, with the definitions that cases may name.
func (a *app) rulesFrom(ctx context.Context, from string) (*judge.Rules, judge.Definitions, error) {
	if from != fromRegistry {
		file, err := config.Load(from, nil)
		if err != nil {
			return nil, judge.Definitions{}, err
		}
		stored, err := file.RuleSets()
		if err != nil {
			return nil, judge.Definitions{}, err
		}
		rules, err := judge.Read(stored)
		return rules, file.Definitions(), err
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, judge.Definitions{}, err
	}
	defer hangUp(conn)
	rules, err := rulesInForce(ctx, conn)
	if err != nil {
		return nil, judge.Definitions{}, err
	}
	known := judge.Definitions{Tools: map[string]events.Manifest{}, Agents: map[string]events.AgentDef{}}
	if err := readInto(ctx, conn, events.RegistryTool, func(m events.Manifest) { known.Tools[m.ID] = m }); err != nil {
		return nil, known, err
	}
	return rules, known, readInto(ctx, conn, events.RegistryAgent, func(d events.AgentDef) { known.Agents[d.ID] = d })
}

// lister is what reads definitions by name.
type lister interface {
	ListNamed(ctx context.Context, kind string) (map[string][]byte, error)
}

// readInto reads the definitions of a kind. One that cannot be read is none.
func readInto[T any](ctx context.Context, from lister, kind string, take func(T)) error {
	named, err := from.ListNamed(ctx, kind)
	for _, body := range named {
		var v T
		if json.Unmarshal(body, &v) == nil {
			take(v)
		}
	}
	return err
}

// printTried writes the cases that failed, or with --verbose all, and how many there are.
func (a *app) printTried(w io.Writer, list []triedCase, failed int) {
	for _, c := range list {
		if c.OK && !a.verbose {
			continue
		}
		word := "ok"
		if !c.OK {
			word = "FAIL"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", word, oneLine(c.Place), oneLine(c.Name))
		for _, line := range c.lines() {
			_, _ = fmt.Fprintf(w, "\t%s\n", oneLine(line))
		}
	}
	_, _ = fmt.Fprintf(w, "%s, %d failed\n", counted(len(list), "case"), failed)
}

// lines tell what is wrong with a case, and which rule decided.
func (c triedCase) lines() (lines []string) {
	if c.Invalid != "" {
		return []string{"the gate ends this call before it asks a rule: " + c.Invalid}
	}
	for _, d := range c.Differs {
		lines = append(lines, fmt.Sprintf("%s: want %s, got %s", d.Term, d.Was, d.Is))
	}
	if len(lines) == 0 {
		return nil
	}
	lines = append(lines, "decided by "+c.Got.Rule)
	if c.Got.Error != "" {
		lines = append(lines, "which could not be evaluated: "+c.Got.Error)
	}
	return lines
}

// ruleWords are terms for one cell of a table.
func ruleWords(t judge.Terms) string {
	words := []string{string(t.Action)}
	if t.Rule != judge.NoRule {
		words = append(words, "("+t.Rule+")")
	}
	if t.Error != "" {
		words = append(words, "failed: "+t.Error)
	}
	return strings.Join(words, " ")
}

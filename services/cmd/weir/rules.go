package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/judge"
)

func newRulesCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{
		Use: "rules", Short: "See the rules in force, test them, and compare new ones with what has happened",
		Long: `See the rules in force, test them, and compare new ones with what has happened.

Rules stand in sets in weir.yaml, and "weir apply" puts them in force, for runs under way too. For each call the first rule
of a set that matches counts; over the sets block beats ask, and ask beats allow. What the tool, the agent or the run asks
for by itself is never lifted. A rule that cannot be evaluated means that people are asked.

Tests and comparisons run the gate's own code: what they tell is what the gate does.`,
		Example: `  weir rules ls
  weir rules show money
  weir rules test -f cases.yaml --rules weir.yaml      before you apply it
  weir rules diff -f weir.yaml --since 24h             what would have been different`,
	}, newRulesListCommand(a), newRulesShowCommand(a), newRulesTestCommand(a), newRulesDiffCommand(a), newRulesRemoveCommand(a))
}

// ruleSetRow is a rule set as the command line shows it.
type ruleSetRow struct {
	Name   string        `json:"name"`
	Digest string        `json:"digest"`
	Rules  []events.Rule `json:"rules"`
}

// rulesInForce reads the rule sets as a gate does.
func rulesInForce(ctx context.Context, conn *jetstream.Conn) (*judge.Rules, error) {
	stored, err := conn.ListNamed(ctx, events.RegistryRule)
	if err != nil {
		return nil, err
	}
	return readRules(stored)
}

// rulesInForce is the same for who needs nothing else of the bus.
func (a *app) rulesInForce(ctx context.Context) (*judge.Rules, error) {
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer hangUp(conn)
	return rulesInForce(ctx, conn)
}

// readRules reads stored sets, and says what to do when one of them cannot be read.
func readRules(stored map[string][]byte) (*judge.Rules, error) {
	rules, err := judge.Read(stored)
	if errors.Is(err, judge.ErrUnreadable) {
		err = fmt.Errorf("%w; no gate lets anything pass before it can be: weir apply -f weir.yaml", err)
	}
	return rules, err
}

func newRulesListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the rule sets in force", Args: cobra.NoArgs,
		Long: `List the rule sets in force, in the order in which they are judged.

Columns: set, number of its rules, digest. The digest of all of them together, which asks, answers and releases name as
rules, is told on a terminal.

JSON: {"digest", "sets": [{"name", "digest", "rules": [{"name", "action", …}]}]}; the rules are as weir.yaml has them.`,
		Example: `  weir rules ls
  weir rules ls -o json | jq -r .digest     the digest that asks and answers name`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listRules(cmd.Context()) },
	}
}

func (a *app) listRules(ctx context.Context) error {
	rules, err := a.rulesInForce(ctx)
	if err != nil {
		return err
	}
	list := []ruleSetRow{}
	for _, s := range rules.Sets() {
		list = append(list, ruleSetRow{s.Name, s.Digest, s.Rules})
	}
	return a.print(struct {
		Digest string       `json:"digest"`
		Sets   []ruleSetRow `json:"sets"`
	}{rules.Digest(), list}, func(io.Writer) {
		if len(list) == 0 {
			a.note("no rules are in force: calls pass unless their tool, agent or run asks for approval")
			return
		}
		rows := make([][]string, len(list))
		for i, s := range list {
			rows[i] = []string{s.Name, fmt.Sprint(len(s.Rules)), s.Digest}
		}
		a.table([]string{"SET", "RULES", "DIGEST"}, rows)
		a.note("all together: %s", rules.Digest())
	})
}

func newRulesShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "show [SET]", Aliases: []string{"info"}, Short: "Show the rules of a set, or of all", Args: cobra.MaximumNArgs(1),
		Long: `Show the rules of a set, or of all of them, in the order in which they are judged.

JSON: {"sets": [{"name", "digest", "rules": [{"name", "tools", "agents", "when", "action", "reason", "approvers",
"notRequester", "signed", "quorum", "decisions", "grants", "expires", "onExpiry", "remind", "escalate"}]}]}.`,
		Example: `  weir rules show
  weir rules show money`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showRules(cmd.Context(), strings.Join(args, ""))
		},
	}
}

func (a *app) showRules(ctx context.Context, name string) error {
	rules, err := a.rulesInForce(ctx)
	if err != nil {
		return err
	}
	list := []ruleSetRow{}
	var names []string
	for _, s := range rules.Sets() {
		names = append(names, s.Name)
		if name == "" || s.Name == name {
			list = append(list, ruleSetRow{s.Name, s.Digest, s.Rules})
		}
	}
	if name != "" && len(list) == 0 {
		return &exit{exitNotFound, fmt.Errorf("there is no rule set %q (there are: %s)", name, orNone(names))}
	}
	return a.print(struct {
		Sets []ruleSetRow `json:"sets"`
	}{list}, func(w io.Writer) {
		for i, s := range list {
			if i > 0 {
				_, _ = fmt.Fprintln(w)
			}
			printSet(w, s)
		}
	})
}

// printSet writes a set for people: each rule with what it says.
func printSet(w io.Writer, s ruleSetRow) {
	_, _ = fmt.Fprintf(w, "%s  %s\n", oneLine(s.Name), s.Digest)
	for _, r := range s.Rules {
		_, _ = fmt.Fprintf(w, "\n%s %s\n", r.Action, oneLine(r.Name))
		for _, f := range wordsOf(r) {
			_, _ = fmt.Fprintf(w, "  %-12s  %s\n", f[0], oneLine(f[1]))
		}
	}
}

// wordsOf are the keys of a rule that say something, with their values, in the order of weir.yaml.
func wordsOf(r events.Rule) (list [][2]string) {
	raw, err := events.Marshal(r)
	if err != nil {
		return nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	order := []string{
		"tools", "agents", "when", "reason", "approvers", "notRequester", "signed", "quorum", "decisions", "grants", "expires",
		"onExpiry", "remind", "escalate",
	}
	for key := range fields { // one that was added and not listed here
		if key != "name" && key != "action" && !slices.Contains(order, key) {
			order = append(order, key)
		}
	}
	for _, key := range order {
		if v, ok := fields[key]; ok {
			list = append(list, [2]string{key, readableValue(v)})
		}
	}
	return list
}

// readableValue is a value of JSON without the quotes of texts.
func readableValue(raw json.RawMessage) string {
	var text string
	var texts []string
	switch {
	case json.Unmarshal(raw, &text) == nil:
		return text
	case json.Unmarshal(raw, &texts) == nil:
		return strings.Join(texts, ", ")
	}
	return string(raw)
}

func newRulesRemoveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "rm SET", Short: "Take a rule set out of force", Args: cobra.ExactArgs(1),
		Long: `Take a rule set out of force, at once and for runs under way. "weir apply" never does that: a set that is no longer in
weir.yaml stays in force. Calls that people are being asked about stay held. The set can be applied again; the record keeps
which calls it judged.

JSON: {"removed", "digest"}: the name and what the set's digest was.`,
		Example: `  weir rules rm money`,
		RunE:    func(cmd *cobra.Command, args []string) error { return a.removeRules(cmd.Context(), args[0]) },
	}
}

func (a *app) removeRules(ctx context.Context, name string) error {
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	body, err := conn.NamedNow(ctx, events.RegistryRule, name)
	if errors.Is(err, jetstream.ErrNotFound) {
		return &exit{exitNotFound, fmt.Errorf("there is no rule set %q: see weir rules ls", name)}
	}
	if err != nil {
		return err
	}
	if err := conn.DeleteNamed(ctx, events.RegistryRule, name); err != nil {
		return err
	}
	if err := rulesTaken(ctx); err != nil {
		return err
	}
	return a.print(struct {
		Removed string `json:"removed"`
		Digest  string `json:"digest"`
	}{name, events.Digest(body)}, func(w io.Writer) { _, _ = fmt.Fprintf(w, "removed\t%s\t%s\n", oneLine(name), events.Digest(body)) })
}

// rulesTaken waits until no gate judges by the rules that were in force before: who goes on after the command may rely on
// those that it put there.
func rulesTaken(ctx context.Context) error {
	select {
	case <-time.After(judge.MaxAge):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the rules are stored, and gates take them within %v: %w", judge.MaxAge, ctx.Err())
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/internal/judge"
)

// diffSince is how far back calls are compared.
const diffSince = "168h"

// diffTold is how often people are told how far a comparison has come.
const diffTold = 2 * time.Second

func newRulesDiffCommand(a *app) *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use: "diff", Short: "Compare the rules of a weir.yaml with what has happened", Args: cobra.NoArgs,
		Long: `Judge the calls of the past again, by the rules that would be in force if this weir.yaml were applied, and tell of each
call that would be treated otherwise: what it was, what it would be, and by which rule. Sets of the registry that the file
does not have stay in force, as they do when it is applied; tools and agents are those that the calls had.

Calls come from the record, where one is kept ("weir stream provision --audit"), else from the log, which holds runs for 24 h
by default. Arguments are shown as digest and size, unless --show-args is given.

Nothing is changed. The exit code is 0 when nothing would be otherwise, 1 when something would.

Columns: toolCallId, tool, arguments, what it was, what it would be; for a call that people are asked about either way, what
of that is another.

JSON: a line for each such call: {"toolCallId", "round", "at", "toolId", "argsDigest", "argsSize", "args", "was": {"action",
"rule", …}, "wouldBe": {…}, "grant", "differs": [{"term", "was", "is"}]}; then {"totals": {"calls", "changed", "changes":
{"allow → ask": 3}, "notComparable": {"why": 1}, "facts"}}.`,
		Example: `  weir rules diff
  weir rules diff -f weir.yaml --since 24h
  weir rules diff -o json | jq 'select(.wouldBe.action == "block")'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.diffRules(cmd.Context(), o) },
	}
	cmd.Flags().StringVarP(&o.file, "file", "f", defaultFile, "the file")
	cmd.Flags().StringVar(&o.since, "since", diffSince, "how far back: a span such as 24h, or a time of RFC 3339")
	cmd.Flags().BoolVar(&o.showArgs, "show-args", false, "show the arguments, secret ones too")
	return cmd
}

type diffOptions struct {
	file, since string
	showArgs    bool
}

func (a *app) diffRules(ctx context.Context, o diffOptions) error {
	since, err := sinceOf(o.since, time.Now())
	if err != nil {
		return err
	}
	file, err := config.Load(o.file, nil)
	if err != nil {
		return err
	}
	conn, err := a.dial(ctx, "rules", file.Namespace)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	rules, err := rulesApplied(ctx, conn, file)
	if err != nil {
		return err
	}
	d := diffing{app: a, replay: newReplay(conn, rules, since), showArgs: o.showArgs}
	if err := d.run(ctx); err != nil {
		return err
	}
	if d.totals.Changed > 0 {
		return &exit{code: exitFailed}
	}
	return nil
}

// rulesApplied are the rules that are in force once a file is applied.
func rulesApplied(ctx context.Context, conn *jetstream.Conn, file *config.File) (*judge.Rules, error) {
	stored, err := conn.ListNamed(ctx, events.RegistryRule)
	if err != nil {
		return nil, err
	}
	added, err := file.RuleSets()
	if err != nil {
		return nil, err
	}
	maps.Copy(stored, added)
	return judge.Read(stored)
}

// diffTotals count what a comparison has found.
type diffTotals struct {
	Calls         int            `json:"calls"` // that were judged again
	Changed       int            `json:"changed"`
	Changes       map[string]int `json:"changes"`
	NotComparable map[string]int `json:"notComparable,omitempty"`
	Facts         int            `json:"facts"` // that were read
}

// diffing is one comparison.
type diffing struct {
	app      *app
	replay   *replay
	showArgs bool
	totals   diffTotals
	told     time.Time
}

func (d *diffing) run(ctx context.Context) error {
	d.totals.Changes, d.totals.NotComparable, d.told = map[string]int{}, map[string]int{}, time.Now()
	for e, err := range d.replay.log(ctx) {
		if err != nil {
			return err
		}
		j, err := d.replay.take(ctx, e)
		if why, ok := errors.AsType[notComparableError](err); ok {
			d.totals.NotComparable[why.why]++
			continue
		}
		if err != nil && ctx.Err() == nil && e.ID != "" && isData(err) {
			d.totals.NotComparable["a fact cannot be read"]++
			continue
		}
		if err != nil {
			return err
		}
		if err := d.count(j); err != nil {
			return err
		}
		d.progress()
	}
	return d.end()
}

// isData tells a fact that says what nobody can read from a bus that does not answer.
func isData(err error) bool {
	return !errors.Is(err, jetstream.ErrTimeout) && !errors.Is(err, jetstream.ErrUnavailable) && !errors.Is(err, jetstream.ErrPermission)
}

func (d *diffing) count(j *judged) error {
	if j == nil {
		return nil
	}
	d.totals.Calls++
	if len(j.Differs) == 0 {
		return nil
	}
	d.totals.Changed++
	d.totals.Changes[changeOf(*j)]++
	if !d.showArgs {
		j.Args = nil
	}
	return d.app.print(j, func(io.Writer) { d.app.table(nil, [][]string{diffRow(*j)}) })
}

// changeOf names the kind of a change.
func changeOf(j judged) string {
	if j.Was.Action != j.WouldBe.Action {
		return string(j.Was.Action) + " → " + string(j.WouldBe.Action)
	}
	return string(j.Was.Action) + " otherwise"
}

// diffRow is a call as a line of the table.
func diffRow(j judged) []string {
	args := fmt.Sprintf("%s %d B", short(j.ArgsDigest, 20), j.ArgsSize)
	if j.Args != nil {
		args = compact(j.Args)
	}
	would := ruleWords(j.WouldBe)
	if j.Was.Action == j.WouldBe.Action {
		var words []string
		for _, d := range j.Differs {
			words = append(words, d.String())
		}
		would += ": " + strings.Join(words, ", ")
	}
	was := ruleWords(j.Was)
	if j.Grant != "" {
		was += ", answered by grant " + j.Grant
	}
	return []string{j.ToolCallID, j.ToolID, args, was, would}
}

func (d *diffing) progress() {
	if time.Since(d.told) < diffTold {
		return
	}
	d.told = time.Now()
	d.app.note("%s read, %s compared, %d otherwise", counted(d.replay.facts, "fact"), counted(d.totals.Calls, "call"), d.totals.Changed)
}

// end tells the totals.
func (d *diffing) end() error {
	d.totals.Facts = d.replay.facts
	if d.app.json {
		return writeJSON(d.app.out, map[string]diffTotals{"totals": d.totals})
	}
	words := []string{counted(d.totals.Calls, "call") + " compared", fmt.Sprintf("%d otherwise", d.totals.Changed)}
	for _, change := range slices.Sorted(maps.Keys(d.totals.Changes)) {
		words = append(words, fmt.Sprintf("%s: %d", change, d.totals.Changes[change]))
	}
	_, err := fmt.Fprintln(d.app.out, strings.Join(words, "; "))
	for _, why := range slices.Sorted(maps.Keys(d.totals.NotComparable)) {
		_, _ = fmt.Fprintf(d.app.out, "not compared: %d (%s)\n", d.totals.NotComparable[why], why)
	}
	return err
}

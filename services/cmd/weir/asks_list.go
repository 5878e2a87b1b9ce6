package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// askFilter are the flags that choose asks.
type askFilter struct {
	client.Filter
	kind          string
	mine          bool
	sort          string
	expiresWithin time.Duration
	olderThan     time.Duration
}

// define makes the flags that choose asks wherever they are chosen.
func (f *askFilter) define(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringVar(&f.Agent, "agent", "", "of this agent")
	set.StringVar(&f.Thread, "thread", "", "of this thread")
	set.StringVar(&f.Resource, "resource", "", "of this resource")
	set.StringVar(&f.Run, "run", "", "of this run, and those below it")
	set.StringVar(&f.Tool, "tool", "", "of this tool")
	set.StringVar(&f.kind, "kind", "", "approval, suspended, in_doubt or client")
	set.BoolVar(&f.mine, "mine", false, "only those that you may decide, and have not voted on")
}

// defineList makes the flags that cut a list.
func (f *askFilter) defineList(cmd *cobra.Command) {
	set := cmd.Flags()
	set.DurationVar(&f.expiresWithin, "expires-within", 0, "only those that expire within this time, such as 2h")
	set.DurationVar(&f.olderThan, "older-than", 0, "only those that were asked at least so long ago, such as 30m")
	set.StringVar(&f.sort, "sort", string(client.ByAge), "asked, expires, agent or tool")
	set.BoolVar(&f.Reverse, "reverse", false, "the other way round")
	set.IntVar(&f.PerPage, "per-page", 0, "length of a page; default everything")
	set.IntVar(&f.Page, "page", 0, "page, from 0")
}

// kinds are all that an ask may have; help names those that people meet.
var kinds = []events.AskKind{
	events.AskApproval, events.AskSuspended, events.AskInDoubt, events.AskClient, events.AskWait, events.AskEvent,
}

// check finds what was typed wrong, before anything is asked for.
func (f *askFilter) check() error {
	f.Kind, f.Sort = events.AskKind(f.kind), client.Order(f.sort)
	switch {
	case f.Kind != "" && !slices.Contains(kinds, f.Kind):
		return usagef("--kind %s: use one of %s", f.kind, strings.Trim(fmt.Sprint(kinds), "[]"))
	case f.Sort != "" && !slices.Contains(client.Orders, f.Sort):
		return usagef("--sort %s: use one of %s", f.sort, strings.Trim(fmt.Sprint(client.Orders), "[]"))
	case f.expiresWithin < 0 || f.olderThan < 0:
		return usagef("--expires-within and --older-than are spans of time, such as 2h")
	}
	return nil
}

// resolve is what the flags choose at this moment.
func (f *askFilter) resolve(ctx context.Context, c *client.Client, now time.Time) (client.Filter, error) {
	out := f.Filter
	if f.expiresWithin > 0 {
		out.ExpireBefore = now.Add(f.expiresWithin)
	}
	if f.olderThan > 0 {
		out.AskedBefore = now.Add(-f.olderThan)
	}
	var err error
	if f.mine {
		out.Approver, err = c.Me(ctx)
	}
	return out, err
}

func newAsksListCommand(a *app) *cobra.Command {
	var f askFilter
	var watch, reviewed bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the calls that wait", Args: cobra.NoArgs,
		Long: `List the calls that wait for people, the oldest first. With --watch the list goes on with what happens.

Columns: toolCallId, tool, kind (approval, suspended, in_doubt or client), agent, since when, until when, why, how many of
the approvals that are needed there are, and who may decide (empty: everybody who decides at all). Calls that wait for the
client of their run are listed for who asked for the run; for others with --kind client. With --watch a line begins
with asked, again (a reminder, or more people may decide) or answered.

With --fingerprints a line is toolCallId, tab, fingerprint: what the commands that decide take. Delete the lines that you do
not want decided, and nothing is decided that is not what you looked at.

--mine goes by the ask and by the groups that the registry knows you to be in; a gateway may know of others.

JSON: {"runs": [{"runId", "status", "agentId", "threadId", "resourceId", "suspendedAt", "toolCalls": [{"toolCallId",
"toolName", "args", "requiresApproval", "suspendPayload", "resumeSchema", "ask"}]}], "total"}, the latest run first;
--sort does not apply. With --watch a line for each event: {"ask"} or {"answer"}, those that wait already first.`,
		Example: `  weir approvals ls --mine --expires-within 2h --sort expires
  weir approvals ls --thread t-9 --resource bob
  weir approvals ls --watch
  weir approvals ls --tool issue_refund --fingerprints > reviewed.tsv
  weir approvals approve @reviewed.tsv --reason "checked with the shop"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			switch {
			case watch && reviewed:
				return usagef("--fingerprints is for a list that ends: leave out --watch")
			case watch:
				return a.watchAsks(cmd.Context(), f)
			}
			return a.listAsks(cmd.Context(), f, reviewed)
		},
	}
	f.define(cmd)
	f.defineList(cmd)
	cmd.Flags().BoolVar(&reviewed, "fingerprints", false, "print toolCallId and fingerprint, for the commands that decide")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on with what happens")
	return cmd
}

func (a *app) listAsks(ctx context.Context, flags askFilter, reviewed bool) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	f, err := flags.resolve(ctx, c, time.Now())
	if err != nil {
		return err
	}
	if a.json && !reviewed {
		page, err := c.Suspended(ctx, f)
		if err != nil {
			return err
		}
		return writeJSON(a.out, page)
	}
	asks, total, err := c.Asks(ctx, f)
	if err != nil {
		return err
	}
	switch {
	case total == 0:
		a.note("nothing waits")
		return nil
	case reviewed:
		for _, ask := range asks {
			_, _ = fmt.Fprintf(a.out, "%s\t%s\n", ask.ToolCallID, oneLine(ask.Fingerprint))
		}
		return nil
	}
	rows := make([][]string, len(asks))
	for i, ask := range asks {
		rows[i] = a.askRow(ask)
	}
	a.table([]string{"CALL", "TOOL", "KIND", "AGENT", "ASKED", "EXPIRES", "WHY", "APPROVALS", "MAY DECIDE"}, rows)
	if total > len(asks) {
		a.note("%d of %d", len(asks), total)
	}
	return nil
}

func (a *app) askRow(ask events.OpenAsk) []string {
	why := ask.Reason.Text
	if ask.Kind == events.AskSuspended {
		why = compact(ask.SuspendPayload)
	}
	votes := ""
	if ask.Quorum != nil {
		votes = fmt.Sprintf("%d/%d", len(ask.Quorum.Votes), ask.Quorum.Need)
	}
	return []string{
		ask.ToolCallID, ask.ToolName, string(ask.Kind), ask.AgentID, a.when(ask.AskedAt), a.when(ask.ExpiresAt), why, votes,
		mayDecide(ask),
	}
}

// mayDecide says who may decide an ask; nothing when everybody may.
func mayDecide(ask events.OpenAsk) string {
	who := slices.Clone(ask.Approvers)
	switch {
	case ask.Kind == events.AskClient:
		return "the requester"
	case ask.NotRequester:
		who = append(who, "not the requester")
	}
	return strings.Join(who, ", ")
}

// watchAsks lists what waits, and then what happens. It begins to hear before it lists, so nothing is missed; what it
// has listed already is not told again.
func (a *app) watchAsks(ctx context.Context, flags askFilter) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	f, err := flags.resolve(ctx, c, time.Now())
	if err != nil {
		return err
	}
	news, err := c.WatchAsks(ctx)
	if err != nil {
		return err
	}
	told := map[string]string{} // form of an ask, by toolCallId
	if !a.liveOnly {
		asks, _, err := c.Asks(ctx, f)
		if err != nil {
			return err
		}
		for _, ask := range asks {
			told[ask.ToolCallID] = formOf(ask)
			if err := a.tellAsk("asked", ask); err != nil {
				return err
			}
		}
	}
	for n := range news {
		switch {
		case n.Answer != nil && (f.Run == "" || f.Run == n.Answer.RunID):
			delete(told, n.Answer.ToolCallID)
			err = a.tellAnswer(*n.Answer)
		case n.Ask == nil || !f.Takes(*n.Ask) || told[n.Ask.ToolCallID] == formOf(n.Ask.Open()):
		case n.Ask.Since != nil:
			err = a.tellAsk("again", n.Ask.Open())
		default:
			err = a.tellAsk("asked", n.Ask.Open())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *app) tellAsk(word string, ask events.OpenAsk) error {
	return a.print(map[string]events.OpenAsk{"ask": ask}, func(io.Writer) {
		a.table(nil, [][]string{append([]string{word}, a.askRow(ask)...)})
	})
}

func (a *app) tellAnswer(answer events.CallAnswered) error {
	return a.print(map[string]events.CallAnswered{"answer": answer}, func(io.Writer) {
		a.table(nil, [][]string{{"answered", answer.ToolCallID, string(answer.Decision), answer.Principal, answer.Reason}})
	})
}

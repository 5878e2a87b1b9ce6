package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

func newApprovalsCommand(a *app) *cobra.Command {
	cmd := parent(&cobra.Command{
		Use: "approvals", Aliases: []string{"approval", "asks"}, Short: "See and decide the calls that wait for people",
		Long: `See and decide the calls that wait for people: calls that need approval, tools that suspended themselves to ask
something, and calls in doubt, which were started and of which nobody knows whether they happened.

A call is named by its toolCallId, <runId>=<step>-<i>. The id of a run will do while exactly one call of it waits.
The first decision counts; who is second is told which one did, with exit code 4.`,
		Example: `  weir approvals ls
  weir approvals info order-1042=2-1
  weir approvals approve order-1042=2-1 --reason "known customer"
  weir approvals decline order-1042 --reason "wrong order"
  weir approvals resume order-1042=1-3 --data '{"directory": "eu"}'`,
	}, newAsksListCommand(a), newAskInfoCommand(a))
	for _, row := range decisionRows {
		cmd.AddCommand(row.command(a))
	}
	return cmd
}

func newAsksListCommand(a *app) *cobra.Command {
	var f client.Filter
	var kind string
	var watch bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the calls that wait", Args: cobra.NoArgs,
		Long: `List the calls that wait for people, the oldest first. With --watch the list goes on with what happens.

Columns: toolCallId, tool, kind (approval, suspended, in_doubt or client), agent, since when, until when, why and, where
several must approve, how many have. With --watch a line begins with asked, again (a reminder, or more people may decide)
or answered.

JSON: {"runs": [{"runId", "status", "agentId", "threadId", "resourceId", "suspendedAt", "toolCalls": [{"toolCallId",
"toolName", "args", "requiresApproval", "suspendPayload", "resumeSchema", "ask"}]}], "total"}, the latest run first. With
--watch a line for each event: {"ask"} or {"answer"}, those that wait already first.`,
		Example: `  weir approvals ls --agent support
  weir approvals ls --thread t-9 --resource bob
  weir approvals ls --watch
  weir approvals ls | cut -f1 | xargs -n1 weir approvals info`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.Kind = events.AskKind(kind)
			if watch {
				return a.watchAsks(cmd.Context(), f)
			}
			return a.listAsks(cmd.Context(), f)
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.Agent, "agent", "", "of this agent")
	set.StringVar(&f.Thread, "thread", "", "of this thread")
	set.StringVar(&f.Resource, "resource", "", "of this resource")
	set.StringVar(&f.Run, "run", "", "of this run")
	set.StringVar(&f.Tool, "tool", "", "of this tool")
	set.StringVar(&kind, "kind", "", "approval, suspended, in_doubt or client")
	set.IntVar(&f.PerPage, "per-page", 0, "length of a page; default everything")
	set.IntVar(&f.Page, "page", 0, "page, from 0")
	set.BoolVarP(&watch, "watch", "w", false, "go on with what happens")
	return cmd
}

func (a *app) listAsks(ctx context.Context, f client.Filter) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if a.json {
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
	rows := make([][]string, len(asks))
	for i, ask := range asks {
		rows[i] = a.askRow(ask)
	}
	if total == 0 {
		a.note("nothing waits")
		return nil
	}
	a.table([]string{"CALL", "TOOL", "KIND", "AGENT", "ASKED", "EXPIRES", "WHY"}, rows)
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
	if ask.Quorum != nil {
		why += " (" + approvals(ask.Quorum) + ")"
	}
	return []string{ask.ToolCallID, ask.ToolName, string(ask.Kind), ask.AgentID, a.when(ask.AskedAt), a.when(ask.ExpiresAt), why}
}

// watchAsks lists what waits, and then what happens. It begins to hear before it lists, so nothing is missed; what it
// has listed already is not told again.
func (a *app) watchAsks(ctx context.Context, f client.Filter) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	news, err := c.WatchAsks(ctx)
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	if !a.liveOnly {
		asks, _, err := c.Asks(ctx, f)
		if err != nil {
			return err
		}
		for _, ask := range asks {
			listed[roundOf(ask.ToolCallID, ask.Round)] = true
			if err := a.tellAsk("asked", ask); err != nil {
				return err
			}
		}
	}
	for n := range news {
		switch {
		case n.Answer != nil && (f.Run == "" || f.Run == n.Answer.RunID):
			err = a.tellAnswer(*n.Answer)
		case n.Ask == nil || !matches(f, *n.Ask):
		case n.Ask.Since != nil:
			err = a.tellAsk("again", n.Ask.Open())
		case !listed[roundOf(n.Ask.ToolCallID, n.Ask.Round)]:
			err = a.tellAsk("asked", n.Ask.Open())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func roundOf(toolCallID string, round int) string { return toolCallID + " " + strconv.Itoa(round) }

// matches reports whether a filter of the list takes an ask that was heard.
func matches(f client.Filter, ask events.CallHeld) bool {
	fits := func(want, is string) bool { return want == "" || want == is }
	return fits(f.Agent, ask.AgentID) && fits(f.Thread, ask.ThreadID) && fits(f.Resource, ask.ResourceID) &&
		fits(f.Run, ask.RunID) && fits(f.Tool, ask.ToolName) && fits(string(f.Kind), string(ask.Kind))
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

func newAskInfoCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "info CALL", Short: "Look at a call that waits", Args: cobra.ExactArgs(1),
		Long: `Look at a call that waits: its arguments as they are frozen, the rule that held it, and how it may be decided. A call
that was decided is refused with exit code 4 and says by whom.

JSON: the data of the ask (event call.held): {"toolCallId", "runId", "agentId", "round", "kind", "toolName", "args",
"fingerprint", "reason", "allowed", "suspendPayload", "resumeSchema", "effect", "askedAt", "expiresAt", …}.`,
		Example: `  weir approvals info order-1042=2-1
  weir approvals info order-1042 -o json | jq .args`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, stop, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			defer stop()
			ask, err := c.Ask(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(ask, func(w io.Writer) { a.printAsk(w, *ask) })
		},
	}
}

func (a *app) printAsk(w io.Writer, ask events.CallHeld) {
	allowed := make([]string, len(ask.Allowed))
	for i, d := range ask.Allowed {
		allowed[i] = string(d)
	}
	claimed := ""
	if ask.Claim != nil {
		claimed = fmt.Sprintf("by %s, %s, attempt %d", oneLine(ask.Claim.By), a.when(ask.Claim.At), ask.Claim.Attempt)
	}
	facts(w, [][2]string{
		{"call", ask.ToolCallID},
		{"tool", oneLine(ask.ToolID) + " " + oneLine(ask.ToolVersion)},
		{"kind", string(ask.Kind)},
		{"agent", oneLine(ask.AgentID)},
		{"thread", oneLine(ask.ThreadID)},
		{"resource", oneLine(ask.ResourceID)},
		{"round", strconv.Itoa(ask.Round)},
		{"effect", string(ask.Effect)},
		{"reason", oneLine(ask.Reason.Text)},
		{"rule", oneLine(ask.Reason.Rule)},
		{"rule failed", oneLine(ask.Reason.Error)},
		{"started", claimed},
		{"approvers", oneLine(strings.Join(ask.Approvers, ", "))},
		{"escalated to", oneLine(strings.Join(ask.EscalatedTo, ", "))},
		{"takes", strings.Join(allowed, ", ")},
		{"needs", a.needs(ask.Quorum)},
		{"asked", a.when(ask.AskedAt)},
		{"reminders", count(ask.Reminders)},
		{"escalates", a.escalates(ask)},
		{"expires", a.when(ask.ExpiresAt)},
		{"fingerprint", ask.Fingerprint},
		{"preview", compact(ask.Preview)},
	})
	_, _ = fmt.Fprintf(w, "\n%s\n", indented(ask.Args))
	if len(ask.SuspendPayload) > 0 {
		_, _ = fmt.Fprintf(w, "\nasks\n%s\n", indented(ask.SuspendPayload))
	}
	if len(ask.ResumeSchema) > 0 && ask.Kind != events.AskApproval {
		_, _ = fmt.Fprintf(w, "\ntakes data of this schema\n%s\n", indented(ask.ResumeSchema))
	}
}

// needs says how many approvals a call needs, and whose there are.
func (a *app) needs(q *events.Quorum) string {
	if q == nil {
		return ""
	}
	text := fmt.Sprintf("%d approvals", q.Need)
	for i, v := range q.Votes {
		sep := ", "
		if i == 0 {
			sep = "; so far "
		}
		text += fmt.Sprintf("%s%s (%s)", sep, oneLine(v.Principal), a.when(v.At))
	}
	return text
}

// escalates says who may decide next when nobody does.
func (a *app) escalates(ask events.CallHeld) string {
	if len(ask.Escalate) == 0 {
		return ""
	}
	next := ask.Escalate[0]
	if ask.OnExpiry == events.OnExpiryEscalate && next.At.After(ask.ExpiresAt) {
		next.At = ask.ExpiresAt
	}
	return fmt.Sprintf("%s, to %s", a.when(next.At), oneLine(strings.Join(next.To, ", ")))
}

// count is a number of things; none are not worth a word.
func count(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// decisionRow is a decision as a command.
type decisionRow struct {
	decision events.Decision
	short    string
	long     string
	data     string // what --data is; empty: the decision takes none
	example  string
}

// decisionRows is the table of them.
var decisionRows = []decisionRow{
	{
		events.Approve, "Let a call run", "The call runs with exactly the arguments that were asked about.", "",
		`  weir approvals approve order-1042=2-1 --reason "known customer"
  weir approvals approve order-1042 -w                                watch what comes of it
  weir approvals approve order-1042=2-1 --fingerprint sha256:5f0c9a…  only if it is still what you looked at`,
	},
	{
		events.Decline, "End a call without running it", "The model reads the reason and goes on without the call.", "",
		`  weir approvals decline order-1042=2-1 --reason "wrong order"`,
	},
	{
		events.Edit, "Let a call run with other arguments", "The new arguments go through the rules as any other's: they may be held again.",
		"the new arguments, a JSON object",
		`  weir approvals edit order-1042=2-1 --data '{"orderId": "1042", "amount": 500}'`,
	},
	{
		events.Respond, "Give a call its result yourself", "The tool does not run; the value is its result.", "the result, a JSON value",
		`  weir approvals respond order-1042=2-1 --data '{"refunded": false, "note": "paid by voucher"}'`,
	},
	{
		events.ResumeD, "Give a suspended tool what it waits for", "The tool is called again with the data.", "the data, a JSON value",
		`  weir approvals resume order-1042=1-3 --data '{"directory": "eu"}'
  weir approvals resume order-1042=1-3 --data @answer.json`,
	},
	{
		events.Retry, "Run a call in doubt again", "Find out first whether it has happened: it happens once more.", "",
		`  weir approvals retry order-1042=2-1 --reason "the ledger shows no refund"`,
	},
}

// decisionFlags are those of the commands that decide.
type decisionFlags struct {
	reason, data, fingerprint string
	round                     int
	watch                     bool
}

func (row decisionRow) command(a *app) *cobra.Command {
	var f decisionFlags
	cmd := &cobra.Command{
		Use: string(row.decision) + " CALL", Short: row.short, Example: row.example, Args: cobra.ExactArgs(1),
		Long: row.short + `. ` + row.long + `

What counts is the call as it waits at this moment, or, with --fingerprint or --round, only the one that you looked at:
another is refused as changed. Refused decisions (already_decided, changed, wrong_kind, invalid_data, forbidden, …) give
exit code 4 and leave the call as it was.

JSON: {"accepted", "toolCallId", "round", "state", "answer": {"decision", "principal", "at", "reason"}}; state is
released, finished, held (asked again), pending (counted, and more approvals are needed: "quorum": {"need", "votes":
[{"principal", "decision", "at"}]}) or sent (no gate has answered yet; accepted is null). With --watch the output of the
run, as "weir run -o json" prints it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.decide(cmd.Context(), row, args[0], f, cmd.Flags().Changed("round"))
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.reason, "reason", "", "why; kept in the record, and read by the model when declined")
	set.StringVar(&f.fingerprint, "fingerprint", "", "of the call that you looked at")
	set.IntVar(&f.round, "round", 0, "of the call that you looked at")
	set.BoolVarP(&f.watch, "watch", "w", false, "watch the run until it ends or is suspended again")
	if row.data != "" {
		set.StringVar(&f.data, "data", "", row.data+"; @FILE reads a file, - the standard input")
		_ = cmd.MarkFlagRequired("data") // the flag was just made
	}
	return cmd
}

func (a *app) decide(ctx context.Context, row decisionRow, id string, f decisionFlags, hasRound bool) error {
	d := client.Decision{Decision: row.decision, Reason: f.reason, Fingerprint: f.fingerprint}
	if hasRound {
		d.Round = &f.round
	}
	if row.data != "" {
		value, err := a.readData(f.data)
		if err != nil {
			return err
		}
		setData(&d, string(value))
	}
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := a.aim(ctx, c, id, &d); err != nil {
		return err
	}
	out, err := c.Decide(ctx, d)
	if err != nil {
		return err
	}
	return a.decided(ctx, c, out, f.watch)
}

// readData is the JSON value of --data.
func (a *app) readData(text string) (json.RawMessage, error) {
	raw := []byte(text)
	var err error
	switch name, file := strings.CutPrefix(text, "@"); {
	case text == "-":
		raw, err = io.ReadAll(a.in)
	case file:
		raw, err = os.ReadFile(name) //nolint:gosec // the user names it
	}
	if err != nil {
		return nil, usagef("--data: %w", err)
	}
	if !json.Valid(raw) {
		return nil, usagef("--data is no JSON value: %s (a text needs quotes: '\"text\"')", short(oneLine(string(raw)), 80))
	}
	return raw, nil
}

// aim names the call, and what of it is meant: what the flags say, else what waits at this moment.
func (a *app) aim(ctx context.Context, c *client.Client, id string, d *client.Decision) error {
	_, err := events.ParseCallID(id)
	isCall := err == nil
	if isCall {
		d.ToolCallID = id
	} else {
		d.RunID = id
	}
	if isCall && (a.liveOnly || d.Round != nil || d.Fingerprint != "") {
		return nil
	}
	ask, err := c.Ask(ctx, id)
	if err != nil {
		return err
	}
	d.ToolCallID = ask.ToolCallID
	if d.Round == nil && d.Fingerprint == "" {
		d.Round, d.Fingerprint = &ask.Round, ask.Fingerprint
	}
	return nil
}

// counted tells that a decision is one of several that are needed: the run waits on for the others.
func (a *app) counted(out *client.Outcome, watch bool) error {
	err := a.print(out, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "%s: counted, %s\n", out.ToolCallID, cmp.Or(approvals(out.Quorum), out.State))
	})
	if err == nil && watch {
		return &exit{code: exitSuspended}
	}
	return err
}

// approvals says how many of the approvals that a call needs there are.
func approvals(q *events.Quorum) string {
	if q == nil {
		return ""
	}
	return fmt.Sprintf("%d of %d approvals", len(q.Votes), q.Need)
}

// decided tells what became of a decision, and watches what comes of it when asked to.
func (a *app) decided(ctx context.Context, c *client.Client, out *client.Outcome, watch bool) error {
	if out.State == client.StateSent {
		if err := a.print(out, func(io.Writer) {}); err != nil {
			return err
		}
		return &exit{exitFailed, fmt.Errorf("the decision is stored, but no gate has answered; look again: weir approvals info %s",
			out.ToolCallID)}
	}
	if out.State == client.StatePending {
		return a.counted(out, watch)
	}
	if !watch || !a.json {
		err := a.print(out, func(w io.Writer) {
			_, _ = fmt.Fprintf(w, "%s: %s, %s\n", out.ToolCallID, out.Answer.Decision, out.State)
		})
		if err != nil || !watch {
			return err
		}
	}
	call, err := events.ParseCallID(out.ToolCallID)
	if err != nil {
		return err
	}
	s := a.screen(c.Run(call.Run))
	if at, err := time.Parse(time.RFC3339Nano, out.Answer.At); err == nil {
		s.since = at
	}
	return a.attend(ctx, c, s)
}

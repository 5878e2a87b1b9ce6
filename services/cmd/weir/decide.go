package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// decisionRow is a decision as a command.
type decisionRow struct {
	decision events.Decision
	short    string
	long     string
	data     string // what --data is; empty: the decision takes none
	many     bool   // it may be made about several calls at once
	example  string
}

// decisionRows is the table of them.
var decisionRows = []decisionRow{
	{
		events.Approve, "Let a call run", "The call runs with exactly the arguments that were asked about.", "", true,
		`  weir approvals approve order-1042=2-1 --reason "known customer"
  weir approvals approve order-1042 -w                                watch what comes of it
  weir approvals approve order-1042=2-1@sha256:5f0c9a…                only if it is still what you looked at
  weir approvals approve @reviewed.tsv                                those of "weir approvals ls --fingerprints"
  weir approvals approve order-1042=2-1 --grant thread --for 30m --uses 5 --when 'args.amount < 100.0'`,
	},
	{
		events.Decline, "End a call without running it", "The model reads the reason and goes on without the call.", "", true,
		`  weir approvals decline order-1042=2-1 --reason "wrong order"
  weir approvals ls --tool issue_refund --fingerprints | weir approvals decline - --reason "the shop is closed"`,
	},
	{
		events.Edit, "Let a call run with other arguments", "The new arguments go through the rules as any other's: they may be held again.",
		"the new arguments, a JSON object", false,
		`  weir approvals edit order-1042=2-1                                  in your editor
  weir approvals edit order-1042=2-1 --data '{"orderId": "1042", "amount": 500}'`,
	},
	{
		events.Respond, "Give a call its result yourself", "The tool does not run; the value is its result.", "the result, a JSON value", true,
		`  weir approvals respond order-1042=2-1 --data '{"refunded": false, "note": "paid by voucher"}'`,
	},
	{
		events.ResumeD, "Give a suspended tool what it waits for", "The tool is called again with the data.", "the data, a JSON value", false,
		`  weir approvals resume order-1042=1-3 --data '{"directory": "eu"}'
  weir approvals resume order-1042=1-3 --data @answer.json`,
	},
	{
		events.Retry, "Run a call in doubt again", "Find out first whether it has happened: it happens once more.", "", false,
		`  weir approvals retry order-1042=2-1 --reason "the ledger shows no refund"`,
	},
}

// decisionFlags are those of the commands that decide.
type decisionFlags struct {
	reason, data, fingerprint string
	round                     int
	hasRound                  bool
	watch                     bool
	grant                     *events.GrantTerms
}

const decisionHelp = `

What counts is the call as it waits at this moment, or, with --fingerprint, CALL@FINGERPRINT or --round, only the one that
you looked at: another is refused as changed. Refused decisions (already_decided, changed, wrong_kind, invalid_data,
forbidden, …) give exit code 4 and leave the call as it was.`

const grantHelp = `

With --grant the approval stands for calls like this one (the same agent and tool, in the same run or thread), for a time (--for),
a number of calls (--uses) and, with --when, for arguments that fulfil a condition: they are released as if you had approved
each when it came, as long as you may. "weir grants" lists such approvals and takes them back. JSON then also has "grantId".`

const manyHelp = `

Up to 100 calls may be named, each with the fingerprint of what you looked at: CALL@FINGERPRINT, or lines of toolCallId, tab,
fingerprint in a file (@FILE) or on the standard input (-), as "weir approvals ls --fingerprints" prints them. Each is decided
for itself and has a line of its own. The exit code is 0 when all were accepted, 4 when one was refused, 5 when none was
refused and one is not known, 2 when one was malformed, else 1.`

const decisionJSON = `

JSON: {"accepted", "toolCallId", "round", "state", "answer": {"decision", "principal", "at", "reason"}}; state is
released, finished, held (asked again), pending (counted, and more approvals are needed: "quorum": {"need", "votes":
[{"principal", "decision", "at"}]}) or sent (no gate has answered yet; accepted is null). With --watch the output of the
run, as "weir run -o json" prints it.`

const manyJSON = ` Of several calls, a line for each; one that was not accepted is {"accepted": false,
"toolCallId", "error": {"code", "error", …}}.`

const editHelp = `

Without --data the arguments are opened in your editor ($VISUAL, else $EDITOR), numbers exactly as they are. What has changed is
shown, and sent when you say so; what has not is not sent. Only the call that you opened can be edited so: if it is decided or
asked about anew in the meantime, the edit is refused.`

func (row decisionRow) command(a *app) *cobra.Command {
	var f decisionFlags
	use, args, long := "CALL", cobra.ExactArgs(1), decisionHelp+decisionJSON
	switch {
	case row.many:
		use, args, long = "CALL…", cobra.MinimumNArgs(1), decisionHelp+manyHelp+decisionJSON+manyJSON
	case row.decision == events.Edit:
		long = editHelp + decisionHelp + decisionJSON
	}
	var scope string
	var g grantFlags
	if row.decision == events.Approve {
		long = grantHelp + long
	}
	cmd := &cobra.Command{
		Use: string(row.decision) + " " + use, Short: row.short, Example: row.example, Args: args,
		Long: row.short + `. ` + row.long + long,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.hasRound = cmd.Flags().Changed("round")
			if row.decision == events.Approve {
				if err := f.setGrant(cmd, scope, g, args); err != nil {
					return err
				}
			}
			return a.decide(cmd.Context(), row, args, f)
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.reason, "reason", "", "why; kept in the record, and read by the model when declined")
	set.StringVar(&f.fingerprint, "fingerprint", "", "of the call that you looked at")
	set.IntVar(&f.round, "round", 0, "of the call that you looked at")
	set.BoolVarP(&f.watch, "watch", "w", false, "watch the run until it ends or is suspended again")
	if row.decision == events.Approve {
		set.StringVar(&scope, "grant", "", "run or thread: approve also later calls like this one, there")
		g.define(cmd)
	}
	if row.data != "" {
		set.StringVar(&f.data, "data", "", row.data+"; @FILE reads a file, - the standard input")
		if row.decision != events.Edit {
			_ = cmd.MarkFlagRequired("data") // the flag was just made
		}
	}
	return cmd
}

// setGrant takes the grant that an approval brings from its flags.
func (f *decisionFlags) setGrant(cmd *cobra.Command, scope string, g grantFlags, calls []string) error {
	switch {
	case scope == "" && g.given(cmd):
		return usagef("--for, --uses and --when are the terms of a grant: say --grant run or --grant thread")
	case scope == "":
		return nil
	case len(calls) > 1 || strings.HasPrefix(calls[0], "@") || calls[0] == "-":
		return usagef("--grant goes with one call: approve the others without")
	}
	t, err := g.terms(cmd, scope)
	f.grant = &t
	return err
}

func (a *app) decide(ctx context.Context, row decisionRow, args []string, f decisionFlags) error {
	calls, err := a.reviewed(row, args, f)
	if err != nil {
		return err
	}
	d := client.Decision{Decision: row.decision, Reason: f.reason, Grant: f.grant}
	if f.hasRound {
		d.Round = &f.round
	}
	if row.data != "" && f.data != "" {
		value, err := a.readData(f.data)
		if err != nil {
			return err
		}
		setData(&d, string(value))
	}
	inEditor := row.decision == events.Edit && f.data == ""
	if inEditor && !a.interactive() {
		return usagef("--data is needed where nobody sits at a terminal")
	}
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if len(calls) > 1 {
		return a.decideMany(ctx, c, calls, d)
	}
	d.Fingerprint = calls[0].fingerprint
	if inEditor {
		if err := a.editArgs(ctx, c, calls[0].id, &d); err != nil {
			return err
		}
	} else if err := a.aim(ctx, c, calls[0].id, &d); err != nil {
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
	if isCall && (d.Round != nil || d.Fingerprint != "") {
		return nil
	}
	ask, err := c.Ask(ctx, id)
	if code := events.CodeOf(err); isCall && a.liveOnly && (code == events.CodeForbidden || code == events.CodeUnavailable) {
		return nil // who can look at nothing decides what waits when the decision arrives
	}
	if err != nil {
		return err
	}
	d.ToolCallID = ask.ToolCallID
	if d.Round == nil && d.Fingerprint == "" {
		d.Round, d.Fingerprint = &ask.Round, ask.Fingerprint
	}
	return nil
}

// decided tells what became of a decision, and watches what comes of it when asked to.
func (a *app) decided(ctx context.Context, c *client.Client, out *client.Outcome, watch bool) error {
	if !watch || !a.json || out.State == client.StateSent || out.State == client.StatePending {
		if err := a.tellOutcome(outcome{id: out.ToolCallID, out: out}); err != nil {
			return err
		}
	}
	switch {
	case out.State == client.StateSent:
		return &exit{exitFailed, fmt.Errorf("the decision is stored, but no gate has answered; look again: weir approvals info %s",
			out.ToolCallID)}
	case !watch:
		return nil
	case out.State == client.StatePending: // the run waits on for the other votes
		return &exit{code: exitSuspended}
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

// approvals says how many of the approvals that a call needs there are.
func approvals(q *events.Quorum) string {
	if q == nil {
		return ""
	}
	return fmt.Sprintf("%d of %d approvals", len(q.Votes), q.Need)
}

// outcome is what became of a decision about a call: one of the two.
type outcome struct {
	id  string
	out *client.Outcome
	err error
}

// text is the outcome as a line.
func (o outcome) text() string {
	_, refused := errors.AsType[*events.Error](o.err)
	switch {
	case refused:
		return o.id + ": refused, " + o.err.Error()
	case o.err != nil:
		return o.id + ": failed, " + o.err.Error()
	case o.out.State == client.StatePending:
		return o.id + ": counted, " + cmp.Or(approvals(o.out.Quorum), o.out.State)
	case o.out.Answer == nil:
		return o.id + ": sent"
	}
	text := fmt.Sprintf("%s: %s, %s", o.id, o.out.Answer.Decision, cmp.Or(o.out.State, "accepted"))
	if o.out.GrantID != "" {
		text += ", grant " + o.out.GrantID
	}
	return text
}

// tellOutcome prints an outcome on a line of its own.
func (a *app) tellOutcome(o outcome) error {
	if !a.json {
		_, err := fmt.Fprintln(a.out, oneLine(o.text()))
		return err
	}
	if o.err == nil {
		return writeJSON(a.out, o.out)
	}
	return writeJSON(a.out, struct {
		Accepted   bool          `json:"accepted"`
		ToolCallID string        `json:"toolCallId"`
		Error      *events.Error `json:"error"`
	}{false, o.id, a.shownError(o.err)})
}

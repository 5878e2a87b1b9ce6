package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

func newGrantsCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{
		Use: "grants", Aliases: []string{"grant"}, Short: "See, give and take back approvals that stand",
		Long: `See, give and take back approvals that stand. A grant releases calls of one tool that an agent makes in one run, or in
one thread, without anybody who looks: for a time, for a number of calls, and, with a condition, for some arguments only. It
comes with an approval (weir approvals approve --grant) or is given here.

A grant does what its grantor would be allowed to do when the call comes, and no more: a call is still asked about when a rule
says grants: false, needs several approvals, leaves it to others, or could not be evaluated; a blocked one stays blocked. Each
call that it releases names it, and each use is in the record. Every principal that may do more than look may take a grant
back, whoever gave it.`,
		Example: `  weir grants ls
  weir grants give support issue_refund --thread t-9 --resource bob --for 30m --uses 5 --when 'args.amount < 100.0'
  weir grants info 0197c3a4-5b10-7000-8000-000000000011
  weir grants revoke 0197c3a4-5b10-7000-8000-000000000011 --reason "the sale is over"`,
	}, newGrantsListCommand(a), newGrantInfoCommand(a), newGiveGrantCommand(a), newRevokeGrantCommand(a))
}

const grantJSON = `{"id", "agentId", "toolId", "runId" or "threadId" and "resourceId", "terms": {"scope", "for", "uses", "when"},
"grantedBy", "authtype", "groups", "grantedAt", "expiresAt", "toolCallId" (whose approval brought it), "reason", "revoked":
{"by", "at", "reason"}, "state", "used", "lastUsedAt"}; state is active, spent, expired, revoked or sent (asked for; no gate
has answered yet)`

func newGrantsListCommand(a *app) *cobra.Command {
	var f client.GrantFilter
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the grants that are in force", Args: cobra.NoArgs,
		Long: `List the grants that are in force, the latest first. With --all also those that are spent, expired or revoked; they are kept
until shortly after they would have ended.

Columns: id, tool, agent, where (the run, or thread and resource), used of uses, until when, by whom, state, condition.

JSON: {"grants": [` + grantJSON + `], "total"}.`,
		Example: `  weir grants ls --thread t-9
  weir grants ls --by alice --all
  weir grants ls --tool issue_refund | cut -f1 | xargs -n1 weir grants revoke`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listGrants(cmd.Context(), f) },
	}
	set := cmd.Flags()
	set.StringVar(&f.Agent, "agent", "", "for this agent")
	set.StringVar(&f.Tool, "tool", "", "for this tool, by its canonical id")
	set.StringVar(&f.Run, "run", "", "for this run")
	set.StringVar(&f.Thread, "thread", "", "for this thread")
	set.StringVar(&f.Resource, "resource", "", "for this resource")
	set.StringVar(&f.By, "by", "", "given by this principal")
	set.BoolVar(&f.All, "all", false, "also those that are spent, expired or revoked")
	return cmd
}

func (a *app) listGrants(ctx context.Context, f client.GrantFilter) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	grants, err := c.Grants(ctx, f)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.out, struct {
			Grants []client.Grant `json:"grants"`
			Total  int            `json:"total"`
		}{grants, len(grants)})
	}
	switch {
	case len(grants) == 0 && f.All:
		a.note("there is no such grant")
		return nil
	case len(grants) == 0:
		a.note("no such grant is in force: --all shows those that were")
		return nil
	}
	rows := make([][]string, len(grants))
	for i, g := range grants {
		rows[i] = []string{
			g.ID, g.ToolID, g.AgentID, whereOf(g), usesOf(g), a.when(g.ExpiresAt), g.GrantedBy, string(g.State), g.Terms.When,
		}
	}
	a.table([]string{"GRANT", "TOOL", "AGENT", "WHERE", "USED", "EXPIRES", "BY", "STATE", "WHEN"}, rows)
	return nil
}

// whereOf says where a grant holds.
func whereOf(g client.Grant) string {
	switch {
	case g.Terms.Scope == events.ScopeRun:
		return "run " + g.RunID
	case g.ResourceID == "":
		return "thread " + g.ThreadID
	}
	return "thread " + g.ThreadID + " of " + g.ResourceID
}

// usesOf says how far a grant is used, as far as that is known.
func usesOf(g client.Grant) string {
	used := "?"
	if g.Used != nil {
		used = strconv.Itoa(*g.Used)
	}
	return used + " of " + strconv.Itoa(g.Terms.Uses)
}

func newGrantInfoCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "info GRANT", Short: "Look at a grant", Args: cobra.ExactArgs(1),
		Long: `Look at a grant: what it releases, who gave it and why, how far it is used, and who has taken it back.

JSON: ` + grantJSON + `.`,
		Example: `  weir grants info 0197c3a4-5b10-7000-8000-000000000011`,
		RunE:    look(a, (*client.Client).GrantInfo, a.printGrant),
	}
}

func (a *app) printGrant(w io.Writer, g client.Grant) {
	lastUsed, revoked := "", ""
	if g.LastUsed != nil {
		lastUsed = a.when(*g.LastUsed)
	}
	if g.Revoked != nil {
		revoked = fmt.Sprintf("by %s, %s", g.Revoked.By, a.when(g.Revoked.At))
		if g.Revoked.Reason != "" {
			revoked += ": " + g.Revoked.Reason
		}
	}
	facts(w, [][2]string{
		{"grant", g.ID},
		{"state", string(g.State)},
		{"tool", g.ToolID},
		{"agent", g.AgentID},
		{"where", whereOf(g)},
		{"when", g.Terms.When},
		{"used", usesOf(g)},
		{"last used", lastUsed},
		{"given by", g.GrantedBy},
		{"given", a.when(g.GrantedAt)},
		{"with call", g.ToolCallID},
		{"reason", g.Reason},
		{"expires", a.when(g.ExpiresAt)},
		{"revoked", revoked},
	})
}

// grantFlags are the terms of a grant.
type grantFlags struct {
	span time.Duration
	uses int
	when string
}

func (f *grantFlags) define(cmd *cobra.Command) {
	set := cmd.Flags()
	set.DurationVar(&f.span, "for", 0, fmt.Sprintf("how long the grant stands, such as 30m, up to %.0fh; default %.0fh",
		events.MaxGrantFor.Hours(), events.DefaultGrantFor.Hours()))
	set.IntVar(&f.uses, "uses", 0, fmt.Sprintf("how many calls the grant releases, up to %d; default %d",
		events.MaxGrantUses, events.DefaultGrantUses))
	set.StringVar(&f.when, "when", "", "condition of the grant, a CEL expression over args, such as args.amount < 100.0")
}

// given reports whether any of the flags was.
func (f *grantFlags) given(cmd *cobra.Command) bool {
	set := cmd.Flags()
	return set.Changed("for") || set.Changed("uses") || set.Changed("when")
}

// terms are those of the flags. Zero is no value here, but a default on the wire, so who types it is told.
func (f *grantFlags) terms(cmd *cobra.Command, scope string) (events.GrantTerms, error) {
	t := events.GrantTerms{Scope: scope, For: events.Duration(f.span), Uses: f.uses, When: f.when}
	_, refusal := t.Complete()
	switch set := cmd.Flags(); {
	case set.Changed("for") && f.span <= 0:
		return t, usagef("--for: use a time above 0")
	case set.Changed("uses") && f.uses <= 0:
		return t, usagef("--uses: use a number above 0")
	case refusal != nil:
		flag := strings.Replace(refusal.Issues[0].Field, "scope", "grant", 1)
		return t, usagef("--%s: %s", flag, refusal.Issues[0].Message)
	}
	return t, nil
}

func newGiveGrantCommand(a *app) *cobra.Command {
	var r client.GrantRequest
	var f grantFlags
	cmd := &cobra.Command{
		Use: "give AGENT TOOL", Short: "Give a grant before anything waits", Args: cobra.ExactArgs(2),
		Long: `Give a grant: from now on, calls of the tool that the agent makes in the run or thread are released as if you had approved
each when it came. TOOL is the canonical id of the tool, as "weir approvals info" shows it. Calls that wait already go on
waiting. A taken --id is refused with exit code 4; the same grant under the same id is given once.

JSON: ` + grantJSON + `.`,
		Example: `  weir grants give support issue_refund --thread t-9 --resource bob
  weir grants give deployer restart_service --run deploy-7 --for 30m --uses 3 --when 'args.env == "staging"'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Agent, r.Tool = args[0], args[1]
			scope := events.ScopeThread
			switch {
			case (r.Run == "") == (r.Thread == ""):
				return usagef("say where the grant holds: --run, or --thread and --resource")
			case r.Run != "" && r.Resource != "":
				return usagef("--resource goes with --thread")
			case r.Run != "":
				scope = events.ScopeRun
			}
			terms, err := f.terms(cmd, scope)
			if err != nil {
				return err
			}
			r.Terms = terms
			return a.onGrant(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Grant, error) {
				return c.Grant(ctx, r)
			})
		},
	}
	set := cmd.Flags()
	set.StringVar(&r.Run, "run", "", "in this run, which need not have begun")
	set.StringVar(&r.Thread, "thread", "", "in all runs of this thread")
	set.StringVar(&r.Resource, "resource", "", "of this resource; default that of threads without one")
	set.StringVar(&r.Reason, "reason", "", "why; kept with the grant and each use of it")
	set.StringVar(&r.ID, "id", "", "of the grant; default a new one")
	f.define(cmd)
	return cmd
}

func newRevokeGrantCommand(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "revoke GRANT", Aliases: []string{"rm"}, Short: "Take a grant back", Args: cobra.ExactArgs(1),
		Long: `Take a grant back, whoever gave it: from the next call on nothing is released by it. Calls that it has released go on. One
that was taken back before stays as it was.

JSON: ` + grantJSON + `.`,
		Example: `  weir grants revoke 0197c3a4-5b10-7000-8000-000000000011 --reason "the sale is over"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onGrant(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Grant, error) {
				return c.Revoke(ctx, args[0], reason)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the grant")
	return cmd
}

// onGrant asks something of a grant and tells how the grant stands then.
func (a *app) onGrant(ctx context.Context, ask func(context.Context, *client.Client) (*client.Grant, error)) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	g, err := ask(ctx, c)
	if err != nil {
		return err
	}
	err = a.print(g, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s: %s\n", oneLine(g.ID), g.State) })
	if err == nil && g.State == client.GrantSent && !a.liveOnly {
		return &exit{exitFailed, errors.New("the request is stored, but no gate has answered; look again: weir grants info " + g.ID)}
	}
	return err
}

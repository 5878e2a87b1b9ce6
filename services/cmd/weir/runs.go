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

func newRunsCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{
		Use: "runs", Short: "List, look at, watch and cancel runs",
		Long: `List, look at, watch and cancel runs, those of others too. Runs are listed for as long as the log holds them (24 h
after their end by default); those that wait for a decision are held for ever.`,
		Example: `  weir runs ls --status suspended
  weir runs info <runId>
  weir runs watch <runId>
  weir runs cancel <runId> --reason "wrong customer"`,
	}, newRunsListCommand(a), newRunsInfoCommand(a), newRunsWatchCommand(a), newRunsCancelCommand(a))
}

func newRunsListCommand(a *app) *cobra.Command {
	var f client.RunsFilter
	var status string
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List recent runs", Args: cobra.NoArgs,
		Long: `List recent runs, the latest first.

Columns: id, agent, status (running, suspended or ended), how it ended, steps, start.

JSON: {"runs": [a run as "weir runs info" prints it], "more": true when there are others}.`,
		Example: `  weir runs ls
  weir runs ls --agent support --status suspended --limit 100
  weir runs ls --status running | cut -f1`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch f.Status = client.Status(status); f.Status {
			case "", client.StatusRunning, client.StatusSuspended, client.StatusEnded:
			default:
				return usagef("--status %s: use running, suspended or ended", status)
			}
			return a.listRuns(cmd.Context(), f)
		},
	}
	cmd.Flags().StringVar(&f.Agent, "agent", "", "runs of this agent")
	cmd.Flags().StringVar(&status, "status", "", "running, suspended or ended")
	cmd.Flags().IntVar(&f.Limit, "limit", 20, "how many at most")
	return cmd
}

func (a *app) listRuns(ctx context.Context, f client.RunsFilter) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	runs, more, err := c.Runs(ctx, f)
	if err != nil {
		return err
	}
	list := struct {
		Runs []client.Info `json:"runs"`
		More bool          `json:"more"`
	}{runs, more}
	return a.print(list, func(io.Writer) {
		rows := make([][]string, len(runs))
		for i, r := range runs {
			rows[i] = []string{r.RunID, r.AgentID, string(r.Status), outcomeOf(r), strconv.Itoa(r.Steps), a.when(r.StartedAt)}
		}
		a.table([]string{"RUN", "AGENT", "STATUS", "OUTCOME", "STEPS", "STARTED"}, rows)
		if more {
			a.note("there are more: --limit")
		}
	})
}

// outcomeOf says how a run ended, or what it waits for.
func outcomeOf(r client.Info) string {
	switch {
	case r.Error != nil:
		return string(r.Outcome) + ": " + string(r.Error.Code)
	case r.Status == client.StatusSuspended:
		return counted(len(r.Asks), "ask")
	}
	return string(r.Outcome)
}

func newRunsInfoCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "info RUN", Short: "Look at a run", Args: cobra.ExactArgs(1),
		Long: `Look at a run: what it is doing or how it ended, the calls of its last step, and what waits for people.

JSON: {"runId", "rootRunId", "agentId", "threadId", "resourceId", "requester", "status", "startedAt", "endedAt", "steps",
"usage", "outcome", "finishReason", "limit", "text", "error", "cancel", "resumes", "calls": [{"toolCallId", "toolName", "state",
"round", "outcome"}], "asks": [the asks that wait]}. status is running, suspended or ended; a call's state is open, held,
released, running or finished. resumes are the runs that go on in its place, when its message was what they waited for.`,
		Example: `  weir runs info order-1042
  weir runs info order-1042 -o json | jq -r '.asks[].toolCallId'`,
		RunE: look(a, (*client.Client).Info, a.printInfo),
	}
}

// look makes a command that shows the one thing that its argument names.
func look[T any](
	a *app, get func(*client.Client, context.Context, string) (*T, error), show func(io.Writer, T),
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, stop, err := a.client(cmd.Context())
		if err != nil {
			return err
		}
		defer stop()
		found, err := get(c, cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return a.print(found, func(w io.Writer) { show(w, *found) })
	}
}

func (a *app) printInfo(w io.Writer, r client.Info) {
	failed, ended := "", ""
	if r.Error != nil {
		failed = oneLine(r.Error.Error())
	}
	if r.EndedAt != nil {
		ended = a.when(*r.EndedAt)
	}
	cancelled := ""
	if r.Cancel != nil {
		cancelled = oneLine("by " + r.Cancel.By + ": " + r.Cancel.Reason)
	}
	facts(w, [][2]string{
		{"run", r.RunID},
		{"agent", oneLine(r.AgentID)},
		{"thread", oneLine(r.ThreadID)},
		{"resource", oneLine(r.ResourceID)},
		{"requester", oneLine(r.Requester)},
		{"status", string(r.Status)},
		{"outcome", string(r.Outcome)},
		{"finish reason", r.FinishReason},
		{"limit", r.Limit},
		{"error", failed},
		{"cancelled", cancelled},
		{"resumes", strings.Join(r.Resumes, " ")},
		{"steps", strconv.Itoa(r.Steps)},
		{"tokens", strconv.Itoa(r.Usage.TotalTokens)},
		{"cost", amount(r.Usage.Cost())},
		{"started", a.when(r.StartedAt)},
		{"ended", ended},
	})
	for _, call := range r.Calls {
		state := call.State
		if call.Outcome != "" {
			state += ", " + string(call.Outcome)
		}
		_, _ = fmt.Fprintf(w, "call %s  %s  %s\n", call.ToolCallID, oneLine(call.ToolName), state)
	}
	if r.Text != "" {
		_, _ = fmt.Fprintf(w, "\n%s\n", plain(r.Text))
	}
}

func newRunsWatchCommand(a *app) *cobra.Command {
	var after uint64
	var until bool
	cmd := &cobra.Command{
		Use: "watch RUN", Short: "Watch a run until it ends", Args: cobra.ExactArgs(1),
		Long: `Watch a run from its beginning, or from a cursor, until it ends. It is not suspended by a call that waits for a person;
with --until-suspended watching ends there, with exit code 3. A run that failed or was cancelled gives exit code 1.

JSON: a line for each chunk: {"type", "runId", "from", "payload", "step", "attempt", "cursor", "time"}. A line
{"type": "gap"} stands for chunks that are no longer stored.`,
		Example: `  weir runs watch order-1042
  weir runs watch order-1042 --after 4182 -o json     go on where another watcher stopped`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, stop, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			defer stop()
			if a.json {
				return a.watchJSON(cmd.Context(), c.Run(args[0]), after, until)
			}
			return a.watch(cmd.Context(), c, c.Run(args[0]), after, until)
		},
	}
	cmd.Flags().Uint64Var(&after, "after", 0, "cursor to go on from")
	cmd.Flags().BoolVar(&until, "until-suspended", false, "end when the run is suspended")
	return cmd
}

func (a *app) watch(ctx context.Context, c *client.Client, run *client.Run, after uint64, until bool) error {
	if err := a.known(ctx, c, run); err != nil {
		return err
	}
	s := a.screen(run)
	for {
		out, err := s.follow(ctx, after)
		if err != nil {
			return err
		}
		if out.FinishReason != client.FinishSuspended || until {
			return a.ending(out)
		}
		a.note("suspended: %s waiting", counted(len(out.Asks), "call"))
		after = out.Cursor
	}
}

// known makes sure that there is such a run, so that nobody watches what will never be.
func (a *app) known(ctx context.Context, c *client.Client, run *client.Run) error {
	_, err := c.Info(ctx, run.ID)
	if events.CodeOf(err) == events.CodeNotFound {
		return err
	}
	return nil // who may not look may watch
}

// timedChunk is a chunk with its place in the stream.
type timedChunk struct {
	events.Chunk
	Cursor uint64    `json:"cursor"`
	Time   time.Time `json:"time,omitzero"`
}

func (a *app) watchJSON(ctx context.Context, run *client.Run, after uint64, until bool) error {
	fold := run.Fold()
	for ch, err := range run.Follow(ctx, after, &client.FollowOptions{UntilSuspended: until, Withdrawn: true}) {
		if errors.Is(err, client.ErrGap) {
			ch.Type = "gap"
		} else if err != nil {
			return err
		}
		fold.Add(ch)
		if err := writeJSON(a.out, timedChunk{ch, ch.Cursor, ch.Time}); err != nil {
			return err
		}
	}
	return a.ending(fold.Output())
}

func newRunsCancelCommand(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "cancel RUN", Short: "End a run", Args: cobra.ExactArgs(1),
		Long: `End a run in whatever state it is: its open calls get a cancelled result, then the run ends. A tool that is running is
told to stop; what it has done by then stays done. A run that is over is refused, with exit code 4.

JSON: {"runId", "outcome"}; outcome is cancelled, or completed or failed when the run was faster.`,
		Example: `  weir runs cancel order-1042 --reason "wrong customer"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, stop, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			defer stop()
			outcome, err := c.Cancel(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return a.print(map[string]string{"runId": args[0], "outcome": string(outcome)}, func(w io.Writer) {
				_, _ = fmt.Fprintf(w, "run %s: %s\n", args[0], outcome)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept in the record")
	return cmd
}

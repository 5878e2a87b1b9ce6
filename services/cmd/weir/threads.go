package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

func newThreadsCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{
		Use: "threads", Aliases: []string{"thread"}, Short: "See what was said in conversations",
		Long: `See what was said in conversations. A thread is a conversation of a resource (its owner: a user, a ticket) over many runs.
Runs of agents with memory write into it what they were asked, each settled step, and how they ended, and recall of it what
was said before:

  agents:
    support: {model: openai/gpt-5, memory: {lastMessages: 10}}

Of calls a thread shows what the transcript form of their tools shows. Calls that wait for people are added on reading; they
are no part of the thread until they are settled.`,
		Example: `  weir run support "Where is order 7?" --thread t-9 --resource bob
  weir threads ls --resource bob
  weir threads messages t-9 --resource bob
  weir threads rm t-9 --resource bob`,
	}, newThreadsListCommand(a), newThreadMessagesCommand(a), newDeleteThreadCommand(a))
}

func newThreadsListCommand(a *app) *cobra.Command {
	var f client.ThreadFilter
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List conversations", Args: cobra.NoArgs,
		Long: `List conversations, the one written last first.

Columns: thread, resource, agent that wrote last, runs, when it was written last.

JSON: {"threads": [{"threadId", "resourceId", "agentId", "createdAt", "updatedAt", "runs"}], "total"}; total counts all pages.`,
		Example: `  weir threads ls --resource bob
  weir threads ls --agent support --per-page 20 --page 1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listThreads(cmd.Context(), f) },
	}
	set := cmd.Flags()
	set.StringVar(&f.Agent, "agent", "", "to which this agent wrote last")
	set.StringVar(&f.Resource, "resource", "", "of this resource")
	set.IntVar(&f.PerPage, "per-page", 0, "so many at once; default all")
	set.IntVar(&f.Page, "page", 0, "which of these pages, from 0")
	return cmd
}

func (a *app) listThreads(ctx context.Context, f client.ThreadFilter) error {
	if f.Page < 0 || f.PerPage < 0 {
		return usagef("--page and --per-page: use numbers from 0")
	}
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	threads, total, err := c.ListThreads(ctx, f)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.out, struct {
			Threads []client.ThreadInfo `json:"threads"`
			Total   int                 `json:"total"`
		}{threads, total})
	}
	if len(threads) == 0 {
		a.note("there is no such thread: runs of agents with memory write them")
		return nil
	}
	rows := make([][]string, len(threads))
	for i, t := range threads {
		rows[i] = []string{t.ThreadID, t.ResourceID, t.AgentID, strconv.Itoa(t.Runs), a.when(t.UpdatedAt)}
	}
	a.table([]string{"THREAD", "RESOURCE", "AGENT", "RUNS", "WRITTEN"}, rows)
	return nil
}

func newThreadMessagesCommand(a *app) *cobra.Command {
	var resource string
	var page, perPage int
	cmd := &cobra.Command{
		Use: "messages THREAD", Aliases: []string{"show"}, Short: "Read a conversation", Args: cobra.ExactArgs(1),
		Long: `Read a conversation, oldest message first; calls that wait for people come last.

Columns: when, run, who (user, assistant, tool), what: a text, a call with its arguments, or a result with how the call ended
(result, output-error, output-denied), and of a call that waits what it waits for.

JSON: {"messages": [{"id", "role", "createdAt", "threadId", "resourceId", "runId", "agentId", "parts", "metadata":
{"pendingToolApprovals" and "suspendedTools", by toolCallId: {"toolCallId", "toolName", "runId", "type", "kind", "args",
"suspendPayload", "resumeSchema", "expiresAt"}}}], "total"}; total counts all pages.`,
		Example: `  weir threads messages t-9 --resource bob
  weir threads messages t-9 --resource bob -o json | jq -r '.messages[].metadata.pendingToolApprovals // {} | keys[]'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if page < 0 || perPage < 0 {
				return usagef("--page and --per-page: use numbers from 0")
			}
			return a.showThread(cmd.Context(), client.Thread{ResourceID: resource, ThreadID: args[0]}, page, perPage)
		},
	}
	set := cmd.Flags()
	set.StringVar(&resource, "resource", "", "owner of the thread; default that of threads without one")
	set.IntVar(&perPage, "per-page", 0, "so many at once; default all")
	set.IntVar(&page, "page", 0, "which of these pages, from 0")
	return cmd
}

func (a *app) showThread(ctx context.Context, t client.Thread, page, perPage int) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	messages, err := c.Messages(ctx, t, page, perPage)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.out, messages)
	}
	var rows [][]string
	for _, m := range messages.Messages {
		for _, p := range m.Parts {
			rows = append(rows, []string{a.when(m.CreatedAt), m.RunID, string(m.Role), partText(m, p)})
		}
	}
	a.table([]string{"WHEN", "RUN", "WHO", "WHAT"}, rows)
	return nil
}

// waitsFor says what a call waits for, if it does.
func waitsFor(m *client.MessageMetadata, toolCallID string) string {
	if m == nil {
		return ""
	}
	for _, of := range []map[string]client.WaitingCall{m.PendingToolApprovals, m.SuspendedTools} {
		if w, ok := of[toolCallID]; ok {
			return ", waits: " + string(w.Kind)
		}
	}
	return ""
}

// partText is a part of a message in a line.
func partText(m client.ThreadMessage, p events.Part) string {
	switch p.Type {
	case events.PartToolCall:
		return fmt.Sprintf("calls %s %s (%s)%s", p.ToolName, p.Args, p.ToolCallID, waitsFor(m.Metadata, p.ToolCallID))
	case events.PartToolResult:
		switch {
		case p.Output != nil:
			return fmt.Sprintf("%s %s: %s", p.ToolName, p.State, p.Output.Value)
		default:
			return fmt.Sprintf("%s %s: %d bytes", p.ToolName, p.State, p.Size)
		}
	case events.PartFile:
		return fmt.Sprintf("[file %s %s]", p.MediaType, p.Filename)
	case events.PartReasoning:
		return "[thinks] " + p.Text
	}
	return p.Text
}

func newDeleteThreadCommand(a *app) *cobra.Command {
	var resource, reason string
	var all bool
	cmd := &cobra.Command{
		Use: "rm [THREAD]", Aliases: []string{"delete"}, Short: "Delete a conversation, or all of a resource", Args: cobra.MaximumNArgs(1),
		Long: `Delete a conversation, or with --all every conversation of a resource. At once: what was said goes, and what tools keep for it
(task lists); its grants are taken back; its open runs are cancelled, and with them go their entries among what waits. What is
asked for afterwards begins the thread anew.

What runs have left in the log, in the chunks and in the record lets go by age; the command says after how long. It says
"unlimited" of a store that has no age.

Who may: the subject weir.<ns>.in.thread.<principal>.> lets a principal delete; one that has scopes needs start or admin.

JSON: {"resourceId", "threadId", "all", "kept": {"runs", "chunks", "audit", "blobs"}}; kept are time spans.`,
		Example: `  weir threads rm t-9 --resource bob
  weir threads rm --all --resource bob --reason "asked by mail, 30 November"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			t := client.Thread{ResourceID: resource}
			switch {
			case all && len(args) > 0:
				return usagef("name a thread, or say --all")
			case all && resource == "":
				return usagef("--all needs --resource: whose conversations are deleted")
			case !all && len(args) == 0:
				return usagef("name a thread, or say --all --resource for every one of a resource")
			case !all:
				t.ThreadID = args[0]
			}
			return a.deleteThread(cmd.Context(), t, all, reason)
		},
	}
	set := cmd.Flags()
	set.StringVar(&resource, "resource", "", "owner of the thread; default that of threads without one")
	set.BoolVar(&all, "all", false, "every thread of the resource")
	set.StringVar(&reason, "reason", "", "why, for the record")
	return cmd
}

func (a *app) deleteThread(ctx context.Context, t client.Thread, all bool, reason string) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	d, err := c.DeleteThread(ctx, t, all, reason)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.out, d)
	}
	what := "thread " + t.ThreadID
	if all {
		what = "all threads of " + t.ResourceID
	}
	var kept []string
	for _, stream := range slices.Sorted(maps.Keys(d.Kept)) {
		kept = append(kept, stream+" "+d.Kept[stream])
	}
	_, err = fmt.Fprintf(a.out, "%s: deleted; what runs have left elsewhere is kept: %s\n", oneLine(what), strings.Join(kept, ", "))
	return err
}

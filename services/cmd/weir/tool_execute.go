package main

import (
	"cmp"
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
	"github.com/weirkeeper/weir/services/client"
)

const toolExecuteHelp = `Call one tool, without an agent, and print its output as it came.

JSON are its arguments, an object: '{"orderId":"1042"}'; without it they are {}, and - reads them from the standard input. The
form of Mastra is taken too: '{"data": {…}}', and '{"data": {…}, "requestContext": {…}}'. So a tool whose arguments are "data"
alone is called with '{"data": {"data": …}}'.

The call is a run of its own, and goes the way of any other: it is validated, judged by the rules, and held when they or the
tool say so. Then you are asked at a terminal; without one the command ends with exit code 3 and says how to decide. The call
waits, and goes on whichever way it is decided. It also goes on when this command is stopped.

--run ID without JSON waits again for a call that was held, and prints its output once there is one; nothing is started. With
JSON it is the id of the new run: the same call with the same id is the same run, for as long as the log remembers it (24 h
by default).

Exit codes: 1 the tool failed, 3 it waits, 4 it was declined, blocked or expired, or its arguments do not fit; then what is
wrong with which field is on the standard output, as an object. 5 there is no such tool.

JSON (-o json): {"runId", "toolCallId", "outcome", "started", "result"}; outcome is ok, responded (a person's answer in place
of the tool's) or invalid. Of a call that waits: {"error": true, "code": "suspended", "message", "runId", "toolCallId", "status",
"asks"}. Of one that failed, on the standard error: {"code": "tool_failed", "error", "outcome", "started", "reason", "runId",
"toolCallId"}. With --schema: the schema.`

const toolExecuteExample = `  weir tool execute lookup_order '{"orderId":"1042"}'
  weir tool execute lookup_order --schema                     what it takes
  weir tool execute issue_refund '{"orderId":"1042","amount":612.5}' --run refund-1042
  weir tool execute issue_refund --run refund-1042            its output, once somebody has approved
  weir tool execute lookup_order - < args.json | jq .amount`

// executeFlags are those of weir tool execute.
type executeFlags struct {
	schema, requireApproval            bool
	run, thread, resource, contextJSON string
	wait                               time.Duration
}

func newToolExecuteCommand(a *app) *cobra.Command {
	var f executeFlags
	cmd := &cobra.Command{
		Use: "execute TOOL [JSON]", Aliases: []string{"call"}, Short: "Call a tool, without an agent", Long: toolExecuteHelp,
		Example: toolExecuteExample, Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.schema {
				return a.printSchema(cmd, args[0], "input")
			}
			req, err := f.request(a, args[0], args[1:])
			if err != nil {
				return err
			}
			return a.executeTool(cmd.Context(), req, len(args) == 1 && f.run != "")
		},
	}
	set := cmd.Flags()
	set.BoolVar(&f.schema, "schema", false, "print the schema of the arguments and call nothing")
	set.StringVar(&f.run, "run", "", "id of the run: of one that waits, or of the new one")
	set.DurationVar(&f.wait, "wait", 0, "how long to wait for the output; then the exit code is 3; default as long as it takes")
	set.StringVar(&f.thread, "thread", "", "conversation in which grants count for the call")
	set.StringVar(&f.resource, "resource", "", "owner of the thread")
	set.StringVar(&f.contextJSON, "context-json", "", "request context, a JSON object: for rules and tools")
	set.BoolVar(&f.requireApproval, "require-approval", false, "the call waits for a person, whatever the tool says")
	return cmd
}

// request is what the flags and the arguments of the command ask for.
func (f executeFlags) request(a *app, tool string, input []string) (client.ToolRequest, error) {
	req := client.ToolRequest{Tool: tool, RunID: f.run, ThreadID: f.thread, ResourceID: f.resource, Wait: f.wait}
	if f.wait < 0 {
		return req, usagef("--wait: use a time above 0")
	}
	if f.requireApproval {
		req.RequireToolApproval = &events.Approval{Always: true}
	}
	if f.contextJSON != "" {
		if !isObject(json.RawMessage(f.contextJSON)) {
			return req, usagef("--context-json is no JSON object: %s", short(f.contextJSON, 80))
		}
		req.Context = json.RawMessage(f.contextJSON)
	}
	if len(input) == 0 {
		return req, nil
	}
	text := input[0]
	if text == "-" {
		read, err := io.ReadAll(a.in)
		if err != nil {
			return req, fmt.Errorf("read the arguments: %w", err)
		}
		text = string(read)
	}
	args, given, err := toolInput(text)
	if err != nil {
		return req, err
	}
	req.Args = args
	if given != nil {
		if req.Context != nil {
			return req, usagef("give requestContext or --context-json, not both")
		}
		req.Context = given
	}
	return req, nil
}

// toolInput reads the arguments of a call, bare or in the form {"data": …, "requestContext": …}.
func toolInput(text string) (args, given json.RawMessage, err error) {
	raw := json.RawMessage(strings.TrimSpace(text))
	if err := events.CheckJSON(raw); err != nil {
		return nil, nil, usagef("the arguments are no JSON: %v", err)
	}
	if !isObject(raw) {
		return nil, nil, usagef("the arguments are no JSON object: %s", short(text, 80))
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, nil, usagef("the arguments are no JSON object: %v", err)
	}
	data, wrapped := fields["data"]
	given = fields["requestContext"]
	delete(fields, "data")
	delete(fields, "requestContext")
	if !wrapped || len(fields) > 0 {
		return raw, nil, nil
	}
	if given != nil && !isObject(given) {
		return nil, nil, usagef("requestContext is no JSON object: %s", short(string(given), 80))
	}
	return data, given, nil
}

func isObject(raw json.RawMessage) bool {
	var object map[string]json.RawMessage
	return json.Unmarshal(raw, &object) == nil && object != nil
}

// executeTool calls a tool, or only waits for one that was called, and asks the person at the terminal when it is held.
func (a *app) executeTool(ctx context.Context, req client.ToolRequest, later bool) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	ask := (*client.Client).Execute
	if later {
		ask = (*client.Client).ToolOutput
	}
	req.RunID = cmp.Or(req.RunID, events.NewID(time.Now())) // so that it is known when this is stopped
	a.note("run %s", req.RunID)
	for decided := ""; ; {
		out, err := ask(c, ctx, req)
		waits, held := errors.AsType[*client.SuspendedError](err)
		if !held || len(waits.Asks) == 0 || !a.interactive() || a.liveOnly || waits.Asks[0].Ask.Fingerprint == decided {
			return a.toolEnding(ctx, c, req, out, err) // the last: it waits for others, too
		}
		decided = waits.Asks[0].Ask.Fingerprint
		err = a.decideAll(ctx, c, waits.Asks)
		if errors.Is(err, errLeft) {
			a.note("left to others; the call waits: weir approvals ls --run %s", req.RunID)
			return &exit{code: exitSuspended}
		}
		if err != nil {
			return err
		}
		ask = (*client.Client).ToolOutput
	}
}

// toolEnding prints what a call has brought, and gives the exit code.
func (a *app) toolEnding(ctx context.Context, c *client.Client, req client.ToolRequest, out *client.ToolOutput, err error) error {
	if waits, ok := errors.AsType[*client.SuspendedError](err); ok {
		return a.toolWaits(req, waits)
	}
	if failed, ok := errors.AsType[*client.ToolFailedError](err); ok {
		code := exitFailed
		if slices.Contains([]events.Outcome{events.OutcomeDeclined, events.OutcomeExpired, events.OutcomeBlocked}, failed.Outcome) {
			code = exitRefused
		}
		if a.json {
			_ = writeJSON(a.err, failed) // nobody is left to tell
			return &exit{code: code}
		}
		return &exit{code, failed}
	}
	if err != nil {
		return keyHint(ctx, c, req.Tool, err)
	}
	if a.json {
		err = writeJSON(a.out, out)
	} else {
		err = a.printValue(out.Result)
	}
	switch {
	case err != nil || out.Outcome != events.OutcomeInvalid:
		return err
	case out.Started: // its own output is wrong
		return &exit{code: exitFailed}
	}
	return &exit{code: exitRefused}
}

// toolWaits says that a call waits, for whom, and how its output is got later.
func (a *app) toolWaits(req client.ToolRequest, waits *client.SuspendedError) error {
	if a.json {
		if err := writeJSON(a.out, waits); err != nil {
			return err
		}
		return &exit{code: exitSuspended}
	}
	if len(waits.Asks) > 0 {
		a.tellHow(&client.Output{RunID: waits.RunID, Asks: waits.Asks})
	} else {
		_, _ = fmt.Fprintf(a.err, "run %s has not finished\n", waits.RunID) // nobody reads it
	}
	_, _ = fmt.Fprintf(a.err, "its output, later: weir tool execute %s --run %s\n", oneLine(req.Tool), waits.RunID)
	return &exit{code: exitSuspended}
}

// keyHint tells who has named a tool by an agent's key what its id is.
func keyHint(ctx context.Context, c *client.Client, tool string, err error) error {
	e, ok := errors.AsType[*events.Error](err)
	if !ok || e.Code != events.CodeNotFound || e.What != "tool" {
		return err
	}
	meant, lookErr := c.Tool(ctx, tool)
	if lookErr != nil {
		return err // the look was only a help
	}
	hint := *e
	hint.Message += fmt.Sprintf("; %s is a key of the tool %s: name that", tool, meant.ID)
	return &hint
}

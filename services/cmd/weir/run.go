package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

const runHelp = `Start a run of an agent and watch it until it ends.

What the model says goes to the standard output; its tool calls and their results are shown beside, one line each. When a
call waits for a person, you are asked at a terminal: approve it, decline it with a reason, look at its arguments, or
leave it. Without a terminal the command ends with exit code 3 and says how to decide; the run waits, and goes on
whichever way it is decided. It also goes on when this command is stopped.

With --auto-resume, or when the agent says so (autoResumeSuspendedTools), the prompt may be what a tool of an earlier run of
the same --thread and --resource waits for: then that run goes on with it and is watched, and no other begins. The earlier
run must have allowed it too. Approvals are never given that way.

With --schema the run is asked for a JSON value that fits the JSON Schema in a file. It is what is printed, in place of what the
model says; a run whose model gives none that fits fails.

JSON: the output of the run: {"runId", "text", "object", "usedFallbackValue", "finishReason", "usage", "steps", "toolCalls",
"toolResults", "asks", "suspendPayload", "resumeSchema", "resumed", "error", "limit", "cursor"}. finishReason is suspended when a call waits; then
asks has every call that does. resumed are the runs that the prompt let go on: then the output is that of the first of them.
With --detach: {"runId"}.

With --until-idle the command also waits for calls that the run left running in the background when it ended, and shows their
results.`

const runExample = `  weir run support "Refund order 1042"
  weir run support "Refund order 1042" -o json | jq .text
  cat letter.txt | weir run support -                        the prompt from the standard input
  weir run support "Where is order 7?" --thread t-9 --resource bob
  weir run support "Rome, please" --thread t-9 --auto-resume  answer what a tool asked in that thread, if it did
  weir run support "Refund order 1042" --detach              print the run's id and return
  weir run support "Who is order 7 for?" --schema customer.json | jq .name
  weir run support "Index the shop" --until-idle             wait for what runs in the background, too
  weir run support "Refund order 1042" --require-approval    every call waits for a person`

// runFlags are those of weir run.
type runFlags struct {
	detach, requireApproval         bool
	untilIdle                       bool
	autoResume                      *bool
	thread, resource, runID, model  string
	contextJSON, instructions, tool string
	schema                          string
	maxSteps                        int
	lastMessages                    *int
}

func newRunCommand(a *app) *cobra.Command {
	var f runFlags
	var autoResume bool
	var lastMessages int
	cmd := &cobra.Command{
		Use: "run AGENT PROMPT", Short: "Start a run and watch it", Long: runHelp, Example: runExample,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("auto-resume") {
				f.autoResume = &autoResume
			}
			if cmd.Flags().Changed("last-messages") {
				f.lastMessages = &lastMessages
			}
			req, err := f.request(a, args[0], strings.Join(args[1:], " "))
			if err != nil {
				return err
			}
			if f.detach && f.untilIdle {
				return usagef("--detach returns at once: leave out --until-idle")
			}
			return a.runAgent(cmd.Context(), req, f)
		},
	}
	set := cmd.Flags()
	set.BoolVarP(&f.detach, "detach", "d", false, "print the run's id and return")
	set.BoolVar(&f.untilIdle, "until-idle", false, "also wait for calls that the run leaves in the background")
	set.StringVar(&f.thread, "thread", "", "conversation that the run belongs to")
	set.StringVar(&f.resource, "resource", "", "owner of the thread")
	set.IntVar(&lastMessages, "last-messages", 0, "recall so many messages of the thread, and keep it; default as the agent says")
	set.StringVar(&f.runID, "run-id", "", "id of the run; the same request with the same id is the same run")
	set.StringVar(&f.contextJSON, "context-json", "", "request context, a JSON object: for rules and tools, not for the model")
	set.BoolVar(&f.requireApproval, "require-approval", false, "every call waits for a person")
	set.BoolVar(&autoResume, "auto-resume", false, "the prompt may answer what suspended tools of the thread wait for; default as the agent says")
	set.StringVar(&f.model, "model", "", "model in place of the agent's")
	set.StringVar(&f.instructions, "instructions", "", "instructions in place of the agent's")
	set.StringVar(&f.tool, "tool-choice", "", "auto, none, required or tool:<key>")
	set.StringVar(&f.schema, "schema", "", "file with the JSON Schema of the value that the run is asked for")
	set.IntVar(&f.maxSteps, "max-steps", 0, "model turns at most")
	return cmd
}

// request is what the flags ask for. The prompt - stands for the standard input.
func (f runFlags) request(a *app, agent, prompt string) (client.Request, error) {
	if prompt == "-" {
		text, err := io.ReadAll(a.in)
		if err != nil {
			return client.Request{}, fmt.Errorf("read the prompt: %w", err)
		}
		prompt = strings.TrimSpace(string(text))
	}
	if strings.TrimSpace(prompt) == "" {
		return client.Request{}, usagef("the prompt is empty")
	}
	req := client.Request{
		Agent: agent, Prompt: prompt, RunID: f.runID, ThreadID: f.thread, ResourceID: f.resource,
		Model: f.model, ToolChoice: f.tool, AutoResumeSuspendedTools: f.autoResume,
	}
	if f.autoResume != nil && *f.autoResume && f.thread == "" {
		return req, usagef("--auto-resume needs --thread: only tools of the same thread can be answered")
	}
	if f.lastMessages != nil {
		if f.thread == "" {
			return req, usagef("--last-messages needs --thread: only what was said in a thread can be recalled")
		}
		req.Memory = &events.Memory{LastMessages: f.lastMessages}
		for _, issue := range req.Memory.Check() {
			return req, usagef("--last-messages: %s", issue.Message)
		}
	}
	if f.contextJSON != "" {
		var object map[string]json.RawMessage
		if err := json.Unmarshal([]byte(f.contextJSON), &object); err != nil || object == nil {
			return req, usagef("--context-json is no JSON object: %s", short(f.contextJSON, 80))
		}
		req.Context = json.RawMessage(f.contextJSON)
	}
	if f.schema != "" {
		schema, err := os.ReadFile(f.schema)
		if err != nil {
			return req, usagef("--schema: %v", err)
		}
		req.StructuredOutput = &events.StructuredOutput{Schema: schema}
		for _, issue := range req.StructuredOutput.Check() {
			return req, usagef("--schema: %s: %s", f.schema, issue.Message)
		}
	}
	if f.instructions != "" {
		req.Instructions = &f.instructions
	}
	if f.requireApproval {
		req.RequireToolApproval = &events.Approval{Always: true}
	}
	if f.maxSteps > 0 {
		req.Limits = &events.Limits{Steps: f.maxSteps}
	}
	return req, nil
}

func (a *app) runAgent(ctx context.Context, req client.Request, f runFlags) error {
	c, stop, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer stop()
	run, err := c.Start(ctx, req)
	if err != nil {
		return err
	}
	if f.detach {
		return a.print(map[string]string{"runId": run.ID}, func(w io.Writer) { _, _ = fmt.Fprintln(w, run.ID) })
	}
	a.note("run %s", run.ID)
	s := a.screen(run)
	s.untilIdle, s.value = f.untilIdle, f.schema != ""
	return a.attend(ctx, c, s)
}

// wholeOf is the output of the whole run that a prompt let go on, of which only the continuation was watched.
func wholeOf(ctx context.Context, c *client.Client, seen *client.Output) (*client.Output, error) {
	out, err := c.Run(seen.RunID).Wait(ctx)
	if out == nil {
		return nil, err
	}
	out.Resumed = seen.Resumed
	return out, nil
}

// attend shows a run to its end, and asks the person at the terminal when it is suspended.
func (a *app) attend(ctx context.Context, c *client.Client, s *screen) error {
	s.asks = a.interactive()
	for after := uint64(0); ; {
		out, err := s.follow(ctx, after)
		if err != nil {
			return err
		}
		if a.json {
			if len(out.Resumed) > 0 { // all of the run that went on
				if out, err = wholeOf(ctx, c, out); err != nil {
					return a.lost(s.run, err)
				}
			}
			if err := writeJSON(a.out, out); err != nil {
				return err
			}
			return a.ending(out)
		}
		if out.FinishReason != client.FinishSuspended || !a.interactive() {
			return a.ending(out)
		}
		err = a.decideAll(ctx, c, out.Asks)
		if errors.Is(err, errLeft) {
			a.note("left to others; the run waits: weir approvals ls --run %s", out.RunID)
			return &exit{code: exitSuspended}
		}
		if err != nil {
			return a.lost(s.run, err)
		}
		after = out.Cursor
	}
}

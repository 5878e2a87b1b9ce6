package main

import (
	"time"

	"github.com/spf13/cobra"
)

func newAsksWatchCommand(a *app) *cobra.Command {
	var f askFilter
	var o execOptions
	cmd := &cobra.Command{
		Use: "watch [--exec CMD [ARG…]]", Short: "Watch the calls that wait, or run a program for each",
		Long: `Watch the calls that wait: those that wait already, then what happens, as "weir approvals ls --watch" does.

With --exec a program is run for each of them, such as one that posts to a chat. It is started as it is, without a shell; put
-- before arguments that begin with a hyphen. On its standard input it gets the ask, as "weir approvals info -o json" prints
it. Its environment has PATH, HOME, the locale, time zone and TMPDIR, what --env names, and WEIR_TOOL_CALL_ID, WEIR_RUN_ID,
WEIR_ROOT_RUN_ID, WEIR_ROUND, WEIR_KIND, WEIR_FINGERPRINT, WEIR_TOOL_NAME, WEIR_AGENT_ID, WEIR_THREAD_ID and WEIR_EXPIRES_AT.

It is run once for each ask, and again when people are reminded, more of them may decide, or the call is asked about anew;
what was decided in the meantime is passed over. After a restart it is run again for what still waits. When it fails, prints
more than 1 MiB or takes longer than --exec-timeout, it is run again after a while; after --retries it is given up with a word
on the standard error, the call waits on, and the exit code will be 1. What it prints is passed on.

With --decide it may decide, in your name, what it was shown and nothing else. It prints one JSON object:

  {"decision": "approve", "reason": "below the limit"}

with args for edit, result for respond and resumeData for resume, or nothing, to leave the call to others. Whoever can make
the program say so decides: think of what hostile arguments could do to it.`,
		Example: `  weir approvals watch --tool issue_refund --exec ./notify-chat --env CHAT_WEBHOOK
  weir approvals watch --once --exec jq -- -r .toolCallId
  weir approvals watch --mine --kind approval --exec ./rules.py --decide --parallel 4`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.args = args
			if err := f.check(); err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			ctx := cmd.Context()
			if o.command == "" {
				if o.once {
					return a.listAsks(ctx, f, false)
				}
				return a.watchAsks(ctx, f)
			}
			c, stop, err := a.client(ctx)
			if err != nil {
				return err
			}
			defer stop()
			filter, err := f.resolve(ctx, c, time.Now())
			if err != nil {
				return err
			}
			return a.execAsks(ctx, c, filter, o)
		},
	}
	f.define(cmd)
	o.define(cmd)
	return cmd
}

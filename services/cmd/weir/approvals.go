package main

import "github.com/spf13/cobra"

func newApprovalsCommand(a *app) *cobra.Command {
	cmd := parent(&cobra.Command{
		Use: "approvals", Aliases: []string{"approval", "asks"}, Short: "See and decide the calls that wait for people",
		Long: `See and decide the calls that wait for people: calls that need approval, tools that suspended themselves to ask
something, and calls in doubt, which were started and of which nobody knows whether they happened.

A call is named by its toolCallId, <runId>=<step>-<i>. The id of a run will do while exactly one call of it waits.
The first decision counts; who is second is told which one did, with exit code 4.

Users who may read no stream decide with --live-only: the gate shows them the call and tells them what became of the
decision. They cannot list what waits, but ls --watch shows what is asked from then on.

What comes from models and tools is shown with everything visible: characters that hide, turn the writing around or command
a terminal stand there as their number, such as <U+202E>.`,
		Example: `  weir approvals ls --mine
  weir approvals info order-1042=2-1
  weir approvals approve order-1042=2-1 --reason "known customer"
  weir approvals decline order-1042 --reason "wrong order"
  weir approvals edit order-1042=2-1
  weir approvals resume order-1042=1-3 --data '{"directory": "eu"}'
  weir approvals watch --exec ./notify-chat`,
	}, newAsksListCommand(a), newAskInfoCommand(a), newAsksWatchCommand(a), newGrantsCommand(a))
	for _, row := range decisionRows {
		cmd.AddCommand(row.command(a))
	}
	return cmd
}

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// newApproverCommand is the process of the demo that decides when there is no person to ask.
func newApproverCommand(a *app) *cobra.Command {
	var principal string
	var after time.Duration
	var tied bool
	cmd := &cobra.Command{
		Use: "approver", Short: "Approve every call that is held", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if tied {
				var cancel context.CancelFunc
				ctx, cancel = untilInputEnds(ctx, a.in)
				defer cancel()
			}
			conn, err := a.dial(ctx, "approver", "")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			return approveAll(ctx, conn, principal, after, a.out)
		},
	}
	cmd.Flags().StringVar(&principal, "as", demoApprover, "in whose name")
	cmd.Flags().DurationVar(&after, "after", 0, "how long a question is looked at")
	defineTied(cmd, &tied)
	return cmd
}

// approverReady is the first line of an approver: what is asked after it, it hears.
const approverReady = "listening"

// approveAll hears every ask on the bus and approves it in the name of a principal, a moment after it was heard. It is all
// that a program must do to take part: subscribe to one subject, and publish one event. It knows nothing of any service.
func approveAll(ctx context.Context, conn *jetstream.Conn, principal string, after time.Duration, out io.Writer) error {
	asks := make(chan events.CallHeld, 64)
	stop, err := conn.Hear(ctx, conn.Namespace().EveryCall(events.KindAsk), func(e events.Event) {
		ask, err := events.Data[events.CallHeld](e)
		if err != nil || e.Seq == 0 {
			return // not a stored fact
		}
		select {
		case asks <- ask:
		default: // more than anybody could look at
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	if _, err := fmt.Fprintln(out, approverReady); err != nil {
		return err
	}
	for {
		select {
		case ask := <-asks:
			select {
			case <-time.After(after):
			case <-ctx.Done():
				return nil
			}
			d := events.DecisionRequested{
				Decision: events.Approve, ToolCallID: ask.ToolCallID, Round: &ask.Round,
				Fingerprint: ask.Fingerprint, Reason: "looks right",
			}
			if err := publishDecision(ctx, conn, principal, d); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(out, "heard the ask, approved %s %s as %s\n", oneLine(ask.ToolName), compact(ask.Args), principal); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

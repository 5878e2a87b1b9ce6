package client

import (
	"context"
	"iter"

	"github.com/weirkeeper/weir/events"
)

// Continue decides a call and then gives the chunks of its run that come of it, until the run ends or nothing in it can
// move without another decision: none is missed, because following begins before the decision is sent. A decision that
// does not count is an error, and there are no chunks then. [Run.Wait] after it gives the output of the whole run, with
// what came before the decision.
func (c *Client) Continue(ctx context.Context, d Decision) (*Outcome, iter.Seq2[events.Chunk, error], error) {
	call, err := c.callOf(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	d.ToolCallID = call.String()
	run := c.Run(call.Run)
	var after uint64
	if c.cfg.LiveOnly {
		err = run.record(ctx)
	} else {
		after, err = c.conn.LastChunk(ctx, call.Run)
	}
	if err != nil {
		return nil, nil, busError(err)
	}
	out, err := c.Decide(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	return out, run.Follow(ctx, after, &FollowOptions{UntilSuspended: true}), nil
}

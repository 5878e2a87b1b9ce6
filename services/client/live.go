package client

import (
	"context"

	"github.com/weirkeeper/weir/events"
)

// LiveRun is a run that was heard to start.
type LiveRun struct {
	RunID      string
	AgentID    string
	ThreadID   string
	ResourceID string
	Requester  string // token
}

// WatchRuns tells of runs that start and end from now on, until ctx ends. What is heard is a hint: some of it may be missed,
// and it is no record. It needs no right to read the log.
func (c *Client) WatchRuns(ctx context.Context, began func(LiveRun), ended func(run string)) error {
	_, err := c.conn.Hear(ctx, c.ns.EveryMain(events.KindEnd), func(e events.Event) {
		if d, err := events.Data[events.RunEnded](e); err == nil && !e.Carried {
			ended(d.RunID)
		}
	})
	if err != nil {
		return busError(err)
	}
	_, err = c.conn.Hear(ctx, c.ns.EveryMain(events.KindStart), func(e events.Event) {
		d, err := events.Data[events.RunStarted](e)
		if err != nil || e.Carried {
			return
		}
		began(LiveRun{
			RunID: d.RunID, AgentID: d.AgentID, ThreadID: d.Request.ThreadID, ResourceID: d.Request.ResourceID, Requester: d.Requester,
		})
	})
	return busError(err)
}

package client

import (
	"context"
	"errors"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Thread is a conversation of a resource.
type Thread struct{ ResourceID, ThreadID string }

// DecideIn sends a decision about the call that waits in a thread, whichever run holds it. A ToolCallID may name one of
// several; without it more than one is ambiguous, and none is not_found.
func (c *Client) DecideIn(ctx context.Context, t Thread, d Decision) (*Outcome, error) {
	if t.ThreadID == "" {
		return nil, invalid("a thread is missing")
	}
	asks, _, err := c.Asks(ctx, Filter{Resource: t.ResourceID, Thread: t.ThreadID})
	if err != nil {
		return nil, err
	}
	if d.ToolCallID != "" {
		asks = slices.DeleteFunc(asks, func(a events.OpenAsk) bool { return a.ToolCallID != d.ToolCallID })
	}
	switch len(asks) {
	case 0:
		return nil, events.NotFound("call", "no call of thread %s waits for this decision", t.ThreadID)
	case 1:
		d.ToolCallID = asks[0].ToolCallID
		return c.Decide(ctx, d)
	}
	e := events.Errorf(events.CodeAmbiguous, "%d calls of thread %s wait for a decision: name one", len(asks), t.ThreadID)
	for _, a := range asks {
		e.Asks = append(e.Asks, a.ToolCallID)
	}
	return nil, e
}

// CancelIn ends the runs of a thread that wait or run, and names those that it ended. Of very many runs the latest are
// looked at, as by [Client.Runs].
func (c *Client) CancelIn(ctx context.Context, t Thread, reason string) (cancelled []string, err error) {
	if t.ThreadID == "" {
		return nil, invalid("a thread is missing")
	}
	runs, err := c.openRuns(ctx, t)
	if err != nil {
		return nil, err
	}
	for _, run := range runs {
		outcome, err := c.Cancel(ctx, run, reason)
		switch {
		case events.CodeOf(err) == events.CodeRunEnded: // by itself, in between
		case err != nil:
			return cancelled, err
		case outcome == events.RunCancelled:
			cancelled = append(cancelled, run)
		}
	}
	return cancelled, nil
}

// openRuns are the runs of a thread that have not ended: the suspended ones, which may be older than the log, and those
// that the log shows.
func (c *Client) openRuns(ctx context.Context, t Thread) ([]string, error) {
	snaps, err := c.snapshots(ctx, Filter{Resource: t.ResourceID, Thread: t.ThreadID})
	if err != nil {
		return nil, err
	}
	var runs []string
	for _, s := range snaps {
		runs = append(runs, s.RunID)
	}
	subjects, err := c.conn.Subjects(ctx, c.ns.EveryMain(events.KindStart))
	if err != nil {
		return nil, busError(err)
	}
	places, _ := latest(subjects)
	starts, err := c.conn.Facts(ctx, places...)
	if err != nil {
		return nil, busError(err)
	}
	for _, e := range starts {
		d, err := events.Data[events.RunStarted](e)
		if e.ID == "" || err != nil || d.Request.ThreadID != t.ThreadID || d.Request.ResourceID != t.ResourceID {
			continue
		}
		_, err = c.conn.Fact(ctx, c.ns.End(d.RunID))
		if errors.Is(err, jetstream.ErrNotFound) && !slices.Contains(runs, d.RunID) {
			runs = append(runs, d.RunID)
		} else if err != nil && !errors.Is(err, jetstream.ErrNotFound) {
			return nil, busError(err)
		}
	}
	return runs, nil
}

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Deletion is a thread that was deleted, or all of a resource, and what is left of it elsewhere.
type Deletion struct {
	ResourceID string `json:"resourceId,omitempty"`
	ThreadID   string `json:"threadId,omitempty"`
	All        bool   `json:"all,omitempty"`
	// Kept is how long what runs have left elsewhere stays, by stream: a time span from when it was stored, or "unlimited". A
	// stream that the user may not look at is absent.
	Kept map[string]string `json:"kept"`
}

// DeleteThread deletes a thread, or with all every thread of its resource, and waits until that is done, Config.Wait long.
// Entries and what tools keep for it go, its grants are taken back, and its open runs are cancelled. The log, chunks and the
// record let go by age.
func (c *Client) DeleteThread(ctx context.Context, t Thread, all bool, reason string) (*Deletion, error) {
	switch {
	case all && (t.ThreadID != "" || t.ResourceID == ""):
		return nil, invalid("name the resource whose threads are deleted, and no thread")
	case !all && t.ThreadID == "":
		return nil, invalid("a thread is missing")
	}
	if err := c.refusals.listen(ctx, c.conn, c.cfg.Principal); err != nil {
		return nil, err
	}
	req := events.DeletionRequested{ResourceID: t.ResourceID, ThreadID: t.ThreadID, All: all, Reason: reason}
	subject := c.ns.InThread(c.cfg.Principal, req)
	e, err := c.request(subject, "", req)
	if err != nil {
		return nil, err
	}
	seq, err := c.conn.Publish(ctx, subject, e)
	if err != nil {
		return nil, sendError(err, "the deletion")
	}
	if err := c.awaitDeletion(ctx, req, e.ID, seq); err != nil {
		return nil, err
	}
	kept := map[string]string{}
	for _, stream := range []string{events.StreamRuns, events.StreamChunks, events.StreamAudit, events.BucketBlobs} {
		age, err := c.conn.KeptFor(ctx, stream)
		switch {
		case err != nil: // nobody's failure: it may not look
		case age == 0:
			kept[stream] = "unlimited"
		default:
			kept[stream] = age.String()
		}
	}
	return &Deletion{ResourceID: t.ResourceID, ThreadID: t.ThreadID, All: all, Kept: kept}, nil
}

// awaitDeletion waits until nothing is left to do.
func (c *Client) awaitDeletion(ctx context.Context, req events.DeletionRequested, eventID string, seq uint64) error {
	notes, done := c.refusals.of(eventID)
	defer done()
	limit := time.NewTimer(c.cfg.Wait)
	defer limit.Stop()
	next := firstLook
	look := time.NewTimer(next)
	defer look.Stop()
	for {
		select {
		case note := <-notes:
			if note.refused != nil {
				note.refused.RunID = ""
				return note.refused
			}
		case <-look.C:
			next = min(2*next, maxLook)
			look.Reset(next)
			d, err := c.conn.Deletion(ctx, req)
			if err == nil && d.Done && d.InboxSeq >= seq {
				return nil
			}
			if err != nil && !errors.Is(err, jetstream.ErrUnavailable) && !errors.Is(err, jetstream.ErrTimeout) {
				return busError(err)
			}
		case <-limit.C:
			return &events.Error{
				Code:    events.CodeUnknownOutcome,
				Message: fmt.Sprintf("the deletion is stored, but was not done within %v: it goes on as soon as planner and gate can do it", c.cfg.Wait),
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Cancel ends a run in whatever state it is, and waits for its end, Config.Wait long. The outcome is how the run ended:
// cancelled, or another when it was faster than the cancel. A run that was over before is refused with run_ended.
func (c *Client) Cancel(ctx context.Context, run, reason string) (events.RunOutcome, error) {
	if err := c.refusals.listen(ctx, c.conn, c.cfg.Principal); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also of what is heard
	if o, err := c.lookForEnd(ctx, run); err == nil && o != "" {
		return "", &events.Error{Code: events.CodeRunEnded, RunID: run, Message: fmt.Sprintf("run %s is over: %s", run, o)}
	}
	ends, err := c.hearEnd(ctx, run)
	if err != nil {
		return "", err
	}
	subject := c.ns.InCancel(c.cfg.Principal, run)
	e, err := c.request(subject, run, events.CancelRequested{RunID: run, Reason: reason})
	if err != nil {
		return "", err
	}
	if err := c.send(ctx, subject, e); err != nil {
		return "", err
	}
	return c.awaitEnd(ctx, run, e.ID, ends)
}

// lookNow says that the run may have ended, as the log knows.
const lookNow events.RunOutcome = ""

// hearEnd hears the end of a run until ctx ends: from its chunks when the user may not read the log. Who may is only told
// to look: what is heard on the subject of an end need not be stored.
func (c *Client) hearEnd(ctx context.Context, run string) (<-chan events.RunOutcome, error) {
	ends := make(chan events.RunOutcome, 1)
	tell := func(o events.RunOutcome) {
		select {
		case ends <- o:
		default:
		}
	}
	var err error
	if c.reads() {
		_, err = c.conn.HearFacts(ctx, c.ns.End(run).Subject(), func(events.Place) { tell(lookNow) })
	} else {
		_, err = c.conn.Hear(ctx, c.ns.Live(run), func(e events.Event) {
			if o := endIn(e); o != "" {
				tell(o)
			}
		})
	}
	if errors.Is(err, jetstream.ErrPermission) && !c.cfg.LiveOnly {
		return ends, nil // looks at the log and notes will do
	}
	return ends, busError(err)
}

// endIn is the outcome that a chunk tells of, if it is a last one.
func endIn(e events.Event) (o events.RunOutcome) {
	ch, err := events.Data[events.Chunk](e)
	switch {
	case err != nil:
	case ch.Type == events.ChunkAbort:
		return events.RunCancelled
	case ch.Type == events.ChunkFinish:
		o = events.RunCompleted
		withPayload(ch, func(p events.FinishPayload) {
			if p.StepResult.Reason == finishError {
				o = events.RunFailed
			}
		})
	}
	return o
}

func (c *Client) awaitEnd(ctx context.Context, run, eventID string, ends <-chan events.RunOutcome) (events.RunOutcome, error) {
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
				return "", note.refused
			}
		case o := <-ends:
			if o != lookNow {
				return o, nil
			}
			look.Reset(0)
		case <-look.C:
			next = min(2*next, maxLook)
			look.Reset(next)
			if o, err := c.lookForEnd(ctx, run); o != "" || err != nil {
				return o, err
			}
		case <-limit.C:
			return "", &events.Error{
				Code: events.CodeUnknownOutcome, RunID: run,
				Message: fmt.Sprintf("the cancel of run %s is stored, but the run has not ended within %v", run, c.cfg.Wait),
			}
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func (c *Client) lookForEnd(ctx context.Context, run string) (events.RunOutcome, error) {
	if !c.reads() {
		return "", nil
	}
	fact, err := c.conn.Fact(ctx, c.ns.End(run))
	if err != nil {
		return "", c.tolerate(err)
	}
	d, err := events.Data[events.RunEnded](fact)
	return d.Outcome, err
}

// CancelCall cancels one call of a run, which goes on without it, and waits until the call is over, Config.Wait long. A call
// that was over before is refused with run_ended.
func (c *Client) CancelCall(ctx context.Context, call, reason string) error {
	id, err := events.ParseCallID(call)
	if err != nil {
		return invalid("%v", err)
	}
	if err := c.refusals.listen(ctx, c.conn, c.cfg.Principal); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also of what is heard
	results := make(chan struct{}, 1)
	_, err = c.conn.Hear(ctx, c.ns.Live(id.Run), func(e events.Event) {
		if !shows(e, call) {
			return
		}
		select {
		case results <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return busError(err)
	}
	subject := c.ns.InCancel(c.cfg.Principal, id.Run)
	e, err := c.request(subject, id.Run, events.CancelRequested{RunID: id.Run, ToolCallID: call, Reason: reason})
	if err != nil {
		return err
	}
	if err := c.send(ctx, subject, e); err != nil {
		return err
	}
	notes, done := c.refusals.of(e.ID)
	defer done()
	limit := time.NewTimer(c.cfg.Wait)
	defer limit.Stop()
	select {
	case note := <-notes:
		if note.refused != nil {
			return note.refused
		}
		return nil
	case <-results:
		return nil
	case <-limit.C:
		return &events.Error{
			Code: events.CodeUnknownOutcome, RunID: id.Run,
			Message: fmt.Sprintf("the cancel of call %s is stored, but the call is not over within %v", call, c.cfg.Wait),
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// shows reports whether an event is the chunk of a call's result.
func shows(e events.Event, call string) (ok bool) {
	ch, err := events.Data[events.Chunk](e)
	if err != nil {
		return false
	}
	switch ch.Type {
	case events.ChunkToolResult, events.ChunkToolError, events.ChunkToolOutputDenied:
		withPayload(ch, func(p events.ToolResultPayload) { ok = p.ToolCallID == call })
	default:
	}
	return ok
}

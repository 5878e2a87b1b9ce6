package toolexecutor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
)

// maxMiddleware is how long a function of middleware may take.
const maxMiddleware = 10 * time.Second

// Middleware sees the calls that an executor runs, of every tool. It may block a call that was released, and can change
// nothing of it: the handler gets the released bytes or does not run.
type Middleware struct {
	// Name under which the record says who has blocked a call.
	Name string
	// Before is called when a call is claimed, on each attempt, before its handler. Nil goes on. An error, a panic and taking
	// longer than 10 s end the call as failed, and so does blocking it: the handler does not run. The call is a copy; when its
	// arguments are not the released bytes any more afterwards, the call ends as blocked, for fingerprint_mismatch.
	Before func(ctx context.Context, c *HookCall) (*Block, error)
	// After is called when the handler has ended and what came of it is stored: with its output, or why it failed. It changes
	// nothing; an error, a panic and taking longer than 10 s become a warning. It is not called when the handler did not run,
	// has suspended itself, or nobody knows what became of it, and is lost with its process.
	After func(ctx context.Context, c HookCall, output json.RawMessage, failed *events.ToolError) error
}

// HookCall is a call as middleware sees it.
type HookCall struct {
	RunID          string
	ToolCallID     string
	ToolName       string
	ToolID         string
	AgentID        string
	Attempt        int
	Round          int
	Args           json.RawMessage
	RequestContext json.RawMessage
}

// Block ends a call that was released.
type Block struct {
	Output any // the result that the model gets; nil: none
}

func hookCall(rel events.CallReleased, attempt int) HookCall {
	return HookCall{
		RunID: rel.RunID, ToolCallID: rel.ToolCallID, ToolName: rel.ToolName, ToolID: rel.ToolID, AgentID: rel.AgentID,
		Attempt: attempt, Round: rel.Round, Args: json.RawMessage(rel.Args), RequestContext: slices.Clone(rel.RequestContext),
	}
}

// before lets middleware see a call before its handler, and says with which result it ends here; nil when it goes on.
func (s *Service) before(ctx context.Context, rel events.CallReleased, attempt int) *events.CallFinished {
	for _, m := range s.cfg.Middleware {
		if m.Before == nil {
			continue
		}
		c := hookCall(rel, attempt)
		b, err := guarded(ctx, func(ctx context.Context) (*Block, error) { return m.Before(ctx, &c) })
		var f *events.CallFinished
		switch {
		case err != nil:
			f = failedBy(m.Name)
		case !bytes.Equal(c.Args, []byte(rel.Args)):
			f = changedBy(m.Name)
		case b != nil:
			f = blockedBy(m.Name, b)
		default:
			continue
		}
		s.log.WarnContext(ctx, "call ended before its handler", "runId", rel.RunID, "toolCallId", rel.ToolCallID,
			"middleware", m.Name, "reason", f.Reason) // an error may hold what must not be logged
		return f
	}
	return nil
}

// failedBy ends a call about which middleware could not be asked.
func failedBy(name string) *events.CallFinished {
	return &events.CallFinished{Outcome: events.OutcomeError, Reason: "middleware " + name, Error: &events.ToolError{
		Name: events.ErrorHookFailed, Message: "the middleware " + name + " failed, so nothing was run",
	}}
}

// changedBy ends a call of which middleware tried to change the arguments: they are not those that were released.
func changedBy(name string) *events.CallFinished {
	return &events.CallFinished{
		Outcome: events.OutcomeBlocked, Reason: mismatch.reason, BlockedBy: &events.AskReason{Set: middlewareSet, Rule: name},
		Error: &events.ToolError{Name: mismatch.reason, Message: mismatch.text},
	}
}

// middlewareSet is the set that facts name for middleware.
const middlewareSet = "middleware"

// blockedBy ends a call with what middleware gave as its result.
func blockedBy(name string, b *Block) *events.CallFinished {
	f := &events.CallFinished{
		Outcome: events.OutcomeBlocked, Reason: "middleware " + name, BlockedBy: &events.AskReason{Set: middlewareSet, Rule: name},
		Error: &events.ToolError{Name: "blocked", Message: "blocked by middleware " + name},
	}
	if b.Output == nil {
		return f
	}
	if raw, err := events.Marshal(b.Output); err == nil && events.CheckJSON(raw) == nil {
		f.Result, f.Error = raw, nil
	}
	return f
}

// after lets middleware see how a call ended whose handler ran.
func (s *Service) after(ctx context.Context, rel events.CallReleased, out outcome) {
	f := out.finished
	if f == nil || !f.Started {
		return
	}
	var output json.RawMessage
	failed := f.Error
	if f.Outcome == events.OutcomeOK {
		output, failed = f.Result, nil
	} else if failed == nil {
		failed = &events.ToolError{Name: string(f.Outcome), Message: "what the tool gave does not fit its schema"}
	}
	for _, m := range s.cfg.Middleware {
		if m.After == nil {
			continue
		}
		c, seen := hookCall(rel, out.attempt), slices.Clone(output)
		var why *events.ToolError
		if failed != nil {
			copied := *failed
			why = &copied
		}
		_, err := guarded(context.WithoutCancel(ctx), func(ctx context.Context) (struct{}, error) {
			return struct{}{}, m.After(ctx, c, seen, why)
		})
		if err != nil {
			s.warnOfAfter(ctx, rel, m.Name)
		}
	}
}

// warningAfter is the code of warnings about middleware that failed after its call.
const warningAfter = "after_hook_failed"

func (s *Service) warnOfAfter(ctx context.Context, rel events.CallReleased, name string) {
	ctx = context.WithoutCancel(ctx)
	s.log.WarnContext(ctx, "middleware failed after its call", "runId", rel.RunID, "toolCallId", rel.ToolCallID, "middleware", name)
	c := events.CallWarningChunk(rel.RunID, rel.ToolCallID, warningAfter, "the middleware "+name+" failed after the call, whose result stands")
	if err := s.conn.PublishChunk(ctx, s.origin, c); err != nil {
		s.log.WarnContext(ctx, "chunk not published", "runId", rel.RunID, "type", string(c.Type), "error", err)
	}
}

// errMiddleware is the error of middleware that panicked.
var errMiddleware = errors.New("middleware panicked")

// guarded turns a panic into an error, and does not wait for a function that ignores its deadline.
func guarded[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, maxMiddleware)
	defer cancel()
	type made struct {
		value T
		err   error
	}
	done := make(chan made, 1)
	go func() {
		m := made{err: errMiddleware}
		defer func() {
			if r := recover(); r != nil {
				m.err = errMiddleware
			}
			done <- m
		}()
		m.value, m.err = f(ctx)
	}()
	select {
	case m := <-done:
		return m.value, m.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("middleware: %w", context.Cause(ctx))
	}
}

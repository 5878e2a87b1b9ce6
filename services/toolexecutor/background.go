package toolexecutor

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/service"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// Pauses between the tries of a background call, which grow twofold.
const (
	minRetryPause = time.Second
	maxRetryPause = 30 * time.Second
)

// attempt calls the handler; for a background call again after an error that its definition lists as one that may pass, within
// its timeout. All tries are of one claim: a worker that dies between two leaves what one leaves that dies in a try, and what
// then becomes of the call follows from the tool's effect.
func (s *Service) attempt(ctx context.Context, h host, rel events.CallReleased, call *agent.Call) agent.Attempt {
	for try := 0; ; try++ {
		a := agent.Execute(withRequester(ctx, s.conn), h.tool, call, json.RawMessage(rel.Args))
		if !mayPass(rel.Background, a, try) || service.Sleep(ctx, min(minRetryPause<<min(try, 8), maxRetryPause)) != nil {
			return a
		}
		s.log.InfoContext(ctx, "background call is tried again", "runId", rel.RunID, "toolCallId", rel.ToolCallID, "toolId", rel.ToolID)
	}
}

// tellRunning tells readers that a background call has been started. It never fails a call.
func (s *Service) tellRunning(ctx context.Context, h host, rel events.CallReleased, claim events.Event) {
	if rel.Background == nil {
		return
	}
	about := transform.Call{RunID: rel.RunID, ToolCallID: rel.ToolCallID, ToolName: rel.ToolName}
	args := h.viewFor(rel).Args(ctx, events.TargetDisplay, events.PhaseInput, about, json.RawMessage(rel.Args)).Value
	if err := s.conn.PublishChunk(ctx, s.origin, events.BackgroundRunningChunk(rel, args, claim.ID, time.Now().UTC())); err != nil {
		s.log.WarnContext(ctx, "chunk not published", "runId", rel.RunID, "toolCallId", rel.ToolCallID, "error", err)
	}
}

// mayPass reports whether the handler is called again after its try, counted from 0.
func mayPass(b *events.CallBackground, a agent.Attempt, try int) bool {
	return b != nil && try < b.MaxRetries && a.Outcome == events.OutcomeError && !a.InDoubt && a.Error != nil &&
		slices.Contains(b.RetryableErrors, a.Error.Name)
}

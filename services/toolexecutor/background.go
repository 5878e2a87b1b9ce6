package toolexecutor

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/service"
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

// mayPass reports whether the handler is called again after its try, counted from 0.
func mayPass(b *events.CallBackground, a agent.Attempt, try int) bool {
	return b != nil && try < b.MaxRetries && a.Outcome == events.OutcomeError && !a.InDoubt && a.Error != nil &&
		slices.Contains(b.RetryableErrors, a.Error.Name)
}

package approval

import (
	"context"
	"encoding/json"

	"github.com/weirkeeper/weir/events"
)

// observe tells a tool's observers of the valid arguments of a call, before anything follows from them. Who is told later
// that a step is there does not repeat it: observers hear of a call at most once.
func (s *Service) observe(ctx context.Context, r *run, q question, input json.RawMessage) {
	t := r.tools[q.planned.ToolName]
	if t == nil || !t.observers.Want(events.OnInputAvailable) {
		return
	}
	err := s.conn.Observe(ctx, events.CallObserved{
		Namespace: s.ns, Event: events.OnInputAvailable, RunID: q.call.Run, ToolCallID: q.call.String(),
		ToolName: q.planned.ToolName, ToolID: t.ID, ToolVersion: t.Version, AgentID: r.start.AgentID, Input: input,
	})
	if err != nil {
		s.log.WarnContext(ctx, "observers not told", "runId", q.call.Run, "toolCallId", q.call.String(),
			"event", string(events.OnInputAvailable), "error", err)
	}
}

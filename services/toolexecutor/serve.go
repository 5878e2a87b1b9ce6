package toolexecutor

import (
	"context"
	"encoding/json"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// maxPreview bounds how long a preview may take, whatever its asker says.
const maxPreview = 10 * time.Second

// answers are the loops that answer what gates and planners ask about the tools hosted here. A request proves nothing about its
// sender: what is done for one must change nothing.
func (s *Service) answers() []func(context.Context) error {
	var loops []func(context.Context) error
	for _, h := range s.hostedNow() {
		answer := func(verb string, f func(context.Context, host, []byte) []byte) {
			subject := s.ns.ToolService(h.manifest.Pool, h.manifest.ID, verb)
			loops = append(loops, func(ctx context.Context) error {
				return s.conn.AnswerAsHost(ctx, subject, events.HostGroup(h.manifest.Version),
					func(ctx context.Context, body []byte) []byte { return f(ctx, h, body) })
			})
		}
		if form, err := events.ParsePreviewForm(h.manifest.Preview); err == nil && form != nil && form.Go {
			answer(events.VerbPreview, s.preview)
		}
		if t, err := events.ParseTransform(h.manifest.Transform); err == nil && t.HasGo() {
			answer(events.VerbTransform, s.transform)
		}
	}
	return loops
}

// preview answers what a call would do. A request for another version of the tool is left to its hosts.
func (s *Service) preview(ctx context.Context, h host, body []byte) []byte {
	var req events.PreviewRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil
	}
	m := h.manifest
	if req.Namespace != s.ns || req.ToolID != m.ID || req.ToolVersion != m.Version || req.InputSchemaDigest != m.InputSchemaDigest {
		return nil
	}
	within := maxPreview
	if req.Within > 0 {
		within = min(within, time.Duration(req.Within))
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	p, err := agent.RunPreview(ctx, h.tool, agent.NewCall(agent.CallInfo{
		RunID: req.RunID, ToolCallID: req.ToolCallID, ToolName: req.ToolName, AgentID: req.AgentID, ThreadID: req.ThreadID,
		ResourceID: req.ResourceID, Round: req.Round, RequestContext: req.RequestContext,
		Log: s.log.With("runId", req.RunID, "toolCallId", req.ToolCallID),
	}), json.RawMessage(req.Args))
	if err != nil { // its text may hold what must not be logged
		s.log.WarnContext(ctx, "no preview: the tool's function failed", "runId", req.RunID, "toolCallId", req.ToolCallID, "toolId", m.ID)
		p = events.Preview{Failed: true}
	}
	return p.Encoded()
}

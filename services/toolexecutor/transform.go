package toolexecutor

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// checkForms says what is wrong with the programs that show the values of a tool.
func checkForms(m events.Manifest) error {
	t, err := events.ParseTransform(m.Transform)
	if err != nil {
		return err
	}
	for _, target := range events.Targets() {
		if err := transform.Check(t.Of(target)); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	return nil
}

// transform answers how a value may be shown. A request for another version of the tool is left to its hosts.
func (s *Service) transform(ctx context.Context, h host, body []byte) []byte {
	var req events.TransformRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil
	}
	m := h.manifest
	if req.Namespace != s.ns || req.ToolID != m.ID || req.ToolVersion != m.Version || req.InputSchemaDigest != m.InputSchemaDigest {
		return nil
	}
	within := transform.Patience
	if req.Within > 0 {
		within = min(within, time.Duration(req.Within))
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answer, err := h.transform(ctx, m, req)
	if err != nil { // its text may hold what must not be logged
		s.log.WarnContext(ctx, "nothing is shown: the tool's transform failed", "runId", req.RunID, "toolCallId", req.ToolCallID,
			"toolId", m.ID, "target", string(req.Target), "phase", string(req.Phase))
		answer = events.TransformAnswer{Failed: true}
	}
	raw, err := events.Marshal(answer)
	if err != nil {
		return nil
	}
	return raw
}

// transform asks the tool itself.
func (h host) transform(ctx context.Context, _ events.Manifest, req events.TransformRequest) (events.TransformAnswer, error) {
	raw, err := agent.RunTransform(ctx, h.tool, agent.Shown{
		Target: req.Target, Phase: req.Phase, ToolName: req.ToolName, ToolCallID: req.ToolCallID, Input: req.Input, Value: req.Value,
	})
	return events.TransformAnswer{Value: raw}, err
}

// viewFor shows what may be shown of a released call.
func (h host) viewFor(rel events.CallReleased) *transform.View {
	if rel.Transform == nil {
		return h.view
	}
	return transform.New(h.manifest, h.secrets, rel.Transform, h.transform)
}

// safe adds to an outcome what may be shown of it where it is covered. The host has the view of the call.
func (h host) safe(ctx context.Context, rel events.CallReleased, f *events.CallFinished) {
	view := h.view
	ctx = context.WithoutCancel(ctx)
	masked, args := h.secrets.Finished(*f, json.RawMessage(rel.Args))
	c := transform.Call{RunID: rel.RunID, ToolCallID: rel.ToolCallID, ToolName: rel.ToolName, Input: args}
	outcome := func(t events.Target) (json.RawMessage, bool) {
		phase, shown := view.Outcome(ctx, t, c, masked)
		if len(shown.Value) > events.MaxInline { // the fact has to hold it
			return events.Unavailable(phase), true
		}
		return shown.Value, shown.Failed
	}
	if view.Covers(events.TargetDisplay) {
		f.Display, f.DisplayFailed = outcome(events.TargetDisplay)
	}
	if view.Covers(events.TargetTranscript) {
		f.Transcript, _ = outcome(events.TargetTranscript)
	}
}

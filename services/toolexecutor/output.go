package toolexecutor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/jq"
)

// maxMapping bounds how long it may take to say what a model is told of a result. The result is not stored before.
const maxMapping = 2 * time.Second

// warningModelOutput is the code of warnings about results that could not be mapped.
const warningModelOutput = "model_output_failed"

// outputProgram compiles the program that maps a tool's results for models; nil when it has none.
func outputProgram(m events.Manifest) (*jq.Program, error) {
	form, err := events.ParseForm(m.ToModelOutput)
	if err != nil || form == nil || form.Go {
		return nil, err
	}
	return jq.Compile(form.JQ)
}

// modelOutput is what the model is told in place of a result; nil is the result itself. Whatever goes wrong with it, the
// tool has run and its result stands.
func (s *Service) modelOutput(ctx context.Context, h host, call *agent.Call, result json.RawMessage) *events.ModelOutput {
	if len(result) == 0 || string(result) == "null" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxMapping)
	defer cancel()
	o, err := mapped(ctx, h, call, result)
	if err == nil {
		return o
	}
	s.log.WarnContext(ctx, "the model is told the result itself: its map failed", "runId", call.RunID(),
		"toolCallId", call.ToolCallID(), "toolId", h.manifest.ID) // the error may hold what must not be logged
	c := events.CallWarningChunk(call.RunID(), call.ToolCallID(), warningModelOutput,
		"what the model should be told of the result could not be made; it is told the result itself")
	if err := s.conn.PublishChunk(ctx, s.origin, c); err != nil {
		s.log.WarnContext(ctx, "chunk not published", "runId", call.RunID(), "type", string(c.Type), "error", err)
	}
	return nil
}

func mapped(ctx context.Context, h host, call *agent.Call, result json.RawMessage) (*events.ModelOutput, error) {
	if h.output == nil {
		return agent.MapResult(ctx, h.tool, call, result)
	}
	raw, err := h.output.Run(ctx, result)
	switch {
	case errors.Is(err, jq.ErrNothing):
		return nil, nil //nolint:nilnil // the result itself
	case err != nil:
		return nil, err
	}
	o := &events.ModelOutput{}
	if err := json.Unmarshal(raw, o); err != nil {
		return nil, errors.New("the program makes no output for a model")
	}
	if err := events.CheckModelOutput(o); err != nil {
		return nil, fmt.Errorf("what the program makes: %w", err)
	}
	return o, nil
}

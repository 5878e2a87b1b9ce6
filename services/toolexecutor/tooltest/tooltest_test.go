package tooltest_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/toolexecutor/tooltest"
)

// Go functions are the kind that the others are measured by.
func TestGoTools(t *testing.T) {
	t.Parallel()
	tooltest.Exercise(t, func(_ *testing.T, m events.Manifest, b tooltest.Behaviour) agent.Tool {
		if b == tooltest.Huge {
			return nil
		}
		behave := func(ctx context.Context, call *agent.Call, args json.RawMessage) (json.RawMessage, error) {
			switch b {
			case tooltest.Echo:
				return json.RawMessage(`{"args":` + string(args) + `}`), nil
			case tooltest.Key:
				return events.Marshal(map[string]string{"key": call.IdempotencyKey()})
			case tooltest.Text:
				return events.Marshal("plain & <simple>")
			case tooltest.Fail:
				return nil, errors.New(tooltest.FailText)
			case tooltest.Hang:
				<-ctx.Done()
				return nil, context.Cause(ctx)
			case tooltest.Broken:
				return json.RawMessage(`{"args":7}`), nil
			default:
				return nil, nil
			}
		}
		return agent.NewTool(m.ID, m.Description, behave, &agent.ToolOptions{
			Effect: m.Effect, InputSchema: m.InputSchema, OutputSchema: m.OutputSchema,
		})
	})
}

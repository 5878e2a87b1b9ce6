package planner

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// A run of one tool is a plan of one call: no agent, no model, the same facts and the same gate as any call. Its first step
// is that call, taken from the request as it came; its end follows the result, whatever that is.

// checkToolStart checks what a start of a single tool must say. What only an agent could honour is refused, so that nobody
// believes that it counts.
func checkToolStart(req events.RunRequested, in events.Inbox) *events.Error {
	bad := func(format string, args ...any) *events.Error {
		return events.Errorf(events.CodeInvalidRequest, format, args...)
	}
	switch {
	case req.ToolID == "":
		return bad("toolId is missing: a start at the agent %s is of a single tool", events.TokenTool)
	case req.AgentID != "":
		return bad("a run of a single tool has no agent: give agentId or toolId, not both")
	case in.Agent != events.TokenTool:
		return bad("a run of a single tool is asked for at the agent %s, the subject names %q", events.TokenTool, in.Agent)
	}
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"messages", len(req.Messages) > 0},
		{"instructions", req.Instructions != nil},
		{"model", req.Model != ""},
		{"toolChoice", req.ToolChoice != ""},
		{"activeTools", req.ActiveTools != nil},
		{"clientTools", len(req.ClientTools) > 0},
		{"toolCallConcurrency", req.ToolCallConcurrency != 0},
		{"structuredOutput", req.StructuredOutput != nil},
		{"modelSettings", len(req.ModelSettings) > 0},
		{"providerOptions", len(req.ProviderOptions) > 0},
		{"autoResumeSuspendedTools", req.AutoResumeSuspendedTools != nil},
	} {
		if f.given {
			return bad("%s is for runs of agents; a run of a single tool takes args", f.name)
		}
	}
	return nil
}

// pinTool finds the definition that a run of one tool keeps. Any registered tool will do: whether a call of it may pass is
// the gate's to say.
func (s *Service) pinTool(ctx context.Context, id string) (events.Definitions, *events.Error, error) {
	raw, err := s.conn.Named(ctx, events.RegistryTool, id)
	if errors.Is(err, jetstream.ErrNotFound) {
		return events.Definitions{}, events.NotFound("tool", "tool %q is not known; start the worker that has it, or apply a weir.yaml that defines it", id), nil
	}
	if err != nil {
		return events.Definitions{}, nil, fmt.Errorf("read tool %s: %w", id, err)
	}
	return events.Definitions{Tools: map[string]string{id: events.Digest(raw)}}, nil, nil
}

// call commits the one step of a run of one tool. It tells readers what a turn of a model that makes this call would.
func (s *Service) call(ctx context.Context, st *events.State, head events.Event, def *definition, delivery int) error {
	t := s.newTeller(ctx, st, prompt{def: def}, (delivery-1)*triesPerDelivery+1)
	t.begin()
	t.turn.calls = plannedCalls(st)
	for i, c := range t.turn.calls {
		t.tell(t.callChunk(i, c.Args))
	}
	return s.commit(ctx, st, head, t.turn, limitsOf(nil, st.Options.Limits))
}

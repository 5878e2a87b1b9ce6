package planner

import (
	"context"
	"iter"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
)

// spoken is a model that says some parts.
type spoken []agent.ModelPart

func (m spoken) Stream(context.Context, agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return func(yield func(agent.ModelPart, error) bool) {
		for _, p := range m {
			if !yield(p, nil) {
				return
			}
		}
	}
}

// Nothing obliges a provider to end one call's arguments before it begins the next.
func TestListenTakesCallsThatInterleave(t *testing.T) {
	t.Parallel()
	start := func(id string) agent.ModelPart {
		return agent.ModelPart{Type: agent.PartToolInputStart, ID: id, ToolName: "tool-" + id}
	}
	piece := func(id, text string) agent.ModelPart {
		return agent.ModelPart{Type: agent.PartToolInputDelta, ID: id, Text: text}
	}
	end := func(id string) agent.ModelPart { return agent.ModelPart{Type: agent.PartToolInputEnd, ID: id} }
	got, err := newListener(t).listen(t.Context(), spoken{
		start("a"), piece("a", `{"n":`), start("b"), piece("b", `{"m":`), piece("a", `1`), start("c"), piece("c", `{}`),
		piece("b", `2}`), piece("a", `}`), end("c"), end("a"), end("b"),
		{Type: agent.PartFinish},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []events.CallPlanned{
		{ToolName: "tool-a", Args: `{"n":1}`}, {ToolName: "tool-b", Args: `{"m":2}`}, {ToolName: "tool-c", Args: `{}`},
	}
	if diff := cmp.Diff(want, got.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// newListener is a teller of the first turn of a run.
func newListener(t *testing.T) *teller {
	t.Helper()
	srv := jetstreamtest.StartServer(t)
	conn, err := jetstream.Connect(t.Context(), jetstream.Options{InProcess: srv.InProcess(), Name: Name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.Ensure(t.Context(), jetstream.Settings{}); err != nil {
		t.Fatal(err)
	}
	s, err := New(conn, Config{Models: noModels{}})
	if err != nil {
		t.Fatal(err)
	}
	return s.newTeller(t.Context(), &events.State{RunID: "r", AgentID: "support"}, prompt{}, 1)
}

type noModels struct{}

func (noModels) Model(id string) (agent.Model, string, error) {
	return nil, "", events.Errorf(events.CodeNotFound, "no model %q", id)
}

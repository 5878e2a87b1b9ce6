package planner

import (
	"context"
	"encoding/json"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/transform"
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

// slow is a model that takes its time before each part.
type slow struct {
	parts []agent.ModelPart
	pause time.Duration
}

func (m slow) Stream(context.Context, agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return func(yield func(agent.ModelPart, error) bool) {
		for _, p := range m.parts {
			time.Sleep(m.pause) // fake
			if !yield(p, nil) {
				return
			}
		}
	}
}

// Arguments that come all at once are told with their call; those that take time can be watched.
func TestListenTellsArgumentsAsTheyCome(t *testing.T) {
	t.Parallel()
	call := []agent.ModelPart{
		{Type: agent.PartTextDelta, ID: "t", Text: "Let me look."},
		{Type: agent.PartToolInputStart, ID: "a", ToolName: "lookup"},
		{Type: agent.PartToolInputDelta, ID: "a", Text: `{"n":`},
		{Type: agent.PartToolInputDelta, ID: "a", Text: `1}`},
		{Type: agent.PartToolInputEnd, ID: "a"},
		{Type: agent.PartFinish},
	}
	said := []events.ChunkType{events.ChunkStart, events.ChunkStepStart, "text-start", "text-delta", "text-end"}
	for name, c := range map[string]struct {
		pause time.Duration
		want  []events.ChunkType
	}{
		"at once": {0, []events.ChunkType{"tool-call"}},
		"slowly": {maxHeld + time.Millisecond, []events.ChunkType{
			"tool-call-input-streaming-start", "tool-call-delta", "tool-call-delta", "tool-call-input-streaming-end", "tool-call",
		}},
		"faster than anybody watches": {maxHeld / 4, []events.ChunkType{"tool-call"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newListener(t)
				if _, err := l.listen(t.Context(), slow{call, c.pause}); err != nil {
					t.Fatal(err)
				}
				if err := l.s.conn.FlushChunks(t.Context(), l.st.RunID); err != nil {
					t.Fatal(err)
				}
				want := append(append([]events.ChunkType{}, said...), c.want...)
				if diff := cmp.Diff(want, told(t, l, len(want))); diff != "" {
					t.Errorf("chunks (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestB5_6_PiecesOfArguments of a covered tool are told in their form, and not at all when there is none or when it fails.
func TestB5_6_PiecesOfArguments(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ transform, want string }{
		"not covered":  {``, `{"n":1}`},
		"transcript":   {`{"transcript":{}}`, `{"n":1}`},
		"no form":      {`{"display":{"input":{"jq":"."}}}`, ``},
		"form":         {`{"display":{"inputDelta":{"jq":"length|tostring"}}}`, `52`},
		"fails":        {`{"display":{"inputDelta":{"jq":"error"}}}`, ``},
		"gives none":   {`{"display":{"inputDelta":{"jq":"empty"}}}`, ``},
		"no text":      {`{"display":{"inputDelta":{"jq":"length"}}}`, ``},
		"no host":      {`{"display":{"inputDelta":{"go":true}}}`, ``},
		"is malformed": {`{"display":7}`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newListener(t)
				l.p.def.views = map[string]*transform.View{
					"lookup": transform.New(events.Manifest{ID: "lookup", Transform: json.RawMessage(c.transform)}, nil, nil, nil),
				}
				_, err := l.listen(t.Context(), slow{[]agent.ModelPart{
					{Type: agent.PartToolInputStart, ID: "a", ToolName: "lookup"},
					{Type: agent.PartToolInputDelta, ID: "a", Text: `{"n":`},
					{Type: agent.PartToolInputDelta, ID: "a", Text: `1}`},
					{Type: agent.PartToolInputEnd, ID: "a"},
					{Type: agent.PartFinish},
				}, maxHeld + time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				got := ""
				for chunk, err := range l.s.conn.Follow(t.Context(), l.st.RunID, 0, nil) {
					var p events.ToolCallPayload
					if err != nil || json.Unmarshal(chunk.Payload, &p) != nil {
						t.Fatal(err, string(chunk.Payload))
					}
					if got += p.ArgsTextDelta; chunk.Type == events.ChunkToolCall {
						break
					}
				}
				if got != c.want {
					t.Errorf("told %q, want %q", got, c.want)
				}
			})
		})
	}
}

// told are the types of the first chunks of the listener's run.
func told(t *testing.T, l *teller, n int) []events.ChunkType {
	t.Helper()
	var got []events.ChunkType
	for c, err := range l.s.conn.Follow(t.Context(), l.st.RunID, 0, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, c.Type); len(got) == n {
			break
		}
	}
	return got
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
	s, err := New(conn, Config{Models: noModels{}, GateKeys: events.Keys{"U": nil}})
	if err != nil {
		t.Fatal(err)
	}
	return s.newTeller(t.Context(), &events.State{RunID: "r", AgentID: "support"}, prompt{def: &definition{}}, 1)
}

type noModels struct{}

func (noModels) Model(id string) (agent.Model, string, error) {
	return nil, "", events.Errorf(events.CodeNotFound, "no model %q", id)
}

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// scripted answers the n-th turn of its life as told, and keeps what it was asked.
type scripted struct {
	mu    sync.Mutex
	turns [][]agent.ModelPart
	asked []agent.ModelRequest
}

func (m *scripted) Stream(_ context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	m.mu.Lock()
	n := len(m.asked)
	m.asked = append(m.asked, req)
	m.mu.Unlock()
	return func(yield func(agent.ModelPart, error) bool) {
		parts := says("nothing more")
		if n < len(m.turns) {
			parts = m.turns[n]
		}
		for _, p := range parts {
			if !yield(p, nil) {
				return
			}
		}
	}
}

// request is what the model was asked at its n-th turn, from 0.
func (m *scripted) request(t *testing.T, n int) agent.ModelRequest {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if n >= len(m.asked) {
		t.Fatalf("the model was asked %d times", len(m.asked))
	}
	return m.asked[n]
}

func (m *scripted) times() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

func says(text string) []agent.ModelPart {
	return []agent.ModelPart{{Type: agent.PartTextDelta, ID: "t", Text: text}, {Type: agent.PartFinish, FinishReason: agent.FinishStop}}
}

// calls is a turn that calls tools: name, arguments, and so on.
func calls(nameArgs ...string) []agent.ModelPart {
	var parts []agent.ModelPart
	for i := 0; i < len(nameArgs); i += 2 {
		id := fmt.Sprint(i)
		parts = append(parts, agent.ModelPart{Type: agent.PartToolInputStart, ID: id, ToolName: nameArgs[i], ProviderCallID: "p" + id},
			agent.ModelPart{Type: agent.PartToolInputDelta, ID: id, Text: nameArgs[i+1]}, agent.ModelPart{Type: agent.PartToolInputEnd, ID: id})
	}
	return append(parts, agent.ModelPart{Type: agent.PartFinish, FinishReason: agent.FinishToolCalls})
}

// slow is a tool that takes its time, and more options.
func slow(id string, takes time.Duration, o agent.ToolOptions) agent.Tool {
	return agent.NewTool(id, "Takes its time", func(ctx context.Context, _ *agent.Call, in Order) (map[string]any, error) {
		select {
		case <-time.After(takes): // fake
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		return map[string]any{"did": id, "order": in.OrderID}, nil
	}, &o)
}

var inBackground = &events.Background{Enabled: true}

// outputOf is what a model was told about a call; empty when it was told nothing.
func outputOf(req agent.ModelRequest, toolCallID string) string {
	for _, m := range req.Messages {
		for _, p := range m.Parts {
			if p.Type == events.PartToolResult && p.ToolCallID == toolCallID {
				return string(p.Output.Value)
			}
		}
	}
	return ""
}

const order42 = `{"orderId":"42"}`

// chunks are those of a run so far.
func chunksOf(w *World, run string, last events.ChunkType) []events.Chunk {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), time.Minute)
	defer cancel()
	var got []events.Chunk
	for c, err := range w.Conn().Follow(ctx, run, 0, nil) {
		if err != nil {
			w.T.Fatalf("no %s chunk: %v, %v", last, err, typesOf(got))
		}
		got = append(got, c)
		if c.Type == last {
			break
		}
	}
	return got
}

func typesOf(list []events.Chunk) string {
	var types []string
	for _, c := range list {
		types = append(types, string(c.Type))
	}
	return strings.Join(types, " ")
}

// TestB16_2_B16_3_DeferredCallJoins: the step of a deferred call counts as settled, the model is told a placeholder and goes on,
// and at its first turn after the real result it finds that in the placeholder's place.
func TestB16_2_B16_3_DeferredCallJoins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{calls("research", order42), calls("lookup", order42), says("found it")}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{
			slow("research", 5*time.Second, agent.ToolOptions{Background: inBackground}), slow("lookup", 10*time.Second, agent.ToolOptions{}),
		}})
		w.StartAll()
		run := w.Request("go")
		end := w.AwaitEnd(run, time.Minute)
		task := events.CallID{Run: run, Step: 1, Index: 1}.String()
		if got := outputOf(m.request(t, 1), task); got != `"Background task started. Task ID: `+task+`"` {
			t.Errorf("the second turn is told %s", got)
		}
		if got := outputOf(m.request(t, 2), task); !strings.Contains(got, `"did":"research"`) {
			t.Errorf("the third turn is told %s", got)
		}
		if end.Outcome != events.RunCompleted || end.Message.Text() != "found it" || len(end.Background) > 0 {
			t.Errorf("the run ended as %+v", end)
		}
		shown := chunksOf(w, run, events.ChunkFinish)
		types := typesOf(shown)
		for _, want := range []string{"tool-call background-task-started tool-result", "background-task-completed"} {
			if !strings.Contains(types, want) {
				t.Errorf("chunks %s lack %q", types, want)
			}
		}
		for _, c := range shown {
			var p events.ToolResultPayload
			if c.Type != events.ChunkToolResult || json.Unmarshal(c.Payload, &p) != nil || p.ToolCallID != task {
				continue
			}
			if string(p.Result) != `"Background task started. Task ID: `+task+`"` ||
				!strings.Contains(string(p.ProviderMetadata), `"status":"running"`) {
				t.Errorf("the placeholder is %s", c.Payload)
			}
		}
		w.Check(true)
	})
}

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/internal/telemetry"
)

// observing is a tool that tells the trace of its call what it does, with a marker in its arguments and its error.
func observing() agent.Tool {
	return agent.NewTool("work", "Work", func(ctx context.Context, call *agent.Call, _ json.RawMessage) (any, error) {
		var answer int
		err := call.Span(ctx, "query", map[string]any{"rows": 3, "db": "orders"}, func(ctx context.Context) error {
			call.Observe(ctx, agent.LevelWarn, "slow", map[string]int{"ms": 7})
			answer = 42
			return nil
		})
		if err != nil {
			return nil, err
		}
		if failed := call.Span(ctx, "pay", nil, func(context.Context) error { return fmt.Errorf("MARKER") }); failed == nil {
			return nil, fmt.Errorf("the error of a span is not returned")
		}
		return answer, nil
	}, &agent.ToolOptions{InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`), RequireApproval: agent.Always()})
}

// traced runs a call of the tool to its end, under a tracer or none.
func traced(t *testing.T, trace jetstream.Tracer) {
	t.Helper()
	b := newBench(t, Options{Conn: func(o *jetstream.Options) { o.Trace = trace }}, []agent.Tool{observing()},
		asks(callTo("work", `{"card":"MARKER"}`)), agenttest.Say("MARKER"))
	b.StartAll()
	run := b.Request("MARKER")
	b.send("alice", events.Approve, b.call(run, 1, 1), nil)
	b.completed(run)
	equal(t, "the result", string(b.result(b.call(run, 1, 1)).Result), "42")
}

// TestB3_12_SpansAndLogsOfHandlers: a handler's spans run what is in them, with tracing and without. With it, a whole run is
// one trace over all services, and no span holds what people, models or tools have said.
func TestB3_12_SpansAndLogsOfHandlers(t *testing.T) {
	t.Run("without", func(t *testing.T) { inCase(t, func(t *testing.T) { traced(t, nil) }) })
	t.Run("with", func(t *testing.T) {
		inCase(t, func(t *testing.T) {
			kept := tracetest.NewInMemoryExporter()
			traces, err := telemetry.NewTraces(t.Context(), telemetry.TracesConfig{Service: "weir", Exporter: kept})
			if err != nil {
				t.Fatal(err)
			}
			traced(t, traces)
			spans := kept.GetSpans()
			byName := map[string]tracetest.SpanStub{} // the last of each
			for _, s := range spans {
				byName[s.Name] = s
				if strings.Contains(fmt.Sprintf("%+v", s), "MARKER") {
					t.Errorf("span %s holds what was said: %+v", s.Name, s)
				}
			}
			parents := func(name string) (path []string) {
				for s, ok := byName[name], true; ok; {
					path = append(path, s.Name)
					i := slices.IndexFunc(spans, func(p tracetest.SpanStub) bool { return p.SpanContext.SpanID() == s.Parent.SpanID() })
					if ok = i >= 0; ok {
						s = spans[i]
					}
				}
				return path
			}
			equal(t, "what a handler does stands below", parents("query"), []string{
				"query", "execute_tool work", "pool-default dev.weirkeeper.call.released.v1",
				"approval dev.weirkeeper.step.finished.v1", "planner dev.weirkeeper.run.requested.v1",
			})
			equal(t, "the turn after it stands below", parents("chat scripted/sim"), []string{
				"chat scripted/sim", "planner dev.weirkeeper.call.finished.v1", "pool-default dev.weirkeeper.call.released.v1",
				"approval dev.weirkeeper.step.finished.v1", "planner dev.weirkeeper.run.requested.v1",
			})
			equal(t, "what a handler logs", eventsOf(byName["query"]), []string{"slow warn map[ms:7]"})
			equal(t, "a span that fails", byName["pay"].Status.Description, string(events.CodeToolFailed))
		})
	})
}

func eventsOf(s tracetest.SpanStub) (list []string) {
	for _, e := range s.Events {
		list = append(list, fmt.Sprint(e.Name, " ", e.Attributes[0].Value.AsString(), " ", e.Attributes[1].Value.AsString()))
	}
	return list
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
)

func TestB3_9CallTellsTheHandler(t *testing.T) {
	t.Parallel()
	var logged strings.Builder
	c := NewCall(CallInfo{
		RunID: "r", ToolCallID: "r=1-1", ToolName: "key", AgentID: "a", ThreadID: "t", ResourceID: "u", Attempt: 2, Round: 3,
		SuspendPayload: json.RawMessage(`1`), RequestContext: json.RawMessage(`{"tenant":"acme"}`),
		Messages: func(context.Context) ([]events.Message, error) {
			return []events.Message{events.TextMessage(events.RoleUser, "hi")}, nil
		},
		Log: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	got := []any{
		c.RunID(), c.ToolCallID(), c.ToolName(), c.AgentID(), c.ThreadID(), c.ResourceID(), c.Attempt(), c.Round(),
		c.IdempotencyKey(), c.Resumed(), string(c.SuspendPayload()), string(c.RequestContext()),
	}
	want := []any{"r", "r=1-1", "key", "a", "t", "u", 2, 3, "r=1-1", false, "1", `{"tenant":"acme"}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m, err := c.Messages(t.Context()); err != nil || len(m) != 1 {
		t.Errorf("%v, %v", m, err)
	}
	c.Log().Info("done")
	if !strings.Contains(logged.String(), `runId=r toolCallId="r=1-1" agentId=a round=3`) {
		t.Errorf("got %s", logged.String())
	}
	copy(c.RequestContext(), "xxxx")
	if string(c.RequestContext()) != `{"tenant":"acme"}` {
		t.Error("a handler changed the request context")
	}
}

func TestCallWithoutAnything(t *testing.T) {
	t.Parallel()
	c := NewCall(CallInfo{})
	if string(c.RequestContext()) != "{}" || c.SuspendPayload() != nil || c.Resumed() {
		t.Error("an empty call says something")
	}
	m, err := c.Messages(t.Context())
	if m != nil || err != nil {
		t.Errorf("%v, %v", m, err)
	}
	if err := errors.Join(c.Write(t.Context(), 1), c.Custom(t.Context(), "data-x", 1, nil)); err != nil {
		t.Error(err)
	}
	if _, err := c.Store(); !errors.Is(err, ErrNoStore) {
		t.Errorf("got %v", err)
	}
	c.Log().Info("nobody hears")
}

func TestB3_13Progress(t *testing.T) {
	t.Parallel()
	var seen []string
	c := NewCall(CallInfo{
		Write: func(_ context.Context, output json.RawMessage) error {
			seen = append(seen, string(output))
			return nil
		},
		Custom: func(_ context.Context, chunk CustomChunk) error {
			raw, err := events.Marshal(chunk)
			seen = append(seen, string(raw))
			return err
		},
	})
	err := errors.Join(c.Write(t.Context(), map[string]string{"a": "<"}),
		c.Custom(t.Context(), "data-chart", []int{1}, &CustomOptions{ID: "c1", Transient: true}))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`{"a":"<"}`, `{"type":"data-chart","id":"c1","data":[1],"transient":true}`}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c.Custom(t.Context(), "chart", 1, nil) == nil || c.Write(t.Context(), make(chan int)) == nil ||
		c.Custom(t.Context(), "data-x", make(chan int), nil) == nil {
		t.Error("want errors")
	}
}

func TestB9_5AnyResumeDataCounts(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"false", "0", `""`, "[]", "{}", "null"} {
		c := NewCall(CallInfo{Resume: &events.Resume{Data: json.RawMessage(data)}})
		got, err := ResumeData[json.RawMessage](c)
		if !c.Resumed() || err != nil || string(got) != data {
			t.Errorf("%s: %s, %v", data, got, err)
		}
	}
	if _, err := ResumeData[any](NewCall(CallInfo{})); !errors.Is(err, ErrNotResumed) {
		t.Errorf("got %v", err)
	}
	c := NewCall(CallInfo{Resume: &events.Resume{Data: json.RawMessage(`{"n":9007199254740993}`)}})
	if got, err := ResumeData[map[string]any](c); err != nil || got["n"] != json.Number("9007199254740993") {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ResumeData[struct{ N string }](NewCall(CallInfo{Resume: &events.Resume{Data: json.RawMessage(`{"N":1}`)}})); err == nil {
		t.Error("want an error")
	}
}

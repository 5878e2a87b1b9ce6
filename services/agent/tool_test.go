package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
)

func run[In, Out any](t *testing.T, fn func(context.Context, *Call, In) (Out, error), args string, o *ToolOptions) Attempt {
	t.Helper()
	tool := NewTool("the.tool", "Does it", fn, o)
	if err := Check(tool); err != nil {
		t.Fatal(err)
	}
	return Execute(t.Context(), tool, NewCall(CallInfo{ToolName: "key", ToolCallID: "r=1-1"}), json.RawMessage(args))
}

func echo(_ context.Context, _ *Call, in json.RawMessage) (json.RawMessage, error) { return in, nil }

func TestB1_1ManifestDefaults(t *testing.T) {
	t.Parallel()
	m := NewTool("echo", "Says it again", echo, nil).Manifest()
	schema := `{"type":"object","properties":{}}`
	want := events.Manifest{
		ID: "echo", Version: "1", Description: "Says it again", InputSchema: json.RawMessage(schema),
		InputSchemaDigest: events.Digest([]byte(`{"properties":{},"type":"object"}`)),
		Effect:            events.Effectful, Pool: "default", Timeout: events.Duration(5 * time.Minute),
		StartTimeout: events.Duration(5 * time.Minute), MaxAttempts: 5, Source: events.Source{Kind: "go"},
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestB1_1ManifestKeepsOptions(t *testing.T) {
	t.Parallel()
	o := &ToolOptions{
		Title: "Echo", Version: "3", Effect: Idempotent, RequireApproval: When("true"), Pool: "p", Timeout: time.Second,
		StartTimeout: time.Minute, MaxAttempts: 2, Expires: time.Hour, OnExpiry: "fail",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{"b":{"type":"string"},"a":{}}}`),
		OutputSchema: json.RawMessage(`true`), SuspendSchema: json.RawMessage(`{"type":"string"}`),
		ResumeSchema: json.RawMessage(`{"type":"number"}`), RequestContextSchema: json.RawMessage(`{"type":"object"}`),
		Strict: true, ProviderOptions: json.RawMessage(`{"openai":{}}`), InputExamples: []any{map[string]any{"b": "x"}},
		MCP: json.RawMessage(`{}`),
	}
	tool := NewTool("echo", "d", echo, o)
	if err := Check(tool); err != nil {
		t.Fatal(err)
	}
	m := tool.Manifest()
	want := events.Manifest{
		ID: "echo", Version: "3", Title: "Echo", Description: "d", InputSchema: o.InputSchema, OutputSchema: o.OutputSchema,
		SuspendSchema: o.SuspendSchema, ResumeSchema: o.ResumeSchema, RequestContextSchema: o.RequestContextSchema,
		InputSchemaDigest: events.Digest([]byte(`{"properties":{"a":{},"b":{"type":"string"}},"type":"object"}`)),
		Effect:            events.Idempotent, Pool: "p", Timeout: events.Duration(time.Second), StartTimeout: events.Duration(time.Minute),
		Expires: events.Duration(time.Hour), OnExpiry: "fail", MaxAttempts: 2, Strict: true,
		RequireApproval: &events.Approval{When: "true"}, ProviderOptions: o.ProviderOptions,
		InputExamples: json.RawMessage(`[{"input":{"b":"x"}}]`), MCP: o.MCP, Source: events.Source{Kind: "go"},
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// NAME-5: a tool that says nothing of its input is callable without arguments.
func TestB1_10NoSchemaIsCallable(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"", "null", "{}", `{"type":"object"}`} {
		got := run(t, echo, `{}`, &ToolOptions{InputSchema: json.RawMessage(schema)})
		if got.Outcome != events.OutcomeOK || string(got.Result) != "{}" {
			t.Errorf("schema %q: %+v", schema, got)
		}
	}
}

func TestDefinitionIssues(t *testing.T) {
	t.Parallel()
	type loop struct{ C chan int }
	good := func(context.Context, *Call, struct{}) (any, error) { return nil, nil }
	for want, tool := range map[string]Tool{
		"id: is required":          NewTool(" ", "d", good, nil),
		"id: has more than":        NewTool(strings.Repeat("x", 257), "d", good, nil),
		"id: has a control":        NewTool("a\nb", "d", good, nil),
		"description: is required": NewTool("a", "", good, nil),
		"effect: want":             NewTool("a", "d", good, &ToolOptions{Effect: "readonly"}),
		"pool: want":               NewTool("a", "d", good, &ToolOptions{Pool: "a.b"}),
		"onExpiry: want":           NewTool("a", "d", good, &ToolOptions{OnExpiry: "approve"}),
		"timeout: must not":        NewTool("a", "d", good, &ToolOptions{Timeout: -1}),
		"maxAttempts: must not":    NewTool("a", "d", good, &ToolOptions{MaxAttempts: -1}),
		"inputSchema: want an":     NewTool("a", "d", good, &ToolOptions{InputSchema: json.RawMessage(`{"type":"string"}`)}),
		"inputSchema: no schema": NewTool("a", "d", func(context.Context, *Call, loop) (any, error) { return nil, nil },
			nil),
		"inputSchema: schema": NewTool("a", "d", good, &ToolOptions{InputSchema: json.RawMessage(`{"$ref":"https://x.test/s"}`)}),
		"inputSchema.resumeData: is": NewTool("a", "d", good, &ToolOptions{
			InputSchema: json.RawMessage(`{"type":"object","properties":{"resumeData":{}}}`),
		}),
		"outputSchema: schema":  NewTool("a", "d", good, &ToolOptions{OutputSchema: json.RawMessage(`{"type":"x"}`)}),
		"suspendSchema: schema": NewTool("a", "d", good, &ToolOptions{SuspendSchema: json.RawMessage(`{`)}),
		"resumeSchema: schema":  NewTool("a", "d", good, &ToolOptions{ResumeSchema: SchemaOf[loop]()}),
		"inputExamples.1: n: want": NewTool("a", "d", good, &ToolOptions{
			InputSchema:   json.RawMessage(`{"type":"object","properties":{"n":{"type":"number"}}}`),
			InputExamples: []any{map[string]any{"n": 1}, map[string]any{"n": "x"}},
		}),
		"inputExamples: json": NewTool("a", "d", good, &ToolOptions{InputExamples: []any{make(chan int)}}),
		"fn: is required":     NewTool[struct{}, any]("a", "d", nil, nil),
	} {
		err := Check(tool)
		if events.CodeOf(err) != events.CodeInvalidDefinition || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
			continue
		}
		got := Execute(t.Context(), tool, NewCall(CallInfo{}), json.RawMessage(`{}`))
		if got.Outcome != events.OutcomeError || got.Started || got.Error.Name != "invalid_definition" {
			t.Errorf("a broken tool ran: %+v", got)
		}
	}
}

func TestB2_7InvalidArgumentsDoNotStart(t *testing.T) {
	t.Parallel()
	type in struct {
		N      int    `json:"n"`
		Secret string `json:"password,omitempty"`
	}
	never := func(context.Context, *Call, in) (any, error) { t.Error("started"); return nil, nil }
	got := run(t, never, `{"password":"hush","n":"many"}`, nil)
	if got.Outcome != events.OutcomeInvalid || got.Started || got.Error != nil {
		t.Errorf("got %+v", got)
	}
	text := string(got.Result)
	for _, want := range []string{"validation failed for key.", "- n: want integer, got string", `\"many\"`} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want %s", text, want)
		}
	}
	if strings.Contains(text, "hush") {
		t.Errorf("a password is quoted: %s", text)
	}
}

// TestB16_1_BackgroundOfTools: what a tool says of the background stands in its manifest, and what nobody can honour is refused.
func TestB16_1_BackgroundOfTools(t *testing.T) {
	t.Parallel()
	tool := NewTool("a", "d", func(context.Context, *Call, struct{}) (any, error) { return nil, nil }, &ToolOptions{
		Background: &events.Background{Enabled: true, MaxRetries: 2, RetryableErrors: []string{"busy"}, TimeoutMs: 1500},
	})
	if got := string(tool.Manifest().Background); got != `{"enabled":true,"timeoutMs":1500,"maxRetries":2,"retryableErrors":["busy"]}` || Check(tool) != nil {
		t.Errorf("the manifest has %s, %v", got, Check(tool))
	}
	for raw, want := range map[string]string{
		`{"enabled":true,"defaultDisposition":"later"}`: "want deferred or foreground",
		`{"enabled":true,"timeoutMs":-1}`:               "must not be negative",
		`{"enabled":true,"maxRetries":2}`:               "name the errors",
		`{"enabled":true,"maxRetries":99}`:              "must not be over",
		`{"onStart":true}`:                              "want {",
	} {
		m := Complete(events.Manifest{ID: "a", Description: "d"})
		m.Background = json.RawMessage(raw)
		if err := Check(foreign{manifest: m}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", raw, err, want)
		}
	}
}

func TestInvalidWhereTheGoTypeIsNarrower(t *testing.T) {
	t.Parallel()
	type in struct {
		N int8 `json:"n"`
	}
	got := run(t, func(context.Context, *Call, in) (any, error) { t.Error("started"); return nil, nil }, `{"n":777}`, nil)
	text := string(got.Result)
	if got.Outcome != events.OutcomeInvalid || got.Started || !strings.Contains(text, "n: does not fit into int8") {
		t.Errorf("got %+v %s", got, text)
	}
}

func TestB1_9HandlerRefuses(t *testing.T) {
	t.Parallel()
	got := run(t, func(context.Context, *Call, struct{}) (any, error) {
		return nil, fmt.Errorf("check: %w", Invalid("a.b", "want less"))
	}, `{}`, nil)
	if got.Outcome != events.OutcomeInvalid || !got.Started || !strings.Contains(string(got.Result), `\n- a.b: want less`) {
		t.Errorf("got %+v %s", got, got.Result)
	}
}

func TestB2_13Output(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`)
	type out struct {
		ID     any    `json:"id,omitempty"`
		Secret string `json:"secret"`
	}
	give := func(o out) Attempt {
		return run(t, func(context.Context, *Call, struct{}) (out, error) { return o, nil }, `{}`, &ToolOptions{OutputSchema: schema})
	}
	if got := give(out{"a", "s"}); got.Outcome != events.OutcomeOK || string(got.Result) != `{"id":"a"}` {
		t.Errorf("got %+v %s", got, got.Result)
	}
	got := give(out{7, "hush"})
	text := string(got.Result)
	if got.Outcome != events.OutcomeInvalid || !got.Started || strings.Contains(text, "hush") ||
		!strings.Contains(text, "Tool output validation failed for the.tool.") {
		t.Errorf("got %+v %s", got, text)
	}
}

func TestB3_14ErrorsAndPanics(t *testing.T) {
	t.Parallel()
	type failing = func(context.Context, *Call, struct{}) (any, error)
	for want, fn := range map[[2]string]failing{
		{"Error", "no luck"}: func(context.Context, *Call, struct{}) (any, error) {
			return nil, errors.New("no luck")
		},
		{"gone", "delete: order 7 is gone"}: func(context.Context, *Call, struct{}) (any, error) {
			return nil, fmt.Errorf("delete: %w", Errorf("gone", "order %d is gone", 7))
		},
		{"Error", "unnamed"}: func(context.Context, *Call, struct{}) (any, error) {
			return nil, &Error{Message: "unnamed", Details: json.RawMessage(`{`)}
		},
		{"panic", "the tool panicked: oh"}: func(context.Context, *Call, struct{}) (any, error) {
			panic("oh")
		},
		{"not_found", "no order (not_found)"}: func(context.Context, *Call, struct{}) (any, error) {
			return nil, events.Errorf(events.CodeNotFound, "no order")
		},
	} {
		got := run(t, fn, `{}`, nil)
		if got.Outcome != events.OutcomeError || !got.Started || got.Result != nil ||
			want != [2]string{got.Error.Name, got.Error.Message} || got.Error.Details != nil {
			t.Errorf("got %+v %+v, want %q", got, got.Error, want)
		}
		if (got.Stack != nil) != (want[0] == "panic") {
			t.Errorf("%s: stack %s", want[0], got.Stack)
		}
	}
}

type cycle struct {
	Next *cycle `json:"next"`
}

type rude struct{}

func (rude) MarshalJSON() ([]byte, error) { panic("rude") }

func TestB3_16Results(t *testing.T) {
	t.Parallel()
	self := &cycle{}
	self.Next = self
	for name, c := range map[string]struct {
		out  any
		want string // a result, or the beginning of the error's name
	}{
		"nothing":      {nil, "null"},
		"big number":   {json.Number("9007199254740993"), "9007199254740993"},
		"time":         {time.Date(2026, 3, 2, 9, 14, 7, 0, time.UTC), `"2026-03-02T09:14:07Z"`},
		"markup":       {"<a&b>", `"<a&b>"`},
		"cycle":        {self, "!Error"},
		"channel":      {make(chan int), "!Error"},
		"function":     {func() {}, "!Error"},
		"panics":       {rude{}, "!panic"},
		"no JSON":      {json.RawMessage(`{`), "!Error"},
		"twice a key":  {json.RawMessage(`{"a":1,"a":2}`), "!Error"},
		"bottomless":   {json.RawMessage(strings.Repeat("[", 200) + strings.Repeat("]", 200)), "!Error"},
		"bytes as is":  {json.RawMessage(`{"b": 1.50}`), `{"b":1.50}`},
		"nil raw JSON": {json.RawMessage(nil), "null"},
	} {
		got := run(t, func(context.Context, *Call, struct{}) (any, error) { return c.out, nil }, `{}`, nil)
		if errorName, failed := strings.CutPrefix(c.want, "!"); failed {
			if got.Outcome != events.OutcomeError || got.Error.Name != errorName || !got.Started {
				t.Errorf("%s: %+v %s", name, got, got.Result)
			}
		} else if got.Outcome != events.OutcomeOK || string(got.Result) != c.want {
			t.Errorf("%s: %+v %s, want %s", name, got, got.Result, c.want)
		}
	}
}

func TestB3_18Timeout(t *testing.T) {
	t.Parallel()
	wait := NewTool("wait", "Waits", func(ctx context.Context, _ *Call, _ struct{}) (any, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("read: %w", ctx.Err())
	}, nil)
	stubborn := NewTool("stubborn", "Ends well", func(ctx context.Context, _ *Call, _ struct{}) (string, error) {
		<-ctx.Done()
		return "done", nil
	}, nil)
	own := NewTool("own", "Has a deadline of its own", func(context.Context, *Call, struct{}) (any, error) {
		return nil, context.DeadlineExceeded
	}, nil)
	synctest.Test(t, func(t *testing.T) {
		exec := func(ctx context.Context, tool Tool) Attempt {
			return Execute(ctx, tool, NewCall(CallInfo{}), json.RawMessage(`{}`))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got := exec(ctx, wait); got.Error == nil || got.Error.Name != events.ErrorTimeout {
			t.Errorf("got %+v", got.Error)
		}
		if got := exec(ctx, stubborn); got.Outcome != events.OutcomeOK {
			t.Errorf("got %+v", got)
		}
		if got := exec(t.Context(), own); got.Error == nil || got.Error.Name != "Error" {
			t.Errorf("got %+v", got.Error)
		}
		cancelled, stop := context.WithCancelCause(t.Context())
		stop(errors.New("the run was cancelled"))
		if got := exec(cancelled, wait); got.Error == nil || got.Error.Name != events.ErrorCancelled {
			t.Errorf("got %+v", got.Error)
		}
	})
}

func TestB9_1Suspend(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]func(context.Context, *Call, struct{}) (any, error){
		"plain": func(_ context.Context, c *Call, _ struct{}) (any, error) { return 1, c.Suspend("why") },
		"wrapped": func(_ context.Context, c *Call, _ struct{}) (any, error) {
			return nil, fmt.Errorf("x: %w", c.Suspend("why"))
		},
		"joined": func(_ context.Context, c *Call, _ struct{}) (any, error) {
			return nil, errors.Join(errors.New("x"), c.Suspend("why"))
		},
	} {
		got := run(t, fn, `{}`, nil)
		if got.Suspension == nil || string(got.Suspension.Payload) != `"why"` || got.Outcome != "" || !got.Started || got.Error != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestB9_3SuspensionPayloadIsValidated(t *testing.T) {
	t.Parallel()
	o := &ToolOptions{SuspendSchema: json.RawMessage(`{"type":"object","required":["reason"]}`)}
	for name, payload := range map[string]any{"invalid_suspension": map[string]any{}, "Error": make(chan int)} {
		got := run(t, func(_ context.Context, c *Call, _ struct{}) (any, error) { return nil, c.Suspend(payload) }, `{}`, o)
		if got.Suspension != nil || got.Outcome != events.OutcomeError || got.Error.Name != name {
			t.Errorf("%s: %+v %+v", name, got, got.Error)
		}
	}
	got := run(t, func(_ context.Context, c *Call, _ struct{}) (any, error) {
		return nil, c.SuspendWith(map[string]any{"reason": "x"}, &SuspendOptions{ResumeSchema: json.RawMessage(`{"type":"y"}`)})
	}, `{}`, o)
	if got.Suspension != nil || got.Error == nil || !strings.Contains(got.Error.Message, "resume schema") {
		t.Errorf("got %+v", got)
	}
	got = run(t, func(_ context.Context, c *Call, _ struct{}) (any, error) {
		return nil, c.SuspendWith(map[string]any{"reason": "x"}, &SuspendOptions{ResumeLabel: "Go", ResumeSchema: json.RawMessage(`{}`)})
	}, `{}`, o)
	if got.Suspension == nil || got.Suspension.ResumeLabel != "Go" || string(got.Suspension.ResumeSchema) != "{}" {
		t.Errorf("got %+v", got)
	}
}

// foreign is a tool that was not made by NewTool.
type foreign struct {
	manifest events.Manifest
	result   json.RawMessage
}

func (f foreign) Manifest() events.Manifest { return f.manifest }

func (f foreign) Run(context.Context, *Call, json.RawMessage) (json.RawMessage, error) {
	if f.result == nil {
		panic("no result")
	}
	return f.result, nil
}

func TestCheckedHoldsOtherTools(t *testing.T) {
	t.Parallel()
	m := NewTool("a", "d", echo, &ToolOptions{
		OutputSchema: json.RawMessage(`{"type":"string"}`),
		InputSchema:  json.RawMessage(`{"type":"object","required":["x"]}`),
	}).Manifest()
	exec := func(result, args string) Attempt {
		return Execute(t.Context(), foreign{m, json.RawMessage(result)}, NewCall(CallInfo{}), json.RawMessage(args))
	}
	if got := exec(`"ok"`, `{"x":1}`); got.Outcome != events.OutcomeOK {
		t.Errorf("got %+v", got)
	}
	if got := exec(`"ok"`, `{}`); got.Outcome != events.OutcomeInvalid || got.Started {
		t.Errorf("got %+v", got)
	}
	if got := exec(`1`, `{"x":1}`); got.Outcome != events.OutcomeInvalid || !got.Started {
		t.Errorf("got %+v", got)
	}
	if got := Execute(t.Context(), foreign{manifest: m}, NewCall(CallInfo{}), json.RawMessage(`{"x":1}`)); got.Error == nil ||
		got.Error.Name != "panic" {
		t.Errorf("got %+v", got)
	}
	m.InputSchemaDigest = "sha256:other"
	if _, err := Checked(foreign{manifest: m}); err == nil || !strings.Contains(err.Error(), "inputSchemaDigest") {
		t.Errorf("got %v", err)
	}
	tool := NewTool("a", "d", echo, nil)
	if again, err := Checked(tool); err != nil || again != tool {
		t.Error("a tool of NewTool is wrapped twice")
	}
}

func TestCompleteChangesNothingTwice(t *testing.T) {
	t.Parallel()
	once := Complete(events.Manifest{ID: "a", Description: "d"})
	if diff := cmp.Diff(once, Complete(once)); diff != "" {
		t.Errorf("(-once +twice):\n%s", diff)
	}
	if _, err := Checked(foreign{manifest: once}); err != nil {
		t.Error(err)
	}
}

func TestWhenFailsClosed(t *testing.T) {
	t.Parallel()
	if got := When(" "); !got.Always {
		t.Error("an empty expression never asks")
	}
}

package client_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/client"
)

// suspended is what a call is answered with that waits.
func suspended(t *testing.T, err error) *client.SuspendedError {
	t.Helper()
	s, ok := errors.AsType[*client.SuspendedError](err)
	if !ok {
		t.Fatalf("error = %v, want a suspended call", err)
	}
	return s
}

// failed is what a call is answered with that brings no output.
func failed(t *testing.T, err error) *client.ToolFailedError {
	t.Helper()
	wantCode(t, err, events.CodeToolFailed)
	f, ok := errors.AsType[*client.ToolFailedError](err)
	if !ok {
		t.Fatalf("error = %v, want a failed tool", err)
	}
	return f
}

// A tool runs directly and its output is answered as it came, of a run that says so; what is shown of it to users who may
// not read the log is the same.
func TestB1_16_ExecuteAnswersTheRawOutput(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	for _, c := range []*client.Client{
		newClient(t, conn, "bob"), clientWith(t, conn, client.Config{Principal: "bob", LiveOnly: true}),
	} {
		out, err := c.Execute(t.Context(), client.ToolRequest{Tool: "lookup_order", Args: json.RawMessage(`{"orderId":"1042"}`)})
		if err != nil {
			t.Fatal(err)
		}
		if out.Outcome != events.OutcomeOK || string(out.Result) != `{"orderId":"1042","amount":612.5}` || out.ToolCallID != out.RunID+"=1-1" {
			t.Errorf("output = %+v", out)
		}
	}
	c := newClient(t, conn, "bob")
	runs, _, err := c.Runs(t.Context(), client.RunsFilter{Agent: events.TokenTool})
	if err != nil || len(runs) != 2 || runs[0].Outcome != events.RunCompleted || runs[0].AgentID != events.TokenTool || runs[0].Usage != (events.Usage{}) {
		t.Errorf("runs = %+v, %v", runs, err)
	}
}

// Arguments that do not fit are answered with the object that says so, and never bother a person.
func TestB1_17_WrongArgumentsAreNoAsk(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	for _, args := range []string{`{"orderId":"1042","amount":"much"}`, `[1]`, ``} {
		out, err := c.Execute(t.Context(), client.ToolRequest{Tool: "issue_refund", Args: json.RawMessage(args)})
		if err != nil {
			t.Fatal(err)
		}
		var wrong struct {
			Error            bool            `json:"error"`
			Message          string          `json:"message"`
			ValidationErrors json.RawMessage `json:"validationErrors"`
		}
		if err := json.Unmarshal(out.Result, &wrong); err != nil || out.Outcome != events.OutcomeInvalid || !wrong.Error ||
			!strings.Contains(wrong.Message, "issue_refund") || len(wrong.ValidationErrors) == 0 {
			t.Errorf("%s gives %s %s, %v", args, out.Outcome, out.Result, err)
		}
	}
	_, err := c.Execute(t.Context(), client.ToolRequest{Tool: "issue_refund", Args: json.RawMessage(`{"a":1`)})
	wantCode(t, err, events.CodeInvalidRequest)
	asks, err := conn.Subjects(t.Context(), ns.EveryCall(events.KindAsk))
	if err != nil || len(asks) != 0 {
		t.Errorf("asks = %v, %v", asks, err)
	}
}

// A tool that needs approval does not run; the answer says what waits, and the same request with the id of its run gets the
// output once somebody has approved.
func TestB1_17_HeldToolIsHeldAndYieldsItsOutputLater(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	req := client.ToolRequest{Tool: "issue_refund", Args: json.RawMessage(`{"orderId":"1042","amount":612.50}`), ThreadID: "t"}
	_, err := c.Execute(t.Context(), req)
	s := suspended(t, err)
	if len(s.Asks) != 1 || s.ToolCallID != s.RunID+"=1-1" || s.Asks[0].ToolCallID != s.ToolCallID || string(s.Asks[0].Args) != `{"amount":612.50,"orderId":"1042"}` {
		t.Errorf("suspended = %+v", s)
	}
	var answer map[string]any
	raw, err := json.Marshal(s)
	if err != nil || json.Unmarshal(raw, &answer) != nil {
		t.Fatal(string(raw), err)
	}
	delete(answer, "asks")
	if diff := cmp.Diff(map[string]any{
		"error": true, "code": "suspended", "status": "suspended", "message": "issue_refund waits for a decision",
		"runId": s.RunID, "toolCallId": s.ToolCallID,
	}, answer); diff != "" {
		t.Error(diff)
	}
	page, err := c.Suspended(t.Context(), client.Filter{Agent: events.TokenTool, Thread: "t"})
	if err != nil || page.Total != 1 || page.Runs[0].AgentID != events.TokenTool || page.Runs[0].RunID != s.RunID {
		t.Errorf("list = %+v, %v", page, err)
	}
	req.RunID = s.RunID
	_, err = c.Execute(t.Context(), req) // asks again, and starts nothing
	if again := suspended(t, err); again.ToolCallID != s.ToolCallID {
		t.Errorf("again: %+v", again)
	}
	_, err = newClient(t, conn, "carol").ToolOutput(t.Context(), client.ToolRequest{RunID: s.RunID})
	if diff := cmp.Diff(s, suspended(t, err)); diff != "" { // by the log as by what was shown
		t.Error(diff)
	}
	if _, err := c.Approve(t.Context(), s.ToolCallID, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // while it runs, and after it has ended
		out, err := c.Execute(t.Context(), req)
		if err != nil || string(out.Result) != `{"refundId":"rf-88","amount":612.5}` || out.RunID != s.RunID {
			t.Errorf("output = %+v, %v", out, err)
		}
		out, err = newClient(t, conn, "carol").ToolOutput(t.Context(), client.ToolRequest{RunID: s.RunID})
		if err != nil || string(out.Result) != `{"refundId":"rf-88","amount":612.5}` {
			t.Errorf("output = %+v, %v", out, err)
		}
	}
	_, err = c.ToolOutput(t.Context(), client.ToolRequest{Tool: "lookup_order", RunID: s.RunID})
	wantCode(t, err, events.CodeInvalidRequest)
	req.Args = json.RawMessage(`{"orderId":"7","amount":1}`)
	_, err = c.Execute(t.Context(), req)
	wantCode(t, err, events.CodeRunExists)
	starts, err := conn.Subjects(t.Context(), ns.EveryMain(events.KindStart))
	if err != nil || len(starts) != 1 {
		t.Errorf("starts = %v, %v", starts, err)
	}
}

// A tool that suspends itself asks, and its output comes of what it is resumed with.
func TestB1_17_SuspendedToolAsks(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	_, err := c.Execute(t.Context(), client.ToolRequest{Tool: "ask_city"})
	s := suspended(t, err)
	if len(s.Asks) != 1 || s.Asks[0].Ask.Kind != events.AskSuspended || string(s.Asks[0].SuspendPayload) != `{"question":"Which city?"}` {
		t.Errorf("suspended = %+v", s)
	}
	if _, err := c.Resume(t.Context(), s.RunID, json.RawMessage(`{"name":"Rome"}`), &client.DecisionOptions{Fingerprint: s.Asks[0].Ask.Fingerprint}); err != nil {
		t.Fatal(err)
	}
	out, err := c.ToolOutput(t.Context(), client.ToolRequest{RunID: s.RunID})
	if err != nil || string(out.Result) != `{"name":"Rome"}` {
		t.Errorf("output = %+v, %v", out, err)
	}
}

// What ends without an output says how: declined, cancelled; or with what a person gave in its place.
func TestB1_17_CallsThatDoNotRun(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	held := func() *client.SuspendedError {
		t.Helper()
		_, err := c.Execute(t.Context(), client.ToolRequest{
			Tool: "lookup_order", Args: json.RawMessage(`{"orderId":"7"}`), RequireToolApproval: agent.Always(),
		})
		return suspended(t, err)
	}
	s := held()
	if _, err := c.Decline(t.Context(), s.ToolCallID, "not today", nil); err != nil {
		t.Fatal(err)
	}
	_, err := c.ToolOutput(t.Context(), client.ToolRequest{RunID: s.RunID})
	f := failed(t, err)
	if f.Outcome != events.OutcomeDeclined || f.Started || f.Reason != "not today" || !strings.Contains(f.Error(), "not today") {
		t.Errorf("failed = %+v", f)
	}
	raw, err := json.Marshal(f)
	if want := `"code":"tool_failed"`; err != nil || !strings.Contains(string(raw), want) || !strings.Contains(string(raw), `"outcome":"declined"`) {
		t.Errorf("as JSON %s, %v", raw, err)
	}
	s = held()
	if _, err := c.Cancel(t.Context(), s.RunID, "enough"); err != nil {
		t.Fatal(err)
	}
	_, err = c.ToolOutput(t.Context(), client.ToolRequest{RunID: s.RunID})
	if f := failed(t, err); f.Outcome != events.OutcomeCancelled || f.Started {
		t.Errorf("failed = %+v", f)
	}
	s = held()
	if _, err := c.Respond(t.Context(), s.ToolCallID, json.RawMessage(`{"orderId":"7","amount":0}`), nil); err != nil {
		t.Fatal(err)
	}
	out, err := c.ToolOutput(t.Context(), client.ToolRequest{RunID: s.RunID})
	if err != nil || out.Outcome != events.OutcomeResponded || string(out.Result) != `{"orderId":"7","amount":0}` {
		t.Errorf("output = %+v, %v", out, err)
	}
}

// Requests that name nothing that is there.
func TestB1_17_RefusedRequests(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	_, err := c.Execute(t.Context(), client.ToolRequest{Tool: "rm"})
	if e := refusal(t, err, events.CodeNotFound); e.What != "tool" {
		t.Errorf("what = %s", e.What)
	}
	for _, req := range []client.ToolRequest{
		{},
		{Tool: "lookup_order", RunID: "a.b"},
		{Tool: "lookup_order", RunID: "r", IdempotencyKey: "k"},
		{Tool: "lookup_order", Context: json.RawMessage(`[1]`)},
	} {
		_, err = c.Execute(t.Context(), req)
		wantCode(t, err, events.CodeInvalidRequest)
	}
	_, err = c.ToolOutput(t.Context(), client.ToolRequest{RunID: "r9"})
	wantCode(t, err, events.CodeNotFound)
	out, err := c.Generate(t.Context(), client.Request{Agent: "clerk", Prompt: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.ToolOutput(t.Context(), client.ToolRequest{RunID: out.RunID})
	wantCode(t, err, events.CodeInvalidRequest)
	_, err = clientWith(t, conn, client.Config{Principal: "bob", LiveOnly: true}).ToolOutput(t.Context(), client.ToolRequest{RunID: "r9"})
	wantCode(t, err, events.CodeForbidden)
}

// Who does not wait for ever is told that the call has not finished, and a call that nobody plans can be cancelled.
func TestB1_17_NotFinishedInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := start(t)
		c := newClient(t, conn, "bob")
		_, err := c.Execute(t.Context(), client.ToolRequest{Tool: "lookup_order", Wait: 30 * time.Second})
		if s := suspended(t, err); len(s.Asks) != 0 || !strings.Contains(s.Error(), "not finished") {
			t.Errorf("suspended = %+v", s)
		}
		ctx, cancel := contextWithCause(t)
		why := errors.New("enough")
		cancel(why)
		if _, err := c.Execute(ctx, client.ToolRequest{Tool: "lookup_order", Wait: time.Second}); err == nil || errors.As(err, new(*client.SuspendedError)) {
			t.Errorf("error = %v", err)
		}
	})
}

// A tool is registered once, and found by its id or by the key of an agent.
func TestB1_15_ToolsByIDAndKey(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	apply(t, conn, &agent.Agent{ID: "billing", Model: "scripted/clerk", ToolIDs: map[string]string{"refund": "issue_refund", "find": "lookup_order"}})
	apply(t, conn, &agent.Agent{ID: "search", Model: "scripted/clerk", ToolIDs: map[string]string{"find": "ask_city", "ask_city": "lookup_order"}})
	c := newClient(t, conn, "bob")
	if _, err := c.Execute(t.Context(), client.ToolRequest{Tool: "lookup_order", Args: json.RawMessage(`{"orderId":"1"}`)}); err != nil {
		t.Fatal(err) // what hosts it has said so before
	}
	all, err := c.Tools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, tool := range all {
		ids = append(ids, tool.ID)
	}
	if diff := cmp.Diff([]string{"ask_city", "issue_refund", "lookup_order"}, ids); diff != "" {
		t.Error(diff)
	}
	refund, err := c.Tool(t.Context(), "refund")
	if err != nil {
		t.Fatal(err)
	}
	keys := []client.ToolKey{{"billing", "refund"}, {"clerk", "issue_refund"}, {"support", "issue_refund"}, {"talker", "issue_refund"}}
	if diff := cmp.Diff(keys, refund.Keys); diff != "" || refund.ID != "issue_refund" || len(refund.Hosts) != 1 || refund.Hosts[0].Pool != "default" {
		t.Errorf("tool = %+v\n%s", refund, diff)
	}
	byID, err := c.Tool(t.Context(), "ask_city") // also the key of another tool
	if err != nil || byID.ID != "ask_city" {
		t.Errorf("tool = %+v, %v", byID, err)
	}
	_, err = c.Tool(t.Context(), "find")
	if e := refusal(t, err, events.CodeAmbiguous); !strings.Contains(e.Message, "ask_city (of search), lookup_order (of billing)") {
		t.Errorf("message = %s", e.Message)
	}
	_, err = c.Tool(t.Context(), "rm")
	wantCode(t, err, events.CodeNotFound)
}

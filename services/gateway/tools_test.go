package gateway_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// Agents and tools are listed with the shapes that Mastra's client reads.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	raw, err := events.Marshal(events.RuleSet{Name: "default", Rules: []events.Rule{{Name: "r", Tools: []string{"lookup_*"}, Agents: []string{"clerk"}, Action: events.RuleAsk}}})
	must(t, err)
	must(t, conn.PutNamed(t.Context(), events.RegistryRule, "default", raw))
	s := open(t, conn)

	type tool struct {
		ID, InputSchema, OutputSchema, ResumeSchema string
		RequireApproval                             bool
	}
	type def struct {
		ID, Name, Instructions, Provider, ModelID string
		Tools                                     map[string]tool
	}
	agents := map[string]def{}
	s.get("/api/agents").want(http.StatusOK).into(&agents)
	clerk := agents["clerk"]
	if clerk.Name != "Clerk" || clerk.Provider != "scripted" || clerk.ModelID != "clerk" || agents["other"].Name != "other" || len(agents) != 2 {
		t.Errorf("agents = %+v", agents)
	}
	refund, lookup, ask := clerk.Tools["refund"], clerk.Tools["lookup"], clerk.Tools["ask"]
	if refund.ID != "issue_refund" || !refund.RequireApproval || ask.RequireApproval || !lookup.RequireApproval {
		t.Errorf("tools = %+v; want refund held by itself and lookup by a rule", clerk.Tools)
	}
	var schema struct{ JSON json.RawMessage }
	if err := json.Unmarshal([]byte(refund.InputSchema), &schema); err != nil || !strings.Contains(string(schema.JSON), `"orderId"`) {
		t.Errorf("input schema = %s", refund.InputSchema)
	}
	one := def{}
	s.get("/api/agents/clerk?requestContext=eyJ9").want(http.StatusOK).into(&one)
	if one.ID != "clerk" || len(one.Tools) != 5 {
		t.Errorf("agent = %+v", one)
	}
	if partial := s.get("/api/agents?partial=true").want(http.StatusOK).body; strings.Contains(partial, "inputSchema") {
		t.Errorf("partial = %s", partial)
	}
	s.get("/api/agents/nope").want(http.StatusNotFound, `"error":"Agent with id nope not found"`, `"what":"agent"`)

	tools := map[string]tool{}
	s.get("/api/tools").want(http.StatusOK).into(&tools)
	if tools["refund"].ID != "issue_refund" || tools["read_closed"].ID != "read_closed" || tools["lookup"].RequireApproval || len(tools) != 6 {
		t.Errorf("tools = %+v", tools)
	}
	for _, path := range []string{"/api/tools/issue_refund", "/api/tools/refund", "/api/agents/clerk/tools/refund", "/api/agents/clerk/tools/issue_refund"} {
		s.get(path).want(http.StatusOK, `"id":"issue_refund"`)
	}
	for _, path := range []string{"/api/tools/nope", "/api/agents/other/tools/refund"} {
		s.get(path).want(http.StatusNotFound, `"error":"Tool not found"`)
	}
}

// A tool that is executed directly answers its output, bare. Wrong arguments are answered with the object that says what is
// wrong with them; a failure says by its status whether the request may be made again.
func TestB1_16_B19_6_ExecuteTool(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	a := s.post("/api/tools/lookup_order/execute", `{"data":{"orderId":"1042"}}`).want(http.StatusOK)
	if a.body != `{"orderId":"1042","amount":612.5}` || a.header.Get("Weir-Run-Id") == "" {
		t.Errorf("answer = %s, %v", a.body, a.header)
	}
	s.post("/api/agents/clerk/tools/lookup/execute", `{"data":{"orderId":"7"},"unknown":1,"requestContext":{"a":1}}`).want(http.StatusOK, `"7"`)
	s.post("/api/tools/issue_refund/execute", `{"data":{"orderId":5}}`).want(http.StatusOK, `"error":true`, "Tool input validation failed for issue_refund", `"validationErrors"`)
	s.post("/api/tools/nope/execute", `{"data":{}}`).want(http.StatusNotFound, `"error":"Tool not found"`)
	s.post("/api/tools/read_closed/execute", `{"data":{}}`).want(http.StatusInternalServerError, `"error":"bank is closed"`, `"code":"tool_failed"`)
	s.post("/api/tools/pay_closed/execute", `{"data":{}}`).want(http.StatusUnprocessableEntity,
		`"error":"bank is closed"`, `"code":"tool_failed"`, `"outcome":"error"`, `"runId":"`, `"toolCallId":"`)
	s.post("/api/tools/lookup_order/execute?runId=a.b", `{"data":{}}`).want(http.StatusBadRequest, `"code":"invalid_request"`)
}

// A call that is held answers that it waits, so that nobody takes it for an output; the same request gets the output once
// somebody has decided, and runs nothing twice.
func TestB1_16_HeldToolAsksAgain(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	body := `{"data":{"orderId":"1","amount":5}}`
	var held struct {
		RunID, ToolCallID, Status, Code string
		Error                           bool
		Asks                            []events.AskPayload
	}
	s.post("/api/tools/issue_refund/execute?runId=r7", body).want(http.StatusAccepted).into(&held)
	if !held.Error || held.Code != "suspended" || held.RunID != "r7" || held.ToolCallID != "r7=1-1" || held.Status != "suspended" || len(held.Asks) != 1 {
		t.Errorf("held = %+v", held)
	}
	s.post("/api/tools/issue_refund/execute?runId=r7", body).want(http.StatusAccepted)
	s.post("/api/tools/issue_refund/execute?runId=r7", `{"data":{"orderId":"2"}}`).want(http.StatusConflict, `"code":"run_exists"`)
	_, err := client.New(conn, client.Config{Principal: "alice"}).Approve(t.Context(), "r7=1-1", nil)
	must(t, err)
	s.post("/api/tools/issue_refund/execute?runId=r7", body).want(http.StatusOK, `{"orderId":"1","amount":5}`)
	s.post("/api/tools/issue_refund/execute?runId=r7", body).want(http.StatusOK, `{"orderId":"1","amount":5}`)

	s.post("/api/tools/issue_refund/execute?runId=r8", body).want(http.StatusAccepted)
	_, err = client.New(conn, client.Config{Principal: "alice"}).Decline(t.Context(), "r8=1-1", "not today", nil)
	must(t, err)
	s.post("/api/tools/issue_refund/execute?runId=r8", body).want(http.StatusUnprocessableEntity, `"outcome":"declined"`, `not today`)
}

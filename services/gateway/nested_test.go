package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/services/agent"
)

// nestedTypes are the types of the chunks of a list, those of runs below in brackets.
func nestedTypes(list []chunk) string {
	var names []string
	for _, c := range list {
		name := c.Type
		if c.Type == "tool-output" {
			name = "(" + c.Payload.Output.Type + ")"
		}
		if len(names) == 0 || names[len(names)-1] != name || !strings.Contains(name, "-delta") {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// TestB12_11_NestedChunks: what a sub-agent says comes where it says it, as tool-output of the delegated call from the user, with the
// inner run's id; that it begins is said by what it says.
func TestB12_11_NestedChunks(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	put(t, conn, &agent.Agent{ID: "boss", Model: "scripted/clerk", AgentIDs: map[string]string{"clerk": "clerk"}})
	s := open(t, conn)
	list := s.post("/api/agents/boss/stream", `{"messages":"delegate look"}`).frames()
	if got := nestedTypes(list); !strings.HasPrefix(got, "start step-start tool-call (start) (step-start)") || !strings.Contains(got, "(tool-call) (tool-result)") ||
		!strings.HasSuffix(got, "(finish) tool-result step-finish step-start "+text+" step-finish finish") || strings.Contains(got, "child-start") {
		t.Errorf("chunks = %s, want those of the clerk within", got)
	}
	run := list[0].RunID
	for _, c := range list {
		if c.Type == "tool-output" && (c.From != "USER" || c.RunID != run || c.Payload.ToolName != "agent-clerk" || c.Payload.ToolCallID != run+"=1-1" ||
			c.Payload.Output.RunID != run+"=1-1" || c.Cursor == 0) {
			t.Errorf("a nested chunk is %+v", c)
		}
	}
	s.get("/api/runs/"+run+"/chunks?cursor=0").want(http.StatusOK, `"type":"child-start"`, `"toolName":"agent-clerk"`)
}

// TestB12_7_B12_8_B12_9_AskBelow: the question of a sub-agent is the run's own, about the call that the client has seen, with the
// leaf's tool and arguments; the ask inside names the leaf. Either id decides it, and the run goes on where it is followed.
func TestB12_7_B12_8_B12_9_AskBelow(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	put(t, conn, &agent.Agent{ID: "boss", Model: "scripted/clerk", AgentIDs: map[string]string{"clerk": "clerk"}})
	s := open(t, conn)
	for _, by := range []string{"=1-1", "=1-1=1-1"} {
		list := s.post("/api/agents/boss/stream", `{"messages":"delegate pay"}`).frames()
		last := list[len(list)-1]
		run := last.RunID
		if last.Type != "tool-call-approval" || last.Payload.ToolName != "refund" || last.Payload.ToolCallID != run+"=1-1" ||
			last.Payload.Ask.ToolCallID != run+"=1-1=1-1" || !strings.Contains(string(last.Payload.Args), `"orderId"`) {
			t.Fatalf("ends with %+v", last)
		}
		s.get("/api/agents/boss/suspended-runs").want(http.StatusOK, `"toolCallId":"`+run+`=1-1","toolName":"refund"`, `"requiresApproval":true`)
		s.get("/api/asks").want(http.StatusOK, `"toolCallId":"`+run+`=1-1=1-1"`)
		list = s.post("/api/agents/boss/approve-tool-call", map[string]string{"runId": run, "toolCallId": run + by}).frames()
		got := nestedTypes(list)
		if !strings.HasPrefix(got, "(tool-result) (step-finish)") || !strings.HasSuffix(got, "(finish) tool-result step-finish step-start "+text+" step-finish finish") {
			t.Errorf("after the decision by %s: %s", by, got)
		}
	}
}

// TestB12_19_GenerateBelow: a supervisor's suspension has the leaf's tool and says that it needs approval, under the id that the
// client has seen.
func TestB12_19_GenerateBelow(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	put(t, conn, &agent.Agent{ID: "boss", Model: "scripted/clerk", AgentIDs: map[string]string{"clerk": "clerk"}})
	s := open(t, conn)
	var out struct {
		RunID          string
		FinishReason   string
		SuspendPayload struct{ ToolCallID, ToolName string }
		ToolCalls      []struct {
			Payload struct{ ToolCallID, ToolName string }
		}
	}
	s.post("/api/agents/boss/generate", `{"messages":"delegate pay"}`).want(http.StatusOK, `"pendingToolApprovals":{"`, `"type":"approval"`).into(&out)
	call := out.RunID + "=1-1"
	if out.FinishReason != "suspended" || out.SuspendPayload.ToolCallID != call || out.SuspendPayload.ToolName != "refund" ||
		len(out.ToolCalls) != 1 || out.ToolCalls[0].Payload.ToolCallID != call {
		t.Errorf("output = %+v", out)
	}
	s.post("/api/agents/boss/approve-tool-call-generate", map[string]string{"runId": out.RunID, "toolCallId": call}).
		want(http.StatusOK, `"finishReason":"stop"`, `"runId":"`+out.RunID+`"`)
}

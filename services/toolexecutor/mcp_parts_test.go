package toolexecutor

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// TestB18_6Parts: images, sounds and resources reach the model as parts, beside what is structured.
func TestB18_6Parts(t *testing.T) {
	t.Parallel()
	answer := func(r *mcp.CallToolResult) mcpHandler {
		return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return r, nil }
	}
	image := &mcp.ImageContent{Data: []byte("png"), MIMEType: "image/png"}
	m := newMCP(t, overWeb(t, mcpServerOf(map[string]mcpHandler{
		"all": answer(&mcp.CallToolResult{Content: []mcp.Content{
			&mcp.TextContent{Text: "see"}, image, &mcp.AudioContent{Data: []byte("wav"), MIMEType: "audio/wav"},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///a.pdf", MIMEType: "application/pdf", Blob: []byte("pdf")}},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///a.txt", MIMEType: "text/plain", Text: "hello"}},
			&mcp.ResourceLink{URI: "file:///b", Name: "b"},
		}}),
		"both": answer(&mcp.CallToolResult{StructuredContent: json.RawMessage(`{"n":1}`), Content: []mcp.Content{image}}),
		"text": answer(texts("one", "two")),
	}), newProtocol, nil))
	for name, want := range map[string]string{
		"all": `[{"type":"text","text":"see"},{"type":"image-data","data":"cG5n","mediaType":"image/png"},` +
			`{"type":"file-data","data":"d2F2","mediaType":"audio/wav"},` +
			`{"type":"file-data","data":"cGRm","mediaType":"application/pdf","filename":"file:///a.pdf"},` +
			`{"type":"text","text":"file:///a.txt\nhello"},` +
			`{"type":"text","text":"{\"type\":\"resource_link\",\"uri\":\"file:///b\",\"name\":\"b\"}"}]`,
		"both": `[{"type":"text","text":"{\"n\":1}"},{"type":"image-data","data":"cG5n","mediaType":"image/png"}]`,
		"text": "",
	} {
		tool, call := listedTool(t, m, name), callOf(agent.CallInfo{})
		got := agent.Execute(t.Context(), tool, call, json.RawMessage(`{}`))
		if got.Outcome != events.OutcomeOK {
			t.Fatalf("%s = %s %+v", name, got.Outcome, got.Error)
		}
		o, err := agent.MapResult(t.Context(), tool, call, got.Result)
		if err != nil {
			t.Fatal(err)
		}
		told := ""
		if o != nil {
			told = string(o.Value)
		}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("%s: the model is told (-want +got):\n%s", name, diff)
		}
	}
}

// FuzzMCPAnswer: whatever a server says, nothing panics, and what is made of it is JSON within its bounds.
func FuzzMCPAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"result":{"content":[{"type":"text","text":"x"}]}}`, `{"result":{"isError":true,"structuredContent":{"a":1}}}`,
		`{"result":{"resultType":"input_required","requestState":"s","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object"}}}}}}`,
		`{"result":{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"requestedSchema":7}},"b":null}}}`,
		`{"result":{"tools":[{"name":"a","inputSchema":{"type":"object"}},null,{"name":3},{"name":"b","outputSchema":[]}],"nextCursor":"c"}}`,
		"event: message\ndata: {\"result\":\ndata: {}}\n\n", "data:\r\rdata: {\"error\":{\"code\":1}}", `{"result":{"content":{"a":null}}}`,
		`{"result":{"content":[{"type":"image","data":"x"},{"type":"resource"},7,null]}}`, "", "null", "[]", `{"error":null}`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	m, err := NewMCP(MCPDef{ID: "fuzz", URL: "https://unused.example"})
	if err != nil {
		f.Fatal(err)
	}
	tool := &mcpTool{server: m, name: "tool", outside: outside{redact: m.redact, manifest: agent.Complete(events.Manifest{ID: "fuzz_tool"})}}
	f.Fuzz(func(t *testing.T, body []byte, stream bool) {
		reply := replyIn(mcpMessages(stream, body))
		if reply == nil || reply.Result == nil {
			return
		}
		c := call{x: &mcpExchange{call: callOf(agent.CallInfo{})}}
		result, err := tool.outcome(t.Context(), c, reply.Result)
		if err == nil && events.CheckJSON(result) != nil {
			t.Errorf("the result is not JSON: %s", result)
		}
		if _, err := tool.MapOutput(t.Context(), c.x.call, result); err != nil {
			t.Error(err)
		}
		listing := &mcpListing{tools: map[string]mcpListed{}}
		if _, err := listing.add("fuzz", reply.Result); err != nil {
			return
		}
		listing.complete(m.def, mcpImplementation{})
		for name, manifest := range listing.manifests {
			if err := agent.Check(manifestOnly{manifest: manifest}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

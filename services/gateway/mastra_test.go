package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// chunk is a frame as a client reads it.
type chunk struct {
	Type    string
	RunID   string `json:"runId"`
	From    string
	Payload struct {
		ID, Text, ToolCallID, ToolName, ResumeSchema string
		Args, Result                                 json.RawMessage
		Ask                                          events.AskBrief
		Approval                                     struct{ Reason string }
		StepResult                                   struct {
			Reason      string
			IsContinued bool
		}
		Output struct {
			ToolCalls   []events.ToolCallPayload
			Type, RunID string // of a nested chunk
		}
		Error struct{ Message string }
	}
	Cursor uint64
	Repeat bool
}

// frames reads the chunks of a stream, which must have the framing that Mastra's client takes: every frame begins with
// "data: " and has one line, and the last one is [DONE].
func (a answer) frames() []chunk {
	a.t.Helper()
	if a.status != http.StatusOK || a.header.Get("Content-Type") != "text/event-stream" || a.header.Get("X-Accel-Buffering") != "no" {
		a.t.Fatalf("status = %d, headers = %v: %s", a.status, a.header, a.body)
	}
	body, ok := strings.CutSuffix(a.body, "data: [DONE]\n\n")
	if !ok {
		a.t.Fatalf("the stream does not end with [DONE]: %s", a.body)
	}
	var list []chunk
	for frame := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		if strings.HasPrefix(frame, ":") || frame == "" {
			continue
		}
		text, ok := strings.CutPrefix(frame, "data: ")
		if !ok || strings.Contains(text, "\n") {
			a.t.Fatalf("a client does not take this frame: %q", frame)
		}
		var c chunk
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			a.t.Fatalf("%v: %s", err, text)
		}
		list = append(list, c)
	}
	return list
}

// types are what the chunks are, deltas of one kind in a row as one.
func types(list []chunk) string {
	var names []string
	for _, c := range list {
		if name := c.Type; len(names) == 0 || names[len(names)-1] != name || !strings.HasSuffix(name, "-delta") {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

func wantTypes(t *testing.T, list []chunk, want string) {
	t.Helper()
	if got := types(list); got != want {
		t.Errorf("chunks = %s\nwant %s", got, want)
	}
}

const (
	text = "text-start text-delta text-end"
	call = "tool-call"
)

// A run is streamed from its start to its finish, in the order and with the framing that Mastra's client needs.
func TestB19_1_Stream(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	a := s.post("/api/agents/clerk/stream", `{"messages":"hello"}`)
	list := a.frames()
	wantTypes(t, list, "start step-start "+text+" step-finish finish")
	if id := a.header.Get("Weir-Run-Id"); id == "" || list[0].RunID != id || list[0].From != "AGENT" || list[0].Cursor == 0 || a.header.Get("Weir-Cursor") != "0" {
		t.Errorf("headers = %v, first = %+v", a.header, list[0])
	}
	list = s.post("/api/agents/clerk/stream/vnext", `{"messages":[{"role":"user","content":[{"type":"text","text":"look"}]}],"unknown":{}}`).frames()
	wantTypes(t, list, "start step-start "+text+" "+call+" tool-result step-finish step-start "+text+" step-finish finish")
	list = s.post("/api/agents/clerk/stream", `{"messages":"fail"}`).frames()
	wantTypes(t, list, "start step-start error step-finish finish")
	s.post("/api/agents/nope/stream", `{"messages":"hello"}`).want(http.StatusNotFound, "Agent with id nope not found")
}

// A held call ends the stream with its ask; the decision's response begins with the result and goes on to the end.
func TestB19_3_B19_5_ApproveAndDecline(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	list := s.post("/api/agents/clerk/stream", `{"messages":"pay"}`).frames()
	wantTypes(t, list, "start step-start "+call+" tool-call-approval")
	ask := list[len(list)-1]
	if !json.Valid([]byte(ask.Payload.ResumeSchema)) || ask.Payload.Ask.Fingerprint == "" || ask.Payload.ToolCallID != ask.RunID+"=1-1" {
		t.Errorf("ask = %+v", ask)
	}
	about := map[string]string{"runId": ask.RunID, "toolCallId": ask.Payload.ToolCallID}
	s.post("/api/agents/other/approve-tool-call", about).want(http.StatusForbidden, `"error":"Access denied"`)
	list = s.post("/api/agents/clerk/approve-tool-call?repeat=1", about).frames()
	wantTypes(t, list, "tool-call tool-result step-finish step-start "+text+" step-finish finish")
	if !list[0].Repeat || list[1].Repeat || string(list[1].Payload.Result) != `{"orderId":"1","amount":1}` {
		t.Errorf("continuation = %+v", list[:2])
	}
	s.post("/api/agents/clerk/approve-tool-call", about).want(http.StatusConflict, `"code":"already_decided"`, `"decision":"approve"`, `"same":true`)

	ask = s.held("pay")
	about = map[string]string{"runId": ask.RunID, "toolCallId": ask.Payload.ToolCallID, "reason": "nope"}
	list = s.post("/api/agents/clerk/decline-tool-call", about).frames()
	wantTypes(t, list, "tool-output-denied step-finish step-start "+text+" step-finish finish")
	if list[0].Payload.Approval.Reason != "nope" {
		t.Errorf("denied = %+v", list[0])
	}
	for _, c := range []struct {
		body   any
		status int
		text   string
	}{
		{map[string]string{"runId": "nope", "toolCallId": "nope=1-1"}, http.StatusNotFound, `"code":"not_found"`},
		{map[string]string{"runId": ask.RunID, "toolCallId": "bogus"}, http.StatusNotFound, `"what":"call"`},
		{map[string]string{"runId": "a b", "toolCallId": "a b=1-1"}, http.StatusNotFound, `"what":"run"`},
		{map[string]string{"runId": ask.RunID}, http.StatusBadRequest, `"field":"toolCallId"`},
		{map[string]string{"toolCallId": "x"}, http.StatusBadRequest, `"field":"runId"`},
		{`{"runId":5}`, http.StatusBadRequest, `"field":"runId"`},
		{`{"reason":"` + strings.Repeat("x", 64<<10) + `"}`, http.StatusRequestEntityTooLarge, `"code":"too_large"`},
	} {
		s.post("/api/agents/clerk/approve-tool-call", c.body).want(c.status, c.text)
	}
}

// held starts a run that waits, and gives its last ask.
func (s *site) held(prompt string) chunk {
	s.t.Helper()
	list := s.post("/api/agents/clerk/stream", map[string]string{"messages": prompt}).frames()
	last := list[len(list)-1]
	if last.Payload.Ask.ToolCallID == "" {
		s.t.Fatalf("the run does not wait: %s", types(list))
	}
	return last
}

// A suspended tool gets its data by resume-stream. Data that does not fit is refused and leaves the call as it was, and what
// this kind of ask does not take is no decision.
func TestB19_3_ResumeStream(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	ask := s.held("city")
	if ask.Type != "tool-call-suspended" || ask.Payload.Ask.Round != 1 {
		t.Errorf("ask = %+v", ask)
	}
	about := map[string]any{"runId": ask.RunID, "toolCallId": ask.Payload.ToolCallID}
	s.post("/api/agents/clerk/approve-tool-call", about).want(http.StatusConflict, `"code":"wrong_kind"`)
	s.post("/api/agents/clerk/resume-stream", about).want(http.StatusBadRequest, `"field":"resumeData"`)
	about["resumeData"] = false
	s.post("/api/agents/clerk/resume-stream", about).want(http.StatusUnprocessableEntity, `"code":"invalid_data"`, `"issues"`)
	delete(about, "toolCallId") // the one that waits
	about["resumeData"] = map[string]string{"name": "Oslo"}
	list := s.post("/api/agents/clerk/resume-stream", about).frames()
	wantTypes(t, list, "tool-result step-finish step-start "+text+" step-finish finish")

	ask = s.held("pay two")
	s.post("/api/agents/clerk/resume-stream", map[string]any{"runId": ask.RunID, "resumeData": true}).want(http.StatusConflict, `"code":"ambiguous"`)
	about = map[string]any{"runId": ask.RunID, "toolCallId": ask.Payload.ToolCallID, "resumeData": map[string]bool{"approved": true}}
	s.post("/api/agents/clerk/resume-stream", about).want(http.StatusConflict, `"code":"wrong_kind"`)
}

// Several asks come at once and each is decided alone. A response whose run still waits ends with what it waits for, also
// when that was shown before.
func TestB19_5_OneOfTwoAsks(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	list := s.post("/api/agents/clerk/stream", `{"messages":"pay and look"}`).frames()
	if last := list[len(list)-1]; last.Type != "tool-call-approval" {
		t.Errorf("the response ends with %s: %s", last.Type, types(list))
	}
	list = s.post("/api/agents/clerk/stream", `{"messages":"pay two"}`).frames()
	run := list[0].RunID
	asks := slices.DeleteFunc(slices.Clone(list), func(c chunk) bool { return c.Type != "tool-call-approval" })
	if len(asks) != 2 || list[len(list)-1].Type != "tool-call-approval" {
		t.Fatalf("chunks = %s", types(list))
	}
	list = s.post("/api/agents/clerk/approve-tool-call", map[string]string{"runId": run, "toolCallId": run + "=1-2"}).frames()
	wantTypes(t, list, "tool-result tool-call-approval")
	if last := list[1]; !last.Repeat || last.Payload.ToolCallID != run+"=1-1" || last.Payload.Ask.Fingerprint == "" {
		t.Errorf("repeated ask = %+v", last)
	}
	list = s.post("/api/agents/clerk/decline-tool-call", map[string]string{"runId": run, "toolCallId": run + "=1-1"}).frames()
	wantTypes(t, list, "tool-output-denied step-finish step-start "+text+" step-finish finish")
}

// generate answers the whole output when the run ends, and what it waits for when it does not; the output after a decision
// has what was before it.
func TestB19_2_B19_4_Generate(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	type output struct {
		Text, FinishReason, RunID, ResumeSchema string
		Usage                                   events.Usage
		Steps                                   []struct {
			Text                   string
			ToolCalls, ToolResults []chunk
		}
		ToolCalls      []chunk
		SuspendPayload struct{ ToolCallID, ToolName string }
		Asks           []events.AskPayload
		Response       struct{ Messages []struct{ Role string } }
	}
	var out output
	s.post("/api/agents/clerk/generate", `{"messages":["look"]}`).want(http.StatusOK, `"warnings":[]`, `"sources":[]`).into(&out)
	if out.Text != "Let me look.Done." || out.FinishReason != "stop" || len(out.Steps) != 2 || out.Steps[0].ToolResults[0].Type != "tool-result" ||
		out.Usage.TotalTokens == 0 || len(out.Response.Messages) != 3 {
		t.Errorf("output = %+v", out)
	}
	out = output{}
	s.post("/api/agents/clerk/generate", `{"messages":"pay two"}`).want(http.StatusOK, `"pendingToolApprovals"`).into(&out)
	if out.FinishReason != "suspended" || out.Text != "" || len(out.Asks) != 2 || out.SuspendPayload.ToolCallID != out.RunID+"=1-1" ||
		out.SuspendPayload.ToolName != "refund" || out.ResumeSchema == "" || len(out.ToolCalls) != 2 || out.ToolCalls[0].Type != "tool-call" {
		t.Errorf("output = %+v", out)
	}
	run := out.RunID
	out = output{}
	s.post("/api/agents/clerk/approve-tool-call-generate", map[string]string{"runId": run, "toolCallId": run + "=1-1"}).want(http.StatusOK).into(&out)
	if out.FinishReason != "suspended" || len(out.Asks) != 1 || out.SuspendPayload.ToolCallID != run+"=1-2" {
		t.Errorf("output = %+v", out)
	}
	out = output{}
	s.post("/api/agents/clerk/decline-tool-call-generate", map[string]string{"runId": run, "toolCallId": run + "=1-2"}).want(http.StatusOK).into(&out)
	if out.FinishReason != "stop" || out.Text != "Done." || len(out.Steps) != 2 || len(out.Steps[0].ToolResults) != 2 {
		t.Errorf("output = %+v", out)
	}
	suspended := client.Page{}
	s.held("pay")
	s.get("/api/agents/clerk/suspended-runs?perPage=1").want(http.StatusOK).into(&suspended)
	if suspended.Total != 1 || !suspended.Runs[0].ToolCalls[0].RequiresApproval {
		t.Errorf("suspended = %+v", suspended)
	}
	s.get("/api/agents/other/suspended-runs").want(http.StatusOK, `"total":0`)
	s.get("/api/agents/clerk/suspended-runs?perPage=0").want(http.StatusBadRequest, `"field":"perPage"`)
	s.get("/api/agents/clerk/suspended-runs?fromDate=x").want(http.StatusBadRequest, `"field":"fromDate"`)
}

// A failing model is an error that may be repeated, until a call with an effect was released: then it is one that must not.
func TestB19_6_FailedRun(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	s.post("/api/agents/clerk/generate", `{"messages":"fail"}`).want(http.StatusInternalServerError, `"code":"model_failed"`, "the model is broken")
	s.post("/api/agents/clerk/generate", `{"messages":"pay closed"}`).want(http.StatusUnprocessableEntity, `"code":"run_failed"`, `"outcome":"failed"`, `"cause":"model_failed"`)
}

// What a run cannot do is refused before it starts, with the field that asks for it.
func TestStartOptions(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	for field, body := range map[string]string{
		"messages":                `{}`,
		"messages[0].role":        `{"messages":[{"role":"robot","content":"x"}]}`,
		"maxSteps":                `{"messages":"x","maxSteps":"a"}`,
		"toolsets":                `{"messages":"x","toolsets":{"a":{}}}`,
		"stopWhen":                `{"messages":"x","stopWhen":{"steps":1}}`,
		"structuredOutput.schema": `{"messages":"x","structuredOutput":{"schema":{"type":"nothing"}}}`,
		"toolChoice":              `{"messages":"x","toolChoice":{"type":"none"}}`,
		"memory.thread":           `{"messages":"x","memory":{"thread":5}}`,
	} {
		s.post("/api/agents/clerk/generate", body).want(http.StatusBadRequest, `"field":"`+field+`"`)
	}
	s.post("/api/agents/clerk/generate", `{"messages":"x","runId":"a=b"}`).want(http.StatusBadRequest, `"code":"invalid_request"`)
	s.post("/api/agents/clerk/generate", `{"messages":"x","maxSteps":3,"requireToolApproval":true,"memory":{"thread":{"id":"t"},"resource":"u"},
		"instructions":"Be kind.","system":"Be brief.","context":[{"role":"user","content":"earlier"}],"toolChoice":"none","activeTools":[],
		"toolsets":{},"modelSettings":{},"savePerStep":true}`).want(http.StatusOK, `"text":"Done."`)
}

// A run that is asked for a value has it in its output and in its stream.
func TestB13_11_Object(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	const fallback = `"structuredOutput":{"schema":{"type":"object","required":["name"]},"errorStrategy":"fallback","fallbackValue":{"name":"nobody"}}`
	s.post("/api/agents/clerk/generate", `{"messages":"x",`+fallback+`}`).want(http.StatusOK, `"object":{"name":"nobody"}`, `"usedFallbackValue":true`)
	s.post("/api/agents/clerk/generate", `{"messages":"x","structuredOutput":{"schema":{"type":"object"}}}`).
		want(http.StatusUnprocessableEntity, `"code":"run_failed"`, `"cause":"structured_output_invalid"`)
	s.post("/api/agents/clerk/generate", `{"messages":"x","structuredOutput":{"schema":{"type":"object"},"model":"nobody/x"}}`).
		want(http.StatusBadRequest, `"code":"invalid_request"`, "nobody")
	s.post("/api/agents/clerk/stream", `{"messages":"x",`+fallback+`}`).
		want(http.StatusOK, `"type":"object-result"`, `"object":{"name":"nobody"}`, `"type":"step-finish"`)
}

// The same request with the same key, by the same principal, is the same run, streamed from its beginning; another one is
// refused.
func TestB19_8_IdempotencyKey(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	first := s.post("/api/agents/clerk/stream", `{"messages":"pay"}`, "Idempotency-Key", "k1").frames()
	again := s.post("/api/agents/clerk/stream", `{"messages":"pay"}`, "Idempotency-Key", "k1").frames()
	if types(first) != types(again) || first[0].RunID != again[0].RunID || first[len(first)-1].Cursor != again[len(again)-1].Cursor {
		t.Errorf("first = %s\nagain = %s", types(first), types(again))
	}
	s.post("/api/agents/clerk/generate", `{"messages":"look"}`, "Idempotency-Key", "k1").want(http.StatusConflict, `"code":"run_exists"`)
}

// A client that hangs up does not stop its run, unless it has asked for that.
func TestHangUp(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	c := client.New(conn, client.Config{Principal: "alice"})
	t.Cleanup(c.Close)
	hangUp := func(path, prompt string, header ...string) *client.Run {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		r := s.request(http.MethodPost, path, map[string]string{"messages": prompt}, header...).WithContext(ctx)
		resp, err := http.DefaultClient.Do(r)
		must(t, err)
		defer func() { _ = resp.Body.Close() }()
		_, err = bufio.NewReader(resp.Body).ReadString('\n')
		must(t, err)
		return c.Run(resp.Header.Get("Weir-Run-Id"))
	}
	out, err := hangUp("/api/agents/clerk/stream", "pay").Wait(t.Context())
	must(t, err)
	if out.FinishReason != client.FinishSuspended {
		t.Errorf("the run is %s, want it to go on and wait", out.FinishReason)
	}
	for _, run := range []*client.Run{ // whose tool runs until somebody cancels it
		hangUp("/api/agents/clerk/stream?abortOnClose=true", "wait"),
		hangUp("/api/agents/clerk/stream", "wait", "Weir-Abort-On-Close", "true"),
	} {
		if out, err = run.Wait(t.Context()); err != nil || out.FinishReason != client.FinishCancelled {
			t.Errorf("the run is %+v, %v; want it cancelled", out, err)
		}
	}
}

// Of a client's own tool the turn ends with its call, and the result that the client posts continues the same run.
func TestB20_2_ClientTools(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	const tools = `"clientTools":{"color":{"id":"color","description":"c","inputSchema":{"type":"object","properties":{"c":{"type":"string"}},"required":["c"]}}}`
	list := s.post("/api/agents/clerk/stream", `{"messages":"color",`+tools+`}`).frames()
	wantTypes(t, list, "start step-start "+call+" step-finish finish")
	end := list[len(list)-1]
	if end.Payload.StepResult.Reason != "tool-calls" || end.Payload.StepResult.IsContinued || len(end.Payload.Output.ToolCalls) != 1 {
		t.Errorf("finish = %+v", end)
	}
	run := end.RunID
	back := `{"messages":[{"id":"m","role":"assistant","content":"","parts":[{"type":"step-start"},{"type":"tool-invocation","toolInvocation":
		{"state":"call","step":0,"toolCallId":"` + run + `=1-1","toolName":"color","args":{"c":"red"}}}]},
		{"role":"tool","content":[{"type":"tool-result","toolCallId":"` + run + `=1-1","toolName":"color","result":{"ok":true}}]}],` + tools + `}`
	s.post("/api/agents/other/stream", back).want(http.StatusForbidden)
	for range 2 { // the second is the same request again, whose answer was lost
		list = s.post("/api/agents/clerk/stream", back).frames()
		wantTypes(t, list, "start step-start "+text+" step-finish finish")
		if list[0].RunID != run || list[len(list)-1].RunID != run {
			t.Errorf("the continuation is of run %s, want %s", list[0].RunID, run)
		}
	}

	var out struct {
		FinishReason, RunID, Text string
		ToolCalls                 []chunk
		Response                  struct{ Messages json.RawMessage }
	}
	s.post("/api/agents/clerk/generate", `{"messages":"color",`+tools+`}`).want(http.StatusOK).into(&out)
	if out.FinishReason != "tool-calls" || len(out.ToolCalls) != 1 || out.ToolCalls[0].Payload.ToolName != "color" {
		t.Fatalf("output = %+v", out)
	}
	messages := strings.TrimSuffix(string(out.Response.Messages), "]") + `,{"role":"tool","content":[]},{"role":"tool","content":[{"type":"tool-result","toolCallId":"` +
		out.RunID + `=1-1","toolName":"color","output":{"type":"json","value":{"ok":1}}}]}]`
	before := out.RunID
	s.post("/api/agents/clerk/generate", `{"messages":`+messages+`,`+tools+`}`).want(http.StatusOK).into(&out)
	if out.FinishReason != "stop" || out.Text != "Done." || out.RunID != before {
		t.Errorf("output = %+v", out)
	}
}

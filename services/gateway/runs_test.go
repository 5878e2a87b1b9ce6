package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/gateway"
)

// event is one of an event stream.
type event struct {
	id         uint64
	name, data string
}

// reading is an event stream that a test reads.
type reading struct {
	t    *testing.T
	resp *http.Response
	in   *bufio.Reader
	stop func()
}

// listen begins to read an event stream.
func (s *site) listen(path string, header ...string) *reading {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	resp, err := http.DefaultClient.Do(s.request(http.MethodGet, path, nil, header...).WithContext(ctx))
	must(s.t, err)
	s.t.Cleanup(func() {
		stop()
		_ = resp.Body.Close()
	})
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		s.t.Fatalf("status = %d, headers = %v", resp.StatusCode, resp.Header)
	}
	return &reading{s.t, resp, bufio.NewReader(resp.Body), stop}
}

// next is the next event; comments and retry lines are passed over.
func (r *reading) next() (e event, ok bool) {
	r.t.Helper()
	for {
		line, err := r.in.ReadString('\n')
		if err != nil {
			return e, false
		}
		line = strings.TrimSuffix(line, "\n")
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "" && e.data != "":
			return e, true
		case name == "id":
			e.id, err = strconv.ParseUint(value, 10, 64)
			must(r.t, err)
		case name == "event":
			e.name = value
		case name == "data":
			e.data = value
		}
	}
}

// until reads events up to the first one of a name.
func (r *reading) until(name string) (list []event) {
	r.t.Helper()
	for {
		e, ok := r.next()
		if !ok {
			r.t.Fatalf("the stream ended before %s: %+v", name, list)
		}
		list = append(list, e)
		if e.name == name {
			return list
		}
	}
}

// A run is followed over a suspension, from any cursor, each chunk once and in order, until it has ended.
func TestFollowByCursor(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	s.post("/api/runs", `{"agentId":"clerk","messages":"pay","runId":"r1"}`).want(http.StatusAccepted, `"runId":"r1"`, `"status":"requested"`, `"chunks":"/api/runs/r1/chunks"`)
	first := s.listen("/api/runs/r1/chunks?until=quiet").until("end")
	if end := first[len(first)-1]; end.data != `{"status":"suspended"}` {
		t.Errorf("end = %+v", end)
	}
	whole := s.listen("/api/runs/r1/chunks") // begins now and reads on
	_, err := client.New(conn, client.Config{Principal: "alice"}).Approve(t.Context(), "r1=1-1", nil)
	must(t, err)
	all := whole.until("end")
	if end := all[len(all)-1]; end.data != `{"status":"ended","outcome":"completed"}` || end.id != all[len(all)-2].id {
		t.Errorf("end = %+v", end)
	}
	if len(all) <= len(first) || all[0].id == 0 || !strings.Contains(all[0].data, `"type":"start"`) {
		t.Errorf("events = %+v", all)
	}
	for i := 1; i < len(all)-1; i++ {
		if all[i].id <= all[i-1].id {
			t.Errorf("cursor %d follows %d", all[i].id, all[i-1].id)
		}
	}
	for i := range all {
		rest := s.listen("/api/runs/r1/chunks?cursor=1", "Last-Event-ID", strconv.FormatUint(all[i].id, 10)).until("end")
		if want := max(1, len(all)-1-i); len(rest) != want {
			t.Errorf("after %d come %d events, want %d: %+v", all[i].id, len(rest), want, rest)
		}
	}
	for _, cursor := range []string{"x", "-1", "1.5", "99999999999999999999999", "999999"} {
		s.get("/api/runs/r1/chunks?cursor="+cursor).want(http.StatusBadRequest, `"code":"invalid_request"`, `"field":"cursor"`)
	}
	s.get("/api/runs/r1/chunks?until=dawn").want(http.StatusBadRequest, `"field":"until"`)
	s.get("/api/runs/a.b/chunks").want(http.StatusNotFound, `"what":"run"`)
}

// A stream that has nothing to say says that it lives; one whose reader loses its right, or whose gateway stops, ends.
func TestStreamsLiveAndEnd(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	principal(t, conn, events.PrincipalDef{ID: "alice"})
	text := token(t, conn, events.TokenDef{Principal: "alice"})
	s := openWith(t, conn, gateway.Config{Heartbeat: 5 * time.Millisecond})
	s.header.Set("Authorization", "Bearer "+text)
	s.post("/api/runs", `{"agentId":"clerk","messages":"pay","runId":"r1"}`).want(http.StatusAccepted)
	s.listen("/api/runs/r1/chunks?until=quiet").until("end")
	r := s.listen("/api/runs/r1/chunks")
	for pings := 0; pings < 2; {
		line, err := r.in.ReadString('\n')
		must(t, err)
		if line == ": ping\n" {
			pings++
		}
	}
	must(t, conn.DeleteNamed(t.Context(), events.RegistryToken, events.TokenHash(text)))
	last := r.until("error")
	if e := last[len(last)-1]; !strings.Contains(e.data, `"code":"unauthenticated"`) {
		t.Errorf("the stream ends with %+v", e)
	}

	other := open(t, conn)
	r = other.listen("/api/runs/r1/chunks")
	other.gateway.Close()
	for {
		if _, ok := r.next(); !ok {
			break
		}
	}
}

// The state of a run is what its chunks and its open asks show.
func TestRunState(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	type state struct {
		RunID, AgentID, Status, ThreadID, FinishReason, Text string
		Outcome                                              events.RunOutcome
		Steps                                                int
		Usage                                                events.Usage
		SuspendedAt                                          *time.Time
		Asks                                                 []events.CallHeld
		Calls                                                []struct{ ToolCallID, State, Outcome string }
		Cursor                                               uint64
		Error                                                *events.Error
	}
	s.post("/api/runs", `{"agentId":"clerk","messages":"pay two","runId":"r1","threadId":"t1"}`).want(http.StatusAccepted)
	var v state
	s.get("/api/runs/r1?wait=30s").want(http.StatusOK).into(&v)
	if v.Status != "suspended" || v.AgentID != "clerk" || v.ThreadID != "t1" || len(v.Asks) != 2 || len(v.Calls) != 2 || v.Calls[0].State != "held" ||
		v.SuspendedAt == nil || v.Cursor == 0 {
		t.Errorf("state = %+v", v)
	}
	s.post("/api/asks/r1=1-1/decision", `{"decision":"decline"}`).want(http.StatusOK)
	v = state{}
	s.get("/api/runs/r1?wait=30s").want(http.StatusOK).into(&v)
	if v.Status != "suspended" || len(v.Asks) != 1 || v.Calls[0].State != "finished" || v.Calls[0].Outcome != "declined" || v.Calls[1].State != "held" {
		t.Errorf("state = %+v", v)
	}
	s.post("/api/asks/r1=1-2/decision", `{"decision":"approve"}`).want(http.StatusOK)
	v = state{}
	s.get("/api/runs/r1?wait=30s").want(http.StatusOK).into(&v)
	if v.Status != "ended" || v.Outcome != events.RunCompleted || v.Text != "Done." || v.Steps != 2 || v.Usage.TotalTokens == 0 || len(v.Asks) != 0 {
		t.Errorf("state = %+v", v)
	}
	s.post("/api/runs", `{"agentId":"clerk","messages":"fail","runId":"r2"}`).want(http.StatusAccepted)
	v = state{}
	s.get("/api/runs/r2?wait=30s").want(http.StatusOK).into(&v)
	if v.Status != "ended" || v.Outcome != events.RunFailed || v.Error == nil || v.Error.Code != events.CodeModelFailed {
		t.Errorf("state = %+v", v)
	}
	s.get("/api/runs/nope").want(http.StatusNotFound, `"what":"run"`)
	s.get("/api/runs/r2?wait=soon").want(http.StatusBadRequest, `"field":"wait"`)

	s.post("/api/runs", `{"toolId":"lookup_order","args":{"orderId":"7"},"runId":"r3"}`).want(http.StatusAccepted)
	s.get("/api/runs/r3?wait=30s").want(http.StatusOK, `"outcome":"completed"`, `"outcome":"ok"`)
	for field, body := range map[string]string{
		"agentId": `{}`, "messages": `{"agentId":"clerk"}`, "nonsense": `{"agentId":"clerk","messages":"x","nonsense":1}`,
		"toolId": `{"agentId":"clerk","toolId":"x"}`,
	} {
		s.post("/api/runs", body).want(http.StatusBadRequest, `"field":"`+field+`"`)
	}
	s.post("/api/runs", `{"agentId":"nope","messages":"x"}`).want(http.StatusNotFound, `"what":"agent"`)
	s.post("/api/runs", `{"toolId":"nope"}`).want(http.StatusNotFound, `"what":"tool"`)
}

// A run that waits is cancelled, and then a second time not; one call of a run can be cancelled alone.
func TestB21_1_CancelOverHTTP(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	s.post("/api/runs", `{"agentId":"clerk","messages":"pay two","runId":"r1"}`).want(http.StatusAccepted)
	s.get("/api/runs/r1?wait=30s").want(http.StatusOK, `"status":"suspended"`)
	s.post("/api/runs/r1/cancel", `{"toolCallId":"r2=1-1"}`).want(http.StatusBadRequest, `"field":"toolCallId"`)
	s.post("/api/runs/r1/cancel", `{"toolCallId":"r1=1-1","reason":"not this one"}`).want(http.StatusAccepted, `"toolCallId":"r1=1-1"`, `"status":"ended"`)
	s.get("/api/runs/r1").want(http.StatusOK, `"outcome":"cancelled"`, `"status":"suspended"`)
	s.post("/api/runs/r1/cancel", `{"reason":"enough"}`).want(http.StatusAccepted, `"outcome":"cancelled"`)
	s.post("/api/runs/r1/cancel", nil).want(http.StatusConflict, `"code":"run_ended"`)
	s.get("/api/runs/r1").want(http.StatusOK, `"status":"ended"`, `"outcome":"cancelled"`)
	s.post("/api/runs/a.b/cancel", nil).want(http.StatusNotFound)
}

// Runs are listed a page at a time: the suspended ones, and those that this gateway has heard to start.
func TestListRuns(t *testing.T) {
	t.Parallel()
	conn := start(t)
	g, err := gateway.New(conn, gateway.Config{Listen: "127.0.0.1:0", Open: "dev", Log: testLog(t)})
	must(t, err)
	must(t, g.Listen(t.Context()))
	jetstreamtest.Background(t, g.Run)
	s := &site{t: t, gateway: g, url: "http://" + g.Addr(), header: http.Header{}}
	var page struct {
		Items []struct {
			RunID, Status string
			Asks          int
		}
		Next      string
		LiveSince *time.Time
	}
	for page.LiveSince == nil { // it begins to listen
		s.get("/api/runs").want(http.StatusOK).into(&page)
	}
	serve(t, conn)
	for _, id := range []string{"r1", "r2", "r3"} {
		s.post("/api/runs", `{"agentId":"clerk","messages":"pay","threadId":"t","runId":"`+id+`"}`).want(http.StatusAccepted)
		s.get("/api/runs/"+id+"?wait=30s").want(http.StatusOK, `"status":"suspended"`)
	}
	var ids []string
	for path := "/api/runs?limit=2&status=suspended&thread=t"; path != ""; {
		page.Items, page.Next = nil, ""
		s.get(path).want(http.StatusOK).into(&page)
		for _, run := range page.Items {
			ids = append(ids, run.RunID)
			if run.Status != "suspended" || run.Asks != 1 {
				t.Errorf("run = %+v", run)
			}
		}
		path = ""
		if page.Next != "" {
			path = "/api/runs?limit=2&status=suspended&thread=t&after=" + page.Next
		}
	}
	if got := strings.Join(ids, " "); got != "r3 r2 r1" {
		t.Errorf("runs = %s", got)
	}
	s.get("/api/runs?thread=other").want(http.StatusOK, `"items":[]`)
	for _, query := range []string{"limit=0", "limit=501", "limit=x", "after=x", "status=ended"} {
		s.get("/api/runs?"+query).want(http.StatusBadRequest, `"error":"Invalid query parameters"`)
	}
	s.post("/api/runs/r1/cancel", nil).want(http.StatusAccepted)
	s.get("/api/runs").want(http.StatusOK, `"runId":"r2"`)
}

// The inbox lists what waits, and what the caller may decide of it; a decision is made about what was looked at.
func TestDecideByFingerprint(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	s.post("/api/runs", `{"agentId":"clerk","messages":"pay two","runId":"r1","threadId":"t1"}`).want(http.StatusAccepted)
	s.get("/api/runs/r1?wait=30s").want(http.StatusOK)
	var inbox struct {
		Items []events.OpenAsk
		Next  string
	}
	s.get("/api/asks?agent=clerk&thread=t1&principal=me&limit=1").want(http.StatusOK, `"rootRunId":"r1"`).into(&inbox)
	if len(inbox.Items) != 1 || inbox.Items[0].ToolCallID != "r1=1-1" || inbox.Next == "" {
		t.Fatalf("inbox = %+v", inbox)
	}
	s.get("/api/asks?limit=1&after="+inbox.Next).want(http.StatusOK, `"toolCallId":"r1=1-2"`)
	s.get("/api/asks?tool=lookup").want(http.StatusOK, `"items":[]`)
	s.get("/api/asks?principal=bob").want(http.StatusBadRequest, `"field":"principal"`)
	s.get("/api/asks?expiresBefore=x").want(http.StatusBadRequest, `"field":"expiresBefore"`)
	s.get("/api/asks/r1%3D1-1").want(http.StatusOK, `"fingerprint":"`+inbox.Items[0].Fingerprint)
	s.get("/api/asks/r9=1-1").want(http.StatusNotFound, `"what":"call"`)
	s.get("/api/asks/nonsense").want(http.StatusNotFound, `"what":"call"`)

	const path = "/api/asks/r1=1-1/decision"
	s.post(path, `{"decision":"approve","fingerprint":"sha256:other"}`).want(http.StatusConflict, `"code":"changed"`, inbox.Items[0].Fingerprint)
	s.post(path, `{"decision":"edit","args":{"orderId":"1","amount":2}}`).want(http.StatusConflict, `"code":"changed"`)
	s.post(path, `{"decision":"resume","resumeData":1}`).want(http.StatusConflict, `"code":"wrong_kind"`, `"allowed"`)
	s.post(path, `{"decision":"sing"}`).want(http.StatusBadRequest, `"field":"decision"`)
	s.post(path, `{"decision":"approve","principal":"root"}`).want(http.StatusBadRequest, `"field":"principal"`)
	s.post("/api/asks/nonsense/decision", `{"decision":"approve"}`).want(http.StatusNotFound)
	s.post(path, map[string]any{"decision": "approve", "fingerprint": inbox.Items[0].Fingerprint, "round": 0, "reason": "known"}).
		want(http.StatusOK, `"accepted":true`, `"state":"released"`, `"principal":"dev"`, `"reason":"known"`)
	s.post(path, `{"decision":"approve"}`).want(http.StatusConflict, `"code":"already_decided"`, `"same":true`)
}

// Calls that were looked at are decided together, each alone.
func TestDecideMany(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	s.post("/api/runs", `{"agentId":"clerk","messages":"pay two","runId":"r1"}`).want(http.StatusAccepted)
	s.get("/api/runs/r1?wait=30s").want(http.StatusOK)
	var inbox struct{ Items []events.OpenAsk }
	s.get("/api/asks").want(http.StatusOK).into(&inbox)
	seen := []map[string]string{
		{"toolCallId": inbox.Items[0].ToolCallID, "fingerprint": inbox.Items[0].Fingerprint},
		{"toolCallId": inbox.Items[1].ToolCallID, "fingerprint": "sha256:other"},
		{"toolCallId": "r9=1-1", "fingerprint": "sha256:other"},
	}
	s.post("/api/asks/decisions", map[string]any{"decision": "decline", "reason": "batch", "asks": seen}).want(http.StatusOK,
		`{"toolCallId":"r1=1-1","accepted":true,"state":"finished"`, `{"toolCallId":"r1=1-2","accepted":false,"error":{"code":"changed"`,
		`{"toolCallId":"r9=1-1","accepted":false,"error":{"code":"not_found"`)
	for field, body := range map[string]any{
		"decision":            map[string]any{"decision": "edit", "asks": seen},
		"asks":                map[string]any{"decision": "approve"},
		"asks[0].fingerprint": map[string]any{"decision": "approve", "asks": []any{map[string]string{"toolCallId": "r1=1-2"}}},
		"asks[1].toolCallId":  map[string]any{"decision": "approve", "asks": []any{seen[1], seen[1]}},
	} {
		s.post("/api/asks/decisions", body).want(http.StatusBadRequest, `"field":"`+field+`"`)
	}
}

// News about asks come as they happen.
func TestWatchAsks(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	news := s.listen("/api/asks/stream")
	s.post("/api/runs", `{"agentId":"clerk","messages":"pay","runId":"r1"}`).want(http.StatusAccepted)
	asked := news.until("asked")
	if e := asked[len(asked)-1]; !strings.Contains(e.data, `"toolCallId":"r1=1-1"`) || !strings.Contains(e.data, `"rootRunId":"r1"`) {
		t.Errorf("asked = %+v", e)
	}
	s.post("/api/asks/r1=1-1/decision", `{"decision":"approve"}`).want(http.StatusOK)
	answered := news.until("answered")
	if e := answered[len(answered)-1]; !strings.Contains(e.data, `"decision":"approve"`) || !strings.Contains(e.data, `"principal":"dev"`) {
		t.Errorf("answered = %+v", e)
	}
}

// Of an error from inside callers learn the code, and nothing of its text.
func TestErrorsFromInsideStayThere(t *testing.T) {
	t.Parallel()
	conn := start(t)
	g, err := gateway.New(conn, gateway.Config{Open: "dev", Log: testLog(t)})
	must(t, err)
	t.Cleanup(g.Close)
	must(t, conn.Close())
	for _, path := range []string{"/api/agents", "/api/tools/x", "/api/asks", "/api/runs", "/api/runs/r1", "/healthz"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Host = "127.0.0.1:4111"
		g.ServeHTTP(w, r)
		body := w.Body.String()
		if w.Code != http.StatusServiceUnavailable || strings.Contains(body, "nats") || strings.Contains(body, "weir_") {
			t.Errorf("%s: %d %s", path, w.Code, body)
		}
		if path != "/healthz" && (w.Header().Get("Retry-After") == "" || !json.Valid([]byte(body))) {
			t.Errorf("%s: %v %s", path, w.Header(), body)
		}
	}
}

// The time that a body may take is over with the body: what is streamed then goes on for as long as the run does, and the
// connection serves further requests. A body that does not come is refused.
func TestBodiesHaveTheirTime(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := openWith(t, conn, gateway.Config{Open: "dev", Body: 50 * time.Millisecond, Heartbeat: 20 * time.Millisecond})
	resp, err := http.DefaultClient.Do(s.request(http.MethodPost, "/api/agents/clerk/stream", `{"messages":"wait"}`))
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	in := bufio.NewReader(resp.Body)
	for pings := 0; pings < 10; {
		line, err := in.ReadString('\n')
		must(t, err)
		if line == ": ping\n" {
			pings++
		}
	}
	s.post("/api/runs/"+resp.Header.Get("Weir-Run-Id")+"/cancel", nil).want(http.StatusAccepted)
	rest, err := io.ReadAll(in)
	if err != nil || !strings.Contains(string(rest), `"type":"abort"`) || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream ends with %s, %v", rest, err)
	}

	slow, stop := io.Pipe()
	defer func() { _ = stop.Close() }()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/api/runs", slow)
	must(t, err)
	resp, err = http.DefaultClient.Do(r)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("status = %d for a body that does not come", resp.StatusCode)
	}
}

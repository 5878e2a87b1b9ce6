package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/gateway"
	"github.com/weirkeeper/weir/services/models"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

func TestMain(m *testing.M) { jetstreamtest.Main(m) }

func testLog(tb testing.TB) *slog.Logger {
	tb.Helper()
	return slog.New(slog.NewTextHandler(tb.Output(), nil))
}

// start gives a connection to a server of the test's own, with all streams.
func start(tb testing.TB) *jetstream.Conn {
	tb.Helper()
	c, err := jetstream.Connect(tb.Context(), jetstream.Options{InProcess: jetstreamtest.StartServer(tb).InProcess(), Log: testLog(tb)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	if err := c.Ensure(tb.Context(), jetstream.Settings{}); err != nil {
		tb.Fatal(err)
	}
	return c
}

type orderIn struct {
	OrderID string  `json:"orderId"`
	Amount  float64 `json:"amount,omitempty"`
}

type orderOut struct {
	OrderID string  `json:"orderId"`
	Amount  float64 `json:"amount"`
}

type city struct {
	Name string `json:"name"`
}

// tools are those of the tests: one that runs at once, one that needs approval, one that suspends itself, and two that fail.
func tools() []agent.Tool {
	fail := func(context.Context, *agent.Call, struct{}) (struct{}, error) {
		return struct{}{}, errors.New("bank is closed")
	}
	return []agent.Tool{
		agent.NewTool("lookup_order", "Look up an order",
			func(_ context.Context, _ *agent.Call, in orderIn) (orderOut, error) {
				return orderOut{OrderID: in.OrderID, Amount: 612.5}, nil
			}, &agent.ToolOptions{Effect: agent.ReadOnly}),
		agent.NewTool("issue_refund", "Refund an order",
			func(_ context.Context, _ *agent.Call, in orderIn) (orderOut, error) { return orderOut(in), nil },
			&agent.ToolOptions{RequireApproval: agent.Always()}),
		agent.NewTool("ask_city", "Ask for a city",
			func(_ context.Context, call *agent.Call, _ struct{}) (city, error) {
				if !call.Resumed() {
					return city{}, call.Suspend(map[string]string{"question": "Which city?"})
				}
				return agent.ResumeData[city](call)
			}, &agent.ToolOptions{Effect: agent.ReadOnly, ResumeSchema: json.RawMessage(
				`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}`)}),
		agent.NewTool("read_closed", "Fails", fail, &agent.ToolOptions{Effect: agent.ReadOnly}),
		agent.NewTool("pay_closed", "Fails", fail, nil),
		agent.NewTool("wait", "Waits until it is cancelled",
			func(ctx context.Context, _ *agent.Call, _ struct{}) (struct{}, error) {
				<-ctx.Done()
				return struct{}{}, ctx.Err()
			}, &agent.ToolOptions{Effect: agent.ReadOnly}),
	}
}

// clerk is a model that calls tools as it is told to.
const clerk = `{"rules":[
	{"when":{"user":"^look$","before":["*"]},"say":"Let me look.","calls":[{"tool":"lookup","args":{"orderId":"1"}}]},
	{"when":{"user":"^pay two$","before":["*"]},"calls":[
		{"tool":"refund","args":{"orderId":"1","amount":1}},{"tool":"refund","args":{"orderId":"2","amount":2}}]},
	{"when":{"user":"^pay$","before":["*"]},"calls":[{"tool":"refund","args":{"orderId":"1","amount":1}}]},
	{"when":{"user":"^pay and look$","before":["*"]},"calls":[
		{"tool":"refund","args":{"orderId":"1","amount":1}},{"tool":"lookup","args":{"orderId":"2"}}]},
	{"when":{"user":"^pay closed$","before":["*"]},"calls":[{"tool":"pay_closed","args":{}}]},
	{"when":{"user":"^pay closed$"},"fail":{"status":400,"message":"the model is broken"}},
	{"when":{"user":"^wait$","before":["*"]},"calls":[{"tool":"wait","args":{}}]},
	{"when":{"user":"^delegate look$","before":["*"]},"calls":[{"tool":"agent-clerk","args":{"prompt":"look"}}]},
	{"when":{"user":"^delegate pay$","before":["*"]},"calls":[{"tool":"agent-clerk","args":{"prompt":"pay"}}]},
	{"when":{"user":"^city$","before":["*"]},"calls":[{"tool":"ask","args":{}}]},
	{"when":{"user":"^color$","before":["*"]},"calls":[{"tool":"color","args":{"c":"red"}}]},
	{"when":{"user":"^fail$"},"fail":{"status":400,"message":"the model is broken"}},
	{"say":"Done."}]}`

// serve runs a planner, a gate and an executor until the test ends, and gives the gate's public keys.
func serve(t *testing.T, conn *jetstream.Conn) events.Keys {
	t.Helper()
	return serveWith(t, conn, approval.Config{Dev: true})
}

func serveWith(t *testing.T, conn *jetstream.Conn, cfg approval.Config) events.Keys {
	t.Helper()
	key, keys := newKey(t)
	known, err := models.New(models.Config{Models: map[string]models.ModelConfig{"scripted/clerk": {Playbook: json.RawMessage(clerk)}}})
	must(t, err)
	plan, err := planner.New(conn, planner.Config{Models: known, GateKeys: keys, Log: testLog(t)})
	must(t, err)
	cfg.Key, cfg.Log = key, testLog(t)
	gate, err := approval.New(conn, cfg)
	must(t, err)
	exec, err := toolexecutor.New(conn, toolexecutor.Config{Tools: tools(), GateKeys: keys, Log: testLog(t)})
	must(t, err)
	must(t, exec.Register(t.Context()))
	by := map[string]agent.Tool{}
	for _, tool := range tools() {
		by[tool.Manifest().ID] = tool
	}
	put(t, conn, &agent.Agent{
		ID: "clerk", Name: "Clerk", Description: "Pays", Instructions: "You pay.", Model: "scripted/clerk", Tools: agent.Tools{
			"lookup": by["lookup_order"], "refund": by["issue_refund"], "ask": by["ask_city"], "pay_closed": by["pay_closed"], "wait": by["wait"],
		},
	})
	put(t, conn, &agent.Agent{ID: "other", Model: "scripted/clerk"})
	jetstreamtest.Background(t, plan.Run, gate.Run, exec.Run)
	return keys
}

func newKey(t *testing.T) (events.Key, events.Keys) {
	t.Helper()
	key, err := jetstream.NewKey()
	must(t, err)
	pub, err := jetstream.ParsePublic(key.Public)
	must(t, err)
	return key, events.Keys{key.Public: pub}
}

func put(t *testing.T, conn *jetstream.Conn, a *agent.Agent) {
	t.Helper()
	def, err := a.Def()
	must(t, err)
	raw, err := events.Marshal(def)
	must(t, err)
	_, err = conn.PutDef(t.Context(), raw)
	must(t, err)
	must(t, conn.PutNamed(t.Context(), events.RegistryAgent, a.ID, raw))
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// site is a gateway that a test talks to.
type site struct {
	t       *testing.T
	gateway *gateway.Gateway
	url     string
	header  http.Header // of every request
}

// open starts a gateway where nobody logs in.
func open(t *testing.T, conn *jetstream.Conn) *site {
	t.Helper()
	return openWith(t, conn, gateway.Config{Open: "dev"})
}

func openWith(t *testing.T, conn *jetstream.Conn, cfg gateway.Config) *site {
	t.Helper()
	cfg.Log = testLog(t)
	g, err := gateway.New(conn, cfg)
	must(t, err)
	server := httptest.NewServer(g)
	t.Cleanup(func() {
		g.Close()
		server.Close()
	})
	return &site{t, g, server.URL, http.Header{}}
}

// answer is what came back.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

// do makes a request. A body that is no text is encoded.
func (s *site) do(method, path string, body any, header ...string) answer {
	s.t.Helper()
	r := s.request(method, path, body, header...)
	resp, err := http.DefaultClient.Do(r)
	must(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	must(s.t, err)
	return answer{s.t, resp.StatusCode, resp.Header, string(raw)}
}

func (s *site) request(method, path string, body any, header ...string) *http.Request {
	s.t.Helper()
	var in io.Reader
	switch body := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(body)
	default:
		raw, err := events.Marshal(body)
		must(s.t, err)
		in = strings.NewReader(string(raw))
	}
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, in)
	must(s.t, err)
	maps.Copy(r.Header, s.header)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else {
			r.Header.Set(header[i], header[i+1])
		}
	}
	return r
}

func (s *site) get(path string, header ...string) answer {
	return s.do(http.MethodGet, path, nil, header...)
}

func (s *site) post(path string, body any, header ...string) answer {
	return s.do(http.MethodPost, path, body, header...)
}

// want fails unless the answer has the status and holds each of the texts.
func (a answer) want(status int, texts ...string) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status = %d, want %d: %s", a.status, status, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			a.t.Fatalf("%s\nis not in: %s", text, a.body)
		}
	}
	return a
}

// into decodes the answer.
func (a answer) into(v any) {
	a.t.Helper()
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		a.t.Fatalf("%v: %s", err, a.body)
	}
}

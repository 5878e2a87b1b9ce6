package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/models"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

func TestMain(m *testing.M) { jetstreamtest.Main(m) }

const ns = events.DefaultNamespace

// start gives a connection to a server of the test's own, with all streams.
func start(tb testing.TB) *jetstream.Conn {
	tb.Helper()
	c := connect(tb, jetstreamtest.StartServer(tb))
	if err := c.Ensure(tb.Context(), jetstream.Settings{}); err != nil {
		tb.Fatal(err)
	}
	return c
}

func connect(tb testing.TB, srv *embedded.Server) *jetstream.Conn {
	tb.Helper()
	c, err := jetstream.Connect(tb.Context(), jetstream.Options{InProcess: srv.InProcess(), Log: testLog(tb)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

func testLog(tb testing.TB) *slog.Logger {
	tb.Helper()
	return slog.New(slog.NewTextHandler(tb.Output(), nil))
}

type lookupIn struct {
	OrderID string `json:"orderId"`
}

type lookupOut struct {
	OrderID string  `json:"orderId"`
	Amount  float64 `json:"amount"`
}

type refundIn struct {
	OrderID string  `json:"orderId"`
	Amount  float64 `json:"amount"`
}

type refundOut struct {
	RefundID string  `json:"refundId"`
	Amount   float64 `json:"amount"`
}

// tools are those of the support story: one runs at once, the other needs approval.
func tools() []agent.Tool {
	return []agent.Tool{
		agent.NewTool("lookup_order", "Look up an order",
			func(_ context.Context, _ *agent.Call, in lookupIn) (lookupOut, error) {
				return lookupOut{OrderID: in.OrderID, Amount: 612.5}, nil
			}, &agent.ToolOptions{Effect: agent.ReadOnly}),
		agent.NewTool("issue_refund", "Refund an order",
			func(_ context.Context, _ *agent.Call, in refundIn) (refundOut, error) {
				return refundOut{RefundID: "rf-88", Amount: in.Amount}, nil
			}, &agent.ToolOptions{RequireApproval: agent.Always()}),
		agent.NewTool("ask_city", "Ask for a city",
			func(_ context.Context, call *agent.Call, _ struct{}) (city, error) {
				if !call.Resumed() {
					return city{}, call.Suspend(map[string]string{"question": "Which city?"})
				}
				return agent.ResumeData[city](call)
			}, &agent.ToolOptions{Effect: agent.ReadOnly, ResumeSchema: json.RawMessage(
				`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}`)}),
	}
}

type city struct {
	Name string `json:"name"`
}

// clerk is a model that calls tools as it is told to.
const clerk = `{"rules":[
	{"when":{"user":"(?s)^\\{\"calls\":\\[\\{\"toolCallId\":\"(?P<call>[^\"]+)\".*\"message\":\"(?P<city>[A-Z][a-z]+)\"\\}$","before":["*"]},
		"say":"{\"answers\":[{\"toolCallId\":{{json .call}},\"resumeData\":{\"name\":{{json .city}}}}]}"},
	{"when":{"user":"(?s)^\\{\"calls\":.*\"message\":\"cities (?P<call>\\S+) (?P<city>\\w+)\"\\}$","before":["*"]},
		"say":"{\"answers\":[{\"toolCallId\":{{json .call}},\"resumeData\":{\"name\":{{json .city}}}}]}"},
	{"when":{"user":"^\\{\"calls\":"},"say":"{\"answers\":[]}"},
	{"when":{"user":"^pay two$","before":["*"]},"say":"Two refunds.","calls":[
		{"tool":"issue_refund","args":{"orderId":"1","amount":1}},{"tool":"issue_refund","args":{"orderId":"2","amount":2}}]},
	{"when":{"user":"^pay$","before":["*"]},"calls":[{"tool":"issue_refund","args":{"orderId":"1","amount":1}}]},
	{"when":{"user":"^two cities$","before":["*"]},"calls":[{"tool":"ask_city","args":{}},{"tool":"ask_city","args":{}}]},
	{"when":{"user":"^city$","before":["*"]},"calls":[{"tool":"ask_city","args":{}}]},
	{"when":{"user":"^fail$"},"fail":{"status":400,"message":"no"}},
	{"say":"Done."}]}`

// serve runs a planner, a gate and an executor until the test ends, and gives the gate's public key.
func serve(t *testing.T, conn *jetstream.Conn) events.Keys {
	t.Helper()
	return serveWith(t, conn, func(m planner.Models) planner.Models { return m })
}

// serveWith is serve with models that wrap those of the test.
func serveWith(t *testing.T, conn *jetstream.Conn, wrap func(planner.Models) planner.Models) events.Keys {
	t.Helper()
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := jetstream.ParsePublic(key.Public)
	if err != nil {
		t.Fatal(err)
	}
	keys := events.Keys{key.Public: pub}
	known, err := models.New(models.Config{Models: map[string]models.ModelConfig{
		"scripted/clerk": {Playbook: json.RawMessage(clerk)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := planner.New(conn, planner.Config{Models: wrap(known), GateKeys: keys, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	gate, err := approval.New(conn, approval.Config{Key: key, Dev: true, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	exec, err := toolexecutor.New(conn, toolexecutor.Config{Tools: tools(), GateKeys: keys, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := agent.Tools{}
	for _, tool := range tools() {
		all[tool.Manifest().ID] = tool
	}
	apply(t, conn, &agent.Agent{ID: "support", Model: "scripted/support", Tools: all})
	apply(t, conn, &agent.Agent{ID: "clerk", Model: "scripted/clerk", Tools: all})
	apply(t, conn, &agent.Agent{ID: "talker", Model: "scripted/clerk", Tools: all, AutoResumeSuspendedTools: true})
	jetstreamtest.Background(t, plan.Run, gate.Run, exec.Run)
	return keys
}

func apply(t *testing.T, conn *jetstream.Conn, a *agent.Agent) {
	t.Helper()
	def, err := a.Def()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := events.Marshal(def)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.PutDef(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	if err := conn.PutNamed(t.Context(), events.RegistryAgent, a.ID, raw); err != nil {
		t.Fatal(err)
	}
}

// newClient makes a client that believes what it hears.
func newClient(t *testing.T, conn *jetstream.Conn, principal string) *client.Client {
	t.Helper()
	return clientWith(t, conn, client.Config{Principal: principal})
}

func clientWith(t *testing.T, conn *jetstream.Conn, cfg client.Config) *client.Client {
	t.Helper()
	cfg.Log = testLog(t)
	c := client.New(conn, cfg)
	t.Cleanup(c.Close)
	return c
}

// held starts a run of the clerk and waits until it is suspended.
func held(t *testing.T, c *client.Client, prompt string) *client.Output {
	t.Helper()
	out, err := c.Generate(t.Context(), client.Request{Agent: "clerk", Prompt: prompt})
	if err != nil {
		t.Fatal(err)
	}
	if out.FinishReason != client.FinishSuspended || len(out.Asks) == 0 {
		t.Fatalf("finish reason = %s, %d asks: want a suspended run", out.FinishReason, len(out.Asks))
	}
	return out
}

// wantCode fails unless err is an error of that code.
func wantCode(t *testing.T, err error, code events.Code) {
	t.Helper()
	_ = refusal(t, err, code)
}

// refusal is an error of that code.
func refusal(t *testing.T, err error, code events.Code) *events.Error {
	t.Helper()
	e, ok := errors.AsType[*events.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("error = %v, want code %s", err, code)
	}
	return e
}

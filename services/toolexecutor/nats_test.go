package toolexecutor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/toolexecutor/tooltest"
)

// shop is a server with a service that is not Weir's, and a connection of an executor.
type shop struct {
	t    *testing.T
	nc   *nats.Conn
	conn *jetstream.Conn
	n    atomic.Int64
}

func newShop(t *testing.T) *shop {
	t.Helper()
	return shopOn(t, jetstreamtest.StartServer(t), jetstream.Options{})
}

func shopOn(t *testing.T, srv *embedded.Server, o jetstream.Options) *shop {
	t.Helper()
	s := &shop{t: t}
	var err error
	if s.nc, err = nats.Connect("", nats.InProcessServer(srv.InProcess())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.nc.Close)
	o.InProcess = srv.InProcess()
	if s.conn, err = jetstream.Connect(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close() })
	return s
}

// serve answers requests on a subject of its own.
func (s *shop) serve(answer func(m *nats.Msg)) string {
	s.t.Helper()
	subject := fmt.Sprintf("shop.job%d", s.n.Add(1))
	_, err := s.nc.Subscribe(subject, answer)
	if err == nil {
		ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
		defer cancel()
		err = s.nc.FlushWithContext(ctx)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return subject
}

// hosted is a tool as an executor runs it.
type hosted struct {
	agent.Tool

	conn *jetstream.Conn
}

// Run runs the tool with the executor's connection.
func (h hosted) Run(ctx context.Context, call *agent.Call, args json.RawMessage) (json.RawMessage, error) {
	return h.Tool.Run(withRequester(ctx, h.conn), call, args)
}

func (s *shop) tool(t *testing.T, def NATSDef) agent.Tool {
	t.Helper()
	tool, err := NewNATS(def)
	if err != nil {
		t.Fatal(err)
	}
	return hosted{tool, s.conn}
}

func natsDef(subject string, effect events.Effect) NATSDef {
	return NATSDef{
		Manifest: events.Manifest{ID: "job", Description: "a service", InputSchema: openSchema, Effect: effect},
		Subject:  subject, Headers: map[string]string{"Authorization": "Bearer s3cr3t"}, Secrets: []string{"s3cr3t"},
	}
}

func TestNATSTools(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	tooltest.Exercise(t, func(t *testing.T, m events.Manifest, b tooltest.Behaviour) agent.Tool {
		t.Helper()
		if b == tooltest.Huge {
			return nil // no server here lets it through: see TestNATSReplies
		}
		return s.tool(t, NATSDef{Manifest: m, Subject: s.serve(func(m *nats.Msg) { reply(m, b) })})
	})
}

func reply(m *nats.Msg, b tooltest.Behaviour) {
	switch b {
	case tooltest.Echo:
		_ = m.Respond([]byte(`{"args":` + string(m.Data) + `}`))
	case tooltest.Key:
		_ = m.Respond(fmt.Appendf(nil, `{"key":%q}`, m.Header.Get("Idempotency-Key")))
	case tooltest.Text:
		_ = m.Respond([]byte("plain & <simple>"))
	case tooltest.Nothing:
		_ = m.Respond(nil)
	case tooltest.Fail:
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{
			"Nats-Service-Error": {tooltest.FailText}, "Nats-Service-Error-Code": {"503"},
		}})
	case tooltest.Broken:
		_ = m.Respond([]byte(`{"args":7}`))
	case tooltest.Hang, tooltest.Huge:
	}
}

// TestNATSRequest: what a service gets.
func TestNATSRequest(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var got *nats.Msg
	subject := s.serve(func(m *nats.Msg) {
		got = m
		_ = m.Respond(nil)
	})
	args := `{"a":"x","b":9007199254740993}`
	if a := attempt(t, s.tool(t, natsDef(subject, events.Effectful)), args); a.Outcome != events.OutcomeOK {
		t.Fatalf("attempt = %+v", a.Error)
	}
	if string(got.Data) != args {
		t.Errorf("body = %s", got.Data)
	}
	for name, want := range map[string]string{
		"Idempotency-Key": "run-1=1-1", "weir-tool-call-id": "run-1=1-1", "Content-Type": "application/json",
		"Authorization": "Bearer s3cr3t",
	} {
		if v := got.Header.Get(name); v != want {
			t.Errorf("header %s = %q, want %q", name, v, want)
		}
	}
}

func TestNATSReplies(t *testing.T) {
	t.Parallel()
	tool, err := NewNATS(natsDef("shop.refund", events.Effectful))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(code, reason, body string) jetstream.Reply {
		return jetstream.Reply{Refused: true, Code: code, Reason: reason, Data: []byte(body)}
	}
	kind := func(kind, body string) jetstream.Reply {
		return jetstream.Reply{Header: map[string][]string{"content-type": {kind}}, Data: []byte(body)}
	}
	for name, test := range map[string]struct {
		reply                  jetstream.Reply
		want, failure, details string
	}{
		"json":              {kind("application/json; charset=utf-8", ` {"a":1.0} `), `{"a":1.0}`, "", ""},
		"json without type": {jetstream.Reply{Data: []byte(`[1]`)}, `[1]`, "", ""},
		"text":              {kind("text/plain", `{"a":1}`), `"{\"a\":1}"`, "", ""},
		"text without type": {jetstream.Reply{Data: []byte("fine\n")}, `"fine"`, "", ""},
		"nothing":           {jetstream.Reply{}, `null`, "", ""},
		"malformed":         {kind("application/json", `{"a":`), "", "replied with malformed JSON", ""},
		"binary":            {jetstream.Reply{Data: []byte("\xff\xfe")}, "", "replied with neither JSON nor text in UTF-8", ""},
		"too large":         {jetstream.Reply{Data: make([]byte, maxOutput+1)}, "", "replied with more than 1048576 bytes", ""},
		"refused":           {refused("404", "no such\norder", "{}"), "", "refused: no such order", `{"code":404}`},
		"refused by name":   {refused("gone", "", "it left with s3cr3t"), "", "refused: it left with [secret]", `{"code":"gone"}`},
		"refused in short":  {refused("500", "", ""), "", "refused: it did not say why", `{"code":500}`},
		"long":              {refused("500", strings.Repeat("é", 5000), ""), "", "refused: " + strings.Repeat("é", 1000) + "…", `{"code":500}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := scriptedReply{test.reply}
			a := agent.Execute(withRequester(t.Context(), said), tool, aCall(), json.RawMessage(`{}`))
			if test.failure == "" {
				if string(a.Result) != test.want {
					t.Errorf("result = %s %+v, want %s", a.Result, a.Error, test.want)
				}
				return
			}
			if a.Error == nil || a.Error.Name != "NATSError" || a.Error.Message != "shop.refund "+test.failure ||
				string(a.Error.Details) != test.details || a.InDoubt {
				t.Errorf("attempt = %+v (%+v), want %q %s", a, a.Error, test.failure, test.details)
			}
		})
	}
}

// scriptedReply is what a service says, whatever it is asked.
type scriptedReply struct{ reply jetstream.Reply }

// Request gives the reply.
func (s scriptedReply) Request(context.Context, jetstream.Request) (jetstream.Reply, error) {
	return s.reply, nil
}

// TestNATSNobodyListens: the request was not sent, so nothing is in doubt, whatever the tool's effect.
func TestNATSNobodyListens(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, effect := range []events.Effect{events.ReadOnly, events.Idempotent, events.Effectful} {
		a := attempt(t, s.tool(t, natsDef("shop.closed", effect)), `{}`)
		if a.Error == nil || a.Error.Name != events.ErrorUnavailable || string(a.Error.Details) != `{"sent":false}` || a.InDoubt {
			t.Errorf("%s: attempt = %+v (%+v), want unavailable, not sent", effect, a, a.Error)
		}
	}
	if a := agent.Execute(t.Context(), s.tool(t, natsDef("shop.closed", "")).(hosted).Tool, aCall(), json.RawMessage(`{}`)); a.Error == nil || a.InDoubt {
		t.Errorf("without an executor: %+v", a)
	}
}

// TestNATSNoReply: a request without a reply may have acted: a tool with effects is in doubt, another one has timed out.
func TestNATSNoReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		var n atomic.Int64
		subject := s.serve(func(*nats.Msg) { n.Add(1) })
		for effect, doubt := range map[events.Effect]bool{events.ReadOnly: false, events.Idempotent: false, events.Effectful: true} {
			n.Store(0)
			def := natsDef(subject, effect)
			def.Timeout = 3 * time.Second
			began := time.Now()
			a := attempt(t, s.tool(t, def), `{}`)
			if a.Error == nil || a.Error.Name != events.ErrorTimeout || string(a.Error.Details) != `{"sent":true}` || a.InDoubt != doubt {
				t.Errorf("%s: attempt = %+v (%+v), want a time-out, in doubt %v", effect, a, a.Error, doubt)
			}
			if took := time.Since(began); took != def.Timeout || n.Load() != 1 {
				t.Errorf("%s: %d requests within %s, want one", effect, n.Load(), took)
			}
		}
	})
}

// TestNATSConnectionLost: a server that ends while a request is under way leaves its effects unknown; one that is not there
// has got nothing, and gets nothing later.
func TestNATSConnectionLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := jetstreamtest.StartServer(t)
		s := shopOn(t, srv, jetstream.Options{})
		subject := s.serve(func(*nats.Msg) { go srv.Shutdown() })
		tool := s.tool(t, natsDef(subject, events.Effectful))
		a := attempt(t, tool, `{}`)
		if a.Error == nil || string(a.Error.Details) != `{"sent":true}` || !a.InDoubt {
			t.Errorf("attempt = %+v (%+v), want in doubt", a, a.Error)
		}
		synctest.Wait()
		a = attempt(t, tool, `{}`)
		if a.Error == nil || a.Error.Name != events.ErrorUnavailable || string(a.Error.Details) != `{"sent":false}` || a.InDoubt {
			t.Errorf("attempt = %+v (%+v), want unavailable, not sent", a, a.Error)
		}
	})
}

func TestNATSRefusesDefinitions(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*NATSDef){
		"want a subject":              func(d *NATSDef) { d.Subject = "" },
		"no wildcards":                func(d *NATSDef) { d.Subject = "shop.>" },
		"no empty part":               func(d *NATSDef) { d.Subject = "shop." },
		"must not speak there":        func(d *NATSDef) { d.Subject = "weir.default.put.run.r.call.1-1.result" },
		"Weir-Run is set by":          func(d *NATSDef) { d.Headers = map[string]string{"weir-run": "1"} },
		"is not a name of a header":   func(d *NATSDef) { d.Headers = map[string]string{"a b": "1"} },
		"nats-rollup is for":          func(d *NATSDef) { d.Headers = map[string]string{"nats-rollup": "all"} },
		"X-A has a control character": func(d *NATSDef) { d.Headers = map[string]string{"x-a": "1\r\nx-b: 2"} },
		"description: is required":    func(d *NATSDef) { d.Manifest.Description = "" },
	} {
		def := natsDef("shop.refund", "")
		change(&def)
		_, err := NewNATS(def)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
	if s := natsDef("shop.refund", ""); strings.Contains(fmt.Sprintf("%v %+v %#v", s, s, s), "s3cr3t") {
		t.Error("a definition shows its headers")
	}
}

package gateway_test

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/gateway"
)

// A gateway that asks nobody for a login is refused where others can reach it.
func TestOpenBeyondLoopbackIsRefused(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"0.0.0.0:0", ":4111", "[::]:0", "192.168.0.7:4111", "example.com:80", "nonsense"} {
		if _, err := gateway.New(nil, gateway.Config{Listen: listen, Open: "dev"}); err == nil {
			t.Errorf("a gateway on %s asks nobody for a login", listen)
		}
	}
	conn := start(t)
	for _, listen := range []string{"", "127.0.0.1:0", "[::1]:0", "localhost:0"} {
		g, err := gateway.New(conn, gateway.Config{Listen: listen, Open: "dev"})
		if err != nil {
			t.Errorf("%s: %v", listen, err)
			continue
		}
		g.Close()
	}
}

// Run listens, answers, and gives the address back when it ends.
func TestRun(t *testing.T) {
	t.Parallel()
	conn := start(t)
	g, err := gateway.New(conn, gateway.Config{Listen: "127.0.0.1:0", Open: "dev", Log: testLog(t)})
	must(t, err)
	must(t, g.Listen(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	s := &site{t: t, url: "http://" + g.Addr()}
	s.get("/healthz").want(http.StatusOK, "ok\n")
	if _, err := gateway.New(conn, gateway.Config{Listen: g.Addr(), Open: "dev"}); err != nil {
		t.Fatal(err)
	}
	other, err := gateway.New(conn, gateway.Config{Listen: g.Addr(), Open: "dev"})
	must(t, err)
	if err := other.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("error = %v, want one about the address", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run = %v after its end", err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", g.Addr())
	if err != nil {
		t.Errorf("the address is still taken: %v", err)
	} else {
		_ = l.Close()
	}
}

// Pages of strangers, by whatever name they reach the gateway, read nothing and change nothing.
func TestStrangersPages(t *testing.T) {
	t.Parallel()
	s := open(t, start(t))
	for _, host := range []string{"evil.example", "evil.example:4111", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]:80", "10.0.0.1"} {
		s.get("/api/agents", "Host", host).want(http.StatusForbidden, `"code":"forbidden"`)
	}
	for _, host := range []string{"localhost", "LOCALHOST:4111", "127.0.0.1:4111", "[::1]:4111"} {
		s.get("/api/agents", "Host", host).want(http.StatusOK)
	}
	for _, from := range [][]string{
		{"Origin", "https://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
	} {
		s.post("/api/tools/lookup_order/execute", `{"data":{}}`, from...).want(http.StatusForbidden, `"code":"forbidden"`)
	}
	h := s.get("/api/agents").header
	if h.Get("Access-Control-Allow-Origin") != "" || h.Get("X-Content-Type-Options") != "nosniff" ||
		!strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
		t.Errorf("headers = %v", h)
	}
}

// What is not in the table is not there, whatever way a path takes.
func TestNoSuchPath(t *testing.T) {
	t.Parallel()
	s := open(t, start(t))
	for _, path := range []string{"/", "/api", "/api/nope", "/api//agents", "/api/agents/", "/api/../api/agents", "/api/./agents", "//evil.example/api", "/api/agents/a/b/c"} {
		a := s.get(path).want(http.StatusNotFound, "404 Not Found")
		if got := a.header.Get("Content-Type"); got != "text/plain; charset=UTF-8" {
			t.Errorf("%s: content type %s", path, got)
		}
	}
	s.do(http.MethodDelete, "/api/agents", nil).want(http.StatusNotFound)
}

// Bodies that are too large, cut, no JSON, or of the wrong types are refused with the field that is wrong.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	s := open(t, conn)
	const path = "/api/tools/lookup_order/execute"
	s.post(path, `{"data":"`+strings.Repeat("x", 1<<20)+`"}`).want(http.StatusRequestEntityTooLarge, `"code":"too_large"`)
	for _, body := range []string{``, `{"data":`, `{"data":{},"data":{}}`, "{\"data\":\"\xff\"}", `{} {}`, strings.Repeat("[", 1000) + strings.Repeat("]", 1000)} {
		s.post(path, body).want(http.StatusBadRequest, `"error":"Invalid request body"`, `"field":"body"`)
	}
	s.post(path, `[]`).want(http.StatusBadRequest, `"field":"body"`)
	s.post(path, `{}`).want(http.StatusBadRequest, `"field":"data"`)
	s.get("/api/agents", "X", strings.Repeat("x", 2<<20)).want(http.StatusRequestHeaderFieldsTooLarge)
}

// Without a login that counts nothing is answered, but whether the gateway lives.
func TestNoLoginNoAnswer(t *testing.T) {
	t.Parallel()
	s := openWith(t, start(t), gateway.Config{})
	s.get("/healthz").want(http.StatusOK)
	for _, r := range gateway.Routes() {
		if r.Scope == "" {
			if !slices.Contains([]string{"/healthz"}, r.Path) {
				t.Errorf("%s %s needs no scope", r.Method, r.Path)
			}
			continue
		}
		path := strings.NewReplacer("{", "", "}", "").Replace(r.Path)
		for _, header := range [][]string{
			nil,
			{"Authorization", "Bearer weir_guessed"},
			{"Authorization", "Bearer bad"},
			{"Authorization", "Basic ZGV2OmRldg=="},
			{"X-Mastra-Dev-Playground", "true"},
			{"Weir-Principal", "dev"},
		} {
			a := s.do(r.Method, path+"?apiKey=weir_guessed", nil, header...).want(http.StatusUnauthorized, `"error":"Invalid or expired token"`)
			if a.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s: no WWW-Authenticate", r.Method, r.Path)
			}
		}
	}
}

// token stores an API token of a principal and gives its text.
func token(t *testing.T, conn *jetstream.Conn, def events.TokenDef) string {
	t.Helper()
	text := events.NewToken()
	raw, err := events.Marshal(def)
	must(t, err)
	must(t, conn.PutNamed(t.Context(), events.RegistryToken, events.TokenHash(text), raw))
	return text
}

// principal stores a principal who comes through gateways.
func principal(t *testing.T, conn *jetstream.Conn, def events.PrincipalDef) {
	t.Helper()
	def.Auth = events.AuthGateway
	raw, err := events.Marshal(def)
	must(t, err)
	must(t, conn.PutNamed(t.Context(), events.RegistryPrincipal, def.ID, raw))
}

// A token counts for its principal, within the scopes of both, until it expires or is taken away.
func TestTokens(t *testing.T) {
	t.Parallel()
	conn := start(t)
	principal(t, conn, events.PrincipalDef{ID: "alice"})
	principal(t, conn, events.PrincipalDef{ID: "eve", Scopes: []string{events.MayStart}})
	s := openWith(t, conn, gateway.Config{})
	for _, c := range []struct {
		name   string
		def    events.TokenDef
		status int
	}{
		{"all scopes", events.TokenDef{Principal: "alice"}, http.StatusOK},
		{"read only", events.TokenDef{Principal: "alice", Scopes: []string{events.MayRead}}, http.StatusOK},
		{"start only", events.TokenDef{Principal: "alice", Scopes: []string{events.MayStart}}, http.StatusForbidden},
		{"no scope", events.TokenDef{Principal: "alice", Scopes: []string{}}, http.StatusForbidden},
		{"more than the principal has", events.TokenDef{Principal: "eve", Scopes: []string{events.MayRead}}, http.StatusForbidden},
		{"of nobody", events.TokenDef{}, http.StatusUnauthorized},
		{"of a principal who is gone", events.TokenDef{Principal: "mallory"}, http.StatusUnauthorized},
		{"expired", events.TokenDef{Principal: "alice", ExpiresAt: time.Now().Add(-time.Second)}, http.StatusUnauthorized},
		{"not yet expired", events.TokenDef{Principal: "alice", ExpiresAt: time.Now().Add(time.Hour)}, http.StatusOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &site{t: t, url: s.url}
			s.get("/api/agents", "Authorization", "Bearer "+token(t, conn, c.def)).want(c.status)
		})
	}
}

// A gate that is not one of weir dev takes the decisions of whom a gateway has logged in, because that signs them; it takes
// them from no gateway that it does not know.
func TestDecisionsAreSignedByTheGateway(t *testing.T) {
	t.Parallel()
	conn := start(t)
	key, keys := newKey(t)
	stranger, _ := newKey(t)
	gates := serveWith(t, conn, approval.Config{Gateways: keys})
	principal(t, conn, events.PrincipalDef{ID: "alice", Groups: []string{"finance"}})
	text := token(t, conn, events.TokenDef{Principal: "alice"})
	s := openWith(t, conn, gateway.Config{Key: &key, GateKeys: gates})
	other := openWith(t, conn, gateway.Config{Key: &stranger, GateKeys: gates})
	unsigned := openWith(t, conn, gateway.Config{GateKeys: gates})
	for _, one := range []*site{s, other, unsigned} {
		one.header.Set("Authorization", "Bearer "+text)
	}
	ask := s.held("pay")
	about := map[string]string{"runId": ask.RunID, "toolCallId": ask.Payload.ToolCallID}
	other.post("/api/agents/clerk/approve-tool-call", about).want(http.StatusUnauthorized, `"code":"unauthenticated"`)
	unsigned.post("/api/asks/"+ask.Payload.ToolCallID+"/decision", `{"decision":"approve"}`).want(http.StatusUnauthorized)
	s.post("/api/asks/"+ask.Payload.ToolCallID+"/decision", `{"decision":"approve"}`).want(http.StatusOK, `"principal":"alice"`)
}

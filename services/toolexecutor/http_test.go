package toolexecutor

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/egress/egresstest"
	"github.com/weirkeeper/weir/services/toolexecutor/tooltest"
)

// serve starts a server that a tool may reach.
func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func hostOf(s *httptest.Server) string { return s.Listener.Addr().String() }

var openSchema = json.RawMessage(`{"type":"object","additionalProperties":true}`)

// httpDef is a tool of a server, which it may reach, and of no other.
func httpDef(s *httptest.Server, path string) HTTPDef {
	return HTTPDef{
		Manifest: events.Manifest{ID: "web", Description: "a server", InputSchema: openSchema},
		URL:      s.URL + path,
		Headers:  map[string]string{"Authorization": "Bearer s3cr3t", "X-Tenant": "acme"},
		Secrets:  []string{"s3cr3t"},
		Allow:    []string{hostOf(s)},
	}
}

func httpTest(t *testing.T, def HTTPDef) agent.Tool {
	t.Helper()
	tool, err := NewHTTP(def)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func TestHTTPTools(t *testing.T) {
	t.Parallel()
	tooltest.Exercise(t, func(t *testing.T, m events.Manifest, b tooltest.Behaviour) agent.Tool {
		t.Helper()
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			args, _ := io.ReadAll(r.Body)
			answerAs(w, r, b, args)
		})
		return httpTest(t, HTTPDef{Manifest: m, URL: s.URL, Allow: []string{hostOf(s)}})
	})
}

func answerAs(w http.ResponseWriter, r *http.Request, b tooltest.Behaviour, args []byte) {
	answer := func(format string, args ...any) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, format, args...)
	}
	switch b {
	case tooltest.Echo:
		answer("{\"args\":%s}\n", args)
	case tooltest.Key:
		answer("{\"key\":%q}", r.Header.Get("Idempotency-Key"))
	case tooltest.Text:
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "plain & <simple>")
	case tooltest.Nothing:
		w.WriteHeader(http.StatusNoContent)
	case tooltest.Fail:
		http.Error(w, tooltest.FailText, http.StatusTeapot)
	case tooltest.Hang:
		<-r.Context().Done()
	case tooltest.Huge:
		answer("%q", strings.Repeat("x", maxOutput))
	case tooltest.Broken:
		answer(`{"args":7}`)
	}
}

// TestHTTPRequest: what a server gets.
func TestHTTPRequest(t *testing.T) {
	t.Parallel()
	type seen struct {
		Method, Query, Body, Type, Key, Call, Auth, Tenant string
	}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_ = json.NewEncoder(w).Encode(seen{
			r.Method, r.URL.RawQuery, string(body), r.Header.Get("Content-Type"), r.Header.Get("Idempotency-Key"),
			r.Header.Get("weir-tool-call-id"), r.Header.Get("Authorization"), r.Header.Get("X-Tenant"),
		})
	})
	args := `{"a":"x y&z=1#?","b":9007199254740993,"c":true,"d":null,"e":["p","q",null,3],"f":{"g":"h"}}`
	tests := []struct {
		method, path string
		want         seen
	}{
		{"", "/x?fixed=1", seen{Method: "POST", Query: "fixed=1", Body: args, Type: "application/json"}},
		{"PUT", "/x", seen{Method: "PUT", Body: args, Type: "application/json"}},
		{"PATCH", "/x", seen{Method: "PATCH", Body: args, Type: "application/json"}},
		{"DELETE", "/x", seen{Method: "DELETE", Body: args, Type: "application/json"}},
		{"GET", "/x?fixed=1", seen{
			Method: "GET",
			Query:  "a=x+y%26z%3D1%23%3F&b=9007199254740993&c=true&e=p&e=q&e=3&f=%7B%22g%22%3A%22h%22%7D&fixed=1",
		}},
	}
	for _, test := range tests {
		t.Run("method "+test.method, func(t *testing.T) {
			t.Parallel()
			def := httpDef(s, test.path)
			def.Method = test.method
			got := attempt(t, httpTest(t, def), args)
			test.want.Key, test.want.Call = "run-1=1-1", "run-1=1-1"
			test.want.Auth, test.want.Tenant = "Bearer s3cr3t", "acme"
			var have seen
			if err := json.Unmarshal(got.Result, &have); err != nil {
				t.Fatalf("%+v: %v", got.Error, err)
			}
			if diff := cmp.Diff(test.want, have); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestHTTPFixedQuery: an argument cannot become a second value of a parameter that the operator fixed.
func TestHTTPFixedQuery(t *testing.T) {
	t.Parallel()
	s := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("requested") })
	def := httpDef(s, "/x?tenant=acme")
	def.Method = http.MethodGet
	if got := attempt(t, httpTest(t, def), `{"tenant":"other"}`); got.Outcome != events.OutcomeInvalid {
		t.Errorf("attempt = %+v, want invalid", got)
	}
}

func TestHTTPAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, kind, body string
		status           int
		want, failure    string
	}{
		{"json", "application/json", ` {"b":1, "a":2} `, 200, `{"b":1,"a":2}`, ""},
		{"problem json", "application/problem+json", `[1]`, 201, `[1]`, ""},
		{"empty json", "application/json", "", 200, `null`, ""},
		{"json without a type", "none", `{"a":1}`, 200, `{"a":1}`, ""},
		{"json that is text", "text/plain", `{"a":1}`, 200, `"{\"a\":1}"`, ""},
		{"malformed json", "application/json", `{"a":`, 200, "", "HOST answered with malformed JSON"},
		{"two values of a key", "application/json", `{"a":1,"a":2}`, 200, "", "HOST answered with malformed JSON"},
		{"binary", "application/octet-stream", "\xff\xfe", 200, "", "HOST answered with neither JSON nor text in UTF-8"},
		{"not found", "text/plain", "no such\norder", 404, "", "HOST answered 404 Not Found: no such order"},
		{"secret", "text/plain", "Bearer s3cr3t is wrong; \\u0073 s3cr3t", 401, "", "HOST answered 401 Unauthorized: Bearer [secret] is wrong; \\u0073 [secret]"},
		{"page", "text/html; charset=utf-8", "<html>proxy</html>", 502, "", "HOST answered 502 Bad Gateway"},
		{"long", "text/plain", strings.Repeat("é", 5000), 500, "", "HOST answered 500 Internal Server Error: " + strings.Repeat("é", 1000) + "…"},
		{"not modified", "text/plain", "", 304, "", "HOST answered 304 Not Modified"},
		{"redirect to nowhere", "text/plain", "look there", 302, "", "HOST answered 302 Found: look there"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{test.kind}
				if test.kind == "none" {
					w.Header()["Content-Type"] = nil
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			})
			got := attempt(t, httpTest(t, httpDef(s, "/secret/path")), `{}`)
			compact := strings.ReplaceAll(string(got.Result), " ", "")
			if compact != test.want {
				t.Errorf("result = %s, want %s", got.Result, test.want)
			}
			message := ""
			if got.Error != nil {
				message = strings.ReplaceAll(got.Error.Message, hostOf(s), "HOST")
				if want := fmt.Sprintf(`{"status":%d}`, test.status); string(got.Error.Details) != want || got.Error.Name != "HTTPError" {
					t.Errorf("error = %s %s, want HTTPError %s", got.Error.Name, got.Error.Details, want)
				}
			}
			if message != test.failure {
				t.Errorf("error = %q, want %q", message, test.failure)
			}
		})
	}
}

// TestHTTPRedirects: each hop is a request of its own, with all of the checks. (SEC-3)
func TestHTTPRedirects(t *testing.T) {
	t.Parallel()
	inside := serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the server inside was reached: %s", r.URL) })
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, `{"other":true,"auth":%q,"tenant":%q,"body":%q}`, r.Header.Get("Authorization"), r.Header.Get("X-Tenant"), body)
	})
	tests := []struct {
		name, to string
		status   int
		method   string
		want     string // the result, or a part of the error
	}{
		{"same server, see other", "/end", 303, "POST", `{"method":"GET","auth":"Bearer s3cr3t","body":""}`},
		{"same server, found", "/end", 302, "POST", `{"method":"GET","auth":"Bearer s3cr3t","body":""}`},
		{"same server, again", "/end", 307, "POST", `{"method":"POST","auth":"Bearer s3cr3t","body":"{\"a\":1}"}`},
		{"same server, again for ever", "/end", 308, "PUT", `{"method":"PUT","auth":"Bearer s3cr3t","body":"{\"a\":1}"}`},
		{"other server", other.URL, 302, "POST", `{"other":true,"auth":"","tenant":"","body":""}`},
		{"other server, again", other.URL, 307, "POST", "take the arguments to another server"},
		{"other server, get again", other.URL, 307, "GET", `{"other":true,"auth":"","tenant":"","body":""}`},
		{"back and forth", other.URL + "/never", 302, "POST", `{"other":true,"auth":"","tenant":"","body":""}`},
		{"inside", inside.URL, 302, "POST", "not allowed"},
		{"metadata", "http://169.254.169.254/latest/meta-data/", 302, "GET", "169.254.169.254 is not public"},
		{"file", "file:///etc/passwd", 302, "GET", `scheme "file"`},
		{"user", "http://a:b@example.com/", 302, "GET", "must not hold a user"},
		{"port", "http://example.com:6379/", 302, "GET", "port 6379"},
		{"decimal", "http://2130706433/", 302, "GET", "not a name of a host"},
		{"loop", "/start", 302, "GET", "more than 5 redirects"},
		{"no url", "http://[::1", 302, "GET", "no URL"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/start" {
					w.Header().Set("Location", test.to)
					w.WriteHeader(test.status)
					return
				}
				body, _ := io.ReadAll(r.Body)
				_, _ = fmt.Fprintf(w, `{"method":%q,"auth":%q,"body":%q}`, r.Method, r.Header.Get("Authorization"), body)
			})
			def := httpDef(s, "/start")
			def.Method, def.Allow = test.method, append(def.Allow, hostOf(other))
			got := attempt(t, httpTest(t, def), `{"a":1}`)
			if got.Error != nil {
				if !strings.Contains(got.Error.Message, test.want) {
					t.Errorf("error = %s, want %s", got.Error.Message, test.want)
				}
			} else if string(got.Result) != test.want {
				if want, _ := events.Marshal(test.want); string(got.Result) != string(want) {
					t.Errorf("result = %s, want %s", got.Result, test.want)
				}
			}
		})
	}
}

func TestHTTPCountsRedirects(t *testing.T) {
	t.Parallel()
	for _, hops := range []int64{maxRedirects, maxRedirects + 1} {
		var n atomic.Int64
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) <= hops {
				http.Redirect(w, r, "/", http.StatusFound)
			}
		})
		got := attempt(t, httpTest(t, httpDef(s, "/")), `{}`)
		if ok := got.Error == nil; ok != (hops <= maxRedirects) {
			t.Errorf("%d redirects: %+v", hops, got.Error)
		}
	}
}

// TestHTTPSendsOnce: a server that drops connections after it has read a request sees each request of a tool with
// effects once. The library would send it again, on the strength of its idempotency key.
func TestHTTPSendsOnce(t *testing.T) {
	t.Parallel()
	for _, effect := range []events.Effect{events.Effectful, events.Idempotent} {
		var n atomic.Int64
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if n.Add(1) == 1 {
				return // a good answer, on a connection that could be kept
			}
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		})
		def := httpDef(s, "/secret/path?token=query")
		def.Manifest.Effect = effect
		tool := httpTest(t, def)
		if got := attempt(t, tool, `{}`); got.Error != nil {
			t.Fatalf("first call: %+v", got.Error)
		}
		got := attempt(t, tool, `{}`)
		if got.Error == nil {
			t.Fatalf("attempt = %+v, want an error", got)
		}
		if strings.Contains(got.Error.Message, "path") || string(got.Error.Details) != `{"sent":true}` {
			t.Errorf("error = %+v, want one that says that it was sent, without the URL", got.Error)
		}
		if seen := n.Load(); effect == events.Effectful && seen != 2 {
			t.Errorf("the server saw %d requests of 2 calls", seen)
		}
	}
}

func TestHTTPTimeout(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does a server see that its client has gone
		<-r.Context().Done()
	})
	def := httpDef(s, "/")
	def.Timeout = 20 * time.Millisecond
	got := attempt(t, httpTest(t, def), `{}`)
	if got.Error == nil || got.Error.Name != events.ErrorTimeout {
		t.Errorf("error = %+v, want a time-out", got.Error)
	}
}

// TestHTTPCutAnswer: an answer that ends too early is no result.
func TestHTTPCutAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `"half`)
	})
	got := attempt(t, httpTest(t, httpDef(s, "/")), `{}`)
	if got.Error == nil || got.Error.Name != "HTTPError" || string(got.Error.Details) != `{"sent":true}` {
		t.Errorf("attempt = %+v, want an error", got)
	}
}

// TestHTTPNothingInside: without an entry of the allow list no listener inside sees a connection.
func TestHTTPNothingInside(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("reached: %s", r.Host) })
	_, port, _ := strings.Cut(hostOf(s), ":")
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "127.1", "0x7f000001", "2130706433", "0.0.0.0", "[::ffff:127.0.0.1]"} {
		def := httpDef(s, "/")
		def.URL, def.Allow = "http://"+host+":"+port+"/", nil
		tool, err := NewHTTP(def)
		if err != nil {
			continue // refused before there was a tool
		}
		if got := attempt(t, tool, `{}`); got.Error == nil {
			t.Errorf("%s was reached", host)
		}
	}
}

// TestB15_18_B15_19HTTPToolsReachNothingInside makes tools of URLs that lead inside, and tools that are redirected there: no
// connection arrives.
func TestB15_18_B15_19HTTPToolsReachNothingInside(t *testing.T) {
	t.Parallel()
	n := egresstest.New(t, func(http.ResponseWriter, *http.Request) {})
	reach := func(url string) {
		t.Helper()
		def := HTTPDef{
			Manifest: events.Manifest{ID: "web", Description: "Read", InputSchema: json.RawMessage(`{"type":"object"}`), Effect: events.ReadOnly},
			Method:   http.MethodGet, URL: url,
		}
		tool := &httpTool{outside: newOutside(def.Manifest, SourceHTTP, nil), def: def}
		if tool.prepare() != nil {
			return // refused before there was a tool
		}
		tool.guard = tool.guard.Over(n.Net())
		tool.transport = tool.guard.Transport()
		defer tool.transport.CloseIdleConnections()
		if got := attempt(t, tool, `{}`); got.Error == nil {
			t.Errorf("%s was reached", url)
		}
		if n.Inside() != 0 {
			t.Fatalf("%s: a connection arrived inside", url)
		}
	}
	for i, url := range egresstest.Forbidden() {
		reach(url)
		if i%7 == 0 && strings.Contains(url, "://") {
			reach(n.Redirect(url, 1+i%5))
		}
	}
}

func TestHTTPRefusesDefinitions(t *testing.T) {
	t.Parallel()
	base := HTTPDef{Manifest: events.Manifest{ID: "x", Description: "y"}, URL: "https://example.com/"}
	tests := map[string]func(*HTTPDef){
		"method: want one of":               func(d *HTTPDef) { d.Method = "TRACE" },
		"method: want":                      func(d *HTTPDef) { d.Method = "get" },
		`url: the address is not allowed`:   func(d *HTTPDef) { d.URL = "http://10.0.0.1/" },
		"url: cannot be read":               func(d *HTTPDef) { d.URL = "http://s3cr3t:%zz/" },
		"url: its query cannot be read":     func(d *HTTPDef) { d.URL = "https://example.com/?a=%zz" },
		`scheme ""`:                         func(d *HTTPDef) { d.URL = "" },
		"a user or a password":              func(d *HTTPDef) { d.URL = "https://u:p@example.com/" },
		`allow: "*"`:                        func(d *HTTPDef) { d.Allow = []string{"*"} },
		"Idempotency-Key is set by":         func(d *HTTPDef) { d.Headers = map[string]string{"idempotency-key": "1"} },
		"Weir-Run is set by":                func(d *HTTPDef) { d.Headers = map[string]string{"weir-run": "1"} },
		"Host is set by":                    func(d *HTTPDef) { d.Headers = map[string]string{"host": "inside"} },
		"is not a name of a header":         func(d *HTTPDef) { d.Headers = map[string]string{"a b": "1"} },
		"X-A has a control character":       func(d *HTTPDef) { d.Headers = map[string]string{"x-a": "1\r\nx-b: 2"} },
		"description: is required":          func(d *HTTPDef) { d.Manifest.Description = "" },
		"want an object, not array (invali": func(d *HTTPDef) { d.Manifest.InputSchema = json.RawMessage(`{"type":"array"}`) },
	}
	for want, change := range tests {
		def := base
		change(&def)
		_, err := NewHTTP(def)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
	if _, err := NewHTTP(base); err != nil {
		t.Error(err)
	}
}

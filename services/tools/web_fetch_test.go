package tools_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/internal/egress"
	"github.com/weirkeeper/weir/services/internal/egress/egresstest"
	"github.com/weirkeeper/weir/services/tools"
)

// fetched is what web_fetch tells.
type fetched struct {
	Content     string
	Truncated   bool
	Status      int
	StatusText  string
	ContentType *string
	URL         string
	OK          bool
	IsError     bool
}

func fetcherOver(t *testing.T, n egress.Net) agent.Tool {
	t.Helper()
	guard, err := egress.New()
	if err != nil {
		t.Fatal(err)
	}
	return tools.NewWebFetch(guard.Over(n))
}

func fetch(t *testing.T, tool agent.Tool, url string) fetched {
	t.Helper()
	return agenttest.Output[fetched](t, agenttest.Run(t, tool, map[string]string{"url": url}, nil))
}

const outside = "http://" + egresstest.Outside

// TestB15_17WebFetch: a page comes with what its server said about it, and what goes wrong is told in words.
func TestB15_17WebFetch(t *testing.T) {
	t.Parallel()
	n := egresstest.New(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/page":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, `<p title="x">Grüße & more</p>`)
		case "/bare":
			w.Header()["Content-Type"] = nil
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		case "/headers":
			_, _ = fmt.Fprint(w, r.Header)
		default:
			http.NotFound(w, r)
		}
	})
	tool := fetcherOver(t, n.Net())
	for url, want := range map[string]string{
		outside + "/page": `{"content":"<p title=\"x\">Grüße & more</p>","truncated":false,"status":200,"statusText":"OK",` +
			`"contentType":"text/html; charset=utf-8","url":"` + outside + `/page","ok":true}`,
		outside + "/none?a=b#c": `{"content":"404 page not found\n","truncated":false,"status":404,"statusText":"Not Found",` +
			`"contentType":"text/plain; charset=utf-8","url":"` + outside + `/none?a=b","ok":false}`,
		outside + "/bare": `{"content":"","truncated":false,"status":200,"statusText":"OK","contentType":null,"url":"` + outside + `/bare","ok":true}`,
		n.Redirect("/page", 1): `{"content":"<p title=\"x\">Grüße & more</p>","truncated":false,"status":200,"statusText":"OK",` +
			`"contentType":"text/html; charset=utf-8","url":"` + outside + `/page","ok":true}`,
		"ftp://" + egresstest.Outside: `{"content":"Failed to fetch URL: only HTTP and HTTPS URLs are supported.","isError":true}`,
		"no\nURL":                     `{"content":"Failed to fetch URL: that is no URL.","isError":true}`,
		"http://inside.example/":      `{"content":"Failed to fetch URL: the URL leads to a private or reserved address.","isError":true}`,
		"http://10.0.0.1/":            `{"content":"Failed to fetch URL: the address is not allowed: 10.0.0.1 is not public.","isError":true}`,
		outside + "/cut":              `{"content":"Failed to fetch URL: unexpected EOF.","isError":true}`,
	} {
		if got := outcome(agenttest.Run(t, tool, map[string]string{"url": url}, nil)); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", url, got, want)
		}
	}
	if got := fetch(t, tool, outside+"/headers"); !strings.Contains(got.Content, "User-Agent:[weir]") || strings.Contains(got.Content, "Weir-") {
		t.Errorf("the server was told %s", got.Content)
	}
	for _, args := range []string{`{}`, `{"url":""}`, `{"url":1}`} {
		if r := agenttest.Run(t, tool, args, nil); r.Outcome != events.OutcomeInvalid {
			t.Errorf("%s: %s, want invalid", args, r.Outcome)
		}
	}
	hidden := errors.New("lookup nowhere.example on 10.9.8.7:53: no such host")
	lost := fetcherOver(t, egress.Net{Lookup: func(context.Context, string) ([]netip.Addr, error) {
		return nil, &net.DNSError{Name: "nowhere.example", Server: "10.9.8.7:53", Err: hidden.Error()}
	}})
	if got := fetch(t, lost, "http://nowhere.example/"); got.Content != "Failed to fetch URL: the host nowhere.example cannot be found." {
		t.Errorf("an unknown host: %+v", got)
	}
}

// TestB15_18_B15_19NothingInsideIsReached fetches every URL that leads inside, by itself and as the end of redirects: it
// fails, and no connection arrives inside.
func TestB15_18_B15_19NothingInsideIsReached(t *testing.T) {
	t.Parallel()
	n := egresstest.New(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("reached outside: %s", r.URL) })
	tool := fetcherOver(t, n.Net())
	for i, url := range egresstest.Forbidden() {
		if got := fetch(t, tool, url); !got.IsError || !strings.HasPrefix(got.Content, "Failed to fetch URL: ") {
			t.Errorf("%s: %+v", url, got)
		}
		if i%4 != 0 || !strings.Contains(url, "://") { // without one it is a path on the same server
			continue
		}
		if got := fetch(t, tool, n.Redirect(url, 1+i%5)); !got.IsError {
			t.Errorf("redirected to %s: %+v", url, got)
		}
		if n.Inside() != 0 {
			t.Fatalf("%s: a connection arrived inside", url)
		}
	}
}

// TestB15_19NameThatTurns: a name server that says a public address first and one inside after that leads nobody inside:
// one answer is checked and dialled, and the next request is checked by itself.
func TestB15_19NameThatTurns(t *testing.T) {
	t.Parallel()
	n := egresstest.New(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://turning.example/again", http.StatusFound)
	})
	got := fetch(t, fetcherOver(t, n.Net()), "http://turning.example/")
	if !got.IsError || n.Inside() != 0 {
		t.Errorf("%+v, %d connections inside", got, n.Inside())
	}
}

// TestB15_19FiveRedirects: five redirects are followed, a sixth is not.
func TestB15_19FiveRedirects(t *testing.T) {
	t.Parallel()
	n := egresstest.New(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "there") })
	tool := fetcherOver(t, n.Net())
	if got := fetch(t, tool, n.Redirect(outside+"/end", 5)); got.Content != "there" || got.URL != outside+"/end" {
		t.Errorf("five redirects: %+v", got)
	}
	if got := fetch(t, tool, n.Redirect(outside+"/end", 6)); !got.IsError || got.Content != "Failed to fetch URL: more than 5 redirects." {
		t.Errorf("six redirects: %+v", got)
	}
}

// TestB15_20Bounds: what is longer is cut, in characters, and is not read to its end.
func TestB15_20Bounds(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{
		"/fits": strings.Repeat("ü", 100_000), "/long": strings.Repeat("ü", 100_001), "/wide": strings.Repeat("😀", 100_000),
		"/wider": strings.Repeat("😀", 100_001),
	}
	n := egresstest.New(t, func(w http.ResponseWriter, r *http.Request) {
		if body := bodies[r.URL.Path]; body != "" {
			_, _ = io.WriteString(w, body)
			return
		}
		w.Header().Set("Content-Encoding", "gzip") // a bomb
		zip := gzip.NewWriter(w)
		for zeros := make([]byte, 1<<20); r.Context().Err() == nil; {
			if _, err := zip.Write(zeros); err != nil {
				return
			}
		}
	})
	tool := fetcherOver(t, n.Net())
	for path, want := range map[string]struct {
		characters int
		truncated  bool
	}{"/fits": {100_000, false}, "/long": {100_000, true}, "/wide": {100_000, false}, "/wider": {100_000, true}, "/endless": {100_000, true}} {
		got := fetch(t, tool, outside+path)
		if n := len([]rune(got.Content)); n != want.characters || got.Truncated != want.truncated || got.IsError {
			t.Errorf("%s: %d characters, truncated %v, want %+v", path, n, got.Truncated, want)
		}
	}
}

// TestB15_20Charsets: the text is read in the charset that it is said to have.
func TestB15_20Charsets(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ kind, body, want string }{
		{"text/html; charset=ISO-8859-1", "caf\xe9 \x80", "café €"},
		{`text/plain;charset="windows-1252"`, "\x93quoted\x94", "“quoted”"},
		{"text/plain; charset=utf-16le", "h\x00\xe9\x00", "hé"},
		{"text/plain; charset=utf-16", "\xfe\xff\x00h\x00\xe9", "hé"},
		{"text/plain; charset=utf-8", "\xff\xfeh\x00", "h"},
		{"text/plain; charset=utf-8", "\xef\xbb\xbfh\xc3\xa9", "hé"},
		{"text/plain; charset=Shift_JIS", "\x93\xfa\x96{", "日本"},
		{"text/plain; charset=gbk", "\xd6\xd0", "中"},
		{"text/plain; charset=koi8-r", "\xf7", "В"},
		{"text/plain; charset=nonsense", "h\xc3\xa9", "hé"},
		{"text/plain", "h\xc3\xa9\xff", "hé\uFFFD"},
		{"", "h\xc3\xa9", "hé"},
		{"; ;charset", "h", "h"},
	} {
		n := egresstest.New(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", test.kind)
			_, _ = io.Copy(w, bytes.NewReader([]byte(test.body)))
		})
		if got := fetch(t, fetcherOver(t, n.Net()), outside+"/"); got.Content != test.want {
			t.Errorf("%s: %q, want %q", test.kind, got.Content, test.want)
		}
	}
}

// drip is a server that never comes to an end: it says a little every second, so that no time of silence would end it.
func drip(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer func() { _ = server.Close() }()
		buffer := make([]byte, 4<<10)
		_, _ = server.Read(buffer)
		_, _ = io.WriteString(server, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
		for {
			if _, err := io.WriteString(server, "1\r\nx\r\n"); err != nil {
				return
			}
			time.Sleep(time.Second) // fake
		}
	}()
	return client, ctx.Err()
}

func public(context.Context, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr(egresstest.OutsideAddress)}, nil
}

// TestB15_20Deadline: an answer that takes its time is given 15 seconds in all, and the end of the call ends it at once.
func TestB15_20Deadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tool := fetcherOver(t, egress.Net{Lookup: public, Dial: drip})
		began := time.Now()
		got := fetch(t, tool, outside+"/")
		if took := time.Since(began); took != 15*time.Second || !got.IsError ||
			got.Content != "Failed to fetch URL: no complete answer within 15s." {
			t.Errorf("after %v: %+v", took, got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, cancel)
		began = time.Now()
		a := agent.Execute(ctx, tool, agent.NewCall(agent.CallInfo{}), json.RawMessage(`{"url":"`+outside+`/"}`))
		if took := time.Since(began); took != 3*time.Second || a.Error == nil || a.Error.Name != events.ErrorCancelled {
			t.Errorf("after %v: %+v", took, a)
		}
		time.Sleep(2 * time.Second) // fake: the server notices
	})
}

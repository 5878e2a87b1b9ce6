package toolexecutor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/egress"
)

// SourceHTTP is the kind of tools that are requests to a server.
const SourceHTTP = "http"

// Names of the errors of requests that failed.
const (
	errorHTTP   = "HTTPError"
	errorDenied = "AddressDenied"
)

// Headers of every request, beside those that the definition names.
const (
	headerIdempotencyKey = "Idempotency-Key"
	headerToolCallID     = "weir-tool-call-id"
)

// maxRedirects is how many redirects of one call are followed.
const maxRedirects = 5

// HTTPDef is a tool that is a request to a server. It comes from the executor's own configuration, never from the bus.
type HTTPDef struct {
	// Manifest says what the tool is; zero fields have their defaults.
	Manifest events.Manifest
	// Method is GET, POST, PUT, PATCH or DELETE. Empty: POST.
	Method string
	// URL is where requests go. Nothing of a call changes it but the query of a GET.
	URL string
	// Headers are sent with each request to the server of the URL, and to no other.
	Headers map[string]string
	// Secrets are texts that errors must not show, such as values of Headers.
	Secrets []string
	// Allow lists hosts, addresses and ranges that may be reached although they are not public or have another port
	// than 80 and 443; see [egress.ParseEntry].
	Allow []string
	// Timeout of one request. Zero: that of the call.
	Timeout time.Duration
}

// String leaves out headers and secrets.
func (d HTTPDef) String() string {
	return fmt.Sprintf("http tool %s: %s %s", d.Manifest.ID, cmp.Or(d.Method, http.MethodPost), d.URL)
}

// GoString is String.
func (d HTTPDef) GoString() string { return d.String() }

// LogValue is String.
func (d HTTPDef) LogValue() slog.Value { return slog.StringValue(d.String()) }

// httpTool makes a request for each call.
type httpTool struct {
	outside

	def       HTTPDef
	url       *url.URL
	query     url.Values // of the URL; arguments never change it
	guard     *egress.Guard
	transport *http.Transport
}

var _ agent.Tool = (*httpTool)(nil)

// NewHTTP makes a tool of a server: the arguments are the JSON body of the request, or the query of a GET; the id of
// the call is in Idempotency-Key and in weir-tool-call-id. The answer is the result: JSON, or text, which becomes a
// string; at most 1 MiB. A status of 400 or more is an error that tells the beginning of the answer.
//
// Redirects are followed at most five times, never from https to http, and never take headers of the definition or
// arguments to another server. Every address is held to package egress. A request of a tool with effects is sent once.
func NewHTTP(def HTTPDef) (agent.Tool, error) {
	t := &httpTool{outside: newOutside(def.Manifest, SourceHTTP, def.Secrets), def: def}
	if err := t.prepare(); err != nil {
		return nil, fmt.Errorf("tool %s: %w", def.Manifest.ID, err)
	}
	return agent.Checked(t)
}

func (t *httpTool) prepare() (err error) {
	t.def.Method = cmp.Or(t.def.Method, http.MethodPost)
	if !slices.Contains(httpMethods, t.def.Method) {
		return fmt.Errorf("method: want one of %s, not %q", strings.Join(httpMethods, ", "), t.def.Method)
	}
	if t.guard, err = egress.New(t.def.Allow...); err != nil {
		return fmt.Errorf("allow: %w", err)
	}
	if t.url, err = url.Parse(t.def.URL); err != nil {
		return errors.New("url: cannot be read") // the error would quote it
	}
	if err := t.guard.CheckURL(t.url); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if t.query, err = url.ParseQuery(t.url.RawQuery); err != nil {
		return errors.New("url: its query cannot be read")
	}
	t.url.Fragment = ""
	if err := checkHeaders(t.def.Headers); err != nil {
		return err
	}
	t.transport = t.guard.Transport()
	// A transport sends a request again when a connection that it had kept turns out to be lost, above all one that
	// names an idempotency key. Without kept connections it never does.
	t.transport.DisableKeepAlives = !t.manifest.Effect.Repeatable()
	return nil
}

var httpMethods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// ownHeaders are set by the tool or by the connection.
var ownHeaders = []string{
	headerIdempotencyKey, "Content-Length", "Content-Type", "Connection", "Host", "Keep-Alive", "Proxy-Connection", "Te",
	"Trailer", "Transfer-Encoding", "Upgrade",
}

func checkHeaders(headers map[string]string) error {
	for name, value := range headers {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case name == "" || strings.Trim(strings.ToLower(name), headerCharacters) != "":
			return fmt.Errorf("headers: %q is not a name of a header", name)
		case slices.Contains(ownHeaders, canonical) || strings.HasPrefix(canonical, "Weir-"):
			return fmt.Errorf("headers: %s is set by the tool itself", canonical)
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return fmt.Errorf("headers: the value of %s has a control character", canonical)
		}
	}
	return nil
}

const headerCharacters = "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~"

// Run executes one call.
func (t *httpTool) Run(ctx context.Context, call *agent.Call, args json.RawMessage) (json.RawMessage, error) {
	req, err := t.request(call, args)
	if err != nil {
		return nil, err
	}
	limited := ctx
	if t.def.Timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, t.def.Timeout)
		defer cancel()
	}
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }}
	resp, err := t.send(req.WithContext(httptrace.WithClientTrace(limited, trace)), args)
	if err != nil {
		return nil, t.lost(ctx, limited, err, sent.Load())
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := t.read(resp)
	if err != nil {
		return nil, t.lost(ctx, limited, err, true)
	}
	return t.result(resp, body)
}

// request is the first request of a call.
func (t *httpTool) request(call *agent.Call, args json.RawMessage) (*http.Request, error) {
	u := *t.url
	header := http.Header{
		"Accept":     {"application/json, text/plain;q=0.9, */*;q=0.1"},
		"User-Agent": {"weir"},
	}
	for name, value := range t.def.Headers {
		header.Set(name, value)
	}
	header.Set(headerIdempotencyKey, call.IdempotencyKey())
	header.Set(headerToolCallID, call.ToolCallID())
	req := &http.Request{Method: t.def.Method, URL: &u, Host: u.Host, Header: header}
	if t.def.Method != http.MethodGet {
		header.Set("Content-Type", "application/json")
		setBody(req, args)
		return req, nil
	}
	query, err := queryOf(t.query, args)
	if err != nil {
		return nil, err
	}
	u.RawQuery = query
	return req, nil
}

func setBody(req *http.Request, body []byte) {
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.ContentLength = int64(len(body))
}

// send makes a request and those to which it is redirected.
func (t *httpTool) send(req *http.Request, args json.RawMessage) (*http.Response, error) {
	for hop := 0; ; hop++ {
		resp, err := t.transport.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		next, err := t.redirect(req, resp, args)
		if err == nil && next == nil {
			return resp, nil
		}
		_ = resp.Body.Close()
		if err == nil && hop == maxRedirects {
			err = fmt.Errorf("more than %d redirects", maxRedirects)
		}
		if err != nil {
			return nil, &redirectError{err}
		}
		req = next
	}
}

// redirectError is a redirect that is not followed.
type redirectError struct{ error }

// Unwrap is the reason.
func (e *redirectError) Unwrap() error { return e.error }

// redirect is the request that a response asks for in place of req, or nil when it is an answer.
func (t *httpTool) redirect(req *http.Request, resp *http.Response, args json.RawMessage) (*http.Request, error) {
	location := resp.Header.Get("Location")
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	if location == "" {
		return nil, nil
	}
	u, err := req.URL.Parse(location)
	if err != nil {
		return nil, errors.New("a redirect to what is no URL")
	}
	u.Fragment = ""
	if err := t.guard.CheckURL(u); err != nil {
		return nil, fmt.Errorf("a redirect: %w", err)
	}
	if req.URL.Scheme == "https" && u.Scheme != "https" {
		return nil, errors.New("a redirect from https to http")
	}
	next := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: req.Header.Clone()}
	same := sameOrigin(req.URL, u)
	if !same { // nor does a redirect back bring them along
		for name := range t.def.Headers {
			next.Header.Del(name)
		}
	}
	again := resp.StatusCode == http.StatusTemporaryRedirect || resp.StatusCode == http.StatusPermanentRedirect
	if again && req.Method != http.MethodGet {
		if !same {
			return nil, errors.New("a redirect that would take the arguments to another server")
		}
		next.Method = req.Method
		setBody(next, args)
	} else {
		next.Header.Del("Content-Type")
	}
	return next.WithContext(req.Context()), nil
}

func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		return cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

// lost is the error of a request without an answer. Its text never holds the URL, whose query may be arguments.
func (t *httpTool) lost(ctx, limited context.Context, err error, sent bool) error {
	host := t.url.Host
	details := map[string]bool{"sent": sent}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s has not answered: %w", host, context.Cause(ctx))
	case limited.Err() != nil:
		return t.failure(events.ErrorTimeout, details, host, " has not answered within ", t.def.Timeout.String())
	case errors.Is(err, egress.ErrDenied):
		return t.failure(errorDenied, nil, host, ": ", t.quote([]byte(err.Error()), false))
	}
	why := host + ": " + t.quote([]byte(err.Error()), false)
	if _, ok := errors.AsType[*redirectError](err); !ok && sent {
		return agent.InDoubt(t.failure(errorHTTP, details, why, "; the request was sent, and nobody knows what became of it"))
	}
	return t.failure(errorHTTP, details, why)
}

// read reads an answer, of an error only its beginning.
func (t *httpTool) read(resp *http.Response) ([]byte, error) {
	limit := int64(maxOutput + 1)
	if resp.StatusCode >= http.StatusMultipleChoices {
		limit = maxSaid
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil && resp.StatusCode >= http.StatusMultipleChoices {
		return body, nil // the status says enough
	}
	return body, err
}

// result makes a call's outcome of an answer.
func (t *httpTool) result(resp *http.Response, body []byte) (json.RawMessage, error) {
	host := t.url.Host
	details := map[string]int{"status": resp.StatusCode}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		text := host + " answered " + strings.TrimSpace(fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode)))
		if said := t.quote(body, false); said != "" && kind != "text/html" { // a page of some proxy says nothing
			text += ": " + said
		}
		return nil, t.failure(errorHTTP, details, text)
	}
	if len(body) > maxOutput {
		return nil, t.failure(errorHTTP, details, host, fmt.Sprintf(" answered with more than %d bytes", maxOutput))
	}
	result, problem := valueOfBody(kind, body)
	if problem != "" {
		return nil, t.failure(errorHTTP, details, host, " answered with ", problem)
	}
	return result, nil
}

// queryOf adds arguments to the fixed query of a URL: texts, numbers and booleans as they are, lists of them as one
// parameter for each item, other values as JSON; null is left out. An argument that would be a second value of a fixed
// parameter is refused, because servers differ in which of two counts.
func queryOf(fixed url.Values, args json.RawMessage) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(args, &fields); err != nil {
		return "", agent.Invalid("", "want an object")
	}
	query := make(url.Values, len(fixed)+len(fields))
	maps.Copy(query, fixed)
	for name, raw := range fields {
		if _, taken := fixed[name]; taken {
			return "", agent.Invalid(name, "is fixed by the tool's URL")
		}
		var list []json.RawMessage
		if raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
			list = []json.RawMessage{raw}
		}
		for _, item := range list {
			if string(item) != "null" {
				query.Add(name, parameter(item))
			}
		}
	}
	return query.Encode(), nil
}

// parameter is a JSON value as it stands in a query.
func parameter(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
)

// Bounds of bodies, in bytes.
const (
	maxBody     = 1 << 20
	maxDecision = 64 << 10
)

// request is an HTTP request whose sender is known.
type request struct {
	*http.Request
	g     *Gateway
	route Route
	who   *caller
	w     http.ResponseWriter
}

// reply is an answer with a status of its own, or one that is JSON already.
type reply struct {
	status int
	body   any
	raw    json.RawMessage
	header http.Header
}

// ServeHTTP answers a request: first what holds for all of them, then by the table.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if !g.knows(r.Host) {
		g.writeError(w, r, events.Errorf(events.CodeForbidden, "this gateway is not called %.100q: see --host", r.Host))
		return
	}
	if err := g.origin.Check(r); err != nil {
		g.writeError(w, r, events.Errorf(events.CodeForbidden, "a page of another origin may not do this"))
		return
	}
	if r.URL.Path != path.Clean(r.URL.Path) { // the mux would send elsewhere; nothing is there
		notFound(w)
		return
	}
	if _, pattern := g.mux.Handler(r); pattern == "" {
		notFound(w)
		return
	}
	g.mux.ServeHTTP(w, r)
}

// notFound answers for paths that are none.
func notFound(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
	w.WriteHeader(http.StatusNotFound)
	_, _ = io.WriteString(w, "404 Not Found") // the asker has gone: nobody to tell
}

// serve is the handler of a route: who asks is known and may, the body is bounded, and whatever goes wrong leaves by the
// table of errors.
func (g *Gateway) serve(route Route) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		defer g.recovered(w, hr)
		r := &request{Request: hr, g: g, route: route, w: w}
		var err error
		if route.Scope != "" {
			if r.who, err = g.authenticate(hr); err == nil {
				err = r.who.needs(route.Scope)
			}
		}
		if err != nil {
			g.writeError(w, hr, err)
			return
		}
		hr.Body = http.MaxBytesReader(w, hr.Body, route.limit())
		if route.stream != nil {
			err = route.stream(r)
			_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // else it would hold for the connection's next answer
		} else {
			err = r.answer(route.handle(r))
		}
		if err != nil {
			g.writeError(w, hr, err)
		}
	}
}

// recovered answers in the place of a handler that is broken.
func (g *Gateway) recovered(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint,err113 // the value itself is what is thrown
		panic(p)
	}
	g.log.ErrorContext(r.Context(), "a handler panicked", "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	g.writeError(w, r, events.Errorf(events.CodeInternal, "internal error"))
}

// answer writes what a handler has made.
func (r *request) answer(v any, err error) error {
	if err != nil {
		return err
	}
	out, ok := v.(*reply)
	if !ok {
		out = &reply{body: v}
	}
	if out.raw == nil {
		if out.raw, err = events.Marshal(out.body); err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
	}
	maps.Copy(r.w.Header(), out.header)
	writeJSON(r.w, max(out.status, http.StatusOK), out.raw)
	return nil
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // JSON, and said to be so; on an error the asker has gone, and nobody is to tell
}

// read decodes the body of a request of Mastra's routes: fields that it does not know are passed over.
func (r *request) read(into any) error {
	raw, err := r.body()
	if err != nil {
		return err
	}
	return decodeError(json.Unmarshal(raw, into))
}

// readExact decodes the body of a request of Weir's own routes: a field that it does not know is a slip, and refused.
func (r *request) readExact(into any) error {
	raw, err := r.body()
	if err != nil {
		return err
	}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.DisallowUnknownFields()
	return decodeError(dec.Decode(into))
}

// body is the whole body, which is one JSON value without duplicates, bad UTF-8 or deep nesting.
func (r *request) body() ([]byte, error) {
	control := http.NewResponseController(r.w)
	_ = control.SetReadDeadline(time.Now().Add(r.g.cfg.Body)) // what cannot set one is no connection
	raw, err := io.ReadAll(r.Body)
	_ = control.SetReadDeadline(time.Time{}) // else it would end the request itself, later
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, events.Errorf(events.CodeTooLarge, "the body is larger than %d bytes", e.Limit)
	}
	if err != nil {
		return nil, events.Errorf(events.CodeInvalidRequest, "the body ended before its time")
	}
	if err := events.CheckJSON(raw); err != nil {
		return nil, badBody("body", err.Error())
	}
	return raw, nil
}

// badBody refuses a body for one of its fields.
func badBody(field, message string) *events.Error {
	return &events.Error{
		Code: events.CodeInvalidRequest, Message: "Invalid request body", Issues: []events.Issue{{Field: field, Message: message}},
	}
}

// badQuery refuses the query of a request.
func badQuery(field, message string) *events.Error {
	return &events.Error{
		Code: events.CodeInvalidRequest, Message: "Invalid query parameters", Issues: []events.Issue{{Field: field, Message: message}},
	}
}

// decodeError says which field of a body is not what it must be.
func decodeError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*events.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := e.Field
		if field == "" {
			field = "body"
		}
		return badBody(field, fmt.Sprintf("want %s, got %s", jsonName(e.Type.Kind()), e.Value))
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return badBody(strings.Trim(name, `"`), "there is no such field")
	}
	return badBody("body", err.Error())
}

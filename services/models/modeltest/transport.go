package modeltest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// Transport sends requests to a handler in this process, as a network would: the answer streams while the handler
// writes, a handler that panics with [http.ErrAbortHandler] loses the connection, and the handler's request ends when
// its caller does. It blocks on channels only, so it works in a bubble of testing/synctest, where a socket does not.
func Transport(h http.Handler) http.RoundTripper { return &transport{h} }

type transport struct{ handler http.Handler }

// RoundTrip returns as soon as the handler has written its header.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	out, in := io.Pipe()
	w := &writer{header: http.Header{}, body: in, ready: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = out.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer cancel(nil)
		w.serve(t.handler, req.WithContext(ctx))
		stop() // what was written stays readable
	}()
	select {
	case <-w.ready:
	case <-req.Context().Done():
	}
	if req.Context().Err() != nil { // whatever the handler says to that: who has gone gets no answer
		return nil, context.Cause(req.Context())
	}
	if w.lost != nil {
		return nil, w.lost
	}
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Header: w.header, Request: req,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1,
		Body: &body{out, cancel},
	}, nil
}

// body tells the handler when its reader closes it.
type body struct {
	*io.PipeReader

	cancel context.CancelCauseFunc
}

func (b *body) Close() error {
	b.cancel(errClosed)
	return b.PipeReader.Close()
}

var errClosed = errors.New("the reader closed the answer")

// writer is a handler's side of an answer.
type writer struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	ready  chan struct{}
	status int
	lost   error // the connection was lost before the header
}

func (w *writer) serve(h http.Handler, req *http.Request) {
	defer func() {
		if r := recover(); r != nil {
			w.once.Do(func() { w.lost = io.ErrUnexpectedEOF; close(w.ready) })
			_ = w.body.CloseWithError(io.ErrUnexpectedEOF)
			if r != http.ErrAbortHandler { //nolint:errorlint // the very value, as net/http has it
				panic(r)
			}
		}
	}()
	h.ServeHTTP(w, req)
	w.WriteHeader(http.StatusOK)
	_ = w.body.Close()
}

// Header is the answer's header.
func (w *writer) Header() http.Header { return w.header }

// WriteHeader sends the status, once.
func (w *writer) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.header = status, w.header.Clone()
		close(w.ready)
	})
}

// Write sends a piece at once: there is nothing to flush.
func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush does nothing.
func (w *writer) Flush() {}

package gateway

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
)

const (
	// firstWait is how long a stream waits for something to say before its headers go out: a run that is refused at once is
	// then refused with a status.
	firstWait = 500 * time.Millisecond
	// authEvery is how often a stream looks whether its reader may still read.
	authEvery = 4 * time.Second
)

// sse writes an event stream. A write that its reader does not take within a time ends it: nothing is kept for slow
// readers, who go on by their cursor.
type sse struct {
	w       http.ResponseWriter
	control *http.ResponseController
	header  http.Header
	began   bool
}

func (r *request) sse(header http.Header) *sse {
	return &sse{w: r.w, control: http.NewResponseController(r.w), header: header}
}

// begin sends the headers.
func (s *sse) begin() error {
	if s.began {
		return nil
	}
	s.began = true
	h := s.w.Header()
	maps.Copy(h, s.header)
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	return s.flush()
}

func (s *sse) flush() error {
	if err := s.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errGone
	}
	return nil
}

// errGone says that the reader has gone, or takes nothing any more.
var errGone = errors.New("the reader has gone")

func (s *sse) write(text []byte) error {
	if err := s.begin(); err != nil {
		return err
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTime)) // what cannot set one is no connection
	if _, err := s.w.Write(text); err != nil {
		return errGone
	}
	return s.flush()
}

// data sends one value, in the only form that Mastra's client takes: no id, no event, on one line.
func (s *sse) data(v any) error {
	raw, err := events.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	return s.write(append(append([]byte("data: "), raw...), "\n\n"...))
}

// event sends one value with its place, and with a name unless that is the usual one.
func (s *sse) event(id uint64, name string, v any) error {
	raw, err := events.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	var b []byte
	if id > 0 {
		b = append(strconv.AppendUint(append(b, "id: "...), id, 10), '\n')
	}
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
	}
	return s.write(append(append(append(b, "data: "...), raw...), "\n\n"...))
}

// raw sends text that is a frame already.
func (s *sse) raw(frame string) error { return s.write([]byte(frame)) }

// item is what a sequence has given.
type item[T any] struct {
	value T
	err   error
}

// pump hands on what a sequence gives until it ends, and keeps the stream alive meanwhile. It ends early, with an error,
// when the reader has gone or may not read any more, or the gateway stops.
func pump[T any](r *request, out *sse, from func(context.Context) iter.Seq2[T, error], take func(T, error) error) error {
	ctx, cancel := context.WithCancel(r.Context())
	items := make(chan item[T])
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() {
		defer close(items)
		for v, err := range from(ctx) {
			select {
			case items <- item[T]{v, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	silence := time.NewTimer(min(firstWait, r.g.cfg.Heartbeat))
	defer silence.Stop()
	auth := time.NewTicker(authEvery)
	defer auth.Stop()
	for {
		select {
		case it, more := <-items:
			if !more {
				if r.Context().Err() != nil {
					return errGone
				}
				return nil
			}
			if err := take(it.value, it.err); err != nil {
				return err
			}
			silence.Reset(r.g.cfg.Heartbeat)
		case <-silence.C:
			if err := out.alive(); err != nil {
				return err
			}
			silence.Reset(r.g.cfg.Heartbeat)
		case <-auth.C:
			if err := r.still(); err != nil {
				return err
			}
		case <-r.g.stopping:
			return errGone
		case <-r.Context().Done():
			return errGone
		}
	}
}

// alive says that the stream lives: by its headers, the first time, and by a comment then.
func (s *sse) alive() error {
	if !s.began {
		return s.begin()
	}
	return s.raw(": ping\n\n")
}

// still reports whether who began to read may go on.
func (r *request) still() error {
	who, err := r.g.authenticate(r.Request)
	if err == nil {
		err = who.needs(r.route.Scope)
	}
	if e, ok := errors.AsType[*events.Error](err); ok && e.Code == events.CodeUnavailable {
		return nil // nobody can say; what was true a moment ago counts
	}
	return err
}

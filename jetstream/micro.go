package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/weirkeeper/weir/events"
)

// A micro service answers requests and stores nothing: a request is lost when nobody listens, so what must survive is put
// into a stream before the reply.

const (
	// requestTime is how long a request may take from its arrival to its reply. Servers let a service answer for 10 s.
	requestTime = 9 * time.Second
	// answerTime is how long a reply of a service is waited for.
	answerTime = 10 * time.Second
	// defaultRequests are handled at once by one process.
	defaultRequests = 1024
	// endpointVersion is that of the endpoints: it changes when one of them does, not with every release.
	endpointVersion = "1.0.0"
	// replyGrace is how long requests may go on when their service has to stop.
	replyGrace = time.Second
	// maxDescription bounds what a header says about a refusal; the body says all of it.
	maxDescription = 512
)

// Request is a request to a micro service.
type Request struct {
	Subject string
	Header  map[string][]string
	Data    []byte
}

// Endpoint answers the requests of a family of subjects.
type Endpoint struct {
	Name    string // in what the service says about itself
	Subject string // may hold wildcards
	// Answer makes the body of the reply. An error of type *events.Error is told to who asked; any other is logged, and
	// told as internal or unavailable. The context ends when it is too late for a reply.
	Answer func(ctx context.Context, r Request) (any, error)
}

// Micro is a micro service: what is asked of it is answered by one of its copies.
type Micro struct {
	Name        string // under which it is found: nats micro ls
	Description string
	Endpoints   []Endpoint
	Requests    int // that are handled at once; those beyond are refused as unavailable. Zero: 1024
}

// Serve answers requests until the context of the function that it returns ends; then it takes no more, finishes those
// that it has and returns nil. A user who may not listen on one of the subjects is an error.
//
// A request is answered on its own reply subject alone, and one that names no reply, or a subject of Weir or of the
// server as its reply, is no request: it was steered here to be answered there, and nothing is done for it.
func (c *Conn) Serve(m Micro) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		s := &serving{conn: c, limit: cmp.Or(m.Requests, defaultRequests), counts: map[string]*counts{}}
		var work context.Context
		work, s.cut = context.WithCancel(context.WithoutCancel(ctx)) // a request that was taken may be finished
		defer s.cut()
		if err := s.start(ctx, work, m); err != nil {
			return fmt.Errorf("serve %s: %w", m.Name, err)
		}
		<-ctx.Done()
		s.stop(context.WithoutCancel(ctx))
		return nil
	}
}

// serving is a micro service at work.
type serving struct {
	conn   *Conn
	svc    micro.Service
	limit  int
	cut    context.CancelFunc // ends what is under way
	counts map[string]*counts // by endpoint

	mu      sync.Mutex
	closed  bool
	running int
	idle    chan struct{} // closed when nothing runs any more, once it is set
}

// counts are what an endpoint has done. The library counts what it hands out, and knows no outcome.
type counts struct{ answered, refused, nanos atomic.Int64 }

// MarshalJSON writes them as discovery shows them.
func (n *counts) MarshalJSON() ([]byte, error) {
	answered, refused := n.answered.Load(), n.refused.Load()
	average := time.Duration(0)
	if all := answered + refused; all > 0 {
		average = time.Duration(n.nanos.Load() / all)
	}
	return json.Marshal(map[string]any{"answered": answered, "refused": refused, "average": average.String()})
}

func (s *serving) start(ctx, work context.Context, m Micro) error {
	for _, e := range m.Endpoints { // all of them before the first request
		s.counts[e.Name] = &counts{}
	}
	svc, err := micro.AddService(s.conn.nc, micro.Config{
		Name: m.Name, Version: endpointVersion, Description: m.Description,
		Metadata:     map[string]string{"namespace": string(s.conn.ns)},
		QueueGroup:   m.Name,
		StatsHandler: func(e *micro.Endpoint) any { return s.counts[e.Name] },
	})
	if err != nil {
		return mapError(err)
	}
	s.svc = svc
	for _, e := range m.Endpoints {
		err := s.conn.subscribed(ctx, e.Subject, func() error {
			return svc.AddEndpoint(e.Name, s.handler(work, e), micro.WithEndpointSubject(e.Subject))
		})
		if err != nil {
			s.stop(context.WithoutCancel(ctx))
			return err
		}
	}
	return nil
}

// handler hands each request to a goroutine of its own, so that one that waits holds no other up.
func (s *serving) handler(ctx context.Context, e Endpoint) micro.HandlerFunc {
	return func(req micro.Request) {
		r := Request{Subject: req.Subject(), Header: req.Headers(), Data: req.Data()}
		reply := req.Reply()
		if reply == "" || events.IsInternal(reply) {
			s.conn.log.ErrorContext(ctx, "request without a reply of its own: somebody steers messages here",
				"subject", r.Subject, "reply", reply)
			return
		}
		if !s.begin() {
			s.reply(ctx, r.Subject, reply, nil, events.Errorf(events.CodeUnavailable, "the service is busy or stops: ask again"))
			return
		}
		go func() {
			defer s.end()
			s.handle(ctx, e, r, reply)
		}()
	}
}

func (s *serving) handle(ctx context.Context, e Endpoint, r Request, reply string) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	answer, err := s.guarded(ctx, e, r)
	n := s.counts[e.Name]
	n.nanos.Add(int64(time.Since(began)))
	if err != nil {
		n.refused.Add(1)
	} else {
		n.answered.Add(1)
	}
	s.reply(ctx, r.Subject, reply, answer, err)
}

// guarded turns a panic into an error, with its stack in the log.
func (s *serving) guarded(ctx context.Context, e Endpoint, r Request) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("endpoint panicked: %v", p)
			s.conn.log.ErrorContext(ctx, "endpoint panicked", "endpoint", e.Name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	return e.Answer(ctx, r)
}

// reply publishes what became of a request: the answer, or the one shape of errors with its code in the headers too. The
// library's own way of replying writes to the request after it has handed that out, so it is not used.
func (s *serving) reply(ctx context.Context, subject, reply string, answer any, err error) {
	msg := &nats.Msg{Subject: reply}
	why := s.told(ctx, subject, err)
	if why == nil {
		body, err := events.Marshal(answer)
		if msg.Data = body; err != nil {
			why = s.told(ctx, subject, err)
		} else if s.conn.checkSize(msg) != nil {
			why = events.Errorf(events.CodeTooLarge, "the reply has %d bytes, more than a message can hold", len(body))
		}
	}
	if why != nil {
		msg = refusalMsg(reply, why)
		if s.conn.checkSize(msg) != nil { // what it quotes is too large: the code and the text are what counts
			msg = refusalMsg(reply, events.Errorf(why.Code, "%s", cut(why.Message, maxReason)))
		}
	}
	if err := s.conn.opts.Hooks.at(BeforeReply, subject); err != nil {
		return
	}
	if err := s.conn.nc.PublishMsg(msg); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		s.conn.log.WarnContext(ctx, "reply not sent", "subject", subject, "error", err)
	}
}

func refusalMsg(reply string, why *events.Error) *nats.Msg {
	body, err := events.Marshal(why)
	if err != nil {
		body = nil // the headers say enough
	}
	return &nats.Msg{Subject: reply, Data: body, Header: nats.Header{
		micro.ErrorHeader:     {cmp.Or(cut(why.Message, maxDescription), string(why.Code))},
		micro.ErrorCodeHeader: {strconv.Itoa(why.Code.Status())},
	}}
}

// told is what the sender of a request hears of an error. The text of one that has no code stays inside.
func (s *serving) told(ctx context.Context, subject string, err error) *events.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*events.Error](err); ok {
		return e
	}
	s.conn.log.WarnContext(ctx, "request failed", "subject", subject, "error", err)
	if isFault(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return events.Errorf(events.CodeUnavailable, "a store does not answer: ask again")
	}
	return events.Errorf(events.CodeInternal, "the request failed; its service has logged why")
}

func (s *serving) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running >= s.limit {
		return false
	}
	s.running++
	return true
}

func (s *serving) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.running == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// stop lets other copies have the requests, and waits for those that were taken.
//
// The library ends a service by draining its subscriptions, with timers from a pool of the process, which in tests would
// carry them from one fake time into another (see [Conn.Close]). Behind a connection within the process there is no
// other copy to drain for, so there the service ends with its connection, and refuses what comes until then.
func (s *serving) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if s.conn.opts.InProcess == nil {
		if err := s.svc.Stop(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			s.conn.log.WarnContext(ctx, "micro service not stopped", "error", err)
		}
		_ = s.conn.nc.FlushWithContext(ctx) // what the server had sent is here then
	}
	s.mu.Lock()
	s.closed = true
	var idle chan struct{}
	if s.running > 0 {
		idle = make(chan struct{})
		s.idle = idle
	}
	s.mu.Unlock()
	if idle == nil {
		return
	}
	defer time.AfterFunc(replyGrace, s.cut).Stop()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// Ask sends a request to a micro service and decodes the body of its reply into answer. A refusal is an error of type
// *events.Error; ErrUnavailable says that nobody listens. The event may be the zero one: then the subject says it all.
func (c *Conn) Ask(ctx context.Context, subject string, e events.Event, answer any) error {
	msg := &nats.Msg{Subject: subject}
	if e.ID != "" {
		var err error
		if msg, err = c.eventMsg(subject, e); err != nil {
			return err
		}
	}
	return c.askMsg(ctx, msg, answer)
}

// AskFor is [Conn.Ask] with a plain value as the request's body.
func (c *Conn) AskFor(ctx context.Context, subject string, request, answer any) error {
	body, err := events.Marshal(request)
	if err != nil {
		return fmt.Errorf("ask %s: %w", subject, err)
	}
	return c.askMsg(ctx, &nats.Msg{Subject: subject, Data: body}, answer)
}

func (c *Conn) askMsg(ctx context.Context, msg *nats.Msg, answer any) error {
	if err := c.checkSize(msg); err != nil {
		return fmt.Errorf("ask %s: %w", msg.Subject, err)
	}
	reply, err := c.request(ctx, answerTime, msg)
	if err != nil {
		return fmt.Errorf("ask %s: %w", msg.Subject, err)
	}
	if why := refusalOf(reply); why != nil {
		return why
	}
	if err := json.Unmarshal(reply.Data, answer); err != nil {
		return fmt.Errorf("ask %s: reply: %w", msg.Subject, err)
	}
	return nil
}

// refusalOf reads a reply that is a refusal: by its headers, and by its body what they have no room for.
func refusalOf(reply *nats.Msg) *events.Error {
	text := strings.TrimSpace(reply.Header.Get(micro.ErrorHeader))
	if text == "" && reply.Header.Get(micro.ErrorCodeHeader) == "" {
		return nil
	}
	var e events.Error
	if err := json.Unmarshal(reply.Data, &e); err != nil || e.Code == "" {
		return events.Errorf(events.CodeInternal, "%s", cmp.Or(text, "the request was refused"))
	}
	return &e
}

// StoreRequest stores a request as it came, in the inbox, and returns its sequence.
func (c *Conn) StoreRequest(ctx context.Context, subject string, header map[string][]string, data []byte) (uint64, error) {
	seq, err := c.storeMsg(ctx, &nats.Msg{Subject: subject, Header: header, Data: data})
	if err != nil {
		return 0, fmt.Errorf("store request on %s: %w", subject, err)
	}
	return seq, nil
}

// Package adapter holds what the adapters of all protocols share, so that each of them is only its protocol: how a
// request is sent and a stream read, how failures are told apart, how calls and results are paired, what ids, names and
// schemas a provider may see.
//
// What an adapter that is built of it promises about a turn:
//
//   - A call ends (tool-input-end) only when the stream said that it is whole. One that was cut never ends.
//   - A turn ends in one finish part or in one error. A [agent.ModelError] tells whether trying again may help.
//   - What is sent pairs every call with its result; ids and names fit the provider's patterns and map back.
//   - The key is in the request's header and nowhere else: not in errors, not in logs.
package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirkeeper/weir/services/agent"
)

// DefaultIdle is how long a provider may be silent, if Config says nothing else.
const DefaultIdle = 60 * time.Second

// MaxTurn bounds the text and arguments of one turn. No model writes that much; a server that loops does.
const MaxTurn = 16 << 20

// Config says how to reach a provider.
type Config struct {
	// BaseURL is the address up to and without the path of a request. Needed.
	BaseURL string
	// Provider is the name under which requests carry options for this provider. Empty: the protocol's.
	Provider string
	// APIKey is sent in the header that the protocol names. Empty: none is.
	APIKey string
	// Headers are sent with every request. Their values are secrets, as the key is.
	Headers map[string]string
	// Idle is how long a provider may be silent, before and within an answer. Zero: 60 s.
	Idle time.Duration
	// HTTP sends the requests. Nil: a client of its own. Redirects are never followed: they would carry the prompt away.
	HTTP *http.Client
}

// Protocol is what the requests of one protocol have in common.
type Protocol struct {
	Name      string            // of the adapter
	KeyHeader string            // where the key goes
	KeyPrefix string            // what stands before it there
	Headers   map[string]string // sent with every request
}

// Client sends the requests of one adapter. Any number of turns may use it at once.
type Client struct {
	name     string
	provider string
	base     *url.URL
	host     string // for errors: the address without what may be secret
	header   http.Header
	secrets  []string
	idle     time.Duration
	http     *http.Client
}

// New makes a client. It connects to nothing yet.
func New(cfg Config, p Protocol) (*Client, error) {
	base, err := url.Parse(cfg.BaseURL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, errors.New("base URL must be http(s)://host/path") // not quoted: it may hold a credential
	}
	c := &Client{
		name: p.Name, provider: cfg.Provider, base: base, host: base.Host, header: http.Header{},
		secrets: secretsOf(cfg, base), idle: cfg.Idle,
	}
	if c.provider == "" {
		c.provider = p.Name
	}
	if c.idle == 0 {
		c.idle = DefaultIdle
	}
	c.header.Set("Content-Type", "application/json")
	c.header.Set("Accept", "text/event-stream")
	for name, value := range p.Headers {
		c.header.Set(name, value)
	}
	if cfg.APIKey != "" {
		c.header.Set(p.KeyHeader, p.KeyPrefix+cfg.APIKey)
	}
	for name, value := range cfg.Headers {
		c.header.Set(name, value)
	}
	sender := http.Client{Transport: transport()}
	if cfg.HTTP != nil {
		sender = *cfg.HTTP
	}
	sender.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &sender
	return c, nil
}

// transport keeps as many connections as a planner has turns, so that each need not be made anew.
func transport() http.RoundTripper {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = 64
	return t
}

// secretsOf are the values that no text of ours may hold.
func secretsOf(cfg Config, base *url.URL) []string {
	const tooShort = 6 // a value like "1" would be cut out of every text
	var secrets []string
	add := func(s string) {
		if len(s) >= tooShort {
			secrets = append(secrets, s)
		}
	}
	add(cfg.APIKey)
	for _, v := range cfg.Headers {
		add(v)
	}
	if password, ok := base.User.Password(); ok {
		add(password)
	}
	for _, values := range base.Query() {
		for _, v := range values {
			add(v)
		}
	}
	return secrets
}

// Provider is the name under which requests carry options for this provider.
func (c *Client) Provider() string { return c.provider }

// String names the server and not the key, so that a client can be printed.
func (c *Client) String() string { return c.name + " client of " + c.host }

// GoString is String: %#v must not show the key either.
func (c *Client) GoString() string { return c.String() }

// Request is a request as it is sent.
type Request struct {
	Path   []string // below the base URL
	Query  string
	Header http.Header // beside what every request has
	Body   []byte
	Key    string // the same for every attempt, for servers that recognise a repeated request

	Warnings []string // what people should know about it; the turn goes on
}

// Warn adds a warning.
func (r *Request) Warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// Turn reads the answer to a request.
type Turn interface {
	// Take reads one event of the stream and adds the parts that it gives.
	Take(f Frame, parts []agent.ModelPart) ([]agent.ModelPart, error)
	// State tells whether the answer is whole, so that at most its usage is missing when the stream breaks off, and
	// whether nothing follows.
	State() (whole, done bool)
	// Finish gives the last parts, the finish among them; or the request that goes on with this turn.
	Finish() ([]agent.ModelPart, *Request, error)
}

// Stream asks for one turn, once. Retries have one owner, and it is the caller: a [agent.ModelError] tells it whether
// another try may help and how long the provider asks to wait. An error of start is final: the request can never be
// sent.
func (c *Client) Stream(ctx context.Context, start func(r *Request) (Turn, error)) iter.Seq2[agent.ModelPart, error] {
	return func(yield func(agent.ModelPart, error) bool) {
		r := &Request{}
		turn, err := start(r)
		if err != nil {
			yield(agent.ModelPart{}, &agent.ModelError{Err: err})
			return
		}
		for _, w := range r.Warnings {
			if !yield(agent.ModelPart{Type: agent.PartWarning, Text: w}, nil) {
				return
			}
		}
		stopped := false
		emit := func(part agent.ModelPart) bool {
			stopped = stopped || !yield(part, nil)
			return !stopped
		}
		for r != nil && err == nil && !stopped {
			r, err = c.send(ctx, r, turn, emit)
		}
		if err != nil && !stopped {
			yield(agent.ModelPart{}, err)
		}
	}
}

// send makes one request, reads its answer and returns the request that goes on with the turn, if there is one.
func (c *Client) send(ctx context.Context, r *Request, turn Turn, emit func(agent.ModelPart) bool) (*Request, error) {
	quiet, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(c.idle, func() { cancel(errIdle) })
	defer idle.Stop()
	req, err := c.request(quiet, r)
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	resp, err := c.http.Do(req)
	idle.Stop()
	if err != nil {
		return nil, c.broken(ctx, silent(quiet, err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, c.refused(resp)
	}
	body := &watched{r: resp.Body, idle: idle, limit: c.idle}
	next, err := c.readBody(turn, body, resp.Header, emit)
	if _, told := errors.AsType[*agent.ModelError](err); err != nil && !told {
		return nil, c.broken(ctx, silent(quiet, err))
	}
	return next, err
}

func (c *Client) request(ctx context.Context, r *Request) (*http.Request, error) {
	at := c.base.JoinPath(r.Path...)
	if r.Query != "" {
		at.RawQuery = strings.TrimPrefix(at.RawQuery+"&"+r.Query, "&")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	req.Header = c.header.Clone()
	maps.Copy(req.Header, r.Header)
	if r.Key != "" {
		req.Header.Set("Idempotency-Key", r.Key)
	}
	return req, nil
}

// silent gives the idle limit as the cause of an error, when it was.
func silent(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errIdle) {
		return cause
	}
	return err
}

// readBody reads a stream, or an answer that is not one: some servers ignore the wish for a stream.
func (c *Client) readBody(turn Turn, body io.Reader, h http.Header, emit func(agent.ModelPart) bool) (*Request, error) {
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	var err error
	switch {
	case strings.HasSuffix(kind, "html"):
		return nil, &agent.ModelError{Status: http.StatusOK, Err: errors.New("a web page instead of an answer; check the base URL")}
	case kind == "application/json":
		err = c.readWhole(turn, body, emit)
	default:
		err = c.readStream(turn, newFrames(body), emit)
	}
	if err != nil {
		if errors.Is(err, errStopped) {
			return nil, nil
		}
		return nil, err
	}
	parts, next, err := turn.Finish()
	if err != nil {
		return nil, c.told(err)
	}
	if err := hand(parts, emit); err != nil {
		return nil, nil //nolint:nilerr // nobody listens any more
	}
	return next, nil
}

// errStopped says that nobody listens any more.
var errStopped = errors.New("the caller has stopped")

func hand(parts []agent.ModelPart, emit func(agent.ModelPart) bool) error {
	for _, p := range parts {
		if !emit(p) {
			return errStopped
		}
	}
	return nil
}

func (c *Client) readWhole(turn Turn, body io.Reader, emit func(agent.ModelPart) bool) error {
	whole, err := io.ReadAll(io.LimitReader(body, maxFrame+1))
	if err != nil {
		return err
	}
	if len(whole) > maxFrame {
		return fmt.Errorf("%w: over %d bytes", errFrame, maxFrame)
	}
	parts, err := c.take(turn, Frame{Data: whole}, nil)
	if err != nil {
		return err
	}
	return hand(parts, emit)
}

// readStream takes frames until the answer is over and hands on what each gives. A stream that ends before the answer
// is whole was cut, and its error says so.
func (c *Client) readStream(turn Turn, in *frames, emit func(agent.ModelPart) bool) error {
	var parts []agent.ModelPart
	for {
		whole, done := turn.State()
		if done {
			return nil
		}
		f, err := in.next()
		switch {
		case err != nil && whole:
			return nil
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return errCut
		case err != nil:
			return err
		}
		if parts, err = c.take(turn, f, parts[:0]); err != nil {
			return err
		}
		if err := hand(parts, emit); err != nil {
			return err
		}
	}
}

func (c *Client) take(turn Turn, f Frame, parts []agent.ModelPart) ([]agent.ModelPart, error) {
	// A decoder would put U+FFFD in place of broken text, and arguments must not change unseen.
	if !utf8.Valid(f.Data) {
		return nil, errors.New("the stream is not UTF-8")
	}
	parts, err := turn.Take(f, parts)
	if err != nil {
		return nil, c.told(err)
	}
	return parts, nil
}

// told makes an error that a provider told a failure of the turn; others stay.
func (c *Client) told(err error) error {
	if e, ok := errors.AsType[*ProviderError](err); ok {
		return c.inStream(e)
	}
	return err
}

// Unexpected is the error of an event that cannot be read.
func Unexpected(err error) error {
	return fmt.Errorf("an event of the stream is not as expected: %w", err)
}

// TooLarge is the error of an answer that does not end.
func TooLarge() error { return fmt.Errorf("%w: the answer has over %d bytes", errFrame, MaxTurn) }

// watched ends a read that takes longer than the limit. Only reading counts: a caller may take its time over a part.
// A comment is a sign of life as well as a piece of an answer.
type watched struct {
	r     io.Reader
	idle  *time.Timer
	limit time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	w.idle.Reset(w.limit)
	defer w.idle.Stop()
	return w.r.Read(p)
}

// Package openai speaks Chat Completions, the protocol of OpenAI that most servers of models offer: OpenAI itself,
// xAI, Ollama, vLLM, llama.cpp and many more, told apart by their base URL and a few habits (Dialect).
//
// It is written over net/http alone. What it promises about a turn:
//
//   - Every call that a server sends becomes one call, in the order in which the calls began, whatever ids, indexes and
//     fragments the server uses for it.
//   - A call ends (tool-input-end) only when the stream said that it is whole. One that was cut never ends.
//   - A turn ends in one finish part or in one error. A [agent.ModelError] tells whether trying again may help.
//   - What is sent pairs every call with its result; ids and names fit the provider's patterns and map back.
//   - The key is in the request's header and nowhere else: not in errors, not in logs.
package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weirkeeper/weir/services/agent"
)

// Defaults of Config.
const (
	DefaultIdle = 60 * time.Second
)

// Config says how to reach a server.
type Config struct {
	// BaseURL is the address up to and without "/chat/completions". Needed.
	BaseURL string
	// Provider is the name under which requests carry options for this server. Empty: openai.
	Provider string
	// APIKey is sent as a bearer token. Empty: none is.
	APIKey string
	// Headers are sent with every request. Their values are secrets, as the key is.
	Headers map[string]string
	// Idle is how long a server may be silent, before and within an answer. Zero: 60 s.
	Idle time.Duration
	// Dialect are the habits of this server.
	Dialect Dialect
	// HTTP sends the requests. Nil: a client of its own. Redirects are never followed: they would carry the prompt away.
	HTTP *http.Client
}

// Dialect are habits in which compatible servers differ. The zero value suits most of them.
type Dialect struct {
	// Strict: the server knows strict function calling.
	Strict bool
	// MaxTokens is the name of the limit of a turn's tokens. Empty: max_tokens.
	MaxTokens string
	// NoStreamOptions: the server refuses stream_options, and tells the usage unasked or never.
	NoStreamOptions bool
	// NoTopK: the server refuses top_k.
	NoTopK bool
	// WebSearch is what the server calls its own search of the web. Empty: it has none.
	WebSearch string
}

func (c Config) withDefaults() Config {
	if c.Provider == "" {
		c.Provider = "openai"
	}
	if c.Idle == 0 {
		c.Idle = DefaultIdle
	}
	if c.HTTP == nil {
		c.HTTP = &http.Client{Transport: transport()}
	}
	if c.Dialect.MaxTokens == "" {
		c.Dialect.MaxTokens = "max_tokens"
	}
	return c
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

// Client is a model behind Chat Completions. The model's name is in each request; it may be used by any number of
// turns at once.
type Client struct {
	provider string
	url      string
	host     string // for errors: the address without what may be secret
	header   http.Header
	secrets  []string
	idle     time.Duration
	dialect  Dialect
	http     *http.Client
}

var _ agent.WebSearcher = (*Client)(nil)

// WebSearch is the server's own search of the web, by its name. It depends on the model whether the server accepts it.
func (c *Client) WebSearch() string { return c.dialect.WebSearch }

// New makes a client. It connects to nothing yet.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	base, err := url.Parse(cfg.BaseURL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, errors.New("base URL must be http(s)://host/path") // not quoted: it may hold a credential
	}
	c := &Client{provider: cfg.Provider, host: base.Host, idle: cfg.Idle, dialect: cfg.Dialect, header: http.Header{}}
	c.url = base.JoinPath("chat", "completions").String()
	c.header.Set("Content-Type", "application/json")
	c.header.Set("Accept", "text/event-stream")
	if cfg.APIKey != "" {
		c.header.Set("Authorization", "Bearer "+cfg.APIKey)
	}
	for name, value := range cfg.Headers {
		c.header.Set(name, value)
	}
	c.secrets = secretsOf(cfg, base)
	sender := *cfg.HTTP
	sender.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &sender
	return c, nil
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

// String names the server and not the key, so that a client can be printed.
func (c *Client) String() string { return "openai client of " + c.host }

// GoString is String: %#v must not show the key either.
func (c *Client) GoString() string { return c.String() }

// Stream asks for one turn, once. Retries have one owner, and it is the caller: a [agent.ModelError] tells it whether
// another try may help and how long the provider asks to wait.
func (c *Client) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return func(yield func(agent.ModelPart, error) bool) {
		p, err := c.prepare(req)
		if err != nil {
			yield(agent.ModelPart{}, &agent.ModelError{Err: err})
			return
		}
		for _, w := range p.warnings {
			if !yield(agent.ModelPart{Type: agent.PartWarning, Text: w}, nil) {
				return
			}
		}
		stopped := false
		err = c.send(ctx, p, func(part agent.ModelPart) bool {
			stopped = !yield(part, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(agent.ModelPart{}, err)
		}
	}
}

// send makes one request and reads its answer.
func (c *Client) send(ctx context.Context, p *prepared, emit func(agent.ModelPart) bool) error {
	quiet, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(c.idle, func() { cancel(errIdle) })
	defer idle.Stop()
	req, err := http.NewRequestWithContext(quiet, http.MethodPost, c.url, bytes.NewReader(p.body))
	if err != nil {
		return c.broken(ctx, err)
	}
	req.Header = c.header.Clone()
	if p.key != "" {
		req.Header.Set("Idempotency-Key", p.key)
	}
	resp, err := c.http.Do(req)
	idle.Stop()
	if err != nil {
		return c.broken(ctx, silent(quiet, err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return c.refused(resp)
	}
	body := &watched{r: resp.Body, idle: idle, limit: c.idle}
	t := &turn{client: c}
	if err := t.readBody(body, resp.Header, emit); err != nil {
		if _, ok := errors.AsType[*agent.ModelError](err); ok {
			return err
		}
		return c.broken(ctx, silent(quiet, err))
	}
	return nil
}

// silent gives the idle limit as the cause of an error, when it was.
func silent(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errIdle) {
		return cause
	}
	return err
}

// readBody reads a stream, or an answer that is not one: some servers ignore the wish for a stream.
func (t *turn) readBody(body io.Reader, h http.Header, emit func(agent.ModelPart) bool) error {
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	switch {
	case strings.HasSuffix(kind, "html"):
		return &agent.ModelError{Status: http.StatusOK, Err: errors.New("a web page instead of an answer; check the base URL")}
	case kind != "application/json":
		return t.read(newFrames(body), emit)
	}
	whole, err := io.ReadAll(io.LimitReader(body, maxFrame+1))
	if err != nil {
		return err
	}
	if len(whole) > maxFrame {
		return fmt.Errorf("%w: over %d bytes", errFrame, maxFrame)
	}
	parts, err := t.take(frame{data: whole}, nil)
	if err != nil {
		return err
	}
	for _, part := range append(parts, t.finish()...) {
		if !emit(part) {
			return nil
		}
	}
	return nil
}

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

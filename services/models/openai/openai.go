// Package openai speaks Chat Completions, the protocol of OpenAI that most servers of models offer: OpenAI itself,
// xAI, Ollama, vLLM, llama.cpp and many more, told apart by their base URL and a few habits (Dialect).
//
// It is written over net/http alone. Beside what all adapters promise (package adapter), every call that a server sends
// becomes one call, in the order in which the calls began, whatever ids, indexes and fragments the server uses for it.
package openai

import (
	"context"
	"iter"
	"net/http"
	"time"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
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

// Client is a model behind Chat Completions. The model's name is in each request; it may be used by any number of
// turns at once.
type Client struct {
	client  *adapter.Client
	dialect Dialect
}

var _ agent.WebSearcher = (*Client)(nil)

// WebSearch is the server's own search of the web, by its name. It depends on the model whether the server accepts it.
func (c *Client) WebSearch() string { return c.dialect.WebSearch }

// New makes a client. It connects to nothing yet.
func New(cfg Config) (*Client, error) {
	client, err := adapter.New(adapter.Config{
		BaseURL: cfg.BaseURL, Provider: cfg.Provider, APIKey: cfg.APIKey, Headers: cfg.Headers, Idle: cfg.Idle, HTTP: cfg.HTTP,
	}, adapter.Protocol{Name: "openai", KeyHeader: "Authorization", KeyPrefix: "Bearer "})
	if err != nil {
		return nil, err
	}
	if cfg.Dialect.MaxTokens == "" {
		cfg.Dialect.MaxTokens = "max_tokens"
	}
	return &Client{client, cfg.Dialect}, nil
}

// String names the server and not the key, so that a client can be printed.
func (c *Client) String() string { return c.client.String() }

// GoString is String: %#v must not show the key either.
func (c *Client) GoString() string { return c.String() }

// Stream asks for one turn, once.
func (c *Client) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return c.client.Stream(ctx, func(r *adapter.Request) (adapter.Turn, error) { return &turn{}, c.prepare(r, req) })
}

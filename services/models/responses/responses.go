// Package responses speaks the Responses API of OpenAI, over net/http alone. Beside what all adapters promise (package
// adapter):
//
//   - Nothing is stored at the provider (store is false): the conversation is sent whole, as Weir has it.
//   - What a reasoning model thought goes back encrypted, where it was; of another provider's reasoning nothing does.
//   - What OpenAI's own tools did goes back as it was.
//   - A result is told with its pictures and documents. The protocol has no mark for errors.
//
// Options for it (providerOptions.openai) are members of the request, in either spelling ("reasoning": {"effort":
// "low", "summary": "auto"}, "text": {"verbosity": "low"}, serviceTier, truncation, …), and:
//
//	webSearch  members of the web search tool: {"filters":{"allowedDomains":["example.com"]}}
package responses

import (
	"context"
	"iter"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// Config says how to reach a server. Its base URL is the address up to and without "/responses".
type Config = adapter.Config

// Client is a model behind the Responses API. The model's name is in each request; it may be used by any number of turns at
// once.
type Client struct{ client *adapter.Client }

var _ agent.WebSearcher = (*Client)(nil)

// New makes a client. It connects to nothing yet.
func New(cfg Config) (*Client, error) {
	client, err := adapter.New(cfg, adapter.Protocol{Name: "openai", KeyHeader: "Authorization", KeyPrefix: "Bearer "})
	if err != nil {
		return nil, err
	}
	return &Client{client}, nil
}

// WebSearch is OpenAI's own search of the web.
func (c *Client) WebSearch() string { return "openai.web_search" }

// String names the server and not the key, so that a client can be printed.
func (c *Client) String() string { return c.client.String() }

// GoString is String: %#v must not show the key either.
func (c *Client) GoString() string { return c.String() }

// Stream asks for one turn, once.
func (c *Client) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return c.client.Stream(ctx, func(r *adapter.Request) (adapter.Turn, error) {
		w := &writer{r: r, provider: c.client.Provider()}
		return &turn{}, w.write(req)
	})
}

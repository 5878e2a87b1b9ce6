// Package anthropic speaks the Messages API of Anthropic, over net/http alone. Beside what all adapters promise
// (package adapter):
//
//   - The parts of a turn are sent back as they came and where they were: thinking with its signature, redacted
//     thinking, and what Anthropic's own tools did. Reasoning without a signature of Anthropic's (that of another
//     provider, for a thread may change it) is left out: it would be refused.
//   - A turn that Anthropic pauses is gone on with, in the same turn.
//   - A result is told with its error flag, its pictures and its documents.
//
// Options for it (providerOptions.anthropic) are members of the request, in either spelling ("outputConfig",
// "output_config"); and these:
//
//	cacheControl            {"type":"ephemeral"}: on a part of a message, on a tool, or on the request
//	thinking                {"type":"enabled","budgetTokens":4096}
//	webSearch               members of the web search tool: {"maxUses":3,"allowedDomains":["example.com"]}
//	disableParallelToolUse  true: at most one call a turn
//	anthropicBeta           ["…"]: names of features for the header of this name
package anthropic

import (
	"context"
	"iter"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// Config says how to reach a server. Its base URL is the address up to and without "/messages".
type Config = adapter.Config

// version is that of the API.
const version = "2023-06-01"

// Client is a model behind the Messages API. The model's name is in each request; it may be used by any number of turns
// at once.
type Client struct{ client *adapter.Client }

var _ agent.WebSearcher = (*Client)(nil)

// New makes a client. It connects to nothing yet.
func New(cfg Config) (*Client, error) {
	client, err := adapter.New(cfg, adapter.Protocol{
		Name: "anthropic", KeyHeader: "X-Api-Key", Headers: map[string]string{"Anthropic-Version": version},
	})
	if err != nil {
		return nil, err
	}
	return &Client{client}, nil
}

// WebSearch is Anthropic's own search of the web.
func (c *Client) WebSearch() string { return "anthropic." + webSearchType }

// String names the server and not the key, so that a client can be printed.
func (c *Client) String() string { return c.client.String() }

// GoString is String: %#v must not show the key either.
func (c *Client) GoString() string { return c.String() }

// Stream asks for one turn, once.
func (c *Client) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return c.client.Stream(ctx, func(r *adapter.Request) (adapter.Turn, error) {
		w := &writer{r: r, provider: c.client.Provider()}
		if err := w.write(req); err != nil {
			return nil, err
		}
		return &turn{sent: w, key: req.IdempotencyKey}, nil
	})
}

// Package google speaks the Gemini API (streamGenerateContent), over net/http alone. Beside what all adapters promise
// (package adapter):
//
//   - Signatures of thoughts go back where they came from, which Gemini 3 demands of calls. Calls that another provider's
//     model made get the mark that Google gives for them.
//   - What Google's own tools did goes back as it was.
//   - A call that Google says the model wrote malformed fails the turn, which may be tried again: nothing of it is known.
//   - Schemas of tools are projected to the keywords that Gemini takes.
//
// Options for it (providerOptions.google) are members of the request's generationConfig (thinkingConfig,
// …), and safetySettings, cachedContent, labels and serviceTier of the request, and:
//
//	googleSearch  members of the search tool: {"excludeDomains":["example.com"]}
//
// Models before Gemini 3 cannot search the web and call functions in one turn: when they are to do both, the search is
// left out, with a warning. Neither can they answer by a schema and call functions: then they are told the schema instead.
package google

import (
	"context"
	"iter"
	"net/url"
	"strings"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// Config says how to reach a server. Its base URL is the address up to and without "/models".
type Config = adapter.Config

// Client is a model behind the Gemini API. The model's name is in each request; it may be used by any number of turns at
// once.
type Client struct{ client *adapter.Client }

var _ agent.WebSearcher = (*Client)(nil)

// New makes a client. It connects to nothing yet.
func New(cfg Config) (*Client, error) {
	client, err := adapter.New(cfg, adapter.Protocol{Name: "google", KeyHeader: "X-Goog-Api-Key"})
	if err != nil {
		return nil, err
	}
	return &Client{client}, nil
}

// WebSearch is Google's own search of the web.
func (c *Client) WebSearch() string { return "google.google_search" }

// String names the server and not the key, so that a client can be printed.
func (c *Client) String() string { return c.client.String() }

// GoString is String: %#v must not show the key either.
func (c *Client) GoString() string { return c.String() }

// Stream asks for one turn, once.
func (c *Client) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return c.client.Stream(ctx, func(r *adapter.Request) (adapter.Turn, error) {
		w := &writer{r: r, provider: c.client.Provider(), old: isOld(req.Model)}
		return &turn{}, w.write(req)
	})
}

// path is where a model is asked. A name with a "/" says its collection.
func path(model string) []string {
	if !strings.Contains(model, "/") {
		model = "models/" + model
	}
	parts := strings.Split(model, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	parts[len(parts)-1] += ":streamGenerateContent"
	return parts
}

// isOld tells the models before Gemini 3, and those that are no Gemini.
func isOld(model string) bool {
	name := model[strings.LastIndex(model, "/")+1:]
	return !strings.HasPrefix(name, "gemini-") || strings.HasPrefix(name, "gemini-1") || strings.HasPrefix(name, "gemini-2")
}

// Package models finds the model that an agent names. A name is "<provider>/<model>": the provider is a row of
// [Providers] or an entry of the configuration, and the model is what that provider calls it.
//
//	r, err := models.New(models.Config{Models: map[string]models.ModelConfig{
//		"openai": {APIKey: key},
//		"local":  {Provider: "openai-compatible", BaseURL: "http://10.0.0.7:8000/v1"},
//	}})
//	m, name, err := r.Model("openai/gpt-5")
//	m, name, err = r.Model("local/qwen3")
//	m, name, err = r.Model("scripted/support") // needs no key
package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/anthropic"
	"github.com/weirkeeper/weir/services/models/google"
	"github.com/weirkeeper/weir/services/models/openai"
	"github.com/weirkeeper/weir/services/models/responses"
	"github.com/weirkeeper/weir/services/models/scripted"
)

// Provider is a row of the table of providers.
type Provider struct {
	// BaseURL is used when the configuration names none. Empty: it must.
	BaseURL string
	// NeedsKey: the provider answers nobody without a key.
	NeedsKey bool
	// open makes the model that a name stands for.
	open func(provider string, cfg ModelConfig, row Provider) (agent.Model, error)
	// dialect are the habits of a server that speaks Chat Completions.
	dialect openai.Dialect
}

// Providers are the providers that need no configuration but a key or an address. A new one that speaks a known
// protocol is a row here.
var Providers = map[string]Provider{
	"openai": {BaseURL: "https://api.openai.com/v1", NeedsKey: true, open: answers},
	"openai-chat": { // the protocol that others call compatible with OpenAI
		BaseURL: "https://api.openai.com/v1", NeedsKey: true, open: chat,
		dialect: openai.Dialect{Strict: true, MaxTokens: "max_completion_tokens", NoTopK: true, WebSearch: "openai.web_search"},
	},
	"anthropic": {BaseURL: "https://api.anthropic.com/v1", NeedsKey: true, open: messages},
	"google":    {BaseURL: "https://generativelanguage.googleapis.com/v1beta", NeedsKey: true, open: gemini},
	"xai": {
		BaseURL: "https://api.x.ai/v1", NeedsKey: true, open: chat,
		dialect: openai.Dialect{MaxTokens: "max_completion_tokens", NoTopK: true},
	},
	"ollama":            {BaseURL: "http://127.0.0.1:11434/v1", open: chat},
	"vllm":              {BaseURL: "http://127.0.0.1:8000/v1", open: chat},
	"llama.cpp":         {BaseURL: "http://127.0.0.1:8080/v1", open: chat},
	"openai-compatible": {open: chat},
	"scripted":          {open: playbook},
}

// ModelConfig says how one model, or all models of a provider, are reached. It holds secrets: it prints without them.
type ModelConfig struct {
	// Provider is a row of [Providers]. Empty: the part of the id before its first "/".
	Provider string
	// Model is the name sent to the provider. Empty: the part of the id after its first "/".
	Model string
	// BaseURL is the provider's address. Empty: the row's.
	BaseURL string
	// APIKey is the provider's key. Empty: none, which some rows refuse.
	APIKey string
	// Headers are sent with each request; their values are secrets.
	Headers map[string]string
	// Idle is how long the provider may be silent. Zero: 60 s.
	Idle time.Duration
	// Price is what a million tokens cost. Nil: it is not known, and nothing is counted.
	Price *events.Price
	// Playbook is what a scripted model follows, as JSON. Empty: the built-in one of the model's name.
	Playbook json.RawMessage
}

// String leaves out the secrets.
func (c ModelConfig) String() string { return fmt.Sprintf("model %s/%s", c.Provider, c.Model) }

// GoString is String.
func (c ModelConfig) GoString() string { return c.String() }

// LogValue is String.
func (c ModelConfig) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalJSON is String: a configuration is read from a file and never written.
func (c ModelConfig) MarshalJSON() ([]byte, error) { return json.Marshal(c.String()) }

// Config are the models that are configured.
type Config struct {
	// Models are by id ("openai/gpt-5") or by provider ("openai", for all of its models); the id counts first. A
	// provider of another name than those in [Providers] says which row it is like.
	Models map[string]ModelConfig
}

// validate checks what can be known before a model is asked for.
func (c Config) validate() error {
	for _, id := range slices.Sorted(maps.Keys(c.Models)) {
		cfg := c.Models[id]
		provider, name, one := strings.Cut(id, "/")
		if provider == "" || one && name == "" {
			return fmt.Errorf("model %q: the name must be a provider, or a provider and a model with a \"/\" between", id)
		}
		row := cmp.Or(cfg.Provider, provider)
		if _, ok := Providers[row]; !ok {
			return fmt.Errorf("model %q: there is no provider %q (there are %s)", id, row, known())
		}
	}
	return nil
}

// Registry gives the models of ids. It may be used by many goroutines; the model of an id is made once.
type Registry struct {
	cfg  Config
	mu   sync.Mutex
	open map[string]opened
}

// opened is the model of an id, and what its provider calls it.
type opened struct {
	model agent.Model
	name  string
}

// New checks the configuration. It connects to nothing.
func New(cfg Config) (*Registry, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Registry{cfg: cfg, open: map[string]opened{}}, nil
}

// Model is the model of an id "<provider>/<model>", and its name without the provider, which belongs into requests.
func (r *Registry) Model(id string) (model agent.Model, name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.open[id]
	if !ok {
		if m, err = r.make(id); err != nil {
			return nil, "", fmt.Errorf("model %q: %w", id, err)
		}
		r.open[id] = m
	}
	return m.model, m.name, nil
}

// Price is what a million tokens of a model cost: of its own entry, else of its provider's; nil when that is not known.
func (r *Registry) Price(id string) *events.Price {
	if cfg, ok := r.cfg.Models[id]; ok {
		return cfg.Price
	}
	provider, _, _ := strings.Cut(id, "/")
	return r.cfg.Models[provider].Price
}

func (r *Registry) make(id string) (opened, error) {
	provider, name, ok := strings.Cut(id, "/")
	if !ok || provider == "" || name == "" {
		return opened{}, errors.New("the name must be <provider>/<model>")
	}
	cfg, ok := r.cfg.Models[id]
	if !ok {
		cfg = r.cfg.Models[provider]
	}
	cfg.Provider = cmp.Or(cfg.Provider, provider)
	cfg.Model = cmp.Or(cfg.Model, name)
	row, ok := Providers[cfg.Provider]
	if !ok {
		return opened{}, fmt.Errorf("there is no provider %q (there are %s); configure it", provider, known())
	}
	m, err := row.open(provider, cfg, row)
	return opened{m, cfg.Model}, err
}

func known() string { return strings.Join(slices.Sorted(maps.Keys(Providers)), ", ") }

// address is where a provider is reached, or what is missing for it.
func address(cfg ModelConfig, row Provider) (string, error) {
	base := cmp.Or(cfg.BaseURL, row.BaseURL)
	switch {
	case base == "":
		return "", fmt.Errorf("provider %s needs a base URL", cfg.Provider)
	case row.NeedsKey && cfg.APIKey == "" && cfg.BaseURL == "" && len(cfg.Headers) == 0:
		return "", fmt.Errorf("provider %s needs an API key", cfg.Provider)
	}
	return base, nil
}

// answers opens a server that speaks the Responses API. Requests carry options for it under the provider's name.
func answers(provider string, cfg ModelConfig, row Provider) (agent.Model, error) {
	base, err := address(cfg, row)
	if err != nil {
		return nil, err
	}
	return responses.New(responses.Config{
		Provider: provider, BaseURL: base, APIKey: cfg.APIKey, Headers: cfg.Headers, Idle: cfg.Idle,
	})
}

// messages opens a server that speaks Anthropic's Messages API. Requests carry options for it under the provider's name.
func messages(provider string, cfg ModelConfig, row Provider) (agent.Model, error) {
	base, err := address(cfg, row)
	if err != nil {
		return nil, err
	}
	return anthropic.New(anthropic.Config{
		Provider: provider, BaseURL: base, APIKey: cfg.APIKey, Headers: cfg.Headers, Idle: cfg.Idle,
	})
}

// gemini opens a server that speaks the Gemini API. Requests carry options for it under the provider's name.
func gemini(provider string, cfg ModelConfig, row Provider) (agent.Model, error) {
	base, err := address(cfg, row)
	if err != nil {
		return nil, err
	}
	return google.New(google.Config{
		Provider: provider, BaseURL: base, APIKey: cfg.APIKey, Headers: cfg.Headers, Idle: cfg.Idle,
	})
}

// chat opens a server that speaks Chat Completions. Requests carry options for it under the provider's name.
func chat(provider string, cfg ModelConfig, row Provider) (agent.Model, error) {
	base, err := address(cfg, row)
	if err != nil {
		return nil, err
	}
	return openai.New(openai.Config{
		Provider: provider, BaseURL: base, APIKey: cfg.APIKey, Headers: cfg.Headers, Idle: cfg.Idle,
		Dialect: row.dialect,
	})
}

// playbook opens a scripted model.
func playbook(_ string, cfg ModelConfig, _ Provider) (agent.Model, error) {
	if len(cfg.Playbook) == 0 {
		return scripted.Builtin(cfg.Model)
	}
	p, err := scripted.Parse(cfg.Playbook)
	if err != nil {
		return nil, err
	}
	return scripted.New(p)
}

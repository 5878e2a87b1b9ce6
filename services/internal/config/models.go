package config

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/models"
)

// Model is how one model, or all models of a provider, are reached.
type Model struct {
	ID       string            // "<provider>/<model>", or a provider
	Provider string            // default: the part of the id before its first "/"
	Model    string            // what the provider calls it; default: the rest of the id
	BaseURL  string            // default: the provider's
	APIKey   string            // a reference
	Headers  map[string]string // with references
	Idle     time.Duration     // how long the provider may be silent; zero: 60 s
	Defaults json.RawMessage   // settings of agents that do not say otherwise
	Playbook json.RawMessage   // what a scripted model follows
	Price    *events.Price     // of a million tokens
}

// ModelConfig is what package models needs, secrets included. A variable that is not set is an error when an agent of
// the file uses its model; a model that none uses is left out.
func (f *File) ModelConfig() (models.Config, error) {
	cfg := models.Config{Models: make(map[string]models.ModelConfig, len(f.Models))}
	for _, m := range f.Models {
		key, errKey := f.Secrets.Expand(m.APIKey)
		headers, _, errHeaders := f.Secrets.Headers(m.Headers)
		if err := errors.Join(errKey, errHeaders); err != nil {
			if f.uses(m.ID) {
				return models.Config{}, err
			}
			continue
		}
		c := m.config()
		c.APIKey, c.Headers = key, headers
		cfg.Models[m.ID] = c
	}
	return cfg, nil
}

// uses tells whether an agent's model is reached by an entry for it or for its provider.
func (f *File) uses(id string) bool {
	return slices.ContainsFunc(f.Agents, func(a events.AgentDef) bool {
		return slices.ContainsFunc(a.Models(), func(model string) bool {
			provider, _, _ := strings.Cut(model, "/")
			return model == id || provider == id
		})
	})
}

// config is all but the secrets.
func (m Model) config() models.ModelConfig {
	return models.ModelConfig{
		Provider: m.Provider, Model: m.Model, BaseURL: m.BaseURL, Idle: m.Idle, Playbook: m.Playbook, Price: m.Price,
	}
}

var modelKeys = []string{"provider", "model", "baseURL", "apiKey", "headers", "idle", "defaults", "playbook", "price"}

// readModels reads the section models and returns what agents' models are looked up in.
func (o object) readModels(f *File) map[string]models.ModelConfig {
	known := map[string]models.ModelConfig{}
	for _, p := range o.r.entries(o.fields["models"], "models") {
		before := len(o.r.problems)
		m := o.r.object(p.value, join("models", p.name), modelKeys...)
		def := m.model(p.name)
		if len(o.r.problems) == before {
			m.openable(def)
		}
		f.Models = append(f.Models, def)
		known[p.name] = withoutSecrets(def)
	}
	return known
}

func (o object) model(id string) Model {
	m := Model{
		ID: id, Provider: o.text("provider"), Model: o.text("model"), BaseURL: o.text("baseURL"), Idle: o.duration("idle"),
		Headers: o.headers(), Defaults: o.jsonObject("defaults"), Playbook: o.jsonObject("playbook"),
	}
	if o.has("price") {
		p := o.r.object(o.fields["price"], o.sub("price"), "input", "output", "cachedInput")
		p.require("input")
		p.require("output")
		m.Price = &events.Price{Input: p.score("input"), Output: p.score("output"), CachedInput: p.score("cachedInput")}
	}
	if provider := m.Provider; o.has("provider") && provider != "" {
		if names := slices.Sorted(maps.Keys(models.Providers)); !slices.Contains(names, provider) {
			o.fail("provider", "there is no provider %q%s", provider, suggest(provider, names))
		}
	}
	if m.BaseURL != "" || o.has("baseURL") {
		if text := urlProblem(m.BaseURL); text != "" && !o.r.problems.about(o.sub("baseURL")) {
			o.fail("baseURL", "%s", text)
		}
	}
	if o.has("apiKey") {
		m.APIKey = o.r.secret(o.fields["apiKey"], o.sub("apiKey"))
		if len(refersTo(m.APIKey)) == 0 && !o.r.problems.about(o.sub("apiKey")) {
			o.fail("apiKey", "a key does not belong into a file; write ${NAME} and set that variable")
		}
	}
	return m
}

// openable checks a model by opening it. Nothing is connected to.
func (o object) openable(m Model) {
	provider, name, one := strings.Cut(m.ID, "/")
	if provider == "" || one && name == "" {
		o.r.fail(o.node, o.path, "the id must be a provider, or a provider and a model with a / between")
		return
	}
	c := withoutSecrets(m)
	if !one && c.Playbook == nil && (c.Provider == "scripted" || c.Provider == "" && provider == "scripted") {
		return // its built-in playbooks have names
	}
	id := m.ID
	if !one {
		id += "/any"
	}
	err := open(id, map[string]models.ModelConfig{m.ID: c})
	key := "provider"
	if m.Playbook != nil {
		key = "playbook"
	}
	if err != nil {
		o.fail(key, "%v", err)
	}
}

// withoutSecrets is enough to open a model, and to send nothing.
func withoutSecrets(m Model) models.ModelConfig {
	c := m.config()
	c.APIKey = "unset"
	return c
}

// open tells why a model cannot be opened. The text names it.
func open(id string, known map[string]models.ModelConfig) error {
	registry, err := models.New(models.Config{Models: known})
	if err == nil {
		_, _, err = registry.Model(id)
	}
	return err
}

// settings are the defaults of an agent's model under the agent's own.
func settings(f *File, model string, own json.RawMessage) (json.RawMessage, error) {
	provider, _, _ := strings.Cut(model, "/")
	var defaults json.RawMessage
	for _, id := range []string{provider, model} { // the id counts more
		for _, m := range f.Models {
			if m.ID == id {
				defaults = m.Defaults
			}
		}
	}
	if defaults == nil {
		return own, nil
	}
	merged := map[string]json.RawMessage{}
	for _, raw := range []json.RawMessage{defaults, own} {
		if raw == nil {
			continue
		}
		if err := json.Unmarshal(raw, &merged); err != nil {
			return nil, err
		}
	}
	raw, err := events.Marshal(merged)
	if err != nil {
		return nil, err
	}
	return events.Canonical(raw)
}

// headers reads headers, with references in their values.
func (o object) headers() map[string]string {
	const key = "headers"
	if !o.has(key) {
		return nil
	}
	list := o.r.pairs(o.fields[key], o.sub(key))
	all := make(map[string]string, len(list))
	for _, p := range list {
		path := join(o.sub(key), p.name)
		if !headerForm.MatchString(p.name) {
			o.r.fail(p.key, path, "not a name of a header")
			continue
		}
		all[p.name] = o.r.secret(p.value, path)
		o.r.oneLine(p.value, path, all[p.name])
	}
	return all
}

// oneLine refuses control characters in a text that becomes a part of a request or of an environment.
func (r *reader) oneLine(n *yaml.Node, path, text string) {
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
		r.fail(n, path, "has a control character")
	}
}

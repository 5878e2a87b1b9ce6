package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/config"
)

// What the environment says reaches a model without a weir.yaml.
func TestBuiltinModel(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		env      map[string]string
		model    string
		provider string // of openai/…; empty: none
		fails    bool
	}{
		"nothing": {model: scriptedModel},
		"key":     {env: map[string]string{envKey: "k"}, model: keyedModel, provider: "openai"},
		"key and model": {
			env: map[string]string{envKey: "k", envModel: "openai/gpt-5"}, model: "openai/gpt-5", provider: "openai",
		},
		"a model by its bare name": {env: map[string]string{envKey: "k", envModel: "gpt-5"}, model: "openai/gpt-5", provider: "openai"},
		"another server": {
			env:   map[string]string{envBaseURL: "http://127.0.0.1:11434/v1", envModel: "qwen3"},
			model: "openai/qwen3", provider: "openai-compatible",
		},
		"another server, and none of its models": {
			env:      map[string]string{envBaseURL: "http://127.0.0.1/v1"},
			provider: "openai-compatible", fails: true,
		},
		"OpenAI by its address":     {env: map[string]string{envKey: "k", envBaseURL: "https://api.openai.com/v1"}, model: keyedModel, provider: "openai"},
		"a model that needs no key": {env: map[string]string{envModel: "scripted/bench"}, model: "scripted/bench"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lookup := func(name string) (string, bool) { v, ok := test.env[name]; return v, ok }
			model, err := builtinModel(lookup)
			if model != test.model || (err != nil) != test.fails {
				t.Errorf("model %q, %v, want %q", model, err, test.model)
			}
			m, ok := openAI(lookup)
			if ok != (test.provider != "") || ok && m.Provider != test.provider {
				t.Errorf("provider %v (%v), want %q", m, ok, test.provider)
			}
			if _, err := modelsOf(nil, lookup); err != nil {
				t.Error(err)
			}
		})
	}
}

// A model that a file names counts more than the environment's.
func TestFileBeforeEnvironment(t *testing.T) {
	t.Parallel()
	file := parseFile(t, "models: {openai: {provider: ollama}}")
	cfg, err := modelConfig(file, func(string) (string, bool) { return "http://127.0.0.1:1/v1", true })
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Models["openai"]; got.Provider != "ollama" || got.BaseURL != "" {
		t.Errorf("the file's model became %v at %q", got, got.BaseURL)
	}
	for provider := range envKeys {
		if got := cfg.Models[provider]; got.APIKey == "" {
			t.Errorf("the key of %s in the environment is not used: %v", provider, got)
		}
		file := parseFile(t, "models: {"+provider+": {baseURL: 'http://127.0.0.1:2/v1'}}")
		cfg, err := modelConfig(file, func(string) (string, bool) { return "k", true })
		if got := cfg.Models[provider]; err != nil || got.APIKey != "" || got.BaseURL == "" {
			t.Errorf("the file's %s became %v at %q, %v", provider, got, got.BaseURL, err)
		}
	}
}

// A file's tools are hosted by pool.
func TestToolsByPool(t *testing.T) {
	t.Parallel()
	file := parseFile(t, `
pools: [default, billing]
tools:
  a: {description: A, exec: {command: ["true"]}}
  b: {description: B, pool: billing, exec: {command: ["true"]}}
  c: {description: C, pool: billing, http: {url: "https://example.com/c"}}
`)
	tools, err := toolsIn(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"billing", "default"}, poolsOf(tools)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"b", "c"}, toolNames(toolsOf(tools, "billing"))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"issue_refund", "lookup_order"}, toolNames(exampleTools(&shop{}))); diff != "" {
		t.Error(diff)
	}
	for _, tool := range exampleTools(&shop{}) {
		if err := agent.Check(tool); err != nil {
			t.Error(err)
		}
	}
}

func parseFile(t *testing.T, text string) *config.File {
	t.Helper()
	file, err := config.Parse("weir.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return file
}

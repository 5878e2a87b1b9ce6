package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/models"
	"github.com/weirkeeper/weir/services/toolexecutor"
	"github.com/weirkeeper/weir/services/tools"
)

// defaultFile is read when it is there and no other file is named.
const defaultFile = "weir.yaml"

// Variables of the environment that reach models without a weir.yaml.
const (
	envModel   = "WEIR_MODEL" // of the built-in agent
	envKey     = "OPENAI_API_KEY"
	envBaseURL = "OPENAI_BASE_URL"
)

// envKeys are the variables that hold the keys of other providers.
var envKeys = map[string]string{"anthropic": "ANTHROPIC_API_KEY", "google": "GEMINI_API_KEY"}

// Models of the built-in agent: with a key, and without one.
const (
	keyedModel    = "openai/gpt-5-mini"
	scriptedModel = "scripted/support"
)

// loadFile reads a weir.yaml. The default file may be missing, then there is none and no error; a named one may not.
func loadFile(path string, lookup config.Lookup) (*config.File, error) {
	file, err := config.Load(cmp.Or(path, defaultFile), lookup)
	if path == "" && errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no file is not an error
	}
	return file, err
}

// modelsOf opens the models of a file, which may be nil, and those that the environment alone reaches.
func modelsOf(file *config.File, lookup config.Lookup) (*models.Registry, error) {
	cfg, err := modelConfig(file, lookup)
	if err != nil {
		return nil, err
	}
	return models.New(cfg)
}

func modelConfig(file *config.File, lookup config.Lookup) (models.Config, error) {
	cfg := models.Config{Models: map[string]models.ModelConfig{}}
	if file != nil {
		var err error
		if cfg, err = file.ModelConfig(); err != nil {
			return cfg, err
		}
	}
	if _, named := cfg.Models["openai"]; !named {
		if m, ok := openAI(lookup); ok {
			cfg.Models["openai"] = m
		}
	}
	for provider, variable := range envKeys {
		if key, _ := lookup(variable); key != "" {
			if _, named := cfg.Models[provider]; !named {
				cfg.Models[provider] = models.ModelConfig{APIKey: key}
			}
		}
	}
	return cfg, nil
}

// openAI is the provider that the environment names: OpenAI itself, or a server that speaks like it.
func openAI(lookup config.Lookup) (models.ModelConfig, bool) {
	key, _ := lookup(envKey)
	base, _ := lookup(envBaseURL)
	m := models.ModelConfig{Provider: "openai", APIKey: key, BaseURL: base}
	if base != "" && !strings.Contains(base, "://api.openai.com") {
		m.Provider = "openai-compatible"
	}
	return m, key != "" || base != ""
}

// builtinModel is the model of the built-in agent: the one that the environment names, or the scripted one, which needs
// no key.
func builtinModel(lookup config.Lookup) (string, error) {
	name, _ := lookup(envModel)
	m, reachable := openAI(lookup)
	switch {
	case strings.Contains(name, "/"):
		return name, nil
	case name != "":
		return "openai/" + name, nil
	case !reachable:
		return scriptedModel, nil
	case m.Provider != "openai":
		return "", fmt.Errorf("%s is set, so name one of that server's models too, for example %s=qwen3", envBaseURL, envModel)
	}
	return keyedModel, nil
}

// toolsIn makes the tools of a file that this process can host: programs, requests to servers and NATS services, and the built-in tools that its agents
// name.
func toolsIn(file *config.File) ([]agent.Tool, error) {
	if file == nil {
		return nil, nil
	}
	var hosted []agent.Tool
	for _, def := range file.Tools {
		if def.Manifest.Client() { // apply registers it, and clients execute it
			continue
		}
		tool, err := toolOf(file, def)
		if err != nil {
			return nil, err
		}
		hosted = append(hosted, tool)
	}
	builtins := tools.Builtins()
	for _, id := range file.Builtins {
		hosted = append(hosted, builtins[id])
	}
	return hosted, nil
}

// serversIn makes the MCP servers of a file. Nothing is connected to yet.
func serversIn(file *config.File) (servers []*toolexecutor.MCPServer, err error) {
	if file == nil {
		return nil, nil
	}
	for _, s := range file.MCPServers {
		def := toolexecutor.MCPDef{
			ID: s.ID, Effects: s.Effects, RequireApproval: s.RequireToolApproval, Pool: s.Pool,
			Timeout: s.Timeout, StartTimeout: s.StartTimeout, Expires: s.Expires,
		}
		if s.Exec != nil {
			def.Command, def.Dir = s.Exec.Command, s.Exec.Dir
			def.Env, def.Secrets, err = file.Secrets.Environ(*s.Exec)
		} else {
			def.URL, def.Allow = s.HTTP.URL, s.HTTP.Allow
			def.Headers, def.Secrets, err = file.Secrets.Headers(s.HTTP.Headers)
		}
		if err != nil {
			return nil, err
		}
		server, err := toolexecutor.NewMCP(def)
		if err != nil {
			return nil, err
		}
		servers = append(servers, server)
	}
	return servers, nil
}

func toolOf(file *config.File, def config.ToolDef) (agent.Tool, error) {
	if e := def.Exec; e != nil {
		env, secrets, err := file.Secrets.Environ(*e)
		if err != nil {
			return nil, err
		}
		return toolexecutor.NewExec(toolexecutor.ExecDef{
			Manifest: def.Manifest, Command: e.Command, Dir: e.Dir,
			Env: env, Secrets: secrets,
		})
	}
	if n := def.NATS; n != nil {
		headers, secrets, err := file.Secrets.Headers(n.Headers)
		if err != nil {
			return nil, err
		}
		return toolexecutor.NewNATS(toolexecutor.NATSDef{
			Manifest: def.Manifest, Subject: n.Subject, Headers: headers, Secrets: secrets, Timeout: n.Timeout,
		})
	}
	h := def.HTTP
	headers, secrets, err := file.Secrets.Headers(h.Headers)
	if err != nil {
		return nil, err
	}
	return toolexecutor.NewHTTP(toolexecutor.HTTPDef{
		Manifest: def.Manifest, Method: h.Method, URL: h.URL,
		Headers: headers, Secrets: secrets, Allow: h.Allow, Timeout: h.Timeout,
	})
}

// settingsIn are the settings of the streams that a file, which may be nil, asks for.
func settingsIn(file *config.File) jetstream.Settings {
	if file == nil {
		return jetstream.Settings{}
	}
	return jetstream.Settings{
		Retention: file.Retention, AuditRetention: file.AuditRetention,
		ChunkRetention: file.ChunkRetention, Pools: file.Pools,
	}
}

// namespaceOf is the namespace that a file, which may be nil, names; empty when it leaves that open.
func namespaceOf(file *config.File) events.Namespace {
	if file == nil {
		return ""
	}
	return file.Namespace
}

// retentionIn is how long the log keeps runs, zero for the default.
func retentionIn(file *config.File) time.Duration {
	if file == nil {
		return 0
	}
	return file.Retention
}

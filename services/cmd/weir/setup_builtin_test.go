package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weirkeeper/weir/services/agent"
)

// TestB15_21HostedBuiltins: what is started from a weir.yaml hosts the built-in tools that its agents name, in the default
// pool, and no others.
func TestB15_21HostedBuiltins(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(path, []byte(`
pools: [default, billing]
agents:
  helper: {model: scripted/support, tools: {ask: ask_user, fetch: web_fetch, pay: pay}}
tools:
  pay: {description: Pay, pool: billing, exec: {command: [sh]}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(string) (string, bool) { return "", false }
	file, err := loadFile(path, none)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := devOptions{file: path, lookup: none}.setup()
	if err != nil {
		t.Fatal(err)
	}
	for pool, want := range map[string][]string{
		"": {"ask_user", "pay", "web_fetch"}, "default": {"ask_user", "web_fetch"}, "billing": {"pay"},
	} {
		var cfg workerConfig
		err := serveOptions{pool: pool}.addTools(&cfg, file)
		tools := cfg.Tools
		if err != nil || !slices.Equal(toolNames(tools), want) {
			t.Errorf("pool %q hosts %v (%v), want %v", pool, toolNames(tools), err, want)
		}
		for _, tool := range tools {
			if err := agent.Check(tool); err != nil {
				t.Error(err)
			}
		}
	}
	if got := toolNames(dev.tools); !slices.Equal(got, []string{"ask_user", "pay", "web_fetch"}) {
		t.Errorf("weir dev hosts %v", got)
	}
}

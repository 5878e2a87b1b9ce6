package tools_test

import (
	"testing"
	"testing/synctest"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/models"
	"github.com/weirkeeper/weir/services/tools"
)

// searcher is a model whose provider searches the web, or says that it cannot.
type searcher struct {
	*agenttest.Model

	name string
}

func (s searcher) WebSearch() string { return s.name }

// TestB15_16WebSearch: the provider of the model is told to search; the model is offered no tool for it, and nobody is asked.
func TestB15_16WebSearch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		model := agenttest.NewModel(t, agenttest.Say("found"))
		w := sim.New(t, sim.Options{
			Tools: []agent.Tool{tools.WebSearch, tools.AskUser}, Model: searcher{model, "openai.web_search"},
			Agent: events.AgentDef{
				ID: "support", Model: "scripted/sim", Tools: map[string]string{"look": "web_search", "ask": "ask_user"},
				RequireToolApproval: agent.Always(),
			},
		})
		w.StartAll()
		inThread(w, "r1", "What is new?")
		if end := w.AwaitEnd("r1", soon); end.Outcome != events.RunCompleted {
			t.Errorf("the run ended as %+v", end)
		}
		req := model.Requests()[0]
		if !req.WebSearch || len(req.Tools) != 1 || req.Tools[0].Name != "ask" {
			t.Errorf("the model was asked with search %v and the tools %+v", req.WebSearch, req.Tools)
		}
		w.Check(true)
	})
}

// TestB15_16ProviderWithoutSearch: a run whose model's provider cannot search fails before the model is asked anything.
func TestB15_16ProviderWithoutSearch(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(*agenttest.Model) agent.Model{
		"another adapter": func(m *agenttest.Model) agent.Model { return m },
		"another server":  func(m *agenttest.Model) agent.Model { return searcher{m, ""} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				model := agenttest.NewModel(t)
				w := sim.New(t, sim.Options{
					Tools: []agent.Tool{tools.WebSearch}, Model: of(model),
					Agent: events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{"look": "web_search"}},
				})
				w.StartAll()
				inThread(w, "r1", "What is new?")
				end := w.AwaitEnd("r1", soon)
				if end.Outcome != events.RunFailed || end.Error == nil || end.Error.Code != events.CodeWebSearch {
					t.Errorf("the run ended as %+v", end)
				}
				if n := len(model.Requests()); n != 0 {
					t.Errorf("the model was asked %d times", n)
				}
				w.Check(true)
			})
		})
	}
}

// TestB15_16Providers: who can search the web.
func TestB15_16Providers(t *testing.T) {
	t.Parallel()
	r, err := models.New(models.Config{Models: map[string]models.ModelConfig{
		"openai": {APIKey: "k"}, "anthropic": {APIKey: "k"}, "google": {APIKey: "k"}, "xai": {APIKey: "k"}, "mine": {Provider: "openai-compatible", BaseURL: "http://127.0.0.1:1/v1"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{
		"openai/gpt-5-search-api": "openai.web_search", "anthropic/claude-sonnet-4-5": "anthropic.web_search_20250305",
		"google/gemini-3-pro": "google.google_search", "xai/grok-4": "", "mine/x": "", "ollama/x": "", "scripted/support": "",
	} {
		m, _, err := r.Model(id)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if s, ok := m.(agent.WebSearcher); ok {
			got = s.WebSearch()
		}
		if got != want {
			t.Errorf("%s searches by %q, want %q", id, got, want)
		}
	}
}

// A call of it, which no model is offered, is an error and searches nothing.
func TestWebSearchIsNotCalled(t *testing.T) {
	t.Parallel()
	r := agenttest.Run(t, tools.WebSearch, `{"query":"x"}`, nil)
	if r.Error == nil || r.Error.Name != "ProviderExecuted" {
		t.Errorf("%s", outcome(r))
	}
}

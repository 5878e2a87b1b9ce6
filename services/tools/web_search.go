package tools

import (
	"context"

	"github.com/weirkeeper/weir/services/agent"
)

// WebSearch lets the provider of the agent's model search the web, under whatever key: the provider executes it within the
// turn, so no call is made, asked for or released. A run whose model's provider cannot search fails with the code
// web_search_unsupported_provider before the model is asked. Those that can are OpenAI, Anthropic, and Google, whose models
// before Gemini 3 search only when they have no other tools.
// Options for the provider may say more: {"openai":{"webSearch":{"search_context_size":"low"}}}, {"anthropic":{"webSearch":{"maxUses":3}}},
// {"google":{"googleSearch":{…}}}.
var WebSearch = define(agent.ToolWebSearch, "Search the web. The model's provider does it.", webSearch, agent.ToolOptions{
	Title: "Search the web", Effect: agent.ReadOnly, InputSchema: schema(`{"type":"object"}`),
	OutputSchema: schema(`{}`),
})

// webSearch answers a call that nobody should have made: the tool is offered to no model as one to be called.
func webSearch(context.Context, *agent.Call, map[string]any) (any, error) {
	return nil, agent.Errorf("ProviderExecuted", "the model's provider searches the web itself; there is nothing to call")
}

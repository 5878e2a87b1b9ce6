package tools

import (
	"context"
	"encoding/json"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// SourceBuiltin is the kind of tools whose code comes with Weir; rules name them by it: "builtin:*".
const SourceBuiltin = "builtin"

// Builtins are all built-in tools, by their ids. The map is the caller's.
func Builtins() agent.Tools {
	all := Tasks()
	all["ask_user"], all["submit_plan"], all["web_fetch"], all["web_search"] = AskUser, SubmitPlan, WebFetch, WebSearch
	return all
}

// builtin is a tool whose code comes with Weir.
type builtin struct{ agent.Tool }

var _ agent.Tool = builtin{}

// Manifest is that of the tool, of its own kind.
func (b builtin) Manifest() events.Manifest {
	m := b.Tool.Manifest()
	m.Source = events.Source{Kind: SourceBuiltin}
	return m
}

// define makes a built-in tool. A change of what a manifest says needs another version: executors of two releases may
// work side by side, and a release names id and version.
func define[In, Out any](id, description string, fn func(context.Context, *agent.Call, In) (Out, error),
	o agent.ToolOptions,
) agent.Tool {
	tool, err := agent.Checked(builtin{agent.NewTool(id, description, fn, &o)})
	if err != nil {
		panic(err) // a definition of ours that is wrong, found by any test
	}
	return tool
}

// answer is what a tool tells the model. What went wrong is told in words too: it is no error of the call.
type answer struct {
	Content string `json:"content"`
	IsError bool   `json:"isError"`
}

// outsideAgent reports whether a call was made by no agent, so that nobody goes on when people have answered: the tool was
// executed by itself.
func outsideAgent(call *agent.Call) bool {
	return call.AgentID() == "" || call.AgentID() == events.TokenTool
}

func schema(text string) json.RawMessage { return json.RawMessage(text) }

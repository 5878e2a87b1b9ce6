package planner

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/toolsearch"
)

// prompt is a turn's request to the model, and the way back from the names that the model sees to the agent's keys.
type prompt struct {
	request agent.ModelRequest
	keys    map[string]string // by the name that the model sees
	def     *definition
}

// promptOf builds the request of a run's next turn from its pinned definitions, its frozen options and what has been said.
func promptOf(ctx context.Context, st *events.State, def *definition, model string, messages []events.Message) (prompt, *events.Error) {
	if err := checkPairing(messages); err != nil {
		return prompt{}, events.Errorf(events.CodeTranscriptBroken, "%v", err)
	}
	p := prompt{keys: map[string]string{}, def: def, request: agent.ModelRequest{
		Model: model, ToolChoice: cmp.Or(st.Options.ToolChoice, def.agent.ToolChoice, "auto"),
		IdempotencyKey: fmt.Sprintf("%s-%d", st.RunID, st.Step+1),
	}}
	var err error
	if p.request.Instructions, err = st.Told(def.agent); err != nil {
		return prompt{}, events.Errorf(events.CodeInvalidDefinition, "the instructions of agent %s: %v", st.AgentID, err)
	}
	if p.request.Settings, err = st.Options.Settings(def.agent); err == nil {
		p.request.ProviderOptions, err = st.Options.Providers(def.agent)
	}
	if err != nil {
		return prompt{}, events.Errorf(events.CodeInternal, "%v", err)
	}
	if want := st.Options.Structured(def.agent); want != nil && want.Model == "" {
		p.request.OutputSchema = want.Schema
	}
	names, broken := p.addTools(ctx, st, def)
	p.request.Messages = fit(messages, names)
	if key, ok := strings.CutPrefix(p.request.ToolChoice, "tool:"); ok {
		p.request.ToolChoice = "tool:" + cmp.Or(names[key], key)
	}
	return p, broken
}

// addTools gives the model the tools that it may call, in the order of their keys, and returns the names under which it
// sees them. Those that it can find it may call when it has loaded them.
func (p *prompt) addTools(ctx context.Context, st *events.State, def *definition) (map[string]string, *events.Error) {
	if p.request.ToolChoice == "none" {
		return nil, nil
	}
	search, active, loaded := toolsearch.New(st, def.agent, def.tools), toolsearch.Active(st, def.agent), st.LoadedBefore(st.Step+1)
	var keys []string
	for key := range def.tools {
		if search.Offers(ctx, key, active, loaded) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if slices.Contains(keys, events.ToolSearchTools) {
		p.request.Instructions = joined(p.request.Instructions, search.Instructions(ctx))
	}
	names, err := agent.SafeNames(keys)
	if err != nil {
		return nil, events.Errorf(events.CodeToolNameCollision, "%v", err)
	}
	for _, key := range keys {
		m := def.tools[key]
		if m.ID == agent.ToolWebSearch && m.Source.Kind == sourceBuiltin {
			p.request.WebSearch = true
			continue
		}
		p.keys[names[key]] = key
		input := m.InputSchema
		if def.background[key] != nil && !m.Strict { // strict schemas know no argument that may be left out
			input = events.WithBackgroundArg(input)
		}
		p.request.Tools = append(p.request.Tools, agent.ModelTool{
			Name: names[key], Description: m.Description,
			InputSchema: input, Strict: m.Strict, ProviderOptions: m.ProviderOptions, InputExamples: m.InputExamples,
		})
	}
	return names, nil
}

// joined are two texts as paragraphs; one that is empty is none.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n\n" + b
}

// sourceBuiltin is the kind of tools that come with Weir.
const sourceBuiltin = "builtin"

// searches says that a model is to search the web whose provider cannot. It is told before the model is asked anything.
func (p *prompt) searches(model agent.Model, id string) *events.Error {
	if !p.request.WebSearch {
		return nil
	}
	if m, ok := model.(agent.WebSearcher); ok && m.WebSearch() != "" {
		return nil
	}
	return events.Errorf(events.CodeWebSearch, "the provider of the model %s cannot search the web itself: give the agent another model, or "+
		"no tool %s", id, agent.ToolWebSearch)
}

// key is the agent's key for the name that a model used. A name that was never offered stays as it is: the gate answers
// it with the list of those that are.
func (p *prompt) key(name string) string { return cmp.Or(p.keys[name], name) }

// fit gives past calls the names under which the model knows their tools now, and arguments that any provider takes:
// what was no JSON object is empty. Empty texts, which some providers refuse, are left out.
func fit(messages []events.Message, names map[string]string) []events.Message {
	out := make([]events.Message, 0, len(messages))
	for _, m := range messages {
		parts := make([]events.Part, 0, len(m.Parts))
		for _, part := range m.Parts {
			if part.Type == events.PartText && part.Text == "" {
				continue
			}
			if part.ToolName != "" {
				part.ToolName = cmp.Or(names[part.ToolName], agent.SafeName(part.ToolName), "_")
			}
			if part.Type == events.PartToolCall {
				part.Args = object(part.Args)
			}
			part.Output = bounded(part.Output)
			parts = append(parts, part)
		}
		if len(parts) > 0 {
			out = append(out, events.Message{ID: m.ID, Role: m.Role, Parts: parts})
		}
	}
	return out
}

// bounded is what a model is told of a result, within what one result may take of its context. The whole stays in the record.
func bounded(o *events.ModelOutput) *events.ModelOutput {
	if o == nil || len(o.Value) <= events.MaxModelOutput {
		return o
	}
	const shown = events.MaxModelOutput / 2
	text := fmt.Sprintf("%s… [cut: the result has %d bytes]", strings.ToValidUTF8(string(o.Value[:shown]), ""), len(o.Value))
	raw, _ := events.Marshal(text) // a text always encodes
	return &events.ModelOutput{Type: events.OutputText, Value: raw}
}

// object is a call's arguments as an object; what the model wrote may be none.
func object(args string) string {
	raw, err := events.ParseArgs(args, false)
	if err != nil || len(raw) == 0 || raw[0] != '{' {
		return "{}"
	}
	return string(raw)
}

// checkPairing checks that every call is answered exactly once, in order, in one message right after it.
func checkPairing(messages []events.Message) error {
	var open []string
	for i, m := range messages {
		if m.Role == events.RoleTool {
			if err := answers(open, m); err != nil {
				return fmt.Errorf("messages[%d]: %w", i, err)
			}
			open = nil
			continue
		}
		if len(open) > 0 {
			return fmt.Errorf("messages[%d]: call %s has no result", i, open[0])
		}
		for _, p := range m.Parts {
			if p.Type == events.PartToolCall {
				open = append(open, p.ToolCallID)
			}
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("call %s has no result", open[0])
	}
	return nil
}

func answers(open []string, m events.Message) error {
	var got []string
	for _, p := range m.Parts {
		if p.Type == events.PartToolResult {
			got = append(got, p.ToolCallID)
		}
	}
	if !slices.Equal(open, got) {
		return fmt.Errorf("results for [%s] follow calls [%s]", strings.Join(got, " "), strings.Join(open, " "))
	}
	return nil
}

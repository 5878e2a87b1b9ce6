package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

func newToolCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{
		Use: "tool", Aliases: []string{"tools"}, Short: "List, look at and call tools",
		Long: `List the registered tools, look at one, and call it directly, without an agent. A direct call is judged and held as any
other, and is a run that can be watched, decided and cancelled.`,
		Example: `  weir tool ls
  weir tool info issue_refund
  weir tool schema issue_refund
  weir tool execute lookup_order '{"orderId":"1042"}'`,
	}, newToolListCommand(a), newToolInfoCommand(a), newToolSchemaCommand(a), newToolExecuteCommand(a))
}

func newToolListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the registered tools", Args: cobra.NoArgs,
		Long: `List the registered tools, each once, whichever agents have it.

Columns: id, version, effect, approval (what the tool itself asks for; rules may hold more), pool, executors that host it now,
and the agents that have it, with their keys.

JSON: {"tools": [a tool as "weir tool info" prints it]}.`,
		Example: `  weir tool ls
  weir tool ls -o json | jq -r '.tools[] | select(.hosts == []) | .id'     tools that nobody hosts`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, stop, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			defer stop()
			tools, err := c.Tools(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(map[string][]client.ToolInfo{"tools": tools}, func(io.Writer) {
				rows := make([][]string, len(tools))
				for i, t := range tools {
					rows[i] = []string{
						t.ID, t.Version, string(effectOf(t)), approvalOf(t.RequireApproval), t.Pool, fmt.Sprint(len(t.Hosts)),
						strings.Join(holdersOf(t), ", "),
					}
				}
				a.table([]string{"TOOL", "VERSION", "EFFECT", "APPROVAL", "POOL", "HOSTS", "AGENTS"}, rows)
			})
		},
	}
}

func newToolInfoCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "info TOOL", Short: "Look at a tool", Args: cobra.ExactArgs(1),
		Long: `Look at a tool: what it is for, what running it twice would do, what it takes and gives, when it asks for approval by
itself, what people and models are shown in place of its values (preview, toModelOutput, transform), which agents have it, and
which executors host this version of it now.

TOOL is its id, or the key under which agents have it. An id wins; a key under which agents have different tools is refused
with exit code 4, and the ids are told.

JSON: the manifest of the tool: {"id", "version", "title", "description", "inputSchema", "outputSchema", "suspendSchema",
"resumeSchema", "requestContextSchema", "effect", "pool", "timeout", "startTimeout", "expires", "onExpiry", "maxAttempts",
"requireApproval", "preview", "toModelOutput", "transform", "source", …}, and "keys": [{"agentId", "key"}], "hosts": [{"id", "pool", "since"}].`,
		Example: `  weir tool info issue_refund
  weir tool info issue_refund -o json | jq .hosts`,
		RunE: look(a, (*client.Client).Tool, a.printTool),
	}
}

func (a *app) printTool(w io.Writer, t client.ToolInfo) {
	list := [][2]string{
		{"tool", t.ID},
		{"title", t.Title},
		{"version", t.Version},
		{"description", t.Description},
		{"effect", string(effectOf(t))},
		{"approval", approvalOf(t.RequireApproval)},
		{"asks expire", lasting(t.Expires, t.OnExpiry)},
		{"code", codeOf(t.Source)},
		{"pool", t.Pool},
		{"starts within", lasting(t.StartTimeout, "")},
		{"runs for", lasting(t.Timeout, "")},
		{"attempts", count(t.MaxAttempts)},
	}
	list = append(list, formsOf(t.Manifest)...)
	for _, h := range holdersOf(t) {
		list = append(list, [2]string{"agent", h})
	}
	for _, h := range t.Hosts {
		list = append(list, [2]string{"host", fmt.Sprintf("%s, since %s", h.ID, a.when(h.Since))})
	}
	switch {
	case t.Client():
		list = append(list, [2]string{"host", "none: whoever asks for a run executes it"})
	case len(t.Hosts) == 0:
		list = append(list, [2]string{"host", "none now: calls wait for one, then end as unavailable"})
	}
	facts(w, list)
	p := parts{w: w}
	for _, s := range schemasOf(t.Manifest) {
		p.json(s.of+" schema", s.raw)
	}
}

// effectOf is the effect of a tool; one that does not say is effectful.
func effectOf(t client.ToolInfo) events.Effect { return cmp.Or(t.Effect, events.Effectful) }

// approvalOf says when a tool, or an agent, asks for approval by itself.
func approvalOf(r *events.Approval) string {
	below := ""
	if r != nil && r.Inherit {
		below = ", for sub-agents too"
	}
	switch {
	case r == nil:
		return "as rules say"
	case r.When != "":
		return "when " + r.When + below
	case r.Always:
		return "always" + below
	}
	return "never"
}

// lasting is a span of time, and what happens then.
func lasting(d events.Duration, then string) string {
	if d == 0 {
		return then
	}
	text, _ := d.MarshalText() // it never fails
	return strings.TrimSuffix(string(text)+", then "+then, ", then ")
}

func codeOf(s events.Source) string {
	switch {
	case s.Server != "":
		return s.Kind + ", " + s.Server + "/" + s.Name
	case s.Name != "":
		return s.Kind + ", " + s.Name
	}
	return s.Kind
}

// holdersOf are the agents that have a tool, with the key where it is not the id.
func holdersOf(t client.ToolInfo) []string {
	list := make([]string, len(t.Keys))
	for i, k := range t.Keys {
		list[i] = k.AgentID
		if k.Key != t.ID {
			list[i] += " as " + k.Key
		}
	}
	return list
}

// schemaOf is one of the schemas that a tool has.
type schemaOf struct {
	of  string
	raw json.RawMessage
}

// schemasOf are the schemas that a tool has, that of its input first.
func schemasOf(m events.Manifest) (list []schemaOf) {
	for _, s := range []schemaOf{
		{"input", m.InputSchema},
		{"output", m.OutputSchema},
		{"suspend", m.SuspendSchema},
		{"resume", m.ResumeSchema},
		{"context", m.RequestContextSchema},
	} {
		if len(s.raw) > 0 && string(s.raw) != "null" {
			list = append(list, s)
		}
	}
	return list
}

func newToolSchemaCommand(a *app) *cobra.Command {
	of := "input"
	cmd := &cobra.Command{
		Use: "schema TOOL", Short: "Print a schema of a tool", Args: cobra.ExactArgs(1),
		Long: `Print the JSON Schema of what a tool takes, or with --of another one: output, suspend (what it asks with when it suspends
itself), resume (what it is resumed with) or context (the request context that it needs). TOOL is its id or a key, as of
"weir tool info".

JSON: the schema, on one line.`,
		Example: `  weir tool schema issue_refund
  weir tool schema issue_refund --of output`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.printSchema(cmd, args[0], of) },
	}
	cmd.Flags().StringVar(&of, "of", of, "input, output, suspend, resume or context")
	return cmd
}

func (a *app) printSchema(cmd *cobra.Command, tool, of string) error {
	switch of {
	case "input", "output", "suspend", "resume", "context":
	default:
		return usagef("--of %s: use input, output, suspend, resume or context", of)
	}
	c, stop, err := a.client(cmd.Context())
	if err != nil {
		return err
	}
	defer stop()
	t, err := c.Tool(cmd.Context(), tool)
	if err != nil {
		return err
	}
	for _, s := range schemasOf(t.Manifest) {
		if s.of == of {
			return a.printValue(s.raw)
		}
	}
	return events.NotFound("schema", "tool %s has no %s schema", t.ID, of)
}

// printValue writes JSON as it is: indented at a terminal, else on one line.
func (a *app) printValue(raw json.RawMessage) error {
	if !a.json && isTerminal(a.out) {
		_, err := fmt.Fprintln(a.out, indented(raw))
		return err
	}
	return writeJSON(a.out, raw)
}

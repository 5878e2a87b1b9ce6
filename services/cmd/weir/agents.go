package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

func newAgentsCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{
		Use: "agents", Aliases: []string{"agent"}, Short: "List and look at agents",
		Long: `List the registered agents, and look at one. They are defined in weir.yaml or in Go; runs go on with the definitions that they
started with.`,
		Example: "  weir agents ls\n  weir agents info support\n  weir run support \"Where is order 1042?\"",
	}, newAgentListCommand(a), newAgentInfoCommand(a))
}

func newAgentListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the registered agents", Args: cobra.NoArgs,
		Long: `List the registered agents.

Columns: id, model, how many tools it has, the agents that it delegates to, and what it is for.

JSON: {"agents": [an agent as "weir agents info" prints it]}.`,
		Example: "  weir agents ls\n  weir agents ls -o json | jq -r '.agents[].id'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, stop, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			defer stop()
			agents, err := c.Agents(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(map[string][]events.AgentDef{"agents": agents}, func(io.Writer) {
				rows := make([][]string, len(agents))
				for i, d := range agents {
					rows[i] = []string{
						d.ID, d.Model, fmt.Sprint(len(d.AllTools())), strings.Join(keyed(d.Agents), ", "), oneLine(d.Description),
					}
				}
				a.table([]string{"AGENT", "MODEL", "TOOLS", "AGENTS", "DESCRIPTION"}, rows)
			})
		},
	}
}

func newAgentInfoCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "info AGENT", Short: "Look at an agent", Args: cobra.ExactArgs(1),
		Long: `Look at an agent: its model and instructions, its tools and the agents that it delegates to, each with the key under which its
model sees it, when its calls need approval, which hooks are asked before them, and its limits.

JSON: its definition: {"id", "name", "description", "instructions", "model", "tools": {key: id}, "agents": {key: id},
"requireToolApproval", "hooks", "limits", "delegation", "memory", …}.`,
		Example: "  weir agents info support\n  weir agents info support -o json | jq .tools",
		RunE:    look(a, (*client.Client).Agent, a.printAgent),
	}
}

func (a *app) printAgent(w io.Writer, d events.AgentDef) {
	list := [][2]string{
		{"agent", d.ID},
		{"name", d.Name},
		{"description", oneLine(d.Description)},
		{"model", d.Model},
		{"approval", approvalOf(d.RequireToolApproval)},
	}
	for _, of := range []struct {
		what string
		ids  map[string]string
	}{{"tool", d.AllTools()}, {"delegates to", d.Agents}} {
		for _, id := range keyed(of.ids) {
			list = append(list, [2]string{of.what, id})
		}
	}
	for _, name := range d.Hooks.Names() {
		list = append(list, [2]string{"hook", hookOf(name, d.Hooks[name])})
	}
	if l := d.Limits; l != nil {
		list = append(list, [][2]string{
			{"steps", count(l.Steps)},
			{"tokens", count(l.Tokens)},
			{"failures", count(l.Failures)},
			{"repeats", count(l.Repeats)},
			{"time", lasting(l.Time, "")},
			{"cost", amount(l.Cost)},
		}...)
	}
	facts(w, list)
	if d.Instructions != "" {
		parts{w: w}.text("instructions", d.Instructions)
	}
}

// keyed are ids in the order of their keys, with the key where it is not the id.
func keyed(ids map[string]string) []string {
	list := make([]string, 0, len(ids))
	for _, key := range slices.Sorted(maps.Keys(ids)) {
		if id := ids[key]; id == key {
			list = append(list, id)
		} else {
			list = append(list, id+" as "+key)
		}
	}
	return list
}

// hookOf says what a hook is.
func hookOf(name string, h events.Hook) string {
	text := name + ": asks a service"
	if h.When != "" {
		text = name + ": blocks when " + oneLine(h.When)
	}
	if h.Inherit {
		text += ", for sub-agents too"
	}
	return text
}

// amount is what something costs; empty when that is nothing or not known.
func amount(cost float64) string {
	if cost == 0 {
		return ""
	}
	return strconv.FormatFloat(cost, 'f', -1, 64)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/config"
)

func newApplyCommand(a *app) *cobra.Command {
	var path string
	var o config.ApplyOptions
	cmd := &cobra.Command{
		Use: "apply", Short: "Write the definitions of weir.yaml to the registry", Args: cobra.NoArgs,
		Long: `Write the agents, tools, rules, principals and models of weir.yaml to the registry, without secrets. It may be
repeated, and removes nothing: what the registry has and the file has not is told as kept. Runs go on with the definitions
that they started with; rules count for runs under way too, and when the command has ended every gate judges by them.

A rule that matches no tool or agent does nothing, and an agent's tool that nobody has registered cannot be called. Both
are errors, for the file and the registry together, and nothing is applied then. --allow-unmatched makes warnings of them:
for workers that come later.

JSON: {"applied": [{"kind", "id", "digest", "change": "created|changed|unchanged|kept"}], "warnings": []}.`,
		Example: `  weir rules diff -f weir.yaml     what would have been different
  weir apply -f weir.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.apply(cmd.Context(), path, o) },
	}
	cmd.Flags().StringVarP(&path, "file", "f", defaultFile, "the file")
	cmd.Flags().BoolVar(&o.AllowUnmatched, "allow-unmatched", false, "apply rules that match nothing, and agents with tools that nobody has")
	return cmd
}

func (a *app) apply(ctx context.Context, path string, o config.ApplyOptions) error {
	file, err := config.Load(path, a.lookup)
	if err != nil {
		return err
	}
	conn, err := a.dial(ctx, "apply", file.Namespace)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	report, err := config.Apply(ctx, conn, file, &o)
	if _, unmatched := errors.AsType[*config.Error](err); unmatched {
		return fmt.Errorf("%w\nnothing was applied; start the workers that have these tools first, or add --allow-unmatched", err)
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(report.Applied, func(d config.Applied) bool {
		return d.Kind == events.RegistryRule && (d.Change == config.Created || d.Change == config.Changed)
	}) {
		if err := rulesTaken(ctx); err != nil {
			return err
		}
	}
	return a.print(report, func(io.Writer) {
		var rows [][]string
		for _, d := range report.Applied {
			rows = append(rows, []string{string(d.Change), d.Kind, d.ID, d.Digest})
		}
		for _, w := range report.Warnings {
			rows = append(rows, []string{"warning", "", w, ""})
		}
		a.table([]string{"CHANGE", "KIND", "ID", "DIGEST"}, rows)
	})
}

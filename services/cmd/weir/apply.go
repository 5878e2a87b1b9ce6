package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/services/internal/config"
)

func newApplyCommand(a *app) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use: "apply", Short: "Write the definitions of weir.yaml to the registry", Args: cobra.NoArgs,
		Long: `Write the agents, tools, rules, principals and models of weir.yaml to the registry, without secrets. It may be
repeated, and removes nothing: what the registry has and the file has not is told as kept. Runs go on with the definitions
that they started with; rules count at once.

JSON: {"applied": [{"kind", "id", "digest", "change": "created|changed|unchanged|kept"}], "warnings": []}.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.apply(cmd.Context(), path) },
	}
	cmd.Flags().StringVarP(&path, "file", "f", defaultFile, "the file")
	return cmd
}

func (a *app) apply(ctx context.Context, path string) error {
	file, err := config.Load(path, a.lookup)
	if err != nil {
		return err
	}
	conn, err := a.dial(ctx, "apply", file.Namespace)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	report, err := config.Apply(ctx, conn, file)
	if err != nil {
		return err
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

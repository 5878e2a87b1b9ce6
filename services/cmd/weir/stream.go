package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/config"
)

func newStreamCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{Use: "stream", Short: "Make the streams, or compare them with what they must be"},
		newProvisionCommand(a), newVerifyCommand(a))
}

func newProvisionCommand(a *app) *cobra.Command {
	var o streamOptions
	cmd := &cobra.Command{
		Use: "provision", Short: "Make the streams, buckets and consumers, and mend those that have drifted", Args: cobra.NoArgs,
		Long: `Make the streams, buckets and consumers of a namespace, and mend those that have drifted. It may be repeated. What was
not chosen, by a flag or in weir.yaml, stays as it is. Services only verify: this needs the provisioner's user.

JSON: {"changed": [{"stream", "consumer", "setting", "is", "mustBe"}]}; "is" is what was.`,
		Example: `  weir stream provision --replicas 3
  weir stream provision --audit     keep a record of every fact, too`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.lookup = a.lookup
			return a.provision(cmd.Context(), o)
		},
	}
	o.define(cmd)
	return cmd
}

func newVerifyCommand(a *app) *cobra.Command {
	var o streamOptions
	cmd := &cobra.Command{
		Use: "verify", Short: "Compare the streams with what they must be, and change nothing", Args: cobra.NoArgs,
		Long: `Compare streams, buckets and consumers with what they must be, and change nothing. With a difference the exit code is 1.

JSON: {"drift": [{"stream", "consumer", "setting", "is", "mustBe"}]}.`,
		Example: `  weir stream verify && echo "as it must be"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.lookup = a.lookup
			return a.verify(cmd.Context(), o)
		},
	}
	o.define(cmd)
	return cmd
}

// streamOptions are the flags of weir stream; what they leave open is the file's or a default.
type streamOptions struct {
	file        string
	replicas    int
	retention   time.Duration
	pools       []string
	audit       bool
	asyncChunks bool
	lookup      config.Lookup
}

func (o *streamOptions) define(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringVarP(&o.file, "file", "f", "", "file with retention and pools (default weir.yaml, if it is there)")
	set.IntVar(&o.replicas, "replicas", 0, "1 or 3 (default 1)")
	set.DurationVar(&o.retention, "retention", 0, "how long the log keeps runs (default 24h)")
	set.StringSliceVar(&o.pools, "pools", nil, "pools of executors (default: default)")
	set.BoolVar(&o.audit, "audit", false, "keep the record in a stream of its own")
	set.BoolVar(&o.asyncChunks, "async-chunks", false, "write chunks behind their acks: for servers that sync always")
}

// settings are what the streams must be like.
func (o streamOptions) settings() (jetstream.Settings, *config.File, error) {
	file, err := loadFile(o.file, o.lookup)
	if err != nil {
		return jetstream.Settings{}, nil, err
	}
	s := settingsIn(file)
	s.Replicas, s.Audit, s.AsyncChunks = o.replicas, o.audit, o.asyncChunks
	if o.retention > 0 {
		s.Retention = o.retention
	}
	if len(o.pools) > 0 {
		s.Pools = o.pools
	}
	return s, file, nil
}

// driftRow is a drift as the command line shows it.
type driftRow struct {
	Stream   string `json:"stream"`
	Consumer string `json:"consumer,omitempty"`
	Setting  string `json:"setting,omitempty"` // empty: it is missing
	Is       string `json:"is"`
	MustBe   string `json:"mustBe"`
}

func driftRows(drifts []jetstream.Drift) []driftRow {
	rows := make([]driftRow, len(drifts))
	for i, d := range drifts {
		rows[i] = driftRow{
			Stream: d.Store, Consumer: d.Consumer, Setting: d.Field, Is: readable(d.Field, d.Got),
			MustBe: readable(d.Field, d.Want),
		}
		if d.Field == "" {
			rows[i].Is, rows[i].MustBe = "missing", "there"
		}
	}
	return rows
}

// readable is a setting for people: NATS writes spans of time in nanoseconds.
func readable(field, value string) string {
	if n, err := strconv.ParseInt(value, 10, 64); err == nil && slices.Contains(spanFields, field) {
		return time.Duration(n).String()
	}
	return value
}

var spanFields = []string{"max_age", "duplicate_window", "ack_wait", "max_expires", "inactive_threshold"}

func (r driftRow) cells() []string { return []string{r.Stream, r.Consumer, r.Setting, r.Is, r.MustBe} }

func (a *app) provision(ctx context.Context, o streamOptions) error {
	settings, file, err := o.settings()
	if err != nil {
		return err
	}
	conn, err := a.dial(ctx, "provision", namespaceOf(file))
	if err != nil {
		return err
	}
	defer hangUp(conn)
	changed, err := mend(ctx, conn, settings)
	if err != nil {
		return err
	}
	if len(changed) == 0 {
		a.note("everything was as it must be")
	}
	return a.print(struct {
		Changed []driftRow `json:"changed"`
	}{driftRows(changed)}, func(io.Writer) { a.driftTable([]string{"STREAM", "CONSUMER", "SETTING", "WAS", "IS NOW"}, changed) })
}

func (a *app) verify(ctx context.Context, o streamOptions) error {
	settings, file, err := o.settings()
	if err != nil {
		return err
	}
	conn, err := a.dial(ctx, "verify", namespaceOf(file))
	if err != nil {
		return err
	}
	defer hangUp(conn)
	drifts, err := conn.Verify(ctx, settings)
	if err != nil {
		return err
	}
	if err := a.print(struct {
		Drift []driftRow `json:"drift"`
	}{driftRows(drifts)}, func(io.Writer) { a.driftTable([]string{"STREAM", "CONSUMER", "SETTING", "IS", "MUST BE"}, drifts) }); err != nil {
		return err
	}
	if len(drifts) > 0 {
		a.note("mend it with: weir stream provision")
		return &exit{code: exitFailed}
	}
	a.note("everything is as it must be")
	return nil
}

func (a *app) driftTable(head []string, drifts []jetstream.Drift) {
	if len(drifts) == 0 {
		return
	}
	var rows [][]string
	for _, r := range driftRows(drifts) {
		rows = append(rows, r.cells())
	}
	a.table(head, rows)
}

// mend makes what is missing and changes what has drifted, and returns what that was.
func mend(ctx context.Context, conn *jetstream.Conn, s jetstream.Settings) ([]jetstream.Drift, error) {
	drifts, err := conn.Verify(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := conn.Ensure(ctx, s); err != nil {
		return nil, err
	}
	left, err := conn.Verify(ctx, s)
	if err == nil && len(left) > 0 { // such as a foreign stream, which is nobody's to change
		err = fmt.Errorf("this could not be mended: %s", left[0])
	}
	return drifts, err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/models"
)

// Workloads: what a run costs when model and tool cost nothing.
const (
	workloadTool     = "w1" // start, a tool call, final text
	workloadApproval = "w2" // the same with a held call: start, ask, approval, tool call, final text
)

// workload is one way to use the services.
type workload struct {
	warmUp int // cycles that come before those that count
	cycle  func(*load, context.Context, string, *cycle) (sample, error)
}

// workloads is the table of them.
var workloads = map[string]workload{
	workloadTool:     {warmUp: 100, cycle: (*load).toolCycle},
	workloadApproval: {warmUp: 50, cycle: (*load).approvalCycle},
}

// Agents and the tool of the workloads.
const (
	benchPrincipal = "bench"
	benchPrompt    = "Please refund order 42"
	benchText      = "refunded" // in every final text
	benchModel     = "scripted/bench"
	benchTool      = "lookup_order"
	benchHeldAgent = "bench-held"
	benchAgent     = "bench"
)

// warmAtOnce is how many runs of the warm-up are under way at once.
const warmAtOnce = 8

func newBenchCommand(a *app) *cobra.Command {
	var o benchOptions
	var sync string
	var p profiles
	cmd := &cobra.Command{
		Use: "bench w1|w2|w2h", Short: "Measure what a run costs", Args: cobra.ExactArgs(1),
		ValidArgs: append(slices.Sorted(maps.Keys(workloads)), workloadHold),
		Long: `Measure what a run costs when model and tool cost nothing: all services, the driver and an embedded NATS server in this
process, files in an empty folder, signatures and chunks as in production.

w1  start, a tool call, final text
w2  start, a held tool call, approval, final text
w2h runs that are held, as many as --runs says, in threads of ten: what they cost while they wait, how long it takes to
    list a thread, to find one, to decide one, and to decide one after everything was restarted. The NATS server is a
    process of its own here, so that its memory stands apart

Each final text is checked. A warm-up comes first and does not count. Latency is best measured with --concurrency 1 and at
least 1,000 runs, throughput and processor time with 64.

With --server or --context that server is used, in the namespace bench, and its processor time is not counted.

JSON: {"workload", "runs", "concurrency", "sync", "p50_ms", "p99_ms", "suspended_p50_ms", "suspended_p99_ms",
"decided_p50_ms", "decided_p99_ms", "per_second", "cores_got", "cpu_s_per_1k", "rss_mb", "counted", "appends_per_run",
"inbox_per_run", "chunks_per_run", "cores", "loadavg_before", "loadavg_after", "versions"}. Of w2h: {"workload", "held",
"threads", "sync", "suspends_per_s", "services_rss_mb", "services_heap_kb_run", "broker_rss_mb", "broker_kb_run",
"bytes_per_run", "snapshot_bytes", "list_p50_ms", "list_max_ms", "listed", "lookup_p50_ms", "decided_while_held_p50_ms",
"restart_to_decided_ms", "goroutines", "consumers", "cores", "loadavg_before", "loadavg_after", "versions"}.`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.workload, o.log = args[0], a.logger(slog.LevelWarn)
			if cmd.Flags().Changed("server") || cmd.Flags().Changed("context") { // never one that is only in the environment
				o.external = a.benchDial
			}
			if o.sync, err = embedded.ParseSync(sync); err != nil {
				return usagef("--sync: %v", err)
			}
			if o.workload == workloadHold {
				result, err := hold(cmd.Context(), o, a.err)
				if err != nil {
					return err
				}
				return a.print(result, result.print)
			}
			result, err := p.around(func() (*benchResult, error) { return bench(cmd.Context(), o) })
			if err != nil {
				return err
			}
			return a.print(result, result.print)
		},
	}
	cmd.Flags().IntVar(&o.runs, "runs", 1000, "how many runs count")
	cmd.Flags().IntVar(&o.concurrency, "concurrency", 1, "how many are under way at once")
	cmd.Flags().StringVar(&sync, "sync", "default", "when the embedded server writes to disk: default, always, or a span such as 5ms")
	cmd.Flags().StringVar(&o.dir, "dir", "", "where the folder for the files is made (default: that for temporary files)")
	cmd.Flags().StringVar(&p.cpu, "cpuprofile", "", "write a profile of processor time")
	cmd.Flags().StringVar(&p.memory, "memprofile", "", "write a profile of allocations")
	for _, name := range []string{"cpuprofile", "memprofile"} {
		_ = cmd.Flags().MarkHidden(name) // it is there: it was added above
	}
	cmd.AddCommand(newBrokerCommand(a))
	return cmd
}

// profiles are files for profiles of the benchmark; empty: none.
type profiles struct{ cpu, memory string }

// around writes profiles of f.
func (p profiles) around(f func() (*benchResult, error)) (result *benchResult, err error) {
	if p.cpu != "" {
		file, err := os.Create(p.cpu)
		if err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return nil, err
		}
		defer func() {
			pprof.StopCPUProfile()
			_ = file.Close() // a profile that is cut off cannot be read, which tells enough
		}()
	}
	if result, err = f(); err != nil || p.memory == "" {
		return result, err
	}
	file, err := os.Create(p.memory)
	if err != nil {
		return nil, err
	}
	return result, errors.Join(pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
}

// benchOptions say what is measured.
type benchOptions struct {
	workload    string
	runs        int
	concurrency int
	sync        embedded.Sync
	external    dialer // to a NATS server; nil: an embedded one
	dir         string // below which the embedded server's folder is made
	log         *slog.Logger
}

func (o benchOptions) validate() error {
	if _, ok := workloads[o.workload]; !ok {
		return usagef("there is no workload %q: use %s or %s", o.workload, strings.Join(slices.Sorted(maps.Keys(workloads)), ", "), workloadHold)
	}
	if o.runs < 1 || o.concurrency < 1 {
		return usagef("%d runs, %d at once: both must be at least 1", o.runs, o.concurrency)
	}
	return nil
}

// bench starts the services in this process, as weir dev does, drives them and returns what it cost.
func bench(ctx context.Context, o benchOptions) (*benchResult, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.dir, "weir-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a folder of temporary files
	dial, key, stop, err := o.bus(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer stop()
	run, err := o.services(ctx, dial, key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer background(ctx, cancel, run)()
	conn, err := dial(ctx, "bench")
	if err != nil {
		return nil, err
	}
	defer hangUp(conn)
	if err := register(ctx, conn); err != nil {
		return nil, err
	}
	result, err := o.measure(ctx, conn)
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause // of a service, or of the person who stopped it
	}
	return result, err
}

// benchNamespace keeps the runs of a benchmark apart from others on the same server.
const benchNamespace events.Namespace = "bench"

func (a *app) benchDial(ctx context.Context, name string) (*jetstream.Conn, error) {
	return a.dialService(ctx, name, benchNamespace)
}

// dialer connects a service to the bus.
type dialer func(ctx context.Context, name string) (*jetstream.Conn, error)

// bus is a provisioned NATS server: an embedded one in an empty folder, or the one that was named.
func (o benchOptions) bus(ctx context.Context, dir string) (dialer, events.Key, func(), error) {
	if o.external == nil {
		l, err := startLocal(ctx, localOptions{Dir: dir, Sync: o.sync, Log: o.log})
		if err != nil {
			return nil, events.Key{}, nil, err
		}
		return l.dial, l.key, l.Close, nil
	}
	dial := o.external
	conn, err := dial(ctx, "provision")
	if err != nil {
		return nil, events.Key{}, nil, err
	}
	defer hangUp(conn)
	key, err := jetstream.NewKey()
	if err != nil {
		return nil, events.Key{}, nil, err
	}
	return dial, key, func() {}, conn.Ensure(ctx, jetstream.Settings{})
}

// services are all of them, as weir dev runs them.
func (o benchOptions) services(ctx context.Context, dial dialer, key events.Key) (func(context.Context) error, error) {
	registry, err := models.New(models.Config{})
	if err != nil {
		return nil, err
	}
	keys, err := publicKeys(key.Public)
	if err != nil {
		return nil, err
	}
	w, err := newWorker(ctx, workerConfig{
		Dial: dial, Key: &key, GateKeys: keys, Dev: true, Models: registry,
		Tools: []agent.Tool{lookupTool()}, Log: o.log,
	}, allServices...)
	if err != nil {
		return nil, err
	}
	return w.Run, w.Register(ctx)
}

type (
	benchOrder struct {
		OrderID string `json:"orderId"`
	}
	benchFound struct {
		OK     bool `json:"ok"`
		Amount int  `json:"amount"`
	}
)

// lookupTool costs nothing and counts as one with effects, so that its claim is paid for.
func lookupTool() agent.Tool {
	return agent.NewTool(benchTool, "Look up an order",
		func(context.Context, *agent.Call, benchOrder) (benchFound, error) {
			return benchFound{OK: true, Amount: 10}, nil
		},
		&agent.ToolOptions{Effect: agent.Effectful})
}

// register writes the agents of the workloads to the registry: one whose calls run at once, one whose calls are held.
func register(ctx context.Context, conn *jetstream.Conn) error {
	for _, a := range []*agent.Agent{
		{ID: benchAgent, Model: benchModel, Tools: agent.Tools{benchTool: lookupTool()}},
		{
			ID: benchHeldAgent, Model: benchModel, Tools: agent.Tools{benchTool: lookupTool()},
			RequireToolApproval: agent.Always(),
		},
	} {
		def, err := a.Def()
		if err != nil {
			return err
		}
		if err := putAgent(ctx, conn, def); err != nil {
			return err
		}
	}
	return nil
}

// measure runs the workload: a warm-up, then the cycles that count, between two runs that mark what was appended.
func (o benchOptions) measure(ctx context.Context, conn *jetstream.Conn) (*benchResult, error) {
	work := workloads[o.workload]
	l := &load{conn: conn, client: client.New(conn, client.Config{Principal: benchPrincipal}), cycles: map[string]*cycle{}}
	defer l.client.Close()
	if err := l.listen(ctx); err != nil {
		return nil, err
	}
	if _, err := l.drive(ctx, work, work.warmUp, warmAtOnce); err != nil {
		return nil, fmt.Errorf("warm-up: %w", err)
	}
	before, err := l.mark(ctx)
	if err != nil {
		return nil, err
	}
	result := &benchResult{
		Workload: o.workload, Runs: o.runs, Concurrency: o.concurrency, Sync: o.sync.String(),
		LoadBefore: loadAverage(),
	}
	began := time.Now()
	cpu, _ := usage()
	samples, err := l.drive(ctx, work, o.runs, o.concurrency)
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	cpuAfter, peak := usage()
	after, err := l.mark(ctx)
	if err != nil {
		return nil, err
	}
	result.addTimes(samples, took)
	result.addUsage(cpuAfter-cpu, took, peak, o.external == nil)
	result.addAppends(before, after)
	result.addVersions()
	return result, nil
}

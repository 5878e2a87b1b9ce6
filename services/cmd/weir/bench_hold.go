package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/services/client"
)

// workloadHold suspends many runs and looks at what they cost while they wait.
const workloadHold = "w2h"

const (
	perThread = 10  // held runs of a thread
	holdTries = 100 // lists, look-ups and decisions that are timed
	holdRound = 64  // runs that are suspended at once
)

// holdResult is what held runs cost. Times are in milliseconds.
type holdResult struct {
	Workload      string  `json:"workload"`
	Held          int     `json:"held"`
	Threads       int     `json:"threads"`
	Sync          string  `json:"sync"`
	SuspendsPerS  float64 `json:"suspends_per_s"`
	ServicesMB    float64 `json:"services_rss_mb"`      // of this process: services and driver
	ServicesKB    float64 `json:"services_heap_kb_run"` // what their heap grew by, a held run
	BrokerMB      float64 `json:"broker_rss_mb"`
	BrokerKB      float64 `json:"broker_kb_run"` // what the broker grew by, a held run
	StoredBytes   float64 `json:"bytes_per_run"` // on disk
	SnapshotBytes int     `json:"snapshot_bytes"`
	ListP50       float64 `json:"list_p50_ms"` // of one thread
	ListMax       float64 `json:"list_max_ms"`
	Listed        int     `json:"listed"`        // runs of that thread
	LookupP50     float64 `json:"lookup_p50_ms"` // by toolCallId
	DecidedP50    float64 `json:"decided_while_held_p50_ms"`
	RestartMS     float64 `json:"restart_to_decided_ms"` // all processes new, to the end of the first decided run
	Goroutines    [2]int  `json:"goroutines"`            // before and after
	Consumers     [2]int  `json:"consumers"`

	Cores      int               `json:"cores"`
	LoadBefore []float64         `json:"loadavg_before,omitempty"`
	LoadAfter  []float64         `json:"loadavg_after,omitempty"`
	Versions   map[string]string `json:"versions"`
}

func (r *holdResult) print(w io.Writer) {
	_, _ = fmt.Fprintln(w, strings.Join([]string{
		fmt.Sprintf("w2h: %d runs held in %d threads, sync %s, on %d cores; %.0f suspended a second", r.Held, r.Threads, r.Sync, r.Cores, r.SuspendsPerS),
		fmt.Sprintf("  memory: services %.0f MB (%.3f KB heap a run), broker %.0f MB (%.2f KB a run)", r.ServicesMB, r.ServicesKB, r.BrokerMB, r.BrokerKB),
		fmt.Sprintf("  stored: %.0f bytes a run, snapshot %d bytes", r.StoredBytes, r.SnapshotBytes),
		fmt.Sprintf("  list of a thread p50 %.2f ms, longest %.2f ms (%d runs); by toolCallId p50 %.2f ms", r.ListP50, r.ListMax, r.Listed, r.LookupP50),
		fmt.Sprintf("  approve to end p50 %.2f ms; everything restarted to the first decided run %.0f ms", r.DecidedP50, r.RestartMS),
		fmt.Sprintf("  before and after: %d and %d goroutines, %d and %d consumers", r.Goroutines[0], r.Goroutines[1], r.Consumers[0], r.Consumers[1]),
	}, "\n"))
}

// newBrokerCommand runs the NATS server of a benchmark as a process of its own, so that its memory stands apart.
func newBrokerCommand(a *app) *cobra.Command {
	var dir, mode string
	var tied bool
	cmd := &cobra.Command{
		Use: "broker", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if tied {
				var cancel context.CancelFunc
				ctx, cancel = untilInputEnds(ctx, a.in)
				defer cancel()
			}
			mode, err := embedded.ParseSync(mode)
			if err != nil {
				return usagef("--sync: %v", err)
			}
			l, err := startLocal(ctx, localOptions{Dir: dir, Listen: "127.0.0.1:0", Sync: mode, Log: a.logger(slog.LevelWarn)})
			if err != nil {
				return err
			}
			defer l.Close()
			if _, err := fmt.Fprintln(a.out, l.server.ClientURL()); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "folder of the files")
	cmd.Flags().StringVar(&mode, "sync", "default", "when it writes to disk")
	defineTied(cmd, &tied)
	return cmd
}

// holding is the benchmark of held runs under way: a broker, the services of this process, and the load.
type holding struct {
	opts   benchOptions
	dir    string
	broker *process
	key    events.Key
	dial   dialer
	load   *load
	stop   func()
	mu     sync.Mutex
	asks   map[int]events.CallHeld // those that are looked at later, by index of their run: a hundred thousand take memory
}

// hold suspends runs and measures what they cost.
func hold(ctx context.Context, o benchOptions, tell io.Writer) (*holdResult, error) {
	if o.runs < perThread || o.external != nil {
		return nil, usagef("w2h holds at least %d runs, on a server of its own", perThread)
	}
	dir, err := os.MkdirTemp(o.dir, "weir-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a folder of temporary files
	h := &holding{opts: o, dir: dir, asks: map[int]events.CallHeld{}}
	for i := range holdTries {
		h.asks[i*o.runs/holdTries], h.asks[i%o.runs], h.asks[o.runs-1] = events.CallHeld{}, events.CallHeld{}, events.CallHeld{}
	}
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	defer func() { h.stop() }()
	r := &holdResult{
		Workload: workloadHold, Held: o.runs, Threads: o.runs / perThread, Sync: o.sync.String(), Cores: runtime.NumCPU(),
		LoadBefore: loadAverage(),
	}
	if _, err := h.load.drive(ctx, workloads[workloadApproval], workloads[workloadApproval].warmUp, warmAtOnce); err != nil {
		return nil, fmt.Errorf("warm-up: %w", err)
	}
	for _, part := range []func(context.Context, *holdResult, io.Writer) error{h.suspend, h.look, h.decide, h.restart} {
		if err := part(ctx, r, tell); err != nil {
			return nil, err
		}
	}
	b := benchResult{}
	b.addVersions()
	r.LoadAfter, r.Versions = b.LoadAfter, b.Versions
	return r, nil
}

// start starts the broker, the services and the load on the folder.
func (h *holding) start(ctx context.Context) error {
	urls := make(chan string, 1)
	var err error
	h.broker, err = startProcess(ctx, "broker", func(_ *process, line string) {
		select {
		case urls <- line:
		default:
		}
	}, "bench", "broker", "--dir", h.dir, "--sync", h.opts.sync.String())
	if err != nil {
		return err
	}
	var url string
	select {
	case url = <-urls:
	case <-h.broker.ended:
		return h.broker.Failed()
	case <-ctx.Done():
		h.broker.Stop()
		return context.Cause(ctx)
	}
	if h.key, err = gateKey(filepath.Join(h.dir, "keys", "gate.nk")); err != nil {
		return err
	}
	h.dial = func(ctx context.Context, name string) (*jetstream.Conn, error) {
		return jetstream.Connect(ctx, jetstream.Options{URL: url, Name: name, Log: h.opts.log})
	}
	run, err := h.opts.services(ctx, h.dial, h.key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	wait := background(ctx, cancel, run)
	conn, err := h.dial(ctx, "bench")
	if err != nil {
		cancel(err)
		wait()
		return err
	}
	h.load = &load{conn: conn, client: client.New(conn, client.Config{Principal: benchPrincipal}), cycles: map[string]*cycle{}}
	h.stop = func() {
		h.load.client.Close()
		hangUp(conn)
		cancel(nil)
		wait()
		h.broker.Stop()
	}
	return errors.Join(register(ctx, conn), h.load.listen(ctx))
}

// suspend holds the runs, and looks at memory and disk before and after.
func (h *holding) suspend(ctx context.Context, r *holdResult, tell io.Writer) error {
	before, err := h.footprint(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var driving sync.WaitGroup
	for range holdRound {
		driving.Go(func() {
			for i := int(next.Add(1)) - 1; i < h.opts.runs && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := h.suspendOne(ctx, i); err != nil {
					cancel(err)
				}
				if n := i + 1; n%10000 == 0 {
					_, _ = fmt.Fprintf(tell, "%d of %d runs are held\n", n, h.opts.runs)
				}
			}
		})
	}
	driving.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r.SuspendsPerS = round(float64(r.Held) / time.Since(began).Seconds())
	after, err := h.footprint(ctx)
	if err != nil {
		return err
	}
	const kb, mb = 1 << 10, 1 << 20
	held := float64(r.Held)
	r.ServicesMB, r.BrokerMB = round(float64(after.services)/mb), round(float64(after.broker)/mb)
	r.ServicesKB, r.BrokerKB = round((after.heap-before.heap)/kb/held), round(float64(after.broker-before.broker)/kb/held)
	r.StoredBytes = round(float64(after.stored-before.stored) / held)
	r.Goroutines, r.Consumers = [2]int{before.goroutines, after.goroutines}, [2]int{before.consumers, after.consumers}
	return nil
}

func (h *holding) suspendOne(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, runWithin, errSlow)
	defer cancel()
	run := events.NewID(time.Now())
	c, forget := h.load.begin(run)
	defer forget()
	_, err := h.load.client.Start(ctx, client.Request{
		Agent: benchHeldAgent, Prompt: benchPrompt, RunID: run, ThreadID: fmt.Sprint(i / perThread), ResourceID: benchPrincipal,
	})
	if err != nil {
		return err
	}
	ask, err := await(ctx, run, c.asked)
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, used := h.asks[i]; used {
		h.asks[i] = ask.data
	}
	return err
}

// footprint is what processes and disk hold.
type footprint struct {
	heap                  float64
	services, broker      int64 // resident bytes
	stored                int64
	goroutines, consumers int
}

func (h *holding) footprint(ctx context.Context) (f footprint, err error) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.heap, f.goroutines = float64(m.HeapAlloc), runtime.NumGoroutine()
	if f.consumers, err = h.load.conn.ConsumerCount(ctx); err != nil {
		return f, err
	}
	if f.services, err = resident(os.Getpid()); err == nil {
		f.broker, err = resident(h.broker.ID())
	}
	if err != nil {
		return f, err
	}
	err = filepath.WalkDir(h.dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreGoneFile(err)
		}
		info, err := d.Info()
		if err == nil {
			f.stored += info.Size()
		}
		return ignoreGoneFile(err)
	})
	return f, err
}

// ignoreGoneFile takes files that the broker has removed meanwhile.
func ignoreGoneFile(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// resident is how much memory a process holds.
func resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("the memory of a process is read from /proc: %w", err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		return 0, err
	}
	return pages * int64(os.Getpagesize()), nil
}

// look lists threads and finds calls by their ids while everything is held.
func (h *holding) look(ctx context.Context, r *holdResult, _ io.Writer) error {
	var lists, lookups []float64
	for i := range holdTries {
		ask := h.asks[i*h.opts.runs/holdTries]
		began := time.Now()
		page, err := h.load.client.Suspended(ctx, client.Filter{Agent: benchHeldAgent, Resource: benchPrincipal, Thread: ask.ThreadID})
		if err != nil {
			return err
		}
		lists = append(lists, milliseconds(began))
		if r.Listed = len(page.Runs); r.Listed != perThread {
			return fmt.Errorf("thread %s lists %d runs, want %d", ask.ThreadID, r.Listed, perThread)
		}
		began = time.Now()
		if _, err := h.load.client.Ask(ctx, ask.ToolCallID); err != nil {
			return err
		}
		lookups = append(lookups, milliseconds(began))
	}
	slices.Sort(lists)
	slices.Sort(lookups)
	r.ListP50, r.ListMax, r.LookupP50 = quantile(lists, 0.5), lists[len(lists)-1], quantile(lookups, 0.5)
	ask := h.asks[0]
	snap, _, err := h.load.conn.Snapshot(ctx, events.SuspendedKey(ask.AgentID, ask.ResourceID, ask.ThreadID, ask.RootRunID, ask.RunID))
	if err != nil {
		return err
	}
	r.SnapshotBytes = snap.Size
	return nil
}

func milliseconds(since time.Time) float64 { return round(time.Since(since).Seconds() * 1000) }

// decide approves some of the held runs, one after the other.
func (h *holding) decide(ctx context.Context, r *holdResult, _ io.Writer) error {
	var took []float64
	for i := range min(holdTries, h.opts.runs-1) {
		ms, err := h.decideOne(ctx, h.asks[i])
		if err != nil {
			return err
		}
		took = append(took, ms)
	}
	slices.Sort(took)
	r.DecidedP50 = quantile(took, 0.5)
	return nil
}

func (h *holding) decideOne(ctx context.Context, ask events.CallHeld) (float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runWithin, errSlow)
	defer cancel()
	c, forget := h.load.begin(ask.RunID)
	defer forget()
	began := time.Now()
	if err := h.load.approve(ctx, ask); err != nil {
		return 0, err
	}
	end, err := await(ctx, ask.RunID, c.ended)
	if err != nil {
		return 0, err
	}
	return round(end.at.Sub(began).Seconds() * 1000), checkEnd(end.data)
}

// restart stops everything, starts it again on the same files, and decides a run.
func (h *holding) restart(ctx context.Context, r *holdResult, tell io.Writer) error {
	_, _ = fmt.Fprintln(tell, "restarting")
	h.stop()
	h.stop = func() {}
	began := time.Now()
	if err := h.start(ctx); err != nil {
		return err
	}
	if _, err := h.decideOne(ctx, h.asks[h.opts.runs-1]); err != nil {
		return err
	}
	r.RestartMS = milliseconds(began)
	return nil
}

package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// benchResult is one line of the benchmark's output. Times are in milliseconds.
type benchResult struct {
	Workload     string   `json:"workload"`
	Runs         int      `json:"runs"`
	Concurrency  int      `json:"concurrency"`
	Sync         string   `json:"sync"`
	P50          float64  `json:"p50_ms"`
	P99          float64  `json:"p99_ms"` // below 1,000 runs the highest
	SuspendedP50 *float64 `json:"suspended_p50_ms,omitempty"`
	SuspendedP99 *float64 `json:"suspended_p99_ms,omitempty"`
	DecidedP50   *float64 `json:"decided_p50_ms,omitempty"`
	DecidedP99   *float64 `json:"decided_p99_ms,omitempty"`
	PerSecond    float64  `json:"per_second"`
	CoresGot     float64  `json:"cores_got"`
	CPUPer1k     float64  `json:"cpu_s_per_1k"`
	RSS          float64  `json:"rss_mb"` // the most at once, warm-up included
	Counted      string   `json:"counted"`

	AppendsPerRun float64 `json:"appends_per_run"` // to the log
	InboxPerRun   float64 `json:"inbox_per_run"`
	ChunksPerRun  float64 `json:"chunks_per_run"`

	Cores      int               `json:"cores"`
	LoadBefore []float64         `json:"loadavg_before,omitempty"`
	LoadAfter  []float64         `json:"loadavg_after,omitempty"`
	Versions   map[string]string `json:"versions"`
}

// addTimes works out the times of the cycles.
func (r *benchResult) addTimes(samples []sample, took time.Duration) {
	whole := times(samples, func(s sample) time.Duration { return s.whole })
	r.P50, r.P99 = quantile(whole, 0.5), quantile(whole, 0.99)
	r.PerSecond = round(float64(len(samples)) / took.Seconds())
	if r.Workload != workloadApproval {
		return
	}
	suspended := times(samples, func(s sample) time.Duration { return s.suspended })
	decided := times(samples, func(s sample) time.Duration { return s.decided })
	r.SuspendedP50, r.SuspendedP99 = new(quantile(suspended, 0.5)), new(quantile(suspended, 0.99))
	r.DecidedP50, r.DecidedP99 = new(quantile(decided, 0.5)), new(quantile(decided, 0.99))
}

// times are the sorted milliseconds of the samples.
func times(samples []sample, of func(sample) time.Duration) []float64 {
	ms := make([]float64, len(samples))
	for i, s := range samples {
		ms[i] = of(s).Seconds() * 1000
	}
	slices.Sort(ms)
	return ms
}

// quantile of sorted values. A high quantile of few values is the highest of them: there is nothing to tell it from.
func quantile(sorted []float64, q float64) float64 {
	const enough = 1000
	if q > 0.9 && len(sorted) < enough {
		q = 1
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return round(sorted[max(i, 0)])
}

// round keeps three digits behind the point.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// addUsage works out the cost in processor time and memory.
func (r *benchResult) addUsage(cpu, took time.Duration, peak int64, broker bool) {
	r.CPUPer1k = round(cpu.Seconds() / float64(r.Runs) * 1000)
	r.CoresGot = round(cpu.Seconds() / took.Seconds())
	r.RSS = round(float64(peak) / (1 << 20))
	r.Counted = "services, driver"
	if broker {
		r.Counted += ", broker"
	}
	r.Cores = runtime.NumCPU()
}

// addAppends works out what the runs between two marks have appended.
func (r *benchResult) addAppends(before, after position) {
	runs := float64(r.Runs)
	r.AppendsPerRun = round(float64(after.first-1-before.last) / runs)
	r.InboxPerRun = round(float64(after.inbox-1-before.inbox) / runs)
	r.ChunksPerRun = round(float64(after.chunkFirst-1-before.chunkLast) / runs)
}

// benchModules are the modules whose versions matter for a figure.
var benchModules = map[string]string{
	"github.com/nats-io/nats-server/v2": "nats-server",
	"github.com/nats-io/nats.go":        "nats.go",
}

func (r *benchResult) addVersions() {
	r.LoadAfter = loadAverage()
	r.Versions = map[string]string{"weir": version, "go": runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	for _, m := range info.Deps {
		if name := benchModules[m.Path]; name != "" {
			r.Versions[name] = m.Version
		}
	}
}

// loadAverage is how busy the machine is: over one, five and fifteen minutes; nil where nobody can tell.
func loadAverage() []float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	var load []float64
	for _, field := range strings.Fields(string(text))[:3] {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return nil
		}
		load = append(load, v)
	}
	return load
}

// print writes the result for people.
func (r *benchResult) print(w io.Writer) {
	lines := []string{
		fmt.Sprintf("%s: %d runs, %d at once, sync %s, on %d cores", r.Workload, r.Runs, r.Concurrency, r.Sync, r.Cores),
		fmt.Sprintf("  start to end   p50 %8.2f ms   p99 %8.2f ms", r.P50, r.P99),
	}
	if r.SuspendedP50 != nil {
		lines = append(lines,
			fmt.Sprintf("  start to ask   p50 %8.2f ms   p99 %8.2f ms", *r.SuspendedP50, *r.SuspendedP99),
			fmt.Sprintf("  approve to end p50 %8.2f ms   p99 %8.2f ms", *r.DecidedP50, *r.DecidedP99))
	}
	lines = append(lines,
		fmt.Sprintf("  %.0f a second; %.2f CPU seconds per 1,000 on %.2f cores; %.0f MB (%s)",
			r.PerSecond, r.CPUPer1k, r.CoresGot, r.RSS, r.Counted),
		fmt.Sprintf("  appended a run: %.2f facts, %.2f requests, %.2f chunks", r.AppendsPerRun, r.InboxPerRun, r.ChunksPerRun))
	_, _ = fmt.Fprintln(w, strings.Join(lines, "\n"))
}

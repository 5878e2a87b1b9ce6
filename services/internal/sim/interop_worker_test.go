//go:build interop

package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
)

// killed is how many workers are killed.
const killed = 30

// foreign is a world whose tools are hosted by programs that are not Weir's.
type foreign struct {
	*World

	effects string // the file in which the tools write what they have done
}

// newForeign makes a world without an executor. Deliveries that nobody settles come again soon.
func newForeign(t *testing.T, tools ...string) *foreign {
	t.Helper()
	if _, err := os.Stat(filepath.Join(clients, "node_modules")); err != nil {
		t.Fatal("the foreign clients are not installed: run make interop")
	}
	def := events.AgentDef{ID: "support", Model: "scripted/sim", Tools: map[string]string{}}
	for _, tool := range tools {
		def.Tools[tool] = tool
	}
	w := New(t, Options{Server: jetstreamtest.StartListening(t), Tools: []agent.Tool{}, Agent: def})
	js, err := natsjs.New(w.raw())
	w.must(err)
	pool, err := js.Consumer(t.Context(), "weir_default_runs", events.PoolConsumer(events.DefaultPool))
	w.must(err)
	cfg := pool.CachedInfo().Config
	cfg.AckWait = 3 * time.Second
	_, err = js.UpdateConsumer(t.Context(), "weir_default_runs", cfg)
	w.must(err)
	return &foreign{w, filepath.Join(t.TempDir(), "effects")}
}

// start starts a worker and waits until it has registered its tools. The test ends it, or kill does.
func (f *foreign) start(dir, program string, args ...string) (kill func()) {
	f.T.Helper()
	cmd := exec.CommandContext(f.T.Context(), program, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with all that it starts
	out, err := cmd.StdoutPipe()
	f.must(err)
	f.must(cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // as it was killed
	})
	f.T.Cleanup(kill)
	if said := bufio.NewScanner(out); !said.Scan() || said.Text() != "working" {
		f.T.Fatalf("the worker says %q", said.Text())
	}
	return kill
}

func (f *foreign) startJS() (kill func()) {
	f.T.Helper()
	config, err := json.Marshal(map[string]any{
		"url": f.Server.ClientURL(), "gateKeys": []string{f.Key.Public}, "effects": f.effects,
		"timing": map[string]int{"lease": 2000, "progress": 1000, "live": 1000},
	})
	f.must(err)
	return f.start(clients, "node", "jobs.mjs", string(config))
}

// count counts what the tools have done.
func (f *foreign) count() {
	f.T.Helper()
	done, err := os.ReadFile(f.effects)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.T.Fatal(err)
	}
	for call := range strings.FieldsSeq(string(done)) {
		f.Effects.Add(call)
	}
}

// help says retry to whatever is in doubt, and gives the runs that have not ended.
func (f *foreign) help(runs []string) (open []string) {
	f.T.Helper()
	ns := f.Conn().Namespace()
	for _, run := range runs {
		if _, err := f.Conn().Fact(f.T.Context(), ns.End(run)); err == nil {
			continue
		}
		open = append(open, run)
		for i := range 2 {
			call := events.CallID{Run: run, Step: 1, Index: i + 1}
			last, err := f.Conn().Last(f.T.Context(), ns.Call(call, events.KindAsk).Chain())
			if errors.Is(err, jetstream.ErrNotFound) || err == nil && last.Place.Kind != events.KindAsk {
				continue
			}
			f.must(err)
			ask, err := events.Data[events.CallHeld](last)
			f.must(err)
			f.Decide("bob", events.DecisionRequested{
				ToolCallID: call.String(), Decision: events.Retry, Round: &ask.Round, Fingerprint: ask.Fingerprint,
			})
		}
	}
	return open
}

// settle helps until all runs have ended.
func (f *foreign) settle(runs []string, within time.Duration) {
	f.T.Helper()
	for began := time.Now(); ; f.pause(200 * time.Millisecond) {
		if runs = f.help(runs); len(runs) == 0 {
			return
		}
		if time.Since(began) > within {
			f.T.Fatalf("%d runs have not ended: %v", len(runs), runs)
		}
	}
}

// TestB1_18_JavaScriptWorkerKilled lets a worker in JavaScript host tools, in copies that are killed at any moment. Every
// invariant of the log holds: what may be repeated is repeated, and what has effects acts once, and once more for each retry
// that a person says. (RDLV-7, FLOW-3)
func TestB1_18_JavaScriptWorkerKilled(t *testing.T) {
	t.Parallel()
	f := newForeign(t, "charge", "notify")
	workers := []func(){f.startJS(), f.startJS()}
	f.Start(planner.Name)
	f.Start(approval.Name)
	var runs, open []string
	for range killed {
		for range 2 {
			run := f.Request("charge and notify")
			runs, open = append(runs, run), append(open, run)
		}
		f.pause(rand.N(400 * time.Millisecond))
		one := rand.IntN(len(workers))
		workers[one]()
		workers[one] = f.startJS()
		open = f.help(open)
	}
	f.settle(open, 2*time.Minute)
	f.count()
	report := f.Check(false)
	t.Log(report)
	if report["claim:again"]+report["ask:in_doubt"] == 0 {
		t.Error("no worker was killed in a call")
	}
	for _, run := range runs {
		if end := f.AwaitEnd(run, time.Second); end.Outcome != events.RunCompleted {
			t.Errorf("run %s ended as %s (%v)", run, end.Outcome, end.Error)
		}
		for _, call := range []string{"=1-1", "=1-2"} {
			if f.Effects.Of(run+call) == 0 {
				t.Errorf("%s%s never happened", run, call)
			}
		}
	}
}

// forge stores a release of a run of its own that is changed, and signed, as change says.
func (f *foreign) forge(run string, m events.Manifest, change func(*events.CallReleased) *events.Key) {
	f.T.Helper()
	ns := f.Conn().Namespace()
	d := events.CallReleased{
		Namespace: ns, RunID: run, ToolCallID: run + "=1-1", Pool: events.DefaultPool, ToolID: m.ID, ToolVersion: m.Version,
		InputSchemaDigest: m.InputSchemaDigest, Effect: m.Effect, Args: `{"orderId":"42"}`, ToolName: m.ID, AgentID: "support",
		StartBy: time.Now().Add(5 * time.Minute),
	}
	frozen := func() string {
		return events.Frozen{
			Namespace: d.Namespace, RunID: d.RunID, ToolCallID: d.ToolCallID, Round: d.Round, ToolID: d.ToolID,
			ToolVersion: d.ToolVersion, InputSchemaDigest: d.InputSchemaDigest, Args: []byte(d.Args),
		}.Fingerprint()
	}
	d.Fingerprint = frozen()
	key := change(&d)
	if d.Fingerprint == "" {
		d.Fingerprint = frozen()
	}
	place := ns.Go(events.CallID{Run: run, Step: 1, Index: 1}, events.DefaultPool, m.ID)
	o := &events.Origin{Namespace: ns, Service: approval.Name, Key: key}
	e, err := o.Fact(place, d, events.Event{})
	f.must(err)
	_, err = f.Conn().Append(f.T.Context(), events.First(place), e)
	f.must(err)
}

// forgeries are releases that no gate has made for exactly these bytes.
func (f *foreign) forgeries() map[string]func(*events.CallReleased) *events.Key {
	other, err := jetstream.NewKey()
	f.must(err)
	return map[string]func(*events.CallReleased) *events.Key{
		"unsigned":    func(*events.CallReleased) *events.Key { return nil },
		"other-key":   func(*events.CallReleased) *events.Key { return &other },
		"changed":     func(d *events.CallReleased) *events.Key { d.Args = `{"orderId":"43"}`; return &f.Key },
		"other-call":  func(d *events.CallReleased) *events.Key { d.ToolCallID = d.RunID + "=1-2"; return &f.Key },
		"other-round": func(d *events.CallReleased) *events.Key { d.Round = 1; return &f.Key },
		"invalid":     func(d *events.CallReleased) *events.Key { d.Args, d.Fingerprint = `{}`, ""; return &f.Key },
	}
}

// runsOnlyWhatIsGenuine shows a worker forged releases, and then a genuine one.
func (f *foreign) runsOnlyWhatIsGenuine(tool string) {
	f.T.Helper()
	raw, err := f.Conn().Named(f.T.Context(), events.RegistryTool, tool)
	f.must(err)
	var m events.Manifest
	f.must(json.Unmarshal(raw, &m))
	resultOf := func(run string) events.CallFinished {
		fact := f.Await(f.Conn().Namespace().Call(events.CallID{Run: run, Step: 1, Index: 1}, events.KindResult), time.Minute)
		d, err := events.Data[events.CallFinished](fact)
		f.must(err)
		return d
	}
	for run, change := range f.forgeries() {
		f.forge(run, m, change)
		if d := resultOf(run); d.Outcome != events.OutcomeBlocked || d.Reason != "fingerprint_mismatch" || d.Started {
			f.T.Errorf("%s: result = %+v, want blocked, not started", run, d)
		}
	}
	f.forge("genuine", m, func(*events.CallReleased) *events.Key { return &f.Key })
	if d := resultOf("genuine"); d.Outcome != events.OutcomeOK || !d.Started {
		f.T.Errorf("genuine: result = %+v, want ok", d)
	}
	f.count()
	if all := f.Effects.All(); len(all) != 1 || all["genuine=1-1"] != 1 {
		f.T.Errorf("effects = %v, want that of the genuine release", all)
	}
}

// TestB1_18_JavaScriptWorkerVerifies shows the worker in JavaScript releases that no gate has made for exactly these bytes:
// nothing runs, and the call ends as blocked.
func TestB1_18_JavaScriptWorkerVerifies(t *testing.T) {
	t.Parallel()
	f := newForeign(t, "charge")
	f.startJS()
	f.runsOnlyWhatIsGenuine("charge")
}

//go:build interop

package sim

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
)

// natsCLI is the folder of the nats command line, as make interop builds it.
const natsCLI = "../../../.tools/bin"

// startShell starts the worker in shell, with a tool that notes for which call it was run.
func (f *foreign) startShell() {
	f.T.Helper()
	cli, err := filepath.Abs(natsCLI)
	f.must(err)
	if _, err := os.Stat(filepath.Join(cli, "nats")); err != nil {
		f.T.Fatal("the nats command line is not built: run make interop")
	}
	for _, program := range []string{"jq", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			f.T.Fatalf("the worker in shell needs %s: .ci/run installs it", program)
		}
	}
	tool := filepath.Join(f.T.(*testing.T).TempDir(), "count")
	script := "#!/bin/sh\nread -r args\necho genuine=1-1 >>\"$EFFECTS\"\nprintf '{\"asked\":%s,\"ordered\":7}' \"$args\"\n"
	f.must(os.WriteFile(tool, []byte(script), 0o700))
	f.start(clients, "env", "CLI="+cli, "NATS_URL="+f.Server.ClientURL(), "GATE_KEY="+f.Key.Public,
		"TOOL="+tool, "EFFECTS="+f.effects, "LEASE=2", "sh", "-c", `PATH="$CLI:$PATH" exec sh worker.sh`)
}

// TestB1_18_ShellWorker lets a worker in shell host a tool of a run.
func TestB1_18_ShellWorker(t *testing.T) {
	t.Parallel()
	f := newForeign(t, "count")
	f.startShell()
	f.Start(planner.Name)
	f.Start(approval.Name)
	run := f.Request("count")
	if end := f.AwaitEnd(run, time.Minute); end.Outcome != events.RunCompleted {
		t.Errorf("the run ended as %s (%v)", end.Outcome, end.Error)
	}
	fact, err := f.Conn().Fact(t.Context(), f.Conn().Namespace().Call(events.CallID{Run: run, Step: 1, Index: 1}, events.KindResult))
	f.must(err)
	d, err := events.Data[events.CallFinished](fact)
	f.must(err)
	if want := `{"asked":{"orderId":"42"},"ordered":7}`; d.Outcome != events.OutcomeOK || string(d.Result) != want {
		t.Errorf("result = %s %s, want %s", d.Outcome, d.Result, want)
	}
	f.Check(true)
}

// TestB1_18_ShellWorkerVerifies shows the worker in shell releases that no gate has made for exactly these bytes.
func TestB1_18_ShellWorkerVerifies(t *testing.T) {
	t.Parallel()
	f := newForeign(t, "count")
	f.startShell()
	f.runsOnlyWhatIsGenuine("count")
}

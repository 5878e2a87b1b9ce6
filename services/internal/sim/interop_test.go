//go:build interop

package sim

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// clients is the folder that holds the programs of others.
const clients = "../../cmd/weir/interop"

// line is what the foreign decider says about one decision.
type line struct {
	Name    string
	Seq     uint64 // in the inbox
	Subject string // of the note
	Type    string
	Told    events.DecisionRefused
	Answer  events.CallAnswered
}

// foreignDecider is a program in JavaScript that knows the npm packages nats and cloudevents.
type foreignDecider struct {
	t   *testing.T
	out *bufio.Scanner
}

func startForeignDecider(t *testing.T, url, principal string, key events.Key) *foreignDecider {
	t.Helper()
	if _, err := os.Stat(filepath.Join(clients, "node_modules")); err != nil {
		t.Fatal("the foreign clients are not installed: run make interop")
	}
	seedFile := filepath.Join(t.TempDir(), "principal.nk")
	if err := jetstream.SaveKey(seedFile, key); err != nil {
		t.Fatal(err)
	}
	seed, err := os.ReadFile(seedFile)
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]string{
		"url": url, "prefix": "weir.default", "principal": principal,
		"seed": strings.TrimSpace(string(seed)),
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "decider.mjs", string(config))
	cmd.Dir, cmd.Stderr = clients, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = io.Copy(io.Discard, out) // it has said everything
		_ = cmd.Wait()
	})
	d := &foreignDecider{t, bufio.NewScanner(out)}
	d.next("listening")
	return d
}

// next is the next thing that it says.
func (d *foreignDecider) next(name string) line {
	d.t.Helper()
	if !d.out.Scan() {
		d.t.Fatalf("the foreign decider ended before %q: %v", name, d.out.Err())
	}
	var l line
	if err := json.Unmarshal(d.out.Bytes(), &l); err != nil || l.Name != name {
		d.t.Fatalf("the foreign decider says %s, want %q: %v", d.out.Bytes(), name, err)
	}
	return l
}

// TestForeignDecider lets a program decide that knows nothing but NATS and CloudEvents. What it does wrong is refused
// with a reason that it hears and the log keeps, and its right decision resumes the run.
func TestForeignDecider(t *testing.T) {
	t.Parallel()
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	w := New(t, Options{Server: jetstreamtest.StartListening(t), People: map[string]events.PrincipalDef{
		"carol": {ID: "carol", Auth: events.AuthKey, Key: key.Public},
	}})
	w.StartAll()
	d := startForeignDecider(t, w.Server.ClientURL(), "carol", key)
	run := w.Request("refund order 42")
	call := refundOf(run)

	refused := func(name string, of events.CallID, code events.Code) line {
		t.Helper()
		l := d.next(name)
		if want := w.Conn().Namespace().Note("carol", run, of.Token()); l.Subject != want || l.Told.Code != code || l.Told.Message == "" {
			t.Errorf("%s: told on %s: %s, want on %s: %s", name, l.Subject, l.Told.Error.Error(), want, code)
		}
		w.keptRefusal(of, l)
		return l
	}
	refused("malformed", call, events.CodeInvalidRequest)
	refused("unsigned", call, events.CodeUnauthenticated)
	refused("wrong fingerprint", call, events.CodeChanged)
	refused("unknown call", events.CallID{Run: run, Step: 7, Index: 1}, events.CodeNotFound)

	right := d.next("right")
	if right.Answer.Principal != "carol" || right.Answer.Decision != events.Approve || right.Answer.InboxSeq != right.Seq {
		t.Errorf("the answer is %s by %s to message %d, want that of carol to %d",
			right.Answer.Decision, right.Answer.Principal, right.Answer.InboxSeq, right.Seq)
	}
	late := refused("late", call, events.CodeAlreadyDecided)
	if a := late.Told.Answer; a == nil || a.Decision != events.Approve || a.Principal != "carol" {
		t.Errorf("told late: %+v", a)
	}
	if end := w.AwaitEnd(run, 10*time.Second); end.Outcome != events.RunCompleted {
		t.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
	}
	if diff := cmp.Diff([]string{"ask", "answer", "go", "claim", "result"}, w.kindsOf(call)); diff != "" {
		t.Errorf("the call has other facts:\n%s", diff)
	}
	if n := w.Effects.Of(call.String()); n != 1 {
		t.Errorf("the refund ran %d times, want once", n)
	}
	w.Check(false)
}

// keptRefusal demands that the log says what a sender was told.
func (w *World) keptRefusal(call events.CallID, l line) {
	w.T.Helper()
	fact := w.Await(w.Conn().Namespace().Beside(call, events.KindRefused, l.Told.EventID), 10*time.Second)
	kept, err := events.Data[events.DecisionRefused](fact)
	w.must(err)
	if kept.InboxSeq != l.Seq || kept.Code != l.Told.Code || kept.Message != l.Told.Message {
		w.T.Errorf("%s: the log keeps %s of message %d, want %s of %d", l.Name, kept.Error.Error(), kept.InboxSeq,
			l.Told.Error.Error(), l.Seq)
	}
}

func (w *World) kindsOf(call events.CallID) (kinds []string) {
	for _, fact := range w.chainOf(call) {
		kinds = append(kinds, strings.Fields(fact)[1])
	}
	return kinds
}

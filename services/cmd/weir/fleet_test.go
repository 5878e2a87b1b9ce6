package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// asServer in place of "1" turns the test binary into a NATS server and nothing else.
const asServer = "nats-server"

// serverMain is the NATS server of a fleet, until its standard input ends: directory and address are its arguments.
func serverMain() {
	srv, err := embedded.Start(context.Background(), embedded.Options{Dir: os.Args[1], Listen: os.Args[2]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitFailed)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // any end is the end
	srv.Shutdown()
	os.Exit(0)
}

// fleet is a NATS server and copies of the services, each a process of its own as operators run them: decisions must be
// signed, and who ends is started again. What the tools do is counted in the test's process.
type fleet struct {
	t       *testing.T
	url     string
	conn    *jetstream.Conn
	gate    events.Key
	bob     *client.Client // asks for runs
	alice   *client.Client // decides, with a key
	ledger  ledger
	members []*member
}

// startFleet starts a server and so many copies of each service.
func startFleet(t *testing.T, copies int) *fleet {
	t.Helper()
	f := &fleet{t: t, url: "nats://" + freeAddress(t)}
	shop := httptest.NewServer(f.ledger.handler())
	t.Cleanup(shop.Close)
	dir := t.TempDir()
	f.member("server", asServer, filepath.Join(dir, "nats"), strings.TrimPrefix(f.url, "nats://"))
	f.provision()

	gateFile := filepath.Join(dir, "gate.nk")
	aliceKey := newKey(t)
	f.gate = newKey(t)
	f.must(jetstream.SaveKey(gateFile, f.gate))
	file := f.apply(filepath.Join(dir, defaultFile), shop.Listener.Addr().String(), aliceKey)
	f.bob = client.New(f.conn, client.Config{Principal: "bob"})
	f.alice = client.New(f.conn, client.Config{Principal: "alice", Key: &aliceKey, Wait: time.Millisecond})
	t.Cleanup(f.bob.Close)
	t.Cleanup(f.alice.Close)
	for range copies {
		f.serve(planner.Name, file, "--gate-public-key", f.gate.Public)
		f.serve(approval.Name, file, "--gate-key", gateFile)
		f.serve(toolexecutor.Name, file, "--gate-public-key", f.gate.Public, "--lease", "2s")
	}
	return f
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func newKey(t *testing.T) events.Key {
	t.Helper()
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// freeAddress asks the system for a port, which a server that is started again can have again.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// provision waits for the server and makes the streams.
func (f *fleet) provision() {
	f.t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); pause(f.t.Context(), 50*time.Millisecond) {
		if f.conn, err = jetstream.Connect(f.t.Context(), jetstream.Options{URL: f.url, Name: "test"}); err == nil {
			break
		}
	}
	f.must(err)
	f.t.Cleanup(func() { _ = f.conn.Close() })
	f.must(f.conn.Ensure(f.t.Context(), jetstream.Settings{Retention: config.DefaultRetention}))
}

// apply writes the weir.yaml of the demo, with a principal who signs, and applies it.
func (f *fleet) apply(path, shop string, alice events.Key) string {
	f.t.Helper()
	var text bytes.Buffer
	f.must(template.Must(template.New(defaultFile).Parse(demoFile)).Execute(&text,
		map[string]string{"Model": scriptedModel, "Shop": shop, "Instructions": exampleInstructions}))
	fmt.Fprintf(&text, "\nprincipals:\n  alice: {auth: key, key: %s}\n", alice.Public)
	f.must(os.WriteFile(path, text.Bytes(), 0o600))
	file, err := config.Load(path, func(string) (string, bool) { return "", false })
	f.must(err)
	_, err = config.Apply(f.t.Context(), f.conn, file, nil)
	f.must(err)
	return path
}

func (f *fleet) serve(service, file string, more ...string) {
	f.member(service, "1", append([]string{
		"serve", service, "--server", f.url, "-f", file, "--admin", "",
		"--until-input-ends",
	}, more...)...)
}

// pause waits, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// member is a process that is started again whenever it ends.
type member struct {
	name, role string
	args       []string

	mu     sync.Mutex
	cmd    *exec.Cmd
	gone   chan struct{} // closed when cmd has ended
	down   bool          // it stays away
	starts int
	stderr lastLines
}

func (f *fleet) member(name, role string, args ...string) {
	m := &member{name: name, role: role, args: args}
	f.members = append(f.members, m)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			m.live(ctx)
			pause(ctx, 20*time.Millisecond)
		}
	}()
	f.t.Cleanup(func() {
		cancel()
		m.kill()
		<-done
	})
}

// live is one life of the process. It ends with its standard input, and so with the test, however that ends.
func (m *member) live(ctx context.Context) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.CommandContext(ctx, self, m.args...)
	cmd.Env = append(os.Environ(), asProgram+"="+m.role)
	cmd.Stderr = &m.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		panic(err)
	}
	defer func() { _ = stdin.Close() }()
	m.mu.Lock()
	if m.down {
		m.mu.Unlock()
		return
	}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	m.cmd, m.gone = cmd, make(chan struct{})
	m.starts++
	m.mu.Unlock()
	_ = cmd.Wait() // whatever it ended by: it is started again
	close(m.gone)
}

// kill ends the process at once, as SIGKILL does.
func (m *member) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Kill() // it may have ended already
	}
}

// killAll kills every process, and starts them again when all are gone.
func (f *fleet) killAll() {
	for _, m := range f.members {
		m.mu.Lock()
		m.down = true
		m.mu.Unlock()
		m.kill()
	}
	for _, m := range f.members {
		<-m.gone
	}
	for _, m := range f.members {
		m.mu.Lock()
		m.down = false
		m.mu.Unlock()
	}
}

// killRandom kills so many processes one after the other, each chosen by chance.
func (f *fleet) killRandom(n int, every time.Duration) {
	for range n {
		pause(f.t.Context(), every)
		f.members[rand.IntN(len(f.members))].kill()
	}
}

// tell logs what became of the processes: how often each was started, and why those ended that nobody killed.
func (f *fleet) tell() {
	for _, m := range f.members {
		m.mu.Lock()
		starts := m.starts
		m.mu.Unlock()
		words := m.stderr.String()
		f.t.Logf("%s: started %d times; its last words: %s", m.name, starts, words[max(len(words)-300, 0):])
	}
	letters, err := f.conn.ListDead(f.t.Context(), 0, 100)
	f.t.Logf("dead letters: %v, %v", letters, err)
}

// story is what the log and the store say about a run.
func (f *fleet) story(run string) string {
	var b strings.Builder
	state, head, err := f.conn.RunState(f.t.Context(), run)
	fmt.Fprintf(&b, "at %s of %s, %v", head.Place.Subject(), head.Time.Format(time.TimeOnly), err)
	if state == nil {
		return b.String()
	}
	for _, c := range state.Calls {
		id, err := events.CallOf(run, c.C)
		f.must(err)
		last, err := f.conn.Last(f.t.Context(), f.conn.Namespace().Call(id, events.KindResult).Chain())
		fmt.Fprintf(&b, "; call %s at %s of %s, %v", c.C, last.Place.Subject(), last.Time.Format(time.TimeOnly), err)
	}
	asks, _, err := f.alice.Asks(f.t.Context(), client.Filter{Run: run})
	fmt.Fprintf(&b, "; %d asks open, %v", len(asks), err)
	return b.String()
}

// request asks for a run until that is acknowledged. The same id means the same run, however often it is asked for.
func (f *fleet) request(ctx context.Context) (string, error) {
	id := events.NewID(time.Now())
	for {
		_, err := f.bob.Start(ctx, client.Request{Agent: exampleAgent, Prompt: demoPrompt, RunID: id})
		if err == nil || ctx.Err() != nil {
			return id, err
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// refundOf is the call of a run that is held: the lookup is the first turn.
func refundOf(run string) events.CallID { return events.CallID{Run: run, Step: 2, Index: 1} }

// decide approves what is held, and declines what is in doubt, as long as ctx lasts. It may meet a server that is away,
// and it may decide twice.
func (f *fleet) decide(ctx context.Context) {
	tried := map[string]time.Time{}
	for ; ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		asks, _, err := f.alice.Asks(ctx, client.Filter{})
		if err != nil {
			continue
		}
		for _, a := range asks {
			key := fmt.Sprint(a.ToolCallID, a.Round)
			if time.Since(tried[key]) < 3*time.Second {
				continue
			}
			if f.decideOne(ctx, a) == nil {
				tried[key] = time.Now()
			}
		}
	}
}

// decideOne publishes a signed decision, and does not wait for what becomes of it.
func (f *fleet) decideOne(ctx context.Context, a events.OpenAsk) error {
	d := client.Decision{Decision: events.Approve, ToolCallID: a.ToolCallID, Fingerprint: a.Fingerprint, Round: &a.Round}
	if a.Kind == events.AskInDoubt {
		d.Decision, d.Reason = events.Decline, "looked it up"
	}
	_, err := f.alice.Decide(ctx, d)
	return err
}

// awaitEnds waits until all runs have ended, and returns those that have not.
func (f *fleet) awaitEnds(runs []string, within time.Duration) (open []string) {
	open = runs
	for end := time.Now().Add(within); len(open) > 0 && time.Now().Before(end); pause(f.t.Context(), 200*time.Millisecond) {
		var left []string
		for _, run := range open {
			if _, err := f.conn.Fact(f.t.Context(), f.conn.Namespace().End(run)); err != nil {
				left = append(left, run)
			}
		}
		open = left
	}
	return open
}

// awaitNoEntries waits until no run counts as suspended. What is still there then is for check to tell.
func (f *fleet) awaitNoEntries() {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); pause(f.t.Context(), 200*time.Millisecond) {
		if page, err := f.alice.Suspended(f.t.Context(), client.Filter{}); err == nil && page.Total == 0 {
			return
		}
	}
}

// check demands that every run completed, that each refund that the log calls done was paid once and no other more than
// once, and every invariant of the log.
func (f *fleet) check(runs []string) jetstreamtest.Report {
	f.t.Helper()
	ns, paid := f.conn.Namespace(), f.ledger.all()
	for _, run := range runs {
		end := f.last(ns.End(run))
		d, err := events.Data[events.RunEnded](end)
		f.must(err)
		if d.Outcome != events.RunCompleted {
			f.t.Errorf("run %s ended as %s: %v", run, d.Outcome, d.Error)
			continue
		}
		call := refundOf(run)
		r, err := events.Data[events.CallFinished](f.last(ns.Call(call, events.KindResult)))
		f.must(err)
		n := paid[call.String()]
		if n > 1 || r.Outcome == events.OutcomeOK && n != 1 {
			f.t.Errorf("call %s is %s, and was paid %d times", call, r.Outcome, n)
		}
		if r.Outcome != events.OutcomeOK && r.Outcome != events.OutcomeDeclined {
			f.t.Errorf("call %s ended as %s: %v", call, r.Outcome, r.Error)
		}
	}
	public, err := publicKeys(f.gate.Public)
	f.must(err)
	return jetstreamtest.Check(f.t, f.conn, jetstreamtest.CheckOptions{GateKeys: public, Effects: paid, Settled: true})
}

func (f *fleet) last(p events.Place) events.Event {
	f.t.Helper()
	e, err := f.conn.Fact(f.t.Context(), p)
	if err != nil {
		f.t.Fatalf("%s: %v", p.Subject(), err)
	}
	return e
}

// paying is half the time that a refund takes.
const paying = 25 * time.Millisecond

// ledger is the world outside: a shop that counts refunds by the call that asks for them.
type ledger struct {
	mu   sync.Mutex
	paid map[string]int
}

func (l *ledger) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders", func(w http.ResponseWriter, r *http.Request) {
		writeReply(w, map[string]any{"orderId": r.URL.Query().Get("orderId"), "amount": 612.5})
	})
	mux.HandleFunc("POST /refunds", func(w http.ResponseWriter, r *http.Request) {
		pause(r.Context(), paying) // time to be killed in: before the effect, which then happens all the same,
		l.pay(r.Header.Get("weir-tool-call-id"))
		pause(r.Context(), paying) // and after it
		writeReply(w, json.RawMessage(`{"refundId":"rf-1"}`))
	})
	return mux
}

func (l *ledger) pay(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paid == nil {
		l.paid = map[string]int{}
	}
	l.paid[call]++
}

func (l *ledger) all() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.paid)
}

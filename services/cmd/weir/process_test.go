package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// program calls the program as processes of their own, in one folder and one environment.
type program struct {
	t   *testing.T
	dir string
	env []string
}

func newProgram(t *testing.T, env ...string) *program {
	t.Helper()
	dir := t.TempDir()
	return &program{t: t, dir: dir, env: append([]string{
		asProgram + "=1", "HOME=" + dir, "WEIR_PRINCIPAL=alice",
		"PATH=" + os.Getenv("PATH"),
	}, env...)}
}

func (p *program) file(name, content string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *program) command(args ...string) *exec.Cmd {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.CommandContext(p.t.Context(), self, args...)
	cmd.Dir, cmd.Env = p.dir, p.env
	return cmd
}

// run runs a command to its end and returns what it wrote on its standard output.
func (p *program) run(code int, args ...string) string {
	p.t.Helper()
	var out, errs bytes.Buffer
	cmd := p.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		p.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("weir %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out.String(), errs.String())
	}
	return out.String()
}

// serving is a process that runs until it is told to stop.
type serving struct {
	cmd  *exec.Cmd
	out  chan string // its lines
	errs *lastLines
}

var healthURL = regexp.MustCompile(`http://\S+/readyz`)

// start starts a process and waits until it says that it is ready. It is stopped at the end of the test at the latest.
func (p *program) start(args ...string) *serving {
	p.t.Helper()
	s := &serving{cmd: p.command(args...), out: make(chan string, 64), errs: &lastLines{}}
	s.cmd.Stderr = s.errs
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	go func() {
		defer close(s.out)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			s.out <- lines.Text()
		}
	}()
	p.ready(s)
	return s
}

func (p *program) ready(s *serving) {
	p.t.Helper()
	for line := range s.out {
		if url := healthURL.FindString(line); url != "" {
			p.awaitOK(url)
			return
		}
	}
	p.t.Fatalf("%v ended: %s", s.cmd.Args, s.errs)
}

func (p *program) awaitOK(url string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 30*time.Second)
	defer cancel()
	status := ""
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			p.t.Fatal(err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if status = resp.Status; resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	p.t.Fatalf("%s is not ready: %s", url, status)
}

// stop asks a process to end, and returns what it still wrote. It must end as done.
func (p *program) stop(s *serving, how os.Signal) string {
	p.t.Helper()
	if err := s.cmd.Process.Signal(how); err != nil {
		p.t.Fatal(err)
	}
	var rest strings.Builder
	for line := range s.out {
		rest.WriteString(line + "\n")
	}
	if err := s.cmd.Wait(); err != nil {
		p.t.Fatalf("%v: %v: %s", s.cmd.Args, err, s.errs)
	}
	return rest.String()
}

const processFile = `
models:
  scripted/clerk:
    playbook:
      rules:
        - {when: {before: [note]}, calls: [{tool: note, args: {text: "{{.user}}"}}]}
        - {say: "Noted: {{text .results.note}}"}
agents:
  clerk: {model: scripted/clerk, tools: [note]}
tools:
  note:
    description: Write something down
    effect: effectful
    requireApproval: true
    inputSchema: {type: object, properties: {text: {type: string}}, required: [text], additionalProperties: false}
    exec: {command: [tee, -a, notes]}
principals:
  alice: {auth: key, key: %s}
`

// Each service is a process of its own; a decision counts only with its sender's signature; and what the tool does is done
// once.
func TestServicesAreProcesses(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "NATS_URL="+jetstreamtest.StartListening(t).ClientURL())
	gate := strings.TrimSpace(p.run(exitDone, "keys", "new", "gate.nk"))
	alice := strings.TrimSpace(p.run(exitDone, "keys", "new", "alice.nk"))
	p.run(exitFailed, "keys", "new", "gate.nk") // never replaced
	p.file("weir.yaml", fmt.Sprintf(processFile, alice))
	p.run(exitFailed, "serve", "planner", "--gate-public-key", gate, "--admin", "") // no streams yet
	p.run(exitDone, "stream", "provision")
	p.run(exitDone, "apply")
	p.run(exitUsage, "serve", "approval", "--admin", "")      // no key
	p.run(exitUsage, "serve", "tool-executor", "--admin", "") // no gate
	p.run(exitUsage, "serve", "planner", "--admin", "")       // no gate
	admin := "127.0.0.1:0"
	services := []*serving{
		p.start("serve", "planner", "--gate-public-key", gate, "--admin", admin),
		p.start("serve", "approval", "--gate-key", "gate.nk", "--admin", admin),
		p.start("serve", "tool-executor", "--gate-public-key", gate, "--admin", admin),
	}
	p.run(exitSuspended, "run", "clerk", "buy milk", "--run-id", "milk")
	p.run(exitRefused, "approvals", "approve", "milk=1-1") // unsigned
	p.run(exitDone, "approvals", "approve", "milk=1-1", "--sign-key", "alice.nk", "--gate-keys", gate)
	out := p.run(exitDone, "runs", "watch", "milk")
	if !strings.Contains(out, "Noted: ") {
		t.Errorf("the run said %q", out)
	}
	notes, err := os.ReadFile(filepath.Join(p.dir, "notes"))
	if err != nil || string(notes) != `{"text":"buy milk"}` {
		t.Errorf("noted %s (%v)", notes, err)
	}
	p.run(exitDone, "doctor", "--gate-public-key", gate)
	for _, s := range services {
		p.stop(s, syscall.SIGTERM)
	}
	p.run(exitFailed, "doctor") // nobody is left
}

// What was open when weir dev was stopped goes on when it is started again.
func TestDevGoesOn(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	dev := []string{"dev", "--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--sync", "always"}
	first := p.start(dev...)
	p.run(exitSuspended, "run", "support", "Refund order 1042", "--run-id", "refund", "--server", p.server(first))
	if rest := p.stop(first, os.Interrupt); !strings.Contains(rest, "weir dev: stopped") {
		t.Errorf("its last words are %q", rest)
	}
	second := p.start(dev...)
	server := p.server(second)
	p.run(exitDone, "approvals", "approve", "refund=2-1", "--server", server)
	out := p.run(exitDone, "runs", "watch", "refund", "--server", server)
	if !strings.Contains(out, "Order 1042 was refunded") {
		t.Errorf("the run said %q", out)
	}
	p.stop(second, syscall.SIGTERM)
}

// server is the URL in the lines that weir dev wrote after the first ones.
func (p *program) server(s *serving) string {
	p.t.Helper()
	for line := range s.out {
		if _, url, ok := strings.Cut(line, "--server "); ok {
			url, _, _ = strings.Cut(url, " ")
			return url
		}
	}
	p.t.Fatalf("no URL: %s", s.errs)
	return ""
}

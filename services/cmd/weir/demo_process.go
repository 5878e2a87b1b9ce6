package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
)

// processGrace is how long a process of the demo may take to end once it was asked to.
const processGrace = 2 * time.Second

// process is another process of this program. It ends when its standard input does, and so never outlives this one.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr lastLines
	ended  chan struct{}
	killed atomic.Bool
	err    error // once it has ended
}

// startProcess starts this program with other arguments. Each line that it writes is given to say, which may be nil.
func startProcess(ctx context.Context, name string, say func(p *process, line string), args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.CommandContext(ctx, self, append(args, "--until-input-ends")...), ended: make(chan struct{})} //nolint:gosec // this program
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.stdin, p.cmd.Stderr = stdin, &p.stderr
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if say != nil {
				say(p, lines.Text())
			}
		}
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// ID is the number that the system gave it.
func (p *process) ID() int { return p.cmd.Process.Pid }

// Kill ends it at once, without a word of warning, and waits until it is gone.
func (p *process) Kill() error {
	p.killed.Store(true)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.ended
	return nil
}

// Stop asks it to end, and kills it when it does not.
func (p *process) Stop() {
	p.killed.Store(true)
	_ = p.stdin.Close() // it has ended already
	select {
	case <-p.ended:
	case <-time.After(processGrace):
		_ = p.Kill() // it has ended meanwhile
	}
}

var errEnded = errors.New("without an error")

// Failed is what a process said that ended although nobody asked it to.
func (p *process) Failed() error {
	if p.killed.Load() {
		return nil
	}
	return fmt.Errorf("%s (process %d) ended by itself: %s: %w", p.name, p.ID(), p.stderr.String(), cmp.Or(p.err, errEnded))
}

// lastLines keeps the end of what was written. It may be used by several goroutines.
type lastLines struct {
	mu   sync.Mutex
	text []byte
}

// Write never fails.
func (l *lastLines) Write(b []byte) (int, error) {
	const most = 2000
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	if n := len(l.text) - most; n > 0 {
		l.text = append(l.text[:0], l.text[n:]...)
	}
	return len(b), nil
}

// String is the end of what was written.
func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.text))
}

// defineTied adds the flag that ties a process to its standard input.
func defineTied(cmd *cobra.Command, tied *bool) {
	const name = "until-input-ends"
	cmd.Flags().BoolVar(tied, name, false, "end when the standard input does")
	_ = cmd.Flags().MarkHidden(name) // it is there: it was added above
}

// untilInputEnds ends a context when the standard input does: a process that another one started for itself ends with
// it, however that one ends.
func untilInputEnds(ctx context.Context, stdin io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // any end is the end
		cancel()
	}()
	return ctx, cancel
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/internal/config"
)

const (
	// relist is how often what waits is listed again: news may be lost, and nobody hears that they are.
	relist = time.Minute
	// maxProgramOutput bounds what a program may say about one ask.
	maxProgramOutput = 1 << 20
	// maxBackoff bounds the time between two tries of a program.
	maxBackoff = time.Minute
)

// execOptions are the flags that pipe asks to a program.
type execOptions struct {
	command  string
	args     []string
	env      []string
	decide   bool
	once     bool
	parallel int
	retries  int
	timeout  time.Duration
	backoff  time.Duration
}

func (o *execOptions) define(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringVar(&o.command, "exec", "", "program to run for each ask, with the ask as JSON on its standard input")
	set.BoolVar(&o.decide, "decide", false, "let the program decide, by what it prints")
	set.BoolVar(&o.once, "once", false, "only what waits now, then end")
	set.IntVar(&o.parallel, "parallel", 1, "how many asks the program is run for at a time")
	set.IntVar(&o.retries, "retries", 3, "how often a program that fails is run again for the same ask")
	set.DurationVar(&o.timeout, "exec-timeout", 30*time.Second, "how long the program may take")
	set.DurationVar(&o.backoff, "backoff", time.Second, "how long to wait before the first retry; twice as long before each further one")
	set.StringArrayVar(&o.env, "env", nil, "name of a variable that the program gets too; may be repeated")
}

func (o execOptions) check() error {
	switch {
	case o.command == "" && (o.decide || len(o.args) > 0):
		return usagef("which program? Say --exec CMD, and its arguments after it")
	case o.parallel < 1 || o.parallel > 100:
		return usagef("--parallel %d: use 1 to 100", o.parallel)
	case o.retries < 0:
		return usagef("--retries %d: use 0 or more", o.retries)
	case o.timeout <= 0 || o.backoff <= 0:
		return usagef("--exec-timeout and --backoff are spans of time")
	}
	return nil
}

// askRunner runs a program for each ask that a filter chooses, those that wait first. In one process it does so once for
// each form of an ask: again only when more people may decide it, or people are reminded of it.
type askRunner struct {
	a      *app
	client *client.Client
	filter client.Filter
	o      execOptions
	env    []string
	asks   askQueue

	mu      sync.Mutex // of what is written, and of skipped
	skipped int
}

func (a *app) execAsks(ctx context.Context, c *client.Client, f client.Filter, o execOptions) error {
	r := &askRunner{a: a, client: c, filter: f, o: o, env: passed(a.lookup, o.env)}
	r.asks.more = make(chan struct{}, 1)
	if err := r.run(ctx); err != nil {
		return err
	}
	if r.skipped > 0 {
		return &exit{exitFailed, fmt.Errorf("the program failed for %s, which %s not handled", counted(r.skipped, "ask"),
			map[bool]string{true: "was", false: "were"}[r.skipped == 1])}
	}
	return nil
}

func (r *askRunner) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	hearing := make(chan error, 1)
	if r.o.once {
		if err := r.list(ctx); err != nil {
			return err
		}
		r.asks.close()
		hearing <- nil
	} else {
		news, err := r.client.WatchAsks(ctx) // before it is listed, so that nothing is missed
		if err != nil {
			return err
		}
		go func() { hearing <- r.hear(ctx, news) }()
	}
	var workers sync.WaitGroup
	for range r.o.parallel {
		workers.Go(func() {
			for ask, ok := r.asks.next(ctx); ok; ask, ok = r.asks.next(ctx) {
				r.handle(ctx, ask)
			}
		})
	}
	workers.Wait()
	stop()
	return <-hearing
}

// list adds what waits. Who may not read the log hears only what comes.
func (r *askRunner) list(ctx context.Context) error {
	if r.a.liveOnly {
		return nil
	}
	asks, _, err := r.client.Asks(ctx, r.filter)
	for _, ask := range asks {
		r.asks.add(askJob{id: ask.ToolCallID, form: formOf(ask)})
	}
	return err
}

// hear adds what comes, until ctx ends, and lists what waits again and again. An error at the beginning is one; later ones
// are told.
func (r *askRunner) hear(ctx context.Context, news func(func(client.AskEvent) bool)) error {
	defer r.asks.close()
	if err := r.list(ctx); err != nil {
		return err
	}
	var listing sync.WaitGroup
	defer listing.Wait()
	listing.Go(func() {
		tick := time.NewTicker(relist)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := r.list(ctx); err != nil && ctx.Err() == nil {
				r.say("what waits cannot be listed: %v", err)
			}
		}
	})
	for n := range news {
		switch {
		case n.Answer != nil:
			r.asks.forget(n.Answer.ToolCallID)
		case n.Ask != nil && r.filter.Takes(*n.Ask):
			r.asks.add(askJob{id: n.Ask.ToolCallID, form: formOf(n.Ask.Open()), heard: n.Ask})
		}
	}
	return nil
}

// handle runs the program for one ask until it succeeds, or has failed too often.
func (r *askRunner) handle(ctx context.Context, job askJob) {
	ask := job.heard
	if !r.a.liveOnly {
		var err error
		ask, err = r.client.Ask(ctx, job.id)
		if err != nil { // mostly: it was decided in between
			if code := events.CodeOf(err); code != events.CodeAlreadyDecided && code != events.CodeNotFound && ctx.Err() == nil {
				r.skip(job.id, err)
			}
			return
		}
	}
	wait := r.o.backoff
	for try := 0; ; try++ {
		said, err := r.program(ctx, ask)
		if err == nil {
			err = r.take(ctx, ask, said)
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case try == r.o.retries:
			r.skip(job.id, err)
			return
		}
		r.say("%s: %v; again in %v", job.id, err, wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, maxBackoff)
	}
}

// skip gives an ask up, loudly. It waits on for people.
func (r *askRunner) skip(id string, err error) {
	r.mu.Lock()
	r.skipped++
	r.mu.Unlock()
	r.say("%s: SKIPPED: %v; the call still waits: weir approvals info %s", id, err, id)
}

// say tells whoever looks after the process, always.
func (r *askRunner) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintln(r.a.err, "weir:", plain(fmt.Sprintf(format, args...))) // nobody is left to tell
}

// program runs the program once, and gives what it printed.
func (r *askRunner) program(ctx context.Context, ask *events.CallHeld) ([]byte, error) {
	in, err := events.Marshal(ask)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.o.command, r.o.args...) //nolint:gosec // the user names it; nothing of the ask is in it
	var out bounded
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(in, '\n')), &out, lockedWriter{&r.mu, r.a.err}
	cmd.Env = append(slices.Clip(r.env), about(ask)...)
	cmd.WaitDelay = time.Second
	ownGroup(cmd)
	err = cmd.Run()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("the program took longer than %v", r.o.timeout)
	case out.full:
		return nil, fmt.Errorf("the program printed more than %d bytes", maxProgramOutput)
	case err != nil:
		return nil, fmt.Errorf("the program failed: %w", err)
	}
	return out.Bytes(), nil
}

// programDecision is what a program prints to decide.
type programDecision struct {
	Decision   events.Decision `json:"decision"`
	Reason     string          `json:"reason"`
	Args       json.RawMessage `json:"args"`
	Result     json.RawMessage `json:"result"`
	ResumeData json.RawMessage `json:"resumeData"`
}

// take passes on what a program printed, or decides as it says. A refused decision is told and not tried again; the program
// may be asked about the call's next round.
func (r *askRunner) take(ctx context.Context, ask *events.CallHeld, said []byte) error {
	if !r.o.decide {
		r.mu.Lock()
		defer r.mu.Unlock()
		_, err := r.a.out.Write(said)
		return err
	}
	if len(bytes.TrimSpace(said)) == 0 {
		return nil // it leaves the call to others
	}
	var d programDecision
	dec := json.NewDecoder(bytes.NewReader(said))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return fmt.Errorf("what the program printed is no decision: %w", err)
	}
	if dec.More() {
		return errors.New("what the program printed is more than one decision")
	}
	out, err := r.client.Decide(ctx, client.Decision{
		Decision: d.Decision, ToolCallID: ask.ToolCallID, Round: &ask.Round, Fingerprint: ask.Fingerprint, Reason: d.Reason,
		Args: d.Args, Result: d.Result, ResumeData: d.ResumeData,
	})
	if err != nil && r.a.exitCode(err) != exitRefused && events.CodeOf(err) != events.CodeInvalidRequest {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.a.tellOutcome(outcome{id: ask.ToolCallID, out: out, err: err})
}

// passed are the variables that a program gets of this process: what programs need to run at all, and what is named. What
// connects to the bus is not among them.
func passed(lookup config.Lookup, named []string) []string {
	var env []string
	for _, name := range append([]string{"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT"}, named...) {
		if v, ok := lookup(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// about are the variables that name the ask. Names are shown as they would be on a screen.
func about(ask *events.CallHeld) []string {
	return []string{
		"WEIR_TOOL_CALL_ID=" + ask.ToolCallID, "WEIR_RUN_ID=" + ask.RunID, "WEIR_ROOT_RUN_ID=" + ask.RootRunID,
		"WEIR_ROUND=" + strconv.Itoa(ask.Round), "WEIR_KIND=" + oneLine(string(ask.Kind)), "WEIR_FINGERPRINT=" + oneLine(ask.Fingerprint),
		"WEIR_TOOL_NAME=" + oneLine(ask.ToolName), "WEIR_AGENT_ID=" + oneLine(ask.AgentID), "WEIR_THREAD_ID=" + oneLine(ask.ThreadID),
		"WEIR_EXPIRES_AT=" + ask.ExpiresAt.UTC().Format(time.RFC3339),
	}
}

// askJob is an ask that a program is to be run for.
type askJob struct {
	id, form string
	heard    *events.CallHeld // nil: read it
}

// formOf tells the forms of an ask from each other: its round, and what its repetitions change.
func formOf(a events.OpenAsk) string {
	return strings.Join([]string{strconv.Itoa(a.Round), strconv.Itoa(a.Reminders), strconv.Itoa(len(a.EscalatedTo))}, " ")
}

// askQueue holds jobs in their order, each form of an ask once.
type askQueue struct {
	mu     sync.Mutex
	jobs   []askJob
	seen   map[string]string // form, by toolCallId, until the call is decided
	closed bool
	more   chan struct{} // has one entry when there may be something
}

func (q *askQueue) add(job askJob) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.seen[job.id] == job.form {
		return
	}
	if q.seen == nil {
		q.seen = map[string]string{}
	}
	q.seen[job.id] = job.form
	q.jobs = append(q.jobs, job)
	q.wake()
}

func (q *askQueue) forget(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.seen, id)
}

func (q *askQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.wake()
}

func (q *askQueue) wake() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// next waits for a job; none when the queue is closed and empty, or ctx ends.
func (q *askQueue) next(ctx context.Context) (askJob, bool) {
	for {
		q.mu.Lock()
		if len(q.jobs) > 0 {
			job := q.jobs[0]
			q.jobs = q.jobs[1:]
			q.wake() // there may be another one for another worker
			q.mu.Unlock()
			return job, ctx.Err() == nil
		}
		if q.closed {
			q.wake()
			q.mu.Unlock()
			return askJob{}, false
		}
		q.mu.Unlock()
		select {
		case <-ctx.Done():
			return askJob{}, false
		case <-q.more:
		}
	}
}

// bounded keeps what is written, up to a bound.
type bounded struct {
	bytes.Buffer
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxProgramOutput {
		b.full = true
		return len(p), nil // it may go on; nothing of it counts
	}
	return b.Buffer.Write(p)
}

// lockedWriter lets several goroutines write.
type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

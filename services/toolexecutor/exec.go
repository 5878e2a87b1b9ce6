package toolexecutor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// SourceExec is the kind of tools that are programs.
const SourceExec = "exec"

// errorExit is the name of the error of a program that failed.
const errorExit = "ExitError"

// stopGrace is how long a program may take to end once it was asked to; then its whole group is killed.
const stopGrace = 2 * time.Second

// ExecDef is a tool that is a program. It comes from the executor's own configuration, never from the bus.
type ExecDef struct {
	// Manifest says what the tool is; zero fields have their defaults.
	Manifest events.Manifest
	// Command is the program and its fixed arguments. No shell reads it, and nothing of a call is put into it. A name
	// without a slash is looked up in the PATH of the executor, once; one with a slash starts at Dir.
	Command []string
	// Dir is the working directory. Empty: the executor's.
	Dir string
	// Env is the whole environment of the program, NAME=value, beside the ids of the call.
	Env []string
	// Secrets are texts that errors must not show, such as values in Env.
	Secrets []string
}

// String leaves out environment and secrets.
func (d ExecDef) String() string { return fmt.Sprintf("exec tool %s: %q", d.Manifest.ID, d.Command) }

// GoString is String.
func (d ExecDef) GoString() string { return d.String() }

// LogValue is String.
func (d ExecDef) LogValue() slog.Value { return slog.StringValue(d.String()) }

// execTool runs a program for each call.
type execTool struct {
	outside

	def  ExecDef
	path string
}

var _ agent.Tool = (*execTool)(nil)

// NewExec makes a tool of a program: it gets the arguments as JSON on its standard input, and the environment that the
// definition gives it and WEIR_TOOL_CALL_ID (the idempotency key), WEIR_RUN_ID and WEIR_ATTEMPT. What it writes to its
// standard output is the result: JSON, or text, which becomes a string; at most 1 MiB. An exit status other than 0 is
// an error that tells the end of its standard error. When the call's context ends, it and all that it started is
// asked to end, and killed 2 s later. Nothing that it leaves running outlives the call, unless it leaves its group.
func NewExec(def ExecDef) (agent.Tool, error) {
	t := &execTool{outside: newOutside(def.Manifest, SourceExec, def.Secrets), def: def}
	var err error
	if t.path, err = t.program(); err != nil {
		return nil, fmt.Errorf("tool %s: %w", def.Manifest.ID, err)
	}
	if err := checkEnv(def.Env); err != nil {
		return nil, fmt.Errorf("tool %s: %w", def.Manifest.ID, err)
	}
	return agent.Checked(t)
}

func checkEnv(env []string) error {
	for _, variable := range env {
		if name, _, ok := strings.Cut(variable, "="); !ok || name == "" || strings.ContainsRune(variable, 0) {
			return fmt.Errorf("env: %q is not a variable", name)
		}
	}
	return nil
}

// program is the path of the program.
func (t *execTool) program() (string, error) {
	if len(t.def.Command) == 0 || t.def.Command[0] == "" {
		return "", errors.New("command: names no program")
	}
	for _, arg := range t.def.Command {
		if strings.ContainsRune(arg, 0) {
			return "", errors.New("command: has a NUL character")
		}
	}
	name := t.def.Command[0]
	if strings.ContainsRune(filepath.ToSlash(name), '/') && !filepath.IsAbs(name) {
		var err error // absolute, or the name of a program beside weir.yaml would be looked up in the PATH
		if name, err = filepath.Abs(filepath.Join(t.def.Dir, name)); err != nil {
			return "", fmt.Errorf("command: %w", err)
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("command: %w", err)
	}
	return filepath.Abs(path)
}

// Run executes one call.
func (t *execTool) Run(ctx context.Context, call *agent.Call, args json.RawMessage) (json.RawMessage, error) {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	stdout := bounded{over: func() { stop(errTooMuch) }}
	stderr := tail{}
	cmd := exec.CommandContext(running, t.path) //nolint:gosec // the operator's program, without anything of the call
	cmd.Args = t.def.Command
	cmd.Dir = t.def.Dir
	cmd.Env = slices.Concat(t.def.Env, callEnv(call))
	cmd.Stdin = bytes.NewReader(args)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = stopGrace
	ownGroup(cmd)
	cmd.Cancel = func() error { return endGroup(cmd) }
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the program was not started: %w", context.Cause(ctx))
		}
		return nil, t.failure(errorExit, nil, "the program cannot be started: ", t.quote([]byte(err.Error()), false))
	}
	err := cmd.Wait()
	killGroup(cmd) // what is left of it
	switch {
	case errors.Is(context.Cause(running), errTooMuch):
		return nil, t.failure(errorExit, nil, errTooMuch.Error())
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("the program was stopped: %w", context.Cause(ctx))
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, t.exit(err, stderr.bytes)
	}
	result, ok := textOrJSON(stdout.buf.Bytes())
	if !ok {
		return nil, t.failure(errorExit, nil, "the program wrote neither JSON nor text in UTF-8")
	}
	return result, nil
}

// callEnv are the ids of a call. They stand last in the environment, so they count.
func callEnv(call *agent.Call) []string {
	return []string{
		"WEIR_TOOL_CALL_ID=" + call.IdempotencyKey(),
		"WEIR_RUN_ID=" + call.RunID(),
		"WEIR_ATTEMPT=" + strconv.Itoa(call.Attempt()),
	}
}

// exit is the error of a program that ended badly.
func (t *execTool) exit(err error, said []byte) error {
	text, code := t.quote([]byte(err.Error()), false), -1
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	}
	if why := t.quote(said, true); why != "" {
		text += ": " + why
	}
	return t.failure(errorExit, map[string]int{"exitCode": code}, text)
}

var errTooMuch = fmt.Errorf("the program wrote more than %d bytes", maxOutput)

// bounded keeps output up to maxOutput. Once there is more it calls over and refuses the rest.
type bounded struct {
	buf  bytes.Buffer // not embedded: its ReadFrom knows no bound
	over func()
}

// Write keeps p, or refuses it.
func (b *bounded) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > maxOutput {
		b.over()
		return 0, errTooMuch
	}
	return b.buf.Write(p)
}

// tail keeps the last maxSaid bytes.
type tail struct{ bytes []byte }

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p...)
	if n := len(t.bytes) - maxSaid; n > 0 {
		t.bytes = append(t.bytes[:0], t.bytes[n:]...)
	}
	return len(p), nil
}

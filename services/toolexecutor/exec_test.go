package toolexecutor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/toolexecutor/tooltest"
)

// program is set for this test binary when it is run as the program of a tool; its value says what it does.
const program = "WEIR_TEST_PROGRAM"

// TestProgram is the program of the tools under test, when it is one.
func TestProgram(t *testing.T) {
	t.Parallel()
	what := env(program)
	if what == "" {
		return
	}
	os.Exit(behave(what))
}

func say(format string, args ...any) { _, _ = fmt.Fprintf(os.Stdout, format, args...) }

func env(name string) string { return os.Getenv(name) } //nolint:forbidigo // a program reads what it was given

func behave(what string) int {
	args, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 1
	}
	switch tooltest.Behaviour(what) {
	case tooltest.Echo:
		say("{\"args\":%s}\n", args)
	case tooltest.Key:
		say("{\"key\":%q}", env("WEIR_TOOL_CALL_ID"))
	case tooltest.Text:
		say("plain & <simple>\n")
	case tooltest.Nothing:
	case tooltest.Fail:
		say(`{"half":`)
		fmt.Fprintln(os.Stderr, "warning: hot\n"+tooltest.FailText+" token="+env("TOKEN"))
		return 3
	case tooltest.Hang:
		select {}
	case tooltest.Huge:
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat("x", 64<<10)); err != nil {
				return 1
			}
		}
	case tooltest.Broken:
		say(`{"args":7}`)
	default:
		return behaveBadly(what)
	}
	return 0
}

// behaveBadly are programs that a conformance suite does not ask of every kind.
func behaveBadly(what string) int {
	switch what {
	case "environment":
		raw, _ := json.Marshal(os.Environ())
		say("%s", raw)
	case "directory":
		dir, _ := os.Getwd()
		say("%s", dir)
	case "binary":
		say("\xff\xfe\x00")
	case "noisy":
		fmt.Fprint(os.Stderr, strings.Repeat("noise ", 1<<20), "the end says why")
		return 1
	case "killed":
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		select {}
	case "deaf": // with a child, both deaf to signals, both holding a connection that ends when they do
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		if env("CHILD") == "" {
			cmd := exec.Command(os.Args[0], os.Args[1:]...)
			cmd.Env = append(os.Environ(), "CHILD=1")
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			_ = cmd.Start()
		}
		if _, err := net.Dial("tcp", env("LISTENER")); err != nil {
			return 1
		}
		select {}
	}
	return 0
}

func testProgram(t *testing.T, what string, change func(*ExecDef)) agent.Tool {
	t.Helper()
	m := events.Manifest{ID: "prog", Description: "a program", InputSchema: json.RawMessage(`{"type":"object","additionalProperties":true}`)}
	return programTool(t, m, what, change)
}

func programTool(t *testing.T, m events.Manifest, what string, change func(*ExecDef)) agent.Tool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	def := ExecDef{
		Manifest: m,
		Command:  []string{self, "-test.run=^TestProgram$"},
		Env:      []string{program + "=" + what, "TOKEN=s3cr3t"},
		Secrets:  []string{"s3cr3t"},
	}
	if change != nil {
		change(&def)
	}
	tool, err := NewExec(def)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func aCall() *agent.Call {
	return agent.NewCall(agent.CallInfo{RunID: "run-1", ToolCallID: "run-1=1-1", ToolName: "prog", Attempt: 2})
}

func attempt(t *testing.T, tool agent.Tool, args string) agent.Attempt {
	t.Helper()
	return agent.Execute(t.Context(), tool, aCall(), json.RawMessage(args))
}

func TestExecTools(t *testing.T) {
	t.Parallel()
	tooltest.Exercise(t, func(t *testing.T, m events.Manifest, b tooltest.Behaviour) agent.Tool {
		t.Helper()
		return programTool(t, m, string(b), nil)
	})
}

func TestExecManifest(t *testing.T) {
	t.Parallel()
	m := agent.Complete(events.Manifest{ID: "x", Description: "y", Effect: events.ReadOnly, Source: events.Source{Kind: SourceExec}})
	got, _ := events.Marshal(programTool(t, m, "echo", nil).Manifest())
	want, _ := events.Marshal(m)
	if string(got) != string(want) {
		t.Errorf("a complete manifest is changed:\n%s\n%s", got, want)
	}
}

// TestExecSeesItsEnvironmentOnly: nothing of the executor's environment gets into a program.
func TestExecSeesItsEnvironmentOnly(t *testing.T) {
	t.Parallel()
	got := attempt(t, testProgram(t, "environment", nil), `{}`)
	var env []string
	if err := json.Unmarshal(got.Result, &env); err != nil {
		t.Fatalf("%s: %v", got.Result, err)
	}
	slices.Sort(env)
	env = slices.DeleteFunc(env, func(s string) bool { return strings.HasPrefix(s, "SYSTEMROOT=") }) // Windows needs it
	want := []string{"TOKEN=s3cr3t", "WEIR_ATTEMPT=2", "WEIR_RUN_ID=run-1", "WEIR_TEST_PROGRAM=environment", "WEIR_TOOL_CALL_ID=run-1=1-1"}
	if !slices.Equal(env, want) {
		t.Errorf("environment = %q, want %q", env, want)
	}
}

// TestExecInjection: arguments reach the program on its standard input, as bytes, and nothing else reads them.
func TestExecInjection(t *testing.T) {
	t.Parallel()
	marker := filepath.Join(t.TempDir(), "made-by-a-shell")
	tool := testProgram(t, "echo", nil)
	for _, evil := range []string{
		"; touch M", "&& touch M", "| touch M", "$(touch M)", "`touch M`", "\n touch M", "\x00touch M", "' ; touch M '", `" ; touch M "`,
		"--help", "-rf", "../../../../etc/passwd", "%0atouch M", "${IFS}touch${IFS}M", "%TEMP%", "~root", "*", "<M", ">M", "2>M", "\u2028touch M",
		"\u202egnp.exe", "-test.run=Other", "$'\\ntouch M'", "{touch,M}", "() { :;}; touch M", "!!", "\r\ntouch M", "\x1b]0;touch M\x07",
	} {
		evil = strings.ReplaceAll(evil, "M", marker)
		raw, err := events.Marshal(map[string]string{"x": evil, evil: "key"})
		if err != nil {
			t.Fatal(err)
		}
		args, err := events.Canonical(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := attempt(t, tool, string(args)); string(got.Result) != `{"args":`+string(args)+`}` {
			t.Errorf("%q: result = %s %+v", evil, got.Result, got.Error)
		}
	}
	if _, err := os.Stat(marker); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something read the arguments as commands: %v", err)
	}
}

// TestExecCommandIsNoShell: what looks like a shell's in the command is a plain argument.
func TestExecCommandIsNoShell(t *testing.T) {
	t.Parallel()
	_, err := NewExec(ExecDef{Manifest: events.Manifest{ID: "x", Description: "y"}, Command: []string{"echo hello; true"}})
	if err == nil {
		t.Error("a command line was taken for a program")
	}
}

func TestExecFailures(t *testing.T) {
	t.Parallel()
	tests := []struct{ what, message, details string }{
		{"fail", "exit status 3: warning: hot " + tooltest.FailText + " token=[secret]", `{"exitCode":3}`},
		{"binary", "the program wrote neither JSON nor text in UTF-8", ""},
		{"killed", "signal: killed", `{"exitCode":-1}`},
		{"huge", "the program wrote more than 1048576 bytes", ""},
	}
	for _, test := range tests {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			got := attempt(t, testProgram(t, test.what, nil), `{}`)
			if got.Error == nil || got.Error.Name != "ExitError" || got.Error.Message != test.message || string(got.Error.Details) != test.details {
				t.Errorf("error = %+v, want %s %s", got.Error, test.message, test.details)
			}
		})
	}
	got := attempt(t, testProgram(t, "noisy", nil), `{}`)
	if got.Error == nil || !strings.HasSuffix(got.Error.Message, "the end says why") || len(got.Error.Message) > 1100 {
		t.Errorf("error = %.200s, want a short one with the end", got.Error.Message)
	}
}

func TestExecDirectory(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got := attempt(t, testProgram(t, "directory", func(d *ExecDef) { d.Dir = dir }), `{}`)
	if want, _ := events.Marshal(dir); string(got.Result) != string(want) {
		t.Errorf("result = %s %+v, want %s", got.Result, got.Error, want)
	}
}

// TestExecEndsTheWholeGroup: a program and its child, both deaf to signals, are gone when the call has ended. Each
// holds a connection that the system closes when it dies.
func TestExecEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" || runtime.GOOS == "plan9" {
		return // no process groups
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	tool := testProgram(t, "deaf", func(d *ExecDef) { d.Env = append(d.Env, "LISTENER="+l.Addr().String()) })
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan agent.Attempt, 1)
	go func() { ended <- agent.Execute(ctx, tool, aCall(), json.RawMessage(`{}`)) }()
	var conns []net.Conn
	for range 2 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	stop(errors.New("enough"))
	for _, conn := range conns {
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a process of the group lives on")
		}
		_ = conn.Close()
	}
	if got := <-ended; got.Error == nil || got.Error.Name != events.ErrorCancelled {
		t.Errorf("attempt = %+v, want cancelled", got)
	}
}

func TestExecRefusesDefinitions(t *testing.T) {
	t.Parallel()
	good := events.Manifest{ID: "x", Description: "y"}
	tests := map[string]ExecDef{
		"command: names no program":   {Manifest: good},
		"command: has a NUL":          {Manifest: good, Command: []string{"true", "a\x00b"}},
		"executable file not found":   {Manifest: good, Command: []string{"no-such-program-of-weir"}},
		"no such file":                {Manifest: good, Command: []string{"./no-such-program"}, Dir: t.TempDir()},
		`env: "A" is not a variable`:  {Manifest: good, Command: []string{os.Args[0]}, Env: []string{"A"}},
		"description: is required":    {Manifest: events.Manifest{ID: "x"}, Command: []string{os.Args[0]}},
		"effect: want read_only":      {Manifest: events.Manifest{ID: "x", Description: "y", Effect: "none"}, Command: []string{os.Args[0]}},
		"inputSchema: schema: at \"/": {Manifest: events.Manifest{ID: "x", Description: "y", InputSchema: json.RawMessage(`{"type":7}`)}, Command: []string{os.Args[0]}},
	}
	for want, def := range tests {
		if _, err := NewExec(def); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
}

func TestDefinitionsPrintNoSecrets(t *testing.T) {
	t.Parallel()
	program := ExecDef{Manifest: events.Manifest{ID: "x"}, Command: []string{"p"}, Env: []string{"TOKEN=s3cr3t"}, Secrets: []string{"s3cr3t"}}
	server := HTTPDef{Manifest: events.Manifest{ID: "x"}, URL: "https://example.com", Headers: map[string]string{"K": "s3cr3t"}, Secrets: []string{"s3cr3t"}}
	for _, text := range []string{
		fmt.Sprint(program, server), fmt.Sprintf("%+v %+v", program, server), fmt.Sprintf("%#v %#v", program, server),
		program.LogValue().String(), server.LogValue().String(),
	} {
		if strings.Contains(text, "s3cr3t") {
			t.Errorf("printed: %s", text)
		}
	}
}

// TestProgramBesideTheFile: a name with a slash is a path, also where the folder is the one that the process runs in.
func TestProgramBesideTheFile(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("program", []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := events.Manifest{ID: "tool", Description: "a program"}
	for _, dir := range []string{"", "."} {
		if _, err := NewExec(ExecDef{Manifest: m, Command: []string{"./program"}, Dir: dir}); err != nil {
			t.Errorf("in %q: %v", dir, err)
		}
	}
}

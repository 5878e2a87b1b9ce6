package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err     error
		started bool
		want    int
	}{
		{nil, true, exitDone},
		{errors.New("anything"), true, exitFailed},
		{errors.New("unknown flag"), false, exitUsage},
		{usagef("wrong"), true, exitUsage},
		{&exit{code: exitSuspended}, true, exitSuspended},
		{events.Errorf(events.CodeNotFound, "no"), true, exitNotFound},
		{fmt.Errorf("deep: %w", events.Errorf(events.CodeAlreadyDecided, "no")), true, exitRefused},
		{events.Errorf(events.CodeModelFailed, "no"), true, exitFailed},
		{&exit{exitFailed, events.Errorf(events.CodeTooLarge, "how a run ended")}, true, exitFailed},
		{fmt.Errorf("connect: %w", jetstream.ErrUnavailable), true, exitFailed},
		{context.Canceled, true, exitFailed},
	}
	for _, test := range tests {
		a := &app{started: test.started}
		if got := a.exitCode(test.err); got != test.want {
			t.Errorf("exit code of %v = %d, want %d", test.err, got, test.want)
		}
	}
}

func TestErrorsArePrintedOnce(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	a := &app{stdio: stdio{err: &errs}, started: true}
	refused := events.Errorf(events.CodeInvalidData, "does not fit")
	refused.Issues = []events.Issue{{Field: "amount", Message: "want number"}}
	a.finish(refused)
	a.finish(&exit{code: exitSuspended})
	a.finish(nil)
	if got, want := errs.String(), "weir: does not fit (invalid_data)\n  amount: want number\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// What others wrote may be part of an error: it must not move the cursor.
func TestErrorsAreShownSafely(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	a := &app{stdio: stdio{err: &errs}, started: true}
	e := events.Errorf(events.CodeAmbiguous, "two\x1b[2J calls")
	e.Issues = []events.Issue{{Field: "a\rb", Message: "\u009b2J"}}
	e.Asks = []string{"r=1-1\n\x1b[A"}
	a.finish(e)
	if got, want := errs.String(), "weir: two<U+001B>[2J calls (ambiguous)\n  a<U+000D>b: <U+009B>2J\n  r=1-1 <U+001B>[A\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

func TestTerminals(t *testing.T) {
	t.Parallel()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for name, stream := range map[string]any{"null": null, "file": file, "buffer": &bytes.Buffer{}, "nothing": nil} {
		if isTerminal(stream) {
			t.Errorf("%s counts as a terminal", name)
		}
	}
	if !isTerminal(screenOf{terminal: true}) {
		t.Error("a stream that says so is no terminal")
	}
}

// Flags win over the environment, and that over the selected context of the nats command.
func TestWhereTheBusIs(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	dir := filepath.Join(home, ".config", "nats")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "context.txt"), []byte("staging\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		flags flags
		env   map[string]string
		want  jetstream.Options
	}{
		{"nothing", flags{}, nil, jetstream.Options{}},
		{"selected", flags{}, map[string]string{"HOME": home}, jetstream.Options{Context: "staging"}},
		{
			"environment",
			flags{},
			map[string]string{"HOME": home, "NATS_URL": "nats://a", "NATS_USER": "u", "NATS_PASSWORD": "p"},
			jetstream.Options{URL: "nats://a", User: "u", Password: "p"},
		},
		{
			"flag",
			flags{server: "nats://b", namespace: "tenant-1"},
			map[string]string{"NATS_URL": "nats://a", "NATS_CREDS": "c"},
			jetstream.Options{URL: "nats://b", Creds: "c", Namespace: "tenant-1"},
		},
		{"context", flags{}, map[string]string{"HOME": home, "NATS_CONTEXT": "dev"}, jetstream.Options{Context: "dev"}},
		{"tls", flags{}, map[string]string{
			"NATS_CA": "ca", "NATS_CERT": "cert", "NATS_KEY": "key", "NATS_NKEY": "n",
			"NATS_INBOX_PREFIX": "_INBOX_u",
		}, jetstream.Options{
			CA: "ca", Cert: "cert", Key: "key", NKeySeedFile: "n",
			InboxPrefix: "_INBOX_u",
		}},
	}
	for _, test := range tests {
		f := test.flags
		if err := f.readEnvironment(lookupIn(test.env)); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		got := f.options()
		if diff := cmp.Diff(fmt.Sprintf("%+v", test.want), fmt.Sprintf("%+v", got)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func lookupIn(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func TestInWhoseName(t *testing.T) {
	t.Parallel()
	for want, test := range map[string]struct {
		flags flags
		env   map[string]string
	}{
		"flag":   {flags{principal: "flag", user: "u"}, map[string]string{"WEIR_PRINCIPAL": "env", "USER": "sys"}},
		"env":    {flags{user: "u"}, map[string]string{"WEIR_PRINCIPAL": "env", "USER": "sys"}},
		"nats":   {flags{}, map[string]string{"NATS_USER": "nats", "USER": "sys"}},
		"system": {flags{}, map[string]string{"USER": "system"}},
		"":       {flags{}, nil},
	} {
		f := test.flags
		if err := f.readEnvironment(lookupIn(test.env)); err != nil || f.principal != want {
			t.Errorf("principal = %q, %v, want %q", f.principal, err, want)
		}
	}
	a := &app{}
	if cfg, err := a.clientConfig(); err == nil && cfg.Principal == "" {
		t.Error("a client without a principal")
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	var f flags
	if err := f.readEnvironment(lookupIn(map[string]string{"NATS_TIMEOUT": "3s"})); err != nil || f.timeout != 3*time.Second {
		t.Errorf("timeout = %v, %v", f.timeout, err)
	}
	f = flags{}
	if err := f.readEnvironment(lookupIn(map[string]string{"NATS_TIMEOUT": "soon"})); err == nil {
		t.Error("a bad time limit was taken")
	}
}

// What comes from models and tools must not command the terminal.
func TestControlCharactersAreShown(t *testing.T) {
	t.Parallel()
	evil := "a\x1b[2Jb\x07\r\nc\u009bd\te"
	if got, want := oneLine(evil), "a<U+001B>[2Jb<U+0007><U+000D> c<U+009B>d e"; got != want {
		t.Errorf("one line = %q, want %q", got, want)
	}
	if got, want := plain(evil), "a<U+001B>[2Jb<U+0007><U+000D>\nc<U+009B>d\te"; got != want {
		t.Errorf("plain = %q, want %q", got, want)
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	rows := func() [][]string { return [][]string{{"r1", "sup\tport"}, {"r1000", "x"}} }
	for terminal, want := range map[bool]string{
		false: "r1\tsup port\nr1000\tx\n",
		true:  "RUN    AGENT\nr1     sup port\nr1000  x\n",
	} {
		var out bytes.Buffer
		a := &app{stdio: stdio{out: screenOf{Buffer: &out, terminal: terminal}}}
		a.table([]string{"RUN", "AGENT"}, rows())
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestValuesThatPeopleType(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a": 1}`: `{"a": 1}`, ` 7 `: `7`, `null`: `null`, `"x"`: `"x"`, `Rome`: `"Rome"`, ``: `""`, `<a>`: `"<a>"`,
	} {
		if got := valueOf(text); string(got) != want || !json.Valid(got) {
			t.Errorf("value of %q = %s, want %s", text, got, want)
		}
	}
}

// Every command explains itself at length, and has a row of its own.
func TestEveryCommandTeaches(t *testing.T) {
	t.Parallel()
	a := &app{stdio: stdio{out: &bytes.Buffer{}, err: &bytes.Buffer{}, lookup: lookupIn(nil)}}
	seen := map[string]bool{}
	for _, cmd := range newRootCommand(a).Commands() {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		seen[cmd.Name()] = true
		if cmd.Long == "" && !cmd.HasSubCommands() {
			t.Errorf("weir %s has no long help", cmd.Name())
		}
		for _, sub := range cmd.Commands() {
			if sub.Long == "" && !sub.Hidden {
				t.Errorf("weir %s %s has no long help", cmd.Name(), sub.Name())
			}
		}
	}
	if len(seen) != len(commands) {
		t.Errorf("%d rows, but the commands %s", len(commands), strings.Join(slices.Sorted(maps.Keys(seen)), ", "))
	}
}

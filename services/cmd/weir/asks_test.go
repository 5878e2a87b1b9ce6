package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// hiding are characters that must not reach a screen as they are: SECURITY.md 7.
var hiding = []string{
	"\u202e", "\u2066", "\u2067", "\u2068", "\u2069", "\u200b", "\u200c", "\u200d", "\u200e", "\u200f", "\ufeff", "\x00", "\x07", "\x1b",
	"\x7f", "\u0085", "\u009b", "\U000e0041", "\ufe0f", "\u00ad", "\u2028", "\r",
}

// TestB8_30_InfoShowsWhatHides puts text that hides into every part of an ask that others write, and looks at the screen.
func TestB8_30_InfoShowsWhatHides(t *testing.T) {
	t.Parallel()
	evil := "a" + strings.Join(hiding, "b") + "c"
	raw, err := events.Marshal(map[string]string{evil: evil})
	if err != nil {
		t.Fatal(err)
	}
	preview, err := events.Marshal(events.Preview{Text: evil, Truncated: true})
	if err != nil {
		t.Fatal(err)
	}
	ask := events.CallHeld{
		ToolCallID: "r=1-1", RunID: "r", Path: []events.PathEntry{{AgentID: evil, RunID: "r"}, {AgentID: evil, RunID: "r=1-1"}},
		AgentID: evil, ThreadID: evil, ResourceID: evil, Kind: events.AskSuspended, ToolID: evil, ToolVersion: evil, ToolName: evil,
		Title: evil, Effect: events.Effect(evil), Args: raw, Fingerprint: evil,
		Reason: events.AskReason{Rule: evil, Text: evil, Error: evil}, Allowed: []events.Decision{events.Decision(evil)},
		SuspendPayload: raw, ResumeSchema: raw, Claim: &events.ClaimBrief{By: evil}, Approvers: []string{evil},
		EscalatedTo: []string{evil}, Escalate: []events.Stage{{To: []string{evil}}},
		Quorum: &events.Quorum{Need: 2, Votes: []events.VoteBrief{{Principal: evil}}}, Preview: preview,
		LastWords: &events.LastWords{Text: evil, Truncated: true, Size: 9, Digest: evil}, OnExpiry: evil, ArgsDigest: evil,
	}
	var out, errs bytes.Buffer
	a := &app{stdio: stdio{out: screenOf{Buffer: &out, terminal: true}, err: screenOf{Buffer: &errs, terminal: true}}}
	a.printAsk(a.out, ask, false)
	a.table([]string{"CALL"}, [][]string{a.askRow(ask.Open())})
	a.details(events.AskPayload{ToolName: evil, Args: raw, SuspendPayload: raw, ResumeSchema: string(raw), Ask: events.AskBrief{
		Kind: events.AskSuspended, Reason: evil, Fingerprint: evil, Preview: preview,
	}})
	a.tellHow(&client.Output{RunID: "r", Asks: []events.AskPayload{{ToolName: evil, Args: raw, Ask: events.AskBrief{Reason: evil}}}})
	if err := a.tellOutcome(outcome{id: "r=1-1", err: events.Errorf(events.CodeForbidden, "%s", evil)}); err != nil {
		t.Fatal(err)
	}
	a.json = true
	if err := a.print(ask, nil); err != nil {
		t.Fatal(err)
	}
	for _, hidden := range hiding {
		for what, text := range map[string]string{"out": out.String(), "errors": errs.String()} {
			if strings.Contains(text, hidden) {
				t.Errorf("%+q is on the screen (%s):\n%+q", hidden, what, text)
			}
		}
	}
	if n := strings.Count(out.String(), "<U+202E>"); n < 20 {
		t.Errorf("it is shown %d times:\n%s", n, out.String())
	}
	if !strings.Contains(out.String(), "the model's text; nobody has checked it") {
		t.Errorf("what the model said is not labelled:\n%s", out.String())
	}
}

// TestInfoCutsWithSizeAndDigest: what is cut says how much it is, and --full cuts nothing.
func TestInfoCutsWithSizeAndDigest(t *testing.T) {
	t.Parallel()
	args := json.RawMessage(`{"text":"` + strings.Repeat("ä", 1<<19) + `"}`)
	ask := events.CallHeld{ToolCallID: "r=1-1", Args: args, ArgsSize: len(args), ArgsDigest: events.Digest(args)}
	show := func(full bool) string {
		var out bytes.Buffer
		a := &app{stdio: stdio{out: &out, err: io.Discard}}
		a.printAsk(a.out, ask, full)
		return out.String()
	}
	named := fmt.Sprintf("%d bytes in all, %s", len(args), events.Digest(args))
	if got := show(false); len(got) > 6000 || !strings.Contains(got, "… "+named+"; --full shows them") {
		t.Errorf("cut to %d bytes:\n%.6000s", len(got), got)
	}
	if got := show(true); !strings.Contains(got, strings.Repeat("ä", 1<<19)) {
		t.Errorf("in full it has %d bytes", len(got))
	}
	if got := argsLine(args); !strings.HasSuffix(got, "… ("+named+")") || len(got) > 600 {
		t.Errorf("on a line: %s", got)
	}
}

// TestB8_30_DecideManyByWhatWasReviewed approves eleven calls by the list of the inbox, once, and again.
func TestB8_30_DecideManyByWhatWasReviewed(t *testing.T) {
	t.Parallel()
	url, _ := startStoryServer(t)
	for i := range 6 {
		callWeir(t, url, exitSuspended, "run", "clerk", "pay two", "--run-id", fmt.Sprint("r", i))
	}
	list, _ := callWeir(t, url, 0, "approvals", "ls", "--fingerprints")
	lines := strings.Split(strings.TrimSpace(list), "\n")
	if len(lines) != 12 {
		t.Fatalf("the inbox has %d calls:\n%s", len(lines), list)
	}
	input := strings.Join(lines[1:], "\n") // the first is left out after a look at it
	decide := func(code int) string {
		t.Helper()
		var out, errs bytes.Buffer
		got := run(t.Context(), []string{"approvals", "approve", "-", "--reason", "looked at"}, stdio{
			in: strings.NewReader(input), out: &out, err: &errs,
			lookup: lookupIn(map[string]string{"NATS_URL": url, "WEIR_PRINCIPAL": "alice", "XDG_CONFIG_HOME": t.TempDir()}),
		})
		if got != code {
			t.Fatalf("exit code %d, want %d:\n%s%s", got, code, out.String(), errs.String())
		}
		return out.String()
	}
	var want []string
	for _, line := range lines[1:] {
		want = append(want, line[:strings.IndexByte(line, '\t')]+": approve, released")
	}
	if got := strings.Split(strings.TrimSpace(decide(0)), "\n"); !slices.Equal(got, want) {
		t.Errorf("outcomes %q, want %q", got, want)
	}
	if again := decide(exitRefused); strings.Count(again, "was already decided") != 11 {
		t.Errorf("again: %s", again)
	}
	tooMany := slices.Repeat([]string{"x=1-1@sha256:00"}, maxAtOnce+1)
	callWeir(t, url, exitUsage, append([]string{"approvals", "approve"}, tooMany...)...)
}

// TestB8_30_WatchRunsAProgramForEachAsk has a program run for what waits and for what comes, several at a time, and lets
// it decide. Nothing is run twice.
func TestB8_30_WatchRunsAProgramForEachAsk(t *testing.T) {
	t.Parallel()
	url, _ := startStoryServer(t)
	callWeir(t, url, exitSuspended, "run", "clerk", "pay two", "--run-id", "before")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out := newLineReader()
	script := `echo "$WEIR_TOOL_CALL_ID" >> ` + filepath.Join(t.TempDir(), "seen") + `; echo '{"decision":"approve"}'`
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{
			"approvals", "watch", "--tool", "issue_refund", "--decide", "--parallel", "3", "--exec", "sh", "--", "-c", script,
		}, stdio{
			in: strings.NewReader(""), out: out, err: io.Discard,
			lookup: lookupIn(map[string]string{"NATS_URL": url, "WEIR_PRINCIPAL": "alice", "PATH": "/usr/local/bin:/usr/bin:/bin"}),
		})
	}()
	wait := func(n int) []string {
		t.Helper()
		var lines []string
		for range n {
			select {
			case line := <-out.lines:
				lines = append(lines, line)
			case <-time.After(time.Minute):
				t.Fatalf("only %q", lines)
			}
		}
		slices.Sort(lines)
		return lines
	}
	if got := wait(2); !slices.Equal(got, []string{"before=1-1: approve, released", "before=1-2: approve, released"}) {
		t.Errorf("what waited: %q", got)
	}
	callWeir(t, url, exitSuspended, "run", "clerk", "city", "--run-id", "other")
	callWeir(t, url, exitDone, "run", "clerk", "pay two", "--run-id", "after", "-d")
	if got := wait(2); !slices.Equal(got, []string{"after=1-1: approve, released", "after=1-2: approve, released"}) {
		t.Errorf("what came: %q", got)
	}
	stop()
	if code := <-ended; code != exitDone {
		t.Errorf("exit code %d", code)
	}
	if len(out.lines) > 0 {
		t.Errorf("more than was asked: %q", <-out.lines)
	}
}

// lineReader is an output whose lines can be waited for.
type lineReader struct {
	lines chan string
	rest  []byte
}

func newLineReader() *lineReader { return &lineReader{lines: make(chan string, 100)} }

func (l *lineReader) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		l.lines <- string(l.rest[:i])
		l.rest = l.rest[i+1:]
	}
}

func TestAskQueue(t *testing.T) {
	t.Parallel()
	q := askQueue{more: make(chan struct{}, 1)}
	first := events.OpenAsk{ToolCallID: "a"}
	reminded, escalated := first, first
	reminded.Reminders, escalated.EscalatedTo = 1, []string{"user:bob"}
	for _, ask := range []events.OpenAsk{first, first, reminded, reminded, escalated, {ToolCallID: "b"}, {ToolCallID: "a", Round: 1}} {
		q.add(askJob{id: ask.ToolCallID, form: formOf(ask)})
	}
	q.forget("b")
	q.add(askJob{id: "b", form: formOf(events.OpenAsk{})})
	q.close()
	var got []string
	for job, ok := q.next(t.Context()); ok; job, ok = q.next(t.Context()) {
		got = append(got, job.id+" "+job.form)
	}
	if want := []string{"a 0 0 0", "a 0 1 0", "a 0 0 1", "b 0 0 0", "a 1 0 0", "b 0 0 0"}; !slices.Equal(got, want) {
		t.Errorf("jobs %q, want %q", got, want)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := (&askQueue{more: make(chan struct{}, 1)}).next(ended); ok {
		t.Error("a job out of nothing")
	}
}

func TestDiff(t *testing.T) {
	t.Parallel()
	for _, row := range [][3]string{
		{"a b c", "a x c", "  a|- b|+ x|  c"},
		{"", "a", "- |+ a"},
		{"a b", "b", "- a|  b"},
		{"a", "a b", "  a|+ b"},
		{"a b c d", "d c b a", ""},
	} {
		a, b := strings.Split(row[0], " "), strings.Split(row[1], " ")
		got := strings.Join(diff(a, b), "|")
		if row[2] != "" && got != row[2] {
			t.Errorf("%q to %q: %q", row[0], row[1], got)
		}
		var before, after []string // what a diff says it was and is
		for _, line := range diff(a, b) {
			if line[0] != '+' {
				before = append(before, line[2:])
			}
			if line[0] != '-' {
				after = append(after, line[2:])
			}
		}
		if !slices.Equal(before, a) || !slices.Equal(after, b) {
			t.Errorf("%q to %q: %q", row[0], row[1], got)
		}
	}
	long := slices.Repeat([]string{"x"}, maxDiff+1)
	if got := diff(long, []string{"y"}); len(got) != maxDiff+2 || !regexp.MustCompile(`^\+ y$`).MatchString(got[maxDiff+1]) {
		t.Errorf("%d lines", len(got))
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
)

// Somebody watches the inbox while others ask and decide: what waits comes first, then what happens.
func TestApprovalsAreWatched(t *testing.T) {
	t.Parallel()
	url, _ := startStoryServer(t)
	env := lookupIn(map[string]string{"NATS_URL": url, "WEIR_PRINCIPAL": "alice"})
	quietly := func(want int, args ...string) {
		t.Helper()
		var said bytes.Buffer
		if code := run(t.Context(), args, stdio{in: strings.NewReader(""), out: &said, err: &said, lookup: env}); code != want {
			t.Fatalf("weir %s: exit code %d, want %d\n%s", strings.Join(args, " "), code, want, said.String())
		}
	}
	quietly(exitSuspended, "run", "clerk", "city", "--run-id", "before")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"approvals", "ls", "--watch"}, stdio{in: strings.NewReader(""), out: out, err: io.Discard, lookup: env})
		_ = out.Close() // of the pipe: it cannot fail
	}()
	lines := bufio.NewScanner(seen)
	next := func(pattern string) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the list ended: %v", lines.Err())
		}
		if !regexp.MustCompile(pattern).MatchString(lines.Text()) {
			t.Errorf("line = %q, want %s", lines.Text(), pattern)
		}
	}
	next(`^asked\tbefore=1-1\task_city\tsuspended\tclerk\t`)
	quietly(exitSuspended, "run", "clerk", "pay two", "--run-id", "after")
	next(`^asked\tafter=1-[12]\tissue_refund\tapproval\tclerk\t`)
	next(`^asked\tafter=1-[12]\tissue_refund\tapproval\tclerk\t`)
	quietly(exitDone, "approvals", "decline", "after=1-2", "--reason", "no")
	next(`^answered\tafter=1-2\tdecline\talice\tno$`)
	cancel()
	if code := <-ended; code != exitDone {
		t.Errorf("exit code %d, want %d", code, exitDone)
	}
}

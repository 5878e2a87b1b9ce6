package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

const (
	// maxAtOnce bounds the calls that one command decides.
	maxAtOnce = 100
	// decideAtOnce is how many of them are under way at a time.
	decideAtOnce = 8
)

// reviewedCall is a call, and what of it was looked at.
type reviewedCall struct {
	id          string
	fingerprint string // empty: whatever waits
}

// reviewed reads which calls are meant, and what of them. Of several each must say what was looked at, so that nobody
// decides in one go what nobody has seen.
func (a *app) reviewed(row decisionRow, args []string, f decisionFlags) ([]reviewedCall, error) {
	calls, err := a.namedCalls(row, args)
	if err != nil {
		return nil, err
	}
	if len(calls) == 1 {
		c := &calls[0]
		if c.fingerprint != "" && f.fingerprint != "" && c.fingerprint != f.fingerprint {
			return nil, usagef("two fingerprints of %s: use --fingerprint or CALL@FINGERPRINT", c.id)
		}
		if c.fingerprint == "" {
			c.fingerprint = f.fingerprint
		}
		return calls, nil
	}
	switch {
	case len(calls) == 0:
		return nil, usagef("no call is named")
	case len(calls) > maxAtOnce:
		return nil, usagef("%d calls: at most %d at once", len(calls), maxAtOnce)
	case f.fingerprint != "" || f.hasRound:
		return nil, usagef("--fingerprint and --round are for one call: of several, say CALL@FINGERPRINT")
	case f.watch:
		return nil, usagef("--watch is for one call")
	}
	return calls, checkReviewed(calls)
}

func checkReviewed(calls []reviewedCall) error {
	seen := map[string]bool{}
	for _, c := range calls {
		if _, err := events.ParseCallID(c.id); err != nil {
			return usagef("%s is no toolCallId: of several calls, each is named by its own", short(oneLine(c.id), 80))
		}
		switch {
		case c.fingerprint == "":
			return usagef(`which %s did you look at? Of several calls, say CALL@FINGERPRINT for each: see "weir approvals ls --fingerprints"`, c.id)
		case seen[c.id]:
			return usagef("%s is named twice", c.id)
		}
		seen[c.id] = true
	}
	return nil
}

// namedCalls are the calls that arguments, files and the standard input name.
func (a *app) namedCalls(row decisionRow, args []string) (calls []reviewedCall, err error) {
	for _, arg := range args {
		name, isFile := strings.CutPrefix(arg, "@")
		var more []reviewedCall
		switch {
		case row.many && arg == "-":
			more, err = readCalls("the standard input", a.in)
		case row.many && isFile:
			more, err = readCallsFile(name)
		default:
			id, fingerprint, _ := strings.Cut(arg, "@")
			more = []reviewedCall{{id, fingerprint}}
		}
		if err != nil {
			return nil, err
		}
		calls = append(calls, more...)
	}
	return calls, nil
}

func readCallsFile(name string) ([]reviewedCall, error) {
	file, err := os.Open(name) //nolint:gosec // the user names it
	if err != nil {
		return nil, usagef("%w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	return readCalls(name, file)
}

// readCalls reads a line for each call: toolCallId, blanks, fingerprint. What follows is the reviewer's, and so are empty
// lines and those that begin with #.
func readCalls(name string, in io.Reader) (calls []reviewedCall, err error) {
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		part := strings.Fields(lines.Text())
		switch {
		case len(part) == 0 || strings.HasPrefix(part[0], "#"):
		case len(part) == 1:
			return nil, usagef("%s, line %d: toolCallId, tab, fingerprint are needed", name, n)
		case len(calls) > maxAtOnce:
			return nil, usagef("%s names more than %d calls: at most so many at once", name, maxAtOnce)
		default:
			calls = append(calls, reviewedCall{part[0], part[1]})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return calls, nil
}

// decideMany makes the same decision about several calls, each for itself, and tells the outcomes in their order.
func (a *app) decideMany(ctx context.Context, c *client.Client, calls []reviewedCall, d client.Decision) error {
	outcomes := make([]chan outcome, len(calls))
	slots := make(chan struct{}, decideAtOnce)
	var deciding sync.WaitGroup
	defer deciding.Wait()
	for i, call := range calls {
		outcomes[i] = make(chan outcome, 1)
		d := d
		d.ToolCallID, d.Fingerprint = call.id, call.fingerprint
		deciding.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out, err := c.Decide(ctx, d)
			outcomes[i] <- outcome{call.id, out, err}
		})
	}
	codes := map[int]int{}
	for i := range calls {
		o := <-outcomes[i]
		if err := a.tellOutcome(o); err != nil {
			return err
		}
		codes[a.outcomeCode(o)]++
	}
	return summary(codes, len(calls))
}

// outcomeCode is the exit code that a decision would have alone.
func (a *app) outcomeCode(o outcome) int {
	if o.err == nil && o.out.State == client.StateSent {
		return exitFailed
	}
	return a.exitCode(o.err)
}

// summary is the end of a command that has told every outcome.
func summary(codes map[int]int, all int) error {
	if codes[exitDone] == all {
		return nil
	}
	for _, code := range []int{exitRefused, exitNotFound, exitUsage} {
		if codes[code] > 0 {
			return &exit{code: code}
		}
	}
	return &exit{code: exitFailed}
}

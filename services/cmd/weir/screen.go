package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// screen shows a run while it goes on: what the model says on the standard output, what it does as notes.
type screen struct {
	a     *app
	run   *client.Run
	fold  *client.Fold
	since time.Time // chunks before are known and not shown
	asks  bool      // the person is asked about calls that wait, so they are not told of them
	open  bool      // the last line of text has no end yet

	below map[string]string // what sub-agents are saying, by run

	untilIdle bool // background calls are waited for, too
	value     bool // the value that the run is asked for is shown in place of what the model says
}

func (a *app) screen(run *client.Run) *screen {
	return &screen{a: a, run: run, fold: run.Fold(), below: map[string]string{}}
}

// follow shows the run after a cursor until it ends or is suspended.
func (s *screen) follow(ctx context.Context, after uint64) (*client.Output, error) {
	for ch, err := range s.run.Follow(ctx, after, &client.FollowOptions{UntilSuspended: true, UntilIdle: s.untilIdle}) {
		if errors.Is(err, client.ErrGap) {
			s.a.note("… what came before is no longer stored")
			continue
		}
		if err != nil {
			s.endLine()
			return nil, s.a.lost(s.run, err)
		}
		s.fold.Add(ch)
		if !s.a.json && !ch.Time.Before(s.since) {
			s.show(ch)
		}
	}
	s.endLine()
	return s.fold.Output(), nil
}

// lost tells that the run goes on when it is only this process that stops.
func (a *app) lost(run *client.Run, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		a.note("\nthe run goes on: weir runs watch %s", run.ID)
	}
	return err
}

// showBelow shows a chunk of a sub-agent: what it says is a note, said at once, for the standard output is the run's.
func (s *screen) showBelow(ch events.Chunk) {
	inner, path := ch.Innermost(), ""
	for ; ch.Nested != nil; ch = *ch.Nested {
		payload(ch, func(p events.ToolOutputPayload) {
			path += oneLine(strings.TrimPrefix(p.ToolName, events.AgentPrefix)) + " "
		})
	}
	switch inner.Type {
	case events.ChunkTextDelta:
		payload(inner, func(p events.TextPayload) { s.below[inner.RunID] += p.Text })
	case events.ChunkTextEnd:
		s.note("  %s« %s", path, oneLine(s.below[inner.RunID]))
		delete(s.below, inner.RunID)
	case events.ChunkStepRetry:
		delete(s.below, inner.RunID)
	default:
		s.showDone("  "+path, inner)
	}
}

// showDone shows what a run does beside speaking, behind what says whose it is.
func (s *screen) showDone(whose string, ch events.Chunk) {
	switch ch.Type {
	case events.ChunkToolCall:
		payload(ch, func(p events.ToolCallPayload) { s.note("%s→ %s %s", whose, oneLine(p.ToolName), compact(p.Args)) })
	case events.ChunkToolResult, events.ChunkToolError, events.ChunkToolOutputDenied:
		payload(ch, func(p events.ToolResultPayload) { s.note("%s%s", whose, resultLine(ch.Type, p)) })
	case events.ChunkWarning:
		payload(ch, func(p events.WarningPayload) { s.note("%s! %s", whose, oneLine(p.Message)) })
	default: // pieces that people need not see
	}
}

// show shows one chunk.
func (s *screen) show(ch events.Chunk) {
	if ch.Nested != nil {
		s.showBelow(ch)
		return
	}
	switch ch.Type {
	case events.ChunkTextDelta:
		if !s.value {
			payload(ch, func(p events.TextPayload) { s.say(p.Text) })
		}
	case events.ChunkObjectResult:
		if s.value {
			s.say(string(ch.Payload) + "\n")
		}
	case events.ChunkTextEnd:
		s.endLine()
	case events.ChunkStepRetry:
		s.endLine()
		s.a.note("… the model broke off; it is asked once more")
	case events.ChunkBackgroundCompleted, events.ChunkBackgroundFailed, events.ChunkBackgroundCancelled:
		payload(ch, func(p events.BackgroundPayload) { s.note("%s", taskLine(p)) })
	case events.ChunkToolCallApproval, events.ChunkToolCallSuspended:
		payload(ch, func(p events.AskPayload) {
			if !s.asks {
				s.note("? %s", askLine(p))
			}
		})
	case events.ChunkAbort:
		s.note("the run was cancelled")
	case events.ChunkFinish:
		for _, run := range client.Resumes(ch) {
			s.note("run %s goes on: this is what it waited for", run)
		}
	default:
		s.showDone("", ch)
	}
}

// payload calls f with what a chunk holds; one that cannot be read is passed over.
func payload[T any](ch events.Chunk, f func(T)) {
	var p T
	if json.Unmarshal(ch.Payload, &p) == nil {
		f(p)
	}
}

func (s *screen) say(text string) {
	if text = plain(text); text == "" {
		return
	}
	_, _ = fmt.Fprint(s.a.out, text) // the reader is gone: the run does not care
	s.open = !strings.HasSuffix(text, "\n")
}

func (s *screen) note(format string, args ...any) {
	s.endLine()
	s.a.note("%s", short(fmt.Sprintf(format, args...), 200))
}

func (s *screen) endLine() {
	if s.open {
		_, _ = fmt.Fprintln(s.a.out)
		s.open = false
	}
}

func resultLine(t events.ChunkType, p events.ToolResultPayload) string {
	name := oneLine(p.ToolName)
	switch {
	case t == events.ChunkToolOutputDenied && p.Approval != nil && p.Approval.Reason != "":
		return fmt.Sprintf("✗ %s %s: %s", name, p.Outcome, oneLine(p.Approval.Reason))
	case t == events.ChunkToolOutputDenied:
		return fmt.Sprintf("✗ %s %s", name, p.Outcome)
	case t == events.ChunkToolError && p.Error != nil:
		return fmt.Sprintf("✗ %s %s: %s", name, p.Outcome, oneLine(p.Error.Message))
	case p.IsError:
		return fmt.Sprintf("✗ %s %s: %s", name, p.Outcome, compact(p.Result))
	}
	return fmt.Sprintf("✓ %s %s", name, compact(p.Result))
}

// taskLine says how a background call ended.
func taskLine(p events.BackgroundPayload) string {
	name := oneLine(p.ToolName)
	switch {
	case p.Error != nil:
		return fmt.Sprintf("✗ %s %s in the background: %s", name, p.Outcome, oneLine(p.Error.Message))
	case p.Outcome == events.OutcomeCancelled:
		return fmt.Sprintf("✗ %s cancelled in the background", name)
	}
	return fmt.Sprintf("✓ %s in the background: %s", name, compact(p.Result))
}

// waits says what a held call waits for.
var waits = map[events.AskKind]string{
	events.AskApproval:  "waits for approval",
	events.AskSuspended: "waits for data",
	events.AskInDoubt:   "is in doubt: it was started, and nobody knows whether it happened",
	events.AskClient:    "waits for its client",
	events.AskWait:      "waits for its time",
	events.AskEvent:     "waits for an event",
}

func askLine(p events.AskPayload) string {
	line := oneLine(p.ToolName) + " " + waits[p.Ask.Kind]
	switch {
	case p.Ask.Kind == events.AskSuspended && len(p.SuspendPayload) > 0:
		line += ": " + compact(p.SuspendPayload)
	case p.Ask.Reason != "":
		line += ": " + oneLine(p.Ask.Reason)
	}
	return line
}

// ending turns the end of a run, or of what can be seen of it now, into an exit code.
func (a *app) ending(out *client.Output) error {
	switch {
	case out.FinishReason == client.FinishSuspended:
		if !a.json {
			a.tellHow(out)
		}
		return &exit{code: exitSuspended}
	case out.Error != nil:
		return &exit{exitFailed, out.Error}
	case out.FinishReason == client.FinishCancelled:
		return &exit{exitFailed, fmt.Errorf("run %s was cancelled", out.RunID)}
	case out.Limit != "":
		a.note("the run stopped at its limit of %s", out.Limit)
	}
	return nil
}

// decideBy are the decisions that help names first, for each kind of ask, as they are typed.
var decideBy = map[events.AskKind][]string{
	events.AskApproval:  {"approve %s", "decline %s --reason '…'"},
	events.AskSuspended: {"resume %s --data '…'", "decline %s --reason '…'"},
	events.AskInDoubt:   {"retry %s", "respond %s --data '…'", "decline %s --reason '…'"},
	events.AskClient:    {"respond %s --data '…'"},
	events.AskEvent:     {"respond %s --data '…'"},
}

// tellHow says what a run waits for, and how to decide it.
func (a *app) tellHow(out *client.Output) {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s is suspended:\n", out.RunID)
	for _, ask := range out.Asks {
		fmt.Fprintf(&b, "  %s\n    %s\n", askLine(ask), argsLine(ask.Args))
		for _, how := range decideBy[ask.Ask.Kind] {
			fmt.Fprintf(&b, "    weir approvals "+how+"\n", ask.Ask.ToolCallID)
		}
	}
	_, _ = fmt.Fprint(a.err, b.String()) // nobody reads it
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// story is what happens: a run from its request to its end, with a held call and a killed process in the middle.
func (d *demo) story(ctx context.Context) error {
	if err := d.startExecutor(ctx); err != nil {
		return err
	}
	if !d.person {
		if err := d.startApprover(ctx); err != nil {
			return err
		}
	}
	d.tell.title("Weir demo: an agent looks orders up by itself, but a refund waits for somebody's word.")
	d.tell.line("planner, gate", "in this process, on an embedded NATS server")
	d.tell.line(toolexecutor.Name, fmt.Sprintf("process %d; its tools are requests to a shop, a small server that counts them",
		d.executor.ID()))
	d.tell.gap()
	d.tell.line(demoCustomer, demoPrompt)
	run, err := d.client.Start(ctx, client.Request{Agent: exampleAgent, Prompt: demoPrompt, ThreadID: "refund-1042"})
	if err != nil {
		return err
	}
	return d.follow(ctx, run)
}

// follow tells what happens in the run, and acts when a call is held.
func (d *demo) follow(ctx context.Context, run *client.Run) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-d.failed:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	for ch, err := range run.Follow(ctx, 0, nil) {
		if errors.Is(err, client.ErrGap) {
			continue
		}
		if err == nil {
			err = d.show(ctx, ch)
		}
		if err != nil {
			return errors.Join(context.Cause(ctx), ignoreCancelled(err))
		}
	}
	return nil
}

func ignoreCancelled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// show tells one chunk.
func (d *demo) show(ctx context.Context, ch events.Chunk) error {
	switch ch.Type {
	case events.ChunkTextDelta:
		var p events.TextPayload
		if json.Unmarshal(ch.Payload, &p) == nil {
			d.tell.speech(exampleAgent, plain(p.Text))
		}
	case events.ChunkToolResult, events.ChunkToolError, events.ChunkToolOutputDenied:
		var p events.ToolResultPayload
		if json.Unmarshal(ch.Payload, &p) == nil {
			d.tell.line(p.ToolName, howItEnded(p))
		}
	case events.ChunkToolCallApproval:
		var p events.AskPayload
		if err := json.Unmarshal(ch.Payload, &p); err != nil {
			return err
		}
		return d.held(ctx, p)
	case events.ChunkError:
		var p events.ErrorPayload
		if json.Unmarshal(ch.Payload, &p) == nil {
			return fmt.Errorf("the run failed: %s", p.Error.Message)
		}
	default:
	}
	return nil
}

// howItEnded tells how a call ended.
func howItEnded(p events.ToolResultPayload) string {
	switch {
	case p.Outcome == events.OutcomeOK:
		return fmt.Sprintf("ran with %s: %s", oneLine(string(p.Args)), oneLine(string(p.Result)))
	case p.Outcome == events.OutcomeDeclined && p.Approval != nil:
		return "did not run: declined, " + reasonOf(p.Approval.Reason)
	case p.Error != nil:
		return fmt.Sprintf("%s: %s", p.Outcome, p.Error.Message)
	}
	return string(p.Outcome)
}

func reasonOf(s string) string {
	if s == "" {
		return "without a reason"
	}
	return fmt.Sprintf("%q", s)
}

// held is the middle of the story: the executor is killed while the call is held, somebody decides while there is none,
// and another one is started.
func (d *demo) held(ctx context.Context, ask events.AskPayload) error {
	d.tell.line(ask.ToolName, fmt.Sprintf("with %s is %s: %s", oneLine(string(ask.Args)), d.tell.style(styleWarn, "HELD"),
		whyHeld(ask.Ask)))
	d.tell.gap()
	killed := d.kills == 0
	if killed {
		d.kills++
		if err := d.executor.Kill(); err != nil {
			return err
		}
		d.tell.line("demo", fmt.Sprintf("%s the tool-executor, process %d (SIGKILL): the call is in the log, not in a process",
			d.tell.style(styleBad, "killed"), d.executor.ID()))
	}
	answer, err := d.answer(ctx, ask)
	if err != nil {
		return err
	}
	if answer.Decision.Releases() {
		d.approvals++
	}
	if !killed {
		return nil
	}
	if err := d.startExecutor(ctx); err != nil {
		return err
	}
	d.tell.line("demo", fmt.Sprintf("%s another tool-executor, process %d", d.tell.style(styleGood, "started"), d.executor.ID()))
	d.tell.gap()
	return nil
}

func whyHeld(ask events.AskBrief) string {
	if ask.Reason == "" {
		return "people must approve it"
	}
	return ask.Reason
}

// answer waits for the decision: of the person at the terminal, or of the process that stands in.
func (d *demo) answer(ctx context.Context, ask events.AskPayload) (events.CallAnswered, error) {
	if d.person {
		people := client.New(d.conn, client.Config{Principal: demoApprover})
		defer people.Close()
		if err := d.app.decideOne(ctx, people, ask); err != nil {
			return events.CallAnswered{}, err
		}
	} else {
		d.tell.line(demoApprover, fmt.Sprintf("no terminal to ask at, so process %d decides: it knows NATS and nothing of Weir's services",
			d.approver.ID()))
	}
	return d.answerOf(ctx, ask)
}

// answerOf waits for the answer that counts, and until everything has been told that was said before it.
func (d *demo) answerOf(ctx context.Context, ask events.AskPayload) (events.CallAnswered, error) {
	said := d.said
	if d.person {
		said = nil
	}
	var answer events.CallAnswered
	for answer.ToolCallID == "" || said != nil {
		select {
		case a := <-d.decided:
			if a.ToolCallID == ask.ToolCallID && a.Round == ask.Ask.Round {
				answer = a
			}
		case <-said:
			said = nil
		case <-ctx.Done():
			return answer, context.Cause(ctx)
		}
	}
	return answer, nil
}

// moral says what the shop counted, and what to do next. Another number of refunds than were approved is an error.
func (d *demo) moral() error {
	_, refunds := d.shop.counts()
	if refunds != d.approvals {
		return fmt.Errorf("the shop counted %s, but %d were approved", d.counted(), d.approvals)
	}
	d.tell.gap()
	text := "nothing was refunded, as was decided."
	switch {
	case refunds == 1:
		text = "the refund was issued exactly once, although its worker was killed."
	case refunds > 1:
		text = "as often as was approved, although their worker was killed."
	case d.kills == 0:
		text = "the model did not ask for a refund."
	}
	d.tell.title(fmt.Sprintf("The shop counted %s: %s", d.counted(), text))
	d.tell.text(d.next()...)
	return nil
}

// next is what to do after the demo.
func (d *demo) next() []string {
	own := []string{"Your own agents: weir dev, and in another terminal: weir run support \"Where is order 1042?\""}
	if d.model != scriptedModel {
		return append([]string{"The model was " + d.model + "; another one: " + envModel + "=… make run"}, own...)
	}
	return slices.Concat([]string{
		"The model was a scripted one, which follows a small playbook. With a real model:",
		"  " + envKey + "=sk-… make run",
		"  " + envBaseURL + "=http://127.0.0.1:11434/v1 " + envModel + "=qwen3 make run     (Ollama, vLLM, llama.cpp, …)",
	}, own)
}

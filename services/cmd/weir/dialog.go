package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// choice is something that a person at a terminal may answer to a held call.
type choice struct {
	key, text string
	decision  events.Decision
	data      string // prompt for a value; empty: none is needed
}

// choices is the table of them; a held call offers those that it takes.
var choices = []choice{
	{"a", "approve", events.Approve, ""},
	{"r", "resume with data", events.ResumeD, "Data (JSON, else taken as text): "},
	{"t", "try again", events.Retry, ""},
	{"g", "give the result yourself", events.Respond, "Result (JSON, else taken as text): "},
	{"d", "decline", events.Decline, ""},
}

// errLeft says that a person leaves a call to others.
var errLeft = errors.New("left to others")

// decideAll asks the person at the terminal about each call that waits. It returns errLeft when one of them is left.
func (a *app) decideAll(ctx context.Context, c *client.Client, asks []events.AskPayload) error {
	var left error
	for _, ask := range asks {
		err := a.decideOne(ctx, c, ask)
		if errors.Is(err, errLeft) {
			left = err
			continue
		}
		if err != nil {
			return err
		}
	}
	return left
}

func (a *app) decideOne(ctx context.Context, c *client.Client, ask events.AskPayload) error {
	_, _ = fmt.Fprintf(a.out, "\n%s\n  %s\n", askLine(ask), argsLine(ask.Args))
	for {
		_, _ = fmt.Fprintf(a.out, "%s", question(ask))
		line, err := a.readLine(ctx)
		if err != nil {
			return err
		}
		switch line {
		case "s":
			a.details(ask)
			continue
		case "l":
			return errLeft
		}
		i := slices.IndexFunc(choices, func(o choice) bool { return o.key == line && slices.Contains(ask.Ask.Allowed, o.decision) })
		if i < 0 {
			continue
		}
		if again, err := a.decideAs(ctx, c, ask, choices[i]); err != nil || !again {
			return err
		}
	}
}

// question are the answers that a held call takes.
func question(ask events.AskPayload) string {
	var b strings.Builder
	for _, o := range choices {
		if slices.Contains(ask.Ask.Allowed, o.decision) {
			fmt.Fprintf(&b, "[%s] %s  ", o.key, o.text)
		}
	}
	return b.String() + "[s] see all of it  [l] leave it: "
}

// decideAs makes the decision that the person chose. Again says that the call still waits, and for what.
func (a *app) decideAs(ctx context.Context, c *client.Client, ask events.AskPayload, o choice) (again bool, err error) {
	d := client.Decision{
		Decision: o.decision, ToolCallID: ask.Ask.ToolCallID, Round: &ask.Ask.Round,
		Fingerprint: ask.Ask.Fingerprint,
	}
	prompt := o.data
	if o.decision == events.Decline {
		prompt = "Reason, which the model will read: "
	}
	if prompt != "" {
		_, _ = fmt.Fprint(a.out, prompt)
		text, err := a.readLine(ctx)
		if err != nil {
			return false, err
		}
		setData(&d, text)
	}
	out, err := c.Decide(ctx, d)
	switch events.CodeOf(err) {
	case events.CodeInvalidData:
		a.sayRefusal(err)
		return true, nil
	case events.CodeAlreadyDecided, events.CodeChanged, events.CodeExpired, events.CodeRunEnded:
		a.sayRefusal(err) // the run shows what became of it
		return false, nil
	default:
	}
	switch {
	case err != nil:
		return false, err
	case out.State == client.StateSent:
		a.note("sent; the gate has not answered yet")
	case out.State == client.StatePending:
		a.note("counted: %s", approvals(out.Quorum))
		return false, errLeft
	}
	return false, nil
}

func (a *app) sayRefusal(err error) {
	_, _ = fmt.Fprintf(a.out, "that did not count: %s\n", plain(err.Error()))
	if e, ok := errors.AsType[*events.Error](err); ok {
		for _, i := range untold(e) {
			_, _ = fmt.Fprintf(a.out, "  %s: %s\n", oneLine(i.Field), oneLine(i.Message))
		}
	}
}

// setData puts what a person typed where the decision has it.
func setData(d *client.Decision, text string) {
	switch d.Decision {
	case events.Decline:
		d.Reason = text
	case events.ResumeD:
		d.ResumeData = valueOf(text)
	case events.Respond:
		d.Result = valueOf(text)
	case events.Edit:
		d.Args = valueOf(text)
	default:
	}
}

// valueOf is a JSON value, or a text that is none as a JSON text.
func valueOf(text string) json.RawMessage {
	if raw := json.RawMessage(strings.TrimSpace(text)); json.Valid(raw) {
		return raw
	}
	raw, err := events.Marshal(text)
	if err != nil {
		return json.RawMessage(`""`)
	}
	return raw
}

// details shows everything that a person may want to know before deciding.
func (a *app) details(ask events.AskPayload) {
	facts(a.out, [][2]string{
		{"call", ask.Ask.ToolCallID},
		{"tool", oneLine(ask.ToolName)},
		{"reason", oneLine(ask.Ask.Reason)},
		{"expires", a.when(ask.Ask.ExpiresAt)},
		{"fingerprint", ask.Ask.Fingerprint},
	})
	p := parts{w: a.out}
	p.json("arguments", ask.Args)
	p.json("asks", ask.SuspendPayload)
	if ask.Ask.Kind != events.AskApproval {
		p.json("takes data of this schema", json.RawMessage(ask.ResumeSchema))
	}
	p.preview(ask.Ask.Preview)
}

// readLine reads what a person types. The end of the input leaves things as they are.
func (a *app) readLine(ctx context.Context) (string, error) {
	if a.lines == nil {
		a.lines = bufio.NewReader(a.in)
	}
	type typed struct {
		text string
		err  error
	}
	done := make(chan typed, 1)
	go func() { // a terminal cannot be told to stop reading; the process ends soon after
		text, err := a.lines.ReadString('\n')
		done <- typed{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case t := <-done:
		if errors.Is(t.err, io.EOF) && t.text == "" {
			_, _ = fmt.Fprintln(a.out)
			return "", errLeft
		}
		if t.err != nil && !errors.Is(t.err, io.EOF) {
			return "", t.err
		}
		return strings.TrimSpace(t.text), nil
	}
}

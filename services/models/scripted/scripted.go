// Package scripted is a model that needs no provider and no key: it follows a playbook. It is for demonstrations and
// tests, and says so when it is asked something that its playbook does not cover.
//
// A playbook is a list of rules. The first rule that fits the conversation gives the turn: a text, tool calls, or a
// failure of the provider. Texts and arguments are templates over what the patterns of the rule caught and over the
// results of tools:
//
//	{"rules": [
//	  {"when": {"user": "order (?P<order>\\d+)", "before": ["lookup_order"]},
//	   "calls": [{"tool": "lookup_order", "args": {"orderId": "{{.order}}"}}]},
//	  {"when": {"after": ["lookup_order"]},
//	   "say": "It costs {{.results.lookup_order.total}}."}
//	]}
package scripted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Model follows a playbook. It may be used by any number of turns at once; all that it remembers between them is how
// often a rule with a limited failure has failed.
type Model struct{ rules []*rule }

var _ agent.Model = (*Model)(nil)

// New makes a model of a playbook.
func New(p *Playbook) (*Model, error) {
	rules, err := compile(p)
	if err != nil {
		return nil, err
	}
	return &Model{rules: rules}, nil
}

// unscripted is said when no rule fits.
const unscripted = "I am a scripted model, not an AI: I follow a playbook, and it has nothing for what you said. " +
	"Configure a real model to get real answers."

// Stream gives the turn of the first rule that fits.
func (m *Model) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	return func(yield func(agent.ModelPart, error) bool) {
		t, err := m.turn(req)
		if err != nil {
			yield(agent.ModelPart{}, &agent.ModelError{Err: err})
			return
		}
		for _, part := range t.parts {
			if err := wait(ctx, t.delay); err != nil {
				yield(agent.ModelPart{}, err)
				return
			}
			if !yield(part, nil) {
				return
			}
		}
		if t.fail != nil {
			yield(agent.ModelPart{}, t.fail.err())
		}
	}
}

// turn is what one rule gives for one conversation.
type turn struct {
	parts []agent.ModelPart
	delay time.Duration
	fail  *Fail
}

func (m *Model) turn(req agent.ModelRequest) (*turn, error) {
	c := read(req)
	for i, r := range m.rules {
		groups, ok := r.match(c)
		if !ok {
			continue
		}
		t, err := r.turn(c.values(groups))
		if err != nil {
			return nil, fmt.Errorf("playbook: rule %d: %w", i+1, err)
		}
		t.count(req)
		if t.fail != nil {
			t.parts = t.parts[:min(t.fail.After, len(t.parts)-1)]
		}
		return t, nil
	}
	t := &turn{}
	t.say(agent.PartTextDelta, "text-0", unscripted)
	t.finish(agent.FinishStop)
	t.count(req)
	return t, nil
}

func (r *rule) turn(values map[string]any) (*turn, error) {
	t := &turn{delay: r.delay}
	if r.fails() {
		t.fail = r.Fail
	}
	think, err := r.think.write(values)
	if err != nil {
		return nil, err
	}
	t.say(agent.PartReasoningDelta, "reasoning-0", think)
	say, err := r.say.write(values)
	if err != nil {
		return nil, err
	}
	t.say(agent.PartTextDelta, "text-0", say)
	for i, c := range r.Calls {
		args, err := r.args[i](values)
		if err != nil {
			return nil, fmt.Errorf("calls: %s: %w", c.Tool, err)
		}
		cut := r.Finish == agent.FinishLength && i == len(r.Calls)-1
		t.call(i, c, args, cut)
	}
	reason := agent.FinishStop
	if len(r.Calls) > 0 {
		reason = agent.FinishToolCalls
	}
	t.finish(cmp.Or(r.Finish, reason))
	return t, nil
}

// say adds a text, one delta a word.
func (t *turn) say(kind agent.ModelPartType, id, text string) {
	for _, word := range strings.SplitAfter(text, " ") {
		if word != "" {
			t.parts = append(t.parts, agent.ModelPart{Type: kind, ID: id, Text: word})
		}
	}
}

// call adds a tool call, its arguments in small deltas. One that is cut loses the second half and its end.
func (t *turn) call(i int, c Call, args string, cut bool) {
	id := "call_" + strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec // an id, not a secret
	if c.ID != nil {
		id = *c.ID
	}
	part := agent.ModelPart{ID: "call-" + strconv.Itoa(i)}
	start := part
	start.Type, start.ToolName, start.ProviderCallID = agent.PartToolInputStart, c.Tool, id
	t.parts = append(t.parts, start)
	if cut {
		args = strings.ToValidUTF8(args[:len(args)/2], "")
	}
	for args != "" {
		delta := part
		delta.Type = agent.PartToolInputDelta
		delta.Text, args = split(args)
		t.parts = append(t.parts, delta)
	}
	if !cut {
		part.Type = agent.PartToolInputEnd
		t.parts = append(t.parts, part)
	}
}

// split takes about a dozen bytes of a text, whole characters.
func split(s string) (first, rest string) {
	const piece = 12
	if len(s) <= piece {
		return s, ""
	}
	n := piece
	for n < len(s) && !utf8.RuneStart(s[n]) {
		n++
	}
	return s[:n], s[n:]
}

func (t *turn) finish(reason agent.FinishReason) {
	t.parts = append(t.parts, agent.ModelPart{Type: agent.PartFinish, FinishReason: reason})
}

// count gives the turn its usage: a word or a piece of arguments is a token.
func (t *turn) count(req agent.ModelRequest) {
	usage := events.Usage{OutputTokens: len(t.parts) - 1}
	for _, m := range req.Messages {
		for _, p := range m.Parts {
			usage.InputTokens += 1 + len(p.Text)/4 + len(p.Args)/4
		}
	}
	usage.TotalTokens = usage.InputTokens + usage.OutputTokens
	t.parts[len(t.parts)-1].Usage = usage
}

// err is the failure as an adapter of a real provider reports it.
func (f *Fail) err() error {
	message := cmp.Or(f.Message, "scripted failure")
	return &agent.ModelError{
		Status:    f.Status,
		Retryable: f.Status == 0 || f.Status == 429 || f.Status >= 500,
		After:     time.Duration(f.RetryAfter),
		Err:       errors.New(message),
	}
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

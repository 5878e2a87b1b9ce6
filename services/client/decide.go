package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

const (
	// firstLook is after how long without an outcome the log is looked at; the wait doubles from look to look.
	firstLook = 250 * time.Millisecond
	maxLook   = 2 * time.Second
	// noteGrace is how long the note of a refusal may take after somebody else's answer was heard.
	noteGrace = 2 * time.Second
)

// Decision is what a principal says about a held call.
type Decision struct {
	Decision events.Decision

	// ToolCallID names the call. It may be left out for RunID when exactly one call of that run waits, and the user may
	// read the log.
	ToolCallID string
	RunID      string

	// Round and Fingerprint say what was looked at, so that a decision never counts for something else. At round 0 both
	// may be left out, later one is needed; an edit always needs the fingerprint.
	Round       *int
	Fingerprint string

	Reason      string              // recorded; the model reads that of a decline
	Args        json.RawMessage     // edit: the new arguments
	Result      json.RawMessage     // respond: the result
	ResumeData  json.RawMessage     // resume: data for the tool; null is a value
	ModelOutput *events.ModelOutput // respond: what the model is told in place of the result
	Grant       *events.GrantTerms  // approve: also for calls like this one
	Groups      []string            // of the principal; count only when a gateway signs
}

// DecisionOptions are what all decisions have in common; nil is the default.
type DecisionOptions struct {
	Round       *int
	Fingerprint string
	Reason      string
}

// States that a decision leads to.
const (
	StatePending  = "pending"  // a vote of several that are needed
	StateHeld     = "held"     // an edit that asks again
	StateReleased = "released" // the call runs
	StateFinished = "finished" // the call has its result
	StateSent     = "sent"     // stored, and no gate has said yet what became of it
)

// Outcome is what became of a decision.
type Outcome struct {
	Accepted   bool                `json:"accepted"`
	ToolCallID string              `json:"toolCallId"`
	Round      int                 `json:"round"`
	State      string              `json:"state,omitempty"` // empty after an edit when the user may not read the log
	Answer     *events.AnswerBrief `json:"answer,omitempty"`
	Quorum     *events.Quorum      `json:"quorum,omitempty"`
}

// MarshalJSON writes accepted as null while nobody knows.
func (o Outcome) MarshalJSON() ([]byte, error) {
	type plain Outcome
	if o.State != StateSent {
		return events.Marshal(plain(o))
	}
	return events.Marshal(struct {
		Accepted *bool `json:"accepted"`
		plain
	}{plain: plain(o)})
}

// Approve lets a call run with exactly the arguments that were asked about. The id is a toolCallId, or a run id when one
// call of the run waits.
func (c *Client) Approve(ctx context.Context, id string, o *DecisionOptions) (*Outcome, error) {
	return c.Decide(ctx, decision(events.Approve, id, o))
}

// Decline ends a call without running it; the model reads the reason.
func (c *Client) Decline(ctx context.Context, id, reason string, o *DecisionOptions) (*Outcome, error) {
	d := decision(events.Decline, id, o)
	d.Reason = reason
	return c.Decide(ctx, d)
}

// Edit lets a call run with other arguments, which go through the rules as any other's. It needs the fingerprint.
func (c *Client) Edit(ctx context.Context, id string, args json.RawMessage, o *DecisionOptions) (*Outcome, error) {
	d := decision(events.Edit, id, o)
	d.Args = args
	return c.Decide(ctx, d)
}

// Respond gives a call its result; the tool does not run.
func (c *Client) Respond(ctx context.Context, id string, result json.RawMessage, o *DecisionOptions) (*Outcome, error) {
	d := decision(events.Respond, id, o)
	d.Result = result
	return c.Decide(ctx, d)
}

// Resume gives a tool that suspended itself what it waits for.
func (c *Client) Resume(ctx context.Context, id string, data json.RawMessage, o *DecisionOptions) (*Outcome, error) {
	d := decision(events.ResumeD, id, o)
	d.ResumeData = data
	return c.Decide(ctx, d)
}

// Retry lets a call run again of which nobody knows whether it has run.
func (c *Client) Retry(ctx context.Context, id string, o *DecisionOptions) (*Outcome, error) {
	return c.Decide(ctx, decision(events.Retry, id, o))
}

func decision(kind events.Decision, id string, o *DecisionOptions) Decision {
	d := Decision{Decision: kind}
	if _, err := events.ParseCallID(id); err == nil {
		d.ToolCallID = id
	} else {
		d.RunID = id
	}
	if o != nil {
		d.Round, d.Fingerprint, d.Reason = o.Round, o.Fingerprint, o.Reason
	}
	return d
}

// Decide sends a decision and waits for what becomes of it, Config.Wait long; after that the outcome has the state sent:
// the decision is stored and will be judged, and the caller looks again. A decision that does not count is an
// *events.Error, and the call is as it was.
func (c *Client) Decide(ctx context.Context, d Decision) (*Outcome, error) {
	call, err := c.callOf(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := c.refusals.listen(ctx, c.conn, c.cfg.Principal); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also of what is heard
	w := &waiting{c: c, call: call, sent: d, answers: make(chan events.CallAnswered, 8)}
	if err := w.listen(ctx); err != nil {
		return nil, err
	}
	subject := c.ns.InDecide(c.cfg.Principal, call)
	e, err := c.request(subject, call.Run, events.DecisionRequested{
		Decision: d.Decision, ToolCallID: call.String(), Round: d.Round, Fingerprint: d.Fingerprint, Reason: d.Reason,
		Args: d.Args, Result: d.Result, ResumeData: d.ResumeData, ModelOutput: d.ModelOutput, Grant: d.Grant,
		Groups: d.Groups,
	})
	if err != nil {
		return nil, err
	}
	if err := c.send(ctx, subject, e); err != nil {
		return nil, err
	}
	w.eventID = e.ID
	return w.outcome(ctx)
}

// callOf finds the call that is meant.
func (c *Client) callOf(ctx context.Context, d Decision) (events.CallID, error) {
	if d.ToolCallID != "" {
		call, err := events.ParseCallID(d.ToolCallID)
		switch {
		case err != nil:
			return call, invalid("%v", err)
		case d.RunID != "" && d.RunID != call.Run:
			return call, invalid("call %s is not one of run %s", d.ToolCallID, d.RunID)
		}
		return call, nil
	}
	if d.RunID == "" {
		return events.CallID{}, invalid("name a call or a run")
	}
	if err := c.needsLog("deciding without naming the call"); err != nil {
		return events.CallID{}, err
	}
	info, err := c.Info(ctx, d.RunID)
	if err != nil {
		return events.CallID{}, err
	}
	switch {
	case info.Status == StatusEnded:
		return events.CallID{}, &events.Error{
			Code: events.CodeRunEnded, RunID: d.RunID,
			Message: fmt.Sprintf("run %s is over: %s", d.RunID, info.Outcome),
		}
	case len(info.Asks) == 0:
		e := events.Errorf(events.CodeNotFound, "no call of run %s waits for a decision", d.RunID)
		e.What = "call"
		return events.CallID{}, e
	case len(info.Asks) > 1:
		e := events.Errorf(events.CodeAmbiguous, "%d calls of run %s wait for a decision: name one", len(info.Asks), d.RunID)
		for _, a := range info.Asks {
			e.Asks = append(e.Asks, a.ToolCallID)
		}
		return events.CallID{}, e
	}
	return events.ParseCallID(info.Asks[0].ToolCallID)
}

// waiting is a decision on its way to an outcome.
type waiting struct {
	c       *Client
	call    events.CallID
	sent    Decision
	eventID string
	answers chan events.CallAnswered
	deaf    bool // answers cannot be heard
}

// listen hears the answers of the call until ctx ends.
func (w *waiting) listen(ctx context.Context) error {
	subject := w.c.ns.Call(w.call, events.KindAnswer).Subject()
	_, err := w.c.conn.Hear(ctx, subject, func(e events.Event) {
		if !w.c.signed(e) {
			return
		}
		a, err := events.Data[events.CallAnswered](e)
		if err != nil {
			return
		}
		select {
		case w.answers <- a:
		default: // a flood: the log says what counts
		}
	})
	if errors.Is(err, jetstream.ErrPermission) && w.c.reads() {
		w.deaf = true // notes and looks at the log will do
		return nil
	}
	return busError(err)
}

func (w *waiting) outcome(ctx context.Context) (*Outcome, error) {
	notes, done := w.c.refusals.of(w.eventID)
	defer done()
	limit := time.NewTimer(w.c.cfg.Wait)
	defer limit.Stop()
	next := firstLook
	if w.deaf {
		next /= 10
	}
	look := time.NewTimer(next)
	defer look.Stop()
	var other *events.CallAnswered
	var grace <-chan time.Time
	for {
		select {
		case note := <-notes:
			if note.refused != nil {
				return nil, note.refused
			}
			return w.pending(note.vote.Round, note.vote.Quorum), nil
		case a := <-w.answers:
			if a.EventID == w.eventID {
				return w.accepted(ctx, a), nil
			}
			if other == nil { // the refusal says more, should it arrive
				other, grace = &a, time.After(noteGrace)
			}
			if w.votedFor(a) { // unless it was an earlier vote; the log knows
				look.Reset(0)
			}
		case <-look.C:
			next = min(2*next, maxLook)
			look.Reset(next)
			if out, err := w.look(ctx); out != nil || err != nil {
				return out, err
			}
		case <-grace:
			if w.votedFor(*other) {
				return w.accepted(ctx, *other), nil
			}
			return nil, w.decided(*other)
		case <-limit.C:
			return &Outcome{ToolCallID: w.call.String(), State: StateSent}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// votedFor reports whether a vote of the client's principal for what was sent is part of an answer.
func (w *waiting) votedFor(a events.CallAnswered) bool {
	return a.Decision == w.sent.Decision && events.SameDigest(a.Fingerprint, w.sent.Fingerprint) &&
		(&events.Quorum{Votes: a.Votes}).Has(w.c.cfg.Principal)
}

// look asks the log what became of the decision; nothing when it does not say.
func (w *waiting) look(ctx context.Context) (*Outcome, error) {
	if !w.c.reads() {
		return nil, nil //nolint:nilnil // nothing is known
	}
	out, refusal, err := w.c.conn.Became(ctx, jetstream.Sent{
		Call: w.call, EventID: w.eventID, Principal: w.c.cfg.Principal, Decision: w.sent.Decision, Fingerprint: w.sent.Fingerprint,
		Genuine: w.c.signed,
	})
	switch {
	case err != nil:
		return nil, w.c.tolerate(err)
	case refusal != nil:
		return nil, refusal
	case out == nil:
		return nil, nil //nolint:nilnil // nothing is known
	}
	o := Outcome(*out)
	if o.State == "" {
		w.afterEdit(ctx, &o)
	}
	return &o, nil
}

func (w *waiting) pending(round int, q *events.Quorum) *Outcome {
	return &Outcome{Accepted: true, ToolCallID: w.call.String(), Round: round, State: StatePending, Quorum: q}
}

// decided tells a sender who was second which decision counted.
func (w *waiting) decided(a events.CallAnswered) *events.Error {
	by := cmp.Or(a.Principal, "its deadline")
	e := events.Errorf(events.CodeAlreadyDecided, "call %s was already decided: %s by %s", w.call, a.Decision, by)
	e.Answer, e.Same = brief(a), a.Principal == w.c.cfg.Principal
	return e
}

func brief(a events.CallAnswered) *events.AnswerBrief {
	return &events.AnswerBrief{
		Decision: a.Decision, Principal: a.Principal, At: a.At.Format(time.RFC3339Nano),
		Reason: a.Reason,
	}
}

func (w *waiting) accepted(ctx context.Context, a events.CallAnswered) *Outcome {
	out := &Outcome{Accepted: true, ToolCallID: w.call.String(), Round: a.Round, State: StateFinished, Answer: brief(a)}
	switch {
	case a.Decision == events.Edit:
		w.afterEdit(ctx, out)
	case a.Decision.Releases():
		out.State = StateReleased
	}
	return out
}

// afterEdit finds out what the gate made of edited arguments, within a moment: it may ask again, release or refuse them.
func (w *waiting) afterEdit(ctx context.Context, out *Outcome) {
	out.State = ""
	ctx, cancel := context.WithTimeout(ctx, noteGrace)
	defer cancel()
	for w.c.reads() {
		last, err := w.c.conn.Last(ctx, w.c.ns.Call(w.call, events.KindAnswer).Chain())
		if err != nil {
			_ = w.c.tolerate(err) // the state stays open
			return
		}
		if last.Place.Kind != events.KindAnswer {
			out.State, out.Round = stateAfter(last, out.Round)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(firstLook / 10):
		}
	}
}

func stateAfter(last events.Event, round int) (state string, next int) {
	var d struct {
		Round int `json:"round"`
	}
	if json.Unmarshal(last.Data, &d) == nil {
		round = d.Round
	}
	switch last.Place.Kind {
	case events.KindAsk:
		return StateHeld, round
	case events.KindResult:
		return StateFinished, round
	default:
		return StateReleased, round
	}
}

package client

import (
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
	// quickLook is the first of these times, and the pause between looks, where nothing can be heard.
	quickLook = 25 * time.Millisecond
	// noteGrace is how long what should be there at any moment may take: the note of a refusal after somebody else's
	// answer was heard, what the gate makes of an edit, the grant of an approval.
	noteGrace = 2 * time.Second
)

// Decision is what a principal says about a held call.
type Decision struct {
	Decision events.Decision

	// ToolCallID names the call. It may be left out for RunID when exactly one call of that run waits.
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
	StatePending  = events.DecisionPending  // a vote of several that are needed
	StateHeld     = events.DecisionHeld     // an edit that asks again
	StateReleased = events.DecisionReleased // the call runs
	StateFinished = events.DecisionFinished // the call has its result
	StateSent     = events.DecisionSent     // stored, and no gate has said yet what became of it
)

// Outcome is what became of a decision.
type Outcome = events.DecisionOutcome

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
	out, err := c.decide(ctx, d)
	if err == nil && d.Grant != nil {
		c.addGrant(ctx, out)
	}
	return out, err
}

func (c *Client) decide(ctx context.Context, d Decision) (*Outcome, error) {
	w, err := c.waitFor(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := c.refusals.listen(ctx, c.conn, c.cfg.Principal); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also of what is heard
	if err := w.listen(ctx); err != nil {
		return nil, err
	}
	subject := c.ns.InDecideRun(c.cfg.Principal, w.run)
	if w.call.Run != "" {
		subject = c.ns.InDecide(c.cfg.Principal, w.call)
	}
	w.event, err = c.request(subject, w.run, events.DecisionRequested{
		Decision: d.Decision, ToolCallID: w.id(), Round: d.Round, Fingerprint: d.Fingerprint, Reason: d.Reason,
		Args: d.Args, Result: d.Result, ResumeData: d.ResumeData, ModelOutput: d.ModelOutput, Grant: d.Grant,
		Groups: d.Groups,
	})
	if err != nil {
		return nil, err
	}
	if c.byRequest() {
		out, err := w.askGate(ctx)
		if out != nil || err != nil {
			return out, err
		}
	}
	if !w.stored {
		if err := c.send(ctx, subject, w.event); err != nil {
			return nil, err
		}
	}
	return w.outcome(ctx)
}

// waitFor says which call, or of which run the one that waits, a decision is about. Who may read the log looks for the
// call first, so that the decision names it; for others the gate finds it.
func (c *Client) waitFor(ctx context.Context, d Decision) (*waiting, error) {
	w := &waiting{c: c, run: d.RunID, said: d, until: time.Now().Add(c.cfg.Wait), answers: make(chan events.CallAnswered, 8)}
	if d.ToolCallID == "" && !c.reads() && events.IsRunID(d.RunID) {
		return w, nil
	}
	var err error
	w.call, err = c.callOf(ctx, d)
	w.run = w.call.Run
	return w, err
}

// byRequest reports whether decisions go by request. A user who may not make any is refused once.
func (c *Client) byRequest() bool { return (c.cfg.ByRequest || !c.reads()) && !c.mute.Load() }

// gateTime is how long a gate's reply is waited for. It replies within 9 s.
const gateTime = 12 * time.Second

// askGate sends the decision by request and gives what the gate says became of it. It gives nothing when no gate can say
// so (yet): then the same event is published, which is harmless, or the outcome is heard.
func (w *waiting) askGate(ctx context.Context) (*Outcome, error) {
	w.asked = true
	if w.c.mute.Load() {
		return nil, nil //nolint:nilnil // nothing is known
	}
	try, cancel := context.WithTimeout(ctx, min(gateTime, w.c.cfg.Wait))
	defer cancel()
	call := ""
	if w.call.Run != "" {
		call = w.call.Token()
	}
	var out Outcome
	err := w.c.conn.Ask(try, w.c.ns.ServiceSubject(events.VerbDecide, w.c.cfg.Principal, w.run, call), w.event, &out)
	if e, ok := errors.AsType[*events.Error](err); ok {
		switch e.Code {
		case events.CodeUnavailable, events.CodeUnknownOutcome, events.CodeInternal: // nobody knows
			return nil, nil //nolint:nilnil // nothing is known
		default:
			return nil, e
		}
	}
	switch {
	case err == nil && out.State != StateSent && out.State != "":
		return &out, nil
	case err == nil:
		w.stored = true
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, jetstream.ErrTooLarge):
		return nil, busError(err)
	default: // no gate, no right to ask it, or no reply
		if errors.Is(err, jetstream.ErrPermission) {
			w.c.mute.Store(true)
		}
		w.c.cfg.Log.DebugContext(ctx, "no gate answers a decision by request", "error", err)
	}
	return nil, nil //nolint:nilnil // nothing is known
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
	if !c.reads() {
		ask, err := c.askGate(ctx, d.RunID)
		if err != nil {
			return events.CallID{}, err
		}
		return events.ParseCallID(ask.ToolCallID)
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
		return events.CallID{}, events.NotFound("call", "no call of run %s waits for a decision", d.RunID)
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
	run     string
	call    events.CallID // zero when the decision names none
	said    Decision
	event   events.Event
	until   time.Time // when its sender waits no longer
	answers chan events.CallAnswered
	deaf    bool // answers cannot be heard
	asked   bool // a gate, by request
	stored  bool // by the gate that was asked
}

// id is the toolCallId that the decision names, if any.
func (w *waiting) id() string {
	if w.call.Run == "" {
		return ""
	}
	return w.call.String()
}

// listen hears the answers of the call until ctx ends; when the decision names none, those of every call.
func (w *waiting) listen(ctx context.Context) error {
	subject := w.c.ns.EveryCall(events.KindAnswer)
	if w.call.Run != "" {
		subject = w.c.ns.Call(w.call, events.KindAnswer).Subject()
	}
	_, err := w.c.conn.Hear(ctx, subject, func(e events.Event) {
		if !w.c.signed(e) {
			return
		}
		a, err := events.Data[events.CallAnswered](e)
		if err != nil || w.call.Run == "" && a.EventID != w.event.ID {
			return
		}
		select {
		case w.answers <- a:
		default: // a flood: the log says what counts
		}
	})
	if errors.Is(err, jetstream.ErrPermission) {
		w.deaf = true // notes, looks at the log and the gate will do
		return nil
	}
	return busError(err)
}

func (w *waiting) outcome(ctx context.Context) (*Outcome, error) {
	notes, done := w.c.refusals.of(w.event.ID)
	defer done()
	limit := time.NewTimer(time.Until(w.until))
	defer limit.Stop()
	next := firstLook
	if w.deaf {
		next = quickLook
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
			return &Outcome{
				Accepted: true, ToolCallID: note.vote.ToolCallID, Round: note.vote.Round, State: StatePending, Quorum: note.vote.Quorum,
			}, nil
		case a := <-w.answers:
			if a.EventID == w.event.ID {
				return w.accepted(ctx, a), nil
			}
			if other == nil { // the refusal says more, should it arrive
				other, grace = &a, time.After(noteGrace)
			}
			if w.votedFor(a) { // unless it was an earlier vote; the log and the gate know
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
			return nil, other.Decided(w.c.cfg.Principal)
		case <-limit.C:
			return &Outcome{ToolCallID: w.id(), State: StateSent}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// votedFor reports whether a vote of the client's principal for what was said is part of an answer.
func (w *waiting) votedFor(a events.CallAnswered) bool {
	return a.Decision == w.said.Decision && events.SameDigest(a.Fingerprint, w.said.Fingerprint) &&
		(&events.Quorum{Votes: a.Votes}).Has(w.c.cfg.Principal)
}

// look asks the log what became of the decision, or, when that turns out to be closed to the user, once the gate; nothing
// when they do not say.
func (w *waiting) look(ctx context.Context) (*Outcome, error) {
	if !w.c.reads() {
		if w.asked {
			return nil, nil //nolint:nilnil // nothing is known
		}
		return w.askGate(ctx)
	}
	if w.call.Run == "" {
		return nil, nil //nolint:nilnil // nothing is known
	}
	out, refusal, err := w.c.conn.Became(ctx, w.sent())
	switch {
	case err != nil:
		return nil, w.c.tolerate(err)
	case refusal != nil:
		return nil, refusal
	case out != nil && out.State == "":
		w.afterEdit(ctx, out)
	}
	return out, nil
}

// sent is how the log is asked. A vote of the principal's before counts for this one, since each has one.
func (w *waiting) sent() jetstream.Sent {
	return jetstream.Sent{
		Call: w.call, EventID: w.event.ID, Principal: w.c.cfg.Principal,
		Decision: w.said.Decision, Fingerprint: w.said.Fingerprint, Genuine: w.c.signed,
	}
}

func (w *waiting) accepted(ctx context.Context, a events.CallAnswered) *Outcome {
	out := a.Outcome()
	if out.State == "" {
		w.afterEdit(ctx, out)
	}
	return out
}

// afterEdit finds out what the gate made of edited arguments, within a moment: it may ask again, release or refuse them.
func (w *waiting) afterEdit(ctx context.Context, out *Outcome) {
	ctx, cancel := context.WithTimeout(ctx, noteGrace)
	defer cancel()
	if !w.c.reads() {
		if said, err := w.askGate(ctx); err == nil && said != nil {
			*out = *said
		}
		return
	}
	for w.call.Run != "" {
		now, _, err := w.c.conn.Became(ctx, w.sent())
		switch {
		case err != nil:
			_ = w.c.tolerate(err) // the state stays open
			return
		case now != nil && now.State != "":
			*out = *now
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(quickLook):
		}
	}
}

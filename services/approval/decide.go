package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// lookAgain is how long a decision waits for an ask that cannot be read yet, once.
const lookAgain = 300 * time.Millisecond

// onDecision takes a decision from the inbox: it becomes the one answer of its ask, or it is refused and changes
// nothing.
func (s *Service) onDecision(ctx context.Context, d jetstream.Delivery, in events.Inbox) error {
	if in.Call == events.TokenRun {
		return s.onUnnamed(ctx, d, in)
	}
	call, err := events.CallOf(in.Run, in.Call)
	if err != nil {
		return s.noteOnly(ctx, d, in, events.Errorf(events.CodeInvalidRequest, "%v", err))
	}
	req, refusal := readDecision(d, call.String())
	if refusal != nil {
		return s.refuse(ctx, d, in, call, refusal)
	}
	who, refusal, err := s.prove(ctx, d, in, req)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return s.refuse(ctx, d, in, call, refusal)
	}
	return s.meet(ctx, d, in, meeting{call: call, req: req, who: who})
}

// meet looks at where a call stands when a proven decision reaches it.
func (s *Service) meet(ctx context.Context, d jetstream.Delivery, in events.Inbox, m meeting) error {
	call := m.call
	head, err := s.last(ctx, call)
	if errors.Is(err, jetstream.ErrNotFound) || err == nil && head.Place.Kind == events.KindSuspend {
		return s.notYet(ctx, d, in, call)
	}
	if err != nil {
		return fmt.Errorf("read head of %s: %w", call, err)
	}
	if head.Place.Delegated() {
		return s.meetBelow(ctx, d, in, m, head)
	}
	if head.Place.Kind != events.KindAsk {
		return s.tooLate(ctx, d, in, head)
	}
	m.fact = head
	return s.answer(ctx, d, in, m)
}

// meeting is a decision that meets an open ask.
type meeting struct {
	call events.CallID
	req  events.DecisionRequested
	who  proof
	fact events.Event // the ask
	ask  events.CallHeld
	run  *run
}

// answer checks a decision against the open ask and, when it counts, appends the answer and what follows from it.
func (s *Service) answer(ctx context.Context, d jetstream.Delivery, in events.Inbox, m meeting) error {
	r, err := s.run(ctx, m.call.Run)
	if err != nil {
		return err
	}
	if err := s.genuine(m.fact); err != nil {
		return s.tampered(ctx, r, m.fact, err)
	}
	if m.ask, err = events.Data[events.CallHeld](m.fact); err != nil {
		return jetstream.Final(err)
	}
	m.run = r
	data, refusal, err := s.judge(ctx, &m, d)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return s.refuseUnlessDue(ctx, d, in, m, refusal)
	case m.ask.Votes(data.Decision):
		return s.vote(ctx, d, in, m, data)
	}
	return s.storeAnswer(ctx, d, in, m, data)
}

// refuseUnlessDue refuses a decision, but not because an ask has not become yet what it is at the decision's time: it may
// be open to more people since, and for longer.
func (s *Service) refuseUnlessDue(ctx context.Context, d jetstream.Delivery, in events.Inbox, m meeting, why *events.Error) error {
	if _, more := escalated(m.ask, d.Event.Stored); !more || why.Code != events.CodeForbidden && why.Code != events.CodeExpired {
		return s.refuseUncounted(ctx, d, in, m, why)
	}
	w, err := s.lookAfter(ctx, m.run, m.fact, d.Event.Stored)
	switch {
	case err != nil:
		return err
	case w != nil: // it cannot become that
		return s.refuseUncounted(ctx, d, in, m, why)
	}
	return jetstream.Later(0)
}

// storeAnswer appends the answer to the ask that a decision met, and what follows from it.
func (s *Service) storeAnswer(ctx context.Context, d jetstream.Delivery, in events.Inbox, m meeting, data events.CallAnswered) error {
	last, ours, err := s.addAnswer(ctx, m.call, m.fact, data)
	switch {
	case errors.Is(err, errGone):
		return s.refuse(ctx, d, in, m.call, events.Errorf(events.CodeRunEnded, "run %s is over", m.call.Run))
	case errors.Is(err, jetstream.ErrTooLarge):
		return s.refuse(ctx, d, in, m.call, events.Errorf(events.CodeTooLarge, "the decision is too large to be stored: %v", err))
	case err != nil:
		return err
	case !ours && last.Place.Kind == events.KindAsk: // it was repeated in between: the same question
		return jetstream.Later(0)
	case !ours:
		return s.tooLate(ctx, d, in, last)
	}
	return s.follow(ctx, m.run, last)
}

// judge finds out on whose behalf an automatic resume is sent, and checks it as any other decision.
func (s *Service) judge(ctx context.Context, m *meeting, d jetstream.Delivery) (events.CallAnswered, *events.Error, error) {
	if m.who.authType == events.AuthAuto {
		if refusal, err := s.onBehalf(ctx, m, d); refusal != nil || err != nil {
			return events.CallAnswered{}, refusal, err
		}
	}
	if err := s.unmask(ctx, m); err != nil {
		return events.CallAnswered{}, nil, err
	}
	a, refusal := m.judge(d.Event)
	if refusal != nil {
		return a, refusal, nil
	}
	return a, nil, s.concealAnswer(ctx, *m, &a)
}

// refuseUncounted refuses a decision for the pending ask, unless it is one that counted in the round before and is
// delivered again.
func (s *Service) refuseUncounted(ctx context.Context, d jetstream.Delivery, in events.Inbox, m meeting, why *events.Error) error {
	if m.ask.Round > 0 {
		counted, err := s.counted(ctx, m.call)
		if err != nil || took(counted, d) {
			return err
		}
	}
	return s.refuse(ctx, d, in, m.call, why)
}

// counted is the last answer of a call; nil when there is none that a gate has written.
func (s *Service) counted(ctx context.Context, call events.CallID) (*events.CallAnswered, error) {
	fact, err := s.conn.Fact(ctx, s.ns.Call(call, events.KindAnswer))
	if errors.Is(err, jetstream.ErrNotFound) || errors.Is(err, jetstream.ErrTampered) {
		return nil, nil //nolint:nilnil // no answer is none
	}
	if err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", call, err)
	}
	if forged := s.genuine(fact); forged != nil {
		return nil, nil //nolint:nilerr,nilnil // no answer of a gate's is none
	}
	a, err := events.Data[events.CallAnswered](fact)
	if err != nil {
		return nil, jetstream.Final(err)
	}
	return &a, nil
}

// readDecision reads what a decision says, as far as that needs no look at the log. The call that its subject names is
// empty when that names none.
func readDecision(d jetstream.Delivery, call string) (events.DecisionRequested, *events.Error) {
	bad := func(format string, args ...any) (events.DecisionRequested, *events.Error) {
		return events.DecisionRequested{}, events.Errorf(events.CodeInvalidRequest, format, args...)
	}
	if len(d.Event.ID) > maxEventID {
		return bad("the id of the event has %d bytes; up to %d are taken", len(d.Event.ID), maxEventID)
	}
	if want := events.TypeOf[events.DecisionRequested](); d.Event.Type != want {
		return bad("type is %s; a decision has type %s", d.Event.Type, want)
	}
	req, err := events.Data[events.DecisionRequested](d.Event)
	if err != nil {
		return bad("%v", err)
	}
	switch {
	case req.ToolCallID == call:
	case call == "":
		return bad("toolCallId is %q, and the subject names no call: leave it out, or name it in the subject", req.ToolCallID)
	default:
		return bad("toolCallId is %q, the subject names %q", req.ToolCallID, call)
	}
	if !slices.Contains(requestable, req.Decision) {
		return bad("decision is %q; use approve, decline, edit, respond, resume or retry", req.Decision)
	}
	return req, nil
}

// requestable are the decisions that somebody can send; which of them an ask takes is another question.
var requestable = []events.Decision{
	events.Approve, events.Decline, events.Edit, events.Respond, events.ResumeD, events.Retry,
}

// judge checks a decision against the ask that it met, in the order in which senders are told: entitled, round, kind,
// fingerprint, data, deadline. It is pure.
func (m meeting) judge(e events.Event) (events.CallAnswered, *events.Error) {
	for _, check := range []func(events.Event) *events.Error{
		m.checkEntitled, m.checkRound, m.checkKind, m.checkFingerprint, m.checkGrant, m.checkData, m.checkTime,
	} {
		if refusal := check(e); refusal != nil {
			return events.CallAnswered{}, refusal
		}
	}
	req := m.req
	a := events.CallAnswered{
		ToolCallID: m.ask.ToolCallID, RunID: m.ask.RunID, Round: m.ask.Round, Decision: req.Decision,
		Fingerprint: m.ask.Fingerprint, Principal: m.who.principal, AuthType: m.who.authType, At: e.Stored.UTC(),
		Reason: strings.TrimSpace(req.Reason), EventID: e.ID, InboxSeq: e.Seq, Rules: m.ask.Rules, Signed: m.who.signed,
		Groups: m.who.groups, Grant: m.terms(),
	}
	switch req.Decision {
	case events.Edit:
		a.Args = req.Args
	case events.Respond:
		a.Result, a.ModelOutput = req.Result, req.ModelOutput
	case events.ResumeD:
		a.Resume = &events.Resume{Data: req.ResumeData}
	default: // bring no data
	}
	return a, nil
}

func (m meeting) checkEntitled(events.Event) *events.Error {
	if m.ask.Kind == events.AskClient && !m.isRequester() {
		return events.Errorf(events.CodeForbidden, "only who asked for the run answers its client's calls")
	}
	if m.ask.NotRequester && m.isRequester() {
		return m.forbidden("%s asked for the run and may not decide this call", m.who.principal)
	}
	if m.ask.Signed && m.who.signed == nil {
		e := events.Errorf(events.CodeUnauthenticated, "this call takes signed decisions only")
		e.Rule = m.ask.Reason.Rule
		return e
	}
	who := events.Approver{ID: m.who.principal, Groups: m.who.groups}
	if len(m.ask.Approvers) == 0 || slices.ContainsFunc(m.ask.Approvers, who.Is) {
		return nil
	}
	return m.forbidden("%s is not among those who may decide this call", m.who.principal)
}

// isRequester compares principals as subjects name them, by their tokens.
func (m meeting) isRequester() bool {
	return m.who.principal == m.run.start.Requester || events.Token(m.who.principal) == m.run.start.Requester
}

func (m meeting) forbidden(format string, args ...any) *events.Error {
	e := events.Errorf(events.CodeForbidden, format, args...)
	e.Rule = m.ask.Reason.Rule
	return e
}

func (m meeting) checkRound(e events.Event) *events.Error {
	switch {
	case m.req.Round != nil && *m.req.Round != m.ask.Round:
		return m.changed("round %d is not the pending one, which is %d", *m.req.Round, m.ask.Round)
	case m.ask.Round > 0 && m.req.Round == nil && m.req.Fingerprint == "":
		return m.changed("this call has been asked before: name its round or fingerprint")
	case e.Stored.Before(m.askedSince()):
		return m.changed("the decision is older than the ask")
	}
	return nil
}

// askedSince is when the server stored the first ask of the round, as far as that is known: what repeats it says so, and
// a carried copy of the first does not.
func (m meeting) askedSince() time.Time {
	switch {
	case m.ask.Since != nil:
		return *m.ask.Since
	case m.fact.Carried:
		return time.Time{}
	}
	return m.fact.Stored
}

func (m meeting) changed(format string, args ...any) *events.Error {
	e := events.Errorf(events.CodeChanged, format, args...)
	e.Ask = &m.ask
	return e
}

func (m meeting) checkKind(events.Event) *events.Error {
	if m.ask.Takes(m.req.Decision) {
		return nil
	}
	e := events.Errorf(events.CodeWrongKind, "a call held as %s does not take %s", m.ask.Kind, m.req.Decision)
	e.Allowed = m.ask.Allowed
	return e
}

func (m meeting) checkFingerprint(events.Event) *events.Error {
	switch {
	case m.req.Fingerprint == "" && m.req.Decision == events.Edit:
		return m.changed("an edit must name the fingerprint of what it edits")
	case m.req.Fingerprint == "" && m.ask.Votes(m.req.Decision):
		return m.changed("this call needs %d approvals: each must name the fingerprint of what it approves", m.ask.Quorum.Need)
	case m.req.Fingerprint != "" && !events.SameDigest(m.req.Fingerprint, m.ask.Fingerprint):
		return m.changed("the fingerprint is not that of the pending call")
	}
	return nil
}

func (m meeting) checkData(events.Event) *events.Error {
	t := m.run.tools[m.ask.ToolName]
	switch m.req.Decision {
	case events.Edit:
		if len(m.req.Args) == 0 {
			return events.Errorf(events.CodeInvalidData, "an edit must bring args")
		}
		if t == nil {
			return events.Errorf(events.CodeInvalidData, "tool %s is not part of the run", m.ask.ToolName)
		}
		if _, err := events.Normalize(t.input, m.req.Args); err != nil {
			return invalidData("args", err)
		}
	case events.Respond:
		if len(m.req.Result) == 0 {
			return events.Errorf(events.CodeInvalidData, "respond must bring a result; null is one")
		}
		if m.req.ModelOutput != nil {
			if err := events.CheckModelOutput(m.req.ModelOutput); err != nil {
				return events.Errorf(events.CodeInvalidData, "modelOutput: %v", err)
			}
		}
		if t != nil {
			return checkResult(t.OutputSchema, m.req.Result)
		}
	case events.ResumeD:
		if len(m.req.ResumeData) == 0 {
			return events.Errorf(events.CodeInvalidData, "resume must bring resumeData; null is a value")
		}
		return events.CheckResumeData(m.ask.ToolName, m.ask.ResumeSchema, m.req.ResumeData)
	default: // bring no data
	}
	return nil
}

// checkResult validates a result that a person gives. Without a schema any value is accepted.
func checkResult(schema, result json.RawMessage) *events.Error {
	if len(schema) == 0 || string(schema) == "null" {
		return nil
	}
	c, err := events.CompileSchema(schema)
	if err != nil {
		return events.Errorf(events.CodeInvalidData, "the schema of the result cannot be used: %v", err)
	}
	if err := c.ValidateRaw(result); err != nil {
		return invalidData("result", err)
	}
	return nil
}

func invalidData(field string, err error) *events.Error {
	e := events.Errorf(events.CodeInvalidData, "%s: %v", field, err)
	if bad, ok := errors.AsType[*events.InvalidData](err); ok {
		e.Issues = bad.Issues
	}
	return e
}

// checkTime compares the server's stamp of the decision with the deadline, whether or not the timer has fired, and with the
// end that the decision sets itself.
func (m meeting) checkTime(e events.Event) *events.Error {
	if e.Stored.After(m.ask.ExpiresAt) {
		return events.Errorf(events.CodeExpired, "the ask expired at %s", m.ask.ExpiresAt.Format(time.RFC3339))
	}
	if !e.ExpiryTime.IsZero() && e.Stored.After(e.ExpiryTime) {
		return events.Errorf(events.CodeExpired, "the decision says that it counts until %s only", e.ExpiryTime.Format(time.RFC3339))
	}
	return nil
}

// notYet lets a decision wait once for its ask, which a server may not show yet, and then refuses it.
func (s *Service) notYet(ctx context.Context, d jetstream.Delivery, in events.Inbox, call events.CallID) error {
	if d.Attempt <= 1 {
		return jetstream.Later(lookAgain)
	}
	return s.refuse(ctx, d, in, call, events.NotFound("call", "call %s is not known", call))
}

// tooLate handles a decision for a call that is not held any more: its own answer is finished, any other refused.
func (s *Service) tooLate(ctx context.Context, d jetstream.Delivery, in events.Inbox, last events.Event) error {
	call := last.Place.CallID()
	counted, err := s.counted(ctx, call)
	if err != nil {
		return err
	}
	if last.Place.Kind == events.KindAnswer {
		r, err := s.run(ctx, call.Run)
		if err != nil {
			return err
		}
		if err := s.follow(ctx, r, last); err != nil && (!jetstream.IsLater(err) || took(counted, d)) {
			return err // of another decision it is that one's delivery that waits
		}
	}
	if took(counted, d) {
		return nil // this decision counts, and is delivered again or was one of several
	}
	return s.refuseLate(ctx, d, in, last, counted)
}

// refuseLate says what came before a decision: the answer that counted, the end of the run, or the cancel that is about
// to end it.
func (s *Service) refuseLate(ctx context.Context, d jetstream.Delivery, in events.Inbox, last events.Event, counted *events.CallAnswered) error {
	call := last.Place.CallID()
	if counted != nil {
		return s.refuse(ctx, d, in, call, counted.Decided(d.Event.AuthID))
	}
	why, err := s.neverDecided(ctx, last)
	if err != nil {
		return err
	}
	return s.refuse(ctx, d, in, call, why)
}

// neverDecided says why a call that has no answer waits for none.
func (s *Service) neverDecided(ctx context.Context, last events.Event) (*events.Error, error) {
	call := last.Place.CallID()
	_, err := s.conn.Fact(ctx, s.ns.End(call.Run))
	switch {
	case err == nil:
		return events.Errorf(events.CodeRunEnded, "run %s is over", call.Run), nil
	case !errors.Is(err, jetstream.ErrNotFound):
		return nil, err
	case cancelled(last):
		return events.Errorf(events.CodeRunEnded, "call %s was cancelled", call), nil
	}
	return events.NotFound("call", "call %s waits for no decision", call), nil
}

// cancelled reports whether a call has ended because it, or its run, was cancelled.
func cancelled(last events.Event) bool {
	if last.Place.Kind != events.KindResult {
		return false
	}
	d, err := events.Data[events.CallFinished](last)
	return err == nil && d.Outcome == events.OutcomeCancelled
}

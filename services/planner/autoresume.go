package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/service"
)

// Automatic resume: the message of a run may be what suspended tools of earlier runs of its thread wait for.
//
// A run whose options allow it begins with a question to the model, when there are such tools. What the model finds is the
// run's first step, a fact like any turn, so it is paid for once and everything after it follows from the log: the planner
// sends each answer to the gate as a decision of =auto, whose id is made of what it is about, and waits until the log says
// what became of it. If one counted, the run ends and names the runs that go on; else it is a run like any other. All of
// this is driven by the delivery of main.start, which stays unacknowledged meanwhile.

const (
	// maxAsked is how many suspended calls a model is asked about; of more, those that were asked last.
	maxAsked = 16
	// maxSaid bounds what a model may say in answer.
	maxSaid = 256 << 10
	// patience is how long one delivery waits for the gate; then it is put off by wait.
	patience = 2 * time.Second
	putOff   = 3 * time.Second
	// waitForGate is how long a run waits for the gate in all. Then it goes on without an answer, and the gate refuses
	// the decision, because it looks at what the run has come to.
	waitForGate = 2 * time.Minute
)

// errTooMuch says that a model said more than an answer can be.
var errTooMuch = errors.New("the model said too much")

// seekAnswers asks the model whether the message of a run answers what suspended tools of its thread wait for, and stores
// what it found. Without such tools the first turn is taken at once.
func (s *Service) seekAnswers(ctx context.Context, st *events.State, head events.Event, def *definition, delivery int) error {
	waiting, err := s.suspensions(ctx, st)
	if err != nil {
		return err
	}
	if len(waiting) == 0 {
		return s.think(ctx, st, head, def, delivery)
	}
	step := s.beginSeeking(ctx, st, def, waiting, delivery)
	turnCtx, done := s.enterTurn(ctx, st.RunID)
	found, err := s.find(turnCtx, st, def, waiting, &step)
	ended := turnCtx.Err() != nil && context.Cause(turnCtx) == errEnded //nolint:errorlint // our own cause, unwrapped
	done()                                                              // before its own end is heard
	switch {
	case ended:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		found = &events.AutoResume{Reason: "the model could not be asked: " + err.Error()}
	}
	step.AutoResume = found
	for _, w := range waiting {
		found.Asked = append(found.Asked, w.ask.ToolCallID)
	}
	return s.commitAnswers(ctx, st, head, step, delivery)
}

// beginSeeking tells readers that the run has begun, and which runs may go on in its place: before any answer is sent, so
// that whoever follows those from here on misses nothing.
func (s *Service) beginSeeking(ctx context.Context, st *events.State, def *definition, waiting []suspension, delivery int) events.StepFinished {
	step := events.StepFinished{
		RunID: st.RunID, Step: 1, Attempt: (delivery-1)*triesPerDelivery + 1, MessageID: events.NewID(time.Now()),
		Message: events.Message{Role: events.RoleAssistant, Parts: []events.Part{}}, Calls: []events.CallPlanned{},
		FinishReason: reasonStop, Model: cmp.Or(st.Options.Model, def.agent.Model),
	}
	var runs []string
	for _, w := range waiting {
		if !slices.Contains(runs, w.ask.RunID) {
			runs = append(runs, w.ask.RunID)
		}
	}
	c := events.ResumingChunk(st.RunID, st.AgentID, step.MessageID, runs)
	c.Step, c.Attempt, c.Index = 1, step.Attempt, 1
	s.chunk(ctx, c)
	return step
}

// find asks the model, and fills in what that took. The planner owns the retries, as of any turn.
func (s *Service) find(ctx context.Context, st *events.State, def *definition, waiting []suspension, step *events.StepFinished) (*events.AutoResume, error) {
	model, name, err := s.cfg.Models.Model(step.Model)
	if err != nil {
		return nil, err
	}
	req, err := questionOf(st, def, name, waiting)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	defer func() {
		step.Active = events.Duration(time.Since(began))
		step.Usage = s.priced(ctx, st, def, step.Model, step.Usage)
	}()
	var text string
	for try := range s.cfg.Tries {
		if text, err = hearOut(ctx, model, req, &step.Usage, nil); err == nil {
			break
		}
		if again, stop := s.again(ctx, err, try); !again || stop != nil {
			return nil, cmp.Or(stop, err)
		}
	}
	if err != nil {
		return nil, err
	}
	found := &events.AutoResume{}
	found.Answers, found.Reason = answersIn(text, saidIn(st), waiting)
	return found, nil
}

// hearOut is the text that a model says; heard, unless nil, is told each piece. Nothing but text counts.
func hearOut(ctx context.Context, model agent.Model, req agent.ModelRequest, usage *events.Usage, heard func(string)) (string, error) {
	var text strings.Builder
	for part, err := range model.Stream(ctx, req) {
		switch {
		case err != nil:
			return "", err
		case part.Type == agent.PartFinish:
			*usage = usage.Add(part.Usage)
			return text.String(), nil
		case part.Type == agent.PartTextDelta:
			text.WriteString(part.Text)
			if heard != nil {
				heard(part.Text)
			}
		}
		if text.Len() > maxSaid {
			return "", errTooMuch
		}
	}
	return "", &agent.ModelError{Retryable: true, Err: errors.New("the stream ended before the turn did")}
}

// commitAnswers stores what the model found as the run's first step and goes on from whatever stands there: the delivery of
// the start is what drives a run on that has had no turn, so whoever holds it must.
func (s *Service) commitAnswers(ctx context.Context, st *events.State, head events.Event, step events.StepFinished, delivery int) error {
	_, _, err := s.add(ctx, s.ns.Step(st.RunID, 1), head, step)
	if errors.Is(err, jetstream.ErrTooLarge) {
		step.AutoResume = &events.AutoResume{Reason: "what the message says is too large"}
		_, _, err = s.add(ctx, s.ns.Step(st.RunID, 1), head, step)
	}
	if err != nil {
		return err
	}
	now, at, err := s.conn.RunState(ctx, st.RunID)
	switch {
	case err != nil:
		return fmt.Errorf("read state of %s: %w", st.RunID, err)
	case now.Step == 0:
		return fmt.Errorf("the leader does not show step 1 of %s yet", st.RunID)
	case now.Ended != "" || now.Turns() > 0:
		return nil
	}
	s.remember(now.Clone(), at)
	return s.advance(ctx, now, at, delivery)
}

// suspensions are the calls that the message of a run may answer: suspended ones of the same agent, thread and resource that
// say what they wait for, asked before the message was sent, whose runs allow it too.
func (s *Service) suspensions(ctx context.Context, st *events.State) ([]suspension, error) {
	start, err := s.conn.Fact(ctx, s.ns.Start(st.RunID))
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil, nil // aged out, with whatever was asked before it
	}
	if err != nil {
		return nil, fmt.Errorf("read start of %s: %w", st.RunID, err)
	}
	keys, err := s.conn.ListSuspended(ctx, st.AgentID, st.ResourceID, st.ThreadID)
	if err != nil {
		return nil, err
	}
	var all []suspension
	for _, key := range keys {
		found, err := s.suspensionsOf(ctx, st, key, start.Stored)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil { // one that cannot be read waits for people, as it does without this
			s.log.WarnContext(ctx, "suspended run not asked about", "runId", st.RunID, "key", key, "error", err)
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, byAge)
	return all[max(0, len(all)-maxAsked):], nil
}

// suspensionsOf are those of one entry of the bucket, as far as the log bears it out.
func (s *Service) suspensionsOf(ctx context.Context, st *events.State, key string, sent time.Time) ([]suspension, error) {
	snap, err := s.conn.Listed(ctx, key)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if snap.RunID == st.RunID || snap.RunID != snap.RootRunID || snap.AgentID != st.AgentID || snap.ThreadID != st.ThreadID || snap.ResourceID != st.ResourceID {
		return nil, nil
	}
	def, err := s.definition(ctx, &snap.State)
	if err != nil || !snap.Options.AutoResumes(def.agent) {
		return nil, err
	}
	var found []suspension
	for _, open := range snap.Asks {
		call, err := events.ParseCallID(open.ToolCallID)
		if err != nil {
			return nil, err
		}
		fact, err := s.conn.Last(ctx, s.ns.Call(call, events.KindAsk).Chain())
		if errors.Is(err, jetstream.ErrNotFound) || err == nil && fact.Place.Kind != events.KindAsk {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read head of %s: %w", call, err)
		}
		ask, err := events.Data[events.CallHeld](fact)
		if err != nil {
			return nil, err
		}
		if w, ok := suspensionOf(ask); ok && ask.KnownSince(fact).Before(sent) {
			found = append(found, w)
		}
	}
	return found, nil
}

// awaitAnswers sends what the model found to the gate and goes on once the log says what became of it: in the runs that were
// resumed, or, when none was, with the first turn of this one.
func (s *Service) awaitAnswers(ctx context.Context, st *events.State, head events.Event, def *definition, delivery int) error {
	counted, open, err := s.settled(ctx, st, head)
	if err != nil {
		return err
	}
	if err := s.sendAnswers(ctx, st, head, open); err != nil {
		return err
	}
	for waited := time.Duration(0); len(open) > 0; {
		if delivery >= sweptAttempt || waited > patience {
			break
		}
		pause := max(waited/2, 5*time.Millisecond)
		waited += pause
		if err := service.Sleep(ctx, pause); err != nil {
			return err
		}
		if counted, open, err = s.settled(ctx, st, head); err != nil {
			return err
		}
	}
	if len(open) > 0 {
		now, err := s.conn.Now(ctx)
		if err != nil {
			return err
		}
		if now.Sub(head.Stored) < waitForGate {
			return jetstream.Later(putOff)
		}
		s.log.WarnContext(ctx, "no gate has taken an automatic resume", "runId", st.RunID)
	}
	if len(counted) > 0 {
		return s.end(ctx, st, head, *resumedEnd(st, resumedRuns(counted)))
	}
	return s.think(ctx, st, head, def, delivery)
}

// sendAnswers sends the decisions of which the log knows nothing yet. One that is sent again is the same event.
func (s *Service) sendAnswers(ctx context.Context, st *events.State, step events.Event, open []events.AutoAnswer) error {
	for _, a := range open {
		call, err := events.ParseCallID(a.ToolCallID)
		if err != nil {
			return jetstream.Final(err)
		}
		subject := s.ns.InDecide(events.TokenAuto, call)
		e, err := s.origin.Request(subject, call.Run, events.DecisionRequested{
			Decision: events.ResumeD, ToolCallID: a.ToolCallID, Round: &a.Round, Fingerprint: a.Fingerprint,
			ResumeData: a.ResumeData, OnBehalfOf: st.Requester, FromRun: st.RunID,
		}, step)
		if err != nil {
			return jetstream.Final(err)
		}
		e.ID, e.Time = events.AutoResumeID(st.RunID, a.ToolCallID, a.Round), step.Time
		e.AuthID, e.AuthType = events.TokenAuto, events.AuthAuto
		if e.Payload, err = events.Encode(e); err != nil {
			return jetstream.Final(err)
		}
		if _, err := s.conn.Publish(ctx, subject, e); err != nil {
			return fmt.Errorf("send automatic resume of %s: %w", call, err)
		}
	}
	return nil
}

// settled tells of the answers that counted from those of which nothing is known yet. The rest were refused.
func (s *Service) settled(ctx context.Context, st *events.State, step events.Event) (counted, open []events.AutoAnswer, err error) {
	for _, a := range st.AutoResume.Answers {
		call, err := events.ParseCallID(a.ToolCallID)
		if err != nil {
			return nil, nil, jetstream.Final(err)
		}
		id := events.AutoResumeID(st.RunID, a.ToolCallID, a.Round)
		yes, err := s.isAnswer(ctx, s.ns.Call(call, events.KindAnswer), step.Seq, id)
		if err != nil {
			return nil, nil, err
		}
		if yes {
			counted = append(counted, a)
			continue
		}
		_, err = s.conn.Fact(ctx, s.ns.Beside(call, events.KindRefused, id))
		if errors.Is(err, jetstream.ErrNotFound) {
			open = append(open, a)
		} else if err != nil {
			return nil, nil, fmt.Errorf("read refusal of %s: %w", call, err)
		}
	}
	return counted, open, nil
}

// isAnswer reports whether a decision is an answer of a call after a sequence. Later answers of later rounds hide none.
func (s *Service) isAnswer(ctx context.Context, p events.Place, after uint64, id string) (bool, error) {
	for {
		fact, err := s.conn.NextFact(ctx, after, p.Subject())
		switch {
		case errors.Is(err, jetstream.ErrNotFound):
			return false, nil
		case errors.Is(err, jetstream.ErrTampered): // no answer of a gate's
		case err != nil:
			return false, fmt.Errorf("read answers of %s: %w", p.CallID(), err)
		default:
			if a, err := events.Data[events.CallAnswered](fact); err == nil && a.EventID == id {
				return true, nil
			}
		}
		after = fact.Seq
	}
}

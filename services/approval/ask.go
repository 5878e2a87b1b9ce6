package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// onStep gives each call of a model turn its first fact: a result when it ends here, a release, or an ask.
func (s *Service) onStep(ctx context.Context, d jetstream.Delivery) error {
	step, err := events.Data[events.StepFinished](d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	var open map[string]events.CallPlanned // nil: all
	if d.Attempt > 1 {
		if open, err = s.openOf(ctx, d.Event); err != nil || !opens(open, step) {
			return err
		}
	}
	return s.openCalls(ctx, d.Event, step, open)
}

// openOf are the calls of a step that are still open at the run's last fact: a step that is the last, a later one or a carry
// that names them. Whoever begins call chains late asks this first: a chain that has aged out is empty too, and would take a
// first fact again.
func (s *Service) openOf(ctx context.Context, step events.Event) (map[string]events.CallPlanned, error) {
	head, err := s.conn.Last(ctx, step.Place.Chain())
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read head of %s: %w", step.Place.Run, err)
	case head.Seq < step.Seq:
		return nil, fmt.Errorf("the leader does not show step %d of %s yet", step.Place.N, step.Place.Run)
	}
	return callsAt(head)
}

// opens reports whether a call of a step is among those that are open.
func opens(open map[string]events.CallPlanned, step events.StepFinished) bool {
	for i := range step.Calls {
		if _, ok := open[events.CallID{Step: step.Step, Index: i + 1}.Token()]; ok {
			return true
		}
	}
	return false
}

// openCalls judges the calls of a step and appends what follows. Calls that do not wait start at once; those that do
// are asked about together, the snapshot first. Observers are told when the step is seen first, so at most once. When the run
// bounds how many calls execute at once, the step is put off until each has had its turn. Open are the calls that may still be
// begun; nil says that the step is seen first.
func (s *Service) openCalls(ctx context.Context, step events.Event, data events.StepFinished, open map[string]events.CallPlanned) error {
	r, err := s.run(ctx, step.Place.Run)
	if err != nil {
		return err
	}
	if data.Step > 1 {
		if err := s.dropBefore(ctx, r, data.Step); err != nil {
			return err
		}
	}
	questions, err := s.questions(ctx, r, data, open)
	if err != nil {
		return err
	}
	var queue putOff
	if open != nil && r.concurrency() > 0 {
		if questions, err = s.unopened(ctx, r, questions); err != nil && !queue.takes(err) {
			return err
		}
	}
	readyAll(ctx, questions)
	var held []holding
	for _, q := range questions {
		v := s.rule(ctx, q)
		if open == nil && v.input != nil {
			s.observe(ctx, r, q, v.input)
		}
		if v.held != nil {
			held = append(held, holding{ask: *v.held, prev: none(step)})
			continue
		}
		if err := s.openCall(ctx, r, step, q, v); err != nil && !queue.takes(err) {
			return err
		}
	}
	if len(held) > 0 {
		if err := s.remember(r, step); err != nil {
			return err
		}
	}
	if err := s.hold(ctx, r, held); err != nil && !queue.takes(err) {
		return err
	}
	return queue.later
}

// questions are the calls of a step that may still be begun, as the gate looks at them.
func (s *Service) questions(ctx context.Context, r *run, data events.StepFinished, open map[string]events.CallPlanned) ([]question, error) {
	rules, err := s.rulesNow(ctx)
	if err != nil {
		return nil, err
	}
	loaded, err := s.loadedBefore(ctx, r, data.Step)
	if err != nil {
		return nil, err
	}
	said := r.said(data)
	questions := make([]question, 0, len(data.Calls))
	for i, planned := range data.Calls {
		call := events.CallID{Run: r.start.RunID, Step: data.Step, Index: i + 1}
		if _, ok := open[call.Token()]; open != nil && !ok {
			continue // of the background, and over
		}
		q := s.question(r, rules, call, planned)
		q.said, q.loaded = said, loaded
		q.ready, _ = s.ready.Get(call.String())
		questions = append(questions, q)
	}
	return questions, nil
}

// remember folds the first step of a run into what is known of its start, so that no snapshot has to read it again.
func (s *Service) remember(r *run, step events.Event) error {
	if r.start.Step != 0 || step.Place.N != 1 {
		return nil
	}
	st := r.start.Clone()
	if err := st.Apply(step); err != nil {
		return jetstream.Final(err)
	}
	s.states.Put(st.RunID, st, st.Size())
	return nil
}

func (s *Service) question(r *run, rules *judge.Rules, call events.CallID, planned events.CallPlanned) question {
	planned.Background = planned.Background.Within(r.background(planned.ToolName))
	return question{
		ns: s.ns, call: call, planned: planned, run: r, rules: rules, judge: rule.NewEvaluator(s.exprs),
		expires: s.cfg.Expires, now: time.Now().UTC(), hooks: s,
	}
}

// openCall stores the first fact of a call that does not wait, and helps on when somebody else was first. A call whose turn
// it is not is put off; what hooks have said of it is kept.
func (s *Service) openCall(ctx context.Context, r *run, step events.Event, q question, v ruling) error {
	if v.released != nil {
		err := s.turn(ctx, r, queued{call: q.call, seq: step.Seq})
		switch {
		case jetstream.IsLater(err) && time.Since(step.Stored) > s.cfg.Retention/3:
			v = q.neverCame()
		case err != nil:
			if q.ready != nil {
				s.ready.Put(q.call.String(), q.ready, 512+len(q.ready.frozen.args))
			}
			return err
		}
	}
	last, ours, err := s.addRuling(ctx, q.call, none(step), v)
	switch {
	case errors.Is(err, errGone):
		return nil
	case err != nil:
		return err
	case !ours:
		return s.help(ctx, r, last)
	}
	return nil
}

// none stands for the fact before the first one of a chain: there is none, and a step is the cause.
func none(step events.Event) events.Event {
	return events.Event{ID: step.ID, TraceParent: step.TraceParent}
}

// addRuling appends a result or release after prev, which is the zero sequence for a call that has no fact yet.
func (s *Service) addRuling(ctx context.Context, call events.CallID, prev events.Event, v ruling) (events.Event, bool, error) {
	if v.finished != nil {
		return s.addResult(ctx, call, prev, *v.finished)
	}
	last, ours, err := s.add(ctx, v.released.At(call), prev, *v.released)
	if errors.Is(err, jetstream.ErrTooLarge) { // the run must not stand still for it
		return s.add(ctx, s.ns.Call(call, events.KindResult), prev, tooLarge(*v.released, err))
	}
	return last, ours, err
}

// addResult ends a call that the gate does not let run. A result that does not fit into a message is stored without the
// arguments, which an earlier fact has; when even what somebody gave in its place does not fit, the call ends with an error.
func (s *Service) addResult(ctx context.Context, call events.CallID, prev events.Event, d events.CallFinished) (events.Event, bool, error) {
	place := s.ns.Call(call, events.KindResult)
	last, ours, err := s.add(ctx, place, prev, d)
	if !errors.Is(err, jetstream.ErrTooLarge) {
		return last, ours, err
	}
	d.Args = nil
	last, ours, err = s.add(ctx, place, prev, d)
	if !errors.Is(err, jetstream.ErrTooLarge) {
		return last, ours, err
	}
	d.Outcome, d.Result, d.ModelOutput, d.Reason = events.OutcomeError, nil, nil, ""
	d.Error = &events.ToolError{Name: string(events.CodeTooLarge), Message: fmt.Sprintf("the result cannot be stored: %v", err)}
	return s.add(ctx, place, prev, d)
}

// tooLarge ends a call whose release does not fit into a message.
func tooLarge(d events.CallReleased, err error) events.CallFinished {
	return events.CallFinished{
		ToolCallID: d.ToolCallID, RunID: d.RunID, ToolName: d.ToolName, Round: d.Round, Outcome: events.OutcomeError,
		Started: d.Attempt > 0, Attempt: d.Attempt,
		Error: &events.ToolError{Name: string(events.CodeTooLarge), Message: fmt.Sprintf("the call cannot be released: %v", err)},
	}
}

// help goes on from the last fact of a call's chain, whoever stored it: they may have been stopped right after.
func (s *Service) help(ctx context.Context, r *run, last events.Event) error {
	switch last.Place.Kind {
	case events.KindAsk:
		return s.announce(ctx, r, last)
	case events.KindAnswer:
		return s.follow(ctx, r, last)
	case events.KindSuspend:
		return s.askAgain(ctx, r, last)
	case events.KindResult:
		return s.finish(ctx, last)
	default:
		return nil // released or running: its executor goes on
	}
}

// finish does what the result of a call asks for: one that brings the end of its run ends it.
func (s *Service) finish(ctx context.Context, result events.Event) error {
	d, err := events.Data[events.CallFinished](result)
	if err != nil {
		return jetstream.Final(err)
	}
	if d.Outcome != events.OutcomeExpired || d.Cancel == nil {
		return nil
	}
	return s.endRun(ctx, result.Place.Run, *d.Cancel)
}

// show publishes the chunk of a call that ends because its run does: the planner, which shows every other result, takes
// no turn on it. What somebody else has put in a result's place is not shown.
func (s *Service) show(ctx context.Context, result events.Event, planned events.CallPlanned) {
	if d, err := events.Data[events.CallFinished](result); err == nil {
		args := events.CallState{Planned: planned, Finished: &d}.Args()
		d, args, notes := s.viewOf(ctx, d.RunID, d.ToolName).Finished(ctx, d, args)
		c := events.ResultChunk(d, args, result.ID)
		c.Metadata = notes.Metadata()
		s.chunk(ctx, c)
	}
}

// viewOf shows what may be shown of a tool of a run; when nobody knows, that is nothing.
func (s *Service) viewOf(ctx context.Context, run, toolName string) *transform.View {
	r, err := s.run(ctx, run)
	if err != nil {
		return transform.Nothing
	}
	return r.view(toolName)
}

// chunk publishes what people watch. It never fails a call: what is lost here is published again with the step's end.
func (s *Service) chunk(ctx context.Context, c events.Chunk) {
	if err := s.conn.PublishChunk(ctx, s.origin, c); err != nil {
		s.log.WarnContext(ctx, "chunk not published", "runId", c.RunID, "type", string(c.Type), "error", err)
	}
}

// holding is an ask that is about to be stored, and the fact that it follows (sequence 0: none).
type holding struct {
	ask  events.CallHeld
	prev events.Event
}

// hold asks about calls: the snapshot first, then the asks, then their timers and chunks. A decision that is sent on
// first sight therefore always counts.
func (s *Service) hold(ctx context.Context, r *run, held []holding) error {
	if len(held) == 0 {
		return nil
	}
	s.preview(ctx, r, held)
	if err := s.conceal(ctx, r, held); err != nil {
		return err
	}
	asks := make([]events.CallHeld, len(held))
	for i, h := range held {
		asks[i] = h.ask
	}
	if err := s.enter(ctx, r, asks); err != nil {
		return err
	}
	var stored []events.Event
	overtaken := false
	for _, h := range held {
		call, err := events.ParseCallID(h.ask.ToolCallID)
		if err != nil {
			return jetstream.Final(err)
		}
		last, ours, err := s.addAsk(ctx, call, h)
		if err != nil && !errors.Is(err, errGone) {
			return err
		}
		overtaken = overtaken || !ours || last.Place.Kind != events.KindAsk
		if last.ID != "" {
			stored = append(stored, last)
		}
	}
	var queue putOff
	if err := s.announceAll(ctx, r, stored); err != nil && !queue.takes(err) {
		return err
	}
	if err := s.checkEntry(ctx, r, overtaken); err != nil {
		return err
	}
	return queue.later
}

// addAsk stores an ask. One that does not fit into a message is stored without what it shows beside the arguments; a call
// that cannot be asked about even so ends.
func (s *Service) addAsk(ctx context.Context, call events.CallID, h holding) (events.Event, bool, error) {
	place := s.ns.Call(call, events.KindAsk)
	last, ours, err := s.add(ctx, place, h.prev, h.ask)
	if !errors.Is(err, jetstream.ErrTooLarge) {
		return last, ours, err
	}
	h.ask.Preview, h.ask.LastWords = nil, nil
	if h.ask.Display != nil {
		h.ask.Display = &events.AskDisplay{Args: events.Unavailable(events.PhaseApproval), SuspendPayload: events.Unavailable(events.PhaseSuspend)}
	}
	if h.ask.Transcript != nil {
		h.ask.Transcript = &events.AskDisplay{Args: events.Unavailable(events.PhaseInput), SuspendPayload: events.Unavailable(events.PhaseSuspend)}
	}
	last, ours, err = s.add(ctx, place, h.prev, h.ask)
	if !errors.Is(err, jetstream.ErrTooLarge) {
		return last, ours, err
	}
	return s.add(ctx, s.ns.Call(call, events.KindResult), h.prev, events.CallFinished{
		ToolCallID: h.ask.ToolCallID, RunID: h.ask.RunID, ToolName: h.ask.ToolName, Round: h.ask.Round,
		Outcome: events.OutcomeError, Started: h.ask.Attempt > 0, Attempt: h.ask.Attempt, Error: &events.ToolError{
			Name: string(events.CodeTooLarge), Message: fmt.Sprintf("the call cannot be asked about: %v", err),
		},
	})
}

// announceAll goes on from the heads of calls that were asked about together. Every ask is shown before readers are told
// that the run is suspended, so that whoever stops there has seen them all.
func (s *Service) announceAll(ctx context.Context, r *run, heads []events.Event) error {
	var shown *events.CallHeld
	var queue putOff
	for _, head := range heads {
		if head.Place.Kind != events.KindAsk {
			if err := s.help(ctx, r, head); err != nil && !queue.takes(err) {
				return err
			}
			continue
		}
		ask, err := s.showAsk(ctx, r, head)
		if err != nil {
			return err
		}
		if ask != nil {
			shown = ask
		}
	}
	if shown == nil {
		return queue.later
	}
	if err := s.tellSuspended(ctx, *shown); err != nil {
		return err
	}
	return queue.later
}

// announce makes a stored ask known: its timers, and its chunk on the run's stream and on the root's.
func (s *Service) announce(ctx context.Context, r *run, fact events.Event) error {
	ask, err := s.showAsk(ctx, r, fact)
	if err != nil || ask == nil {
		return err
	}
	return s.tellSuspended(ctx, *ask)
}

// showAsk sets the timers of a stored ask and publishes its chunk; no ask when the fact is not genuine.
func (s *Service) showAsk(ctx context.Context, r *run, fact events.Event) (*events.CallHeld, error) {
	if err := s.genuine(fact); err != nil {
		return nil, s.tampered(ctx, r, fact, err)
	}
	ask, err := events.Data[events.CallHeld](fact)
	if err != nil {
		return nil, jetstream.Final(err)
	}
	if err := s.setTimers(ctx, ask, time.Time{}); err != nil {
		return nil, err
	}
	if ask.Background != nil {
		s.chunk(ctx, events.BackgroundSuspendedChunk(ask, fact.ID, fact.Stored.UTC()))
	}
	c := events.AskChunk(ask, fact.ID)
	s.chunk(ctx, c)
	if ask.RootRunID != ask.RunID {
		c.RunID = ask.RootRunID
		s.chunk(ctx, c)
	}
	return &ask, nil
}

// tellSuspended publishes suspended when every unfinished call that the run waits for is held, so that readers may stop waiting;
// so it does for the runs above.
func (s *Service) tellSuspended(ctx context.Context, ask events.CallHeld) error {
	for _, of := range slices.Backward(ask.Path) {
		st, err := s.current(ctx, of.RunID)
		if err != nil {
			return ignoreMissing(err)
		}
		held, err := s.conn.HeldCalls(ctx, st)
		if err != nil || !slices.Contains(held, ask.ToolCallID) {
			return err
		}
		s.chunk(ctx, events.SuspendedChunk(of.RunID, held))
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, errNoRun) || errors.Is(err, jetstream.ErrNotFound) {
		return nil
	}
	return err
}

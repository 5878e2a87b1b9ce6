package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Background calls. A step does not wait for a deferred call: the model is told that it was started, and its result takes that
// place once it is there. Each turn says which results it has not seen, so the log alone tells what a model knew.
//
// A step that waits for nothing is driven by nobody's result: whoever has stored it goes on in the same delivery, and when that
// one is stopped, the delivery comes again and finds a step without a driver. A run does not complete while a background call
// of it is held: the model's last words are a step of their own then, and the result of a call brings the next turn.

// judgedSoon is how long a run that is about to end waits for the gate to judge a background call.
const judgedSoon = 300 * time.Millisecond

// turnPause is how long a result waits for the turn that is under way when it comes.
const turnPause = time.Second

// planBackground says of each call of a turn whether it runs in the background, and takes out of its arguments what the model
// says of that.
func (t *teller) planBackground() {
	open, limit := len(t.st.OpenTasks()), events.MaxBackground
	if b := t.p.def.agent.BackgroundTasks; b != nil {
		limit = cmp.Or(b.Concurrency, limit)
	}
	for i, c := range t.turn.calls {
		args, said := events.TakeBackground(c.Args, t.p.def.tools[c.ToolName].InputSchema)
		t.turn.calls[i].Args = args
		if c.Truncated || open >= limit {
			continue
		}
		if t.turn.calls[i].Background = t.p.def.background[c.ToolName].Plan(said); t.turn.calls[i].Background != nil {
			open++
		}
	}
}

// lastWords is the step of a turn that asks for no calls while background calls are held.
func lastWords(st *events.State, t turn) *events.StepFinished {
	return &events.StepFinished{
		RunID: st.RunID, Step: st.Step + 1, Attempt: t.attempt, MessageID: t.messageID, Message: t.message,
		Calls: []events.CallPlanned{}, Usage: t.usage, FinishReason: reasonStop, Model: t.model, Active: events.Duration(t.active),
		Background: st.OpenTasks(), ObjectOutput: t.structured,
	}
}

// spokenEnd is the end of a run that has said its last words and waits for no background call any more.
func spokenEnd(st *events.State) *events.RunEnded {
	e := endOf(st, events.RunCompleted)
	e.FinishReason, e.ObjectOutput = reasonStop, st.ObjectOutput
	if n := len(st.Messages); n > 0 && st.Messages[n-1].Role == events.RoleAssistant {
		m := st.Messages[n-1]
		e.MessageID, e.Message = m.ID, &m
	}
	return e
}

// afterStep shows what a stored step has begun, and goes on with one that waits for nothing.
func (s *Service) afterStep(ctx context.Context, st *events.State, head events.Event, delivery int) error {
	if st.OneTool() || len(st.OpenTasks()) == 0 && !st.Waiting {
		return nil
	}
	def, err := s.definition(ctx, st)
	if err != nil {
		return err
	}
	for _, c := range st.Calls {
		if c.Planned.Background != nil {
			s.showStarted(ctx, st, def, c)
		}
	}
	if !st.Settled() {
		if _, left := waitedOut(st, head); left > 0 && len(st.Awaited()) == awaitedTasks(st) {
			return jetstream.Later(left)
		}
		return nil
	}
	if !st.Undriven() {
		return nil
	}
	st = st.Clone() // what is remembered stays as it is
	if err := s.conn.FoldResults(ctx, st); err != nil {
		return err
	}
	return s.advance(ctx, st, head, delivery)
}

func awaitedTasks(st *events.State) int {
	n := 0
	for _, c := range st.Calls {
		if c.State != events.CallSettled && c.Planned.Background != nil && !c.Deferred() {
			n++
		}
	}
	return n
}

// waitedOut is the state in which awaited calls that the step at head has waited for long enough are deferred, and how long it
// is until the next of them is; 0 when there is none.
func waitedOut(st *events.State, head events.Event) (*events.State, time.Duration) {
	var left time.Duration
	out, since := st, head.Stored
	if since.IsZero() { // this process has just stored it
		since = head.Time
	}
	for i, c := range st.Calls {
		wait := c.Planned.Background.Wait()
		if c.State == events.CallSettled || c.Deferred() || wait == 0 {
			continue
		}
		until := time.Until(since.Add(wait))
		if until > 0 {
			if left == 0 || until < left {
				left = until
			}
			continue
		}
		if out == st {
			out = st.Clone()
		}
		b := *c.Planned.Background
		b.Disposition = events.Deferred
		out.Calls[i].Planned.Background = &b
	}
	return out, left
}

// pickUp goes on with a run whose last step waits for no result, when what has brought that step is delivered again: whoever
// stored it was stopped, or has put it off.
func (s *Service) pickUp(ctx context.Context, st *events.State, head events.Event, d jetstream.Delivery) error {
	if d.Attempt == 1 || st.Ended != "" || st.LastResult() != 0 {
		return nil
	}
	st, left := waitedOut(st, head)
	switch {
	case !st.Settled() && left > 0 && len(st.Awaited()) == awaitedTasks(st):
		return jetstream.Later(left)
	case !st.Undriven():
		return nil
	case s.busy(st.RunID):
		return jetstream.Later(turnPause)
	}
	return s.advance(ctx, st, head, d.Attempt)
}

// onTask handles the result of a background call, or of a call of an earlier step. It shows it, and goes on with a run that
// waits for it.
func (s *Service) onTask(ctx context.Context, st *events.State, head events.Event, d jetstream.Delivery) error {
	if err := s.showTask(ctx, st, d.Event); err != nil {
		return err
	}
	task := st.Task(d.Event.Place.Call)
	switch {
	case task == nil: // seen already, or of the foreground
		return s.pickUp(ctx, st, head, d)
	case !task.Deferred() && st.Settled() && st.LastResult() == d.Event.Seq:
		return s.advance(ctx, st, head, d.Attempt)
	case !st.Settled():
		return s.settle(ctx, st, head, d)
	}
	def, err := s.definition(ctx, st)
	if err != nil {
		return s.fail(ctx, st, head, events.Errorf(events.CodeDefinitionMissing, "%v", err), err)
	}
	act := next(st, limitsOf(def.agent.Limits, st.Options.Limits))
	switch {
	case act.end == nil && !st.Waiting: // a turn is under way
		return s.pickUp(ctx, st, head, d)
	case act.wait, st.Waiting && act.turn && st.Joining() != d.Event.Seq: // a later result goes on
		return nil
	case s.busy(st.RunID):
		return jetstream.Later(turnPause)
	}
	return s.advance(ctx, st, head, d.Attempt)
}

// standing is how the open background calls of a run stand.
type standing struct {
	held    []string // they wait for people
	pending bool     // the gate has not judged one
	running bool
	ended   bool // since the state was read
}

// waits reports whether the run may not complete yet.
func (s standing) waits() bool { return s.pending || len(s.held) > 0 }

func (s *Service) standing(ctx context.Context, run string, open []events.OpenTask) (standing, error) {
	var now standing
	for _, t := range open {
		call, err := events.CallOf(run, t.C)
		if err != nil {
			return now, jetstream.Final(err)
		}
		last, err := s.conn.Last(ctx, s.ns.Call(call, events.KindAsk).Chain())
		if err != nil && !errors.Is(err, jetstream.ErrNotFound) {
			return now, fmt.Errorf("read head of %s: %w", call, err)
		}
		switch last.Place.Kind {
		case "":
			now.pending = true
		case events.KindAsk, events.KindAnswer, events.KindSuspend:
			now.held = append(now.held, call.String())
		case events.KindResult:
			now.ended = true
		default:
			now.running = true
		}
	}
	return now, nil
}

// waitsForTasks reports whether the last words of a run have to be kept while it waits for background calls, or are said
// before it knows the result of one that is there.
func (s *Service) waitsForTasks(ctx context.Context, st *events.State, end events.RunEnded) (bool, error) {
	open := st.OpenTasks()
	if len(open) == 0 || end.Outcome != events.RunCompleted {
		return false, nil
	}
	now, err := s.standing(ctx, st.RunID, open)
	return now.waits() || now.ended, err
}

// conclude ends a run, unless background calls are in the way: a run that fails closes them first, by the gate, and one that
// completes waits until none is held. Those that run go on.
func (s *Service) conclude(ctx context.Context, st *events.State, head events.Event, end events.RunEnded) error {
	open := st.OpenTasks()
	switch {
	case len(open) == 0:
		return s.end(ctx, st, head, end)
	case end.Outcome == events.RunFailed:
		return s.askForEnd(ctx, st.RunID, end.Error, head)
	}
	now, err := s.standing(ctx, st.RunID, open)
	switch {
	case err != nil:
		return err
	case now.pending:
		return jetstream.Later(judgedSoon)
	case now.waits():
		if !now.running && !now.ended {
			s.chunk(ctx, events.SuspendedChunk(st.RunID, now.held))
		}
		return nil // the result of one of them goes on
	case now.ended && st.Waiting:
		return nil // its delivery goes on
	}
	end.Background = open
	return s.end(ctx, st, head, end)
}

// showStarted tells readers that a call goes on in the background.
func (s *Service) showStarted(ctx context.Context, st *events.State, def *definition, c events.CallState) {
	about := aboutCall(st, c)
	args := def.view(c.Planned.ToolName).Args(ctx, events.TargetDisplay, events.PhaseInput, about, c.Args()).Value
	for _, chunk := range events.BackgroundStartedChunks(st.RunID, st.AgentID, c, args) {
		s.chunk(ctx, chunk)
	}
}

// showTask publishes the chunk of a result, if it is one of a background call. The state is nil when the run is over.
func (s *Service) showTask(ctx context.Context, st *events.State, result events.Event) error {
	planned, err := s.plannedTask(ctx, st, result.Place.CallID())
	if err != nil || planned == nil {
		return err
	}
	f, err := events.Data[events.CallFinished](result)
	if err != nil {
		return jetstream.Final(err)
	}
	if st == nil {
		if st, _, err = s.conn.RunState(ctx, result.Place.Run); err != nil {
			return ignoreMissing(err)
		}
	}
	def, err := s.definition(ctx, st)
	if err != nil {
		def = nil // nothing of it is shown
	}
	c := events.CallState{C: result.Place.Call, Planned: *planned, Finished: &f}
	f.ToolName = planned.ToolName
	shown, args, notes := def.view(planned.ToolName).Finished(ctx, f, c.Args())
	chunk := events.BackgroundEndChunk(shown, args, result.ID, result.Stored.UTC())
	chunk.Metadata = notes.Metadata()
	s.chunk(ctx, chunk)
	return s.keepTask(ctx, st, def, c)
}

// plannedTask is a background call as its step planned it; nil when it runs in the foreground, or nobody knows it any more.
func (s *Service) plannedTask(ctx context.Context, st *events.State, call events.CallID) (*events.CallPlanned, error) {
	if st != nil {
		if task := st.Task(call.Token()); task != nil {
			return &task.Planned, nil
		}
	}
	fact, err := s.conn.Fact(ctx, s.ns.Step(call.Run, call.Step))
	if err != nil {
		return nil, ignoreMissing(err)
	}
	d, err := events.Data[events.StepFinished](fact)
	if err != nil {
		return nil, jetstream.Final(err)
	}
	if call.Index < 1 || call.Index > len(d.Calls) || d.Calls[call.Index-1].Background == nil {
		return nil, nil //nolint:nilnil // of the foreground
	}
	return &d.Calls[call.Index-1], nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil
	}
	return err
}

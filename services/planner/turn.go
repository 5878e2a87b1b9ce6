package planner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
)

// triesPerDelivery separates the attempts of one delivery of a turn's driving fact from those of the next.
const triesPerDelivery = 100

// errEnded says that the run ended while the model was speaking.
var errEnded = errors.New("the run has ended")

// think asks the model for a turn, publishes what it says as it comes, and commits it after head. Two planners may do
// this at once; one turn is stored, and the committed step names the attempt whose chunks count.
func (s *Service) think(ctx context.Context, st *events.State, head events.Event, def *definition, delivery int) error {
	model, name, err := s.cfg.Models.Model(orElse(st.Options.Model, def.agent.Model))
	if err != nil {
		return s.end(ctx, st, head, *failedEnd(st, events.Errorf(events.CodeModelFailed, "%v", err)))
	}
	p, broken := promptOf(st, def, name)
	if broken != nil {
		return s.end(ctx, st, head, *failedEnd(st, broken))
	}
	turnCtx, done := s.enterTurn(ctx, st.RunID)
	defer done()
	t, err := s.ask(turnCtx, st, model, p, delivery)
	switch {
	case turnCtx.Err() != nil && context.Cause(turnCtx) == errEnded: //nolint:errorlint // our own cause, unwrapped
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return s.end(ctx, st, head, *failedEnd(st, events.Errorf(events.CodeModelFailed, "%v", err)))
	}
	t.model = orElse(st.Options.Model, def.agent.Model)
	return s.commit(ctx, st, head, t, limitsOf(def.agent.Limits, st.Options.Limits))
}

// enterTurn bounds a turn and makes it end when the run does.
func (s *Service) enterTurn(ctx context.Context, run string) (context.Context, func()) {
	ctx, cancelCause := context.WithCancelCause(ctx)
	ctx, cancel := context.WithTimeout(ctx, s.cfg.TurnTimeout)
	s.mu.Lock()
	s.turns[run] = func() { cancelCause(errEnded) }
	s.mu.Unlock()
	return ctx, func() {
		s.mu.Lock()
		delete(s.turns, run)
		s.mu.Unlock()
		cancel()
		cancelCause(nil)
	}
}

// ask asks until the model has finished a turn. The planner owns these retries: what may pass is asked again with
// growing, jittered delay, and readers are told to drop what they saw of the attempt before.
func (s *Service) ask(ctx context.Context, st *events.State, model agent.Model, p prompt, delivery int) (turn, error) {
	var err error
	for try := range s.cfg.Tries {
		attempt := (delivery-1)*triesPerDelivery + try + 1
		t := s.newTeller(ctx, st, p, attempt)
		var got turn
		got, err = t.listen(ctx, model)
		switch {
		case err == nil && (!got.empty || try > 0):
			return got, nil
		case err == nil:
			continue // neither text nor a call: asked once more
		case ctx.Err() != nil:
			return turn{}, ctx.Err()
		}
		failure, ok := errors.AsType[*agent.ModelError](err)
		if !ok || !failure.Retryable || try == s.cfg.Tries-1 {
			break
		}
		if err := sleep(ctx, max(failure.After, backoff(try))); err != nil {
			return turn{}, err
		}
	}
	return turn{}, err
}

// backoff grows from half a second, with jitter.
func backoff(try int) time.Duration {
	base := 500 * time.Millisecond << min(try, 5)
	return base/2 + rand.N(base) //nolint:gosec // jitter is no secret
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// commit stores what the model said: a step, or the end of the run. When somebody else's fact stands in its place, this
// turn is dropped, and what stands carries the work on.
func (s *Service) commit(ctx context.Context, st *events.State, head events.Event, t turn, lim events.Limits) error {
	if len(t.calls) > events.MaxCalls {
		return s.end(ctx, st, head, *failedEnd(st, events.Errorf(events.CodeModelFailed,
			"the model asked for %d calls in one turn; at most %d are allowed", len(t.calls), events.MaxCalls)))
	}
	step, end := commit(st, t, lim)
	if end != nil {
		return s.end(ctx, st, head, *end)
	}
	last, ours, err := s.add(ctx, s.ns.Step(st.RunID, step.Step), head, *step)
	if errors.Is(err, jetstream.ErrTooLarge) {
		return s.end(ctx, st, head, *failedEnd(st, events.Errorf(events.CodeTooLarge, "the turn is too large: %v", err)))
	}
	if err != nil || !ours {
		return err
	}
	if err := st.Apply(last); err != nil {
		return jetstream.Final(fmt.Errorf("fold step %d of %s: %w", step.Step, st.RunID, err))
	}
	s.remember(st)
	return nil
}

// teller reads one attempt of a turn from the model and tells readers as it goes.
type teller struct {
	s     *Service
	ctx   context.Context //nolint:containedctx // lives for one call of listen
	st    *events.State
	p     prompt
	turn  turn
	index int
	parts map[string]int // index in message parts, by the stream's id
	calls map[string]int // index in calls, by the stream's id
	args  []strings.Builder
	ended []bool
	open  string // id of the text or reasoning that is being told
	kind  string
}

func (s *Service) newTeller(ctx context.Context, st *events.State, p prompt, attempt int) *teller {
	t := &teller{s: s, ctx: ctx, st: st, p: p, parts: map[string]int{}, calls: map[string]int{}}
	t.turn = turn{attempt: attempt, messageID: events.NewID(time.Now()), message: events.Message{Role: events.RoleAssistant, Parts: []events.Part{}}}
	t.turn.message.ID = t.turn.messageID
	return t
}

// tell publishes one chunk of this attempt.
func (t *teller) tell(c events.Chunk) {
	t.index++
	c.Step, c.Attempt, c.Index = t.st.Step+1, t.turn.attempt, t.index
	t.s.chunk(t.ctx, c)
}

// listen reads the model's stream to its end. A stream that breaks off is an error, and nothing of it counts.
func (t *teller) listen(ctx context.Context, model agent.Model) (turn, error) {
	began := time.Now()
	t.begin()
	finished := false
	for part, err := range model.Stream(ctx, t.p.request) {
		if err != nil {
			return turn{}, err
		}
		if part.Type == agent.PartFinish {
			finished = true
			t.turn.reason, t.turn.usage = string(part.FinishReason), part.Usage
			continue
		}
		t.hear(part)
	}
	if !finished {
		return turn{}, &agent.ModelError{Retryable: true, Err: errors.New("the stream ended before the turn did")}
	}
	t.close()
	for i := range t.turn.calls {
		t.turn.calls[i].Args = t.args[i].String()
		t.turn.calls[i].Truncated = !t.ended[i]
	}
	t.turn.active = time.Since(began)
	t.turn.empty = len(t.turn.calls) == 0 && strings.TrimSpace(t.turn.message.Text()) == ""
	return t.turn, nil
}

func (t *teller) begin() {
	if t.turn.attempt > 1 {
		t.tell(events.StepRetryChunk(t.st.RunID, t.turn.messageID, t.turn.attempt))
	}
	if t.st.Step == 0 {
		t.tell(events.StartChunk(t.st.RunID, t.st.AgentID, t.turn.messageID))
	}
	t.tell(events.StepStartChunk(t.st.RunID, t.turn.messageID, time.Now()))
}

func (t *teller) hear(p agent.ModelPart) {
	run := t.st.RunID
	switch p.Type {
	case agent.PartTextDelta, agent.PartReasoningDelta:
		t.hearText(p)
	case agent.PartToolInputStart:
		t.close()
		t.startCall(p)
	case agent.PartToolInputDelta:
		if i, ok := t.calls[p.ID]; ok {
			t.args[i].WriteString(p.Text)
			t.tell(events.ToolInputDeltaChunk(run, t.callID(i), t.turn.calls[i].ToolName, p.Text))
		}
	case agent.PartToolInputEnd:
		if i, ok := t.calls[p.ID]; ok && !t.ended[i] {
			t.ended[i] = true
			t.tell(events.ToolInputEndChunk(run, t.callID(i)))
			t.tell(events.ToolCallChunk(run, t.callID(i), t.turn.calls[i].ToolName, t.args[i].String()))
		}
	case agent.PartWarning:
		t.tell(events.WarningChunk(run, "model", p.Text))
	case agent.PartFinish:
	}
}

func (t *teller) startCall(p agent.ModelPart) {
	if _, ok := t.calls[p.ID]; ok {
		return
	}
	i := len(t.turn.calls)
	t.calls[p.ID] = i
	t.turn.calls = append(t.turn.calls, events.CallPlanned{ToolName: t.p.key(p.ToolName), ProviderCallID: p.ProviderCallID})
	t.args, t.ended = append(t.args, strings.Builder{}), append(t.ended, false)
	t.tell(events.ToolInputStartChunk(t.st.RunID, t.callID(i), t.turn.calls[i].ToolName))
}

func (t *teller) callID(i int) string {
	return events.CallID{Run: t.st.RunID, Step: t.st.Step + 1, Index: i + 1}.String()
}

// hearText tells a piece of text or reasoning; pieces of one id belong together.
func (t *teller) hearText(p agent.ModelPart) {
	kind := events.PartText
	if p.Type == agent.PartReasoningDelta {
		kind = events.PartReasoning
	}
	id := kind + p.ID
	if t.open != id {
		t.close()
		t.open, t.kind = id, kind
		t.parts[id] = len(t.turn.message.Parts)
		t.turn.message.Parts = append(t.turn.message.Parts, events.Part{Type: kind})
		t.tell(events.TextStartChunk(t.st.RunID, kind, t.textID()))
	}
	part := &t.turn.message.Parts[t.parts[id]]
	part.Text += p.Text
	part.Signature += p.Signature
	if p.Text != "" {
		t.tell(events.TextDeltaChunk(t.st.RunID, kind, t.textID(), p.Text))
	}
}

func (t *teller) textID() string { return fmt.Sprintf("%s-%d", t.turn.messageID, t.parts[t.open]) }

// close ends the text or reasoning that is being told.
func (t *teller) close() {
	if t.open == "" {
		return
	}
	t.tell(events.TextEndChunk(t.st.RunID, t.kind, t.textID()))
	t.open = ""
}

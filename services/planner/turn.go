package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/service"
)

// triesPerDelivery separates the attempts of one delivery of a turn's driving fact from those of the next.
const triesPerDelivery = 100

// errEnded says that the run ended while the model was speaking.
var errEnded = errors.New("the run has ended")

// think asks the model for a turn, publishes what it says as it comes, and commits it after head. Two planners may do
// this at once; one turn is stored, and the committed step names the attempt whose chunks count.
func (s *Service) think(ctx context.Context, st *events.State, head events.Event, def *definition, delivery int) error {
	messages, err := s.conn.Whole(ctx, st.Transcript())
	if err != nil {
		return fmt.Errorf("read the results of %s: %w", st.RunID, err)
	}
	turnCtx, done := s.enterTurn(ctx, st.RunID)
	t, broken, err := s.askAny(turnCtx, st, def, messages, delivery)
	if err == nil && broken == nil {
		err = s.structure(turnCtx, st, def, &t)
	}
	ended := turnCtx.Err() != nil && context.Cause(turnCtx) == errEnded //nolint:errorlint // our own cause, unwrapped
	done()                                                              // before its own end is heard
	switch {
	case ended:
		return s.closeEnded(ctx, st)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return s.conclude(ctx, st, head, *failedTurn(st, t, events.Errorf(events.CodeModelFailed, "%v", err)))
	case broken != nil:
		return s.conclude(ctx, st, head, *failedEnd(st, broken))
	}
	t.delivery = delivery
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

// warningFallback is the code of warnings that another model is asked.
const warningFallback = "model_fallback"

// askAny asks the run's model, and where that fails its fallbacks, each as often as a model is asked. What is broken would be
// so for every model, or is said of the first.
func (s *Service) askAny(ctx context.Context, st *events.State, def *definition, messages []events.Message, delivery int) (turn, *events.Error, error) {
	change, broken := s.prepared(ctx, st, def)
	if broken != nil {
		return turn{}, broken, nil
	}
	var first error
	var said turn // of the last attempt, which failed
	run := st
	st = changed(st, def, change)
	ids := st.Options.Models(def.agent)
	for i, id := range ids {
		model, name, err := s.cfg.Models.Model(id)
		if err == nil {
			p, broken := promptOf(ctx, st, def, name, messages)
			if broken == nil {
				broken = p.searches(model, id)
			}
			if broken != nil && i == 0 {
				return turn{}, broken, nil
			}
			if broken != nil {
				continue
			}
			said, err = s.ask(ctx, st, model, p, (delivery-1)*triesPerDelivery+i*s.cfg.Tries)
			if t := said; err == nil {
				t.model, t.usage = id, s.priced(ctx, st, def, id, t.usage)
				withhold(t.calls, st, run, def)
				return t, nil, nil
			}
		}
		if ctx.Err() != nil {
			return turn{}, nil, err
		}
		first = cmp.Or(first, err)
		if i+1 < len(ids) {
			s.log.WarnContext(ctx, "a model failed, another one is asked", "runId", st.RunID, "model", id, "next", ids[i+1], "error", err)
			s.chunk(ctx, events.WarningChunk(st.RunID, warningFallback, fmt.Sprintf("the model %s failed: %s is asked", id, ids[i+1])))
		}
	}
	return said, nil, first
}

// ask asks until the model has finished a turn. The planner owns these retries: what may pass is asked again with
// growing, jittered delay, and readers are told to drop what they saw of the attempt before. Attempts are numbered after before.
func (s *Service) ask(ctx context.Context, st *events.State, model agent.Model, p prompt, before int) (turn, error) {
	var err error
	var got turn
	for try := range s.cfg.Tries {
		attempt := before + try + 1
		got, err = s.newTeller(ctx, st, p, attempt).listen(ctx, model)
		switch {
		case err == nil && (!got.empty || try > 0 || try == s.cfg.Tries-1):
			return got, nil
		case err == nil:
			continue // neither text nor a call: asked once more
		case ctx.Err() != nil:
			return turn{}, ctx.Err()
		}
		if again, err := s.again(ctx, err, try); err != nil {
			return turn{}, err
		} else if !again {
			break
		}
	}
	return got, err
}

// again waits until a model that has failed may be asked once more; false says that this would not help.
func (s *Service) again(ctx context.Context, failed error, try int) (bool, error) {
	failure, ok := errors.AsType[*agent.ModelError](failed)
	if !ok || !failure.Retryable || try == s.cfg.Tries-1 {
		return false, nil
	}
	return true, service.Sleep(ctx, max(failure.After, backoff(try)))
}

// backoff grows from half a second, with jitter.
func backoff(try int) time.Duration {
	base := 500 * time.Millisecond << min(try, 5)
	return base/2 + rand.N(base) //nolint:gosec // jitter is no secret
}

// commit stores what the model said: a step, or the end of the run. When somebody else's fact stands in its place, this
// turn is dropped, and what stands carries the work on.
func (s *Service) commit(ctx context.Context, st *events.State, head events.Event, t turn, lim events.Limits) error {
	if len(t.calls) > events.MaxCalls {
		return s.conclude(ctx, st, head, *failedEnd(st, events.Errorf(events.CodeModelFailed,
			"the model asked for %d calls in one turn; at most %d are allowed", len(t.calls), events.MaxCalls)))
	}
	step, end := commit(st, t, lim)
	if end != nil {
		waits, err := s.waitsForTasks(ctx, st, *end)
		switch {
		case err != nil:
			return err
		case !waits:
			return s.conclude(ctx, st, head, *end)
		}
		step = lastWords(st, t)
	}
	last, ours, err := s.add(ctx, s.ns.Step(st.RunID, step.Step), head, *step)
	if errors.Is(err, jetstream.ErrTooLarge) {
		return s.conclude(ctx, st, head, *failedEnd(st, events.Errorf(events.CodeTooLarge, "the turn is too large: %v", err)))
	}
	if err != nil {
		return err
	}
	if !ours {
		return s.lostTo(ctx, st, last)
	}
	if err := st.ApplyStep(*step, last); err != nil {
		return jetstream.Final(fmt.Errorf("fold step %d of %s: %w", step.Step, st.RunID, err))
	}
	s.remember(st, last)
	return s.afterStep(ctx, st, last, t.delivery)
}

// priced is a usage of a model with what it costs. That a run whose cost is bounded asks a model without a price is said once.
func (s *Service) priced(ctx context.Context, st *events.State, def *definition, id string, used events.Usage) events.Usage {
	var price *events.Price
	if known, ok := s.cfg.Models.(Prices); ok {
		price = known.Price(id)
	}
	if price != nil {
		return price.Of(used)
	}
	if limitsOf(def.agent.Limits, st.Options.Limits).Cost > 0 {
		if said, _ := s.unpriced.Get(id); !said {
			s.unpriced.Put(id, true, 1)
			s.log.WarnContext(ctx, "the cost of runs is bounded, and what this model costs is not counted: give it a price", "model", id)
		}
	}
	return used
}

// Package planner runs the agent loop: it starts runs, asks models for turns, stores each turn as a fact, and goes on
// once every call of a turn has its result. It reads hostile text and therefore releases nothing and executes nothing.
//
// Every turn is driven by a fact, but for those after a step that waits for nothing (background.go). The loop itself (loop.go) is a pure function of the run's state; this file and its
// neighbours read the state, call the model and append what the loop says, under the head that they read.
package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/lru"
	"github.com/weirkeeper/weir/services/internal/rule"
	"github.com/weirkeeper/weir/services/internal/service"
)

// Name is the service's name on the bus.
const Name = "planner"

// Models finds a model by its id, "<provider>/<model>".
type Models interface {
	// Model returns the adapter and the name that its provider knows, or an error of code not_found.
	Model(id string) (m agent.Model, name string, err error)
}

// Prices tells what models cost. [Models] that do not implement it know no prices.
type Prices interface {
	// Price is what a million tokens of a model cost; nil when that is not known.
	Price(id string) *events.Price
}

// Config of a planner. Zero fields have the default that their comment names.
type Config struct {
	// ID of this process among the planners. Default: a new one.
	ID string
	// Models answer the turns. Required.
	Models Models
	// GateKeys are the public keys of gates whose releases of delegated calls count. Required, and never read from the bus.
	GateKeys events.Keys
	// Concurrency is how many turns are under way at once in this process. Default 128.
	Concurrency int
	// TurnTimeout bounds one turn, all its tries included. Default 10 min.
	TurnTimeout time.Duration
	// Tries is how often a turn is asked for of a model that fails in a way that may pass. Default 4, at most 10.
	Tries int
	// StopWhen and PrepareStep are functions that agents name in stopWhen and prepareStep. Every planner of the namespace needs
	// those that its agents name: without one a run that needs it fails.
	StopWhen    map[string]StopFunc
	PrepareStep map[string]StepFunc
	// Retention of the log; an open run is carried before a third of it has passed. Default 24 h.
	Retention time.Duration
	// Sweep is the pause between two sweeps, DeepSweep between two that look at every run. Default 10 s and 10 min.
	Sweep, DeepSweep time.Duration
	// SweepAge is how old a fact must be before the sweeper looks after it. Default 30 s.
	SweepAge time.Duration
	// Log takes what has no caller. Default: discarded.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.ID = cmp.Or(c.ID, events.NewID(time.Now()))
	c.Concurrency = cmp.Or(c.Concurrency, 128)
	c.TurnTimeout = cmp.Or(c.TurnTimeout, 10*time.Minute)
	c.Tries = min(cmp.Or(c.Tries, 4), 10)
	c.Retention = cmp.Or(c.Retention, 24*time.Hour)
	c.Sweep = cmp.Or(c.Sweep, 10*time.Second)
	c.DeepSweep = cmp.Or(c.DeepSweep, 10*time.Minute)
	c.SweepAge = cmp.Or(c.SweepAge, 30*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Service is a planner.
type Service struct {
	conn   *jetstream.Conn
	ns     events.Namespace
	cfg    Config
	log    *slog.Logger
	origin *events.Origin

	states *lru.Cache[string, memory]      // by run id
	agents *lru.Cache[string, *definition] // by digests
	exprs  *rule.Cache

	unpriced *lru.Cache[string, bool] // ids of models of which it was said that they have no price

	mu    sync.Mutex
	turns map[string]context.CancelFunc // turns under way, by run id
}

// Bounds of what a planner remembers, for runs that go on at once: those that wait are read from the log when they go on.
const (
	maxStateBytes  = 12 << 20
	maxDefinitions = 1024
)

// New makes a planner.
func New(conn *jetstream.Conn, cfg Config) (*Service, error) {
	if cfg.Models == nil {
		return nil, errors.New("a planner needs models: Config.Models")
	}
	if len(cfg.GateKeys) == 0 {
		return nil, errors.New("a planner needs the public keys of its gates: Config.GateKeys")
	}
	cfg = cfg.withDefaults()
	return &Service{
		conn: conn, ns: conn.Namespace(), cfg: cfg, log: cfg.Log,
		origin: &events.Origin{Namespace: conn.Namespace(), Service: Name},
		states: lru.New[string, memory](maxStateBytes),
		agents: lru.New[string, *definition](maxDefinitions),
		exprs:  rule.NewCache(maxDefinitions),

		unpriced: lru.New[string, bool](maxDefinitions),
		turns:    map[string]context.CancelFunc{},
	}, nil
}

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	if err := s.conn.SelfTest(ctx, Name); err != nil {
		return fmt.Errorf("self-test of the guards: %w", err)
	}
	stop, err := s.conn.HearFacts(ctx, s.ns.EveryMain(events.KindEnd), s.heardEnd)
	if err != nil {
		return fmt.Errorf("listen for ends of runs: %w", err)
	}
	defer stop()
	live := events.Live{Service: Name, ID: s.cfg.ID, Since: time.Now().UTC()}
	return service.All(ctx,
		func(ctx context.Context) error { return s.conn.KeepAlive(ctx, live) },
		s.conn.Consume(events.StreamInbox, Name, jetstream.Handler{
			Handle: s.onRequest, Malformed: s.onMalformed, Concurrency: s.cfg.Concurrency,
		}),
		s.conn.Consume(events.StreamRuns, Name, jetstream.Handler{
			Handle: s.onFact, Abandon: s.abandon, Malformed: s.onForeign, Concurrency: s.cfg.Concurrency,
		}),
		s.sweep)
}

// onFact handles a fact that may be a run's turn, its start or a result, or that begins a run: a call that is delegated.
func (s *Service) onFact(ctx context.Context, d jetstream.Delivery) error {
	switch d.Event.Place.Kind {
	case events.KindStart:
		return s.onStarted(ctx, d)
	case events.KindResult:
		return s.onResult(ctx, d)
	case events.KindGo:
		return s.onDelegated(ctx, d)
	default:
		return jetstream.Final(fmt.Errorf("a %s is not for the planner", d.Event.Place.Kind))
	}
}

// onStarted takes the first turn of a run.
func (s *Service) onStarted(ctx context.Context, d jetstream.Delivery) error {
	head, known := s.recall(d, 0)
	if !known {
		var err error
		if head, err = s.head(ctx, d.Event); err != nil || head.ID == "" {
			return err
		}
	}
	if head.Place.Kind == events.KindEnd {
		return s.closeThread(ctx, head)
	}
	first := head.Place.Kind == events.KindStep && head.Place.N == 1 // may have looked for answers only
	if head.Seq != d.Event.Seq && head.Place.Kind != events.KindCarry && !first && d.Attempt == 1 {
		return nil // the run has gone on
	}
	st, err := s.state(ctx, head, events.Event{})
	if err != nil {
		return err
	}
	if st.Turns() > 0 {
		return s.pickUp(ctx, st, head, d)
	}
	return s.advance(ctx, st, head, d.Attempt)
}

// onResult goes on when the result has settled its step. Of several results that did, the one with the highest
// sequence goes on, so that one delivery asks the model.
func (s *Service) onResult(ctx context.Context, d jetstream.Delivery) error {
	step := d.Event.Place.CallID().Step
	head, known := s.recall(d, step)
	var err error
	if !known {
		head, err = s.headBehind(ctx, d.Event)
	}
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return nil // the run has aged out
	case errors.Is(err, jetstream.ErrTampered):
		return s.giveUp(ctx, d.Event, events.Errorf(events.CodeTampering, "the run's record was tampered with"))
	case err != nil:
		return fmt.Errorf("read head of %s: %w", d.Event.Place.Run, err)
	case head.Place.Kind == events.KindEnd:
		return errors.Join(s.showTask(ctx, nil, d.Event), s.closeThread(ctx, head))
	}
	st, err := s.state(ctx, head, d.Event)
	switch {
	case errors.Is(err, jetstream.ErrTampered):
		return s.giveUp(ctx, d.Event, events.Errorf(events.CodeTampering, "the run's record was tampered with"))
	case err != nil:
		return err
	case st.Step < step:
		return fmt.Errorf("the leader does not show step %d of %s yet", step, st.RunID)
	case st.Step > step || st.Task(d.Event.Place.Call) != nil:
		return s.onTask(ctx, st, head, d)
	case st.Settled() && st.LastResult() == d.Event.Seq:
		return s.advance(ctx, st, head, d.Attempt)
	}
	s.showResult(ctx, st, d.Event)
	if st.Settled() {
		return nil
	}
	return s.settle(ctx, st, head, d)
}

// headBehind is the last main fact of a run, as a leader shows it that shows this result too: one that is behind would tell of
// a run that has not come as far.
func (s *Service) headBehind(ctx context.Context, result events.Event) (events.Event, error) {
	shown, err := s.conn.Fact(ctx, result.Place)
	if err != nil {
		return events.Event{}, err
	}
	if shown.Seq < result.Seq {
		return events.Event{}, fmt.Errorf("the leader does not show the result of %s yet", result.Place.CallID())
	}
	return s.conn.Last(ctx, s.ns.MainOf(result.Place.Run))
}

// settle goes on without awaited calls that the step has waited for long enough, and else tells readers when everything that
// is left waits for people.
func (s *Service) settle(ctx context.Context, st *events.State, head events.Event, d jetstream.Delivery) error {
	if st.LastResult() == d.Event.Seq {
		out, left := waitedOut(st, head)
		switch {
		case out.Settled():
			return s.advance(ctx, out, head, d.Attempt)
		case left > 0:
			return jetstream.Later(left)
		}
	}
	return s.tellSuspended(ctx, st)
}

// head is the last main fact of the run that fact belongs to; the zero Event when the run has aged out. A leader that
// does not show the fact itself yet is an error.
func (s *Service) head(ctx context.Context, fact events.Event) (events.Event, error) {
	head, err := s.conn.Last(ctx, fact.Place.Chain())
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return events.Event{}, nil
	case err != nil:
		return events.Event{}, fmt.Errorf("read head of %s: %w", fact.Place.Run, err)
	case head.Seq < fact.Seq:
		return events.Event{}, fmt.Errorf("the leader does not show %s of %s yet", fact.Place.Kind, fact.Place.Run)
	}
	return head, nil
}

// advance does what the loop says next.
func (s *Service) advance(ctx context.Context, st *events.State, head events.Event, attempt int) error {
	def, err := s.definition(ctx, st)
	if err != nil {
		return s.fail(ctx, st, head, events.Errorf(events.CodeDefinitionMissing, "%v", err), err)
	}
	act := next(st, limitsOf(def.agent.Limits, st.Options.Limits))
	if act.wait {
		return nil
	}
	if act.turn {
		if yes, broken := s.stops(ctx, st, def); broken != nil {
			act = action{end: failedEnd(st, broken)}
		} else if yes {
			act = action{end: limitEnd(st, limitStop)}
		}
	}
	if act.end == nil || !st.Waiting { // its end holds what it has said
		if err := s.keepTurn(ctx, st, def); err != nil {
			return err
		}
	}
	s.finishStep(ctx, st, def)
	if st.Waiting && act.turn {
		s.chunk(ctx, events.StepFinishChunk(st, st.Messages[len(st.Messages)-1].ID, reasonStop, true, nil))
	}
	if act.end != nil {
		return s.conclude(ctx, st, head, *act.end)
	}
	if act.call {
		return s.call(ctx, st, head, def, attempt)
	}
	switch openingOf(st, def) {
	case opensByAsking:
		return s.seekAnswers(ctx, st, head, def, attempt)
	case opensByWaiting:
		return s.awaitAnswers(ctx, st, head, def, attempt)
	default:
		return s.think(ctx, st, head, def, attempt)
	}
}

// fail ends a run that cannot go on. What may pass is an error for another delivery.
func (s *Service) fail(ctx context.Context, st *events.State, head events.Event, why *events.Error, cause error) error {
	if !errors.Is(cause, jetstream.ErrNotFound) && why.Code == events.CodeDefinitionMissing {
		return cause
	}
	return s.conclude(ctx, st, head, *failedEnd(st, why))
}

// end appends a run's last fact after head. Its chunks are the gate's to publish, whoever ended the run.
func (s *Service) end(ctx context.Context, st *events.State, head events.Event, d events.RunEnded) error {
	last, ours, err := s.add(ctx, s.ns.End(st.RunID), head, d)
	if errors.Is(err, jetstream.ErrTooLarge) && d.Message != nil { // asking the model again would cost and help nothing
		return s.conclude(ctx, st, head, *failedEnd(st, events.Errorf(events.CodeTooLarge, "the final message is too large: %v", err)))
	}
	if err != nil {
		return err
	}
	if !ours {
		return s.lostTo(ctx, st, last)
	}
	s.states.Remove(st.RunID)
	return s.keepEnd(ctx, st, d, last)
}

// add appends a main fact after prev. When only a carry came in between, the fact follows the carry: it holds the same
// state.
func (s *Service) add(ctx context.Context, p events.Place, prev events.Event, data any) (events.Event, bool, error) {
	e, err := s.origin.Fact(p, data, prev)
	if err != nil {
		return events.Event{}, false, jetstream.Final(err)
	}
	for {
		a, err := s.conn.Append(ctx, events.After(prev), e)
		switch {
		case err != nil:
			return events.Event{}, false, fmt.Errorf("append %s of %s: %w", p.Kind, p.Run, err)
		case a.Outcome == jetstream.Stored:
			return a.Last, true, nil
		case a.Outcome == jetstream.Lost && a.Last.Place.Kind == events.KindCarry && p.Kind != events.KindCarry:
			prev = a.Last
		default:
			return a.Last, false, nil
		}
	}
}

// chunk publishes what people watch. It never fails a step.
func (s *Service) chunk(ctx context.Context, c events.Chunk) {
	if err := s.conn.PublishChunk(ctx, s.origin, c); err != nil {
		s.log.WarnContext(ctx, "chunk not published", "runId", c.RunID, "type", string(c.Type), "error", err)
	}
}

// heardEnd stops a turn of a run that has ended. Hearing proves nothing, so the end is read first.
func (s *Service) heardEnd(end events.Place) {
	s.states.Remove(end.Run)
	s.mu.Lock()
	cancel := s.turns[end.Run]
	s.mu.Unlock()
	if cancel == nil {
		return
	}
	ctx, done := context.WithTimeout(context.Background(), 5*time.Second)
	defer done()
	if _, err := s.conn.Fact(ctx, end); err == nil {
		cancel()
	}
}

// abandon ends a run whose turn cannot be handled, so that it does not stand still.
func (s *Service) abandon(ctx context.Context, d jetstream.Delivery, cause error) error {
	return s.giveUp(ctx, d.Event, events.Errorf(events.CodeDeliveryExhausted, "the planner could not go on: %v", cause))
}

// onForeign ends a run in whose record somebody has put a message that is no fact of Weir's.
func (s *Service) onForeign(ctx context.Context, d jetstream.Delivery, _ []byte, cause error) error {
	p, err := events.ParsePlace(d.Subject)
	if err != nil {
		return jetstream.Final(cause)
	}
	s.log.ErrorContext(ctx, "tampering: a fact that no service of Weir wrote", "runId", p.Run, "subject", d.Subject, "error", cause)
	why := events.Errorf(events.CodeTampering, "the run's record was tampered with")
	if err := s.giveUp(ctx, events.Event{Place: p}, why); err != nil {
		return err
	}
	return jetstream.Final(cause)
}

// giveUp ends a run as failed: directly when no call is open, else by asking the gate, which closes the calls first.
func (s *Service) giveUp(ctx context.Context, fact events.Event, why *events.Error) error {
	run := fact.Place.Run
	st, head, err := s.conn.RunState(ctx, run)
	switch {
	case err == nil && st.Ended != "":
		return nil
	case err == nil && st.Settled():
		return s.conclude(ctx, st, head, *failedEnd(st, why))
	}
	return s.askForEnd(ctx, run, why, fact)
}

// askForEnd asks the gate to end a run as failed, the calls first.
func (s *Service) askForEnd(ctx context.Context, run string, why *events.Error, fact events.Event) error {
	subject := s.ns.InCancel(events.TokenPlanner, run)
	e, err := s.origin.Request(subject, run, events.CancelRequested{
		RunID: run, End: string(events.RunFailed),
		Code: why.Code, Reason: why.Message,
	}, fact)
	if err != nil {
		return err
	}
	_, err = s.conn.Publish(ctx, subject, e)
	return err
}

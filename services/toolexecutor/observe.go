package toolexecutor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

const (
	// maxObserve is how long an observer may take.
	maxObserve = 10 * time.Second
	// maxUntold bounds what observers have yet to be told: what comes beyond is dropped.
	maxUntold = 1024
)

// watch is what the observers of tools hosted here are being told: of each call one thing after the other, as it happened.
type watch struct {
	mu     sync.Mutex
	untold int
	calls  map[string]*watched // by toolCallId
	wg     sync.WaitGroup
}

// watched is a call of which observers are being told.
type watched struct {
	next   []events.CallObserved
	cancel context.CancelCauseFunc
}

// observers are the loops that tell the observers of the tools hosted here.
func (s *Service) observers() []func(context.Context) error {
	var loops []func(context.Context) error
	for _, h := range s.hostedNow() {
		if o, err := events.ParseObservers(h.manifest.Hooks); err != nil || o == nil {
			continue
		}
		loops = append(loops, func(ctx context.Context) error {
			m := h.manifest
			stop, err := s.conn.HearObserved(ctx, m.ID, events.HostGroup(m.Version), func(o events.CallObserved) { s.observed(ctx, h, o) })
			if err != nil {
				return err
			}
			<-ctx.Done()
			stop()
			s.watch.mu.Lock()   // whoever began before has begun, and nobody begins any more
			s.watch.mu.Unlock() //nolint:staticcheck // the lock itself is what it waits for
			s.watch.wg.Wait()
			return nil
		})
	}
	return loops
}

// observed puts what was heard behind what the call's observers are being told. That of another version is left to its hosts.
func (s *Service) observed(ctx context.Context, h host, o events.CallObserved) {
	m := h.manifest
	if o.Namespace != s.ns || o.ToolID != m.ID || o.ToolVersion != m.Version {
		return
	}
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if s.watch.untold >= maxUntold {
		s.log.WarnContext(ctx, "observer not told: too much waits", "runId", o.RunID, "toolCallId", o.ToolCallID, "event", string(o.Event))
		return
	}
	s.watch.untold++
	if w := s.watch.calls[o.ToolCallID]; w != nil {
		w.next = append(w.next, o)
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watched{next: []events.CallObserved{o}, cancel: cancel}
	s.watch.calls[o.ToolCallID] = w
	s.watch.wg.Go(func() {
		defer cancel(nil)
		for o, more := s.untold(ctx, w); more; o, more = s.untold(ctx, w) {
			s.observe(ctx, h, o)
		}
	})
}

// untold takes what is next to be told of a call: nothing when all is told, or the call was cancelled.
func (s *Service) untold(ctx context.Context, w *watched) (o events.CallObserved, more bool) {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	if ctx.Err() != nil {
		s.watch.untold -= len(w.next)
		w.next = nil
	}
	if len(w.next) == 0 {
		for id, there := range s.watch.calls {
			if there == w {
				delete(s.watch.calls, id)
			}
		}
		return o, false
	}
	o, w.next = w.next[0], w.next[1:]
	s.watch.untold--
	return o, true
}

// observe runs an observer. Whatever becomes of it is logged, without its text, which may hold what must not be.
func (s *Service) observe(ctx context.Context, h host, o events.CallObserved) {
	ctx, cancel := context.WithTimeout(ctx, maxObserve)
	defer cancel()
	var messages func(context.Context) ([]events.Message, error)
	if o.Event != events.OnOutput {
		messages = func(ctx context.Context) ([]events.Message, error) { return s.messages(ctx, o.RunID, o.ToolCallID) }
	}
	err := agent.Observe(ctx, h.tool, agent.NewObserved(o, messages))
	if err == nil {
		return
	}
	why := "it failed"
	if _, panicked := errors.AsType[*agent.PanicError](err); panicked {
		why = "it panicked"
	} else if ctx.Err() != nil {
		why = "it did not finish in time"
	}
	s.log.WarnContext(ctx, "observer without success", "why", why, "runId", o.RunID, "toolCallId", o.ToolCallID, "toolId", h.manifest.ID, "event", string(o.Event))
}

// tellOutput tells a tool's observers of a result that is stored.
func (s *Service) tellOutput(ctx context.Context, rel events.CallReleased, f *events.CallFinished) {
	h, hosted := s.hosted(rel.ToolID)
	if !hosted || f == nil || f.Outcome != events.OutcomeOK {
		return
	}
	if o, err := events.ParseObservers(h.manifest.Hooks); err != nil || !o.Want(events.OnOutput) {
		return
	}
	err := s.conn.Observe(ctx, events.CallObserved{
		Namespace: s.ns, Event: events.OnOutput, RunID: rel.RunID, ToolCallID: rel.ToolCallID, ToolName: rel.ToolName, ToolID: rel.ToolID,
		ToolVersion: rel.ToolVersion, AgentID: rel.AgentID, Attempt: f.Attempt, Output: f.Result,
	})
	if err != nil {
		s.log.WarnContext(ctx, "observers not told", "runId", rel.RunID, "toolCallId", rel.ToolCallID,
			"event", string(events.OnOutput), "error", err)
	}
}

// of are the calls that end with a fact, among those of which observers are being told.
func (w *watch) of(p events.Place) []*watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []*watched
	for id, there := range w.calls {
		call, err := events.ParseCallID(id)
		if err == nil && call.Run == p.Run && (p.Kind != events.KindResult || call == p.CallID()) {
			found = append(found, there)
		}
	}
	return found
}

// cancels reports whether a fact ends a call or a run before it was done.
func cancels(fact events.Event) bool {
	if fact.Place.Kind == events.KindEnd {
		d, err := events.Data[events.RunEnded](fact)
		return err == nil && d.Outcome != events.RunCompleted
	}
	d, err := events.Data[events.CallFinished](fact)
	return err == nil && d.Outcome == events.OutcomeCancelled
}

package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// The gate's micro service: who cannot read the log decides by request and is told what became of it. It decides
// nothing itself. A decision is stored in the inbox as it came and handled from there like any other, by whichever gate
// it is delivered to; the one that was asked listens and looks at the log until that shows the outcome. If it dies
// meanwhile, the decision is stored all the same, and the same request may be sent again.

// ServiceName is how the micro service is found: nats micro info weir-approval.
const ServiceName = "weir-approval"

const (
	// outcomeTime is how long a decision's outcome is waited for before its sender is told that it is stored.
	outcomeTime = 8 * time.Second
	// firstLook is after how long without a hint the log is looked at; the wait doubles from look to look.
	firstLook = 250 * time.Millisecond
	maxLook   = 2 * time.Second
	// editLook is the pause between looks at what became of edited arguments, of which no hint tells.
	editLook = 25 * time.Millisecond
)

// serve answers requests until ctx ends.
func (s *Service) serve(ctx context.Context) error {
	for _, filter := range []string{
		s.ns.EveryCall(events.KindAnswer), s.ns.EveryBeside(events.KindRefused), s.ns.EveryBeside(events.KindVote),
	} {
		stop, err := s.conn.HearFacts(ctx, filter, s.waits.wake)
		if err != nil {
			return fmt.Errorf("hear outcomes: %w", err)
		}
		defer stop()
	}
	return s.conn.Serve(jetstream.Micro{
		Name: ServiceName, Description: "The approval gate of Weir: decides held calls, shows what they ask, and is administered.",
		Endpoints: []jetstream.Endpoint{
			{Name: events.VerbDecide, Subject: s.ns.Services(events.VerbDecide), Answer: s.serveDecide},
			{Name: events.VerbAsk, Subject: s.ns.Services(events.VerbAsk), Answer: s.serveAsk},
			{Name: events.VerbAdmin, Subject: s.ns.Services(events.VerbAdmin), Answer: s.serveAdmin},
		},
	})(ctx)
}

// parse reads the subject of a request. A message that the server has copied from a stream is nobody's request.
func (s *Service) parse(r jetstream.Request) (events.ServiceRequest, error) {
	req, err := s.ns.ParseService(r.Subject)
	if err == nil {
		err = events.Foreign(r.Header)
	}
	if err != nil {
		return req, events.Errorf(events.CodeInvalidRequest, "%v", err)
	}
	return req, nil
}

// serveDecide stores a decision in the inbox, in the name of the principal of the request's subject, and replies what
// became of it. The same event sent again gives the same outcome, and is not stored again once there is one.
func (s *Service) serveDecide(ctx context.Context, r jetstream.Request) (any, error) {
	req, err := s.parse(r)
	if err != nil {
		return nil, err
	}
	w := waiting{s: s, in: events.Inbox{Verb: req.Verb, Principal: req.Principal, Run: req.Run, Call: req.Call}}
	header := events.RequestHeader(r.Header)
	if e, err := events.DecodeMsg(header, r.Data); err == nil && len(e.ID) <= maxEventID {
		w.event = e.ID
		w.sent, _ = events.Data[events.DecisionRequested](e) // what cannot be read is refused
	}
	heard, leave := s.waits.join(req.Run, w.event)
	defer leave()
	if w.event != "" {
		if out, err := w.look(ctx); out != nil || err != nil {
			return out, err
		}
	}
	if w.seq, err = s.conn.StoreRequest(ctx, req.Inbox(s.ns), header, r.Data); err != nil {
		return nil, storeError(err)
	}
	if w.event == "" { // what is no event is told by its place in the inbox
		w.event = idOf(jetstream.Delivery{Event: events.Event{Seq: w.seq}})
	}
	return w.outcome(ctx, heard)
}

// storeError says why a decision is not in the inbox, or may not be. It may be sent again: a decision counts once.
func storeError(err error) error {
	switch {
	case errors.Is(err, jetstream.ErrTooLarge):
		return events.Errorf(events.CodeTooLarge, "the decision is too large to be stored: %v", err)
	case errors.Is(err, jetstream.ErrFull):
		return events.Errorf(events.CodeRateLimited, "the inbox is full: send the decision again later")
	case errors.Is(err, jetstream.ErrTimeout):
		return events.Errorf(events.CodeUnknownOutcome, "it is not known whether the decision was stored: send the same event again")
	}
	return err
}

// waiting is a decision whose outcome somebody waits for.
type waiting struct {
	s     *Service
	in    events.Inbox
	event string // its id, or its place in the inbox
	seq   uint64 // there; zero before it is stored
	sent  events.DecisionRequested
}

// outcome waits for what becomes of a stored decision. What is heard is a hint, and the log says what is.
func (w *waiting) outcome(ctx context.Context, heard <-chan struct{}) (any, error) {
	limit := time.NewTimer(outcomeTime)
	defer limit.Stop()
	pause := firstLook
	look := time.NewTimer(pause)
	defer look.Stop()
	for {
		select {
		case <-heard:
		case <-look.C:
			pause = min(2*pause, maxLook)
		case <-limit.C:
			return w.unknown(), nil
		case <-ctx.Done(): // this gate stops; the decision is stored
			return w.unknown(), nil
		}
		out, err := w.look(ctx)
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
			return w.unknown(), nil
		case err != nil:
			if refusal, ok := errors.AsType[*events.Error](err); ok {
				return nil, refusal
			}
			w.s.log.WarnContext(ctx, "outcome not read", "runId", w.in.Run, "error", err) // looked for again
		case out != nil && out.State == "":
			pause = editLook
		case out != nil:
			return out, nil
		}
		look.Reset(pause)
	}
}

// unknown is the outcome that nobody knows yet.
func (w *waiting) unknown() *events.DecisionOutcome {
	out := &events.DecisionOutcome{State: events.DecisionSent}
	if call, err := events.CallOf(w.in.Run, w.in.Call); err == nil {
		out.ToolCallID = call.String()
	}
	return out
}

// look reads what the log says about the decision: nothing, its outcome, or its refusal as an error.
func (w *waiting) look(ctx context.Context) (*events.DecisionOutcome, error) {
	handled, err := w.handled(ctx)
	if err != nil {
		return nil, err
	}
	calls, err := w.calls(ctx)
	if err != nil {
		return nil, err
	}
	for _, call := range calls {
		out, refusal, err := w.s.conn.Became(ctx, jetstream.Sent{
			Call: call, EventID: w.event, Principal: w.in.Principal, Decision: w.sent.Decision, Fingerprint: w.sent.Fingerprint,
			Unhandled: !handled, Genuine: func(fact events.Event) bool { return w.s.genuine(fact) == nil },
		})
		switch {
		case err != nil:
			return nil, err
		case refusal != nil:
			return nil, refusal
		case out != nil:
			return out, nil
		}
	}
	return nil, nil //nolint:nilnil // nothing is known
}

// handled reports whether a gate has done what a decision that may be a vote asks for. One who has voted before leaves no
// trace with a second vote, so that is how its outcome is told from one that is not there yet.
func (w *waiting) handled(ctx context.Context) (bool, error) {
	if w.seq == 0 || w.sent.Fingerprint == "" {
		return false, nil
	}
	b, err := w.s.conn.Backlog(ctx, events.StreamInbox, Name)
	return err == nil && b.Floor >= w.seq, err
}

// calls are those that the decision may have met. One that names none met one of those that were asked about, or was
// refused beside its run.
func (w *waiting) calls(ctx context.Context) ([]events.CallID, error) {
	if call, err := events.CallOf(w.in.Run, w.in.Call); err == nil {
		return []events.CallID{call}, nil
	}
	fact, err := w.s.conn.Fact(ctx, w.s.ns.BesideRun(w.in.Run, w.event))
	switch {
	case err == nil:
		d, err := events.Data[events.DecisionRefused](fact)
		if err != nil {
			return nil, err
		}
		if events.SamePrincipal(w.in.Principal, d.Principal) {
			return nil, &d.Error
		}
	case !errors.Is(err, jetstream.ErrNotFound):
		return nil, err
	}
	return w.s.askedCalls(ctx, w.in.Run)
}

// serveAsk replies the open ask of a call, as it may be shown, or says why there is none. It is read from the call's
// chain, and only what a gate has signed is shown.
func (s *Service) serveAsk(ctx context.Context, r jetstream.Request) (any, error) {
	req, err := s.parse(r)
	if err != nil {
		return nil, err
	}
	who, err := s.principalOf(ctx, req.Principal)
	if err != nil {
		return nil, err
	}
	if refusal := who.Lacks(events.MayRead, events.MayDecide); refusal != nil {
		return nil, refusal
	}
	call, err := events.CallOf(req.Run, req.Call)
	if err != nil {
		if call, err = s.theOne(ctx, req); err != nil {
			return nil, err
		}
	}
	head, err := s.last(ctx, call)
	if err == nil && head.Place.Delegated() { // who is meant is the one that waits below, as for a decision
		req.Run, req.Call = call.String(), ""
		if call, err = s.theOne(ctx, req); err != nil {
			return nil, err
		}
		head, err = s.last(ctx, call)
	}
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return nil, events.NotFound("call", "call %s is not known", call)
	case err != nil:
		return nil, err
	case head.Place.Kind != events.KindAsk:
		return nil, s.notHeld(ctx, head, req.Principal)
	}
	return s.shown(ctx, head)
}

// theOne is the one call that waits of a run, or of the runs below it.
func (s *Service) theOne(ctx context.Context, req events.ServiceRequest) (events.CallID, error) {
	now := jetstream.Delivery{Event: events.Event{Stored: time.Now().AddDate(1, 0, 0)}, Attempt: 2} // whatever is there counts
	call, _, refusal, err := s.meant(ctx, req.Run, events.Inbox{Principal: req.Principal, Run: req.Run}, now)
	if refusal != nil {
		return call, refusal
	}
	return call, err
}

// shown is an ask as people may see it.
func (s *Service) shown(ctx context.Context, fact events.Event) (*events.CallHeld, error) {
	ask, err := events.Data[events.CallHeld](fact)
	if err != nil {
		return nil, err
	}
	r, err := s.run(ctx, ask.RunID)
	if err != nil {
		return nil, err
	}
	if err := s.genuine(fact); err != nil {
		if err := s.tampered(ctx, r, fact, err); err != nil {
			return nil, err
		}
		return nil, events.Errorf(events.CodeTampering, "the ask of call %s was not signed by a gate", ask.ToolCallID)
	}
	t, err := s.toolOf(ctx, r, ask)
	if err != nil {
		return nil, err
	}
	ask.Args = events.Mask(t.input, ask.Args)
	if ask.Display == nil && r.view(ask.ToolName).Covers(events.TargetDisplay) { // asked by a gate that knew of no transforms
		ask.Display = r.view(ask.ToolName).Ask(ctx, ask)
	}
	ask = ask.Shown()
	if ask.Quorum == nil {
		return &ask, nil
	}
	b, err := s.count(ctx, r, fact.Place.CallID(), ask)
	ask.Quorum = ask.Quorum.With(b.briefs()...)
	return &ask, err
}

// notHeld says why a call waits for nobody: it was decided, its run is over, or it never waited.
func (s *Service) notHeld(ctx context.Context, head events.Event, principal string) error {
	call := head.Place.CallID()
	counted, err := s.counted(ctx, call)
	if err != nil {
		return err
	}
	if counted != nil {
		return counted.Decided(principal)
	}
	why, err := s.neverDecided(ctx, head)
	if err != nil {
		return err
	}
	return why
}

// waits wakes who waits for outcomes: by the run at the top, since a decision for it may meet a call below. The zero
// value works.
type waits struct {
	mu sync.Mutex
	by map[string]map[*wait]struct{}
}

type wait struct {
	event string // token of the decision's id; empty while it is not known
	heard chan struct{}
}

// join begins to hear what concerns a decision about a call of the run.
func (ws *waits) join(run, event string) (heard <-chan struct{}, leave func()) {
	w := &wait{heard: make(chan struct{}, 1)}
	if event != "" {
		w.event = events.Token(event)
	}
	root, _, _ := strings.Cut(run, "=")
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.by == nil {
		ws.by = map[string]map[*wait]struct{}{}
	}
	if ws.by[root] == nil {
		ws.by[root] = map[*wait]struct{}{}
	}
	ws.by[root][w] = struct{}{}
	return w.heard, func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if delete(ws.by[root], w); len(ws.by[root]) == 0 {
			delete(ws.by, root)
		}
	}
}

// wake tells of a stored fact. A refusal concerns the decision that its place names, an answer or vote everybody.
func (ws *waits) wake(p events.Place) {
	root, _, _ := strings.Cut(p.Run, "=")
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.by[root] {
		if p.Kind == events.KindRefused && w.event != "" && w.event != p.Key {
			continue
		}
		select {
		case w.heard <- struct{}{}:
		default: // it looks anyway
		}
	}
}

package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Deletion of a thread, or of all of a resource. Its request stays in the inbox until nothing is left to do: every delivery of it
// does all again, so one that is stopped anywhere is completed by the next.

// deletionPause is how long a deletion waits for the ends of the runs that it has cancelled.
const deletionPause = 500 * time.Millisecond

// onDeletion deletes what was said in a thread: entries and what tools keep at once, grants by the gate, and open runs, which
// are cancelled.
func (s *Service) onDeletion(ctx context.Context, d jetstream.Delivery, in events.Inbox) error {
	req, refusal := readDeletion(d.Event, in)
	if refusal == nil {
		var err error
		if refusal, err = s.mayDelete(ctx, in.Principal); err != nil {
			return err
		}
	}
	if refusal != nil {
		return s.refuse(ctx, d, in, "", refusal)
	}
	gone := events.ThreadErased{
		ResourceID: req.ResourceID, ThreadID: req.ThreadID, All: req.All, By: in.Principal, EventID: d.Event.ID, InboxSeq: d.Event.Seq,
	}
	if err := s.conn.SayErased(ctx, s.origin, gone, d.Event); err != nil {
		return err
	}
	if err := s.askGate(ctx, req, d.Event); err != nil {
		return err
	}
	open, err := s.openIn(ctx, req, d.Event.Seq)
	if err != nil {
		return err
	}
	for _, run := range open {
		if err := s.cancelDeleted(ctx, run, in.Principal, d.Event); err != nil {
			return err
		}
	}
	if err := s.conn.EraseThreads(ctx, s.origin, req, d.Event.Seq, d.Event); err != nil {
		return err
	}
	if err := s.conn.EraseKept(ctx, req); err != nil {
		return err
	}
	if len(open) > 0 {
		return jetstream.Later(deletionPause)
	}
	gone.Done = true
	return s.conn.SayErased(ctx, s.origin, gone, d.Event)
}

// readDeletion reads what a deletion says, which its subject must say too.
func readDeletion(e events.Event, in events.Inbox) (events.DeletionRequested, *events.Error) {
	bad := func(format string, args ...any) *events.Error {
		return events.Errorf(events.CodeInvalidRequest, format, args...)
	}
	if want := events.TypeOf[events.DeletionRequested](); e.Type != want {
		return events.DeletionRequested{}, bad("type is %s; a deletion has type %s", e.Type, want)
	}
	req, err := events.Data[events.DeletionRequested](e)
	if err != nil {
		return req, bad("%v", err)
	}
	switch {
	case req.All && (req.ThreadID != "" || req.ResourceID == ""):
		return req, bad("all of a resource are deleted by its resourceId, without a threadId")
	case !req.All && req.ThreadID == "":
		return req, bad("threadId is missing: name one, or say all")
	case !req.NamedBy(in):
		return req, bad("the subject names another thread or resource")
	}
	return req, nil
}

// mayDelete refuses a principal that is known to start nothing and to administer nothing.
func (s *Service) mayDelete(ctx context.Context, principal string) (*events.Error, error) {
	raw, err := s.conn.NamedOf(ctx, events.RegistryPrincipal, principal)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil, nil //nolint:nilnil // nothing is wrong
	}
	if err != nil {
		return nil, fmt.Errorf("read principal: %w", err)
	}
	var def events.PrincipalDef
	if err := json.Unmarshal(raw, &def); err != nil {
		return nil, jetstream.Final(fmt.Errorf("principal %s: %w", principal, err))
	}
	return def.Lacks(events.MayStart, events.MayAdmin), nil
}

// askGate asks the gate to take back the grants of what is deleted.
func (s *Service) askGate(ctx context.Context, req events.DeletionRequested, cause events.Event) error {
	subject := s.ns.InGrant(events.TokenPlanner, cause.ID)
	e, err := s.origin.Request(subject, "", events.GrantsDropped{EventID: cause.ID, Deletion: req}, cause)
	if err != nil {
		return jetstream.Final(err)
	}
	_, err = s.conn.Publish(ctx, subject, e)
	return err
}

// cancelDeleted asks the gate to end a run whose thread is deleted.
func (s *Service) cancelDeleted(ctx context.Context, run, by string, cause events.Event) error {
	subject := s.ns.InCancel(events.TokenPlanner, run)
	e, err := s.origin.Request(subject, run, events.CancelRequested{RunID: run, Reason: "its thread was deleted by " + by}, cause)
	if err != nil {
		return jetstream.Final(err)
	}
	_, err = s.conn.Publish(ctx, subject, e)
	return err
}

// openIn are the runs of what is deleted that were asked for before, and have not ended.
func (s *Service) openIn(ctx context.Context, req events.DeletionRequested, inboxSeq uint64) ([]string, error) {
	runs, err := s.openRuns(ctx)
	if err != nil {
		return nil, err
	}
	waiting, err := s.conn.ListSuspended(ctx, "", req.ResourceID, req.ThreadID)
	if err != nil {
		return nil, err
	}
	for _, key := range waiting { // of which the start may have aged out
		if run, err := events.RunOfKey(key); err == nil {
			runs[run] = true
		}
	}
	var open []string
	for run := range runs {
		st, head, err := s.conn.RunState(ctx, run)
		switch {
		case errors.Is(err, jetstream.ErrNotFound), errors.Is(err, jetstream.ErrTampered):
			continue
		case err != nil:
			return nil, err
		case head.Place.Kind == events.KindEnd || st.RunID != st.RootRunID || !req.Of(st.ResourceID, st.ThreadID):
			continue // a child ends with its parent
		}
		if seq, err := s.askedAt(ctx, st); err != nil {
			return nil, err
		} else if seq < inboxSeq {
			open = append(open, run)
		}
	}
	return open, nil
}

// askedAt is when a run was asked for, by the sequence of its request; 0 when that has aged out.
func (s *Service) askedAt(ctx context.Context, st *events.State) (uint64, error) {
	if st.Thread != nil {
		return st.Thread.InboxSeq, nil
	}
	start, err := s.conn.Fact(ctx, s.ns.Start(st.RunID))
	if err != nil {
		return 0, ignoreMissing(err)
	}
	d, err := events.Data[events.RunStarted](start)
	return d.InboxSeq, err
}

// openRuns are the runs of the log that have a start and no end.
func (s *Service) openRuns(ctx context.Context) (map[string]bool, error) {
	starts, err := s.conn.Subjects(ctx, s.ns.EveryMain(events.KindStart))
	if err != nil {
		return nil, err
	}
	ends, err := s.conn.Subjects(ctx, s.ns.EveryMain(events.KindEnd))
	if err != nil {
		return nil, err
	}
	open := make(map[string]bool, len(starts))
	for _, subject := range starts {
		if p, err := events.ParsePlace(subject); err == nil {
			open[p.Run] = true
		}
	}
	for _, subject := range ends {
		if p, err := events.ParsePlace(subject); err == nil {
			delete(open, p.Run)
		}
	}
	return open, nil
}

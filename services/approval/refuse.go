package approval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// maxKept bounds what is kept of a refused decision that is signed, which may be as large as a message.
const maxKept = 64 << 10

// refuse records a decision that does not count and tells its sender why. The call stays as it was.
func (s *Service) refuse(ctx context.Context, d jetstream.Delivery, in events.Inbox, call events.CallID, why *events.Error) error {
	return s.refuseAt(ctx, d, in, s.ns.Beside(call, events.KindRefused, idOf(d)), why)
}

// refuseAt is refuse for a place, which names a call or, when the decision met none, its run.
func (s *Service) refuseAt(ctx context.Context, d jetstream.Delivery, in events.Inbox, p events.Place, why *events.Error) error {
	data := events.DecisionRefused{
		RunID: p.Run, EventID: idOf(d), Principal: in.Principal,
		Decision: decisionOf(d.Event), At: d.Event.Stored.UTC(), InboxSeq: d.Event.Seq, Error: *why,
	}
	if p.Call != events.TokenRun {
		data.ToolCallID = p.CallID().String()
	}
	if len(d.Event.Payload) <= maxKept {
		data.Signed = signed(d)
	}
	err := s.record(ctx, d, in, p, data)
	if errors.Is(err, jetstream.ErrTooLarge) { // what it quotes: the code and the text are what counts
		data.Signed, data.Error = nil, events.Error{Code: why.Code, Message: shortened(why.Message), Rule: why.Rule, What: why.What}
		err = s.record(ctx, d, in, p, data)
	}
	return err
}

// record stores a refusal and tells the sender.
func (s *Service) record(ctx context.Context, d jetstream.Delivery, in events.Inbox, p events.Place, data events.DecisionRefused) error {
	fact, err := s.origin.Fact(p, data, d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	if err := s.conn.Record(ctx, fact); err != nil {
		return fmt.Errorf("record refusal: %w", err)
	}
	s.note(ctx, s.ns.Note(in.Principal, p.Run, p.Call), fact)
	return nil
}

// maxTold bounds the text of a refusal that would not fit otherwise: it may quote what was sent.
const maxTold = 4 << 10

func shortened(text string) string {
	if len(text) <= maxTold {
		return text
	}
	return strings.ToValidUTF8(text[:maxTold], "") + "…"
}

// note tells a sender. Notes are hints: one that is lost costs its sender a look at the log.
func (s *Service) note(ctx context.Context, subject string, e events.Event) {
	if err := s.conn.Note(ctx, subject, e); err != nil {
		s.log.WarnContext(ctx, "note not published", "runId", e.Subject, "error", err)
	}
}

// decisionOf is the decision that a request makes; none when it makes none that there is.
func decisionOf(e events.Event) events.Decision {
	req, err := events.Data[events.DecisionRequested](e)
	if err != nil || !slices.Contains(requestable, req.Decision) {
		return ""
	}
	return req.Decision
}

// maxEventID is how long the id of a request may be: facts name it.
const maxEventID = 128

// idOf is the id of a request; one that has none that can be kept is told by its place in the inbox.
func idOf(d jetstream.Delivery) string {
	id := d.Event.ID
	if len(id) > maxEventID {
		id = ""
	}
	return cmp.Or(id, "inbox-"+strconv.FormatUint(d.Event.Seq, 10))
}

// noteOnly tells the sender of a request that names no call; there is no place in the log for it.
func (s *Service) noteOnly(ctx context.Context, d jetstream.Delivery, in events.Inbox, why *events.Error) error {
	subject := s.ns.Note(in.Principal, in.Run, events.TokenRun)
	e, err := s.origin.Request(subject, in.Run, events.RunRefused{RunID: in.Run, EventID: idOf(d), Error: *why}, d.Event)
	if err != nil {
		return jetstream.Final(err)
	}
	s.note(ctx, subject, e)
	return nil
}

// onMalformed refuses what came to the inbox and is no event.
func (s *Service) onMalformed(ctx context.Context, d jetstream.Delivery, _ []byte, cause error) error {
	in, err := s.ns.ParseInbox(d.Subject)
	if err != nil {
		return jetstream.Final(cause)
	}
	why := events.Errorf(events.CodeInvalidRequest, "not a CloudEvent of a request: %v", cause)
	if in.Verb == events.VerbGrant {
		return s.refuseGrant(ctx, d, in, why)
	}
	call, err := events.CallOf(in.Run, in.Call)
	switch {
	case in.Verb == events.VerbDecide && err == nil:
		return s.refuse(ctx, d, in, call, why)
	case in.Verb == events.VerbDecide && in.Call == events.TokenRun && events.IsRunID(in.Run):
		return s.refuseAt(ctx, d, in, s.ns.BesideRun(in.Run, idOf(d)), why)
	}
	return s.noteOnly(ctx, d, in, why)
}

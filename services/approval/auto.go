package approval

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// The automatic resume of a planner: it decides as =auto on behalf of whoever sent the message that holds the data.
//
// Only planners may publish as =auto, but a reply can be steered to any subject, and a planner reads hostile text. So the
// decision counts only as far as the log bears it out: the run that the message started must hold this very answer in its
// first step and wait for what becomes of it; it must be of the same agent and conversation; both runs must allow it; and
// the sender must be somebody who may resume this call, proven as for any decision of theirs. It releases no bytes but
// those that were released before, to a tool that asked for data.

// proveAuto takes =auto at its word until it meets its ask. Nothing but a resume is ever its to decide.
func proveAuto(req events.DecisionRequested) (proof, *events.Error) {
	switch {
	case req.Decision != events.ResumeD:
		return proof{}, events.Errorf(events.CodeForbidden, "an automatic resume does not %s", req.Decision)
	case req.OnBehalfOf == "" || !events.ValidRunID(req.FromRun):
		return proof{}, events.Errorf(events.CodeForbidden, "an automatic resume names the run of a message and its sender")
	}
	return proof{principal: req.OnBehalfOf, authType: events.AuthAuto}, nil
}

// message is what the log says of a message that may hold data for a suspended call.
type message struct {
	run   *run
	start events.Event // the run's first fact
	data  events.RunStarted
	step  events.Event // its first step; the zero Event when there is none
	turn  events.StepFinished
	head  events.Event // its last fact
}

// onBehalf puts the sender of the message into the place of =auto, if the log bears the decision out.
func (s *Service) onBehalf(ctx context.Context, m *meeting, d jetstream.Delivery) (*events.Error, error) {
	msg, err := s.message(ctx, m.req.FromRun)
	switch {
	case errors.Is(err, jetstream.ErrNotFound) && d.Attempt <= 1: // a leader that was just elected may not show it yet
		return nil, jetstream.Later(lookAgain)
	case errors.Is(err, jetstream.ErrNotFound) || errors.Is(err, jetstream.ErrTampered):
		return events.Errorf(events.CodeForbidden, "run %s, which the decision names, is not known", m.req.FromRun), nil
	case err != nil:
		return nil, err
	}
	root, err := s.run(ctx, cmp.Or(m.ask.RootRunID, m.call.Run))
	if err != nil {
		return nil, err
	}
	if refusal := m.borneOut(msg, root, d.Event.ID); refusal != nil {
		return refusal, nil
	}
	who, refusal, err := s.sender(ctx, msg)
	if refusal != nil || err != nil {
		return refusal, err
	}
	m.who = who
	return nil, nil //nolint:nilnil // nothing is wrong
}

// message reads the run of a message from the leader.
func (s *Service) message(ctx context.Context, id string) (message, error) {
	facts, err := s.conn.Facts(ctx, s.ns.Start(id), s.ns.Step(id, 1))
	if err != nil {
		return message{}, fmt.Errorf("read run %s: %w", id, err)
	}
	msg := message{start: facts[0], step: facts[1]}
	if msg.start.ID == "" {
		return message{}, fmt.Errorf("run %s: %w", id, jetstream.ErrNotFound)
	}
	if msg.data, err = events.Data[events.RunStarted](msg.start); err != nil {
		return message{}, jetstream.Final(err)
	}
	if msg.step.ID != "" {
		if msg.turn, err = events.Data[events.StepFinished](msg.step); err != nil {
			return message{}, jetstream.Final(err)
		}
	}
	if msg.head, err = s.conn.Last(ctx, s.ns.MainOf(id)); err != nil {
		return message{}, fmt.Errorf("read head of %s: %w", id, err)
	}
	msg.run, err = s.run(ctx, id)
	return msg, err
}

// borneOut compares a decision of =auto with what the log says of its message and of the run that asks. It is pure.
func (m meeting) borneOut(msg message, root *run, eventID string) *events.Error {
	to, from := root.start, msg.run.start
	switch {
	case msg.data.Requester != m.req.OnBehalfOf:
		return events.Errorf(events.CodeForbidden, "the message of run %s was sent by somebody else", from.RunID)
	case from.RunID == to.RunID || from.AgentID != to.AgentID || from.ThreadID == "" || from.ThreadID != to.ThreadID ||
		from.ResourceID != to.ResourceID:
		return events.Errorf(events.CodeForbidden, "run %s is not of the same agent and conversation", from.RunID)
	case !to.Options.AutoResumes(root.agent) || !from.Options.AutoResumes(msg.run.agent):
		return events.Errorf(events.CodeForbidden, "the runs do not allow an automatic resume")
	case len(m.ask.ResumeSchema) == 0 || string(m.ask.ResumeSchema) == "null":
		return events.Errorf(events.CodeForbidden, "a call without a resume schema is not resumed automatically")
	case !holds(msg.turn, m.req) || eventID != events.AutoResumeID(from.RunID, m.req.ToolCallID, *m.req.Round):
		return events.Errorf(events.CodeForbidden, "run %s has not found this answer in its message", from.RunID)
	case msg.head.Seq != msg.step.Seq:
		return m.changed("run %s has gone on without it", from.RunID)
	case !m.ask.KnownSince(m.fact).Before(msg.start.Stored):
		return m.changed("the message is older than the question")
	}
	return nil
}

// holds reports whether a turn has found the very answer that a decision brings.
func holds(turn events.StepFinished, req events.DecisionRequested) bool {
	return turn.AutoResume != nil && req.Round != nil &&
		slices.ContainsFunc(turn.AutoResume.Answers, func(a events.AutoAnswer) bool {
			return a.ToolCallID == req.ToolCallID && a.Round == *req.Round && a.Fingerprint == req.Fingerprint &&
				bytes.Equal(a.ResumeData, req.ResumeData)
		})
}

// sender is who sent a message, verified by its start as decisions of the same principal are: where they need a signature,
// the start must have one. Groups that only a gateway knows are not known here.
func (s *Service) sender(ctx context.Context, msg message) (proof, *events.Error, error) {
	id := cmp.Or(msg.data.RequesterID, msg.data.Requester)
	if events.Token(id) != msg.data.Requester {
		return proof{}, events.Errorf(events.CodeForbidden, "the sender of run %s is not known by name", msg.data.RunID), nil
	}
	def, err := s.principal(ctx, id)
	if err != nil {
		return proof{}, nil, err
	}
	who := proof{principal: id, authType: events.AuthAuto, def: def}
	switch def.Auth {
	case events.AuthKey:
		who.groups = def.Groups
		if !s.signedStart(keyOf(def), msg.data) {
			return proof{}, events.Errorf(events.CodeUnauthenticated, "messages of %s must be signed with its key to resume a tool", id), nil
		}
	case events.AuthGateway:
		if !s.signedStart(s.cfg.Gateways, msg.data) {
			return proof{}, events.Errorf(events.CodeUnauthenticated, "messages of %s must come through a gateway to resume a tool", id), nil
		}
	case events.AuthSubject:
		who.groups = def.Groups
		if !s.cfg.Dev {
			return proof{}, events.Errorf(events.CodeUnauthenticated, "%s has no key; only weir dev accepts that", id), nil
		}
	default:
		return proof{}, events.Errorf(events.CodeForbidden, "%s is not a known principal", id), nil
	}
	return who, def.Lacks(events.MayDecide), nil
}

// signedStart reports whether a start is what one of these keys has signed.
func (s *Service) signedStart(keys events.Keys, started events.RunStarted) bool {
	sig := started.Signed
	if sig == nil || keys.Verify(events.DomainStart, sig.Subject, []byte(sig.Payload), events.Signature{Key: sig.Key, Sig: sig.Sig}) != nil {
		return false
	}
	in, err := s.ns.ParseInbox(sig.Subject)
	if err != nil || in.Verb != events.VerbStart || in.Principal != started.Requester {
		return false
	}
	e, err := events.Decode([]byte(sig.Payload))
	if err != nil || e.Type != events.TypeOf[events.RunRequested]() {
		return false
	}
	said, err := events.Data[events.RunRequested](e)
	if err != nil {
		return false
	}
	said.RunID = cmp.Or(said.RunID, e.ID)
	if string(said.RequestContext) == "null" {
		said.RequestContext = nil
	}
	return said.RunID == started.RunID && said.Same(started.Request)
}

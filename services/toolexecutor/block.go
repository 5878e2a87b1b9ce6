package toolexecutor

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Why a call is blocked here, and what the model is told.
var (
	mismatch  = blocking{events.ErrorFingerprintMismatch, "the call was not released for these arguments"}
	tampering = blocking{string(events.CodeTampering), "the call's record was tampered with"}
)

type blocking struct{ reason, text string }

// block ends a call after a fact of its chain that does not hold: nothing runs, and people are alarmed.
func (s *Service) block(ctx context.Context, bad events.Event, rel events.CallReleased, b blocking, why error) error {
	call := bad.Place.CallID()
	s.log.ErrorContext(ctx, "call blocked: nothing runs", "runId", call.Run, "toolCallId", call.String(), "seq", bad.Seq,
		"reason", b.reason, "error", why)
	d := events.CallFinished{
		ToolCallID: call.String(), RunID: call.Run, ToolName: rel.ToolName, Round: rel.Round,
		Outcome: events.OutcomeBlocked, Reason: b.reason, Foreign: bad.Seq,
		Error: &events.ToolError{Name: b.reason, Message: b.text},
	}
	e, err := s.origin.Fact(s.ns.Call(call, events.KindResult), d, bad)
	if err != nil {
		return jetstream.Final(err)
	}
	if _, err := s.conn.Append(ctx, events.After(bad), e); err != nil {
		return fmt.Errorf("append blocked result of %s: %w", call, err)
	}
	return nil
}

// tampered ends a call whose chain goes on after fact with a message that no service of Weir wrote.
func (s *Service) tampered(ctx context.Context, fact, foreign events.Event, rel events.CallReleased, why error) error {
	if foreign.Place.Kind == events.KindResult {
		return nil // the chain is closed all the same, and the planner ends the run
	}
	return s.block(ctx, events.Event{Place: fact.Place, Seq: foreign.Seq}, rel, tampering, why)
}

// onForeign blocks a call into whose chain somebody has put a release that is no event of Weir's.
func (s *Service) onForeign(ctx context.Context, d jetstream.Delivery, _ []byte, cause error) error {
	p, err := events.ParsePlace(d.Subject)
	if err != nil {
		return jetstream.Final(cause)
	}
	last, err := s.conn.Last(ctx, p.Chain())
	switch {
	case errors.Is(err, jetstream.ErrTampered):
		err = s.tampered(ctx, events.Event{Place: p}, last, events.CallReleased{}, cause)
	case errors.Is(err, jetstream.ErrNotFound):
		err = nil
	}
	if err != nil {
		return err
	}
	return jetstream.Final(cause)
}

package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// An open ask is repeated in its chain when more people may decide it, and to remind those who may: a new event of the
// same round, which is the notification. Whatever was looked at before still counts.

// maxReminders bounds the reminders of a round.
const maxReminders = 100

// due makes of an open ask what it is at a time. It reports whether that is something new to tell.
func due(a events.CallHeld, now time.Time) (events.CallHeld, bool) {
	a, more := escalated(a, now)
	a, again := reminded(a, now)
	return a, more || again
}

// escalated begins the stages whose time has come, in their order. A deadline that passes while stages are left begins the
// next one early and is put off, when the ask says so. Whoever is turned to has as much time again, also when nobody was
// there to turn to him in time.
func escalated(a events.CallHeld, now time.Time) (events.CallHeld, bool) {
	changed, wait := false, time.Duration(0)
	if a.OnExpiry == events.OnExpiryEscalate {
		wait = time.Duration(a.Wait)
	}
	for len(a.Escalate) > 0 {
		at := a.Escalate[0].At
		early := a.OnExpiry == events.OnExpiryEscalate && a.ExpiresAt.Before(at)
		if early {
			at = a.ExpiresAt
		}
		if now.Before(at) {
			break
		}
		if early {
			a.ExpiresAt = a.ExpiresAt.Add(wait)
		}
		a, changed = begun(a), true
	}
	if changed && wait > 0 && !now.Before(a.ExpiresAt) {
		a.ExpiresAt = now.UTC().Add(wait)
	}
	return a, changed
}

// begun is the ask with its next stage begun. One that everybody may decide already stays so.
func begun(a events.CallHeld) events.CallHeld {
	stage := a.Escalate[0]
	a.Escalate = slices.Clone(a.Escalate[1:])
	a.EscalatedTo = with(a.EscalatedTo, stage.To)
	if len(a.Approvers) > 0 {
		a.Approvers = with(a.Approvers, stage.To)
	}
	if stage.OnExpiry != "" {
		a.OnExpiry = stage.OnExpiry
	}
	if a.OnExpiry == events.OnExpiryEscalate && len(a.Escalate) == 0 {
		a.OnExpiry = events.OnExpiryDecline // nobody is left to turn to
	}
	return a
}

// with is a list with more names in it, each once.
func with(list, more []string) []string {
	all := slices.Clone(list)
	for _, name := range more {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// reminded counts the reminders that are due. Several that nobody was there to send are one, so that people who come
// back are not flooded; its number is that of the last.
func reminded(a events.CallHeld, now time.Time) (events.CallHeld, bool) {
	if a.Remind <= 0 || !now.Before(a.ExpiresAt) {
		return a, false
	}
	number := int(min(now.Sub(a.AskedAt)/time.Duration(a.Remind), maxReminders))
	if number <= a.Reminders {
		return a, false
	}
	a.Reminders = number
	return a, true
}

// timers are those of an open ask: its deadline, its next stage and its next reminder.
func timers(a events.CallHeld) []events.TimerSet {
	set := func(purpose string, at time.Time) events.TimerSet {
		return events.TimerSet{RunID: a.RunID, ToolCallID: a.ToolCallID, Round: a.Round, Purpose: purpose, At: at}
	}
	all := []events.TimerSet{set(events.TimerExpire, a.ExpiresAt)}
	if len(a.Escalate) > 0 && a.Escalate[0].At.Before(a.ExpiresAt) {
		all = append(all, set(events.TimerEscalate, a.Escalate[0].At))
	}
	if a.Remind > 0 && a.Reminders < maxReminders {
		next := a.AskedAt.Add(time.Duration(a.Reminders+1) * time.Duration(a.Remind))
		if next.Before(a.ExpiresAt) {
			all = append(all, set(events.TimerRemind, next))
		}
	}
	return all
}

// setTimers schedules what is due of an ask after a time. The server replaces a timer of the same id, so repeating it is
// harmless.
func (s *Service) setTimers(ctx context.Context, ask events.CallHeld, after time.Time) error {
	for _, t := range timers(ask) {
		if !t.At.After(after) {
			continue
		}
		if err := s.conn.SetTimer(ctx, s.origin, t); err != nil {
			return err
		}
	}
	return nil
}

// cancelTimers takes all timers of a round back.
func (s *Service) cancelTimers(ctx context.Context, a events.OpenAsk) error {
	for _, purpose := range []string{events.TimerExpire, events.TimerEscalate, events.TimerRemind} {
		id, err := jetstream.TimerID(events.TimerSet{ToolCallID: a.ToolCallID, Round: a.Round, Purpose: purpose})
		if err != nil {
			return jetstream.Final(err)
		}
		if err := s.conn.CancelTimer(ctx, id); err != nil {
			return fmt.Errorf("cancel timer of %s: %w", a.ToolCallID, err)
		}
	}
	return nil
}

// lookAfter does what the server's time makes due of an open ask, whoever notices it: a timer, the sweeper, a decision. It
// returns the ask when nothing is due and it waits on. Votes come first: those that are there were in time.
func (s *Service) lookAfter(ctx context.Context, r *run, fact events.Event, now time.Time) (*openAsk, error) {
	if err := s.genuine(fact); err != nil {
		return nil, s.tampered(ctx, r, fact, err)
	}
	ask, err := events.Data[events.CallHeld](fact)
	if err != nil {
		return nil, jetstream.Final(err)
	}
	b, err := s.count(ctx, r, fact.Place.CallID(), ask)
	if err != nil {
		return nil, err
	}
	if b.complete() {
		err := s.conclude(ctx, r, fact, b.answer(ask))
		if !errors.Is(err, jetstream.ErrTooLarge) {
			return nil, err
		}
		s.log.WarnContext(ctx, "too many votes to be stored in one answer: the ask ends at its deadline",
			"runId", ask.RunID, "toolCallId", ask.ToolCallID, "error", err)
	}
	w := &openAsk{run: r, fact: fact, ask: ask, votes: b}
	if _, changed := due(ask, now); changed {
		server, err := s.conn.Now(ctx) // what told of it may have waited for long
		if err != nil {
			return nil, err
		}
		if server.After(now) {
			now = server
		}
		next, _ := due(ask, now)
		err = s.repeat(ctx, w, next)
		if !errors.Is(err, jetstream.ErrTooLarge) {
			return nil, err
		}
		s.log.WarnContext(ctx, "ask too large to be repeated", "runId", ask.RunID, "toolCallId", ask.ToolCallID, "error", err)
	}
	if !now.Before(ask.ExpiresAt) {
		return nil, s.conclude(ctx, r, fact, expiredAt(ask, now))
	}
	return w, s.showVotes(ctx, r, ask, b)
}

// openAsk is an ask that was looked at and waits.
type openAsk struct {
	run   *run
	fact  events.Event
	ask   events.CallHeld
	votes ballot
}

// repeat stores an open ask again as what it has become, the votes of its round inside, and makes that known. It says
// later when somebody else has repeated it in between.
func (s *Service) repeat(ctx context.Context, w *openAsk, next events.CallHeld) error {
	var err error
	if next.Since, err = s.since(ctx, w); err != nil {
		return err
	}
	next.Quorum = next.Quorum.With(w.votes.briefs()...)
	last, ours, err := s.add(ctx, w.fact.Place, w.fact, next)
	if errors.Is(err, jetstream.ErrTooLarge) { // the votes and names that were added matter more
		next.Preview, next.LastWords = nil, nil
		last, ours, err = s.add(ctx, w.fact.Place, w.fact, next)
	}
	switch {
	case err != nil:
		return ignoreGone(err)
	case ours:
		return s.announceAgain(ctx, w.run, last, next)
	case last.Place.Kind == events.KindAsk:
		return jetstream.Later(0)
	}
	return nil
}

// since is when the server stored the first ask of a round. Of a carried copy, the first that the log still holds will
// do: no decision waits as long as that.
func (s *Service) since(ctx context.Context, w *openAsk) (*time.Time, error) {
	switch {
	case w.ask.Since != nil:
		return w.ask.Since, nil
	case !w.fact.Carried:
		return new(w.fact.Stored.UTC()), nil
	}
	for seq := uint64(0); ; {
		e, err := s.conn.NextFact(ctx, seq, w.fact.Place.Subject())
		if err != nil {
			return nil, fmt.Errorf("read asks of %s: %w", w.ask.ToolCallID, err)
		}
		if seq = e.Seq; events.RoundOf(e) == w.ask.Round {
			return new(e.Stored.UTC()), nil
		}
	}
}

// announceAgain makes a repeated ask known: the entry, its timers, and its chunk, by the new fact.
func (s *Service) announceAgain(ctx context.Context, r *run, fact events.Event, ask events.CallHeld) error {
	if err := s.enter(ctx, r, []events.CallHeld{ask}); err != nil {
		return err
	}
	if _, err := s.showAsk(ctx, r, fact); err != nil {
		return err
	}
	return s.checkEntry(ctx, r, true) // it may have been answered meanwhile
}

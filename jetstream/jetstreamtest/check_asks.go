package jetstreamtest

import (
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
)

// keep makes an ask the one that the next facts belong to.
func (c *chain) keep(d events.CallHeld) {
	if c.rounds == nil {
		c.rounds = map[int]events.CallHeld{}
	}
	c.ask, c.rounds[d.Round] = d, d
}

// checkCarried compares a carried ask with the one that it repeats: only votes may have been added (I2).
func (c *chain) checkCarried(f events.Event) {
	c.verify(f)
	d := data[events.CallHeld](c.l, f)
	if f.ID != c.prev.ID || !sameQuestion(d, c.ask) || !d.ExpiresAt.Equal(c.ask.ExpiresAt) ||
		!slices.Equal(d.Approvers, c.ask.Approvers) || d.Reminders != c.ask.Reminders {
		c.l.fail("I2", "call %s: a carried ask (seq %d) is not the one that was open", c.id, f.Seq)
	}
	c.votesStay(f, d)
	if votesIn(d) > votesIn(c.ask) {
		c.l.report["carry:votes"]++
	}
	c.keep(d)
}

// checkRepeated compares an ask that was stored again with the one before it: the same question in the same round, asked
// of more people, or once more (I2).
func (c *chain) checkRepeated(f events.Event, d events.CallHeld) {
	old := c.ask
	more, again, later := len(d.Escalate) < len(old.Escalate), d.Reminders > old.Reminders, d.ExpiresAt.After(old.ExpiresAt)
	fail := func(format string, args ...any) {
		c.l.fail("I2", "call %s, ask (seq %d): "+format, append([]any{c.id, f.Seq}, args...)...)
	}
	switch {
	case f.ID == c.prev.ID:
		fail("it is repeated under the same id")
	case !sameQuestion(d, old):
		fail("it is repeated as another question")
	case !more && !again:
		fail("it is repeated for nothing")
	}
	if d.Since == nil || !d.Since.Equal(c.since) {
		fail("it says that it is open since %v, the first was stored at %s", d.Since, c.since)
	}
	if !within(old.Approvers, d.Approvers) || len(old.Approvers) == 0 && len(d.Approvers) > 0 || !within(old.EscalatedTo, d.EscalatedTo) {
		fail("approvers %q became %q, escalated to %q became %q", old.Approvers, d.Approvers, old.EscalatedTo, d.EscalatedTo)
	}
	if !more && (len(d.Approvers) != len(old.Approvers) || d.OnExpiry != old.OnExpiry) || d.Reminders < old.Reminders {
		fail("it changes without a stage that begins")
	}
	if d.ExpiresAt.Before(old.ExpiresAt) || later && (!more || old.OnExpiry != events.OnExpiryEscalate || f.Stored.Before(old.ExpiresAt)) {
		fail("deadline %s became %s", old.ExpiresAt, d.ExpiresAt)
	}
	c.votesStay(f, d)
	for name, is := range map[string]bool{"escalated": more, "reminded": again, "deadline": later} {
		if is {
			c.l.report["ask:"+name]++
		}
	}
	c.keep(d)
}

// sameQuestion reports whether two asks ask the same people the same.
func sameQuestion(a, b events.CallHeld) bool {
	return a.Round == b.Round && a.Kind == b.Kind && a.Fingerprint == b.Fingerprint && string(a.Args) == string(b.Args) &&
		slices.Equal(a.Allowed, b.Allowed) && a.NotRequester == b.NotRequester && a.Signed == b.Signed && a.NoGrant == b.NoGrant &&
		need(a) == need(b) && a.AskedAt.Equal(b.AskedAt)
}

func need(a events.CallHeld) int {
	if a.Quorum == nil {
		return 0
	}
	return a.Quorum.Need
}

func votesIn(a events.CallHeld) int {
	if a.Quorum == nil {
		return 0
	}
	return len(a.Quorum.Votes)
}

func within(part, whole []string) bool {
	return !slices.ContainsFunc(part, func(s string) bool { return !slices.Contains(whole, s) })
}

// votesStay demands that the votes inside an ask are still in what repeats it, and that each was cast.
func (c *chain) votesStay(f events.Event, d events.CallHeld) {
	if c.ask.Quorum != nil {
		for _, v := range c.ask.Quorum.Votes {
			if !d.Quorum.Has(v.Principal) {
				c.l.fail("I2", "call %s: the ask (seq %d) has lost the vote of %s", c.id, f.Seq, v.Principal)
			}
		}
	}
	if d.Quorum != nil {
		for _, v := range d.Quorum.Votes {
			c.wasCast(f, v)
		}
	}
}

// wasCast demands a vote in the log before a fact that says there is one, unless the ask had it inside already.
func (c *chain) wasCast(f events.Event, b events.VoteBrief) {
	for _, e := range c.l.votes[c.id] {
		v, err := events.Data[events.VoteCast](e)
		if err == nil && c.signed(e) && e.Seq < f.Seq && v.For(c.ask) && v.Brief() == b {
			return
		}
	}
	if c.ask.Quorum == nil || !slices.Contains(c.ask.Quorum.Votes, b) {
		c.l.fail("I2", "call %s: %s (seq %d) names a vote of %s that was not cast for this round", c.id, f.Place.Kind, f.Seq, b.Principal)
	}
}

func (c *chain) signed(e events.Event) bool {
	return c.l.o.GateKeys == nil || c.l.o.GateKeys.VerifyFact(e) == nil
}

// checkQuorum demands enough votes of different principals in an answer that needs several, and none elsewhere (I1).
func (c *chain) checkQuorum(f events.Event, d events.CallAnswered) {
	if !c.ask.Votes(d.Decision) {
		if len(d.Votes) > 0 {
			c.l.fail("I1", "call %s: %s needs no votes and has %d", c.id, d.Decision, len(d.Votes))
		}
		return
	}
	c.l.report["answer:votes"]++
	distinct := (&events.Quorum{}).With(d.Votes...).Votes
	if len(distinct) != len(d.Votes) || len(distinct) < c.ask.Quorum.Need {
		c.l.fail("I1", "call %s: answered with votes of %d of %d principals, %d are needed", c.id, len(distinct), len(d.Votes), c.ask.Quorum.Need)
	}
	if !(&events.Quorum{Votes: d.Votes}).Has(d.Principal) {
		c.l.fail("I1", "call %s: answered by %s, who has not voted", c.id, d.Principal)
	}
	for _, v := range d.Votes {
		c.wasCast(f, v)
		if v.Decision != d.Decision || v.At.After(d.At) {
			c.l.fail("I1", "call %s: a vote %s of %s in an answer %s of %s", c.id, v.Decision, v.At, d.Decision, d.At.Format(time.RFC3339Nano))
		}
	}
}

// checkVotes checks every vote about a call: it belongs to a round that asked for it, and nobody votes twice in one.
func (l *history) checkVotes(id string, rounds map[int]events.CallHeld) {
	last := map[string]int{} // round, by the voter's token
	for _, e := range l.votes[id] {
		v, err := events.Data[events.VoteCast](e)
		if err != nil || l.o.GateKeys != nil && l.o.GateKeys.VerifyFact(e) != nil {
			l.fail("I1", "call %s: a vote (seq %d) that no gate wrote", id, e.Seq)
			continue
		}
		ask, asked := rounds[v.Round]
		if !asked || !v.For(ask) || v.At.After(ask.ExpiresAt) {
			l.fail("I2", "call %s: a vote of %s (seq %d) for what round %d did not ask", id, v.Principal, e.Seq, v.Round)
		}
		if before, ok := last[e.Place.Key]; ok && before >= v.Round {
			l.fail("I2", "call %s: %s votes in round %d after round %d", id, v.Principal, v.Round, before)
		}
		last[e.Place.Key] = v.Round
	}
}

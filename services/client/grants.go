package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// GrantState says what a grant is good for.
type GrantState string

// States of a grant.
const (
	GrantActive  GrantState = "active"  // it releases calls
	GrantSpent   GrantState = "spent"   // all its uses are
	GrantExpired GrantState = "expired" // its time is over
	GrantRevoked GrantState = "revoked" // somebody took it back
	GrantSent    GrantState = "sent"    // asked for, and the user may not read whether a gate has stored it
)

// Grant is a standing approval and how far it is used.
type Grant struct {
	events.Grant

	State GrantState `json:"state"`
	// Used is the number of calls that it has released; nil when the user may not read the log.
	Used     *int       `json:"used,omitempty"`
	LastUsed *time.Time `json:"lastUsedAt,omitempty"`
}

// GrantFilter chooses grants; the zero value chooses those that are active.
type GrantFilter struct {
	Agent, Tool, Run, Thread, Resource string
	By                                 string // who gave it
	All                                bool   // also those that are spent, expired or revoked, while the bucket holds them
}

func (f GrantFilter) takes(g events.Grant) bool {
	return fits(f.Agent, g.AgentID) && fits(f.Tool, g.ToolID) && fits(f.Run, g.RunID) && fits(f.Thread, g.ThreadID) &&
		fits(f.Resource, g.ResourceID) && fits(f.By, g.GrantedBy)
}

// keys are those that the bucket has to list.
func (f GrantFilter) keys() events.GrantFilter {
	k := events.GrantFilter{Tool: f.Tool}
	switch {
	case f.Run != "":
		k.Scope, k.Of = events.ScopeRun, f.Run
	case f.Thread != "":
		k.Scope, k.Of = events.ScopeThread, f.Thread
	}
	return k
}

// Grants lists standing approvals, the latest first. It needs the right to read their bucket; without that to read the log
// nobody knows how far they are used, and a spent one counts as active.
func (c *Client) Grants(ctx context.Context, f GrantFilter) ([]Grant, error) {
	all, err := c.grants(ctx, f.keys(), f.takes)
	if err != nil {
		return nil, err
	}
	if !f.All {
		all = slices.DeleteFunc(all, func(g Grant) bool { return g.State != GrantActive })
	}
	slices.SortFunc(all, func(a, b Grant) int {
		return cmp.Or(b.GrantedAt.Compare(a.GrantedAt), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// GrantInfo looks one grant up.
func (c *Client) GrantInfo(ctx context.Context, id string) (*Grant, error) {
	if id == "" {
		return nil, invalid("name a grant")
	}
	all, err := c.grants(ctx, events.GrantFilter{ID: id}, func(g events.Grant) bool { return g.ID == id })
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, events.NotFound("grant", "grant %s is not known: it may be over", id)
	}
	return &all[0], nil
}

// grants reads from the bucket what is chosen. What no gate has signed is left out when the gates' keys are known.
func (c *Client) grants(ctx context.Context, keys events.GrantFilter, takes func(events.Grant) bool) ([]Grant, error) {
	if c.cfg.LiveOnly {
		return nil, c.needsLog("looking at grants")
	}
	found, err := c.conn.Grants(ctx, keys)
	if err != nil {
		return nil, busError(err)
	}
	found = slices.DeleteFunc(found, func(g jetstream.StoredGrant) bool {
		return !takes(g.Grant) || len(c.cfg.GateKeys) > 0 && g.Genuine(c.cfg.GateKeys) != nil
	})
	all := make([]Grant, len(found))
	err = each(len(found), func(i int) error {
		all[i].Grant = found[i].Grant
		return c.addUses(ctx, &all[i])
	})
	return all, busError(err)
}

// addUses says how far a grant is used, as far as the user may know, and what it is good for.
func (c *Client) addUses(ctx context.Context, g *Grant) error {
	if c.reads() {
		last, err := c.conn.Last(ctx, c.ns.UsesOf(g.ID))
		switch {
		case err == nil:
			d, err := events.Data[events.GrantUsed](last)
			if err != nil {
				return err
			}
			g.Used, g.LastUsed = &d.Number, &d.At
		case errors.Is(err, jetstream.ErrNotFound):
			g.Used = new(int)
		default:
			if err := c.tolerate(err); err != nil {
				return err
			}
		}
	}
	g.State = stateOf(*g, time.Now())
	return nil
}

func stateOf(g Grant, now time.Time) GrantState {
	switch {
	case g.Revoked != nil:
		return GrantRevoked
	case !g.InForce(now):
		return GrantExpired
	case g.Used != nil && *g.Used >= g.Terms.Uses:
		return GrantSpent
	}
	return GrantActive
}

// addGrant names the grant that an approval has brought, which has the id of the answer, and gives it a moment to show.
func (c *Client) addGrant(ctx context.Context, out *Outcome) {
	call, err := events.ParseCallID(out.ToolCallID)
	if err != nil || out.GrantID != "" || out.State != StateReleased || !c.reads() {
		return
	}
	fact, err := c.conn.Fact(ctx, c.ns.Call(call, events.KindAnswer))
	if err != nil {
		_ = c.tolerate(err) // the approval counts all the same
		return
	}
	a, err := events.Data[events.CallAnswered](fact)
	if err != nil || a.Grant == nil || !c.signed(fact) {
		return
	}
	out.GrantID = fact.ID
	ctx, cancel := context.WithTimeout(ctx, noteGrace)
	defer cancel()
	for ctx.Err() == nil {
		if found, err := c.conn.Grants(ctx, events.GrantFilter{ID: fact.ID}); err != nil || len(found) > 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(quickLook):
		}
	}
}

// GrantRequest asks for a standing approval without a call that waits.
type GrantRequest struct {
	ID    string // default: a new one
	Agent string
	Tool  string // its canonical id

	Run              string // with the scope run
	Thread, Resource string // with the scope thread

	Terms  events.GrantTerms
	Reason string
	Groups []string // of the principal; count only when a gateway signs
}

// Grant gives a standing approval: calls like these are released without anybody who looks, as long as the client's
// principal may approve them when they come. It waits until a gate has stored it, Config.Wait long; who may not read it
// gets the state sent when no refusal was heard.
func (c *Client) Grant(ctx context.Context, r GrantRequest) (*Grant, error) {
	r.ID = cmp.Or(r.ID, events.NewID(time.Now()))
	terms, refusal := r.Terms.Complete()
	if refusal != nil {
		return nil, refusal
	}
	req := events.GrantRequested{
		ID: r.ID, AgentID: r.Agent, ToolID: r.Tool, RunID: r.Run, ThreadID: r.Thread, ResourceID: r.Resource, Terms: terms,
		Reason: r.Reason, Groups: r.Groups,
	}
	asked := Grant{State: GrantSent, Grant: events.Grant{
		V: events.GrantVersion, ID: r.ID, AgentID: r.Agent, ToolID: r.Tool, RunID: r.Run, ThreadID: r.Thread,
		ResourceID: r.Resource, Terms: terms, GrantedBy: c.cfg.Principal, Reason: r.Reason,
	}}
	return c.awaitGrant(ctx, asked, req, func(g Grant) bool {
		asked.GrantedAt = g.GrantedAt // which is when the server stored the request
		return g.Same(asked.Grant)
	})
}

// Revoke takes a grant back: from the next call on nothing is released by it. It waits as [Client.Grant] does. A grant that
// is revoked already stays as it is.
func (c *Client) Revoke(ctx context.Context, id, reason string) (*Grant, error) {
	if id == "" {
		return nil, invalid("name a grant")
	}
	asked := Grant{State: GrantSent, Grant: events.Grant{ID: id}}
	return c.awaitGrant(ctx, asked, events.GrantRevoked{ID: id, Reason: reason}, func(g Grant) bool { return g.Revoked != nil })
}

// awaitGrant sends what is asked about a grant, and waits until the grant shows it, or a refusal is heard.
func (c *Client) awaitGrant(ctx context.Context, asked Grant, data any, done func(Grant) bool) (*Grant, error) {
	if err := c.refusals.listen(ctx, c.conn, c.cfg.Principal); err != nil {
		return nil, err
	}
	subject := c.ns.InGrant(c.cfg.Principal, asked.ID)
	e, err := c.request(subject, "", data)
	if err != nil {
		return nil, err
	}
	if err := c.send(ctx, subject, e); err != nil {
		return nil, err
	}
	notes, stop := c.refusals.of(e.ID)
	defer stop()
	wait := c.cfg.Wait
	if c.cfg.LiveOnly {
		wait = min(wait, noteGrace)
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	next := quickLook
	look := time.NewTimer(next)
	defer look.Stop()
	for {
		select {
		case note := <-notes:
			if note.refused != nil {
				return nil, note.refused
			}
		case <-look.C:
			next = min(2*next, maxLook)
			look.Reset(next)
			switch g, err := c.GrantInfo(ctx, asked.ID); {
			case err == nil && done(*g):
				return g, nil
			case err != nil && events.CodeOf(err) == events.CodeForbidden: // nothing will ever be seen
				look.Stop()
				limit.Reset(min(wait, noteGrace))
			}
		case <-limit.C:
			return &asked, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Filter chooses suspended runs and their asks; the zero value chooses all of them.
type Filter struct {
	Agent, Resource, Thread string

	// Run chooses one run, Tool asks of one tool by its name, Kind asks of one kind. Asks that a client answers are listed for
	// who asked for the run, and for others by Run or Kind alone.
	Run, Tool string
	Kind      events.AskKind

	// Approver chooses asks that this principal may decide, as far as is known here; see [events.Approver.May].
	Approver *events.Approver

	// AskedBefore and ExpireBefore choose asks by their times. Zero: no bound.
	AskedBefore, ExpireBefore time.Time

	// From and To bound the time of suspension. Zero: no bound.
	From, To time.Time

	// Sort is the order of asks; Reverse turns it around. Suspended runs have an order of their own.
	Sort    Order
	Reverse bool

	// Page (from 0) and PerPage cut the list. PerPage 0 with page 0: everything; with another page: 100.
	Page, PerPage int
}

// Order is an order of asks.
type Order string

// Orders of asks. What is alike comes in the order of asking.
const (
	ByAge    Order = "asked" // the oldest first; the default
	ByExpiry Order = "expires"
	ByAgent  Order = "agent"
	ByTool   Order = "tool"
)

// Orders are all of them.
var Orders = []Order{ByAge, ByExpiry, ByAgent, ByTool}

func (f Filter) validate() error {
	switch {
	case f.Sort != "" && !slices.Contains(Orders, f.Sort):
		return &events.Error{
			Code: events.CodeInvalidRequest, Message: fmt.Sprintf("asks are not sorted by %q: use one of %v", f.Sort, Orders),
			Issues: []events.Issue{{Field: "sort", Message: "no such order"}},
		}
	case f.Page < 0:
		return &events.Error{
			Code: events.CodeInvalidRequest, Message: "page must not be negative",
			Issues: []events.Issue{{Field: "page", Message: "must not be negative"}},
		}
	case f.PerPage < 0:
		return &events.Error{
			Code: events.CodeInvalidRequest, Message: "perPage must be positive",
			Issues: []events.Issue{{Field: "perPage", Message: "must be positive"}},
		}
	}
	return nil
}

// Page is a part of the list of suspended runs.
type Page struct {
	Runs  []SuspendedRun `json:"runs"`
	Total int            `json:"total"` // of all pages
}

// SuspendedRun is a run that waits for decisions.
type SuspendedRun struct {
	RunID       string        `json:"runId"`
	Status      Status        `json:"status"` // suspended
	AgentID     string        `json:"agentId"`
	ThreadID    string        `json:"threadId,omitempty"`
	ResourceID  string        `json:"resourceId,omitempty"`
	SuspendedAt time.Time     `json:"suspendedAt"`
	ToolCalls   []PendingCall `json:"toolCalls"` // every call that waits, in call order
}

// PendingCall is a call that waits for a decision.
type PendingCall struct {
	ToolCallID       string          `json:"toolCallId"`
	ToolName         string          `json:"toolName"`
	Args             json.RawMessage `json:"args"`
	RequiresApproval bool            `json:"requiresApproval"` // false: it waits for something else than an approval
	SuspendPayload   json.RawMessage `json:"suspendPayload,omitempty"`
	ResumeSchema     string          `json:"resumeSchema,omitempty"` // JSON text
	Ask              events.AskBrief `json:"ask"`
}

// Suspended lists the runs that wait for decisions, the latest first, with all calls that wait. The list comes from the
// bucket of suspended runs, so its cost depends on these alone.
func (c *Client) Suspended(ctx context.Context, f Filter) (*Page, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	snaps, err := c.snapshots(ctx, f)
	if err != nil {
		return nil, err
	}
	page := &Page{Runs: []SuspendedRun{}}
	for _, s := range snaps {
		if run := suspendedRun(s, f, c.cfg.Principal); len(run.ToolCalls) > 0 {
			page.Runs = append(page.Runs, run)
		}
	}
	slices.SortFunc(page.Runs, func(a, b SuspendedRun) int {
		return cmp.Or(b.SuspendedAt.Compare(a.SuspendedAt), cmp.Compare(a.RunID, b.RunID))
	})
	page.Total = len(page.Runs)
	page.Runs = cut(page.Runs, f.Page, f.PerPage)
	return page, nil
}

// snapshots reads the entries that the filter's names and times choose.
func (c *Client) snapshots(ctx context.Context, f Filter) ([]*events.Snapshot, error) {
	if c.cfg.LiveOnly {
		return nil, c.needsLog("listing suspended runs")
	}
	keys, err := c.conn.ListSuspended(ctx, f.Agent, f.Resource, f.Thread)
	if err != nil {
		return nil, busError(err)
	}
	if f.Run != "" {
		keys = slices.DeleteFunc(keys, func(key string) bool {
			run, err := events.RunOfKey(key)
			return err != nil || run != f.Run
		})
	}
	snaps := make([]*events.Snapshot, len(keys))
	err = each(len(keys), func(i int) error {
		s, err := c.conn.Listed(ctx, keys[i])
		if errors.Is(err, jetstream.ErrNotFound) {
			return nil // decided in between
		}
		snaps[i] = s
		return err
	})
	if err != nil {
		return nil, busError(err)
	}
	return slices.DeleteFunc(snaps, func(s *events.Snapshot) bool {
		return s == nil || !f.From.IsZero() && s.SuspendedAt.Before(f.From) || !f.To.IsZero() && s.SuspendedAt.After(f.To)
	}), nil
}

// takes reports whether the filter chooses an ask of a run that requester asked for, by what the ask says itself.
func (f Filter) takes(a events.OpenAsk, requester string) bool {
	return fits(f.Tool, a.ToolName) && fits(f.Kind, a.Kind) &&
		(f.AskedBefore.IsZero() || a.AskedAt.Before(f.AskedBefore)) &&
		(f.ExpireBefore.IsZero() || a.ExpiresAt.Before(f.ExpireBefore)) &&
		(f.Approver == nil || f.Approver.May(a, requester))
}

// fits reports whether something is what a filter wants; one that wants nothing takes all.
func fits[T ~string](want, is T) bool { return want == "" || want == is }

// compare orders asks as the filter says.
func (f Filter) compare(a, b events.OpenAsk) int {
	first := 0
	switch f.Sort {
	case ByExpiry:
		first = a.ExpiresAt.Compare(b.ExpiresAt)
	case ByAgent:
		first = cmp.Compare(a.AgentID, b.AgentID)
	case ByTool:
		first = cmp.Compare(a.ToolName, b.ToolName)
	default:
	}
	first = cmp.Or(first, a.AskedAt.Compare(b.AskedAt), events.CompareCalls(a.ToolCallID, b.ToolCallID))
	if f.Reverse {
		return -first
	}
	return first
}

// Takes reports whether the filter chooses an ask that was heard. Who asked for its run is not said there, so what only the
// requester may decide, or may not, is taken for whoever looks.
func (f Filter) Takes(a events.CallHeld) bool {
	requester := ""
	if f.Approver != nil && a.Kind == events.AskClient {
		requester = f.Approver.ID
	}
	return fits(f.Agent, a.AgentID) && fits(f.Thread, a.ThreadID) && fits(f.Resource, a.ResourceID) &&
		(fits(f.Run, a.RunID) || f.Run == a.RootRunID) && f.takes(a.Open(), requester)
}

// Me is the client's principal with the groups that the registry knows it to be in. Who comes through a gateway may be in
// others.
func (c *Client) Me(ctx context.Context) (*events.Approver, error) {
	me := &events.Approver{ID: c.cfg.Principal}
	raw, err := c.conn.NamedNow(ctx, events.RegistryPrincipal, me.ID)
	if errors.Is(err, jetstream.ErrNotFound) {
		return me, nil
	}
	if err != nil {
		return nil, busError(err)
	}
	var def events.PrincipalDef
	if err := json.Unmarshal(raw, &def); err != nil {
		return nil, fmt.Errorf("principal %s: %w", me.ID, err)
	}
	me.Groups, me.Barred = def.Groups, !def.May(events.MayDecide)
	return me, nil
}

// shows reports whether an ask belongs in a list that was not asked for it: what a client answers is nobody's business but
// that of who asked for the run.
func (f Filter) shows(a events.OpenAsk, requester, principal string) bool {
	return a.Kind != events.AskClient || f.Kind == events.AskClient || f.Run != "" ||
		principal == requester || events.Token(principal) == requester
}

func suspendedRun(s *events.Snapshot, f Filter, principal string) SuspendedRun {
	run := SuspendedRun{
		RunID: s.RunID, Status: StatusSuspended, AgentID: s.AgentID, ThreadID: s.ThreadID,
		ResourceID: s.ResourceID, SuspendedAt: s.SuspendedAt, ToolCalls: []PendingCall{},
	}
	for _, a := range s.Asks {
		if !f.takes(a, s.Requester) || !f.shows(a, s.Requester, principal) {
			continue
		}
		run.ToolCalls = append(run.ToolCalls, PendingCall{
			ToolCallID: a.ToolCallID, ToolName: a.ToolName, Args: a.Args, RequiresApproval: a.Kind == events.AskApproval,
			SuspendPayload: a.SuspendPayload, ResumeSchema: string(a.ResumeSchema),
			Ask: events.AskBrief{
				ToolCallID: a.ToolCallID, RunID: a.RunID, RootRunID: s.RootRunID, Path: a.Path,
				AgentID: a.AgentID, Round: a.Round, Kind: a.Kind, Fingerprint: a.Fingerprint, Reason: a.Reason.Text,
				ExpiresAt: a.ExpiresAt, Allowed: a.Allowed, Approvers: a.Approvers, Quorum: a.Quorum, Preview: a.Preview,
			},
		})
	}
	return run
}

const defaultPerPage = 100

func cut[T any](list []T, page, perPage int) []T {
	if perPage == 0 {
		if page == 0 {
			return list
		}
		perPage = defaultPerPage
	}
	if page > len(list)/perPage {
		return list[:0]
	}
	from := page * perPage
	return list[from:min(from+perPage, len(list))]
}

// Asks lists the calls that wait for decisions, in the order of the filter: the inbox. Page and PerPage cut it.
func (c *Client) Asks(ctx context.Context, f Filter) (asks []events.OpenAsk, total int, err error) {
	if err := f.validate(); err != nil {
		return nil, 0, err
	}
	snaps, err := c.snapshots(ctx, f)
	if err != nil {
		return nil, 0, err
	}
	asks = []events.OpenAsk{}
	seen := map[string]bool{} // a root's entry lists the asks of all runs below it
	for _, s := range snaps {
		for _, a := range s.Asks {
			if f.takes(a, s.Requester) && f.shows(a, s.Requester, c.cfg.Principal) && !seen[a.ToolCallID] {
				seen[a.ToolCallID] = true
				asks = append(asks, a)
			}
		}
	}
	slices.SortFunc(asks, f.compare)
	return cut(asks, f.Page, f.PerPage), len(asks), nil
}

// Ask reads the ask that a call waits for, from the log. The id is a toolCallId, that of a delegated call below which one call
// waits, or a run id when one call of the run waits. A call that was decided is refused with already_decided and the answer, one that waits for nothing with
// not_found.
func (c *Client) Ask(ctx context.Context, id string) (*events.CallHeld, error) {
	if !c.reads() {
		return c.askGate(ctx, id)
	}
	call, err := c.callOf(ctx, decision("", id, nil))
	if err != nil {
		return nil, err
	}
	last, err := c.conn.Last(ctx, c.ns.Call(call, events.KindAsk).Chain())
	if err == nil && last.Place.Delegated() { // who is meant is the one that waits below
		if call, err = c.callOf(ctx, Decision{RunID: call.String()}); err != nil {
			return nil, err
		}
		last, err = c.conn.Last(ctx, c.ns.Call(call, events.KindAsk).Chain())
	}
	switch {
	case errors.Is(err, jetstream.ErrNotFound):
		return nil, events.NotFound("call", "call %s is not known", call)
	case err != nil:
		return nil, busError(err)
	case last.Place.Kind != events.KindAsk:
		return nil, c.notHeld(ctx, call)
	}
	if !c.signed(last) {
		return nil, events.Errorf(events.CodeTampering, "the ask of call %s was not signed by a gate", call)
	}
	ask, err := events.Data[events.CallHeld](last)
	if err != nil {
		return nil, err
	}
	return &ask, c.addVotes(ctx, call, &ask)
}

// signed reports whether a gate wrote a fact, as far as the client can tell.
func (c *Client) signed(e events.Event) bool {
	return len(c.cfg.GateKeys) == 0 || c.cfg.GateKeys.VerifyFact(e) == nil
}

// addVotes puts the votes about an ask into it that were cast since it was stored. What the gate does not count any more,
// because somebody may no longer decide, is among them.
func (c *Client) addVotes(ctx context.Context, call events.CallID, ask *events.CallHeld) error {
	if ask.Quorum == nil {
		return nil
	}
	votes, err := c.conn.Votes(ctx, call, c.signed)
	if err != nil {
		return busError(err)
	}
	ask.Quorum = ask.Tally(votes)
	return nil
}

// askGate has the gate show the ask.
func (c *Client) askGate(ctx context.Context, id string) (*events.CallHeld, error) {
	run, call := id, ""
	if named, err := events.ParseCallID(id); err == nil {
		run, call = named.Run, named.Token()
	} else if !events.IsRunID(id) {
		return nil, invalid("%q is neither the id of a call nor that of a run", id)
	}
	ctx, cancel := context.WithTimeout(ctx, gateTime)
	defer cancel()
	var ask events.CallHeld
	err := c.conn.Ask(ctx, c.ns.ServiceSubject(events.VerbAsk, c.cfg.Principal, run, call), events.Event{}, &ask)
	if err != nil {
		return nil, gateError(err)
	}
	return &ask, nil
}

// gateError is busError for a request to the gate.
func gateError(err error) error {
	if errors.Is(err, jetstream.ErrUnavailable) {
		return events.Errorf(events.CodeUnavailable, "no gate answers: the service approval must run")
	}
	return busError(err)
}

// notHeld says why a call waits for nobody.
func (c *Client) notHeld(ctx context.Context, call events.CallID) error {
	fact, err := c.conn.Fact(ctx, c.ns.Call(call, events.KindAnswer))
	if errors.Is(err, jetstream.ErrNotFound) {
		return events.NotFound("call", "call %s waits for no decision", call)
	}
	if err != nil {
		return busError(err)
	}
	a, err := events.Data[events.CallAnswered](fact)
	if err != nil {
		return err
	}
	return a.Decided(c.cfg.Principal)
}

// AskEvent is news about asks: a call is held, or it was decided.
type AskEvent struct {
	Ask    *events.CallHeld     `json:"ask,omitempty"`
	Answer *events.CallAnswered `json:"answer,omitempty"`
}

// maxNews bounds the news that wait for a slow reader; what does not fit is left out.
const maxNews = 1024

// WatchAsks gives news about asks of all runs from now on, until ctx ends. It needs no right to read the log. After it
// has begun, list what is there: nothing falls between the two.
func (c *Client) WatchAsks(ctx context.Context) (iter.Seq[AskEvent], error) {
	news := make(chan AskEvent, maxNews)
	hear := func(e events.Event) {
		n, ok := c.newsIn(e)
		if !ok {
			return
		}
		select {
		case news <- n:
		default:
			c.cfg.Log.WarnContext(ctx, "news about asks left out: the reader is too slow")
		}
	}
	for _, kind := range []events.Kind{events.KindAsk, events.KindAnswer} {
		if _, err := c.conn.Hear(ctx, c.ns.EveryCall(kind), hear); err != nil {
			return nil, busError(err)
		}
	}
	return func(yield func(AskEvent) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case n := <-news:
				if !yield(n) {
					return
				}
			}
		}
	}, nil
}

// newsIn reads an ask or answer that was heard. A copy that was stored again before it ages out is no news.
func (c *Client) newsIn(e events.Event) (n AskEvent, ok bool) {
	if e.Carried || !c.signed(e) {
		return n, false
	}
	switch e.Type {
	case events.TypeOf[events.CallHeld]():
		d, err := events.Data[events.CallHeld](e)
		return AskEvent{Ask: &d}, err == nil
	case events.TypeOf[events.CallAnswered]():
		d, err := events.Data[events.CallAnswered](e)
		return AskEvent{Answer: &d}, err == nil
	}
	return n, false
}

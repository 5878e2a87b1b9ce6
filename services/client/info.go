package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Status of a run.
type Status string

// What a run may be doing.
const (
	StatusRunning   Status = "running"
	StatusSuspended Status = "suspended" // nothing can move without a decision
	StatusEnded     Status = "ended"
)

// States of a call, beside those of [Outcome]: held, released and finished.
const (
	CallOpen    = "open"    // the gate has not said anything yet
	CallRunning = "running" // a worker has claimed it
)

// Info is what the log says about a run.
type Info struct {
	RunID      string     `json:"runId"`
	RootRunID  string     `json:"rootRunId,omitempty"`
	AgentID    string     `json:"agentId,omitempty"`
	ThreadID   string     `json:"threadId,omitempty"`
	ResourceID string     `json:"resourceId,omitempty"`
	Requester  string     `json:"requester,omitempty"`
	Status     Status     `json:"status"`
	StartedAt  time.Time  `json:"startedAt,omitzero"`
	EndedAt    *time.Time `json:"endedAt,omitempty"`

	Steps int          `json:"steps"`
	Usage events.Usage `json:"usage"`

	Outcome      events.RunOutcome   `json:"outcome,omitempty"` // of an ended run, as the next six
	FinishReason string              `json:"finishReason,omitempty"`
	Limit        string              `json:"limit,omitempty"`
	Text         string              `json:"text,omitempty"` // of the final message
	Error        *events.Error       `json:"error,omitempty"`
	Cancel       *events.CancelCause `json:"cancel,omitempty"`
	Resumes      []string            `json:"resumes,omitempty"` // the runs that go on in its place

	Calls []CallInfo       `json:"calls"` // of the last step
	Asks  []events.OpenAsk `json:"asks"`  // its calls that wait
}

// CallInfo is a call of a run's last step.
type CallInfo struct {
	ToolCallID string         `json:"toolCallId"`
	ToolName   string         `json:"toolName"`
	State      string         `json:"state"` // open, held, released, running or finished
	Round      int            `json:"round"`
	Outcome    events.Outcome `json:"outcome,omitempty"`
	Background bool           `json:"background,omitempty"`
}

// Info reads a run from the log.
func (c *Client) Info(ctx context.Context, run string) (*Info, error) {
	if err := c.needsLog("looking at a run"); err != nil {
		return nil, err
	}
	st, head, err := c.conn.RunState(ctx, run)
	if err != nil {
		if errors.Is(err, jetstream.ErrNotFound) {
			return c.infoOfEnd(ctx, run)
		}
		return nil, busError(err)
	}
	info := infoOf(st)
	ended := head.Place.Kind == events.KindEnd
	if ended {
		if err := info.addEnd(head); err != nil || len(st.OpenTasks()) == 0 {
			return info, err
		}
	}
	if err := c.addCalls(ctx, info, st); err != nil {
		return nil, err
	}
	if ended { // with calls in the background that go on
		info.Status = StatusEnded
	}
	return info, nil
}

// infoOfEnd is for a run that has an end and nothing before it: cancelled before it began, or aged out up to its end.
func (c *Client) infoOfEnd(ctx context.Context, run string) (*Info, error) {
	end, err := c.conn.Fact(ctx, c.ns.End(run))
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil, noRun(run)
	}
	if err != nil {
		return nil, busError(err)
	}
	info := &Info{RunID: run, Calls: []CallInfo{}, Asks: []events.OpenAsk{}}
	return info, info.addEnd(end)
}

func infoOf(st *events.State) *Info {
	info := &Info{
		RunID: st.RunID, RootRunID: st.RootRunID, AgentID: st.AgentID, ThreadID: st.ThreadID,
		ResourceID: st.ResourceID, Requester: st.Requester, Status: StatusRunning, StartedAt: st.StartedAt,
		Steps: st.Step, Usage: st.Counted().Usage, Calls: []CallInfo{}, Asks: []events.OpenAsk{},
	}
	for _, call := range slices.Concat(st.Calls, st.Tasks) {
		i := CallInfo{
			ToolCallID: call.Planned.ToolCallID, ToolName: call.Planned.ToolName, State: CallOpen, Background: call.Planned.Background != nil,
		}
		if call.Finished != nil {
			i.State, i.Round, i.Outcome = StateFinished, call.Finished.Round, call.Finished.Outcome
		}
		info.Calls = append(info.Calls, i)
	}
	return info
}

func (i *Info) addEnd(end events.Event) error {
	d, err := events.Data[events.RunEnded](end)
	if err != nil {
		return err
	}
	at := end.Stored.UTC()
	i.Status, i.EndedAt, i.Outcome, i.FinishReason, i.Limit = StatusEnded, &at, d.Outcome, d.FinishReason, d.Limit
	i.Error, i.Cancel, i.Usage, i.Steps = d.Error, d.Cancel, d.Usage, max(i.Steps, d.Step)
	i.Resumes = d.Resumes
	if i.AgentID == "" {
		i.AgentID, i.ThreadID, i.ResourceID = d.AgentID, d.ThreadID, d.ResourceID
	}
	if d.Message != nil {
		i.Text = d.Message.Text()
	}
	return nil
}

// addCalls looks at the calls that have no result.
func (c *Client) addCalls(ctx context.Context, info *Info, st *events.State) error {
	held, open := 0, 0
	for n, call := range slices.Concat(st.Calls, st.Tasks) {
		if call.Finished != nil {
			continue
		}
		waited := st.Waiting || slices.Contains(st.Awaited(), call.C)
		if waited {
			open++
		}
		id, err := events.CallOf(st.RunID, call.C)
		if err != nil {
			return err
		}
		last, err := c.conn.Last(ctx, c.ns.Call(id, events.KindAsk).Chain())
		if errors.Is(err, jetstream.ErrNotFound) {
			continue
		}
		if err != nil {
			return busError(err)
		}
		if err := c.addCall(ctx, info, n, last); err != nil {
			return err
		}
		if waited && info.Calls[n].State == StateHeld {
			held++
		}
	}
	if held > 0 && held == open {
		info.Status = StatusSuspended
	}
	return nil
}

func (c *Client) addCall(ctx context.Context, i *Info, n int, last events.Event) error {
	call := &i.Calls[n]
	call.State, call.Round = events.StateAfter(last.Place.Kind), events.RoundOf(last)
	switch last.Place.Kind {
	case events.KindClaim, events.KindSuspend:
		call.State = CallRunning
	case events.KindAsk:
		ask, err := events.Data[events.CallHeld](last)
		if err != nil {
			return err
		}
		if err := c.addVotes(ctx, last.Place.CallID(), &ask); err != nil {
			return err
		}
		i.Asks = append(i.Asks, ask.Open())
	case events.KindResult:
		d, err := events.Data[events.CallFinished](last)
		if err != nil {
			return err
		}
		call.Outcome = d.Outcome
	default:
	}
	return nil
}

const (
	defaultRuns = 20
	// maxCandidates bounds how many runs are looked at for a list.
	maxCandidates = 2000
	readsAtOnce   = 16
)

// RunsFilter chooses runs; the zero value chooses the latest 20.
type RunsFilter struct {
	Agent  string
	Status Status
	Limit  int // default 20
}

// Runs lists recent runs that are still in the log, the latest first. Of very many runs the latest are those whose ids,
// made by Weir, hold the latest time; More says that there are others.
func (c *Client) Runs(ctx context.Context, f RunsFilter) (list []Info, more bool, err error) {
	if err := c.needsLog("listing runs"); err != nil {
		return nil, false, err
	}
	if f.Limit <= 0 {
		f.Limit = defaultRuns
	}
	subjects, err := c.conn.Subjects(ctx, c.ns.EveryMain(events.KindStart))
	if err != nil {
		return nil, false, busError(err)
	}
	places, more := latest(subjects)
	starts, err := c.conn.Facts(ctx, places...)
	if err != nil {
		return nil, false, busError(err)
	}
	starts = slices.DeleteFunc(starts, func(e events.Event) bool { return e.ID == "" })
	slices.SortFunc(starts, func(a, b events.Event) int { return b.Stored.Compare(a.Stored) })
	list = []Info{}
	for _, start := range starts {
		if len(list) == f.Limit {
			return list, true, nil
		}
		info, err := c.matching(ctx, start, f)
		if err != nil {
			return nil, false, err
		}
		if info != nil {
			list = append(list, *info)
		}
	}
	return list, more, nil
}

// matching is the run of a start when the filter chooses it, else nil.
func (c *Client) matching(ctx context.Context, start events.Event, f RunsFilter) (*Info, error) {
	d, err := events.Data[events.RunStarted](start)
	if err != nil || f.Agent != "" && f.Agent != d.AgentID {
		return nil, nil //nolint:nilerr,nilnil // a fact that cannot be read hides itself, not the others
	}
	info, err := c.Info(ctx, start.Place.Run)
	if e, ok := errors.AsType[*events.Error](err); ok && e.Code == events.CodeNotFound {
		return nil, nil //nolint:nilnil // aged out in between
	}
	if err != nil || f.Status != "" && f.Status != info.Status {
		return nil, err
	}
	return info, nil
}

// latest are the places of the latest starts. Ids of Weir's own begin with their time, so their order is known without
// reading; others are taken for new.
func latest(subjects []string) (places []events.Place, more bool) {
	for _, s := range subjects {
		if p, err := events.ParsePlace(s); err == nil {
			places = append(places, p)
		}
	}
	slices.SortFunc(places, func(a, b events.Place) int { return strings.Compare(ageOf(b.Run), ageOf(a.Run)) })
	if len(places) > maxCandidates {
		return places[:maxCandidates], true
	}
	return places, false
}

// ageOf is what run ids are sorted by: a UUIDv7 itself, and something behind all of them for others.
func ageOf(run string) string {
	if _, ok := events.TimeOfID(run); ok {
		return run
	}
	return "~" + run
}

// each calls f for 0 to n-1, a few at once, and returns the first error.
func each(n int, f func(int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, readsAtOnce)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(i)
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

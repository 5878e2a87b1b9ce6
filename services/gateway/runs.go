package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// Headers of requests and answers.
const (
	idempotencyKey = "Idempotency-Key"
	runHeader      = "Weir-Run-Id"
	cursorHeader   = "Weir-Cursor"
	abortHeader    = "Weir-Abort-On-Close"
)

// suspendedQuery chooses suspended runs of an agent.
type suspendedQuery struct {
	ThreadID   string `json:"threadId,omitempty"`
	ResourceID string `json:"resourceId,omitempty"`
	FromDate   string `json:"fromDate,omitempty"`
	ToDate     string `json:"toDate,omitempty"`
	PerPage    int    `json:"perPage,omitempty"`
	Page       int    `json:"page,omitempty"`
}

// suspendedRuns lists the runs of an agent that wait for people.
func suspendedRuns(r *request) (any, error) {
	def, err := r.agent()
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	f := client.Filter{Agent: def.ID, Thread: q.Get("threadId"), Resource: q.Get("resourceId")}
	for _, p := range []struct {
		name string
		into *time.Time
	}{{"fromDate", &f.From}, {"toDate", &f.To}} {
		if text := q.Get(p.name); text != "" {
			if *p.into, err = time.Parse(time.RFC3339, text); err != nil {
				return nil, badQuery(p.name, "want a time such as 2026-11-29T22:25:32Z")
			}
		}
	}
	for _, p := range []struct {
		name  string
		least int
		into  *int
	}{{"perPage", 1, &f.PerPage}, {"page", 0, &f.Page}} {
		if text := q.Get(p.name); text != "" {
			if *p.into, err = strconv.Atoi(text); err != nil || *p.into < p.least {
				return nil, badQuery(p.name, "want a number of at least "+strconv.Itoa(p.least))
			}
		}
	}
	page, err := r.who.Suspended(r.Context(), f)
	if err != nil {
		return nil, err
	}
	for _, run := range page.Runs {
		for i := range run.ToolCalls { // of which a client knows the one that is delegated; the ask inside names the call
			run.ToolCalls[i].ToolCallID = events.CallWithin(run.RunID, run.ToolCalls[i].ToolCallID)
		}
	}
	return page, nil
}

// startedView answers a start: the run is asked for, and may be followed.
type startedView struct {
	RunID  string `json:"runId"`
	Status string `json:"status"` // requested
	Chunks string `json:"chunks"` // where it is followed
}

// startRun asks for a run of an agent, or for one call of a tool, and does not wait for it.
func startRun(r *request) (any, error) {
	var body events.RunRequested
	if err := r.readExact(&body); err != nil {
		return nil, err
	}
	key := r.Header.Get(idempotencyKey)
	if body.RunID != "" {
		key = ""
		if err := r.who.needs(events.MayRead); err != nil { // the run of that id may be somebody else's
			return nil, err
		}
	}
	run, err := r.requestRun(body, key)
	if err != nil {
		return nil, err
	}
	return &reply{
		status: http.StatusAccepted, header: http.Header{runHeader: {run.ID}},
		body: startedView{RunID: run.ID, Status: "requested", Chunks: "/api/runs/" + run.ID + "/chunks"},
	}, nil
}

func (r *request) requestRun(body events.RunRequested, key string) (*client.Run, error) {
	switch {
	case body.ToolID != "" && body.AgentID != "":
		return nil, badBody("toolId", "name an agent or a tool, not both")
	case body.ToolID != "":
		tool, err := r.toolOf(body.ToolID)
		if err != nil {
			return nil, err
		}
		return r.who.StartTool(r.Context(), client.ToolRequest{
			Tool: tool.ID, Args: body.Args, RunID: body.RunID, IdempotencyKey: key, ThreadID: body.ThreadID, ResourceID: body.ResourceID,
			Context: body.RequestContext, RequireToolApproval: body.RequireToolApproval, Limits: body.Limits, Metadata: body.Metadata,
		})
	case body.AgentID == "":
		return nil, badBody("agentId", "Required")
	case len(body.Messages) == 0:
		return nil, badBody("messages", "Required")
	}
	if _, err := r.agentOf(r.Context(), body.AgentID); err != nil {
		return nil, err
	}
	req := client.Request{
		Agent: body.AgentID, Messages: body.Messages, RunID: body.RunID, IdempotencyKey: key, ThreadID: body.ThreadID,
		ResourceID: body.ResourceID, Context: body.RequestContext, Instructions: body.Instructions, Model: body.Model,
		ToolChoice: body.ToolChoice, ActiveTools: body.ActiveTools, RequireToolApproval: body.RequireToolApproval, Limits: body.Limits,
		Metadata: body.Metadata, AutoResumeSuspendedTools: body.AutoResumeSuspendedTools, Hooks: body.Hooks, Transform: body.Transform,
		Memory: body.Memory, ToolCallConcurrency: int(body.ToolCallConcurrency), StructuredOutput: body.StructuredOutput,
		ModelSettings: body.ModelSettings, ProviderOptions: body.ProviderOptions,
	}
	for name, t := range body.ClientTools {
		if req.ClientTools == nil {
			req.ClientTools = map[string]client.ClientTool{}
		}
		req.ClientTools[name] = client.ClientTool{ClientTool: t}
	}
	return r.who.Start(r.Context(), req)
}

// runsQuery chooses runs.
type runsQuery struct {
	Agent    string `json:"agent,omitempty"`
	Thread   string `json:"thread,omitempty"`
	Resource string `json:"resource,omitempty"`
	Status   string `json:"status,omitempty"` // suspended or live
	Limit    int    `json:"limit,omitempty"`
	After    string `json:"after,omitempty"`
}

// runItem is a run in a list.
type runItem struct {
	RunID       string     `json:"runId"`
	AgentID     string     `json:"agentId"`
	Status      string     `json:"status"`
	ThreadID    string     `json:"threadId,omitempty"`
	ResourceID  string     `json:"resourceId,omitempty"`
	SuspendedAt *time.Time `json:"suspendedAt,omitempty"`
	StartedAt   *time.Time `json:"startedAt,omitempty"`
	Asks        int        `json:"asks,omitempty"`
}

// runsView is a page of runs, the latest first. The suspended ones are complete; those that are live are those that this
// gateway has heard to start.
type runsView struct {
	list[runItem]
	LiveSince *time.Time `json:"liveSince,omitempty"`
}

const statusLive = "live"

func listRuns(r *request) (any, error) {
	q := r.URL.Query()
	status := q.Get("status")
	switch status {
	case "", statusLive, string(client.StatusSuspended):
	default:
		return nil, badQuery("status", "want suspended or live")
	}
	f := client.Filter{Agent: q.Get("agent"), Thread: q.Get("thread"), Resource: q.Get("resource")}
	page, err := r.who.Suspended(r.Context(), f)
	if err != nil {
		return nil, err
	}
	var items []runItem
	waits := map[string]bool{}
	for _, run := range page.Runs {
		waits[run.RunID] = true
		if status != statusLive {
			at := run.SuspendedAt
			items = append(items, runItem{
				RunID: run.RunID, AgentID: run.AgentID, Status: string(client.StatusSuspended), ThreadID: run.ThreadID,
				ResourceID: run.ResourceID, SuspendedAt: &at, Asks: len(run.ToolCalls),
			})
		}
	}
	heard, since := r.g.live.list()
	for _, run := range heard {
		if waits[run.RunID] || status == string(client.StatusSuspended) || !fits(f.Agent, run.AgentID) ||
			!fits(f.Thread, run.ThreadID) || !fits(f.Resource, run.ResourceID) {
			continue
		}
		at := run.at.UTC()
		items = append(items, runItem{
			RunID: run.RunID, AgentID: run.AgentID, Status: statusLive, ThreadID: run.ThreadID, ResourceID: run.ResourceID, StartedAt: &at,
		})
	}
	v, err := paged(r, items, func(i runItem) place { return place{-i.at().UnixNano(), i.RunID} })
	if err != nil {
		return nil, err
	}
	view := runsView{list: v.(list[runItem])}
	if !since.IsZero() {
		since = since.UTC()
		view.LiveSince = &since
	}
	return view, nil
}

func (i runItem) at() time.Time {
	if i.SuspendedAt != nil {
		return *i.SuspendedAt
	}
	return *i.StartedAt
}

func fits(want, is string) bool { return want == "" || want == is }

// cancelBody says why a run, or one call of it, is cancelled.
type cancelBody struct {
	Reason     string `json:"reason,omitempty"`
	ToolCallID string `json:"toolCallId,omitempty"`
}

// cancelView answers a cancel: how the run has ended, if it has within a moment.
type cancelView struct {
	RunID      string            `json:"runId"`
	ToolCallID string            `json:"toolCallId,omitempty"`
	Status     string            `json:"status"` // requested or ended
	Outcome    events.RunOutcome `json:"outcome,omitempty"`
}

// cancelRun ends a run in whatever state it is, or one call of it.
func cancelRun(r *request) (any, error) {
	id := r.PathValue("runId")
	if !events.IsRunID(id) {
		return nil, unknownRun(id)
	}
	var body cancelBody
	if r.ContentLength != 0 {
		if err := r.readExact(&body); err != nil {
			return nil, err
		}
	}
	view := cancelView{RunID: id, ToolCallID: body.ToolCallID, Status: statusEnded}
	var err error
	if body.ToolCallID != "" {
		call, parseErr := events.ParseCallID(body.ToolCallID)
		if parseErr != nil || call.Run != id {
			return nil, badBody("toolCallId", "is no call of this run")
		}
		err = r.who.CancelCall(r.Context(), body.ToolCallID, body.Reason)
	} else {
		view.Outcome, err = r.who.Cancel(r.Context(), id, body.Reason)
	}
	if e, ok := errors.AsType[*events.Error](err); ok && e.Code == events.CodeUnknownOutcome {
		view.Status, err = "requested", nil // it is stored, and on its way
	}
	if err != nil {
		return nil, err
	}
	return &reply{status: http.StatusAccepted, body: view}, nil
}

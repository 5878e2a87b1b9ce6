package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// maxWait is how long a request may wait for a run.
const maxWait = time.Minute

// runView is the state of a run, as its chunks and its open asks show it.
type runView struct {
	RunID      string             `json:"runId"`
	RootRunID  string             `json:"rootRunId"`
	AgentID    string             `json:"agentId,omitempty"`
	Status     string             `json:"status"` // running, suspended or ended
	ThreadID   string             `json:"threadId,omitempty"`
	ResourceID string             `json:"resourceId,omitempty"`
	Steps      int                `json:"steps"` // that are finished
	Usage      events.Usage       `json:"usage"`
	StartedAt  *time.Time         `json:"startedAt,omitempty"`
	Suspended  *time.Time         `json:"suspendedAt,omitempty"`
	Asks       []*events.CallHeld `json:"asks"`
	Calls      []callView         `json:"calls"` // of the last step
	Cursor     uint64             `json:"cursor"`

	Outcome      events.RunOutcome `json:"outcome,omitempty"` // of a run that has ended, as the next four
	FinishReason string            `json:"finishReason,omitempty"`
	Limit        string            `json:"limit,omitempty"`
	Text         string            `json:"text,omitempty"`
	Error        *events.Error     `json:"error,omitempty"`
}

// callView is a call of a run's last step.
type callView struct {
	ToolCallID string         `json:"toolCallId"`
	ToolName   string         `json:"toolName"`
	State      string         `json:"state"` // open, held or finished
	Round      int            `json:"round"`
	Outcome    events.Outcome `json:"outcome,omitempty"`
}

// runQuery says how long to wait for a run.
type runQuery struct {
	Wait string `json:"wait,omitempty"` // such as 30s: until it ends, or nothing in it can move without a decision
}

// getRun answers the state of a run.
func getRun(r *request) (any, error) {
	id := r.PathValue("runId")
	if !events.IsRunID(id) {
		return nil, unknownRun(id)
	}
	run := r.who.Run(id)
	if text := r.URL.Query().Get("wait"); text != "" {
		wait, err := time.ParseDuration(text)
		if err != nil || wait < 0 {
			return nil, badQuery("wait", "want a span such as 30s")
		}
		if err := r.await(run, min(wait, maxWait)); err != nil {
			return nil, err
		}
	}
	v, asks, err := r.shown(run)
	if err != nil {
		return nil, err
	}
	if v.Status != statusEnded {
		if err := r.addAsks(v, asks); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// await waits until the run is quiet or has ended, the time is over, or the gateway stops.
func (r *request) await(run *client.Run, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.g.stopping:
			cancel()
		case <-stop:
		}
	}()
	for _, err := range run.Follow(ctx, 0, &client.FollowOptions{UntilSuspended: true}) {
		if err != nil && !errors.Is(err, client.ErrGap) && ctx.Err() == nil {
			return err
		}
	}
	return r.Context().Err()
}

// shown is what the stored chunks of a run show, and the asks that may be open.
func (r *request) shown(run *client.Run) (*runView, []events.AskPayload, error) {
	v := &runView{RunID: run.ID, RootRunID: rootOf(run.ID), Status: string(client.StatusRunning), Asks: []*events.CallHeld{}, Calls: []callView{}}
	fold := run.Fold()
	for ch, err := range run.Stored(r.Context(), 0) {
		if errors.Is(err, client.ErrGap) {
			v.Cursor = ch.Cursor
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		fold.Add(ch)
		v.add(ch)
	}
	out := fold.Output()
	v.Steps, v.Usage = len(out.Steps), out.Usage
	if v.Cursor == 0 { // nothing of it is stored: it may wait for longer than chunks are kept
		return v, nil, r.addWaiting(v)
	}
	if v.Status == statusEnded {
		v.FinishReason, v.Limit, v.Text, v.Error = out.FinishReason, out.Limit, out.Text, out.Error
		return v, nil, nil
	}
	return v, out.Asks, nil
}

// add takes the next chunk.
func (v *runView) add(ch events.Chunk) {
	v.Cursor = ch.Cursor
	switch ch.Type {
	case events.ChunkStart:
		at := ch.Time.UTC()
		v.StartedAt = &at
		var p events.StartPayload
		_ = json.Unmarshal(ch.Payload, &p) // one that cannot be read names nobody
		v.AgentID = p.ID
	case events.ChunkStepStart:
		v.Calls = []callView{}
	case events.ChunkToolCall:
		var p events.ToolCallPayload
		if json.Unmarshal(ch.Payload, &p) == nil && v.call(p.ToolCallID) == nil {
			v.Calls = append(v.Calls, callView{ToolCallID: p.ToolCallID, ToolName: p.ToolName, State: client.CallOpen})
		}
	case events.ChunkToolCallApproval, events.ChunkToolCallSuspended:
		var p events.AskPayload
		if json.Unmarshal(ch.Payload, &p) == nil {
			if c := v.call(p.Ask.ToolCallID); c != nil && c.State != client.StateFinished {
				c.State, c.Round = client.StateHeld, p.Ask.Round
			}
		}
	case events.ChunkToolResult, events.ChunkToolError, events.ChunkToolOutputDenied:
		var p events.ToolResultPayload
		if json.Unmarshal(ch.Payload, &p) == nil {
			if c := v.call(p.ToolCallID); c != nil {
				c.State, c.Outcome = client.StateFinished, p.Outcome
			}
		}
	case events.ChunkSuspended:
		at := ch.Time.UTC()
		v.Suspended = &at
	default:
		if o := outcomeOf(ch); o != "" {
			v.Status, v.Outcome = statusEnded, o
		}
	}
}

func (v *runView) call(id string) *callView {
	for i := range v.Calls {
		if v.Calls[i].ToolCallID == id {
			return &v.Calls[i]
		}
	}
	return nil
}

// addAsks asks the gate which of the asks are open: their chunks may be older than their answers.
func (r *request) addAsks(v *runView, asks []events.AskPayload) error {
	for _, a := range asks {
		ask, err := r.who.Ask(r.Context(), a.Ask.ToolCallID)
		c := v.call(a.Ask.ToolCallID)
		e, refused := errors.AsType[*events.Error](err)
		switch {
		case err == nil:
			v.Asks = append(v.Asks, shownAsk(ask))
			v.AgentID, v.ThreadID, v.ResourceID = cmp.Or(v.AgentID, ask.AgentID), ask.ThreadID, ask.ResourceID
			if c != nil {
				c.State, c.Round = client.StateHeld, ask.Round
			}
		case refused && (e.Code == events.CodeAlreadyDecided || e.Code == events.CodeNotFound || e.Code == events.CodeRunEnded):
			if c != nil && c.State == client.StateHeld {
				c.State = client.CallOpen // released, and on its way
			}
		default:
			return err
		}
	}
	held, unfinished := 0, 0
	for _, c := range v.Calls {
		switch c.State {
		case client.StateHeld:
			held++
			unfinished++
		case client.StateFinished:
		default:
			unfinished++
		}
	}
	if held > 0 && held == unfinished {
		v.Status = string(client.StatusSuspended)
	} else {
		v.Suspended = nil
	}
	return nil
}

// addWaiting fills in a run of which only the entry among the suspended ones is left. One that has none is not known.
func (r *request) addWaiting(v *runView) error {
	ask, err := r.who.Ask(r.Context(), v.RunID)
	e, refused := errors.AsType[*events.Error](err)
	switch {
	case err == nil:
		v.Asks = append(v.Asks, shownAsk(ask))
	case refused && e.Code == events.CodeAmbiguous:
		for _, id := range e.Asks {
			if ask, err = r.who.Ask(r.Context(), id); err != nil {
				continue // decided in between
			}
			v.Asks = append(v.Asks, shownAsk(ask))
		}
	case refused && e.Code != events.CodeUnavailable:
		return unknownRun(v.RunID)
	default:
		return err
	}
	if len(v.Asks) == 0 {
		return nil
	}
	first := v.Asks[0]
	v.Status, v.AgentID, v.ThreadID, v.ResourceID = string(client.StatusSuspended), first.AgentID, first.ThreadID, first.ResourceID
	for _, a := range v.Asks {
		v.Calls = append(v.Calls, callView{ToolCallID: a.ToolCallID, ToolName: a.ToolName, State: client.StateHeld, Round: a.Round})
	}
	return nil
}

// shownAsk is an ask as people may see it.
func shownAsk(ask *events.CallHeld) *events.CallHeld {
	shown := ask.Shown()
	return &shown
}

func finishOf(ch events.Chunk) events.FinishPayload {
	var p events.FinishPayload
	_ = json.Unmarshal(ch.Payload, &p) // one that cannot be read says nothing
	return p
}

// rootOf is the run at the top of a run: what stands before the first call in its id.
func rootOf(run string) string {
	for i := range len(run) {
		if run[i] == '=' {
			return run[:i]
		}
	}
	return run
}

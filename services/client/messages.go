package client

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// ThreadInfo is a conversation that runs of agents with memory have written.
type ThreadInfo struct {
	ThreadID   string    `json:"threadId"`
	ResourceID string    `json:"resourceId,omitempty"`
	AgentID    string    `json:"agentId,omitempty"` // of the run that wrote last
	CreatedAt  time.Time `json:"createdAt"`
	UpdatedAt  time.Time `json:"updatedAt"`
	Runs       int       `json:"runs"`
}

// ThreadFilter chooses threads; the zero value chooses all. Page (from 0) and PerPage cut the list as in [Filter].
type ThreadFilter struct {
	Agent, Resource string
	Page, PerPage   int
}

// ListThreads lists conversations, the one written last first, and how many there are. It needs the right to read the stream
// threads.
func (c *Client) ListThreads(ctx context.Context, f ThreadFilter) ([]ThreadInfo, int, error) {
	if err := (Filter{Page: f.Page, PerPage: f.PerPage}).validate(); err != nil {
		return nil, 0, err
	}
	if c.cfg.LiveOnly {
		return nil, 0, c.needsLog("listing threads")
	}
	found, err := c.conn.Threads(ctx, f.Resource)
	if err != nil {
		return nil, 0, busError(err)
	}
	all := make([]ThreadInfo, len(found))
	err = each(len(found), func(i int) error {
		first, last, err := c.conn.ThreadEnds(ctx, found[i])
		if err != nil || last == nil {
			return err // deleted in between
		}
		all[i] = ThreadInfo{
			ThreadID: last.ThreadID, ResourceID: last.ResourceID, AgentID: last.AgentID, CreatedAt: first.Stored.UTC(),
			UpdatedAt: last.Stored.UTC(), Runs: found[i].Runs,
		}
		return nil
	})
	if err != nil {
		return nil, 0, busError(err)
	}
	all = slices.DeleteFunc(all, func(t ThreadInfo) bool { return t.ThreadID == "" || !fits(f.Agent, t.AgentID) })
	slices.SortFunc(all, func(a, b ThreadInfo) int {
		return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.ThreadID, b.ThreadID))
	})
	return cut(all, f.Page, f.PerPage), len(all), nil
}

// ThreadMessage is a message of a conversation. A call and its result are parts of two messages; a call that waits for people
// has no result, and what it waits for stands in Metadata.
type ThreadMessage struct {
	ID         string           `json:"id"`
	Role       events.Role      `json:"role"`
	CreatedAt  time.Time        `json:"createdAt"`
	ThreadID   string           `json:"threadId"`
	ResourceID string           `json:"resourceId,omitempty"`
	RunID      string           `json:"runId"`
	AgentID    string           `json:"agentId,omitempty"`
	Parts      []events.Part    `json:"parts"`
	Metadata   *MessageMetadata `json:"metadata,omitempty"`
}

// MessageMetadata are calls that wait, by toolCallId.
type MessageMetadata struct {
	PendingToolApprovals map[string]WaitingCall `json:"pendingToolApprovals,omitempty"`
	SuspendedTools       map[string]WaitingCall `json:"suspendedTools,omitempty"`
}

// WaitingCall is a call of a conversation that waits for people.
type WaitingCall struct {
	ToolCallID     string          `json:"toolCallId"`
	ToolName       string          `json:"toolName"`
	RunID          string          `json:"runId"`
	Type           string          `json:"type"` // approval or suspension
	Kind           events.AskKind  `json:"kind"`
	Args           json.RawMessage `json:"args"`
	SuspendPayload json.RawMessage `json:"suspendPayload,omitempty"`
	ResumeSchema   json.RawMessage `json:"resumeSchema,omitempty"`
	ExpiresAt      time.Time       `json:"expiresAt"`
}

// MessagePage is a part of the messages of a conversation, oldest first.
type MessagePage struct {
	Messages []ThreadMessage `json:"messages"`
	Total    int             `json:"total"` // of all pages
}

// Messages reads a conversation, oldest message first: what runs have written, and, at the end, the calls that wait for people
// now. Page and perPage cut it as in [Filter]. A thread of which nothing is known is not_found. It needs the right to read the
// stream threads and the bucket of suspended runs.
func (c *Client) Messages(ctx context.Context, t Thread, page, perPage int) (*MessagePage, error) {
	if t.ThreadID == "" {
		return nil, invalid("a thread is missing")
	}
	if err := (Filter{Page: page, PerPage: perPage}).validate(); err != nil {
		return nil, err
	}
	asks, err := c.asksIn(ctx, t) // first: what is settled afterwards is an entry
	if err != nil {
		return nil, err
	}
	entries, err := c.conn.ThreadEntries(ctx, t.ResourceID, t.ThreadID)
	if err != nil {
		return nil, busError(err)
	}
	entries = slices.DeleteFunc(entries, func(e jetstream.ThreadEntry) bool {
		return e.Erased || e.ThreadID != t.ThreadID || e.ResourceID != t.ResourceID
	})
	all := append(said(entries), unsettled(t, asks, entries)...)
	if len(entries) == 0 && len(all) == 0 {
		return nil, events.NotFound("thread", "thread %s is not known: runs of agents with memory write threads", t.ThreadID)
	}
	return &MessagePage{Messages: cut(all, page, perPage), Total: len(all)}, nil
}

// said are the messages of entries. Results of background calls stand in the place of what said that the call was started.
func said(entries []jetstream.ThreadEntry) []ThreadMessage {
	results := map[string]events.Part{}
	for _, e := range entries {
		if e.Call == "" {
			continue
		}
		for _, m := range e.Messages {
			for _, p := range m.Parts {
				results[p.ToolCallID] = p
			}
		}
	}
	all := []ThreadMessage{}
	for _, e := range entries {
		if e.Call != "" {
			continue
		}
		for _, m := range e.Messages {
			parts := slices.Clone(m.Parts)
			for i, p := range parts {
				if r, ok := results[p.ToolCallID]; ok && p.Type == events.PartToolResult {
					parts[i] = r
				}
			}
			all = append(all, ThreadMessage{
				ID: m.ID, Role: m.Role, CreatedAt: e.Stored.UTC(), ThreadID: e.ThreadID, ResourceID: e.ResourceID, RunID: e.RunID,
				AgentID: e.AgentID, Parts: parts,
			})
		}
	}
	return all
}

// asksIn are the calls of a thread that wait, in the order of asking.
func (c *Client) asksIn(ctx context.Context, t Thread) ([]events.OpenAsk, error) {
	f := Filter{Resource: t.ResourceID, Thread: t.ThreadID}
	snaps, err := c.snapshots(ctx, f)
	if err != nil {
		return nil, err
	}
	var asks []events.OpenAsk
	for _, s := range snaps {
		if s.ResourceID != t.ResourceID || s.ThreadID != t.ThreadID { // no resource is none, not any
			continue
		}
		for _, a := range s.Asks {
			known := slices.ContainsFunc(asks, func(b events.OpenAsk) bool { return b.ToolCallID == a.ToolCallID })
			if f.shows(a, s.Requester, c.cfg.Principal) && !known {
				asks = append(asks, a)
			}
		}
	}
	slices.SortFunc(asks, f.compare)
	return asks, nil
}

// unsettled are the calls that wait, one message for each run. They are shown as the transcripts of their tools say.
func unsettled(t Thread, asks []events.OpenAsk, entries []jetstream.ThreadEntry) []ThreadMessage {
	settled := map[string]bool{}
	for _, e := range entries {
		for _, m := range e.Messages {
			for _, p := range m.Parts {
				settled[p.ToolCallID] = settled[p.ToolCallID] || p.State != ""
			}
		}
	}
	var all []ThreadMessage
	for _, a := range asks {
		if settled[a.ToolCallID] {
			continue
		}
		w := waitingCall(a)
		i := slices.IndexFunc(all, func(m ThreadMessage) bool { return m.RunID == a.RunID })
		if i < 0 {
			i = len(all)
			all = append(all, ThreadMessage{
				ID: a.RunID + "-open", Role: events.RoleAssistant, CreatedAt: a.AskedAt.UTC(), ThreadID: t.ThreadID,
				ResourceID: t.ResourceID, RunID: a.RunID, AgentID: a.AgentID, Metadata: &MessageMetadata{},
			})
		}
		all[i].Parts = append(all[i].Parts, events.Part{
			Type: events.PartToolCall, ToolCallID: a.ToolCallID, ToolName: a.ToolName, Args: string(w.Args),
		})
		all[i].Metadata.add(w)
	}
	return all
}

func waitingCall(a events.OpenAsk) WaitingCall {
	w := WaitingCall{
		ToolCallID: a.ToolCallID, ToolName: a.ToolName, RunID: a.RunID, Kind: a.Kind, Type: "approval", Args: a.Args,
		SuspendPayload: a.SuspendPayload, ResumeSchema: a.ResumeSchema, ExpiresAt: a.ExpiresAt.UTC(),
	}
	if a.Kind != events.AskApproval && a.Kind != events.AskInDoubt {
		w.Type = "suspension"
	}
	if a.Transcript != nil {
		w.Args = a.Transcript.Args
		if a.SuspendPayload != nil {
			w.SuspendPayload = a.Transcript.SuspendPayload
		}
	}
	return w
}

func (m *MessageMetadata) add(w WaitingCall) {
	of := &m.PendingToolApprovals
	if w.Type == "suspension" {
		of = &m.SuspendedTools
	}
	if *of == nil {
		*of = map[string]WaitingCall{}
	}
	(*of)[w.ToolCallID] = w
}

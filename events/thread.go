package events

import (
	"slices"
	"strconv"
	"strings"
)

// A thread is a conversation of a resource over many runs. Each run writes into it, each entry once: what it was asked, each
// settled step, the result of each background call, and how it ended. Runs beside each other write whole entries in the
// order in which they settle. An entry shows of calls what the transcript of their tools may show.

// Memory says how much of its thread a run recalls. Recalled are whole turns only: what a run was asked and what it did,
// without a step that is not settled.
type Memory struct {
	// LastMessages is how many messages of earlier runs the model is shown; null: 10; 0: none. All that an agent did in a
	// run is one message.
	LastMessages *int `json:"lastMessages,omitempty"`
	// Tokens bounds them too, estimated from their size; 0: 32,000.
	Tokens int `json:"tokens,omitempty"`
}

// Defaults and bounds of what is recalled.
const (
	defaultLastMessages = 10
	defaultMemoryTokens = 32_000

	// MaxLastMessages and MaxMemoryTokens are what a request or an agent may ask for.
	MaxLastMessages = 1000
	MaxMemoryTokens = 1_000_000
)

// Check lists what is wrong with it.
func (m *Memory) Check() []Issue {
	var list []Issue
	if m == nil {
		return nil
	}
	if n := m.LastMessages; n != nil && (*n < 0 || *n > MaxLastMessages) {
		list = append(list, Issue{Field: "memory.lastMessages", Message: "want a number from 0 to " + strconv.Itoa(MaxLastMessages)})
	}
	if m.Tokens < 0 || m.Tokens > MaxMemoryTokens {
		list = append(list, Issue{Field: "memory.tokens", Message: "want a number from 1 to " + strconv.Itoa(MaxMemoryTokens)})
	}
	return list
}

// Bounds are how many messages, and of how many tokens, are recalled.
func (m *Memory) Bounds() (messages, tokens int) {
	messages, tokens = defaultLastMessages, defaultMemoryTokens
	if m != nil && m.LastMessages != nil {
		messages = *m.LastMessages
	}
	if m != nil && m.Tokens > 0 {
		tokens = m.Tokens
	}
	return messages, tokens
}

// MemoryOf is how much a run recalls: the request's word, else the agent's; nil when it keeps no thread.
func (r RunRequested) MemoryOf(agent AgentDef) *Memory {
	switch {
	case r.ThreadID == "" || r.ToolID != "":
		return nil
	case r.Memory == nil:
		return agent.Memory
	case agent.Memory == nil:
		return r.Memory
	}
	m := *r.Memory
	if m.LastMessages == nil {
		m.LastMessages = agent.Memory.LastMessages
	}
	if m.Tokens == 0 {
		m.Tokens = agent.Memory.Tokens
	}
	return &m
}

// Recalled is what a run knows of its thread, frozen at its start, so that every planner, and each after a restart, shows its
// model the same.
type Recalled struct {
	Messages []Message `json:"messages,omitempty"`
	DataRef  string    `json:"dataref,omitempty"` // the messages as a blob, when they are large
	Size     int       `json:"size,omitempty"`    // of that blob, bytes
}

// begin is how the run writes into its thread, and what has been said when it starts.
func (r *Recalled) begin(d RunStarted) (*ThreadState, []Message) {
	asked := []Message(d.Request.Messages)
	if r == nil {
		return nil, slices.Clone(asked)
	}
	said := slices.Clone(r.Messages)
	if r.DataRef != "" {
		said = []Message{{Role: RoleUser, Parts: []Part{{Type: PartRecalled, DataRef: r.DataRef, Size: r.Size}}}}
	}
	return &ThreadState{InboxSeq: d.InboxSeq, Recalled: len(said)}, append(said, asked...)
}

// ThreadState is how a run writes into its thread.
type ThreadState struct {
	InboxSeq uint64 `json:"inboxSeq"` // of its request: a deletion that was asked later deletes what the run writes, too
	Recalled int    `json:"recalled,omitempty"`
}

// How a call of a thread ended.
const (
	StateResult = "result"
	StateError  = "output-error"
	StateDenied = "output-denied"
)

// StateIn is how a call is marked in a thread.
func (o Outcome) StateIn() string {
	switch o {
	case OutcomeOK, OutcomeResponded:
		return StateResult
	case OutcomeDeclined, OutcomeExpired:
		return StateDenied
	default:
		return StateError
	}
}

// MessageStored is an entry of a thread (message.stored).
type MessageStored struct {
	ThreadID   string    `json:"threadId"`
	ResourceID string    `json:"resourceId"`
	RunID      string    `json:"runId"`
	AgentID    string    `json:"agentId,omitempty"`
	InboxSeq   uint64    `json:"inboxSeq,omitempty"` // of the request of its run
	Index      int       `json:"index"`              // 0: what the run was asked; else the step
	Messages   []Message `json:"messages"`
	DataRef    string    `json:"dataref,omitempty"` // the messages as a blob, when they are large

	// Call is a background call whose result the entry holds: it stands in the place of what said that the call was started.
	Call string `json:"call,omitempty"`
	// Closing says that the run has ended, and Outcome how.
	Closing bool       `json:"closing,omitempty"`
	Outcome RunOutcome `json:"outcome,omitempty"`
	// Erased says that the entry was deleted: nothing is left of it, and nothing comes in its place.
	Erased bool `json:"erased,omitempty"`
}

// Words of ours in subjects of threads.
const (
	tokenClosing = "=end"
	tokenErased  = "=gone"
	tokenAll     = "=all"
)

// key tells the entries of a run from each other.
func (d MessageStored) key() string {
	switch {
	case d.Closing:
		return tokenClosing
	case d.Call != "":
		return d.Call
	}
	return strconv.Itoa(d.Index)
}

// ThreadEntry is where an entry is stored.
func (ns Namespace) ThreadEntry(d MessageStored) string {
	return ns.root() + "thread." + Token(d.ResourceID) + "." + Token(d.ThreadID) + "." + runToken(d.RunID) + "." + d.key()
}

// Threads covers every entry of every thread.
func (ns Namespace) Threads() string { return ns.root() + "thread.>" }

// ThreadOf covers the entries of a thread.
func (ns Namespace) ThreadOf(resource, thread string) string {
	return ns.root() + "thread." + Token(resource) + "." + Token(thread) + ".>"
}

// ThreadOfTokens covers the entries of a thread that is known by its tokens.
func (ns Namespace) ThreadOfTokens(resource, thread string) string {
	return ns.root() + "thread." + resource + "." + thread + ".>"
}

// ThreadBegunBy covers what runs were asked in all threads of a resource; of every resource when it is empty.
func (ns Namespace) ThreadBegunBy(resource string) string {
	if resource == "" {
		return ns.ThreadBegun()
	}
	return ns.root() + "thread." + Token(resource) + ".*.*.0"
}

// ThreadBegun and ThreadClosed cover what runs were asked, and how they ended, in all threads.
func (ns Namespace) ThreadBegun() string { return ns.root() + "thread.*.*.*.0" }

// ThreadClosed covers the last entries of runs.
func (ns Namespace) ThreadClosed() string { return ns.root() + "thread.*.*.*." + tokenClosing }

// ThreadPlace is the parsed subject of an entry.
type ThreadPlace struct {
	Resource, Thread string // tokens
	Run              string
	Key              string // tells the entries of a run from each other
}

// ParseThreadPlace reads the subject of an entry of a run.
func (ns Namespace) ParseThreadPlace(subject string) (ThreadPlace, bool) {
	rest, ok := strings.CutPrefix(subject, ns.root()+"thread.")
	part := strings.Split(rest, ".")
	if !ok || len(part) != 4 || !isToken(part[0]) || !isToken(part[1]) || !isRunID(part[2]) {
		return ThreadPlace{}, false
	}
	p := ThreadPlace{Resource: part[0], Thread: part[1], Run: part[2], Key: part[3]}
	_, number := parseCount(p.Key)
	_, _, call := parseCallToken(p.Key)
	return p, number || call || p.Key == "0" || p.Key == tokenClosing
}

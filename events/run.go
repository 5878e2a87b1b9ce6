package events

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"time"
)

// RunRequested asks for a run (run.requested, published to the inbox by whoever may start the agent).
type RunRequested struct {
	AgentID             string          `json:"agentId,omitempty"`
	ToolID              string          `json:"toolId,omitempty"` // in place of an agent: a run of one tool; the agent token is =tool
	Args                json.RawMessage `json:"args,omitempty"`   // of that tool, an object; none is {}
	Messages            Prompt          `json:"messages,omitempty"`
	RunID               string          `json:"runId,omitempty"` // 1 to 64 of [A-Za-z0-9_-]; empty: the event's id
	ThreadID            string          `json:"threadId,omitempty"`
	ResourceID          string          `json:"resourceId,omitempty"`
	RequestContext      json.RawMessage `json:"requestContext,omitempty"` // an object
	Instructions        *string         `json:"instructions,omitempty"`   // in place of the agent's
	Model               string          `json:"model,omitempty"`          // in place of the agent's
	ToolChoice          string          `json:"toolChoice,omitempty"`     // auto (default), none, required, tool:<key>
	ActiveTools         *[]string       `json:"activeTools,omitempty"`    // null: all
	RequireToolApproval *Approval       `json:"requireToolApproval,omitempty"`
	Limits              *Limits         `json:"limits,omitempty"`
	ModelSettings       json.RawMessage `json:"modelSettings,omitempty"`   // an object; over the agent's, by name
	ProviderOptions     json.RawMessage `json:"providerOptions,omitempty"` // an object by provider; over the agent's, by name
	Metadata            json.RawMessage `json:"metadata,omitempty"`
	Hooks               Hooks           `json:"hooks,omitempty"` // over the agent's, by name

	// ClientTools are tools that whoever asks executes itself, by key. They win over those of the agent.
	ClientTools map[string]ClientTool `json:"clientTools,omitempty"`

	// Transform says what may be shown of the calls of the run, in place of the agent's policy.
	Transform *TransformPolicy `json:"transform,omitempty"`

	// ToolCallConcurrency is how many of its calls execute at once; none: as the agent says.
	ToolCallConcurrency Concurrency `json:"toolCallConcurrency,omitempty"`

	// Memory says how much of its thread the run recalls, in place of the agent's word; null: as the agent says.
	Memory *Memory `json:"memory,omitempty"`

	// AutoResumeSuspendedTools lets the message answer what suspended tools of the thread wait for, and lets later messages
	// answer tools of this run; null: as the agent says.
	AutoResumeSuspendedTools *bool `json:"autoResumeSuspendedTools,omitempty"`

	// StructuredOutput asks for a JSON value that fits a schema, in place of what the agent asks for.
	StructuredOutput *StructuredOutput `json:"structuredOutput,omitempty"`
}

// Same reports whether two requests say the same, in whatever form they were written. A run id is used once, and only the
// same request means the same run.
func (r RunRequested) Same(other RunRequested) bool {
	a, errA := Marshal(r)
	b, errB := Marshal(other)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// Limits bound a run. A zero field means the default.
type Limits struct {
	Steps    int      `json:"steps,omitempty"`    // model turns; default 5
	Tokens   int      `json:"tokens,omitempty"`   // total over the run; default 1,000,000
	Failures int      `json:"failures,omitempty"` // failed calls in a row; default 10
	Repeats  int      `json:"repeats,omitempty"`  // equal calls in a row; default 5
	Time     Duration `json:"time,omitempty"`     // of the whole run, people's time not counted; default 1h
	// Cost is what the run may cost, in the currency of the prices of its models; those without a price cost nothing. Default:
	// no bound.
	Cost float64 `json:"cost,omitempty"`
}

// Definitions are the digests that a run is pinned to: its agent's, and its tools' and sub-agents' by the key of each. A run of one
// tool has no agent, and its tool's id is the key.
type Definitions struct {
	Agent  string            `json:"agent"`
	Tools  map[string]string `json:"tools"`
	Agents map[string]string `json:"agents,omitempty"` // sub-agents, by key
}

// PathEntry is one level of delegation.
type PathEntry struct {
	AgentID string `json:"agentId"`
	RunID   string `json:"runId"`
}

// RunStarted is the first fact of a run (run.started on main.start).
type RunStarted struct {
	RunID       string       `json:"runId"`
	RootRunID   string       `json:"rootRunId"`
	Path        []PathEntry  `json:"path"`
	AgentID     string       `json:"agentId"`               // =tool in a run of one tool
	Requester   string       `json:"requester"`             // principal token of the request's subject
	RequesterID string       `json:"requesterId,omitempty"` // the id that the token was made of, as the request says it
	InboxSeq    uint64       `json:"inboxSeq"`
	RequestID   string       `json:"requestId"` // event id of the request
	Request     RunRequested `json:"request"`
	Definitions Definitions  `json:"definitions"`
	Signed      *Signed      `json:"signed,omitempty"`
	Inherited   *Inherited   `json:"inherited,omitempty"`

	// Recalled is what the run knows of its thread, as it was when the run started; nil: the run keeps no thread.
	Recalled *Recalled `json:"recalled,omitempty"`
}

// Inherited is what holds for the calls of a run because of the runs above it, whatever its own agent says.
type Inherited struct {
	RequireToolApproval []Approval `json:"requireToolApproval,omitempty"`
	Hooks               []Hooks    `json:"hooks,omitempty"` // of each of those above that hands any down
}

// Below is what holds for runs below one of which this is inherited, and that hands down of its own what says so.
func (i *Inherited) Below(approval *Approval, hooks Hooks) *Inherited {
	var all Inherited
	if i != nil {
		all = Inherited{slices.Clone(i.RequireToolApproval), slices.Clone(i.Hooks)}
	}
	if approval != nil && approval.Inherit {
		all.RequireToolApproval = append(all.RequireToolApproval, *approval)
	}
	own := Hooks{}
	for name, h := range hooks {
		if h.Inherit {
			own[name] = h
		}
	}
	if len(own) > 0 {
		all.Hooks = append(all.Hooks, own)
	}
	if len(all.RequireToolApproval)+len(all.Hooks) == 0 {
		return nil
	}
	return &all
}

// Signed keeps a foreign event with its signature, verbatim.
type Signed struct {
	Payload string `json:"payload"`
	DataRef string `json:"dataref,omitempty"` // the payload as a blob, when it holds a secret
	Subject string `json:"subject"`
	Key     string `json:"key"`
	Sig     string `json:"sig"`
}

// RunRefused tells the sender of a start or cancel why it did not count (run.refused, a note).
type RunRefused struct {
	RunID   string `json:"runId,omitempty"`
	EventID string `json:"eventId"` // of the request
	Error
}

// CancelRequested asks for the end of a run, or of one call of it (cancel.requested).
type CancelRequested struct {
	RunID      string `json:"runId"`
	ToolCallID string `json:"toolCallId,omitempty"`
	Reason     string `json:"reason,omitempty"`
	End        string `json:"end,omitempty"`  // cancelled (default) or failed; failed only by =planner and the gate
	Code       Code   `json:"code,omitempty"` // of a failed end
}

// RunOutcome is how a run ended.
type RunOutcome string

// Outcomes of runs.
const (
	RunCompleted RunOutcome = "completed"
	RunFailed    RunOutcome = "failed"
	RunCancelled RunOutcome = "cancelled"
)

// RunEnded is the last fact of a run (run.ended on main.end).
type RunEnded struct {
	RunID        string       `json:"runId"`
	AgentID      string       `json:"agentId,omitempty"`
	ThreadID     string       `json:"threadId,omitempty"`
	ResourceID   string       `json:"resourceId,omitempty"`
	Outcome      RunOutcome   `json:"outcome"`
	FinishReason string       `json:"finishReason"`
	Limit        string       `json:"limit,omitempty"` // steps, tokens, time, failures or repeats
	Attempt      int          `json:"attempt,omitempty"`
	Step         int          `json:"step,omitempty"` // the turn that brought the final message
	MessageID    string       `json:"messageId,omitempty"`
	Message      *Message     `json:"message,omitempty"`
	Usage        Usage        `json:"usage"`
	Error        *Error       `json:"error,omitempty"`
	Cancel       *CancelCause `json:"cancel,omitempty"`

	// Resumes are the runs that go on in place of this one: its message was what their suspended tools waited for.
	Resumes []string `json:"resumes,omitempty"`

	ObjectOutput

	// Background are background calls that went on when the run completed.
	Background []OpenTask `json:"background,omitempty"`
}

// CancelCause names whose cancel closed a call or a run, and the end that is due.
type CancelCause struct {
	RunID      string     `json:"runId,omitempty"`      // the run whose cancel was asked
	ToolCallID string     `json:"toolCallId,omitempty"` // only this call was cancelled
	End        RunOutcome `json:"end,omitempty"`        // cancelled or failed
	Code       Code       `json:"code,omitempty"`       // of a failed end
	By         string     `json:"by,omitempty"`
	Reason     string     `json:"reason,omitempty"`
}

// RunCarried stores a run's state again before its old facts age out (run.carried on main.carry.<k>).
type RunCarried struct {
	RunID   string `json:"runId"`
	Step    int    `json:"step"`
	MainSeq uint64 `json:"mainSeq"`
	State   State  `json:"state"`
	// DataRef is what has grown in the state as a blob, when it does not fit into the fact: the messages, and the calls of
	// the current step, of which the state says only how they stand.
	DataRef string `json:"dataref,omitempty"`
}

func (d RunCarried) ref() string { return d.DataRef }

// Usage counts tokens.
type Usage struct {
	InputTokens  int `json:"inputTokens"`
	OutputTokens int `json:"outputTokens"`
	TotalTokens  int `json:"totalTokens"`

	CachedInputTokens int `json:"cachedInputTokens,omitempty"` // of the input: read from the provider's cache
	ReasoningTokens   int `json:"reasoningTokens,omitempty"`   // of the output: what the model thought, where it is told

	// CostMicros is what it cost, in millionths of the currency of the prices, by the price that the planner knew then.
	CostMicros int `json:"costMicros,omitempty"`
}

// Cost is what it cost, in the currency of the prices.
func (u Usage) Cost() float64 { return float64(u.CostMicros) / 1e6 }

// Price is what a million tokens of a model cost.
type Price struct {
	Input       float64 `json:"input"`
	Output      float64 `json:"output"`
	CachedInput float64 `json:"cachedInput,omitempty"` // read from the provider's cache; zero: as other input
}

// Of is a usage with what it costs.
func (p Price) Of(u Usage) Usage {
	cached := p.CachedInput
	if cached == 0 {
		cached = p.Input
	}
	cost := float64(u.InputTokens-u.CachedInputTokens)*p.Input + float64(u.CachedInputTokens)*cached + float64(u.OutputTokens)*p.Output
	u.CostMicros = int(math.Ceil(cost))
	return u
}

// Add sums two usages.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		u.InputTokens + v.InputTokens, u.OutputTokens + v.OutputTokens, u.TotalTokens + v.TotalTokens,
		u.CachedInputTokens + v.CachedInputTokens, u.ReasoningTokens + v.ReasoningTokens, u.CostMicros + v.CostMicros,
	}
}

// Since is what a usage, which counts on, has more than an earlier one.
func (u Usage) Since(v Usage) Usage {
	return u.Add(Usage{-v.InputTokens, -v.OutputTokens, -v.TotalTokens, -v.CachedInputTokens, -v.ReasoningTokens, -v.CostMicros})
}

// Duration is a time span that travels as text, such as "5m" or "168h".
type Duration time.Duration

// MarshalText writes the span as Go does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a span such as "90s".
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

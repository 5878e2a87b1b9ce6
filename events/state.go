package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// State is what the facts of a run amount to: the fold that planner and gate work on, that snapshots and carries
// hold, and that the log checker computes again. It is a pure function of the facts.
type State struct {
	V              int             `json:"v"`
	RunID          string          `json:"runId"`
	RootRunID      string          `json:"rootRunId"`
	Path           []PathEntry     `json:"path"`
	AgentID        string          `json:"agentId"`
	ThreadID       string          `json:"threadId,omitempty"`
	ResourceID     string          `json:"resourceId,omitempty"`
	Requester      string          `json:"requester"`
	StartedAt      time.Time       `json:"startedAt"`
	Definitions    Definitions     `json:"definitions"`
	Options        Options         `json:"options"`
	RequestContext json.RawMessage `json:"requestContext,omitempty"`
	TraceParent    string          `json:"traceparent,omitempty"`

	MainSeq  uint64      `json:"mainSeq"` // sequence of the last main fact that is folded in
	Step     int         `json:"step"`    // model turns so far
	Final    string      `json:"final,omitempty"`
	Counters Counters    `json:"counters"`
	Messages []Message   `json:"messages"` // what a model has seen and said, the results of the current step excepted
	Calls    []CallState `json:"calls"`    // of the current step, in order

	// AutoResume is what the first step found out instead of speaking, when it did.
	AutoResume *AutoResume `json:"autoResume,omitempty"`

	SettledAt time.Time  `json:"settledAt,omitzero"` // when the last result of the current step was stored
	Carries   int        `json:"carries,omitempty"`
	Ended     RunOutcome `json:"ended,omitempty"`
}

// Options are the request's choices, frozen at the start and the same after a suspension or restart.
type Options struct {
	ToolID              string          `json:"toolId,omitempty"`
	Args                json.RawMessage `json:"args,omitempty"`
	Instructions        *string         `json:"instructions,omitempty"`
	Model               string          `json:"model,omitempty"`
	ToolChoice          string          `json:"toolChoice,omitempty"`
	ActiveTools         *[]string       `json:"activeTools,omitempty"`
	RequireToolApproval *Approval       `json:"requireToolApproval,omitempty"`
	Limits              *Limits         `json:"limits,omitempty"`
	Metadata            json.RawMessage `json:"metadata,omitempty"`
	Hooks               Hooks           `json:"hooks,omitempty"`

	ClientTools map[string]ClientTool `json:"clientTools,omitempty"`

	AutoResumeSuspendedTools *bool `json:"autoResumeSuspendedTools,omitempty"`

	Transform *TransformPolicy `json:"transform,omitempty"`
}

// TransformPolicy says what may be shown of the calls of the run: the request's word, else that of the agent; nil when
// neither says anything.
func (o Options) TransformPolicy(agent AgentDef) *TransformPolicy {
	if o.Transform != nil {
		return o.Transform
	}
	return agent.Transform
}

// AutoResumes reports whether messages may answer suspended tools of the run's thread: the request's word, else that of
// the agent.
func (o Options) AutoResumes(agent AgentDef) bool {
	if o.AutoResumeSuspendedTools != nil {
		return *o.AutoResumeSuspendedTools
	}
	return agent.AutoResumeSuspendedTools
}

// Counters are what limits are compared with.
type Counters struct {
	Usage    Usage    `json:"usage"`
	Failures int      `json:"failures"`           // failed calls in a row
	Repeats  int      `json:"repeats"`            // how often the last call has been repeated in a row
	LastCall string   `json:"lastCall,omitempty"` // digest of the last call, to tell a repeated one
	Active   Duration `json:"active"`             // time that models and tools took; people's time is not counted
}

// After are the counters once these settled calls are counted too.
func (k Counters) After(calls []CallState) Counters {
	var slowest Duration
	for _, c := range calls {
		if c.Finished == nil {
			continue
		}
		k.count(c)
		slowest = max(slowest, c.Finished.Active)
	}
	k.Active += slowest
	return k
}

func (k *Counters) count(c CallState) {
	switch c.Finished.Outcome {
	case OutcomeError, OutcomeInvalid, OutcomeUnknown, OutcomeUnavailable:
		k.Failures++
	default:
		k.Failures = 0
	}
	call := Digest([]byte(c.Planned.ToolName + "\x00" + c.Planned.Args))
	if call == k.LastCall {
		k.Repeats++
	} else {
		k.LastCall, k.Repeats = call, 0
	}
}

// States of a call within a run.
const (
	CallPending  = "pending" // no result yet
	CallSettled  = "finished"
	callsPerStep = 64
)

// CallState is a call of the current step.
type CallState struct {
	C           string        `json:"c"` // "<step>-<i>"
	State       string        `json:"state"`
	Planned     CallPlanned   `json:"planned"`
	Finished    *CallFinished `json:"finished,omitempty"`
	FinishedID  string        `json:"finishedId,omitempty"` // event id of the result
	FinishedSeq uint64        `json:"finishedSeq,omitempty"`
}

// MaxCalls is how many calls one step may have.
const MaxCalls = callsPerStep

// ErrOutOfOrder says that an event does not follow what has been folded so far.
var ErrOutOfOrder = errors.New("event does not follow the state")

// NewState begins a state with main.start, or with a carry, which holds everything before it.
func NewState(e Event) (*State, error) {
	switch e.Place.Kind {
	case KindStart:
		d, err := Data[RunStarted](e)
		if err != nil {
			return nil, err
		}
		return StateOf(d, e), nil
	case KindCarry:
		d, err := Data[RunCarried](e)
		if err != nil {
			return nil, err
		}
		if d.DataRef != "" {
			return nil, fmt.Errorf("%w: what carry %d holds is a blob", ErrOutOfOrder, e.Place.N)
		}
		return CarriedState(d, e)
	default:
		return nil, fmt.Errorf("%w: a run begins with start or carry, not %s", ErrOutOfOrder, e.Place.Kind)
	}
}

// StateOf is [NewState] for who has just stored a start and knows what it says.
func StateOf(d RunStarted, e Event) *State {
	r := d.Request
	return &State{
		V: SnapshotVersion, RunID: d.RunID, RootRunID: d.RootRunID, Path: d.Path, AgentID: d.AgentID,
		ThreadID: r.ThreadID, ResourceID: r.ResourceID, Requester: d.Requester, StartedAt: e.Time,
		Definitions: d.Definitions,
		Options: Options{
			ToolID: r.ToolID, Args: r.Args, Instructions: r.Instructions, Model: r.Model, ToolChoice: r.ToolChoice,
			ActiveTools: r.ActiveTools, RequireToolApproval: r.RequireToolApproval, Limits: r.Limits,
			Metadata: r.Metadata, Hooks: r.Hooks, AutoResumeSuspendedTools: r.AutoResumeSuspendedTools,
			ClientTools: r.ClientTools,
			Transform:   r.Transform,
		},
		RequestContext: r.RequestContext, TraceParent: e.TraceParent,
		MainSeq: e.Seq, Messages: slices.Clone([]Message(r.Messages)), Calls: []CallState{},
	}
}

// CarriedState is [NewState] for who has read what a carry holds, of which a part may be a blob.
func CarriedState(d RunCarried, e Event) (*State, error) {
	st := d.State
	if err := st.Upgrade(); err != nil {
		return nil, err
	}
	st.MainSeq, st.Carries = e.Seq, e.Place.N
	return &st, nil
}

// Apply folds one more fact in. Facts of calls that hold no result change nothing; a result of an earlier step, or
// one that is already in, is ignored. A fact of another run is an error: a call of a child may have the same token.
func (s *State) Apply(e Event) error {
	if e.Place.Run != s.RunID {
		return fmt.Errorf("%w: %s is of run %q, the state of %q", ErrOutOfOrder, e.Place.Kind, e.Place.Run, s.RunID)
	}
	switch e.Place.Kind {
	case KindStep:
		return s.applyStep(e)
	case KindCarry:
		if e.Seq > s.MainSeq {
			s.MainSeq, s.Carries = e.Seq, e.Place.N
		}
		return nil
	case KindEnd:
		d, err := Data[RunEnded](e)
		if err != nil {
			return err
		}
		s.MainSeq, s.Ended = e.Seq, d.Outcome
		return nil
	case KindResult:
		return s.applyResult(e)
	default:
		return nil
	}
}

func (s *State) applyStep(e Event) error {
	d, err := Data[StepFinished](e)
	if err != nil {
		return err
	}
	return s.ApplyStep(d, e)
}

// ApplyStep is [State.Apply] for who has just stored a step and knows what it says.
func (s *State) ApplyStep(d StepFinished, e Event) error {
	if d.Step != s.Step+1 || !s.Settled() {
		return fmt.Errorf("%w: step %d after step %d of run %s", ErrOutOfOrder, d.Step, s.Step, s.RunID)
	}
	s.settle()
	s.Step, s.MainSeq, s.Final = d.Step, e.Seq, d.Final
	s.Counters.Usage = s.Counters.Usage.Add(d.Usage)
	s.Counters.Active += d.Active
	if d.AutoResume != nil {
		s.AutoResume = d.AutoResume
		return nil // nothing of the conversation
	}
	msg := Message{ID: d.MessageID, Role: RoleAssistant, Parts: slices.Clone(d.Message.Parts)}
	for i, c := range d.Calls {
		msg.Parts = append(msg.Parts, Part{
			Type: PartToolCall, ToolCallID: c.ToolCallID, ToolName: c.ToolName,
			Args: c.Args, ProviderCallID: c.ProviderCallID,
		})
		token := CallID{Run: s.RunID, Step: d.Step, Index: i + 1}.Token()
		s.Calls = append(s.Calls, CallState{C: token, State: CallPending, Planned: c})
	}
	s.Messages = append(s.Messages, msg)
	return nil
}

// settle moves the results of the current step into the conversation, in call order.
func (s *State) settle() {
	s.Messages = s.Transcript()
	s.Counters = s.Counters.After(s.Calls)
	s.Calls = []CallState{}
}

func (s *State) results() Message {
	m := Message{Role: RoleTool}
	for _, c := range s.Calls {
		m.Parts = append(m.Parts, ResultPart(c))
	}
	return m
}

func (s *State) applyResult(e Event) error {
	for i := range s.Calls {
		c := &s.Calls[i]
		if c.C != e.Place.Call || c.State == CallSettled {
			continue
		}
		d, err := Data[CallFinished](e)
		if err != nil {
			return err
		}
		c.State, c.Finished, c.FinishedID, c.FinishedSeq = CallSettled, &d, e.ID, e.Seq
		if e.Stored.After(s.SettledAt) {
			s.SettledAt = e.Stored
		}
	}
	return nil
}

// Grown is what grows in a state, and may be stored apart from it.
type Grown struct {
	Messages []Message   `json:"messages"`
	Calls    []CallState `json:"calls"`
}

// Split takes out what grows. What is left says only how the calls stand.
func (s *State) Split() (rest State, grown Grown) {
	rest, grown = *s, Grown{s.Messages, s.Calls}
	rest.Messages, rest.Calls = []Message{}, make([]CallState, len(s.Calls))
	for i, c := range s.Calls {
		rest.Calls[i] = CallState{C: c.C, State: c.State, Planned: CallPlanned{ToolCallID: c.Planned.ToolCallID, ToolName: c.Planned.ToolName}}
	}
	return rest, grown
}

// Join puts back what [State.Split] has taken out.
func (s *State) Join(g Grown) { s.Messages, s.Calls = g.Messages, g.Calls }

// Settled reports whether every call of the current step has its result.
func (s *State) Settled() bool {
	return !slices.ContainsFunc(s.Calls, func(c CallState) bool { return c.State != CallSettled })
}

// Turns are the model turns of the conversation so far: steps without the one that only looked for answers.
func (s *State) Turns() int {
	if s.AutoResume != nil {
		return s.Step - 1
	}
	return s.Step
}

// OneTool reports whether the run is of one tool, without an agent: its plan is fixed, one call and the end.
func (s *State) OneTool() bool { return s.Options.ToolID != "" }

// Open are the tokens of the calls of the current step that have no result yet.
func (s *State) Open() []string {
	var open []string
	for _, c := range s.Calls {
		if c.State != CallSettled {
			open = append(open, c.C)
		}
	}
	return open
}

// LastResult is the highest sequence among the results of the current step; its delivery is the one that goes on.
func (s *State) LastResult() uint64 {
	var last uint64
	for _, c := range s.Calls {
		last = max(last, c.FinishedSeq)
	}
	return last
}

// CancelDue is the cause that a result of the current step names for this run or one above it: the run is being ended,
// because somebody cancelled it or an ask expired that fails it, and takes no further turn. Nil when there is none.
func (s *State) CancelDue() *CancelCause {
	for _, c := range s.Calls {
		if c.Finished == nil || c.Finished.Cancel == nil {
			continue
		}
		if run := c.Finished.Cancel.RunID; run != "" && (run == s.RunID || isBelow(s.RunID, run)) {
			return c.Finished.Cancel
		}
	}
	return nil
}

// isBelow reports whether run is a descendant of ancestor.
func isBelow(run, ancestor string) bool {
	return len(run) > len(ancestor) && run[:len(ancestor)] == ancestor && run[len(ancestor)] == '='
}

// Transcript is what the next model turn sees: the conversation and, as one group in call order, the results of the
// current step. It must be settled. A call whose result names the arguments that people have looked at, or edited, is
// shown with these.
func (s *State) Transcript() []Message {
	if len(s.Calls) == 0 {
		return s.Messages
	}
	said := slices.Clone(s.Messages)
	asked := &said[len(said)-1] // the turn that made the calls
	asked.Parts = slices.Clone(asked.Parts)
	for i, p := range asked.Parts {
		for _, c := range s.Calls {
			if p.Type == PartToolCall && p.ToolCallID == c.Planned.ToolCallID && len(c.Finished.Args) > 0 {
				asked.Parts[i].Args = string(c.Finished.Args)
			}
		}
	}
	return append(said, s.results())
}

// Clone is a copy that may be changed without changing the original.
func (s *State) Clone() *State {
	c := *s
	c.Messages = slices.Clone(s.Messages)
	c.Calls = slices.Clone(s.Calls)
	return &c
}

// Size estimates the bytes that the state takes in memory.
func (s *State) Size() int {
	size := 1024
	for _, m := range s.Messages {
		for _, p := range m.Parts {
			size += 256 + len(p.Text) + len(p.Args) + len(p.Data)
			if p.Output != nil {
				size += len(p.Output.Value)
			}
		}
	}
	for key, t := range s.Options.ClientTools {
		size += 256 + len(key) + len(t.Description) + len(t.InputSchema) + len(t.OutputSchema)
	}
	if s.AutoResume != nil {
		for _, a := range s.AutoResume.Answers {
			size += 256 + len(a.ResumeData)
		}
	}
	for _, c := range s.Calls {
		size += 512 + len(c.Planned.Args)
		if c.Finished != nil {
			size += len(c.Finished.Result)
		}
	}
	return size
}

// Args are the arguments of a call as people see them: the frozen ones when its result names them, else the model's
// own when they are JSON.
func (c CallState) Args() json.RawMessage {
	if c.Finished != nil && len(c.Finished.Args) > 0 {
		return c.Finished.Args
	}
	if json.Valid([]byte(c.Planned.Args)) {
		return json.RawMessage(c.Planned.Args)
	}
	return json.RawMessage("{}")
}

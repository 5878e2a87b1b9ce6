package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	Inherited      *Inherited      `json:"inherited,omitempty"` // from the runs above

	MainSeq  uint64      `json:"mainSeq"` // sequence of the last main fact that is folded in
	Step     int         `json:"step"`    // model turns so far
	Final    string      `json:"final,omitempty"`
	Counters Counters    `json:"counters"`
	Messages []Message   `json:"messages"` // what a model has seen and said, the results of the current step excepted
	Calls    []CallState `json:"calls"`    // of the current step, in order

	// Tasks are background calls of earlier steps whose results no turn has seen, whether they are there or not.
	Tasks []CallState `json:"tasks,omitempty"`
	// Waiting says that the model has said its last words while background calls were held: the run goes on with the result
	// of one, or ends once none is held.
	Waiting bool `json:"waiting,omitempty"`
	ObjectOutput
	// Loaded are the tools that calls of settled steps have loaded, where the agent has tool search.
	Loaded []LoadedTool `json:"loaded,omitempty"`

	// Thread says that the run keeps its thread.
	Thread *ThreadState `json:"thread,omitempty"`

	// AutoResume is what the first step found out instead of speaking, when it did.
	AutoResume *AutoResume `json:"autoResume,omitempty"`

	SettledAt time.Time  `json:"settledAt,omitzero"` // when the last result of the current step was stored
	Carries   int        `json:"carries,omitempty"`
	Ended     RunOutcome `json:"ended,omitempty"`
}

// Counters are what limits are compared with.
type Counters struct {
	Usage    Usage    `json:"usage"`
	Failures int      `json:"failures"`           // failed calls in a row
	Repeats  int      `json:"repeats"`            // how often the last call has been repeated in a row
	LastCall string   `json:"lastCall,omitempty"` // digest of the last call, to tell a repeated one
	Active   Duration `json:"active"`             // time that models and tools took; people's time is not counted
}

// After are the counters once these calls of a step are counted too. Background calls that have no result yet count as
// repeated only; the time that they take is nobody's.
func (k Counters) After(calls []CallState) Counters {
	var slowest Duration
	for _, c := range calls {
		if c.Finished != nil {
			k.fail(c)
			k.use(c)
			if c.Planned.Background == nil {
				slowest = max(slowest, c.Finished.Active)
			}
		}
		if c.Finished != nil || c.Planned.Background != nil {
			k.repeat(c)
		}
	}
	k.Active += slowest
	return k
}

// joined are the counters once the results of background calls of earlier steps are counted too.
func (k Counters) joined(tasks []CallState) Counters {
	for _, c := range tasks {
		if c.Finished != nil {
			k.fail(c)
			k.use(c)
		}
	}
	return k
}

// use counts the tokens of a run that a call was delegated to.
func (k *Counters) use(c CallState) {
	if c.Finished.Usage != nil {
		k.Usage = k.Usage.Add(*c.Finished.Usage)
	}
}

func (k *Counters) fail(c CallState) {
	switch c.Finished.Outcome {
	case OutcomeError, OutcomeInvalid, OutcomeUnknown, OutcomeUnavailable:
		k.Failures++
	default:
		k.Failures = 0
	}
}

func (k *Counters) repeat(c CallState) {
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

// CallState is a call of the current step, or a background call of an earlier one.
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
	thread, said := d.Recalled.begin(d)
	return &State{
		V: SnapshotVersion, RunID: d.RunID, RootRunID: d.RootRunID, Path: d.Path, AgentID: d.AgentID,
		ThreadID: r.ThreadID, ResourceID: r.ResourceID, Requester: d.Requester, StartedAt: e.Time,
		Definitions: d.Definitions,
		Options: Options{
			ToolID: r.ToolID, Args: r.Args, Instructions: r.Instructions, Model: r.Model, ToolChoice: r.ToolChoice,
			ActiveTools: r.ActiveTools, RequireToolApproval: r.RequireToolApproval, Limits: r.Limits,
			Metadata: r.Metadata, Hooks: r.Hooks, AutoResumeSuspendedTools: r.AutoResumeSuspendedTools,
			ClientTools: r.ClientTools, ToolCallConcurrency: r.ToolCallConcurrency,
			Transform: r.Transform, StructuredOutput: r.StructuredOutput, ModelSettings: r.ModelSettings,
			ProviderOptions: r.ProviderOptions,
		},
		RequestContext: r.RequestContext, TraceParent: e.TraceParent, Inherited: d.Inherited,
		MainSeq: e.Seq, Messages: said, Calls: []CallState{}, Thread: thread,
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
	if d.Step != s.Step+1 || !s.settledBut(d.Background) {
		return fmt.Errorf("%w: step %d after step %d of run %s", ErrOutOfOrder, d.Step, s.Step, s.RunID)
	}
	s.settle(d.Background)
	s.Step, s.MainSeq, s.Final = d.Step, e.Seq, d.Final
	s.Waiting, s.ObjectOutput = len(d.Calls) == 0 && d.AutoResume == nil, d.ObjectOutput
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

// settle moves the results of the current step into the conversation, in call order, and those of background calls of
// earlier steps into the places of what stood there for them. Open are background calls whose results the turn that follows
// has not seen: they stay tasks, whatever has become of them since.
func (s *State) settle(open []OpenTask) {
	unseen := func(c CallState) bool { return isOpen(open, c) }
	seen := s.seen(unseen)
	s.Messages = seen.transcript()
	s.Loaded = s.withLoads()
	s.Counters = seen.counted()
	var tasks []CallState
	for _, c := range slices.Concat(s.Tasks, s.Calls) {
		if unseen(c) {
			tasks = append(tasks, c)
		}
	}
	s.Tasks, s.Calls = tasks, []CallState{}
}

// seen is the state as a turn has seen it that did not know the results of these calls.
func (s *State) seen(unseen func(CallState) bool) *State {
	forget := func(calls []CallState) []CallState {
		calls = slices.Clone(calls)
		for i, c := range calls {
			if unseen(c) {
				calls[i].State, calls[i].Finished, calls[i].FinishedID, calls[i].FinishedSeq = CallPending, nil, "", 0
			}
		}
		return calls
	}
	st := *s
	st.Calls, st.Tasks = forget(s.Calls), forget(s.Tasks)
	return &st
}

func isOpen(open []OpenTask, c CallState) bool {
	return slices.ContainsFunc(open, func(t OpenTask) bool { return t.C == c.C })
}

// settledBut reports whether a turn may follow that has not seen the results of these background calls, and those of all
// others.
func (s *State) settledBut(open []OpenTask) bool {
	lacks := func(c CallState) bool { return c.Finished == nil && (c.Planned.Background == nil || !isOpen(open, c)) }
	return !slices.ContainsFunc(s.Calls, lacks) && !slices.ContainsFunc(s.Tasks, lacks)
}

// counted are the counters once the results that are there are counted too.
func (s *State) counted() Counters { return s.Counters.After(s.Calls).joined(s.Tasks) }

// Counted are the counters once the results that the next turn sees are counted too.
func (s *State) Counted() Counters { return s.counted() }

func (s *State) results() Message {
	m := Message{Role: RoleTool}
	for _, c := range s.Calls {
		if c.Finished == nil {
			m.Parts = append(m.Parts, placeholderPart(c))
			continue
		}
		m.Parts = append(m.Parts, ResultPart(c))
	}
	return m
}

func (s *State) applyResult(e Event) error {
	for i := range len(s.Calls) + len(s.Tasks) {
		c := s.call(i)
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

// call is the i-th of the calls of the current step and of the tasks, in this order.
func (s *State) call(i int) *CallState {
	if i < len(s.Calls) {
		return &s.Calls[i]
	}
	return &s.Tasks[i-len(s.Calls)]
}

// Grown is what grows in a state, and may be stored apart from it.
type Grown struct {
	Messages []Message   `json:"messages"`
	Calls    []CallState `json:"calls"`
	Tasks    []CallState `json:"tasks,omitempty"`
}

// Split takes out what grows. What is left says only how the calls stand.
func (s *State) Split() (rest State, grown Grown) {
	rest, grown = *s, Grown{s.Messages, s.Calls, s.Tasks}
	rest.Messages, rest.Calls, rest.Tasks = []Message{}, brief(s.Calls), nil
	if len(s.Tasks) > 0 {
		rest.Tasks = brief(s.Tasks)
	}
	return rest, grown
}

// brief says only how calls stand.
func brief(calls []CallState) []CallState {
	short := make([]CallState, len(calls))
	for i, c := range calls {
		short[i] = CallState{C: c.C, State: c.State, Planned: CallPlanned{
			ToolCallID: c.Planned.ToolCallID, ToolName: c.Planned.ToolName, Background: c.Planned.Background,
		}}
	}
	return short
}

// Join puts back what [State.Split] has taken out.
func (s *State) Join(g Grown) { s.Messages, s.Calls, s.Tasks = g.Messages, g.Calls, g.Tasks }

// Settled reports whether every call of the current step that the next turn waits for has its result.
func (s *State) Settled() bool {
	return !slices.ContainsFunc(s.Calls, func(c CallState) bool { return c.State != CallSettled && !c.Deferred() })
}

// Deferred reports whether no turn waits for the result of the call.
func (c CallState) Deferred() bool {
	return c.Planned.Background != nil && c.Planned.Background.Disposition == Deferred
}

// Task finds a background call that the state knows of; nil when there is none of this token.
func (s *State) Task(c string) *CallState {
	for i := range len(s.Calls) + len(s.Tasks) {
		if call := s.call(i); call.C == c && call.Planned.Background != nil {
			return call
		}
	}
	return nil
}

// OpenTasks are the background calls that have no result yet, in order.
func (s *State) OpenTasks() []OpenTask {
	var open []OpenTask
	for _, c := range slices.Concat(s.Tasks, s.Calls) {
		if c.State != CallSettled && c.Planned.Background != nil {
			open = append(open, OpenTask{C: c.C, ToolName: c.Planned.ToolName})
		}
	}
	return open
}

// Joining is the highest sequence among results of background calls of earlier steps that the next turn is the first to see;
// 0 when there is none.
func (s *State) Joining() uint64 {
	var last uint64
	for _, c := range s.Tasks {
		last = max(last, c.FinishedSeq)
	}
	return last
}

// Undriven reports whether the current step waits for no result that would bring the next turn: whoever has stored it goes on
// at once, or whoever finds it later.
func (s *State) Undriven() bool {
	return s.Turns() > 0 && s.LastResult() == 0 && s.Settled()
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

// Open are the tokens of the calls that have no result yet: of the current step, and background calls of earlier ones.
func (s *State) Open() []string {
	var open []string
	for i := range len(s.Calls) + len(s.Tasks) {
		if c := s.call(i); c.State != CallSettled {
			open = append(open, c.C)
		}
	}
	return open
}

// Awaited are the tokens of the calls that the current step waits for.
func (s *State) Awaited() []string {
	var open []string
	for _, c := range s.Calls {
		if c.State != CallSettled && !c.Deferred() {
			open = append(open, c.C)
		}
	}
	return open
}

// LastResult is the highest sequence among the results that the current step waits for; its delivery is the one that goes on.
func (s *State) LastResult() uint64 {
	var last uint64
	for _, c := range s.Calls {
		if !c.Deferred() {
			last = max(last, c.FinishedSeq)
		}
	}
	return last
}

// CancelDue is the cause that a result of the current step, or of a background call, names for this run or one above it: the run is being ended,
// because somebody cancelled it or an ask expired that fails it, and takes no further turn. Nil when there is none.
func (s *State) CancelDue() *CancelCause {
	for i := range len(s.Calls) + len(s.Tasks) {
		c := s.call(i)
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
// shown with these. In the place of a result of a background call that is not there yet, the conversation says that it was
// started; the result of one that is takes that place.
func (s *State) Transcript() []Message { return s.transcript() }

func (s *State) transcript() []Message {
	said, joined := s.Messages, 0
	if len(s.Calls) > 0 {
		said = slices.Clone(said)
		for _, c := range s.Calls {
			if c.Finished != nil {
				showArgs(said, c)
			}
		}
		said = append(said, s.results())
	}
	for _, c := range s.Tasks {
		if c.Finished == nil {
			continue
		}
		if joined++; joined == 1 && len(s.Calls) == 0 {
			said = slices.Clone(said)
		}
		showArgs(said, c)
		putPart(said, ResultPart(c))
	}
	if s.Waiting && joined > 0 { // the model has spoken last
		said = append(said, TextMessage(RoleUser, joinedText(s.Tasks)))
	}
	return said
}

// joinedText tells a model that has said its last words why it is asked again.
func joinedText(tasks []CallState) string {
	var b strings.Builder
	for _, c := range tasks {
		if c.Finished != nil {
			fmt.Fprintf(&b, "The background task %s of %s has ended. ", c.Planned.ToolCallID, c.Planned.ToolName)
		}
	}
	b.WriteString("Its result now stands where the task was started.")
	return b.String()
}

// showArgs puts the arguments that a result names into the call, of which a message of the list must be the one that made it.
// The list is the caller's own; its messages may not be.
func showArgs(list []Message, c CallState) {
	if len(c.Finished.Args) == 0 {
		return
	}
	for i := len(list) - 1; i >= 0; i-- {
		for k, p := range list[i].Parts {
			if p.Type == PartToolCall && p.ToolCallID == c.Planned.ToolCallID {
				list[i].Parts = slices.Clone(list[i].Parts)
				list[i].Parts[k].Args = string(c.Finished.Args)
				return
			}
		}
	}
}

// putPart puts a result into the place of what stands for it.
func putPart(list []Message, result Part) {
	for i := len(list) - 1; i >= 0; i-- {
		for k, p := range list[i].Parts {
			if p.Type == PartToolResult && p.ToolCallID == result.ToolCallID {
				list[i].Parts = slices.Clone(list[i].Parts)
				list[i].Parts[k] = result
				return
			}
		}
	}
}

// Clone is a copy that may be changed without changing the original.
func (s *State) Clone() *State {
	c := *s
	c.Messages = slices.Clone(s.Messages)
	c.Calls = slices.Clone(s.Calls)
	c.Tasks = slices.Clone(s.Tasks)
	c.Loaded = slices.Clone(s.Loaded)
	return &c
}

// Size estimates the bytes that the state takes in memory.
func (s *State) Size() int {
	size := 1024 + len(s.Object)
	for _, m := range s.Messages {
		for _, p := range m.Parts {
			size += 256 + len(p.Text) + len(p.Args) + len(p.Data)
			if p.Output != nil {
				size += len(p.Output.Value)
			}
		}
	}
	for _, t := range s.Loaded {
		size += 32 + len(t.Key)
	}
	for key, t := range s.Options.ClientTools {
		size += 256 + len(key) + len(t.Description) + len(t.InputSchema) + len(t.OutputSchema)
	}
	if s.AutoResume != nil {
		for _, a := range s.AutoResume.Answers {
			size += 256 + len(a.ResumeData)
		}
	}
	for i := range len(s.Calls) + len(s.Tasks) {
		c := s.call(i)
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

package client

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// Finish reasons that a client adds to those of a model.
const (
	FinishSuspended = "suspended" // nothing can move without a decision
	FinishCancelled = "cancelled"

	finishError = "error" // of a run or turn that failed
)

// Output is what a run brought, or brought so far when it is suspended.
type Output struct {
	RunID        string `json:"runId"`
	Text         string `json:"text"` // of all steps; empty when suspended
	FinishReason string `json:"finishReason"`
	Limit        string `json:"limit,omitempty"` // the limit that ended the run

	// Object is the value that the run was asked for (StructuredOutput). With UsedFallback it is the fallback value.
	Object       json.RawMessage `json:"object,omitempty"`
	UsedFallback bool            `json:"usedFallbackValue,omitempty"`

	Usage events.Usage `json:"usage"`
	Steps []Step       `json:"steps"` // finished ones

	ToolCalls   []events.ToolCallPayload   `json:"toolCalls"` // of the whole run; when suspended those without a result
	ToolResults []events.ToolResultPayload `json:"toolResults"`

	SuspendPayload *SuspendPayload     `json:"suspendPayload,omitempty"` // of the first pending call, in call order
	ResumeSchema   string              `json:"resumeSchema,omitempty"`   // its JSON Schema, as text
	Asks           []events.AskPayload `json:"asks"`                     // every pending call, in call order

	// Resumed are the runs that the message let go on, when it was what their tools waited for. The output is that of the
	// first of them.
	Resumed []string `json:"resumed,omitempty"`

	Error  *events.Error `json:"error,omitempty"` // of a run that failed
	Cursor uint64        `json:"cursor"`          // of the last chunk: where a Follow goes on
}

// SuspendPayload tells what a suspended run waits for.
type SuspendPayload struct {
	ToolCallID     string          `json:"toolCallId"`
	ToolName       string          `json:"toolName"`
	Args           json.RawMessage `json:"args"`
	SuspendPayload json.RawMessage `json:"suspendPayload,omitempty"` // the tool's own
	ResumeSchema   string          `json:"resumeSchema,omitempty"`
}

// Step is one model turn and what its calls brought.
type Step struct {
	StepType      string                     `json:"stepType"` // initial or tool-result
	Step          int                        `json:"step"`
	Text          string                     `json:"text"`
	ReasoningText string                     `json:"reasoningText,omitempty"`
	ToolCalls     []events.ToolCallPayload   `json:"toolCalls"`
	ToolResults   []events.ToolResultPayload `json:"toolResults"`
	FinishReason  string                     `json:"finishReason"`
	Usage         events.Usage               `json:"usage"`
}

// Fold makes the output of a run of its chunks, whatever attempts of a turn are on the stream.
type Fold struct {
	out     Output
	drafts  map[int]map[int]*draft // by step and attempt
	results map[string]events.ToolResultPayload
	asks    map[string]events.AskPayload
	began   bool // the run's beginning has been seen
}

// draft is what one attempt of a turn has said.
type draft struct {
	text, reasoning strings.Builder
	calls           []events.ToolCallPayload
}

func newFold(run string) *Fold {
	return &Fold{
		out: Output{
			RunID: run, Steps: []Step{}, ToolCalls: []events.ToolCallPayload{},
			ToolResults: []events.ToolResultPayload{}, Asks: []events.AskPayload{},
		},
		drafts: map[int]map[int]*draft{}, results: map[string]events.ToolResultPayload{},
		asks: map[string]events.AskPayload{},
	}
}

// Fold begins an output of the run, for callers who follow it themselves.
func (r *Run) Fold() *Fold { return newFold(r.ID) }

// Add takes the next chunk. Chunks are taken in order, from the beginning of the run. When another run goes on in its place,
// the output is that of the other from then on.
func (f *Fold) Add(ch events.Chunk) {
	if runs := Resumes(ch); len(runs) > 0 {
		*f = *newFold(runs[0]) // of which the continuation is to come
		f.out.Resumed = runs
	}
	f.out.Cursor = ch.Cursor
	switch ch.Type {
	case events.ChunkStart:
		f.began = true
	case events.ChunkTextDelta:
		withPayload(ch, func(p events.TextPayload) { f.draft(ch).text.WriteString(p.Text) })
	case events.ChunkReasoningDelta:
		withPayload(ch, func(p events.TextPayload) { f.draft(ch).reasoning.WriteString(p.Text) })
	case events.ChunkToolCall:
		withPayload(ch, func(p events.ToolCallPayload) {
			if d := f.draft(ch); !p.ProviderExecuted {
				d.calls = append(d.calls, p)
			}
		})
	case events.ChunkToolResult, events.ChunkToolError, events.ChunkToolOutputDenied:
		withPayload(ch, f.addResult)
	case events.ChunkBackgroundCompleted, events.ChunkBackgroundFailed, events.ChunkBackgroundCancelled:
		f.addTask(ch.Payload)
	case events.ChunkToolCallApproval, events.ChunkToolCallSuspended:
		withPayload(ch, f.addAsk)
	case events.ChunkObjectResult:
		f.out.Object = ch.Payload
	case events.ChunkStepFinish:
		withPayload(ch, f.finishStep)
	case events.ChunkSuspended:
		withPayload(ch, f.suspend)
	case events.ChunkError:
		withPayload(ch, func(p events.ErrorPayload) {
			f.out.Error = &events.Error{Code: p.Error.Code, Message: p.Error.Message, RunID: f.out.RunID}
		})
	case events.ChunkFinish:
		withPayload(ch, func(p events.FinishPayload) {
			if len(p.Metadata.Resumes) > 0 {
				return
			}
			f.out.FinishReason, f.out.Limit, f.out.Usage = p.StepResult.Reason, p.StepResult.Limit, p.Output.Usage
			f.out.UsedFallback = p.Metadata.UsedFallback
		})
	case events.ChunkAbort:
		f.out.FinishReason = FinishCancelled
	default: // pieces that say nothing more, and types of later releases
	}
}

// withPayload calls f with what a chunk holds; one that cannot be read is passed over.
func withPayload[T any](ch events.Chunk, f func(T)) {
	var p T
	if json.Unmarshal(ch.Payload, &p) == nil {
		f(p)
	}
}

func (f *Fold) draft(ch events.Chunk) *draft {
	attempts := f.drafts[ch.Step]
	if attempts == nil {
		attempts = map[int]*draft{}
		f.drafts[ch.Step] = attempts
	}
	d := attempts[ch.Attempt]
	if d == nil {
		d = &draft{}
		attempts[ch.Attempt] = d
	}
	return d
}

// counting is the attempt of a turn that counts: the one that the end of the step names, else the latest.
func (f *Fold) counting(step, attempt int) *draft {
	attempts := f.drafts[step]
	if d := attempts[attempt]; attempt > 0 && d != nil {
		return d
	}
	d := &draft{}
	latest := -1
	for n, other := range attempts {
		if n > latest {
			latest, d = n, other
		}
	}
	return d
}

// addAsk keeps what a call waits for. An ask that is repeated comes again, and may come after the call is over.
func (f *Fold) addAsk(p events.AskPayload) {
	if result, over := f.results[p.Ask.ToolCallID]; !over || isPlaceholder(result) {
		f.asks[p.Ask.ToolCallID] = p
	}
}

func (f *Fold) addResult(p events.ToolResultPayload) {
	if _, twice := f.results[p.ToolCallID]; twice || p.ProviderExecuted {
		return
	}
	f.results[p.ToolCallID] = p
	f.out.ToolResults = append(f.out.ToolResults, p)
	if !isPlaceholder(p) {
		delete(f.asks, p.ToolCallID)
	}
}

func (f *Fold) finishStep(p events.FinishPayload) {
	n := p.Metadata.Step
	if len(f.out.Steps) > 0 && f.out.Steps[len(f.out.Steps)-1].Step >= n {
		return
	}
	d := f.counting(n, p.Metadata.Attempt)
	s := Step{
		StepType: "tool-result", Step: n, Text: d.text.String(), ReasoningText: d.reasoning.String(),
		ToolCalls: p.Output.ToolCalls, ToolResults: []events.ToolResultPayload{}, FinishReason: p.StepResult.Reason,
	}
	if n <= 1 || f.began && len(f.out.Steps) == 0 { // a step before may have looked for answers only
		s.StepType = "initial"
	}
	switch {
	case p.StepResult.Reason == finishError:
		s.Text, s.ReasoningText = "", "" // of a turn that failed nothing counts
	case p.Output.Text != "":
		s.Text = p.Output.Text
	}
	s.Usage = p.Output.Usage.Since(f.out.Usage)
	f.out.Usage = p.Output.Usage // chunks count from the beginning of the run
	for _, c := range s.ToolCalls {
		if result, ok := f.results[c.ToolCallID]; ok {
			s.ToolResults = append(s.ToolResults, result)
		}
	}
	f.out.Steps = append(f.out.Steps, s)
	f.out.ToolCalls = append(f.out.ToolCalls, s.ToolCalls...)
	delete(f.drafts, n)
}

// suspend keeps the asks that are still open.
func (f *Fold) suspend(p events.SuspendedPayload) {
	for id := range f.asks {
		if !slices.Contains(p.Asks, id) {
			delete(f.asks, id)
		}
	}
}

// Output is what the chunks so far amount to.
func (f *Fold) Output() *Output {
	out := f.out
	if out.FinishReason == "" && len(f.asks) > 0 {
		f.fillSuspended(&out)
		return &out
	}
	var text strings.Builder
	for _, s := range out.Steps {
		text.WriteString(s.Text)
	}
	out.Text = text.String()
	return &out
}

func (f *Fold) fillSuspended(out *Output) {
	out.FinishReason = FinishSuspended
	out.Asks = slices.SortedFunc(maps.Values(f.asks), func(a, b events.AskPayload) int {
		return events.CompareCalls(a.ToolCallID, b.ToolCallID)
	})
	out.ToolCalls = []events.ToolCallPayload{}
	for _, a := range out.Asks {
		out.ToolCalls = append(out.ToolCalls, events.ToolCallPayload{
			ToolCallID: a.ToolCallID, ToolName: a.ToolName,
			Args: a.Args,
		})
	}
	a := out.Asks[0]
	out.ResumeSchema = a.ResumeSchema
	out.SuspendPayload = &SuspendPayload{
		ToolCallID: a.ToolCallID, ToolName: a.ToolName, Args: a.Args,
		SuspendPayload: a.SuspendPayload, ResumeSchema: a.ResumeSchema,
	}
}

package gateway

import (
	"cmp"
	"encoding/json"
	"net/http"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// outputView is what a run has brought, as Mastra's client reads it.
type outputView struct {
	Text              string                 `json:"text"`
	Usage             any                    `json:"usage"`
	TotalUsage        events.Usage           `json:"totalUsage"`
	Steps             []stepView             `json:"steps"`
	FinishReason      string                 `json:"finishReason"`
	Limit             string                 `json:"limit,omitempty"`
	Warnings          []struct{}             `json:"warnings"`
	Request           struct{}               `json:"request"`
	Reasoning         []struct{}             `json:"reasoning"`
	ToolCalls         []frame                `json:"toolCalls"`
	ToolResults       []frame                `json:"toolResults"`
	Sources           []struct{}             `json:"sources"`
	Files             []struct{}             `json:"files"`
	Response          responseView           `json:"response"`
	Messages          []messageView          `json:"messages"`
	Object            json.RawMessage        `json:"object,omitempty"`
	UsedFallbackValue bool                   `json:"usedFallbackValue"`
	RunID             string                 `json:"runId"`
	SuspendPayload    *client.SuspendPayload `json:"suspendPayload,omitempty"`
	ResumeSchema      string                 `json:"resumeSchema,omitempty"`
	Asks              []events.AskPayload    `json:"asks,omitempty"`
	Resumed           []string               `json:"resumed,omitempty"`
	Cursor            uint64                 `json:"cursor"`
}

// stepView is one model turn and what its calls have brought.
type stepView struct {
	StepType      string        `json:"stepType"`
	Text          string        `json:"text"`
	ReasoningText string        `json:"reasoningText"`
	ToolCalls     []frame       `json:"toolCalls"`
	ToolResults   []frame       `json:"toolResults"`
	Content       []contentView `json:"content"`
	FinishReason  string        `json:"finishReason"`
	Usage         events.Usage  `json:"usage"`
	Warnings      []struct{}    `json:"warnings"`
	Request       struct{}      `json:"request"`
	Response      responseView  `json:"response"`
}

// responseView is what a model, or a tool, has said, as messages.
type responseView struct {
	Messages []messageView `json:"messages"`
}

type messageView struct {
	Role    events.Role     `json:"role"`
	Content json.RawMessage `json:"content"`
}

// contentView is a part of a message.
type contentView struct {
	Type       string              `json:"type"`
	Text       string              `json:"text,omitempty"`
	ToolCallID string              `json:"toolCallId,omitempty"`
	ToolName   string              `json:"toolName,omitempty"`
	Input      json.RawMessage     `json:"input,omitempty"`
	Output     *events.ModelOutput `json:"output,omitempty"`
}

// output waits until the run ends, or waits itself, and answers what it has brought.
func (r *request) output(run *client.Run) (any, error) {
	out, err := run.Wait(r.Context())
	if out != nil && out.Error != nil {
		return nil, r.failed(out)
	}
	if err != nil {
		return nil, err
	}
	return &reply{body: viewOf(out), header: http.Header{runHeader: {out.RunID}}}, nil
}

// runFailure is the answer for a run that failed.
type runFailure struct {
	events.Error
	Outcome events.RunOutcome `json:"outcome"`
	Cause   events.Code       `json:"cause,omitempty"` // why it failed
}

// failed is the error of a run that failed. Its status says whether the same request may be made again: not when a call with
// an effect was released, nor when it would only fail again.
func (r *request) failed(out *client.Output) error {
	f := &runFailedError{Body: runFailure{Outcome: events.RunFailed, Error: events.Error{
		Code: out.Error.Code, Message: out.Error.Message, RunID: out.RunID,
	}}, Status: out.Error.Code.Status()}
	if out.Error.Code != events.CodeModelFailed || r.hadEffect(out) {
		f.Body.Code, f.Body.Cause, f.Status = events.CodeRunFailed, out.Error.Code, events.CodeRunFailed.Status()
	}
	return f
}

// runFailedError carries the answer for a run that failed.
type runFailedError struct {
	Body   runFailure
	Status int
}

func (f *runFailedError) Error() string { return f.Body.Message }

// hadEffect reports whether a call of a tool with effects may have been released. What is not known is taken for one.
func (r *request) hadEffect(out *client.Output) bool {
	ended := map[string]events.Outcome{}
	for _, res := range out.ToolResults {
		ended[res.ToolCallID] = res.Outcome
	}
	names := map[string]bool{}
	for _, call := range out.ToolCalls {
		switch ended[call.ToolCallID] {
		case events.OutcomeInvalid, events.OutcomeUnknown, events.OutcomeBlocked, events.OutcomeDeclined, events.OutcomeExpired, events.OutcomeResponded:
		default:
			names[call.ToolName] = true
		}
	}
	for _, res := range out.ToolResults { // calls of a step that was not finished are known by their results
		if res.Started {
			names[res.ToolName] = true
		}
	}
	if len(names) == 0 {
		return false
	}
	def, err := r.agent()
	if err != nil {
		return true
	}
	for name := range names {
		t, err := r.who.Tool(r.Context(), cmp.Or(def.AllTools()[name], name))
		if err != nil || t.Effect != events.ReadOnly {
			return true
		}
	}
	return false
}

func viewOf(out *client.Output) outputView {
	v := outputView{
		Text: out.Text, Usage: out.Usage, TotalUsage: out.Usage, Steps: []stepView{}, FinishReason: out.FinishReason, Limit: out.Limit,
		Warnings: []struct{}{}, Reasoning: []struct{}{}, ToolCalls: callFrames(out.RunID, out.ToolCalls),
		ToolResults: resultFrames(out.RunID, out.ToolResults), Sources: []struct{}{}, Files: []struct{}{},
		Object: out.Object, UsedFallbackValue: out.UsedFallback, RunID: out.RunID, Asks: out.Asks, Resumed: out.Resumed, Cursor: out.Cursor,
	}
	all := []messageView{}
	for _, s := range out.Steps {
		step := stepOf(out.RunID, s)
		v.Steps = append(v.Steps, step)
		all = append(all, step.Response.Messages...)
	}
	v.Response.Messages, v.Messages = all, all
	if out.FinishReason == client.FinishSuspended {
		v.suspend(out)
	}
	return v
}

// suspend fills in what a run waits for: people, or only the client's own tools.
func (v *outputView) suspend(out *client.Output) {
	var people []events.AskPayload
	var mine []events.ToolCallPayload
	for _, a := range out.Asks {
		if a.Ask.Kind != events.AskClient {
			a.ToolCallID = events.CallWithin(out.RunID, a.ToolCallID) // which the client has seen; the ask inside names the call
			people = append(people, a)
			continue
		}
		mine = append(mine, events.ToolCallPayload{ToolCallID: a.ToolCallID, ToolName: a.ToolName, Args: a.Args})
	}
	if len(people) == 0 {
		step := stepOf(out.RunID, client.Step{StepType: stepType(out), ToolCalls: mine, FinishReason: finishToolCalls})
		v.FinishReason, v.Asks, v.ToolCalls = finishToolCalls, nil, step.ToolCalls
		v.Steps = append(v.Steps, step)
		v.Response.Messages = append(v.Response.Messages, step.Response.Messages...)
		v.Messages = v.Response.Messages
		return
	}
	v.Usage, v.Asks = struct{}{}, people
	first := people[0]
	v.ResumeSchema = first.ResumeSchema
	v.SuspendPayload = &client.SuspendPayload{
		ToolCallID: first.ToolCallID, ToolName: first.ToolName, Args: first.Args,
		SuspendPayload: first.SuspendPayload, ResumeSchema: first.ResumeSchema,
	}
	for i, call := range out.ToolCalls {
		call.ToolCallID = events.CallWithin(out.RunID, call.ToolCallID)
		v.ToolCalls[i] = frameOf(events.ToolCallChunk(out.RunID, call))
	}
	v.Messages = append(v.Messages, pendingMessage(out.RunID, people))
}

func stepType(out *client.Output) string {
	if len(out.Steps) == 0 {
		return "initial"
	}
	return "tool-result"
}

// pendingMessage is the message of the turn that waits, as Mastra stores it: with what it waits for.
func pendingMessage(run string, asks []events.AskPayload) messageView {
	type pending struct {
		ToolCallID   string          `json:"toolCallId"`
		ToolName     string          `json:"toolName"`
		Args         json.RawMessage `json:"args"`
		Type         string          `json:"type"`
		RunID        string          `json:"runId"`
		ResumeSchema string          `json:"resumeSchema,omitempty"`
	}
	approvals, suspended := map[string]pending{}, map[string]pending{}
	for _, a := range asks {
		p := pending{a.ToolCallID, a.ToolName, a.Args, "approval", run, a.ResumeSchema}
		if a.Ask.Kind == events.AskApproval {
			approvals[a.ToolCallID] = p
			continue
		}
		p.Type = "suspension"
		suspended[a.ToolCallID] = p
	}
	metadata := map[string]any{}
	if len(approvals) > 0 {
		metadata["pendingToolApprovals"] = approvals
	}
	if len(suspended) > 0 {
		metadata["suspendedTools"] = suspended
	}
	return message(events.RoleAssistant, map[string]any{"format": 2, "parts": []struct{}{}, "metadata": metadata})
}

func message(role events.Role, content any) messageView {
	raw, err := events.Marshal(content)
	if err != nil {
		raw = json.RawMessage(`[]`) // what was decoded can be encoded
	}
	return messageView{Role: role, Content: raw}
}

func stepOf(run string, s client.Step) stepView {
	v := stepView{
		StepType: s.StepType, Text: s.Text, ReasoningText: s.ReasoningText, ToolCalls: callFrames(run, s.ToolCalls),
		ToolResults: resultFrames(run, s.ToolResults), FinishReason: s.FinishReason, Usage: s.Usage, Warnings: []struct{}{},
		Content: []contentView{}, Response: responseView{Messages: []messageView{}},
	}
	if s.Text != "" {
		v.Content = append(v.Content, contentView{Type: events.PartText, Text: s.Text})
	}
	for _, call := range s.ToolCalls {
		v.Content = append(v.Content, contentView{
			Type: events.PartToolCall, ToolCallID: call.ToolCallID, ToolName: call.ToolName, Input: call.Args,
		})
	}
	if len(v.Content) > 0 {
		v.Response.Messages = append(v.Response.Messages, message(events.RoleAssistant, v.Content))
	}
	var brought []contentView
	for _, res := range s.ToolResults {
		brought = append(brought, contentView{
			Type: events.PartToolResult, ToolCallID: res.ToolCallID, ToolName: res.ToolName, Input: res.Args, Output: saidOf(res),
		})
	}
	if len(brought) > 0 {
		v.Content = append(v.Content, brought...)
		v.Response.Messages = append(v.Response.Messages, message(events.RoleTool, brought))
	}
	return v
}

// saidOf is a result as a message has it.
func saidOf(res events.ToolResultPayload) *events.ModelOutput {
	text := ""
	switch {
	case res.Error != nil:
		text = res.Error.Message
	case res.Approval != nil:
		text = cmp.Or(res.Approval.Reason, "Tool call was not approved by the user")
	default:
		return &events.ModelOutput{Type: events.OutputJSON, Value: first(res.Result, json.RawMessage("null"))}
	}
	raw, err := events.Marshal(text)
	if err != nil {
		raw = json.RawMessage(`""`) // a text always encodes
	}
	return &events.ModelOutput{Type: events.OutputText, Value: raw}
}

func callFrames(run string, calls []events.ToolCallPayload) []frame {
	list := []frame{}
	for _, c := range calls {
		list = append(list, frameOf(events.ToolCallChunk(run, c)))
	}
	return list
}

func resultFrames(run string, results []events.ToolResultPayload) []frame {
	list := []frame{}
	for _, res := range results {
		kind := events.ChunkToolResult
		switch {
		case res.Error != nil:
			kind = events.ChunkToolError
		case res.Approval != nil:
			kind = events.ChunkToolOutputDenied
		}
		list = append(list, frameOf(events.NewChunk(run, kind, res)))
	}
	return list
}

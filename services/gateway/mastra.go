package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// startBody asks for a run, as Mastra's client writes it. What is not named here is read and passed over.
type startBody struct {
	Messages            json.RawMessage           `json:"messages"`
	Instructions        json.RawMessage           `json:"instructions,omitempty"`
	System              json.RawMessage           `json:"system,omitempty"`
	Context             json.RawMessage           `json:"context,omitempty"`
	Memory              *memoryBody               `json:"memory,omitempty"`
	ThreadID            string                    `json:"threadId,omitempty"`
	ResourceID          string                    `json:"resourceId,omitempty"`
	RunID               string                    `json:"runId,omitempty"`
	RequestContext      json.RawMessage           `json:"requestContext,omitempty"`
	MaxSteps            *int                      `json:"maxSteps,omitempty"`
	Model               string                    `json:"model,omitempty"`
	ActiveTools         *[]string                 `json:"activeTools,omitempty"`
	ToolChoice          json.RawMessage           `json:"toolChoice,omitempty"`
	ClientTools         map[string]clientToolBody `json:"clientTools,omitempty"`
	RequireToolApproval *bool                     `json:"requireToolApproval,omitempty"`
	AutoResume          *bool                     `json:"autoResumeSuspendedTools,omitempty"`
	Concurrency         events.Concurrency        `json:"toolCallConcurrency,omitempty"`
	ModelSettings       json.RawMessage           `json:"modelSettings,omitempty"`
	ProviderOptions     json.RawMessage           `json:"providerOptions,omitempty"`
	StructuredOutput    *events.StructuredOutput  `json:"structuredOutput,omitempty"`

	// What cannot cross a process, or is not part of this release, is refused: a run would not do what was asked for.
	Toolsets json.RawMessage `json:"toolsets,omitempty"`
	StopWhen json.RawMessage `json:"stopWhen,omitempty"`
}

// memoryBody names the conversation of a run.
type memoryBody struct {
	Thread   json.RawMessage `json:"thread,omitempty"` // an id, or an object with one
	Resource string          `json:"resource,omitempty"`
	Options  *memoryOptions  `json:"options,omitempty"`
}

// memoryOptions say how much of its conversation a run recalls; nothing: as the agent says.
type memoryOptions struct {
	LastMessages json.RawMessage `json:"lastMessages,omitempty"` // a number, or false for none
}

// memory is what the options ask for.
func (o *memoryOptions) memory() (*events.Memory, error) {
	if o == nil {
		return nil, nil //nolint:nilnil // as the agent says
	}
	n := 0
	switch raw := bytes.TrimSpace(o.LastMessages); {
	case len(raw) == 0 || string(raw) == "null":
		return nil, nil //nolint:nilnil // as the agent says
	case string(raw) == "false":
	case json.Unmarshal(raw, &n) != nil:
		return nil, badBody("memory.options.lastMessages", "want a number, or false")
	}
	m := &events.Memory{LastMessages: &n}
	for _, issue := range m.Check() {
		return nil, badBody("memory.options.lastMessages", issue.Message)
	}
	return m, nil
}

// clientToolBody is a tool that the client executes itself.
type clientToolBody struct {
	ID           string          `json:"id,omitempty"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"inputSchema,omitempty"`
	OutputSchema json.RawMessage `json:"outputSchema,omitempty"`
}

// started is what a start request of Mastra's routes means: a run, or the results of client tools of one that waits.
type started struct {
	request client.Request
	results []toolResult
}

// start reads the request for a run of the agent that the path names.
func (r *request) start() (*started, error) {
	def, err := r.agent()
	if err != nil {
		return nil, err
	}
	var body startBody
	if err := r.read(&body); err != nil {
		return nil, err
	}
	messages, results, err := readMessages("messages", body.Messages)
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 && len(results) == 0 {
		return nil, badBody("messages", "Required")
	}
	s := &started{results: results, request: client.Request{
		Agent: def.ID, RunID: body.RunID, Context: noNull(body.RequestContext), Model: body.Model, ActiveTools: body.ActiveTools,
		AutoResumeSuspendedTools: body.AutoResume, ToolCallConcurrency: int(body.Concurrency),
	}}
	if err := body.refuse(); err != nil {
		return nil, err
	}
	if err := body.fill(&s.request); err != nil {
		return nil, err
	}
	s.request.Messages = append(s.request.Messages, messages...)
	if s.request.RunID == "" {
		s.request.IdempotencyKey = r.Header.Get(idempotencyKey)
	} else if err := r.who.needs(events.MayRead); err != nil { // the run of that id may be somebody else's
		return nil, err
	}
	return s, nil
}

// refuse says which option of a request cannot be honoured.
func (b *startBody) refuse() error {
	for _, o := range []struct {
		name  string
		value json.RawMessage
		why   string
	}{
		{"toolsets", b.Toolsets, "tools that are code cannot be sent: define them in weir.yaml, or use clientTools"},
		{"stopWhen", b.StopWhen, "a function cannot be sent: use maxSteps"},
	} {
		switch string(bytes.TrimSpace(o.value)) {
		case "", "null", "{}", "[]":
		default:
			return badBody(o.name, o.why)
		}
	}
	return nil
}

// fill puts the options of a body into a request.
func (b *startBody) fill(req *client.Request) (err error) {
	req.ThreadID, req.ResourceID = b.ThreadID, b.ResourceID
	req.ModelSettings, req.ProviderOptions = noNull(b.ModelSettings), noNull(b.ProviderOptions)
	if req.StructuredOutput, err = structuredOf(b.StructuredOutput); err != nil {
		return err
	}
	if b.Memory != nil {
		if req.ThreadID, err = threadOf(b.Memory.Thread, req.ThreadID); err != nil {
			return err
		}
		req.ResourceID = cmp.Or(b.Memory.Resource, req.ResourceID)
		if req.Memory, err = b.Memory.Options.memory(); err != nil {
			return err
		}
	}
	if b.MaxSteps != nil {
		if *b.MaxSteps < 1 {
			return badBody("maxSteps", "want a number of at least 1")
		}
		req.Limits = &events.Limits{Steps: *b.MaxSteps}
	}
	if b.RequireToolApproval != nil {
		req.RequireToolApproval = &events.Approval{Always: *b.RequireToolApproval}
	}
	if req.ToolChoice, err = toolChoiceOf(b.ToolChoice); err != nil {
		return err
	}
	if len(noNull(b.Instructions)) > 0 {
		text, err := textOf("instructions", b.Instructions)
		if err != nil {
			return err
		}
		req.Instructions = &text
	}
	if len(noNull(b.System)) > 0 {
		text, err := textOf("system", b.System)
		if err != nil {
			return err
		}
		req.Messages = append(req.Messages, events.TextMessage(events.RoleSystem, text))
	}
	if len(noNull(b.Context)) > 0 {
		more, _, err := readMessages("context", b.Context)
		if err != nil {
			return err
		}
		req.Messages = append(req.Messages, more...)
	}
	for key, t := range b.ClientTools {
		if req.ClientTools == nil {
			req.ClientTools = map[string]client.ClientTool{}
		}
		req.ClientTools[key] = client.ClientTool{ClientTool: events.ClientTool{
			Description: cmp.Or(t.Description, key), InputSchema: noNull(t.InputSchema), OutputSchema: noNull(t.OutputSchema),
		}}
	}
	return nil
}

// structuredOf is the value that a body asks for; one without a schema asks for none.
func structuredOf(want *events.StructuredOutput) (*events.StructuredOutput, error) {
	if want == nil || len(noNull(want.Schema)) == 0 {
		return nil, nil //nolint:nilnil // none is asked for
	}
	want.FallbackValue = noNull(want.FallbackValue)
	for _, issue := range want.Check() {
		return nil, badBody(issue.Field, issue.Message)
	}
	return want, nil
}

// threadOf is the id of a thread, which is given by itself or in an object.
func threadOf(raw json.RawMessage, other string) (string, error) {
	if len(noNull(raw)) == 0 {
		return other, nil
	}
	var id string
	if json.Unmarshal(raw, &id) == nil {
		return id, nil
	}
	var thread struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(raw, &thread); err != nil || thread.ID == "" {
		return "", badBody("memory.thread", "want an id, or an object with one")
	}
	return thread.ID, nil
}

// toolChoiceOf is which tools the model must use: a word, or an object that names one.
func toolChoiceOf(raw json.RawMessage) (string, error) {
	if len(noNull(raw)) == 0 {
		return "", nil
	}
	var word string
	if json.Unmarshal(raw, &word) == nil {
		return word, nil
	}
	var one struct {
		Type     string `json:"type"`
		ToolName string `json:"toolName"`
	}
	if err := json.Unmarshal(raw, &one); err != nil || one.Type != "tool" || one.ToolName == "" {
		return "", badBody("toolChoice", `want "auto", "none", "required", or {"type": "tool", "toolName": …}`)
	}
	return "tool:" + one.ToolName, nil
}

// textOf is a text that is given as one, as a list of texts, or as messages.
func textOf(field string, raw json.RawMessage) (string, error) {
	messages, _, err := readMessages(field, raw)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	for i, m := range messages {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(m.Text())
	}
	return b.String(), nil
}

// toolResult is what a client says that its tool has brought.
type toolResult struct {
	ToolCallID  string
	Result      json.RawMessage
	IsError     bool
	ModelOutput *events.ModelOutput
}

// readMessages reads a conversation in any of the forms in which clients send one: a text, a message, or a list of both.
// Results are those of the tool messages at its end, with which a client answers calls of its own tools.
func readMessages(field string, raw json.RawMessage) (messages []events.Message, results []toolResult, err error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil, nil
	}
	list := []json.RawMessage{raw}
	if raw[0] == '[' {
		list = nil // else the first one would be written over what is read
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, nil, badBody(field, "Invalid input")
		}
	}
	for i, one := range list {
		at := field
		if raw[0] == '[' {
			at = fmt.Sprintf("%s[%d]", field, i)
		}
		var m messageBody
		if err := m.read(at, one); err != nil {
			return nil, nil, err
		}
		more, brought, err := m.convert(at)
		if err != nil {
			return nil, nil, err
		}
		messages = append(messages, more...)
		if m.Role == events.RoleTool {
			results = append(results, brought...)
		} else {
			results = nil // answered before what comes after
		}
	}
	return messages, results, nil
}

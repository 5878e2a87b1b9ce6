package toolexecutor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Bounds of what a server may ask.
const (
	maxMCPQuestion  = 64 << 10 // bytes of the questions of one call, with the server's state
	maxMCPQuestions = 16
)

// mcpQuestion is what a suspended call shows, and all that any executor needs to go on with it: a server of today asks by
// its result and is called again with the answers and its state; one of yesterday asks within a call, which is ended, and
// once people have answered it is called anew and gets the answers when it asks the same again.
type mcpQuestion struct {
	Server       string                `json:"server"`
	Tool         string                `json:"tool"`
	Message      string                `json:"message"`                // of the first request
	Requests     map[string]mcpRequest `json:"requests"`               // by the server's ids
	RequestState string                `json:"requestState,omitempty"` // the server's, handed back as it is
	Within       bool                  `json:"within,omitempty"`       // the server asked within the call
	Answered     map[string]mcpAnswer  `json:"answered,omitempty"`     // within calls, so far: by digest of the request

	answers map[string]mcpAnswer // by the ids of Requests, after people have answered
}

// mcpRequest is one question for people.
type mcpRequest struct {
	Message         string          `json:"message"`
	RequestedSchema json.RawMessage `json:"requestedSchema,omitempty"`
}

// key tells whether two questions are the same.
func (r mcpRequest) key() string {
	raw, err := events.Marshal(r)
	if err != nil {
		return ""
	}
	return events.Digest(raw)
}

// mcpAnswer is what people say to one question.
type mcpAnswer struct {
	Action  string          `json:"action"` // accept, decline or cancel
	Content json.RawMessage `json:"content,omitempty"`
}

// result is the answer as the server gets it.
func (a mcpAnswer) result() *mcp.ElicitResult {
	r := &mcp.ElicitResult{Action: a.Action}
	if a.Action == "accept" && len(a.Content) > 0 {
		dec := json.NewDecoder(bytes.NewReader(a.Content))
		dec.UseNumber()
		_ = dec.Decode(&r.Content) // the resume schema has held it to an object
		for name, value := range r.Content {
			r.Content[name] = number(value)
		}
	}
	return r
}

// number is a value as the SDK checks it: it takes a json.Number for a text. Whole numbers keep their digits.
func number(value any) any {
	n, ok := value.(json.Number)
	if !ok {
		return value
	}
	if whole, err := n.Int64(); err == nil {
		return whole
	}
	if float, err := n.Float64(); err == nil {
		return float
	}
	return value
}

// responses are the answers for a server that has asked by its result; nil when it has not.
func (q mcpQuestion) responses() mcp.InputResponseMap {
	if len(q.answers) == 0 || q.Within {
		return nil
	}
	all := make(mcp.InputResponseMap, len(q.answers))
	for id, a := range q.answers {
		all[id] = a.result()
	}
	return all
}

// withinCall is the id of a question that a server asks within a call.
const withinCall = "elicitation"

// resumed reads what the call was suspended with and what people have answered.
func (t *mcpTool) resumed(call *agent.Call) (q mcpQuestion, err error) {
	if !call.Resumed() {
		return q, nil
	}
	bad := t.failure(errorMCP, nil, "the answer cannot be matched to the question of ", t.server.def.ID)
	if err := json.Unmarshal(call.SuspendPayload(), &q); err != nil || len(q.Requests) == 0 {
		return q, bad
	}
	data, err := agent.ResumeData[json.RawMessage](call)
	if err != nil {
		return q, bad
	}
	q.answers = map[string]mcpAnswer{}
	if len(q.Requests) == 1 {
		var a mcpAnswer
		if json.Unmarshal(data, &a) != nil {
			return q, bad
		}
		for id := range q.Requests {
			q.answers[id] = a
		}
	} else if json.Unmarshal(data, &q.answers) != nil {
		return q, bad
	}
	if q.Within {
		if q.Answered == nil {
			q.Answered = map[string]mcpAnswer{}
		}
		for id, request := range q.Requests {
			q.Answered[request.key()] = q.answers[id]
		}
	}
	return q, nil
}

// inputRequired suspends a call whose server asks by its result.
func (t *mcpTool) inputRequired(r mcpResult) error {
	var requests map[string]struct {
		Method string `json:"method"`
		Params struct {
			mcpRequest

			Mode string `json:"mode"`
			URL  string `json:"url"`
		} `json:"params"`
	}
	if err := json.Unmarshal(r.InputRequests, &requests); err != nil {
		return t.failure(errorMCP, nil, t.server.def.ID, " asks for what cannot be read")
	}
	if len(requests) == 0 {
		return t.failure(errorMCP, nil, t.server.def.ID, " is too busy now")
	}
	q := mcpQuestion{Requests: make(map[string]mcpRequest, len(requests)), RequestState: r.RequestState}
	for id, request := range requests {
		if request.Method != "elicitation/create" || request.Params.URL != "" || !slices.Contains([]string{"", "form"}, request.Params.Mode) {
			return t.failure(errorMCP, nil, fmt.Sprintf("%s asks for %s, which is not supported", t.server.def.ID,
				clip(cmp.Or(request.Params.Mode, request.Method), maxMCPName)))
		}
		q.Requests[id] = request.Params.mcpRequest
	}
	return t.suspend(q)
}

// suspend makes the question one for people.
func (t *mcpTool) suspend(q mcpQuestion) error {
	q.Server, q.Tool = t.server.def.ID, t.name
	ids := slices.Sorted(maps.Keys(q.Requests))
	q.Message = q.Requests[ids[0]].Message
	schemas := map[string]any{}
	for _, id := range ids {
		schemas[id] = answerSchema(q.Requests[id].RequestedSchema)
	}
	schema := schemas[ids[0]]
	if len(ids) > 1 {
		schema = map[string]any{"type": "object", "properties": schemas, "required": ids, "additionalProperties": false}
	}
	payload, err := events.Marshal(q)
	if err == nil {
		err = events.CheckJSON(payload)
	}
	form, bad := events.Marshal(schema)
	if err = cmp.Or(err, bad); err == nil {
		_, err = events.CompileSchema(form)
	}
	switch {
	case err != nil:
		return t.failure(errorMCP, nil, t.server.def.ID, " asks a question that nobody could answer: ", t.quote([]byte(err.Error()), false))
	case len(payload) > maxMCPQuestion || len(ids) > maxMCPQuestions:
		return t.failure(errorMCP, nil, fmt.Sprintf("%s asks too much at once: more than %d bytes or %d questions",
			t.server.def.ID, maxMCPQuestion, maxMCPQuestions))
	}
	return &agent.Suspension{Payload: json.RawMessage(t.redact.Replace(string(payload))), ResumeSchema: form, ResumeLabel: "answer"}
}

// answerSchema is what people may answer to a question: an action, and what the server wants to know if they accept.
func answerSchema(asked json.RawMessage) map[string]any {
	if len(asked) == 0 || string(asked) == "null" {
		asked = json.RawMessage(`{"type":"object"}`)
	}
	return map[string]any{
		"type":     "object",
		"required": []string{"action"},
		"properties": map[string]any{
			"action":  map[string]any{"enum": []string{"accept", "decline", "cancel"}},
			"content": map[string]any{"type": "object"},
		},
		"additionalProperties": false,
		"if":                   map[string]any{"properties": map[string]any{"action": map[string]any{"const": "accept"}}},
		"then":                 map[string]any{"required": []string{"content"}, "properties": map[string]any{"content": asked}},
	}
}

// elicited answers a server that asks within a call. Nobody can wait for people there, so what has not been answered yet
// ends the call, and the call is suspended with it. Which call it is can be told only when it is the only one on its way;
// else the server hears that nobody answers, and is called one by one from then on.
func (m *MCPServer) elicited(s *mcpSession, p *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	s.mu.Lock()
	var x *mcpExchange
	for call := range s.calls {
		x = call
	}
	alone := len(s.calls) == 1
	s.mu.Unlock()
	if !alone {
		m.mu.Lock()
		m.asks = true
		m.mu.Unlock()
		return &mcp.ElicitResult{Action: "cancel"}, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if a, ok := x.prepared[requestOf(p).key()]; ok {
		return a.result(), nil
	}
	if x.asked == nil {
		x.asked = p
	}
	return &mcp.ElicitResult{Action: "cancel"}, nil
}

func (m *MCPServer) asksWithin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asks
}

func requestOf(p *mcp.ElicitParams) mcpRequest {
	r := mcpRequest{Message: p.Message}
	if p.RequestedSchema != nil {
		if raw, err := events.Marshal(p.RequestedSchema); err == nil {
			r.RequestedSchema, _ = events.Canonical(raw)
		}
	}
	return r
}

// open is the question within the call that nobody has answered; nil when there is none.
func (c call) open() *mcpQuestion {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	if c.x.asked == nil {
		return nil
	}
	q := &mcpQuestion{
		Within: true, Requests: map[string]mcpRequest{withinCall: requestOf(c.x.asked)}, Answered: map[string]mcpAnswer{},
	}
	maps.Copy(q.Answered, c.asked.Answered)
	return q
}

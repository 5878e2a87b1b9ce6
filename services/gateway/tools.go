package gateway

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

func listTools(r *request) (any, error) {
	k, err := r.registry()
	if err != nil {
		return nil, err
	}
	views := map[string]toolView{}
	for name, t := range byKey(k.list) {
		views[name] = k.tool(t.Manifest, events.TokenTool)
	}
	return views, nil
}

// byKey is every tool once under each key that agents have it by. A key that means several tools names none of them: they
// are there under their ids, as tools are that no agent has.
func byKey(tools []client.ToolInfo) map[string]client.ToolInfo {
	owners := map[string]map[string]bool{} // key → ids
	for _, t := range tools {
		for _, k := range t.Keys {
			if owners[k.Key] == nil {
				owners[k.Key] = map[string]bool{}
			}
			owners[k.Key][t.ID] = true
		}
	}
	all := map[string]client.ToolInfo{}
	for _, t := range tools {
		named := false
		for _, k := range t.Keys {
			if len(owners[k.Key]) == 1 {
				all[k.Key], named = t, true
			}
		}
		if !named {
			all[t.ID] = t
		}
	}
	return all
}

func getTool(r *request) (any, error) {
	t, err := r.tool()
	if err != nil {
		return nil, err
	}
	k, err := r.registry()
	if err != nil {
		return nil, err
	}
	return k.tool(t.Manifest, events.TokenTool), nil
}

// tool is the tool that the path names, by its id or its key.
func (r *request) tool() (*client.ToolInfo, error) {
	return r.toolOf(r.PathValue("toolId"))
}

func (r *request) toolOf(name string) (*client.ToolInfo, error) {
	t, err := r.who.Tool(r.Context(), name)
	if e, ok := errors.AsType[*events.Error](err); ok && e.Code == events.CodeNotFound {
		return nil, events.NotFound("tool", "Tool not found")
	}
	return t, err
}

// agentTool is the tool that the path names, of the agent that it names.
func (r *request) agentTool() (id string, err error) {
	def, err := r.agent()
	if err != nil {
		return "", err
	}
	name, tools := r.PathValue("toolId"), def.AllTools()
	if id, ok := tools[name]; ok {
		return id, nil
	}
	for _, id := range tools {
		if id == name {
			return id, nil
		}
	}
	return "", events.NotFound("tool", "Tool not found")
}

func getAgentTool(r *request) (any, error) {
	id, err := r.agentTool()
	if err != nil {
		return nil, err
	}
	r.SetPathValue("toolId", id)
	return getTool(r)
}

// executeBody asks for one call of a tool.
type executeBody struct {
	Data           json.RawMessage `json:"data"`
	RequestContext json.RawMessage `json:"requestContext,omitempty"`
}

// executeQuery names the run, so that the same request asks again.
type executeQuery struct {
	RunID string `json:"runId,omitempty"`
}

// execute calls one tool. The call goes through the gate as any other, so it may be held; then the same request with the
// run's id gets the output once there is one.
func execute(r *request) (any, error) {
	t, err := r.tool()
	if err != nil {
		return nil, err
	}
	var body executeBody
	if err := r.read(&body); err != nil {
		return nil, err
	}
	if len(body.Data) == 0 {
		return nil, badBody("data", "Required")
	}
	req := client.ToolRequest{Tool: t.ID, Args: body.Data, Context: noNull(body.RequestContext), Wait: r.g.cfg.Execute}
	if req.RunID = r.URL.Query().Get("runId"); req.RunID == "" {
		req.IdempotencyKey = r.Header.Get(idempotencyKey)
	}
	out, err := r.who.Execute(r.Context(), req)
	if f, ok := errors.AsType[*client.ToolFailedError](err); ok {
		return nil, &toolFailedError{f, t.Effect}
	}
	if err != nil {
		return nil, err
	}
	return &reply{raw: out.Result, header: http.Header{runHeader: {out.RunID}}}, nil
}

func executeAgentTool(r *request) (any, error) {
	id, err := r.agentTool()
	if err != nil {
		return nil, err
	}
	r.SetPathValue("toolId", id)
	return execute(r)
}

// noNull is a value that is not there when it is null.
func noNull(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

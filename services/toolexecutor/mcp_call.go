package toolexecutor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/egress"
)

// Names of the errors of MCP tools.
const (
	errorMCP         = "MCPError"        // the tool, or the server, says that it failed
	errorMCPLost     = "MCPConnection"   // the server cannot be reached, or the connection was lost
	errorMCPDisabled = "MCPToolDisabled" // the tool is no longer what was accepted
)

// metaKey names the call to the server, the same on every attempt: a server that knows it can refuse to act twice.
const metaKey = "dev.weirkeeper/idempotencyKey"

// progressEvery is how often a call shows its progress at most.
const progressEvery = 100 * time.Millisecond

// mcpTool is one tool of a server, as it was accepted.
type mcpTool struct {
	outside

	server *MCPServer
	name   string // raw
	digest string
}

var _ agent.Tool = (*mcpTool)(nil)

// Run executes one call. The list is read again when it may be outdated, and nothing is sent when the tool is not what
// was accepted any more. The call is sent once: when nobody knows what became of it, people decide.
func (t *mcpTool) Run(ctx context.Context, call *agent.Call, args json.RawMessage) (json.RawMessage, error) {
	asked, err := t.resumed(call)
	if err != nil {
		return nil, err
	}
	x := &mcpExchange{}
	result, err := t.once(ctx, call, x, args, asked)
	if x.closed() { // since it was looked at last: nothing was sent, so this is the first time
		return t.once(ctx, call, &mcpExchange{}, args, asked)
	}
	return result, err
}

// once sends the call over a connection that seems to be there, to a tool that is as it was accepted.
func (t *mcpTool) once(ctx context.Context, call *agent.Call, x *mcpExchange, args json.RawMessage, asked mcpQuestion) (json.RawMessage, error) {
	listing, s, err := t.server.list(ctx, mcpFresh)
	if err != nil {
		return nil, t.lost(ctx, err, &mcpExchange{})
	}
	if now, there := listing.tools[t.name]; !there || now.digest != t.digest {
		return nil, t.disabled(there)
	}
	x.call, x.prepared = call, asked.Answered
	if t.server.asksWithin() {
		release, err := acquire(ctx, t.server.alone)
		if err != nil {
			return nil, t.lost(ctx, err, x)
		}
		defer release()
	}
	return t.send(ctx, s, x, args, asked)
}

// disabled says why a tool does not run.
func (t *mcpTool) disabled(there bool) error {
	why := "the server does not list it any more"
	if there {
		why = "the server has changed its definition since it was accepted"
	}
	return t.failure(errorMCPDisabled, map[string]bool{"sent": false}, fmt.Sprintf(
		"the tool %s of MCP server %s is disabled: %s; it can be used again after weir apply", t.name, t.server.def.ID, why))
}

// send sends the call and reads what comes back.
func (t *mcpTool) send(ctx context.Context, s *mcpSession, x *mcpExchange, args json.RawMessage, asked mcpQuestion) (json.RawMessage, error) {
	params := &mcp.CallToolParams{
		Name: t.name, Arguments: args, RequestState: asked.RequestState, InputResponses: asked.responses(),
	}
	token := s.enter(x)
	defer s.leave(x, token)
	params.Meta = mcp.Meta{metaKey: x.call.IdempotencyKey()}
	params.SetProgressToken(token)
	_, err := s.client.CallTool(withExchange(ctx, x), params)
	x.end()
	if errors.Is(err, mcp.ErrConnectionClosed) {
		s.lose() // it may not have noticed yet
		x.noteClosed()
	}
	reply := x.reply()
	switch {
	case reply == nil:
		return nil, t.lost(ctx, err, x)
	case reply.Error != nil && reply.Error.Code == mcp.CodeURLElicitationRequired:
		return nil, t.failure(errorMCP, map[string]int64{"code": reply.Error.Code},
			t.server.def.ID, " wants a page to be visited first, which is not supported: ", t.quote([]byte(reply.Error.Message), false))
	case reply.Error != nil:
		return nil, t.failure(errorMCP, map[string]int64{"code": reply.Error.Code},
			t.server.def.ID, ": ", t.quote([]byte(reply.Error.Message), false))
	}
	return t.outcome(ctx, call{x, asked}, reply.Result)
}

// call is a call whose answer is read.
type call struct {
	x     *mcpExchange
	asked mcpQuestion
}

// lost is the error of a call without an answer.
func (t *mcpTool) lost(ctx context.Context, err error, x *mcpExchange) error {
	x.mu.Lock()
	sent, status := x.sent, x.status
	x.mu.Unlock()
	server := "MCP server " + t.server.def.ID
	details := map[string]bool{"sent": sent}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s has not answered: %w", server, context.Cause(ctx))
	case errors.Is(err, egress.ErrDenied):
		return t.failure(errorDenied, nil, server, ": ", t.quote([]byte(err.Error()), false))
	case err == nil:
		err = errors.New("its answer is none of the protocol")
	}
	why := t.quote([]byte(err.Error()), false)
	switch {
	case !sent:
		return t.failure(errorMCPLost, details, server, " cannot be used: ", why)
	case status >= 300 && status < 500: // it has refused the request
		return t.failure(errorMCPLost, details, server, fmt.Sprintf(" answered %d: ", status), why)
	}
	return agent.InDoubt(t.failure(errorMCPLost, details, server, ": ", why,
		"; the call was sent, and nobody knows what became of it"))
}

// mcpResult is the result of a call.
type mcpResult struct {
	Content           []json.RawMessage `json:"content"`
	StructuredContent json.RawMessage   `json:"structuredContent"`
	IsError           bool              `json:"isError"`
	ResultType        string            `json:"resultType"`
	InputRequests     json.RawMessage   `json:"inputRequests"`
	RequestState      string            `json:"requestState"`
}

// outcome makes a call's outcome of its result.
func (t *mcpTool) outcome(ctx context.Context, c call, raw json.RawMessage) (json.RawMessage, error) {
	if err := events.CheckJSON(raw); err != nil {
		return nil, t.failure(errorMCP, nil, t.server.def.ID, " answered with malformed JSON")
	}
	var r mcpResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, t.failure(errorMCP, nil, t.server.def.ID, " answered with what is no result of a tool")
	}
	if r.ResultType == "input_required" {
		return nil, t.inputRequired(r)
	}
	if q := c.open(); q != nil && (r.IsError || t.manifest.Effect.Repeatable()) {
		return nil, t.suspend(*q)
	}
	text, plain := textOf(r.Content)
	if r.IsError {
		if text == "" {
			text = "the tool failed and did not say why"
			if len(r.StructuredContent) > 0 {
				text = string(r.StructuredContent)
			}
		}
		return nil, t.failure(errorMCP, nil, text)
	}
	result, ok := valueOf(r, text, plain)
	switch {
	case !ok:
		return nil, t.failure(errorMCP, nil, t.server.def.ID, " answered with neither JSON nor text in UTF-8")
	case len(result) > maxOutput:
		return nil, t.failure(errorMCP, nil, t.server.def.ID, fmt.Sprintf(" answered with more than %d bytes", maxOutput))
	}
	if !plain {
		t.server.contents.keep(ctx, c.x.call, r.Content)
	}
	return result, nil
}

// valueOf is the value of a result: what is structured, else what the text is, else all of its content.
func valueOf(r mcpResult, text string, plain bool) (json.RawMessage, bool) {
	if len(r.StructuredContent) > 0 && string(r.StructuredContent) != "null" {
		return r.StructuredContent, true
	}
	if plain {
		return textOrJSON([]byte(text))
	}
	raw, err := events.Marshal(map[string]any{"content": r.Content})
	return raw, err == nil
}

// textOf joins the texts of a content, and reports whether there is nothing else in it.
func textOf(content []json.RawMessage) (text string, plain bool) {
	var texts []string
	plain = true
	for _, raw := range content {
		var block struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if json.Unmarshal(raw, &block) != nil || block.Type != "text" || block.Text == nil {
			plain = false
			continue
		}
		texts = append(texts, *block.Text)
	}
	return strings.Join(texts, "\n"), plain
}

// enter notes a call that is on its way, and names it for its progress.
func (s *mcpSession) enter(x *mcpExchange) (token string) {
	token = events.NewID(time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[x] = true
	s.tokens[token] = x
	return token
}

func (s *mcpSession) leave(x *mcpExchange, token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, x)
	delete(s.tokens, token)
}

// mcpProgress is what a call shows while it runs.
type mcpProgress struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total,omitempty"`
	Message  string  `json:"message,omitempty"`
}

// progress shows the progress of a call to whoever follows its run. What comes too fast is left out.
func (s *mcpSession) progress(ctx context.Context, p *mcp.ProgressNotificationParams) {
	token, _ := p.ProgressToken.(string)
	s.mu.Lock()
	x := s.tokens[token]
	s.mu.Unlock()
	if x == nil || !x.mayShow(p.Total > 0 && p.Progress >= p.Total) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = x.call.Write(ctx, mcpProgress{Progress: p.Progress, Total: p.Total, Message: clip(p.Message, maxQuoted)}) // nothing depends on it
}

func (x *mcpExchange) mayShow(last bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.shown.IsZero() && time.Since(x.shown) < progressEvery && !last {
		return false
	}
	x.shown = time.Now()
	return true
}

package openai

import (
	"fmt"

	"github.com/weirkeeper/weir/services/agent"
)

// prepared is a request as it is sent, any number of times.
type prepared struct {
	body     []byte
	warnings []string
	key      string // for servers that recognise a repeated request
}

// prepare encodes a request. Its errors are final: the same request can never be sent.
func (c *Client) prepare(req agent.ModelRequest) (*prepared, error) {
	p := &prepared{key: req.IdempotencyKey}
	messages, err := p.messages(req)
	if err != nil {
		return nil, err
	}
	body := object{}
	fields := []struct {
		name  string
		value any
	}{{"model", req.Model}, {"messages", messages}, {"stream", true}}
	for _, f := range fields {
		if err := setJSON(&body, f.name, f.value); err != nil {
			return nil, err
		}
	}
	if !c.dialect.NoStreamOptions {
		if err := setJSON(&body, "stream_options", map[string]bool{"include_usage": true}); err != nil {
			return nil, err
		}
	}
	if err := c.addTools(&body, p, req); err != nil {
		return nil, err
	}
	if req.WebSearch && req.ToolChoice != choiceNone { // options for this provider may say more
		if err := setJSON(&body, "web_search_options", struct{}{}); err != nil {
			return nil, err
		}
	}
	if err := c.addSettings(&body, p, req); err != nil {
		return nil, err
	}
	p.body, err = body.MarshalJSON()
	return p, err
}

// warn adds what people should know about this request; the turn goes on.
func (p *prepared) warn(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

package toolexecutor

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

var _ agent.OutputMapper = (*mcpTool)(nil)

// mcpContents keeps the content of calls whose result says more to a model than its value does, until they are over.
type mcpContents struct{ by sync.Map }

func (c *mcpContents) keep(ctx context.Context, call *agent.Call, content []json.RawMessage) {
	c.by.Store(call, content)
	context.AfterFunc(ctx, func() { c.by.Delete(call) })
}

func (c *mcpContents) take(call *agent.Call) []json.RawMessage {
	content, _ := c.by.LoadAndDelete(call)
	list, _ := content.([]json.RawMessage)
	return list
}

// MapOutput tells a model images, sounds and resources as what they are. A result that is text alone is told as it is.
func (t *mcpTool) MapOutput(_ context.Context, call *agent.Call, result json.RawMessage) (*events.ModelOutput, error) {
	content := t.server.contents.take(call)
	if content == nil {
		return nil, nil //nolint:nilnil // the result itself
	}
	var parts []events.ContentPart
	spoken := false
	for _, raw := range content {
		p := partOf(raw)
		spoken = spoken || p.Type == events.ContentText
		parts = append(parts, p)
	}
	if !spoken { // what is structured is said nowhere else
		var whole struct {
			Content json.RawMessage `json:"content"`
		}
		if json.Unmarshal(result, &whole) != nil || whole.Content == nil {
			parts = append([]events.ContentPart{{Type: events.ContentText, Text: string(result)}}, parts...)
		}
	}
	return agent.ContentOutput(parts...), nil
}

// mcpBlock is one piece of the content of a result.
type mcpBlock struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Data     string `json:"data"`
	MIMEType string `json:"mimeType"`
	URI      string `json:"uri"`
	Name     string `json:"name"`
	Resource struct {
		URI      string `json:"uri"`
		MIMEType string `json:"mimeType"`
		Text     string `json:"text"`
		Blob     string `json:"blob"`
	} `json:"resource"`
}

// partOf is a piece of content as models take it. What nobody knows is told as the JSON that it is. A link stays a text:
// no provider shall fetch what a server names.
func partOf(raw json.RawMessage) events.ContentPart {
	var b mcpBlock
	unknown := events.ContentPart{Type: events.ContentText, Text: string(raw)}
	if json.Unmarshal(raw, &b) != nil {
		return unknown
	}
	switch {
	case b.Type == "text":
		return events.ContentPart{Type: events.ContentText, Text: b.Text}
	case b.Type == "image" && b.Data != "" && b.MIMEType != "":
		return events.ContentPart{Type: events.ContentImageData, Data: b.Data, MediaType: b.MIMEType}
	case b.Type == "audio" && b.Data != "" && b.MIMEType != "":
		return events.ContentPart{Type: events.ContentFileData, Data: b.Data, MediaType: b.MIMEType}
	case b.Type == "resource" && b.Resource.Blob != "" && b.Resource.MIMEType != "":
		return events.ContentPart{Type: events.ContentFileData, Data: b.Resource.Blob, MediaType: b.Resource.MIMEType, Filename: b.Resource.URI}
	case b.Type == "resource" && b.Resource.Blob == "":
		return events.ContentPart{Type: events.ContentText, Text: b.Resource.URI + "\n" + b.Resource.Text}
	}
	return unknown
}

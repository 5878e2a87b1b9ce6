package toolexecutor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Bounds of what a server may list. What is over them is left out, tool by tool, or page by page.
const (
	maxMCPPages = 100
	maxMCPTools = 1000
	maxMCPTool  = 256 << 10 // bytes of one tool
	maxMCPName  = 256       // bytes of a raw name
	maxMCPText  = 64 << 10  // bytes of a description
)

// mcpListed is one tool as a server lists it.
type mcpListed struct {
	Name         string          `json:"name"`
	Title        string          `json:"title"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema"`
	Annotations  json.RawMessage `json:"annotations"`

	digest string
}

// mcpLeftOut is a tool of a list that cannot be used, and why.
type mcpLeftOut struct{ name, why string }

// mcpListing is what a server listed at one time.
type mcpListing struct {
	tools     map[string]mcpListed       // by raw name
	manifests map[string]events.Manifest // of those that agents can use
	leftOut   []mcpLeftOut
}

// digestOf tells whether two listings are the same.
func (l *mcpListing) digestOf() string {
	raw, err := events.Marshal(l.digests())
	if err != nil {
		return ""
	}
	return events.Digest(raw)
}

func (l *mcpListing) digests() map[string]string {
	all := make(map[string]string, len(l.tools))
	for name, tool := range l.tools {
		all[name] = tool.digest
	}
	return all
}

// add reads one page of a list and returns the cursor of the next. A page that is no list is an error; of a list, only
// the tools that cannot be read are lost. server is part of every digest.
func (l *mcpListing) add(server string, page json.RawMessage) (cursor string, err error) {
	var p struct {
		Tools      []json.RawMessage `json:"tools"`
		NextCursor string            `json:"nextCursor"`
	}
	if err := json.Unmarshal(page, &p); err != nil {
		return "", errors.New("the list of tools is not one that MCP knows")
	}
	for _, raw := range p.Tools {
		tool, why := readListed(server, raw)
		_, twice := l.tools[tool.Name]
		switch {
		case why == "" && twice:
			why = "is listed twice"
		case why == "" && len(l.tools) >= maxMCPTools:
			why = fmt.Sprintf("is one of more than %d tools", maxMCPTools)
		}
		if why != "" {
			l.leave(tool.Name, why)
			continue
		}
		l.tools[tool.Name] = tool
	}
	return p.NextCursor, nil
}

// leave notes a tool that is left out. A server that lists very many such tools does not fill the log.
func (l *mcpListing) leave(name, why string) {
	if len(l.leftOut) < maxMCPTools {
		l.leftOut = append(l.leftOut, mcpLeftOut{name: clip(name, maxMCPName), why: why})
	}
}

// readListed reads one tool of a list, or says why it cannot be used.
func readListed(server string, raw json.RawMessage) (tool mcpListed, why string) {
	if len(raw) > maxMCPTool {
		_ = json.Unmarshal(raw, &struct{ Name *string }{&tool.Name}) // for the log
		return tool, fmt.Sprintf("has a definition of more than %d bytes", maxMCPTool)
	}
	if err := json.Unmarshal(raw, &tool); err != nil {
		return mcpListed{Name: tool.Name}, "has a definition that cannot be read"
	}
	switch {
	case strings.TrimSpace(tool.Name) == "":
		return tool, "has no name"
	case len(tool.Name) > maxMCPName:
		return tool, fmt.Sprintf("has a name of more than %d bytes", maxMCPName)
	case !utf8.ValidString(tool.Name) || strings.ContainsFunc(tool.Name, func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }):
		return tool, "has a name with characters that no name can have"
	case len(tool.Description) > maxMCPText || len(tool.Title) > maxMCPText:
		return tool, fmt.Sprintf("has a text of more than %d bytes", maxMCPText)
	}
	for field, part := range map[string]*json.RawMessage{
		"inputSchema": &tool.InputSchema, "outputSchema": &tool.OutputSchema, "annotations": &tool.Annotations,
	} {
		if len(*part) == 0 || string(*part) == "null" {
			*part = nil
			continue
		}
		canonical, err := events.Canonical(*part)
		if err != nil || canonical[0] != '{' {
			return tool, "has " + field + " that is no JSON object"
		}
		*part = canonical
	}
	var err error
	if tool.digest, err = tool.pin(server); err != nil {
		return tool, "has a definition that cannot be encoded"
	}
	return tool, ""
}

// pin is the digest by which a change of a tool is noticed.
func (t mcpListed) pin(server string) (string, error) {
	raw, err := events.Marshal([]any{
		"weir mcp 1", server, t.Name, t.Title, t.Description, orNull(t.InputSchema), orNull(t.OutputSchema), orNull(t.Annotations),
	})
	if err != nil {
		return "", err
	}
	return events.Digest(raw), nil
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// complete makes tools of Weir's out of those that are listed. A tool that no agent could use, or whose id another tool of
// the server has too, is left out.
func (l *mcpListing) complete(def MCPDef, server mcpImplementation) {
	ids := map[string][]string{}
	all := map[string]events.Manifest{}
	l.manifests = all
	for _, name := range slices.Sorted(maps.Keys(l.tools)) {
		m, err := l.tools[name].manifest(def, server)
		if err == nil {
			err = agent.Check(manifestOnly{manifest: m})
		}
		if err != nil {
			l.leave(name, clip(err.Error(), maxQuoted))
			continue
		}
		all[name] = m
		ids[m.ID] = append(ids[m.ID], name)
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		names := ids[id]
		if len(names) == 1 {
			continue
		}
		for _, name := range names {
			l.leave(name, fmt.Sprintf("has the id %s, as other tools of the server have", id))
			delete(all, name)
		}
	}
}

// manifestOnly is a tool without code, to be checked.
type manifestOnly struct {
	agent.Tool

	manifest events.Manifest
}

// Manifest is the manifest.
func (m manifestOnly) Manifest() events.Manifest { return m.manifest }

// mcpImplementation is what a server says of itself.
type mcpImplementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// manifest makes a tool of Weir's out of a listed one. Its version is a digest of all that is said about it, by the
// server and by the operator, so that a release for another definition finds no host. What the server claims about the
// tool in annotations is told to rules, which may only become stricter by it; the effect is the operator's word.
func (t mcpListed) manifest(def MCPDef, server mcpImplementation) (events.Manifest, error) {
	m := events.Manifest{
		ID: MCPToolID(def.ID, t.Name), Title: t.Title, Description: t.Description,
		InputSchema: t.InputSchema, OutputSchema: t.OutputSchema, Effect: def.effect(t.Name),
		Pool: def.Pool, Timeout: events.Duration(def.Timeout), StartTimeout: events.Duration(def.StartTimeout),
		Expires: events.Duration(def.Expires), RequireApproval: def.RequireApproval,
		Source: events.Source{Kind: SourceMCP, Server: def.ID, Name: t.Name},
	}
	if strings.TrimSpace(m.Description) == "" { // MCP asks for none, models do
		m.Description = t.Name
		if strings.TrimSpace(t.Title) != "" {
			m.Description = t.Title
		}
	}
	m = agent.Complete(m)
	raw, err := events.Marshal(m)
	if err != nil {
		return m, err
	}
	m.Version = strings.TrimPrefix(events.Digest(append(raw, t.digest...)), "sha256:")[:16]
	about := map[string]any{"server": server}
	if t.Annotations != nil {
		about["annotations"] = t.Annotations
	}
	m.MCP, err = events.Marshal(about)
	return m, err
}

// MCPToolID is the id of a server's tool: <server>_<tool>, in a form that every model takes for a name.
func MCPToolID(server, tool string) string { return agent.SafeName(server + "_" + tool) }

// mcpMessages reads the messages of an answer over HTTP: one of JSON, or a stream of server-sent events.
func mcpMessages(stream bool, body []byte) []json.RawMessage {
	if !stream {
		return []json.RawMessage{body}
	}
	var all []json.RawMessage
	var data [][]byte
	body = bytes.ReplaceAll(bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
	for line := range bytes.SplitSeq(append(body, '\n', '\n'), []byte("\n")) {
		if part, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, bytes.TrimPrefix(part, []byte(" ")))
		}
		if len(line) == 0 && data != nil {
			all = append(all, bytes.Join(data, []byte("\n")))
			data = nil
		}
	}
	return all
}

// mcpReply is what a server answered to a request: a result, or an error.
type mcpReply struct {
	Result json.RawMessage `json:"result"`
	Error  *mcpError       `json:"error"`
}

// mcpError is an error of the protocol.
type mcpError struct {
	Code    int64  `json:"code"`
	Message string `json:"message"`
}

// replyIn finds the reply among messages; the others are notifications and questions.
func replyIn(messages []json.RawMessage) *mcpReply {
	for _, raw := range messages {
		var m struct {
			mcpReply

			Method string `json:"method"`
		}
		if json.Unmarshal(raw, &m) == nil && m.Method == "" && (len(m.Result) > 0 || m.Error != nil) {
			return &m.mcpReply
		}
	}
	return nil
}

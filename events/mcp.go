package events

// RegistryMCP is the kind of entries about MCP servers.
const RegistryMCP = "mcp"

// MCPServer is what is known of an MCP server's tools (registry, mcp.<id>). Executors write what the server lists, apply
// accepts it: a tool is used as long as what is listed of it is what was accepted.
type MCPServer struct {
	ID       string               `json:"id"`
	Open     bool                 `json:"open,omitempty"`     // it was applied before anybody listed its tools: the first list is accepted
	Accepted map[string]string    `json:"accepted,omitempty"` // raw name → digest of the definition
	Listed   map[string]MCPListed `json:"listed,omitempty"`   // by raw name, as listed last
}

// MCPListed is one tool in the list of a server.
type MCPListed struct {
	ToolID string `json:"toolId"` // under which it is registered once it is accepted
	Digest string `json:"digest"` // of server, name, title, description, schemas and annotations
}

// Accept makes what is listed what is accepted. A server that nobody has listed yet is open: what it lists first is
// accepted. The names of tools that are new or changed since the last time are returned, unless it is the first time.
func (m MCPServer) Accept() (next MCPServer, changed []string) {
	if m.Listed == nil {
		m.Open = m.Open || m.Accepted == nil
		return m, nil
	}
	accepted := make(map[string]string, len(m.Listed))
	for name, tool := range m.Listed {
		accepted[name] = tool.Digest
		if m.Accepted != nil && m.Accepted[name] != tool.Digest {
			changed = append(changed, name)
		}
	}
	m.Accepted, m.Open = accepted, false
	return m, changed
}

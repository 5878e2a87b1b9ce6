package toolexecutor

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// HandleRelease is the handler of releases, for tests that deliver by hand.
var HandleRelease = (*Service).onRelease

// NewMCPInProcess is a server in this process. Each connection is one to the server that serve starts.
func NewMCPInProcess(def MCPDef, serve func() *mcp.Server) *MCPServer {
	def.URL = "https://unused.example"
	m, err := NewMCP(def)
	if err != nil {
		panic(err)
	}
	m.dial = func() (mcp.Transport, func(), error) {
		ours, theirs := mcp.NewInMemoryTransports()
		ctx, cancel := context.WithCancel(context.Background())
		session, err := serve().Connect(ctx, theirs, nil)
		if err != nil {
			cancel()
			return nil, nil, err
		}
		return &mcpPipe{io: ours}, func() {
			_ = session.Close()
			cancel()
		}, nil
	}
	return m
}

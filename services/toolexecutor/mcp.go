package toolexecutor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/egress"
)

// SourceMCP is the kind of tools of MCP servers.
const SourceMCP = "mcp"

// Spans of time of the client.
const (
	mcpConnectWithin = 30 * time.Second // to connect, or to list all tools
	mcpFresh         = 10 * time.Second // how old a list may be on which a call relies
)

// MCPDef is an MCP server whose tools are hosted. It comes from the executor's own configuration, never from the bus.
type MCPDef struct {
	// ID of the server: tools are registered as <id>_<name>, and rules name them mcp:<id>/<name>.
	ID string
	// URL of the server, for streamable HTTP. One of URL and Command is given.
	URL string
	// Headers are sent with each request.
	Headers map[string]string
	// Allow lists hosts, addresses and ranges that may be reached although they are not public or have another port
	// than 80 and 443; see [egress.ParseEntry].
	Allow []string
	// Command is the program and its arguments, for stdio. No shell reads it.
	Command []string
	// Dir is the program's working directory. Empty: the executor's.
	Dir string
	// Env is the whole environment of the program, NAME=value.
	Env []string
	// Secrets are texts that errors must not show, such as values of Headers and Env.
	Secrets []string

	// Effects are those of the tools by their raw names; * stands for all others. Default: effectful. What a server
	// claims in annotations never changes them.
	Effects map[string]events.Effect
	// RequireApproval of every tool of the server.
	RequireApproval *events.Approval
	// Pool, Timeout, StartTimeout and Expires of every tool. Zero: the defaults of tools.
	Pool                           string
	Timeout, StartTimeout, Expires time.Duration
}

// String leaves out headers, environment and secrets.
func (d MCPDef) String() string {
	if d.URL != "" {
		return fmt.Sprintf("mcp server %s: %s", d.ID, d.URL)
	}
	return fmt.Sprintf("mcp server %s: %q", d.ID, d.Command)
}

// GoString is String.
func (d MCPDef) GoString() string { return d.String() }

// LogValue is String.
func (d MCPDef) LogValue() slog.Value { return slog.StringValue(d.String()) }

func (d MCPDef) effect(tool string) events.Effect {
	return cmp.Or(d.Effects[tool], d.Effects["*"], events.Effectful)
}

// MCPServer is an MCP server whose tools an executor hosts. It is connected to when its tools are listed or called, and
// anew after the connection was lost; a call is sent once, whatever happens to the connection.
//
// A server of the protocol 2026-07-28 asks by its result; the call is suspended with the questions and the server's state,
// and any executor goes on once people have answered. An older one asks within a call, where nobody can wait for people: it
// is told cancel, the call is suspended, and called anew with the answer at hand. That is done when the call then fails, or
// when its tool may be repeated; a call with effects that succeeds all the same has succeeded. Within one connection only a
// call that is alone can be told from others, so a server that asks while several run is called one by one from then on.
type MCPServer struct {
	outside

	def  MCPDef
	dial func() (mcp.Transport, func(), error) // the second result ends what the first one started
	wake chan struct{}                         // tells that the list may have changed

	mu         sync.Mutex // held for what is in memory only
	session    *mcpSession
	listing    *mcpListing
	listed     time.Time // zero: the list may be another by now
	generation int       // of listing: counts those that differ
	settledFor int       // generation that the registry was told of, with what was accepted then
	settledAt  time.Time
	accepted   map[string]string

	contents   mcpContents
	connecting chan struct{} // whoever holds its one token connects or lists
	alone      chan struct{} // whoever holds its one token calls a server that asks within calls
	asks       bool          // the server has asked within a call when several were on their way
}

// NewMCP prepares to use a server. It does not connect.
func NewMCP(def MCPDef) (*MCPServer, error) {
	m := &MCPServer{
		outside: outside{redact: redactor(def.Secrets)}, def: def, wake: make(chan struct{}, 1),
		connecting: make(chan struct{}, 1), alone: make(chan struct{}, 1),
	}
	m.def.Pool = cmp.Or(def.Pool, events.DefaultPool)
	if err := m.prepare(); err != nil {
		return nil, fmt.Errorf("mcp server %s: %w", def.ID, err)
	}
	return m, nil
}

func (m *MCPServer) prepare() error {
	switch {
	case strings.TrimSpace(m.def.ID) == "":
		return errors.New("has no id")
	case (m.def.URL == "") == (len(m.def.Command) == 0):
		return errors.New("want a URL or a command, one of the two")
	case m.def.URL == "":
		return m.prepareProgram()
	}
	u, err := url.Parse(m.def.URL)
	if err != nil {
		return errors.New("url: cannot be read") // the error would quote it
	}
	guard, err := egress.New(m.def.Allow...)
	if err != nil {
		return fmt.Errorf("allow: %w", err)
	}
	if err := guard.CheckURL(u); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if err := checkHeaders(m.def.Headers); err != nil {
		return err
	}
	m.dial = m.overHTTP(guard)
	return nil
}

// ID is the server's id.
func (m *MCPServer) ID() string { return m.def.ID }

// Pool is the pool of the server's tools.
func (m *MCPServer) Pool() string { return m.def.Pool }

// mcpSession is one connection to a server.
type mcpSession struct {
	client *mcp.ClientSession
	end    func()
	lost   chan struct{} // closed when the connection is lost
	lose   func()
	server mcpImplementation

	mu     sync.Mutex
	calls  map[*mcpExchange]bool   // on their way
	tokens map[string]*mcpExchange // by progress token
}

func (s *mcpSession) alive() bool {
	select {
	case <-s.lost:
		return false
	default:
		return true
	}
}

// acquire takes the one token of c, or fails when ctx ends.
func acquire(ctx context.Context, c chan struct{}) (release func(), err error) {
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// connected is the connection, made anew when it was lost. The caller holds the token of connecting.
func (m *MCPServer) connected(ctx context.Context) (*mcpSession, error) {
	m.mu.Lock()
	s := m.session
	m.mu.Unlock()
	if s != nil && s.alive() {
		return s, nil
	}
	if s != nil {
		s.end()
	}
	s, err := m.connect(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.session, m.listed = s, time.Time{} // what was listed by another process may be outdated
	m.mu.Unlock()
	return s, nil
}

func (m *MCPServer) connect(ctx context.Context) (*mcpSession, error) {
	ctx, cancel := context.WithTimeout(ctx, mcpConnectWithin)
	defer cancel()
	transport, end, err := m.dial()
	if err != nil {
		return nil, err
	}
	lost := make(chan struct{})
	s := &mcpSession{lost: lost, lose: sync.OnceFunc(func() { close(lost) }), calls: map[*mcpExchange]bool{}, tokens: map[string]*mcpExchange{}}
	client := mcp.NewClient(&mcp.Implementation{Name: "weir", Version: "1"}, &mcp.ClientOptions{
		Capabilities:   &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return m.elicited(s, r.Params)
		},
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { m.changed() },
		ProgressNotificationHandler: func(ctx context.Context, r *mcp.ProgressNotificationClientRequest) { s.progress(ctx, r.Params) },
	})
	client.AddSendingMiddleware(uncached)
	if s.client, err = client.Connect(ctx, transport, nil); err != nil {
		end()
		return nil, err
	}
	if about := s.client.InitializeResult(); about != nil && about.ServerInfo != nil {
		s.server = mcpImplementation{Name: clip(about.ServerInfo.Name, maxMCPName), Version: clip(about.ServerInfo.Version, maxMCPName)}
	}
	s.end = sync.OnceFunc(func() {
		_ = s.client.Close()
		end()
	})
	go func() { // ends with the connection, which close ends
		_ = s.client.Wait()
		s.lose()
		m.changed()
	}()
	return s, nil
}

// uncached asks the server each time: a list that is believed for as long as the server says would hide a change.
func uncached(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if list, ok := res.(*mcp.ListToolsResult); ok && list != nil {
			list.TTLMs = 0
		}
		return res, err
	}
}

// changed has the list read again.
func (m *MCPServer) changed() {
	m.mu.Lock()
	m.listed = time.Time{}
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// close ends the connection.
func (m *MCPServer) close() {
	m.mu.Lock()
	s := m.session
	m.session = nil
	m.mu.Unlock()
	if s != nil {
		s.end()
	}
}

// list is what the server lists, not older than age, and the connection over which it was listed. A list that cannot
// be had leaves the one before as it is.
func (m *MCPServer) list(ctx context.Context, age time.Duration) (*mcpListing, *mcpSession, error) {
	release, err := acquire(ctx, m.connecting)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	s, err := m.connected(ctx)
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	listing, listed := m.listing, m.listed
	m.mu.Unlock()
	if listing != nil && time.Since(listed) < age {
		return listing, s, nil
	}
	began := time.Now()
	if listing, err = m.listAll(ctx, s); err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listing == nil || m.listing.digestOf() != listing.digestOf() || !slices.Equal(m.listing.leftOut, listing.leftOut) {
		m.generation++
	}
	m.listing, m.listed = listing, began
	return listing, s, nil
}

// listAll reads all pages.
func (m *MCPServer) listAll(ctx context.Context, s *mcpSession) (*mcpListing, error) {
	ctx, cancel := context.WithTimeout(ctx, mcpConnectWithin)
	defer cancel()
	listing := &mcpListing{tools: map[string]mcpListed{}}
	cursor, seen := "", map[string]bool{}
	for range maxMCPPages {
		x := &mcpExchange{}
		_, err := s.client.ListTools(withExchange(ctx, x), &mcp.ListToolsParams{Cursor: cursor})
		reply := x.reply()
		switch {
		case reply == nil || reply.Result == nil:
			return nil, fmt.Errorf("list the tools: %w", cmp.Or(err, errors.New("there is no answer")))
		case ctx.Err() != nil:
			return nil, fmt.Errorf("list the tools: %w", context.Cause(ctx))
		}
		if cursor, err = listing.add(m.def.ID, reply.Result); err != nil {
			return nil, err
		}
		if cursor == "" {
			listing.complete(m.def, s.server)
			return listing, nil
		}
		if seen[cursor] {
			return nil, errors.New("list the tools: the pages go round in a circle")
		}
		seen[cursor] = true
	}
	listing.leave("", fmt.Sprintf("and all that follow are on more than %d pages", maxMCPPages))
	listing.complete(m.def, s.server)
	return listing, nil
}

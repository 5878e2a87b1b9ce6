package toolexecutor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/egress"
)

// maxMCPAnswer bounds one answer of a server, which may say the same twice: as text and as structured content.
const maxMCPAnswer = 4 * maxOutput

// mcpExchange is one request and what came back. The SDK carries it; what it meant to say is read from the bytes, so
// that numbers keep their digits and one tool that cannot be read does not cost a list.
type mcpExchange struct {
	call *agent.Call // of a tool

	mu     sync.Mutex
	shut   bool // the connection was closed
	posted bool // the request is on its way
	sent   bool // the server has perhaps got it
	status int  // of HTTP
	stream bool
	body   bytes.Buffer
	got    *mcpReply
	drop   func() // forgets the request where replies are awaited

	prepared map[string]mcpAnswer // to questions within the call
	asked    *mcp.ElicitParams    // the question that nobody has answered yet
	shown    time.Time            // when progress was last shown
}

type mcpExchangeKey struct{}

func withExchange(ctx context.Context, x *mcpExchange) context.Context {
	return context.WithValue(ctx, mcpExchangeKey{}, x)
}

func exchangeOf(ctx context.Context) *mcpExchange {
	x, _ := ctx.Value(mcpExchangeKey{}).(*mcpExchange)
	return x
}

// reply is what the server answered; nil when nobody knows.
func (x *mcpExchange) reply() *mcpReply {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.got == nil {
		x.got = replyIn(mcpMessages(x.stream, x.body.Bytes()))
	}
	return x.got
}

// overHTTP connects by streamable HTTP, under the guard.
func (m *MCPServer) overHTTP(guard *egress.Guard) func() (mcp.Transport, func(), error) {
	return func() (mcp.Transport, func(), error) {
		wire := guard.Transport()
		client := &http.Client{
			Transport: &mcpWire{headers: m.def.Headers, next: wire},
			// A redirect would take headers and arguments to where the operator has not sent them.
			CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("a redirect, which is not followed") },
		}
		return &mcp.StreamableClientTransport{Endpoint: m.def.URL, HTTPClient: client, MaxEventSize: maxMCPAnswer},
			wire.CloseIdleConnections, nil
	}
}

// mcpWire adds the headers of the definition, bounds answers, and keeps what belongs to an exchange.
type mcpWire struct {
	headers map[string]string
	next    http.RoundTripper
}

// RoundTrip makes one request.
func (w *mcpWire) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchangeOf(req.Context())
	if x != nil && !x.takes(req.Method) {
		x = nil // such as the notice that a call was given up
	}
	ctx := req.Context()
	if x != nil {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: x.wrote})
	}
	req = req.Clone(ctx)
	for name, value := range w.headers {
		req.Header.Set(name, value)
	}
	resp, err := w.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	stream := kind == "text/event-stream"
	switch {
	case x != nil:
		x.answered(resp.StatusCode, stream)
		resp.Body = &mcpBody{ReadCloser: resp.Body, left: maxMCPAnswer, keep: x}
	case !stream: // other streams go on for as long as the connection; their events are bounded
		resp.Body = &mcpBody{ReadCloser: resp.Body, left: maxMCPAnswer}
	}
	return resp, nil
}

func (x *mcpExchange) noteClosed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shut = true
}

// closed reports whether the connection was closed before the request was sent.
func (x *mcpExchange) closed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.shut && !x.sent && !x.posted && x.got == nil
}

// takes reports whether a request belongs to the exchange: its first one, and those that go on reading a stream.
func (x *mcpExchange) takes(method string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if method == http.MethodGet {
		return true
	}
	first := method == http.MethodPost && !x.posted
	x.posted = true
	return first
}

func (x *mcpExchange) wrote() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent = true
}

func (x *mcpExchange) answered(status int, stream bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent, x.status, x.stream = true, status, stream
}

// mcpBody reads an answer up to a bound.
type mcpBody struct {
	io.ReadCloser

	left int
	keep *mcpExchange
}

// Read reads, and keeps what it has read.
func (b *mcpBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the server answered with more than %d bytes", maxMCPAnswer)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	if b.keep != nil {
		b.keep.mu.Lock()
		b.keep.body.Write(p[:n])
		b.keep.mu.Unlock()
	}
	return n, err
}

// prepareProgram checks the program of a server. One that is not there is like a server that cannot be reached: it may
// come, and hinders nothing else.
func (m *MCPServer) prepareProgram() error {
	// It is held to what programs of tools are held to.
	t := &execTool{def: ExecDef{Command: m.def.Command, Dir: m.def.Dir}}
	_, err := t.program()
	if _, missing := errors.AsType[*exec.Error](err); err != nil && !missing {
		return err
	}
	if err := checkEnv(m.def.Env); err != nil {
		return err
	}
	m.dial = func() (mcp.Transport, func(), error) {
		path, err := t.program()
		if err != nil {
			return nil, nil, err
		}
		return m.start(path)
	}
	return nil
}

// start starts the program of a server. What it and its children leave running when the connection ends is killed.
func (m *MCPServer) start(path string) (mcp.Transport, func(), error) {
	cmd := exec.Command(path) //nolint:noctx // the operator's program, which lives as long as the connection
	cmd.Args, cmd.Dir, cmd.Env = m.def.Command, m.def.Dir, m.def.Env
	said := &lockedTail{}
	cmd.Stderr = said
	cmd.WaitDelay = stopGrace
	ownGroup(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, write, err := os.Pipe() // that of cmd is closed when the program ends, with what is in it
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout = write
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		_ = out.Close()
		return nil, nil, fmt.Errorf("the program cannot be started: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		killGroup(cmd) // whoever still holds its output
		close(ended)
	}()
	end := func() {
		_ = stdin.Close()
		if !within(ended, stopGrace) {
			_ = endGroup(cmd)
			if !within(ended, stopGrace) {
				killGroup(cmd)
				<-ended
			}
		}
		_ = out.Close()
	}
	return &mcpPipe{io: &mcp.IOTransport{Reader: out, Writer: stdin, MaxLineLength: maxMCPAnswer}, said: said}, end, nil
}

func within(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// lockedTail keeps the end of what a program says, for whoever asks meanwhile.
type lockedTail struct {
	mu   sync.Mutex
	tail tail
}

// Write never fails.
func (t *lockedTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tail.Write(p)
}

// String is what was said last.
func (t *lockedTail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.tail.bytes))
}

// mcpPipe is a connection over which exchanges are kept, for servers that speak over pipes.
type mcpPipe struct {
	io   mcp.Transport
	said *lockedTail // what the program says beside it; nil: nothing
}

// Connect opens it.
func (t *mcpPipe) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := t.io.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &mcpPipeConn{Connection: conn, said: t.said, open: map[jsonrpc.ID]*mcpExchange{}}, nil
}

type mcpPipeConn struct {
	mcp.Connection

	said *lockedTail
	mu   sync.Mutex
	open map[jsonrpc.ID]*mcpExchange
}

// Write notes whose request goes out.
func (c *mcpPipeConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	req, ok := msg.(*jsonrpc.Request)
	if x := exchangeOf(ctx); x != nil && ok && req.IsCall() && x.takes(http.MethodPost) {
		x.wrote()
		c.mu.Lock()
		c.open[req.ID] = x
		c.mu.Unlock()
		x.mu.Lock()
		x.drop = func() { c.forget(req.ID) }
		x.mu.Unlock()
	}
	return c.Connection.Write(ctx, msg)
}

// Read notes what came back.
func (c *mcpPipeConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	if err != nil {
		if text := c.words(); text != "" && !errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return msg, err
	}
	resp, ok := msg.(*jsonrpc.Response)
	if !ok {
		return msg, nil
	}
	if x := c.forget(resp.ID); x != nil {
		x.received(resp)
	}
	return msg, nil
}

func (c *mcpPipeConn) forget(id jsonrpc.ID) *mcpExchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.open[id]
	delete(c.open, id)
	return x
}

// end forgets an exchange whose answer nobody awaits any more.
func (x *mcpExchange) end() {
	x.mu.Lock()
	drop := x.drop
	x.mu.Unlock()
	if drop != nil {
		drop()
	}
}

func (c *mcpPipeConn) words() string {
	if c.said == nil {
		return ""
	}
	return c.said.String()
}

func (x *mcpExchange) received(resp *jsonrpc.Response) {
	reply := &mcpReply{Result: bytes.Clone(resp.Result)}
	if resp.Error != nil {
		reply.Error = &mcpError{Message: resp.Error.Error()}
		if wire, ok := errors.AsType[*jsonrpc.Error](resp.Error); ok {
			reply.Error = &mcpError{Code: wire.Code, Message: wire.Message}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.got = reply
}

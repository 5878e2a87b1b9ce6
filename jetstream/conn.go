package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/weirkeeper/weir/events"
)

const (
	// defaultRetry is how long an append is tried again: a cluster that lost its leader is back after about 7 s.
	defaultRetry = 30 * time.Second
	// drainTimeout bounds Close.
	drainTimeout = 10 * time.Second
	// reconnectWait lies between two attempts to connect again.
	reconnectWait = 250 * time.Millisecond
	// pingInterval finds a dead link within a minute. In-process connections cannot have one.
	pingInterval = 20 * time.Second
	// redTime is how long a write that timed out keeps a connection unhealthy.
	redTime = 30 * time.Second
	// defaultAPIPrefix is the JetStream API of the own account.
	defaultAPIPrefix = "$JS.API"
)

// Options say where and as whom to connect. The zero value connects to the local default server.
type Options struct {
	// InProcess connects to a server in this process; URL and Context are ignored then.
	InProcess nats.InProcessConnProvider
	// URL of the servers, separated by commas. Empty: the context's, else nats://127.0.0.1:4222.
	URL string
	// Context is a context of the nats command, by name or absolute path. What other fields say wins over it.
	Context string
	// Creds is a credentials file (JWT and seed), NKeySeedFile a seed alone.
	Creds        string
	NKeySeedFile string
	// User and Password, or Token.
	User, Password, Token string
	// CA, Cert and Key are PEM files for TLS.
	CA, Cert, Key string

	// Namespace of all subjects, streams and buckets. Empty: events.DefaultNamespace.
	Namespace events.Namespace
	// Name is the service; servers list connections by it. Empty: "weir".
	Name string
	// InboxPrefix is where replies come in. Users with an allow list may subscribe only below their own.
	InboxPrefix string
	// APIPrefix of JetStream's API when it is imported from another account. Empty: the context's, else $JS.API.
	APIPrefix string
	// Log takes what has no caller: lost connections, permission violations. Nil discards it.
	Log *slog.Logger
	// Replicas is the default of Settings.Replicas. Zero: 1.
	Replicas int
	// Retry is how long an append is tried again before its outcome counts as unknown. Zero: 30 s.
	Retry time.Duration
	// Trace follows deliveries in a tracing system. Nil: nothing does.
	Trace Tracer
	// Hooks are for tests.
	Hooks Hooks
}

// Tracer follows what comes of events.
type Tracer interface {
	// Deliver begins the span of a delivery to a consumer below the trace context of its event, which may be empty or
	// anything. It returns the context of what is done about the delivery, the trace context of what that leads to, and
	// what ends the span.
	Deliver(ctx context.Context, consumer, eventType, run, traceparent string) (context.Context, string, func(error))
}

// Hooks let tests stop a service at an append. An error of a hook is what the append returns.
type Hooks struct {
	// BeforeAppend is called before the first publish of an append.
	BeforeAppend func(events.Event) error
	// AfterAppend is called when an append is settled, before its caller hears of it.
	AfterAppend func(events.Event, Outcome) error
	// LoseReply tells whether the reply to a request on this subject is lost on its way, as a network loses it: the
	// acknowledgement of a message, or what was read ($JS.API.>).
	LoseReply func(subject string) bool
	// At is called at the other boundaries of a service, with the subject concerned; its error is what happens there
	// instead. A copy of a service that counts as killed does nothing beyond.
	At func(boundary, subject string) error
}

// Boundaries at which [Hooks.At] is called.
const (
	BeforeStore  = "store.before" // a write to a bucket or of a timer
	AfterStore   = "store.after"  // the same, once it is stored and before its writer hears of it
	BeforeSettle = "settle"       // an acknowledgement, a refusal of a delivery or a sign of life, by the message's subject
	BeforeChunk  = "chunk"        // a chunk on its way to readers
	BeforeReply  = "reply"        // the reply to a request, by the request's subject
)

func (h Hooks) at(boundary, subject string) error {
	if h.At == nil {
		return nil
	}
	return h.At(boundary, subject)
}

func (o Options) withDefaults() Options {
	o.Namespace = cmp.Or(o.Namespace, events.DefaultNamespace)
	o.Name = cmp.Or(o.Name, "weir")
	o.Replicas = cmp.Or(o.Replicas, 1)
	o.Retry = cmp.Or(o.Retry, defaultRetry)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	if _, err := events.ParseNamespace(string(o.Namespace)); err != nil {
		return err
	}
	if (o.Cert == "") != (o.Key == "") {
		return errors.New("a TLS client needs both certificate and key")
	}
	if o.Replicas < 1 || o.Replicas > 5 {
		return fmt.Errorf("%d replicas: use 1, 3 or 5", o.Replicas)
	}
	return nil
}

// Conn is a connection to the streams of one namespace. Its methods may be called from any goroutine.
type Conn struct {
	nc   *nats.Conn
	ns   events.Namespace
	opts Options
	log  *slog.Logger
	api  string // prefix of the JetStream API, with the dot at its end
	user string // as whom the server knows us, for messages to people

	ops      *operations
	closed   chan struct{}
	timedOut atomic.Int64 // unix nanoseconds of the last write that ran into its time limit

	parts parts // what the stores keep in memory
}

// Connect connects once; after that the connection comes back by itself for as long as the process lives.
func Connect(ctx context.Context, o Options) (*Conn, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &Conn{ns: o.Namespace, opts: o, log: o.Log, ops: newOperations(), closed: make(chan struct{})}
	if err := c.dial(ctx); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return c, nil
}

func (c *Conn) dial(ctx context.Context) error {
	options, err := c.natsOptions(ctx)
	if err != nil {
		return err
	}
	var from natscontext.Settings
	switch o := c.opts; {
	case o.InProcess != nil:
		c.nc, err = nats.Connect("", append(options, nats.InProcessServer(o.InProcess))...)
	case o.Context != "":
		c.nc, from, err = natscontext.Connect(o.Context, append(options, setServers(o.URL))...)
	default:
		c.nc, err = nats.Connect(cmp.Or(o.URL, nats.DefaultURL), options...)
	}
	if err != nil {
		return mapError(err)
	}
	o := c.opts
	c.user = cmp.Or(o.User, o.NKeySeedFile, o.Creds, from.User, from.NKey, from.Creds, o.Name)
	c.api = cmp.Or(o.APIPrefix, from.JSAPIPrefix, domainPrefix(from.JSDomain), defaultAPIPrefix) + "."
	c.ops.as(c.user, cmp.Or(o.InboxPrefix, from.InboxPrefix, nats.InboxPrefix))
	return nil
}

// setServers lets a URL win over the one of a context.
func setServers(url string) nats.Option {
	return func(n *nats.Options) error {
		if url != "" {
			n.Servers = strings.Split(url, ",")
		}
		return nil
	}
}

func domainPrefix(domain string) string {
	if domain == "" {
		return ""
	}
	return "$JS." + domain + ".API"
}

func (c *Conn) natsOptions(ctx context.Context) ([]nats.Option, error) {
	o := c.opts
	options := []nats.Option{
		nats.Name(o.Name), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectWait, reconnectWait),
		nats.ErrorHandler(c.onError), nats.ClosedHandler(c.onClosed),
		nats.DisconnectErrHandler(c.onDisconnect), nats.ReconnectHandler(c.onReconnect),
	}
	if o.InProcess == nil {
		options = append(options, nats.PingInterval(pingInterval))
	}
	if deadline, ok := ctx.Deadline(); ok {
		options = append(options, nats.Timeout(time.Until(deadline)))
	}
	if o.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(o.InboxPrefix))
	}
	if o.CA != "" {
		options = append(options, nats.RootCAs(o.CA))
	}
	if o.Cert != "" {
		options = append(options, nats.ClientCert(o.Cert, o.Key))
	}
	return withCredentials(options, o)
}

func withCredentials(options []nats.Option, o Options) ([]nats.Option, error) {
	switch {
	case o.Creds != "":
		return append(options, nats.UserCredentials(o.Creds)), nil
	case o.NKeySeedFile != "":
		seed, err := nats.NkeyOptionFromSeed(o.NKeySeedFile)
		if err != nil {
			return nil, fmt.Errorf("nkey seed %s: %w", o.NKeySeedFile, err)
		}
		return append(options, seed), nil
	case o.User != "":
		return append(options, nats.UserInfo(o.User, o.Password)), nil
	case o.Token != "":
		return append(options, nats.Token(o.Token)), nil
	}
	return options, nil
}

// Close hands the server what was sent, within 10 s, and ends the connection. Loops of [Conn.Consume] are stopped
// before. It may be called again.
//
// The client's own Drain takes its timers from a pool of the process, which in tests would carry them from one fake
// time into another.
func (c *Conn) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if c.nc.IsConnected() {
		_ = c.nc.FlushWithContext(ctx) // the connection ends either way
	}
	c.nc.Close()
	<-c.closed
	return nil
}

// Namespace is the one that the connection works in.
func (c *Conn) Namespace() events.Namespace { return c.ns }

// User is the name under which the connection logged in, for messages to people.
func (c *Conn) User() string { return c.user }

// Closed is closed when the connection has ended for good: by Close, or because the server refuses it.
func (c *Conn) Closed() <-chan struct{} { return c.closed }

// Health is nil when the connection works: it is up, its user may receive replies, and no write has run into its time
// limit for half a minute.
func (c *Conn) Health() error {
	select {
	case <-c.closed:
		return fmt.Errorf("%w: connection closed: %w", ErrUnavailable, cmp.Or(c.nc.LastError(), nats.ErrConnectionClosed))
	default:
	}
	if err := c.ops.replies(); err != nil {
		return err
	}
	if s := c.nc.Status(); s != nats.CONNECTED {
		return fmt.Errorf("%w: connection is %s", ErrUnavailable, s)
	}
	if at := c.timedOut.Load(); at != 0 && time.Since(time.Unix(0, at)) < redTime {
		return fmt.Errorf("%w: a write timed out within the last %v", ErrTimeout, redTime)
	}
	return c.parts.trouble.err()
}

// Violations are the refusals by permission since the start: each is a hole in the user's allow list, or an attack.
func (c *Conn) Violations() []Violation { return c.ops.list() }

func (c *Conn) onError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if v, ok := parseViolation(err); ok {
		c.ops.add(v)
		c.log.Error("NATS permission violation", "operation", v.Operation, "subject", v.Subject, "user", c.user)
		return
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	c.log.Warn("NATS connection", "subject", subject, "error", err)
}

func (c *Conn) onDisconnect(_ *nats.Conn, err error) {
	c.ops.cut(fmt.Errorf("%w: connection lost", ErrUnavailable))
	if err != nil {
		c.log.Warn("NATS connection lost", "error", err)
	}
}

func (c *Conn) onReconnect(nc *nats.Conn) {
	c.ops.forgive() // permissions may have been changed
	c.log.Info("NATS connection is back", "server", nc.ConnectedUrlRedacted())
}

func (c *Conn) onClosed(nc *nats.Conn) {
	if err := nc.LastError(); err != nil {
		c.log.Error("NATS connection closed", "error", err)
	}
	close(c.closed)
}

// request sends a message and waits for its reply, no longer than limit: when the server ends in between, the reply never
// comes, and the connection that follows does not say so. A permission violation on the message's subject ends the wait at
// once. Errors are this package's; ErrTimeout and ErrUnavailable leave open whether the message arrived.
func (c *Conn) request(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) }) // a context less on the path of every fact
	op := c.ops.begin(msg.Subject, cancel)
	reply, err := c.nc.RequestMsgWithContext(ctx, msg)
	c.ops.end(op)
	timer.Stop()
	if err == nil && c.opts.Hooks.LoseReply != nil && c.opts.Hooks.LoseReply(msg.Subject) {
		err = nats.ErrTimeout
	}
	return reply, ended(ctx, cancel, err)
}

// under marks an operation on a subject as under way: a permission violation there ends the context. The function
// must be called with the operation's error, and gives back what callers should hear.
func (c *Conn) under(ctx context.Context, subject string) (context.Context, func(error) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	op := c.ops.begin(subject, cancel)
	return ctx, func(err error) error {
		c.ops.end(op)
		return ended(ctx, cancel, err)
	}
}

// ended ends an operation's context and gives the cause of its end as the error, when there is one.
func ended(ctx context.Context, cancel context.CancelCauseFunc, err error) error {
	if err == nil {
		cancel(nil)
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	return mapError(err)
}

// call sends a request to the JetStream API and decodes its answer; an error in the answer is mapped.
func (c *Conn) call(ctx context.Context, verb string, request, answer any) error {
	reply, err := c.ask(ctx, apiTime, verb, request)
	if err != nil {
		return err
	}
	return decodeAnswer(reply, answer)
}

// ask is call without looking into the answer, which is waited for no longer than limit.
func (c *Conn) ask(ctx context.Context, limit time.Duration, verb string, request any) ([]byte, error) {
	msg := &nats.Msg{Subject: c.api + verb}
	if request != nil {
		body, err := json.Marshal(request)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		msg.Data = body
	}
	reply, err := c.request(ctx, limit, msg)
	if err != nil {
		return nil, err
	}
	return reply.Data, nil
}

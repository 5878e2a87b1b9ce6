// Package client is how programs use Weir: it starts runs, follows them, decides the calls that wait for people, cancels
// runs and lists them.
//
//	c := client.New(conn, client.Config{Principal: "bob"})
//	run, err := c.Start(ctx, client.Request{Agent: "support", Prompt: "Refund order 1042"})
//	for chunk, err := range run.Follow(ctx, 0, nil) { … }
//
// Everything it asks for is one event on a subject of its principal, and everything it learns is an event too. Starting,
// following and deciding need no right to read the log (Config.LiveOnly); listing does. A decision is published where it
// is stored, whether a gate runs or not, and its outcome read from the log. Who may not read that sends it as a request
// to the gate, which stores it in the same place and replies the outcome; without a gate it is published all the same.
// Grants are given and taken back in the same way. Nothing here decides anything: what a client hears are hints, and what
// counts is what planner and gate have stored.
package client

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// ErrGap comes once in the place of chunks that are no longer stored, and following goes on.
var ErrGap = jetstream.ErrGap

const (
	defaultService = "client"
	defaultWait    = 30 * time.Second
)

// Config of a client. Zero fields have the default that their comment names.
type Config struct {
	// Principal in whose name requests are made. Required; the connection's user must be allowed to publish as it.
	Principal string
	// Key signs starts and decisions. Default: they are not signed, which only weir dev accepts for decisions.
	Key *events.Key
	// GateKeys are the public keys of gates. Asks and answers that are heard count only with a signature of one of them.
	// Default: they are believed, which is good enough to look at and not to act on.
	GateKeys events.Keys
	// LiveOnly is for users who may read no stream, such as those of the account EDGE: runs are followed from the moment
	// of their start, and what is missed then is missed. Default: streams are read.
	LiveOnly bool
	// ByRequest sends decisions as requests to the gate's micro service, which replies what became of them. Users who may
	// not read the log always ask so, because nobody else can tell them everything. Default: decisions are published, so
	// that they are stored though no gate runs, and the log is looked at.
	ByRequest bool
	// NoLog is for users who may read the chunks and the buckets, and not the log: nothing of it is asked for, and decisions
	// go by request. So nothing comes out of this client that is not meant to be shown. Default: the first attempt tells.
	NoLog bool
	// ByGateway says that the principal was logged in by a gateway, whose key signs: only starts and decisions that are signed
	// so count for principals that come through one. It needs Key.
	ByGateway bool
	// Wait is how long Decide and Cancel wait for the outcome. Default 30 s.
	Wait time.Duration
	// Service is the name in the events' source. Default "client".
	Service string
	// Log takes what has no caller. Default: discarded.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Service = cmp.Or(c.Service, defaultService)
	c.Wait = cmp.Or(c.Wait, defaultWait)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Client makes requests in the name of one principal. Its methods may be called from any goroutine.
type Client struct {
	conn   *jetstream.Conn
	ns     events.Namespace
	cfg    Config
	origin events.Origin

	refusals refusals
	blind    atomic.Bool // the user may not read the log, as an attempt has shown
	mute     atomic.Bool // the user may not decide by request, as an attempt has shown

	mu    sync.Mutex
	stops []func() // of what is heard
}

// Conn is a connection to the bus, for packages that reach it through this one alone.
type Conn = jetstream.Conn

// New makes a client. It asks for nothing yet. Close it when its connection lives on.
func New(conn *jetstream.Conn, cfg Config) *Client {
	cfg = cfg.withDefaults()
	c := &Client{
		conn: conn, ns: conn.Namespace(), cfg: cfg,
		origin: events.Origin{Namespace: conn.Namespace(), Service: cfg.Service},
	}
	c.blind.Store(cfg.NoLog)
	return c
}

// Close stops listening: for refusals, and for the chunks of runs that were started with Config.LiveOnly.
func (c *Client) Close() {
	c.refusals.close()
	c.mu.Lock()
	stops := c.stops
	c.stops = nil
	c.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// request makes the event of a request: in the principal's name, and signed where the type is one that is signed.
func (c *Client) request(subject, run string, data any) (events.Event, error) {
	if c.cfg.Principal == "" {
		return events.Event{}, invalid("a principal is missing: Config.Principal")
	}
	e, err := c.origin.Request(subject, run, data, events.Event{})
	if err != nil {
		return events.Event{}, invalid("%v", err)
	}
	e.AuthID, e.AuthType = c.cfg.Principal, events.AuthSubject
	if c.cfg.Key != nil {
		e.AuthType = events.AuthKey
		if c.cfg.ByGateway {
			e.AuthType = events.AuthGateway
		}
	}
	if e.Payload, err = events.Encode(e); err != nil {
		return events.Event{}, invalid("%v", err)
	}
	if row, ok := events.RowOf(e.Type); ok && row.Domain != "" && c.cfg.Key != nil {
		e.Signature = events.Sign(*c.cfg.Key, row.Domain, subject, e.Payload)
	}
	return e, nil
}

// send stores a request in the inbox. When nobody can say whether it is there, the error has the code unknown_outcome:
// the same request may be made again, because a run id is used once and a decision counts once.
func (c *Client) send(ctx context.Context, subject string, e events.Event) error {
	if _, err := c.conn.Publish(ctx, subject, e); err != nil {
		return sendError(err, e.Subject)
	}
	return nil
}

// reads reports whether reading the log is worth a try.
func (c *Client) reads() bool { return !c.cfg.LiveOnly && !c.blind.Load() }

// needsLog refuses what cannot be done without reading the log.
func (c *Client) needsLog(what string) error {
	if c.reads() {
		return nil
	}
	return events.Errorf(events.CodeForbidden, "%s needs the right to read the log", what)
}

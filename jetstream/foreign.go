package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/weirkeeper/weir/events"
)

// ErrNotSent comes with the error of a request that no service has got, and none will.
var ErrNotSent = errors.New("not sent")

// foreignTime bounds requests whose context has no end.
const foreignTime = 31 * 24 * time.Hour

// Reply is what a service of others has replied.
type Reply struct {
	Header map[string][]string
	Data   []byte
	// Refused says that the service calls its reply an error, as micro services do; Reason and Code are its own words.
	Refused      bool
	Reason, Code string
}

// Request sends a request to a service of others on this connection, once, and waits for its reply until ctx ends. It never
// speaks on a subject of Weir or of the server (see [events.CheckForeign]), nor where this connection's replies and its API are.
//
// An error that is ErrNotSent says that no service has got the request. ErrTimeout and ErrUnavailable without it leave open
// whether one has, and acts on it.
func (c *Conn) Request(ctx context.Context, r Request) (Reply, error) {
	msg := &nats.Msg{Subject: r.Subject, Header: r.Header, Data: r.Data}
	reply, err := c.foreign(ctx, msg)
	if err != nil {
		return Reply{}, fmt.Errorf("request %s: %w", r.Subject, err)
	}
	out := Reply{Header: reply.Header, Data: reply.Data}
	out.Reason, out.Code = reply.Header.Get(micro.ErrorHeader), reply.Header.Get(micro.ErrorCodeHeader)
	out.Refused = out.Reason != "" || out.Code != ""
	return out, nil
}

func (c *Conn) foreign(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	if err := c.maySend(ctx, msg); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	reply, err := c.request(ctx, foreignTime, msg)
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, ErrPermission) && c.ops.replies() == nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return reply, err
}

// maySend tells what is in the way of a request before it is sent.
func (c *Conn) maySend(ctx context.Context, msg *nats.Msg) error {
	if err := c.checkForeign(msg.Subject); err != nil {
		return err
	}
	if err := c.checkSize(msg); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if s := c.nc.Status(); s != nats.CONNECTED { // the client would keep it, and send it whenever the server is back
		return fmt.Errorf("%w: connection is %s", ErrUnavailable, s)
	}
	return c.ops.replies()
}

// checkForeign refuses subjects on which something of Weir's or of this connection's own listens.
func (c *Conn) checkForeign(subject string) error {
	if err := events.CheckForeign(subject); err != nil {
		return err
	}
	for _, own := range []string{c.ops.inboxPrefix(), c.api} {
		if strings.HasPrefix(subject+".", own) {
			return errors.New("the subject is one of this connection's own")
		}
	}
	return nil
}

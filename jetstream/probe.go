package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// probeType is the type of what the self-test stores. It stands beside all chains and nobody consumes it.
const probeType = events.TypePrefix + "probe.sent.v1"

// gateService also writes uses of grants.
const gateService = "approval"

// SelfTest proves, when a service starts, that the server enforces guards on what the service appends: of two facts
// that must each be the first of a chain, the second is refused. A guard over names that the server does not store
// would let both pass, silently. It leaves one message of about 200 bytes in the log, until it ages out.
func (c *Conn) SelfTest(ctx context.Context, service string) error {
	p := c.ns.Probe(service, events.NewID(time.Now()))
	if err := c.proveGuard(ctx, service, p.Ingest(), p.Subject()); err != nil {
		return err
	}
	if service != gateService {
		return nil
	}
	ingest, stored := c.ns.GrantProbe(events.NewID(time.Now()))
	return c.proveGuard(ctx, service, ingest, stored)
}

func (c *Conn) proveGuard(ctx context.Context, service, ingest, stored string) error {
	err := c.publishProbe(ctx, service, ingest, stored, 0)
	if errors.Is(err, ErrConflict) {
		err = nil // an earlier try of this very probe, whose ack was lost
	}
	if err != nil {
		return fmt.Errorf("self-test on %s: %w", stored, err)
	}
	switch err := c.publishProbe(ctx, service, ingest, stored, 0); {
	case err == nil:
		return fmt.Errorf("self-test on %s: the server stored two facts where one is allowed: the stream is not as "+
			"provisioned", stored)
	case !errors.Is(err, ErrConflict):
		return fmt.Errorf("self-test on %s: %w", stored, err)
	}
	return nil
}

// Probe proves that the service may append, that the route to the stream is right and that it has a leader: an append
// under a guard that cannot be met is refused for that reason. Nothing is stored.
func (c *Conn) Probe(ctx context.Context, service string) error {
	p := c.ns.Probe(service, "ready")
	switch err := c.publishProbe(ctx, service, p.Ingest(), p.Subject(), events.Never(p).Seq()); {
	case errors.Is(err, ErrConflict):
		return nil
	case err == nil:
		return fmt.Errorf("probe on %s: the server does not enforce guards", p.Subject())
	default:
		return fmt.Errorf("probe on %s: %w", p.Subject(), err)
	}
}

// publishProbe publishes under a guard, again while nothing is decided.
func (c *Conn) publishProbe(ctx context.Context, service, ingest, stored string, after uint64) error {
	now := time.Now()
	e := events.Event{
		ID: events.NewID(now), Type: probeType, Source: "/weir/" + string(c.ns) + "/" + service,
		Subject: events.TokenProbe, Time: now,
	}
	msg, err := c.eventMsg(ingest, e)
	if err != nil {
		return err
	}
	guard(msg, stored, after)
	return c.persist(ctx, func(ctx context.Context) error { return c.tryProbe(ctx, msg) })
}

func (c *Conn) tryProbe(ctx context.Context, msg *nats.Msg) error {
	_, err := c.publishMsg(ctx, msg)
	if errors.Is(err, errBusy) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

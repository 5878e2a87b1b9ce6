package jetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// grantMargin is how long a standing approval stays in the bucket after it has expired. Until then nothing can put it
// there again, as whoever is late with what brings it would; after that it is of no use, by whoever's clock.
const grantMargin = time.Minute

// StoredGrant is a standing approval as the bucket holds it.
type StoredGrant struct {
	events.Grant

	rev     uint64
	subject string
	payload []byte
	sig     events.Signature
}

// Genuine checks that one of the keys has signed what the bucket holds. The right to write there is the gate's alone, but
// replies that the server itself sends pass every right, so who acts on a grant asks this first.
func (g StoredGrant) Genuine(keys events.Keys) error {
	return keys.Verify(events.DomainGrant, g.subject, g.payload, g.sig)
}

// CreateGrant stores a standing approval, signed, where nothing stands yet, and forgets it by itself when it is over.
// Storing the same one again is no error and changes nothing: what stands there may have been revoked since, and stays
// so. [ErrConflict] comes with what stands there instead; when that was deleted by hand, with the zero grant.
func (c *Conn) CreateGrant(ctx context.Context, g events.Grant, key events.Key) (StoredGrant, error) {
	stored, err := c.swapGrant(ctx, g, key, 0, g.GrantedAt)
	if errors.Is(err, ErrConflict) && stored.Same(g) {
		return stored, nil
	}
	if err != nil {
		return stored, fmt.Errorf("create grant %s: %w", g.ID, err)
	}
	return stored, nil
}

// RevokeGrant puts the revocation of a grant in its place, if the grant is still as it was read. [ErrConflict] comes with
// what stands there now.
func (c *Conn) RevokeGrant(ctx context.Context, g StoredGrant, r events.Revocation, key events.Key) (StoredGrant, error) {
	revoked := g.Grant
	revoked.Revoked = &r
	stored, err := c.swapGrant(ctx, revoked, key, g.rev, r.At)
	if err != nil {
		return stored, fmt.Errorf("revoke grant %s: %w", g.ID, err)
	}
	return stored, nil
}

// swapGrant stores a grant over the revision prev. What is read after a conflict may be our own, when a reply was lost.
// The server forgets it some time after the grant is over: at is a moment of the server's clock that has passed, so no
// clock of ours can make that too early.
func (c *Conn) swapGrant(ctx context.Context, g events.Grant, key events.Key, prev uint64, at time.Time) (StoredGrant, error) {
	b := c.bucket(events.BucketGrants)
	value, err := events.Marshal(g)
	if err != nil {
		return StoredGrant{}, err
	}
	msg := nats.NewMsg(b.prefix + g.Key())
	msg.Data = value
	sig := events.Sign(key, events.DomainGrant, msg.Subject, value)
	msg.Header[events.HeaderKey], msg.Header[events.HeaderSig] = []string{sig.Key}, []string{sig.Sig}
	msg.Header.Set(headerTTL, max(g.ExpiresAt.Sub(at)+grantMargin, grantMargin).Round(time.Second).String())
	rev, err := b.swapMsg(ctx, msg, prev)
	if !errors.Is(err, ErrConflict) {
		return StoredGrant{Grant: g, rev: rev, subject: msg.Subject, payload: value, sig: sig}, err
	}
	e, readErr := b.changed(ctx, g.Key(), prev)
	switch {
	case errors.Is(readErr, ErrNotFound):
		return StoredGrant{}, err
	case readErr != nil:
		return StoredGrant{}, readErr
	}
	now, readErr := b.grant(g.Key(), e)
	switch {
	case readErr != nil:
		return StoredGrant{}, readErr
	case bytes.Equal(now.payload, value) && now.sig == sig:
		return now, nil
	}
	return now, err
}

// grant reads an entry of the bucket.
func (b bucket) grant(key string, e entry) (StoredGrant, error) {
	g := StoredGrant{rev: e.rev, subject: b.prefix + key, payload: e.value}
	g.sig = events.Signature{Key: firstValue(e.header, events.HeaderKey), Sig: firstValue(e.header, events.HeaderSig)}
	if err := decodeExact(e.value, &g.Grant); err != nil {
		return g, fmt.Errorf("grant %s: %w", key, err)
	}
	return g, nil
}

func firstValue(h nats.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// Grants reads the standing approvals that a filter chooses from the leader, in the order of their keys: those that were
// revoked and those that are over, too, while the bucket holds them. One that cannot be read, is of a later release or
// does not belong under its key is left out, so it is in nobody's way and releases nothing.
func (c *Conn) Grants(ctx context.Context, f events.GrantFilter) ([]StoredGrant, error) {
	b := c.bucket(events.BucketGrants)
	keys, err := b.keys(ctx, f.Keys())
	if err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	read := make([]*StoredGrant, len(keys))
	err = inParallel(len(keys), listAtOnce, func(i int) error {
		e, err := b.get(ctx, keys[i])
		if errors.Is(err, ErrNotFound) { // gone since it was listed
			return nil
		}
		if err != nil {
			return err
		}
		g, err := b.grant(keys[i], e)
		if err != nil || g.V > events.GrantVersion || g.Key() != keys[i] {
			c.log.WarnContext(ctx, "a grant cannot be used", "key", keys[i], "error", err)
			return nil
		}
		read[i] = &g
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	all := make([]StoredGrant, 0, len(read))
	for _, g := range read {
		if g != nil {
			all = append(all, *g)
		}
	}
	return all, nil
}

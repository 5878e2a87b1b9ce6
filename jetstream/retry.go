package jetstream

import (
	"context"
	"math/rand/v2"
	"time"
)

// spacing is a wait that doubles from try to try, with jitter, so that those who collided do not collide again.
type spacing struct{ next, longest time.Duration }

var (
	// contention is for appends that stand in each other's way. Measured: one retry settles most, five all.
	contention = spacing{100 * time.Microsecond, 6400 * time.Microsecond}
	// outage is for a server that does not answer: an election takes seconds.
	outage = spacing{10 * time.Millisecond, time.Second}
)

// wait returns early, with the context's error, when the context ends.
func (p *spacing) wait(ctx context.Context) error {
	d := p.next/2 + rand.N(p.next/2+1) //nolint:gosec // jitter needs no secrecy
	p.next = min(2*p.next, p.longest)
	return pause(ctx, d)
}

// pause waits for d or until ctx ends, whose error it returns.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

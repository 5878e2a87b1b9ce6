package jetstream

import "time"

// Kill ends the connection as a crash does: nothing is handed over.
func (c *Conn) Kill() { c.nc.Close() }

// LoseLive lets live messages of chunks get lost, for feeds that begin after it.
func (c *Conn) LoseLive(lose func(seq uint64) bool) {
	c.parts.feeds.mu.Lock()
	defer c.parts.feeds.mu.Unlock()
	c.parts.feeds.lose = lose
}

// Feeds is how many runs the connection follows.
func (c *Conn) Feeds() int {
	c.parts.feeds.mu.Lock()
	defer c.parts.feeds.mu.Unlock()
	return len(c.parts.feeds.by)
}

// Subscriptions is how many subscriptions the connection has.
func (c *Conn) Subscriptions() int { return c.nc.NumSubscriptions() }

// Sent is how many messages the connection has sent.
func (c *Conn) Sent() uint64 { return c.nc.Stats().OutMsgs }

// Saw makes the connection know the log as far as a delivery would.
func (c *Conn) Saw(seq uint64, stored time.Time) { c.parts.seen.raise(seq, stored) }

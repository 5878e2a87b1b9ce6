package client

import (
	"context"

	"github.com/weirkeeper/weir/events"
)

// Lag says how far behind the services are. It needs the scope admin.
func (c *Client) Lag(ctx context.Context) (*events.LagReport, error) {
	var r events.LagReport
	return &r, c.administer(ctx, events.AdminLag, struct{}{}, &r)
}

// Dead lists what was given up, oldest first, in parts: what follows has the Next of the part before as After, until a part
// is empty. It needs the scope admin.
func (c *Client) Dead(ctx context.Context, q events.DeadQuery) (*events.DeadReport, error) {
	var r events.DeadReport
	return &r, c.administer(ctx, events.AdminDead, q, &r)
}

func (c *Client) administer(ctx context.Context, verb string, request, answer any) error {
	if c.cfg.Principal == "" {
		return invalid("a principal is missing: Config.Principal")
	}
	ctx, cancel := context.WithTimeout(ctx, gateTime)
	defer cancel()
	return gateError(c.conn.AskFor(ctx, c.ns.AdminSubject(c.cfg.Principal, verb), request, answer))
}

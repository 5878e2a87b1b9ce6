package jetstream

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// Observe tells the observers of a tool's calls of a moment, for who listens now: nothing is stored.
func (c *Conn) Observe(_ context.Context, o events.CallObserved) error {
	body, err := events.Marshal(o)
	msg := &nats.Msg{Subject: c.ns.Hook(o.ToolID, o.Event), Data: body}
	if err == nil {
		err = c.checkSize(msg)
	}
	if err == nil {
		err = mapError(c.nc.PublishMsg(msg))
	}
	if err != nil {
		return fmt.Errorf("tell observers of %s: %w", o.ToolCallID, err)
	}
	return nil
}

// HearObserved calls f with what the observers of a tool's calls are told from now on, until stop is called or ctx ends, one
// after the other in the order in which it came. Of the connections of one group one gets each.
func (c *Conn) HearObserved(ctx context.Context, tool, group string, f func(events.CallObserved)) (stop func(), err error) {
	return c.listenIn(ctx, c.ns.Hooks(tool), group, func(msg *nats.Msg) {
		var o events.CallObserved
		if events.CheckJSON(msg.Data) == nil && json.Unmarshal(msg.Data, &o) == nil && c.ns.Hook(tool, o.Event) == msg.Subject {
			f(o)
		}
	})
}

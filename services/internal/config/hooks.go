package config

import (
	"github.com/weirkeeper/weir/events"
)

// hooks reads what is asked before each call of an agent. How its fields go together, [events.Hooks.Check] says.
func (o object) hooks() events.Hooks {
	if !o.has("hooks") {
		return nil
	}
	all := events.Hooks{}
	for _, p := range o.r.pairs(o.fields["hooks"], o.sub("hooks")) {
		h := o.r.object(p.value, join(o.sub("hooks"), p.name), "service", "failMode", "timeout", "when", "reason", "inherit")
		hook := events.Hook{
			Service: h.text("service"), FailMode: h.choice("failMode", events.FailClosed, events.FailOpen),
			Timeout: events.Duration(h.duration("timeout")), When: h.code("when"), Reason: h.text("reason"), Inherit: h.on("inherit"),
		}
		if hook.When != "" {
			h.compile("when", hook.When)
		}
		all[p.name] = hook
	}
	return all
}

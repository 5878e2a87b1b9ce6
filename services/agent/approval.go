package agent

import (
	"strings"

	"github.com/weirkeeper/weir/events"
)

// Always holds every call until people have approved it.
func Always() *events.Approval { return &events.Approval{Always: true} }

// Never holds no call on the tool's own account. A run, an agent or an operator's rule may hold it all the same.
func Never() *events.Approval { return &events.Approval{} }

// When holds the calls for which a CEL expression over tool, args, agent, run and context is true. It is data, so it
// holds in every process. An expression that cannot be evaluated holds the call, and so does an empty one.
func When(expr string) *events.Approval {
	if strings.TrimSpace(expr) == "" {
		return Always()
	}
	return &events.Approval{When: expr}
}

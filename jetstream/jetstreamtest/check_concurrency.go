package jetstreamtest

import (
	"cmp"
	"maps"
	"slices"

	"github.com/weirkeeper/weir/events"
)

// checkConcurrency demands that no run executes more calls at once than its request allows, by the order in which the log holds
// releases, and what ends or suspends them (B3.8). What an agent allows is not in the log.
func (l *history) checkConcurrency() {
	for _, run := range slices.Sorted(maps.Keys(l.main)) {
		first := l.main[run][0]
		if first.Place.Kind != events.KindStart {
			continue
		}
		bound := int(data[events.RunStarted](l, first).Request.ToolCallConcurrency)
		if bound == 0 {
			continue
		}
		l.report["start:bounded"]++
		var facts []events.Event
		for id, chain := range l.calls {
			if call, err := events.ParseCallID(id); err == nil && call.Run == run {
				facts = append(facts, chain...)
			}
		}
		slices.SortFunc(facts, func(a, b events.Event) int { return cmp.Compare(a.Seq, b.Seq) })
		executing := map[string]bool{}
		for _, f := range facts {
			switch f.Place.Kind {
			case events.KindGo, events.KindClaim:
				executing[f.Place.Call] = true
			default:
				delete(executing, f.Place.Call)
			}
			if len(executing) > bound {
				l.fail("B3.8", "run %s executes %d calls at seq %d, and may execute %d", run, len(executing), f.Seq, bound)
			}
		}
	}
}

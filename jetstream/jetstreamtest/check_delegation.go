package jetstreamtest

import (
	"maps"
	"slices"

	"github.com/weirkeeper/weir/events"
)

// checkDelegations checks every call that was delegated and every run that came of one: a run below another begins once its call
// is released to planners, of the same root and for the same requester, and the call has its result after that run has ended.
func (l *history) checkDelegations() {
	for _, run := range slices.Sorted(maps.Keys(l.main)) {
		if call, delegated := events.ParentCall(run); delegated {
			l.checkChild(run, call)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(l.calls)) {
		l.checkDelegated(id)
	}
}

// checkChild checks the first fact of a run below another.
func (l *history) checkChild(run string, call events.CallID) {
	first := l.main[run][0]
	release := slices.IndexFunc(l.calls[call.String()], func(f events.Event) bool { return f.Place.Delegated() })
	if release < 0 || l.calls[call.String()][release].Seq > first.Seq {
		l.fail("B12", "run %s begins with %s before its call is delegated", run, first.Place.Kind)
		return
	}
	if first.Place.Kind != events.KindStart {
		l.report["child:never"]++
		return
	}
	l.report["child:started"]++
	d, parent := data[events.RunStarted](l, first), l.main[call.Run]
	if len(parent) == 0 || parent[0].Place.Kind != events.KindStart {
		return // aged out
	}
	above := data[events.RunStarted](l, parent[0])
	if d.RootRunID != above.RootRunID || d.Requester != above.Requester || len(d.Path) != len(above.Path)+1 ||
		!slices.Equal(d.Path[:len(above.Path)], above.Path) || d.Path[len(above.Path)].RunID != run {
		l.fail("B12", "run %s of %s below %v is not of %s of %s below %v", run, d.Requester, d.Path, call.Run, above.Requester, above.Path)
	}
}

// checkDelegated checks the result of a call that was delegated.
func (l *history) checkDelegated(id string) {
	if !slices.ContainsFunc(l.calls[id], func(f events.Event) bool { return f.Place.Delegated() }) {
		return
	}
	result, ok := l.result(id)
	if !ok {
		return
	}
	child := l.main[id]
	if len(child) == 0 || child[len(child)-1].Place.Kind != events.KindEnd {
		l.fail("B12", "the delegated call %s has a result, and its run has no end", id)
		return
	}
	end := child[len(child)-1]
	if end.Seq > result.Seq {
		l.fail("B12", "the delegated call %s has its result before its run has ended", id)
	}
	f, e := data[events.CallFinished](l, result), data[events.RunEnded](l, end)
	if (f.Outcome == events.OutcomeOK) != (e.Outcome == events.RunCompleted) {
		l.fail("B12", "the delegated call %s ended as %s, and its run as %s", id, f.Outcome, e.Outcome)
	}
	l.report["delegated:"+string(f.Outcome)]++
}

// ended reports whether a run has an end.
func (l *history) ended(run string) bool {
	chain := l.main[run]
	return len(chain) > 0 && chain[len(chain)-1].Place.Kind == events.KindEnd
}

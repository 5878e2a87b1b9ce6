package jetstreamtest

import (
	"fmt"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// VerifyThreads says what of threads does not agree with the log: an entry that is there twice, is of another thread than its
// run, comes of no run, of a step that is not there, or with a call that has no result in it; and, once all is settled, an
// entry that is missing. Runs of which the log shows no start are not looked at, but for the form of their entries.
func VerifyThreads(facts []events.Event, entries []jetstream.ThreadEntry, settled bool) []string {
	t := threads{runs: map[string]*threadOfRun{}}
	for _, f := range facts {
		t.read(f)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		key := fmt.Sprintf("%s|%s|%s|%d|%s|%v", e.ResourceID, e.ThreadID, e.RunID, e.Index, e.Call, e.Closing)
		if seen[key] {
			t.breach("the thread %s holds entry %d of %s twice", e.ThreadID, e.Index, e.RunID)
		}
		seen[key] = true
		t.entry(e)
	}
	for run, r := range t.runs {
		if r.keeps && settled {
			t.complete(run, r)
		}
	}
	return t.broken
}

// threads is what the log says of the runs that write into threads.
type threads struct {
	runs   map[string]*threadOfRun
	broken []string
}

type threadOfRun struct {
	resource, thread string
	keeps            bool
	inbox            uint64
	steps            map[int]bool // that have calls; whether they are in the thread
	last             int
	ended            bool
	first, closed    bool
	erased           bool
}

func (t *threads) breach(format string, args ...any) {
	t.broken = append(t.broken, "I14: "+fmt.Sprintf(format, args...))
}

func (t *threads) read(f events.Event) {
	switch f.Place.Kind {
	case events.KindStart:
		if d, err := events.Data[events.RunStarted](f); err == nil {
			t.runs[d.RunID] = &threadOfRun{
				resource: d.Request.ResourceID, thread: d.Request.ThreadID, keeps: d.Recalled != nil, inbox: d.InboxSeq, steps: map[int]bool{},
			}
		}
	case events.KindStep:
		if d, err := events.Data[events.StepFinished](f); err == nil && t.runs[d.RunID] != nil {
			t.runs[d.RunID].last = d.Step
			if len(d.Calls) > 0 {
				t.runs[d.RunID].steps[d.Step] = false
			}
		}
	case events.KindEnd:
		if r := t.runs[f.Place.Run]; r != nil {
			r.ended = true
		}
	default:
	}
}

func (t *threads) entry(e jetstream.ThreadEntry) {
	t.paired(e)
	r := t.runs[e.RunID]
	if r == nil {
		return
	}
	if !r.keeps || r.resource != e.ResourceID || r.thread != e.ThreadID || r.inbox != e.InboxSeq {
		t.breach("run %s of thread %q of %q has an entry in thread %q of %q", e.RunID, r.thread, r.resource, e.ThreadID, e.ResourceID)
		return
	}
	r.erased = r.erased || e.Erased
	switch {
	case e.Closing:
		r.closed = true
		if !r.ended && !e.Erased {
			t.breach("the thread %s says that %s has ended, which it has not", e.ThreadID, e.RunID)
		}
	case e.Call != "":
	case e.Index == 0:
		r.first = true
	case e.Index > r.last:
		t.breach("the thread %s holds step %d of %s, which has %d", e.ThreadID, e.Index, e.RunID, r.last)
	default:
		r.steps[e.Index] = true
	}
}

// paired looks whether each call of an entry has its result in it.
func (t *threads) paired(e jetstream.ThreadEntry) {
	if e.Index == 0 || e.Call != "" {
		return // the words of a sender, or a result by itself
	}
	open := map[string]bool{}
	for _, m := range e.Messages {
		for _, p := range m.Parts {
			switch p.Type {
			case events.PartToolCall:
				open[p.ToolCallID] = true
			case events.PartToolResult:
				delete(open, p.ToolCallID)
			}
		}
	}
	for id := range open {
		t.breach("the thread %s holds the call %s without its result", e.ThreadID, id)
	}
}

// complete looks whether an ended run has written all that it owes.
func (t *threads) complete(run string, r *threadOfRun) {
	if !r.ended || r.erased {
		return
	}
	if !r.first || !r.closed {
		t.breach("run %s has ended, and its thread lacks what it was asked (%v) or how it ended (%v)", run, !r.first, !r.closed)
	}
	for n, there := range r.steps {
		if !there {
			t.breach("run %s has ended, and its thread lacks step %d", run, n)
		}
	}
}

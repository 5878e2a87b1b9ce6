package jetstreamtest

import (
	"bytes"

	"github.com/weirkeeper/weir/events"
)

// foundAnswer is an answer that a model has found in the message of a run.
type foundAnswer struct {
	events.AutoAnswer
	run string
	seq uint64 // of the step that holds it
}

// checkAutoResumes holds what was resumed automatically against what models had found: every such answer is one that a run
// had in its first step before, and every run that ended for it names runs that its answers let go on.
func (l *history) checkAutoResumes() {
	found, counted := l.foundAnswers(), map[string]uint64{}
	for id, chain := range l.calls {
		for _, f := range chain {
			if f.Place.Kind != events.KindAnswer || f.Carried {
				continue
			}
			d := data[events.CallAnswered](l, f)
			if d.AuthType != events.AuthAuto {
				continue
			}
			l.report["answer:"+events.AuthAuto]++
			a := found[d.EventID]
			if a.ToolCallID != id || a.Round != d.Round || a.seq > f.Seq || d.Decision != events.ResumeD ||
				d.Resume == nil || d.DataRef == "" && !bytes.Equal(d.Resume.Data, a.ResumeData) || d.Principal == "" {
				l.fail("B11.4", "call %s: nothing bears out the automatic answer %s", id, d.EventID)
			}
			if counted[d.EventID] != 0 {
				l.fail("B11.5", "call %s: answer %s counted twice", id, d.EventID)
			}
			counted[d.EventID] = f.Seq
		}
	}
	l.checkResumed(found, counted)
}

// foundAnswers are the answers of all runs, by the id of the decision that each is due to become.
func (l *history) foundAnswers() map[string]foundAnswer {
	found := map[string]foundAnswer{}
	for run, chain := range l.main {
		for _, f := range chain {
			if f.Place.Kind != events.KindStep {
				continue
			}
			d := data[events.StepFinished](l, f)
			if d.AutoResume == nil {
				continue
			}
			if f.Place.N != 1 || len(d.Calls) > 0 {
				l.fail("B11.4", "run %s looks for answers in step %d with %d calls", run, f.Place.N, len(d.Calls))
			}
			for _, a := range d.AutoResume.Answers {
				found[events.AutoResumeID(run, a.ToolCallID, a.Round)] = foundAnswer{a, run, f.Seq}
			}
		}
	}
	return found
}

// checkResumed demands that a run that ended as resumed names runs that its answers let go on, by their roots, and no other.
func (l *history) checkResumed(found map[string]foundAnswer, counted map[string]uint64) {
	resumed := map[[2]string]uint64{}
	for id, a := range found {
		if call, err := events.ParseCallID(a.ToolCallID); err == nil && counted[id] > 0 {
			resumed[[2]string{a.run, events.RootOf(call.Run)}] = counted[id]
		}
	}
	for run, chain := range l.main {
		end := chain[len(chain)-1]
		if end.Place.Kind != events.KindEnd {
			continue
		}
		d := data[events.RunEnded](l, end)
		if len(d.Resumes) > 0 {
			l.report["run:resumed"]++
		}
		for _, other := range d.Resumes {
			if at := resumed[[2]string{run, other}]; at == 0 || at > end.Seq {
				l.fail("B11.5", "run %s ended for %s, which it has not resumed", run, other)
			}
		}
	}
}

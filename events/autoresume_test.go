package events

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The turn that only looks for answers costs tokens and a step of the log, and is nothing of the conversation.
func TestB11_6TheQuestionIsNoPartOfTheConversation(t *testing.T) {
	t.Parallel()
	s := newStory(t, "r2")
	before := fold(t, s.log)
	s.step++
	found := &AutoResume{Asked: []string{"r1=1-1"}, Answers: []AutoAnswer{{
		ToolCallID: "r1=1-1", Round: 1, Fingerprint: "sha256:1", ResumeData: json.RawMessage("null"),
	}}}
	s.add(ns.Step("r2", 1), StepFinished{
		RunID: "r2", Step: 1, Attempt: 1, MessageID: "m1", Message: Message{Role: RoleAssistant, Parts: []Part{}},
		Calls: []CallPlanned{}, Usage: sampleUsage, FinishReason: "stop", Model: "x/y", AutoResume: found,
	})
	st := fold(t, s.log)
	if st.Step != 1 || st.Turns() != 0 || !st.Settled() || st.Counters.Usage != sampleUsage {
		t.Errorf("step %d, %d turns, %+v", st.Step, st.Turns(), st.Counters)
	}
	if d := cmp.Diff(before.Transcript(), st.Transcript()); d != "" {
		t.Errorf("the conversation has changed:\n%s", d)
	}
	if d := cmp.Diff(found, st.AutoResume); d != "" {
		t.Error(d)
	}
	s.turn(1)
	if st = fold(t, s.log); st.Step != 2 || st.Turns() != 1 {
		t.Errorf("after the first turn: step %d, %d turns", st.Step, st.Turns())
	}
}

// A decision that is sent again has the same id; another run, call or round has another.
func TestAutoResumeID(t *testing.T) {
	t.Parallel()
	const want = "9688ac42-3511-8f05-a064-18d5cbcdd016"
	seen := map[string]bool{}
	for _, id := range []string{
		AutoResumeID("r2", "r1=1-1", 1), AutoResumeID("r2", "r1=1-1", 2), AutoResumeID("r2", "r1=1-2", 1),
		AutoResumeID("r3", "r1=1-1", 1), AutoResumeID("r2r", "1=1-1", 1),
	} {
		if seen[id] || len(id) != 36 || id[14] != '8' {
			t.Errorf("id %q", id)
		}
		seen[id] = true
	}
	if got := AutoResumeID("r2", "r1=1-1", 1); got != want {
		t.Errorf("id %s, want %s: decisions on their way would count as others", got, want)
	}
}

// The request's word counts, else the agent's.
func TestB11_1OptionOfRequestAndAgent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		request *bool
		agent   bool
		want    bool
	}{{nil, false, false}, {nil, true, true}, {new(false), true, false}, {new(true), false, true}} {
		o := Options{AutoResumeSuspendedTools: c.request}
		if got := o.AutoResumes(AgentDef{AutoResumeSuspendedTools: c.agent}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// What names the runs that go on in place of another stands in its end and in its last chunk.
func TestB11_5EndNamesWhatGoesOn(t *testing.T) {
	t.Parallel()
	o := &Origin{Namespace: ns, Service: "planner"}
	e, err := o.Fact(ns.End("r2"), RunEnded{RunID: "r2", Outcome: RunCompleted, FinishReason: "resumed", Resumes: []string{"r1"}}, Event{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := Data[RunEnded](e)
	if err != nil {
		t.Fatal(err)
	}
	chunks := EndChunks(d, e.ID)
	var p FinishPayload
	if len(chunks) != 1 || json.Unmarshal(chunks[0].Payload, &p) != nil {
		t.Fatalf("chunks %+v", chunks)
	}
	if p.StepResult.Reason != "resumed" || len(p.Metadata.Resumes) != 1 || p.Metadata.Resumes[0] != "r1" {
		t.Errorf("payload %+v", p)
	}
}

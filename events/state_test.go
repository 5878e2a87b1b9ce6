package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// story builds the facts of a run, as the log would hold them.
type story struct {
	t    *testing.T
	o    *Origin
	run  string
	seq  uint64
	step int
	log  []Event
}

func newStory(t *testing.T, run string) *story {
	t.Helper()
	s := &story{t: t, o: &Origin{Namespace: ns, Service: "planner", Now: func() time.Time { return sampleTime }}, run: run}
	s.add(ns.Start(run), RunStarted{
		RunID: run, RootRunID: rootOf(run), Path: samplePath, AgentID: "support",
		Requester: "bob", Request: RunRequested{
			AgentID: "support", Messages: Prompt{TextMessage(RoleUser, "hello")},
			Limits: &Limits{Steps: 9}, RequestContext: json.RawMessage(`{"tenant":"acme"}`),
		}, Definitions: sampleDefs,
	})
	return s
}

func (s *story) add(p Place, data any) Event {
	s.t.Helper()
	e, err := s.o.Fact(p, data, Event{})
	if err != nil {
		s.t.Fatal(err)
	}
	e, err = Decode(e.Payload) // as a reader has it
	if err != nil {
		s.t.Fatal(err)
	}
	s.seq += 3
	e.Place, e.Seq, e.Stored = p, s.seq, sampleTime.Add(time.Duration(s.seq)*time.Second)
	s.log = append(s.log, e)
	return e
}

func (s *story) turn(calls int) Event {
	s.step++
	d := StepFinished{
		RunID: s.run, Step: s.step, Attempt: 1, MessageID: fmt.Sprintf("m%d", s.step),
		Message: TextMessage(RoleAssistant, "thinking"), Usage: sampleUsage, FinishReason: "tool-calls", Model: "x/y",
	}
	for i := range calls {
		d.Calls = append(d.Calls, CallPlanned{
			ToolCallID: s.call(i + 1).String(), ToolName: "lookup_order",
			Args: fmt.Sprintf(`{"n":%d}`, s.step*10+i),
		})
	}
	return s.add(ns.Step(s.run, s.step), d)
}

func (s *story) call(i int) CallID { return CallID{Run: s.run, Step: s.step, Index: i} }

func (s *story) result(i int, outcome Outcome) Event {
	return s.add(ns.Call(s.call(i), KindResult), CallFinished{
		ToolCallID: s.call(i).String(), RunID: s.run,
		Outcome: outcome, Started: true, Result: json.RawMessage(fmt.Sprintf(`{"i":%d,"big":9007199254740993}`, i)),
		Active: Duration(time.Duration(i) * time.Second),
	})
}

func fold(t *testing.T, log []Event) *State {
	t.Helper()
	st, err := NewState(log[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range log[1:] {
		if err := st.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

func TestStateFold(t *testing.T) {
	t.Parallel()
	s := newStory(t, "r1")
	s.turn(2)
	s.add(ns.Call(s.call(1), KindClaim), CallClaimed{
		ToolCallID: s.call(1).String(), RunID: "r1", Attempt: 1, Worker: "w",
		LeaseUntil: sampleTime,
	})
	second := s.result(2, OutcomeError) // out of order
	st := fold(t, s.log)
	if st.Settled() || len(st.Open()) != 1 || st.Open()[0] != "1-1" || st.LastResult() != second.Seq {
		t.Errorf("half settled: %+v", st.Open())
	}
	first := s.result(1, OutcomeOK)
	st = fold(t, s.log)
	if !st.Settled() || st.LastResult() != first.Seq || !st.SettledAt.Equal(first.Stored) {
		t.Errorf("settled %t, last result %d, want %d", st.Settled(), st.LastResult(), first.Seq)
	}
	transcript := st.Transcript()
	results := transcript[len(transcript)-1]
	if results.Role != RoleTool || len(results.Parts) != 2 || results.Parts[0].ToolCallID != "r1=1-1" || results.Parts[0].IsError ||
		!results.Parts[1].IsError {
		t.Errorf("results go out in call order: %+v", results)
	}
	if len(st.Messages) != 2 {
		t.Error("reading the transcript changed the state")
	}
	s.turn(0)
	st = fold(t, s.log)
	if st.Step != 2 || len(st.Calls) != 0 || st.Counters.Usage.TotalTokens != 2*sampleUsage.TotalTokens ||
		st.Counters.Failures != 1 || st.Counters.Active != Duration(2*time.Second) || !st.Settled() {
		t.Errorf("after the second turn: step %d, %+v", st.Step, st.Counters)
	}
	s.add(ns.End("r1"), RunEnded{RunID: "r1", Outcome: RunCompleted, FinishReason: "stop"})
	if st = fold(t, s.log); st.Ended != RunCompleted {
		t.Errorf("ended %q", st.Ended)
	}
}

func TestStateRefusesWhatDoesNotFollow(t *testing.T) {
	t.Parallel()
	s := newStory(t, "r1")
	start := s.log[0]
	one := s.turn(2)
	r1 := s.result(1, OutcomeOK)
	r2 := s.result(2, OutcomeOK)
	two := s.turn(1)
	if _, err := NewState(one); !errors.Is(err, ErrOutOfOrder) {
		t.Errorf("begins with a step: %v", err)
	}
	for name, c := range map[string]struct {
		log  []Event
		last Event
	}{
		"a step twice":             {[]Event{start, one}, one},
		"a step left out":          {[]Event{start}, two},
		"a step before its result": {[]Event{start, one, r1}, two},
	} {
		if err := fold(t, c.log).Apply(c.last); !errors.Is(err, ErrOutOfOrder) {
			t.Errorf("%s: %v", name, err)
		}
	}
	child := newStory(t, "r1=1-1")
	child.turn(2)
	if err := fold(t, []Event{start, one}).Apply(child.result(1, OutcomeOK)); !errors.Is(err, ErrOutOfOrder) {
		t.Errorf("a result of a child's call with the same token: %v", err)
	}
	// Late and repeated results change nothing.
	want := fold(t, []Event{start, one, r1, r2, two})
	if d := cmp.Diff(want, fold(t, []Event{start, one, r1, r2, r1, r2, two, r1, r2})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(fold(t, []Event{start, one, r1, r2}), fold(t, []Event{start, one, r2, r1})); d != "" {
		t.Error(d)
	}
}

// A carry at any place, and a snapshot read back at any place, hold what the facts before it say.
func TestStateCarriesAndSnapshots(t *testing.T) {
	t.Parallel()
	outcomes := []Outcome{
		OutcomeOK, OutcomeError, OutcomeInvalid, OutcomeDeclined, OutcomeExpired, OutcomeResponded,
		OutcomeBlocked, OutcomeUnknown, OutcomeUnavailable,
	}
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		s := newStory(t, "r1")
		for range 1 + rnd.IntN(4) {
			calls := rnd.IntN(4)
			s.turn(calls)
			for _, i := range rnd.Perm(calls) {
				s.result(i+1, outcomes[rnd.IntN(len(outcomes))])
			}
		}
		want := fold(t, s.log)
		for at := 1; at < len(s.log); at++ {
			before := fold(t, s.log[:at])
			raw, err := Marshal(Snapshot{State: *before, SuspendedAt: sampleTime, Asks: []OpenAsk{}})
			if err != nil {
				t.Fatal(err)
			}
			var snap Snapshot
			if err := json.Unmarshal(raw, &snap); err != nil {
				t.Fatal(err)
			}
			goOn := func(st *State) {
				t.Helper()
				for _, e := range s.log[at:] {
					if err := st.Apply(e); err != nil {
						t.Fatal(err)
					}
				}
				got := *st
				got.MainSeq, got.Carries = want.MainSeq, want.Carries
				if d := cmp.Diff(want, &got); d != "" {
					t.Fatalf("seed %d, from fact %d on: %s", seed, at, d)
				}
			}
			goOn(&snap.State)
			carrier := &story{t: t, o: s.o, run: "r1", seq: s.log[at-1].Seq - 2}
			carry := carrier.add(ns.Carry("r1", 1), RunCarried{RunID: "r1", Step: before.Step, MainSeq: before.MainSeq, State: *before})
			st, err := NewState(carry)
			if err != nil {
				t.Fatal(err)
			}
			if st.MainSeq != carry.Seq || st.Carries != 1 {
				t.Errorf("the carry is not the head: %d, %d", st.MainSeq, st.Carries)
			}
			goOn(st)
		}
	}
}

func TestStateCloneIsApart(t *testing.T) {
	t.Parallel()
	s := newStory(t, "r1")
	s.turn(1)
	st := fold(t, s.log)
	c := st.Clone()
	if err := c.Apply(s.result(1, OutcomeOK)); err != nil {
		t.Fatal(err)
	}
	s.turn(0)
	if err := c.Apply(s.log[len(s.log)-1]); err != nil {
		t.Fatal(err)
	}
	if st.Settled() || st.Step != 1 || len(st.Messages) != 2 || st.Size() >= c.Size() {
		t.Errorf("the original changed: %+v", st)
	}
}

func TestStateCountsRepeats(t *testing.T) {
	t.Parallel()
	s := newStory(t, "r1")
	for range 3 {
		s.step++
		d := StepFinished{
			RunID: "r1", Step: s.step, Message: TextMessage(RoleAssistant, ""), FinishReason: "tool-calls",
			Calls: []CallPlanned{{ToolCallID: s.call(1).String(), ToolName: "t", Args: `{"same":1}`}},
		}
		s.add(ns.Step("r1", s.step), d)
		s.result(1, OutcomeUnavailable)
	}
	k := fold(t, s.log)
	if got := k.Counters.After(k.Calls); got.Repeats != 2 || got.Failures != 3 {
		t.Errorf("%+v", got)
	}
}

func TestStateCancelDue(t *testing.T) {
	t.Parallel()
	for cause, due := range map[CancelCause]bool{
		{RunID: "r1=1-1", End: RunCancelled}:  true,
		{RunID: "r1", End: RunFailed}:         true,
		{RunID: "r1=1-1=1-1"}:                 false,
		{RunID: "r1=1-2"}:                     false,
		{RunID: "r"}:                          false,
		{ToolCallID: "r1=1-1=1-1", By: "bob"}: false,
	} {
		s := newStory(t, "r1=1-1")
		s.turn(1)
		s.add(ns.Call(s.call(1), KindResult), CallFinished{
			ToolCallID: s.call(1).String(), RunID: s.run,
			Outcome: OutcomeCancelled, Cancel: &cause,
		})
		if got := fold(t, s.log).CancelDue(); (got != nil) != due {
			t.Errorf("%+v: %+v", cause, got)
		}
	}
}

func TestResultParts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		f     CallFinished
		want  string
		isErr bool
	}{
		{CallFinished{Outcome: OutcomeOK, Result: json.RawMessage(`1.0`)}, `{"type":"json","value":1.0}`, false},
		{CallFinished{Outcome: OutcomeOK}, `{"type":"json","value":null}`, false},
		{CallFinished{Outcome: OutcomeDeclined}, textDeclined, false},
		{CallFinished{Outcome: OutcomeDeclined, Reason: "no"}, `"no"`, false},
		{CallFinished{Outcome: OutcomeExpired}, textExpired, false},
		{CallFinished{Outcome: OutcomeCancelled}, textCancelled, true},
		{CallFinished{Outcome: OutcomeCancelled, Started: true}, textCut, true},
		{CallFinished{Outcome: OutcomeBlocked, Reason: "rule"}, "rule", true},
		{CallFinished{Outcome: OutcomeBlocked, Result: json.RawMessage(`{"a":1}`)}, `{"a":1}`, false},
		{CallFinished{Outcome: OutcomeError, Error: &ToolError{Message: "boom"}}, "boom", true},
		{CallFinished{Outcome: OutcomeUnknown}, "unknown", true},
	} {
		p := ResultPart(CallState{Planned: CallPlanned{ToolCallID: "r=1-1"}, Finished: &c.f})
		raw, err := Marshal(p.Output)
		if err != nil || !strings.Contains(string(raw), c.want) || p.IsError != c.isErr || p.ToolCallID != "r=1-1" {
			t.Errorf("%+v: %s, %v", c.f, raw, p.IsError)
		}
	}
}

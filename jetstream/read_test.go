package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

func TestReads(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	if _, err := c.Last(t.Context(), ns.MainOf("r")); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("last of an empty chain: %v", err)
	}
	e := fact(t, ns.Start("r"))
	e.Signature = events.Signature{Key: "UKEY", Sig: "c2ln"}
	want := stored(t, c, events.First(e.Place), e)
	got, err := c.Fact(t.Context(), e.Place)
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(got.Stored); age < 0 || age > time.Hour {
		t.Errorf("stored at %v", got.Stored)
	}
	got.Stored = want.Stored
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read another event than was appended:\n%s", diff)
	}
	step := stored(t, c, events.After(want), fact(t, ns.Step("r", 1)))
	places := []events.Place{ns.Step("r", 2), ns.Step("r", 1), ns.Start("r"), ns.End("r")}
	facts, err := c.Facts(t.Context(), places...)
	if err != nil || len(facts) != 4 || facts[0].ID != "" || facts[1].ID != step.ID || facts[2].ID != e.ID || facts[3].ID != "" {
		t.Errorf("facts %v, %v", facts, err)
	}
	if none, err := c.Facts(t.Context()); err != nil || len(none) != 0 {
		t.Errorf("no places: %v, %v", none, err)
	}
}

// Without a stream a fact is not absent: nothing is known of it.
func TestReadWithoutStream(t *testing.T) {
	t.Parallel()
	c := connect(t, jetstreamtest.StartServer(t), jetstream.Options{})
	_, err := c.Last(t.Context(), ns.MainOf("r"))
	if !errors.Is(err, jetstream.ErrUnavailable) || errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("read: %v, want ErrUnavailable", err)
	}
	p := ns.Start("r")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.Append(ctx, events.First(p), fact(t, p)); !errors.Is(err, jetstream.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("append: %v, want ErrUnavailable at once", err)
	}
}

// story writes the facts of a run with two settled steps of two calls each, of which the last call is still open.
type story struct {
	t    *testing.T
	c    *jetstream.Conn
	run  string
	last events.Event
	all  []events.Event // in the order of the log
}

func (s *story) main(p events.Place, data any) events.Event {
	s.t.Helper()
	g := events.First(p)
	if s.last.Seq != 0 {
		g = events.After(s.last)
	}
	s.last = s.append(g, factWith(s.t, p, data))
	return s.last
}

// append keeps what was stored as readers see it, with the server's time stamp.
func (s *story) append(g events.Guard, e events.Event) events.Event {
	s.t.Helper()
	stored(s.t, s.c, g, e)
	e, err := s.c.Fact(s.t.Context(), e.Place)
	if err != nil {
		s.t.Fatal(err)
	}
	s.all = append(s.all, e)
	return e
}

func (s *story) begin() {
	s.t.Helper()
	s.main(ns.Start(s.run), events.RunStarted{
		RunID: s.run, RootRunID: s.run, AgentID: "support", Requester: "bob",
		Path:    []events.PathEntry{{AgentID: "support", RunID: s.run}},
		Request: events.RunRequested{AgentID: "support"},
	})
}

func (s *story) step(n, calls int) {
	s.t.Helper()
	d := events.StepFinished{
		RunID: s.run, Step: n, Attempt: 1, MessageID: "m" + strconv.Itoa(n), FinishReason: "tool-calls",
		Usage: events.Usage{TotalTokens: 10}, Message: events.Message{Role: events.RoleAssistant},
	}
	for i := range calls {
		id := events.CallID{Run: s.run, Step: n, Index: i + 1}
		d.Calls = append(d.Calls, events.CallPlanned{ToolCallID: id.String(), ToolName: "lookup", Args: "{}"})
	}
	s.main(ns.Step(s.run, n), d)
}

func (s *story) result(n, i int) {
	s.t.Helper()
	id := events.CallID{Run: s.run, Step: n, Index: i}
	p := ns.Call(id, events.KindResult)
	e := factWith(s.t, p, events.CallFinished{
		ToolCallID: id.String(), RunID: s.run, Outcome: events.OutcomeOK,
		Result: []byte(fmt.Sprintf(`{"n":%d}`, n*10+i)),
	})
	s.append(events.First(p), e)
}

// folded is the state that the facts amount to when they are all there.
func (s *story) folded() *events.State {
	s.t.Helper()
	st, err := events.NewState(s.all[0])
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range s.all[1:] {
		if err := st.Apply(e); err != nil {
			s.t.Fatal(err)
		}
	}
	return st
}

// check reads the state at every point of a story.
func (s *story) check(what string) {
	s.t.Helper()
	got, head, err := s.c.RunState(s.t.Context(), s.run)
	if err != nil {
		s.t.Errorf("%s: %v", what, err)
		return
	}
	if head.Seq != s.last.Seq || head.ID != s.last.ID {
		s.t.Errorf("%s: head at %d, want %d", what, head.Seq, s.last.Seq)
	}
	if diff := cmp.Diff(s.folded(), got); diff != "" {
		s.t.Errorf("%s:\n%s", what, diff)
	}
}

func TestRunState(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	if _, _, err := c.RunState(t.Context(), "r"); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("state of an unknown run: %v", err)
	}
	s := &story{t: t, c: c, run: "r"}
	s.begin()
	s.check("started")
	s.step(1, 2)
	s.check("first step")
	s.result(1, 2)
	s.check("a call of two settled")
	s.result(1, 1)
	s.check("settled")
	s.step(2, 2)
	s.result(2, 1)
	s.check("second step")
	s.result(2, 2)
	s.step(3, 0)
	s.check("third step, without calls")
	s.main(ns.End("r"), events.RunEnded{RunID: "r", Outcome: events.RunCompleted, FinishReason: "stop"})
	s.check("ended")
}

// A carry stands for everything before it, whether that can still be read or not.
func TestRunStateFromCarry(t *testing.T) {
	t.Parallel()
	c, forget := aging(t)
	s := &story{t: t, c: c, run: "r"}
	s.begin()
	s.step(1, 2)
	s.result(1, 1)
	before := s.all
	state := s.folded()
	s.main(ns.Carry("r", 1), events.RunCarried{RunID: "r", Step: 1, MainSeq: state.MainSeq, State: *state})
	carry := s.last
	check := func(what string) {
		t.Helper()
		all := s.all
		s.all = s.all[len(before):]
		s.check(what)
		s.all = all
	}
	check("carried")
	s.result(1, 2)
	check("carried, then settled")
	s.step(2, 1)
	s.result(2, 1)
	got, _, err := c.RunState(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	got.Carries, got.MainSeq = 0, 0
	want := s.folded()
	want.Carries, want.MainSeq = 0, 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("from the start:\n%s", diff)
	}
	for _, e := range before {
		forget(e)
	}
	check("with everything before the carry gone")
	s.main(ns.End("r"), events.RunEnded{RunID: "r", Outcome: events.RunCompleted, FinishReason: "stop"})
	check("ended")
	forget(carry)
	if _, _, err := c.RunState(t.Context(), "r"); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("state of a run whose carry is gone: %v", err)
	}
}

// Nothing is concluded from a log in which somebody else has written.
// TestB10_7LargeCarry: a state that no message holds is carried as a blob, and read back whole.
func TestB10_7LargeCarry(t *testing.T) {
	t.Parallel()
	c, forget := aging(t)
	s := &story{t: t, c: c, run: "r"}
	s.begin()
	s.step(1, 2)
	s.result(1, 1)
	state := s.folded()
	for i := range 60 {
		state.Messages = append(state.Messages, events.TextMessage(events.RoleAssistant, strings.Repeat(fmt.Sprint(i%10), 50_000)))
	}
	want := state.Clone()
	d, err := c.ShrinkCarry(t.Context(), events.RunCarried{RunID: "r", Step: 1, MainSeq: state.MainSeq, State: *state})
	if err != nil || d.DataRef == "" || len(d.State.Messages) != 0 || len(state.Messages) != len(want.Messages) {
		t.Fatalf("%d messages left, %v", len(d.State.Messages), err)
	}
	if diff := cmp.Diff(want.Open(), d.State.Open()); diff != "" { // who ends the run needs to know these
		t.Error(diff)
	}
	s.main(ns.Carry("r", 1), d)
	carry := s.last
	if _, err := events.NewState(carry); err == nil {
		t.Error("a carry whose state is a blob is taken for a whole one")
	}
	check := func() {
		t.Helper()
		got, head, err := c.RunState(t.Context(), "r")
		if err != nil || head.Seq != carry.Seq {
			t.Fatal(err)
		}
		want.MainSeq, want.Carries = carry.Seq, 1
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%.2000s", diff)
		}
	}
	check()
	for _, e := range s.all[:len(s.all)-1] {
		forget(e)
	}
	check()
	small, err := c.ShrinkCarry(t.Context(), events.RunCarried{RunID: "r", State: *s.folded()})
	if err != nil || small.DataRef != "" || len(small.State.Messages) == 0 {
		t.Errorf("a small state: %+v, %v", small, err)
	}
}

func TestRunStateTampered(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, jetstream.Settings{})
	s := &story{t: t, c: c, run: "r"}
	s.begin()
	s.step(1, 1)
	msg := nats.NewMsg(ns.Call(call("r"), events.KindResult).Ingest())
	msg.Data = []byte("{}")
	if _, err := rawConn(t, srv).RequestMsgWithContext(t.Context(), msg); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.RunState(t.Context(), "r"); !errors.Is(err, jetstream.ErrTampered) {
		t.Errorf("state of a run with a foreign result: %v", err)
	}
}

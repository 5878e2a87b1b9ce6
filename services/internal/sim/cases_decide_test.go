package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
)

// TestCase_TGT_1 lets an approval of a call that was declined long ago meet the next one.
func TestCase_TGT_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`)), asks(callTo("pay", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		c1, c2 := b.call(run, 1, 1), b.call(run, 2, 1)
		b.send("alice", events.Decline, c1, nil)
		b.AwaitAsk(c2, moment)
		d := b.refusal(c1, b.send("carol", events.Approve, c1, nil))
		if d.Code != events.CodeAlreadyDecided || d.Answer == nil || d.Answer.Decision != events.Decline || d.Answer.Principal != "alice" {
			t.Errorf("the late approval is told %+v", d.Error)
		}
		equal(t, "the pending call", b.last(c2), events.KindAsk)
		equal(t, "executions", len(b.given("pay")), 0)
		b.send("alice", events.Decline, c2, nil)
		b.completed(run)
	})
}

// TestCase_TGT_3 resumes two suspended calls of one tool, the second first.
func TestCase_TGT_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{pauser("find", agent.ToolOptions{})},
			asks(callTo("find", `{"n":1}`), callTo("find", `{"n":2}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.send("alice", events.ResumeD, b.call(run, 1, 2), withData(`"two"`))
		b.result(b.call(run, 1, 2))
		time.Sleep(moment) // fake
		equal(t, "requests before the first is resumed", len(b.model.Requests()), 1)
		b.send("alice", events.ResumeD, b.call(run, 1, 1), withData(`"one"`))
		b.completed(run)
		equal(t, "results", b.told(), []string{`find json "one"`, `find json "two"`})
		equal(t, "requests", len(b.model.Requests()), 2)
	})
}

// TestCase_TGT_4 lists four held calls of one turn, each decided alone.
func TestCase_TGT_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`), callTo("pay", `{"n":3}`), callTo("pay", `{"n":4}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		var want []string
		for i := 1; i <= 4; i++ {
			b.AwaitAsk(b.call(run, 1, i), moment)
			want = append(want, fmt.Sprintf(`%s pay {"n":%d}`, b.call(run, 1, i), i))
		}
		for _, i := range []int{3, 1, 4, 2} {
			equal(t, "the list", b.open(), want)
			equal(t, "requests", len(b.model.Requests()), 1)
			call := b.call(run, 1, i)
			b.send("alice", events.Approve, call, nil)
			b.result(call)
			time.Sleep(time.Second) // fake: the entry follows
			want = slices.DeleteFunc(want, func(s string) bool { return strings.HasPrefix(s, call.String()+" ") })
		}
		b.completed(run)
		equal(t, "the list", len(b.open()), 0)
	})
}

// TestCase_TGT_5 sends the data of one suspended call to another: it is refused before it counts.
func TestCase_TGT_5(t *testing.T) {
	inCase(t, func(t *testing.T) {
		a := pauser("a", agent.ToolOptions{ResumeSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)})
		c := pauser("b", agent.ToolOptions{ResumeSchema: json.RawMessage(`{"type":"object","properties":{"age":{"type":"integer"}},"required":["age"]}`)})
		b := newBench(t, Options{}, []agent.Tool{a, c}, asks(callTo("a", `{}`), callTo("b", `{}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		d := b.refusal(b.call(run, 1, 2), b.send("alice", events.ResumeD, b.call(run, 1, 2), withData(`{"city":"Rome"}`)))
		if d.Code != events.CodeInvalidData || len(d.Issues) == 0 || d.Issues[0].Field != "age" {
			t.Errorf("the wrong data are refused with %+v", d.Error)
		}
		equal(t, "the call", b.last(b.call(run, 1, 2)), events.KindAsk)
		b.send("alice", events.ResumeD, b.call(run, 1, 2), withData(`{"age":7}`))
		b.send("alice", events.ResumeD, b.call(run, 1, 1), withData(`{"city":"Rome"}`))
		b.completed(run)
		equal(t, "results", b.told(), []string{`a json {"city":"Rome"}`, `b json {"age":7}`})
	})
}

// TestCase_TGT_8 resumes with every value that a schema allows: the handler sees it, and sees that it is resumed.
func TestCase_TGT_8(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		schema  string
		good    []string
		refused []string
	}{
		{`{"type":"boolean"}`, []string{`false`}, []string{`null`, `0`}},
		{`{"type":"number"}`, []string{`0`}, []string{`null`, `""`}},
		{`{"type":"string"}`, []string{`""`}, []string{`null`, `{}`}},
		{`{"type":["string","null"]}`, []string{`null`}, []string{`1`}},
		{`{"type":"object"}`, []string{`{}`}, []string{`null`, `[]`}},
		{``, []string{`null`}, nil},
	} {
		t.Run(test.schema, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				b := newBench(t, Options{}, []agent.Tool{pauser("find", agent.ToolOptions{ResumeSchema: json.RawMessage(test.schema)})},
					asks(callTo("find", `{}`)), agenttest.Say("done"))
				b.StartAll()
				run := b.Request("go")
				call := b.call(run, 1, 1)
				for _, bad := range test.refused {
					if d := b.refusal(call, b.send("alice", events.ResumeD, call, withData(bad))); d.Code != events.CodeInvalidData {
						t.Errorf("%s is refused with %+v", bad, d.Error)
					}
				}
				b.send("alice", events.ResumeD, call, withData(test.good[0]))
				b.completed(run)
				equal(t, "results", b.told(), []string{"find json " + test.good[0]})
			})
		})
	}
}

// TestCase_DUP_1 fires 20 equal approvals at two gates: one counts, 19 are told which.
func TestCase_DUP_1(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("pay", `{}`)), agenttest.Say("done"))
		b.StartAll()
		b.Start(approval.Name)
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.AwaitAsk(call, moment)
		var (
			wg  sync.WaitGroup
			mu  sync.Mutex
			ids []string
		)
		for range 20 {
			wg.Go(func() {
				id := b.send("alice", events.Approve, call, nil)
				mu.Lock()
				defer mu.Unlock()
				ids = append(ids, id)
			})
		}
		wg.Wait()
		b.completed(run)
		answer, err := events.Data[events.CallAnswered](b.Await(b.Conn().Namespace().Call(call, events.KindAnswer), moment))
		b.must(err)
		for _, id := range ids {
			if id == answer.EventID {
				continue
			}
			if d := b.refusal(call, id); d.Code != events.CodeAlreadyDecided || d.Answer == nil || d.Answer.Decision != events.Approve {
				t.Errorf("an approval that came second is told %+v", d.Error)
			}
		}
		equal(t, "executions", b.Effects.Of(call.String()), 1)
		equal(t, "requests", len(b.model.Requests()), 2)
	})
}

// TestCase_DUP_3 approves and declines the same call at once, a hundred times: one counts, the other is told who was
// first.
func TestCase_DUP_3(t *testing.T) {
	inCase(t, func(t *testing.T) {
		w := New(t, Options{})
		w.StartAll()
		w.Start(approval.Name)
		b := &bench{World: w}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				run := b.Request("Refund order 42")
				call := refundOf(run)
				sent := map[events.Decision]string{}
				for _, d := range []events.Decision{events.Approve, events.Decline} {
					sent[d] = b.send(string(d)+"r", d, call, nil)
				}
				answer, err := events.Data[events.CallAnswered](b.Await(b.Conn().Namespace().Call(call, events.KindAnswer), moment))
				b.must(err)
				loser := map[events.Decision]events.Decision{events.Approve: events.Decline, events.Decline: events.Approve}[answer.Decision]
				d := b.refusal(call, sent[loser])
				if d.Code != events.CodeAlreadyDecided || d.Answer == nil || d.Answer.Decision != answer.Decision || d.Answer.Principal != answer.Principal {
					t.Errorf("the loser is told %+v", d.Error)
				}
				b.AwaitEnd(run, moment)
				want := map[events.Decision]int{events.Approve: 1}[answer.Decision]
				equal(t, "executions after "+string(answer.Decision), b.Effects.Of(call.String()), want)
			})
		}
		wg.Wait()
		b.pause(2 * time.Second)
		if r := b.Check(true); r["answer"] != 100 {
			t.Errorf("the log holds %d answers, want 100", r["answer"])
		}
	})
}

// TestCase_DUP_4 restarts everything between the result of a call with effects and the approval of its sibling.
func TestCase_DUP_4(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, Options{}, []agent.Tool{echo("mail", anything, agent.ToolOptions{}), echo("pay", anything, agent.ToolOptions{RequireApproval: agent.Always()})},
			asks(callTo("mail", `{}`), callTo("pay", `{}`)), agenttest.Say("done"))
		copies := b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 2), moment)
		b.result(b.call(run, 1, 1))
		for _, c := range copies {
			c.Kill()
		}
		b.Restart()
		b.StartAll()
		b.send("alice", events.Approve, b.call(run, 1, 2), nil)
		b.completed(run)
		for i := 1; i <= 2; i++ {
			equal(t, "executions", b.Effects.Of(b.call(run, 1, i).String()), 1)
		}
		equal(t, "results", b.told(), []string{`mail json {}`, `pay json {}`})
	})
}

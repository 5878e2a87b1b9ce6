package sim

import (
	"context"
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
	"github.com/weirkeeper/weir/services/client"
)

// TestCase_RES_1 suspends runs, ends every process and the server, and starts others: each run that is listed can be decided
// in every way that there is.
func TestCase_RES_1(t *testing.T) {
	type asked struct {
		c    *client.Client
		call events.AskBrief
	}
	plain := func(ctx context.Context, a asked) error {
		_, err := a.c.Approve(ctx, a.call.ToolCallID, nil)
		return err
	}
	ways := map[string]func(ctx context.Context, a asked) error{
		"by its id": plain,
		"by its run": func(ctx context.Context, a asked) error {
			_, err := a.c.Approve(ctx, a.call.RunID, nil)
			return err
		},
		"by its thread": func(ctx context.Context, a asked) error {
			_, err := a.c.DecideIn(ctx, client.Thread{ResourceID: "bob", ThreadID: "by its thread"}, client.Decision{Decision: events.Approve})
			return err
		},
		"as it was looked at": func(ctx context.Context, a asked) error {
			_, err := a.c.Decide(ctx, client.Decision{
				Decision: events.Approve, ToolCallID: a.call.ToolCallID, Fingerprint: a.call.Fingerprint, Round: &a.call.Round,
			})
			return err
		},
		"by a request": plain, // to the gate's endpoint, see below
		"and read on": func(ctx context.Context, a asked) error {
			_, chunks, err := a.c.Continue(ctx, client.Decision{Decision: events.Approve, ToolCallID: a.call.ToolCallID})
			if err != nil {
				return err
			}
			for _, err := range chunks {
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	runOf := func(way string) string { return strings.ReplaceAll(way, " ", "-") }
	inCase(t, func(t *testing.T) {
		w := New(t, Options{})
		first := w.StartAll()
		for way := range ways {
			w.RequestAs("bob", events.RunRequested{
				AgentID: "support", RunID: runOf(way), ThreadID: way, ResourceID: "bob",
				Messages: events.Prompt{events.TextMessage(events.RoleUser, "refund order 42")},
			})
			w.AwaitAsk(refundOf(runOf(way)), moment)
		}
		for _, c := range first {
			c.Kill()
		}
		w.Restart()
		w.StartAll()
		for way, decide := range ways {
			c := client.New(w.Conn(), client.Config{Principal: "alice", ByRequest: way == "by a request"})
			defer c.Close()
			page, err := c.Suspended(t.Context(), client.Filter{Thread: way})
			w.must(err)
			if len(page.Runs) != 1 || len(page.Runs[0].ToolCalls) != 1 {
				t.Fatalf("%s: %+v is listed, want one run with one call", way, page.Runs)
			}
			if err := decide(t.Context(), asked{c, page.Runs[0].ToolCalls[0].Ask}); err != nil {
				t.Errorf("%s: %v", way, err)
			}
			if end := w.AwaitEnd(page.Runs[0].RunID, moment); end.Outcome != events.RunCompleted {
				t.Errorf("%s: the run ended as %s", way, end.Outcome)
			}
		}
		w.pause(2 * time.Second)
		w.Check(true)
	})
}

// TestCase_RES_2 decides at the very first sight of the approval chunk, with nothing but what the chunk says and a state of
// close to a megabyte, again and again: each decision counts, because the chunk comes last.
func TestCase_RES_2(t *testing.T) {
	const rounds = 20 // the case has 200; each takes its time with such a state
	inCase(t, func(t *testing.T) {
		w := New(t, Options{})
		w.StartAll()
		long := strings.Repeat("a long story ", 70_000)
		for i := range rounds {
			run := fmt.Sprint("r", i)
			chunks := make(chan events.AskPayload, 1)
			var following sync.WaitGroup
			following.Go(func() {
				for ch, err := range w.Conn().Follow(t.Context(), run, 0, nil) {
					var p events.AskPayload
					if err == nil && ch.Type == events.ChunkToolCallApproval {
						err = json.Unmarshal(ch.Payload, &p)
					}
					if err != nil {
						t.Error(err)
					}
					if err != nil || p.ToolCallID != "" {
						chunks <- p
						return
					}
				}
			})
			w.RequestAs("bob", events.RunRequested{
				AgentID: "support", RunID: run, Messages: events.Prompt{events.TextMessage(events.RoleUser, long+"refund order 42")},
			})
			p := <-chunks
			id := w.Posted(w.Conn().Namespace().InDecide("alice", refundOf(run)), run, "alice", events.DecisionRequested{
				Decision: events.Approve, ToolCallID: p.ToolCallID, Fingerprint: p.Ask.Fingerprint, Round: &p.Ask.Round,
			}).Event.ID
			answer, err := events.Data[events.CallAnswered](w.Await(w.Conn().Namespace().Call(refundOf(run), events.KindAnswer), moment))
			w.must(err)
			equal(t, "what counts", answer.EventID, id)
			if end := w.AwaitEnd(run, moment); end.Outcome != events.RunCompleted {
				t.Errorf("run ended as %s (%v)", end.Outcome, end.Error)
			}
			following.Wait()
		}
		w.pause(2 * time.Second)
		w.Check(true)
	})
}

// TestCase_RES_3 suspends a call of a run with a context and a trace, and resumes it with other processes: the handler sees the
// context that the run began with, byte for byte, and the trace goes on, whatever the decision brings along.
func TestCase_RES_3(t *testing.T) {
	const given, trace = `{"tenant":"acme","nested":{"n":9007199254740993,"list":[1.50,null,"x"]}}`, "4bf92f3577b34da6a3ce929d0e0e4736"
	for name, more := range map[string]string{"plain": "", "with a context of its own": `,"requestContext":{"tenant":"evil"}`} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				var mu sync.Mutex
				var seen []string
				tool := agent.NewTool("job", "Do", func(_ context.Context, call *agent.Call, _ Order) (any, error) {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, string(call.RequestContext()))
					if !call.Resumed() {
						return nil, call.Suspend(nil)
					}
					return "done", nil
				}, &agent.ToolOptions{OutputSchema: json.RawMessage(`{}`), RequireApproval: agent.Always()})
				b := newBench(t, Options{}, []agent.Tool{tool}, asks(callTo("job", `{"orderId":"1"}`)), agenttest.Say("done"))
				copies := b.StartAll()
				ns := b.Conn().Namespace()
				o := &events.Origin{Namespace: ns, Service: "test"}
				subject := ns.InStart("bob", "support")
				e, err := o.Request(subject, "r1", events.RunRequested{
					AgentID: "support", RunID: "r1", RequestContext: json.RawMessage(given),
					Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
				}, events.Event{TraceParent: "00-" + trace + "-00f067aa0ba902b7-01"})
				b.must(err)
				_, err = b.Conn().Publish(t.Context(), subject, e)
				b.must(err)
				call := b.call("r1", 1, 1)
				for round, d := range []events.Decision{events.Approve, events.ResumeD} {
					ask := b.awaitRound(call, round)
					for _, c := range copies {
						c.Kill()
					}
					b.Restart()
					copies = b.StartAll()
					data := ""
					if d == events.ResumeD {
						data = `,"resumeData":{}`
					}
					b.publishRaw(call, fmt.Sprintf(`{"decision":%q,"toolCallId":%q,"round":%d,"fingerprint":%q%s%s}`,
						d, call, round, ask.Fingerprint, data, more))
				}
				b.completed("r1")
				equal(t, "contexts", seen, []string{given, given})
				for _, filter := range []string{ns.MainOf("r1"), ns.CallsOf("r1")} {
					for seq := uint64(0); ; {
						fact, err := b.Conn().NextFact(t.Context(), seq, filter)
						if err != nil {
							break
						}
						if seq = fact.Seq; !strings.Contains(fact.TraceParent, trace) {
							t.Errorf("%s has trace %q", fact.Place.Subject(), fact.TraceParent)
						}
					}
				}
			})
		})
	}
}

// publishRaw publishes a decision of alice's as it is written.
func (b *bench) publishRaw(call events.CallID, data string) {
	b.T.Helper()
	event := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/test","type":%q,"subject":%q,"authid":"alice","data":%s}`,
		events.NewID(time.Now()), events.TypeOf[events.DecisionRequested](), call.Run, data)
	_, err := b.Conn().StoreRequest(b.T.Context(), b.Conn().Namespace().InDecide("alice", call),
		map[string][]string{"content-type": {"application/cloudevents+json"}}, []byte(event))
	b.must(err)
}

// TestCase_RES_6 suspends a tool after its first line and resumes it: the handler begins anew, with the same key for what it
// does outside, so that a service that knows the key does it once.
func TestCase_RES_6(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var mu sync.Mutex
		outside, seen := map[string]int{}, []string{}
		tool := agent.NewTool("job", "Do", func(_ context.Context, call *agent.Call, _ Order) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			outside[call.IdempotencyKey()]++
			seen = append(seen, fmt.Sprintf("attempt %d round %d resumed %t", call.Attempt(), call.Round(), call.Resumed()))
			if !call.Resumed() {
				return nil, call.Suspend(nil)
			}
			return "done", nil
		}, &agent.ToolOptions{OutputSchema: json.RawMessage(`{}`)})
		b := newBench(t, Options{}, []agent.Tool{tool}, asks(callTo("job", `{"orderId":"1"}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.send("alice", events.ResumeD, call, withData(`{}`))
		b.completed(run)
		equal(t, "keys", outside, map[string]int{call.String(): 2})
		equal(t, "calls of the handler", seen, []string{"attempt 1 round 0 resumed false", "attempt 2 round 1 resumed true"})
	})
}

// TestCase_RES_9 resumes a tool with data that is not enough: it suspends itself again, which is a round with an ask of its own,
// and is finished after the second resume. Data of another form is refused, with the name of the field.
func TestCase_RES_9(t *testing.T) {
	inCase(t, func(t *testing.T) {
		type data struct {
			Code string `json:"code"`
		}
		tool := agent.NewTool("job", "Do", func(_ context.Context, call *agent.Call, _ Order) (any, error) {
			if !call.Resumed() {
				return nil, call.Suspend(map[string]string{"need": "a code"})
			}
			d, err := agent.ResumeData[data](call)
			if err == nil && len(d.Code) < 4 {
				err = call.Suspend(map[string]string{"need": "a longer code than " + d.Code})
			}
			return d.Code, err
		}, &agent.ToolOptions{
			OutputSchema: json.RawMessage(`{}`),
			ResumeSchema: json.RawMessage(`{"type":"object","properties":{"code":{"type":"string"}},"required":["code"]}`),
		})
		b := newBench(t, Options{}, []agent.Tool{tool}, asks(callTo("job", `{"orderId":"1"}`)), agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		first := b.AwaitAsk(call, moment)
		wrong := b.send("alice", events.ResumeD, call, withData(`{"code":7}`))
		if e := b.refusal(call, wrong); e.Code != events.CodeInvalidData || !slices.ContainsFunc(e.Issues, func(i events.Issue) bool {
			return strings.Contains(i.Field, "code")
		}) {
			t.Errorf("wrong data is refused with %+v", e.Error)
		}
		b.send("alice", events.ResumeD, call, withData(`{"code":"12"}`))
		second := b.awaitRound(call, first.Round+1)
		equal(t, "the second question", string(second.SuspendPayload), `{"need":"a longer code than 12"}`)
		b.send("alice", events.ResumeD, call, func(d *events.DecisionRequested) {
			d.ResumeData, d.Round = json.RawMessage(`{"code":"1234"}`), &second.Round
		})
		equal(t, "the result", string(b.result(call).Result), `"1234"`)
		b.completed(run)
	})
}

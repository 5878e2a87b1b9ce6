package approval_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
)

// largeCall is a world in which a call with arguments of so many bytes is held.
func largeCall(size int, o sim.Options) func(*testing.T) sim.Options {
	return func(t *testing.T) sim.Options {
		o.Tools = []agent.Tool{tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})}
		o.Model = agenttest.NewModel(t, agenttest.Ask("pay", `{"orderId":"`+strings.Repeat("x", size)+`"}`), agenttest.Say("done"))
		return o
	}
}

// TestB8_8_B8_11_LargeEnd decides a call with large arguments by what is large too, so that its result does not hold both:
// the call ends all the same, and its run goes on.
func TestB8_8_B8_11_LargeEnd(t *testing.T) {
	for d, want := range map[events.Decision]events.Outcome{
		events.Decline: events.OutcomeDeclined, events.Respond: events.OutcomeResponded,
	} {
		t.Run(string(d), func(t *testing.T) {
			size := 600 << 10
			if d == events.Decline {
				size = 1<<20 - 8<<10
			}
			in(t, largeCall(size, sim.Options{}), func(w *sim.World) {
				w.StartAll()
				run := w.Request("go")
				call := refundOf(run)
				req := decision(d, call)
				req.Fingerprint = w.AwaitAsk(call, soon).Fingerprint
				if d == events.Respond {
					req.Result = json.RawMessage(`"` + strings.Repeat("y", 500<<10) + `"`)
				} else {
					req.Reason = strings.Repeat("€", 4096)
				}
				w.Decide("alice", req)
				if r := result(w, run, 1); r.Outcome != want || r.Principal != "alice" || d == events.Respond && string(r.Result) != string(req.Result) {
					w.T.Errorf("the call ended as %s by %q, with %d bytes", r.Outcome, r.Principal, len(r.Result))
				}
				w.AwaitEnd(run, soon)
				time.Sleep(2 * time.Second) // fake
				w.Check(true)
			})
		})
	}
}

// TestB8_13_B8_34_LargeRefusal refuses decisions whose refusal would hold more than a message: each is recorded with its
// code.
func TestB8_13_B8_34_LargeRefusal(t *testing.T) {
	zed := key(t)
	people := map[string]events.PrincipalDef{"zed": {ID: "zed", Auth: events.AuthKey, Key: zed.Public}}
	in(t, largeCall(1<<20-40<<10, sim.Options{People: people}), func(w *sim.World) {
		w.StartAll()
		run := w.Request("go")
		call := refundOf(run)
		w.AwaitAsk(call, soon)
		d := decision(events.Approve, call)
		d.Fingerprint, d.Reason = events.Digest([]byte("other")), "seen"
		sent := largeDecision(w, zed, d, 60<<10)
		if r := refusal(w, call, sent.Event.ID); r.Code != events.CodeChanged {
			w.T.Errorf("refused: %s, %.80s", r.Code, r.Message)
		}
		named := sendEvent(w, "alice", decision(events.Approve, call), func(e *events.Event) {
			e.Data = json.RawMessage(`{"decision":"approve","toolCallId":"` + strings.Repeat("\x7f", 400<<10) + `"}`)
		})
		if r := refusal(w, call, named.Event.ID); r.Code != events.CodeInvalidRequest {
			w.T.Errorf("refused: %s, %.80s", r.Code, r.Message)
		}
		answer(w, run, events.Decline, 0)
		w.AwaitEnd(run, soon)
	})
}

// TestB8_24_AskThatFillsAMessage repeats an ask that leaves no room in its message for the header of a carried copy, as one
// of an earlier release may: it is carried without what it shows beside the arguments, and one of which nothing can be left
// out ends as expired before it ages out, and does not hang.
func TestB8_24_AskThatFillsAMessage(t *testing.T) {
	for name, fill := range map[string]func(*events.CallHeld, string){
		"last words": func(a *events.CallHeld, s string) { a.LastWords = &events.LastWords{Text: s} },
		"title":      func(a *events.CallHeld, s string) { a.Title = s },
	} {
		t.Run(name, func(t *testing.T) {
			o := sim.Options{Gate: func(c *approval.Config) { c.Retention = 6 * time.Minute }}
			in(t, scripted(o, "issue_refund"), func(w *sim.World) {
				w.StartAll()
				run := w.Request("go")
				call := refundOf(run)
				ask := w.AwaitAsk(call, soon)
				first := w.Await(w.Conn().Namespace().Call(call, events.KindAsk), soon)
				full := filled(w, first, ask, fill)
				header, payload, err := events.EncodeMsg(full)
				must(w, err)
				seq := jetstreamtest.Slip(w.T.(*testing.T), w.Server, first.Place.Ingest(), header, string(payload))
				time.Sleep(5 * time.Minute) // fake
				last := headOf(w, call)
				if name == "title" {
					if r := result(w, run, 1); r.Outcome != events.OutcomeExpired {
						w.T.Errorf("the call ended as %s", r.Outcome)
					}
					w.AwaitEnd(run, soon)
					return
				}
				if last.Place.Kind != events.KindAsk || !last.Carried || last.Seq == seq || last.ID != full.ID {
					w.T.Fatalf("the call stands at %s, carried %v", last.Place.Kind, last.Carried)
				}
				answer(w, run, events.Approve, 0)
				w.AwaitEnd(run, soon)
			})
		})
	}
}

// filled is a repeated ask that leaves no room for what a copy has beside it.
func filled(w *sim.World, first events.Event, ask events.CallHeld, fill func(*events.CallHeld, string)) events.Event {
	w.T.Helper()
	since := first.Stored.UTC()
	ask.Since = &since
	o := &events.Origin{Namespace: w.Conn().Namespace(), Service: approval.Name, Key: &w.Key}
	room := int(w.Conn().MaxMessage()) - 50 // and a copy has a guard, too
	fill(&ask, "")
	e, err := o.Fact(first.Place, ask, first)
	must(w, err)
	fill(&ask, strings.Repeat("x", room-messageSize(e)-100))
	e, err = o.Fact(first.Place, ask, first)
	must(w, err)
	if size := messageSize(e); size > room || size < room-200 {
		w.T.Fatalf("the ask has %d bytes of %d", size, room)
	}
	return e
}

func messageSize(e events.Event) int {
	header, payload, _ := events.EncodeMsg(e)
	size := len(payload) + 12
	for name, values := range header {
		for _, v := range values {
			size += len(name) + len(v) + 4
		}
	}
	return size
}

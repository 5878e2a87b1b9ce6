package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// wrongDecision is a decision that must not count: a message of a program that knows nothing but NATS.
type wrongDecision struct {
	name string
	who  string
	// change makes the wrong message of the right one.
	change func(r *right)
	code   events.Code
	says   string // a part of the reason
}

// right is the decision that would count, and how it is sent.
type right struct {
	t    *testing.T
	w    *World
	call events.CallID
	who  string
	data events.DecisionRequested
	key  *events.Key       // signs; nil: nobody does
	over string            // the subject that is signed, when it is another one
	edit func(m *nats.Msg) // changes the finished message
}

var wrongDecisions = []wrongDecision{
	{
		name: "no JSON", who: "alice", code: events.CodeInvalidRequest, says: "not a CloudEvent",
		change: func(r *right) { r.edit = func(m *nats.Msg) { m.Data = []byte("{approve") } },
	},
	{
		name: "no event", who: "alice", code: events.CodeInvalidRequest, says: "not a CloudEvent",
		change: func(r *right) { r.edit = func(m *nats.Msg) { m.Data = []byte(`{"decision":"approve"}`) } },
	},
	{
		name: "invalid UTF-8", who: "alice", code: events.CodeInvalidRequest, says: "not a CloudEvent",
		change: func(r *right) {
			r.edit = func(m *nats.Msg) { m.Data = []byte(strings.Replace(string(m.Data), "fine", "fi\xffe", 1)) }
		},
	},
	{
		name: "a key twice", who: "alice", code: events.CodeInvalidRequest, says: "not a CloudEvent",
		change: func(r *right) {
			r.edit = func(m *nats.Msg) {
				m.Data = []byte(strings.Replace(string(m.Data), `"decision":`, `"decision":"decline","decision":`, 1))
			}
		},
	},
	{
		name: "a copy that the server made", who: "alice", code: events.CodeInvalidRequest, says: "Nats-Sequence",
		change: func(r *right) { r.edit = func(m *nats.Msg) { m.Header.Set("Nats-Sequence", "7") } },
	},
	{
		name: "another type", who: "alice", code: events.CodeInvalidRequest, says: "cancel.requested",
		change: func(r *right) {
			r.edit = func(m *nats.Msg) {
				m.Data = []byte(strings.Replace(string(m.Data), "decision.requested", "cancel.requested", 1))
			}
		},
	},
	{
		name: "another call in the data", who: "alice", code: events.CodeInvalidRequest, says: "the subject names",
		change: func(r *right) { r.data.ToolCallID = events.CallID{Run: r.call.Run, Step: 1, Index: 2}.String() },
	},
	{
		name: "another sender in the event", who: "alice", code: events.CodeForbidden, says: "authid",
		change: func(r *right) {
			r.edit = func(m *nats.Msg) {
				m.Data = []byte(strings.Replace(string(m.Data), `"authid":"alice"`, `"authid":"carol"`, 1))
			}
		},
	},
	{
		name: "unsigned", who: "carol", code: events.CodeUnauthenticated, says: "must be signed",
		change: func(r *right) { r.key = nil },
	},
	{
		name: "signed by another", who: "carol", code: events.CodeUnauthenticated, says: "must be signed",
		change: func(r *right) {
			other, err := jetstream.NewKey()
			r.w.must(err)
			r.key = &other
		},
	},
	{
		name: "signed for another call", who: "carol", code: events.CodeUnauthenticated, says: "must be signed",
		change: func(r *right) {
			r.over = r.w.Conn().Namespace().InDecide("carol", events.CallID{Run: r.call.Run, Step: 1, Index: 2})
		},
	},
	{
		name: "changed after it was signed", who: "carol", code: events.CodeUnauthenticated, says: "must be signed",
		change: func(r *right) {
			r.edit = func(m *nats.Msg) { m.Data = []byte(strings.Replace(string(m.Data), "fine", "dear", 1)) }
		},
	},
	{
		name: "another fingerprint", who: "carol", code: events.CodeChanged, says: "fingerprint",
		change: func(r *right) { r.data.Fingerprint = "sha256:" + strings.Repeat("0", 64) },
	},
	{
		name: "another round", who: "carol", code: events.CodeChanged, says: "round 3",
		change: func(r *right) { r.data.Round = new(3) },
	},
	{
		name: "a kind that the ask does not take", who: "carol", code: events.CodeWrongKind, says: "does not take",
		change: func(r *right) { r.data.Decision, r.data.ResumeData = events.ResumeD, RawJSON(`true`) },
	},
	{
		name: "arguments that do not fit", who: "carol", code: events.CodeInvalidData, says: "args",
		change: func(r *right) { r.data.Decision, r.data.Args = events.Edit, RawJSON(`{"orderId":[]}`) },
	},
	{
		name: "an unknown call", who: "carol", code: events.CodeNotFound, says: "not known",
		change: func(r *right) { r.at(events.CallID{Run: r.call.Run, Step: 1, Index: 9}) },
	},
	{
		name: "an unknown run", who: "carol", code: events.CodeNotFound, says: "not known",
		change: func(r *right) { r.at(events.CallID{Run: "nobody", Step: 1, Index: 1}) },
	},
}

// TestB8_13_B8_22_B8_34_WrongDecisions sends decisions that must not count, published and by request. Each is refused with
// a reason that its sender hears and the log keeps, the call stays as it was, and the right decision still counts
// afterwards.
func TestB8_13_B8_22_B8_34_WrongDecisions(t *testing.T) {
	t.Parallel()
	carol, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	w := New(t, Options{People: map[string]events.PrincipalDef{
		"carol": {ID: "carol", Auth: events.AuthKey, Key: carol.Public},
	}})
	w.StartAll()
	nc := w.raw()
	run := w.Request("refund order 42")
	call := refundOf(run)
	ask := w.AwaitAsk(call, 10*time.Second)
	decide := func(t *testing.T, c wrongDecision) events.DecisionRefused {
		t.Helper()
		r := right{t: t, w: w, call: call, who: c.who, data: events.DecisionRequested{
			Decision: events.Approve, ToolCallID: call.String(), Fingerprint: ask.Fingerprint, Reason: "fine",
		}}
		if c.who == "carol" {
			r.key = &carol
		}
		c.change(&r)
		d := r.refused(nc)
		if why := r.told(nc); why.Code != d.Code || !strings.Contains(why.Message, c.says) {
			t.Errorf("by request it is refused as %s, published as %s", why.Error(), d.Error.Error())
		}
		return d
	}
	before := w.chainOf(call)
	for _, c := range wrongDecisions {
		t.Run(c.name, func(t *testing.T) {
			d := decide(t, c)
			if d.Code != c.code || !strings.Contains(d.Message, c.says) {
				t.Errorf("refused as %s, want %s: %q", d.Error.Error(), c.code, c.says)
			}
			if diff := cmp.Diff(before, w.chainOf(call)); diff != "" {
				t.Errorf("the call has changed:\n%s", diff)
			}
		})
	}
	w.Decide("alice", events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String(), Fingerprint: ask.Fingerprint})
	w.AwaitEnd(run, 10*time.Second)
	before = w.chainOf(call)
	d := decide(t, wrongDecision{who: "carol", change: func(*right) {}})
	if d.Code != events.CodeAlreadyDecided || d.Answer == nil || d.Answer.Principal != "alice" || d.Answer.Decision != events.Approve {
		t.Errorf("a late decision is refused as %s, answer %+v", d.Error.Error(), d.Answer)
	}
	if diff := cmp.Diff(before, w.chainOf(call)); diff != "" {
		t.Errorf("the call has changed:\n%s", diff)
	}
	if n := w.Effects.Of(call.String()); n != 1 {
		t.Errorf("the refund ran %d times, want once", n)
	}
	w.Check(false)
}

// raw is a connection of a program that knows nothing of Weir.
func (w *World) raw() *nats.Conn {
	w.T.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(w.Server.InProcess()))
	w.must(err)
	w.T.Cleanup(nc.Close)
	return nc
}

// at makes it a decision about another call.
func (r *right) at(call events.CallID) { r.call, r.data.ToolCallID = call, call.String() }

// refused sends the decision and returns its refusal, which the sender's note and the log must agree on.
func (r *right) refused(nc *nats.Conn) events.DecisionRefused {
	r.t.Helper()
	ns := r.w.Conn().Namespace()
	notes, err := nc.SubscribeSync(ns.Notes(r.who))
	r.w.must(err)
	defer func() { _ = notes.Unsubscribe() }()
	seq := r.send(nc)
	var d events.DecisionRefused
	for d.InboxSeq < seq { // what was sent before is told of too
		told, err := notes.NextMsg(30 * time.Second)
		if err != nil {
			r.t.Fatalf("no note: %v", err)
		}
		note, err := events.DecodeMsg(told.Header, told.Data)
		r.w.must(err)
		d, err = events.Data[events.DecisionRefused](note)
		r.w.must(err)
		if want := ns.Note(r.who, r.call.Run, r.call.Token()); d.InboxSeq == seq && told.Subject != want {
			r.t.Errorf("told on %s, want %s", told.Subject, want)
		}
	}
	if d.InboxSeq != seq || d.Principal != r.who {
		r.t.Errorf("the note is about message %d of %s, sent was %d of %s", d.InboxSeq, d.Principal, seq, r.who)
	}
	fact := r.w.Await(ns.Beside(r.call, events.KindRefused, d.EventID), 10*time.Second)
	kept, err := events.Data[events.DecisionRefused](fact)
	r.w.must(err)
	if diff := cmp.Diff(d, kept); diff != "" {
		r.t.Errorf("the log says something else than the note:\n%s", diff)
	}
	return d
}

// told sends the decision by request, signed as the inbox will hold it, and returns its refusal. What the server has
// copied is not stored: the inbox would not show it as such.
func (r *right) told(nc *nats.Conn) events.Error {
	r.t.Helper()
	m := r.msg()
	m.Subject = r.w.Conn().Namespace().ServiceSubject(events.VerbDecide, r.who, r.call.Run, r.call.Token())
	reply, err := nc.RequestMsg(m, 30*time.Second)
	r.w.must(err)
	var why events.Error
	r.w.must(json.Unmarshal(reply.Data, &why))
	return why
}

// send publishes the decision and returns its place in the inbox.
func (r *right) send(nc *nats.Conn) uint64 {
	r.t.Helper()
	reply, err := nc.RequestMsg(r.msg(), 10*time.Second)
	r.w.must(err)
	var ack struct{ Seq uint64 }
	r.w.must(json.Unmarshal(reply.Data, &ack))
	return ack.Seq
}

func (r *right) msg() *nats.Msg {
	r.t.Helper()
	ns := r.w.Conn().Namespace()
	subject := ns.InDecide(r.who, r.call)
	e, err := (&events.Origin{Namespace: ns, Service: "test"}).RequestBy(subject, r.call.Run, r.who, r.data)
	r.w.must(err)
	if r.key != nil {
		over := subject
		if r.over != "" {
			over = r.over
		}
		e.Signature = events.Sign(*r.key, events.DomainDecision, over, e.Payload)
	}
	header, payload, err := events.EncodeMsg(e)
	r.w.must(err)
	m := &nats.Msg{Subject: subject, Header: header, Data: payload}
	if r.edit != nil {
		r.edit(m)
	}
	return m
}

// chainOf lists the facts of a call.
func (w *World) chainOf(call events.CallID) (facts []string) {
	w.T.Helper()
	filter := w.Conn().Namespace().Call(call, events.KindAsk).Chain()
	for seq := uint64(0); ; {
		e, err := w.Conn().NextFact(w.T.Context(), seq, filter)
		if errors.Is(err, jetstream.ErrNotFound) {
			return facts
		}
		w.must(err)
		seq = e.Seq
		facts = append(facts, fmt.Sprintf("%d %s %s", e.Seq, e.Place.Kind, e.ID))
	}
}

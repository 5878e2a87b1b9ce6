package sim

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

var forged = flag.Int("weir.forged", 10000, "how many forged, mutated and replayed decisions are sent")

// TestAttack15ForgedDecisions sends decisions that are forged, mutated in any field or bit, replayed on another call, run,
// round, namespace or principal, or out of time. None of them counts: every call stays as it was, and the right decision,
// which all of them were made of, still counts afterwards.
func TestAttack15ForgedDecisions(t *testing.T) {
	t.Parallel()
	f := newForger(t)
	tally := map[string]int{}
	for i := range *forged {
		tally[f.forge()]++
		if i%500 == 499 {
			f.awaitJudged()
		}
	}
	f.awaitJudged()
	t.Log(tally)
	for name := range f.forgeries() {
		if *forged >= 1000 && tally[name] == 0 {
			t.Errorf("no decision was sent that is %s", name)
		}
	}
	for _, v := range f.victims {
		if diff := cmp.Diff(v.chain, f.w.chainOf(v.call)); diff != "" {
			t.Errorf("%s has changed:\n%s", v.call, diff)
		}
	}
	f.decideWell()
	f.w.Check(false)
}

// victim is a held call, and the decision about it that would count.
type victim struct {
	call  events.CallID
	chain []string // as it stands
	data  events.DecisionRequested
	right *nats.Msg
	past  *nats.Msg // the right decision of an earlier round
}

type forger struct {
	t              *testing.T
	w              *World
	nc             *nats.Conn
	rng            *rand.Rand
	carol, mallory events.Key
	victims        []*victim
}

func newForger(t *testing.T) *forger {
	t.Helper()
	f := &forger{t: t, rng: rand.New(rand.NewPCG(15, 1))}
	var err error
	for _, key := range []*events.Key{&f.carol, &f.mallory} {
		if *key, err = jetstream.NewKey(); err != nil {
			t.Fatal(err)
		}
	}
	f.w = New(t, Options{
		People: map[string]events.PrincipalDef{
			"carol":   {ID: "carol", Auth: events.AuthKey, Key: f.carol.Public},
			"mallory": {ID: "mallory", Auth: events.AuthKey, Key: f.mallory.Public},
		},
		Rules: map[string]events.RuleSet{"money": {Name: "money", Rules: []events.Rule{{
			Name: "refunds", Tools: []string{"issue_refund"}, Action: events.RuleAsk, Approvers: []string{"user:carol"}, Signed: true,
		}}}},
	})
	f.w.StartAll()
	f.nc = f.w.raw()
	for i := range 6 {
		f.victims = append(f.victims, f.victim(i%2 == 1))
	}
	return f
}

// victim makes a held call. One that was edited is held in the next round, and has a past.
func (f *forger) victim(edited bool) *victim {
	v := &victim{call: refundOf(f.w.Request("refund order 42"))}
	ask := f.w.AwaitAsk(v.call, time.Minute)
	v.data = events.DecisionRequested{Decision: events.Approve, ToolCallID: v.call.String(), Round: &ask.Round, Fingerprint: ask.Fingerprint, Reason: "fine"}
	if edited {
		v.past = f.message(v, f.carol, "carol", v.data, "")
		edit := v.data
		edit.Decision, edit.Args = events.Edit, RawJSON(`{"orderId":"43"}`)
		f.send(f.message(v, f.carol, "carol", edit, ""))
		for ask.Round == 0 {
			ask = f.w.AwaitAsk(v.call, time.Minute)
		}
		v.data.Round, v.data.Fingerprint = &ask.Round, ask.Fingerprint
	}
	v.chain = f.w.chainOf(v.call)
	v.right = f.message(v, f.carol, "carol", v.data, "")
	return v
}

// message is a decision of a principal, signed by a key over a subject ("": its own).
func (f *forger) message(v *victim, key events.Key, who string, data events.DecisionRequested, over string) *nats.Msg {
	f.t.Helper()
	ns := f.w.Conn().Namespace()
	subject := ns.InDecide(who, v.call)
	e, err := (&events.Origin{Namespace: ns, Service: "test"}).RequestBy(subject, v.call.Run, who, data)
	f.w.must(err)
	if over == "" {
		over = subject
	}
	e.Signature = events.Sign(key, events.DomainDecision, over, e.Payload)
	header, payload, err := events.EncodeMsg(e)
	f.w.must(err)
	return &nats.Msg{Subject: subject, Header: header, Data: payload}
}

func (f *forger) send(m *nats.Msg) {
	f.t.Helper()
	_, err := f.nc.RequestMsg(m, 10*time.Second)
	f.w.must(err)
}

// forge sends one wrong decision and names what is wrong with it.
func (f *forger) forge() string {
	all := f.forgeries()
	name := slices.Sorted(maps.Keys(all))[f.rng.IntN(len(all))]
	v := f.victims[f.rng.IntN(len(f.victims))]
	m := &nats.Msg{Subject: v.right.Subject, Header: maps.Clone(v.right.Header), Data: bytes.Clone(v.right.Data)}
	if m = all[name](v, m); m == nil {
		return "left out"
	}
	if m.Subject == v.right.Subject && bytes.Equal(m.Data, v.right.Data) && maps.EqualFunc(m.Header, v.right.Header, slices.Equal) {
		f.t.Fatalf("%s is the right decision", name)
	}
	f.send(m)
	return name
}

// forgeries make wrong decisions of a copy of the right one; none when the call gives no cause for it.
func (f *forger) forgeries() map[string]func(v *victim, m *nats.Msg) *nats.Msg {
	const key, sig = "weir-key", "weir-sig"
	changed := func(change func(d *events.DecisionRequested)) func(v *victim, m *nats.Msg) *nats.Msg {
		return func(v *victim, _ *nats.Msg) *nats.Msg { // by carol herself: what she says does not fit
			d := v.data
			change(&d)
			return f.message(v, f.carol, "carol", d, "")
		}
	}
	return map[string]func(v *victim, m *nats.Msg) *nats.Msg{
		"mutated in a bit": func(_ *victim, m *nats.Msg) *nats.Msg {
			m.Data[f.rng.IntN(len(m.Data))] ^= 1 << f.rng.IntN(8)
			return m
		},
		"cut":       func(_ *victim, m *nats.Msg) *nats.Msg { m.Data = m.Data[:f.rng.IntN(len(m.Data))]; return m },
		"continued": func(_ *victim, m *nats.Msg) *nats.Msg { m.Data = append(m.Data, " \n\x00}"[f.rng.IntN(4)]); return m },
		"mutated in a field": func(_ *victim, m *nats.Msg) *nats.Msg {
			m.Data = f.mutateField(m.Data)
			return m
		},
		"mutated in its signature": func(_ *victim, m *nats.Msg) *nats.Msg {
			m.Header.Set(sig, f.mutateText(m.Header.Get(sig)))
			return m
		},
		"mutated in its key": func(_ *victim, m *nats.Msg) *nats.Msg {
			m.Header.Set(key, f.mutateText(m.Header.Get(key)))
			return m
		},
		"under another's key": func(_ *victim, m *nats.Msg) *nats.Msg { m.Header.Set(key, f.mallory.Public); return m },
		"unsigned":            func(_ *victim, m *nats.Msg) *nats.Msg { m.Header.Del(sig); return m },
		"signed by another": func(v *victim, _ *nats.Msg) *nats.Msg {
			return f.message(v, f.mallory, "carol", v.data, "")
		},
		"another principal's": func(v *victim, _ *nats.Msg) *nats.Msg {
			return f.message(v, f.mallory, "mallory", v.data, "")
		},
		"nobody's": func(v *victim, _ *nats.Msg) *nats.Msg { return f.message(v, f.carol, "nobody", v.data, "") },
		"replayed on another call": func(v *victim, m *nats.Msg) *nats.Msg {
			m.Subject = f.w.Conn().Namespace().InDecide("carol", f.other(v).call)
			return m
		},
		"replayed by another principal": func(v *victim, m *nats.Msg) *nats.Msg {
			m.Subject = f.w.Conn().Namespace().InDecide("mallory", v.call)
			return m
		},
		"signed for another namespace": func(v *victim, _ *nats.Msg) *nats.Msg {
			return f.message(v, f.carol, "carol", v.data, events.Namespace("other").InDecide("carol", v.call))
		},
		"signed for another call": func(v *victim, _ *nats.Msg) *nats.Msg {
			return f.message(v, f.carol, "carol", v.data, f.w.Conn().Namespace().InDecide("carol", f.other(v).call))
		},
		"of an earlier round": func(v *victim, _ *nats.Msg) *nats.Msg { return v.past },
		"of another round":    changed(func(d *events.DecisionRequested) { d.Round = new(*d.Round + 1 + f.rng.IntN(3)) }),
		"of another fingerprint": changed(func(d *events.DecisionRequested) {
			d.Fingerprint = events.Digest([]byte(fmt.Sprint(f.rng.Uint64())))
		}),
		"about another call": func(v *victim, _ *nats.Msg) *nats.Msg {
			d := v.data
			d.ToolCallID = f.other(v).call.String()
			return f.message(v, f.carol, "carol", d, "")
		},
		"of another kind":    changed(func(d *events.DecisionRequested) { d.Decision = events.Retry }),
		"a resume":           changed(func(d *events.DecisionRequested) { d.Decision, d.ResumeData = events.ResumeD, RawJSON("true") }),
		"an edit of nothing": changed(func(d *events.DecisionRequested) { d.Decision = events.Edit }),
		"copied by a server": func(_ *victim, m *nats.Msg) *nats.Msg { m.Header.Set("Nats-Stream", "x"); return m },
		"of another type": func(_ *victim, m *nats.Msg) *nats.Msg {
			m.Data = bytes.Replace(m.Data, []byte("decision.requested"), []byte("cancel.requested"), 1)
			return m
		},
		"an approval in a header": func(_ *victim, m *nats.Msg) *nats.Msg {
			m.Data = []byte("{}")
			m.Header.Set("weir-decision", "approve")
			return m
		},
	}
}

func (f *forger) other(v *victim) *victim {
	for {
		if o := f.victims[f.rng.IntN(len(f.victims))]; o != v {
			return o
		}
	}
}

// mutateText changes one character into another of its alphabet.
func (f *forger) mutateText(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	b := []byte(s)
	for i := f.rng.IntN(len(b)); string(b) == s; {
		b[i] = alphabet[f.rng.IntN(len(alphabet))]
	}
	return string(b)
}

// mutateField gives one field of the event, or of its data, another value, or another place.
func (f *forger) mutateField(raw []byte) []byte {
	var e map[string]json.RawMessage
	f.w.must(json.Unmarshal(raw, &e))
	within := e
	var data map[string]json.RawMessage
	if f.rng.IntN(2) == 0 {
		f.w.must(json.Unmarshal(e["data"], &data))
		within = data
	}
	name := slices.Sorted(maps.Keys(within))[f.rng.IntN(len(within))]
	switch value := strings.Trim(string(within[name]), `"`); f.rng.IntN(5) {
	case 0:
		delete(within, name)
	case 1:
		within[name] = RawJSON(`null`)
	case 2:
		within[name] = RawJSON(fmt.Sprint(f.rng.IntN(1000) + 1000))
	case 3:
		within[name+"x"] = within[name]
	default:
		within[name], _ = json.Marshal(f.mutateText("x" + value))
	}
	if data != nil {
		e["data"], _ = json.Marshal(data)
	}
	out, err := json.Marshal(e)
	f.w.must(err)
	return out
}

// awaitJudged waits until the gate has taken everything from the inbox.
func (f *forger) awaitJudged() {
	f.t.Helper()
	for range 6000 {
		b, err := f.w.Conn().Backlog(f.t.Context(), events.StreamInbox, "approval")
		f.w.must(err)
		if b.Outstanding == 0 {
			return
		}
		f.w.pause(10 * time.Millisecond)
	}
	f.t.Fatal("the gate does not take what was sent")
}

// decideWell sends the right decisions: each lets its call run, once.
func (f *forger) decideWell() {
	f.t.Helper()
	for _, v := range f.victims {
		f.send(v.right)
	}
	for _, v := range f.victims {
		if end := f.w.AwaitEnd(v.call.Run, time.Minute); end.Outcome != events.RunCompleted {
			f.t.Errorf("run %s ended as %s", v.call.Run, end.Outcome)
		}
		if n := f.w.Effects.Of(v.call.String()); n != 1 {
			f.t.Errorf("the refund %s ran %d times, want once", v.call, n)
		}
	}
}

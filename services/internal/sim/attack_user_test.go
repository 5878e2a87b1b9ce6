package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// walled is a world in fake time on a server on which nobody may do more than his part, and the key of alice, who decides.
func walled(t *testing.T, more func(*Options)) (*World, events.Key) {
	t.Helper()
	o, alice := accountsOn(t, restrictedOn(t, ""), time.Hour)
	o.Settings.Pools = []string{"default", "edge"}
	if more != nil {
		more(&o)
	}
	return New(t, o), alice
}

// intruder is a user of the server that tries things past the services, and hears when it is refused.
type intruder struct {
	w          *World
	user       string
	nc         *nats.Conn
	violations chan string
	fences     int
}

// provisioner is the user that may do everything, so that it shows what an attack would do with the right to it.
const provisioner = "provisioner"

func (w *World) intruder(user string) *intruder {
	w.T.Helper()
	u := &intruder{w: w, user: user, violations: make(chan string, 1<<12)}
	o := []nats.Option{
		nats.UserInfo(user, "p"), nats.CustomInboxPrefix(inbox(user)), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { u.violations <- err.Error() }),
	}
	url := w.Server.ClientURL()
	if url == "" {
		o = append(o, nats.InProcessServer(w.Server.InProcess()))
	}
	nc, err := nats.Connect(url, o...)
	w.must(err)
	u.nc = nc
	w.T.Cleanup(func() {
		if nc.IsClosed() {
			w.T.Errorf("%s has lost its connection: %v", user, nc.LastError())
		}
		nc.Close()
	})
	return u
}

var refusalText = regexp.MustCompile(`(?i)permissions violation for (publish|subscription) to "([^"]+)"`)

// refused does something and lists what the server refuses of it, such as "publish weir.default.run.r.main.end". The server
// answers in order, so what comes before the refusal of a fence is all.
func (u *intruder) refused(try func()) (all []string) {
	u.w.T.Helper()
	try()
	u.fences++
	fence := fmt.Sprintf("fence.%d", u.fences)
	u.w.must(u.nc.Publish(fence, nil))
	for {
		select {
		case text := <-u.violations:
			m := refusalText.FindStringSubmatch(text)
			if m == nil {
				u.w.T.Fatalf("%s: %s", u.user, text)
			}
			if m[2] == fence {
				return all
			}
			verb := map[string]string{"publish": "publish", "subscription": "subscribe"}[strings.ToLower(m[1])]
			all = append(all, verb+" "+m[2])
		case <-time.After(moment):
			u.w.T.Fatalf("%s may publish %s", u.user, fence)
		}
	}
}

// mayPublish reports whether the server takes a message on a subject.
func (u *intruder) mayPublish(subject string) bool {
	u.w.T.Helper()
	return u.judge("publish "+subject, u.refused(func() { u.w.must(u.nc.Publish(subject, []byte("{}"))) }))
}

// maySubscribe reports whether the server lets it hear a subject.
func (u *intruder) maySubscribe(subject string) bool {
	u.w.T.Helper()
	return u.judge("subscribe "+subject, u.refused(func() {
		sub, err := u.nc.SubscribeSync(subject)
		u.w.must(err)
		_ = sub.AutoUnsubscribe(1)
	}))
}

func (u *intruder) judge(what string, refused []string) bool {
	u.w.T.Helper()
	switch {
	case len(refused) == 0:
		return true
	case len(refused) == 1 && refused[0] == what:
		return false
	}
	u.w.T.Fatalf("%s tried to %s, refused are %q", u.user, what, refused)
	return false
}

// apiError is what JetStream answers when it does not do something.
type apiError struct {
	Code int    `json:"err_code"`
	Text string `json:"description"`
}

// reply is what JetStream answers.
type reply struct {
	Error     *apiError       `json:"error"`
	Seq       uint64          `json:"seq"`
	Duplicate bool            `json:"duplicate"`
	Message   json.RawMessage `json:"message"`
}

// code is the code of the error, 0 when there is none.
func (r reply) code() int {
	if r.Error == nil {
		return 0
	}
	return r.Error.Code
}

// request sends a message and reads the answer. False: there was none in time.
func (u *intruder) request(subject string, header map[string]string, body string) (reply, bool) {
	u.w.T.Helper()
	m := &nats.Msg{Subject: subject, Header: nats.Header{}, Data: []byte(body)}
	for name, v := range header {
		m.Header[name] = []string{v}
	}
	ctx, cancel := context.WithTimeout(u.w.T.Context(), 5*time.Second)
	defer cancel()
	msg, err := u.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return reply{}, false
	}
	var r reply
	if err := json.Unmarshal(msg.Data, &r); err != nil {
		u.w.T.Fatalf("%s is answered %q", subject, msg.Data)
	}
	return r, true
}

// state is how much a stream holds, as its leader says.
type state struct {
	Messages uint64 `json:"messages"`
	LastSeq  uint64 `json:"last_seq"`
}

func (u *intruder) state(stream string) state {
	u.w.T.Helper()
	var info struct{ State state }
	u.api("STREAM.INFO."+stream, "", &info)
	return info.State
}

// next is the next message that a subscription hears.
func (w *World) next(sub *nats.Subscription) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(w.T.Context(), moment)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

// create makes a stream without our protections and with settings that we do not have, over its name as a prefix.
func (u *intruder) create(name, settings string) {
	u.w.T.Helper()
	r, ok := u.request("$JS.API.STREAM.CREATE."+name, nil, fmt.Sprintf(`{"name":%q,"subjects":["%s.>"],"storage":"memory",%s}`, name, name, settings))
	if !ok || r.code() != 0 {
		u.w.T.Fatalf("make stream %s: %v", name, r.Error)
	}
}

// count is how many messages are stored on a subject.
func (u *intruder) count(subject string) uint64 {
	u.w.T.Helper()
	stream, _, _ := strings.Cut(subject, ".")
	if strings.HasPrefix(subject, ns) {
		stream = "weir_default_inbox"
	}
	var info struct {
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	u.api("STREAM.INFO."+stream, fmt.Sprintf(`{"subjects_filter":%q}`, subject), &info)
	return info.State.Subjects[subject]
}

// header is that of the last message on a subject of a stream.
func (u *intruder) header(stream, subject string) nats.Header {
	u.w.T.Helper()
	var found struct {
		Message struct{ Hdrs []byte } `json:"message"`
	}
	u.api("STREAM.MSG.GET."+stream, fmt.Sprintf(`{"last_by_subj":%q}`, subject), &found)
	if len(found.Message.Hdrs) == 0 {
		return nil
	}
	h, err := nats.DecodeHeadersMsg(found.Message.Hdrs)
	u.w.must(err)
	return h
}

// api asks JetStream and reads its answer.
func (u *intruder) api(verb, body string, answer any) {
	u.w.T.Helper()
	ctx, cancel := context.WithTimeout(u.w.T.Context(), moment)
	defer cancel()
	msg, err := u.nc.RequestWithContext(ctx, "$JS.API."+verb, []byte(body))
	u.w.must(err)
	u.w.must(json.Unmarshal(msg.Data, answer))
}

// held starts a run as bob, and waits for its held call.
func (w *World) held() events.CallID {
	w.T.Helper()
	call := refundOf(w.Request("refund order 42"))
	w.AwaitAsk(call, moment)
	return call
}

// approve lets a call run, as alice with her key.
func (w *World) approve(key events.Key, call events.CallID) {
	w.T.Helper()
	ns := w.Conn().Namespace()
	subject := ns.InDecide("alice", call)
	e, err := (&events.Origin{Namespace: ns, Service: "test"}).RequestBy(subject, call.Run, "alice",
		events.DecisionRequested{Decision: events.Approve, ToolCallID: call.String()})
	w.must(err)
	e.Signature = events.Sign(key, events.DomainDecision, subject, e.Payload)
	_, err = w.Conn().Publish(w.T.Context(), subject, e)
	w.must(err)
}

// noViolations fails for what a service was refused.
func noViolations(t *testing.T, copies []*Copy) {
	t.Helper()
	for _, c := range copies {
		for _, v := range c.Conn.Violations() {
			t.Errorf("%s may not %s %s", c.Service, v.Operation, v.Subject)
		}
	}
}

package client_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/services/client"
)

func contextWithCause(t *testing.T) (context.Context, context.CancelCauseFunc) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cancel(nil) })
	return ctx, cancel
}

// Without a gate a decision is stored and nobody knows more.
func TestDecisionWithoutAGateIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := start(t)
		c := newClient(t, conn, "bob")
		began := time.Now()
		out, err := c.Approve(t.Context(), "r1=1-1", nil)
		if err != nil || out.State != client.StateSent || out.Accepted {
			t.Fatalf("outcome = %+v, %v", out, err)
		}
		if waited := time.Since(began); waited != 30*time.Second {
			t.Errorf("waited %v, want 30 s", waited)
		}
		raw, err := json.Marshal(out)
		if err != nil || string(raw) != `{"accepted":null,"toolCallId":"r1=1-1","round":0,"state":"sent"}` {
			t.Errorf("as JSON %s, %v", raw, err)
		}
		_, err = c.Cancel(t.Context(), "r1", "")
		wantCode(t, err, events.CodeUnknownOutcome)
		b, err := conn.Backlog(t.Context(), events.StreamInbox, jetstream.ConsumerApproval)
		if err != nil || b.Outstanding != 2 {
			t.Errorf("backlog = %+v, %v: want decision and cancel stored", b, err)
		}
	})
}

// Somebody else's answer is heard and no note comes: the sender learns who decided all the same.
func TestAnswerOfAnotherWithoutANote(t *testing.T) {
	t.Parallel()
	conn := start(t)
	c := newClient(t, conn, "bob")
	call := events.CallID{Run: "r1", Step: 1, Index: 1}
	gate := &events.Origin{Namespace: ns, Service: "approval"}
	answered := make(chan error, 1)
	stop, err := conn.Hear(t.Context(), ns.InDecide("bob", call), func(events.Event) {
		e, err := gate.Fact(ns.Call(call, events.KindAnswer), events.CallAnswered{
			ToolCallID: call.String(), RunID: "r1",
			Decision: events.Decline, Fingerprint: "sha256:00", Principal: "alice", At: time.Now().UTC(), Reason: "no",
		},
			events.Event{})
		if err == nil {
			_, err = conn.Append(t.Context(), events.First(e.Place), e)
		}
		answered <- err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	_, err = c.Approve(t.Context(), call.String(), nil)
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if e := refusal(t, err, events.CodeAlreadyDecided); e.Answer.Principal != "alice" || e.Answer.Reason != "no" || e.Same {
		t.Errorf("error = %+v", e)
	}
}

// An answer that no gate has signed is not believed when keys are known.
func TestUnsignedAnswerIsNotBelieved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := start(t)
		key, err := jetstream.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		pub, err := jetstream.ParsePublic(key.Public)
		if err != nil {
			t.Fatal(err)
		}
		c := clientWith(t, conn, client.Config{
			Principal: "bob", GateKeys: events.Keys{key.Public: pub}, LiveOnly: true,
			Wait: time.Second,
		})
		call := events.CallID{Run: "r1", Step: 1, Index: 1}
		liar := &events.Origin{Namespace: ns, Service: "approval"}
		stop, err := conn.Hear(t.Context(), ns.InDecide("bob", call), func(d events.Event) {
			place := ns.Call(call, events.KindAnswer)
			e, err := liar.Request(place.Subject(), "r1", events.CallAnswered{
				ToolCallID: call.String(), RunID: "r1",
				Decision: events.Approve, Fingerprint: "sha256:00", Principal: "bob", At: time.Now().UTC(), EventID: d.ID,
			}, d)
			if err == nil {
				err = conn.Note(t.Context(), place.Subject(), e) // published past the log
			}
			if err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		out, err := c.Approve(t.Context(), call.String(), nil)
		if err != nil || out.State != client.StateSent {
			t.Errorf("outcome = %+v, %v: want nothing known", out, err)
		}
	})
}

// edgeRights are those of a client and approver of account EDGE, here as permissions.
const edgeRights = `
jetstream: {}
authorization: { users: [
  { user: "services", password: "x" }
  { user: "bob", password: "x", permissions: {
    publish: ["weir.default.in.start.bob.*", "weir.default.in.cancel.bob.*", "weir.default.in.decide.bob.*.*",
      "weir.default.svc.decide.bob.*.*", "weir.default.svc.ask.bob.*.*"]
    subscribe: ["_INBOX_bob.>", "weir.default.live.*", "weir.default.note.bob.>",
      "weir.default.run.*.call.*.ask", "weir.default.run.*.call.*.answer"] } }
] }
`

// Starting, following, deciding and cancelling need no right to read anything.
func TestLiveOnlyNeedsNoRightToRead(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(conf, []byte(edgeRights), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.StartConfig(t.Context(), conf, embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	login := func(o jetstream.Options) *jetstream.Conn {
		o.InProcess, o.Password, o.Log = srv.InProcess(), "x", testLog(t)
		conn, err := jetstream.Connect(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	conn := login(jetstream.Options{User: "services"})
	if err := conn.Ensure(t.Context(), jetstream.Settings{}); err != nil {
		t.Fatal(err)
	}
	keys := serve(t, conn)
	edge := login(jetstream.Options{User: "bob", InboxPrefix: "_INBOX_bob"})
	c := clientWith(t, edge, client.Config{Principal: "bob", GateKeys: keys, LiveOnly: true})

	out := held(t, c, "pay two")
	for i, a := range out.Asks {
		got, err := c.Approve(t.Context(), a.ToolCallID, nil)
		if err != nil || got.State != client.StateReleased {
			t.Fatalf("decision %d: %+v, %v", i, got, err)
		}
	}
	run, err := c.Start(t.Context(), client.Request{Agent: "clerk", Prompt: "pay"})
	if err != nil {
		t.Fatal(err)
	}
	if out, err = run.Wait(t.Context()); err != nil || out.FinishReason != client.FinishSuspended {
		t.Fatalf("output = %+v, %v", out, err)
	}
	if _, err := c.Approve(t.Context(), out.Asks[0].ToolCallID, nil); err != nil {
		t.Fatal(err)
	}
	if out, err = run.Wait(t.Context()); err != nil || out.Text != "Done." {
		t.Errorf("output = %+v, %v", out, err)
	}
	_, err = c.Approve(t.Context(), out.ToolCalls[0].ToolCallID, nil)
	wantCode(t, err, events.CodeAlreadyDecided)
	_, err = c.Generate(t.Context(), client.Request{Agent: "nobody", Prompt: "hello"})
	wantCode(t, err, events.CodeNotFound)
	waits := held(t, c, "pay")
	if outcome, err := c.Cancel(t.Context(), waits.RunID, ""); err != nil || outcome != events.RunCancelled {
		t.Errorf("cancel = %s, %v", outcome, err)
	}
	for name, err := range map[string]error{
		"info":      second(c.Info(t.Context(), waits.RunID)),
		"suspended": second(c.Suspended(t.Context(), client.Filter{})),
	} {
		if events.CodeOf(err) != events.CodeForbidden {
			t.Errorf("%s: error = %v, want forbidden", name, err)
		}
	}
	for name, err := range map[string]error{
		"ask":     second(c.Ask(t.Context(), waits.Asks[0].ToolCallID)),
		"the one": second(c.Ask(t.Context(), waits.RunID)),
		"no call": second(c.Approve(t.Context(), waits.RunID, nil)),
	} {
		if events.CodeOf(err) != events.CodeRunEnded {
			t.Errorf("%s: error = %v, want run_ended", name, err)
		}
	}
	if v := edge.Violations(); len(v) != 0 {
		t.Errorf("the client tried what it may not: %+v", v)
	}
}

func second[T any](_ T, err error) error { return err }

// A user who may read less than the configuration says, and one who may not ask the gate either, is refused once and not
// bothered again.
func TestDecideWithoutTheRightToReadTheLog(t *testing.T) {
	t.Parallel()
	for name, rights := range map[string]string{
		"may ask": edgeRights, "may not": strings.ReplaceAll(edgeRights, "weir.default.svc.", "weir.other.svc."),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			decidesWithoutReading(t, rights)
		})
	}
}

func decidesWithoutReading(t *testing.T, rights string) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(conf, []byte(rights), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.StartConfig(t.Context(), conf, embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	all, err := jetstream.Connect(t.Context(), jetstream.Options{InProcess: srv.InProcess(), User: "services", Password: "x"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = all.Close() })
	if err := all.Ensure(t.Context(), jetstream.Settings{}); err != nil {
		t.Fatal(err)
	}
	edge, err := jetstream.Connect(t.Context(), jetstream.Options{
		InProcess: srv.InProcess(), User: "bob", Password: "x",
		InboxPrefix: "_INBOX_bob",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = edge.Close() })
	c := clientWith(t, edge, client.Config{Principal: "bob", Wait: time.Second})
	for range 2 {
		if out, err := c.Approve(t.Context(), "r1=1-1", nil); err != nil || out.State != client.StateSent {
			t.Errorf("outcome = %+v, %v", out, err)
		}
	}
	tries := 0
	for _, v := range edge.Violations() {
		tries += v.Count
	}
	if tries > 3 { // answer and refusal, read at once, and the gate
		t.Errorf("the log was tried %d times", tries)
	}
}

// chunks of a turn that breaks off and is taken again.
func chunksWithRetry() []events.Chunk {
	const run = "r1"
	at := func(step, attempt int, c events.Chunk) events.Chunk {
		c.Step, c.Attempt = step, attempt
		return c
	}
	end := events.RunEnded{
		RunID: run, Outcome: events.RunCompleted, FinishReason: "stop", Attempt: 2, Step: 1,
		MessageID: "m2", Message: &events.Message{
			Role:  events.RoleAssistant,
			Parts: []events.Part{{Type: events.PartText, Text: "Hello you."}},
		}, Usage: events.Usage{TotalTokens: 3},
	}
	list := []events.Chunk{
		at(1, 1, events.StartChunk(run, "support", "m1")),
		at(1, 1, events.TextDeltaChunk(run, events.PartText, "m1-0", "Hello wor")),
		at(1, 2, events.StepRetryChunk(run, "m2", 2)),
		at(1, 1, events.TextDeltaChunk(run, events.PartText, "m1-0", "ld")), // late, of the withdrawn attempt
		at(1, 2, events.TextDeltaChunk(run, events.PartReasoning, "m2-0", "Be kind.")),
		at(1, 2, events.TextDeltaChunk(run, events.PartText, "m2-1", "Hello you.")),
	}
	return append(list, events.EndChunks(end, "end-1")...)
}

func TestB22_6WithdrawnAttemptsAreLeftOut(t *testing.T) {
	t.Parallel()
	conn := start(t)
	planner := &events.Origin{Namespace: ns, Service: "planner"}
	for _, ch := range chunksWithRetry() {
		if err := conn.PublishChunk(t.Context(), planner, ch); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.FlushChunks(t.Context(), "r1"); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, conn, "bob")
	texts := func(o *client.FollowOptions) (got []string) {
		for ch, err := range c.Run("r1").Follow(t.Context(), 0, o) {
			if err != nil {
				t.Fatal(err)
			}
			var p events.TextPayload
			if ch.Type == events.ChunkTextDelta && json.Unmarshal(ch.Payload, &p) == nil {
				got = append(got, p.Text)
			}
		}
		return got
	}
	if diff := cmp.Diff([]string{"Hello wor", "Hello you."}, texts(nil)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"Hello wor", "ld", "Hello you."}, texts(&client.FollowOptions{Withdrawn: true})); diff != "" {
		t.Error(diff)
	}
	out, err := c.Run("r1").Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out.Text != "Hello you." || out.Steps[0].ReasoningText != "Be kind." || out.Usage.TotalTokens != 3 {
		t.Errorf("output = %+v", out)
	}
}

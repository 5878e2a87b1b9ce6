package client_test

import (
	"sync"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/client"
)

// twoOf makes refunds need the approval of two. Gates read rules again soon.
func twoOf(t *testing.T, conn *jetstream.Conn) {
	t.Helper()
	raw, err := events.Marshal(events.RuleSet{Name: "default", Rules: []events.Rule{
		{Name: "four-eyes", Tools: []string{"issue_refund"}, Action: events.RuleAsk, Quorum: 2},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.PutNamed(t.Context(), events.RegistryRule, "default", raw); err != nil {
		t.Fatal(err)
	}
}

func with(a events.AskBrief) *client.DecisionOptions {
	return &client.DecisionOptions{Fingerprint: a.Fingerprint}
}

// TestB8_23_B8_34_VotersAreTold approves calls that need two: who is one of several is told how the ask stands, in every
// place that shows it, and who completes it that the call runs. It makes no difference whether a client may read the log.
func TestB8_23_B8_34_VotersAreTold(t *testing.T) {
	t.Parallel()
	for name, liveOnly := range map[string]bool{"reading the log": false, "by notes alone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := start(t)
			twoOf(t, conn)
			keys := serve(t, conn)
			reader := newClient(t, conn, "bob")
			out := held(t, reader, "pay")
			a := out.Asks[0].Ask
			if a.Quorum == nil || a.Quorum.Need != 2 {
				t.Fatalf("the chunk says %+v", a.Quorum)
			}
			alice := clientWith(t, conn, client.Config{Principal: "alice", GateKeys: keys, LiveOnly: liveOnly})
			carol := clientWith(t, conn, client.Config{Principal: "carol", GateKeys: keys, LiveOnly: liveOnly})
			_, err := alice.Approve(t.Context(), a.ToolCallID, nil)
			wantCode(t, err, events.CodeChanged)
			for range 2 { // the second time counts for nothing, and is told the same
				got, err := alice.Approve(t.Context(), a.ToolCallID, with(a))
				if err != nil || !got.Accepted || got.State != client.StatePending || got.Quorum.Need != 2 || len(got.Quorum.Votes) != 1 ||
					got.Quorum.Votes[0].Principal != "alice" {
					t.Fatalf("outcome = %+v, %v", got, err)
				}
			}
			shown, err := reader.Ask(t.Context(), a.ToolCallID)
			if err != nil || len(shown.Quorum.Votes) != 1 {
				t.Errorf("the ask shows %+v, %v", shown, err)
			}
			info, err := reader.Info(t.Context(), out.RunID)
			if err != nil || len(info.Asks) != 1 || len(info.Asks[0].Quorum.Votes) != 1 {
				t.Errorf("the run shows %+v, %v", info, err)
			}
			page, err := reader.Suspended(t.Context(), client.Filter{Run: out.RunID})
			if err != nil || len(page.Runs) != 1 || len(page.Runs[0].ToolCalls[0].Ask.Quorum.Votes) != 1 {
				t.Errorf("the list shows %+v, %v", page, err)
			}
			got, err := carol.Approve(t.Context(), a.ToolCallID, with(a))
			if err != nil || got.State != client.StateReleased || got.Answer.Principal != "carol" {
				t.Errorf("outcome = %+v, %v", got, err)
			}
			if out, err = reader.Run(out.RunID).Wait(t.Context()); err != nil || out.FinishReason != "stop" {
				t.Errorf("output = %+v, %v", out, err)
			}
			_, err = alice.Approve(t.Context(), a.ToolCallID, with(a))
			if e := refusal(t, err, events.CodeAlreadyDecided); e.Answer.Principal != "carol" {
				t.Errorf("a vote after the answer is told %+v", e)
			}
		})
	}
}

// TestB8_23_B8_16_VotersMeet lets two of two voters decide at once, again and again: each is told that the call runs, or
// that one more is needed and then never, and none is refused.
func TestB8_23_B8_16_VotersMeet(t *testing.T) {
	t.Parallel()
	conn := start(t)
	twoOf(t, conn)
	keys := serve(t, conn)
	reader := newClient(t, conn, "bob")
	voters := map[string]*client.Client{}
	for _, who := range []string{"alice", "carol"} {
		voters[who] = clientWith(t, conn, client.Config{Principal: who, GateKeys: keys})
	}
	for range 10 {
		out := held(t, reader, "pay")
		a := out.Asks[0].Ask
		released := 0
		var mu sync.Mutex
		var wg sync.WaitGroup
		for who, c := range voters {
			wg.Go(func() {
				got, err := c.Approve(t.Context(), a.ToolCallID, with(a))
				if err != nil || got.State != client.StateReleased && got.State != client.StatePending {
					t.Errorf("%s: outcome = %+v, %v", who, got, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if got.State == client.StateReleased {
					released++
				}
			})
		}
		wg.Wait()
		if released == 0 {
			t.Error("nobody is told that the call runs")
		}
		if out, err := reader.Run(out.RunID).Wait(t.Context()); err != nil || out.FinishReason != "stop" {
			t.Errorf("output = %+v, %v", out, err)
		}
	}
}

// TestB8_26_RepeatedAskIsOneAsk follows a run whose ask is repeated: a reader who comes late sees each form of it, stops
// where the run is suspended, and lists the call once, as it is now.
func TestB8_26_RepeatedAskIsOneAsk(t *testing.T) {
	t.Parallel()
	conn := start(t)
	raw, err := events.Marshal(events.RuleSet{Name: "default", Rules: []events.Rule{{
		Name: "four-eyes", Tools: []string{"issue_refund"}, Action: events.RuleAsk, Approvers: []string{"user:alice"},
		Escalate: []events.Escalate{{After: events.Duration(500 * time.Millisecond), To: []string{"user:carol"}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.PutNamed(t.Context(), events.RegistryRule, "default", raw); err != nil {
		t.Fatal(err)
	}
	serve(t, conn)
	c := newClient(t, conn, "carol")
	news, err := c.WatchAsks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := held(t, c, "pay")
	call := out.Asks[0].ToolCallID
	var heard []*events.CallHeld
	for n := range news {
		if n.Ask != nil {
			heard = append(heard, n.Ask)
		}
		if len(heard) == 2 {
			break
		}
	}
	if heard[0].Since != nil || heard[1].Since == nil || heard[1].Round != 0 || len(heard[1].EscalatedTo) != 1 {
		t.Errorf("heard %+v", heard)
	}
	if out, err = c.Run(out.RunID).Wait(t.Context()); err != nil || len(out.Asks) != 1 || out.FinishReason != client.FinishSuspended {
		t.Fatalf("output = %+v, %v", out, err)
	}
	got, err := c.Approve(t.Context(), call, nil)
	if err != nil || got.State != client.StateReleased {
		t.Errorf("outcome = %+v, %v", got, err)
	}
	if out, err = c.Run(out.RunID).Wait(t.Context()); err != nil || out.FinishReason != "stop" || len(out.Asks) != 0 {
		t.Errorf("output = %+v, %v", out, err)
	}
}

package approval_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

type vaultOrder struct {
	OrderID string `json:"orderId" jsonschema:"writeOnly=true"`
	Note    string `json:"note,omitempty"`
}

// vault is the refund of the support story with an order that is secret.
func vault(given *[]string) agent.Tool {
	return agent.NewTool("issue_refund", "Refund an order",
		func(_ context.Context, _ *agent.Call, in vaultOrder) (map[string]any, error) {
			*given = append(*given, in.OrderID+in.Note)
			return map[string]any{}, nil
		}, &agent.ToolOptions{
			RequireApproval: agent.Always(),
			InputSchema:     json.RawMessage(`{"type":"object","properties":{"orderId":{"type":"string","writeOnly":true},"note":{"type":"string"}}}`),
		})
}

// TestSignedEditOfSecrets keeps what was signed as a blob, because it holds the secret that the answer does not show, and
// the call runs with it.
func TestSignedEditOfSecrets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key, err := jetstream.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		var given []string
		w := sim.New(t, sim.Options{
			Tools:  []agent.Tool{vault(&given)},
			People: map[string]events.PrincipalDef{"carol": {ID: "carol", Auth: events.AuthKey, Key: key.Public}},
		})
		w.StartAll()
		run := w.Request("Refund order 42")
		call := refundOf(run)
		ask := w.AwaitAsk(call, soon)
		subject := w.Conn().Namespace().InDecide("carol", call)
		d := decision(events.Edit, call)
		d.Args, d.Fingerprint = json.RawMessage(`{"orderId":"order-43","note":"x"}`), ask.Fingerprint
		o := &events.Origin{Namespace: w.Conn().Namespace(), Service: "test"}
		e, err := o.RequestBy(subject, run, "carol", d)
		must(w, err)
		e.Signature = events.Sign(key, events.DomainDecision, subject, e.Payload)
		_, err = w.Conn().Publish(t.Context(), subject, e)
		must(w, err)
		askOf(w, call, 1)
		fact := w.Await(w.Conn().Namespace().Call(call, events.KindAnswer), soon)
		if strings.Contains(string(fact.Payload), "order-43") {
			t.Errorf("the answer shows %s", fact.Data)
		}
		a, err := events.Data[events.CallAnswered](fact)
		must(w, err)
		if a.Signed == nil || a.Signed.Payload != "" {
			t.Fatalf("signed: %+v", a.Signed)
		}
		body, err := w.Conn().Blob(t.Context(), a.Signed.DataRef)
		must(w, err)
		pub, err := jetstream.ParsePublic(key.Public)
		must(w, err)
		sig := events.Signature{Key: a.Signed.Key, Sig: a.Signed.Sig}
		must(w, events.Keys{key.Public: pub}.Verify(events.DomainDecision, a.Signed.Subject, body, sig))
		approveRound(w, run, 1)
		w.AwaitEnd(run, soon)
		if len(given) != 1 || given[0] != "order-43x" {
			t.Errorf("the tool got %q", given)
		}
		w.Check(true)
	})
}

// TestLostArguments ends a call whose frozen arguments are lost: approved, it does not run and says so; declined, it ends
// as any other.
func TestLostArguments(t *testing.T) {
	t.Parallel()
	for d, want := range map[events.Decision]events.Outcome{
		events.Approve: events.OutcomeError, events.Decline: events.OutcomeDeclined, events.Respond: events.OutcomeError,
	} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var given []string
				w := sim.New(t, sim.Options{
					Tools: []agent.Tool{vault(&given)},
					Gate:  func(c *approval.Config) { c.Sweep, c.SweepAge = 10*time.Second, 10*time.Second },
				})
				gate := w.Start(approval.Name)
				w.Start(planner.Name)
				w.Start(toolexecutor.Name)
				run := w.Request("Refund order 42")
				call := refundOf(run)
				ask := w.AwaitAsk(call, soon)
				must(w, gate.Stop())
				fact := w.Await(w.Conn().Namespace().Call(call, events.KindAsk), soon)
				ask.DataRef = events.Digest([]byte("lost")) // as if the blob had never been stored
				o := &events.Origin{Namespace: w.Conn().Namespace(), Service: approval.Name, Key: &w.Key}
				e, err := o.Fact(fact.Place, ask, fact)
				must(w, err)
				_, err = w.Conn().Append(t.Context(), events.After(fact), e)
				must(w, err)
				w.Start(approval.Name)
				req := decision(d, call)
				req.Result = json.RawMessage(`{}`)
				w.Decide("alice", req)
				end := w.AwaitEnd(run, 30*time.Minute)
				if end.Outcome != events.RunCompleted || len(given) != 0 {
					t.Errorf("the run ended as %s, the tool ran %d times", end.Outcome, len(given))
				}
				f, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(call, events.KindResult), soon))
				must(w, err)
				if f.Outcome != want || want == events.OutcomeError && !strings.Contains(f.Error.Message, "lost") {
					t.Errorf("the call ended as %s: %+v", f.Outcome, f.Error)
				}
			})
		})
	}
}

type vaultCard struct {
	OrderID string `json:"orderId,omitempty"`
	Card    struct {
		Number string `json:"number" jsonschema:"writeOnly=true"`
	} `json:"card"`
}

// TestLastWordsHoldNoSecretOfArgumentsThatNeedRepair asks about a call beside another one whose arguments are cut, or are
// repaired before they show their secret: what the agent said before them is shown without it, or not at all.
func TestLastWordsHoldNoSecretOfArgumentsThatNeedRepair(t *testing.T) {
	for name, args := range map[string]string{
		"cut":      `{"card":{"number":"4242-canary`,
		"repaired": `{"card":"{\"number\":\"4242-canary\"}"}`,
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) sim.Options {
				charge := agent.NewTool("charge", "Charge a card", func(context.Context, *agent.Call, vaultCard) (string, error) { return "", nil }, nil)
				pay := tool("pay", done, agent.ToolOptions{RequireApproval: agent.Always()})
				return sim.Options{
					Tools: []agent.Tool{charge, pay},
					Model: agenttest.NewModel(t, agenttest.Step{
						Text:  "I charge 4242-canary.",
						Calls: []agenttest.ToolCall{{Name: "pay", Args: `{"orderId":"42"}`}, {Name: "charge", Args: args}},
					}, agenttest.Say("done")),
				}
			}, func(w *sim.World) {
				w.StartAll()
				run := w.Request("go")
				fact := w.Await(w.Conn().Namespace().Call(refundOf(run), events.KindAsk), soon)
				if strings.Contains(string(fact.Payload), "canary") {
					w.T.Errorf("the ask shows %s", fact.Data)
				}
				answer(w, run, events.Decline, 0)
				w.AwaitEnd(run, soon)
			})
		})
	}
}

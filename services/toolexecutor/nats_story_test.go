package toolexecutor_test

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// TestB1_18_NATSTool runs a tool that is a NATS service of others: a call that it does not reply to is in doubt, the person
// who says retry has it sent again with the same key, and what it then replies is the result.
func TestB1_18_NATSTool(t *testing.T) {
	tool, err := toolexecutor.NewNATS(toolexecutor.NATSDef{
		Manifest: events.Manifest{
			ID: "job", Description: "Do a job", Effect: events.Effectful,
			InputSchema: json.RawMessage(`{"type":"object","properties":{"orderId":{"type":"string"}}}`),
		},
		Subject: "shop.job", Timeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	in(t, sim.Options{Tools: []agent.Tool{tool}}, func(w *sim.World) {
		nc, err := nats.Connect("", nats.InProcessServer(w.Server.InProcess()))
		if err != nil {
			w.T.Fatal(err)
		}
		defer nc.Close()
		var mu sync.Mutex
		var keys []string
		_, err = nc.Subscribe("shop.job", func(m *nats.Msg) {
			mu.Lock()
			defer mu.Unlock()
			if keys = append(keys, m.Header.Get("Idempotency-Key")); len(keys) > 1 {
				_ = m.Respond([]byte(`{"done":true}`))
			}
		})
		if err != nil {
			w.T.Fatal(err)
		}
		w.StartAll()
		run := w.Request("Do it")
		ask := w.AwaitAsk(first(run), soon)
		if ask.Kind != events.AskInDoubt {
			w.T.Fatalf("asked as %s, want in doubt", ask.Kind)
		}
		w.Decide("bob", events.DecisionRequested{
			ToolCallID: first(run).String(), Decision: events.Retry, Round: &ask.Round, Fingerprint: ask.Fingerprint,
		})
		if d := result(w, run); d.Outcome != events.OutcomeOK || string(d.Result) != `{"done":true}` {
			w.T.Errorf("result = %+v", d)
		}
		w.AwaitEnd(run, soon)
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff([]string{first(run).String(), first(run).String()}, keys); diff != "" {
			w.T.Errorf("the service was sent other keys:\n%s", diff)
		}
		w.Check(true)
	})
}

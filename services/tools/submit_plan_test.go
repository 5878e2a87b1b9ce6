package tools_test

import (
	"testing"
	"testing/synctest"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/tools"
)

// TestB15_6_B15_7SubmitPlan: what submit_plan takes, what it shows, and what it tells the model.
func TestB15_6_B15_7SubmitPlan(t *testing.T) {
	t.Parallel()
	const plan = `{"path":"plans/ship.md"}`
	for _, test := range []struct{ name, resume, want string }{
		{"submitted", ``, `suspended with {"toolId":"submit_plan","path":"plans/ship.md"}`},
		{
			"approved", `{"action":"approved","path":"plans/ship.md","title":"Ship","plan":"# Do it"}`,
			`{"toolId":"submit_plan","content":"Plan approved. Proceed with implementation following the approved plan.","isError":false,` +
				`"submittedPlan":{"title":"Ship","path":"plans/ship.md","plan":"# Do it"}}`,
		},
		{
			"approved, no more said", `{"action":"approved"}`,
			`{"toolId":"submit_plan","content":"Plan approved. Proceed with implementation following the approved plan.","isError":false,` +
				`"submittedPlan":{"path":"plans/ship.md"}}`,
		},
		{
			"feedback", `{"action":"rejected","feedback":"add \"tests\""}`,
			`{"toolId":"submit_plan","content":"Plan was not approved. The user wants revisions.\n\nUser feedback: add \"tests\"\n\n` +
				`Revise the plan accordingly and submit it again with submit_plan.","isError":false,` +
				`"submittedPlan":{"path":"plans/ship.md","feedback":"add \"tests\""}}`,
		},
		{
			"rejected", `{"action":"rejected"}`,
			`{"toolId":"submit_plan","content":"Plan was not approved. The user will say in the next message what to change. ` +
				`Stop now and wait for that message before you revise the plan.","isError":false,"submittedPlan":{"path":"plans/ship.md"}}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := outcome(agenttest.Run(t, tools.SubmitPlan, plan, inAgent(test.resume))); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
	for _, args := range []string{`{}`, `{"path":""}`, `{"plan":"# Do it"}`} {
		if r := agenttest.Run(t, tools.SubmitPlan, args, inAgent("")); r.Outcome != events.OutcomeInvalid {
			t.Errorf("%s: %s, want invalid", args, outcome(r))
		}
	}
	want := `{"toolId":"submit_plan","content":"[Plan submitted for review]\n\nPath: plans/ship.md","isError":false}`
	if got := outcome(agenttest.Run(t, tools.SubmitPlan, plan, nil)); got != want {
		t.Errorf("outside an agent: %s", got)
	}
}

// TestB15_7PlanIsDecided takes a plan through the gate: what is no decision about a plan does not count.
func TestB15_7PlanIsDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _ := scripted(t, tools.SubmitPlan, `{"path":"plan.md"}`, agenttest.Say("on it"))
		w := sim.New(t, o)
		w.StartAll()
		inThread(w, "r1", "Plan it")
		ask := w.AwaitAsk(callOf("r1"), soon)
		codes := refusals(w, "alice")
		for _, data := range []string{`{"action":"maybe"}`, `{}`, `"approved"`, `{"action":"approved","feedback":1}`} {
			resume(w, ask, data)
			if code := <-codes; code != events.CodeInvalidData {
				t.Errorf("%s: refused as %s", data, code)
			}
		}
		resume(w, ask, `{"action":"approved","title":"Ship"}`)
		if r := resultOf(w, "r1"); r.Outcome != events.OutcomeOK {
			t.Errorf("result %+v", r)
		}
		w.AwaitEnd("r1", soon)
		w.Check(true)
	})
}

package sim

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

// broken is a turn whose model fails: for good, or in a way that may pass.
func broken(status int, passes bool) agenttest.Step {
	return agenttest.Step{Text: "half a", Err: &agent.ModelError{Retryable: passes, Status: status, Err: errors.New("model is out")}}
}

func chain() Options {
	return Options{Agent: events.AgentDef{
		ID: "support", Model: "scripted/a", Fallbacks: []string{"scripted/b", "scripted/c"}, Tools: map[string]string{"find": "find"},
	}}
}

// askedModels are the models that were asked, in order.
func (b *bench) askedModels() string {
	var names []string
	for _, r := range b.model.Requests() {
		names = append(names, strings.TrimPrefix(r.Model, "scripted/"))
	}
	return strings.Join(names, " ")
}

// TestB22_6_Fallbacks: where a model fails for good, or as often as it is asked, the next one is asked: in that turn only. Readers
// drop what they saw of it and are warned; the step names the model that spoke; a tool runs once.
func TestB22_6_Fallbacks(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, chain(), []agent.Tool{echo("find", anything, agent.ToolOptions{})},
			broken(401, false), broken(529, true), broken(529, true), broken(529, true), broken(529, true), asks(callTo("find", `{}`)),
			agenttest.Say("done"))
		b.StartAll()
		run := b.Request("go")
		b.completed(run)
		equal(t, "asked", b.askedModels(), "a b b b b c a")
		step, err := events.Data[events.StepFinished](b.Await(b.Conn().Namespace().Step(run, 1), moment))
		b.must(err)
		equal(t, "model of the step", step.Model, "scripted/c")
		equal(t, "runs", len(b.given("find")), 1)
		seen := map[int]bool{}
		warned := 0
		for _, c := range b.chunks(run) {
			if c.Type == events.ChunkStepStart && c.Step == 1 {
				if seen[c.Attempt] {
					t.Errorf("attempt %d begins twice", c.Attempt)
				}
				seen[c.Attempt] = true
			}
			if c.Type == events.ChunkWarning && strings.Contains(string(c.Payload), "model_fallback") {
				warned++
			}
		}
		equal(t, "attempts", len(seen), 6)
		equal(t, "warnings", warned, 2)
	})
}

// TestB22_6_FallbacksFail: the run fails with what the first model said; one that the request names has no fallbacks.
func TestB22_6_FallbacksFail(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := newBench(t, chain(), nil, broken(401, false), broken(404, false), broken(403, false), broken(402, false))
		b.StartAll()
		end := b.AwaitEnd(b.Request("go"), moment)
		equal(t, "end", string(end.Outcome), "failed")
		if end.Error == nil || end.Error.Code != events.CodeModelFailed || !strings.Contains(end.Error.Message, "401") {
			t.Errorf("the run failed with %v", end.Error)
		}
		run := events.NewID(time.Now())
		b.RequestAs("bob", events.RunRequested{
			AgentID: "support", RunID: run, Model: "scripted/own", Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")},
		})
		equal(t, "end of the other", string(b.AwaitEnd(run, moment).Outcome), "failed")
		equal(t, "asked", b.askedModels(), "a b c own")
	})
}

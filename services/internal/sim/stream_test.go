package sim

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

var updateStreams = flag.Bool("weir.update", false, "write the sequences of chunks in testdata/streams again")

// volatile is what differs from run to run in what readers are shown.
var volatile = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "DIGEST"},
	{regexp.MustCompile(`"startedAt":\d+`), `"startedAt":TIME`},
	{regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+Z"`), `"TIME"`},
}

// shown are the chunks of a run as readers are shown them, one line each: the type, from whom, what it holds. Ids are named by
// their order, the run is RUN.
func shown(run string, chunks []events.Chunk) string {
	var b strings.Builder
	names := strings.NewReplacer(run, "RUN")
	ids := map[string]string{}
	uuid := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)
	for _, c := range chunks {
		line := fmt.Sprintf("%s %s %s", c.Type, c.From, c.Payload)
		if c.Attempt > 1 {
			line += fmt.Sprintf(" attempt %d", c.Attempt)
		}
		line = names.Replace(line)
		line = uuid.ReplaceAllStringFunc(line, func(id string) string {
			if ids[id] == "" {
				ids[id] = fmt.Sprintf("ID%d", len(ids)+1)
			}
			return ids[id]
		})
		for _, v := range volatile {
			line = v.what.ReplaceAllString(line, v.by)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// scenario is a run whose stream is looked at.
type scenario struct {
	prose string
	o     Options
	tools []agent.Tool
	turns []agenttest.Step
	act   func(b *bench, run string) // what people do; default: nothing
}

// writer is a tool that tells how it gets on.
func writer(id string) agent.Tool {
	return agent.NewTool(id, "The tool "+id, func(ctx context.Context, call *agent.Call, _ json.RawMessage) (any, error) {
		return map[string]bool{"ok": true}, errors.Join(
			call.Write(ctx, map[string]int{"percent": 50}),
			call.Custom(ctx, "data-progress", map[string]int{"left": 2}, &agent.CustomOptions{ID: "p"}))
	}, &agent.ToolOptions{InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`)})
}

func fails(id string) agent.Tool {
	return agent.NewTool(id, "The tool "+id, func(context.Context, *agent.Call, json.RawMessage) (any, error) {
		return nil, agent.Errorf("full", "no room")
	}, &agent.ToolOptions{InputSchema: json.RawMessage(anything)})
}

// searched is a turn in which the provider has searched the web.
func searched() agenttest.Step {
	return agenttest.Step{Parts: []agent.ModelPart{
		{Type: agent.PartProviderCall, ID: "own-0", ToolName: "web_search", Text: `{"query":"weather Rome"}`},
		{Type: agent.PartProviderResult, ID: "own-0", ToolName: "web_search", Text: `[{"url":"https://example.com/"}]`},
		{Type: agent.PartTextDelta, ID: "text-1", Text: "Sunny."},
		{Type: agent.PartSource, ID: "source-0", URL: "https://example.com/", Text: "Weather"},
		{Type: agent.PartFinish, FinishReason: agent.FinishStop},
	}}
}

// TestB22_10_B14_4_ProviderExecuted: what a provider runs is told, and is none of the run's calls: nothing of it is in the log,
// and the run goes on and ends as if there were none.
func TestB22_10_B14_4_ProviderExecuted(t *testing.T) {
	inCase(t, func(t *testing.T) {
		turn := searched()
		turn.Parts = append(turn.Parts[:4:4], calls("find", `{"n":1}`)...)
		b := newBench(t, Options{}, []agent.Tool{echo("find", anything, agent.ToolOptions{RequireApproval: agent.Always()})}, turn, agenttest.Say("Done."))
		b.StartAll()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 1), moment)
		b.send("alice", events.Approve, b.call(run, 1, 1), nil)
		b.completed(run)
		step, err := events.Data[events.StepFinished](b.Await(b.Conn().Namespace().Step(run, 1), moment))
		b.must(err)
		equal(t, "calls", len(step.Calls), 1)
		equal(t, "the call", step.Calls[0].ToolName, "find")
		equal(t, "told to the model", len(b.told()), 1)
	})
}

func scenarios() map[string]scenario {
	held := agent.ToolOptions{RequireApproval: agent.Always()}
	return map[string]scenario{
		"text": {
			prose: "A run that only speaks, after it has thought.", turns: []agenttest.Step{{Reasoning: "They greet.", Text: "Hello there."}},
		},
		"tools": {
			prose: "A call that brings a result, one that fails, one whose arguments are wrong; then the answer.",
			tools: []agent.Tool{echo("find", `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`, agent.ToolOptions{}), fails("store")},
			turns: []agenttest.Step{
				{Text: "Let me see.", Calls: []agenttest.ToolCall{callTo("find", `{"n":1}`)}},
				asks(callTo("store", `{}`)), asks(callTo("find", `{"n":"x"}`)),
				agenttest.Say("Done."),
			},
		},
		"output": {
			prose: "A tool that tells how it gets on.", tools: []agent.Tool{writer("work")},
			turns: []agenttest.Step{asks(callTo("work", `{}`)), agenttest.Say("Done.")},
		},
		"approved": {
			prose: "A held call that is approved: nothing of the beginning is told again.", tools: []agent.Tool{echo("pay", anything, held)},
			turns: []agenttest.Step{asks(callTo("pay", `{"n":1}`)), agenttest.Say("Paid.")},
			act: func(b *bench, run string) {
				b.AwaitAsk(b.call(run, 1, 1), moment)
				b.send("alice", events.Approve, b.call(run, 1, 1), nil)
			},
		},
		"declined": {
			prose: "Of two held calls one is declined and the other approved, in reverse order.", tools: []agent.Tool{echo("pay", anything, held)},
			turns: []agenttest.Step{asks(callTo("pay", `{"n":1}`), callTo("pay", `{"n":2}`)), agenttest.Say("One of two.")},
			act: func(b *bench, run string) {
				b.AwaitAsk(b.call(run, 1, 2), moment)
				b.pause(time.Second)
				b.send("alice", events.Decline, b.call(run, 1, 2), func(d *events.DecisionRequested) { d.Reason = "too much" })
				b.Await(b.Conn().Namespace().Call(b.call(run, 1, 2), events.KindResult), moment)
				b.pause(time.Second)
				b.send("alice", events.Approve, b.call(run, 1, 1), nil)
			},
		},
		"suspended": {
			prose: "A tool that suspends itself and is resumed.", tools: []agent.Tool{pauser("ask", agent.ToolOptions{})},
			turns: []agenttest.Step{asks(callTo("ask", `{}`)), agenttest.Say("Thanks.")},
			act: func(b *bench, run string) {
				b.AwaitAsk(b.call(run, 1, 1), moment)
				b.send("alice", events.ResumeD, b.call(run, 1, 1), withData(`{"city":"Rome"}`))
			},
		},
		"retried": {
			prose: "The model breaks off and is asked once more: what was told of the turn before does not count.",
			turns: []agenttest.Step{broken(529, true), agenttest.Say("Hello.")},
		},
		"failed": {prose: "The model fails for good.", turns: []agenttest.Step{broken(401, false)}},
		"limit": {
			prose: "The run may take one turn: its calls still run.", tools: []agent.Tool{echo("find", anything, agent.ToolOptions{})},
			o:     Options{Agent: events.AgentDef{ID: "support", Model: "scripted/x", Tools: map[string]string{"find": "find"}, Limits: &events.Limits{Steps: 1}}},
			turns: []agenttest.Step{asks(callTo("find", `{"n":1}`))},
		},
		"cancelled": {
			prose: "The run is cancelled while a call waits.", tools: []agent.Tool{echo("pay", anything, held)},
			turns: []agenttest.Step{asks(callTo("pay", `{"n":1}`))},
			act: func(b *bench, run string) {
				b.AwaitAsk(b.call(run, 1, 1), moment)
				b.pause(time.Second)
				b.Cancel("bob", run)
			},
		},
		"provider": {prose: "The model's provider searches the web within the turn: shown, and nobody's call.", turns: []agenttest.Step{searched()}},
		"background": {
			prose: "A call goes on in the background: the model is told a placeholder, and the result at its next turn.",
			tools: []agent.Tool{lasting("research", 5*time.Second, agent.ToolOptions{Background: inBackground}), lasting("look", 10*time.Second, agent.ToolOptions{})},
			turns: []agenttest.Step{asks(callTo("research", order42)), asks(callTo("look", order42)), agenttest.Say("Found.")},
		},
	}
}

// TestB14_1to3_B14_5to11_B14_13_B14_16to21_Sequences compares all that the readers of a run are shown, in order, with what is
// written down in testdata/streams.
func TestB14_1to3_B14_5to11_B14_13_B14_16to21_Sequences(t *testing.T) {
	for name, s := range scenarios() {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				b := newBench(t, s.o, s.tools, s.turns...)
				b.StartAll()
				run := b.Request("go")
				if s.act != nil {
					s.act(b, run)
				}
				b.AwaitEnd(run, 10*moment)
				b.pause(2 * time.Second)
				got := s.prose + "\n\n-- chunks --\n" + shown(run, b.chunks(run))
				file := filepath.Join("testdata", "streams", name+".txtar")
				if *updateStreams {
					b.must(os.WriteFile(file, []byte(got), 0o600))
				}
				want, err := os.ReadFile(file)
				b.must(err)
				if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
					t.Errorf("what readers are shown (-want +got):\n%s", diff)
				}
			})
		})
	}
}

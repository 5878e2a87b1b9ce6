package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// diary is what observers and handlers wrote, in the order in which they ran.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) all() []string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

// noted is an observer that writes down what it is told.
func (d *diary) noted(_ context.Context, o *agent.Observed) error {
	d.write(strings.TrimSpace(string(o.Event) + " " + o.ToolName + " " + o.InputTextDelta + string(o.Input) + string(o.Output)))
	return nil
}

// observed are options with observers of everything.
func (d *diary) observed() agent.ToolOptions {
	return agent.ToolOptions{
		InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`),
		OnInputStart: d.noted, OnInputDelta: d.noted, OnInputAvailable: d.noted, OnOutput: d.noted,
	}
}

// tool is a tool that writes down that it runs.
func (d *diary) tool(id string, o agent.ToolOptions) agent.Tool {
	return agent.NewTool(id, "The tool "+id, func(_ context.Context, _ *agent.Call, in json.RawMessage) (any, error) {
		d.write("handler " + id)
		return in, nil
	}, &o)
}

// ears hears everything below a subject.
func (b *bench) ears(subjects ...string) *tap {
	b.T.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(b.Server.InProcess()))
	b.must(err)
	b.T.Cleanup(nc.Close)
	ear := &tap{}
	for _, subject := range subjects {
		_, err := nc.Subscribe(subject, ear.hear)
		b.must(err)
	}
	ctx, cancel := context.WithTimeout(b.T.Context(), moment)
	defer cancel()
	b.must(nc.FlushWithContext(ctx)) // without timers of the process, which go from one fake time into another
	return ear
}

// TestB6_1_B6_2_ObserversAreToldInOrder of what a tool declares, and of nothing else; the raw events are there for others to hear.
func TestB6_1_B6_2_ObserversAreToldInOrder(t *testing.T) {
	inCase(t, func(t *testing.T) {
		d := &diary{}
		o := d.observed()
		o.RequireApproval = agent.Always()
		told := make(chan int, 4)
		read := func(ctx context.Context, seen *agent.Observed) error {
			messages, err := seen.Messages(ctx)
			told <- len(messages)
			return errors.Join(err, d.noted(ctx, seen))
		}
		o.OnInputStart, o.OnInputAvailable, o.OnOutput = read, read, read
		quiet := agent.ToolOptions{InputSchema: json.RawMessage(anything), OutputSchema: json.RawMessage(`{}`)}
		b := newPreviews(t, Options{}, []agent.Tool{d.tool("job", o), d.tool("quiet", quiet)},
			asks(callTo("quiet", `{}`)), asks(callTo("job", `{"a":1}`)), agenttest.Say("done"))
		ear := b.ears("weir.default.hook.>")
		b.startHosted()
		run := b.Request("go")
		b.send("alice", events.Approve, b.call(run, 2, 1), nil)
		b.completed(run)
		equal(t, "diary", d.all(), []string{
			"handler quiet", "onInputStart job", `onInputDelta job {"a`, `onInputDelta job ":1}`, `onInputAvailable job {"a":1}`, "handler job",
			`onOutput job {"a":1}`,
		})
		equal(t, "messages at the start", <-told, 3) // of the user, the call and the result of the turn before
		equal(t, "messages at the input", <-told, 3)
		equal(t, "messages at the output", <-told, 0)
		heard := ear.all()
		equal(t, "heard", len(heard), 5)
		var first events.CallObserved
		subject, body, _ := strings.Cut(strings.TrimSuffix(heard[0], "map[]"), " ")
		equal(t, "subject", subject, "weir.default.hook.job.onInputStart")
		b.must(json.Unmarshal([]byte(body), &first))
		equal(t, "first", first, events.CallObserved{
			Namespace: events.DefaultNamespace, Event: events.OnInputStart, RunID: run, ToolCallID: b.call(run, 2, 1).String(),
			ToolName: "job", ToolID: "job", ToolVersion: "1", AgentID: "support", Attempt: 1,
		})
	})
}

// TestB6_3_InputOnceAndOutputOfTheHandlerOnly: not for invalid arguments, not again on a resume, and no output of who has
// answered in the tool's place or of a call that failed.
func TestB6_3_InputOnceAndOutputOfTheHandlerOnly(t *testing.T) {
	inCase(t, func(t *testing.T) {
		d := &diary{}
		options := func() agent.ToolOptions { return agent.ToolOptions{OnInputAvailable: d.noted, OnOutput: d.noted} }
		strict := options()
		held := options()
		held.RequireApproval = agent.Always()
		fails := options()
		b := newPreviews(t, Options{}, []agent.Tool{
			echo("strict", `{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}`, strict), pauser("pauses", options()),
			echo("held", anything, held),
			agent.NewTool("fails", "Fails", func(context.Context, *agent.Call, struct{}) (any, error) { return nil, errors.New("no") }, &fails),
		}, asks(callTo("strict", `{"n":"x"}`), callTo("pauses", `{}`), callTo("held", `{}`), callTo("fails", `{}`)), agenttest.Say("done"))
		b.startHosted()
		run := b.Request("go")
		b.send("alice", events.ResumeD, b.call(run, 1, 2), withData(`7`))
		b.send("alice", events.Respond, b.call(run, 1, 3), func(r *events.DecisionRequested) { r.Result = json.RawMessage(`"by hand"`) })
		b.completed(run)
		got := d.all()
		slices.Sort(got)
		equal(t, "diary", got, []string{
			"onInputAvailable fails {}", "onInputAvailable held {}", "onInputAvailable pauses {}", "onOutput pauses 7",
		})
	})
}

// TestB6_3_AStepThatComesAgainTellsNothingAgain stops the gate after each first fact of a call, so that another one looks at the
// step, and at the calls that have gone on.
func TestB6_3_AStepThatComesAgainTellsNothingAgain(t *testing.T) {
	for _, point := range []string{"go.before", "go.after", "settle:step"} {
		t.Run(point, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				d := &diary{}
				var once atomic.Bool
				o := agent.ToolOptions{OnInputAvailable: d.noted}
				b := newPreviews(t, Options{Point: func(name string, c *Copy) {
					if name == point && once.CompareAndSwap(false, true) {
						c.Kill()
					}
				}}, []agent.Tool{echo("job", anything, o)}, asks(callTo("job", `{}`)), agenttest.Say("done"))
				b.Start(planner.Name)
				b.Start(toolexecutor.Name)
				b.Start(approval.Name)
				b.pause(time.Second)
				run := b.Request("go")
				b.pause(time.Second)
				b.Start(approval.Name)
				b.completed(run)
				equal(t, "the gate was stopped", once.Load(), true)
				equal(t, "diary", d.all(), []string{"onInputAvailable job {}"})
			})
		})
	}
}

// TestB6_4_ObserversChangeNothing when they fail, panic or never come back; what is logged of them holds no value.
func TestB6_4_ObserversChangeNothing(t *testing.T) {
	inCase(t, func(t *testing.T) {
		var logged bytes.Buffer
		o := agent.ToolOptions{
			OnInputStart: func(context.Context, *agent.Observed) error { panic(canary) },
			OnInputAvailable: func(_ context.Context, seen *agent.Observed) error {
				return errors.New(canary + string(seen.Input))
			},
			OnOutput: func(context.Context, *agent.Observed) error {
				time.Sleep(20 * time.Second) // fake
				return nil
			},
		}
		b := newPreviews(t, Options{Log: slog.New(slog.NewJSONHandler(&locked{w: &logged}, nil))},
			[]agent.Tool{echo("job", anything, o)}, asks(callTo("job", `{"secret":"`+canary+`"}`)), agenttest.Say("done"))
		b.startHosted()
		began := time.Now()
		run := b.Request("go")
		b.completed(run)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the run took %v", took)
		}
		equal(t, "outcome", b.result(b.call(run, 1, 1)).Outcome, events.OutcomeOK)
		b.pause(30 * time.Second)
		synctest.Wait()
		text := logged.String()
		for _, want := range []string{"it panicked", "it failed", "it did not finish in time"} {
			if !strings.Contains(text, want) {
				t.Errorf("the log does not say %q: %s", want, text)
			}
		}
		clean(t, "logged", strings.Split(text, "\n"))
	})
}

// TestB6_1_ACancelEndsTheContextOfObservers that are being told of the run's calls.
func TestB6_1_ACancelEndsTheContextOfObservers(t *testing.T) {
	inCase(t, func(t *testing.T) {
		began, ended := make(chan struct{}), make(chan time.Duration, 1)
		o := agent.ToolOptions{RequireApproval: agent.Always(), OnInputAvailable: func(ctx context.Context, _ *agent.Observed) error {
			close(began)
			at := time.Now()
			<-ctx.Done()
			ended <- time.Since(at)
			return nil
		}}
		b := newPreviews(t, Options{}, []agent.Tool{echo("job", anything, o)}, asks(callTo("job", `{}`)))
		b.startHosted()
		run := b.Request("go")
		b.AwaitAsk(b.call(run, 1, 1), moment)
		<-began
		b.Cancel("bob", run)
		if after := <-ended; after > 5*time.Second {
			t.Errorf("the observer's context ended after %v", after)
		}
		equal(t, "outcome", b.AwaitEnd(run, moment).Outcome, events.RunCancelled)
	})
}

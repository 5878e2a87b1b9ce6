package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// payment is what the tool of these tests is given. Its card must not be shown.
type payment struct {
	OrderID string `json:"orderId"`
	Card    string `json:"card"`
	How     string `json:"how,omitempty"`
}

// pay is a tool that tells the card in every way that it has.
func pay(b **bench, o agent.ToolOptions) agent.Tool {
	o.Effect, o.Timeout, o.OutputSchema = agent.Idempotent, 20*time.Second, json.RawMessage(`{}`)
	return agent.NewTool("pay", "Pays", func(ctx context.Context, call *agent.Call, in payment) (any, error) {
		(*b).mu.Lock()
		(*b).seen["pay"] = append((*b).seen["pay"], in.Card)
		(*b).mu.Unlock()
		if err := call.Write(ctx, "charging "+in.Card); err != nil {
			return nil, err
		}
		if err := call.Custom(ctx, "data-charge", map[string]string{"card": in.Card}, nil); err != nil {
			return nil, err
		}
		call.Log().InfoContext(ctx, "charging")
		switch {
		case in.How == "error":
			return nil, agent.Errorf("declined-"+in.Card, "card %s is declined", in.Card)
		case in.How == "panic":
			panic("card " + in.Card)
		case in.How == "slow":
			<-ctx.Done()
			return nil, fmt.Errorf("still charging %s: %w", in.Card, ctx.Err())
		case in.How == "suspend" && !call.Resumed():
			return nil, call.Suspend(map[string]string{"pin of": in.Card})
		case in.How == "suspend":
			return nil, agent.Errorf("wrong", "resumed with %s", call.SuspendPayload())
		}
		return map[string]string{"receipt": "r-1", "paidWith": in.Card}, nil
	}, &o)
}

// formed are forms of all phases, by jq.
func formed() *agent.Forms {
	return &agent.Forms{
		Input: agent.FormJQ(`{orderId}`), InputDelta: agent.FormJQ(`"…"`), Output: agent.FormJQ(`{receipt, tool: $call.toolName, order: $call.input.orderId}`),
		Error: agent.FormJQ(`{message: "payment failed"}`), Approval: agent.FormJQ(`{orderId, card: ("ends in " + .card[-2:])}`),
		Suspend: agent.FormJQ(`{question: "PIN?"}`), Resume: agent.FormJQ(`{}`),
	}
}

const card = canary + "-4242"

func payArgs(how string) string {
	return fmt.Sprintf(`{"orderId":"o-1","card":%q,"how":%q}`, card, how)
}

// payments is a bench with a tool that pays, and what it shows.
func payments(t *testing.T, o Options, options agent.ToolOptions, steps ...agenttest.Step) *bench {
	t.Helper()
	var b *bench
	b = newPreviews(t, o, []agent.Tool{pay(&b, options)}, steps...)
	return b
}

// metadata is what the chunk of a type about a call says of how its values were made.
func (b *bench) metadata(run string, t events.ChunkType, call events.CallID) string {
	b.T.Helper()
	for _, c := range b.chunks(run) {
		if c.Type == t && strings.Contains(string(c.Payload), call.String()+`"`) {
			return string(c.Metadata)
		}
	}
	b.T.Fatalf("no chunk %s about %s", t, call)
	return ""
}

func made(byPhase string) string {
	return `{"mastra":{"toolPayloadTransform":{"display":{` + byPhase + `}}}}`
}

// TestB5_1_B5_3_B5_4_B5_9_SafeFormsStandInThePayload: what is published is the form of its phase, in the payload and repeated in the
// metadata; the record keeps what is real, and the model and the tool get it (B5.13).
func TestB5_1_B5_3_B5_4_B5_9_SafeFormsStandInThePayload(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := payments(t, Options{}, agent.ToolOptions{Transform: &agent.Transform{Display: formed()}, RequireApproval: agent.Always()},
			asks(callTo("pay", payArgs(""))), agenttest.Say("done"))
		b.startHosted()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		equal(t, "args of the call", string(chunk[events.ToolCallPayload](b, run, events.ChunkToolCall, call).Args), `{"orderId":"o-1"}`)
		equal(t, "metadata of the call", b.metadata(run, events.ChunkToolCall, call), made(`"input-available":{"transformed":{"orderId":"o-1"}}`))
		held := chunk[events.AskPayload](b, run, events.ChunkToolCallApproval, call)
		equal(t, "args of the ask", string(held.Args), `{"card":"ends in 42","orderId":"o-1"}`)
		result := chunk[events.ToolResultPayload](b, run, events.ChunkToolResult, call)
		safe := `{"order":"o-1","receipt":"r-1","tool":"pay"}`
		equal(t, "args of the result", string(result.Args), `{"orderId":"o-1"}`)
		equal(t, "result", string(result.Result), safe)
		equal(t, "metadata of the result", b.metadata(run, events.ChunkToolResult, call),
			made(`"input-available":{"transformed":{"orderId":"o-1"}},"output-available":{"transformed":`+safe+`}`))
		raw := `{"paidWith":"` + card + `","receipt":"r-1"}`
		record := b.result(call)
		equal(t, "record", string(record.Result), raw)
		equal(t, "display of the record", string(record.Display), safe)
		equal(t, "told", b.told(), []string{"pay json " + raw})
		equal(t, "given", b.given("pay"), []string{card})
	})
}

// TestB5_5_B5_6_ACoveredPhaseWithoutAFormShowsNothing, neither the arguments as they come nor anything else.
func TestB5_5_B5_6_ACoveredPhaseWithoutAFormShowsNothing(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := payments(t, Options{}, agent.ToolOptions{
			Transform: &agent.Transform{Display: &agent.Forms{}, Transcript: &agent.Forms{}}, RequireApproval: agent.Always(),
		}, asks(callTo("pay", payArgs("")), callTo("pay", payArgs("error")), callTo("pay", payArgs("suspend"))), agenttest.Say("done"))
		b.startHosted()
		run := b.Request("go")
		for i := 1; i <= 3; i++ {
			b.send("alice", events.Approve, b.call(run, 1, i), nil)
		}
		b.awaitRound(b.call(run, 1, 3), 1)
		b.send("alice", events.ResumeD, b.call(run, 1, 3), withData(`{"pin":"`+canary+`"}`))
		b.completed(run)
		nothing := func(p events.Phase) string { return string(events.Unavailable(p)) }
		call := b.call(run, 1, 1)
		equal(t, "placeholder", nothing(events.PhaseInput), `{"message":"Tool input-available payload unavailable"}`)
		equal(t, "args", string(chunk[events.ToolCallPayload](b, run, events.ChunkToolCall, call).Args), nothing(events.PhaseInput))
		equal(t, "approval", string(chunk[events.AskPayload](b, run, events.ChunkToolCallApproval, call).Args), nothing(events.PhaseApproval))
		equal(t, "result", string(chunk[events.ToolResultPayload](b, run, events.ChunkToolResult, call).Result), nothing(events.PhaseOutput))
		failed := chunk[events.ToolResultPayload](b, run, events.ChunkToolError, b.call(run, 1, 2)).Error
		equal(t, "error", failed.Name+": "+failed.Message, "Error: Tool error payload unavailable")
		suspended := chunk[events.AskPayload](b, run, events.ChunkToolCallSuspended, b.call(run, 1, 3))
		equal(t, "suspend payload", string(suspended.SuspendPayload), nothing(events.PhaseSuspend))
		equal(t, "transcript", string(b.result(call).Transcript), nothing(events.PhaseOutput))
		for _, c := range b.chunks(run) {
			if c.Type == events.ChunkToolInputDelta || c.Type == events.ChunkToolOutput || strings.Contains(string(c.Payload), canary) {
				t.Errorf("chunk %s %s", c.Type, c.Payload)
			}
		}
	})
}

// TestB5_2_B5_7_FormsThatFail: a function or program that fails, is late or has no host shows that nothing may be shown;
// forms after it are not tried. One that gives nothing leaves it to the next.
func TestB5_2_B5_7_FormsThatFail(t *testing.T) {
	form := func(f func(ctx context.Context, v agent.Shown) (any, error)) *agent.Form { return agent.FormFunc(f) }
	nothing := events.Unavailable(events.PhaseOutput)
	for name, c := range map[string]struct {
		output *agent.Form
		policy *events.Form
		want   string
		failed bool
	}{
		"function": {output: form(func(_ context.Context, v agent.Shown) (any, error) {
			return map[string]any{"order": v.Input, "of": v.ToolName, "phase": v.Phase}, nil
		}), want: `{"of":"pay","order":{"card":"` + card + `","how":"","orderId":"o-1"},"phase":"output-available"}`},
		"gives nothing":         {output: form(func(context.Context, agent.Shown) (any, error) { return nil, nil }), want: string(nothing)}, //nolint:nilnil // nothing
		"fails":                 {output: form(func(context.Context, agent.Shown) (any, error) { return 1, errors.New(card) }), want: string(nothing), failed: true},
		"panics":                {output: form(func(context.Context, agent.Shown) (any, error) { panic(card) }), want: string(nothing), failed: true},
		"cannot be encoded":     {output: form(func(context.Context, agent.Shown) (any, error) { return func() {}, nil }), want: string(nothing), failed: true},
		"program fails":         {output: agent.FormJQ(`error(.)`), want: string(nothing), failed: true},
		"policy first":          {output: agent.FormJQ(`"own"`), policy: &events.Form{JQ: `"policy"`}, want: `"policy"`},
		"policy gives nothing":  {output: agent.FormJQ(`"own"`), policy: &events.Form{JQ: `null`}, want: `"own"`},
		"policy fails":          {output: agent.FormJQ(`"own"`), policy: &events.Form{JQ: `error`}, want: string(nothing), failed: true},
		"policy is none":        {output: agent.FormJQ(`"own"`), policy: &events.Form{JQ: `input`}, want: string(nothing), failed: true},
		"policy has a function": {output: agent.FormJQ(`"own"`), policy: &events.Form{Go: true}, want: string(nothing), failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				o := Options{Agent: events.AgentDef{ID: "support", Model: "scripted/x", Tools: map[string]string{"pay": "pay"}}}
				if c.policy != nil {
					o.Agent.Transform = &events.TransformPolicy{Rules: []events.TransformRule{{Forms: events.Forms{Output: c.policy}}}}
				}
				b := payments(t, o, agent.ToolOptions{Transform: &agent.Transform{Display: &agent.Forms{Output: c.output}}},
					asks(callTo("pay", payArgs(""))), agenttest.Say("done"))
				b.startHosted()
				run := b.Request("go")
				b.completed(run)
				call := b.call(run, 1, 1)
				equal(t, "result", string(chunk[events.ToolResultPayload](b, run, events.ChunkToolResult, call).Result), c.want)
				if got := strings.Contains(b.metadata(run, events.ChunkToolResult, call), `"output-available":{"failed":true}`); got != c.failed {
					t.Errorf("failed is %v in %s", got, b.metadata(run, events.ChunkToolResult, call))
				}
			})
		})
	}
}

// TestB5_2_FunctionsAreAskedOfTheHosts by planner and gate; without a host nothing is shown, and the run goes on.
func TestB5_2_FunctionsAreAskedOfTheHosts(t *testing.T) {
	for _, hosted := range []bool{true, false} {
		t.Run(fmt.Sprint("hosted ", hosted), func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				form := agent.FormFunc(func(_ context.Context, v agent.Shown) (any, error) {
					if v.Phase == events.PhaseInputDelta {
						return "…", nil
					}
					return "by the host, for " + string(v.Target) + " " + string(v.Phase), nil
				})
				b := payments(t, Options{}, agent.ToolOptions{RequireApproval: agent.Always(), Transform: &agent.Transform{
					Display: &agent.Forms{Input: form, InputDelta: form, Approval: form, Output: form},
				}}, asks(callTo("pay", payArgs(""))), agenttest.Say("done"))
				if hosted {
					b.startHosted()
				} else {
					b.Start(planner.Name)
					b.Start(approval.Name)
				}
				run := b.Request("go")
				call := b.call(run, 1, 1)
				b.AwaitAsk(call, moment)
				if !hosted {
					b.Start(toolexecutor.Name)
				}
				b.send("alice", events.Approve, call, nil)
				b.completed(run)
				input, approve := `"by the host, for display input-available"`, `"by the host, for display approval"`
				if !hosted {
					input, approve = string(events.Unavailable(events.PhaseInput)), string(events.Unavailable(events.PhaseApproval))
				}
				equal(t, "args", string(chunk[events.ToolCallPayload](b, run, events.ChunkToolCall, call).Args), input)
				equal(t, "approval", string(chunk[events.AskPayload](b, run, events.ChunkToolCallApproval, call).Args), approve)
				equal(t, "result", string(chunk[events.ToolResultPayload](b, run, events.ChunkToolResult, call).Result), `"by the host, for display output-available"`)
			})
		})
	}
}

// TestB5_8_B5_12_OnePolicyApplies: that of the run, else that of its agent, to the tools that a rule names; a covered tool
// without a rule shows nothing. It stays with the run over a restart of everything.
func TestB5_8_B5_12_OnePolicyApplies(t *testing.T) {
	policy := func(tools, output string, targets ...events.Target) *events.TransformPolicy {
		p := &events.TransformPolicy{Targets: targets, Rules: []events.TransformRule{{Forms: events.Forms{Output: &events.Form{JQ: output}}}}}
		if tools != "" {
			p.Rules[0].Tools = []string{tools}
		}
		return p
	}
	raw := `{"paidWith":"` + card + `","receipt":"r-1"}`
	for name, c := range map[string]struct {
		agent, run *events.TransformPolicy
		want       string
	}{
		"agent":             {agent: policy("", `"agent"`), want: `"agent"`},
		"run":               {agent: policy("", `"agent"`), run: policy("go:p*", `"run"`), want: `"run"`},
		"another tool":      {agent: policy("http:*", `"agent"`), want: string(events.Unavailable(events.PhaseOutput))},
		"another target":    {agent: policy("", `"agent"`, events.TargetTranscript), want: raw},
		"run lifts another": {agent: policy("", `"agent"`), run: policy("", `"run"`, events.TargetTranscript), want: raw},
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				o := Options{Agent: events.AgentDef{ID: "support", Model: "scripted/x", Tools: map[string]string{"pay": "pay"}, Transform: c.agent}}
				b := payments(t, o, agent.ToolOptions{RequireApproval: agent.Always()}, asks(callTo("pay", payArgs(""))), agenttest.Say("done"))
				copies := b.startHosted()
				run := events.NewID(time.Now())
				b.RequestAs("bob", events.RunRequested{
					AgentID: "support", RunID: run, Messages: events.Prompt{events.TextMessage(events.RoleUser, "go")}, Transform: c.run,
				})
				call := b.call(run, 1, 1)
				b.AwaitAsk(call, moment)
				for _, service := range copies {
					b.must(service.Stop())
				}
				b.startHosted()
				b.send("alice", events.Approve, call, nil)
				b.completed(run)
				equal(t, "result", string(chunk[events.ToolResultPayload](b, run, events.ChunkToolResult, call).Result), c.want)
				equal(t, "record", string(b.result(call).Result), raw)
			})
		})
	}
}

// TestB5_10_PeopleSeeTheFormAndDecideAboutTheRealArguments: chunk, list and answer of the gate show the form of approvals;
// the fingerprint is that of the arguments, which the tool gets.
func TestB5_10_PeopleSeeTheFormAndDecideAboutTheRealArguments(t *testing.T) {
	inCase(t, func(t *testing.T) {
		b := payments(t, Options{}, agent.ToolOptions{Transform: &agent.Transform{Display: formed()}, RequireApproval: agent.Always()},
			asks(callTo("pay", payArgs(""))), agenttest.Say("done"))
		b.startHosted()
		run := b.Request("go")
		call := b.call(run, 1, 1)
		ask := b.AwaitAsk(call, moment)
		shown := `{"card":"ends in 42","orderId":"o-1"}`
		frozen := `{"card":"` + card + `","how":"","orderId":"o-1"}`
		equal(t, "the fact", string(ask.Args), frozen)
		equal(t, "digest", ask.ArgsDigest, events.Digest([]byte(frozen)))
		listed := b.listed(call)
		equal(t, "list", fmt.Sprint(string(listed.Args), listed.Transformed, listed.Fingerprint == ask.Fingerprint), fmt.Sprint(shown, true, true))
		served := b.served("alice", call)
		equal(t, "served", fmt.Sprint(string(served.Args), served.Transformed, served.Display == nil, served.Fingerprint == ask.Fingerprint),
			fmt.Sprint(shown, true, true, true))
		b.send("alice", events.Approve, call, nil)
		b.completed(run)
		equal(t, "given", b.given("pay"), []string{card})
	})
}

// served is the open ask of a call as the gate replies it.
func (b *bench) served(who string, call events.CallID) (ask events.CallHeld) {
	b.T.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(b.Server.InProcess()))
	b.must(err)
	defer nc.Close()
	ctx, cancel := context.WithTimeout(b.T.Context(), moment)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, b.Conn().Namespace().ServiceSubject(events.VerbAsk, who, call.Run, call.Token()), nil)
	b.must(err)
	b.must(json.Unmarshal(reply.Data, &ask))
	return ask
}

// TestB5_11_B5_13_NothingOfACoveredToolIsShown puts canaries into arguments, pieces of them, results, errors, panics, time-outs,
// suspensions, malformed and invalid arguments, with forms that fail and without forms. None is heard, stored for readers or
// logged; the tool gets each exactly, and the model what is real. (SEC-1)
func TestB5_11_B5_13_NothingOfACoveredToolIsShown(t *testing.T) {
	broken := agent.FormFunc(func(_ context.Context, v agent.Shown) (any, error) {
		return v.Value, fmt.Errorf("no form for %s", v.Value)
	})
	for name, forms := range map[string]*agent.Forms{
		"by programs": formed(), "without forms": {},
		"with forms that fail": {Input: broken, InputDelta: broken, Output: broken, Error: agent.FormJQ("error(.)"), Approval: broken, Suspend: broken},
	} {
		t.Run(name, func(t *testing.T) {
			inCase(t, func(t *testing.T) {
				var logged bytes.Buffer
				hows := []string{"", "error", "panic", "slow", "suspend", "respond", "decline"}
				var calls []agenttest.ToolCall
				for _, how := range hows {
					calls = append(calls, callTo("pay", payArgs(how)))
				}
				b := payments(t, Options{
					Log: slog.New(slog.NewJSONHandler(&locked{w: &logged}, &slog.HandlerOptions{Level: slog.LevelDebug})),
				}, agent.ToolOptions{Transform: &agent.Transform{Display: forms, Transcript: forms}, RequireApproval: agent.Always()},
					asks(calls...), asks(
						callTo("pay", `{"orderId":"`+canary), callTo("pay", `{"orderId":7,"card":"`+canary+`"}`), callTo("pay", `{"`+canary+`":1}`),
						callTo("pay", `{"card":"`+canary+`","card":"`+canary+`"}`),
					), agenttest.Say("done"))
				nc, err := nats.Connect("", nats.InProcessServer(b.Server.InProcess()))
				b.must(err)
				ear := &tap{}
				ns := b.Conn().Namespace()
				for _, subject := range []string{ns.Chunks(), ns.Live("*"), strings.Replace(ns.Notes("x"), ".x.", ".*.", 1)} {
					_, err := nc.Subscribe(subject, ear.hear)
					b.must(err)
				}
				b.startHosted()
				run := b.Request("go")
				for i, how := range hows {
					d, more := events.Approve, func(*events.DecisionRequested) {}
					switch how {
					case "respond":
						d, more = events.Respond, func(r *events.DecisionRequested) { r.Result = json.RawMessage(`{"with":"` + card + `"}`) }
					case "decline":
						d = events.Decline
					}
					b.send("alice", d, b.call(run, 1, i+1), more)
				}
				b.awaitRound(b.call(run, 1, 5), 1)
				if text := string(b.listed(b.call(run, 1, 5)).SuspendPayload) + string(b.listed(b.call(run, 1, 5)).Args); strings.Contains(text, canary) {
					t.Errorf("the list shows %s", text)
				}
				b.send("alice", events.ResumeD, b.call(run, 1, 5), withData(`{"pin":"`+canary+`"}`))
				b.completed(run)
				equal(t, "given", len(b.given("pay")), 6)
				if told := strings.Join(b.told(), "\n"); !strings.Contains(told, "validation failed") || strings.Contains(told, `"`+canary+`"`) {
					t.Errorf("the model is told %s", told)
				}
				record := b.result(b.call(run, 1, 1))
				if strings.Contains(string(record.Transcript)+string(record.Display), canary) || !strings.Contains(string(record.Result), card) {
					t.Errorf("record %+v", record)
				}
				clean(t, "heard", ear.all())
				clean(t, "stored", stored(t, b, nc))
				clean(t, "logged", strings.Split(logged.String(), "\n"))
				nc.Close()
			})
		})
	}
}

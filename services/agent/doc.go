// Package agent is what authors of tools and agents write against. It knows no broker: a program that only defines
// tools links a dozen packages.
//
// # A tool
//
// [NewTool] makes a tool of a function. Its schemas come from the Go types:
//
//	type RefundInput struct {
//		OrderID string  `json:"orderId"`
//		Amount  float64 `json:"amount" jsonschema:"exclusiveMinimum=0"`
//		Note    string  `json:"note,omitempty"`
//	}
//
//	var refund = agent.NewTool("issue_refund", "Refund an order",
//		func(ctx context.Context, call *agent.Call, in RefundInput) (RefundOutput, error) {
//			return shop.Refund(ctx, call.IdempotencyKey(), in.OrderID, in.Amount)
//		},
//		&agent.ToolOptions{RequireApproval: agent.Always(), Effect: agent.Effectful})
//
// What the function may rely on:
//
//   - Its arguments fit the input schema and are byte for byte those that people approved, if they were asked. Numbers
//     in untyped places (any, json.Number) keep every digit. A key fills a field only if it is spelled exactly so.
//   - ctx ends at the tool's timeout and when the call is cancelled.
//   - [Call.IdempotencyKey] is the same whenever this call is tried again, and belongs to no other call.
//   - At most one worker runs it at a time. A worker that dies leaves a call whose effects nobody knows: a read_only or
//     idempotent tool is simply run again, an effectful one is put before people. Declare the effect that is true.
//
// What it returns is the result that the model sees. An error is told to the model, which may try something else; a
// panic is an error too; [Invalid] says that the arguments are wrong in a way that no schema can express.
//
// # Approval
//
// [Always] holds every call until people approve it, [When] the calls for which a CEL expression holds. Agents, runs
// and operators' rules may ask for more, never for less. Waiting costs no worker: the function is not running.
//
// What people see beside the arguments is for them to judge by: the agent's last words before the call, and what the
// tool says that the call would do, by [PreviewTemplate] or [PreviewFunc]:
//
//	&agent.ToolOptions{RequireApproval: agent.Always(), Preview: agent.PreviewTemplate("refund {{.amount}} EUR")}
//
// # Observers
//
// A tool may be told of its calls: that a model begins to write the arguments, of each piece of them, of the arguments once they
// are valid, and of the result. An [Observer] changes nothing, and one that fails or takes its time hurts nobody:
//
//	&agent.ToolOptions{OnInputAvailable: func(ctx context.Context, o *agent.Observed) error {
//		return board.Show(ctx, o.ToolCallID, o.Input)
//	}}
//
// # Hooks
//
// [Agent].Hooks are asked before each call, by name: hook services, which may block a call or rewrite its arguments before people
// see them, and rules that block. Those of a run replace the agent's by name. The README of package events says how a service in
// any language is asked and answers; that it lets a call go on authorises nothing. An executor's Middleware sees what was released: it may block and observe
// it, never change it.
//
// # Suspension
//
// A function that finds that it needs people returns [Call.Suspend], which is an error, so nothing runs after it:
//
//	if in.Amount > 500 && !call.Resumed() {
//		return RefundOutput{}, call.Suspend(Question{Reason: "over the limit"})
//	}
//
// Once people have answered, the function runs again from its start: [Call.Resumed] is true and [ResumeData] has what
// they gave, checked against the resume schema. Guard effects before the suspension with the idempotency key.
//
// Where [Agent].AutoResumeSuspendedTools is set, what a user says next in the thread may be that answer: a model reads it out
// of the message. So suspend to be given data; to be given consent, ask for approval, which no message gives.
//
// # What a turn is told, and when a run ends
//
// Instructions are a template over the request context: "You help {{.tenant}}." StopWhen ends a run that would go on, and
// PrepareStep changes single turns:
//
//	StopWhen:    []events.StopCondition{{HasToolCall: "submit"}, {When: "run.tokens > 5000"}},
//	PrepareStep: []events.StepChange{{When: "run.step == 0", ToolChoice: "required", ActiveTools: &[]string{"lookup"}}},
//
// Expressions see run (id, thread, resource, requester, step, tokens, steps with text and calls), agent and context. A function
// that the planner was given (planner.Config) is named by Func. What cannot be evaluated ends the run as failed.
//
// # Values in place of text
//
// An agent whose runs should end with a JSON value says its schema:
//
//	StructuredOutput: &events.StructuredOutput{Schema: schema, ErrorStrategy: events.ErrorWarn}
//
// Tools are called as ever; what ends the run must fit, or the run fails, ends without a value or with a fallback value, as the
// strategy says. A second model may make the value of the text (Model). A request may ask for another value than the agent.
//
// # Background
//
// The conversation waits for a tool, unless it may run in the background:
//
//	&agent.ToolOptions{Background: &events.Background{Enabled: true}, Timeout: 20 * time.Minute}
//
// Then the model is told that the call was started, and goes on; the result takes that place once it is there, and when the run is
// over, readers are shown it. Such a call is any other in all else: it is asked about, suspends itself, is claimed and cancelled
// by its toolCallId. With "_background" in its arguments a model may choose deferred, awaited or foreground; the function never
// sees that. [Agent].BackgroundTasks says the same for the tools of an agent. To bound how many run at once, give such tools a
// Pool of their own: its executors take as many as their Concurrency says, and the others wait.
//
// # An agent
//
// An [Agent] is a model with instructions and things to do. It is data, and [Agent.Def] is what is registered. Its
// tools are known to the model by their keys; other agents by "agent-<key>", and each of their runs is one call.
//
// # Many tools
//
// A model that is given hundreds of tools chooses badly. [Agent].ToolSearch gives it search_tools and load_tool in place of them:
// what it has loaded it may call from its next turn on. A tool that is found is the same tool as one that is always there: it is
// asked about, hooked and shown as its definition, the agent and the operators say. search_tools and load_tool run nothing, so
// RequireToolApproval of the agent does not hold them; rules and hooks that name them do. What the filter hides cannot be found,
// loaded or called, and ActiveTools bounds what can be found too.
//
// # Tools of clients
//
// A tool of [NewClientTool] has no function: whoever asked for the run executes its calls, and answers them. A request may
// bring such tools itself.
//
// # Tests
//
// Package agenttest runs a tool without any of the rest, and has a scripted model.
package agent

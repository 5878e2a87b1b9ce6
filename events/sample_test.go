package events

import (
	"encoding/json"
	"testing"
	"time"
)

// The story that the goldens tell: the agent support looks an order up, is held at a refund, asks a sub-agent.

var (
	sampleTime  = time.Date(2026, 3, 2, 9, 14, 7, 0, time.UTC)
	sampleWeek  = sampleTime.Add(7 * 24 * time.Hour)
	samplePath  = []PathEntry{{AgentID: "support", RunID: "r7Kq2"}}
	sampleUsage = Usage{InputTokens: 1790, OutputTokens: 40, TotalTokens: 1830}
	sampleDefs  = Definitions{Agent: "sha256:0d4e12", Tools: map[string]string{
		"issue_refund": "sha256:c1f9d3",
		"lookup_order": "sha256:7b20aa",
	}}
	sampleSigned = &Signed{
		Payload: `{"specversion":"1.0"}`, DataRef: "sha256:0d55", Subject: "weir.default.in.decide.alice.r7Kq2.1-2",
		Key: "UAB2", Sig: "m3Zk",
	}
	sampleArgs = json.RawMessage(`{"amount":612.50,"orderId":"ord-1042"}`)
)

func sampleCalls() []CallPlanned {
	return []CallPlanned{
		{ToolCallID: "r7Kq2=1-1", ToolName: "lookup_order", Args: `{"orderId":"ord-1042"}`, ProviderCallID: "call_8"},
		{
			ToolCallID: "r7Kq2=1-2", ToolName: "issue_refund", Args: `{"orderId":"ord-1042","amount":612.50}`,
			ProviderCallID: "call_9",
		},
	}
}

func sampleRequest() RunRequested {
	return RunRequested{
		AgentID: "support", Messages: Prompt{TextMessage(RoleUser, "Refund ord-1042, <quickly> & fully")},
		RunID: "r7Kq2", ThreadID: "thread-9", ResourceID: "user-456", RequestContext: json.RawMessage(`{"tenant":"acme"}`),
		Instructions: new("Be brief."), Model: "openai/gpt-5", ToolChoice: "auto",
		ActiveTools: &[]string{"lookup_order", "issue_refund"}, RequireToolApproval: &Approval{When: "args.amount > 100.0"},
		Limits: &Limits{Steps: 5, Tokens: 50000, Time: Duration(time.Hour)}, Metadata: json.RawMessage(`{"source":"web"}`),
		AutoResumeSuspendedTools: new(true), ModelSettings: json.RawMessage(`{"temperature":0}`),
		ProviderOptions: json.RawMessage(`{"openai":{"store":false}}`),
		StructuredOutput: &StructuredOutput{
			Schema:        json.RawMessage(`{"type":"object","properties":{"refunded":{"type":"boolean"}},"required":["refunded"]}`),
			ErrorStrategy: ErrorFallback, FallbackValue: json.RawMessage(`{"refunded":false}`),
		},
	}
}

func sampleFinished() CallFinished {
	return CallFinished{
		ToolCallID: "r7Kq2=1-1", RunID: "r7Kq2", ToolName: "lookup_order", Outcome: OutcomeOK, Started: true,
		Attempt: 1, ClaimSeq: 903, Worker: "exec-7f2", Result: json.RawMessage(`{"orderId":"ord-1042","total":612.50}`),
		ModelOutput: &ModelOutput{Type: OutputText, Value: json.RawMessage(`"ord-1042: 612.50"`)},
		Active:      Duration(1250 * time.Millisecond),
	}
}

func sampleHeld() CallHeld {
	return CallHeld{
		ToolCallID: "r7Kq2=1-2", RunID: "r7Kq2", RootRunID: "r7Kq2", Path: samplePath, AgentID: "support",
		Kind: AskApproval, ToolName: "issue_refund", ToolID: "issue_refund", ToolVersion: "3", ToolDigest: "sha256:c1f9d3",
		Title: "Issue refund", InputSchemaDigest: "sha256:aa31f0", Effect: Effectful, Args: sampleArgs,
		Fingerprint: "sha256:5f0c9a",
		Reason:      AskReason{Rule: "refunds-over-500", Set: "default", Digest: "sha256:77e01b", Text: "refunds over 500"},
		Rules:       "sha256:51a0",
		Allowed:     AskApproval.Allowed(), Approvers: []string{"group:finance"}, NotRequester: true, Signed: true,
		Quorum:   &Quorum{Need: 2, Votes: []VoteBrief{{Principal: "bob", Decision: Approve, At: sampleTime}}},
		OnExpiry: "decline", Preview: json.RawMessage(`{"text":"refund 612.50 EUR to card 4242"}`),
		Wait: Duration(7 * 24 * time.Hour), Remind: Duration(24 * time.Hour), Reminders: 1, NoGrant: true,
		Escalate:    []Stage{{At: sampleTime.Add(96 * time.Hour), To: []string{"user:carol"}, OnExpiry: OnExpiryFail}},
		EscalatedTo: []string{"group:leads"}, LastWords: &LastWords{Text: "I refund it.", Truncated: true, Size: 4096, Digest: "sha256:0b1c"},
		ArgsSize: len(sampleArgs), ArgsDigest: Digest(sampleArgs), Since: new(sampleTime),
		DataRef: Digest(sampleArgs), SuspendRef: "sha256:0c44",
		ThreadID: "thread-9", ResourceID: "user-456", AskedAt: sampleTime, ExpiresAt: sampleWeek,
	}
}

func sampleGrant() Grant {
	return Grant{
		V: 1, ID: "g1", AgentID: "support", ToolID: "issue_refund", ThreadID: "thread-9", ResourceID: "user-456",
		Terms:     GrantTerms{Scope: "thread", For: Duration(time.Hour), Uses: 3, When: "args.amount < 700.0"},
		GrantedBy: "alice", AuthType: AuthGateway, Groups: []string{"finance"}, GrantedAt: sampleTime,
		ExpiresAt: sampleTime.Add(time.Hour), ToolCallID: "r7Kq2=1-2", Reason: "sale day", Signed: sampleSigned,
		Revoked: &Revocation{By: "bob", At: sampleTime.Add(time.Minute), Reason: "sale is over"},
	}
}

func sampleState() State {
	done := sampleFinished()
	calls := sampleCalls()
	r := sampleRequest()
	return State{
		V: SnapshotVersion, RunID: "r7Kq2", RootRunID: "r7Kq2", Path: samplePath, AgentID: "support",
		ThreadID: "thread-9", ResourceID: "user-456", Requester: "456", StartedAt: sampleTime, Definitions: sampleDefs,
		Options: Options{
			Instructions: r.Instructions, Model: r.Model, ToolChoice: r.ToolChoice, ActiveTools: r.ActiveTools,
			RequireToolApproval: r.RequireToolApproval, Limits: r.Limits, Metadata: r.Metadata,
			AutoResumeSuspendedTools: r.AutoResumeSuspendedTools,
		},
		RequestContext: r.RequestContext, TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		MainSeq: 901, Step: 1, Counters: Counters{Usage: sampleUsage, Active: Duration(640 * time.Millisecond)},
		Messages: []Message{r.Messages[0], {ID: "m1", Role: RoleAssistant, Parts: []Part{
			{Type: PartText, Text: "I look it up."},
			{
				Type: PartToolCall, ToolCallID: calls[0].ToolCallID, ToolName: calls[0].ToolName, Args: calls[0].Args,
				ProviderCallID: "call_8",
			},
			{
				Type: PartToolCall, ToolCallID: calls[1].ToolCallID, ToolName: calls[1].ToolName, Args: calls[1].Args,
				ProviderCallID: "call_9",
			},
		}}},
		Calls: []CallState{
			{
				C: "1-1", State: CallSettled, Planned: calls[0], Finished: &done,
				FinishedID: "0197c3a4-5b10-7000-8000-00000000000c", FinishedSeq: 904,
			},
			{C: "1-2", State: CallPending, Planned: calls[1]},
		},
		SettledAt: sampleTime,
	}
}

func sampleSnapshot() Snapshot {
	return Snapshot{
		State: sampleState(), SuspendedAt: sampleTime.Add(133 * time.Millisecond),
		Asks: []OpenAsk{sampleHeld().Open()}, Writer: "0197c3a4-5b11-7000-8000-000000000001", Size: 2210,
	}
}

var samples = map[string]any{
	"run.requested.v1.json": sampleRequest(),
	"run.refused.v1.json": RunRefused{RunID: "r7Kq2", EventID: "0197c3a4-0003", Error: Error{
		Code:    CodeRunExists,
		Message: "run r7Kq2 exists with another request",
	}},
	"cancel.requested.v1.json": CancelRequested{
		RunID: "r7Kq2", ToolCallID: "r7Kq2=1-2", Reason: "wrong customer",
		End: "failed", Code: CodeDeadlineExceeded,
	},
	"run.started.v1.json": RunStarted{
		RunID: "r7Kq2", RootRunID: "r7Kq2", Path: samplePath, AgentID: "support",
		Requester: "456", RequesterID: "456", InboxSeq: 77, RequestID: "0197c3a4-0000", Request: sampleRequest(), Definitions: sampleDefs,
		Signed: sampleSigned,
	},
	"step.finished.v1.json": StepFinished{
		RunID: "r7Kq2", Step: 1, Attempt: 1, MessageID: "m1",
		Message: Message{Role: RoleAssistant, Parts: []Part{
			{Type: PartReasoning, Text: "An order id.", Signature: "c2ln"},
			{Type: PartText, Text: "I look it up."},
		}},
		Calls: sampleCalls(), Usage: sampleUsage, FinishReason: "tool-calls", Model: "openai/gpt-5",
		Active: Duration(640 * time.Millisecond),
	},
	"run.carried.v1.json": RunCarried{RunID: "r7Kq2", Step: 1, MainSeq: 901, State: sampleState(), DataRef: "sha256:9be177"},
	"run.ended.v1.json": RunEnded{
		RunID: "r7Kq2", AgentID: "support", ThreadID: "thread-9", ResourceID: "user-456",
		Outcome: RunCompleted, FinishReason: "stop", Attempt: 1, Step: 2, MessageID: "m2",
		Message:      new(TextMessage(RoleAssistant, "Refunded.")),
		Usage:        Usage{InputTokens: 2300, OutputTokens: 61, TotalTokens: 2361},
		ObjectOutput: ObjectOutput{Object: json.RawMessage(`{"refunded":true}`)},
	},
	"call.held.v1.json": sampleHeld(),
	"call.answered.v1.json": CallAnswered{
		ToolCallID: "r7Kq2=1-2", RunID: "r7Kq2", Decision: Approve,
		Fingerprint: "sha256:5f0c9a", Principal: "alice", AuthType: AuthKey, At: sampleTime, Reason: "checked with the shop",
		EventID: "0197c3a4-0001", InboxSeq: 80, Votes: []VoteBrief{{Principal: "bob", Decision: Approve, At: sampleTime}},
		Rules: "sha256:77e01b", Signed: sampleSigned,
	},
	"call.released.v1.json": CallReleased{
		Namespace: DefaultNamespace, RunID: "r7Kq2", ToolCallID: "r7Kq2=1-2",
		Pool: "billing", ToolID: "issue_refund", ToolVersion: "3", InputSchemaDigest: "sha256:aa31f0", Effect: Effectful,
		Args: string(sampleArgs), Fingerprint: "sha256:5f0c9a", Follows: 907, AllowedBy: AllowedBy{
			Answer: 907, Rules: "sha256:51a0", Rule: "refunds-over-500", Set: "default", SetDigest: "sha256:77e01b",
		},
		ToolName: "issue_refund", AgentID: "support", ThreadID: "thread-9", ResourceID: "user-456",
		RequestContext: json.RawMessage(`{"tenant":"acme"}`), Resume: &Resume{Data: json.RawMessage("null")},
		StartBy: sampleTime.Add(5 * time.Minute), Timeout: Duration(5 * time.Minute),
	},
	"call.claimed.v1.json": CallClaimed{
		ToolCallID: "r7Kq2=1-2", RunID: "r7Kq2", Attempt: 1, GoSeq: 908,
		Worker: "exec-7f2", LeaseUntil: sampleTime.Add(30 * time.Second),
	},
	"call.suspended.v1.json": CallSuspended{
		ToolCallID: "r7Kq2=1-2", RunID: "r7Kq2", Reason: SuspendedByTool,
		SuspendPayload: json.RawMessage(`{"question":"Which directory?"}`), ResumeSchema: json.RawMessage(`{"type":"object"}`),
		Attempt: 1, Worker: "exec-7f2",
	},
	"call.finished.v1.json": sampleFinished(),
	"vote.cast.v1.json": VoteCast{
		ToolCallID: "r7Kq2=1-2", RunID: "r7Kq2", Decision: Approve, Fingerprint: "sha256:5f0c9a",
		Principal: "bob", AuthType: AuthGateway, Groups: []string{"finance"}, At: sampleTime, Reason: "known customer",
		EventID: "0197c3a4-0002", InboxSeq: 79, Signed: sampleSigned,
		Quorum: &Quorum{Need: 2, Votes: []VoteBrief{{Principal: "bob", Decision: Approve, At: sampleTime}}},
	},
	"decision.requested.v1.json": DecisionRequested{
		Decision: Approve, ToolCallID: "r7Kq2=1-2", Round: new(0),
		Fingerprint: "sha256:5f0c9a", Reason: "checked with the shop",
		Grant: &GrantTerms{Scope: "thread", For: Duration(30 * time.Minute), Uses: 5, When: "args.amount < 1000.0"},
	},
	"decision.refused.v1.json": DecisionRefused{
		ToolCallID: "r7Kq2=1-2", RunID: "r7Kq2", EventID: "0197c3a4-0004",
		Principal: "carol", Decision: Approve, At: sampleTime, InboxSeq: 81, Error: Error{
			Code:    CodeAlreadyDecided,
			Message: "tool call r7Kq2=1-2 was declined by bob", Answer: &AnswerBrief{
				Decision: Decline, Principal: "bob",
				At: "2026-03-02T09:21:09Z", Reason: "wrong order",
			},
		},
	},
	"outcome.delayed.v1.json": OutcomeDelayed{
		ToolCallID: "r7Kq2=1-2", RunID: "r7Kq2", Attempt: 1, ClaimSeq: 909,
		Worker: "exec-7f2", Outcome: OutcomeOK, Started: true, Result: json.RawMessage(`{"refundId":"rf-88"}`),
	},
	"grant.requested.v1.json": GrantRequested{
		ID: "g1", AgentID: "support", ToolID: "issue_refund", ThreadID: "thread-9",
		Terms: GrantTerms{Scope: "thread", For: Duration(time.Hour), Uses: 3}, Reason: "sale day",
		Groups: []string{"finance"},
	},
	"grant.revoked.v1.json": GrantRevoked{ID: "g1", Reason: "sale is over"},
	"grant.refused.v1.json": GrantRefused{
		ID: "g1", EventID: "0197c3a4-0005",
		Error: Error{Code: CodeNotFound, Message: "grant g1 is not known", What: "grant"},
	},
	"grant.used.v1.json": GrantUsed{ID: "g1", ToolCallID: "r7Kq2=1-2", Number: 1, At: sampleTime, Grant: sampleGrant()},
	"timer.set.v1.json": TimerSet{
		RunID: "r7Kq2", ToolCallID: "r7Kq2=1-2", Purpose: TimerExpire,
		At: sampleWeek,
	},
	"timer.fired.v1.json": TimerFired{
		RunID: "r7Kq2", ToolCallID: "r7Kq2=1-2", Purpose: TimerExpire,
		At: sampleWeek,
	},
	"chunk.published.v1.json": Chunk{
		Type: ChunkToolResult, RunID: "r7Kq2", From: "AGENT", Step: 1, Attempt: 1, Index: 7,
		Payload: json.RawMessage(`{"toolCallId":"r7Kq2=1-1","toolName":"lookup_order","args":{"orderId":"ord-1042"},` +
			`"result":{"orderId":"ord-1042","total":612.50},"outcome":"ok","started":true}`),
		Metadata: json.RawMessage(`{"mastra":{}}`),
	},
	"message.stored.v1.json": MessageStored{
		ThreadID: "thread-9", ResourceID: "user-456", RunID: "r7Kq2", Index: 0,
		Messages: []Message{TextMessage(RoleUser, "Refund ord-1042")},
	},
	"deletion.requested.v1.json": DeletionRequested{ResourceID: "user-456", ThreadID: "thread-9", Reason: "asked by mail"},
	"grants.dropped.v1.json":     GrantsDropped{EventID: "e1", Deletion: DeletionRequested{ResourceID: "user-456", All: true}},
	"thread.erased.v1.json": ThreadErased{
		ResourceID: "user-456", ThreadID: "thread-9", By: "alice", EventID: "e1", InboxSeq: 81, Done: true,
	},
	"delivery.abandoned.v1.json": DeliveryAbandoned{
		Service: "approval", Consumer: "gate-decisions",
		Subject: "weir.default.in.decide.alice.r7Kq2.1-2", Seq: 80, RunID: "r7Kq2", Attempts: 9, Reason: "payload is no event",
		Payload: "AAEC", Base64: true, Command: "weir runs info r7Kq2",
	},
}

// goldenSubjects build the subject of each golden from what it says.
var goldenSubjects = map[string]func(*testing.T, Event) string{
	"run.requested.v1.json":    of(func(d RunRequested) string { return ns.InStart("bob", d.AgentID) }),
	"run.refused.v1.json":      of(func(d RunRefused) string { return ns.Note("bob", d.RunID, TokenRun) }),
	"cancel.requested.v1.json": of(func(d CancelRequested) string { return ns.InCancel("alice", d.RunID) }),
	"run.started.v1.json":      of(func(d RunStarted) string { return ns.Start(d.RunID).Subject() }),
	"step.finished.v1.json":    of(func(d StepFinished) string { return ns.Step(d.RunID, d.Step).Subject() }),
	"run.carried.v1.json":      of(func(d RunCarried) string { return ns.Carry(d.RunID, 1).Subject() }),
	"run.ended.v1.json":        of(func(d RunEnded) string { return ns.End(d.RunID).Subject() }),
	"call.held.v1.json":        of(func(d CallHeld) string { return ns.Call(callOf(d.ToolCallID), KindAsk).Subject() }),
	"call.answered.v1.json":    of(func(d CallAnswered) string { return ns.Call(callOf(d.ToolCallID), KindAnswer).Subject() }),
	"call.released.v1.json": of(func(d CallReleased) string {
		return d.Namespace.Go(callOf(d.ToolCallID), d.Pool, d.ToolID).Subject()
	}),
	"call.claimed.v1.json":   of(func(d CallClaimed) string { return ns.Call(callOf(d.ToolCallID), KindClaim).Subject() }),
	"call.suspended.v1.json": of(func(d CallSuspended) string { return ns.Call(callOf(d.ToolCallID), KindSuspend).Subject() }),
	"call.finished.v1.json":  of(func(d CallFinished) string { return ns.Call(callOf(d.ToolCallID), KindResult).Subject() }),
	"vote.cast.v1.json": of(func(d VoteCast) string {
		return ns.Beside(callOf(d.ToolCallID), KindVote, d.Principal).Subject()
	}),
	"decision.requested.v1.json": of(func(d DecisionRequested) string { return ns.InDecide("alice", callOf(d.ToolCallID)) }),
	"decision.refused.v1.json": of(func(d DecisionRefused) string {
		return ns.Beside(callOf(d.ToolCallID), KindRefused, d.EventID).Subject()
	}),
	"outcome.delayed.v1.json": of(func(d OutcomeDelayed) string {
		return ns.Beside(callOf(d.ToolCallID), KindLate, "e1").Subject()
	}),
	"grant.requested.v1.json":    of(func(d GrantRequested) string { return ns.InGrant("alice", d.ID) }),
	"grant.revoked.v1.json":      of(func(d GrantRevoked) string { return ns.InGrant("alice", d.ID) }),
	"grant.refused.v1.json":      of(func(d GrantRefused) string { return ns.NoteOfGrant("alice", d.ID) }),
	"grant.used.v1.json":         of(func(d GrantUsed) string { return ns.GrantUse(d.ID, callOf(d.ToolCallID)).Subject() }),
	"timer.set.v1.json":          of(func(d TimerSet) string { return ns.TimerSet(TimerID(callOf(d.ToolCallID), d.Round)) }),
	"timer.fired.v1.json":        of(func(d TimerFired) string { return ns.TimerFire(TimerID(callOf(d.ToolCallID), d.Round)) }),
	"chunk.published.v1.json":    of(func(d Chunk) string { return ns.Chunk(d.RunID) }),
	"message.stored.v1.json":     of(ns.ThreadEntry),
	"deletion.requested.v1.json": of(func(d DeletionRequested) string { return ns.InThread("alice", d) }),
	"grants.dropped.v1.json":     of(func(d GrantsDropped) string { return ns.InGrant(TokenPlanner, d.EventID) }),
	"thread.erased.v1.json": of(func(d ThreadErased) string {
		return ns.ThreadGone(d.ResourceID, d.ThreadID, d.All)
	}),
	"delivery.abandoned.v1.json": of(func(d DeliveryAbandoned) string { return ns.Dead(d.Service, d.RunID) }),
}

const ns = DefaultNamespace

// of lets a function of an event's data build its subject.
func of[T any](subject func(T) string) func(*testing.T, Event) string {
	return func(t *testing.T, e Event) string {
		t.Helper()
		d, err := Data[T](e)
		if err != nil {
			t.Fatal(err)
		}
		return subject(d)
	}
}

// callOf is the call that the id of a golden names.
func callOf(id string) CallID {
	c, err := ParseCallID(id)
	if err != nil {
		panic(err)
	}
	return c
}

package events

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func payloadOf[T any](t *testing.T, c Chunk) T {
	t.Helper()
	if err := CheckJSON(c.Payload); err != nil {
		t.Fatalf("%s: %v", c.Payload, err)
	}
	var v T
	if err := json.Unmarshal(c.Payload, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestB14_8_ResultChunks(t *testing.T) {
	t.Parallel()
	args := json.RawMessage(`{"n":9007199254740993}`)
	for outcome, want := range map[Outcome]ChunkType{
		OutcomeOK: ChunkToolResult, OutcomeInvalid: ChunkToolResult, OutcomeResponded: ChunkToolResult,
		OutcomeDeclined: ChunkToolOutputDenied, OutcomeExpired: ChunkToolOutputDenied,
		OutcomeError: ChunkToolError, OutcomeUnknown: ChunkToolError, OutcomeUnavailable: ChunkToolError,
		OutcomeCancelled: ChunkToolError, OutcomeBlocked: ChunkToolError,
	} {
		f := CallFinished{ToolCallID: "r=1-1", RunID: "r", ToolName: "t", Outcome: outcome, Started: outcome == OutcomeOK}
		c := ResultChunk(f, args, "fact")
		p := payloadOf[ToolResultPayload](t, c)
		if c.Type != want || c.ID != "fact" || c.RunID != "r" || p.Outcome != outcome || p.Started != f.Started ||
			string(p.Args) != string(args) || p.ToolName != "t" {
			t.Errorf("%s: %s %s", outcome, c.Type, c.Payload)
		}
		if (p.Error != nil) != (want == ChunkToolError) || (p.Approval != nil) != (want == ChunkToolOutputDenied) ||
			p.IsError != (outcome == OutcomeInvalid) {
			t.Errorf("%s: %s", outcome, c.Payload)
		}
	}
	blocked := ResultChunk(CallFinished{Outcome: OutcomeBlocked, Result: json.RawMessage(`1`)}, nil, "x")
	if blocked.Type != ChunkToolResult {
		t.Errorf("blocked with an output: %s", blocked.Type)
	}
	edited := ResultChunk(CallFinished{Outcome: OutcomeOK, Args: json.RawMessage(`{"n":2}`)}, args, "x")
	if p := payloadOf[ToolResultPayload](t, edited); string(p.Args) != `{"n":2}` {
		t.Errorf("after an edit: %s", p.Args)
	}
}

func TestB8_4_B14_7_AskChunks(t *testing.T) {
	t.Parallel()
	a := sampleHeld()
	c := AskChunk(a, "fact")
	p := payloadOf[AskPayload](t, c)
	if c.Type != ChunkToolCallApproval || c.ID != "fact" || p.SuspendPayload != nil ||
		!strings.Contains(p.ResumeSchema, `"required":["approved"]`) {
		t.Errorf("%s %s", c.Type, c.Payload)
	}
	if _, err := CompileSchema([]byte(p.ResumeSchema)); err != nil {
		t.Error(err)
	}
	want := AskBrief{
		ToolCallID: a.ToolCallID, RunID: a.RunID, RootRunID: a.RootRunID, Path: a.Path, AgentID: a.AgentID,
		Kind: a.Kind, Fingerprint: a.Fingerprint, Reason: a.Reason.Text, ExpiresAt: a.ExpiresAt, Allowed: a.Allowed,
		Approvers: a.Approvers, Quorum: a.Quorum, Preview: a.Preview,
	}
	if d := cmp.Diff(want, p.Ask); d != "" {
		t.Error(d)
	}
	a.Kind, a.SuspendPayload, a.ResumeSchema = AskSuspended, json.RawMessage(`{"question":"?"}`), json.RawMessage(`{"type":"object"}`)
	c = AskChunk(a, "fact")
	p = payloadOf[AskPayload](t, c)
	if c.Type != ChunkToolCallSuspended || string(p.SuspendPayload) != `{"question":"?"}` || p.ResumeSchema != `{"type":"object"}` {
		t.Errorf("%s %s", c.Type, c.Payload)
	}
}

// The last chunk of a run carries the id of the fact, so that a repeated end is dropped; the others carry their own.
func TestB14_EndChunks(t *testing.T) {
	t.Parallel()
	message := TextMessage(RoleAssistant, "Refunded.")
	for name, c := range map[string]struct {
		end  RunEnded
		want []ChunkType
	}{
		"completed": {
			RunEnded{RunID: "r", Outcome: RunCompleted, FinishReason: "stop", MessageID: "m", Message: &message},
			[]ChunkType{ChunkStepFinish, ChunkFinish},
		},
		"failed": {
			RunEnded{RunID: "r", Outcome: RunFailed, FinishReason: "error", Error: Errorf(CodeModelFailed, "no")},
			[]ChunkType{ChunkError, ChunkFinish},
		},
		"cancelled": {RunEnded{RunID: "r", Outcome: RunCancelled}, []ChunkType{ChunkAbort}},
	} {
		var got []ChunkType
		ids := map[string]bool{}
		chunks := EndChunks(c.end, "fact")
		for _, ch := range chunks {
			got = append(got, ch.Type)
			ids[ch.ID] = true
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if len(ids) != len(chunks) || chunks[len(chunks)-1].ID != "fact" {
			t.Errorf("%s: ids %v", name, ids)
		}
	}
}

// Every chunk that Weir makes passes the encoding and its schema.
func TestChunksOfAllKinds(t *testing.T) {
	t.Parallel()
	st := sampleState()
	chunks := append(EndChunks(RunEnded{RunID: "r", Outcome: RunFailed, Error: Errorf(CodeInternal, "x")}, "f"),
		StartChunk("r", "support", "m1"), StepStartChunk("r", "m1", sampleTime), StepRetryChunk("r", "m1", 2),
		TextStartChunk("r", PartText, "t"), TextDeltaChunk("r", PartReasoning, "t", "x"), TextEndChunk("r", PartText, "t"),
		ToolInputStartChunk("r", "r=1-1", "t"), ToolInputDeltaChunk("r", "r=1-1", "t", `{"a`), ToolInputEndChunk("r", "r=1-1"),
		ToolCallChunk("r", ToolCallPayload{ToolCallID: "r=1-1", ToolName: "t", Title: "T", Args: json.RawMessage(`{"a":1}`)}),
		ToolCallChunk("r", ToolCallPayload{ToolCallID: "r=1-1", ToolName: "t", Args: ShownArgs(`{"a":`)}),
		ToolOutputChunk("r", "r=1-1", "t", json.RawMessage(`"x"`)), WarningChunk("r", "code", "text"),
		SuspendedChunk("r", []string{"r=1-1"}), StepFinishChunk(&st, "m1", "tool-calls", true, CallState.Args),
		AskChunk(sampleHeld(), "f"), ResultChunk(sampleFinished(), nil, "f"))
	for _, ch := range chunks {
		header, body := EncodeChunk(chunkOrigin(), ch)
		got, err := DecodeChunk(header, body)
		if err != nil || string(got.Payload) != string(ch.Payload) || got.Type != ch.Type {
			t.Errorf("%s: %s, %v", ch.Type, body, err)
		}
	}
}

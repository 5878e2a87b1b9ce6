package approval

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/jq"
)

// A client tool is executed by whoever asked for the run. Its calls pass the gate like any other: they are resolved,
// validated and judged. What another call is released for, this one is held for: an ask of kind client, which its requester
// alone answers, with the result. No executor sees it.

// client reports whether a tool of the run is one of its client.
func (r *run) client(toolName string) bool {
	t := r.tools[toolName]
	return t != nil && t.Client()
}

// askClient is the question to the client about these bytes.
func (q question) askClient(f frozen) *events.CallHeld {
	a := q.ask(f, events.AskClient)
	a.LastWords = events.LastWordsOf(q.said)
	a.Reason = events.AskReason{Text: "the client that asked for the run executes this tool"}
	return a
}

// askClient holds a call for its client that people have approved, in the next round.
func (s *Service) askClient(ctx context.Context, r *run, a answered) error {
	t := r.tools[a.ask.ToolName]
	q := question{
		ns: s.ns, call: a.call, round: a.ask.Round + 1, run: r, follows: a.fact.Seq, attempt: a.ask.Attempt,
		planned: events.CallPlanned{ToolName: a.ask.ToolName}, expires: s.cfg.Expires, now: time.Now().UTC(),
	}
	fp := events.Frozen{
		Namespace: s.ns, RunID: a.call.Run, ToolCallID: a.call.String(), Round: q.round, ToolID: t.ID,
		ToolVersion: t.Version, InputSchemaDigest: t.InputSchemaDigest, Args: a.ask.Args,
	}.Fingerprint()
	ask := q.askClient(frozen{tool: t, args: a.ask.Args, fingerprint: fp})
	ask.Rules, ask.LastWords, ask.Preview = a.data.Rules, a.ask.LastWords, a.ask.Preview
	return s.hold(ctx, r, []holding{{ask: *ask, prev: a.fact}})
}

// warningModelOutput is the code of warnings about results that could not be mapped.
const warningModelOutput = "model_output_failed"

// maxMapping bounds how long it may take to say what a model is told of a client's answer.
const maxMapping = 2 * time.Second

// outputProgram compiles the program that maps a tool's results for models; nil when it has none.
func outputProgram(m events.Manifest) (*jq.Program, error) {
	form, err := events.ParseForm(m.ToModelOutput)
	if err != nil || form == nil || form.Go {
		return nil, err
	}
	return jq.Compile(form.JQ)
}

// mapAnswer says what the model is told of a client's answer, when the client has not said so itself. Whatever goes wrong
// with it, the answer stands. What people answer in place of a client is told as it is.
func (s *Service) mapAnswer(ctx context.Context, r *run, a answered, d *events.CallFinished) {
	t := r.tools[a.ask.ToolName]
	if a.ask.Kind != events.AskClient || d.Outcome != events.OutcomeResponded || d.ModelOutput != nil ||
		t == nil || t.output == nil || string(d.Result) == "null" {
		return
	}
	o, err := mapped(ctx, t.output, d.Result)
	if err != nil {
		s.log.WarnContext(ctx, "the model is told the answer itself: its map failed", "runId", d.RunID,
			"toolCallId", d.ToolCallID, "toolId", t.ID) // the error may hold what must not be logged
		s.chunk(ctx, events.CallWarningChunk(d.RunID, d.ToolCallID, warningModelOutput,
			"what the model should be told of the result could not be made; it is told the result itself"))
		return
	}
	d.ModelOutput = o
}

// mapped is what a program makes of a result; nil is the result itself.
func mapped(ctx context.Context, program *jq.Program, result json.RawMessage) (*events.ModelOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, maxMapping)
	defer cancel()
	raw, err := program.Run(ctx, result)
	if errors.Is(err, jq.ErrNothing) {
		return nil, nil //nolint:nilnil // the result itself
	}
	if err != nil {
		return nil, err
	}
	o := &events.ModelOutput{}
	if err := json.Unmarshal(raw, o); err != nil {
		return nil, errors.New("the program makes no output for a model")
	}
	return o, events.CheckModelOutput(o)
}

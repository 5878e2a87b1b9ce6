package gateway

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// decideBody decides a call on Mastra's routes. Options that some clients send with it are passed over: what the run has
// started with holds.
type decideBody struct {
	RunID      string          `json:"runId"`
	ToolCallID string          `json:"toolCallId,omitempty"`
	Reason     string          `json:"reason,omitempty"`
	ResumeData json.RawMessage `json:"resumeData,omitempty"`
}

// decider makes the decision of a route out of its body and the ask that is open.
type decider func(b decideBody, ask *events.CallHeld) (client.Decision, error)

func approve(decideBody, *events.CallHeld) (client.Decision, error) {
	return client.Decision{Decision: events.Approve}, nil
}

func decline(b decideBody, _ *events.CallHeld) (client.Decision, error) {
	return client.Decision{Decision: events.Decline, Reason: b.Reason}, nil
}

// resume gives a suspended tool its data. Of a call in doubt the data says what is to be done with it; nothing else is
// made into another decision.
func resume(b decideBody, ask *events.CallHeld) (client.Decision, error) {
	if len(b.ResumeData) == 0 {
		return client.Decision{}, badBody("resumeData", "Required")
	}
	if ask.Kind != events.AskInDoubt {
		return client.Decision{Decision: events.ResumeD, ResumeData: b.ResumeData}, nil
	}
	var doubt struct {
		Action string          `json:"action"`
		Result json.RawMessage `json:"result"`
		Reason string          `json:"reason"`
	}
	if err := json.Unmarshal(b.ResumeData, &doubt); err != nil {
		return client.Decision{}, badBody("resumeData", `nobody knows whether the call has run: want {"action": "retry", "decline" or "respond", …}`)
	}
	d := client.Decision{Decision: events.Decision(doubt.Action), Result: doubt.Result, Reason: doubt.Reason}
	switch d.Decision {
	case events.Retry, events.Decline, events.Respond:
		return d, nil
	default:
		return d, badBody("resumeData.action", "want retry, decline or respond")
	}
}

// decided reads the request, finds the ask, and makes the decision about exactly that: its round and fingerprint are those
// that are open when the request arrives.
func (r *request) decided(make decider, named bool) (*decided, error) {
	def, err := r.agent()
	if err != nil {
		return nil, err
	}
	var body decideBody
	if err := r.read(&body); err != nil {
		return nil, err
	}
	switch {
	case body.RunID == "":
		return nil, badBody("runId", "Required")
	case body.ToolCallID == "" && named:
		return nil, badBody("toolCallId", "Required")
	}
	ask, err := r.ask(body.RunID, body.ToolCallID)
	if err != nil {
		return nil, err
	}
	if !concerns(ask, def.ID) {
		return nil, events.Errorf(events.CodeForbidden, "Access denied")
	}
	d, err := make(body, ask)
	d.ToolCallID, d.Round, d.Fingerprint = ask.ToolCallID, &ask.Round, ask.Fingerprint
	return &decided{Decision: d, ask: ask, run: r.who.Run(body.RunID)}, err
}

// decided is a decision that a request makes, about an ask, in a run that it follows: that of the call, or one above it.
type decided struct {
	client.Decision
	ask *events.CallHeld
	run *client.Run
}

// ask is the open ask of a call of a run, or, where none is named, of the one that waits.
func (r *request) ask(run, call string) (*events.CallHeld, error) {
	if !events.IsRunID(run) {
		return nil, unknownRun(run)
	}
	if call == "" {
		return r.who.Ask(r.Context(), run)
	}
	id, err := events.ParseCallID(call)
	if err != nil || id.Run != run && !strings.HasPrefix(id.Run, run+"=") {
		return nil, events.NotFound("call", "no call %.100q of run %s waits for a decision", call, run)
	}
	return r.who.Ask(r.Context(), id.String())
}

func unknownRun(run string) *events.Error {
	return events.NotFound("run", "run %.100q is not known", run)
}

// concerns reports whether an ask is one of an agent's: of its own runs, or of those below them.
func concerns(ask *events.CallHeld, agent string) bool {
	if ask.AgentID == agent {
		return true
	}
	for _, level := range ask.Path {
		if level.AgentID == agent {
			return true
		}
	}
	return false
}

// decideStream is a route that decides and streams what comes of it.
func decideStream(make decider, named bool) func(*request) error {
	return func(r *request) error {
		d, err := r.decided(make, named)
		if err != nil {
			return err
		}
		after, err := d.run.LastBelow(r.Context()) // before the decision, so that nothing of the continuation is missed
		if err != nil {
			return err
		}
		out, err := r.who.Decide(r.Context(), d.Decision)
		if err != nil {
			return err
		}
		return r.tell(part{
			run: d.run, agent: r.PathValue("agentId"), after: after, decided: d.ask, pending: out.State == events.DecisionPending,
		})
	}
}

// decideOutput is a route that decides and answers the output of the whole run.
func decideOutput(make decider, named bool) func(*request) (any, error) {
	return func(r *request) (any, error) {
		d, err := r.decided(make, named)
		if err != nil {
			return nil, err
		}
		if _, err := r.who.Decide(r.Context(), d.Decision); err != nil {
			return nil, err
		}
		return r.output(d.run)
	}
}

// begin starts the run that a request asks for, or gives a run that waits what its client's tools have brought.
func (r *request) begin() (part, error) {
	s, err := r.start()
	if err != nil {
		return part{}, err
	}
	if len(s.results) > 0 {
		p, err := r.bring(s.request.Agent, s.results)
		if p != nil || err != nil {
			return *orEmpty(p), err
		}
	}
	run, err := r.who.Start(r.Context(), s.request)
	if err != nil {
		return part{}, err
	}
	return part{run: run, agent: s.request.Agent}, nil
}

func orEmpty(p *part) *part {
	if p == nil {
		return &part{}
	}
	return p
}

// bring gives waiting calls of client tools their results. It does nothing, and says so, when none of the results is of such
// a call: then they are part of a conversation.
func (r *request) bring(agent string, results []toolResult) (*part, error) {
	var p *part
	for _, res := range results {
		id, err := events.ParseCallID(res.ToolCallID)
		if err != nil {
			continue
		}
		ask, err := r.who.Ask(r.Context(), id.String())
		e, refused := errors.AsType[*events.Error](err)
		given := refused && e.Code == events.CodeAlreadyDecided && e.Same // by this request, before
		switch {
		case err == nil && ask.Kind != events.AskClient:
			return nil, &events.Error{Code: events.CodeWrongKind, Message: "call " + id.String() + " does not wait for a client", Allowed: ask.Allowed}
		case err == nil && !concerns(ask, agent):
			return nil, events.Errorf(events.CodeForbidden, "Access denied")
		case err == nil, given:
		case refused && e.Code == events.CodeNotFound:
			continue
		default:
			return nil, err
		}
		if p == nil {
			p = &part{run: r.who.Run(id.Run), agent: agent, answered: map[string]bool{}}
			if p.after, err = r.place(p.run, id.String(), given); err != nil {
				return nil, err
			}
		}
		if p.run.ID != id.Run {
			return nil, badBody("messages", "the results are of calls of several runs")
		}
		if !given {
			if err := r.respond(ask, res); err != nil {
				return nil, err
			}
		}
		p.answered[id.String()] = true
	}
	return p, nil
}

// place is where the continuation of a call begins: now, or, when it was answered before, at its ask.
func (r *request) place(run *client.Run, call string, given bool) (uint64, error) {
	if !given {
		return run.Last(r.Context())
	}
	var after uint64
	for ch, err := range run.Stored(r.Context(), 0) {
		if err != nil && !errors.Is(err, client.ErrGap) {
			return 0, err
		}
		if ch.Type == events.ChunkToolCallSuspended && callOf(ch) == call {
			after = ch.Cursor
		}
	}
	return after, nil
}

// respond gives a call of a client tool its result; one that failed is declined.
func (r *request) respond(ask *events.CallHeld, res toolResult) error {
	d := client.Decision{
		Decision: events.Respond, ToolCallID: ask.ToolCallID, Round: &ask.Round, Fingerprint: ask.Fingerprint,
		Result: res.Result, ModelOutput: res.ModelOutput,
	}
	if res.IsError {
		d.Decision, d.Result, d.ModelOutput, d.Reason = events.Decline, nil, nil, "the client's tool failed: "+string(res.Result)
	}
	_, err := r.who.Decide(r.Context(), d)
	if e, ok := errors.AsType[*events.Error](err); ok && e.Code == events.CodeAlreadyDecided && e.Same {
		return nil // another copy of this request was quicker
	}
	return err
}

// stream starts a run and streams it.
func stream(r *request) error {
	p, err := r.begin()
	if err != nil {
		return err
	}
	return r.tell(p)
}

// generate starts a run and answers its output, when it ends or waits.
func generate(r *request) (any, error) {
	p, err := r.begin()
	if err != nil {
		return nil, err
	}
	return r.output(p.run)
}

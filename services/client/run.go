package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Request asks for a run of an agent. Only Agent and one of Prompt and Messages are needed; what is not set is the
// agent's own choice.
type Request struct {
	Agent    string
	Prompt   string           // one message of the user
	Messages []events.Message // in place of Prompt: a conversation

	RunID string // 1 to 64 letters, digits, hyphens, underscores; default: a new one
	// IdempotencyKey, in place of RunID, lets the same request of the same principal mean the same run for as long as the
	// log remembers it; with another request it is refused with run_exists.
	IdempotencyKey string
	ThreadID       string // conversation that the run belongs to
	ResourceID     string // owner of the thread

	Context             json.RawMessage  // request context, an object: for rules and tools, not for the model
	Instructions        *string          // in place of the agent's
	Model               string           // in place of the agent's
	ToolChoice          string           // auto, none, required or tool:<key>
	ActiveTools         *[]string        // keys of the tools that the model may use
	RequireToolApproval *events.Approval // of every call
	Limits              *events.Limits   // tighter than the agent's
	ModelSettings       json.RawMessage  // an object such as {"temperature": 0}; over the agent's, by name
	ProviderOptions     json.RawMessage  // an object by provider; over the agent's, by name
	Metadata            json.RawMessage  // kept with the run

	// StructuredOutput asks for a JSON value that fits a schema, which is the Object of the output; nil: as the agent says.
	StructuredOutput *events.StructuredOutput

	// ClientTools are tools that this client executes, by key, beside those of the agent or in their place. [Run.Wait] and
	// [Client.Generate] answer their calls as these come.
	ClientTools map[string]ClientTool

	// AutoResumeSuspendedTools lets the message answer what suspended tools of the same agent, thread and resource wait for,
	// and lets later messages answer tools of this run; nil: as the agent says. When the message is such an answer, the
	// earlier run goes on, and this one ends with the finish reason "resumed". It needs a ThreadID.
	AutoResumeSuspendedTools *bool
	// Memory says how much of its thread the run recalls, and that it keeps its thread; nil: as the agent says. It needs a
	// ThreadID.
	Memory *events.Memory
	// ToolCallConcurrency is how many calls of the run execute at once; 0: as the agent says.
	ToolCallConcurrency int
	// Hooks are asked before each call of the run; by name they replace the agent's.
	Hooks events.Hooks
	// Transform says what may be shown of the calls of the run, in place of the agent's policy.
	Transform *events.TransformPolicy
}

func (r Request) data(runID string) (events.RunRequested, error) {
	messages := r.Messages
	switch {
	case r.Agent == "":
		return events.RunRequested{}, invalid("an agent is missing")
	case r.Prompt == "" && len(messages) == 0:
		return events.RunRequested{}, invalid("a prompt is missing")
	case r.Prompt != "" && len(messages) > 0:
		return events.RunRequested{}, invalid("give a prompt or messages, not both")
	case !events.ValidRunID(runID):
		return events.RunRequested{}, invalid("run id %q: use 1 to 64 letters, digits, hyphens and underscores", runID)
	case r.Prompt != "":
		messages = []events.Message{events.TextMessage(events.RoleUser, r.Prompt)}
	}
	return events.RunRequested{
		AgentID: r.Agent, Messages: messages, RunID: runID, ThreadID: r.ThreadID, ResourceID: r.ResourceID,
		RequestContext: r.Context, Instructions: r.Instructions, Model: r.Model, ToolChoice: r.ToolChoice,
		ActiveTools: r.ActiveTools, RequireToolApproval: r.RequireToolApproval, Limits: r.Limits, Metadata: r.Metadata,
		AutoResumeSuspendedTools: r.AutoResumeSuspendedTools, Transform: r.Transform, Hooks: r.Hooks,
		ClientTools: definitions(r.ClientTools), ToolCallConcurrency: events.Concurrency(r.ToolCallConcurrency),
		Memory: r.Memory, StructuredOutput: r.StructuredOutput, ModelSettings: r.ModelSettings, ProviderOptions: r.ProviderOptions,
	}, nil
}

// Run is a run that can be followed.
type Run struct {
	ID string

	client    *Client
	requestID string              // event id of the start; empty for a run that somebody else has started
	request   events.RunRequested // what was asked for; only with requestID
	chosen    bool                // the caller chose the id, so another run may have it
	existed   bool                // and one has; only where the log may not be read
	tape      atomic.Pointer[tape]
	tools     map[string]ClientTool
	suspended atomic.Uint64 // cursor of the last suspension that a caller was told of
	after     successors
}

// Run is the run of an id, started by whomever.
func (c *Client) Run(id string) *Run { return &Run{ID: id, client: c} }

// Start asks for a run and returns when the request is stored. Whether a planner takes it shows when the run is
// followed: a refusal is an error of Follow and Wait, of type *events.Error.
//
// A run id is used once. The same request with the same run id, by the same principal, means the same run; another one
// is refused with run_exists.
func (c *Client) Start(ctx context.Context, req Request) (*Run, error) {
	id, chosen, err := c.runID(req.RunID, req.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	data, err := req.data(id)
	if err != nil {
		return nil, err
	}
	run, err := c.startRun(ctx, req.Agent, data, chosen)
	if err != nil {
		return nil, err
	}
	run.tools = req.ClientTools
	return run, nil
}

// runID is the id of a run that is asked for, and whether the caller has chosen it: itself, or by a key.
func (c *Client) runID(given, key string) (id string, chosen bool, err error) {
	if given != "" && key != "" {
		return "", false, invalid("give a run id or an idempotency key, not both")
	}
	if id := cmp.Or(given, c.keyed(key)); id != "" {
		return id, true, nil
	}
	return events.NewID(time.Now()), false, nil
}

// startRun asks for a run at an agent, or at the reserved one of single tools. Chosen says that the caller has chosen the
// run's id.
func (c *Client) startRun(ctx context.Context, agent string, data events.RunRequested, chosen bool) (*Run, error) {
	id := data.RunID
	subject := c.ns.InStart(c.cfg.Principal, agent)
	e, err := c.request(subject, id, data)
	if err != nil {
		return nil, err
	}
	if err := c.refusals.listen(ctx, c.conn, c.cfg.Principal); err != nil {
		return nil, err
	}
	run := &Run{ID: id, client: c, requestID: e.ID, request: data, chosen: chosen}
	if c.cfg.LiveOnly { // before the request is made, so that nothing of the run is missed
		if err := run.record(ctx); err != nil {
			return nil, err
		}
	}
	if chosen && !c.cfg.LiveOnly && !c.reads() {
		last, err := c.conn.LastChunk(ctx, id)
		if err != nil {
			return nil, busError(err)
		}
		run.existed = last > 0
	}
	if err := c.send(ctx, subject, e); err != nil {
		return nil, err
	}
	return run, nil
}

// keyed is the run id that an idempotency key of the principal stands for.
func (c *Client) keyed(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(c.cfg.Principal + "\x00" + key))
	return "key-" + hex.EncodeToString(sum[:20])
}

// Generate starts a run and waits as [Run.Wait] does.
func (c *Client) Generate(ctx context.Context, req Request) (*Output, error) {
	run, err := c.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return run.Wait(ctx)
}

// Stored gives the chunks of the run after a cursor that are stored now, each once and in order, and then ends. A run of
// which nothing is stored gives none. ErrGap comes in the place of those that are no longer stored.
func (r *Run) Stored(ctx context.Context, after uint64) iter.Seq2[events.Chunk, error] {
	return func(yield func(events.Chunk, error) bool) {
		for ch, err := range r.client.conn.StoredChunks(ctx, r.ID, after) {
			if !yield(ch, busError(err)) {
				return
			}
		}
	}
}

// Last is the cursor of the last stored chunk of the run, 0 when there is none: whoever follows after it misses nothing that
// comes.
func (r *Run) Last(ctx context.Context) (uint64, error) {
	last, err := r.client.conn.LastChunk(ctx, r.ID)
	return last, busError(err)
}

// Wait follows the run from its beginning until it ends, or until nothing in it can move without a decision; then the
// finish reason is "suspended" and Asks are the calls that wait. After a decision Wait goes on to the next of these.
// The output covers the whole run. Calls of the client tools that the run was started with are answered meanwhile.
//
// When the message of the run is what a suspended run waited for (see [Request].AutoResumeSuspendedTools), that one is
// waited for, and the output is that of the whole of it.
//
// A run that failed gives its output and its error, of type *events.Error.
func (r *Run) Wait(ctx context.Context) (*Output, error) {
	f := newFold(r.ID)
	answered := answers{}
	for more := true; more; {
		more = false
		for ch, err := range r.Follow(ctx, f.Output().Cursor, &FollowOptions{UntilSuspended: true, Flat: !r.isBelow()}) {
			if errors.Is(err, ErrGap) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if runs := Resumes(ch); len(runs) > 0 {
				return r.waitFor(ctx, runs)
			}
			f.Add(ch)
			if err := answered.add(ctx, r, ch); err != nil {
				return nil, err
			}
			more = answered.goesOn(ch)
		}
	}
	out := f.Output()
	if out.Error != nil {
		return out, out.Error
	}
	return out, nil
}

// waitFor waits for the run that goes on in place of this one.
func (r *Run) waitFor(ctx context.Context, runs []string) (*Output, error) {
	next, _ := r.goOn(runs[0])
	out, err := next.Wait(ctx)
	if out != nil {
		out.Resumed = runs
	}
	return out, err
}

// errAnother says that the run of this id is another one: its refusal is on its way.
var errAnother = errors.New("the run id is taken")

// confirm makes sure, before anything is shown of a run whose id the caller chose, that it is the run that was asked
// for. A planner refuses a start that meets another run; this waits for that refusal, which may come after the other
// run's first chunks.
func (r *Run) confirm(ctx context.Context) error {
	if !r.chosen || r.requestID == "" || !r.client.reads() {
		return nil
	}
	fact, err := r.client.conn.Fact(ctx, r.client.ns.Start(r.ID))
	if err != nil {
		return r.client.tolerate(err)
	}
	first, err := events.Data[events.RunStarted](fact)
	if err != nil || first.RequestID == r.requestID {
		return nil //nolint:nilerr // what cannot be read proves nothing
	}
	if first.Requester == events.Token(r.client.cfg.Principal) && first.Request.Same(r.request) {
		return nil
	}
	return errAnother
}

// tolerate takes an error of a look at the log that is only a help. A user who may not read is not asked to again.
func (c *Client) tolerate(err error) error {
	if errors.Is(err, jetstream.ErrPermission) {
		c.blind.Store(true)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// isOver reports whether the gate says that a call waits no longer, or waits in another round.
func (c *Client) isOver(ctx context.Context, call string, asks map[string]int) bool {
	ask, err := c.askGate(ctx, call)
	if err != nil {
		return over(err)
	}
	round, ok := asks[call]
	return ok && round != ask.Round
}

// stillHeld reports whether every one of these calls waits for a decision right now: a suspension that a reader meets
// on the stream may be long over. Asks are the rounds of their asks, as far as they are known. Who may not read the log
// asks the gate; what nobody can tell is taken for current.
func (c *Client) stillHeld(ctx context.Context, calls []string, asks map[string]int) bool {
	if c.cfg.LiveOnly {
		return true
	}
	if !c.reads() {
		return !slices.ContainsFunc(calls, func(id string) bool { return c.isOver(ctx, id, asks) })
	}
	return !slices.ContainsFunc(calls, func(id string) bool {
		call, err := events.ParseCallID(id)
		if err != nil {
			return true
		}
		last, err := c.conn.Last(ctx, c.ns.Call(call, events.KindAsk).Chain())
		switch {
		case errors.Is(err, jetstream.ErrNotFound): // aged out
			return true
		case err != nil:
			_ = c.tolerate(err) // then the suspension counts
			return false
		case last.Place.Kind != events.KindAsk:
			return true
		}
		round, ok := asks[id]
		return ok && round != events.RoundOf(last) // asked in the next round: the chunk of that is on its way
	})
}

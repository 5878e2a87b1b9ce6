package approval

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// question is one call as the gate looks at it: everything that its judgement rests on, and nothing else.
type question struct {
	ns      events.Namespace
	call    events.CallID
	round   int
	planned events.CallPlanned
	edited  json.RawMessage // arguments in place of the model's; nil when nobody edited
	run     *run
	rules   *judge.Rules
	judge   *rule.Evaluator
	expires time.Duration // of asks for which neither rule nor tool says so
	follows uint64        // sequence of the fact that go or ask will follow
	attempt int           // attempts to execute so far
	said    string        // what the agent said before the call; no rule sees it
	now     time.Time
	loaded  []string // keys of the tools that the model had loaded when it asked for the call
	hooks   asker    // asks hook services; nil: there are none
	ready   *readied // the call frozen, when that was done before
}

// ruling is what follows an empty call chain or an edit: exactly one of the three.
type ruling struct {
	finished *events.CallFinished
	released *events.CallReleased
	held     *events.CallHeld
	input    json.RawMessage // the arguments, when they are valid: observers are told of them
}

// frozen is a call whose bytes no one changes any more: they are fingerprinted, shown, approved and executed.
type frozen struct {
	tool        *tool
	args        json.RawMessage
	fingerprint string
	changed     string // the hook that has changed what a person had edited; empty: none has
}

// decide takes a call through the gate's pipeline: resolve the tool, parse, repair and validate the arguments, check
// the request context, ask the hooks, freeze, fingerprint, and evaluate the rules. Wrong arguments never bother a person.
func (q question) decide(ctx context.Context) ruling {
	f, refused := q.freeze(ctx)
	if refused != nil {
		return ruling{finished: refused, input: f.args}
	}
	j := q.judgement(ctx, f)
	if f.changed != "" && j.Action == rule.Allow {
		j = asksAgain(f.changed)
	}
	switch {
	case j.Action == rule.Allow && f.tool.Client():
		a := q.askClient(f)
		a.Rules = q.rules.Digest()
		return ruling{held: a, input: f.args}
	case j.Action == rule.Allow && q.run.search.Answers(q.planned.ToolName):
		return ruling{finished: q.find(ctx, f.args), input: f.args}
	case f.tool.Delegates() && q.run.tooDeep():
		return ruling{finished: q.result(events.OutcomeError, tooDeep(q.run)), input: f.args}
	case j.Action == rule.Allow:
		by := events.AllowedBy{
			Rules: q.rules.Digest(), Rule: j.Reason.Rule, Set: j.Reason.Set, SetDigest: j.Reason.Digest, Answer: q.follows,
		}
		r := q.release(f, by)
		return ruling{released: &r, input: f.args}
	case j.Action == rule.Block:
		return ruling{finished: q.result(events.OutcomeBlocked, blockedBy(j.Reason)), input: f.args}
	default:
		return ruling{held: q.hold(f, j), input: f.args}
	}
}

func blockedBy(r rule.Reason) func(*events.CallFinished) {
	text := cmp.Or(r.Text, "blocked by rule "+r.Rule)
	return func(d *events.CallFinished) {
		d.Reason = "rule " + r.Set + "/" + r.Rule
		d.Error = &events.ToolError{Name: "blocked", Message: text}
		d.BlockedBy = new(judge.Reason(r))
	}
}

// freeze resolves and checks a call up to its fingerprint, or says with which result it ends here. A call that a hook ends
// has had valid arguments.
func (q question) freeze(ctx context.Context) (frozen, *events.CallFinished) {
	if q.ready != nil {
		return q.ready.frozen, q.ready.refused
	}
	t, known := q.run.tools[q.planned.ToolName]
	if usable := q.run.usable(ctx, q.loaded); !known || q.planned.Withheld || !slices.Contains(usable, q.planned.ToolName) {
		return frozen{}, q.result(events.OutcomeUnknown, unknownTool(q.planned.ToolName, usable))
	}
	args := q.edited
	if args == nil {
		var err error
		if args, err = events.ParseArgs(q.planned.Args, q.planned.Truncated); err != nil {
			return frozen{}, q.result(events.OutcomeInvalid, q.invalidInput(t, err))
		}
	}
	args, err := events.Normalize(t.input, args)
	if err != nil {
		return frozen{}, q.result(events.OutcomeInvalid, q.invalidInput(t, err))
	}
	if err := q.checkContext(t); err != nil {
		return frozen{}, q.result(events.OutcomeInvalid, func(d *events.CallFinished) {
			d.Result = events.InvalidContext(t.ID, err)
		})
	}
	args, by, refused := q.askHooks(ctx, t, args)
	if refused != nil {
		return frozen{args: args}, refused
	}
	return frozen{tool: t, args: args, changed: by, fingerprint: events.Frozen{
		Namespace: q.ns, RunID: q.call.Run, ToolCallID: q.call.String(), Round: q.round, ToolID: t.ID,
		ToolVersion: t.Version, InputSchemaDigest: t.InputSchemaDigest, Args: args,
	}.Fingerprint()}, nil
}

func (q question) checkContext(t *tool) error {
	if t.context == nil {
		return nil
	}
	given := q.run.start.RequestContext
	if given == nil {
		given = json.RawMessage(`{}`)
	}
	return t.context.ValidateRaw(given)
}

func unknownTool(name string, usable []string) func(*events.CallFinished) {
	list := cmp.Or(strings.Join(usable, ", "), "none")
	return func(d *events.CallFinished) {
		d.Error = &events.ToolError{
			Name:    events.ErrorToolNotFound,
			Message: fmt.Sprintf("Tool %q is not available. Available tools: %s", name, list),
		}
	}
}

// invalidInput says why arguments were refused, and quotes them where nothing hides them.
func (q question) invalidInput(t *tool, err error) func(*events.CallFinished) {
	quoted := ""
	if v := q.run.view(q.planned.ToolName); !v.Covers(events.TargetDisplay) && !v.Covers(events.TargetTranscript) {
		quoted = t.secrets.ArgsText(q.planned.Args)
	}
	return func(d *events.CallFinished) { d.Result = events.InvalidInput(q.planned.ToolName, err, quoted) }
}

// result is the outcome of a call that ends at the gate without having started.
func (q question) result(o events.Outcome, more ...func(*events.CallFinished)) *events.CallFinished {
	d := &events.CallFinished{
		ToolCallID: q.call.String(), RunID: q.call.Run, ToolName: q.planned.ToolName,
		Round: q.round, Outcome: o, Args: q.edited,
	}
	for _, f := range more {
		f(d)
	}
	return d
}

// judgement is what the tool, the run and the operators' rule sets say about a call.
func (q question) judgement(ctx context.Context, f frozen) rule.Judgement {
	st := q.run.start
	return q.rules.Judge(ctx, q.judge, judge.Call{
		Tool: f.tool.Manifest, ToolName: q.planned.ToolName, Args: f.args, Context: st.RequestContext, AgentID: st.AgentID,
		Run:                 judge.Run{ID: st.RunID, Thread: st.ThreadID, Resource: st.ResourceID, Requester: st.Requester},
		RequireToolApproval: st.Options.ToolApproval(q.run.agent), Inherited: q.run.inherited(), Hooks: q.run.hooks.Rules(),
	})
}

// restrict says in an ask who may decide it, how and until when.
func (q question) restrict(a *events.CallHeld, j rule.Judgement) {
	d := judge.Deadline{Default: q.expires}
	if t := q.run.tools[a.ToolName]; t != nil {
		d.Tool = time.Duration(t.Expires)
	}
	q.rules.Restrict(a, j, d)
}

// release is the permission to run exactly these bytes.
func (q question) release(f frozen, by events.AllowedBy) events.CallReleased {
	st := q.run.start
	return events.CallReleased{
		Namespace: q.ns, RunID: q.call.Run, ToolCallID: q.call.String(), Round: q.round, Pool: f.tool.Pool,
		ToolID: f.tool.ID, ToolVersion: f.tool.Version, InputSchemaDigest: f.tool.InputSchemaDigest,
		Effect: f.tool.Effect, Args: string(f.args), Fingerprint: f.fingerprint, Follows: q.follows, AllowedBy: by,
		ToolName: q.planned.ToolName, AgentID: st.AgentID, ThreadID: st.ThreadID, ResourceID: st.ResourceID,
		RequestContext: st.RequestContext, StartBy: q.now.Add(cmp.Or(time.Duration(f.tool.StartTimeout), 5*time.Minute)),
		Timeout: cmp.Or(events.Duration(q.planned.Background.Timeout()), f.tool.Timeout), Attempt: q.attempt, Background: q.planned.Background, Transform: transform.For(q.run.start.Options.TransformPolicy(q.run.agent), f.tool.Manifest),
	}
}

// hold is the question to people about these bytes.
func (q question) hold(f frozen, j rule.Judgement) *events.CallHeld {
	a := q.ask(f, events.AskApproval)
	a.LastWords = events.LastWordsOf(q.said)
	a.Reason = judge.Reason(j.Reason)
	q.restrict(a, j)
	// People have to see what became of what they wrote; and a call of a client, or one that the gate answers, is not released.
	a.NoGrant = a.NoGrant || f.changed != "" || f.tool.Client() || q.run.search.Answers(q.planned.ToolName)
	return a
}

// ask is what every kind of ask says about its call.
func (q question) ask(f frozen, kind events.AskKind) *events.CallHeld {
	st := q.run.start
	return &events.CallHeld{
		ToolCallID: q.call.String(), RunID: q.call.Run, RootRunID: st.RootRunID, Path: st.Path, AgentID: st.AgentID,
		Round: q.round, Kind: kind, ToolName: q.planned.ToolName, ToolID: f.tool.ID, ToolVersion: f.tool.Version,
		ToolDigest: f.tool.digest, Title: f.tool.Title, InputSchemaDigest: f.tool.InputSchemaDigest,
		Effect: f.tool.Effect, Args: f.args, ArgsSize: len(f.args), ArgsDigest: events.Digest(f.args),
		Fingerprint: f.fingerprint, Allowed: kind.Allowed(),
		OnExpiry: cmp.Or(f.tool.OnExpiry, events.OnExpiryDecline), ThreadID: st.ThreadID, ResourceID: st.ResourceID,
		Attempt: q.attempt, AskedAt: q.now, Background: q.planned.Background,
		ExpiresAt: q.now.Add(cmp.Or(time.Duration(f.tool.Expires), q.expires)),
	}
}

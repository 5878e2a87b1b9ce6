package approval

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// observe tells a tool's observers of the valid arguments of a call, before anything follows from them. Who is told later
// that a step is there does not repeat it: observers hear of a call at most once.
func (s *Service) observe(ctx context.Context, r *run, q question, input json.RawMessage) {
	t := r.tools[q.planned.ToolName]
	if t == nil || !t.observers.Want(events.OnInputAvailable) {
		return
	}
	err := s.conn.Observe(ctx, events.CallObserved{
		Namespace: s.ns, Event: events.OnInputAvailable, RunID: q.call.Run, ToolCallID: q.call.String(),
		ToolName: q.planned.ToolName, ToolID: t.ID, ToolVersion: t.Version, AgentID: r.start.AgentID, Input: input,
	})
	if err != nil {
		s.log.WarnContext(ctx, "observers not told", "runId", q.call.Run, "toolCallId", q.call.String(),
			"event", string(events.OnInputAvailable), "error", err)
	}
}

// asker asks hook services, and tells readers of a run that one was left out.
type asker interface {
	askHook(ctx context.Context, service string, req events.HookRequest) (events.HookAnswer, error)
	warnOfHook(ctx context.Context, call events.CallID, hook string)
}

var _ asker = (*Service)(nil)

func (s *Service) askHook(ctx context.Context, service string, req events.HookRequest) (events.HookAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(req.Within))
	defer cancel()
	began := time.Now()
	answer, err := s.conn.AskHook(ctx, service, req)
	if err != nil { // holds no value
		s.log.WarnContext(ctx, "hook failed", "runId", req.RunID, "toolCallId", req.ToolCallID, "hook", req.Hook,
			"after", time.Since(began), "error", err)
	}
	return answer, err
}

// warningHook is the code of warnings about calls that went on without a hook.
const warningHook = "hook_failed"

func (s *Service) warnOfHook(ctx context.Context, call events.CallID, hook string) {
	s.chunk(ctx, events.CallWarningChunk(call.Run, call.String(), warningHook,
		"the hook "+hook+" gave no answer that could be used; the call went on without it"))
}

// readied is a call that was frozen before its turn, or the result with which it ends.
type readied struct {
	frozen  frozen
	refused *events.CallFinished
}

// readyAll freezes the calls of a step at once where hook services are asked, so that a step waits for them as long as one
// call does; and where calls may have to wait for their turn, so that hooks need not be asked again.
func readyAll(ctx context.Context, questions []question) {
	if len(questions) == 0 || !questions[0].run.asksHooks() || len(questions) < 2 && questions[0].run.concurrency() == 0 {
		return
	}
	var wg sync.WaitGroup
	for i := range questions {
		wg.Go(func() {
			var r readied
			r.frozen, r.refused = questions[i].freeze(ctx)
			questions[i].ready = &r
		})
	}
	wg.Wait()
}

// asksHooks reports whether a hook service is asked before the run's calls.
func (r *run) asksHooks() bool {
	for _, h := range r.hooks {
		if h.When == "" {
			return true
		}
	}
	return false
}

// askHooks asks the run's hook services about a call, one after the other, each about what the one before has made of the
// arguments; those are as valid as before. It also names the hook that has changed arguments which a person wrote.
//
// Nothing is stored before the first fact of the call: a gate that takes over from one that was stopped asks again, and may
// be answered differently, and only what is stored counts. None of it authorises: what goes on is judged like any other.
func (q question) askHooks(ctx context.Context, t *tool, args json.RawMessage) (_ json.RawMessage, changed string, _ *events.CallFinished) {
	if q.hooks == nil {
		return args, "", nil
	}
	for _, name := range q.run.hooks.Names() {
		hook := q.run.hooks[name]
		if hook.When != "" {
			continue // a rule
		}
		answer, err := q.hooks.askHook(ctx, cmp.Or(hook.Service, name), q.hookRequest(name, hook, t, args))
		input := args
		if err == nil && answer.Input != nil {
			input, err = rewritten(t, answer.Input)
		}
		switch {
		case err != nil && hook.FailMode == events.FailOpen:
			q.hooks.warnOfHook(ctx, q.call, name)
			continue
		case err != nil:
			return args, "", q.result(events.OutcomeError, hookFailed(name))
		case !answer.Proceed:
			return args, "", q.result(events.OutcomeBlocked, blockedByHook(name, answer.Output))
		}
		if q.edited != nil && !bytes.Equal(input, args) {
			changed = name
		}
		args = input
	}
	return args, changed, nil
}

// rewritten are the arguments that a hook gave, read as those of a model are.
func rewritten(t *tool, input json.RawMessage) (json.RawMessage, error) {
	args, err := events.ParseArgs(string(input), false)
	if err != nil {
		return nil, err
	}
	return events.Normalize(t.input, args)
}

func (q question) hookRequest(name string, hook events.Hook, t *tool, args json.RawMessage) events.HookRequest {
	st := q.run.start
	return events.HookRequest{
		Hook: name, RunID: q.call.Run, ToolCallID: q.call.String(), Round: q.round, ToolName: q.planned.ToolName, ToolID: t.ID,
		Input: args, Context: st.RequestContext, Edited: q.edited != nil, Within: events.Duration(hook.Patience()),
		Metadata: events.HookMetadata{AgentID: st.AgentID, AgentName: q.run.agent.Name},
	}
}

func hookFailed(name string) func(*events.CallFinished) {
	return func(d *events.CallFinished) {
		d.Reason = "hook " + name
		d.Error = &events.ToolError{
			Name: events.ErrorHookFailed, Message: "the hook " + name + " gave no answer that could be used, so nothing was run",
		}
	}
}

// blockedByHook ends a call with what a hook gave as its result.
func blockedByHook(name string, output json.RawMessage) func(*events.CallFinished) {
	return func(d *events.CallFinished) {
		d.Reason = "hook " + name
		d.BlockedBy = &events.AskReason{Set: events.HookSet, Rule: name}
		if d.Result = output; output == nil {
			d.Error = &events.ToolError{Name: "blocked", Message: "blocked by hook " + name}
		}
	}
}

// asksAgain holds an edited call that a hook has changed: nobody has seen what would run.
func asksAgain(hook string) rule.Judgement {
	return rule.Judgement{Action: rule.Ask, Reason: rule.Reason{
		Set: events.HookSet, Rule: hook, Text: "the hook " + hook + " has changed the edited arguments",
	}}
}

package approval

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
)

// preview fills in what calls that are about to be asked about would do, as their tools say: all at once, each within
// the time that people may be kept waiting for it. It decides nothing and never fails an ask; one that has a preview
// keeps it.
func (s *Service) preview(ctx context.Context, r *run, held []holding) {
	var wg sync.WaitGroup
	for i := range held {
		ask := &held[i].ask
		t := r.tools[ask.ToolName]
		if ask.Preview != nil || t == nil || t.preview == nil {
			continue
		}
		if !t.preview.Go {
			ask.Preview = shown(t, *ask, rendered(t, *ask))
		} else if ask.Kind == events.AskApproval { // later, its hosts are busy with the call, or gone
			wg.Go(func() { ask.Preview = shown(t, *ask, s.askHost(ctx, r, t, *ask)) })
		}
	}
	wg.Wait()
}

// shown is a preview as an ask holds it, without what must not be shown.
func shown(t *tool, ask events.CallHeld, p events.Preview) json.RawMessage {
	return p.Without(t.secrets.Of(ask.Args)).Encoded()
}

func rendered(t *tool, ask events.CallHeld) events.Preview {
	p, err := events.RenderPreview(t.preview.Template, t.input, ask.Args)
	if err != nil {
		return events.Preview{Failed: true}
	}
	return p
}

// askHost asks a host of the tool. What it says is shown within bounds, whatever it is.
func (s *Service) askHost(ctx context.Context, r *run, t *tool, ask events.CallHeld) events.Preview {
	st := r.start
	body, err := events.Marshal(events.PreviewRequest{
		Namespace: s.ns, RunID: ask.RunID, ToolCallID: ask.ToolCallID, Round: ask.Round, ToolName: ask.ToolName,
		ToolID: t.ID, ToolVersion: t.Version, InputSchemaDigest: t.InputSchemaDigest, Args: string(ask.Args),
		AgentID: st.AgentID, ThreadID: st.ThreadID, ResourceID: st.ResourceID, RequestContext: st.RequestContext,
		Within: events.Duration(s.cfg.Preview),
	})
	if err != nil {
		return events.Preview{Failed: true}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Preview)
	defer cancel()
	began := time.Now()
	answer, err := s.conn.AskHost(ctx, s.ns.ToolService(t.Pool, t.ID, events.VerbPreview), body)
	var p events.Preview
	if err == nil {
		err = json.Unmarshal(answer, &p)
	}
	if err != nil {
		s.log.InfoContext(ctx, "ask without preview", "runId", ask.RunID, "toolCallId", ask.ToolCallID, "toolId", t.ID,
			"after", time.Since(began), "error", err)
		return events.Preview{Failed: true}
	}
	return p.Bounded()
}

// keep takes over from the last ask of a call what does not change with the round: what the agent said before it, and
// what the tool said about the same arguments. A call that was not asked about before has its step to tell the former.
// Both are shown only, so what cannot be read is left out.
func (s *Service) keep(ctx context.Context, r *run, ask *events.CallHeld, call events.CallID) {
	if before, ok := s.askBefore(ctx, call); ok {
		ask.LastWords = before.LastWords
		if before.ArgsDigest == ask.ArgsDigest {
			ask.Preview = before.Preview
		}
		return
	}
	step, err := s.conn.Fact(ctx, s.ns.Step(call.Run, call.Step))
	if err != nil {
		return
	}
	if d, err := events.Data[events.StepFinished](step); err == nil {
		ask.LastWords = events.LastWordsOf(r.said(d))
	}
}

// said is what the agent said in a turn, without the secrets of its calls.
func (r *run) said(step events.StepFinished) string {
	text := step.Message.Text()
	for _, c := range step.Calls {
		t := r.tools[c.ToolName]
		if t == nil || !t.secrets.HidesInput() {
			continue
		}
		args, err := events.ParseArgs(c.Args, c.Truncated)
		if err != nil { // what of it is secret, nobody knows
			return ""
		}
		text = t.secrets.Of(args).Text(text)
		if repaired, err := events.Normalize(t.input, args); err == nil { // which may show a secret where a text was
			text = t.secrets.Of(repaired).Text(text)
		}
	}
	return text
}

// askBefore is the last ask of a call that a gate has written.
func (s *Service) askBefore(ctx context.Context, call events.CallID) (events.CallHeld, bool) {
	fact, err := s.conn.Fact(ctx, s.ns.Call(call, events.KindAsk))
	if err != nil || s.genuine(fact) != nil {
		return events.CallHeld{}, false
	}
	ask, err := events.Data[events.CallHeld](fact)
	return ask, err == nil
}

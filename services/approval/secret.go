package approval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Asks and answers are read by more people than the log is. What the schemas of a tool mark as secret stands there as
// its length and digest; the whole is a blob, stored before the fact that refers to it.

// conceal takes secrets out of asks that are about to be stored, and makes what transforms show of them.
func (s *Service) conceal(ctx context.Context, r *run, held []holding) error {
	for i := range held {
		ask := &held[i].ask
		if t := r.tools[ask.ToolName]; t != nil && t.secrets != nil {
			if err := s.mask(ctx, t.secrets, ask); err != nil {
				return err
			}
		}
		ask.Display = r.view(ask.ToolName).Ask(ctx, *ask)
		ask.Transcript = r.view(ask.ToolName).AskStored(ctx, *ask)
	}
	return nil
}

// mask takes secrets out of an ask.
func (s *Service) mask(ctx context.Context, secrets *events.Secrets, ask *events.CallHeld) (err error) {
	ask.Reason.Error = secrets.Of(ask.Args).Text(ask.Reason.Error)
	payload := secrets.SuspendPayload(ask.SuspendPayload, ask.Args)
	if ask.SuspendPayload, ask.SuspendRef, err = s.veil(ctx, ask.SuspendPayload, payload); err != nil {
		return fmt.Errorf("keep the payload of %s: %w", ask.ToolCallID, err)
	}
	if ask.Args, ask.DataRef, err = s.veil(ctx, ask.Args, secrets.Args(ask.Args)); err != nil {
		return fmt.Errorf("keep the arguments of %s: %w", ask.ToolCallID, err)
	}
	return nil
}

// veil keeps a value as a blob when it differs from what may be shown of it.
func (s *Service) veil(ctx context.Context, whole, shown json.RawMessage) (json.RawMessage, string, error) {
	if bytes.Equal(whole, shown) {
		return whole, "", nil
	}
	ref, err := s.conn.PutBlob(ctx, whole)
	return shown, ref, err
}

// concealAnswer takes secrets out of an answer that is about to be stored: of the data that the decision brought, and
// with them of the decision itself, which is kept as it was signed.
func (s *Service) concealAnswer(ctx context.Context, m meeting, a *events.CallAnswered) (err error) {
	t := m.run.tools[m.ask.ToolName]
	switch {
	case a.Resume != nil:
		resume := events.Resume{}
		resume.Data, a.DataRef, err = s.veil(ctx, a.Resume.Data, maskResume(m.ask.ResumeSchema, a.Resume.Data))
		a.Resume = &resume
	case t == nil || t.secrets == nil:
	case a.Decision == events.Edit:
		a.Args, a.DataRef, err = s.veil(ctx, a.Args, t.secrets.Args(a.Args))
	case a.Decision == events.Respond:
		a.Result, a.DataRef, err = s.veil(ctx, a.Result, t.secrets.Result(a.Result))
		if err == nil && a.ModelOutput != nil {
			a.ModelOutput, a.ModelRef, err = s.veilOutput(ctx, *a.ModelOutput)
		}
	}
	if err != nil || a.Signed == nil || a.DataRef == "" && (t == nil || t.secrets == nil || !m.idle()) {
		return err
	}
	kept := *a.Signed
	kept.DataRef, err = s.conn.PutBlob(ctx, []byte(kept.Payload))
	kept.Payload = ""
	a.Signed = &kept
	return err
}

// veilOutput keeps what a model is told of a result as a blob: which of it is secret, nobody knows.
func (s *Service) veilOutput(ctx context.Context, o events.ModelOutput) (*events.ModelOutput, string, error) {
	whole, err := events.Marshal(o)
	if err != nil {
		return nil, "", err
	}
	ref, err := s.conn.PutBlob(ctx, whole)
	return &events.ModelOutput{Type: events.OutputText, Value: json.RawMessage(`"not shown: results of this tool hold secrets"`)}, ref, err
}

// idle reports whether a decision brings data that its kind has no use for. They stand in what was signed only.
func (m meeting) idle() bool {
	req := m.req
	return len(req.Args) > 0 && req.Decision != events.Edit || len(req.Result) > 0 && req.Decision != events.Respond ||
		len(req.ResumeData) > 0 && req.Decision != events.ResumeD
}

// maskResume masks resume data by the schema that the ask names. They have been checked against it.
func maskResume(schema, data json.RawMessage) json.RawMessage {
	if len(schema) == 0 || string(schema) == "null" {
		return data
	}
	compiled, err := events.CompileSchema(schema)
	if err != nil {
		return data
	}
	return events.Mask(compiled, data)
}

// unmask gives an edit the secrets that its sender has seen masked only, and has left as they were.
func (s *Service) unmask(ctx context.Context, m *meeting) error {
	t := m.run.tools[m.ask.ToolName]
	if m.req.Decision != events.Edit || m.ask.DataRef == "" || t == nil {
		return nil
	}
	frozen, err := s.conn.Blob(ctx, m.ask.DataRef)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil // a masked field then does not fit the schema
	}
	if err != nil {
		return fmt.Errorf("read the arguments of %s: %w", m.call, err)
	}
	m.req.Args = events.Unmask(t.input, m.req.Args, frozen)
	return nil
}

// reveal puts back what an answer and the ask that it follows only show. A blob proves by its digest that it is what the
// signed fact means.
func (s *Service) reveal(ctx context.Context, a *answered) (err error) {
	if a.ask.DataRef != "" {
		if a.ask.Args, err = s.conn.Blob(ctx, a.ask.DataRef); err != nil {
			return fmt.Errorf("read the arguments of %s: %w", a.call, err)
		}
	}
	if a.ask.SuspendRef != "" {
		if a.ask.SuspendPayload, err = s.conn.Blob(ctx, a.ask.SuspendRef); err != nil {
			return fmt.Errorf("read the payload of %s: %w", a.call, err)
		}
	}
	if a.data.ModelRef != "" {
		whole, err := s.conn.Blob(ctx, a.data.ModelRef)
		if err == nil {
			err = json.Unmarshal(whole, &a.data.ModelOutput)
		}
		if err != nil {
			return fmt.Errorf("read what the model is told of %s: %w", a.call, err)
		}
	}
	if a.data.DataRef == "" {
		return nil
	}
	brought, err := s.conn.Blob(ctx, a.data.DataRef)
	switch {
	case err != nil:
		return fmt.Errorf("read the decision about %s: %w", a.call, err)
	case a.data.Resume != nil:
		a.data.Resume = &events.Resume{Data: brought}
	case a.data.Decision == events.Edit:
		a.data.Args = brought
	default:
		a.data.Result = brought
	}
	return nil
}

// blobGrace is how long a blob that an answer needs may take to show. It was stored before the answer.
const blobGrace = time.Minute

// withoutSecrets is what an answer leads to when the blobs that it needs cannot be read: nothing yet, while they may show;
// once they are lost, a call that nobody lets run ends as it would have, and any other with an error, since its bytes
// are gone.
func (s *Service) withoutSecrets(ctx context.Context, r *run, a answered, why error) error {
	if !errors.Is(why, jetstream.ErrNotFound) {
		return why
	}
	now, err := s.conn.Now(ctx)
	if err != nil || now.Sub(a.fact.Stored) < blobGrace {
		return errors.Join(why, err)
	}
	started, err := s.started(ctx, a.call, a.ask.Attempt)
	if err != nil {
		return err
	}
	end := resultOf(a, started)
	if a.data.Decision.Releases() || a.data.Decision == events.Edit || a.data.Decision == events.Respond {
		end.Outcome, end.Result, end.ModelOutput = events.OutcomeError, nil, nil
		end.Error = &events.ToolError{Name: events.ErrorUnavailable, Message: "the arguments of the call are lost; it cannot run"}
	}
	last, _, err := s.addRuling(ctx, a.call, a.fact, ruling{finished: end})
	if err != nil {
		return ignoreGone(err)
	}
	return s.help(ctx, r, last)
}

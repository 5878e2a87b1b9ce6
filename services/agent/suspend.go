package agent

import (
	"encoding/json"
	"fmt"

	"github.com/weirkeeper/weir/events"
)

// Suspension is the error by which a handler stops until people give it data. It is made by [Call.Suspend] and found
// by errors.As, so a handler may wrap it.
type Suspension struct { //nolint:errname // it is no failure
	Payload      json.RawMessage // what people are shown
	ResumeSchema json.RawMessage // of the data that resume it, in place of the tool's; nil: the tool's
	ResumeLabel  string          // what the button says that resumes it
}

// Error says that this is no failure.
func (s *Suspension) Error() string { return "the call suspended itself" }

// SuspendOptions change how one suspension is answered.
type SuspendOptions struct {
	ResumeSchema json.RawMessage // in place of the tool's, for this round only
	ResumeLabel  string
}

// Suspend stops the call until people resume it. Return what it returns, at once:
//
//	return out, call.Suspend(Question{Reason: "over the limit"})
//
// The payload is shown to people and must fit the tool's suspend schema. Once they answer, the handler runs again
// from its start, with [ResumeData] and the same [Call.IdempotencyKey]; nothing of the handler waits in between.
func (c *Call) Suspend(payload any) error { return c.SuspendWith(payload, nil) }

// SuspendWith is [Call.Suspend] with options for this one suspension.
func (c *Call) SuspendWith(payload any, o *SuspendOptions) error {
	raw, err := events.Marshal(payload)
	if err != nil {
		return fmt.Errorf("suspend: encode payload: %w", err)
	}
	s := &Suspension{Payload: raw}
	if o != nil {
		s.ResumeSchema, s.ResumeLabel = o.ResumeSchema, o.ResumeLabel
	}
	return s
}

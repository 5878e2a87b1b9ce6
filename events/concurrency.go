package events

import (
	"encoding/json"
	"fmt"
)

// Concurrency is how many calls of a step execute at once; 0 is any number. In JSON it is a number, or {"limit": n} with a
// strategy that changes nothing.
type Concurrency int

// UnmarshalJSON reads both forms.
func (c *Concurrency) UnmarshalJSON(b []byte) error {
	var n int
	if err := json.Unmarshal(b, &n); err == nil {
		*c = Concurrency(n)
		return nil
	}
	var form struct {
		Limit int `json:"limit"`
	}
	if err := json.Unmarshal(b, &form); err != nil {
		return fmt.Errorf("toolCallConcurrency must be a whole number or {\"limit\": n}, not %.80s", b)
	}
	*c = Concurrency(form.Limit)
	return nil
}

// Check says what is wrong.
func (c Concurrency) Check() []Issue {
	if c >= 0 {
		return nil
	}
	return []Issue{{Field: "toolCallConcurrency", Message: fmt.Sprintf("want a whole number from 1, or nothing for any number, not %d", c)}}
}

// Concurrency is how many calls of the run execute at once: the request's word, else that of the agent; 0 is any number.
func (o Options) Concurrency(agent AgentDef) int {
	if o.ToolCallConcurrency > 0 {
		return int(o.ToolCallConcurrency)
	}
	return int(agent.ToolCallConcurrency)
}

package events

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Dispositions of calls that may run in the background.
const (
	Deferred   = "deferred"   // the conversation goes on without the result, which joins it when it is there
	Awaited    = "awaited"    // the step waits for the result, up to a time; after that the call is deferred
	Foreground = "foreground" // as any other call
)

// BackgroundArg is the key of arguments by which a model says how a call is to run. It is none of the tool's arguments: it
// is taken out before anybody looks at them.
const BackgroundArg = "_background"

// MaxBackground is how many background calls of one run may be open at once. What a model asks for beyond that runs in the
// foreground.
const MaxBackground = 64

// Background says how calls of a tool run beside the conversation (manifest, background; and by key in an agent's
// backgroundTasks). Zero fields have the default that their comment names.
type Background struct {
	Enabled            bool     `json:"enabled"`
	DefaultDisposition string   `json:"defaultDisposition,omitempty"` // deferred (default) or foreground
	TimeoutMs          int      `json:"timeoutMs,omitempty"`          // of the handler; default the tool's timeout
	MaxRetries         int      `json:"maxRetries,omitempty"`         // after errors that are listed; default none
	RetryableErrors    []string `json:"retryableErrors,omitempty"`    // names of errors after which the handler is called again
	WaitTimeoutMs      int      `json:"waitTimeoutMs,omitempty"`      // how long a step waits for an awaited call; default without end
}

// ParseBackground reads the background of a manifest; nil when it declares none.
func ParseBackground(raw json.RawMessage) (*Background, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil //nolint:nilnil // none is none
	}
	var b Background
	if err := strictly(raw, &b); err != nil {
		return nil, errors.New(`want {"enabled": true, …}, with enabled, defaultDisposition, timeoutMs, maxRetries, retryableErrors ` +
			`and waitTimeoutMs`)
	}
	return &b, b.check()
}

func (b Background) check() error {
	if !slices.Contains([]string{"", Deferred, Foreground}, b.DefaultDisposition) {
		return fmt.Errorf("defaultDisposition: want %s or %s, not %q", Deferred, Foreground, b.DefaultDisposition)
	}
	for name, n := range map[string]int{"timeoutMs": b.TimeoutMs, "maxRetries": b.MaxRetries, "waitTimeoutMs": b.WaitTimeoutMs} {
		if n < 0 {
			return fmt.Errorf("%s: must not be negative", name)
		}
	}
	if b.MaxRetries > MaxBackgroundRetries {
		return fmt.Errorf("maxRetries: must not be over %d", MaxBackgroundRetries)
	}
	if b.MaxRetries > 0 && len(b.RetryableErrors) == 0 {
		return errors.New("retryableErrors: name the errors after which a call is tried again")
	}
	return nil
}

// MaxBackgroundRetries bounds how often a handler is called for one claim.
const MaxBackgroundRetries = 20

// BackgroundTasks says which calls of an agent may run in the background (agent, backgroundTasks).
type BackgroundTasks struct {
	Disabled bool `json:"disabled,omitempty"`
	// Tools are "all", or by key true, false, or how. A tool that is not named is as its manifest says.
	Tools BackgroundTools `json:"tools,omitzero"`
	// Concurrency is how many background calls of a run are open at once; one more is a foreground call. Default 64.
	Concurrency   int `json:"concurrency,omitempty"`
	WaitTimeoutMs int `json:"waitTimeoutMs,omitempty"` // for tools that say none
}

// Check lists what is wrong with it.
func (b *BackgroundTasks) Check() []Issue {
	if b == nil {
		return nil
	}
	var list []Issue
	for name, n := range map[string]int{"concurrency": b.Concurrency, "waitTimeoutMs": b.WaitTimeoutMs} {
		if n < 0 {
			list = append(list, Issue{Field: "backgroundTasks." + name, Message: "must not be negative"})
		}
	}
	if b.Concurrency > MaxBackground {
		list = append(list, Issue{Field: "backgroundTasks.concurrency", Message: fmt.Sprintf("must not be over %d", MaxBackground)})
	}
	for key, t := range b.Tools.By {
		if err := t.check(); err != nil {
			list = append(list, Issue{Field: "backgroundTasks.tools." + key, Message: err.Error()})
		}
	}
	return list
}

// BackgroundTools are tools that an agent calls in the background: all, or some, by key. In JSON "all" or an object whose
// values are true, false or an object as in a manifest.
type BackgroundTools struct {
	All bool
	By  map[string]Background
}

// IsZero reports whether it says nothing.
func (b BackgroundTools) IsZero() bool { return !b.All && len(b.By) == 0 }

// MarshalJSON writes the short form.
func (b BackgroundTools) MarshalJSON() ([]byte, error) {
	if b.All {
		return []byte(`"all"`), nil
	}
	by := make(map[string]any, len(b.By))
	for key, t := range b.By {
		by[key] = t
		if short, err := Marshal(t); err == nil && string(short) == fmt.Sprintf(`{"enabled":%t}`, t.Enabled) {
			by[key] = t.Enabled
		}
	}
	return Marshal(by)
}

// UnmarshalJSON reads "all" or an object; anything else is an error.
func (b *BackgroundTools) UnmarshalJSON(raw []byte) error {
	*b = BackgroundTools{}
	if string(bytes.TrimSpace(raw)) == `"all"` {
		b.All = true
		return nil
	}
	var by map[string]json.RawMessage
	if err := json.Unmarshal(raw, &by); err != nil || by == nil {
		return errors.New(`want "all", or by key true, false or an object`)
	}
	b.By = make(map[string]Background, len(by))
	for key, value := range by {
		var on bool
		if json.Unmarshal(value, &on) == nil && string(value) != "null" {
			b.By[key] = Background{Enabled: on}
			continue
		}
		t := Background{Enabled: true}
		if err := strictly(value, &t); err != nil {
			return fmt.Errorf("%s: want true, false or an object as background of a tool", key)
		}
		b.By[key] = t
	}
	return nil
}

// BackgroundOf is how calls of a tool of an agent may run in the background; nil when they may not. What the agent says of
// the tool goes before what the tool says itself. Calls that their client answers are never in the background.
func BackgroundOf(a AgentDef, key string, m Manifest) *Background {
	if a.ToolSearch != nil && IsToolFinder(key) {
		return nil // the next turn is about what they find
	}
	own, err := ParseBackground(m.Background)
	tasks := a.BackgroundTasks
	if err != nil || m.Client() || tasks != nil && tasks.Disabled {
		return nil
	}
	var b Background
	if own != nil {
		b = *own
	}
	if tasks != nil {
		said, named := tasks.Tools.By[key]
		switch {
		case named:
			b = said.over(b)
		case tasks.Tools.All:
			b.Enabled = true
		}
		b.WaitTimeoutMs = cmp.Or(b.WaitTimeoutMs, tasks.WaitTimeoutMs)
	}
	if !b.Enabled {
		return nil
	}
	return &b
}

// over fills what is not said from another.
func (b Background) over(o Background) Background {
	b.DefaultDisposition = cmp.Or(b.DefaultDisposition, o.DefaultDisposition)
	b.TimeoutMs, b.WaitTimeoutMs = cmp.Or(b.TimeoutMs, o.TimeoutMs), cmp.Or(b.WaitTimeoutMs, o.WaitTimeoutMs)
	b.MaxRetries = cmp.Or(b.MaxRetries, o.MaxRetries)
	if len(b.RetryableErrors) == 0 {
		b.RetryableErrors = o.RetryableErrors
	}
	return b
}

// CallBackground says that a call runs in the background, and how. A call without it runs in the foreground.
type CallBackground struct {
	Disposition     string   `json:"disposition"` // deferred or awaited
	TimeoutMs       int      `json:"timeoutMs,omitempty"`
	MaxRetries      int      `json:"maxRetries,omitempty"`
	RetryableErrors []string `json:"retryableErrors,omitempty"`
	WaitTimeoutMs   int      `json:"waitTimeoutMs,omitempty"` // awaited: after that it is deferred
}

// Timeout is how long the handler may take; zero says as long as the tool says.
func (b *CallBackground) Timeout() time.Duration {
	if b == nil {
		return 0
	}
	return time.Duration(b.TimeoutMs) * time.Millisecond
}

// Wait is how long a step waits for an awaited call; zero is without end.
func (b *CallBackground) Wait() time.Duration {
	if b == nil {
		return 0
	}
	return time.Duration(b.WaitTimeoutMs) * time.Millisecond
}

// saidBackground is what a model may say of one call. It chooses among what is configured: it gets no more time, and no more
// tries, than that.
type saidBackground struct {
	Disposition string `json:"disposition"`
	Enabled     *bool  `json:"enabled"`
	TimeoutMs   int    `json:"timeoutMs"`
	MaxRetries  *int   `json:"maxRetries"`
}

// Plan is how a call runs: as the tool's default says, and within that as the model says in what [TakeBackground] has taken
// out. Nil says in the foreground. What nobody can read of the model's word counts for nothing.
func (b *Background) Plan(said json.RawMessage) *CallBackground {
	if b == nil || !b.Enabled {
		return nil
	}
	var m saidBackground
	_ = json.Unmarshal(said, &m)
	disposition := cmp.Or(b.DefaultDisposition, Deferred)
	switch {
	case m.Enabled != nil && !*m.Enabled:
		disposition = Foreground
	case slices.Contains([]string{Deferred, Awaited, Foreground}, m.Disposition):
		disposition = m.Disposition
	case m.Enabled != nil && disposition == Foreground:
		disposition = Deferred
	}
	if disposition == Foreground {
		return nil
	}
	c := &CallBackground{
		Disposition: disposition, TimeoutMs: b.TimeoutMs, MaxRetries: b.MaxRetries, RetryableErrors: b.RetryableErrors,
	}
	if m.TimeoutMs > 0 && (b.TimeoutMs == 0 || m.TimeoutMs < b.TimeoutMs) {
		c.TimeoutMs = m.TimeoutMs
	}
	if m.MaxRetries != nil && *m.MaxRetries >= 0 {
		c.MaxRetries = min(*m.MaxRetries, b.MaxRetries)
	}
	if disposition == Awaited {
		c.WaitTimeoutMs = b.WaitTimeoutMs
	}
	return c
}

// Within is a planned background as far as the definitions bear it out; nil when they do not. Planners read hostile text, so
// who releases a call asks this.
func (c *CallBackground) Within(b *Background) *CallBackground {
	if c == nil || b == nil {
		return nil
	}
	in := *c
	if b.TimeoutMs > 0 && (in.TimeoutMs <= 0 || in.TimeoutMs > b.TimeoutMs) {
		in.TimeoutMs = b.TimeoutMs
	}
	in.TimeoutMs, in.MaxRetries = max(in.TimeoutMs, 0), max(min(in.MaxRetries, b.MaxRetries), 0)
	in.RetryableErrors = b.RetryableErrors
	return &in
}

// TakeBackground takes what a model says of the background out of the arguments that it wrote. Arguments that have no such
// key, that are no object, or whose tool has an argument of this name are left as they are.
func TakeBackground(args string, inputSchema json.RawMessage) (rest string, said json.RawMessage) {
	if !bytes.Contains([]byte(args), []byte(BackgroundArg)) || hasProperty(inputSchema, BackgroundArg) {
		return args, nil
	}
	raw, err := ParseArgs(args, false)
	if err != nil {
		return args, nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields[BackgroundArg] == nil {
		return args, nil
	}
	said = fields[BackgroundArg]
	delete(fields, BackgroundArg)
	left, err := Marshal(fields)
	if err != nil {
		return args, nil
	}
	return string(left), said
}

func hasProperty(schema json.RawMessage, key string) bool {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	return json.Unmarshal(schema, &s) == nil && s.Properties[key] != nil
}

// WithBackgroundArg is an input schema as models see it whose tool may run in the background: they may say how.
func WithBackgroundArg(schema json.RawMessage) json.RawMessage {
	var s map[string]json.RawMessage
	if json.Unmarshal(schema, &s) != nil || s == nil {
		return schema
	}
	properties := map[string]json.RawMessage{}
	if len(s["properties"]) > 0 && json.Unmarshal(s["properties"], &properties) != nil || properties[BackgroundArg] != nil {
		return schema
	}
	properties[BackgroundArg] = json.RawMessage(backgroundArgSchema)
	raw, err := Marshal(properties)
	if err != nil {
		return schema
	}
	s["properties"] = raw
	out, err := Marshal(s)
	if err != nil {
		return schema
	}
	return out
}

const backgroundArgSchema = `{"type":"object","description":"Optional: how this call runs. deferred: in the background, its result comes ` +
	`later; awaited: in the background, wait for it; foreground: as any other call.","properties":{` +
	`"disposition":{"type":"string","enum":["deferred","awaited","foreground"]},"enabled":{"type":"boolean"},` +
	`"timeoutMs":{"type":"integer","minimum":1},"maxRetries":{"type":"integer","minimum":0}}}`

// OpenTask is a background call whose result a turn, or the end of a run, has not seen.
type OpenTask struct {
	C        string `json:"c"`
	ToolName string `json:"toolName"`
}

// textPlaceholder is what stands in the place of a result that is not there yet.
func textPlaceholder(toolCallID string) string {
	return "Background task started. Task ID: " + toolCallID
}

// placeholderPart is what the model is told about a call that runs in the background.
func placeholderPart(c CallState) Part {
	return Part{
		Type: PartToolResult, ToolCallID: c.Planned.ToolCallID, ToolName: c.Planned.ToolName,
		ProviderCallID: c.Planned.ProviderCallID, Output: textOutput(OutputText, textPlaceholder(c.Planned.ToolCallID)),
	}
}

// TaskState is how a background call stands.
type TaskState string

// States of background calls.
const (
	TaskPending   TaskState = "pending"
	TaskRunning   TaskState = "running"
	TaskSuspended TaskState = "suspended"
	TaskCompleted TaskState = "completed"
	TaskFailed    TaskState = "failed"
	TaskCancelled TaskState = "cancelled"
	TaskTimedOut  TaskState = "timed_out"
)

// TaskStateOf is the state of a background call by the last fact of its chain, the zero Event when there is none.
func TaskStateOf(last Event) TaskState {
	switch last.Place.Kind {
	case KindClaim:
		return TaskRunning
	case KindAsk, KindSuspend:
		return TaskSuspended
	case KindResult:
		d, err := Data[CallFinished](last)
		if err != nil {
			return TaskFailed
		}
		return d.TaskState()
	default:
		return TaskPending
	}
}

// TaskState is the state of a background call with this result.
func (f CallFinished) TaskState() TaskState {
	switch f.Outcome {
	case OutcomeOK, OutcomeResponded:
		return TaskCompleted
	case OutcomeCancelled:
		return TaskCancelled
	case OutcomeError:
		if f.Error != nil && f.Error.Name == ErrorTimeout {
			return TaskTimedOut
		}
	default:
	}
	return TaskFailed
}

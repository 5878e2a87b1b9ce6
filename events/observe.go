package events

import (
	"encoding/json"
	"errors"
)

// Observation is a moment in the life of a call of which a tool's observers are told.
type Observation string

// Observations, in the order in which they happen. The handler runs between the last two.
const (
	OnInputStart     Observation = "onInputStart"     // a model begins to write the arguments
	OnInputDelta     Observation = "onInputDelta"     // a piece of their text has come
	OnInputAvailable Observation = "onInputAvailable" // they are complete and valid
	OnOutput         Observation = "onOutput"         // the handler has given a result
)

// Observers say of which moments a tool's observers want to be told (manifest, hooks).
type Observers struct {
	OnInputStart     bool `json:"onInputStart,omitempty"`
	OnInputDelta     bool `json:"onInputDelta,omitempty"`
	OnInputAvailable bool `json:"onInputAvailable,omitempty"`
	OnOutput         bool `json:"onOutput,omitempty"`
}

// Want reports whether observers want to be told of a moment; nil wants nothing.
func (o *Observers) Want(of Observation) bool {
	if o == nil {
		return false
	}
	switch of {
	case OnInputStart:
		return o.OnInputStart
	case OnInputDelta:
		return o.OnInputDelta
	case OnInputAvailable:
		return o.OnInputAvailable
	case OnOutput:
		return o.OnOutput
	}
	return false
}

// ParseObservers reads the hooks of a manifest; nil when it declares none.
func ParseObservers(raw json.RawMessage) (*Observers, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil //nolint:nilnil // none is none
	}
	var o Observers
	if err := strictly(raw, &o); err != nil {
		return nil, errors.New(`want {"onInputStart": true, …}, with onInputStart, onInputDelta, onInputAvailable and onOutput`)
	}
	if o == (Observers{}) {
		return nil, nil //nolint:nilnil // declared as none
	}
	return &o, nil
}

// CallObserved tells a tool's observers of a moment in a call's life (on hook.<tool>.<event>; stored nowhere, lost when
// nobody listens). It holds values as they are, so nobody outside the services may hear it. It proves nothing: what really
// happened is in the log.
type CallObserved struct {
	Namespace      Namespace       `json:"namespace"`
	Event          Observation     `json:"event"`
	RunID          string          `json:"runId"`
	ToolCallID     string          `json:"toolCallId"`
	ToolName       string          `json:"toolName"`
	ToolID         string          `json:"toolId"`
	ToolVersion    string          `json:"toolVersion"`
	AgentID        string          `json:"agentId,omitempty"`
	Attempt        int             `json:"attempt,omitempty"`        // onInputStart, onInputDelta: of the turn; onOutput: to execute
	InputTextDelta string          `json:"inputTextDelta,omitempty"` // onInputDelta
	Input          json.RawMessage `json:"input,omitempty"`          // onInputAvailable
	Output         json.RawMessage `json:"output,omitempty"`         // onOutput
}

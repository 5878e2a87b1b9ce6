package events

import (
	"bytes"
	"encoding/json"
	"errors"
)

// Form says how something is made of a value of a tool: by a jq program, which runs anywhere, or by a function that the
// hosts of the tool have. It is one of the two.
type Form struct {
	JQ string `json:"jq,omitempty"`
	Go bool   `json:"go,omitempty"`
}

// ParseForm reads a form of a manifest; nil when there is none. The program itself is not checked.
func ParseForm(raw json.RawMessage) (*Form, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil //nolint:nilnil // none is none
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	var f Form
	if err := dec.Decode(&f); err != nil || f.Go == (f.JQ != "") {
		return nil, errors.New(`want {"jq": "…"} or {"go": true}`)
	}
	return &f, nil
}

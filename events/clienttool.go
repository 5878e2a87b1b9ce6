package events

import (
	"cmp"
	"encoding/json"
)

// SourceClient is the kind of tools that the client of a run executes: their calls are held for it, and it answers them.
const SourceClient = "client"

// ClientToolPrefix begins the ids of the tools that a request brings itself. Their keys are no ids: one must not pass for
// a tool that is registered.
const ClientToolPrefix = "client:"

// Bounds of the tools that one request may bring: how many, and their bytes together. They are stored with the run's
// start and with each of its snapshots.
const (
	MaxClientTools     = 64
	MaxClientToolBytes = 128 << 10
)

// ClientTool is a tool that whoever asks for a run executes itself, as the request describes it.
type ClientTool struct {
	Title           string          `json:"title,omitempty"`
	Description     string          `json:"description"` // by which the model chooses it
	InputSchema     json.RawMessage `json:"inputSchema,omitempty"`
	OutputSchema    json.RawMessage `json:"outputSchema,omitempty"`
	Strict          bool            `json:"strict,omitempty"`
	ProviderOptions json.RawMessage `json:"providerOptions,omitempty"`
	Expires         Duration        `json:"expires,omitempty"` // of its calls; default: that of asks
	OnExpiry        string          `json:"onExpiry,omitempty"`
}

// Client reports whether the client of a run executes the tool.
func (m Manifest) Client() bool { return m.Source.Kind == SourceClient }

// Manifest is the definition of a tool that a request brings under a key. One that has the key of a client tool of the
// agent is that tool: it keeps its id, so that rules about it hold, and everything that the request says nothing about.
func (t ClientTool) Manifest(key string, own *Manifest) Manifest {
	m := Manifest{
		ID: ClientToolPrefix + key, Version: "1", Effect: Effectful, Pool: DefaultPool, Source: Source{Kind: SourceClient, Name: key},
	}
	if own != nil && own.Client() {
		m = *own
		m.Preview, m.InputExamples = nil, nil // of other arguments
	}
	m.Title, m.Description = cmp.Or(t.Title, m.Title), cmp.Or(t.Description, m.Description)
	m.InputSchema, m.OutputSchema = ObjectSchema(t.InputSchema), t.OutputSchema
	m.Strict = m.Strict || t.Strict
	if len(t.ProviderOptions) > 0 {
		m.ProviderOptions = t.ProviderOptions
	}
	m.Expires, m.OnExpiry = cmp.Or(t.Expires, m.Expires), cmp.Or(t.OnExpiry, m.OnExpiry)
	if canonical, err := Canonical(m.InputSchema); err == nil {
		m.InputSchemaDigest = Digest(canonical)
	}
	return m
}

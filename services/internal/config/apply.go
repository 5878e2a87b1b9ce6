package config

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// Store is the registry, as far as apply needs it. The connection of package jetstream is one.
type Store interface {
	// PutDef stores a definition by its content and returns its digest. Storing it again changes nothing.
	PutDef(ctx context.Context, body []byte) (digest string, err error)
	// PutNamed stores a definition under its name, in place of the one before.
	PutNamed(ctx context.Context, kind, id string, body []byte) error
	// ListNamed reads all definitions of a kind, by the tokens of their ids.
	ListNamed(ctx context.Context, kind string) (map[string][]byte, error)
}

// Change is what apply did to a definition.
type Change string

// The changes.
const (
	Created   Change = "created"
	Changed   Change = "changed"
	Unchanged Change = "unchanged"
	// Kept is a definition that the registry has and the file has not. Apply removes nothing: a rule that is to go is
	// removed by hand.
	Kept Change = "kept"
)

// Applied is one definition in the registry.
type Applied struct {
	Kind   string `json:"kind"` // rule, principal, model, tool, agent or mcp
	ID     string `json:"id"`
	Digest string `json:"digest"`
	Change Change `json:"change"`
}

// Report lists what a file's definitions are now, in the order in which they were applied.
type Report struct {
	Applied  []Applied `json:"applied"`
	Warnings []string  `json:"warnings,omitempty"`
}

// ApplyOptions change what apply refuses.
type ApplyOptions struct {
	// AllowUnmatched makes a warning of each name that stands for nothing: its worker may register later.
	AllowUnmatched bool
}

// definition is one value for the registry.
type definition struct {
	kind, id string
	body     []byte
	builtin  bool // a tool that its hosts register; what they have registered stays
}

// Apply writes the definitions of a file to the registry: rules first, because a stricter one must not come late, then
// what agents refer to, then agents. Each is stored by its content before its name points there, so an apply that is
// killed anywhere leaves names that work, and a second one completes it. Its bodies hold no secret.
//
// A rule that matches no tool or no agent, and an agent's tool that nobody has registered, would be without effect and
// without a word: nothing is applied then, and the error is an [*Error], unless the options allow it.
func Apply(ctx context.Context, store Store, f *File, o *ApplyOptions) (Report, error) {
	report := Report{Applied: []Applied{}}
	defs, err := f.definitions()
	if err != nil {
		return report, err
	}
	there := map[string]map[string][]byte{}
	for _, kind := range kinds {
		if there[kind], err = store.ListNamed(ctx, kind); err != nil {
			return report, fmt.Errorf("read the registry: %w", err)
		}
	}
	missing, odd := f.unmatched(f.registered(there))
	if len(missing) > 0 && (o == nil || !o.AllowUnmatched) {
		return report, &Error{missing.sorted()}
	}
	for _, w := range slices.Concat(f.other, missing, odd).sorted() {
		report.Warnings = append(report.Warnings, w.String())
	}
	for _, d := range defs {
		if err := d.conflict(there[d.kind]); err != nil {
			return report, err
		}
	}
	servers, notes, err := f.acceptMCP(ctx, store, there[events.RegistryMCP])
	if err != nil {
		return report, err
	}
	report.Warnings = append(report.Warnings, notes...)
	for _, d := range defs {
		a, err := d.apply(ctx, store, there[d.kind])
		if err != nil {
			return report, err
		}
		report.Applied = append(report.Applied, a)
	}
	for _, a := range servers {
		report.Applied = append(report.Applied, a)
		defs = append(defs, definition{kind: a.Kind, id: a.ID})
	}
	report.Applied = append(report.Applied, kept(defs, there)...)
	return report, nil
}

// kinds are in the order in which they are applied.
var kinds = []string{
	events.RegistryRule, events.RegistryPrincipal, events.RegistryModel, events.RegistryTool, events.RegistryMCP, events.RegistryAgent,
}

// modelDef is a model as the registry holds it: enough to tell what there is. How it is reached stays with planners.
type modelDef struct {
	ID       string          `json:"id"`
	Provider string          `json:"provider,omitempty"`
	Model    string          `json:"model,omitempty"`
	BaseURL  string          `json:"baseURL,omitempty"`
	APIKey   string          `json:"apiKey,omitempty"` // the reference, as the file has it
	Defaults json.RawMessage `json:"defaults,omitempty"`
	Price    *events.Price   `json:"price,omitempty"`
}

// definitions are the values of the registry, encoded as executors encode theirs, so that equal ones have one digest.
func (f *File) definitions() (defs []definition, err error) {
	add := func(kind, id string, v any) {
		body, bad := events.Marshal(v)
		if bad != nil && err == nil {
			err = fmt.Errorf("encode %s %s: %w", kind, id, bad)
		}
		defs = append(defs, definition{kind: kind, id: id, body: body})
	}
	for _, set := range f.Rules {
		add(events.RegistryRule, set.Name, set)
	}
	for _, p := range f.Principals {
		add(events.RegistryPrincipal, p.ID, p)
	}
	for _, m := range f.Models {
		add(events.RegistryModel, m.ID, modelDef{m.ID, m.Provider, m.Model, m.BaseURL, m.APIKey, m.Defaults, m.Price})
	}
	for _, t := range f.Tools {
		add(events.RegistryTool, t.Manifest.ID, t.Manifest)
	}
	for _, m := range f.builtins() {
		add(events.RegistryTool, m.ID, m)
		defs[len(defs)-1].builtin = true
	}
	for _, a := range f.Agents {
		add(events.RegistryAgent, a.ID, a)
	}
	return defs, err
}

// conflict refuses to take a tool's id and version from hosts of another kind, such as workers written in Go: calls
// released for one would be run by the other.
func (d definition) conflict(there map[string][]byte) error {
	old := there[events.Token(d.id)]
	if d.kind != events.RegistryTool || d.builtin || old == nil {
		return nil
	}
	var was, is events.Manifest
	if json.Unmarshal(old, &was) != nil {
		return nil //nolint:nilerr // what nobody can read is replaced
	}
	if err := json.Unmarshal(d.body, &is); err != nil {
		return fmt.Errorf("tool %s: %w", d.id, err)
	}
	if was.Version == is.Version && was.Source.Kind != is.Source.Kind {
		return events.Errorf(events.CodeToolConflict,
			"tool %s is registered as version %s by hosts of kind %s: give this one another id or version", d.id, was.Version, was.Source.Kind)
	}
	return nil
}

// apply stores one definition.
func (d definition) apply(ctx context.Context, store Store, there map[string][]byte) (Applied, error) {
	a := Applied{Kind: d.kind, ID: d.id, Change: Created}
	if old, ok := there[events.Token(d.id)]; ok && d.builtin {
		a.Digest, a.Change = events.Digest(old), Unchanged
		return a, nil
	}
	var err error
	if a.Digest, err = store.PutDef(ctx, d.body); err != nil {
		return a, fmt.Errorf("apply %s %s: %w", d.kind, d.id, err)
	}
	if old, ok := there[events.Token(d.id)]; ok {
		a.Change = Changed
		if bytes.Equal(old, d.body) {
			a.Change = Unchanged
			return a, nil
		}
	}
	if err := store.PutNamed(ctx, d.kind, d.id, d.body); err != nil {
		return a, fmt.Errorf("apply %s %s: %w", d.kind, d.id, err)
	}
	return a, nil
}

// kept lists what the registry has beside the file. Tools are not among it: workers register theirs.
func kept(defs []definition, there map[string]map[string][]byte) (list []Applied) {
	type name struct{ kind, token string }
	mine := map[name]bool{}
	for _, d := range defs {
		mine[name{d.kind, events.Token(d.id)}] = true
	}
	for _, kind := range kinds {
		for _, token := range slices.Sorted(maps.Keys(there[kind])) {
			if kind == events.RegistryTool || mine[name{kind, token}] {
				continue
			}
			body := there[kind][token]
			var named struct{ ID, Name string }
			_ = json.Unmarshal(body, &named) // else its token names it
			id := named.ID
			if kind == events.RegistryRule {
				id = named.Name
			}
			if strings.TrimSpace(id) == "" {
				id = token
			}
			list = append(list, Applied{Kind: kind, ID: id, Digest: events.Digest(body), Change: Kept})
		}
	}
	return list
}

package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/weirkeeper/weir/events"
)

// manifestIssues lists what is wrong with a manifest, apart from schemas that do not compile.
func manifestIssues(m events.Manifest) []events.Issue {
	var list []events.Issue
	add := func(field, format string, args ...any) {
		list = append(list, events.Issue{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if text := idIssue(m.ID); text != "" {
		add("id", "%s", text)
	}
	if strings.TrimSpace(m.Description) == "" {
		add("description", "is required: the model chooses tools by it")
	}
	if text := idIssue(m.Version); text != "" {
		add("version", "%s", text)
	}
	switch m.Effect {
	case events.ReadOnly, events.Idempotent, events.Effectful:
	default:
		add("effect", "want read_only, idempotent or effectful, not %q", m.Effect)
	}
	if !poolName(m.Pool) {
		add("pool", "want 1 to 64 letters, digits, _ or -, not %q", m.Pool)
	}
	if !slices.Contains([]string{"", events.OnExpiryDecline, events.OnExpiryFail}, m.OnExpiry) {
		add("onExpiry", "want decline or fail, not %q", m.OnExpiry)
	}
	for field, d := range map[string]events.Duration{
		"timeout": m.Timeout, "startTimeout": m.StartTimeout, "expires": m.Expires,
	} {
		if d < 0 {
			add(field, "must not be negative")
		}
	}
	if m.MaxAttempts < 0 {
		add("maxAttempts", "must not be negative")
	}
	if _, err := events.ParseBackground(m.Background); err != nil {
		add("background", "%v", err)
	}
	if _, err := events.ParseObservers(m.Hooks); err != nil {
		add("hooks", "%v", err)
	}
	if _, err := events.ParsePreviewForm(m.Preview); err != nil {
		add("preview", "%v", err)
	}
	if _, err := events.ParseForm(m.ToModelOutput); err != nil {
		add("toModelOutput", "%v", err)
	}
	if _, err := events.ParseTransform(m.Transform); err != nil {
		add("transform", "%v", err)
	}
	if canonical, err := events.Canonical(m.InputSchema); err == nil && m.InputSchemaDigest != events.Digest(canonical) {
		add("inputSchemaDigest", "is not the digest of the canonical input schema")
	}
	return slices.Concat(list, clientIssues(m), inputIssues(m.InputSchema))
}

// inputIssues lists what arguments cannot be: not an object, or with keys that only people's decisions carry.
func inputIssues(schema json.RawMessage) []events.Issue {
	var s struct {
		Type       any                        `json:"type"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil // it does not compile either
	}
	var list []events.Issue
	if s.Type != nil && s.Type != "object" {
		list = append(list, events.Issue{Field: "inputSchema", Message: fmt.Sprintf("want an object, not %v", s.Type)})
	}
	for key := range s.Properties {
		if events.ReservedArg(key) {
			list = append(list, events.Issue{Field: "inputSchema." + key, Message: "is a reserved key"})
		}
	}
	return list
}

// exampleIssues holds examples of arguments against the schema.
func exampleIssues(schema *events.Schema, examples json.RawMessage) []events.Issue {
	if absent(examples) {
		return nil
	}
	var list []struct {
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(examples, &list); err != nil {
		return []events.Issue{{Field: "inputExamples", Message: "want a list of {\"input\": …}"}}
	}
	var issues []events.Issue
	for i, example := range list {
		if err := schema.ValidateRaw(example.Input); err != nil {
			field := fmt.Sprintf("inputExamples.%d", i)
			issues = append(issues, events.Issue{Field: field, Message: err.Error()})
		}
	}
	return issues
}

// idIssue says what is wrong with an id; any text of a sane length will do, because ids are encoded wherever they
// become part of a name.
func idIssue(id string) string {
	switch {
	case strings.TrimSpace(id) == "":
		return "is required"
	case len(id) > events.MaxID:
		return fmt.Sprintf("has more than %d bytes", events.MaxID)
	case strings.ContainsFunc(id, unicode.IsControl):
		return "has a control character"
	}
	return ""
}

func poolName(pool string) bool {
	bad := func(r rune) bool { return !letter(r) && !digit(r) && r != '_' && r != '-' }
	return pool != "" && len(pool) <= 64 && !strings.ContainsFunc(pool, bad)
}

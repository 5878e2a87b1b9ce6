package config

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/models"
)

func published(t *testing.T) *events.Schema {
	t.Helper()
	s, err := events.CompileSchema([]byte(read(t, filepath.Join("..", "..", "..", "schemas", "config.json"))))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON is a file as the schema sees it.
func asJSON(t *testing.T, path string) ([]byte, bool) {
	t.Helper()
	r := &reader{file: path, left: maxNodes}
	doc := r.document([]byte(read(t, path)))
	if doc == nil && len(r.problems) == 0 {
		doc = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	}
	if doc == nil {
		return nil, false
	}
	raw := r.toJSON(doc, "")
	return raw, len(r.problems) == 0
}

// TestSchemaAgrees: editors that follow the published schema and the reader take and refuse the same, except what
// no schema can see: the files in beyond.
func TestSchemaAgrees(t *testing.T) {
	t.Parallel()
	schema := published(t)
	for _, path := range files(t, "weir.yaml", "examples/*.yaml") {
		raw, ok := asJSON(t, path)
		if !ok {
			t.Errorf("%s is not JSON", path)
		} else if err := schema.ValidateRaw(raw); err != nil {
			t.Errorf("%s: the schema refuses what the reader takes: %v", path, err)
		}
	}
	for _, path := range files(t, "beyond/*.yaml") {
		if raw, ok := asJSON(t, path); ok && schema.ValidateRaw(raw) != nil {
			t.Errorf("%s: the schema refuses it, so it belongs into refused", path)
		}
	}
}

// TestSchemaRefuses: each entry of a file that is refused, alone, is refused by both or taken by both.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	schema := published(t)
	for _, path := range files(t, "refused/*.yaml") {
		text := read(t, path)
		raw, ok := asJSON(t, path)
		if !ok || schema.ValidateRaw(raw) == nil {
			t.Errorf("%s: the schema takes what the reader refuses", path)
		}
		for _, part := range parts(t, text) {
			r := &reader{left: maxNodes}
			one := r.toJSON(part, "") // which is YAML too
			_, problems := parse(t, string(one))
			invalid := schema.ValidateRaw(one)
			if (problems != nil) != (invalid != nil) {
				t.Errorf("%s: one of reader and schema refuses\n%s\nreader: %v\nschema: %v", path, one, problems, invalid)
			}
		}
	}
}

// parts are a file's entries as files of their own: each top-level scalar, each definition, and of each definition one
// copy for each of its fields in which it is the only one that may be wrong.
func parts(t *testing.T, text string) (list []*yaml.Node) {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	root := doc.Content[0]
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
			list = append(list, mapping(key, value))
			continue
		}
		for k := 0; k < len(value.Content); k += 2 {
			id, def := value.Content[k], value.Content[k+1]
			list = append(list, mapping(key, mapping(id, def)))
			if good := base[key.Value]; good != "" && def.Kind == yaml.MappingNode {
				for f := 0; f < len(def.Content); f += 2 {
					list = append(list, mapping(key, mapping(id, with(t, good, def.Content[f], def.Content[f+1]))))
				}
			}
			for _, item := range def.Content {
				if def.Kind == yaml.SequenceNode {
					list = append(list, mapping(key, mapping(id, &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{item}})))
				}
			}
		}
	}
	return list
}

// base are definitions without a fault.
var base = map[string]string{
	"agents": "{model: scripted/support}",
	"tools":  "{description: x, exec: {command: [a]}}",
}

// with is a definition without a fault in which one field is another.
func with(t *testing.T, good string, key, value *yaml.Node) *yaml.Node {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(good), &doc); err != nil {
		t.Fatal(err)
	}
	def := doc.Content[0]
	for i := 0; i < len(def.Content); i += 2 {
		if def.Content[i].Value == key.Value || def.Content[i].Value == "exec" && (key.Value == "http" || key.Value == "nats") {
			def.Content = slices.Delete(def.Content, i, i+2)
			break
		}
	}
	def.Content = append(def.Content, key, value)
	return def
}

func mapping(key, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, value}}
}

// TestSchemaNamesWhatIsRead: keys and words stand in the reader and in the schema, and in no third place.
func TestSchemaNamesWhatIsRead(t *testing.T) {
	t.Parallel()
	var doc yaml.Node
	text := read(t, filepath.Join("..", "..", "..", "schemas", "config.json"))
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, `\u0000`, "")), &doc); err != nil {
		t.Fatal(err)
	}
	keys := func(path string) []string {
		n := (object{node: doc.Content[0]}).find(path)
		var list []string
		for i := 0; i < len(n.Content); i += 2 {
			list = append(list, n.Content[i].Value)
		}
		slices.Sort(list)
		return list
	}
	for path, want := range map[string][]string{
		"properties":                 sections,
		"$defs.model.properties":     modelKeys,
		"$defs.agent.properties":     agentKeys,
		"$defs.tool.properties":      toolKeys,
		"$defs.rule.properties":      ruleKeys,
		"$defs.stage.properties":     stageKeys,
		"$defs.principal.properties": principalKeys,
	} {
		if diff := cmp.Diff(slices.Sorted(slices.Values(want)), keys(path)); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	var providers []string
	for _, n := range (object{node: doc.Content[0]}).find("$defs.model.properties.provider.enum").Content {
		providers = append(providers, n.Value)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(models.Providers)), providers); diff != "" {
		t.Errorf("providers: %s", diff)
	}
}

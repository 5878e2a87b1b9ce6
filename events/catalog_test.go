package events

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/schemas"
)

// notEvents are the schemas that belong to no row of the catalogue.
var notEvents = map[string]any{
	schemas.Common:  nil,
	"snapshot.json": Snapshot{},
	"manifest.json": Manifest{},
	"agent.json":    AgentDef{},
	"config.json":   nil,
}

func TestCatalogSchemas(t *testing.T) {
	t.Parallel()
	of := map[string]reflect.Type{}
	for _, row := range Catalog {
		of[row.Schema()] = row.data
		s, err := schemaNamed(row.Schema())
		if err != nil {
			t.Errorf("%s: %v", row.Type, err)
			continue
		}
		if s.quick == nil || !s.linear {
			t.Errorf("%s: its schema says more than a shape can, so every event would be decoded to be checked", row.Type)
		}
	}
	for name, v := range notEvents {
		of[name] = nil
		if v != nil {
			of[name] = reflect.TypeOf(v)
		}
	}
	files, err := schemas.FS.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, known := of[file.Name()]
		if !known {
			t.Errorf("schema %s belongs to no type of event", file.Name())
		}
		checkHead(t, file.Name())
		if data != nil {
			sameFields(t, file.Name(), data)
		}
	}
}

func checkHead(t *testing.T, name string) {
	t.Helper()
	raw, err := schemas.FS.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var head struct {
		Schema      string `json:"$schema"`
		ID          string `json:"$id"`
		Description string `json:"description"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if head.Schema != "https://json-schema.org/draft/2020-12/schema" || head.ID != schemas.BaseURL+name ||
		head.Description == "" {
		t.Errorf("%s: wants $schema, $id %s%s and a description", name, schemas.BaseURL, name)
	}
}

// sameFields compares a schema with the struct that is written: the same fields at every depth, required exactly when
// the struct always writes them.
func sameFields(t *testing.T, name string, data reflect.Type) {
	t.Helper()
	s, err := schemaNamed(name)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	raw := map[string]any{}
	load := func(file string) map[string]any {
		if doc, ok := raw[file]; ok {
			return doc.(map[string]any)
		}
		text, err := schemas.FS.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc := decodeAny(text)
		raw[file] = doc
		return doc.(map[string]any)
	}
	_ = s
	c := fieldCheck{t: t, load: load}
	c.compare(name, name, load(name), data)
}

type fieldCheck struct {
	t    *testing.T
	load func(string) map[string]any
	seen []string
}

var leaves = map[reflect.Type]bool{
	reflect.TypeFor[time.Time](): true, reflect.TypeFor[json.RawMessage](): true,
	reflect.TypeFor[Duration](): true, reflect.TypeFor[Approval](): true, reflect.TypeFor[BackgroundTools](): true,
}

func (c *fieldCheck) compare(path, file string, schema map[string]any, data reflect.Type) {
	for data.Kind() == reflect.Pointer || data.Kind() == reflect.Slice && !leaves[data] {
		data = data.Elem()
	}
	if data.Kind() != reflect.Struct || leaves[data] {
		return
	}
	schema, file = c.resolve(file, schema)
	key := fmt.Sprint(file, data, schema["properties"] == nil)
	if slices.Contains(c.seen, key) {
		return
	}
	c.seen = append(c.seen, key)
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	fields := map[string]reflect.StructField{}
	jsonFields(data, fields)
	for name, f := range fields {
		p, ok := properties[name]
		if !ok {
			c.t.Errorf("%s: the schema lacks %q of %s", path, name, data)
			continue
		}
		_, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		always := !strings.Contains(opts, "omitempty") && !strings.Contains(opts, "omitzero")
		if must := slices.Contains(required, any(name)); must != always && !lenient[path+"."+name] {
			c.t.Errorf("%s: %q of %s: required %t, always written %t", path, name, data, must, always)
		}
		if sub, ok := p.(map[string]any); ok {
			c.compare(path+"."+name, file, sub, f.Type)
		}
	}
	for name := range properties {
		if _, ok := fields[name]; !ok {
			c.t.Errorf("%s: the schema has %q, %s has not", path, name, data)
		}
	}
}

// lenient are fields that Weir always writes and does not demand of programs in other languages.
var lenient = map[string]bool{"call.suspended.v1.json.attempt": true}

// resolve follows references, the array to its items, and "this or null" to this.
func (c *fieldCheck) resolve(file string, schema map[string]any) (map[string]any, string) {
	for {
		ref, isRef := schema["$ref"].(string)
		items, isArray := schema["items"].(map[string]any)
		forms, hasForms := schema["anyOf"].([]any)
		switch {
		case isRef:
			doc, pointer, _ := strings.Cut(ref, "#")
			file = cmp.Or(doc, file)
			schema = valueAt(c.load(file), pointer).(map[string]any)
		case isArray:
			schema = items
		case hasForms:
			schema = forms[0].(map[string]any)
			if schema["type"] == "string" || schema["type"] == "boolean" {
				schema = forms[1].(map[string]any)
			}
		default:
			return schema, file
		}
	}
}

// jsonFields lists the fields that encoding/json writes; those of an embedded struct count unless they are hidden.
func jsonFields(data reflect.Type, fields map[string]reflect.StructField) {
	for f := range data.Fields() {
		if f.Anonymous {
			jsonFields(f.Type, fields)
		}
	}
	for f := range data.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous && f.IsExported() && name != "-" {
			fields[name] = f
		}
	}
}

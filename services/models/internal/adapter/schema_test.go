package adapter

import (
	"encoding/json"
	"testing"
)

func TestB22_8Parameters(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, schema, want string }{
		{"absent", ``, `{"type":"object","properties":{}}`},
		{"null", ` null `, `{"type":"object","properties":{}}`},
		{"empty", `{}`, `{"type":"object","properties":{}}`},
		{"an object of anything", `{"type":"object"}`, `{"type":"object","properties":{}}`},
		{
			"order and digits stay", `{"type":"object","properties":{"z":{"type":"integer","maximum":9007199254740993},"a":{"pattern":"<&>"}},"required":["z"]}`,
			`{"type":"object","properties":{"z":{"type":"integer","maximum":9007199254740993},"a":{"pattern":"<&>"}},"required":["z"]}`,
		},
		{"no type", `{"properties":{"a":{}}}`, `{"type":"object","properties":{"a":{}}}`},
		{"nullable", `{"type":["object","null"],"properties":{}}`, `{"type":"object","properties":{}}`},
		{
			"dialect and id", `{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"x","type":"object","properties":{},"$defs":{"d":{}}}`,
			`{"type":"object","properties":{},"$defs":{"d":{}}}`,
		},
		{
			"a reference", `{"$ref":"#/$defs/in","$defs":{"in":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}}}`,
			`{"type":"object","$defs":{"in":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}},"properties":{"a":{"type":"string"}},"required":["a"]}`,
		},
		{
			"all of", `{"allOf":[{"properties":{"a":{}},"required":["a"]},{"properties":{"b":{}},"required":["b"]}],"properties":{"c":{}}}`,
			`{"type":"object","properties":{"c":{},"a":{},"b":{}},"required":["a","b"]}`,
		},
		{
			"one of", `{"oneOf":[{"properties":{"kind":{"const":"x"},"a":{}},"required":["kind","a"]},{"properties":{"kind":{"const":"y"}},"required":["kind"]}]}`,
			`{"type":"object","properties":{"kind":{"anyOf":[{"const":"x"},{"const":"y"}]},"a":{}},"required":["kind"]}`,
		},
		{
			"either is required", `{"type":"object","properties":{"a":{},"b":{}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`,
			`{"type":"object","properties":{"a":{},"b":{}}}`,
		},
		{
			"conditions", `{"type":"object","properties":{"a":{}},"if":{},"then":{},"else":{},"not":{},"dependentRequired":{}}`,
			`{"type":"object","properties":{"a":{}}}`,
		},
	} {
		got, err := Parameters(json.RawMessage(test.schema))
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %s, %v\nwant %s", test.name, got, err, test.want)
		}
		if again, err := Parameters(got); err != nil || string(again) != string(got) {
			t.Errorf("%s: projected again it is %s, %v", test.name, again, err)
		}
	}
}

func TestB1_11ParametersRefused(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		`[]`, `"x"`, `{`, `false`, `{"type":"array"}`, `{"type":["string","null"]}`, `{"type":7}`, `{"$ref":"#/$defs/gone"}`,
		`{"$ref":"file:///etc/passwd"}`, `{"$ref":"https://example.com/x"}`, `{"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`,
		`{"anyOf":{}}`, `{"allOf":[1]}`, `{"properties":[],"allOf":[{"properties":{"a":{}}}]}`,
	} {
		if got, err := Parameters(json.RawMessage(schema)); err == nil {
			t.Errorf("parameters(%s) = %s, want an error", schema, got)
		}
	}
}

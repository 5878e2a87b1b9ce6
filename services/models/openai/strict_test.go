package openai

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestB1_12StrictParameters(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, schema, want string }{
		{
			"optional becomes nullable", `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer","default":3},"c":{"enum":["x"],"type":"string"}},"required":["a"]}`,
			`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":["integer","null"]},"c":{"enum":["x",null],"type":["string","null"]}},"required":["a","b","c"],"additionalProperties":false}`,
		},
		{
			"nested", `{"type":"object","properties":{"list":{"type":"array","items":{"type":"object","properties":{"q":{"type":"number","minimum":0}}}}},"required":["list"]}`,
			`{"type":"object","properties":{"list":{"type":"array","items":{"type":"object","properties":{"q":{"type":["number","null"],"minimum":0}},"required":["q"],"additionalProperties":false}}},"required":["list"],"additionalProperties":false}`,
		},
		{
			"choices and references", `{"type":"object","properties":{"a":{"$ref":"#/$defs/d"},"b":{"oneOf":[{"const":"<x>"},{"type":"string"}]}},"required":["b"],"$defs":{"d":{"type":"string","minLength":1}}}`,
			`{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#/$defs/d"},{"type":"null"}]},"b":{"anyOf":[{"const":"<x>"},{"type":"string"}]}},"required":["a","b"],"$defs":{"d":{"type":"string"}},"additionalProperties":false}`,
		},
		{
			"formats", `{"type":"object","properties":{"a":{"type":"string","format":"date-time"},"b":{"type":"string","format":"uri"}},"required":["a","b"]}`,
			`{"type":"object","properties":{"a":{"type":"string","format":"date-time"},"b":{"type":"string"}},"required":["a","b"],"additionalProperties":false}`,
		},
	} {
		got, err := StrictDialect.Schema(json.RawMessage(test.schema))
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %s, %v\nwant %s", test.name, got, err, test.want)
		}
	}
	deep := strings.Repeat(`{"type":"array","items":`, 40) + `{"type":"string"}` + strings.Repeat("}", 40)
	for _, schema := range []string{
		`{"type":"object","properties":{},"additionalProperties":true}`, `{"type":"object"}`, `{"type":"object","properties":{"a":{}}}`,
		`{"type":"object","properties":{"a":true}}`, `{"type":"object","properties":{"a":{"type":"string","not":{}}}}`,
		`{"type":"object","properties":{"a":{"allOf":[]}}}`, `{"type":"object","properties":{},"patternProperties":{}}`,
		`{"type":"object","properties":{"a":` + deep + `}}`,
	} {
		if got, err := StrictDialect.Schema(json.RawMessage(schema)); err == nil {
			t.Errorf("Schema(%s) = %s, want an error", schema, got)
		}
	}
}

package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func compile(tb testing.TB, schema string) *Schema {
	tb.Helper()
	s, err := CompileSchema([]byte(schema))
	if err != nil {
		tb.Fatalf("compile %s: %v", schema, err)
	}
	return s
}

const refundSchema = `{"type":"object","properties":{
	"orderId":{"type":"string","minLength":3},"amount":{"type":"number","exclusiveMinimum":0},
	"note":{"anyOf":[{"type":"string"},{"type":"null"}]},"when":{"type":"string","format":"date-time"},
	"kind":{"enum":["full","partial"]},"lines":{"type":"array","items":{"type":"object","properties":{
	"sku":{"type":"string"},"count":{"type":"integer","minimum":1}},"required":["sku"]}}},
	"required":["orderId","amount"],"additionalProperties":false}`

func TestSchemaIssues(t *testing.T) {
	t.Parallel()
	s := compile(t, refundSchema)
	for _, c := range []struct {
		value string
		want  []Issue
	}{
		{`{"orderId":"ord-1","amount":1e2,"note":null,"when":"2026-03-02T09:14:07Z","kind":"full"}`, nil},
		{`{"orderId":"ord-1","amount":"lots"}`, []Issue{{"amount", "want number, got string"}}},
		{`{"amount":0}`, []Issue{{"amount", "want more than 0"}, {"orderId", "is required"}}},
		{`{"orderId":"o","amount":1,"x":1,"y":2}`, []Issue{
			{"orderId", "want at least 3 characters"},
			{"x", "is not known"},
			{"y", "is not known"},
		}},
		{`{"orderId":"ord","amount":1,"note":5}`, []Issue{{"note", "want string or null, got number"}}},
		{`{"orderId":"ord","amount":1,"when":"now"}`, []Issue{{"when", "want the format date-time"}}},
		{`{"orderId":"ord","amount":1,"kind":"x"}`, []Issue{{"kind", `want one of "full", "partial"`}}},
		{`{"orderId":"ord","amount":1,"lines":[{"sku":"a","count":1.5},{"count":0}]}`, []Issue{
			{"lines.0.count", "want integer, got number"},
			{"lines.1.count", "want at least 1"},
			{"lines.1.sku", "is required"},
		}},
		{`[]`, []Issue{{"", "want object, got array"}}},
	} {
		err := s.ValidateRaw(json.RawMessage(c.value))
		var got []Issue
		if invalid, ok := errors.AsType[*InvalidData](err); ok {
			got = invalid.Issues
		} else if err != nil {
			t.Errorf("%s: %v", c.value, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s:\n%s", c.value, d)
		}
	}
}

// What is wrong with a value is told without the value.
func TestSchemaIssuesHoldNoValues(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"properties":{"a":{"format":"email","minLength":90},"b":{"maximum":1,"enum":[1]},
		"c":{"pattern":"^x$","const":"x"},"d":{"oneOf":[{"type":"string","maxLength":1},{"type":"string","format":"ipv4"}]}}}`)
	err := s.ValidateRaw(json.RawMessage(`{"a":"s3cret","b":7777,"c":"s3cret","d":"s3cret"}`))
	if err == nil || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "7777") {
		t.Errorf("got %v", err)
	}
}

func TestSchemaManyIssues(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"items":{"type":"string"}}`)
	err := s.ValidateRaw(json.RawMessage("[" + strings.Repeat("1,", 500) + "1]"))
	invalid, ok := errors.AsType[*InvalidData](err)
	if !ok || len(invalid.Issues) != maxIssues+1 || invalid.Issues[maxIssues].Message != "and 481 more" {
		t.Errorf("got %v", err)
	}
}

func TestSchemaExactNumbers(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"properties":{"n":{"type":"integer","maximum":9007199254740992},"m":{"multipleOf":0.01}}}`)
	for value, ok := range map[string]bool{
		`{"n":9007199254740992}`: true, `{"n":9007199254740993}`: false, `{"n":1.0}`: true, `{"n":1e2}`: true,
		`{"m":0.07}`: true, `{"m":0.075}`: false, `{"m":1e999999999}`: false,
	} {
		if err := s.ValidateRaw(json.RawMessage(value)); (err == nil) != ok {
			t.Errorf("%s: %v", value, err)
		}
	}
	if err := s.Validate(map[string]any{"n": json.Number("1e999999999")}); err == nil {
		t.Error("a number beyond reason passed")
	}
	if err := compile(t, refundSchema).Validate(struct{}{}); err == nil {
		t.Error("a struct passed")
	}
}

// A schema never makes Weir open anything.
func TestSchemaLoadsNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(file, []byte(`{"type":"string"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"file://" + file, file, "https://127.0.0.1:1/s.json", "other.json", "urn:x"} {
		for _, form := range []string{
			`{"$ref":%q}`, `{"$schema":%q}`, `{"$id":"https://127.0.0.1:1/x","$ref":%q}`,
			`{"properties":{"a":{"$ref":%q}}}`,
		} {
			if _, err := CompileSchema(fmt.Appendf(nil, form, ref)); err == nil {
				t.Errorf(form+" was compiled", ref)
			}
		}
	}
	compile(t, `{"$ref":"https://json-schema.org/draft/2020-12/schema"}`)
	compile(t, `{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"string"}]}`)
	compile(t, `{"$defs":{"node":{"properties":{"next":{"$ref":"#/$defs/node"}}}},"$ref":"#/$defs/node"}`)
}

// doubling is the schema whose every level applies the next one twice.
func doubling(levels int, key string) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/l0","$defs":{`)
	for i := range levels {
		fmt.Fprintf(&b, `"l%d":{%q:[{"$ref":"#/$defs/l%d"},{"$ref":"#/$defs/l%d"}]},`, i, key, i+1, i+1)
	}
	fmt.Fprintf(&b, `"l%d":{"type":"integer"}}}`, levels)
	return b.String()
}

// Schemas that would keep the validator busy for ever are refused, or refuse the value, after bounded work. The test
// binary's own deadline stands for "for ever".
func TestSchemaBudgets(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 60) + "1" + strings.Repeat("}", 60)
	deepArray := strings.Repeat("[", 60) + strings.Repeat("]", 60)
	for name, c := range map[string]struct{ schema, value string }{
		"doubling allOf":  {doubling(26, "allOf"), `1`},
		"doubling anyOf":  {doubling(40, "anyOf"), `"x"`},
		"doubling oneOf":  {doubling(40, "oneOf"), `1`},
		"doubling fields": {`{"allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, deep},
		"forms of a tree": {`{"oneOf":[{"properties":{"t":{"const":1},"a":{"$ref":"#"}}},
			{"properties":{"t":{"const":2},"a":{"$ref":"#"}}}]}`, deep},
		"field and pattern":  {`{"properties":{"a":{"$ref":"#"}},"patternProperties":{"^a":{"$ref":"#"}}}`, deep},
		"items and contains": {`{"items":{"$ref":"#"},"contains":{"$ref":"#"}}`, deepArray},
		"if then else":       {`{"if":{"properties":{"a":{"$ref":"#"}}},"then":{"properties":{"a":{"$ref":"#"}}}}`, deep},
	} {
		s, err := CompileSchema([]byte(c.schema))
		if err != nil {
			continue
		}
		if s.linear {
			t.Errorf("%s: taken for linear", name)
		}
		if err := s.ValidateRaw(json.RawMessage(c.value)); err == nil || !strings.Contains(err.Error(), "too much work") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, schema := range map[string]string{
		"bytes":        `{"description":"` + strings.Repeat("x", maxSchemaBytes) + `"}`,
		"depth":        strings.Repeat(`{"not":`, 70) + "true" + strings.Repeat("}", 70),
		"references":   `{"allOf":[` + strings.Repeat(`{"$ref":"#/$defs/a"},`, 300) + `true],"$defs":{"a":true}}`,
		"subschemas":   `{"anyOf":[` + strings.Repeat(`{},`, 2000) + `{}]}`,
		"pattern":      `{"pattern":"` + strings.Repeat("x", 600) + `"}`,
		"pattern key":  `{"patternProperties":{"` + strings.Repeat("x", 600) + `":true}}`,
		"repetition":   `{"pattern":"` + strings.Repeat("(x{0,900}y)", 20) + `"}`,
		"look-ahead":   `{"pattern":"^(?!x)"}`,
		"dynamic":      `{"properties":{"a":{"$dynamicRef":"#node"}}}`,
		"infinite":     `{"$ref":"#"}`,
		"no schema":    `{"type":"text"}`,
		"wrong kind":   `[1]`,
		"null":         `null`,
		"duplicate":    `{"type":"string","type":"object"}`,
		"two texts":    `{}{}`,
		"unknown ref":  `{"$ref":"#/$defs/none"}`,
		"not a number": `{"minimum":"1"}`,
	} {
		if _, err := CompileSchema([]byte(schema)); err == nil {
			t.Errorf("%s: compiled", name)
		} else if strings.Contains(err.Error(), "weir:") || strings.Contains(err.Error(), "jsonschema") {
			t.Errorf("%s: unclear error %q", name, err)
		}
	}
}

// Usual schemas that only look expensive still do their work.
func TestSchemaUsualCompositions(t *testing.T) {
	t.Parallel()
	tree := compile(t, `{"type":"object","oneOf":[
		{"properties":{"op":{"const":"not"},"arg":{"$ref":"#"}},"required":["op","arg"]},
		{"properties":{"op":{"enum":["and","or"]},"left":{"$ref":"#"},"right":{"$ref":"#"}},"required":["op","left","right"]},
		{"properties":{"var":{"type":"string"}},"required":["var"]}]}`)
	expr := `{"op":"and","left":{"op":"not","arg":{"var":"x"}},"right":{"op":"or","left":{"var":"y"},"right":{"var":"z"}}}`
	if err := tree.ValidateRaw(json.RawMessage(expr)); err != nil {
		t.Error(err)
	}
	doubled := compile(t, doubling(8, "allOf"))
	if err := doubled.ValidateRaw(json.RawMessage(`1`)); err != nil {
		t.Error(err)
	}
	rows := compile(t, `{"items":{"type":"object","properties":{"a":{"type":"integer"}}}}`)
	big := "[" + strings.Repeat(`{"a":1},`, 20_000) + `{"a":1}]`
	if err := rows.ValidateRaw(json.RawMessage(big)); err != nil {
		t.Error(err)
	}
	if err := rows.Validate(decodeAny([]byte(big))); err != nil {
		t.Error(err)
	}
}

// A shape never says yes where the validator says no.
func FuzzShape(f *testing.F) {
	schemas := []*Schema{
		compile(f, refundSchema),
		compile(f, `{"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"},"v":{"type":["integer","null"]}},
			"required":["v"]}},"type":"object","properties":{"list":{"$ref":"#/$defs/n"},
			"or":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]},"t":{"type":"string","format":"date-time"},
			"s":{"type":"string","minLength":1,"maxLength":3},"i":{"type":"integer","minimum":0},
			"e":{"type":"string","enum":["a","b"]},"l":{"type":"array","minItems":1,"maxItems":2,"items":{"type":"boolean"}},
			"m":{"type":"object","additionalProperties":{"type":"string"}}},"required":["s","i"]}`),
	}
	if schemas[1].quick == nil {
		f.Fatal("the schema has no shape")
	}
	for _, seed := range []string{
		`{"s":"é","i":0}`, `{"s":"abcd","i":-1}`, `{"s":"a","i":1.0,"t":"2026-02-29T00:00:00Z"}`, `{"s":"a","i":1,"or":null}`,
		`{"s":"a","i":1,"t":"2024-02-29T23:59:59.123456789Z","e":"b","l":[true],"m":{"x":"y"},"list":{"v":1,"next":{"v":null}}}`,
		`{"s":"\u0061","i":1,"m":{"x":1}}`, `{"i":1}`, `{"s":"a","i":1,"l":[]}`, `{"s":"a","i":1,"list":{"next":{}}}`,
		`{"orderId":"ord","amount":1,"\u0078":1}`, `{"s":"a","i":99999999999999999999}`, `{"s":"a","i":1,"s":"b"}`,
		`{"s":"a","i":1,"t":"2026-13-01T00:00:00Z"}`, `{"s":"a","i":1,"t":"2026-12-01T24:00:00Z"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, s := range schemas {
			if s.quick == nil || !s.quick.accepts(raw) {
				continue
			}
			if err := checkJSON(raw, maxEventDepth); err != nil {
				t.Errorf("%s: accepted, but %v", raw, err)
			} else if err := s.Validate(decodeAny(raw)); err != nil {
				t.Errorf("%s: accepted, but %v", raw, err)
			}
		}
	})
}

func TestMask(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"properties":{"card":{"type":"string","writeOnly":true},"user":{"$ref":"#/$defs/user"},
		"keys":{"type":"array","items":{"x-weir-secret":true}},"open":{"x-weir-secret":false}},
		"$defs":{"user":{"allOf":[{"properties":{"pin":{"x-weir-secret":true}}}]}}}`)
	got := string(Mask(s, json.RawMessage(`{"a":1.0,"card":"4242","user":{"pin":1234,"name":"x"},"keys":[1,{"b":2}],"open":3}`)))
	for _, secret := range []string{"4242", "1234", `"b":2`} {
		if strings.Contains(got, `:`+secret) || strings.Contains(got, `"`+secret+`"`) {
			t.Errorf("%s is shown: %s", secret, got)
		}
	}
	for _, shown := range []string{`"a":1.0`, `"card":{"secret":{"length":4,"digest":"sha256:`, `"name":"x"`, `"open":3`} {
		if !strings.Contains(got, shown) {
			t.Errorf("%s is missing: %s", shown, got)
		}
	}
	plain := json.RawMessage(`{ "a": 1 }`)
	if got := Mask(compile(t, `{"properties":{"a":{}}}`), plain); string(got) != string(plain) {
		t.Errorf("got %s", got)
	}
	if got := Mask(nil, plain); string(got) != string(plain) {
		t.Errorf("got %s", got)
	}
	if got := Mask(s, json.RawMessage(`{"card":"4242`)); strings.Contains(string(got), "4242") {
		t.Errorf("got %s", got)
	}
}

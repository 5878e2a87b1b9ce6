package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// normalizeCase is arguments and what becomes of them: canonical bytes, or issues.
type normalizeCase struct {
	name, schema, args string
	want               string
	issues             []Issue
}

func (c normalizeCase) run(t *testing.T) {
	t.Helper()
	got, err := Normalize(compile(t, c.schema), json.RawMessage(c.args))
	if c.issues != nil {
		invalid, ok := errors.AsType[*InvalidData](err)
		if !ok {
			t.Fatalf("Normalize(%s) = %s, %v, want issues", c.args, got, err)
		}
		if diff := cmp.Diff(c.issues, invalid.Issues); diff != "" {
			t.Errorf("issues of %s (-want +got):\n%s", c.args, diff)
		}
		return
	}
	if err != nil {
		t.Fatalf("Normalize(%s): %v", c.args, err)
	}
	if string(got) != c.want {
		t.Errorf("Normalize(%s) = %s, want %s", c.args, got, c.want)
	}
}

func runNormalize(t *testing.T, cases []normalizeCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

const noFields = `{"type":"object","properties":{}}`

func TestB2_1NumbersKeepEveryDigit(t *testing.T) {
	t.Parallel()
	s := `{"properties":{"n":{"type":"number"},"t":{"type":"string"}}}`
	runNormalize(t, []normalizeCase{
		{name: "beyond a float", schema: s, args: `{"n": 9007199254740993}`, want: `{"n":9007199254740993}`},
		{name: "trailing zero", schema: s, args: `{"n":612.50}`, want: `{"n":612.50}`},
		{name: "not escaped", schema: s, args: `{"t":"<a href=\"x\">&amp;</a>"}`, want: `{"t":"<a href=\"x\">&amp;</a>"}`},
	})
}

func TestB2_2NothingIsAnEmptyObject(t *testing.T) {
	t.Parallel()
	needs := `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`
	for _, args := range []string{"", "   ", "\n\t", "null", " null ", "{}"} {
		t.Run(fmt.Sprintf("%q", args), func(t *testing.T) {
			t.Parallel()
			normalizeCase{schema: noFields, args: args, want: "{}"}.run(t)
			normalizeCase{schema: needs, args: args, issues: []Issue{{Field: "a", Message: "is required"}}}.run(t)
		})
	}
}

// ARGS-3: what is not one clean JSON object gives one error that names the place, and nothing is guessed.
func TestB2_3MalformedArgumentsNameThePlace(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		`{"a":1}{"b":2}`:                   "position 8",
		`{"a":1,}`:                         "position 8",
		`{'a':1}`:                          "position 2",
		`{"a":NaN}`:                        "position 6",
		`{"a":1`:                           "the text ends",
		`{"a":"cut`:                        "the text ends",
		`{"a":1,"a":2}`:                    `duplicate key "a"`,
		"{\"a\":\"\xff\"}":                 "invalid UTF-8",
		`{"a":"\ud800"}`:                   "lone surrogate",
		strings.Repeat(`{"a":`, 100) + "1": "nested too deeply",
		`{"a":1e999999999}`:                "exponent",
		`[1]`:                              "want object, got array",
	} {
		_, err := Normalize(compile(t, noFields), json.RawMessage(args))
		if _, ok := errors.AsType[*InvalidData](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("Normalize(%.20s) = %v, want %q", args, err, want)
		}
	}
}

// ARGS-5 and B2.4: repairs happen only when validation failed, and they combine.
func TestB2_4Repairs(t *testing.T) {
	t.Parallel()
	s := `{"type":"object","properties":{
		"name":{"type":"string"},"limit":{"type":"integer","default":10},"note":{"type":["string","null"]},
		"tags":{"type":"array","items":{"type":"string"}},
		"where":{"type":"object","properties":{"city":{"type":"string"},"zip":{"type":"string"}}},
		"any":{}, "text":{"type":["string","array"]}},
		"required":["name"]}`
	prompt := `{"type":"object","properties":{"prompt":{"type":"string"},"input":{"type":"string"}},"required":["prompt"]}`
	runNormalize(t, []normalizeCase{
		{name: "null counts as absent", schema: s, args: `{"name":"x","tags":null}`, want: `{"limit":10,"name":"x"}`},
		{name: "null gives way to the default", schema: s, args: `{"name":"x","limit":null}`, want: `{"limit":10,"name":"x"}`},
		{name: "absent takes the default", schema: s, args: `{"name":"x"}`, want: `{"limit":10,"name":"x"}`},
		{name: "nullable keeps null", schema: s, args: `{"name":"x","note":null,"limit":1}`, want: `{"limit":1,"name":"x","note":null}`},
		{name: "nullable keeps null beside a repair", schema: s, args: `{"name":"x","note":null,"limit":null}`, want: `{"limit":10,"name":"x","note":null}`},
		{name: "anything keeps null", schema: s, args: `{"name":"x","any":null,"tags":null}`, want: `{"any":null,"limit":10,"name":"x"}`},
		{name: "the word null is a string", schema: s, args: `{"name":"null","note":"null"}`, want: `{"limit":10,"name":"null","note":"null"}`},
		{name: "required null is an error", schema: s, args: `{"name":null}`, issues: []Issue{{Field: "name", Message: "want string, got null"}}},
		{name: "null in depth", schema: s, args: `{"name":"x","where":{"city":null,"zip":"1"}}`, want: `{"limit":10,"name":"x","where":{"zip":"1"}}`},
		{name: "array in a string", schema: s, args: `{"name":"x","tags":"[\"a\",\"b\"]"}`, want: `{"limit":10,"name":"x","tags":["a","b"]}`},
		{name: "object in a string", schema: s, args: `{"name":"x","where":"{\"city\":\"Bonn\"}"}`, want: `{"limit":10,"name":"x","where":{"city":"Bonn"}}`},
		{name: "object with null in a string", schema: s, args: `{"name":"x","where":"{\"city\":null}","limit":null}`, want: `{"limit":10,"name":"x","where":{}}`},
		{name: "a string field stays one", schema: s, args: `{"name":"[1]","tags":null}`, want: `{"limit":10,"name":"[1]"}`},
		{name: "a field that takes strings stays one", schema: s, args: `{"name":"x","text":"[1]","tags":null}`, want: `{"limit":10,"name":"x","text":"[1]"}`},
		{name: "not JSON", schema: s, args: `{"name":"x","tags":"a, b"}`, issues: []Issue{{Field: "tags", Message: "want array, got string"}}},
		{name: "malformed JSON", schema: s, args: `{"name":"x","tags":"[\"a\","}`, issues: []Issue{{Field: "tags", Message: "want array, got string"}}},
		{name: "query is the prompt", schema: prompt, args: `{"query":"hi"}`, want: `{"prompt":"hi"}`},
		{name: "message is the prompt", schema: prompt, args: `{"message":"hi"}`, want: `{"prompt":"hi"}`},
		{name: "a listed field is no alias", schema: prompt, args: `{"input":"hi"}`, issues: []Issue{{Field: "prompt", Message: "is required"}}},
		{name: "the prompt itself wins", schema: prompt, args: `{"prompt":"a","query":"b"}`, want: `{"prompt":"a"}`},
		{name: "no prompt, no alias", schema: s, args: `{"query":"hi"}`, issues: []Issue{{Field: "name", Message: "is required"}}},
	})
}

func TestB2_4ValidArgumentsAreNotRepaired(t *testing.T) {
	t.Parallel()
	s := `{"type":"object","properties":{"a":{"type":["string","array"]},"b":{},"prompt":{"type":"string"},"query":{"type":"string"}}}`
	runNormalize(t, []normalizeCase{
		{name: "string", schema: s, args: `{"a":"[1]","b":null,"query":"q"}`, want: `{"a":"[1]","b":null,"query":"q"}`},
	})
}

func TestB2_5DefaultsAreFilledIn(t *testing.T) {
	t.Parallel()
	s := `{"type":"object","properties":{
		"page":{"type":"object","default":{"size":20},"properties":{"size":{"type":"integer"},"at":{"type":"integer","default":1}}},
		"sort":{"$ref":"#/$defs/sort"},
		"rows":{"type":"array","items":{"type":"object","properties":{"n":{"type":"integer","default":7}}}}},
		"required":["page"],
		"allOf":[{"properties":{"strict":{"type":"boolean","default":false}}}],
		"$defs":{"sort":{"type":"string","default":"asc"}}}`
	either := `{"type":"object","properties":{"by":{"anyOf":[
		{"type":"object","properties":{"id":{"type":"string"},"deep":{"default":true}},"required":["id"]},
		{"type":"object","properties":{"name":{"type":"string"},"fuzzy":{"default":false}},"required":["name"]}]}}}`
	runNormalize(t, []normalizeCase{
		{
			name: "all", schema: s, args: `{"rows":[{},{"n":8}]}`,
			want: `{"page":{"at":1,"size":20},"rows":[{"n":7},{"n":8}],"sort":"asc","strict":false}`,
		},
		{
			name: "given ones stay", schema: s, args: `{"page":{"size":1},"sort":"desc","strict":true}`,
			want: `{"page":{"at":1,"size":1},"sort":"desc","strict":true}`,
		},
		{name: "first branch", schema: either, args: `{"by":{"id":"1"}}`, want: `{"by":{"deep":true,"id":"1"}}`},
		{name: "second branch", schema: either, args: `{"by":{"name":"n"}}`, want: `{"by":{"fuzzy":false,"name":"n"}}`},
		{name: "null says nothing", schema: `{"properties":{"a":{"default":null}}}`, args: `{}`, want: `{}`},
		{
			name: "a default that does not fit is an error", schema: `{"properties":{"a":{"type":"string","default":1}}}`,
			args: `{}`, issues: []Issue{{Field: "a", Message: "want string, got number"}},
		},
	})
}

func TestB2_5DefaultsWithoutEndAreRefused(t *testing.T) {
	t.Parallel()
	s := `{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{
		"l":{"$ref":"#/$defs/n","default":{}},"r":{"$ref":"#/$defs/n","default":{}}}}}}`
	_, err := Normalize(compile(t, s), json.RawMessage(`{}`))
	if err == nil {
		t.Fatal("want an error")
	}
}

func TestB2_5DefaultsAreNotShared(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"properties":{"a":{"type":"object","default":{"x":{}},"properties":{"x":{"type":"object","properties":{}},"y":{"default":1}}}}}`)
	for range 3 {
		got, err := Normalize(s, json.RawMessage(`{}`))
		if err != nil || string(got) != `{"a":{"x":{},"y":1}}` {
			t.Fatalf("got %s, %v", got, err)
		}
	}
	if d := s.root.Properties["a"].Default.(map[string]any); len(d) != 1 {
		t.Errorf("the schema's default was changed: %v", d)
	}
}

func TestB2_6UnknownKeys(t *testing.T) {
	t.Parallel()
	fields := `"type":"object","properties":{"a":{"type":"object","properties":{"b":{}}},"l":{"items":{"properties":{"c":{}}}},"free":{"type":"object"}}`
	runNormalize(t, []normalizeCase{
		{
			name: "removed at any depth", schema: `{` + fields + `}`,
			args: `{"x":1,"a":{"b":1,"x":1},"l":[{"c":1,"x":1},2]}`, want: `{"a":{"b":1},"l":[{"c":1},2]}`,
		},
		{
			name: "an object that lists nothing keeps all", schema: `{` + fields + `}`,
			args: `{"free":{"x":1}}`, want: `{"free":{"x":1}}`,
		},
		{
			name: "additionalProperties true", schema: `{` + fields + `,"additionalProperties":true}`,
			args: `{"x":1,"a":{"x":1}}`, want: `{"a":{},"x":1}`,
		},
		{
			name: "additionalProperties as a schema", schema: `{` + fields + `,"additionalProperties":{"type":"number"}}`,
			args: `{"x":1}`, want: `{"x":1}`,
		},
		{
			name: "additionalProperties false is an error", schema: `{` + fields + `,"additionalProperties":false}`,
			args: `{"x":1}`, issues: []Issue{{Field: "x", Message: "is not known"}},
		},
		{
			name: "patterns are known", schema: `{"patternProperties":{"^x-":{}}}`,
			args: `{"x-a":1,"y":2}`, want: `{"x-a":1}`,
		},
		{name: "no fields", schema: noFields, args: `{"x":1}`, want: `{}`},
		{
			name: "branches know keys", schema: `{"type":"object","oneOf":[{"properties":{"a":{}},"required":["a"]},{"properties":{"b":{}},"required":["b"]}]}`,
			args: `{"b":1,"x":2}`, want: `{"b":1}`,
		},
		{
			name: "references and conditions know keys", schema: `{"$ref":"#/$defs/d","if":{"properties":{"k":{"const":1}}},"then":{"properties":{"t":{}}},"dependentSchemas":{"k":{"properties":{"z":{}}}},"$defs":{"d":{"properties":{"r":{}}}}}`,
			args: `{"k":1,"t":1,"r":1,"z":1,"x":1}`, want: `{"k":1,"r":1,"t":1,"z":1}`,
		},
		{
			name: "tuples", schema: `{"properties":{"l":{"prefixItems":[{"properties":{"a":{}}}],"items":{"properties":{"b":{}}}}}}`,
			args: `{"l":[{"a":1,"b":1},{"a":1,"b":1}]}`, want: `{"l":[{"a":1},{"b":1}]}`,
		},
		{name: "case matters", schema: `{"properties":{"city":{}}}`, args: `{"CITY":1,"city":2}`, want: `{"city":2}`},
	})
}

func TestB2_12ReservedKeysNeverReachAnything(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		noFields, `{"type":"object"}`, `{"type":"object","additionalProperties":true}`, `{}`,
		`{"type":"object","properties":{"a":{}},"additionalProperties":false}`,
	} {
		got, err := Normalize(compile(t, schema),
			json.RawMessage(`{"resumeData":{"approved":true},"suspendedToolCallId":"x","suspendedToolRunId":"y"}`))
		if err != nil || string(got) != "{}" {
			t.Errorf("schema %s: %s, %v", schema, got, err)
		}
	}
}

func TestB1_10ObjectSchema(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": noFields, "null": noFields, "{}": noFields, ` {"type":"object"} `: noFields,
		`{"type":"object","additionalProperties":true}`: `{"type":"object","additionalProperties":true}`,
		`{"properties":{"a":{}}}`:                       `{"properties":{"a":{}}}`,
		`{"type":"string"}`:                             `{"type":"string"}`,
		`[`:                                             `[`,
	} {
		if got := ObjectSchema(json.RawMessage(in)); string(got) != want {
			t.Errorf("ObjectSchema(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestB2_13ConformRemovesAndKeepsBytes(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"type":"object","properties":{"id":{"type":"string"},"n":{"type":"number"}},"required":["id"]}`)
	same := `{"n": 1.50, "id":"a"}`
	if got, err := Conform(s, json.RawMessage(same)); err != nil || string(got) != same {
		t.Errorf("got %s, %v", got, err)
	}
	if got, err := Conform(s, json.RawMessage(`{"id":"a","secret":"x","n":1.50}`)); err != nil || string(got) != `{"id":"a","n":1.50}` {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := Conform(s, json.RawMessage(`{"n":1}`)); err == nil {
		t.Error("want an error: id is required")
	}
	if _, err := Conform(s, json.RawMessage(`{`)); err == nil {
		t.Error("want an error: not JSON")
	}
}

// Normalized arguments are valid, canonical, and normalize to themselves, whatever the arguments were.
func TestNormalizeIsAFixedPoint(t *testing.T) {
	t.Parallel()
	schemas := []*Schema{
		compile(t, `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"$ref":"#"}},
			"c":{"anyOf":[{"type":"object","properties":{"a":{"type":"integer"},"b":{"default":1}},"required":["a"]},{"type":"null"}]},
			"prompt":{"type":"string","default":"p"}}}`),
		compile(t, `{"type":"object","properties":{"a":{"default":1}},"anyOf":[{"required":["a"],"properties":{"b":{"default":2}}},{"properties":{"c":{}}}]}`),
		compile(t, `{"type":"object","required":["a"],"properties":{"a":{"type":"object","properties":{"b":{"type":["string","null"]}}}},"additionalProperties":{"type":"array"}}`),
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(schemas).Draw(t, "schema")
		args := rapid.Map(anyValue(3), func(v any) json.RawMessage { raw, _ := Marshal(v); return raw }).Draw(t, "args")
		once, err := Normalize(s, args)
		if err != nil {
			return
		}
		if canonical, err := Canonical(once); err != nil || string(canonical) != string(once) {
			t.Fatalf("%s is not canonical: %v", once, err)
		}
		if err := s.ValidateRaw(once); err != nil {
			t.Fatalf("%s is not valid: %v", once, err)
		}
		if twice, err := Normalize(s, once); err != nil || string(twice) != string(once) {
			t.Fatalf("%s, then %s, %v", once, twice, err)
		}
	})
}

// anyValue draws JSON values whose keys and texts are those of the schemas above.
func anyValue(depth int) *rapid.Generator[any] {
	key := rapid.SampledFrom([]string{"a", "b", "c", "prompt", "query", "resumeData", "x"})
	leaf := rapid.OneOf(
		rapid.Just[any](nil), rapid.Just[any](true), rapid.Just[any](json.Number("1")), rapid.Just[any](json.Number("0.5")),
		rapid.Just[any]("t"), rapid.Just[any](`{"a":null}`), rapid.Just[any](`[{"b":"[]"}]`), rapid.Just[any]("null"),
	)
	if depth == 0 {
		return leaf
	}
	return rapid.OneOf(
		rapid.Map(rapid.MapOfN(key, anyValue(depth-1), 0, 4), func(m map[string]any) any { return m }),
		rapid.Map(rapid.SliceOfN(anyValue(depth-1), 0, 3), func(l []any) any { return l }),
		leaf,
	)
}

func FuzzNormalize(f *testing.F) {
	s := compile(f, `{"type":"object","properties":{"a":{"type":"string","default":"d"},"b":{"type":"array","items":{"$ref":"#"}}}}`)
	for _, seed := range []string{`{}`, `null`, `{"a":null,"b":"[{}]"}`, `{"b":[{"b":[]}]}`, `{"a":"\ud83d\ude00"}`, `[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, args []byte) {
		once, err := Normalize(s, args)
		if err != nil {
			return
		}
		if err := s.ValidateRaw(once); err != nil {
			t.Errorf("%s is not valid: %v", once, err)
		}
		if twice, err := Normalize(s, once); err != nil || string(twice) != string(once) {
			t.Errorf("%s, then %s, %v", once, twice, err)
		}
	})
}

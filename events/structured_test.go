package events

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestPartialJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                             ``,
		`Sure`:                         ``,
		`{`:                            `{}`,
		`{"na`:                         `{}`,
		`{"name"`:                      `{}`,
		`{"name":`:                     `{}`,
		`{"name":"Bo`:                  `{"name":"Bo"}`,
		`{"name":"Bo\`:                 `{}`,
		`{"a":1,"name":"Bo\u00e`:       `{"a":1}`,
		`{"name":"Bo\n`:                `{"name":"Bo\n"}`,
		`{"n":12`:                      `{}`,
		`{"n":12,`:                     `{"n":12}`,
		`{"n":12,"list":[1,tr`:         `{"n":12,"list":[1]}`,
		`{"n":12,"list":[1,true],`:     `{"n":12,"list":[1,true]}`,
		`{"a":{"b":[{"c":"d`:           `{"a":{"b":[{"c":"d"}]}}`,
		"```json\n{\"a\":\"b":          `{"a":"b"}`,
		"```json\n{\"a\":1}\n```":      `{"a":1}`,
		`[[],["x`:                      `[[],["x"]]`,
		`{"a":"` + "\xc3":              `{"a":""}`,
		`{"a":1} and more`:             `{"a":1}`,
		`]]`:                           ``,
		`{"a":"b"}`:                    `{"a":"b"}`,
		`{"k\"ey":"v`:                  `{"k\"ey":"v"}`,
		`{"a":[{"b":1},{"b":2},{"b":3`: `{"a":[{"b":1},{"b":2},{}]}`,
	} {
		got, ok := PartialJSON(text)
		if ok != (want != "") || ok && string(got) != want {
			t.Errorf("%q: got %s %v, want %s", text, got, ok, want)
		}
	}
}

func FuzzPartialJSON(f *testing.F) {
	f.Add(`{"a":[1,"x\u00e9",{"b":null}]}`)
	f.Add("```json\n[]")
	f.Fuzz(func(t *testing.T, text string) {
		if got, ok := PartialJSON(text); ok && !json.Valid(got) {
			t.Fatalf("%q gives %s", text, got)
		}
		if json.Valid([]byte(text)) && len(text) > 1 && strings.ContainsAny(text[:1], `{["`) {
			whole, ok := PartialJSON(text)
			a, errA := Canonical(json.RawMessage(text))
			b, errB := Canonical(whole)
			if errA == nil && (!ok || errB != nil || string(a) != string(b)) {
				t.Fatalf("the whole of %q gives %s", text, whole)
			}
		}
	})
}

func TestStructuredOutputCheck(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`
	for want, s := range map[string]*StructuredOutput{
		"":                                 nil,
		"structuredOutput.schema":          {},
		"structuredOutput.errorStrategy":   {Schema: json.RawMessage(schema), ErrorStrategy: "retry"},
		"structuredOutput.fallbackValue":   {Schema: json.RawMessage(schema), ErrorStrategy: ErrorFallback},
		"structuredOutput.fallbackValue ":  {Schema: json.RawMessage(schema), ErrorStrategy: ErrorFallback, FallbackValue: json.RawMessage(`{}`)},
		"structuredOutput.fallbackValue  ": {Schema: json.RawMessage(schema), FallbackValue: json.RawMessage(`{"n":1}`)},
		"structuredOutput.instructions":    {Schema: json.RawMessage(schema), Instructions: "x"},
	} {
		issues := s.Check()
		if want == "" {
			if len(issues) > 0 {
				t.Errorf("%v: %v", s, issues)
			}
			continue
		}
		if len(issues) != 1 || issues[0].Field != strings.TrimSpace(want) {
			t.Errorf("%+v: got %v, want one about %s", s, issues, want)
		}
	}
	good := &StructuredOutput{Schema: json.RawMessage(schema), ErrorStrategy: ErrorFallback, FallbackValue: json.RawMessage(`{"n":1}`)}
	if issues := good.Check(); len(issues) > 0 {
		t.Error(issues)
	}
}

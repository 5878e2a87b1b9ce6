package events

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestB2_7ValidationErrorObject(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"type":"object","properties":{"amount":{"type":"number"},
		"lines":{"type":"array","items":{"type":"object","properties":{"sku":{"type":"string"}},"required":["sku"]}}},"required":["orderId"]}`)
	args := `{"apiKey":"k-123","amount":"lots","lines":[{"sku":"a"},{}]}`
	_, err := Normalize(s, json.RawMessage(args))
	got := InvalidInput("issue_refund", err, args)
	want := `{"error":true,"message":"Tool input validation failed for issue_refund. Please fix the following and try again:` +
		`\n- amount: want number, got string\n- lines.1.sku: is required\n- orderId: is required` +
		`\nProvided arguments: {\"apiKey\":\"[REDACTED]\",\"amount\":\"lots\",\"lines\":[{\"sku\":\"a\"},{}]}",` +
		`"validationErrors":{"errors":[],"fields":{"amount":{"errors":["want number, got string"],"fields":{}},` +
		`"lines":{"errors":[],"fields":{"1":{"errors":[],"fields":{"sku":{"errors":["is required"],"fields":{}}}}}},` +
		`"orderId":{"errors":["is required"],"fields":{}}}}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestB2_3InvalidInputNamesPositionOrCut(t *testing.T) {
	t.Parallel()
	args := `{"token":"abc","a":`
	_, err := ParseArgs(args, false)
	got := string(InvalidInput("t", err, args))
	if !strings.Contains(got, "malformed JSON at position 20") || strings.Contains(got, "abc") || strings.Contains(got, "Provided") {
		t.Errorf("got %s", got)
	}
	_, err = ParseArgs(args, true)
	got = string(InvalidInput("t", err, args))
	if !strings.Contains(got, "cut off by the length limit") || !strings.Contains(got, `"errors":["the arguments were cut off`) {
		t.Errorf("got %s", got)
	}
}

func TestB2_9Redacted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"password":"a","Secret":1,"accessToken":[1],"apiKey":{"x":1}}`:     `{"password":"[REDACTED]","Secret":"[REDACTED]","accessToken":"[REDACTED]","apiKey":"[REDACTED]"}`,
		`{"api_key":"b","X-API-Key":"c","Authorization":"d","city":"e"}`:     `{"api_key":"[REDACTED]","X-API-Key":"[REDACTED]","Authorization":"[REDACTED]","city":"e"}`,
		`{"list":{"credentials":null},"deep":[[{"client_secret":{"a":1}}]]}`: `{"list":{"credentials":"[REDACTED]"},"deep":[[{"client_secret":"[REDACTED]"}]]}`,
		`{"b":1, "a":[ {"token":"x"}, 1.50 ]}`:                               `{"b":1,"a":[{"token":"[REDACTED]"},1.50]}`,
		`{"body":"{\"password\":\"hunter2\"}"}`:                              `{"body":"{\"password\":\"[REDACTED]\"}"}`,
		`{"body":" [{\"secret\":\"x\"}] "}`:                                  `{"body":"[{\"secret\":\"[REDACTED]\"}]"}`,
		`{"to\u006ben":"x"}`:                                                 `{"token":"[REDACTED]"}`,
		`{"password":"secret"`:                                               ``,
		``:                                                                   ``,
		`{"a":"` + strings.Repeat("日", 300) + `"}`:                           `{"a":"` + strings.Repeat("日", 194) + `…`,
		`{"a":"` + strings.Repeat("x", 192) + `"}`:                           `{"a":"` + strings.Repeat("x", 192) + `"}`,
		`{"a":"{broken","b":"[1","c":"plain \u0041"}`:                        `{"a":"{broken","b":"[1","c":"plain \u0041"}`,
	} {
		got := Redacted(in)
		if got != want {
			t.Errorf("Redacted(%.80s)\n got %s\nwant %s", in, got, want)
		}
		if utf8.RuneCountInString(got) > maxQuoted+1 {
			t.Errorf("Redacted(%.80s) has %d characters", in, utf8.RuneCountInString(got))
		}
	}
}

func TestB2_9NothingIsQuotedWhereATransformCovers(t *testing.T) {
	t.Parallel()
	got := string(InvalidInput("t", errors.New("no"), ""))
	if strings.Contains(got, "Provided") {
		t.Errorf("got %s", got)
	}
}

func TestB2_10And13OtherPrefixes(t *testing.T) {
	t.Parallel()
	err := &InvalidData{Issues: []Issue{{Field: "id", Message: "is required"}}}
	tail := " Please fix the following and try again:\n- id: is required"
	var context, output struct{ Message string }
	if err := errors.Join(json.Unmarshal(InvalidContext("ctx.tool", err), &context),
		json.Unmarshal(InvalidOutput("out.tool", err), &output)); err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		context.Message:                     "Request context validation failed for ctx.tool." + tail,
		output.Message:                      "Tool output validation failed for out.tool." + tail,
		InvalidSuspension("t", err).Message: "Tool suspension data validation failed for t." + tail,
		InvalidResume("key", err).Message:   "Tool resume data validation failed for key." + tail,
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestB9_4ResumeData(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"directory":{"enum":["eu","us"]}},"required":["directory"]}`)
	if e := CheckResumeData("find_user", schema, json.RawMessage(`{"directory":"eu"}`)); e != nil {
		t.Errorf("got %v", e)
	}
	e := CheckResumeData("find_user", schema, json.RawMessage(`{}`))
	if e == nil || e.Code != CodeInvalidData || cmp.Diff([]Issue{{Field: "directory", Message: "is required"}}, e.Issues) != "" {
		t.Errorf("got %+v", e)
	}
	if e := CheckResumeData("t", json.RawMessage(`{"type":"nothing"}`), json.RawMessage(`1`)); e == nil {
		t.Error("a schema that does not compile accepts nothing")
	}
}

func TestB9_5AnyValueWithoutSchema(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"false", "0", `""`, "[]", "{}", "null"} {
		for _, schema := range []string{"", "null"} {
			if e := CheckResumeData("t", json.RawMessage(schema), json.RawMessage(data)); e != nil {
				t.Errorf("%s: %v", data, e)
			}
		}
	}
	if e := CheckResumeData("t", nil, json.RawMessage("{")); e == nil {
		t.Error("want an error: not JSON")
	}
	if e := CheckResumeData("t", nil, nil); e == nil {
		t.Error("want an error: absent")
	}
}
